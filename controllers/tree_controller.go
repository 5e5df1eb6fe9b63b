package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// treeReconciler keeps the ReplicationNodes of RelayTrees. What they read is in their
// wiring, and what they have stored is left to their claims.
type treeReconciler struct {
	client.Client
	applier  applier
	board    *board
	recorder events.EventRecorder
	pace     pace
}

func (r *treeReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("relaytree").
		For(&v1alpha1.RelayTree{}).
		Owns(&v1alpha1.ReplicationNode{}).
		Watches(&v1alpha1.ReplicationNode{}, handler.EnqueueRequestsFromMapFunc(r.treeOf)).
		WatchesRawSource(r.board.trees.source()).Complete(r)
}

// treeOf is the tree whose status shows a leaf.
func (r *treeReconciler) treeOf(_ context.Context, o client.Object) []reconcile.Request {
	if n := r.board.node(client.ObjectKeyFromObject(o)); n != nil && n.Leaf != nil {
		return []reconcile.Request{{NamespacedName: n.Tree}}
	}
	return nil
}

// Reconcile brings one tree to its plan.
func (r *treeReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var tree v1alpha1.RelayTree
	if err := r.Get(ctx, req.NamespacedName, &tree); err != nil {
		r.pace.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	plan := r.board.tree(req.NamespacedName)
	if tree.DeletionTimestamp != nil || plan == nil || plan.UID != tree.UID || plan.Generation != tree.Generation {
		return reconcile.Result{}, nil // what it owns goes with it; the planner wakes this again
	}
	f := &treeFacts{tree: &tree, plan: plan, nodes: map[topology.Key]*v1alpha1.ReplicationNode{}}
	applied, err := r.apply(ctx, f)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.remove(ctx, f); err != nil {
		return reconcile.Result{}, err
	}
	for _, b := range plan.Branches {
		for _, n := range b.Nodes {
			node := &v1alpha1.ReplicationNode{}
			if err := r.Get(ctx, n.Node, node); client.IgnoreNotFound(err) != nil {
				return reconcile.Result{}, err
			}
			f.nodes[n.Node] = node
			hash, ok := applied[n.Node] // what the cache has may be older
			if node.Name != "" && !(settled(node) && (!ok || hashOf(node) == hash) && r.board.shows(node, tree.Status.ObservedGeneration == tree.Generation)) {
				f.moving = append(f.moving, node.Name)
			}
		}
	}
	var asked bool
	if f.heard, asked = r.board.treeHeard(plan); !asked {
		return reconcile.Result{}, nil // the Poller wakes this again
	}
	return r.write(ctx, f)
}

// apply puts the nodes in place, and returns their hashes. What a person must mend becomes
// a fact, not an error.
func (r *treeReconciler) apply(ctx context.Context, f *treeFacts) (map[topology.Key]string, error) {
	applied := map[topology.Key]string{}
	for i := range f.plan.Want {
		u, err := workload.TreeNode(f.tree, &f.plan.Want[i])
		if err != nil {
			return nil, err
		}
		applied[client.ObjectKeyFromObject(u)] = hashOf(u)
		if err := f.settle("tree", r.applier.ensure(ctx, f.tree, u)); err != nil { // the other nodes do not wait for one
			return nil, err
		}
	}
	return applied, nil
}

// remove deletes the nodes that have drained. Their volumes are left to their claims.
func (r *treeReconciler) remove(ctx context.Context, f *treeFacts) error {
	for _, k := range f.plan.Remove {
		var n v1alpha1.ReplicationNode
		if err := r.Get(ctx, k, &n); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return err
		}
		if !metav1.IsControlledBy(&n, f.tree) || n.DeletionTimestamp != nil || slices.ContainsFunc(f.plan.Want, func(w v1alpha1.ReplicationNode) bool { return w.Name == k.Name }) {
			continue
		}
		if err := r.applier.remove(ctx, &n); err != nil {
			return err
		}
		r.recorder.Eventf(f.tree, &n, corev1.EventTypeNormal, "NodeRemoved", "Drain", "The node %s is no longer asked for, and those above have all that it had: it is removed.", k.Name)
	}
	return nil
}

func (r *treeReconciler) write(ctx context.Context, f *treeFacts) (result reconcile.Result, err error) {
	if f.conflict != "" {
		result.RequeueAfter = conflictRecheck
	}
	status := f.status()
	if written, again, err := putStatus(ctx, r.Client, &r.pace, "RelayTree", f.tree, f.tree.Status, status, treeWithoutLag); !written {
		if again > 0 {
			result.RequeueAfter = again
		}
		return result, err
	}
	tell(r.recorder, f.tree, f.tree.Status.Conditions, status.Conditions)
	tellOf(r.recorder, f.tree, v1alpha1.ConditionLogsBounded, f.tree.Status.Conditions, status.Conditions)
	tellOf(r.recorder, f.tree, v1alpha1.ConditionSettled, f.tree.Status.Conditions, status.Conditions)
	for _, o := range status.Overlaps {
		if !slices.ContainsFunc(f.tree.Status.Overlaps, func(was v1alpha1.TreeOverlap) bool { return was.Table == o.Table }) {
			r.recorder.Eventf(f.tree, nil, corev1.EventTypeWarning, "KeysOverlap", "Receive", "%s", limited(fmt.Sprintf("Several leaves write the same rows of %s; its conflict policy says what becomes of them.", o.Table)))
		}
	}
	for _, root := range f.tree.Status.Registered {
		if !slices.Contains(status.Registered, root) {
			r.recorder.Eventf(f.tree, nil, corev1.EventTypeWarning, "RootUnregistered", "Unregister", "The root %s is no longer in spec.roots: leaves no longer keep anything for it. If it comes back, it starts from the beginning.", root)
		}
	}
	return result, nil
}

// treeWithoutLag leaves out of a status what changes while data flows.
func treeWithoutLag(s v1alpha1.RelayTreeStatus) v1alpha1.RelayTreeStatus {
	s = *s.DeepCopy()
	s.RootLag = ""
	for i := range s.Roots {
		s.Roots[i].Lag = ""
	}
	for i := range s.Branches {
		s.Branches[i].Lag = ""
		for j := range s.Branches[i].Nodes {
			s.Branches[i].Nodes[j].Lag = ""
		}
	}
	return s
}
