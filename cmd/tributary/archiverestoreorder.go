package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// target is the table that an archive is restored into.
func (r *restore) target(f *found) engine.TableName {
	t := f.manifest.Table
	if r.schema != "" {
		t.Schema = r.schema
	}
	return t
}

// ready sees to it that those of the tables that are there are empty, and returns all in the order in
// which they can be filled: one that others refer to comes before them.
func (r *restore) ready(ctx context.Context, conn *pgconn.PgConn, tables []*found) ([]*found, error) {
	var full []string
	for _, f := range tables {
		t := r.target(f)
		quoted := pgsession.QuoteTable(t.Schema, t.Name)
		if have, err := columnsOf(ctx, conn, t); err != nil {
			return nil, err
		} else if have == nil {
			continue
		}
		res := conn.ExecParams(ctx, "SELECT EXISTS (SELECT FROM "+quoted+")", nil, nil, nil, nil).Read()
		if res.Err != nil {
			return nil, told(res.Err)
		}
		if string(res.Rows[0][0]) != "t" {
			continue
		}
		if !r.force {
			return nil, fmt.Errorf("%s is not restored, and nothing else: table %s of the database holds rows: empty it, or use --force to have that done", quoteTable(f.manifest.Table), quoted)
		}
		full = append(full, quoted)
	}
	if len(full) > 0 { // at once, since they may refer to each other
		if err := run(ctx, conn, "TRUNCATE "+strings.Join(full, ", ")); err != nil {
			return nil, fmt.Errorf("nothing is restored: what is there cannot be emptied: %w", err)
		}
	}
	return r.order(ctx, conn, tables)
}

// order sorts tables by their foreign keys. Those that refer to each other in a circle stay as they
// are: what PostgreSQL says of them names the constraint.
func (r *restore) order(ctx context.Context, conn *pgconn.PgConn, tables []*found) ([]*found, error) {
	res := conn.ExecParams(ctx, `SELECT DISTINCT a.nspname, r.relname, b.nspname, t.relname FROM pg_catalog.pg_constraint c
JOIN pg_catalog.pg_class r ON r.oid = c.conrelid JOIN pg_catalog.pg_namespace a ON a.oid = r.relnamespace
JOIN pg_catalog.pg_class t ON t.oid = c.confrelid JOIN pg_catalog.pg_namespace b ON b.oid = t.relnamespace
WHERE c.contype = 'f' AND c.conrelid <> c.confrelid`, nil, nil, nil, nil).Read()
	if res.Err != nil {
		return nil, told(res.Err)
	}
	refersTo := map[engine.TableName][]engine.TableName{}
	for _, row := range res.Rows {
		from := engine.TableName{Schema: string(row[0]), Name: string(row[1])}
		refersTo[from] = append(refersTo[from], engine.TableName{Schema: string(row[2]), Name: string(row[3])})
	}
	var out []*found
	seen := map[engine.TableName]bool{}
	var visit func(f *found)
	visit = func(f *found) {
		t := r.target(f)
		if seen[t] {
			return
		}
		seen[t] = true
		for _, other := range refersTo[t] {
			if i := slices.IndexFunc(tables, func(f *found) bool { return r.target(f) == other }); i >= 0 {
				visit(tables[i])
			}
		}
		out = append(out, f)
	}
	for _, f := range tables {
		visit(f)
	}
	return out, nil
}

// told is an error of the database with all that it says.
func told(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Detail == "" && pg.Hint == "" {
		return err
	}
	text := strings.TrimRight(strings.TrimSpace(pg.Detail), ".")
	if pg.Hint != "" {
		text = strings.TrimLeft(text+". "+strings.TrimRight(pg.Hint, "."), ". ")
	}
	return fmt.Errorf("%w: %s", err, text)
}
