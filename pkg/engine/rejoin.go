package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// A node that was restored from a backup has less of its own logs than its peers. If
// it began a new epoch at once, all that it lacks would be missing from the new
// epoch's baseline, and so be deleted wherever the log is carried. So it meets its
// peers first, and what they hold of its logs is taken in as if the logs were
// carried; then it takes the new epoch, and then it writes.

// rejoin is what a node knows of its own logs before it writes in them again.
type rejoin struct {
	own   Cursors // of its logs, at the start
	epoch Epoch   // the highest that a peer has
	seen  Time    // the newest that a peer has
	peer  string  // that said so
	done  chan struct{}
}

// AwaitPeers makes the sources that mint wait until Rejoined, if they go on in a log
// of an earlier life of the node. What peers hold of these logs can be delivered by a
// source that carries until then. Call it after the last AddSource, and before Run.
func (e *Engine) AwaitPeers() {
	if !e.store.Durable() {
		return
	}
	r := &rejoin{own: Cursors{}, done: make(chan struct{})}
	v := e.store.View()
	defer v.Close()
	for _, s := range e.sources {
		s.mu.Lock()
		if c, ok := v.Cursor(CursorKey{Log: s.own}); ok && !s.own.IsZero() {
			r.own[c.CursorKey] = c
		}
		for _, l := range v.Logs() { // it ended while it took in a newer one
			if l.ID.Origin == s.own.Origin && l.ID.Epoch > s.own.Epoch {
				s.newEpoch, s.why = true, fmt.Sprintf("peers had epoch %d of this node's log", l.ID.Epoch)
			}
		}
		s.mu.Unlock()
	}
	if len(r.own) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rejoin = r
}

// CannotAwaitPeers says, in place of AwaitPeers, why what peers hold of the node's own
// logs cannot be read back. If a peer turns out to hold more than the node, that is
// told with what to do. Call it before Run.
func (e *Engine) CannotAwaitPeers(why string) {
	e.unread = fmt.Sprintf("; what is missing here could not be read back from it, because %s: what was written to this node alone and is missing is deleted at the peers by the baseline of the new epoch; "+
		"to keep such rows, write them again from what wrote them, and before the next restore give the node a cursor for each origin (cursors: PerOrigin) and all tables of the mesh, which reads them back", why)
}

// OwnLog is where a node is in a log of its own, and what the log has.
type OwnLog struct {
	Cursor
	Tables []TableName
}

// Own returns the node's own logs, while their sources wait for Rejoined; nothing
// when none does. What does not hold all of a log's tables cannot bring it back.
func (e *Engine) Own() (all []OwnLog) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rejoin == nil {
		return nil
	}
	for _, s := range e.sources {
		for k, c := range e.rejoin.own {
			if l := e.logs[k.Log]; l != nil && l.source == s {
				all = append(all, OwnLog{c, slices.Clone(l.tables)})
			}
		}
	}
	return all
}

// Rejoined says that what the peers hold of the node's own logs is here, as far as
// they can be reached. If that was more than the node had, its sources begin a new
// epoch.
func (e *Engine) Rejoined() {
	e.mu.Lock()
	r := e.rejoin
	e.rejoin = nil
	e.mu.Unlock()
	if r == nil {
		return
	}
	defer close(r.done)
	v := e.store.View()
	defer v.Close()
	var newest Time
	for _, l := range v.Logs() {
		newest = max(newest, l.Time)
	}
	e.clock.Observe(max(newest, r.seen, Time(r.epoch)))
	ownEpoch, ownTime := r.highest()
	for _, s := range e.sources {
		s.mu.Lock()
		old, waits := r.own[CursorKey{Log: s.own}]
		var at Cursor
		for k, c := range v.Cursors() {
			if k.Log.Origin == s.own.Origin && k.Log.Epoch >= at.Log.Epoch {
				at = c
			}
		}
		switch {
		case !waits:
		case at.Log != old.Log || at.Position != old.Position:
			s.lose(fmt.Sprintf("the node was at %s of its log %s, and its peers at %s of epoch %d: what was missing has been read from them", old.Position, old.Log, at.Position, at.Log.Epoch))
		case r.epoch > ownEpoch || r.seen > ownTime:
			s.lose(fmt.Sprintf("peer %s holds epoch %d, time %d of this node, which has epoch %d, time %d; what is missing here could not be read back, because no peer that could be reached has all tables of the log and a cursor for each origin: "+
				"what was written to this node alone and is missing is deleted at the peers; to keep such rows, write them again from what wrote them", r.peer, r.epoch, r.seen, ownEpoch, ownTime))
		}
		s.mu.Unlock()
	}
}

// highest returns the highest epoch and time of the node's logs, at the start.
func (r *rejoin) highest() (epoch Epoch, t Time) {
	for k, c := range r.own {
		epoch, t = max(epoch, k.Log.Epoch), max(t, c.Time)
	}
	return epoch, t
}

// witness takes what a peer holds of the node, while that is to be read yet.
func (e *Engine) witness(peer string, epoch Epoch, t Time) (taken bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rejoin
	if r == nil {
		return false
	}
	if epoch > r.epoch || t > r.seen {
		r.peer = peer
	}
	r.epoch, r.seen = max(r.epoch, epoch), max(r.seen, t)
	return true
}

// takesBack reports whether a log of the node's own may come from a peer; e.mu is
// held.
func (e *Engine) takesBack(log LogID) bool {
	if e.rejoin == nil {
		return false
	}
	for k := range e.rejoin.own {
		if k.Log.Origin == log.Origin && k.Log.Epoch <= log.Epoch {
			return true
		}
	}
	return false
}

// takeBack declares a log of the node's own that comes from a peer; e.mu is held.
func (e *Engine) takeBack(log LogID, compare Comparator, tables []TableName) {
	if e.logs[log] != nil {
		return
	}
	for _, s := range e.sources {
		if name, ok := strings.CutPrefix(log.Origin, e.id+"#"); ok && s.name == name {
			e.logs[log], e.sorted = &logState{compare: compare, path: []string{e.id}, tables: tables, source: s}, nil
		}
	}
}

// lose notes that the source's log was behind what others have of it, so that a new
// epoch is due; s.mu is held.
func (s *source) lose(why string) {
	s.newEpoch, s.why = true, why
	s.state.HistoryLost++
	s.engine.log.Warn("the node had lost some of its own log, and takes a new epoch", "source", s.name, "reason", why)
}

// wait waits until the source may open its log; it reports why a new epoch is due,
// if one is.
func (s *source) wait(ctx context.Context) (why string) {
	e := s.engine
	e.mu.Lock()
	r := e.rejoin
	e.mu.Unlock()
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	if r != nil {
		if _, waits := r.own[CursorKey{Log: own}]; waits {
			s.report(ReasonRejoining, nil)
			select {
			case <-r.done:
			case <-ctx.Done():
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.newEpoch {
		return ""
	}
	return s.why
}
