package store

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// rowWriter writes rows to a batch, and reads through it: what the batch holds
// is newer than what the database does.
type rowWriter struct {
	p     *Pebble
	batch *pebble.Batch
	own   ownIndex
	ahead ascents
	shape shapeCache
	// spilled is set once part of the transaction is on disk, overlay once that
	// is so of something that a root refers to; fresh are the tables that no root
	// knows.
	spilled, overlay bool
	fresh            map[uint32]bool
	made             []keyRange // pieces that are on disk, of what a root refers to otherwise

	key, other, head, piece []byte // scratch
}

func newRowWriter(p *Pebble) *rowWriter {
	return &rowWriter{p: p, batch: p.newBatch(), fresh: map[uint32]bool{}}
}

// reset makes the writer fit for another transaction.
func (w *rowWriter) reset() {
	w.batch.Reset()
	w.own.reset()
	w.ahead.close()
	w.spilled, w.overlay, w.made = false, false, w.made[:0]
	clear(w.fresh)
}

// ownIndex finds the newest record of each key in a batch, by where it is in
// the batch's bytes. It has no pointers.
type ownIndex struct {
	seed  maphash.Seed
	slots []ownSlot // a power of two; at is 0 where free
	n     int
}

type ownSlot struct{ hash, at uint32 }

// batchHeader is where the first record of a batch is.
const batchHeader = 12

func (x *ownIndex) reset() {
	if x.n == 0 {
		return
	}
	if len(x.slots) > 1<<14 && x.n < len(x.slots)/8 {
		x.slots = nil
	}
	clear(x.slots)
	x.n = 0
}

// slot returns where the record of a key is, or could be.
func (x *ownIndex) slot(repr, key []byte) (i int, hash uint32) {
	hash = uint32(maphash.Bytes(x.seed, key))
	mask := len(x.slots) - 1
	for i = int(hash) & mask; ; i = (i + 1) & mask {
		s := x.slots[i]
		if s.at == 0 || s.hash == hash && bytes.Equal(ownKey(repr, s.at), key) {
			return i, hash
		}
	}
}

func (x *ownIndex) find(repr, key []byte) (at uint32) {
	if x.n == 0 {
		return 0
	}
	i, _ := x.slot(repr, key)
	return x.slots[i].at
}

// set notes that the newest record of a key is at a place.
func (x *ownIndex) set(repr, key []byte, at uint32) {
	if x.n*4 >= len(x.slots)*3 {
		x.grow()
	}
	i, hash := x.slot(repr, key)
	if x.slots[i].at == 0 {
		x.n++
	}
	x.slots[i] = ownSlot{hash, at}
}

func (x *ownIndex) grow() {
	old := x.slots
	if old == nil {
		x.seed = maphash.MakeSeed()
	}
	x.slots = make([]ownSlot, max(256, len(old)*2))
	mask := len(x.slots) - 1
	for _, s := range old {
		if s.at == 0 {
			continue
		}
		i := int(s.hash) & mask
		for x.slots[i].at != 0 {
			i = (i + 1) & mask
		}
		x.slots[i] = s
	}
}

// ownKey returns the key of a batch's record.
func ownKey(repr []byte, at uint32) []byte {
	n, w := binary.Uvarint(repr[at+1:])
	from := uint64(at) + 1 + uint64(w)
	return repr[from : from+n : from+n]
}

// ownRecord returns a batch's record.
func ownRecord(repr []byte, at uint32) (key, value []byte, deleted bool) {
	key = ownKey(repr, at)
	if pebble.InternalKeyKind(repr[at]) != pebble.InternalKeyKindSet {
		return key, nil, true
	}
	rest := repr[at+1:]
	_, w := binary.Uvarint(rest)
	rest = rest[w+len(key):]
	n, w := binary.Uvarint(rest)
	return key, rest[w : uint64(w)+n : uint64(w)+n], false
}

// get returns what is at a key, or nil. The value is valid until the next write
// to the batch or the next call, or until done is closed if that is not nil.
func (w *rowWriter) get(key []byte) (v []byte, done io.Closer, err error) {
	if at := w.own.find(w.batch.Repr(), key); at != 0 {
		_, v, _ := ownRecord(w.batch.Repr(), at)
		return v, nil, nil
	}
	if w.overlay && !w.direct(key) {
		w.other = append(append(w.other[:0], spaceOverlay), key...)
		v, done, err := get(w.p.db, w.other)
		if err != nil || v != nil {
			if err == nil && v[0] == overlayDelete {
				return nil, nil, done.Close()
			}
			if err == nil {
				v = v[1:]
			}
			return v, done, err
		}
	}
	if key[0] == spaceRow && !w.direct(key) {
		if v, ok, err := w.ahead.get(w.p.db, key); ok || err != nil {
			return v, nil, err
		}
	}
	return get(w.p.db, key)
}

// direct reports whether a key is of what no root refers to before the commit,
// so that it need not be hidden.
func (w *rowWriter) direct(key []byte) bool {
	switch key[0] {
	case spaceRow, spaceRowIn, spaceTomb:
		return len(w.fresh) > 0 && w.fresh[binary.BigEndian.Uint32(key[1:])]
	case spacePlace, spacePlaced:
		return false
	}
	return true
}

// set writes a value that is a head and a tail.
func (w *rowWriter) set(key, head, tail []byte) {
	at := uint32(max(len(w.batch.Repr()), batchHeader))
	op := w.batch.SetDeferred(len(key), len(head)+len(tail))
	copy(op.Key, key)
	copy(op.Value[copy(op.Value, head):], tail)
	w.own.set(w.batch.Repr(), key, at)
}

func (w *rowWriter) delete(key []byte) {
	at := uint32(max(len(w.batch.Repr()), batchHeader))
	op := w.batch.DeleteDeferred(len(key))
	copy(op.Key, key)
	w.own.set(w.batch.Repr(), key, at)
}

// put writes a record to a table, unless newer is set and its stamp is not
// above what is there.
func (w *rowWriter) put(t *diskTable, r *engine.Record, newer bool) (engine.Outcome, error) {
	w.key = rowKey(w.key[:0], t.num, r.Key)
	o, err := w.replace(t, r, newer)
	if err == nil && o.Applied() {
		err = w.write(t, r)
	}
	return o, err
}

// write writes a record where none is. w.key is its key.
func (w *rowWriter) write(t *diskTable, r *engine.Record) error {
	n := w.shape.forRecord(w.p.shapes, r.Stamp.Log(), r.Schema)
	w.head = w.head[:0]
	row := r.Row
	if w.p.large(len(row)) {
		in, err := w.setPieces(spaceRowIn, t.num, t.values, row)
		if err != nil {
			return w.p.commitError(err)
		}
		t.values++
		w.head, row = in.append(w.head), nil
	}
	w.head = appendRowHeader(w.head, r, n)
	w.set(w.key, w.head, row)
	if r.Deleted {
		t.tombs++
		w.other = tombKey(w.other[:0], t.num, r.Stamp.Time, r.Key)
		w.head = binary.AppendUvarint(w.head[:0], uint64(n))
		w.set(w.other, w.head, nil)
		return nil
	}
	t.live++
	t.bytes += len(r.Key) + len(r.Row)
	return nil
}

// replace takes what is at w.key out of the counts, to make room for r, unless
// it is to stay.
func (w *rowWriter) replace(t *diskTable, r *engine.Record, newer bool) (o engine.Outcome, err error) {
	v, done, err := w.get(w.key)
	if err != nil || v == nil {
		return engine.Inserted, w.p.rowError(err, t.name, r.Key)
	}
	if done != nil {
		defer func() { _ = done.Close() }()
	}
	e, in, err := decodeRow(v)
	if err != nil {
		return 0, w.p.rowError(err, t.name, r.Key)
	}
	o = engine.Replaced
	if newer {
		sh := w.p.shapes.find(uint64(e.shape))
		if sh == nil {
			return 0, w.p.rowError(errDamaged, t.name, r.Key)
		}
		o = engine.OutcomeOver(r.Stamp, engine.Stamp{Time: engine.Time(e.time), Origin: sh.log.Origin, Epoch: sh.log.Epoch, Version: e.version})
	}
	if o.Applied() {
		w.forget(t, r.Key, &e, in)
	}
	return o, nil
}

// forget takes an entry out of the counts, and what it has beside its record out of the store.
func (w *rowWriter) forget(t *diskTable, key []byte, e *entry, in pieces) {
	if !e.deleted {
		t.live--
		t.bytes -= len(key) + len(e.row) + in.size
		w.deletePieces(t.num, in)
		return
	}
	t.tombs--
	w.other = tombKey(w.other[:0], t.num, engine.Time(e.time), key)
	w.delete(w.other)
}

// remove takes a record out of a table.
func (w *rowWriter) remove(t *diskTable, key []byte) error {
	w.key = rowKey(w.key[:0], t.num, key)
	v, done, err := w.get(w.key)
	if err != nil || v == nil {
		return w.p.rowError(err, t.name, key)
	}
	e, in, err := decodeRow(v)
	if err == nil {
		w.forget(t, key, &e, in)
		w.delete(w.key)
	}
	if done != nil {
		_ = done.Close()
	}
	return w.p.rowError(err, t.name, key)
}

// record fills r from the value of a table's row. It shares the value's memory.
func (p *Pebble) record(r *engine.Record, t *diskTable, key, v []byte, from pebble.Reader) error {
	e, in, err := decodeRow(v)
	if err == nil && in.n > 0 {
		e.row, err = readPieces(from, spaceRowIn, t.num, in)
	}
	if err != nil {
		return err
	}
	sh := p.shapes.find(uint64(e.shape))
	if sh == nil {
		return errDamaged
	}
	e.key = key
	e.record(r, sh)
	return nil
}

// getRecord returns the record at a key, in memory of its own. Pieces are read from the database, or a snapshot of it.
func (p *Pebble) getRecord(t *diskTable, key []byte, from pebble.Reader, get func([]byte) ([]byte, io.Closer, error)) (r engine.Record, ok bool, err error) {
	buf := rowKey(make([]byte, 0, numberedLen+len(key)), t.num, key)
	v, done, err := get(buf)
	if err == nil && v != nil {
		err = p.record(&r, t, buf[numberedLen:], slices.Clone(v), from)
		ok = err == nil
	}
	if done != nil {
		_ = done.Close()
	}
	return r, ok, p.rowError(err, t.name, key)
}

// rows iterates over keys in order.
type rows interface {
	next() bool
	key() []byte
	value() (v []byte, deleted bool, err error)
	close() error
}

// dbRows is what the database holds.
type dbRows struct {
	it      *pebble.Iterator
	started bool
	from    []byte
	skip    int // bytes before the key: of the overlay
}

// newDBRows iterates over a range as of a reader.
func newDBRows(r pebble.Reader, kr keyRange, from []byte, overlay bool) (*dbRows, error) {
	s := &dbRows{from: from}
	if overlay {
		s.skip = 1
		pre := func(k []byte) []byte { return append([]byte{spaceOverlay}, k...) }
		kr = keyRange{pre(kr.from), pre(kr.to)}
		s.from = pre(from)
	}
	var err error
	s.it, err = r.NewIter(&pebble.IterOptions{LowerBound: kr.from, UpperBound: kr.to})
	return s, err
}

func (s *dbRows) next() bool {
	if s.started {
		return s.it.Next()
	}
	s.started = true
	return s.it.SeekGE(s.from)
}

func (s *dbRows) key() []byte { return s.it.Key()[s.skip:] }

func (s *dbRows) value() (v []byte, deleted bool, err error) {
	v, err = s.it.ValueAndErr()
	if s.skip > 0 && err == nil {
		if len(v) == 0 {
			return nil, false, errDamaged
		}
		return v[1:], v[0] == overlayDelete, nil
	}
	return v, false, err
}

func (s *dbRows) close() error { return s.it.Close() }

// ownRows is what a batch held when it was asked.
type ownRows struct {
	repr []byte
	at   []uint32
	i    int
}

func newOwnRows(w *rowWriter, kr keyRange, from []byte) *ownRows {
	s := &ownRows{repr: w.batch.Repr(), i: -1}
	if w.own.n == 0 {
		return s
	}
	for _, o := range w.own.slots {
		if o.at == 0 {
			continue
		}
		if k := ownKey(s.repr, o.at); bytes.Compare(k, from) >= 0 && bytes.Compare(k, kr.to) < 0 {
			s.at = append(s.at, o.at)
		}
	}
	slices.SortFunc(s.at, func(a, b uint32) int { return bytes.Compare(ownKey(s.repr, a), ownKey(s.repr, b)) })
	return s
}

func (s *ownRows) next() bool { s.i++; return s.i < len(s.at) }

func (s *ownRows) key() []byte { return ownKey(s.repr, s.at[s.i]) }

func (s *ownRows) value() (v []byte, deleted bool, err error) {
	_, v, deleted = ownRecord(s.repr, s.at[s.i])
	return v, deleted, nil
}

func (s *ownRows) close() error { return nil }

// scan calls fn for each record of a table from a key on, of layers of which
// the first has the newest. It closes them. Pieces are read from the database, or a snapshot of it.
func (p *Pebble) scan(t *diskTable, from pebble.Reader, layers []rows, over func() error, fn func(*engine.Record) bool) (err error) {
	defer func() {
		for _, l := range layers {
			if e := l.close(); err == nil && e != nil {
				err = p.rowError(e, t.name, nil)
			}
		}
	}()
	live := make([]rows, 0, len(layers))
	for _, l := range layers {
		if l.next() {
			live = append(live, l)
		}
	}
	var r engine.Record
	for len(live) > 0 {
		top := live[0]
		for _, l := range live[1:] {
			if bytes.Compare(l.key(), top.key()) < 0 {
				top = l
			}
		}
		v, deleted, err := top.value()
		if err == nil && !deleted {
			err = p.record(&r, t, top.key()[numberedLen:], v, from)
		}
		if err != nil {
			return p.rowError(err, t.name, top.key()[numberedLen:])
		}
		if !deleted && !fn(&r) {
			return nil
		}
		if err := over(); err != nil {
			return err
		}
		if len(live) == 1 {
			if !top.next() {
				break
			}
			continue
		}
		key := slices.Clone(top.key())
		left := live[:0]
		for _, l := range live {
			if !bytes.Equal(l.key(), key) || l.next() {
				left = append(left, l)
			}
		}
		live = left
	}
	return nil
}
