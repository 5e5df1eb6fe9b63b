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
}

// Lag is how far a log is behind its source. Unknown never reads as 0.
type Lag struct {
	Known   bool
	Seconds float64 // 0 when caught up
}

// Status is a snapshot of what a node says of itself.
type Status struct {
	NodeID  string
	Ready   bool // every source has been baselined
	Sources []SourceState
	Logs    []LogStatus
	Tables  []TableInfo
	Readers []ReaderAck
}

// Status returns the node's state as of the last commit.
func (e *Engine) Status() Status {
	v := e.store.View()
	defer v.Close()
	st := Status{NodeID: e.id, Tables: v.Tables(), Ready: len(e.sources) > 0}
	now := e.now()
	for _, s := range e.sources {
		s.mu.Lock()
		st.Sources = append(st.Sources, s.state)
		s.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	fed := map[*source]bool{}
	for _, info := range v.Logs() {
		l := e.logs[info.ID]
		if l == nil {
			continue
		}
		fed[l.source] = true
		ls := LogStatus{
			LogInfo: info, Source: l.source.name, Own: mintedBy(info.ID.Origin, e.id),
			Path: slices.Clone(l.path), Tables: slices.Clone(l.tables), SourceHead: l.head,
		}
		ls.Lag = l.lag(info, now)
		st.Logs = append(st.Logs, ls)
	}
	for _, s := range e.sources {
		st.Ready = st.Ready && fed[s]
	}
	st.Readers = slices.SortedFunc(maps.Values(e.readers), func(a, b ReaderAck) int {
		return cmp.Or(cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Key.Log.Origin, b.Key.Log.Origin),
			cmp.Compare(a.Key.Log.Epoch, b.Key.Log.Epoch), cmp.Compare(a.Key.Scope, b.Key.Scope))
	})
	return st
}

// lag is 0 when the log has all its source is known to have; else the age of
// the last transaction applied. Without a known head nothing is claimed.
func (l *logState) lag(info LogInfo, now time.Time) Lag {
	if !l.headKnown {
		return Lag{}
	}
	if l.compare(info.Head, l.head) >= 0 {
		return Lag{Known: true}
	}
	behind := info.Time
	if l.headTime > 0 && l.headTime < behind {
		behind = l.headTime
	}
	return Lag{Known: true, Seconds: max(0, now.Sub(behind.Wall()).Seconds())}
}
