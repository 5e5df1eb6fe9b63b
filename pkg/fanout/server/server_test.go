package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var table = ft.Table("t")

// counting is a sink that checks the order of what it gets and keeps none of it.
type counting struct {
	mu        sync.Mutex
	at        engine.Position
	changes   int
	rows      int
	baselines int
	delay     time.Duration
	fault     error
}

func (c *counting) Carry(engine.LogID, engine.Comparator, []string, []engine.TableName) error {
	return nil
}
func (c *counting) Head(engine.LogID, engine.Head) {}
func (c *counting) Apply(context.Context, []engine.Transaction) error {
	return errors.New("not a minting sink")
}

func (c *counting) Baseline(_ context.Context, spec engine.BaselineSpec) (engine.BaselineWriter, error) {
	return &countingBaseline{sink: c, at: spec.At}, nil
}

type countingBaseline struct {
	sink *counting
	at   engine.Position
	rows int
}

func (b *countingBaseline) Apply([]engine.Transaction) error { return nil }
func (b *countingBaseline) Rows(_ engine.TableName, rs []engine.Record) error {
	b.rows += len(rs)
	return nil
}
func (b *countingBaseline) Abort() {}
func (b *countingBaseline) Commit(context.Context) error {
	b.sink.mu.Lock()
	defer b.sink.mu.Unlock()
	b.sink.at, b.sink.rows = b.at, b.rows
	b.sink.baselines++
	return nil
}

func (c *counting) ApplyBlocks(ctx context.Context, _ engine.CursorKey, blocks []*engine.Block) error {
	if c.delay > 0 {
		select {
		case <-time.After(c.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range blocks {
		if b.Prev != c.at && b.Part == 0 {
			c.fault = fmt.Errorf("a block follows %s, and the reader is at %s", b.Prev, c.at)
			return c.fault
		}
		c.changes += b.Changes
		if b.Last {
			c.at = b.Position
		}
	}
	return nil
}

func (c *counting) Progress(_ context.Context, _ engine.CursorKey, prev, through engine.Position, _ engine.Time) error {
	return c.ApplyBlocks(context.Background(), engine.CursorKey{}, []*engine.Block{{Prev: prev, Position: through, Last: true}})
}

func (c *counting) position() engine.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// read connects a reader to a node and lets it read into a sink, until the test
// ends.
func read(t *testing.T, n *ft.Node, id string, sink engine.Sink, change func(*client.Config)) {
	t.Helper()
	s := ft.Source(t, id, func(c *client.Config) {
		c.Patience = time.Minute
		if change != nil {
			change(c)
		}
	}, n)
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := s.Init(ctx, engine.Env{}); err != nil {
		cancel()
		t.Errorf("%s: %v", id, err)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Stream(ctx, nil, sink); err != nil && ctx.Err() == nil {
			t.Errorf("%s: %v", id, err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// A tenth of the readers take in their baseline and nothing after it: the
// others get everything, in order, and each of them only once.
func TestManyReaders(t *testing.T) {
	t.Parallel()
	const readers, credit = 250, 256 << 10
	o := ft.NewOrigin(100, "t")
	n := ft.Start(t, "n", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	conns := make([]*grpc.ClientConn, 10)
	for i := range conns {
		conns[i] = dial(t, n)
	}
	var done, started errgroup.Group
	var last atomic.Pointer[string]
	baselined := make(chan struct{}, readers)
	started.SetLimit(16)
	for i := range readers {
		started.Go(func() error {
			stream, err := wirepb.NewReplicationClient(conns[i%len(conns)]).Session(ctx)
			if err != nil {
				return err
			}
			r := &raw{t, stream, nil}
			r.send(hello(fmt.Sprintf("r%03d", i)))
			ad := r.until(func(f *wirepb.Frame) bool { return f.GetAdvert() != nil }).GetAdvert()
			r.send(&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{Channel: 1, Log: ad.GetLogs()[0].GetLog(), Credit: credit}}})
			done.Go(func() error {
				end := r.until(func(f *wirepb.Frame) bool { return f.GetSnapshotEnd() != nil }).GetSnapshotEnd()
				if end.GetRecords() != 100 {
					return fmt.Errorf("reader %d got %d rows", i, end.GetRecords())
				}
				baselined <- struct{}{}
				if i%10 == 0 {
					return nil // its stream stays open until the test ends
				}
				for at := end.GetCursors()[0].GetCursor().GetPosition(); ; {
					b := r.until(func(f *wirepb.Frame) bool { return f.GetBatch() != nil }).GetBatch()
					if b.GetPrev() != at {
						return fmt.Errorf("reader %d is at %s, and the next batch follows %s", i, at, b.GetPrev())
					}
					if at = b.GetPosition(); last.Load() != nil && at == *last.Load() {
						return nil
					}
					r.send(&wirepb.Frame{Kind: &wirepb.Frame_Credit{Credit: &wirepb.Credit{Channel: 1, Bytes: uint64(len(b.GetPayload()))}}})
				}
			})
			return nil
		})
	}
	if err := started.Wait(); err != nil {
		t.Fatal(err)
	}
	for range readers {
		select {
		case <-baselined:
		case <-ctx.Done():
			t.Fatal("not every reader has its baseline")
		}
	}
	if got := len(n.Server.Readers()); got != readers {
		t.Errorf("the server has %d readers, of %d", got, readers)
	}
	big := strings.Repeat("b", 2000)
	for i := range 80 { // three times the credit of the stalled ones
		var tx []ft.Change
		for j := range 5 {
			tx = append(tx, ft.Change{Table: table, Key: fmt.Sprintf("k%03d", (i*5+j)%100), Value: big})
		}
		o.Write(tx...)
	}
	ft.Converged(t, o, table, n)
	end := string(o.Next())
	last.Store(&end)
	o.Put("k000", "end")
	if err := done.Wait(); err != nil {
		t.Error(err)
	}
	for _, r := range n.Server.Readers() {
		var i int
		_, _ = fmt.Sscanf(r.GetNodeId(), "r%d", &i)
		for _, c := range r.GetChannels() {
			if i%10 == 0 && (c.GetPosition() == end || c.GetCredit() < -64<<10) {
				t.Errorf("stalled reader %d is at %s, with credit for %d bytes", i, c.GetPosition(), c.GetCredit())
			}
		}
	}
	var live runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&live)
	t.Logf("%d readers, %d MiB in use, %d goroutines", readers, live.HeapInuse>>20, runtime.NumGoroutine())
}

// raw is a session without a client's machine.
type raw struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[wirepb.Frame, wirepb.Frame]
	conn   *grpc.ClientConn
}

func dial(t *testing.T, n *ft.Node) *grpc.ClientConn {
	t.Helper()
	return dialAs(t, n, insecure.NewCredentials())
}

func dialAs(t *testing.T, n *ft.Node, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(n.Address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// open opens a session with grpc's own codec: what is on the wire is plain
// protobuf.
func open(t *testing.T, n *ft.Node) *raw {
	t.Helper()
	return openAs(t, n, insecure.NewCredentials())
}

func openAs(t *testing.T, n *ft.Node, creds credentials.TransportCredentials) *raw {
	t.Helper()
	conn := dialAs(t, n, creds)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	s, err := wirepb.NewReplicationClient(conn).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &raw{t, s, conn}
}

// peerOf returns what the server has shown of itself.
func (r *raw) peerOf() credentials.TLSInfo {
	r.t.Helper()
	p, ok := peer.FromContext(r.stream.Context())
	if !ok {
		r.t.Fatal("no peer")
	}
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	return info
}

func (r *raw) send(fs ...*wirepb.Frame) {
	r.t.Helper()
	for _, f := range fs {
		if err := r.stream.Send(f); err != nil && !errors.Is(err, io.EOF) {
			r.t.Fatal(err)
		}
	}
}

// until returns the first frame that ok accepts.
func (r *raw) until(ok func(*wirepb.Frame) bool) *wirepb.Frame {
	r.t.Helper()
	for {
		f, err := r.stream.Recv()
		if err != nil {
			r.t.Fatalf("the session ended: %v", err)
		}
		if ok(f) {
			return f
		}
	}
}

func hello(id string) *wirepb.Frame {
	return &wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: session.Version, NodeId: id, Capabilities: []string{session.CapOriginCursors}}}}
}

func TestPlainProtobufPeer(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(3000, "t")
	n := ft.Start(t, "n", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	r := open(t, n)
	r.send(hello("plain"))
	ad := r.until(func(f *wirepb.Frame) bool { return f.GetAdvert() != nil }).GetAdvert()
	log := ad.GetLogs()[0].GetLog()
	r.send(&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{Channel: 1, Log: log, Credit: 1 << 20}}})
	rows := 0
	end := r.until(func(f *wirepb.Frame) bool {
		if p := f.GetSnapshotRows(); p != nil {
			rows += int(p.GetRecords())
			if len(p.GetPayload()) > 64<<10 {
				t.Errorf("a frame of %d bytes", len(p.GetPayload()))
			}
		}
		return f.GetSnapshotEnd() != nil
	})
	if rows != 3000 || end.GetSnapshotEnd().GetRecords() != 3000 {
		t.Errorf("%d rows", rows)
	}
	at := o.Put("k", "v")
	b := r.until(func(f *wirepb.Frame) bool { return f.GetBatch() != nil }).GetBatch()
	if b.GetPosition() != string(at) || b.GetPrev() != end.GetSnapshotEnd().GetCursors()[0].GetCursor().GetPosition() {
		t.Errorf("the batch is %s to %s", b.GetPrev(), b.GetPosition())
	}
	r.send(&wirepb.Frame{Kind: &wirepb.Frame_Ack{Ack: &wirepb.Ack{Channel: 1, Position: string(at), Durable: true}}})
	ft.Eventually(t, 30*time.Second, func() error {
		for _, a := range n.Engine.Status().Readers {
			if a.Reader == "plain" && a.At == at && a.Durable {
				return nil
			}
		}
		return fmt.Errorf("the ack is not known: %+v", n.Engine.Status().Readers)
	})
}

func TestFaultyFrames(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(10, "t")
	registry := prometheus.NewRegistry()
	n := ft.Start(t, "n", ft.Options{Server: server.Config{Registry: registry, Limits: session.Limits{HandshakeTimeout: 400 * time.Millisecond}}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	for _, c := range []struct {
		name string
		send []*wirepb.Frame
		want string
	}{
		{"unknown kind", []*wirepb.Frame{hello("x"), {}}, "does not know"},
		{"not a reader's", []*wirepb.Frame{hello("x"), {Kind: &wirepb.Frame_Batch{Batch: &wirepb.Batch{}}}}, "not a frame that a reader sends"},
		{"before Hello", []*wirepb.Frame{{Kind: &wirepb.Frame_Credit{Credit: &wirepb.Credit{}}}}, "before Hello"},
		{"silence", nil, "no Hello within"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := open(t, n)
			r.send(c.send...)
			f := r.until(func(f *wirepb.Frame) bool { return f.GetError() != nil })
			if e := f.GetError(); e.Channel != nil || !strings.Contains(e.GetMessage(), c.want) {
				t.Errorf("%v", e)
			}
			if _, err := r.stream.Recv(); err == nil {
				t.Error("the session goes on")
			}
		})
	}
	t.Run("garbage", func(t *testing.T) { // bytes that are no frame at all
		r := open(t, n)
		if err := r.stream.SendMsg(&healthpb.HealthCheckRequest{Service: "\xff not a frame"}); err == nil {
			for err == nil {
				_, err = r.stream.Recv()
			}
		}
	})
	ft.Eventually(t, 30*time.Second, func() error {
		if s := n.Server.Readers(); len(s) > 0 {
			return fmt.Errorf("sessions are left: %v", s)
		}
		return nil
	})
	if got, err := testutil.GatherAndCount(registry, "tributary_fanout_faults_total"); err != nil || got == 0 {
		t.Errorf("faults are not counted: %d, %v", got, err)
	}
}

func TestServices(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(10, "t", "u")
	registry := prometheus.NewRegistry()
	n := ft.Start(t, "n", ft.Options{Server: server.Config{Registry: registry, Software: "test 1"}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	child, _ := ft.Child(t, "child", nil, n)
	ft.Converged(t, o, table, child)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn := dial(t, n)
	api := wirepb.NewReplicationClient(conn)
	d, err := api.Describe(ctx, &wirepb.DescribeRequest{})
	if err != nil || d.GetNodeId() != "n" || len(d.GetLogs()) != 1 || len(d.GetLogs()[0].GetTables()) != 2 || !d.GetLogs()[0].GetSchemas()[0].GetColumns()[0].GetKey() {
		t.Errorf("%v, %v", d, err)
	}
	if l, err := api.ListSnapshots(ctx, &wirepb.ListSnapshotsRequest{}); err != nil || len(l.GetSnapshots()) != 0 {
		t.Errorf("%v, %v", l, err)
	}
	at := o.Put("a", "b")
	ft.Eventually(t, 30*time.Second, func() error {
		s, err := api.Status(ctx, &wirepb.StatusRequest{})
		if err != nil {
			return err
		}
		for _, r := range s.GetReaders() {
			for _, c := range r.GetChannels() {
				if r.GetNodeId() == "child" && c.GetAcked() == string(at) && c.GetState() == "streaming" {
					return nil
				}
			}
		}
		return fmt.Errorf("%v", s)
	})
	h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", h, err)
	}
	rs, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := rs.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if m, err := rs.Recv(); err != nil || !strings.Contains(m.String(), "tributary.v1.Replication") {
		t.Errorf("%v, %v", m, err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
	if v, err := testutil.GatherAndCount(registry, "tributary_fanout_sessions"); err != nil || v != 1 {
		t.Errorf("%d %v", v, err)
	}
}

// Readers of the same tables share the narrowed blocks; each sees its own
// tables only, and all reach the end.
func TestScopes(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(20, "t", "u", "v")
	n := ft.Start(t, "n", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	sinks := map[string][]*counting{}
	for i := range 12 {
		name := []string{"t", "u", "v"}[i%3]
		s := &counting{}
		sinks[name] = append(sinks[name], s)
		read(t, n, fmt.Sprint("r", i), s, func(c *client.Config) { c.Scope = scope.Tables(ft.Table(name)) })
	}
	ft.Eventually(t, 30*time.Second, func() error {
		for _, ss := range sinks {
			for _, s := range ss {
				if s.position() == "" {
					return errors.New("a reader has no baseline")
				}
			}
		}
		return nil
	})
	want := map[string]int{}
	var last engine.Position
	for i := range 2000 {
		name := []string{"t", "t", "t", "u"}[i%4]
		want[name] += 2
		last = o.Write(ft.Change{Table: ft.Table(name), Key: fmt.Sprint("a", i), Value: "1"}, ft.Change{Table: ft.Table(name), Key: fmt.Sprint("b", i), Value: "1"})
	}
	ft.Eventually(t, 30*time.Second, func() error {
		for name, ss := range sinks {
			for _, s := range ss {
				if s.position() != last {
					return fmt.Errorf("a reader of %s is at %s, of %s", name, s.position(), last)
				}
			}
		}
		return nil
	})
	for name, ss := range sinks {
		for _, s := range ss {
			if s.changes != want[name] || s.rows != 20 || s.fault != nil {
				t.Errorf("a reader of %s got %d changes of %d, %d rows, %v", name, s.changes, want[name], s.rows, s.fault)
			}
		}
	}
}

func TestDrainingRefusesNewSessions(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(10, "t")
	n := ft.Start(t, "n", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	stays := open(t, n)
	stays.send(hello("stays"))
	stays.until(func(f *wirepb.Frame) bool { return f.GetAdvert() != nil })
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if err := n.Server.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 readers") {
		t.Errorf("%v", err)
	}
	stays.until(func(f *wirepb.Frame) bool { return f.GetGoAway() != nil })
	if _, err := open(t, n).stream.Recv(); err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("%v", err)
	}
	_ = stays.stream.CloseSend()
	ctx, cancel = context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Server.Drain(ctx); err != nil {
		t.Error(err)
	}
}
