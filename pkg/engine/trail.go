package engine

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
)

// A Trail says of which tables a carried log was behind where: of a place in the log, those that are there only up to
// a place before it, and how far each is. What they lack comes in the log later. Each step counts from its position to
// the next. Nothing is known of what is before the first, but that of a log without steps no table was ever behind. It
// is never altered.
type Trail []TrailStep

// TrailStep is where a trail changes.
type TrailStep struct {
	From   Position
	Behind map[TableName]Reached // all others are where the log is
}

// maxTrail bounds the tables of all steps of a trail, but for its last step.
const maxTrail = 4096

// At returns the tables that a position is ahead of, which must not be altered; known is false before the first step.
func (t Trail) At(at Position, compare Comparator) (behind map[TableName]Reached, known bool) {
	for _, s := range slices.Backward(t) {
		if compare(s.From, at) <= 0 {
			return s.Behind, true
		}
	}
	return nil, len(t) == 0
}

// Of returns which of some tables a position is ahead of, in a map of its own; known is as for At. Where nothing is known
// nothing is claimed: it is then ahead of all of them, and has them up to nowhere.
func (t Trail) Of(tables []TableName, at Position, compare Comparator) (behind map[TableName]Reached, known bool) {
	all, known := t.At(at, compare)
	behind = map[TableName]Reached{}
	for _, table := range tables {
		if r, is := all[table]; is || !known {
			behind[table] = r
		}
	}
	return behind, known
}

// With returns the trail where a log has got to a position, at which these tables are behind. What it said of that and
// later positions was of another way that the log has not gone.
func (t Trail) With(at Position, behind map[TableName]Reached, compare Comparator) Trail {
	n := len(t)
	for n > 0 && compare(t[n-1].From, at) >= 0 {
		n--
	}
	last, known := t[:n].At(at, compare)
	switch {
	case known && maps.Equal(last, behind) && (n > 0 || len(t) == 0):
		return t[:n:n]
	case len(t) == 0:
		t, n = Trail{{}}, 1 // up to now none was
	}
	next := append(slices.Clone(t[:n]), TrailStep{at, behind})
	size := 0
	for _, s := range next {
		size += 1 + len(s.Behind)
	}
	for len(next) > 1 && size > maxTrail {
		size -= 1 + len(next[0].Behind)
		next = next[1:]
	}
	return next
}

// Until returns the trail up to a position.
func (t Trail) Until(at Position, compare Comparator) Trail {
	n := len(t)
	for n > 1 && compare(t[n-1].From, at) > 0 {
		n--
	}
	return t[:n:n]
}

// Since returns the trail from a position on.
func (t Trail) Since(at Position, compare Comparator) Trail {
	for len(t) > 1 && compare(t[1].From, at) <= 0 {
		t = t[1:]
	}
	if len(t) == 1 && len(t[0].Behind) == 0 && compare(t[0].From, at) <= 0 {
		return nil
	}
	return t
}

// Trail returns the trail of a log as its source has got to it: what it ends with may not be committed yet.
func (e *Engine) Trail(log LogID) Trail {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[log]; l != nil {
		return l.trail
	}
	return nil
}

// TrailIn is as in Host.
func (e *Engine) TrailIn(v View, log LogID) Trail {
	if e.trails.Load() == 0 {
		return nil
	}
	raw := v.Meta(metaLog + log.String())
	e.mu.Lock()
	l := e.logs[log]
	if l != nil && bytes.Equal(l.trailMeta, raw) {
		defer e.mu.Unlock()
		return l.trailRead
	}
	e.mu.Unlock()
	var saved savedLog
	var trail Trail
	if info, ok := v.Log(log); ok && json.Unmarshal(raw, &saved) == nil {
		trail = saved.trail(info.Head)
	}
	if l != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		l.trailMeta, l.trailRead = raw, trail
	}
	return trail
}

// Trails is as in Host.
func (e *Engine) Trails() uint64 { return e.trails.Load() }

// setTrail puts a trail in the place of a log's, which it returns. It is saved in the commit that it is of, and read from
// there to be served.
func (e *Engine) setTrail(log LogID, t Trail) (was Trail) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[log]
	if l == nil {
		return nil
	}
	if len(l.trail) > 0 || len(t) > 0 {
		e.trails.Add(1)
	}
	was, l.trail, l.unsaved = l.trail, t, true
	return was
}

// Behind returns the tables of a carried log that are here only up to a place that its cursor, which is at that
// position, is past.
func (s *source) Behind(log LogID, at Position) map[TableName]Reached {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[log]
	if l == nil || l.source != s {
		return nil
	}
	behind, _ := l.trail.Of(l.covered, at, l.compare)
	return behind
}
