package store

import (
	"bytes"
	"context"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// diskStage is a table that no root knows yet. Its rows are where they stay
// when it is adopted: under a number of their own.
type diskStage struct {
	p    *Pebble
	name engine.TableName

	mu    sync.Mutex
	table *diskTable // nil once spent or closed
	w     *rowWriter
	last  []byte // highest key so far: what comes after it is new
	any   bool   // something has been written
}

// NewStage starts a staged table.
func (p *Pebble) NewStage(name engine.TableName) engine.Stage {
	s := &diskStage{p: p, name: name}
	if !p.isClosed() {
		s.table = &diskTable{name: name, num: p.nextTable.Add(1)}
		s.w = newRowWriter(p)
		s.w.fresh[s.table.num] = true
		s.w.shape.staged = map[uint32]struct{}{}
	}
	return s
}

// Table returns the table that is staged.
func (s *diskStage) Table() engine.TableName { return s.name }

// enter locks the stage for an operation; leave unlocks it.
func (s *diskStage) enter() error {
	s.mu.Lock()
	if s.table == nil || !s.p.ops.enter() {
		s.mu.Unlock()
		return engine.ErrClosed
	}
	return nil
}

func (s *diskStage) leave() {
	s.p.ops.leave()
	s.mu.Unlock()
}

// Put adds records.
func (s *diskStage) Put(rs []engine.Record) error {
	if len(rs) == 0 {
		return nil
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.p.fs.room(context.Background(), s.p.closed); err != nil {
		return err
	}
	s.any = true
	for i := range rs {
		r := &rs[i]
		if err := check(r); err != nil {
			return err
		}
		if bytes.Compare(r.Key, s.last) > 0 {
			s.last = append(s.last[:0], r.Key...)
			s.w.key = rowKey(s.w.key[:0], s.table.num, r.Key)
			if err := s.w.write(s.table, r); err != nil {
				return err
			}
		} else if _, err := s.w.put(s.table, r, false); err != nil {
			return err
		}
		if s.w.batch.Len() >= spillChunk {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	return s.flush()
}

func (s *diskStage) flush() error {
	err := s.p.apply(s.w.batch, pebble.NoSync)
	s.w.batch.Reset()
	s.w.own.reset()
	return s.p.commitError(err)
}

// Get returns the record at key.
func (s *diskStage) Get(key []byte) (r engine.Record, ok bool, err error) {
	if err := s.enter(); err != nil {
		return r, false, err
	}
	defer s.leave()
	return s.p.getRecord(s.table, key, s.p.db, s.w.get)
}

// Scan calls fn for each record from a key on, as of its start.
func (s *diskStage) Scan(from []byte, fn func(*engine.Record) bool) error {
	if err := s.enter(); err != nil {
		return err
	}
	t := *s.table
	l, err := newDBRows(s.p.db, rangeOf(spaceRow, t.num), rowKey(nil, t.num, from), false)
	s.mu.Unlock()
	defer s.p.ops.leave()
	if err != nil {
		return s.p.rowError(err, s.name, from)
	}
	return s.p.scan(&t, s.p.db, []rows{l}, s.gone, fn)
}

func (s *diskStage) gone() error {
	if s.p.ops.over.Load() {
		return engine.ErrClosed
	}
	return nil
}

// Rows returns how many live rows are staged.
func (s *diskStage) Rows() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return 0
	}
	return s.table.live
}

// spend takes the table out of the stage.
func (s *diskStage) spend() (*diskTable, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return nil, engine.ErrClosed
	}
	t := s.table
	s.p.shapes.hold(s.w.shape.staged)
	s.end()
	return t, nil
}

func (s *diskStage) end() {
	_ = s.w.batch.Close()
	s.table, s.w = nil, nil
}

// Close gives the stage up, unless it was adopted.
func (s *diskStage) Close() {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	if s.any {
		b := s.p.newBatch()
		defer func() { _ = b.Close() }()
		for _, r := range tableRanges(s.table.num) {
			_ = b.DeleteRange(r.from, r.to, nil)
		}
		_ = s.p.apply(b, pebble.NoSync) // or at the next start
	}
	s.end()
}
