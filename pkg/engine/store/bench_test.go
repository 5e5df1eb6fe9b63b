package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

var benchSchema = &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "orders"}, Columns: []engine.Column{
	{Name: "id", Number: 1, Key: true}, {Name: "customer", Number: 2}, {Name: "note", Number: 3},
}}

// benchRow is a row of about 120 bytes.
func benchRow(i int) engine.Row {
	row := engine.AppendRowHeader(nil, 1, 3)
	row = engine.AppendValue(row, fmt.Sprint(i))
	row = engine.AppendValue(row, fmt.Sprintf("customer-%d", i%1000))
	return engine.AppendValue(row, "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789")
}

func benchRecord(i int, at engine.Time) engine.Record {
	return engine.Record{
		Schema: benchSchema, Key: engine.AppendKeyValue(nil, fmt.Sprint(i)), Row: benchRow(i),
		Stamp: engine.Stamp{Time: at, Origin: "orders/root", Epoch: 1_700_000_000_000_000, Version: engine.Version{Major: 0x16_B374_D848 + uint64(i), Minor: 1}},
	}
}

const benchStart = engine.Time(1_700_000_000_000_000)

// fill baselines n rows and returns how many bytes their keys and rows take.
func fill(tb testing.TB, m *Memory, n int) (bytes int) {
	st := m.NewStage(benchSchema.Table)
	var rs []engine.Record
	for i := range n {
		r := benchRecord(i, benchStart)
		bytes += len(r.Row)
		if rs = append(rs, r); len(rs) == 1000 || i == n-1 {
			if err := st.Put(rs); err != nil {
				tb.Fatal(err)
			}
			rs = rs[:0]
		}
	}
	tx, err := m.Begin(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	if err := tx.Adopt(st); err != nil {
		tb.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		tb.Fatal(err)
	}
	return bytes
}

// BenchmarkMemoryPerRow reports what a baselined row takes beside its own
// bytes, and how many heap objects the store is.
func BenchmarkMemoryPerRow(b *testing.B) {
	const rows = 500_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		m := NewMemory(MemoryOptions{})
		bytes := fill(b, m, rows)
		runtime.GC()
		runtime.ReadMemStats(&after)
		start := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(start).Microseconds()), "gc-µs")
		b.ReportMetric((float64(after.HeapAlloc-before.HeapAlloc)-float64(bytes))/rows, "overhead-B/row")
		b.ReportMetric(float64(bytes)/rows, "row-B/row")
		b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/rows*1000, "objects/krow")
		runtime.KeepAlive(m)
	}
}

// BenchmarkStage is one record put into a stage by key order.
func BenchmarkStage(b *testing.B) {
	m := NewMemory(MemoryOptions{})
	st := m.NewStage(benchSchema.Table)
	rs := make([]engine.Record, 1000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := &rs[i%1000]
		*r = benchRecord(i, benchStart)
		if i%1000 == 999 {
			if err := st.Put(rs); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkMerge is one update of a random row of a million, by the size of
// the transactions it comes in.
func BenchmarkMerge(b *testing.B) {
	const rows = 1_000_000
	m := NewMemory(MemoryOptions{})
	fill(b, m, rows)
	rng := rand.New(rand.NewPCG(1, 2))
	updates := make([]engine.Record, 1<<16)
	at := benchStart
	for _, size := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("tx=%d", size), func(b *testing.B) {
			for i := range updates {
				updates[i] = benchRecord(rng.IntN(rows), 0)
			}
			var tx engine.Tx
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if i%size == 0 {
					if tx != nil {
						_ = tx.Commit()
					}
					tx, _ = m.Begin(context.Background())
				}
				at++
				r := &updates[i&(1<<16-1)]
				r.Stamp.Time = at
				if o, err := tx.Merge(r); !o.Applied() || err != nil {
					b.Fatal(o.Applied(), err)
				}
			}
			_ = tx.Commit()
			st := m.Stats()
			b.ReportMetric(float64(st.DeadBytes)/float64(st.LiveBytes), "dead/live")
		})
	}
}

// BenchmarkScan is one record of a scan over a million.
func BenchmarkScan(b *testing.B) {
	m := NewMemory(MemoryOptions{})
	fill(b, m, 1_000_000)
	v := m.View()
	defer v.Close()
	b.ResetTimer()
	for n := 0; n < b.N; {
		_ = v.Scan(benchSchema.Table, nil, func(r *engine.Record) bool { n++; return n < b.N })
	}
}

// BenchmarkGet is one lookup of a random row of a million.
func BenchmarkGet(b *testing.B) {
	m := NewMemory(MemoryOptions{})
	fill(b, m, 1_000_000)
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([][]byte, 1<<16)
	for i := range keys {
		keys[i] = engine.AppendKeyValue(nil, fmt.Sprint(rng.IntN(1_000_000)))
	}
	v := m.View()
	defer v.Close()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok, _ := v.Get(benchSchema.Table, keys[i&(1<<16-1)]); !ok {
			b.Fatal("lost a row")
		}
	}
}
