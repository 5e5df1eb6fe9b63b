package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// TestPebbleLargeTable serves a table many times larger than the memory it may
// use: written by a stage, then rewritten in one transaction, read by key and
// whole. It is not parallel, since it looks at the heap.
func TestPebbleLargeTable(t *testing.T) {
	long(t)
	const rows, size, limit = 120_000, 1000, 40 << 20
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // what is looked at is what is in use, and little garbage
	p, err := OpenPebble(PebbleOptions{
		Dir: t.TempDir(), BlockCacheBytes: 4 << 20, MemTableBytes: 2 << 20, TxBytes: 1 << 20, CacheBytes: 1 << 20, JournalBytes: 8 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	debug.FreeOSMemory()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	most := uint64(0)
	look := func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapInuse-min(m.HeapInuse, before.HeapInuse))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	record := func(i int, at engine.Time) engine.Record {
		r := benchRecord(i, at)
		from := (i * 997) % (len(noise) - size)
		r.Row = engine.AppendValue(engine.AppendRowHeader(nil, 1, 1), noise[from:from+size])
		return r
	}
	st := p.NewStage(benchSchema.Table)
	for i := 0; i < rows; i += 500 {
		rs := make([]engine.Record, 500)
		for j := range rs {
			rs[j] = record(i+j, benchStart)
		}
		if err := st.Put(rs); err != nil {
			t.Fatal(err)
		}
		look()
	}
	adopt(t, p, st)
	tx, err := p.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.ResetLog(workLog, engine.CompareLSN, "", 1); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < rows; i += 3 {
		r := record(i, benchStart+1)
		if o, err := tx.Merge(&r); err != nil || !o.Applied() {
			t.Fatal(o, err)
		}
		if i%3000 == 0 {
			look()
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	look()
	v := p.View()
	defer v.Close()
	if i := v.Tables()[0]; i.Rows != rows {
		t.Errorf("%d rows are counted of %d", i.Rows, rows)
	}
	n := 0
	if err := v.Scan(benchSchema.Table, nil, func(r *engine.Record) bool {
		if n++; n%10_000 == 0 {
			look()
		}
		return true
	}); err != nil || n != rows {
		t.Errorf("a scan has %d rows of %d: %v", n, rows, err)
	}
	for range 3000 {
		i := rng.IntN(rows)
		want := record(i, benchStart)
		r, ok, err := v.Get(benchSchema.Table, engine.AppendKeyValue(nil, fmt.Sprint(i)))
		if err != nil || !ok || string(r.Row) != string(want.Row) || (r.Stamp.Time > benchStart) != (i%3 == 0) {
			t.Fatalf("row %d: found %v, %v, at %s", i, ok, err, r.Stamp)
		}
	}
	look()
	t.Logf("at most %d MiB of heap for %d MiB of rows", most>>20, rows*size>>20)
	if most > limit {
		t.Errorf("%d MiB of heap, the limit is %d", most>>20, limit>>20)
	}
}
