package controllers

import (
	"context"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

const maxSourceNodes = 64

// postgresSourceReconciler writes the status of PostgresSources.
type postgresSourceReconciler struct {
	client.Client
	board    *board
	recorder events.EventRecorder
	pace     pace
}

func (r *postgresSourceReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("postgressource").
		For(&v1alpha1.PostgresSource{}).WatchesRawSource(r.board.postgresSources.source()).Complete(r)
}

// Reconcile writes the status of one PostgresSource.
func (r *postgresSourceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var source v1alpha1.PostgresSource
	if err := r.Get(ctx, req.NamespacedName, &source); err != nil {
		r.pace.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	plan := r.board.postgresSource(req.NamespacedName)
	if source.DeletionTimestamp != nil || plan == nil || plan.Generation != source.Generation {
		return reconcile.Result{}, nil
	}
	status := source.Status.DeepCopy()
	status.SourceStatus = sourceStatus(plan, source.Namespace, source.Status.SourceStatus)
	status.Slots = nil
	for _, s := range plan.Slots {
		if len(status.Slots) < maxSourceNodes {
			status.Slots = append(status.Slots, r.slot(s, source.Namespace))
		}
	}
	if written, again, err := putStatus(ctx, r.Client, &r.pace, "PostgresSource", &source, source.Status, *status, withoutWAL); !written {
		return reconcile.Result{RequeueAfter: again}, err
	}
	tell(r.recorder, &source, source.Status.Conditions, status.Conditions)
	return reconcile.Result{}, nil
}

// slot is what is known of a slot: by the plan, and by what its holder says.
func (r *postgresSourceReconciler) slot(s topology.Slot, namespace string) v1alpha1.PostgresSlotStatus {
	out := v1alpha1.PostgresSlotStatus{Name: s.Name, Holder: relative(s.Holder, namespace), Temporary: !s.Permanent}
	if o, _ := r.board.heard(s.Holder); o != nil {
		for _, src := range o.sources {
			if src.name == s.Source {
				out.RetainedWAL = src.retained
			}
		}
	}
	return out
}

func withoutWAL(s v1alpha1.PostgresSourceStatus) v1alpha1.PostgresSourceStatus {
	s = *s.DeepCopy()
	for i := range s.Slots {
		s.Slots[i].RetainedWAL = nil
	}
	return s
}

// fanoutSourceReconciler writes the status of FanoutSources.
type fanoutSourceReconciler struct {
	client.Client
	board    *board
	recorder events.EventRecorder
}

func (r *fanoutSourceReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("fanoutsource").
		For(&v1alpha1.FanoutSource{}).WatchesRawSource(r.board.fanoutSources.source()).Complete(r)
}

// Reconcile writes the status of one FanoutSource.
func (r *fanoutSourceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var source v1alpha1.FanoutSource
	if err := r.Get(ctx, req.NamespacedName, &source); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	plan := r.board.fanoutSource(req.NamespacedName)
	if source.DeletionTimestamp != nil || plan == nil || plan.Generation != source.Generation {
		return reconcile.Result{}, nil
	}
	status := v1alpha1.FanoutSourceStatus{SourceStatus: sourceStatus(plan, source.Namespace, source.Status.SourceStatus)}
	if sameStatus(status, source.Status) {
		return reconcile.Result{}, nil
	}
	if err := applyStatus(ctx, r.Client, "FanoutSource", &source, &status); err != nil {
		return reconcile.Result{}, err
	}
	tell(r.recorder, &source, source.Status.Conditions, status.Conditions)
	return reconcile.Result{}, nil
}

// archiveSourceReconciler writes the status of ArchiveSources.
type archiveSourceReconciler struct {
	client.Client
	board    *board
	recorder events.EventRecorder
}

func (r *archiveSourceReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("archivesource").
		For(&v1alpha1.ArchiveSource{}).WatchesRawSource(r.board.archiveSources.source()).Complete(r)
}

// Reconcile writes the status of one ArchiveSource.
func (r *archiveSourceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var source v1alpha1.ArchiveSource
	if err := r.Get(ctx, req.NamespacedName, &source); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	plan := r.board.archiveSource(req.NamespacedName)
	if source.DeletionTimestamp != nil || plan == nil || plan.Generation != source.Generation {
		return reconcile.Result{}, nil
	}
	status := v1alpha1.ArchiveSourceStatus{SourceStatus: sourceStatus(plan, source.Namespace, source.Status.SourceStatus)}
	if sameStatus(status, source.Status) {
		return reconcile.Result{}, nil
	}
	if err := applyStatus(ctx, r.Client, "ArchiveSource", &source, &status); err != nil {
		return reconcile.Result{}, err
	}
	tell(r.recorder, &source, source.Status.Conditions, status.Conditions)
	return reconcile.Result{}, nil
}

func sourceStatus(plan *topology.SourcePlan, namespace string, now v1alpha1.SourceStatus) v1alpha1.SourceStatus {
	out := *now.DeepCopy()
	out.ObservedGeneration = plan.Generation
	out.Nodes = nil
	for _, n := range plan.Nodes {
		if len(out.Nodes) < maxSourceNodes {
			out.Nodes = append(out.Nodes, relative(n, namespace))
		}
	}
	c := conditions{&out.Conditions, plan.Generation}
	c.plan(plan.Conditions)
	c.summarize(motion{}, v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs)
	return out
}
