package testpg

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// pinned are the settings under which values are compared as text.
const pinned = `SET datestyle=ISO; SET intervalstyle=postgres; SET extra_float_digits=3; SET timezone='UTC'; SET bytea_output=hex; SET client_encoding='UTF8'`

// DB is one database of a server.
type DB struct {
	// Name of the database; safe without quotes.
	Name string
	// ConnString connects over TCP as the superuser.
	ConnString string
	// Server that it lives in.
	Server *Server
}

// CreateDB makes an empty database.
func (s *Server) CreateDB(ctx context.Context) (*DB, error) {
	s.mu.Lock()
	s.dbs++
	name := fmt.Sprintf("db%d", s.dbs)
	s.mu.Unlock()
	admin := &DB{Name: "postgres", Server: s}
	if err := admin.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	return &DB{Name: name, ConnString: s.ConnString(name), Server: s}, nil
}

// Drop ends the database's sessions, drops its slots, and drops it.
func (d *DB) Drop(ctx context.Context) error {
	admin := &DB{Name: "postgres", Server: d.Server}
	deadline := time.Now().Add(20 * time.Second)
	for {
		// A walsender takes a moment to end and to let its slot go.
		err := admin.ExecContext(ctx, fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname='%[1]s'`, d.Name))
		if err == nil {
			err = admin.ExecContext(ctx, fmt.Sprintf(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database='%[1]s' AND NOT active`, d.Name))
		}
		if err == nil {
			err = admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+d.Name)
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ConnStringAs connects over TCP as another user.
func (d *DB) ConnStringAs(user, password string) string {
	return d.Server.ConnStringAs(d.Name, user, password)
}

// Connect opens a session over the Unix socket with the pinned settings.
func (d *DB) Connect(ctx context.Context) (*pgconn.PgConn, error) {
	conn, err := pgconn.Connect(ctx, d.Server.SocketString(d.Name))
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, pinned).ReadAll(); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// ExecContext runs statements; each string is one implicit transaction.
func (d *DB) ExecContext(ctx context.Context, sql ...string) error {
	conn, err := d.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, q := range sql {
		if _, err := conn.Exec(ctx, q).ReadAll(); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return nil
}

// QueryContext returns the rows of one query as text, nil for null.
func (d *DB) QueryContext(ctx context.Context, sql string) ([][]*string, error) {
	var out [][]*string
	err := d.scan(ctx, sql, func(values [][]byte) {
		row := make([]*string, len(values))
		for i, v := range values {
			if v != nil {
				s := string(v)
				row[i] = &s
			}
		}
		out = append(out, row)
	})
	return out, err
}

func (d *DB) scan(ctx context.Context, sql string, each func([][]byte)) error {
	conn, err := d.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// The simple protocol gives each type's output function, which is what
	// COPY and pgoutput give too. A cast to text differs for bool, char(n)
	// and inet.
	res := conn.Exec(ctx, sql)
	for res.NextResult() {
		for r := res.ResultReader(); r.NextRow(); {
			each(r.Values())
		}
	}
	if err := res.Close(); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// DigestContext digests the rows of a query, in whatever order they come.
func (d *DB) DigestContext(ctx context.Context, sql string) (string, error) {
	var dg Digest
	err := d.scan(ctx, sql, func(values [][]byte) { dg.Add(values) })
	return dg.String(), err
}

// TerminateWalsenders ends the database's walsenders and returns how many.
func (d *DB) TerminateWalsenders(ctx context.Context) (int, error) {
	rows, err := d.QueryContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname=current_database() AND backend_type='walsender'`)
	return len(rows), err
}

// Digest is a digest of a set of rows that does not depend on their order:
// the sum of the rows' hashes. The zero value is the empty set.
type Digest struct {
	sum  [4]uint64
	rows int
	buf  []byte
}

// Add adds a row; a nil value is null.
func (d *Digest) Add(values [][]byte) {
	d.buf = d.buf[:0]
	for _, v := range values {
		if v == nil {
			d.buf = append(d.buf, 'n')
			continue
		}
		d.buf = append(d.buf, 'v')
		d.buf = binary.BigEndian.AppendUint64(d.buf, uint64(len(v)))
		d.buf = append(d.buf, v...)
	}
	h := sha256.Sum256(d.buf)
	for i := range d.sum {
		d.sum[i] += binary.BigEndian.Uint64(h[8*i:])
	}
	d.rows++
}

// String is the number of rows and the digest.
func (d *Digest) String() string {
	var raw [32]byte
	for i, s := range d.sum {
		binary.BigEndian.PutUint64(raw[8*i:], s)
	}
	return fmt.Sprintf("%d rows %s", d.rows, hex.EncodeToString(raw[:12]))
}

// QuoteIdent quotes an SQL identifier.
func QuoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
