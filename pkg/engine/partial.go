package engine

import (
	"errors"
	"fmt"
	"slices"
)

// staged reads a stage as the state is read.
type staged struct{ stage Stage }

func (s staged) Get(_ TableName, key []byte) (Record, bool, error) { return s.stage.Get(key) }

// Apply brings staged rows up to date.
func (b *baseline) Apply(txs []Transaction) error {
	if !b.mint || !b.spec.Partial {
		return errors.New("engine: only a partial baseline of a source that mints is brought up to date")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var buf []byte
	var bags ordinals
	for i := range txs {
		t := &txs[i]
		for _, sc := range t.Schemas {
			if !slices.Contains(b.spec.Schemas, sc) {
				b.spec.Schemas = append(b.spec.Schemas, sc)
			}
		}
		for changes := t.Changes; ; {
			if err := b.bringIn(changes, &buf, &bags); err != nil {
				return fmt.Errorf("transaction at %s: %w", t.Position, err)
			}
			if t.More == nil {
				break
			}
			var err error
			if changes, err = t.More(); err != nil {
				return fmt.Errorf("transaction at %s: %w", t.Position, err)
			}
			if len(changes) == 0 {
				break
			}
		}
	}
	return nil
}

func (b *baseline) bringIn(changes []Change, buf *[]byte, bags *ordinals) error {
	var moved Record
	for i := range changes {
		c := &changes[i]
		table := c.Schema.Table
		st := b.stages[table]
		if st == nil {
			return fmt.Errorf("baseline of log %s: table %s is not part of it", b.log, table)
		}
		if c.Op == OpTruncate {
			st.Close()
			b.stages[table] = b.source.engine.store.NewStage(table)
			bags.forget()
			continue
		}
		ok, err := b.gate.admits(c.Schema, c.Key, b.log.Origin)
		if err != nil {
			return err
		}
		if !ok {
			moved = Record{}
			continue
		}
		if moved, err = complete(staged{st}, changes[i:], moved, buf, bags); err != nil {
			return err
		}
		r := Record{Schema: c.Schema, Key: c.Key, Row: c.Row, Stamp: b.stamp, Deleted: c.Op == OpDelete}
		if err := st.Put([]Record{r}); err != nil {
			return err
		}
	}
	return nil
}

// announcePartial counts a partial baseline that has been committed.
func (b *baseline) announcePartial() {
	s, e := b.source, b.source.engine
	s.mu.Lock()
	s.state.LastBaseline = e.now().Sub(b.began)
	s.state.TableBaselines += len(b.spec.Tables)
	s.mu.Unlock()
	e.tally.add(b.log.Origin, &b.gate)
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[b.log]; l != nil {
		l.tables = union(l.tables, b.spec.Tables)
	}
	e.log.Info("tables baselined", "source", s.name, "log", b.log.String(), "tables", len(b.spec.Tables), "reason", b.spec.Reason)
}

func union(tables, more []TableName) []TableName {
	tables = slices.Clip(tables)
	for _, t := range more {
		if !slices.Contains(tables, t) {
			tables = append(tables, t)
		}
	}
	return tables
}

// withTables returns a log's tables with those of partial baselines.
func (s *source) withTables(log LogID, taken []*baseline) []TableName {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	var tables []TableName
	if l := s.engine.logs[log]; l != nil {
		tables = l.tables
	}
	for _, b := range taken {
		tables = union(tables, b.spec.Tables)
	}
	return tables
}
