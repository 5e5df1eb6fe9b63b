package postgres

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// counter is a sink that only counts.
type counter struct {
	src           *Source
	rows, changes atomic.Int64
	calls         atomic.Int64
	ready         chan engine.Position
}

func (c *counter) Baseline(_ context.Context, spec engine.BaselineSpec) (engine.BaselineWriter, error) {
	return &counterBaseline{c, spec.At}, nil
}

type counterBaseline struct {
	c  *counter
	at engine.Position
}

func (*counterBaseline) Apply([]engine.Transaction) error { return nil }
func (b *counterBaseline) Rows(_ engine.TableName, rs []engine.Record) error {
	b.c.rows.Add(int64(len(rs)))
	return nil
}
func (b *counterBaseline) Commit(context.Context) error { b.c.ready <- b.at; return nil }
func (b *counterBaseline) Abort()                       {}

func (c *counter) Apply(_ context.Context, txs []engine.Transaction) error {
	n := 0
	for i := range txs {
		n += len(txs[i].Changes)
		for txs[i].More != nil {
			run, err := txs[i].More()
			if err != nil {
				return err
			}
			if len(run) == 0 {
				break
			}
			n += len(run)
		}
	}
	c.calls.Add(1)
	c.src.Ack(engine.Cursor{Position: txs[len(txs)-1].Position}, false)
	c.changes.Add(int64(n))
	return nil
}
func (c *counter) ApplyBlocks(context.Context, engine.CursorKey, []*engine.Block) error { return nil }
func (c *counter) Progress(context.Context, engine.CursorKey, engine.Position, engine.Position, engine.Time) error {
	return nil
}
func (c *counter) Head(engine.LogID, engine.Head) {}
func (c *counter) Carry(engine.LogID, engine.Comparator, []string, []engine.TableName) error {
	return nil
}

// ownCPU is what this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuOf is what another process has used, from /proc/PID/stat.
func cpuOf(b *testing.B, pid string) time.Duration {
	b.Helper()
	raw, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		b.Skip("no /proc: ", err)
	}
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// BenchmarkSource measures the CPU time of the source against that of the
// walsender it reads from, which does not depend on how busy the machine is.
func BenchmarkSource(b *testing.B) {
	if testing.Short() {
		b.Skip("needs a server")
	}
	s, err := testpg.Run(context.Background(), testpg.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const rows = 200_000
	for _, perTx := range []int{rows, 1000, 1} {
		b.Run(fmt.Sprintf("tx=%d", perTx), func(b *testing.B) {
			for b.Loop() {
				benchStream(b, s, rows, perTx)
			}
		})
	}
}

func benchStream(b *testing.B, s *testpg.Server, rows, perTx int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := s.CreateDB(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Drop(context.Background()) }()
	if err := db.ExecContext(ctx, `CREATE TABLE t (id bigint PRIMARY KEY, a int, b text, c timestamptz, d numeric, e text, f text, g bool)`,
		`CREATE PROCEDURE load(n int, per int) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 0 .. n/per - 1 LOOP
		INSERT INTO t SELECT i*per+j, 42, 'some text of a middling length, as they are', now(), 123.45, NULL, 'another text that is a little longer than the first one', true FROM generate_series(1, per) j;
		COMMIT; END LOOP; END $$`, `INSERT INTO t SELECT -i, 42, 'some text of a middling length, as they are', now(), 123.45, NULL, 'another text that is a little longer than the first one', true FROM generate_series(1, 200000) i`); err != nil {
		b.Fatal(err)
	}
	src, err := New(Config{ConnString: db.ConnString, Tables: names("t")})
	if err != nil {
		b.Fatal(err)
	}
	sink := &counter{src: src, ready: make(chan engine.Position, 1)}
	if _, err := src.Init(ctx, engine.Env{NodeID: "bench", Source: "bench", Schemas: engine.NewSchemaSet()}); err != nil {
		b.Fatal(err)
	}
	own := ownCPU()
	if err := src.Baseline(ctx, sink); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((ownCPU()-own).Nanoseconds())/float64(sink.rows.Load()), "baseline-cpu-ns/row")
	at := <-sink.ready
	done := make(chan error, 1)
	go func() { done <- src.Stream(ctx, engine.Cursors{{}: {Position: at}}, sink) }()
	var pid string
	for pid == "" {
		r, err := db.QueryContext(ctx, `SELECT r.pid FROM pg_stat_replication r JOIN pg_stat_activity a USING (pid) WHERE a.datname=current_database() AND r.state='streaming'`)
		if err != nil {
			b.Fatal(err)
		}
		if len(r) == 1 {
			pid = *r[0][0]
		}
	}
	own, theirs := ownCPU(), cpuOf(b, pid)
	if err := db.ExecContext(ctx, fmt.Sprintf(`CALL load(%d, %d)`, rows, perTx)); err != nil {
		b.Fatal(err)
	}
	for sink.changes.Load() < int64(rows) {
		select {
		case err := <-done:
			b.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	own, theirs = ownCPU()-own, cpuOf(b, pid)-theirs
	b.ReportMetric(float64(own.Nanoseconds())/float64(rows), "node-cpu-ns/row")
	b.ReportMetric(float64(theirs.Nanoseconds())/float64(rows), "walsender-cpu-ns/row")
	b.ReportMetric(float64(own)/float64(theirs), "node/walsender")
	b.ReportMetric(float64(rows)/float64(sink.calls.Load()), "changes/apply")
	cancel()
	<-done
}
