package postgres

import (
	"bytes"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// copyParser turns lines of COPY's text format into records in slabs.
type copyParser struct {
	schema *engine.Schema
	header []byte
	isKey  []bool
	bag    bool // a table without a key: nulls are part of the rows' identity

	slab    []byte
	records []engine.Record
	bytes   int
	keys    [][]byte // of the line being read
}

func newCopyParser(s *engine.Schema) *copyParser {
	r := newRelation(s)
	return &copyParser{schema: s, header: r.header, isKey: r.isKey, bag: s.Multiset()}
}

// line takes one line without its newline, and alters it. COPY escapes
// newlines and tabs in values, so a line is a row and a tab ends a value.
func (p *copyParser) line(line []byte) error {
	// A value's length takes at most 5 bytes in place of its tab; a key doubles
	// at most, and takes 3 more.
	need := len(p.header) + 3*len(line) + 8*len(p.isKey)
	if need > slabSize {
		need = p.room(line)
	}
	if cap(p.slab)-len(p.slab) < need {
		p.slab = make([]byte, 0, max(need, slabSize))
	}
	row := append(p.slab[len(p.slab):], p.header...)
	p.keys = p.keys[:0]
	rest, more := line, true
	for i, isKey := range p.isKey {
		if !more {
			return p.bad(i, line)
		}
		var v []byte
		if j := bytes.IndexByte(rest, '\t'); j >= 0 {
			v, rest = rest[:j], rest[j+1:]
		} else {
			v, more = rest, false
		}
		if k := bytes.IndexByte(v, '\\'); k >= 0 {
			if len(v) == 2 && v[1] == 'N' {
				row = engine.AppendNull(row)
				switch {
				case isKey && !p.bag:
					return fmt.Errorf("a row of %s has no value for key column %q", p.schema.Table, p.schema.Columns[i].Name)
				case isKey:
					p.keys = append(p.keys, nil)
				}
				continue
			}
			v = unescape(v, k)
		}
		row = engine.AppendValue(row, v)
		if isKey {
			p.keys = append(p.keys, v)
		}
	}
	if more && len(p.isKey) > 0 {
		return p.bad(len(p.isKey)+1+bytes.Count(rest, []byte{'\t'}), line)
	}
	n := len(row)
	for _, k := range p.keys {
		if k == nil {
			row = engine.AppendKeyNull(row)
		} else {
			row = engine.AppendKeyValue(row, k)
		}
	}
	p.slab = p.slab[:len(p.slab)+len(row)]
	p.records = append(p.records, engine.Record{Schema: p.schema, Key: row[n:len(row):len(row)], Row: engine.Row(row[:n:n])})
	p.bytes += len(row)
	return nil
}

// room is what a record takes that is large: of its values only keys are there twice.
func (p *copyParser) room(line []byte) int {
	n := len(p.header) + len(line) + 8*len(p.isKey)
	for _, isKey := range p.isKey {
		v, rest, _ := bytes.Cut(line, []byte{'\t'})
		if line = rest; isKey {
			n += 2 * len(v)
		}
	}
	return n
}

func (p *copyParser) bad(n int, line []byte) error {
	return fmt.Errorf("COPY of %s gave a line of %d bytes with %d columns, want %d", p.schema.Table, len(line), n, len(p.isKey))
}

// reset forgets the records, whose memory is used again.
func (p *copyParser) reset() {
	clear(p.records)
	p.records, p.bytes = p.records[:0], 0
	if cap(p.slab) > 2*slabSize {
		p.slab = nil
	}
	p.slab = p.slab[:0]
}

// unescape replaces COPY's escapes in place; the first backslash is at i.
func unescape(v []byte, i int) []byte {
	out := v[:i]
	for i < len(v) {
		c := v[i]
		if c != '\\' || i+1 == len(v) {
			out = append(out, c)
			i++
			continue
		}
		switch c = v[i+1]; c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'v':
			c = '\v'
		}
		out = append(out, c)
		i += 2
	}
	return out
}
