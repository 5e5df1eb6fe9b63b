package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// testValues puts each expression into a column of its type, once before the
// baseline and once into the stream, and compares with the source byte for byte.
// A case is "type" and expressions.
func testValues(t *testing.T, setup []string, cases ...[]string) {
	t.Helper()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, setup...)
		// Another zone and other styles at the server must not show.
		db.Exec(t, "ALTER DATABASE "+db.Name+" SET timezone='Asia/Kathmandu'", "ALTER DATABASE "+db.Name+" SET datestyle='German'",
			"ALTER DATABASE "+db.Name+" SET intervalstyle='iso_8601'", "ALTER DATABASE "+db.Name+" SET bytea_output='escape'", "ALTER DATABASE "+db.Name+" SET extra_float_digits=0")
		var tables []string
		var inserts []string
		for i, c := range cases {
			if strings.Contains(c[0], "multirange") && db.Server.Major < 14 {
				continue
			}
			table := fmt.Sprintf("v%d", i)
			tables = append(tables, table)
			db.Exec(t, fmt.Sprintf(`CREATE TABLE %s (id int PRIMARY KEY, v %s)`, table, c[0]))
			for j, v := range c[1:] {
				inserts = append(inserts, fmt.Sprintf(`INSERT INTO %s VALUES (%%d, %s)`, table, v))
				db.Exec(t, fmt.Sprintf(`INSERT INTO %s VALUES (%d, %s)`, table, j, v))
			}
		}
		n := start(t, Config{ConnString: db.ConnString, Tables: names(tables...)})
		n.ready()
		check := func(when string) {
			t.Helper()
			for _, table := range tables {
				for _, row := range db.Query(t, fmt.Sprintf(`SELECT id, v::text, v FROM %s ORDER BY id`, table)) {
					var got *string
					eventually(t, when+": row "+*row[0]+" of "+table, func() bool {
						var there bool
						got, there = n.value(table, *row[0])
						return there
					})
					for i, want := range row[1:] {
						if (got == nil) != (want == nil) || got != nil && *got != *want {
							t.Errorf("%s, %s row %s (%d): got %s, want %s", when, table, *row[0], i, show(got), show(want))
						}
					}
				}
			}
		}
		check("baseline")
		for i, sql := range inserts {
			db.Exec(t, fmt.Sprintf(strings.ReplaceAll(strings.ReplaceAll(sql, "%", "%%"), "%%d", "%d"), 100+i))
		}
		check("stream")
	})
}

func show(s *string) string {
	if s == nil {
		return "null"
	}
	if len(*s) > 200 {
		return fmt.Sprintf("%d bytes %q...", len(*s), (*s)[:100])
	}
	return fmt.Sprintf("%q", *s)
}

// value returns column v of the row with an id.
func (n *node) value(table, id string) (v *string, there bool) {
	n.model.mu.Lock()
	defer n.model.mu.Unlock()
	r, ok := n.model.tables[names(table)[0]][string(engine.AppendKeyValue(nil, id))]
	if !ok {
		return nil, false
	}
	for i, c := range r.row.Columns() {
		if i == 1 && c.State == engine.Present {
			s := string(c.Value)
			return &s, true
		}
	}
	return nil, true
}

func TestCaseP30(t *testing.T) {
	t.Parallel()
	testValues(t, nil,
		[]string{"bigint", "9007199254740993", "9223372036854775807", "-9223372036854775808", "NULL"},
		[]string{"json", `'{"n":1234567890123456789.12345678901234567890, "a" : [1 ,2]}'`, `'null'`},
		[]string{"jsonb", `'{"n":1234567890123456789.12345678901234567890, "b":1,"a":2}'`, `'"\u00e9\t\\"'`})
}

func TestCaseP31(t *testing.T) {
	t.Parallel()
	testValues(t, nil,
		[]string{"date", `'-infinity'`, `'infinity'`, `'0044-03-15 BC'`, `'20000-01-01'`},
		[]string{"timestamp", `'-infinity'`, `'infinity'`, `'0044-03-15 12:00:00.000001 BC'`, `'20000-12-31 23:59:59.999999'`},
		[]string{"timestamptz", `'-infinity'`, `'2024-02-29 12:34:56.789+05:45'`, `'0044-03-15 BC'`, `'1883-11-18 12:00 America/New_York'`},
		[]string{"time", `'24:00:00'`, `'00:00:00.000001'`},
		[]string{"timetz", `'12:34:56.5+05:45'`, `'00:00-12'`})
}

func TestCaseP32(t *testing.T) {
	t.Parallel()
	testValues(t, nil,
		[]string{"numeric", `'NaN'`, `'Infinity'`, `'-Infinity'`, `repeat('9',1000)::numeric`, `0.10`, `-0.00`, `1e-500`},
		[]string{"numeric(10,2)", `0.1`, `12345678.90`},
		[]string{"float8", `'-0'`, `'NaN'`, `'1e-308'`, `0.1::float8+0.2`, `'-Infinity'`, `'5e-324'`, `'1.7976931348623157e308'`},
		[]string{"float4", `'0.1'`, `'3.4028235e38'`, `'-0'`})
}

func TestCaseP33(t *testing.T) {
	t.Parallel()
	testValues(t, []string{`CREATE TYPE mood AS ENUM ('ok','not "ok"', 'a,b')`, `CREATE DOMAIN positive AS int CHECK (value > 0)`,
		`CREATE TYPE pair AS (a int, b text)`, `CREATE TYPE "Odd.Type" AS (p pair, m mood)`},
		[]string{"int[]", `'{{1,2},{3,4}}'`, `'[2:3]={7,8}'`, `'{}'`, `'{NULL,1}'`},
		[]string{"text[]", `'{NULL,"NULL",""}'`, `ARRAY[E'a\\b"c',E'\t',' ','{}',',']`},
		[]string{"mood", `'ok'`, `'not "ok"'`}, []string{"mood[]", `ARRAY['a,b','not "ok"']::mood[]`},
		[]string{"positive", `1`, `NULL`},
		[]string{"pair", `ROW(1,NULL)`, `ROW(NULL,'')`, `ROW(1,E'a"b\\c,(d)')`}, []string{`"Odd.Type"`, `ROW(ROW(1,'x'),'ok')::"Odd.Type"`},
		[]string{"int4range", `'[1,5)'`, `'empty'`, `'(,)'`}, []string{"int4multirange", `'{[1,3),[5,7)}'`, `'{}'`},
		[]string{"tstzrange", `'["2024-01-01 00:00+01",infinity]'`},
		[]string{"money", `'-12345.67'`},
		[]string{"interval", `'1 year 2 mons -3 days 04:05:06.789'`, `'-1 mons +1 day -00:00:01'`, `'0'`, `'178000000 years'`},
		[]string{"uuid", `'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'`}, []string{"bit varying", `B'1010'`}, []string{"macaddr8", `'08:00:2b:01:02:03:04:05'`},
		[]string{"tsvector", `'fat:1A cat:2'`}, []string{"point", `'(1.1,-0)'`}, []string{"xml", `'<a b="1">x</a>'`}, []string{"pg_lsn", `'16/B374D848'`})
}

func TestCaseP34(t *testing.T) {
	t.Parallel()
	testValues(t, nil,
		[]string{"bytea", `'\xdead00'`, `''`, `'\x5c780909'`},
		[]string{"text", `''`, `E'a\tb\nc\rd\\e\bf\fg\vh'`, `'\N'`, `E'\\N'`, `'\x00'`, `'\0'`, `E'\\\\.'`, `'\.'`, `'😀 é \t'`, `E'\U0001F600'`, `' '`, `'NULL'`, `E'ends\\'`, `E'\n'`},
		[]string{"varchar(5)", `'ab   '`})
	t.Run("output functions", func(t *testing.T) {
		// The text that COPY and the stream give is the output function's; a cast to
		// text differs for these types.
		eachVersion(t, func(t *testing.T, db *testpg.DB) {
			db.Exec(t, `CREATE TABLE o (id int PRIMARY KEY, a bool, b char(5), c inet, d "char", e name, f regclass)`, `INSERT INTO o VALUES (1,true,'ab','10.0.0.1','x','n','o')`)
			n := start(t, Config{ConnString: db.ConnString, Tables: names("o")})
			n.ready()
			q := `SET search_path=pg_catalog; SELECT * FROM public.o`
			if got, want := n.model.digest(names("o")[0]), db.Digest(t, q); got != want {
				t.Errorf("baseline: got %s, want %s", got, want)
			}
			db.Exec(t, `INSERT INTO o VALUES (2,false,'','::1/64','','','pg_class')`)
			eventually(t, "the stream is equal", func() bool { return n.model.digest(names("o")[0]) == db.Digest(t, q) })
		})
	})
}

// A text of 100 MB, by baseline and stream.
func TestCaseP34Large(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `ALTER TABLE t ALTER b SET STORAGE EXTERNAL`, `INSERT INTO t VALUES (1, 1, repeat(md5('x')||E'\t\\', 2950000))`)
		n := start(t, Config{ConnString: db.ConnString, Tables: names("t")})
		n.converges(db, "t")
		db.Exec(t, `INSERT INTO t SELECT 2, 2, b||'!' FROM t`)
		n.converges(db, "t")
		db.Exec(t, `UPDATE t SET n=n+1`)
		n.converges(db, "t")
	})
}
