package engine_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"pgregory.net/rapid"
)

var (
	blockLog   = engine.LogID{Origin: "n#src", Epoch: 100}
	blockOther = engine.LogID{Origin: "other", Epoch: 9}
)

// blockSchemas are the schemas of both logs: equal IDs, different tables.
func blockSchema(log engine.LogID, id uint32) *engine.Schema {
	if id < 1 || id > 3 || log != blockLog && log != blockOther {
		return nil
	}
	return schemasByLog[log][id-1]
}

var schemasByLog = func() map[engine.LogID][]*engine.Schema {
	m := map[engine.LogID][]*engine.Schema{}
	for _, log := range []engine.LogID{blockLog, blockOther} {
		for id := range uint32(3) {
			m[log] = append(m[log], &engine.Schema{ID: id + 1, Table: engine.TableName{Schema: log.Origin, Name: fmt.Sprint("t", id+1)},
				Columns: []engine.Column{{Name: "v", Number: 1, Key: true}}})
		}
	}
	return m
}()

// drawTransactions makes transactions that follow each other: empty, small,
// large, with records larger than a block, with stamps of their own.
func drawTransactions(t *rapid.T) []*engine.Transaction {
	var txs []*engine.Transaction
	prev := engine.Position("")
	lsn := uint64(0)
	for range rapid.IntRange(1, 8).Draw(t, "transactions") {
		lsn += uint64(rapid.IntRange(1, 1<<33).Draw(t, "gap"))
		tx := &engine.Transaction{
			Log: blockLog, Prev: prev, Position: engine.LSN(lsn).Position(), Major: lsn,
			Time: engine.Time(rapid.Uint64().Draw(t, "time")),
		}
		prev = tx.Position
		n := rapid.SampledFrom([]int{0, 1, 1, 2, 3, 10, 40, 200}).Draw(t, "changes")
		size := rapid.SampledFrom([]int{0, 1, 100, 1000, 14_000, 15_400, 46_000, 61_000, 130_000}).Draw(t, "size")
		if n*size > 1<<20 {
			n = 1<<20/size + 1
		}
		for i := range n {
			log := blockLog
			c := engine.Change{Op: engine.OpPut}
			c.Stamp = engine.Stamp{Time: tx.Time, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: tx.Major, Minor: uint32(i + 1)}}
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				c.Op = engine.OpDelete
			case 1:
				c.Op = engine.OpTruncate
			case 2:
				log = blockOther
				c.Stamp = engine.Stamp{Time: engine.Time(rapid.Uint64().Draw(t, "stamp")), Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: 3, Minor: rapid.Uint32().Draw(t, "minor")}}
			case 3:
				c.Stamp.Version.Minor = 0
			}
			c.Schema = schemasByLog[log][rapid.IntRange(0, 2).Draw(t, "schema")]
			if c.Op != engine.OpTruncate {
				c.Key = fmt.Appendf(nil, "key-%d", i)
			}
			if c.Op == engine.OpPut {
				c.Row = rowOfSize(c.Schema.ID, byte(i), max(0, size-rapid.IntRange(0, 20).Draw(t, "less")))
			}
			if !slices.Contains(tx.Schemas, c.Schema) && rapid.Bool().Draw(t, "first use") {
				tx.Schemas = append(tx.Schemas, c.Schema)
			}
			tx.Changes = append(tx.Changes, c)
		}
		txs = append(txs, tx)
	}
	return txs
}

func rowOfSize(schema uint32, fill byte, size int) engine.Row {
	return engine.AppendValue(engine.AppendRowHeader(nil, schema, 1), bytes.Repeat([]byte{fill}, size))
}

func lineOf(c *engine.Change) string {
	return fmt.Sprintf("%s %s %s %d:%d %s", c.Op, c.Schema.Table, c.Key, len(c.Row), sum(c.Row), c.Stamp)
}

func sum(b []byte) (n int) {
	for i, x := range b {
		n = n*31 + int(x) + i
	}
	return n
}

// blockTx is a transaction as blocks give it back.
type blockTx struct {
	begin   engine.TxHeader
	changes []string
}

func packed(txs []*engine.Transaction) (out []blockTx) {
	for _, t := range txs {
		b := blockTx{begin: engine.TxHeader{Position: t.Position, Major: t.Major, Time: t.Time, Changes: len(t.Changes)}}
		for i := range t.Changes {
			b.changes = append(b.changes, lineOf(&t.Changes[i]))
		}
		out = append(out, b)
	}
	return out
}

// unpacked reads blocks that follow each other back into transactions, and
// checks what every block must say of itself.
func unpacked(t fatal, prev engine.Position, bs []*engine.Block) (out []blockTx) {
	t.Helper()
	var open *engine.Block
	for _, b := range bs {
		part := uint32(0)
		if open != nil {
			part = open.Part + 1
			if b.Position != open.Position {
				t.Fatalf("part %d is of %s, the one before of %s", b.Part, b.Position, open.Position)
			}
		}
		if b.Part != part || b.Prev != prev {
			t.Fatalf("block at %s: part %d after %q, want part %d after %q", b.Position, b.Part, b.Prev, part, prev)
		}
		r := b.Reader(blockLog, blockSchema)
		changes, records, offset := 0, 0, 0
		var ends []engine.End
		for r.Next() {
			switch {
			case !r.IsBegin:
				changes++
				out[len(out)-1].changes = append(out[len(out)-1].changes, lineOf(&r.Change))
			case b.Part > 0:
				if last := out[len(out)-1]; r.Begin.Position != last.begin.Position || r.Begin.Changes != len(last.changes) || r.Begin.Time != last.begin.Time {
					t.Fatalf("part %d begins %+v, after %d changes of %+v", b.Part, r.Begin, len(last.changes), last.begin)
				}
			default:
				if records > 0 {
					ends = append(ends, engine.End{Position: out[len(out)-1].begin.Position, Offset: offset, Changes: changes})
				}
				out = append(out, blockTx{begin: r.Begin})
			}
			records++
			offset = r.Offset()
		}
		if r.Err() != nil {
			t.Fatalf("block at %s: %v", b.Position, r.Err())
		}
		if b.Last {
			ends = append(ends, engine.End{Position: b.Position, Offset: len(b.Payload), Changes: changes})
		}
		if !slices.Equal(ends, b.Ends) {
			t.Fatalf("block at %s part %d (last %v) has ends %v, want %v", b.Position, b.Part, b.Last, b.Ends, ends)
		}
		last := out[len(out)-1].begin
		if b.Changes != changes || b.Position != last.Position || b.Time != last.Time {
			t.Fatalf("block says %d changes, at %s, time %d; it has %d, at %s, time %d", b.Changes, b.Position, b.Time, changes, last.Position, last.Time)
		}
		if len(b.Payload) > engine.MaxBlock && (records != 2 || changes != 1) {
			t.Fatalf("block at %s is %d bytes with %d changes", b.Position, len(b.Payload), changes)
		}
		if open = b; b.Last {
			open, prev = nil, b.Position
		}
	}
	if open != nil {
		t.Fatalf("the last part of %s is missing", open.Position)
	}
	return out
}

func sameTxs(t fatal, got, want []blockTx, what string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d transactions, want %d", what, len(got), len(want))
	}
	for i := range want {
		if got[i].begin != want[i].begin || !slices.Equal(got[i].changes, want[i].changes) {
			t.Fatalf("%s: transaction %d is %+v with %d changes, want %+v with %d", what, i, got[i].begin, len(got[i].changes), want[i].begin, len(want[i].changes))
		}
	}
}

// TestBlocksRoundTrip: what is packed comes back, whole or from any position.
func TestBlocksRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		txs := drawTransactions(t)
		w := engine.NewBlockBuilder(blockLog, "")
		var bs []*engine.Block
		for _, tx := range txs {
			w.Add(tx)
			if rapid.IntRange(0, 3).Draw(t, "flush") == 0 {
				bs = append(bs, w.Blocks()...)
			}
		}
		bs = append(bs, w.Blocks()...)
		if len(w.Blocks()) != 0 {
			t.Fatal("Blocks gives blocks twice")
		}
		want := packed(txs)
		sameTxs(t, unpacked(t, "", bs), want, "all blocks")
		checkSchemas(t, txs, bs)

		for _, b := range bs {
			if cap(b.Payload) > len(b.Payload)*5/4+512 {
				t.Fatalf("block at %s has %d bytes and room for %d", b.Position, len(b.Payload), cap(b.Payload))
			}
			c := *b
			if err := c.Index(blockLog, blockSchema); err != nil {
				t.Fatalf("Index of the block at %s: %v", b.Position, err)
			}
			if c.Changes != b.Changes || !slices.Equal(c.Ends, b.Ends) {
				t.Fatalf("Index of the block at %s gives %d changes and ends %v, want %d and %v", b.Position, c.Changes, c.Ends, b.Changes, b.Ends)
			}
		}

		positions := []engine.Position{""}
		for _, tx := range txs {
			positions = append(positions, tx.Position)
		}
		for n, p := range positions {
			var rest []*engine.Block
			for _, b := range bs {
				if r, ok := b.After(p, engine.CompareLSN); ok {
					rest = append(rest, r)
				}
			}
			sameTxs(t, unpacked(t, p, rest), want[n:], "after "+string(p))
		}
		between(t, txs, bs)
	})
}

// between asks for positions that are not the end of a transaction: nothing
// after them may be lost.
func between(t fatal, txs []*engine.Transaction, bs []*engine.Block) {
	t.Helper()
	for n, tx := range txs {
		lsn, err := engine.ParseLSN(tx.Position)
		if err != nil {
			t.Fatalf("%v", err)
		}
		p := (lsn - 1).Position()
		if n > 0 && p == txs[n-1].Position || n == 0 && lsn == 1 {
			continue
		}
		first := ""
		for _, b := range bs {
			if r, ok := b.After(p, engine.CompareLSN); ok {
				rd := r.Reader(blockLog, blockSchema)
				rd.Next()
				first = string(rd.Begin.Position)
				if len(r.Ends) > 0 && engine.CompareLSN(r.Prev, p) > 0 {
					t.Fatalf("after %s, before %s: the rest follows %s", p, tx.Position, r.Prev)
				}
				if r.Prev != b.Prev && !slices.ContainsFunc(txs, func(x *engine.Transaction) bool { return x.Position == r.Prev }) {
					t.Fatalf("after %s the rest follows %s, which is no end", p, r.Prev)
				}
				break
			}
		}
		// the block may start with older transactions only if they cannot be told apart
		if first == "" || engine.CompareLSN(engine.Position(first), p) <= 0 {
			t.Fatalf("after %s, before %s: the rest starts with %q", p, tx.Position, first)
		}
	}
}

// checkSchemas: a transaction's schemas come with its first block, not with
// what is before it, each once.
func checkSchemas(t fatal, txs []*engine.Transaction, bs []*engine.Block) {
	t.Helper()
	var want, got []string
	for _, tx := range txs {
		for _, s := range tx.Schemas {
			want = append(want, s.Table.String())
		}
	}
	for _, b := range bs {
		var may []*engine.Schema
		for _, tx := range txs {
			if engine.CompareLSN(tx.Position, b.Prev) > 0 && engine.CompareLSN(tx.Position, b.Position) <= 0 {
				may = append(may, tx.Schemas...)
			}
		}
		if b.Part > 0 && len(b.Schemas) > 0 {
			t.Fatalf("part %d of %s has schemas: they belong to part 0", b.Part, b.Position)
		}
		if b.Part == 0 && len(b.Schemas) != len(may) {
			t.Fatalf("the block at %s has %d schemas, its transactions have %d", b.Position, len(b.Schemas), len(may))
		}
		for _, s := range b.Schemas {
			got = append(got, s.Table.String())
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("schemas in blocks %v, want %v", got, want)
	}
}

// TestBlockEdges holds the cases that random transactions seldom hit.
func TestBlockEdges(t *testing.T) {
	t.Parallel()
	tx := func(n int, sizes ...int) *engine.Transaction {
		x := &engine.Transaction{Log: blockLog, Position: engine.LSN(n).Position(), Major: uint64(n), Time: engine.Time(n)}
		for i, size := range sizes {
			x.Changes = append(x.Changes, engine.Change{
				Op: engine.OpPut, Schema: schemasByLog[blockLog][0], Key: []byte("k"), Row: rowOfSize(1, 0, size),
				Stamp: engine.Stamp{Time: x.Time, Origin: blockLog.Origin, Epoch: blockLog.Epoch, Version: engine.Version{Major: uint64(n), Minor: uint32(i + 1)}},
			})
		}
		return x
	}
	const k = 1 << 10
	for _, c := range []struct {
		name string
		txs  []*engine.Transaction
		want string // of each block: transactions or part, and changes
	}{
		{"nothing", nil, ""},
		{"no changes", []*engine.Transaction{tx(1)}, "[1 tx 0]"},
		{"many without changes", []*engine.Transaction{tx(1), tx(2), tx(3)}, "[3 tx 0]"},
		{"fits", []*engine.Transaction{tx(1, 10*k), tx(2, 10*k), tx(3, 10*k)}, "[3 tx 3]"},
		{"first record does not fit beside others", []*engine.Transaction{tx(1, 40*k), tx(2, 30*k)}, "[1 tx 1] [1 tx 1]"},
		{"later record does not fit: moves whole", []*engine.Transaction{tx(1, 30*k), tx(2, 10*k, 25*k)}, "[1 tx 1] [1 tx 2]"},
		{"moves, and then splits at once", []*engine.Transaction{tx(1, 10*k), tx(2, 40*k, 55*k)}, "[1 tx 1] [part 0 1] [part 1 1 last]"},
		{"splits right after whole ones", []*engine.Transaction{tx(1, 10*k), tx(2, 20*k, 20*k, 20*k, 20*k)}, "[1 tx 1] [part 0 2] [part 1 2 last]"},
		{"splits twice", []*engine.Transaction{tx(1, 50*k, 50*k, 50*k)}, "[part 0 1] [part 1 1] [part 2 1 last]"},
		{"what follows a part starts anew", []*engine.Transaction{tx(1, 50*k, 50*k), tx(2, 1), tx(3, 1)}, "[part 0 1] [part 1 1 last] [2 tx 2]"},
		{"one record above a block", []*engine.Transaction{tx(1, 200*k)}, "[1 tx 1]"},
		{"one record above a block, after others", []*engine.Transaction{tx(1, 1), tx(2, 200*k), tx(3, 1)}, "[1 tx 1] [1 tx 1] [1 tx 1]"},
		{"one record above a block within a transaction", []*engine.Transaction{tx(1, 1, 200*k, 1)}, "[part 0 1] [part 1 1] [part 2 1 last]"},
		{"no changes after a part", []*engine.Transaction{tx(1, 50*k, 50*k), tx(2)}, "[part 0 1] [part 1 1 last] [1 tx 0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := engine.NewBlockBuilder(blockLog, "")
			for _, x := range c.txs {
				w.Add(x)
			}
			bs := w.Blocks()
			var got []string
			for _, b := range bs {
				switch {
				case b.Part == 0 && b.Last:
					got = append(got, fmt.Sprintf("[%d tx %d]", len(b.Ends), b.Changes))
				case b.Last:
					got = append(got, fmt.Sprintf("[part %d %d last]", b.Part, b.Changes))
				default:
					got = append(got, fmt.Sprintf("[part %d %d]", b.Part, b.Changes))
				}
			}
			if g := fmt.Sprint(got); g != "["+c.want+"]" {
				t.Errorf("blocks %s, want [%s]", g, c.want)
			}
			sameTxs(t, unpacked(t, "", bs), packed(c.txs), "blocks")
		})
	}
}

// TestReaderKeepsSchemasApart: a change after one with another log's stamp has
// the schema of its own log, even if the IDs are equal.
func TestReaderKeepsSchemasApart(t *testing.T) {
	t.Parallel()
	x := &engine.Transaction{Log: blockLog, Position: "0/1", Major: 1, Time: 5}
	for i, log := range []engine.LogID{blockLog, blockOther, blockLog, blockOther, blockOther, blockLog} {
		x.Changes = append(x.Changes, engine.Change{
			Op: engine.OpDelete, Schema: schemasByLog[log][1], Key: []byte("k"),
			Stamp: engine.Stamp{Time: 5, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: 1, Minor: uint32(i + 1)}},
		})
	}
	w := engine.NewBlockBuilder(blockLog, "")
	w.Add(x)
	sameTxs(t, unpacked(t, "", w.Blocks()), packed([]*engine.Transaction{x}), "blocks of two logs' stamps")
}

// FuzzBlockReader: bytes from outside never panic, never make the reader give
// out more than there is, and always end.
func FuzzBlockReader(f *testing.F) {
	w := engine.NewBlockBuilder(blockLog, "")
	w.Add(&engine.Transaction{Log: blockLog, Position: "0/1", Major: 1, Time: 5, Changes: []engine.Change{
		{Op: engine.OpPut, Schema: schemasByLog[blockLog][0], Key: []byte("k"), Row: engine.Row("row")},
		{Op: engine.OpDelete, Schema: schemasByLog[blockOther][0], Key: []byte("k"), Stamp: engine.Stamp{Origin: "other", Epoch: 9, Time: 4}},
		{Op: engine.OpTruncate, Schema: schemasByLog[blockLog][2], Stamp: engine.Stamp{Time: 5, Origin: "n#src", Epoch: 100, Version: engine.Version{Major: 1, Minor: 3}}},
	}})
	f.Add(w.Blocks()[0].Payload, false)
	f.Add([]byte{1, 3, '0', '/', '1', 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, true)
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, false)
	f.Fuzz(func(t *testing.T, p []byte, part bool) {
		b := &engine.Block{Payload: p, Last: true, Position: "0/1"}
		if part {
			b.Part = 1
		}
		r := b.Reader(blockLog, blockSchema)
		records, given := 0, 0
		for r.Next() {
			if records++; records > len(p) {
				t.Fatalf("%d records in %d bytes", records, len(p))
			}
			if r.IsBegin {
				given += len(r.Begin.Position)
				if r.Begin.Changes < 0 {
					t.Fatalf("a transaction of %d changes", r.Begin.Changes)
				}
				continue
			}
			given += len(r.Change.Key) + len(r.Change.Row)
			if r.Change.Schema == nil || r.Change.Op.String() == "unknown" {
				t.Fatalf("a change of %v %v", r.Change.Op, r.Change.Schema)
			}
		}
		if given > len(p) {
			t.Fatalf("%d bytes out of %d", given, len(p))
		}
		if r.Err() == nil && r.Offset() != len(p) {
			t.Fatalf("the reader ended at %d of %d without an error", r.Offset(), len(p))
		}
		if err := b.Index(blockLog, blockSchema); err == nil {
			for _, e := range b.Ends {
				if rest, ok := b.After(e.Position, engine.CompareLSN); ok && len(rest.Payload) > len(p) {
					t.Fatal("After gives more than there was")
				}
			}
		}
		narrow, err := b.Narrow(blockLog, blockSchema, keeping(func(s *engine.Schema) bool { return s.ID == 1 }))
		if err == nil && narrow != nil && narrow != b {
			if r := narrow.Reader(blockLog, blockSchema); true {
				for r.Next() {
				}
				if r.Err() != nil {
					t.Fatalf("what Narrow made cannot be read: %v", r.Err())
				}
			}
		}
	})
}
