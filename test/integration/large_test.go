package integration

import (
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
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
