package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// LogStatus is what a node says of a log it holds.
type LogStatus struct {
	LogInfo
	Source string // that delivers it
	Own    bool   // minted here
	Path   []string
	Tables []TableName
	// SourceHead is how far the log is known to have got where it comes from;
	// empty where nothing is known.
	SourceHead Position
	Lag        Lag
	// Repeated are the changes of the log that had come before, since the node has
	// started; they were dropped.
	Repeated uint64
	// Moved is when something of it was committed last, in this life of the node;
	// zero if nothing was.
	Moved time.Time
}

// Status is a snapshot of what a node says of itself.
type Status struct {
	NodeID  string
	Ready   bool // every source has been baselined
	Sources []SourceState
	Logs    []LogStatus
	Tables  []TableInfo
	// Conflicts counts what has become of writes of several origins to one row, of
	// the tables where there were any, or that have a policy of their own.
	Conflicts []TableConflicts
	Readers   []ReaderAck
	// Full says that what the node mints waits, since its logs are full; nil if it does
	// not.
	Full *Full
}

// Status returns the node's state as of the last commit.
func (e *Engine) Status() Status {
	v := e.store.View()
	defer v.Close()
	st := Status{NodeID: e.id, Tables: v.Tables(), Conflicts: e.tally.conflicts(), Ready: len(e.sources) > 0}
	now := e.now()
	for _, s := range e.sources {
		s.mu.Lock()
		st.Sources = append(st.Sources, s.state)
		st.Ready = st.Ready && s.ready
		s.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.full != nil {
		f := *e.full
		st.Full = &f
	}
	for _, info := range v.Logs() {
		l := e.logs[info.ID]
		if l == nil {
			continue
		}
		ls := LogStatus{
			LogInfo: info, Source: l.source.name, Own: MintedBy(info.ID.Origin, e.id),
			Path: slices.Clone(l.path), Tables: slices.Clone(l.tables), SourceHead: l.reach.last().Position, Moved: l.moved,
		}
		if l.source.recorder() != nil { // it holds no entries
			if c, ok := v.Cursor(CursorKey{Log: info.ID}); ok {
				info.Head, info.Oldest, info.Time = c.Position, c.Position, c.Time
				ls.LogInfo = info
			}
		}
		ls.Repeated = e.tally.repeats(info.ID.Origin)
		ls.Lag = l.lag(info.Head, now)
		if l.source == e.writes.own {
			ls.SourceHead, ls.Lag = info.Head, Lag{Known: true, CountKnown: true}
		}
		st.Logs = append(st.Logs, ls)
	}

	st.Readers = slices.SortedFunc(maps.Values(e.readers), func(a, b ReaderAck) int {
		return cmp.Or(cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Key.Log.Origin, b.Key.Log.Origin),
			cmp.Compare(a.Key.Log.Epoch, b.Key.Log.Epoch), cmp.Compare(a.Key.Scope, b.Key.Scope))
	})
	return st
}
