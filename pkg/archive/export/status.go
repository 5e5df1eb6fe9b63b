package export

import (
	"errors"
	"maps"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// State is what an exporter is doing.
type State string

// The states.
const (
	// StateWaiting: the node serves none of the tables yet.
	StateWaiting State = "Waiting"
	// StateStreaming: all is well.
	StateStreaming State = "Streaming"
	// StateRetrying: the destination cannot be reached, or not now.
	StateRetrying State = "Retrying"
	// StateFull: the destination has no room. It goes on by itself once there is.
	StateFull State = "Full"
	// StateFenced: another writer has an archive.
	StateFenced State = "Fenced"
)

// Status is what an exporter says of itself. Counters are since it was made.
type Status struct {
	Name        string
	Destination string
	State       State
	Message     string // stable, for a person; empty when all is well
	Since       time.Time
	LastError   string
	Tables      map[engine.TableName]TableStatus

	Errors int64
}

// TableStatus is how the archive of one table is.
type TableStatus struct {
	Prefix     string
	Doing      string // Basing, Appending; empty between passes
	Generation uint64
	Through    archive.Vector // what is archived
	Lag        engine.Lag     // of the archive behind the node, at the last look
	Artifacts  int            // listed
	Bytes      int64          // of them, stored
	Written    time.Time      // the last commit
	Bases      int64
	LastCause  string // of the last base
	LastError  string
}

// Status returns the exporter's state.
func (x *Exporter) Status() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.status
	st.Tables = maps.Clone(st.Tables)
	return st
}

func (x *Exporter) report(state State, message string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.status.State != state {
		x.status.State, x.status.Since = state, x.now()
	}
	x.status.Message = message
}

func (x *Exporter) failed(err error) {
	state := StateRetrying
	switch {
	case errors.Is(err, archive.ErrFenced):
		state = StateFenced
	case errors.Is(err, dest.ErrFull):
		state = StateFull
	}
	x.report(state, err.Error())
	x.mu.Lock()
	defer x.mu.Unlock()
	x.status.Errors++
	x.status.LastError = err.Error()
}

// state says what is being done to a table's archive.
func (x *Exporter) state(t *table, doing string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.status.Tables[t.name]
	st.Prefix, st.Doing = t.prefix, doing
	x.status.Tables[t.name] = st
}

// note takes note of what has become of a table's archive.
func (x *Exporter) note(t *table, c cut, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.status.Tables[t.name]
	st.Prefix, st.Doing, st.LastError = t.prefix, "", ""
	if err != nil {
		st.LastError = err.Error()
	}
	if m := t.w.Manifest(); m != nil {
		if m.Generation != st.Generation {
			st.Bases++
			st.LastCause = ""
			for i := len(m.Artifacts) - 1; i >= 0; i-- {
				if m.Artifacts[i].Kind == archive.KindBase {
					st.LastCause = m.Artifacts[i].Reason
					break
				}
			}
		}
		st.Generation, st.Written, st.Artifacts, st.Bytes = m.Generation, m.Written, len(m.Artifacts), 0
		for i := range m.Artifacts {
			for _, f := range m.Artifacts[i].Files {
				st.Bytes += f.Size
			}
		}
		st.Through = m.Through
		st.Lag = engine.Lag{Known: true, Seconds: max(0, c.to.Time().Wall().Sub(m.Through.Time().Wall()).Seconds())}
		if m.Through.Equal(c.to) {
			st.Lag.Seconds = 0
		}
	}
	x.status.Tables[t.name] = st
}
