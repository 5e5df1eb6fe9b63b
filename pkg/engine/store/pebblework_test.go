package store

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// workload writes transactions as an engine does, from a seed.
type workload struct {
	t    testing.TB
	rng  *rand.Rand
	n    int // transactions of the log
	time engine.Time
	meta int
}

var (
	workLog    = engine.LogID{Origin: "x", Epoch: 7}
	workTables = []*engine.Schema{workSchema(1, "a"), workSchema(2, "b"), workSchema(3, "c")}
)

func workSchema(id uint32, name string) *engine.Schema {
	return &engine.Schema{ID: id, Table: engine.TableName{Schema: "public", Name: name}, RelationOID: 16384, ReplicaIdentity: engine.IdentityDefault,
		Columns: []engine.Column{{Name: "id", Number: 1, Key: true}, {Name: "v", Number: 2}}}
}

func workPosition(n int) engine.Position {
	if n == 0 {
		return ""
	}
	return engine.LSN(n * 0x100).Position()
}

func (w *workload) record(s *engine.Schema) engine.Record {
	w.time++
	r := engine.Record{Schema: s, Key: fmt.Appendf(nil, "key-%03d", w.rng.IntN(60)), Stamp: engine.Stamp{
		Time: w.time, Origin: workLog.Origin, Epoch: workLog.Epoch, Version: engine.Version{Major: uint64(w.time)},
	}}
	if r.Deleted = w.rng.IntN(4) == 0; !r.Deleted {
		size := 10 + w.rng.IntN(300)
		if w.rng.IntN(40) == 0 {
			size = 9000 // written by itself
		}
		r.Row = w.row(size)
	}
	return r
}

// row is a row that does not compress.
func (w *workload) row(n int) engine.Row {
	row := make(engine.Row, n)
	for i := range row {
		row[i] = byte(w.rng.Uint32())
	}
	return row
}

func (w *workload) must(err error) {
	if err != nil {
		w.t.Helper()
		w.t.Fatal(err)
	}
}

// first makes the log.
func (w *workload) first(tx engine.Tx) {
	w.must(tx.ResetLog(workLog, engine.CompareLSN, "", 1))
	for _, s := range workTables {
		w.must(tx.PutSchema(workLog, s))
	}
	w.cursor(tx)
}

func (w *workload) cursor(tx engine.Tx) {
	w.must(tx.SetCursor(engine.Cursor{CursorKey: engine.CursorKey{Log: workLog}, Position: workPosition(w.n), Time: w.time}))
	w.must(tx.SetMeta("transactions", fmt.Append(nil, w.n)))
}

// next writes one transaction: rows, entries, cursor, and something else now
// and then.
func (w *workload) next(s engine.Store, tx engine.Tx) {
	writes := 1 + w.rng.IntN(8)
	size := w.rng.IntN(200)
	if w.rng.IntN(5) == 0 {
		writes, size = 60+w.rng.IntN(120), 1000 // more than TxBytes
	}
	table := workTables[w.rng.IntN(2)]
	for range writes {
		r := w.record(table)
		switch w.rng.IntN(5) {
		case 0:
			w.must(tx.Put(&r))
		case 1:
			w.must(tx.Remove(table.Table, r.Key))
		default:
			_, err := tx.Merge(&r)
			w.must(err)
		}
	}
	switch w.rng.IntN(12) {
	case 0, 1:
		w.must(tx.Adopt(w.stage(s, workTables[w.rng.IntN(3)])))
	case 2:
		w.must(tx.DropTable(workTables[w.rng.IntN(3)].Table))
		for _, s := range workTables {
			w.must(tx.PutSchema(workLog, s))
		}
	case 3:
		w.must(tx.ResetLog(workLog, engine.CompareLSN, workPosition(w.n), w.time))
	case 4:
		w.must(tx.SetTruncated(table.Table, engine.Stamp{Time: w.time, Origin: "x", Epoch: 7}))
	case 5:
		w.meta++
		w.must(tx.SetMeta(fmt.Sprint("m", w.meta%4), fmt.Append(nil, w.meta)))
	case 6:
		w.must(tx.SetMeta(fmt.Sprint("m", w.rng.IntN(4)), nil))
	case 7:
		w.must(tx.SetCompleteFrom(workLog, w.time))
	}
	w.n++
	t := &engine.Transaction{Log: workLog, Prev: workPosition(w.n - 1), Position: workPosition(w.n), Time: w.time, Major: uint64(w.n)}
	for i := range writes {
		t.Changes = append(t.Changes, engine.Change{Op: engine.OpPut, Schema: table, Key: fmt.Append(nil, i), Row: w.row(size), Stamp: engine.Stamp{
			Time: t.Time, Origin: "x", Epoch: 7, Version: engine.Version{Major: t.Major, Minor: uint32(i + 1)},
		}})
	}
	b := engine.NewBlockBuilder(workLog, t.Prev)
	b.Add(t)
	for _, b := range b.Blocks() {
		w.must(tx.Append(workLog, engine.CompareLSN, b))
	}
	if w.rng.IntN(3) == 0 {
		w.must(tx.TrimLog(workLog, 100<<10, workPosition(w.n-3)))
	}
	w.cursor(tx)
}

func (w *workload) stage(s engine.Store, table *engine.Schema) engine.Stage {
	st := s.NewStage(table.Table)
	for range w.rng.IntN(4) {
		var rs []engine.Record
		for range w.rng.IntN(40) {
			rs = append(rs, w.record(table))
		}
		w.must(st.Put(rs))
	}
	return st
}

// run writes n transactions; committed is called with what the store holds
// before each commit and after it, by number.
func (w *workload) run(s engine.Store, n int, before func(i int, want string), after func(i int)) {
	for i := range n {
		tx, err := s.Begin(context.Background())
		w.must(err)
		if i == 0 {
			w.first(tx)
		} else {
			w.next(s, tx)
		}
		if i > 0 && w.rng.IntN(6) == 0 { // begun, and given up
			tx.Rollback()
			w.n--
			w.stage(s, workTables[0]).Close()
			if tx, err = s.Begin(context.Background()); err != nil {
				w.t.Fatal(err)
			}
			w.next(s, tx)
		}
		before(i, dump(w.t, tx))
		w.must(tx.Commit())
		after(i)
	}
}

// dump lists all that a view holds.
func dump(t testing.TB, v engine.View) string {
	t.Helper()
	var b strings.Builder
	sum := func(p []byte) string { return fmt.Sprintf("%d:%08x", len(p), crc32.ChecksumIEEE(p)) }
	for _, i := range v.Tables() {
		fmt.Fprintln(&b, "table", i.Table, i.Rows, i.Tombstones, i.Bytes, i.Log, i.Schema != nil)
		if err := v.Scan(i.Table, nil, func(r *engine.Record) bool {
			fmt.Fprintln(&b, string(r.Key), sum(r.Row), r.Stamp, r.Deleted, r.Schema.ID)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, "truncated", v.Truncated(i.Table, "x"))
	}
	for _, l := range v.Logs() {
		fmt.Fprintln(&b, "log", l)
		at, part := l.Oldest, uint32(0)
		for {
			bs, err := v.ReadPart(l.ID, at, part, 64<<10)
			if err != nil {
				t.Fatal(err)
			}
			if len(bs) == 0 {
				break
			}
			for _, e := range bs {
				fmt.Fprintln(&b, e.Prev, e.Position, e.Part, e.Last, e.Time, e.Changes, sum(e.Payload), len(e.Ends))
				if part++; e.Last {
					at, part = e.Position, 0
				}
			}
		}
		if at != l.Head {
			t.Fatalf("log %s: read up to %q, the head is %q", l.ID, at, l.Head)
		}
		for _, s := range v.Schemas(l.ID) {
			fmt.Fprintln(&b, "schema", *s)
		}
	}
	var cs []string
	for k, c := range v.Cursors() {
		cs = append(cs, fmt.Sprint(k, c))
	}
	slices.Sort(cs)
	fmt.Fprintln(&b, cs)
	v.ScanMeta("", func(k string, val []byte) bool { fmt.Fprintln(&b, k, string(val)); return true })
	return b.String()
}

// dumpStore lists what a store holds.
func dumpStore(t testing.TB, s engine.Store) string {
	t.Helper()
	v := s.View()
	defer v.Close()
	return dump(t, v)
}
