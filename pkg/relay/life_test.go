package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// A relay whose store has gone back begins its log anew when a peer knows more of it:
// no acknowledgement of the old one counts, and the peer gets all that it lacks.
func TestGoneBack(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	open := func(fs vfs.FS) engine.Store {
		st, err := store.OpenPebble(store.PebbleOptions{Dir: "/relay", FS: fs, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	l := newLeaf(t, "leaf")
	cfg := relay.Config{Window: soon}
	st := open(fs)
	a := newRelay(t, "a", st, cfg, l)
	root := newRelay(t, "root", nil, cfg, a)
	write := func(from, to int) {
		for i := from; i < to; i++ {
			l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", i)
			l.write(ingest.Put, events, "leaf", l.id, "id", i, "v", i)
		}
	}
	write(0, 20)
	want := union(l)
	root.until("it holds what the leaf holds", func() bool { return union(root) == want })
	back := fs.CrashClone(vfs.CrashCloneCfg{})
	write(20, 40)
	want = union(l)
	root.until("it holds what the leaf holds", func() bool { return union(root) == want })
	root.end()
	a.end()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	was, head := a.own, root.links[0].head()
	epoch, at := root.Highest("a")
	st = open(back)
	defer func() { _ = st.Close() }()
	a = newRelay(t, "a", st, cfg)
	defer a.end()
	a.Witness("root", epoch, at)
	if err := a.relay.Ack("root", head); err != nil {
		t.Fatal(err)
	}
	if acks := a.relay.Acks(l.own); len(acks) > 0 {
		t.Errorf("acknowledgements of a log that there is not any more count: %v", acks)
	}
	a.until("its log is another", func() bool { ads := a.Adverts(); return len(ads) == 1 && ads[0].Log != was })
	if log := a.relay.Log(); log == was || log.Epoch <= was.Epoch {
		t.Errorf("the log is %s, and was %s", log, was)
	}
	write(40, 50)
	b := newRelay(t, "b", nil, cfg, a) // it reads all that a holds, which has gone back
	b.until("it holds what the relay holds", func() bool { return union(b) == union(a) && union(b) != "" })
	if g := b.relay.Stats().Gap; g.Why == "" {
		t.Error("changes of a table delivered as All are missing, and no gap is there")
	}
	root = root.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, a) })
	root.until("it reads the new log", func() bool { return root.links[0].head() == a.Adverts()[0].Head })
	if got := union(root); got != want {
		t.Errorf("what the root had and the relay lost is gone: got\n%swant\n%s", got, want)
	}
}

// A leaf that is assigned elsewhere is forgotten, once those above have all of it, and
// nothing is deleted above; a leaf that is retired goes everywhere, and comes back only
// as a new epoch.
func TestForgetAndRetire(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	ls := leaves(t, 2)
	cfg := relay.Config{Window: soon}
	a, b := newRelay(t, "a", nil, cfg, ls...), newRelay(t, "b", nil, cfg, ls[0])
	root := newRelay(t, "root", nil, cfg, a, b)
	for _, l := range ls {
		for i := range 10 {
			l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", i)
		}
	}
	want, left := union(ls...), union(ls[1])
	root.until("it holds what the leaves hold", func() bool { return union(root) == want })
	a.links[0].cut(true)
	above := []string{"root", "other"}
	a.relay.Has(ls[0].own, engine.CompareBytes, "root", ls[0].Adverts()[0].Head)
	if done, err := a.Forget(ctx, ls[0].own, above); done || err != nil {
		t.Errorf("a leaf is forgotten though nobody has said that the other root has it (%v)", err)
	}
	a.relay.Has(ls[0].own, engine.CompareBytes, "other", ls[0].Adverts()[0].Head)
	if done, err := a.Forget(ctx, ls[0].own, above); !done || err != nil {
		t.Fatalf("the leaf is not forgotten (%v)", err)
	}
	if got := union(a); got != left || a.tombstones() != 0 {
		t.Errorf("a leaf was forgotten, and %d tombstones are there and\n%s", a.tombstones(), got)
	}
	ls[1].write(ingest.Put, readings, "leaf", ls[1].id, "id", 1, "v", 100)
	want = union(ls...)
	root.until("it holds what the leaves hold", func() bool { return union(root) == want })
	if len(a.Adverts()) != 1 {
		t.Errorf("the relay offers %v", a.Adverts())
	}
	fresh := newRelay(t, "fresh", nil, cfg, a, b) // a new holder gets the leaf by its new parent
	fresh.until("it holds what the leaves hold", func() bool { return union(fresh) == want })

	head := func(n *node) engine.Position { return n.Adverts()[0].Head }
	retired := func() bool {
		v := b.View()
		defer v.Close()
		return b.Retired(v, ls[0].own)
	}
	if retired() {
		t.Error("a leaf is retired before it is")
	}
	if err := b.Retire(ctx, ls[0].own); err != nil {
		t.Fatal(err)
	}
	left = union(ls[1])
	for _, n := range []*node{root, fresh} {
		n.until("the retired leaf is gone", func() bool { return union(n) == left })
	}
	if at := head(b); !retired() || b.Retire(ctx, ls[0].own) != nil || head(b) != at {
		t.Error("a leaf that is retired is retired again")
	}
	if err := b.Retire(ctx, engine.LogID{Origin: "nobody#in", Epoch: 1}); !errors.Is(err, engine.ErrUnknownLog) {
		t.Errorf("a leaf that was never read is retired: %v", err)
	}

	// It was not gone after all: what it writes from then on counts.
	ls[0].write(ingest.Put, readings, "leaf", ls[0].id, "id", 77, "v", 1)
	ls[0].write(ingest.Put, readings, "leaf", ls[0].id, "id", 3, "v", 2)
	b.until("it has read it", func() bool { return b.links[0].head() == ls[0].Adverts()[0].Head })
	if retired() {
		t.Error("what a leaf has written since is retired")
	}
	back := b.rows()
	for _, n := range []*node{root, fresh} {
		n.until("what it has written is there", func() bool { return union(n) == unionOf(left, back) })
	}
	if n := strings.Count(back, "\n"); n != 2 {
		t.Errorf("%d rows are back:\n%s", n, back)
	}
}

// What a leaf that is gone for good has counted counts on: at the root, at its relays once
// they have forgotten it, and at a root that is new. That its rows are gone the root hears
// though it comes late, and the relay has forgotten the leaf: by the log, and where that no
// longer reaches back, by what there is.
func TestRetireCounts(t *testing.T) {
	t.Parallel()
	for _, journal := range []int{0, 1} {
		t.Run(fmt.Sprintf("journal of %d", journal), func(t *testing.T) {
			t.Parallel()
			testRetireCounts(t, journal)
		})
	}
}

func testRetireCounts(t *testing.T, journal int) {
	ctx := context.Background()
	cfg := relay.Config{Window: soon, Tables: map[engine.TableName]relay.Delivery{hits: relay.Counted}}
	l, other := newLeaf(t, "leaf"), newLeaf(t, "other")
	a := newRelay(t, "a", store.NewMemory(store.MemoryOptions{JournalBytes: journal}), cfg, l, other)
	root := newRelay(t, "root", nil, cfg, a)
	l.write(ingest.Add, hits, "page", "home", "n", 40)
	l.write(ingest.Put, readings, "leaf", l.id, "id", 1, "v", 1)
	other.write(ingest.Add, hits, "page", "home", "n", 2)
	root.until("it holds what the leaves hold", func() bool { return root.total() == "42.00" && union(root) == union(l, other) })
	root.until("it has acknowledged it", func() bool { return root.links[0].head() == a.Adverts()[0].Head })
	a.links[0].cut(true)
	root.links[0].cut(true)
	if err := a.Retire(ctx, l.own); err != nil {
		t.Fatal(err)
	}
	if done, err := a.Forget(ctx, l.own, []string{"root"}); !done || err != nil {
		t.Fatalf("the leaf is not forgotten (%v)", err)
	}
	for i := range 3 {
		other.write(ingest.Put, events, "leaf", other.id, "id", i, "v", 1)
		a.until("it has read it", func() bool { return a.cursorIn(other) == other.Adverts()[0].Head })
	}
	root.links[0].cut(false)
	left := func(n *node) bool {
		return strings.Count(n.rows(), "\n") == 5 && !strings.Contains(n.rows(), "readings") && n.total() == "42.00"
	}
	for _, n := range []*node{a, root, newRelay(t, "fresh", nil, cfg, a)} {
		n.until("the leaf's rows are gone, and what it has counted counts", func() bool { return left(n) && n.rows() == a.rows() })
	}
	if _, _, since := root.links[0].counts(); (journal > 0) != (since > 0) {
		t.Errorf("the root was read what there is %d times", since)
	}
}

// A relay starts again after a leaf was assigned elsewhere, and the leaf tells it nothing
// any more. It forgets the leaf by what those above acknowledge anew.
func TestForgetAfterRestart(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := newLeaf(t, "leaf")
	cfg := relay.Config{Window: soon}
	a := newRelay(t, "a", nil, cfg, l)
	l.write(ingest.Put, readings, "leaf", l.id, "id", 1, "v", 1)
	a.until("it holds what the leaf holds", func() bool { return union(a) == union(l) })
	a = a.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg) })
	root := relay.Holder("root", 7)
	if done, err := a.Forget(ctx, l.own, []string{"root"}); done || err != nil {
		t.Errorf("the leaf is forgotten though the root has acknowledged nothing (%v)", err)
	}
	if err := a.relay.Ack(root, "0000000000000000"); err != nil {
		t.Fatal(err)
	}
	if done, err := a.Forget(ctx, l.own, []string{"root"}); done || err != nil {
		t.Errorf("the leaf is forgotten though the root has less of it (%v)", err)
	}
	if err := a.relay.Ack(root, a.Adverts()[0].Head); err != nil {
		t.Fatal(err)
	}
	if done, err := a.Forget(ctx, l.own, []string{"root"}); !done || err != nil {
		t.Fatalf("the leaf is not forgotten (%v)", err)
	}
	if got := union(a); got != "" {
		t.Errorf("a leaf was forgotten, and there is\n%s", got)
	}
}

// A baseline that is far larger than what waits for a flush is one commit, and its
// cover is cut into ranges.
func TestLargeBaseline(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, "leaf")
	ops := make([]ingest.Op, 0, 500)
	const rows = 6000
	for i := range rows {
		ops = append(ops, ingest.Op{Kind: ingest.Put, Table: readings, Row: []ingest.Field{
			{Column: "leaf", Value: text(fmt.Sprintf("%s%040d", l.id, i))}, {Column: "id", Value: text(i)}, {Column: "v", Value: text(i)}}})
		if len(ops) == cap(ops) {
			if _, err := l.in.Write(context.Background(), &ingest.Batch{Ops: ops}); err != nil {
				t.Fatal(err)
			}
			ops = ops[:0]
		}
	}
	cfg := relay.Config{Window: soon, MaxPending: 100_000}
	a := newRelay(t, "a", nil, cfg, l)
	root := newRelay(t, "root", store.NewMemory(store.MemoryOptions{}), cfg, a)
	want := union(l)
	for _, n := range []*node{a, root} {
		n.until("it holds what the leaf holds", func() bool { return union(n) == want })
		if f := n.relay.Stats().Flushes; f != 1 {
			t.Errorf("%s: the baseline came in %d commits", n.id, f)
		}
	}
	if st := root.relay.Stats(); st.Changes < rows+8 {
		t.Errorf("%d rows and their covers took %d places; a cover is to be cut", rows, st.Changes)
	}
	v := root.View()
	defer v.Close()
	bs, err := relay.Since(v, root.own, "")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range bs {
		if len(b.Payload) > 2*engine.MaxBlock || int(b.Part) != i || b.Last != (i == len(bs)-1) {
			t.Errorf("block %d of %d: part %d of %d bytes", i, len(bs), b.Part, len(b.Payload))
		}
	}
}

// A leaf is gone for good, of which a root has by one relay more than the other has read.
// The root turns to the other, from the floor, which is past the place where that says so:
// it hears it all the same. It is said again to who is sent past it, and not to others; and
// after a start, when it is not known to whom.
func TestGoneBelowTheFloor(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := relay.Config{Window: soon, Tables: map[engine.TableName]relay.Delivery{hits: relay.Counted}}
	l, other := newLeaf(t, "leaf"), newLeaf(t, "other")
	l.write(ingest.Add, hits, "page", "home", "n", 40)
	a, b := newRelay(t, "a", nil, cfg, l, other), newRelay(t, "b", nil, cfg, l, other)
	root := newRelay(t, "root", nil, cfg, a)
	l.write(ingest.Put, readings, "leaf", l.id, "id", 1, "v", 1)
	other.write(ingest.Put, readings, "leaf", other.id, "id", 1, "v", 1)
	want := union(l, other)
	for _, n := range []*node{root, b} {
		n.until("it holds what the leaves hold", func() bool { return union(n) == want })
	}
	a.end()
	if err := b.Retire(ctx, l.own); err != nil {
		t.Fatal(err)
	}
	if done, err := b.Forget(ctx, l.own, nil); !done || err != nil {
		t.Fatalf("the leaf is not forgotten (%v)", err)
	}
	other.write(ingest.Put, readings, "leaf", other.id, "id", 2, "v", 1)
	b.until("it has read it", func() bool { return b.cursorIn(other) == other.Adverts()[0].Head })
	holder := relay.Holder("root", 7)
	b.relay.Has(other.own, engine.CompareBytes, holder, other.Adverts()[0].Head)
	head := func() engine.Position { return b.Adverts()[0].Head }
	before := head()
	if err := b.Collect(ctx); err != nil || head() != before {
		t.Fatalf("it says something again that nobody was sent past (%v)", err)
	}

	hears := func(from engine.Position) {
		t.Helper()
		if from != before {
			t.Fatalf("the floor is %s, and the head %s", from, before)
		}
		if err := b.Collect(ctx); err != nil {
			t.Fatal(err)
		}
		for _, journal := range []bool{true, false} {
			gone := false
			for _, n := range notes(t, b, from, journal) {
				gone = gone || slices.ContainsFunc(n.Marks, func(m engine.Mark) bool { return m.Log == l.own && m.Retires })
				if c := n.Cover; c != nil && c.Table == hits && len(c.Keys) == 0 {
					t.Errorf("shares of the leaf do not stand from %s on", from)
				}
			}
			if !gone {
				t.Errorf("who reads on from %s to %s does not hear that the leaf is gone (by the journal: %t)", from, head(), journal)
			}
		}
		before = head()
	}
	floor := func() engine.Position { return b.relay.Tree().Floor(b.Adverts()[0].Log, holder) }
	hears(floor())
	if err := b.Collect(ctx); err != nil || head() != before {
		t.Errorf("it is said twice (%v)", err)
	}
	if err := b.relay.Ack(holder, head()); err != nil {
		t.Fatal(err)
	}
	if floor(); b.Collect(ctx) != nil || head() != before {
		t.Error("it is said again to a root that has acknowledged it")
	}
	b = b.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg) })
	hears(head())
	if err := b.Collect(ctx); err != nil || head() != before {
		t.Errorf("it is said twice after a start (%v)", err)
	}
}

// notes are those that a reader of a relay is given from a position on, by the log's entries or by what there
// is.
func notes(t *testing.T, n *node, at engine.Position, journal bool) (all []*engine.Note) {
	t.Helper()
	v := n.View()
	defer v.Close()
	log := n.Adverts()[0].Log
	var bs []*engine.Block
	var err error
	if journal {
		bs, err = v.ReadLog(log, at, 1<<30)
	} else {
		bs, err = relay.Since(v, log, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bs {
		r := b.Reader(log, v.Schema).Notes()
		for r.Next() {
			if r.Note != nil {
				all = append(all, r.Note)
			}
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	return all
}
