package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// feed is a minted log that a test delivers by hand.
type feed struct {
	info   engine.LogInfo
	blocks []*engine.Block
}

// drawFeed draws a log of transactions whose times are drawn too, so that the
// writes of several feeds to one key interleave.
func drawFeed(t *rapid.T, id string) (feed, []engine.Change) {
	db := newDatabase()
	when := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	for range rapid.IntRange(1, 12).Draw(t, "transactions") {
		when = when.Add(time.Duration(rapid.IntRange(1, 9).Draw(t, "later")) * time.Microsecond)
		db.commit(when, drawOps(t, false)...)
	}
	info, blocks := mintedLog(t, id, db)
	txs, changes := unpack(info.ID, blocks)
	schemas := txs[0].Schemas
	w := engine.NewBlockBuilder(info.ID, info.Oldest)
	var cut []*engine.Block
	for i := range txs {
		w.Add(&txs[i])
		if rapid.Bool().Draw(t, "cut here") {
			cut = append(cut, w.Blocks()...)
		}
	}
	cut = append(cut, w.Blocks()...)
	for _, b := range cut {
		b.Schemas = schemas
	}
	return feed{info, cut}, changes
}

// Invariant 9 for logs that are kept: three nodes get two logs that write the
// same keys, in blocks and in baselines copied from each other at any moment;
// a fourth follows one of them. All end as the naive model says.
func TestBaselinesAndBlocksMix(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		feedA, changesA := drawFeed(t, "a")
		feedB, changesB := drawFeed(t, "b")
		feeds := []feed{feedA, feedB}
		want := expected(append(changesA, changesB...))

		const nodes = 3
		var engines [nodes]*engine.Engine
		var sinks [nodes]engine.Sink
		var next [nodes][2]int // blocks delivered
		for i := range nodes {
			src := newByHand()
			engines[i] = node(fmt.Sprint("n", i))
			engines[i].AddSource("up", src, engine.Keep{})
			defer start(t, engines[i])()
			sinks[i] = <-src.sinks
			for _, f := range feeds {
				if err := sinks[i].Carry(f.info.ID, engine.CompareLSN, []string{"up"}, tables); err != nil {
					t.Fatal(err)
				}
				w, err := sinks[i].Baseline(ctx, engine.BaselineSpec{Log: f.info.ID, Tables: tables, Schemas: f.blocks[0].Schemas, At: f.info.Oldest, Time: 1})
				if err != nil {
					t.Fatal(err)
				}
				if err := w.Commit(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		follower := node("follower")
		follower.AddSource("up", &hop{up: pointing(engines[0]), maxBytes: 200}, engine.Keep{})
		defer start(t, follower)()

		send := func(i, l, n int) {
			for range n {
				if f := feeds[l]; next[i][l] < len(f.blocks) {
					if err := sinks[i].ApplyBlocks(ctx, engine.CursorKey{Log: f.info.ID}, []*engine.Block{cloneBlock(f.blocks[next[i][l]])}); err != nil {
						t.Fatal(err)
					}
					next[i][l]++
				}
			}
		}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			i, l := rapid.IntRange(0, nodes-1).Draw(t, "node"), rapid.IntRange(0, 1).Draw(t, "log")
			from := rapid.IntRange(0, nodes-1).Draw(t, "from")
			if rapid.Bool().Draw(t, "baseline") && from != i && next[from][l] >= next[i][l] {
				adverts := engines[from].Adverts()
				at := slices.IndexFunc(adverts, func(a engine.Advert) bool { return a.Log == feeds[l].info.ID })
				adverts[at].Path = []string{"up"} // the nodes copy from each other
				if _, err := new(hop).copy(ctx, engines[from], sinks[i], adverts[at]); err != nil {
					t.Fatal(err)
				}
				next[i][l] = next[from][l]
			} else {
				send(i, l, rapid.IntRange(1, 4).Draw(t, "blocks"))
			}
		}
		for i := range nodes {
			send(i, 0, len(feedA.blocks))
			send(i, 1, len(feedB.blocks))
			v := engines[i].View()
			got := dump(v)
			v.Close()
			if got != want {
				t.Fatalf("node %d has\n%swant\n%s", i, got, want)
			}
		}
		await(t, follower, "the heads", func(v engine.View) bool {
			return ownLog(v, feedA.info.ID.Origin).Head == feedA.info.Head && ownLog(v, feedB.info.ID.Origin).Head == feedB.info.Head
		})
		v := follower.View()
		defer v.Close()
		if got := dump(v); got != want {
			t.Fatalf("the follower has\n%swant\n%s", got, want)
		}
	})
}

// What a node takes in by a baseline of one log of rows that another log wrote
// is judged by stamps: also by a truncate that came before, and where the
// baseline's writer has deleted a row in the very write that the node has.
func TestBaselinesMergeByStamp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		changes, schemas := drawHistory(t)
		var mine, theirs []engine.Change
		for _, c := range changes {
			in := rapid.IntRange(0, 2).Draw(t, "in")
			if in != 1 {
				mine = append(mine, c)
			}
			if in != 0 {
				theirs = append(theirs, c)
			}
		}
		log1, log2 := engine.LogID{Origin: "relay1", Epoch: 1}, engine.LogID{Origin: "relay2", Epoch: 1}
		e1, sink1, stop1 := carrying(t, "e1", log1, "0/1", schemas)
		defer stop1()
		e2, sink2, stop2 := carrying(t, "e2", log2, "0/1", schemas)
		defer stop2()
		deliver(t, sink1, log1, mine)
		deliver(t, sink2, log2, theirs)

		v := e2.View()
		want := mine
		for _, table := range tables {
			_ = v.Scan(table, nil, func(r *engine.Record) bool {
				c := engine.Change{Op: engine.OpPut, Schema: r.Schema, Key: slices.Clone(r.Key), Row: slices.Clone(r.Row), Stamp: r.Stamp}
				if r.Deleted {
					c.Op = engine.OpDelete
				}
				want = append(want, c)
				return true
			})
		}
		v.Close()
		if _, err := new(hop).copy(ctx, e2, sink1, e2.Adverts()[0]); err != nil {
			t.Fatal(err)
		}
		v = e1.View()
		defer v.Close()
		if got, want := dump(v), expected(want); got != want {
			t.Fatalf("got\n%swant\n%s", got, want)
		}
	})
}

// One workload, two databases that write the same keys, ends the same in the
// node that mints it, in one that reads it directly, and at the end of a chain
// whose middle nodes lose everything now and then.
func TestChainsEndTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			dbs := []*database{newDatabase(), newDatabase()}
			var lost [2]atomic.Bool
			root := node("root")
			for i, db := range dbs {
				root.AddSource(fmt.Sprint("db", i), &dbSource{db: db, batch: 2, fault: func(stage string) error {
					if stage == "stream" && lost[i].Swap(false) {
						return engine.ErrReBaselineRequired
					}
					return nil
				}}, engine.Keep{})
			}
			defer start(t, root)()

			ups := []*upstream{pointing(root)} // ups[i] is what chain[i] reads from
			var chain []*engine.Engine
			var stops []func()
			build := func(i int) (*engine.Engine, func()) {
				seed := chance.Uint64()
				e := node(fmt.Sprint("n", i))
				draw := rand.New(rand.NewPCG(seed, 0))
				e.AddSource("up", &hop{up: ups[i], maxBytes: 1 + int(seed%1000), chaos: draw.IntN}, engine.Keep{})
				return e, start(t, e)
			}
			for i := range 3 {
				e, stop := build(i)
				chain, stops, ups = append(chain, e), append(stops, stop), append(ups, pointing(e))
			}
			defer func() {
				for _, stop := range stops {
					stop()
				}
			}()
			direct := node("direct")
			direct.AddSource("up", &hop{up: pointing(root), maxBytes: 100}, engine.Keep{})
			defer start(t, direct)()

			for range rapid.IntRange(1, 20).Draw(t, "steps") {
				db := rapid.IntRange(0, 1).Draw(t, "db")
				switch rapid.IntRange(0, 9).Draw(t, "step") {
				case 0:
					i := rapid.IntRange(0, 1).Draw(t, "restart")
					stops[i]()
					chain[i], stops[i] = build(i)
					ups[i+1].replace(chain[i])
				case 1:
					lost[db].Store(true)
				case 2, 3:
					time.Sleep(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
				default:
					dbs[db].commit(time.Now(), drawOps(t, false)...)
				}
			}
			for _, db := range dbs {
				db.commit(time.Now(), drawOps(t, false)...)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			v := root.View()
			want := dump(v)
			for i, db := range dbs {
				_, head := db.head()
				if at := ownLog(v, engine.Origin("root", fmt.Sprint("db", i))).Head; at != head {
					t.Fatalf("the root is at %s of %s: %+v", at, head, root.Status())
				}
			}
			v.Close()
			for _, e := range append(slices.Clone(chain), direct) {
				v := e.View()
				if got := dump(v); got != want {
					t.Fatalf("%s ends as\n%swant\n%s\n%+v", e.NodeID(), got, want, e.Status())
				}
				v.Close()
			}
		})
	})
}
