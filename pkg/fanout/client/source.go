package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
)

// Source makes a Reader an engine.SyncSource: the logs of an upstream node are
// carried under their own identity and positions.
type Source struct {
	*Reader
	ordering engine.Ordering
}

// NewSource returns a Source. An empty ordering is engine.TotalOrder.
func NewSource(cfg Config, ordering engine.Ordering) (*Source, error) {
	if ordering == "" {
		ordering = engine.TotalOrder
	}
	r, err := NewReader(cfg)
	if err != nil {
		return nil, err
	}
	return &Source{r, ordering}, nil
}

// Init connects to the first upstream that can serve.
func (s *Source) Init(ctx context.Context, env engine.Env) (engine.Info, error) {
	tables, err := s.Open(ctx, env.Report)
	return engine.Info{Tables: tables}, err
}

// Scope returns what is read; nil for everything.
func (s *Source) Scope() *scope.Scope { return s.cfg.Scope }

// SupportsResume is true: any upstream that carries a log resumes any cursor of it.
func (s *Source) SupportsResume() bool { return true }

// OrderingGuarantee returns what was configured.
func (s *Source) OrderingGuarantee() engine.Ordering { return s.ordering }

// ComparePositions orders positions as configured.
func (s *Source) ComparePositions(a, b engine.Position) int { return s.cfg.Compare(a, b) }

// PositionToString returns a position as it is: positions are strings already.
func (s *Source) PositionToString(p engine.Position) string { return string(p) }

// PositionFromString takes any string that is a position at all; under
// PostgreSQL LSN order only an LSN.
func (s *Source) PositionFromString(text string) (engine.Position, error) {
	if text == "" {
		return "", errors.New("an empty position is before everything, and names no place in a log")
	}
	if s.lsn {
		if _, err := engine.ParseLSN(engine.Position(text)); err != nil {
			return "", fmt.Errorf("source: %w", err)
		}
	}
	return engine.Position(text), nil
}
