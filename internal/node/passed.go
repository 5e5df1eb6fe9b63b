package node

import (
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// passed says how much of what a relay has read of its children those above it have; nil
// for a node that is none.
func (n *node) passed() *nodeconfig.PassedStatus {
	if n.relay == nil || n.children == nil {
		return nil
	}
	out := &nodeconfig.PassedStatus{Nothing: true, To: []string{}, Children: []nodeconfig.PassedChild{}}
	var ids []string
	retired := map[string]bool{}
	n.children.mu.Lock()
	for id, ch := range n.children.wired {
		ids = append(ids, id)
		retired[id] = ch.State == nodeconfig.ChildRetired
	}
	n.children.mu.Unlock()
	slices.Sort(ids)
	children := map[string][]string{}
	v := n.store.View()
	defer v.Close()
	for k, at := range v.Cursors() {
		if engine.MintedBy(k.Log.Origin, n.cfg.Node.ID) {
			continue
		}
		to := nodesOf(n.relay.Passed(k.Log, at.Position))
		if out.Nothing {
			out.Nothing, out.To = false, to
		}
		out.To = both(out.To, to)
		for _, id := range ids {
			if !engine.MintedBy(k.Log.Origin, id) {
				continue
			}
			if retired[id] && !n.engine.Retired(v, k.Log) {
				to = nil // its rows are still there
			}
			if had, ok := children[id]; ok { // of an epoch before, or in another scope
				to = both(had, to)
			}
			children[id] = to
		}
	}
	for _, id := range ids {
		if to, ok := children[id]; ok {
			out.Children = append(out.Children, nodeconfig.PassedChild{ID: id, To: to})
		}
	}
	return out
}

// nodesOf are the nodes of holders, each once.
func nodesOf(holders []string) []string {
	out := make([]string, 0, len(holders))
	for _, h := range holders {
		out = append(out, relay.NodeOf(h))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// both are those that are in either list.
func both(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(id string) bool { return !slices.Contains(b, id) })
}
