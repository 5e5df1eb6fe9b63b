package store

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// diskTx is the write transaction of a durable store: it works on a copy of the
// root, and gathers what is to be written. Rows and entries go to the batch;
// what is kept in memory too goes to the notes.
type diskTx struct {
	diskReader
	w        *rowWriter
	notes    *pebble.Batch
	val, by  []byte // scratch
	last     *diskTable
	tables   []*diskTable // written
	logs     map[engine.LogID]struct{}
	newest   map[uint32]*run // newest entries appended, by number of the log
	dropped  []uint32        // numbers of logs that are gone
	cuts     []cut           // entries let go
	drops    []keyRange      // to remove, once all else is written
	undo     []keyRange      // to remove if it is given up
	scanning int             // Scans that look at the batch
	adopted  bool            // a stage's rows are on disk already
	inner    bool            // the store's own, after another
}

// newTx starts a transaction. The caller holds the turn.
func (p *Pebble) newTx() *diskTx {
	t := &diskTx{w: p.writer, notes: p.notes}
	t.p, t.err = p, errSpent
	t.read(p.current().write())
	return t
}

func (p *Pebble) current() *diskRoot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cur.root
}

func (t *diskTx) get(key []byte) ([]byte, io.Closer, error) { return t.w.get(key) }

// table returns a table for writing, making it if need be.
func (t *diskTx) table(name engine.TableName) *diskTable {
	if t.last != nil && t.last.name == name {
		return t.last
	}
	n := t.root.table(name)
	switch {
	case n == nil:
		n = &diskTable{name: name, num: t.p.nextTable.Add(1)}
		t.isFresh(n.num)
		t.own(n)
	case n.owner != t.root.seq:
		c := *n
		n = &c
		t.own(n)
	}
	t.last = n
	return n
}

// isFresh notes a table number that no root knows.
func (t *diskTx) isFresh(num uint32) {
	t.w.fresh[num] = true
	t.undo = append(t.undo, tableRanges(num)...)
}

func (t *diskTx) own(n *diskTable) {
	n.owner = t.root.seq
	t.root.setTable(n)
	t.tables = append(t.tables, n)
}

// Get returns the record at key.
func (t *diskTx) Get(table engine.TableName, key []byte) (r engine.Record, ok bool, err error) {
	if err := t.enter(); err != nil {
		return r, false, err
	}
	defer t.leave()
	n := t.root.table(table)
	if n == nil {
		return r, false, nil
	}
	return t.p.getRecord(n, key, t.p.db, t.get)
}

// Scan calls fn for each record as of its start: fn may write.
func (t *diskTx) Scan(table engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	n := t.root.table(table)
	if n == nil {
		return nil
	}
	kr, start := rangeOf(spaceRow, n.num), rowKey(nil, n.num, from)
	layers := []rows{newOwnRows(t.w, kr, start)}
	for _, overlay := range []bool{true, false} {
		if overlay && (!t.w.overlay || t.w.fresh[n.num]) {
			continue
		}
		l, err := newDBRows(t.p.db, kr, start, overlay)
		if err != nil {
			return t.p.rowError(err, table, from)
		}
		layers = append(layers, l)
	}
	t.scanning++
	defer func() { t.scanning-- }()
	return t.p.scan(n, t.p.db, layers, t.gone, fn)
}

// Put writes a record, whatever is there.
func (t *diskTx) Put(r *engine.Record) error {
	_, err := t.put(r, false)
	return err
}

// Merge writes a record if its stamp is above the one at its key.
func (t *diskTx) Merge(r *engine.Record) (engine.Outcome, error) { return t.put(r, true) }

func (t *diskTx) put(r *engine.Record, newer bool) (engine.Outcome, error) {
	if err := t.enter(); err != nil {
		return 0, err
	}
	defer t.leave()
	if err := check(r); err != nil {
		return 0, err
	}
	o, err := t.w.put(t.table(r.Schema.Table), r, newer)
	if err != nil || !o.Applied() {
		return o, err
	}
	return o, t.room()
}

// MayHold reports whether a record of a table can be of an origin.
func (t *diskTx) MayHold(table engine.TableName, origin string) bool {
	return t.p.shapes.mayHold(table, origin)
}

// Remove takes a record out, leaving no tombstone.
func (t *diskTx) Remove(table engine.TableName, key []byte) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	if t.root.table(table) == nil {
		return nil
	}
	if err := t.w.remove(t.table(table), key); err != nil {
		return err
	}
	return t.room()
}

// room keeps what is in memory within bounds.
func (t *diskTx) room() error {
	if t.w.batch.Len() < t.p.opts.TxBytes {
		return nil
	}
	return t.spill()
}

// PutSchema records a schema of a log.
func (t *diskTx) PutSchema(log engine.LogID, s *engine.Schema) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	have, err := t.root.checkSchema(log, s)
	if err != nil {
		return err
	}
	if have == nil {
		n := t.w.shape.number(t.p.shapes, log, s)
		have = t.p.shapes.at(n).schema
		t.root.schemas.Set(item[schemaKey, *engine.Schema]{schemaKey{log, s.ID}, have})
		_ = t.notes.Set(schemaIDKey(log, s.ID), appendUvarints(nil, uint64(n)), nil)
	}
	if was := t.root.newestSchema(s.Table); was.log == log && was.schema == have {
		return nil
	}
	if t.root.note(shape{log, have}) {
		n := t.w.shape.number(t.p.shapes, log, have)
		_ = t.notes.Set(newestKey(s.Table), appendUvarints(nil, uint64(n)), nil)
	}
	return nil
}

// SetTruncated records the newest truncate of a table by s.Origin.
func (t *diskTx) SetTruncated(table engine.TableName, s engine.Stamp) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	t.root.truncs.Set(item[truncKey, engine.Stamp]{truncKey{table, s.Origin}, s})
	return t.notes.Set(truncatedKey(table, s.Origin), appendStamp(nil, s), nil)
}

// Adopt makes a staged table the state's. Its rows stay where they are.
func (t *diskTx) Adopt(s engine.Stage) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	st, ok := s.(*diskStage)
	if !ok || st.p != t.p {
		return fmt.Errorf("table %s: the stage is of another store", s.Table())
	}
	n, err := st.spend()
	if err != nil {
		return err
	}
	t.adopted = true
	t.isFresh(n.num)
	t.forgetTable(n.name)
	t.own(n)
	t.last = n
	return nil
}

// forgetTable takes a table out, with its rows.
func (t *diskTx) forgetTable(name engine.TableName) {
	old, ok := t.root.tables.Delete(item[engine.TableName, *diskTable]{key: name})
	if !ok {
		return
	}
	t.drops = append(t.drops, tableRanges(old.val.num)...)
	for i, n := range t.tables {
		if n == old.val {
			t.tables = append(t.tables[:i], t.tables[i+1:]...)
			break
		}
	}
	t.last = nil
}

// DropTable forgets a table.
func (t *diskTx) DropTable(name engine.TableName) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	t.forgetTable(name)
	_ = t.notes.Delete((&diskTable{name: name}).key(), nil)
	_ = t.notes.Delete(newestKey(name), nil)
	for _, origin := range t.root.dropTable(name) {
		_ = t.notes.Delete(truncatedKey(name, origin), nil)
	}
	return nil
}

// SetMeta records a value beside the data.
func (t *diskTx) SetMeta(key string, value []byte) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	if value == nil {
		t.root.meta.Delete(item[string, []byte]{key: key})
		return t.notes.Delete(userKey(key), nil)
	}
	t.root.meta.Set(item[string, []byte]{key, append([]byte{}, value...)})
	return t.notes.Set(userKey(key), value, nil)
}

// SetCursor sets a cursor of the vector.
func (t *diskTx) SetCursor(c engine.Cursor) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	t.root.setCursor(c)
	return t.notes.Set(cursorKey(c.CursorKey), cursorValue(c), nil)
}

func appendUvarints(dst []byte, vs ...uint64) []byte {
	for _, v := range vs {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}

// Rollback gives everything up.
func (t *diskTx) Rollback() {
	if t.over.Load() {
		return
	}
	t.abandon()
	t.end()
}

// Close is Rollback.
func (t *diskTx) Close() { t.Rollback() }

// end gives the turn back.
func (t *diskTx) end() {
	if t.over.Swap(true) {
		return
	}
	t.w.reset()
	t.notes.Reset()
	t.last, t.tables = nil, nil
	if !t.inner {
		t.p.turn <- struct{}{}
	}
}
