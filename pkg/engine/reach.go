package engine

import (
	"slices"
	"time"
)

// Head is how far a log has got at its origin. The zero Head knows nothing; one with a
// time and without a position is of a log in which nothing is yet.
type Head struct {
	Position Position
	Time     Time // of the transaction that ends there
	// Changes are those of the log up to there, as counted by Counter, which names a
	// life of the origin's node; 0 where they are not known.
	Changes uint64
	Counter uint64
}

// Known reports whether the head is known.
func (h Head) Known() bool { return h.Position != "" || h.Time != 0 }

// Lag is how far a log is behind its source. Unknown never reads as 0.
type Lag struct {
	Known bool
	// Seconds since the first transaction was committed that is not here yet; 0 when
	// caught up.
	Seconds float64
	// Changes that are not here yet, where CountKnown: it is not before the node has
	// once been where the origin was, nor of a log that is read in part.
	CountKnown bool
	Changes    uint64
}

// reach is what is known of how far a log has got at its origin, and so of how far
// behind the node is. The zero reach knows nothing.
type reach struct {
	heads []Head // heard, and above what is here; the last one also if it is here. Ascending
	// at is where the node is, with counted changes of the log committed in this life.
	at      Position
	counted uint64
	// Where the node was at a head that was counted by counter, its own count was less
	// by base.
	counter uint64
	base    uint64
	synced  bool
	part    bool // only a part of the log is read: counts say nothing
}

// maxHeads bounds the heads that are remembered of a log that is behind.
const maxHeads = 64

func (r *reach) last() Head {
	if len(r.heads) == 0 {
		return Head{}
	}
	return r.heads[len(r.heads)-1]
}

// heard takes a head; one that knows nothing forgets all. It reports whether
// anything has changed.
func (r *reach) heard(h Head, compare Comparator) bool {
	was, at := r.last(), h.Time
	if !h.Known() {
		r.heads = nil
		return was.Known()
	}
	if h.Time = was.Time; h == was && was.Known() { // a time alone says nothing new
		return false
	}
	h.Time = at
	if h.Counter != r.counter {
		r.counter, r.synced = h.Counter, false
	}
	switch {
	case !was.Known():
		r.heads = append(r.heads, h)
	case compare(h.Position, was.Position) > 0:
		if r.pass(compare); len(r.heads) >= maxHeads { // the first is what lag is counted from
			n := 0
			for i := 0; i < len(r.heads); i += 2 {
				r.heads[n], n = r.heads[i], n+1
			}
			r.heads = r.heads[:n]
		}
		r.heads = append(r.heads, h)
	case h.Position == was.Position:
		r.heads[len(r.heads)-1] = h
	default: // the one who tells is behind the one before
		return false
	}
	r.sync()
	return true
}

// pass forgets the heads that the node has reached, but for the last.
func (r *reach) pass(compare Comparator) {
	n := 0
	for n < len(r.heads)-1 && compare(r.heads[n].Position, r.at) <= 0 {
		if r.heads[n].Position == r.at {
			r.match(r.heads[n])
		}
		n++
	}
	r.heads = slices.Delete(r.heads, 0, n)
}

// sync compares counts if the node is where the origin was.
func (r *reach) sync() {
	for i := range r.heads {
		if r.heads[i].Position == r.at {
			r.match(r.heads[i])
		}
	}
}

func (r *reach) match(h Head) {
	if h.Counter != 0 && h.Counter == r.counter && !r.part {
		r.base, r.synced = h.Changes-r.counted, true
	}
}

// lag returns how far the node is behind, being at a position.
func (l *logState) lag(at Position, now time.Time) Lag {
	r := &l.reach
	last := r.last()
	if !last.Known() {
		return Lag{}
	}
	if l.compare(at, last.Position) >= 0 {
		return Lag{Known: true, CountKnown: true}
	}
	lag := Lag{Known: true}
	for _, h := range r.heads {
		if l.compare(h.Position, at) > 0 {
			lag.Seconds = max(0, now.Sub(h.Time.Wall()).Seconds())
			break
		}
	}
	if here := r.counted + r.base; r.synced && last.Counter == r.counter && last.Counter != 0 && last.Changes >= here {
		lag.CountKnown, lag.Changes = true, last.Changes-here
	}
	return lag
}

// recorded returns how far a recorder's log has got, given what the store says of it: a
// recorder is the origin, and its log ends where the store does. Its changes are not
// counted, since they reach a reader as often as that reads.
func recorded(info *LogInfo) Head { return Head{Position: info.Head, Time: max(info.Time, 1)} }

// origin returns the head that the readers of this node are told.
func (l *logState) origin(counter uint64) Head {
	h := l.reach.last()
	if len(l.path) == 1 && h.Position != "" && l.compare(l.reach.at, h.Position) >= 0 { // minted here
		h.Position, h.Changes, h.Counter = l.reach.at, l.reach.counted, counter
	}
	if l.reach.part {
		h.Changes, h.Counter = 0, 0
	}
	return h
}

// Head tells how far the source's log has got, for lag.
func (s *source) Head(log LogID, h Head) {
	e := s.engine
	s.mu.Lock()
	if log.IsZero() {
		log = s.own
	}
	s.mu.Unlock()
	if h.Position != "" && h.Time == 0 {
		h.Time = TimeOf(e.now())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[log]
	if l == nil || l.source != s {
		return
	}
	if l.reach.at == "" {
		l.reach.at = e.committedAt(log)
	}
	known := l.reach.last().Known()
	changed := l.reach.heard(h, l.compare)
	// What moves with commits is told with them. A node that does not get on has to
	// say by itself that its origin does: one that mints not at each head that it
	// hears, which is told again with the next.
	now := e.now()
	flips := known != h.Known()
	behind := h.Known() && l.compare(l.reach.at, h.Position) < 0
	if flips || behind && (changed && len(l.path) > 1 || now.Sub(e.headsTold) >= headsEvery) {
		e.headsTold = now
		e.notify()
	}
}

// headsEvery is how often heads that have moved are told on by themselves.
const headsEvery = 250 * time.Millisecond

// committedAt returns where the store is in a log.
func (e *Engine) committedAt(log LogID) Position {
	v := e.store.View()
	defer v.Close()
	info, _ := v.Log(log)
	return info.Head
}

// unheard forgets how far the source's logs have got at their origins: there is
// nobody who tells.
func (s *source) unheard() {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.logs {
		if l.source == s {
			l.reach.heads = nil
		}
	}
}

// moved notes that a log has got further, by that many changes; whole says that the
// log is read as it is.
func (e *Engine) moved(at Cursor, changes uint64, whole bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[at.Log]
	if l == nil {
		return
	}
	l.moved = e.now()
	r := &l.reach
	r.at, r.part = at.Position, !whole
	r.counted += changes
	r.sync()
	r.pass(l.compare)
}

// rebased notes that a log is somewhere else, by way of a baseline.
func (e *Engine) rebased(at Cursor) {
	e.moved(at, 0, at.Scope == "")
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[at.Log]; l != nil {
		l.reach.synced = false
		l.reach.sync()
	}
}
