package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
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

	a2 := emptied(t, a, leaf) // the first comes back
	ft.Converged(t, o, ft.Table("t"), a2)
	returned := time.Now()
	o.Put("later", "1")
	ft.Converged(t, o, ft.Table("t"), root)
	turnsTo(t, rm, "a")
	if d := time.Since(returned); d < 300*time.Millisecond {
		t.Errorf("the root went back after %s already", d)
	}
	o.Put("last", "1")
	ft.Converged(t, o, ft.Table("t"), root, a2, b)
}

// emptied starts a relay of a leaf anew, with nothing that it had.
func emptied(t *testing.T, n, leaf *ft.Node) *ft.Node {
	t.Helper()
	again, m, _ := ft.RelayIn(t, n.ID, 2, ft.Options{Address: n.Address}, fast)
	m.SetPeers(ft.Peers(leaf), client.Policy{})
	return again
}

// turnsTo waits until a root reads a relay.
func turnsTo(t *testing.T, root *client.Mesh, id string) {
	t.Helper()
	ft.Eventually(t, 30*time.Second, func() error {
		for _, l := range root.Status().Logs {
			if engine.MintedBy(l.Log.Origin, id) && l.Peer == id {
				return nil
			}
		}
		return fmt.Errorf("the root does not turn to %s: %+v", id, root.Status().Logs)
	})
}

// A root turns once more to a relay that it has left, also if another is preferred: it may
// have something of a leaf that is gone for good, and that the other had not read as far.
func TestVisit(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	leaf, _ := ft.Leaf(t, "leaf", o, "root")
	a, am, _ := ft.Relay(t, "a", fast)
	b, bm, _ := ft.Relay(t, "b", fast)
	for _, m := range []*client.Mesh{am, bm} {
		m.SetPeers(ft.Peers(leaf), client.Policy{})
	}
	a.Stop()
	root, rm := ft.Root(t, "root")
	rm.SetPeers(ft.Grouped("branch", a, b), client.Policy{Standby: true, RecoverAfter: time.Second})
	turnsTo(t, rm, "b")
	ft.Converged(t, o, ft.Table("t"), root)
	b.Stop()
	emptied(t, a, leaf)
	turnsTo(t, rm, "a")
	emptied(t, b, leaf)
	turnsTo(t, rm, "b")
	turnsTo(t, rm, "a")
	o.Put("last", "1")
	ft.Converged(t, o, ft.Table("t"), root)
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

// A relay that is given its root as a child, or a node above it of which the wiring says
// nothing, does not read it, says so, and goes on; and so does a child whose address leads to
// another.
func TestWiredInACircle(t *testing.T) {
	t.Parallel()
	o, other := ft.NewOrigin(10, "t"), ft.NewOrigin(0, "t")
	leaf, _ := ft.Leaf(t, "leaf", o, "root")
	far, _ := ft.Leaf(t, "far", other, "root")
	a, am, ar := ft.Relay(t, "a", fast)
	root, rm, _ := ft.Relay(t, "root", fast)
	am.SetPeers(ft.Peers(leaf), client.Policy{})
	rm.SetPeers(ft.Peers(a, far), client.Policy{})
	other.Put("far", "1")
	ft.Eventually(t, 60*time.Second, func() error {
		if above := ar.Above(); !slices.Equal(above, []string{"root"}) || root.Rows(ft.Table("t"))["far"] != "1" {
			return fmt.Errorf("above a are %v; the root has %v", above, root.Rows(ft.Table("t")))
		}
		return nil
	})
	peers := append([]client.MeshPeer{{ID: "elsewhere", Address: leaf.Address}}, ft.Peers(leaf, root)...)
	am.SetPeers(peers, client.Policy{})
	ft.Eventually(t, 60*time.Second, func() error {
		st := am.Status().Peers
		if len(st) != 3 || st[0].Connected || !strings.Contains(st[0].Error, "is node leaf, and node elsewhere is to be there") {
			return fmt.Errorf("a says of the address: %+v", st)
		}
		if !st[1].Connected || len(st[2].Refused) != 1 || !strings.Contains(st[2].Refused[0].Reason, "would close a loop") {
			return fmt.Errorf("a says of the root: %+v", st)
		}
		return nil
	})
	o.Put("after", "1")
	ft.Eventually(t, 60*time.Second, func() error {
		if root.Rows(ft.Table("t"))["after"] != "1" {
			return fmt.Errorf("the root does not go on")
		}
		return nil
	})
	if a.Rows(ft.Table("t"))["far"] != "" {
		t.Error("a has what comes to its root by another way")
	}
}

// A leaf that cannot be dialled dials its parents, and is read over that session.
func TestLeafDials(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	leaf, known := ft.Leaf(t, "leaf", o, "a")
	parent, m := ft.Root(t, "a")
	m.SetPeers([]client.MeshPeer{{ID: "leaf"}}, client.Policy{})
	_, end := dialling(t, leaf, parent)
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
	end()
}

// dialling makes a leaf dial its parents, until the test or the leaf ends.
func dialling(t *testing.T, leaf *ft.Node, parents ...*ft.Node) (d *client.Dialer, end func()) {
	t.Helper()
	d, err := client.NewDialer(client.Config{
		NodeID: leaf.ID, Name: "parents", Logger: ft.Logger(leaf.ID),
		Serve: func(ctx context.Context, from fanout.Caller, stream *fanout.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
			return leaf.Server.Join(ctx, from, stream, end)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.SetPeers(ft.Peers(parents...))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return d, end
}

// The leaves of a relay come all at once (R20): it lets them in at a bounded rate and tells
// the others when to come, they do, and all is read of all. Meanwhile it goes on: a leaf
// that was there before is read, and the root above gets what it writes.
func TestCaseR20Leaves(t *testing.T) {
	t.Parallel()
	const storm, rate = 20, 2
	r, err := relay.New(fast)
	if err != nil {
		t.Fatal(err)
	}
	parent, m := ft.Member(t, "relay", ft.Options{Relay: r, Use: ft.Durable(t), Server: server.Config{AdmitRate: rate}}, nil, func(c *client.Config) {
		c.Minted, c.Holder, c.Above = true, relay.Holder("relay", 1), r.Acks
		c.Told = func(s fanout.Stable) { r.Told(s.Log, s.Compare, s.Holders) }
	})
	root, rm := ft.Root(t, "root")
	rm.SetPeers(ft.Peers(parent), client.Policy{})
	origin := func() *ft.Origin { return ft.NewOrigin(0, "t") }
	own := origin()
	before, _ := ft.Leaf(t, "before", own, "root")
	peers := []client.MeshPeer{{ID: "before"}}
	var leaves []*ft.Node
	var origins []*ft.Origin
	for i := range storm {
		o := origin()
		o.Put(fmt.Sprint("of leaf ", i), "1")
		leaf, _ := ft.Leaf(t, fmt.Sprint("leaf", i), o, "root")
		leaves, origins = append(leaves, leaf), append(origins, o)
		peers = append(peers, client.MeshPeer{ID: leaf.ID})
	}
	m.SetPeers(peers, client.Policy{})
	was, _ := dialling(t, before, parent)
	own.Put("before", "1")
	holds := func(key, value string) {
		t.Helper()
		ft.Eventually(t, time.Minute, func() error {
			if got := root.Rows(ft.Table("t"))[key]; got != value {
				return fmt.Errorf("the root has %q of %q, want %q", got, key, value)
			}
			return nil
		})
	}
	holds("before", "1")
	since := was.Peers()[0].Since

	began := time.Now()
	var dialers []*client.Dialer
	for _, leaf := range leaves {
		d, _ := dialling(t, leaf, parent)
		dialers = append(dialers, d)
	}
	told := map[int]bool{}
	attached := func() (n int) {
		for i, d := range dialers {
			switch p := d.Peers()[0]; {
			case p.Connected:
				n++
			case strings.Contains(p.Error, "come back in"):
				told[i] = true
			}
		}
		return n
	}
	own.Put("before", "during")
	ft.Eventually(t, 2*time.Minute, func() error {
		n := attached()
		if float64(n) > 2*rate+rate*time.Since(began).Seconds() { // twice as many may come at once
			t.Fatalf("%d leaves have been let in after %s, at %d in a second", n, time.Since(began), rate)
		}
		if n < storm {
			return fmt.Errorf("%d of %d leaves are attached", n, storm)
		}
		return nil
	})
	took := time.Since(began)
	t.Logf("%d leaves within %s; %d were seen to be told when to come", storm, took, len(told))
	if len(told) == 0 && took < 2*(storm-2*rate)/rate*time.Second { // else the machine is slower than the rate
		t.Error("nobody was told to wait")
	}
	holds("before", "during")
	if now := was.Peers()[0]; !now.Connected || !now.Since.Equal(since) {
		t.Errorf("the leaf that was there before had its session since %s, and now: %+v", since, now)
	}
	for i, o := range origins {
		o.Put(fmt.Sprint("of leaf ", i), "2")
	}
	for i := range storm {
		holds(fmt.Sprint("of leaf ", i), "2")
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

// A relay's cursor for a leaf is far on, and the leaf's store is wiped (R01): the relay goes
// on in the new epoch from its beginning, and what the leaf has no more goes, here and at the
// root. Nobody is said to be caught up with what is lacking.
func TestCaseR01Leaf(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t")
	leaf, _ := ft.Leaf(t, "leaf", o, "root")
	a, am, _ := ft.Relay(t, "a", fast)
	am.SetPeers(ft.Peers(leaf), client.Policy{})
	root, rm, _ := ft.Relay(t, "root", relay.Config{Window: -1})
	rm.SetPeers(ft.Peers(a), client.Policy{})
	for i := range 995 {
		o.Put(fmt.Sprint("k", i), "before")
	}
	ft.Converged(t, o, ft.Table("t"), a, root)
	old, _ := logStatus(a, "leaf#own")
	leaf.Stop()
	again := ft.NewOrigin(0, "t")
	for i := range 80 {
		again.Put(fmt.Sprint("k", i), "after")
	}
	l := relay.NewLeaf(func(engine.LogID) engine.Comparator { return engine.CompareLSN })
	l.SetRoots([]string{"root"})
	ft.Start(t, "leaf", ft.Options{Leaf: l, Use: ft.Durable(t), Address: leaf.Address}, map[string]engine.SyncSource{"own": again})
	ft.Eventually(t, time.Minute, func() error {
		l, ok := logStatus(a, "leaf#own")
		if ok && l.ID.Epoch == old.ID.Epoch && l.Lag.Known && l.Lag.CountKnown && l.Lag.Changes == 0 && l.SourceHead != old.Head {
			t.Errorf("the relay, in the old epoch, is said to be caught up with the new one: %+v", l)
		}
		if want, have := again.Digest(ft.Table("t")), root.Digest(ft.Table("t")); want != have || l.ID.Epoch <= old.ID.Epoch {
			return fmt.Errorf("the root has %s, the leaf %s; the relay reads epoch %s, and it was %s", have, want, l.ID.Epoch, old.ID.Epoch)
		}
		return nil
	})
	again.Put("k1", "and on")
	ft.Converged(t, again, ft.Table("t"), a, root)
}

// The two relays of a branch are restarted in turn under load (R17): of a table of which
// every change is delivered, each is in the root's log once, none is missing, and nobody
// takes a baseline of what it had.
func TestCaseR17Relays(t *testing.T) {
	t.Parallel()
	every := map[engine.TableName]relay.Delivery{ft.Table("t"): relay.All}
	o := ft.NewOrigin(0, "t")
	leaf, _ := ft.Leaf(t, "leaf", o, "root")
	type life struct {
		*ft.Node
		mesh  *client.Mesh
		store engine.Store
	}
	start := func(id, address string, st engine.Store, window time.Duration) life {
		r, err := relay.New(relay.Config{Window: window, Tables: every})
		if err != nil {
			t.Fatal(err)
		}
		n, m := ft.Member(t, id, ft.Options{Relay: r, Use: st, Address: address}, nil, func(c *client.Config) {
			c.Minted, c.Holder, c.Above = true, relay.Holder(id, 1), r.Acks
			c.Told = func(s fanout.Stable) { r.Told(s.Log, s.Compare, s.Holders) }
		})
		return life{n, m, st}
	}
	var relays [2]life
	for i := range relays {
		relays[i] = start(fmt.Sprint("relay", i), "", ft.Durable(t), time.Duration(10+30*i)*time.Millisecond)
		relays[i].mesh.SetPeers(ft.Peers(leaf), client.Policy{})
	}
	root := start("root", "", ft.Durable(t), -1)
	root.mesh.SetPeers(ft.Grouped("branch", relays[0].Node, relays[1].Node), client.Policy{})
	snapshots := func(n life) (all int64) {
		for _, l := range n.mesh.Status().Logs {
			all += l.Counts.Snapshots
		}
		return all
	}
	writes := 0
	write := func(n int) {
		for range n {
			writes++
			o.Put(fmt.Sprint("k", writes%50), fmt.Sprint(writes))
			time.Sleep(time.Millisecond)
		}
	}
	write(50)
	ft.Converged(t, o, ft.Table("t"), relays[0].Node, relays[1].Node, root.Node)
	ft.Eventually(t, 30*time.Second, func() error { // it may have all by way of one
		if len(root.mesh.Status().Logs) < 2 {
			return fmt.Errorf("the root reads %+v", root.mesh.Status().Logs)
		}
		return nil
	})
	first := snapshots(root)
	for round := range 6 {
		was := relays[round%2]
		write(50)
		was.Stop()
		write(50)
		now := start(was.ID, was.Address, was.store, time.Duration(10+30*(round%2))*time.Millisecond)
		now.mesh.SetPeers(ft.Peers(leaf), client.Policy{})
		relays[round%2] = now
		write(50)
		ft.Converged(t, o, ft.Table("t"), now.Node, root.Node)
		if n := snapshots(now); n > 0 {
			t.Errorf("%s has taken %d baselines after a restart", now.ID, n)
		}
	}
	if n := snapshots(root); n > first {
		t.Errorf("the root has taken %d baselines", n-first)
	}
	ft.Eventually(t, 30*time.Second, func() error {
		if info, _ := logOf(root.Node, "root"); int(info.Changes) != writes {
			return fmt.Errorf("%d changes were written, and %d are in the root's log", writes, info.Changes)
		}
		return nil
	})
}
