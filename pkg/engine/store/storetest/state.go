package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

func testCommit(t *testing.T, open Open) {
	h := start(t, open, Options{})
	before := h.s.View()
	defer before.Close()
	tx := h.begin()
	h.must(tx.PutSchema(logX, schemaA))
	h.must(tx.Put(put("k", "v", 1)))
	h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
	h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, "", transaction(logX, 1, 10, "k"))...))
	h.must(tx.SetCursor(engine.Cursor{CursorKey: engine.CursorKey{Log: logX}, Position: position(1), Time: 1}))
	h.view(func(v engine.View) {
		h.equal(len(h.rows(v, tableA, nil)), 0, "rows before Commit")
		h.equal(len(v.Logs()), 0, "logs before Commit")
		h.equal(len(v.Cursors()), 0, "cursors before Commit")
		h.equal(len(v.Schemas(logX)), 0, "schemas before Commit")
	})
	h.must(tx.Commit())
	check := func(v engine.View, rows []string, logs, cursors, schemas int) {
		h.equal(h.rows(v, tableA, nil), rows, "rows")
		h.equal(len(v.Logs()), logs, "logs")
		h.equal(len(v.Cursors()), cursors, "cursors")
		h.equal(len(v.Schemas(logX)), schemas, "schemas")
	}
	h.view(func(v engine.View) {
		check(v, []string{"k=v"}, 1, 1, 1)
		r, ok, err := v.Get(tableA, []byte("k"))
		h.must(err)
		h.equal(ok, true, "Get finds the row")
		h.equal(r.Stamp, stamp(1), "stamp")
		h.equal(r.Schema.Fingerprint(), schemaA.Fingerprint(), "schema of the row")
		c, ok := v.Cursor(engine.CursorKey{Log: logX})
		h.equal(ok, true, "Cursor")
		h.equal(c.Position, position(1), "cursor")
	})
	check(before, nil, 0, 0, 0)
}

func testRollback(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.must(tx.Put(put("kept", "old", 1)))
		h.must(tx.ResetLog(logX, engine.CompareLSN, position(1), 1))
	})
	for range 3 { // what a rollback leaves must not show in the next transaction either
		tx := h.begin()
		h.must(tx.PutSchema(logX, schemaA))
		h.must(tx.Put(put("kept", "new", 2)))
		h.must(tx.Put(put("added", "new", 2)))
		for i := range 200 {
			h.must(tx.Put(put(fmt.Sprint("many", i), string(bytes.Repeat([]byte("x"), 100)), 2)))
		}
		h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(1), transaction(logX, 2, 10, "k"))...))
		h.must(tx.SetCursor(engine.Cursor{CursorKey: engine.CursorKey{Log: logX}, Position: position(2)}))
		h.must(tx.SetTruncated(tableA, stamp(2)))
		st := h.s.NewStage(tableB)
		h.must(st.Put([]engine.Record{{Schema: schemaB, Key: []byte("b"), Row: engine.Row("b"), Stamp: stamp(2)}}))
		h.must(tx.Adopt(st))
		tx.Rollback()
		tx.Rollback() // does nothing
		h.view(func(v engine.View) {
			h.equal(h.rows(v, tableA, nil), []string{"kept=old"}, "rows")
			h.equal(len(h.rows(v, tableB, nil)), 0, "rows of the adopted table")
			h.equal(len(v.Schemas(logX)), 0, "schemas")
			h.equal(len(v.Cursors()), 0, "cursors")
			h.equal(v.Truncated(tableA, "x"), engine.Stamp{}, "truncate")
			i, _ := v.Log(logX)
			h.equal(i.Head, position(1), "head")
			h.equal(i.Changes, 0, "changes in the log")
			h.equal(len(v.Tables()), 1, "tables")
		})
	}
	h.commit(func(tx engine.Tx) { h.must(tx.Put(put("after", "v", 3))) })
	h.view(func(v engine.View) {
		h.equal(h.rows(v, tableA, nil), []string{"after=v", "kept=old"}, "rows written after")
	})
}

func testOneAtATime(t *testing.T, open Open) {
	h := start(t, open, Options{})
	first := h.begin()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := h.s.Begin(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Begin beside another transaction gave %v, want to wait for ctx", err)
	}
	got := make(chan error)
	go func() {
		tx, err := h.s.Begin(t.Context())
		if err == nil {
			tx.Rollback()
		}
		got <- err
	}()
	h.must(first.Commit())
	h.must(<-got)
}

func testSpent(t *testing.T, open Open) {
	h := start(t, open, Options{})
	for name, end := range map[string]func(engine.Tx){
		"Commit": func(tx engine.Tx) { h.must(tx.Commit()) }, "Rollback": engine.Tx.Rollback, "Close": engine.Tx.Close,
	} {
		tx := h.begin()
		end(tx)
		_, _, getErr := tx.Get(tableA, []byte("k"))
		_, mergeErr := tx.Merge(put("k", "v", 1))
		for what, err := range map[string]error{
			"Put": tx.Put(put("k", "v", 1)), "Merge": mergeErr, "Get": getErr, "Commit": tx.Commit(),
			"SetCursor": tx.SetCursor(engine.Cursor{}), "PutSchema": tx.PutSchema(logX, schemaA),
			"ResetLog": tx.ResetLog(logX, engine.CompareLSN, "", 0), "DropLog": tx.DropLog(logX),
			"Remove": tx.Remove(tableA, []byte("k")), "SetTruncated": tx.SetTruncated(tableA, stamp(1)),
		} {
			if err == nil {
				t.Errorf("%s after %s gave no error", what, name)
			}
		}
	}
	h.begin().Rollback() // the turn was given back each time
}

func testIsolation(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
		h.must(tx.PutSchema(logX, schemaA))
	})
	type old struct {
		v    engine.View
		want []string
		head engine.Position
	}
	var olds []old
	want := map[string]string{}
	for i := 1; i <= 60; i++ {
		h.commit(func(tx engine.Tx) {
			for k := i; k < i+20; k++ {
				key, row := fmt.Sprintf("%02d", k%40), fmt.Sprintf("%d-%s", i, bytes.Repeat([]byte("."), k*7))
				if k%7 == 0 {
					h.must(tx.Remove(tableA, []byte(key)))
					delete(want, key)
					continue
				}
				h.must(tx.Put(put(key, row, engine.Time(i))))
				want[key] = row
			}
			h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(i-1), transaction(logX, i, 100, "k"))...))
		})
		var all []string
		for k, r := range want {
			all = append(all, k+"="+r)
		}
		slices.Sort(all)
		olds = append(olds, old{h.s.View(), all, position(i)})
		if len(olds) > 20 { // not the oldest: views close in any order
			olds[i%20].v.Close()
			olds = slices.Delete(olds, i%20, i%20+1)
		}
		for _, o := range olds {
			h.equal(h.rows(o.v, tableA, nil), o.want, "rows in the view of commit at %s", o.head)
			l, _ := o.v.Log(logX)
			h.equal(l.Head, o.head, "head in an old view")
			bs, err := o.v.ReadLog(logX, "", 1<<30)
			h.must(err)
			h.equal(bs[len(bs)-1].Position, o.head, "last block in an old view")
		}
	}
	for _, o := range olds {
		o.v.Close()
	}
}

func testOwnWrites(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) { h.must(tx.Put(put("a", "1", 1))) })
	h.commit(func(tx engine.Tx) {
		h.must(tx.Put(put("a", "2", 2)))
		h.must(tx.Put(put("b", "2", 2)))
		h.must(tx.Put(put("b", "3", 3)))
		r, ok, err := tx.Get(tableA, []byte("a"))
		h.must(err)
		h.equal(ok, true, "Get of an own write")
		h.equal(string(r.Row), "2", "row of an own write")
		h.equal(h.rows(tx, tableA, nil), []string{"a=2", "b=3"}, "Scan of own writes")
		h.must(tx.Remove(tableA, []byte("a")))
		_, ok, err = tx.Get(tableA, []byte("a"))
		h.must(err)
		h.equal(ok, false, "Get of a row removed")
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
		h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, "", transaction(logX, 1, 10, "k"))...))
		bs, err := tx.ReadLog(logX, "", 1<<20)
		h.must(err)
		h.equal(len(bs), 1, "blocks read in the transaction")
		k := engine.CursorKey{Log: logX}
		h.must(tx.SetCursor(engine.Cursor{CursorKey: k, Position: position(1)}))
		h.equal(tx.Cursors()[k].Position, position(1), "own cursor")
		h.must(tx.SetCursor(engine.Cursor{CursorKey: k, Position: position(2)}))
		h.equal(tx.Cursors()[k].Position, position(2), "own cursor, set again")
		h.equal(tx.Tables()[0].Rows, 1, "rows in Tables")
	})
}

func testScanMayWrite(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		for i := range 500 {
			h.must(tx.Put(put(fmt.Sprintf("%04d", i*2), "v", 1)))
		}
	})
	for range 2 { // the second time in a transaction that has written the table already
		h.commit(func(tx engine.Tx) {
			h.must(tx.Put(put("0000", "v", 2)))
			n := 0
			h.must(tx.Scan(tableA, nil, func(r *engine.Record) bool {
				n++
				key := slices.Clone(r.Key)
				h.must(tx.Put(tomb(string(key), 3)))
				h.must(tx.Put(put(string(key)+"x", "new", 3)))
				h.must(tx.Remove(tableA, append(key, 'x')))
				return true
			}))
			h.equal(n, 500, "records of a Scan that writes")
		})
	}
}

func testScanOrder(t *testing.T, open Open) {
	h := start(t, open, Options{})
	keys := []string{"\x00", "\x00\x00", "\x01", "a", "a\x00", "aa", "aaaaaaaa", "aaaaaaaa\x00", "aaaaaaaaa", "aaaaaaab", "b", "\xff", "\xff\xff\xff\xff\xff\xff\xff\xff\xff"}
	for i := range 300 {
		keys = append(keys, fmt.Sprintf("same-long-prefix-%d", i))
	}
	slices.Sort(keys)
	h.commit(func(tx engine.Tx) {
		for i := range keys {
			k := keys[(i*131)%len(keys)]
			if i%5 == 0 {
				h.must(tx.Put(tomb(k, 1)))
				continue
			}
			h.must(tx.Put(put(k, "v", 1)))
		}
	})
	h.view(func(v engine.View) {
		for _, from := range append([]string{"", "zzz", "\x00\x00\x00", "aaaa", "same"}, keys...) {
			var want, got []string
			for _, k := range keys {
				if k >= from {
					want = append(want, k)
				}
			}
			h.must(v.Scan(tableA, []byte(from), func(r *engine.Record) bool {
				got = append(got, string(r.Key))
				return true
			}))
			if !slices.Equal(got, want) {
				t.Fatalf("Scan from %q: got %q, want %q", from, got, want)
			}
		}
		n := 0
		h.must(v.Scan(tableA, nil, func(*engine.Record) bool { n++; return n < 3 }))
		h.equal(n, 3, "records until fn said stop")
		h.equal(len(h.rows(v, tableB, nil)), 0, "records of a table that is not there")
	})
}

func testLargeRows(t *testing.T, open Open) {
	h := start(t, open, Options{})
	sizes := []int{0, 1, 127, 128, 1 << 10, 1<<16 + 1, 1<<20 - 30, 1 << 20, 5 << 20}
	h.commit(func(tx engine.Tx) {
		for i, n := range sizes {
			h.must(tx.Put(put(fmt.Sprintf("%d", i), string(bytes.Repeat([]byte{byte(i)}, n)), engine.Time(i+1))))
		}
		h.must(tx.Put(put(string(bytes.Repeat([]byte("k"), 70_000)), "long key", 1)))
	})
	h.view(func(v engine.View) {
		for i, n := range sizes {
			r, ok, err := v.Get(tableA, fmt.Appendf(nil, "%d", i))
			h.must(err)
			if !ok || !bytes.Equal(r.Row, bytes.Repeat([]byte{byte(i)}, n)) {
				t.Fatalf("row of %d bytes came back as %d bytes, found %v", n, len(r.Row), ok)
			}
		}
		r, ok, err := v.Get(tableA, bytes.Repeat([]byte("k"), 70_000))
		h.must(err)
		h.equal(ok, true, "long key")
		h.equal(string(r.Row), "long key", "row at a long key")
	})
}

func testCopied(t *testing.T, open Open) {
	h := start(t, open, Options{})
	r := put("key", "row", 1)
	h.commit(func(tx engine.Tx) {
		h.must(tx.Put(r))
		copy(r.Key, "XXX")
		copy(r.Row, "XXX")
		h.equal(h.rows(tx, tableA, nil), []string{"key=row"}, "rows after the caller's memory changed")
	})
	st := h.s.NewStage(tableB)
	rs := []engine.Record{{Schema: schemaB, Key: []byte("key"), Row: engine.Row("row"), Stamp: stamp(1)}}
	h.must(st.Put(rs))
	copy(rs[0].Key, "XXX")
	copy(rs[0].Row, "XXX")
	h.equal(h.rows(staged{st}, tableB, nil), []string{"key=row"}, "staged rows after the caller's memory changed")
	st.Close()
}

// staged makes a stage scannable like a view.
type staged struct{ engine.Stage }

func (s staged) Scan(_ engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	return s.Stage.Scan(from, fn)
}

func testMerge(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		merge := func(r *engine.Record, want bool) {
			t.Helper()
			o, err := tx.Merge(r)
			h.must(err)
			h.equal(o.Applied(), want, "Merge of %s at %d", brief(r), r.Stamp.Time)
		}
		merge(put("k", "2", 2), true)
		merge(put("k", "again", 2), false)
		merge(put("k", "1", 1), false)
		merge(tomb("k", 3), true)
		merge(put("k", "2", 2), false)
		merge(put("k", "4", 4), true)
		merge(tomb("new", 1), true)
		merge(put("new", "0", 0), false)
		for i, s := range []engine.Stamp{ // the order of stamps, field by field
			{Time: 5, Origin: "m", Epoch: 5, Version: engine.Version{Major: 5, Minor: 5}},
			{Time: 5, Origin: "m", Epoch: 5, Version: engine.Version{Major: 5, Minor: 6}},
			{Time: 5, Origin: "m", Epoch: 5, Version: engine.Version{Major: 6, Minor: 0}},
			{Time: 5, Origin: "m", Epoch: 6},
			{Time: 5, Origin: "n"},
			{Time: 6},
		} {
			up := &engine.Record{Schema: schemaA, Key: []byte("order"), Row: engine.Row(fmt.Sprint(i)), Stamp: s}
			merge(up, true)
			merge(up, false)
			if i > 0 {
				down := *up
				down.Stamp = engine.Stamp{Time: 5, Origin: "m", Epoch: 5, Version: engine.Version{Major: 5, Minor: 5}}
				merge(&down, false)
			}
		}
		h.equal(h.rows(tx, tableA, nil), []string{"k=4", "new!", "order=5"}, "rows")
	})
}

func testRemove(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.must(tx.Put(put("a", "1", 1)))
		h.must(tx.Put(tomb("b", 1)))
		h.must(tx.Remove(tableA, []byte("a")))
		h.must(tx.Remove(tableA, []byte("b")))
		h.must(tx.Remove(tableA, []byte("none")))
		h.must(tx.Remove(tableB, []byte("none")))
	})
	h.view(func(v engine.View) {
		h.equal(len(h.rows(v, tableA, nil)), 0, "rows")
		for _, i := range v.Tables() {
			h.equal([]int{i.Rows, i.Tombstones, i.Bytes}, []int{0, 0, 0}, "counts of %s", i.Table)
		}
	})
}

// What a table may hold of an origin is known from the first record on, and said of no
// other: a stage is none of the state's before it is adopted.
func testMayHold(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.must(tx.PutSchema(logX, schemaA))
		h.equal(tx.MayHold(tableA, logX.Origin), false, "before the first record")
		h.must(tx.Put(put("a", "1", 1)))
		h.equal(tx.MayHold(tableA, logX.Origin), true, "with one")
		h.equal(tx.MayHold(tableB, logX.Origin), false, "of another table")
		h.equal(tx.MayHold(tableA, "another"), false, "of another origin")
	})
	st := h.s.NewStage(tableA)
	defer st.Close()
	r := put("b", "1", 2)
	r.Stamp.Origin = "staged"
	h.must(st.Put([]engine.Record{*r}))
	h.commit(func(tx engine.Tx) {
		h.equal(tx.MayHold(tableA, logX.Origin), true, "in a later transaction")
		h.equal(tx.MayHold(tableA, "staged"), false, "of a stage")
		h.must(tx.Adopt(st))
		h.equal(tx.MayHold(tableA, "staged"), true, "of a stage that is adopted")
	})
}

func testTombstones(t *testing.T, open Open) {
	h := start(t, open, Options{})
	info := func() engine.TableInfo {
		v := h.s.View()
		defer v.Close()
		return v.Tables()[0]
	}
	h.commit(func(tx engine.Tx) {
		h.must(tx.PutSchema(logX, schemaA))
		h.must(tx.Put(put("a", "row", 1)))
		h.must(tx.Put(put("b", "row", 1)))
	})
	h.equal([]int{info().Rows, info().Tombstones, info().Bytes}, []int{2, 0, 8}, "counts")
	h.commit(func(tx engine.Tx) { h.must(tx.Put(tomb("a", 2))) })
	h.equal([]int{info().Rows, info().Tombstones, info().Bytes}, []int{1, 1, 4}, "counts with a tombstone")
	h.view(func(v engine.View) {
		r, ok, err := v.Get(tableA, []byte("a"))
		h.must(err)
		h.equal(ok && r.Deleted, true, "Get returns tombstones")
		h.equal(r.Row == nil, true, "a tombstone has no row")
		h.equal(r.Stamp, stamp(2), "stamp of a tombstone")
		h.equal(r.Schema.Fingerprint(), schemaA.Fingerprint(), "schema of a tombstone")
	})
	h.commit(func(tx engine.Tx) { h.must(tx.Put(put("a", "again", 3))) })
	h.equal([]int{info().Rows, info().Tombstones, info().Bytes}, []int{2, 0, 10}, "counts with the row back")
	h.equal(info().Schema.Fingerprint(), schemaA.Fingerprint(), "newest schema")
	h.equal(info().Log, logX, "log of the newest schema")
}

func testTombstoneLimit(t *testing.T, open Open) {
	const limit = 100
	h := start(t, open, Options{Tombstones: limit})
	h.commit(func(tx engine.Tx) {
		for i := range 500 {
			h.must(tx.Put(put(fmt.Sprintf("%03d", i), "v", 1)))
		}
	})
	// deleted in an order that is neither that of the keys nor of the stamps
	at := func(i int) engine.Time { return engine.Time(1000 + (i*211)%500) }
	for i := range 10 {
		h.commit(func(tx engine.Tx) {
			for k := i * 40; k < i*40+40; k++ {
				h.must(tx.Put(tomb(fmt.Sprintf("%03d", k), at(k))))
			}
		})
	}
	h.view(func(v engine.View) {
		kept := 0
		for k := range 400 {
			r, ok, err := v.Get(tableA, fmt.Appendf(nil, "%03d", k))
			h.must(err)
			if ok && !r.Deleted {
				t.Fatalf("row %03d came back to life", k)
			}
			if ok {
				kept++
			}
		}
		i := v.Tables()[0]
		h.equal(i.Rows, 100, "live rows")
		h.equal(i.Tombstones, kept, "tombstones counted")
		if kept > limit || kept < limit/2 {
			t.Fatalf("%d tombstones kept, the limit is %d", kept, limit)
		}
	})
	h2 := start(t, open, Options{Tombstones: limit})
	h2.commit(func(tx engine.Tx) {
		for k := range 400 {
			h2.must(tx.Put(tomb(fmt.Sprintf("%03d", k), at(k))))
		}
	})
	h2.view(func(v engine.View) {
		var kept []engine.Time
		h2.must(v.Scan(tableA, nil, func(r *engine.Record) bool { kept = append(kept, r.Stamp.Time); return true }))
		var want []engine.Time
		for k := range 400 {
			want = append(want, at(k))
		}
		slices.Sort(want)
		slices.Sort(kept)
		h2.equal(kept, want[400-len(kept):], "the newest of one commit are kept")
		if len(kept) > limit || len(kept) < limit/2 {
			t.Fatalf("%d tombstones kept of one commit, the limit is %d", len(kept), limit)
		}
	})
}

func testSchemas(t *testing.T, open Open) {
	h := start(t, open, Options{})
	v1, v2 := schema(1, tableA, "id"), schema(3, tableA, "id", "added")
	h.commit(func(tx engine.Tx) {
		h.must(tx.PutSchema(logX, v1))
		h.must(tx.PutSchema(logX, schemaB))
		h.must(tx.PutSchema(logX, schema(1, tableA, "id"))) // the same again, from elsewhere in memory
		h.must(tx.PutSchema(logX8, schema(1, tableA, "other")))
		h.equal(tx.Schema(logX, 1).Fingerprint(), v1.Fingerprint(), "own schema in the transaction")
		h.must(tx.Put(&engine.Record{Schema: v1, Key: []byte("k"), Row: engine.Row("r"), Stamp: stamp(1)}))
		if err := tx.PutSchema(logX, schema(1, tableA, "another shape")); err == nil {
			t.Error("a schema ID took another shape without an error")
		}
	})
	h.commit(func(tx engine.Tx) { h.must(tx.PutSchema(logX, v2)) })
	h.view(func(v engine.View) {
		var ids []uint32
		for _, s := range v.Schemas(logX) {
			ids = append(ids, s.ID)
		}
		h.equal(ids, []uint32{1, 2, 3}, "IDs")
		h.equal(v.Schema(logX, 3).Fingerprint(), v2.Fingerprint(), "schema 3")
		h.equal(v.Schema(logX8, 1).Columns[0].Name, "other", "schema of another epoch")
		h.equal(v.Schema(logX, 9) == nil, true, "unknown ID")
		h.equal(v.Schema(logY, 1) == nil, true, "unknown log")
		h.equal(len(v.Schemas(logY)), 0, "schemas of an unknown log")
		of := v.SchemasOf(tableA)
		h.equal(len(of), 2, "logs with schemas of the table")
		h.equal([]uint32{of[logX][0].ID, of[logX][1].ID}, []uint32{1, 3}, "the table's schemas in a log")
		h.equal(of[logX8][0].Columns[0].Name, "other", "the table's schema in another epoch")
		r, _, err := v.Get(tableA, []byte("k"))
		h.must(err)
		h.equal(r.Schema.Fingerprint(), v1.Fingerprint(), "a row keeps its schema")
		h.equal(r.Schema.ID, 1, "ID of a row's schema")
		h.equal(r.Schema.Columns[0], v1.Columns[0], "columns come back whole")
	})
}

func testTruncates(t *testing.T, open Open) {
	h := start(t, open, Options{})
	s1, s2 := stamp(1), stamp(2)
	y := engine.Stamp{Time: 9, Origin: "y", Epoch: 3}
	h.commit(func(tx engine.Tx) {
		h.must(tx.SetTruncated(tableA, s1))
		h.must(tx.SetTruncated(tableA, y))
	})
	old := h.s.View()
	defer old.Close()
	h.commit(func(tx engine.Tx) {
		h.must(tx.SetTruncated(tableA, s2))
		h.equal(tx.Truncated(tableA, "x"), s2, "own truncate")
	})
	h.equal(old.Truncated(tableA, "x"), s1, "truncate in an old view")
	h.view(func(v engine.View) {
		h.equal(v.Truncated(tableA, "x"), s2, "truncate")
		h.equal(v.Truncated(tableA, "y"), y, "truncate by another origin")
		h.equal(v.Truncated(tableB, "x"), engine.Stamp{}, "truncate of another table")
		h.equal(v.Truncated(tableA, "z"), engine.Stamp{}, "truncate by an unknown origin")
	})
}

func testCursors(t *testing.T, open Open) {
	h := start(t, open, Options{})
	cur := func(log engine.LogID, scope engine.Scope, n int) engine.Cursor {
		return engine.Cursor{CursorKey: engine.CursorKey{Log: log, Scope: scope}, Position: position(n), Time: engine.Time(n)}
	}
	h.commit(func(tx engine.Tx) {
		h.must(tx.SetCursor(cur(logX, "", 1)))
		h.must(tx.SetCursor(cur(logX, "part", 2)))
		h.must(tx.SetCursor(cur(logX8, "", 3)))
		h.must(tx.SetCursor(cur(logY, "", 4)))
	})
	old := h.s.View()
	defer old.Close()
	was := fmt.Sprint(old.Cursors())
	h.commit(func(tx engine.Tx) {
		h.must(tx.SetCursor(cur(logX, "", 9)))
		h.must(tx.DropLog(logX8))
	})
	h.view(func(v engine.View) {
		for _, c := range []engine.Cursor{cur(logX, "", 9), cur(logX, "part", 2), cur(logY, "", 4)} {
			got, ok := v.Cursor(c.CursorKey)
			h.equal(ok, true, "cursor of %v", c.CursorKey)
			h.equal(got, c, "cursor")
			h.equal(v.Cursors()[c.CursorKey], c, "cursor in the vector")
		}
		h.equal(len(v.Cursors()), 3, "cursors after DropLog")
		_, ok := v.Cursor(engine.CursorKey{Log: logX, Scope: "none"})
		h.equal(ok, false, "cursor of an unknown scope")
	})
	h.equal(fmt.Sprint(old.Cursors()), was, "cursors in an old view")
}

func testStage(t *testing.T, open Open) {
	h := start(t, open, Options{})
	st := h.s.NewStage(tableA)
	h.equal(st.Table(), tableA, "table")
	h.must(st.Put([]engine.Record{*put("b", "1", 1), *put("a", "1", 1), *tomb("c", 1)}))
	h.must(st.Put([]engine.Record{*put("b", "2", 2)}))
	h.equal(st.Rows(), 2, "live rows staged")
	h.equal(h.rows(staged{st}, tableA, nil), []string{"a=1", "b=2", "c!"}, "staged")
	h.equal(h.rows(staged{st}, tableA, []byte("b")), []string{"b=2", "c!"}, "staged, from b")
	r, ok, err := st.Get([]byte("b"))
	h.must(err)
	h.equal(ok, true, "Get")
	h.equal(brief(&r), "b=2", "staged row")
	_, ok, err = st.Get([]byte("none"))
	h.must(err)
	h.equal(ok, false, "Get of nothing")
	h.view(func(v engine.View) { h.equal(len(h.rows(v, tableA, nil)), 0, "rows of a stage in a view") })
	st.Close()
	st.Close()
	h.fails(st.Put([]engine.Record{*put("d", "1", 1)}), nil, "Put to a closed stage")
	tx := h.begin()
	h.fails(tx.Adopt(st), nil, "Adopt of a closed stage")
	tx.Rollback()
}

func testStageConcurrently(t *testing.T, open Open) {
	h := start(t, open, Options{})
	st := h.s.NewStage(tableA)
	const workers, each = 4, 2000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; i < each; i += 50 {
				rs := make([]engine.Record, 50)
				for j := range rs {
					rs[j] = *put(fmt.Sprintf("%d-%05d", w, i+j), "row", 1)
				}
				if err := st.Put(rs); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() { // reads go on meanwhile, and ordinary commits
		for i := range 50 {
			last := ""
			h.must(st.Scan(nil, func(r *engine.Record) bool {
				if string(r.Key) <= last {
					t.Errorf("key %q after %q", r.Key, last)
				}
				last = string(r.Key)
				return true
			}))
			h.commit(func(tx engine.Tx) { h.must(tx.Put(put("k", "v", engine.Time(i+1)))) })
		}
	})
	wg.Wait()
	h.equal(st.Rows(), workers*each, "rows staged")
	h.commit(func(tx engine.Tx) { h.must(tx.Adopt(st)) })
	h.view(func(v engine.View) { h.equal(len(h.rows(v, tableA, nil)), workers*each, "rows adopted") })
}

func testAdopt(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.must(tx.PutSchema(logX, schemaA))
		h.must(tx.Put(put("gone", "old", 1)))
		h.must(tx.Put(put("kept", "old", 1)))
	})
	old := h.s.View()
	defer old.Close()
	st := h.s.NewStage(tableA)
	h.must(st.Put([]engine.Record{*put("kept", "new", 2), *put("came", "new", 2), *tomb("dead", 2)}))
	h.commit(func(tx engine.Tx) {
		h.must(tx.Put(put("gone", "newer", 2))) // replaced with the rest
		h.must(tx.Adopt(st))
		h.equal(h.rows(tx, tableA, nil), []string{"came=new", "dead!", "kept=new"}, "adopted, in the transaction")
		h.must(tx.Put(put("after", "v", 3)))
		h.must(tx.Put(put("kept", "newer", 3)))
		h.must(tx.Remove(tableA, []byte("dead")))
	})
	h.equal(h.rows(old, tableA, nil), []string{"gone=old", "kept=old"}, "an old view")
	h.view(func(v engine.View) {
		h.equal(h.rows(v, tableA, nil), []string{"after=v", "came=new", "kept=newer"}, "adopted")
		i := v.Tables()[0]
		h.equal([]int{i.Rows, i.Tombstones, i.Bytes}, []int{3, 0, 22}, "counts")
	})
	h.fails(st.Put([]engine.Record{*put("late", "v", 9)}), nil, "Put to a stage that was adopted")
	st.Close() // does nothing
	h.view(func(v engine.View) { h.equal(len(h.rows(v, tableA, nil)), 3, "rows after the stage's Close") })

	empty := h.s.NewStage(tableB)
	h.commit(func(tx engine.Tx) {
		h.must(tx.PutSchema(logX, schemaB))
		h.must(tx.Adopt(empty))
	})
	h.view(func(v engine.View) {
		h.equal(len(v.Tables()), 2, "tables, an empty one adopted")
		h.equal(v.Tables()[1].Schema.Fingerprint(), schemaB.Fingerprint(), "schema of an empty table")
	})
	for i := range 50 { // a table rewritten many times over still reads right
		st := h.s.NewStage(tableA)
		h.must(st.Put([]engine.Record{*put("k", fmt.Sprint(i), engine.Time(i+10))}))
		h.commit(func(tx engine.Tx) { h.must(tx.Adopt(st)) })
	}
	h.view(func(v engine.View) { h.equal(h.rows(v, tableA, nil), []string{"k=49"}, "adopted many times") })
}
