package store

import (
	"cmp"
	"sync/atomic"

	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// root is everything the store holds as of a commit. It is immutable once
// published; a transaction works on a copy.
type root struct {
	seq     uint64
	tables  *btree.BTreeG[*table]
	logs    *btree.BTreeG[*journal]
	schemas *btree.BTreeG[shape] // by log and ID
	newest  *btree.BTreeG[shape] // by table
	truncs  *btree.BTreeG[truncate]
	cursors *btree.BTreeG[engine.Cursor]
	vector  atomic.Pointer[engine.Cursors] // cursors as a map, once asked for
}

// truncate is the newest truncate of a table by one origin.
type truncate struct {
	table engine.TableName
	stamp engine.Stamp
}

func newRoot() *root {
	return &root{
		tables: newTree(func(a, b *table) bool { return compareTables(a.name, b.name) < 0 }),
		logs:   newTree(func(a, b *journal) bool { return compareLogs(a.id, b.id) < 0 }),
		schemas: newTree(func(a, b shape) bool {
			return cmp.Or(compareLogs(a.log, b.log), cmp.Compare(a.schema.ID, b.schema.ID)) < 0
		}),
		newest: newTree(func(a, b shape) bool { return compareTables(a.schema.Table, b.schema.Table) < 0 }),
		truncs: newTree(func(a, b truncate) bool {
			return cmp.Or(compareTables(a.table, b.table), cmp.Compare(a.stamp.Origin, b.stamp.Origin)) < 0
		}),
		cursors: newTree(func(a, b engine.Cursor) bool {
			return cmp.Or(compareLogs(a.Log, b.Log), cmp.Compare(a.Scope, b.Scope)) < 0
		}),
	}
}

func (r *root) write() *root {
	return &root{
		seq: r.seq + 1, tables: r.tables.Copy(), logs: r.logs.Copy(), schemas: r.schemas.Copy(),
		newest: r.newest.Copy(), truncs: r.truncs.Copy(), cursors: r.cursors.Copy(),
	}
}

func (r *root) table(name engine.TableName) *table {
	t, _ := r.tables.Get(&table{name: name})
	return t
}

func (r *root) log(id engine.LogID) *journal {
	j, _ := r.logs.Get(&journal{id: id})
	return j
}

// reader reads a root: it is what views and transactions have in common. err
// is what reading gives once over is set.
type reader struct {
	root *root
	over atomic.Bool
	err  error
}

func (v *reader) failed() error {
	if v.over.Load() {
		return v.err
	}
	return nil
}

// Get returns the record at key.
func (v *reader) Get(table engine.TableName, key []byte) (r engine.Record, ok bool, err error) {
	if err = v.failed(); err != nil {
		return r, false, err
	}
	if t := v.root.table(table); t != nil {
		ok = t.get(key, nil, &r)
	}
	return r, ok, nil
}

// Scan calls fn for each record from a key on.
func (v *reader) Scan(table engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	if err := v.failed(); err != nil {
		return err
	}
	if t := v.root.table(table); t != nil {
		t.scan(from, fn)
	}
	return nil
}

// Tables returns the tables of the state.
func (v *reader) Tables() []engine.TableInfo {
	if v.over.Load() {
		return nil
	}
	infos := make([]engine.TableInfo, 0, v.root.tables.Len())
	v.root.tables.Scan(func(t *table) bool {
		s, _ := v.root.newest.Get(shape{schema: &engine.Schema{Table: t.name}})
		infos = append(infos, engine.TableInfo{
			Table: t.name, Schema: s.schema, Log: s.log, Rows: t.live, Tombstones: t.tombs.Len(), Bytes: t.bytes,
		})
		return true
	})
	return infos
}

// Truncated returns the newest truncate of a table by an origin.
func (v *reader) Truncated(table engine.TableName, origin string) engine.Stamp {
	if v.over.Load() || v.root.truncs.Len() == 0 {
		return engine.Stamp{}
	}
	t, _ := v.root.truncs.Get(truncate{table, engine.Stamp{Origin: origin}})
	return t.stamp
}

// Schema returns a schema of a log, or nil.
func (v *reader) Schema(log engine.LogID, id uint32) *engine.Schema {
	if v.over.Load() {
		return nil
	}
	s, _ := v.root.schemas.Get(shape{log, &engine.Schema{ID: id}})
	return s.schema
}

// Schemas returns the schemas of a log, by ID.
func (v *reader) Schemas(log engine.LogID) (all []*engine.Schema) {
	if v.over.Load() {
		return nil
	}
	v.root.schemas.Ascend(shape{log, &engine.Schema{}}, func(s shape) bool {
		if s.log != log {
			return false
		}
		all = append(all, s.schema)
		return true
	})
	return all
}

// Cursor returns the cursor at a key.
func (v *reader) Cursor(key engine.CursorKey) (engine.Cursor, bool) {
	if v.over.Load() {
		return engine.Cursor{}, false
	}
	return v.root.cursors.Get(engine.Cursor{CursorKey: key})
}

// Cursors returns the cursor vector.
func (v *reader) Cursors() engine.Cursors {
	if v.over.Load() {
		return nil
	}
	if m := v.root.vector.Load(); m != nil {
		return *m
	}
	m := make(engine.Cursors, v.root.cursors.Len())
	v.root.cursors.Scan(func(c engine.Cursor) bool {
		m[c.CursorKey] = c
		return true
	})
	v.root.vector.Store(&m)
	return m
}

// Logs returns the logs held.
func (v *reader) Logs() []engine.LogInfo {
	if v.over.Load() {
		return nil
	}
	infos := make([]engine.LogInfo, 0, v.root.logs.Len())
	v.root.logs.Scan(func(j *journal) bool {
		infos = append(infos, j.info())
		return true
	})
	return infos
}

// Log returns what is held of a log.
func (v *reader) Log(log engine.LogID) (engine.LogInfo, bool) {
	if v.over.Load() {
		return engine.LogInfo{}, false
	}
	if j := v.root.log(log); j != nil {
		return j.info(), true
	}
	return engine.LogInfo{}, false
}

// ReadLog returns blocks that follow a position.
func (v *reader) ReadLog(log engine.LogID, after engine.Position, maxBytes int) ([]*engine.Block, error) {
	return v.ReadPart(log, after, 0, maxBytes)
}

// ReadPart returns blocks from a part of the transaction that follows a
// position on.
func (v *reader) ReadPart(log engine.LogID, after engine.Position, part uint32, maxBytes int) ([]*engine.Block, error) {
	if err := v.failed(); err != nil {
		return nil, err
	}
	j := v.root.log(log)
	if j == nil {
		return nil, unknownLog(log)
	}
	return j.read(after, part, maxBytes)
}

// view is a root that is kept while it is looked at.
type view struct {
	reader
	m *Memory
}

// Close lets go of the view.
func (v *view) Close() {
	if !v.over.Swap(true) {
		v.m.leave(v.root.seq)
	}
}
