package postgres

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// pinned are the settings that values are read under on every connection, so
// that a value has one text form however it comes. search_path is pinned since
// regclass and its kin print names relative to it.
var pinned = map[string]string{
	"client_encoding":    "UTF8",
	"datestyle":          "ISO",
	"intervalstyle":      "postgres",
	"extra_float_digits": "3",
	"timezone":           "UTC",
	"bytea_output":       "hex",
	"search_path":        "pg_catalog",
	// regclass and its kin quote more with it on.
	"quote_all_identifiers": "off",
	// money is printed as if its unit were the dollar, with two decimals, wherever
	// the server stands: the number is the same.
	"lc_monetary": "C",
	// A table that row-level security would hide rows of is refused, not read in part.
	"row_security": "off",
}

// noTimeouts lifts what would end a long COPY or a session that waits for one.
const noTimeouts = `SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name IN
('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')`

// conn is a connection whose messages can also be read without pgconn.
type conn struct {
	*pgconn.PgConn
	frames *frames
}

const connectTimeout = 15 * time.Second

// connect opens a session with the pinned settings, for SQL or for replication.
// Errors are Problems.
func (s *Source) connect(ctx context.Context, replication bool) (*conn, error) {
	cfg, err := pgconn.ParseConfig(s.cfg.ConnString)
	if err != nil {
		return nil, &Problem{Reason: ServerUnreachable, What: "the connection string cannot be used", Err: err, Mend: "Check it, and the files it names"}
	}
	if s.cfg.Credentials != nil {
		user, password, err := s.cfg.Credentials(ctx)
		if err != nil {
			return nil, &Problem{Reason: AuthenticationFailed, What: "the user and password cannot be read", Err: err}
		}
		if user != "" {
			cfg.User = user
		}
		if password != "" {
			cfg.Password = password
		}
	}
	for k, v := range pinned {
		cfg.RuntimeParams[k] = v
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = s.appName()
	}
	if replication {
		cfg.RuntimeParams["replication"] = "database"
	}
	cfg.DialFunc = dial
	c := &conn{}
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		c.frames = newFrames(r)
		return pgproto3.NewFrontend(c.frames, w)
	}
	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if c.PgConn, err = pgconn.ConnectConfig(dialCtx, cfg); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, connectProblem(err, cfg.User, replication)
	}
	if _, err := c.query(ctx, noTimeouts); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (s *Source) appName() string {
	name := "tributary"
	if s.env.NodeID != "" {
		name += " " + s.env.NodeID
	}
	return name
}

// server names the server for people: no user, no password.
func (s *Source) server() string {
	cfg, err := pgconn.ParseConfig(s.cfg.ConnString)
	if err != nil {
		return "(unreadable connection string)"
	}
	return net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))) + "/" + cfg.Database
}

// user is the user that the next connect would use.
func (s *Source) user(ctx context.Context) string {
	if s.cfg.Credentials != nil {
		if user, _, err := s.cfg.Credentials(ctx); err == nil && user != "" {
			return user
		}
	}
	cfg, err := pgconn.ParseConfig(s.cfg.ConnString)
	if err != nil {
		return ""
	}
	return cfg.User
}

func (c *conn) close() {
	if c == nil || c.PgConn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.PgConn.Close(ctx) // the session is over either way
}

// query runs a statement by the simple protocol, which works on a replication
// connection too, and returns the rows of its last result as text.
func (c *conn) query(ctx context.Context, sql string) ([][]string, error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) == 0 {
		return nil, nil
	}
	last := results[len(results)-1]
	rows := make([][]string, len(last.Rows))
	for i, r := range last.Rows {
		rows[i] = make([]string, len(r))
		for j, v := range r {
			rows[i][j] = string(v)
		}
	}
	return rows, nil
}

// params is query with parameters, on a connection that is not for replication.
func (c *conn) params(ctx context.Context, sql string, args ...string) ([][]string, error) {
	raw := make([][]byte, len(args))
	for i, a := range args {
		raw[i] = []byte(a)
	}
	r := c.ExecParams(ctx, sql, raw, nil, nil, nil).Read()
	if r.Err != nil {
		return nil, r.Err
	}
	rows := make([][]string, len(r.Rows))
	for i, row := range r.Rows {
		rows[i] = make([]string, len(row))
		for j, v := range row {
			rows[i][j] = string(v)
		}
	}
	return rows, nil
}

// setting returns a server setting.
func (c *conn) setting(ctx context.Context, name string) (string, error) {
	rows, err := c.query(ctx, "SELECT setting FROM pg_catalog.pg_settings WHERE name = "+quoteLiteral(name))
	if err != nil {
		return "", err
	}
	if len(rows) != 1 {
		return "", fmt.Errorf("the server has no setting %s", name)
	}
	return rows[0][0], nil
}

// quoteIdent quotes an SQL identifier.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteLiteral quotes an SQL string, with standard_conforming_strings on or off.
func quoteLiteral(s string) string {
	q := "'" + strings.ReplaceAll(strings.ReplaceAll(s, "'", "''"), `\`, `\\`) + "'"
	if strings.Contains(s, `\`) {
		return " E" + q
	}
	return q
}

func quoteTable(schema, name string) string { return quoteIdent(schema) + "." + quoteIdent(name) }
