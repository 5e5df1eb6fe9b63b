package server

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// handed is a source that a test delivers for.
type handed struct{ engine.SyncSource }

func (handed) Init(context.Context, engine.Env) (engine.Info, error) { return engine.Info{}, nil }
func (handed) Baseline(context.Context, engine.Sink) error           { return nil }
func (handed) Ack(engine.Cursor, bool)                               {}
func (handed) LastAckedPosition(engine.LogID) engine.Position        { return "" }
func (handed) SupportsResume() bool                                  { return true }
func (handed) ComparePositions(a, b engine.Position) int             { return engine.CompareLSN(a, b) }

// hookedStore calls a test before and after what is committed.
type hookedStore struct {
	engine.Store
	before, after func()
}

type hookedTx struct {
	engine.Tx
	s *hookedStore
}

func (s *hookedStore) Begin(ctx context.Context) (engine.Tx, error) {
	tx, err := s.Store.Begin(ctx)
	return hookedTx{tx, s}, err
}

func (t hookedTx) Commit() error {
	t.s.before()
	err := t.Tx.Commit()
	t.s.after()
	return err
}

// A table that was behind comes while the log stays where it is. Whoever is told that it is not behind has it: also
// around the commit, and where a baseline begins at an earlier moment.
func TestHubTrail(t *testing.T) {
	t.Parallel()
	st := &hookedStore{Store: store.NewMemory(store.MemoryOptions{}), before: func() {}, after: func() {}}
	e := engine.New(engine.Options{NodeID: "n", Store: st, Logger: slog.New(slog.DiscardHandler)})
	e.AddSource("up", handed{}, engine.Keep{})
	f, err := e.Open(t.Context(), "up")
	if err != nil {
		t.Fatal(err)
	}
	log, table := engine.LogID{Origin: "o#own", Epoch: 5}, engine.TableName{Schema: "public", Name: "t"}
	set := engine.NewSchemaSet()
	sc, _ := set.Define(&engine.Schema{Table: table, ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{{Name: "id", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1, Key: true}}})
	if err := f.Carry(log, engine.CompareLSN, []string{"o"}, []engine.TableName{table}); err != nil {
		t.Fatal(err)
	}
	key := engine.AppendKeyValue(nil, "k")
	baseline := func(spec engine.BaselineSpec, rows ...engine.Record) {
		t.Helper()
		spec.Log, spec.Schemas, spec.Tables, spec.At, spec.Time = log, []*engine.Schema{sc}, []engine.TableName{table}, "0/10", 10
		w, err := f.Baseline(t.Context(), spec)
		if err == nil && len(rows) > 0 {
			err = w.Rows(table, rows)
		}
		if err == nil {
			err = w.Commit(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	baseline(engine.BaselineSpec{Behind: map[engine.TableName]engine.Reached{table: {Position: "0/8", Time: 8}}})

	now := time.Unix(1, 0)
	clock := func() time.Time { return now }
	moments := func(h *hub, what string, has bool) *moment {
		t.Helper()
		m := h.acquire()
		_, there, err := m.view.Get(table, key)
		if err != nil || len(m.served) != 1 {
			t.Fatalf("%s: %d logs are served: %v", what, len(m.served), err)
		}
		behind, known := m.served[0].Trail.At("0/10", engine.CompareLSN)
		if there != has || !known || (len(behind) == 0) != has {
			t.Errorf("%s: the row is there: %v, want %v; behind: %v (known: %v)", what, there, has, behind, known)
		}
		return m
	}
	held, idle := newHub(e, nil, nil, clock), newHub(e, nil, nil, clock)
	was := moments(held, "before", false)
	defer held.release(was)
	idle.release(moments(idle, "before", false))
	st.before = func() {
		fresh := newHub(e, nil, nil, clock)
		fresh.release(moments(fresh, "before the commit", false))
	}
	st.after = func() { // and nobody has been told of it
		m := moments(idle, "after the commit", true)
		if m.no == 1 {
			t.Error("a moment with another trail is served as the one before")
		}
		idle.release(m)
	}
	work := session.Work{Log: log, Covers: []engine.TableName{table}}
	held.release(held.baseline(was, work)) // was is held
	baseline(engine.BaselineSpec{Delta: true, Fresh: []engine.TableName{table}, Behind: map[engine.TableName]engine.Reached{}},
		engine.Record{Schema: sc, Key: key, Row: engine.AppendValue(engine.AppendRowHeader(nil, sc.ID, 1), "k"), Stamp: engine.Stamp{Time: 9, Origin: log.Origin, Epoch: log.Epoch}})
	now = now.Add(shareBaseline / 2)
	is := moments(held, "after", true)
	defer held.release(is)
	b := held.baseline(is, work)
	defer held.release(b)
	if b != is {
		t.Error("a baseline begins where the table is behind, and the reader is told that it is not")
	}
}
