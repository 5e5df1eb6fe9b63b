package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
)

// Row is a packed row: the schema's ID, the number of columns, and per column a
// code followed by the value's bytes. Values are PostgreSQL's text form, so that
// every type passes without loss and nothing is decoded on the way.
//
//	row    = uvarint(schema ID) uvarint(columns) column*
//	column = uvarint(0) absent | uvarint(1) unchanged | uvarint(2) null
//	       | uvarint(3+n) n bytes
type Row []byte

// ColumnState says what a row holds for a column.
type ColumnState uint8

// The states of a column.
const (
	Absent    ColumnState = iota // not part of this row
	Unchanged                    // a large value the source did not send again: the state has it
	Null
	Present
)

// ErrCorruptRow is what reading a row, key or block that is not well formed gives.
var ErrCorruptRow = errors.New("corrupt row")

// AppendRowHeader starts a row of n columns in dst.
func AppendRowHeader(dst []byte, schema uint32, n int) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(schema)), uint64(n))
}

// AppendAbsent adds a column that is not part of the row.
func AppendAbsent(dst []byte) []byte { return append(dst, byte(Absent)) }

// AppendUnchanged adds a column whose value the source did not send.
func AppendUnchanged(dst []byte) []byte { return append(dst, byte(Unchanged)) }

// AppendNull adds a null column.
func AppendNull(dst []byte) []byte { return append(dst, byte(Null)) }

// AppendValue adds a column with a value in text form.
func AppendValue[T ~string | ~[]byte](dst []byte, v T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(v))+3), v...)
}

// Header returns the schema ID, the number of columns and the columns' bytes.
func (r Row) Header() (schema uint32, columns int, body []byte, err error) {
	id, n := binary.Uvarint(r)
	if n <= 0 || id > 1<<32-1 {
		return 0, 0, nil, ErrCorruptRow
	}
	c, m := binary.Uvarint(r[n:])
	if m <= 0 || c > uint64(len(r)) {
		return 0, 0, nil, ErrCorruptRow
	}
	return uint32(id), int(c), r[n+m:], nil
}

// NextColumn reads one column from the front of body.
func NextColumn(body []byte) (s ColumnState, value, rest []byte, err error) {
	code, n := binary.Uvarint(body)
	if n <= 0 {
		return 0, nil, nil, ErrCorruptRow
	}
	if code < 3 {
		return ColumnState(code), nil, body[n:], nil
	}
	size := code - 3
	if size > uint64(len(body)-n) {
		return 0, nil, nil, ErrCorruptRow
	}
	return Present, body[n : n+int(size) : n+int(size)], body[n+int(size):], nil
}

// RowColumn is one column of a row that is being read.
type RowColumn struct {
	State ColumnState
	Value []byte // text form; shares the row's memory
}

// Columns iterates over the row's columns in order. It stops silently at
// damage: use Check first where bytes come from outside.
func (r Row) Columns() iter.Seq2[int, RowColumn] {
	return func(yield func(int, RowColumn) bool) {
		_, n, body, err := r.Header()
		for i := 0; err == nil && i < n; i++ {
			var c RowColumn
			if c.State, c.Value, body, err = NextColumn(body); err != nil || !yield(i, c) {
				return
			}
		}
	}
}

// Check reports whether the row is well formed for a schema, and whether a
// column of it is unchanged.
func (r Row) Check(s *Schema) (unchanged bool, err error) {
	id, n, body, err := r.Header()
	if err != nil {
		return false, err
	}
	if id != s.ID || n != len(s.Columns) {
		return false, fmt.Errorf("%w: row has schema %d and %d columns, %s has schema %d and %d columns", ErrCorruptRow, id, n, s.Table, s.ID, len(s.Columns))
	}
	for range n {
		var st ColumnState
		if st, _, body, err = NextColumn(body); err != nil {
			return false, err
		}
		unchanged = unchanged || st == Unchanged
	}
	if len(body) != 0 {
		return false, fmt.Errorf("%w: %d bytes after the last column of %s", ErrCorruptRow, len(body), s.Table)
	}
	return unchanged, nil
}

// Values returns the row without its schema ID: equal bytes under equal schema
// fingerprints are equal rows.
func (r Row) Values() []byte {
	_, n := binary.Uvarint(r)
	if n <= 0 {
		return r
	}
	return r[n:]
}

// FillUnchanged appends to dst the row with every unchanged column taken from
// old, which must be of the same schema or of an earlier one whose columns are
// found by attribute number. It fails if old lacks one.
func (r Row) FillUnchanged(dst []byte, s *Schema, old Row, oldSchema *Schema) ([]byte, error) {
	id, n, body, err := r.Header()
	if err != nil {
		return dst, err
	}
	if n != len(s.Columns) {
		return dst, fmt.Errorf("%w: row has %d columns, %s has %d", ErrCorruptRow, n, s.Table, len(s.Columns))
	}
	prev := make([]RowColumn, len(oldSchema.Columns))
	for i, c := range old.Columns() {
		if i < len(prev) {
			prev[i] = c
		}
	}
	dst = AppendRowHeader(dst, id, n)
	for i := range n {
		st, v, rest, err := NextColumn(body)
		if err != nil {
			return dst, err
		}
		if st == Unchanged {
			j := i
			if oldSchema != s {
				j = oldSchema.columnByNumber(s.Columns[i].Number)
			}
			if j < 0 || (prev[j].State != Present && prev[j].State != Null) {
				return dst, fmt.Errorf("column %q of %s was sent as unchanged, and the state does not have its value", s.Columns[i].Name, s.Table)
			}
			st, v = prev[j].State, prev[j].Value
		}
		switch st {
		case Present:
			dst = AppendValue(dst, v)
		default:
			dst = append(dst, byte(st))
		}
		body = rest
	}
	return dst, nil
}

func (s *Schema) columnByNumber(n int16) int {
	for i, c := range s.Columns {
		if c.Number == n {
			return i
		}
	}
	return -1
}

// Keys order rows within a table: the key columns' text forms, column by
// column, so that a prefix of the columns is a prefix of the bytes. (The order
// is of bytes, not of the type: it is for paging, not for people.)
//
//	key  = part*
//	part = 0x01 null | 0x02 escaped 0x00 0x01, where 0x00 is escaped as 0x00 0xFF

// AppendKeyValue adds a key column's value to dst.
func AppendKeyValue[T ~string | ~[]byte](dst []byte, v T) []byte {
	dst = append(dst, 2)
	for i := range len(v) {
		if v[i] == 0 {
			dst = append(dst, 0, 0xFF)
		} else {
			dst = append(dst, v[i])
		}
	}
	return append(dst, 0, 1)
}

// AppendKeyNull adds a null key column to dst (REPLICA IDENTITY FULL only).
func AppendKeyNull(dst []byte) []byte { return append(dst, 1) }

// AppendKey adds the key of row to dst, or fails where a key column has no value.
func AppendKey(dst []byte, s *Schema, row Row) ([]byte, error) {
	for i, c := range row.Columns() {
		if i >= len(s.Columns) || !s.Columns[i].Key {
			continue
		}
		switch c.State {
		case Present:
			dst = AppendKeyValue(dst, c.Value)
		case Null:
			dst = AppendKeyNull(dst)
		default:
			return dst, fmt.Errorf("%w: key column %q of %s has no value", ErrCorruptRow, s.Columns[i].Name, s.Table)
		}
	}
	return dst, nil
}

// DecodeKey returns the key columns' values, nil for null.
func DecodeKey(key []byte) ([][]byte, error) {
	var parts [][]byte
	for len(key) > 0 {
		switch key[0] {
		case 1:
			parts, key = append(parts, nil), key[1:]
			continue
		case 2:
		default:
			return nil, fmt.Errorf("%w: key part starts with %#x", ErrCorruptRow, key[0])
		}
		v, i := []byte{}, 1
		for {
			if i >= len(key) || (key[i] == 0 && i+1 >= len(key)) {
				return nil, fmt.Errorf("%w: key is cut short", ErrCorruptRow)
			}
			if key[i] != 0 {
				v = append(v, key[i])
				i++
				continue
			}
			if key[i+1] == 1 {
				break
			}
			if key[i+1] != 0xFF {
				return nil, fmt.Errorf("%w: bad escape in key", ErrCorruptRow)
			}
			v = append(v, 0)
			i += 2
		}
		parts, key = append(parts, v), key[i+2:]
	}
	return parts, nil
}
