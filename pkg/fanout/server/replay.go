package server

import (
	"context"
	"errors"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Archives is where a server finds what its logs no longer hold.
type Archives interface {
	// Reach returns how far archives lead a reader of tables of a log that is at
	// from, if that is at least to where the log begins; ok is false where they do not. It
	// must not wait.
	Reach(log engine.LogID, tables []engine.TableName, from, oldest engine.Position) (to engine.Cursor, ok bool)
	// Replay passes on what r asks for, after it has read and verified all of it. It
	// waits for its turn where others replay.
	Replay(ctx context.Context, r Replay) error
}

// Replay asks for what was written to tables of a log after From, up to To.
type Replay struct {
	Log    engine.LogID
	Tables []engine.TableName
	From   engine.Position
	To     engine.Cursor
	// Begin is called first: with the schemas that the records use, by the log of
	// their stamps, and the truncates of the tables.
	Begin func(schemas map[engine.LogID][]*engine.Schema, truncates map[engine.TableName][]engine.Stamp) error
	// Record is called for each record, table by table in their order; of each key
	// once. The record is valid during the call.
	Record func(table int, r *engine.Record) error
}

// page is a piece of a replay on its way to the session.
type page struct {
	begin          *session.Baseline
	table, records int
	payload        []byte
}

// replaying is a replay that is being read ahead of its session.
type replaying struct {
	pages  chan page // closed at its end
	err    error     // why it has ended; once pages is closed
	cancel context.CancelFunc
	done   chan struct{}
	begun  bool // something of it has been sent
}

// errUnsent ends a replay that nobody waits for any more.
var errUnsent = errors.New("the session has ended")

// replay sends the next piece of a channel's replay, or holds the channel until
// there is one. v.mu is held.
func (v *serving) replay(m *moment, work session.Work) []session.Output {
	s := v.snapshots[work.Channel]
	if s == nil {
		if !v.openReplay(m, work) {
			return v.writer.ReplayFailed(work.Channel)
		}
		v.writer.Hold(work.Channel, true)
		return nil
	}
	s.timer.Reset(v.srv.cfg.StallTimeout)
	select {
	case p, more := <-s.replay.pages:
		switch {
		case !more:
			return v.endReplay(s, work)
		case p.begin != nil:
			s.replay.begun = true
			return v.writer.SnapshotBegin(work.Channel, *p.begin)
		}
		v.srv.metrics.rows.Add(float64(p.records))
		return v.writer.SnapshotRows(work.Channel, p.table, p.records, p.payload)
	default:
		s.timer.Stop()
		v.writer.Hold(work.Channel, true)
		return nil
	}
}

// openReplay starts to read a replay, with the log held where it is handed over.
func (v *serving) openReplay(m *moment, work session.Work) bool {
	info, held := m.view.Log(work.Log)
	if !held {
		return false
	}
	to, ok := v.srv.cfg.Archives.Reach(work.Log, work.Covers, work.After, info.Oldest)
	compare := v.srv.cfg.Host.Comparator(work.Log)
	if !ok || compare(to.Position, info.Oldest) < 0 || compare(to.Position, info.Head) > 0 {
		return false
	}
	v.srv.hub.retain(m)
	ctx, cancel := context.WithCancel(v.srv.life)
	s := &snapshot{hub: v.srv.hub, log: work.Log, tables: work.Covers, other: m.others(work.Log), m: m, replay: &replaying{pages: make(chan page, 2), cancel: cancel, done: make(chan struct{})}}
	if work.Scope != nil {
		s.lens = work.Scope.View()
	}
	s.timer = time.AfterFunc(v.srv.cfg.StallTimeout, func() { v.expire(s, work.Channel) })
	s.timer.Stop()
	v.snapshots[work.Channel] = s
	v.srv.metrics.replays.Inc()
	go func() {
		defer close(s.replay.done)
		defer cancel()
		defer func() { v.ready(ctx, work.Channel) }()
		defer close(s.replay.pages)
		s.replay.err = v.readReplay(ctx, s, work, to)
	}()
	return true
}

// readReplay makes pages of what the archives have.
func (v *serving) readReplay(ctx context.Context, s *snapshot, work session.Work, to engine.Cursor) error {
	put := func(p page) error {
		select {
		case s.replay.pages <- p:
			v.ready(ctx, work.Channel)
			return nil
		case <-ctx.Done():
			return errUnsent
		}
	}
	var enc engine.RecordEncoder
	current := 0
	flush := func() error {
		if n := enc.Records(); n > 0 {
			return put(page{table: current, records: n, payload: enc.Take()})
		}
		return nil
	}
	err := v.srv.cfg.Archives.Replay(ctx, Replay{
		Log: work.Log, Tables: s.tables, From: work.After, To: to,
		Begin: func(schemas map[engine.LogID][]*engine.Schema, truncates map[engine.TableName][]engine.Stamp) error {
			b := &session.Baseline{At: to.Position, Time: to.Time, Schemas: schemas[work.Log], Others: map[engine.LogID][]*engine.Schema{}, Truncates: truncates}
			for log, of := range schemas {
				if log != work.Log {
					b.Others[log] = of
				}
			}
			return put(page{begin: b})
		},
		Record: func(table int, r *engine.Record) error {
			if !s.has(r) {
				return nil
			}
			seen := *r
			if s.lens != nil && !s.lens.Record(&seen) {
				return nil
			}
			if n := enc.Len(); n > 0 && (table != current || n+len(seen.Key)+len(seen.Row) > maxRows) {
				if err := flush(); err != nil {
					return err
				}
			}
			current = table
			enc.Append(&seen)
			return nil
		},
	})
	if err != nil {
		return err
	}
	return flush()
}

// ready tells the session that a channel's replay has something for it.
func (v *serving) ready(ctx context.Context, channel uint32) {
	select {
	case v.arrived <- channel:
	case <-ctx.Done():
	}
}

// endReplay ends a replay: the log goes on from where it was held.
func (v *serving) endReplay(s *snapshot, work session.Work) []session.Output {
	delete(v.snapshots, work.Channel)
	s.timer.Stop()
	s.mu.Lock()
	held, err := s.m, s.replay.err
	s.m = nil
	s.mu.Unlock()
	switch {
	case held == nil: // given up in the meantime
		err = errStalled
	case err == nil:
		v.pins[work.Channel] = &pin{moment: held, used: v.srv.cfg.Now()}
		return v.writer.SnapshotEnd(work.Channel)
	default:
		s.hub.release(held)
	}
	v.srv.metrics.replayFailures.Inc()
	v.log.Warn("a reader could not be caught up from the archive", "peer", v.writer.Peer(), "log", work.Log.String(), "from", string(work.After), "to", string(work.Replay), "error", err)
	if !s.replay.begun {
		return v.writer.ReplayFailed(work.Channel)
	}
	return v.writer.SnapshotFailed(work.Channel, wirepb.ErrorCode_ERROR_CODE_INTERNAL, errors.New("the archive could not be read to its end: subscribe again at the same cursor"))
}

// pin keeps a log from where a replay ended, until its reader is within what the
// node holds now.
type pin struct {
	moment *moment
	used   time.Time
}

// pinned returns the moment from which a channel is to be read: m unless the log
// has gone on without it.
func (v *serving) pinned(m *moment, work session.Work) *moment {
	p := v.pins[work.Channel]
	if p == nil {
		return m
	}
	compare := v.srv.cfg.Host.Comparator(work.Log)
	now, ok := m.view.Log(work.Log)
	was, held := p.moment.view.Log(work.Log)
	if ok && compare(work.After, now.Oldest) < 0 && held && compare(work.After, was.Head) < 0 {
		p.used = v.srv.cfg.Now()
		return p.moment
	}
	v.unpin(work.Channel)
	return m
}

func (v *serving) unpin(channel uint32) {
	if p := v.pins[channel]; p != nil {
		delete(v.pins, channel)
		v.srv.hub.release(p.moment)
	}
}

// unpinIdle lets go of what readers no longer take.
func (v *serving) unpinIdle() {
	now := v.srv.cfg.Now()
	for id, p := range v.pins {
		if now.Sub(p.used) > v.srv.cfg.StallTimeout {
			v.unpin(id)
		}
	}
}
