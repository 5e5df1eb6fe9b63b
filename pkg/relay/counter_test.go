package relay_test

import (
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

func (n *node) counters() (all []relay.Counter) {
	n.t.Helper()
	v := n.View()
	defer v.Close()
	if err := relay.Counters(v, hits, nil, []string{"n"}, func(c relay.Counter) bool { all = append(all, c); return true }); err != nil {
		n.t.Fatal(err)
	}
	return all
}

// total is what a node has of the one counter.
func (n *node) total() string {
	if all := n.counters(); len(all) == 1 {
		return all[0].Totals[0]
	}
	return ""
}

// What a leaf had added before it lost all still counts, by whatever path it comes;
// until it is deleted at the leaf, in whatever order that comes, and though the leaf
// adds again.
func TestShares(t *testing.T) {
	t.Parallel()
	cfg := relay.Config{Window: soon, Tables: map[engine.TableName]relay.Delivery{hits: relay.Counted}}
	l, other := newLeaf(t, "leaf"), newLeaf(t, "other")
	a, slow := newRelay(t, "a", nil, cfg, l, other), newRelay(t, "slow", nil, cfg, l, other)
	add := func(l *node, n any) { l.write(ingest.Add, hits, "page", "home", "n", n) }
	add(l, 40)
	add(l, "2.5")
	add(other, 7)
	for _, n := range []*node{a, slow} {
		n.until("it has counted", func() bool { return n.total() == "49.50" })
		n.end()
	}
	l.end()
	l = newLeaf(t, "leaf")
	add(l, 5)
	a = a.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, l, other) })
	root := newRelay(t, "root", nil, cfg, a)
	for _, n := range []*node{a, root} {
		n.until("both epochs count", func() bool { return n.total() == "54.50" })
	}
	if cs := root.counters(); len(cs[0].Shares) != 3 || cs[0].Shares[0].Origin != "leaf#in" || cs[0].Shares[0].Values[0] != "42.50" ||
		cs[0].Shares[1].Stamp.Log() != l.own || cs[0].Shares[1].Values[0] != "5.00" {
		t.Errorf("the shares are %+v", cs[0].Shares)
	}
	l.write(ingest.Delete, hits, "page", "home")
	add(l, 1)
	add(l, 2)
	for _, n := range []*node{a, root} {
		n.until("the older share has ended", func() bool { return n.total() == "10.00" })
	}
	// A root that hears of the end first, and of what has ended later.
	late := newRelay(t, "late", nil, cfg, a)
	late.until("the older share has ended", func() bool { return late.total() == "10.00" })
	late.end()
	slow = slow.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg) })
	late = late.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, a, slow) })
	late.until("it has read what the other relay has", func() bool { return late.links[1].head() == slow.Adverts()[0].Head })
	if got := late.total(); got != "10.00" {
		t.Errorf("the counter is at %s; what was deleted counts again", got)
	}
	// All of it together makes the table end, and not come back.
	l.write(ingest.Delete, hits, "page", "home")
	root.until("the leaf counts no more", func() bool { return root.total() == "7.00" })
}
