package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Lag is unknown until the source has told its head; then it is 0 at the head,
// and behind it grows with time.
func TestLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := engine.LogID{Origin: "o#db", Epoch: 1}
		e, sink, stop := carrying(t, "n", log, "0/1", nil)
		defer stop()
		lag := func() engine.Lag {
			t.Helper()
			st := e.Status()
			if len(st.Logs) != 1 || st.Logs[0].ID != log || !st.Ready || st.Logs[0].Own {
				t.Fatalf("status: %+v", st)
			}
			return st.Logs[0].Lag
		}
		if l := lag(); l.Known {
			t.Errorf("nothing is known of the head, and the lag is %+v", l)
		}
		sink.Head(log, engine.Head{Position: "0/1", Time: 1})
		if l := lag(); l != (engine.Lag{Known: true, CountKnown: true}) {
			t.Errorf("caught up, and the lag is %+v", l)
		}
		now := engine.TimeOf(time.Now())
		w := engine.NewBlockBuilder(log, "0/1")
		w.Add(&engine.Transaction{Log: log, Position: "0/2", Time: now, Major: 2})
		if err := sink.ApplyBlocks(t.Context(), engine.CursorKey{Log: log}, w.Blocks()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		sink.Head(log, engine.Head{Position: "0/3", Time: engine.TimeOf(time.Now())})
		time.Sleep(time.Second)
		if l := lag(); !l.Known || l.Seconds != 1 || l.CountKnown {
			t.Errorf("a second behind, after a quiet minute, the lag is %+v", l)
		}
		if err := sink.Progress(t.Context(), engine.CursorKey{Log: log}, "0/2", "0/3", engine.TimeOf(time.Now())); err != nil {
			t.Fatal(err)
		}
		if l := lag(); l != (engine.Lag{Known: true, CountKnown: true}) {
			t.Errorf("caught up again, and the lag is %+v", l)
		}
		sink.Head(log, engine.Head{})
		if l := lag(); l.Known {
			t.Errorf("the head is not known any more, and the lag is %+v", l)
		}
		// From the first transaction that is not here, not from the last head.
		for i := range 200 {
			sink.Head(log, engine.Head{Position: engine.LSN(4 + i).Position(), Time: engine.TimeOf(time.Now())})
			time.Sleep(time.Second)
		}
		if l := lag(); !l.Known || l.Seconds != 200 {
			t.Errorf("200 heads ago it fell behind, a second each, and the lag is %+v", l)
		}
		if err := sink.Progress(t.Context(), engine.CursorKey{Log: log}, "0/3", engine.LSN(103).Position(), 0); err != nil {
			t.Fatal(err)
		}
		if l := lag(); l.Seconds < 80 || l.Seconds > 100 {
			t.Errorf("half of it is here, and the lag is %+v", l)
		}
	})
}

// Of a log that holds nothing yet it is known that nothing is missing.
func TestLagOfNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := engine.LogID{Origin: "o#relay", Epoch: 1}
		e, sink, stop := carrying(t, "n", log, "", nil)
		defer stop()
		sink.Head(log, engine.Head{Time: 1})
		if l := e.Status().Logs[0].Lag; l != (engine.Lag{Known: true, CountKnown: true}) {
			t.Errorf("the log is empty, and the lag is %+v", l)
		}
		sink.Head(log, engine.Head{Position: "0/2", Time: engine.TimeOf(time.Now())})
		time.Sleep(time.Second)
		if l := e.Status().Logs[0].Lag; !l.Known || l.Seconds != 1 {
			t.Errorf("a second behind, and the lag is %+v", l)
		}
		sink.Head(log, engine.Head{})
		if l := e.Status().Logs[0].Lag; l.Known {
			t.Errorf("the head is not known any more, and the lag is %+v", l)
		}
	})
}

// The changes that are missing are counted, once the node has been where its origin
// was: not before, not with another counter, and not of a part of a log.
func TestLagInChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := engine.LogID{Origin: "o#db", Epoch: 1}
		e, sink, stop := carrying(t, "n", log, "0/1", nil)
		defer stop()
		at := engine.Position("0/1")
		sc := &engine.Schema{ID: 1, Table: engine.TableName{Schema: "s", Name: "t"}, ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{{Name: "id", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1, Key: true}}}
		write := func(to engine.Position, keys ...string) {
			t.Helper()
			tx := engine.Transaction{Log: log, Position: to, Time: engine.TimeOf(time.Now()), Major: 1, Schemas: []*engine.Schema{sc}}
			for i, k := range keys {
				tx.Changes = append(tx.Changes, engine.Change{
					Op: engine.OpPut, Schema: sc, Key: engine.AppendKeyValue(nil, k), Row: engine.AppendValue(engine.AppendRowHeader(nil, 1, 1), k),
					Stamp: engine.Stamp{Time: tx.Time, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: 1, Minor: uint32(i + 1)}},
				})
			}
			w := engine.NewBlockBuilder(log, at)
			w.Add(&tx)
			if err := sink.ApplyBlocks(t.Context(), engine.CursorKey{Log: log}, w.Blocks()); err != nil {
				t.Fatal(err)
			}
			at = to
		}
		head := func(p engine.Position, changes, counter uint64) {
			sink.Head(log, engine.Head{Position: p, Time: engine.TimeOf(time.Now()), Changes: changes, Counter: counter})
		}
		lag := func(what string, known bool, n uint64) {
			t.Helper()
			if l := e.Status().Logs[0].Lag; l.CountKnown != known || l.Changes != n {
				t.Errorf("%s: %+v", what, l)
			}
		}
		head("0/5", 1007, 1)
		lag("never where the origin was", false, 0)
		head("0/6", 1010, 1)
		write("0/5", "a", "b")
		lag("where the origin was", true, 3)
		write("0/6", "c", "d", "e")
		lag("caught up", true, 0)
		head("0/9", 1020, 1)
		lag("behind", true, 10)
		write("0/8", "a", "b", "c", "d")
		lag("on the way", true, 6)
		head("0/A", 12, 2)
		lag("the origin's node has started anew", false, 0)
		write("0/A", "z")
		head("0/B", 14, 2)
		lag("and counts again", true, 2)
	})
}

// What readers have acknowledged is told in a fixed order, is bounded, and
// goes with the epoch it was of.
func TestReaderAcks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRebaselining(t)
		settle()
		log := advertised(t, r.Engine).Log
		key := engine.CursorKey{Log: log}
		r.Acked("b", key, "0/1", true)
		r.Acked("a", engine.CursorKey{Log: log, Scope: "s"}, "0/2", false)
		r.Acked("a", key, "0/1", false)
		r.Acked("b", key, "0/1", false) // durable stays durable
		r.Acked("c", key, "0/1", true)
		r.Acked("c", key, "0/2", false)
		var got []string
		for _, a := range r.Status().Readers {
			got = append(got, fmt.Sprint(a.Reader, a.Key.Scope, a.At, a.Durable))
		}
		if want := "[a0/1false as0/2false b0/1true c0/2false]"; fmt.Sprint(got) != want {
			t.Errorf("readers: %v, want %s", got, want)
		}
		for i := range 50_000 {
			r.Acked(fmt.Sprint("gone", i), key, "0/1", false)
			if i%1000 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		r.Acked("b", key, "0/3", true)
		readers := r.Status().Readers
		if len(readers) > 20_000 || len(readers) == 0 || readers[0].Reader != "b" || readers[0].At != "0/3" {
			t.Errorf("%d readers are remembered, the first is %+v", len(readers), readers[0])
		}
		r.Witness("peer", log.Epoch+1, 0)
		settle()
		if readers := r.Status().Readers; len(readers) != 0 {
			t.Errorf("%d readers of an epoch that is gone are remembered", len(readers))
		}
	})
}
