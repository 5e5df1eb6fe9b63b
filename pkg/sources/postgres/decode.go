package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// errMessage is what decoding a malformed pgoutput message gives.
var errMessage = errors.New("malformed pgoutput message")

// relation is a table as the stream's Relation messages have last described it.
type relation struct {
	schema *engine.Schema
	isKey  []bool // all of them in a table without a key
	header []byte // packed rows of it start with this
	// unclear is the message of which it cannot be told which columns it describes;
	// nil once it is known. The changes of an unclear relation are dropped.
	unclear *relationMessage
	tried   time.Time // when that was looked into last
}

func newRelation(s *engine.Schema) *relation {
	r := &relation{schema: s, isKey: make([]bool, len(s.Columns)), header: engine.AppendRowHeader(nil, s.ID, len(s.Columns))}
	bag := s.Multiset()
	for i, c := range s.Columns {
		r.isKey[i] = c.Key || bag
	}
	return r
}

// column is one column of a tuple in a message.
type column struct {
	kind  byte // 't' text, 'n' null, 'u' unchanged
	value []byte
}

// decoder turns pgoutput messages into transactions of a batch. It does no
// input or output and has no clock.
type decoder struct {
	// resolve gives the relation that a Relation message describes; nil if the
	// table is not one of ours.
	resolve func(*relationMessage) (*relation, error)
	// again, if set, gives the relations that have become ours since they were
	// described, because their tables were added.
	again func() (map[uint32]*relation, error)
	// retry, if set, looks again into what an unclear relation is.
	retry func(*relation) error
	// missed, if set, is told of tables of which a transaction had changes that were
	// dropped, since their relation is unclear.
	missed func(tables map[engine.TableName]bool, end engine.LSN)
	// from is the position the stream starts after: whole transactions at or
	// before it have been applied and are dropped.
	from engine.LSN

	batch     *batch
	relations map[uint32]*relation // nil value: not ours
	lastOID   uint32
	last      *relation
	named     map[*engine.Schema]bool // transactions of this stream have carried them
	described map[uint32]uint64       // which Relation message relations are from, by number
	order     uint64                  // of the last Relation message

	dropped map[engine.TableName]bool // of this transaction: see missed
	inTx    bool
	schemas []*engine.Schema // first used in this transaction
	prev    engine.Position  // end of the last transaction that was kept
	end     engine.LSN       // end of the last transaction that was kept
	seen    engine.LSN       // end of the last transaction, kept or not
	commit  time.Time        // of the last transaction that was kept

	tuple, old []column
}

func newDecoder(from engine.LSN, resolve func(*relationMessage) (*relation, error)) *decoder {
	return &decoder{resolve: resolve, from: from, batch: &batch{}, relations: map[uint32]*relation{},
		named: map[*engine.Schema]bool{}, described: map[uint32]uint64{}, prev: from.Position(), end: from, seen: from}
}

// decode takes one message. committed is true if it was the end of a transaction.
func (d *decoder) decode(msg []byte) (committed bool, err error) {
	if len(msg) == 0 {
		return false, fmt.Errorf("%w: it is empty", errMessage)
	}
	p := msg[1:]
	switch msg[0] {
	case 'I':
		err = d.insert(p)
	case 'U':
		err = d.update(p)
	case 'D':
		err = d.delete(p)
	case 'B':
		if d.inTx {
			return false, fmt.Errorf("%w: a transaction begins within another", errMessage)
		}
		d.inTx = true
	case 'C':
		return true, d.commitTx(p)
	case 'R':
		err = d.relation(p)
	case 'T':
		err = d.truncate(p)
	case 'Y', 'O', 'M': // a type's name, a replication origin, a logical message: nothing to keep
	default:
		err = fmt.Errorf("%w: unknown type %q", errMessage, msg[0])
	}
	if len(msg) > readBuffer { // what was read of it would keep it
		clear(d.tuple)
		clear(d.old)
	}
	if err != nil {
		err = fmt.Errorf("decoding a message of type %q and %d bytes: %w", msg[0], len(msg), err)
	}
	return false, err
}

func (d *decoder) commitTx(p []byte) error {
	if len(p) != 25 || !d.inTx {
		return fmt.Errorf("%w: a commit of %d bytes, in a transaction: %t", errMessage, len(p), d.inTx)
	}
	d.commitAt(readCommit(p))
	return nil
}

// commitAt ends a transaction, whose changes are the last of the batch.
func (d *decoder) commitAt(end engine.LSN, commit time.Time) {
	b, start := d.batch, d.batch.done()
	d.inTx = false
	d.tellMissed(end)
	d.seen = max(d.seen, end)
	if end <= d.from || start == len(b.changes) {
		b.drop()
		d.unname()
		return
	}
	number(b.changes[start:], end, 0)
	b.txs = append(b.txs, d.close(len(b.changes), end, commit))
}

// tellMissed tells of what was dropped of the transaction that ends at end.
func (d *decoder) tellMissed(end engine.LSN) {
	if len(d.dropped) > 0 && end > d.from && d.missed != nil {
		d.missed(d.dropped, end)
	}
	d.dropped = nil
}

// close makes an end of the transaction that all further ones follow.
func (d *decoder) close(changes int, end engine.LSN, commit time.Time) txEnd {
	t := txEnd{end: changes, prev: d.prev, lsn: end, commit: commit, schemas: d.schemas}
	d.prev, d.end, d.commit, d.schemas = end.Position(), end, commit, nil
	return t
}

// unname drops the schemas of a transaction that is dropped: they have to be
// named again.
func (d *decoder) unname() {
	d.last = nil
	for _, s := range d.schemas {
		delete(d.named, s)
	}
	d.schemas = nil
}

// number gives the changes of a transaction their versions; before says how many
// of it came before them.
func number(changes []engine.Change, end engine.LSN, before int) {
	for i := range changes {
		changes[i].Stamp.Version = engine.Version{Major: uint64(end), Minor: uint32(before + i + 1)}
	}
}

// readCommit reads what a commit of 25 bytes says: flags, its LSN, its end, its time.
func readCommit(p []byte) (end engine.LSN, commit time.Time) {
	return engine.LSN(binary.BigEndian.Uint64(p[9:])), pgTime(binary.BigEndian.Uint64(p[17:]))
}

// postgresEpoch is the zero of PostgreSQL's timestamps.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func pgTime(us uint64) time.Time { return time.UnixMicro(postgresEpoch + int64(us)).UTC() }

// find returns the relation of a change, or nil if it is not one of ours.
func (d *decoder) find(oid uint32) (*relation, error) {
	if !d.inTx {
		return nil, fmt.Errorf("%w: a change outside of a transaction", errMessage)
	}
	if oid == d.lastOID && d.last != nil {
		return d.last, nil
	}
	r, ok := d.relations[oid]
	if !ok {
		return nil, fmt.Errorf("%w: a change of relation %d, which has not been described", errMessage, oid)
	}
	if r == nil && d.again != nil {
		added, err := d.again()
		if err != nil {
			return nil, err
		}
		maps.Copy(d.relations, added)
		r = d.relations[oid]
	}
	if r == nil {
		return nil, nil
	}
	if r.unclear != nil && d.retry != nil {
		if err := d.retry(r); err != nil {
			return nil, err
		}
	}
	if r.unclear != nil {
		if d.dropped == nil {
			d.dropped = map[engine.TableName]bool{}
		}
		d.dropped[r.unclear.table] = true
		return nil, nil
	}
	d.name(r)
	d.lastOID, d.last = oid, r
	return r, nil
}

// name makes sure that this transaction, or one before it, carries the schema of
// a relation that is ours.
func (d *decoder) name(r *relation) {
	if r != nil && r.unclear == nil && !d.named[r.schema] {
		d.named[r.schema] = true
		d.schemas = append(d.schemas, r.schema)
	}
}

// start reads a change's relation and the kind of its first tuple.
func (d *decoder) start(p []byte) (r *relation, kind byte, rest []byte, err error) {
	if len(p) < 5 {
		return nil, 0, nil, fmt.Errorf("%w: cut short", errMessage)
	}
	r, err = d.find(binary.BigEndian.Uint32(p))
	return r, p[4], p[5:], err
}

func (d *decoder) insert(p []byte) error {
	r, kind, p, err := d.start(p)
	if err != nil || r == nil {
		return err
	}
	if kind != 'N' {
		return fmt.Errorf("%w: an insert with a tuple of kind %q", errMessage, kind)
	}
	if d.tuple, p, err = readTuple(d.tuple, p, r); err != nil {
		return err
	}
	if len(p) != 0 {
		return fmt.Errorf("%w: %d bytes too many", errMessage, len(p))
	}
	key, err := d.key(r, d.tuple)
	if err != nil {
		return err
	}
	row, partial := d.row(r)
	if partial {
		return fmt.Errorf("%w: an insert into %s with an unchanged column", errMessage, r.schema.Table)
	}
	d.batch.add(engine.Change{Op: engine.OpPut, Schema: r.schema, Key: key, Row: row})
	return nil
}

func (d *decoder) update(p []byte) error {
	r, kind, p, err := d.start(p)
	if err != nil || r == nil {
		return err
	}
	var oldKey []byte
	if kind == 'K' || kind == 'O' {
		if d.old, p, err = readTuple(d.old, p, r); err != nil {
			return err
		}
		if oldKey, err = d.key(r, d.old); err != nil {
			return err
		}
		if len(p) == 0 {
			return fmt.Errorf("%w: an update without a new tuple", errMessage)
		}
		kind, p = p[0], p[1:]
	}
	if kind != 'N' {
		return fmt.Errorf("%w: an update with a tuple of kind %q", errMessage, kind)
	}
	if d.tuple, p, err = readTuple(d.tuple, p, r); err != nil {
		return err
	}
	if len(p) != 0 {
		return fmt.Errorf("%w: %d bytes too many", errMessage, len(p))
	}
	bag := r.schema.Multiset()
	if bag && oldKey == nil {
		return &identityError{r.schema, ""}
	}
	if oldKey != nil {
		// A large value that did not change is not sent again, but the old tuple
		// has it if it is part of the key, or if the identity is full.
		for i := range d.tuple {
			if d.tuple[i].kind == 'u' && d.old[i].kind == 't' {
				d.tuple[i] = d.old[i]
			}
		}
	}
	key, err := d.key(r, d.tuple)
	if err != nil {
		return err
	}
	row, partial := d.row(r)
	c := engine.Change{Op: engine.OpPut, Schema: r.schema, Key: key, Row: row, Partial: partial}
	if oldKey != nil && !bytes.Equal(oldKey, key) {
		d.batch.add(engine.Change{Op: engine.OpDelete, Schema: r.schema, Key: oldKey})
		if !bag {
			c.OldKey = oldKey
		}
	} else if bag {
		return nil // the same row in place of the same row
	}
	d.batch.add(c)
	return nil
}

func (d *decoder) delete(p []byte) error {
	r, kind, p, err := d.start(p)
	if err != nil || r == nil {
		return err
	}
	if kind != 'K' && kind != 'O' {
		return fmt.Errorf("%w: a delete with a tuple of kind %q", errMessage, kind)
	}
	if d.old, p, err = readTuple(d.old, p, r); err != nil {
		return err
	}
	if len(p) != 0 {
		return fmt.Errorf("%w: %d bytes too many", errMessage, len(p))
	}
	key, err := d.key(r, d.old)
	if err != nil {
		return err
	}
	d.batch.add(engine.Change{Op: engine.OpDelete, Schema: r.schema, Key: key})
	return nil
}

func (d *decoder) truncate(p []byte) error {
	if len(p) < 5 {
		return fmt.Errorf("%w: cut short", errMessage)
	}
	n := binary.BigEndian.Uint32(p)
	p = p[5:] // count, options
	if uint64(len(p)) != 4*uint64(n) {
		return fmt.Errorf("%w: a truncate of %d relations in %d bytes", errMessage, n, len(p))
	}
	for ; len(p) > 0; p = p[4:] {
		r, err := d.find(binary.BigEndian.Uint32(p))
		if err != nil {
			return err
		}
		if r != nil {
			d.batch.add(engine.Change{Op: engine.OpTruncate, Schema: r.schema})
		}
	}
	return nil
}

func (d *decoder) relation(p []byte) error {
	m, err := readRelation(p)
	if err != nil {
		return err
	}
	r, err := d.resolve(m)
	if err != nil {
		return err
	}
	d.order++
	d.relations[m.oid], d.described[m.oid], d.last = r, d.order, nil
	return nil
}

// readTuple reads the columns of a tuple into cols, whose values share p's memory.
func readTuple(cols []column, p []byte, r *relation) (_ []column, rest []byte, err error) {
	if len(p) < 2 {
		return cols, nil, fmt.Errorf("%w: cut short", errMessage)
	}
	n := int(binary.BigEndian.Uint16(p))
	if n != len(r.isKey) {
		return cols, nil, fmt.Errorf("%w: a tuple of %d columns for %s, which has %d", errMessage, n, r.schema.Table, len(r.isKey))
	}
	p = p[2:]
	if cap(cols) < n {
		cols = make([]column, n)
	}
	cols = cols[:n]
	for i := range cols {
		if len(p) == 0 {
			return cols, nil, fmt.Errorf("%w: cut short", errMessage)
		}
		kind := p[0]
		switch kind {
		case 't':
			if len(p) < 5 {
				return cols, nil, fmt.Errorf("%w: cut short", errMessage)
			}
			size := uint64(binary.BigEndian.Uint32(p[1:]))
			if size > uint64(len(p)-5) {
				return cols, nil, fmt.Errorf("%w: a value of %d bytes in a message with %d left", errMessage, size, len(p)-5)
			}
			cols[i] = column{kind, p[5 : 5+size]}
			p = p[5+size:]
		case 'n', 'u':
			cols[i] = column{kind: kind}
			p = p[1:]
		default:
			return cols, nil, fmt.Errorf("%w: a column of kind %q", errMessage, kind)
		}
	}
	return cols, p, nil
}

// key packs the key of a tuple into the batch.
func (d *decoder) key(r *relation, cols []column) ([]byte, error) {
	size, bag := 0, r.schema.Multiset()
	for i, k := range r.isKey {
		if !k {
			continue
		}
		if kind := cols[i].kind; kind != 't' && (kind != 'n' || !bag) {
			return nil, &identityError{r.schema, r.schema.Columns[i].Name}
		}
		size += 2*len(cols[i].value) + 3
	}
	k := d.batch.reserve(size)
	for i, isKey := range r.isKey {
		switch {
		case !isKey:
		case cols[i].kind == 'n':
			k = engine.AppendKeyNull(k)
		default:
			k = engine.AppendKeyValue(k, cols[i].value)
		}
	}
	return d.batch.keep(k), nil
}

// row packs the new tuple into the batch.
func (d *decoder) row(r *relation) (row engine.Row, partial bool) {
	size := len(r.header)
	for i := range d.tuple {
		size += len(d.tuple[i].value) + binary.MaxVarintLen32
	}
	b := append(d.batch.reserve(size), r.header...)
	for i := range d.tuple {
		switch c := &d.tuple[i]; c.kind {
		case 't':
			b = engine.AppendValue(b, c.value)
		case 'n':
			b = engine.AppendNull(b)
		default:
			b = engine.AppendUnchanged(b)
			partial = true
		}
	}
	return d.batch.keep(b), partial
}

// relationMessage is a Relation message.
type relationMessage struct {
	oid      uint32
	table    engine.TableName
	identity engine.ReplicaIdentity
	columns  []relationColumn
}

type relationColumn struct {
	key     bool
	name    string
	typeOID uint32
	typeMod int32
}

func readRelation(p []byte) (*relationMessage, error) {
	short := fmt.Errorf("%w: a relation that is cut short", errMessage)
	text := func() (string, bool) {
		i := bytes.IndexByte(p, 0)
		if i < 0 {
			return "", false
		}
		s := string(p[:i])
		p = p[i+1:]
		return s, true
	}
	if len(p) < 4 {
		return nil, short
	}
	m := &relationMessage{oid: binary.BigEndian.Uint32(p)}
	p = p[4:]
	var ok1, ok2 bool
	m.table.Schema, ok1 = text()
	m.table.Name, ok2 = text()
	if !ok1 || !ok2 || len(p) < 3 {
		return nil, short
	}
	if m.table.Schema == "" {
		m.table.Schema = "pg_catalog"
	}
	m.identity = engine.ReplicaIdentity(p[0])
	n := int(binary.BigEndian.Uint16(p[1:]))
	p = p[3:]
	for range n {
		if len(p) < 1 {
			return nil, short
		}
		c := relationColumn{key: p[0]&1 != 0}
		p = p[1:]
		var ok bool
		if c.name, ok = text(); !ok || len(p) < 8 {
			return nil, short
		}
		c.typeOID, c.typeMod = binary.BigEndian.Uint32(p), int32(binary.BigEndian.Uint32(p[4:]))
		p = p[8:]
		m.columns = append(m.columns, c)
	}
	if len(p) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after a relation", errMessage, len(p))
	}
	return m, nil
}
