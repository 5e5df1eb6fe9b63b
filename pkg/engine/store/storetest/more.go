package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// testAppendParts appends the parts of a large transaction call by call, beside
// other logs and rows.
func testAppendParts(t *testing.T, open Open) {
	h := start(t, open, Options{})
	big := transaction(logX, 2, 30<<10, "a", "b", "c", "d", "e", "f", "g")
	parts := blocks(logX, position(1), big)
	if len(parts) < 3 {
		t.Fatalf("a transaction of 210 KiB has %d parts", len(parts))
	}
	h.commit(func(tx engine.Tx) {
		for _, l := range []engine.LogID{logX, logY} {
			h.must(tx.ResetLog(l, engine.CompareLSN, position(1), 1))
		}
	})
	h.commit(func(tx engine.Tx) {
		for i, b := range parts {
			h.must(tx.Append(logX, engine.CompareLSN, b))
			h.must(tx.Append(logY, engine.CompareLSN, blocks(logY, position(i+1), transaction(logY, i+2, 10, "y"))...))
			h.must(tx.Put(put(fmt.Sprint("k", i), "v", 2)))
			h.view(func(v engine.View) { h.equal(len(h.read(v, logX, position(1), 1<<20)), 0, "records before Commit") })
		}
	})
	h.view(func(v engine.View) {
		h.equal(h.read(v, logX, position(1), 1), flat(script(logX, []*engine.Transaction{big})), "a transaction appended part by part")
		i, _ := v.Log(logX)
		h.equal([]any{i.Oldest, i.Head, i.Changes}, []any{position(1), position(2), 7}, "the log")
	})
}

func testTrimLog(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.fails(tx.TrimLog(logX, 0, ""), engine.ErrUnknownLog, "TrimLog of an unknown log")
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 7))
	})
	var txs []*engine.Transaction
	add := func(tx engine.Tx, size int, keys ...string) {
		n := len(txs) + 1
		txs = append(txs, transaction(logX, n, size, keys...))
		h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(n-1), txs[n-1])...))
	}
	for range 10 {
		h.commit(func(tx engine.Tx) { add(tx, 1000, "a") })
	}
	h.commit(func(tx engine.Tx) { add(tx, 30<<10, "a", "b", "c", "d", "e", "f", "g") }) // 11, in parts
	old := h.s.View()
	defer old.Close()
	check := func(v engine.View, first int) {
		h.Helper()
		i, ok := v.Log(logX)
		changes := 0
		for _, x := range txs[first:] {
			changes += len(x.Changes)
		}
		h.equal(ok, true, "Log")
		h.equal([]any{i.Oldest, i.Head, i.Changes, i.CompleteFrom}, []any{position(first), position(len(txs)), changes, 7}, "a log trimmed to what follows transaction %d", first)
		h.equal(h.read(v, logX, position(first), 64<<10), flat(script(logX, txs[first:])), "what is held after transaction %d", first)
		if first > 0 {
			_, err := v.ReadLog(logX, position(first-1), 1)
			h.fails(err, engine.ErrGap, "ReadLog of what was trimmed")
		}
	}
	var size int
	h.view(func(v engine.View) { i, _ := v.Log(logX); size = i.Bytes })
	h.commit(func(tx engine.Tx) {
		h.must(tx.TrimLog(logX, 0, position(3)))
		check(tx, 3)
		h.must(tx.TrimLog(logX, 1<<30, position(9)))
		check(tx, 3)
	})
	h.view(func(v engine.View) {
		check(v, 3)
		i, _ := v.Log(logX)
		if i.Bytes >= size-3000 || i.Bytes < 200<<10 {
			t.Errorf("%d bytes are held after three transactions of 1000 bytes have gone, of %d", i.Bytes, size)
		}
		size = i.Bytes
	})
	h.commit(func(tx engine.Tx) { h.must(tx.TrimLog(logX, size-1, "")) })
	h.view(func(v engine.View) { check(v, 4) })
	h.commit(func(tx engine.Tx) {
		add(tx, 1000, "z") // 12
		h.must(tx.TrimLog(logX, 0, position(11)))
		check(tx, 11)
		add(tx, 1000, "z") // 13
		check(tx, 11)
		h.must(tx.TrimLog(logX, 0, position(12))) // of its own, too
	})
	h.view(func(v engine.View) { check(v, 12) })
	tx := h.begin()
	h.must(tx.TrimLog(logX, 0, ""))
	check(tx, 13)
	tx.Rollback()
	h.view(func(v engine.View) { check(v, 12) })
	h.commit(func(tx engine.Tx) { h.must(tx.TrimLog(logX, 0, "")) })
	h.view(func(v engine.View) {
		check(v, 13)
		i, _ := v.Log(logX)
		h.equal(i.Bytes, 0, "bytes of a log trimmed to nothing")
	})
	h.commit(func(tx engine.Tx) { add(tx, 10, "after") })
	h.view(func(v engine.View) { check(v, 13) })
	h.equal(h.read(old, logX, "", 64<<10), flat(script(logX, txs[:11])), "an old view")
	tx = h.begin()
	h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(14), transaction(logX, 15, 40<<10, "a", "b", "c"))[0]))
	h.fails(tx.TrimLog(logX, 0, ""), nil, "TrimLog within a transaction of the log")
	tx.Rollback()
}

// testBlocksStay reads blocks that have to stay as they are when their view is
// closed, and their log gone.
func testBlocksStay(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) { h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0)) })
	for n := 1; n <= 20; n++ {
		h.commit(func(tx engine.Tx) {
			h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(n-1), transaction(logX, n, 20<<10, "a", "b"))...))
		})
	}
	v := h.s.View()
	bs, err := v.ReadLog(logX, "", 1<<30)
	h.must(err)
	v.Close()
	sums := func() (out []string) {
		for _, b := range bs {
			out = append(out, records(h, logX, b)...)
		}
		return out
	}
	was := sums()
	for n := 21; n <= 40; n++ {
		h.commit(func(tx engine.Tx) {
			h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(n-1), transaction(logX, n, 20<<10, "a", "b"))...))
			h.must(tx.TrimLog(logX, 100<<10, ""))
		})
	}
	h.commit(func(tx engine.Tx) { h.must(tx.DropLog(logX)) })
	h.equal(slices.Equal(sums(), was), true, "blocks stay as they were")
}

func testCompleteFrom(t *testing.T, open Open) {
	const limit = 50
	h := start(t, open, Options{Tombstones: limit})
	from := func(l engine.LogID) engine.Time {
		v := h.s.View()
		defer v.Close()
		i, _ := v.Log(l)
		return i.CompleteFrom
	}
	h.commit(func(tx engine.Tx) {
		h.fails(tx.SetCompleteFrom(logX, 1), engine.ErrUnknownLog, "SetCompleteFrom of an unknown log")
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 10))
		h.must(tx.ResetLog(logX8, engine.CompareLSN, "", 500))
		h.must(tx.ResetLog(logY, engine.CompareLSN, "", 10))
	})
	h.equal(from(logX), 10, "CompleteFrom of a new log")
	h.commit(func(tx engine.Tx) { h.must(tx.SetCompleteFrom(logX, 4)) })
	h.equal(from(logX), 4, "CompleteFrom, lowered")
	h.commit(func(tx engine.Tx) { h.must(tx.SetCompleteFrom(logX, 20)) })
	h.equal(from(logX), 20, "CompleteFrom, raised")
	for n := range 10 { // 20 each: the first commits trim nothing
		h.commit(func(tx engine.Tx) {
			for i := range 20 {
				h.must(tx.Put(tomb(fmt.Sprintf("%d-%d", n, i), engine.Time(100+20*n+i))))
			}
		})
	}
	kept := 0
	oldest := engine.Time(1 << 40)
	h.view(func(v engine.View) {
		h.must(v.Scan(tableA, nil, func(r *engine.Record) bool {
			kept++
			oldest = min(oldest, r.Stamp.Time)
			return true
		}))
	})
	if kept > limit || kept < limit/2 {
		t.Fatalf("%d tombstones kept, the limit is %d", kept, limit)
	}
	h.equal(from(logX), oldest-1, "CompleteFrom, of which %d tombstones are left", kept)
	h.equal(from(logX8), 500, "CompleteFrom of a later epoch, which was later already")
	h.equal(from(logY), 10, "CompleteFrom of another origin")
	h.commit(func(tx engine.Tx) { h.must(tx.ResetLog(logX, engine.CompareLSN, "", 700)) })
	h.equal(from(logX), 700, "CompleteFrom after a reset")
}

func testDropTable(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.must(tx.PutSchema(logX, schemaA))
		h.must(tx.PutSchema(logX, schemaB))
		h.must(tx.Put(put("k", "v", 1)))
		h.must(tx.Put(tomb("t", 1)))
		h.must(tx.Put(&engine.Record{Schema: schemaB, Key: []byte("b"), Row: engine.Row("b"), Stamp: stamp(1)}))
		h.must(tx.SetTruncated(tableA, stamp(1)))
		h.must(tx.SetTruncated(tableB, stamp(1)))
	})
	old := h.s.View()
	defer old.Close()
	h.commit(func(tx engine.Tx) {
		h.must(tx.Put(put("new", "v", 2)))
		h.must(tx.DropTable(tableA))
		h.must(tx.DropTable(engine.TableName{Name: "none"}))
		h.equal(len(h.rows(tx, tableA, nil)), 0, "rows, in the transaction")
		_, ok, err := tx.Get(tableA, []byte("k"))
		h.must(err)
		h.equal(ok, false, "Get, in the transaction")
	})
	h.view(func(v engine.View) {
		h.equal(len(h.rows(v, tableA, nil)), 0, "rows")
		h.equal(v.Truncated(tableA, "x"), engine.Stamp{}, "truncate")
		h.equal(v.Truncated(tableB, "x"), stamp(1), "truncate of another table")
		h.equal(h.rows(v, tableB, nil), []string{"b=b"}, "rows of another table")
		h.equal(len(v.Tables()), 1, "tables")
		h.equal(v.Schema(logX, 1) != nil, true, "schemas stay: the log may need them")
	})
	h.equal(h.rows(old, tableA, nil), []string{"k=v", "t!"}, "an old view")
	h.commit(func(tx engine.Tx) {
		h.must(tx.DropTable(tableB))
		o, err := tx.Merge(&engine.Record{Schema: schemaB, Key: []byte("b"), Row: engine.Row("again"), Stamp: stamp(1)})
		h.must(err)
		h.equal(o, engine.Inserted, "Merge into a table that was dropped")
		h.must(tx.Put(put("k", "again", 1)))
	})
	h.view(func(v engine.View) {
		h.equal(h.rows(v, tableB, nil), []string{"b=again"}, "rows written after the drop, in one transaction")
		h.equal(h.rows(v, tableA, nil), []string{"k=again"}, "rows written after the drop")
		i := v.Tables()[0]
		h.equal([]int{i.Rows, i.Tombstones, i.Bytes}, []int{1, 0, 6}, "counts")
	})
	tx := h.begin()
	h.must(tx.DropTable(tableA))
	tx.Rollback()
	h.view(func(v engine.View) {
		h.equal(h.rows(v, tableA, nil), []string{"k=again"}, "rows after a drop that was given up")
	})
}

func testMeta(t *testing.T, open Open) {
	h := start(t, open, Options{})
	list := func(v engine.View, prefix string) (out []string) {
		v.ScanMeta(prefix, func(k string, val []byte) bool {
			out = append(out, k+"="+string(val))
			return true
		})
		return out
	}
	value := []byte("1")
	h.commit(func(tx engine.Tx) {
		h.must(tx.SetMeta("slot/a", value))
		value[0] = 'X'
		h.must(tx.SetMeta("slot/b", []byte("2")))
		h.must(tx.SetMeta("slot", []byte{}))
		h.must(tx.SetMeta("slou", []byte("4")))
		h.must(tx.SetMeta("a\x00b", []byte("5")))
		h.equal(string(tx.Meta("slot/a")), "1", "own meta")
		h.equal(list(tx, "slot/"), []string{"slot/a=1", "slot/b=2"}, "own meta, by prefix")
	})
	old := h.s.View()
	defer old.Close()
	h.commit(func(tx engine.Tx) {
		h.must(tx.SetMeta("slot/a", nil))
		h.must(tx.SetMeta("slot/c", []byte("3")))
		h.must(tx.SetMeta("none", nil))
	})
	tx := h.begin()
	h.must(tx.SetMeta("slot/b", []byte("never")))
	tx.Rollback()
	h.view(func(v engine.View) {
		h.equal(v.Meta("slot/a") == nil, true, "meta that was removed")
		h.equal(v.Meta("slot") != nil && len(v.Meta("slot")) == 0, true, "an empty value is there")
		h.equal(list(v, ""), []string{"a\x00b=5", "slot=", "slot/b=2", "slot/c=3", "slou=4"}, "all meta, in order")
		h.equal(list(v, "slot"), []string{"slot=", "slot/b=2", "slot/c=3"}, "meta by prefix")
		n := 0
		v.ScanMeta("", func(string, []byte) bool { n++; return n < 2 })
		h.equal(n, 2, "keys until fn said stop")
	})
	h.equal(list(old, "slot/"), []string{"slot/a=1", "slot/b=2"}, "an old view")
	h.commit(func(tx engine.Tx) { h.must(tx.SetMeta("large", bytes.Repeat([]byte("x"), 100_000))) })
	h.view(func(v engine.View) { h.equal(len(v.Meta("large")), 100_000, "a large value") })
}
