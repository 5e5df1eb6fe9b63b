package postgres

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// relations turns Relation messages into schemas, with the catalog's help: a
// message names columns, and only the catalog knows which attribute that is.
type relations struct {
	ctx    context.Context // of the stream
	s      *Source
	reader *reader
	conn   *conn         // to the catalog; nil if it has been lost
	warm   chan struct{} // closed when conn is there, or could not be had
	cool   func()        // ends the warming

	others     map[uint32]*relationMessage // of tables that are not ours
	generation uint64                      // of the configured tables, as of which they are not
}

// newRelations connects to the catalog, and asks it once, while there is time: a
// new session of the server takes tens of milliseconds over its first question,
// which the first change would have to wait for.
func newRelations(ctx context.Context, s *Source, rd *reader) *relations {
	r := &relations{ctx: ctx, s: s, reader: rd, warm: make(chan struct{}), others: map[uint32]*relationMessage{}, generation: s.tables.generation.Load()}
	var oid uint32
	for oid = range s.known {
		break
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	r.cool = cancel
	go func() { // waited for by lookUp and close
		defer close(r.warm)
		_, _ = r.ask(ctx, oid) // what fails here is asked, and told, again
	}()
	return r
}

func (r *relations) close() {
	r.cool()
	<-r.warm
	r.conn.close()
}

// resolve returns the relation that a message describes; nil if the table is not
// one of ours. It is unclear if nothing of it can be used before the table has been
// baselined.
func (r *relations) resolve(ctx context.Context, m *relationMessage) (*relation, error) {
	known := r.s.known[m.oid]
	delete(r.others, m.oid)
	if !r.s.tables.ours(m.table) {
		r.others[m.oid] = m
		if known != nil && known.Table != m.table {
			r.s.tables.demand(known.Table, "it was renamed to "+m.table.String())
		}
		return nil, nil
	}
	t, err := r.lookUp(ctx, m.oid)
	if err != nil {
		return nil, err
	}
	next, why := follow(known, m, t)
	if next == nil {
		// The catalog is ahead of the stream: what comes in this shape comes before
		// any snapshot taken from now on.
		r.s.tables.demand(m.table, why)
		return &relation{unclear: m, tried: time.Now()}, nil
	}
	next, _ = r.s.env.Schemas.Define(next)
	if t != nil {
		r.s.tables.shaped(next, t.filled)
	}
	if next != known {
		r.s.env.Logger.Info("table has a shape", "table", next.Table.String(), "columns", len(next.Columns))
		r.s.known[m.oid] = next
	}
	return newRelation(next), nil
}

// retryUnclear is how often an unclear relation is looked into.
const retryUnclear = 50 * time.Millisecond

// retry looks again into what an unclear relation is, now and then. As a rule the
// catalog is ahead, and the stream gets another message when it is there too; but
// the catalog can be behind as well: a transaction is sent as soon as its commit is
// written, and others see it a little later. Then no message follows.
func (r *relations) retry(rel *relation) error {
	if time.Since(rel.tried) < retryUnclear {
		return nil
	}
	found, err := r.resolve(r.ctx, rel.unclear)
	if err != nil {
		return err
	}
	if rel.tried = time.Now(); found != nil && found.unclear == nil {
		*rel = *found
	}
	return nil
}

// again returns the relations that have become ours since they were described.
func (r *relations) again(ctx context.Context) (map[uint32]*relation, error) {
	g := r.s.tables.generation.Load()
	if g == r.generation {
		return nil, nil
	}
	r.generation = g
	ours := map[uint32]*relation{}
	for oid, m := range maps.Clone(r.others) {
		rel, err := r.resolve(ctx, m)
		if err != nil {
			return nil, err
		}
		if rel != nil {
			ours[oid] = rel
		}
	}
	return ours, nil
}

// lookUp asks the catalog, and keeps the replication session alive meanwhile.
func (r *relations) lookUp(ctx context.Context, oid uint32) (t *table, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() { // waited for below
		defer close(done)
		<-r.warm
		again := r.conn != nil // it may have been closed, as one that did nothing for long
		if t, err = r.ask(ctx, oid); err != nil && again && ctx.Err() == nil {
			t, err = r.ask(ctx, oid)
		}
	}()
	werr := r.reader.await(ctx, done)
	cancel()
	<-done
	if err == nil {
		err = werr
	}
	return t, err
}

// ask reads a table from the catalog.
func (r *relations) ask(ctx context.Context, oid uint32) (t *table, err error) {
	if r.conn == nil {
		if r.conn, err = r.s.connect(ctx, false); err != nil {
			return nil, err
		}
	}
	if t, err = r.s.lookUpOID(ctx, r.conn, oid); err != nil {
		r.conn.close()
		r.conn = nil
	}
	return t, err
}

// follow returns the schema that a Relation message describes, given the one
// known before it (nil if none is) and the catalog's of now (nil if the table is
// gone), which may already be ahead of the message. A message names columns in
// the order of their numbers, and does not tell these. It returns nil, and why,
// if it cannot be told which columns these are.
func follow(known *engine.Schema, m *relationMessage, now *table) (_ *engine.Schema, why string) {
	var was, is []engine.Column
	if known != nil {
		was = known.Columns
	}
	if now != nil {
		is = now.schema.Columns
	}
	next := &engine.Schema{Table: m.table, RelationOID: m.oid, ReplicaIdentity: m.identity}
	switch {
	case matches(is, m.columns):
		next.Columns = slices.Clone(is)
	case matches(was, m.columns):
		next.Columns = slices.Clone(was)
	default:
		last := int16(0)
		for _, c := range m.columns {
			col := find(is, c)
			if old := find(was, c); col == nil || old != nil && old.Number == col.Number {
				col = old
			} else if old != nil {
				return nil, "column " + c.name + " was dropped and added again"
			}
			if col == nil || col.Number <= last {
				return nil, "column " + c.name + " changed, and changed again before that was read"
			}
			last = col.Number
			next.Columns = append(next.Columns, *col)
		}
	}
	for i := range next.Columns {
		if m.identity != engine.IdentityFull { // whose message marks every column
			next.Columns[i].Key = m.columns[i].key
		}
	}
	return next, ""
}

// matches reports whether a message's columns are these.
func matches(columns []engine.Column, m []relationColumn) bool {
	return len(columns) == len(m) && !slices.ContainsFunc(m, func(c relationColumn) bool { return find(columns, c) == nil }) &&
		slices.EqualFunc(columns, m, func(a engine.Column, b relationColumn) bool { return a.Name == b.name })
}

// find returns the column that a message's column is: same name and type.
func find(columns []engine.Column, c relationColumn) *engine.Column {
	for i := range columns {
		if o := &columns[i]; o.Name == c.name && o.TypeOID == c.typeOID && o.TypeMod == c.typeMod {
			return o
		}
	}
	return nil
}

// incompatible says why rows of the old shape may not read the same in the new
// one, or "". filled are the columns of the new shape that older rows may have
// values in; columns is how many columns the table had in its old shape.
func incompatible(old, next *engine.Schema, filled map[int16]bool, columns int16) string {
	if old.RelationOID != next.RelationOID {
		return "it was dropped and made anew, or another table has taken its name"
	}
	if next.Multiset() && old.Multiset() && !sameNumbers(old, next) {
		return "it has no key, so that all columns tell its rows apart, and they are others now"
	}
	before := map[int16]engine.Column{}
	names := map[string]int16{}
	for _, c := range old.Columns {
		before[c.Number] = c
		names[c.Name] = c.Number
	}
	keys := 0
	for _, c := range next.Columns {
		was, there := before[c.Number]
		if c.Key {
			keys++
		}
		switch {
		case !there && names[c.Name] != 0:
			return "column " + c.Name + " was dropped and added again"
		case !there && c.Number <= columns:
			return "column " + c.Name + " is published, and was not before"
		case !there && filled[c.Number]:
			return "column " + c.Name + " was added with a default, which older rows have too"
		case !there && c.Key, there && c.Key != was.Key:
			return "its key changed"
		case there && !sameText(was, c):
			return "column " + c.Name + " changed from " + was.TypeName + " to " + c.TypeName
		}
	}
	for _, c := range old.Columns {
		if c.Key {
			keys--
		}
	}
	if keys != 0 {
		return "its key changed"
	}
	return ""
}

// sameNumbers reports whether two shapes have the same columns, whatever their names
// and types.
func sameNumbers(a, b *engine.Schema) bool {
	return slices.EqualFunc(a.Columns, b.Columns, func(x, y engine.Column) bool { return x.Number == y.Number })
}

// Type OIDs that PostgreSQL fixes (pg_type.dat).
const (
	oidInt8    = 20
	oidInt2    = 21
	oidInt4    = 23
	oidText    = 25
	oidVarchar = 1043
)

// sameText says whether every value of a column reads the same after its type
// has been changed.
func sameText(was, is engine.Column) bool {
	text := func(oid uint32) bool { return oid == oidText || oid == oidVarchar }
	switch {
	case was.TypeOID == is.TypeOID && was.TypeMod == is.TypeMod:
		return true
	case text(was.TypeOID) && text(is.TypeOID): // shorter only if every value fits
		return true
	case was.TypeOID == oidInt2:
		return is.TypeOID == oidInt4 || is.TypeOID == oidInt8
	case was.TypeOID == oidInt4:
		return is.TypeOID == oidInt8
	}
	return false
}
