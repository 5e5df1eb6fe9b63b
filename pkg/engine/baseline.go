package engine

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
)

// maxNetBytes bounds the net transaction that a re-baseline is told to readers
// as. A larger difference empties the log instead, and readers take a snapshot.
const maxNetBytes = 8 << 20

// baseline collects the rows of a baseline apart from the state.
type baseline struct {
	source *source
	spec   BaselineSpec
	mint   bool
	stamp  Stamp // of rows that come without one
	log    LogID

	mu     sync.Mutex
	stages map[TableName]Stage
	done   bool
}

// Baseline starts a baseline.
func (s *source) Baseline(_ context.Context, spec BaselineSpec) (BaselineWriter, error) {
	b := &baseline{source: s, spec: spec, log: spec.Log, stages: map[TableName]Stage{}}
	if spec.Log.IsZero() {
		s.mu.Lock()
		b.mint, b.log = true, s.own
		s.mu.Unlock()
		if b.log.IsZero() {
			return nil, fmt.Errorf("engine: source %q does not mint, and its baseline names no log", s.name)
		}
		b.stamp = Stamp{s.engine.clock.Next(), b.log.Origin, b.log.Epoch, Version{Major: spec.Major}}
		b.spec.Time = b.stamp.Time
	} else if _, err := s.carried(spec.Log); err != nil {
		return nil, err
	}
	if spec.Reason != "" {
		s.mu.Lock()
		s.state.LastCause = spec.Reason
		s.mu.Unlock()
	}
	for _, t := range spec.Tables {
		b.stages[t] = s.engine.store.NewStage(t)
	}
	return b, nil
}

// Rows adds rows of one table.
func (b *baseline) Rows(table TableName, rs []Record) error {
	st := b.stages[table]
	if st == nil {
		return fmt.Errorf("baseline of log %s: table %s is not part of it", b.log, table)
	}
	if b.mint {
		for i := range rs {
			rs[i].Stamp = b.stamp
		}
	}
	return st.Put(rs)
}

// Abort forgets the baseline.
func (b *baseline) Abort() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	b.done = true
	for _, st := range b.stages {
		st.Close()
	}
}

// Commit makes the baseline the state. What it changes is told to readers as
// one transaction where the log goes on, so that a baseline which changes
// nothing sends nothing.
func (b *baseline) Commit(ctx context.Context) error {
	defer b.Abort()
	s, e := b.source, b.source.engine
	compare := s.sync.ComparePositions
	if !b.mint {
		var err error
		if compare, err = s.carried(b.log); err != nil {
			return err
		}
	}
	tx, err := e.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, sc := range b.spec.Schemas {
		if err := tx.PutSchema(b.log, sc); err != nil {
			return err
		}
	}
	for log, scs := range b.spec.Others {
		for _, sc := range scs {
			if err := tx.PutSchema(log, sc); err != nil {
				return err
			}
		}
	}
	key := CursorKey{b.log, b.spec.Scope}
	old, resumes := tx.Cursors()[key]
	if resumes && compare(b.spec.At, old.Position) < 0 {
		return fmt.Errorf("log %s: a baseline at %s is behind the cursor at %s", b.log, b.spec.At, old.Position)
	}
	net := &netChanges{keep: resumes, schemas: b.spec.Schemas}
	for _, table := range b.spec.Tables {
		if err := b.merge(tx, table, net); err != nil {
			return err
		}
	}
	cursor := Cursor{key, b.spec.At, max(old.Time, b.spec.Time)}
	var blocks []*Block
	switch {
	case resumes && net.keep && old.Position == b.spec.At && len(net.changes) == 0:
	case resumes && net.keep && old.Position != b.spec.At:
		w := NewBlockBuilder(b.log, old.Position)
		w.Add(&Transaction{
			Log: b.log, Prev: old.Position, Position: b.spec.At, Time: cursor.Time,
			Major: b.spec.Major, Schemas: net.schemas, Changes: net.changes,
		})
		blocks = w.Blocks()
	default:
		if err := tx.ResetLog(b.log, compare, b.spec.At, cursor.Time); err != nil {
			return err
		}
	}
	dropped, err := b.dropOlder(tx)
	if err != nil {
		return err
	}
	b.announce(dropped)
	if err := s.commit(tx, cursor, compare, blocks); err != nil {
		return err
	}
	s.mu.Lock()
	if s.state.Baselines++; s.state.Baselines > 1 {
		s.state.Rebaselines++
	}
	delete(s.pending, key)
	s.mu.Unlock()
	e.mu.Lock()
	if l := e.logs[b.log]; l != nil {
		l.ready = true
	}
	e.notify()
	e.mu.Unlock()
	e.log.Info("baselined", "source", s.name, "log", b.log.String(), "position", string(b.spec.At), "changes", len(net.changes))
	return nil
}

// dropOlder takes out the older epochs of the log's origin.
func (b *baseline) dropOlder(tx Tx) ([]LogID, error) {
	var dropped []LogID
	for _, l := range tx.Logs() {
		if l.ID.Origin == b.log.Origin && l.ID.Epoch < b.log.Epoch {
			if err := tx.DropLog(l.ID); err != nil {
				return nil, err
			}
			dropped = append(dropped, l.ID)
		}
	}
	return dropped, nil
}

func (b *baseline) announce(dropped []LogID) {
	e := b.source.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range dropped {
		delete(e.logs, d)
		for k := range e.readers {
			if k.key.Log == d {
				delete(e.readers, k)
			}
		}
	}
	if l := e.logs[b.log]; l != nil {
		l.tables = slices.Clone(b.spec.Tables)
	}
}

// netChanges is what a baseline changed in the state, as far as it fits.
type netChanges struct {
	keep    bool // false: not wanted, or too large
	bytes   int
	schemas []*Schema
	changes []Change
}

func (n *netChanges) add(op Op, r *Record) {
	if !n.keep {
		return
	}
	if n.bytes += len(r.Key) + len(r.Row) + 64; n.bytes > maxNetBytes {
		n.keep, n.changes = false, nil
		return
	}
	n.changes = append(n.changes, Change{
		Op: op, Schema: r.Schema, Key: slices.Clone(r.Key), Row: slices.Clone(r.Row), Stamp: r.Stamp,
	})
}

// merge brings a staged table into the state. Equal rows keep their stamps;
// rows of the baseline's own origin that it lacks become tombstones; for all
// else the greatest stamp stays.
func (b *baseline) merge(tx Tx, table TableName, net *netChanges) error {
	stage := b.stages[table]
	if emptyTable(tx, table) {
		if net.keep {
			if err := stage.Scan(nil, func(r *Record) bool {
				if !r.Deleted {
					net.add(OpPut, r)
				}
				return net.keep
			}); err != nil {
				return err
			}
		}
		return tx.Adopt(stage)
	}
	var todo []Record // written after the scan: a scan does not see its own writes
	var inner error
	err := stage.Scan(nil, func(r *Record) bool {
		var have Record
		var ok bool
		if have, ok, inner = tx.Get(table, r.Key); inner != nil {
			return false
		}
		if ok && (sameRow(&have, r) || have.Stamp.Compare(r.Stamp) >= 0) {
			return true
		}
		if !ok && r.Deleted {
			todo = append(todo, cloneRecord(r))
			return true
		}
		todo = append(todo, cloneRecord(r))
		op := OpPut
		if r.Deleted {
			op = OpDelete
		}
		net.add(op, r)
		return true
	})
	if err == nil {
		err = inner
	}
	if err != nil {
		return err
	}
	err = tx.Scan(table, nil, func(r *Record) bool {
		if r.Deleted || r.Stamp.Origin != b.log.Origin {
			return true
		}
		var ok bool
		if _, ok, inner = stage.Get(r.Key); inner != nil || ok {
			return inner == nil
		}
		gone := Record{Schema: r.Schema, Key: slices.Clone(r.Key), Stamp: r.Stamp, Deleted: true}
		if b.mint {
			gone.Stamp = b.stamp
			gone.Schema = b.schemaOf(table, r.Schema)
		}
		todo = append(todo, gone)
		net.add(OpDelete, &gone)
		return true
	})
	if err == nil {
		err = inner
	}
	if err != nil {
		return err
	}
	for i := range todo {
		if err := tx.Put(&todo[i]); err != nil {
			return err
		}
	}
	return nil
}

// schemaOf returns the baseline's schema of a table, or the one given.
func (b *baseline) schemaOf(table TableName, otherwise *Schema) *Schema {
	for _, sc := range b.spec.Schemas {
		if sc.Table == table {
			return sc
		}
	}
	return otherwise
}

func emptyTable(v View, table TableName) bool {
	empty := true
	_ = v.Scan(table, nil, func(*Record) bool { empty = false; return false })
	return empty
}

// sameRow reports whether two live records of one origin hold the same row.
func sameRow(a, b *Record) bool {
	return !a.Deleted && !b.Deleted && a.Stamp.Origin == b.Stamp.Origin &&
		(a.Schema == b.Schema || a.Schema.Fingerprint() == b.Schema.Fingerprint()) &&
		bytes.Equal(a.Row.Values(), b.Row.Values())
}

func cloneRecord(r *Record) Record {
	c := *r
	c.Key, c.Row = slices.Clone(r.Key), slices.Clone(r.Row)
	return c
}
