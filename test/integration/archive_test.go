package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// statusz returns what a node says of itself.
func (r *running) statusz(t *testing.T) (st nodeconfig.Statusz) {
	t.Helper()
	resp, err := http.Get("http://" + r.http + "/statusz")
	if err != nil {
		return st
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		t.Fatal(err)
	}
	return st
}

func until(t *testing.T, what string, ok func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// bucket is where an archive is in a bucket of the test's S3 server.
func bucket(t *testing.T, b *tests3.Bucket) nodeconfig.ArchiveStore {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"access": tests3.AccessKey, "secret": tests3.SecretKey} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return nodeconfig.ArchiveStore{Store: nodeconfig.StoreS3, KeyPrefix: "prod", StoreConfig: nodeconfig.StoreConfig{
		Bucket: b.Name, Endpoint: b.Server.Endpoint, Region: tests3.Region,
		Credentials: &nodeconfig.StoreCredentials{AccessKeyFile: filepath.Join(dir, "access"), SecretKeyFile: filepath.Join(dir, "secret")},
	}}
}

// archivedUpToHead waits until an archive has all that its node has.
func archivedUpToHead(t *testing.T, n *running) {
	t.Helper()
	until(t, "the archive", func() error {
		st := n.statusz(t)
		if len(st.Archives) == 0 || len(st.Archives[0].Tables) < 2 || len(st.Logs) == 0 {
			return fmt.Errorf("%+v", st.Archives)
		}
		for _, table := range st.Archives[0].Tables {
			if len(table.Through) == 0 || table.Through[0].Position != st.Logs[0].Head {
				return fmt.Errorf("at %s: %+v", st.Logs[0].Head, st.Archives[0])
			}
		}
		return nil
	})
}

// A reader that has been away for longer than the journal and the tombstones of its
// upstream reach is caught up from the archive in S3, and not by a snapshot. Then the database
// is gone, and a node that has the archive alone serves what it had.
func TestArchive(t *testing.T) {
	t.Parallel()
	db, b := testpg.NewDB(t), tests3.NewBucket(t)
	db.Exec(t, createT, "INSERT INTO t SELECT i, i, repeat('x', i % 50) FROM generate_series(1, 60000) i",
		`CREATE TABLE "Odd.One" ("A b" numeric PRIMARY KEY, j jsonb)`, `INSERT INTO "Odd.One" VALUES (1.50, '{"a": 1}'), ('NaN', NULL)`)
	odd := table("public", "Odd.One")
	dir := t.TempDir()
	disk := func(name string) nodeconfig.Storage {
		return nodeconfig.Storage{
			Type: nodeconfig.StoragePebble, Path: filepath.Join(dir, name), Journal: nodeconfig.Journal{MaxBytes: 256 << 10, LimitBytes: 2 << 20},
			Tombstones: nodeconfig.Tombstones{Retention: time.Second},
		}
	}
	store := bucket(t, b)
	root := startConfig(t, "hops/top", nodeconfig.Config{
		Storage:  disk("top"),
		Sources:  []nodeconfig.Source{{Name: "db", Postgres: database(t, db, plain, odd)}},
		Archives: []nodeconfig.Archive{{ArchiveStore: store, Group: true, Write: &nodeconfig.ArchiveWrite{Interval: 500 * time.Millisecond}}},
	})
	below := startConfig(t, "hops/below", nodeconfig.Config{Storage: disk("below"), Sources: []nodeconfig.Source{{Name: "up", Fanout: &nodeconfig.Fanout{}}}}, root)
	h := &hops{db: db, tables: []engine.TableName{plain, odd}, nodes: []*running{root, below}, read: readerOf(t, below)}
	h.converge(t)
	archivedUpToHead(t, root)
	h.read.Close()
	below.stop()

	for i := range 60 { // more than the limit of the journal, each tombstone gone after a second
		db.Exec(t, fmt.Sprintf("DELETE FROM t WHERE id %% 60 = %d AND id < 54000", i), fmt.Sprintf("UPDATE t SET n = -1, b = repeat('y', 800) WHERE id > 54000 AND id %% 60 = %d", i))
		if i%10 == 9 { // within the limit of the journal, which the archive is not to fall behind
			archivedUpToHead(t, root)
		}
	}
	db.Exec(t, `TRUNCATE "Odd.One"`, `INSERT INTO "Odd.One" VALUES ('Infinity', '[1.10, 1.1]')`)
	archivedUpToHead(t, root)
	time.Sleep(1500 * time.Millisecond)
	db.Exec(t, "INSERT INTO t VALUES (-1, 1, 'after')") // on the next look, the tombstones go
	archivedUpToHead(t, root)
	before := root.statusz(t)
	if n := before.Archives[0].Tables[1]; n.Bases != 1 {
		t.Fatalf("a base was written since, so that diffs do not lead on: %+v", n)
	}
	below.again()
	h.read = readerOf(t, below)
	h.converge(t)
	d := below.statusz(t).Logs[0].Delivery
	if d == nil || d.Replays != 1 || d.Snapshots != 0 || d.StateDeltas != 0 {
		t.Errorf("the reader was caught up otherwise: %+v\n%+v", d, root.statusz(t).Archives)
	}
	if got := root.statusz(t).Archives[0].Tables[1]; got.Replays != 1 || got.Table != "public.t" {
		t.Errorf("the status says %+v", got)
	}
	n := testnode.Node{HTTP: root.http}
	if v, err := n.Metric("tributary_archive_replays_total"); err != nil || v != 2 { // one of each table
		t.Errorf("tributary_archive_replays_total is %v, %v", v, err)
	}
	db.Exec(t, "UPDATE t SET n = 7 WHERE id = -1")
	h.converge(t)

	archivedUpToHead(t, root)
	want := map[engine.TableName][]string{plain: h.source(t, plain), odd: h.source(t, odd)}
	h.read.Close()
	below.stop()
	root.stop()
	db.Exec(t, `DROP TABLE t, "Odd.One"`)
	seed := startConfig(t, "hops/seed", nodeconfig.Config{Sources: []nodeconfig.Source{{Name: "seed", Archive: &nodeconfig.ArchiveSource{
		ArchiveStore: store, Group: true, Tables: []nodeconfig.Table{{Schema: "public", Name: "t"}, {Schema: "public", Name: "Odd.One"}},
	}}}})
	h.read = readerOf(t, seed)
	for name, rows := range want {
		until(t, "the archive's rows", func() error {
			if got := h.reader(t, name); !slices.Equal(got, rows) {
				return fmt.Errorf("%s: %d rows, want %d\n%s", name, len(got), len(rows), testnode.Difference(got, rows))
			}
			return nil
		})
	}
}

// An archive that cannot be used costs its own function: the node serves, says so, and
// goes on by itself once it can.
func TestArchiveThatFails(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t SELECT i, i, 'x' FROM generate_series(1, 100) i")
	blocked := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil { // a file where the folder is to be
		t.Fatal(err)
	}
	local := nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: blocked}}
	root := startConfig(t, "hops/top", nodeconfig.Config{
		Sources:  []nodeconfig.Source{{Name: "db", Postgres: database(t, db, plain)}},
		Archives: []nodeconfig.Archive{{ArchiveStore: local, Group: true, Write: &nodeconfig.ArchiveWrite{Interval: 200 * time.Millisecond}}},
	})
	h := &hops{db: db, tables: []engine.TableName{plain}, nodes: []*running{root}, read: readerOf(t, root)}
	h.converge(t)
	until(t, "the state", func() error {
		if st := root.statusz(t); len(st.Archives) != 1 || st.Archives[0].State != nodeconfig.ArchiveRetrying || st.Archives[0].Message == "" {
			return fmt.Errorf("%+v", st.Archives)
		}
		return nil
	})
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	until(t, "the archive", func() error {
		st := root.statusz(t).Archives[0]
		if st.State != nodeconfig.ArchiveStreaming || len(st.Tables) != 1 || st.Tables[0].Generation == 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}
