package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
)

var table = ft.Table("t")

// writing writes rows to an origin until the test stops it.
func writing(t *testing.T, o *ft.Origin, every time.Duration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			o.Put(fmt.Sprintf("w%04d", i%500), fmt.Sprint("value ", i))
			time.Sleep(every)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func reads(s *client.Source, from *ft.Node) func() error {
	return func() error {
		if st := s.Status(); st.Peer != from.ID {
			return fmt.Errorf("reads from %q, not %s: %+v", st.Peer, from.ID, st.Upstreams)
		}
		return nil
	}
}

func TestFailoverAtTheSameCursor(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(1000, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	p1, _ := ft.Child(t, "p1", nil, root)
	p2, _ := ft.Child(t, "p2", nil, root)
	ft.Converged(t, o, table, p1, p2)
	leaf, src := ft.Child(t, "leaf", func(c *client.Config) { c.Policy.Failback = client.FailbackNever }, p1, p2)
	stop := writing(t, o, time.Millisecond)
	ft.Eventually(t, 30*time.Second, reads(src, p1))
	ft.Eventually(t, 30*time.Second, func() error {
		if leaf.Baselines() == 0 {
			return errors.New("no baseline yet")
		}
		return nil
	})
	time.Sleep(200 * time.Millisecond)
	start := time.Now()
	p1.Stop()
	ft.Eventually(t, 30*time.Second, reads(src, p2))
	if took := time.Since(start); took > 10*time.Second { // a second where the machine has nothing else to do
		t.Errorf("the failover took %s", took)
	}
	time.Sleep(200 * time.Millisecond)
	stop()
	ft.Converged(t, o, table, p2, leaf)
	if n := leaf.Baselines(); n != 1 {
		t.Errorf("%d baselines at the leaf: it did not go on from its cursor", n)
	}
}

func TestDrainMovesReaders(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(1000, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	p1, _ := ft.Child(t, "p1", nil, root)
	p2, _ := ft.Child(t, "p2", nil, root)
	ft.Converged(t, o, table, p1, p2)
	leaf, src := ft.Child(t, "leaf", func(c *client.Config) { c.Policy.Failback = client.FailbackNever }, p1, p2)
	stop := writing(t, o, time.Millisecond)
	ft.Eventually(t, 30*time.Second, reads(src, p1))
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := p1.Server.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if err := reads(src, p2)(); err != nil {
		t.Error(err)
	}
	stop()
	ft.Converged(t, o, table, leaf)
	if n := leaf.Baselines(); n != 1 {
		t.Errorf("%d baselines at the leaf", n)
	}
}

func TestFailbackToThePreferred(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	p1, _ := ft.Child(t, "p1", nil, root)
	p2, _ := ft.Child(t, "p2", nil, root)
	ft.Converged(t, o, table, p1, p2)
	leaf, src := ft.Child(t, "leaf", func(c *client.Config) { c.Policy.RecoverAfter = 600 * time.Millisecond }, p1, p2)
	ft.Eventually(t, 30*time.Second, reads(src, p1))
	address := p1.Address
	p1.Stop()
	ft.Eventually(t, 30*time.Second, reads(src, p2))
	edges := &client.Edges{}
	again := ft.Source(t, "p1", func(c *client.Config) { c.Edges = edges }, root)
	p1 = ft.StartWith(t, "p1", ft.Options{Address: address}, edges, map[string]engine.SyncSource{"up": again})
	ft.Eventually(t, 30*time.Second, reads(src, p1))
	o.Put("after", "failback")
	ft.Converged(t, o, table, leaf)
	if n := leaf.Baselines(); n != 1 {
		t.Errorf("%d baselines at the leaf", n)
	}
}

// The list changes while the node reads; the upstream in use is interrupted
// only if it is no longer listed.
func TestUpstreamsAreReplacedAtRunTime(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	p1, _ := ft.Child(t, "p1", nil, root)
	p2, _ := ft.Child(t, "p2", nil, root)
	leaf, src := ft.Child(t, "leaf", nil, p1)
	ft.Converged(t, o, table, leaf)
	since := src.Status().Since
	src.SetUpstreams([]string{p1.Address, p2.Address}, client.Policy{})
	time.Sleep(300 * time.Millisecond)
	if got := src.Status(); got.Peer != "p1" || !got.Since.Equal(since) {
		t.Errorf("a longer list interrupted the stream: %+v", got)
	}
	src.SetUpstreams([]string{p2.Address}, client.Policy{})
	ft.Eventually(t, 30*time.Second, reads(src, p2))
	o.Put("after", "the list changed")
	ft.Converged(t, o, table, leaf)
	if n := leaf.Baselines(); n != 1 {
		t.Errorf("%d baselines at the leaf", n)
	}
}

func TestLoopIsRefusedWhileTheNodeGoesOn(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	// a has its own origin, and is told to read from b as well.
	edges := &client.Edges{}
	back := ft.Source(t, "a", func(c *client.Config) {
		c.Edges, c.Name, c.Upstreams, c.Patience = edges, "back", nil, 500*time.Millisecond
	})
	a := ft.StartWith(t, "a", ft.Options{}, edges, map[string]engine.SyncSource{"pg": o, "back": back})
	b, _ := ft.Child(t, "b", nil, a)
	ft.Converged(t, o, table, b)
	back.SetUpstreams([]string{b.Address}, client.Policy{})
	ft.Eventually(t, 30*time.Second, func() error {
		for _, s := range a.Engine.Status().Sources {
			if s.Name == "back" && s.Reason == engine.ReasonLoopDetected && strings.Contains(s.Message, "a → b → a") {
				return nil
			}
		}
		return fmt.Errorf("no loop in the status: %+v", a.Engine.Status().Sources)
	})
	o.Put("still", "served")
	ft.Converged(t, o, table, a, b)
	if ad := a.Engine.Adverts(); len(ad) != 1 || fmt.Sprint(ad[0].Path) != "[a]" {
		t.Errorf("a serves %v", ad)
	}
}

func TestServerKilledInTheMiddleOfASnapshot(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(60_000, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	p1, _ := ft.Child(t, "p1", nil, root)
	p2, _ := ft.Child(t, "p2", nil, root)
	ft.Converged(t, o, table, p1, p2)
	src := ft.Source(t, "leaf", func(c *client.Config) { c.Buffer = 1 }, p1, p2)
	src.Pause() // so that the snapshot stops where the credit ends
	leaf := ft.Start(t, "leaf", ft.Options{}, map[string]engine.SyncSource{"up": src})
	ft.Eventually(t, 30*time.Second, func() error {
		for _, l := range src.Status().Logs {
			if l.Buffered > 0 && l.Received == "" {
				return nil
			}
		}
		return errors.New("the snapshot has not begun")
	})
	src.Resume()
	p1.Stop()
	o.Put("meanwhile", "written")
	ft.Converged(t, o, table, leaf)
	if err := reads(src, p2)(); err != nil {
		t.Error(err)
	}
}

func TestPauseBuffersAndResumesWithoutASnapshot(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	const buffer = 1 << 20
	leaf, src := ft.Child(t, "leaf", func(c *client.Config) { c.Buffer = buffer }, root)
	ft.Converged(t, o, table, leaf)
	before := leaf.Digest(table)
	src.Pause()
	big := strings.Repeat("x", 1000)
	for i := range 3000 { // three times the buffer
		o.Put(fmt.Sprintf("p%04d", i), big)
	}
	ft.Converged(t, o, table, root)
	time.Sleep(500 * time.Millisecond)
	var buffered int64
	for _, l := range src.Status().Logs {
		buffered += l.Buffered
	}
	if buffered < buffer/2 || buffered > buffer+128<<10 {
		t.Errorf("%d bytes are buffered, of %d", buffered, buffer)
	}
	if leaf.Digest(table) != before {
		t.Error("rows arrived while paused")
	}
	if st := leaf.Engine.Status().Sources[0]; st.Reason != engine.ReasonPaused {
		t.Errorf("the status says %s", st.Reason)
	}
	src.Resume()
	ft.Converged(t, o, table, leaf)
	if n := leaf.Baselines(); n != 1 {
		t.Errorf("%d baselines at the leaf", n)
	}
}

// A20: the journal laps a slow reader. It is told, caught up, and ends with every
// row right.
func TestLappedReaderIsCaughtUp(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	root := ft.Start(t, "root", ft.Options{Store: store.MemoryOptions{JournalBytes: 256 << 10}}, map[string]engine.SyncSource{"pg": o})
	leaf, src := ft.Child(t, "leaf", func(c *client.Config) { c.Buffer = 1 }, root)
	other, _ := ft.Child(t, "other", nil, root)
	ft.Converged(t, o, table, leaf, other)
	src.Pause()
	big := strings.Repeat("y", 2000)
	for i := range 2000 {
		o.Put(fmt.Sprintf("p%04d", i), big)
	}
	ft.Converged(t, o, table, root)
	src.Resume()
	ft.Converged(t, o, table, leaf, other)
	st := leaf.Engine.Status().Sources[0]
	if n := src.Status().Logs[0].Counts; n.StateDeltas+n.Snapshots < 2 || !strings.Contains(st.LastCause, "overtaken") {
		t.Errorf("the gap is not told: %+v", st)
	}
}

// What a node says when nothing, or something else, answers at the address.
func TestWrongAddress(t *testing.T) {
	t.Parallel()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // an HTTP/1 server of sorts
		defer close(done)
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = io.Copy(io.Discard, c) // what is left unread would take the answer with it
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = plain.Close(); <-done })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for _, c := range []struct{ name, address, reason, text string }{
		{"another protocol", plain.Addr().String(), engine.ReasonPreflightFailed, "not with Tributary's protocol"},
		{"nobody", closed.Addr().String(), engine.ReasonNoHealthyParent, "refused"},
		{"no address", "nonsense", engine.ReasonNoHealthyParent, "host:port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := client.NewReader(client.Config{NodeID: "n", Upstreams: []string{c.address}, Patience: time.Second, Logger: ft.Logger("n")})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Open(context.Background(), nil)
			var se *engine.SourceError
			if !errors.As(err, &se) || se.Reason != c.reason || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%T %v", err, err)
			}
		})
	}
}

// A parent goes, as in a rollout, and what stands before it still accepts connections and
// ends them at once: it is down. One that never served may be of another protocol.
func TestParentGoesBehindAProxy(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	proxy, err := testnode.NewProxy(root.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	by := func(c *client.Config) { c.Upstreams, c.Patience = []string{proxy.Address}, time.Second }
	leaf, src := ft.Child(t, "leaf", by)
	ft.Converged(t, o, table, leaf)
	root.Stop()
	proxy.Cut()
	says := func(n *ft.Node, s *client.Source, reason string) {
		t.Helper()
		ft.Eventually(t, 30*time.Second, func() error {
			st := n.Engine.Status().Sources[0]
			if u := s.Status().Upstreams; len(u) != 1 || !strings.Contains(u[0].Error, "ends the connection before a word") || !strings.Contains(st.Message, "before a word") {
				return fmt.Errorf("%+v, %+v", u, st)
			}
			if st.Reason != reason {
				t.Errorf("%s: %s", st.Reason, st.Message)
			}
			return nil
		})
	}
	says(leaf, src, engine.ReasonNoHealthyParent)
	other, there := ft.Child(t, "other", by)
	says(other, there, engine.ReasonAuthenticationFailed)
}

// K12, over the wire: of two nodes that pick each other, one yields.
func TestTwoNodesPickEachOther(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	a, sa := ft.Child(t, "a", func(c *client.Config) { c.Patience = time.Second }, root)
	b, sb := ft.Child(t, "b", func(c *client.Config) { c.Patience = time.Second }, root)
	ft.Converged(t, o, table, a, b)
	root.Stop()
	sa.SetUpstreams([]string{b.Address}, client.Policy{})
	sb.SetUpstreams([]string{a.Address}, client.Policy{})
	ring := func() bool { return sa.Status().Peer == "b" && sb.Status().Peer == "a" && reading(sa) && reading(sb) }
	ft.Eventually(t, 30*time.Second, func() error {
		if reading(sa) || reading(sb) || len(sa.Status().Refused)+len(sb.Status().Refused) > 0 || failing(sa) || failing(sb) {
			return nil
		}
		return errors.New("neither has looked at the other")
	})
	time.Sleep(time.Second)
	bad := 0
	for range 20 {
		if ring() {
			bad++
		}
		time.Sleep(20 * time.Millisecond)
	}
	if bad > 0 {
		t.Errorf("a ring, in %d of 20 looks: %+v, %+v", bad, sa.Status(), sb.Status())
	}
	t.Logf("%+v\n%+v", sa.Status(), sb.Status())
	if a.Digest(table) != o.Digest(table) || b.Digest(table) != o.Digest(table) {
		t.Error("rows were lost")
	}
}

func reading(s *client.Source) bool {
	st := s.Status()
	return st.Peer != "" && len(st.Refused) == 0
}

func failing(s *client.Source) bool {
	for _, u := range s.Status().Upstreams {
		if u.Error != "" {
			return true
		}
	}
	return false
}

func TestSnapshotIsGivenUpForAReaderThatStalls(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(20_000, "t")
	root := ft.Start(t, "root", ft.Options{Server: server.Config{StallTimeout: 300 * time.Millisecond}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, root)
	leaf, src := ft.Child(t, "leaf", func(c *client.Config) { c.Buffer = 1 }, root)
	src.Pause()
	time.Sleep(1500 * time.Millisecond)
	src.Resume()
	ft.Converged(t, o, table, leaf)
}
