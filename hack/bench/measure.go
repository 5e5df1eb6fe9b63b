package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

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
	b.out.Decode = perSecond(b.rows, time.Since(start))
	b.out.Decode.WalsenderCPU = w.seconds()
	return nil
}

func perSecond(n int, d time.Duration) rate {
	return rate{Seconds: d.Seconds(), PerSecond: float64(n) / d.Seconds()}
}

// stream measures a node with readers: it is stopped while the changes are
// made, so that it starts from a backlog as pg_recvlogical does.
func (b *bench) stream(ctx context.Context, readers int, out *rate) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	n, err := b.startNode(ctx, fmt.Sprintf("stream-%d", readers), b.source(db))
	if err != nil {
		return err
	}
	defer n.stop()
	rs, err := startReaders(ctx, readers, n.repl)
	if err != nil {
		return err
	}
	defer rs.stop()
	w, err := watchWalsender(ctx, db)
	if err != nil {
		return err
	}
	if err := n.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := b.load(ctx, db, 0, b.rows, b.txns); err != nil {
		return err
	}
	before, err := cpuSeconds(n.pid())
	if err != nil {
		return err
	}
	start := time.Now()
	if err := n.signal(syscall.SIGCONT); err != nil {
		return err
	}
	if err := rs.wait(ctx, b.rows); err != nil {
		return err
	}
	*out = perSecond(b.rows, time.Since(start))
	after, err := cpuSeconds(n.pid())
	if err != nil {
		return err
	}
	out.NodeCPU = after - before
	out.WalsenderCPU = w.seconds()
	return nil
}

// baseline measures COPY to nowhere, a node's baseline of the same table, and
// the memory it then holds.
func (b *bench) baseline(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	emptyBytes, err := b.startAndLook(ctx, "empty", b.source(db), nil)
	if err != nil {
		return err
	}
	if err := b.load(ctx, db, 0, b.rows, b.txns); err != nil {
		return err
	}
	if err := db.ExecContext(ctx, "VACUUM ANALYZE t", "CHECKPOINT"); err != nil {
		return err
	}
	var copied, full []float64
	for range 3 {
		start := time.Now()
		cmd := exec.CommandContext(ctx, "psql", "-X", "-q", "-d", db.ConnString, "-c", "COPY t TO STDOUT")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("psql: %w", err)
		}
		copied = append(copied, time.Since(start).Seconds())
		bytes, err := b.startAndLook(ctx, "full", b.source(db), func(n *nodeProcess) error {
			took, err := n.metric("tributary_source_baseline_seconds")
			if err != nil {
				return err
			}
			full = append(full, took)
			heap, err := n.metric("go_memstats_heap_inuse_bytes")
			if err != nil {
				return err
			}
			total, err := n.metric("tributary_table_row_bytes")
			b.out.HeapPerRow, b.out.RowBytes = heap/float64(b.rows), total/float64(b.rows)
			return err
		})
		if err != nil {
			return err
		}
		b.out.ResidentPerRow = float64(bytes-emptyBytes) / float64(b.rows)
	}
	b.out.Copy = rate{Seconds: slices.Min(copied), PerSecond: float64(b.rows) / slices.Min(copied)}
	b.out.Baseline = rate{Seconds: slices.Min(full), PerSecond: float64(b.rows) / slices.Min(full)}
	return nil
}

// startAndLook starts a node, looks at it when it is ready, and stops it again;
// it returns what the node then held in memory.
func (b *bench) startAndLook(ctx context.Context, id string, src nodeconfig.Source, look func(*nodeProcess) error) (int64, error) {
	n, err := b.startNode(ctx, id, src)
	if err != nil {
		return 0, err
	}
	defer n.stop()
	if look != nil {
		if err := look(n); err != nil {
			return 0, err
		}
	}
	return residentBytes(n.pid())
}

// latency measures from before a commit to the arrival at readers of two nodes
// in a row.
func (b *bench) latency(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	top, err := b.startNode(ctx, "top", b.source(db))
	if err != nil {
		return err
	}
	defer top.stop()
	below, err := b.startNode(ctx, "below", nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, top)
	if err != nil {
		return err
	}
	defer below.stop()
	readers := make([]*readers, 2)
	for i, n := range []*nodeProcess{top, below} {
		if readers[i], err = startReaders(ctx, 1, n.repl); err != nil {
			return err
		}
		defer readers[i].stop()
	}
	const samples = 300
	conn, err := db.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// a walsender sends what has been flushed: commit as an application would
	if _, err := conn.Exec(ctx, "SET synchronous_commit = on").ReadAll(); err != nil {
		return err
	}
	sent := make([]time.Time, samples)
	for i := range sent {
		sent[i] = time.Now()
		if _, err := conn.Exec(ctx, "INSERT INTO t (id, n) VALUES ("+strconv.Itoa(i)+", 1)").ReadAll(); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	for i, out := range []*latency{&b.out.LatencyHop1, &b.out.LatencyHop2} {
		if err := readers[i].wait(ctx, samples); err != nil {
			return err
		}
		*out = summarize(sent, readers[i].arrivals())
	}
	return nil
}

func summarize(sent, got []time.Time) latency {
	ms := make([]float64, 0, len(sent))
	for i := range min(len(sent), len(got)) {
		ms = append(ms, float64(got[i].Sub(sent[i]).Microseconds())/1000)
	}
	slices.Sort(ms)
	if len(ms) == 0 {
		return latency{}
	}
	return latency{P50: ms[len(ms)/2], P99: ms[len(ms)*99/100], Max: ms[len(ms)-1], N: len(ms)}
}
