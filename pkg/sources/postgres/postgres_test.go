package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

const createT = `CREATE TABLE t (id int PRIMARY KEY, n int, b text)`

func TestBaselineAndStream(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t SELECT i, i, 'row '||i FROM generate_series(1,5000) i`, `INSERT INTO t VALUES (0,NULL,NULL)`,
			`CREATE TABLE u (a text, b bigint, c numeric, PRIMARY KEY (b, a))`, `INSERT INTO u VALUES (E'a\t\\b', 1, 2.50)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "u")})
		n.converges(db, "t", "u")
		db.Exec(t, `INSERT INTO t VALUES (-1,1,'x')`, `UPDATE t SET b=b||'!' WHERE id%10=0`, `DELETE FROM t WHERE id%7=3`,
			`UPDATE u SET c=3`, `INSERT INTO u VALUES ('',2,NULL)`)
		n.converges(db, "t", "u")
		if got := n.baselines(); got != 1 {
			t.Errorf("%d baselines, want 1", got)
		}
		if n.info.History == "" || !n.info.Mints || len(n.info.Tables) != 2 {
			t.Errorf("Info is %+v", n.info)
		}
		u := n.info.Tables[1]
		if !slices.Equal(u.KeyColumns(), []int{0, 1}) || u.Columns[2].TypeName != "numeric" || u.Columns[1].TypeName != "bigint" {
			t.Errorf("u is %+v", u)
		}
	})
}

func TestEmptyTable(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
		n.converges(db, "t")
		db.Exec(t, `INSERT INTO t VALUES (1,1,'x')`)
		n.converges(db, "t")
	})
}

// A commit that waits for a standby while the baseline is taken is in the
// baseline or in the stream.
func TestCaseP01(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before the slot", "during the baseline"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			s := testpg.Start(t, testpg.Options{Settings: map[string]string{"synchronous_commit": "on"}})
			db := s.NewDB(t)
			db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'before')`, `CREATE PUBLICATION p FOR TABLE t`)
			wait := func() {
				t.Helper()
				eventually(t, "the commit waits for the standby", func() bool {
					return db.Value(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event='SyncRep'`) == "1"
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			committed := make(chan error, 1)
			commit := func() {
				db.Exec(t, `ALTER SYSTEM SET synchronous_standby_names='missing'`, `SELECT pg_reload_conf()`)
				eventually(t, "the setting", func() bool { return db.Value(t, `SHOW synchronous_standby_names`) == "missing" })
				go func() { committed <- db.ExecContext(ctx, `INSERT INTO t VALUES (2,2,'waits')`) }()
				wait()
			}
			defer cancel()
			var n *node
			if when == "before the slot" {
				commit()
				n = start(t, Config{ConnString: db.ConnString, Tables: names("t"), Publication: "p"})
				time.Sleep(500 * time.Millisecond)
			} else {
				n = start(t, Config{ConnString: db.ConnString, Tables: names("t"), Publication: "p"}, func(m *model) { m.inBaseline = commit })
				n.ready()
			}
			db.Exec(t, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
			if err := <-committed; err != nil {
				t.Fatal(err)
			}
			n.converges(db, "t")
			if got := db.Value(t, `SELECT count(*) FROM t`); got != "2" {
				t.Fatalf("the source has %s rows", got)
			}
		})
	}
}

// Two transactions interleave: both come whole, in commit order, and a stream
// that starts between them loses neither.
func TestCaseP11(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), Permanent: true}, func(m *model) { m.durable = true })
		n.ready()
		a, err := db.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close(context.Background())
		b, err := db.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close(context.Background())
		exec := func(c *pgconn.PgConn, sql string) {
			t.Helper()
			if _, err := c.Exec(t.Context(), sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		exec(a, `BEGIN; INSERT INTO t VALUES (1,1,'a1')`)
		exec(b, `BEGIN; INSERT INTO t VALUES (2,1,'b1')`)
		exec(a, `INSERT INTO t VALUES (3,1,'a2')`)
		exec(b, `INSERT INTO t VALUES (4,1,'b2'); COMMIT`)
		eventually(t, "b has arrived", func() bool { return n.rows("t") == 2 })
		n.stop()
		exec(a, `INSERT INTO t VALUES (5,1,'a3'); COMMIT`)
		n = startSource(t, n.src, n.model)
		n.converges(db, "t")
		if len(n.model.txs) != 2 || n.model.changes != 5 || n.baselines() != 1 {
			t.Errorf("%d transactions with %d changes after %d baselines, want 2, 5, 1", len(n.model.txs), n.model.changes, n.baselines())
		}
	})
}

// The node is held up for much longer than wal_sender_timeout: it keeps its
// walsender.
func TestCaseP12(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET wal_sender_timeout='2s'")
		var held atomic.Bool
		release := make(chan struct{})
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), MaxBuffer: 1 << 20}, func(m *model) {
			m.hold = func(ctx context.Context) error {
				held.Store(true)
				select {
				case <-release:
				case <-ctx.Done():
				}
				return ctx.Err()
			}
		})
		n.ready()
		pid := walsender(t, db)
		// Far more than every buffer between here and there holds.
		for i := range 15 {
			db.Exec(t, fmt.Sprintf(`INSERT INTO t SELECT i, 0, repeat('x',1000) FROM generate_series(%d,%d) i`, i*1000, i*1000+999))
		}
		eventually(t, "the node is held up", held.Load)
		time.Sleep(15 * time.Second)
		if got := walsender(t, db); got != pid {
			t.Errorf("walsender %s, was %s; the server says:\n%s", got, pid, db.Server.Log(40))
		}
		close(release)
		n.converges(db, "t")
		if got := walsender(t, db); got != pid || n.baselines() != 1 {
			t.Errorf("walsender %s, was %s; %d baselines", got, pid, n.baselines())
		}
	})
}

// walsender returns the process that streams to this database's only node.
func walsender(t *testing.T, db *testpg.DB) (pid string) {
	t.Helper()
	eventually(t, "a walsender streams", func() bool {
		rows := db.Query(t, `SELECT r.pid FROM pg_stat_replication r JOIN pg_stat_activity a USING (pid) WHERE a.datname=current_database() AND r.state='streaming'`)
		if len(rows) == 1 {
			pid = *rows[0][0]
		}
		return len(rows) == 1
	})
	return pid
}

// A large value that an update leaves alone is not sent again, and stays.
func TestCaseP21(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `ALTER TABLE t ALTER b SET STORAGE EXTERNAL`, `INSERT INTO t VALUES (1,0,repeat('y',9000)),(2,0,repeat('z',9000))`,
			`CREATE TABLE f (id int PRIMARY KEY, n int, b text)`, `ALTER TABLE f REPLICA IDENTITY FULL`, `ALTER TABLE f ALTER b SET STORAGE EXTERNAL`,
			`INSERT INTO f VALUES (1,0,repeat('w',9000))`,
			`CREATE TABLE k (id text PRIMARY KEY, n int)`, `ALTER TABLE k ALTER id SET STORAGE EXTERNAL`, `INSERT INTO k VALUES (repeat('k',2500),0)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t", "f", "k")})
		n.ready()
		db.Exec(t, `UPDATE t SET n=1 WHERE id=1`, `UPDATE t SET n=2, id=3 WHERE id=2`, `UPDATE f SET n=1`, `UPDATE f SET id=2`, `UPDATE k SET n=1`,
			`BEGIN; INSERT INTO t VALUES (9,0,repeat('v',9000)); UPDATE t SET n=1 WHERE id=9; UPDATE t SET id=10 WHERE id=9; COMMIT`)
		n.converges(db, "t", "f", "k")
		if got := n.baselines(); got != 1 {
			t.Errorf("%d baselines, want 1", got)
		}
	})
}

// A key change removes the old row and puts the new one, in one transaction.
func TestCaseP22(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x'),(5,5,'y')`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
		n.ready()
		db.Exec(t, `UPDATE t SET id=2 WHERE id=1`)
		n.converges(db, "t")
		if len(n.model.txs) != 1 || n.model.changes != 2 {
			t.Errorf("%d transactions with %d changes, want 1 with 2", len(n.model.txs), n.model.changes)
		}
		db.Exec(t, `BEGIN; UPDATE t SET id=3 WHERE id=2; UPDATE t SET id=2 WHERE id=5; UPDATE t SET id=5 WHERE id=3; COMMIT`)
		n.converges(db, "t")
	})
}

// Truncates come in order with what is around them.
func TestTruncate(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TABLE a (id int PRIMARY KEY)`, `CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)`,
			`INSERT INTO a VALUES (1),(2)`, `INSERT INTO b VALUES (1,1),(2,2)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("a", "b")})
		n.ready()
		db.Exec(t, `BEGIN; INSERT INTO a VALUES (3); TRUNCATE a, b; INSERT INTO a VALUES (4); COMMIT`)
		n.converges(db, "a", "b")
		db.Exec(t, `TRUNCATE a CASCADE`)
		n.converges(db, "a", "b")
	})
}

// Names that need quotes, everywhere a name can stand.
func TestCaseP28(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE SCHEMA "S-1"; CREATE TABLE "S-1"."T" ("select" int PRIMARY KEY, "a ""b"" \c" text)`, `INSERT INTO "S-1"."T" VALUES (1,'x')`,
			`CREATE SCHEMA "a.b"; CREATE TABLE "a.b"."c" (id int PRIMARY KEY)`, `INSERT INTO "a.b"."c" VALUES (1)`,
			`CREATE SCHEMA "a"; CREATE TABLE "a"."b.c" (id int PRIMARY KEY)`, `INSERT INTO "a"."b.c" VALUES (2)`)
		tables := []engine.TableName{{Schema: "S-1", Name: "T"}, {Schema: "a.b", Name: "c"}, {Schema: "a", Name: "b.c"}}
		for i, pub := range []string{`Pub`, `p"q'r, s\t`} {
			t.Run(pub, func(t *testing.T) {
				n := start(t, Config{ConnString: db.ConnString, Tables: tables, Publication: pub, Slot: fmt.Sprintf("%s_%d", db.Name, i)})
				n.ready()
				db.Exec(t, `UPDATE "S-1"."T" SET "a ""b"" \c"='y'||`+fmt.Sprint(i), fmt.Sprintf(`INSERT INTO "a.b"."c" VALUES (%d)`, 10+i), fmt.Sprintf(`INSERT INTO "a"."b.c" VALUES (%d)`, 20+i))
				eventually(t, "all tables equal", func() bool {
					for _, name := range tables {
						if n.model.digest(name) != db.Digest(t, "SELECT * FROM "+quoteTable(name.Schema, name.Name)) {
							return false
						}
					}
					return true
				})
			})
		}
	})
}

// The walsender is ended: the temporary slot is gone with it, and the node takes
// a new baseline.
func TestReconnectAfterTerminate(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x')`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
		n.converges(db, "t")
		if ended, err := db.TerminateWalsenders(t.Context()); err != nil || ended != 1 {
			t.Fatalf("ended %d walsenders, %v", ended, err)
		}
		db.Exec(t, `INSERT INTO t VALUES (2,2,'missed by the slot')`)
		eventually(t, "a second baseline", func() bool { return n.baselines() == 2 })
		n.converges(db, "t")
		if !n.sawReport(engine.ReasonDisconnected) {
			t.Errorf("the loss was not reported: %v", n.reports)
		}
		db.Exec(t, `INSERT INTO t VALUES (3,3,'streamed')`)
		n.converges(db, "t")
		if n.baselines() != 2 {
			t.Errorf("%d baselines, want 2", n.baselines())
		}
	})
}

// A permanent slot outlives its connection, the node and the server: no second
// baseline, nothing lost, nothing sent twice.
func TestPermanentSlotResumes(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{})
	db := s.NewDB(t)
	db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x')`)
	n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), Permanent: true}, func(m *model) { m.durable = true })
	n.converges(db, "t")
	walsender(t, db)
	if got := db.Value(t, `SELECT string_agg(slot_name||' '||temporary, ',') FROM pg_replication_slots`); got != n.src.slot+" false" {
		t.Errorf("slots: %s", got)
	}
	for i, loss := range []func(){
		func() { _, _ = db.TerminateWalsenders(t.Context()) },
		func() { n.stop() },
		func() {
			if err := s.Restart(t.Context(), testpg.Fast); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			if err := s.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		loss()
		db.Exec(t, fmt.Sprintf(`INSERT INTO t VALUES (%d,0,'missed')`, 10+i))
		if i == 1 {
			n = startSource(t, n.src, n.model)
		}
		n.converges(db, "t")
	}
	if got := engine.Position(db.Value(t, `SELECT confirmed_flush_lsn FROM pg_replication_slots`)); engine.CompareLSN(got, n.position()) > 0 {
		t.Errorf("confirmed %s, past the cursor %s", got, n.position())
	}
	if n.baselines() != 1 || len(n.model.txs) != 4 {
		t.Errorf("%d baselines and %d transactions, want 1 and 4", n.baselines(), len(n.model.txs))
	}
	// The slot goes: one re-baseline.
	n.stop()
	db.Exec(t, `SELECT pg_drop_replication_slot('`+n.src.slot+`')`, `INSERT INTO t VALUES (99,0,'after')`)
	n = startSource(t, n.src, n.model)
	eventually(t, "a second baseline", func() bool { return n.baselines() == 2 })
	n.converges(db, "t")
}

// The server is stopped in fast mode, with the node idle and under load: it
// stops promptly, and the node is back when the server is.
func TestCaseP14(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"idle", "load"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := testpg.Start(t, testpg.Options{})
			db := s.NewDB(t)
			db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x')`)
			n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
			n.converges(db, "t")
			walsender(t, db)
			stop := make(chan struct{})
			loaded := make(chan struct{})
			go func() {
				defer close(loaded)
				for i := 10; mode == "load"; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if db.ExecContext(context.Background(), fmt.Sprintf(`INSERT INTO t SELECT i, 0, repeat('x',500) FROM generate_series(%d,%d) i`, i*1000, i*1000+999)) != nil {
						return
					}
				}
			}()
			if mode == "load" {
				eventually(t, "some load", func() bool { return n.rows("t") > 5000 })
			}
			began := time.Now()
			if err := s.Stop(t.Context(), testpg.Fast); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			close(stop)
			<-loaded
			t.Logf("stopped in %s", took)
			if took > 30*time.Second {
				t.Errorf("the server took %s to stop", took)
			}
			if n.rows("t") == 0 {
				t.Error("what the node had is gone while the server is down")
			}
			eventually(t, "the loss is reported", func() bool { return n.sawReport(engine.ReasonDisconnected) })
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			db.Exec(t, `INSERT INTO t VALUES (-5,0,'after')`)
			eventually(t, "a second baseline", func() bool { return n.baselines() == 2 })
			n.converges(db, "t")
		})
	}
}

// What the slot has confirmed never passes what the engine has acknowledged,
// and follows an idle stream.
func TestConfirms(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `CREATE TABLE other (id int)`)
		db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET wal_sender_timeout='1s'")
		var hold atomic.Bool
		release := make(chan struct{})
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")}, func(m *model) {
			m.hold = func(ctx context.Context) error {
				if hold.Load() {
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
				return ctx.Err()
			}
		})
		n.ready()
		walsender(t, db)
		confirmed := func() engine.Position {
			return engine.Position(db.Value(t, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database=current_database()`))
		}
		base := n.position()
		if engine.CompareLSN(confirmed(), base) < 0 {
			t.Errorf("confirmed %s, below the baseline at %s", confirmed(), base)
		}
		// Idle here, busy elsewhere: the slot follows.
		db.Exec(t, `INSERT INTO other SELECT generate_series(1,10000)`)
		mark := engine.Position(db.Value(t, `SELECT pg_current_wal_lsn()`))
		eventually(t, "an idle stream is confirmed", func() bool { return engine.CompareLSN(confirmed(), mark) >= 0 })
		// Something is in flight: the slot stays.
		hold.Store(true)
		db.Exec(t, `INSERT INTO t VALUES (1,1,'held')`)
		db.Exec(t, `INSERT INTO other SELECT generate_series(1,10000)`)
		time.Sleep(3 * time.Second)
		whileHeld := confirmed()
		close(release)
		eventually(t, "the row", func() bool { return n.rows("t") == 1 })
		if engine.CompareLSN(whileHeld, n.position()) >= 0 {
			t.Errorf("confirmed %s while a transaction that ends at %s was held", whileHeld, n.position())
		}
		mark = engine.Position(db.Value(t, `SELECT pg_current_wal_lsn()`))
		eventually(t, "all is confirmed", func() bool { return engine.CompareLSN(confirmed(), mark) >= 0 })
		if got, want := n.src.LastAckedPosition(engine.LogID{}), n.position(); got != want {
			t.Errorf("acknowledged %s, at %s", got, want)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
		n.ready()
		pid := walsender(t, db)
		n.src.Pause()
		n.src.Pause()
		db.Exec(t, `INSERT INTO t SELECT generate_series(1,1000), 0, ''`)
		time.Sleep(300 * time.Millisecond)
		if got := n.rows("t"); got != 0 {
			t.Errorf("%d rows while paused", got)
		}
		n.src.Resume()
		n.src.Resume()
		n.converges(db, "t")
		if walsender(t, db) != pid || n.baselines() != 1 || !n.sawReport(engine.ReasonPaused) {
			t.Errorf("a pause cost more than time: %v", n.reports)
		}
	})
}

// A partitioned table comes under its own name.
func TestPartitioned(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, `CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)`,
			`CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`, `CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)`,
			`INSERT INTO p SELECT i, 1+i%2, 'v' FROM generate_series(1,100) i`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("p")})
		n.converges(db, "p")
		db.Exec(t, `UPDATE p SET k=2 WHERE id=2`, `INSERT INTO p VALUES (101,1,'w')`, `DELETE FROM p WHERE id=3`, `UPDATE p SET v='u' WHERE k=2`)
		n.converges(db, "p")
	})
}

// Rows and columns that a publication leaves out are left out of the baseline
// too.
func TestPublicationFilters(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		if db.Server.Major < 15 {
			t.Skip("row filters came with version 15")
		}
		db.Exec(t, `CREATE TABLE t (id int PRIMARY KEY, n int, secret text, g int GENERATED ALWAYS AS (1) STORED)`, `INSERT INTO t SELECT i, i, 'secret' FROM generate_series(1,10) i`,
			`CREATE PUBLICATION mine FOR TABLE t (id, n) WHERE (id > 5)`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), Publication: "mine"})
		n.ready()
		equal := func() {
			t.Helper()
			eventually(t, "equal", func() bool {
				return n.model.digest(names("t")[0]) == db.Digest(t, `SELECT id, n FROM t WHERE id > 5`)
			})
		}
		equal()
		db.Exec(t, `UPDATE t SET n=0`, `UPDATE t SET id=id+20 WHERE id=1`, `UPDATE t SET id=-id WHERE id=7`, `DELETE FROM t WHERE id=8`)
		equal()
	})
}

func (n *node) rows(table string) int {
	n.model.mu.Lock()
	defer n.model.mu.Unlock()
	return len(n.model.tables[names(table)[0]])
}

// A secret that is rotated is used at the next connect, and no secret is ever
// logged or reported.
func TestCredentialsRotate(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		user := "rotating_" + db.Name
		db.Exec(t, createT, `CREATE ROLE `+user+` LOGIN SUPERUSER PASSWORD 'first-s3cret'`)
		t.Cleanup(func() {
			_ = db.ExecContext(context.Background(), `DROP OWNED BY `+user+` CASCADE`, `DROP ROLE `+user)
		})
		var password atomic.Pointer[string]
		set := func(p string) { password.Store(&p) }
		set("first-s3cret")
		cfg := Config{ConnString: db.ConnStringAs("nobody", ""), Tables: names("t"),
			Credentials: func(context.Context) (string, string, error) { return user, *password.Load(), nil }}
		n := start(t, cfg)
		n.converges(db, "t")
		db.Exec(t, `ALTER ROLE `+user+` PASSWORD 'second-s3cret'`)
		if _, err := db.TerminateWalsenders(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the old password is refused", func() bool { return n.sawReport(engine.ReasonAuthenticationFailed) })
		set("second-s3cret")
		eventually(t, "a second baseline", func() bool { return n.baselines() == 2 })
		n.converges(db, "t")
		n.mu.Lock()
		defer n.mu.Unlock()
		if strings.Contains(n.logs.String(), "s3cret") {
			t.Errorf("a secret was logged: %s", n.logs.String())
		}
	})
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{Tables: names("t")}, "no connection string"},
		{Config{ConnString: "postgres://h/d"}, "no tables"},
		{Config{ConnString: "postgres://u:s3cret@h:99999999/d", Tables: names("t")}, "invalid port"},
		{Config{ConnString: "postgres://h/d", Tables: names("t", "t")}, "named twice"},
		{Config{ConnString: "postgres://h/d", Tables: names("t"), Slot: "No-Good"}, "lower-case"},
		{Config{ConnString: "postgres://h/d", Tables: []engine.TableName{{Name: "t"}}}, "no schema"},
		{Config{ConnString: "postgres://h/d", Tables: names("t"), Publication: strings.Repeat("p", 64)}, "63 bytes"},
	} {
		_, err := New(tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: %v, want %q", tt.cfg, err, tt.want)
		}
	}
}

func TestStreamWithoutBaseline(t *testing.T) {
	t.Parallel()
	src, err := New(Config{ConnString: "postgres://h/d", Tables: names("t")})
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Stream(t.Context(), engine.Cursors{{}: {Position: "0/1"}}, nil); !errors.Is(err, engine.ErrReBaselineRequired) {
		t.Errorf("got %v", err)
	}
}
