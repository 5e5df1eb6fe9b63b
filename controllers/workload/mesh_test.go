package workload_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func leaf(name string) v1alpha1.ReplicationNode {
	orders := v1alpha1.TableReference{Schema: "public", Name: "orders"}
	return v1alpha1.ReplicationNode{ObjectMeta: meta(name), Spec: v1alpha1.ReplicationNodeSpec{
		Storage: &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: new(resource.MustParse("10Gi"))},
		Sources: []v1alpha1.NodeSource{{Name: "local", Ingest: &v1alpha1.IngestSource{
			Tables: []v1alpha1.IngestTable{{TableReference: orders, Columns: []v1alpha1.IngestColumn{
				{Name: "id", Type: "bigint", Key: true}, {Name: "total", Type: "numeric(12,2)"},
			}}},
			Idempotency: &v1alpha1.IngestIdempotency{MaxKeys: 7, Retention: &metav1.Duration{Duration: time.Hour}},
			Pending:     &v1alpha1.IngestPending{MaxBatches: 8, MaxBytes: new(resource.MustParse("16Mi"))},
			Timeout:     &metav1.Duration{Duration: time.Second},
		}}},
		Serve: &v1alpha1.NodeServe{
			TLS:             &v1alpha1.ServeTLS{SecretRef: named(name + "-tls"), ClientCASecretRef: &v1alpha1.LocalReference{Name: "ca"}},
			TokensSecretRef: &v1alpha1.LocalReference{Name: "tokens"},
			Permissions:     []v1alpha1.ReadPermission{{Reader: "app", Writes: []v1alpha1.TableReference{orders}}, {Reader: "peers", Nodes: []string{"shop/b"}}},
		},
	}}
}

// A member of a mesh has the mesh for a source beside its own, and its peers in the
// wiring; it shows its peers the certificate that it serves with.
func TestMeshMember(t *testing.T) {
	t.Parallel()
	a, b, c := leaf("a"), leaf("b"), leaf("c")
	m := v1alpha1.ReplicationMesh{ObjectMeta: meta("m"), Spec: v1alpha1.ReplicationMeshSpec{
		Members: v1alpha1.MeshMembers{Nodes: []v1alpha1.MeshMember{{Name: "c"}, {Name: "a"}, {Name: "b"}}},
		Tables:  []v1alpha1.FanoutTable{{TableReference: v1alpha1.TableReference{Schema: "public", Name: "orders"}, Columns: []string{"total"}}},
		Conflicts: []v1alpha1.TableConflicts{{
			TableReference: v1alpha1.TableReference{Schema: "public", Name: "orders"}, Policy: v1alpha1.ConflictOriginOwnsKey, OwnerColumn: "id",
			Owners: []v1alpha1.RowOwner{{Node: "a", Prefix: "1"}, {Node: "b"}},
		}},
		TLS: &v1alpha1.ClientTLS{CASecretRef: &v1alpha1.LocalReference{Name: "ca"}},
	}}
	p := topology.Compute(topology.Inputs{Nodes: []v1alpha1.ReplicationNode{a, b, c}, Meshes: []v1alpha1.ReplicationMesh{m}}).Nodes[topology.Key{Namespace: a.Namespace, Name: "a"}]
	o, err := workload.Build(&a, p, options)
	if err != nil {
		t.Fatal(err)
	}
	cfg := static(t, o, "a")
	if len(cfg.Sources) != 2 {
		t.Fatalf("%d sources", len(cfg.Sources))
	}
	const secrets = "/etc/tributary/secrets/"
	want := nodeconfig.Source{Name: "mesh", Mesh: &nodeconfig.Mesh{
		Tables:      []nodeconfig.FanoutTable{{Schema: "public", Name: "orders", Columns: []string{"total"}}},
		TLS:         &nodeconfig.ClientTLS{CAFile: secrets + "ca/ca.crt", CertFile: secrets + "a-tls/tls.crt", KeyFile: secrets + "a-tls/tls.key"},
		PauseBuffer: nodeconfig.PauseBuffer{MaxBytes: nodeconfig.DefaultPauseBufferBytes},
	}}
	if d := cmp.Diff(want, cfg.Sources[1]); d != "" {
		t.Error(d)
	}
	orders := nodeconfig.Table{Schema: "public", Name: "orders"}
	want = nodeconfig.Source{Name: "local", Ingest: &nodeconfig.Ingest{
		Tables: []nodeconfig.IngestTable{{Schema: "public", Name: "orders", Columns: []nodeconfig.IngestColumn{
			{Name: "id", Type: "bigint", Key: true}, {Name: "total", Type: "numeric(12,2)"},
		}}},
		Idempotency: nodeconfig.Idempotency{MaxKeys: 7, Retention: time.Hour}, Pending: nodeconfig.Pending{MaxBatches: 8, MaxBytes: 16 << 20}, Timeout: time.Second,
	}}
	if d := cmp.Diff(want, cfg.Sources[0]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]nodeconfig.Permission{{Reader: "app", Writes: []nodeconfig.Table{orders}}, {Reader: "peers", Nodes: []string{"shop/b"}}}, cfg.Serve.Permissions); d != "" {
		t.Error(d)
	}
	policies := []nodeconfig.Conflict{{
		Table: orders, Policy: nodeconfig.ConflictOriginOwnsKey, OwnerColumn: "id",
		Owners: []nodeconfig.Owner{{Prefix: "1", Node: a.Namespace + "/a"}, {Node: a.Namespace + "/b"}},
	}}
	if d := cmp.Diff(policies, cfg.Conflicts); d != "" {
		t.Error(d)
	}
	w, err := workload.ReadWiring(find[corev1.ConfigMap](t, o, "ConfigMap", "a-wiring"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.CheckWiring("wiring.yaml", w); err != nil {
		t.Error(err)
	}
	ns := a.Namespace
	peers := []nodeconfig.Candidate{
		{ID: ns + "/c", Address: "dns:///c." + ns + ".svc:7400", Eligible: true}, {ID: ns + "/b", Address: "dns:///b." + ns + ".svc:7400", Eligible: true},
	}
	if d := cmp.Diff(peers, w.Sources[0].Candidates); d != "" {
		t.Error(d)
	}
	find[appsv1.StatefulSet](t, o, "StatefulSet", "a")
	ports := map[string]int32{}
	for _, p := range find[corev1.Service](t, o, "Service", "a").Spec.Ports {
		ports[p.Name] = p.Port
	}
	if ports["http"] != nodeconfig.DefaultHTTPPort {
		t.Errorf("the write API is not reached by the Service: %v", ports)
	}
	alone := leaf("alone")
	alone.Spec.Cursors = v1alpha1.CursorsShared
	if got := static(t, build(t, alone), "alone").Cursors; got != nodeconfig.CursorsShared {
		t.Errorf("cursors are %s", got)
	}
}
