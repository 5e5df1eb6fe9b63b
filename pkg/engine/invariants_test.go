package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// agrees checks that a view's state, log and cursor say the same, and that
// they are what the database was at the cursor.
func agrees(v engine.View, log engine.LogID, db *database) error {
	info, ok := v.Log(log)
	if !ok {
		return engine.ErrUnknownLog
	}
	c, ok := v.Cursors()[engine.CursorKey{Log: log}]
	if !ok || c.Position != info.Head || c.Time != info.Time {
		return fmt.Errorf("cursor at %s, time %d; log %s at %s, time %d", c.Position, c.Time, log, info.Head, info.Time)
	}
	want, err := db.at(c.Position)
	if err != nil {
		return err
	}
	got, err := liveRows(v)
	if err != nil {
		return err
	}
	if got.String() != want.String() {
		return fmt.Errorf("at %s the state is\n%sand the database was\n%s", c.Position, got, want)
	}
	return nil
}

// asDatabase is what a replica checks at the end of each transaction.
func asDatabase(db *database) func(engine.Position, content) error {
	return func(at engine.Position, rows content) error {
		want, err := db.at(at)
		if err == nil && rows.String() != want.String() {
			err = fmt.Errorf("at %s a reader of the log has\n%sand the database was\n%s", at, rows, want)
		}
		return err
	}
}

// Invariants 1 and 3, while everything runs at once: whoever looks, whenever,
// sees a state, a log and a cursor that agree, and whole transactions.
func TestReadersSeeWholeCommits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		db := newDatabase()
		work := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []op { return drawOps(t, true) }), 10, 30).Draw(t, "work")
		src := &dbSource{db: db, batch: rapid.IntRange(1, 4).Draw(t, "batch"), run: rapid.IntRange(0, 3).Draw(t, "run")}
		maxBytes := rapid.SampledFrom([]int{1, 100, 1 << 20}).Draw(t, "maxBytes")
		w := &watched{Store: drawStore(t)}
		e := nodeOver("n", w)
		var after error // the first commit after which something did not agree
		w.after = func() {
			v := w.View()
			defer v.Close()
			if logs := v.Logs(); after == nil {
				after = agrees(v, logs[0].ID, db)
			}
		}
		e.AddSource("db", src, engine.Keep{})
		stop := start(t, e)
		await(t, e, "the baseline", func(v engine.View) bool { return len(v.Logs()) == 1 })
		v := e.View()
		log := v.Logs()[0].ID
		reader := replica{log: log}
		if err := reader.copyFrom(v); err != nil {
			t.Fatal(err)
		}
		v.Close()

		written := make(chan struct{})
		errs := make(chan error, 3)
		go func() {
			defer close(written)
			for _, ops := range work {
				db.commit(time.Now(), ops...)
				runtime.Gosched()
			}
			errs <- nil
		}()
		watch := func(look func(engine.View) error) {
			var err error
			for over := false; err == nil && !over; runtime.Gosched() {
				v := e.View()
				_, head := db.head()
				select {
				case <-written:
					over = v.Logs()[0].Head == head
				default:
				}
				err = look(v)
				v.Close()
			}
			errs <- err
		}
		go watch(func(v engine.View) error { return agrees(v, log, db) })
		go watch(func(v engine.View) error { return reader.read(v, maxBytes, asDatabase(db)) })
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		stop()
		if after != nil {
			t.Error(after)
		}
		if _, head := db.head(); reader.at != head {
			t.Errorf("a reader of the log came to %s, and the database to %s", reader.at, head)
		}
	})
}

// Invariant 2: a baseline at P and the changes after P are the source at any
// later position, whatever happens while the baseline runs. A baseline in the
// same epoch reaches the log's readers as one transaction; one in a new epoch
// replaces the log.
func TestSeam(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			db := newDatabase()
			var lost atomic.Bool
			var history atomic.Int64
			var meanwhile atomic.Pointer[[]op]
			src := &dbSource{
				db: db, batch: rapid.IntRange(1, 3).Draw(t, "batch"), again: rapid.IntRange(0, 2).Draw(t, "again"),
				history: func() string { return fmt.Sprint("h", history.Load()) },
				during: func() {
					if ops := meanwhile.Swap(nil); ops != nil {
						db.commit(time.Now(), *ops...)
					}
				},
				fault: func(stage string) error {
					if stage == "stream" && lost.Swap(false) {
						return fmt.Errorf("the slot is gone: %w", engine.ErrReBaselineRequired)
					}
					return nil
				},
			}
			e := node("n")
			e.AddSource("db", src, engine.Keep{})
			defer start(t, e)()
			var reader replica
			rebaselines := 0
			for range rapid.IntRange(2, 8).Draw(t, "rounds") {
				newEpoch := false
				switch rapid.IntRange(0, 3).Draw(t, "happens") {
				case 0:
					lost.Store(true)
					rebaselines++
				case 1:
					lost.Store(true)
					newEpoch = true
					history.Add(1)
					rebaselines++
				}
				ops := drawOps(t, false)
				meanwhile.Store(&ops)
				for range rapid.IntRange(1, 4).Draw(t, "writes") { // the first wakes the source
					db.commit(time.Now(), drawOps(t, false)...)
				}
				time.Sleep(time.Minute)
				synctest.Wait()

				v := e.View()
				info := ownLog(v, engine.Origin("n", "db"))
				if _, head := db.head(); info.Head != head {
					t.Fatalf("at rest at %s, and the database is at %s: %+v", info.Head, head, e.Status())
				}
				if err := agrees(v, info.ID, db); err != nil {
					t.Fatal(err)
				}
				if len(v.Logs()) != 1 {
					t.Fatalf("older epochs are still there: %v", v.Logs())
				}
				if first := reader.rows == nil; first || newEpoch {
					if !first && info.ID.Epoch <= reader.log.Epoch {
						t.Fatalf("another history has epoch %d, after %d", info.ID.Epoch, reader.log.Epoch)
					}
					reader = replica{log: info.ID}
					if err := reader.copyFrom(v); err != nil {
						t.Fatal(err)
					}
				}
				if err := reader.read(v, 100, asDatabase(db)); err != nil {
					t.Fatal(err)
				}
				if reader.at != info.Head {
					t.Fatalf("a reader of the log came to %s of %s", reader.at, info.Head)
				}
				if st := e.Status().Sources[0]; st.Rebaselines != rebaselines {
					t.Fatalf("%d re-baselines are counted, and there were %d", st.Rebaselines, rebaselines)
				}
				v.Close()
			}
		})
	})
}

// mintedLog returns a log of a database from its first transaction on, as an
// engine mints it.
func mintedLog(t fatal, id string, db *database) (engine.LogInfo, []*engine.Block) {
	empty := newDatabase()
	e := node(id)
	e.AddSource("db", &dbSource{db: empty}, engine.Keep{})
	stop := start(t, e)
	await(t, e, "the baseline", func(v engine.View) bool { return len(v.Logs()) == 1 })
	for _, c := range db.commits[1:] {
		empty.commit(c.when, c.ops...)
	}
	_, head := db.head()
	await(t, e, "the head", func(v engine.View) bool { return v.Logs()[0].Head == head })
	stop()
	v := e.View()
	defer v.Close()
	info := v.Logs()[0]
	blocks, err := v.ReadLog(info.ID, info.Oldest, 1<<30)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for i := range blocks {
		blocks[i] = cloneBlock(blocks[i])
	}
	return info, blocks
}

// unpack returns the transactions in blocks.
func unpack(log engine.LogID, blocks []*engine.Block) (txs []engine.Transaction, changes []engine.Change) {
	schemas := map[uint32]*engine.Schema{}
	for _, b := range blocks {
		for _, s := range b.Schemas {
			schemas[s.ID] = s
		}
		r := b.Reader(log, func(_ engine.LogID, id uint32) *engine.Schema { return schemas[id] })
		for r.Next() {
			if r.IsBegin {
				if b.Part == 0 {
					txs = append(txs, engine.Transaction{Log: log, Position: r.Begin.Position, Time: r.Begin.Time, Major: r.Begin.Major})
				}
				continue
			}
			c := r.Change
			c.Key, c.Row = slices.Clone(c.Key), slices.Clone(c.Row)
			t := &txs[len(txs)-1]
			t.Changes = append(t.Changes, c)
			changes = append(changes, c)
		}
		if r.Err() != nil {
			panic(r.Err())
		}
	}
	for _, s := range schemas {
		txs[0].Schemas = append(txs[0].Schemas, s)
	}
	return txs, changes
}

// carrying returns an engine that carries a log, empty at a position, and the
// sink to feed it by.
func carrying(t fatal, id string, log engine.LogID, at engine.Position, others map[engine.LogID][]*engine.Schema) (*engine.Engine, engine.Sink, func()) {
	src := newByHand()
	src.baseline = func(ctx context.Context, sink engine.Sink) error {
		if err := sink.Carry(log, engine.CompareLSN, []string{"up"}, tables); err != nil {
			return err
		}
		w, err := sink.Baseline(ctx, engine.BaselineSpec{Log: log, Tables: tables, At: at, Time: 1, Others: others})
		if err != nil {
			return err
		}
		return w.Commit(ctx)
	}
	e := node(id)
	e.AddSource("up", src, engine.Keep{})
	stop := start(t, e)
	return e, <-src.sinks, stop
}

// Invariant 4: a cursor never goes back, and never passes what was not
// applied, whatever is sent: repeated, reordered, with holes, cut otherwise.
func TestCursorIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		db := newDatabase()
		for range rapid.IntRange(4, 20).Draw(t, "transactions") {
			db.commit(time.Now(), drawOps(t, true)...)
		}
		info, blocks := mintedLog(t, "origin", db)
		log, key := info.ID, engine.CursorKey{Log: info.ID}
		txs, _ := unpack(log, blocks)
		cuts := [][]*engine.Block{blocks}
		for range 2 {
			w := engine.NewBlockBuilder(log, info.Oldest)
			var cut []*engine.Block
			for i := range txs {
				w.Add(&txs[i])
				if rapid.Bool().Draw(t, "cut here") {
					cut = append(cut, w.Blocks()...)
				}
			}
			cuts = append(cuts, append(cut, w.Blocks()...))
		}
		schemas := txs[0].Schemas
		e, sink, stop := carrying(t, "n", log, info.Oldest, nil)
		defer stop()
		at := info.Oldest
		reader := replica{log: log, at: at, rows: db.states[0].clone()}
		send := func(blocks []*engine.Block) {
			var copies []*engine.Block
			for _, b := range blocks {
				c := cloneBlock(b)
				c.Schemas = schemas
				copies = append(copies, c)
			}
			err := sink.ApplyBlocks(context.Background(), key, copies)
			v := e.View()
			defer v.Close()
			now := v.Cursors()[key].Position
			switch {
			case err != nil && !errors.Is(err, engine.ErrHole):
				t.Fatal(err)
			case err != nil && now != at:
				t.Fatalf("%v: the cursor went from %s to %s", err, at, now)
			case engine.CompareLSN(now, at) < 0:
				t.Fatalf("the cursor went back from %s to %s", at, now)
			}
			if err := agrees(v, log, db); err != nil {
				t.Fatal(err)
			}
			if err := reader.read(v, 100, asDatabase(db)); err != nil || reader.at != now {
				t.Fatalf("a reader of the log comes to %s of %s: %v", reader.at, now, err)
			}
			at = now
		}
		for range rapid.IntRange(1, 30).Draw(t, "sendings") {
			cut := rapid.SampledFrom(cuts).Draw(t, "cut")
			from := rapid.IntRange(0, len(cut)-1).Draw(t, "from")
			some := slices.Clone(cut[from:rapid.IntRange(from+1, len(cut)).Draw(t, "to")])
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0:
				some = rapid.Permutation(some).Draw(t, "order")
			case 1:
				some = append(some, some...)
			case 2:
				some = slices.Delete(some, 0, rapid.IntRange(0, 1).Draw(t, "hole"))
			}
			send(some)
		}
		for _, cut := range cuts {
			send(cut)
		}
		v := e.View()
		defer v.Close()
		if l, _ := v.Log(log); at != info.Head || l.Changes != info.Changes {
			t.Fatalf("everything was sent up to %s, %d changes, and the log is %+v", info.Head, info.Changes, l)
		}
	})
}

// Invariant 9: any order, repetition and path of the same stamped changes ends
// in the state that the naive model gives for all of them. (The nodes are all
// there from the start: a baseline does not say which truncates came before it,
// so what an unordered log brings of before them is not known to be covered.)
func TestAnyOrderEndsTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		changes, schemas := drawHistory(t)
		want := expected(changes)
		for path := range 3 {
			var stops []func()
			first, sink, stop := carrying(t, "e0", engine.LogID{Origin: "relay", Epoch: 1}, "0/1", schemas)
			stops = append(stops, stop)
			last := first
			if path > 0 {
				for i := range 3 { // three hops
					e := nodeOver(fmt.Sprint("e", i+1), drawStore(t))
					e.AddSource("up", &hop{up: pointing(last), maxBytes: 100, others: slices.Collect(maps.Keys(schemas))}, engine.Keep{})
					stops = append(stops, start(t, e))
					await(t, e, "the baseline", func(v engine.View) bool { return len(v.Logs()) == 1 })
					last = e
				}
			}
			// every change at least once, in any order, in transactions of any size
			var all []int
			for i := range changes {
				all = append(all, i)
			}
			all = append(all, rapid.SliceOfN(rapid.IntRange(0, len(changes)-1), 0, 10).Draw(t, "again")...)
			var order []engine.Change
			for _, i := range rapid.Permutation(all).Draw(t, "order") {
				order = append(order, changes[i])
			}
			at := deliver(t, sink, engine.LogID{Origin: "relay", Epoch: 1}, order)
			await(t, last, "the head", func(v engine.View) bool {
				return len(v.Logs()) == 1 && v.Logs()[0].Head == at
			})
			v := last.View()
			got := dump(v)
			v.Close()
			for _, stop := range slices.Backward(stops) {
				stop()
			}
			if got != want {
				t.Fatalf("path %d: got\n%swant\n%s", path, got, want)
			}
		}
	})
}

// drawHistory draws stamped changes of several origins to the same keys.
func drawHistory(t *rapid.T) ([]engine.Change, map[engine.LogID][]*engine.Schema) {
	schemas := map[engine.LogID][]*engine.Schema{}
	var changes []engine.Change
	for _, origin := range []string{"a#db", "b#db", "c#db"} {
		log := engine.LogID{Origin: origin, Epoch: engine.Epoch(rapid.IntRange(1, 2).Draw(t, "epoch"))}
		for i, table := range tables {
			s := shapeOf(table)
			s.ID = uint32(i + 1)
			schemas[log] = append(schemas[log], s)
		}
		now := engine.Time(0)
		for major := range rapid.IntRange(0, 6).Draw(t, "transactions") {
			now += engine.Time(rapid.IntRange(1, 4).Draw(t, "later"))
			for minor := range rapid.IntRange(1, 3).Draw(t, "changes") {
				c := engine.Change{
					Op:     rapid.SampledFrom([]engine.Op{engine.OpPut, engine.OpPut, engine.OpPut, engine.OpDelete, engine.OpTruncate}).Draw(t, "op"),
					Schema: schemas[log][rapid.IntRange(0, 1).Draw(t, "table")],
					Stamp:  engine.Stamp{Time: now, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: uint64(major + 1), Minor: uint32(minor + 1)}},
				}
				if c.Op != engine.OpTruncate {
					id := fmt.Sprintf("k%d", rapid.IntRange(0, 2).Draw(t, "id"))
					c.Key = keyOf(id)
					if c.Op == engine.OpPut {
						c.Row = rowOf(c.Schema, id, fmt.Sprint(len(changes)), origin)
					}
				}
				changes = append(changes, c)
			}
		}
	}
	if len(changes) == 0 {
		t.Skip("no changes")
	}
	return changes, schemas
}

// deliver sends changes in transactions of a carrier's log, and returns its head.
func deliver(t *rapid.T, sink engine.Sink, log engine.LogID, changes []engine.Change) engine.Position {
	at := engine.Position("0/1")
	for n := engine.LSN(2); len(changes) > 0; n++ {
		size := min(len(changes), rapid.IntRange(1, 5).Draw(t, "size"))
		w := engine.NewBlockBuilder(log, at)
		at = n.Position()
		w.Add(&engine.Transaction{Log: log, Position: at, Time: engine.Time(n), Major: uint64(n), Changes: changes[:size]})
		if err := sink.ApplyBlocks(context.Background(), engine.CursorKey{Log: log}, w.Blocks()); err != nil {
			t.Fatal(err)
		}
		changes = changes[size:]
	}
	return at
}
