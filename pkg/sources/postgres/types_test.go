package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// samples has texts of every type of pg_catalog that can be made from text.
var samples = map[string][]string{
	"aclitem":                {"postgres=arwdDxt/postgres", "=r/postgres"},
	"bit":                    {"1", "0"},
	"bool":                   {"t", "f"},
	"box":                    {"(1.5,2),(-0,1e-300)"},
	"bpchar":                 {"", "ab  ", "é "},
	"bytea":                  {`\xdead00`, ``, `\x5c0a09`},
	"char":                   {"x", "", `\`, `\203`},
	"cid":                    {"0", "4294967295"},
	"cidr":                   {"10.0.0.0/8", "::/0", "2001:db8::1/128"},
	"circle":                 {"<(1,2),3.25>"},
	"date":                   {"-infinity", "infinity", "0044-03-15 BC", "20000-01-01", "4713-01-01 BC"},
	"daterange":              {"[2024-01-01,infinity]", "empty", "(,)", "[0044-03-15 BC,)"},
	"float4":                 {"-0", "NaN", "0.1", "3.4028235e38", "1e-45", "-Infinity"},
	"float8":                 {"-0", "NaN", "1e-308", "5e-324", "0.30000000000000004", "1.7976931348623157e308", "Infinity"},
	"inet":                   {"10.0.0.1", "10.0.0.1/8", "::1/64", "::ffff:1.2.3.4"},
	"int2":                   {"-32768", "32767"},
	"int2vector":             {"1 2 -3", ""},
	"int4":                   {"-2147483648", "2147483647"},
	"int4range":              {"[1,5)", "empty", "(,)", "[2147483646,]"},
	"int8":                   {"9007199254740993", "9223372036854775807", "-9223372036854775808"},
	"int8range":              {"[9007199254740993,9223372036854775807)"},
	"interval":               {"1 year 2 mons -3 days 04:05:06.789012", "-1 mons +1 day -00:00:01", "0", "178000000 years", "-00:00:00.000001", "1 day -1 sec"},
	"json":                   {`{"a":1, "a" : 2,"n":1234567890123456789.12345678901234567890}`, `"\u0000"`, "[1 ,\n\t2]"},
	"jsonb":                  {`{"a":1, "a" : 2,"n":1234567890123456789.12345678901234567890}`, `"é\t\\"`, "1e400", "null"},
	"jsonpath":               {`$.a[*] ? (@.b > 1 && @ like_regex "^x\\d")`, `strict $."a b"`},
	"line":                   {"{1,-2,0.5}"},
	"lseg":                   {"[(1,2),(3,-0)]"},
	"macaddr":                {"08:00:2b:01:02:03"},
	"macaddr8":               {"08:00:2b:01:02:03:04:05"},
	"money":                  {"-92233720368547758.08", "1234.56", "0"},
	"name":                   {"", `we"ird`, strings.Repeat("é", 31)},
	"numeric":                {"NaN", "Infinity", "-Infinity", strings.Repeat("1234567890", 100), "0.10", "-0.00", "1e-500", "0." + strings.Repeat("0", 999) + "1"},
	"numrange":               {"[0.10,1.100)", "(,5]"},
	"oid":                    {"0", "4294967295"},
	"oidvector":              {"1 4294967295", ""},
	"path":                   {"[(0,0),(1,1.5)]", "((0,0),(1,1),(2,0))"},
	"pg_lsn":                 {"16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF"},
	"pg_snapshot":            {"10:20:10,14,15", "10:10:"},
	"txid_snapshot":          {"10:20:10,14,15"},
	"point":                  {"(1.1,-0)", "(NaN,Infinity)"},
	"polygon":                {"((0,0),(1,1),(2,0))"},
	"refcursor":              {"a cursor", ""},
	"regclass":               {"pg_class", "0", "public.every", `public."Odd.Name"`},
	"regcollation":           {`"C"`, "0"},
	"regconfig":              {"english"},
	"regdatabase":            {"postgres"},
	"regdictionary":          {"simple"},
	"regnamespace":           {"pg_catalog", "public"},
	"regoper":                {"pg_catalog.||/", "0"},
	"regoperator":            {"+(integer,integer)", "-(NONE,bigint)"},
	"regproc":                {"now", "0"},
	"regprocedure":           {"abs(numeric)", "0"},
	"regrole":                {"postgres", "0"},
	"regtype":                {"integer", "timestamp with time zone", `public."Odd.Name"`, "bigint[]"},
	"text":                   {"", "a\tb\nc\rd\\e\bf\fg\vh", `\N`, `\.`, `\x00`, "😀 é", " ", "NULL", `ends\`, "\n"},
	"tid":                    {"(0,1)", "(4294967295,65535)"},
	"time":                   {"24:00:00", "00:00:00.000001", "23:59:59.999999"},
	"timestamp":              {"-infinity", "infinity", "0044-03-15 12:00:00.000001 BC", "20000-12-31 23:59:59.999999"},
	"timestamptz":            {"-infinity", "infinity", "2024-02-29 12:34:56.789+05:45", "0044-03-15 BC", "1883-11-18 12:00 America/New_York", "20000-01-01"},
	"timetz":                 {"12:34:56.5+05:45", "24:00:00-15:59", "00:00-12"},
	"tsquery":                {`'fat' & ( 'rat':AB | !'cat':* ) <2> 'a''b\\'`, ""},
	"tsrange":                {`["2024-01-01 00:00",infinity]`, `["0044-03-15 BC","2024-01-01"]`},
	"tstzrange":              {`["2024-01-01 00:00+01",infinity]`, "(,)"},
	"tsvector":               {"fat:1A,3B cat:2 'a''b \\\\ c':16383", ""},
	"uuid":                   {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
	"varbit":                 {"", "1010", "1"},
	"varchar":                {"", "ab   ", `\N`},
	"xid":                    {"0", "4294967295"},
	"xid8":                   {"0", "18446744073709551615"},
	"xml":                    {"<a b=\"1\">x &amp; <!-- c --><![CDATA[<&]]></a>", `<?xml version="1.0" encoding="latin1"?><é/>`, "text only", ""},
	"int4multirange":         {"{[1,3),[5,7)}", "{}", "{(,)}"},
	"int8multirange":         {"{[9007199254740993,9223372036854775807)}"},
	"nummultirange":          {"{[0.10,1.100),(5,)}"},
	"datemultirange":         {"{[2024-01-01,2024-02-01),[2025-01-01,infinity]}"},
	"tsmultirange":           {`{["2024-01-01","2024-02-01"]}`},
	"tstzmultirange":         {`{["2024-01-01 00:00+01","2024-02-01 00:00-05"]}`},
	"public.hstore":          {`"a"=>NULL, "b\"\\"=>"", ""=>"x=>y"`, ""},
	"public.citext":          {"MiXed\t"},
	"public.ltree":           {"Top.Science.Astronomy", ""},
	"public.lquery":          {"Top.*{0,2}.sport*@|cat"},
	"public.cube":            {"(1, 2),(3, -0.1)"},
	"public.seg":             {"~6.50", "1.0 .. 2"},
	"public.isbn13":          {"978-0-306-40615-7"},
	"public.mood":            {"ok", `not "ok"`, "a,b", "{"},
	"public.positive":        {"1"},
	"public.pair":            {`(1,)`, `(,"")`, `(1,"a""b\\c,(d)")`},
	`public."Odd.Name"`:      {`("(1,x)",ok,"{1,NULL}","{""(2,\\""y z\\"")"",NULL}")`, "(,,,)"},
	`public.textrange`:       {`["a,b","c""d")`, "empty"},
	`public.textmultirange`:  {`{["a,b","c""d"),[x,y]}`},
	`public.labels`:          {`{ok,"not \"ok\"",NULL}`},
	"public.checked_numeric": {"0.10"},
}

// untold are the types of pg_catalog that no value can be made of from text.
var untold = map[string]string{
	"gtsvector":    "an index's own",
	"pg_node_tree": "refuses input", "pg_ndistinct": "refuses input", "pg_dependencies": "refuses input", "pg_mcv_list": "refuses input",
	"pg_brin_bloom_summary": "refuses input", "pg_brin_minmax_multi_summary": "refuses input", "pg_ddl_command": "refuses input",
}

// everyVersion runs a test on each version that Tributary supports, or on those
// asked for.
func everyVersion(t *testing.T, test func(t *testing.T, db *testpg.DB)) {
	t.Helper()
	versions, err := testpg.Versions()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(versions, []int{0}) {
		versions = []int{14, 15, 16, 17, 18}
	}
	for _, v := range versions {
		t.Run(fmt.Sprintf("pg%d", v), func(t *testing.T) { test(t, testpg.Shared(t, v).NewDB(t)) })
	}
}

// foreign are settings of a server that must not show in any value.
var foreign = map[string]string{
	"timezone": "Asia/Kathmandu", "datestyle": "SQL, DMY", "intervalstyle": "iso_8601", "bytea_output": "escape", "extra_float_digits": "-15",
	"lc_monetary": "C.UTF-8", "search_path": "public", "quote_all_identifiers": "on", "xmloption": "document", "xmlbinary": "hex", "client_encoding": "LATIN1",
	"lc_numeric": "C.UTF-8", "lc_time": "C.UTF-8", "array_nulls": "off", "standard_conforming_strings": "off", "backslash_quote": "off",
	"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on", "escape_string_warning": "off", "statement_timeout": "5min",
}

// Every type there is, alone, in an array and in an array with bounds, has at
// the node the text that the source gives, by baseline and by stream.
func TestEveryType(t *testing.T) {
	t.Parallel()
	everyVersion(t, func(t *testing.T, db *testpg.DB) {
		t.Parallel()
		db.Exec(t, `CREATE TYPE mood AS ENUM ('ok','not "ok"', 'a,b', '{')`, `CREATE DOMAIN positive AS int CHECK (value > 0)`, `CREATE DOMAIN labels AS mood[]`,
			`CREATE DOMAIN checked_numeric AS numeric(20,5)`, `CREATE TYPE pair AS (a int, b text)`, `CREATE TYPE "Odd.Name" AS (p pair, m mood, i int[], ps pair[])`,
			`CREATE TYPE textrange AS RANGE (subtype = text, collation = "C")`)
		for _, e := range []string{"hstore", "citext", "ltree", "cube", "seg", "isn"} {
			if db.Value(t, `SELECT count(*) FROM pg_available_extensions WHERE name='`+e+`'`) == "1" {
				db.Exec(t, "CREATE EXTENSION "+e)
			}
		}
		there := map[string]bool{}
		for _, r := range db.Query(t, `SELECT CASE n.nspname WHEN 'pg_catalog' THEN '' ELSE n.nspname||'.' END || CASE WHEN typname ~ '[A-Z."]' THEN quote_ident(typname) ELSE typname END
			FROM pg_type t JOIN pg_namespace n ON n.oid=typnamespace WHERE n.nspname IN ('pg_catalog','public') AND typtype <> 'p' AND typcategory <> 'A'
			AND (typtype <> 'c' OR n.nspname='public') AND typrelid NOT IN (SELECT oid FROM pg_class WHERE relkind <> 'c')
			UNION SELECT 'public.labels'`) {
			name := *r[0]
			if there[name] = true; samples[name] == nil && untold[name] == "" && !strings.HasPrefix(name, "public.") {
				t.Errorf("type %s has no sample, and no reason for it", name)
			}
		}
		if v := db.ExecContext(t.Context(), `SELECT '<a/>'::xml`); v != nil {
			delete(there, "xml") // this server is built without it
		}
		var names_, columns []string
		rows := 0
		for _, name := range slices.Sorted(maps.Keys(samples)) {
			if there[name] {
				names_ = append(names_, name)
				rows = max(rows, len(samples[name]))
			}
		}
		typ := func(name string) string {
			if strings.Contains(name, ".") {
				return name
			}
			return `pg_catalog."` + name + `"` // "char" is not char
		}
		for i, name := range names_ {
			columns = append(columns, fmt.Sprintf(`a%d %s, b%[1]d %s[]`, i, typ(name), typ(name)))
		}
		db.Exec(t, "CREATE TABLE every (id int PRIMARY KEY, "+strings.Join(columns, ", ")+")")
		insert := func(from int) {
			for row := range rows + 2 {
				values := []string{fmt.Sprint(from + row)}
				for _, name := range names_ {
					s := samples[name]
					a, b := "NULL", "NULL"
					if row < rows {
						a = quoteLiteral(s[row%len(s)]) + "::" + typ(name)
						b = fmt.Sprintf("ARRAY[%s, NULL, %s::%s]::%[3]s[]", a, quoteLiteral(s[0]), typ(name))
					}
					if row == rows { // bounds and dimensions
						b = fmt.Sprintf("array_fill(%s::%s, ARRAY[2,1], ARRAY[0,-5])", quoteLiteral(s[0]), typ(name))
						if name == "public.labels" {
							b = "NULL"
						}
					}
					values = append(values, a, b)
				}
				db.Exec(t, "SET standard_conforming_strings = on; SET xmloption = content; SET array_nulls = on; SET search_path = public; INSERT INTO every VALUES ("+strings.Join(values, ", ")+")")
			}
		}
		insert(0)
		role := "r_" + db.Name
		db.Exec(t, "CREATE ROLE "+role+" SUPERUSER LOGIN PASSWORD 'pw'")
		t.Cleanup(func() { _ = db.ExecContext(context.Background(), "DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role) })
		for name, value := range foreign {
			db.Exec(t, fmt.Sprintf("ALTER ROLE %s SET %s = %s", role, name, quoteLiteral(value)), fmt.Sprintf("ALTER DATABASE %s SET %s = %s", db.Name, name, quoteLiteral(value)))
		}
		db.Exec(t, fmt.Sprintf("ALTER ROLE %s SET search_path = public", role), fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET datestyle = 'German'", role, db.Name))
		n := start(t, Config{ConnString: db.ConnStringAs(role, "pw"), Tables: names("every")})
		n.ready()
		compare := func(when string) {
			t.Helper()
			conn, err := db.Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), "SET search_path = pg_catalog; SET lc_monetary = 'C'; SET quote_all_identifiers = off").ReadAll(); err != nil {
				t.Fatal(err)
			}
			res, err := conn.Exec(t.Context(), "SELECT * FROM public.every").ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range res[0].Rows {
				var got []*string
				eventually(t, when, func() bool { got = n.columns("every", string(row[0])); return got != nil })
				for i, want := range row {
					if w := text(want); (w == nil) != (got[i] == nil) || w != nil && *w != *got[i] {
						t.Errorf("%s, row %s, %s: got %s, want %s", when, row[0], res[0].FieldDescriptions[i].Name+" "+names_[max(0, i-1)/2], show(got[i]), show(w))
					}
				}
			}
		}
		compare("baseline")
		insert(1000)
		compare("stream")
	})
}

func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

// columns returns the values of a row by its id, or nil if it is not there.
func (n *node) columns(table, id string) (out []*string) {
	n.model.mu.Lock()
	defer n.model.mu.Unlock()
	for _, r := range n.model.tables[names(table)[0]] {
		out = out[:0]
		for i, c := range r.row.Columns() {
			var v *string
			if c.State == engine.Present {
				s := string(c.Value)
				v = &s
			}
			if out = append(out, v); i == 0 && *v != id {
				break
			}
		}
		if len(out) > 1 {
			return out
		}
	}
	return nil
}
