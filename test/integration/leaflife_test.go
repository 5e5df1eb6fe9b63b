package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// smallTree is two leaves that are written to, two relays of one branch, and a root.
func smallTree(t *testing.T, configure func(*nodeconfig.Config)) *relayTree {
	t.Helper()
	tr := &relayTree{t: t, dir: t.TempDir()}
	roots := []string{"tree/root"}
	for _, id := range []string{"tree/a", "tree/b"} {
		tr.leaves = append(tr.leaves, tr.start(id, func(c *nodeconfig.Config) {
			c.Sources, c.Parents = []nodeconfig.Source{measuredSource()}, &nodeconfig.Parents{}
			configure(c)
		}, func(w *nodeconfig.Wiring) { w.Parents.Roots = roots }))
	}
	alone := func(int) string { return "" }
	var pair [2]*testnode.Node
	for j := range pair {
		pair[j] = tr.start(fmt.Sprintf("tree/branch-%c", 'a'+j), func(c *nodeconfig.Config) {
			c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
			c.Relay = &nodeconfig.Relay{Window: 10 * time.Millisecond}
			configure(c)
		}, func(w *nodeconfig.Wiring) {
			childrenOf(tr.leaves, alone)(w)
			w.Sources[0].Readers, w.Sources[0].Roots = roots, roots
		})
	}
	tr.relays = [][2]*testnode.Node{pair}
	tr.root = tr.start("tree/root", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
		configure(c)
	}, childrenOf(pair[:], func(int) string { return "branch" }))
	for _, n := range slices.Concat(tr.leaves, pair[:], []*testnode.Node{tr.root}) {
		if err := n.WaitReady(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

// holds waits until nodes hold these rows, and no others.
func holds(t *testing.T, what string, want map[string]string, nodes ...*testnode.Node) {
	t.Helper()
	for _, n := range nodes {
		var got map[string]string
		var last error
		if err := testnode.Until(t.Context(), time.Minute, n.ID+" to hold "+what, func() (bool, error) {
			got, last = rowsAt(n)
			return last == nil && maps.Equal(got, want), nil
		}); err != nil {
			t.Fatalf("%v (%v): %s", err, last, firstDifference(got, want))
		}
	}
}

// do writes a batch at a leaf.
func do(t *testing.T, leaf *testnode.Node, ops ...ingest.Op) {
	t.Helper()
	if _, err := (&ingestapi.Client{URL: "http://" + leaf.HTTP}).Write(t.Context(), &ingest.Batch{Ops: ops}); err != nil {
		t.Fatal(err)
	}
}

func measure(kind ingest.Kind, leaf, id, v string) ingest.Op {
	op := ingest.Op{Kind: kind, Table: measured, Row: []ingest.Field{{Column: "leaf", Value: &leaf}, {Column: "id", Value: &id}}}
	if kind == ingest.Put {
		op.Row = append(op.Row, ingest.Field{Column: "v", Value: &v})
	}
	return op
}

// TestLeafRetired: a leaf is gone for good, and its rows with it, wherever they are. Then
// it is forgotten, while it is still wired. When it comes back after all, what it writes
// counts. A relay that is wired no longer is forgotten by the root, and its rows stay.
func TestLeafRetired(t *testing.T) {
	t.Parallel()
	tr := smallTree(t, func(*nodeconfig.Config) {})
	want := map[string]string{}
	for i, leaf := range tr.leaves {
		for n := range 20 {
			if err := tr.write(t.Context(), i, fmt.Sprint(n), "1"); err != nil {
				t.Fatal(err)
			}
			want[fmt.Sprintf("%s/%d", leaf.ID, n)] = "1"
		}
	}
	relays := tr.relays[0][:]
	holds(t, "what was written", want, tr.root, relays[0], relays[1])

	state := func(relay *testnode.Node, alter func(children []nodeconfig.Child) []nodeconfig.Child) {
		t.Helper()
		if err := relay.Rewire(func(w *nodeconfig.Wiring) { w.Sources[0].Children = alter(w.Sources[0].Children) }); err != nil {
			t.Fatal(err)
		}
	}
	child := nodeconfig.Child{ID: tr.leaves[0].ID, Address: tr.leaves[0].Repl}
	for _, r := range relays {
		state(r, func(all []nodeconfig.Child) []nodeconfig.Child {
			all[0].State = nodeconfig.ChildRetired
			return all
		})
	}
	maps.DeleteFunc(want, func(k, _ string) bool { return k[:len(child.ID)] == child.ID })
	holds(t, "what the other leaf has", want, tr.root, relays[0], relays[1])
	one := func(r *testnode.Node, what string) {
		t.Helper()
		var st nodeconfig.Statusz
		if err := testnode.Until(t.Context(), time.Minute, r.ID+" to forget "+what, func() (bool, error) {
			var err error
			st, err = statusOf(r)
			return err == nil && st.Tree.Logs == 1 && st.Tree.Cursors == 1, nil
		}); err != nil {
			t.Fatalf("%v: %+v, %+v", err, st.Tree, st.Passed)
		}
	}
	for _, r := range relays {
		one(r, "the leaf")
		state(r, func(all []nodeconfig.Child) []nodeconfig.Child { return all[1:] })
	}

	for _, r := range relays {
		state(r, func(all []nodeconfig.Child) []nodeconfig.Child { return append([]nodeconfig.Child{child}, all...) })
	}
	if err := tr.write(t.Context(), 0, "new", "2"); err != nil {
		t.Fatal(err)
	}
	want[child.ID+"/new"] = "2"
	holds(t, "what the leaf has written since", want, tr.root)

	state(tr.root, func(all []nodeconfig.Child) []nodeconfig.Child { return all[:1] })
	one(tr.root, "a relay")
	if err := tr.write(t.Context(), 0, "newer", "3"); err != nil {
		t.Fatal(err)
	}
	want[child.ID+"/newer"] = "3"
	holds(t, "all that there was, and what came since", want, tr.root)
}

// TestLeafTruncates: a leaf's TRUNCATE takes its own rows away at every node above, and no
// other's; a delete of a row that both have written is the newest write of it.
func TestLeafTruncates(t *testing.T) {
	t.Parallel()
	tr := smallTree(t, func(*nodeconfig.Config) {})
	all := []*testnode.Node{tr.relays[0][0], tr.relays[0][1], tr.root}
	do(t, tr.leaves[0], measure(ingest.Put, "x", "1", "10"), measure(ingest.Put, "x", "2", "10"), measure(ingest.Put, "x", "3", "10"))
	holds(t, "three rows of a", map[string]string{"x/1": "10", "x/2": "10", "x/3": "10"}, all...)
	do(t, tr.leaves[1], measure(ingest.Put, "x", "2", "20"), measure(ingest.Put, "y", "1", "20"))
	holds(t, "the newest of each", map[string]string{"x/1": "10", "x/2": "20", "x/3": "10", "y/1": "20"}, all...)
	do(t, tr.leaves[0], ingest.Op{Kind: ingest.Truncate, Table: measured}, measure(ingest.Put, "x", "3", "11"))
	holds(t, "what a's truncate leaves", map[string]string{"x/2": "20", "x/3": "11", "y/1": "20"}, all...)
	do(t, tr.leaves[1], measure(ingest.Put, "x", "3", "21"))
	holds(t, "b's newer row", map[string]string{"x/2": "20", "x/3": "21", "y/1": "20"}, all...)
	do(t, tr.leaves[1], measure(ingest.Delete, "x", "3", ""), measure(ingest.Delete, "x", "2", ""))
	holds(t, "what b has not deleted", map[string]string{"y/1": "20"}, all...)

	// A relay that begins anew gets what stands from the leaves, and what they have deleted
	// does not come back.
	r := tr.relays[0][1]
	r.Kill()
	if err := r.Run(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	do(t, tr.leaves[0], measure(ingest.Put, "z", "1", "30"))
	holds(t, "what was left, and what came since", map[string]string{"y/1": "20", "z/1": "30"}, all...)
}

// TestLeafOwns: of a table with the policy OriginOwnsKey, what another leaf than the
// owner writes of a key counts nowhere above, whatever comes first.
func TestLeafOwns(t *testing.T) {
	t.Parallel()
	tr := smallTree(t, func(c *nodeconfig.Config) {
		c.Conflicts = []nodeconfig.Conflict{{
			Table: nodeconfig.Table{Schema: measured.Schema, Name: measured.Name}, Policy: nodeconfig.ConflictOriginOwnsKey, OwnerColumn: "leaf",
			Owners: []nodeconfig.Owner{{Node: "tree/a", Value: "of a"}, {Node: "tree/b", Value: "of b"}},
		}}
	})
	all := []*testnode.Node{tr.relays[0][0], tr.relays[0][1], tr.root}
	do(t, tr.leaves[1], measure(ingest.Put, "of b", "1", "1"))
	do(t, tr.leaves[0], measure(ingest.Put, "of a", "1", "1"))
	want := map[string]string{"of a/1": "1", "of b/1": "1"}
	holds(t, "what each has of its own", want, all...)
	for i, other := range []string{"of b", "of a"} {
		var e *ingest.Error
		_, err := (&ingestapi.Client{URL: "http://" + tr.leaves[i].HTTP}).Write(t.Context(), &ingest.Batch{Ops: []ingest.Op{measure(ingest.Put, other, "1", "66")}})
		if !errors.As(err, &e) || e.Code != ingest.Conflict || !strings.Contains(err.Error(), "belongs to node "+tr.leaves[1-i].ID) {
			t.Errorf("a write of %q at %s is answered with %v", other, tr.leaves[i].ID, err)
		}
	}
	do(t, tr.leaves[0], measure(ingest.Put, "of a", "2", "2"))
	do(t, tr.leaves[1], measure(ingest.Put, "of b", "2", "2"))
	want["of a/2"], want["of b/2"] = "2", "2"
	holds(t, "what each has of its own", want, all...)
}

// TestRelayTakenOutOfMesh: a root that reads a relay, and reads a mesh of which a member has
// that relay's log too, reads it from the relay, and by way of the mesh when the relay is
// taken out: it is not forgotten while it is read, and comes again once at most. When the
// relay is a child again, it is read from there.
func TestRelayTakenOutOfMesh(t *testing.T) {
	t.Parallel()
	tr := &relayTree{t: t, dir: t.TempDir()}
	alone := func(int) string { return "" }
	roots := []string{"tree/root"}
	leaf := tr.start("tree/a", func(c *nodeconfig.Config) {
		c.Sources, c.Parents = []nodeconfig.Source{measuredSource()}, &nodeconfig.Parents{}
	}, func(w *nodeconfig.Wiring) { w.Parents.Roots = roots })
	tr.leaves = []*testnode.Node{leaf}
	relay := tr.start("tree/branch", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
		c.Relay = &nodeconfig.Relay{Window: 10 * time.Millisecond}
	}, func(w *nodeconfig.Wiring) {
		childrenOf(tr.leaves, alone)(w)
		w.Sources[0].Readers, w.Sources[0].Roots = roots, roots
	})
	if err := tr.write(t.Context(), 0, "0", "0"); err != nil { // a relay serves what tables its children have written to
		t.Fatal(err)
	}
	member := tr.start("tree/member", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "mesh", Mesh: &nodeconfig.Mesh{}}, {Name: "up", Fanout: &nodeconfig.Fanout{}}}
	}, func(w *nodeconfig.Wiring) {
		w.Sources[1].Candidates = []nodeconfig.Candidate{{ID: relay.ID, Address: relay.Repl, Eligible: true}}
	})
	root := tr.start("tree/root", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}, {Name: "mesh", Mesh: &nodeconfig.Mesh{}}}
	}, func(w *nodeconfig.Wiring) {
		childrenOf([]*testnode.Node{relay}, alone)(w)
		w.Sources[1].Candidates = []nodeconfig.Candidate{{ID: member.ID, Address: member.Repl, Eligible: true}}
	})
	want := map[string]string{leaf.ID + "/0": "0"}
	n := 0
	write := func(nodes ...*testnode.Node) {
		t.Helper()
		n++
		if err := tr.write(t.Context(), 0, fmt.Sprint(n), fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
		want[fmt.Sprintf("%s/%d", leaf.ID, n)] = fmt.Sprint(n)
		holds(t, "what was written", want, nodes...)
	}
	write(member, root)
	var log nodeconfig.LogStatus
	reads := func(source string) {
		t.Helper()
		var st nodeconfig.Statusz
		if err := testnode.Until(t.Context(), time.Minute, "the root to read the relay's log by "+source, func() (bool, error) {
			var err error
			if st, err = statusOf(root); err != nil {
				return false, nil
			}
			for _, l := range st.Logs {
				if l.Origin == relay.ID+"#relay" && l.Source == source {
					log = l
					return true, nil
				}
			}
			return false, nil
		}); err != nil {
			text, _ := json.MarshalIndent(st, "", " ")
			t.Fatalf("%v: %s", err, text)
		}
	}
	if err := testnode.Until(t.Context(), time.Minute, "the mesh to be joined", func() (bool, error) {
		st, err := statusOf(root)
		return err == nil && len(st.Sources) == 2 && len(st.Sources[1].Peers) == 1 && st.Sources[1].Peers[0].Connected, nil
	}); err != nil {
		t.Fatal(err)
	}
	write(member, root)
	reads("below")
	if err := root.Rewire(func(w *nodeconfig.Wiring) { w.Sources[0].Children = nil }); err != nil {
		t.Fatal(err)
	}
	reads("mesh")
	for range 3 {
		write(root)
		time.Sleep(time.Second) // as often as it looks for what can be forgotten
	}
	reads("mesh")
	text, err := os.ReadFile(root.Log())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), "is forgotten") > 1 { // it may be before the mesh reads it
		t.Errorf("the root has forgotten the log that it reads:\n%s", text)
	}
	if d := log.Delivery; d == nil || d.Snapshots > 1 {
		t.Errorf("it came again: %+v %+v", log, d)
	}
	if err := root.Rewire(childrenOf([]*testnode.Node{relay}, alone)); err != nil {
		t.Fatal(err)
	}
	write(root)
	reads("below")
	write(root)
}
