package postgres

import (
	"fmt"
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
)

// Every supported version, with one of each kind of message: what differs
// between versions shows here; the whole package is run on each of them at night
// (TRIBUTARY_PG_VERSIONS=14, and so on).
func TestEveryVersion(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 15, 16, 17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			db := testpg.Shared(t, major).NewDB(t)
			smallDecoding(t, db)
			db.Exec(t, createT, `ALTER TABLE t ALTER b SET STORAGE EXTERNAL`, `INSERT INTO t SELECT i, i, repeat('x', 3000) FROM generate_series(1,100) i`)
			n := start(t, permanent(db), durable)
			n.converges(db, "t")
			walsender(t, db)
			db.Exec(t, `UPDATE t SET n=0 WHERE id < 50`, `UPDATE t SET id=id+1000 WHERE id < 10`, `DELETE FROM t WHERE id BETWEEN 20 AND 30`,
				`SELECT pg_logical_emit_message(true, 'a', 'message')`,
				`BEGIN; INSERT INTO t SELECT i, 1, repeat('y', 300) FROM generate_series(2000,3000) i; SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; UPDATE t SET n=2 WHERE id > 2500; COMMIT`,
				`BEGIN; INSERT INTO t SELECT i, 1, repeat('z', 300) FROM generate_series(4000,5000) i; ROLLBACK`,
				`ALTER TABLE t ADD x text`, `UPDATE t SET x='new' WHERE id%3=0`)
			n.converges(db, "t")
			db.Exec(t, `TRUNCATE t`, `INSERT INTO t VALUES (1,1,'last','x')`)
			n.converges(db, "t")
			if streamed(t, db) == "0" {
				t.Error("nothing was sent in progress")
			}
			n.stop()
			db.Exec(t, `INSERT INTO t VALUES (2,2,'missed','x')`)
			n = n.again()
			n.converges(db, "t")
			reached(t, db, n.position())
			if n.baselines() != 1 {
				t.Errorf("%d baselines, want 1", n.baselines())
			}
			eventually(t, "the slot is looked at", func() bool { return n.src.Slot().Exists })
			if st := n.src.Slot(); st.WALStatus != "reserved" || st.Failover != (major >= 17) || st.Holder != "" {
				t.Errorf("the slot is described as %+v", st)
			}
			n.stop()
		})
	}
}

// From 18 on a publication can have stored generated columns sent: then they are
// baselined too, and come with every change. Otherwise they are left out.
func TestPublishedGeneratedColumns(t *testing.T) {
	t.Parallel()
	for _, published := range []bool{true, false} {
		t.Run(fmt.Sprint(published), func(t *testing.T) {
			t.Parallel()
			db := testpg.Shared(t, 18).NewDB(t)
			option := ""
			if published {
				option = " WITH (publish_generated_columns = stored)"
			}
			db.Exec(t, `CREATE TABLE g (id int PRIMARY KEY, n int, s int GENERATED ALWAYS AS (n * 2) STORED, v int GENERATED ALWAYS AS (n * 3) VIRTUAL, b text)`,
				`INSERT INTO g (id, n, b) SELECT i, i, 'x' FROM generate_series(1, 100) i`, `CREATE PUBLICATION given FOR TABLE g`+option)
			n := start(t, Config{ConnString: db.ConnString, Tables: names("g"), Publication: "given", AdoptOnly: true})
			same := func() {
				t.Helper()
				columns := "id, n, b"
				if published {
					columns = "id, n, s, b"
				}
				want := db.Digest(t, "SELECT "+columns+" FROM g")
				eventually(t, "the rows", func() bool { return n.model.digest(names("g")[0]) == want })
			}
			n.ready()
			same()
			db.Exec(t, `UPDATE g SET n = n + 1 WHERE id < 50`, `INSERT INTO g (id, n) VALUES (200, 7)`, `DELETE FROM g WHERE id = 3`)
			same()
			db.Exec(t, `ALTER TABLE g ADD t int GENERATED ALWAYS AS (n + 1) STORED`, `UPDATE g SET n = 0 WHERE id = 1`)
			if published {
				want := db.Digest(t, "SELECT id, n, s, b, t FROM g")
				eventually(t, "the rows with another column", func() bool { return n.model.digest(names("g")[0]) == want })
			} else {
				same()
			}
			if n.baselines() != 1 {
				t.Errorf("%d baselines, want 1", n.baselines())
			}
		})
	}
}
