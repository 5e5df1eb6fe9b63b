package topology_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

var (
	allNames  = []string{"a", "b", "c", "d", "e", "f", "g"}
	allTables = []string{"orders", "items", "lines"}
)

// drawNode draws a node whose parents may be anything, itself and missing ones
// included.
func drawNode(t *rapid.T, name string) v1alpha1.ReplicationNode {
	n := node(name)
	for i := range rapid.IntRange(1, 2).Draw(t, "sources") {
		s := v1alpha1.NodeSource{Name: fmt.Sprintf("s%d", i)}
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			s.Postgres = database("db-" + name + s.Name)
		default:
			up := rapid.SliceOfNDistinct(rapid.SampledFrom(append([]string{"missing", "far:1"}, allNames...)), 1, 3, rapid.ID).Draw(t, "parents")
			s.Fanout = upstreams(up...)
			for _, table := range rapid.SliceOfNDistinct(rapid.SampledFrom(allTables), 0, 2, rapid.ID).Draw(t, "tables") {
				s.Fanout.Tables = append(s.Fanout.Tables, v1alpha1.FanoutTable{TableReference: v1alpha1.TableReference{Schema: "public", Name: table}})
			}
		}
		n.Spec.Sources = append(n.Spec.Sources, s)
	}
	return n
}

func drawReported(t *rapid.T) map[topology.SourceKey]topology.Key {
	out := map[topology.SourceKey]topology.Key{}
	for _, n := range allNames {
		if rapid.Bool().Draw(t, "reports") {
			out[topology.SourceKey{Node: key(n), Source: "s0"}] = key(rapid.SampledFrom(allNames).Draw(t, "parent"))
		}
	}
	return out
}

// edgesFor returns, for one table, who reads it from whom among the first
// candidates that pass.
func edgesFor(nodes []v1alpha1.ReplicationNode, table string, pick func(n v1alpha1.ReplicationNode, s v1alpha1.NodeSource) (string, bool)) map[string][]string {
	up := map[string][]string{}
	for _, n := range nodes {
		for _, s := range n.Spec.Sources {
			if s.Fanout == nil {
				continue
			}
			carries := len(s.Fanout.Tables) == 0 || slices.ContainsFunc(s.Fanout.Tables, func(ft v1alpha1.FanoutTable) bool { return ft.Name == table })
			if parent, ok := pick(n, s); ok && carries {
				up[n.Name] = append(up[n.Name], parent)
			}
		}
	}
	return up
}

// comesBack says whether walking up from name can lead to name again: the
// simplest possible loop check.
func comesBack(up map[string][]string, name string) bool {
	seen := map[string]bool{}
	var walk func(string) bool
	walk = func(at string) bool {
		for _, p := range up[at] {
			if p == name {
				return true
			}
			if !seen[p] {
				seen[p] = true
				if walk(p) {
					return true
				}
			}
		}
		return false
	}
	return walk(name)
}

func exists(nodes []v1alpha1.ReplicationNode, name string) bool {
	return slices.ContainsFunc(nodes, func(n v1alpha1.ReplicationNode) bool { return n.Name == name })
}

// In any history of changes: the plan does not depend on the order of the
// resources; exactly the members of cycles are refused; and what the nodes are
// wired to never leads in a circle, for any table.
func TestPlanProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := world{}
		tables := append([]string{"another"}, allTables...)
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(allNames), 1, len(allNames), rapid.ID).Draw(t, "changed") {
				w.set(drawNode(t, name))
			}
			if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
				gone := rapid.SampledFrom(allNames).Draw(t, "gone")
				w.Nodes = slices.DeleteFunc(slices.Clone(w.Nodes), func(n v1alpha1.ReplicationNode) bool { return n.Name == gone })
			}
			w.Reported = drawReported(t)

			shuffled := w.Inputs
			shuffled.Nodes = rapid.Permutation(w.Nodes).Draw(t, "order")
			plan, other := topology.Compute(w.Inputs), topology.Compute(shuffled)
			if d := cmp.Diff(plan, other); d != "" {
				t.Fatalf("the plan depends on the order of the resources: %s", d)
			}

			refused := map[string]bool{}
			for _, table := range tables {
				up := edgesFor(w.Nodes, table, func(n v1alpha1.ReplicationNode, s v1alpha1.NodeSource) (string, bool) {
					first := s.Fanout.Upstreams[0]
					return name(first), first.NodeRef != nil && exists(w.Nodes, name(first))
				})
				for _, n := range w.Nodes {
					refused[n.Name] = refused[n.Name] || comesBack(up, n.Name)
				}
			}
			for _, n := range w.Nodes {
				c := plan.Nodes[key(n.Name)].Condition(v1alpha1.ConditionAcyclic)
				if got := c.Status == metav1.ConditionFalse; got != refused[n.Name] {
					t.Fatalf("%s: refused is %v, want %v: %s", n.Name, got, refused[n.Name], c.Message)
				}
			}

			before := w.Last
			w.remember(plan)
			for _, table := range tables {
				up := edgesFor(w.Nodes, table, func(n v1alpha1.ReplicationNode, s v1alpha1.NodeSource) (string, bool) {
					for _, ws := range w.Last[key(n.Name)].Sources {
						for _, c := range ws.Candidates {
							if ws.Name == s.Name && c.Eligible {
								return c.Node.Name, c.Node.Name != ""
							}
						}
					}
					return "", false
				})
				for _, n := range w.Nodes {
					if comesBack(up, n.Name) {
						t.Fatalf("the plan wires %s in a circle for table %s: %v", n.Name, table, up)
					}
				}
			}
			for k, now := range w.Last {
				if old, ok := before[k]; ok && now.Epoch != old.Epoch && now.Epoch != old.Epoch+1 {
					t.Fatalf("%s: epoch went from %d to %d", k, old.Epoch, now.Epoch)
				}
			}
			w.Last = maps.Clone(w.Last)
			if again := topology.Compute(w.Inputs); !epochsEqual(plan, again) {
				t.Fatal("an epoch grows although nothing changes")
			}
		}
	})
}

func name(u v1alpha1.Upstream) string {
	if u.NodeRef == nil {
		return ""
	}
	return u.NodeRef.Name
}

func epochsEqual(a, b topology.Plan) bool {
	for k, n := range a.Nodes {
		if n.Action != topology.Hold && n.Wiring.Epoch != b.Nodes[k].Wiring.Epoch {
			return false
		}
	}
	return true
}

// However nodes choose, one after the other from any view, they close no ring.
func TestChooseParentClosesNoRing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		active := topology.NewActive(1, nil)
		up := map[string][]string{}
		for range rapid.IntRange(1, 40).Draw(t, "choices") {
			child := rapid.SampledFrom(allNames).Draw(t, "child")
			s := topology.SourceKey{Node: key(child), Source: "up"}
			var candidates []topology.Candidate
			for _, p := range rapid.SliceOfN(rapid.SampledFrom(allNames), 1, 4).Draw(t, "candidates") {
				candidates = append(candidates, topology.Candidate{Node: key(p), Eligible: rapid.Bool().Draw(t, "eligible")})
			}
			epoch := active.Epoch() - uint64(rapid.IntRange(0, 1).Draw(t, "stale"))
			stale := epoch != active.Epoch()
			c, ok, err := active.ChooseParent(epoch, s, candidates, func(topology.Candidate) bool { return true })
			if (err != nil) != stale || ok && stale {
				t.Fatalf("epoch %d: %v, %v", epoch, ok, err)
			}
			if ok {
				up[child] = []string{c.Node.Name}
			}
			for _, n := range allNames {
				if comesBack(up, n) {
					t.Fatalf("a ring: %v", up)
				}
			}
		}
	})
}

func BenchmarkCompute(b *testing.B) {
	var nodes []v1alpha1.ReplicationNode
	nodes = append(nodes, root("root"))
	for i := range 1000 {
		nodes = append(nodes, node(fmt.Sprintf("mid%d", i), "root", fmt.Sprintf("mid%d", (i+1)%1000)))
	}
	for i := range 10000 {
		nodes = append(nodes, node(fmt.Sprintf("edge%d", i), fmt.Sprintf("mid%d", i%1000), fmt.Sprintf("mid%d", (i+7)%1000)))
	}
	b.ResetTimer()
	for b.Loop() {
		topology.Compute(topology.Inputs{Nodes: nodes})
	}
}
