package store

import (
	"bytes"
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// A slab is a quarter of the table, within these bounds: so a small table takes
// little, and its dead records are soon let go of.
const (
	slabMin = 1 << 10
	slabMax = 1 << 20
)

// A record's place, at, is slab<<32|offset.

// tomb finds a tombstone; time settles most comparisons without looking at it.
type tomb struct {
	time uint64
	at   uint64
}

// slab is a run of records. Only bytes past what any root refers to are ever
// written.
type slab struct {
	data []byte
	n    int // bytes in use
	dead int // bytes of records that the newest root does not refer to
}

// arena is the memory of one table's records. One writer at a time appends;
// reading takes no lock.
type arena struct {
	shapes *shapes
	slabs  atomic.Pointer[[]*slab] // by number; nil where let go of
	size   atomic.Int64            // of slabs, with what is free in them

	// of the writer
	free    []uint32 // numbers that may be given again
	tail    tail
	opened  []uint32 // slabs opened since begin
	buried  []uint64 // records that seal will count as dead
	retired []retired
	moving  *moving // the slab that is being emptied
}

// tail is an arena's end: a writer that gives up goes back to it.
type tail struct {
	open bool
	slab uint32
	n    int // bytes of it in use
	used int // bytes of records in all slabs, dead ones included
	dead int
}

// retired is a slab that roots before seq may still refer to.
type retired struct {
	slab uint32
	seq  uint64
}

// moving is how far the emptying of a slab has got.
type moving struct {
	slab   uint32
	offset int
}

func newArena(s *shapes) *arena {
	a := &arena{shapes: s}
	a.slabs.Store(&[]*slab{})
	return a
}

func (a *arena) slab(n uint32) *slab { return (*a.slabs.Load())[n] }

func (a *arena) bytes(at uint64) []byte {
	return a.slab(uint32(at >> 32)).data[uint32(at):]
}

func (a *arena) key(at uint64) []byte {
	k, _ := keyOf(a.bytes(at))
	return k
}

func (a *arena) entry(at uint64) entry { return decode(a.bytes(at)) }

func (a *arena) record(at uint64, r *engine.Record) {
	e := a.entry(at)
	e.record(r, a.shapes.at(e.shape))
}

// stamp returns the stamp of the record at a place.
func (a *arena) stamp(at uint64) engine.Stamp {
	var r engine.Record
	a.record(at, &r)
	return r.Stamp
}

// tombTree is ordered by stamp, then key.
func (a *arena) tombTree() *btree.BTreeG[tomb] {
	return newTree(func(x, y tomb) bool {
		if x.time != y.time {
			return x.time < y.time
		}
		return cmp.Or(a.stamp(x.at).Compare(a.stamp(y.at)), bytes.Compare(a.key(x.at), a.key(y.at))) < 0
	})
}

// put adds a slab and returns its number.
func (a *arena) put(s *slab) uint32 {
	old := *a.slabs.Load()
	if n := len(a.free); n > 0 {
		id := a.free[n-1]
		a.free = a.free[:n-1]
		slabs := slices.Clone(old)
		slabs[id] = s
		a.slabs.Store(&slabs)
		return id
	}
	slabs := append(old, s) // past the end that readers know
	a.slabs.Store(&slabs)
	return uint32(len(slabs) - 1)
}

// drop lets go of slabs that no root in use refers to.
func (a *arena) drop(ids ...uint32) {
	if len(ids) == 0 {
		return
	}
	slabs := slices.Clone(*a.slabs.Load())
	for _, id := range ids {
		a.size.Add(-int64(len(slabs[id].data)))
		slabs[id] = nil
	}
	a.slabs.Store(&slabs)
	a.free = append(a.free, ids...)
}

// room makes the tail's slab have room for n bytes more.
func (a *arena) room(n int) *slab {
	if a.tail.open {
		if s := a.slab(a.tail.slab); len(s.data)-s.n >= n {
			return s
		}
	}
	size := min(max((a.tail.used-a.tail.dead)/4, slabMin), slabMax)
	s := &slab{data: make([]byte, max(size, n))}
	id := a.put(s)
	a.size.Add(int64(len(s.data)))
	a.opened = append(a.opened, id)
	a.tail.open, a.tail.slab = true, id
	return s
}

// add appends a record and returns where it is.
func (a *arena) add(r *engine.Record, shape uint32) uint64 {
	s := a.room(len(r.Key) + len(r.Row) + maxHeader)
	off := s.n
	s.n = len(appendRecord(s.data[:off], r, shape))
	return a.added(s, off)
}

// addBytes appends a record that is encoded already.
func (a *arena) addBytes(b []byte) uint64 {
	s := a.room(len(b))
	off := s.n
	s.n += copy(s.data[off:], b)
	return a.added(s, off)
}

func (a *arena) added(s *slab, off int) uint64 {
	a.tail.used += s.n - off
	a.tail.n = s.n
	return uint64(a.tail.slab)<<32 | uint64(off)
}

// begin starts a run of additions that seal keeps and undo takes back. It
// returns what undo needs.
func (a *arena) begin() tail {
	a.opened, a.buried = a.opened[:0], a.buried[:0]
	return a.tail
}

func (a *arena) undo(t tail) {
	a.drop(a.opened...)
	if a.tail = t; t.open {
		a.slab(t.slab).n = t.n
	}
	a.begin()
}

func (a *arena) seal() {
	for _, at := range a.buried {
		n := a.entry(at).size
		a.slab(uint32(at >> 32)).dead += n
		a.tail.dead += n
	}
	a.begin()
}

// release drops the retired slabs that no root from seq on refers to, and
// reports whether any are left.
func (a *arena) release(seq uint64) (left bool) {
	var ids []uint32
	a.retired = slices.DeleteFunc(a.retired, func(r retired) bool {
		if r.seq > seq {
			return false
		}
		ids = append(ids, r.slab)
		return true
	})
	a.drop(ids...)
	return len(a.retired) > 0
}

// retire takes a slab that the tree refers to no more out of the counts; roots
// before seq may still need its bytes.
func (a *arena) retire(id uint32, seq uint64) {
	s := a.slab(id)
	a.tail.used -= s.n
	a.tail.dead -= s.dead
	a.retired = append(a.retired, retired{id, seq})
}

// emptiest retires the slabs in which all is dead, and returns the one of
// which most is.
func (a *arena) emptiest(seq uint64) (id uint32, found bool) {
	gone := map[uint32]bool{}
	for _, r := range a.retired {
		gone[r.slab] = true
	}
	most := 0.0
	for i, s := range *a.slabs.Load() {
		n := uint32(i)
		if s == nil || s.dead == 0 || gone[n] || a.tail.open && n == a.tail.slab {
			continue
		}
		if s.dead == s.n {
			a.retire(n, seq)
			continue
		}
		if part := float64(s.dead) / float64(s.n); part > most {
			most, id, found = part, n, true
		}
	}
	return id, found
}
