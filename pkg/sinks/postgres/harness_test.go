package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/pgsession"
	"github.com/tributary-dev/tributary/pkg/sinks"
	sinkpg "github.com/tributary-dev/tributary/pkg/sinks/postgres"
	source "github.com/tributary-dev/tributary/pkg/sources/postgres"
)

func TestMain(m *testing.M) {
	os.Exit(testpg.Main(m, testpg.Options{}))
}

// rig is a database, a node that reads it, and a sink to another database.
type rig struct {
	t        *testing.T
	from, to *testpg.DB
	tables   []engine.TableName
	cfg      sinkpg.Config
	onReject sinks.OnReject
	most     int

	dir string // of a durable store, empty: in memory

	store  engine.Store
	source *source.Source
	engine *engine.Engine
	sink   *sinks.Sink
	end    func() // of the sink alone
	stop   func() // of all
}

// newRig makes the databases; the source's has what the statements make.
func newRig(t *testing.T, tables string, ddl ...string) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{t: t, from: testpg.NewDB(t), to: testpg.NewDB(t), stop: func() {}, end: func() {}}
	r.from.Exec(t, ddl...)
	for _, n := range strings.Fields(tables) {
		r.tables = append(r.tables, engine.TableName{Schema: "public", Name: n})
	}
	r.cfg = sinkpg.Config{Session: pgsession.Config{ConnString: r.to.ConnString}, Sink: "test/sink", CreateTables: true}
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) logger() *slog.Logger { return slog.New(slog.NewTextHandler(r.t.Output(), nil)) }

// startNode starts the node alone.
func (r *rig) startNode() {
	r.t.Helper()
	r.store = store.NewMemory(store.MemoryOptions{})
	if r.dir != "" {
		var err error
		if r.store, err = store.OpenPebble(store.PebbleOptions{Dir: r.dir}); err != nil {
			r.t.Fatal(err)
		}
	}
	r.engine = engine.New(engine.Options{NodeID: "test", Store: r.store, Logger: r.logger()})
	src, err := source.New(source.Config{ConnString: r.from.ConnString, Tables: r.tables, Slot: "slot_" + r.from.Name, Publication: "pub", Permanent: r.dir != ""})
	if err != nil {
		r.t.Fatal(err)
	}
	r.source = src
	r.engine.AddSource("db", src, engine.Keep{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.engine.Run(ctx) })
	r.stop = func() {
		r.end()
		cancel()
		wg.Wait()
		_ = r.store.Close()
		r.stop = func() {}
	}
}

func (r *rig) startSink() {
	r.t.Helper()
	target, err := sinkpg.New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.sink, err = sinks.New(sinks.Config{
		Name: "sink", Host: r.engine, Store: r.store, Target: target, OnReject: r.onReject, MaxDeadLetters: r.most, Logger: r.logger(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.sink.Run(ctx) })
	r.end = func() {
		cancel()
		wg.Wait()
		r.end = func() {}
	}
}

func (r *rig) start() {
	r.t.Helper()
	r.startNode()
	r.startSink()
}

// restart ends the node with its sink, and starts both anew.
func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.start()
}

// equal waits until the target's tables are the source's, by the text of their
// values.
func (r *rig) equal(what string) {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		same, report := true, ""
		for _, n := range r.tables {
			q := fmt.Sprintf("SELECT %s FROM public.%s", r.columns(n), testpg.QuoteIdent(n.Name))
			want := r.from.Digest(r.t, q)
			got, err := r.to.DigestContext(r.t.Context(), q)
			if err != nil {
				got = err.Error()
			}
			if got != want {
				same = false
				report += fmt.Sprintf("%s: the source has %s, the target %s\n", n, want, got)
			}
		}
		if same {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: the target is not as the source:\n%ssink: %+v", what, report, r.sink.Status())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// columns lists the columns of the source's table.
func (r *rig) columns(n engine.TableName) string {
	var names []string
	for _, row := range r.from.Query(r.t, fmt.Sprintf(`SELECT attname FROM pg_attribute WHERE attrelid = 'public.%s'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, testpg.QuoteIdent(n.Name))) {
		names = append(names, testpg.QuoteIdent(*row[0]))
	}
	return strings.Join(names, ", ")
}

// until waits for a condition of the sink's status.
func (r *rig) until(what string, cond func(sinks.Status) bool) sinks.Status {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		st := r.sink.Status()
		if cond(st) {
			return st
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("waiting for %s: %+v", what, st)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
