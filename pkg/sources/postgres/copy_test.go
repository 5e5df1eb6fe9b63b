package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
)

// Large tables and partitioned ones are read in parts, by several connections,
// while they are written to.
func TestBaselineInParts(t *testing.T) {
	t.Parallel()
	everyVersion(t, func(t *testing.T, db *testpg.DB) {
		t.Parallel()
		db.Exec(t, createT, `INSERT INTO t SELECT i, i, repeat('x', i%300) FROM generate_series(1,20000) i`, `DELETE FROM t WHERE id BETWEEN 5000 AND 15000`, `ANALYZE t`,
			`CREATE TABLE p (v text, id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)`, `CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`,
			`CREATE TABLE p2 (k int NOT NULL, id int NOT NULL, v text)`, `ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)`,
			`CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3,4) PARTITION BY LIST (k)`, `CREATE TABLE p34 PARTITION OF p3 FOR VALUES IN (4)`,
			`INSERT INTO p SELECT 'v'||i, i, CASE i%3 WHEN 0 THEN 4 ELSE i%3 END FROM generate_series(1,9000) i`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "p"), BaselineWorkers: 4, partPages: 10}, func(m *model) {
			m.inBaseline = func() {
				db.Exec(t, `INSERT INTO t SELECT i, i, repeat('y', 500) FROM generate_series(30000,33000) i`, `UPDATE t SET n=n+1 WHERE id%7=0`, `UPDATE p SET k=2 WHERE k=1 AND id%2=0`)
			}
		})
		n.converges(db, "t", "p")
		var got string
		for _, p := range n.src.BaselineProgress() {
			got += fmt.Sprintf("%s %d %t; ", p.Table, p.Rows, p.Done && p.Bytes > 0 && p.OfBytes > 0)
			if p.Table.Name == "t" && (p.OfRows < 9000 || p.OfRows > 11000) {
				t.Errorf("t was estimated at %d rows", p.OfRows)
			}
		}
		if want := "public.p 9000 true; public.t 9999 true; "; got != want {
			t.Errorf("progress is %s, want %s", got, want)
		}
	})
}

// A partition that this user may not read by its own name is read by the table's.
func TestBaselineOfPartitionsNotGranted(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		user := "part_" + db.Name
		db.Exec(t, `CREATE TABLE p (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)`, `CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`, `CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)`,
			`INSERT INTO p SELECT i, 1+i%2 FROM generate_series(1,100) i`, `CREATE PUBLICATION given FOR TABLE p WITH (publish_via_partition_root = true)`,
			`CREATE ROLE `+user+` LOGIN REPLICATION PASSWORD 'pw'`, `GRANT SELECT ON p, p1 TO `+user)
		t.Cleanup(func() { _ = db.ExecContext(context.Background(), `DROP OWNED BY `+user, `DROP ROLE `+user) })
		n := start(t, Config{ConnString: db.ConnStringAs(user, "pw"), Tables: names("p"), Publication: "given", AdoptOnly: true})
		n.converges(db, "p")
	})
}
