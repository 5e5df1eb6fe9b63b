package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Config configures a Source. Tables is required; zero fields have defaults.
type Config struct {
	Tables []Table
	// MaxKeys and KeyRetention bound the idempotency keys that are remembered.
	MaxKeys      int
	KeyRetention time.Duration
	// MaxPending and MaxPendingBytes bound the batches that wait to be committed.
	MaxPending      int
	MaxPendingBytes int64
	// Timeout is how long a batch waits for its commit, if its writer does not say less.
	Timeout time.Duration
	// Stalled says why the store's commits wait, for who waits for one; may be nil.
	Stalled func() error
	// Full says whom or what the node waits for before it takes more, where its log is
	// full; empty if it is not. May be nil.
	Full func() string
	// Foreign reports whether a row belongs to another node, and to which, if to any: a
	// write to it is refused. May be nil.
	Foreign func(s *engine.Schema, key []byte) (owner string, foreign bool)
}

// The defaults of Config.
const (
	DefaultMaxKeys         = 65_536
	DefaultKeyRetention    = 24 * time.Hour
	DefaultMaxPending      = 4096
	DefaultMaxPendingBytes = 64 << 20
	DefaultTimeout         = 30 * time.Second
)

// history is the history behind the log: it is the node's own.
const history = "ingest"

// Source is an engine.SyncSource that is written to by Write.
type Source struct {
	cfg     Config
	tables  map[engine.TableName]*table
	ordered []*table
	metrics *metrics

	mu      sync.Mutex
	queue   []*request
	bytes   int64         // of the queue and of what is being committed
	pending int           // the same, counted
	wake    chan struct{} // closed when there is something for Stream to look at
	paused  bool
	drained bool
	live    bool // Stream runs
	keys    keys
	acked   map[engine.LogID]engine.Position

	// Of the goroutine that calls Init, Baseline and Stream.
	last     uint64 // position given out
	memory   []byte // catalog as the store has it
	catalog  catalog
	added    []engine.TableName // tables that the log does not have yet
	retained []engine.TableName // all tables that the log has
}

// New returns a Source.
func New(cfg Config) (*Source, error) {
	cfg.MaxKeys = cmp.Or(cfg.MaxKeys, DefaultMaxKeys)
	cfg.KeyRetention = cmp.Or(cfg.KeyRetention, DefaultKeyRetention)
	cfg.MaxPending = cmp.Or(cfg.MaxPending, DefaultMaxPending)
	cfg.MaxPendingBytes = cmp.Or(cfg.MaxPendingBytes, DefaultMaxPendingBytes)
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	s := &Source{
		cfg: cfg, tables: map[engine.TableName]*table{}, metrics: newMetrics(), wake: make(chan struct{}),
		keys: keys{max: cfg.MaxKeys, retain: cfg.KeyRetention}, acked: map[engine.LogID]engine.Position{},
	}
	var errs []error
	for _, d := range cfg.Tables {
		t, wrong := newTable(d)
		for _, err := range wrong {
			errs = append(errs, fmt.Errorf("table %s: %w", d.Name, err))
		}
		if s.tables[d.Name] != nil {
			errs = append(errs, fmt.Errorf("table %s is declared twice", d.Name))
		}
		s.tables[d.Name] = t
		s.ordered = append(s.ordered, t)
	}
	if len(cfg.Tables) == 0 {
		errs = append(errs, errors.New("an ingest source needs a table: declare one"))
	}
	return s, errors.Join(errs...)
}

// Init fits the tables to what the store holds of them.
func (s *Source) Init(_ context.Context, env engine.Env) (engine.Info, error) {
	wrong := func(err error) (engine.Info, error) {
		return engine.Info{}, &engine.SourceError{Reason: engine.ReasonTableChanged, Err: err, Permanent: true}
	}
	known, err := readCatalog(env.Memory)
	if err != nil {
		return wrong(err)
	}
	if s.catalog, s.added, err = known.reconcile(s.ordered); err != nil {
		return wrong(err)
	}
	s.memory = env.Memory
	s.retained = nil
	for _, t := range s.catalog {
		s.retained = append(s.retained, engine.TableName{Schema: t.Schema, Name: t.Name})
	}
	info := engine.Info{Mints: true, Order: "number", History: history}
	for _, t := range s.ordered {
		t.schema, _ = env.Schemas.Define(t.shape())
		info.Tables = append(info.Tables, t.schema)
	}
	s.last = max(s.last, number(env.Cursor))
	s.mu.Lock()
	defer s.mu.Unlock()
	if env.Facts != nil {
		if err := s.keys.restore(env.Facts); err != nil {
			return wrong(err)
		}
	}
	return info, nil
}

// Baseline begins a log: with nothing, or with the rows that stand.
func (s *Source) Baseline(ctx context.Context, sink engine.Sink) error {
	w, err := sink.Baseline(ctx, engine.BaselineSpec{
		Schemas: s.schemas(), Tables: s.retained, At: position(s.last), Major: s.last, Memory: s.catalog.bytes(), Standing: true,
	})
	if err != nil {
		return err
	}
	if err := w.Commit(ctx); err != nil {
		return err
	}
	s.memory, s.added = s.catalog.bytes(), nil
	return nil
}

func (s *Source) schemas() []*engine.Schema {
	all := make([]*engine.Schema, len(s.ordered))
	for i, t := range s.ordered {
		all[i] = t.schema
	}
	return all
}

// evolve tells the log of tables and columns that have come or gone.
func (s *Source) evolve(ctx context.Context, sink engine.Sink) error {
	next := s.catalog.bytes()
	if slices.Equal(next, s.memory) {
		return nil
	}
	s.last++
	t := engine.Transaction{Position: position(s.last), Major: s.last, Commit: time.Now(), Schemas: s.schemas(), Memory: next}
	if len(s.added) > 0 {
		var schemas []*engine.Schema
		for _, name := range s.added {
			schemas = append(schemas, s.tables[name].schema)
		}
		w, err := sink.Baseline(ctx, engine.BaselineSpec{
			Partial: true, Schemas: schemas, Tables: s.added, At: position(s.last), Major: s.last, Reason: "tables were added to the configuration",
		})
		if err != nil {
			return err
		}
		defer w.Abort()
		t.Tables = []engine.BaselineWriter{w}
	}
	if err := sink.Apply(ctx, []engine.Transaction{t}); err != nil {
		return err
	}
	s.memory, s.added = next, nil
	return nil
}

// Stream commits what is written, until ctx ends.
func (s *Source) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	for _, c := range from {
		s.last = max(s.last, number(c.Position))
	}
	if err := s.evolve(ctx, sink); err != nil {
		return err
	}
	if s.last > 0 { // it has got as far as the log has
		sink.Head(engine.LogID{}, engine.Head{Position: position(s.last), Time: engine.TimeOf(time.Now())})
	}
	s.setLive(true)
	defer s.setLive(false)
	for {
		g, more := s.take()
		if len(g) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-more:
			}
			continue
		}
		if err := s.commit(ctx, sink, g); err != nil {
			return err
		}
	}
}

// commit commits a group of batches together, and answers each.
func (s *Source) commit(ctx context.Context, sink engine.Sink, g []*request) error {
	now := time.Now()
	txs := make([]engine.Transaction, len(g))
	var added []*request
	forgotten := 0
	for i, r := range g {
		s.last++
		txs[i] = engine.Transaction{Position: position(s.last), Major: s.last, Commit: now}
		txs[i].Make = func(t *engine.Transaction, state engine.Rows) error {
			if err := r.make(t, state, s.cfg.Foreign); err != nil {
				return err
			}
			if r.fact == "" {
				return nil
			}
			for _, f := range s.keys.due(t.Time, forgotten, len(added)+1) { // only this goroutine alters keys
				t.Remember = append(t.Remember, engine.Fact{Key: f})
				forgotten++
			}
			t.Remember = append(t.Remember, engine.Fact{Key: r.fact, Value: r.result.save()})
			added = append(added, r)
			return nil
		}
	}
	err := sink.Apply(ctx, txs)
	if err == nil {
		if last := s.lastOf(g); last != "" {
			sink.Head(engine.LogID{}, engine.Head{Position: last, Time: engine.TimeOf(now)})
		}
		s.metrics.commits.Inc()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.keys.committed(added, forgotten)
	}
	s.settle(g, err)
	return err
}

// lastOf returns the position of the last batch of a group that was applied.
func (s *Source) lastOf(g []*request) engine.Position {
	for _, r := range slices.Backward(g) {
		if r.result.Position != "" {
			return r.result.Position
		}
	}
	return ""
}

func (s *Source) setLive(live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = live
}

// Ack notes how far the log has been committed.
func (s *Source) Ack(c engine.Cursor, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if engine.CompareNumber(c.Position, s.acked[c.Log]) > 0 {
		s.acked = map[engine.LogID]engine.Position{c.Log: c.Position}
	}
}

// LastAckedPosition returns how far a log has been committed.
func (s *Source) LastAckedPosition(log engine.LogID) engine.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked[log]
}

// SupportsResume reports that a log goes on from its cursor: there is nowhere
// else to go on from.
func (s *Source) SupportsResume() bool { return true }

// OrderingGuarantee returns TotalOrder.
func (s *Source) OrderingGuarantee() engine.Ordering { return engine.TotalOrder }

// ComparePositions orders positions as numbers.
func (s *Source) ComparePositions(a, b engine.Position) int { return engine.CompareNumber(a, b) }

// PositionToString returns the number, without leading zeros.
func (s *Source) PositionToString(p engine.Position) string { return strconv.FormatUint(number(p), 10) }

// PositionFromString reads a number.
func (s *Source) PositionFromString(text string) (engine.Position, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return "", fmt.Errorf("position %q is not one of an ingest source: want a decimal number", text)
	}
	return position(n), nil
}

// Pause holds back what is written: it waits, within the bounds of the queue.
func (s *Source) Pause() { s.pause(true) }

// Resume goes on with what waits.
func (s *Source) Resume() { s.pause(false) }

func (s *Source) pause(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = on
	s.rouse()
}

// Drain refuses what comes from now on: the node is about to end. What waits is
// committed.
func (s *Source) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = true
}

// position writes a number so that every comparator orders it as a number: a
// reader need not be told which it is, and one source can carry logs of any kind.
func position(n uint64) engine.Position { return engine.Position(fmt.Sprintf("%016d", n)) }

func number(p engine.Position) uint64 {
	n, _ := strconv.ParseUint(string(p), 10, 64)
	return n
}
