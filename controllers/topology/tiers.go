package topology

// Ahead are the nodes that a node's pods must not be replaced together with.
type Ahead struct {
	// Readers have it for their active parent, and are rolled out before it.
	Readers []Key
	// Peers stand in for it: one of them is rolled out at a time. They are those that a
	// reader has beside it, the other nodes of its branch in a tree, and the other roots.
	Peers []Key
}

// Ahead returns whom a node's rollout waits for, by name.
func (p *Plan) Ahead(k Key) Ahead {
	var readers []Key
	if n := p.Nodes[k]; n != nil {
		readers = n.Children
	}
	peers := map[Key]bool{}
	for _, n := range p.Nodes {
		for _, s := range n.Wiring.Sources {
			if !s.hasParents() {
				continue
			}
			var all []Key
			for _, c := range s.Candidates {
				if c.Eligible && c.Node != (Key{}) {
					all = append(all, c.Node)
				}
			}
			addPeers(peers, all, k)
		}
	}
	for _, t := range p.Trees {
		var roots []Key
		for _, b := range t.Branches {
			var all []Key
			for _, n := range b.Nodes {
				all = append(all, n.Node)
			}
			if b.Level == rootLevel {
				roots = append(roots, all...)
				continue
			}
			addPeers(peers, all, k)
		}
		addPeers(peers, roots, k)
	}
	for _, reader := range readers {
		delete(peers, reader)
	}
	return Ahead{readers, sortedKeys(peers)}
}

// addPeers adds those of all that stand beside k, if k is one of them.
func addPeers(to map[Key]bool, all []Key, k Key) {
	for _, one := range all {
		if one != k {
			continue
		}
		for _, other := range all {
			if other != k {
				to[other] = true
			}
		}
		return
	}
}
