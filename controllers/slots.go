package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
)

const (
	// DefaultSlotTimeout bounds how long a node that is being deleted waits for its
	// slots to be dropped.
	DefaultSlotTimeout = 2 * time.Minute
	// slotRecheck is how soon it is looked at again; pods are not watched for it.
	slotRecheck = 2 * time.Second
)

// guardSlots gives a node the finalizer while it has slots that must not outlive
// it, and takes it away when it has none any more.
func (r *nodeReconciler) guardSlots(ctx context.Context, f *facts) (done bool, err error) {
	if f.plan.Action != topology.Apply {
		return true, nil // what its sources say is not known
	}
	return r.setFinalizer(ctx, f.node, len(workload.DropSlots(f.plan)) > 0)
}

// setFinalizer puts the finalizer in or takes it out. It is not done if the cache is behind:
// the node wakes this again as it comes there.
func (r *nodeReconciler) setFinalizer(ctx context.Context, n *v1alpha1.ReplicationNode, wanted bool) (done bool, err error) {
	if controllerutil.ContainsFinalizer(n, v1alpha1.FinalizerSlots) == wanted {
		return true, nil
	}
	before := n.DeepCopy()
	if wanted {
		controllerutil.AddFinalizer(n, v1alpha1.FinalizerSlots)
	} else {
		controllerutil.RemoveFinalizer(n, v1alpha1.FinalizerSlots)
	}
	err = r.Patch(ctx, n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldOwner)
	if apierrors.IsConflict(err) {
		return false, nil
	}
	return true, client.IgnoreNotFound(err)
}

// letGo takes the finalizer of a node that is being deleted out.
func (r *nodeReconciler) letGo(ctx context.Context, n *v1alpha1.ReplicationNode) (reconcile.Result, error) {
	_, err := r.setFinalizer(ctx, n, false)
	return reconcile.Result{}, err
}

// finalize ends the pods of a node that is being deleted, has its slots dropped,
// and lets it go; when the time is over it lets it go all the same.
func (r *nodeReconciler) finalize(ctx context.Context, n *v1alpha1.ReplicationNode) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(n, v1alpha1.FinalizerSlots) {
		return reconcile.Result{}, nil // what it owns goes with it, and pods drain
	}
	left := time.Until(n.DeletionTimestamp.Add(r.slotTimeout))
	var sts appsv1.StatefulSet
	err := r.Get(ctx, client.ObjectKeyFromObject(n), &sts)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	if err != nil || !metav1.IsControlledBy(&sts, n) || len(workload.SlotsToDrop(&sts)) == 0 {
		return r.letGo(ctx, n) // it has never run
	}
	done, problem, err := r.dropSlots(ctx, n, &sts)
	names := strings.Join(workload.SlotsToDrop(&sts), ", ")
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // nothing can be made there any more, not even an event
		log.FromContext(ctx).Info("a node goes with its namespace, and its slots may stay: drop them at their server", "slots", names)
		return r.letGo(ctx, n)
	case err != nil: // it is tried again, within the bound
		done, problem = false, err.Error()
	}
	switch {
	case done && problem == "":
		r.recorder.Eventf(n, nil, corev1.EventTypeNormal, "SlotsDropped", "Delete", "Dropped, or found gone: %s.", names)
	case done || left <= 0:
		if problem == "" {
			problem = fmt.Sprintf("it was not done within %s", r.slotTimeout)
		}
		r.recorder.Eventf(n, nil, corev1.EventTypeWarning, "SlotsRetained", "Delete",
			"%s", limited(fmt.Sprintf("The node goes, and these slots may stay: %s (%s). A slot that stays makes its server keep WAL; drop it there: SELECT pg_drop_replication_slot('NAME').", names, problem)))
	default:
		return reconcile.Result{RequeueAfter: min(slotRecheck, left)}, nil
	}
	return r.letGo(ctx, n)
}

// dropSlots goes on with dropping slots: pods end first, so that the slots are
// free, then a Job drops them. A problem with done is final.
func (r *nodeReconciler) dropSlots(ctx context.Context, n *v1alpha1.ReplicationNode, sts *appsv1.StatefulSet) (done bool, problem string, err error) {
	if err := r.applier.stop(ctx, &running{object: sts, desired: *sts.Spec.Replicas}); err != nil {
		return false, "", err
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(n.Namespace), client.MatchingLabels(workload.NodePods(n.Name))); err != nil {
		return false, "", err
	}
	if len(pods.Items) > 0 {
		return false, "the pod " + pods.Items[0].Name + " has not ended", nil
	}
	var job batchv1.Job
	err = r.Get(ctx, client.ObjectKey{Namespace: n.Namespace, Name: workload.DropJobName(n.Name)}, &job)
	if client.IgnoreNotFound(err) != nil {
		return false, "", err
	}
	if err != nil { // there is none yet
		// the same each time, since a Job that the cache does not show yet cannot change
		desired, err := workload.DropJob(n, sts, r.slotTimeout)
		if err != nil {
			return false, "", err
		}
		return false, "", r.applier.ensure(ctx, n, desired)
	}
	problem, err = r.jobProblem(ctx, n)
	done, well := workload.Finished(&job)
	if well {
		problem = ""
	} else if done && problem == "" {
		problem = "the Job " + job.Name + " failed"
	}
	return done, problem, err
}

// jobProblem is the last word of the pods of the Job that drops slots.
func (r *nodeReconciler) jobProblem(ctx context.Context, n *v1alpha1.ReplicationNode) (string, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(n.Namespace), client.MatchingLabels(workload.JobPods(n.Name))); err != nil {
		return "", err
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	problem := ""
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
				problem = strings.TrimSpace(t.Message)
			}
		}
	}
	return problem, nil
}
