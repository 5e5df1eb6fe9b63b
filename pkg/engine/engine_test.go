package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// settle lets everything in a synctest bubble come to rest, retries included.
func settle() {
	time.Sleep(10 * time.Minute)
	synctest.Wait()
}

// Invariant 6: nothing is advertised or acknowledged before it is committed,
// also where commits fail; and what was served goes on being served until what
// replaces it is committed.
func TestCommittedBeforeKnown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			fails := rapid.SliceOfN(rapid.IntRange(0, 3), 200, 200).Draw(t, "failing at 0")
			db := newDatabase()
			var lost atomic.Bool
			var history atomic.Int64
			src := &dbSource{
				db: db, batch: 1, history: func() string { return fmt.Sprint("h", history.Load()) },
				fault: func(stage string) error {
					if stage == "stream" && lost.Swap(false) {
						return engine.ErrReBaselineRequired
					}
					return nil
				},
			}
			w := &watched{Store: store.NewMemory(store.MemoryOptions{})}
			e := nodeOver("n", w)
			var wrong []string
			served, commits := false, 0
			check := func(when string) {
				v := w.Store.View()
				defer v.Close()
				adverts := e.Adverts()
				if served && len(adverts) == 0 {
					wrong = append(wrong, when+": nothing is served any more")
				}
				served = served || len(adverts) > 0
				for _, a := range adverts {
					if info, ok := v.Log(a.Log); !ok || a.Head != info.Head || a.Oldest != info.Oldest {
						wrong = append(wrong, fmt.Sprintf("%s: %+v is advertised, and %+v is committed", when, a, info))
					}
				}
			}
			w.before = func() error {
				check("before a commit")
				commits++
				if fails[commits%len(fails)] == 0 {
					return errors.New("the disk is full")
				}
				return nil
			}
			w.after = func() { check("after a commit") }
			src.onAck = func(c engine.Cursor, durable bool) {
				check("at an ack")
				v := w.Store.View()
				defer v.Close()
				if at := v.Cursors()[c.CursorKey]; at != c || durable {
					wrong = append(wrong, fmt.Sprintf("%+v is acknowledged (durable: %v), and %+v is committed", c, durable, at))
				}
			}
			e.AddSource("db", src, engine.Keep{})
			defer start(t, e)()
			for range rapid.IntRange(1, 6).Draw(t, "rounds") {
				switch rapid.IntRange(0, 3).Draw(t, "happens") {
				case 0:
					lost.Store(true)
				case 1:
					lost.Store(true)
					history.Add(1)
				}
				for range rapid.IntRange(1, 4).Draw(t, "writes") {
					db.commit(time.Now(), drawOps(t, false)...)
				}
				settle()
				if len(wrong) > 0 {
					t.Fatal(strings.Join(wrong, "\n"))
				}
				v := e.View()
				info := ownLog(v, engine.Origin("n", "db"))
				if _, head := db.head(); info.Head != head {
					t.Fatalf("at rest at %s, and the database is at %s", info.Head, head)
				}
				if err := agrees(v, info.ID, db); err != nil {
					t.Fatal(err)
				}
				if acked := src.LastAckedPosition(info.ID); acked != info.Head {
					t.Fatalf("%s is acknowledged of %s", acked, info.Head)
				}
				v.Close()
			}
		})
	})
}

// epochs collects what the epoch tests look at.
func advertised(t *testing.T, e *engine.Engine) engine.Advert {
	t.Helper()
	a := e.Adverts()
	if len(a) != 1 {
		t.Fatalf("advertised: %+v", a)
	}
	return a[0]
}

func TestWitness(t *testing.T) {
	t.Parallel()
	hour := engine.Time(time.Hour / time.Microsecond)
	tests := []struct {
		name  string
		epoch func(own engine.Epoch) engine.Epoch
		time  func(now engine.Time) engine.Time
		renew bool
	}{
		{"nothing is held", func(engine.Epoch) engine.Epoch { return 0 }, func(engine.Time) engine.Time { return 0 }, false},
		{"what is served", func(e engine.Epoch) engine.Epoch { return e }, func(n engine.Time) engine.Time { return n }, false},
		{"an older epoch", func(e engine.Epoch) engine.Epoch { return e - 1 }, func(n engine.Time) engine.Time { return n }, false},
		{"a newer epoch", func(e engine.Epoch) engine.Epoch { return e + engine.Epoch(hour) }, func(engine.Time) engine.Time { return 0 }, true},
		{"a newer time", func(e engine.Epoch) engine.Epoch { return e }, func(n engine.Time) engine.Time { return n + hour }, true},
		{"years ahead", func(e engine.Epoch) engine.Epoch { return e + 9000*engine.Epoch(hour) }, func(engine.Time) engine.Time { return 0 }, false},
		{"centuries ahead", func(engine.Epoch) engine.Epoch { return 1 << 63 }, func(engine.Time) engine.Time { return 1<<64 - 1 }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := newDatabase()
				db.commit(time.Now(), op{kind: "put", table: tableA, id: "k", v: "1"})
				var e *engine.Engine
				var during []engine.Advert
				rebaselining := false
				src := &dbSource{db: db, during: func() {
					if rebaselining {
						during = e.Adverts()
						time.Sleep(time.Second)
					}
				}}
				e = node("n")
				e.AddSource("db", src, engine.Keep{})
				defer start(t, e)()
				settle()
				before := advertised(t, e)
				rebaselining = true
				epoch, at := tt.epoch(before.Log.Epoch), tt.time(before.Time)
				for i := range 100 { // many readers tell the same when a node comes back
					e.Witness(fmt.Sprint("peer", i), epoch, at)
					if i%10 == 0 {
						time.Sleep(300 * time.Millisecond)
					}
				}
				settle()
				after := advertised(t, e)
				if !tt.renew {
					if after.Log != before.Log {
						t.Fatalf("epoch %d was taken for %d", after.Log.Epoch, before.Log.Epoch)
					}
					return
				}
				if after.Log.Epoch <= max(epoch, before.Log.Epoch, engine.Epoch(at)) || after.Time <= at {
					t.Errorf("a peer holds (%d, %d), and the new epoch is %d, at %d", epoch, at, after.Log.Epoch, after.Time)
				}
				if st := e.Status().Sources[0]; st.Rebaselines != 1 || !strings.Contains(st.LastCause, "peer0 holds") {
					t.Errorf("re-baselines: %+v", st)
				}
				if len(during) != 1 || during[0].Log != before.Log {
					t.Errorf("while the new epoch is baselined, %+v is served", during)
				}
				v := e.View()
				defer v.Close()
				if logs := v.Logs(); len(logs) != 1 {
					t.Errorf("logs: %+v", logs)
				}
				if _, err := v.ReadLog(before.Log, before.Oldest, 1); !errors.Is(err, engine.ErrUnknownLog) {
					t.Errorf("the old log gives %v", err)
				}
				if err := agrees(v, after.Log, db); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A node that cannot read back what it has lost says so, and what to do.
func TestLostHistoryIsNotReadBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := node("n")
		e.AddSource("db", &dbSource{db: newDatabase()}, engine.Keep{})
		e.CannotAwaitPeers("it has one cursor")
		defer start(t, e)()
		settle()
		e.Witness("peer", advertised(t, e).Log.Epoch+1, 0)
		settle()
		st := e.Status().Sources[0]
		for _, want := range []string{"peer holds epoch", "it has one cursor", "deleted at the peers", "PerOrigin"} {
			if !strings.Contains(st.LastCause, want) {
				t.Errorf("the cause is %q, which lacks %q", st.LastCause, want)
			}
		}
		if st.HistoryLost != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// A node that is told of a lost history while its source is away mints a new
// epoch when the source is back, and does not go on in the old one.
func TestWitnessWhileTheSourceIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		var away atomic.Bool
		src := &dbSource{db: db, fault: func(string) error {
			if away.Load() {
				return errConnection
			}
			return nil
		}}
		e := node("n")
		e.AddSource("db", src, engine.Keep{})
		defer start(t, e)()
		settle()
		before := advertised(t, e)
		away.Store(true)
		db.wake()
		settle()
		e.Witness("peer", before.Log.Epoch+1, 0)
		away.Store(false)
		settle()
		if after := advertised(t, e); after.Log.Epoch <= before.Log.Epoch {
			t.Fatalf("still in epoch %d", after.Log.Epoch)
		}
	})
}

// A wall clock that steps back lowers neither times nor, across a restart that
// loses everything, what peers see (R02).
func TestCaseR02(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		var step atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
		life := func() (*engine.Engine, func()) {
			e := engine.New(engine.Options{NodeID: "n", Store: store.NewMemory(store.MemoryOptions{}), Now: now, Logger: slog.New(slog.DiscardHandler)})
			e.AddSource("db", &dbSource{db: db}, engine.Keep{})
			return e, start(t, e)
		}
		e, stop := life()
		settle()
		var last engine.Time
		for range 5 {
			db.commit(now(), op{kind: "put", table: tableA, id: "k"})
			synctest.Wait()
			v := e.View()
			r, _, _ := v.Get(tableA, keyOf("k"))
			v.Close()
			if r.Stamp.Time <= last {
				t.Fatalf("time %d comes after %d", r.Stamp.Time, last)
			}
			last = r.Stamp.Time
			step.Add(-int64(20 * time.Minute))
		}
		old := advertised(t, e)
		stop()
		e, stop = life()
		defer stop()
		synctest.Wait()
		if first := advertised(t, e); first.Log.Epoch >= old.Log.Epoch {
			t.Fatalf("epoch %d: the clock did not step back", first.Log.Epoch)
		}
		e.Witness("peer", old.Log.Epoch, last)
		settle()
		if a := advertised(t, e); a.Log.Epoch <= old.Log.Epoch || a.Log.Epoch <= engine.Epoch(last) {
			t.Fatalf("a peer holds (%d, %d), and the new epoch is %d", old.Log.Epoch, last, a.Log.Epoch)
		}
	})
}

// What a carried log may not do: come by way of this node, go back to an older
// epoch, or be baselined behind the cursor. Nothing changes by any of it.
func TestCarryRefuses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	log := engine.LogID{Origin: "o#db", Epoch: 5}
	older := engine.LogID{Origin: "o#db", Epoch: 4}
	src := newByHand()
	e := node("n")
	e.AddSource("up", src, engine.Keep{})
	defer start(t, e)()
	sink := <-src.sinks
	schema := shapeOf(tableA)
	schema.ID = 1
	row := func(l engine.LogID, at engine.Time, v string) engine.Record {
		return engine.Record{Schema: schema, Key: keyOf("k" + v), Row: rowOf(schema, "k"+v, v, ""), Stamp: engine.Stamp{Time: at, Origin: l.Origin, Epoch: l.Epoch}}
	}
	baseline := func(l engine.LogID, at engine.Position, when engine.Time, rows ...engine.Record) error {
		w, err := sink.Baseline(ctx, engine.BaselineSpec{Log: l, Tables: tables, Schemas: []*engine.Schema{schema}, At: at, Time: when})
		if err != nil {
			return err
		}
		if err := w.Rows(tableA, rows); err != nil {
			return err
		}
		return w.Commit(ctx)
	}
	if err := sink.Carry(older, engine.CompareLSN, []string{"up", "o"}, tables); err != nil {
		t.Fatal(err)
	}
	if err := sink.Carry(log, engine.CompareLSN, []string{"up", "o"}, tables); err != nil {
		t.Fatal(err)
	}
	late, err := sink.Baseline(ctx, engine.BaselineSpec{Log: older, Tables: tables, Schemas: []*engine.Schema{schema}, At: "0/99", Time: 99})
	if err != nil {
		t.Fatal(err)
	}
	if err := baseline(log, "0/10", 10, row(log, 10, "1")); err != nil {
		t.Fatal(err)
	}
	v := e.View()
	before := dump(v)
	v.Close()

	if err := sink.Carry(log, engine.CompareLSN, []string{"x", "n", "o"}, tables); err == nil || !strings.Contains(err.Error(), "by way of this node") {
		t.Errorf("a loop gives %v", err)
	}
	if err := sink.Carry(older, engine.CompareLSN, []string{"up", "o"}, tables); !errors.Is(err, engine.ErrStaleEpoch) {
		t.Errorf("an older epoch gives %v", err)
	}
	if err := late.Commit(ctx); err == nil {
		t.Error("a baseline of an older epoch is taken")
	}
	if err := baseline(log, "0/9", 9); err == nil || !strings.Contains(err.Error(), "behind the cursor") {
		t.Errorf("a baseline behind the cursor gives %v", err)
	}
	if err := sink.ApplyBlocks(ctx, engine.CursorKey{Log: older}, []*engine.Block{{Position: "0/A", Last: true}}); err == nil {
		t.Error("blocks of an older epoch are taken")
	}
	v = e.View()
	defer v.Close()
	if after := dump(v); after != before {
		t.Errorf("the state is\n%sand was\n%s", after, before)
	}
	if a := advertised(t, e); a.Log != log || a.Head != "0/10" || strings.Join(a.Path, " ") != "n up o" {
		t.Errorf("advertised: %+v", a)
	}
}

// A source that fails is reported and tried again, seldom where that cannot
// help, and another source goes on meanwhile.
func TestSourceErrors(t *testing.T) {
	t.Parallel()
	for _, permanent := range []bool{false, true} {
		t.Run(fmt.Sprint("permanent ", permanent), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				broken.Store(true)
				good, bad := newDatabase(), newDatabase()
				src := &dbSource{db: bad, fault: func(stage string) error {
					if stage == "init" && broken.Load() {
						return fmt.Errorf("wrapped: %w", &engine.SourceError{
							Reason: engine.ReasonTableNotFound, Permanent: permanent,
							Err: errors.New("table public.x does not exist: create it, or take it out of tables"),
						})
					}
					return nil
				}}
				e := node("n")
				e.AddSource("bad", src, engine.Keep{})
				e.AddSource("good", &dbSource{db: good}, engine.Keep{})
				defer start(t, e)()
				time.Sleep(time.Second)
				synctest.Wait()
				good.commit(time.Now(), op{kind: "put", table: tableA, id: "k"})
				synctest.Wait()
				st := e.Status()
				if s := st.Sources[0]; s.Reason != engine.ReasonTableNotFound || !strings.Contains(s.Message, "create it") {
					t.Errorf("the source that fails is shown as %+v", s)
				}
				if s := st.Sources[1]; s.Reason != engine.ReasonStreaming || s.Message != "" {
					t.Errorf("the source that works is shown as %+v", s)
				}
				since := st.Sources[0].Since
				if st.Ready {
					t.Error("a node that waits for a baseline says it is ready")
				}
				_, head := good.head()
				if a := advertised(t, e); a.Head != head {
					t.Errorf("the source that works is at %s of %s", a.Head, head)
				}
				time.Sleep(59 * time.Second)
				synctest.Wait()
				if s := e.Status().Sources[0]; !s.Since.Equal(since) || s.Reason != engine.ReasonTableNotFound {
					t.Errorf("it took turns with another state as it was tried again: %+v, since %v at first", s, since)
				}
				if n := src.tried(); permanent != (n <= 3) || n < 2 || n > 20 {
					t.Errorf("tried %d times in a minute", n)
				}
				broken.Store(false)
				settle()
				if st := e.Status(); !st.Ready || st.Sources[0].Reason != engine.ReasonStreaming || st.Sources[0].Message != "" {
					t.Errorf("mended, and shown as %+v", st.Sources[0])
				}
			})
		})
	}
}

// A re-baseline is counted once with its cause, however often it has to be
// tried, and the next reconnect needs none.
func TestRebaselineIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		type failure struct {
			stage string
			err   error
		}
		var next atomic.Pointer[failure]
		var failures atomic.Int64
		src := &dbSource{db: db, fault: func(at string) error {
			if f := next.Load(); failures.Load() > 0 && at == f.stage {
				failures.Add(-1)
				return f.err
			}
			return nil
		}}
		e := node("n")
		e.AddSource("db", src, engine.Keep{})
		defer start(t, e)()
		settle()
		fail := func(at string, n int64, err error) engine.SourceState {
			next.Store(&failure{at, err})
			failures.Store(n)
			db.commit(time.Now())
			synctest.Wait()
			now := e.Status().Sources[0]
			settle()
			if failures.Load() != 0 {
				t.Fatalf("%s was not come to again", at)
			}
			return now
		}
		if now := fail("stream", 3, errConnection); now.Reason != engine.ReasonDisconnected {
			t.Errorf("while disconnected: %+v", now)
		}
		if st := e.Status().Sources[0]; st.Baselines != 1 || st.Rebaselines != 0 || st.LastCause != "" {
			t.Errorf("after a reconnect: %+v", st)
		}
		if now := fail("stream", 1, fmt.Errorf("the slot is gone: %w", engine.ErrReBaselineRequired)); now.Reason != engine.ReasonRebaselining {
			t.Errorf("while a re-baseline is due: %+v", now)
		}
		if st := e.Status().Sources[0]; st.Baselines != 2 || st.Rebaselines != 1 || !strings.Contains(st.LastCause, "the slot is gone") {
			t.Errorf("after a re-baseline: %+v", st)
		}
		fail("stream", 1, errConnection)
		if st := e.Status().Sources[0]; st.Rebaselines != 1 || !strings.Contains(st.LastCause, "the slot is gone") {
			t.Errorf("after another reconnect: %+v", st)
		}
	})
}

// Run ends when its context does, whatever the engine is doing.
func TestRunEnds(t *testing.T) { // not parallel: it looks for goroutines left behind
	why := errors.New("enough")
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T, e *engine.Engine, w *watched)
	}{
		{"without sources", func(*testing.T, *engine.Engine, *watched) {}},
		{"streaming", func(_ *testing.T, e *engine.Engine, _ *watched) {
			e.AddSource("db", &dbSource{db: newDatabase()}, engine.Keep{})
		}},
		{"waiting to try again", func(_ *testing.T, e *engine.Engine, _ *watched) {
			e.AddSource("db", &dbSource{db: newDatabase(), fault: func(string) error { return errConnection }}, engine.Keep{})
		}},
		{"waiting for the store", func(t *testing.T, e *engine.Engine, w *watched) {
			tx, err := w.Store.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(tx.Rollback)
			e.AddSource("db", &dbSource{db: newDatabase()}, engine.Keep{})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			w := &watched{Store: store.NewMemory(store.MemoryOptions{})}
			e := nodeOver("n", w)
			tt.setup(t, e, w)
			ctx, cancel := context.WithCancelCause(context.Background())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			select {
			case err := <-done:
				t.Fatalf("Run gave %v before it was to end", err)
			case <-time.After(20 * time.Millisecond):
			}
			cancel(why)
			select {
			case err := <-done:
				if !errors.Is(err, why) {
					t.Errorf("Run gave %v", err)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("Run does not end")
			}
		})
	}
}
