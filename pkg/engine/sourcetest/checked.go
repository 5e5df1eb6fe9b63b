package sourcetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// checked is a source with what it delivers checked against the contract of
// Sink.
type checked struct {
	engine.SyncSource
	t testing.TB

	mu      sync.Mutex
	info    engine.Info
	cancel  context.CancelCauseFunc // of the Baseline or Stream under way
	count   int                     // of deliveries
	seen    []engine.Position
	last    engine.Position                    // end of the last transaction in this Stream
	part    map[engine.CursorKey]*engine.Block // last part of a transaction that is not complete
	schemas map[shape]bool                     // that the engine has been told of
}

// shape is a schema by what it says.
type shape struct {
	id          uint32
	fingerprint uint64
}

// announced notes schemas. Callers hold c.mu.
func (c *checked) announced(all ...*engine.Schema) {
	if c.schemas == nil {
		c.schemas = map[shape]bool{}
	}
	for _, s := range all {
		c.schemas[shape{s.ID, s.Fingerprint()}] = true
	}
}

var errInterrupted = errors.New("interrupted by the suite")

// interrupt breaks off what is under way, as a lost connection does.
func (c *checked) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel(errInterrupted)
	}
}

func (c *checked) lastInfo() engine.Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info
}

func (c *checked) delivered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *checked) positions() []engine.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

// Init keeps what the source says of itself.
func (c *checked) Init(ctx context.Context, env engine.Env) (engine.Info, error) {
	info, err := c.SyncSource.Init(ctx, env)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.info = info
	}
	return info, err
}

// Baseline checks what the source delivers as a baseline.
func (c *checked) Baseline(ctx context.Context, sink engine.Sink) error {
	return c.during(ctx, nil, sink, c.SyncSource.Baseline)
}

// Stream checks what the source delivers from some cursors on.
func (c *checked) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	return c.during(ctx, from, sink, func(ctx context.Context, sink engine.Sink) error {
		return c.SyncSource.Stream(ctx, from, sink)
	})
}

func (c *checked) during(ctx context.Context, from engine.Cursors, to engine.Sink, fn func(context.Context, engine.Sink) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &sink{Sink: to, c: c}
	c.mu.Lock()
	c.cancel = cancel
	c.last, c.part = "", map[engine.CursorKey]*engine.Block{}
	c.mu.Unlock()
	err := fn(ctx, s)
	s.end()
	c.mu.Lock()
	c.cancel = nil
	c.mu.Unlock()
	if from != nil && err == nil && ctx.Err() == nil {
		c.t.Error("Stream ended by itself without an error")
	}
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return errInterrupted
	}
	return err
}

// sink checks deliveries and passes them on.
type sink struct {
	engine.Sink
	c *checked

	mu    sync.Mutex
	ended bool
	open  int // baselines neither committed nor aborted
}

func (s *sink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.open != 0 {
		s.c.t.Errorf("%d baselines were neither committed nor aborted", s.open)
	}
}

// enter notes a delivery. Callers hold nothing.
func (s *sink) enter(what string) {
	s.mu.Lock()
	if s.ended {
		s.c.t.Errorf("%s after Baseline or Stream had returned", what)
	}
	s.mu.Unlock()
	s.c.mu.Lock()
	s.c.count++
	s.c.mu.Unlock()
}

// reached checks that positions grow. After a reconnect a source may start
// before its cursor: that much the engine drops.
func (c *checked) reached(p engine.Position) {
	if p == "" {
		c.t.Error("a transaction has no position")
		return
	}
	if c.last != "" && c.ComparePositions(p, c.last) <= 0 {
		c.t.Errorf("a transaction at %q comes after one at %q", p, c.last)
	}
	c.last = p
	c.seen = append(c.seen, p)
}

// Baseline checks a baseline.
func (s *sink) Baseline(ctx context.Context, spec engine.BaselineSpec) (engine.BaselineWriter, error) {
	s.enter("Baseline")
	c := s.c
	c.mu.Lock()
	if len(spec.Tables) == 0 {
		c.t.Error("a baseline of no tables")
	}
	if spec.Log.IsZero() != c.info.Mints {
		c.t.Errorf("a baseline of log %q from a source that mints: %v", spec.Log, c.info.Mints)
	}
	c.announced(spec.Schemas...)
	c.mu.Unlock()
	w, err := s.Sink.Baseline(ctx, spec)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.open++
	s.mu.Unlock()
	return &writer{BaselineWriter: w, s: s, spec: spec}, nil
}

// writer checks the rows of a baseline.
type writer struct {
	engine.BaselineWriter
	s    *sink
	spec engine.BaselineSpec
	once sync.Once
}

func (w *writer) close() {
	w.once.Do(func() {
		w.s.mu.Lock()
		w.s.open--
		w.s.mu.Unlock()
	})
}

// Rows checks rows.
func (w *writer) Rows(table engine.TableName, rs []engine.Record) error {
	w.s.enter("Rows")
	c := w.s.c
	if !slices.Contains(w.spec.Tables, table) {
		c.t.Errorf("rows of %s, which is not in the baseline", table)
	}
	for i := range rs {
		r := &rs[i]
		if w.spec.Log.IsZero() && r.Stamp != (engine.Stamp{}) {
			c.t.Errorf("a source that mints has stamped a row: %s", r.Stamp)
		}
		c.row(r.Schema, r.Key, r.Row, r.Deleted, false)
	}
	return w.BaselineWriter.Rows(table, rs)
}

// Commit ends the baseline.
func (w *writer) Commit(ctx context.Context) error {
	w.s.enter("Commit")
	defer w.close()
	c := w.s.c
	err := w.BaselineWriter.Commit(ctx)
	if err == nil && w.spec.At != "" {
		c.mu.Lock()
		c.seen = append(c.seen, w.spec.At)
		c.mu.Unlock()
	}
	return err
}

// Abort ends the baseline.
func (w *writer) Abort() {
	w.close()
	w.BaselineWriter.Abort()
}

// row checks a row and its key.
func (c *checked) row(sc *engine.Schema, key []byte, row engine.Row, deleted, partial bool) {
	switch {
	case sc == nil:
		c.t.Error("a row without a schema")
		return
	case len(key) == 0:
		c.t.Errorf("a row of %s without a key", sc.Table)
		return
	case deleted:
		return
	}
	unchanged, err := row.Check(sc)
	if err != nil {
		c.t.Errorf("a row of %s: %v", sc.Table, err)
		return
	}
	if unchanged != partial {
		c.t.Errorf("a row of %s is marked partial: %v, and has unchanged columns: %v", sc.Table, partial, unchanged)
	}
	if want, err := engine.AppendKey(nil, sc, row); err != nil || !bytes.Equal(want, key) {
		c.t.Errorf("a row of %s has the key %q, its columns say %q (%v)", sc.Table, key, want, err)
	}
}

// Apply checks transactions that the engine mints.
func (s *sink) Apply(ctx context.Context, txs []engine.Transaction) error {
	s.enter("Apply")
	c := s.c
	c.mu.Lock()
	if !c.info.Mints {
		c.t.Error("Apply from a source that does not mint")
	}
	for i := range txs {
		t := &txs[i]
		c.reached(t.Position)
		c.announced(t.Schemas...)
		if fn := t.Make; fn != nil {
			t.Make = func(t *engine.Transaction, state engine.Rows) error {
				err := fn(t, state)
				c.mu.Lock()
				defer c.mu.Unlock()
				c.changes(t)
				return err
			}
			continue
		}
		c.changes(t)
	}
	c.mu.Unlock()
	return s.Sink.Apply(ctx, txs)
}

// changes checks those of a transaction. Callers hold c.mu.
func (c *checked) changes(t *engine.Transaction) {
	for j := range t.Changes {
		ch := &t.Changes[j]
		if ch.Schema == nil || !c.schemas[shape{ch.Schema.ID, ch.Schema.Fingerprint()}] {
			c.t.Errorf("transaction at %s: change %d has a schema that was not announced", t.Position, j)
			continue
		}
		if ch.Op != engine.OpTruncate {
			c.row(ch.Schema, ch.Key, ch.Row, ch.Op == engine.OpDelete, ch.Partial)
		}
	}
}

// ApplyBlocks checks blocks of a carried log.
func (s *sink) ApplyBlocks(ctx context.Context, key engine.CursorKey, blocks []*engine.Block) error {
	s.enter("ApplyBlocks")
	c := s.c
	c.mu.Lock()
	if c.info.Mints {
		c.t.Error("ApplyBlocks from a source that mints")
	}
	for _, b := range blocks {
		open := c.part[key]
		switch {
		case b.Part > 0 && (open == nil || open.Part+1 != b.Part || open.Position != b.Position):
			c.t.Errorf("log %s: part %d of %s comes without the part before it", key.Log, b.Part, b.Position)
		case b.Part == 0 && open != nil:
			c.t.Errorf("log %s: the last part of %s is missing", key.Log, open.Position)
		}
		if c.part[key] = b; b.Last {
			c.part[key] = nil
			c.seen = append(c.seen, b.Position)
		}
	}
	c.mu.Unlock()
	return s.Sink.ApplyBlocks(ctx, key, blocks)
}

// Progress checks a stretch with nothing in it.
func (s *sink) Progress(ctx context.Context, key engine.CursorKey, prev, through engine.Position, t engine.Time) error {
	s.mu.Lock()
	if s.ended {
		s.c.t.Error("Progress after Baseline or Stream had returned")
	}
	s.mu.Unlock()
	if s.c.ComparePositions(prev, through) > 0 {
		s.c.t.Errorf("log %s: progress from %q back to %q", key.Log, prev, through)
	}
	return s.Sink.Progress(ctx, key, prev, through, t)
}
