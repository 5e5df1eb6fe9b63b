package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// SetTables changes which tables are replicated, at any time. A table that is
// added is baselined while the others go on, and added to the publication where
// that is managed; the rows of one that is taken out are deleted. What is wrong
// with a table is reported as all else is, and keeps none of the others.
func (s *Source) SetTables(names []engine.TableName) error {
	s.mu.Lock()
	cfg := s.cfg
	s.mu.Unlock()
	cfg.Tables = slices.Clone(names)
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("PostgreSQL source: %w", err)
	}
	s.mu.Lock()
	s.cfg.Tables = cfg.Tables
	s.mu.Unlock()
	s.tables.set(cfg.Tables)
	return nil
}

// set takes in another list of tables.
func (t *tables) set(names []engine.TableName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.state) == 0 {
		return // there is no baseline yet
	}
	maps.DeleteFunc(t.state, func(name engine.TableName, st *tableState) bool {
		if slices.Contains(names, name) {
			return false
		}
		if st.schema != nil {
			t.removed = append(t.removed, st.schema)
		}
		if st.job != nil {
			st.job.spoil(fmt.Sprintf("table %s was taken out", name))
		}
		return true
	})
	for _, name := range names {
		if t.state[name] == nil {
			t.removed = slices.DeleteFunc(t.removed, func(s *engine.Schema) bool { return s.Table == name })
			t.state[name] = &tableState{name: name}
			t.want(t.state[name], "it was added")
		}
	}
	t.unsaved = true
	t.generation.Add(1)
	signal(t.wake)
}

// remove names baselines without rows, of the tables that were taken out.
func (r router) remove(ctx context.Context, tx *engine.Transaction) error {
	t := r.t
	t.mu.Lock()
	gone := t.removed
	t.removed = nil
	t.mu.Unlock()
	for _, s := range gone {
		w, err := r.Baseline(ctx, engine.BaselineSpec{At: tx.Position, Major: tx.Major, Partial: true, Schemas: []*engine.Schema{s}, Tables: []engine.TableName{s.Table},
			Reason: fmt.Sprintf("table %s: it was taken out", s.Table)})
		if err != nil {
			return err
		}
		tx.Tables = append(tx.Tables, w)
	}
	return nil
}
