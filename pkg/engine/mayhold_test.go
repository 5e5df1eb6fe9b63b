package engine_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// A baseline of an origin that is new to a table costs no look at what others have
// written there, whether it comes beside them or in the place of a log that had none of
// the table. One that comes again looks, and what it lacks goes.
func TestBaselineOfNewOriginLooksAtNothing(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]engine.Store{
		"memory": store.NewMemory(store.MemoryOptions{}), "durable": openDurable(t, vfs.NewMem(), false),
	} {
		t.Run(name, func(t *testing.T) { newOriginLooksAtNothing(t, &watched{Store: st}) })
	}
}

func newOriginLooksAtNothing(t *testing.T, w *watched) {
	ctx := t.Context()
	const rows = 500
	src := newByHand()
	e := nodeOver("n", w)
	e.AddSource("up", src, engine.Keep{})
	defer start(t, e)()
	sink := <-src.sinks
	sc := shapeOf(tableA)
	sc.ID = 1
	// take takes a baseline in, and returns how many records of the state it looked at.
	take := func(log engine.LogID, at engine.Position, when engine.Time, instead []engine.LogID, ids ...string) int {
		t.Helper()
		if err := sink.Carry(log, engine.CompareLSN, []string{"up"}, tables); err != nil {
			t.Fatal(err)
		}
		b, err := sink.Baseline(ctx, engine.BaselineSpec{Log: log, Tables: tables, Schemas: []*engine.Schema{sc}, Instead: instead, At: at, Time: when})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if err := b.Rows(tableA, []engine.Record{{Schema: sc, Key: keyOf(id), Row: rowOf(sc, id, "", ""), Stamp: engine.Stamp{Time: when, Origin: log.Origin, Epoch: log.Epoch}}}); err != nil {
				t.Fatal(err)
			}
		}
		w.seen.Store(0)
		if err := b.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		return int(w.seen.Load())
	}
	live := func() int {
		v := e.View()
		defer v.Close()
		all, err := liveRows(v)
		if err != nil {
			t.Fatal(err)
		}
		return len(all[tableA])
	}
	var ids []string
	for i := range rows {
		ids = append(ids, fmt.Sprint("a", i))
	}
	log := func(name string) engine.LogID { return engine.LogID{Origin: name + "#db", Epoch: 1} }
	take(log("a"), "0/10", 10, nil, ids...)
	take(log("empty"), "0/10", 11, nil)
	if n := take(log("b"), "0/10", 20, nil, "b1", "b2"); n > 1 {
		t.Errorf("the baseline of a new origin looked at %d records", n)
	}
	if n := take(log("c"), "0/10", 30, []engine.LogID{log("empty")}, "c"); n > 1 {
		t.Errorf("a baseline in the place of a log without rows looked at %d records", n)
	}
	if n := live(); n != rows+3 {
		t.Errorf("%d rows are there", n)
	}
	if n := take(log("b"), "0/20", 40, nil, "b2"); n < rows || live() != rows+2 {
		t.Errorf("a baseline that came again looked at %d records, and %d rows are there", n, live())
	}
	if n := take(log("d"), "0/10", 50, []engine.LogID{log("c")}); n < rows || live() != rows+1 {
		t.Errorf("a baseline in the place of another log looked at %d records, and %d rows are there", n, live())
	}
}
