package scope_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
)

var orders = engine.TableName{Schema: "public", Name: "orders"}

func schemaOf(id uint32, cols ...engine.Column) *engine.Schema {
	for i := range cols {
		cols[i].Number = int16(i + 1)
	}
	return &engine.Schema{ID: id, Table: orders, Columns: cols}
}

func must(t testing.TB, ts ...scope.Table) *scope.Scope {
	t.Helper()
	s, err := scope.New(ts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Values that PostgreSQL calls equal are, and no others.
func TestEquality(t *testing.T) {
	t.Parallel()
	type pair struct{ a, b string }
	for _, tc := range []struct {
		typ       engine.Column
		equal, no []pair
		bad       []string
	}{
		{engine.Column{TypeOID: 1700, TypeName: "numeric"},
			[]pair{{"1.0", "1.00"}, {"1e2", "100"}, {"-0.0", "0"}, {"+5", "5"}, {".5", "0.50"}, {"NaN", "nan"}, {"inf", "Infinity"}, {"12300", "123e2"}},
			[]pair{{"1", "-1"}, {"1", "10"}, {"NaN", "0"}, {"-Infinity", "Infinity"}, {"0.1", "0.10000000000000000000000000000000001"}},
			[]string{"", "x", "1.2.3", "--1", "-NaN", "1e", "0x10"}},
		{engine.Column{TypeOID: 16, TypeName: "boolean"},
			[]pair{{"t", "true"}, {"t", "YES"}, {"t", "1"}, {"f", "off"}, {"f", "n"}, {"t", " on "}}, []pair{{"t", "f"}}, []string{"", "2", "o", "truely"}},
		{engine.Column{TypeOID: 20, TypeName: "bigint"},
			[]pair{{"007", "7"}, {"9007199254740993", "+9007199254740993"}, {"-0", "0"}}, []pair{{"9007199254740993", "9007199254740992"}}, []string{"", "1.0", "9223372036854775808"}},
		{engine.Column{TypeOID: 701, TypeName: "double precision"},
			[]pair{{"1", "1.0"}, {"-0", "0"}, {"1e2", "100"}, {"NaN", "nan"}, {"Infinity", "inf"}}, []pair{{"1", "1.0000000000000002"}}, []string{"", "one", "0x1p3"}},
		{engine.Column{TypeOID: 700, TypeName: "real"}, []pair{{"0.1", "0.10000000149"}}, []pair{{"0.1", "0.2"}}, nil},
		{engine.Column{TypeOID: 2950, TypeName: "uuid"},
			[]pair{{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"}, {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}"}},
			[]pair{{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"}}, []string{"", "a0eebc99", "-a0eebc999c0b4ef8bb6d6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g"}},
		{engine.Column{TypeOID: 1184, TypeName: "timestamp with time zone"},
			[]pair{{"2024-02-29 12:00:00+00", "2024-02-29T13:00:00+01:00"}, {"2024-02-29 12:00:00.500+00", "2024-02-29 12:00:00.5Z"}, {"infinity", "Infinity"}, {"2023-12-31 23:30:00-01", "2024-01-01 00:30:00+00"}, {"0044-03-15 10:00:00+00 BC", "0044-03-15 11:00:00+01 BC"}},
			[]pair{{"2024-02-29 12:00:00+00", "2024-02-29 12:00:00+01"}, {"0044-03-15 10:00:00+00 BC", "0044-03-15 10:00:00+00"}}, []string{"", "2024-02-29 12:00:00", "2023-02-29 12:00:00+00", "12:00+00", "2024-02-29 25:00:00+00"}},
		{engine.Column{TypeOID: 1114, TypeName: "timestamp without time zone"},
			[]pair{{"2024-02-29 12:00:00", "2024-02-29T12:00:00.000"}, {"2024-02-29 00:00:00", "2024-02-29"}}, []pair{{"2024-02-29 12:00:00", "2024-02-29 12:00:01"}}, []string{"2024-02-29 12:00:00+01", "now"}},
		{engine.Column{TypeOID: 1082, TypeName: "date"},
			[]pair{{"2024-02-29", " 2024-02-29 "}, {"10000-01-01", "10000-01-01"}}, []pair{{"0044-03-15", "0044-03-15 BC"}, {"infinity", "-infinity"}}, []string{"29.02.2024", "2023-02-29", "0000-01-01", "today"}},
		{engine.Column{TypeOID: 1083, TypeName: "time without time zone"}, []pair{{"13:45", "13:45:00.000"}}, []pair{{"13:45:00", "13:45:01"}}, []string{"25:00", "1pm", "13:60", "24:00:01"}},
		{engine.Column{TypeOID: 25, TypeName: "text"}, []pair{{"a", "a"}, {"", ""}}, []pair{{"a", "A"}, {"a", "a "}}, nil},
		{engine.Column{TypeOID: 1042, TypeName: "character(5)"}, []pair{{"a", "a    "}}, []pair{{"a", "b"}}, nil},
		{engine.Column{TypeOID: 70000, TypeName: "public.mood", BaseOID: 25, BaseName: "text"}, []pair{{"sad", "sad"}}, []pair{{"sad", "Sad"}, {"sad", "so"}}, nil},
		{engine.Column{TypeOID: 70001, TypeName: "posint", BaseOID: 23, BaseName: "integer"}, []pair{{"7", "007"}}, []pair{{"7", "8"}}, []string{"seven"}},
		{engine.Column{TypeOID: 70002, TypeName: "email", BaseOID: 99999, BaseName: "ext.citext"}, []pair{{"A@b", "a@B"}}, []pair{{"a", "b"}}, nil},
		{engine.Column{TypeOID: 99999, TypeName: "public.citext"}, []pair{{"Straße", "STRAßE"}}, []pair{{"a", "b"}}, nil},
		{engine.Column{TypeOID: 869, TypeName: "inet"}, []pair{{"10.0.0.1", "10.0.0.1/32"}, {"2001:DB8::1", "2001:db8:0::1"}}, []pair{{"10.0.0.1", "10.0.0.1/24"}, {"10.0.0.1", "::ffff:10.0.0.1"}}, []string{"10.0.0", "fe80::1%eth0"}},
		{engine.Column{TypeOID: 829, TypeName: "macaddr"}, []pair{{"08:00:2b:01:02:03", "08002B-010203"}}, []pair{{"08:00:2b:01:02:03", "08:00:2b:01:02:04"}}, []string{"08:00"}},
		{engine.Column{TypeOID: 17, TypeName: "bytea"}, []pair{{`\x0fab`, `\x0FAB`}}, []pair{{`\x`, `\x00`}}, []string{"abc", `\x0`}},
	} {
		tc.typ.Name = "c"
		sc := schemaOf(1, engine.Column{Name: "id", TypeOID: 25, Key: true}, tc.typ)
		matches := func(want, value string) bool {
			s := must(t, scope.Table{Name: orders, Where: []scope.Condition{{Column: "c", Op: scope.Equal, Values: []string{want}}}})
			if err := s.Check(sc); err != nil {
				t.Errorf("%s: %v", tc.typ.TypeName, err)
			}
			c := engine.Change{Op: engine.OpPut, Schema: sc, Row: engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, 1, 2), "k"), value)}
			if !s.View().Change(&c) {
				t.Fatal("the table is outside")
			}
			return c.Op == engine.OpPut
		}
		for _, p := range tc.equal {
			if !matches(p.a, p.b) || !matches(p.b, p.a) {
				t.Errorf("%s: %q and %q are equal", tc.typ.TypeName, p.a, p.b)
			}
		}
		for _, p := range tc.no {
			if matches(p.a, p.b) || matches(p.b, p.a) {
				t.Errorf("%s: %q and %q differ", tc.typ.TypeName, p.a, p.b)
			}
		}
		for _, v := range tc.bad {
			s := must(t, scope.Table{Name: orders, Where: []scope.Condition{{Column: "c", Op: scope.Equal, Values: []string{v}}}})
			if err := s.Check(sc); err == nil || !strings.Contains(err.Error(), "is no value of it") {
				t.Errorf("%s: %q is no value, and the check says %v", tc.typ.TypeName, v, err)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	sc := schemaOf(1, engine.Column{Name: "id", TypeOID: 20, TypeName: "bigint", Key: true}, engine.Column{Name: "j", TypeOID: 3802, TypeName: "jsonb"}, engine.Column{Name: "mood", TypeOID: 70000, TypeName: "mood"})
	for want, tab := range map[string]scope.Table{
		`no column "nope", by which`: {Name: orders, Where: []scope.Condition{{Column: "nope", Op: scope.Equal, Values: []string{"x"}}}},
		`no column "gone"`:           {Name: orders, Columns: []string{"gone"}},
		"is of type jsonb":           {Name: orders, Where: []scope.Condition{{Column: "j", Op: scope.In, Values: []string{"1", "2"}}}},
		"is of type mood":            {Name: orders, Where: []scope.Condition{{Column: "mood", Op: scope.Equal, Values: []string{"sad"}}}},
		"a prefix is one of text":    {Name: orders, Where: []scope.Condition{{Column: "id", Op: scope.Prefix, Values: []string{"1"}}}},
	} {
		s := must(t, tab)
		if err := s.Check(sc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		row := engine.AppendNull(engine.AppendNull(engine.AppendValue(engine.AppendRowHeader(nil, 1, 3), "1")))
		if c := (engine.Change{Op: engine.OpPut, Schema: sc, Row: row}); len(tab.Where) > 0 && (!s.View().Change(&c) || c.Op != engine.OpDelete) {
			t.Errorf("%q: a row gets through a condition that cannot be looked at", want)
		}
	}
	for want, tab := range map[string]scope.Table{
		"empty list":          {Name: orders, Where: []scope.Condition{{Column: "c", Op: scope.In}}},
		"2 values, where one": {Name: orders, Where: []scope.Condition{{Column: "c", Op: scope.Equal, Values: []string{"1", "2"}}}},
		"not known":           {Name: orders, Where: []scope.Condition{{Column: "c", Values: []string{"1"}}}},
		"names no table":      {},
	} {
		if _, err := scope.New(tab); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := scope.New(scope.Table{Name: orders}, scope.Table{Name: orders, Columns: []string{"a"}}); err == nil {
		t.Error("a table is taken twice")
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	a := must(t, scope.Table{Name: orders, Columns: []string{"b", "a", "b"}, Where: []scope.Condition{
		{Column: "c", Op: scope.In, Values: []string{"2", "1", "2"}}, {Column: "b", Op: scope.In, Values: []string{"x"}},
	}})
	b := must(t, scope.Table{Name: orders, Columns: []string{"a", "b"}, Where: []scope.Condition{
		{Column: "b", Op: scope.Equal, Values: []string{"x"}}, {Column: "c", Op: scope.In, Values: []string{"1", "2"}}, {Column: "b", Op: scope.Equal, Values: []string{"x"}},
	}})
	if a.ID() != b.ID() || a.ID() == "" {
		t.Errorf("%s\n%s", a.ID(), b.ID())
	}
	seen := map[engine.Scope]bool{"": true}
	for _, s := range []*scope.Scope{
		a, scope.Tables(orders), must(t, scope.Table{Name: orders, Columns: []string{"a"}}),
		must(t, scope.Table{Name: orders, Where: []scope.Condition{{Column: "a", Op: scope.Equal, Values: []string{"1"}}}}),
		must(t, scope.Table{Name: orders, Where: []scope.Condition{{Column: "a", Op: scope.Prefix, Values: []string{"1"}}}}),
		must(t, scope.Table{Name: orders, Where: []scope.Condition{{Column: "a", Op: scope.In, Values: []string{"1", "2"}}}}),
	} {
		if seen[s.ID()] {
			t.Errorf("%s twice", s.ID())
		}
		seen[s.ID()] = true
	}
	if scope.Tables().ID() != "" || (*scope.Scope)(nil).ID() != "" {
		t.Error("the whole log has a name")
	}
	if got := scope.Tables(engine.TableName{Schema: "s", Name: "b"}, engine.TableName{Schema: "s", Name: "a"}).ID(); got != `"s"."a","s"."b"` {
		t.Errorf("tables are named %s", got) // cursors of older nodes are kept under it
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	eq := func(c string, v ...string) scope.Condition {
		return scope.Condition{Column: c, Op: scope.In, Values: v}
	}
	like := func(c, v string) scope.Condition {
		return scope.Condition{Column: c, Op: scope.Prefix, Values: []string{v}}
	}
	have := scope.Table{Name: orders, Columns: []string{"a", "b"}, Where: []scope.Condition{eq("a", "1", "2"), like("b", "x")}}
	for _, tc := range []struct {
		want scope.Table
		ok   bool
	}{
		{have, true},
		{scope.Table{Columns: []string{"a"}, Where: have.Where}, true},
		{scope.Table{Columns: []string{"a"}, Where: []scope.Condition{eq("a", "1"), like("b", "xy"), eq("c", "9")}}, true},
		{scope.Table{Where: have.Where}, false},
		{scope.Table{Columns: []string{"a", "c"}, Where: have.Where}, false},
		{scope.Table{Columns: []string{"a"}, Where: []scope.Condition{eq("a", "1", "3"), like("b", "x")}}, false},
		{scope.Table{Columns: []string{"a"}, Where: []scope.Condition{eq("a", "1")}}, false},
		{scope.Table{Columns: []string{"a"}}, false},
	} {
		if err := tc.want.Within(have); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc.want, err)
		}
	}
	w, h := must(t, scope.Table{Name: orders, Columns: []string{"a"}, Where: []scope.Condition{eq("a", "1", "2"), like("b", "x"), eq("a", "1")}}), must(t, have)
	if got := w.Beyond(h).Of(orders).Where; len(got) != 1 || got[0].Values[0] != "1" {
		t.Errorf("left to do: %v", got)
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	sc := schemaOf(7, engine.Column{Name: "a", TypeOID: 25}, engine.Column{Name: "id", TypeOID: 20, Key: true}, engine.Column{Name: "b", TypeOID: 25}, engine.Column{Name: "c", TypeOID: 25})
	s := must(t, scope.Table{Name: orders, Columns: []string{"c"}, Where: []scope.Condition{{Column: "b", Op: scope.Prefix, Values: []string{"in"}}}})
	row := func(b string) engine.Row {
		return engine.AppendNull(engine.AppendValue(engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, 7, 4), "A"), "1"), b))
	}
	v := s.View()
	c := engine.Change{Op: engine.OpPut, Schema: sc, Key: engine.AppendKeyValue(nil, "1"), Row: row("inside")}
	if !v.Change(&c) || c.Op != engine.OpPut || c.Schema.ID == 7 || c.Schema.ID>>31 != 1 {
		t.Fatalf("%+v", c)
	}
	var names []string
	for _, col := range c.Schema.Columns {
		names = append(names, col.Name)
	}
	if !slices.Equal(names, []string{"id", "c"}) {
		t.Errorf("columns %v", names)
	}
	if un, err := c.Row.Check(c.Schema); un || err != nil {
		t.Error(un, err)
	}
	if key, err := engine.AppendKey(nil, c.Schema, c.Row); err != nil || string(key) != string(c.Key) {
		t.Errorf("key %q, %v", key, err)
	}
	// Narrowed once more it is the same: so it is at a node that has no more.
	if again := s.Schema(c.Schema); again != c.Schema {
		t.Errorf("narrowed again it is %+v", again)
	}
	out := engine.Record{Schema: sc, Key: c.Key, Row: row("out")}
	if !v.Record(&out) || !out.Deleted || out.Row != nil {
		t.Errorf("%+v", out)
	}
	other := engine.Change{Op: engine.OpPut, Schema: &engine.Schema{ID: 9, Table: engine.TableName{Schema: "x", Name: "y"}}}
	if v.Change(&other) {
		t.Error("another table is inside")
	}
}

// The view agrees with the plainest way to do it.
func TestViewModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "columns")
		var cols []engine.Column
		for i := range n {
			cols = append(cols, engine.Column{Name: fmt.Sprint("c", i), TypeOID: 25, Key: i == 0 || rapid.Bool().Draw(t, "key")})
		}
		sc := schemaOf(3, cols...)
		tab := scope.Table{Name: orders}
		for _, c := range rapid.SliceOfN(rapid.SampledFrom(cols), 0, n).Draw(t, "kept") {
			tab.Columns = append(tab.Columns, c.Name)
		}
		word := rapid.StringMatching(`[ab]{0,2}`)
		for range rapid.IntRange(0, 2).Draw(t, "conditions") {
			c := scope.Condition{Column: rapid.SampledFrom(cols).Draw(t, "column").Name, Op: rapid.SampledFrom([]scope.Operator{scope.Equal, scope.In, scope.Prefix}).Draw(t, "op")}
			c.Values = []string{word.Draw(t, "value")}
			if c.Op == scope.In {
				c.Values = append(c.Values, word.Draw(t, "value"))
			}
			tab.Where = append(tab.Where, c)
		}
		s, err := scope.New(tab)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]*string{}
		row := engine.AppendRowHeader(nil, 3, n)
		for _, c := range cols {
			if v := word.Draw(t, "cell"); rapid.Bool().Draw(t, "null") && !c.Key {
				row = engine.AppendNull(row)
			} else {
				row = engine.AppendValue(row, v)
				values[c.Name] = &v
			}
		}
		in := true
		for _, c := range tab.Where {
			v := values[c.Column]
			in = in && v != nil && slices.ContainsFunc(c.Values, func(w string) bool {
				return *v == w || c.Op == scope.Prefix && strings.HasPrefix(*v, w)
			})
		}
		c := engine.Change{Op: engine.OpPut, Schema: sc, Row: row}
		s.View().Change(&c)
		if (c.Op == engine.OpPut) != in {
			t.Fatalf("row %q inside: %t, want %t", row, c.Op == engine.OpPut, in)
		}
		if !in {
			return
		}
		if _, err := c.Row.Check(c.Schema); err != nil {
			t.Fatal(err)
		}
		for i, got := range c.Row.Columns() {
			if v := values[c.Schema.Columns[i].Name]; (v == nil) != (got.State == engine.Null) || v != nil && *v != string(got.Value) {
				t.Fatalf("column %s is %q", c.Schema.Columns[i].Name, got.Value)
			}
		}
		for _, col := range cols {
			want := col.Key || len(tab.Columns) == 0 || slices.Contains(tab.Columns, col.Name)
			if has := slices.ContainsFunc(c.Schema.Columns, func(x engine.Column) bool { return x.Name == col.Name }); has != want {
				t.Fatalf("column %s stays: %t", col.Name, has)
			}
		}
	})
}

// The same set of tables has one name, and different sets have different ones.
func TestNamesOfTables(t *testing.T) {
	t.Parallel()
	a, b := engine.TableName{Schema: "p", Name: "a"}, engine.TableName{Schema: "p", Name: "b"}
	if scope.Tables(b, a, b).ID() != scope.Tables(a, b).ID() {
		t.Error("order or repetition changes the name")
	}
	seen := map[engine.Scope]string{}
	for name, ts := range map[string][]engine.TableName{
		"none": nil, "a": {a}, "b": {b}, "ab": {a, b},
		"dots 1": {{Schema: "x.y", Name: "z"}}, "dots 2": {{Schema: "x", Name: "y.z"}},
		"quotes": {{Schema: "x", Name: `a","b"."c`}}, "two": {{Schema: "x", Name: "a"}, {Schema: "b", Name: "c"}},
	} {
		s := scope.Tables(ts...).ID()
		if other, ok := seen[s]; ok {
			t.Errorf("%s and %s are both called %s", name, other, s)
		}
		seen[s] = name
	}
}
