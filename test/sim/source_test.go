package sim

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// The sources of a simulated node: what the node writes itself, as package ingest
// does, and its mesh. Their loops are the simulation's.

type asked struct{}

func (asked) SupportsResume() bool                                          { return true }
func (asked) OrderingGuarantee() engine.Ordering                            { return engine.PerLogOrder }
func (asked) ComparePositions(a, b engine.Position) int                     { return engine.CompareNumber(a, b) }
func (asked) PositionToString(p engine.Position) string                     { return string(p) }
func (asked) PositionFromString(s string) (engine.Position, error)          { return engine.Position(s), nil }
func (asked) Pause()                                                        {}
func (asked) Resume()                                                       {}
func (asked) Stream(context.Context, engine.Cursors, engine.Sink) error     { panic("not run") }
func (asked) LastAckedPosition(engine.LogID) (p engine.Position)            { return p }
func (asked) Baseline(context.Context, engine.Sink) error                   { return nil }
func (asked) Ack(engine.Cursor, bool)                                       {}
func (asked) Init(context.Context, engine.Env) (i engine.Info, error error) { return i, nil }

// meshSource hands the engine's acks to the node's intake; those of logs that are
// applied together, once all are.
type meshSource struct {
	asked
	n *node

	mu    sync.Mutex
	holds bool
	acks  []acked
}

func (s *meshSource) Ack(c engine.Cursor, durable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds {
		s.acks = append(s.acks, acked{c, durable})
		return
	}
	s.n.intake.Ack(c, durable)
}

type acked struct {
	cursor  engine.Cursor
	durable bool
}

// hold keeps acks back; release tells them, in the same order every time.
func (s *meshSource) hold() { s.holds = true }

func (s *meshSource) release() {
	slices.SortStableFunc(s.acks, func(a, b acked) int { return strings.Compare(a.cursor.Log.String(), b.cursor.Log.String()) })
	for _, a := range s.acks {
		s.n.intake.Ack(a.cursor, a.durable)
	}
	s.holds, s.acks = false, nil
}

// ownSource mints what the node writes. The state is the only copy of it.
type ownSource struct {
	asked
	n       *node
	last    uint64
	schemas map[string]*engine.Schema
}

func tableOf(name string) engine.TableName { return engine.TableName{Schema: "public", Name: name} }

func (s *ownSource) Init(_ context.Context, env engine.Env) (engine.Info, error) {
	info := engine.Info{Mints: true, History: "sim", Order: "number"}
	s.schemas = map[string]*engine.Schema{}
	for i, name := range s.n.tables() {
		oid, typ := uint32(25), "text"
		if name == "hits" {
			oid, typ = 20, "bigint"
		}
		sc, _ := env.Schemas.Define(&engine.Schema{Table: tableOf(name), RelationOID: uint32(100 + i), ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
			{Name: "id", Number: 1, TypeOID: 25, TypeName: "text", TypeMod: -1, Key: true},
			{Name: "v", Number: 2, TypeOID: oid, TypeName: typ, TypeMod: -1},
		}})
		s.schemas[name] = sc
		info.Tables = append(info.Tables, sc)
	}
	n, _ := strconv.ParseUint(string(env.Cursor), 10, 64)
	s.last = max(s.last, n)
	return info, nil
}

func (s *ownSource) Baseline(ctx context.Context, sink engine.Sink) error {
	spec := engine.BaselineSpec{At: number(s.last), Major: s.last, Standing: true}
	for _, t := range s.n.tables() {
		spec.Schemas, spec.Tables = append(spec.Schemas, s.schemas[t]), append(spec.Tables, tableOf(t))
	}
	w, err := sink.Baseline(ctx, spec)
	if err != nil {
		return err
	}
	return w.Commit(ctx)
}

func number(n uint64) engine.Position { return engine.Position(strconv.FormatUint(n, 10)) }

// write commits a transaction.
func (s *ownSource) write(sink engine.Sink, ops []Op) error {
	s.last++
	tx := engine.Transaction{Position: number(s.last), Major: s.last, Commit: s.n.wall()}
	tx.Make = func(t *engine.Transaction, state engine.Rows) error {
		for _, o := range ops {
			c := engine.Change{Schema: s.schemas[o.Table], Op: engine.OpTruncate}
			value := o.value()
			if o.Kind != "truncate" {
				c.Op, c.Key = engine.OpDelete, engine.AppendKeyValue(nil, o.Key)
				have, ok, err := state.Get(c.Schema.Table, c.Key)
				if err != nil {
					return err
				}
				if ok {
					t.Time = max(t.Time, have.Stamp.Time+1) // a write is above what it has seen
				}
				if o.Kind == "add" {
					sum := o.N
					if ok && !have.Deleted {
						sum += valueOf(have.Row)
					}
					value = strconv.Itoa(sum)
				}
			}
			if o.Kind == "put" || o.Kind == "add" {
				c.Op = engine.OpPut
				c.Row = engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, c.Schema.ID, 2), o.Key), value)
			}
			t.Changes = append(t.Changes, c)
		}
		return nil
	}
	return sink.Apply(context.Background(), []engine.Transaction{tx})
}

// valueOf is the number in the second column.
func valueOf(r engine.Row) int {
	for i, c := range r.Columns() {
		if i == 1 {
			n, _ := strconv.Atoi(string(c.Value))
			return n
		}
	}
	return 0
}
