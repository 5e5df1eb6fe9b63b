package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// Builders of the messages of transactions in progress (PostgreSQL
// documentation, "Logical Replication Message Formats").

func msgStart(xid uint32, first byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{'S'}, xid), first)
}

func msgStop() []byte { return []byte{'E'} }

func msgAbort(xid, sub uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{'A'}, xid), sub)
}

func msgStreamCommit(xid uint32, end engine.LSN) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{'c'}, xid), msgCommit(end)[1:]...)
}

// within puts the transaction into a message, as it is within a stream.
func within(xid uint32, msg []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{msg[0]}, xid), msg[1:]...)
}

// testReader is a reader without a socket.
func testReader(t testing.TB) *reader {
	t.Helper()
	src, err := New(Config{ConnString: "postgres://h/d", Tables: names("t"), MaxBuffer: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	src.env.Report = func(string, error) {}
	r := &reader{s: src, dec: testDecoder(0), box: newMailbox(), held: newHolding(spill.NewDir(t.TempDir())), head: func(engine.Position, engine.Time) {}}
	t.Cleanup(func() { r.held.close() })
	return r
}

// take returns what a reader has handed on, and what it has not published yet.
func (r *reader) take(t testing.TB) (out []string) {
	t.Helper()
	r.publish()
	for _, b := range r.box.ready {
		if b.run == nil {
			out = append(out, describe(b)...)
			continue
		}
		b.txs = []txEnd{*b.run}
		b.txs[0].end = len(b.changes)
		lines := describe(b)
		out = append(out, fmt.Sprintf("run of %d, last %t: %s", len(b.changes), b.last, lines[0]))
	}
	return out
}

func (r *reader) feed(t testing.TB, msgs ...[]byte) {
	t.Helper()
	for i, m := range msgs {
		if err := r.walData(context.Background(), m); err != nil {
			t.Fatalf("message %d, %q: %v", i, m, err)
		}
	}
}

func TestStreamedTransactions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		msgs [][]byte
		want []string
	}{
		{"interleaved with others, committed in another order", [][]byte{
			msgStart(7, 1), within(7, msgRelation(1)), within(7, msgInsert("1", nil, "a")), msgStop(),
			msgStart(8, 1), within(8, msgRelation(1)), within(8, msgInsert("2", nil, "b")), msgStop(),
			msgBegin(), msgRelation(1), msgInsert("3", nil, "c"), msgCommit(0x10),
			msgStart(7, 0), within(7, msgInsert("4", nil, "d")), msgStop(),
			msgStreamCommit(8, 0x20), msgStreamCommit(7, 0x30),
		}, []string{
			"(0/0 0/10] schemas 1", `put 16.1 [3] "3" null "c"`,
			"(0/10 0/20] schemas 0", `put 32.1 [2] "2" null "b"`,
			"(0/20 0/30] schemas 0", `put 48.1 [1] "1" null "a"`, `put 48.2 [4] "4" null "d"`,
		}},
		{"a subtransaction is rolled back, and one within the same part stays", [][]byte{
			msgStart(7, 1), within(7, msgRelation(1)), within(7, msgInsert("1", nil, "a")), within(9, msgInsert("2", nil, "b")),
			within(10, msgInsert("3", nil, "c")), within(9, msgInsert("4", nil, "d")), within(7, msgInsert("5", nil, "e")), msgStop(),
			msgAbort(7, 9), msgStreamCommit(7, 0x30),
		}, []string{"(0/0 0/30] schemas 1", `put 48.1 [1] "1" null "a"`, `put 48.2 [3] "3" null "c"`, `put 48.3 [5] "5" null "e"`}},
		{"rolled back whole, its relation is not known to others", [][]byte{
			msgStart(7, 1), within(7, msgRelation(1)), within(7, msgInsert("1", nil, "a")), msgStop(), msgAbort(7, 7), msgAbort(6, 6),
			msgBegin(), msgRelation(1), msgInsert("2", nil, "b"), msgCommit(0x10),
		}, []string{"(0/0 0/10] schemas 1", `put 16.1 [2] "2" null "b"`}},
		{"a relation described by a stream is known after it", [][]byte{
			msgStart(7, 1), within(7, msgRelation(1)), within(7, msgInsert("1", nil, "a")), msgStop(), msgStreamCommit(7, 0x10),
			msgBegin(), msgInsert("2", nil, "b"), msgCommit(0x20),
		}, []string{"(0/0 0/10] schemas 1", `put 16.1 [1] "1" null "a"`, "(0/10 0/20] schemas 0", `put 32.1 [2] "2" null "b"`}},
		{"nothing of ours", [][]byte{
			msgStart(7, 1), []byte("O"), within(7, []byte("Ypg\x00")), within(7, []byte("M")), within(7, msgRelation(3)), within(7, append(msgChange('I', 3), 'N', 0, 0)), msgStop(), msgStreamCommit(7, 0x10),
			msgBegin(), msgRelation(1), msgInsert("2", nil, "b"), msgCommit(0x20),
		}, []string{"(0/0 0/20] schemas 1", `put 32.1 [2] "2" null "b"`}},
	} {
		r := testReader(t)
		r.feed(t, tt.msgs...)
		if got := r.take(t); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got\n%q\nwant\n%q", tt.name, got, tt.want)
		}
		if len(r.held.streams) != 0 || r.held.current != nil || r.held.scratch.Used() != 0 {
			t.Errorf("%s: still held: %v", tt.name, r.held)
		}
	}
}

// What a relation was in a stream does not replace what it has become since.
func TestStreamedRelationIsOfItsStream(t *testing.T) {
	t.Parallel()
	r := testReader(t)
	var resolved []*relation
	r.dec.resolve = func(m *relationMessage) (*relation, error) {
		s := testSchema()
		s.ID = uint32(len(resolved) + 1)
		resolved = append(resolved, newRelation(s))
		return resolved[len(resolved)-1], nil
	}
	r.feed(t, msgStart(7, 1), within(7, msgRelation(1)), within(7, msgInsert("1", nil, "old")), msgStop())
	if len(resolved) != 0 {
		t.Error("a relation of a transaction in progress was looked up")
	}
	r.feed(t, msgBegin(), msgRelation(1), msgInsert("2", nil, "new"), msgCommit(0x10))
	r.feed(t, msgStreamCommit(7, 0x20))
	r.feed(t, msgBegin(), msgInsert("3", nil, "new"), msgCommit(0x30))
	r.publish()
	var ids []uint32
	for _, b := range r.box.ready {
		for _, c := range b.changes {
			ids = append(ids, c.Schema.ID)
		}
	}
	if !slices.Equal(ids, []uint32{1, 2, 1}) {
		t.Errorf("the changes have schemas %v, want 1, 2, 1", ids)
	}
}

// A large transaction comes in runs, streamed or whole, with its schemas in the
// first and its changes numbered through; one that was applied before is dropped.
func TestRuns(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 10_000)
	for _, streamed := range []bool{true, false} {
		r := testReader(t)
		const rows = 1000
		msg := func(m []byte) []byte {
			if streamed {
				return within(7, m)
			}
			return m
		}
		begin, commit := msgBegin(), msgCommit(0x30)
		if streamed {
			begin, commit = msgStart(7, 1), msgStreamCommit(7, 0x30)
		}
		r.feed(t, msgBegin(), msgRelation(1), msgInsert("0", nil, "before"), msgCommit(0x10))
		r.feed(t, begin, msg(msgRelation(1)))
		for i := range rows {
			r.feed(t, msg(msgInsert(fmt.Sprint(i), nil, big)))
		}
		if streamed {
			r.feed(t, msgStop())
		}
		if got := len(r.box.ready); !streamed && got != 1 || streamed && got != 0 {
			t.Fatalf("%d batches before the commit", got)
		}
		r.feed(t, commit, msgBegin(), msgInsert("1", nil, "after"), msgCommit(0x40))
		r.publish()
		var n int
		var largest int
		for i, b := range r.box.ready {
			if b.run == nil {
				continue
			}
			largest = max(largest, b.bytes)
			if b.run.lsn != 0x30 || b.run.prev != "0/10" || b.last != (n+len(b.changes) == rows) {
				t.Errorf("batch %d is of %+v, last %t", i, b.run, b.last)
			}
			for _, c := range b.changes {
				if n++; c.Stamp.Version != (engine.Version{Major: 0x30, Minor: uint32(n)}) {
					t.Fatalf("change %d has %v", n, c.Stamp.Version)
				}
			}
		}
		if n != rows || largest > largeTx+2*batchSize {
			t.Errorf("streamed %t: %d changes in runs, want %d; the largest has %d bytes", streamed, n, rows, largest)
		}
		if last := describe(r.box.ready[len(r.box.ready)-1]); last[0] != "(0/30 0/40] schemas 0" {
			t.Errorf("after it: %q", last)
		}
		if r.held.scratch.Used() != 0 {
			t.Error("scratch is not given back")
		}

		r = testReader(t)
		r.dec.from = 0x30
		r.feed(t, begin, msg(msgRelation(1)))
		for i := range rows {
			r.feed(t, msg(msgInsert(fmt.Sprint(i), nil, big)))
		}
		if streamed {
			r.feed(t, msgStop())
		}
		r.feed(t, commit, msgBegin(), msgInsert("1", nil, "after"), msgCommit(0x40))
		if got := r.take(t); len(got) != 2 || got[0] != "(0/0 0/40] schemas 1" {
			t.Errorf("streamed %t: after one that was applied: %q", streamed, got)
		}
	}
}

func TestStreamDamage(t *testing.T) {
	t.Parallel()
	for name, msgs := range map[string][][]byte{
		"part within a part":        {msgStart(7, 1), msgStart(8, 1)},
		"commit within a part":      {msgStart(7, 1), msgStreamCommit(7, 1)},
		"plain commit in a part":    {msgStart(7, 1), msgCommit(1)},
		"part within a transaction": {msgBegin(), msgStart(7, 1)},
		"begins twice":              {msgStart(7, 1), msgStop(), msgStart(7, 1)},
		"goes on unbegun":           {msgStart(7, 0)},
		"ends unbegun":              {msgStop()},
		"commit of nothing":         {msgStreamCommit(7, 1)},
		"no transaction":            {msgStart(0, 1)},
		"change without its number": {msgStart(7, 1), {'I', 0}},
		"short start":               {{'S', 1}},
		"short abort":               {{'A', 1}},
		"short commit":              {{'c', 1}},
		"bad relation":              {msgStart(7, 1), within(7, []byte{'R', 1})},
		"bad change":                {msgStart(7, 1), within(7, msgRelation(1)), within(7, msgInsert("1")), msgStop(), msgStreamCommit(7, 1)},
	} {
		r := testReader(t)
		var err error
		for _, m := range msgs {
			if err = r.walData(context.Background(), m); err != nil {
				break
			}
		}
		if !errors.Is(err, errMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzStream(f *testing.F) {
	for _, m := range [][]byte{msgBegin(), msgCommit(5), msgStart(7, 1), msgStart(7, 0), msgStop(), msgAbort(7, 9), msgAbort(7, 7), msgStreamCommit(7, 9), within(7, msgRelation(1)), within(9, msgInsert("1", nil, "x")), msgInsert("1", nil, "x")} {
		f.Add(m, m)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		r := testReader(t)
		r.feed(t, msgStart(7, 1), within(7, msgRelation(1)))
		for _, m := range [][]byte{a, b, msgStop(), msgStreamCommit(7, 9)} {
			if err := r.walData(context.Background(), m); err != nil && !errors.Is(err, errMessage) {
				t.Fatal(err)
			}
		}
	})
}

// smallDecoding makes the server send transactions in progress early.
func smallDecoding(t *testing.T, db *testpg.DB) {
	t.Helper()
	db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET logical_decoding_work_mem='64kB'")
}

// A savepoint that is rolled back in a transaction that is sent while it is in
// progress.
func TestCaseP05(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		smallDecoding(t, db)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
		n.ready()
		insert := func(from, count int) string {
			return fmt.Sprintf(`INSERT INTO t SELECT i, 0, repeat('x', 300) FROM generate_series(%d, %d) i`, from, from+count-1)
		}
		db.Exec(t, `BEGIN`+`;`+insert(1, 500)+`; SAVEPOINT a; `+insert(501, 500)+`; ROLLBACK TO a; `+insert(1001, 5)+`; COMMIT`)
		n.converges(db, "t")
		if got := n.rows("t"); got != 505 {
			t.Errorf("%d rows, want 505", got)
		}
		// Nested, with changes of shape, a truncate and a rollback of the whole.
		db.Exec(t,
			`BEGIN; `+insert(2000, 500)+`; ALTER TABLE t ADD gone int; UPDATE t SET gone=1; ROLLBACK`,
			`BEGIN; `+insert(2000, 500)+`; SAVEPOINT a; `+insert(3000, 500)+`; SAVEPOINT b; `+insert(4000, 500)+`; RELEASE b; ROLLBACK TO a;
				ALTER TABLE t ADD x text; `+insert(5000, 500)+`; UPDATE t SET x='x'||id; SAVEPOINT c; ALTER TABLE t ADD y text; UPDATE t SET y='y'; ROLLBACK TO c;
				UPDATE t SET x=x||'!' WHERE id%3=0; COMMIT`,
			`BEGIN; `+insert(6000, 500)+`; TRUNCATE t; `+insert(7000, 700)+`; DELETE FROM t WHERE id%2=0; COMMIT`,
			`INSERT INTO t VALUES (1,1,'last','x')`)
		n.converges(db, "t")
		if got := streamed(t, db); got == "0" {
			t.Error("the server has sent nothing before its commit: this tests nothing")
		}
		if got := n.baselines(); got != 1 {
			t.Errorf("%d baselines, want 1", got)
		}
	})
}

// Rows that are larger than the buffer, in a transaction that comes in runs.
func TestRowsLargerThanTheBuffer(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t"), MaxBuffer: 64 << 10})
		n.ready()
		db.Exec(t, `INSERT INTO t SELECT i, 0, repeat('x', 3000000) FROM generate_series(1, 5) i`)
		n.converges(db, "t")
		if n.model.runs == 0 {
			t.Error("it did not come in runs")
		}
	})
}

// streamed returns how many transactions the database's slots sent in progress.
func streamed(t *testing.T, db *testpg.DB) (count string) {
	t.Helper()
	eventually(t, "the slot's statistics", func() bool {
		count = db.Value(t, `SELECT coalesce(sum(stream_txns),0) FROM pg_stat_replication_slots WHERE slot_name IN (SELECT slot_name FROM pg_replication_slots WHERE database=current_database())`)
		return count != "0"
	})
	return count
}

// A transaction that comes in runs; the node ends after the first. It has not
// acknowledged it, and gets it whole when it is back.
func TestCaseP07(t *testing.T) {
	t.Parallel()
	for _, mem := range []string{"64kB", "1GB"} { // sent in progress, and whole
		t.Run(mem, func(t *testing.T) {
			t.Parallel()
			eachVersion(t, func(t *testing.T, db *testpg.DB) {
				db.Exec(t, createT)
				db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET logical_decoding_work_mem='"+mem+"'")
				var ended atomic.Bool
				var n *node
				n = start(t, Config{ConnString: db.ConnString, Tables: names("t"), Permanent: true}, func(m *model) {
					m.durable = true
					m.inRun = func(run int) {
						if run == 2 && ended.CompareAndSwap(false, true) {
							n.cancel()
							time.Sleep(100 * time.Millisecond)
						}
					}
				})
				n.ready()
				before := n.position()
				db.Exec(t, `INSERT INTO t SELECT i, 0, repeat('x', 1000) FROM generate_series(1, 10000) i`)
				eventually(t, "the node has ended", func() bool {
					select {
					case <-n.done:
						return true
					default:
						return false
					}
				})
				n.stop()
				confirmed := engine.Position(db.Value(t, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database=current_database()`))
				if len(n.model.txs) != 0 || engine.CompareLSN(n.position(), confirmed) < 0 {
					t.Fatalf("%d transactions, at %s (baseline %s), the slot at %s", len(n.model.txs), n.position(), before, confirmed)
				}
				n = startSource(t, n.src, n.model)
				n.converges(db, "t")
				if len(n.model.txs) != 1 || n.model.changes != 10000 || n.baselines() != 1 {
					t.Errorf("%d transactions with %d changes, %d baselines", len(n.model.txs), n.model.changes, n.baselines())
				}
			})
		})
	}
}
