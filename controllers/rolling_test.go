package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// waiter is a tool that waits for what it has applied: it looks at each state that the API
// shows of some resources.
type waiter struct {
	mu   sync.Mutex
	seen map[string][]string // by kind and name, each state once in a row
}

// waitFor follows the resources of a kind in a namespace until the test ends.
func (w *waiter) waitFor(t *testing.T, ns, kind string) {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
	c, err := client.NewWithWatch(restCfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.Watch(t.Context(), list, client.InNamespace(ns))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			r, err := kstatus.Compute(u)
			if err != nil {
				t.Error(err)
				return
			}
			ready := "?"
			conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			for _, c := range conditions {
				if c := c.(map[string]any); c["type"] == v1alpha1.ConditionReady {
					ready = c["status"].(string)
				}
			}
			observed, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
			w.saw(kind+" "+u.GetName(), fmt.Sprintf("%s, ready %s, generation %d seen %d: %s", r.Status, ready, u.GetGeneration(), observed, r.Message))
		}
	}()
	t.Cleanup(func() { events.Stop(); <-done })
}

func (w *waiter) saw(what, state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen = map[string][]string{}
	}
	if l := w.seen[what]; len(l) == 0 || l[len(l)-1] != state {
		w.seen[what] = append(l, state)
	}
}

// forget begins anew.
func (w *waiter) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = nil
}

// want checks every state since the last forget.
func (w *waiter) want(t *testing.T, what, rule string, holds func(state string) bool) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen[what]) == 0 {
		t.Errorf("%s: nothing was seen", what)
	}
	for _, s := range w.seen[what] {
		if !holds(s) {
			t.Errorf("%s: %s: %s\nof %s", what, rule, s, strings.Join(w.seen[what], "\n"))
		}
	}
}

// done waits until a resource is current.
func (w *waiter) done(t *testing.T, what string) {
	t.Helper()
	eventually(t, what+" is done", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if l := w.seen[what]; len(l) == 0 || !current(l[len(l)-1]) {
			return fmt.Errorf("%s", strings.Join(l, "\n"))
		}
		return nil
	})
}

func current(state string) bool { return strings.HasPrefix(state, string(kstatus.CurrentStatus)) }

// said is what a pod says, to be changed by a test.
type said struct {
	mu  sync.Mutex
	doc nodeconfig.Statusz
}

func (s *said) say(change func(*nodeconfig.Statusz)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.doc)
}

func (s *said) get() nodeconfig.Statusz {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doc
}

// streams is what a pod says that has all.
func streams(id, source string) nodeconfig.Statusz {
	return nodeconfig.Statusz{Node: id, Ready: true, Sources: []nodeconfig.SourceStatus{{Name: source, State: nodeconfig.StateStreaming}}}
}

// K05: a configuration change rolls the pods of a node: it is reconciling from the first
// moment to the last, ready all the while, and no tool that waits for it gives up or takes
// it for done. A change that cannot come up is told.
func TestCaseK05(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("mid", "root"))
	(&kubelet{doc: func() nodeconfig.Statusz { return streams(ns+"/root", "db") }}).run(t, ns, "root", "127.0.7.90")
	(&kubelet{doc: func() nodeconfig.Statusz { return streams(ns+"/mid", "up") }}).run(t, ns, "mid", "127.0.7.91")
	wantKstatus(t, ns, "mid", kstatus.CurrentStatus)
	var w waiter
	w.waitFor(t, ns, "ReplicationNode")
	settled(t)
	w.forget()

	before, err := get[appsv1.Deployment](t.Context(), ns, "mid")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, ns, with(below("mid", "root"), "storage: {journal: {maxBytes: 1Gi}}"))
	var d *appsv1.Deployment
	eventually(t, "the pods roll", func(ctx context.Context) (err error) {
		if d, err = get[appsv1.Deployment](ctx, ns, "mid"); err == nil && d.Generation == before.Generation {
			err = fmt.Errorf("generation %d", d.Generation)
		}
		return err
	})
	settled(t)
	wantCondition(t, ns, "mid", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "The pods are being replaced.")
	// The second pod comes beside the first, connects, and baselines.
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 1, AvailableReplicas: 1, ReadyReplicas: 1}
	if err := cl.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	second := &said{doc: nodeconfig.Statusz{Node: ns + "/mid", Sources: []nodeconfig.SourceStatus{{Name: "up", State: nodeconfig.StateFailed, Reason: v1alpha1.ReasonNoHealthyParent}}}}
	(&kubelet{doc: second.get}).pod(t, ns, "mid-1", "127.0.7.92", &d.Spec.Template)
	settled(t)
	second.say(func(d *nodeconfig.Statusz) {
		d.Sources = []nodeconfig.SourceStatus{{Name: "up", State: nodeconfig.StateBaselining, Reason: v1alpha1.ReasonBaselining}}
	})
	settled(t)
	w.want(t, "ReplicationNode mid", "not done yet", func(s string) bool { return !current(s) })
	second.say(func(d *nodeconfig.Statusz) { *d = streams(ns+"/mid", "up") })
	first := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mid-0"}}
	if err := cl.Delete(t.Context(), first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1, ReadyReplicas: 1}
	if err := cl.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	wantKstatus(t, ns, "mid", kstatus.CurrentStatus)
	w.want(t, "ReplicationNode mid", "never failed, and never degraded", func(s string) bool {
		return strings.Contains(s, "ready True") && !strings.HasPrefix(s, string(kstatus.FailedStatus))
	})

	// One that a person must mend is told, though the other pod serves.
	second.say(func(d *nodeconfig.Statusz) {
		d.Ready, d.Sources = false, []nodeconfig.SourceStatus{{Name: "up", State: nodeconfig.StateFailed, Reason: v1alpha1.ReasonTableNotFound, Message: "There is none."}}
	})
	(&kubelet{doc: func() nodeconfig.Statusz { return streams(ns+"/mid", "up") }}).pod(t, ns, "mid-2", "127.0.7.93", &d.Spec.Template)
	wantCondition(t, ns, "mid", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonTableNotFound, "There is none.")
}

// settled gives the manager's cache and its Poller the time to see what there is.
func settled(t *testing.T) {
	t.Helper()
	time.Sleep(3 * cacheLag)
}

// K05, of the resources above nodes: a mesh whose members are to roll is reconciling until
// they have, and never current in between.
func TestCaseK05OfAMesh(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, shopsMesh+leafNode("a")+leafNode("b"))
	wantWiring(t, ns, "a", "b")
	wantWiring(t, ns, "b", "a")
	for i, name := range []string{"a", "b"} {
		other := map[string]string{"a": "b", "b": "a"}[name]
		(&kubelet{doc: func() nodeconfig.Statusz {
			d := streams(ns+"/"+name, "local")
			d.Sources = append(d.Sources, nodeconfig.SourceStatus{Name: "mesh", Kind: nodeconfig.KindMesh, State: nodeconfig.StateStreaming, Peers: []nodeconfig.PeerStatus{{ID: ns + "/" + other, Connected: true}}})
			return d
		}}).run(t, ns, name, fmt.Sprintf("127.0.7.%d", 94+i))
	}
	wantMesh(t, ns, "shops", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	var w waiter
	w.waitFor(t, ns, "ReplicationMesh")
	before := map[string]string{}
	for _, name := range []string{"a", "b"} {
		s, err := get[appsv1.StatefulSet](t.Context(), ns, name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = s.Spec.Template.Annotations[workload.AnnotationConfigHash]
	}
	w.done(t, "ReplicationMesh shops")
	settled(t)
	w.forget()
	apply(t, ns, strings.Replace(shopsMesh, "spec: {", "spec: {conflicts: [{schema: public, name: tally, policy: OriginOwnsKey, ownerColumn: id}], ", 1))
	for _, name := range []string{"a", "b"} {
		eventually(t, "the pods of "+name, func(ctx context.Context) error {
			s, err := get[appsv1.StatefulSet](ctx, ns, name)
			if err == nil && s.Spec.Template.Annotations[workload.AnnotationConfigHash] == before[name] {
				err = fmt.Errorf("they do not roll")
			}
			return err
		})
	}
	settled(t)
	wantMesh(t, ns, "shops", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "Not yet all that they are to be: a, b.")
	replaced(t, ns, "a")
	wantMesh(t, ns, "shops", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "Not yet all that they are to be: b.")
	w.want(t, "ReplicationMesh shops", "not done yet", func(s string) bool { return !current(s) })
	replaced(t, ns, "b")
	w.done(t, "ReplicationMesh shops")
	w.want(t, "ReplicationMesh shops", "never failed", func(s string) bool { return !strings.HasPrefix(s, string(kstatus.FailedStatus)) })
}

// K05, of a tree: what it says of all its relays and roots rolls them.
func TestCaseK05OfATree(t *testing.T) {
	ns := namespace(t)
	k := &relayKubelet{t: t, ns: ns, behind: map[string]bool{}, runs: map[string]bool{}, last: 200}
	tree := salesTree("roots: {names: [east]}\n  branches: {count: 1}")
	apply(t, ns, tree+tillNode("till-1"))
	wantChildren(t, ns, "sales-b0-0", "till-1")
	wantChildren(t, ns, "sales-east", "sales-b0-0")
	nodes := []string{"sales-b0-0", "sales-east"}
	for _, name := range append([]string{"till-1"}, nodes...) {
		k.run(name)
	}
	wantTree(t, ns, "sales", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	for _, name := range nodes {
		replaced(t, ns, name) // from before the tree had all of its nodes
	}
	var w waiter
	w.waitFor(t, ns, "RelayTree")
	w.done(t, "RelayTree sales")
	settled(t)
	w.forget()
	apply(t, ns, strings.Replace(tree, "tombstoneRetention: 2h", "tombstoneRetention: 3h", 1))
	for _, name := range nodes {
		eventually(t, "the pods of "+name, func(ctx context.Context) error {
			s, err := get[appsv1.StatefulSet](ctx, ns, name)
			if err == nil && s.Status.ObservedGeneration == s.Generation {
				err = fmt.Errorf("they do not roll")
			}
			return err
		})
	}
	settled(t)
	replaced(t, ns, nodes[0])
	wantTree(t, ns, "sales", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "Not yet all that they are to be: sales-east.")
	w.want(t, "RelayTree sales", "not done yet", func(s string) bool { return !current(s) })
	replaced(t, ns, nodes[1])
	w.done(t, "RelayTree sales")
}
