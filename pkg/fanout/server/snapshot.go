package server

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// maxLook is how many records are looked at for one frame.
const maxLook = 20_000

// maxRows is the size in bytes past which a frame of rows takes no further one.
const maxRows = 60 << 10

var errStalled = errors.New("the snapshot was given up because its reader took nothing of it for too long: a snapshot holds memory; subscribe again")

// snapshot is a baseline being sent: a place in a view.
type snapshot struct {
	hub    *hub
	log    engine.LogID
	other  map[string]bool // origins whose rows belong to the baselines of other logs
	tables []engine.TableName
	since  engine.Time        // only what was written after it; 0 for everything
	fresh  []engine.TableName // sent whole all the same
	lens   *scope.View        // nil: as it is
	narrow bool               // the lens hides rows or columns, not only tables
	table  int                // being sent
	from   []byte             // next key
	follow *follow            // the log that follows the rows; nil: nothing
	timer  *time.Timer
	replay *replaying // from an archive; nil: from the view

	mu sync.Mutex
	m  *moment // nil once closed
}

func (s *snapshot) close() {
	if s.replay != nil {
		s.replay.cancel()
		<-s.replay.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	if s.m != nil {
		s.hub.release(s.m)
		s.m = nil
	}
}

func (v *serving) abandon(channel uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.snapshots[channel]; s != nil {
		delete(v.snapshots, channel)
		s.close()
	}
}

func (v *serving) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, s := range v.snapshots {
		delete(v.snapshots, id)
		s.close()
	}
	for id := range v.pins {
		v.unpin(id)
	}
	v.endCatchup()
}

// expire gives up a snapshot whose reader takes nothing of it.
func (v *serving) expire(s *snapshot, channel uint32) {
	s.close()
	select {
	case v.wake <- channel:
	default: // it notices with its next credit
	}
}

// patient holds the time of a snapshot that waits for the server, and not for its
// reader. v.mu is held.
func (v *serving) patient(channel uint32) {
	if s := v.snapshots[channel]; s != nil {
		s.timer.Stop()
	}
}

// scan reads the next frame of a baseline. v.mu is held.
func (v *serving) scan(m *moment, work session.Work) []session.Output {
	if work.Replay != "" {
		return v.replay(m, work)
	}
	s := v.snapshots[work.Channel]
	if s == nil {
		return v.openSnapshot(m, work)
	}
	s.timer.Reset(v.srv.cfg.StallTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		return v.writer.SnapshotFailed(work.Channel, wirepb.ErrorCode_ERROR_CODE_STALLED, errStalled)
	}
	var enc engine.RecordEncoder // not kept: nothing is held for a reader between its turns
	for s.table < len(s.tables) {
		full := false
		limit := min(maxRows, work.MaxSize)
		looked := 0
		err := s.m.view.Scan(s.tables[s.table], s.from, func(r *engine.Record) bool {
			if looked++; looked > maxLook {
				full = true
				s.from = append(s.from[:0], r.Key...)
				return false
			}
			if !s.has(r) {
				return true
			}
			seen := *r
			if s.lens != nil && (!s.lens.Record(&seen) || seen.Deleted && !r.Deleted && s.whole(r.Schema.Table)) {
				return true
			}
			if n := enc.Len(); n > 0 && n+len(seen.Key)+len(seen.Row) > limit {
				full = true
				s.from = append(s.from[:0], r.Key...)
				return false
			}
			enc.Append(&seen)
			return true
		})
		if err != nil {
			return v.writer.SnapshotFailed(work.Channel, wirepb.ErrorCode_ERROR_CODE_INTERNAL, err)
		}
		table := s.table
		if !full {
			s.table, s.from = s.table+1, nil
		}
		if n := enc.Records(); n == 0 && full {
			return nil // what has come in meanwhile goes first
		} else if n > 0 {
			v.srv.metrics.rows.Add(float64(n))
			return v.writer.SnapshotRows(work.Channel, table, n, enc.Take())
		}
	}
	if f := s.follow; f != nil && !f.ended() {
		blocks, err := f.read(s.m.view, s.log, work.MaxSize)
		if err != nil {
			return v.writer.SnapshotFailed(work.Channel, wirepb.ErrorCode_ERROR_CODE_INTERNAL, err)
		}
		return v.writer.SnapshotFollows(work.Channel, blocks)
	}
	delete(v.snapshots, work.Channel)
	s.timer.Stop()
	if info, ok := s.m.view.Log(s.log); ok && !s.m.agrees(m, s.log, info.Head) {
		v.lastSeen = 0 // what was behind at the baseline has come since, and not by the log
	}
	s.hub.release(s.m)
	s.m = nil
	return v.writer.SnapshotEnd(work.Channel)
}

// whole reports whether a table is sent as it is, and not only what has changed.
func (s *snapshot) whole(t engine.TableName) bool {
	return s.since == 0 || slices.Contains(s.fresh, t)
}

// has reports whether a record belongs to the baseline of the log: it is not
// another log's; and to what was written since the reader's cursor.
func (s *snapshot) has(r *engine.Record) bool {
	if s.follow != nil && r.Stamp.Origin == s.log.Origin && r.Stamp.Time > s.follow.since {
		return false // it comes with what follows
	}
	if !s.whole(r.Schema.Table) {
		return r.Stamp.Origin == s.log.Origin && r.Stamp.Time > s.since
	}
	return !s.other[r.Stamp.Origin]
}

// openSnapshot keeps the moment for a baseline, and finds the schemas of other
// logs (such as earlier epochs) that its rows are stamped with.
func (v *serving) openSnapshot(m *moment, work session.Work) []session.Output {
	m = v.srv.hub.baseline(m, work)
	defer v.srv.hub.release(m)
	info, ok := m.view.Log(work.Log)
	if !ok {
		return v.writer.SnapshotFailed(work.Channel, wirepb.ErrorCode_ERROR_CODE_UNKNOWN_LOG, engine.ErrUnknownLog)
	}
	if work.Since > 0 && work.Since < info.CompleteFrom {
		// Tombstones have gone since the mode was chosen: what was deleted cannot be
		// told any more.
		return v.writer.DeltaFailed(work.Channel, info.CompleteFrom)
	}
	s := &snapshot{hub: v.srv.hub, log: work.Log, tables: slices.Clone(work.Covers), since: work.Since, fresh: slices.Clone(work.Fresh), other: m.others(work.Log), m: m}
	if work.Scope != nil {
		s.lens, s.narrow = work.Scope.View(), work.Scope.Partial() != nil
	}
	b := session.Baseline{At: info.Head, Time: info.Time, Schemas: m.view.Schemas(work.Log), Truncates: map[engine.TableName][]engine.Stamp{}}
	if !s.narrow {
		// Of rows that a filter hides, it is not told when they left it.
		b.CompleteFrom = info.CompleteFrom
	}
	if err := v.begins(s, &b, work); err != nil {
		return v.writer.SnapshotFailed(work.Channel, wirepb.ErrorCode_ERROR_CODE_INTERNAL, err)
	}
	for _, t := range s.tables {
		if at := m.view.Truncated(t, work.Log.Origin); at.Time <= b.Time && (at.Time > s.since || s.whole(t) && at.Time > 0) {
			b.Truncates[t] = []engine.Stamp{at}
		}
	}
	if s.since == 0 || len(s.fresh) > 0 { // else all is of this log
		for _, t := range m.view.Tables() {
			if slices.Contains(s.tables, t.Table) && s.whole(t.Table) {
				b.Rows += t.Rows
			}
		}
		var err error
		if b.Others, err = m.strangers(work.Log, s); err != nil {
			return v.writer.SnapshotFailed(work.Channel, wirepb.ErrorCode_ERROR_CODE_INTERNAL, err)
		}
	}
	v.srv.hub.retain(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(v.srv.cfg.StallTimeout, func() { v.expire(s, work.Channel) })
	v.snapshots[work.Channel] = s
	if s.since > 0 {
		v.srv.metrics.deltas.Inc()
	} else {
		v.srv.metrics.snapshots.Inc()
	}
	return v.writer.SnapshotBegin(work.Channel, b)
}

// others returns the origins that are served by logs of their own beside one: their
// rows come with those.
func (m *moment) others(log engine.LogID) map[string]bool {
	all := map[string]bool{}
	for _, l := range m.served {
		if l.Log.Origin != log.Origin {
			all[l.Log.Origin] = true
		}
	}
	return all
}

// strangers finds the schemas of other logs that rows of a baseline are stamped
// with. It looks at every row, once for all baselines of a moment.
func (m *moment) strangers(log engine.LogID, s *snapshot) (map[engine.LogID][]*engine.Schema, error) {
	m.strangersMu.Lock()
	defer m.strangersMu.Unlock()
	all := map[engine.LogID][]*engine.Schema{}
	for _, t := range s.tables {
		if !s.whole(t) {
			continue // all is of this log
		}
		k := strangerKey{log, t}
		found, ok := m.found[k]
		if !ok {
			found = map[engine.LogID][]*engine.Schema{}
			var last engine.LogID
			var schema *engine.Schema
			err := m.view.Scan(t, nil, func(r *engine.Record) bool {
				of := r.Stamp.Log()
				if of == log || (of == last && r.Schema == schema) || !s.has(r) {
					return true
				}
				last, schema = of, r.Schema
				if !slices.ContainsFunc(found[of], func(o *engine.Schema) bool { return o.ID == r.Schema.ID }) {
					found[of] = append(found[of], r.Schema)
				}
				return true
			})
			if err != nil {
				return nil, err
			}
			if m.found == nil {
				m.found = map[strangerKey]map[engine.LogID][]*engine.Schema{}
			}
			m.found[k] = found
		}
		for of, schemas := range found {
			all[of] = append(all[of], schemas...)
		}
	}
	return all, nil
}

type strangerKey struct {
	log   engine.LogID
	table engine.TableName
}
