package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

var (
	readings = engine.TableName{Schema: "public", Name: "readings"}
	events   = engine.TableName{Schema: "public", Name: "events"}
	hits     = engine.TableName{Schema: "public", Name: "hits"}
)

// node is an engine that runs.
type node struct {
	*engine.Engine
	t     testing.TB
	id    string
	store engine.Store
	end   func()
	// of a leaf
	in  *ingest.Source
	has *relay.Holdings
	hmu sync.Mutex
	own engine.LogID
	// of a relay
	relay *relay.Reoriginate
	links []*link
}

func newNode(t testing.TB, id string, st engine.Store, conflicts *engine.Conflicts) *node {
	return newNodeAt(t, id, st, conflicts, nil)
}

// newNodeAt starts a node with a clock of its own.
func newNodeAt(t testing.TB, id string, st engine.Store, conflicts *engine.Conflicts, now func() time.Time) *node {
	if st == nil {
		st = store.NewMemory(store.MemoryOptions{})
	}
	e := engine.New(engine.Options{NodeID: id, Store: st, Logger: slog.New(slog.DiscardHandler), Conflicts: conflicts, Now: now})
	return &node{Engine: e, t: t, id: id, store: st}
}

func (n *node) start() *node {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.Run(ctx) }()
	n.end = func() { cancel(); <-ended }
	n.t.Cleanup(n.end)
	return n
}

// newLeaf starts an ingest source.
func newLeaf(t testing.TB, id string) *node { t.Helper(); return newLeafOver(t, id, nil) }

func newLeafOver(t testing.TB, id string, st engine.Store) *node {
	t.Helper()
	return newLeafWith(t, id, st, true, nil)
}

func newLeafWith(t testing.TB, id string, st engine.Store, perEpoch bool, now func() time.Time) *node {
	t.Helper()
	c, err := engine.NewConflicts(engine.Conflict{Table: hits, Policy: engine.NamespaceByOrigin, PerEpoch: perEpoch})
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeAt(t, id, st, c, now)
	n.in, err = ingest.New(ingest.Config{Tables: []ingest.Table{
		{Name: readings, Columns: []ingest.Column{{Name: "leaf", Type: "text", Key: true}, {Name: "id", Type: "bigint", Key: true}, {Name: "v", Type: "bigint", Key: false}}},
		{Name: events, Columns: []ingest.Column{{Name: "leaf", Type: "text", Key: true}, {Name: "id", Type: "bigint", Key: true}, {Name: "v", Type: "bigint", Key: false}}},
		{Name: hits, Columns: []ingest.Column{{Name: "page", Type: "text", Key: true}, {Name: "n", Type: "numeric(20,2)", Key: false}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	n.has = relay.NewHoldings(engine.CompareBytes)
	n.AddSource("in", n.in, engine.Keep{})
	n.start()
	n.until("the leaf is ready", func() bool { return len(n.Adverts()) == 1 })
	n.own = n.Adverts()[0].Log
	return n
}

func text(v any) *string {
	s := fmt.Sprint(v)
	return &s
}

func (n *node) write(kind ingest.Kind, table engine.TableName, fields ...any) ingest.Result {
	n.t.Helper()
	op := ingest.Op{Kind: kind, Table: table}
	for i := 0; i < len(fields); i += 2 {
		op.Row = append(op.Row, ingest.Field{Column: fields[i].(string), Value: text(fields[i+1])})
	}
	res, err := n.in.Write(context.Background(), &ingest.Batch{Ops: []ingest.Op{op}})
	if err != nil {
		n.t.Fatal(err)
	}
	return res
}

// newRelay starts a relay over nodes.
func newRelay(t testing.TB, id string, st engine.Store, cfg relay.Config, children ...*node) *node {
	t.Helper()
	n := newNode(t, id, st, cfg.Conflicts)
	if cfg.Tables == nil {
		cfg.Tables = map[engine.TableName]relay.Delivery{events: relay.All}
	}
	var err error
	if n.relay, err = relay.New(cfg); err != nil {
		t.Fatal(err)
	}
	if n.own, err = n.Record(context.Background(), "relay", n.relay); err != nil {
		t.Fatal(err)
	}
	for _, c := range children {
		n.reads(c, n.relay)
	}
	return n.start()
}

// newRoot starts a node that keeps the logs of relays.
func newRoot(t testing.TB, id string, st engine.Store, relays ...*node) *node {
	t.Helper()
	n := newNode(t, id, st, nil)
	for _, r := range relays {
		n.reads(r, engine.Keep{})
	}
	return n.start()
}

func (n *node) reads(up *node, p engine.Policy) *link {
	l := &link{up: up, holder: n.id}
	n.links = append(n.links, l)
	n.AddSource("up-"+up.id, l, p)
	return l
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("%s: waited in vain until %s", n.id, what)
		}
	}
}

// rows is a node's state, without tombstones.
func (n *node) rows() string {
	v := n.View()
	defer v.Close()
	var b strings.Builder
	for _, t := range []engine.TableName{events, hits, readings} {
		if err := v.Scan(t, nil, func(r *engine.Record) bool {
			if !r.Deleted {
				fmt.Fprintf(&b, "%s %q %q %s %d\n", t.Name, r.Key, r.Row, r.Stamp, r.Schema.ID)
			}
			return true
		}); err != nil {
			n.t.Fatal(err)
		}
	}
	return b.String()
}

// union is the rows of several nodes, in order.
func union(nodes ...*node) string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.rows())
	}
	return unionOf(all...)
}

func unionOf(rows ...string) string {
	var all []string
	for _, r := range rows {
		all = append(all, strings.SplitAfter(r, "\n")...)
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// link reads the one log that a node serves, as a session does: it takes a
// snapshot where it has to, and then follows.
type link struct {
	up     *node
	holder string
	floor  bool // it takes over: what the holder has is left out
	stable bool // of a leaf: its state as of where its log begins, and the log after it

	mu      sync.Mutex
	off     bool
	blocks  int // that have come
	changes int
	since   int // times that places were read
	acked   engine.Cursor
}

func (l *link) count(bs []*engine.Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range bs {
		l.blocks++
		l.changes += b.Changes
	}
}

func (l *link) counts() (blocks, changes, since int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocks, l.changes, l.since
}

// head is how far it has read.
func (l *link) head() engine.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked.Position
}

// cursorIn is how far a node has come in another's log.
func (n *node) cursorIn(up *node) engine.Position {
	v := n.View()
	defer v.Close()
	c, _ := v.Cursor(engine.CursorKey{Log: up.own})
	return c.Position
}

// cut stops the link, or lets it go on.
func (l *link) cut(off bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = off
}

func (l *link) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.off
}

// Ack tells the node what has been applied.
func (l *link) Ack(c engine.Cursor, _ bool) {
	l.mu.Lock()
	l.acked = c
	l.mu.Unlock()
	l.tell(map[string]engine.Position{l.holder: c.Position})
}

// tell passes acknowledgements on.
func (l *link) tell(acks map[string]engine.Position) {
	if l.up.relay == nil {
		l.up.hmu.Lock()
		defer l.up.hmu.Unlock()
		l.up.has.Ack(acks)
		return
	}
	for h, at := range acks {
		if err := l.up.relay.Ack(h, at); err != nil {
			l.up.t.Error(err)
		}
	}
}

func (l *link) Init(context.Context, engine.Env) (engine.Info, error) { return engine.Info{}, nil }

func (l *link) Baseline(ctx context.Context, sink engine.Sink) error {
	for {
		changed := l.up.Changed()
		if all := l.up.Adverts(); len(all) == 1 && !l.isCut() {
			return l.copy(ctx, sink, all[0])
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// copy begins a log: of a leaf with what it holds, of a relay at the beginning, or
// at the floor.
func (l *link) copy(ctx context.Context, sink engine.Sink, a engine.Advert) error {
	if err := sink.Carry(a.Log, l.up.Comparator(a.Log), a.Path, a.Tables); err != nil {
		return err
	}
	v := l.up.View()
	defer v.Close()
	spec := engine.BaselineSpec{Log: a.Log, Schemas: v.Schemas(a.Log), Time: 1} // of a relay without tables, as over the wire
	if l.floor {
		spec.At = l.up.relay.Floor(l.holder)
	}
	if l.up.relay == nil {
		info, _ := v.Log(a.Log)
		spec.At, spec.Time, spec.Tables = info.Head, info.Time, a.Tables
		if l.stable {
			var err error
			spec.At = info.Oldest
			if spec.Time, err = engine.TimeAt(v, a.Log, spec.At, l.up.Comparator(a.Log)); err != nil {
				return err
			}
		}
	}
	w, err := sink.Baseline(ctx, spec)
	if err != nil {
		return err
	}
	defer w.Abort()
	for _, t := range a.Tables {
		if l.up.relay != nil {
			break
		}
		var rs []engine.Record
		if err := v.Scan(t, nil, func(r *engine.Record) bool {
			if r.Deleted && !r.Schema.Shares() || r.Stamp.Log() == a.Log && r.Stamp.Time > spec.Time {
				return true // it comes with the log, or is past its retention: what of that is to go is told by covers
			}
			c := *r
			c.Key, c.Row = bytes.Clone(r.Key), bytes.Clone(r.Row)
			rs = append(rs, c)
			return true
		}); err != nil {
			return err
		}
		if err := w.Rows(t, rs); err != nil {
			return err
		}
	}
	if l.stable && l.up.relay == nil {
		bs, err := v.ReadLog(a.Log, spec.At, 1<<30)
		if err != nil {
			return err
		}
		if err := w.(engine.FollowingWriter).Follow(bs); err != nil {
			return err
		}
	}
	return w.Commit(ctx)
}

func (l *link) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	var at engine.Position
	var log engine.LogID
	for k, c := range from {
		at, log = c.Position, k.Log
	}
	for {
		changed := l.up.Changed()
		if !l.isCut() {
			if to, err := l.read(ctx, sink, log, at); err != nil {
				return err
			} else if to != at {
				at = to
				continue
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// read delivers what there is of a log after a position, and returns where that ends.
func (l *link) read(ctx context.Context, sink engine.Sink, log engine.LogID, at engine.Position) (engine.Position, error) {
	all := l.up.Adverts()
	if len(all) != 1 {
		return at, nil
	}
	if all[0].Log != log {
		return at, engine.ErrReBaselineRequired
	}
	if err := sink.Carry(log, l.up.Comparator(log), all[0].Path, all[0].Tables); err != nil {
		return at, err
	}
	copies, err := l.after(log, at)
	if err != nil || len(copies) == 0 {
		return at, err
	}
	if err := sink.ApplyBlocks(ctx, engine.CursorKey{Log: log}, copies); err != nil {
		return at, err
	}
	l.count(copies)
	return copies[len(copies)-1].Position, nil
}

// after returns what follows a position, in memory of its own.
func (l *link) after(log engine.LogID, at engine.Position) (copies []*engine.Block, err error) {
	v := l.up.View()
	defer v.Close()
	bs, err := v.ReadLog(log, at, 1<<30)
	if errors.Is(err, engine.ErrGap) && l.up.relay != nil {
		l.mu.Lock()
		l.since++
		l.mu.Unlock()
		bs, err = relay.Since(v, log, at)
	}
	for _, b := range bs {
		c := *b
		c.Payload, c.Ends, c.Schemas, c.Others = slices.Clone(b.Payload), slices.Clone(b.Ends), slices.Clone(b.Schemas), slices.Clone(b.Others)
		copies = append(copies, &c)
	}
	return copies, err
}

func (l *link) LastAckedPosition(engine.LogID) engine.Position { return "" }
func (l *link) SupportsResume() bool                           { return true }
func (l *link) OrderingGuarantee() engine.Ordering             { return engine.PerLogOrder }
func (l *link) ComparePositions(a, b engine.Position) int      { return engine.CompareBytes(a, b) }
func (l *link) PositionToString(p engine.Position) string      { return string(p) }
func (l *link) PositionFromString(s string) (engine.Position, error) {
	return engine.Position(s), nil
}
func (l *link) Pause()  {}
func (l *link) Resume() {}
