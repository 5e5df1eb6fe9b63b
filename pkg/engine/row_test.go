package engine_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"pgregory.net/rapid"
)

// drawColumns draws a row's columns.
func drawColumns(t *rapid.T, n int, states ...engine.ColumnState) []engine.RowColumn {
	cols := make([]engine.RowColumn, n)
	for i := range cols {
		cols[i].State = rapid.SampledFrom(states).Draw(t, "state")
		if cols[i].State == engine.Present {
			cols[i].Value = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value")
		}
	}
	return cols
}

func appendColumns(row []byte, cols []engine.RowColumn) engine.Row {
	for _, c := range cols {
		switch c.State {
		case engine.Absent:
			row = engine.AppendAbsent(row)
		case engine.Unchanged:
			row = engine.AppendUnchanged(row)
		case engine.Null:
			row = engine.AppendNull(row)
		case engine.Present:
			row = engine.AppendValue(row, c.Value)
		}
	}
	return row
}

func columnsOf(r engine.Row) (cols []engine.RowColumn) {
	for i, c := range r.Columns() {
		if i != len(cols) {
			panic("columns out of order")
		}
		cols = append(cols, c)
	}
	return cols
}

func sameColumns(a, b []engine.RowColumn) bool {
	return slices.EqualFunc(a, b, func(x, y engine.RowColumn) bool { return x.State == y.State && bytes.Equal(x.Value, y.Value) })
}

func tableOf(id uint32, n int) *engine.Schema {
	s := &engine.Schema{ID: id, Table: engine.TableName{Schema: "public", Name: "t"}}
	for i := range n {
		s.Columns = append(s.Columns, engine.Column{Name: fmt.Sprint("c", i), Number: int16(i + 1), TypeOID: 25, TypeMod: -1})
	}
	return s
}

func TestRowRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := tableOf(rapid.Uint32().Draw(t, "schema"), rapid.IntRange(0, 40).Draw(t, "columns"))
		cols := drawColumns(t, len(s.Columns), engine.Absent, engine.Unchanged, engine.Null, engine.Present)
		row := appendColumns(engine.AppendRowHeader(nil, s.ID, len(cols)), cols)
		if got := columnsOf(row); !sameColumns(got, cols) {
			t.Fatalf("columns %v, want %v", got, cols)
		}
		unchanged, err := row.Check(s)
		if err != nil {
			t.Fatal(err)
		}
		if want := slices.ContainsFunc(cols, func(c engine.RowColumn) bool { return c.State == engine.Unchanged }); unchanged != want {
			t.Fatalf("unchanged %v, want %v", unchanged, want)
		}
		other := appendColumns(engine.AppendRowHeader(nil, s.ID+1, len(cols)), cols)
		if !bytes.Equal(other.Values(), row.Values()) {
			t.Fatal("Values differ by the schema's ID")
		}
		if _, err := other.Check(s); !errors.Is(err, engine.ErrCorruptRow) {
			t.Fatalf("a row of another schema: %v", err)
		}
		for n := range row { // every way to cut it short is seen
			if _, err := row[:n].Check(s); !errors.Is(err, engine.ErrCorruptRow) {
				t.Fatalf("a row cut to %d of %d bytes: %v", n, len(row), err)
			}
		}
		if _, err := append(slices.Clone(row), 2).Check(s); !errors.Is(err, engine.ErrCorruptRow) {
			t.Fatalf("a row with a byte too many: %v", err)
		}
	})
}

func TestFillUnchanged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		was := tableOf(1, rapid.IntRange(1, 12).Draw(t, "columns"))
		now := tableOf(2, 0)
		for _, c := range was.Columns { // some dropped, the rest in another order, some new
			if rapid.IntRange(0, 4).Draw(t, "drop") > 0 {
				now.Columns = append(now.Columns, c)
			}
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "new") {
			now.Columns = append(now.Columns, engine.Column{Name: fmt.Sprint("n", i), Number: int16(100 + i), TypeOID: 25})
		}
		now.Columns = rapid.Permutation(now.Columns).Draw(t, "order")
		if rapid.Bool().Draw(t, "same schema") {
			now = was
		}
		oldCols := drawColumns(t, len(was.Columns), engine.Absent, engine.Null, engine.Present)
		old := appendColumns(engine.AppendRowHeader(nil, was.ID, len(oldCols)), oldCols)
		cols := drawColumns(t, len(now.Columns), engine.Unchanged, engine.Unchanged, engine.Null, engine.Present)
		row := appendColumns(engine.AppendRowHeader(nil, now.ID, len(cols)), cols)

		want, ok := slices.Clone(cols), true
		for i, c := range cols {
			if c.State != engine.Unchanged {
				continue
			}
			j := slices.IndexFunc(was.Columns, func(o engine.Column) bool { return o.Number == now.Columns[i].Number })
			if j < 0 || oldCols[j].State == engine.Absent {
				ok = false
				break
			}
			want[i] = oldCols[j]
		}
		got, err := row.FillUnchanged([]byte("before"), now, old, was)
		if !ok {
			if err == nil {
				t.Fatal("a column that the state does not have was filled in")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		filled, found := bytes.CutPrefix(got, []byte("before"))
		if unchanged, err := engine.Row(filled).Check(now); !found || unchanged || err != nil {
			t.Fatalf("filled row: unchanged %v, %v", unchanged, err)
		}
		if g := columnsOf(engine.Row(filled)); !sameColumns(g, want) {
			t.Fatalf("filled %v, want %v", g, want)
		}
	})
}

// compareParts orders keys as they must be: part by part, null first.
func compareParts(a, b [][]byte) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == nil && b[i] == nil:
		case a[i] == nil:
			return -1
		case b[i] == nil:
			return 1
		default:
			if c := bytes.Compare(a[i], b[i]); c != 0 {
				return c
			}
		}
	}
	return cmp.Compare(len(a), len(b))
}

func drawKeyParts(t *rapid.T, name string) [][]byte {
	part := rapid.Custom(func(t *rapid.T) []byte {
		if rapid.IntRange(0, 4).Draw(t, "null") == 0 {
			return nil
		}
		return rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 1, 2, 0xFE, 0xFF, 'a'}), 0, 5).Draw(t, "bytes")
	})
	return rapid.SliceOfN(part, 0, 4).Draw(t, name)
}

func appendParts(dst []byte, parts [][]byte) []byte {
	for _, p := range parts {
		if p == nil {
			dst = engine.AppendKeyNull(dst)
		} else {
			dst = engine.AppendKeyValue(dst, p)
		}
	}
	return dst
}

func TestKeyOrderAndRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawKeyParts(t, "a"), drawKeyParts(t, "b")
		ka, kb := appendParts(nil, a), appendParts(nil, b)
		if got, want := bytes.Compare(ka, kb), compareParts(a, b); got != want {
			t.Fatalf("%q and %q compare %d as keys, %d as values", a, b, got, want)
		}
		back, err := engine.DecodeKey(ka)
		if err != nil || compareParts(back, a) != 0 || len(back) != len(a) {
			t.Fatalf("%q came back as %q, %v", a, back, err)
		}
		if !bytes.HasPrefix(appendParts(ka, b), ka) {
			t.Fatal("a prefix of the columns is not a prefix of the bytes")
		}
		for n := 1; n < len(ka); n++ { // cut short: damage, or fewer parts
			if parts, err := engine.DecodeKey(ka[:n]); err == nil && len(parts) >= len(a) {
				t.Fatalf("%q cut to %d bytes has %d parts", ka, n, len(parts))
			}
		}
	})
}

func TestAppendKey(t *testing.T) {
	t.Parallel()
	s := tableOf(1, 4)
	s.Columns[1].Key, s.Columns[3].Key = true, true
	row := func(cols ...engine.RowColumn) engine.Row {
		return appendColumns(engine.AppendRowHeader(nil, 1, 4), cols)
	}
	value := func(v string) engine.RowColumn {
		return engine.RowColumn{State: engine.Present, Value: []byte(v)}
	}
	if got := s.KeyColumns(); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("key columns %v", got)
	}
	key, err := engine.AppendKey(nil, s, row(value("no"), value("a\x00b"), engine.RowColumn{}, engine.RowColumn{State: engine.Null}))
	if want := engine.AppendKeyNull(engine.AppendKeyValue(nil, "a\x00b")); err != nil || !bytes.Equal(key, want) {
		t.Errorf("key %q, %v, want %q", key, err, want)
	}
	for _, st := range []engine.ColumnState{engine.Absent, engine.Unchanged} {
		if _, err := engine.AppendKey(nil, s, row(value("no"), value("a"), value("b"), engine.RowColumn{State: st})); !errors.Is(err, engine.ErrCorruptRow) {
			t.Errorf("a key column in state %d: %v", st, err)
		}
	}
}

// FuzzRow: bytes from outside never panic, and what Check passes can be read.
func FuzzRow(f *testing.F) {
	s := tableOf(1, 3)
	good := appendColumns(engine.AppendRowHeader(nil, 1, 3), []engine.RowColumn{{State: engine.Present, Value: []byte("x")}, {State: engine.Unchanged}, {State: engine.Null}})
	f.Add([]byte(good), []byte(good))
	f.Add([]byte{1, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, []byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, []byte{1})
	f.Add([]byte{1, 5, 1, 1, 1, 1, 1}, []byte(good))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		row, old := engine.Row(a), engine.Row(b)
		_, err := row.Check(s)
		n := len(columnsOf(row))
		if err == nil && n != len(s.Columns) {
			t.Fatalf("a good row has %d columns", n)
		}
		_ = row.Values()
		_, _ = engine.AppendKey(nil, s, row)
		if filled, err := row.FillUnchanged(nil, s, old, s); err == nil {
			if len(filled) > len(a)+len(b)+20 {
				t.Fatalf("%d and %d bytes filled to %d", len(a), len(b), len(filled))
			}
		}
		if parts, err := engine.DecodeKey(a); err == nil {
			if back := appendParts(nil, parts); !bytes.Equal(back, a) {
				t.Fatalf("key %q has another form %q", a, back)
			}
		}
	})
}
