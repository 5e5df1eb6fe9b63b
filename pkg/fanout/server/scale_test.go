package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Tests of many readers have their node in a process of its own, so that what it
// takes can be told from what its readers take.

const (
	childEnv   = "TRIBUTARY_TEST_NODE"
	scaleScans = 2
)

// usage is what the node's process says of itself.
type usage struct {
	Heap  int // live bytes of the heap
	Stack int // of its goroutines
	Peak  int // highest Heap and Stack since the last time it was asked
	Views int // open at once, at most, since then
	Scans int // under way at once, at most, since then
	// At is the position of the last change, Next that of the one to come.
	At, Next string
}

func (u usage) all() int { return u.Heap + u.Stack }

// watchedViews is a store that counts who scans its views.
type watchedViews struct {
	engine.Store
	scans, most atomic.Int64
}

func (w *watchedViews) View() engine.View { return &watchedView{w.Store.View(), w} }

type watchedView struct {
	engine.View
	of *watchedViews
}

func (v *watchedView) Scan(t engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	n := v.of.scans.Add(1)
	defer v.of.scans.Add(-1)
	for most := v.of.most.Load(); n > most && !v.of.most.CompareAndSwap(most, n); most = v.of.most.Load() {
	}
	return v.View.Scan(t, from, fn)
}

// TestChildNode is the node of the tests below: it does what it is told, a line
// at a time. By itself it does nothing.
func TestChildNode(t *testing.T) {
	rows, err := strconv.Atoi(os.Getenv(childEnv))
	if err != nil {
		return
	}
	o := ft.NewOrigin(rows, "t")
	memory := store.NewMemory(store.MemoryOptions{JournalBytes: 112 << 10})
	views := &watchedViews{Store: memory}
	n := ft.Start(t, "root", ft.Options{Use: views, Server: server.Config{AdmitRate: 100_000, MaxScans: scaleScans}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	fmt.Println("node " + n.Address)
	var mu sync.Mutex
	var peak usage
	sample := func() usage {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // pools keep what they hold for one
		runtime.ReadMemStats(&m)
		u := usage{Heap: int(m.HeapAlloc), Stack: int(m.StackInuse), Views: memory.Stats().Views}
		mu.Lock()
		defer mu.Unlock()
		peak.Peak, peak.Views = max(peak.Peak, u.all()), max(peak.Views, u.Views)
		return u
	}
	last := o.Put("k000000", "first")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var u usage
		var count, size int
		switch _, _ = fmt.Sscanf(in.Text(), "put %d %d", &count, &size); {
		case count > 0:
			for i := range count {
				last = o.Put(fmt.Sprintf("k%06d", i%rows), strings.Repeat("v", size))
			}
		case in.Text() == "watch": // until the process ends
			go func() {
				for {
					sample()
					time.Sleep(100 * time.Millisecond)
				}
			}()
		case in.Text() == "usage":
			ft.Converged(t, o, table, n)
			u = sample()
			mu.Lock()
			u.Peak, u.Views, u.Scans = peak.Peak, peak.Views, int(views.most.Swap(0))
			peak = usage{}
			mu.Unlock()
		}
		u.At, u.Next = string(last), string(o.Next())
		b, _ := json.Marshal(u)
		fmt.Println("said " + string(b))
	}
	os.Exit(0) // with its sessions: what is left is the test's to end
}

// node is a node in a process of its own.
type node struct {
	t       *testing.T
	address string
	in      io.Writer
	out     *bufio.Scanner
}

func startNode(t *testing.T, rows int) *node {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildNode$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childEnv, rows))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	n := &node{t: t, in: in, out: bufio.NewScanner(out)}
	n.address = n.line("node ")
	return n
}

func (n *node) line(prefix string) string {
	n.t.Helper()
	for n.out.Scan() {
		if rest, ok := strings.CutPrefix(n.out.Text(), prefix); ok {
			return rest
		}
	}
	n.t.Fatal("the node's process has ended")
	return ""
}

// tell makes the node do something and returns what it takes after it.
func (n *node) tell(format string, args ...any) (u usage) {
	n.t.Helper()
	_, _ = fmt.Fprintf(n.in, format+"\n", args...)
	if err := json.Unmarshal([]byte(n.line("said ")), &u); err != nil {
		n.t.Fatal(err)
	}
	return u
}

// settled returns the least of some readings: what is in flight comes and goes.
func (n *node) settled() usage {
	n.t.Helper()
	least := n.tell("usage")
	for range 3 {
		time.Sleep(50 * time.Millisecond)
		if u := n.tell("usage"); u.all() < least.all() {
			least = u
		}
	}
	return least
}

// scaled is a reader on a connection of its own. It counts, and checks that each
// batch follows the one before.
type scaled struct {
	stream grpc.BidiStreamingClient[wirepb.Frame, wirepb.Frame]
	log    *wirepb.LogID
	cursor *wirepb.Cursor // where it has got
	sub    uint32
	mode   wirepb.Mode
	rows   int
	gaps   int
}

// crowd are readers of a node, which end with the test.
type crowd struct {
	t    *testing.T
	node *node
	ctx  context.Context
}

func newCrowd(t *testing.T, n *node) *crowd {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return &crowd{t, n, ctx}
}

// connect opens a session that has its cursor at from, nil for none.
func (c *crowd) connect(name string, from *wirepb.Cursor) (*scaled, error) {
	conn, err := grpc.NewClient(c.node.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(4<<10), grpc.WithSharedWriteBuffer(true), grpc.WithStaticStreamWindowSize(64<<10))
	if err != nil {
		return nil, err
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	s := &scaled{cursor: from}
	if s.stream, err = wirepb.NewReplicationClient(conn).Session(c.ctx); err != nil {
		return nil, err
	}
	h := hello(name)
	h.GetHello().Capabilities = append(h.GetHello().Capabilities, session.CapStateDelta)
	if err := s.stream.Send(h); err != nil {
		return nil, err
	}
	for s.log == nil {
		f, err := s.stream.Recv()
		if err != nil {
			return nil, err
		}
		if l := f.GetAdvert().GetLogs(); len(l) > 0 {
			s.log = l[0].GetLog()
		}
	}
	return s, s.subscribe()
}

func (s *scaled) subscribe() error {
	s.sub++
	sub := &wirepb.Subscribe{Channel: s.sub, Log: s.log, Credit: 1 << 39}
	if s.cursor != nil {
		sub.From = &wirepb.Subscribe_Cursor{Cursor: s.cursor}
	}
	return s.stream.Send(&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: sub}})
}

// until reads up to a position.
func (s *scaled) until(position string) error {
	for s.cursor.GetPosition() != position {
		f, err := s.stream.Recv()
		if err != nil {
			return err
		}
		if err := s.take(f); err != nil {
			return err
		}
	}
	return nil
}

// take takes a frame.
func (s *scaled) take(f *wirepb.Frame) error {
	switch {
	case f.GetSubscribed() != nil:
		s.mode = f.GetSubscribed().GetMode()
	case f.GetSnapshotBegin() != nil:
		s.rows = 0
	case f.GetSnapshotRows() != nil:
		s.rows += int(f.GetSnapshotRows().GetRecords())
	case f.GetSnapshotEnd() != nil:
		s.cursor = f.GetSnapshotEnd().GetCursors()[0].GetCursor()
		if int(f.GetSnapshotEnd().GetRecords()) != s.rows {
			return fmt.Errorf("%d rows of %d", s.rows, f.GetSnapshotEnd().GetRecords())
		}
	case f.GetGap() != nil:
		s.gaps++
		if err := s.subscribe(); err != nil {
			return err
		}
	case f.GetError() != nil:
		return fmt.Errorf("the node says: %s", f.GetError().GetMessage())
	case f.GetBatch() != nil:
		b := f.GetBatch()
		if b.GetPrev() != s.cursor.GetPosition() {
			return fmt.Errorf("at %s, and the next batch follows %s", s.cursor.GetPosition(), b.GetPrev())
		}
		s.cursor = &wirepb.Cursor{Position: b.GetPosition(), Time: b.GetTime()}
	}
	return nil
}

// join connects readers, and waits until each is at a position.
func (c *crowd) join(count int, name string, from *wirepb.Cursor, position string) []*scaled {
	c.t.Helper()
	all := make([]*scaled, count)
	var g errgroup.Group
	g.SetLimit(64)
	for i := range all {
		g.Go(func() (err error) {
			if all[i], err = c.connect(fmt.Sprint(name, i), from); err == nil && position != "" {
				err = all[i].until(position)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
	return all
}

// move waits until every reader is at a position.
func (c *crowd) move(readers []*scaled, position string) {
	c.t.Helper()
	var g errgroup.Group
	for _, r := range readers {
		g.Go(func() error { return r.until(position) })
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

// changes writes changes one by one and returns how long each took until the last
// of the readers had it.
func (c *crowd) changes(readers []*scaled, count, size int) (took []time.Duration) {
	c.t.Helper()
	for range count {
		at := c.node.tell("where").Next
		began := time.Now()
		_, _ = fmt.Fprintf(c.node.in, "put 1 %d\n", size)
		c.move(readers, at)
		took = append(took, time.Since(began))
		c.node.line("said ")
	}
	return took
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// A17: ten of a thousand readers never take anything. The others get every
// change as soon as without them, and a reader costs the node no more than a
// bound, be it one that reads or one that does not.
func TestA17StalledReaders(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand connections")
	}
	const (
		readers, stalled = 1000, 10
		perReader        = 128 << 10 // bytes of heap and stacks at the node
		perStalled       = 768 << 10
	)
	n := startNode(t, 500)
	c := newCrowd(t, n)
	tock := time.Now()
	phase := func(name string) {
		t.Logf("%s after %s", name, time.Since(tock).Round(10*time.Millisecond))
	}
	at := n.tell("where").At
	live := c.join(10, "first", nil, at)
	few := n.settled().all()
	live = append(live, c.join(readers-stalled-len(live), "live", nil, at)...)
	many := n.settled().all()
	phase("joined")
	before := median(c.changes(live, 4, 8<<10))

	// They have the baseline, and take nothing of what follows.
	silent := c.join(stalled, "stalled", nil, n.tell("where").At)
	joined := n.settled().Heap
	// In all more than is under way on a connection and in the journal, and at no
	// time so much that one who reads could be overtaken.
	c.move(live, n.tell("put 9 8192").At)
	c.move(live, n.tell("put 9 8192").At)
	full := n.settled().Heap
	phase("stalled")
	after := median(c.changes(live, 4, 8<<10))
	c.move(live, n.tell("put 9 8192").At)
	c.move(live, n.tell("put 9 8192").At)
	end := n.settled()

	phase("after")
	t.Logf("a reader takes %d KiB, a stalled one %d KiB; then the node grew by %d KiB; a change takes %s without them and %s with them",
		(many-few)/(readers-stalled-10)>>10, (full-joined)/stalled>>10, (end.Heap-full)>>10, before, after)
	if per := (many - few) / (readers - stalled - 10); per > perReader {
		t.Errorf("a reader takes %d bytes at the node, of %d", per, perReader)
	}
	if per := (full - joined) / stalled; per > perStalled {
		t.Errorf("a reader that stalls takes %d bytes at the node, of %d", per, perStalled)
	}
	if grown := end.Heap - full; grown > 8<<20 {
		t.Errorf("the node has grown by %d bytes since its readers stalled", grown)
	}
	if after > 3*before+300*time.Millisecond {
		t.Errorf("with stalled readers a change takes %s to reach all others, and %s without", after, before)
	}
	for _, r := range live {
		if r.gaps > 0 {
			t.Errorf("a reader that reads was overtaken %d times", r.gaps)
		}
	}
	overtaken := 0
	for _, r := range silent { // each goes on where it was
		if err := r.until(end.At); err != nil {
			t.Error(err)
		}
		overtaken += r.gaps
		if r.gaps > 1 || r.gaps == 1 && (r.mode != wirepb.Mode_MODE_STATE_DELTA || r.rows > 100) {
			t.Errorf("%d gaps, then %v with %d rows", r.gaps, r.mode, r.rows)
		}
	}
	if overtaken == 0 {
		t.Error("no reader has stalled for long enough to tell anything")
	}
}

// A16: two hundred readers come back at once with cursors that the journal no
// longer holds, half of them from so long ago that they need everything. They get
// it in turns, from few views, and live readers do not notice.
func TestA16ReturningReaders(t *testing.T) {
	if testing.Short() {
		t.Skip("two hundred baselines")
	}
	const (
		rows      = 4000
		returning = 200
		perReader = 384 << 10 // bytes of heap and stacks at the node while a baseline is sent
		maxViews  = 24
	)
	n := startNode(t, rows)
	c := newCrowd(t, n)
	live := c.join(5, "live", nil, n.tell("where").At)
	recent := live[0].cursor
	old := &wirepb.Cursor{Position: "0/10", Time: uint64(time.Now().Add(-7 * 24 * time.Hour).UnixMicro())}
	at := n.tell("put 2000 400").At // past what the journal holds
	c.move(live, at)
	before := median(c.changes(live, 10, 100))
	start := n.tell("usage").all()
	n.tell("watch")
	var back errgroup.Group
	all := make([]*scaled, returning)
	var done atomic.Int64
	for i := range all {
		from := recent
		if i%2 == 0 {
			from = old
		}
		back.Go(func() (err error) {
			if all[i], err = c.connect(fmt.Sprint("back", i), from); err != nil {
				return err
			}
			defer done.Add(1)
			for all[i].cursor = nil; all[i].cursor == nil; { // of the baseline
				f, err := all[i].stream.Recv()
				if err != nil {
					return err
				}
				if err := all[i].take(f); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var during []time.Duration
	for done.Load() < returning && !t.Failed() {
		during = append(during, c.changes(live, 1, 100)...)
	}
	if err := back.Wait(); err != nil {
		t.Fatal(err)
	}
	u := n.tell("usage")
	t.Logf("%d changes meanwhile took %s, and %s before; heap %d KiB, at most %d KiB; at most %d views and %d scans at once",
		len(during), median(during), before, start>>10, u.Peak>>10, u.Views, u.Scans)
	for i, r := range all {
		want, least := wirepb.Mode_MODE_STATE_DELTA, 2000
		if i%2 == 0 {
			want, least = wirepb.Mode_MODE_SNAPSHOT, rows
		}
		if r.mode != want || r.rows < least || r.rows > least+len(during)+20 {
			t.Errorf("reader %d: %v with %d rows, want %v with %d", i, r.mode, r.rows, want, least)
		}
		if err := r.until(u.At); err != nil {
			t.Errorf("reader %d: %v", i, err)
		}
	}
	if u.Scans > scaleScans {
		t.Errorf("%d scans at once, of %d", u.Scans, scaleScans)
	}
	if u.Views > maxViews {
		t.Errorf("%d views open at once, of %d", u.Views, maxViews)
	}
	if per := (u.Peak - start) / returning; per > perReader {
		t.Errorf("a baseline takes %d bytes at the node, of %d", per, perReader)
	}
	if got, limit := median(during), 10*before+500*time.Millisecond; got > limit {
		t.Errorf("a change took %s while the others came back, and %s before", got, before)
	}
}
