package controllers

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

// meshReconciler writes the status of ReplicationMeshes. Their wiring is that of
// their members.
type meshReconciler struct {
	client.Client
	board    *board
	recorder events.EventRecorder
	pace     pace
}

func (r *meshReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("replicationmesh").
		For(&v1alpha1.ReplicationMesh{}).
		Watches(&v1alpha1.ReplicationNode{}, handler.EnqueueRequestsFromMapFunc(r.meshOf)).
		WatchesRawSource(r.board.meshes.source()).Complete(r)
}

// meshOf is the mesh whose status shows a node.
func (r *meshReconciler) meshOf(_ context.Context, o client.Object) []reconcile.Request {
	if n := r.board.node(client.ObjectKeyFromObject(o)); n != nil && n.Mesh != (topology.Key{}) {
		return []reconcile.Request{{NamespacedName: n.Mesh}}
	}
	return nil
}

// Reconcile writes the status of one ReplicationMesh if it has changed; if nothing
// but positions and lag has, at most every lagEvery.
func (r *meshReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mesh v1alpha1.ReplicationMesh
	if err := r.Get(ctx, req.NamespacedName, &mesh); err != nil {
		r.pace.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	plan := r.board.mesh(req.NamespacedName)
	if mesh.DeletionTimestamp != nil || plan == nil || plan.Generation != mesh.Generation {
		return reconcile.Result{}, nil
	}
	f := &meshFacts{mesh: &mesh, plan: plan, nodes: map[topology.Key]*v1alpha1.ReplicationNode{}}
	for _, m := range plan.Members {
		n := &v1alpha1.ReplicationNode{}
		if err := r.Get(ctx, m.Node, n); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
		f.nodes[m.Node] = n
		if n.Name != "" && !(settled(n) && r.board.shows(n, mesh.Status.ObservedGeneration == mesh.Generation)) {
			f.moving = append(f.moving, n.Name)
		}
	}
	var asked bool
	if f.heard, asked = r.board.membersHeard(plan); !asked {
		return reconcile.Result{}, nil // the Poller wakes this again
	}
	status := f.status()
	if written, again, err := putStatus(ctx, r.Client, &r.pace, "ReplicationMesh", &mesh, mesh.Status, status, withoutProgress); !written {
		return reconcile.Result{RequeueAfter: again}, err
	}
	tell(r.recorder, &mesh, mesh.Status.Conditions, status.Conditions)
	return reconcile.Result{}, nil
}

// withoutProgress leaves out of a status what changes while data flows.
func withoutProgress(s v1alpha1.ReplicationMeshStatus) v1alpha1.ReplicationMeshStatus {
	s = *s.DeepCopy()
	s.Lag, s.Origins = "", nil
	for i := range s.Members {
		s.Members[i].Lag = ""
	}
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionConverged)
	return s
}
