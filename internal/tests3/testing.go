package tests3

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
)

// TB is the part of testing.TB that is used; programs that import this package then
// do not link the testing package.
type TB interface {
	Helper()
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
	Failed() bool
}

var shared struct {
	sync.Mutex
	server *Server
	err    error
}

type runner struct{ m interface{ Run() int } }

// With runs a package's tests with a shared server, which starts with the first test
// that needs it and is closed after the last. Use it in TestMain.
func With(m interface{ Run() int }) interface{ Run() int } { return runner{m} }

func (r runner) Run() (code int) {
	defer func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.server == nil {
			return
		}
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "tests3:", err)
			code = max(code, 1)
		}
	}()
	return r.m.Run()
}

func skipShort(t TB) {
	t.Helper()
	if f := flag.Lookup("test.short"); f != nil && f.Value.String() == "true" {
		t.Skip("needs an S3 server, which -short leaves out")
	}
}

// NewBucket makes a bucket in the package's shared server. It is for use where
// TestMain uses With.
func NewBucket(t TB) *Bucket {
	t.Helper()
	skipShort(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = Run(context.Background(), Options{})
	}
	if shared.err != nil {
		t.Fatalf("starting an S3 server: %v", shared.err)
	}
	b, err := shared.server.CreateBucket()
	if err != nil {
		t.Fatalf("making a bucket: %v", err)
	}
	return b
}

// Start starts a server for this test alone, and makes a bucket in it.
func Start(t TB, o Options) *Bucket {
	t.Helper()
	skipShort(t)
	s, err := Run(context.Background(), o)
	if err != nil {
		t.Fatalf("starting an S3 server: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the S3 server:\n%s", s.Log())
		}
		if err := s.Close(); err != nil {
			t.Logf("tests3: %v", err)
		}
	})
	b, err := s.CreateBucket()
	if err != nil {
		t.Fatalf("making a bucket: %v", err)
	}
	return b
}
