package relay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// tops are roots that keep the logs of relays, and roots that have one of their own.
var tops = map[string]func(testing.TB, string, engine.Store, ...*node) *node{
	"keeps": newRoot,
	"re-originates": func(t testing.TB, id string, st engine.Store, relays ...*node) *node {
		return newRelay(t, id, st, relay.Config{Window: soon}, relays...)
	},
}

// again starts a node anew over its store, with others to read from.
func (n *node) again(p func(id string, st engine.Store) *node) *node {
	n.end()
	return p(n.id, n.store)
}

// A row that is deleted while nobody who knew of it is left goes at the root, by the
// cover of the leaf's next baseline: from the log's entries, and from places.
func TestCover(t *testing.T) {
	t.Parallel()
	for name, top := range tops {
		for _, journal := range []int{0, 1500} {
			t.Run(fmt.Sprintf("%s %d", name, journal), func(t *testing.T) {
				t.Parallel()
				l := newLeaf(t, "leaf")
				a := newRelay(t, "a", nil, relay.Config{Window: soon}, l)
				root := top(t, "root", nil, a)
				for i := range 50 {
					l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", 0)
					l.write(ingest.Put, events, "leaf", l.id, "id", i, "v", 0)
				}
				want := union(l)
				root.until("it holds what the leaf holds", func() bool { return union(root) == want })
				a.end() // with all that it had
				root.end()
				for i := range 50 {
					if i%3 > 0 {
						l.write(ingest.Delete, readings, "leaf", l.id, "id", i)
					}
				}
				l.write(ingest.Delete, events, "leaf", l.id, "id", 7)
				b := newRelay(t, "b", store.NewMemory(store.MemoryOptions{JournalBytes: journal}), relay.Config{Window: soon}, l)
				want = union(l)
				b.until("it holds what the leaf holds", func() bool { return union(b) == want })
				for i := range 30 {
					l.write(ingest.Put, readings, "leaf", l.id, "id", i%2*3, "v", i)
				}
				want = union(l)
				b.until("it holds what the leaf holds", func() bool { return union(b) == want })
				root = root.again(func(id string, st engine.Store) *node { return top(t, id, st, b) })
				root.until("it holds what the leaf holds", func() bool { return union(root) == want })
				if _, _, since := root.links[0].counts(); (since > 0) != (journal > 0) {
					t.Errorf("%d reads of places", since)
				}
			})
		}
	}
}

// A leaf that lost all comes back as a new epoch; its rows of before go wherever they
// are, and one that comes later is dead on arrival. With KeepOlder they stay.
func TestNewEpoch(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep %v", keep), func(t *testing.T) {
			t.Parallel()
			l := newLeaf(t, "leaf")
			cfg := relay.Config{Window: soon, KeepOlder: keep}
			a, late := newRelay(t, "a", nil, cfg, l), newRelay(t, "late", nil, cfg, l)
			root := newRelay(t, "root", nil, cfg, a, late)
			for i := range 10 {
				l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", "1")
			}
			want := union(l)
			for _, n := range []*node{a, late, root} {
				n.until("it holds what the leaf holds", func() bool { return union(n) == want })
			}
			root.links[1].cut(true) // it still has something to bring
			a.links[0].cut(true)
			l.write(ingest.Put, readings, "leaf", l.id, "id", 99, "v", "1")
			old := union(l)
			late.until("it holds what the leaf holds", func() bool { return union(late) == old })
			late.links[0].cut(true)
			l.end()
			l2 := newLeaf(t, "leaf")
			l2.write(ingest.Put, readings, "leaf", l.id, "id", 3, "v", "2")
			fresh := union(l2)
			want = fresh
			if keep {
				want = merged(old, fresh)
			}
			a2 := newRelay(t, "a2", nil, cfg, l2)
			root = root.again(func(id string, st engine.Store) *node {
				return newRelay(t, id, st, cfg, a2, late)
			})
			root.until("the old rows are as they should be", func() bool { return union(root) == want })
			root.until("all has come", func() bool { return root.links[1].head() == late.Adverts()[0].Head })
			if got := union(root); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// merged is rows with others in the place of those of the same key.
func merged(rows, over string) string {
	var all []string
	for _, r := range strings.SplitAfter(rows, "\n") {
		if r != "" && !strings.Contains(over, strings.Join(strings.SplitN(r, " ", 3)[:2], " ")) {
			all = append(all, r)
		}
	}
	return unionOf(strings.Join(all, ""), over)
}
