package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/internal/localrun"
	"github.com/tributary-dev/tributary/internal/tree"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func treeCommand() *cobra.Command {
	var from place
	var all bool
	c := &cobra.Command{
		Use:   "tree",
		Short: "Draw the live topology: node, parent, mesh or relay tree, state, lag",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if from.run != "" {
				nodes, err := localrun.Tree(c.Context(), from.run)
				if err != nil {
					return err
				}
				return tree.Draw(c.OutOrStdout(), nodes)
			}
			rest, namespace, err := from.cluster()
			if err != nil {
				return err
			}
			if all {
				namespace = ""
			}
			scheme := runtime.NewScheme()
			utilruntime.Must(v1alpha1.AddToScheme(scheme))
			cl, err := client.New(rest, client.Options{Scheme: scheme})
			if err != nil {
				return err
			}
			nodes, err := clusterTree(c.Context(), cl, namespace)
			if err != nil {
				return err
			}
			return tree.Draw(c.OutOrStdout(), nodes)
		},
	}
	from.flags(c.Flags())
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "every namespace")
	return c
}

// clusterTree reads the topology from the status of nodes, meshes and relay trees.
func clusterTree(ctx context.Context, cl client.Client, namespace string) ([]tree.Node, error) {
	var list v1alpha1.ReplicationNodeList
	if err := cl.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, fmt.Errorf("the cluster does not know ReplicationNodes: install Tributary first (%w)", err)
		}
		return nil, err
	}
	nodes := make([]tree.Node, 0, len(list.Items))
	for i := range list.Items {
		nodes = append(nodes, fromStatus(&list.Items[i]))
	}
	var meshes v1alpha1.ReplicationMeshList
	if err := cl.List(ctx, &meshes, client.InNamespace(namespace)); err != nil && !meta.IsNoMatchError(err) {
		return nil, err
	}
	connected := map[string]string{} // sessions of members, by node
	for i := range meshes.Items {
		m := &meshes.Items[i]
		n := tree.Node{ID: tree.MeshID(m.Namespace, m.Name), Lag: m.Status.Lag}
		readiness(&n, m.Status.Conditions)
		nodes = append(nodes, n)
		for _, member := range m.Status.Members {
			connected[m.Namespace+"/"+member.Name] = fmt.Sprintf("%d of %d peers", member.Connected, member.Peers)
		}
	}
	var trees v1alpha1.RelayTreeList
	if err := cl.List(ctx, &trees, client.InNamespace(namespace)); err != nil && !meta.IsNoMatchError(err) {
		return nil, err
	}
	for i := range trees.Items {
		t := &trees.Items[i]
		n := tree.Node{ID: tree.RelayTreeID(t.Namespace, t.Name), Lag: t.Status.RootLag}
		readiness(&n, t.Status.Conditions)
		nodes = append(nodes, n)
		all := t.Status.Roots
		for _, b := range t.Status.Branches {
			all = append(all, b.Nodes...)
		}
		for _, r := range all {
			connected[t.Namespace+"/"+r.Node] = fmt.Sprintf("%d of %d children", r.Attached, r.Children)
		}
	}
	for i := range nodes {
		for j := range nodes[i].Sources {
			if s := &nodes[i].Sources[j]; s.Kind == nodeconfig.KindMesh || s.Kind == nodeconfig.KindChildren {
				s.Parent = connected[nodes[i].ID]
			}
		}
	}
	return tree.WithGroups(nodes), nil
}

func readiness(n *tree.Node, conditions []metav1.Condition) {
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil {
		n.Ready = ready.Status == metav1.ConditionTrue
		n.State, n.Detail = ready.Reason, ready.Message
	}
}

func fromStatus(rn *v1alpha1.ReplicationNode) tree.Node {
	n := tree.Node{ID: rn.Namespace + "/" + rn.Name, Lag: rn.Status.Lag}
	readiness(&n, rn.Status.Conditions)
	if rn.Status.Tree != "" {
		n.Group = tree.BranchID(rn.Namespace, rn.Status.Tree, rn.Status.Branch)
	}
	if rn.Status.Mesh != "" {
		n.Group = tree.MeshID(rn.Namespace, rn.Status.Mesh)
	}
	for _, s := range rn.Status.Sources {
		src := tree.Source{Name: s.Name, Kind: s.Kind}
		if s.Parent != nil {
			src.Parent = s.Parent.ID
		}
		if s.Kind == nodeconfig.KindPostgres && src.Parent == "" {
			src.Parent = "slot " + s.Slot
		}
		if s.Kind == nodeconfig.KindIngest {
			src.Parent = "writers"
		}
		for _, cand := range s.Candidates {
			if cand.ID != src.Parent && s.Kind == nodeconfig.KindFanout {
				src.Standby = append(src.Standby, cand.ID)
			}
		}
		n.Sources = append(n.Sources, src)
	}
	return n
}
