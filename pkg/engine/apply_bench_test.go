package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// benchSource mints transactions of 1,000 inserts of about 167 bytes.
type benchSource struct {
	n    int
	done chan struct{}
}

func (s *benchSource) Init(context.Context, engine.Env) (engine.Info, error) {
	return engine.Info{Mints: true, History: "bench"}, nil
}

func (s *benchSource) Baseline(ctx context.Context, sink engine.Sink) error {
	w, err := sink.Baseline(ctx, engine.BaselineSpec{Schemas: []*engine.Schema{benchSchema}, Tables: []engine.TableName{benchSchema.Table}, At: "0/1", Major: 1})
	if err != nil {
		return err
	}
	return w.Commit(ctx)
}

var benchSchema = &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "t"}, Columns: []engine.Column{
	{Name: "id", Number: 1, TypeOID: 20, Key: true}, {Name: "n", Number: 2, TypeOID: 23}, {Name: "name", Number: 3, TypeOID: 25},
}}

func (s *benchSource) Stream(ctx context.Context, _ engine.Cursors, sink engine.Sink) error {
	defer close(s.done)
	const size = 1000
	var buf []byte
	text := fmt.Sprintf("%0120d", 7)
	changes := make([]engine.Change, 0, size)
	for i := 0; i < s.n; i += size {
		buf, changes = buf[:0], changes[:0]
		for j := i; j < i+size; j++ {
			id := fmt.Appendf(nil, "%d", j)
			k := len(buf)
			buf = engine.AppendKeyValue(buf, id)
			r := len(buf)
			buf = engine.AppendRowHeader(buf, 1, 3)
			buf = engine.AppendValue(buf, id)
			buf = engine.AppendValue(buf, "42")
			buf = engine.AppendValue(buf, text)
			changes = append(changes, engine.Change{Op: engine.OpPut, Schema: benchSchema, Key: buf[k:r:r], Row: engine.Row(buf[r:len(buf):len(buf)])})
		}
		lsn := uint64(i + 2)
		err := sink.Apply(ctx, []engine.Transaction{{Position: engine.LSN(lsn).Position(), Major: lsn, Commit: time.Now(), Changes: changes}})
		if err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *benchSource) Ack(engine.Cursor, bool)                        {}
func (s *benchSource) LastAckedPosition(engine.LogID) engine.Position { return "" }
func (s *benchSource) SupportsResume() bool                           { return false }
func (s *benchSource) OrderingGuarantee() engine.Ordering             { return engine.TotalOrder }
func (s *benchSource) ComparePositions(a, b engine.Position) int      { return engine.CompareLSN(a, b) }
func (s *benchSource) PositionToString(p engine.Position) string      { return string(p) }
func (s *benchSource) PositionFromString(p string) (engine.Position, error) {
	return engine.Position(p), nil
}
func (s *benchSource) Pause()  {}
func (s *benchSource) Resume() {}

// BenchmarkApply is the cost of a change from a source's hand to the committed
// state and journal.
func BenchmarkApply(b *testing.B) {
	n := max(b.N/1000, 1) * 1000
	st := store.NewMemory(store.MemoryOptions{JournalBytes: 256 << 20})
	e := engine.New(engine.Options{NodeID: "bench/n", Store: st, Logger: slog.New(slog.DiscardHandler)})
	s := &benchSource{n: n, done: make(chan struct{})}
	e.AddSource("db", s, engine.Keep{})
	ctx, cancel := context.WithCancel(b.Context())
	ran := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { ran <- e.Run(ctx) }()
	v := e.Changed()
	for {
		<-v
		v = e.Changed()
		st := e.Status()
		if len(st.Tables) == 1 && st.Tables[0].Rows == n {
			break
		}
	}
	b.StopTimer()
	cancel()
	<-ran
}
