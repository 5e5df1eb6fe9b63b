package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// kept is a store that outlives an engine.
type kept struct{ engine.Store }

func (kept) Durable() bool { return true }
func (kept) Close() error  { return nil }

// drawKept returns how to open a store again: one that was kept in memory, or
// one on disk.
func drawKept(t *rapid.T) func() engine.Store {
	if rapid.IntRange(0, 4).Draw(t, "on disk") > 0 {
		s := kept{store.NewMemory(store.MemoryOptions{})}
		return func() engine.Store { return s }
	}
	fs, spill := vfs.NewMem(), rapid.Bool().Draw(t, "spill")
	return func() engine.Store { return openDurable(t, fs, spill) }
}

// A node over a store that was kept goes on after a restart: same epoch, no
// baseline, and what it carries is served before its source has connected.
func TestRestart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			db := newDatabase()
			openRoot, openLeaf := drawKept(t), drawKept(t)
			up := pointing(nil)
			baselines, copies := 0, 0
			var log engine.LogID
			for life := range rapid.IntRange(1, 4).Draw(t, "lives") {
				ctx, cancel := context.WithCancel(context.Background())
				root, leaf := openRoot(), openLeaf()
				r := nodeOver("r", root)
				src := &dbSource{db: db, during: func() { baselines++ }}
				r.AddSource("db", src, engine.Keep{})
				up.replace(r)
				l := nodeOver("l", leaf)
				h := &hop{up: up, maxBytes: 1 << 20}
				l.AddSource("up", h, engine.Keep{})
				if life > 0 {
					for _, e := range []*engine.Engine{r, l} {
						if a := e.Adverts(); len(a) != 1 || a[0].Log != log || len(a[0].Tables) != len(tables) || a[0].Path[len(a[0].Path)-1] != "r" {
							t.Fatalf("node %s, just restarted, serves %+v, want log %s", e.NodeID(), a, log)
						}
					}
				}
				done := make(chan struct{})
				go func() { _ = r.Run(ctx); done <- struct{}{} }()
				go func() { _ = l.Run(ctx); done <- struct{}{} }()
				for range rapid.IntRange(0, 5).Draw(t, "commits") {
					db.commit(time.Now(), drawOps(t, false)...)
				}
				settle()
				for _, e := range []*engine.Engine{r, l} {
					v := e.View()
					a := e.Adverts()
					if len(a) != 1 {
						t.Fatalf("node %s serves %+v: %+v", e.NodeID(), a, e.Status().Sources)
					}
					log = a[0].Log
					if err := agrees(v, log, db); err != nil {
						t.Fatalf("node %s in life %d: %v", e.NodeID(), life, err)
					}
					v.Close()
				}
				copies += h.copies
				cancel()
				<-done
				<-done
				for _, s := range []engine.Store{root, leaf} {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				db.commit(time.Now(), drawOps(t, false)...)
			}
			if baselines != len(tables) || copies != 1 {
				t.Fatalf("%d tables were baselined and %d snapshots taken, want %d and 1", baselines, copies, len(tables))
			}
		})
	})
}

// Another history behind the same source is another epoch, also when it changed
// while the node was down; one that goes on from the old is not. The name that it goes
// on under is remembered: at the next start it is what was before.
func TestRestartWithAnotherHistory(t *testing.T) {
	t.Parallel()
	for _, continues := range []bool{false, true} {
		t.Run(fmt.Sprint("continues ", continues), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := newDatabase()
				st := kept{store.NewMemory(store.MemoryOptions{})}
				history := "1/1"
				life := func(continues bool) engine.Advert {
					e := nodeOver("r", st)
					e.AddSource("db", continuing{&dbSource{db: db, history: func() string { return history }}, continues}, engine.Keep{})
					stop := start(t, e)
					settle()
					stop()
					return advertised(t, e)
				}
				before := life(continues)
				history = "1/2"
				db.commit(time.Now(), put("k", "1"))
				after := life(continues)
				if (after.Log == before.Log) != continues || after.Log.Epoch < before.Log.Epoch {
					t.Errorf("log %s after %s", after.Log, before.Log)
				}
				if again := life(false); again.Log != after.Log {
					t.Errorf("log %s after %s, of one history", again.Log, after.Log)
				}
			})
		})
	}
}

// A store is one node's, and its rows are those of the sources that the node has: what
// came by a source that is gone could not be told from what its table has lost since.
func TestStoreOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		db.commit(time.Now(), put("k", "1"), put("l", "1"))
		st := kept{store.NewMemory(store.MemoryOptions{})}
		life := func(id, source string) *engine.Engine {
			e := nodeOver(id, st)
			e.AddSource(source, &dbSource{db: db}, engine.Keep{})
			stop := start(t, e)
			settle()
			stop()
			return e
		}
		log := advertised(t, life("r", "db")).Log
		db.commit(time.Now(), op{kind: "delete", table: tableA, id: "k"})

		other := nodeOver("s", st)
		other.AddSource("db", &dbSource{db: db}, engine.Keep{})
		if err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), log.String()) {
			t.Errorf("node s goes on with the log of node r: %v", err)
		}
		if s := life("r", "renamed").Status().Sources[0]; s.Reason != engine.ReasonPreflightFailed || !strings.Contains(s.Message, `Call the source "db" again`) {
			t.Errorf("a source takes over the rows of another: %s, %s", s.Reason, s.Message)
		}
		e := life("r", "db") // as it was
		v := e.View()
		defer v.Close()
		if err := agrees(v, log, db); err != nil {
			t.Error(err)
		}
	})
}

// continuing proves a change of history to be a continuation.
type continuing struct {
	*dbSource
	can bool
}

func (c continuing) Init(ctx context.Context, env engine.Env) (engine.Info, error) {
	info, err := c.dbSource.Init(ctx, env)
	info.Continues = c.can && env.History != "" && env.Cursor != ""
	return info, err
}

// Invariant 7: an entry goes only when every durable reader has acknowledged it,
// or past the limit; readers are remembered over a restart, until they have been
// silent for too long or are forgotten.
func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := kept{store.NewMemory(store.MemoryOptions{})}
		db := newDatabase()
		var e *engine.Engine
		life := func() (stop func()) {
			e = engine.New(engine.Options{NodeID: "n", Store: st, Retention: engine.Retention{Bytes: 10_000, MaxBytes: 100_000, Readers: time.Hour}})
			e.AddSource("db", &dbSource{db: db, batch: 1}, engine.Keep{})
			return start(t, e)
		}
		write := func(n int) {
			for range n {
				db.commit(time.Now(), op{kind: "put", table: tableA, id: "k", v: "1", doc: strings.Repeat("x", 1000)})
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		info := func() engine.LogInfo {
			v := e.View()
			defer v.Close()
			return ownLog(v, "n#db")
		}
		stop := life()
		write(5)
		at := info()
		key := engine.CursorKey{Log: at.ID}
		e.Acked("durable", key, at.Head, true)
		e.Acked("other", key, at.Head, false)
		write(40)
		if i := info(); i.Oldest != at.Head || i.Bytes < 40_000 {
			t.Errorf("with a durable reader at %s the log is %+v", at.Head, i)
		}
		stop()
		stop = life()
		write(5)
		if i := info(); i.Oldest != at.Head {
			t.Errorf("after a restart, with a durable reader at %s, the log is %+v", at.Head, i)
		}
		mid := info().Head
		e.Acked("durable", key, mid, true)
		write(20)
		if i := info(); i.Oldest != mid {
			t.Errorf("with the reader at %s the log is %+v", mid, i)
		}
		write(200)
		if i := info(); i.Bytes > 100_000 || i.Bytes < 50_000 {
			t.Errorf("past the limit the log is %+v", i)
		}
		if ok, err := e.ForgetReader(t.Context(), "durable"); !ok || err != nil {
			t.Errorf("forgetting the reader gave %t, %v", ok, err)
		}
		write(1)
		if i := info(); i.Bytes > 10_000 {
			t.Errorf("without the reader the log is %+v", i)
		}
		e.Acked("durable", key, info().Head, true)
		write(40)
		held := info().Bytes
		time.Sleep(2 * time.Hour)
		write(1)
		if i := info(); i.Bytes > 10_000 {
			t.Errorf("a reader that has been silent for two hours holds %d bytes, and held %d", i.Bytes, held)
		}
		stop()
	})
}
