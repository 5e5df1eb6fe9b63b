package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/internal/localrun"
	"github.com/tributary-dev/tributary/internal/tree"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func treeCommand() *cobra.Command {
	var kubeconfig, kubeContext, namespace, run string
	var all bool
	c := &cobra.Command{
		Use:   "tree",
		Short: "Draw the live topology: node, parent, state, lag",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if run != "" {
				nodes, err := localrun.Tree(c.Context(), run)
				if err != nil {
					return err
				}
				return tree.Draw(c.OutOrStdout(), nodes)
			}
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = kubeconfig
			cfg := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext})
			rest, err := cfg.ClientConfig()
			if err != nil {
				return fmt.Errorf("no cluster to ask: %w; name one by --kubeconfig or --context, or a local run by --run", err)
			}
			if all {
				namespace = ""
			} else if namespace == "" {
				if namespace, _, err = cfg.Namespace(); err != nil {
					return err
				}
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
	f := c.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "path of the kubeconfig file (default: $KUBECONFIG or ~/.kube/config)")
	f.StringVar(&kubeContext, "context", "", "context of the kubeconfig file")
	f.StringVarP(&namespace, "namespace", "n", "", "namespace (default: that of the context)")
	f.BoolVarP(&all, "all-namespaces", "A", false, "every namespace")
	f.StringVar(&run, "run", "", "draw a local run instead: the directory that tributary run printed")
	return c
}

// clusterTree reads the topology from the status of the nodes.
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
	return nodes, nil
}

func fromStatus(rn *v1alpha1.ReplicationNode) tree.Node {
	n := tree.Node{ID: rn.Namespace + "/" + rn.Name, Lag: rn.Status.Lag}
	if ready := meta.FindStatusCondition(rn.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		n.Ready = ready.Status == metav1.ConditionTrue
		n.State, n.Detail = ready.Reason, ready.Message
	}
	for _, s := range rn.Status.Sources {
		src := tree.Source{Name: s.Name, Kind: s.Kind}
		if s.Parent != nil {
			src.Parent = s.Parent.ID
		}
		if s.Kind == nodeconfig.KindPostgres && src.Parent == "" {
			src.Parent = "slot " + s.Slot
		}
		for _, cand := range s.Candidates {
			if cand.ID != src.Parent {
				src.Standby = append(src.Standby, cand.ID)
			}
		}
		n.Sources = append(n.Sources, src)
	}
	return n
}
