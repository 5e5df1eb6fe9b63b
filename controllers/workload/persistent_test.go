package workload_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func named(name string) v1alpha1.LocalReference { return v1alpha1.LocalReference{Name: name} }

func persistent() v1alpha1.ReplicationNode {
	n := root()
	n.Spec.Sources[0].Postgres.Slot = &v1alpha1.PostgresSlot{Name: "held", DeletionPolicy: v1alpha1.DeletionDelete}
	n.Spec.Storage = &v1alpha1.NodeStorage{
		Type: v1alpha1.StoragePersistent, Size: new(resource.MustParse("10Gi")), StorageClassName: new("fast"), ScratchSize: new(resource.MustParse("2Gi")),
		Journal:    &v1alpha1.NodeJournal{MaxBytes: new(resource.MustParse("2Gi")), LimitBytes: new(resource.MustParse("3Gi")), ReaderRetention: &metav1.Duration{Duration: time.Hour}},
		Cache:      &v1alpha1.NodeCache{MaxBytes: new(resource.MustParse("128Mi"))},
		Tombstones: &v1alpha1.NodeTombstones{Retention: &metav1.Duration{Duration: 2 * time.Hour}},
	}
	return n
}

func static(t *testing.T, o *workload.Objects, node string) *nodeconfig.Config {
	t.Helper()
	text := find[corev1.ConfigMap](t, o, "ConfigMap", node+"-static").Data["node.yaml"]
	c, err := nodeconfig.Parse("node.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c
}

// A persistent node is one pod with one claim, kept unless someone asks
// otherwise.
func TestPersistent(t *testing.T) {
	t.Parallel()
	n := persistent()
	o := build(t, n)
	want := nodeconfig.Storage{
		Type: "pebble", Path: "/var/lib/tributary/store", ScratchPath: "/tmp",
		Journal: nodeconfig.Journal{MaxBytes: 2 << 30, LimitBytes: 3 << 30, ReaderRetention: time.Hour},
		Cache:   nodeconfig.Cache{MaxBytes: 128 << 20}, Tombstones: nodeconfig.Tombstones{Retention: 2 * time.Hour},
	}
	if d := cmp.Diff(want, static(t, o, "root").Storage); d != "" {
		t.Error(d)
	}
	sts := find[appsv1.StatefulSet](t, o, "StatefulSet", "root")
	if p := sts.Spec.PersistentVolumeClaimRetentionPolicy; p.WhenDeleted != "Retain" || p.WhenScaled != "Retain" {
		t.Errorf("%+v", p)
	}
	if len(sts.Spec.VolumeClaimTemplates) != 1 {
		t.Fatalf("%d claims", len(sts.Spec.VolumeClaimTemplates))
	}
	claim := sts.Spec.VolumeClaimTemplates[0]
	if claim.Name+"-root-0" != workload.ClaimName("root") || claim.Spec.Resources.Requests.Storage().String() != "10Gi" || *claim.Spec.StorageClassName != "fast" ||
		claim.Labels[workload.LabelInstance] != "root" || claim.Labels[workload.LabelManagedBy] != workload.ManagedBy {
		t.Errorf("%+v", claim)
	}
	pod := sts.Spec.Template.Spec
	if pod.SecurityContext.FSGroup == nil || pod.Containers[0].StartupProbe == nil {
		t.Errorf("%+v", pod)
	}
	at := ""
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.Name == claim.Name {
			at = m.MountPath
		}
	}
	if at != "/var/lib/tributary" {
		t.Errorf("the volume is at %q", at)
	}
	for _, v := range pod.Volumes {
		if v.Name == "scratch" && v.EmptyDir.SizeLimit.String() != "2Gi" {
			t.Errorf("%+v", v)
		}
	}

	n.Spec.Storage.PersistentVolumeClaimRetentionPolicy = v1alpha1.DeletionDelete
	n.Spec.Suspend = true
	sts = find[appsv1.StatefulSet](t, build(t, n), "StatefulSet", "root")
	if p := sts.Spec.PersistentVolumeClaimRetentionPolicy; p.WhenDeleted != "Delete" || p.WhenScaled != "Retain" || *sts.Spec.Replicas != 0 {
		t.Errorf("%+v, %d replicas", p, *sts.Spec.Replicas)
	}
	leaf := edge("leaf", "root")
	leaf.Spec.Storage = &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: new(resource.MustParse("1Gi"))}
	find[appsv1.StatefulSet](t, build(t, leaf, root()), "StatefulSet", "leaf")
}

// Claims of a StatefulSet that is there are left as they are; one without any
// cannot get some.
func TestKeepClaims(t *testing.T) {
	t.Parallel()
	last := func(o *workload.Objects) *unstructured.Unstructured { return o.List[len(o.List)-1] }
	n := persistent()
	live := last(build(t, n)).DeepCopy()
	n.Spec.Storage.Size = new(resource.MustParse("20Gi"))
	desired := last(build(t, n)).DeepCopy()
	if !workload.KeepClaims(desired, live) {
		t.Fatal("a volume that grows needs another StatefulSet")
	}
	sts := &appsv1.StatefulSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(desired.Object, sts); err != nil {
		t.Fatal(err)
	}
	if got := sts.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String(); got != "10Gi" {
		t.Errorf("the claim is for %s", got)
	}
	if workload.KeepClaims(desired.DeepCopy(), last(build(t, root()))) {
		t.Error("a StatefulSet without claims can get some")
	}
	if !workload.KeepClaims(last(build(t, root())), last(build(t, root()))) {
		t.Error("a StatefulSet in memory cannot stay")
	}
}

// The Job that drops slots has the configuration and Secrets of the node, not
// its volume, and is selected by nothing of the node.
func TestDropJob(t *testing.T) {
	t.Parallel()
	n := persistent()
	sts := find[appsv1.StatefulSet](t, build(t, n), "StatefulSet", "root")
	if d := cmp.Diff([]string{"held"}, workload.SlotsToDrop(sts)); d != "" {
		t.Fatal(d)
	}
	u, err := workload.DropJob(&n, sts, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	job := find[batchv1.Job](t, &workload.Objects{List: []*unstructured.Unstructured{u}}, "Job", "root-drop-slots")
	pod := job.Spec.Template.Spec
	if d := cmp.Diff([]string{"drop-slots", "--timeout", "1m0s", "held"}, pod.Containers[0].Args); d != "" {
		t.Error(d)
	}
	if *job.Spec.ActiveDeadlineSeconds != 120 || pod.RestartPolicy != corev1.RestartPolicyNever || *pod.SecurityContext.RunAsNonRoot != true || !*pod.Containers[0].SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("%+v", job.Spec)
	}
	mounts := map[string]bool{}
	for _, m := range pod.Containers[0].VolumeMounts {
		mounts[m.MountPath] = true
	}
	if !mounts["/etc/tributary/static"] || !mounts["/etc/tributary/secrets/login"] || mounts["/var/lib/tributary"] {
		t.Errorf("mounts %v", mounts)
	}
	if job.Spec.Template.Labels[workload.LabelName] == workload.NodeName {
		t.Error("the Service of the node selects the Job's pods")
	}
	n.Spec.Sources[0].Postgres.Slot.DeletionPolicy = v1alpha1.DeletionRetain
	if got := workload.SlotsToDrop(find[appsv1.StatefulSet](t, build(t, n), "StatefulSet", "root")); len(got) != 0 {
		t.Errorf("slots to drop: %v", got)
	}
	n = root()
	n.Spec.Sources[0].Postgres.Slot = &v1alpha1.PostgresSlot{DeletionPolicy: v1alpha1.DeletionDelete}
	if got := workload.SlotsToDrop(find[appsv1.StatefulSet](t, build(t, n), "StatefulSet", "root")); len(got) != 0 {
		t.Errorf("a temporary slot is to be dropped: %v", got)
	}
}

// Filters, sinks, TLS and tokens reach the node's configuration, and the Secrets
// they name its pods.
func TestEverythingOfASpec(t *testing.T) {
	t.Parallel()
	n := edge("edge", "root")
	n.Spec.Storage = &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: new(resource.MustParse("1Gi"))}
	up := n.Spec.Sources[0].Fanout
	up.TLS = &v1alpha1.ClientTLS{CASecretRef: new(named("ca")), CertSecretRef: new(named("me")), ServerName: "root.example"}
	up.TokenSecretRef = new(named("token"))
	up.Tables = []v1alpha1.FanoutTable{{
		TableReference: v1alpha1.TableReference{Schema: "public", Name: "orders"}, Columns: []string{"total"},
		Where: []v1alpha1.RowCondition{{Column: "region", Operator: v1alpha1.FilterIn, Values: []string{"eu", "us"}}},
	}}
	n.Spec.Serve = &v1alpha1.NodeServe{
		TLS: &v1alpha1.ServeTLS{SecretRef: named("me"), ClientCASecretRef: new(named("ca"))}, TokensSecretRef: new(named("readers")),
		Permissions: []v1alpha1.ReadPermission{{Reader: "billing", Tables: []v1alpha1.TableReference{{Schema: "public", Name: "orders"}}}},
		Limits:      &v1alpha1.ServeLimits{MaxReaders: 100, AdmitRate: 20},
	}
	n.Spec.Sinks = []v1alpha1.NodeSink{
		{Name: "copy", Postgres: &v1alpha1.PostgresSink{
			Hosts: []v1alpha1.PostgresHost{{Host: "copy"}}, Database: "copy", CredentialsSecretRef: named("copy"), CreateTables: true,
			TLS: &v1alpha1.PostgresTLS{Mode: v1alpha1.PostgresTLSVerifyFull, CASecretRef: new(named("ca")), CertSecretRef: new(named("me"))},
		}},
		{Name: "push", OnReject: v1alpha1.RejectDeadLetter, DeadLetters: &v1alpha1.SinkDeadLetters{MaxEntries: 7}, HTTP: &v1alpha1.HTTPSink{
			URL: "https://x.test/y", TokenSecretRef: new(named("token")), Gzip: true,
			Timeout: &metav1.Duration{Duration: 5 * time.Second}, MaxBatchBytes: new(resource.MustParse("2Mi")),
			Headers: []v1alpha1.HTTPHeader{{Name: "X-Tenant", Value: "shop"}, {Name: "X-Key", ValueSecretRef: &v1alpha1.SecretKeyReference{Name: "token", Key: "api"}}},
		}},
	}
	o := build(t, n, root())
	c := static(t, o, "edge")
	secret := func(name, key string) string { return "/etc/tributary/secrets/" + name + "/" + key }
	if d := cmp.Diff(&nodeconfig.ClientTLS{CAFile: secret("ca", "ca.crt"), CertFile: secret("me", "tls.crt"), KeyFile: secret("me", "tls.key"), ServerName: "root.example"}, c.Sources[0].Fanout.TLS); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]nodeconfig.FanoutTable{{Schema: "public", Name: "orders", Columns: []string{"total"}, Where: []nodeconfig.Condition{{Column: "region", Operator: "In", Values: []string{"eu", "us"}}}}}, c.Sources[0].Fanout.Tables); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(nodeconfig.Serve{
		TLS:       &nodeconfig.ServeTLS{CertFile: secret("me", "tls.crt"), KeyFile: secret("me", "tls.key"), ClientCAFile: secret("ca", "ca.crt")},
		TokensDir: "/etc/tributary/secrets/readers", Permissions: []nodeconfig.Permission{{Reader: "billing", Tables: []nodeconfig.Table{{Schema: "public", Name: "orders"}}}},
	}, c.Serve); d != "" {
		t.Error(d)
	}
	if len(c.Sinks) != 2 || c.Sinks[0].Postgres.SSLKey != secret("me", "tls.key") || !c.Sinks[0].Postgres.CreateTables || c.Sinks[0].OnReject != "Hold" ||
		c.Sinks[1].OnReject != "DeadLetter" || c.Sinks[1].DeadLetters.MaxEntries != 7 {
		t.Errorf("%+v", c.Sinks)
	}
	if d := cmp.Diff(&nodeconfig.HTTPSink{
		URL: "https://x.test/y", TokenFile: secret("token", "token"), Gzip: true, Timeout: 5 * time.Second, MaxBatchBytes: 2 << 20,
		Headers: []nodeconfig.HTTPHeader{{Name: "X-Tenant", Value: "shop"}, {Name: "X-Key", ValueFile: secret("token", "api")}},
	}, c.Sinks[1].HTTP); d != "" {
		t.Error(d)
	}
	if l := c.Limits; l.MaxReaders != 100 || l.MaxPeerReaders != 100 || l.AdmitRate != 20 {
		t.Errorf("%+v", l)
	}
	var keys []string
	for _, v := range find[appsv1.StatefulSet](t, o, "StatefulSet", "edge").Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			used := []string{}
			for _, i := range v.Secret.Items {
				used = append(used, i.Key)
			}
			keys = append(keys, v.Secret.SecretName+": "+strings.Join(used, " "))
		}
	}
	if d := cmp.Diff([]string{"copy: username password", "ca: ca.crt", "me: tls.crt tls.key", "token: token api", "readers: "}, keys); d != "" {
		t.Error(d)
	}
	if got := topology.SecretsNamed(&n); len(got) != 5 {
		t.Errorf("%v", got)
	}
}
