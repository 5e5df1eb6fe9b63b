package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// conn is a connection whose messages can also be read without pgconn.
type conn struct {
	*pgconn.PgConn
	frames  *frames
	address string
}

// access is how the server is reached.
func (s *Source) access() pgsession.Config {
	return pgsession.Config{ConnString: s.cfg.ConnString, Credentials: s.cfg.Credentials}
}

// connect opens a session with the pinned settings, for SQL or for replication.
// Errors are Problems.
func (s *Source) connect(ctx context.Context, replication bool) (*conn, error) {
	cfg, err := s.access().Parse(ctx)
	switch {
	case errors.Is(err, pgsession.ErrCredentials):
		return nil, &Problem{Reason: AuthenticationFailed, What: err.Error()}
	case err != nil:
		return nil, &Problem{Reason: ServerUnreachable, What: err.Error(), Mend: "Check it, and the files it names"}
	}
	if replication {
		cfg.RuntimeParams["replication"] = "database"
	}
	c := &conn{}
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		c.frames = newFrames(r)
		return pgproto3.NewFrontend(c.frames, w)
	}
	if c.PgConn, err = pgsession.ConnectTo(ctx, cfg, s.appName(), s.pinned()); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, connectProblem(err, cfg.User, replication)
	}
	c.address = s.pin(pgsession.Address(c.PgConn))
	qctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if _, err := c.query(qctx, pgsession.NoTimeouts); err != nil {
		c.close()
		if ctx.Err() == nil && qctx.Err() != nil {
			return nil, &Problem{Reason: ServerUnreachable, What: fmt.Sprintf("the server has not answered for %s", answerWithin)}
		}
		return nil, err
	}
	return c, nil
}

// Where several hosts could be connected to, all sessions are with the one that
// the first has found, until its connection is lost.

// pinned is the address that sessions are with; empty before the first.
func (s *Source) pinned() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// pin makes an address that of all further sessions, if there is none yet.
func (s *Source) pin(address string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.address == "" {
		s.address = address
	}
	return address
}

// unpin lets the next session be with any server.
func (s *Source) unpin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = ""
}

func (s *Source) appName() string {
	name := "tributary"
	if s.env.NodeID != "" {
		name += " " + s.env.NodeID
	}
	return name
}

// server names the server for people: no user, no password.
func (s *Source) server() string { return s.access().Server(s.pinned()) }

// user is the user that the next connect would use.
func (s *Source) user(ctx context.Context) string {
	cfg, err := s.access().Parse(ctx)
	if err != nil {
		return ""
	}
	return cfg.User
}

func (c *conn) close() {
	if c != nil {
		pgsession.Close(c.PgConn)
	}
}

// query runs a statement by the simple protocol, which works on a replication
// connection too, and returns the rows of its last result as text.
func (c *conn) query(ctx context.Context, sql string) ([][]string, error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	return pgsession.Text(results...), nil
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
	return pgsession.Text(r), nil
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

func quoteIdent(s string) string            { return pgsession.QuoteIdent(s) }
func quoteLiteral(s string) string          { return pgsession.QuoteLiteral(s) }
func quoteTable(schema, name string) string { return pgsession.QuoteTable(schema, name) }
