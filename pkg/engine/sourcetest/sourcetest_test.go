package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// The upstream of the suite's own test: a table in memory with its history.
var table = engine.TableName{Schema: "public", Name: "t"}

type upstream struct {
	mu      sync.Mutex
	rows    map[string]string
	history []commit // of positions lost+1 ...
	lost    int
	more    chan struct{}
	rng     *rand.Rand
}

type commit struct {
	n       int
	changes []change
}

type change struct {
	op      engine.Op
	id, old string // old is another id if the row moved
	v       string
	toast   bool // the value did not change and is not sent
}

func (u *upstream) mutate(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n > 0 {
		c := commit{n: u.lost + len(u.history) + 1}
		for range min(n, 1+u.rng.IntN(40)) {
			c.changes = append(c.changes, u.change())
			n--
		}
		u.history = append(u.history, c)
	}
	close(u.more)
	u.more = make(chan struct{})
}

func (u *upstream) change() change {
	id := fmt.Sprint("id", u.rng.IntN(300))
	_, there := u.rows[id]
	switch r := u.rng.IntN(100); {
	case r == 0:
		clear(u.rows)
		return change{op: engine.OpTruncate}
	case r < 20 && there:
		delete(u.rows, id)
		return change{op: engine.OpDelete, id: id}
	case r < 30 && there:
		to := id + "x"
		u.rows[to] = u.rows[id]
		delete(u.rows, id)
		return change{op: engine.OpPut, id: to, old: id, toast: true}
	case r < 40 && there:
		return change{op: engine.OpPut, id: id, toast: true}
	}
	u.rows[id] = strings.Repeat("v", u.rng.IntN(50)) + fmt.Sprint(u.rng.Int())
	return change{op: engine.OpPut, id: id, v: u.rows[id]}
}

func (u *upstream) truth() Rows {
	u.mu.Lock()
	defer u.mu.Unlock()
	rows := Rows{table: {}}
	for id, v := range u.rows {
		rows[table] = append(rows[table], Row(&id, &v))
	}
	return rows
}

func (u *upstream) lose() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lost += len(u.history) + 1 // a position that nobody has been told of
	u.history = nil
}

// source reads an upstream. fault names what it does wrong.
type source struct {
	u      *upstream
	fault  string
	schema *engine.Schema

	mu     sync.Mutex
	acked  engine.Cursor
	paused chan struct{} // closed by Resume; nil while not paused
	deaf   chan struct{} // told of each pause that Stream has come to, if it is deaf in it
}

func (s *source) Init(_ context.Context, env engine.Env) (engine.Info, error) {
	s.schema, _ = env.Schemas.Define(&engine.Schema{Table: table, Columns: []engine.Column{{Name: "id", Number: 1, Key: true}, {Name: "v", Number: 2}}})
	return engine.Info{Mints: true, History: "h", Tables: []*engine.Schema{s.schema}}, nil
}

func position(n int) engine.Position { return engine.Position(fmt.Sprint(n)) }

func (s *source) row(id, v string, toast bool) engine.Row {
	row := engine.AppendValue(engine.AppendRowHeader(nil, s.schema.ID, 2), id)
	if toast {
		return engine.AppendUnchanged(row)
	}
	return engine.AppendValue(row, v)
}

func keyOf(id string) []byte { return engine.AppendKeyValue(nil, id) }

func (s *source) Baseline(ctx context.Context, to engine.Sink) error {
	s.u.mu.Lock()
	at := s.u.lost + len(s.u.history)
	var rs []engine.Record
	for id, v := range s.u.rows {
		rs = append(rs, engine.Record{Schema: s.schema, Key: keyOf(id), Row: s.row(id, v, false)})
	}
	s.u.mu.Unlock()
	switch s.fault {
	case "baseline behind its rows":
		for start := time.Now(); ; time.Sleep(time.Millisecond) { // others write meanwhile
			s.u.mu.Lock()
			now := s.u.lost + len(s.u.history)
			s.u.mu.Unlock()
			if now >= at+20 || time.Since(start) > patience {
				at = now
				break
			}
		}
	case "loses a row":
		rs = rs[:max(0, len(rs)-1)]
	}
	w, err := to.Baseline(ctx, engine.BaselineSpec{Tables: []engine.TableName{table}, Schemas: []*engine.Schema{s.schema}, At: position(at), Major: uint64(at)})
	if err != nil {
		return err
	}
	if s.fault != "leaves a baseline open" {
		defer w.Abort()
	} else {
		return errors.New("broken off")
	}
	for len(rs) > 0 {
		n := min(len(rs), 100)
		if err := w.Rows(table, rs[:n]); err != nil {
			return err
		}
		rs = rs[n:]
	}
	return w.Commit(ctx)
}

func (s *source) Stream(ctx context.Context, from engine.Cursors, to engine.Sink) error {
	at := 0
	for _, c := range from {
		_, _ = fmt.Sscan(string(c.Position), &at)
	}
	if s.fault == "skips one after a reconnect" && s.LastAckedPosition(engine.LogID{}) != "" {
		at++
	}
	for {
		s.u.mu.Lock()
		more := s.u.more
		if at < s.u.lost && s.fault != "resumes over what was lost" {
			s.u.mu.Unlock()
			return fmt.Errorf("position %d is gone: %w", at, engine.ErrReBaselineRequired)
		}
		var txs []engine.Transaction
		for _, c := range s.u.history {
			if c.n > at {
				txs = append(txs, s.transaction(c))
			}
		}
		s.u.mu.Unlock()
		s.mu.Lock()
		paused := s.paused
		s.mu.Unlock()
		if paused != nil && s.fault != "does not pause" {
			if s.fault == "deaf while paused" {
				s.deaf <- struct{}{}
				<-paused
				continue
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-paused:
				if s.fault == "drops what came while paused" {
					s.u.mu.Lock()
					at = s.u.lost + len(s.u.history)
					s.u.mu.Unlock()
				}
			}
			continue
		}
		if len(txs) == 0 {
			if s.fault == "leaves a goroutine" {
				go func() { <-more; time.Sleep(time.Hour) }()
			}
			select {
			case <-ctx.Done():
				if s.fault == "delivers after its end" {
					go func() { time.Sleep(time.Millisecond); _ = to.Apply(context.Background(), nil) }()
				}
				return ctx.Err()
			case <-more:
			}
			continue
		}
		if s.fault == "out of order" && len(txs) > 1 {
			txs[0], txs[1] = txs[1], txs[0]
		}
		_, _ = fmt.Sscan(string(txs[len(txs)-1].Position), &at)
		if err := to.Apply(ctx, txs); err != nil {
			return err
		}
	}
}

func (s *source) transaction(c commit) engine.Transaction {
	t := engine.Transaction{Position: position(c.n), Major: uint64(c.n), Commit: time.Now()}
	for _, ch := range c.changes {
		x := engine.Change{Op: ch.op, Schema: s.schema, Key: keyOf(ch.id)}
		switch ch.op {
		case engine.OpTruncate:
			x.Key = nil
		case engine.OpPut:
			x.Row, x.Partial = s.row(ch.id, ch.v, ch.toast), ch.toast
			if s.fault == "wrong key" {
				x.Key = keyOf(ch.id + "?")
			}
			if ch.old != "" {
				t.Changes = append(t.Changes, engine.Change{Op: engine.OpDelete, Schema: s.schema, Key: keyOf(ch.old)})
				x.OldKey = keyOf(ch.old)
			}
		case engine.OpDelete:
			if s.fault == "forgets deletes" {
				continue
			}
		}
		t.Changes = append(t.Changes, x)
	}
	if s.fault == "undeclared schema" {
		other := *s.schema
		other.ID += 7
		t.Changes = append(t.Changes, engine.Change{Op: engine.OpDelete, Schema: &other, Key: keyOf("other")})
	}
	return t
}

func (s *source) Ack(c engine.Cursor, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == "acks go back" || c.Log != s.acked.Log || engine.CompareNumber(c.Position, s.acked.Position) > 0 {
		s.acked = c
	}
}

func (s *source) LastAckedPosition(log engine.LogID) engine.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if log != s.acked.Log && !log.IsZero() {
		return ""
	}
	return s.acked.Position
}

func (s *source) SupportsResume() bool                      { return s.fault != "cannot resume" }
func (s *source) OrderingGuarantee() engine.Ordering        { return engine.TotalOrder }
func (s *source) ComparePositions(a, b engine.Position) int { return engine.CompareNumber(a, b) }
func (s *source) PositionToString(p engine.Position) string { return "tx" + string(p) }
func (s *source) PositionFromString(p string) (engine.Position, error) {
	n, ok := strings.CutPrefix(p, "tx")
	if !ok && s.fault != "takes anything for a position" {
		return "", fmt.Errorf("%q is no position", p)
	}
	return engine.Position(n), nil
}

func (s *source) Pause() {
	s.mu.Lock()
	again := s.paused != nil
	if !again {
		s.paused = make(chan struct{})
		close(s.u.wakeUp())
	}
	s.mu.Unlock()
	if !again && s.fault == "deaf while paused" {
		<-s.deaf // else it might be ended before it is deaf
	}
}

func (s *source) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused != nil {
		close(s.paused)
		s.paused = nil
	}
}

// wakeUp replaces the channel that Stream waits on, and returns the old one.
func (u *upstream) wakeUp() chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.more
	u.more = make(chan struct{})
	return was
}

func open(fault string) func(testing.TB) Fixture {
	return func(testing.TB) Fixture {
		u := &upstream{rows: map[string]string{}, more: make(chan struct{}), rng: rand.New(rand.NewPCG(7, 7))}
		return Fixture{Source: &source{u: u, fault: fault, deaf: make(chan struct{})}, Mutate: u.mutate, Truth: u.truth, Lose: u.lose}
	}
}

func TestSuitePasses(t *testing.T) {
	Run(t, open(""))
}

func TestSuitePassesWithoutResume(t *testing.T) {
	Run(t, open("cannot resume"))
}

// recorder is a testing.TB that keeps failures to itself.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) fail(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, s)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

func (r *recorder) Error(args ...any)            { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, args ...any) { r.fail(fmt.Sprintf(f, args...)) }
func (r *recorder) FailNow()                     { runtime.Goexit() }
func (r *recorder) Fatal(args ...any)            { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); runtime.Goexit() }
func (r *recorder) Helper()                      {}
func (r *recorder) Cleanup(fn func())            { r.cleanups = append(r.cleanups, fn) }

// TestSuiteFinds holds the suite to finding what it says it finds.
func TestSuiteFinds(t *testing.T) {
	was := patience
	patience = 3 * time.Second
	t.Cleanup(func() { patience = was })
	for _, c := range []struct{ fault, by string }{
		{"loses a row", "BaselineAndStream"},
		{"forgets deletes", "BaselineAndStream"},
		{"wrong key", "BaselineAndStream"},
		{"out of order", "BaselineAndStream"},
		{"undeclared schema", "BaselineAndStream"},
		{"baseline behind its rows", "ChangesDuringBaseline"},
		{"skips one after a reconnect", "ResumesWhereItWas"},
		{"delivers after its end", "ResumesWhereItWas"},
		{"does not pause", "PauseLosesNothing"},
		{"drops what came while paused", "PauseLosesNothing"},
		{"deaf while paused", "PauseLosesNothing"},
		{"acks go back", "AckNeverGoesBack"},
		{"takes anything for a position", "Positions"},
		{"leaves a goroutine", "EndsPromptly"},
		{"leaves a baseline open", "EndsPromptly"},
		{"resumes over what was lost", "BaselinesAgainWhenOnlyThatHelps"},
	} {
		t.Run(strings.ReplaceAll(c.fault, " ", "-"), func(t *testing.T) {
			i := slices.IndexFunc(cases, func(x struct {
				name string
				fn   func(testing.TB, Fixture)
			}) bool {
				return x.name == c.by
			})
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				cases[i].fn(r, open(c.fault)(r))
			}()
			<-done
			for _, fn := range slices.Backward(r.cleanups) {
				fn()
			}
			if len(r.failures) == 0 {
				t.Fatalf("%s did not find it", c.by)
			}
			t.Log(r.failures[0][:min(160, len(r.failures[0]))])
		})
	}
}
