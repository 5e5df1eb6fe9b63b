package store

import (
	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// table is one table of the state as of a root: immutable once its root is
// published.
type table struct {
	name  engine.TableName
	arena *arena
	rows  *index // tombstones included
	tombs *btree.BTreeG[tomb]
	live  int // rows that are not tombstones
	bytes int // of their keys and rows
	tail  tail

	// of the transaction that writes it
	owner uint64 // seq of the root it is being written for
	start tail
}

func newTable(name engine.TableName, s *shapes) *table {
	a := newArena(s)
	return &table{name: name, arena: a, rows: newIndex(a), tombs: a.tombTree()}
}

// write returns a copy of t for the transaction that makes root seq.
func (t *table) write(seq uint64) *table {
	return &table{
		name: t.name, arena: t.arena, rows: t.rows.share(), tombs: t.tombs.Copy(), live: t.live, bytes: t.bytes,
		owner: seq, start: t.arena.begin(),
	}
}

// get fills r with the record at key.
func (t *table) get(key []byte, r *engine.Record) bool {
	at, ok := t.rows.get(key)
	if ok {
		t.arena.record(at, r)
	}
	return ok
}

func (t *table) scan(from []byte, fn func(*engine.Record) bool) {
	var r engine.Record
	t.rows.scan(from, func(at uint64) bool {
		t.arena.record(at, &r)
		return fn(&r)
	})
}

// put writes a record, whatever is there.
func (t *table) put(r *engine.Record, shape uint32) {
	at := t.arena.add(r, shape)
	if old, ok := t.rows.set(r.Key, at); ok {
		t.forget(old)
	}
	if r.Deleted {
		t.tombs.Set(tomb{uint64(r.Stamp.Time), at})
		return
	}
	t.live++
	t.bytes += len(r.Key) + len(r.Row)
}

func (t *table) remove(key []byte) {
	if old, ok := t.rows.remove(key); ok {
		t.forget(old)
	}
}

// forget takes a record that the index has lost out of the rest.
func (t *table) forget(at uint64) {
	e := t.arena.entry(at)
	if e.deleted {
		t.tombs.Delete(tomb{e.time, at})
	} else {
		t.live--
		t.bytes -= len(e.key) + len(e.row)
	}
	t.arena.buried = append(t.arena.buried, at)
}

// trim removes the oldest tombstones until at most n are left; 0 keeps all. It
// notes the newest time of those of each origin.
func (t *table) trim(n int, forgotten map[string]engine.Time) {
	for n > 0 && t.tombs.Len() > n {
		old, _ := t.tombs.PopMin()
		s := t.arena.stamp(old.at)
		forgotten[s.Origin] = max(forgotten[s.Origin], s.Time)
		t.rows.remove(t.arena.key(old.at))
		t.arena.buried = append(t.arena.buried, old.at)
	}
}

// Emptying slabs: when more than one part in deadShare of a table's bytes is
// dead, each commit walks moveFloor bytes of the emptiest slabs, and moveRate
// bytes for each byte it wrote.
const (
	deadShare = 4
	moveFloor = 64 << 10
	moveRate  = 4
)

// seal ends the writing of t for root seq: what died is counted, and the
// emptiest slabs are emptied some way.
func (t *table) seal(seq uint64) {
	a := t.arena
	wrote := a.tail.used - t.start.used
	a.seal()
	for budget := moveFloor + moveRate*wrote; budget > 0 && (a.moving != nil || a.tail.dead*deadShare > a.tail.used); {
		if a.moving == nil {
			id, ok := a.emptiest(seq)
			if !ok {
				break
			}
			if a.tail.dead*deadShare <= a.tail.used {
				break
			}
			a.moving = &moving{slab: id}
		}
		budget = t.move(a.moving, budget)
		if a.moving.offset == a.slab(a.moving.slab).n {
			a.retire(a.moving.slab, seq)
			a.moving = nil
		}
	}
	a.begin()
	t.tail = a.tail
}

// move walks on through a slab and moves the records that the tree still
// refers to. It returns what is left of the budget.
func (t *table) move(m *moving, budget int) int {
	a := t.arena
	s := a.slab(m.slab)
	for m.offset < s.n && budget > 0 {
		at := uint64(m.slab)<<32 | uint64(m.offset)
		e := a.entry(at)
		if have, ok := t.rows.get(e.key); ok && have == at {
			to := a.addBytes(s.data[m.offset : m.offset+e.size])
			t.rows.set(e.key, to)
			if e.deleted {
				t.tombs.Set(tomb{e.time, to})
			}
			s.dead += e.size
			a.tail.dead += e.size
		}
		m.offset += e.size
		budget -= e.size
	}
	return budget
}
