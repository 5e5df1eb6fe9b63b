package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine/spill"
	"github.com/tributary-dev/tributary/pkg/engine/ticks"
)

// Recorder is a Policy that serves what comes in on in a log of this node's own:
// see Engine.Record. The logs that come in are not served, and hold no entries.
// Calls come one at a time, within a commit: Begin, then Record and Moved, then
// End. A commit that is given up and tried again begins anew.
type Recorder interface {
	Policy
	// Open tells the recorder its log, and what the store holds. What does not fit in
	// memory goes to scratch.
	Open(log LogID, v View, scratch *spill.Dir) error
	// Tables returns the tables of the log once it is open. Some may have no schema yet.
	Tables() []TableName
	// Begin starts a commit.
	Begin(tx Tx)
	// Record tells of a write that has become part of the state. The record is valid
	// during the call, the memory of its key and row until End. A row that is missing
	// from a baseline comes as a tombstone with the stamp that it had. fresh says that
	// the state had nothing at its key, not even a tombstone.
	Record(r *Record, fresh bool)
	// Truncated tells of a truncate that is the newest of its origin. The rows that it
	// takes away come by Record, each as a tombstone with the stamp that it had.
	Truncated(s *Schema, at Stamp)
	// Judge is asked of each write that comes, before it is merged, and so told of it.
	Judge(s Stamp, table TableName) Verdict
	// Covering tells which writes the covers that follow are about, after the writes
	// that came with them. It returns false if there is nothing in them that had not
	// come before.
	Covering(marks []Mark) (news bool)
	// Cover tells of a cover, which holds in the state from now on.
	Cover(c *Cover)
	// Gap tells that changes are missing of tables of which every change is delivered.
	Gap(why string)
	// Shares reports whether the rows of a table are shares of counters, which a newer
	// epoch of their leaf leaves alone.
	Shares(table TableName) bool
	// Retires reports whether a newer epoch of a leaf ends the rows of the older ones.
	Retires() bool
	// Moved tells of a cursor that moves with the commit.
	Moved(c Cursor)
	// End adds to the recorder's log what has been recorded. It returns the tables of
	// the log.
	End(tx Tx) ([]TableName, error)
	// Committed tells that the commit is done.
	Committed()
	// Collect lets go of what nobody needs any more, some way. It is called from time to
	// time, as a commit of its own, and Collected when that is over.
	Collect(tx Tx) (did bool, err error)
	Collected()
	// Forget takes a log that has come in out of the state, without tombstones, if all
	// that are above have what was read of it: up to at. Of one that is retired it stays
	// known that nothing stands, and shares stay.
	Forget(tx Tx, log LogID, at Position, retired bool, above []string) (done bool, err error)
	// Doubt tells that the log is not what a peer knows of it: Renew follows.
	Doubt()
	// Renew makes the recorder's log another, and gives all that the state holds a place
	// in it, from Placed on: when the log is there. It returns the head.
	Renew(tx Tx, log LogID) (head Position, at Time, err error)
	Placed(tx Tx) error
	// Window is how long callers are gathered into one commit, and of how many bytes
	// at most. With 0 it is whoever waits when the last commit is done.
	Window() (time.Duration, int)
}

// Verdict is what a recorder knows of a write that comes.
type Verdict struct {
	// Dead says that a newer epoch of its origin has said what stands: whatever it is,
	// it is a deletion.
	Dead bool
	// Below says that all of its log up to it has been here: if it is above what the
	// state has, it was deleted since, and its tombstone has gone.
	Below bool
}

// never is a time from which deletes are known that no cursor reaches.
const never = Time(math.MaxInt64)

// Record makes a recorder part of the node, with a log of its own under a name,
// which must not be that of a source. What has come in by sources that have it as
// their policy is served on in that log. Call it once, before AddSource. The log
// keeps its epoch for as long as the store holds it.
func (e *Engine) Record(ctx context.Context, name string, r Recorder) (LogID, error) {
	own := &source{engine: e, name: name, policy: Keep{}, state: SourceState{Name: name, Reason: ReasonStreaming, Since: e.now()}}
	v := e.store.View()
	defer func() { v.Close() }()
	var saved savedSource
	var log savedLog
	id := LogID{Origin(e.id, name), Epoch(e.clock.Next())}
	held := false
	if getMeta(v, metaSource+name, &saved) {
		e.belongs(saved, name)
		if _, held = v.Log(LogID{saved.Origin, saved.Epoch}); held {
			id = LogID{saved.Origin, saved.Epoch}
			getMeta(v, metaLog+id.String(), &log)
		}
	}
	own.own = id
	e.mu.Lock()
	e.sorted = nil
	e.logs[id] = &logState{compare: CompareNumber, path: []string{e.id}, tables: log.Tables, source: own}
	e.mu.Unlock()
	tx, err := e.store.Begin(ctx)
	if err != nil {
		return LogID{}, err
	}
	defer tx.Rollback()
	if held {
		err = tx.Append(id, CompareNumber) // after a restart the store does not know the order
	} else {
		for _, l := range tx.LogsOf(id.Origin) {
			if err := dropLog(tx, l.ID); err != nil {
				return LogID{}, err
			}
		}
		// A reader that is behind cannot be caught up by the stamps of what the state
		// holds: they are not in the order of the log.
		err = cmp.Or(tx.ResetLog(id, CompareNumber, "", 0), tx.SetCompleteFrom(id, never))
	}
	if err == nil {
		err = own.saveLog(tx, id, log.Tables)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return LogID{}, fmt.Errorf("log %s: %w", id, err)
	}
	v.Close()
	v = e.store.View()
	if err := r.Open(id, v, e.scratch); err != nil {
		return LogID{}, fmt.Errorf("log %s: %w", id, err)
	}
	e.mu.Lock()
	e.logs[id].tables = slices.Clone(r.Tables())
	e.mu.Unlock()
	if k, ok := e.store.(TombstoneKeeper); ok {
		if err := k.KeepTombstones(ctx); err != nil {
			return LogID{}, err
		}
	}
	g := &e.writes
	g.rec, g.own, g.doubted = r, own, make(chan struct{}, 1)
	if window, bytes := r.Window(); window > 0 || bytes > 0 {
		g.window, g.bytes, g.full = window, cmp.Or(bytes, groupBytes), make(chan struct{}, 1)
	}
	return id, nil
}

// TombstoneKeeper is a store that can be told to let no tombstone go by itself: a
// recorder knows which may.
type TombstoneKeeper interface {
	KeepTombstones(ctx context.Context) error
}

// collectEvery is how often a recorder lets go of what nobody needs.
const collectEvery = time.Second

// collect makes the recorder let go of what nobody needs, until ctx ends.
func (e *Engine) collect(ctx context.Context) error {
	t := ticks.New(collectEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		case <-e.writes.doubted:
		}
		if err := e.Collect(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("upkeep of the node's log", "log", e.ownLog().String(), "error", err)
		}
	}
}

// Collect begins the recorder's log anew if a peer has more of it than the store, and
// makes the recorder let go of what nobody needs, some way. Run does it every second.
func (e *Engine) Collect(ctx context.Context) error {
	if err := e.renewOwn(ctx); err != nil {
		return fmt.Errorf("beginning the log anew: %w", err)
	}
	rec := e.writes.rec
	over := func() { rec.Collected() }
	return e.writes.do(&write{ctx: ctx, apply: rec.Collect, committed: over, undone: func() {}})
}

// recorder returns the source's policy if it records, or nil.
func (s *source) recorder() Recorder {
	r, _ := s.policy.(Recorder)
	return r
}

// record ends what is recorded of a commit.
func (g *group) record(tx Tx) error {
	tables, err := g.rec.End(tx)
	if err != nil {
		return err
	}
	e := g.own.engine
	e.mu.Lock()
	l := e.logs[g.own.own]
	news := !slices.Equal(l.tables, tables)
	if news {
		l.tables = slices.Clone(tables)
	}
	e.mu.Unlock()
	if news {
		return g.own.saveLog(tx, g.own.own, tables)
	}
	return nil
}
