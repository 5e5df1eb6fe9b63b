package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// A table without a key, told whole: equal rows are counted.
func TestCaseP25(t *testing.T) {
	t.Parallel()
	everyVersion(t, func(t *testing.T, db *testpg.DB) {
		t.Parallel()
		db.Exec(t, `CREATE TABLE bag (a int, b text, c text)`, `ALTER TABLE bag REPLICA IDENTITY FULL`, `ALTER TABLE bag ALTER c SET STORAGE EXTERNAL`,
			`INSERT INTO bag VALUES (1,'x',NULL),(1,'x',NULL),(1,'x',NULL),(NULL,NULL,NULL),(2,'',repeat('t',9000)),(2,'',repeat('t',9000))`,
			`CREATE TABLE ix (a int, id text NOT NULL, k int NOT NULL, UNIQUE (k, id))`, `ALTER TABLE ix REPLICA IDENTITY USING INDEX ix_k_id_key`,
			`INSERT INTO ix SELECT i, 'é'||i, i%3 FROM generate_series(1,50) i`,
			`CREATE TABLE none ()`, `ALTER TABLE none REPLICA IDENTITY FULL`, `INSERT INTO none DEFAULT VALUES`, `INSERT INTO none DEFAULT VALUES`,
			`CREATE TABLE late (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)`, `ALTER TABLE late REPLICA IDENTITY FULL`, `INSERT INTO late VALUES (1,'a'),(2,'b'),(3,'c')`,
			`CREATE TABLE dates (d date, f float8, t timestamptz, PRIMARY KEY (f, d, t))`, `INSERT INTO dates VALUES ('0044-03-15 BC', 'NaN', '-infinity'), ('infinity', '-0', '2024-01-01 00:00+05:45')`)
		tables := []string{"bag", "ix", "none", "late", "dates"}
		n := start(t, Config{ConnString: db.ConnString, Tables: names(tables...)})
		n.converges(db, tables...)
		db.Exec(t, `DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)`, `INSERT INTO bag VALUES (NULL,NULL,NULL),(NULL,'','')`)
		n.converges(db, "bag")
		db.Exec(t, `UPDATE bag SET a=7 WHERE ctid = (SELECT min(ctid) FROM bag WHERE a=1)`, `UPDATE bag SET a=a+1 WHERE a=2`, `UPDATE bag SET b=b`, `DELETE FROM bag WHERE a IS NULL AND b IS NULL`)
		n.converges(db, "bag")
		db.Exec(t, `BEGIN; DELETE FROM bag; INSERT INTO bag SELECT 1,'x',NULL FROM generate_series(1,20); UPDATE bag SET b='y' WHERE ctid IN (SELECT ctid FROM bag LIMIT 7); COMMIT`,
			`UPDATE ix SET a=0 WHERE k=1`, `UPDATE ix SET id=id||'!', k=9 WHERE k=2`, `DELETE FROM ix WHERE k=0`,
			`DELETE FROM none WHERE ctid = (SELECT min(ctid) FROM none)`, `INSERT INTO none DEFAULT VALUES`, `INSERT INTO none DEFAULT VALUES`,
			`BEGIN; UPDATE late SET id=2 WHERE v='a'; UPDATE late SET id=1 WHERE v='b'; COMMIT`, `UPDATE late SET id=id+1`,
			`UPDATE dates SET f='-Infinity' WHERE f='NaN'`, `DELETE FROM dates WHERE d='infinity'`)
		n.converges(db, tables...)
		db.Exec(t, `TRUNCATE bag, none`, `INSERT INTO bag VALUES (1,'x',NULL),(1,'x',NULL)`)
		n.converges(db, tables...)
		if n.baselines() != 1 {
			t.Errorf("%d baselines, want 1", n.baselines())
		}
	})
}

// Two keys are swapped in one transaction, by way of a third and by a deferred
// constraint beside the key.
func TestKeysAreSwapped(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `ALTER TABLE t ALTER b SET STORAGE EXTERNAL`, `INSERT INTO t SELECT i, i, repeat(chr(96+i), 9000) FROM generate_series(1,4) i`,
			`CREATE TABLE d (id int PRIMARY KEY, pos int UNIQUE DEFERRABLE INITIALLY DEFERRED)`, `INSERT INTO d VALUES (1,1),(2,2)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "d")})
		n.ready()
		db.Exec(t, `BEGIN; UPDATE t SET id=-1 WHERE id=1; UPDATE t SET id=1 WHERE id=2; UPDATE t SET id=2 WHERE id=-1; COMMIT`,
			`BEGIN; UPDATE d SET pos=2 WHERE id=1; UPDATE d SET pos=1 WHERE id=2; COMMIT`,
			`BEGIN; UPDATE t SET id=id+10; UPDATE t SET id=id-9 WHERE id>11; DELETE FROM t WHERE id=11; COMMIT`)
		n.converges(db, "t", "d")
	})
}

// Large values that do not change, under each identity, with and without a
// change of the key.
func TestUnchangedValues(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		identities := map[string]string{"d": "DEFAULT", "f": "FULL", "i": "USING INDEX i_k_key", "x": "FULL"}
		var tables []string
		for name, identity := range identities {
			key := " PRIMARY KEY"
			if name == "x" {
				key = ""
			}
			db.Exec(t, fmt.Sprintf(`CREATE TABLE %s (id int%s, k text NOT NULL CONSTRAINT %[1]s_k_key UNIQUE, n int, a text, b text)`, name, key),
				fmt.Sprintf(`ALTER TABLE %s ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL, ALTER k SET STORAGE EXTERNAL`, name),
				fmt.Sprintf(`ALTER TABLE %s REPLICA IDENTITY %s`, name, identity),
				fmt.Sprintf(`INSERT INTO %s SELECT i, repeat(chr(96+i),2400), 0, repeat('a',9000), repeat('b',9000) FROM generate_series(1,5) i`, name))
			tables = append(tables, name)
		}
		n := start(t, Config{ConnString: db.ConnString, Tables: names(tables...)})
		n.ready()
		for name := range identities {
			for _, sql := range []string{`UPDATE %s SET n=1 WHERE id=1`, `UPDATE %s SET id=22 WHERE id=2`, `UPDATE %s SET id=33, a='short' WHERE id=3`, `UPDATE %s SET k='new', n=2 WHERE id=4`,
				`BEGIN; UPDATE %[1]s SET n=5 WHERE id=5; UPDATE %[1]s SET id=55 WHERE id=5; UPDATE %[1]s SET b=NULL WHERE id=55; UPDATE %[1]s SET n=6 WHERE id=55; COMMIT`} {
				db.Exec(t, fmt.Sprintf(sql, name))
			}
		}
		n.converges(db, tables...)
		if n.baselines() != 1 {
			t.Errorf("%d baselines, want 1", n.baselines())
		}
	})
}

// A partition that tells its changes by another identity than the table: said
// before it is a change that cannot be applied.
func TestPartitionIdentity(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TABLE p (id int NOT NULL, k int NOT NULL, PRIMARY KEY (id, k)) PARTITION BY LIST (k)`, `CREATE TABLE "P.1" PARTITION OF p FOR VALUES IN (1)`,
			`CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)`, `INSERT INTO p VALUES (1,1),(2,2)`)
		cfg := Config{ConnString: db.ConnString, Tables: names("p")}
		n := start(t, cfg)
		n.converges(db, "p")
		db.Exec(t, `CREATE UNIQUE INDEX just_k ON "P.1" (k)`, `ALTER TABLE "P.1" REPLICA IDENTITY USING INDEX just_k`)
		_, err := initSource(t, cfg2(cfg, "other_"+db.Name))
		wants(t, err, engine.ReasonNoReplicaIdentity, map[Reason]string{NoReplicaIdentity: `ALTER TABLE "public"."P.1" REPLICA IDENTITY FULL`})
		db.Exec(t, `DELETE FROM p WHERE id=1`)
		eventually(t, "the change is refused", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			var se *engine.SourceError
			return errors.As(n.lastErr, &se) && se.Reason == engine.ReasonNoReplicaIdentity
		})
		db.Exec(t, `ALTER TABLE "P.1" REPLICA IDENTITY FULL`)
		n.converges(db, "p")
	})
}

func cfg2(c Config, slot string) Config {
	c.Slot = slot
	return c
}

// Names that look like something else, as columns and tables.
func TestOddNames(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		odd := []string{"select", "Id", `a"b`, `back\slash`, "per%cent", "new\nline", "tab\there", " ", "ключ", "😀", "a.b", "'quote'", "oid", "xmin_", "user", "NULL", "$1", "_deleted", "ctid2",
			strings.Repeat("é", 31) + "x", strings.Repeat("n", 63)}
		var columns []string
		for _, o := range odd {
			columns = append(columns, quoteIdent(o)+" text")
		}
		var tables []engine.TableName
		for i, o := range odd {
			tables = append(tables, engine.TableName{Schema: "public", Name: o})
			db.Exec(t, fmt.Sprintf(`CREATE TABLE %s (%s, PRIMARY KEY (%s))`, quoteIdent(o), strings.Join(columns, ", "), quoteIdent(odd[(i+1)%len(odd)])),
				fmt.Sprintf(`INSERT INTO %s VALUES (%s)`, quoteIdent(o), strings.TrimSuffix(strings.Repeat(`'v', `, len(odd)), ", ")))
		}
		n := start(t, Config{ConnString: db.ConnString, Tables: tables})
		n.ready()
		for i, o := range odd {
			db.Exec(t, fmt.Sprintf(`UPDATE %s SET %s='w', %s='k'`, quoteIdent(o), quoteIdent(odd[i]), quoteIdent(odd[(i+1)%len(odd)])))
		}
		for _, table := range tables {
			eventually(t, "table "+table.Name, func() bool {
				return n.model.digest(table) == db.Digest(t, "SELECT * FROM "+quoteIdent(table.Name))
			})
		}
		for _, s := range n.info.Tables {
			for i, c := range s.Columns {
				if c.Name != odd[i] {
					t.Errorf("column %d of %s is %q, want %q", i, s.Table, c.Name, odd[i])
				}
			}
		}
	})
}

// The widest table that PostgreSQL allows, and rows as wide as it can store.
func TestWideTable(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		columns := []string{"id int PRIMARY KEY"}
		for i := range 1599 {
			columns = append(columns, fmt.Sprintf("c%d text", i))
		}
		db.Exec(t, "CREATE TABLE t ("+strings.Join(columns, ", ")+")", `INSERT INTO t (id, c0, c1598) VALUES (1, 'first', 'last')`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
		n.converges(db, "t")
		var set []string
		for i := range 1599 {
			set = append(set, fmt.Sprintf("c%d='v'", i))
		}
		db.Exec(t, "UPDATE t SET "+strings.Join(set, ", "), `INSERT INTO t (id) VALUES (2)`)
		n.converges(db, "t")
	})
}
