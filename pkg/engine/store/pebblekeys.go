package store

import (
	"encoding/binary"
	"errors"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// The keyspace; docs/design/store.md has it to the byte. What is under 'm' is
// kept in memory too, and read whole at open.
const (
	spaceBlock   = 'b' // be32(log) be64(seq) → block
	spaceBlockIn = 'B' // be32(log) be64(seq) be32(i) → a piece of a block's payload
	spaceIndex   = 'i' // be32(log) be64(seq) → blockMeta
	spaceMeta    = 'm' // see below
	spaceOverlay = 'o' // a key of another space → op, value: of a transaction that does not fit in memory
	spacePlace   = 'p' // be32(log) be64(place) → table key: see engine.Tx.Place
	spacePlaced  = 'q' // be32(log) table key → be64(place)
	spaceRow     = 'r' // be32(table) key → row
	spaceRowIn   = 'R' // be32(table) be64(id) be32(i) → a piece of a row
	spaceTomb    = 't' // be32(table) be64(time) key → shape: tombstones by age

	metaCursor    = 'c'
	metaLog       = 'l'
	metaUser      = 'k'
	metaNewest    = 'n'
	metaSchema    = 'S'
	metaShape     = 's'
	metaTable     = 't'
	metaTruncated = 'x'
	metaFold      = 'z' // a commit that is decided and not yet folded in
)

// The operations of the overlay.
const (
	overlaySet    = 1
	overlayDelete = 2
)

// numbered starts a key of a space whose keys go by a number.
func numbered(dst []byte, space byte, n uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, space), n)
}

func rowKey(dst []byte, table uint32, key []byte) []byte {
	return append(numbered(dst, spaceRow, table), key...)
}

func tombKey(dst []byte, table uint32, at engine.Time, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(numbered(dst, spaceTomb, table), uint64(at)), key...)
}

func blockKey(dst []byte, space byte, log uint32, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(numbered(dst, space, log), seq)
}

const (
	numberedLen = 5  // of what numbered makes
	tombKeyLen  = 13 // of a tomb key before the row's key
)

// keyRange is all keys from one on, up to another.
type keyRange struct{ from, to []byte }

func rangeOf(space byte, n uint32) keyRange {
	r := keyRange{from: numbered(nil, space, n)}
	if n == 1<<32-1 {
		r.to = []byte{space + 1}
	} else {
		r.to = numbered(nil, space, n+1)
	}
	return r
}

func tableRanges(table uint32) []keyRange {
	return []keyRange{rangeOf(spaceRow, table), rangeOf(spaceTomb, table), rangeOf(spaceRowIn, table)}
}

func logRanges(log uint32) []keyRange {
	return []keyRange{rangeOf(spaceBlock, log), rangeOf(spaceBlockIn, log), rangeOf(spaceIndex, log), rangeOf(spacePlace, log), rangeOf(spacePlaced, log)}
}

// Rows. A row is
//
//	uvarint(2*shape + deleted) uvarint(time) uvarint(major) uvarint(minor) row
//
// with shape as in a slab of the memory store. Of a large one, what pebblelarge.go says stands before it, and
// no bytes of the row.

// maxRowHeader is the most that a row takes beside its bytes.
const maxRowHeader = 4 * binary.MaxVarintLen64

func appendRowHeader(dst []byte, r *engine.Record, shape uint32) []byte {
	form := uint64(shape) << 1
	if r.Deleted {
		form |= 1
	}
	dst = binary.AppendUvarint(dst, form)
	dst = binary.AppendUvarint(dst, uint64(r.Stamp.Time))
	dst = binary.AppendUvarint(dst, r.Stamp.Version.Major)
	return binary.AppendUvarint(dst, uint64(r.Stamp.Version.Minor))
}

var errDamaged = errors.New("the value is damaged")

// decodeRow reads a row, or all of it but what is in pieces. Its memory is that of v.
func decodeRow(v []byte) (e entry, in pieces, err error) {
	d := decoder{b: v}
	in, form := d.pieces()
	e.shape, e.deleted = uint32(form>>1), form&1 != 0
	e.time = d.uvarint()
	e.version.Major = d.uvarint()
	e.version.Minor = uint32(d.uvarint())
	if d.bad || form>>33 != 0 || (e.deleted || in.n > 0) && len(d.b) > 0 {
		return entry{}, pieces{}, errDamaged
	}
	if !e.deleted {
		e.row = d.b
	}
	return e, in, nil
}

// decoder reads what the append functions wrote. Once something is missing, bad
// is set and all that follows is zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte { return d.take(d.uvarint()) }

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.b, d.bad = nil, true
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) str() string { return string(d.bytes()) }

func (d *decoder) be32() uint32 {
	if len(d.b) < 4 {
		d.b, d.bad = nil, true
		return 0
	}
	v := binary.BigEndian.Uint32(d.b)
	d.b = d.b[4:]
	return v
}

func (d *decoder) log() engine.LogID {
	return engine.LogID{Origin: d.str(), Epoch: engine.Epoch(d.uvarint())}
}

func (d *decoder) table() engine.TableName {
	return engine.TableName{Schema: d.str(), Name: d.str()}
}

func (d *decoder) stamp() engine.Stamp {
	return engine.Stamp{
		Time: engine.Time(d.uvarint()), Origin: d.str(), Epoch: engine.Epoch(d.uvarint()),
		Version: engine.Version{Major: d.uvarint(), Minor: uint32(d.uvarint())},
	}
}

// done reports whether all has been read, and was well.
func (d *decoder) done() bool { return !d.bad && len(d.b) == 0 }

func appendStr[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendLog(dst []byte, l engine.LogID) []byte {
	return binary.AppendUvarint(appendStr(dst, l.Origin), uint64(l.Epoch))
}

func appendTable(dst []byte, t engine.TableName) []byte {
	return appendStr(appendStr(dst, t.Schema), t.Name)
}

func appendStamp(dst []byte, s engine.Stamp) []byte {
	dst = appendStr(binary.AppendUvarint(dst, uint64(s.Time)), s.Origin)
	dst = binary.AppendUvarint(dst, uint64(s.Epoch))
	dst = binary.AppendUvarint(dst, s.Version.Major)
	return binary.AppendUvarint(dst, uint64(s.Version.Minor))
}

func metaKey(kind byte) []byte { return append(make([]byte, 0, 48), spaceMeta, kind) }

// What a stored column says with bits.
const (
	columnKey  = 1 << iota // part of the key
	columnBase             // the type by which it is compared follows
)

func appendSchema(dst []byte, s *engine.Schema) []byte {
	dst = appendTable(binary.AppendUvarint(dst, uint64(s.ID)), s.Table)
	dst = binary.AppendUvarint(dst, uint64(s.RelationOID))
	dst = append(dst, byte(s.ReplicaIdentity))
	dst = binary.AppendUvarint(dst, uint64(len(s.Columns)))
	for i := range s.Columns {
		c := &s.Columns[i]
		dst = appendStr(dst, c.Name)
		dst = binary.AppendUvarint(dst, uint64(uint16(c.Number)))
		dst = binary.AppendUvarint(dst, uint64(c.TypeOID))
		dst = appendStr(dst, c.TypeName)
		dst = binary.AppendUvarint(dst, uint64(uint32(c.TypeMod)))
		var flags byte
		if c.Key {
			flags |= columnKey
		}
		if c.BaseOID != 0 {
			flags |= columnBase
		}
		if dst = append(dst, flags); flags&columnBase != 0 {
			dst = appendStr(binary.AppendUvarint(dst, uint64(c.BaseOID)), c.BaseName)
		}
	}
	return dst
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) schema() *engine.Schema {
	s := &engine.Schema{ID: uint32(d.uvarint()), Table: d.table(), RelationOID: uint32(d.uvarint()), ReplicaIdentity: engine.ReplicaIdentity(d.byte())}
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.b, d.bad = nil, true
		return s
	}
	for range n {
		c := engine.Column{
			Name: d.str(), Number: int16(d.uvarint()), TypeOID: uint32(d.uvarint()), TypeName: d.str(), TypeMod: int32(uint32(d.uvarint())),
		}
		flags := d.byte()
		if c.Key = flags&columnKey != 0; flags&columnBase != 0 {
			c.BaseOID, c.BaseName = uint32(d.uvarint()), d.str()
		}
		s.Columns = append(s.Columns, c)
	}
	return s
}

// appendBlockHead encodes what comes before a block's payload, which is kept as it is. shapeOf
// numbers a schema. The block's own schemas and those of other logs are one list,
// since a shape names its log.
func appendBlockHead(dst []byte, log engine.LogID, b *engine.Block, shapeOf func(engine.LogID, *engine.Schema) uint32) []byte {
	dst = appendStr(appendStr(dst, b.Prev), b.Position)
	dst = binary.AppendUvarint(dst, uint64(b.Time))
	dst = binary.AppendUvarint(dst, uint64(b.Changes))
	part := uint64(b.Part) << 1
	if b.Last {
		part |= 1
	}
	dst = binary.AppendUvarint(dst, part)
	dst = binary.AppendUvarint(dst, uint64(len(b.Schemas)+len(b.Others)))
	for _, s := range b.Schemas {
		dst = binary.AppendUvarint(dst, uint64(shapeOf(log, s)))
	}
	for _, o := range b.Others {
		dst = binary.AppendUvarint(dst, uint64(shapeOf(o.Log, o.Schema)))
	}
	dst = binary.AppendUvarint(dst, uint64(len(b.Ends)))
	offset, changes := 0, 0
	for _, e := range b.Ends {
		dst = appendStr(dst, e.Position)
		dst = binary.AppendUvarint(dst, uint64(e.Offset-offset))
		dst = binary.AppendUvarint(dst, uint64(e.Changes-changes))
		offset, changes = e.Offset, e.Changes
	}
	return dst
}

// decodeBlock reads a block of a log into memory of its own, or all of it but what is in pieces.
func decodeBlock(v []byte, log engine.LogID, shapeAt func(uint64) *shape) (*engine.Block, pieces, error) {
	d := decoder{b: v}
	in, prev := d.pieces()
	b := &engine.Block{Prev: engine.Position(d.take(prev)), Position: engine.Position(d.str()), Time: engine.Time(d.uvarint()), Changes: int(d.uvarint())}
	part := d.uvarint()
	b.Part, b.Last = uint32(part>>1), part&1 != 0
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		return nil, in, errDamaged
	}
	for range n {
		sh := shapeAt(d.uvarint())
		if sh == nil {
			return nil, in, errDamaged
		}
		if sh.log == log {
			b.Schemas = append(b.Schemas, sh.schema)
		} else {
			b.Others = append(b.Others, engine.LogSchema{Log: sh.log, Schema: sh.schema})
		}
	}
	if n = d.uvarint(); n > uint64(len(d.b)) {
		return nil, in, errDamaged
	}
	if n > 0 {
		b.Ends = make([]engine.End, n)
	}
	offset, changes := 0, 0
	for i := range b.Ends {
		p := d.bytes()
		offset += int(d.uvarint())
		changes += int(d.uvarint())
		if i == int(n)-1 && string(p) == string(b.Position) {
			b.Ends[i] = engine.End{Position: b.Position, Offset: offset, Changes: changes}
		} else {
			b.Ends[i] = engine.End{Position: engine.Position(p), Offset: offset, Changes: changes}
		}
	}
	if size := len(d.b) + in.size; d.bad || offset < 0 || offset > size || in.n > 0 && len(d.b) > 0 {
		return nil, in, errDamaged
	}
	if in.n == 0 {
		b.Payload = append(make([]byte, 0, len(d.b)), d.b...)
	}
	return b, in, nil
}

// blockMeta is what is known of a block without reading it.
type blockMeta struct {
	position engine.Position
	size     int // of what is stored for it
	changes  int
	part     uint32
	last     bool
	pieces   int // of its payload
}

func (m *blockMeta) append(dst []byte) []byte {
	dst = binary.AppendUvarint(appendStr(dst, m.position), uint64(m.size))
	dst = binary.AppendUvarint(dst, uint64(m.changes))
	part := uint64(m.part) << 1
	if m.last {
		part |= 1
	}
	if dst = binary.AppendUvarint(dst, part); m.pieces > 0 {
		dst = binary.AppendUvarint(dst, uint64(m.pieces))
	}
	return dst
}

func decodeBlockMeta(v []byte) (m blockMeta, err error) {
	d := decoder{b: v}
	m = blockMeta{position: engine.Position(d.str()), size: int(d.uvarint()), changes: int(d.uvarint())}
	part := d.uvarint()
	m.part, m.last = uint32(part>>1), part&1 != 0
	if len(d.b) > 0 {
		m.pieces = int(d.uvarint())
	}
	if !d.done() {
		return m, errDamaged
	}
	return m, nil
}
