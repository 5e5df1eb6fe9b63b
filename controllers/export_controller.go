package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// exportReconciler runs ArchiveExports. It never touches what they have written.
type exportReconciler struct {
	client.Client
	applier  applier
	board    *board
	recorder events.EventRecorder
	options  workload.Options
	pace     pace
}

func (r *exportReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("archiveexport").
		For(&v1alpha1.ArchiveExport{}).
		Owns(&v1alpha1.ReplicationNode{}).Owns(&batchv1.Job{}).Owns(&batchv1.CronJob{}).
		Owns(&corev1.ConfigMap{}).Owns(&corev1.ServiceAccount{}).Owns(&networkingv1.NetworkPolicy{}).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(exportOfObject)). // a schedule's belong to its CronJob
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(exportOfObject)).
		WatchesRawSource(r.board.exports.source()).
		Complete(r)
}

func exportOfObject(_ context.Context, o client.Object) []reconcile.Request {
	if name := o.GetLabels()[workload.LabelExport]; name != "" {
		return []reconcile.Request{{NamespacedName: topology.Key{Namespace: o.GetNamespace(), Name: name}}}
	}
	return nil
}

// exportFacts is everything that the status of an export is made from.
type exportFacts struct {
	export   *v1alpha1.ArchiveExport
	plan     *topology.Export
	workload string
	node     *v1alpha1.ReplicationNode // of one that goes on
	applied  string                    // hash of what runs it, as it was just applied
	cron     *batchv1.CronJob          // of one with a schedule
	job      *batchv1.Job              // the last
	done     bool                      // that ran once is complete, though its Job may be gone
	result   *nodeconfig.ArchiveResult // the last word of its pod
	observed *observed                 // while it runs
	obstacle
}

// Reconcile brings one export to its plan.
func (r *exportReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var export v1alpha1.ArchiveExport
	if err := r.Get(ctx, req.NamespacedName, &export); err != nil {
		r.pace.forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	plan := r.board.export(req.NamespacedName)
	if export.DeletionTimestamp != nil || plan == nil || plan.Generation != export.Generation {
		return reconcile.Result{}, nil // what it owns goes with it; the planner wakes this again
	}
	f := &exportFacts{export: &export, plan: plan}
	if err := r.apply(ctx, f); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.look(ctx, f); err != nil {
		return reconcile.Result{}, err
	}
	return r.write(ctx, f)
}

// apply puts the plan in place. One that was written once is left alone, whatever
// becomes of its Job.
func (r *exportReconciler) apply(ctx context.Context, f *exportFacts) error {
	if !f.plan.Ready() {
		return nil
	}
	objects, err := workload.BuildExport(f.export, f.plan, r.options)
	if err != nil {
		return err
	}
	w := objects.Workload()
	f.workload, f.applied = w.GetKind()+"/"+w.GetName(), hashOf(w)
	if objects.Job != "" {
		complete := meta.IsStatusConditionTrue(f.export.Status.Conditions, v1alpha1.ConditionComplete)
		if f.done = complete && f.export.Status.Job == objects.Job; f.done {
			return nil
		}
		if err := r.removeJobs(ctx, f.export, objects.Job); err != nil {
			return err
		}
	}
	for _, o := range objects.List {
		if err := f.settle("export", r.applier.ensure(ctx, f.export, o)); err != nil || f.stands() {
			return err
		}
	}
	return nil
}

func (r *exportReconciler) jobs(ctx context.Context, e *v1alpha1.ArchiveExport) ([]batchv1.Job, error) {
	var jobs batchv1.JobList
	if err := r.List(ctx, &jobs, client.InNamespace(e.Namespace), client.MatchingLabels(workload.JobsOf(e.Name))); err != nil {
		return nil, err
	}
	slices.SortFunc(jobs.Items, func(a, b batchv1.Job) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return jobs.Items, nil
}

// removeJobs deletes the Jobs of other specs.
func (r *exportReconciler) removeJobs(ctx context.Context, e *v1alpha1.ArchiveExport, except string) error {
	jobs, err := r.jobs(ctx, e)
	for i := range jobs {
		if j := &jobs[i]; err == nil && j.Name != except && metav1.IsControlledBy(j, e) {
			err = r.applier.remove(ctx, j)
		}
	}
	return err
}

// look reads what runs the export, and how it is.
func (r *exportReconciler) look(ctx context.Context, f *exportFacts) error {
	e := f.export
	name := client.ObjectKey{Namespace: e.Namespace, Name: topology.ExportNodeName(e.Name)}
	if e.Spec.Mode == v1alpha1.ExportFollow {
		var n v1alpha1.ReplicationNode
		err := r.Get(ctx, name, &n)
		if err == nil && metav1.IsControlledBy(&n, e) {
			f.node = &n
		}
		return client.IgnoreNotFound(err)
	}
	if e.Spec.Mode == v1alpha1.ExportScheduled {
		var c batchv1.CronJob
		if err := r.Get(ctx, name, &c); client.IgnoreNotFound(err) != nil {
			return err
		} else if err == nil && metav1.IsControlledBy(&c, e) {
			f.cron = &c
		}
	}
	jobs, err := r.jobs(ctx, e)
	if err != nil || len(jobs) == 0 {
		return err
	}
	f.job = &jobs[len(jobs)-1]
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(e.Namespace), client.MatchingLabels{batchv1.JobNameLabel: f.job.Name}); err != nil {
		return err
	}
	f.result = lastWord(pods.Items)
	if done, _ := workload.Finished(f.job); !done {
		f.observed, _ = r.board.heard(name)
	}
	return nil
}

// lastWord is what the container that ended last has left.
func lastWord(pods []corev1.Pod) (out *nodeconfig.ArchiveResult) {
	var at metav1.Time
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			t := s.State.Terminated
			if t == nil || out != nil && t.FinishedAt.Before(&at) {
				continue
			}
			r := &nodeconfig.ArchiveResult{}
			if json.Unmarshal([]byte(t.Message), r) != nil {
				r = &nodeconfig.ArchiveResult{Error: strings.TrimSpace(t.Message)} // the end of its log
			}
			if t.ExitCode != 0 && r.Error == "" {
				r.Error = fmt.Sprintf("The container ended with %d: %s", t.ExitCode, cmp.Or(t.Reason, "see its log"))
			}
			at, out = t.FinishedAt, r
		}
	}
	return out
}

func (r *exportReconciler) write(ctx context.Context, f *exportFacts) (result reconcile.Result, err error) {
	if f.conflict != "" {
		result.RequeueAfter = conflictRecheck
	}
	status := f.status()
	if written, again, err := putStatus(ctx, r.Client, &r.pace, "ArchiveExport", f.export, f.export.Status, status, exportWithoutLag); !written {
		if again > 0 {
			result.RequeueAfter = again
		}
		return result, err
	}
	tell(r.recorder, f.export, f.export.Status.Conditions, status.Conditions)
	tellOf(r.recorder, f.export, v1alpha1.ConditionComplete, f.export.Status.Conditions, status.Conditions)
	return result, nil
}

func exportWithoutLag(s v1alpha1.ArchiveExportStatus) v1alpha1.ArchiveExportStatus {
	s = *s.DeepCopy()
	s.Lag, s.ArchiveProgress = "", archiveWithoutProgress(s.ArchiveProgress)
	return s
}

// status makes the status of an export. It starts from the present one, for the times
// of its conditions and for what its last run has written.
func (f *exportFacts) status() v1alpha1.ArchiveExportStatus {
	s := *f.export.Status.DeepCopy()
	s.ObservedGeneration = f.export.Generation
	if f.workload != "" {
		s.Workload = f.workload
	}
	c := conditions{&s.Conditions, f.export.Generation}
	c.plan(f.plan.Conditions)
	if f.invalid != "" {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, f.invalid)
	}
	kinds := []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionWorkloadAvailable, v1alpha1.ConditionArchiveHealthy}
	if f.export.Spec.Mode == v1alpha1.ExportFollow {
		f.following(&s, c)
		c.summarize(f.moving(), kinds...)
		return s
	}
	f.running(&s, c)
	if f.export.Spec.Mode != v1alpha1.ExportScheduled {
		kinds = append(kinds, v1alpha1.ConditionComplete)
	}
	c.summarize(motion{}, kinds...)
	return s
}

// moving says whether the node of an export that goes on is not yet what it is to be.
func (f *exportFacts) moving() motion {
	if n := f.node; n != nil && (!settled(n) || f.applied != "" && hashOf(n) != f.applied) {
		return onTheirWay([]string{n.Name})
	}
	return motion{}
}

// following is the status of an export that goes on: that of its node.
func (f *exportFacts) following(s *v1alpha1.ArchiveExportStatus, c conditions) {
	switch n := f.node; {
	case f.conflict != "":
		c.set(v1alpha1.ConditionWorkloadAvailable, metav1.ConditionFalse, v1alpha1.ReasonObjectConflict, f.conflict)
		c.set(v1alpha1.ConditionArchiveHealthy, metav1.ConditionUnknown, v1alpha1.ReasonWaiting, "Nothing writes the archive.")
	case n == nil:
		c.set(v1alpha1.ConditionWorkloadAvailable, metav1.ConditionFalse, v1alpha1.ReasonWaiting, "The node is not created before the other conditions allow it.")
		c.set(v1alpha1.ConditionArchiveHealthy, metav1.ConditionUnknown, v1alpha1.ReasonWaiting, "Nothing writes the archive yet.")
	default:
		if len(n.Status.Archives) > 0 {
			a := n.Status.Archives[0].DeepCopy()
			s.ArchiveProgress, s.Lag = a.ArchiveProgress, a.Lag
		}
		of := func(as, kind string) {
			found := meta.FindStatusCondition(n.Status.Conditions, kind)
			if found == nil || n.Status.ObservedGeneration != n.Generation {
				c.set(as, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, fmt.Sprintf("The node %s is being looked at.", n.Name))
				return
			}
			message := found.Message
			if found.Status != metav1.ConditionTrue {
				message = fmt.Sprintf("The node %s: %s", n.Name, message)
			}
			c.set(as, found.Status, found.Reason, message)
		}
		of(v1alpha1.ConditionWorkloadAvailable, v1alpha1.ConditionReady)
		of(v1alpha1.ConditionArchiveHealthy, v1alpha1.ConditionArchiveHealthy)
	}
}

// running is the status of an export that ends: that of its last Job.
func (f *exportFacts) running(s *v1alpha1.ArchiveExportStatus, c conditions) {
	scheduled := f.export.Spec.Mode == v1alpha1.ExportScheduled
	done, well := f.done, f.done
	if f.job != nil {
		done, well = workload.Finished(f.job)
		s.Job, s.StartTime = f.job.Name, f.job.Status.StartTime
		if well {
			s.CompletionTime = f.job.Status.CompletionTime
		}
	}
	if f.observed != nil && len(f.observed.archives) > 0 {
		s.ArchiveProgress = f.observed.archives[0].ArchiveProgress
	}
	if f.result != nil && (f.result.Error == "" || !well) {
		if p := progress(f.result); p.Generation > 0 {
			s.ArchiveProgress = p
		} else {
			s.LastError = p.LastError
		}
	}
	available := func(status metav1.ConditionStatus, reason, message string) {
		c.set(v1alpha1.ConditionWorkloadAvailable, status, reason, message)
	}
	healthy := func(status metav1.ConditionStatus, reason, message string) {
		c.set(v1alpha1.ConditionArchiveHealthy, status, reason, message)
	}
	complete := func(status metav1.ConditionStatus, reason, message string) {
		c.set(v1alpha1.ConditionComplete, status, reason, message)
	}
	const tried = "The archive is as it was before, and is whole: a base counts once it is listed."
	switch {
	case f.conflict != "":
		available(metav1.ConditionFalse, v1alpha1.ReasonObjectConflict, f.conflict)
	case f.workload == "":
		available(metav1.ConditionFalse, v1alpha1.ReasonWaiting, "The Job is not created before the other conditions allow it.")
	case f.export.Spec.Suspend && !done:
		available(metav1.ConditionFalse, v1alpha1.ReasonSuspended, "spec.suspend is true: nothing runs.")
	default:
		available(metav1.ConditionTrue, v1alpha1.ReasonAvailable, "What runs the export is there.")
	}
	switch {
	case done && well:
		healthy(metav1.ConditionTrue, v1alpha1.ReasonArchiveStreaming, "The archive was written.")
		complete(metav1.ConditionTrue, v1alpha1.ReasonComplete, "The archive was written.")
		s.LastError, s.NextStep = "", "Nothing: the export is written. Another spec writes it again."
		if scheduled {
			s.NextStep = "The next base is written at " + f.export.Spec.Schedule + "."
		}
	case done:
		message := "The Job " + s.Job + " failed: " + cmp.Or(s.LastError, "see the logs of its pods") + " " + tried
		healthy(metav1.ConditionFalse, v1alpha1.ReasonExportFailed, message)
		complete(metav1.ConditionFalse, v1alpha1.ReasonExportFailed, message)
		s.NextStep = "Mend what the message says, then delete the Job " + s.Job + ": another is made."
		if scheduled {
			s.NextStep = "It is tried again at " + f.export.Spec.Schedule + "."
		}
	case f.job != nil && s.LastError != "" && f.job.Status.Failed > 0:
		healthy(metav1.ConditionFalse, v1alpha1.ReasonArchiveRetrying, "A try failed: "+s.LastError+" "+tried)
		complete(metav1.ConditionFalse, v1alpha1.ReasonExporting, "The archive is being written.")
		s.NextStep = "The Job tries again by itself."
	case f.job != nil:
		healthy(metav1.ConditionUnknown, v1alpha1.ReasonExporting, "The archive is being written.")
		complete(metav1.ConditionFalse, v1alpha1.ReasonExporting, "The archive is being written.")
		s.NextStep = "The tables are read, and then a base of each is written."
	case scheduled && f.cron != nil:
		healthy(metav1.ConditionTrue, v1alpha1.ReasonScheduled, "The first base is written at the time that the schedule says.")
		complete(metav1.ConditionFalse, v1alpha1.ReasonScheduled, "The first base is written at the time that the schedule says.")
		s.NextStep = "The first base is written at " + f.export.Spec.Schedule + "."
	default:
		healthy(metav1.ConditionUnknown, v1alpha1.ReasonWaiting, "Nothing writes the archive yet.")
		complete(metav1.ConditionFalse, v1alpha1.ReasonWaiting, "Nothing writes the archive yet.")
	}
}
