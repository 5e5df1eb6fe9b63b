package store

import (
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// stage is a table that no root knows yet.
type stage struct {
	m    *Memory
	name engine.TableName

	mu    sync.Mutex
	table *table // nil once spent or closed
	shape shapeCache
	taken int64 // bytes counted in m.staged
}

// NewStage starts a staged table.
func (m *Memory) NewStage(name engine.TableName) engine.Stage {
	s := &stage{m: m, name: name, shape: shapeCache{staged: map[uint32]struct{}{}}}
	if !m.isClosed() {
		s.table = newTable(name, m.shapes)
	}
	return s
}

// Table returns the table that is staged.
func (s *stage) Table() engine.TableName { return s.name }

// Put adds records.
func (s *stage) Put(rs []engine.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return engine.ErrClosed
	}
	for i := range rs {
		r := &rs[i]
		if err := check(r); err != nil {
			return err
		}
		s.table.put(r, s.shape.forRecord(s.m.shapes, r.Stamp.Log(), r.Schema))
	}
	s.table.arena.seal()
	s.count(s.table.arena.size.Load())
	return nil
}

// count tells the store how many bytes the stage takes.
func (s *stage) count(n int64) {
	s.m.staged.Add(n - s.taken)
	s.taken = n
}

// asOf returns the stage as it is now.
func (s *stage) asOf() *table {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return nil
	}
	return &table{arena: s.table.arena, rows: s.table.rows.freeze(), live: s.table.live}
}

// Get returns the record at key.
func (s *stage) Get(key []byte) (r engine.Record, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return r, false, engine.ErrClosed
	}
	ok = s.table.get(key, &r)
	return r, ok, nil
}

// Scan calls fn for each record from a key on, as of its start.
func (s *stage) Scan(from []byte, fn func(*engine.Record) bool) error {
	t := s.asOf()
	if t == nil {
		return engine.ErrClosed
	}
	t.scan(from, fn)
	return nil
}

// Rows returns how many live rows are staged.
func (s *stage) Rows() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return 0
	}
	return s.table.live
}

// spend takes the table out of the stage.
func (s *stage) spend() (*table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return nil, engine.ErrClosed
	}
	t := s.table
	s.table = nil
	s.count(0)
	s.m.shapes.hold(s.shape.staged)
	return t, nil
}

// Close gives the stage up, unless it was adopted.
func (s *stage) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table = nil
	s.count(0)
}
