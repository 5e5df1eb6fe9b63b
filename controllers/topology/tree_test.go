package topology_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

// tree gathers the nodes with the label into some branches.
func tree(name, label string, branches int32) v1alpha1.RelayTree {
	return v1alpha1.RelayTree{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Generation: 1, UID: "uid-of-tree"},
		Spec: v1alpha1.RelayTreeSpec{
			Branches: v1alpha1.TreeBranches{Count: &branches},
			Leaves:   v1alpha1.TreeLeaves{Selector: metav1.LabelSelector{MatchLabels: map[string]string{label: "yes"}}},
		},
	}
}

// grown puts the nodes that trees are to have in place, and takes away those to be removed.
func (w *world) grown(t failing) topology.Plan {
	t.Helper()
	p := w.settled(t)
	for _, tr := range p.Trees {
		for _, n := range tr.Want {
			if p.Nodes[key(n.Name)] == nil {
				n.Generation = 1
				w.set(n)
			}
		}
		for _, k := range tr.Remove {
			w.Nodes = slices.DeleteFunc(slices.Clone(w.Nodes), func(n v1alpha1.ReplicationNode) bool { return n.Name == k.Name })
			delete(w.Relays, k)
		}
	}
	return w.settled(t)
}

// settled is plan, and quicker: only the wirings are compared with those of a second look.
func (w *world) settled(t failing) topology.Plan {
	t.Helper()
	p := topology.Compute(w.Inputs)
	w.remember(p)
	for k, n := range topology.Compute(w.Inputs).Nodes {
		if !reflect.DeepEqual(n.Wiring, p.Nodes[k].Wiring) {
			t.Fatalf("a second look gives %s another wiring: %s", k, cmp.Diff(p.Nodes[k].Wiring, n.Wiring))
		}
	}
	return p
}

// children are those that a node is wired with, as name or name:state.
func children(p topology.Plan, name string) (out []string) {
	n := p.Nodes[key(name)]
	if n == nil {
		return []string{"no plan for " + name}
	}
	for _, s := range n.Wiring.Sources {
		for _, c := range s.Children {
			out = append(out, strings.TrimSuffix(c.Node.Name+":"+c.State, ":"))
		}
	}
	return out
}

func wantTree(t testing.TB, p topology.Plan, name, kind, reason string, messages ...string) {
	t.Helper()
	tr := p.Trees[key(name)]
	if tr == nil {
		t.Fatalf("no plan for the tree %s", name)
	}
	c := tr.Condition(kind)
	if c.Reason != reason || (c.Status == metav1.ConditionTrue) != (len(messages) == 0) {
		t.Errorf("%s: %s is %s, %s, %q; want %s", name, kind, c.Status, c.Reason, c.Message, reason)
	}
	for _, want := range messages {
		if !strings.Contains(c.Message, want) {
			t.Errorf("%s: %s says %q; want %q", name, kind, c.Message, want)
		}
	}
}

// relays plays the nodes of a tree: each has taken its wiring, reads what it is wired
// with, and says that those above have all.
type relays struct {
	w      *world
	silent map[string]bool // nodes that say nothing
	unread map[string]bool // leaves that never were there
	behind map[string]bool // nodes above which something is missing
}

func (r *relays) report(p topology.Plan) {
	r.w.Relays = map[topology.Key]topology.RelayReport{}
	for k, n := range p.Nodes {
		if r.silent[k.Name] || len(n.Wiring.Sources) == 0 || !n.Wiring.Sources[0].Tree {
			continue
		}
		rep := topology.RelayReport{Epoch: n.Wiring.Epoch, Children: map[string]topology.ChildReport{}}
		for h := range p.Nodes {
			if !r.behind[k.Name] {
				rep.Passed = append(rep.Passed, h.String())
			}
		}
		for _, c := range n.Wiring.Sources[0].Children {
			if r.unread[c.Node.Name] {
				rep.Children[c.Node.String()] = topology.ChildReport{}
				continue
			}
			rep.Children[c.Node.String()] = topology.ChildReport{Connected: !c.Leaves(), Holds: true, Passed: rep.Passed}
		}
		r.w.Relays[k] = rep
	}
}

// settle lets the manager and the nodes go on until nothing moves.
func (r *relays) settle(t failing, check func(topology.Plan)) topology.Plan {
	t.Helper()
	p := r.w.grown(t)
	for range 20 {
		check(p)
		moving := false
		for _, tr := range p.Trees {
			moving = moving || tr.Moving || len(tr.Remove) > 0
		}
		if !moving {
			return p
		}
		r.report(p)
		p = r.w.grown(t)
	}
	t.Fatalf("it does not settle")
	return p
}

func leaves(n int) (out []v1alpha1.ReplicationNode) {
	for i := range n {
		out = append(out, leaf(fmt.Sprintf("l%d", i), "till"))
	}
	return out
}

func TestTree(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: leaves(4), Trees: []v1alpha1.RelayTree{tree("sales", "till", 2)}}}
	p := w.plan(t)
	wantTree(t, p, "sales", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	wantTree(t, p, "sales", v1alpha1.ConditionLeavesAssigned, v1alpha1.ReasonAssigned)
	var names []string
	for _, n := range p.Trees[key("sales")].Want {
		names = append(names, n.Name)
		if treeOf := metav1.GetControllerOf(&n); treeOf == nil || treeOf.Name != "sales" || !topology.Persistent(&n) {
			t.Errorf("%s: %+v", n.Name, n)
		}
	}
	if d := cmp.Diff([]string{"sales-root-0", "sales-b0-0", "sales-b0-1", "sales-b1-0", "sales-b1-1"}, names); d != "" {
		t.Error(d)
	}

	p = w.grown(t)
	if d := cmp.Diff([]string{"sales-b0-0", "sales-b0-1", "sales-b1-0", "sales-b1-1"}, children(p, "sales-root-0")); d != "" {
		t.Error(d)
	}
	b0, b1 := children(p, "sales-b0-0"), children(p, "sales-b1-0")
	if len(b0) != 2 || len(b1) != 2 || !slices.Equal(b0, children(p, "sales-b0-1")) || !slices.Equal(b1, children(p, "sales-b1-1")) {
		t.Errorf("%v, %v", b0, b1)
	}
	l := p.Nodes[key("l0")]
	if l.Tree != key("sales") || l.Leaf == nil || !l.Wiring.Leaf || !slices.Equal(l.Wiring.Roots, []string{"shop/sales-root-0"}) || l.Action != topology.Apply {
		t.Errorf("%+v", l)
	}
	r := p.Nodes[key("sales-root-0")]
	if r.Action != topology.Apply || !r.Single || len(r.Sources) != 1 || r.Sources[0].Children == nil || r.Depth != 0 {
		t.Errorf("%+v", r)
	}
	wantCondition(t, p, "sales-b0-0", v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, v1alpha1.ReasonResolved, "")

	// the wiring survives its file, so that another manager goes on from it
	again := topology.WiringFromConfig(r.Wiring.Config())
	if d := cmp.Diff(r.Wiring, again); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(l.Wiring, topology.WiringFromConfig(l.Wiring.Config())); d != "" {
		t.Error(d)
	}

	// without the tree the leaves are as they were
	w.Trees = nil
	p = w.plan(t)
	if l := p.Nodes[key("l0")]; l.Leaf != nil || l.Wiring.Leaf || l.Tree != (topology.Key{}) {
		t.Errorf("%+v", l)
	}
}

// A leaf that is assigned elsewhere is read until it is read there, then let go, and is
// forgotten only when those above have all of it; a branch that is no longer asked for
// goes once it has no leaves and those above have all that it has.
func TestTreeMoves(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: leaves(4), Trees: []v1alpha1.RelayTree{tree("sales", "till", 1)}}}
	r := &relays{w: &w, silent: map[string]bool{}, behind: map[string]bool{}}
	r.settle(t, func(topology.Plan) {})

	w.Trees[0].Spec.Branches.Count = new(int32(2))
	p := w.grown(t)
	got := strings.Join(children(p, "sales-b0-0"), " ")
	if strings.Count(got, ":moving") != 2 || len(children(p, "sales-b1-0")) != 2 {
		t.Fatalf("b0 has %s", got)
	}
	moved := children(p, "sales-b1-0")

	r.behind["sales-b0-0"], r.behind["sales-b0-1"] = true, true
	for range 3 {
		r.report(p)
		p = w.grown(t)
	}
	for _, l := range moved {
		if !slices.Contains(children(p, "sales-b0-0"), l+":leaving") {
			t.Errorf("%s is forgotten too soon, or is read still: %v", l, children(p, "sales-b0-0"))
		}
	}
	if c := p.Trees[key("sales")]; !c.Moving {
		t.Error("nothing moves")
	}
	r.behind = map[string]bool{}
	p = r.settle(t, func(topology.Plan) {})
	if len(children(p, "sales-b0-0")) != 2 || len(children(p, "sales-b1-1")) != 2 {
		t.Errorf("%v", children(p, "sales-b0-0"))
	}

	// back to one: what one node of a branch says does not do for the other
	w.Trees[0].Spec.Branches.Count = new(int32(1))
	r.silent["sales-b1-1"] = true
	p = w.grown(t)
	for range 6 {
		r.report(p)
		p = w.grown(t)
	}
	if n := p.Nodes[key("sales-b1-0")]; n != nil {
		t.Errorf("it is still there: %v", n.Wiring)
	}
	if got := children(p, "sales-b1-1"); len(got) != 2 || !strings.HasSuffix(got[0], ":leaving") {
		t.Errorf("a node that says nothing has %v", got)
	}
	if !slices.Contains(children(p, "sales-root-0"), "sales-b1-1") {
		t.Error("the root does not read what drains")
	}
	delete(r.silent, "sales-b1-1")
	p = r.settle(t, func(topology.Plan) {})
	if d := cmp.Diff([]string{"sales-b0-0", "sales-b0-1"}, children(p, "sales-root-0")); d != "" {
		t.Error(d)
	}

	// a leaf that is gone is let go at once, and forgotten in its time
	before := slices.Clone(w.Nodes)
	w.Nodes = slices.DeleteFunc(slices.Clone(w.Nodes), func(n v1alpha1.ReplicationNode) bool { return n.Name == "l0" })
	p = w.grown(t)
	if !slices.Contains(children(p, "sales-b0-0"), "l0:leaving") {
		t.Errorf("%v", children(p, "sales-b0-0"))
	}
	p = r.settle(t, func(topology.Plan) {})
	if d := cmp.Diff([]string{"l1", "l2", "l3"}, children(p, "sales-b0-0")); d != "" {
		t.Error(d)
	}

	// and so do its rows, if that is asked for; not those of one that is selected and unfit
	w.Nodes = before
	w.Trees[0].Spec.Leaves.OnRemoval = v1alpha1.RowsRemove
	r.settle(t, func(topology.Plan) {})
	w.Nodes = slices.DeleteFunc(slices.Clone(before), func(n v1alpha1.ReplicationNode) bool { return n.Name == "l0" })
	for i := range w.Nodes {
		if n := &w.Nodes[i]; n.Name == "l1" {
			n.Spec.Storage = nil
		}
	}
	p = w.grown(t)
	if got := children(p, "sales-b0-0"); !slices.Contains(got, "l0:retired") || !slices.Contains(got, "l1:leaving") {
		t.Errorf("%v", got)
	}
	w.Nodes = before // it is back before it has gone
	p = w.grown(t)
	if got := children(p, "sales-b0-0"); !slices.Contains(got, "l0") {
		t.Errorf("%v", got)
	}
	w.Nodes = slices.DeleteFunc(slices.Clone(before), func(n v1alpha1.ReplicationNode) bool { return n.Name == "l0" })
	r.behind["sales-b0-1"] = true // it has yet to remove them
	p = w.grown(t)
	for range 3 {
		r.report(p)
		p = w.grown(t)
	}
	if got := children(p, "sales-b0-1"); !slices.Contains(got, "l0:retired") || slices.Contains(children(p, "sales-b0-0"), "l0:retired") {
		t.Errorf("%v", got)
	}
	r.behind = map[string]bool{}
	p = r.settle(t, func(topology.Plan) {})
	if d := cmp.Diff([]string{"l1", "l2", "l3"}, children(p, "sales-b0-1")); d != "" {
		t.Error(d)
	}

	// one that nothing was ever read of goes at once
	r.unread = map[string]bool{"l1": true}
	r.report(p)
	w.Nodes = slices.DeleteFunc(slices.Clone(w.Nodes), func(n v1alpha1.ReplicationNode) bool { return n.Name == "l1" })
	p = r.settle(t, func(topology.Plan) {})
	if d := cmp.Diff([]string{"l2", "l3"}, children(p, "sales-b0-1")); d != "" {
		t.Error(d)
	}
}

// A root that is taken out is gone for good: leaves no longer keep anything for it.
func TestTreeRoots(t *testing.T) {
	t.Parallel()
	tr := tree("sales", "till", 1)
	tr.Spec.Roots = &v1alpha1.TreeRoots{Names: []string{"east", "west"}}
	w := world{topology.Inputs{Nodes: leaves(2), Trees: []v1alpha1.RelayTree{tr}}}
	p := w.grown(t)
	for _, s := range p.Nodes[key("sales-b0-0")].Wiring.Sources {
		if both := []string{"shop/sales-east", "shop/sales-west"}; !slices.Equal(s.Readers, both) || !slices.Equal(s.Roots, both) {
			t.Errorf("above a relay are %v, and the roots are %v", s.Readers, s.Roots)
		}
	}
	if got := p.Nodes[key("l0")].Wiring.Roots; !slices.Equal(got, []string{"shop/sales-east", "shop/sales-west"}) {
		t.Errorf("%v", got)
	}
	epoch := p.Nodes[key("l0")].Wiring.Epoch
	w.Trees[0].Spec.Roots.Names = []string{"west"}
	p = w.plan(t)
	if got := p.Nodes[key("l0")].Wiring; !slices.Equal(got.Roots, []string{"shop/sales-west"}) || got.Epoch != epoch+1 {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff([]topology.Key{key("sales-east")}, p.Trees[key("sales")].Remove); d != "" {
		t.Error(d)
	}
}

func TestTreeDepth(t *testing.T) {
	t.Parallel()
	tr := tree("sales", "till", 9)
	tr.Spec.Depth = 2
	w := world{topology.Inputs{Nodes: leaves(18), Trees: []v1alpha1.RelayTree{tr}}}
	r := &relays{w: &w}
	p := r.settle(t, func(topology.Plan) {})
	if got := children(p, "sales-root-0"); len(got) != 6 { // three trunks of two nodes
		t.Errorf("the root reads %v", got)
	}
	for i := range 3 {
		if got := children(p, fmt.Sprintf("sales-trunk2-%d-0", i)); len(got) != 6 {
			t.Errorf("trunk %d reads %v", i, got)
		}
	}
	// a level less: branches come to the roots, and the trunks go
	w.Trees[0].Spec.Depth = 1
	p = r.settle(t, func(topology.Plan) {})
	if got := children(p, "sales-root-0"); len(got) != 18 || p.Nodes[key("sales-trunk2-0-0")] != nil {
		t.Errorf("the root reads %v", got)
	}
	w.Trees[0].Spec.Depth = 3
	p = r.settle(t, func(topology.Plan) {})
	if got := children(p, "sales-root-0"); len(got) != 6 || len(children(p, "sales-trunk3-0-0")) == 0 {
		t.Errorf("the root reads %v", got)
	}
}

// Through any history of leaves, branches and levels, with nodes that say nothing or above
// which something is missing for a while: a leaf is always read by its branch or by the
// one that it was of before, what has not passed is neither forgotten nor removed, and in
// the end there is what the spec asks for.
func TestTreeProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := world{topology.Inputs{Nodes: leaves(rapid.IntRange(1, 8).Draw(t, "leaves")), Trees: []v1alpha1.RelayTree{tree("sales", "till", 2)}}}
		r := &relays{w: &w, silent: map[string]bool{}, behind: map[string]bool{}}
		had := map[string][]string{} // by node, what it was wired with
		look := func(p topology.Plan) {
			now := map[string][]string{}
			for k, n := range p.Nodes {
				if n.Leaf == nil {
					now[k.Name] = children(p, k.Name)
				}
			}
			for name, before := range had {
				kept := r.silent[name] || r.behind[name] && name != "sales-root-0" // nobody is above a root
				for _, c := range before {
					c, _, _ := strings.Cut(c, ":")
					there := slices.ContainsFunc(now[name], func(s string) bool { return s == c || strings.HasPrefix(s, c+":") })
					if kept && !there {
						t.Fatalf("%s forgets %s too soon: %v, then %v", name, c, before, now[name])
					}
				}
				if kept && p.Nodes[key(name)] == nil {
					t.Fatalf("%s is removed too soon", name)
				}
			}
			had = now
		}
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			w.Trees[0].Spec.Branches.Count = new(rapid.Int32Range(1, 4).Draw(t, "branches"))
			w.Trees[0].Spec.Depth = rapid.Int32Range(1, 3).Draw(t, "depth")
			for i := range w.Nodes { // leaves come and go
				if l := w.Nodes[i].Labels; strings.HasPrefix(w.Nodes[i].Name, "l") && rapid.IntRange(0, 5).Draw(t, "leaf") == 0 {
					if l["till"] == "" {
						w.Nodes[i].Labels = map[string]string{"till": "yes"}
					} else {
						w.Nodes[i].Labels = nil
					}
				}
			}
			p := w.grown(t)
			for range rapid.IntRange(0, 5).Draw(t, "rounds") {
				look(p)
				r.silent, r.behind = map[string]bool{}, map[string]bool{}
				for _, n := range w.Nodes {
					if strings.HasPrefix(n.Name, "sales-") {
						switch rapid.IntRange(0, 3).Draw(t, n.Name) {
						case 0:
							r.silent[n.Name] = true
						case 1:
							r.behind[n.Name] = true
						}
					}
				}
				r.report(p)
				p = w.grown(t)
			}
			look(p)
		}
		r.silent, r.behind, had = nil, nil, nil
		p := r.settle(t, func(topology.Plan) {})
		depth, read := w.Trees[0].Spec.Depth, map[string]int{}
		for k, n := range p.Nodes {
			if n.Leaf == nil {
				for _, c := range children(p, k.Name) {
					read[c]++
				}
			}
		}
		for k, n := range p.Nodes {
			want := 0
			switch {
			case n.Leaf != nil, strings.Contains(k.Name, "-b") && depth > 1, strings.Contains(k.Name, "trunk2") && depth > 2:
				want = 2 // by both nodes of one branch
			case strings.HasPrefix(k.Name, "sales-") && k.Name != "sales-root-0":
				want = 1
			}
			if read[k.Name] != want {
				t.Fatalf("%s is read by %d nodes, want %d: %v", k.Name, read[k.Name], want, read)
			}
		}
		wanted := 0
		for range p.Trees[key("sales")].Want {
			wanted++
		}
		if there := len(p.Nodes) - len(slices.DeleteFunc(slices.Clone(w.Nodes), func(n v1alpha1.ReplicationNode) bool { return strings.HasPrefix(n.Name, "sales-") })); there != wanted {
			t.Fatalf("%d nodes of the tree are there, and %d are wanted", there, wanted)
		}
	})
}

func TestTreeChecks(t *testing.T) {
	t.Parallel()
	older := tree("older", "old", 1)
	older.CreationTimestamp = metav1.NewTime(time.Unix(1, 0))
	tr := tree("sales", "till", 2)
	tr.CreationTimestamp = metav1.NewTime(time.Unix(2, 0))

	memory := leaf("memory", "till")
	memory.Spec.Storage = nil
	memory.Spec.Sources[0].Ingest.Volatile = true
	reader := node("reader", "l0")
	reader.Labels = map[string]string{"till": "yes"}
	shared := leaf("shared", "till")
	shared.Spec.Cursors = v1alpha1.CursorsShared
	w := world{topology.Inputs{
		Nodes: append(leaves(2), memory, reader, shared, leaf("both", "till", "old")),
		Trees: []v1alpha1.RelayTree{tr, older},
	}}
	p := w.grown(t)
	wantTree(t, p, "older", v1alpha1.ConditionLeavesAssigned, v1alpha1.ReasonAssigned)
	wantTree(t, p, "sales", v1alpha1.ConditionLeavesAssigned, v1alpha1.ReasonTreeConflict,
		"both is a leaf of the older RelayTree older, where it stays", "memory keeps its log in memory", "reader has no PostgreSQL", "shared has shared cursors")
	if s := p.Trees[key("sales")]; len(s.Leaves) != 2 || s.Unassigned != 4 {
		t.Errorf("%d leaves, %d unassigned", len(s.Leaves), s.Unassigned)
	}

	// names that are taken, and a tree that is broken: what is there stays
	w.set(node("sales-b0-0", "l0"))
	p = w.plan(t)
	wantTree(t, p, "sales", v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalid, "A node of this tree has the name sales-b0-0, and there is a ReplicationNode of that name already")

	w = world{topology.Inputs{Nodes: leaves(2), Trees: []v1alpha1.RelayTree{tree("sales", "till", 1)}}}
	before := w.grown(t)
	w.Trees[0].Spec.Branches.Names = []string{"Both"}
	p = w.plan(t)
	wantTree(t, p, "sales", v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalid, "branches has count and names", "branches.names[0] must start with a lower case letter")
	for _, name := range []string{"l0", "sales-b0-0", "sales-root-0"} {
		if d := cmp.Diff(before.Nodes[key(name)].Wiring, p.Nodes[key(name)].Wiring); d != "" || p.Nodes[key(name)].Action != topology.Rewire {
			t.Errorf("%s: %v %s", name, p.Nodes[key(name)].Action, d)
		}
	}

	w.Trees[0] = tree("sales", "nobody", 1)
	wantTree(t, w.plan(t), "sales", v1alpha1.ConditionLeavesAssigned, v1alpha1.ReasonNoLeaves, "No node of the namespace has the labels nobody=yes")

	secured := leaf("secured", "nobody")
	secured.Spec.Serve = &v1alpha1.NodeServe{TLS: &v1alpha1.ServeTLS{SecretRef: v1alpha1.LocalReference{Name: "cert"}}}
	w.set(secured)
	wantTree(t, w.plan(t), "sales", v1alpha1.ConditionAccepted, v1alpha1.ReasonTLSMismatch, "The nodes of the tree connect in plain text, and secured serves TLS")
}

// What no schema has refused is said before a node is started with it: files have not
// passed one.
func TestTreeRefused(t *testing.T) {
	t.Parallel()
	table, written := v1alpha1.TableReference{Schema: "public", Name: "t"}, v1alpha1.TableReference{Schema: "public", Name: "written"}
	for name, c := range map[string]struct {
		change func(*v1alpha1.RelayTreeSpec)
		want   string
	}{
		"delivery": {func(s *v1alpha1.RelayTreeSpec) {
			s.Tables = []v1alpha1.TreeTable{{TableReference: table, Delivery: "Newest"}}
		}, "tables[0].delivery is Newest: it can be All, Latest or Counter."},
		"no delivery": {func(s *v1alpha1.RelayTreeSpec) {
			s.Tables = []v1alpha1.TreeTable{{TableReference: table}}
		}, "tables[0].delivery is not set: it can be All, Latest or Counter."},
		"mode": {func(s *v1alpha1.RelayTreeSpec) {
			s.Redundancy = &v1alpha1.TreeRedundancy{Mode: "activestandby"}
		}, "redundancy.mode is activestandby: it can be ActiveActive or ActiveStandby."},
		"onFull":    {func(s *v1alpha1.RelayTreeSpec) { s.Leaves.OnFull = "Drop" }, "leaves.onFull is Drop: it can be Block or Rebaseline."},
		"onReset":   {func(s *v1alpha1.RelayTreeSpec) { s.Leaves.OnReset = "Drop" }, "leaves.onReset is Drop: it can be Keep or Remove."},
		"onRemoval": {func(s *v1alpha1.RelayTreeSpec) { s.Leaves.OnRemoval = "Drop" }, "leaves.onRemoval is Drop: it can be Keep or Remove."},
		"maxLog": {func(s *v1alpha1.RelayTreeSpec) {
			s.Leaves.MaxLog = new(resource.MustParse("-1"))
		}, "leaves.maxLog must be a quantity from 1Mi to 1Ti, such as 1Gi; it is -1."},
		"maxPending": {func(s *v1alpha1.RelayTreeSpec) {
			s.MaxPending = new(resource.MustParse("9Pi"))
		}, "maxPending must be a quantity from 64Ki to 1Gi, such as 16Mi; it is 9Pi."},
		"window": {func(s *v1alpha1.RelayTreeSpec) {
			s.Window = &metav1.Duration{Duration: 10 * time.Hour}
		}, "window must be a duration from 1ms to 1m, such as 100ms; it is 10h0m0s."},
		"tombstoneRetention": {func(s *v1alpha1.RelayTreeSpec) {
			s.TombstoneRetention = &metav1.Duration{Duration: -time.Hour}
		}, "tombstoneRetention must be a duration from 1m to 8784h, such as 24h; it is -1h0m0s."},
		"policy": {func(s *v1alpha1.RelayTreeSpec) {
			s.Conflicts = []v1alpha1.TableConflicts{{TableReference: table, Policy: "FirstWins"}}
		}, "conflicts[0].policy is FirstWins: it can be LastWriteWins, OriginOwnsKey or NamespaceByOrigin."},
		"counter of text": {func(s *v1alpha1.RelayTreeSpec) {
			s.Tables = []v1alpha1.TreeTable{{TableReference: written, Delivery: v1alpha1.DeliveryCounter, Columns: []string{"v"}}}
		}, "tables[0] counts v of public.written, which is of type text at the leaf l0: name columns of integers or numeric"},
		"counter of the key": {func(s *v1alpha1.RelayTreeSpec) {
			s.Tables = []v1alpha1.TreeTable{{TableReference: written, Delivery: v1alpha1.DeliveryCounter, Columns: []string{"n", "id"}}}
		}, "tables[0] counts id of public.written, which is part of its key at the leaf l0"},
		"counter of nothing": {func(s *v1alpha1.RelayTreeSpec) {
			s.Tables = []v1alpha1.TreeTable{{TableReference: written, Delivery: v1alpha1.DeliveryCounter, Columns: []string{"m"}}}
		}, "tables[0] counts m of public.written, which is no column of it at the leaf l0"},
	} {
		tr := tree("sales", "till", 1)
		c.change(&tr.Spec)
		w := world{topology.Inputs{Nodes: leaves(2), Trees: []v1alpha1.RelayTree{tr}}}
		for i := range w.Nodes {
			w.Nodes[i].Spec.Sources[0].Ingest.Tables = []v1alpha1.IngestTable{{TableReference: written, Columns: []v1alpha1.IngestColumn{
				{Name: "id", Type: "bigint", Key: true}, {Name: "v", Type: "text"}, {Name: "n", Type: "numeric(12, 2)"},
			}}}
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantTree(t, w.plan(t), "sales", v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalid, c.want)
		})
	}

	tr := tree("sales", "till", 1)
	tr.Spec.Conflicts = []v1alpha1.TableConflicts{{TableReference: written, Policy: v1alpha1.ConflictOriginOwnsKey, OwnerColumn: "v"}}
	l := leaf("l0", "till")
	l.Spec.Sources[0].Ingest.Tables = []v1alpha1.IngestTable{{TableReference: written, Columns: []v1alpha1.IngestColumn{{Name: "id", Type: "bigint", Key: true}, {Name: "v", Type: "text"}}}}
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{l}, Trees: []v1alpha1.RelayTree{tr}}}
	wantCondition(t, w.plan(t), "l0", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, "The RelayTree sales says that v of table public.written says whose a row is")
}

// What comes from a root must not come to a leaf of its tree again.
func TestTreeLoops(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: leaves(3), Trees: []v1alpha1.RelayTree{tree("sales", "till", 1)}}}
	w.grown(t)
	before := w.plan(t)

	back := leaf("l1", "till")
	back.Spec.Sources = append(back.Spec.Sources, v1alpha1.NodeSource{Name: "up", Fanout: upstreams("sales-root-0")})
	w.set(back)
	p := w.plan(t)
	for _, name := range []string{"l1", "sales-b0-0", "sales-b0-1", "sales-root-0"} {
		wantCondition(t, p, name, v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, "through a RelayTree: l1 → sales-b0-")
		if d := cmp.Diff(before.Nodes[key(name)].Wiring, p.Nodes[key(name)].Wiring); d != "" {
			t.Errorf("%s does not keep its wiring: %s", name, d)
		}
	}
	wantCondition(t, p, "l0", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")

	// a reader of the root is no circle, nor is a leaf in a mesh
	w.set(leaf("l1", "till"), node("reader", "sales-root-0"))
	w.Meshes = []v1alpha1.ReplicationMesh{mesh("m", 0, "l0", "l1")}
	p = w.plan(t)
	for name := range p.Nodes {
		wantCondition(t, p, name.Name, v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	}

	// but a mesh that takes what the root has to a leaf is
	w.Meshes = []v1alpha1.ReplicationMesh{mesh("m", 0, "l0")}
	w.Meshes[0].Spec.Members.Nodes = append(w.Meshes[0].Spec.Members.Nodes, v1alpha1.MeshMember{Name: "sales-root-0"})
	p = w.plan(t)
	wantCondition(t, p, "l0", v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, "l0 → sales-b0-")
}

func TestTreeZones(t *testing.T) {
	t.Parallel()
	tr := tree("sales", "till", 8)
	tr.Spec.Branches.Zones = []string{"a", "b", "c"}
	tr.Spec.Roots = &v1alpha1.TreeRoots{Count: new(int32(2)), TreeNodes: v1alpha1.TreeNodes{Zones: []string{"a", "b", "c"}}}
	zones := func() map[string]string {
		out := map[string]string{}
		for _, n := range topology.TreeNodes(&tr) {
			out[n.Name] = n.Spec.PodTemplate.NodeSelector["topology.kubernetes.io/zone"]
		}
		return out
	}
	first := zones()
	for i := range 8 {
		if a, b := first[fmt.Sprintf("sales-b%d-0", i)], first[fmt.Sprintf("sales-b%d-1", i)]; a == "" || a == b {
			t.Errorf("branch %d is in %s and %s", i, a, b)
		}
	}
	if first["sales-root-0"] == first["sales-root-1"] {
		t.Error("both roots are in one zone")
	}
	tr.Spec.Branches.Count, tr.Spec.Depth = new(int32(3)), 2 // a volume cannot move
	for name, z := range zones() {
		if had := first[name]; had != "" && had != z {
			t.Errorf("%s moves from %s to %s", name, had, z)
		}
	}
}

// Archives of a tree are one for each node, so that each has one writer.
func TestTreeArchives(t *testing.T) {
	tr := tree("t", "leaf", 1)
	archive := v1alpha1.NodeArchive{Name: "cold", ArchiveLocation: v1alpha1.ArchiveLocation{
		Store: v1alpha1.ArchiveStore{S3: &v1alpha1.S3Store{Bucket: "b"}}, KeyPrefix: "sales/", Group: true,
	}, Write: &v1alpha1.ArchiveWrite{}}
	tr.Spec.Roots = &v1alpha1.TreeRoots{Count: new(int32(2)), TreeNodes: v1alpha1.TreeNodes{Archives: []v1alpha1.NodeArchive{archive}}}
	tr.Spec.Branches.Archives = []v1alpha1.NodeArchive{archive}
	w := &world{}
	w.Trees = []v1alpha1.RelayTree{tr}
	p := w.grown(t)
	for _, name := range []string{"t-root-0", "t-root-1", "t-b0-0", "t-b0-1"} {
		n := p.Nodes[key(name)]
		if n == nil || n.Action != topology.Apply {
			t.Fatalf("%s: %+v", name, n)
		}
	}
	for _, n := range p.Trees[key("t")].Want {
		if want := "sales/" + n.Name + "/"; len(n.Spec.Archives) != 1 || n.Spec.Archives[0].KeyPrefix != want {
			t.Errorf("%s has %+v; want %s", n.Name, n.Spec.Archives, want)
		}
	}
}
