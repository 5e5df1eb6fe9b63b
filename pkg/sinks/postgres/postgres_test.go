package postgres_test

import (
	"testing"

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
