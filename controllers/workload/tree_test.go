package workload_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Relays, roots and leaves of a tree have what the tree says of them, and the nodes of a
// branch keep away from each other.
func TestTreeNodes(t *testing.T) {
	t.Parallel()
	a := leaf("a")
	a.Labels = map[string]string{"sales": "till"}
	orders := v1alpha1.TableReference{Schema: "public", Name: "orders"}
	tree := v1alpha1.RelayTree{ObjectMeta: meta("sales"), Spec: v1alpha1.RelayTreeSpec{
		Branches: v1alpha1.TreeBranches{Count: new(int32(1)), TreeNodes: v1alpha1.TreeNodes{
			Serve: &v1alpha1.NodeServe{TLS: &v1alpha1.ServeTLS{SecretRef: named("branch-tls")}},
		}},
		Leaves: v1alpha1.TreeLeaves{
			Selector: metav1.LabelSelector{MatchLabels: a.Labels}, MaxLog: new(resource.MustParse("2Gi")), OnFull: v1alpha1.FullRebaseline, OnReset: v1alpha1.RowsKeep,
		},
		Tables:             []v1alpha1.TreeTable{{TableReference: orders, Delivery: v1alpha1.DeliveryCounter, Columns: []string{"total"}}},
		Conflicts:          []v1alpha1.TableConflicts{{TableReference: orders, Policy: v1alpha1.ConflictNamespaceByOrigin}},
		Window:             &metav1.Duration{Duration: time.Second},
		TombstoneRetention: &metav1.Duration{Duration: time.Hour},
		TLS:                &v1alpha1.ClientTLS{CASecretRef: &v1alpha1.LocalReference{Name: "ca"}},
	}}
	nodes := append(topology.TreeNodes(&tree), a)
	plan := topology.Compute(topology.Inputs{Nodes: nodes, Trees: []v1alpha1.RelayTree{tree}})
	built := map[string]*nodeconfig.Config{}
	for i := range nodes {
		n := &nodes[i]
		o, err := workload.Build(n, plan.Nodes[topology.Key{Namespace: n.Namespace, Name: n.Name}], options)
		if err != nil {
			t.Fatal(err)
		}
		built[n.Name] = static(t, o, n.Name)
	}
	relay := built["sales-b0-1"]
	if d := cmp.Diff(&nodeconfig.Relay{
		Window: time.Second, MaxPending: nodeconfig.DefaultRelayMaxPending, MaxLog: nodeconfig.DefaultMaxLog, OnFull: nodeconfig.OnFullRebaseline, OnReset: nodeconfig.RowsKeep,
		Tables: []nodeconfig.RelayTable{{Schema: "public", Name: "orders", Delivery: nodeconfig.DeliverCounter, Columns: []string{"total"}}},
	}, relay.Relay); d != "" {
		t.Error(d)
	}
	if c := relay.Sources[0].Children; c == nil || c.TLS == nil || c.TLS.CertFile != "/etc/tributary/secrets/branch-tls/tls.crt" || relay.Storage.Tombstones.Retention != time.Hour || len(relay.Conflicts) != 1 {
		t.Errorf("%+v", relay)
	}
	if root := built["sales-root-0"]; root.Relay != nil || root.Root == nil || len(root.Root.Tables) != 1 || root.Root.Tables[0].Columns[0] != "total" || root.Sources[0].Children == nil || root.Sources[0].Children.TLS.CertFile != "" || len(root.Conflicts) != 1 {
		t.Errorf("%+v", root)
	}
	if l := built["a"]; l.Relay != nil || l.Parents == nil || l.Parents.OnFull != nodeconfig.OnFullRebaseline || l.Parents.MaxLog != 2<<30 || len(l.Conflicts) != 1 || !l.Conflicts[0].PerEpoch || len(l.Sources) != 1 {
		t.Errorf("%+v", l)
	}

	u, err := workload.TreeNode(&tree, &nodes[1])
	if err != nil {
		t.Fatal(err)
	}
	if o := metav1.GetControllerOf(u); o == nil || o.Kind != "RelayTree" || o.Name != "sales" || u.GetLabels()[topology.LabelBranch] != "b0" || u.GetLabels()[workload.LabelManagedBy] != workload.ManagedBy {
		t.Errorf("%v", u.Object)
	}
	away := nodes[1].Spec.PodTemplate.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(away) != 2 || away[0].PodAffinityTerm.LabelSelector.MatchLabels[topology.LabelBranch] != "b0" || nodes[1].Spec.PodTemplate.Labels[topology.LabelBranch] != "b0" {
		t.Errorf("%+v", away)
	}
}
