package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// decode measures the limit: PostgreSQL decodes, and the client throws away.
func (b *bench) decode(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	defer db.Drop(ctx) //nolint:errcheck // the server goes too
	if err := db.ExecContext(ctx, "SELECT pg_create_logical_replication_slot('bench_limit', 'pgoutput')"); err != nil {
		return err
	}
	if err := b.load(ctx, db, 0, b.rows, b.txns); err != nil {
		return err
	}
	// one more commit: pg_recvlogical ends at the first message past the end
	end, err := db.QueryContext(ctx, "SELECT pg_current_wal_insert_lsn()")
	if err != nil {
		return err
	}
	if err := db.ExecContext(ctx, "INSERT INTO t (id) VALUES (-1)"); err != nil {
		return err
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, "pg_recvlogical", "-d", db.ConnString, "--slot", "bench_limit", "--start",
		"-o", "proto_version=1", "-o", "publication_names=bench", "-f", "/dev/null", "--no-loop", "--endpos", *end[0][0])
	if err := cmd.Start(); err != nil {
		return err
	}
	w, err := watchWalsender(ctx, db)
	if err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("pg_recvlogical: %w", err)
	}
	b.decoded = perSecond(b.rows, time.Since(start))
	b.decoded.walsenderCPU = w.seconds()
	return nil
}

func perSecond(n int, d time.Duration) rate {
	return rate{seconds: d.Seconds(), perSecond: float64(n) / d.Seconds()}
}

func (b *bench) stream1(ctx context.Context) error {
	var err error
	if b.one, err = b.stream(ctx, "stream", nodeconfig.Storage{}); err != nil {
		return err
	}
	b.atMost("node-cpu-over-walsender", "node CPU / walsender CPU, 1 reader", b.one.nodeCPU/b.one.walsenderCPU, 0.6, 0.25,
		"%.2f s / %.2f s", b.one.nodeCPU, b.one.walsenderCPU)
	b.atLeast("changes-over-decoding", "changes/s, 1 reader / decoding", b.one.perSecond/b.decoded.perSecond, 0.80, 0.95,
		"%.0f / %.0f", b.one.perSecond, b.decoded.perSecond)
	return nil
}

func (b *bench) streamPebble(ctx context.Context) error {
	r, err := b.stream(ctx, "pebble", nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(b.dir, "pebble-store")})
	if err != nil {
		return err
	}
	b.atLeast("pebble-changes-over-decoding", "changes/s, durable, 1 reader / decoding", r.perSecond/b.decoded.perSecond, 0.60, 0.85,
		"%.0f / %.0f; node CPU %.2f s", r.perSecond, b.decoded.perSecond, r.nodeCPU)
	return nil
}

// stream measures a node with a reader: it is stopped while the changes are
// made, so that it starts from a backlog as pg_recvlogical does.
func (b *bench) stream(ctx context.Context, id string, st nodeconfig.Storage) (out rate, err error) {
	db, err := b.database(ctx)
	if err != nil {
		return out, err
	}
	src, err := b.source(db)
	if err != nil {
		return out, err
	}
	n, err := b.startNodeWith(ctx, id, st, src)
	if err != nil {
		return out, err
	}
	defer n.Kill()
	rs, err := startReaders(ctx, 1, n.Repl)
	if err != nil {
		return out, err
	}
	defer rs.stop()
	w, err := watchWalsender(ctx, db)
	if err != nil {
		return out, err
	}
	took, cpu, err := catchUp(n, func() error { return b.load(ctx, db, 0, b.rows, b.txns) }, func() error { return rs.wait(ctx, b.rows) })
	if err != nil {
		return out, err
	}
	out = perSecond(b.rows, took)
	out.nodeCPU, out.walsenderCPU = cpu, w.seconds()
	return out, nil
}

// catchUp stops a node while there comes to be what it is then to take in. It returns
// how long the node takes until it has done so, and the CPU seconds that it uses.
func catchUp(n *testnode.Node, come, done func() error) (took time.Duration, cpu float64, err error) {
	if err := n.Signal(syscall.SIGSTOP); err != nil {
		return 0, 0, err
	}
	if err := come(); err != nil {
		return 0, 0, err
	}
	before, err := cpuSeconds(n.PID())
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := n.Signal(syscall.SIGCONT); err != nil {
		return 0, 0, err
	}
	if err := done(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	after, err := cpuSeconds(n.PID())
	return took, after - before, err
}

// fan measures how fast a node serves its journal to many readers that read and
// count, and nothing more, against a server that sends them the same frames by
// gRPC and does nothing else.
func (b *bench) fan(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	src, err := b.source(db)
	if err != nil {
		return err
	}
	n, err := b.startNode(ctx, "fan", src)
	if err != nil {
		return err
	}
	defer n.Kill()
	first, err := startReaders(ctx, 1, n.Repl)
	if err != nil {
		return err
	}
	log, from := first.place()
	if err := b.load(ctx, db, 0, b.rows, b.txns); err != nil {
		return err
	}
	if err := first.wait(ctx, b.rows); err != nil {
		return err
	}
	first.stop()

	frames, err := readRaw(ctx, n.Repl, log, from, b.rows, true)
	if err != nil {
		return err
	}
	path := filepath.Join(b.dir, "frames")
	if err := frames.save(path); err != nil {
		return err
	}
	bare, err := startBare(ctx, path)
	if err != nil {
		return err
	}
	defer bare.stop()
	// served is how many bytes a second the readers get of a server, and what that costs it.
	served := func(pid int, read func(context.Context) (*rawFrames, error)) (perSecond, cpu float64, err error) {
		before, err := cpuSeconds(pid)
		if err != nil {
			return 0, 0, err
		}
		took, err := readAll(ctx, b.readers, read)
		if err != nil {
			return 0, 0, err
		}
		after, err := cpuSeconds(pid)
		return float64(b.readers) * float64(frames.bytes) / took.Seconds(), after - before, err
	}
	// In turns, since the two are set against each other: whatever else the machine does
	// comes and goes.
	const rounds = 5
	var ratios, fast, limit, cpu, limitCPU []float64
	for range rounds {
		f, c, err := served(n.PID(), func(ctx context.Context) (*rawFrames, error) { return readRaw(ctx, n.Repl, log, from, b.rows, false) })
		if err != nil {
			return err
		}
		l, lc, err := served(bare.pid, func(ctx context.Context) (*rawFrames, error) { return readBare(ctx, bare.address) })
		if err != nil {
			return err
		}
		ratios, fast, limit, cpu, limitCPU = append(ratios, f/l), append(fast, f), append(limit, l), append(cpu, c), append(limitCPU, lc)
	}
	b.atLeast("fanout-over-grpc", fmt.Sprintf("bytes/s to %d readers / bare gRPC", b.readers), median(ratios), 0.70, 0.90,
		"%.0f / %.0f MB/s; %.2f s of CPU / %.2f s; median of %d", median(fast)/1e6, median(limit)/1e6, median(cpu), median(limitCPU), rounds)
	if b.one.nodeCPU > 0 {
		perReader := median(cpu) / float64(b.readers)
		b.atMost("cpu-per-added-reader", "CPU of an added reader / of the first", perReader/b.one.nodeCPU, 0.10, 0.03,
			"%.3f s / %.3f s, for %d changes", perReader, b.one.nodeCPU, b.rows)
	}
	return nil
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

// baseline measures COPY to nowhere, a node's baseline of the same table, and
// the memory it then holds.
func (b *bench) baseline(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	src, err := b.source(db)
	if err != nil {
		return err
	}
	emptyBytes, err := b.startAndLook(ctx, "empty", src, nil)
	if err != nil {
		return err
	}
	if err := b.load(ctx, db, 0, b.rows, b.txns); err != nil {
		return err
	}
	if err := db.ExecContext(ctx, "VACUUM ANALYZE t", "CHECKPOINT"); err != nil {
		return err
	}
	var copied, full, resident []float64
	var heapPerRow float64
	for range 3 {
		start := time.Now()
		cmd := exec.CommandContext(ctx, "psql", "-X", "-q", "-d", db.ConnString, "-c", "COPY t TO STDOUT")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("psql: %w", err)
		}
		copied = append(copied, time.Since(start).Seconds())
		bytes, err := b.startAndLook(ctx, "full", src, func(n *testnode.Node) error {
			took, err := n.Metric("tributary_source_baseline_seconds")
			if err != nil {
				return err
			}
			full = append(full, took)
			heap, err := n.Metric("go_memstats_heap_inuse_bytes")
			if err != nil {
				return err
			}
			total, err := n.Metric("tributary_table_row_bytes")
			heapPerRow, b.out.RowBytes = heap/float64(b.rows), total/float64(b.rows)
			return err
		})
		if err != nil {
			return err
		}
		resident = append(resident, float64(bytes-emptyBytes)/float64(b.rows))
	}
	b.atLeast("baseline-over-copy", "baseline rows/s / COPY", slices.Min(copied)/slices.Min(full), 0.60, 0.90,
		"%.0f / %.0f", float64(b.rows)/slices.Min(full), float64(b.rows)/slices.Min(copied))
	slices.Sort(resident)
	b.atMost("resident-over-row", "resident memory per row / row", resident[1]/b.out.RowBytes, 2.0, 1.3,
		"%.0f / %.0f bytes; live heap %.0f", resident[1], b.out.RowBytes, heapPerRow)
	return nil
}

// startAndLook starts a node, looks at it when it is ready, and stops it again;
// it returns what the node then held in memory.
func (b *bench) startAndLook(ctx context.Context, id string, src nodeconfig.Source, look func(*testnode.Node) error) (int64, error) {
	n, err := b.startNode(ctx, id, src)
	if err != nil {
		return 0, err
	}
	defer n.Kill()
	if look != nil {
		if err := look(n); err != nil {
			return 0, err
		}
	}
	return residentBytes(n.PID())
}

// latency measures from before a commit to the arrival at readers of two nodes
// in a row.
func (b *bench) latency(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	src, err := b.source(db)
	if err != nil {
		return err
	}
	top, err := b.startNode(ctx, "top", src)
	if err != nil {
		return err
	}
	defer top.Kill()
	below, err := b.startNode(ctx, "below", nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, top)
	if err != nil {
		return err
	}
	defer below.Kill()
	readers := make([]*readers, 2)
	for i, n := range []*testnode.Node{top, below} {
		if readers[i], err = startReaders(ctx, 1, n.Repl); err != nil {
			return err
		}
		defer readers[i].stop()
	}
	// 1,000 changes a second: 200 transactions of 5.
	const samples, changes, every = 1000, 5, 5 * time.Millisecond
	conn, err := db.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// a walsender sends what has been flushed: commit as an application would
	if _, err := conn.Exec(ctx, "SET synchronous_commit = on").ReadAll(); err != nil {
		return err
	}
	sent := make([]time.Time, 0, samples*changes)
	next := time.Now()
	for i := range samples {
		time.Sleep(time.Until(next))
		next = next.Add(every)
		at := time.Now()
		for range changes {
			sent = append(sent, at)
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf("INSERT INTO t (id, n) SELECT id, 1 FROM generate_series(%d, %d) id", i*changes, (i+1)*changes-1)).ReadAll(); err != nil {
			return err
		}
	}
	for i, hop := range []string{"one hop", "two hops"} {
		if err := readers[i].wait(ctx, len(sent)); err != nil {
			return err
		}
		p50, p99 := percentiles(sent, readers[i].arrivals())
		name := strings.ReplaceAll(hop, " ", "-")
		b.atMost("latency-p50-"+name, "commit → reader, "+hop+", p50 ms", p50, 3, 1, "%.2f ms", p50)
		b.atMost("latency-p99-"+name, "commit → reader, "+hop+", p99 ms", p99, 20, 5, "%.2f ms", p99)
	}
	return nil
}

// percentiles returns the 50th and 99th of the times between, in milliseconds.
func percentiles(sent, got []time.Time) (p50, p99 float64) {
	ms := make([]float64, 0, len(sent))
	for i := range min(len(sent), len(got)) {
		ms = append(ms, float64(got[i].Sub(sent[i]).Microseconds())/1000)
	}
	slices.Sort(ms)
	if len(ms) == 0 {
		return 0, 0
	}
	return ms[len(ms)/2], ms[len(ms)*99/100]
}
