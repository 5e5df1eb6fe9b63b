package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// rebaselining is a node with one database, and a way to make it lose its slot.
type rebaselining struct {
	*engine.Engine
	db   *database
	lost atomic.Bool
	edit func(content) // nil, or alters what the next baselines read
}

func newRebaselining(t *testing.T, others ...engine.SyncSource) *rebaselining {
	r := &rebaselining{Engine: node("n"), db: newDatabase()}
	r.AddSource("db", &dbSource{db: r.db, fault: func(stage string) error {
		if stage == "stream" && r.lost.Swap(false) {
			return engine.ErrReBaselineRequired
		}
		return nil
	}, edit: func(c content) content {
		if c = c.clone(); r.edit != nil {
			r.edit(c)
		}
		return c
	}}, engine.Keep{})
	for i, s := range others {
		r.AddSource(fmt.Sprint("other", i), s, engine.Keep{})
	}
	start(t, r.Engine)
	return r
}

// rebaseline makes the source lose its slot with work being done meanwhile.
func (r *rebaselining) rebaseline(ops ...op) {
	r.lost.Store(true)
	r.db.commit(time.Now(), ops...)
	settle()
}

func put(id, v string) op { return op{kind: "put", table: tableA, id: id, v: v} }

func TestRebaselineTellsOnlyDifferences(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRebaselining(t)
		r.db.commit(time.Now(), put("same", "1"), put("changed", "1"), put("gone", "1"))
		settle()
		v := r.View()
		before, info := dump(v), v.Logs()[0]
		v.Close()
		r.rebaseline()
		v = r.View()
		if after := dump(v); after != before {
			t.Errorf("a re-baseline that changes nothing leaves\n%swhere there was\n%s", after, before)
		}
		if now := v.Logs()[0]; now.ID != info.ID || now.Changes != info.Changes {
			t.Errorf("a re-baseline that changes nothing is told as %+v, after %+v", now, info)
		}
		v.Close()
		info.Changes += 3
		r.rebaseline(put("changed", "2"), op{kind: "delete", table: tableA, id: "gone"}, put("new", "1"))
		v = r.View()
		defer v.Close()
		if now := v.Logs()[0]; now.ID != info.ID || now.Changes != info.Changes {
			t.Errorf("three rows changed, and the log is %+v, want %d changes", now, info.Changes)
		}
		if err := agrees(v, info.ID, r.db); err != nil {
			t.Error(err)
		}
		if st := r.Status().Sources[0]; st.Rebaselines != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// A difference too large for one transaction empties the log: a reader behind
// it finds a gap, and takes a snapshot.
func TestRebaselineTooLargeToTell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRebaselining(t)
		settle()
		before := advertised(t, r.Engine)
		var ops []op
		for i := range 100 {
			ops = append(ops, op{kind: "put", table: tableB, id: fmt.Sprint(i), doc: strings.Repeat("x", 100_000)})
		}
		r.rebaseline(ops...)
		a := advertised(t, r.Engine)
		if _, head := r.db.head(); a.Log != before.Log || a.Oldest != head || a.Head != head {
			t.Errorf("advertised %+v, after %+v", a, before)
		}
		v := r.View()
		defer v.Close()
		if _, err := v.ReadLog(before.Log, before.Head, 1); !errors.Is(err, engine.ErrGap) {
			t.Errorf("a reader that is behind gets %v", err)
		}
		if err := agrees(v, a.Log, r.db); err != nil {
			t.Error(err)
		}
	})
}

// A baseline that finds other rows at the very position of the log cannot be
// told in it: a reader at that position would see nothing. So it is a new epoch.
func TestRebaselineAtTheSamePosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRebaselining(t)
		r.db.commit(time.Now(), put("k", "1"))
		settle()
		before := advertised(t, r.Engine)
		r.edit = func(c content) { c[tableA]["k"] = [2]string{"2"} }
		r.lost.Store(true)
		r.db.wake()
		settle()
		after := advertised(t, r.Engine)
		if after.Log.Epoch <= before.Log.Epoch || after.Head != before.Head {
			t.Errorf("advertised %+v, after %+v", after, before)
		}
		v := r.View()
		defer v.Close()
		if rows, err := liveRows(v); err != nil || rows[tableA]["k"][0] != "2" {
			t.Errorf("rows %v, %v", rows, err)
		}
	})
}

// R09, and the identity rules: a re-baseline leaves alone what other origins
// wrote since, also over rows of its own.
func TestCaseR09(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		other := newByHand()
		r := newRebaselining(t, other)
		r.db.commit(time.Now(), put("both", "mine"), put("deleted", "mine"))
		settle()
		sink := <-other.sinks
		log := engine.LogID{Origin: "o#db", Epoch: 1}
		sc := shapeOf(tableA)
		sc.ID = 1
		if err := sink.Carry(log, engine.CompareLSN, []string{"o"}, tables); err != nil {
			t.Fatal(err)
		}
		at := engine.TimeOf(time.Now())
		stamp := engine.Stamp{Time: at, Origin: log.Origin, Epoch: 1}
		w, err := sink.Baseline(t.Context(), engine.BaselineSpec{Log: log, Tables: tables, Schemas: []*engine.Schema{sc}, At: "0/1", Time: at})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Rows(tableA, []engine.Record{
			{Schema: sc, Key: keyOf("both"), Row: rowOf(sc, "both", "other's", ""), Stamp: stamp},
			{Schema: sc, Key: keyOf("deleted"), Deleted: true, Stamp: stamp},
			{Schema: sc, Key: keyOf("only"), Row: rowOf(sc, "only", "other's", ""), Stamp: stamp},
		}); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		v := r.View()
		before := dump(v)
		v.Close()
		if strings.Count(before, "o#db@1") != 3 {
			t.Fatalf("the other origin's writes are newer, and the state is\n%s", before)
		}
		r.rebaseline()
		v = r.View()
		defer v.Close()
		if after := dump(v); after != before || r.Status().Sources[0].Rebaselines != 1 {
			t.Errorf("after a re-baseline that found nothing new the state is\n%sand was\n%s", after, before)
		}
	})
}

// A row can be in the state before its log is there, by way of another log's
// baseline. A baseline of its own log that is older does not delete it.
func TestBaselineSparesNewerRows(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	a, b := engine.LogID{Origin: "a#db", Epoch: 1}, engine.LogID{Origin: "b#db", Epoch: 1}
	sc := shapeOf(tableA)
	sc.ID = 1
	rec := func(id string, at engine.Time) engine.Record {
		return engine.Record{Schema: sc, Key: keyOf(id), Row: rowOf(sc, id, "", ""), Stamp: engine.Stamp{Time: at, Origin: a.Origin, Epoch: 1}}
	}
	e, sink, stop := carrying(t, "n", b, "0/1", map[engine.LogID][]*engine.Schema{a: {sc}})
	defer stop()
	take := func(log engine.LogID, at engine.Position, when engine.Time, rs ...engine.Record) {
		t.Helper()
		if err := sink.Carry(log, engine.CompareLSN, []string{"up"}, tables); err != nil {
			t.Fatal(err)
		}
		w, err := sink.Baseline(ctx, engine.BaselineSpec{Log: log, Tables: tables, Schemas: []*engine.Schema{sc}, Others: map[engine.LogID][]*engine.Schema{a: {sc}}, At: at, Time: when})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Rows(tableA, rs); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	take(b, "0/2", 2, rec("deleted at 10", 5), rec("written at 20", 20))
	take(a, "0/10", 10)
	v := e.View()
	defer v.Close()
	rows, err := liveRows(v)
	if _, spared := rows[tableA]["written at 20"]; err != nil || len(rows[tableA]) != 1 || !spared {
		t.Errorf("rows %v, %v", rows, err)
	}
	// and though the state has it, readers of its log are still to be told
	take(a, "0/30", 30, rec("written at 20", 20))
	v2 := e.View()
	defer v2.Close()
	if l, _ := v2.Log(a); l.Oldest != "0/10" || l.Head != "0/30" || l.Changes != 1 {
		t.Errorf("the log is %+v", l)
	}
	// rows of a log that is not held cannot be told: readers take a snapshot
	foreign := rec("of an older epoch", 31)
	foreign.Stamp.Epoch = 0
	take(a, "0/40", 40, rec("written at 20", 20), foreign)
	v3 := e.View()
	defer v3.Close()
	if l, _ := v3.Log(a); l.Oldest != "0/40" || l.Head != "0/40" {
		t.Errorf("the log is %+v", l)
	}
	// that a truncate deleted a row, its own log tells, whoever knew it first
	truncated := rec("written at 20", 20)
	truncated.Deleted, truncated.Row = true, nil
	take(b, "0/3", 3, truncated)
	take(a, "0/50", 50, truncated, foreign)
	v4 := e.View()
	defer v4.Close()
	if l, _ := v4.Log(a); l.Oldest != "0/40" || l.Head != "0/50" || l.Changes != 1 {
		t.Errorf("the log is %+v", l)
	}
	if r, ok, err := v4.Get(tableA, keyOf("written at 20")); err != nil || !ok || !r.Deleted {
		t.Errorf("the row is %+v, %v, %v", r, ok, err)
	}
}

// A truncate covers what a later baseline brings of before it, also where the
// table has no row.
func TestBaselineKnowsTruncates(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	carrier, a := engine.LogID{Origin: "relay", Epoch: 1}, engine.LogID{Origin: "a#db", Epoch: 1}
	sc := shapeOf(tableA)
	sc.ID = 1
	stamp := func(at engine.Time) engine.Stamp { return engine.Stamp{Time: at, Origin: a.Origin, Epoch: 1} }
	others := map[engine.LogID][]*engine.Schema{a: {sc}}
	e, sink, stop := carrying(t, "n", carrier, "0/1", others)
	defer stop()
	w := engine.NewBlockBuilder(carrier, "0/1")
	w.Add(&engine.Transaction{Log: carrier, Position: "0/2", Time: 2, Changes: []engine.Change{{Op: engine.OpTruncate, Schema: sc, Stamp: stamp(10)}}})
	if err := sink.ApplyBlocks(ctx, engine.CursorKey{Log: carrier}, w.Blocks()); err != nil {
		t.Fatal(err)
	}
	bw, err := sink.Baseline(ctx, engine.BaselineSpec{Log: carrier, Tables: tables, Others: others, At: "0/3", Time: 3})
	if err != nil {
		t.Fatal(err)
	}
	for id, at := range map[string]engine.Time{"before": 9, "after": 11} {
		if err := bw.Rows(tableA, []engine.Record{{Schema: sc, Key: keyOf(id), Row: rowOf(sc, id, "", ""), Stamp: stamp(at)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := bw.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	v := e.View()
	defer v.Close()
	rows, err := liveRows(v)
	if _, ok := rows[tableA]["after"]; err != nil || !ok || len(rows[tableA]) != 1 {
		t.Errorf("rows %v, %v", rows, err)
	}
}

// A baseline of an older epoch that waits for the store while that of a newer
// one is committed is refused.
func TestBaselineOfAnOlderEpochComesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		w := &watched{Store: store.NewMemory(store.MemoryOptions{})}
		src := newByHand()
		e := nodeOver("n", w)
		e.AddSource("up", src, engine.Keep{})
		defer start(t, e)()
		sink := <-src.sinks
		var writers []engine.BaselineWriter
		for _, epoch := range []engine.Epoch{1, 2} {
			log := engine.LogID{Origin: "o#db", Epoch: epoch}
			if err := sink.Carry(log, engine.CompareLSN, []string{"up"}, tables); err != nil {
				t.Fatal(err)
			}
			bw, err := sink.Baseline(ctx, engine.BaselineSpec{Log: log, Tables: tables, At: "0/1", Time: engine.Time(epoch)})
			if err != nil {
				t.Fatal(err)
			}
			writers = append(writers, bw)
		}
		late := make(chan error, 1)
		w.before = func() error {
			w.before = nil
			go func() { late <- writers[0].Commit(ctx) }()
			synctest.Wait() // it waits for its turn
			return nil
		}
		if err := writers[1].Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-late; !errors.Is(err, engine.ErrStaleEpoch) {
			t.Errorf("it gives %v", err)
		}
		if a := advertised(t, e); a.Log.Epoch != 2 {
			t.Errorf("advertised: %+v", a)
		}
	})
}

// A transaction in parts that began before the cursor, as a re-baseline of the
// carrier is told, is taken whole; one whose parts were not all there when a
// commit failed is asked for again.
func TestPartsOfATransaction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := newDatabase()
	big := func(v string) op { return op{kind: "put", table: tableB, id: v, v: v, doc: strings.Repeat(v, 50_000)} }
	for _, id := range []string{"p", "q"} {
		db.commit(time.Now(), put(id, "1"))
	}
	db.commit(time.Now(), big("a"), big("b"), big("c"))
	info, blocks := mintedLog(t, "origin", db)
	txs, _ := unpack(info.ID, blocks)
	key := engine.CursorKey{Log: info.ID}
	at := func(e *engine.Engine) engine.Position {
		v := e.View()
		defer v.Close()
		return v.Cursors()[key].Position
	}

	// the last two transactions as one, that follows the first
	one := txs[2]
	one.Changes = append(append([]engine.Change{}, txs[1].Changes...), one.Changes...)
	w := engine.NewBlockBuilder(info.ID, info.Oldest)
	w.Add(&txs[0])
	first := w.Blocks()
	w.Add(&one)
	net := w.Blocks()
	if len(net) < 3 {
		t.Fatalf("%d parts", len(net))
	}
	for _, b := range net {
		b.Schemas = txs[0].Schemas
	}
	e, sink, stop := carrying(t, "n", info.ID, info.Oldest, nil)
	defer stop()
	w = engine.NewBlockBuilder(info.ID, txs[0].Position)
	w.Add(&txs[1])
	for _, bs := range [][]*engine.Block{first, w.Blocks()} {
		if err := sink.ApplyBlocks(ctx, key, bs); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range net {
		if now := at(e); now != txs[1].Position {
			t.Fatalf("after %d of %d parts the cursor is at %s", i, len(net), now)
		}
		if err := sink.ApplyBlocks(ctx, key, []*engine.Block{cloneBlock(b)}); err != nil {
			t.Fatal(err)
		}
	}
	v := e.View()
	if err := agrees(v, info.ID, db); err != nil {
		t.Error(err)
	}
	v.Close()

	// the commit fails of what comes with the first part
	fail := errors.New("the disk is full")
	var failing atomic.Bool
	src := newByHand()
	e = nodeOver("n2", &watched{Store: store.NewMemory(store.MemoryOptions{}), before: func() error {
		if failing.Load() {
			return fail
		}
		return nil
	}})
	e.AddSource("up", src, engine.Keep{})
	defer start(t, e)()
	sink = <-src.sinks
	if err := sink.Carry(info.ID, engine.CompareLSN, []string{"up"}, tables); err != nil {
		t.Fatal(err)
	}
	bw, err := sink.Baseline(ctx, engine.BaselineSpec{Log: info.ID, Tables: tables, Schemas: txs[0].Schemas, At: info.Oldest, Time: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := bw.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	failing.Store(true)
	if err := sink.ApplyBlocks(ctx, key, []*engine.Block{cloneBlock(first[0]), cloneBlock(net[0])}); !errors.Is(err, fail) {
		t.Fatalf("a commit that fails gives %v", err)
	}
	failing.Store(false)
	if err := sink.ApplyBlocks(ctx, key, []*engine.Block{cloneBlock(net[1])}); !errors.Is(err, engine.ErrHole) || at(e) != info.Oldest {
		t.Errorf("a part after a failed commit gives %v, and the cursor is at %s", err, at(e))
	}
}

// R13: a block that cannot be applied holds its own log, which says so with
// the place; other logs go on.
func TestCaseR13(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := newDatabase()
	db.commit(time.Now(), put("k", "1"))
	db.commit(time.Now(), put("k", "2"))
	info, blocks := mintedLog(t, "origin", db)
	txs, _ := unpack(info.ID, blocks)
	for damage, spoil := range map[string]func(*engine.Block){
		"cut short":      func(b *engine.Block) { b.Payload = b.Payload[:len(b.Payload)-1] },
		"unknown record": func(b *engine.Block) { b.Payload = append(b.Payload, 0x77) },
		"unknown schema": func(b *engine.Block) { b.Schemas = nil },
	} {
		t.Run(damage, func(t *testing.T) {
			e, sink, stop := carrying(t, "n", info.ID, info.Oldest, nil)
			defer stop()
			w := engine.NewBlockBuilder(info.ID, info.Oldest)
			w.Add(&txs[0])
			w.Add(&txs[1])
			b := w.Blocks()[0]
			b.Schemas = txs[0].Schemas
			good := cloneBlock(b)
			spoil(b)
			key := engine.CursorKey{Log: info.ID}
			for range 2 {
				err := sink.ApplyBlocks(ctx, key, []*engine.Block{b})
				if !errors.Is(err, engine.ErrCorruptRow) || !strings.Contains(err.Error(), info.ID.String()) || !strings.Contains(err.Error(), string(b.Position)) {
					t.Errorf("it gives %v", err)
				}
				v := e.View()
				if got := dump(v); got != "" || v.Cursors()[key].Position != info.Oldest {
					t.Errorf("at %s the state is\n%s", v.Cursors()[key].Position, got)
				}
				v.Close()
			}
			if err := sink.ApplyBlocks(ctx, key, []*engine.Block{good}); err != nil {
				t.Errorf("the same block, whole, gives %v", err)
			}
		})
	}
}

// R15: in a ring each node applies each change once, and traffic stops.
func TestCaseR15(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		var engines []*engine.Engine
		var dbs []*database
		for i := range n {
			engines, dbs = append(engines, node(fmt.Sprint("n", i))), append(dbs, newDatabase())
		}
		for i, e := range engines {
			e.AddSource("db", &dbSource{db: dbs[i]}, engine.Keep{})
			e.AddSource("ring", &hop{up: pointing(engines[(i+n-1)%n]), maxBytes: 1000, self: e.NodeID()}, engine.Keep{})
		}
		for _, e := range engines {
			defer start(t, e)()
		}
		settle()
		dbs[1].commit(time.Now(), put("k", "1"))
		settle()
		var want string
		for i, e := range engines {
			v := e.View()
			info := ownLog(v, engine.Origin("n1", "db"))
			if info.Changes != 1 || len(v.Logs()) != n {
				t.Errorf("node %d has the log as %+v, and %d logs", i, info, len(v.Logs()))
			}
			if want == "" {
				want = dump(v)
			}
			if got := dump(v); got != want || !strings.Contains(got, "n1#db@") {
				t.Errorf("node %d has\n%sand node 0\n%s", i, got, want)
			}
			v.Close()
		}
	})
}

// R03: the same log by redundant paths at once is applied, and logged, once.
func TestCaseR03(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	for i := range 50 {
		db.commit(time.Now(), put(fmt.Sprint("k", i%7), fmt.Sprint(i)))
	}
	info, blocks := mintedLog(t, "origin", db)
	txs, _ := unpack(info.ID, blocks)
	e, sink, stop := carrying(t, "n", info.ID, info.Oldest, nil)
	defer stop()
	errs := make(chan error)
	for range 4 {
		go func() {
			prev := info.Oldest
			for i := range txs {
				w := engine.NewBlockBuilder(info.ID, prev)
				w.Add(&txs[i])
				b := w.Blocks()[0]
				b.Schemas, prev = txs[0].Schemas, txs[i].Position
				if err := sink.ApplyBlocks(context.Background(), engine.CursorKey{Log: info.ID}, []*engine.Block{b}); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	v := e.View()
	defer v.Close()
	if err := agrees(v, info.ID, db); err != nil {
		t.Error(err)
	}
	if l, _ := v.Log(info.ID); l.Changes != 50 {
		t.Errorf("50 changes came by 4 paths, and %d are in the log", l.Changes)
	}
	for _, l := range e.Status().Logs {
		if l.ID == info.ID && l.Repeated != 150 {
			t.Errorf("50 changes came by 4 paths, and %d are counted as repeated", l.Repeated)
		}
	}
}

// R08: a long tail that is here already comes again: nothing of it is looked at or
// committed, and other logs go on.
func TestCaseR08(t *testing.T) {
	t.Parallel()
	const changes = 100_000
	db := newDatabase()
	for range changes / 100 {
		var ops []op
		for i := range 100 {
			ops = append(ops, put(fmt.Sprint("k", i), "v"))
		}
		db.commit(time.Now(), ops...)
	}
	info, blocks := mintedLog(t, "origin", db)
	e, sink, stop := carrying(t, "n", info.ID, info.Oldest, nil)
	defer stop()
	key := engine.CursorKey{Log: info.ID}
	clone := func() (all []*engine.Block) {
		for _, b := range blocks {
			all = append(all, cloneBlock(b))
		}
		return all
	}
	if err := sink.ApplyBlocks(context.Background(), key, clone()); err != nil {
		t.Fatal(err)
	}
	v := e.View()
	had, _ := v.Log(info.ID)
	v.Close()
	changed := e.Changed()
	for _, b := range clone() {
		b.Payload = []byte("it is not looked at")
		if err := sink.ApplyBlocks(context.Background(), key, []*engine.Block{b}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-changed:
		t.Error("something was committed")
	default:
	}
	v = e.View()
	defer v.Close()
	if l, _ := v.Log(info.ID); l != had {
		t.Errorf("the log was %+v, and is %+v", had, l)
	}
	for _, l := range e.Status().Logs {
		if l.ID == info.ID && l.Repeated != changes {
			t.Errorf("%d repeated changes are counted, of %d", l.Repeated, changes)
		}
	}
}
