package readapi

import (
	"encoding/json"
	"testing"
)

func TestAppendValue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		oid      uint32
		in, want string
	}{
		{oidBool, "t", "true"},
		{oidInt8, "9223372036854775807", "9223372036854775807"},
		{oidNumeric, "0.10", "0.10"},
		{oidNumeric, "NaN", `"NaN"`},
		{oidFloat8, "-Infinity", `"-Infinity"`},
		{oidFloat8, "1e-308", "1e-308"},
		{oidFloat8, "-0", "-0"},
		{oidJSON, `{"a":1,"a":1234567890123456789.12345678901234567890}`, `{"a":1,"a":1234567890123456789.12345678901234567890}`},
		{25, "tab\there \\N \"q\" \U0001F600 \x01", `"tab\there \\N \"q\" ` + "\U0001F600" + ` \u0001"`},
		{1007, "{{1,2},{3,4}}", "[[1,2],[3,4]]"},
		{1007, "[2:3]={7,8}", `"[2:3]={7,8}"`},
		{1007, "{}", "[]"},
		{1009, `{NULL,"NULL","","a,b","\"\\"}`, `[null,"NULL","","a,b","\"\\"]`},
		{1000, "{t,f,NULL}", "[true,false,null]"},
		{1007, "{1,2", `"{1,2"`},
		{1007, "{1}}", `"{1}}"`},
		{17, `\xdead00`, `"\\xdead00"`},
	} {
		got := string(appendValue(nil, tc.oid, []byte(tc.in)))
		if got != tc.want {
			t.Errorf("type %d, %q: got %s, want %s", tc.oid, tc.in, got, tc.want)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("type %d, %q: %s is not JSON", tc.oid, tc.in, got)
		}
	}
}

func FuzzAppendValue(f *testing.F) {
	f.Add(uint32(1009), []byte(`{NULL,"a\"b",{}}`))
	f.Add(uint32(oidNumeric), []byte("1e5"))
	f.Fuzz(func(t *testing.T, oid uint32, v []byte) {
		if out := appendValue(nil, oid, v); !json.Valid(out) {
			t.Fatalf("type %d, %q: %s is not JSON", oid, v, out)
		}
	})
}

func TestParseTable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][2]string{
		"public.t": {"public", "t"}, "t": {"public", "t"}, `"a.b".c`: {"a.b", "c"}, `a."b.c"`: {"a", "b.c"},
		`"S-1"."T"`: {"S-1", "T"}, `S-1.T`: {"S-1", "T"}, `"q""q".t`: {`q"q`, "t"},
	} {
		got, err := ParseTable(in)
		if err != nil || got.Schema != want[0] || got.Name != want[1] {
			t.Errorf("%s: got %v, %v; want %v", in, got, err, want)
		}
		if again, err := ParseTable(FormatTable(got)); err != nil || again != got {
			t.Errorf("%s: %s reads back as %v, %v", in, FormatTable(got), again, err)
		}
	}
	for _, in := range []string{"", ".", "a.", ".b", "a.b.c", `"a`, `"a"b.c`} {
		if got, err := ParseTable(in); err == nil {
			t.Errorf("%q was read as %v", in, got)
		}
	}
}
