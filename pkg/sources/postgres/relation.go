package postgres

import (
	"context"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// relations turns Relation messages into schemas, with the catalog's help: a
// message names columns, and only the catalog knows which attribute that is.
type relations struct {
	s      *Source
	reader *reader
	conn   *conn // opened when first needed
}

func (r *relations) close() { r.conn.close() }

// resolve returns the relation that a message describes; nil if the table is not
// one of ours. It gives ErrReBaselineRequired if rows that were read earlier
// may not read the same in the table's new shape.
func (r *relations) resolve(ctx context.Context, m *relationMessage) (*relation, error) {
	known := r.s.known[m.oid]
	if known == nil {
		return nil, nil
	}
	t, err := r.lookUp(ctx, m.oid)
	if err != nil {
		return nil, err
	}
	next, why := follow(known, m, t)
	if why != "" {
		return nil, rebaseline("table %s: %s", known.Table, why)
	}
	next, _ = r.s.env.Schemas.Define(next)
	if next != known {
		r.s.env.Logger.Info("table has a new shape", "table", next.Table.String(), "columns", len(next.Columns))
		r.s.known[m.oid] = next
	}
	return newRelation(next), nil
}

// lookUp asks the catalog, and keeps the replication session alive meanwhile.
func (r *relations) lookUp(ctx context.Context, oid uint32) (t *table, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() { // waited for below
		defer close(done)
		if r.conn == nil {
			if r.conn, err = r.s.connect(ctx, false); err != nil {
				return
			}
		}
		if t, err = r.s.lookUpOID(ctx, r.conn, oid); err != nil {
			r.conn.close()
			r.conn = nil
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

// follow returns the schema that a Relation message describes, given the one
// known before it and the catalog's of now (nil if the table is gone), which may
// already be ahead of the message. why says what makes a baseline necessary.
func follow(known *engine.Schema, m *relationMessage, now *table) (_ *engine.Schema, why string) {
	if m.table != known.Table {
		return nil, "it was renamed to " + m.table.String()
	}
	next := &engine.Schema{Table: m.table, RelationOID: m.oid, ReplicaIdentity: m.identity}
	filled := map[int16]bool{}
	for _, c := range m.columns {
		was := find(known.Columns, c)
		var is *engine.Column
		if now != nil {
			is = find(now.schema.Columns, c)
		}
		switch {
		case was != nil && is != nil && was.Number != is.Number:
			return nil, "column " + c.name + " was dropped and added again"
		case is != nil:
			next.Columns = append(next.Columns, *is)
			filled[is.Number] = now.filled[is.Number]
		case was != nil:
			next.Columns = append(next.Columns, *was)
		default:
			return nil, "column " + c.name + " changed, and changed again before that was read"
		}
		col := &next.Columns[len(next.Columns)-1]
		col.Key = c.key
		if m.identity == engine.IdentityFull { // its message marks every column
			key := was
			if key == nil {
				key = is
			}
			col.Key = key.Key
		}
	}
	return next, incompatible(known, next, filled)
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
// one, or "".
func incompatible(old, next *engine.Schema, filled map[int16]bool) string {
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
