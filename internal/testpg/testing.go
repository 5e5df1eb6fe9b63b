package testpg

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"
)

// TB is the part of testing.TB that is used; programs that import this
// package then do not link the testing package.
type TB interface {
	Helper()
	Name() string
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
	Failed() bool
	Context() context.Context
}

var shared struct {
	sync.Mutex
	options Options
	servers map[int]*Server
	errs    map[int]error
}

// Main runs a package's tests with a shared server (one per major version
// asked for), which starts with the first test that needs it and is closed
// after the last. Use it in TestMain.
func Main(m interface{ Run() int }, o Options) (code int) {
	shared.options = o
	defer func() {
		shared.Lock()
		defer shared.Unlock()
		for _, s := range shared.servers {
			if err := s.Close(); err != nil {
				fmt.Fprintln(os.Stderr, "testpg:", err)
				code = max(code, 1)
			}
		}
	}()
	return m.Run()
}

func skipShort(t TB) {
	t.Helper()
	if f := flag.Lookup("test.short"); f != nil && f.Value.String() == "true" {
		t.Skip("needs a PostgreSQL server, which -short leaves out")
	}
}

// Shared returns the package's shared server of a major version (0: the one
// Main was given). It is for use from TestMain's package only.
func Shared(t TB, major int) *Server {
	t.Helper()
	skipShort(t)
	shared.Lock()
	defer shared.Unlock()
	o := shared.options
	if major != 0 {
		o.Major = major
	}
	if s := shared.servers[o.Major]; s != nil {
		return s
	}
	err := shared.errs[o.Major]
	if err == nil {
		var s *Server
		if s, err = Run(context.Background(), o); err == nil {
			if shared.servers == nil {
				shared.servers = map[int]*Server{}
			}
			shared.servers[o.Major] = s
			return s
		}
		if shared.errs == nil {
			shared.errs = map[int]error{}
		}
		shared.errs[o.Major] = err
	}
	t.Fatalf("starting PostgreSQL: %v", err)
	return nil
}

// Start starts a server for this test alone, to be stopped, killed or
// configured at will.
func Start(t TB, o Options) *Server {
	t.Helper()
	skipShort(t)
	s, err := Run(context.Background(), o)
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("PostgreSQL log:\n%s", s.Log(30))
		}
		if err := s.Close(); err != nil {
			t.Logf("testpg: %v", err)
		}
	})
	return s
}

// NewDB makes a database in the shared server.
func NewDB(t TB) *DB {
	t.Helper()
	return Shared(t, 0).NewDB(t)
}

// NewDB makes a database that ends with the test, its slots included.
func (s *Server) NewDB(t TB) *DB {
	t.Helper()
	d, err := s.CreateDB(context.Background())
	if err != nil {
		t.Fatalf("creating a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if !s.running() {
			return
		}
		if err := d.Drop(ctx); err != nil {
			t.Logf("testpg: dropping %s: %v", d.Name, err)
		}
	})
	return d
}

// Exec runs statements and fails the test if one fails.
func (d *DB) Exec(t TB, sql ...string) {
	t.Helper()
	if err := d.ExecContext(t.Context(), sql...); err != nil {
		t.Fatalf("%v", err)
	}
}

// Query returns the rows of a query as text, nil for null.
func (d *DB) Query(t TB, sql string) [][]*string {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), sql)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return rows
}

// Value returns the single value of a query, or "<null>".
func (d *DB) Value(t TB, sql string) string {
	t.Helper()
	rows := d.Query(t, sql)
	if len(rows) != 1 || len(rows[0]) != 1 {
		t.Fatalf("%s: got %d rows, want a single value", sql, len(rows))
	}
	if rows[0][0] == nil {
		return "<null>"
	}
	return *rows[0][0]
}

// Digest digests the rows of a query.
func (d *DB) Digest(t TB, sql string) string {
	t.Helper()
	s, err := d.DigestContext(t.Context(), sql)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return s
}
