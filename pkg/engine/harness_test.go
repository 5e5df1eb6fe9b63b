package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// cloneBlock copies a block, as the wire does.
func cloneBlock(b *engine.Block) *engine.Block {
	c := *b
	c.Payload, c.Ends, c.Schemas = slices.Clone(b.Payload), slices.Clone(b.Ends), slices.Clone(b.Schemas)
	return &c
}

// common is what the test sources have in common: they are asked nothing, and
// record what they are told.
type common struct {
	mu    sync.Mutex
	acks  []engine.Cursor
	onAck func(engine.Cursor, bool)
}

func (c *common) Ack(at engine.Cursor, durable bool) {
	c.mu.Lock()
	c.acks = append(c.acks, at)
	f := c.onAck
	c.mu.Unlock()
	if f != nil {
		f(at, durable)
	}
}

func (c *common) LastAckedPosition(log engine.LogID) (p engine.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.acks {
		if a.Log == log {
			p = a.Position
		}
	}
	return p
}

func (c *common) SupportsResume() bool                      { return true }
func (c *common) OrderingGuarantee() engine.Ordering        { return engine.TotalOrder }
func (c *common) ComparePositions(a, b engine.Position) int { return engine.CompareLSN(a, b) }
func (c *common) PositionToString(p engine.Position) string { return string(p) }
func (c *common) PositionFromString(s string) (engine.Position, error) {
	return engine.Position(s), nil
}
func (c *common) Pause()                                                {}
func (c *common) Resume()                                               {}
func (c *common) Init(context.Context, engine.Env) (engine.Info, error) { return engine.Info{}, nil }
func (c *common) Baseline(context.Context, engine.Sink) error           { return nil }
func (c *common) Stream(ctx context.Context, _ engine.Cursors, _ engine.Sink) error {
	<-ctx.Done()
	return ctx.Err()
}

// dbSource mints a database's changes, as the PostgreSQL source does.
type dbSource struct {
	common
	db      *database
	batch   int                      // transactions in one Apply
	again   int                      // transactions sent again at each Stream
	run     int                      // changes of a transaction handed over at once; 0: all
	edit    func(content) content    // nil, or alters what baselines read
	history func() string            // nil: always the same
	during  func()                   // nil, or called while a baseline is under way
	fault   func(stage string) error // nil, or what goes wrong
	schemas map[engine.TableName]*engine.Schema
	inits   int
}

func (s *dbSource) tried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inits
}

func (s *dbSource) failing(stage string) error {
	if s.fault != nil {
		return s.fault(stage)
	}
	return nil
}

func (s *dbSource) Init(_ context.Context, env engine.Env) (engine.Info, error) {
	env.Report(engine.ReasonConnecting, nil)
	s.mu.Lock()
	s.inits++
	s.mu.Unlock()
	info := engine.Info{Mints: true, History: "7300000000000000001/1"}
	if s.history != nil {
		info.History = s.history()
	}
	s.schemas = map[engine.TableName]*engine.Schema{}
	for _, t := range tables {
		sc, _ := env.Schemas.Define(shapeOf(t))
		s.schemas[t] = sc
		info.Tables = append(info.Tables, sc)
	}
	return info, s.failing("init")
}

func (s *dbSource) Baseline(ctx context.Context, sink engine.Sink) error {
	n, at := s.db.head()
	lsn, _ := engine.ParseLSN(at)
	spec := engine.BaselineSpec{Tables: tables, At: at, Major: uint64(lsn)}
	for _, t := range tables {
		spec.Schemas = append(spec.Schemas, s.schemas[t])
	}
	w, err := sink.Baseline(ctx, spec)
	if err != nil {
		return err
	}
	defer w.Abort()
	state := s.db.state(n)
	if s.edit != nil {
		state = s.edit(state)
	}
	for t, rows := range state {
		if s.during != nil {
			s.during()
		}
		for id, r := range rows {
			if err := w.Rows(t, []engine.Record{{Schema: s.schemas[t], Key: keyOf(id), Row: rowOf(s.schemas[t], id, r[0], r[1])}}); err != nil {
				return err
			}
		}
	}
	if err := s.failing("baseline"); err != nil {
		return err
	}
	return w.Commit(ctx)
}

func (s *dbSource) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	if len(from) != 1 {
		return fmt.Errorf("a source that mints one log is to resume from %d cursors: %v", len(from), from)
	}
	var at engine.Position
	for _, c := range from {
		at = s.db.before(c.Position, s.again)
	}
	for {
		if err := s.failing("stream"); err != nil {
			return err
		}
		commits, more := s.db.since(at)
		if len(commits) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-more:
			}
			continue
		}
		if s.batch > 0 && len(commits) > s.batch {
			commits = commits[:s.batch]
		}
		var txs []engine.Transaction
		for _, c := range commits {
			txs = append(txs, inRuns(c.transaction(s.schemas), s.run))
		}
		if err := sink.Apply(ctx, txs); err != nil {
			return err
		}
		at = txs[len(txs)-1].Position
	}
}

// inRuns makes a transaction hand over its changes n at a time, each run in the
// same memory; the two halves of a key change stay together.
func inRuns(t engine.Transaction, n int) engine.Transaction {
	if n <= 0 {
		return t
	}
	rest, buf := t.Changes, []engine.Change(nil)
	t.More = func() ([]engine.Change, error) {
		k := min(n, len(rest))
		if k < len(rest) && rest[k].OldKey != nil {
			k++
		}
		clear(buf)
		buf = append(buf[:0], rest[:k]...)
		rest = rest[k:]
		return buf, nil
	}
	t.Changes, _ = t.More()
	t.Changes = slices.Clone(t.Changes)
	return t
}

// hop carries every log of another engine, as the fan-out source does.
type hop struct {
	common
	up       *upstream
	maxBytes int
	chaos    func(n int) int // nil, or draws from [0, n): repeats and reorders blocks
	others   []engine.LogID  // logs whose schemas go with a snapshot, rows or not
	self     string          // not to be asked for what comes by way of it
	only     string          // the origin to ask for; "" for all
	copies   int             // snapshots taken
}

func (h *hop) draw(n int) int {
	if h.chaos == nil {
		return math.MaxInt
	}
	return h.chaos(n)
}

func (h *hop) adverts(up *engine.Engine) []engine.Advert {
	return slices.DeleteFunc(up.Adverts(), func(a engine.Advert) bool {
		return slices.Contains(a.Path, h.self) || h.only != "" && a.Log.Origin != h.only
	})
}

func (h *hop) Baseline(ctx context.Context, sink engine.Sink) error {
	up, gone := h.up.get()
	for {
		changed := up.Changed()
		adverts := h.adverts(up)
		for _, a := range adverts {
			if _, err := h.copy(ctx, up, sink, a); err != nil {
				return err
			}
		}
		if len(adverts) > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-gone:
			return errConnection
		case <-changed:
		}
	}
}

// upstream is where a hop connects to. When it is replaced, connections break.
type upstream struct {
	mu   sync.Mutex
	e    *engine.Engine
	gone chan struct{}
}

func pointing(e *engine.Engine) *upstream { return &upstream{e: e, gone: make(chan struct{})} }

func (u *upstream) get() (*engine.Engine, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.e, u.gone
}

func (u *upstream) replace(e *engine.Engine) {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.gone)
	u.e, u.gone = e, make(chan struct{})
}

var errConnection = errors.New("the connection is lost")

// copy takes a snapshot of a log: everything the upstream holds of its tables.
func (h *hop) copy(ctx context.Context, up *engine.Engine, sink engine.Sink, a engine.Advert) (at engine.Position, err error) {
	if err := sink.Carry(a.Log, up.Comparator(a.Log), a.Path, a.Tables); err != nil {
		return "", err
	}
	v := up.View()
	defer v.Close()
	info, ok := v.Log(a.Log)
	if !ok {
		return "", fmt.Errorf("log %s was advertised and is gone", a.Log)
	}
	h.mu.Lock()
	h.copies++
	h.mu.Unlock()
	spec := engine.BaselineSpec{
		Log: a.Log, Schemas: v.Schemas(a.Log), Others: map[engine.LogID][]*engine.Schema{},
		Tables: a.Tables, At: info.Head, Time: info.Time, Truncates: map[engine.TableName][]engine.Stamp{},
	}
	for _, t := range a.Tables { // rows that they took away leave no newer stamp to tell it by
		if at := v.Truncated(t, a.Log.Origin); at != (engine.Stamp{}) {
			spec.Truncates[t] = append(spec.Truncates[t], at)
		}
	}
	for _, l := range h.others {
		spec.Others[l] = v.Schemas(l)
	}
	rows := map[engine.TableName][]engine.Record{}
	for _, t := range a.Tables {
		if err := v.Scan(t, nil, func(r *engine.Record) bool {
			c := *r
			c.Key, c.Row = bytes.Clone(r.Key), bytes.Clone(r.Row)
			rows[t] = append(rows[t], c)
			if l := r.Stamp.Log(); l != a.Log && spec.Others[l] == nil {
				spec.Others[l] = v.Schemas(l)
			}
			return true
		}); err != nil {
			return "", err
		}
	}
	w, err := sink.Baseline(ctx, spec)
	if err != nil {
		return "", err
	}
	defer w.Abort()
	for t, rs := range rows {
		if err := w.Rows(t, rs); err != nil {
			return "", err
		}
	}
	return spec.At, w.Commit(ctx)
}

func (h *hop) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	type place struct {
		at   engine.Position
		part uint32
		past []*engine.Block // delivered already
	}
	places := map[engine.LogID]*place{}
	up, gone := h.up.get()
	for k, c := range from {
		places[k.Log] = &place{at: c.Position}
	}
	for {
		changed := up.Changed()
		idle := true
		for _, a := range h.adverts(up) {
			p := places[a.Log]
			var blocks []*engine.Block
			err := engine.ErrGap
			if p != nil {
				v := up.View()
				blocks, err = v.ReadPart(a.Log, p.at, p.part, h.maxBytes)
				for i := range blocks {
					blocks[i] = cloneBlock(blocks[i])
				}
				v.Close()
			}
			if errors.Is(err, engine.ErrUnknownLog) {
				idle = false // replaced since it was advertised
				continue
			}
			if errors.Is(err, engine.ErrGap) {
				at, err := h.copy(ctx, up, sink, a)
				if err != nil {
					return err
				}
				places[a.Log] = &place{at: at}
				idle = false
				continue
			}
			if err != nil {
				return err
			}
			if err := sink.Carry(a.Log, up.Comparator(a.Log), a.Path, a.Tables); err != nil {
				return err
			}
			sink.Head(a.Log, engine.Head{Position: a.Head, Time: a.Time})
			if len(blocks) == 0 {
				continue
			}
			idle = false
			key := engine.CursorKey{Log: a.Log}
			switch h.draw(6) {
			case 0: // out of order: nothing of it may be applied past the hole
				swapped := slices.Clone(blocks)
				slices.Reverse(swapped)
				if err := sink.ApplyBlocks(ctx, key, swapped); err != nil && !errors.Is(err, engine.ErrHole) {
					return err
				}
				p.part = 0 // ask again from the cursor
				continue
			case 1: // old ones again
				if err := sink.ApplyBlocks(ctx, key, p.past); err != nil && !errors.Is(err, engine.ErrHole) {
					return err
				}
			}
			if err := sink.ApplyBlocks(ctx, key, blocks); err != nil {
				if errors.Is(err, engine.ErrHole) {
					p.part = 0
					continue
				}
				return err
			}
			for _, b := range blocks {
				p.past = append(p.past, cloneBlock(b))
				if p.part = b.Part + 1; b.Last {
					p.at, p.part = b.Position, 0
				}
			}
		}
		if !idle {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-gone:
			return errConnection
		case <-changed:
		}
	}
}

// byHand lets a test deliver what it likes: it hands out the sink.
type byHand struct {
	common
	mints    bool
	baseline func(context.Context, engine.Sink) error // nil: none
	sinks    chan engine.Sink
}

func newByHand() *byHand { return &byHand{sinks: make(chan engine.Sink, 100)} }

func (s *byHand) Init(context.Context, engine.Env) (engine.Info, error) {
	return engine.Info{Mints: s.mints, History: "h"}, nil
}

func (s *byHand) Baseline(ctx context.Context, sink engine.Sink) error {
	if s.baseline == nil {
		return nil
	}
	return s.baseline(ctx, sink)
}

func (s *byHand) Stream(ctx context.Context, _ engine.Cursors, sink engine.Sink) error {
	s.sinks <- sink
	<-ctx.Done()
	return ctx.Err()
}

// fatal is what *testing.T and *rapid.T have in common here.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

var _ fatal = (*testing.T)(nil)
var _ fatal = (*rapid.T)(nil)

// node returns an engine over a new memory store.
func node(id string) *engine.Engine { return nodeOver(id, store.NewMemory(store.MemoryOptions{})) }

// drawStore returns a new store: in memory, or now and then a durable one, with
// transactions that fit in memory or not.
func drawStore(t *rapid.T) engine.Store {
	kind := rapid.SampledFrom([]string{"memory", "memory", "memory", "memory", "memory", "memory", "durable", "durable, spilling"}).Draw(t, "store")
	if kind == "memory" {
		return store.NewMemory(store.MemoryOptions{})
	}
	return openDurable(t, vfs.NewMem(), kind == "durable, spilling")
}

// openDurable opens the durable store on a file system, until the test ends.
func openDurable(t fatal, fs vfs.FS, spill bool) *store.Pebble {
	o := store.PebbleOptions{Dir: "/store", FS: fs, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20}
	if spill {
		o.TxBytes, o.CacheBytes = 200, 1
	}
	s, err := store.OpenPebble(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Fatalf("%v", err)
		}
	})
	return s
}

func nodeOver(id string, st engine.Store) *engine.Engine {
	return engine.New(engine.Options{NodeID: id, Store: st, Logger: slog.New(slog.DiscardHandler)})
}

// watched is a store whose commits a test can look into, hold up and fail, and which counts
// the records that transactions look at one after the other.
type watched struct {
	engine.Store
	before func() error // nil, or called in Commit before anything is committed
	after  func()       // nil, or called in Commit after it
	seen   atomic.Int64 // records
}

func (w *watched) Begin(ctx context.Context) (engine.Tx, error) {
	tx, err := w.Store.Begin(ctx)
	return &watchedTx{tx, w}, err
}

type watchedTx struct {
	engine.Tx
	w *watched
}

func (t *watchedTx) Scan(table engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	return t.Tx.Scan(table, from, func(r *engine.Record) bool { t.w.seen.Add(1); return fn(r) })
}

func (t *watchedTx) Commit() error {
	if t.w.before != nil {
		if err := t.w.before(); err != nil {
			t.Rollback()
			return err
		}
	}
	err := t.Tx.Commit()
	if t.w.after != nil {
		t.w.after()
	}
	return err
}

// start runs an engine until stop is called, or the test ends.
func start(t fatal, e *engine.Engine) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("Run gave %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// await waits until done is true, which must depend only on what Changed tells of.
func await(t fatal, e *engine.Engine, what string, done func(engine.View) bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		changed := e.Changed()
		v := e.View()
		ok := done(v)
		v.Close()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%s never came about: %+v", what, e.Status())
		}
	}
}

// ownLog returns the newest log of an engine's source.
func ownLog(v engine.View, origin string) (info engine.LogInfo) {
	for _, l := range v.Logs() {
		if l.ID.Origin == origin {
			info = l
		}
	}
	return info
}
