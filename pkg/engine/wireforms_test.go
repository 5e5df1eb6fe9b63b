package engine_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

var (
	wireLog   = engine.LogID{Origin: "n#pg", Epoch: 9}
	wireOlder = engine.LogID{Origin: "n#pg", Epoch: 4}
)

func wireSchemas() (of func(engine.LogID, uint32) *engine.Schema) {
	m := map[engine.LogID]map[uint32]*engine.Schema{wireLog: {}, wireOlder: {}}
	for _, l := range []engine.LogID{wireLog, wireOlder} {
		for i, t := range tables {
			s := shapeOf(t)
			s.ID = uint32(i + 1)
			m[l][s.ID] = s
		}
	}
	return func(l engine.LogID, id uint32) *engine.Schema { return m[l][id] }
}

func wireStamp(t *rapid.T, log engine.LogID) engine.Stamp {
	return engine.Stamp{
		Time: engine.Time(rapid.Uint64Range(1, 5).Draw(t, "time")), Origin: log.Origin, Epoch: log.Epoch,
		Version: engine.Version{Major: rapid.Uint64Range(1, 3).Draw(t, "major"), Minor: rapid.Uint32Range(0, 3).Draw(t, "minor")},
	}
}

// Records come out of frames as they went in, frame by frame.
func TestRecordFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		of := wireSchemas()
		var enc engine.RecordEncoder
		var want, got []engine.Record
		for i := range rapid.IntRange(0, 30).Draw(t, "records") {
			log := rapid.SampledFrom([]engine.LogID{wireLog, wireOlder}).Draw(t, "log")
			s := of(log, 1)
			r := engine.Record{Schema: s, Key: keyOf(fmt.Sprint(i)), Stamp: wireStamp(t, log)}
			if r.Deleted = rapid.Bool().Draw(t, "deleted"); !r.Deleted {
				r.Row = rowOf(s, fmt.Sprint(i), rapid.String().Draw(t, "v"), "doc")
			}
			enc.Append(&r)
			want = append(want, r)
			if rapid.Bool().Draw(t, "frame") {
				var err error
				if got, err = engine.DecodeRecords(got, tableA, enc.Take(), of); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := engine.DecodeRecords(got, tableA, enc.Take(), of)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, want, func(a, b engine.Record) bool {
			return a.Schema == b.Schema && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Row, b.Row) && a.Stamp == b.Stamp && a.Deleted == b.Deleted
		}) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func FuzzDecodeRecords(f *testing.F) {
	of := wireSchemas()
	var enc engine.RecordEncoder
	enc.Append(&engine.Record{Schema: of(wireLog, 1), Key: keyOf("k"), Row: rowOf(of(wireLog, 1), "k", "v", "d"), Stamp: engine.Stamp{Time: 1, Origin: wireLog.Origin, Epoch: wireLog.Epoch}})
	enc.Append(&engine.Record{Schema: of(wireOlder, 1), Key: keyOf("l"), Deleted: true, Stamp: engine.Stamp{Time: 2, Origin: wireLog.Origin, Epoch: wireOlder.Epoch}})
	f.Add(enc.Take())
	f.Fuzz(func(t *testing.T, p []byte) {
		rs, err := engine.DecodeRecords(nil, tableA, p, of)
		if err != nil {
			return
		}
		var enc engine.RecordEncoder
		for i := range rs {
			enc.Append(&rs[i])
		}
		again, err := engine.DecodeRecords(nil, tableA, enc.Take(), of)
		if err != nil || len(again) != len(rs) || (len(rs) > 0 && !reflect.DeepEqual(again, rs)) {
			t.Fatalf("%v came again as %v, %v", rs, again, err)
		}
	})
}

// flat is a block's changes with the positions of their transactions.
func flat(t *rapid.T, blocks []*engine.Block, of func(engine.LogID, uint32) *engine.Schema) (changes []string, ends []engine.Position) {
	for _, b := range blocks {
		r := b.Reader(wireLog, of)
		for r.Next() {
			if !r.IsBegin {
				c := r.Change
				changes = append(changes, fmt.Sprintf("%s %s %s %q %q %s", r.Begin.Position, c.Op, c.Schema.Table, c.Key, c.Row, c.Stamp))
			}
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		for _, e := range b.Ends {
			ends = append(ends, e.Position)
		}
	}
	return changes, ends
}

func wireBlocks(t *rapid.T, of func(engine.LogID, uint32) *engine.Schema) []*engine.Block {
	w := engine.NewBlockBuilder(wireLog, "0/1")
	for i := range rapid.IntRange(1, 12).Draw(t, "transactions") {
		lsn := engine.LSN(16 * (i + 1))
		tx := &engine.Transaction{Position: lsn.Position(), Time: engine.Time(100 + i), Major: uint64(lsn)}
		for j := range rapid.IntRange(0, 6).Draw(t, "changes") {
			log := rapid.SampledFrom([]engine.LogID{wireLog, wireLog, wireLog, wireOlder}).Draw(t, "log")
			s := of(log, uint32(rapid.IntRange(1, 2).Draw(t, "table")))
			c := engine.Change{Op: engine.OpPut, Schema: s, Key: keyOf(fmt.Sprint(j)), Stamp: engine.Stamp{
				Time: tx.Time, Origin: wireLog.Origin, Epoch: wireLog.Epoch, Version: engine.Version{Major: tx.Major, Minor: uint32(j + 1)},
			}}
			if log != wireLog {
				c.Stamp = wireStamp(t, log)
			}
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0:
				c.Op = engine.OpDelete
			case 1:
				c.Op, c.Key = engine.OpTruncate, nil
			case 2: // large: parts
				c.Row = rowOf(s, fmt.Sprint(j), string(bytes.Repeat([]byte("x"), 40_000)), "d")
			default:
				c.Row = rowOf(s, fmt.Sprint(j), "v", "d")
			}
			tx.Changes = append(tx.Changes, c)
		}
		w.Add(tx)
	}
	return w.Blocks()
}

// Index finds in a payload what the builder knew.
func TestIndex(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		of := wireSchemas()
		for _, b := range wireBlocks(t, of) {
			got := &engine.Block{Prev: b.Prev, Position: b.Position, Time: b.Time, Part: b.Part, Last: b.Last, Payload: b.Payload}
			if err := got.Index(wireLog, of); err != nil {
				t.Fatal(err)
			}
			if got.Changes != b.Changes || !slices.Equal(got.Ends, b.Ends) {
				t.Fatalf("got %d changes, ends %v; want %d, %v", got.Changes, got.Ends, b.Changes, b.Ends)
			}
			bad := *got
			bad.Position += "0"
			if err := bad.Index(wireLog, of); err == nil {
				t.Fatal("another end was accepted")
			}
		}
	})
}

// keeping is a lens through which only some tables are seen.
type keeping func(*engine.Schema) bool

func (k keeping) Change(c *engine.Change) bool { return k(c.Schema) }

func (k keeping) Schema(s *engine.Schema) *engine.Schema {
	if k(s) {
		return s
	}
	return nil
}

// Narrow keeps the changes of the tables asked for, with their stamps, and the
// order of positions; Split keeps everything.
func TestNarrowAndSplit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		of := wireSchemas()
		blocks := wireBlocks(t, of)
		keep := keeping(func(s *engine.Schema) bool { return s.Table == tableB })
		var narrow, split []*engine.Block
		at := blocks[0].Prev
		for _, b := range blocks {
			n, err := b.Narrow(wireLog, of, keep)
			if err != nil {
				t.Fatal(err)
			}
			if n != nil {
				if engine.CompareLSN(n.Prev, at) < 0 || engine.CompareLSN(n.Position, b.Position) > 0 || n.Part != b.Part || n.Last != b.Last {
					t.Fatalf("the block %s→%s part %d became %s→%s part %d", b.Prev, b.Position, b.Part, n.Prev, n.Position, n.Part)
				}
				again := *n
				if err := again.Index(wireLog, of); err != nil || again.Changes != n.Changes || !slices.Equal(again.Ends, n.Ends) {
					t.Fatalf("%v: %d changes, ends %v; really %d, %v", err, n.Changes, n.Ends, again.Changes, again.Ends)
				}
				narrow = append(narrow, n)
			} else if b.Part > 0 || !b.Last {
				t.Fatal("a part was dropped")
			}
			if b.Last {
				at = b.Position
			}
			split = append(split, b.Split(wireLog)...)
		}
		all, ends := flat(t, blocks, of)
		var want []string
		r := fmt.Sprintf(" %s ", tableB)
		for _, c := range all {
			if bytes.Contains([]byte(c), []byte(r)) {
				want = append(want, c)
			}
		}
		if got, _ := flat(t, narrow, of); !slices.Equal(got, want) {
			t.Fatalf("narrowed to %d changes, want %d", len(got), len(want))
		}
		got, gotEnds := flat(t, split, of)
		if !slices.Equal(got, all) || !slices.Equal(gotEnds, ends) {
			t.Fatalf("split to %d changes, want %d", len(got), len(all))
		}
		prev := blocks[0].Prev
		for _, b := range split {
			if b.Part > 0 {
				continue
			}
			if b.Prev != prev {
				t.Fatalf("a block follows %s, want %s", b.Prev, prev)
			}
			if b.Last && len(b.Ends) != 1 {
				t.Fatalf("%d transactions in one", len(b.Ends))
			}
			prev = b.Position
		}
	})
}

func FuzzIndex(f *testing.F) {
	of := wireSchemas()
	w := engine.NewBlockBuilder(wireLog, "0/1")
	w.Add(&engine.Transaction{Position: "0/10", Time: 5, Major: 16, Changes: []engine.Change{{
		Op: engine.OpPut, Schema: of(wireLog, 1), Key: keyOf("k"), Row: rowOf(of(wireLog, 1), "k", "v", "d"),
		Stamp: engine.Stamp{Time: 5, Origin: wireLog.Origin, Epoch: wireLog.Epoch, Version: engine.Version{Major: 16, Minor: 1}},
	}}})
	f.Add(w.Blocks()[0].Payload, uint32(0), true)
	f.Fuzz(func(t *testing.T, p []byte, part uint32, last bool) {
		b := &engine.Block{Prev: "0/1", Position: "0/10", Part: part, Last: last, Payload: p}
		if b.Index(wireLog, of) != nil {
			return
		}
		if n, err := b.Narrow(wireLog, of, keeping(func(*engine.Schema) bool { return false })); err != nil || (n != nil && n.Changes > 0) {
			t.Fatalf("%+v %v", n, err)
		}
		for _, s := range b.Split(wireLog) {
			if err := s.Index(wireLog, of); err != nil {
				t.Fatal(err)
			}
		}
	})
}
