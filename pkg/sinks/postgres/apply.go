package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// bounds of what is sent before its results are read.
const (
	maxRun    = 512
	maxQueued = 4 << 20 // bytes
	maxSent   = 2000    // statements
	maxShapes = 4096
	maxStmts  = 1000
)

// txn is a transaction of the target. Statements are sent without waiting for
// their results; settle waits.
type txn struct {
	t      *Target
	ctx    context.Context
	pipe   *pgconn.Pipeline
	sent   []sort // of the results to come
	bytes  int
	fenced bool              // the cursor's statement is what failed
	lost   bool              // the statement that looks for the tables is
	tables map[string]string // written to, by OID
	run    run
}

// sort is what a result to come is of.
type sort byte

const (
	other sort = iota
	fence
	there
)

// run is entries for one table that go in one statement.
type run struct {
	shape  *shape
	op     engine.Op
	n      int
	params [][]byte
	size   int
	keys   map[string]struct{}
	tables []string // of truncates
}

func (t *Target) begin(ctx context.Context) *txn {
	x := &txn{t: t, ctx: ctx, tables: map[string]string{}}
	if len(t.stmts) > maxStmts {
		x.exec(other, "DEALLOCATE ALL")
		clear(t.stmts)
	}
	x.exec(other, "BEGIN")
	return x
}

// exec sends a statement that is prepared first where it is used for the first
// time.
func (x *txn) exec(kind sort, sql string, params ...[]byte) {
	if x.pipe == nil {
		x.pipe = x.t.conn.StartPipeline(x.ctx)
	}
	name, ok := x.t.stmts[sql]
	if !ok {
		name = "t" + strconv.Itoa(len(x.t.stmts))
		x.t.stmts[sql] = name
		x.pipe.SendPrepare(name, sql, nil)
		x.sent = append(x.sent, other)
		x.bytes += len(sql)
	}
	x.pipe.SendQueryPrepared(name, params, nil, nil)
	x.sent = append(x.sent, kind)
}

// settle reads the results of all that has been sent, and returns the first
// error.
func (x *txn) settle() error {
	if x.pipe == nil {
		return nil
	}
	p := x.pipe
	x.pipe, x.bytes = nil, 0
	sent := x.sent
	x.sent = x.sent[:0]
	first := p.Sync()
	for i := 0; first == nil && i <= len(sent); i++ {
		res, err := p.GetResults()
		if r, ok := res.(*pgconn.ResultReader); ok && err == nil {
			err = r.Read().Err
		}
		if err != nil {
			first = err
			x.fenced = i < len(sent) && sent[i] == fence && classify(err) != passing
			x.lost = i < len(sent) && sent[i] == there && classify(err) != passing
		}
	}
	if err := p.Close(); first == nil {
		first = err
	}
	return first
}

// spare settles where much has been sent.
func (x *txn) spare() error {
	if x.bytes < maxQueued && len(x.sent) < maxSent {
		return nil
	}
	return x.settle()
}

// fenceSQL moves a cursor if it is where the sink has last seen it. Otherwise it
// divides by zero: what was sent after it is then not carried out.
func (t *Target) fenceSQL() string {
	return `WITH moved AS (UPDATE ` + t.cursors + ` SET position = $6, "time" = $7::text::int8, changed = now()
WHERE sink = $1 AND origin = $2 AND scope = $3 AND epoch = $4::text::int8 AND position = $5 RETURNING 1)
SELECT 1 / (SELECT count(*) FROM moved)`
}

func (x *txn) moveCursor(from, to engine.Cursor) {
	x.exec(fence, x.t.fenceSQL(), []byte(x.t.cfg.Sink), []byte(from.Log.Origin), []byte(from.Scope), []byte(from.Log.Epoch.String()),
		[]byte(from.Position), []byte(to.Position), strconv.AppendUint(nil, uint64(to.Time), 10))
}

// Apply applies a batch in one transaction with its cursor.
func (t *Target) Apply(ctx context.Context, b *sinks.Batch) error {
	x := t.begin(ctx)
	x.moveCursor(b.From, b.To)
	err := b.Each(func(e *sinks.Entry) error {
		if b.Careful {
			return x.tryOne(t.told(e), func(ctx context.Context, _ *sinks.Entry, why error, own bool) error {
				return b.Reject(ctx, e, why, own)
			})
		}
		return x.add(t.told(e))
	})
	if err == nil {
		err = x.flush()
	}
	if err == nil {
		x.stillThere()
		x.exec(other, "COMMIT")
		err = x.settle()
	}
	if err != nil {
		return t.where(x.rollback(err))
	}
	t.at[placeOf(b.To.CursorKey)] = b.To
	return nil
}

// stillThere divides by zero if a table that was written to is not the one that its
// shape was made of: statements go by its name, and would fill one that was made
// anew.
func (x *txn) stillThere() {
	if oids := slices.Sorted(maps.Keys(x.tables)); len(oids) > 0 {
		x.exec(there, "SELECT 1 / (count(*) = pg_catalog.cardinality($1::pg_catalog.oid[]))::pg_catalog.int4 FROM pg_catalog.pg_class WHERE oid = ANY ($1::pg_catalog.oid[])",
			[]byte("{"+strings.Join(oids, ",")+"}"))
	}
}

// rollback ends a transaction that failed, and says what it failed of.
func (x *txn) rollback(err error) error {
	if serr := x.settle(); serr != nil && classify(err) == passing && classify(serr) != passing {
		err = serr // the first error came with the results
	}
	t := x.t
	t.forget()
	if !t.conn.IsClosed() {
		if _, rerr := t.query(x.ctx, "ROLLBACK; DEALLOCATE ALL"); rerr != nil {
			t.Close()
		}
	}
	if x.fenced {
		return sinks.ErrFenced
	}
	if x.lost {
		return gone(strings.Join(slices.Sorted(maps.Values(x.tables)), " or "))
	}
	return rejection(err)
}

// shape returns how rows of a schema are written, making the target ready for
// them where it is not.
func (x *txn) shape(e *sinks.Entry) (s *shape, err error) {
	defer func() {
		if err == nil {
			x.tables[s.table.oid] = s.name
		}
	}()
	if s := x.t.shapes[e.Schema]; s != nil {
		return s, nil
	}
	if err := x.settle(); err != nil {
		return nil, err
	}
	s, err = x.t.ensure(x.ctx, e.Stamp.Origin, e.Schema, true)
	if err != nil {
		return nil, err
	}
	if len(x.t.shapes) >= maxShapes {
		clear(x.t.shapes)
	}
	// Another schema of the table may have changed it since its shape was made.
	for k, have := range x.t.shapes {
		if have.name == s.name && have.schema.Table == e.Schema.Table && k.ID < e.Schema.ID {
			delete(x.t.shapes, k)
		}
	}
	x.t.shapes[e.Schema] = s
	return s, nil
}

// add applies an entry, sooner or later, in its turn.
func (x *txn) add(e *sinks.Entry) error {
	r := &x.run
	s := r.shape
	if s == nil || s.schema != e.Schema || r.op != e.Op {
		if e.Op == engine.OpTruncate && r.op == engine.OpTruncate {
			sh, err := x.shape(e) // one statement, since keys may point from one to the other
			if err != nil {
				return err
			}
			r.tables = append(r.tables, sh.name)
			return nil
		}
		if err := x.flush(); err != nil {
			return err
		}
		var err error
		if s, err = x.shape(e); err != nil {
			return err
		}
		r.shape, r.op = s, e.Op
	}
	switch e.Op {
	case engine.OpTruncate:
		r.tables = append(r.tables, s.name)
		return nil
	case engine.OpPut, engine.OpDelete:
	default:
		return fmt.Errorf("an entry of %s is a %s, which this sink does not know", e.Schema.Table, e.Op)
	}
	if _, twice := r.keys[string(e.Key)]; twice || r.n >= maxRun || r.size > maxQueued/4 {
		if err := x.flush(); err != nil {
			return err
		}
		r.shape, r.op = s, e.Op
	}
	if r.keys == nil {
		r.keys = map[string]struct{}{}
	}
	var err error
	if e.Op == engine.OpPut {
		r.params, err = s.values(r.params, e.Row)
	} else {
		r.params, err = s.keyValues(r.params, e.Key)
	}
	if err != nil {
		return err
	}
	r.keys[string(e.Key)] = struct{}{}
	r.n++
	r.size += len(e.Row) + len(e.Key)
	return nil
}

// flush sends the run that has been collected.
func (x *txn) flush() error {
	r := &x.run
	s := r.shape
	if s == nil {
		return nil
	}
	switch {
	case r.op == engine.OpTruncate:
		x.exec(other, s.truncate(r.tables))
	case r.op == engine.OpDelete && len(s.keys) == 0:
		width := len(s.schema.Columns)
		for i := range r.n {
			x.exec(other, s.remove(1), r.params[i*width:(i+1)*width]...)
		}
	default:
		width, sql := len(s.keys), s.remove
		if r.op == engine.OpPut {
			width, sql = len(s.write), s.insert
		}
		for left := r.params; r.n > 0; {
			n := 1
			if width > 0 {
				n = fit(r.n, width)
			}
			x.exec(other, s.sql(r.op, n, sql), left[:n*width]...)
			left, r.n = left[n*width:], r.n-n
		}
	}
	x.bytes += r.size
	clear(r.params)
	clear(r.keys)
	x.run = run{params: r.params[:0], keys: r.keys, tables: r.tables[:0]}
	return x.spare()
}

// tryOne applies one entry, and gives it to reject if the target does not take
// it.
func (x *txn) tryOne(e *sinks.Entry, reject func(context.Context, *sinks.Entry, error, bool) error) error {
	x.exec(other, "SAVEPOINT tributary")
	err := x.add(e)
	if err == nil {
		err = x.flush()
	}
	if err == nil {
		x.exec(other, "RELEASE SAVEPOINT tributary")
		err = x.settle()
	} else if serr := x.settle(); serr != nil {
		err = serr
	}
	if err == nil {
		return nil
	}
	if lost := (*sinks.Lost)(nil); errors.As(err, &lost) {
		return err
	}
	kind := classify(err)
	if rej := (*sinks.Rejection)(nil); asRejection(err, &rej) {
		kind, err = general, rej.Err
	}
	if kind == passing || x.fenced {
		return err
	}
	x.run = run{}
	x.t.forget() // what the savepoint undoes may be in it
	if _, rerr := x.t.query(x.ctx, "ROLLBACK TO SAVEPOINT tributary; DEALLOCATE ALL"); rerr != nil {
		return rerr
	}
	return reject(x.ctx, e, explain(err), kind == ofRow)
}
