package localrun

import (
	"context"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

// reportTimeout bounds how long the nodes of a tree are asked how far they are.
const reportTimeout = 2 * time.Second

// moving says whether something of a tree is on its way, so that the plan goes on by what
// its nodes say.
func (r *runner) moving() bool {
	for _, t := range r.plan.Trees {
		if t.Moving {
			return true
		}
	}
	return false
}

// withDraining are the nodes of the files, and those of trees that are no longer asked
// for and run until they have drained.
func (r *runner) withDraining(m *topology.Manifests) []v1alpha1.ReplicationNode {
	out := m.AllNodes()
	for k, n := range r.nodes {
		owner := topology.TreeOf(n)
		if owner != "" && slices.ContainsFunc(m.Trees, func(t v1alpha1.RelayTree) bool { return t.Namespace == k.Namespace && t.Name == owner }) &&
			!slices.ContainsFunc(out, func(o v1alpha1.ReplicationNode) bool { return keyOf(&o) == k }) {
			out = append(out, *n)
		}
	}
	return out
}

// reports are what the relays and roots that run say.
func (r *runner) reports(ctx context.Context) map[topology.Key]topology.RelayReport {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	out := map[topology.Key]topology.RelayReport{}
	for k := range r.running {
		if p := r.plan.Nodes[k]; p == nil || p.Tree == (topology.Key{}) || p.Leaf != nil {
			continue
		}
		doc, err := Statusz(ctx, "http://"+r.http(k))
		if err != nil {
			continue // it says nothing: what it has is waited for
		}
		if report, ok := topology.Report(&doc); ok {
			out[k] = report
		}
	}
	return out
}
