package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// source runs one SyncSource and is the Sink it delivers to.
type source struct {
	engine *Engine
	name   string
	sync   SyncSource
	policy Policy

	mu       sync.Mutex
	state    SourceState
	info     Info
	own      LogID                // the log minted here; zero if the source carries
	at       Position             // how far it had got in an earlier life: see Known
	given    uint32               // schema IDs of it that an earlier life has given out: see Known
	cancel   func(error)          // ends the current Stream
	logged   string               // the reason that was logged last
	ready    bool                 // its logs have been baselined, in this life of the node or before
	newEpoch bool                 // a new epoch must be minted before the next baseline
	why      string               // it is due, where that was known before the source ran
	rollback *rollback            // the next baseline is entered by; nil if by none
	known    Time                 // see opens
	unread   bool                 // at the start nobody was known to have read the log
	read     bool                 // a peer has said that it holds the log's epoch
	lost     bool                 // peers hold more of its log: what is newer than known is written again
	pending  map[CursorKey]*parts // of transactions that are not complete
}

// SourceState is what a source says of itself, for status.
type SourceState struct {
	Name        string
	Reason      string // one of the Reason constants
	Message     string
	Since       time.Time // of Reason
	Baselines   int
	Rebaselines int // baselines after the first
	// TableBaselines counts tables that were baselined while the others went on.
	TableBaselines int
	LastCause      string // of the last re-baseline
	// HistoryLost counts how often peers held more of the source's log than the node:
	// it has taken a new epoch each time.
	HistoryLost int
	// LastBaseline is how long the last one took, from its first row to its commit.
	LastBaseline time.Duration
}

// retry bounds of a failing source.
const (
	retryFirst     = 200 * time.Millisecond
	retryMax       = 15 * time.Second
	retryPermanent = 30 * time.Second
)

var errNewEpoch = errors.New("a new epoch is needed")

func (s *source) run(ctx context.Context) error {
	delay := retryFirst
	cause := s.wait(ctx) // of the next baseline
	baseline := false
	for {
		started := s.engine.now()
		err := s.attempt(ctx, &baseline, &cause)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.engine.now().Sub(started) > 2*retryMax {
			delay = retryFirst
		}
		var se *SourceError
		switch {
		case errors.Is(err, ErrReBaselineRequired), errors.Is(err, errNewEpoch):
			baseline, cause = true, err.Error()
			s.report(ReasonRebaselining, err)
		case errors.As(err, &se):
			s.report(se.Reason, err)
		case err != nil:
			s.report(ReasonDisconnected, err)
		}
		wait := delay/2 + rand.N(delay)
		if se != nil && se.Permanent {
			wait = retryPermanent
		}
		if err != nil {
			s.engine.log.Warn("source ended, trying again", "source", s.name, "error", err, "in", wait)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		delay = min(delay*2, retryMax)
	}
}

// attempt is one life of the source: Init, Baseline if needed, Stream.
func (s *source) attempt(ctx context.Context, baseline *bool, cause *string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	s.dropParts()
	defer s.dropParts()

	err := s.live(ctx, baseline, cause)
	if c := context.Cause(ctx); errors.Is(c, errNewEpoch) {
		return c
	}
	return err
}

func (s *source) live(ctx context.Context, baseline *bool, cause *string) error {
	from, err := s.open(ctx, baseline, cause)
	if err != nil {
		return err
	}
	return s.sync.Stream(ctx, from, s)
}

// open is what comes before Stream, which goes on from the cursors.
func (s *source) open(ctx context.Context, baseline *bool, cause *string) (Cursors, error) {
	e := s.engine
	info, err := s.sync.Init(ctx, Env{
		NodeID: e.id, Source: s.name, Schemas: s.knownSchemas(), Report: s.report, Logger: e.log.With("source", s.name),
		History: s.history(), Cursor: s.ownCursor(), Recalled: s.at, Memory: s.memory(), Facts: s.facts, Scratch: e.scratch.Path(),
	})
	if err != nil {
		return nil, err
	}
	if info.Mints { // of a carried log it is seen when it comes
		if err := e.conflicts.fits(info.Tables); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	sameHistory := s.info.History == info.History || info.Continues
	s.info = info
	s.mu.Unlock()
	if info.Mints {
		s.openLog(sameHistory, info.RolledBackTo)
		if err := s.saveHistory(ctx); err != nil {
			return nil, err
		}
	} else {
		s.restoreLogs()
	}
	cursors := s.cursors()
	if *baseline || len(cursors) == 0 || !s.sync.SupportsResume() {
		reason := ReasonBaselining
		if s.baselines() > 0 {
			reason = ReasonRebaselining
		}
		s.report(reason, nil)
		s.mu.Lock()
		s.state.LastCause = *cause
		s.mu.Unlock()
		if err := s.sync.Baseline(ctx, s); err != nil {
			return nil, err
		}
		*baseline, *cause = false, ""
		cursors = s.cursors()
	}
	s.mu.Lock()
	s.ready = true
	s.mu.Unlock()
	s.report(ReasonStreaming, nil)
	return cursors, nil
}

// openLog makes sure that the source has a log to mint in: the one it has while
// the history is proved to be the same, else a new epoch. rolledBackTo is as in Info.
func (s *source) openLog(sameHistory bool, rolledBackTo uint64) {
	e := s.engine
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens()
	if s.own.IsZero() || !sameHistory || s.newEpoch {
		if rolledBackTo > 0 && !s.own.IsZero() && s.at == "" { // else there is nothing of what was lost
			s.rollback = &rollback{s.own, rolledBackTo}
		}
		s.own = LogID{Origin(e.id, s.name), Epoch(e.clock.Next())}
		s.newEpoch = false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[s.own]; l != nil {
		l.history = s.info.History
		return
	}
	compare := Comparators[s.info.Order]
	if compare == nil {
		compare = s.sync.ComparePositions
	}
	e.sorted = nil
	e.logs[s.own] = &logState{compare: compare, path: []string{e.id}, source: s, history: s.info.History}
}

// renew makes a minting source take a new epoch; lost says that peers have more of
// its log, and held in which epoch.
func (s *source) renew(why string, lost bool, held Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own.IsZero() || s.newEpoch {
		return
	}
	if s.newEpoch = true; lost {
		s.loses(held)
		s.state.HistoryLost++
	}
	if s.cancel != nil {
		s.cancel(fmt.Errorf("%w: %s", errNewEpoch, why))
	}
}

// epoch returns the epoch minted last, or what the one that is due will be above.
func (s *source) epoch() Epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newEpoch {
		return Epoch(s.engine.clock.Last())
	}
	return s.own.Epoch
}

// knownSchemas returns the schemas of the log that the source will mint in.
func (s *source) knownSchemas() *SchemaSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own.IsZero() || s.newEpoch {
		return NewSchemaSet()
	}
	v := s.engine.store.View()
	defer v.Close()
	set := NewSchemaSet(v.Schemas(s.own)...)
	set.last = max(set.last, s.given)
	return set
}

// cursors returns the cursors of the logs that this source delivers; of those
// it has minted, the one it mints now.
func (s *source) cursors() Cursors {
	v := s.engine.store.View()
	defer v.Close()
	all := v.Cursors()
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	mine := Cursors{}
	for k, c := range all {
		if l := s.engine.logs[k.Log]; l != nil && l.source == s && (own.IsZero() || own == k.Log) {
			mine[k] = c
		}
	}
	return mine
}

// history returns the history behind the log that the source mints.
func (s *source) history() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.History
}

// memory returns what the source wanted to remember.
func (s *source) memory() []byte {
	v := s.engine.store.View()
	defer v.Close()
	return slices.Clone(v.Meta(metaMemory + s.name))
}

// facts gives what the source wanted to remember one by one, ordered by key.
func (s *source) facts(yield func(string, []byte) bool) {
	v := s.engine.store.View()
	defer v.Close()
	prefix := metaFact + s.name + "/"
	v.ScanMeta(prefix, func(key string, value []byte) bool {
		return yield(strings.TrimPrefix(key, prefix), value)
	})
}

// ownCursor returns the cursor in the log that the source mints.
func (s *source) ownCursor() Position {
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	v := s.engine.store.View()
	defer v.Close()
	c, _ := v.Cursor(CursorKey{Log: own})
	return c.Position
}

func (s *source) baselines() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Baselines
}

// report takes the state of the source for status. A change of it wakes
// whoever waits on Changed.
func (s *source) report(reason string, err error) {
	msg := ""
	if err != nil {
		msg = err.Error()
	}
	if reason != ReasonStreaming && reason != ReasonPaused {
		s.unheard()
	}
	s.mu.Lock()
	if reason == ReasonConnecting && err == nil && s.state.Message != "" {
		// It tries again: what went wrong stands until it gets further.
		s.mu.Unlock()
		return
	}
	moved := s.state.Reason != reason || s.state.Message != msg
	if s.state.Reason != reason {
		s.state.Reason, s.state.Since = reason, s.engine.now()
	}
	turned := reason != s.logged
	s.logged = reason
	s.state.Message = msg
	s.mu.Unlock()
	switch {
	case !turned:
	case err != nil:
		s.engine.log.Warn("source state", "source", s.name, "reason", reason, "error", err)
	default:
		s.engine.log.Info("source state", "source", s.name, "reason", reason)
	}
	if moved {
		s.engine.mu.Lock()
		s.engine.notify()
		s.engine.mu.Unlock()
	}
}
