package store

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

var errSpent = errors.New("the store transaction has ended")

// tx is the write transaction: it works on a copy of the root.
type tx struct {
	reader
	m       *Memory
	last    *table   // the table written last
	tables  []*table // those written
	logs    map[engine.LogID]struct{}
	dropped []logSize // logs as the last root had them, where they are another now
}

// table returns a table for writing, making it if need be.
func (t *tx) table(name engine.TableName) *table {
	if t.last != nil && t.last.name == name {
		return t.last
	}
	old := t.root.table(name)
	switch {
	case old == nil:
		old = newTable(name, t.m.shapes)
		old.owner = t.root.seq
		t.own(old)
	case old.owner != t.root.seq:
		old = old.write(t.root.seq)
		t.own(old)
	}
	t.last = old
	return old
}

func (t *tx) own(n *table) {
	t.root.setTable(n)
	t.tables = append(t.tables, n)
}

// Scan calls fn for each record as of its start: fn may write.
func (t *tx) Scan(name engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	if err := t.failed(); err != nil {
		return err
	}
	if n := t.root.table(name); n != nil {
		then := &table{arena: n.arena, rows: n.rows}
		if n.owner == t.root.seq {
			then.rows = n.rows.freeze()
		}
		then.scan(from, fn)
	}
	return nil
}

// PutSchema records a schema of a log.
func (t *tx) PutSchema(log engine.LogID, s *engine.Schema) error {
	if err := t.failed(); err != nil {
		return err
	}
	have, err := t.root.checkSchema(log, s)
	if err != nil {
		return err
	}
	if have == nil {
		have = t.m.shapes.at(t.m.lastShape.number(t.m.shapes, log, s)).schema
		t.root.schemas.Set(item[schemaKey, *engine.Schema]{schemaKey{log, s.ID}, have})
	}
	t.root.note(shape{log, have})
	return nil
}

// Put writes a record, whatever is there.
func (t *tx) Put(r *engine.Record) error {
	n, err := t.target(r)
	if err == nil {
		n.put(r, t.m.lastShape.forRecord(t.m.shapes, r.Stamp.Log(), r.Schema))
	}
	return err
}

// Merge writes a record if its stamp is above the one at its key.
func (t *tx) Merge(r *engine.Record) (engine.Outcome, error) {
	n, err := t.target(r)
	if err != nil {
		return 0, err
	}
	o := engine.Inserted
	if at, ok := n.rows.get(r.Key); ok {
		if o = engine.OutcomeOver(r.Stamp, n.arena.stamp(at)); !o.Applied() {
			return o, nil
		}
	}
	n.put(r, t.m.lastShape.forRecord(t.m.shapes, r.Stamp.Log(), r.Schema))
	return o, nil
}

func (t *tx) target(r *engine.Record) (*table, error) {
	if err := t.failed(); err != nil {
		return nil, err
	}
	if err := check(r); err != nil {
		return nil, err
	}
	return t.table(r.Schema.Table), nil
}

// check refuses a record that could not be found or read again.
func check(r *engine.Record) error {
	switch {
	case r.Schema == nil:
		return errors.New("a record without a schema cannot be stored")
	case len(r.Key) == 0:
		return fmt.Errorf("table %s: a record without a key cannot be stored", r.Schema.Table)
	case len(r.Key)+len(r.Row) > maxRecord:
		return fmt.Errorf("table %s: a row of %d bytes cannot be stored: the limit is %d", r.Schema.Table, len(r.Row), maxRecord)
	}
	return nil
}

// MayHold reports whether a record of a table can be of an origin.
func (t *tx) MayHold(table engine.TableName, origin string) bool {
	return t.m.shapes.mayHold(table, origin)
}

// Remove takes a record out, leaving no tombstone.
func (t *tx) Remove(table engine.TableName, key []byte) error {
	if err := t.failed(); err != nil {
		return err
	}
	if t.root.table(table) != nil {
		t.table(table).remove(key)
	}
	return nil
}

// SetTruncated records the newest truncate of a table by s.Origin.
func (t *tx) SetTruncated(table engine.TableName, s engine.Stamp) error {
	if err := t.failed(); err != nil {
		return err
	}
	t.root.truncs.Set(item[truncKey, engine.Stamp]{truncKey{table, s.Origin}, s})
	return nil
}

// Adopt makes a staged table the state's.
func (t *tx) Adopt(s engine.Stage) error {
	if err := t.failed(); err != nil {
		return err
	}
	st, ok := s.(*stage)
	if !ok || st.m != t.m {
		return fmt.Errorf("table %s: the stage is of another store", s.Table())
	}
	n, err := st.spend()
	if err != nil {
		return err
	}
	n.owner, n.start = t.root.seq, n.arena.begin()
	t.own(n)
	t.last = n
	return nil
}

// journal returns a log for writing.
func (t *tx) journal(id engine.LogID) *journal {
	j := t.root.log(id)
	if j != nil && j.owner != t.root.seq {
		t.replace(j)
		j = j.write(t.root.seq)
		t.root.setLog(j)
	}
	return j
}

// replace notes that a log of the last root is another now.
func (t *tx) replace(j *journal) {
	if t.logs == nil {
		t.logs = map[engine.LogID]struct{}{}
	}
	t.logs[j.id] = struct{}{}
	if j.owner != t.root.seq {
		t.dropped = append(t.dropped, logSize{j.bytes, j.id})
	}
}

// Append adds blocks to a log.
func (t *tx) Append(log engine.LogID, _ engine.Comparator, blocks ...*engine.Block) error {
	if err := t.failed(); err != nil {
		return err
	}
	j := t.journal(log)
	if j == nil {
		return unknownLog(log)
	}
	if err := j.follows(blocks); err != nil {
		return err
	}
	for _, b := range blocks {
		j.append(b, t.m.opts.JournalBytes)
	}
	return nil
}

// SetCompleteFrom says from when on a log's deletes are known.
func (t *tx) SetCompleteFrom(log engine.LogID, at engine.Time) error {
	if err := t.failed(); err != nil {
		return err
	}
	j := t.journal(log)
	if j == nil {
		return unknownLog(log)
	}
	j.complete = at
	return nil
}

// TrimLog lets go of the oldest transactions of a log.
func (t *tx) TrimLog(log engine.LogID, keep int, notPast engine.Position) error {
	if err := t.failed(); err != nil {
		return err
	}
	j := t.journal(log)
	if j == nil {
		return unknownLog(log)
	}
	if err := j.whole(); err != nil {
		return err
	}
	j.trim(keep, notPast)
	return nil
}

// DropTable forgets a table.
func (t *tx) DropTable(name engine.TableName) error {
	if err := t.failed(); err != nil {
		return err
	}
	t.root.tables.Delete(item[engine.TableName, *table]{key: name})
	t.root.dropTable(name)
	t.last = nil
	return nil
}

// SetMeta records a value beside the data.
func (t *tx) SetMeta(key string, value []byte) error {
	if err := t.failed(); err != nil {
		return err
	}
	if value == nil {
		t.root.meta.Delete(item[string, []byte]{key: key})
	} else {
		t.root.meta.Set(item[string, []byte]{key, slices.Clone(value)})
	}
	return nil
}

// ResetLog empties a log, or creates it.
func (t *tx) ResetLog(log engine.LogID, compare engine.Comparator, head engine.Position, at engine.Time) error {
	if err := t.failed(); err != nil {
		return err
	}
	j := newJournal(log, compare, head, at, t.root.seq)
	if old := t.root.log(log); old != nil {
		t.replace(old)
		t.root.places.drop(log)
	} else {
		t.replace(j)
	}
	t.root.setLog(j)
	return nil
}

// DropLog forgets a log's entries and cursors.
func (t *tx) DropLog(log engine.LogID) error {
	if err := t.failed(); err != nil {
		return err
	}
	if old, ok := t.root.logs.Delete(item[engine.LogID, *journal]{key: log}); ok {
		t.replace(old.val)
		t.root.places.drop(log)
	}
	t.root.dropCursors(log)
	return nil
}

// SetCursor sets a cursor of the vector.
func (t *tx) SetCursor(c engine.Cursor) error {
	if err := t.failed(); err != nil {
		return err
	}
	t.root.setCursor(c)
	return nil
}

// Commit makes everything visible at once.
func (t *tx) Commit() error {
	if err := t.failed(); err != nil {
		return err
	}
	if t.m.isClosed() {
		t.Rollback()
		return engine.ErrClosed
	}
	m := t.m
	for id := range t.logs {
		if j := t.root.log(id); j != nil {
			if err := j.whole(); err != nil {
				t.Rollback()
				return err
			}
		}
	}
	forgotten := map[string]engine.Time{} // newest tombstone let go, by origin
	for _, n := range t.tables {
		n.trim(m.opts.Tombstones, forgotten)
		n.seal(t.root.seq)
		if len(n.arena.retired) > 0 {
			m.retiring[n.arena] = struct{}{}
		}
	}
	t.trimLogs()
	t.forgot(forgotten)
	oldest, err := m.publish(t.root)
	for a := range m.retiring {
		if err == nil && !a.release(oldest) {
			delete(m.retiring, a)
		}
	}
	t.end()
	return err
}

// forgot raises CompleteFrom past the tombstones that were let go.
func (t *tx) forgot(origins map[string]engine.Time) {
	for origin, at := range origins {
		var late []*journal
		t.root.logs.Ascend(item[engine.LogID, *journal]{key: engine.LogID{Origin: origin}}, func(i item[engine.LogID, *journal]) bool {
			if i.key.Origin != origin {
				return false
			}
			if i.val.complete < at {
				late = append(late, i.val)
			}
			return true
		})
		for _, j := range late {
			if j.owner != t.root.seq {
				j = j.write(t.root.seq)
				t.root.setLog(j)
			}
			j.complete = at
		}
	}
}

// trimLogs keeps the journal within its bound.
func (t *tx) trimLogs() {
	m := t.m
	for _, s := range t.dropped {
		m.sizes.Delete(s)
		m.journal -= s.bytes
	}
	for id := range t.logs {
		if j := t.root.log(id); j != nil {
			m.sizes.Set(logSize{j.bytes, id})
			m.journal += j.bytes
		}
	}
	for m.journal > m.opts.JournalBytes {
		s, _ := m.sizes.PopMax()
		j := t.root.log(s.id)
		if j.owner != t.root.seq {
			j = j.write(t.root.seq)
			t.root.setLog(j)
		}
		j.dropOldest()
		m.sizes.Set(logSize{j.bytes, s.id})
		m.journal += j.bytes - s.bytes
	}
}

// Rollback gives everything up.
func (t *tx) Rollback() {
	if t.over.Load() {
		return
	}
	for _, n := range t.tables {
		n.arena.undo(n.start)
	}
	t.end()
}

// Close is Rollback.
func (t *tx) Close() { t.Rollback() }

func (t *tx) end() {
	t.over.Store(true)
	t.root, t.last, t.tables = nil, nil, nil
	t.m.turn <- struct{}{}
}
