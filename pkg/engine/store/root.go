package store

import (
	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// root is everything the store holds as of a commit. It is immutable once
// published; a transaction works on a copy.
type root struct {
	*catalog
	seq    uint64
	tables *btree.BTreeG[item[engine.TableName, *table]]
	logs   *btree.BTreeG[item[engine.LogID, *journal]]
	places *places // nil until there is one
}

func newRoot() *root {
	return &root{
		catalog: newCatalog(),
		tables:  byKey[engine.TableName, *table](engine.TableName.Compare),
		logs:    byKey[engine.LogID, *journal](compareLogs),
	}
}

func (r *root) write() *root {
	return &root{catalog: r.catalog.copy(), seq: r.seq + 1, tables: r.tables.Copy(), logs: r.logs.Copy(), places: r.places.copy()}
}

func (r *root) table(name engine.TableName) *table {
	t, _ := r.tables.Get(item[engine.TableName, *table]{key: name})
	return t.val
}

func (r *root) log(id engine.LogID) *journal {
	j, _ := r.logs.Get(item[engine.LogID, *journal]{key: id})
	return j.val
}

func (r *root) setTable(t *table) { r.tables.Set(item[engine.TableName, *table]{t.name, t}) }

func (r *root) setLog(j *journal) { r.logs.Set(item[engine.LogID, *journal]{j.id, j}) }

// reader reads a root: it is what views and transactions have in common.
type reader struct {
	lookup
	root *root
}

func (v *reader) read(r *root) { v.root, v.catalog = r, r.catalog }

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

// LogsOf returns the logs held of one origin.
func (v *reader) LogsOf(origin string) (infos []engine.LogInfo) {
	if v.over.Load() {
		return nil
	}
	v.root.logs.Ascend(item[engine.LogID, *journal]{key: engine.LogID{Origin: origin}}, func(i item[engine.LogID, *journal]) bool {
		if i.key.Origin != origin {
			return false
		}
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

// Places calls fn for each key that has a place in a log after one.
func (v *reader) Places(log engine.LogID, after uint64, fn func(place uint64, table engine.TableName, key []byte) bool) error {
	if err := v.failed(); err != nil {
		return err
	}
	if v.root.log(log) == nil {
		return unknownLog(log)
	}
	v.root.places.scan(log, after, fn)
	return nil
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
