package topology_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

const ns = "shop"

func key(name string) topology.Key {
	if space, n, ok := strings.Cut(name, "/"); ok {
		return topology.Key{Namespace: space, Name: n}
	}
	return topology.Key{Namespace: ns, Name: name}
}

// root is a node that reads from a database of its own.
func root(name string) v1alpha1.ReplicationNode {
	n := node(name)
	n.Spec.Sources = []v1alpha1.NodeSource{{Name: "db", Postgres: database("db-" + n.Name)}}
	return n
}

func database(host string) *v1alpha1.PostgresSourceSpec {
	return &v1alpha1.PostgresSourceSpec{
		Hosts: []v1alpha1.PostgresHost{{Host: host}}, Database: "shop",
		CredentialsSecretRef: v1alpha1.LocalReference{Name: "login"},
		Tables:               []v1alpha1.TableReference{{Schema: "public", Name: "orders"}},
	}
}

// node reads from parents, in order, by one source.
func node(name string, parents ...string) v1alpha1.ReplicationNode {
	k := key(name)
	n := v1alpha1.ReplicationNode{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Generation: 1}}
	if len(parents) > 0 {
		n.Spec.Sources = []v1alpha1.NodeSource{{Name: "up", Fanout: upstreams(parents...)}}
	}
	return n
}

func upstreams(parents ...string) *v1alpha1.FanoutSourceSpec {
	f := &v1alpha1.FanoutSourceSpec{}
	for _, p := range parents {
		if strings.Contains(p, ":") {
			f.Upstreams = append(f.Upstreams, v1alpha1.Upstream{Address: p})
			continue
		}
		ref := &v1alpha1.NodeReference{Name: p}
		if space, name, ok := strings.Cut(p, "/"); ok {
			ref.Namespace, ref.Name = space, name
		}
		f.Upstreams = append(f.Upstreams, v1alpha1.Upstream{NodeRef: ref})
	}
	return f
}

// settled plans again and again, as the manager does, until nothing changes.
type world struct {
	topology.Inputs
}

// failing is what a test or a property fails by.
type failing interface {
	Helper()
	Fatalf(format string, args ...any)
}

func (w *world) plan(t failing) topology.Plan {
	t.Helper()
	p := topology.Compute(w.Inputs)
	w.remember(p)
	again := topology.Compute(w.Inputs)
	if d := cmp.Diff(p.Nodes, again.Nodes, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Action" }, cmp.Ignore())); d != "" {
		t.Fatalf("a second look at the same resources gives another plan: %s", d)
	}
	return p
}

func (w *world) remember(p topology.Plan) {
	last := map[topology.Key]topology.Wiring{}
	for k, n := range p.Nodes {
		if before, ok := w.Last[k]; ok && n.Action == topology.Hold {
			last[k] = before
		}
		if n.Action != topology.Hold {
			last[k] = n.Wiring
		}
	}
	w.Last = last
}

func (w *world) set(nodes ...v1alpha1.ReplicationNode) {
	for _, n := range nodes {
		w.Nodes = slices.DeleteFunc(slices.Clone(w.Nodes), func(o v1alpha1.ReplicationNode) bool { return o.Name == n.Name && o.Namespace == n.Namespace })
		w.Nodes = append(w.Nodes, n)
	}
}

// reason is the condition of a node, as reason or True.
func wantCondition(t testing.TB, p topology.Plan, name, kind string, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	n := p.Nodes[key(name)]
	if n == nil {
		t.Fatalf("no plan for %s", name)
	}
	c := n.Condition(kind)
	if c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) {
		t.Errorf("%s: %s is %s, %s, %q; want %s, %s, %q", name, kind, c.Status, c.Reason, c.Message, status, reason, message)
	}
}

// parents are the eligible candidates of a node, in order.
func parents(p topology.Plan, name string) (out []string) {
	for _, s := range p.Nodes[key(name)].Wiring.Sources {
		for _, c := range s.Candidates {
			if c.Eligible {
				out = append(out, strings.TrimPrefix(c.ID, ns+"/"))
			}
		}
	}
	return out
}

func wantParents(t testing.TB, p topology.Plan, name string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, parents(p, name)); d != "" {
		t.Errorf("parents of %s: %s", name, d)
	}
}

func TestThreeLevels(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root("root"), node("east", "root"), node("west", "root"), node("edge", "east", "west", "far.example:7400")}}}
	p := w.plan(t)
	wantParents(t, p, "edge", "east", "west", "far.example:7400")
	wantParents(t, p, "east", "root")
	for name, depth := range map[string]int32{"root": 0, "east": 1, "west": 1, "edge": 2} {
		n := p.Nodes[key(name)]
		if n.Depth != depth || n.Action != topology.Apply || n.Wiring.Epoch != 1 || n.Single != (name == "root") {
			t.Errorf("%s: %+v", name, n)
		}
		for _, c := range n.Conditions {
			if c.Status != metav1.ConditionTrue {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
	if d := cmp.Diff([]topology.Key{key("east"), key("west")}, p.Nodes[key("root")].Children); d != "" {
		t.Error(d)
	}
	if a := p.Nodes[key("edge")].Wiring.Sources[0].Candidates[0].Address; a != "dns:///east.shop.svc:7400" {
		t.Errorf("address is %s", a)
	}
	pg := p.Nodes[key("root")].Sources[0].Postgres
	if len(pg.Slot) > 63 || !strings.HasPrefix(pg.Slot, "tributary_shop_root_db_") || !pg.Managed {
		t.Errorf("%+v", pg)
	}
}

// a→b→a, and c that shares a root with them; then c is rewired.
func TestCaseK01(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root("root"), node("a", "root"), node("b", "a"), node("c", "root"), node("d", "a")}}}
	w.plan(t)

	w.set(node("a", "b"))
	p := w.plan(t)
	for _, n := range []string{"a", "b"} {
		wantCondition(t, p, n, v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, ": a → b → a. ")
		if p.Nodes[key(n)].Wiring.Epoch != 1 || p.Nodes[key(n)].Action != topology.Rewire {
			t.Errorf("%s does not keep its wiring: %+v", n, p.Nodes[key(n)])
		}
	}
	wantParents(t, p, "a", "root") // the last good wiring
	wantParents(t, p, "b", "a")
	for _, n := range []string{"root", "c", "d"} {
		wantCondition(t, p, n, v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	}

	w.set(node("e", "root"), node("c", "e"))
	p = w.plan(t)
	wantParents(t, p, "c", "e")
	if p.Nodes[key("c")].Wiring.Epoch != 2 || p.Nodes[key("c")].Action != topology.Apply {
		t.Errorf("c is held up: %+v", p.Nodes[key("c")])
	}
	wantParents(t, p, "a", "root")

	w.set(node("a", "c")) // mended
	p = w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	wantCondition(t, p, "b", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	wantParents(t, p, "a", "c")
}

// A missing parent is no loop and heals; rings of any size are found.
func TestCaseK02(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{node("a", "b")}}}
	p := w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonParentNotFound, "The upstream node b does not exist.")
	wantCondition(t, p, "a", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	if p.Nodes[key("a")].Action != topology.Hold {
		t.Error("a node without any parent is started")
	}
	w.set(root("b"))
	p = w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, v1alpha1.ReasonResolved, "")
	wantParents(t, p, "a", "b")

	for _, size := range []int{1, 2, 3, 50, 200} {
		var nodes []v1alpha1.ReplicationNode
		name := func(i int) string { return fmt.Sprintf("n%03d", i%size) }
		for i := range size {
			nodes = append(nodes, node(name(i+1), name(i)))
		}
		p := (&world{topology.Inputs{Nodes: append(nodes, root("root"), node("leaf", "root"), node("below", "n000"))}}).plan(t)
		wantCondition(t, p, "leaf", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
		wantCondition(t, p, "below", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
		var path []string
		for i := range min(size, 64) {
			path = append(path, name(i))
		}
		if size > 64 {
			path = append(path, "…")
		}
		path = append(path, name(0))
		for i := range size {
			wantCondition(t, p, name(i), v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, ": "+strings.Join(path, " → ")+". ")
		}
	}
}

// Two nodes fail over at the same moment, each to the other.
func TestCaseK12(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root("root"), node("a", "root", "b"), node("b", "root", "a")}}}
	p := w.plan(t)
	for _, n := range []string{"a", "b"} {
		wantCondition(t, p, n, v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonConditionalLoop, ": a → b → a. ")
	}
	wantParents(t, p, "a", "root", "b")
	wantParents(t, p, "b", "root", "a")

	a, b := topology.SourceKey{Node: key("a"), Source: "up"}, topology.SourceKey{Node: key("b"), Source: "up"}
	active := topology.NewActive(7, map[topology.SourceKey]topology.Key{a: key("root"), b: key("root")})
	seenByBoth := active.Epoch()
	rootIsGone := func(c topology.Candidate) bool { return c.Node != key("root") }
	candidates := func(n string) []topology.Candidate { return p.Nodes[key(n)].Wiring.Sources[0].Candidates }

	c, ok, err := active.ChooseParent(seenByBoth, a, candidates("a"), rootIsGone)
	if err != nil || !ok || c.Node != key("b") {
		t.Fatalf("a chose %v, %v, %v", c, ok, err)
	}
	if _, _, err = active.ChooseParent(seenByBoth, b, candidates("b"), rootIsGone); !errors.Is(err, topology.ErrStaleEpoch) {
		t.Fatalf("b chose at a stale epoch: %v", err)
	}
	if c, ok, err = active.ChooseParent(active.Epoch(), b, candidates("b"), rootIsGone); ok || err != nil {
		t.Fatalf("b chose %v, %v, which closes a ring", c, err)
	}
	if parent, _ := active.Parent(b); parent != key("root") {
		t.Errorf("b does not hold: it reads from %s", parent)
	}

	// The planner sees by a's report that a now stands below b.
	w.Reported = map[topology.SourceKey]topology.Key{a: key("b"), b: key("root")}
	p = w.plan(t)
	wantParents(t, p, "a", "root", "b")
	wantParents(t, p, "b", "root")
}

// A to B is reversed to B to A, object by object, in either order.
func TestCaseK18(t *testing.T) {
	t.Parallel()
	for _, order := range [][2]string{{"a", "b"}, {"b", "a"}} {
		w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root("root"), node("a", "root"), node("b", "a")}}}
		w.plan(t)
		target := map[string]v1alpha1.ReplicationNode{"a": node("a", "b"), "b": node("b", "root")}
		for _, n := range order {
			w.set(target[n])
			w.plan(t)
		}
		p := w.plan(t)
		wantParents(t, p, "b", "root")
		wantParents(t, p, "a", "b")
		for _, n := range []string{"a", "b"} {
			wantCondition(t, p, n, v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
			if p.Nodes[key(n)].Action != topology.Apply {
				t.Errorf("%s is held", n)
			}
		}
	}
}

// Two PostgresSources name the same slot on the same database.
func TestCaseK19(t *testing.T) {
	t.Parallel()
	source := func(name, host string, age time.Duration) v1alpha1.PostgresSource {
		s := v1alpha1.PostgresSource{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}, Spec: *database(host)}
		s.Spec.Slot = &v1alpha1.PostgresSlot{Name: "tributary"}
		return s
	}
	reader := func(name, source string) v1alpha1.ReplicationNode {
		n := node(name)
		n.Spec.Sources = []v1alpha1.NodeSource{{Name: "db", PostgresSourceRef: &v1alpha1.LocalReference{Name: source}}}
		return n
	}
	w := world{topology.Inputs{
		PostgresSources: []v1alpha1.PostgresSource{source("young", "db", time.Hour), source("old", "db", 2*time.Hour), source("elsewhere", "db2", time.Minute)},
		Nodes:           []v1alpha1.ReplicationNode{reader("a", "young"), reader("b", "old"), reader("c", "old"), reader("d", "elsewhere")},
	}}
	p := w.plan(t)
	for name, want := range map[string]string{"old": v1alpha1.ReasonAccepted, "young": v1alpha1.ReasonSlotConflict, "elsewhere": v1alpha1.ReasonAccepted} {
		if c := p.PostgresSources[key(name)].Condition(v1alpha1.ConditionAccepted); c.Reason != want {
			t.Errorf("%s: %+v", name, c)
		}
	}
	wantCondition(t, p, "a", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSlotConflict, "young")
	wantCondition(t, p, "b", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	wantCondition(t, p, "c", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSlotConflict, "ReplicationNode shop/b")
	wantCondition(t, p, "d", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	if d := cmp.Diff([]topology.Slot{{Name: "tributary", Holder: key("b"), Source: "db"}}, p.PostgresSources[key("old")].Slots); d != "" {
		t.Error(d)
	}

	// Without a slot named, each node has its own, and a source can be shared.
	for i := range w.PostgresSources {
		w.PostgresSources[i].Spec.Slot = nil
	}
	p = w.plan(t)
	slots := map[string]bool{}
	for _, n := range []string{"a", "b", "c", "d"} {
		wantCondition(t, p, n, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
		slots[p.Nodes[key(n)].Sources[0].Postgres.Slot] = true
	}
	if len(slots) != 4 {
		t.Errorf("slots are shared: %v", slots)
	}
}

// Names that are too long for what is made from them give a sentence.
func TestCaseK21(t *testing.T) {
	t.Parallel()
	long, tooLong := strings.Repeat("n", 52), strings.Repeat("n", 253)
	p := (&world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root(long), root(tooLong)}}}).plan(t)
	wantCondition(t, p, long, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	wantCondition(t, p, tooLong, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, "The name of a ReplicationNode may have at most 52 characters; this one has 253.")
	if slot := p.Nodes[key(long)].Sources[0].Postgres.Slot; len(slot) != 63 {
		t.Errorf("slot %s has %d characters", slot, len(slot))
	}
}

// Parents in another namespace: only where they allow it.
func TestCaseK15(t *testing.T) {
	t.Parallel()
	parent := root("core/root")
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{parent, node("a", "core/root", "b"), root("b")}}}
	p := w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonNotPermitted, "core/root does not allow the namespace shop")
	wantParents(t, p, "a", "b")

	parent.Spec.Serve = &v1alpha1.NodeServe{AllowedConsumers: []v1alpha1.ConsumerGrant{{Namespace: ns}}}
	w.set(parent)
	p = w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	wantParents(t, p, "a", "core/root", "b")

	// Taken back, from a node that reads from nothing else.
	w.set(node("a", "core/root"))
	w.plan(t)
	parent.Spec.Serve = nil
	w.set(parent)
	p = w.plan(t)
	wantParents(t, p, "a")
	if a := p.Nodes[key("a")].Action; a != topology.Rewire {
		t.Errorf("the node keeps a parent that it may not read from: %v", a)
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	byRef := func(name string, s v1alpha1.NodeSource) v1alpha1.ReplicationNode {
		n := node(name)
		s.Name = "in"
		n.Spec.Sources = []v1alpha1.NodeSource{s}
		return n
	}
	w := world{topology.Inputs{
		Nodes: []v1alpha1.ReplicationNode{
			byRef("a", v1alpha1.NodeSource{PostgresSourceRef: &v1alpha1.LocalReference{Name: "main"}}),
			byRef("b", v1alpha1.NodeSource{FanoutSourceRef: &v1alpha1.LocalReference{Name: "up"}}),
		},
		Secrets: map[topology.Key][]string{},
	}}
	p := w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound, "The PostgresSource main, which the source in names, does not exist.")
	wantCondition(t, p, "b", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound, "The FanoutSource up, which the source in names, does not exist.")

	w.PostgresSources = []v1alpha1.PostgresSource{{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "main"}, Spec: *database("db")}}
	w.FanoutSources = []v1alpha1.FanoutSource{{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "up"}, Spec: *upstreams("a")}}
	p = w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, "The Secret login does not exist.")
	wantParents(t, p, "b", "a")

	w.Secrets[key("login")] = []string{"username"}
	p = w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, "The Secret login has no key password.")

	w.Secrets[key("login")] = []string{"password", "username"}
	p = w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, v1alpha1.ReasonResolved, "")
	if a := p.Nodes[key("a")].Action; a != topology.Apply {
		t.Error(a)
	}
}

func TestSelector(t *testing.T) {
	t.Parallel()
	labelled := func(n v1alpha1.ReplicationNode) v1alpha1.ReplicationNode {
		n.Labels = map[string]string{"tier": "mid"}
		return n
	}
	edge := node("edge", "x")
	edge.Spec.Sources[0].Fanout.Upstreams = []v1alpha1.Upstream{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "mid"}}}}
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{labelled(edge), labelled(root("m2")), labelled(root("m1")), labelled(root("core/m0")), root("r")}}}
	p := w.plan(t)
	wantParents(t, p, "edge", "m1", "m2")

	w.set(root("m1"), root("m2"))
	p = w.plan(t)
	wantCondition(t, p, "edge", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonParentNotFound, "tier=mid")
}

// Edges that carry different tables make no loop; those that share one do.
func TestLoopsPerTable(t *testing.T) {
	t.Parallel()
	restricted := func(name, parent string, tables ...string) v1alpha1.ReplicationNode {
		n := node(name, parent)
		for _, table := range tables {
			n.Spec.Sources[0].Fanout.Tables = append(n.Spec.Sources[0].Fanout.Tables, v1alpha1.FanoutTable{TableReference: v1alpha1.TableReference{Schema: "public", Name: table}})
		}
		n.Spec.Sources = append(n.Spec.Sources, v1alpha1.NodeSource{Name: "db", Postgres: database("db-" + name)})
		return n
	}
	p := (&world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{restricted("a", "b", "orders"), restricted("b", "a", "items")}}}).plan(t)
	for _, n := range []string{"a", "b"} {
		wantCondition(t, p, n, v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
		if len(parents(p, n)) != 1 {
			t.Errorf("%s has parents %v", n, parents(p, n))
		}
	}
	p = (&world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{restricted("a", "b", "orders", "items"), restricted("b", "a", "items", "lines")}}}).plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, "a → b → a")
}

func TestDepth(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root("n0")}}}
	for i := 1; i <= 10; i++ {
		w.set(node(fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", i-1)))
	}
	p := w.plan(t)
	wantCondition(t, p, "n8", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	for _, n := range []string{"n9", "n10"} {
		wantCondition(t, p, n, v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonMaxDepthExceeded, "nodes stand above")
	}
	w.set(node("n5", "n0"))
	p = w.plan(t)
	wantCondition(t, p, "n10", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	if d := p.Nodes[key("n10")].Depth; d != 6 {
		t.Errorf("depth is %d", d)
	}
}

// A standby that stands below the node is listed and not used.
func TestConditionalLoop(t *testing.T) {
	t.Parallel()
	p := (&world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root("root"), node("a", "root", "c", "far:1"), node("b", "a"), node("c", "b")}}}).plan(t)
	wantParents(t, p, "a", "root", "far:1")
	if c := p.Nodes[key("a")].Wiring.Sources[0].Candidates[1]; c.ID != "shop/c" || c.Eligible || c.Why != v1alpha1.ReasonConditionalLoop {
		t.Errorf("%+v", c)
	}
	for _, n := range []string{"a", "b", "c"} {
		wantCondition(t, p, n, v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonConditionalLoop, "a → b → c → a")
	}
}
