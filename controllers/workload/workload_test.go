package workload_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

var options = workload.Options{NodeImage: "example.test/node:1", ManagerNamespace: "tributary-system"}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1234"}
}

func root() v1alpha1.ReplicationNode {
	return v1alpha1.ReplicationNode{ObjectMeta: meta("root"), Spec: v1alpha1.ReplicationNodeSpec{
		Sources: []v1alpha1.NodeSource{{Name: "db", Postgres: &v1alpha1.PostgresSourceSpec{
			Hosts: []v1alpha1.PostgresHost{{Host: "db.example"}}, Database: "shop",
			CredentialsSecretRef: v1alpha1.LocalReference{Name: "login"},
			TLS:                  &v1alpha1.PostgresTLS{Mode: v1alpha1.PostgresTLSVerifyFull, CASecretRef: &v1alpha1.LocalReference{Name: "login"}},
			Tables:               []v1alpha1.TableReference{{Schema: "public", Name: "orders"}},
		}}},
	}}
}

func edge(name string, parents ...string) v1alpha1.ReplicationNode {
	n := v1alpha1.ReplicationNode{ObjectMeta: meta(name), Spec: v1alpha1.ReplicationNodeSpec{Sources: []v1alpha1.NodeSource{{Name: "up", Fanout: &v1alpha1.FanoutSourceSpec{}}}}}
	for _, p := range parents {
		n.Spec.Sources[0].Fanout.Upstreams = append(n.Spec.Sources[0].Fanout.Upstreams, v1alpha1.Upstream{NodeRef: &v1alpha1.NodeReference{Name: p}})
	}
	return n
}

func plan(t *testing.T, nodes ...v1alpha1.ReplicationNode) topology.Plan {
	t.Helper()
	return topology.Compute(topology.Inputs{Nodes: nodes})
}

func build(t *testing.T, n v1alpha1.ReplicationNode, others ...v1alpha1.ReplicationNode) *workload.Objects {
	t.Helper()
	p := plan(t, append(others, n)...).Nodes[topology.Key{Namespace: n.Namespace, Name: n.Name}]
	if p.Action != topology.Apply {
		t.Fatalf("the plan of %s is not to be applied: %+v", n.Name, p.Conditions)
	}
	out, err := workload.Build(&n, p, options)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// find returns the object of a kind, decoded strictly.
func find[T any](t *testing.T, o *workload.Objects, kind, name string) *T {
	t.Helper()
	for _, u := range o.List {
		if u.GetKind() != kind || u.GetName() != name {
			continue
		}
		data, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		v := new(T)
		dec := json.NewDecoder(strings.NewReader(string(data)))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	t.Fatalf("no %s %s among %d objects", kind, name, len(o.List))
	return nil
}

func TestSlotHolder(t *testing.T) {
	t.Parallel()
	o := build(t, root())
	sts := find[appsv1.StatefulSet](t, o, "StatefulSet", "root")
	if *sts.Spec.Replicas != 1 || sts.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		t.Errorf("%d replicas, %s", *sts.Spec.Replicas, sts.Spec.PodManagementPolicy)
	}
	static := find[corev1.ConfigMap](t, o, "ConfigMap", "root-static").Data["node.yaml"]
	c, err := nodeconfig.Parse("node.yaml", []byte(static))
	if err != nil {
		t.Fatalf("%v\n%s", err, static)
	}
	want := &nodeconfig.Postgres{
		PostgresServer: nodeconfig.PostgresServer{
			Hosts: []nodeconfig.Host{{Host: "db.example", Port: 5432}}, Database: "shop",
			UserFile: "/etc/tributary/secrets/login/username", PasswordFile: "/etc/tributary/secrets/login/password",
			SSLMode: "verify-full", SSLRootCert: "/etc/tributary/secrets/login/ca.crt",
		},
		TargetSessionAttrs: "read-write",
		Publication:        nodeconfig.Publication{Name: c.Sources[0].Postgres.Publication.Name, Managed: true},
		Slot:               c.Sources[0].Postgres.Slot,
		Tables:             []nodeconfig.Table{{Schema: "public", Name: "orders"}},
	}
	if d := cmp.Diff(want, c.Sources[0].Postgres); d != "" {
		t.Error(d)
	}

	// One mount of the Secret, with the keys that are used and no other.
	var keys []string
	for _, v := range sts.Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			for _, i := range v.Secret.Items {
				keys = append(keys, v.Secret.SecretName+"/"+i.Key)
			}
		}
	}
	if d := cmp.Diff([]string{"login/username", "login/password", "login/ca.crt"}, keys); d != "" {
		t.Error(d)
	}
	if _, err := nodeconfig.ParseWiring("wiring.yaml", []byte(find[corev1.ConfigMap](t, o, "ConfigMap", "root-wiring").Data["wiring.yaml"])); err != nil {
		t.Error(err)
	}
}

func TestStateless(t *testing.T) {
	t.Parallel()
	n := edge("edge", "root")
	n.Spec.Replicas = new(int32(3))
	n.Spec.DrainTimeout = &metav1.Duration{Duration: 90*time.Second + time.Millisecond}
	n.Spec.Serve = &v1alpha1.NodeServe{Port: 7500, AllowedConsumers: []v1alpha1.ConsumerGrant{{Namespace: "web"}, {Namespace: "*"}}}
	n.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
	n.Spec.PodTemplate = &v1alpha1.NodePodTemplate{
		Labels:      map[string]string{"team": "web", workload.LabelInstance: "someone-else"},
		Tolerations: []corev1.Toleration{{Key: "edge", Operator: corev1.TolerationOpExists}},
		Affinity:    &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
	}
	o := build(t, n, root())
	d := find[appsv1.Deployment](t, o, "Deployment", "edge")
	pod := d.Spec.Template
	if *d.Spec.Replicas != 3 || *pod.Spec.TerminationGracePeriodSeconds != 91+12 {
		t.Errorf("%d replicas, %d s", *d.Spec.Replicas, *pod.Spec.TerminationGracePeriodSeconds)
	}
	if pod.Labels[workload.LabelInstance] != "edge" || pod.Labels["team"] != "web" {
		t.Errorf("labels %v", pod.Labels)
	}
	if len(pod.Spec.Tolerations) != 1 || pod.Spec.Affinity == nil || len(pod.Spec.TopologySpreadConstraints) != 0 {
		t.Errorf("%+v", pod.Spec)
	}
	c := pod.Spec.Containers[0]
	if got := c.Env[len(c.Env)-1]; got.Name != "GOMEMLIMIT" || got.Value != "966367638" {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff([]string{"--config", "/etc/tributary/static/node.yaml"}, c.Args); d != "" {
		t.Error(d)
	}
	if s := find[corev1.Service](t, o, "Service", "edge"); s.Spec.ClusterIP != "None" || s.Spec.Ports[0].Port != 7500 || *s.Spec.Ports[0].AppProtocol != "grpc" {
		t.Errorf("%+v", s.Spec)
	}
	np := find[networkingv1.NetworkPolicy](t, o, "NetworkPolicy", "edge")
	if len(np.Spec.Ingress) != 2 || len(np.Spec.Ingress[0].From) != 3 || np.Spec.Ingress[1].From[0].NamespaceSelector.MatchLabels[corev1.LabelMetadataName] != "tributary-system" {
		t.Errorf("%+v", np.Spec)
	}
	if sa := find[corev1.ServiceAccount](t, o, "ServiceAccount", "edge"); sa.AutomountServiceAccountToken == nil || *sa.AutomountServiceAccountToken {
		t.Error("the pods get a token")
	}

	n.Spec.Suspend = true
	if d := find[appsv1.Deployment](t, build(t, n, root()), "Deployment", "edge"); *d.Spec.Replicas != 0 {
		t.Errorf("%d replicas while suspended", *d.Spec.Replicas)
	}
}

// Wiring changes: no restart. A static setting changes: the pods roll.
func TestCaseK16(t *testing.T) {
	t.Parallel()
	before := build(t, edge("edge", "a"), edge("a", "root"), edge("b", "root"), root())
	rewired := build(t, edge("edge", "b", "a"), edge("a", "root"), edge("b", "root"), root())
	for i, u := range before.List {
		changed := !cmp.Equal(u, rewired.List[i])
		if want := u.GetName() == "edge-wiring"; changed != want {
			t.Errorf("%s %s: changed is %v", u.GetKind(), u.GetName(), changed)
		}
	}
	if before.ConfigHash != rewired.ConfigHash {
		t.Error("wiring is in the hash")
	}

	n := edge("edge", "a")
	n.Spec.Storage = &v1alpha1.NodeStorage{Journal: &v1alpha1.NodeJournal{MaxBytes: new(resource.MustParse("1Gi"))}}
	static := build(t, n, edge("a", "root"), root())
	template := func(o *workload.Objects) string {
		return find[appsv1.Deployment](t, o, "Deployment", "edge").Spec.Template.Annotations[workload.AnnotationConfigHash]
	}
	if template(static) == template(before) || template(static) != static.ConfigHash {
		t.Error("a static change does not roll the pods")
	}

	more := root()
	more.Spec.Sources[0].Postgres.Tables = append(more.Spec.Sources[0].Postgres.Tables, v1alpha1.TableReference{Schema: "public", Name: "items"})
	one, two := build(t, root()), build(t, more)
	for i, u := range one.List {
		if changed := !cmp.Equal(u, two.List[i]); changed != (u.GetName() == "root-static") {
			t.Errorf("another table: %s %s changed is %v", u.GetKind(), u.GetName(), changed)
		}
	}
}

// A name of 52 characters works with every name made from it.
func TestCaseK21(t *testing.T) {
	t.Parallel()
	name := "n" + strings.Repeat("x", 51)
	for _, n := range []v1alpha1.ReplicationNode{edge(name, "root"), root()} {
		n.Name = name
		others := []v1alpha1.ReplicationNode{}
		if n.Spec.Sources[0].Fanout != nil {
			others = append(others, root())
		}
		for _, u := range build(t, n, others...).List {
			if errs := validation.IsDNS1123Label(u.GetName()); len(errs) > 0 {
				t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), errs)
			}
			for _, v := range u.GetLabels() {
				if errs := validation.IsValidLabelValue(v); len(errs) > 0 {
					t.Errorf("%s: label %s: %v", u.GetName(), v, errs)
				}
			}
			// a StatefulSet labels its pods with name-revision, a Deployment names
			// them name-hash-suffix
			if len(u.GetName())+len("-0123456789") > validation.LabelValueMaxLength && (u.GetKind() == "StatefulSet" || u.GetKind() == "Deployment") {
				t.Errorf("no room for a revision after %s", u.GetName())
			}
		}
	}
}

// The same node gives the same bytes, and every object is owned and labelled.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	for range 20 {
		if d := cmp.Diff(build(t, root()), build(t, root())); d != "" {
			t.Fatal(d)
		}
	}
	for _, u := range build(t, root()).List {
		if o := metav1.GetControllerOf(u); o == nil || o.Name != "root" || o.UID != "1234" {
			t.Errorf("%s %s is not owned: %v", u.GetKind(), u.GetName(), o)
		}
		if u.GetLabels()[workload.LabelManagedBy] != workload.ManagedBy || u.GetAnnotations()[workload.AnnotationDesiredHash] == "" {
			t.Errorf("%s %s: %v, %v", u.GetKind(), u.GetName(), u.GetLabels(), u.GetAnnotations())
		}
	}
}

func TestDiffers(t *testing.T) {
	t.Parallel()
	desired := build(t, root()).List
	live := func(u *unstructured.Unstructured) *unstructured.Unstructured {
		c := u.DeepCopy()
		c.SetResourceVersion("7")
		c.SetAnnotations(map[string]string{"foreign": "x", workload.AnnotationDesiredHash: u.GetAnnotations()[workload.AnnotationDesiredHash]})
		return c
	}
	for _, u := range desired {
		c := live(u)
		if u.GetKind() == "StatefulSet" {
			podSpec(c.Object)["containers"] = append([]any{map[string]any{"name": "sidecar"}}, containers(c.Object)...)
		}
		if workload.Differs(u, c) {
			t.Errorf("%s differs although only foreign fields were added", u.GetKind())
		}
	}
	sts := desired[len(desired)-1]
	for what, change := range map[string]func(o map[string]any){
		"image":   func(o map[string]any) { containers(o)[0].(map[string]any)["image"] = "drifted" },
		"renamed": func(o map[string]any) { containers(o)[0].(map[string]any)["name"] = "other" },
		"removed": func(o map[string]any) { delete(podSpec(o), "securityContext") },
		"hash": func(o map[string]any) {
			o["metadata"].(map[string]any)["annotations"] = map[string]any{workload.AnnotationDesiredHash: "older"}
		},
	} {
		c := live(sts)
		change(c.Object)
		if !workload.Differs(sts, c) {
			t.Errorf("drift is not seen: %s", what)
		}
	}
}

func podSpec(o map[string]any) map[string]any {
	return o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
}

func containers(o map[string]any) []any { return podSpec(o)["containers"].([]any) }
