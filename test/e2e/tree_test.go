//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// tills are the leaves of the tree.
const tills = 12

func till(w int) string { return fmt.Sprintf("till-%d", w) }

func tillNode(name, class string) string {
	return fmt.Sprintf(`
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: %s, labels: {sales: till}}
spec:
  storage: {type: Persistent, size: 1Gi%s}
  sources:
  - name: local
    ingest:
      tables:
      - schema: public
        name: tally
        columns: [{name: id, type: bigint, key: true}, {name: value, type: bigint}]
`, name, class)
}

func salesTree(class string, mode v1alpha1.RedundancyMode) string {
	return fmt.Sprintf(`
---
apiVersion: tributary.dev/v1alpha1
kind: RelayTree
metadata: {name: sales}
spec:
  roots: {storage: {type: Persistent, size: 1Gi%[1]s}}
  branches: {count: 2, storage: {type: Persistent, size: 1Gi%[1]s}}
  redundancy: {mode: %[2]s}
  leaves: {selector: {matchLabels: {sales: till}}}
`, class, mode)
}

// writeTill writes to rows of one till's own until stop is closed, and leaves what they
// are in the end in rows. What is not answered is sent again, with its key.
func writeTill(t *testing.T, ns string, w int, stop <-chan struct{}, mu *sync.Mutex, rows map[string]string) {
	api := serviceClient(t, ns, till(w))
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
		id, v := strconv.Itoa(1000*w+i%40), strconv.Itoa(i)
		b := &ingest.Batch{Key: fmt.Sprint(i), Ops: []ingest.Op{{Kind: ingest.Put, Table: tallyTable, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "value", Value: &v}}}}}
		gone := i%13 == 5
		if gone {
			b.Ops = []ingest.Op{{Kind: ingest.Delete, Table: tallyTable, Row: []ingest.Field{{Column: "id", Value: &id}}}}
		}
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := api.Write(ctx, b)
			cancel()
			if err == nil {
				break
			}
			var e *ingest.Error
			if t.Context().Err() != nil || errors.As(err, &e) && e.Code != ingest.Unavailable && e.Code != ingest.Unknown && e.Code != ingest.Busy {
				t.Errorf("%s: %v", till(w), err)
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		mu.Lock()
		if rows[id] = v; gone {
			delete(rows, id)
		}
		mu.Unlock()
	}
}

// tallyRows is the rows of tally at a node.
func tallyRows(ctx context.Context, ns, node string) (map[string]string, error) {
	b, err := get(ctx, ns, node+"-0", "v1/tables/public.tally/rows", map[string]string{"limit": "10000"})
	if err != nil {
		return nil, err
	}
	var page struct {
		Rows []struct{ ID, Value json.Number }
	}
	if err := json.Unmarshal(b, &page); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, r := range page.Rows {
		out[r.ID.String()] = r.Value.String()
	}
	return out, nil
}

func wantTreeSettled(ctx context.Context, ns string, branches int, mode v1alpha1.RedundancyMode) error {
	var tree v1alpha1.RelayTree
	if err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: "sales"}, &tree); err != nil {
		return err
	}
	for _, kind := range []string{v1alpha1.ConditionSettled, v1alpha1.ConditionReady} {
		if c := meta.FindStatusCondition(tree.Status.Conditions, kind); c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != tree.Generation {
			return fmt.Errorf("%s: %+v", kind, c)
		}
	}
	s := tree.Status
	logs := branches // the root reads one node of each
	if mode == v1alpha1.RedundancyActiveActive {
		logs = 2 * branches
	}
	if want := fmt.Sprintf("%[1]d/%[1]d", tills); s.Summary != want || int(s.BranchCount) != branches || int(s.Logs) != logs {
		return fmt.Errorf("%s leaves of %s, %d branches, %d logs at the root", s.Summary, want, s.BranchCount, s.Logs)
	}
	return nil
}

// TestRelayTree: twelve leaves, each written to by its Service. Branches are scaled up
// and down, a pod of one of their nodes is killed and a whole node is deleted, under load:
// the root ends up with the union of what the leaves have, and reads as many logs as
// there are nodes of branches, or as branches where one of two stands by.
func TestRelayTree(t *testing.T) {
	for _, mode := range []v1alpha1.RedundancyMode{v1alpha1.RedundancyActiveActive, v1alpha1.RedundancyActiveStandby} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel() // they wait for pods most of the time
			testTree(t, mode)
		})
	}
}

func testTree(t *testing.T, mode v1alpha1.RedundancyMode) {
	ns := namespace(t)
	var nodes, leaves []string
	for w := range tills {
		leaves = append(leaves, till(w))
	}
	nodes = append(append(nodes, leaves...), "sales-root-0")
	for b := range 4 {
		nodes = append(nodes, fmt.Sprintf("sales-b%d-0", b), fmt.Sprintf("sales-b%d-1", b))
	}
	class := volumes(t, ns, "", nodes...)
	manifests := salesTree(class, mode)
	for _, name := range leaves {
		manifests += tillNode(name, class)
	}
	apply(t, ns, manifests)
	eventually(t, 4*time.Minute, "the tree", func(ctx context.Context) error { return wantTreeSettled(ctx, ns, 2, mode) })

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	rows := map[string]string{}
	for w := range tills {
		wg.Go(func() { writeTill(t, ns, w, stop, &mu, rows) })
	}
	stopWriting := sync.OnceFunc(func() { close(stop); wg.Wait() })
	t.Cleanup(stopWriting)

	kill := func(node string) {
		t.Helper()
		if err := cluster.kube.CoreV1().Pods(ns).Delete(t.Context(), node+"-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Error(err)
		}
	}
	scale := func(branches int) {
		t.Helper()
		tree := &v1alpha1.RelayTree{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "sales"}}
		if err := cluster.cl.Patch(t.Context(), tree, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"branches":{"count":%d}}}`, branches))); err != nil {
			t.Fatal(err)
		}
	}
	scale(4)
	kill("sales-b0-0")
	eventually(t, 4*time.Minute, "four branches", func(ctx context.Context) error { return wantTreeSettled(ctx, ns, 4, mode) })
	scale(2)
	gone := &v1alpha1.ReplicationNode{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "sales-b1-1"}}
	if err := cluster.cl.Delete(t.Context(), gone); err != nil { // the operator makes it again, with its volume
		t.Fatal(err)
	}
	eventually(t, 4*time.Minute, "two branches", func(ctx context.Context) error { return wantTreeSettled(ctx, ns, 2, mode) })
	for _, name := range []string{"sales-b2-0", "sales-b3-1"} {
		if err := cluster.cl.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, &v1alpha1.ReplicationNode{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	stopWriting()

	eventually(t, time.Minute, "the union at the root", func(ctx context.Context) error {
		got, err := tallyRows(ctx, ns, "sales-root-0")
		if err == nil && !maps.Equal(got, rows) {
			for _, id := range slices.Sorted(maps.Keys(rows)) {
				if got[id] != rows[id] {
					return fmt.Errorf("%d rows of %d; %s is %q, and %q was written", len(got), len(rows), id, got[id], rows[id])
				}
			}
			err = fmt.Errorf("%d rows, and %d were written", len(got), len(rows))
		}
		return err
	})
	union := map[string]string{}
	for _, name := range leaves {
		got, err := tallyRows(t.Context(), ns, name)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(union, got)
	}
	if !maps.Equal(union, rows) {
		t.Errorf("the leaves have %d rows, and %d were written", len(union), len(rows))
	}
	t.Logf("the root has the %d rows of %d leaves", len(rows), tills)
}
