package engine

import (
	"encoding/binary"
	"fmt"
)

// The encoding of a baseline's records between nodes. A frame holds records of
// one table and can be read without the frames before it.
//
//	records = record*
//	record  = tag [origin] [stamp] uvarint(schema) uvarint(len) key [uvarint(len) row]
//	tag     = 0x02 put (has a row) | 0x03 tombstone
//	        + 0x10 if a stamp follows: else it is the record's before
//	        + 0x20 if an origin follows: else it is the record's before
//	origin  = uvarint(len) origin uvarint(epoch)
//	stamp   = uvarint(time) uvarint(major) uvarint(minor)
const (
	tagStamp  = 0x10
	tagOrigin = 0x20
)

// RecordEncoder packs records into frames.
type RecordEncoder struct {
	buf  []byte
	last Stamp
	n    int
}

// Append adds a record, copying its bytes.
func (e *RecordEncoder) Append(r *Record) {
	tag := byte(tagPut)
	if r.Deleted {
		tag = tagDelete
	}
	if e.n == 0 || r.Stamp.Log() != e.last.Log() {
		tag |= tagOrigin | tagStamp
	} else if r.Stamp != e.last {
		tag |= tagStamp
	}
	e.last = r.Stamp
	e.n++
	p := append(e.buf, tag)
	if tag&tagOrigin != 0 {
		p = binary.AppendUvarint(p, uint64(len(r.Stamp.Origin)))
		p = append(p, r.Stamp.Origin...)
		p = binary.AppendUvarint(p, uint64(r.Stamp.Epoch))
	}
	if tag&tagStamp != 0 {
		p = binary.AppendUvarint(p, uint64(r.Stamp.Time))
		p = binary.AppendUvarint(p, r.Stamp.Version.Major)
		p = binary.AppendUvarint(p, uint64(r.Stamp.Version.Minor))
	}
	p = binary.AppendUvarint(p, uint64(r.Schema.ID))
	p = binary.AppendUvarint(p, uint64(len(r.Key)))
	p = append(p, r.Key...)
	if !r.Deleted {
		p = binary.AppendUvarint(p, uint64(len(r.Row)))
		p = append(p, r.Row...)
	}
	e.buf = p
}

// Len returns the size of the frame so far.
func (e *RecordEncoder) Len() int { return len(e.buf) }

// Records returns how many records the frame holds so far.
func (e *RecordEncoder) Records() int { return e.n }

// Take returns the frame, which is the caller's, and starts another.
func (e *RecordEncoder) Take() []byte {
	p := e.buf
	e.buf, e.n = make([]byte, 0, cap(p)), 0
	return p
}

// DecodeRecords appends the records of a frame to dst. They share its memory.
// schema resolves the schemas of the logs that the stamps name. Every row is
// checked against its schema, and every schema to be of table.
func DecodeRecords(dst []Record, table TableName, p []byte, schema func(LogID, uint32) *Schema) ([]Record, error) {
	r := BlockReader{p: p}
	var st Stamp
	var sc *Schema
	for first := true; len(r.p) > 0; first = false {
		tag := r.p[0]
		r.p = r.p[1:]
		if first && tag&tagOrigin == 0 {
			return dst, fmt.Errorf("%w: the first record of a frame has no origin", ErrCorruptRow)
		}
		if tag&tagOrigin != 0 {
			st.Origin, st.Epoch, sc = string(r.bytes()), Epoch(r.uvarint()), nil
		}
		if tag&tagStamp != 0 {
			st.Time = Time(r.uvarint())
			st.Version = Version{r.uvarint(), r.uint32()}
		}
		id := r.uint32()
		key := r.bytes()
		if r.err != nil {
			return dst, r.err
		}
		if sc == nil || sc.ID != id {
			if sc = schema(st.Log(), id); sc == nil {
				return dst, fmt.Errorf("%w: schema %d of log %s is not known", ErrCorruptRow, id, st.Log())
			}
			if sc.Table != table {
				return dst, fmt.Errorf("%w: a row of %s in a frame of %s", ErrCorruptRow, sc.Table, table)
			}
		}
		rec := Record{Schema: sc, Key: key, Stamp: st}
		switch tag &^ (tagOrigin | tagStamp) {
		case tagPut:
			rec.Row = Row(r.bytes())
			if r.err != nil {
				return dst, r.err
			}
			if unchanged, err := rec.Row.Check(sc); err != nil {
				return dst, err
			} else if unchanged {
				return dst, fmt.Errorf("%w: a row of %s with a column that says unchanged", ErrCorruptRow, table)
			}
		case tagDelete:
			rec.Deleted = true
		default:
			return dst, fmt.Errorf("%w: unknown record tag %#x", ErrCorruptRow, tag)
		}
		dst = append(dst, rec)
	}
	return dst, nil
}

func (r *BlockReader) uint32() uint32 {
	v := r.uvarint()
	if v > 1<<32-1 {
		r.fail("a number is too large")
		return 0
	}
	return uint32(v)
}
