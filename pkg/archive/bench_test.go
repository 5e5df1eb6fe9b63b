package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// bigTable is a table of n rows, like those of an application: a number, a time, a status, an amount,
// a text and JSON. The rows come in order of their keys.
type bigTable struct {
	s     *story
	rows  []engine.Record
	plain []byte // as COPY writes it
}

var words = []string{"order", "customer", "shipped", "pending", "invoice", "reference", "standard", "express", "cancelled", "return", "blue", "large", "gift"}

func newBigTable(n int) *bigTable {
	log := engine.LogID{Origin: "orders/root", Epoch: 1758000000000000}
	sc := &engine.Schema{ID: 1, Table: events, RelationOID: 16384, ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
		{Name: "id", Number: 1, TypeName: "bigint", Key: true}, {Name: "created", Number: 2, TypeName: "timestamp with time zone"},
		{Name: "status", Number: 3, TypeName: "text"}, {Name: "amount", Number: 4, TypeName: "numeric(12,2)"},
		{Name: "note", Number: 5, TypeName: "text"}, {Name: "data", Number: 6, TypeName: "jsonb"},
	}}
	t := &bigTable{s: &story{logs: []engine.LogID{log}, schemas: Schemas{log: {sc}}}}
	r := rand.New(rand.NewPCG(1, 2))
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		at = at.Add(time.Duration(r.IntN(5000)) * time.Millisecond)
		note := ""
		for range r.IntN(12) {
			note += words[r.IntN(len(words))] + " "
		}
		v := []string{
			fmt.Sprintf("%09d", i), at.Format("2006-01-02 15:04:05.000-07"), words[2+r.IntN(6)], fmt.Sprintf("%d.%02d", r.IntN(100000), r.IntN(100)), note,
			fmt.Sprintf(`{"sku": "%08x", "qty": %d, "tags": ["%s", "%s"]}`, r.Uint32(), r.IntN(20), words[r.IntN(13)], words[r.IntN(13)]),
		}
		row := engine.AppendRowHeader(nil, 1, len(v))
		for j, s := range v {
			row = engine.AppendValue(row, s)
			t.plain = append(t.plain, s...)
			t.plain = append(t.plain, "\t\n"[j/5])
		}
		t.rows = append(t.rows, engine.Record{
			Schema: sc, Key: engine.AppendKeyValue(nil, v[0]), Row: row,
			Stamp: engine.Stamp{Time: 1758000000000001, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: 1 << 40}},
		})
	}
	return t
}

func (t *bigTable) base() Base {
	return Base{At: t.s.at(0), Schemas: t.s.schemas, Rows: func(emit func(*engine.Record) error) error {
		for i := range t.rows {
			if err := emit(&t.rows[i]); err != nil {
				return err
			}
		}
		return nil
	}}
}

// zstdRates are those of zstd alone at a level, on the same bytes: as fast as it goes on one processor.
func zstdRates(b *testing.B, plain []byte, level int) (pack, unpack, size float64) {
	var out bytes.Buffer
	e, _ := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)), zstd.WithEncoderConcurrency(1))
	began := time.Now()
	if _, err := e.Write(plain); err != nil {
		b.Fatal(err)
	}
	_ = e.Close()
	pack = float64(len(plain)) / time.Since(began).Seconds() / 1e6
	d, _ := zstd.NewReader(&out, zstd.WithDecoderConcurrency(1))
	size = float64(out.Len())
	began = time.Now()
	if _, err := io.Copy(io.Discard, d); err != nil {
		b.Fatal(err)
	}
	return pack, float64(len(plain)) / time.Since(began).Seconds() / 1e6, size
}

// BenchmarkWriteFold tells how fast a base is written and folded, in MB/s of the table as COPY writes it, beside
// zstd alone at the same level on those bytes in the same run.
func BenchmarkWriteFold(b *testing.B) {
	t := newBigTable(400_000)
	for _, format := range []Format{Protobuf, JSONL} {
		b.Run(string(format), func(b *testing.B) {
			ctx := context.Background()
			var write, fold time.Duration
			var pack, unpack, size, stored float64
			for b.Loop() {
				p, u, s := zstdRates(b, t.plain, 3)
				pack, unpack, size = pack+p, unpack+u, s
				d := folder(b)
				w := openWriter(b, d, func(c *WriterConfig) { c.Formats, c.Level = []Format{format}, 3 })
				began := time.Now()
				a, err := w.Base(ctx, t.base())
				if err != nil {
					b.Fatal(err)
				}
				write += time.Since(began)
				stored = float64(a.Stored(format))
				began = time.Now()
				f, err := reader(b, d).Fold(ctx, AsOf{})
				if err != nil {
					b.Fatal(err)
				}
				n := 0
				if err := f.Rows(func(*engine.Record) error { n++; return nil }); err != nil || n != len(t.rows) {
					b.Fatal(n, err)
				}
				f.Close()
				fold += time.Since(began)
			}
			mb := float64(len(t.plain)) * float64(b.N) / 1e6
			b.ReportMetric(mb/write.Seconds(), "write-MB/s")
			b.ReportMetric(mb/fold.Seconds(), "fold-MB/s")
			b.ReportMetric(mb/write.Seconds()/(pack/float64(b.N)), "write/zstd")
			b.ReportMetric(mb/fold.Seconds()/(unpack/float64(b.N)), "fold/zstd")
			b.ReportMetric(stored/size, "size/zstd")
		})
	}
}

// BenchmarkFoldMemory folds a table ten times the memory that it may take, with diffs of half of it.
func BenchmarkFoldMemory(b *testing.B) {
	t := newBigTable(400_000)
	ctx := context.Background()
	size := 0
	for i := range t.rows {
		size += len(t.rows[i].Key) + len(t.rows[i].Row)
	}
	d := folder(b)
	w := openWriter(b, d)
	mustBase(b, w, t.base())
	through := t.s.at(0)
	for i := range 10 {
		to := through
		to = NewVector(Cursor{Log: to[0].Log, Position: engine.LSN((i + 2) << 20).Position(), Time: engine.Time(1758000000000002 + i)})
		mustDiff(b, w, Diff{From: through, To: to, Schemas: t.s.schemas, Changes: func(emit func(*Entry) error) error {
			for j := i; j < len(t.rows); j += 20 {
				r := t.rows[j]
				r.Stamp.Time += engine.Time(i)
				r.Stamp.Version.Major++
				if err := emit(&Entry{Change: engine.Change{Op: engine.OpPut, Schema: r.Schema, Key: r.Key, Row: r.Row, Stamp: r.Stamp}, Log: to[0].Log, Position: to[0].Position}); err != nil {
					return err
				}
			}
			return nil
		}})
		through = to
	}
	want := len(t.rows)
	t.rows, t.plain = nil, nil
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var most uint64
	for b.Loop() {
		f, err := reader(b, d, func(c *ReaderConfig) { c.Memory, c.Scratch = size/10, spill.NewDir(b.TempDir()) }).Fold(ctx, AsOf{})
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		err = f.Rows(func(*engine.Record) error {
			if n++; n%50_000 == 0 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc-before.HeapAlloc)
			}
			return nil
		})
		if err != nil || n != want {
			b.Fatal(n, err)
		}
		f.Close()
	}
	b.ReportMetric(float64(size)/1e6, "table-MB")
	b.ReportMetric(float64(size)/10/1e6, "limit-MB")
	b.ReportMetric(float64(most)/1e6, "heap-MB")
}

// BenchmarkCommit tells what a commit costs in an archive of 10,000 artifacts.
func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := longStory(4)
			w := openWriter(b, folder(b), func(c *WriterConfig) { c.Formats = []Format{Protobuf, JSONL} })
			a := mustBase(b, w, s.base(2))
			for i := range n - 1 { // the manifest as that many diffs leave it
				err := w.commit(context.Background(), func(m *Manifest) {
					c := *a
					c.ID, c.Kind, c.From = fmt.Sprintf("%016d", i), KindDiff, c.To
					m.Artifacts = append(m.Artifacts, c)
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			at, _ := w.Through()
			i := engine.LSN(1 << 30)
			for b.Loop() {
				i++
				at = NewVector(Cursor{Log: at[0].Log, Position: i.Position()})
				if err := w.Advance(context.Background(), at); err != nil {
					b.Fatal(err)
				}
			}
			data, _ := w.Manifest().encode()
			b.ReportMetric(float64(len(data))/1e3, "manifest-kB")
		})
	}
}
