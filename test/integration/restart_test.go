package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// TestRestartedRoot: the node that reads PostgreSQL is stopped, rows change and
// go meanwhile, and it comes back with a new epoch. Those two levels below,
// whose own session has not broken, end with the source's rows all the same.
func TestRestartedRoot(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t SELECT i, i, 'before' FROM generate_series(1, 1000) i")
	h := twoHops(t, db, plain)
	for i, changes := range [][]string{
		{"DELETE FROM t WHERE id % 10 = 1", "UPDATE t SET n = -1 WHERE id % 10 = 2"},
		{"DELETE FROM t WHERE id % 10 = 3", "INSERT INTO t SELECT i, i, 'again' FROM generate_series(1, 1000) i WHERE i % 10 = 1"},
		{"DELETE FROM t WHERE id % 10 = 1", "TRUNCATE t", "INSERT INTO t VALUES (1, 1, 'last')"},
		{"DELETE FROM t"},
	} {
		db.Exec(t, "UPDATE t SET n = n + 1 WHERE id % 7 = 0") // streamed, in the epoch that ends
		h.converge(t)
		h.nodes[0].stop()
		db.Exec(t, changes...)
		time.Sleep(time.Duration(i) * 300 * time.Millisecond)
		h.nodes[0].again()
		h.converge(t)
	}
}

// A node that has everything from before, and has yet to read whom to read from, is not
// ready: nobody knows how old its rows are. It is once the wiring is there.
func TestReadyWaitsForWiring(t *testing.T) {
	t.Parallel()
	kept := func(name string) nodeconfig.Storage {
		return nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(t.TempDir(), name)}
	}
	top := startConfig(t, "wired/top", nodeconfig.Config{Storage: kept("top"), Sources: []nodeconfig.Source{tallySource()}})
	below := startConfig(t, "wired/below", nodeconfig.Config{Storage: kept("below"), Sources: []nodeconfig.Source{{Name: "up", Fanout: &nodeconfig.Fanout{}}}}, top)
	ready := func(want int) (bool, error) {
		res, err := http.Get("http://" + below.http + "/readyz")
		if err != nil {
			return false, nil
		}
		defer res.Body.Close()
		if res.StatusCode == want {
			return true, nil
		}
		return false, fmt.Errorf("%s", res.Status)
	}
	until := func(what string, want int) {
		t.Helper()
		if err := testnode.Until(t.Context(), 30*time.Second, what, func() (bool, error) {
			ok, _ := ready(want)
			return ok, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	until("ready", http.StatusOK)
	below.stop()
	if err := os.Rename(below.cfg.WiringFile, below.cfg.WiringFile+".away"); err != nil {
		t.Fatal(err)
	}
	below.again()
	until("the answer", http.StatusServiceUnavailable)
	for range 10 {
		if ok, err := ready(http.StatusServiceUnavailable); !ok {
			t.Fatalf("without its wiring: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := os.Rename(below.cfg.WiringFile+".away", below.cfg.WiringFile); err != nil {
		t.Fatal(err)
	}
	until("ready again", http.StatusOK)
}
