package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

func table(schema, name string) engine.TableName {
	return engine.TableName{Schema: schema, Name: name}
}

var plain = table("public", "t")

const createT = "CREATE TABLE t (id int PRIMARY KEY, n int, b text)"

// TestCaseP01: a commit that waits for a synchronous standby while the node
// takes its baseline is in the baseline or in the stream.
func TestCaseP01(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{Settings: map[string]string{"synchronous_standby_names": "absent"}})
	db := s.NewDB(t)
	local := "SET synchronous_commit = local; "
	db.Exec(t, local+createT, local+"INSERT INTO t SELECT i, i, 'before' FROM generate_series(1, 100) i")
	waiting := make(chan error, 1)
	go func() { waiting <- db.ExecContext(t.Context(), "INSERT INTO t VALUES (1000, 1, 'waits')") }()
	time.Sleep(300 * time.Millisecond) // its commit record is written, and nobody sees it
	h := twoHops(t, db, plain)
	db.Exec(t, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	h.converge(t)
	if rows := h.reader(t, plain); len(rows) != 101 {
		t.Errorf("%d rows, want 101", len(rows))
	}
}

// TestCaseP11: A begins, B begins, B commits, A commits: both whole.
func TestCaseP11(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, createT)
	h := twoHops(t, db, plain)
	a, err := db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(t.Context())
	run := func(sql string) {
		t.Helper()
		if _, err := a.Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	run("BEGIN; INSERT INTO t SELECT i, 0, 'a' FROM generate_series(1, 50) i")
	db.Exec(t, "BEGIN; INSERT INTO t SELECT i, 0, 'b' FROM generate_series(101, 150) i; COMMIT")
	run("INSERT INTO t SELECT i, 1, 'a' FROM generate_series(51, 100) i; COMMIT")
	h.converge(t)
	if rows := h.reader(t, plain); len(rows) != 150 {
		t.Errorf("%d rows, want 150", len(rows))
	}
}

// TestCaseP21: an update that leaves a large stored value alone.
func TestCaseP21(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, createT, "ALTER TABLE t ALTER b SET STORAGE EXTERNAL",
		"INSERT INTO t SELECT i, 0, repeat(md5(i::text), 300) FROM generate_series(1, 20) i")
	h := twoHops(t, db, plain)
	db.Exec(t, "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 300) FROM generate_series(21, 40) i",
		"UPDATE t SET n = 1", "UPDATE t SET n = n + 1 WHERE id % 2 = 0", "UPDATE t SET id = id + 1000 WHERE id <= 5",
		"BEGIN; UPDATE t SET n = 7 WHERE id = 10; UPDATE t SET b = 'short' WHERE id = 10; UPDATE t SET n = 8 WHERE id = 10; COMMIT")
	h.converge(t)
}

// TestCaseP22: a change of key is one step.
func TestCaseP22(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t VALUES (1, 1, 'x'), (5, 5, 'y')")
	h := twoHops(t, db, plain)
	both := make(chan string, 100)
	stop := h.read.Listen(func(old, fresh *engine.Record) {
		select {
		case both <- fmt.Sprintf("%v→%v", old != nil, fresh != nil):
		default:
		}
	})
	defer stop()
	db.Exec(t, "UPDATE t SET id = 2 WHERE id = 1", "BEGIN; UPDATE t SET id = 6 WHERE id = 5; INSERT INTO t VALUES (5, 0, 'new'); COMMIT")
	h.converge(t)
	if len(both) == 0 {
		t.Error("the listener was told nothing")
	}
}

// TestCaseP28: names that need quoting.
func TestCaseP28(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	odd := []engine.TableName{table("S-1", "T"), table("a.b", "c"), table("a", "b.c"), table(`q"q`, "näme 'x'")}
	for _, n := range odd {
		name := testpg.QuoteIdent(n.Schema) + "." + testpg.QuoteIdent(n.Name)
		db.Exec(t, "CREATE SCHEMA "+testpg.QuoteIdent(n.Schema),
			"CREATE TABLE "+name+` ("Id" int PRIMARY KEY, "select" text, "we""ird, col" text)`,
			"INSERT INTO "+name+fmt.Sprintf(" VALUES (1, 'one', '%s')", strings.ReplaceAll(n.Name, "'", "''")))
	}
	h := twoHops(t, db, odd...)
	for i, n := range odd {
		db.Exec(t, fmt.Sprintf(`INSERT INTO %s.%s VALUES (%d, 'streamed', NULL)`, testpg.QuoteIdent(n.Schema), testpg.QuoteIdent(n.Name), i+10))
	}
	h.converge(t)
}

// The values of P30 to P34: one table, one row a value, by baseline and by
// stream.
var values = map[string]struct {
	setup  string
	column string
	values []string
}{
	"P30 bigint": {"", "bigint", []string{"9007199254740993", "9223372036854775807", "-9223372036854775808"}},
	"P30 json":   {"", "json", []string{`'{"n":1234567890123456789.12345678901234567890}'`, `'{"a":1, "a":2}'`, `'"\u0041"'`}},
	"P30 jsonb":  {"", "jsonb", []string{`'{"n":1234567890123456789.12345678901234567890}'`, `'[1,"x",null]'`}},
	"P31 date":   {"", "date", []string{"'-infinity'", "'infinity'", "'0044-03-15 BC'", "'20000-01-01'"}},
	"P31 timestamp": {"", "timestamp", []string{"'-infinity'", "'infinity'", "'0044-03-15 12:00:00.123456 BC'", "'20000-01-01 00:00'",
		"'2024-02-29 23:59:59.999999'"}},
	"P31 timestamptz": {"", "timestamptz", []string{"'-infinity'", "'2024-06-01 12:00+05:45'", "'0044-03-15 BC'", "'20000-01-01'"}},
	"P31 timetz":      {"", "timetz", []string{"'12:34:56.789+05:30'", "'24:00:00-15:59'"}},
	"P32 numeric": {"", "numeric", []string{"'NaN'", "'Infinity'", "'-Infinity'", "'0.10'", "'" + strings.Repeat("1234567890", 100) + "'",
		"'0." + strings.Repeat("0", 500) + "1'"}},
	"P32 float8":     {"", "float8", []string{"'-0'", "'NaN'", "'1e-308'", "'-Infinity'", "0.1", "1.7976931348623157e308", "5e-324"}},
	"P32 float4":     {"", "float4", []string{"0.1", "'-0'", "3.4028235e38"}},
	"P33 int[]":      {"", "int[]", []string{"'{{1,2},{3,4}}'", "'[2:3]={7,8}'", "'{}'"}},
	"P33 text[]":     {"", "text[]", []string{`'{NULL,"NULL",""}'`, `'{"a\\b","c\"d","e,f"}'`}},
	"P33 enum":       {"CREATE TYPE mood AS ENUM ('sad', 'very happy', 'o''k')", "mood", []string{"'very happy'", "'o''k'"}},
	"P33 domain":     {"CREATE DOMAIN posint AS int CHECK (value > 0)", "posint", []string{"7"}},
	"P33 composite":  {"CREATE TYPE pair AS (a int, b text)", "pair", []string{`ROW(1, 'x "y", z')`, "ROW(NULL, '')"}},
	"P33 range":      {"", "int4range", []string{"'[1,5)'", "'empty'", "'(,)'"}},
	"P33 multirange": {"", "int4multirange", []string{"'{[1,3),[7,9)}'", "'{}'"}},
	"P33 money":      {"", "money", []string{"'-92233720368547758.08'", "12.34"}},
	"P33 interval":   {"", "interval", []string{"'1 year 2 months -3 days 04:05:06.789012'", "'-1 mons +2 days'", "'0'"}},
	"P34 bytea":      {"", "bytea", []string{`'\xdead00'`, `''`}},
	"P34 text": {"", "text", []string{"''", `E'a\tb\nc\\d\re'`, `'\N'`, `'\000'`, `E'\\x00'`, "'😀 𐍈 é'", "repeat('x', 100000)",
		`E'\\.'`, "E'\\b\\f\\v'"}},
	"P34 xml": {"", "xml", []string{"'<a b=\"1\">x &amp; y</a>'"}},
}

func TestCasesP30ToP34(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	var tables []engine.TableName
	insert := func(from int) {
		for name, v := range values {
			for i, x := range v.values {
				db.Exec(t, fmt.Sprintf(`INSERT INTO %s VALUES (%d, %s), (%d, NULL)`, testpg.QuoteIdent(name), from+2*i, x, from+2*i+1))
			}
		}
	}
	for name, v := range values {
		if v.setup != "" {
			db.Exec(t, v.setup)
		}
		db.Exec(t, fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, v %s)", testpg.QuoteIdent(name), v.column))
		tables = append(tables, table("public", name))
	}
	insert(0)
	h := twoHops(t, db, tables...)
	insert(1000)
	for name := range values {
		db.Exec(t, fmt.Sprintf("UPDATE %s SET id = id + 5000 WHERE id < 2", testpg.QuoteIdent(name)))
	}
	h.converge(t)
}

// Types of extensions have at a reader, two hops down, the text that the source
// gives: alone, in arrays, as keys, and of tables without one.
func TestExtensionTypes(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	kinds := []struct {
		extension, column string
		key               bool // it can be one
		values            []string
	}{
		{"hstore", "hstore", true, []string{`'"a"=>"1", b=>NULL, "c d"=>"e\"f, \\"'`, `''`, `'"é"=>"😀", "NULL"=>"null", ""=>""'`}},
		{"citext", "citext", true, []string{"'Mixed Case'", "'ÄÖ'", "''"}},
		{"ltree", "ltree", true, []string{"'Top.Science.Astronomy_1'", "''"}},
		{"ltree", "lquery", false, []string{"'Top.*{1,3}.!a|b@'"}},
		{"cube", "cube", true, []string{"'(1.5,-0,1e-300),(2,3,4)'", "'()'", "'(0.1)'"}},
		{"seg", "seg", true, []string{"'1.50 .. 2.0'", "'~6.5'", "'> 3'"}},
		{"isn", "isbn13", true, []string{"'978-0-393-04002-9'"}},
		{"intarray", "query_int", false, []string{"'1&(2|!3)'"}},
		{"postgis", "geometry", false, []string{"'SRID=4326;POINT(1 2)'", "'LINESTRING Z (0 0 0.1,1 1 1e-300)'", "'POLYGON EMPTY'"}},
		{"postgis", "geography", false, []string{"'POINT(-71.06 42.36)'"}},
	}
	var tables []engine.TableName
	var inserts []string
	for _, k := range kinds {
		t.Run(k.column, func(t *testing.T) {
			if db.Value(t, `SELECT count(*)::text FROM pg_available_extensions WHERE name = '`+k.extension+`'`) == "0" {
				t.Skipf("this server has no extension %s: install the package that it is in", k.extension)
			}
			bag := "bag_" + k.column
			db.Exec(t, "CREATE EXTENSION IF NOT EXISTS "+k.extension, fmt.Sprintf("CREATE TABLE %s (v %s, a %[2]s[], n int)", bag, k.column), "ALTER TABLE "+bag+" REPLICA IDENTITY FULL")
			all := []string{bag}
			if k.key {
				all = append(all, "key_"+k.column)
				db.Exec(t, fmt.Sprintf("CREATE TABLE key_%s (v %[1]s PRIMARY KEY, a %[1]s[], n int)", k.column))
			}
			for _, name := range all {
				tables = append(tables, table("public", name))
				for _, v := range k.values {
					inserts = append(inserts, fmt.Sprintf("INSERT INTO %s VALUES (%s::%s, ARRAY[%[2]s::%[3]s, NULL], %%d)", name, v, k.column))
				}
			}
		})
	}
	if len(tables) == 0 {
		t.Skip("this server has no extensions: install postgresql-contrib")
	}
	insert := func(n int) {
		for _, sql := range inserts {
			db.Exec(t, strings.Replace(sql, "%d", fmt.Sprint(n), 1))
		}
	}
	insert(1)
	h := twoHops(t, db, tables...)
	for _, n := range tables {
		db.Exec(t, fmt.Sprintf(`UPDATE %s SET n = n + 1, a = a || a`, n.Name))
	}
	h.converge(t)
	for _, n := range tables {
		db.Exec(t, fmt.Sprintf(`DELETE FROM %s`, n.Name))
	}
	insert(3)
	h.converge(t)
}

// TestCaseP34Large: a text of 100 MB, once by the baseline and once by the
// stream.
func TestCaseP34Large(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 100 MB several times")
	}
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t VALUES (1, 0, repeat('0123456789', 10000000))")
	h := twoHops(t, db, plain)
	db.Exec(t, "INSERT INTO t VALUES (2, 0, repeat('abcdefghij', 10000000))", "UPDATE t SET n = 1 WHERE id = 1")
	sizes := func() map[string]int {
		all, err := h.read.All(plain)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int{}
		for _, r := range all {
			for i, c := range r.Row.Columns() {
				if i == 2 {
					out[string(c.Value[:10])] = len(c.Value)
				}
			}
		}
		return out
	}
	deadline := time.Now().Add(90 * time.Second)
	for {
		got := sizes()
		if got["0123456789"] == 100_000_000 && got["abcdefghij"] == 100_000_000 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the reader has %v", got)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
