package ingest

import (
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typ, in, want string }{ // want "!..." is part of an error
		{"bigint", "+007", "7"}, {"bigint", "-0", "0"}, {"int8", "9223372036854775807", "9223372036854775807"}, {"int", "2147483648", "!out of the range"}, {"smallint", "1e2", "!not a value"}, {"int", "", "!not a value"},
		{"numeric", "1e3", "1000"}, {"numeric", "1.50e1", "15.0"}, {"numeric", "-.5", "-0.5"}, {"decimal", "00.10", "0.10"}, {"numeric", "1e999999", "!more digits"}, {"numeric", "NaN", "NaN"}, {"numeric", "-Infinity", "-Infinity"}, {"numeric", "0x10", "!not a decimal"},
		{"numeric(5,2)", "1", "1.00"}, {"numeric(5,2)", "999.990", "999.99"}, {"numeric(5,2)", "1000", "!more digits than"}, {"numeric(5,2)", "0.001", "!nothing is rounded"}, {"numeric(5,2)", "Infinity", "!not a value"}, {"numeric", "-0", "0"},
		{"float8", "1e-300", "1e-300"}, {"float8", "1e999", "!not a value"}, {"real", "-Infinity", "-Infinity"}, {"real", "0x1p-2", "!not a value"},
		{"bool", "true", "t"}, {"boolean", "f", "f"}, {"boolean", "yes", "!not a value"}, {"text", "a\x00", "!zero byte"}, {"text", "\xff", "!not UTF-8"}, {"varchar(3)", "äöü", "äöü"}, {"varchar(3)", "abcd", "!has room for 3"}, {"char(3)", "a", "a  "},
		{"uuid", "{A0EEBC99-9C0B4EF8-BB6D-6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, {"uuid", "a0", "!not a value"}, {"jsonb", `{"a": 1.10}`, `{"a": 1.10}`}, {"json", "{", "!not a value"}, {"bytea", `\xAb`, `\xab`}, {"bytea", "ab", "!two hexadecimal"},
		{"date", "2024-02-29", "2024-02-29"}, {"date", "2023-02-29", "!write 2006-01-02"}, {"date", "infinity", "infinity"}, {"timestamp", "2024-02-29T10:00:00.120", "2024-02-29 10:00:00.12"}, {"timestamp", "2024-02-29 10:00:00Z", "!not a value"},
		{"timestamptz", "2024-02-29T10:00:00.5+05:30", "2024-02-29 04:30:00.5+00"}, {"timestamptz", "2024-02-29 10:00:00-08", "2024-02-29 18:00:00+00"}, {"timestamptz", "2024-02-29 10:00:00", "!the zone is missing"}, {"timestamptz", "2024-02-29 10:00:00.1234567Z", "!more than six"},
		{"int[]", "{1,2}", "{1,2}"}, {"public.mood", "sad", "sad"}, {"interval", "1 day", "1 day"},
	} {
		typ, err := parseType(c.typ)
		if err != nil {
			t.Errorf("%s: %v", c.typ, err)
			continue
		}
		got, err := typ.canonical(c.in)
		if part, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s %q: %q, %v", c.typ, c.in, got, err)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s %q: %q, %v; want %q", c.typ, c.in, got, err, c.want)
		} else if again, err := typ.canonical(got); err != nil || again != got {
			t.Errorf("%s %q: a second time it is %q, %v", c.typ, got, again, err)
		}
	}
	for in, want := range map[string]string{
		"int": "integer", "VARCHAR ( 10 )": "character varying(10)", "numeric(10)": "numeric(10,0)", "timestamptz": "timestamp with time zone", "char": "character(1)", "double  precision": "double precision",
		"int[]": "integer[]", "numeric(4,2)[]": "numeric(4,2)[]", "interval": "interval", `"My Schema".t`: `"My Schema".t`,
	} {
		if typ, err := parseType(in); err != nil || typ.name != want {
			t.Errorf("%s: %q, %v", in, typ.name, err)
		}
	}
	for _, in := range []string{"", "intger", "int(4)", "numeric(0)", "numeric(2,3)", "varchar(0)", "text; drop", "varchar(1,2)"} {
		if typ, err := parseType(in); err == nil {
			t.Errorf("%q is taken for %+v", in, typ)
		}
	}
}

// Sums are exact, whatever the size of the numbers.
func TestSum(t *testing.T) {
	t.Parallel()
	typ, err := parseType("numeric")
	if err != nil {
		t.Fatal(err)
	}
	number := rapid.StringMatching(`-?[0-9]{1,50}(\.[0-9]{1,50})?(e-?[0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		got, err := typ.sum(a, b)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		z, ok := new(big.Rat).SetString(got)
		if !ok || z.Cmp(x.Add(x, y)) != 0 {
			t.Fatalf("%s + %s = %s", a, b, got)
		}
		if back, err := typ.canonical(got); err != nil || back != got {
			t.Fatalf("%s reads back as %s, %v", got, back, err)
		}
	})
	i, err := parseType("int")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ a, b, want string }{{"2147483646", "1", "2147483647"}, {"2147483647", "1", ""}, {"", "-5", "-5"}, {"1", "0.5", ""}, {"1", "1.0", ""}, {"7", "1e1", "17"}} {
		if got, err := i.sum(c.a, c.b); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s + %s: %q, %v", c.a, c.b, got, err)
		}
	}
	if got, err := typ.sum("NaN", "1"); got != "NaN" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzCanonical(f *testing.F) {
	names := []string{"bigint", "numeric", "numeric(8,3)", "float8", "bool", "uuid", "jsonb", "bytea", "date", "timestamp", "timestamptz", "char(5)", "text"}
	f.Add(uint8(1), "1.5e-3")
	f.Add(uint8(10), "2024-02-29T10:00:00.5+05:30")
	f.Fuzz(func(t *testing.T, n uint8, v string) {
		typ, err := parseType(names[int(n)%len(names)])
		if err != nil {
			t.Fatal(err)
		}
		got, err := typ.canonical(v)
		if err != nil {
			return
		}
		if again, err := typ.canonical(got); err != nil || again != got {
			t.Fatalf("%s: %q became %q, and that %q, %v", typ.name, v, got, again, err)
		}
	})
}
