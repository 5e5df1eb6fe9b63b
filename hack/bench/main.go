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
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
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
	only    string
	names   []string // of the measures, in order

	decoded rate // pg_recvlogical to nowhere
	one     rate // PostgreSQL → node → one reader
}

// results is bench/latest.json.
type results struct {
	When       time.Time          `json:"when"`
	Machine    string             `json:"machine"`
	Go         string             `json:"go"`
	PostgreSQL string             `json:"postgresql"`
	Changes    int                `json:"changes"`
	RowBytes   float64            `json:"rowBytes"` // of a row as the node keeps it
	Measures   map[string]measure `json:"measures"`
}

// measure is a figure of the node over its limit of the same run; of latency,
// the figure itself.
type measure struct {
	Ratio   float64 `json:"ratio"`
	Must    float64 `json:"must"`
	Aim     float64 `json:"aim"`
	Lower   bool    `json:"lowerIsBetter"`
	Figures string  `json:"figures"` // what the ratio is of
	what    string  // for people
}

// rate is how fast something went, and what it cost.
type rate struct {
	seconds, perSecond    float64
	walsenderCPU, nodeCPU float64 // seconds
}

func main() {
	b := bench{}
	out := flag.String("out", "bench/latest.json", "file to write the results to")
	flag.StringVar(&b.node, "node", "", "node binary (default: built from ./cmd/node)")
	flag.IntVar(&b.rows, "changes", 500_000, "changes of each measurement")
	flag.IntVar(&b.txns, "transactions", 500, "transactions they come in")
	flag.IntVar(&b.readers, "readers", 100, "readers of the measurement with many")
	flag.StringVar(&b.only, "only", "", "take only the measurements that have this in their names; what a ratio needs must be among them")
	compare := flag.String("compare", "", "compare the results with those of an earlier run, in this file, and run nothing")
	bare := flag.String("bare", "", "serve the frames in this file by gRPC alone (the benchmark starts itself with it)")
	flag.Parse()
	if *compare != "" {
		if err := compareRuns(*compare, *out); err != nil {
			fmt.Fprintln(os.Stderr, "bench-compare:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *bare != "" {
		if err := serveBare(ctx, *bare); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
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
		step("building the node")
		if b.node, err = testnode.Build(ctx, b.dir); err != nil {
			return err
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
	b.out = results{When: time.Now().UTC(), Machine: machine(), Go: runtime.Version(), Changes: b.rows,
		PostgreSQL: fmt.Sprint(b.pg.Major), Measures: map[string]measure{}}
	for _, m := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"the limit: pg_recvlogical to nowhere", b.decode},
		{"PostgreSQL → node → 1 reader", b.stream1},
		{"the same with the pebble store", b.streamPebble},
		{fmt.Sprintf("a journal to %d readers, and the limit: bare gRPC", b.readers), b.fan},
		{"the limit: COPY TO STDOUT, and a baseline", b.baseline},
		{"latency over two hops", b.latency},
		{"many origins over one session", b.origins},
		{"failover in a mesh", b.failover},
		{"isolation of origins", b.isolation},
		{"a relay tree", b.tree},
		{"hot keys through a relay", b.coalescing},
		{"archives", b.archives},
	} {
		if !strings.Contains(m.what, b.only) {
			continue
		}
		step(m.what)
		if err := m.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", m.what, err)
		}
	}
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

// atLeast and atMost record a measure.
func (b *bench) atLeast(name, what string, ratio, must, aim float64, figures string, args ...any) {
	b.names = append(b.names, name)
	b.out.Measures[name] = measure{round(ratio), must, aim, false, fmt.Sprintf(figures, args...), what}
}

func (b *bench) atMost(name, what string, ratio, must, aim float64, figures string, args ...any) {
	b.names = append(b.names, name)
	b.out.Measures[name] = measure{round(ratio), must, aim, true, fmt.Sprintf(figures, args...), what}
}

func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// verdict says how a measure stands.
func (m measure) verdict() string {
	better := func(than float64) bool { return m.Ratio >= than != m.Lower || m.Ratio == than }
	switch {
	case better(m.Aim):
		return "aim met"
	case better(m.Must):
		return "met"
	}
	return "MISSED"
}

func (b *bench) print() {
	o := &b.out
	fmt.Printf("\n%d changes in %d transactions, rows of %.0f bytes; PostgreSQL %s, %s, %s\n\n", o.Changes, b.txns, o.RowBytes, o.PostgreSQL, o.Go, o.Machine)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "measure\tratio\tmust\taim\t\tfigures")
	for _, name := range b.names {
		m := o.Measures[name]
		fmt.Fprintf(w, "%s\t%.3g\t%g\t%g\t%s\t%s\n", m.what, m.Ratio, m.Must, m.Aim, m.verdict(), m.Figures)
	}
	_ = w.Flush()
}

// machine says what the run was on.
func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.Trim(name, " \t:\n")
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s", runtime.NumCPU(), model)
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

func (b *bench) source(db *testpg.DB) (nodeconfig.Source, error) {
	src, err := testnode.Postgres(db, b.dir, "", engine.TableName{Schema: "public", Name: "t"})
	if err == nil {
		src.Postgres.Publication = nodeconfig.Publication{Name: "bench"}
	}
	return src, err
}
