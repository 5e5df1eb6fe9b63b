package ingest

import (
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// maxAhead is how far ahead of the clock the stamp of a row may be that is
// written over.
const maxAhead = 366 * 24 * time.Hour

// applying makes a batch's changes from the state and its operations.
type applying struct {
	t     *engine.Transaction
	state engine.Rows
	wrote map[cellKey]*cell // by earlier operations of the batch
	// tables that earlier operations truncated; rows of other origins stay.
	truncated map[*table]bool
	foreign   func(*engine.Schema, []byte) (string, bool) // see Config
	rows      int
	buf       []byte
}

type cellKey struct {
	table *table
	key   string
}

// cell is a row as the batch sees it.
type cell struct {
	there  bool
	values []value // by column, when there
}

// notHere says whose a row is that this node may not write.
func notHere(table engine.TableName, owner string) *Error {
	if owner == "" {
		return refuse(Conflict, 0, "the row of table %s belongs to no node: by the table's conflict policy OriginOwnsKey none owns what its owner column says; give that value an owner, or another value", table)
	}
	return refuse(Conflict, 0, "the row of table %s belongs to node %s by the table's conflict policy OriginOwnsKey: write it there", table, owner)
}

// op applies an operation.
func (a *applying) op(op *operation) *Error {
	t := op.table
	if op.kind == Truncate {
		for k, c := range a.wrote {
			if k.table == t {
				c.there = false
			}
		}
		a.truncated[t] = true
		a.change(engine.Change{Op: engine.OpTruncate, Schema: t.schema})
		return nil
	}
	if a.foreign != nil {
		if owner, foreign := a.foreign(t.schema, op.key); foreign {
			return notHere(t.name, owner)
		}
	}
	c, err := a.cell(op)
	if err != nil {
		return err
	}
	switch op.kind {
	case Delete:
		if c.there {
			c.there = false
			a.change(engine.Change{Op: engine.OpDelete, Schema: t.schema, Key: op.key})
		}
		return nil
	case Put:
		c.values = op.values
	case Set, Add:
		next := make([]value, len(t.columns))
		for i := range next {
			v := op.values[i]
			switch {
			case v.state == engine.Absent && c.there:
				next[i] = c.values[i]
			case op.kind == Set || t.columns[i].key || v.state == engine.Absent:
				next[i] = v
			default:
				had := ""
				if c.there {
					had = c.values[i].text
				}
				text, err := t.columns[i].typ.sum(had, v.text)
				if err != nil {
					return refuse(Conflict, 0, "column %s of table %s: adding %s to %s: %w", t.columns[i].name, t.name, quoted(v.text), quoted(had), err)
				}
				next[i] = value{engine.Present, text}
			}
		}
		c.values = next
	}
	c.there = true
	a.change(engine.Change{Op: engine.OpPut, Schema: t.schema, Key: op.key, Row: t.row(c.values)})
	return nil
}

func (a *applying) change(c engine.Change) {
	a.t.Changes = append(a.t.Changes, c)
	a.rows++
}

// cell returns the row at an operation's key, and raises the time of the
// transaction above it: otherwise a row from a node with a clock that is ahead
// would stay, though this batch has seen it.
func (a *applying) cell(op *operation) (*cell, *Error) {
	k := cellKey{op.table, string(op.key)}
	if c := a.wrote[k]; c != nil {
		return c, nil
	}
	rec, ok, err := a.state.Get(op.table.name, op.key)
	if err != nil {
		return nil, refuse(Unavailable, 0, "reading table %s: %w", op.table.name, err)
	}
	c := &cell{}
	a.wrote[k] = c
	if !ok {
		return c, nil
	}
	if rec.Stamp.Time >= a.t.Time {
		if rec.Stamp.Time.Wall().Sub(a.t.Commit) > maxAhead {
			return nil, refuse(Conflict, 0, "the row of table %s was written by %s with a time more than a year ahead, %s: mend the clock of that node; the row can be written once that time has come",
				op.table.name, rec.Stamp.Origin, rec.Stamp.Time.Wall().Format(time.RFC3339))
		}
		a.t.Time = rec.Stamp.Time + 1
	}
	own := rec.Stamp.Origin == a.t.Log.Origin
	if rec.Deleted || own && a.truncated[op.table] {
		return c, nil
	}
	c.there, c.values = true, op.table.read(&rec, own)
	return c, nil
}

// read returns a row's values by the columns that the table has now. Columns of
// rows written here go by their numbers, of others' by their names.
func (t *table) read(r *engine.Record, own bool) []value {
	values := make([]value, len(t.columns))
	for i := range values {
		values[i].state = engine.Null
	}
	for i, c := range r.Row.Columns() {
		if i >= len(r.Schema.Columns) || c.State != engine.Present {
			continue
		}
		j := i
		if r.Schema != t.schema {
			j = t.find(&r.Schema.Columns[i], own)
		}
		if j >= 0 {
			values[j] = value{engine.Present, string(c.Value)}
		}
	}
	return values
}

func (t *table) find(c *engine.Column, own bool) int {
	if !own {
		if i, ok := t.byName[c.Name]; ok {
			return i
		}
		return -1
	}
	for i := range t.columns {
		if t.columns[i].number == c.Number {
			return i
		}
	}
	return -1
}

// row packs values.
func (t *table) row(values []value) engine.Row {
	row := engine.AppendRowHeader(nil, t.schema.ID, len(values))
	for i := range values {
		if values[i].state == engine.Present {
			row = engine.AppendValue(row, values[i].text)
		} else {
			row = engine.AppendNull(row)
		}
	}
	return row
}

// make makes the transaction of a request, within its commit.
func (r *request) make(t *engine.Transaction, state engine.Rows, foreign func(*engine.Schema, []byte) (string, bool)) error {
	if !r.state.CompareAndSwap(queued, taken) {
		return engine.ErrSkip // its writer waits no more
	}
	a := applying{t: t, state: state, wrote: map[cellKey]*cell{}, truncated: map[*table]bool{}, foreign: foreign}
	for i := range r.ops {
		if err := a.op(&r.ops[i]); err != nil {
			err.Op = i
			r.err, t.Changes = err, nil
			return engine.ErrSkip
		}
	}
	r.result = Result{Log: t.Log, Position: t.Position, Time: t.Time, Rows: a.rows}
	return nil
}

// fact is under what a key of a writer is remembered.
func fact(writer, key string) string {
	if key == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString(quoteFact(writer))
	b.WriteByte('/')
	b.WriteString(key)
	return b.String()
}
