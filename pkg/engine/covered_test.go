package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// A table that was left out of a log for a while is not covered by its cursor until
// it is baselined, also after a restart.
func TestCovered(t *testing.T) {
	t.Parallel()
	mem := store.NewMemory(store.MemoryOptions{})
	open := func() (*engine.Feed, func() []engine.TableName) {
		e := nodeOver("n", mem)
		e.AddSource("up", newByHand(), engine.Keep{})
		f, err := e.Open(t.Context(), "up")
		if err != nil {
			t.Fatal(err)
		}
		return f, func() []engine.TableName {
			return f.Sink.(engine.Covering).Covered(engine.LogID{Origin: "o#own", Epoch: 5})
		}
	}
	check := func(what string, have []engine.TableName, want ...engine.TableName) {
		t.Helper()
		if !slices.Equal(have, want) {
			t.Errorf("%s: %v are covered, want %v", what, have, want)
		}
	}
	log := engine.LogID{Origin: "o#own", Epoch: 5}
	set := engine.NewSchemaSet()
	a, _ := set.Define(shapeOf(tableA))
	b, _ := set.Define(shapeOf(tableB))
	f, covered := open()
	carry := func(tables ...engine.TableName) {
		t.Helper()
		if err := f.Carry(log, engine.CompareLSN, []string{"o"}, tables); err != nil {
			t.Fatal(err)
		}
	}
	baseline := func(at engine.Position) {
		t.Helper()
		w, err := f.Baseline(t.Context(), engine.BaselineSpec{Log: log, Schemas: []*engine.Schema{a, b}, Tables: tables, At: at, Time: 10})
		if err == nil {
			err = w.Commit(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	carry(tables...)
	baseline("0/10")
	check("after a baseline", covered(), tables...)
	carry(tableA)
	carry(tables...)
	check("with a table left out", covered(), tableA)
	if err := f.Progress(t.Context(), engine.CursorKey{Log: log}, "0/10", "0/20", 20); err != nil {
		t.Fatal(err)
	}
	f, covered = open()
	check("after a restart", covered(), tableA)
	carry(tables...)
	baseline("0/30")
	check("after another baseline", covered(), tables...)
}

// A log that a relay has read, which serves it on in its own and keeps no entries of it,
// comes by a source that keeps it: it goes on from the cursor, and has entries from there.
func TestKeepsWhatWasRecorded(t *testing.T) {
	t.Parallel()
	mem := store.NewMemory(store.MemoryOptions{})
	log := engine.LogID{Origin: "o#own", Epoch: 5}
	tx, err := mem.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tx.ResetLog(log, engine.CompareLSN, "0/1", 1), tx.SetCursor(engine.Cursor{CursorKey: engine.CursorKey{Log: log}, Position: "0/10", Time: 16}), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	e := nodeOver("n", mem)
	e.AddSource("up", newByHand(), engine.Keep{})
	f, err := e.Open(t.Context(), "up")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Carry(log, engine.CompareLSN, []string{"o"}, tables); err != nil {
		t.Fatal(err)
	}
	for at := engine.LSN(0x20); at <= 0x40; at += 0x10 {
		b := oneRow(log, at-0x10, at, fmt.Sprint(at))
		b.Schemas = []*engine.Schema{shapeOf(tableA)}
		b.Schemas[0].ID = 1
		if err := f.ApplyBlocks(t.Context(), engine.CursorKey{Log: log}, []*engine.Block{b}); err != nil {
			t.Fatal(err)
		}
	}
	v := e.View()
	defer v.Close()
	if info, _ := v.Log(log); info.Oldest != "0/10" || info.Head != "0/40" || info.Changes != 3 {
		t.Errorf("the log is %+v", info)
	}
	if c, _ := v.Cursor(engine.CursorKey{Log: log}); c.Position != "0/40" {
		t.Errorf("the cursor is at %s", c.Position)
	}
}
