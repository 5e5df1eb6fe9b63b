package sinks

import (
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// State is what a sink is doing.
type State string

// The states.
const (
	// StateConnecting: the target has not been reached yet.
	StateConnecting State = "Connecting"
	// StateWaiting: the node serves nothing that the sink delivers.
	StateWaiting State = "Waiting"
	// StateBaselining: the state is being copied.
	StateBaselining State = "Baselining"
	// StateStreaming: all is well.
	StateStreaming State = "Streaming"
	// StateHeld: the target rejects something; it is tried again now and then.
	StateHeld State = "Held"
	// StateRetrying: the target cannot be reached, or not now.
	StateRetrying State = "Retrying"
	// StateSuperseded: the target has a newer epoch than the node.
	StateSuperseded State = "Superseded"
)

// Status is what a sink says of itself. Counters are since it was made.
type Status struct {
	Name    string
	State   State
	Message string // stable, for a person; empty when all is well
	Since   time.Time

	Logs []LogStatus

	Changes, Batches       int64
	Rejected, Errors       int64
	Baselines, Rebaselines int64
	LastCause              string // of the last baseline
	LastBaseline           time.Duration
	LastError              string
	DeadLetters            int
}

// LogStatus is how far a sink is with one log.
type LogStatus struct {
	Log      engine.LogID
	Position engine.Position // that the target has; empty if nothing
	Head     engine.Position // that the node has
	Lag      engine.Lag      // of the target behind the node
	// Held is what the target rejects; nil when all is well.
	Held      *Rejected
	HeldSince time.Time
	HeldError string

	at engine.Time // of Position
}

// Status returns the sink's state.
func (s *Sink) Status() Status {
	n := s.letters.len()
	v := s.host.View()
	defer v.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.st
	st.DeadLetters = n
	now := s.now()
	st.Logs = make([]LogStatus, len(s.st.Logs))
	for i, l := range s.st.Logs {
		if info, ok := v.Log(l.Log); ok { // the loop may be stuck
			l.Head = info.Head
		}
		if l.Lag.Known && l.Position != l.Head {
			// From the first transaction that the target lacks, where the log still has it.
			first := l.at
			if blocks, err := v.ReadLog(l.Log, l.Position, 1); err == nil && len(blocks) > 0 && blocks[0].Time > 0 {
				first = blocks[0].Time
			}
			l.Lag.Seconds = max(0, now.Sub(first.Wall()).Seconds())
		}
		st.Logs[i] = l
	}
	return st
}

func (s *Sink) count(fn func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(&s.st)
}

// report sets the sink's state.
func (s *Sink) report(state State, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.st.State != state {
		s.st.State, s.st.Since = state, s.now()
	}
	s.st.Message = ""
	if err != nil {
		s.st.Message, s.st.LastError = err.Error(), err.Error()
	}
}

// look brings the status of the logs up to date.
func (s *Sink) look(v engine.View, adverts []engine.Advert) {
	logs := make([]LogStatus, 0, len(adverts))
	state, why := StateStreaming, error(nil)
	for _, a := range adverts {
		f := s.flow(a.Log)
		c, has := s.cursors[s.key(a.Log)]
		info, ok := v.Log(a.Log)
		if !ok {
			continue
		}
		l := LogStatus{Log: a.Log, Position: c.Position, Head: info.Head}
		if has {
			l.Lag.Known = true
			l.at = c.Time
		} else {
			state = StateWaiting
		}
		if f.held != nil {
			l.Held, l.HeldSince, l.HeldError = f.held.Entry, f.since, f.held.Err.Error()
			state, why = StateHeld, f.held
		}
		if f.stale != nil {
			state, why = StateSuperseded, f.stale
		}
		logs = append(logs, l)
	}
	s.mu.Lock()
	s.st.Logs = logs
	s.mu.Unlock()
	// What goes on after an error has yet to show that it gets through.
	if len(adverts) > 0 && !(s.failing && why == nil) {
		s.report(state, why)
	}
}
