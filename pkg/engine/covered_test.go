package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// behindFeed opens a node over a store that has a carried log.
func behindFeed(t *testing.T, st engine.Store) (*engine.Engine, *engine.Feed, engine.LogID) {
	t.Helper()
	e := nodeOver("n", st)
	e.AddSource("up", newByHand(), engine.Keep{})
	f, err := e.Open(t.Context(), "up")
	if err != nil {
		t.Fatal(err)
	}
	return e, f, engine.LogID{Origin: "o#own", Epoch: 5}
}

// behindBaseline takes a baseline of the log of behindFeed in which tables are behind; delta says that it brings the
// second table whole and nothing else.
func behindBaseline(t *testing.T, f *engine.Feed, log engine.LogID, at engine.Position, delta bool, behind map[engine.TableName]engine.Reached) {
	t.Helper()
	set := engine.NewSchemaSet()
	a, _ := set.Define(shapeOf(tableA))
	b, _ := set.Define(shapeOf(tableB))
	spec := engine.BaselineSpec{Log: log, Schemas: []*engine.Schema{a, b}, Tables: tables, At: at, Time: 10, Behind: behind}
	if delta {
		spec.Delta, spec.Fresh = true, []engine.TableName{tableB}
	}
	err := f.Carry(log, engine.CompareLSN, []string{"o"}, tables)
	if err != nil {
		t.Fatal(err)
	}
	w, err := f.Baseline(t.Context(), spec)
	if err == nil {
		err = w.Commit(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What is remembered of a log with tables behind can be read by a version that knows of no trail, and what that has
// written can be read.
func TestBehindOfOtherVersions(t *testing.T) {
	t.Parallel()
	mem := store.NewMemory(store.MemoryOptions{})
	_, f, log := behindFeed(t, mem)
	reached := map[engine.TableName]engine.Reached{tableB: {Position: "0/8", Time: 8}}
	behindBaseline(t, f, log, "0/10", false, reached)
	v := mem.View()
	raw := v.Meta("log/" + log.String())
	v.Close()
	var older struct {
		Covered []engine.TableName `json:"covered"`
		Behind  []struct {
			Table    engine.TableName `json:"table"`
			Position engine.Position  `json:"position"`
			Time     engine.Time      `json:"time"`
		} `json:"behind"`
	}
	if err := json.Unmarshal(raw, &older); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(older.Covered, []engine.TableName{tableA}) || len(older.Behind) != 1 || older.Behind[0].Table != tableB || older.Behind[0].Position != "0/8" || older.Behind[0].Time != 8 {
		t.Errorf("an older version reads %+v of %s", older, raw)
	}

	check := func(what string) {
		t.Helper()
		e, f, log := behindFeed(t, mem)
		covers := f.Sink.(engine.Covering)
		if have := covers.Covered(log); !slices.Contains(have, tableA) || !slices.Contains(have, tableB) || len(have) != 2 {
			t.Errorf("%s: %v are covered", what, have)
		}
		if have := covers.Behind(log, "0/10"); !maps.Equal(have, reached) {
			t.Errorf("%s: %v are behind", what, have)
		}
		v := e.View()
		defer v.Close()
		if have, known := e.TrailIn(v, log).At("0/10", engine.CompareLSN); !known || !maps.Equal(have, reached) {
			t.Errorf("%s: %v are behind in the view (known: %v)", what, have, known)
		}
	}
	check("after a restart")
	table := func(n engine.TableName) string { return fmt.Sprintf(`{"Schema":%q,"Name":%q}`, n.Schema, n.Name) }
	a, b := table(tableA), table(tableB)
	tx, err := mem.Begin(t.Context())
	if err == nil {
		err = tx.SetMeta("log/"+log.String(), fmt.Appendf(nil, `{"origin":"o#own","epoch":5,"source":"up","order":"lsn","path":["n","o"],"tables":[%s,%s],`+
			`"covered":[%s],"behind":[{"table":%s,"position":"0/8","time":8}]}`, a, b, a, b))
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	check("after an older version")
}

// A view has the trail of what it has: also while the next commit, which leaves the log where it is, is on its way.
func TestTrailIn(t *testing.T) {
	t.Parallel()
	st := &watched{Store: store.NewMemory(store.MemoryOptions{})}
	e, f, log := behindFeed(t, st)
	reached := map[engine.TableName]engine.Reached{tableB: {Position: "0/8", Time: 8}}
	behindBaseline(t, f, log, "0/10", false, reached)
	check := func(what string, v engine.View, want map[engine.TableName]engine.Reached) {
		t.Helper()
		if have, known := e.TrailIn(v, log).At("0/10", engine.CompareLSN); !known || !maps.Equal(have, want) {
			t.Errorf("%s: %v are behind (known: %v), want %v", what, have, known, want)
		}
	}
	old := e.View()
	defer old.Close()
	changes := e.Trails()
	st.before = func() error {
		v := e.View()
		defer v.Close()
		check("before the commit", v, reached)
		return nil
	}
	st.after = func() {
		if e.Trails() == changes {
			t.Error("the change of the trail was not counted before the commit")
		}
		v := e.View()
		defer v.Close()
		check("after the commit", v, nil)
		check("an older view, after the commit", old, reached)
	}
	behindBaseline(t, f, log, "0/10", true, map[engine.TableName]engine.Reached{})
}
