package workload_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func config(t *testing.T, o *workload.Objects, name string) *nodeconfig.Config {
	t.Helper()
	c, err := nodeconfig.Parse("node.yaml", []byte(find[corev1.ConfigMap](t, o, "ConfigMap", name+"-static").Data["node.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Everything that may be said of an archive arrives in the node's file.
func TestArchives(t *testing.T) {
	t.Parallel()
	n := root()
	n.Spec.Storage = &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: new(resource.MustParse("1Gi"))}
	n.Spec.PodTemplate = &v1alpha1.NodePodTemplate{ServiceAccountAnnotations: map[string]string{"eks.amazonaws.com/role-arn": "arn"}}
	ref := func(name string) v1alpha1.LocalReference { return v1alpha1.LocalReference{Name: name} }
	table := v1alpha1.TableReference{Schema: "public", Name: "orders"}
	n.Spec.Archives = []v1alpha1.NodeArchive{
		{
			Name: "cold", Tables: []v1alpha1.TableReference{table},
			ArchiveLocation: v1alpha1.ArchiveLocation{KeyPrefix: "prod/orders/", Formats: []v1alpha1.ArchiveFormat{v1alpha1.FormatProtobuf, v1alpha1.FormatJSONL}, Store: v1alpha1.ArchiveStore{S3: &v1alpha1.S3Store{
				Bucket: "b", Prefix: "p", Region: "r", Endpoint: "https://s3.test", PathStyle: new(false), CASecretRef: new(ref("ca")), Encryption: "aws:kms", KMSKey: "k",
				Credentials: &v1alpha1.S3Credentials{
					Profile: &v1alpha1.S3Profile{Name: "archiver", SecretRef: ref("aws")}, RoleARN: "arn:role", RoleSessionName: "s", WebIdentity: &v1alpha1.WebIdentity{}, STSEndpoint: "https://sts.test",
				},
			}}},
			Write: &v1alpha1.ArchiveWrite{
				Interval: &metav1.Duration{Duration: 5 * time.Second}, MaxDiffBytes: new(resource.MustParse("1Mi")), History: v1alpha1.HistoryFull, Writer: "w", TakeOver: true, CompressionLevel: 9,
				Rebase:    &v1alpha1.ArchiveRebase{DiffBytes: new(resource.MustParse("1Gi")), FractionPercent: 50, ChurnPercent: 150, MaxDiffs: 7, MaxAge: &metav1.Duration{Duration: time.Hour}, MinInterval: &metav1.Duration{Duration: time.Minute}},
				Retention: &v1alpha1.ArchiveRetention{Generations: 3, Age: &metav1.Duration{Duration: 24 * time.Hour}, Grace: &metav1.Duration{Duration: 2 * time.Hour}},
			},
		},
		{Name: "disk", ArchiveLocation: v1alpha1.ArchiveLocation{Group: true, Store: v1alpha1.ArchiveStore{Local: &v1alpha1.LocalStore{Claim: new(ref("archives")), Path: "a/b"}}}},
	}
	o := build(t, n)
	c := config(t, o, "root")
	var token string
	for _, v := range find[appsv1.StatefulSet](t, o, "StatefulSet", "root").Spec.Template.Spec.Volumes {
		if v.Projected != nil {
			p := v.Projected.Sources[0].ServiceAccountToken
			if p.Audience != workload.DefaultAudience || len(v.Projected.Sources) != 1 {
				t.Errorf("%+v", v.Projected)
			}
			for _, m := range find[appsv1.StatefulSet](t, o, "StatefulSet", "root").Spec.Template.Spec.Containers[0].VolumeMounts {
				if m.Name == v.Name {
					token = m.MountPath + "/" + p.Path
				}
			}
		}
	}
	no := false
	want := []nodeconfig.Archive{
		{
			Name: "cold", Tables: []nodeconfig.Table{{Schema: "public", Name: "orders"}},
			ArchiveStore: nodeconfig.ArchiveStore{Store: "s3", KeyPrefix: "prod/orders/", Formats: []string{"protobuf", "jsonl"}, StoreConfig: nodeconfig.StoreConfig{
				Bucket: "b", Prefix: "p", Region: "r", Endpoint: "https://s3.test", PathStyle: &no, CAFile: "/etc/tributary/secrets/ca/ca.crt", Encryption: "aws:kms", KMSKey: "k", Timeout: nodeconfig.DefaultStoreTimeout,
				Credentials: &nodeconfig.StoreCredentials{Profile: "archiver", RoleARN: "arn:role", RoleSessionName: "s", WebIdentityTokenFile: token, STSEndpoint: "https://sts.test"},
			}},
			Write: &nodeconfig.ArchiveWrite{
				Interval: 5 * time.Second, MaxDiffBytes: 1 << 20, History: "full", Writer: "w", TakeOver: true, CompressionLevel: 9,
				Rebase:    nodeconfig.ArchiveRebase{DiffBytes: 1 << 30, Fraction: 0.5, Churn: 1.5, MaxDiffs: 7, MaxAge: time.Hour, MinInterval: time.Minute},
				Retention: nodeconfig.ArchiveRetention{Generations: 3, Age: 24 * time.Hour, Grace: 2 * time.Hour},
			},
		},
		{Name: "disk", Group: true, ArchiveStore: nodeconfig.ArchiveStore{Store: "local", Formats: []string{"protobuf"}, StoreConfig: nodeconfig.StoreConfig{Path: "/var/lib/tributary-archives/claim/archives/a/b"}}},
	}
	if d := cmp.Diff(want, c.Archives); d != "" {
		t.Error(d)
	}
	pod := find[appsv1.StatefulSet](t, o, "StatefulSet", "root").Spec.Template.Spec
	if !slices.ContainsFunc(pod.Containers[0].Env, func(e corev1.EnvVar) bool {
		return e.Name == "AWS_CONFIG_FILE" && e.Value == "/etc/tributary/secrets/aws/config"
	}) {
		t.Errorf("%+v", pod.Containers[0].Env)
	}
	if m := pod.Containers[0].VolumeMounts; !slices.ContainsFunc(m, func(m corev1.VolumeMount) bool {
		return m.MountPath == "/var/lib/tributary-archives/claim/archives" && m.ReadOnly
	}) {
		t.Errorf("what is only read can be written: %+v", m)
	}
	if sa := find[corev1.ServiceAccount](t, o, "ServiceAccount", "root"); sa.Annotations["eks.amazonaws.com/role-arn"] != "arn" {
		t.Errorf("%+v", sa.Annotations)
	}
}

// A node with archives alone is stateless: it may have replicas, and no database.
func TestArchiveSource(t *testing.T) {
	t.Parallel()
	n := v1alpha1.ReplicationNode{ObjectMeta: meta("seed"), Spec: v1alpha1.ReplicationNodeSpec{Replicas: new(int32(3)), Sources: []v1alpha1.NodeSource{{Name: "seed", Archive: &v1alpha1.ArchiveSourceSpec{
		ArchiveLocation: v1alpha1.ArchiveLocation{Group: true, Store: v1alpha1.ArchiveStore{Local: &v1alpha1.LocalStore{ConfigMap: &v1alpha1.ArchiveConfigMap{
			Name: "seed", Items: []v1alpha1.ConfigMapFile{{Key: "m", Path: "public.orders/manifest.json"}},
		}}}},
		Tables: []v1alpha1.TableReference{{Schema: "public", Name: "orders"}}, Follow: true, PollInterval: &metav1.Duration{Duration: time.Second}, Comparator: v1alpha1.ComparatorNumber,
	}}}}}
	o := build(t, n)
	d := find[appsv1.Deployment](t, o, "Deployment", "seed")
	s := config(t, o, "seed").Sources[0].Archive
	if *d.Spec.Replicas != 3 || !s.Follow || s.PollInterval != time.Second || s.Comparator != "number" || len(s.Tables) != 1 {
		t.Errorf("%+v", s)
	}
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.Name == "archive-0" && (v.ConfigMap.Name != "seed" || v.ConfigMap.Items[0] != corev1.KeyToPath{Key: "m", Path: "public.orders/manifest.json"}) {
			t.Errorf("%+v", v)
		}
	}
	if m := d.Spec.Template.Spec.Containers[0].VolumeMounts; !strings.HasPrefix(s.StoreConfig.Path, "/var/lib/tributary-archives/configmap/seed-") || m[len(m)-1].MountPath != s.StoreConfig.Path {
		t.Errorf("%s, %+v", s.StoreConfig.Path, m)
	}
}

// An export's Job has another name for each spec, and the same for one that is only
// suspended; nobody but the manager may reach its pods.
func TestExport(t *testing.T) {
	t.Parallel()
	e := v1alpha1.ArchiveExport{ObjectMeta: meta("dump"), Spec: v1alpha1.ArchiveExportSpec{
		NodeRef: &v1alpha1.NodeReference{Name: "root"}, Tables: []v1alpha1.TableReference{{Schema: "public", Name: "orders"}},
		ArchiveLocation: v1alpha1.ArchiveLocation{Group: true, Store: v1alpha1.ArchiveStore{S3: &v1alpha1.S3Store{Bucket: "b"}}},
	}}
	build := func(change func(*v1alpha1.ArchiveExport)) *workload.ExportObjects {
		t.Helper()
		e := *e.DeepCopy()
		change(&e)
		p := topology.Compute(topology.Inputs{Nodes: []v1alpha1.ReplicationNode{root()}, Exports: []v1alpha1.ArchiveExport{e}}).Exports[topology.Key{Namespace: "shop", Name: "dump"}]
		if !p.Ready() {
			t.Fatalf("%+v", p.Conditions)
		}
		o, err := workload.BuildExport(&e, p, options)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range o.List {
			if owners := u.GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "ArchiveExport" {
				t.Errorf("%s %s belongs to %+v", u.GetKind(), u.GetName(), owners)
			}
		}
		return o
	}
	o := build(func(*v1alpha1.ArchiveExport) {})
	objects := &workload.Objects{List: o.List}
	job := find[batchv1.Job](t, objects, "Job", o.Job)
	if *job.Spec.BackoffLimit != 6 || *job.Spec.Suspend || job.Spec.Template.Labels[workload.LabelName] != workload.ExportName || *job.Spec.Template.Spec.AutomountServiceAccountToken {
		t.Errorf("%+v", job.Spec)
	}
	c := config(t, objects, "dump-export")
	if c.Node.ID != "shop/dump-export" || c.Archives[0].Write == nil || len(c.Sources[0].Fanout.Tables) != 1 || c.Storage.Type != nodeconfig.StorageMemory {
		t.Errorf("%+v", c)
	}
	if p := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "dump-export").Spec; len(p.Ingress) != 1 || p.PodSelector.MatchLabels[workload.LabelName] != workload.ExportName {
		t.Errorf("%+v", p)
	}
	if suspended := build(func(e *v1alpha1.ArchiveExport) { e.Spec.Suspend = true }); suspended.Job != o.Job || !*find[batchv1.Job](t, &workload.Objects{List: suspended.List}, "Job", o.Job).Spec.Suspend {
		t.Errorf("%s is another Job than %s", suspended.Job, o.Job)
	}
	if other := build(func(e *v1alpha1.ArchiveExport) { e.Spec.Formats = []v1alpha1.ArchiveFormat{v1alpha1.FormatJSONL} }); other.Job == o.Job {
		t.Error("another spec is the same Job")
	}
}
