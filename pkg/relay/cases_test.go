package relay_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

var counting = map[engine.TableName]relay.Delivery{hits: relay.Counted}

// A leaf's wall clock steps back an hour across a restart, and it writes on: its clock goes
// on above what it was, in the same epoch, and all that it writes comes to the root.
func TestCaseR02(t *testing.T) {
	t.Parallel()
	st, err := store.OpenPebble(store.PebbleOptions{Dir: "/leaf", FS: vfs.NewMem(), BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	l := newLeafWith(t, "leaf", st, true, func() time.Time { return time.Now().Add(time.Hour) })
	cfg := relay.Config{Window: soon}
	a := newRelay(t, "a", nil, cfg, l)
	root := newRelay(t, "root", nil, cfg, a)
	writes := func(v int) {
		t.Helper()
		for id := range 5 {
			l.write(ingest.Put, readings, "leaf", l.id, "id", id, "v", v)
			l.write(ingest.Put, events, "leaf", l.id, "id", id, "v", v)
		}
	}
	reads := func() {
		t.Helper()
		want := union(l)
		for _, n := range []*node{a, root} {
			n.until("it holds what the leaf holds", func() bool { return union(n) == want })
		}
	}
	writes(1)
	reads()
	last := engine.TimeOf(time.Now().Add(50 * time.Minute))
	was := l.own
	l.end()
	l = newLeafWith(t, "leaf", st, true, nil)
	defer l.end()
	if l.own != was {
		t.Errorf("the leaf's log was %s, and is %s", was, l.own)
	}
	a = a.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, l) })
	root = root.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, a) })
	writes(2)
	l.write(ingest.Delete, readings, "leaf", l.id, "id", 3)
	reads()
	v := root.View()
	defer v.Close()
	for _, table := range []engine.TableName{readings, events} {
		if err := v.Scan(table, nil, func(r *engine.Record) bool {
			if r.Stamp.Time <= last {
				t.Errorf("a write of %s has the time %s, of a clock that has been an hour ahead", table, r.Stamp.Time.Wall())
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// An increment that comes again, by a second parent, by one that begins anew, and to a
// root that reads all from the beginning, counts once.
func TestCaseR04(t *testing.T) {
	t.Parallel()
	cfg := relay.Config{Window: soon, Tables: counting}
	l := newLeaf(t, "leaf")
	a, b := newRelay(t, "a", nil, cfg, l), newRelay(t, "b", nil, cfg, l)
	for _, n := range []int{1, 2} {
		l.write(ingest.Add, hits, "page", "home", "n", n)
	}
	root := newRelay(t, "root", nil, cfg, a)
	root.until("it counts", func() bool { return root.total() == "3.00" })
	again := func(relays ...*node) {
		t.Helper()
		root = root.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, relays...) })
		for _, r := range relays {
			root.until("it has read "+r.id, func() bool { return root.cursorIn(r) == r.Adverts()[0].Head })
		}
		if got := root.total(); got != "3.00" {
			t.Errorf("what came again counts: %s", got)
		}
	}
	b.until("it counts", func() bool { return b.total() == "3.00" })
	again(a, b)
	a.end()
	a = newRelay(t, "a", nil, cfg, l) // empty
	a.until("it counts", func() bool { return a.total() == "3.00" })
	again(a, b)
	if cs := root.counters(); len(cs) != 1 || len(cs[0].Shares) != 1 || cs[0].Shares[0].Stamp.Log() != l.own {
		t.Errorf("the shares are %+v", cs)
	}
}

// Two parents that gather for different times deliver the same, and the root has the
// counter and the newest value as if one had.
func TestCaseR05(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, "leaf")
	a := newRelay(t, "a", nil, relay.Config{Window: soon, Tables: counting}, l)
	b := newRelay(t, "b", nil, relay.Config{Window: time.Second, Tables: counting}, l)
	root := newRelay(t, "root", nil, relay.Config{Window: -1, Tables: counting}, a, b)
	for i := range 300 {
		l.write(ingest.Add, hits, "page", "home", "n", 1)
		l.write(ingest.Put, readings, "leaf", l.id, "id", i%3, "v", i)
	}
	want := union(l)
	for _, n := range []*node{a, b, root} {
		n.until("it holds what the leaf holds", func() bool { return union(n) == want })
	}
	for _, r := range []*node{a, b} {
		root.until("it has read "+r.id, func() bool { return root.cursorIn(r) == r.Adverts()[0].Head })
	}
	if got := union(root); got != want || root.total() != "300.00" {
		t.Errorf("the root counts %s and holds\n%s, and the leaf\n%s", root.total(), got, want)
	}
	if fa, fb := a.relay.Stats().Flushes, b.relay.Stats().Flushes; fa <= fb {
		t.Errorf("%d flushes and %d: the relays have gathered alike", fa, fb)
	}
}

// A relay whose flush has the later of two changes first: both are applied.
func TestCaseR06(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, "leaf")
	a := newRelay(t, "a", nil, relay.Config{Window: soon}, l)
	l.write(ingest.Put, readings, "leaf", l.id, "id", 0, "v", 1)
	a.until("it reads the leaf", func() bool { return union(a) == union(l) })
	var ops []ingest.Op
	for _, w := range [][2]int{{2, 5}, {1, 7}, {2, 9}} { // the second row has its place in the flush before the first
		ops = append(ops, ingest.Op{Kind: ingest.Put, Table: readings, Row: []ingest.Field{
			{Column: "leaf", Value: text(l.id)}, {Column: "id", Value: text(w[0])}, {Column: "v", Value: text(w[1])}}})
	}
	if _, err := l.in.Write(t.Context(), &ingest.Batch{Ops: ops}); err != nil {
		t.Fatal(err)
	}
	want := union(l)
	a.until("it holds what the leaf holds", func() bool { return union(a) == want })
	var order []string
	v := a.View()
	bs, err := v.ReadLog(a.own, "", 1<<20)
	for _, b := range bs {
		for r := b.Reader(a.own, v.Schema); r.Next(); {
			if !r.IsBegin && r.Change.Schema != nil {
				parts, kerr := engine.DecodeKey(r.Change.Key)
				err = errors.Join(err, kerr)
				order = append(order, string(parts[1]))
			}
		}
	}
	v.Close()
	if err != nil || strings.Join(order, " ") != "0 2 1" {
		t.Fatalf("the flush has rows %v (%v); it is to have the later change first", order, err)
	}
	for name, top := range tops {
		root := top(t, "root", nil, a)
		root.until(name+": it holds what the leaf holds", func() bool { return union(root) == want })
	}
}

// A key is deleted at the leaf, and the slow parent delivers an older update of it
// afterwards: it stays deleted, also when its tombstone has gone.
func TestCaseR19(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		cfg := relay.Config{Window: soon, Conflicts: owned(t), TombstoneRetention: -1}
		l := newLeaf(t, "leaf")
		l.write(ingest.Put, readings, "leaf", l.id, "id", 1, "v", 1)
		fast, slow := newRelay(t, "fast", nil, cfg, l), newRelay(t, "slow", nil, cfg, l)
		root := newRelay(t, "root", store.NewMemory(store.MemoryOptions{}), cfg, fast, slow)
		root.until("it has begun", func() bool { return union(root) == union(l) })
		root.links[1].cut(true)
		l.write(ingest.Put, readings, "leaf", l.id, "id", 1, "v", 2)
		l.write(ingest.Put, readings, "leaf", l.id, "id", 2, "v", 2)
		slow.until("it has the update", func() bool { return union(slow) == union(l) })
		slow.links[0].cut(true)
		l.write(ingest.Delete, readings, "leaf", l.id, "id", 1)
		want := union(l)
		root.until("the key is deleted", func() bool { return union(root) == want })
		if gone {
			root.relay.SetReaders([]string{"reader"})
			if err := root.relay.Ack("reader", root.Adverts()[0].Head); err != nil {
				t.Fatal(err)
			}
			root.collect()
			if n := root.tombstones(); n != 0 {
				t.Fatalf("%d tombstones are left", n)
			}
		}
		root.links[1].cut(false)
		root.until("it has read the slow parent", func() bool { return root.cursorIn(slow) == slow.Adverts()[0].Head })
		if got := union(root); got != want {
			t.Errorf("tombstone gone: %v: the root holds\n%s, and the leaf\n%s", gone, got, want)
		}
	}
}

// A leaf is restored from a backup, and writes before a parent has told it what it has
// lost. What is newer at the root stays, what the leaf no longer knows goes, and what
// it has written stands, though it comes by two relays and is of the older epoch.
func TestCaseR18(t *testing.T) {
	t.Parallel()
	open := func(fs vfs.FS) engine.Store {
		st, err := store.OpenPebble(store.PebbleOptions{Dir: "/leaf", FS: fs, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	put := func(l *node, id, v int) { l.write(ingest.Put, readings, "leaf", l.id, "id", id, "v", v) }
	fs := vfs.NewCrashableMem()
	st := open(fs)
	l := newLeafOver(t, "leaf", st)
	cfg := relay.Config{Window: soon}
	a, b := newRelay(t, "a", nil, cfg, l), newRelay(t, "b", nil, cfg, l)
	root := newRelay(t, "root", nil, cfg, a, b)
	for id := range 4 {
		put(l, id, 1)
	}
	read := func() {
		t.Helper()
		want := union(l)
		for _, n := range []*node{a, b, root} {
			n.until("it holds what the leaf holds", func() bool { return union(n) == want })
		}
	}
	read()
	back := fs.CrashClone(vfs.CrashCloneCfg{})
	put(l, 1, 2)
	put(l, 9, 2)
	read()
	for _, n := range []*node{root, a, b, l} {
		n.end()
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	was := l.own
	st = open(back)
	defer func() { _ = st.Close() }()
	l = newLeafOver(t, "leaf", st)
	defer l.end()
	put(l, 3, 3)
	l.Witness(a.id, was.Epoch, engine.TimeOf(time.Now()))
	l.until("it has a new epoch", func() bool { ads := l.Adverts(); return len(ads) == 1 && ads[0].Log.Epoch > was.Epoch })
	l.own = l.Adverts()[0].Log
	put(l, 5, 3)
	a = a.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, l) })
	b = b.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, l) })
	root = root.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, a, b) })
	for _, n := range []*node{a, b} {
		n.until("it has read the leaf", func() bool { return n.cursorIn(l) == l.Adverts()[0].Head })
	}
	root.until("it has read both", func() bool {
		return root.cursorIn(a) == a.Adverts()[0].Head && root.cursorIn(b) == b.Adverts()[0].Head
	})
	got := map[string]string{}
	v := root.View()
	defer v.Close()
	if err := v.Scan(readings, nil, func(r *engine.Record) bool {
		if r.Deleted {
			return true
		}
		key, _ := engine.DecodeKey(r.Key)
		for _, c := range r.Row.Columns() { // the last is the value
			got[string(key[1])] = string(c.Value)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, map[string]string{"0": "1", "1": "2", "2": "1", "3": "3", "5": "3"}) {
		t.Errorf("the root holds %v", got)
	}
}
