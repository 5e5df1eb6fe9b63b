package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// A listener that comes while a transaction is being made is told of it: what it
// reads before the commit does not have it.
func TestListenerDuringTransaction(t *testing.T) {
	t.Parallel()
	w := watch(store.NewMemory(store.MemoryOptions{}))
	defer func() { _ = w.Close() }()
	table := engine.TableName{Schema: "public", Name: "t"}
	sc := &engine.Schema{ID: 1, Table: table, ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
		{Name: "id", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1, Key: true}, {Name: "v", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
	}}
	log := engine.LogID{Origin: "n#s", Epoch: 1}
	at := engine.Time(0)
	begin := func() engine.Tx {
		tx, err := w.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.PutSchema(log, sc); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	put := func(tx engine.Tx, key, value string, gone bool) {
		at++
		r := engine.Record{Schema: sc, Key: engine.AppendKeyValue(nil, key), Stamp: engine.Stamp{Time: at, Origin: log.Origin, Epoch: log.Epoch}, Deleted: gone}
		if !gone {
			r.Row = engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, sc.ID, 2), key), value)
		}
		if err := tx.Put(&r); err != nil {
			t.Fatal(err)
		}
	}
	text := func(r *engine.Record) string {
		if r == nil {
			return "-"
		}
		var v []string
		for _, c := range r.Row.Columns() {
			v = append(v, string(c.Value))
		}
		return strings.Join(v, "=")
	}
	tx := begin()
	for _, k := range []string{"stays", "changes", "goes"} {
		put(tx, k, "1", false)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	tx = begin()
	put(tx, "changes", "2", false)
	put(tx, "goes", "", true)
	put(tx, "comes", "2", false)
	var told []string
	defer w.listen(func(old, fresh *engine.Record, _ engine.Position) { told = append(told, text(old)+">"+text(fresh)) })()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	tx = begin()
	put(tx, "comes", "3", false)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(told)
	if got, want := fmt.Sprint(told), "[->comes=2 changes=1>changes=2 comes=2>comes=3 goes=1>-]"; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}
