package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func tillNode(name string) string {
	return fmt.Sprintf(`
kind: ReplicationNode
metadata: {name: %s, labels: {sales: till}}
spec:
  storage: {type: Persistent, size: 1Gi}
  sources:
  - name: local
    ingest: {tables: [{schema: public, name: tally, columns: [{name: id, type: bigint, key: true}, {name: v, type: bigint}]}]}
---`, name)
}

func salesTree(spec string) string {
	return fmt.Sprintf(`
kind: RelayTree
metadata: {name: sales}
spec:
  redundancy: {parents: 1}
  leaves: {selector: {matchLabels: {sales: till}}, maxLog: 2Mi, onFull: Rebaseline}
  tables: [{schema: public, name: tally, delivery: Counter, columns: [v]}]
  tombstoneRetention: 2h
  %s
---`, spec)
}

// wantChildren waits until a node is wired with children, as name or name:state.
func wantChildren(t *testing.T, ns, name string, want ...string) {
	t.Helper()
	eventually(t, "the children of "+name, func(ctx context.Context) error {
		w, err := wiring(ctx, ns, name)
		if err != nil {
			return err
		}
		var got []string
		for _, s := range w.Sources {
			for _, c := range s.Children {
				got = append(got, strings.TrimSuffix(strings.TrimPrefix(c.ID, ns+"/")+":"+c.State, ":"))
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

func wantTree(t *testing.T, ns, name, kind string, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: %s=%s, %s", name, kind, status, reason), func(ctx context.Context) error {
		m, err := get[v1alpha1.RelayTree](ctx, ns, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(m.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) || c.ObservedGeneration != m.Generation {
			return fmt.Errorf("generation %d has %+v", m.Generation, m.Status)
		}
		return nil
	})
}

func wantEvent(t *testing.T, ns, reason, note string) {
	t.Helper()
	eventually(t, "the event "+reason, func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := cl.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool { return e.Reason == reason && strings.Contains(e.Note, note) }) {
			return fmt.Errorf("none of %d events", len(list.Items))
		}
		return nil
	})
}

// relayKubelet plays the pods of a tree and its leaves. Each has taken the wiring that is
// there, and has sessions with its children.
type relayKubelet struct {
	t  *testing.T
	ns string

	mu     sync.Mutex
	behind map[string]bool // nodes that those above lack something of
	full   string          // the leaf whose log is full
	shared bool            // the leaves write rows of each other
	last   int             // of the addresses
	runs   map[string]bool
}

func (k *relayKubelet) run(name string) {
	k.mu.Lock()
	k.last++
	ip := fmt.Sprintf("127.0.8.%d", k.last)
	done := k.runs[name]
	k.runs[name] = true
	k.mu.Unlock()
	if done {
		return
	}
	claim := claimFor(k.t, k.ns, name)
	bind(k.t, claim, claim.Spec.Resources.Requests.Storage().String())
	(&kubelet{doc: func() nodeconfig.Statusz { return k.doc(name) }}).run(k.t, k.ns, name, ip)
}

func (k *relayKubelet) doc(name string) nodeconfig.Statusz {
	d := nodeconfig.Statusz{Node: k.ns + "/" + name, Ready: true}
	w, err := wiring(context.Background(), k.ns, name)
	if err != nil {
		return d
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	d.WiringEpoch = w.Epoch
	if w.Parents != nil {
		d.Sources = []nodeconfig.SourceStatus{{Name: "local", Kind: nodeconfig.KindIngest, State: nodeconfig.StateStreaming}}
		d.Tree = &nodeconfig.TreeStatus{Role: nodeconfig.RoleLeaf, MaxLogBytes: 2 << 20, Full: k.full == name, PinnedBy: k.ns + "/sales-east"}
		if k.shared && name == "till-1" {
			d.Tables = []nodeconfig.TableStatus{{Name: "public.tally", Conflicts: &nodeconfig.ConflictStatus{Policy: "OriginOwnsKey", Refused: []nodeconfig.RefusedWrites{{Origin: k.ns + "/till-1#local", Writes: 3}}}}}
		}
	}
	for _, s := range w.Sources {
		if s.Redundancy == "" {
			continue
		}
		d.Sources = []nodeconfig.SourceStatus{{Name: "children", Kind: nodeconfig.KindChildren, State: nodeconfig.StateStreaming}}
		d.Tree = &nodeconfig.TreeStatus{Role: nodeconfig.RoleRelay, MaxLogBytes: 2 << 20, Full: k.full == name, PinnedBy: k.ns + "/sales-east"}
		if k.shared {
			d.Tables = []nodeconfig.TableStatus{
				{Name: "public.tally", Conflicts: &nodeconfig.ConflictStatus{Policy: "OriginOwnsKey", Refused: []nodeconfig.RefusedWrites{{Origin: k.ns + "/till-2#local", Writes: 3}}}},
				{Name: "public.till", Conflicts: &nodeconfig.ConflictStatus{Policy: "OriginOwnsKey"}},
			}
		}
		d.Passed = &nodeconfig.PassedStatus{To: []string{k.ns + "/sales-east", k.ns + "/sales-west"}}
		if k.behind[name] {
			d.Passed.To = nil
		}
		for _, c := range s.Children {
			read := !c.Leaves()
			logs := 0
			if read {
				logs = 1
			}
			d.Sources[0].Peers = append(d.Sources[0].Peers, nodeconfig.PeerStatus{ID: c.ID, Connected: read, Logs: logs})
			d.Passed.Children = append(d.Passed.Children, nodeconfig.PassedChild{ID: c.ID, To: d.Passed.To})
			d.Logs = append(d.Logs, nodeconfig.LogStatus{Origin: c.ID, Epoch: "1", Source: "children", State: nodeconfig.LogCurrent, LagKnown: true, Path: []string{d.Node, c.ID}})
		}
	}
	return d
}

// A tree has its nodes, in whatever order things come; a branch more takes leaves over
// once it reads them, and a branch less goes once those above have all of it; a root that
// is taken out is no longer kept anything for; and with the tree goes what it owns.
func TestRelayTree(t *testing.T) {
	ns := namespace(t)
	k := &relayKubelet{t: t, ns: ns, behind: map[string]bool{}, runs: map[string]bool{}}
	apply(t, ns, tillNode("till-1")+salesTree("roots: {names: [east, west]}\n  branches: {count: 1}"))
	time.Sleep(200 * time.Millisecond)
	apply(t, ns, tillNode("till-2"))
	wantChildren(t, ns, "sales-b0-0", "till-1", "till-2")
	wantChildren(t, ns, "sales-east", "sales-b0-0")
	eventually(t, "the roots of till-1", func(ctx context.Context) error {
		w, err := wiring(ctx, ns, "till-1")
		if err == nil && (w.Parents == nil || !slices.Equal(w.Parents.Roots, []string{ns + "/sales-east", ns + "/sales-west"})) {
			err = fmt.Errorf("%+v", w.Parents)
		}
		return err
	})
	for name, want := range map[string][]string{
		"sales-b0-0": {"children: {}", "delivery: Counter", "type: pebble", "retention: 2h"},
		"till-1":     {"onFull: Rebaseline", "maxLog: 2Mi"},
	} {
		cm, err := get[corev1.ConfigMap](t.Context(), ns, name+"-static")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nodeconfig.Parse("node.yaml", []byte(cm.Data["node.yaml"])); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, w := range want {
			w = strings.ReplaceAll(w, "children: {}", "children:")
			if !strings.Contains(cm.Data["node.yaml"], w) {
				t.Errorf("%s: no %q in\n%s", name, w, cm.Data["node.yaml"])
			}
		}
	}
	n, err := node(t.Context(), ns, "sales-b0-0")
	if err != nil {
		t.Fatal(err)
	}
	if o := metav1.GetControllerOf(n); o == nil || o.Kind != "RelayTree" || n.Spec.PodTemplate.Affinity.PodAntiAffinity == nil {
		t.Errorf("%+v", n)
	}

	wantTree(t, ns, "sales", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotReady, "sales-b0-0 is not ready.")
	for _, name := range []string{"till-1", "till-2", "sales-b0-0", "sales-east", "sales-west"} {
		k.run(name)
	}
	wantTree(t, ns, "sales", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	tree, err := get[v1alpha1.RelayTree](t.Context(), ns, "sales")
	if err != nil {
		t.Fatal(err)
	}
	if s := tree.Status; s.Summary != "2/2" || s.Logs != 1 || s.RootLag != "<1s" || s.BranchCount != 1 || len(s.Registered) != 2 || len(s.Roots) != 2 || s.Branches[0].Lag != "<1s" || s.Branches[0].Nodes[0].Attached != 2 {
		t.Errorf("%+v", s)
	}
	wantTree(t, ns, "sales", v1alpha1.ConditionSettled, metav1.ConditionTrue, v1alpha1.ReasonSettled, "")
	leaf, err := node(t.Context(), ns, "till-1")
	if err != nil || leaf.Status.Tree != "sales" || leaf.Status.Branch != "b0" {
		t.Errorf("%v: %+v", err, leaf.Status)
	}

	eventually(t, "no writes at rest", func(ctx context.Context) error {
		before := len(writes.in(ns))
		was, err := get[v1alpha1.RelayTree](ctx, ns, "sales")
		if err != nil {
			return err
		}
		time.Sleep(3 * time.Second)
		if more := writes.in(ns)[before:]; len(more) > 0 {
			now, _ := get[v1alpha1.RelayTree](ctx, ns, "sales")
			return fmt.Errorf("%d writes, such as %s: %s", len(more), more[0], cmp.Diff(was.Status, now.Status))
		}
		return nil
	})

	// rows that several leaves write are shown
	k.mu.Lock()
	k.shared = true
	k.mu.Unlock()
	wantEvent(t, ns, "KeysOverlap", "the same rows of public.tally")
	eventually(t, "the overlap", func(ctx context.Context) error {
		tree, err := get[v1alpha1.RelayTree](ctx, ns, "sales")
		if d := cmp.Diff([]v1alpha1.TreeOverlap{{Table: "public.tally", Refused: []string{"till-1", "till-2"}}}, tree.Status.Overlaps); err == nil && d != "" {
			err = fmt.Errorf("%s", d)
		}
		return err
	})

	// a branch more: its leaf is read by the former until it is read there
	k.mu.Lock()
	k.behind["sales-b0-0"] = true
	k.mu.Unlock()
	apply(t, ns, salesTree("roots: {names: [east, west]}\n  branches: {count: 2}"))
	var moved, stays string
	eventually(t, "a leaf that moves", func(ctx context.Context) error {
		w, err := wiring(ctx, ns, "sales-b1-0")
		if err == nil && len(w.Sources[0].Children) != 1 {
			err = fmt.Errorf("%+v", w)
		}
		if err == nil {
			moved = strings.TrimPrefix(w.Sources[0].Children[0].ID, ns+"/")
		}
		return err
	})
	stays = map[string]string{"till-1": "till-2", "till-2": "till-1"}[moved]
	both := func(state string) (out []string) {
		out = []string{moved + ":" + state, stays}
		slices.Sort(out)
		return out
	}
	wantChildren(t, ns, "sales-b0-0", both("moving")...)
	wantTree(t, ns, "sales", v1alpha1.ConditionSettled, metav1.ConditionFalse, v1alpha1.ReasonMoving, "sales-b0-0 has 1 children to be let go")
	k.run("sales-b1-0")
	wantChildren(t, ns, "sales-b0-0", both("leaving")...)
	time.Sleep(2 * time.Second)
	wantChildren(t, ns, "sales-b0-0", both("leaving")...) // those above lack something
	k.mu.Lock()
	k.behind["sales-b0-0"] = false
	k.mu.Unlock()
	wantChildren(t, ns, "sales-b0-0", stays)
	wantTree(t, ns, "sales", v1alpha1.ConditionSettled, metav1.ConditionTrue, v1alpha1.ReasonSettled, "")
	wantChildren(t, ns, "sales-west", "sales-b0-0", "sales-b1-0")

	// a branch less: it goes once those above have all that it has
	k.mu.Lock()
	k.behind["sales-b1-0"] = true
	k.mu.Unlock()
	apply(t, ns, salesTree("roots: {names: [east, west]}\n  branches: {count: 1}"))
	wantChildren(t, ns, "sales-b0-0", "till-1", "till-2")
	wantTree(t, ns, "sales", v1alpha1.ConditionSettled, metav1.ConditionFalse, v1alpha1.ReasonDraining, "sales-b1-0")
	wantChildren(t, ns, "sales-b1-0", moved+":leaving")
	k.mu.Lock()
	k.behind["sales-b1-0"] = false
	k.mu.Unlock()
	eventually(t, "the end of b1", func(ctx context.Context) error {
		_, err := node(ctx, ns, "sales-b1-0")
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	wantEvent(t, ns, "NodeRemoved", "sales-b1-0")
	wantChildren(t, ns, "sales-west", "sales-b0-0")
	if _, err := get[appsv1.StatefulSet](t.Context(), ns, "sales-b1-0"); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if _, err := get[corev1.PersistentVolumeClaim](t.Context(), ns, "store-sales-b0-0-0"); err != nil {
		t.Error(err) // nobody deletes claims but the StatefulSet's own policy
	}
}

// A root that never comes back pins the logs of leaves: the tree says which, and taking
// it out frees them.
func TestCaseR23(t *testing.T) {
	ns := namespace(t)
	k := &relayKubelet{t: t, ns: ns, behind: map[string]bool{}, runs: map[string]bool{}, last: 100}
	apply(t, ns, tillNode("till-1")+salesTree("roots: {names: [east, west]}\n  branches: {count: 1}"))
	k.run("till-1")
	k.mu.Lock()
	k.full = "till-1"
	k.mu.Unlock()
	wantTree(t, ns, "sales", v1alpha1.ConditionLogsBounded, metav1.ConditionFalse, v1alpha1.ReasonLogFull, "till-1, for sales-east; their oldest goes")
	wantTree(t, ns, "sales", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonLogFull, "if it is gone for good, take it out of spec.roots")
	k.run("sales-b0-0")
	k.mu.Lock()
	k.full = "sales-b0-0"
	k.mu.Unlock()
	wantTree(t, ns, "sales", v1alpha1.ConditionLogsBounded, metav1.ConditionFalse, v1alpha1.ReasonLogFull, "sales-b0-0, for sales-east; their oldest goes")
	eventually(t, "both roots registered", func(ctx context.Context) error {
		tree, err := get[v1alpha1.RelayTree](ctx, ns, "sales")
		if err == nil && len(tree.Status.Registered) != 2 {
			err = fmt.Errorf("%v", tree.Status.Registered)
		}
		return err
	})
	apply(t, ns, salesTree("roots: {names: [west]}\n  branches: {count: 1}"))
	eventually(t, "the roots of till-1", func(ctx context.Context) error {
		w, err := wiring(ctx, ns, "till-1")
		if err == nil && !slices.Equal(w.Parents.Roots, []string{ns + "/sales-west"}) {
			err = fmt.Errorf("%+v", w.Parents)
		}
		return err
	})
	wantEvent(t, ns, "RootUnregistered", "sales-east")
	eventually(t, "the end of east", func(ctx context.Context) error {
		_, err := node(ctx, ns, "sales-east")
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	k.mu.Lock()
	k.full = ""
	k.mu.Unlock()
	wantTree(t, ns, "sales", v1alpha1.ConditionLogsBounded, metav1.ConditionTrue, v1alpha1.ReasonBounded, "")
}

// The schema says in a sentence what is wrong with a tree.
func TestRelayTreeSchema(t *testing.T) {
	ns := namespace(t)
	for name, c := range map[string]struct{ spec, want string }{
		"no branches":  {"branches: {}", "branches has neither count nor names: give one of them."},
		"both":         {"branches: {count: 1, names: [a]}", "branches has count and names: give one of them."},
		"both roots":   {"branches: {count: 1}\n  roots: {count: 1, names: [a]}", "roots has count and names: give one of them."},
		"name":         {"branches: {names: [A]}", "A branch's name must start with a lower case letter and hold at most 16 lower case letters, digits and dashes."},
		"root":         {"branches: {names: [root-0]}", "A branch has the name of a root, or of a trunk, or one from which a root's would be made: choose another."},
		"memory":       {"branches: {count: 1, storage: {type: Memory}}", "storage.type must be Persistent"},
		"columns":      {"branches: {count: 1}\n  tables: [{schema: a, name: b, delivery: Counter}]", "columns are needed with the delivery Counter, and with no other"},
		"no columns":   {"branches: {count: 1}\n  tables: [{schema: a, name: b, delivery: All, columns: [c]}]", "columns are needed with the delivery Counter, and with no other"},
		"window":       {"branches: {count: 1}\n  window: 2m", "window must be a duration from 1ms to 1m, such as 100ms."},
		"pending":      {"branches: {count: 1}\n  maxPending: 1Ki", "maxPending must be a quantity from 64Ki to 1Gi, such as 16Mi."},
		"max log":      {"branches: {count: 1}\n  leaves: {selector: {matchLabels: {a: b}}, maxLog: 1Ki}", "leaves.maxLog must be a quantity from 1Mi to 1Ti, such as 1Gi."},
		"token":        {"branches: {count: 1}\n  tokenSecretRef: {name: a}", "tokenSecretRef needs tls"},
		"no selection": {"branches: {count: 1}\n  leaves: {selector: {}}", "leaves.selector is empty, and would select every node: give it labels."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := c.spec
			if !strings.Contains(spec, "leaves:") {
				spec += "\n  leaves: {selector: {matchLabels: {a: b}}}"
			}
			err := tryApply(context.Background(), ns, "kind: RelayTree\nmetadata: {name: t}\nspec:\n  "+spec)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	long := "kind: RelayTree\nmetadata: {name: " + strings.Repeat("a", 31) + "}\nspec: {branches: {count: 1}, leaves: {selector: {matchLabels: {a: b}}}}"
	if err := tryApply(t.Context(), ns, long); err == nil || !strings.Contains(err.Error(), "at most 30 characters") {
		t.Errorf("%v", err)
	}
}
