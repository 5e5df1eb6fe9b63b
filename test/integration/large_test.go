package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// TestLargeTransactions: transactions of some MB, sent while in progress and
// whole, with a savepoint that is rolled back, a change of shape and a truncate.
func TestLargeTransactions(t *testing.T) {
	t.Parallel()
	for _, mem := range []string{"64kB", "1GB"} {
		t.Run(mem, func(t *testing.T) {
			t.Parallel()
			db := testpg.NewDB(t)
			db.Exec(t, createT, "INSERT INTO t SELECT i, i, 'before' FROM generate_series(1, 1000) i",
				"ALTER ROLE postgres IN DATABASE "+db.Name+" SET logical_decoding_work_mem = '"+mem+"'")
			h := twoHops(t, db, plain)
			db.Exec(t, `BEGIN; INSERT INTO t SELECT i, 0, repeat('x', 400) FROM generate_series(10001, 25000) i;
				SAVEPOINT a; DELETE FROM t; ROLLBACK TO a; UPDATE t SET n = n + 1 WHERE id % 2 = 0; UPDATE t SET id = -id WHERE id < 10; COMMIT`)
			h.converge(t)
			db.Exec(t, `BEGIN; DELETE FROM t WHERE id > 20000; ALTER TABLE t ADD x text; UPDATE t SET x = 'x' || id; COMMIT`)
			h.converge(t)
			db.Exec(t, `BEGIN; INSERT INTO t SELECT i, 0, repeat('y', 400) FROM generate_series(50001, 60000) i; TRUNCATE t;
				INSERT INTO t SELECT i, 1, repeat('z', 400) FROM generate_series(1, 10000) i; DELETE FROM t WHERE id % 3 = 0; COMMIT`)
			h.converge(t)
		})
	}
}

// TestLargeRow: two nodes, in processes of their own, take a row of 50 MB by the
// baseline, and another by the stream, and need a few times its size, beside what a
// node needs in any case.
func TestLargeRow(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 50 MB several times")
	}
	const (
		size    = 50_000_000
		patient = 3 * time.Minute
	)
	bin, err := testnode.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for storage, times := range map[string]struct{ baseline, stream int }{nodeconfig.StorageMemory: {7, 7}, nodeconfig.StoragePebble: {8, 10}} {
		t.Run(storage, func(t *testing.T) {
			db := testpg.NewDB(t)
			// A text of hexadecimal digits that does not compress away.
			db.Exec(t, createT, fmt.Sprintf("INSERT INTO t SELECT 1, 0, string_agg(md5(i::text), '') FROM generate_series(1, %d / 32) i", size))
			dir := t.TempDir()
			src, err := testnode.Postgres(db, dir, "", plain)
			if err != nil {
				t.Fatal(err)
			}
			start := func(id string, src nodeconfig.Source, parents ...*testnode.Node) *testnode.Node {
				o := testnode.Options{Binary: bin, Dir: filepath.Join(dir, id), ID: "hops/" + id, Source: src, Parents: parents, Storage: nodeconfig.Storage{Type: storage}}
				if storage == nodeconfig.StoragePebble {
					o.Storage.Path = filepath.Join(dir, id, "store")
				}
				n, err := testnode.Start(t.Context(), o)
				if err == nil {
					err = n.WaitReady(t.Context(), patient)
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(n.Stop)
				return n
			}
			top := start("top", src)
			below := start("below", nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, top)
			read := readerOf(t, &running{repl: below.Repl})
			has := func(rows int) {
				t.Helper()
				err := testnode.Until(t.Context(), patient, fmt.Sprintf("%d rows", rows), func() (bool, error) {
					all, err := read.All(plain)
					return len(all) == rows, err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			has(1)
			peak := func(after string, times int) {
				t.Helper()
				for _, n := range []*testnode.Node{top, below} {
					p := memoryOf(t, n.PID(), "VmHWM")
					t.Logf("%s, %s: %d MB at most, %.1f times the row", after, n.ID, p>>20, float64(p)/size)
					if p > times*size+48<<20 {
						t.Errorf("%s: node %s has needed %d bytes", after, n.ID, p)
					}
				}
			}
			peak("the baseline", times.baseline)
			db.Exec(t, "INSERT INTO t SELECT 2, 0, reverse(b) FROM t")
			has(2)
			peak("an insert", times.stream)
		})
	}
}

// memoryOf returns what the kernel says of a process's memory, such as VmHWM, the most that
// it has had, and RssAnon, what it has now that is its own.
func memoryOf(t *testing.T, pid int, what string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kb int
		if n, _ := fmt.Sscanf(line, what+": %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	t.Fatalf("no %s", what)
	return 0
}
