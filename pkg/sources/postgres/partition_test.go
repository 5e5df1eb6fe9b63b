package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
)

// What happens to partitions without a word in the log is found, and the table
// is baselined alone; partitions that are made as such cost nothing.
func TestCaseP23(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)`, `ALTER TABLE p ALTER v SET STORAGE EXTERNAL`,
			`CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`, `CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)`,
			`INSERT INTO p SELECT i, 1+i%2, repeat('v',3000) FROM generate_series(1,20) i`, `CREATE TABLE o (id int PRIMARY KEY)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("p", "o"), audit: 200 * time.Millisecond})
		n.converges(db, "p")
		db.Exec(t, `UPDATE p SET k=2 WHERE id=2`, `UPDATE p SET k=1, id=100 WHERE id=3`)
		n.converges(db, "p")
		db.Exec(t, `CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3)`, `INSERT INTO p VALUES (50,3,'in the log')`)
		n.converges(db, "p")
		db.Exec(t, `TRUNCATE p`, `INSERT INTO p SELECT i, 1+i%3, 'again' FROM generate_series(1,20) i`)
		n.converges(db, "p")
		time.Sleep(time.Second)
		if got := n.alone(); len(got) != 0 {
			t.Errorf("a baseline was not needed: %v", got)
		}
		for _, step := range []struct{ sql, why string }{
			{`TRUNCATE p1`, "partition of it truncated"},
			{`CREATE TABLE p4 (v text, id int NOT NULL, k int NOT NULL); INSERT INTO p4 VALUES ('loaded before',7,4); ALTER TABLE p ATTACH PARTITION p4 FOR VALUES IN (4)`, "attached"},
			{`ALTER TABLE p DETACH PARTITION p2`, "detached"},
			{`DROP TABLE p3`, "detached or dropped"},
		} {
			before := len(n.alone())
			db.Exec(t, step.sql, `INSERT INTO o SELECT count(*) FROM o`)
			n.converges(db, "p", "o")
			eventually(t, "the reason", func() bool { return strings.Contains(fmt.Sprint(n.alone()[before:]), step.why) })
			db.Exec(t, `UPDATE p SET v=v||'!'`)
			n.converges(db, "p", "o")
		}
		if n.baselines() != 1 {
			t.Errorf("%d baselines of all, want 1", n.baselines())
		}
	})
}

// What changes the text of rows that are there, without a word in the log: a value of an
// enum is renamed, a composite type gains or loses an attribute, however deep in the type
// of a column. Values that are added cost nothing.
func TestTextsChange(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TYPE mood AS ENUM ('sad', 'ok')`, `CREATE TYPE person AS (name text, moods mood[])`, `CREATE DOMAIN people AS person[]`,
			`CREATE TABLE m (id int PRIMARY KEY, m mood)`, `CREATE TABLE d (id int PRIMARY KEY, p people)`, `CREATE TABLE o (id int PRIMARY KEY, v text)`,
			`INSERT INTO m VALUES (1, 'sad'), (2, 'ok')`, `INSERT INTO d VALUES (1, ARRAY[ROW('a', '{sad,ok}')::person])`, `INSERT INTO o VALUES (1, 'x')`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("m", "d", "o"), audit: 200 * time.Millisecond})
		n.converges(db, "m", "d", "o")
		db.Exec(t, `ALTER TYPE mood ADD VALUE 'happy'`)
		db.Exec(t, `INSERT INTO m VALUES (3, 'happy')`)
		n.converges(db, "m", "d", "o")
		time.Sleep(time.Second)
		if got := n.alone(); len(got) != 0 {
			t.Errorf("a baseline was not needed: %v", got)
		}
		for _, step := range []struct {
			sql, why string
			tables   []string
		}{
			{`ALTER TYPE mood RENAME VALUE 'happy' TO 'glad'`, `"happy" of an enum that it uses was renamed to "glad"`, []string{"m", "d"}},
			{`ALTER TYPE person ADD ATTRIBUTE age int`, "other attributes", []string{"d"}},
			{`ALTER TYPE person DROP ATTRIBUTE name`, "other attributes", []string{"d"}},
		} {
			before := len(n.alone())
			db.Exec(t, step.sql)
			n.converges(db, "m", "d", "o")
			eventually(t, "the reason", func() bool {
				got := fmt.Sprint(n.alone()[before:])
				for _, name := range []string{"m", "d", "o"} {
					if strings.Contains(got, "table public."+name+": ") != slices.Contains(step.tables, name) {
						return false
					}
				}
				return strings.Contains(got, step.why)
			})
			db.Exec(t, `UPDATE m SET m = 'ok' WHERE id = 1`, `UPDATE o SET v = v || '!'`)
			n.converges(db, "m", "d", "o")
		}
		if n.baselines() != 1 {
			t.Errorf("%d baselines of all, want 1", n.baselines())
		}
	})
}

// Partitions under their own names, and tables that inherit.
func TestLeavesAndInheritance(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TABLE p (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)`, `CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`, `CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)`,
			`INSERT INTO p SELECT i, 1+i%2 FROM generate_series(1,20) i`, createT, `CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (t)`, `INSERT INTO t VALUES (1,1,'parent')`, `INSERT INTO child VALUES (2,2,'child',2)`,
			`CREATE PUBLICATION leaves FOR TABLE p1, p2, t, child`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("p1", "p2", "t", "child"), Publication: "leaves"})
		n.ready()
		db.Exec(t, `UPDATE p SET k=2 WHERE id=2`, `DELETE FROM p WHERE id=4`, `TRUNCATE p1`, `INSERT INTO p VALUES (99,1)`, `UPDATE t SET n=n+1`, `INSERT INTO child VALUES (3,3,'child',3)`)
		n.converges(db, "p1", "p2", "child")
		eventually(t, "the parent alone", func() bool { return n.model.digest(names("t")[0]) == db.Digest(t, `SELECT * FROM ONLY t`) })
	})
}

// A truncate of two tables of which one refers to the other, and one that
// cascades.
func TestCaseP26(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TABLE a (id int PRIMARY KEY)`, `CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)`, `INSERT INTO a SELECT generate_series(1,9)`, `INSERT INTO b SELECT i, i FROM generate_series(1,9) i`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("a", "b")})
		n.converges(db, "a", "b")
		db.Exec(t, `TRUNCATE a, b`)
		n.converges(db, "a", "b")
		db.Exec(t, `INSERT INTO a VALUES (1); INSERT INTO b VALUES (1,1)`, `BEGIN; TRUNCATE a CASCADE; INSERT INTO a VALUES (2); INSERT INTO b VALUES (2,2); COMMIT`)
		n.converges(db, "a", "b")
	})
}

// Updates that leave and enter a publication's row filter; the filter and the
// columns are changed while the node runs.
func TestCaseP27(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		if db.Server.Major < 15 {
			t.Skip("row filters came with version 15")
		}
		db.Exec(t, createT, `ALTER TABLE t REPLICA IDENTITY FULL`, `INSERT INTO t SELECT i, i, 'b' FROM generate_series(1,10) i`, `CREATE PUBLICATION mine FOR TABLE t WHERE (n > 5)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), Publication: "mine", audit: 200 * time.Millisecond})
		equal := func(q string) {
			t.Helper()
			eventually(t, "equal", func() bool { return n.model.digest(names("t")[0]) == db.Digest(t, q) })
		}
		n.ready()
		equal(`SELECT * FROM t WHERE n > 5`)
		db.Exec(t, `UPDATE t SET n=0 WHERE id=7`, `UPDATE t SET n=70 WHERE id=1`)
		equal(`SELECT * FROM t WHERE n > 5`)
		db.Exec(t, `ALTER PUBLICATION mine SET TABLE t WHERE (n > 2)`)
		equal(`SELECT * FROM t WHERE n > 2`)
		db.Exec(t, `ALTER TABLE t REPLICA IDENTITY DEFAULT; ALTER PUBLICATION mine SET TABLE t (id, n)`, `UPDATE t SET n=n+1`)
		equal(`SELECT id, n FROM t`)
		db.Exec(t, `ALTER PUBLICATION mine SET TABLE t (id, n, b)`, `UPDATE t SET n=n+1 WHERE id=1`)
		equal(`SELECT id, n, b FROM t`)
	})
}
