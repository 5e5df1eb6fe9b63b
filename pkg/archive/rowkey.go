package archive

import (
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// rowKey checks a row as engine.Row.Check does, and adds its key to dst, in one go. keyed is
// false if the schema has no key.
func rowKey(dst []byte, s *engine.Schema, r engine.Row) (key []byte, keyed bool, err error) {
	id, n, body, err := r.Header()
	if err != nil {
		return dst, false, err
	}
	if id != s.ID || n != len(s.Columns) {
		_, err := r.Check(s) // says what is wrong
		return dst, false, err
	}
	for i := range s.Columns {
		st, v, rest, err := engine.NextColumn(body)
		if err != nil {
			return dst, false, err
		}
		body = rest
		if st == engine.Unchanged {
			return dst, false, fmt.Errorf("%w: a row of %s with a column that says unchanged", engine.ErrCorruptRow, s.Table)
		}
		if !s.Columns[i].Key {
			continue
		}
		keyed = true
		switch st {
		case engine.Present:
			dst = engine.AppendKeyValue(dst, v)
		case engine.Null:
			dst = engine.AppendKeyNull(dst)
		default:
			return dst, false, fmt.Errorf("%w: key column %q of %s has no value", engine.ErrCorruptRow, s.Columns[i].Name, s.Table)
		}
	}
	if len(body) != 0 {
		return dst, false, fmt.Errorf("%w: %d bytes after the last column of %s", engine.ErrCorruptRow, len(body), s.Table)
	}
	return dst, keyed, nil
}
