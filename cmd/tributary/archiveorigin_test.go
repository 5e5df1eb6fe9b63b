package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/internal/testport"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// seeded runs a node that follows the archives of tables below a folder, until the test ends.
func seeded(t *testing.T, at string, tables ...string) (http, replication string) {
	t.Helper()
	cfg := &nodeconfig.Config{
		Version: nodeconfig.Version, Node: nodeconfig.Node{ID: "seeded"}, DrainTimeout: time.Second,
		Storage: nodeconfig.Storage{Type: nodeconfig.StorageMemory, ScratchPath: t.TempDir()},
		Sources: []nodeconfig.Source{{Name: "seed", Archive: &nodeconfig.ArchiveSource{
			ArchiveStore: nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: at}},
			Group:        true, Follow: true, PollInterval: 100 * time.Millisecond,
		}}},
	}
	for _, name := range tables {
		cfg.Sources[0].Archive.Tables = append(cfg.Sources[0].Archive.Tables, nodeconfig.Table{Schema: "public", Name: name})
	}
	for _, address := range []*string{&cfg.Listen.Replication, &cfg.Listen.HTTP} {
		var err error
		if *address, err = testport.TakeAddress(); err != nil {
			t.Fatal(err)
		}
	}
	cfg.SetDefaults()
	text, err := cfg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if cfg, err = nodeconfig.Parse("node.yaml", text); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.Default()
	}
	go func() { ended <- node.Run(ctx, node.Options{Config: cfg, Logger: log}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return cfg.Listen.HTTP, cfg.Listen.Replication
}

// serves waits until a node has so many rows of each table, and returns its status.
func serves(t *testing.T, address string, rows map[string]int) *nodeconfig.Statusz {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		st, err := statusOf(t.Context(), address)
		if err == nil {
			has := map[string]int{}
			for _, table := range st.Tables {
				has[table.Name] = int(table.Rows)
			}
			for name, n := range rows {
				if name = "public." + name; err == nil && has[name] != n {
					err = fmt.Errorf("%s has %d rows, want %d: %+v", name, has[name], n, st.Sources)
				}
			}
			if err == nil {
				return st
			}
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Tables that are exported one after the other under one name are served together, and taken in once each time
// that one of them is exported again.
func TestArchiveExportOneByOne(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE TABLE b (a int PRIMARY KEY)`, `INSERT INTO a SELECT generate_series(1, 10)`, `INSERT INTO b SELECT generate_series(1, 20)`)
	at := filepath.Join(t.TempDir(), "archive")
	export := func(table string) {
		t.Helper()
		well(t, "archive", "export", at, "--from", db.ConnString, "-t", table, "--name", "shop/seed")
	}
	export("a")
	db.Exec(t, `INSERT INTO a VALUES (11)`)
	export("b")
	address, _ := seeded(t, at, "a", "b")
	serves(t, address, map[string]int{"a": 10, "b": 20})
	time.Sleep(time.Second)
	if st := serves(t, address, map[string]int{"a": 10, "b": 20}); st.Sources[0].State != nodeconfig.StateStreaming || st.Rebaselines > 0 {
		t.Errorf("it does not stay as it is: %d baselines more, %+v", st.Rebaselines, st.Sources)
	}
	for i, table := range []string{"a", "b", "b"} {
		db.Exec(t, `DELETE FROM a WHERE a = 1`, fmt.Sprintf(`INSERT INTO b VALUES (%d)`, 100+i))
		export(table)
		serves(t, address, map[string]int{"a": 10, "b": []int{20, 22, 23}[i]})
	}
	time.Sleep(time.Second)
	if st := serves(t, address, map[string]int{"a": 10, "b": 23}); st.Sources[0].State != nodeconfig.StateStreaming || st.Rebaselines > 3 {
		t.Errorf("it was taken in too often: %d baselines more, %+v", st.Rebaselines, st.Sources)
	}
}

// Archives are taken over under another name: a node that follows them has the
// table as it is now, also without what was deleted in between.
func TestArchiveTakenOver(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY, b text)`, `INSERT INTO a SELECT i, 'old' FROM generate_series(1, 10) i`)
	at := filepath.Join(t.TempDir(), "archive")
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a", "--name", "first")
	address, _ := seeded(t, at, "a")
	serves(t, address, map[string]int{"a": 10})
	db.Exec(t, `DELETE FROM a WHERE a < 4`, `UPDATE a SET b = 'new' WHERE a = 5`)
	badly(t, 1, "have this one take the archive over", "archive", "export", at, "--from", db.ConnString, "-t", "a", "--name", "second")
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a", "--name", "second", "--take-over")
	serves(t, address, map[string]int{"a": 7})
	if out := well(t, "archive", "cat", at); strings.Count(out, "\n") != 7 || !strings.Contains(out, "new") {
		t.Errorf("the archive has %s", out)
	}
}

// An archive can be of a node that serves an archive, by the names that exports have where none is given, which those that are there
// already keep.
func TestArchiveExportNames(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE TABLE b (a int PRIMARY KEY)`, `INSERT INTO a SELECT generate_series(1, 10)`)
	first, second, old := t.TempDir(), t.TempDir(), t.TempDir()
	well(t, "archive", "export", first, "--from", db.ConnString, "-t", "a")
	address, replication := seeded(t, first, "a")
	serves(t, address, map[string]int{"a": 10})
	well(t, "archive", "export", second, "--from", "node://"+replication+"/seeded", "-t", "a")
	if out := well(t, "archive", "cat", second); strings.Count(out, "\n") != 10 {
		t.Errorf("the archive of the archive has %d rows", strings.Count(out, "\n"))
	}
	if out := well(t, "archive", "ls", second); !strings.Contains(out, "export/"+db.Name+"-") {
		t.Errorf("the log is not named by its database: %s", out)
	}
	well(t, "archive", "export", old, "--from", db.ConnString, "-t", "a", "--name", "export")
	well(t, "archive", "export", old, "--from", db.ConnString, "-t", "a")
	if out := well(t, "archive", "ls", old, "-t", "a"); strings.Count(out, " base ") != 2 {
		t.Errorf("one of an older name is not gone on with: %s", out)
	}
	for flag, args := range map[string][]string{
		"--format": {"--format", "xml"}, "--history ": {"--history", "all"}, "--name ": {"--name", "-x"}, "--interval ": {"--interval", "-1s"}, "--key-prefix ": {"--key-prefix", "a//b"},
	} {
		out, errs, code := said(t, append([]string{"archive", "export", old, "--from", db.ConnString, "-t", "a"}, args...)...)
		if code != 2 || !strings.Contains(errs, flag) || strings.Contains(errs, "node.yaml") {
			t.Errorf("%s: %d, %s%s", flag, code, out, errs)
		}
	}
}

// Two exports that follow tables of one server have slots and publications of their own, and under one name they are refused.
func TestArchiveExportTwoFollow(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE TABLE b (a int PRIMARY KEY)`, `INSERT INTO a VALUES (-1)`, `INSERT INTO b VALUES (-1)`)
	at := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer func() {
		cancel()
		all.Wait()
		db.Exec(t, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database() AND NOT active`)
	}()
	for _, table := range []string{"a", "b"} {
		all.Go(func() {
			c := command()
			c.SetArgs([]string{"archive", "export", at, "--from", db.ConnString, "-t", table, "--follow", "--state", t.TempDir(), "--interval", "1s"})
			c.SetOut(io.Discard)
			c.SetErr(io.Discard)
			if code, err := execute(ctx, c); code != 0 {
				t.Errorf("%s: %d, %v", table, code, err)
			}
		})
	}
	address, _ := seeded(t, at, "a", "b")
	serves(t, address, map[string]int{"a": 1, "b": 1})
	if got := db.Value(t, `SELECT count(*) || ' ' || (SELECT count(*) FROM pg_publication) FROM pg_replication_slots WHERE database = current_database() AND active`); got != "2 2" {
		t.Errorf("slots and publications: %s", got)
	}
	for i := range 3 {
		db.Exec(t, fmt.Sprintf(`INSERT INTO a VALUES (%d)`, i), fmt.Sprintf(`INSERT INTO b VALUES (%d)`, i))
		serves(t, address, map[string]int{"a": i + 2, "b": i + 2})
	}
	other := t.TempDir()
	well(t, "archive", "export", other, "--from", db.ConnString, "-t", "a", "--name", "x")
	badly(t, 2, "give this one another --name", "archive", "export", other, "--from", db.ConnString, "-t", "b", "--name", "x", "--follow", "--state", t.TempDir())
}

// What an export that was killed has left goes with the next one; what one that runs has does not.
func TestArchiveExportLeftovers(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	db := testpg.NewDB(t)
	t.Setenv("TMPDIR", t.TempDir())
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE PUBLICATION tributary_once_abcdefgh`, `CREATE PUBLICATION tributary_once_bbbbbbbb`, `CREATE PUBLICATION tributary_once_longername`)
	runs, err := reach(t.Context(), db.ConnString)
	if err != nil {
		t.Fatal(err)
	}
	defer pgsession.Close(runs.conn)
	if err := run(t.Context(), runs.conn, "SELECT pg_advisory_lock("+lockOf("tributary_once_bbbbbbbb")+")"); err != nil {
		t.Fatal(err)
	}
	used, remove, err := makeFolder()
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(os.TempDir(), folderPattern+"1")
	if err := errors.Join(os.MkdirAll(filepath.Join(left, "scratch"), 0o700), os.WriteFile(filepath.Join(left, "lock"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	well(t, "archive", "export", t.TempDir(), "--from", db.ConnString, "-t", "a")
	if got := db.Value(t, `SELECT string_agg(pubname, ' ' ORDER BY pubname) FROM pg_publication`); got != "tributary_once_bbbbbbbb tributary_once_longername" {
		t.Errorf("publications that are there: %s", got)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("the folder that was left: %v", err)
	}
	if _, err := os.Stat(used); err != nil {
		t.Error(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if all, _ := os.ReadDir(os.TempDir()); len(all) != 0 {
		t.Errorf("what is left: %v", all)
	}
}
