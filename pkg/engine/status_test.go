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
		sink.Head(log, "0/1", 1)
		if l := lag(); l != (engine.Lag{Known: true}) {
			t.Errorf("caught up, and the lag is %+v", l)
		}
		now := engine.TimeOf(time.Now())
		w := engine.NewBlockBuilder(log, "0/1")
		w.Add(&engine.Transaction{Log: log, Position: "0/2", Time: now, Major: 2})
		if err := sink.ApplyBlocks(t.Context(), engine.CursorKey{Log: log}, w.Blocks()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		sink.Head(log, "0/3", engine.TimeOf(time.Now()))
		time.Sleep(time.Second)
		if l := lag(); !l.Known || l.Seconds < 1 || l.Seconds > 61 {
			t.Errorf("a second behind, after a quiet minute, the lag is %+v", l)
		}
		if err := sink.Progress(t.Context(), engine.CursorKey{Log: log}, "0/2", "0/3", engine.TimeOf(time.Now())); err != nil {
			t.Fatal(err)
		}
		if l := lag(); l != (engine.Lag{Known: true}) {
			t.Errorf("caught up again, and the lag is %+v", l)
		}
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
