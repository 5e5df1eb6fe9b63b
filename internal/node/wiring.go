package node

import (
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func (n *node) rewire(w *nodeconfig.Wiring) {
	if have := n.wiringEpoch.Load(); w.Epoch < have {
		n.log.Info("older wiring ignored", "epoch", w.Epoch, "have", have)
		return
	}
	n.wiringEpoch.Store(w.Epoch)
	for _, u := range n.upstream {
		if ws := w.Source(u.name); ws != nil {
			u.rewire(ws)
		}
	}
	if c := n.children; c != nil {
		if ws := w.Source(c.name); ws != nil {
			n.rewireChildren(ws)
		}
	}
	if m := n.mesh; m != nil {
		if ws := w.Source(m.name); ws != nil {
			m.rewire(ws)
		}
	}
	if w.Parents != nil && n.cfg.Parents != nil {
		n.leaf.rewire(w.Parents)
	}
	n.wired.Store(true)
	n.log.Info("wiring in place", "epoch", w.Epoch)
}

// unready says why the node is not ready; empty if it is. A node that has everything from
// before its start is not until it knows whom to read from: else nobody could tell how
// old its rows are.
func (n *node) unready(st *engine.Status) string {
	switch {
	case !st.Ready:
		return "not every source has been baselined"
	case !n.wired.Load() && slices.ContainsFunc(n.cfg.Sources, func(s nodeconfig.Source) bool { return s.Wired() }):
		return "the wiring has not been read"
	}
	return ""
}

// engineStatus is the engine's status, and whether the node is ready as a whole.
func (n *node) engineStatus() engine.Status {
	st := n.engine.Status()
	st.Ready = n.unready(&st) == ""
	return st
}
