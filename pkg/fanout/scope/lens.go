package scope

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// program is how the scope of a table looks at rows of one schema.
type program struct {
	schema *engine.Schema // narrowed; the schema itself where no column goes
	keep   []int          // columns that stay; nil: all
	tests  []test
	never  bool // a condition's column is not in the schema
}

type test struct {
	column int
	match  matcher
}

// maxPrograms bounds what is remembered of schemas that are no longer in use.
const maxPrograms = 4096

// of returns the program for a schema; nil if its table is outside the scope.
func (s *Scope) of(sc *engine.Schema) *program {
	s.mu.RLock()
	p, ok := s.programs[sc]
	s.mu.RUnlock()
	if ok {
		return p
	}
	if t := s.byName[sc.Table]; t != nil {
		p, _ = t.compile(sc) // one that Check refuses matches nothing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.programs) >= maxPrograms {
		clear(s.programs)
	}
	s.programs[sc] = p
	return p
}

// Check says why the scope cannot be applied to a schema: a column that is not
// there, a type that cannot be compared, a value that is none of the type.
func (s *Scope) Check(sc *engine.Schema) error {
	if s == nil {
		return nil
	}
	t := s.byName[sc.Table]
	if t == nil {
		return nil
	}
	_, err := t.compile(sc)
	return err
}

// compile makes the program. It is of use in spite of an error: it matches no
// row then.
func (t *Table) compile(sc *engine.Schema) (*program, error) {
	p := &program{schema: sc}
	var failed error
	for _, name := range t.Columns {
		if !slices.ContainsFunc(sc.Columns, func(c engine.Column) bool { return c.Name == name }) {
			failed = fmt.Errorf("table %s has no column %q: list columns that it has", t.Name, name)
		}
	}
	for _, c := range t.Where {
		i := slices.IndexFunc(sc.Columns, func(col engine.Column) bool { return col.Name == c.Column })
		if i < 0 {
			p.never = true
			failed = fmt.Errorf("table %s has no column %q, by which its rows are to be chosen: name a column that it has", t.Name, c.Column)
			continue
		}
		m, err := compile(&sc.Columns[i], c)
		if err != nil {
			p.never = true
			failed = fmt.Errorf("rows of table %s cannot be chosen by %s: %w", t.Name, c, err)
			continue
		}
		p.tests = append(p.tests, test{i, m})
	}
	slices.SortStableFunc(p.tests, func(a, b test) int { return a.column - b.column })
	if t.Columns == nil {
		return p, failed
	}
	if sc.Multiset() {
		return p, fmt.Errorf("table %s has no key, so that all its columns tell its rows apart: leave out the list of columns, or give the table a key", t.Name)
	}
	narrow := &engine.Schema{ID: narrowedID(sc.ID, t.Columns), Table: sc.Table, RelationOID: sc.RelationOID, ReplicaIdentity: sc.ReplicaIdentity}
	for i, c := range sc.Columns {
		if c.Key || slices.Contains(t.Columns, c.Name) {
			p.keep = append(p.keep, i)
			narrow.Columns = append(narrow.Columns, c)
		}
	}
	if len(p.keep) == len(sc.Columns) {
		p.keep = nil
		return p, failed
	}
	p.schema = narrow
	return p, failed
}

// narrowedID numbers a schema without some of its columns: apart from the
// origin's own numbers and from those of other lists of columns, in the order of
// the schemas it comes from, and alike at every node.
func narrowedID(id uint32, columns []string) uint32 {
	const narrowed = 1 << 31
	h := fnv.New32a()
	for _, c := range columns {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(c))))
		_, _ = h.Write([]byte(c))
	}
	return narrowed | h.Sum32()>>17<<16 | id&0xFFFF
}

// Schema returns a schema as it is seen through the scope; nil if its table is
// outside.
func (s *Scope) Schema(sc *engine.Schema) *engine.Schema {
	if s == nil {
		return sc
	}
	if p := s.of(sc); p != nil {
		return p.schema
	}
	return nil
}

// View looks at changes and records through a scope. It is not safe for
// concurrent use: what it returns is valid until its next call.
type View struct {
	scope *Scope
	last  *engine.Schema
	p     *program
	row   []byte
}

// View returns a view through the scope, which must not be nil.
func (s *Scope) View() *View { return &View{scope: s} }

// Schema is Scope.Schema.
func (v *View) Schema(sc *engine.Schema) *engine.Schema { return v.scope.Schema(sc) }

func (v *View) program(sc *engine.Schema) *program {
	if sc != v.last {
		v.last, v.p = sc, v.scope.of(sc)
	}
	return v.p
}

// Change makes a change what it is inside the scope, and reports whether it is
// anything there.
func (v *View) Change(c *engine.Change) bool {
	p := v.program(c.Schema)
	if p == nil {
		return false
	}
	c.Schema = p.schema
	if c.Op == engine.OpPut {
		if row, in := v.see(p, c.Row); in {
			c.Row = row
		} else {
			c.Op, c.Row = engine.OpDelete, nil
		}
	}
	return true
}

// Record makes a record what it is inside the scope: a row outside it is a
// tombstone there.
func (v *View) Record(r *engine.Record) bool {
	p := v.program(r.Schema)
	if p == nil {
		return false
	}
	r.Schema = p.schema
	if !r.Deleted {
		if row, in := v.see(p, r.Row); in {
			r.Row = row
		} else {
			r.Deleted, r.Row = true, nil
		}
	}
	return true
}

// see returns a row with the columns that stay, and whether it is inside.
func (v *View) see(p *program, row engine.Row) (engine.Row, bool) {
	if p.never {
		return nil, false
	}
	if p.keep == nil && len(p.tests) == 0 {
		return row, true
	}
	tests, keep := p.tests, p.keep
	if keep != nil {
		v.row = engine.AppendRowHeader(v.row[:0], p.schema.ID, len(keep))
	}
	for i, c := range row.Columns() {
		for len(tests) > 0 && tests[0].column == i {
			if c.State != engine.Present || !tests[0].match(c.Value) {
				return nil, false
			}
			tests = tests[1:]
		}
		if len(keep) > 0 && keep[0] == i {
			keep = keep[1:]
			if c.State == engine.Present {
				v.row = engine.AppendValue(v.row, c.Value)
			} else {
				v.row = append(v.row, byte(c.State))
			}
		} else if p.keep == nil && len(tests) == 0 {
			break
		}
	}
	if len(tests) > 0 {
		return nil, false
	}
	if p.keep != nil {
		return v.row, true
	}
	return row, true
}
