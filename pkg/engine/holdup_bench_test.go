package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// BenchmarkBaselineHoldsUp is how long the commits of one log take while the baseline
// of another is taken in, of 300,000 rows of a table that both write. What comes of
// other logs waits for that one commit: docs/design/large.md has the figures.
func BenchmarkBaselineHoldsUp(b *testing.B) {
	for _, kind := range []string{"memory", "pebble"} {
		b.Run(kind, func(b *testing.B) {
			var st engine.Store = store.NewMemory(store.MemoryOptions{})
			if kind == "pebble" {
				p, err := store.OpenPebble(store.PebbleOptions{Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				st = p
			}
			benchHoldUp(b, st)
		})
	}
}

func benchHoldUp(b *testing.B, st engine.Store) {
	const rows = 300_000
	large, other := engine.LogID{Origin: "a#db", Epoch: 1}, engine.LogID{Origin: "b#db", Epoch: 1}
	src := &benchCarry{logs: []engine.LogID{large, other}, sinks: make(chan engine.Sink, 1)}
	e := engine.New(engine.Options{NodeID: "bench/n", Store: st, Logger: slog.New(slog.DiscardHandler)})
	e.AddSource("mesh", src, engine.Keep{})
	ctx, cancel := context.WithCancel(b.Context())
	ran := make(chan error, 1)
	go func() { ran <- e.Run(ctx) }()
	defer func() {
		cancel()
		<-ran
		if err := st.Close(); err != nil {
			b.Fatal(err)
		}
	}()
	sink := <-src.sinks
	l := &lane{key: engine.CursorKey{Log: other}, at: 1, time: 1}
	for i := range 20_000 {
		l.ids = append(l.ids, fmt.Sprintf("other-%06d", i))
	}
	text := fmt.Sprintf("%0120d", 7)
	var took []time.Duration
	var commit time.Duration
	for n := range b.N {
		at := uint64(n + 2)
		w, err := sink.Baseline(ctx, engine.BaselineSpec{
			Log: large, Schemas: []*engine.Schema{benchSchema}, Tables: []engine.TableName{benchSchema.Table}, At: engine.LSN(at).Position(), Time: engine.Time(at),
		})
		if err != nil {
			b.Fatal(err)
		}
		for i := 0; i < rows; i += 1000 {
			rs := make([]engine.Record, 1000)
			for j := range rs {
				id := fmt.Sprintf("row-%08d", i+j)
				row := engine.AppendValue(engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, 1, 3), id), "42"), text)
				rs[j] = engine.Record{Schema: benchSchema, Key: keyOf(id), Row: row, Stamp: engine.Stamp{
					Time: engine.Time(at), Origin: large.Origin, Epoch: large.Epoch, Version: engine.Version{Major: at},
				}}
			}
			if err := w.Rows(benchSchema.Table, rs); err != nil {
				b.Fatal(err)
			}
		}
		blocks := l.round(len(l.ids), 1, false)
		done := make(chan struct{})
		go func() {
			defer close(done)
			start := time.Now()
			if err := w.Commit(ctx); err != nil {
				b.Error(err)
			}
			commit += time.Since(start)
		}()
		for over := false; !over && len(blocks) > 0; blocks = blocks[1:] {
			start := time.Now()
			if err := sink.ApplyBlocks(ctx, l.key, blocks[:1]); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
			select {
			case <-done:
				over = true
			case <-time.After(time.Millisecond):
			}
		}
		<-done
		l.at, l.time = l.at-uint64(len(blocks)), l.time-engine.Time(len(blocks)) // those were not applied
	}
	slices.Sort(took)
	b.ReportMetric(float64(commit.Milliseconds())/float64(b.N), "commit-ms")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
	b.ReportMetric(0, "ns/op")
}
