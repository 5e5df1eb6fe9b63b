package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// tables of the workload. w has no key: equal rows of it count.
var tables = []engine.TableName{
	{Schema: "public", Name: "t"}, {Schema: "public", Name: "u"}, {Schema: "Odd.Schema", Name: `v "x"`}, {Schema: "public", Name: "w"},
}

func quoted(t engine.TableName) string {
	return testpg.QuoteIdent(t.Schema) + "." + testpg.QuoteIdent(t.Name)
}

// create makes the tables, with rows in them.
func create(ctx context.Context, db *testpg.DB) error {
	sql := []string{`CREATE SCHEMA "Odd.Schema"`}
	for _, t := range tables {
		key := "PRIMARY KEY"
		if t.Name == "w" {
			key = ""
		}
		sql = append(sql,
			fmt.Sprintf(`CREATE TABLE %s (id int %s, n int, b text, c numeric)`, quoted(t), key),
			fmt.Sprintf(`ALTER TABLE %s ALTER b SET STORAGE EXTERNAL`, quoted(t)),
			fmt.Sprintf(`INSERT INTO %s SELECT i, i, repeat('x', i%%3*1500), i/7.0 FROM generate_series(1,300) i`, quoted(t)))
	}
	sql = append(sql, `ALTER TABLE public.u REPLICA IDENTITY FULL`, `ALTER TABLE public.w REPLICA IDENTITY FULL`)
	return db.ExecContext(ctx, sql...)
}

// touch changes each table, once whatever the workload left running has ended.
func touch(ctx context.Context, db *testpg.DB) error {
	var sql []string
	for _, t := range tables {
		sql = append(sql, fmt.Sprintf(`BEGIN; LOCK TABLE %[1]s; INSERT INTO %[1]s (id, n) VALUES (-1, 0); COMMIT`, quoted(t)))
	}
	return db.ExecContext(ctx, sql...)
}

// workload writes at random from several sessions: every kind of statement,
// small and large transactions, subtransactions and whole transactions that are
// rolled back, transactions that stay open for long, and changes of the tables'
// shape.
type workload struct {
	db   *testpg.DB
	seed uint64
	done atomic.Int64 // transactions
	ddl  atomic.Int64
	// ahead is set while the workload waits for the nodes.
	ahead atomic.Bool
	wg    sync.WaitGroup

	mu  sync.Mutex
	err error
}

// start starts the writers. What one of them has under way when ctx ends still
// comes to its end: a statement that is given up here may run at the server, after
// the tables' last change.
func (w *workload) start(ctx context.Context, sessions int) {
	for i := range sessions {
		w.wg.Go(func() {
			if err := w.write(ctx, i); err != nil {
				w.mu.Lock()
				w.err = errors.Join(w.err, err)
				w.mu.Unlock()
			}
		})
	}
	w.wg.Go(func() {
		if err := w.alter(ctx); err != nil {
			w.mu.Lock()
			w.err = errors.Join(w.err, err)
			w.mu.Unlock()
		}
	})
}

// wait returns what went wrong, once the writers have ended.
func (w *workload) wait() error {
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// statement is one random statement on the columns that are always there.
func statement(r *rand.Rand) string {
	t := quoted(tables[r.IntN(len(tables))])
	id := func() int { return r.IntN(500) }
	switch r.IntN(14) {
	case 0, 1, 2:
		return fmt.Sprintf(`INSERT INTO %[1]s (id, n, b) SELECT %[2]d, %[3]d, repeat('y', %[4]d) WHERE NOT EXISTS (SELECT 1 FROM %[1]s WHERE id = %[2]d)`, t, id(), r.IntN(9), r.IntN(3)*2000)
	case 3, 4, 5, 6:
		return fmt.Sprintf(`UPDATE %s SET n = n + 1 WHERE id BETWEEN %[2]d AND %[2]d + %[3]d`, t, id(), r.IntN(8))
	case 7:
		return fmt.Sprintf(`UPDATE %s SET b = NULL, c = %d.50 WHERE id = %d`, t, r.IntN(3000), id())
	case 8, 9:
		return fmt.Sprintf(`DELETE FROM %s WHERE id = %d`, t, id())
	case 10: // a key change, of a row with a large value too
		return fmt.Sprintf(`UPDATE %[1]s SET id = %[3]d WHERE id = %[2]d AND NOT EXISTS (SELECT 1 FROM %[1]s WHERE id = %[3]d)`, t, id(), id())
	case 11: // equal rows
		return fmt.Sprintf(`INSERT INTO public.w (id, n) SELECT %d, 1 FROM generate_series(1, %d)`, id(), 1+r.IntN(4))
	case 12: // large
		if r.IntN(6) == 0 {
			return fmt.Sprintf(`UPDATE %s SET n = n + 1`, t)
		}
		return fmt.Sprintf(`INSERT INTO public.w (id, n, b) SELECT i, 0, 'bulk' FROM generate_series(1, %d) i`, r.IntN(400))
	default:
		if r.IntN(60) > 0 {
			return `SELECT 1`
		}
		return fmt.Sprintf(`TRUNCATE %s; INSERT INTO %[1]s (id, n, b) SELECT i, 0, repeat('t', 2500) FROM generate_series(1,100) i`, t)
	}
}

func (w *workload) write(ctx context.Context, session int) error {
	all := context.WithoutCancel(ctx)
	conn, err := w.db.Connect(all)
	if err != nil {
		return err
	}
	defer conn.Close(all)
	r := rand.New(rand.NewPCG(w.seed, uint64(session)))
	asked := time.Now()
	for ctx.Err() == nil {
		n := 1 + r.IntN(5)
		if r.IntN(30) == 0 {
			n = 60
		}
		sql := []string{"BEGIN"}
		for range n {
			sql = append(sql, statement(r))
			switch r.IntN(12) {
			case 0:
				sql = append(sql, "SAVEPOINT s", statement(r), statement(r), "ROLLBACK TO s")
			case 1:
				sql = append(sql, "SAVEPOINT s", statement(r), "RELEASE s")
			case 2:
				if r.IntN(20) == 0 {
					sql = append(sql, "SELECT pg_sleep(0.5)")
				}
			}
		}
		sql = append(sql, []string{"COMMIT", "COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}[r.IntN(5)])
		if err := w.run(all, conn, sql); err != nil {
			return err
		}
		time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
		if session == 0 && time.Since(asked) > 200*time.Millisecond {
			asked = time.Now()
			if err := w.pace(all, conn); err != nil {
				return err
			}
		}
		for w.ahead.Load() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
			if session == 0 {
				if err := w.pace(all, conn); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// maxAhead is how far the workload gets ahead of the nodes, in bytes of WAL: it is
// as fast as they are, with what else runs.
const maxAhead = 16 << 20

// pace looks at how far the slot is behind.
func (w *workload) pace(ctx context.Context, conn *pgconn.PgConn) error {
	res, err := conn.Exec(ctx, fmt.Sprintf(`SELECT coalesce(max(pg_current_wal_lsn() - confirmed_flush_lsn), 0) > %d FROM pg_replication_slots WHERE NOT temporary`, maxAhead)).ReadAll()
	if err != nil {
		return err
	}
	w.ahead.Store(string(res[0].Rows[0][0]) == "t")
	return nil
}

// run runs statements; one that loses to another session, or to a change of
// shape, is rolled back.
func (w *workload) run(ctx context.Context, conn *pgconn.PgConn, sql []string) error {
	_, err := conn.Exec(ctx, strings.Join(sql, ";")).ReadAll()
	w.done.Add(1)
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		_, err = conn.Exec(ctx, "ROLLBACK").ReadAll()
		// unique violation, deadlock, lock timeout, a cached plan of another shape
		if code := pg.Code; code != "23505" && code != "40P01" && code != "55P03" && code != "0A000" {
			return fmt.Errorf("%.300s: %w", strings.Join(sql, ";"), pg)
		}
	}
	return err
}

// alter changes the shape of the tables: columns come, go, change their name and
// their type.
func (w *workload) alter(ctx context.Context) error {
	all := context.WithoutCancel(ctx)
	conn, err := w.db.Connect(all)
	if err != nil {
		return err
	}
	defer conn.Close(all)
	r := rand.New(rand.NewPCG(w.seed, 1<<32))
	type shape struct {
		extra []string
		next  int
		wide  bool
	}
	shapes := make([]shape, len(tables))
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(300+r.IntN(2500)) * time.Millisecond):
		}
		i := r.IntN(len(tables))
		s, t := &shapes[i], quoted(tables[i])
		var sql string
		then := func() {}
		switch k := r.IntN(6); {
		case k <= 1 || len(s.extra) == 0 && k <= 3:
			name := fmt.Sprintf("x%d", s.next)
			sql = fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s text", t, name)
			if r.IntN(2) == 0 {
				sql += " DEFAULT 'd'"
			}
			then = func() { s.extra, s.next = append(s.extra, name), s.next+1 }
		case k == 2:
			sql = fmt.Sprintf("ALTER TABLE %s DROP COLUMN %s", t, s.extra[0])
			then = func() { s.extra = s.extra[1:] }
		case k == 3:
			name := fmt.Sprintf("x%d", s.next)
			sql = fmt.Sprintf("ALTER TABLE %s RENAME COLUMN %s TO %s", t, s.extra[0], name)
			then = func() { s.extra[0], s.next = name, s.next+1 }
		case k == 4 && !s.wide:
			sql = fmt.Sprintf("ALTER TABLE %s ALTER n TYPE bigint", t)
			then = func() { s.wide = true }
		default:
			sql = fmt.Sprintf("ALTER TABLE %s DROP COLUMN c; ALTER TABLE %s ADD COLUMN c numeric", t, t)
		}
		_, err := conn.Exec(all, "BEGIN; SET LOCAL lock_timeout = '200ms'; "+sql+"; COMMIT").ReadAll()
		var pg *pgconn.PgError
		switch {
		case err == nil:
			then()
			w.ddl.Add(1)
		case errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01"):
			if _, err := conn.Exec(all, "ROLLBACK").ReadAll(); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
