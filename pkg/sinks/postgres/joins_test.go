package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/pgsession"
	"github.com/tributary-dev/tributary/pkg/sinks"
	sinkpg "github.com/tributary-dev/tributary/pkg/sinks/postgres"
)

// A large table that joins a running node comes to its sinks alone, and to those of
// the node below it: the log no longer holds what follows their cursors, and what the
// state holds that was written after them is delivered.
func TestLargeTableJoinsAlone(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(300, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	child, _ := ft.Child(t, "child", nil, root)
	ft.Converged(t, o, ft.Table("t"), child)
	type end struct {
		db   *testpg.DB
		sink *sinks.Sink
	}
	ends := map[string]end{}
	for _, n := range []*ft.Node{root, child} {
		db := testpg.NewDB(t)
		target, err := sinkpg.New(sinkpg.Config{Session: pgsession.Config{ConnString: db.ConnString}, Sink: n.ID + "/sink", CreateTables: true})
		if err != nil {
			t.Fatal(err)
		}
		s, err := sinks.New(sinks.Config{Name: "sink", Host: n.Engine, Store: n.Store, Target: target, Logger: ft.Logger(n.ID)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Run(ctx) })
		t.Cleanup(func() { cancel(); wg.Wait() })
		ends[n.ID] = end{db, s}
	}
	same := func(tables ...string) {
		t.Helper()
		for id, e := range ends {
			for _, name := range tables {
				ft.Eventually(t, time.Minute, func() error {
					rows := map[string]string{}
					got, err := e.db.QueryContext(t.Context(), "SELECT id, v FROM public."+name)
					if err != nil {
						return err
					}
					for _, r := range got {
						rows[*r[0]] = *r[1]
					}
					want := o.Rows(ft.Table(name))
					if len(rows) != len(want) {
						return fmt.Errorf("the sink of %s has %d rows of %s, of %d: %+v", id, len(rows), name, len(want), e.sink.Status())
					}
					for k, v := range want {
						if rows[k] != v {
							return fmt.Errorf("the sink of %s has another row %s of %s", id, k, name)
						}
					}
					return nil
				})
			}
		}
	}
	same("t")
	for id, e := range ends { // a row that is written again has another xmin
		if _, err := e.db.QueryContext(t.Context(), "CREATE TABLE before AS SELECT id, v, xmin::text AS x FROM t"); err != nil {
			t.Fatal(id, err)
		}
	}
	rows := map[string]string{}
	for i := range 1200 {
		rows[fmt.Sprint("u", i)] = strings.Repeat("u", 10<<10)
	}
	o.Write(ft.Change{Table: ft.Table("t"), Key: "k000001", Gone: true}, ft.Change{Table: ft.Table("t"), Key: "k000002", Value: "new"})
	o.Add(ft.Table("u"), rows)
	o.Put("k000003", "newer")
	same("t", "u")
	for id, e := range ends {
		st := e.sink.Status()
		if st.Baselines != 1 || st.Changes < 1200 || st.Changes > 1210 {
			t.Errorf("the sink of %s: %d baselines, %d changes", id, st.Baselines, st.Changes)
		}
		if n := e.db.Query(t, "SELECT count(*)::text FROM t JOIN before b USING (id) WHERE t.xmin::text <> b.x AND t.v = b.v"); *n[0][0] != "0" {
			t.Errorf("the sink of %s has written %s rows again that have not changed", id, *n[0][0])
		}
	}
}

// A table without a key does not keep a large table that joins from coming alone,
// whatever was done to it while the sink was away.
func TestLargeTableJoinsBesideOneWithoutKey(t *testing.T) {
	for name, tt := range map[string]struct {
		joins string
		work  []string
		again int64 // rows that are written again
	}{
		"few changes": {"id int PRIMARY KEY, v text", []string{
			`INSERT INTO a SELECT 1, 'twice' FROM generate_series(1, 3)`,
			`DELETE FROM a WHERE ctid IN (SELECT ctid FROM a WHERE n = 1 AND v = 'same' LIMIT 2)`,
			`DELETE FROM a WHERE n = 2`, `INSERT INTO a VALUES (2, 'same'), (NULL, NULL), (NULL, NULL)`,
			`UPDATE a SET v = 'else' WHERE n = 3`, `DELETE FROM a WHERE v IS NULL AND ctid = (SELECT max(ctid) FROM a WHERE v IS NULL)`,
		}, 50},
		"many changes":      {"id int PRIMARY KEY, v text", []string{`DELETE FROM a WHERE n < 500`, `INSERT INTO a SELECT 1, 'new' FROM generate_series(1, 200)`}, 2000},
		"none, without key": {"id int, v text", nil, 0},
		"emptied":           {"id int, v text", []string{`TRUNCATE a`, `INSERT INTO a VALUES (1, 'same'), (1, 'same')`}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "a b", `CREATE TABLE a (n int, v text)`, `ALTER TABLE a REPLICA IDENTITY FULL`, `CREATE TABLE b (id int PRIMARY KEY, v text)`,
				`INSERT INTO a SELECT i % 1000, 'same' FROM generate_series(1, 2000) i`, `INSERT INTO a VALUES (NULL, NULL)`,
				`INSERT INTO b SELECT i, 'b' FROM generate_series(1, 500) i`)
			r.start()
			r.equal("baseline")
			r.end()
			r.to.Exec(t, audit("a", "b")...)
			r.from.Exec(t, tt.work...)
			r.from.Exec(t, `UPDATE b SET v = 'c' WHERE id = 7`, `CREATE TABLE u (`+tt.joins+`)`, `ALTER TABLE u REPLICA IDENTITY FULL`,
				`INSERT INTO u SELECT i, repeat('u', 10000) FROM generate_series(1, 900) i`)
			r.tables = append(r.tables, engine.TableName{Schema: "public", Name: "u"})
			if err := r.source.SetTables(r.tables); err != nil {
				t.Fatal(err)
			}
			ft.Eventually(t, time.Minute, func() error {
				v := r.store.View()
				defer v.Close()
				for _, i := range v.Tables() {
					if i.Table.Name == "u" && i.Rows == 900 {
						return nil
					}
				}
				return fmt.Errorf("the node has %+v", v.Tables())
			})
			r.startSink()
			r.until("what has joined", func(st sinks.Status) bool { return st.Changes >= 900 })
			r.equal("joined")
			r.from.Exec(t, `DELETE FROM a WHERE n = 4`, `INSERT INTO a VALUES (4, 'last')`, `UPDATE u SET v = 'v' WHERE id = 3`)
			r.equal("afterwards")
			if st := r.sink.Status(); st.Baselines != 0 {
				t.Errorf("%d baselines: %s", st.Baselines, st.LastCause)
			}
			if n := r.to.Value(t, `SELECT (n <= 9 + `+fmt.Sprint(tt.again)+`)::text FROM audit`); n != "true" {
				t.Errorf("%s rows were written", r.to.Value(t, `SELECT n FROM audit`))
			}
		})
	}
}
