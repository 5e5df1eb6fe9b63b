//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// storageClass gives a node a volume of 1Gi: see volumes.
func storageClass(t *testing.T, ns, node, machine string) string {
	t.Helper()
	return volumes(t, ns, machine, node)
}

// volumes gives each of some nodes a volume of 1Gi and returns what to write after
// storage.size to get it: nothing where the cluster makes volumes by itself, else
// a class of volumes that this makes on a machine's disk; on any when it is empty.
func volumes(t *testing.T, ns, machine string, nodes ...string) string {
	t.Helper()
	ctx := t.Context()
	var classes storagev1.StorageClassList
	if err := cluster.cl.List(ctx, &classes); err != nil {
		t.Fatal(err)
	}
	for _, c := range classes.Items {
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return ""
		}
	}
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-local"}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if err := cluster.cl.Create(ctx, class); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	// A pod makes the folders on the machine that it is put on; the volumes are there.
	root := "/var/lib/kubelet/tributary-e2e"
	disk, where, folders := "disk-"+nodes[0], "", ""
	if machine != "" {
		where = "  nodeSelector: {" + corev1.LabelHostname + ": " + machine + "}\n"
	}
	for _, node := range nodes {
		folders += ", /disks/" + ns + "-" + node
	}
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
%s  restartPolicy: OnFailure
  containers:
  - name: disk
    image: %s
    imagePullPolicy: IfNotPresent
    command: [mkdir, -p%s]
    securityContext: {runAsUser: 0}
    volumeMounts: [{name: disks, mountPath: /disks}]
  volumes: [{name: disks, hostPath: {path: %s, type: DirectoryOrCreate}}]
`, disk, where, postgresImage(), folders, root))
	var pod corev1.Pod
	eventually(t, 2*time.Minute, "a disk", func(ctx context.Context) error {
		err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: disk}, &pod)
		if err == nil && pod.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("the pod is %s", pod.Status.Phase)
		}
		return err
	})
	for _, node := range nodes {
		name := ns + "-" + node
		volume := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: class.Name, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: ns, Name: "store-" + node + "-0"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					Local: &corev1.LocalVolumeSource{Path: root + "/" + name},
				},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{pod.Spec.NodeName}}},
				}}}},
			},
		}
		if err := cluster.cl.Create(ctx, volume); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cluster.cl.Delete(context.Background(), volume); err != nil {
				t.Error(err)
			}
		})
	}
	return ", storageClassName: " + class.Name
}

// persistentRoot is a root with a volume; slot says more of the source.
func persistentRoot(t *testing.T, ns, slot string) string {
	return strings.Replace(strings.Replace(root("root"), "spec:\n", "spec:\n  storage: {type: Persistent, size: 1Gi"+storageClass(t, ns, "root", "")+"}\n", 1),
		"      database:", slot+"      database:", 1)
}

var baselines = regexp.MustCompile(`(?m)^tributary_source_baselines_total\{source="db"\} (\d+)`)

// life is what tells one life of a node's only pod from the next: how many
// baselines it took, the epoch of its log, and its container.
func life(ctx context.Context, ns, node string) (took, epoch, container string, err error) {
	ps, err := pods(ctx, ns, node)
	if err != nil || len(ps) != 1 || len(ps[0].Status.ContainerStatuses) != 1 {
		return "", "", "", fmt.Errorf("%s has %d pods: %w", node, len(ps), err)
	}
	text, err := get(ctx, ns, ps[0].Name, "metrics", nil)
	if err != nil {
		return "", "", "", err
	}
	m := baselines.FindStringSubmatch(string(text))
	doc, err := statusz(ctx, ns, ps[0].Name)
	if err != nil || m == nil || len(doc.Logs) != 1 {
		return "", "", "", fmt.Errorf("%d logs, baselines %v: %w", len(doc.Logs), m, err)
	}
	return m[1], doc.Logs[0].Epoch, ps[0].Status.ContainerStatuses[0].ContainerID, nil
}

// TestPersistentNode: a node with a volume goes on after its pod is deleted and
// after its machine loses power, without another baseline and in the same epoch,
// and its reader with it. When it is deleted its slot goes, and its volume stays.
func TestPersistentNode(t *testing.T) {
	// not parallel: every pod of the machine loses power
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	apply(t, ns, persistentRoot(t, ns, "      slot: {deletionPolicy: Delete}\n")+below("edge", 1, "root"))
	waitReady(t, ns, 4*time.Minute, "root", "edge")
	wantConverged(t, ns, time.Minute, "root", "edge")
	took, epoch, container, err := life(t.Context(), ns, "root")
	if err != nil || took != "1" {
		t.Fatalf("%s baselines at first: %v", took, err)
	}
	losses := []struct {
		name string
		lose func()
	}{{"pod deleted", func() {
		if err := cluster.kube.CoreV1().Pods(ns).Delete(t.Context(), "root-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}}, {"pod killed", func() {
		if err := cluster.kube.CoreV1().Pods(ns).Delete(t.Context(), "root-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Fatal(err)
		}
	}}}
	if power := powerSwitch(t, onlyPod(t, ns, "root").Spec.NodeName); power != nil {
		losses = append(losses, struct {
			name string
			lose func()
		}{"power lost", power})
	}
	for _, l := range losses {
		mustSQL(t, ns, mixedChanges(500))
		l.lose()
		eventually(t, 3*time.Minute, l.name+": changes while it is away", func(ctx context.Context) error {
			_, err := psql(ctx, ns, "INSERT INTO orders SELECT coalesce(max(id), 0) + 1 FROM orders")
			return err
		})
		eventually(t, 4*time.Minute, l.name+": another life", func(ctx context.Context) error {
			_, _, now, err := life(ctx, ns, "root")
			if err == nil && now == container {
				err = fmt.Errorf("the container is still %s", now)
			}
			return err
		})
		waitReady(t, ns, 4*time.Minute, "root", "edge")
		wantConverged(t, ns, 2*time.Minute, "root", "edge")
		took, now, c, err := life(t.Context(), ns, "root")
		if err != nil || took != "0" || now != epoch {
			t.Fatalf("%s: %s baselines, epoch %s after %s: %v", l.name, took, now, epoch, err)
		}
		container = c
	}
	if _, err := wantCondition(t.Context(), ns, "root", v1alpha1.ConditionStorageHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy); err != nil {
		t.Error(err)
	}

	rn := &v1alpha1.ReplicationNode{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "root"}}
	if got := mustSQL(t, ns, "SELECT count(*) FROM pg_replication_slots WHERE NOT temporary"); got != "1" {
		t.Errorf("%s permanent slots", got)
	}
	if err := cluster.cl.Delete(t.Context(), rn); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Minute, "the node gone", func(ctx context.Context) error {
		err := cluster.cl.Get(ctx, client.ObjectKeyFromObject(rn), rn)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("finalizers %v: %w", rn.Finalizers, err)
	})
	if got := mustSQL(t, ns, "SELECT count(*) FROM pg_replication_slots"); got != "0" {
		t.Errorf("%s slots after the node", got)
	}
	if _, err := cluster.kube.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "store-root-0", metav1.GetOptions{}); err != nil {
		t.Errorf("the claim did not stay: %v", err)
	}
}

// powerSwitch takes the power from a machine of the cluster and gives it back; nil
// where the cluster is not the project's own.
func powerSwitch(t *testing.T, machine string) func() {
	lc := filepath.Join(cluster.root, "hack/localcluster/lc")
	path, err := exec.CommandContext(t.Context(), lc, "kubeconfig").Output()
	if err != nil || !strings.Contains(kubeconfig(), strings.TrimSpace(string(path))) {
		t.Log("the cluster has no power switch: losing power is left out")
		return nil
	}
	return func() {
		for _, c := range []string{"node-down", "node-up"} {
			if out, err := exec.Command(lc, c, machine[len(machine)-1:]).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", c, err, out)
			}
		}
	}
}

// TestSlotConflict: two PostgresSources name the same slot: the younger says so,
// and its node never touches the older's.
func TestSlotConflict(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	source := func(name string) string {
		return fmt.Sprintf(`
---
apiVersion: tributary.dev/v1alpha1
kind: PostgresSource
metadata: {name: %[1]s}
spec:
  hosts: [{host: postgres}]
  database: postgres
  credentialsSecretRef: {name: orders-db}
  tables: [{schema: public, name: orders}]
  slot: {name: shared}
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: reads-%[1]s}
spec: {sources: [{name: db, postgresSourceRef: {name: %[1]s}}]}
`, name)
	}
	apply(t, ns, source("old"))
	waitReady(t, ns, 4*time.Minute, "reads-old")
	apply(t, ns, source("young"))
	eventually(t, time.Minute, "the conflict named", func(ctx context.Context) error {
		c, err := wantCondition(ctx, ns, "reads-young", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSlotConflict)
		if err == nil && !strings.Contains(c.Message, "shared") {
			err = fmt.Errorf("it does not name the slot: %s", c.Message)
		}
		return err
	})
	var old v1alpha1.PostgresSource
	eventually(t, time.Minute, "the holder in status", func(ctx context.Context) error {
		err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: "old"}, &old)
		if err == nil && (len(old.Status.Slots) != 1 || old.Status.Slots[0].Name != "shared" || old.Status.Slots[0].Holder != "reads-old") {
			err = fmt.Errorf("%+v", old.Status.Slots)
		}
		return err
	})
	mustSQL(t, ns, mixedChanges(200))
	wantConverged(t, ns, time.Minute, "reads-old")
	waitReady(t, ns, time.Minute, "reads-old")
}
