package store

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// catalog is what a store holds beside rows and entries, as of a commit. It is
// small, and every store keeps it in memory. It is immutable once published; a
// transaction works on a copy.
type catalog struct {
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

func newTree[T any](less func(a, b T) bool) *btree.BTreeG[T] {
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

func compareLogs(a, b engine.LogID) int {
	return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
}

func newCatalog() *catalog {
	return &catalog{
		schemas: byKey[schemaKey, *engine.Schema](func(a, b schemaKey) int {
			return cmp.Or(compareLogs(a.log, b.log), cmp.Compare(a.id, b.id))
		}),
		newest: byKey[engine.TableName, shape](engine.TableName.Compare),
		truncs: byKey[truncKey, engine.Stamp](func(a, b truncKey) int {
			return cmp.Or(a.table.Compare(b.table), cmp.Compare(a.origin, b.origin))
		}),
		meta: byKey[string, []byte](cmp.Compare[string]),
		cursors: newTree(func(a, b engine.Cursor) bool {
			return cmp.Or(compareLogs(a.Log, b.Log), cmp.Compare(a.Scope, b.Scope)) < 0
		}),
	}
}

func (c *catalog) copy() *catalog {
	return &catalog{
		schemas: c.schemas.Copy(), newest: c.newest.Copy(), truncs: c.truncs.Copy(), cursors: c.cursors.Copy(), meta: c.meta.Copy(),
	}
}

func (c *catalog) schema(log engine.LogID, id uint32) *engine.Schema {
	s, _ := c.schemas.Get(item[schemaKey, *engine.Schema]{key: schemaKey{log, id}})
	return s.val
}

func (c *catalog) newestSchema(table engine.TableName) shape {
	s, _ := c.newest.Get(item[engine.TableName, shape]{key: table})
	return s.val
}

// checkSchema returns the schema held under the ID of s, or nil, and refuses
// another shape.
func (c *catalog) checkSchema(log engine.LogID, s *engine.Schema) (*engine.Schema, error) {
	have := c.schema(log, s.ID)
	if have != nil && have != s && have.Fingerprint() != s.Fingerprint() {
		return nil, fmt.Errorf("log %s: schema %d is %s already, in another shape than %s now", log, s.ID, have.Table, s.Table)
	}
	return have, nil
}

// note keeps s as its table's newest schema, unless it is older than the one
// that is. It reports whether it was kept.
func (c *catalog) note(s shape) bool {
	have := c.newestSchema(s.schema.Table)
	if have.schema != nil && (have == s || have.log.Origin == s.log.Origin &&
		cmp.Or(cmp.Compare(have.log.Epoch, s.log.Epoch), cmp.Compare(have.schema.ID, s.schema.ID)) > 0) {
		return false
	}
	c.newest.Set(item[engine.TableName, shape]{s.schema.Table, s})
	return true
}

// dropTable forgets a table's newest schema and truncates, and returns of whom
// the truncates were.
func (c *catalog) dropTable(name engine.TableName) (origins []string) {
	c.newest.Delete(item[engine.TableName, shape]{key: name})
	c.truncs.Ascend(item[truncKey, engine.Stamp]{key: truncKey{table: name}}, func(i item[truncKey, engine.Stamp]) bool {
		if i.key.table != name {
			return false
		}
		origins = append(origins, i.key.origin)
		return true
	})
	for _, o := range origins {
		c.truncs.Delete(item[truncKey, engine.Stamp]{key: truncKey{name, o}})
	}
	return origins
}

// dropCursors forgets a log's cursors, and returns them.
func (c *catalog) dropCursors(log engine.LogID) (gone []engine.Cursor) {
	c.cursors.Ascend(engine.Cursor{CursorKey: engine.CursorKey{Log: log}}, func(i engine.Cursor) bool {
		if i.Log != log {
			return false
		}
		gone = append(gone, i)
		return true
	})
	for _, i := range gone {
		c.cursors.Delete(i)
	}
	c.vector.Store(nil)
	return gone
}

func (c *catalog) setCursor(n engine.Cursor) {
	c.cursors.Set(n)
	c.vector.Store(nil)
}

// lookup reads a catalog. Once over is set it finds nothing, and err says why.
type lookup struct {
	catalog *catalog
	over    atomic.Bool
	err     error
}

func (v *lookup) failed() error {
	if v.over.Load() {
		return v.err
	}
	return nil
}

// Truncated returns the newest truncate of a table by an origin.
func (v *lookup) Truncated(table engine.TableName, origin string) engine.Stamp {
	if v.over.Load() || v.catalog.truncs.Len() == 0 {
		return engine.Stamp{}
	}
	t, _ := v.catalog.truncs.Get(item[truncKey, engine.Stamp]{key: truncKey{table, origin}})
	return t.val
}

// Schema returns a schema of a log, or nil.
func (v *lookup) Schema(log engine.LogID, id uint32) *engine.Schema {
	if v.over.Load() {
		return nil
	}
	return v.catalog.schema(log, id)
}

// Schemas returns the schemas of a log, by ID.
func (v *lookup) Schemas(log engine.LogID) (all []*engine.Schema) {
	if v.over.Load() {
		return nil
	}
	v.catalog.schemas.Ascend(item[schemaKey, *engine.Schema]{key: schemaKey{log: log}}, func(s item[schemaKey, *engine.Schema]) bool {
		if s.key.log != log {
			return false
		}
		all = append(all, s.val)
		return true
	})
	return all
}

// SchemasOf returns the schemas of a table, of all logs, by ID.
func (v *lookup) SchemasOf(table engine.TableName) map[engine.LogID][]*engine.Schema {
	all := map[engine.LogID][]*engine.Schema{}
	if v.over.Load() {
		return all
	}
	v.catalog.schemas.Scan(func(s item[schemaKey, *engine.Schema]) bool {
		if s.val.Table == table {
			all[s.key.log] = append(all[s.key.log], s.val)
		}
		return true
	})
	return all
}

// Cursor returns the cursor at a key.
func (v *lookup) Cursor(key engine.CursorKey) (engine.Cursor, bool) {
	if v.over.Load() {
		return engine.Cursor{}, false
	}
	return v.catalog.cursors.Get(engine.Cursor{CursorKey: key})
}

// Cursors returns the cursor vector.
func (v *lookup) Cursors() engine.Cursors {
	if v.over.Load() {
		return nil
	}
	if m := v.catalog.vector.Load(); m != nil {
		return *m
	}
	m := make(engine.Cursors, v.catalog.cursors.Len())
	v.catalog.cursors.Scan(func(c engine.Cursor) bool {
		m[c.CursorKey] = c
		return true
	})
	v.catalog.vector.Store(&m)
	return m
}

// Meta returns what was recorded under a key.
func (v *lookup) Meta(key string) []byte {
	if v.over.Load() {
		return nil
	}
	m, _ := v.catalog.meta.Get(item[string, []byte]{key: key})
	return m.val
}

// ScanMeta calls fn for each key with a prefix.
func (v *lookup) ScanMeta(prefix string, fn func(key string, value []byte) bool) {
	if v.over.Load() {
		return
	}
	v.catalog.meta.Ascend(item[string, []byte]{key: prefix}, func(m item[string, []byte]) bool {
		return strings.HasPrefix(m.key, prefix) && fn(m.key, m.val)
	})
}
