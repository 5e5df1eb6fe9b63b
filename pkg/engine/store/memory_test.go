package store

import (
	"fmt"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

func TestSmoke(t *testing.T) {
	m := NewMemory(MemoryOptions{})
	sc := &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "t"}}
	log := engine.LogID{Origin: "a", Epoch: 1}
	for round := range 20 {
		tx, err := m.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5000 {
			r := &engine.Record{Schema: sc, Key: engine.AppendKeyValue(nil, fmt.Sprint(i)), Row: engine.Row(fmt.Sprint("row", i, round)), Stamp: engine.Stamp{Origin: "a", Epoch: 1, Time: engine.Time(round*5000 + i + 1)}}
			if ok, err := tx.Merge(r); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		_ = log
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", m.Stats())
	}
	v := m.View()
	defer v.Close()
	n := 0
	_ = v.Scan(sc.Table, nil, func(r *engine.Record) bool { n++; return true })
	if n != 5000 {
		t.Fatal(n)
	}
}
