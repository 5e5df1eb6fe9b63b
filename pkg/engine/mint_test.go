package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// minted is a node whose one source the test plays: it has been baselined at
// 0/100 with the tables given.
type minted struct {
	t    fatal
	e    *engine.Engine
	sink engine.Sink
	last engine.LSN
}

func newMinted(t fatal, st engine.Store, schemas ...*engine.Schema) *minted {
	m := &minted{t: t, e: nodeOver("n", st), last: 0x100}
	src := newByHand()
	src.mints = true
	src.baseline = func(ctx context.Context, sink engine.Sink) error {
		spec := engine.BaselineSpec{At: m.last.Position(), Major: uint64(m.last), Schemas: schemas}
		for _, s := range schemas {
			spec.Tables = append(spec.Tables, s.Table)
		}
		w, err := sink.Baseline(ctx, spec)
		if err != nil {
			return err
		}
		return w.Commit(ctx)
	}
	m.e.AddSource("db", src, engine.Keep{})
	start(t, m.e)
	m.sink = <-src.sinks
	return m
}

// tx returns a transaction after the last one.
func (m *minted) tx(changes ...engine.Change) engine.Transaction {
	m.last += 0x10
	return engine.Transaction{Position: m.last.Position(), Major: uint64(m.last), Changes: changes}
}

func (m *minted) apply(txs ...engine.Transaction) error {
	return m.sink.Apply(context.Background(), txs)
}

func (m *minted) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%v", err)
	}
}

// follower returns a node that carries m's logs by the engine's own protocol.
func (m *minted) follower(st engine.Store) *engine.Engine {
	e := nodeOver("f", st)
	e.AddSource("up", &hop{up: pointing(m.e), maxBytes: 1 << 20}, engine.Keep{})
	start(m.t, e)
	return e
}

// bag is the schema of a table without a key.
func bag() *engine.Schema {
	return &engine.Schema{ID: 9, Table: tableB, RelationOID: 77, ReplicaIdentity: engine.IdentityFull, Columns: []engine.Column{
		{Name: "a", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1},
		{Name: "b", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
	}}
}

func bagRow(s *engine.Schema, a, b string) (key []byte, row engine.Row) {
	key = engine.AppendKeyValue(engine.AppendKeyValue(nil, a), b)
	return key, engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, s.ID, 2), a), b)
}

// Equal rows of a table without a key are counted, through baselines, changes,
// and what is taken back.
func TestMultiset(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			s := bag()
			m := newMinted(t, store.NewMemory(store.MemoryOptions{}), s)
			f := m.follower(store.NewMemory(store.MemoryOptions{}))
			want := map[string]int{}
			var txs []engine.Transaction
			for range rapid.IntRange(1, 30).Draw(t, "transactions") {
				var changes []engine.Change
				for range rapid.IntRange(1, 5).Draw(t, "changes") {
					a := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "a")
					key, row := bagRow(s, a, "")
					switch {
					case rapid.IntRange(0, 20).Draw(t, "truncate") == 0:
						changes = append(changes, engine.Change{Op: engine.OpTruncate, Schema: s})
						clear(want)
					case want[a] > 0 && rapid.Bool().Draw(t, "delete"):
						changes = append(changes, engine.Change{Op: engine.OpDelete, Schema: s, Key: key})
						want[a]--
					default:
						changes = append(changes, engine.Change{Op: engine.OpPut, Schema: s, Key: key, Row: row})
						want[a]++
					}
				}
				if txs = append(txs, m.tx(changes...)); rapid.Bool().Draw(t, "apply") {
					m.must(m.apply(txs...))
					txs = nil
				}
			}
			if len(txs) > 0 {
				m.must(m.apply(txs...))
			}
			settle()
			for _, e := range []*engine.Engine{m.e, f} {
				got := map[string]int{"x": 0, "y": 0}
				v := e.View()
				m.must(v.Scan(tableB, nil, func(r *engine.Record) bool {
					if !r.Deleted {
						parts, err := engine.DecodeKey(r.Key)
						m.must(err)
						got[string(parts[0])]++
					}
					return true
				}))
				v.Close()
				if got["x"] != want["x"] || got["y"] != want["y"] {
					t.Fatalf("node %s has %v, want %v", e.NodeID(), got, want)
				}
			}
			key, _ := bagRow(s, "z", "")
			if err := m.apply(m.tx(engine.Change{Op: engine.OpDelete, Schema: s, Key: key})); !errors.Is(err, engine.ErrReBaselineRequired) {
				t.Fatalf("deleting a row that is not there gave %v", err)
			}
		})
	})
}

// A table is taken in, and one replaced, while the log goes on; readers get the
// difference with the transaction that names it.
func TestPartialBaseline(t *testing.T) {
	t.Parallel()
	for _, large := range []bool{false, true} {
		t.Run(fmt.Sprint("large ", large), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, b := shapeOf(tableA), shapeOf(tableB)
				a.ID, b.ID = 1, 2
				m := newMinted(t, store.NewMemory(store.MemoryOptions{}), a)
				f := m.follower(store.NewMemory(store.MemoryOptions{}))
				put := func(s *engine.Schema, id, v string) engine.Change {
					return engine.Change{Op: engine.OpPut, Schema: s, Key: keyOf(id), Row: rowOf(s, id, v, "")}
				}
				m.must(m.apply(m.tx(put(a, "1", "old"))))
				settle()
				doc := ""
				if large {
					doc = string(make([]byte, 10_000))
				}
				w, err := m.sink.Baseline(t.Context(), engine.BaselineSpec{
					Partial: true, Tables: []engine.TableName{tableB}, Schemas: []*engine.Schema{b}, At: m.last.Position(), Major: uint64(m.last), Reason: "added",
				})
				m.must(err)
				want := content{tableA: {}, tableB: {}}
				for i := range 1000 {
					id := fmt.Sprint("r", i)
					m.must(w.Rows(tableB, []engine.Record{{Schema: b, Key: keyOf(id), Row: rowOf(b, id, "0", doc)}}))
					want[tableB][id] = [2]string{"0", doc}
				}
				if err := w.Commit(t.Context()); err == nil {
					t.Error("a partial baseline was committed by itself")
				}
				_ = w
				w, err = m.sink.Baseline(t.Context(), engine.BaselineSpec{
					Partial: true, Tables: []engine.TableName{tableB}, Schemas: []*engine.Schema{b}, At: m.last.Position(), Major: uint64(m.last), Reason: "added",
				})
				m.must(err)
				for id, r := range want[tableB] {
					m.must(w.Rows(tableB, []engine.Record{{Schema: b, Key: keyOf(id), Row: rowOf(b, id, r[0], r[1])}}))
				}
				// What happens to it meanwhile: an update without its unchanged column, a
				// key change, a delete.
				m.must(m.apply(m.tx(put(a, "2", "new"))))
				m.must(w.Apply([]engine.Transaction{
					m.tx(engine.Change{Op: engine.OpPut, Schema: b, Key: keyOf("r1"), Row: rowOf(b, "r1", "1", unsent), Partial: true}),
					m.tx(engine.Change{Op: engine.OpDelete, Schema: b, Key: keyOf("r2")},
						engine.Change{Op: engine.OpPut, Schema: b, Key: keyOf("m2"), OldKey: keyOf("r2"), Row: rowOf(b, "m2", "2", unsent), Partial: true}),
					m.tx(engine.Change{Op: engine.OpDelete, Schema: b, Key: keyOf("r3")}),
				}))
				want[tableB]["r1"], want[tableB]["m2"] = [2]string{"1", doc}, [2]string{"2", doc}
				delete(want[tableB], "r2")
				delete(want[tableB], "r3")
				settle()
				before := advertised(t, m.e)
				last := m.tx(put(a, "3", "with"), put(b, "r4", "4"))
				last.Tables = []engine.BaselineWriter{w}
				m.must(m.apply(last))
				want[tableA] = map[string][2]string{"1": {"old"}, "2": {"new"}, "3": {"with"}}
				want[tableB]["r4"] = [2]string{"4"}
				settle()
				after := advertised(t, m.e)
				if after.Log != before.Log || !slices.Contains(after.Tables, tableB) {
					t.Errorf("advertised %+v after %+v", after, before)
				}
				if told := after.Oldest == before.Oldest; told == large {
					t.Errorf("told change by change: %t, large: %t", told, large)
				}
				for _, e := range []*engine.Engine{m.e, f} {
					v := e.View()
					got, err := liveRows(v)
					v.Close()
					m.must(err)
					if got.String() != want.String() {
						t.Errorf("node %s has\n%.400s, want\n%.400s", e.NodeID(), got, want)
					}
				}
				if st := m.e.Status().Sources[0]; st.TableBaselines != 1 || st.Baselines != 1 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// What a partial baseline of a table that is there already lacks is gone, here and
// at who reads.
func TestPartialBaselineTakesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := shapeOf(tableA)
		a.ID = 1
		m := newMinted(t, store.NewMemory(store.MemoryOptions{}), a)
		f := m.follower(store.NewMemory(store.MemoryOptions{}))
		put := func(id, v string) engine.Change {
			return engine.Change{Op: engine.OpPut, Schema: a, Key: keyOf(id), Row: rowOf(a, id, v, "")}
		}
		m.must(m.apply(m.tx(put("1", "old"), put("2", "old"))))
		settle()
		w, err := m.sink.Baseline(t.Context(), engine.BaselineSpec{
			Partial: true, Tables: []engine.TableName{tableA}, Schemas: []*engine.Schema{a}, At: m.last.Position(), Major: uint64(m.last), Reason: "made anew",
		})
		m.must(err)
		m.must(w.Rows(tableA, []engine.Record{{Schema: a, Key: keyOf("2"), Row: rowOf(a, "2", "old", "")}, {Schema: a, Key: keyOf("3"), Row: rowOf(a, "3", "new", "")}}))
		last := m.tx(put("4", "with"))
		last.Tables = []engine.BaselineWriter{w}
		m.must(m.apply(last))
		settle()
		want := content{tableA: {"2": {"old"}, "3": {"new"}, "4": {"with"}}}
		for _, e := range []*engine.Engine{m.e, f} {
			v := e.View()
			got, err := liveRows(v)
			v.Close()
			m.must(err)
			if got.String() != want.String() {
				t.Errorf("node %s has\n%s, want\n%s", e.NodeID(), got, want)
			}
		}
	})
}

// A transaction that the log has already is dropped, but not with a baseline in
// it that the log has not.
func TestPartialBaselineComesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := shapeOf(tableA), shapeOf(tableB)
		a.ID, b.ID = 1, 2
		m := newMinted(t, store.NewMemory(store.MemoryOptions{}), a)
		settle()
		partial := func() engine.BaselineWriter {
			w, err := m.sink.Baseline(t.Context(), engine.BaselineSpec{
				Partial: true, Tables: []engine.TableName{tableB}, Schemas: []*engine.Schema{b}, At: m.last.Position(), Major: uint64(m.last), Reason: "added",
			})
			m.must(err)
			m.must(w.Rows(tableB, []engine.Record{{Schema: b, Key: keyOf("1"), Row: rowOf(b, "1", "x", "")}}))
			return w
		}
		last := m.tx()
		last.Tables = []engine.BaselineWriter{partial()}
		m.must(m.apply(last))
		m.must(m.apply(last)) // what it names is in
		again := last
		again.Tables = []engine.BaselineWriter{partial()}
		if err := m.apply(again, m.tx()); err == nil || !strings.Contains(err.Error(), "has not been taken in") {
			t.Errorf("a baseline was dropped: %v", err)
		}
		if st := m.e.Status(); st.Logs[0].Head != last.Position || st.Sources[0].TableBaselines != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// A source that mints moves its log on where there is nothing in it.
func TestMintedProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := shapeOf(tableA)
		a.ID = 1
		m := newMinted(t, store.NewMemory(store.MemoryOptions{}), a)
		f := m.follower(store.NewMemory(store.MemoryOptions{}))
		settle()
		m.must(m.sink.Progress(t.Context(), engine.CursorKey{}, "", engine.LSN(0x900).Position(), 0))
		m.must(m.sink.Progress(t.Context(), engine.CursorKey{}, "", engine.LSN(0x800).Position(), 0))
		settle()
		for _, e := range []*engine.Engine{m.e, f} {
			if head := advertised(t, e).Head; head != engine.LSN(0x900).Position() {
				t.Errorf("node %s is at %s", e.NodeID(), head)
			}
		}
	})
}

// A transaction that is larger than the journal is applied whole; readers that
// were not there yet find a gap.
func TestTransactionLargerThanTheJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := shapeOf(tableA)
		a.ID = 1
		m := newMinted(t, store.NewMemory(store.MemoryOptions{JournalBytes: 1 << 20}), a)
		settle()
		before := advertised(t, m.e)
		n := 0
		tx := m.tx()
		tx.More = func() ([]engine.Change, error) {
			if n == 3000 {
				return nil, nil
			}
			var run []engine.Change
			for range 100 {
				id := fmt.Sprint(n)
				run = append(run, engine.Change{Op: engine.OpPut, Schema: a, Key: keyOf(id), Row: rowOf(a, id, "1", string(make([]byte, 1000)))})
				n++
			}
			return run, nil
		}
		m.must(m.apply(tx))
		v := m.e.View()
		defer v.Close()
		i, _ := v.Log(before.Log)
		if i.Bytes > 1<<20 || i.Head != tx.Position || v.Tables()[0].Rows != 3000 {
			t.Errorf("log %+v, tables %+v", i, v.Tables())
		}
		if _, err := v.ReadLog(before.Log, before.Head, 1); !errors.Is(err, engine.ErrGap) {
			t.Errorf("a reader before it gets %v", err)
		}
		failed := m.tx()
		failed.More = func() ([]engine.Change, error) { return nil, errors.New("scratch is gone") }
		if err := m.apply(failed); err == nil {
			t.Error("a transaction whose changes cannot be had was applied")
		}
		m.last -= 0x10
		m.must(m.apply(m.tx(engine.Change{Op: engine.OpDelete, Schema: a, Key: keyOf("1")})))
	})
}
