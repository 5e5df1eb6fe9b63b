package store

import (
	"cmp"
	"strings"
	"sync/atomic"

	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// root is everything the store holds as of a commit. It is immutable once
// published; a transaction works on a copy.
type root struct {
	seq     uint64
	tables  *btree.BTreeG[item[engine.TableName, *table]]
	logs    *btree.BTreeG[item[engine.LogID, *journal]]
	schemas *btree.BTreeG[item[schemaKey, *engine.Schema]]
	newest  *btree.BTreeG[item[engine.TableName, shape]] // schema of each table
	truncs  *btree.BTreeG[item[truncKey, engine.Stamp]]
	cursors *btree.BTreeG[engine.Cursor]
	meta    *btree.BTreeG[item[string, []byte]]
	vector  atomic.Pointer[engine.Cursors] // cursors as a map, once asked for
}

// item is what a tree holds at a key.
type item[K, V any] struct {
	key K
	val V
}

type schemaKey struct {
	log engine.LogID
	id  uint32
}

type truncKey struct {
	table  engine.TableName
	origin string
}

// byKey returns a tree of items.
func byKey[K, V any](compare func(a, b K) int) *btree.BTreeG[item[K, V]] {
	return newTree(func(a, b item[K, V]) bool { return compare(a.key, b.key) < 0 })
}

func newRoot() *root {
	return &root{
		tables: byKey[engine.TableName, *table](compareTables),
		logs:   byKey[engine.LogID, *journal](compareLogs),
		schemas: byKey[schemaKey, *engine.Schema](func(a, b schemaKey) int {
			return cmp.Or(compareLogs(a.log, b.log), cmp.Compare(a.id, b.id))
		}),
		newest: byKey[engine.TableName, shape](compareTables),
		truncs: byKey[truncKey, engine.Stamp](func(a, b truncKey) int {
			return cmp.Or(compareTables(a.table, b.table), cmp.Compare(a.origin, b.origin))
		}),
		meta: byKey[string, []byte](cmp.Compare[string]),
		cursors: newTree(func(a, b engine.Cursor) bool {
			return cmp.Or(compareLogs(a.Log, b.Log), cmp.Compare(a.Scope, b.Scope)) < 0
		}),
	}
}

func (r *root) write() *root {
	return &root{
		seq: r.seq + 1, tables: r.tables.Copy(), logs: r.logs.Copy(), schemas: r.schemas.Copy(),
		newest: r.newest.Copy(), truncs: r.truncs.Copy(), cursors: r.cursors.Copy(), meta: r.meta.Copy(),
	}
}

func (r *root) table(name engine.TableName) *table {
	t, _ := r.tables.Get(item[engine.TableName, *table]{key: name})
	return t.val
}

func (r *root) log(id engine.LogID) *journal {
	j, _ := r.logs.Get(item[engine.LogID, *journal]{key: id})
	return j.val
}

func (r *root) schema(log engine.LogID, id uint32) *engine.Schema {
	s, _ := r.schemas.Get(item[schemaKey, *engine.Schema]{key: schemaKey{log, id}})
	return s.val
}

func (r *root) newestSchema(table engine.TableName) shape {
	s, _ := r.newest.Get(item[engine.TableName, shape]{key: table})
	return s.val
}

func (r *root) setTable(t *table) { r.tables.Set(item[engine.TableName, *table]{t.name, t}) }

func (r *root) setLog(j *journal) { r.logs.Set(item[engine.LogID, *journal]{j.id, j}) }

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
		ok = t.get(key, &r)
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
	v.root.tables.Scan(func(i item[engine.TableName, *table]) bool {
		t, s := i.val, v.root.newestSchema(i.key)
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
	t, _ := v.root.truncs.Get(item[truncKey, engine.Stamp]{key: truncKey{table, origin}})
	return t.val
}

// Schema returns a schema of a log, or nil.
func (v *reader) Schema(log engine.LogID, id uint32) *engine.Schema {
	if v.over.Load() {
		return nil
	}
	return v.root.schema(log, id)
}

// Schemas returns the schemas of a log, by ID.
func (v *reader) Schemas(log engine.LogID) (all []*engine.Schema) {
	if v.over.Load() {
		return nil
	}
	v.root.schemas.Ascend(item[schemaKey, *engine.Schema]{key: schemaKey{log: log}}, func(s item[schemaKey, *engine.Schema]) bool {
		if s.key.log != log {
			return false
		}
		all = append(all, s.val)
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
	v.root.logs.Scan(func(i item[engine.LogID, *journal]) bool {
		infos = append(infos, i.val.info())
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

// Meta returns what was recorded under a key.
func (v *reader) Meta(key string) []byte {
	if v.over.Load() {
		return nil
	}
	m, _ := v.root.meta.Get(item[string, []byte]{key: key})
	return m.val
}

// ScanMeta calls fn for each key with a prefix.
func (v *reader) ScanMeta(prefix string, fn func(key string, value []byte) bool) {
	if v.over.Load() {
		return
	}
	v.root.meta.Ascend(item[string, []byte]{key: prefix}, func(m item[string, []byte]) bool {
		return strings.HasPrefix(m.key, prefix) && fn(m.key, m.val)
	})
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
