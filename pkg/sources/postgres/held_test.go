package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// A table that is missing, at the first start or a later one, holds only itself: it
// is named, the others are replicated, and it joins them once it is there.
func TestMissingTableHoldsItselfOnly(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TABLE o (id int PRIMARY KEY)`, `INSERT INTO o VALUES (1)`)
		for i, permanent := range []bool{false, true} {
			db.Exec(t, `DROP TABLE IF EXISTS t`)
			n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "o"), audit: 200 * time.Millisecond, retry: 500 * time.Millisecond,
				Permanent: permanent, Slot: fmt.Sprintf("s%d_%s", i, db.Name), Publication: fmt.Sprint("p", i)}, func(m *model) { m.durable = permanent })
			held := func(n *node) {
				t.Helper()
				n.converges(db, "o")
				eventually(t, "it is said", func() bool { return n.sawReport(engine.ReasonTableNotFound) })
				db.Exec(t, `INSERT INTO o SELECT max(id)+1 FROM o`)
				n.converges(db, "o")
				db.Exec(t, createT, `INSERT INTO t VALUES (2,2,'b')`)
				n.converges(db, "t", "o")
				eventually(t, "all is well", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.lastErr == nil })
				if n.baselines() != 1 {
					t.Errorf("%d baselines of all, want 1", n.baselines())
				}
				n.stop()
			}
			held(n)
			if permanent { // it goes while the node is down
				db.Exec(t, `DROP TABLE t`, `INSERT INTO o SELECT max(id)+1 FROM o`)
				held(n.again())
			}
		}
	})
}

// A table that is missing from a publication which the node may not alter holds
// only itself, at the start and later; the statement that mends it is said.
func TestUnpublishedTableHoldsItselfOnly(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'a')`, `CREATE TABLE o (id int PRIMARY KEY)`, `INSERT INTO o VALUES (1)`, `CREATE TABLE p (id int PRIMARY KEY) PARTITION BY HASH (id)`,
			`CREATE TABLE p0 PARTITION OF p FOR VALUES WITH (MODULUS 1, REMAINDER 0)`, `INSERT INTO p VALUES (1)`, `CREATE PUBLICATION mine FOR TABLE o`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "o", "p"), Publication: "mine", audit: 200 * time.Millisecond, retry: 500 * time.Millisecond})
		n.converges(db, "o")
		says := func(want string) {
			t.Helper()
			eventually(t, want, func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.lastErr != nil && strings.Contains(n.lastErr.Error(), want)
			})
		}
		says(`As the owner of both: ALTER PUBLICATION "mine" ADD TABLE "public"."t"`)
		says(`ALTER PUBLICATION "mine" SET (publish_via_partition_root = true)`)
		db.Exec(t, `INSERT INTO o VALUES (2)`)
		n.converges(db, "o")
		db.Exec(t, `ALTER PUBLICATION mine SET (publish_via_partition_root = true)`, `ALTER PUBLICATION mine ADD TABLE t, p`, `INSERT INTO t VALUES (2,2,'b')`)
		n.converges(db, "t", "o", "p")
		eventually(t, "all is well", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.lastErr == nil })
		db.Exec(t, `ALTER PUBLICATION mine DROP TABLE t`, `INSERT INTO o VALUES (3)`)
		n.converges(db, "o")
		says(`ADD TABLE "public"."t"`)
		db.Exec(t, `UPDATE t SET n=9`, `ALTER PUBLICATION mine ADD TABLE t`, `INSERT INTO o VALUES (4)`)
		n.converges(db, "t", "o", "p")
		if n.baselines() != 1 {
			t.Errorf("%d baselines of all, want 1", n.baselines())
		}
	})
}
