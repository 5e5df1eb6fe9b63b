package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// permanent is a configuration with a slot that stays.
func permanent(db *testpg.DB) Config {
	return Config{ConnString: db.ConnString, Tables: names("t"), Slot: "slot_" + db.Name, Permanent: true,
		advance: 200 * time.Millisecond, watch: 200 * time.Millisecond}
}

func durable(m *model) { m.durable = true }

// confirmed returns how far the database's only slot is confirmed.
func confirmed(t *testing.T, db *testpg.DB) engine.Position {
	t.Helper()
	return engine.Position(db.Value(t, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database=current_database()`))
}

func current(t *testing.T, db *testpg.DB) engine.Position {
	t.Helper()
	return engine.Position(db.Value(t, `SELECT pg_current_wal_lsn()`))
}

// reached waits until the slot is confirmed up to a position.
func reached(t *testing.T, db *testpg.DB, p engine.Position) {
	t.Helper()
	eventually(t, fmt.Sprintf("the slot is confirmed up to %s", p), func() bool { return engine.CompareLSN(confirmed(t, db), p) >= 0 })
}

func (n *node) logged(text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Contains(n.logs.String(), text)
}

// again starts a node over the state of one that has ended, as another process.
func (n *node) again() *node {
	n.t.Helper()
	src, err := New(n.src.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	return startSource(n.t, src, n.model)
}

// Killed after the baseline was sent and before it was durable, and after it was
// and before the slot was made permanent: the next start takes one baseline, and
// no slot is left behind.
func TestCaseP02(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			db := testpg.NewDB(t)
			db.Exec(t, createT, `INSERT INTO t SELECT i, i, 'x' FROM generate_series(1,1000) i`)
			cmd := exec.Command(os.Args[0], "-test.run=^TestChildP02$")
			cmd.Env = append(os.Environ(), "CHILD_P02="+when, "CHILD_DB="+db.ConnString, "CHILD_SLOT=slot_"+db.Name)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for lines.Scan() && lines.Text() != when {
			}
			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if got := db.Value(t, `SELECT count(*) FROM pg_replication_slots WHERE database=current_database() AND NOT temporary`); got != "0" {
				t.Fatalf("%s permanent slots without a baseline that is durable", got)
			}
			db.Exec(t, `UPDATE t SET n=0 WHERE id%2=0`, `DELETE FROM t WHERE id%3=0`)
			src, err := New(permanent(db))
			if err != nil {
				t.Fatal(err)
			}
			m := &model{durable: true}
			if when == "after" { // what was durable is there
				m.cursor, m.tables, m.schemas = "0/1", map[engine.TableName]map[string]modelRow{}, map[engine.TableName]*engine.Schema{}
			}
			n := startSource(t, src, m)
			n.converges(db, "t")
			if got := n.baselines(); got != 1 {
				t.Errorf("%d baselines, want 1", got)
			}
			db.Exec(t, `INSERT INTO t VALUES (-1,0,'streamed')`)
			n.converges(db, "t")
			if got := db.Value(t, `SELECT string_agg(slot_name||' '||temporary, ',') FROM pg_replication_slots WHERE database=current_database()`); got != n.src.slot+" false" {
				t.Errorf("slots: %s", got)
			}
		})
	}
}

// TestChildP02 is the process that is killed.
func TestChildP02(t *testing.T) {
	when := os.Getenv("CHILD_P02")
	if when == "" {
		t.Skip("started by TestCaseP02")
	}
	src, err := New(Config{ConnString: os.Getenv("CHILD_DB"), Tables: names("t"), Slot: os.Getenv("CHILD_SLOT"), Permanent: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := src.Init(ctx, engine.Env{NodeID: "child", Source: "p02", Schemas: engine.NewSchemaSet()}); err != nil {
		t.Fatal(err)
	}
	_ = src.Baseline(ctx, &stuckSink{model: &model{src: src, durable: true}, when: when})
}

// stuckSink never returns from the commit of a baseline.
type stuckSink struct {
	*model
	when string
}

type stuckWriter struct {
	engine.BaselineWriter
	when string
}

func (s *stuckSink) Baseline(ctx context.Context, spec engine.BaselineSpec) (engine.BaselineWriter, error) {
	w, err := s.model.Baseline(ctx, spec)
	return &stuckWriter{w, s.when}, err
}

func (w *stuckWriter) Commit(ctx context.Context) error {
	if w.when == "after" {
		if err := w.BaselineWriter.Commit(ctx); err != nil {
			return err
		}
	}
	fmt.Println(w.when)
	select {}
}

// A baseline that takes longer than every timeout of the server.
func TestCaseP03(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t SELECT i, i, repeat('x', 1000) FROM generate_series(1,2000) i`)
		for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "wal_sender_timeout", "tcp_user_timeout"} {
			db.Exec(t, fmt.Sprintf("ALTER ROLE postgres IN DATABASE %s SET %s='1s'", db.Name, name))
		}
		cfg := permanent(db)
		cfg.ping = 500 * time.Millisecond
		n := start(t, cfg, durable, func(m *model) { m.inBaseline = func() { time.Sleep(5 * time.Second) } })
		n.converges(db, "t")
		db.Exec(t, `INSERT INTO t VALUES (-1,0,'streamed')`)
		n.converges(db, "t")
		if n.baselines() != 1 || n.sawReport(engine.ReasonDisconnected) {
			t.Errorf("%d baselines, reports %v", n.baselines(), n.reports)
		}
	})
}

// Statuses that are sent before anything is durable confirm nothing.
func TestCaseP08(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET wal_sender_timeout='600ms'")
		n := start(t, permanent(db)) // it never says that anything is durable
		n.ready()
		walsender(t, db)
		base, pid := confirmed(t, db), walsender(t, db)
		db.Exec(t, `INSERT INTO t SELECT generate_series(1,1000), 0, 'x'`)
		n.converges(db, "t")
		time.Sleep(2 * time.Second) // some ten statuses
		row := db.Query(t, `SELECT r.write_lsn, r.flush_lsn, r.replay_lsn FROM pg_stat_replication r WHERE r.pid=`+pid)
		if len(row) != 1 || engine.Position(*row[0][1]) != base || engine.Position(*row[0][2]) != base || engine.CompareLSN(engine.Position(*row[0][0]), n.position()) < 0 {
			t.Errorf("the server was told %v; the baseline is at %s, the node at %s", row, base, n.position())
		}
		if got := confirmed(t, db); got != base {
			t.Errorf("the slot is confirmed up to %s, the baseline is at %s", got, base)
		}
	})
}

// The table is idle and the rest of the database busy: the slot keeps no WAL.
// While something is in flight it stays where it is.
func TestCaseP09(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{})
	db := s.NewDB(t)
	db.Exec(t, createT, `CREATE TABLE other (id int, b text)`)
	var held atomic.Bool
	release := make(chan struct{})
	n := start(t, permanent(db), durable, func(m *model) {
		m.hold = func(ctx context.Context) error {
			if !held.Load() {
				return nil
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	})
	n.ready()
	walsender(t, db)
	busy := func() {
		db.Exec(t, `INSERT INTO other SELECT i, repeat('y', 1000) FROM generate_series(1,20000) i`, `SELECT pg_switch_wal()`, `CHECKPOINT`)
	}
	var most int64
	for range 6 {
		busy()
		mark := current(t, db)
		reached(t, db, mark)
		// Its restart_lsn follows with the next word of running transactions.
		eventually(t, "little is retained", func() bool {
			db.Exec(t, `CHECKPOINT`, `INSERT INTO other VALUES (0, 'z')`)
			return n.src.Slot().At.After(time.Now().Add(-time.Second)) && n.src.Slot().RetainedBytes < 8<<20
		})
		most = max(most, n.src.Slot().RetainedBytes)
	}
	if written := db.Value(t, `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint/1000000 > 100`); written != "t" {
		t.Error("too little was written to tell")
	}
	t.Logf("at most %d bytes retained", most)
	if st := n.src.Slot(); !st.Exists || st.Temporary || st.WALStatus != "reserved" || st.Holder != "" || st.LimitBytes != -1 || st.SafeBytes != -1 || st.Name != n.src.slot {
		t.Errorf("the slot is described as %+v", st)
	}
	held.Store(true)
	db.Exec(t, `INSERT INTO t VALUES (1,1,'held')`)
	commit := engine.Position(db.Value(t, `SELECT pg_current_wal_insert_lsn()`)) // it need not be written yet
	busy()
	time.Sleep(time.Second)
	if got := confirmed(t, db); engine.CompareLSN(got, commit) >= 0 {
		t.Errorf("confirmed %s while a transaction that ends before %s is held", got, commit)
	}
	close(release)
	held.Store(false)
	n.converges(db, "t")
	reached(t, db, current(t, db))
	if n.baselines() != 1 || len(n.model.txs) != 1 || n.model.advanced == 0 {
		t.Errorf("%d baselines, %d transactions, advanced %d times", n.baselines(), len(n.model.txs), n.model.advanced)
	}
	n.stop()
	n = n.again() // it resumes at a position that is no commit
	db.Exec(t, `INSERT INTO t VALUES (2,2,'after')`)
	n.converges(db, "t")
	if n.baselines() != 1 || len(n.model.txs) != 2 {
		t.Errorf("after a restart: %d baselines, %d transactions", n.baselines(), len(n.model.txs))
	}
}

// What was applied when the node ended is confirmed, and not sent again, also by
// a run that lasts a moment.
func TestCaseP10(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		n := start(t, permanent(db), durable)
		n.ready()
		for i := range 3 {
			walsender(t, db)
			db.Exec(t, fmt.Sprintf(`INSERT INTO t VALUES (%d,0,'x')`, i))
			n.converges(db, "t")
			at := n.position()
			n.stop()
			if got := confirmed(t, db); engine.CompareLSN(got, at) < 0 {
				t.Errorf("run %d: confirmed %s, applied %s", i, got, at)
			}
			n = n.again()
		}
		walsender(t, db)
		if n.baselines() != 1 || len(n.model.txs) != 3 {
			t.Errorf("%d baselines, %d transactions", n.baselines(), len(n.model.txs))
		}
	})
}

// proxy passes connections on, until it freezes those that there are: it keeps
// them open and moves nothing.
type proxy struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	conns    []net.Conn
	frozen   chan struct{} // of the present generation
	wg       sync.WaitGroup
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to, frozen: make(chan struct{})}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.serve(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) serve(c net.Conn) {
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = c.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, c, up)
	frozen := p.frozen
	p.mu.Unlock()
	pass := func(to, from net.Conn) {
		defer p.wg.Done()
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			select {
			case <-frozen:
				return // and closes nothing
			default:
			}
			if err != nil {
				_ = to.Close()
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				_ = from.Close()
				return
			}
		}
	}
	p.wg.Add(2)
	go pass(up, c)
	go pass(c, up)
}

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.frozen)
	p.frozen = make(chan struct{})
}

// The network swallows everything and closes nothing.
func TestCaseP13(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET wal_sender_timeout='2s'")
		real := fmt.Sprintf("127.0.0.1:%d", db.Server.Port)
		p := startProxy(t, real)
		cfg := permanent(db)
		cfg.ConnString = strings.Replace(db.ConnString, real, p.listener.Addr().String(), 1)
		cfg.silence = 3 * time.Second
		n := start(t, cfg, durable)
		n.ready()
		pid := walsender(t, db)
		p.freeze()
		began := time.Now()
		db.Exec(t, `INSERT INTO t VALUES (1,1,'missed')`)
		eventually(t, "it is noticed", func() bool { return n.sawReport(engine.ReasonDisconnected) })
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it was noticed after %s", took)
		}
		n.converges(db, "t")
		if got := walsender(t, db); got == pid || n.baselines() != 1 || len(n.model.txs) != 1 {
			t.Errorf("walsender %s, was %s; %d baselines, %d transactions", got, pid, n.baselines(), len(n.model.txs))
		}
	})
}

// The server stops in fast mode with a slot that stays: promptly, since all it
// has sent is confirmed, and the node goes on without a baseline.
func TestCaseP14Permanent(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{})
	db := s.NewDB(t)
	db.Exec(t, createT, `CREATE TABLE other (id int)`)
	cfg := permanent(db)
	cfg.advance = time.Hour // only the server's asking counts
	n := start(t, cfg, durable)
	n.ready()
	walsender(t, db)
	db.Exec(t, `INSERT INTO other SELECT generate_series(1,1000)`)
	began := time.Now()
	if err := s.Stop(t.Context(), testpg.Fast); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the server took %s to stop", took)
	}
	eventually(t, "the loss is reported", func() bool { return n.sawReport(engine.ReasonDisconnected) })
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `INSERT INTO t VALUES (1,1,'after')`)
	n.converges(db, "t")
	if n.baselines() != 1 {
		t.Errorf("%d baselines, want 1", n.baselines())
	}
}

// consume reads the slot as another client would, until the returned function is
// called.
func consume(t *testing.T, db *testpg.DB, slot, publication string) (stop func()) {
	t.Helper()
	c, err := pgconn.Connect(t.Context(), db.ConnString+"&replication=database&application_name=intruder")
	if err != nil {
		t.Fatal(err)
	}
	sql := fmt.Sprintf(`START_REPLICATION SLOT %s LOGICAL 0/0 (proto_version '1', publication_names '"%s"')`, slot, publication)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Exec(ctx, sql).ReadAll()
	}()
	eventually(t, "the slot is in use", func() bool {
		return db.Value(t, `SELECT active FROM pg_replication_slots WHERE slot_name='`+slot+`'`) == "t"
	})
	return func() {
		cancel()
		<-done
		_ = c.Close(context.Background())
	}
}

// The slot is in use: for a moment, as after a kill, or by one who stays.
func TestCaseP15(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		cfg := permanent(db)
		cfg.Publication = "p_" + db.Name
		cfg.patience = time.Second
		n := start(t, cfg, durable)
		n.ready()
		walsender(t, db)
		n.stop()
		stop := consume(t, db, n.src.slot, cfg.Publication)
		n = n.again()
		eventually(t, "the holder is named", func() bool {
			return n.sawReport("ended") && n.logged(`is in use by process`) && n.logged(`application "intruder"`)
		})
		if st := n.src.Slot(); !strings.Contains(st.Holder, "intruder") {
			t.Errorf("the slot is described as %+v", st)
		}
		eventually(t, "the error names the reason", func() bool { // it is tried again all the time
			n.mu.Lock()
			defer n.mu.Unlock()
			var se *engine.SourceError
			return errors.As(n.lastErr, &se) && se.Reason == engine.ReasonSlotBusy && !se.Permanent
		})
		stop()
		db.Exec(t, `INSERT INTO t VALUES (1,1,'x')`)
		n.converges(db, "t")
		// A moment is waited for, and nothing is said.
		n.stop()
		stop = consume(t, db, n.src.slot, cfg.Publication)
		n.src.cfg.patience = 30 * time.Second
		n = n.again()
		time.Sleep(time.Second)
		stop()
		db.Exec(t, `INSERT INTO t VALUES (2,2,'x')`)
		n.converges(db, "t")
		if n.logged("in use by") || n.baselines() != 1 {
			t.Errorf("%d baselines; it says %s", n.baselines(), n.logs.String())
		}
		// Somebody takes it while the node streams.
		n.src.cfg.patience = time.Second
		pid := walsender(t, db)
		db.Exec(t, `SELECT pg_terminate_backend(`+pid+`)`)
		n.converges(db, "t")
	})
}

// The slot was dropped and made again while the node was away.
func TestCaseP16(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x')`)
		n := start(t, permanent(db), durable)
		n.converges(db, "t")
		walsender(t, db)
		n.stop()
		db.Exec(t, `SELECT pg_drop_replication_slot('`+n.src.slot+`')`, `DELETE FROM t`, `INSERT INTO t VALUES (2,2,'missed')`,
			`SELECT pg_create_logical_replication_slot('`+n.src.slot+`', 'pgoutput')`, `INSERT INTO t VALUES (3,3,'sent')`)
		n = n.again()
		n.converges(db, "t")
		db.Exec(t, `INSERT INTO t VALUES (4,4,'streamed')`)
		n.converges(db, "t")
		if n.baselines() != 2 || !n.logged("past our cursor") || n.model.epochs != 1 {
			t.Errorf("%d baselines in %d epochs", n.baselines(), n.model.epochs)
		}
	})
}

// The server has given the slot up since it kept too much WAL.
func TestCaseP17(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"away", "held up"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			s := testpg.Start(t, testpg.Options{Settings: map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}})
			db := s.NewDB(t)
			db.Exec(t, createT, `CREATE TABLE other (id int, b text)`, `INSERT INTO t VALUES (1,1,'x')`)
			var held atomic.Bool
			release := make(chan struct{})
			n := start(t, permanent(db), durable, func(m *model) {
				m.hold = func(ctx context.Context) error {
					if held.Load() {
						select {
						case <-release:
						case <-ctx.Done():
						}
					}
					return ctx.Err()
				}
			})
			n.converges(db, "t")
			walsender(t, db)
			if when == "away" {
				n.stop()
			} else {
				held.Store(true)
				db.Exec(t, `INSERT INTO t VALUES (2,2,'held')`)
			}
			eventually(t, "the slot is lost", func() bool {
				db.Exec(t, `INSERT INTO other SELECT i, repeat('y', 1000) FROM generate_series(1,20000) i`, `SELECT pg_switch_wal()`, `CHECKPOINT`)
				return db.Value(t, `SELECT coalesce(max(wal_status),'gone') FROM pg_replication_slots WHERE slot_name='`+n.src.slot+`'`) == "lost"
			})
			db.Exec(t, `UPDATE t SET n=5`)
			if when == "away" {
				n = n.again()
			} else {
				held.Store(false)
				close(release)
			}
			eventually(t, "a second baseline", func() bool { return n.baselines() == 2 })
			n.converges(db, "t")
			db.Exec(t, `INSERT INTO t VALUES (9,9,'streamed')`)
			n.converges(db, "t")
			if n.baselines() != 2 || !n.logged("was invalidated: it needed WAL that the server has removed (max_slot_wal_keep_size is 1 MB)") {
				t.Errorf("%d baselines", n.baselines())
			}
			eventually(t, "the new slot is told", func() bool { return n.src.Slot().Exists && n.src.Slot().Invalid == "" })
			if st := n.src.Slot(); st.LimitBytes != 1<<20 || st.SafeBytes < 0 {
				t.Errorf("the slot is described as %+v", st)
			}
		})
	}
}

// The publication was dropped and made again: what is between cannot be decoded.
func TestCaseP19(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		for _, mine := range []bool{false, true} {
			t.Run(fmt.Sprintf("managed=%t", !mine), func(t *testing.T) {
				table := fmt.Sprintf("t%t", mine)
				pub := "pub_" + table
				db.Exec(t, `CREATE TABLE `+table+` (id int PRIMARY KEY, n int, b text)`)
				cfg := permanent(db)
				cfg.Tables, cfg.Publication, cfg.AdoptOnly, cfg.Slot = names(table), pub, mine, "slot_"+db.Name+"_"+table
				if mine {
					db.Exec(t, `CREATE PUBLICATION `+pub+` FOR TABLE `+table)
				}
				n := start(t, cfg, durable)
				n.ready()
				walsender(t, db)
				db.Exec(t, `DROP PUBLICATION `+pub, `INSERT INTO `+table+` VALUES (1,1,'between')`, `CREATE PUBLICATION `+pub+` FOR TABLE `+table, `INSERT INTO `+table+` VALUES (2,2,'after')`)
				n.converges(db, table)
				db.Exec(t, `INSERT INTO `+table+` VALUES (3,3,'streamed')`)
				n.converges(db, table)
				if n.baselines() != 2 {
					t.Errorf("%d baselines, want 2", n.baselines())
				}
				n.stop()
			})
		}
	})
}

// A slot that is long in the making says what it waits for.
func TestSlotWaitsForTransaction(t *testing.T) {
	t.Parallel()
	db := testpg.Start(t, testpg.Options{}).NewDB(t)
	db.Exec(t, createT, `CREATE PUBLICATION p FOR TABLE t`)
	c, err := db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(t.Context(), `SET application_name='sleeper'; BEGIN; INSERT INTO t VALUES (1,1,'open')`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	cfg := permanent(db)
	cfg.Publication = "p"
	n := start(t, cfg, durable)
	eventually(t, "the wait is explained", func() bool { return n.logged(`the oldest is that of process`) && n.logged(`"sleeper"`) })
	if _, err := c.Exec(t.Context(), `COMMIT`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	n.converges(db, "t")
}
