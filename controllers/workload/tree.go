package workload

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// joinTree makes a node a relay of a tree, if it is of a branch, and else a root.
func joinTree(c *nodeconfig.Config, n *v1alpha1.ReplicationNode, s *v1alpha1.RelayTreeSpec, branch string, l Layout) *nodeconfig.Children {
	c.Conflicts = treeConflicts(s, n.Namespace)
	var delivered []nodeconfig.RelayTable
	for _, t := range s.Tables {
		delivered = append(delivered, nodeconfig.RelayTable{Schema: t.Schema, Name: t.Name, Delivery: string(t.Delivery), Columns: t.Columns})
	}
	if branch == "" {
		c.Root = &nodeconfig.Root{Tables: delivered, OnReset: string(s.Leaves.OnReset)}
	} else {
		c.Relay = &nodeconfig.Relay{Tables: delivered, MaxPending: size(s.MaxPending), OnFull: string(s.Leaves.OnFull), OnReset: string(s.Leaves.OnReset)}
		if s.Window != nil {
			c.Relay.Window = s.Window.Duration
		}
	}
	return &nodeconfig.Children{TLS: peerTLS(n, s.TLS, l), TokenFile: l.file(s.TokenSecretRef, topology.SecretToken)}
}

// treeConflicts are the policies of a tree: of a counter each leaf has rows of its own.
func treeConflicts(s *v1alpha1.RelayTreeSpec, namespace string) []nodeconfig.Conflict {
	out := conflicts(s.Conflicts, namespace)
	for _, t := range s.Tables {
		table := nodeconfig.Table{Schema: t.Schema, Name: t.Name}
		if t.Delivery == v1alpha1.DeliveryCounter && !slices.ContainsFunc(out, func(c nodeconfig.Conflict) bool { return c.Table == table }) {
			out = append(out, nodeconfig.Conflict{Table: table, Policy: nodeconfig.ConflictNamespaceByOrigin})
		}
	}
	return out
}

// leaveTo makes a node a leaf of a tree. One that is in a mesh too has the conflict
// policies of the mesh. Counters that are written to the node itself count from nothing
// in each of its epochs.
func leaveTo(c *nodeconfig.Config, n *v1alpha1.ReplicationNode, s *v1alpha1.RelayTreeSpec) {
	c.Parents = &nodeconfig.Parents{OnFull: string(s.Leaves.OnFull), MaxLog: size(s.Leaves.MaxLog)}
	if c.Conflicts != nil {
		return
	}
	for _, p := range treeConflicts(s, n.Namespace) {
		taken, written := takes(c.Sources, p.Table)
		if !taken {
			continue
		}
		p.PerEpoch = written && slices.ContainsFunc(s.Tables, func(t v1alpha1.TreeTable) bool {
			return t.Delivery == v1alpha1.DeliveryCounter && p.Table == nodeconfig.Table{Schema: t.Schema, Name: t.Name}
		})
		c.Conflicts = append(c.Conflicts, p)
	}
}

// takes reports whether a leaf's sources have a table, and whether it is written to the
// node itself.
func takes(sources []nodeconfig.Source, table nodeconfig.Table) (taken, written bool) {
	for i := range sources {
		s := &sources[i]
		if s.Postgres != nil {
			taken = taken || slices.Contains(s.Postgres.Tables, table)
		}
		if s.Ingest != nil {
			written = written || slices.ContainsFunc(s.Ingest.Tables, func(t nodeconfig.IngestTable) bool { return table == nodeconfig.Table{Schema: t.Schema, Name: t.Name} })
		}
	}
	return taken || written, written
}

// TreeNode is a ReplicationNode that a tree owns.
func TreeNode(t *v1alpha1.RelayTree, n *v1alpha1.ReplicationNode) (*unstructured.Unstructured, error) {
	owner := metaac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("RelayTree").
		WithName(t.Name).WithUID(t.UID).WithController(true).WithBlockOwnerDeletion(true)
	return ownedNode(owner, n.Labels, n)
}

// ownedNode is a ReplicationNode that another resource owns.
func ownedNode(owner *metaac.OwnerReferenceApplyConfiguration, labels map[string]string, n *v1alpha1.ReplicationNode) (*unstructured.Unstructured, error) {
	labels = maps.Clone(labels)
	labels[LabelManagedBy] = ManagedBy
	return object(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ReplicationNode",
		"metadata": map[string]any{"namespace": n.Namespace, "name": n.Name, "labels": labels, "ownerReferences": []any{owner}},
		"spec":     n.Spec,
	})
}
