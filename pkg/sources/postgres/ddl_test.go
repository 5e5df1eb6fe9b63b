package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// alone returns why tables were baselined alone, in order.
func (n *node) alone() []string {
	n.model.mu.Lock()
	defer n.model.mu.Unlock()
	return append([]string{}, n.model.partial...)
}

// Shapes that change in order with their data. What cannot go on is baselined
// alone, for a reason; the other table never notices.
func TestSchemaChanges(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		sql   []string
		alone string // why; "" if nothing is
	}{
		{"column added", []string{`ALTER TABLE t ADD x int`, `UPDATE t SET x=5 WHERE id=1`, `INSERT INTO t VALUES (3,3,'c',3)`}, ""},
		{"column dropped", []string{`ALTER TABLE t DROP n`, `INSERT INTO t VALUES (3,'c')`}, ""},
		{"column renamed", []string{`ALTER TABLE t RENAME n TO m`, `UPDATE t SET m=9 WHERE id=2`}, ""},
		{"two renamed", []string{`ALTER TABLE t RENAME n TO m`, `UPDATE t SET m=9 WHERE id=2`, `ALTER TABLE t RENAME b TO n`, `INSERT INTO t VALUES (3,3,'c')`}, ""},
		{"several at once", []string{`ALTER TABLE t ADD x text; ALTER TABLE t DROP b`, `INSERT INTO t VALUES (3,1,'c')`, `UPDATE t SET x='z' WHERE id=1`}, ""},
		{"identity full", []string{`ALTER TABLE t REPLICA IDENTITY FULL`, `UPDATE t SET n=n+1`, `DELETE FROM t WHERE id=2`}, ""},
		{"analyzed", []string{`ANALYZE t`, `UPDATE t SET n=n+1`, `VACUUM t`, `UPDATE t SET n=n+1`}, ""},
		{"in one transaction", []string{`BEGIN; INSERT INTO t VALUES (3,3,'c'); ALTER TABLE t ADD x int; INSERT INTO t VALUES (4,4,'d',4); ALTER TABLE t DROP n; INSERT INTO t VALUES (5,'e',5); COMMIT`}, ""},
		{"added with a default", []string{`ALTER TABLE t ADD x int DEFAULT 7`, `INSERT INTO t VALUES (3,3,'c',3)`}, "default"},
		{"added with a default, and no change", []string{`ALTER TABLE t ADD x timestamptz DEFAULT now()`}, "default"},
		{"added as identity", []string{`ALTER TABLE t ADD x int GENERATED ALWAYS AS IDENTITY`, `UPDATE t SET n=0`}, "default"},
		{"text changed", []string{`ALTER TABLE t ALTER n TYPE numeric(9,2)`, `INSERT INTO t VALUES (3,3,'c')`}, "column n changed from integer to numeric(9,2)"},
		{"text changed, and no change", []string{`ALTER TABLE t ALTER b TYPE bytea USING b::bytea`}, "column b changed from text to bytea"},
		{"key changed", []string{`ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b)`, `INSERT INTO t VALUES (3,3,'c')`, `UPDATE t SET b='z' WHERE id=1`}, "key changed"},
		{"key taken away", []string{`ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t REPLICA IDENTITY FULL`, `INSERT INTO t VALUES (3,3,'c'),(3,3,'c')`}, "key changed"},
		{"made anew", []string{`DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, other text)`, `INSERT INTO t VALUES (7,'new')`}, "public.t"},
		{"swapped with another", []string{`CREATE TABLE t2 (LIKE t INCLUDING ALL); INSERT INTO t2 VALUES (5,5,'e')`, `BEGIN; ALTER TABLE t RENAME TO t_old; ALTER TABLE t2 RENAME TO t; COMMIT`, `INSERT INTO t VALUES (6,6,'f')`, `UPDATE t_old SET n=100`}, ""},
		{"renamed and back", []string{`ALTER TABLE t RENAME TO t9`, `INSERT INTO t9 VALUES (3,3,'c')`, `ALTER TABLE t9 RENAME TO t`, `INSERT INTO t VALUES (4,4,'d')`}, "public.t"}, // renamed; or of another key, if it is looked at while it is not there
		{"rewritten with other values", []string{`ALTER TABLE t ALTER n TYPE int USING n+1`, `INSERT INTO t VALUES (3,3,'c')`}, "rewritten"},
		{"truncated", []string{`TRUNCATE t`, `INSERT INTO t VALUES (3,3,'c')`, `TRUNCATE t`, `INSERT INTO t VALUES (4,4,'d')`}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			eachVersion(t, func(t *testing.T, db *testpg.DB) {
				db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'a'),(2,2,'b')`, `CREATE TABLE o (id int PRIMARY KEY, n int, b text)`, `INSERT INTO o VALUES (1,1,'o')`)
				n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "o"), audit: 300 * time.Millisecond})
				n.converges(db, "t", "o")
				db.Exec(t, tt.sql...)
				db.Exec(t, `UPDATE o SET n=n+1`)
				n.converges(db, "o", "t")
				if tt.alone == "" {
					time.Sleep(time.Second) // what is looked at now and then has been
				} else {
					eventually(t, "the reason", func() bool { return strings.Contains(fmt.Sprint(n.alone()), tt.alone) })
				}
				db.Exec(t, `UPDATE o SET n=n+1`)
				n.converges(db, "o", "t")
				why := fmt.Sprint(n.alone())
				if n.baselines() != 1 || strings.Contains(why, "table public.o") {
					t.Errorf("%d baselines of all; alone: %s", n.baselines(), why)
				}
				if tt.alone == "" && why != "[]" && tt.name != "swapped with another" {
					t.Errorf("tables were baselined alone: %s", why)
				}
			})
		})
	}
}

// A shape that a table has had before is its newest one again.
func TestShapeComesBack(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string][]string{
		"dropped": {`ALTER TABLE t ADD x int; INSERT INTO t VALUES (3,3,'c',3)`, `ALTER TABLE t DROP x; INSERT INTO t VALUES (4,4,'d')`, `ALTER TABLE t ADD y int; INSERT INTO t VALUES (5,5,'e',5)`, `ALTER TABLE t DROP y; UPDATE t SET n=6 WHERE id=5`},
		"renamed": {`ALTER TABLE t RENAME n TO m; UPDATE t SET m=9`, `ALTER TABLE t RENAME m TO n; UPDATE t SET n=10 WHERE id=1`, `ALTER TABLE t RENAME n TO m; UPDATE t SET m=11`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testpg.NewDB(t)
			db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'a'),(2,2,'b')`)
			n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
			n.converges(db, "t")
			for _, s := range sql {
				db.Exec(t, strings.Split(s, "; ")...)
				n.converges(db, "t")
			}
			if got := n.alone(); n.baselines() != 1 || len(got) > 0 {
				t.Errorf("%d baselines of all; alone: %v", n.baselines(), got)
			}
		})
	}
}

// The rows of a table without a key are told apart by all columns: other columns
// take a baseline of that table, and of no other.
func TestSchemaChangesWithoutKey(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		sql   []string
		alone bool
	}{
		{"column added", []string{`ALTER TABLE w ADD x int`, `DELETE FROM w WHERE id=1`, `UPDATE w SET n=n+1 WHERE id=2`}, true},
		{"column dropped", []string{`ALTER TABLE w DROP n`, `DELETE FROM w WHERE id=1`, `UPDATE w SET b='x' WHERE id=2`}, true},
		{"dropped and added again", []string{`ALTER TABLE w DROP n; ALTER TABLE w ADD n int`, `DELETE FROM w WHERE id=1`, `UPDATE w SET n=5 WHERE id=2`}, true},
		{"added and dropped, with rows between", []string{`ALTER TABLE w ADD x int`, `INSERT INTO w VALUES (4,4,'d',4)`, `ALTER TABLE w DROP x`, `DELETE FROM w WHERE id=1 OR id=4`}, true},
		{"column renamed", []string{`ALTER TABLE w RENAME n TO m`, `DELETE FROM w WHERE id=1`, `UPDATE w SET m=m+1 WHERE id=2`}, false},
		{"type widened", []string{`ALTER TABLE w ALTER n TYPE bigint`, `DELETE FROM w WHERE id=1`, `UPDATE w SET n=n+1 WHERE id=2`}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			eachVersion(t, func(t *testing.T, db *testpg.DB) {
				db.Exec(t, `CREATE TABLE w (id int, n int, b text)`, `ALTER TABLE w REPLICA IDENTITY FULL`, `INSERT INTO w VALUES (1,1,'a'),(1,1,'a'),(2,2,'b'),(2,2,'b'),(3,3,'c')`,
					`CREATE TABLE o (id int PRIMARY KEY, n int, b text)`, `INSERT INTO o VALUES (1,1,'o')`)
				n := start(t, Config{ConnString: db.ConnString, Tables: names("w", "o"), audit: 300 * time.Millisecond})
				n.converges(db, "w", "o")
				db.Exec(t, tt.sql...)
				n.converges(db, "w")
				db.Exec(t, `UPDATE o SET n=n+1`, `INSERT INTO w (id) VALUES (9),(9)`, `DELETE FROM w WHERE id=3`)
				n.converges(db, "o", "w")
				// (A type that is widened rewrites the table, which can be seen first.)
				why := strings.ReplaceAll(fmt.Sprint(n.alone()), "table public.w: it was rewritten", "")
				if n.baselines() != 1 || strings.Contains(why, "table public.o") || strings.Contains(why, "table public.w") != tt.alone {
					t.Errorf("%d baselines of all; alone: %s", n.baselines(), why)
				}
			})
		})
	}
}

// Column identity is the attribute number: a column that was dropped and added
// again under its name is another one, though the relation message is the same.
func TestCaseP24(t *testing.T) {
	t.Parallel()
	for _, after := range []string{`INSERT INTO t (id,n,b) VALUES (3,3,'c')`, `UPDATE t SET n=n+1 WHERE id=2`, ``} {
		t.Run(after, func(t *testing.T) {
			t.Parallel()
			eachVersion(t, func(t *testing.T, db *testpg.DB) {
				db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'a'),(2,2,'b')`)
				n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), audit: 300 * time.Millisecond})
				n.converges(db, "t")
				db.Exec(t, `ALTER TABLE t DROP COLUMN b, ADD COLUMN b text`)
				if after != "" {
					db.Exec(t, after)
				}
				n.converges(db, "t")
				if n.baselines() != 1 || !strings.Contains(fmt.Sprint(n.alone()), "dropped and added again") {
					t.Errorf("%d baselines of all; alone: %v", n.baselines(), n.alone())
				}
			})
		})
	}
}

// A type is widened in order with its data; another key takes a baseline of that
// table alone.
func TestCaseP29(t *testing.T) {
	t.Parallel()
	everyVersion(t, func(t *testing.T, db *testpg.DB) {
		t.Parallel()
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'a'),(2,2,'b')`, `CREATE TABLE o (id int PRIMARY KEY)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "o")})
		n.converges(db, "t")
		db.Exec(t, `ALTER TABLE t ALTER n TYPE bigint`, `INSERT INTO t VALUES (3,9223372036854775807,'c')`)
		n.converges(db, "t")
		if got := n.alone(); len(got) > 0 {
			t.Errorf("widening took a baseline: %v", got)
		}
		db.Exec(t, `ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, n)`, `UPDATE t SET n=n-1 WHERE id=3`, `INSERT INTO t VALUES (3,7,'d')`, `INSERT INTO o VALUES (1)`)
		n.converges(db, "t", "o")
		if got := n.alone(); n.baselines() != 1 || len(got) != 1 || !strings.Contains(got[0], "key changed") {
			t.Errorf("%d baselines of all; alone: %v", n.baselines(), got)
		}
	})
}

// A column is added, with a default, between two parts of a baseline.
func TestCaseP04(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t SELECT i, i, repeat('x',500) FROM generate_series(1,5000) i`)
		added := make(chan error, 1)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), BaselineWorkers: 1, partPages: 20, audit: time.Second}, func(m *model) {
			m.inBaseline = func() {
				m.inBaseline = nil
				go func() { added <- db.ExecContext(t.Context(), `ALTER TABLE t ADD x int DEFAULT 1`) }()
				time.Sleep(200 * time.Millisecond)
			}
		})
		n.ready()
		if err := <-added; err != nil {
			t.Fatal(err)
		}
		db.Exec(t, `INSERT INTO t VALUES (-1,1,'y',2)`)
		n.converges(db, "t")
		if n.baselines() != 1 {
			t.Errorf("%d baselines, want 1", n.baselines())
		}
	})
}

// A table that goes away is said, and the others go on; when it is back, it is
// baselined.
func TestTableGoesAway(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'a')`, `CREATE TABLE o (id int PRIMARY KEY)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "o"), audit: 200 * time.Millisecond})
		n.converges(db, "t", "o")
		db.Exec(t, `DROP TABLE t`, `INSERT INTO o VALUES (1)`)
		n.converges(db, "o")
		eventually(t, "it is said", func() bool { return n.sawReport(engine.ReasonTableNotFound) })
		db.Exec(t, `INSERT INTO o VALUES (2)`, createT, `INSERT INTO t VALUES (2,2,'b')`)
		n.converges(db, "t", "o")
		eventually(t, "all is well again", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.lastErr == nil })
		if n.baselines() != 1 {
			t.Errorf("%d baselines of all, want 1", n.baselines())
		}
	})
}

// Tables are added to a node that runs, and taken out: the others never notice.
func TestTablesAddedAndTakenOut(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'a')`, `CREATE TABLE o (id int PRIMARY KEY, n int)`, `CREATE TABLE bag (v text)`, `ALTER TABLE bag REPLICA IDENTITY FULL`,
			`INSERT INTO bag VALUES ('x'),('x')`, `INSERT INTO o SELECT i, 0 FROM generate_series(1,1000) i`, `CREATE PUBLICATION every FOR ALL TABLES WITH (publish_via_partition_root = true)`)
		for _, pub := range []string{"", "every"} {
			n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), audit: 200 * time.Millisecond, Publication: pub, Slot: "s" + pub + "_" + db.Name})
			n.converges(db, "t")
			db.Exec(t, `INSERT INTO o VALUES (0,0) ON CONFLICT DO NOTHING`, `UPDATE o SET n=0 WHERE id=0`) // described before it is ours
			if err := n.src.SetTables(names("t", "o", "bag")); err != nil {
				t.Fatal(err)
			}
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						_ = db.ExecContext(t.Context(), fmt.Sprintf(`UPDATE o SET n=n+1 WHERE id%%10=%d`, i%10), `INSERT INTO bag VALUES ('y')`, `DELETE FROM bag WHERE ctid=(SELECT min(ctid) FROM bag)`)
					}
				}
			}()
			eventually(t, "both are baselined", func() bool { return len(n.alone()) >= 2 })
			close(stop)
			<-stopped
			n.converges(db, "t", "o", "bag")
			if err := n.src.SetTables(names("t", "bag")); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the rows are gone", func() bool { return n.rows("o") == 0 })
			db.Exec(t, `UPDATE o SET n=n+1`, `INSERT INTO bag VALUES ('z')`)
			n.converges(db, "t", "bag")
			if n.rows("o") != 0 || n.baselines() != 1 {
				t.Errorf("%d rows of a table that was taken out, %d baselines", n.rows("o"), n.baselines())
			}
			n.stop()
		}
	})
}
