package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
)

const (
	// rolloutPatience is how long a node's rollout waits for others.
	rolloutPatience = 15 * time.Minute
	// rolloutRecheck is how soon it is looked at again.
	rolloutRecheck = 5 * time.Second
)

// rollouts is the order in which nodes replace their pods: those that read from a node
// before it, and one at a time of those that stand in for each other. Nodes are reconciled
// one after the other, so nothing here is shared. A new manager knows nothing of it: then
// a parent may be early once.
type rollouts struct {
	waits   map[topology.Key]time.Time // since when
	started map[topology.Key]string    // hash of the workload that has yet to be available
}

func (r *rollouts) forget(k topology.Key) {
	delete(r.waits, k)
	delete(r.started, k)
}

// ended notes that a rollout has: all pods of what was applied are available.
func (r *rollouts) ended(k topology.Key, now *running) {
	if hash, ok := r.started[k]; ok && (now.object == nil || now.whole() && hashOf(now.object) == hash) {
		delete(r.started, k)
	}
}

// whole says that no pod of the workload is missing or of a former kind.
func (r *running) whole() bool {
	return r.settled && !r.rolling() && r.available >= r.desired
}

// turn says whom a node's rollout waits for; empty if it is its turn, or there is none.
// What is broken does not wait, so that it takes its mending, nor what is on its way.
func (r *nodeReconciler) turn(ctx context.Context, f *facts) (string, error) {
	k := client.ObjectKeyFromObject(f.node)
	desired := f.objects.Workload()
	changes, err := r.applier.changes(ctx, desired)
	if err != nil {
		return "", err
	}
	if !changes || r.rollouts.started[k] == hashOf(desired) {
		delete(r.rollouts.waits, k)
		return "", nil
	}
	now, err := look(ctx, r.Client, f.node)
	if err != nil {
		return "", err
	}
	replicas, _, _ := unstructured.NestedInt64(desired.Object, "spec", "replicas")
	stalled := meta.FindStatusCondition(f.node.Status.Conditions, v1alpha1.ConditionStalled) != nil
	if now.object == nil || now.desired == 0 || int64(now.desired) != replicas || now.available < now.desired || stalled || now.rolling() {
		delete(r.rollouts.waits, k)
		if _, started := r.rollouts.started[k]; started {
			r.rollouts.started[k] = hashOf(desired)
		}
		return "", nil
	}
	why, err := r.ahead(ctx, k)
	if err != nil {
		return "", err
	}
	since, waited := r.rollouts.waits[k]
	switch {
	case why == "":
	case !waited:
		r.rollouts.waits[k] = time.Now()
		return why, nil
	case time.Since(since) < rolloutPatience:
		return why, nil
	default:
		r.recorder.Eventf(f.node, nil, corev1.EventTypeWarning, "RolledOutEarly", "Rollout", "%s", limited(fmt.Sprintf("The pods are replaced though %s: it has waited for %s.", why, rolloutPatience)))
	}
	delete(r.rollouts.waits, k)
	r.rollouts.started[k] = hashOf(desired)
	return "", nil
}

// ahead says what a node's rollout waits for; empty if nothing.
func (r *nodeReconciler) ahead(ctx context.Context, k topology.Key) (string, error) {
	ahead := r.board.ahead(k)
	for _, reader := range ahead.Readers {
		busy, err := r.busy(ctx, reader, true)
		if err != nil || busy {
			return fmt.Sprintf("the pods of %s, which reads from it, have yet to be replaced", relative(reader, k.Namespace)), err
		}
	}
	for _, peer := range ahead.Peers {
		busy, err := r.busy(ctx, peer, false)
		if err != nil || busy {
			return fmt.Sprintf("the pods of %s, which stands in for it, are being replaced", relative(peer, k.Namespace)), err
		}
	}
	return "", nil
}

// busy says whether a node replaces its pods, or is yet to, if that counts.
func (r *nodeReconciler) busy(ctx context.Context, k topology.Key, pending bool) (bool, error) {
	var n v1alpha1.ReplicationNode
	if err := r.Get(ctx, k, &n); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	plan := r.board.node(k)
	if n.DeletionTimestamp != nil || n.Spec.Suspend || plan == nil || plan.UID != n.UID {
		return false, nil
	}
	now, err := look(ctx, r.Client, &n)
	if err != nil || now.object == nil || now.desired == 0 {
		return false, err
	}
	r.rollouts.ended(k, now)
	if _, started := r.rollouts.started[k]; started || now.rolling() {
		return true, nil
	}
	if !pending || now.available < now.desired || plan.Action != topology.Apply && plan.Generation == n.Generation {
		return false, nil
	}
	if plan.Generation != n.Generation { // it is not known yet what the change comes to
		return true, nil
	}
	objects, err := workload.Build(&n, plan, r.options)
	if err != nil {
		return false, err
	}
	return r.applier.changes(ctx, objects.Workload())
}

// changes says whether a workload that is there is of another plan than the desired.
func (a *applier) changes(ctx context.Context, desired *unstructured.Unstructured) (bool, error) {
	typed, err := a.Scheme().New(desired.GroupVersionKind())
	if err != nil {
		return false, err
	}
	there := typed.(client.Object)
	if err := a.Get(ctx, client.ObjectKeyFromObject(desired), there); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return hashOf(there) != hashOf(desired), nil
}

// hashOf is the hash of an object as it was last applied, or is to be.
func hashOf(o client.Object) string { return o.GetAnnotations()[workload.AnnotationDesiredHash] }
