// Package soak runs a random workload through a topology of real processes that
// are killed, stopped and cut off at random, and compares everything at the end.
package soak

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func TestMain(m *testing.M) {
	os.Exit(testpg.Main(m, testpg.Options{Settings: map[string]string{
		"logical_decoding_work_mem": "64kB", "wal_sender_timeout": "10s", "timezone": "Asia/Kolkata",
	}}))
}

// replay is a reader's change stream, put together again.
type replay struct {
	mu   sync.Mutex
	rows map[engine.TableName]map[string]engine.Record
}

func (r *replay) apply(old, fresh *engine.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := fresh
	if rec == nil {
		rec = old
	}
	rows := r.rows[rec.Schema.Table]
	if rows == nil {
		rows = map[string]engine.Record{}
		r.rows[rec.Schema.Table] = rows
	}
	if fresh == nil {
		delete(rows, string(rec.Key))
		return
	}
	c := *fresh
	c.Key, c.Row = slices.Clone(fresh.Key), slices.Clone(fresh.Row)
	rows[string(c.Key)] = c
}

func (r *replay) all(table engine.TableName) (rows []engine.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.rows[table] {
		rows = append(rows, rec)
	}
	return rows
}

// TestRandomWorkload runs for SOAK, a duration (default 1m).
func TestRandomWorkload(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL, and a minute")
	}
	length := time.Minute
	if s := os.Getenv("SOAK"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatalf("SOAK must be a duration such as 10m: %v", err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SOAK_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("SOAK_SEED must be a number: %v", err)
		}
	}
	t.Logf("SOAK_SEED=%d", seed)
	ctx := t.Context()
	db := testpg.NewDB(t)
	if err := create(ctx, db); err != nil {
		t.Fatal(err)
	}
	top := newTopology(t, db)
	reader, stream := top.reader(t, top.edge, "soak/reader")
	w := &workload{db: db, seed: seed}
	wctx, stop := context.WithCancel(ctx)
	defer stop()
	w.start(wctx, 3)
	top.disturb(t, rand.New(rand.NewPCG(seed, 1)), length)
	stop()
	if err := w.wait(); err != nil {
		t.Fatal(err)
	}
	// PostgreSQL tells of a change of shape with the next change of a row, so
	// every table has one last.
	if err := touch(ctx, db); err != nil {
		t.Fatal(err)
	}
	top.heal(t)
	t.Logf("%d transactions, %d changes of shape; %v", w.done.Load(), w.ddl.Load(), top.done)
	want := map[engine.TableName][]string{}
	for _, table := range tables {
		want[table] = source(t, db, table)
	}
	for _, n := range top.nodes {
		c, _ := top.reader(t, n, "soak/look-"+filepath.Base(n.ID))
		same(t, n.ID, c.All, c.Columns, want)
	}
	same(t, "the reader", reader.All, reader.Columns, want)
	same(t, "the reader's changes", func(table engine.TableName) ([]engine.Record, error) { return stream.all(table), nil }, reader.Columns, want)
	for _, n := range top.nodes {
		if n.Ended() {
			t.Errorf("node %s has ended by itself", n.ID)
		}
	}
	if t.Failed() {
		for _, r := range db.Query(t, `SELECT concat_ws(' ', pid, backend_type, application_name, state, wait_event, now() - xact_start, left(query, 120)) FROM pg_stat_activity WHERE datname IS NOT NULL`) {
			t.Log(*r[0])
		}
	}
}

// topology is a root with a store on disk, a node below it that has none, and
// two edges; proxies stand between.
type topology struct {
	nodes   []*testnode.Node
	edge    *testnode.Node
	proxies []*testnode.Proxy
	db      *testpg.DB
	done    map[string]int
}

func newTopology(t *testing.T, db *testpg.DB) *topology {
	t.Helper()
	dir := t.TempDir()
	bin, err := testnode.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	top := &topology{db: db, done: map[string]int{}}
	proxy := func(target string) string {
		p, err := testnode.NewProxy(target)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		top.proxies = append(top.proxies, p)
		return p.Address
	}
	pebble := func(id string) nodeconfig.Storage {
		return nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(dir, id, "store")}
	}
	start := func(id string, st nodeconfig.Storage, src nodeconfig.Source, parents ...*testnode.Node) *testnode.Node {
		o := testnode.Options{Binary: bin, Dir: filepath.Join(dir, id), ID: "soak/" + id, Storage: st, Source: src, Parents: parents}
		if len(parents) > 0 {
			o.Address = proxy(parents[0].Repl)
		}
		n, err := testnode.Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			n.Stop()
			if t.Failed() {
				log, _ := os.ReadFile(n.Log())
				t.Logf("log of node %s:\n%s", n.ID, log[max(0, len(log)-5_000):])
			}
		})
		top.nodes = append(top.nodes, n)
		return n
	}
	src, err := testnode.Postgres(db, dir, proxy(net.JoinHostPort("127.0.0.1", strconv.Itoa(db.Server.Port))), tables...)
	if err != nil {
		t.Fatal(err)
	}
	up := func() nodeconfig.Source { return nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}} }
	root := start("root", pebble("root"), src)
	if err := root.WaitReady(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	mid := start("mid", nodeconfig.Storage{}, up(), root)
	top.edge = start("edge", pebble("edge"), up(), mid, root)
	start("edge2", nodeconfig.Storage{}, up(), mid)
	for _, n := range top.nodes {
		if err := n.WaitReady(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

// reader returns a client of a node that has all its tables, and what its
// change stream amounts to.
func (top *topology) reader(t *testing.T, n *testnode.Node, id string) (*client.Client, *replay) {
	t.Helper()
	c, err := client.New(client.WithUpstreams(n.Repl), client.WithNodeID(id), client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r := &replay{rows: map[engine.TableName]map[string]engine.Record{}}
	c.Listen(r.apply)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.AwaitReady(ctx); err != nil {
		t.Fatalf("a reader of node %s: %v", n.ID, err)
	}
	return c, r
}

// disturb makes something go wrong every second or so.
func (top *topology) disturb(t *testing.T, r *rand.Rand, length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end); {
		time.Sleep(time.Duration(200+r.IntN(1800)) * time.Millisecond)
		n, p := top.nodes[r.IntN(len(top.nodes))], top.proxies[r.IntN(len(top.proxies))]
		pause := time.Duration(r.IntN(1500)) * time.Millisecond
		switch k := r.IntN(6); k {
		case 0:
			top.done["kills"]++
			n.Kill()
			time.Sleep(pause)
			if err := n.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 1:
			top.done["restarts"]++
			n.Stop()
			time.Sleep(pause)
			if err := n.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 2:
			top.done["freezes"]++
			_ = n.Signal(syscall.SIGSTOP)
			time.Sleep(pause)
			_ = n.Signal(syscall.SIGCONT)
		case 3:
			top.done["hangs"]++
			p.Hang()
			time.Sleep(pause)
			p.Flow()
		case 4:
			top.done["walsender ends"]++
			if err := top.db.ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_replication"); err != nil {
				t.Fatal(err)
			}
		default:
			top.done["cuts"]++
			p.Cut()
		}
	}
}

// heal waits until every node is ready again.
func (top *topology) heal(t *testing.T) {
	t.Helper()
	for _, n := range top.nodes {
		if err := n.WaitReady(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
}

// source returns a table's rows as PostgreSQL prints them, each column with its
// name.
func source(t *testing.T, db *testpg.DB, table engine.TableName) []string {
	t.Helper()
	var columns []string
	for _, c := range db.Query(t, fmt.Sprintf("SELECT attname FROM pg_attribute WHERE attrelid = '%s'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname COLLATE \"C\"",
		strings.ReplaceAll(quoted(table), "'", "''"))) {
		columns = append(columns, *c[0])
	}
	var list []string
	for _, c := range columns {
		list = append(list, testpg.QuoteIdent(c)+"::text")
	}
	var rows []string
	for _, r := range db.Query(t, "SELECT "+strings.Join(list, ", ")+" FROM "+quoted(table)) {
		var b strings.Builder
		for i, v := range r {
			if v == nil {
				fmt.Fprintf(&b, "%s=∅ ", columns[i])
			} else {
				fmt.Fprintf(&b, "%s=%q ", columns[i], *v)
			}
		}
		rows = append(rows, b.String())
	}
	slices.Sort(rows)
	return rows
}

// text returns rows as source does, in the newest shape of their table.
func text(rows []engine.Record, columns []engine.Column) ([]string, error) {
	columns = slices.Clone(columns)
	slices.SortFunc(columns, func(a, b engine.Column) int { return strings.Compare(a.Name, b.Name) })
	out := make([]string, 0, len(rows))
	for _, r := range rows {
		at := map[int16]engine.RowColumn{}
		for i, v := range r.Row.Columns() {
			at[r.Schema.Columns[i].Number] = v
		}
		var b strings.Builder
		for _, c := range columns {
			switch v, ok := at[c.Number]; {
			case !ok || v.State == engine.Null:
				fmt.Fprintf(&b, "%s=∅ ", c.Name)
			case v.State == engine.Present:
				fmt.Fprintf(&b, "%s=%q ", c.Name, v.Value)
			default:
				return nil, fmt.Errorf("%s: a column that is neither a value nor null", r.Schema.Table)
			}
		}
		out = append(out, b.String())
	}
	slices.Sort(out)
	return out, nil
}

// patience is how long the nodes may take to have everything in the end, on a
// machine with much else to do.
const patience = 8 * time.Minute

// same waits until somebody has the source's rows. If somebody has not got them, the
// others are not waited for.
func same(t *testing.T, who string, all func(engine.TableName) ([]engine.Record, error), columns func() map[engine.TableName][]engine.Column, want map[engine.TableName][]string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, table := range tables {
		for {
			rows, err := all(table)
			if err != nil {
				t.Fatal(err)
			}
			got, err := text(rows, columns()[table])
			if err != nil {
				t.Fatal(err)
			}
			if slices.Equal(got, want[table]) {
				break
			}
			if t.Failed() || time.Now().After(deadline) {
				t.Errorf("%s: %s has %d rows, the source %d:\n%s", table, who, len(got), len(want[table]), testnode.Difference(got, want[table]))
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}
