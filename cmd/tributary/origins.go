package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/internal/localrun"
	"github.com/tributary-dev/tributary/internal/origins"
)

const (
	askTimeout = 5 * time.Second // for one node's status
	maxAsked   = 16              // nodes at once
)

func originsCommand() *cobra.Command {
	var from place
	var all bool
	var output string
	c := &cobra.Command{
		Use:   "origins [NODE...]",
		Short: "List how far each node is with the log of each origin",
		Long: `origins lists, for each origin and node: the head of the log as far as the node
knows, how far it has been received, applied and stored durably there, the lag (0 is
caught up), the state, the peer that it is read from, and how often since the node
started batches came twice, holes were asked for again, a new epoch began, and the
peer had no more credit.

  Current  all that is known of has been applied
  Behind   and it is moving
  Stalled  behind, and nothing has been applied for a while
  Held     an entry cannot be applied; it is said below why
  Unknown  nothing is known of the origin's head

Nodes are asked through the API server, which takes the right to list pods and to
get pods/proxy, or directly in a local run (--run).`,
		Example: `  tributary origins
  tributary origins east west -o json
  tributary origins --run /tmp/tributary-run`,
		RunE: func(c *cobra.Command, names []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("-o %s is not known: leave it out for a table, or use -o json", output)
			}
			if all {
				from.namespace = "*"
			}
			asked, err := from.instances(c.Context(), names)
			if err != nil {
				return err
			}
			r := origins.Collect(askAll(c.Context(), asked))
			if output == "json" {
				return r.JSON(c.OutOrStdout())
			}
			return r.Table(c.OutOrStdout())
		},
	}
	from.flags(c.Flags())
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "every namespace")
	c.Flags().StringVarP(&output, "output", "o", "", "json, for programs")
	return c
}

// instance is a pod or process of a node.
type instance struct {
	id string // of the node
	webNode
}

// instances lists the pods of nodes, or the processes of a run; of all nodes when
// there are no names.
func (p *place) instances(ctx context.Context, names []string) (out []instance, err error) {
	if p.run != "" {
		st, err := localrun.ReadState(p.run)
		if err != nil {
			return nil, err
		}
		for _, n := range st.Nodes {
			out = append(out, instance{n.ID, webNode{n.ID, n.HTTP, http.DefaultClient}})
		}
		return named(out, names)
	}
	everywhere := p.namespace == "*"
	if everywhere {
		p.namespace = ""
	}
	a, err := p.api()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	cl, err := client.New(a.rest, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	namespace := a.namespace
	if everywhere {
		namespace = ""
	}
	var pods corev1.PodList
	if err := cl.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{workload.LabelName: workload.NodeName}); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		out = append(out, instance{pod.Namespace + "/" + pod.Labels[workload.LabelInstance], a.pod(pod.Namespace, pod.Name)})
	}
	return named(out, names)
}

// named keeps the instances of nodes by name; all when there are no names.
func named(all []instance, names []string) (out []instance, err error) {
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		found := slices.DeleteFunc(slices.Clone(all), func(i instance) bool {
			return i.id != name && !strings.HasSuffix(i.id, "/"+name)
		})
		if len(found) == 0 {
			return nil, fmt.Errorf("no node %s runs there: tributary tree draws those that do", name)
		}
		out = append(out, found...)
	}
	return out, nil
}

// askAll asks instances for their status.
func askAll(ctx context.Context, all []instance) []origins.Answer {
	out := make([]origins.Answer, len(all))
	var g errgroup.Group
	g.SetLimit(maxAsked)
	for i := range all {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			out[i] = origins.Answer{Node: all[i].id, Instance: all[i].name}
			out[i].Err = all[i].call(ctx, http.MethodGet, "/statusz", &out[i].Status)
			return nil
		})
	}
	_ = g.Wait() // what goes wrong stands in the answers
	return out
}
