package postgres

import (
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// kept is a baseline that counts what it is brought up to date by.
type kept struct {
	engine.BaselineWriter
	changes []engine.Version
}

func (k *kept) Apply(txs []engine.Transaction) error {
	for _, tx := range txs {
		for range tx.Changes {
			k.changes = append(k.changes, engine.Version{Major: tx.Major})
		}
	}
	return nil
}

// A session is lost while the engine takes transactions: they come again, and a
// table's baseline that is under way has their changes once.
func TestDivertedOnce(t *testing.T) {
	t.Parallel()
	name := engine.TableName{Schema: "public", Name: "w"}
	s := &engine.Schema{ID: 1, Table: name, Columns: []engine.Column{{Name: "n", Number: 1, TypeOID: 23}}}
	ts := newTables(nil)
	j := &job{names: []engine.TableName{name}, backlog: newBacklog(spill.NewDir(t.TempDir())),
		schemas: map[engine.TableName]*engine.Schema{name: s}, evidence: map[engine.TableName]evidence{}, truncates: map[engine.TableName]int{}}
	defer j.backlog.close()
	ts.state[name] = &tableState{name: name, schema: s, why: "a test", job: j}
	transaction := func(major uint64, minors ...uint32) *engine.Transaction {
		tx := &engine.Transaction{Major: major, Position: engine.LSN(major).Position()}
		for _, minor := range minors {
			tx.Changes = append(tx.Changes, engine.Change{Op: engine.OpPut, Schema: s, Key: []byte("1"), Row: []byte("1"), Stamp: engine.Stamp{Version: engine.Version{Major: major, Minor: minor}}})
		}
		return tx
	}
	for _, tx := range []*engine.Transaction{
		transaction(10, 1, 2), transaction(20, 1), // one run of it
		transaction(10, 1, 2), transaction(20, 1, 2, 3), transaction(30, 1),
	} {
		if ts.route(tx); len(tx.Changes) > 0 {
			t.Fatalf("the engine has %d changes of %s", len(tx.Changes), tx.Position)
		}
	}
	var k kept
	if err := j.backlog.replay(0, &k); err != nil {
		t.Fatal(err)
	}
	if len(k.changes) != 6 {
		t.Errorf("%d changes, want 6: %v", len(k.changes), k.changes)
	}
}
