package topology

import (
	"slices"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// refuseTreeLoops refuses circles that lead through a tree: data of a leaf that comes to
// it again from a root, by parents or by a mesh. Circles of a mesh alone are sound.
func (p *planner) refuseTreeLoops(declared []edge, classes int) {
	all := make(scope, (classes+63)/64)
	for i := range all {
		all[i] = ^uint64(0)
	}
	var up []edge // through trees
	edges := slices.Clone(declared)
	for _, d := range p.order {
		for _, s := range d.Wiring.Sources {
			child := SourceKey{d.Key, s.Name}
			for _, c := range s.Children {
				if p.nodes[c.Node] != nil {
					up = append(up, edge{c.Node, child, all})
				}
			}
			for _, c := range s.Candidates {
				if s.Mesh && p.nodes[c.Node] != nil {
					edges = append(edges, edge{c.Node, child, all})
				}
			}
		}
	}
	if len(up) == 0 {
		return
	}
	edges = append(edges, up...)
	sortEdges(up)
	found := map[Key]bool{}
	for class := range classes {
		g := graphOf(edges, class)
		for _, members := range g.components() {
			for _, e := range up {
				if !members[e.parent] || !members[e.child.Node] || found[e.parent] && found[e.child.Node] {
					continue
				}
				cycle := g.cycleBy(e, members)
				for _, k := range cycle {
					if found[k] {
						continue
					}
					found[k] = true
					d := p.nodes[k]
					d.acyclic.add(v1alpha1.ReasonLoopDetected, "Data would travel in a circle through a RelayTree: %s. Take one of these nodes' upstreams out, or let the tree pass the leaf by.", writeCycle(cycle, k.Namespace))
					d.refused = true
				}
			}
		}
	}
}

// cycleBy returns a shortest cycle by an edge, within members.
func (g graph) cycleBy(e edge, members map[Key]bool) []Key {
	from, to := e.parent, e.child.Node // data travels so; walk up from from, to to
	below := map[Key]Key{}
	queue := []Key{from}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if at == to {
			cycle := []Key{at}
			for at != from {
				at = below[at]
				cycle = append(cycle, at)
			}
			return fromSmallest(cycle)
		}
		for _, k := range g[at] {
			if _, seen := below[k]; !seen && k != from && members[k] {
				below[k] = at
				queue = append(queue, k)
			}
		}
	}
	return nil // members are connected: never
}
