package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

func TestBaselineThenChanges(t *testing.T) {
	r := newRig(t, "a",
		`CREATE TABLE a (id int PRIMARY KEY, v text, n numeric, j json)`,
		`INSERT INTO a SELECT i, 'v'||i, i*1.10, '{"a": 1, "a": 2}' FROM generate_series(1, 1000) i`)
	r.start()
	r.equal("baseline")
	r.from.Exec(t, `UPDATE a SET v = E'tab\t new\n back\\slash' WHERE id < 500`, `DELETE FROM a WHERE id % 7 = 0`, `INSERT INTO a VALUES (-1, NULL, 'NaN', NULL)`,
		`UPDATE a SET id = id + 10000 WHERE id BETWEEN 10 AND 20`)
	r.equal("changes")
	r.from.Exec(t, `BEGIN; TRUNCATE a; INSERT INTO a VALUES (1, 'x', 1.0, 'null'); COMMIT`)
	r.equal("truncate")
	st := r.until("streaming", func(st sinks.Status) bool { return st.State == sinks.StateStreaming })
	if st.Baselines != 1 || st.Rebaselines != 0 || st.Errors != 0 || st.Rejected != 0 {
		t.Errorf("status: %+v", st)
	}
}

// What a type prints at the source it prints at the target, by baseline and by
// change.
func TestTypesAreBitExact(t *testing.T) {
	types := []string{
		`CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy')`, `CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0)`,
		`CREATE TYPE pair AS (a int, "B b" text)`, `CREATE EXTENSION hstore`,
	}
	row := func(id int) string {
		return fmt.Sprintf(`(%d, repeat('9', 900)::numeric + 0.10, 'NaN', '-Infinity', 9007199254740993, 1.10::float4, 1e-300, '0044-03-15 BC', 'infinity', '2020-01-01 10:00:00.123456+05',
			'1 year 2 mons -3 days', ARRAY[[1,NULL],[3,4]], '[2:3]={5,6}', ARRAY['a"b', NULL, 'NULL', ''], 'so so', 4, ROW(1, 'x,"y"'), '[1,5)', '{[1,3),[5,9)}', '\x00ff',
			'{"a": 1, "a": 2.50}', '{"n": 12345678901234567890.10}', '<a>é</a>', '$1,234.50', 'a=>NULL, "b c"=>"d"', 'fat:2 cat', 'ab', B'101', '10.1.0.0/16', 'x''y\z', true, '(1,2)')`, id)
	}
	r := newRig(t, "kinds Odd",
		append(types, `CREATE TABLE kinds (id int PRIMARY KEY, n1 numeric, n2 numeric, n3 numeric, big int8, f4 float4, f8 float8, d date, ts timestamp, tz timestamptz,
			iv interval, a2 int[], ab int[], ta text[], m mood, ev even, p pair, r int4range, mr int4multirange, b bytea, j json, jb jsonb, x xml, mo money, h hstore, tv tsvector,
			c char(5), bi varbit, net cidr, "t'x" varchar(20), bo bool, pt point)`,
			`CREATE TABLE "Odd" ("select" int, "Ä.ö""q" text, "a b" text, PRIMARY KEY ("select", "Ä.ö""q"))`,
			`INSERT INTO kinds VALUES `+row(1), `INSERT INTO "Odd" VALUES (1, '', NULL), (1, E'tab\t', 'x')`)...)
	r.to.Exec(t, types...)
	r.start()
	r.equal("baseline")
	r.from.Exec(t, `INSERT INTO kinds VALUES `+row(2), `UPDATE kinds SET bo = false, c = 'z' WHERE id = 1`, `INSERT INTO "Odd" VALUES (2, E'\\', 'y')`,
		`UPDATE "Odd" SET "a b" = '"' WHERE "select" = 1`, `DELETE FROM "Odd" WHERE "Ä.ö""q" = ''`)
	r.equal("changes")
}

// audit makes a table of the target count what is done to it.
func audit(tables ...string) []string {
	all := []string{
		`CREATE TABLE audit (n bigint)`, `INSERT INTO audit VALUES (0)`,
		`CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE public.audit SET n = n + 1; RETURN NULL; END $$`,
	}
	for _, table := range tables {
		all = append(all, `CREATE TRIGGER count_it AFTER INSERT OR UPDATE OR DELETE ON `+table+` FOR EACH ROW EXECUTE FUNCTION count_it()`)
	}
	return all
}

// Sessions are killed in the middle of transactions, the sink and the node are
// restarted: each change is applied exactly once. A counter of what is done at
// the target would show a repetition, which the rows themselves would not.
func TestExactlyOnce(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	r.dir = t.TempDir()
	r.to.Exec(t, `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	r.to.Exec(t, audit("a")...)
	r.start()
	r.until("the baseline", func(st sinks.Status) bool { return st.Baselines == 1 })
	const changes = 6000
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		for ctx.Err() == nil {
			time.Sleep(time.Duration(5+rnd.IntN(40)) * time.Millisecond)
			_, _ = r.to.QueryContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tributary %'`)
		}
	})
	for i := range changes / 300 {
		var b strings.Builder
		for j := range 100 { // 300 changes in transactions of three
			id := i*100 + j
			fmt.Fprintf(&b, `BEGIN; INSERT INTO a VALUES (%[1]d, 'x'); UPDATE a SET v = 'y' WHERE id = %[1]d; DELETE FROM a WHERE id = %[1]d - %[2]d; INSERT INTO a SELECT 1000000 + %[1]d, 'z' WHERE %[1]d < %[2]d; COMMIT;`, id, 50)
		}
		r.from.Exec(t, b.String())
		if i == 7 {
			r.end()
			r.startSink()
		}
		if i == 14 {
			r.restart()
		}
	}
	cancel()
	wg.Wait()
	r.equal("after all")
	if got := r.to.Value(t, `SELECT n FROM audit`); got != strconv.Itoa(changes) {
		t.Errorf("the target has carried out %s changes, of %d", got, changes)
	}
	if st := r.sink.Status(); st.Baselines != 0 {
		t.Errorf("the restarted sink took %d baselines", st.Baselines)
	}
}

// A transaction that comes in parts is seen whole or not at all.
func TestLargeTransactionIsWhole(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	r.start()
	r.until("the baseline", func(st sinks.Status) bool { return st.Baselines == 1 })
	const rows = 30_000
	r.from.Exec(t, fmt.Sprintf(`INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, %d) i`, rows), `UPDATE a SET v = 'y'`)
	conn, err := r.to.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	seen := map[string]bool{}
	deadline := time.Now().Add(time.Minute)
	for !seen["30000 30000"] {
		res, err := conn.Exec(t.Context(), `SELECT count(*) || ' ' || count(*) FILTER (WHERE v = 'y') FROM a`).ReadAll()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("seen %v: %v", seen, err)
		}
		seen[string(res[0].Rows[0][0])] = true
	}
	for s := range seen {
		if s != "0 0" && s != "30000 0" && s != "30000 30000" {
			t.Errorf("a reader of the target has seen half of a transaction: %q", s)
		}
	}
	if st := r.sink.Status(); st.Changes != 2*rows {
		t.Errorf("%d changes applied, want %d", st.Changes, 2*rows)
	}
}

// A node over a memory store has a new epoch after a restart. The new baseline
// is merged: nobody sees less than there is, and equal rows are not written.
func TestRebaselineIsMerged(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`, `INSERT INTO a SELECT i, 'v' FROM generate_series(1, 5000) i`)
	r.start()
	r.equal("first")
	r.stop()
	r.to.Exec(t, audit("a")...)
	r.from.Exec(t, `UPDATE a SET v = 'w' WHERE id <= 10`, `DELETE FROM a WHERE id > 4990`, `INSERT INTO a VALUES (0, 'new')`)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			rows, err := r.to.QueryContext(ctx, `SELECT count(*) FROM a`)
			if err != nil {
				continue
			}
			if n := *rows[0][0]; n != "5000" && n != "4991" {
				t.Errorf("a reader of the target has seen %s rows", n)
			}
		}
	})
	r.start()
	r.equal("second")
	st := r.until("its baseline", func(st sinks.Status) bool { return st.Rebaselines == 1 })
	cancel()
	wg.Wait()
	if !strings.Contains(st.LastCause, "new epoch") {
		t.Errorf("cause: %s", st.LastCause)
	}
	if got := r.to.Value(t, `SELECT n FROM audit`); got != "21" {
		t.Errorf("the baseline wrote %s rows, want the 21 that differ", got)
	}
}

// A table without a key is a multiset.
func TestTableWithoutKey(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (v text, j json)`, `ALTER TABLE a REPLICA IDENTITY FULL`, `INSERT INTO a VALUES ('x', '1'), ('x', '1'), ('y', NULL), (NULL, NULL)`)
	r.start()
	r.equal("baseline")
	r.from.Exec(t, `INSERT INTO a VALUES ('x', '1'), ('z', '2')`, `DELETE FROM a WHERE ctid = (SELECT ctid FROM a WHERE v = 'x' LIMIT 1)`, `UPDATE a SET v = 'n' WHERE v IS NULL`)
	r.equal("changes")
	if got := r.to.Value(t, `SELECT count(*) FROM a WHERE v = 'x'`); got != "2" {
		t.Errorf("%s equal rows", got)
	}
	r.restart()
	r.equal("again")
}

func TestSchemaChanges(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v varchar(10), n int, old text)`, `INSERT INTO a VALUES (1, 'x', 1, 'o'), (2, 'y', 2, 'p')`)
	r.dir = t.TempDir()
	r.start()
	r.equal("baseline")
	r.from.Exec(t, `ALTER TABLE a ADD COLUMN extra numeric(10,2)`, `INSERT INTO a VALUES (3, 'z', 3, 'q', 1.50)`)
	r.equal("column added")
	r.from.Exec(t, `ALTER TABLE a RENAME COLUMN old TO fresh`, `INSERT INTO a VALUES (4, 'z', 3, 'q', 1.50)`)
	r.equal("column renamed")
	r.from.Exec(t, `ALTER TABLE a ALTER COLUMN v TYPE text`, `INSERT INTO a VALUES (5, repeat('long', 10), 3, 'q', 1.50)`)
	r.equal("column widened")
	r.restart()
	r.from.Exec(t, `BEGIN; ALTER TABLE a RENAME COLUMN v TO tmp; ALTER TABLE a RENAME COLUMN fresh TO v; ALTER TABLE a RENAME COLUMN tmp TO fresh; COMMIT`, `INSERT INTO a VALUES (6, 'fresh', 3, 'v', 1.50)`)
	r.equal("columns swapped")
	r.from.Exec(t, `ALTER TABLE a DROP COLUMN n`, `ALTER TABLE a ADD COLUMN n int`, `INSERT INTO a VALUES (7, 'fresh', 'v', 1.50, 7)`)
	r.equal("column dropped and added")
	r.from.Exec(t, `ALTER TABLE a ALTER COLUMN n TYPE text`, `INSERT INTO a VALUES (8, 'fresh', 'v', 1.50, 'text')`)
	st := r.until("the refusal", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
	if want := `ALTER TABLE "public"."a" ALTER COLUMN "n" TYPE text USING "n"::text`; !strings.Contains(st.Message, want) {
		t.Fatalf("the message does not say what to run: %s", st.Message)
	}
	r.to.Exec(t, `ALTER TABLE "public"."a" ALTER COLUMN "n" TYPE text USING "n"::text`)
	r.equal("after it was run")
}

func TestMissingTableAndType(t *testing.T) {
	r := newRig(t, "a", `CREATE TYPE mood AS ENUM ('sad')`, `CREATE TABLE a (id int PRIMARY KEY, m mood)`, `INSERT INTO a VALUES (1, 'sad')`)
	r.cfg.CreateTables = false
	r.start()
	st := r.until("the refusal", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
	if !strings.Contains(st.Message, "public.mood") {
		t.Errorf("message: %s", st.Message)
	}
	r.to.Exec(t, `CREATE TYPE mood AS ENUM ('sad')`)
	st = r.until("the next one", func(st sinks.Status) bool { return strings.Contains(st.Message, "createTables") })
	if want := `CREATE TABLE "public"."a" ("id" integer, "m" public.mood, PRIMARY KEY ("id"))`; !strings.Contains(st.Message, want) {
		t.Errorf("message: %s", st.Message)
	}
	r.to.Exec(t, `CREATE TABLE a (id int, m mood)`)
	r.until("the key", func(st sinks.Status) bool {
		return strings.Contains(st.Message, `CREATE UNIQUE INDEX ON "public"."a" ("id")`)
	})
	r.to.Exec(t, `CREATE UNIQUE INDEX ON a (id)`)
	r.equal("mended")
}

// The least rights that do: the sink's own schema, and what the statements need.
func TestLeastRights(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`, `INSERT INTO a VALUES (1, 'x')`)
	role := "writer_" + r.to.Name
	r.to.Exec(t, `CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE ROLE `+role+` LOGIN PASSWORD 'pw'`, `GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON a TO `+role)
	t.Cleanup(func() {
		_ = r.to.ExecContext(context.Background(), `DROP OWNED BY `+role, `DROP ROLE `+role)
	})
	r.cfg.Session.ConnString = r.to.ConnStringAs(role, "pw")
	r.start()
	st := r.until("the refusal", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
	want := fmt.Sprintf(`CREATE SCHEMA IF NOT EXISTS "tributary"; GRANT USAGE, CREATE ON SCHEMA "tributary" TO %q`, role)
	if !strings.Contains(st.Message, want) {
		t.Fatalf("message: %s", st.Message)
	}
	r.to.Exec(t, want)
	r.equal("baseline")
	r.from.Exec(t, `TRUNCATE a`, `INSERT INTO a VALUES (2, 'y')`)
	r.equal("changes")
}

// R13: a row that the target refuses holds its log, visibly; a mended target
// goes on by itself.
func TestHoldThenMended(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	r.start()
	r.until("the baseline", func(st sinks.Status) bool { return st.Baselines == 1 })
	r.to.Exec(t, `ALTER TABLE a ADD CONSTRAINT short CHECK (length(v) < 5)`)
	r.from.Exec(t, `INSERT INTO a VALUES (1, 'ok')`, `BEGIN; INSERT INTO a VALUES (2, 'ok'); INSERT INTO a VALUES (3, 'too long'); COMMIT`, `INSERT INTO a VALUES (4, 'ok')`)
	st := r.until("the hold", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
	held := st.Logs[0].Held
	if held == nil || held.Table.Name != "a" || sinks.FormatKey(held.Key) != "(3)" || held.Position == "" || !strings.Contains(st.Logs[0].HeldError, "short") {
		t.Fatalf("held: %+v, %s", held, st.Logs[0].HeldError)
	}
	if got := r.to.Value(t, `SELECT string_agg(id::text, ',' ORDER BY id) FROM a`); got != "1" {
		t.Errorf("the target has rows %s: what came before the transaction, and nothing of it", got)
	}
	r.to.Exec(t, `ALTER TABLE a DROP CONSTRAINT short`)
	r.equal("mended")
	r.until("streaming", func(st sinks.Status) bool { return st.State == sinks.StateStreaming && st.Logs[0].Held == nil })
}

func TestDeadLetters(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`, `INSERT INTO a VALUES (0, 'too long')`)
	r.onReject, r.most = sinks.DeadLetter, 4
	r.to.Exec(t, `CREATE TABLE a (id int PRIMARY KEY, v text CONSTRAINT short CHECK (length(v) < 5))`)
	r.start()
	r.until("the baseline", func(st sinks.Status) bool { return st.Baselines == 1 && st.DeadLetters == 1 })
	r.from.Exec(t, `BEGIN; INSERT INTO a VALUES (1, 'ok'); INSERT INTO a VALUES (2, 'too long'); INSERT INTO a VALUES (3, 'ok'); COMMIT`,
		`INSERT INTO a VALUES (4, 'also too long')`, `INSERT INTO a VALUES (5, 'long again')`, `UPDATE a SET v = 'fine' WHERE id = 5`)
	r.until("what came after", func(sinks.Status) bool {
		return r.to.Value(t, `SELECT string_agg(id||v, ',' ORDER BY id) FROM a`) == "1ok,3ok,5fine"
	})
	// What was applied later has made one of them moot.
	st := r.until("three letters", func(st sinks.Status) bool { return st.DeadLetters == 3 })
	if st.State != sinks.StateStreaming {
		t.Errorf("state: %+v", st)
	}
	letters := r.sink.Letters()
	if v := r.sink.Values(&letters[1]); letters[1].Table != "a" || sinks.FormatKey(letters[1].Key) != "(2)" || *v["v"] != "too long" || !strings.Contains(letters[1].Error, "short") {
		t.Errorf("letter: %+v %v", letters[1], v)
	}
	// At the bound it holds, and goes on when there is room.
	r.from.Exec(t, `INSERT INTO a VALUES (6, 'long six')`, `INSERT INTO a VALUES (7, 'long seven')`)
	st = r.until("the hold", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
	if !strings.Contains(st.Message, "as many dead letters as may be kept") {
		t.Errorf("message: %s", st.Message)
	}
	if out, err := r.sink.Discard(t.Context(), letters[0].ID); err != nil || out != sinks.Discarded {
		t.Fatalf("discard: %v %v", out, err)
	}
	r.until("going on", func(st sinks.Status) bool { return st.State == sinks.StateStreaming && st.DeadLetters == 4 })
	// A replay that is rejected keeps its letter; one that is not applies it.
	if _, err := r.sink.Replay(t.Context(), letters[1].ID); err == nil || !strings.Contains(err.Error(), "short") {
		t.Fatalf("replay: %v", err)
	}
	r.to.Exec(t, `ALTER TABLE a DROP CONSTRAINT short`)
	for _, l := range r.sink.Letters() {
		if out, err := r.sink.Replay(t.Context(), l.ID); err != nil || out != sinks.Applied {
			t.Fatalf("replay: %v %v", out, err)
		}
	}
	r.from.Exec(t, `DELETE FROM a WHERE id = 0`) // the one that was discarded
	r.equal("replayed")
}

// A target that is away costs nobody else, and is caught up when it is back.
func TestTargetAway(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	server := testpg.Start(t, testpg.Options{Fsync: true})
	r.to = server.NewDB(t)
	r.cfg.Session.ConnString = r.to.ConnString
	r.start()
	r.until("the baseline", func(st sinks.Status) bool { return st.Baselines == 1 })
	if err := server.Stop(t.Context(), testpg.Immediate); err != nil {
		t.Fatal(err)
	}
	r.from.Exec(t, `INSERT INTO a SELECT i, 'x' FROM generate_series(1, 1000) i`)
	st := r.until("retrying", func(st sinks.Status) bool { return st.State == sinks.StateRetrying })
	if !strings.Contains(st.Message, "PostgreSQL at") {
		t.Errorf("message: %s", st.Message)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.equal("back")
	if st := r.sink.Status(); st.Baselines != 1 {
		t.Errorf("%d baselines", st.Baselines)
	}
}

// Two instances of one sink: the cursor in the target lets each change through
// once.
func TestTwoInstances(t *testing.T) {
	r := newRig(t, "a", `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	r.to.Exec(t, `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	r.to.Exec(t, audit("a")...)
	r.start()
	r.until("the baseline", func(st sinks.Status) bool { return st.Baselines == 1 })
	first := r.end
	r.startSink()
	second := r.end
	r.end = func() { first(); second() }
	for range 20 {
		r.from.Exec(t, `INSERT INTO a SELECT coalesce(max(id), 0) + 1, 'x' FROM a`, `UPDATE a SET v = v || 'y'`)
	}
	r.equal("both")
	if got := r.to.Value(t, `SELECT n FROM audit`); got != "230" { // 20 inserts, and 1 to 20 updates
		t.Errorf("%s changes carried out, want 230", got)
	}
}

// Random writes from several sessions, with sessions of the sink killed, the
// sink restarted and the source's stream cut: the target ends as the source is.
func TestRandomWorkload(t *testing.T) {
	r := newRig(t, "a b", `CREATE TABLE a (id int PRIMARY KEY, n int, v text)`, `CREATE TABLE b (id int, k text, v text, PRIMARY KEY (k, id))`)
	r.dir = t.TempDir()
	r.start()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for session := range 3 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(11, uint64(session)))
			for ctx.Err() == nil {
				sql := "BEGIN"
				for range 1 + rnd.IntN(6) {
					switch id := rnd.IntN(300); rnd.IntN(8) {
					case 0, 1:
						sql += fmt.Sprintf(`; INSERT INTO a VALUES (%d, 0, repeat('v', %d)) ON CONFLICT (id) DO UPDATE SET n = a.n + 1`, id, rnd.IntN(3000))
					case 2:
						sql += fmt.Sprintf(`; UPDATE a SET n = n + 1 WHERE id BETWEEN %d AND %d`, id, id+rnd.IntN(20))
					case 3:
						sql += fmt.Sprintf(`; DELETE FROM a WHERE id = %d`, id)
					case 4:
						sql += fmt.Sprintf(`; UPDATE a SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM a WHERE id = %[1]d)`, rnd.IntN(300), id)
					case 5:
						sql += fmt.Sprintf(`; INSERT INTO b SELECT i, 'k%d', 'x' FROM generate_series(1, %d) i ON CONFLICT DO NOTHING`, id%20, rnd.IntN(400))
					case 6:
						sql += fmt.Sprintf(`; DELETE FROM b WHERE k = 'k%d'`, id%20)
					case 7:
						if rnd.IntN(20) == 0 {
							sql += `; TRUNCATE b, a`
						}
					}
				}
				_ = r.from.ExecContext(ctx, sql+[]string{"; COMMIT", "; COMMIT", "; COMMIT", "; ROLLBACK"}[rnd.IntN(4)]) // sessions can be in each other's way
			}
		})
	}
	rnd := rand.New(rand.NewPCG(12, 0))
	for ctx.Err() == nil {
		time.Sleep(time.Duration(50+rnd.IntN(250)) * time.Millisecond)
		switch rnd.IntN(6) {
		case 0:
			r.end()
			r.startSink()
		case 1:
			_, _ = r.from.TerminateWalsenders(ctx)
		default:
			_, _ = r.to.QueryContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tributary %'`)
		}
	}
	wg.Wait()
	r.equal("after the workload")
	if st := r.sink.Status(); st.Rejected != 0 {
		t.Errorf("status: %+v", st)
	}
}
