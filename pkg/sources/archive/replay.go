package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// cutTries bounds the search for a common cut: each step goes back by a diff.
const cutTries = 1000

// cut returns how far each table's archive is to be replayed, from where it is
// (nowhere if from is nil): to one position of each log, if they have one in common.
// It returns nil if that is where they are.
func (s *Source) cut(ctx context.Context, ms []*archive.Manifest, from []archive.Vector) ([]archive.Vector, error) {
	to := make([]archive.Vector, len(s.cfg.Tables))
	least := map[engine.LogID]archive.Cursor{}
	note := func(v archive.Vector) (moved bool) {
		for _, c := range v {
			if l, ok := least[c.Log]; !ok || s.compare(c)(c.Position, l.Position) < 0 {
				least[c.Log], moved = c, true
			}
		}
		return moved
	}
	for i, t := range s.cfg.Tables {
		p, err := s.plan(ctx, t, from, i, archive.AsOf{})
		if err != nil {
			return nil, err
		}
		to[i] = p.To
		note(p.To)
	}
	if err := s.ofOneHistory(to); err != nil {
		return nil, err // one has been replaced meanwhile
	}
	if s.settled(ms, to) {
		if from != nil && slices.EqualFunc(to, from, archive.Vector.Equal) {
			return nil, nil
		}
		return to, nil
	}
	heads := slices.Clone(to)
	for range cutTries {
		moved := false
		for i, t := range s.cfg.Tables {
			var bound []archive.Cursor
			for _, c := range to[i] {
				bound = append(bound, least[c.Log])
			}
			if v := archive.NewVector(bound...); !v.Equal(to[i]) {
				p, err := s.plan(ctx, t, from, i, archive.AsOf{At: v})
				if errors.Is(err, archive.ErrNotCovered) {
					return s.uneven(heads, from)
				}
				if err != nil {
					return nil, err
				}
				to[i] = p.To
				moved = note(p.To) || moved
			}
		}
		if !moved {
			break
		}
	}
	for i := range to {
		if from != nil && !to[i].Reaches(from[i]) {
			return nil, nil // they have nothing in common beyond where they are, yet
		}
		for _, c := range to[i] {
			if s.compare(c)(c.Position, least[c.Log].Position) != 0 {
				return s.uneven(heads, from)
			}
		}
	}
	if from != nil && slices.EqualFunc(to, from, archive.Vector.Equal) {
		return nil, nil
	}
	return to, nil
}

// uneven takes archives that end nowhere together each as far as it goes.
func (s *Source) uneven(heads, from []archive.Vector) ([]archive.Vector, error) {
	if from != nil {
		return nil, nil // while they are followed, they get there
	}
	s.cfg.Logger.Warn("the archives of a source's tables have no position in common: some rows may be ahead of others, until more is archived", "source", s.cfg.Name)
	return heads, nil
}

// plan returns how to get from where a table is to a moment.
func (s *Source) plan(ctx context.Context, t Table, from []archive.Vector, i int, to archive.AsOf) (*archive.Plan, error) {
	var at archive.Vector
	if from != nil {
		at = from[i]
	}
	p, err := t.Reader.Plan(ctx, at, to)
	switch {
	case err != nil:
		return nil, s.asSourceError(t, err)
	case p.Mode == archive.PlanNone:
		return nil, fmt.Errorf("archive of %s: %w: %s", t.Name, archive.ErrNotCovered, p.Reason)
	case from != nil && p.Mode == archive.PlanBase:
		return nil, fmt.Errorf("archive of %s: %w: only a base leads on from %s", t.Name, engine.ErrReBaselineRequired, at)
	}
	return p, nil
}

// deliver takes in tables up to a cut: their state, or what has changed since from.
// Settled says that the newest of them is the cursor, and not the oldest. It returns
// the cursors.
func (s *Source) deliver(ctx context.Context, sink engine.Sink, to, from []archive.Vector, settled bool) (cursors []engine.Cursor, err error) {
	folds := make([]*archive.Fold, len(s.cfg.Tables))
	defer func() {
		for _, f := range folds {
			if f != nil {
				f.Close()
			}
		}
	}()
	for i, t := range s.cfg.Tables {
		if from != nil {
			folds[i], err = t.Reader.Delta(ctx, from[i], archive.AsOf{At: to[i]})
		} else {
			folds[i], err = t.Reader.Fold(ctx, archive.AsOf{At: to[i]})
		}
		switch {
		case errors.Is(err, archive.ErrNotCovered):
			return nil, fmt.Errorf("%w: %w", engine.ErrReBaselineRequired, err) // it has changed since it was planned
		case err != nil:
			return nil, s.asSourceError(t, err)
		}
	}
	logs := s.specs(folds, from != nil, settled)
	if last := len(logs) - 1; from == nil && last >= 0 { // the rows of the others are there by then
		logs[last].spec.Instead = s.gone(logs)
		for _, l := range logs[:last] {
			l.spec.Over = logs[last].spec.Instead
		}
	}
	for _, l := range logs {
		if from == nil {
			if err := s.carry(sink, l.at, l.spec.Tables); err != nil {
				return nil, err
			}
		}
		if l.w, err = sink.Baseline(ctx, l.spec); err != nil {
			return nil, err
		}
		defer l.w.Abort()
	}
	for i, t := range s.cfg.Tables {
		if err := rows(folds[i], t.Name, logs); err != nil {
			return nil, s.asSourceError(t, err)
		}
	}
	for _, l := range logs {
		if err := l.w.Commit(ctx); err != nil {
			return nil, fmt.Errorf("log %s: %w", l.at.Log, err)
		}
		sink.Head(l.at.Log, engine.Head{Position: l.at.Position, Time: l.at.Time})
		cursors = append(cursors, engine.Cursor{CursorKey: engine.CursorKey{Log: l.at.Log}, Position: l.at.Position, Time: l.at.Time})
	}
	return cursors, nil
}

// logBaseline is the part of what is taken in that belongs to one log.
type logBaseline struct {
	at   archive.Cursor
	spec engine.BaselineSpec
	w    engine.BaselineWriter
}

// specs returns the baselines to be made of folds, one of each log.
func (s *Source) specs(folds []*archive.Fold, delta, settled bool) []*logBaseline {
	var logs []*logBaseline
	of := map[engine.LogID]*logBaseline{}
	for i, f := range folds {
		for _, c := range f.At() {
			l := of[c.Log]
			if l == nil {
				l = &logBaseline{at: c, spec: engine.BaselineSpec{Log: c.Log, Delta: delta, Others: map[engine.LogID][]*engine.Schema{}, Truncates: map[engine.TableName][]engine.Stamp{}}}
				of[c.Log] = l
				logs = append(logs, l)
			}
			if o := s.compare(c)(c.Position, l.at.Position); o < 0 && !settled || o > 0 && settled {
				l.at.Position, l.at.Time = c.Position, c.Time
			}
			l.at.CompleteFrom = max(l.at.CompleteFrom, c.CompleteFrom)
			l.spec.Tables = append(l.spec.Tables, s.cfg.Tables[i].Name)
			for log, schemas := range f.Schemas() {
				if log == c.Log {
					l.spec.Schemas = append(l.spec.Schemas, schemas...)
				} else {
					l.spec.Others[log] = append(l.spec.Others[log], schemas...)
				}
			}
			for _, at := range f.Truncates() {
				if at.Origin == c.Log.Origin {
					l.spec.Truncates[s.cfg.Tables[i].Name] = append(l.spec.Truncates[s.cfg.Tables[i].Name], at)
				}
			}
		}
	}
	for _, l := range logs {
		l.spec.At, l.spec.Time, l.spec.CompleteFrom = l.at.Position, l.at.Time, l.at.CompleteFrom
		if lsn, err := engine.ParseLSN(l.at.Position); err == nil {
			l.spec.Major = uint64(lsn)
		}
		for i, f := range folds {
			if c, ok := f.At().Cursor(l.at.Log); ok && s.compare(c)(c.Position, l.at.Position) < 0 {
				if l.spec.Behind == nil {
					l.spec.Behind = map[engine.TableName]engine.Reached{}
				}
				l.spec.Behind[s.cfg.Tables[i].Name] = engine.Reached{Position: c.Position, Time: c.Time}
			}
		}
	}
	return logs
}

// gone returns the logs that the node had, and that are in the archives no more: all of their origins.
func (s *Source) gone(logs []*logBaseline) []engine.LogID {
	return slices.DeleteFunc(slices.Clone(s.had), func(had engine.LogID) bool {
		return slices.ContainsFunc(logs, func(l *logBaseline) bool { return l.at.Log.Origin == had.Origin })
	})
}

// runRows is how many rows are given to a baseline at once.
const runRows = 512

// rows gives the rows of a table to the baselines of the logs that they are of. A row of
// an origin that has no log here goes with the first that covers the table.
func rows(f *archive.Fold, table engine.TableName, logs []*logBaseline) error {
	pending := map[*logBaseline][]engine.Record{}
	flush := func(l *logBaseline) error {
		rs := pending[l]
		pending[l] = nil
		if len(rs) == 0 {
			return nil
		}
		return l.w.Rows(table, rs)
	}
	var first *logBaseline
	byOrigin := map[string]*logBaseline{}
	for _, l := range logs {
		if slices.Contains(l.spec.Tables, table) {
			byOrigin[l.at.Log.Origin] = l
			if first == nil {
				first = l
			}
		}
	}
	err := f.Rows(func(r *engine.Record) error {
		l := byOrigin[r.Stamp.Origin]
		if l == nil {
			l = first
		}
		pending[l] = append(pending[l], engine.Record{Schema: r.Schema, Key: slices.Clone(r.Key), Row: slices.Clone(r.Row), Stamp: r.Stamp, Deleted: r.Deleted})
		if len(pending[l]) < runRows {
			return nil
		}
		return flush(l)
	})
	for l := range pending {
		err = errors.Join(err, flush(l))
	}
	return err
}
