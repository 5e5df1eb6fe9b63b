package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, ns, name string) (P, error) {
	o := P(new(T))
	return o, cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, o)
}

func wiring(ctx context.Context, ns, name string) (*nodeconfig.Wiring, error) {
	cm, err := get[corev1.ConfigMap](ctx, ns, name+"-wiring")
	if err != nil {
		return nil, err
	}
	return workload.ReadWiring(cm)
}

// wantWiring waits for the eligible candidates of a node's only source.
func wantWiring(t *testing.T, ns, name string, parents ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s reads from %v", name, parents), func(ctx context.Context) error {
		w, err := wiring(ctx, ns, name)
		if err != nil {
			return err
		}
		if len(w.Sources) == 0 {
			return fmt.Errorf("the wiring has no source yet")
		}
		var got []string
		for _, c := range w.Sources[0].Candidates {
			if c.Eligible {
				got = append(got, strings.TrimPrefix(c.ID, ns+"/"))
			}
		}
		if d := cmp.Diff(parents, got); d != "" {
			return fmt.Errorf("%s", d)
		}
		return nil
	})
}

// Objects applied in any order end in the same place.
func TestAnyOrder(t *testing.T) {
	docs := []string{login, rootNode("root"), below("east", "root"), below("west", "root"), below("edge", "east", "west"), `
kind: FanoutSource
metadata: {name: both}
spec: {upstreams: [{nodeRef: {name: west}}, {nodeRef: {name: east}}]}
---`, `
kind: ReplicationNode
metadata: {name: shared}
spec: {sources: [{name: up, fanoutSourceRef: {name: both}}]}
---`}
	for name, order := range map[string][]int{"top down": {0, 1, 2, 3, 4, 5, 6}, "bottom up": {6, 5, 4, 3, 2, 1, 0}} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			for _, i := range order {
				apply(t, ns, docs[i])
				time.Sleep(200 * time.Millisecond)
			}
			wantWiring(t, ns, "edge", "east", "west")
			wantWiring(t, ns, "shared", "west", "east")
			wantWiring(t, ns, "east", "root")
			for _, n := range []string{"root", "east", "west", "edge", "shared"} {
				wantCondition(t, ns, n, v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, v1alpha1.ReasonResolved, "")
				wantCondition(t, ns, n, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "0 of 1")
			}
			eventually(t, "workloads", func(ctx context.Context) error {
				if _, err := get[appsv1.StatefulSet](ctx, ns, "root"); err != nil {
					return err
				}
				_, err := get[appsv1.Deployment](ctx, ns, "edge")
				return err
			})
			eventually(t, "status", func(ctx context.Context) error {
				root, err := node(ctx, ns, "root")
				if err != nil {
					return err
				}
				edge, err := node(ctx, ns, "edge")
				if err != nil {
					return err
				}
				if !slices.Equal(root.Status.Children, []string{"east", "west"}) || *edge.Status.Depth != 2 || edge.Status.WiringEpoch == 0 || edge.Status.Endpoint != "edge."+ns+".svc:7400" {
					return fmt.Errorf("%+v, %+v", root.Status, edge.Status)
				}
				both, err := get[v1alpha1.FanoutSource](ctx, ns, "both")
				if err != nil {
					return err
				}
				if !slices.Equal(both.Status.Nodes, []string{"shared"}) || !meta.IsStatusConditionTrue(both.Status.Conditions, v1alpha1.ConditionReady) {
					return fmt.Errorf("%+v", both.Status)
				}
				return nil
			})
		})
	}
}

// The API server takes every object and lets the pods in under the restricted
// standard.
func TestPodsAreRestricted(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root"))
	var sts *appsv1.StatefulSet
	eventually(t, "the StatefulSet", func(ctx context.Context) (err error) {
		sts, err = get[appsv1.StatefulSet](ctx, ns, "root")
		return err
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe", Labels: sts.Spec.Template.Labels}, Spec: sts.Spec.Template.Spec}
	if err := cl.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Error(err)
	}
	pod.Spec.Containers[0].SecurityContext.RunAsNonRoot = new(false)
	if err := cl.Create(t.Context(), pod, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("the standard is not enforced here: %v", err)
	}
}

// A loop is refused with its path in the message while others go on; mending
// heals.
func TestLoops(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("a", "root")+below("b", "a")+below("c", "root"))
	wantWiring(t, ns, "b", "a")
	wantWiring(t, ns, "a", "root")
	apply(t, ns, below("a", "b"))
	for _, n := range []string{"a", "b"} {
		wantCondition(t, ns, n, v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, "a → b → a")
		wantCondition(t, ns, n, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, "a → b → a")
		wantCondition(t, ns, n, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonLoopDetected, "")
	}
	wantWiring(t, ns, "a", "root")
	apply(t, ns, below("c", "a"))
	wantWiring(t, ns, "c", "a")
	apply(t, ns, below("b", "root")) // b was below a; now it is the other way round
	wantWiring(t, ns, "a", "b")
	wantWiring(t, ns, "b", "root")
	wantCondition(t, ns, "a", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonAcyclic, "")
	eventually(t, "not stalled", func(ctx context.Context) error {
		n, err := node(ctx, ns, "a")
		if err == nil && meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionStalled) != nil {
			err = fmt.Errorf("%+v", n.Status.Conditions)
		}
		return err
	})
	var events eventsv1.EventList
	eventually(t, "an event", func(ctx context.Context) error {
		if err := cl.List(ctx, &events, client.InNamespace(ns)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == "a" && e.Reason == v1alpha1.ReasonLoopDetected && e.Type == "Warning" {
				return nil
			}
		}
		return fmt.Errorf("%d events, none of the loop", len(events.Items))
	})
}

// A missing Secret is a condition, and heals.
func TestMissingSecret(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, rootNode("root"))
	wantCondition(t, ns, "root", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, "The Secret login does not exist.")
	wantCondition(t, ns, "root", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, "")
	wantCondition(t, ns, "root", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonSecretNotFound, "")
	wantKstatus(t, ns, "root", kstatus.InProgressStatus)
	if _, err := get[appsv1.StatefulSet](t.Context(), ns, "root"); !apierrors.IsNotFound(err) {
		t.Errorf("pods are created without their Secret: %v", err)
	}
	apply(t, ns, login)
	wantCondition(t, ns, "root", v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, v1alpha1.ReasonResolved, "")
	eventually(t, "the StatefulSet", func(ctx context.Context) error { _, err := get[appsv1.StatefulSet](ctx, ns, "root"); return err })
}

// Wiring changes leave the pods alone; static settings roll them.
func TestCaseK16(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("a", "root")+below("b", "root")+below("edge", "a"))
	wantWiring(t, ns, "edge", "a")
	var before *appsv1.Deployment
	eventually(t, "the Deployment", func(ctx context.Context) (err error) {
		before, err = get[appsv1.Deployment](ctx, ns, "edge")
		return err
	})
	w, err := wiring(t.Context(), ns, "edge")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, ns, below("edge", "b", "a"))
	wantWiring(t, ns, "edge", "b", "a")
	after, err := get[appsv1.Deployment](t.Context(), ns, "edge")
	if err != nil || after.Generation != before.Generation {
		t.Errorf("a change of the wiring rolls the pods: generation %d, %v", after.Generation, err)
	}
	if now, err := wiring(t.Context(), ns, "edge"); err != nil || now.Epoch != w.Epoch+1 {
		t.Errorf("epoch %d after %d: %v", now.Epoch, w.Epoch, err)
	}

	apply(t, ns, strings.Replace(below("edge", "b", "a"), "spec:", "spec:\n  storage: {journal: {maxBytes: 1Gi}}", 1))
	eventually(t, "the pods roll", func(ctx context.Context) error {
		d, err := get[appsv1.Deployment](ctx, ns, "edge")
		if err == nil && d.Spec.Template.Annotations[workload.AnnotationConfigHash] == before.Spec.Template.Annotations[workload.AnnotationConfigHash] {
			err = fmt.Errorf("the hash is the same")
		}
		return err
	})
}

// Drift is healed, foreign fields are left alone, and what belongs to others is
// not taken.
func TestDriftAndOwnership(t *testing.T) {
	ns := namespace(t)
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "taken"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if err := cl.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, login+rootNode("root")+below("taken", "root"))
	wantCondition(t, ns, "taken", v1alpha1.ConditionWorkloadAvailable, metav1.ConditionFalse, v1alpha1.ReasonObjectConflict, "The Service taken exists and does not belong to this node")
	wantCondition(t, ns, "taken", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonObjectConflict, "")
	if s, err := get[corev1.Service](t.Context(), ns, "taken"); err != nil || s.Spec.Ports[0].Port != 80 {
		t.Errorf("the Service was taken: %+v, %v", s, err)
	}

	var sts *appsv1.StatefulSet
	eventually(t, "the StatefulSet", func(ctx context.Context) (err error) {
		sts, err = get[appsv1.StatefulSet](ctx, ns, "root")
		return err
	})
	sts.Spec.Template.Spec.Containers[0].Image = "example.test/other:1"
	sts.Labels["foreign"] = "kept"
	if err := cl.Update(t.Context(), sts); err != nil {
		t.Fatal(err)
	}
	eventually(t, "drift is healed", func(ctx context.Context) error {
		s, err := get[appsv1.StatefulSet](ctx, ns, "root")
		if err == nil && (s.Spec.Template.Spec.Containers[0].Image != "example.test/node:1" || s.Labels["foreign"] != "kept") {
			err = fmt.Errorf("%s, %v", s.Spec.Template.Spec.Containers[0].Image, s.Labels)
		}
		return err
	})
	for _, o := range []client.Object{&corev1.Service{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}, &corev1.ServiceAccount{}} {
		o.SetNamespace(ns)
		o.SetName("root")
		if err := cl.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("%T comes back", o), func(ctx context.Context) error { return cl.Get(ctx, client.ObjectKeyFromObject(o), o) })
	}
}

// A node that turns from fan-out to PostgreSQL becomes a StatefulSet and is no
// Deployment any more; a suspended one has no pods.
func TestKindOfWorkloadAndSuspend(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("me", "root"))
	eventually(t, "the Deployment", func(ctx context.Context) error { _, err := get[appsv1.Deployment](ctx, ns, "me"); return err })
	apply(t, ns, rootNode("me"))
	eventually(t, "only a StatefulSet", func(ctx context.Context) error {
		if _, err := get[appsv1.StatefulSet](ctx, ns, "me"); err != nil {
			return err
		}
		if _, err := get[appsv1.Deployment](ctx, ns, "me"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Deployment is there: %w", err)
		}
		return nil
	})
	// Suspend works although the Secret is gone.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "login"}}
	if err := cl.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, strings.Replace(rootNode("me"), "spec:", "spec:\n  suspend: true", 1))
	eventually(t, "no replicas", func(ctx context.Context) error {
		s, err := get[appsv1.StatefulSet](ctx, ns, "me")
		if err == nil && *s.Spec.Replicas != 0 {
			err = fmt.Errorf("%d replicas", *s.Spec.Replicas)
		}
		return err
	})
	wantCondition(t, ns, "me", v1alpha1.ConditionWorkloadAvailable, metav1.ConditionFalse, v1alpha1.ReasonSuspended, "")
}

// An autoscaler sets scale to 4, and it is still 4 after ten reconciles; the selector of the
// pods is published, which it counts by.
func TestCaseK08(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("a", "root"))
	wantReplicas := func(want int32) {
		t.Helper()
		eventually(t, fmt.Sprint(want, " replicas"), func(ctx context.Context) error {
			d, err := get[appsv1.Deployment](ctx, ns, "a")
			if err == nil && *d.Spec.Replicas != want {
				err = fmt.Errorf("%d", *d.Spec.Replicas)
			}
			return err
		})
	}
	wantReplicas(1)
	n, err := node(t.Context(), ns, "a")
	if err != nil {
		t.Fatal(err)
	}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 4}}
	if err := cl.SubResource("scale").Update(t.Context(), n, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	wantReplicas(4)
	for i := range 10 {
		if n, err = node(t.Context(), ns, "a"); err != nil {
			t.Fatal(err)
		}
		before := n.DeepCopy()
		n.Spec.PodTemplate = &v1alpha1.NodePodTemplate{Labels: map[string]string{"turn": fmt.Sprint(i)}}
		if err := cl.Patch(t.Context(), n, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the reconcile", func(ctx context.Context) error {
			d, err := get[appsv1.Deployment](ctx, ns, "a")
			if err == nil && d.Spec.Template.Labels["turn"] != fmt.Sprint(i) {
				err = fmt.Errorf("labels %v", d.Spec.Template.Labels)
			}
			return err
		})
		wantReplicas(4)
	}
	if n, err = node(t.Context(), ns, "a"); err != nil || *n.Spec.Replicas != 4 {
		t.Errorf("the spec has %v replicas: %v", n.Spec.Replicas, err)
	}
	d, err := get[appsv1.Deployment](t.Context(), ns, "a")
	if err != nil {
		t.Fatal(err)
	}
	if by, err := labels.Parse(n.Status.Selector); err != nil || by.Empty() || !by.Matches(labels.Set(d.Spec.Template.Labels)) {
		t.Errorf("the selector is %q, of pods with %v: %v", n.Status.Selector, d.Spec.Template.Labels, err)
	}
}

// Deleting a node removes it at once, whatever is wrong with it, and its name
// can be used again.
func TestDeletion(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("a", "root")+below("b", "missing"))
	wantWiring(t, ns, "a", "root")
	for _, name := range []string{"b", "root"} {
		n, err := node(t.Context(), ns, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.Delete(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" is gone", func(ctx context.Context) error {
			if _, err := node(ctx, ns, name); !apierrors.IsNotFound(err) {
				return fmt.Errorf("still there: %w", err)
			}
			return nil
		})
	}
	wantCondition(t, ns, "a", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonParentNotFound, "The upstream node root does not exist.")
	wantWiring(t, ns, "a")
	apply(t, ns, rootNode("root"))
	wantWiring(t, ns, "a", "root")
}

// kubelet plays the kubelet for one pod of a node: the pod runs at a loopback
// address of its own and answers with a status document.
type kubelet struct {
	doc func() nodeconfig.Statusz
}

// answer serves the status document at an address; silence ends that.
func (k *kubelet) answer(t *testing.T, ip string) (silence func()) {
	t.Helper()
	l, err := net.Listen("tcp", ip+":8080")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/statusz" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(k.doc())
	})}
	done := make(chan struct{})
	go func() { _ = srv.Serve(l); close(done) }()
	silence = sync.OnceFunc(func() { _ = srv.Close(); <-done })
	t.Cleanup(silence)
	return silence
}

// run starts the only pod of a node; silence makes it unreachable.
func (k *kubelet) run(t *testing.T, ns, name, ip string) (silence func()) {
	t.Helper()
	var template corev1.PodTemplateSpec
	eventually(t, "the workload of "+name, func(ctx context.Context) error {
		if s, err := get[appsv1.StatefulSet](ctx, ns, name); err == nil {
			template = s.Spec.Template
			for _, c := range s.Spec.VolumeClaimTemplates {
				template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name + "-" + name + "-0"},
				}})
			}
			s.Status = appsv1.StatefulSetStatus{ObservedGeneration: s.Generation, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1, ReadyReplicas: 1}
			return cl.Status().Update(ctx, s)
		}
		d, err := get[appsv1.Deployment](ctx, ns, name)
		if err != nil {
			return err
		}
		template = d.Spec.Template
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1, ReadyReplicas: 1}
		return cl.Status().Update(ctx, d)
	})
	return k.pod(t, ns, name+"-0", ip, &template)
}

// pod starts one pod of a template.
func (k *kubelet) pod(t *testing.T, ns, name, ip string, template *corev1.PodTemplateSpec) (silence func()) {
	t.Helper()
	silence = k.answer(t, ip)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: template.Labels}, Spec: template.Spec}
	if err := cl.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	if err := cl.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
	return silence
}

// What nodes say becomes status; what they say of parents goes into the plan;
// a node that does not answer is left as it is.
func TestNodeStatus(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("a", "root", "b")+below("b", "root", "a"))
	var state = make(chan nodeconfig.Statusz, 1)
	doc := nodeconfig.Statusz{Node: ns + "/a", Sources: []nodeconfig.SourceStatus{{
		Name: "up", Kind: nodeconfig.KindFanout, State: nodeconfig.StateStreaming,
		Parent: &nodeconfig.ParentStatus{ID: ns + "/root", Address: "10.0.0.1:7400", Since: time.Now(), Why: "initial"},
	}}, Logs: []nodeconfig.LogStatus{{Origin: "pg-1", Epoch: "1", Source: "up", LagKnown: true, LagSeconds: 0.2, Path: []string{ns + "/a", ns + "/root"}}}}
	state <- doc
	say := func(change func(d *nodeconfig.Statusz)) {
		d := <-state
		d.Sources = slices.Clone(d.Sources)
		d.Logs = slices.Clone(d.Logs)
		change(&d)
		state <- d
	}
	k := &kubelet{doc: func() nodeconfig.Statusz { d := <-state; state <- d; return d }}
	silence := k.run(t, ns, "a", "127.0.7.1")

	wantCondition(t, ns, "a", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	wantCondition(t, ns, "a", v1alpha1.ConditionCaughtUp, metav1.ConditionTrue, v1alpha1.ReasonCaughtUp, "")
	n, err := node(t.Context(), ns, "a")
	if err != nil {
		t.Fatal(err)
	}
	if n.Status.Parent != "root" || n.Status.Lag != "<1s" || len(n.Status.Origins) != 1 || n.Status.Origins[0].Hops != 1 || n.Status.Sources[0].Parent.Why != "initial" {
		t.Errorf("%+v", n.Status)
	}

	// While pods are replaced the node is on its way, not degraded.
	d, err := get[appsv1.Deployment](t.Context(), ns, "a")
	if err != nil {
		t.Fatal(err)
	}
	settled := d.Status
	d.Status.Replicas, d.Status.UpdatedReplicas = 2, 1
	if err := cl.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	wantCondition(t, ns, "a", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "")
	wantCondition(t, ns, "a", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	wantKstatus(t, ns, "a", kstatus.InProgressStatus)
	d.Status = settled
	if err := cl.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	wantKstatus(t, ns, "a", kstatus.CurrentStatus)

	// Lag alone is not written before its time.
	time.Sleep(2 * cacheLag)
	say(func(d *nodeconfig.Statusz) { d.Logs[0].LagSeconds = 7 })
	time.Sleep(3 * time.Second)
	if n, err = node(t.Context(), ns, "a"); err != nil || n.Status.Lag != "<1s" {
		t.Errorf("lag %s is written at once: %v", n.Status.Lag, err)
	}

	// A failover is written at once, and the planner knows: a is now below b.
	wantWiring(t, ns, "b", "root", "a")
	say(func(d *nodeconfig.Statusz) {
		d.Sources[0].Parent = &nodeconfig.ParentStatus{ID: ns + "/b", Address: "10.0.0.2:7400", Since: time.Now(), Why: "failover"}
	})
	eventually(t, "the new parent", func(ctx context.Context) error {
		n, err := node(ctx, ns, "a")
		if err == nil && (n.Status.Parent != "b" || n.Status.Lag != "<15s") {
			err = fmt.Errorf("%s, %s", n.Status.Parent, n.Status.Lag)
		}
		return err
	})
	wantWiring(t, ns, "b", "root")
	wantCondition(t, ns, "b", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, v1alpha1.ReasonConditionalLoop, "a → b → a")

	// A head that is not known is not caught up with.
	say(func(d *nodeconfig.Statusz) { d.Logs[0].LagSeconds, d.Logs[0].LagKnown = 0, false })
	wantCondition(t, ns, "a", v1alpha1.ConditionCaughtUp, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "nothing is heard of that origin")

	// What is over before a condition could show it is an event.
	say(func(d *nodeconfig.Statusz) {
		d.Rebaselines, d.Sources[0].HistoryLost, d.Sources[0].LastCause = 1, 1, "peer b holds epoch 7"
	})
	wantEvent(t, ns, "HistoryLost", "Source up: others held more of its log than this node")
	wantEvent(t, ns, "Rebaselined", "source up: peer b holds epoch 7")
	eventually(t, "the counts", func(ctx context.Context) error {
		n, err := node(ctx, ns, "a")
		if err == nil && (n.Status.Rebaselines != 1 || n.Status.Sources[0].HistoryLost != 1) {
			err = fmt.Errorf("%+v", n.Status)
		}
		return err
	})

	// What is wrong at the source is told with the node's own reason.
	for reason, stalled := range map[string]bool{v1alpha1.ReasonNoHealthyParent: false, v1alpha1.ReasonTableNotFound: true} {
		say(func(d *nodeconfig.Statusz) {
			d.Sources[0].State, d.Sources[0].Reason, d.Sources[0].Message = nodeconfig.StateFailed, reason, "It is so."
		})
		wantCondition(t, ns, "a", v1alpha1.ConditionStreaming, metav1.ConditionFalse, reason, "Source up: It is so.")
		kind := v1alpha1.ConditionReconciling
		if stalled {
			kind = v1alpha1.ConditionStalled
		}
		wantCondition(t, ns, "a", kind, metav1.ConditionTrue, reason, "")
	}
	say(func(d *nodeconfig.Statusz) {
		d.Sources[0].Reason = v1alpha1.ReasonLoopDetected
		d.Refused = []nodeconfig.RefusedAdvert{{Log: "pg-1@1", Reason: "LoopDetected", Path: []string{"far/b", ns + "/a", "far/root"}}}
	})
	wantCondition(t, ns, "a", v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, fmt.Sprintf("far/root → %s/a → far/b → %s/a", ns, ns))

	// K11: out of the manager's reach nothing is known, and nothing changes.
	silence()
	wantCondition(t, ns, "a", v1alpha1.ConditionStreaming, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "")
	if n, err = node(t.Context(), ns, "a"); err != nil || n.Status.Parent != "b" {
		t.Errorf("the last known parent is %q: %v", n.Status.Parent, err)
	}
	time.Sleep(time.Second)
	wantWiring(t, ns, "b", "root")
	wantWiring(t, ns, "a", "root", "b")
}

// wantKstatus waits for what GitOps tools make of a node.
func wantKstatus(t *testing.T, ns, name string, want kstatus.Status) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is %s", name, want), func(ctx context.Context) error {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ReplicationNode"))
		if err := cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, u); err != nil {
			return err
		}
		r, err := kstatus.Compute(u)
		if err == nil && r.Status != want {
			err = fmt.Errorf("%s: %s", r.Status, r.Message)
		}
		return err
	})
}

// A resource that no manager has seen is in progress, not current.
func TestCaseK03(t *testing.T) {
	ns := namespace(t)
	for kind, spec := range map[string]map[string]any{
		"ReplicationNode": {"sources": []any{map[string]any{"name": "up", "fanoutSourceRef": map[string]any{"name": "x"}}}},
		"FanoutSource":    {"upstreams": []any{map[string]any{"address": "far.example:7400"}}},
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		u.SetNamespace(ns)
		u.SetName("unseen")
		if err := cl.Create(t.Context(), u, client.DryRunAll); err != nil { // so that the manager does not see it
			t.Fatal(err)
		}
		if r, err := kstatus.Compute(u); err != nil || r.Status != kstatus.InProgressStatus {
			t.Errorf("%s: %+v, %v", kind, r, err)
		}
	}
}

// Nothing changes for a minute with 50 resources: no writes to the API.
func TestCaseK14(t *testing.T) {
	ns := namespace(t)
	docs := login + rootNode("root")
	for i := range 49 {
		parent := "root"
		if i > 0 {
			parent = fmt.Sprintf("n%d", (i-1)/4)
		}
		docs += below(fmt.Sprintf("n%d", i), parent)
	}
	apply(t, ns, docs)
	for i := range 49 {
		wantCondition(t, ns, fmt.Sprintf("n%d", i), v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "")
	}
	k := &kubelet{doc: func() nodeconfig.Statusz {
		return nodeconfig.Statusz{Node: ns + "/n0", Sources: []nodeconfig.SourceStatus{{Name: "up", State: nodeconfig.StateStreaming}}, Logs: []nodeconfig.LogStatus{{Source: "up", LagKnown: true, LagSeconds: float64(time.Now().Nanosecond()) / 2e9}}}
	}}
	k.run(t, ns, "n0", "127.0.7.2")
	wantCondition(t, ns, "n0", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	time.Sleep(3 * time.Second)
	before := len(writes.in(ns))
	if before < 50*7 {
		t.Errorf("the counter counts only %d writes for 50 nodes", before)
	}
	time.Sleep(time.Minute)
	if after := writes.in(ns); len(after) != before {
		t.Errorf("%d writes at rest: %v", len(after)-before, after[before:])
	}
}

// What is applied reads back unchanged, and status says that no controller has
// seen it until one has.
func TestSpecIsLeftAlone(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+`
kind: PostgresSource
metadata: {name: main}
spec:
  hosts: [{host: db}]
  database: shop
  credentialsSecretRef: {name: login}
  tables: [{schema: public, name: orders}]
---`)
	wantCondition(t, ns, "root", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "")
	n, err := node(t.Context(), ns, "root")
	if err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.ReplicationNodeSpec{Sources: []v1alpha1.NodeSource{{Name: "db", Postgres: &v1alpha1.PostgresSourceSpec{
		Hosts: []v1alpha1.PostgresHost{{Host: "db"}}, Database: "shop", CredentialsSecretRef: v1alpha1.LocalReference{Name: "login"},
		Tables: []v1alpha1.TableReference{{Schema: "public", Name: "orders"}},
	}}}}
	if d := cmp.Diff(want, n.Spec); d != "" {
		t.Error(d)
	}
	if n.Generation != 1 {
		t.Errorf("generation is %d: someone writes the spec", n.Generation)
	}
}
