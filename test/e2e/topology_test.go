//go:build e2e

package e2e

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

func md5Hex(s string) string {
	h := md5.Sum([]byte(s))
	return hex.EncodeToString(h[:])
}

const schema = `CREATE TABLE orders (id bigint PRIMARY KEY, customer int, total numeric(12,2), note text);
INSERT INTO orders SELECT i, i % 100, i / 7.0, repeat(md5(i::text), 1 + (i % 100 = 0)::int * 200) FROM generate_series(1, 5000) i;`

func root(name string) string {
	return fmt.Sprintf(`
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: %s}
spec:
  sources:
  - name: db
    postgres:
      hosts: [{host: postgres}]
      database: postgres
      credentialsSecretRef: {name: orders-db}
      tables: [{schema: public, name: orders}]
`, name)
}

func below(name string, replicas int, parents ...string) string {
	ups := ""
	for _, p := range parents {
		ups += fmt.Sprintf("      - nodeRef: {name: %s}\n", p)
	}
	return fmt.Sprintf(`
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: %s}
spec:
  replicas: %d
  sources:
  - name: up
    fanout:
      failover: {recoverAfter: 5s}
      upstreams:
%s`, name, replicas, ups)
}

// mixedChanges makes n changes in transactions of 1 to 50: inserts, updates
// that leave a large column alone, key changes and deletes.
func mixedChanges(n int) string {
	return fmt.Sprintf(`DO $$ DECLARE done int := 0; k bigint; next bigint := (SELECT coalesce(max(id), 0) + 1 FROM orders); batch int; r float; BEGIN
WHILE done < %d LOOP
  batch := 1 + (random() * 49)::int;
  FOR j IN 1..batch LOOP
    r := random();
    k := 1 + (random() * next)::bigint;
    IF r < 0.45 THEN INSERT INTO orders VALUES (next, (random() * 100)::int, round((random() * 1000)::numeric, 2), md5(next::text)); next := next + 1;
    ELSIF r < 0.80 THEN UPDATE orders SET customer = (random() * 100)::int, total = NULL WHERE id = k;
    ELSIF r < 0.85 THEN UPDATE orders SET id = next WHERE id = k; next := next + 1;
    ELSE DELETE FROM orders WHERE id = k; END IF;
  END LOOP;
  done := done + batch;
  COMMIT;
END LOOP; END $$;`, n)
}

// TestCascadeConverges: three levels converge with the source after 50,000
// mixed changes while pods of every level are deleted at random.
func TestCascadeConverges(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	// in an order that no parent comes before its child
	apply(t, ns, below("edge", 2, "mid-a", "mid-b")+below("mid-b", 1, "root")+below("mid-a", 1, "root")+root("root"))
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	all := []string{"root", "mid-a", "mid-b", "edge"}
	waitReady(t, ns, 4*time.Minute, all...)
	wantConverged(t, ns, time.Minute, all...)

	ctx, cancel := context.WithCancel(t.Context())
	killed := make(chan int)
	go func() {
		n := 0
		defer func() { killed <- n }()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(2 * time.Second):
			}
			node := all[rand.N(len(all))]
			ps, err := pods(ctx, ns, node)
			if err != nil || len(ps) == 0 {
				continue
			}
			p := ps[rand.N(len(ps))]
			grace := int64(rand.N(2) * 10)
			if cluster.kube.CoreV1().Pods(ns).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}) == nil {
				n++
			}
		}
	}()
	for range 25 {
		mustSQL(t, ns, mixedChanges(2000))
		time.Sleep(500 * time.Millisecond)
	}
	cancel()
	n := <-killed
	if n < 5 {
		t.Errorf("only %d pods were deleted meanwhile: the test proves little", n)
	}
	t.Logf("%d pods deleted during the changes", n)
	waitReady(t, ns, 4*time.Minute, all...)
	wantConverged(t, ns, 2*time.Minute, all...)
}

// TestFailoverWithoutManager: with the manager at zero replicas a parent is
// killed and its child moves by itself.
func TestFailoverWithoutManager(t *testing.T) {
	// not parallel: the other tests need the manager
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	apply(t, ns, root("root")+below("mid-a", 1, "root")+below("mid-b", 1, "root")+below("edge", 1, "mid-a", "mid-b"))
	all := []string{"root", "mid-a", "mid-b", "edge"}
	waitReady(t, ns, 4*time.Minute, all...)
	edge := func(ctx context.Context) (string, error) {
		ps, err := pods(ctx, ns, "edge")
		if err != nil || len(ps) != 1 {
			return "", fmt.Errorf("edge has %d pods: %w", len(ps), err)
		}
		doc, err := statusz(ctx, ns, ps[0].Name)
		if err != nil {
			return "", err
		}
		if doc.Sources[0].Parent == nil {
			return "", fmt.Errorf("edge has no parent: %s", doc.Sources[0].Message)
		}
		return doc.Sources[0].Parent.ID, nil
	}
	wantParent := func(name string) {
		t.Helper()
		eventually(t, time.Minute, "edge reading from "+name, func(ctx context.Context) error {
			got, err := edge(ctx)
			if err == nil && got != ns+"/"+name {
				err = fmt.Errorf("it reads from %s", got)
			}
			return err
		})
	}
	wantParent("mid-a")

	scaleManager(t, 0)
	t.Cleanup(func() { scaleManager(t, 1) })
	eventually(t, time.Minute, "the manager gone", func(ctx context.Context) error {
		l, err := cluster.kube.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=tributary"})
		if err == nil && len(l.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(l.Items))
		}
		return err
	})
	// the Deployment is scaled to nothing too, so that the parent stays away
	patch := []byte(`{"spec":{"replicas":0}}`)
	if _, err := cluster.kube.AppsV1().Deployments(ns).Patch(t.Context(), "mid-a", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	ps, err := pods(t.Context(), ns, "mid-a")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		_ = cluster.kube.CoreV1().Pods(ns).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}
	wantParent("mid-b")
	mustSQL(t, ns, mixedChanges(500))
	wantConverged(t, ns, time.Minute, "edge", "mid-b")
	eventually(t, time.Minute, "no second baseline at the edge", func(ctx context.Context) error {
		ps, err := pods(ctx, ns, "edge")
		if err != nil || len(ps) != 1 {
			return fmt.Errorf("edge has %d pods: %w", len(ps), err)
		}
		doc, err := statusz(ctx, ns, ps[0].Name)
		if err == nil && doc.Rebaselines != 0 {
			err = fmt.Errorf("%d re-baselines: the move cost a snapshot", doc.Rebaselines)
		}
		return err
	})
}

// TestLoopIsRefused: A→B→A is refused with the loop in the message while A goes
// on; mending it heals.
func TestLoopIsRefused(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	apply(t, ns, root("root")+below("a", 1, "root")+below("b", 1, "a"))
	waitReady(t, ns, 4*time.Minute, "root", "a", "b")

	apply(t, ns, below("a", 1, "b"))
	eventually(t, time.Minute, "the loop named on both", func(ctx context.Context) error {
		for _, n := range []string{"a", "b"} {
			c, err := wantCondition(ctx, ns, n, v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected)
			if err != nil {
				return err
			}
			if !strings.Contains(c.Message, "a → b → a") && !strings.Contains(c.Message, ns+"/a → "+ns+"/b → "+ns+"/a") {
				return fmt.Errorf("%s does not name the loop: %s", n, c.Message)
			}
		}
		return nil
	})
	mustSQL(t, ns, mixedChanges(500))
	wantConverged(t, ns, time.Minute, "a", "b") // on the last good wiring

	apply(t, ns, below("a", 1, "root"))
	waitReady(t, ns, 2*time.Minute, "a", "b")
	if _, err := wantCondition(t.Context(), ns, "a", v1alpha1.ConditionAcyclic, metav1.ConditionTrue, ""); err != nil {
		t.Error(err)
	}
}

// TestConditionsSayWhatIsWrong: a wrong password, a missing table and a missing
// Secret each give a condition that says so, and mending heals.
func TestConditionsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	apply(t, ns, `
apiVersion: v1
kind: Secret
metadata: {name: wrong}
stringData: {username: postgres, password: not-this}
`+strings.ReplaceAll(root("bad-password"), "name: orders-db", "name: wrong")+
		strings.ReplaceAll(root("no-table"), "name: orders}", "name: absent}")+
		strings.ReplaceAll(root("no-secret"), "name: orders-db", "name: nowhere")+
		readsAddress("from-postgres", "postgres:5432")+readsAddress("from-http", "tributary-metrics."+systemNamespace+".svc:8081"))
	for _, c := range []struct{ node, kind, reason, says string }{
		{"bad-password", v1alpha1.ConditionStreaming, v1alpha1.ReasonAuthenticationFailed, "postgres"},
		{"no-table", v1alpha1.ConditionStreaming, v1alpha1.ReasonTableNotFound, "absent"},
		{"no-secret", v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonSecretNotFound, "nowhere"},
		// K04: what answers speaks another protocol
		{"from-postgres", v1alpha1.ConditionStreaming, v1alpha1.ReasonAuthenticationFailed, "ends the connection before a word"},
		{"from-http", v1alpha1.ConditionStreaming, v1alpha1.ReasonPreflightFailed, "answers, but not with Tributary's protocol"},
	} {
		eventually(t, 3*time.Minute, c.node+" saying "+c.reason, func(ctx context.Context) error {
			got, err := wantCondition(ctx, ns, c.node, c.kind, metav1.ConditionFalse, c.reason)
			if err != nil {
				return err
			}
			if !strings.Contains(got.Message, c.says) {
				return fmt.Errorf("%s does not say %q: %s", c.node, c.says, got.Message)
			}
			if strings.Contains(got.Message, "not-this") {
				return fmt.Errorf("a password stands in a condition: %s", got.Message)
			}
			_, err = wantCondition(ctx, ns, c.node, v1alpha1.ConditionReady, metav1.ConditionFalse, c.reason)
			return err
		})
	}
	mustSQL(t, ns, "CREATE TABLE absent (id int PRIMARY KEY)")
	apply(t, ns, strings.ReplaceAll(secretFor("nowhere"), "PASSWORD", password)+"---"+strings.ReplaceAll(secretFor("wrong"), "PASSWORD", password))
	waitReady(t, ns, 4*time.Minute, "bad-password", "no-table", "no-secret")
}

// readsAddress is a node that reads from an address outside.
func readsAddress(name, address string) string {
	return fmt.Sprintf("\n---\napiVersion: tributary.dev/v1alpha1\nkind: ReplicationNode\nmetadata: {name: %s}\nspec: {sources: [{name: up, fanout: {upstreams: [{address: %q}]}}]}\n", name, address)
}

func secretFor(name string) string {
	return fmt.Sprintf("\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\nstringData: {username: postgres, password: \"PASSWORD\"}\n", name)
}

// TestWiringChangeKeepsPods (K16): another parent is wired in without a
// restart; a static setting rolls the pods.
func TestWiringChangeKeepsPods(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	apply(t, ns, root("root")+below("mid", 1, "root")+below("edge", 1, "mid"))
	waitReady(t, ns, 4*time.Minute, "root", "mid", "edge")
	before := onlyPod(t, ns, "edge")
	apply(t, ns, below("edge", 1, "root"))
	eventually(t, 2*time.Minute, "edge reading from root", func(ctx context.Context) error {
		doc, err := statusz(ctx, ns, before.Name)
		if err == nil && (doc.Sources[0].Parent == nil || doc.Sources[0].Parent.ID != ns+"/root") {
			err = fmt.Errorf("its parent is %+v", doc.Sources[0].Parent)
		}
		return err
	})
	after := onlyPod(t, ns, "edge")
	if after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("a change of wiring restarted the pod: %s, then %s", before.Name, after.Name)
	}
	apply(t, ns, below("edge", 1, "root")+"  storage: {journal: {maxBytes: 32Mi}}\n")
	eventually(t, 2*time.Minute, "a static setting rolling the pod", func(ctx context.Context) error {
		ps, err := pods(ctx, ns, "edge")
		if err == nil && (len(ps) != 1 || ps[0].UID == before.UID) {
			err = fmt.Errorf("the pod is still %s", before.Name)
		}
		return err
	})
	waitReady(t, ns, 2*time.Minute, "edge")
	wantConverged(t, ns, time.Minute, "edge")
}

func onlyPod(t *testing.T, ns, node string) corev1.Pod {
	t.Helper()
	ps, err := pods(t.Context(), ns, node)
	if err != nil || len(ps) != 1 {
		t.Fatalf("%s has %d pods: %v", node, len(ps), err)
	}
	return ps[0]
}
