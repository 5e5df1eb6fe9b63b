package http_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/sinks"
	sinkhttp "github.com/tributary-dev/tributary/pkg/sinks/http"
	source "github.com/tributary-dev/tributary/pkg/sources/postgres"
)

func TestMain(m *testing.M) {
	os.Exit(testpg.Main(m, testpg.Options{}))
}

// receiver keeps the rows of table a that it is sent. It trusts nothing but the
// documented rules: a key that it has seen is a repetition.
type receiver struct {
	t *testing.T
	*httptest.Server

	mu       sync.Mutex
	rows     map[string]string // id to v
	next     map[string]string // of a baseline under way
	seen     map[string]bool   // keys
	repeated int
	to       string // of the last batch of changes
	trouble  func(w http.ResponseWriter, r *http.Request, body *request) (done bool)
	header   http.Header // of the last request
}

type request struct {
	Sink, Kind, Origin, Epoch, From, To string
	Part                                int
	Last                                bool
	Changes                             []struct {
		Op, Schema, Table string
		Key               map[string]*string
		Row               map[string]*string
	}
}

func newReceiver(t *testing.T) *receiver {
	v := &receiver{t: t, rows: map[string]string{}, seen: map[string]bool{}}
	v.Server = httptest.NewServer(v)
	t.Cleanup(v.Close)
	return v
}

func (v *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	in := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			v.t.Errorf("gzip: %v", err)
			return
		}
		in = z
	}
	var q request
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return // the sender has given up
	}
	v.mu.Lock()
	trouble := v.trouble
	v.header = r.Header
	v.mu.Unlock()
	if trouble != nil && trouble(w, r, &q) {
		return
	}
	v.take(r.Header.Get("Idempotency-Key"), &q)
}

func (v *receiver) take(key string, q *request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seen[key] {
		v.repeated++
		return
	}
	v.seen[key] = true
	rows := v.rows
	if q.Kind == "baseline" {
		if q.Part == 0 {
			v.next = map[string]string{}
		}
		rows = v.next
	} else if whole := fmt.Sprintf("%s:%s@%s:%s-%s", q.Sink, q.Origin, q.Epoch, q.From, q.To); key == whole {
		// A batch of which nothing is for this sink is not sent: positions can jump.
		if engine.CompareLSN(engine.Position(q.From), engine.Position(v.to)) < 0 {
			v.t.Errorf("batch %s follows on %s", key, v.to)
		}
		v.to = q.To
	} else if !strings.HasPrefix(key, whole) {
		v.t.Errorf("key %q of a batch %s", key, whole)
	} else {
		v.to = q.From // a part, or less than the batch
	}
	for _, c := range q.Changes {
		switch c.Op {
		case "put":
			rows[*c.Row["id"]] = *c.Row["v"]
		case "delete":
			delete(rows, *c.Key["id"])
		case "truncate":
			clear(rows)
		}
	}
	if q.Kind == "baseline" && q.Last {
		v.rows, v.to = v.next, ""
	}
}

func (v *receiver) set(f func(w http.ResponseWriter, r *http.Request, q *request) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.trouble = f
}

// rig is a database, a durable node and a sink.
type rig struct {
	t    *testing.T
	db   *testpg.DB
	to   *receiver
	cfg  sinkhttp.Config
	dead bool
	// more are tables of the source beside a; tables those of the sink, all when empty.
	more, tables []engine.TableName

	dir  string
	sink *sinks.Sink
	stop func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{t: t, db: testpg.NewDB(t), to: newReceiver(t), dir: t.TempDir(), stop: func() {}}
	r.db.Exec(t, `CREATE TABLE a (id bigint PRIMARY KEY, v text)`, `INSERT INTO a SELECT i, 'v'||i FROM generate_series(9007199254740990, 9007199254742000) i`)
	r.cfg = sinkhttp.Config{Name: "out", URL: r.to.URL, Timeout: 300 * time.Millisecond}
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start() {
	r.t.Helper()
	log := slog.New(slog.DiscardHandler)
	st, err := store.OpenPebble(store.PebbleOptions{Dir: r.dir})
	if err != nil {
		r.t.Fatal(err)
	}
	e := engine.New(engine.Options{NodeID: "test", Store: st, Logger: log})
	src, err := source.New(source.Config{
		ConnString: r.db.ConnString, Tables: append(r.more, engine.TableName{Schema: "public", Name: "a"}), Slot: "slot_" + r.db.Name, Publication: "pub", Permanent: true,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	e.AddSource("db", src, engine.Keep{})
	r.cfg.Store = st
	target, err := sinkhttp.New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	c := sinks.Config{Name: "out", Host: e, Store: st, Target: target, Logger: log, Tables: r.tables}
	if r.dead {
		c.OnReject = sinks.DeadLetter
	}
	if r.sink, err = sinks.New(c); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Run(ctx) })
	wg.Go(func() { _ = r.sink.Run(ctx) })
	r.stop = func() {
		cancel()
		wg.Wait()
		_ = st.Close()
		r.stop = func() {}
	}
}

// equal waits until the receiver has the source's rows.
func (r *rig) equal(what string) {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		want := map[string]string{}
		for _, row := range r.db.Query(r.t, `SELECT id, v FROM a`) {
			want[*row[0]] = *row[1]
		}
		r.to.mu.Lock()
		same := len(want) == len(r.to.rows)
		for k, v := range want {
			same = same && r.to.rows[k] == v
		}
		n := len(r.to.rows)
		r.to.mu.Unlock()
		if same {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: the receiver has %d rows, the source %d, or others: %+v", what, n, len(want), r.sink.Status())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *rig) until(what string, cond func(sinks.Status) bool) sinks.Status {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		st := r.sink.Status()
		if cond(st) {
			return st
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("waiting for %s: %+v", what, st)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A server that fails, asks for patience, stalls, answers late and loses the
// answer: every change arrives, in order, and a repetition can be told by its key.
func TestTroubledServer(t *testing.T) {
	r := newRig(t)
	r.cfg.Gzip = true
	rnd := rand.New(rand.NewPCG(3, 4))
	var mu sync.Mutex
	kinds := map[int]int{}
	r.to.set(func(w http.ResponseWriter, req *http.Request, q *request) bool {
		mu.Lock()
		kind := rnd.IntN(9)
		kinds[kind]++
		mu.Unlock()
		switch kind {
		case 0:
			http.Error(w, "no", http.StatusInternalServerError)
		case 1:
			w.Header().Set("Retry-After", "0")
			http.Error(w, "slow down", http.StatusTooManyRequests)
		case 2: // stalls
			select {
			case <-req.Context().Done():
			case <-time.After(time.Second):
			}
		case 3: // the answer is lost
			r.to.take(req.Header.Get("Idempotency-Key"), q)
			panic(http.ErrAbortHandler)
		case 4: // answers too late
			r.to.take(req.Header.Get("Idempotency-Key"), q)
			time.Sleep(400 * time.Millisecond)
		default:
			return false
		}
		return true
	})
	r.start()
	r.equal("baseline")
	for i := range 40 {
		r.db.Exec(t, fmt.Sprintf(`INSERT INTO a VALUES (%d, E'\t"é')`, i), `UPDATE a SET v = v || 'x' WHERE id % 50 = 0`, fmt.Sprintf(`DELETE FROM a WHERE id = %d`, i-3))
	}
	r.equal("changes")
	r.stop()
	r.db.Exec(t, `INSERT INTO a VALUES (-1, 'while away')`)
	r.start()
	r.equal("after a restart")
	if st := r.sink.Status(); st.Baselines != 0 {
		t.Errorf("the restarted sink took %d baselines: its cursor was kept", st.Baselines)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(kinds) < 6 {
		t.Errorf("the server gave too little trouble: %v", kinds)
	}
}

func TestLargeTransactionAndHeaders(t *testing.T) {
	r := newRig(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.cfg.TokenFile, r.cfg.Timeout = token, 0
	r.cfg.Headers = []sinkhttp.Header{{Name: "X-Tenant", Value: "t1"}}
	r.start()
	r.equal("baseline")
	r.db.Exec(t, `INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i`)
	r.equal("large")
	r.db.Exec(t, `TRUNCATE a`)
	r.equal("truncate")
	r.to.mu.Lock()
	defer r.to.mu.Unlock()
	if got := r.to.header.Get("Authorization"); got != "Bearer secret" || r.to.header.Get("X-Tenant") != "t1" {
		t.Errorf("headers: %v", r.to.header)
	}
	parts := 0
	for k := range r.to.seen {
		if strings.Contains(k, "#") && !strings.HasPrefix(k, "baseline:") {
			parts++
		}
	}
	if parts < 3 {
		t.Errorf("a transaction of 2 MB came in %d parts", parts)
	}
}

// R13 at an address: the entry at fault is found and named, and with DeadLetter
// the others go on.
func TestRejections(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("dead letters %v", dead), func(t *testing.T) {
			r := newRig(t)
			r.dead = dead
			refuse := func(w http.ResponseWriter, _ *http.Request, q *request) bool {
				for _, c := range q.Changes {
					if c.Op == "put" && *c.Row["v"] == "bad" {
						http.Error(w, "not so", http.StatusUnprocessableEntity)
						return true
					}
				}
				return false
			}
			r.start()
			r.equal("baseline")
			r.to.set(refuse)
			r.db.Exec(t, `BEGIN; INSERT INTO a VALUES (1, 'ok'); INSERT INTO a VALUES (2, 'bad'); INSERT INTO a VALUES (3, 'ok'); COMMIT`, `INSERT INTO a VALUES (4, 'ok')`)
			if !dead {
				st := r.until("the hold", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
				if h := st.Logs[0].Held; h == nil || sinks.FormatKey(h.Key) != "(2)" || !strings.Contains(st.Message, "not so") {
					t.Fatalf("held: %+v: %s", st.Logs[0].Held, st.Message)
				}
				r.to.set(nil)
				r.equal("mended")
				return
			}
			r.until("the others", func(st sinks.Status) bool {
				r.to.mu.Lock()
				defer r.to.mu.Unlock()
				return r.to.rows["3"] == "ok" && r.to.rows["4"] == "ok" && r.to.rows["2"] == "" && st.DeadLetters == 1
			})
			id := r.sink.Letters()[0].ID
			if _, err := r.sink.Replay(t.Context(), id); err == nil {
				t.Fatal("a replay that is rejected was not an error")
			}
			r.to.set(nil)
			if out, err := r.sink.Replay(t.Context(), id); err != nil || out != sinks.Applied {
				t.Fatalf("replay: %v %v", out, err)
			}
			r.equal("replayed")
		})
	}
}

// An address that wants other credentials holds the sink, and puts nothing
// aside.
func TestUnauthorized(t *testing.T) {
	r := newRig(t)
	r.dead = true
	r.to.set(func(w http.ResponseWriter, _ *http.Request, _ *request) bool {
		http.Error(w, "who are you", http.StatusUnauthorized)
		return true
	})
	r.start()
	st := r.until("the hold", func(st sinks.Status) bool { return st.State == sinks.StateHeld })
	if !strings.Contains(st.Message, "Check the token") || st.DeadLetters != 0 {
		t.Errorf("status: %+v", st)
	}
	r.to.set(nil)
	r.equal("mended")
}

// A sink that is given another table takes a baseline at the place where it is: to a
// receiver that goes by the keys it is not a repetition of the one before.
func TestBaselineOfOtherTables(t *testing.T) {
	r := newRig(t)
	r.db.Exec(t, `CREATE TABLE b (id bigint PRIMARY KEY, v text)`, `INSERT INTO b VALUES (-1, 'of b')`)
	a, b := engine.TableName{Schema: "public", Name: "a"}, engine.TableName{Schema: "public", Name: "b"}
	r.more, r.tables = []engine.TableName{b}, []engine.TableName{a}
	r.start()
	r.equal("one table")
	r.until("the sink is well", func(s sinks.Status) bool { return s.State == sinks.StateStreaming })
	r.stop()
	r.tables = []engine.TableName{a, b}
	r.start()
	r.until("the sink is well", func(s sinks.Status) bool { return s.State == sinks.StateStreaming && s.Baselines == 1 })
	r.to.mu.Lock()
	defer r.to.mu.Unlock()
	if r.to.rows["-1"] != "of b" {
		t.Errorf("the receiver has no row of the other table, and %d repetitions", r.to.repeated)
	}
}
