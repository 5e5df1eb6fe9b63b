//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// TestTierRolls (K05): a static setting of a whole topology changes. What GitOps tools make
// of each state that the API shows is never a failure, and not done before the pods are
// replaced; kubectl waits until the end.
func TestTierRolls(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	tier := func(more string) string {
		return root("root") + more + below("mid", 2, "root") + more + below("edge", 1, "mid") + more
	}
	all := []string{"root", "mid", "edge"}
	apply(t, ns, tier(""))
	waitReady(t, ns, 4*time.Minute, all...)

	faults := follow(t, ns)
	apply(t, ns, tier("  storage: {journal: {maxBytes: 32Mi}}\n"))
	for _, until := range []string{"condition=Ready", "jsonpath={.status.observedGeneration}=2"} {
		if out, err := exec.CommandContext(t.Context(), "kubectl", "-n", ns, "wait", "replicationnodes", "--all", "--for", until, "--timeout", "5m").CombinedOutput(); err != nil {
			t.Errorf("kubectl wait --for %s: %v\n%s", until, err, out)
		}
	}
	eventually(t, 6*time.Minute, "the topology rolled", func(ctx context.Context) error {
		for _, name := range all {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ReplicationNode"))
			if err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, u); err != nil {
				return err
			}
			if r, err := kstatus.Compute(u); err != nil || r.Status != kstatus.CurrentStatus {
				return fmt.Errorf("%s: %+v, %w", name, r, err)
			}
			if err := rolled(ctx, u); err != nil {
				return err
			}
		}
		return nil
	})
	if found := faults(); len(found) > 0 {
		t.Errorf("%d faults:\n%s", len(found), strings.Join(found, "\n"))
	}
	wantConverged(t, ns, 2*time.Minute, all...)
}

// follow looks at each state of the nodes of a namespace, and returns what was wrong with
// them.
func follow(t *testing.T, ns string) (faults func() []string) {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ReplicationNodeList"))
	events, err := cluster.cl.Watch(t.Context(), list, client.InNamespace(ns))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			u, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			r, err := kstatus.Compute(u)
			if err == nil && r.Status == kstatus.CurrentStatus {
				if err = rolled(t.Context(), u); err != nil && outdated(t.Context(), u) {
					err = nil // what was looked at is of a later spec
				}
			}
			if err != nil || r.Status == kstatus.FailedStatus {
				found = append(found, fmt.Sprintf("%s, generation %d: %+v: %v", u.GetName(), u.GetGeneration(), r, err))
			}
		}
	}()
	stop := sync.OnceFunc(func() { events.Stop(); <-done })
	t.Cleanup(stop)
	return func() []string { stop(); return found }
}

// outdated says whether a node has a later spec by now.
func outdated(ctx context.Context, u *unstructured.Unstructured) bool {
	var now v1alpha1.ReplicationNode
	err := cluster.cl.Get(ctx, client.ObjectKeyFromObject(u), &now)
	return err == nil && now.Generation > u.GetGeneration()
}

// rolled says what of a node's workload is not of the node's present spec.
func rolled(ctx context.Context, u *unstructured.Unstructured) error {
	hash, _, _ := unstructured.NestedString(u.Object, "status", "configHash")
	key := client.ObjectKeyFromObject(u)
	var sts appsv1.StatefulSet
	var d appsv1.Deployment
	err := cluster.cl.Get(ctx, key, &d)
	if err == nil {
		if s := d.Status; d.Spec.Template.Annotations[workload.AnnotationConfigHash] != hash || s.ObservedGeneration != d.Generation || s.UpdatedReplicas != *d.Spec.Replicas || s.Replicas != s.UpdatedReplicas {
			return fmt.Errorf("the Deployment %s, generation %d, is not done: %+v", key, d.Generation, s)
		}
	}
	if apierrors.IsNotFound(err) {
		err = cluster.cl.Get(ctx, key, &sts)
		if s := sts.Status; err == nil && (sts.Spec.Template.Annotations[workload.AnnotationConfigHash] != hash || s.ObservedGeneration != sts.Generation || s.UpdatedReplicas != *sts.Spec.Replicas) {
			return fmt.Errorf("the StatefulSet %s, generation %d, is not done: %+v", key, sts.Generation, s)
		}
	}
	return err
}

// TestNamespaceGoes (K06): the parent of a node is scaled to zero, then the namespace is
// deleted: it goes, though a node in it has a slot that it must not leave, and nothing can
// be started there to drop it.
func TestNamespaceGoes(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	parent := strings.Replace(root("root"), "spec:\n", "spec:\n  replicas: 1\n  storage: {type: Persistent, size: 1Gi}\n", 1)
	parent = strings.Replace(parent, "      database:", "      slot: {deletionPolicy: Delete}\n      database:", 1)
	apply(t, ns, strings.ReplaceAll(secretFor("orders-db"), "PASSWORD", password)+parent+below("edge", 1, "root"))
	eventually(t, 2*time.Minute, "the node that has a slot", func(ctx context.Context) error {
		var rn v1alpha1.ReplicationNode
		if err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: "root"}, &rn); err != nil {
			return err
		}
		if !slices.Contains(rn.Finalizers, v1alpha1.FinalizerSlots) {
			return fmt.Errorf("finalizers %v", rn.Finalizers)
		}
		return cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: "root"}, &appsv1.StatefulSet{})
	})
	apply(t, ns, strings.Replace(parent, "replicas: 1", "replicas: 0", 1))
	eventually(t, 4*time.Minute, "the reader waiting", func(ctx context.Context) error {
		if _, err := wantCondition(ctx, ns, "root", v1alpha1.ConditionWorkloadAvailable, metav1.ConditionFalse, v1alpha1.ReasonSuspended); err != nil {
			return err
		}
		_, err := wantCondition(ctx, ns, "edge", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonNoHealthyParent)
		return err
	})
	if err := cluster.cl.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 4*time.Minute, "the namespace gone", func(ctx context.Context) error {
		var left corev1.Namespace
		err := cluster.cl.Get(ctx, client.ObjectKey{Name: ns}, &left)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%+v: %w", left.Status.Conditions, err)
	})
}
