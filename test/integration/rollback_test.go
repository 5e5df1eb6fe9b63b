package integration

import (
	"fmt"
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// TestCaseR18: two databases write the same keys, and one of them is restored
// from a backup. What the other has written later stays; what the one has lost
// is undone everywhere; what it writes from then on is the newest.
func TestCaseR18(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{})
	a, b := s.NewDB(t), testpg.NewDB(t)
	emptied := table("public", "u")
	a.Exec(t, createT, "INSERT INTO t SELECT i, 0, 'backup' FROM generate_series(1, 5) i", "CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1), (2)")
	b.Exec(t, createT)
	leaf := startConfig(t, "mesh/a", nodeconfig.Config{
		Sources: []nodeconfig.Source{{Name: "db", Postgres: database(t, a, plain, emptied)}},
		Storage: nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: t.TempDir()},
	})
	center := startConfig(t, "mesh/b", nodeconfig.Config{Sources: []nodeconfig.Source{
		{Name: "a", Fanout: &nodeconfig.Fanout{}}, {Name: "b", Postgres: database(t, b, plain)},
	}}, leaf)
	read := readerOf(t, center)
	shows := func(when string, n engine.TableName, want ...string) {
		t.Helper()
		showsRows(t, read, when, n, want...)
	}
	shows("at first", plain, "1 0 backup", "2 0 backup", "3 0 backup", "4 0 backup", "5 0 backup")
	if err := s.Backup(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.Exec(t, "UPDATE t SET b='lost' WHERE id <= 2", "DELETE FROM t WHERE id IN (3, 4)", "INSERT INTO t VALUES (6, 0, 'lost')", "TRUNCATE u")
	a.Exec(t, "CREATE TABLE filler AS SELECT i FROM generate_series(1, 100000) i") // so that the backup is seen to be behind
	shows("before the restore", plain, "1 0 lost", "2 0 lost", "5 0 backup", "6 0 lost")
	shows("before the restore", emptied)
	b.Exec(t, "INSERT INTO t SELECT i, 0, 'newer' FROM generate_series(2, 3) i")
	shows("before the restore", plain, "1 0 lost", "2 0 newer", "3 0 newer", "5 0 backup", "6 0 lost")
	if err := s.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	shows("after the restore", plain, "1 0 backup", "2 0 newer", "3 0 newer", "4 0 backup", "5 0 backup")
	shows("after the restore", emptied, "1", "2")
	for i := range 3 { // the last of them is newer than all
		a.Exec(t, fmt.Sprintf("UPDATE t SET n = %d, b = 'written' WHERE id IN (1, 2)", i+1))
	}
	shows("after writes", plain, "1 3 written", "2 3 written", "3 0 newer", "4 0 backup", "5 0 backup")
}
