// Package pgsession opens sessions with PostgreSQL, the same way for sources
// and sinks: under pinned settings, so that a value has one text form on every
// connection, with fresh credentials, and so that a network which drops
// everything is noticed.
package pgsession

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// pinned are the settings that values are read and written under.
// search_path is pinned since regclass and its kin print names relative to it.
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

// NoTimeouts lifts what would end a long COPY or a session that waits for one.
const NoTimeouts = `SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name IN
('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')`

const connectTimeout = 15 * time.Second

// Config says where a server is and who logs in.
type Config struct {
	// ConnString is a libpq URL or key=value string. It is parsed at every
	// connect, so that the files it names (sslrootcert, sslcert, sslkey,
	// passfile) are read again.
	ConnString string
	// Credentials, if set, gives the user and password for each connect, in place
	// of those of ConnString: a rotated secret is used at the next connect. An
	// empty user or password leaves that of ConnString.
	Credentials func(ctx context.Context) (user, password string, err error)
}

// Errors of Parse.
var (
	ErrConnString  = errors.New("the connection string cannot be used")
	ErrCredentials = errors.New("the user and password cannot be read")
)

// Parse reads the connection string and the credentials.
func (c Config) Parse(ctx context.Context) (*pgconn.Config, error) {
	cfg, err := pgconn.ParseConfig(c.ConnString)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnString, err)
	}
	if c.Credentials == nil {
		return cfg, nil
	}
	user, password, err := c.Credentials(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCredentials, err)
	}
	if user != "" {
		cfg.User = user
	}
	if password != "" {
		cfg.Password = password
	}
	return cfg, nil
}

// Connect opens a session with the pinned settings. name is how the server
// knows it, unless the connection string says.
func Connect(ctx context.Context, cfg *pgconn.Config, name string) (*pgconn.PgConn, error) {
	return ConnectTo(ctx, cfg, name, "")
}

// ConnectTo is Connect to one address of those that the configuration's hosts
// have, as Address gives it: so that several sessions are with one server. The
// empty address allows any.
func ConnectTo(ctx context.Context, cfg *pgconn.Config, name, address string) (*pgconn.PgConn, error) {
	for k, v := range pinned {
		cfg.RuntimeParams[k] = v
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = name
	}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if address != "" && addr != address {
			return nil, fmt.Errorf("%s is passed over: other sessions are with the server at %s", addr, address)
		}
		return dial(ctx, network, addr)
	}
	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c, err := pgconn.ConnectConfig(dialCtx, cfg)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return c, err
}

// Address is where a session's server is.
func Address(c *pgconn.PgConn) string { return c.Conn().RemoteAddr().String() }

// Close ends a session. It does not wait for a server that does not answer.
func Close(c *pgconn.PgConn) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.Close(ctx) // the session is over either way
}

// Server names the server for people: no user, no password. Where it could be one of
// several, at is the address of the one that sessions are with; empty while that is not known.
func (c Config) Server(at string) string {
	cfg, err := pgconn.ParseConfig(c.ConnString)
	if err != nil {
		return "(unreadable connection string)"
	}
	hosts := []string{net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))}
	for _, f := range cfg.Fallbacks { // a host may be there twice: with TLS and without
		if h := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	name := strings.Join(hosts, ",") + "/" + cfg.Database
	if len(hosts) > 1 && at != "" {
		name += " at " + at
	}
	return name
}

// SQLState returns the SQLSTATE of a server's error, or "".
func SQLState(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// QuoteIdent quotes an SQL identifier.
func QuoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// QuoteTable quotes a table's name.
func QuoteTable(schema, name string) string { return QuoteIdent(schema) + "." + QuoteIdent(name) }

// QuoteLiteral quotes an SQL string, with standard_conforming_strings on or off.
func QuoteLiteral(s string) string {
	q := "'" + strings.ReplaceAll(strings.ReplaceAll(s, "'", "''"), `\`, `\\`) + "'"
	if strings.Contains(s, `\`) {
		return " E" + q
	}
	return q
}
