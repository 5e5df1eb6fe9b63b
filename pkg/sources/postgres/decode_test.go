package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Builders of pgoutput messages, written from the protocol's description
// (PostgreSQL documentation, "Logical Replication Message Formats").

func msgBegin() []byte { return append([]byte{'B'}, make([]byte, 20)...) }

func msgCommit(end engine.LSN) []byte {
	m := append([]byte{'C', 0}, make([]byte, 8)...)
	m = binary.BigEndian.AppendUint64(m, uint64(end))
	return binary.BigEndian.AppendUint64(m, 1)
}

func msgTuple(m []byte, values ...any) []byte {
	m = binary.BigEndian.AppendUint16(m, uint16(len(values)))
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			m = append(m, 'n')
		case unchangedValue:
			m = append(m, 'u')
		case string:
			m = append(m, 't')
			m = binary.BigEndian.AppendUint32(m, uint32(len(v)))
			m = append(m, v...)
		}
	}
	return m
}

type unchangedValue struct{}

var unchanged unchangedValue

func msgChange(kind byte, oid uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, oid)
}

func msgInsert(values ...any) []byte {
	return msgTuple(append(msgChange('I', 1), 'N'), values...)
}

func msgDelete(values ...any) []byte { return msgTuple(append(msgChange('D', 1), 'K'), values...) }

func msgUpdate(old, values []any) []byte {
	m := msgChange('U', 1)
	if old != nil {
		m = msgTuple(append(m, 'K'), old...)
	}
	return msgTuple(append(m, 'N'), values...)
}

func msgRelation(oid uint32) []byte {
	m := msgChange('R', oid)
	m = append(m, "public\x00t\x00d"...)
	m = binary.BigEndian.AppendUint16(m, 3)
	for i, name := range []string{"id", "n", "b"} {
		flag := byte(0)
		if i == 0 {
			flag = 1
		}
		m = append(append(append(m, flag), name...), 0)
		m = binary.BigEndian.AppendUint32(m, 23)
		m = binary.BigEndian.AppendUint32(m, 0xffffffff)
	}
	return m
}

func testSchema() *engine.Schema {
	return &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "t"}, RelationOID: 1, ReplicaIdentity: 'd',
		Columns: []engine.Column{{Name: "id", Number: 1, Key: true}, {Name: "n", Number: 2}, {Name: "b", Number: 3}}}
}

func testDecoder(from engine.LSN) *decoder {
	s := testSchema()
	return newDecoder(from, func(m *relationMessage) (*relation, error) {
		if m.oid != 1 {
			return nil, nil
		}
		return newRelation(s), nil
	})
}

func feed(t *testing.T, d *decoder, msgs ...[]byte) {
	t.Helper()
	for _, m := range msgs {
		if _, err := d.decode(m); err != nil {
			t.Fatal(err)
		}
	}
}

// describe writes what a batch holds, one line per change.
func describe(b *batch) (out []string) {
	for _, t := range b.transactions() {
		out = append(out, fmt.Sprintf("(%s %s] schemas %d", t.Prev, t.Position, len(t.Schemas)))
		for _, c := range t.Changes {
			line := fmt.Sprintf("%s %d.%d", c.Op, c.Stamp.Version.Major, c.Stamp.Version.Minor)
			if c.Op != engine.OpTruncate {
				parts, _ := engine.DecodeKey(c.Key)
				line += fmt.Sprintf(" %s", parts)
			}
			if c.OldKey != nil {
				parts, _ := engine.DecodeKey(c.OldKey)
				line += fmt.Sprintf(" from %s", parts)
			}
			for _, v := range c.Row.Columns() {
				switch v.State {
				case engine.Present:
					line += fmt.Sprintf(" %q", v.Value)
				case engine.Null:
					line += " null"
				case engine.Unchanged:
					line += " unchanged"
				}
			}
			if c.Partial {
				line += " partial"
			}
			out = append(out, line)
		}
	}
	return out
}

func TestDecodeTransactions(t *testing.T) {
	t.Parallel()
	d := testDecoder(0x10)
	feed(t, d,
		msgBegin(), msgRelation(1), msgInsert("1", nil, "x"), msgUpdate(nil, []any{"1", "5", unchanged}), msgCommit(0x20),
		msgBegin(), msgCommit(0x28), // nothing of ours
		msgBegin(), msgRelation(7), append(msgChange('I', 7), 'N', 0, 0), msgCommit(0x2c), // nor here
		msgBegin(), []byte("Ypg\x00"), []byte("O"), []byte("M"), msgUpdate([]any{"1", nil, nil}, []any{"2", "5", unchanged}),
		msgUpdate([]any{"2", nil, nil}, []any{unchanged, "6", "y"}),
		msgDelete("2", nil, nil), append(binary.BigEndian.AppendUint32([]byte{'T', 0, 0, 0, 2, 0}, 1), 0, 0, 0, 7), msgCommit(0x30))
	want := []string{
		"(0/10 0/20] schemas 1", `put 32.1 [1] "1" null "x"`, `put 32.2 [1] "1" "5" unchanged partial`,
		"(0/20 0/30] schemas 0", `delete 48.1 [1]`, `put 48.2 [2] from [1] "2" "5" unchanged partial`, `put 48.3 [2] "2" "6" "y"`, `delete 48.4 [2]`, "truncate 48.5",
	}
	got := describe(d.batch)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// What the server sends again after a reconnect is dropped, whole, and a schema
// that was only named there is named again.
func TestDecodeSkipsWhatWasApplied(t *testing.T) {
	t.Parallel()
	d := testDecoder(0x20)
	feed(t, d, msgBegin(), msgRelation(1), msgInsert("1", nil, nil), msgCommit(0x20), msgBegin(), msgInsert("2", nil, nil), msgCommit(0x21))
	if got := describe(d.batch); len(got) != 2 || got[0] != "(0/20 0/21] schemas 1" {
		t.Errorf("got %q", got)
	}
}

// Changes of a relation of which it cannot be told yet what it is are dropped, and
// this is told with the end of their transaction, unless that has been applied
// before; once it can be told they are decoded, with no message that says so.
func TestDecodeUnclear(t *testing.T) {
	t.Parallel()
	clear := false
	var missed []string
	d := newDecoder(0x10, func(m *relationMessage) (*relation, error) { return &relation{unclear: m}, nil })
	d.retry = func(r *relation) error {
		if clear {
			*r = *newRelation(testSchema())
		}
		return nil
	}
	d.missed = func(tables map[engine.TableName]bool, end engine.LSN) {
		missed = append(missed, fmt.Sprint(tables, end))
	}
	feed(t, d,
		msgBegin(), msgRelation(1), msgInsert("1", nil, nil), msgCommit(0x10),
		msgBegin(), msgInsert("2", nil, nil), msgInsert("3", nil, nil), msgCommit(0x20),
		msgBegin(), msgCommit(0x21))
	if got := describe(d.batch); len(got) != 0 || !slices.Equal(missed, []string{"map[public.t:true] 0/20"}) {
		t.Errorf("got %q, missed %q", got, missed)
	}
	clear = true
	feed(t, d, msgBegin(), msgInsert("4", nil, nil), msgCommit(0x30))
	if got, want := describe(d.batch), []string{"(0/10 0/30] schemas 1", `put 48.1 [4] "4" null null`}; !slices.Equal(got, want) || len(missed) != 1 {
		t.Errorf("got %q, missed %q", got, missed)
	}
}

// An unfinished transaction moves to another batch, and the finished ones stay.
func TestBatchSplit(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("b", maxCopied)
	for _, value := range []string{"b", large} {
		d := testDecoder(0)
		feed(t, d, msgBegin(), msgRelation(1), msgInsert("1", nil, "a"), msgCommit(0x20), msgBegin(),
			msgInsert("2", nil, value), msgTuple(append(msgTuple(append(msgChange('U', 1), 'K'), "2", nil, nil), 'N'), "4", nil, unchanged))
		first := d.batch
		all := first.bytes
		d.batch = &batch{}
		first.split(d.batch)
		if first.bytes+d.batch.bytes != all {
			t.Errorf("%d and %d bytes of %d", first.bytes, d.batch.bytes, all)
		}
		feed(t, d, msgInsert("3", nil, "c"), msgCommit(0x30))
		if got := describe(first); len(got) != 2 {
			t.Errorf("first: %q", got)
		}
		if again := first.reset(); again != (value != large) {
			t.Errorf("with a value of %d bytes the memory is used again: %t", len(value), again)
		} else if again {
			first.keep(append(first.reserve(slabSize/32), make([]byte, slabSize/32)...))
		}
		want := []string{"(0/20 0/30] schemas 0", fmt.Sprintf(`put 48.1 [2] "2" null %q`, value), "delete 48.2 [2]", `put 48.3 [4] from [2] "4" null unchanged partial`, `put 48.4 [3] "3" null "c"`}
		if got := describe(d.batch); !slices.Equal(got, want) {
			t.Errorf("second: %q", got)
		}
	}
}

func TestDecodeDamage(t *testing.T) {
	t.Parallel()
	for name, msgs := range map[string][][]byte{
		"empty":                     {{}},
		"unknown type":              {{'?'}},
		"change outside":            {msgRelation(1), msgInsert("1", nil, nil)},
		"begin twice":               {msgBegin(), msgBegin()},
		"commit outside":            {msgCommit(1)},
		"undescribed relation":      {msgBegin(), msgInsert("1", nil, nil)},
		"null key":                  {msgBegin(), msgRelation(1), msgInsert(nil, nil, nil)},
		"unchanged insert":          {msgBegin(), msgRelation(1), msgInsert("1", unchanged, nil)},
		"columns missing":           {msgBegin(), msgRelation(1), msgInsert("1")},
		"bytes after":               {msgBegin(), msgRelation(1), append(msgInsert("1", nil, nil), 0)},
		"update without new":        {msgBegin(), msgRelation(1), msgTuple(append(msgChange('U', 1), 'K'), "1", nil, nil)},
		"delete with new":           {msgBegin(), msgRelation(1), msgTuple(append(msgChange('D', 1), 'N'), "1", nil, nil)},
		"value too long":            {msgBegin(), msgRelation(1), append(msgChange('I', 1), 'N', 0, 3, 't', 0xff, 0xff, 0xff, 0xff)},
		"truncate of more than has": {msgBegin(), msgRelation(1), append([]byte{'T', 0, 0, 0, 2, 0}, 0, 0, 0, 1)},
	} {
		d := testDecoder(0)
		var err error
		for _, m := range msgs {
			if _, err = d.decode(m); err != nil {
				break
			}
		}
		if !errors.Is(err, errMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range [][]byte{msgBegin(), msgCommit(5), msgRelation(1), msgRelation(2), msgInsert("1", nil, "x"), msgDelete("1", nil, nil), msgUpdate([]any{"1", nil, nil}, []any{"2", unchanged, "x"}),
		{'T', 0, 0, 0, 1, 0, 0, 0, 0, 1}} {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		d := testDecoder(0)
		feed(t, d, msgBegin(), msgRelation(1))
		if _, err := d.decode(msg); err != nil {
			if !errors.Is(err, errMessage) {
				t.Fatalf("%q: %v", msg, err)
			}
			return
		}
		if d.inTx {
			feed(t, d, msgCommit(9))
		}
		for _, tx := range d.batch.transactions() {
			for _, c := range tx.Changes {
				if c.Op == engine.OpPut {
					if err := checkRow(c.Schema, c.Key, c.Row, c.Partial); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

// Any row comes out as it went in, through batches of any fill.
func TestDecodeRows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := testDecoder(0)
		if _, err := d.decode(msgBegin()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.decode(msgRelation(1)); err != nil {
			t.Fatal(err)
		}
		value := rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.String(), func(s string) any { return s }),
			rapid.Map(rapid.IntRange(0, 300000), func(n int) any { return string(make([]byte, n)) }))
		var want [][3]any
		for i := range rapid.IntRange(1, 20).Draw(t, "rows") {
			row := [3]any{fmt.Sprint(i, rapid.String().Draw(t, "key")), value.Draw(t, "n"), value.Draw(t, "b")}
			want = append(want, row)
			if _, err := d.decode(msgInsert(row[:]...)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.decode(msgCommit(9)); err != nil {
			t.Fatal(err)
		}
		changes := d.batch.transactions()[0].Changes
		for i, c := range changes {
			if err := checkRow(c.Schema, c.Key, c.Row, false); err != nil {
				t.Fatal(err)
			}
			for j, v := range c.Row.Columns() {
				if w, ok := want[i][j].(string); ok != (v.State == engine.Present) || w != string(v.Value) {
					t.Fatalf("row %d column %d: got %q, want %q", i, j, v.Value, want[i][j])
				}
			}
		}
	})
}

// benchSchema and benchValues are a row of about 167 bytes in 8 columns, as the testbed's measurements have it.
func benchSchema() *engine.Schema {
	s := &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "bench"}, RelationOID: 1}
	for i := range 8 {
		s.Columns = append(s.Columns, engine.Column{Name: fmt.Sprint("c", i), Number: int16(i + 1), Key: i == 0})
	}
	return s
}

var benchValues = []any{"12345678", "42", "some text of a middling length, as they are", "2024-02-29 12:34:56.789012+00", "123.45", nil, "another text that is a little longer than the first one", "t"}

func BenchmarkDecode(b *testing.B) {
	d := newDecoder(0, nil)
	d.relations[1] = newRelation(benchSchema())
	msg := msgTuple(append(msgChange('I', 1), 'N'), benchValues...)
	begin := msgBegin()
	b.SetBytes(int64(len(msg)))
	b.ReportAllocs()
	lsn := engine.LSN(1)
	for i := 0; b.Loop(); i++ {
		if i%1000 == 0 {
			if d.inTx {
				lsn++
				if _, err := d.decode(msgCommit(lsn)); err != nil {
					b.Fatal(err)
				}
				if d.batch.bytes >= batchSize && !d.batch.reset() {
					d.batch = &batch{}
				}
			}
			if _, err := d.decode(begin); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := d.decode(msg); err != nil {
			b.Fatal(err)
		}
	}
}
