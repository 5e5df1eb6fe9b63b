// Package fanouttest starts small nodes on loopback for tests of what serves
// and reads logs: real engines over memory stores, real servers, and a source
// that mints whatever the test writes.
package fanouttest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// Logger returns a logger that prints if FANOUT_DEBUG is set.
func Logger(node string) *slog.Logger {
	var w io.Writer = io.Discard
	if os.Getenv("FANOUT_DEBUG") != "" {
		w = os.Stderr
	}
	return slog.New(slog.NewTextHandler(w, nil)).With("node", node)
}

// Table returns the name of a table in schema public.
func Table(name string) engine.TableName { return engine.TableName{Schema: "public", Name: name} }

// Origin is a source that mints what Write is given.
type Origin struct {
	Tables []engine.TableName
	// Lag delays each Apply.
	Lag time.Duration

	mu      sync.Mutex
	rows    map[engine.TableName]map[string]string
	lsn     engine.LSN
	pending []write
	taking  bool // some are being applied
	more    chan struct{}
	schemas map[engine.TableName]*engine.Schema
	define  func(engine.TableName) *engine.Schema
	history int
	down    atomic.Bool
}

// SetDown takes the origin's database away, or gives it back.
func (o *Origin) SetDown(down bool) {
	o.down.Store(down)
	select {
	case o.more <- struct{}{}:
	default:
	}
}

var errDown = errors.New("the database is down")

type write struct {
	at      engine.LSN
	changes []Change
	joins   *engine.TableName // with what it holds then
	rows    map[string]string
}

// Change is a change of a row of two text columns: Gone deletes it, and
// Truncate takes all of the table's.
type Change struct {
	Table    engine.TableName
	Key      string
	Value    string
	Gone     bool
	Truncate bool
}

// NewOrigin returns an origin with tables, each with rows of that many keys.
func NewOrigin(rows int, tables ...string) *Origin {
	o := &Origin{rows: map[engine.TableName]map[string]string{}, lsn: 1000, more: make(chan struct{}, 1)}
	for _, name := range tables {
		t := Table(name)
		o.Tables = append(o.Tables, t)
		o.rows[t] = map[string]string{}
		for i := range rows {
			o.rows[t][fmt.Sprintf("k%06d", i)] = fmt.Sprintf("baseline %d", i)
		}
	}
	return o
}

// Put writes a row to the origin's first table, in a transaction.
func (o *Origin) Put(key, value string) engine.Position {
	return o.Write(Change{Table: o.Tables[0], Key: key, Value: value})
}

// Write commits a transaction at the origin and returns its position.
func (o *Origin) Write(changes ...Change) engine.Position {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lsn += 16
	for _, c := range changes {
		switch {
		case c.Truncate:
			clear(o.rows[c.Table])
		case c.Gone:
			delete(o.rows[c.Table], c.Key)
		default:
			o.rows[c.Table][c.Key] = c.Value
		}
	}
	o.pending = append(o.pending, write{at: o.lsn, changes: changes})
	select {
	case o.more <- struct{}{}:
	default:
	}
	return o.lsn.Position()
}

// Add takes a table with rows into the running log, and returns the position of
// the transaction that names it.
func (o *Origin) Add(t engine.TableName, rows map[string]string) engine.Position {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lsn += 16
	o.Tables = append(slices.Clone(o.Tables), t)
	o.rows[t] = maps.Clone(rows)
	o.schemas = maps.Clone(o.schemas)
	o.schemas[t] = o.define(t)
	o.pending = append(o.pending, write{at: o.lsn, joins: &t, rows: maps.Clone(rows)})
	select {
	case o.more <- struct{}{}:
	default:
	}
	return o.lsn.Position()
}

// Next returns the position that the next transaction will have.
func (o *Origin) Next() engine.Position {
	o.mu.Lock()
	defer o.mu.Unlock()
	return (o.lsn + 16).Position()
}

// Idle reports whether all that was written has been applied.
func (o *Origin) Idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.pending) == 0 && !o.taking
}

// Rows returns a table's rows at the origin, first column to second.
func (o *Origin) Rows(t engine.TableName) map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.rows[t])
}

// Digest returns a digest of a table's rows at the origin.
func (o *Origin) Digest(t engine.TableName) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return digest(o.rows[t])
}

func digest(rows map[string]string) string {
	var sum [32]byte
	for k, v := range rows {
		h := sha256.Sum256([]byte(k + "\x00" + v))
		for i := range sum {
			sum[i] ^= h[i]
		}
	}
	return fmt.Sprintf("%d rows %x", len(rows), sum[:6])
}

// Init implements engine.SyncSource.
func (o *Origin) Init(_ context.Context, env engine.Env) (engine.Info, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down.Load() {
		return engine.Info{}, errDown
	}
	o.schemas = map[engine.TableName]*engine.Schema{}
	info := engine.Info{Mints: true, History: fmt.Sprintf("fanouttest/%d", o.history)}
	o.define = func(t engine.TableName) *engine.Schema {
		sc, _ := env.Schemas.Define(&engine.Schema{Table: t, RelationOID: uint32(16384 + slices.Index(o.Tables, t)), ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
			{Name: "id", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1, Key: true},
			{Name: "v", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
		}})
		return sc
	}
	for _, t := range o.Tables {
		o.schemas[t] = o.define(t)
		info.Tables = append(info.Tables, o.schemas[t])
	}
	return info, nil
}

// Row returns the row of a schema of two text columns.
func Row(s *engine.Schema, key, value string) engine.Row {
	return engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, s.ID, 2), key), value)
}

// Baseline implements engine.SyncSource.
func (o *Origin) Baseline(ctx context.Context, sink engine.Sink) error {
	o.mu.Lock()
	o.pending = nil
	spec := engine.BaselineSpec{Tables: o.Tables, At: o.lsn.Position(), Major: uint64(o.lsn)}
	records := map[engine.TableName][]engine.Record{}
	for _, t := range o.Tables {
		spec.Schemas = append(spec.Schemas, o.schemas[t])
		for k, v := range o.rows[t] {
			records[t] = append(records[t], engine.Record{Schema: o.schemas[t], Key: engine.AppendKeyValue(nil, k), Row: Row(o.schemas[t], k, v)})
		}
	}
	o.mu.Unlock()
	w, err := sink.Baseline(ctx, spec)
	if err != nil {
		return err
	}
	for t, rs := range records {
		if err := w.Rows(t, rs); err != nil {
			w.Abort()
			return err
		}
	}
	return w.Commit(ctx)
}

// Stream implements engine.SyncSource.
func (o *Origin) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	for _, c := range from {
		sink.Head(engine.LogID{}, engine.Head{Position: c.Position, Time: c.Time})
	}
	for {
		if o.down.Load() {
			return errDown
		}
		o.mu.Lock()
		todo := o.pending
		o.pending, o.taking = nil, len(todo) > 0
		schemas := o.schemas
		o.mu.Unlock()
		if len(todo) == 0 {
			select {
			case <-o.more:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		for len(todo) > 0 {
			n := min(len(todo), 64)
			txs := make([]engine.Transaction, 0, n)
			for _, w := range todo[:n] {
				t := engine.Transaction{Position: w.at.Position(), Major: uint64(w.at), Commit: time.Now()}
				if w.joins != nil {
					b, err := joined(ctx, sink, w, schemas[*w.joins])
					if err != nil {
						return err
					}
					t.Tables = append(t.Tables, b)
				}
				for _, c := range w.changes {
					sc := schemas[c.Table]
					ch := engine.Change{Op: engine.OpPut, Schema: sc, Key: engine.AppendKeyValue(nil, c.Key)}
					switch {
					case c.Truncate:
						ch.Op, ch.Key = engine.OpTruncate, nil
					case c.Gone:
						ch.Op = engine.OpDelete
					default:
						ch.Row = Row(sc, c.Key, c.Value)
					}
					t.Changes = append(t.Changes, ch)
				}
				txs = append(txs, t)
			}
			time.Sleep(o.Lag)
			if err := sink.Apply(ctx, txs); err != nil {
				return err
			}
			sink.Head(engine.LogID{}, engine.Head{Position: txs[n-1].Position, Time: engine.TimeOf(txs[n-1].Commit)})
			todo = todo[n:]
		}
	}
}

// joined returns the partial baseline of a table that joins.
func joined(ctx context.Context, sink engine.Sink, w write, sc *engine.Schema) (engine.BaselineWriter, error) {
	b, err := sink.Baseline(ctx, engine.BaselineSpec{Partial: true, Reason: "added", Tables: []engine.TableName{sc.Table}, Schemas: []*engine.Schema{sc}, At: (w.at - 1).Position(), Major: uint64(w.at - 1)})
	if err != nil {
		return nil, err
	}
	var rs []engine.Record
	for k, v := range w.rows {
		rs = append(rs, engine.Record{Schema: sc, Key: engine.AppendKeyValue(nil, k), Row: Row(sc, k, v)})
	}
	if err := b.Rows(sc.Table, rs); err != nil {
		b.Abort()
		return nil, err
	}
	return b, nil
}

// Ack implements engine.SyncSource.
func (o *Origin) Ack(engine.Cursor, bool) {}

// LastAckedPosition implements engine.SyncSource.
func (o *Origin) LastAckedPosition(engine.LogID) engine.Position { return "" }

// SupportsResume implements engine.SyncSource.
func (o *Origin) SupportsResume() bool { return true }

// OrderingGuarantee implements engine.SyncSource.
func (o *Origin) OrderingGuarantee() engine.Ordering { return engine.TotalOrder }

// ComparePositions implements engine.SyncSource.
func (o *Origin) ComparePositions(a, b engine.Position) int { return engine.CompareLSN(a, b) }

// PositionToString implements engine.SyncSource.
func (o *Origin) PositionToString(p engine.Position) string { return string(p) }

// PositionFromString implements engine.SyncSource.
func (o *Origin) PositionFromString(s string) (engine.Position, error) {
	return engine.Position(s), nil
}

// Pause implements engine.SyncSource.
func (o *Origin) Pause() {}

// Resume implements engine.SyncSource.
func (o *Origin) Resume() {}

// Node is a node on loopback.
type Node struct {
	T       testing.TB
	ID      string
	Engine  *engine.Engine
	Server  *server.Server
	Address string
	Edges   *client.Edges
	Store   engine.Store

	listener net.Listener
	cancel   context.CancelFunc
	done     sync.WaitGroup
	stop     sync.Once
}

// Options of a node.
type Options struct {
	Store  store.MemoryOptions
	Use    engine.Store // in place of a new one
	Now    func() time.Time
	Server server.Config
	// Address to listen at; empty for any port.
	Address string
	// Relay makes the node a relay: what the source "mesh" brings is served on in its
	// log. Leaf makes it a leaf.
	Relay *relay.Reoriginate
	Leaf  *relay.Leaf
}

// Start starts a node with sources, by name. It ends with the test at the
// latest.
func Start(t testing.TB, id string, o Options, sources map[string]engine.SyncSource) *Node {
	t.Helper()
	return StartWith(t, id, o, &client.Edges{}, sources)
}

// StartWith is Start for a node whose sources share edges with its server.
func StartWith(t testing.TB, id string, o Options, edges *client.Edges, sources map[string]engine.SyncSource) *Node {
	t.Helper()
	n := &Node{T: t, ID: id, Edges: edges}
	log := Logger(id)
	if o.Use == nil {
		o.Use = store.NewMemory(o.Store)
	}
	n.Store = o.Use
	n.Engine = engine.New(engine.Options{NodeID: id, Store: o.Use, Logger: log, Now: o.Now})
	cfg := o.Server
	if o.Leaf != nil {
		cfg.Tree = o.Leaf
	}
	if o.Relay != nil {
		if _, err := n.Engine.Record(context.Background(), "relay", o.Relay); err != nil {
			t.Fatal(err)
		}
		cfg.Tree = o.Relay.Tree()
	}
	for name, s := range sources {
		var p engine.Policy = engine.Keep{}
		if o.Relay != nil && name == "mesh" {
			p = o.Relay
		}
		n.Engine.AddSource(name, s, p)
	}
	for _, s := range sources {
		if m, ok := s.(*client.Mesh); ok && m.Scope() == nil && o.Relay == nil {
			n.Engine.AwaitPeers()
		}
	}
	cfg.Scopes = map[string]*scope.Scope{}
	for name, s := range sources {
		if s, ok := s.(interface{ Scope() *scope.Scope }); ok {
			cfg.Scopes[name] = s.Scope()
		}
	}
	cfg.Host, cfg.Logger, cfg.Provider = n.Engine, log, edges.Provider
	n.Server = server.New(cfg)
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	var err error
	if n.listener, err = net.Listen("tcp", o.Address); err != nil {
		t.Fatal(err)
	}
	n.Address = n.listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.done.Add(2)
	go func() {
		defer n.done.Done()
		if err := n.Engine.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("engine of %s: %v", id, err)
		}
	}()
	go func() {
		defer n.done.Done()
		if err := n.Server.Serve(n.listener); err != nil {
			t.Errorf("server of %s: %v", id, err)
		}
	}()
	t.Cleanup(n.Stop)
	return n
}

// Stop ends the node at once, as a crash would.
func (n *Node) Stop() {
	n.stop.Do(func() {
		n.Server.Close()
		n.cancel()
		n.done.Wait()
	})
}

// Source returns a source that reads from nodes.
func Source(t testing.TB, id string, change func(*client.Config), from ...*Node) *client.Source {
	t.Helper()
	cfg := client.Config{NodeID: id, Name: "up", Logger: Logger(id)}
	for _, n := range from {
		cfg.Upstreams = append(cfg.Upstreams, n.Address)
	}
	if change != nil {
		change(&cfg)
	}
	s, err := client.NewSource(cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Child starts a node that reads from others.
func Child(t testing.TB, id string, change func(*client.Config), from ...*Node) (*Node, *client.Source) {
	t.Helper()
	return ChildWith(t, id, Options{}, change, from...)
}

// ChildWith is Child with options.
func ChildWith(t testing.TB, id string, o Options, change func(*client.Config), from ...*Node) (*Node, *client.Source) {
	t.Helper()
	edges := &client.Edges{}
	s := Source(t, id, func(c *client.Config) {
		c.Edges = edges
		if change != nil {
			change(c)
		}
	}, from...)
	return StartWith(t, id, o, edges, map[string]engine.SyncSource{"up": s}), s
}

// Rows returns a table's live rows, first column to second.
func (n *Node) Rows(t engine.TableName) map[string]string {
	v := n.Engine.View()
	defer v.Close()
	rows := map[string]string{}
	if err := v.Scan(t, nil, func(r *engine.Record) bool {
		if !r.Deleted {
			var c [2]string
			for i, col := range r.Row.Columns() {
				c[i] = string(col.Value)
			}
			rows[c[0]] = c[1]
		}
		return true
	}); err != nil {
		n.T.Fatal(err)
	}
	return rows
}

// Digest returns a digest of a table's rows at the node.
func (n *Node) Digest(t engine.TableName) string { return digest(n.Rows(t)) }

// Baselines returns how many baselines the source named up has taken.
func (n *Node) Baselines() int {
	for _, s := range n.Engine.Status().Sources {
		if s.Name == "up" {
			return s.Baselines
		}
	}
	return 0
}

// Eventually waits until what is nil, and fails the test with it otherwise.
func Eventually(t testing.TB, within time.Duration, what func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := 2 * time.Millisecond; ; pause = min(pause*2, 200*time.Millisecond) {
		err := what()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", within, err)
		}
		time.Sleep(pause)
	}
}

// Converged waits until a node has the same rows of a table as the origin.
func Converged(t testing.TB, o *Origin, table engine.TableName, nodes ...*Node) {
	t.Helper()
	for _, n := range nodes {
		Eventually(t, 30*time.Second, func() error {
			if want, have := o.Digest(table), n.Digest(table); want != have {
				return fmt.Errorf("node %s has %s of %s, the origin %s; status %+v", n.ID, have, table, want, n.Engine.Status().Sources)
			}
			return nil
		})
	}
}

// Member starts a node of a mesh, with an origin of its own if o is not nil. Its
// peers are set with SetPeers.
func Member(t testing.TB, id string, opts Options, o engine.SyncSource, change func(*client.Config)) (*Node, *client.Mesh) {
	t.Helper()
	var mesh *client.Mesh
	n := MemberWith(t, id, opts, func(m *client.Mesh) map[string]engine.SyncSource {
		mesh = m
		if o == nil {
			return map[string]engine.SyncSource{"mesh": m}
		}
		return map[string]engine.SyncSource{"mesh": m, "own": o}
	}, change)
	return n, mesh
}

// MemberWith is Member with sources of the test's making.
func MemberWith(t testing.TB, id string, opts Options, sources func(*client.Mesh) map[string]engine.SyncSource, change func(*client.Config)) *Node {
	t.Helper()
	edges := &client.Edges{}
	var n *Node
	started := make(chan struct{})
	cfg := client.Config{
		NodeID: id, Name: "mesh", Logger: Logger(id), Edges: edges,
		Serve: func(ctx context.Context, from session.Caller, stream *session.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
			<-started
			return n.Server.Join(ctx, from, stream, end)
		},
		Witness: func(peer string, e engine.Epoch, tm engine.Time) {
			<-started
			n.Engine.Witness(peer, e, tm)
		},
		Own:      func() []engine.OwnLog { <-started; return n.Engine.Own() },
		Rejoined: func() { n.Engine.Rejoined() },
	}
	if change != nil {
		change(&cfg)
	}
	m, err := client.NewMesh(cfg)
	if err != nil {
		t.Fatal(err)
	}
	opts.Server.Accept = m.Accept
	n = StartWith(t, id, opts, edges, sources(m))
	close(started)
	return n
}

// Peers returns nodes as peers of a mesh.
func Peers(nodes ...*Node) []client.MeshPeer {
	var all []client.MeshPeer
	for _, n := range nodes {
		all = append(all, client.MeshPeer{ID: n.ID, Address: n.Address})
	}
	return all
}
