package ingest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// What random batches come to is what the model says, one by one.
func TestModel(t *testing.T) {
	t.Parallel()
	st := memory(t)
	l := live(t, st, Config{})
	r, m := rand.New(rand.NewPCG(3, 4)), newModel()
	for i := range 400 {
		b := randomBatch(r, 1+r.IntN(12))
		if r.IntN(5) == 0 { // refused as a whole, whatever comes before
			bad := *b
			bad.Ops = append(b.Ops[:len(b.Ops):len(b.Ops)], Op{Kind: Add, Table: orders, Row: []Field{field("id", "1"), field("n", "99999999999")}})
			if _, err := l.Write(t.Context(), &bad); code(err) != Conflict {
				t.Fatalf("batch %d: %v", i, err)
			}
		}
		l.must(t, b)
		m.apply(b)
		if got, want := canonRows(rowsOf(t, st)), canonRows(m.rows()); got != want {
			t.Fatalf("batch %d: %+v\ngot\n%s\nwant\n%s", i, b, got, want)
		}
	}
}

// A node whose peers have seen more of it than it has takes a new epoch: its own
// rows stand, those of a backup under the stamps they had, and those that it has written
// since it runs above all that was seen; keys are still known.
func TestNewEpoch(t *testing.T) {
	t.Parallel()
	for name, restored := range map[string]bool{"restored": true, "wiped": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testNewEpoch(t, restored)
		})
	}
}

func testNewEpoch(t *testing.T, restored bool) {
	st := memory(t)
	l := live(t, st, Config{})
	b := one(Put, field("id", "1"), field("name", "stands"))
	b.Key = "k"
	first := l.must(t, b)
	l.must(t, one(Put, field("id", "2"), field("name", "goes")))
	second := l.must(t, one(Delete, field("id", "2")))
	was, _ := get(t, st, orders, "1")
	newer := engine.Epoch(5)
	if restored {
		newer = 0
		l.end()
		l = live(t, st, Config{})
	}
	seen := second.Time + engine.Time(time.Hour/time.Microsecond)
	l.engine.Witness("peer", first.Log.Epoch+newer, seen)
	var res Result
	eventually(t, "the new epoch", func() bool {
		res = l.must(t, one(Put, field("id", "3")))
		return res.Log != first.Log
	})
	if res.Log.Origin != first.Log.Origin || res.Log.Epoch <= first.Log.Epoch+newer || res.Time <= seen || engine.CompareNumber(res.Position, second.Position) <= 0 {
		t.Errorf("first %+v, then %+v, seen %d", first, res, seen)
	}
	stamp := was.Stamp.Log()
	if !restored {
		stamp = res.Log
	}
	if now, ok := get(t, st, orders, "1"); !ok || now.Stamp.Log() != stamp || restored && now.Stamp != was.Stamp || string(now.Row) != string(was.Row) {
		t.Errorf("the row that stood is %+v, was %+v", now, was)
	}
	if again := l.must(t, b); !again.Repeated || again.Position != first.Position || again.Log != first.Log {
		t.Errorf("%+v, was %+v", again, first)
	}
	l.must(t, one(Set, field("id", "1"), field("n", "5")))
	if got := canonRows(rowsOf(t, st)); !strings.Contains(got, `"1","stands",null,"5"`) || strings.Contains(got, "goes") {
		t.Error(got)
	}
	if logs := l.engine.Adverts(); len(logs) != 1 || logs[0].Log != res.Log {
		t.Errorf("%+v", logs)
	}
	if st := l.engine.Status(); st.Sources[0].HistoryLost != 1 || !restored && st.Sources[0].Rebaselines != 1 {
		t.Errorf("%+v", st.Sources)
	}
	l.end()
	l = live(t, st, Config{}) // and it stays
	if next := l.must(t, one(Put, field("id", "4"))); next.Log != res.Log || engine.CompareNumber(next.Position, res.Position) <= 0 {
		t.Errorf("%+v after %+v", next, res)
	}
}

// A row that another node wrote, by a clock that is ahead and with columns in
// another order, is completed by name and written over.
func TestForeignRow(t *testing.T) {
	t.Parallel()
	st := memory(t)
	log := engine.LogID{Origin: "other#in", Epoch: 9}
	sc := &engine.Schema{ID: 1, Table: orders, Columns: []engine.Column{
		{Name: "n", Number: 1, TypeOID: 23, TypeName: "integer"}, {Name: "id", Number: 2, TypeOID: 20, TypeName: "bigint", Key: true}, {Name: "extra", Number: 3, TypeOID: 25, TypeName: "text"}, {Name: "total", Number: 4, TypeName: "numeric"},
	}}
	put := func(id string, ahead time.Duration) engine.Stamp {
		tx, err := st.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		row := engine.AppendRowHeader(nil, 1, 4)
		for _, v := range []string{"40", id, "x", "1.10"} {
			row = engine.AppendValue(row, v)
		}
		stamp := engine.Stamp{Time: engine.TimeOf(time.Now().Add(ahead)), Origin: log.Origin, Epoch: log.Epoch}
		if err := tx.PutSchema(log, sc); err != nil {
			t.Fatal(err)
		}
		if err := tx.Put(&engine.Record{Schema: sc, Key: engine.AppendKeyValue(nil, id), Row: row, Stamp: stamp}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		return stamp
	}
	l := live(t, st, Config{})
	for i, ahead := range []time.Duration{-time.Hour, time.Hour} {
		id := fmt.Sprint(i)
		was := put(id, ahead)
		res := l.must(t, one(Add, field("id", id), field("n", "2"), field("total", "0.05")))
		now, ok := get(t, st, orders, id)
		if !ok || now.Stamp.Origin != "n#in" || now.Stamp.Time != res.Time || res.Time <= was.Time {
			t.Errorf("%v: %+v, was %+v", ahead, now.Stamp, was)
		}
		if got := canonRows(rowsOf(t, st)); !strings.Contains(got, `"`+id+`",null,"1.15","42"`) {
			t.Error(got)
		}
	}
	put("7", 2*366*24*time.Hour)
	if _, err := l.Write(t.Context(), one(Put, field("id", "7"))); code(err) != Conflict || !strings.Contains(err.Error(), "mend the clock") {
		t.Errorf("%v", err)
	}
	put("8", -time.Hour)
	l.must(t, &Batch{Ops: []Op{{Kind: Truncate, Table: orders}, {Kind: Set, Table: orders, Row: []Field{field("id", "8"), field("name", "mine")}}}})
	if got := canonRows(rowsOf(t, st)); !strings.Contains(got, `"8","mine","1.10","40"`) { // a truncate is of own rows only
		t.Error(got)
	}
}

// Tables change with the configuration; what would make rows unreadable or
// mixed up is refused, and told.
func TestEvolution(t *testing.T) {
	t.Parallel()
	st := memory(t)
	table := func(columns ...Column) Config { return Config{Tables: []Table{{orders, columns}}} }
	id, name, n := Column{"id", "bigint", true}, Column{"name", "varchar(10)", false}, Column{"n", "int", false}
	l := live(t, st, table(id, name, n))
	l.must(t, one(Put, field("id", "1"), field("name", "a"), field("n", "1")))
	next := func(c Config) {
		t.Helper()
		l.end()
		l = live(t, st, c)
	}
	next(table(Column{"extra", "numeric", false}, id, Column{"name", "text", false}, Column{"n", "bigint", false}))
	res := l.must(t, one(Set, field("id", "1"), field("extra", "0.5"), field("name", "a name that is longer")))
	if got := rowsOf(t, st)[orders]; len(got) != 1 || got[0] != `"0.5","1","a name that is longer","1",` {
		t.Errorf("%q", got)
	}
	if l.engine.Status().Sources[0].Baselines != 0 {
		t.Error("a new column has made a baseline")
	}
	next(table(id, Column{"name", "text", false})) // columns go
	l.must(t, one(Set, field("id", "1"), field("name", "b")))
	next(table(id, Column{"name", "text", false}, n)) // one of that name comes: it has nothing of the old one
	if r := l.must(t, one(Set, field("id", "1"), field("name", "c"))); r.Log != res.Log {
		t.Errorf("the epoch is another: %v, was %v", r.Log, res.Log)
	}
	if got := rowsOf(t, st)[orders]; len(got) != 1 || got[0] != `"1","c",null,` {
		t.Errorf("%q", got)
	}
	more := table(id, Column{"name", "text", false}, n)
	more.Tables = append(more.Tables, testTables()[1])
	next(more)
	l.must(t, &Batch{Ops: []Op{{Kind: Put, Table: counts, Row: []Field{field("day", "2024-01-01"), field("who", "w")}}}})
	if a := l.engine.Adverts(); len(a) != 1 || len(a[0].Tables) != 2 {
		t.Errorf("%+v", a)
	}
	next(Config{Tables: testTables()[1:]}) // a table goes: its rows stay
	if _, err := l.Write(t.Context(), one(Put, field("id", "2"))); code(err) != NoTable {
		t.Errorf("%v", err)
	}
	if got := rowsOf(t, st); len(got[orders]) != 1 || len(got[counts]) != 1 {
		t.Errorf("%q", got)
	}
	for want, c := range map[string]Config{
		"the key of table public.orders is [id] in the store and [name] in the configuration": table(Column{"id", "bigint", false}, Column{"name", "text", true}),
		"column name of table public.orders is of type text in the store and integer":         table(id, Column{"name", "int", false}),
		"column id of table public.orders is of type bigint in the store and smallint":        table(Column{"id", "smallint", true}),
	} {
		c.Timeout = 50 * time.Millisecond
		next(c)
		eventually(t, want, func() bool {
			s := l.engine.Status().Sources[0]
			return s.Reason == engine.ReasonTableChanged && strings.Contains(s.Message, want)
		})
		if _, err := l.Write(t.Context(), one(Truncate)); code(err) != Unavailable {
			t.Errorf("%v", err)
		}
	}
	next(more)
	l.must(t, one(Set, field("id", "1"), field("n", "3")))
	if got := rowsOf(t, st)[orders]; len(got) != 1 || got[0] != `"1","c","3",` {
		t.Errorf("%q", got)
	}
}

// Keys are remembered as long as there is room, across restarts; each writer has
// keys of its own; a batch that was refused has used none.
func TestKeys(t *testing.T) {
	t.Parallel()
	st := memory(t)
	l := live(t, st, Config{MaxKeys: 3})
	keyed := func(writer, key string) *Batch {
		b := one(Add, field("id", "1"), field("n", "1"))
		b.Writer, b.Key = writer, key
		return b
	}
	repeated := func(writer, key string, want bool) {
		t.Helper()
		if res := l.must(t, keyed(writer, key)); res.Repeated != want {
			t.Errorf("writer %q, key %q: repeated is %v", writer, key, res.Repeated)
		}
	}
	bad := keyed("a", "1")
	bad.Ops[0].Row[1] = field("n", "1e12")
	if _, err := l.Write(t.Context(), bad); code(err) != Conflict {
		t.Fatal(err)
	}
	repeated("a", "1", false)
	repeated("a", "1", true)
	repeated("b", "1", false)
	repeated("a", "2", false)
	repeated("a", "1", true)
	l.end()
	l = live(t, st, Config{MaxKeys: 3})
	repeated("a", "1", true)
	repeated("a", "3", false) // the oldest goes
	repeated("a", "1", false)
	repeated("b", "1", false)
	repeated("a", "3", true)
	v := st.View()
	facts := 0
	v.ScanMeta("fact/in/", func(string, []byte) bool { facts++; return true })
	v.Close()
	if facts != 3 || l.Status().Keys != 3 {
		t.Errorf("%d facts, %+v", facts, l.Status())
	}
	if got := rowsOf(t, st)[orders][0]; got != `"1",null,null,"6",` {
		t.Error(got)
	}
	l.end()
	l = live(t, st, Config{KeyRetention: time.Microsecond})
	repeated("c", "1", false)
	time.Sleep(time.Millisecond)
	repeated("c", "2", false)
	if n := l.Status().Keys; n != 1 {
		t.Errorf("%d keys, want the newest only", n)
	}
}

// slow is a store whose commits can be held up, before they begin or at their
// end.
type slow struct {
	engine.Store
	begin, commit gate
}

// gate lets through while it is not held.
type gate struct {
	mu   sync.Mutex
	held chan struct{}
}

func (g *gate) hold() { g.mu.Lock(); defer g.mu.Unlock(); g.held = make(chan struct{}) }
func (g *gate) open() { g.mu.Lock(); defer g.mu.Unlock(); close(g.held); g.held = nil }

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	held := g.held
	g.mu.Unlock()
	if held == nil {
		return nil
	}
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slow) Begin(ctx context.Context) (engine.Tx, error) {
	if err := s.begin.pass(ctx); err != nil {
		return nil, err
	}
	tx, err := s.Store.Begin(ctx)
	return slowTx{tx, s}, err
}

type slowTx struct {
	engine.Tx
	s *slow
}

func (t slowTx) Commit() error {
	_ = t.s.commit.pass(context.Background())
	return t.Tx.Commit()
}

// A batch that is not committed in time has not been written if it was not its
// turn yet; otherwise its key tells later.
func TestStalled(t *testing.T) {
	t.Parallel()
	st := &slow{Store: memory(t)}
	l := live(t, st, Config{})
	l.must(t, one(Put, field("id", "1")))

	st.begin.hold()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Write(ctx, one(Put, field("id", "2"))); code(err) != Unavailable {
		t.Errorf("%v", err)
	}
	st.begin.open()
	l.must(t, one(Put, field("id", "3")))
	if _, ok := get(t, st, orders, "2"); ok {
		t.Error("a batch that was given up has been written")
	}

	st.commit.hold()
	b := one(Add, field("id", "4"), field("n", "1"))
	b.Key = "k"
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Write(ctx, b); code(err) != Unknown {
		t.Errorf("%v", err)
	}
	st.commit.open()
	if res := l.must(t, b); !res.Repeated || res.Rows != 1 {
		t.Errorf("%+v", res)
	}
	if st := l.Status(); st.Pending != 0 || st.PendingBytes != 0 {
		t.Errorf("%+v", st)
	}
}

// Positions are in order by every comparator that a reader may have.
func TestPositions(t *testing.T) {
	t.Parallel()
	for name, compare := range engine.Comparators {
		for _, n := range []uint64{0, 1, 9, 10, 99, 1<<40 - 1} {
			if compare(position(n), position(n+1)) >= 0 || compare("", position(n)) >= 0 || number(position(n)) != n {
				t.Errorf("%s: %q is not before %q", name, position(n), position(n+1))
			}
		}
	}
}
