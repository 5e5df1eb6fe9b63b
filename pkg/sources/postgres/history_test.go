package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

func TestSuccession(t *testing.T) {
	t.Parallel()
	first := identity{systemID: "7", timeline: "1"}
	third := identity{systemID: "7", timeline: "3", branched: "0/30"}
	branches := []branch{{"1", 0x20}, {"2", 0x30}}
	for _, tt := range []struct {
		name         string
		id           identity
		branches     []branch
		before       string
		cursor, head engine.LSN
		wentBack     engine.LSN
		usable       bool
		want         string
		continues    bool
		kept         engine.LSN
	}{
		{"new", first, nil, "", 0, 0x10, 0, false, "postgres:7/1", false, 0},
		{"the same", first, nil, "postgres:7/1", 0x10, 0x10, 0, true, "postgres:7/1", false, 0},
		{"promoted after the cursor", third, branches, "postgres:7/2@0/20", 0x30, 0x40, 0, true, "postgres:7/3@0/30", true, 0},
		{"promoted twice after the cursor", third, branches, "postgres:7/1", 0x20, 0x40, 0, true, "postgres:7/3@0/30", true, 0},
		{"promoted before the cursor", third, branches, "postgres:7/2@0/20", 0x31, 0x40, 0, true, "postgres:7/3@0/30", false, 0x30},
		{"promoted twice, once before the cursor", third, branches, "postgres:7/1", 0x21, 0x40, 0, true, "postgres:7/3@0/30", false, 0x20},
		{"another branch of that number", third, branches, "postgres:7/2@0/1F", 0x20, 0x40, 0, true, "postgres:7/3@0/30", false, 0x1F},
		{"without the slot", third, branches, "postgres:7/2@0/20", 0x30, 0x40, 0, false, "postgres:7/3@0/30", false, 0},
		{"without its history", third, nil, "postgres:7/2@0/20", 0x30, 0x40, 0, true, "postgres:7/3@0/30", false, 0},
		{"back on an older timeline", first, nil, "postgres:7/2@0/20", 0x10, 0x40, 0, true, "postgres:7/1", false, 0},
		{"another branch, which left later than ours", third, branches, "postgres:7/2@0/25", 0x40, 0x50, 0, true, "postgres:7/3@0/30", false, 0x20},
		{"back on the first timeline, before the cursor", first, nil, "postgres:7/2@0/20", 0x30, 0x40, 0, true, "postgres:7/1", false, 0x20},
		{"another cluster", third, branches, "postgres:8/1", 0x10, 0x40, 0, true, "postgres:7/3@0/30", false, 0},
		{"restored", first, nil, "postgres:7/1", 0x20, 0x10, 0, true, "postgres:7/1#1", false, 0x10},
		{"restored again, and seen while it was behind", first, nil, "postgres:7/1#1", 0x20, 0x30, 0x18, true, "postgres:7/1#2", false, 0x18},
		{"restored long ago", first, nil, "postgres:7/1#2", 0x20, 0x30, 0, true, "postgres:7/1#2", false, 0},
		{"restored, then promoted", third, branches, "postgres:7/2@0/20#4", 0x30, 0x40, 0, true, "postgres:7/3@0/30", true, 0},
	} {
		got, continues, kept := succession(tt.id, tt.branches, tt.before, tt.cursor, tt.head, tt.wentBack, tt.usable)
		if got != tt.want || continues != tt.continues || kept != tt.kept {
			t.Errorf("%s: %s, %t, %s; want %s, %t, %s", tt.name, got, continues, kept, tt.want, tt.continues, tt.kept)
		}
	}
}

func TestParseBranches(t *testing.T) {
	t.Parallel()
	got, err := parseBranches("1\t0/3000000\tno recovery target specified\n\n# a comment\n2\t1/0\tbefore 2000-01-01 00:00:00+00\n")
	if err != nil || len(got) != 2 || got[0] != (branch{"1", 0x3000000}) || got[1] != (branch{"2", 1 << 32}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"1", "1\tx\ty"} {
		if _, err := parseBranches(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// standbyOf starts a standby.
func standbyOf(t *testing.T, primary *testpg.Server, settings map[string]string) *testpg.Server {
	t.Helper()
	standby, err := primary.Standby(t.Context(), testpg.Options{Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the standby's log:\n%s", standby.Log(30))
		}
		_ = standby.Close()
	})
	return standby
}

// either connects to the one of two servers that fits.
func either(db *testpg.DB, other *testpg.Server, attrs string) string {
	host := fmt.Sprintf("127.0.0.1:%d", db.Server.Port)
	return strings.Replace(db.ConnString, host, fmt.Sprintf("%s,127.0.0.1:%d", host, other.Port), 1) + "&target_session_attrs=" + attrs
}

// A standby is promoted: with a slot that was carried over the node goes on in
// its epoch and loses nothing; without one, or with a standby that lacked what
// the node had, a new epoch begins.
func TestCaseP18(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		major  int
		synced bool
		behind bool
	}{
		{"failover slot", 17, true, false},
		{"no slot", 0, false, false},
		{"standby was behind", 17, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			primary := testpg.Start(t, testpg.Options{Major: tt.major, Settings: map[string]string{"max_wal_senders": "10", "max_replication_slots": "10"}})
			db := primary.NewDB(t)
			db.Exec(t, createT, `INSERT INTO t SELECT i, i, 'x' FROM generate_series(1,100) i`)
			settings := map[string]string{}
			if tt.synced {
				settings["sync_replication_slots"] = "on"
			}
			standby := standbyOf(t, primary, settings)
			cfg := permanent(db)
			cfg.ConnString = either(db, standby, "read-write")
			n := start(t, cfg, durable)
			n.converges(db, "t")
			db.Exec(t, `UPDATE t SET n=0`)
			n.converges(db, "t")
			promoted := db.In(standby)
			if tt.synced {
				eventually(t, "the slot is on the standby", func() bool {
					db.Exec(t, `SELECT pg_log_standby_snapshot()`)
					return promoted.Value(t, `SELECT count(*) FROM pg_replication_slots WHERE slot_name='`+n.src.slot+`' AND synced AND NOT temporary`) == "1"
				})
				if !n.src.Slot().Failover {
					t.Error("the slot is not one that standbys take over")
				}
			}
			caughtUp := func() {
				mark := current(t, db)
				eventually(t, "the standby has it all", func() bool {
					return engine.CompareLSN(engine.Position(promoted.Value(t, `SELECT pg_last_wal_replay_lsn()`)), mark) >= 0
				})
			}
			caughtUp()
			if tt.behind {
				if err := cutStandby(standby, primary); err != nil {
					t.Fatal(err)
				}
				db.Exec(t, `INSERT INTO t VALUES (1000,1,'lost')`)
				n.converges(db, "t")
			}
			if err := primary.Stop(t.Context(), testpg.Immediate); err != nil {
				t.Fatal(err)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			promoted.Exec(t, `INSERT INTO t VALUES (2000,1,'after')`)
			n.converges(promoted, "t")
			promoted.Exec(t, `INSERT INTO t VALUES (2001,1,'streamed')`)
			n.converges(promoted, "t")
			if at := fmt.Sprintf(":%d/%s at 127.0.0.1:%d", standby.Port, db.Name, standby.Port); !strings.HasSuffix(n.src.server(), at) {
				t.Errorf("the server is called %q, and not %q in the end", n.src.server(), at)
			}
			wantEpochs, wantBaselines := 2, 2
			if tt.synced && !tt.behind {
				wantEpochs, wantBaselines = 1, 1
			}
			if n.model.epochs != wantEpochs || n.baselines() != wantBaselines {
				t.Errorf("%d epochs and %d baselines, want %d and %d", n.model.epochs, n.baselines(), wantEpochs, wantBaselines)
			}
			if (n.model.rolledBack != 0) != tt.behind {
				t.Errorf("the history was rolled back to %s", n.model.rolledBack)
			}
			if !strings.HasPrefix(n.model.history, "postgres:") || !strings.Contains(n.model.history, "/2@") {
				t.Errorf("the history is %s", n.model.history)
			}
		})
	}
}

// cutStandby keeps a standby from receiving more.
func cutStandby(standby, primary *testpg.Server) error {
	admin := &testpg.DB{Name: "postgres", Server: standby}
	if err := admin.ExecContext(context.Background(), `ALTER SYSTEM SET primary_conninfo='host=/nowhere'`, `SELECT pg_reload_conf()`); err != nil {
		return err
	}
	at := &testpg.DB{Name: "postgres", Server: primary}
	for range 100 {
		rows, err := at.QueryContext(context.Background(), `SELECT 1 FROM pg_stat_replication WHERE application_name='standby'`)
		if err != nil || len(rows) == 0 {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("the standby is still connected")
}

// The server is put back to an older copy of itself.
func TestCaseP20(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"away", "streaming"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			s := testpg.Start(t, testpg.Options{})
			db := s.NewDB(t)
			db.Exec(t, createT, `INSERT INTO t SELECT i, i, 'x' FROM generate_series(1,100) i`)
			n := start(t, permanent(db), durable)
			n.converges(db, "t")
			kept := current(t, db)
			if err := s.Backup(t.Context()); err != nil {
				t.Fatal(err)
			}
			db.Exec(t, `INSERT INTO t SELECT i, i, 'lost' FROM generate_series(1000,1100) i`, `DELETE FROM t WHERE id < 50`)
			n.converges(db, "t")
			lost := n.position()
			walsender(t, db)
			if when == "away" {
				n.stop()
			}
			if err := s.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			if when == "away" {
				n = n.again()
			}
			eventually(t, "a second baseline", func() bool { return n.baselines() >= 2 })
			n.converges(db, "t")
			db.Exec(t, `INSERT INTO t VALUES (5000,0,'streamed')`)
			n.converges(db, "t")
			if n.baselines() != 2 || n.model.epochs != 2 || !strings.HasSuffix(n.model.history, "#1") {
				t.Errorf("%d baselines in %d epochs, the history is %s", n.baselines(), n.model.epochs, n.model.history)
			}
			if at := n.model.rolledBack.Position(); engine.CompareLSN(at, kept) < 0 || engine.CompareLSN(at, lost) >= 0 {
				t.Errorf("it was rolled back to %s, want from %s to before %s", at, kept, lost)
			}
			// It is no new history each time.
			n.stop()
			n = n.again()
			db.Exec(t, `INSERT INTO t VALUES (5001,0,'again')`)
			n.converges(db, "t")
			if n.baselines() != 2 || n.model.epochs != 2 {
				t.Errorf("after a restart: %d baselines in %d epochs", n.baselines(), n.model.epochs)
			}
		})
	}
}

// A node reads from a standby; the making of its slot waits for the primary.
func TestStandbyDecoding(t *testing.T) {
	t.Parallel()
	primary := testpg.Start(t, testpg.Options{Major: 16, Settings: map[string]string{"max_wal_senders": "10", "max_replication_slots": "10"}})
	db := primary.NewDB(t)
	db.Exec(t, createT, `INSERT INTO t SELECT i, i, 'x' FROM generate_series(1,100) i`, `CREATE PUBLICATION p FOR TABLE t`)
	standby := standbyOf(t, primary, nil)
	at := db.In(standby)
	eventually(t, "the standby has the publication", func() bool { return at.Value(t, `SELECT count(*) FROM pg_publication`) == "1" })
	cfg := permanent(db)
	cfg.ConnString = either(db, standby, "prefer-standby")
	cfg.Publication, cfg.Slot = "p", "on_the_standby"
	n := start(t, cfg, durable)
	eventually(t, "the wait is explained", func() bool { return n.logged("pg_log_standby_snapshot() at the primary") })
	eventually(t, "the baseline", func() bool {
		db.Exec(t, `SELECT pg_log_standby_snapshot()`)
		return n.baselines() == 1
	})
	db.Exec(t, `UPDATE t SET n=0 WHERE id%2=0`, `DELETE FROM t WHERE id<10`)
	n.converges(db, "t")
	n.stop()
	db.Exec(t, `INSERT INTO t VALUES (1000,1,'missed')`)
	n = n.again()
	n.converges(db, "t")
	if n.baselines() != 1 {
		t.Errorf("%d baselines, want 1", n.baselines())
	}
	if got := at.Value(t, `SELECT count(*) FROM pg_replication_slots WHERE slot_name='on_the_standby'`); got != "1" {
		t.Error("the slot is not on the standby")
	}
	n.stop()
}
