package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// logStatus returns what a node says of an origin's log.
func logStatus(n *ft.Node, origin string) (engine.LogStatus, bool) {
	for _, l := range n.Engine.Status().Logs {
		if l.ID.Origin == origin {
			return l, true
		}
	}
	return engine.LogStatus{}, false
}

// R01: the store of an origin is wiped, and its positions begin again below those
// that a reader has: the reader goes on in the new epoch, and is never said to be
// nearly caught up with what it lacks.
func TestCaseR01(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t")
	a, ma := ft.Member(t, "a", ft.Options{}, o, nil)
	b, mb := ft.Member(t, "b", ft.Options{}, nil, nil)
	ma.SetPeers(ft.Peers(b), client.Policy{})
	mb.SetPeers(ft.Peers(a), client.Policy{})
	for i := range 995 {
		o.Put(fmt.Sprint("k", i), "before")
	}
	ft.Converged(t, o, table, a, b)
	old, _ := logStatus(b, "a#own")
	a.Stop()
	again := ft.NewOrigin(0, "t")
	for i := range 80 {
		again.Put(fmt.Sprint("k", i), "after")
	}
	a, ma = ft.Member(t, "a", ft.Options{Address: a.Address}, again, nil)
	ma.SetPeers(ft.Peers(b), client.Policy{})
	ft.Eventually(t, 30*time.Second, func() error {
		l, ok := logStatus(b, "a#own")
		if ok && l.ID.Epoch == old.ID.Epoch && l.Lag.Known && l.Lag.CountKnown && l.Lag.Changes == 0 && l.SourceHead != old.Head {
			t.Errorf("the reader of the old epoch is said to be caught up with the new one: %+v", l)
		}
		if want, have := again.Digest(table), b.Digest(table); want != have || l.ID.Epoch <= old.ID.Epoch {
			return fmt.Errorf("b has %s of epoch %s; the origin has %s, and it was %s", have, l.ID.Epoch, want, old.ID.Epoch)
		}
		return nil
	})
	again.Put("k1", "and on")
	ft.Converged(t, again, table, a, b)
}

// R07: C reads A through B. B comes back with less than C has: C is sent nothing
// that it has and sends nothing itself, and goes on when B is as far.
func TestCaseR07(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(name string) engine.Store {
		st, err := store.OpenPebble(store.PebbleOptions{Dir: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	o := ft.NewOrigin(10, "t")
	a := ft.Start(t, "a", ft.Options{}, map[string]engine.SyncSource{"own": o})
	st := open("b")
	b, _ := ft.ChildWith(t, "b", ft.Options{Use: st}, nil, a)
	ft.Converged(t, o, table, b)
	b.Stop()
	_ = st.Close()
	if err := os.CopyFS(filepath.Join(dir, "old"), os.DirFS(filepath.Join(dir, "b"))); err != nil {
		t.Fatal(err)
	}
	st = open("b")
	b, _ = ft.ChildWith(t, "b", ft.Options{Use: st, Address: b.Address}, nil, a)
	c, source := ft.Child(t, "c", nil, b)
	for i := range 50 {
		o.Put(fmt.Sprint("k", i), "newer")
	}
	ft.Converged(t, o, table, b, c)
	had, _ := logStatus(c, "a#own")
	b.Stop()
	_ = st.Close()
	st = open("old")
	t.Cleanup(func() { b.Stop(); _ = st.Close() })
	b, up := ft.ChildWith(t, "b", ft.Options{Use: st, Address: b.Address}, nil) // nowhere to read from
	ft.Eventually(t, 20*time.Second, func() error {
		for _, r := range b.Server.Readers() {
			for _, ch := range r.GetChannels() {
				if r.GetNodeId() == "c" && ch.GetState() == "waiting" {
					return nil
				}
			}
		}
		return fmt.Errorf("c does not wait at b: %v", b.Server.Readers())
	})
	if l, _ := logStatus(c, "a#own"); l.Head != had.Head || l.ID != had.ID {
		t.Errorf("c was at %s of %s, and is at %s of %s", had.Head, had.ID, l.Head, l.ID)
	}
	up.SetUpstreams([]string{a.Address}, client.Policy{})
	o.Put("k0", "and on")
	ft.Converged(t, o, table, b, c)
	for _, l := range source.Status().Logs {
		if l.Counts.Snapshots > 1 || l.Counts.Holes > 0 || l.Counts.Duplicates > 0 {
			t.Errorf("c was sent things twice, or all again: %+v", l.Counts)
		}
	}
}

// R10, R16: A→B→D and A→C→D, and each other's logs: what a node copies keeps its
// origin and stamp, an origin is not sent its own rows, and each change comes once.
func TestCaseR10R16(t *testing.T) {
	t.Parallel()
	const a, b, c, d = 0, 1, 2, 3
	m := startMesh(t, 4, [][2]int{{a, b}, {a, c}, {b, d}, {c, d}}, nil)
	m.logged()
	for i := range 100 {
		m.origins[a].Put(fmt.Sprint("k", i), "a")
	}
	m.logged()
	m.equal()
	for key, record := range dump(t, m.nodes[d]) {
		if !strings.Contains(record, engine.Origin(m.nodes[a].ID, "own")) {
			t.Errorf("%s is %s at D, and A has written it", key, record)
		}
	}
	if l, _ := logStatus(m.nodes[d], engine.Origin(m.nodes[a].ID, "own")); l.Changes != 100 {
		t.Errorf("100 changes are %d in the log of D", l.Changes)
	}
	for i := range m.nodes {
		for j := range m.nodes {
			l := m.log(i, j)
			if i == j && l.Received != "" {
				t.Errorf("node %d reads its own log: %+v", i, l)
			}
			if l.Counts.Duplicates > 0 {
				t.Errorf("node %d got the log of node %d twice in part: %+v", i, j, l.Counts)
			}
		}
	}
}

// R11: an origin that can be reached through a relay only, and a reader without a
// cursor for it: it gets a copy, and nobody says that it is caught up with an
// origin of which nothing is heard.
func TestCaseR11(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t")
	a, ma := ft.Member(t, "a", ft.Options{}, o, nil)
	b, mb := ft.Member(t, "b", ft.Options{}, nil, nil)
	ma.SetPeers(ft.Peers(b), client.Policy{})
	mb.SetPeers(ft.Peers(a), client.Policy{})
	for i := range 50 {
		o.Put(fmt.Sprint("k", i), "a")
	}
	ft.Converged(t, o, table, a, b)
	a.Stop()
	c, mc := ft.Member(t, "c", ft.Options{}, nil, nil)
	mc.SetPeers(ft.Peers(b), client.Policy{})
	mb.SetPeers(ft.Peers(a, c), client.Policy{})
	ft.Converged(t, o, table, c)
	ft.Eventually(t, 10*time.Second, func() error {
		if l, ok := logStatus(c, "a#own"); !ok || l.Lag.Known {
			return fmt.Errorf("nothing is heard of the origin, and c says %+v", l.Lag)
		}
		return nil
	})
}

// R12: more comes than can be applied: what waits stays within the buffer, and the
// rest waits at the sender.
func TestCaseR12(t *testing.T) {
	t.Parallel()
	const buffer = 1 << 20
	o := ft.NewOrigin(0, "t")
	a, ma := ft.Member(t, "a", ft.Options{}, o, nil)
	stopped := &blocking{origin: "a#own", gate: make(chan struct{})}
	b := ft.MemberWith(t, "b", ft.Options{}, func(m *client.Mesh) map[string]engine.SyncSource {
		stopped.Mesh = m
		return map[string]engine.SyncSource{"mesh": stopped}
	}, func(c *client.Config) { c.Buffer = buffer })
	ma.SetPeers(ft.Peers(b), client.Policy{})
	stopped.SetPeers(ft.Peers(a), client.Policy{})
	ft.Eventually(t, 20*time.Second, func() error {
		if _, ok := logStatus(b, "a#own"); !ok {
			return errors.New("b does not have the log yet")
		}
		return nil
	})
	for i := range 400 {
		o.Put(fmt.Sprint("k", i), strings.Repeat("x", 64<<10))
	}
	var most int64
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, l := range stopped.Status().Logs {
			most = max(most, l.Buffered)
		}
	}
	if most == 0 || most > buffer+128<<10 {
		t.Errorf("%d bytes wait to be applied; the buffer is %d", most, buffer)
	}
	close(stopped.gate)
	ft.Converged(t, o, table, a, b)
}

// R21: a table that is left out on one path and carried on another is there, and
// comes once.
func TestCaseR21(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t", "u")
	a, ma := ft.Member(t, "a", ft.Options{}, o, nil)
	b, mb := ft.Member(t, "b", ft.Options{}, nil, func(c *client.Config) { c.Scope = scope.Tables(table) })
	c, mc := ft.Member(t, "c", ft.Options{}, nil, nil)
	d, md := ft.Member(t, "d", ft.Options{}, nil, nil)
	ma.SetPeers(ft.Peers(b, c), client.Policy{})
	mb.SetPeers(ft.Peers(a, d), client.Policy{})
	mc.SetPeers(ft.Peers(a, d), client.Policy{})
	md.SetPeers(ft.Peers(b, c), client.Policy{})
	u := ft.Table("u")
	for i := range 100 {
		o.Write(ft.Change{Table: table, Key: fmt.Sprint("k", i), Value: "1"}, ft.Change{Table: u, Key: fmt.Sprint("k", i), Value: "2"})
	}
	ft.Converged(t, o, table, a, b, c, d)
	ft.Converged(t, o, u, a, c, d)
	if rows := b.Rows(u); len(rows) > 0 {
		t.Errorf("b has %d rows of a table that it leaves out", len(rows))
	}
	for _, l := range md.Status().Logs {
		if l.Counts.Duplicates > 0 {
			t.Errorf("d got the log %s twice in part: %+v", l.Log, l.Counts)
		}
	}
}

// spoiling is a source whose engine finds an origin's blocks damaged while spoilt.
type spoiling struct {
	engine.SyncSource
	origin string
	spoilt atomic.Bool
}

func (s *spoiling) Baseline(ctx context.Context, sink engine.Sink) error {
	return s.SyncSource.Baseline(ctx, &spoilingSink{sink, s})
}

func (s *spoiling) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	return s.SyncSource.Stream(ctx, from, &spoilingSink{sink, s})
}

type spoilingSink struct {
	engine.Sink
	s *spoiling
}

func (s *spoilingSink) Covered(log engine.LogID) []engine.TableName {
	return s.Sink.(engine.Covering).Covered(log)
}

func (s *spoilingSink) ApplyBlocks(ctx context.Context, key engine.CursorKey, blocks []*engine.Block) error {
	if key.Log.Origin == s.s.origin && s.s.spoilt.Load() {
		for _, b := range blocks {
			b.Payload = b.Payload[:len(b.Payload)-1]
		}
	}
	return s.Sink.ApplyBlocks(ctx, key, blocks)
}

// R13: what comes of one log cannot be read: that log is held where it is, and says
// so; the others go on, over the same session; and it goes on when what comes is
// whole. So it is in a mesh, with one cursor for all logs, below one node, and at a relay,
// which gathers what its leaves send.
func TestCaseR13(t *testing.T) {
	t.Parallel()
	member := func(change func(*client.Config)) func(*testing.T, *spoiling, *ft.Node, ...*ft.Node) (*ft.Node, func() ([]client.LogPlace, time.Time)) {
		return func(t *testing.T, s *spoiling, hub *ft.Node, _ ...*ft.Node) (*ft.Node, func() ([]client.LogPlace, time.Time)) {
			var mesh *client.Mesh
			n := ft.MemberWith(t, "n", ft.Options{}, func(m *client.Mesh) map[string]engine.SyncSource {
				mesh, s.SyncSource = m, m
				return map[string]engine.SyncSource{"mesh": s}
			}, change)
			mesh.SetPeers(ft.Peers(hub), client.Policy{})
			return n, func() (logs []client.LogPlace, since time.Time) {
				for _, l := range mesh.Status().Logs {
					logs = append(logs, l.LogPlace)
				}
				return logs, mesh.Status().Peers[0].Since
			}
		}
	}
	child := func(change func(*client.Config)) func(*testing.T, *spoiling, *ft.Node, ...*ft.Node) (*ft.Node, func() ([]client.LogPlace, time.Time)) {
		return func(t *testing.T, s *spoiling, hub *ft.Node, _ ...*ft.Node) (*ft.Node, func() ([]client.LogPlace, time.Time)) {
			up := ft.Source(t, "n", change, hub)
			s.SyncSource = up
			return ft.Start(t, "n", ft.Options{}, map[string]engine.SyncSource{"up": s}), func() ([]client.LogPlace, time.Time) {
				st := up.Status()
				return st.Logs, st.Since
			}
		}
	}
	above := func(t *testing.T, s *spoiling, _ *ft.Node, leaves ...*ft.Node) (*ft.Node, func() ([]client.LogPlace, time.Time)) {
		r, err := relay.New(relay.Config{Window: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		var mesh *client.Mesh
		n := ft.MemberWith(t, "n", ft.Options{Relay: r, Use: ft.Durable(t)}, func(m *client.Mesh) map[string]engine.SyncSource {
			mesh, s.SyncSource = m, m
			return map[string]engine.SyncSource{"mesh": s}
		}, func(c *client.Config) { c.Minted, c.Holder, c.Above = true, relay.Holder("n", 1), r.Acks })
		mesh.SetPeers(ft.Peers(leaves...), client.Policy{})
		return n, func() (logs []client.LogPlace, since time.Time) {
			for _, l := range mesh.Status().Logs {
				logs = append(logs, l.LogPlace)
			}
			return logs, mesh.Status().Peers[len(leaves)-1].Since // of the one whose log is held
		}
	}
	basic := func(c *client.Config) { c.Basic = true }
	for name, start := range map[string]func(*testing.T, *spoiling, *ft.Node, ...*ft.Node) (*ft.Node, func() ([]client.LogPlace, time.Time)){
		"mesh": member(nil), "mesh, shared cursor": member(basic), "child": child(nil), "child, shared cursor": child(basic), "relay": above,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good, bad := ft.NewOrigin(0, "t"), ft.NewOrigin(0, "t")
			a, ma := ft.Member(t, "a", ft.Options{}, good, nil)
			z, mz := ft.Member(t, "z", ft.Options{}, bad, nil)
			hub, mh := ft.Member(t, "hub", ft.Options{}, nil, nil)
			ma.SetPeers(ft.Peers(hub), client.Policy{})
			mz.SetPeers(ft.Peers(hub), client.Policy{})
			mh.SetPeers(ft.Peers(a, z), client.Policy{})
			good.Put("good", "0")
			bad.Put("bad", "0")
			shows := func(n *ft.Node, key, value string) {
				t.Helper()
				ft.Eventually(t, 30*time.Second, func() error {
					if rows := n.Rows(table); rows[key] != value {
						return fmt.Errorf("rows %v", rows)
					}
					return nil
				})
			}
			shows(hub, "good", "0")
			shows(hub, "bad", "0")
			s := &spoiling{origin: "z#own"}
			n, status := start(t, s, hub, a, z)
			shows(n, "good", "0")
			shows(n, "bad", "0")
			_, since := status()
			s.spoilt.Store(true)
			at := bad.Put("bad", "1")
			good.Put("good", "1")
			held := func() error {
				logs, _ := status()
				for _, l := range logs {
					if l.Log.Origin == "z#own" && !strings.Contains(l.Held, string(at)) {
						return fmt.Errorf("the log is held by %q, which does not name %s", l.Held, at)
					}
					if l.Log.Origin == "a#own" && l.Held != "" {
						return fmt.Errorf("the other log is held too: %s", l.Held)
					}
				}
				return nil
			}
			ft.Eventually(t, 30*time.Second, held)
			for i := range 5 { // also while it is asked for again
				good.Put("good", fmt.Sprint("and ", i))
				shows(n, "good", fmt.Sprint("and ", i))
				time.Sleep(200 * time.Millisecond)
			}
			shows(n, "bad", "0")
			ft.Eventually(t, 30*time.Second, held)
			ft.Eventually(t, 30*time.Second, func() error { // while it is asked for again nothing is held
				if st := n.Engine.Status().Sources[0]; !strings.Contains(st.Message, string(at)) {
					return fmt.Errorf("the source says %q: %q", st.Reason, st.Message)
				}
				return nil
			})
			s.spoilt.Store(false)
			bad.Put("bad", "2")
			shows(n, "bad", "2")
			if _, now := status(); !now.Equal(since) {
				t.Error("the session has ended for it")
			}
		})
	}
}
