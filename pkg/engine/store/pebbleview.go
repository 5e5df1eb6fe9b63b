package store

import (
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// diskReader is what views and transactions of a durable store have in common.
type diskReader struct {
	lookup
	p    *Pebble
	root *diskRoot
}

func (v *diskReader) read(r *diskRoot) { v.root, v.catalog = r, r.catalog }

// enter starts an operation that reads or writes the disk; leave ends it.
func (v *diskReader) enter() error {
	if err := v.failed(); err != nil {
		return err
	}
	if !v.p.ops.enter() {
		return engine.ErrClosed
	}
	return nil
}

func (v *diskReader) leave() { v.p.ops.leave() }

// gone says why a read under way has to end, or returns nil.
func (v *diskReader) gone() error {
	if v.p.ops.over.Load() {
		return engine.ErrClosed
	}
	return v.failed()
}

// Tables returns the tables of the state.
func (v *diskReader) Tables() []engine.TableInfo {
	if v.gone() != nil {
		return nil
	}
	infos := make([]engine.TableInfo, 0, v.root.tables.Len())
	v.root.tables.Scan(func(i item[engine.TableName, *diskTable]) bool {
		t, s := i.val, v.root.newestSchema(i.key)
		infos = append(infos, engine.TableInfo{Table: t.name, Schema: s.schema, Log: s.log, Rows: t.live, Tombstones: t.tombs, Bytes: t.bytes})
		return true
	})
	return infos
}

// Logs returns the logs held.
func (v *diskReader) Logs() []engine.LogInfo {
	if v.gone() != nil {
		return nil
	}
	infos := make([]engine.LogInfo, 0, v.root.logs.Len())
	v.root.logs.Scan(func(i item[engine.LogID, *diskLog]) bool {
		infos = append(infos, i.val.info())
		return true
	})
	return infos
}

// LogsOf returns the logs held of one origin.
func (v *diskReader) LogsOf(origin string) (infos []engine.LogInfo) {
	if v.gone() != nil {
		return nil
	}
	v.root.logs.Ascend(item[engine.LogID, *diskLog]{key: engine.LogID{Origin: origin}}, func(i item[engine.LogID, *diskLog]) bool {
		if i.key.Origin != origin {
			return false
		}
		infos = append(infos, i.val.info())
		return true
	})
	return infos
}

// Log returns what is held of a log.
func (v *diskReader) Log(log engine.LogID) (engine.LogInfo, bool) {
	if v.gone() != nil {
		return engine.LogInfo{}, false
	}
	if l := v.root.log(log); l != nil {
		return l.info(), true
	}
	return engine.LogInfo{}, false
}

// diskView is an edition that is kept while it is looked at.
type diskView struct {
	diskReader
	edition *edition
}

func (v *diskView) get(key []byte) ([]byte, io.Closer, error) { return get(v.edition.snap, key) }

// Get returns the record at key.
func (v *diskView) Get(table engine.TableName, key []byte) (r engine.Record, ok bool, err error) {
	if err := v.enter(); err != nil {
		return r, false, err
	}
	defer v.leave()
	t := v.root.table(table)
	if t == nil {
		return r, false, nil
	}
	return v.p.getRecord(t, key, v.edition.snap, v.get)
}

// Scan calls fn for each record from a key on.
func (v *diskView) Scan(table engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	if err := v.enter(); err != nil {
		return err
	}
	defer v.leave()
	t := v.root.table(table)
	if t == nil {
		return nil
	}
	l, err := newDBRows(v.edition.snap, rangeOf(spaceRow, t.num), rowKey(nil, t.num, from), false)
	if err != nil {
		return v.p.rowError(err, table, from)
	}
	return v.p.scan(t, v.edition.snap, []rows{l}, v.gone, fn)
}

// ReadLog returns blocks that follow a position.
func (v *diskView) ReadLog(log engine.LogID, after engine.Position, maxBytes int) ([]*engine.Block, error) {
	return v.ReadPart(log, after, 0, maxBytes)
}

// ReadPart returns blocks from a part of the transaction that follows a
// position on.
func (v *diskView) ReadPart(log engine.LogID, after engine.Position, part uint32, maxBytes int) ([]*engine.Block, error) {
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.leave()
	l := v.root.log(log)
	if l == nil {
		return nil, unknownLog(log)
	}
	return v.p.readLog(l, after, part, maxBytes, v)
}

func (v *diskView) reader() pebble.Reader { return v.edition.snap }

// entries calls fn for the entries of a log from a number on.
func (v *diskView) entries(l *diskLog, from uint64, fn func(seq uint64, value []byte) (bool, error)) (err error) {
	it, err := v.edition.snap.NewIter(&pebble.IterOptions{
		LowerBound: blockKey(nil, spaceBlock, l.num, from), UpperBound: blockKey(nil, spaceBlock, l.num, l.next),
	})
	if err != nil {
		return err
	}
	defer func() {
		if e := it.Close(); err == nil {
			err = e
		}
	}()
	seq := from
	for ok := it.First(); ok; ok = it.Next() {
		if string(it.Key()) != string(blockKey(nil, spaceBlock, l.num, seq)) {
			break
		}
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if more, err := fn(seq, val); !more || err != nil {
			return err
		}
		seq++
	}
	if err := it.Error(); err != nil {
		return err
	}
	if seq < l.next {
		return missingEntry(seq)
	}
	return nil
}

// Close lets go of the view.
func (v *diskView) Close() {
	if !v.over.Swap(true) && v.edition != nil {
		v.p.release(v.edition)
	}
}
