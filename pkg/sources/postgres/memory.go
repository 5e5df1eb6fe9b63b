package postgres

import (
	"encoding/json"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// What the source knows of its tables has to outlive the node where its state
// does: a table that was to be baselined again still is, and what changes in the
// catalog while the node is down is found by comparing with what was seen before.
// It is saved with the transactions that it goes with.

type savedTable struct {
	Schema  string            `json:"schema"`
	Name    string            `json:"name"`
	ID      uint32            `json:"id,omitempty"`  // of its schema in the log; 0 if the state does not hold it
	Why     string            `json:"why,omitempty"` // a baseline is wanted
	Files   map[uint32]uint32 `json:"files,omitempty"`
	Filter  string            `json:"filter,omitempty"`
	Columns int16             `json:"columns,omitempty"`
	Texts   map[string]string `json:"texts,omitempty"`
	// Truncated says that Files are from before a truncate that has been seen.
	Truncated bool `json:"truncated,omitempty"`
}

// save returns what is to be remembered. Callers hold t.mu.
func (t *tables) save() ([]byte, error) {
	t.unsaved = false
	saved := make([]savedTable, 0, len(t.state))
	for name, st := range t.state {
		s := savedTable{Schema: name.Schema, Name: name.Name, Why: st.why, Files: st.evidence.files, Filter: st.evidence.filter, Columns: st.evidence.columns, Texts: st.evidence.texts, Truncated: st.truncates > st.evidenced}
		if st.schema != nil {
			s.ID = st.schema.ID
		}
		saved = append(saved, s)
	}
	return json.Marshal(saved)
}

// memoryOf is what is to be remembered of a baseline of all tables.
func memoryOf(all []*table) ([]byte, error) {
	t := &tables{state: map[engine.TableName]*tableState{}}
	for _, tb := range all {
		t.state[tb.schema.Table] = &tableState{name: tb.schema.Table, schema: tb.schema, evidence: tb.evidence}
	}
	return t.save()
}

// restore takes back what was remembered, as of the cursor that the stream goes
// on from. A table that is not configured any more is to go.
func (t *tables) restore(memory []byte, schemas *engine.SchemaSet, configured []engine.TableName) error {
	var saved []savedTable
	if len(memory) > 0 {
		if err := json.Unmarshal(memory, &saved); err != nil {
			return fmt.Errorf("what was remembered of the tables cannot be read: %w", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.state)
	clear(t.withheld)
	t.removed = nil
	keep := map[engine.TableName]bool{}
	for _, name := range configured {
		keep[name] = true
	}
	for _, s := range saved {
		name := engine.TableName{Schema: s.Schema, Name: s.Name}
		schema := schemas.Get(s.ID)
		if !keep[name] {
			if schema != nil {
				t.removed = append(t.removed, schema)
			}
			continue
		}
		st := &tableState{name: name, schema: schema, why: s.Why, evidence: evidence{files: s.Files, filter: s.Filter, columns: s.Columns, texts: s.Texts}}
		if s.Truncated {
			st.truncates = 1
		}
		t.state[name] = st
	}
	return nil
}

// known returns the tables that the state holds, by OID.
func (t *tables) known() map[uint32]*engine.Schema {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := map[uint32]*engine.Schema{}
	for _, st := range t.state {
		if st.schema != nil {
			known[st.schema.RelationOID] = st.schema
		}
	}
	return known
}
