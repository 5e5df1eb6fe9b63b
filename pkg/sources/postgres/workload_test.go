package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
)

var workloadTables = []string{"a", "b", "c"}

// workload writes at random from several sessions until stop is closed: inserts,
// updates, deletes, key changes, truncates, large values that stay, rolled back
// savepoints and transactions.
type workload struct {
	db    *testpg.DB
	seed  uint64
	stop  chan struct{}
	done  atomic.Int64 // transactions
	wg    sync.WaitGroup
	err   error
	errMu sync.Mutex
}

func createWorkloadTables(t testing.TB, db *testpg.DB) {
	t.Helper()
	for _, table := range workloadTables {
		db.Exec(t, fmt.Sprintf(`CREATE TABLE %s (id int PRIMARY KEY, n int, b text, c text)`, table), fmt.Sprintf(`ALTER TABLE %s ALTER b SET STORAGE EXTERNAL`, table),
			fmt.Sprintf(`INSERT INTO %s SELECT i, i, repeat('x', i%%3*1500), NULL FROM generate_series(1,400) i`, table))
	}
	db.Exec(t, `ALTER TABLE b REPLICA IDENTITY FULL`)
}

func startWorkload(t *testing.T, db *testpg.DB, seed uint64, sessions int) *workload {
	t.Helper()
	createWorkloadTables(t, db)
	w := &workload{db: db, seed: seed, stop: make(chan struct{})}
	for i := range sessions {
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			if err := w.write(i); err != nil {
				w.errMu.Lock()
				w.err = err
				w.errMu.Unlock()
			}
		}()
	}
	return w
}

// statement is one random statement. Conflicts on keys are skipped by the
// statement itself.
func statement(r *rand.Rand) string {
	t := workloadTables[r.IntN(len(workloadTables))]
	id := func() int { return r.IntN(600) }
	switch r.IntN(12) {
	case 0, 1, 2:
		return fmt.Sprintf(`INSERT INTO %s VALUES (%d, %d, repeat('y', %d), 'i') ON CONFLICT (id) DO UPDATE SET n=excluded.n`, t, id(), r.IntN(9), r.IntN(3)*2000)
	case 3, 4, 5:
		return fmt.Sprintf(`UPDATE %s SET n=n+1 WHERE id BETWEEN %[2]d AND %[2]d+%d`, t, id(), r.IntN(5))
	case 6:
		return fmt.Sprintf(`UPDATE %s SET b=NULL, c=repeat('z', %d) WHERE id=%d`, t, r.IntN(3000), id())
	case 7, 8:
		return fmt.Sprintf(`DELETE FROM %s WHERE id=%d`, t, id())
	case 9, 10: // a key change, of a row with a large value too
		to := id()
		return fmt.Sprintf(`UPDATE %[1]s SET id=%[3]d WHERE id=%[2]d AND NOT EXISTS (SELECT 1 FROM %[1]s WHERE id=%[3]d)`, t, id(), to)
	default:
		if r.IntN(40) > 0 {
			return `SELECT 1`
		}
		return fmt.Sprintf(`TRUNCATE %s; INSERT INTO %[1]s SELECT i, 0, repeat('t', 2500), 't' FROM generate_series(1,100) i`, t)
	}
}

func (w *workload) write(session int) error {
	ctx := context.Background()
	conn, err := w.db.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	r := rand.New(rand.NewPCG(w.seed, uint64(session)))
	for {
		select {
		case <-w.stop:
			return nil
		default:
		}
		sql := []string{"BEGIN"}
		for range 1 + r.IntN(6) {
			sql = append(sql, statement(r))
			if r.IntN(6) == 0 {
				sql = append(sql, "SAVEPOINT s", statement(r), statement(r), "ROLLBACK TO s")
			}
		}
		sql = append(sql, []string{"COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}[r.IntN(4)])
		// Two sessions may collide on a key or deadlock: that transaction is gone.
		if _, err := conn.Exec(ctx, strings.Join(sql, ";")).ReadAll(); err != nil {
			if code := sqlState(err); code != "23505" && code != "40P01" {
				return fmt.Errorf("%v: %w", sql, err)
			}
			if _, err := conn.Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
				return err
			}
		}
		w.done.Add(1)
	}
}

func (w *workload) wait(t *testing.T, transactions int64) {
	t.Helper()
	from := w.done.Load()
	eventually(t, "some transactions", func() bool { return w.done.Load() >= from+transactions })
}

// more lets some transactions through, if it can: a truncate waits for the
// baseline, and whoever comes after it waits too.
func (w *workload) more() {
	from := w.done.Load()
	for range 50 {
		if w.done.Load() >= from+50 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *workload) end(t *testing.T) {
	t.Helper()
	close(w.stop)
	w.wg.Wait()
	if w.err != nil {
		t.Fatal(w.err)
	}
}

// A baseline taken in the middle of writes, and the stream after it, end where
// the source ends; the model checks each step on the way.
func TestWorkload(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		w := startWorkload(t, db, seed, 3)
		w.wait(t, 20)
		n := start(t, Config{ConnString: db.ConnString, Tables: names(workloadTables...)}, func(m *model) {
			m.inBaseline = w.more // what is written here is in the stream alone
		})
		n.ready()
		w.wait(t, 300)
		w.end(t)
		n.converges(db, workloadTables...)
		if n.baselines() != 1 {
			t.Errorf("%d baselines, want 1", n.baselines())
		}
	})
}

// The same with a permanent slot, and the node cut off and restarted on the way:
// the model sees every transaction once.
func TestWorkloadInterrupted(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		w := startWorkload(t, db, seed, 2)
		n := start(t, Config{ConnString: db.ConnString, Tables: names(workloadTables...), Permanent: true}, func(m *model) { m.durable = true })
		n.ready()
		for i := range 4 {
			w.wait(t, 50)
			if i%2 == 0 {
				if _, err := db.TerminateWalsenders(t.Context()); err != nil {
					t.Fatal(err)
				}
				continue
			}
			n.stop()
			w.wait(t, 20)
			n = startSource(t, n.src, n.model)
		}
		w.end(t)
		n.converges(db, workloadTables...)
		if n.baselines() != 1 {
			t.Errorf("%d baselines, want 1", n.baselines())
		}
	})
}
