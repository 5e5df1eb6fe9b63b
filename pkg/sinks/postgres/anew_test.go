package postgres_test

import (
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/sinks"
)

// A table that is dropped at the target, or made anew there, while the sink runs or
// not, is filled again: nobody takes what was written later for all of it. One that
// is made anew at the source, with columns of other types, is followed.
func TestTableMadeAnew(t *testing.T) {
	r := newRig(t, "a b", `CREATE TABLE a (id int PRIMARY KEY, v text)`, `CREATE TABLE b (id int PRIMARY KEY, v text)`,
		`INSERT INTO a SELECT i, 'v' FROM generate_series(1, 100) i`, `INSERT INTO b SELECT i, 'v' FROM generate_series(1, 100) i`)
	r.start()
	r.equal("baseline")
	r.from.Exec(t, `INSERT INTO a VALUES (101, 'x')`, `UPDATE b SET v = 'x' WHERE id = 1`) // the statements are prepared
	r.equal("changes")
	again := func(n int64) {
		t.Helper()
		if st := r.sink.Status(); st.Rebaselines != n || !strings.Contains(st.LastCause, `"public"."a" was dropped since rows were written to it, or made anew`) {
			t.Errorf("%d baselines again, want %d: %s", st.Rebaselines, n, st.LastCause)
		}
	}
	r.to.Exec(t, `BEGIN; DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY, v text); COMMIT`)
	r.from.Exec(t, `INSERT INTO a VALUES (102, 'x')`)
	r.equal("made anew")
	again(1)
	r.to.Exec(t, `DROP TABLE a`)
	r.from.Exec(t, `INSERT INTO a VALUES (103, 'x')`)
	r.equal("dropped")
	again(2)
	r.to.Exec(t, `BEGIN; DROP TABLE a; CREATE TABLE a (v varchar, extra int, id bigint PRIMARY KEY); COMMIT`)
	r.from.Exec(t, `DELETE FROM a WHERE id = 1`)
	r.equal("made anew with other columns")
	again(3)
	r.end()
	r.to.Exec(t, `BEGIN; DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY, v text); COMMIT`)
	r.startSink()
	r.from.Exec(t, `INSERT INTO a VALUES (104, 'x')`)
	r.equal("made anew while the sink was down")
	again(1)

	r.from.Exec(t, `DROP TABLE a`, `CREATE TABLE a (id bigint PRIMARY KEY, v text, w int)`, `INSERT INTO a VALUES (9007199254740993, 'y', 1)`)
	r.equal("made anew at the source")
	r.from.Exec(t, `DROP TABLE b`, `CREATE TABLE b (id text PRIMARY KEY, v int[])`, `INSERT INTO b VALUES ('k', '{1,2}')`)
	st := r.until("the refusal", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
	if want := `ALTER TABLE "public"."b" ALTER COLUMN "id" TYPE text`; !strings.Contains(st.Message, want) {
		t.Fatalf("the message does not say what to run: %s", st.Message)
	}
	r.to.Exec(t, `DROP TABLE b`) // as good
	r.equal("made anew at the source, with other types")
	r.from.Exec(t, `DROP TABLE b`, `CREATE TABLE b (id text PRIMARY KEY, q text, v int[])`, `INSERT INTO b VALUES ('k', 'in the place of v', '{3}')`)
	r.equal("made anew at the source, with a column more in between")
}
