package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// The changes of BenchmarkPebbleApply: transactions of a thousand rows of 150
// bytes, as an engine commits them.
const (
	benchTxRows  = 1000
	benchRowSize = 150
)

// benchChange is a change of about benchRowSize bytes whose row does not
// compress to nothing.
func benchChange(rng *rand.Rand, id int, at engine.Time, i int) engine.Change {
	row := engine.AppendRowHeader(make([]byte, 0, benchRowSize+16), 1, 3)
	row = engine.AppendValue(row, fmt.Sprint(id))
	row = engine.AppendValue(row, fmt.Sprintf("customer-%d", id%1000))
	note := make([]byte, 0, benchRowSize)
	for len(note) < benchRowSize-30 {
		note = fmt.Appendf(note, "%08x ", rng.Uint32())
	}
	row = engine.AppendValue(row, note)
	return engine.Change{Op: engine.OpPut, Schema: benchSchema, Key: engine.AppendKeyValue(nil, fmt.Sprint(id)), Row: row, Stamp: engine.Stamp{
		Time: at, Origin: "orders/root", Epoch: 1_700_000_000_000_000, Version: engine.Version{Major: uint64(at), Minor: uint32(i + 1)},
	}}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPebbleApply commits transactions to a store that is durable, and the
// same bytes as bare synced batches to a database of the same options: the
// limit. It reports the ratio of the two.
func BenchmarkPebbleApply(b *testing.B) {
	const distinct = 200 // transactions, then again from the first
	for _, kind := range []string{"insert", "update"} {
		b.Run(kind, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			log := engine.LogID{Origin: "orders/root", Epoch: 1_700_000_000_000_000}
			txs := make([]*engine.Transaction, distinct)
			for n := range txs {
				t := &engine.Transaction{Log: log, Prev: workPosition(n), Position: workPosition(n + 1), Time: benchStart + engine.Time(n), Major: uint64(benchStart) + uint64(n)}
				for i := range benchTxRows {
					id := n*benchTxRows + i
					if kind == "update" {
						id = rng.IntN(distinct * benchTxRows)
					}
					t.Changes = append(t.Changes, benchChange(rng, id, t.Time, i))
				}
				txs[n] = t
			}
			run := func(b *testing.B, rows int, fn func(t *engine.Transaction, round int)) (took, cpu time.Duration) {
				start, used := time.Now(), cpuTime()
				for i := 0; i*benchTxRows < rows; i++ {
					fn(txs[i%distinct], i/distinct)
				}
				return time.Since(start), cpuTime() - used
			}
			rows := max(b.N, distinct*benchTxRows)
			p, err := OpenPebble(PebbleOptions{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			if kind == "update" {
				st := p.NewStage(benchSchema.Table)
				for n := range distinct {
					rs := make([]engine.Record, benchTxRows)
					for i := range rs {
						rs[i] = benchRecord(n*benchTxRows+i, benchStart-1)
					}
					if err := st.Put(rs); err != nil {
						b.Fatal(err)
					}
				}
				adopt(b, p, st)
			}
			head := ""
			seq := 0
			bytes := 0
			b.ResetTimer()
			took, cpu := run(b, rows, func(t *engine.Transaction, round int) {
				tx, err := p.Begin(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				if seq == 0 {
					_ = tx.ResetLog(log, engine.CompareLSN, "", 0)
				}
				_ = tx.PutSchema(log, benchSchema)
				seq++
				c := *t
				c.Prev, c.Position = engine.Position(head), workPosition(seq)
				c.Time = benchStart + engine.Time(seq)
				for i := range c.Changes {
					ch := &c.Changes[i]
					ch.Stamp.Time = c.Time
					if _, err := tx.Merge(&engine.Record{Schema: ch.Schema, Key: ch.Key, Row: ch.Row, Stamp: ch.Stamp}); err != nil {
						b.Fatal(err)
					}
				}
				w := engine.NewBlockBuilder(log, c.Prev)
				w.Add(&c)
				blocks := w.Blocks()
				if seq == 1 {
					for _, e := range blocks {
						bytes += len(e.Payload)
					}
				}
				if err := tx.Append(log, engine.CompareLSN, blocks...); err != nil {
					b.Fatal(err)
				}
				head = string(c.Position)
				_ = tx.SetCursor(engine.Cursor{CursorKey: engine.CursorKey{Log: log}, Position: c.Position, Time: c.Time})
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
			})
			b.StopTimer()
			bare, err := OpenPebble(PebbleOptions{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer bare.Close()
			entry := make([]byte, bytes)
			for i := range entry {
				entry[i] = byte(rng.Uint32())
			}
			n := uint64(0)
			var key, val []byte
			bareTook, bareCPU := run(b, rows, func(t *engine.Transaction, round int) {
				batch := bare.db.NewBatch()
				for i := range t.Changes {
					c := &t.Changes[i]
					key = rowKey(key[:0], 1, c.Key)
					val = append(append(val[:0], "0123456789abcdef"...), c.Row...)
					_ = batch.Set(key, val, nil)
				}
				n++
				_ = batch.Set(binary.BigEndian.AppendUint64([]byte{spaceBlock}, n), entry, nil)
				if err := batch.Commit(pebble.Sync); err != nil {
					b.Fatal(err)
				}
				_ = batch.Close()
			})
			b.ReportMetric(float64(rows)/took.Seconds(), "rows/s")
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(rows), "cpu-ns/row")
			b.ReportMetric(bareTook.Seconds()/took.Seconds(), "of-bare")
			b.ReportMetric(bareCPU.Seconds()/cpu.Seconds(), "of-bare-cpu")
			b.ReportMetric(float64(bareCPU.Nanoseconds())/float64(rows), "bare-cpu-ns/row")
		})
	}
}

func adopt(tb testing.TB, p *Pebble, st engine.Stage) {
	tx, err := p.Begin(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	if err := tx.Adopt(st); err != nil {
		tb.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		tb.Fatal(err)
	}
}
