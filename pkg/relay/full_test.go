package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testlog"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// A leaf keeps its log above what is stable. When that is as much as it may be, writes
// wait until the roots have more; or the oldest goes.
func TestOnFull(t *testing.T) {
	t.Parallel()
	for _, on := range []engine.OnFull{engine.OnFullBlock, engine.OnFullRebaseline} {
		t.Run(string(on), func(t *testing.T) {
			t.Parallel()
			said := &testlog.Buffer{}
			n := &node{t: t, id: "leaf", store: store.NewMemory(store.MemoryOptions{})}
			var stable atomic.Value // engine.Position
			stable.Store(engine.Position(""))
			n.Engine = engine.New(engine.Options{
				NodeID: n.id, Store: n.store, Logger: slog.New(slog.NewTextHandler(said, nil)),
				Retention: engine.Retention{Bytes: 10_000, MaxBytes: 20_000, OnFull: on, Stable: func(engine.LogID) (engine.Position, bool) {
					return stable.Load().(engine.Position), true
				}},
			})
			var err error
			if n.in, err = ingest.New(ingest.Config{Tables: []ingest.Table{{Name: readings, Columns: []ingest.Column{
				{Name: "id", Type: "bigint", Key: true}, {Name: "v", Type: "bigint"}}}}}); err != nil {
				t.Fatal(err)
			}
			n.AddSource("in", n.in, engine.Keep{})
			n.start()
			n.until("the leaf is ready", func() bool { return len(n.Adverts()) == 1 })
			log := n.Adverts()[0].Log
			trim := func() {
				if err := n.Trim(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			held := func() int {
				v := n.View()
				defer v.Close()
				info, _ := v.Log(log)
				return info.Bytes
			}
			stable.Store(n.Adverts()[0].Head)
			for i := 0; held() <= 20_000; i++ {
				n.write(ingest.Put, readings, "id", i, "v", i)
			}
			trim()
			full := n.Status().Full
			if (full != nil) != (on == engine.OnFullBlock) {
				t.Fatalf("the logs hold %d bytes, and status says %+v", held(), full)
			}
			if on == engine.OnFullRebaseline {
				if held() > 20_000 {
					t.Errorf("the logs hold %d bytes", held())
				}
				for i := 0; held() <= 20_000; i++ {
					n.write(ingest.Put, readings, "id", i, "v", i)
				}
				trim()
				acknowledged := fmt.Sprintf("acknowledged=%s\n", stable.Load())
				if got := said.String(); strings.Count(got, "log entries went") != 1 || !strings.Contains(got, acknowledged) {
					t.Errorf("it is to be said once that entries went, with %s; said is\n%s", acknowledged, got)
				}
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			id, v := "9999", "1"
			if _, err := n.in.Write(ctx, &ingest.Batch{Ops: []ingest.Op{{Kind: ingest.Put, Table: readings, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "v", Value: &v}}}}}); err == nil {
				t.Error("a write was taken though the logs are full")
			}
			stable.Store(n.Adverts()[0].Head)
			trim()
			if f := n.Status().Full; f != nil {
				t.Errorf("all is stable, and status says %+v", f)
			}
			n.write(ingest.Put, readings, "id", 10_000, "v", 1)
		})
	}
}
