package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// checkPieces fails unless the store holds the pieces of what it holds, and no others.
func checkPieces(t testing.TB, p *Pebble) (n int) {
	t.Helper()
	need := map[string]bool{}
	each := func(space byte, fn func(key, value []byte)) {
		it, err := p.db.NewIter(&pebble.IterOptions{LowerBound: []byte{space}, UpperBound: []byte{space + 1}})
		if err != nil {
			t.Fatal(err)
		}
		for ok := it.First(); ok; ok = it.Next() {
			fn(it.Key(), it.Value())
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for space, of := range map[byte]byte{spaceRow: spaceRowIn, spaceBlock: spaceBlockIn} {
		each(space, func(key, value []byte) {
			d := decoder{b: value}
			in, _ := d.pieces()
			num := decoder{b: key[1:]}
			for i, num := 0, num.be32(); i < in.n; i++ {
				need[string(pieceKey(nil, of, num, in.id, i))] = true
			}
		})
		each(of, func(key, _ []byte) {
			if n++; !need[string(key)] {
				t.Errorf("nothing refers to piece %x", key)
			}
			delete(need, string(key))
		})
	}
	for key := range need {
		t.Errorf("piece %x is missing", key)
	}
	return n
}

// Pieces go with what refers to them: a row that is replaced, deleted or in a table that
// is dropped, an entry that is trimmed, a transaction that is given up.
func TestPiecesGo(t *testing.T) {
	t.Parallel()
	p, err := OpenPebble(crashOptions(vfs.NewMem()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	w := &workload{t: t}
	big := func(key string, size int) *engine.Record {
		w.time++
		return &engine.Record{Schema: workTables[0], Key: []byte(key), Row: make([]byte, size), Stamp: engine.Stamp{
			Time: w.time, Origin: workLog.Origin, Epoch: workLog.Epoch, Version: engine.Version{Major: uint64(w.time)},
		}}
	}
	entry := func(tx engine.Tx) {
		w.n++
		one := &engine.Transaction{Log: workLog, Prev: workPosition(w.n - 1), Position: workPosition(w.n), Time: w.time, Major: uint64(w.n)}
		r := big("k", 20_000)
		one.Changes = []engine.Change{{Op: engine.OpPut, Schema: r.Schema, Key: r.Key, Row: r.Row, Stamp: r.Stamp}}
		b := engine.NewBlockBuilder(workLog, one.Prev)
		b.Add(one)
		w.must(tx.Append(workLog, engine.CompareLSN, b.Blocks()...))
	}
	step := func(what string, want int, fn func(tx engine.Tx)) {
		t.Helper()
		tx, err := p.Begin(context.Background())
		w.must(err)
		if fn(tx); what == "given up" {
			tx.Rollback()
		} else {
			w.must(tx.Commit())
		}
		if got := checkPieces(t, p); got != want {
			t.Errorf("%s: %d pieces, want %d", what, got, want)
		}
	}
	table := workTables[0].Table
	const whole, large = 8192, 8193 // in one piece; in five of 2 KiB at most
	step("rows", 5+10, func(tx engine.Tx) {
		w.first(tx)
		w.must(tx.Put(big("a", large)))
		w.must(tx.Put(big("b", 20_000)))
		w.must(tx.Put(big("c", whole)))
		for _, size := range []int{large, large, 10} {
			w.must(tx.Put(big("d", size)))
		}
		w.must(tx.Put(big("e", large)))
		w.must(tx.Remove(table, []byte("e")))
	})
	step("given up", 15, func(tx engine.Tx) {
		w.must(tx.Put(big("a", 3*large)))
		w.must(tx.Put(big("c", large)))
		w.must(tx.Remove(table, []byte("b")))
		entry(tx)
		w.n--
	})
	before := p.View()
	step("replaced", 5+10+10, func(tx engine.Tx) { // the entry has a little more than its row
		w.must(tx.Put(big("b", large)))
		w.must(tx.Put(big("a", 1)))
		entry(tx)
		entry(tx)
	})
	if r, ok, err := before.Get(table, []byte("b")); err != nil || !ok || len(r.Row) != 20_000 {
		t.Errorf("a view from before has %d bytes, %v, %v", len(r.Row), ok, err)
	}
	before.Close()
	step("a tombstone and a trim", 10, func(tx engine.Tx) {
		gone := big("b", 0)
		gone.Deleted = true
		w.must(tx.Put(gone))
		w.must(tx.TrimLog(workLog, 0, workPosition(1)))
	})
	step("adopted", 10+2*5, func(tx engine.Tx) {
		st := p.NewStage(table)
		w.must(st.Put([]engine.Record{*big("a", large), *big("b", large), *big("a", large)}))
		w.must(tx.Adopt(st))
		w.must(tx.Put(big("b", large)))
	})
	closed := p.NewStage(table)
	w.must(closed.Put([]engine.Record{*big("a", large)}))
	closed.Close()
	step("dropped", 10, func(tx engine.Tx) { w.must(tx.DropTable(table)) })
	step("the log too", 0, func(tx engine.Tx) { w.must(tx.DropLog(workLog)) })
}

// A store of format 1, in which large values are in one piece, is read, gone on with,
// and then not one for an earlier version any more.
func TestPebbleFormat1(t *testing.T) {
	t.Parallel()
	o := crashOptions(vfs.Default)
	o.Dir = filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(o.Dir, os.DirFS("testdata/store1")); err != nil {
		t.Fatal(err)
	}
	table := workTables[0].Table
	size := map[string]int{"1": 9000, "2": 9000}
	for range 2 {
		p, err := OpenPebble(o)
		if err != nil {
			t.Fatal(err)
		}
		v := p.View()
		for key, want := range size {
			r, ok, err := v.Get(table, []byte(key))
			if err != nil || !ok || len(r.Row) != want || r.Row[300] != byte(300%256) {
				t.Errorf("row %s has %d bytes of %d: %v, %v", key, len(r.Row), want, ok, err)
			}
		}
		r, _, _ := v.Get(table, []byte("2"))
		v.Close()
		tx, err := p.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		r.Row = append(r.Row, make([]byte, 1000)...)
		if err := tx.Put(&r); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		size["2"] = len(r.Row)
		checkPieces(t, p)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(o.Dir, "FORMAT")); err != nil || string(b) != "tributary store 2\n" {
		t.Errorf("the format is %q: %v", b, err)
	}
}
