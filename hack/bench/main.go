// Command bench measures the data path against the limits of the same run, on
// this machine: PostgreSQL's own decoding, and COPY. What it prints are ratios
// to these limits; the absolute figures are beside them, and vary with the
// machine and what else it does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

type bench struct {
	dir     string // scratch
	node    string // the node's binary
	rows    int
	txns    int
	readers int
	pg      *testpg.Server
	out     results
}

// results is bench/latest.json.
type results struct {
	When       time.Time `json:"when"`
	CPUs       int       `json:"cpus"`
	Go         string    `json:"go"`
	PostgreSQL string    `json:"postgresql"`
	Changes    int       `json:"changes"`
	RowBytes   float64   `json:"rowBytes"` // of a row as the node keeps it

	Decode   rate `json:"decode"`   // pg_recvlogical to nowhere
	Readers1 rate `json:"readers1"` // PostgreSQL → node → one reader
	ReadersN rate `json:"readersN"` // PostgreSQL → node → N readers
	N        int  `json:"n"`
	Copy     rate `json:"copy"`     // COPY TO STDOUT to nowhere
	Baseline rate `json:"baseline"` // a node's, from its first row to its commit

	LatencyHop1 latency `json:"latencyHop1"` // commit → reader at the first node
	LatencyHop2 latency `json:"latencyHop2"` // commit → reader at the node below it

	ResidentPerRow float64 `json:"residentPerRow"` // bytes of memory per row
	HeapPerRow     float64 `json:"heapPerRow"`     // of it, live Go heap

	Ratios ratios `json:"ratios"`
}

type rate struct {
	Seconds      float64 `json:"seconds"`
	PerSecond    float64 `json:"perSecond"`
	WalsenderCPU float64 `json:"walsenderCPU,omitempty"` // seconds
	NodeCPU      float64 `json:"nodeCPU,omitempty"`      // seconds
}

type latency struct {
	P50 float64 `json:"p50ms"`
	P99 float64 `json:"p99ms"`
	Max float64 `json:"maxms"`
	N   int     `json:"samples"`
}

type ratios struct {
	NodeCPUOverWalsender float64 `json:"nodeCPUOverWalsender"` // below 1: the node keeps the walsender's pace
	Readers1OverDecode   float64 `json:"readers1OverDecode"`
	ReadersNOverDecode   float64 `json:"readersNOverDecode"`
	BaselineOverCopy     float64 `json:"baselineOverCopy"`
	ResidentOverRow      float64 `json:"residentOverRow"`
	HeapOverRow          float64 `json:"heapOverRow"`
}

func main() {
	b := bench{}
	out := flag.String("out", "bench/latest.json", "file to write the results to")
	flag.StringVar(&b.node, "node", "", "node binary (default: built from ./cmd/node)")
	flag.IntVar(&b.rows, "changes", 500_000, "changes of each measurement")
	flag.IntVar(&b.txns, "transactions", 500, "transactions they come in")
	flag.IntVar(&b.readers, "readers", 100, "readers of the measurement with many")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, out string) error {
	var err error
	if b.dir, err = os.MkdirTemp("", "tributary-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.node == "" {
		b.node = filepath.Join(b.dir, "node")
		step("building the node")
		if o, err := exec.CommandContext(ctx, "go", "build", "-o", b.node, "./cmd/node").CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, o)
		}
	}
	step("starting PostgreSQL")
	b.pg, err = testpg.Run(ctx, testpg.Options{Settings: map[string]string{
		"wal_sender_timeout": "0", "max_wal_size": "16GB", "shared_buffers": "1GB",
		"autovacuum": "off", "synchronous_commit": "off", "checkpoint_timeout": "1h",
	}})
	if err != nil {
		return err
	}
	defer b.pg.Close()
	b.out = results{When: time.Now().UTC(), CPUs: runtime.NumCPU(), Go: runtime.Version(), Changes: b.rows, N: b.readers,
		PostgreSQL: fmt.Sprint(b.pg.Major)}
	for _, m := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"the limit: pg_recvlogical to nowhere", b.decode},
		{"PostgreSQL → node → 1 reader", func(ctx context.Context) error { return b.stream(ctx, 1, &b.out.Readers1) }},
		{fmt.Sprintf("PostgreSQL → node → %d readers", b.readers), func(ctx context.Context) error { return b.stream(ctx, b.readers, &b.out.ReadersN) }},
		{"the limit: COPY TO STDOUT, and a baseline", b.baseline},
		{"latency over two hops", b.latency},
	} {
		step(m.what)
		if err := m.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", m.what, err)
		}
	}
	b.ratios()
	b.print()
	text, err := json.MarshalIndent(b.out, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

func step(what string) { fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), what) }

func (b *bench) ratios() {
	o := &b.out
	o.Ratios = ratios{
		NodeCPUOverWalsender: o.Readers1.NodeCPU / o.Readers1.WalsenderCPU,
		Readers1OverDecode:   o.Readers1.PerSecond / o.Decode.PerSecond,
		ReadersNOverDecode:   o.ReadersN.PerSecond / o.Decode.PerSecond,
		BaselineOverCopy:     o.Baseline.PerSecond / o.Copy.PerSecond,
		ResidentOverRow:      o.ResidentPerRow / o.RowBytes,
		HeapOverRow:          o.HeapPerRow / o.RowBytes,
	}
}

func (b *bench) print() {
	o := &b.out
	fmt.Printf(`
%d changes in %d transactions, rows of %.0f bytes; PostgreSQL %s, %s, %d CPUs

                                        ratio   figures
node CPU / walsender CPU             %8.2f   %.2f s / %.2f s
changes/s, 1 reader / decoding       %8.2f   %.0f / %.0f
changes/s, %3d readers / decoding    %8.2f   %.0f / %.0f
baseline rows/s / COPY               %8.2f   %.0f / %.0f
memory per row / row (resident)      %8.2f   %.0f / %.0f bytes
memory per row / row (live heap)     %8.2f   %.0f / %.0f bytes
latency commit → reader, hop 1                  p50 %.2f ms, p99 %.2f ms
latency commit → reader, hop 2                  p50 %.2f ms, p99 %.2f ms
`,
		o.Changes, b.txns, o.RowBytes, o.PostgreSQL, o.Go, o.CPUs,
		o.Ratios.NodeCPUOverWalsender, o.Readers1.NodeCPU, o.Readers1.WalsenderCPU,
		o.Ratios.Readers1OverDecode, o.Readers1.PerSecond, o.Decode.PerSecond,
		o.N, o.Ratios.ReadersNOverDecode, o.ReadersN.PerSecond, o.Decode.PerSecond,
		o.Ratios.BaselineOverCopy, o.Baseline.PerSecond, o.Copy.PerSecond,
		o.Ratios.ResidentOverRow, o.ResidentPerRow, o.RowBytes,
		o.Ratios.HeapOverRow, o.HeapPerRow, o.RowBytes,
		o.LatencyHop1.P50, o.LatencyHop1.P99, o.LatencyHop2.P50, o.LatencyHop2.P99)
}

// database makes a database with the empty table t, published.
func (b *bench) database(ctx context.Context) (*testpg.DB, error) {
	db, err := b.pg.CreateDB(ctx)
	if err != nil {
		return nil, err
	}
	return db, db.ExecContext(ctx,
		"CREATE TABLE t (id bigint PRIMARY KEY, n int, price numeric(12,2), name text, at timestamptz)",
		"CREATE PUBLICATION bench FOR TABLE t")
}

// load inserts the changes: rows of about 167 bytes as pgoutput sends them.
func (b *bench) load(ctx context.Context, db *testpg.DB, from, rows, txns int) error {
	return db.ExecContext(ctx, fmt.Sprintf(`DO $$ BEGIN FOR i IN 0..%d LOOP
		INSERT INTO t SELECT id, id %% 1000, id / 7.0, repeat(md5(id::text), 3), now() FROM generate_series(%d + i * %d::bigint, %d + (i + 1) * %d::bigint - 1) id;
		COMMIT; END LOOP; END $$`, txns-1, from, rows/txns, from, rows/txns))
}

func (b *bench) source(db *testpg.DB) nodeconfig.Source {
	pass := filepath.Join(b.dir, "password")
	_ = os.WriteFile(pass, []byte(testpg.Password), 0o600)
	return nodeconfig.Source{Name: "db", Postgres: &nodeconfig.Postgres{
		Hosts: []nodeconfig.Host{{Host: "127.0.0.1", Port: b.pg.Port}}, Database: db.Name,
		User: testpg.User, PasswordFile: pass, SSLMode: nodeconfig.SSLDisable,
		Publication: nodeconfig.Publication{Name: "bench"}, Slot: "bench_" + db.Name,
		Tables: []nodeconfig.Table{{Schema: "public", Name: "t"}},
	}}
}
