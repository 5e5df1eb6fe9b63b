package relay_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

const soon = 5 * time.Millisecond // a window

func leaves(t testing.TB, n int) (all []*node) {
	for i := range n {
		all = append(all, newLeaf(t, fmt.Sprintf("leaf%03d", i)))
	}
	return all
}

// work makes random writes at a leaf, and returns what it has added to the counter.
func work(l *node, seed uint64, writes int) (added int) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range writes {
		switch id := r.IntN(6); r.IntN(6) {
		case 0:
			l.write(ingest.Delete, readings, "leaf", l.id, "id", id)
		case 1:
			l.write(ingest.Put, events, "leaf", l.id, "id", id, "v", i)
		case 2:
			n := 1 + r.IntN(9)
			added += n
			l.write(ingest.Add, hits, "page", "home", "n", fmt.Sprintf("%d.25", n-1))
			l.write(ingest.Add, hits, "page", "home", "n", "0.75")
		default:
			l.write(ingest.Put, readings, "leaf", l.id, "id", id, "v", i)
		}
	}
	return added
}

// Leaves, two relays that never talk, two roots that read both: every row is at
// each root, once, as its leaf wrote it; the roots hold a log and a cursor per
// relay; relays hold equal records; counters are exact.
func TestTree(t *testing.T) {
	t.Parallel()
	ls := leaves(t, 30)
	cfg := relay.Config{Window: soon}
	a, b := newRelay(t, "a", nil, cfg, ls...), newRelay(t, "b", nil, cfg, ls...)
	roots := []*node{newRoot(t, "r1", nil, a, b), newRoot(t, "r2", nil, b, a)}
	added := make([]int, len(ls))
	var wg sync.WaitGroup
	for i, l := range ls {
		wg.Add(1)
		go func() { defer wg.Done(); added[i] = work(l, uint64(i), 60) }()
	}
	wg.Wait()
	want := union(ls...)
	for _, n := range append(roots, a, b) {
		n.until("it holds what the leaves hold", func() bool { return union(n) == want })
	}
	total := 0
	for _, n := range added {
		total += n
	}
	for _, r := range roots {
		v := r.View()
		if logs, cursors := len(v.Logs()), len(v.Cursors()); logs != 2 || cursors != 2 {
			t.Errorf("root %s holds %d logs and %d cursors; 2 relays are read", r.id, logs, cursors)
		}
		var got []relay.Counter
		if err := relay.Counters(v, hits, nil, []string{"n"}, func(c relay.Counter) bool { got = append(got, c); return true }); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Totals[0] != fmt.Sprintf("%d.00", total) || len(got[0].Shares) != len(ls) {
			t.Errorf("root %s counts %+v; %d was added by %d leaves", r.id, got, total, len(ls))
		}
		v.Close()
		if st := r.Status(); len(st.Logs) != 2 || !strings.HasPrefix(st.Logs[0].ID.Origin, "a#") {
			t.Errorf("status of root %s: %+v", r.id, st.Logs)
		}
	}
	for _, n := range []*node{a, b} {
		v := n.View()
		if cursors := len(v.Cursors()); cursors != len(ls) {
			t.Errorf("relay %s holds %d cursors for %d leaves", n.id, cursors, len(ls))
		}
		v.Close()
		if ads := n.Adverts(); len(ads) != 1 || ads[0].Log != n.own || len(ads[0].Tables) != 3 {
			t.Errorf("relay %s offers %+v", n.id, ads)
		}
	}
	// Whose a row is, is in its stamp.
	v := roots[0].View()
	defer v.Close()
	if err := v.Scan(readings, nil, func(r *engine.Record) bool {
		parts, err := engine.DecodeKey(r.Key)
		if err != nil || r.Stamp.Origin != string(parts[0])+"#in" {
			t.Errorf("a row of %s is stamped %s (%v)", parts[0], r.Stamp, err)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
}

// A row that changes often is sent on once per window.
func TestCoalescing(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, "leaf")
	a := newRelay(t, "a", nil, relay.Config{Window: 50 * time.Millisecond}, l)
	root := newRoot(t, "root", nil, a)
	root.until("it has begun", func() bool { return len(root.Adverts()) == 1 })
	const writes = 2000
	began := time.Now()
	for i := range writes {
		l.write(ingest.Put, readings, "leaf", l.id, "id", i%4, "v", i)
	}
	windows := int(time.Since(began)/(50*time.Millisecond)) + 2
	want := union(l)
	root.until("it holds what the leaf holds", func() bool { return union(root) == want })
	_, changes, _ := root.links[0].counts()
	t.Logf("%d writes to 4 rows in %d windows: %d changes in %d flushes came to the root", writes, windows, changes, a.relay.Stats().Flushes)
	if changes > 4*windows {
		t.Errorf("%d writes to 4 rows in %d windows came as %d changes; one for each row and window is enough", writes, windows, changes)
	}
}

// Of a table that is delivered as All every change comes, once, though two relays
// deliver it.
func TestAll(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, "leaf")
	cfg := relay.Config{Window: soon}
	a, b := newRelay(t, "a", nil, cfg, l), newRelay(t, "b", nil, cfg, l)
	second := newRelay(t, "top", nil, cfg, a, b) // it re-originates what two relays do
	root := newRoot(t, "root", nil, second)
	root.until("it has begun", func() bool { return len(root.Adverts()) == 1 })
	for i := range 300 {
		l.write(ingest.Put, events, "leaf", l.id, "id", i%3, "v", i)
	}
	want := union(l)
	root.until("it holds what the leaf holds", func() bool { return union(root) == want })
	v := root.View()
	defer v.Close()
	bs, err := v.ReadLog(second.own, "", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for _, b := range bs {
		r := b.Reader(second.own, v.Schema)
		for r.Next() {
			if !r.IsBegin {
				got = append(got, r.Change.Stamp.Version.Major)
			}
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	if len(got) != 300 || !slices.IsSorted(got) || len(slices.Compact(got)) != 300 {
		t.Errorf("300 changes came as %d", len(got))
	}
}

// A parent that was away for longer than the relay's log reaches back gets each row
// that has changed once, and deletes.
func TestAway(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, "leaf")
	a := newRelay(t, "a", store.NewMemory(store.MemoryOptions{JournalBytes: 2000}), relay.Config{Window: -1, Tables: map[engine.TableName]relay.Delivery{}}, l)
	root := newRoot(t, "root", nil, a)
	for i := range 50 {
		l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", 0)
	}
	want := union(l)
	root.until("it holds what the leaf holds", func() bool { return union(root) == want })
	link := root.links[0]
	link.cut(true)
	_, before, _ := link.counts()
	for i := range 400 {
		l.write(ingest.Put, readings, "leaf", l.id, "id", i%7, "v", i)
	}
	l.write(ingest.Delete, readings, "leaf", l.id, "id", 3)
	want = union(l)
	a.until("it holds what the leaf holds", func() bool { return union(a) == want })
	link.cut(false)
	root.until("it holds what the leaf holds", func() bool { return union(root) == want })
	_, after, since := link.counts()
	if since == 0 || after-before != 7 {
		t.Errorf("7 rows changed, 401 times: %d changes came, by %d reads of places", after-before, since)
	}
}

// Acknowledgements of roots come down to the leaves, and a relay that takes over is
// read from what the root has.
func TestFloors(t *testing.T) {
	t.Parallel()
	ls := leaves(t, 5)
	cfg := relay.Config{Window: soon}
	a, b := newRelay(t, "a", nil, cfg, ls...), newRelay(t, "b", nil, cfg, ls...)
	r1, r2 := newRoot(t, "r1", nil, a), newRoot(t, "r2", nil, a)
	pass := func() { // what a session does: acks go down, what is stable comes up
		for _, n := range []*node{a, b} {
			for _, link := range n.links {
				link.tell(n.relay.Acks(link.up.own))
				link.up.hmu.Lock()
				has := link.up.has.Of()
				link.up.hmu.Unlock()
				for h, at := range has {
					n.relay.Has(link.up.own, engine.CompareBytes, h, at)
				}
			}
		}
	}
	stable := func(l *node, roots ...string) (engine.Position, bool) {
		l.hmu.Lock()
		defer l.hmu.Unlock()
		return l.has.Stable(roots)
	}
	round := func(seed uint64) {
		for i, l := range ls {
			work(l, seed+uint64(i), 40)
		}
	}
	settle := func(roots ...*node) {
		t.Helper()
		want := union(ls...)
		for _, n := range append(roots, b) {
			n.until("it holds what the leaves hold", func() bool { return union(n) == want })
		}
		for _, l := range ls {
			l.until("it is stable to its head", func() bool {
				pass()
				at, ok := stable(l, "r1", "r2")
				return ok && at == l.Adverts()[0].Head
			})
		}
	}
	round(1)
	settle(r1, r2)
	pass()
	if f, head := b.relay.Floor("r1"), b.Adverts()[0].Head; f != head {
		t.Errorf("relay b, at %s, knows of r1 that it has all up to %s, and it has all", head, f)
	}
	if f := b.relay.Floor("r3"); f != "" {
		t.Errorf("relay b knows of a root that was never there that it has all up to %s", f)
	}
	r2.links[0].cut(true) // it falls behind: nothing more is stable
	before, _ := stable(ls[0], "r1", "r2")
	round(100)
	want := union(ls...)
	for _, n := range []*node{r1, b} {
		n.until("it holds what the leaves hold", func() bool { return union(n) == want })
	}
	pass()
	if at, _ := stable(ls[0], "r1", "r2"); at != before {
		t.Errorf("a leaf is stable up to %s, and one root has it up to %s only", at, before)
	}
	if f := b.relay.Floor("r2"); engine.CompareNumber(f, b.Adverts()[0].Head) >= 0 {
		t.Errorf("relay b knows of r2 that it has all up to %s", f)
	}
	// Relay a is gone. r2 takes b from the floor.
	for _, r := range []*node{r1, r2} {
		r.links[0].cut(true)
	}
	floor := b.relay.Floor("r2")
	again := newNode(t, "r2", r2.store, nil)
	r2.end()
	link := again.reads(b, engine.Keep{})
	link.floor = true
	again.start()
	again.until("it holds what the leaves hold", func() bool { return union(again) == want })
	_, changes, _ := link.counts()
	head, err := relay.Place(b.Adverts()[0].Head)
	if err != nil {
		t.Fatal(err)
	}
	from, err := relay.Place(floor)
	if err != nil {
		t.Fatal(err)
	}
	if from == 0 || changes > int(head-from) {
		t.Errorf("from floor %d to head %d, %d changes came", from, head, changes)
	}
}

// A relay that is started again has its log, its checkpoints and its cursors, and
// sends nothing twice.
func TestRestart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	open := func() engine.Store {
		st, err := store.OpenPebble(store.PebbleOptions{Dir: "/relay", FS: fs, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	ls := leaves(t, 3)
	st := open()
	a := newRelay(t, "a", st, relay.Config{Window: soon}, ls...)
	root := newRoot(t, "root", nil, a)
	for i, l := range ls {
		work(l, uint64(i), 50)
	}
	want := union(ls...)
	root.until("it holds what the leaves hold", func() bool { return union(root) == want })
	root.end()
	own, head := a.own, a.Adverts()[0].Head
	a.end()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	for i, l := range ls {
		work(l, 100+uint64(i), 50)
	}
	st = open()
	defer func() { _ = st.Close() }()
	a = newRelay(t, "a", st, relay.Config{Window: soon}, ls...)
	defer a.end()
	if a.own != own {
		t.Fatalf("the log is %s, and was %s", a.own, own)
	}
	// What those above have it is told anew: until then it knows less, and only sends and
	// keeps more.
	if at := a.relay.Floor("root"); at != "" || len(a.relay.Acks(ls[0].own)) != 0 {
		t.Errorf("nobody has told the relay anything since it was started, and it knows that the root has its log up to %s", at)
	}
	if err := a.relay.Ack("root", head); err != nil {
		t.Fatal(err)
	}
	if at := a.relay.Floor("root"); at != head {
		t.Errorf("the root has the log up to %s, and the relay knows of %s", head, at)
	}
	if acks := a.relay.Acks(ls[0].own); acks["root"] == "" {
		t.Errorf("of what was flushed before the restart the relay knows no checkpoint: %v", acks)
	}
	again := newNode(t, "root", root.store, nil)
	link := again.reads(a, engine.Keep{})
	again.start()
	want = union(ls...)
	again.until("it holds what the leaves hold", func() bool { return union(again) == want })
	if _, changes, _ := link.counts(); changes > 150 {
		t.Errorf("150 writes came as %d changes", changes)
	}
	for _, l := range ls {
		for _, link := range a.links {
			if link.up == l {
				if blocks, _, _ := link.counts(); blocks == 0 {
					t.Errorf("leaf %s was read anew, and not from the cursor", l.id)
				}
			}
		}
	}
}
