package topology_test

import (
	"fmt"
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

// leaf is a node with an ingest source, and labels as a mesh selects them.
func leaf(name string, labels ...string) v1alpha1.ReplicationNode {
	n := node(name)
	n.Spec.Storage = &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: new(resource.MustParse("1Gi"))}
	n.Spec.Sources = []v1alpha1.NodeSource{{Name: "local", Ingest: tally()}}
	for _, l := range labels {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[l] = "yes"
	}
	return n
}

func tally() *v1alpha1.IngestSource {
	return &v1alpha1.IngestSource{Tables: []v1alpha1.IngestTable{{
		TableReference: v1alpha1.TableReference{Schema: "public", Name: "tally"},
		Columns:        []v1alpha1.IngestColumn{{Name: "id", Type: "bigint", Key: true}, {Name: "n", Type: "bigint"}},
	}}}
}

// mesh has members by name; of a name that begins with @ it has those with the
// label; a name such as a-b is an edge.
func mesh(name string, age time.Duration, members ...string) v1alpha1.ReplicationMesh {
	m := v1alpha1.ReplicationMesh{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
	for _, s := range members {
		a, b, isEdge := strings.Cut(s, "-")
		switch {
		case isEdge:
			m.Spec.Edges = append(m.Spec.Edges, v1alpha1.MeshEdge{Nodes: []string{a, b}})
		case s[0] == '@':
			m.Spec.Members.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{s[1:]: "yes"}}
		default:
			m.Spec.Members.Nodes = append(m.Spec.Members.Nodes, v1alpha1.MeshMember{Name: s})
		}
	}
	return m
}

func wantMesh(t testing.TB, p topology.Plan, name, kind, reason string, messages ...string) {
	t.Helper()
	m := p.Meshes[key(name)]
	if m == nil {
		t.Fatalf("no plan for the mesh %s", name)
	}
	c := m.Condition(kind)
	if c.Reason != reason || (c.Status == metav1.ConditionTrue) != (len(messages) == 0) {
		t.Errorf("%s: %s is %s, %s, %q; want %s", name, kind, c.Status, c.Reason, c.Message, reason)
	}
	for _, want := range messages {
		if !strings.Contains(c.Message, want) {
			t.Errorf("%s: %s says %q; want %q", name, kind, c.Message, want)
		}
	}
}

func TestMesh(t *testing.T) {
	t.Parallel()
	third := leaf("c", "in")
	w := world{topology.Inputs{
		Nodes:  []v1alpha1.ReplicationNode{leaf("b", "in"), leaf("a", "in"), third, node("reader", "a", "b")},
		Meshes: []v1alpha1.ReplicationMesh{mesh("m", 0, "b", "@in")},
	}}
	p := w.plan(t)
	wantMesh(t, p, "m", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	wantMesh(t, p, "m", v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolved)
	wantParents(t, p, "a", "b", "c") // named ones first
	wantParents(t, p, "c", "b", "a")
	wantParents(t, p, "reader", "a", "b")
	for _, name := range []string{"a", "b", "c"} {
		n := p.Nodes[key(name)]
		if n.Action != topology.Apply || !n.Single || n.Mesh != key("m") || n.Depth != 0 || len(n.Sources) != 2 || n.Sources[1].Name != topology.MeshSource {
			t.Errorf("%s: %+v", name, n)
		}
		wantCondition(t, p, name, v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	}
	if r := p.Nodes[key("reader")]; r.Depth != 1 || !slices.Equal(p.Nodes[key("a")].Children, []topology.Key{key("reader")}) {
		t.Errorf("the reader stands at %d, below %v", r.Depth, p.Nodes[key("a")].Children)
	}
	before := p.Nodes[key("a")].Wiring.Epoch

	// another member: the wiring of the others grows, and nothing else of them changes
	w.set(leaf("d", "in"))
	q := w.plan(t)
	wantParents(t, q, "a", "b", "c", "d")
	if e := q.Nodes[key("a")].Wiring.Epoch; e != before+1 {
		t.Errorf("the epoch goes from %d to %d", before, e)
	}
	if d := cmp.Diff(p.Nodes[key("a")].Sources, q.Nodes[key("a")].Sources); d != "" {
		t.Errorf("the configuration changes: %s", d)
	}

	// one that is being deleted is nobody's peer, and says so where it is named
	gone := leaf("b", "in")
	gone.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
	w.set(gone)
	p = w.plan(t)
	wantParents(t, p, "a", "c", "d")
	wantMesh(t, p, "m", v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonMemberNotFound, "The member b is being deleted.")

	// without the mesh the nodes are as they were
	w.Meshes = nil
	p = w.plan(t)
	if n := p.Nodes[key("a")]; len(n.Sources) != 1 || len(n.Wiring.Sources) != 0 || n.Action != topology.Apply {
		t.Errorf("a has left the mesh: %+v", n)
	}
}

func TestMeshFindings(t *testing.T) {
	t.Parallel()
	leaves := func(names ...string) (out []v1alpha1.ReplicationNode) {
		for _, n := range names {
			out = append(out, leaf(n, "in"))
		}
		return out
	}
	many := leaf("many")
	many.Spec.Storage, many.Spec.Sources[0] = nil, v1alpha1.NodeSource{Name: "up", Fanout: upstreams("a")}
	many.Spec.Replicas = new(int32(2))
	named := leaf("named")
	named.Spec.Sources[0].Name = topology.MeshSource
	secured := leaf("secured")
	secured.Spec.Serve = &v1alpha1.NodeServe{TLS: &v1alpha1.ServeTLS{SecretRef: v1alpha1.LocalReference{Name: "cert"}}}
	secure := mesh("m", 0, "a", "secured")
	secure.Spec.TLS = &v1alpha1.ClientTLS{}
	broken := mesh("m", 0, "a")
	broken.Spec.Members.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Roughly"}}}
	both := mesh("m", 0, "a", "b", "a-b")
	both.Spec.Topology = v1alpha1.MeshFull
	owned, owner, twice, elsewhere := mesh("m", 0, "a", "b"), mesh("m", 0, "a", "b"), mesh("m", 0, "a", "b"), mesh("m", 0, "a", "b")
	tallies := v1alpha1.TableReference{Schema: "public", Name: "tally"}
	owned.Spec.Conflicts = []v1alpha1.TableConflicts{{TableReference: tallies, Policy: v1alpha1.ConflictOriginOwnsKey}}
	owner.Spec.Conflicts = []v1alpha1.TableConflicts{{TableReference: tallies, Policy: v1alpha1.ConflictOriginOwnsKey, OwnerColumn: "id", Owners: []v1alpha1.RowOwner{{Node: "x"}}}}
	twice.Spec.Conflicts = []v1alpha1.TableConflicts{{TableReference: tallies, Policy: v1alpha1.ConflictLastWriteWins}, {TableReference: tallies, Policy: v1alpha1.ConflictNamespaceByOrigin}}
	elsewhere.Spec.Conflicts, elsewhere.Spec.Tables = twice.Spec.Conflicts[:1], []v1alpha1.FanoutTable{{TableReference: v1alpha1.TableReference{Schema: "public", Name: "other"}}}
	const accepted, resolved = v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs
	for name, c := range map[string]struct {
		mesh         v1alpha1.ReplicationMesh
		more         []v1alpha1.ReplicationNode
		kind, reason string
		messages     []string
	}{
		"nobody is there":   {mesh("m", 0, "x", "a"), nil, resolved, v1alpha1.ReasonMemberNotFound, []string{"The member x does not exist."}},
		"nobody selected":   {mesh("m", 0, "@none"), nil, resolved, v1alpha1.ReasonMemberNotFound, []string{"No node of the namespace has the labels none=yes that the mesh selects."}},
		"replicas":          {mesh("m", 0, "a", "many"), []v1alpha1.ReplicationNode{many}, accepted, v1alpha1.ReasonInvalid, []string{"The node many has 2 replicas, and takes no part"}},
		"the name":          {mesh("m", 0, "a", "named"), []v1alpha1.ReplicationNode{named}, accepted, v1alpha1.ReasonInvalid, []string{"The node named has a source of its own with the name mesh"}},
		"edge to a missing": {mesh("m", 0, "a", "b", "a-b", "b-x"), nil, resolved, v1alpha1.ReasonMemberNotFound, []string{"The edge of b and x is not there: x is not a member of the mesh."}},
		"divided":           {mesh("m", 0, "a", "b", "c", "d", "a-b", "c-d"), leaves("d"), accepted, v1alpha1.ReasonMeshDivided, []string{"No edges lead from a to c"}},
		"plain text":        {mesh("m", 0, "a", "secured"), []v1alpha1.ReplicationNode{secured}, accepted, v1alpha1.ReasonTLSMismatch, []string{"The members connect in plain text, and secured serves TLS"}},
		"one in plain text": {secure, []v1alpha1.ReplicationNode{secured}, accepted, v1alpha1.ReasonTLSMismatch, []string{"The members connect by TLS, and a serves in plain text"}},
		"no owner's column": {owned, nil, accepted, v1alpha1.ReasonInvalid, []string{"conflicts[0].ownerColumn is needed with the policy OriginOwnsKey"}},
		"owner elsewhere":   {owner, nil, resolved, v1alpha1.ReasonMemberNotFound, []string{"The owner x of rows of public.tally is not a member of the mesh."}},
		"two policies":      {twice, nil, accepted, v1alpha1.ReasonInvalid, []string{"conflicts[1] names public.tally again"}},
		"another table":     {elsewhere, nil, accepted, v1alpha1.ReasonInvalid, []string{"conflicts[0] names public.tally, which is not among the tables of the mesh."}},
		"no selector":       {broken, nil, accepted, v1alpha1.ReasonInvalid, []string{"members.selector is not a selector"}},
		"topology, edges":   {both, nil, accepted, v1alpha1.ReasonInvalid, []string{"topology: FullMesh joins every member with every other: take edges out, or topology."}},
		"no member":         {mesh("m", 0), nil, accepted, v1alpha1.ReasonInvalid, []string{"members is empty"}},
		"one edge":          {mesh("m", 0, "a", "b", "a-a"), nil, accepted, v1alpha1.ReasonInvalid, []string{"edges[0].nodes must be the names of two members."}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world{topology.Inputs{Nodes: append(leaves("a", "b", "c"), c.more...), Meshes: []v1alpha1.ReplicationMesh{c.mesh}}}
			p := w.plan(t)
			wantMesh(t, p, "m", c.kind, c.reason, c.messages...)
			wantCondition(t, p, "a", accepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
			if len(c.more) > 0 && c.reason == v1alpha1.ReasonInvalid && len(parents(p, "a")) > 0 {
				t.Errorf("a has peers: %v", parents(p, "a"))
			}
		})
	}
}

func TestMeshEdges(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{
		Nodes:  []v1alpha1.ReplicationNode{leaf("a"), leaf("b"), leaf("c"), leaf("d")},
		Meshes: []v1alpha1.ReplicationMesh{mesh("ring", 0, "a", "b", "c", "d", "a-b", "c-b", "c-d", "d-a")},
	}}
	p := w.plan(t)
	wantMesh(t, p, "ring", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	wantParents(t, p, "a", "b", "d")
	wantParents(t, p, "b", "a", "c")
	wantParents(t, p, "c", "b", "d")
}

// A node in two meshes stays in the older, whichever is seen first.
func TestMeshConflict(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{
		Nodes:  []v1alpha1.ReplicationNode{leaf("a"), leaf("b"), leaf("c")},
		Meshes: []v1alpha1.ReplicationMesh{mesh("a-young", 0, "b", "c"), mesh("old", time.Hour, "a", "b")},
	}}
	p := w.plan(t)
	wantMesh(t, p, "old", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	wantMesh(t, p, "a-young", v1alpha1.ConditionAccepted, v1alpha1.ReasonMeshConflict, "The node b is a member of the older ReplicationMesh old, where it stays")
	wantParents(t, p, "b", "a")
	if n := p.Nodes[key("c")]; len(parents(p, "c")) > 0 || n.Action != topology.Apply {
		t.Errorf("c, alone in its mesh: %+v", n)
	}
}

// A node without a source waits for a mesh, and keeps its place in one while what
// else it says cannot be acted on.
func TestMeshIsTheOnlySource(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{leaf("a"), node("relay")}}}
	p := w.plan(t)
	wantCondition(t, p, "relay", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound, "no ReplicationMesh has it for a member")
	if p.Nodes[key("relay")].Action != topology.Hold {
		t.Error("a node without a source is put in place")
	}
	w.Meshes = []v1alpha1.ReplicationMesh{mesh("m", 0, "a", "relay")}
	p = w.plan(t)
	wantCondition(t, p, "relay", v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, v1alpha1.ReasonResolved, "")
	wantParents(t, p, "relay", "a")
	wrong := node("relay")
	wrong.Spec.Sources = []v1alpha1.NodeSource{{Name: "up"}}
	w.set(wrong, leaf("b"))
	w.Meshes[0].Spec.Members.Nodes = append(w.Meshes[0].Spec.Members.Nodes, v1alpha1.MeshMember{Name: "b"})
	p = w.plan(t)
	wantCondition(t, p, "relay", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, "exactly one of")
	wantParents(t, p, "relay", "a", "b")
	if p.Nodes[key("relay")].Action != topology.Rewire {
		t.Errorf("action %v", p.Nodes[key("relay")].Action)
	}
	// a mesh that cannot be made out takes nobody out
	w.Meshes[0].Spec.Topology = "Star"
	w.set(node("relay"))
	p = w.plan(t)
	wantParents(t, p, "relay", "a", "b")
	wantParents(t, p, "a", "relay", "b")
	if a := p.Nodes[key("a")].Action; a != topology.Rewire {
		t.Errorf("action %v", a)
	}
}

// A policy that goes by a column which is not of the key is refused at the node
// that declares the table.
func TestOwnersColumn(t *testing.T) {
	t.Parallel()
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{leaf("a"), node("relay")}, Meshes: []v1alpha1.ReplicationMesh{mesh("m", 0, "a", "relay")}}}
	w.plan(t)
	conflicts := []v1alpha1.TableConflicts{{TableReference: v1alpha1.TableReference{Schema: "public", Name: "tally"}, Policy: v1alpha1.ConflictOriginOwnsKey, OwnerColumn: "n"}}
	w.Meshes[0].Spec.Conflicts = conflicts
	p := w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, "n of table public.tally says whose a row is")
	if a, relay := p.Nodes[key("a")].Action, p.Nodes[key("relay")].Action; a != topology.Rewire || relay != topology.Apply {
		t.Errorf("actions %v, %v", a, relay)
	}
	conflicts[0].OwnerColumn = "id"
	wantCondition(t, w.plan(t), "a", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
}

// A shared cursor covers all of a peer: whoever has one does not narrow tables.
func TestSharedCursors(t *testing.T) {
	t.Parallel()
	tables := []v1alpha1.FanoutTable{{TableReference: v1alpha1.TableReference{Schema: "public", Name: "tally"}}}
	shared, reader := leaf("a"), node("r", "a")
	shared.Spec.Cursors, reader.Spec.Cursors = v1alpha1.CursorsShared, v1alpha1.CursorsShared
	reader.Spec.Sources[0].Fanout.Tables = tables
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{shared, leaf("b"), reader}, Meshes: []v1alpha1.ReplicationMesh{mesh("m", 0, "a", "b")}}}
	p := w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	wantCondition(t, p, "r", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, "The source up narrows tables, and spec.cursors is Shared")
	w.Meshes[0].Spec.Tables = tables
	p = w.plan(t)
	wantCondition(t, p, "a", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, "The ReplicationMesh m narrows tables")
	wantCondition(t, p, "b", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	if p.Nodes[key("a")].Action != topology.Rewire {
		t.Error("a is put in place all the same")
	}
}

func TestIngestFindings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*v1alpha1.ReplicationNode)
		want   string
	}{
		"memory":   {func(n *v1alpha1.ReplicationNode) { n.Spec.Storage = nil }, "ingest needs persistent storage"},
		"replicas": {func(n *v1alpha1.ReplicationNode) { n.Spec.Replicas = new(int32(2)) }, "its log has one writer"},
		"columns":  {func(n *v1alpha1.ReplicationNode) { n.Spec.Sources[0].Ingest.Tables[0].Columns[1].Name = "id" }, "ingest.tables[0].columns[1] must have a type, and a name of its own."},
		"no key":   {func(n *v1alpha1.ReplicationNode) { n.Spec.Sources[0].Ingest.Tables[0].Columns[0].Key = false }, "ingest.tables[0] has no key"},
		"two": {func(n *v1alpha1.ReplicationNode) {
			n.Spec.Sources = append(n.Spec.Sources, v1alpha1.NodeSource{Name: "b", Ingest: tally()})
		}, "spec.sources[1] is another ingest source"},
		"nobody writes": {func(n *v1alpha1.ReplicationNode) {
			n.Spec.Serve = &v1alpha1.NodeServe{TLS: &v1alpha1.ServeTLS{}, TokensSecretRef: &v1alpha1.LocalReference{Name: "t"}}
		}, "let nobody write"},
		"pending": {func(n *v1alpha1.ReplicationNode) {
			n.Spec.Sources[0].Ingest.Pending = &v1alpha1.IngestPending{MaxBytes: new(resource.MustParse("1Mi"))}
		}, "ingest.pending.maxBytes must be a quantity from 8Mi to 1Ti, such as 64Mi; it is 1Mi."},
		"another table": {func(n *v1alpha1.ReplicationNode) {
			n.Spec.Serve = &v1alpha1.NodeServe{Permissions: []v1alpha1.ReadPermission{{Reader: "r", Writes: []v1alpha1.TableReference{{Schema: "public", Name: "x"}}}}}
		}, "writes names public.x, which the ingest source does not declare"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := leaf("a")
			c.change(&n)
			w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{n}}}
			wantCondition(t, w.plan(t), "a", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, c.want)
		})
	}
}

// In any history of nodes and meshes: the plan does not depend on the order of
// the resources; peers are each other's; nobody is in two meshes; and no mesh
// refuses or rewires a tree.
func TestMeshProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := world{}
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(allNames), 1, len(allNames), rapid.ID).Draw(t, "changed") {
				n := drawNode(t, name)
				if rapid.Bool().Draw(t, "selected") {
					n.Labels = map[string]string{"in": "yes"}
				}
				w.set(n)
			}
			w.Meshes = nil
			for i := range rapid.IntRange(0, 2).Draw(t, "meshes") {
				members := rapid.SliceOfNDistinct(rapid.SampledFrom(append([]string{"missing", "@in"}, allNames...)), 1, 5, rapid.ID).Draw(t, "members")
				for range rapid.IntRange(0, 4).Draw(t, "edges") {
					e := rapid.SliceOfNDistinct(rapid.SampledFrom(allNames), 2, 2, rapid.ID).Draw(t, "edge")
					members = append(members, e[0]+"-"+e[1])
				}
				w.Meshes = append(w.Meshes, mesh(fmt.Sprintf("m%d", i), time.Duration(rapid.IntRange(0, 1).Draw(t, "age"))*time.Hour, members...))
			}
			shuffled, trees := w.Inputs, w.Inputs
			shuffled.Nodes = rapid.Permutation(w.Nodes).Draw(t, "order")
			shuffled.Meshes = rapid.Permutation(w.Meshes).Draw(t, "order of meshes")
			trees.Meshes = nil
			plan, other, bare := topology.Compute(w.Inputs), topology.Compute(shuffled), topology.Compute(trees)
			if d := cmp.Diff(plan, other); d != "" {
				t.Fatalf("the plan depends on the order of the resources: %s", d)
			}
			peers := map[topology.Key][]topology.Key{}
			for _, m := range plan.Meshes {
				for _, member := range m.Members {
					if _, twice := peers[member.Node]; twice {
						t.Fatalf("%s is in two meshes", member.Node)
					}
					peers[member.Node] = member.Peers
				}
			}
			for k, ps := range peers {
				for _, p := range ps {
					if !slices.Contains(peers[p], k) {
						t.Fatalf("%s is a peer of %s, and not the other way", p, k)
					}
				}
			}
			for k, n := range plan.Nodes {
				if d := cmp.Diff(n.Condition(v1alpha1.ConditionAcyclic), bare.Nodes[k].Condition(v1alpha1.ConditionAcyclic)); d != "" {
					t.Fatalf("%s: a mesh changes what is said of loops: %s", k, d)
				}
			}
			w.remember(plan)
		}
	})
}
