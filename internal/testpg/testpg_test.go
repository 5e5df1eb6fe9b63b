package testpg_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
)

func TestMain(m *testing.M) {
	if os.Getenv("TESTPG_CHILD") != "" {
		child()
	}
	os.Exit(testpg.Main(m, testpg.Options{}))
}

func TestSharedServer(t *testing.T) {
	t.Parallel()
	db, other := testpg.NewDB(t), testpg.NewDB(t)
	if db.Server != other.Server || db.Name == other.Name {
		t.Fatalf("want two databases of one server, got %s and %s", db.Name, other.Name)
	}
	db.Exec(t, `CREATE TABLE t (id int PRIMARY KEY, b text)`, `INSERT INTO t VALUES (1,'x'),(2,NULL)`)
	other.Exec(t, `CREATE TABLE t (id int PRIMARY KEY, b text)`, `INSERT INTO t VALUES (2,NULL)`, `INSERT INTO t VALUES (1,'x')`)
	a, b := db.Digest(t, `SELECT * FROM t ORDER BY 1`), other.Digest(t, `SELECT * FROM t ORDER BY 1 DESC`)
	if a != b {
		t.Errorf("equal rows, different digests: %s, %s", a, b)
	}
	other.Exec(t, `UPDATE t SET b='' WHERE id=2`)
	if c := other.Digest(t, `SELECT * FROM t`); c == b {
		t.Errorf("null and empty text have the same digest %s", c)
	}
	if got := db.Value(t, `SHOW wal_level`); got != "logical" {
		t.Errorf("wal_level = %s", got)
	}
}

// A database goes with its slots, also those that a walsender holds.
func TestDropWithSlot(t *testing.T) {
	t.Parallel()
	s := testpg.Shared(t, 0)
	var name string
	t.Run("use", func(t *testing.T) {
		db := s.NewDB(t)
		name = db.Name
		db.Exec(t, `SELECT pg_create_logical_replication_slot('held','pgoutput')`)
	})
	db := testpg.NewDB(t)
	if n := db.Value(t, `SELECT (SELECT count(*) FROM pg_database WHERE datname='`+name+`') + (SELECT count(*) FROM pg_replication_slots WHERE database='`+name+`')`); n != "0" {
		t.Errorf("%s or its slot is left behind", name)
	}
}

func TestRestartAndKill(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{Settings: map[string]string{"work_mem": "5MB"}, Fsync: true})
	db := s.NewDB(t)
	db.Exec(t, `CREATE TABLE t (id int)`, `INSERT INTO t VALUES (7)`)
	steps := map[string]func() error{
		"fast":      func() error { return s.Restart(t.Context(), testpg.Fast) },
		"immediate": func() error { return s.Restart(t.Context(), testpg.Immediate) },
		"kill": func() error {
			if err := s.Kill(t.Context()); err != nil {
				return err
			}
			return s.Start(t.Context())
		},
	}
	for name, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := db.Value(t, `SELECT id FROM t`) + db.Value(t, `SHOW work_mem`); got != "75MB" {
			t.Errorf("after %s: %q", name, got)
		}
	}
}

// Each version asked for starts and speaks logical replication.
func TestVersions(t *testing.T) {
	versions, err := testpg.Versions()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		s := testpg.Shared(t, v)
		if v != 0 && s.Major != v {
			t.Errorf("asked for %d, got %d", v, s.Major)
		}
		s.NewDB(t).Exec(t, `SELECT pg_create_logical_replication_slot('v','pgoutput')`)
	}
}

// child starts a server, prints its directory and waits to be killed.
func child() {
	s, err := testpg.Run(context.Background(), testpg.Options{})
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(s.Dir + "\n")
	time.Sleep(time.Hour)
}

// A server does not outlive the process that started it, however that ends.
func TestDiesWithItsParent(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL server")
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TESTPG_CHILD=1")
	var out bytes.Buffer
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	buf := make([]byte, 4096)
	for !strings.Contains(out.String(), "\n") {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("child ended: %v", err)
		}
		out.Write(buf[:n])
	}
	dir := strings.TrimSpace(out.String())
	if _, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid")); os.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server outlived its parent")
		}
	}
	// What is left of it is old enough for the next server to remove it.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "lock"), old, old); err != nil {
		t.Fatal(err)
	}
	testpg.Start(t, testpg.Options{})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left behind", dir)
	}
}
