package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// plan is a baseline that has to be taken.
type plan struct {
	logs   []engine.Advert
	tables []engine.TableName
	reason string
	first  bool
}

// plan finds the logs that cannot go on from their cursors, and those that
// share tables with them. Without a plan, blocked are the logs that have to
// wait, and wait is for how long at most.
func (s *Sink) plan(v engine.View, adverts []engine.Advert) (p *plan, blocked map[engine.LogID]bool, wait time.Duration) {
	wait, blocked = holdMax, map[engine.LogID]bool{}
	for _, a := range adverts {
		f, now := s.flow(a.Log), s.now()
		reason, first := s.needs(v, a, adverts, f)
		switch {
		case f.stale != nil:
			blocked[a.Log] = true
		case reason == "":
			blocked[a.Log] = f.ahead
		case f.held != nil && now.Before(f.next):
			blocked[a.Log], wait = true, min(wait, f.next.Sub(now))
		default:
			blocked[a.Log] = true
			if p == nil {
				p = &plan{reason: reason, first: first}
			}
			p.logs = append(p.logs, a)
		}
	}
	if p == nil {
		return nil, blocked, wait
	}
	if settle := s.unserved(adverts); settle > 0 {
		return nil, blocked, min(wait, settle)
	}
	for grown := true; grown; {
		grown = false
		for _, a := range p.logs {
			for _, t := range a.Tables {
				if s.takes(t) && !slices.Contains(p.tables, t) {
					p.tables = append(p.tables, t)
				}
			}
		}
		for _, a := range adverts {
			if slices.ContainsFunc(p.logs, func(b engine.Advert) bool { return a.Log == b.Log }) {
				continue
			}
			if slices.ContainsFunc(a.Tables, func(t engine.TableName) bool { return slices.Contains(p.tables, t) }) {
				p.logs, grown = append(p.logs, a), true
			}
		}
	}
	return p, nil, 0
}

// needs says why a log has to be baselined; empty if not. It notes in f if the
// log cannot be taken, or the node is behind the target.
func (s *Sink) needs(v engine.View, a engine.Advert, adverts []engine.Advert, f *flow) (reason string, first bool) {
	f.stale, f.ahead = nil, false
	c, ok := s.cursors[s.key(a.Log)]
	if !ok {
		for k := range s.cursors {
			switch {
			case k.Log.Origin != a.Log.Origin:
			case k.Log.Epoch > a.Log.Epoch:
				f.stale = fmt.Errorf("the target has epoch %s of %s already, and this node serves epoch %s: another instance of the node is ahead, or the node went back to an older copy; end one of the two, or delete the sink's cursor at the target to have this node write it anew",
					k.Log.Epoch, a.Log.Origin, a.Log.Epoch)
				return "", false
			default:
				return fmt.Sprintf("%s has a new epoch, %s", a.Log.Origin, a.Log.Epoch), false
			}
		}
		return "the target has nothing of log " + a.Log.String(), true
	}
	info, ok := v.Log(a.Log)
	if !ok {
		f.ahead = true // it has gone since; the adverts will say so
		return "", false
	}
	compare := s.host.Comparator(a.Log)
	switch f.ahead = compare(c.Position, info.Head) > 0; {
	case f.lost != "":
		return f.lost, false
	case f.ahead && mints(a):
		return fmt.Sprintf("log %s is at %s, and the target has it up to %s", a.Log, info.Head, c.Position), false
	case a.Whole > c.Time && f.whole != a.Whole && compare(c.Position, info.Oldest) <= 0:
		return fmt.Sprintf("the node has come to carry tables of log %s that it did not before", a.Log), false
	case compare(c.Position, info.Oldest) < 0 && !s.fromState(v, a, adverts, c):
		return fmt.Sprintf("log %s holds what follows %s, and the target is at %s", a.Log, info.Oldest, c.Position), false
	}
	return "", false
}

// mints reports whether the node is the log's origin. One that only carries a
// log can be behind the target, and makes it wait.
func mints(a engine.Advert) bool { return len(a.Path) <= 1 }

// unserved returns how long to wait for origins that the target has rows of and
// that are not served yet: a baseline without them would delete those.
func (s *Sink) unserved(adverts []engine.Advert) time.Duration {
	now := s.now()
	var wait time.Duration
	for k := range s.cursors {
		if slices.ContainsFunc(adverts, func(a engine.Advert) bool { return a.Log.Origin == k.Log.Origin }) {
			delete(s.unknown, k.Log.Origin)
			continue
		}
		since, ok := s.unknown[k.Log.Origin]
		if !ok {
			since = now
			s.unknown[k.Log.Origin] = since
		}
		wait = max(wait, settleAfter-now.Sub(since))
	}
	return wait
}

// baseline takes a baseline.
func (s *Sink) baseline(ctx context.Context, v engine.View, p *plan) (worked bool, wake time.Duration, err error) {
	snap := &Snapshot{Reason: p.reason, sink: s, view: v, kept: map[letterKey]bool{}}
	for _, t := range v.Tables() {
		if slices.Contains(p.tables, t.Table) && t.Schema != nil {
			snap.Tables = append(snap.Tables, SnapshotTable{t.Schema, t.Log.Origin})
		}
	}
	for _, a := range p.logs {
		info, ok := v.Log(a.Log)
		if !ok {
			return true, 0, nil // it has gone since: look again
		}
		snap.Cursors = append(snap.Cursors, engine.Cursor{CursorKey: s.key(a.Log), Position: info.Head, Time: info.Time})
		// From here on the log is needed; before, the target is not helped by it.
		s.host.Acked(s.reader(), s.key(a.Log), info.Head, true)
	}
	covered := func(k engine.CursorKey) bool {
		return slices.ContainsFunc(snap.Cursors, func(c engine.Cursor) bool { return c.CursorKey == k })
	}
	adverts := s.host.Adverts()
	for k := range s.cursors {
		elsewhere := !slices.ContainsFunc(adverts, func(a engine.Advert) bool { return a.Log == k.Log })
		if elsewhere && !covered(k) {
			snap.Forget = append(snap.Forget, k)
		}
	}
	if !s.failing {
		s.report(StateBaselining, nil)
	}
	s.log.Info("sink takes a baseline", "reason", p.reason, "tables", len(snap.Tables))
	began := s.now()
	err = s.target.Baseline(ctx, snap)
	var rej *Rejection
	switch {
	case err == nil:
	case ctx.Err() == nil && errors.As(err, &rej):
		for _, a := range p.logs {
			s.hold(s.flow(a.Log), rej)
		}
		s.look(v, p.logs)
		return true, 0, nil
	default:
		return false, 0, err
	}
	s.failing = false
	for _, k := range snap.Forget {
		delete(s.cursors, k)
	}
	for _, c := range snap.Cursors {
		s.cursors[c.CursorKey] = c
		s.flows[c.Log] = &flow{}
	}
	for _, a := range p.logs {
		s.flow(a.Log).whole = a.Whole
	}
	s.touch()
	took := s.now().Sub(began)
	s.log.Info("sink baselined", "took", took)
	s.count(func(st *Status) {
		st.Baselines++
		if !p.first {
			st.Rebaselines++
		}
		st.LastCause, st.LastBaseline = p.reason, took
	})
	gone := map[letterKey]bool{}
	for _, t := range snap.Tables {
		s.letters.ofTable(t.Schema.Table, func(k letterKey) {
			if !snap.kept[k] {
				gone[k] = true
			}
		})
	}
	return true, 0, s.settle(ctx, gone)
}

// jitter spreads a delay, so that many do not come at once.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
