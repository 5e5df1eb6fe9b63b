// Package postgres is a sink that keeps tables of a PostgreSQL database equal
// to those of a node.
//
// Changes are applied in the order of their log. The cursor of each log is kept
// in the target, in a schema of the sink's own, and moves in the transaction
// that applies the changes: so each is applied exactly once, whatever breaks
// when. A transaction of the source is whole at the target, however large.
//
// A baseline is copied into a temporary table and merged in one transaction
// with the cursors: those who read the target see all of it or nothing, and rows
// that are equal are not written.
//
// Limits: tables are matched by name and columns by name; further columns of
// the target are left alone. A table without a key is kept by comparing whole
// rows, which needs a scan for each delete. Triggers and foreign keys of the
// target fire and hold as for any session; search_path is pg_catalog.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// Config says what to write, and where. Session and Sink are required.
type Config struct {
	Session pgsession.Config
	// Sink is what the target knows the sink by: unique among all that write to
	// the database, and the same after a restart.
	Sink string
	// Schema takes all tables; when empty each goes to a schema of its own name.
	Schema string
	// CreateTables makes tables that are missing, and columns; it follows the
	// source's changes of a table as far as no data of the target is lost by it.
	CreateTables bool
	// Provenance adds to each table with a key the columns tributary_origin,
	// tributary_epoch, tributary_version and tributary_time: of the write that a row is
	// of.
	Provenance bool
	// Counters are the columns that add up over the leaves of a relay tree, of the tables
	// that have any. With CreateTables each has a view with the totals beside it: see
	// TotalSuffix.
	Counters map[engine.TableName][]string
	// StateSchema is the sink's own schema; DefaultStateSchema when empty.
	StateSchema string
}

// DefaultStateSchema is the default of Config.StateSchema.
const DefaultStateSchema = "tributary"

// Target is a database. It implements sinks.Target.
type Target struct {
	cfg     Config
	cursors string // quoted names of the sink's own tables
	tables  string

	conn   *pgconn.PgConn
	at     map[place]engine.Cursor // as last seen in the target
	shapes map[*engine.Schema]*shape
	stmts  map[string]string // SQL to the name it is prepared under
	// extended are schemas with the columns of provenance.
	extended map[*engine.Schema]*engine.Schema
}

// place is where a cursor stands: there is one epoch of an origin at a time.
type place struct {
	origin string
	scope  engine.Scope
}

func placeOf(k engine.CursorKey) place { return place{k.Log.Origin, k.Scope} }

var _ sinks.Target = (*Target)(nil)

// New returns a target. Nothing is connected yet.
func New(c Config) (*Target, error) {
	if c.Sink == "" || c.Session.ConnString == "" {
		return nil, errors.New("a sink to PostgreSQL needs a name and a connection string")
	}
	if c.StateSchema == "" {
		c.StateSchema = DefaultStateSchema
	}
	return &Target{
		cfg: c, extended: map[*engine.Schema]*engine.Schema{}, cursors: pgsession.QuoteTable(c.StateSchema, "cursors"), tables: pgsession.QuoteTable(c.StateSchema, "tables"),
	}, nil
}

// settings of the session beside the pinned ones. A lock that another session
// holds for long is reported, and waited for again.
const settings = pgsession.NoTimeouts + `; SELECT pg_catalog.set_config('lock_timeout', '30s', false)`

// Open connects, makes the sink's own tables if they are missing, and reads the
// cursors.
func (t *Target) Open(ctx context.Context) (engine.Cursors, error) {
	cfg, err := t.cfg.Session.Parse(ctx)
	if err != nil {
		return nil, t.where(err)
	}
	if t.conn, err = pgsession.Connect(ctx, cfg, "tributary "+t.cfg.Sink); err != nil {
		return nil, t.where(connectError(err, cfg.User))
	}
	t.forget()
	if _, err := t.query(ctx, settings); err != nil {
		return nil, t.where(err)
	}
	if err := t.ownTables(ctx); err != nil {
		return nil, t.where(err)
	}
	rows, err := t.query(ctx, `SELECT origin, scope, epoch, position, "time" FROM `+t.cursors+` WHERE sink = $1`, t.cfg.Sink)
	if err != nil {
		return nil, t.where(err)
	}
	all := engine.Cursors{}
	t.at = map[place]engine.Cursor{}
	for _, r := range rows {
		epoch, err1 := strconv.ParseUint(r[2], 10, 64)
		time, err2 := strconv.ParseUint(r[4], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, t.where(fmt.Errorf("a cursor in %s cannot be read: %w", t.cursors, err))
		}
		c := engine.Cursor{
			CursorKey: engine.CursorKey{Log: engine.LogID{Origin: r[0], Epoch: engine.Epoch(epoch)}, Scope: engine.Scope(r[1])},
			Position:  engine.Position(r[3]), Time: engine.Time(time),
		}
		all[c.CursorKey], t.at[placeOf(c.CursorKey)] = c, c
	}
	return all, nil
}

// Close ends the session.
func (t *Target) Close() {
	pgsession.Close(t.conn)
	t.conn = nil
}

// forget drops what is only true of a session, or of a transaction that was
// rolled back.
func (t *Target) forget() {
	t.shapes, t.stmts = map[*engine.Schema]*shape{}, map[string]string{}
}

// ownTables makes the sink's own tables. Where they are there, it needs no right
// to make any.
func (t *Target) ownTables(ctx context.Context) error {
	const have = `SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname IN ('changed', 'oid') AND a.attnum > 0
WHERE n.nspname = $1 AND c.relname IN ('cursors', 'tables')`
	rows, err := t.query(ctx, have, t.cfg.StateSchema)
	if err != nil {
		return err
	}
	if rows[0][0] == "2" {
		return nil
	}
	// The lock is for sinks that start at the same time.
	ddl := `BEGIN; SELECT pg_catalog.pg_advisory_xact_lock(7305232516);`
	if rows, err = t.query(ctx, `SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1`, t.cfg.StateSchema); err != nil {
		return err
	} else if len(rows) == 0 {
		ddl += `CREATE SCHEMA IF NOT EXISTS ` + pgsession.QuoteIdent(t.cfg.StateSchema) + `;`
	}
	ddl += `CREATE TABLE IF NOT EXISTS ` + t.cursors + ` (sink text, origin text, scope text, epoch int8 NOT NULL, position text NOT NULL, "time" int8 NOT NULL,
	changed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (sink, origin, scope));
CREATE TABLE IF NOT EXISTS ` + t.tables + ` (sink text, origin text, "schema" text, name text, columns jsonb NOT NULL, PRIMARY KEY (sink, origin, "schema", name));
ALTER TABLE ` + t.tables + ` ADD COLUMN IF NOT EXISTS oid text NOT NULL DEFAULT '';
COMMIT`
	if _, err := t.query(ctx, ddl); err != nil {
		_, _ = t.query(ctx, "ROLLBACK")
		if pgsession.SQLState(err) == "42501" {
			schema, user := pgsession.QuoteIdent(t.cfg.StateSchema), "the sink's user"
			if cfg, perr := t.cfg.Session.Parse(ctx); perr == nil {
				user = pgsession.QuoteIdent(cfg.User)
			}
			err = &sinks.Rejection{Err: fmt.Errorf("the sink keeps its cursors in schema %s, and may not make it: %w. As the database's owner: CREATE SCHEMA IF NOT EXISTS %s; GRANT USAGE, CREATE ON SCHEMA %s TO %s",
				schema, err, schema, schema, user)}
		}
		return err
	}
	return nil
}

// query runs SQL and returns the rows of its last result as text. With
// arguments it is a single statement.
func (t *Target) query(ctx context.Context, sql string, args ...string) ([][]string, error) {
	var results []*pgconn.Result
	if len(args) == 0 {
		var err error
		if results, err = t.conn.Exec(ctx, sql).ReadAll(); err != nil {
			return nil, err
		}
	} else {
		raw := make([][]byte, len(args))
		for i, a := range args {
			raw[i] = []byte(a)
		}
		r := t.conn.ExecParams(ctx, sql, raw, nil, nil, nil).Read()
		if r.Err != nil {
			return nil, r.Err
		}
		results = []*pgconn.Result{r}
	}
	return pgsession.Text(results...), nil
}

// where says which server an error is of.
func (t *Target) where(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("PostgreSQL at %s: %w", t.cfg.Session.Server(""), err)
}
