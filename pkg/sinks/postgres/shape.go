package postgres

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// shape is how rows of one schema are written to their table.
type shape struct {
	schema *engine.Schema
	table  *table
	name   string // quoted
	write  []int  // columns of the schema that are written, by index
	keys   []int  // key columns of the schema
	cols   string // of write, quoted, with commas
	tail   string // of an INSERT: what happens on a conflict
	made   map[made]string
}

// made names a statement by what it does and for how many rows.
type made struct {
	op engine.Op
	n  int
}

// sql returns the statement for n rows, which is made once.
func (s *shape) sql(op engine.Op, n int, build func(int) string) string {
	k := made{op, n}
	q, ok := s.made[k]
	if !ok {
		q = build(n)
		s.made[k] = q
	}
	return q
}

// truncate is the statement that empties tables.
func (s *shape) truncate(tables []string) string { return "TRUNCATE " + strings.Join(tables, ", ") }

func newShape(s *engine.Schema, t *table) *shape {
	sh := &shape{schema: s, table: t, name: t.quoted(), keys: s.KeyColumns(), made: map[made]string{}}
	var names, sets, keys []string
	for i, c := range s.Columns {
		q := pgsession.QuoteIdent(c.Name)
		if c.Key {
			keys = append(keys, q)
		}
		if t.columns[c.Name].generated {
			continue
		}
		sh.write = append(sh.write, i)
		names = append(names, q)
		if !c.Key {
			sets = append(sets, q+" = EXCLUDED."+q)
		}
	}
	sh.cols = strings.Join(names, ", ")
	switch {
	case len(keys) == 0:
	case len(sets) == 0:
		sh.tail = fmt.Sprintf(" ON CONFLICT (%s) DO NOTHING", strings.Join(keys, ", "))
	default:
		sh.tail = fmt.Sprintf(" ON CONFLICT (%s) DO UPDATE SET %s", strings.Join(keys, ", "), strings.Join(sets, ", "))
	}
	return sh
}

// maxParams is how many parameters a statement can have (the protocol counts
// them in 16 bits).
const maxParams = 65535

// sizes are the numbers of rows that statements are made for: few, so that few
// have to be prepared.
var sizes = []int{512, 128, 32, 8, 4, 2, 1}

// fit returns the largest of sizes that is at most n and that columns allow.
func fit(n, columns int) int {
	i := slices.IndexFunc(sizes, func(s int) bool { return s <= n && s*columns <= maxParams })
	if i < 0 {
		return 1
	}
	return sizes[i]
}

// insert is the statement that writes n rows.
func (s *shape) insert(n int) string {
	if len(s.write) == 0 {
		return "INSERT INTO " + s.name + " DEFAULT VALUES"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES ", s.name, s.cols)
	p := 0
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		for j := range s.write {
			if j > 0 {
				b.WriteByte(',')
			}
			p++
			fmt.Fprintf(&b, "$%d", p)
		}
		b.WriteByte(')')
	}
	b.WriteString(s.tail)
	return b.String()
}

// remove is the statement that deletes n rows by key; of a table without one, a
// row that is equal.
func (s *shape) remove(n int) string {
	if len(s.keys) == 0 {
		var conds []string
		for i, c := range s.schema.Columns {
			conds = append(conds, fmt.Sprintf("%s::text IS NOT DISTINCT FROM $%d::%s::text", pgsession.QuoteIdent(c.Name), i+1, s.table.columns[c.Name].typ))
		}
		if len(conds) == 0 {
			conds = []string{"true"}
		}
		return fmt.Sprintf("DELETE FROM %s WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM %s WHERE %s LIMIT 1)", s.name, s.name, strings.Join(conds, " AND "))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "DELETE FROM %s t USING (VALUES ", s.name)
	p := 0
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		for j, k := range s.keys {
			if j > 0 {
				b.WriteByte(',')
			}
			p++
			fmt.Fprintf(&b, "$%d::%s", p, s.table.columns[s.schema.Columns[k].Name].typ)
		}
		b.WriteByte(')')
	}
	b.WriteString(") v(")
	for j := range s.keys {
		if j > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "k%d", j)
	}
	b.WriteString(") WHERE ")
	for j, k := range s.keys {
		if j > 0 {
			b.WriteString(" AND ")
		}
		fmt.Fprintf(&b, "t.%s = v.k%d", pgsession.QuoteIdent(s.schema.Columns[k].Name), j)
	}
	return b.String()
}

// values appends the written columns of a row, nil for null.
func (s *shape) values(dst [][]byte, row engine.Row) ([][]byte, error) {
	all := make([][]byte, 0, len(s.schema.Columns))
	for _, c := range row.Columns() {
		if c.State == engine.Present {
			all = append(all, c.Value)
		} else {
			all = append(all, nil)
		}
	}
	if len(all) != len(s.schema.Columns) {
		return dst, fmt.Errorf("%w: a row of %s has %d columns, want %d", engine.ErrCorruptRow, s.schema.Table, len(all), len(s.schema.Columns))
	}
	if len(s.write) == len(all) {
		return append(dst, all...), nil
	}
	for _, i := range s.write {
		dst = append(dst, all[i])
	}
	return dst, nil
}

// keyValues appends the values of a key; of a table without one, those of the
// whole row.
func (s *shape) keyValues(dst [][]byte, key []byte) ([][]byte, error) {
	parts, err := engine.DecodeKey(key)
	if err != nil {
		return dst, err
	}
	want := len(s.keys)
	if want == 0 {
		want = len(s.schema.Columns)
		parts = parts[:min(len(parts), want)] // without the ordinal
	}
	if len(parts) != want {
		return dst, fmt.Errorf("%w: a key of %s has %d columns, want %d", engine.ErrCorruptRow, s.schema.Table, len(parts), want)
	}
	return append(dst, parts...), nil
}

// keyList lists the key columns, quoted, each with a prefix.
func (s *shape) keyList(prefix string) string {
	var names []string
	for _, k := range s.keys {
		names = append(names, prefix+pgsession.QuoteIdent(s.schema.Columns[k].Name))
	}
	return strings.Join(names, ", ")
}
