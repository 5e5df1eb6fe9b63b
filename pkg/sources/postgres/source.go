package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// Source reads one PostgreSQL database. It implements engine.SyncSource.
type Source struct {
	cfg         Config
	env         engine.Env
	publication string
	slot        string
	id          identity
	scratch     *spill.Dir

	progress progress

	// acked is the last position acknowledged, durably if the slot is permanent.
	acked atomic.Uint64
	// walsender is the server's process that this source streams from.
	walsender atomic.Uint32
	gate      gate

	mu      sync.Mutex
	log     engine.LogID // as the engine names it when it acknowledges
	session *session     // idle, between Baseline and Stream
	status  SlotStatus   // as the server last said
	address string       // see pin
	poke    func()       // tells the stream's reader of an acknowledgement
	hurry   func()       // makes the stream's reader ask how far the server is
	// known are the tables as the last baseline, and the stream since, had them,
	// by OID. Used by Init, Baseline and Stream only, which do not run at once.
	known map[uint32]*engine.Schema
	// wentBack is where the server was when it was seen behind the cursor; for Init.
	wentBack engine.LSN
	// held are the tables that something is wrong with, as Init or Baseline has seen
	// it, and what. Used as known is.
	held map[engine.TableName]error

	tables *tables
}

var _ engine.SyncSource = (*Source)(nil)

// New returns a source for a configuration, or all that is wrong with it.
func New(cfg Config) (*Source, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL source: %w", err)
	}
	s := &Source{cfg: cfg, known: map[uint32]*engine.Schema{}}
	s.tables = newTables(s)
	return s, nil
}

// Init checks what replication needs at the server, makes the publication if it
// is not there, and discovers the tables.
func (s *Source) Init(ctx context.Context, env engine.Env) (engine.Info, error) {
	if env.Report == nil {
		env.Report = func(string, error) {}
	}
	if env.Logger == nil {
		env.Logger = slog.New(slog.DiscardHandler)
	}
	s.env = env
	s.publication, s.slot = s.cfg.Publication, s.cfg.Slot
	if s.publication == "" {
		s.publication = objectName(env.Source)
	}
	if s.slot == "" {
		s.slot = objectName(env.NodeID, env.Source)
	}
	s.scratch = spill.NewDir(env.Scratch)
	s.unpin()
	s.takeSession().end()
	s.env.Report(engine.ReasonConnecting, nil)
	tables, id, err := s.prepare(ctx)
	if err != nil {
		return engine.Info{}, err
	}
	s.id = id
	history, continues, kept, err := s.history(ctx, id)
	if err != nil {
		return engine.Info{}, s.asSourceError(err)
	}
	info := engine.Info{Mints: true, Order: "lsn", History: history, Continues: continues, RolledBackTo: uint64(kept)}
	for _, t := range tables {
		t.schema, _ = env.Schemas.Define(t.schema)
		info.Tables = append(info.Tables, t.schema)
	}
	if env.Cursor != "" && len(s.known) == 0 {
		// The node was started again, over a state that has them.
		if err := s.tables.restore(env.Memory, env.Schemas, s.names()); err != nil {
			return engine.Info{}, err
		}
		s.known = s.tables.known()
	}
	env.Logger.Info("PostgreSQL is ready to replicate", "server", s.server(), "version", id.version, "history", history,
		"publication", s.publication, "slot", s.slot, "tables", len(tables))
	return info, nil
}

// Ack implements engine.SyncSource. With a permanent slot only durable
// acknowledgements count: what is confirmed to the slot is never sent again.
func (s *Source) Ack(c engine.Cursor, durable bool) {
	lsn, err := engine.ParseLSN(c.Position)
	if err != nil || (s.cfg.Permanent && !durable) {
		return
	}
	for {
		old := s.acked.Load()
		if uint64(lsn) <= old {
			return
		}
		if s.acked.CompareAndSwap(old, uint64(lsn)) {
			break
		}
	}
	s.mu.Lock()
	s.log = c.Log
	poke := s.poke
	s.mu.Unlock()
	if poke != nil {
		poke()
	}
}

// LastAckedPosition implements engine.SyncSource. The source has one log, the
// one that was last acknowledged.
func (s *Source) LastAckedPosition(log engine.LogID) engine.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	lsn := s.acked.Load()
	if lsn == 0 || log != s.log {
		return ""
	}
	return engine.LSN(lsn).Position()
}

// SupportsResume implements engine.SyncSource: a temporary slot does not
// outlive its connection.
func (s *Source) SupportsResume() bool { return s.cfg.Permanent }

// OrderingGuarantee implements engine.SyncSource: transactions come as committed.
func (s *Source) OrderingGuarantee() engine.Ordering { return engine.TotalOrder }

// ComparePositions implements engine.SyncSource.
func (s *Source) ComparePositions(a, b engine.Position) int { return engine.CompareLSN(a, b) }

// PositionToString implements engine.SyncSource.
func (s *Source) PositionToString(p engine.Position) string { return string(p) }

// PositionFromString implements engine.SyncSource.
func (s *Source) PositionFromString(text string) (engine.Position, error) {
	lsn, err := engine.ParseLSN(engine.Position(text))
	if err != nil {
		return "", err
	}
	return lsn.Position(), nil
}

// Pause implements engine.SyncSource. The connection is kept and PostgreSQL
// keeps the WAL: a long pause costs disk there.
func (s *Source) Pause() {
	if s.gate.close() && s.env.Report != nil {
		s.env.Report(engine.ReasonPaused, nil)
	}
}

// Resume implements engine.SyncSource.
func (s *Source) Resume() {
	if s.gate.open() && s.env.Report != nil {
		s.env.Report(engine.ReasonStreaming, nil)
	}
}

// Close ends an idle session between Baseline and Stream.
func (s *Source) Close() { s.takeSession().end() }

// names returns the tables that are configured.
func (s *Source) names() []engine.TableName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Tables
}

// nudge makes the stream, if there is one, ask how far the server is.
func (s *Source) nudge() {
	s.mu.Lock()
	hurry := s.hurry
	s.mu.Unlock()
	if hurry != nil {
		hurry()
	}
}

// takeSession returns the idle session, or nil. It is the caller's then.
func (s *Source) takeSession() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.session
	s.session = nil
	return sess
}

func (s *session) end() {
	if s != nil {
		s.close()
	}
}

// gate holds up delivery while it is closed. The zero gate is open.
type gate struct {
	mu   sync.Mutex
	wait chan struct{} // closed by open; nil while open
}

func (g *gate) close() (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait != nil {
		return false
	}
	g.wait = make(chan struct{})
	return true
}

func (g *gate) open() (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait == nil {
		return false
	}
	close(g.wait)
	g.wait = nil
	return true
}

// pass waits until the gate is open.
func (g *gate) pass(ctx context.Context) error {
	for {
		g.mu.Lock()
		wait := g.wait
		g.mu.Unlock()
		if wait == nil {
			return ctx.Err()
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
