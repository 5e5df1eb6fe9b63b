package controllers

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// nodeReconciler puts the plans of nodes in place and writes their status.
type nodeReconciler struct {
	client.Client
	applier  applier
	board    *board
	recorder events.EventRecorder
	options  workload.Options
	pace     pace
	rollouts rollouts
	// slotTimeout bounds how long slots are tried to be dropped.
	slotTimeout time.Duration
}

const (
	// conflictRecheck is how soon an object that is in the way is looked at
	// again; no watch tells.
	conflictRecheck = 30 * time.Second
	// expansionRecheck is how soon a volume that may not grow is tried again.
	expansionRecheck = 5 * time.Minute
)

func (r *nodeReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("replicationnode").
		For(&v1alpha1.ReplicationNode{}).
		Owns(&appsv1.Deployment{}).Owns(&appsv1.StatefulSet{}).
		Owns(&corev1.Service{}).Owns(&corev1.ConfigMap{}).Owns(&corev1.ServiceAccount{}).
		Owns(&policyv1.PodDisruptionBudget{}).Owns(&networkingv1.NetworkPolicy{}).Owns(&batchv1.Job{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(nodeOfClaim)).
		WatchesRawSource(r.board.nodes.source()).
		Complete(r)
}

// nodeOfClaim is the node whose volume a claim is for.
func nodeOfClaim(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: topology.Key{Namespace: o.GetNamespace(), Name: o.GetLabels()[workload.LabelInstance]}}}
}

// Reconcile brings one node to its plan.
func (r *nodeReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var node v1alpha1.ReplicationNode
	if err := r.Get(ctx, req.NamespacedName, &node); err != nil {
		r.pace.forget(req.NamespacedName)
		r.rollouts.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if node.DeletionTimestamp != nil {
		return r.finalize(ctx, &node)
	}
	plan := r.board.node(req.NamespacedName)
	if plan == nil || plan.UID != node.UID || plan.Generation != node.Generation {
		return reconcile.Result{}, nil // the planner wakes this again
	}
	f := &facts{node: &node, plan: plan}
	if done, err := r.guardSlots(ctx, f); !done || err != nil {
		return reconcile.Result{}, err
	}
	if err := r.apply(ctx, f); err != nil {
		return reconcile.Result{}, err
	}
	var err error
	if f.volume, err = r.applier.volume(ctx, &node); err != nil {
		return reconcile.Result{}, err
	}
	if f.running, err = look(ctx, r.Client, &node); err != nil {
		return reconcile.Result{}, err
	}
	if f.objects != nil && f.waits == "" && !f.stands() {
		f.running.expect(f.objects.Workload())
	}
	r.rollouts.ended(req.NamespacedName, f.running)
	if node.Spec.Suspend {
		if err := r.applier.stop(ctx, f.running); err != nil {
			return reconcile.Result{}, err
		}
	}
	var asked bool
	if f.observed, asked = r.board.heard(req.NamespacedName); !asked {
		return reconcile.Result{}, nil // the Poller wakes this again
	}
	return r.write(ctx, f)
}

// apply puts as much of the plan in place as it says. What a person must mend
// becomes a fact, not an error.
func (r *nodeReconciler) apply(ctx context.Context, f *facts) error {
	if f.plan.Action == topology.Hold {
		return nil
	}
	if f.plan.Action == topology.Rewire {
		wiring, err := workload.BuildWiring(f.node, f.plan)
		if err != nil {
			return err
		}
		return f.settle("node", r.applier.ensure(ctx, f.node, wiring))
	}
	objects, err := workload.Build(f.node, f.plan, r.options)
	if err != nil {
		return err
	}
	f.objects = objects
	if f.waits, err = r.turn(ctx, f); err != nil {
		return err
	}
	for _, o := range objects.List {
		if f.waits != "" && objects.Rolls(o) {
			continue
		}
		if err := f.settle("node", r.applier.ensure(ctx, f.node, o)); err != nil || f.stands() {
			return err
		}
	}
	return r.applier.removeOther(ctx, f.node, f.plan.Single)
}

func (r *nodeReconciler) write(ctx context.Context, f *facts) (result reconcile.Result, err error) {
	switch {
	case f.conflict != "":
		result.RequeueAfter = conflictRecheck
	case f.waits != "":
		result.RequeueAfter = rolloutRecheck
	case f.volume != nil && f.volume.refused:
		result.RequeueAfter = expansionRecheck
	}
	status := f.status()
	if written, again, err := putStatus(ctx, r.Client, &r.pace, "ReplicationNode", f.node, f.node.Status, status, withoutLag); !written {
		if again > 0 && (result.RequeueAfter == 0 || again < result.RequeueAfter) {
			result.RequeueAfter = again
		}
		if err == nil {
			r.board.show(client.ObjectKeyFromObject(f.node), f.plan, &status)
		}
		return result, err
	}
	r.board.show(client.ObjectKeyFromObject(f.node), f.plan, &status)
	tell(r.recorder, f.node, f.node.Status.Conditions, status.Conditions)
	tellOf(r.recorder, f.node, v1alpha1.ConditionArchiveHealthy, f.node.Status.Conditions, status.Conditions)
	if was := f.node.Status.Parent; was != "" && status.Parent != "" && was != status.Parent {
		r.recorder.Eventf(f.node, nil, corev1.EventTypeNormal, "ParentChanged", "Reparent", "Reads from %s instead of %s.", status.Parent, was)
	}
	r.tellHistory(f, status)
	return result, nil
}

// tellHistory makes events of what happens to a node's history and is over before a
// condition could show it. Pods that are new count from nothing.
func (r *nodeReconciler) tellHistory(f *facts, now v1alpha1.ReplicationNodeStatus) {
	if f.observed == nil {
		return
	}
	lost := map[string]int64{}
	for _, s := range f.node.Status.Sources {
		lost[s.Name] = s.HistoryLost
	}
	for _, s := range now.Sources {
		if s.HistoryLost > lost[s.Name] {
			r.recorder.Eventf(f.node, nil, corev1.EventTypeWarning, "HistoryLost", "TakeEpoch", "%s",
				limited(fmt.Sprintf("Source %s: others held more of its log than this node, as after a restore from a backup. It has taken a new epoch, and overwrites nothing that is newer elsewhere. %s", s.Name, f.observed.causeOf(s.Name))))
		}
	}
	if now.Rebaselines > f.node.Status.Rebaselines {
		r.recorder.Eventf(f.node, nil, corev1.EventTypeNormal, "Rebaselined", "Baseline", "%s", limited(strings.TrimSpace("Tables were copied again. "+f.observed.cause)))
	}
}

// withoutLag leaves out of a status what changes all the time.
func withoutLag(s v1alpha1.ReplicationNodeStatus) v1alpha1.ReplicationNodeStatus {
	s = *s.DeepCopy()
	s.Lag = ""
	for i := range s.Origins {
		s.Origins[i].Lag, s.Origins[i].LagChanges = "", nil
	}
	for i := range s.Sources {
		s.Sources[i].RetainedWAL = nil
	}
	for i := range s.Sinks {
		s.Sinks[i].DeadLetters = 0
	}
	for i := range s.Archives {
		a := &s.Archives[i]
		a.Lag, a.Replays, a.ArchiveProgress = "", 0, archiveWithoutProgress(a.ArchiveProgress)
	}
	if s.Storage != nil {
		s.Storage.Used = nil
	}
	return s
}
