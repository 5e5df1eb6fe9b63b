package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// benchCarry carries empty logs, and hands its sink out.
type benchCarry struct {
	benchSource
	logs  []engine.LogID
	sinks chan engine.Sink
}

func (s *benchCarry) Init(context.Context, engine.Env) (engine.Info, error) {
	return engine.Info{}, nil
}

func (s *benchCarry) Baseline(ctx context.Context, sink engine.Sink) error {
	tables := []engine.TableName{benchSchema.Table}
	for _, l := range s.logs {
		if err := sink.Carry(l, engine.CompareLSN, []string{l.Origin}, tables); err != nil {
			return err
		}
		w, err := sink.Baseline(ctx, engine.BaselineSpec{Log: l, Schemas: []*engine.Schema{benchSchema}, Tables: tables, At: "0/1", Time: 1})
		if err != nil {
			return err
		}
		if err := w.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *benchCarry) Stream(ctx context.Context, _ engine.Cursors, sink engine.Sink) error {
	s.sinks <- sink
	<-ctx.Done()
	return ctx.Err()
}

// lane is one origin's log: its changes of a round, block by block.
type lane struct {
	key  engine.CursorKey
	at   uint64
	time engine.Time
	ids  []string
}

// round returns the blocks of a transaction per so many changes of the lane.
func (l *lane) round(changes, perTx int, full bool) (blocks []*engine.Block) {
	prev := engine.LSN(l.at).Position()
	w := engine.NewBlockBuilder(l.key.Log, prev)
	text := fmt.Sprintf("%0120d", 7)
	for i := 0; i < changes; i += perTx {
		l.at++
		l.time++
		t := engine.Transaction{Log: l.key.Log, Prev: prev, Position: engine.LSN(l.at).Position(), Time: l.time, Major: l.at}
		for j := range perTx {
			row := engine.AppendRowHeader(nil, 1, 3)
			row = engine.AppendValue(row, l.ids[i+j])
			row = engine.AppendValue(row, "42")
			row = engine.AppendValue(row, text)
			t.Changes = append(t.Changes, engine.Change{Op: engine.OpPut, Schema: benchSchema, Key: keyOf(l.ids[i+j]), Row: row, Stamp: engine.Stamp{
				Time: t.Time, Origin: l.key.Log.Origin, Epoch: l.key.Log.Epoch, Version: engine.Version{Major: t.Major, Minor: uint32(j + 1)},
			}})
		}
		w.Add(&t)
		if prev = t.Position; !full {
			blocks = append(blocks, w.Blocks()...)
		}
	}
	return append(blocks, w.Blocks()...)
}

// BenchmarkOrigins is the cost of a change to a node that carries 1, 10 or 1,000
// logs, each with an applier of its own, as a fan-out client has them. Where it
// catches up, an applier hands over what its share of the client's buffer holds,
// up to a mebibyte; where changes trickle in, one at a time.
func BenchmarkOrigins(b *testing.B) {
	stores := map[string]func(b *testing.B) engine.Store{
		"memory": func(*testing.B) engine.Store { return store.NewMemory(store.MemoryOptions{}) },
		"pebble": func(b *testing.B) engine.Store {
			p, err := store.OpenPebble(store.PebbleOptions{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			return p
		},
	}
	for _, kind := range []string{"memory", "pebble"} {
		for _, how := range []string{"catching-up", "trickling"} {
			for _, n := range []int{1, 10, 1000} {
				b.Run(fmt.Sprintf("%s/%s/origins=%d", kind, how, n), func(b *testing.B) {
					benchOrigins(b, stores[kind](b), n, how == "catching-up")
				})
			}
		}
	}
}

// cpuTime is what the process has spent: on a machine that does other work too it
// says more than the clock.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchOrigins(b *testing.B, st engine.Store, origins int, bulk bool) {
	changes, perTx, call := 256_000, 16, min(max(64<<20/origins, 32<<10), 1<<20)
	if !bulk {
		changes, perTx, call = 8_000, 1, 1
	}
	src := &benchCarry{sinks: make(chan engine.Sink, 1)}
	lanes := make([]*lane, origins)
	for i := range lanes {
		l := engine.LogID{Origin: fmt.Sprintf("node-%04d#db", i), Epoch: 1}
		src.logs = append(src.logs, l)
		lanes[i] = &lane{key: engine.CursorKey{Log: l}, at: 1, time: 1}
		for j := range changes / origins {
			// all over the table, however many origins there are
			lanes[i].ids = append(lanes[i].ids, fmt.Sprintf("%016x", uint64(i*changes/origins+j+1)*0x9E3779B97F4A7C15))
		}
	}
	e := engine.New(engine.Options{NodeID: "bench/n", Store: st, Logger: slog.New(slog.DiscardHandler)})
	e.AddSource("mesh", src, engine.Keep{})
	ctx, cancel := context.WithCancel(b.Context())
	ran := make(chan error, 1)
	go func() { ran <- e.Run(ctx) }()
	sink := <-src.sinks
	defer func() {
		cancel()
		<-ran
		if err := st.Close(); err != nil {
			b.Fatal(err)
		}
	}()
	var spent time.Duration // of the processors, with what the store does in the background
	apply := func() {
		b.StopTimer()
		rounds := make([][]*engine.Block, origins)
		for i, l := range lanes {
			rounds[i] = l.round(changes/origins, perTx, bulk)
		}
		b.StartTimer()
		began := cpuTime(b)
		defer func() { spent += cpuTime(b) - began }()
		var wg sync.WaitGroup
		for i, blocks := range rounds {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for len(blocks) > 0 {
					n, size := 0, 0
					for n < len(blocks) && (n == 0 || size < call) {
						size += len(blocks[n].Payload)
						n++
					}
					if err := sink.ApplyBlocks(ctx, lanes[i].key, blocks[:n]); err != nil {
						b.Error(err)
						return
					}
					blocks = blocks[n:]
				}
			}()
		}
		wg.Wait()
	}
	apply() // the rows are there: what is measured writes over them
	spent = 0
	b.ResetTimer()
	for range b.N {
		apply()
	}
	b.ReportMetric(float64(changes)*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
	b.ReportMetric(float64(spent.Microseconds())/float64(changes*b.N), "cpu-µs/change")
	b.ReportMetric(0, "ns/op")
}
