package postgres

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// staged is a table of a baseline: its rows are in a temporary table.
type staged struct {
	shape *shape
	name  string // quoted
	rows  int64
}

// Baseline copies the rows into temporary tables and merges these, in one
// transaction with the cursors.
func (t *Target) Baseline(ctx context.Context, s *sinks.Snapshot) error {
	err := t.baseline(ctx, s)
	if err == nil {
		return nil
	}
	t.forget()
	if t.conn != nil && !t.conn.IsClosed() {
		if _, rerr := t.query(ctx, "ROLLBACK; DEALLOCATE ALL"); rerr != nil {
			t.Close()
		}
	}
	return t.where(rejection(err))
}

func (t *Target) baseline(ctx context.Context, s *sinks.Snapshot) error {
	if _, err := t.query(ctx, "BEGIN"); err != nil {
		return err
	}
	all := make([]*staged, len(s.Tables))
	for i, tab := range s.Tables {
		sh, err := t.ensure(ctx, tab.Origin, t.provenanced(tab.Schema), false)
		if err != nil {
			return err
		}
		all[i] = &staged{shape: sh, name: "pg_temp." + pgsession.QuoteIdent("tributary_"+strconv.Itoa(i))}
		if err := t.stage(ctx, s, all[i]); err != nil {
			return err
		}
	}
	if err := t.setCursors(ctx, s); err != nil {
		return err
	}
	for _, st := range slices.Backward(all) { // rows that others point to go last
		if _, err := t.query(ctx, st.removeSQL()); err != nil {
			return err
		}
	}
	for _, st := range all {
		if err := t.mergeRange(ctx, s, st, 0, st.rows); err != nil {
			return err
		}
	}
	if _, err := t.query(ctx, "COMMIT"); err != nil {
		return err
	}
	for _, k := range s.Forget {
		delete(t.at, placeOf(k))
	}
	for _, c := range s.Cursors {
		t.at[placeOf(c.CursorKey)] = c
	}
	return nil
}

// stage copies a table's rows.
func (t *Target) stage(ctx context.Context, s *sinks.Snapshot, st *staged) error {
	sh := st.shape
	cols := make([]string, len(sh.write))
	for i, w := range sh.write {
		c := sh.schema.Columns[w]
		cols[i] = pgsession.QuoteIdent(c.Name) + " " + sh.table.columns[c.Name].typ
	}
	cols = append(cols, stageRow+" int8")
	if _, err := t.query(ctx, fmt.Sprintf("CREATE TEMP TABLE %s (%s) ON COMMIT DROP", st.name[len("pg_temp."):], strings.Join(cols, ", "))); err != nil {
		return err
	}
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := st.write(t, s, pw)
		done <- err
		_ = pw.CloseWithError(err)
	}()
	list := sh.cols
	if list != "" {
		list += ", "
	}
	_, err := t.conn.CopyFrom(ctx, pr, fmt.Sprintf("COPY %s (%s%s) FROM STDIN", st.name, list, stageRow))
	_ = pr.CloseWithError(io.ErrClosedPipe)
	if werr := <-done; err == nil {
		err = werr
	}
	if err != nil {
		return err
	}
	if len(sh.keys) > 0 { // so that the merge finds rows
		_, err = t.query(ctx, fmt.Sprintf("CREATE INDEX ON %s (%s); ANALYZE %s", st.name, sh.keyList(""), st.name))
	}
	return err
}

// stageRow numbers the rows of a temporary table.
const stageRow = `"tributary row"`

// write writes a table's rows in COPY's text format.
func (st *staged) write(t *Target, s *sinks.Snapshot, w io.Writer) error {
	sh := st.shape
	p := projection{to: sh.schema}
	buf := make([]byte, 0, 128<<10)
	st.rows = 0
	err := s.Rows(sh.schema.Table, func(e *sinks.Entry) error {
		values, err := p.values(t.told(e))
		if err != nil {
			return err
		}
		for _, i := range sh.write {
			if v := values[i]; v == nil {
				buf = append(buf, '\\', 'N')
			} else {
				buf = appendCopy(buf, v)
			}
			buf = append(buf, '\t')
		}
		buf = strconv.AppendInt(buf, st.rows, 10)
		buf = append(buf, '\n')
		st.rows++
		if len(buf) > 64<<10 {
			_, err = w.Write(buf)
			buf = buf[:0]
		}
		return err
	})
	if err == nil && len(buf) > 0 {
		_, err = w.Write(buf)
	}
	return err
}

// appendCopy escapes a value for COPY's text format (PostgreSQL manual, COPY).
func appendCopy(dst, v []byte) []byte {
	for {
		i := bytes.IndexAny(v, "\\\t\n\r\b\f\v")
		if i < 0 {
			return append(dst, v...)
		}
		dst = append(append(dst, v[:i]...), '\\')
		switch v[i] {
		case '\t':
			dst = append(dst, 't')
		case '\n':
			dst = append(dst, 'n')
		case '\r':
			dst = append(dst, 'r')
		case '\b':
			dst = append(dst, 'b')
		case '\f':
			dst = append(dst, 'f')
		case '\v':
			dst = append(dst, 'v')
		default:
			dst = append(dst, v[i])
		}
		v = v[i+1:]
	}
}

// projection brings rows of older schemas to a table's newest: columns are
// found by number within one table of one origin, by name otherwise.
type projection struct {
	to   *engine.Schema
	from *engine.Schema
	at   []int // of each column of to, its index in from, or -1
	row  [][]byte
	out  [][]byte
}

func (p *projection) values(e *sinks.Entry) ([][]byte, error) {
	if e.Schema != p.from {
		p.from, p.at = e.Schema, p.at[:0]
		same := e.Schema.RelationOID == p.to.RelationOID
		for _, c := range p.to.Columns {
			p.at = append(p.at, slices.IndexFunc(e.Schema.Columns, func(o engine.Column) bool {
				if same {
					return o.Number == c.Number
				}
				return o.Name == c.Name
			}))
		}
	}
	p.row = p.row[:0]
	for _, c := range e.Row.Columns() {
		if c.State == engine.Present {
			p.row = append(p.row, c.Value)
		} else {
			p.row = append(p.row, nil)
		}
	}
	if len(p.row) != len(p.from.Columns) {
		return nil, fmt.Errorf("%w: a row of %s has %d columns, want %d", engine.ErrCorruptRow, p.from.Table, len(p.row), len(p.from.Columns))
	}
	p.out = p.out[:0]
	for _, i := range p.at {
		if i < 0 {
			p.out = append(p.out, nil)
		} else {
			p.out = append(p.out, p.row[i])
		}
	}
	return p.out, nil
}

// setCursors moves the cursors, if they are where the sink has last seen them.
func (t *Target) setCursors(ctx context.Context, s *sinks.Snapshot) error {
	rows, err := t.query(ctx, `SELECT origin, scope, epoch, position FROM `+t.cursors+` WHERE sink = $1 FOR UPDATE`, t.cfg.Sink)
	if err != nil {
		return err
	}
	if len(rows) != len(t.at) {
		return sinks.ErrFenced
	}
	for _, r := range rows {
		c, ok := t.at[place{r[0], engine.Scope(r[1])}]
		if !ok || c.Log.Epoch.String() != r[2] || string(c.Position) != r[3] {
			return sinks.ErrFenced
		}
	}
	for _, k := range s.Forget {
		if _, err := t.query(ctx, `DELETE FROM `+t.cursors+` WHERE sink = $1 AND origin = $2 AND scope = $3`, t.cfg.Sink, k.Log.Origin, string(k.Scope)); err != nil {
			return err
		}
	}
	for _, c := range s.Cursors {
		_, err := t.query(ctx, `INSERT INTO `+t.cursors+` (sink, origin, scope, epoch, position, "time") VALUES ($1, $2, $3, $4::text::int8, $5, $6::text::int8)
ON CONFLICT (sink, origin, scope) DO UPDATE SET epoch = EXCLUDED.epoch, position = EXCLUDED.position, "time" = EXCLUDED."time", changed = now()`,
			t.cfg.Sink, c.Log.Origin, string(c.Scope), c.Log.Epoch.String(), string(c.Position), strconv.FormatUint(uint64(c.Time), 10))
		if err != nil {
			return err
		}
	}
	return nil
}

// removeSQL deletes the rows that the baseline lacks.
func (st *staged) removeSQL() string {
	sh := st.shape
	if len(sh.keys) == 0 { // rows cannot be told apart: all are written anew
		return "DELETE FROM " + sh.name
	}
	var conds []string
	for _, k := range sh.keys {
		q := pgsession.QuoteIdent(sh.schema.Columns[k].Name)
		conds = append(conds, "s."+q+" = t."+q)
	}
	return fmt.Sprintf("DELETE FROM %s t WHERE NOT EXISTS (SELECT FROM %s s WHERE %s)", sh.name, st.name, strings.Join(conds, " AND "))
}

// mergeSQL writes rows of the baseline that the table lacks or has otherwise, in
// a range of their numbers. Values are compared by their text: some types have
// no equality, and others call equal what prints otherwise.
func (st *staged) mergeSQL(from, to int64) string {
	sh := st.shape
	list, tail := sh.cols, sh.tail
	var old, now []string
	for _, w := range sh.write {
		if c := sh.schema.Columns[w]; !c.Key {
			q := pgsession.QuoteIdent(c.Name)
			old, now = append(old, "t."+q+"::text"), append(now, "EXCLUDED."+q+"::text")
		}
	}
	if len(sh.keys) > 0 && len(old) > 0 {
		tail += fmt.Sprintf(" WHERE ROW(%s) IS DISTINCT FROM ROW(%s)", strings.Join(old, ", "), strings.Join(now, ", "))
	}
	if list == "" { // a table without columns
		return fmt.Sprintf("INSERT INTO %s SELECT FROM %s WHERE %s >= %d AND %s < %d", sh.name, st.name, stageRow, from, stageRow, to)
	}
	return fmt.Sprintf("INSERT INTO %s AS t (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s WHERE %s >= %d AND %s < %d ORDER BY %s%s",
		sh.name, list, list, st.name, stageRow, from, stageRow, to, stageRow, tail)
}

// mergeRange brings a range of a staged table's rows into the target's. Where
// the target rejects a row, it is searched for by halves.
func (t *Target) mergeRange(ctx context.Context, s *sinks.Snapshot, st *staged, from, to int64) error {
	if from >= to {
		return nil
	}
	if _, err := t.query(ctx, "SAVEPOINT tributary"); err != nil {
		return err
	}
	_, err := t.query(ctx, st.mergeSQL(from, to))
	if err == nil {
		_, err = t.query(ctx, "RELEASE SAVEPOINT tributary")
		return err
	}
	if classify(err) != ofRow {
		return err
	}
	if _, rerr := t.query(ctx, "ROLLBACK TO SAVEPOINT tributary; RELEASE SAVEPOINT tributary"); rerr != nil {
		return rerr
	}
	if to-from > 1 {
		mid := from + (to-from)/2
		if err := t.mergeRange(ctx, s, st, from, mid); err != nil {
			return err
		}
		return t.mergeRange(ctx, s, st, mid, to)
	}
	e, ferr := st.row(s, from)
	if ferr != nil {
		return ferr
	}
	return s.Reject(ctx, e, explain(err), true)
}

// row returns a row of the baseline by its number.
func (st *staged) row(s *sinks.Snapshot, number int64) (*sinks.Entry, error) {
	var found *sinks.Entry
	n := int64(0)
	err := s.Rows(st.shape.schema.Table, func(e *sinks.Entry) error {
		if n == number {
			c := *e
			c.Key, c.Row = slices.Clone(e.Key), slices.Clone(e.Row)
			found = &c
			return io.EOF
		}
		n++
		return nil
	})
	if found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("row %d of the baseline of %s is not there any more: %w", number, st.shape.schema.Table, err)
}
