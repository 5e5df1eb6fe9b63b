package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// with puts more into the spec of a node's document.
func with(doc, spec string) string { return strings.Replace(doc, "spec:", "spec:\n  "+spec, 1) }

// claimFor plays the StatefulSet controller and a provisioner: it makes the claim
// for a node's volume and binds it.
func claimFor(t *testing.T, ns, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	eventually(t, "the claim of "+name, func(ctx context.Context) error {
		s, err := get[appsv1.StatefulSet](ctx, ns, name)
		if err != nil {
			return err
		}
		if len(s.Spec.VolumeClaimTemplates) != 1 {
			return fmt.Errorf("%d claims", len(s.Spec.VolumeClaimTemplates))
		}
		template := s.Spec.VolumeClaimTemplates[0]
		*claim = corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: template.Name + "-" + name + "-0", Labels: template.Labels}, Spec: template.Spec,
		}
		claim.Spec.VolumeName = "volume-" + ns + "-" + name
		return cl.Create(ctx, claim)
	})
	return claim
}

func bind(t *testing.T, claim *corev1.PersistentVolumeClaim, capacity string) {
	t.Helper()
	eventually(t, "binding "+claim.Name, func(ctx context.Context) error {
		if err := cl.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
			return err
		}
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)}
		return cl.Status().Update(ctx, claim)
	})
}

// A volume that is missing, growing, or may not grow, and a store that cannot be
// written, are conditions; a node that turns to persistent storage gets another
// StatefulSet, and one that only grows keeps the one it has.
func TestVolume(t *testing.T) {
	ns := namespace(t)
	growing := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "growing-" + ns}, Provisioner: "example.test/none", AllowVolumeExpansion: new(true)}
	if err := cl.Create(t.Context(), growing); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Delete(context.Background(), growing) })
	persistent := func(name, class, size string) string {
		return with(rootNode(name), fmt.Sprintf("storage: {type: Persistent, size: %s, storageClassName: %s}", size, class))
	}
	apply(t, ns, login+rootNode("grows"))
	var memory *appsv1.StatefulSet
	eventually(t, "the StatefulSet in memory", func(ctx context.Context) (err error) {
		memory, err = get[appsv1.StatefulSet](ctx, ns, "grows")
		return err
	})
	apply(t, ns, persistent("grows", growing.Name, "1Gi")+persistent("fixed", "fixed", "1Gi"))
	wantCondition(t, ns, "grows", v1alpha1.ConditionStorageHealthy, metav1.ConditionFalse, v1alpha1.ReasonVolumePending, "The claim store-grows-0 does not exist yet")

	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range []string{"grows", "fixed"} {
		claims[name] = claimFor(t, ns, name)
	}
	wantCondition(t, ns, "fixed", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonVolumePending, "The claim store-fixed-0 is not bound: the storage class fixed must be there, and make or have a volume of 1Gi.")
	bind(t, claims["grows"], "1Gi")
	bind(t, claims["fixed"], "1Gi")
	wantCondition(t, ns, "grows", v1alpha1.ConditionStorageHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, "")
	was, err := get[appsv1.StatefulSet](t.Context(), ns, "grows")
	if err != nil || was.UID == memory.UID {
		t.Fatalf("the StatefulSet in memory is still there: %v", err)
	}

	apply(t, ns, persistent("grows", growing.Name, "2Gi")+persistent("fixed", "fixed", "2Gi"))
	wantCondition(t, ns, "fixed", v1alpha1.ConditionStorageHealthy, metav1.ConditionTrue, v1alpha1.ReasonExpansionRefused, "stays at 1Gi and cannot grow to 2Gi: the storage class fixed must have allowVolumeExpansion: true")
	wantCondition(t, ns, "grows", v1alpha1.ConditionStorageHealthy, metav1.ConditionTrue, v1alpha1.ReasonResizing, "grows from 1Gi to 2Gi")
	if c, err := get[corev1.PersistentVolumeClaim](t.Context(), ns, "store-grows-0"); err != nil || c.Spec.Resources.Requests.Storage().String() != "2Gi" {
		t.Errorf("the claim asks for %s: %v", c.Spec.Resources.Requests.Storage(), err)
	}
	bind(t, claims["grows"], "2Gi")
	wantCondition(t, ns, "grows", v1alpha1.ConditionStorageHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, "")
	if now, err := get[appsv1.StatefulSet](t.Context(), ns, "grows"); err != nil || now.UID != was.UID || now.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String() != "1Gi" {
		t.Errorf("the StatefulSet was made anew: %v", err)
	}

	store := make(chan nodeconfig.StoreStatus, 1)
	store <- nodeconfig.StoreStatus{Bytes: 700 << 20}
	k := &kubelet{doc: func() nodeconfig.Statusz {
		st := <-store
		store <- st
		return nodeconfig.Statusz{Node: ns + "/grows", Store: &st, Sources: []nodeconfig.SourceStatus{{
			Name: "db", Kind: nodeconfig.KindPostgres, State: nodeconfig.StateStreaming, Slot: &nodeconfig.SlotStatus{Name: "s", RetainedBytes: 33<<20 + 1},
		}}}
	}}
	k.run(t, ns, "grows", "127.0.7.3")
	wantCondition(t, ns, "grows", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	n, err := node(t.Context(), ns, "grows")
	if err != nil {
		t.Fatal(err)
	}
	if st := n.Status.Storage; st == nil || st.Claim != "store-grows-0" || st.Capacity.String() != "2Gi" || st.Used.String() != "704Mi" {
		t.Errorf("%+v", st)
	}
	if wal := n.Status.Sources[0].RetainedWAL; wal == nil || wal.String() != "36Mi" {
		t.Errorf("retained WAL %v", wal)
	}
	<-store
	store <- nodeconfig.StoreStatus{Reason: nodeconfig.StoreDiskFull, Message: "The volume at /var/lib/tributary is full."}
	wantCondition(t, ns, "grows", v1alpha1.ConditionStorageHealthy, metav1.ConditionFalse, v1alpha1.ReasonDiskFull, "is full. Mend: let the volume grow by spec.storage.size")
	wantCondition(t, ns, "grows", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonDiskFull, "")
}

// What sinks say becomes a condition, and it goes with them.
func TestSinks(t *testing.T) {
	ns := namespace(t)
	doc := with(below("a", "root"), "sinks: [{name: copy, http: {url: 'https://x.test'}}]")
	apply(t, ns, login+rootNode("root")+doc)
	sinks := make(chan nodeconfig.SinkStatus, 1)
	sinks <- nodeconfig.SinkStatus{Name: "copy", State: nodeconfig.SinkStreaming}
	k := &kubelet{doc: func() nodeconfig.Statusz {
		s := <-sinks
		sinks <- s
		return nodeconfig.Statusz{Node: ns + "/a", Sources: []nodeconfig.SourceStatus{{Name: "up", State: nodeconfig.StateStreaming}}, Sinks: []nodeconfig.SinkStatus{s}}
	}}
	k.run(t, ns, "a", "127.0.7.4")
	wantCondition(t, ns, "a", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	if _, err := get[appsv1.StatefulSet](t.Context(), ns, "a"); err != nil {
		t.Errorf("two pods could fill the sink at a time: %v", err)
	}
	for _, c := range []struct{ state, reason, kind string }{
		{nodeconfig.SinkRetrying, v1alpha1.ReasonSinkRetrying, v1alpha1.ConditionReconciling},
		{nodeconfig.SinkHeld, v1alpha1.ReasonSinkHeld, v1alpha1.ConditionStalled},
		{nodeconfig.SinkSuperseded, v1alpha1.ReasonSinkSuperseded, v1alpha1.ConditionStalled},
	} {
		<-sinks
		sinks <- nodeconfig.SinkStatus{Name: "copy", State: c.state, Message: "It is so."}
		wantCondition(t, ns, "a", v1alpha1.ConditionSinksHealthy, metav1.ConditionFalse, c.reason, "Sink copy: It is so.")
		wantCondition(t, ns, "a", c.kind, metav1.ConditionTrue, c.reason, "")
	}
	apply(t, ns, below("a", "root"))
	wantCondition(t, ns, "a", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	n, err := node(t.Context(), ns, "a")
	if err != nil || slices.ContainsFunc(n.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionSinksHealthy }) {
		t.Errorf("a node without sinks has %+v: %v", n.Status.Conditions, err)
	}
}

// The cache lags a second behind every write (so it does in all of these tests):
// there is one child object of each identity, and nothing is made twice.
func TestCaseK13(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+rootNode("root")+below("a", "root"))
	wantWiring(t, ns, "a", "root")
	eventually(t, "the StatefulSet", func(ctx context.Context) error { _, err := get[appsv1.StatefulSet](ctx, ns, "root"); return err })
	apply(t, ns, with(rootNode("root"), "storage: {type: Persistent, size: 1Gi}"))
	uids := func(ctx context.Context) (map[string]string, error) {
		out := map[string]string{}
		for _, l := range []client.ObjectList{&appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}} {
			if err := cl.List(ctx, l, client.InNamespace(ns)); err != nil {
				return nil, err
			}
			switch l := l.(type) {
			case *appsv1.StatefulSetList:
				for _, o := range l.Items {
					out["StatefulSet "+o.Name] = fmt.Sprintf("%s %d claims, generation %d", o.UID, len(o.Spec.VolumeClaimTemplates), o.Generation)
				}
			case *appsv1.DeploymentList:
				for _, o := range l.Items {
					out["Deployment "+o.Name] = fmt.Sprintf("%s generation %d", o.UID, o.Generation)
				}
			case *corev1.ConfigMapList:
				for _, o := range l.Items {
					if o.Name != "kube-root-ca.crt" {
						out["ConfigMap "+o.Name] = string(o.UID)
					}
				}
			case *corev1.ServiceList:
				for _, o := range l.Items {
					out["Service "+o.Name] = string(o.UID)
				}
			}
		}
		return out, nil
	}
	var settled map[string]string
	eventually(t, "persistent", func(ctx context.Context) (err error) {
		settled, err = uids(ctx)
		if err == nil && !strings.Contains(settled["StatefulSet root"], "1 claims, generation 1") {
			err = fmt.Errorf("%v", settled)
		}
		return err
	})
	time.Sleep(5 * cacheLag)
	now, err := uids(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(settled, now); d != "" {
		t.Errorf("objects were made again: %s", d)
	}
	if len(now) != 8 { // two workloads, four ConfigMaps, two Services
		t.Errorf("%d objects: %v", len(now), now)
	}
}

// Two PostgresSources name the same slot on the same server: the younger has
// SlotConflict, and so has the node that reads by it; renaming heals.
func TestCaseK19(t *testing.T) {
	ns := namespace(t)
	source := func(name, host, slot string) string {
		return fmt.Sprintf(`
kind: PostgresSource
metadata: {name: %s}
spec:
  hosts: [{host: %s}, {host: standby}]
  database: shop
  credentialsSecretRef: {name: login}
  tables: [{schema: public, name: orders}]
  slot: {name: %s}
---`, name, host, slot)
	}
	reader := func(name, source string) string {
		return fmt.Sprintf("\nkind: ReplicationNode\nmetadata: {name: %s}\nspec: {sources: [{name: db, postgresSourceRef: {name: %s}}]}\n---", name, source)
	}
	condition := func(name string, status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		eventually(t, name+": "+reason, func(ctx context.Context) error {
			s, err := get[v1alpha1.PostgresSource](ctx, ns, name)
			if err != nil {
				return err
			}
			for _, c := range s.Status.Conditions {
				if c.Type == v1alpha1.ConditionAccepted && c.Status == status && c.Reason == reason && strings.Contains(c.Message, message) {
					return nil
				}
			}
			return fmt.Errorf("%+v", s.Status)
		})
	}
	apply(t, ns, login+source("z-old", "db", "shared")+reader("first", "z-old"))
	condition("z-old", metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	time.Sleep(1100 * time.Millisecond) // the age of a resource is told in seconds
	apply(t, ns, source("a-young", "elsewhere", "shared")+reader("second", "a-young"))
	condition("a-young", metav1.ConditionFalse, v1alpha1.ReasonSlotConflict, fmt.Sprintf("The slot shared is claimed by the older PostgresSource %s/z-old on the same server.", ns))
	condition("z-old", metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	wantCondition(t, ns, "second", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSlotConflict, "shared")
	wantCondition(t, ns, "second", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonSlotConflict, "")
	wantCondition(t, ns, "first", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	eventually(t, "the holder", func(ctx context.Context) error {
		s, err := get[v1alpha1.PostgresSource](ctx, ns, "z-old")
		if err == nil && (len(s.Status.Slots) != 1 || s.Status.Slots[0].Holder != "first" || !s.Status.Slots[0].Temporary) {
			err = fmt.Errorf("%+v", s.Status.Slots)
		}
		return err
	})
	// The older goes: the younger takes over.
	for name, o := range map[string]client.Object{"first": &v1alpha1.ReplicationNode{}, "z-old": &v1alpha1.PostgresSource{}} {
		o.SetNamespace(ns)
		o.SetName(name)
		if err := cl.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	condition("a-young", metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	wantCondition(t, ns, "second", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
}

// A slot's database is gone for good, and its source and the node that holds it
// are deleted: both go within the bound, with an event that says what stays. (K07 too: what the
// nodes refer to is gone before they are, and their finalizer is taken out all the same.)
func TestCaseK20(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, login+`
kind: PostgresSource
metadata: {name: main}
spec:
  hosts: [{host: gone}]
  database: shop
  credentialsSecretRef: {name: login}
  tables: [{schema: public, name: orders}]
  slot: {name: held, deletionPolicy: Delete}
---`)
	for _, name := range []string{"lost", "found", "kept"} {
		doc := fmt.Sprintf("\nkind: ReplicationNode\nmetadata: {name: %s}\nspec:\n  storage: {type: Persistent, size: 1Gi}\n  sources: [{name: db, postgresSourceRef: {name: main}}]\n---", name)
		if name != "lost" { // a slot of its own
			policy := map[string]string{"found": "Delete", "kept": "Retain"}[name]
			doc = with(strings.Replace(rootNode(name), "database:", "slot: {deletionPolicy: "+policy+"}\n      database:", 1), "storage: {type: Persistent, size: 1Gi}")
		}
		apply(t, ns, doc)
		eventually(t, "the StatefulSet of "+name, func(ctx context.Context) error {
			if _, err := get[appsv1.StatefulSet](ctx, ns, name); err != nil {
				return err
			}
			n, err := node(ctx, ns, name)
			if err == nil && slices.Contains(n.Finalizers, v1alpha1.FinalizerSlots) == (name == "kept") {
				err = fmt.Errorf("finalizers %v", n.Finalizers)
			}
			return err
		})
	}
	source, err := get[v1alpha1.PostgresSource](t.Context(), ns, "main")
	if err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{source, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "login"}}}
	for _, name := range []string{"lost", "found", "kept"} {
		n, err := node(t.Context(), ns, name)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, n)
	}
	start := time.Now()
	for _, o := range objects {
		if err := cl.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) {
		t.Helper()
		eventually(t, name+" gone", func(ctx context.Context) error {
			n, err := node(ctx, ns, name)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("%v: %w", n.Finalizers, err)
		})
	}
	gone("kept")
	// The Job of one is done; that of the other waits for a database that is gone.
	eventually(t, "the Job done", func(ctx context.Context) error {
		j, err := get[batchv1.Job](ctx, ns, "found-drop-slots")
		if err != nil {
			return err
		}
		s, err := get[appsv1.StatefulSet](ctx, ns, "found")
		if err != nil {
			return err
		}
		if *s.Spec.Replicas != 0 {
			t.Error("the slot is dropped under a pod that may run")
		}
		if args := j.Spec.Template.Spec.Containers[0].Args; args[0] != "drop-slots" || len(args) != 4 || !strings.HasPrefix(args[3], "tributary_") || *j.Spec.ActiveDeadlineSeconds != int64(slotTimeout.Seconds()) {
			t.Errorf("%v, %d s", args, *j.Spec.ActiveDeadlineSeconds)
		}
		now := metav1.Now()
		j.Status.StartTime, j.Status.CompletionTime, j.Status.Succeeded = &now, &now, 1
		j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
		for _, c := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
		return cl.Status().Update(ctx, j)
	})
	gone("found")
	gone("lost")
	if took := time.Since(start); took > 2*slotTimeout {
		t.Errorf("it took %s; the bound is %s", took, slotTimeout)
	}
	if _, err := get[v1alpha1.PostgresSource](t.Context(), ns, "main"); !apierrors.IsNotFound(err) {
		t.Errorf("the source is still there: %v", err)
	}
	eventually(t, "events", func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := cl.List(ctx, &events, client.InNamespace(ns)); err != nil {
			return err
		}
		told := map[string]string{}
		for _, e := range events.Items {
			if strings.HasPrefix(e.Reason, "Slots") {
				told[e.Regarding.Name+" "+e.Reason] = e.Type + " " + e.Note
			}
		}
		if !strings.HasPrefix(told["lost SlotsRetained"], "Warning The node goes, and these slots may stay: held (") || !strings.HasPrefix(told["found SlotsDropped"], "Normal Dropped") || len(told) != 2 {
			return fmt.Errorf("%v", told)
		}
		return nil
	})
}
