package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	cancel   func(error)          // ends the current Stream
	newEpoch bool                 // a new epoch must be minted before the next baseline
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
	cause := "" // of the next baseline
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
	e := s.engine
	info, err := s.sync.Init(ctx, Env{
		NodeID: e.id, Source: s.name, Schemas: s.knownSchemas(), Report: s.report, Logger: e.log.With("source", s.name),
		History: s.history(), Cursor: s.ownCursor(), Memory: s.memory(), Scratch: e.scratch.Path(),
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	sameHistory := s.info.History == info.History || info.Continues
	s.info = info
	s.mu.Unlock()
	if info.Mints {
		s.openLog(sameHistory)
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
			return err
		}
		*baseline, *cause = false, ""
		cursors = s.cursors()
	}
	s.report(ReasonStreaming, nil)
	return s.sync.Stream(ctx, cursors, s)
}

// openLog makes sure that the source has a log to mint in: the one it has while
// the history is proved to be the same, else a new epoch.
func (s *source) openLog(sameHistory bool) {
	e := s.engine
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.own.IsZero() && sameHistory && !s.newEpoch {
		return
	}
	s.own = LogID{Origin(e.id, s.name), Epoch(e.clock.Next())}
	s.newEpoch = false
	e.mu.Lock()
	defer e.mu.Unlock()
	e.logs[s.own] = &logState{compare: s.sync.ComparePositions, path: []string{e.id}, source: s}
}

// renew makes a minting source take a new epoch.
func (s *source) renew(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own.IsZero() || s.newEpoch {
		return
	}
	s.newEpoch = true
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
	return NewSchemaSet(v.Schemas(s.own)...)
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
	s.mu.Lock()
	moved := s.state.Reason != reason || s.state.Message != msg
	if s.state.Reason != reason {
		s.state.Reason, s.state.Since = reason, s.engine.now()
	}
	s.state.Message = msg
	s.mu.Unlock()
	if moved {
		s.engine.mu.Lock()
		s.engine.notify()
		s.engine.mu.Unlock()
	}
}
