package integration

import (
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
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
