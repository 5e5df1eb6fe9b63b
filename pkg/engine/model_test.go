package engine_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// unsent stands for a column that an update leaves unchanged and does not send.
const unsent = "\x00unsent"

var (
	tableA = engine.TableName{Schema: "public", Name: "a"}
	tableB = engine.TableName{Schema: "public", Name: "b"}
	tables = []engine.TableName{tableA, tableB}
)

// shapeOf returns a new schema of a table: id (key), v, doc.
func shapeOf(t engine.TableName) *engine.Schema {
	return &engine.Schema{Table: t, RelationOID: 16384 + uint32(t.Name[0]), ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
		{Name: "id", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1, Key: true},
		{Name: "v", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
		{Name: "doc", Number: 3, TypeOID: 25, TypeName: "text", TypeMod: -1},
	}}
}

func keyOf(id string) []byte { return engine.AppendKeyValue(nil, id) }

func rowOf(s *engine.Schema, id, v, doc string) engine.Row {
	r := engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, s.ID, 3), id), v)
	if doc == unsent {
		return engine.AppendUnchanged(r)
	}
	return engine.AppendValue(r, doc)
}

// The naive database: it keeps every transaction, and every state it was in.

type op struct {
	kind   string // put, touch, move, delete, truncate
	table  engine.TableName
	id, to string // to: the key a move gives the row
	v, doc string
}

type content map[engine.TableName]map[string][2]string

func (c content) clone() content {
	n := content{}
	for t, rows := range c {
		n[t] = maps.Clone(rows)
	}
	return n
}

func (c content) String() string {
	var b strings.Builder
	for _, t := range slices.SortedFunc(maps.Keys(c), func(x, y engine.TableName) int { return cmp.Compare(x.Name, y.Name) }) {
		for _, id := range slices.Sorted(maps.Keys(c[t])) {
			fmt.Fprintf(&b, "%s %s = %s, %s\n", t, id, brief(c[t][id][0]), brief(c[t][id][1]))
		}
	}
	return b.String()
}

// brief keeps messages readable where values are large.
func brief(s string) string {
	if len(s) > 24 {
		return fmt.Sprintf("%s..(%d)", s[:8], len(s))
	}
	return s
}

type commit struct {
	at   engine.LSN
	when time.Time
	ops  []op
}

type database struct {
	mu      sync.Mutex
	commits []commit
	states  []content      // states[i] is after commits[i]
	index   map[string]int // position: index of its commit
	more    chan struct{}  // closed at the next commit
}

// newDatabase returns a database with one empty transaction in it.
func newDatabase() *database {
	d := &database{more: make(chan struct{}), index: map[string]int{}}
	d.record(commit{at: 0xF0}, content{tableA: {}, tableB: {}})
	return d
}

func (d *database) record(c commit, s content) {
	d.index[string(c.at.Position())] = len(d.commits)
	d.commits, d.states = append(d.commits, c), append(d.states, s)
	close(d.more)
	d.more = make(chan struct{})
}

// commit runs a transaction; what cannot be done to the rows there are becomes
// what can be.
func (d *database) commit(when time.Time, ops ...op) engine.Position {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.states[len(d.states)-1].clone()
	done := make([]op, 0, len(ops))
	for _, o := range ops {
		rows := s[o.table]
		have, ok := rows[o.id]
		_, taken := rows[o.to]
		if o.kind == "touch" && !ok || o.kind == "move" && (!ok || taken || o.id == o.to) {
			o.kind = "put"
		}
		switch o.kind {
		case "put":
			rows[o.id] = [2]string{o.v, o.doc}
		case "touch":
			o.doc = unsent
			rows[o.id] = [2]string{o.v, have[1]}
		case "move":
			o.doc = unsent
			delete(rows, o.id)
			rows[o.to] = [2]string{o.v, have[1]}
		case "delete":
			if !ok {
				continue
			}
			delete(rows, o.id)
		case "truncate":
			clear(rows)
		}
		done = append(done, o)
	}
	last := d.commits[len(d.commits)-1].at
	c := commit{at: last + 7, when: when, ops: done}
	d.record(c, s)
	return c.at.Position()
}

// wake wakes what waits for a commit, without one.
func (d *database) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.more)
	d.more = make(chan struct{})
}

func (d *database) head() (int, engine.Position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.commits) - 1
	return n, d.commits[n].at.Position()
}

func (d *database) state(n int) content {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.states[n]
}

// at returns the state as of a position, which must be the end of a transaction.
func (d *database) at(p engine.Position) (content, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.index[string(p)]
	if !ok {
		return nil, fmt.Errorf("%q is not the end of a transaction", p)
	}
	return d.states[n], nil
}

// before returns the position up to n transactions before p.
func (d *database) before(p engine.Position, n int) engine.Position {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.commits[max(0, d.index[string(p)]-n)].at.Position()
}

// since returns the commits after a position, and what is closed at the next.
func (d *database) since(p engine.Position) ([]commit, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.index[string(p)]
	if !ok {
		panic("not the end of a transaction: " + string(p))
	}
	return d.commits[n+1:], d.more
}

// transaction returns a commit as a source that mints tells it.
func (c commit) transaction(schemas map[engine.TableName]*engine.Schema) engine.Transaction {
	t := engine.Transaction{Position: c.at.Position(), Major: uint64(c.at), Commit: c.when}
	for _, s := range schemas {
		t.Schemas = append(t.Schemas, s)
	}
	for _, o := range c.ops {
		s := schemas[o.table]
		switch o.kind {
		case "put", "touch":
			t.Changes = append(t.Changes, engine.Change{Op: engine.OpPut, Schema: s, Key: keyOf(o.id), Row: rowOf(s, o.id, o.v, o.doc), Partial: o.doc == unsent})
		case "move":
			t.Changes = append(t.Changes,
				engine.Change{Op: engine.OpDelete, Schema: s, Key: keyOf(o.id)},
				engine.Change{Op: engine.OpPut, Schema: s, Key: keyOf(o.to), OldKey: keyOf(o.id), Row: rowOf(s, o.to, o.v, o.doc), Partial: true})
		case "delete":
			t.Changes = append(t.Changes, engine.Change{Op: engine.OpDelete, Schema: s, Key: keyOf(o.id)})
		case "truncate":
			t.Changes = append(t.Changes, engine.Change{Op: engine.OpTruncate, Schema: s})
		}
	}
	return t
}

// drawOps draws the operations of a transaction. Large documents make some
// transactions larger than a block.
func drawOps(t *rapid.T, large bool) []op {
	n := rapid.IntRange(1, 6).Draw(t, "ops")
	doc := 8
	if large && rapid.IntRange(0, 7).Draw(t, "large") == 0 {
		n, doc = n+4, 25_000
	}
	ops := make([]op, n)
	for i := range ops {
		kind := rapid.SampledFrom([]string{"put", "put", "put", "touch", "touch", "move", "delete", "delete", "truncate"}).Draw(t, "kind")
		if kind == "truncate" && rapid.Bool().Draw(t, "rather not") {
			kind = "put"
		}
		ops[i] = op{
			kind: kind, table: rapid.SampledFrom(tables).Draw(t, "table"),
			id: drawID(t), to: drawID(t), v: fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "v")),
			doc: strings.Repeat(rapid.StringMatching("[a-z]").Draw(t, "doc"), doc),
		}
	}
	return ops
}

func drawID(t *rapid.T) string { return fmt.Sprintf("k%d", rapid.IntRange(0, 5).Draw(t, "id")) }

// liveRows returns the live rows of a view, and fails on a row that is not whole.
func liveRows(v engine.View) (content, error) {
	c := content{tableA: {}, tableB: {}}
	for _, table := range tables {
		var bad error
		err := v.Scan(table, nil, func(r *engine.Record) bool {
			if !r.Deleted {
				bad = c.put(r.Schema, r.Key, r.Row)
			}
			return bad == nil
		})
		if err := cmp.Or(err, bad); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c content) put(s *engine.Schema, key []byte, row engine.Row) error {
	if unchanged, err := row.Check(s); err != nil || unchanged {
		return fmt.Errorf("row of %s: unchanged columns: %v, %w", s.Table, unchanged, err)
	}
	var vals []string
	for _, col := range row.Columns() {
		vals = append(vals, string(col.Value))
	}
	if !bytes.Equal(key, keyOf(vals[0])) {
		return fmt.Errorf("row %q of %s lies at key %x", vals[0], s.Table, key)
	}
	c[s.Table][vals[0]] = [2]string{vals[1], vals[2]}
	return nil
}

// dump tells a state byte by byte: every record and tombstone with its stamp.
func dump(v engine.View) string {
	var b strings.Builder
	for _, table := range tables {
		err := v.Scan(table, nil, func(r *engine.Record) bool {
			b.WriteString(line(table, r.Key, r.Stamp, r.Deleted, r.Row))
			return true
		})
		if err != nil {
			panic(err)
		}
	}
	return b.String()
}

func line(table engine.TableName, key []byte, s engine.Stamp, deleted bool, row engine.Row) string {
	if deleted {
		return fmt.Sprintf("%s %q %s deleted\n", table, key, s)
	}
	return fmt.Sprintf("%s %q %s %s\n", table, key, s, brief(string(row.Values())))
}

// expected is the naive model of a state: all changes there ever were, judged
// at once by the rules of docs/design/identity.md.
func expected(all []engine.Change) string {
	type cell struct {
		table engine.TableName
		key   string
	}
	truncated := map[string]engine.Stamp{} // table and origin
	for _, c := range all {
		if k := c.Schema.Table.String() + " " + c.Stamp.Origin; c.Op == engine.OpTruncate && c.Stamp.Compare(truncated[k]) > 0 {
			truncated[k] = c.Stamp
		}
	}
	top := map[cell]engine.Change{}
	for _, c := range all {
		if c.Op == engine.OpTruncate {
			continue
		}
		at := cell{c.Schema.Table, string(c.Key)}
		have, ok := top[at]
		above := c.Stamp.Compare(have.Stamp)
		if !ok || above > 0 || above == 0 && c.Op == engine.OpDelete { // a write found deleted is deleted
			top[at] = c
		}
	}
	var b strings.Builder
	for _, at := range slices.SortedFunc(maps.Keys(top), func(x, y cell) int {
		return cmp.Or(cmp.Compare(x.table.Name, y.table.Name), cmp.Compare(x.key, y.key))
	}) {
		c := top[at]
		covered := c.Stamp.Compare(truncated[at.table.String()+" "+c.Stamp.Origin]) < 0
		b.WriteString(line(at.table, c.Key, c.Stamp, c.Op == engine.OpDelete || covered, c.Row))
	}
	return b.String()
}

// replica is a reader that has nothing but a log. Reading, it calls ended at
// the end of each transaction.
type replica struct {
	log  engine.LogID
	at   engine.Position
	part uint32
	rows content
}

// copyFrom takes the state of a view, as of its cursor.
func (r *replica) copyFrom(v engine.View) error {
	info, ok := v.Log(r.log)
	if !ok {
		return engine.ErrUnknownLog
	}
	rows, err := liveRows(v)
	r.rows, r.at, r.part = rows, info.Head, 0
	return err
}

// read applies what a view's log has after the replica's place.
func (r *replica) read(v engine.View, maxBytes int, ended func(engine.Position, content) error) error {
	for {
		blocks, err := v.ReadPart(r.log, r.at, r.part, maxBytes)
		if err != nil || len(blocks) == 0 {
			if r.part > 0 && err == nil {
				err = fmt.Errorf("the log ends after part %d of the transaction that follows %s", r.part, r.at)
			}
			return err
		}
		for _, b := range blocks {
			if err := r.apply(v, b, ended); err != nil {
				return err
			}
		}
	}
}

func (r *replica) apply(v engine.View, b *engine.Block, ended func(engine.Position, content) error) error {
	if b.Part != r.part || b.Part == 0 && engine.CompareLSN(b.Prev, r.at) > 0 {
		return fmt.Errorf("at %s, part %d: the next block is part %d after %s", r.at, r.part, b.Part, b.Prev)
	}
	rd := b.Reader(r.log, v.Schema)
	open := engine.Position("")
	for rd.Next() {
		if rd.IsBegin {
			if open != "" {
				if err := ended(open, r.rows); err != nil {
					return err
				}
			}
			open = rd.Begin.Position
			continue
		}
		c := &rd.Change
		rows := r.rows[c.Schema.Table]
		switch c.Op {
		case engine.OpPut:
			if err := r.rows.put(c.Schema, c.Key, c.Row); err != nil {
				return err
			}
		case engine.OpDelete:
			parts, err := engine.DecodeKey(c.Key)
			if err != nil {
				return err
			}
			delete(rows, string(parts[0]))
		case engine.OpTruncate:
			clear(rows)
		}
	}
	if rd.Err() != nil {
		return rd.Err()
	}
	if !b.Last {
		r.part = b.Part + 1
		return nil
	}
	r.at, r.part = b.Position, 0
	if open != b.Position {
		return fmt.Errorf("the block up to %s ends with the transaction at %s", b.Position, open)
	}
	return ended(open, r.rows)
}
