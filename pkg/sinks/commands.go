package sinks

import (
	"context"
	"errors"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// command is something asked of a sink from outside; its loop does it between
// two batches.
type command struct {
	letter string
	replay bool // or discard
	done   chan result
}

type result struct {
	outcome Outcome
	err     error
}

func (c command) answer(err error) { c.done <- result{err: err} }

// Outcome is what became of a dead letter.
type Outcome string

// The outcomes.
const (
	// Applied: the target has taken it.
	Applied Outcome = "Applied"
	// Overtaken: a later write of the row made it moot; it was not applied.
	Overtaken Outcome = "Overtaken"
	// Discarded: it was forgotten.
	Discarded Outcome = "Discarded"
)

// Letters returns the dead letters, oldest first.
func (s *Sink) Letters() []Letter { return s.letters.list() }

// Values returns the row of a letter by column, in text form, nil for null; or
// nil where its schema is not known any more or it is a delete.
func (s *Sink) Values(l *Letter) map[string]*string {
	v := s.host.View()
	defer v.Close()
	schema := v.Schema(l.Stamp.Log(), l.SchemaID)
	if schema == nil || len(l.Row) == 0 {
		return nil
	}
	out := map[string]*string{}
	for i, c := range engine.Row(l.Row).Columns() {
		if i < len(schema.Columns) && c.State != engine.Absent {
			out[schema.Columns[i].Name] = nil
			if c.State == engine.Present {
				text := string(c.Value)
				out[schema.Columns[i].Name] = &text
			}
		}
	}
	return out
}

// Replay gives a dead letter to the target again. If the target takes it, or a
// later write has made it moot, it is forgotten.
func (s *Sink) Replay(ctx context.Context, id string) (Outcome, error) {
	return s.ask(ctx, command{letter: id, replay: true})
}

// Discard forgets a dead letter: the target's row stays as it is until it is
// written again.
func (s *Sink) Discard(ctx context.Context, id string) (Outcome, error) {
	return s.ask(ctx, command{letter: id})
}

func (s *Sink) ask(ctx context.Context, c command) (Outcome, error) {
	c.done = make(chan result, 1)
	select {
	case s.commands <- c:
	case <-ctx.Done():
		return "", fmt.Errorf("sink %s is busy with its target: %w", s.cfg.Name, ctx.Err())
	}
	select {
	case r := <-c.done:
		return r.outcome, r.err
	case <-ctx.Done():
		return "", fmt.Errorf("sink %s has not answered: %w; it may still do it", s.cfg.Name, ctx.Err())
	}
}

// do carries out a command. What it returns ends the session.
func (s *Sink) do(ctx context.Context, c command) error {
	l, ok := s.letters.get(c.letter)
	if !ok {
		c.answer(fmt.Errorf("sink %s: %q: %w", s.cfg.Name, c.letter, ErrNoLetter))
		return nil
	}
	outcome, err := Discarded, error(nil)
	if c.replay {
		outcome, err = s.replay(ctx, &l)
	}
	if err == nil {
		err = s.letters.drop(ctx, map[letterKey]bool{l.letterKey(): true})
	}
	var rej *Rejection
	if errors.As(err, &rej) {
		ferr := s.letters.failed(ctx, l.letterKey(), rej.Err, s.now())
		c.done <- result{err: err}
		return ferr // the target is well
	}
	c.done <- result{outcome, err}
	return err
}

func (s *Sink) replay(ctx context.Context, l *Letter) (Outcome, error) {
	v := s.host.View()
	defer v.Close()
	k := l.letterKey()
	have, ok, err := v.Get(k.table, l.Key)
	if err != nil {
		return "", err
	}
	if ok && have.Stamp.Compare(l.Stamp) > 0 {
		return Overtaken, nil // it has been delivered, or is about to be
	}
	schema := v.Schema(l.Stamp.Log(), l.SchemaID)
	if schema == nil {
		return "", &Rejection{Err: fmt.Errorf("the node does not know the schema of the row any more: discard it")}
	}
	e := &Entry{
		Change: engine.Change{Op: engine.OpPut, Schema: schema, Key: l.Key, Row: l.Row, Stamp: l.Stamp},
		Log:    engine.LogID{Origin: l.Origin, Epoch: l.Epoch}, Position: engine.Position(l.Position), Time: l.Stamp.Time,
	}
	if l.Op == engine.OpDelete.String() {
		e.Op, e.Row = engine.OpDelete, nil
	}
	b := &Batch{Careful: true, sink: s, view: v, single: e, Replay: l.ID}
	for key, c := range s.cursors { // it moves no cursor, but is fenced by one
		if key.Log == e.Log {
			b.From, b.To = c, c
		}
	}
	if b.From.Log.IsZero() {
		return "", &Rejection{Err: fmt.Errorf("log %s that the entry came in has gone: discard it", e.Log)}
	}
	if err := s.target.Apply(ctx, b); err != nil {
		var rej *Rejection
		if errors.As(err, &rej) {
			return "", err
		}
		return "", fmt.Errorf("replaying: %w", err)
	}
	return Applied, nil
}
