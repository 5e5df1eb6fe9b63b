package ingest

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Table declares a table that can be written.
type Table struct {
	Name    engine.TableName
	Columns []Column
}

// Column declares a column. Those of the key identify a row, in the order in
// which they stand.
type Column struct {
	Name string
	Type string // as PostgreSQL names it
	Key  bool
}

// table is a declared table, ready for use.
type table struct {
	name    engine.TableName
	columns []column
	byName  map[string]int
	keys    []int // indexes of the key's columns
	schema  *engine.Schema
}

type column struct {
	name   string
	typ    pgType
	key    bool
	number int16
}

// CheckTable says what is wrong with a declaration: errors for a person.
func CheckTable(t Table) []error {
	_, errs := newTable(t)
	return errs
}

func newTable(d Table) (*table, []error) {
	t := &table{name: d.Name, byName: map[string]int{}}
	var errs []error
	for i, c := range d.Columns {
		typ, err := parseType(c.Type)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("column %s: %w", c.Name, err))
		case c.Key && !typ.keys():
			errs = append(errs, fmt.Errorf("column %s cannot be part of the key: equal values of type %s can be written in more than one way; use an integer, text, uuid, date, timestamp, boolean or bytea", c.Name, typ.name))
		}
		if _, ok := t.byName[c.Name]; ok {
			errs = append(errs, fmt.Errorf("column %s is declared twice", c.Name))
		}
		t.byName[c.Name] = i
		if c.Key {
			t.keys = append(t.keys, i)
		}
		t.columns = append(t.columns, column{name: c.Name, typ: typ, key: c.Key})
	}
	if len(t.keys) == 0 {
		errs = append(errs, fmt.Errorf("no column is of the key: mark those that identify a row with key: true"))
	}
	return t, errs
}

// saved is a table as the store knows it.
type saved struct {
	Schema  string        `json:"schema"`
	Name    string        `json:"name"`
	Columns []savedColumn `json:"columns"`
	Last    int16         `json:"last"` // number given to a column
}

type savedColumn struct {
	Name   string `json:"name"`
	Number int16  `json:"number"`
	Type   string `json:"type"`
	Key    bool   `json:"key,omitempty"`
}

// catalog is every table that there has been: the rows of one that is not
// declared any more stay, and can still be read.
type catalog []saved

func readCatalog(memory []byte) (catalog, error) {
	if len(memory) == 0 {
		return nil, nil
	}
	var c catalog
	if err := json.Unmarshal(memory, &c); err != nil {
		return nil, fmt.Errorf("what the store remembers of this source is not of an ingest source (%w): give the source a name of its own", err)
	}
	return c, nil
}

func (c catalog) bytes() []byte {
	b, _ := json.Marshal(c) // it has nothing that could fail
	return b
}

// reconcile fits declared tables to what the store knows, gives their columns
// numbers, and returns what is to be known from now on and which tables are new.
func (c catalog) reconcile(tables []*table) (next catalog, added []engine.TableName, err error) {
	next = slices.Clone(c)
	for _, t := range tables {
		i := slices.IndexFunc(next, func(s saved) bool { return s.Schema == t.name.Schema && s.Name == t.name.Name })
		if i < 0 {
			next = append(next, saved{Schema: t.name.Schema, Name: t.name.Name})
			i = len(next) - 1
			added = append(added, t.name)
		} else if err := next[i].accepts(t); err != nil {
			return nil, nil, err
		}
		was := next[i]
		next[i].Columns = nil
		for j := range t.columns {
			col := &t.columns[j]
			k := slices.IndexFunc(was.Columns, func(s savedColumn) bool { return s.Name == col.name })
			if k >= 0 {
				col.number = was.Columns[k].Number
			} else {
				if next[i].Last == math.MaxInt16 {
					return nil, nil, fmt.Errorf("table %s has had %d columns, which is all it can have", t.name, math.MaxInt16)
				}
				next[i].Last++
				col.number = next[i].Last
			}
			next[i].Columns = append(next[i].Columns, savedColumn{col.name, col.number, col.typ.name, col.key})
		}
	}
	return next, added, nil
}

// accepts says why a table cannot become what is declared; nil if it can.
func (s saved) accepts(t *table) error {
	var was, is []string
	for _, c := range s.Columns {
		if c.Key {
			was = append(was, c.Name)
		}
	}
	for _, k := range t.keys {
		is = append(is, t.columns[k].name)
	}
	if !slices.Equal(was, is) {
		return fmt.Errorf("the key of table %s is %v in the store and %v in the configuration: the rows are told apart by the first; put it back, or declare a table of another name and copy the rows", t.name, was, is)
	}
	for _, c := range s.Columns {
		i, ok := t.byName[c.Name]
		if !ok {
			continue
		}
		typ := &t.columns[i].typ
		had, err := parseType(c.Type)
		if err != nil || !typ.holds(&had) {
			return fmt.Errorf("column %s of table %s is of type %s in the store and %s in the configuration, and not every value of the first is one of the second: put it back, or declare a column of another name", c.Name, t.name, c.Type, typ.name)
		}
	}
	return nil
}

// shape returns the table's schema, without an ID.
func (t *table) shape() *engine.Schema {
	s := &engine.Schema{Table: t.name, ReplicaIdentity: engine.IdentityDefault}
	for _, c := range t.columns {
		s.Columns = append(s.Columns, engine.Column{Name: c.name, Number: c.number, TypeOID: c.typ.oid, TypeName: c.typ.name, TypeMod: c.typ.mod, Key: c.key})
	}
	return s
}
