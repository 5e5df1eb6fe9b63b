package relay_test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// feed is a source that hands its sink out.
type feed struct {
	link
	log  engine.LogID
	sink chan engine.Sink
}

func (f *feed) Baseline(ctx context.Context, sink engine.Sink) error {
	if err := sink.Carry(f.log, engine.CompareNumber, []string{"bench/relay"}, nil); err != nil {
		return err
	}
	w, err := sink.Baseline(ctx, engine.BaselineSpec{Log: f.log, Time: 1})
	if err != nil {
		return err
	}
	return w.Commit(ctx)
}

func (f *feed) Stream(ctx context.Context, _ engine.Cursors, sink engine.Sink) error {
	f.sink <- sink
	<-ctx.Done()
	return ctx.Err()
}

func (f *feed) Ack(engine.Cursor, bool) {}

var rootSchema = &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "t"}, Columns: []engine.Column{
	{Name: "id", Number: 1, TypeOID: 20, Key: true}, {Name: "n", Number: 2, TypeOID: 23}, {Name: "price", Number: 3, TypeOID: 1700},
	{Name: "name", Number: 4, TypeOID: 25}, {Name: "at", Number: 5, TypeOID: 1184},
}}

// flushes are what a relay makes of inserts, or of updates of every row in another
// order: transactions of so many changes, in runs of a mebibyte as they are applied.
func flushes(log engine.LogID, changes, perTx, from int, update bool) (runs [][]*engine.Block) {
	leaf := engine.LogID{Origin: "bench/leaf#db", Epoch: 1_700_000_000_000_000}
	w := engine.NewBlockBuilder(log, relay.Position(uint64(from)))
	for i := 0; i < changes; i += perTx {
		place := uint64(from + i)
		t := engine.Transaction{Log: log, Prev: relay.Position(place), Position: relay.Position(place + uint64(perTx)), Time: engine.Time(leaf.Epoch) + engine.Time(place), Major: place + uint64(perTx)}
		w.Begin(&t, perTx, 0)
		for j := range perTx {
			n := i + j
			if update {
				n = n * 7919 % changes
			}
			id := fmt.Sprint(n)
			sum := md5.Sum([]byte(id))
			row := engine.AppendRowHeader(nil, 1, 5)
			for _, v := range []string{id, fmt.Sprint(n % 1000), fmt.Sprintf("%.2f", float64(n)/7), strings.Repeat(hex.EncodeToString(sum[:]), 3), "2026-11-30 13:16:55.123456+00"} {
				row = engine.AppendValue(row, v)
			}
			w.Change(&engine.Change{Op: engine.OpPut, Schema: rootSchema, Key: engine.AppendKeyValue(nil, id), Row: row, Stamp: engine.Stamp{
				Time: t.Time, Origin: leaf.Origin, Epoch: leaf.Epoch, Version: engine.Version{Major: place, Minor: uint32(j)},
			}})
		}
		w.End()
	}
	size := 0
	for _, b := range w.Blocks() {
		if size += len(b.Payload); len(runs) == 0 || size > 1<<20 {
			runs, size = append(runs, nil), len(b.Payload)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], b)
	}
	return runs
}

// BenchmarkRootApply is what a change costs a root that is durable: of rows that are
// new, and of rows that it has.
func BenchmarkRootApply(b *testing.B) {
	const perTx = 5500
	log := engine.LogID{Origin: "bench/relay#relay", Epoch: 1_700_000_000_000_001}
	for _, kind := range []string{"insert", "update"} {
		b.Run(kind, func(b *testing.B) {
			n := max(b.N/perTx, 1) * perTx
			st, err := store.OpenPebble(store.PebbleOptions{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			root := newNode(b, "bench/root", st, nil)
			if root.relay, err = relay.New(relay.Config{Window: -1, MaxPending: 16 << 20}); err != nil {
				b.Fatal(err)
			}
			if _, err = root.Record(b.Context(), "relay", root.relay); err != nil {
				b.Fatal(err)
			}
			f := &feed{log: log, sink: make(chan engine.Sink, 1)}
			root.AddSource("up", f, root.relay)
			root.start()
			defer func() { root.end(); _ = st.Close() }()
			sink := <-f.sink
			apply := func(runs [][]*engine.Block) {
				for _, bs := range runs {
					if err := sink.ApplyBlocks(b.Context(), engine.CursorKey{Log: log}, bs); err != nil {
						b.Fatal(err)
					}
				}
			}
			runs := flushes(log, n, perTx, 0, false)
			if kind == "update" {
				apply(runs)
				runs = flushes(log, n, perTx, n, true)
			}
			var u syscall.Rusage
			cpu := func() time.Duration {
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
				return time.Duration(u.Utime.Nano() + u.Stime.Nano())
			}
			used := cpu()
			b.ReportAllocs()
			b.ResetTimer()
			apply(runs)
			b.StopTimer()
			b.ReportMetric(float64((cpu()-used).Nanoseconds())/float64(n)/1000, "µs-cpu/change")
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "changes/s")
		})
	}
}
