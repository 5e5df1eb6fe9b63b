package relay_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// tombstones is how many a node holds.
func (n *node) tombstones() (c int) {
	v := n.View()
	defer v.Close()
	for _, t := range v.Tables() {
		c += t.Tombstones
	}
	return c
}

func (n *node) collect() {
	n.t.Helper()
	if err := n.Collect(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

// owned is a policy under which no two leaves write one row.
func owned(t testing.TB) *engine.Conflicts {
	c, err := engine.NewConflicts(
		engine.Conflict{Table: readings, Policy: engine.OriginOwnsKey, Column: "leaf"},
		engine.Conflict{Table: events, Policy: engine.OriginOwnsKey, Column: "leaf"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// clock is one that is moved by hand.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// A tombstone stays until each registered reader has passed it, or for the retention;
// where several leaves may write a row it stays for the retention.
func TestTombstonesGo(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared %v", shared), func(t *testing.T) {
			t.Parallel()
			var c clock
			cfg := relay.Config{Window: -1, Now: c.now}
			if !shared {
				cfg.Conflicts = owned(t)
			}
			l := newLeaf(t, "leaf")
			a := newRelay(t, "a", nil, cfg, l)
			a.relay.SetReaders([]string{"fast", "slow"})
			for i := range 20 {
				l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", 0)
			}
			a.until("it has the rows", func() bool { return union(a) == union(l) }) // it begins with what stands then
			for i := range 10 {
				l.write(ingest.Delete, readings, "leaf", l.id, "id", i)
			}
			want := union(l)
			a.until("it holds what the leaf holds", func() bool { return union(a) == want })
			head := a.Adverts()[0].Head
			ack := func(holder string) {
				if err := a.relay.Ack(holder, head); err != nil {
					t.Fatal(err)
				}
			}
			ack("fast")
			a.collect()
			if n := a.tombstones(); n != 10 {
				t.Fatalf("%d tombstones, and one reader has yet to pass them", n)
			}
			ack("slow")
			a.collect()
			if n := a.tombstones(); n != 0 != shared {
				t.Fatalf("%d tombstones, and both readers have passed them", n)
			}
			c.ahead.Store(int64(23 * time.Hour))
			l.write(ingest.Delete, readings, "leaf", l.id, "id", 15)
			a.until("it has the delete", func() bool { return union(a) == union(l) })
			a.collect()
			c.ahead.Store(int64(25 * time.Hour))
			a.collect()
			if n := a.tombstones(); n != 1 {
				t.Fatalf("%d tombstones, and one is not as old as the retention", n)
			}
			c.ahead.Store(int64(48 * time.Hour))
			a.collect()
			if n := a.tombstones(); n != 0 {
				t.Fatalf("%d tombstones, all older than the retention", n)
			}
			if st := a.relay.Stats(); st.Tombstones != 11 || st.Complete == 0 {
				t.Errorf("stats: %+v", st)
			}
		})
	}
}

// When a tombstone has gone, an older write that a slower path brings does not bring
// the row back: not after a restart either. A reader that was away then takes all
// there is, and loses what was deleted.
func TestGoneForGood(t *testing.T) {
	t.Parallel()
	var c clock
	cfg := relay.Config{Window: -1, Now: c.now, Conflicts: owned(t)}
	l := newLeaf(t, "leaf")
	low := []*node{newRelay(t, "low1", nil, cfg, l), newRelay(t, "low2", nil, cfg, l)}
	st := store.NewMemory(store.MemoryOptions{JournalBytes: 1000})
	mid := newRelay(t, "mid", st, cfg, low[0])
	top := newRelay(t, "top", nil, cfg, mid)
	for i := range 20 {
		l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", 0)
		l.write(ingest.Put, events, "leaf", l.id, "id", i, "v", 0)
	}
	want := union(l)
	for _, n := range []*node{low[0], low[1], mid, top} {
		n.until("it holds what the leaf holds", func() bool { return union(n) == want })
	}
	low[1].end() // as it was
	top.end()
	for i := range 20 {
		if i%4 > 0 {
			l.write(ingest.Delete, readings, "leaf", l.id, "id", i)
			l.write(ingest.Delete, events, "leaf", l.id, "id", i)
		}
	}
	for i := range 40 {
		l.write(ingest.Put, readings, "leaf", l.id, "id", 4, "v", i)
	}
	want = union(l)
	mid.until("it holds what the leaf holds", func() bool { return union(mid) == want })
	c.ahead.Store(int64(25 * time.Hour))
	mid.collect()
	if n := mid.tombstones(); n != 0 {
		t.Fatalf("%d tombstones", n)
	}
	// The slow path comes, to a relay that was started again.
	slow := low[1].again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg) })
	mid = mid.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, low[0], slow) })
	mid.until("it has read the slow path", func() bool { return mid.links[1].head() == slow.Adverts()[0].Head })
	if got := union(mid); got != want {
		t.Errorf("rows have come back: got\n%swant\n%s", got, want)
	}
	if n := mid.tombstones(); n != 0 {
		t.Errorf("%d tombstones of rows that were not there", n)
	}
	top = top.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, mid) })
	top.until("it holds what the leaf holds", func() bool { return union(top) == want })
	if _, _, since := top.links[0].counts(); since == 0 {
		t.Error("the reader did not read by places")
	}
	if g := top.relay.Stats().Gap; !strings.Contains(g.Why, "have gone") {
		t.Errorf("changes of a table delivered as All are missing, and the gap is %+v", g)
	}
	// It was told of the marks too.
	v := top.View()
	defer v.Close()
	top2 := newRelay(t, "top2", nil, cfg, top)
	top2.until("it holds what the leaf holds", func() bool { return union(top2) == want })
}

// The baseline of a leaf is as of where its log begins, with the log after it in the
// same commit: every change since is in the relay's log, and nothing in between is
// seen.
func TestFollow(t *testing.T) {
	t.Parallel()
	l := newLeafOver(t, "leaf", store.NewMemory(store.MemoryOptions{JournalBytes: 6000}))
	for i := range 200 {
		l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", 0)
	}
	l.write(ingest.Put, events, "leaf", l.id, "id", 500, "v", 0)
	for i := range 40 {
		l.write(ingest.Put, events, "leaf", l.id, "id", i%3, "v", i)
		l.write(ingest.Delete, readings, "leaf", l.id, "id", i)
	}
	a := newNode(t, "a", nil, nil)
	var err error
	if a.relay, err = relay.New(relay.Config{Window: -1, Tables: map[engine.TableName]relay.Delivery{events: relay.All}}); err != nil {
		t.Fatal(err)
	}
	if a.own, err = a.Record(context.Background(), "relay", a.relay); err != nil {
		t.Fatal(err)
	}
	a.reads(l, a.relay).stable = true
	a.start()
	want := union(l)
	a.until("it holds what the leaf holds", func() bool { return union(a) == want })
	if n := a.relay.Stats().Flushes; n != 1 {
		t.Errorf("the baseline and what follows it came in %d commits", n)
	}
	lv, v := l.View(), a.View()
	defer lv.Close()
	defer v.Close()
	if got, want := changesOf(t, v, a.own, events), changesOf(t, lv, l.own, events); len(want) < 5 || !strings.HasSuffix(strings.Join(got, " "), strings.Join(want, " ")) {
		t.Errorf("the leaf's log has %v, the relay's %v", want, got)
	}
}

// changesOf are the changes of a table in a log, in order.
func changesOf(t testing.TB, v engine.View, log engine.LogID, table engine.TableName) (all []string) {
	t.Helper()
	info, _ := v.Log(log)
	bs, err := v.ReadLog(log, info.Oldest, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bs {
		r := b.Reader(log, v.Schema)
		for r.Next() {
			if !r.IsBegin && r.Change.Schema.Table == table {
				all = append(all, r.Change.Stamp.String())
			}
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	return all
}
