package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	fanout "github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
	"github.com/tributary-dev/tributary/pkg/relay"
)

var fast = relay.Config{Window: 20 * time.Millisecond}

// logOf returns what a node holds of another's log.
func logOf(n *ft.Node, of string) (engine.LogInfo, bool) {
	v := n.Engine.View()
	defer v.Close()
	for _, l := range v.Logs() {
		if engine.MintedBy(l.ID.Origin, of) {
			return l, true
		}
	}
	return engine.LogInfo{}, false
}

// A root reads one of two relays that carry the same leaves, and the other from the
// floor when that one is gone: it is not sent again what it has. A preferred relay
// that is back is read again only when it has been well for a while.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	const rows = 3000
	o := ft.NewOrigin(rows, "t")
	leaf, known := ft.Leaf(t, "leaf", o, "root")
	a, am, _ := ft.Relay(t, "a", fast)
	b, bm, br := ft.Relay(t, "b", fast)
	for _, m := range []*client.Mesh{am, bm} {
		m.SetPeers(ft.Peers(leaf), client.Policy{})
	}
	root, rm := ft.Root(t, "root")
	standby := client.Policy{Standby: true, RecoverAfter: time.Second}
	rm.SetPeers(ft.Grouped("branch", a, b), standby)
	ft.Converged(t, o, ft.Table("t"), a, b, root)
	for i := range 50 {
		o.Put(fmt.Sprint("x", i), "1")
	}
	ft.Converged(t, o, ft.Table("t"), a, b, root)
	read := "a"
	if _, ok := logOf(root, "b"); ok {
		read = "b" // it was there first
	}
	if read == "b" {
		ft.Eventually(t, 30*time.Second, func() error { // back at the preferred one
			if _, ok := logOf(root, "a"); !ok {
				return fmt.Errorf("the root does not go back to a")
			}
			return nil
		})
	}
	// The acknowledgement of the root reaches the other relay by way of the leaf.
	ft.Eventually(t, 30*time.Second, func() error {
		info, _ := logOf(b, "b")
		if at := br.Floor(relay.Holder("root", 1)); at != info.Head {
			return fmt.Errorf("b knows that the root has %s of its log up to %s", at, info.Head)
		}
		if at, ok := known.Stable(leaf.Engine.Adverts()[0].Log); !ok || at == "" {
			return fmt.Errorf("the leaf does not know what is stable")
		}
		return nil
	})
	before := rm.Status()
	a.Stop()
	stopped := time.Now()
	o.Put("after", "1")
	ft.Eventually(t, 30*time.Second, func() error {
		if root.Rows(ft.Table("t"))["after"] != "1" {
			return fmt.Errorf("the root does not go on")
		}
		return nil
	})
	took := time.Since(stopped)
	t.Logf("the root went on after %s", took)
	if took > 10*time.Second { // a tenth of a second where the machine has nothing else to do
		t.Errorf("the root went on after %s", took)
	}
	ft.Converged(t, o, ft.Table("t"), root)
	info, _ := logOf(root, "b")
	for _, ad := range root.Engine.Adverts() { // else those who read the root would not see it
		if ad.Log == info.ID && !slices.Contains(ad.Tables, ft.Table("t")) {
			t.Errorf("the root advertises %s with tables %v", ad.Log, ad.Tables)
		}
	}
	if read == "a" && info.Changes > 200 {
		t.Errorf("%d changes have come by way of b, and the root lacked one", info.Changes)
	}
	floors := int64(0)
	for _, l := range rm.Status().Logs {
		floors += l.Counts.Floors
	}
	if floors == 0 {
		t.Errorf("nothing was taken over at the floor: %+v, then %+v", before.Logs, rm.Status().Logs)
	}

	// The first comes back, empty.
	back, err := relay.New(fast)
	if err != nil {
		t.Fatal(err)
	}
	a2, am2 := ft.Member(t, "a", ft.Options{Relay: back, Address: a.Address}, nil, func(c *client.Config) {
		c.Minted, c.Holder, c.Above = true, relay.Holder("a", 2), back.Acks
		c.Told = func(s fanout.Stable) { back.Told(s.Log, s.Compare, s.Holders) }
	})
	am2.SetPeers(ft.Peers(leaf), client.Policy{})
	ft.Converged(t, o, ft.Table("t"), a2)
	returned := time.Now()
	o.Put("later", "1")
	ft.Converged(t, o, ft.Table("t"), root)
	ft.Eventually(t, 20*time.Second, func() error {
		for _, l := range rm.Status().Logs {
			if engine.MintedBy(l.Log.Origin, "a") && l.Peer == "a" {
				return nil
			}
		}
		return fmt.Errorf("the root does not go back to a: %+v", rm.Status().Logs)
	})
	if d := time.Since(returned); d < 300*time.Millisecond {
		t.Errorf("the root went back after %s already", d)
	}
	o.Put("last", "1")
	ft.Converged(t, o, ft.Table("t"), root, a2, b)
}

// columns are a row's values.
func columns(r engine.Record) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, c := range r.Row.Columns() {
			if !yield(c.Value) {
				return
			}
		}
	}
}

// A root that reads both relays goes on when one is gone, without a pause.
func TestBothParents(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	leaf, _ := ft.Leaf(t, "leaf", o, "root")
	a, am, _ := ft.Relay(t, "a", fast)
	b, bm, _ := ft.Relay(t, "b", fast)
	for _, m := range []*client.Mesh{am, bm} {
		m.SetPeers(ft.Peers(leaf), client.Policy{})
	}
	root, rm := ft.Root(t, "root")
	rm.SetPeers(ft.Grouped("branch", a, b), client.Policy{})
	ft.Converged(t, o, ft.Table("t"), a, b, root)
	ft.Eventually(t, 30*time.Second, func() error { // it may have all by way of one
		for _, of := range []string{"a", "b"} {
			if _, ok := logOf(root, of); !ok {
				return fmt.Errorf("the root does not know the log of %s", of)
			}
		}
		return nil
	})
	a.Stop()
	for i := range 100 {
		o.Put(fmt.Sprint("k", i), "2")
	}
	ft.Converged(t, o, ft.Table("t"), root, b)
	// Whoever reads a root gets the leaves' rows, with where they are from.
	c, err := client.New(client.WithUpstreams(root.Address), client.WithTables(ft.Table("t")))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ft.Eventually(t, 30*time.Second, func() error {
		got, err := c.All(ft.Table("t"))
		if err != nil || len(got) < 100 {
			return fmt.Errorf("the reader has %d rows: %v", len(got), err)
		}
		for _, r := range got {
			if r.Stamp.Origin != "leaf#own" {
				t.Errorf("a row is of %s", r.Stamp.Origin)
			}
		}
		return nil
	})
	o.Put("k000001", "3")
	ft.Eventually(t, 30*time.Second, func() error {
		if r, ok, err := c.Get(ft.Table("t"), "k000001"); err != nil || !ok || string(slices.Collect(columns(r))[1]) != "3" {
			return fmt.Errorf("the reader does not follow: %t %v", ok, err)
		}
		return nil
	})
	if _, ok := logOf(root, "leaf"); ok {
		t.Error("the root knows the leaf's log")
	}
}

// A leaf that cannot be dialled dials its parents, and is read over that session.
func TestLeafDials(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	leaf, known := ft.Leaf(t, "leaf", o, "a")
	parent, m := ft.Root(t, "a")
	m.SetPeers([]client.MeshPeer{{ID: "leaf"}}, client.Policy{})
	d, err := client.NewDialer(client.Config{
		NodeID: "leaf", Name: "parents", Logger: ft.Logger("leaf"),
		Serve: func(ctx context.Context, from fanout.Caller, stream *fanout.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
			return leaf.Server.Join(ctx, from, stream, end)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.SetPeers(ft.Peers(parent))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	ft.Converged(t, o, ft.Table("t"), parent)
	o.Put("k", "v")
	ft.Converged(t, o, ft.Table("t"), parent)
	ft.Eventually(t, 30*time.Second, func() error {
		head := leaf.Engine.Adverts()[0]
		if at, _ := known.Stable(head.Log); at != head.Head {
			return fmt.Errorf("the root has %s of %s, as the leaf knows", at, head.Head)
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A reader that is behind the entries of a relay's log gets what it lacks by the places
// of the rows, as one transaction, and goes on with the log.
func TestBehindTheLog(t *testing.T) {
	t.Parallel()
	const rows = 5000
	o := ft.NewOrigin(rows, "t")
	leaf, _ := ft.Leaf(t, "leaf", o, "root")
	r, err := relay.New(fast)
	if err != nil {
		t.Fatal(err)
	}
	parent, m := ft.Member(t, "a", ft.Options{Relay: r, Store: store.MemoryOptions{JournalBytes: 16 << 10}}, nil, func(c *client.Config) {
		c.Minted, c.Holder, c.Above = true, relay.Holder("a", 1), r.Acks
	})
	m.SetPeers(ft.Peers(leaf), client.Policy{})
	ft.Converged(t, o, ft.Table("t"), parent)
	for i := range 500 {
		o.Put(fmt.Sprintf("k%06d", i), fmt.Sprintf("%0100d", i))
	}
	ft.Converged(t, o, ft.Table("t"), parent)
	if info, _ := logOf(parent, "a"); info.Oldest == "" {
		t.Fatalf("the relay's log still begins at its beginning: %+v", info)
	}
	root, rm := ft.Root(t, "root")
	rm.SetPeers(ft.Peers(parent), client.Policy{})
	ft.Converged(t, o, ft.Table("t"), root)
	for i := range 100 {
		o.Write(ft.Change{Table: ft.Table("t"), Key: fmt.Sprintf("k%06d", i), Gone: true})
	}
	ft.Converged(t, o, ft.Table("t"), root)
	for _, l := range rm.Status().Logs {
		if l.Counts.Snapshots != 0 {
			t.Errorf("%d snapshots", l.Counts.Snapshots)
		}
	}
}

// A relay that comes late takes a leaf's rows as of where its log begins, and the log
// after it: no change of a table that is delivered as All is missing.
func TestLateParent(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(20, "t")
	leaf, _ := ft.Leaf(t, "leaf", o, "root")
	ft.Converged(t, o, ft.Table("t"), leaf) // else the leaf's own baseline has them
	const changes = 60
	for i := range changes {
		o.Put("x", fmt.Sprint(i))
		o.Put("k000003", fmt.Sprint(i))
	}
	o.Write(ft.Change{Table: ft.Table("t"), Key: "k000004", Gone: true})
	ft.Converged(t, o, ft.Table("t"), leaf)
	cfg := relay.Config{Window: 20 * time.Millisecond, Tables: map[engine.TableName]relay.Delivery{ft.Table("t"): relay.All}}
	a, am, ar := ft.Relay(t, "a", cfg)
	am.SetPeers(ft.Peers(leaf), client.Policy{})
	root, rm := ft.Root(t, "root")
	rm.SetPeers(ft.Peers(a), client.Policy{})
	o.Put("x", "last")
	ft.Converged(t, o, ft.Table("t"), a, root)
	v := a.Engine.View()
	defer v.Close()
	bs, err := v.ReadLog(ar.Log(), "", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, b := range bs {
		r := b.Reader(ar.Log(), v.Schema)
		for r.Next() {
			if c := r.Change; !r.IsBegin && c.Op == engine.OpPut {
				var cs []string
				for _, col := range c.Row.Columns() {
					cs = append(cs, string(col.Value))
				}
				got[cs[0]] = append(got[cs[0]], cs[1])
			}
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	want := []string{}
	for i := range changes {
		want = append(want, fmt.Sprint(i))
	}
	if !slices.Equal(got["k000003"], want) {
		t.Errorf("of %d changes of a row %d are in the relay's log: %v", changes, len(got["k000003"]), got["k000003"])
	}
	if !slices.Equal(got["x"], append(want, "last")) {
		t.Errorf("of %d changes of a new row %d are in the relay's log: %v", changes+1, len(got["x"]), got["x"])
	}
	if len(got["k000001"]) != 1 {
		t.Errorf("a row that has not changed is in the log %d times", len(got["k000001"]))
	}
	if g := ar.Stats().Gap; g.Why != "" {
		t.Errorf("a gap is said: %s", g.Why)
	}
}
