package ingest

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/sourcetest"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// life is a source in an engine over a store that may have had others before.
type life struct {
	*Source
	engine *engine.Engine
	store  engine.Store
	end    func() // of the engine, not of the store; idempotent
}

func live(t testing.TB, st engine.Store, cfg Config) *life {
	t.Helper()
	if cfg.Tables == nil {
		cfg.Tables = testTables()
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Options{NodeID: "n", Store: st, Logger: slog.New(slog.DiscardHandler)})
	e.AddSource("in", s, engine.Keep{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	l := &life{s, e, st, func() { cancel(); <-ended }}
	t.Cleanup(l.end)
	return l
}

func memory(t testing.TB) engine.Store {
	st := store.NewMemory(store.MemoryOptions{})
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func (l *life) must(t testing.TB, b *Batch) Result {
	t.Helper()
	res, err := l.Write(context.Background(), b)
	if err != nil {
		t.Fatalf("%+v: %v", b, err)
	}
	return res
}

// rows returns what the state holds, by the columns of each row's own schema.
func rowsOf(t testing.TB, st engine.Store) sourcetest.Rows {
	t.Helper()
	v := st.View()
	defer v.Close()
	out := sourcetest.Rows{}
	for _, i := range v.Tables() {
		out[i.Table] = []string{}
		if err := v.Scan(i.Table, nil, func(r *engine.Record) bool {
			if r.Deleted {
				return true
			}
			var values []*string
			for _, c := range r.Row.Columns() {
				var p *string
				if c.State == engine.Present {
					s := string(c.Value)
					p = &s
				}
				values = append(values, p)
			}
			out[i.Table] = append(out[i.Table], sourcetest.Row(values...))
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func get(t testing.TB, st engine.Store, table engine.TableName, key ...string) (engine.Record, bool) {
	t.Helper()
	v := st.View()
	defer v.Close()
	var k []byte
	for _, p := range key {
		k = engine.AppendKeyValue(k, p)
	}
	r, ok, err := v.Get(table, k)
	if err != nil {
		t.Fatal(err)
	}
	r.Row = append(engine.Row{}, r.Row...)
	return r, ok && !r.Deleted
}

func one(k Kind, row ...Field) *Batch {
	return &Batch{Ops: []Op{{Kind: k, Table: orders, Row: row}}}
}

func code(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for ", what)
		}
	}
}
