//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/internal/origins"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// machines are the names of the cluster's nodes that take pods.
func machines(t *testing.T) (out []string) {
	t.Helper()
	list, err := cluster.kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoSchedule }) {
			out = append(out, n.Labels[corev1.LabelHostname])
		}
	}
	slices.Sort(out)
	return out
}

// meshMember is a node that is written to, with a volume on a machine.
func meshMember(t *testing.T, ns, name, machine string) string {
	return fmt.Sprintf(`
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: %s, labels: {mesh: shops}}
spec:
  storage: {type: Persistent, size: 1Gi%s}
  podTemplate: {nodeSelector: {%s: %s}}
  sources:
  - name: local
    ingest:
      tables:
      - schema: public
        name: tally
        columns: [{name: id, type: bigint, key: true}, {name: value, type: bigint}]
`, name, storageClass(t, ns, name, machine), corev1.LabelHostname, machine)
}

const shops = `
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationMesh
metadata: {name: shops}
spec: {members: {selector: {matchLabels: {mesh: shops}}}}
`

// serviceClient writes to a node by its Service, by way of the API server.
func serviceClient(t *testing.T, ns, node string) *ingestapi.Client {
	t.Helper()
	hc, err := rest.HTTPClientFor(cluster.rest)
	if err != nil {
		t.Fatal(err)
	}
	base, _, err := rest.DefaultServerUrlFor(cluster.rest)
	if err != nil {
		t.Fatal(err)
	}
	return &ingestapi.Client{URL: base.JoinPath("api/v1/namespaces", ns, "services", node+":http", "proxy").String(), HTTP: hc}
}

var tallyTable = engine.TableName{Schema: "public", Name: "tally"}

// writeTally writes to rows that all writers share, until stop is closed; what is
// not answered is sent again, with its key.
func writeTally(t *testing.T, ns, node string, w int, stop <-chan struct{}, acknowledged *atomic.Int64) {
	api := serviceClient(t, ns, node)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		id, v := strconv.Itoa(i%50), fmt.Sprintf("%d%06d", w+1, i)
		b := &ingest.Batch{Key: fmt.Sprintf("%d/%d", w, i), Ops: []ingest.Op{{Kind: ingest.Put, Table: tallyTable, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "value", Value: &v}}}}}
		if i%17 == 3 {
			b.Ops = []ingest.Op{{Kind: ingest.Delete, Table: tallyTable, Row: []ingest.Field{{Column: "id", Value: &id}}}}
		}
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := api.Write(ctx, b)
			cancel()
			if err == nil {
				acknowledged.Add(1)
				break
			}
			var e *ingest.Error
			if errors.As(err, &e) && e.Code != ingest.Unavailable && e.Code != ingest.Unknown && e.Code != ingest.Busy {
				t.Errorf("%s: %v", node, err)
				return
			}
			select {
			case <-t.Context().Done():
				return
			case <-stop: // it may never have been written, which is well
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

// tally is the rows of tally at a node, and its logs by origin.
func tally(ctx context.Context, ns, node string) (rows string, logs map[string]nodeconfig.LogStatus, err error) {
	doc, err := statusz(ctx, ns, node+"-0")
	if err != nil {
		return "", nil, err
	}
	logs = map[string]nodeconfig.LogStatus{}
	for _, l := range doc.Logs {
		logs[l.Origin] = l
	}
	b, err := get(ctx, ns, node+"-0", "v1/tables/public.tally/rows", map[string]string{"limit": "10000"})
	if err != nil {
		return "", nil, err
	}
	var page struct {
		Rows []struct{ ID, Value json.Number }
	}
	if err := json.Unmarshal(b, &page); err != nil {
		return "", nil, err
	}
	var all []string
	for _, r := range page.Rows {
		all = append(all, r.ID.String()+"="+r.Value.String())
	}
	return digest(all), logs, nil
}

// container is that of a node's only pod.
func container(t *testing.T, ns, node string) string {
	t.Helper()
	p := onlyPod(t, ns, node)
	if len(p.Status.ContainerStatuses) != 1 {
		t.Fatalf("%s has %d containers", p.Name, len(p.Status.ContainerStatuses))
	}
	return p.Status.ContainerStatuses[0].ContainerID
}

// snapshots is how many logs a node has taken in whole since it started.
func snapshots(t *testing.T, ns, node string) (n int64) {
	t.Helper()
	doc, err := statusz(t.Context(), ns, node+"-0")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range doc.Logs {
		if l.Delivery != nil {
			n += l.Delivery.Snapshots
		}
	}
	return n
}

func wantMeshCondition(ctx context.Context, ns, name, kind string) error {
	var m v1alpha1.ReplicationMesh
	if err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &m); err != nil {
		return err
	}
	if c := meta.FindStatusCondition(m.Status.Conditions, kind); c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != m.Generation {
		return fmt.Errorf("%s: %+v", kind, m.Status)
	}
	return nil
}

// TestMesh: a mesh of three nodes without a database, each written to by its
// Service. The machine of one loses power under load, and comes back: nothing that
// was acknowledged is lost, no node begins another epoch, and all hold the same. So it
// is when one is flipped to shared cursors and back.
func TestMesh(t *testing.T) {
	// not parallel: every pod of a machine loses power
	ns := namespace(t)
	names := []string{"a", "b", "c"}
	on := machines(t)
	victim := on[len(on)-1]
	apply(t, ns, shops+meshMember(t, ns, "a", victim)+meshMember(t, ns, "b", on[0])+meshMember(t, ns, "c", on[0])+below("edge", 1, "b", "c"))
	waitReady(t, ns, 4*time.Minute, "a", "b", "c", "edge")
	eventually(t, time.Minute, "the mesh ready", func(ctx context.Context) error {
		return wantMeshCondition(ctx, ns, "shops", v1alpha1.ConditionReady)
	})

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var acknowledged [3]atomic.Int64
	for w, name := range names {
		wg.Go(func() { writeTally(t, ns, name, w, stop, &acknowledged[w]) })
	}
	stopWriting := sync.OnceFunc(func() { close(stop); wg.Wait() })
	t.Cleanup(stopWriting)
	progress := func(limit time.Duration, what string) {
		t.Helper()
		before := [3]int64{acknowledged[0].Load(), acknowledged[1].Load(), acknowledged[2].Load()}
		eventually(t, limit, what, func(context.Context) error {
			for w := range names {
				if n := acknowledged[w].Load(); n < before[w]+20 {
					return fmt.Errorf("%s has taken %d writes since then", names[w], n-before[w])
				}
			}
			return nil
		})
	}
	progress(time.Minute, "writes at first")
	epochs := map[string]string{}
	_, logs, err := tally(t.Context(), ns, "b")
	if err != nil {
		t.Fatal(err)
	}
	for origin, l := range logs {
		epochs[origin] = l.Epoch
	}
	if len(epochs) != len(names) {
		t.Fatalf("b has the logs %v", epochs)
	}

	was := container(t, ns, "a")
	if power := powerSwitch(t, victim); power != nil {
		power()
	} else if err := cluster.kube.CoreV1().Pods(ns).Delete(t.Context(), "a-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	progress(5*time.Minute, "writes after the loss")
	if container(t, ns, "a") == was {
		t.Error("a has lost nothing: its container is the same")
	}

	// one is flipped to shared cursors and back; nobody takes a snapshot for it
	taken := snapshots(t, ns, "b")
	for _, mode := range []v1alpha1.CursorMode{v1alpha1.CursorsShared, v1alpha1.CursorsPerOrigin} {
		was := container(t, ns, "c")
		n := &v1alpha1.ReplicationNode{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}}
		if err := cluster.cl.Patch(t.Context(), n, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"cursors":%q}}`, mode))); err != nil {
			t.Fatal(err)
		}
		eventually(t, 3*time.Minute, fmt.Sprintf("c with %s cursors", mode), func(ctx context.Context) error {
			ps, err := pods(ctx, ns, "c")
			if err == nil && (len(ps) != 1 || len(ps[0].Status.ContainerStatuses) != 1 || ps[0].Status.ContainerStatuses[0].ContainerID == was || !ps[0].Status.ContainerStatuses[0].Ready) {
				err = fmt.Errorf("%d pods", len(ps))
			}
			return err
		})
		progress(2*time.Minute, fmt.Sprintf("writes with %s cursors of c", mode))
	}
	if now := snapshots(t, ns, "b"); now != taken {
		t.Errorf("b has taken %d snapshots, and had taken %d", now, taken)
	}
	stopWriting()
	waitReady(t, ns, 4*time.Minute, "a", "b", "c", "edge")

	var rows string
	eventually(t, 2*time.Minute, "all equal", func(ctx context.Context) error {
		want, ours, err := tally(ctx, ns, "a")
		if err != nil {
			return err
		}
		for w, name := range names {
			got, logs, err := tally(ctx, ns, name)
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("%s holds %s, and a %s", name, got, want)
			}
			for origin, l := range logs {
				if l.State != nodeconfig.LogCurrent || l.Head != ours[origin].Head || l.Epoch != epochs[origin] {
					return fmt.Errorf("%s: %+v; a has %s, and the epoch was %s", name, l, ours[origin].Head, epochs[origin])
				}
			}
			own := logs[ns+"/"+name+"#local"]
			if head, err := strconv.ParseInt(own.Head, 10, 64); err != nil || head < acknowledged[w].Load() {
				return fmt.Errorf("%s has acknowledged %d batches, and its log is at %s", name, acknowledged[w].Load(), own.Head)
			}
		}
		rows = want
		return nil
	})
	t.Logf("%d, %d and %d batches acknowledged; all hold %s", acknowledged[0].Load(), acknowledged[1].Load(), acknowledged[2].Load(), rows)
	ps, err := pods(t.Context(), ns, "edge")
	if err != nil || len(ps) != 1 {
		t.Fatalf("%d pods of edge: %v", len(ps), err)
	}
	eventually(t, time.Minute, "mesh and reader converged", func(ctx context.Context) error {
		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionConverged} {
			if err := wantMeshCondition(ctx, ns, "shops", kind); err != nil {
				return err
			}
		}
		doc, err := statusz(ctx, ns, ps[0].Name)
		if err == nil && len(doc.Logs) != len(names) {
			err = fmt.Errorf("edge has %d logs", len(doc.Logs))
		}
		return err
	})

	// the command sees the same
	bin := filepath.Join(cluster.root, "bin", "tributary")
	if _, err := os.Stat(bin); err != nil {
		t.Logf("tributary is not built, and is left out: %v", err)
		return
	}
	out, err := run("", bin, "origins", "--kubeconfig", kubeconfig(), "-n", ns, "-o", "json", "a", "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	var r origins.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Logs) != 9 || len(r.Silent) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = run("", bin, "tree", "--kubeconfig", kubeconfig(), "-n", ns)
	if err != nil || !strings.Contains(out, "◆ mesh "+ns+"/shops") || strings.Count(out, "writers, 2 of 2 peers") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("\n%s", out)
}
