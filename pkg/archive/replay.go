package archive

import (
	"context"
	"errors"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Replay is a chain of diffs, to be passed on in order.
type Replay struct {
	r    *Reader
	plan *Plan
	from Vector
}

// Replay returns the diffs that lead from a vector to the head. It fails with
// ErrNotCovered if none do.
func (r *Reader) Replay(ctx context.Context, from Vector) (*Replay, error) {
	m, err := r.Manifest(ctx)
	if err != nil {
		return nil, err
	}
	p := m.planDiffs(from, AsOf{}).weigh(r.cfg.Formats)
	if p.Mode == PlanNone {
		return nil, m.notCovered(p)
	}
	return &Replay{r: r, plan: p, from: from}, nil
}

// Plan returns the artifacts it is made of.
func (p *Replay) Plan() *Plan { return p.plan }

// To returns where it ends: the archive's head when it was made.
func (p *Replay) To() Vector { return p.plan.To }

// Step is a diff that is being replayed. It has been verified in whole.
type Step struct {
	From, To Vector
	History  History
	// Schemas are those that come before its entries; an entry may bring another one.
	Schemas Schemas
}

// Each calls begin before each diff, then entry for each change of it. Of a net diff
// the truncates come first and then the records, in order of their keys; together
// they are one step from From to To. Of a full one the changes come in order,
// transaction by transaction, without those at or before the vector that the replay
// began at. It may be called again after an error, and then starts over; artifacts
// that have been pruned meanwhile give ErrNotCovered.
func (p *Replay) Each(ctx context.Context, begin func(*Step) error, entry func(*Entry) error) error {
	for i := range p.plan.Diffs {
		if err := p.diff(ctx, &p.plan.Diffs[i], begin, entry); err != nil {
			return err
		}
	}
	return nil
}

func (p *Replay) diff(ctx context.Context, a *Artifact, begin func(*Step) error, entry func(*Entry) error) error {
	got, err := p.r.fetch(ctx, p.plan.m, a)
	if errors.Is(err, errGone) {
		return &NotCoveredError{Table: p.plan.m.Table, Reason: fmt.Sprintf("a diff has gone while it was replayed: %v", err)}
	}
	if err != nil {
		return err
	}
	defer got.close()
	step := Step{From: a.From, To: a.To, History: a.History, Schemas: Schemas{}}
	err = got.schemas(func(log engine.LogID, s *engine.Schema) error {
		step.Schemas[log] = append(step.Schemas[log], s)
		return nil
	})
	if err == nil {
		err = begin(&step)
	}
	if err != nil {
		return err
	}
	return got.decode(visitor{entry: func(e *Entry) error {
		if a.History == Full {
			if c, ok := p.from.Cursor(e.Log); ok && c.Compare(e.Position) >= 0 {
				return nil
			}
		} else {
			c, _ := a.To.Cursor(e.Log)
			e.Position, e.Time, e.Major = c.Position, c.Time, 0
		}
		return entry(e)
	}})
}
