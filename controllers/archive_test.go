package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

const keys = `
kind: Secret
apiVersion: v1
metadata: {name: keys}
stringData: {accessKeyID: AKIA-NOT-SEEN, secretAccessKey: never-to-be-seen, other: never-to-be-seen}
---`

// inBucket is an archive in a bucket of a test's own: a plan is of the whole cluster.
func inBucket(ns, prefix string) string {
	return "store: {s3: {bucket: " + ns + ", endpoint: 'http://s3.test:9000', credentials: {secretRef: {name: keys}}}}, keyPrefix: " + prefix + ", group: true"
}

func exportCondition(t *testing.T, ns, name, kind string, status metav1.ConditionStatus, reason, message string) *v1alpha1.ArchiveExport {
	t.Helper()
	var e *v1alpha1.ArchiveExport
	eventually(t, fmt.Sprintf("%s: %s=%s, %s", name, kind, status, reason), func(ctx context.Context) (err error) {
		if e, err = get[v1alpha1.ArchiveExport](ctx, ns, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(e.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) || c.ObservedGeneration != e.Generation {
			return fmt.Errorf("generation %d has %+v", e.Generation, e.Status)
		}
		return nil
	})
	return e
}

// A node's archives and a seed become configuration and mounts; no key of a Secret
// stands anywhere else.
func TestArchivesOfNodes(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+keys+with(rootNode("root"), "storage: {type: Persistent, size: 1Gi}\n  archives: [{name: cold, "+inBucket(ns, "prod/")+", write: {interval: 5s}}]")+`
kind: ArchiveSource
metadata: {name: seed}
spec:
  type: file
  store: {local: {configMap: {name: seed, items: [{key: orders.manifest, path: public.orders/manifest.json}]}}}
  group: true
  tables: [{schema: public, name: orders}]
---
kind: ReplicationNode
metadata: {name: dev}
spec: {sources: [{name: seed, archiveSourceRef: {name: seed}}]}
---
kind: ArchiveSource
metadata: {name: astray}
spec: {`+inBucket(ns, "produce/")+`, tables: [{schema: public, name: orders}]}
`)
	static := func(name string) (c *nodeconfig.Config) {
		t.Helper()
		eventually(t, "the configuration of "+name, func(ctx context.Context) error {
			cm, err := get[corev1.ConfigMap](ctx, ns, name+"-static")
			if err != nil {
				return err
			}
			if strings.Contains(cm.Data["node.yaml"], "never-to-be-seen") || strings.Contains(cm.Data["node.yaml"], "AKIA") {
				t.Error("a key stands in a ConfigMap")
			}
			c, err = nodeconfig.Parse("node.yaml", []byte(cm.Data["node.yaml"]))
			return err
		})
		return c
	}
	if a := static("root").Archives[0]; a.Name != "cold" || a.Write == nil || a.Write.Interval != 5*time.Second || a.StoreConfig.Credentials.SecretKeyFile != "/etc/tributary/secrets/keys/secretAccessKey" {
		t.Errorf("%+v", a)
	}
	if s := static("dev").Sources[0].Archive; s == nil || s.Store != nodeconfig.StoreLocal || !strings.HasPrefix(s.StoreConfig.Path, "/var/lib/tributary-archives/configmap/seed-") {
		t.Errorf("%+v", s)
	}
	var dev *appsv1.Deployment
	eventually(t, "the Deployment", func(ctx context.Context) (err error) { dev, err = get[appsv1.Deployment](ctx, ns, "dev"); return err })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe", Labels: dev.Spec.Template.Labels}, Spec: dev.Spec.Template.Spec}
	if err := cl.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Error(err)
	}
	eventually(t, "a warning of the prefix", func(ctx context.Context) error {
		s, err := get[v1alpha1.ArchiveSource](ctx, ns, "astray")
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionResolvedRefs)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonKeyPrefixUnwritten || !strings.Contains(c.Message, "produce/public.orders/manifest.json") || !strings.Contains(c.Message, " prod/public.orders/manifest.json") {
			return fmt.Errorf("%+v", s.Status)
		}
		if !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady) {
			return errors.New("a warning affects Ready")
		}
		return nil
	})
}

// What a node says of its archives is in its status, and status is not written for each
// try that fails.
func TestArchiveHealthy(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+keys+with(rootNode("root"), "storage: {type: Persistent, size: 1Gi}\n  archives: [{name: cold, "+inBucket(ns, "prod/")+", write: {}}]"))
	wantCondition(t, ns, "root", v1alpha1.ConditionArchiveHealthy, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "")
	bind(t, claimFor(t, ns, "root"), "1Gi")
	var state atomic.Value
	state.Store(nodeconfig.ArchiveStreaming)
	var tries atomic.Int64
	doc := func() nodeconfig.Statusz {
		state, tries := state.Load().(string), tries.Add(1)
		return nodeconfig.Statusz{
			Node: ns + "/root", Ready: true, Sources: []nodeconfig.SourceStatus{{Name: "db", Kind: nodeconfig.KindPostgres, State: nodeconfig.StateStreaming}},
			Archives: []nodeconfig.ArchiveStatus{{
				Name: "cold", Destination: "s3://shop", State: state, Writes: true, Message: map[string]string{nodeconfig.ArchiveRetrying: fmt.Sprintf("put: https response error StatusCode: 503, RequestID: r%d, HostID: h%d, api error SlowDown", tries, tries)}[state],
				Tables: []nodeconfig.ArchiveTableStatus{{Table: "public.orders", Generation: 7, Bytes: 3 << 20, LagKnown: true, LagSeconds: 2, Through: []nodeconfig.ArchivePosition{{Origin: "pg", Epoch: "1", Position: "0/16B3748"}}}},
			}},
		}
	}
	(&kubelet{doc: doc}).run(t, ns, "root", "127.0.7.60")
	wantCondition(t, ns, "root", v1alpha1.ConditionArchiveHealthy, metav1.ConditionTrue, v1alpha1.ReasonArchiveStreaming, "")
	n, err := node(t.Context(), ns, "root")
	if err != nil {
		t.Fatal(err)
	}
	a := n.Status.Archives[0]
	if a.Destination != "s3://shop" || a.Generation != 7 || a.Bytes.String() != "3Mi" || a.Lag != "<5s" || len(a.Heads) != 1 || a.Heads[0].Position != "0/16B3748" || a.Heads[0].Table != "public.orders" || a.NextStep == "" {
		t.Errorf("%+v", a)
	}
	state.Store(nodeconfig.ArchiveRetrying)
	wantCondition(t, ns, "root", v1alpha1.ConditionArchiveHealthy, metav1.ConditionFalse, v1alpha1.ReasonArchiveRetrying, "Archive cold: put: https response error StatusCode: 503, api error SlowDown Next: It is tried again by itself.")
	eventually(t, "no writes while a store answers the same", func(context.Context) error {
		before := len(writes.in(ns))
		time.Sleep(3 * time.Second) // six polls, each with another message
		if after := writes.in(ns); len(after) > before {
			return fmt.Errorf("%d writes: %v", len(after)-before, after[before:])
		}
		return nil
	})
	state.Store(nodeconfig.ArchiveFenced)
	wantCondition(t, ns, "root", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonArchiveFenced, "Another writer has it. Next: Stop one of the writers")
	wantCondition(t, ns, "root", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonArchiveFenced, "")
}

// An export runs once by a Job; what its pod leaves behind is in status. What is done
// is not done again, whatever becomes of the Job, and another spec is another Job.
func TestExportOnce(t *testing.T) {
	ns := namespace(t)
	doc := func(more string) string {
		return "kind: ArchiveExport\nmetadata: {name: dump}\nspec: {nodeRef: {name: root}, " + inBucket(ns, "dump/") + more + "}\n---"
	}
	apply(t, ns, doc("")+keys)
	exportCondition(t, ns, "dump", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonParentNotFound, "The upstream node root does not exist.")
	apply(t, ns, login+rootNode("root"))
	e := exportCondition(t, ns, "dump", v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonExporting, "")
	job, err := get[batchv1.Job](t.Context(), ns, e.Status.Job)
	if err != nil {
		t.Fatal(err)
	}
	c := job.Spec.Template.Spec.Containers[0]
	if !strings.Contains(strings.Join(c.Args, " "), "--archive-once --result /dev/termination-log") || c.ReadinessProbe != nil || job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("%+v", job.Spec.Template.Spec)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "dump-", Labels: job.Spec.Template.Labels}, Spec: job.Spec.Template.Spec}
	pod.Labels[batchv1.JobNameLabel] = job.Name
	if err := cl.Create(t.Context(), pod); err != nil {
		t.Fatal(err) // also: the restricted standard lets it in
	}
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "node", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		FinishedAt: metav1.Now(), Message: `{"destination":"s3://shop","tables":2,"generation":4,"bytes":5242880,"heads":[{"table":"public.orders","origin":"pg","epoch":"1","position":"0/A"}]}`,
	}}}}
	if err := cl.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	job.Status.StartTime, job.Status.CompletionTime, job.Status.Succeeded = &now, &now, 1
	job.Status.Conditions = []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now}, {Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}
	if err := cl.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	e = exportCondition(t, ns, "dump", v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete, "")
	exportCondition(t, ns, "dump", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	if s := e.Status; s.Generation != 4 || s.Tables != 2 || s.Bytes.String() != "5Mi" || s.Heads[0].Position != "0/A" || s.CompletionTime == nil || s.Workload != "Job/"+job.Name {
		t.Errorf("%+v", s)
	}

	if err := cl.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, doc(", suspend: true"))
	e = exportCondition(t, ns, "dump", v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete, "")
	if _, err := get[batchv1.Job](t.Context(), ns, job.Name); !apierrors.IsNotFound(err) {
		t.Errorf("what is done is done again: %v", err)
	}
	apply(t, ns, doc(", write: {compressionLevel: 9}"))
	eventually(t, "another Job", func(ctx context.Context) error {
		now, err := get[v1alpha1.ArchiveExport](ctx, ns, "dump")
		if err == nil && now.Status.Job == e.Status.Job {
			err = fmt.Errorf("%+v", now.Status)
		}
		return err
	})
	for _, change := range []string{", mode: follow, storage: {type: Persistent, size: 1Gi}", "@"} {
		changed := strings.ReplaceAll(doc(change), "dump/, group: true@", "other/, group: true")
		if err := tryApply(t.Context(), ns, strings.TrimSuffix(changed, "---")); err == nil || !strings.Contains(err.Error(), "cannot be changed") {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// A schedule is a CronJob, and an export that goes on a ReplicationNode whose state it
// shows. Deleting them deletes nothing that is not theirs.
func TestExportsThatGoOn(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+keys+rootNode("root")+`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: archives}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
kind: ArchiveExport
metadata: {name: nightly}
spec: {nodeRef: {name: root}, mode: scheduled, schedule: '0 3 * * *', store: {local: {claim: {name: archives}}}, group: true}
---
kind: ArchiveExport
metadata: {name: live}
spec: {nodeRef: {name: root}, mode: follow, storage: {type: Persistent, size: 1Gi}, `+inBucket(ns, "live/")+`}
`)
	e := exportCondition(t, ns, "nightly", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	cron, err := get[batchv1.CronJob](t.Context(), ns, "nightly-export")
	if err != nil || cron.Spec.Schedule != "0 3 * * *" || cron.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent || !strings.Contains(e.Status.NextStep, "0 3 * * *") {
		t.Fatalf("%+v, %v", e.Status, err)
	}
	mounts := cron.Spec.JobTemplate.Spec.Template.Spec.Containers[0].VolumeMounts
	if m := mounts[len(mounts)-1]; m.ReadOnly || m.MountPath != "/var/lib/tributary-archives/claim/archives" {
		t.Errorf("%+v", mounts)
	}

	exportCondition(t, ns, "live", v1alpha1.ConditionWorkloadAvailable, metav1.ConditionFalse, v1alpha1.ReasonVolumePending, "The node live-export: ")
	n, err := node(t.Context(), ns, "live-export")
	if err != nil || n.Spec.Archives[0].Write == nil || n.Spec.Storage.Type != v1alpha1.StoragePersistent {
		t.Fatalf("%+v, %v", n, err)
	}
	eventually(t, "the StatefulSet", func(ctx context.Context) error { _, err := get[appsv1.StatefulSet](ctx, ns, "live-export"); return err })
	bind(t, claimFor(t, ns, "live-export"), "1Gi")
	k := &kubelet{doc: func() nodeconfig.Statusz {
		return nodeconfig.Statusz{
			Node: ns + "/live-export", Ready: true, Sources: []nodeconfig.SourceStatus{{Name: "source", Kind: nodeconfig.KindFanout, State: nodeconfig.StateStreaming}},
			Archives: []nodeconfig.ArchiveStatus{{Name: "live", Destination: "s3://shop", State: nodeconfig.ArchiveStreaming, Writes: true, Tables: []nodeconfig.ArchiveTableStatus{{Table: "public.orders", Generation: 2, Bytes: 1 << 20}}}},
		}
	}}
	k.run(t, ns, "live-export", "127.0.7.61")
	e = exportCondition(t, ns, "live", v1alpha1.ConditionArchiveHealthy, metav1.ConditionTrue, v1alpha1.ReasonArchiveStreaming, "")
	if e.Status.Generation != 2 || e.Status.Destination != "s3://shop" {
		t.Errorf("%+v", e.Status)
	}

	// No garbage collector runs here: what would be collected is what the export owns.
	claim, err := get[corev1.PersistentVolumeClaim](t.Context(), ns, "archives")
	if err != nil || len(claim.OwnerReferences) != 0 {
		t.Errorf("the claim of the archive belongs to somebody: %+v, %v", claim.OwnerReferences, err)
	}
	for _, name := range []string{"nightly", "live"} {
		e, err := get[v1alpha1.ArchiveExport](t.Context(), ns, name)
		if err == nil && len(e.Finalizers) > 0 {
			err = fmt.Errorf("finalizers %v", e.Finalizers)
		}
		if err == nil {
			err = cl.Delete(t.Context(), e)
		}
		if err != nil {
			t.Error(err)
		}
	}
	time.Sleep(2 * time.Second)
	for _, w := range writes.in(ns) {
		if strings.HasPrefix(w, http.MethodDelete) {
			t.Errorf("the manager deletes: %s", w)
		}
	}
	if claim, err = get[corev1.PersistentVolumeClaim](t.Context(), ns, "archives"); err != nil || claim.DeletionTimestamp != nil {
		t.Errorf("%+v, %v", claim, err)
	}
}
