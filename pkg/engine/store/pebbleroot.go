package store

import (
	"fmt"
	"maps"
	"math"
	"reflect"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// diskRoot is what a durable store holds as of a commit, without rows and
// entries. It is immutable once published; a transaction works on a copy.
type diskRoot struct {
	*catalog
	seq     uint64
	tables  *btree.BTreeG[item[engine.TableName, *diskTable]]
	logs    *btree.BTreeG[item[engine.LogID, *diskLog]]
	journal int // bytes of all logs
}

// diskTable is one table as of a root: immutable once that is published.
type diskTable struct {
	name  engine.TableName
	num   uint32 // its rows are under; another when it is adopted
	live  int    // rows that are not tombstones
	tombs int
	bytes int // of live rows: keys and rows
	// values numbers the next row that is kept in pieces.
	values uint64
	owner  uint64 // seq of the root it is being written for
}

// diskLog is one log as of a root: immutable once that is published. Its
// entries are numbered from first up to next.
type diskLog struct {
	front
	num         uint32 // its entries are under; another when it is reset
	first, next uint64
	oldest      engine.Position // before the first
	bytes       int
	changes     int
	owner       uint64
}

func newDiskRoot() *diskRoot {
	return &diskRoot{
		catalog: newCatalog(),
		tables:  byKey[engine.TableName, *diskTable](engine.TableName.Compare),
		logs:    byKey[engine.LogID, *diskLog](compareLogs),
	}
}

func (r *diskRoot) write() *diskRoot {
	return &diskRoot{catalog: r.catalog.copy(), seq: r.seq + 1, tables: r.tables.Copy(), logs: r.logs.Copy(), journal: r.journal}
}

func (r *diskRoot) table(name engine.TableName) *diskTable {
	t, _ := r.tables.Get(item[engine.TableName, *diskTable]{key: name})
	return t.val
}

func (r *diskRoot) log(id engine.LogID) *diskLog {
	l, _ := r.logs.Get(item[engine.LogID, *diskLog]{key: id})
	return l.val
}

func (r *diskRoot) setTable(t *diskTable) {
	r.tables.Set(item[engine.TableName, *diskTable]{t.name, t})
}
func (r *diskRoot) setLog(l *diskLog) { r.logs.Set(item[engine.LogID, *diskLog]{l.id, l}) }

func (l *diskLog) info() engine.LogInfo {
	return engine.LogInfo{ID: l.id, Oldest: l.oldestHeld(), Head: l.head, Time: l.time, Changes: l.changes, Bytes: l.bytes, CompleteFrom: l.complete}
}

func (l *diskLog) oldestHeld() engine.Position {
	if l.first == l.next {
		return l.head
	}
	return l.oldest
}

// comparatorName returns the name of a comparator that configuration can name,
// or "".
func comparatorName(c engine.Comparator) string {
	for name, known := range engine.Comparators {
		if reflect.ValueOf(known).Pointer() == reflect.ValueOf(c).Pointer() {
			return name
		}
	}
	return ""
}

// What of a root is on disk.

func (t *diskTable) key() []byte { return appendTable(metaKey(metaTable), t.name) }

func (t *diskTable) value(dst []byte) []byte {
	return appendUvarints(dst, uint64(t.num), uint64(t.live), uint64(t.tombs), uint64(t.bytes), t.values)
}

func (l *diskLog) key() []byte { return appendLog(metaKey(metaLog), l.id) }

func (l *diskLog) value(dst []byte) []byte {
	dst = appendUvarints(dst, uint64(l.num), l.first, l.next, uint64(l.bytes), uint64(l.changes), uint64(l.time), uint64(l.complete))
	dst = appendStr(appendStr(dst, l.head), l.oldest)
	return appendStr(dst, comparatorName(l.compare))
}

func cursorKey(k engine.CursorKey) []byte {
	return append(appendLog(metaKey(metaCursor), k.Log), k.Scope...)
}

func cursorValue(c engine.Cursor) []byte {
	return append(appendUvarints(nil, uint64(c.Time)), c.Position...)
}

func userKey(k string) []byte { return append(metaKey(metaUser), k...) }

func newestKey(t engine.TableName) []byte { return appendTable(metaKey(metaNewest), t) }

func schemaIDKey(log engine.LogID, id uint32) []byte {
	return appendUvarints(appendLog(metaKey(metaSchema), log), uint64(id))
}

func shapeKey(n uint32) []byte {
	return appendUvarints(metaKey(metaShape), uint64(n))
}

func truncatedKey(t engine.TableName, origin string) []byte {
	return append(appendTable(metaKey(metaTruncated), t), origin...)
}

// load reads what is kept in memory, and takes out what a crash left: a commit
// that was decided is folded in, all else that no commit knows is removed.
func (p *Pebble) load() (*diskRoot, error) {
	l := loader{p: p, root: newDiskRoot(), shapes: map[uint32]shape{}}
	if err := l.read(); err != nil {
		return nil, p.readError(err, "what the store keeps in memory")
	}
	if l.folding {
		if err := p.foldIn(l.drops); err != nil {
			return nil, p.readError(err, "a commit that a crash cut short")
		}
	}
	if err := l.sweep(); err != nil {
		return nil, p.readError(err, "the search for what a crash left")
	}
	if err := p.fs.refused(); err != nil {
		return nil, err
	}
	return l.root, nil
}

// loader reads a root.
type loader struct {
	p       *Pebble
	root    *diskRoot
	shapes  map[uint32]shape
	folding bool
	drops   []keyRange
	later   []func() error // needs the shapes
	tables  map[uint32]*diskTable
	logs    map[uint32]*diskLog
}

func (l *loader) read() (err error) {
	it, err := l.p.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceMeta}, UpperBound: []byte{spaceMeta + 1}})
	if err != nil {
		return err
	}
	defer func() {
		if e := it.Close(); err == nil {
			err = e
		}
	}()
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := l.item(it.Key(), append([]byte(nil), v...)); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	for n := range uint32(len(l.shapes)) {
		s, ok := l.shapes[n]
		if !ok {
			return fmt.Errorf("%w: shape %d is missing", errDamaged, n)
		}
		l.p.shapes.put(s)
	}
	l.p.shapesOut = len(l.shapes)
	for _, fn := range l.later {
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) item(key, v []byte) error {
	if len(key) < 2 {
		return fmt.Errorf("%w: key %q", errDamaged, key)
	}
	k, d := decoder{b: key[2:]}, decoder{b: v}
	damaged := func() error { return fmt.Errorf("%w: key %q", errDamaged, key) }
	r := l.root
	switch key[1] {
	case metaShape:
		n := uint32(k.uvarint())
		l.shapes[n] = shape{d.log(), d.schema()}
	case metaSchema:
		log, id, n := k.log(), uint32(k.uvarint()), d.uvarint()
		l.later = append(l.later, func() error {
			sh := l.p.shapes.find(n)
			if sh == nil || sh.schema.ID != id {
				return damaged()
			}
			r.schemas.Set(item[schemaKey, *engine.Schema]{schemaKey{log, id}, sh.schema})
			return nil
		})
	case metaNewest:
		t, n := k.table(), d.uvarint()
		l.later = append(l.later, func() error {
			sh := l.p.shapes.find(n)
			if sh == nil {
				return damaged()
			}
			r.newest.Set(item[engine.TableName, shape]{t, *sh})
			return nil
		})
	case metaTable:
		t := &diskTable{name: k.table(), num: uint32(d.uvarint()), live: int(d.uvarint()), tombs: int(d.uvarint()), bytes: int(d.uvarint())}
		if len(d.b) > 0 { // none in a store of format 1
			t.values = d.uvarint()
		}
		r.setTable(t)
	case metaLog:
		j := &diskLog{front: front{id: k.log()}, num: uint32(d.uvarint()), first: d.uvarint(), next: d.uvarint(), bytes: int(d.uvarint()), changes: int(d.uvarint())}
		j.time, j.complete = engine.Time(d.uvarint()), engine.Time(d.uvarint())
		j.head, j.oldest = engine.Position(d.str()), engine.Position(d.str())
		j.compare = engine.Comparators[d.str()]
		r.setLog(j)
		r.journal += j.bytes
	case metaCursor:
		c := engine.Cursor{CursorKey: engine.CursorKey{Log: k.log(), Scope: engine.Scope(k.b)}, Time: engine.Time(d.uvarint()), Position: engine.Position(d.b)}
		k.b, d.b = nil, nil
		r.setCursor(c)
	case metaTruncated:
		t := truncKey{k.table(), string(k.b)}
		k.b = nil
		r.truncs.Set(item[truncKey, engine.Stamp]{t, d.stamp()})
	case metaUser:
		r.meta.Set(item[string, []byte]{string(k.b), v})
		return nil
	case metaFold:
		l.folding = true
		for n := d.uvarint(); n > 0 && !d.bad; n-- {
			l.drops = append(l.drops, keyRange{d.bytes(), d.bytes()})
		}
	default:
		return fmt.Errorf("%w: key %q of a kind that is not known", errDamaged, key)
	}
	if !k.done() || !d.done() {
		return damaged()
	}
	return nil
}

// sweep removes what no commit knows: stages, entries past the end of their
// log, the beginnings of transactions that did not fit in memory.
func (l *loader) sweep() error {
	l.tables, l.logs = map[uint32]*diskTable{}, map[uint32]*diskLog{}
	l.root.tables.Scan(func(i item[engine.TableName, *diskTable]) bool {
		l.tables[i.val.num] = i.val
		return true
	})
	l.root.logs.Scan(func(i item[engine.LogID, *diskLog]) bool {
		l.logs[i.val.num] = i.val
		return true
	})
	for n := range maps.Keys(l.tables) {
		l.p.nextTable.Store(max(l.p.nextTable.Load(), n))
	}
	for n := range maps.Keys(l.logs) {
		l.p.nextLog = max(l.p.nextLog, n)
	}
	b := l.p.newBatch()
	defer func() { _ = b.Close() }()
	drop := func(r keyRange) error { return b.DeleteRange(r.from, r.to, nil) }
	it, err := l.p.db.NewIter(nil)
	if err != nil {
		return err
	}
	for _, space := range []byte{spaceRow, spaceRowIn, spaceTomb, spaceBlock, spaceBlockIn, spaceIndex} {
		for ok := it.SeekGE([]byte{space}); ok && it.Key()[0] == space; {
			d := decoder{b: it.Key()[1:]}
			n := d.be32()
			if d.bad {
				_ = it.Close()
				return fmt.Errorf("%w: key %q", errDamaged, it.Key())
			}
			r := rangeOf(space, n)
			known, next := false, uint64(math.MaxUint64)
			switch t, j := l.tables[n], l.logs[n]; space {
			case spaceRow, spaceTomb:
				known = t != nil
			case spaceRowIn:
				if known = t != nil; known {
					next = t.values
				}
			default:
				if known = j != nil; known {
					next = j.next
				}
			}
			switch {
			case !known:
				err = drop(r)
			case next < math.MaxUint64:
				if r.from = blockKey(nil, space, n, next); it.SeekGE(r.from) && string(it.Key()) < string(r.to) {
					err = drop(r)
				}
			}
			if err != nil {
				_ = it.Close()
				return err
			}
			ok = it.SeekGE(r.to)
		}
	}
	if it.SeekGE([]byte{spaceOverlay}) && it.Key()[0] == spaceOverlay {
		err = drop(keyRange{[]byte{spaceOverlay}, []byte{spaceOverlay + 1}})
	}
	if e := it.Close(); err == nil {
		err = e
	}
	if err != nil || b.Empty() {
		return err
	}
	return l.p.apply(b, pebble.Sync)
}
