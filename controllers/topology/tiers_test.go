package topology_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tributary-dev/tributary/controllers/topology"
)

func TestAhead(t *testing.T) {
	k := func(name string) topology.Key { return topology.Key{Namespace: "shop", Name: name} }
	candidates := func(names ...string) topology.Wiring {
		w := topology.Wiring{Sources: []topology.WiredSource{{Name: "up"}}}
		for _, n := range names {
			w.Sources[0].Candidates = append(w.Sources[0].Candidates, topology.Candidate{Node: k(n), Eligible: n != "below"})
		}
		return w
	}
	peers := candidates("m1", "m2")
	peers.Sources[0].Mesh = true
	tree := &topology.Tree{Branches: []topology.TreeBranch{
		{Name: "east", Level: 0, Nodes: []topology.TreeNode{{Node: k("east")}}},
		{Name: "west", Level: 0, Nodes: []topology.TreeNode{{Node: k("west")}}},
		{Name: "b0", Level: 1, Nodes: []topology.TreeNode{{Node: k("b0-0")}, {Node: k("b0-1")}}},
		{Name: "b1", Level: 1, Nodes: []topology.TreeNode{{Node: k("b1-0")}}},
	}}
	p := topology.Plan{
		Nodes: map[topology.Key]*topology.Node{
			k("root"):  {Children: []topology.Key{k("a"), k("b")}},
			k("a"):     {Children: []topology.Key{k("below"), k("edge")}, Wiring: candidates("root")},
			k("b"):     {Wiring: candidates("root")},
			k("below"): {Wiring: candidates("a")},
			k("edge"):  {Wiring: candidates("a", "b", "below", "far")},
			k("m1"):    {Wiring: peers},
			k("m2"):    {Wiring: peers},
		},
		Trees: map[topology.Key]*topology.Tree{k("sales"): tree},
	}
	for name, want := range map[string]string{
		"root":  "[shop/a shop/b] []",
		"a":     "[shop/below shop/edge] [shop/b shop/far]",
		"b":     "[] [shop/a shop/far]",
		"far":   "[] [shop/a shop/b]",
		"below": "[] []", "edge": "[] []", "m1": "[] []",
		"east": "[] [shop/west]", "b0-0": "[] [shop/b0-1]", "b1-0": "[] []",
	} {
		got := p.Ahead(k(name))
		if d := cmp.Diff(want, fmt.Sprintf("%v %v", got.Readers, got.Peers)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
