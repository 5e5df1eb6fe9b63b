package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// minter is a source that mints as many transactions of one row as it is told to.
type minter struct {
	want chan int
	done chan struct{}
	at   engine.LSN
}

func newMinter() *minter {
	return &minter{want: make(chan int, 1), done: make(chan struct{}, 1), at: 1 << 20}
}

var benchTable = engine.TableName{Schema: "public", Name: "t"}

func (m *minter) Init(_ context.Context, env engine.Env) (engine.Info, error) {
	sc, _ := env.Schemas.Define(minted)
	return engine.Info{Mints: true, Order: "lsn", History: "bench", Tables: []*engine.Schema{sc}}, nil
}

var minted = &engine.Schema{Table: benchTable, RelationOID: 16384, ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
	{Name: "id", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1, Key: true},
	{Name: "v", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
}}

func (m *minter) Baseline(ctx context.Context, sink engine.Sink) error {
	s := *minted
	s.ID = 1
	w, err := sink.Baseline(ctx, engine.BaselineSpec{Tables: []engine.TableName{benchTable}, Schemas: []*engine.Schema{&s}, At: m.at.Position(), Major: uint64(m.at)})
	if err != nil {
		return err
	}
	return w.Commit(ctx)
}

func (m *minter) Stream(ctx context.Context, _ engine.Cursors, sink engine.Sink) error {
	s := *minted
	s.ID = 1
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case n := <-m.want:
			for n > 0 {
				txs := make([]engine.Transaction, min(n, 256))
				for i := range txs {
					m.at += 16
					k := fmt.Sprintf("%d", m.at%(1<<16))
					txs[i] = engine.Transaction{Position: m.at.Position(), Major: uint64(m.at), Commit: time.Now(), Changes: []engine.Change{{
						Op: engine.OpPut, Schema: &s, Key: engine.AppendKeyValue(nil, k),
						Row: engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, 1, 2), k), fmt.Sprintf("%0100d", m.at)),
					}}}
				}
				if err := sink.Apply(ctx, txs); err != nil {
					return err
				}
				n -= len(txs)
			}
			m.done <- struct{}{}
		}
	}
}

func (m *minter) Ack(engine.Cursor, bool)                        {}
func (m *minter) LastAckedPosition(engine.LogID) engine.Position { return "" }
func (m *minter) SupportsResume() bool                           { return true }
func (m *minter) OrderingGuarantee() engine.Ordering             { return engine.TotalOrder }
func (m *minter) ComparePositions(a, b engine.Position) int      { return engine.CompareLSN(a, b) }
func (m *minter) PositionToString(p engine.Position) string      { return string(p) }
func (m *minter) PositionFromString(s string) (engine.Position, error) {
	return engine.Position(s), nil
}
func (m *minter) Pause()  {}
func (m *minter) Resume() {}

// member is a node of a mesh in this process.
type member struct {
	id      string
	engine  *engine.Engine
	server  *server.Server
	mesh    *client.Mesh
	address string
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

func startMember(ctx context.Context, id string, st engine.Store, minters []*minter) (*member, error) {
	return startMemberWith(ctx, id, st, minters, nil)
}

// startMemberWith is startMember with a source in place of the mesh, if wrap is not
// nil.
func startMemberWith(ctx context.Context, id string, st engine.Store, minters []*minter, wrap func(*client.Mesh) engine.SyncSource) (*member, error) {
	n := &member{id: id}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	var edges client.Edges
	var err error
	n.mesh, err = client.NewMesh(client.Config{
		NodeID: id, Name: "mesh", Edges: &edges, Logger: quiet,
		Serve: func(ctx context.Context, from session.Caller, stream *session.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
			return n.server.Join(ctx, from, stream, end)
		},
	})
	if err != nil {
		return nil, err
	}
	n.engine = engine.New(engine.Options{NodeID: id, Store: st, Logger: quiet})
	var source engine.SyncSource = n.mesh
	if wrap != nil {
		source = wrap(n.mesh)
	}
	n.engine.AddSource("mesh", source, engine.Keep{})
	for i, m := range minters {
		n.engine.AddSource(fmt.Sprintf("o%04d", i), m, engine.Keep{})
	}
	n.server = server.New(server.Config{
		Host: n.engine, Logger: quiet, Accept: n.mesh.Accept, Provider: edges.Provider, Limits: session.Limits{MaxChannels: 2048},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.address = l.Addr().String()
	ctx, n.cancel = context.WithCancel(ctx)
	n.done.Go(func() { _ = n.engine.Run(ctx) })
	n.done.Go(func() { _ = n.server.Serve(l) })
	return n, nil
}

func (n *member) stop() {
	n.server.Close()
	n.cancel()
	n.done.Wait()
}

func (n *member) peers(of ...*member) {
	var all []client.MeshPeer
	for _, p := range of {
		all = append(all, client.MeshPeer{ID: p.id, Address: p.address})
	}
	n.mesh.SetPeers(all, client.Policy{})
}

// heads returns the heads of the logs that a node serves.
func (n *member) heads() map[engine.LogID]engine.Position {
	all := map[engine.LogID]engine.Position{}
	for _, a := range n.engine.Adverts() {
		all[a.Log] = a.Head
	}
	return all
}

// until waits until ok, which is looked at after each commit of a node.
func (n *member) until(ctx context.Context, what string, ok func() bool) error {
	late := time.After(2 * time.Minute)
	for {
		changed := n.engine.Changed()
		if ok() {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond): // not everything is a commit
		case <-late:
			return fmt.Errorf("not within 2 minutes: %s", what)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// origins measures how fast changes of many origins are applied that come over one
// session, and what it costs to go on with them all.
func (b *bench) origins(ctx context.Context) error {
	changes := 2 * b.rows // so many that what a thousand channels cost to begin is little of it
	counts := []int{1, 10, 1000}
	rates, ratios := map[int][]float64{}, map[int][]float64{}
	var resume time.Duration
	var bytes int64
	const rounds = 5 // in turns, since the ratios are between them
	for range rounds {
		for _, n := range counts {
			var took time.Duration
			var err error
			if took, resume, bytes, err = b.applyOrigins(ctx, n, changes); err != nil {
				return fmt.Errorf("%d origins: %w", n, err)
			}
			rate := float64(changes) / took.Seconds()
			rates[n] = append(rates[n], rate)
			ratios[n] = append(ratios[n], rate/rates[1][len(rates[1])-1])
		}
	}
	for i, name := range []string{"10", "1,000"} {
		n := counts[i+1]
		b.atLeast(fmt.Sprintf("apply-%d-origins", n), fmt.Sprintf("changes/s applied, %s origins / 1 origin", name), median(ratios[n]), 0.8, 1,
			"%.0f / %.0f; median of %d", median(rates[n]), median(rates[1]), rounds)
	}
	b.atMost("resume-1000-origins-bytes", "KiB to resume an origin at head, of 1,000", float64(bytes)/1000/1024, 2, 0.5,
		"%d bytes in %d ms", bytes, resume.Milliseconds())
	return nil
}

func (b *bench) applyOrigins(ctx context.Context, n, changes int) (took, resume time.Duration, bytes int64, err error) {
	minters := make([]*minter, n)
	for i := range minters {
		minters[i] = newMinter()
	}
	hub, err := startMember(ctx, "hub", store.NewMemory(store.MemoryOptions{}), minters)
	if err != nil {
		return 0, 0, 0, err
	}
	defer hub.stop()
	st := store.NewMemory(store.MemoryOptions{})
	edge, err := startMember(ctx, "edge", st, nil)
	if err != nil {
		return 0, 0, 0, err
	}
	hub.peers(edge)
	edge.peers(hub)
	if err := edge.until(ctx, "the edge has every log", func() bool { return len(edge.heads()) == n }); err != nil {
		edge.stop()
		return 0, 0, 0, err
	}
	if err := edge.until(ctx, "the edge reads every log", func() bool { return streaming(hub) == n }); err != nil {
		edge.stop()
		return 0, 0, 0, err
	}
	edge.mesh.Pause()
	for i, m := range minters {
		m.want <- changes/n + min(1, max(0, changes%n-i))
	}
	for _, m := range minters {
		<-m.done
	}
	want := hub.heads()
	began := time.Now()
	edge.mesh.Resume()
	same := func() bool {
		have := edge.heads()
		for log, at := range want {
			if have[log] != at {
				return false
			}
		}
		return true
	}
	// Looked at now and then only: to look at a thousand logs after each commit would be
	// most of what is measured.
	err = testnode.Until(ctx, 2*time.Minute, "the edge to have applied all", func() (bool, error) { return same(), nil })
	took = time.Since(began)
	edge.stop()
	if err != nil || n < 1000 {
		return took, 0, 0, err
	}
	proxy, err := countingProxy(hub.address)
	if err != nil {
		return 0, 0, 0, err
	}
	defer proxy.Close()
	if edge, err = startMember(ctx, "edge", st, nil); err != nil {
		return 0, 0, 0, err
	}
	defer edge.stop()
	began = time.Now()
	edge.mesh.SetPeers([]client.MeshPeer{{ID: "hub", Address: proxy.Addr().String()}}, client.Policy{})
	err = edge.until(ctx, "the edge reads every log again", func() bool { return streaming(hub) == n })
	return took, time.Since(began), proxy.bytes.Load(), err
}

// streaming is how many logs are read of a node by readers that have come to its head once.
func streaming(n *member) (live int) {
	for _, c := range n.server.Readers() {
		for _, ch := range c.Channels {
			if ch.State == "streaming" {
				live++
			}
		}
	}
	return live
}

// proxy counts what passes.
type proxy struct {
	net.Listener
	bytes atomic.Int64
}

func countingProxy(to string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{Listener: l}
	go func() { // ends with the listener
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			pipe := func(dst, src net.Conn) {
				defer dst.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := src.Read(buf)
					p.bytes.Add(int64(n))
					if n > 0 {
						if _, err := dst.Write(buf[:n]); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			}
			go pipe(in, out)
			go pipe(out, in)
		}
	}()
	return p, nil
}

// failover measures how long a log stands still whose relay dies.
func (b *bench) failover(ctx context.Context) error {
	var all []time.Duration
	for range 5 {
		d, err := b.failoverOnce(ctx)
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	slices.Sort(all)
	ms := float64(all[len(all)/2].Microseconds()) / 1000
	b.atMost("failover-ms", "failover to the first new record, ms", ms, 2000, 300, "%.0f ms, from %s to %s", ms, all[0].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	return nil
}

func (b *bench) failoverOnce(ctx context.Context) (time.Duration, error) {
	m := newMinter()
	var nodes []*member
	for _, id := range []string{"a", "b", "c", "d"} {
		var minters []*minter
		if id == "a" {
			minters = []*minter{m}
		}
		n, err := startMember(ctx, id, store.NewMemory(store.MemoryOptions{}), minters)
		if err != nil {
			return 0, err
		}
		nodes = append(nodes, n)
	}
	a, rb, c, d := nodes[0], nodes[1], nodes[2], nodes[3]
	var alive sync.Map
	for _, n := range nodes {
		alive.Store(n, true)
	}
	stop := func(n *member) {
		if _, ok := alive.LoadAndDelete(n); ok {
			n.stop()
		}
	}
	for _, n := range nodes {
		defer stop(n)
	}
	a.peers(rb, d)
	rb.peers(a, c)
	d.peers(a, c)
	c.peers(rb, d)
	writes, cancel := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() {
		for writes.Err() == nil {
			select {
			case m.want <- 1:
				<-m.done
			case <-writes.Done():
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	defer writer.Wait()
	defer cancel()
	head := func() engine.Position {
		for log, at := range c.heads() {
			if log.Origin == engine.Origin("a", "o0000") {
				return at
			}
		}
		return ""
	}
	over := func() string {
		for _, l := range c.mesh.Status().Logs {
			if l.Log.Origin == engine.Origin("a", "o0000") {
				return l.Peer
			}
		}
		return ""
	}
	if err := c.until(ctx, "C reads A's log", func() bool { return head() != "" && over() != "" }); err != nil {
		return 0, err
	}
	time.Sleep(300 * time.Millisecond)
	victim := rb
	if over() == "d" {
		victim = d
	}
	began := time.Now()
	go stop(victim)
	at := head()
	if err := c.until(ctx, "C goes on without it", func() bool { o := over(); return o != "" && o != victim.id }); err != nil {
		return 0, err
	}
	at = head()
	if err := c.until(ctx, "C has a new record", func() bool { return head() != at }); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if victim == nil || at == "" {
		return 0, errors.New("nothing was read")
	}
	return took, nil
}
