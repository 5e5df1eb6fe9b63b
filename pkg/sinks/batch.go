package sinks

import (
	"context"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Entry is one change for a target. It is valid during the call that passes it;
// the row of a batch's entry stays valid until Apply returns.
type Entry struct {
	engine.Change
	// Log that it was read from, and the end of its transaction there; for a row
	// of a baseline, the log of its stamp and the position of the baseline.
	Log      engine.LogID
	Position engine.Position
	Time     engine.Time // of its transaction
}

// Rejected names the entry.
func (e *Entry) Rejected() *Rejected {
	return &Rejected{Table: e.Schema.Table, Op: e.Op, Key: append([]byte(nil), e.Key...), Log: e.Log, Position: e.Position}
}

// Batch is what a target takes in one go: whole transactions of a log. It may
// be larger than memory, where a single transaction is.
type Batch struct {
	// From is the cursor before the batch, To the one after it.
	From, To engine.Cursor
	// Careful batches follow a rejection: a single transaction, of which the target
	// gives each entry that it rejects to Reject.
	Careful bool
	// Large says that the batch is one transaction in parts.
	Large bool
	// Replay is the id of the dead letter that is all of the batch; empty
	// otherwise. From and To are the same then.
	Replay string

	sink   *Sink
	view   engine.View
	blocks []*engine.Block
	shared map[engine.TableName]bool // tables that other logs write too
	single *Entry                    // of a replay
	state  []engine.TableInfo        // tables to look for what was written after From; nil: blocks
	gone   map[letterKey]bool        // dead letters that what was applied makes moot
	passed int                       // entries that Each has passed on
}

// Each calls fn for each entry, in order. It may be called again after an
// error.
func (b *Batch) Each(fn func(*Entry) error) error {
	b.gone, b.passed = map[letterKey]bool{}, 0
	pass := fn
	fn = func(e *Entry) error {
		b.passed++
		return pass(e)
	}
	if b.single != nil {
		return fn(b.single)
	}
	if b.state != nil {
		return b.changed(fn)
	}
	log := b.From.Log
	schema := b.schemas()
	blocks := b.blocks
	for {
		for _, block := range blocks {
			if err := b.block(log, block, schema, fn); err != nil {
				return err
			}
		}
		last := blocks[len(blocks)-1]
		if last.Last {
			return nil
		}
		var err error
		if blocks, err = b.view.ReadPart(log, last.Prev, last.Part+1, b.sink.cfg.BatchBytes); err != nil {
			return fmt.Errorf("log %s: reading on in the transaction at %s: %w", log, last.Position, err)
		}
		if blocks = upToLast(blocks); len(blocks) == 0 {
			return fmt.Errorf("log %s: the transaction at %s has no part %d", log, last.Position, last.Part+1)
		}
	}
}

// upToLast cuts a run of parts after the end of the transaction that the first
// belongs to.
func upToLast(blocks []*engine.Block) []*engine.Block {
	for i, b := range blocks {
		if b.Last {
			return blocks[:i+1]
		}
	}
	return blocks
}

// schemas resolves schema IDs, remembering those it has seen.
func (b *Batch) schemas() func(engine.LogID, uint32) *engine.Schema {
	type key struct {
		log engine.LogID
		id  uint32
	}
	seen := map[key]*engine.Schema{}
	return func(log engine.LogID, id uint32) *engine.Schema {
		k := key{log, id}
		s := seen[k]
		if s == nil {
			if s = b.view.Schema(log, id); s != nil {
				seen[k] = s
			}
		}
		return s
	}
}

func (b *Batch) block(log engine.LogID, block *engine.Block, schema func(engine.LogID, uint32) *engine.Schema, fn func(*Entry) error) error {
	r := block.Reader(log, schema)
	e := Entry{Log: log}
	for r.Next() {
		if r.IsBegin {
			e.Position, e.Time = r.Begin.Position, r.Begin.Time
			continue
		}
		e.Change = r.Change
		if err := b.entry(&e, fn); err != nil {
			return err
		}
	}
	return r.Err()
}

// entry passes one entry on, if the target is to have it.
func (b *Batch) entry(e *Entry, fn func(*Entry) error) error {
	table := e.Schema.Table
	if !b.sink.takes(table) {
		return nil
	}
	if b.shared[table] || e.Stamp.Origin != e.Log.Origin {
		if e.Op == engine.OpTruncate {
			return b.truncated(e, fn)
		}
		// What another origin wrote later stays: it comes with its own log. Of a log
		// that carries others' writes there may be a second one, which is ahead.
		have, ok, err := b.view.Get(table, e.Key)
		if err != nil {
			return err
		}
		if ok && (have.Stamp.Origin != e.Stamp.Origin || e.Stamp.Origin != e.Log.Origin) && have.Stamp.Compare(e.Stamp) > 0 {
			return nil
		}
	}
	if b.sink.letters.any() {
		k := letterKey{table, string(e.Key)}
		switch put, dead := b.sink.letters.has(k); {
		case e.Op == engine.OpTruncate:
			b.sink.letters.ofTable(table, func(k letterKey) { b.gone[k] = true })
		case dead && put && e.Op == engine.OpDelete && e.Schema.Multiset():
			b.gone[k] = true // the target never had this copy of the row
			return nil
		case dead:
			b.gone[k] = true
		}
	}
	return fn(e)
}

// truncated passes on a truncate of a table that others write too: the rows
// that it took away, which the state remembers.
func (b *Batch) truncated(e *Entry, fn func(*Entry) error) error {
	d := *e
	d.Op = engine.OpDelete
	var inner error
	err := b.view.Scan(e.Schema.Table, nil, func(r *engine.Record) bool {
		if !r.Deleted || r.Stamp.Origin != e.Stamp.Origin || r.Stamp.Compare(e.Stamp) > 0 {
			return true
		}
		d.Key = r.Key
		inner = fn(&d)
		return inner == nil
	})
	if err == nil {
		err = inner
	}
	return err
}

// Reject tells that the target does not take an entry of a careful batch. Where
// it returns nil, the entry has been put aside durably and the target goes on
// without it; otherwise the target gives the batch up with the error. A fault
// that is not the entry's own, such as a missing table, always holds.
func (b *Batch) Reject(ctx context.Context, e *Entry, why error, own bool) error {
	delete(b.gone, letterKey{e.Schema.Table, string(e.Key)})
	return b.sink.reject(ctx, e, why, own && b.single == nil)
}

// Snapshot is a baseline: the state of some tables at one moment.
type Snapshot struct {
	// Reason for it.
	Reason string
	Tables []SnapshotTable
	// Cursors that the target has everything up to, once it has the snapshot.
	Cursors []engine.Cursor
	// Forget are cursors that are no longer true.
	Forget []engine.CursorKey

	sink *Sink
	view engine.View
	kept map[letterKey]bool // put aside during this baseline
}

// SnapshotTable is a table of a baseline.
type SnapshotTable struct {
	Schema *engine.Schema // its newest
	Origin string         // that Schema is of
}

// Rows calls fn for each row of a table. It may be called again.
func (s *Snapshot) Rows(table engine.TableName, fn func(*Entry) error) error {
	at := map[string]engine.Cursor{}
	for _, c := range s.Cursors {
		at[c.Log.Origin] = c
	}
	var inner error
	err := s.view.Scan(table, nil, func(r *engine.Record) bool {
		if r.Deleted {
			return true
		}
		c := at[r.Stamp.Origin]
		inner = fn(&Entry{
			Change: engine.Change{Op: engine.OpPut, Schema: r.Schema, Key: r.Key, Row: r.Row, Stamp: r.Stamp},
			Log:    c.Log, Position: c.Position, Time: r.Stamp.Time,
		})
		return inner == nil
	})
	if err == nil {
		err = inner
	}
	return err
}

// Reject is Batch.Reject for a row of the baseline.
func (s *Snapshot) Reject(ctx context.Context, e *Entry, why error, own bool) error {
	if err := s.sink.reject(ctx, e, why, own); err != nil {
		return err
	}
	s.kept[letterKey{e.Schema.Table, string(e.Key)}] = true
	return nil
}
