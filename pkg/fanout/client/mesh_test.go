package client_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	fanout "github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// mesh is a mesh of nodes that each write.
type mesh struct {
	t       *testing.T
	nodes   []*ft.Node
	meshes  []*client.Mesh
	origins []*ft.Origin
}

// startMesh starts n nodes, joined by edges (each both ways); nil joins all.
func startMesh(t *testing.T, n int, edges [][2]int, change func(i int, c *client.Config)) *mesh {
	t.Helper()
	m := &mesh{t: t}
	for i := range n {
		o := ft.NewOrigin(0, "t")
		node, me := ft.Member(t, fmt.Sprintf("n%02d", i), ft.Options{}, o, func(c *client.Config) {
			if change != nil {
				change(i, c)
			}
		})
		m.nodes, m.meshes, m.origins = append(m.nodes, node), append(m.meshes, me), append(m.origins, o)
	}
	if edges == nil {
		for i := range n {
			for j := range i {
				edges = append(edges, [2]int{i, j})
			}
		}
	}
	m.join(edges)
	return m
}

func (m *mesh) join(edges [][2]int) {
	peers := map[int][]*ft.Node{}
	for _, e := range edges {
		peers[e[0]] = append(peers[e[0]], m.nodes[e[1]])
		peers[e[1]] = append(peers[e[1]], m.nodes[e[0]])
	}
	for i, me := range m.meshes {
		me.SetPeers(ft.Peers(peers[i]...), client.Policy{})
	}
}

// logged waits until nodes have every log of the origins up to their heads.
func (m *mesh) logged(nodes ...int) {
	m.t.Helper()
	if nodes == nil {
		for i := range m.nodes {
			nodes = append(nodes, i)
		}
	}
	for _, i := range nodes {
		ft.Eventually(m.t, 30*time.Second, func() error {
			heads := map[string]engine.Position{}
			for _, a := range m.nodes[i].Engine.Adverts() {
				heads[a.Log.Origin] = a.Head
			}
			for j, o := range m.origins {
				lsn, _ := engine.ParseLSN(o.Next())
				if want, have := (lsn - 16).Position(), heads[engine.Origin(m.nodes[j].ID, "own")]; have != want {
					return fmt.Errorf("node %d has the log of node %d up to %q, and it is at %s; status %+v", i, j, have, want, m.meshes[i].Status())
				}
			}
			return nil
		})
	}
}

// equal checks that nodes hold the same state, tombstones and stamps included.
func (m *mesh) equal(nodes ...int) {
	m.t.Helper()
	if nodes == nil {
		for i := range m.nodes {
			nodes = append(nodes, i)
		}
	}
	want := dump(m.t, m.nodes[nodes[0]])
	for _, i := range nodes[1:] {
		if have := dump(m.t, m.nodes[i]); !maps.Equal(want, have) {
			m.t.Errorf("node %d differs from node %d:\n%v\n%v", i, nodes[0], have, want)
		}
	}
}

func dump(t *testing.T, n *ft.Node) map[string]string {
	v := n.Engine.View()
	defer v.Close()
	all := map[string]string{}
	for _, tab := range v.Tables() {
		if err := v.Scan(tab.Table, nil, func(r *engine.Record) bool {
			all[tab.Table.String()+"/"+string(r.Key)] = fmt.Sprintf("%x %+v %t", r.Row.Values(), r.Stamp, r.Deleted)
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func (m *mesh) log(i int, origin int) client.MeshLog {
	m.t.Helper()
	for _, l := range m.meshes[i].Status().Logs {
		if l.Log.Origin == engine.Origin(m.nodes[origin].ID, "own") {
			return l
		}
	}
	return client.MeshLog{}
}

// Every node of a full mesh writes the same keys: all end equal, and each pair is
// joined by one session, whoever has dialled (R22).
func TestCaseR22(t *testing.T) {
	t.Parallel()
	m := startMesh(t, 5, nil, nil)
	for round := range 50 {
		for i, o := range m.origins {
			if round%7 == i {
				o.Write(ft.Change{Table: ft.Table("t"), Key: fmt.Sprint("k", round%11), Gone: true})
				continue
			}
			o.Put(fmt.Sprint("k", round%11), fmt.Sprintf("node %d round %d", i, round))
		}
		time.Sleep(time.Millisecond)
	}
	m.logged()
	m.equal()
	ft.Eventually(t, 30*time.Second, func() error {
		sessions := 0
		for i, n := range m.nodes {
			sessions += len(n.Server.Readers())
			for _, p := range m.meshes[i].Status().Peers {
				if !p.Connected {
					return fmt.Errorf("node %d is not joined with %s: %s", i, p.ID, p.Error)
				}
			}
		}
		if want := 5 * 4; sessions != want { // each session is served at both ends
			return fmt.Errorf("%d halves of sessions serve, of %d", sessions, want)
		}
		return nil
	})
}

// A→B→C, and A→B→D→C beside it: C goes on through D when B dies, and is sent
// nothing twice but what was on its way.
func TestMeshFailover(t *testing.T) {
	t.Parallel()
	const a, b, c, d = 0, 1, 2, 3
	m := startMesh(t, 4, [][2]int{{a, b}, {b, c}, {b, d}, {d, c}, {a, d}}, nil)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
				m.origins[a].Put(fmt.Sprint("k", i%1000), fmt.Sprint(i))
			}
		}
	}()
	ft.Eventually(t, 30*time.Second, func() error {
		if l := m.log(c, a); l.Received == "" || l.Peer == "" {
			return fmt.Errorf("C does not read A's log: %+v", l)
		}
		return nil
	})
	through := m.log(c, a).Peer
	victim := slices.IndexFunc(m.nodes, func(n *ft.Node) bool { return n.ID == through })
	before := m.log(c, a)
	m.nodes[victim].Stop()
	ft.Eventually(t, 30*time.Second, func() error {
		l := m.log(c, a)
		if l.Peer == "" || l.Peer == through || engine.CompareLSN(l.Received, before.Received) <= 0 {
			return fmt.Errorf("C reads A's log from %q at %s", l.Peer, l.Received)
		}
		return nil
	})
	time.Sleep(200 * time.Millisecond)
	close(stop)
	<-done
	rest := []int{a, b + d - victim, c}
	for _, i := range rest {
		ft.Eventually(t, 30*time.Second, func() error {
			if want, have := m.origins[a].Digest(ft.Table("t")), m.nodes[i].Digest(ft.Table("t")); want != have {
				return fmt.Errorf("node %d has %s, A %s", i, have, want)
			}
			return nil
		})
	}
	after := m.log(c, a)
	if after.Counts.Duplicates != 0 || after.Counts.Snapshots > 1 || after.Counts.Holes != 0 {
		t.Errorf("C was sent things twice: %+v", after.Counts)
	}
}

// A ring of six with edges both ways: one copy per node, and traffic stops (R15).
func TestMeshRing(t *testing.T) {
	t.Parallel()
	const n = 6
	var edges [][2]int
	for i := range n {
		edges = append(edges, [2]int{i, (i + 1) % n})
	}
	m := startMesh(t, n, edges, nil)
	m.logged()
	for i := range 300 {
		m.origins[i%n].Put(fmt.Sprint("k", i%50), fmt.Sprint(i))
	}
	m.logged()
	m.equal()
	for i := range m.nodes {
		for j := range m.nodes {
			if l := m.log(i, j); i != j && l.Counts.Duplicates > 0 {
				t.Errorf("node %d got the log of node %d twice in part: %+v", i, j, l.Counts)
			}
		}
	}
}

// A mesh is flipped node by node to one cursor for all logs, and back, while every
// node writes: nobody loses anything, and no other node takes a baseline.
func TestMeshFlipped(t *testing.T) {
	t.Parallel()
	const n = 4
	basic := [n]bool{}
	m := startMesh(t, n, nil, nil)
	stores := make([]engine.Store, n)
	for i, node := range m.nodes {
		stores[i] = node.Store
	}
	var mu sync.Mutex
	paused := -1
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Microsecond):
			}
			mu.Lock()
			if i%n != paused {
				m.origins[i%n].Put(fmt.Sprint("k", i%37), fmt.Sprint(i))
			}
			mu.Unlock()
		}
	}()
	ft.Eventually(t, 30*time.Second, func() error {
		for i := range n {
			for j := range n {
				if l := m.log(i, j); i != j && l.Received == "" {
					return fmt.Errorf("node %d has nothing of node %d", i, j)
				}
			}
		}
		return nil
	})
	own := func(i int) {
		t.Helper()
		ft.Eventually(t, 30*time.Second, func() error {
			if !m.origins[i].Idle() {
				return fmt.Errorf("node %d has yet to take in what it wrote", i)
			}
			return nil
		})
	}
	flip := func(i int) {
		mu.Lock()
		paused = i
		mu.Unlock()
		own(i)
		old := m.nodes[i]
		old.Stop()
		basic[i] = !basic[i]
		node, me := ft.Member(t, old.ID, ft.Options{Use: stores[i], Address: old.Address, Server: server.Config{Basic: basic[i]}}, m.origins[i], func(c *client.Config) { c.Basic = basic[i] })
		m.nodes[i], m.meshes[i] = node, me
		var peers []*ft.Node
		for j, p := range m.nodes {
			if j != i {
				peers = append(peers, p)
			}
		}
		me.SetPeers(ft.Peers(peers...), client.Policy{})
		mu.Lock()
		paused = -1
		mu.Unlock()
		time.Sleep(150 * time.Millisecond)
	}
	for range 2 { // there, and back
		for i := range n {
			flip(i)
		}
	}
	flip(2) // and one stays so
	time.Sleep(100 * time.Millisecond)
	close(stop)
	<-done
	m.logged()
	m.equal()
	for i := range n {
		if now := snapshots(m.meshes[i]); now != 0 {
			t.Errorf("node %d has taken %d baselines since it was started again", i, now)
		}
	}
}

func snapshots(m *client.Mesh) (n int64) {
	for _, l := range m.Status().Logs {
		n += l.Counts.Snapshots
	}
	return n
}

// blocking is a mesh source whose sink does not take one origin's blocks for a
// while.
type blocking struct {
	*client.Mesh
	origin string
	gate   chan struct{} // closed when it takes them again
}

func (b *blocking) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	return b.Mesh.Stream(ctx, from, &blockingSink{sink, b})
}

type blockingSink struct {
	engine.Sink
	b *blocking
}

func (s *blockingSink) ApplyBlocks(ctx context.Context, key engine.CursorKey, blocks []*engine.Block) error {
	if key.Log.Origin == s.b.origin {
		select {
		case <-s.b.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Sink.ApplyBlocks(ctx, key, blocks)
}

// Fifty origins come through one hub. One origin's apply is blocked, and then its
// node dies and another takes its place at the hub: the others' delay is what it
// was, nothing of them is sent twice, and none is asked for again.
func TestMeshIsolation(t *testing.T) {
	t.Parallel()
	const victim = 7
	n := 50
	if testing.Short() {
		n = 20 // the race detector has enough of them
	}
	hubNode, hub := ft.Member(t, "hub", ft.Options{}, nil, nil)
	var nodes []*ft.Node
	var origins []*ft.Origin
	for i := range n {
		o := ft.NewOrigin(0, "t")
		nodes, origins = append(nodes, ft.Start(t, fmt.Sprintf("o%02d", i), ft.Options{}, map[string]engine.SyncSource{"own": o})), append(origins, o)
	}
	hub.SetPeers(ft.Peers(nodes...), client.Policy{})
	b := &blocking{origin: engine.Origin("o07", "own"), gate: make(chan struct{})}
	edge := ft.MemberWith(t, "edge", ft.Options{}, func(m *client.Mesh) map[string]engine.SyncSource {
		b.Mesh = m
		return map[string]engine.SyncSource{"mesh": b}
	}, nil)
	b.SetPeers(ft.Peers(hubNode), client.Policy{})
	heads := func() map[string]engine.Position {
		all := map[string]engine.Position{}
		for _, a := range edge.Engine.Adverts() {
			all[a.Log.Origin] = a.Head
		}
		return all
	}
	ft.Eventually(t, time.Minute, func() error {
		if have := len(heads()); have != n {
			return fmt.Errorf("the edge has %d logs: %+v", have, hub.Status().Peers)
		}
		return nil
	})
	// p99 of the time from a write to its commit at the edge, over all but one.
	measure := func(rounds int) time.Duration {
		var all []time.Duration
		for r := range rounds {
			began := time.Now()
			want := map[string]engine.Position{}
			for i, o := range origins {
				at := o.Put(fmt.Sprint("k", i), fmt.Sprint(r))
				if i != victim {
					want[engine.Origin(nodes[i].ID, "own")] = at
				}
			}
			for len(want) > 0 {
				changed := edge.Engine.Changed()
				have := heads()
				for o, at := range want {
					if engine.CompareLSN(have[o], at) >= 0 {
						delete(want, o)
						all = append(all, time.Since(began))
					}
				}
				if len(want) > 0 {
					select {
					case <-changed:
					case <-time.After(30 * time.Second):
						t.Fatalf("%d logs do not come: %v", len(want), want)
					}
				}
			}
		}
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	close(b.gate)
	free := measure(60)
	b.gate = make(chan struct{})
	blocked := measure(60)
	close(b.gate)
	nodes[victim].Stop()
	gone := measure(60)
	t.Logf("p99: %s free, %s with one origin blocked, %s with one gone", free, blocked, gone)
	// The figures are of a busy machine: what would show is a wait, not a percentage.
	if limit := 5*free + time.Second; blocked > limit || gone > limit {
		t.Errorf("p99 was %s, is %s with one origin blocked and %s with one gone", free, blocked, gone)
	}
	for _, l := range b.Status().Logs {
		if l.Counts.Duplicates+l.Counts.Holes > 0 || l.Counts.Snapshots > 1 || l.Moves > 0 {
			t.Errorf("log of %s: %+v", l.Log.Origin, l)
		}
	}
}

// Sixteen nodes, each joined with every other, all writing: each gets one copy of
// each change. Then the mesh falls in two for a while, and heals without a storm.
func TestMeshOfSixteen(t *testing.T) {
	t.Parallel()
	n := 16
	if testing.Short() {
		n = 8 // the race detector has enough of them
	}
	m := startMesh(t, n, nil, nil)
	m.logged()
	var ideal int64
	write := func(rounds int) {
		for r := range rounds {
			for i, o := range m.origins {
				o.Put(fmt.Sprint("k", (r*7+i)%97), fmt.Sprintf("%d/%d %0100d", i, r, 0))
			}
		}
	}
	write(20)
	m.logged()
	m.equal()
	var dup, bytes int64
	for i := range n {
		for _, l := range m.meshes[i].Status().Logs {
			dup += l.Counts.DuplicateBytes
			bytes += l.Counts.Bytes
		}
	}
	for _, a := range m.nodes[0].Engine.Adverts() {
		v := m.nodes[0].Engine.View()
		info, _ := v.Log(a.Log)
		v.Close()
		ideal += int64(info.Bytes) * int64(n-1)
	}
	t.Logf("bytes received: %d, of them twice %d; one copy for each node, with what the store adds: %d", bytes, dup, ideal)
	if dup > 0 {
		t.Errorf("%d bytes came twice", dup)
	}
	// Two halves, and then one again.
	var halves [][2]int
	for i := range n {
		for j := range i {
			if i%2 == j%2 {
				halves = append(halves, [2]int{i, j})
			}
		}
	}
	m.join(halves)
	write(5)
	for i := range 2 {
		var half []int
		for j := i; j < n; j += 2 {
			half = append(half, j)
		}
		ft.Eventually(t, 30*time.Second, func() error {
			want := m.nodes[half[0]].Digest(ft.Table("t"))
			for _, j := range half {
				if have := m.nodes[j].Digest(ft.Table("t")); have != want {
					return fmt.Errorf("node %d has %s, and node %d %s", j, have, half[0], want)
				}
			}
			return nil
		})
	}
	var all [][2]int
	for i := range n {
		for j := range i {
			all = append(all, [2]int{i, j})
		}
	}
	m.join(all)
	m.logged()
	m.equal()
	for i := range n {
		for _, l := range m.meshes[i].Status().Logs {
			if l.Counts.DuplicateBytes > 0 || l.Counts.Snapshots > 1 {
				t.Errorf("node %d: log of %s: %+v", i, l.Log.Origin, l.Counts)
			}
		}
	}
}

// A node with one cursor for all logs joins where three others hold the same log:
// it copies it once, and whole.
func TestSharedJoins(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	var nodes []*ft.Node
	var meshes []*client.Mesh
	var origins []*ft.Origin
	for i := range 3 {
		n := 0
		if i == 0 {
			n = rows
		}
		o := ft.NewOrigin(n, "t")
		node, me := ft.Member(t, fmt.Sprintf("n%02d", i), ft.Options{}, o, nil)
		nodes, meshes, origins = append(nodes, node), append(meshes, me), append(origins, o)
	}
	for i, me := range meshes {
		var others []*ft.Node
		for j, n := range nodes {
			if i != j {
				others = append(others, n)
			}
		}
		me.SetPeers(ft.Peers(others...), client.Policy{})
	}
	ft.Converged(t, origins[0], ft.Table("t"), nodes...)
	basic, me := ft.Member(t, "n03", ft.Options{Server: server.Config{Basic: true}}, nil, func(c *client.Config) { c.Basic = true })
	me.SetPeers(ft.Peers(nodes...), client.Policy{})
	ft.Converged(t, origins[0], ft.Table("t"), basic)
	for _, l := range me.Status().Logs {
		if l.Counts.Snapshots != 1 {
			t.Errorf("log of %s: %+v", l.Log.Origin, l.Counts)
		}
	}
}

// A relay that holds a log from later on than a reader with a shared cursor is at:
// the reader is brought on though nothing more is written.
func TestSharedBehind(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(3, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"own": o})
	relay, me := ft.Member(t, "relay", ft.Options{}, nil, nil)
	me.SetPeers(ft.Peers(root), client.Policy{})
	st := store.NewMemory(store.MemoryOptions{})
	basic := func() (*ft.Node, *client.Mesh) {
		return ft.Member(t, "basic", ft.Options{Use: st, Server: server.Config{Basic: true}}, nil, func(c *client.Config) { c.Basic = true })
	}
	n, b := basic()
	b.SetPeers(ft.Peers(relay), client.Policy{})
	o.Put("a", "1")
	ft.Converged(t, o, ft.Table("t"), relay, n)
	n.Stop()
	address := relay.Address
	relay.Stop()
	o.Put("b", "2")
	relay, me = ft.Member(t, "relay", ft.Options{Address: address}, nil, nil) // with nothing: it starts from the head
	me.SetPeers(ft.Peers(root), client.Policy{})
	ft.Converged(t, o, ft.Table("t"), relay)
	n, b = basic()
	b.SetPeers(ft.Peers(relay), client.Policy{})
	ft.Converged(t, o, ft.Table("t"), n)
}

// fickle is a node that offers a log and ends each session as soon as it is asked for it.
type fickle struct {
	wirepb.UnimplementedReplicationServer
	mu       sync.Mutex
	sessions [][2]time.Time // when each began, and was ended
}

func (f *fickle) Session(s grpc.BidiStreamingServer[wirepb.Frame, wirepb.Frame]) error {
	began := time.Now()
	log := &wirepb.LogID{Origin: "x#own", Epoch: 5}
	for _, m := range []*wirepb.Frame{
		{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: "x", Capabilities: []string{fanout.CapOriginCursors}}}},
		{Kind: &wirepb.Frame_Advert{Advert: &wirepb.Advert{Logs: []*wirepb.LogAdvert{{
			Log: log, Path: []string{"x"}, Tables: []*wirepb.TableName{{Schema: "public", Name: "t"}}, Oldest: "0/10", Head: &wirepb.Cursor{Position: "0/10", Time: 10},
		}}}}},
	} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if m.GetSubscribe() != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.sessions = append(f.sessions, [2]time.Time{began, time.Now()})
			return nil
		}
	}
}

// A peer that accepts each session and ends it is dialled less and less often.
func TestFicklePeer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fickle{}
	s := grpc.NewServer()
	wirepb.RegisterReplicationServer(s, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	_, me := ft.Member(t, "n", ft.Options{}, ft.NewOrigin(0, "t"), nil)
	me.SetPeers([]client.MeshPeer{{ID: "x", Address: l.Addr().String()}}, client.Policy{})
	var all [][2]time.Time
	ft.Eventually(t, 60*time.Second, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if all = slices.Clone(f.sessions); len(all) < 5 {
			return fmt.Errorf("%d sessions; %+v", len(all), me.Status().Peers)
		}
		return nil
	})
	least := 50 * time.Millisecond
	for i := range 4 {
		if all[i][1].Sub(all[i][0]) > 5*time.Second {
			return // so slow a machine shows nothing
		}
		if waited := all[i+1][0].Sub(all[i][1]); waited < least {
			t.Errorf("session %d began %s after the one before was ended; at least %s are left", i+2, waited, least)
		}
		least *= 2
	}
}
