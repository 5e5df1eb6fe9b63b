package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// MemoryOptions configure a memory store. The zero value has the defaults.
type MemoryOptions struct {
	// JournalBytes bounds the logs' entries, all logs together. Where it is
	// passed, the largest log loses its oldest transaction first, so a busy log
	// does not push out a quiet one. Default 256 MiB.
	JournalBytes int
	// Tombstones bounds the tombstones of a table; the oldest by stamp go first.
	// Default 100,000; negative keeps all.
	Tombstones int
}

// The defaults of MemoryOptions.
const (
	DefaultJournalBytes = 256 << 20
	DefaultTombstones   = 100_000
)

// Memory is an engine.Store that lives as long as the process.
type Memory struct {
	opts   MemoryOptions
	shapes *shapes
	turn   chan struct{} // holds one token: the right to write
	closed chan struct{}
	staged atomic.Int64 // bytes of stages' slabs

	mu      sync.Mutex
	root    *root
	views   map[uint64]int // open views by the seq of their root
	changed chan struct{}  // nil until asked for

	// of whoever holds the turn
	sizes     *btree.BTreeG[logSize]
	journal   int                 // bytes of all logs
	retiring  map[*arena]struct{} // those with retired slabs
	lastShape shapeCache
}

// logSize orders logs by the bytes they hold.
type logSize struct {
	bytes int
	id    engine.LogID
}

var _ engine.Store = (*Memory)(nil)

// NewMemory returns an empty memory store.
func NewMemory(o MemoryOptions) *Memory {
	if o.JournalBytes <= 0 {
		o.JournalBytes = DefaultJournalBytes
	}
	if o.Tombstones == 0 {
		o.Tombstones = DefaultTombstones
	}
	m := &Memory{
		opts: o, shapes: newShapes(), turn: make(chan struct{}, 1), closed: make(chan struct{}),
		root: newRoot(), views: map[uint64]int{}, retiring: map[*arena]struct{}{},
		sizes: newTree(func(a, b logSize) bool {
			if a.bytes != b.bytes {
				return a.bytes < b.bytes
			}
			return compareLogs(a.id, b.id) < 0
		}),
	}
	m.turn <- struct{}{}
	return m
}

// KeepTombstones makes the store let no tombstone go by itself.
func (m *Memory) KeepTombstones(ctx context.Context) error {
	t, err := m.Begin(ctx)
	if err != nil {
		return err
	}
	defer t.Rollback()
	m.opts.Tombstones = -1
	return nil
}

// Durable reports false: nothing outlives the process.
func (m *Memory) Durable() bool { return false }

// Begin starts the write transaction.
func (m *Memory) Begin(ctx context.Context) (engine.Tx, error) {
	if m.isClosed() {
		return nil, engine.ErrClosed
	}
	select {
	case <-m.turn:
	case <-m.closed:
		return nil, engine.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	t := &tx{m: m}
	t.read(m.current().write())
	t.err = errSpent
	return t, nil
}

func (m *Memory) current() *root {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.root
}

func (m *Memory) isClosed() bool {
	select {
	case <-m.closed:
		return true
	default:
		return false
	}
}

// View returns a view as of the last commit.
func (m *Memory) View() engine.View {
	v := &view{m: m}
	v.err = engine.ErrClosed
	m.mu.Lock()
	defer m.mu.Unlock()
	v.read(m.root)
	if m.isClosed() {
		v.over.Store(true)
		return v
	}
	m.views[v.root.seq]++
	return v
}

func (m *Memory) leave(seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.views[seq]--; m.views[seq] == 0 {
		delete(m.views, seq)
	}
}

// Stalled returns nil: nothing here waits.
func (m *Memory) Stalled() error { return nil }

// Changed returns a channel that is closed at the next commit, or by Close.
func (m *Memory) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

// wake wakes what waits on Changed. Callers hold m.mu.
func (m *Memory) wake() {
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// publish makes r what views see, and returns the oldest seq in use.
func (m *Memory) publish(r *root) (oldest uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isClosed() {
		return 0, engine.ErrClosed
	}
	m.root = r
	m.wake()
	oldest = r.seq
	if len(m.retiring) > 0 {
		for seq := range m.views {
			oldest = min(oldest, seq)
		}
	}
	return oldest, nil
}

// Close ends the store. Views that are open stay readable until they are closed.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isClosed() {
		return nil
	}
	close(m.closed)
	m.root = newRoot()
	m.wake()
	return nil
}

// Stats is how a memory store's memory is used.
type Stats struct {
	Rows         int // live
	Tombstones   int
	LiveBytes    int // of records in use: keys, rows, stamps
	DeadBytes    int // of records that wait for their slab to be emptied
	SlabBytes    int // of slabs, with what is free in them
	StageBytes   int // of the slabs of baselines under way
	JournalBytes int // of logs' entries
	Views        int // open
}

// Stats returns how memory is used as of the last commit.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	r := m.root
	st := Stats{StageBytes: int(m.staged.Load())}
	for _, n := range m.views {
		st.Views += n
	}
	m.mu.Unlock()
	r.tables.Scan(func(i item[engine.TableName, *table]) bool {
		t := i.val
		st.Rows += t.live
		st.Tombstones += t.tombs.Len()
		st.LiveBytes += t.tail.used - t.tail.dead
		st.DeadBytes += t.tail.dead
		st.SlabBytes += int(t.arena.size.Load())
		return true
	})
	r.logs.Scan(func(i item[engine.LogID, *journal]) bool {
		st.JournalBytes += i.val.bytes
		return true
	})
	return st
}

func unknownLog(log engine.LogID) error {
	return fmt.Errorf("log %s: %w", log, engine.ErrUnknownLog)
}
