package topology

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// wire refuses cycles and too long paths, settles who reads from whom, and says
// of every candidate whether it may be moved to.
func (p *planner) wire() {
	declared, standby, classes := p.edges()
	p.refuseLoops(declared, standby, classes)
	p.refuseTreeLoops(declared, classes)
	p.refuseDepth(declared, classes)
	for _, d := range p.order {
		unsure := d.unsure && slices.ContainsFunc(p.in.Last[d.Key].Sources, d.isMesh)
		if d.kept = d.refused || d.incomplete() || unsure || d.held; d.kept {
			p.keepLast(d)
		}
	}
	p.settle(slices.Concat(declared, standby), classes)
	p.judgeCandidates(slices.Concat(declared, standby))
	p.number()
}

// edges lists, for each source of a node, the edge that its first upstream
// declares, and those of the standbys.
func (p *planner) edges() (declared, standby []edge, classes int) {
	var lists [][]string
	var isFirst []bool
	var all []edge
	for _, d := range p.order {
		for i := range d.Wiring.Sources {
			w := &d.Wiring.Sources[i]
			tables := p.tables(d, w.Name)
			for j, c := range w.Candidates {
				if c.Node == (Key{}) || w.Mesh {
					continue
				}
				all = append(all, edge{parent: c.Node, child: SourceKey{d.Key, w.Name}})
				lists = append(lists, tables)
				isFirst = append(isFirst, j == 0 && d.first[w.Name])
			}
		}
	}
	sets, classes := scopes(lists)
	for i, e := range all {
		e.tables = sets[i]
		if isFirst[i] {
			declared = append(declared, e)
		} else {
			standby = append(standby, e)
		}
	}
	return declared, standby, classes
}

// tables are the tables that a fan-out source is restricted to; none is all.
func (p *planner) tables(d *draft, source string) (out []string) {
	for _, s := range d.Sources {
		if s.Name == source && s.Fanout != nil {
			for _, t := range s.Fanout.Tables {
				out = append(out, t.String())
			}
		}
	}
	return out
}

func (p *planner) refuseLoops(declared, standby []edge, classes int) {
	loops := cycles(declared, classes)
	for k, cycle := range loops {
		d := p.nodes[k]
		d.acyclic.add(v1alpha1.ReasonLoopDetected, "Data would travel in a circle: %s. Take one of these nodes' upstreams out, or turn one around.", writeCycle(cycle, k.Namespace))
		d.refused = true
	}
	if len(standby) == 0 {
		return
	}
	for k, cycle := range cycles(slices.Concat(declared, standby), classes) {
		if d := p.nodes[k]; !d.refused {
			d.warning = Condition{
				v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonConditionalLoop,
				fmt.Sprintf("Data would travel in a circle if standby parents took over: %s. A standby that stands below a node is not used.", writeCycle(cycle, k.Namespace)),
			}
		}
	}
}

// refuseDepth refuses nodes that stand too deep by what is declared; the edges
// of loops do not count.
func (p *planner) refuseDepth(declared []edge, classes int) {
	var sound []edge
	for _, e := range declared {
		if !p.nodes[e.child.Node].refused {
			sound = append(sound, e)
		}
	}
	for k, depth := range depths(sound, classes) {
		if depth > v1alpha1.MaxDepth {
			p.nodes[k].acyclic.add(v1alpha1.ReasonMaxDepthExceeded, "%d nodes stand above this one; at most %d may. Name an upstream that stands higher.", depth, v1alpha1.MaxDepth)
			p.nodes[k].refused = true
		}
	}
}

// keepLast puts the wiring that a node has in place of the declared
// one, without parents that it may no longer read from. Its peers in a mesh are
// those of the mesh as it is now.
func (p *planner) keepLast(d *draft) {
	last := p.in.Last[d.Key]
	d.Wiring = Wiring{Leaf: last.Leaf, Roots: last.Roots}
	for _, s := range last.Sources {
		if d.isMesh(s) && !d.unsure {
			d.Wiring.Sources = append(d.Wiring.Sources, d.meshWiring())
			continue
		}
		kept := WiredSource{Name: s.Name, Policy: s.Policy, Mesh: d.isMesh(s), Tree: s.Tree, Children: s.Children, Redundancy: s.Redundancy, Readers: s.Readers, Roots: s.Roots}
		for _, c := range s.Candidates {
			if parent := p.nodes[c.Node]; parent != nil && !permitted(parent.spec, d.Key.Namespace) {
				continue
			}
			c.Eligible, c.Why = true, ""
			kept.Candidates = append(kept.Candidates, c)
		}
		d.Wiring.Sources = append(d.Wiring.Sources, kept)
	}
}

// isMesh says whether a source that the node was wired with is one of a mesh.
func (d *draft) isMesh(s WiredSource) bool {
	return s.Name == MeshSource && !ownSource(d.spec, MeshSource)
}

// settle says who reads from whom if nothing fails: the declared parents of
// nodes that follow their declaration, which hold no cycle, and then, for everyone else in the order of
// names, the first candidate that closes none.
func (p *planner) settle(edges []edge, classes int) {
	p.active = &Active{edges: map[SourceKey][]edge{}, bySource: map[Key][]SourceKey{}}
	scopeOf := p.scopes(edges)
	var open []*draft
	for _, d := range p.order {
		for i := range d.Wiring.Sources {
			w := &d.Wiring.Sources[i]
			if !w.hasParents() {
				continue
			}
			if s := (SourceKey{d.Key, w.Name}); !d.kept && d.first[w.Name] {
				if first := w.Candidates[0].Node; first != (Key{}) {
					p.active.add(edge{first, s, scopeOf(s)})
				}
			} else if len(open) == 0 || open[len(open)-1] != d {
				open = append(open, d)
			}
		}
	}
	for _, d := range open {
		for i := range d.Wiring.Sources {
			w := &d.Wiring.Sources[i]
			if s := (SourceKey{d.Key, w.Name}); w.hasParents() && (d.kept || !d.first[w.Name]) {
				p.active.choose(s, scopeOf(s), w.Candidates, func(Candidate) bool { return true })
			}
		}
	}
	above := depths(p.active.list(), classes)
	for _, d := range p.order {
		if above[d.Key] > 0 || d.rooted() {
			d.Depth = above[d.Key]
		}
		for _, s := range p.active.bySource[d.Key] {
			for _, e := range p.active.edges[s] {
				if parent := p.nodes[e.parent]; d.export == nil && parent != nil && (len(parent.Children) == 0 || parent.Children[len(parent.Children)-1] != d.Key) {
					parent.Children = append(parent.Children, d.Key)
				}
			}
		}
	}
}

// rooted says whether the node has a source that is no node of the plan.
func (d *draft) rooted() bool {
	for _, s := range d.Sources {
		if s.Postgres != nil || s.Ingest != nil || s.Mesh != nil || s.Archive != nil || s.Children != nil {
			return true
		}
	}
	for _, w := range d.Wiring.Sources {
		if len(w.Candidates) > 0 && w.Candidates[0].Node == (Key{}) {
			return true
		}
	}
	return false
}

// scopes returns the scope of a source's edges; of one that has none here, all
// tables.
func (p *planner) scopes(edges []edge) func(SourceKey) scope {
	known := map[SourceKey]scope{}
	words := 1
	for _, e := range edges {
		known[e.child] = e.tables
		words = len(e.tables)
	}
	all := make(scope, words)
	for i := range all {
		all[i] = ^uint64(0)
	}
	return func(s SourceKey) scope {
		if t := known[s]; t != nil {
			return t
		}
		return all
	}
}

// judgeCandidates marks the candidates that must not be moved to: those below
// the node by what is settled or by what nodes report, and those too deep.
func (p *planner) judgeCandidates(edges []edge) {
	scopeOf := p.scopes(edges)
	seen := &Active{edges: map[SourceKey][]edge{}, bySource: map[Key][]SourceKey{}}
	for _, e := range p.active.list() {
		seen.add(e)
	}
	for s, parent := range p.in.Reported {
		if p.nodes[s.Node] != nil && p.nodes[parent] != nil {
			seen.add(edge{parent, s, scopeOf(s)})
		}
	}
	for _, d := range p.order {
		for i := range d.Wiring.Sources {
			w := &d.Wiring.Sources[i]
			s := SourceKey{d.Key, w.Name}
			settled, _ := p.active.Parent(s)
			for j := range w.Candidates {
				c := &w.Candidates[j]
				parent := p.nodes[c.Node]
				switch {
				case parent == nil || c.Node == settled || w.Mesh:
				case seen.below(c.Node, d.Key, scopeOf(s)):
					c.Eligible, c.Why = false, v1alpha1.ReasonConditionalLoop
					if d.refused {
						c.Why = v1alpha1.ReasonLoopDetected
					}
				case tooDeep(parent.Depth):
					c.Eligible, c.Why = false, v1alpha1.ReasonMaxDepthExceeded
				}
			}
		}
	}
}

// number gives every node's wiring its epoch: the last one, or the next if
// anything has changed.
func (p *planner) number() {
	for _, d := range p.order {
		last := p.in.Last[d.Key]
		d.Wiring.Epoch = last.Epoch
		if last.Epoch == 0 || !sameWiring(last.Sources, d.Wiring.Sources) || last.Leaf != d.Wiring.Leaf || !slices.Equal(last.Roots, d.Wiring.Roots) {
			d.Wiring.Epoch++
		}
	}
}

// sameWiring compares what a node acts on.
func sameWiring(a, b []WiredSource) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || len(a[i].Candidates) != len(b[i].Candidates) || a[i].Policy != b[i].Policy ||
			a[i].Redundancy != b[i].Redundancy || !slices.Equal(a[i].Children, b[i].Children) ||
			!slices.Equal(a[i].Readers, b[i].Readers) || !slices.Equal(a[i].Roots, b[i].Roots) {
			return false
		}
		for j, c := range a[i].Candidates {
			if o := b[i].Candidates[j]; c.ID != o.ID || c.Address != o.Address || c.Eligible != o.Eligible {
				return false
			}
		}
	}
	return true
}
