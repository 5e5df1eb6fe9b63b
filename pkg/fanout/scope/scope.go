// Package scope narrows a log to tables, columns and rows, the same way at
// every node: what a scope hides of a change depends on the change and the scope
// alone, so that a cursor kept under a scope can be gone on with anywhere.
//
// Rows are chosen by conjunctions of column = value, IN and LIKE 'prefix%',
// compared by the column's type: of a domain by that under it, of an enum by its
// labels. A change that leaves a row outside the scope is
// a delete inside it: that is right whether the row was inside before or not. The
// columns of the key always stay.
//
// Limits: equality of text is equality of bytes, so that a column with a
// nondeterministic collation is compared more strictly than PostgreSQL does.
// Types that have no one text form per value, and types that only the source
// knows, are refused.
package scope

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Table is what is wanted of one table.
type Table struct {
	Name    engine.TableName
	Columns []string    // beside those of the key; nil: all
	Where   []Condition // a row is wanted if all hold
}

// Operator is how a Condition compares.
type Operator uint8

// The operators.
const (
	Equal  Operator = iota + 1 // column = value
	In                         // column IN (values)
	Prefix                     // column LIKE 'value%', with nothing in value being special
)

// Condition compares a column with values in text form. A null column holds
// none.
type Condition struct {
	Column string
	Op     Operator
	Values []string
}

// String returns the condition as it would stand in SQL.
func (c Condition) String() string {
	quoted := make([]string, len(c.Values))
	for i, v := range c.Values {
		quoted[i] = "'" + strings.ReplaceAll(v, "'", "''") + "'"
	}
	list := strings.Join(quoted, ", ")
	switch c.Op {
	case In:
		return c.Column + " IN (" + list + ")"
	case Prefix:
		return c.Column + " LIKE " + strings.TrimSuffix(list, "'") + "%'"
	}
	return c.Column + " = " + list
}

// Bounds of one table's scope.
const (
	maxConditions = 64
	maxValues     = 10_000
	maxColumns    = 4096
)

// Scope is a set of narrowed tables. A nil *Scope is the whole log. It is
// immutable and safe for concurrent use.
type Scope struct {
	id     engine.Scope
	tables []Table // by name
	byName map[engine.TableName]*Table

	mu       sync.RWMutex
	programs map[*engine.Schema]*program
}

// New returns the scope of tables; none give nil, the whole log. Two scopes that
// say the same have the same ID, however they say it.
func New(tables ...Table) (*Scope, error) {
	if len(tables) == 0 {
		return nil, nil
	}
	s := &Scope{byName: map[engine.TableName]*Table{}, programs: map[*engine.Schema]*program{}}
	for _, t := range tables {
		t, err := canonical(t)
		if err != nil {
			return nil, err
		}
		s.tables = append(s.tables, t)
	}
	slices.SortStableFunc(s.tables, func(a, b Table) int { return a.Name.Compare(b.Name) })
	var b strings.Builder
	for i := range s.tables {
		t := &s.tables[i]
		if have := s.byName[t.Name]; have != nil {
			if have.text() == t.text() {
				continue
			}
			return nil, fmt.Errorf("table %s is named twice, with different columns or conditions: name it once", t.Name)
		}
		s.byName[t.Name] = t
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(t.text())
	}
	s.tables = slices.CompactFunc(s.tables, func(a, b Table) bool { return a.Name == b.Name })
	for i := range s.tables {
		s.byName[s.tables[i].Name] = &s.tables[i]
	}
	s.id = engine.Scope(b.String())
	return s, nil
}

// Tables returns the scope of whole tables; none give nil, the whole log.
func Tables(names ...engine.TableName) *Scope {
	ts := make([]Table, len(names))
	for i, n := range names {
		ts[i].Name = n
	}
	s, _ := New(ts...) // whole tables cannot contradict each other
	return s
}

// canonical checks a table's scope and brings it into the one form it has.
func canonical(t Table) (Table, error) {
	refuse := func(format string, args ...any) (Table, error) {
		return t, fmt.Errorf("the scope of table %s "+format, append([]any{t.Name}, args...)...)
	}
	if t.Name.Name == "" {
		return t, fmt.Errorf("a scope names no table")
	}
	if len(t.Columns) > maxColumns {
		return refuse("lists %d columns; at most %d are allowed", len(t.Columns), maxColumns)
	}
	if len(t.Where) > maxConditions {
		return refuse("has %d conditions; at most %d are allowed", len(t.Where), maxConditions)
	}
	if len(t.Columns) == 0 {
		t.Columns = nil
	} else {
		t.Columns = slices.Clone(t.Columns)
		slices.Sort(t.Columns)
		t.Columns = slices.Compact(t.Columns)
	}
	t.Where = slices.Clone(t.Where)
	values := 0
	for i := range t.Where {
		c := &t.Where[i]
		c.Values = slices.Clone(c.Values)
		switch {
		case c.Column == "":
			return refuse("has a condition without a column")
		case c.Op == In && len(c.Values) == 0:
			return refuse("compares column %q with an empty list: no row would be left", c.Column)
		case c.Op == In:
			slices.Sort(c.Values)
			if c.Values = slices.Compact(c.Values); len(c.Values) == 1 {
				c.Op = Equal
			}
		case c.Op != Equal && c.Op != Prefix:
			return refuse("compares column %q with an operator that is not known: use equal, in or prefix", c.Column)
		case len(c.Values) != 1:
			return refuse("compares column %q with %d values, where one is needed", c.Column, len(c.Values))
		}
		if values += len(c.Values); values > maxValues {
			return refuse("has more than %d values", maxValues)
		}
	}
	slices.SortFunc(t.Where, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(a.Column, b.Column), cmp.Compare(a.Op, b.Op), slices.Compare(a.Values, b.Values))
	})
	t.Where = slices.CompactFunc(t.Where, Condition.same)
	if len(t.Where) == 0 {
		t.Where = nil
	}
	return t, nil
}

func (c Condition) same(o Condition) bool {
	return c.Column == o.Column && c.Op == o.Op && slices.Equal(c.Values, o.Values)
}

// Narrowed reports whether less than the whole table is wanted.
func (t *Table) Narrowed() bool { return t.Columns != nil || len(t.Where) > 0 }

// text is the table's part of the ID.
func (t *Table) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q.%q", t.Name.Schema, t.Name.Name)
	if t.Columns != nil {
		fmt.Fprintf(&b, "%q", t.Columns)
	}
	if len(t.Where) > 0 {
		b.WriteByte('{')
		for i, c := range t.Where {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%q%c%q", c.Column, " =@^"[c.Op], c.Values)
		}
		b.WriteByte('}')
	}
	return b.String()
}

// ID names the scope in cursors; empty for the whole log.
func (s *Scope) ID() engine.Scope {
	if s == nil {
		return ""
	}
	return s.id
}

// Tables returns the tables, by name; nil for the whole log.
func (s *Scope) Tables() []Table {
	if s == nil {
		return nil
	}
	return s.tables
}

// Names returns the tables' names; nil for the whole log.
func (s *Scope) Names() []engine.TableName {
	if s == nil {
		return nil
	}
	names := make([]engine.TableName, len(s.tables))
	for i, t := range s.tables {
		names[i] = t.Name
	}
	return names
}

// Covers reports whether the scope has a table.
func (s *Scope) Covers(t engine.TableName) bool { return s == nil || s.byName[t] != nil }

// Of returns what the scope wants of a table; all of it in the whole log.
func (s *Scope) Of(t engine.TableName) Table {
	if s != nil {
		if have := s.byName[t]; have != nil {
			return *have
		}
	}
	return Table{Name: t}
}

// Only returns the scope of some of its tables.
func (s *Scope) Only(names []engine.TableName) *Scope {
	var ts []Table
	for _, n := range names {
		ts = append(ts, s.Of(n))
	}
	out, _ := New(ts...) // taken from a scope, or whole
	return out
}

// Partial returns the tables that the scope narrows, or nil if it narrows none.
func (s *Scope) Partial() *Scope {
	if s == nil {
		return nil
	}
	var ts []Table
	for _, t := range s.tables {
		if t.Narrowed() {
			ts = append(ts, t)
		}
	}
	out, _ := New(ts...)
	return out
}

// Within says why a table as wanted cannot be had where only have of it is
// kept; nil if it can.
func (t Table) Within(have Table) error {
	if have.Columns != nil {
		if t.Columns == nil {
			return fmt.Errorf("it has only the columns %s of table %s beside the key: list the same or fewer", strings.Join(have.Columns, ", "), t.Name)
		}
		for _, c := range t.Columns {
			if !slices.Contains(have.Columns, c) {
				return fmt.Errorf("it has only the columns %s of table %s beside the key, and column %s is wanted", strings.Join(have.Columns, ", "), t.Name, c)
			}
		}
	}
	for _, h := range have.Where {
		if !slices.ContainsFunc(t.Where, h.implied) {
			return fmt.Errorf("it has only the rows of table %s where %s: ask for them with the same condition", t.Name, h)
		}
	}
	return nil
}

// implied reports whether c holds wherever by does.
func (c Condition) implied(by Condition) bool {
	if c.Column != by.Column {
		return false
	}
	switch c.Op {
	case Prefix:
		return by.Op == Prefix && strings.HasPrefix(by.Values[0], c.Values[0])
	default:
		if by.Op == Prefix {
			return false
		}
		for _, v := range by.Values {
			if !slices.Contains(c.Values, v) {
				return false
			}
		}
		return true
	}
}

// Beyond returns what is left to do for the scope where have has been applied:
// conditions that hold already need not be looked at, nor their columns be there.
func (s *Scope) Beyond(have *Scope) *Scope {
	if s == nil || have == nil {
		return s
	}
	ts := slices.Clone(s.tables)
	for i := range ts {
		h := have.Of(ts[i].Name)
		ts[i].Where = slices.DeleteFunc(slices.Clone(ts[i].Where), func(c Condition) bool {
			return slices.ContainsFunc(h.Where, c.same)
		})
	}
	out, _ := New(ts...)
	return out
}
