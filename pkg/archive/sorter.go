package archive

import (
	"bytes"
	"cmp"
	"container/heap"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// sorter orders records by key and keeps the greatest of each: the one with the greatest
// stamp, and of two with one stamp the deleted one, which is how a truncate leaves a row.
// What is more than memory goes to scratch files, each of them sorted, which are
// merged at the end.
type sorter struct {
	dir    *spill.Dir
	memory int
	slab   int
	perLog bool // keep one of each key and delivering log

	slabs [][]byte
	refs  []sorted
	used  int
	runs  []*spill.File

	logs    table[engine.LogID]
	schemas table[*engine.Schema]
}

// sorted is where a record is, and how its key begins.
type sorted struct {
	head      uint64
	slab, off uint32
}

// table numbers values as they come.
type table[T comparable] struct {
	all   []T
	index map[T]int
}

func (t *table[T]) number(v T) int {
	if n := len(t.all); n > 0 && t.all[n-1] == v {
		return n - 1
	}
	i, ok := t.index[v]
	if !ok {
		if t.index == nil {
			t.index = map[T]int{}
		}
		i = len(t.all)
		t.index[v] = i
		t.all = append(t.all, v)
	}
	return i
}

const (
	maxRuns   = 32 // merged at once
	runBuffer = 64 << 10
	refBytes  = 16
)

func newSorter(dir *spill.Dir, memory int, perLog bool) *sorter {
	return &sorter{dir: dir, memory: memory, slab: min(max(memory/16, 4<<10), 1<<20), perLog: perLog}
}

// add takes a put or a delete, copying its bytes.
func (s *sorter) add(e *Entry) error {
	n := len(e.Key) + len(e.Row) + 96
	last := len(s.slabs) - 1
	if last < 0 || cap(s.slabs[last])-len(s.slabs[last]) < n {
		if s.used+max(n, s.slab) > s.memory && len(s.refs) > 0 {
			if err := s.spill(); err != nil {
				return err
			}
		}
		s.slabs = append(s.slabs, make([]byte, 0, max(n, s.slab)))
		s.used += max(n, s.slab)
		last = len(s.slabs) - 1
	}
	p := s.slabs[last]
	s.refs = append(s.refs, sorted{keyHead(e.Key), uint32(last), uint32(len(p))})
	s.used += refBytes
	p = binary.AppendUvarint(p, uint64(len(e.Key)))
	p = append(p, e.Key...)
	p = append(p, byte(e.Op))
	p = binary.AppendUvarint(p, uint64(s.logs.number(e.Log)))
	p = binary.AppendUvarint(p, uint64(s.logs.number(e.Stamp.Log())))
	p = binary.AppendUvarint(p, uint64(e.Stamp.Time))
	p = binary.AppendUvarint(p, e.Stamp.Version.Major)
	p = binary.AppendUvarint(p, uint64(e.Stamp.Version.Minor))
	p = binary.AppendUvarint(p, uint64(s.schemas.number(e.Schema)))
	p = binary.AppendUvarint(p, uint64(len(e.Row)))
	s.slabs[last] = append(p, e.Row...)
	return nil
}

// keyHead is a number that orders as the beginnings of keys do.
func keyHead(key []byte) uint64 {
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// item is a record as it is kept.
type item struct {
	key  []byte
	op   engine.Op
	via  int
	rest []byte // the stamp and what follows
	all  []byte // of a run: all of it
}

func parseItem(p []byte) item {
	n, i := binary.Uvarint(p)
	p = p[i:]
	it := item{key: p[:n:n], op: engine.Op(p[n])}
	v, j := binary.Uvarint(p[n+1:])
	it.via, it.rest = int(v), p[int(n)+1+j:]
	return it
}

// stamp returns the item's stamp, and what follows it.
func (s *sorter) stamp(it *item) (st engine.Stamp, rest []byte) {
	p := it.rest
	next := func() uint64 {
		v, n := binary.Uvarint(p)
		p = p[n:]
		return v
	}
	log := s.logs.all[next()]
	st = engine.Stamp{Origin: log.Origin, Epoch: log.Epoch, Time: engine.Time(next())}
	st.Version = engine.Version{Major: next(), Minor: uint32(next())}
	return st, p
}

// entry fills e from an item; it shares the item's memory.
func (s *sorter) entry(it *item, e *Entry) {
	var p []byte
	e.Stamp, p = s.stamp(it)
	id, n := binary.Uvarint(p)
	size, m := binary.Uvarint(p[n:])
	p = p[n+m:]
	e.Op, e.Key, e.Log, e.Schema, e.Row = it.op, it.key, s.logs.all[it.via], s.schemas.all[id], nil
	if it.op == engine.OpPut {
		e.Row = engine.Row(p[:size:size])
	}
}

// size is how long the item at the front of p is.
func itemSize(p []byte) int {
	at := 0
	skip := func() uint64 {
		v, n := binary.Uvarint(p[at:])
		at += n
		return v
	}
	at += int(skip()) // key
	at++              // op
	for range 6 {     // up to the schema
		skip()
	}
	at += int(skip())
	return at
}

// same reports whether only one of two items is to stay.
func (s *sorter) same(a, b *item) bool {
	return bytes.Equal(a.key, b.key) && (!s.perLog || a.via == b.via)
}

// compare orders items by key, and the one that is to stay first.
func (s *sorter) compare(a, b *item) int {
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c
	}
	if s.perLog && a.via != b.via {
		return compareLogs(s.logs.all[a.via], s.logs.all[b.via])
	}
	x, _ := s.stamp(a)
	y, _ := s.stamp(b)
	if c := y.Compare(x); c != 0 {
		return c
	}
	return cmp.Compare(b.op, a.op) // a delete before a put
}

func (s *sorter) at(r sorted) item { return parseItem(s.slabs[r.slab][r.off:]) }

func (s *sorter) sort() {
	slices.SortFunc(s.refs, func(a, b sorted) int {
		if c := cmp.Compare(a.head, b.head); c != 0 {
			return c
		}
		x, y := s.at(a), s.at(b)
		return s.compare(&x, &y)
	})
}

// spill moves what is in memory to a sorted run.
func (s *sorter) spill() error {
	s.sort()
	run := s.dir.New(runBuffer)
	src := memorySource{s: s}
	for {
		it, err := src.next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = run.Append(it.all)
		}
		if err != nil {
			run.Close()
			return err
		}
	}
	s.runs = append(s.runs, run)
	s.slabs, s.refs, s.used = nil, nil, 0
	if len(s.runs) < maxRuns {
		return nil
	}
	return s.mergeRuns()
}

// mergeRuns makes one run of all.
func (s *sorter) mergeRuns() error {
	m := newMerge(s, false)
	run := s.dir.New(runBuffer)
	for {
		it, err := m.next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = run.Append(it.all)
		}
		if err != nil {
			run.Close()
			return err
		}
	}
	for _, r := range s.runs {
		r.Close()
	}
	s.runs = []*spill.File{run}
	return nil
}

// iterate returns what is kept, in order. Nothing is added any more.
func (s *sorter) iterate() *sortedEntries {
	s.sort()
	return &sortedEntries{s: s, m: newMerge(s, true)}
}

func (s *sorter) close() {
	for _, r := range s.runs {
		r.Close()
	}
	s.runs, s.slabs, s.refs = nil, nil, nil
}

type sortedEntries struct {
	s *sorter
	m *merge
	e Entry
}

// next returns an entry, valid until the next call, or io.EOF.
func (i *sortedEntries) next() (*Entry, error) {
	it, err := i.m.next()
	if err != nil {
		return nil, err
	}
	i.s.entry(it, &i.e)
	return &i.e, nil
}

type itemSource interface {
	// next returns an item, valid until the next call, or io.EOF.
	next() (*item, error)
}

// memorySource gives what is in memory, one of each.
type memorySource struct {
	s    *sorter
	i    int
	it   item
	have bool
}

func (m *memorySource) next() (*item, error) {
	for ; m.i < len(m.s.refs); m.i++ {
		r := m.s.refs[m.i]
		p := m.s.slabs[r.slab][r.off:]
		it := parseItem(p)
		if m.have && m.s.same(&it, &m.it) {
			continue
		}
		it.all = p[:itemSize(p)]
		m.it, m.have = it, true
		m.i++
		return &m.it, nil
	}
	return nil, io.EOF
}

type runSource struct {
	r  *spill.Reader
	it item
}

func (r *runSource) next() (*item, error) {
	p, err := r.r.Next()
	if err != nil {
		return nil, err
	}
	r.it = parseItem(p)
	r.it.all = p
	return &r.it, nil
}

// merge gives the items of several sources in order, one of each.
type merge struct {
	s     *sorter
	heads []head
	began bool
	last  item // its own copy of key
	init  []itemSource
	err   error
}

type head struct {
	it  *item
	src itemSource
}

func newMerge(s *sorter, memory bool) *merge {
	m := &merge{s: s}
	for _, r := range s.runs {
		m.init = append(m.init, &runSource{r: r.Reader()})
	}
	if memory {
		m.init = append(m.init, &memorySource{s: s})
	}
	return m
}

func (m *merge) Len() int           { return len(m.heads) }
func (m *merge) Less(i, j int) bool { return m.s.compare(m.heads[i].it, m.heads[j].it) < 0 }
func (m *merge) Swap(i, j int)      { m.heads[i], m.heads[j] = m.heads[j], m.heads[i] }
func (m *merge) Push(x any)         { m.heads = append(m.heads, x.(head)) }
func (m *merge) Pop() any {
	h := m.heads[len(m.heads)-1]
	m.heads = m.heads[:len(m.heads)-1]
	return h
}

func (m *merge) next() (*item, error) {
	if m.err != nil {
		return nil, m.err
	}
	if m.init != nil {
		for _, src := range m.init {
			it, err := src.next()
			if err == nil {
				m.heads = append(m.heads, head{it, src})
			} else if !errors.Is(err, io.EOF) {
				m.err = err
				return nil, err
			}
		}
		m.init = nil
		heap.Init(m)
	} else if len(m.heads) > 0 {
		if err := m.advance(); err != nil {
			return nil, err
		}
	}
	for len(m.heads) > 0 {
		it := m.heads[0].it
		if m.began && m.s.same(it, &m.last) {
			if err := m.advance(); err != nil {
				return nil, err
			}
			continue
		}
		m.began = true
		m.last.key, m.last.via = append(m.last.key[:0], it.key...), it.via
		return it, nil
	}
	return nil, io.EOF
}

// advance replaces the first head by what follows it.
func (m *merge) advance() error {
	it, err := m.heads[0].src.next()
	switch {
	case err == nil:
		m.heads[0].it = it
		heap.Fix(m, 0)
	case errors.Is(err, io.EOF):
		heap.Pop(m)
	default:
		m.err = err
		return err
	}
	return nil
}
