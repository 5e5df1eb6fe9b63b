package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// restore is the restore command.
type restore struct {
	which
	moment
	to     string
	schema string
	all    bool
	create bool
	force  bool
}

func archiveRestoreCommand() *cobra.Command {
	var r restore
	c := &cobra.Command{
		Use:   "restore LOCATION (--table SCHEMA.NAME | --all) [--to CONNECTION]",
		Short: "Restore tables from archives into PostgreSQL",
		Long: `restore copies the rows of a table, at the archive's head or as of a position or time,
into PostgreSQL. The table must be there and empty: --create makes it as far as the
archive knows it (columns, types and primary key; no other indexes, constraints or
defaults), and --force empties it. All tables are restored in one transaction, those first that foreign
keys of the others refer to: there is all of it, or nothing. Those that one writer brings to one place together are
restored as of one moment, also where it is between them or goes on meanwhile. Sequences are not
set: that takes SELECT setval(...) afterwards.

--to is a connection string or URL; what it leaves out is taken from PGHOST, PGUSER,
PGPASSWORD and the like.`,
		Example: `  tributary archive restore s3://backups/prod --table public.orders --to postgres://localhost/shop
  tributary archive restore /var/lib/archive --all --to "host=db dbname=shop" --create --time 2026-03-01T12:00:00Z`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return r.run(c, args[0]) },
	}
	f := c.Flags()
	r.which.flags(f)
	r.moment.flags(f)
	f.BoolVar(&r.all, "all", false, "all tables that have an archive there")
	f.StringVar(&r.to, "to", "", "the database, as a URL or connection string")
	f.StringVar(&r.schema, "schema", "", "restore into this schema; else each table's own")
	f.BoolVar(&r.create, "create", false, "make tables and schemas that are missing")
	f.BoolVar(&r.force, "force", false, "empty tables that hold rows")
	return c
}

func (r *restore) run(c *cobra.Command, location string) error {
	ctx := c.Context()
	if r.all && len(r.tables) > 0 {
		return usage("--all and --table exclude each other: give one")
	}
	var tables []*found
	var err error
	if r.all || len(r.tables) > 0 {
		tables, err = r.every(ctx, location)
	} else {
		var f *found
		f, err = r.one(ctx, location)
		tables = []*found{f}
	}
	if err != nil {
		return err
	}
	if gone := missing(tables); r.all && len(gone) > 0 {
		return fmt.Errorf("%w. Nothing is restored; name the tables that are wanted by --table", errors.Join(gone...))
	}
	into := map[engine.TableName]*found{}
	for _, f := range tables {
		t := r.target(f)
		if other := into[t]; other != nil {
			return usage("the archives %s and %s would both be restored into table %s: give the location of one, or name its table by --table", other.where(), f.where(), pgsession.QuoteTable(t.Schema, t.Name))
		}
		into[t] = f
	}
	at, err := r.moments(tables)
	if err != nil {
		return err
	}
	conn, err := pgconn.Connect(ctx, r.to)
	if err != nil {
		return fmt.Errorf("cannot connect to the database to restore into: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	// Values are in the form that PostgreSQL sent them in.
	if err := run(ctx, conn, "SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET extra_float_digits = 1; BEGIN"); err != nil {
		return err
	}
	if tables, err = r.ready(ctx, conn, tables); err != nil {
		return err
	}
	for _, f := range tables {
		if err := r.copyTable(c, conn, f, at[f]); err != nil {
			return fmt.Errorf("%s is not restored, and nothing else: %w", quoteTable(f.manifest.Table), err)
		}
	}
	if err := run(ctx, conn, "COMMIT"); err != nil {
		return fmt.Errorf("the database has not kept what was restored: %w", err)
	}
	return nil
}

func run(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	_, err := conn.Exec(ctx, sql).ReadAll()
	return told(err)
}

// copyTable restores one table in the transaction that is open.
func (r *restore) copyTable(c *cobra.Command, conn *pgconn.PgConn, f *found, at archive.AsOf) error {
	ctx := c.Context()
	fold, err := f.reader.Fold(ctx, at)
	if err != nil {
		return err
	}
	defer fold.Close()
	rel := relationOf(f.manifest, fold)
	target := r.target(f)
	write, err := r.prepare(ctx, conn, target, rel.columns)
	if err != nil {
		return err
	}
	names := make([]string, len(write))
	for i, at := range write {
		names[i] = pgsession.QuoteIdent(rel.columns[at].Name)
	}
	quoted := pgsession.QuoteTable(target.Schema, target.Name)
	bar := progressTo(c.ErrOrStderr())
	defer bar.end()
	began := time.Now()
	pr, pw := io.Pipe()
	var rows, bytes int64
	done := make(chan error, 1)
	go func() {
		var values [][]byte
		out := make([][]byte, len(write))
		buf := make([]byte, 0, 1<<17)
		err := fold.Rows(func(rec *engine.Record) (err error) {
			if rec.Deleted {
				return nil
			}
			if values, err = rel.values(rec, values); err != nil {
				return err
			}
			for i, at := range write {
				out[i] = values[at]
			}
			rows++
			if buf = appendCopyRow(buf, names, out); len(buf) < 1<<16 {
				return nil
			}
			bytes += int64(len(buf))
			_, err = pw.Write(buf)
			buf = buf[:0]
			bar.say("%s: %d of about %d rows, %s", quoteTable(target), rows, f.manifest.Current.BaseRows, bytesText(bytes))
			return err
		})
		if err == nil {
			_, err = pw.Write(buf)
		}
		_ = pw.CloseWithError(err)
		done <- err
	}()
	list := ""
	if len(names) > 0 {
		list = " (" + strings.Join(names, ", ") + ")"
	}
	_, err = conn.CopyFrom(ctx, pr, "COPY "+quoted+list+" FROM STDIN")
	_ = pr.CloseWithError(io.ErrClosedPipe)
	if werr := <-done; werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		err = werr
	}
	if err != nil {
		return told(err)
	}
	bar.end()
	fmt.Fprintf(c.OutOrStdout(), "%s: %s as of %s, in %s\n", quoteTable(target), plural(int(rows), "row", "rows"), momentText(fold.At()), time.Since(began).Round(time.Millisecond))
	return nil
}

// prepare sees to it that the table is there, and returns which columns are written.
func (r *restore) prepare(ctx context.Context, conn *pgconn.PgConn, t engine.TableName, columns []engine.Column) (write []int, err error) {
	quoted := pgsession.QuoteTable(t.Schema, t.Name)
	have, err := columnsOf(ctx, conn, t)
	if err != nil {
		return nil, err
	}
	if have == nil {
		sql := createTable(t, columns)
		if !r.create {
			return nil, fmt.Errorf("the database has no table %s: use --create, or run: %s", quoted, sql)
		}
		if err := run(ctx, conn, "CREATE SCHEMA IF NOT EXISTS "+pgsession.QuoteIdent(t.Schema)); err != nil {
			return nil, err
		}
		if err := run(ctx, conn, sql); err != nil {
			return nil, fmt.Errorf("%w: make the table by hand, with what it needs, as in: %s", err, sql)
		}
		for i := range columns {
			write = append(write, i)
		}
		return write, nil
	}
	var missing []string
	for i, c := range columns {
		generated, ok := have[c.Name]
		switch {
		case !ok:
			missing = append(missing, pgsession.QuoteIdent(c.Name)+" "+typeOf(c))
		case !generated:
			write = append(write, i)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("table %s of the database lacks columns that the archive has: add them: ALTER TABLE %s ADD COLUMN %s", quoted, quoted, strings.Join(missing, ", ADD COLUMN "))
	}
	return write, nil
}

// columnsOf returns the table's columns, and which are generated; nil if there is no such
// table.
func columnsOf(ctx context.Context, conn *pgconn.PgConn, t engine.TableName) (map[string]bool, error) {
	res := conn.ExecParams(ctx, `SELECT a.attname, a.attgenerated <> '' FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'f', 'v')`, [][]byte{[]byte(t.Schema), []byte(t.Name)}, nil, nil, nil).Read()
	if res.Err != nil || len(res.Rows) == 0 {
		return nil, res.Err
	}
	have := map[string]bool{}
	for _, row := range res.Rows {
		if row[0] != nil {
			have[string(row[0])] = string(row[1]) == "t"
		}
	}
	return have, nil
}

func typeOf(c engine.Column) string {
	if c.TypeName == "" {
		return "text" // nothing is known of it but its text
	}
	return c.TypeName
}

func createTable(t engine.TableName, columns []engine.Column) string {
	var parts, keys []string
	for _, c := range columns {
		parts = append(parts, pgsession.QuoteIdent(c.Name)+" "+typeOf(c))
		if c.Key {
			keys = append(keys, pgsession.QuoteIdent(c.Name))
		}
	}
	if len(keys) > 0 {
		parts = append(slices.Clip(parts), "PRIMARY KEY ("+strings.Join(keys, ", ")+")")
	}
	return fmt.Sprintf("CREATE TABLE %s (%s)", pgsession.QuoteTable(t.Schema, t.Name), strings.Join(parts, ", "))
}
