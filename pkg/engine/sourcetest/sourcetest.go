// Package sourcetest is the suite that every engine.SyncSource passes.
//
// Each case runs a source against a real engine over a memory store, with what
// it delivers checked on the way, and compares the state that comes of it with
// the upstream's own answer.
package sourcetest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"go.uber.org/goleak"
)

// Rows is the content of tables: of each row its values in column order, as
// Row writes them. The order of rows does not matter.
type Rows map[engine.TableName][]string

// Row writes a row's values in text form, nil for null, so that rows can be
// compared.
func Row(values ...*string) string {
	var b strings.Builder
	for _, v := range values {
		if v == nil {
			b.WriteString("null,")
		} else {
			fmt.Fprintf(&b, "%q,", *v)
		}
	}
	return b.String()
}

// Fixture is a source with an upstream of its own.
type Fixture struct {
	Source engine.SyncSource
	// Mutate makes n changes upstream: inserts, updates, deletes, a truncate at
	// times, in transactions of various sizes. It returns when they are committed.
	Mutate func(n int)
	// Truth returns what the tables hold upstream. Nothing mutates meanwhile.
	Truth func() Rows
	// Lose makes the upstream forget what a reader that has been away still
	// needs, so that only a baseline helps. Nil if that cannot happen.
	Lose func()
}

// Run runs the suite. open makes a fresh fixture, which its own cleanups end.
func Run(t *testing.T, open func(t testing.TB) Fixture) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { // not parallel: goroutines left behind are looked for
			c.fn(t, open(t))
		})
	}
}

var cases = []struct {
	name string
	fn   func(testing.TB, Fixture)
}{
	{"BaselineAndStream", testBaselineAndStream},
	{"ChangesDuringBaseline", testChangesDuringBaseline},
	{"ResumesWhereItWas", testResumes},
	{"PauseLosesNothing", testPause},
	{"AckNeverGoesBack", testAck},
	{"Positions", testPositions},
	{"EndsPromptly", testEnds},
	{"BaselinesAgainWhenOnlyThatHelps", testLost},
}

// patience bounds every wait.
var patience = 60 * time.Second

// run is a source that feeds a running engine.
type run struct {
	testing.TB
	fixture Fixture
	checked *checked
	engine  *engine.Engine
	stop    func() // idempotent
}

func start(t testing.TB, f Fixture) *run {
	r := &run{TB: t, fixture: f, checked: &checked{SyncSource: f.Source, t: t}}
	st := store.NewMemory(store.MemoryOptions{})
	r.engine = engine.New(engine.Options{NodeID: "suite", Store: st, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	r.engine.AddSource("source", r.checked, engine.Keep{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.engine.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("the source has not ended %v after its context", patience)
			return
		}
		_ = st.Close()
	}
	t.Cleanup(r.stop)
	return r
}

// state returns what the engine holds.
func (r *run) state() Rows {
	v := r.engine.View()
	defer v.Close()
	rows := Rows{}
	for _, i := range v.Tables() {
		rows[i.Table] = []string{}
		if err := v.Scan(i.Table, nil, func(rec *engine.Record) bool {
			if rec.Deleted {
				return true
			}
			var values []*string
			for _, c := range rec.Row.Columns() {
				var text *string
				if c.State == engine.Present {
					s := string(c.Value)
					text = &s
				}
				values = append(values, text)
			}
			rows[i.Table] = append(rows[i.Table], Row(values...))
			return true
		}); err != nil {
			r.Fatal(err)
		}
	}
	return rows
}

// difference says in what two contents differ; empty if in nothing.
func difference(got, want Rows) string {
	for _, t := range slices.Collect(maps.Keys(want)) {
		g, w := slices.Sorted(slices.Values(got[t])), slices.Sorted(slices.Values(want[t]))
		for _, row := range w {
			if _, ok := slices.BinarySearch(g, row); !ok {
				return fmt.Sprintf("%s has %d rows of %d, and lacks %s", t, len(g), len(w), row)
			}
		}
		if len(g) != len(w) {
			return fmt.Sprintf("%s has %d rows, the upstream %d", t, len(g), len(w))
		}
	}
	for t, rows := range got {
		if _, ok := want[t]; !ok && len(rows) > 0 {
			return fmt.Sprintf("%s has %d rows and is not upstream", t, len(rows))
		}
	}
	return ""
}

// converge waits until the engine holds what the upstream does.
func (r *run) converge(what string) {
	r.Helper()
	want := r.fixture.Truth()
	diff := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		changed := r.engine.Changed()
		if r.Failed() {
			r.FailNow()
		}
		if r.engine.Status().Ready {
			if diff = difference(r.state(), want); diff == "" {
				return
			}
		} else {
			diff = fmt.Sprintf("the source is not ready: %+v", r.engine.Status().Sources)
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		}
	}
	r.Fatalf("%s: %s", what, diff)
}

func (r *run) baselines() int { return r.engine.Status().Sources[0].Baselines }

// cursors returns the cursor vector.
func (r *run) cursors() engine.Cursors {
	v := r.engine.View()
	defer v.Close()
	return maps.Clone(v.Cursors())
}

func testBaselineAndStream(t testing.TB, f Fixture) {
	f.Mutate(200)
	r := start(t, f)
	r.converge("after the baseline")
	for range 5 {
		f.Mutate(100)
		r.converge("after changes")
	}
	f.Mutate(5000)
	r.converge("after many changes at once")
	if n := r.baselines(); n != 1 {
		t.Errorf("%d baselines were taken, want one", n)
	}
	info := r.checked.lastInfo()
	if len(info.Tables) == 0 {
		t.Error("Init discovered no tables")
	}
	for _, s := range info.Tables {
		if s.Table.Name == "" || len(s.Columns) == 0 || len(s.KeyColumns()) == 0 {
			t.Errorf("table %s has %d columns and %d of its key", s.Table, len(s.Columns), len(s.KeyColumns()))
		}
	}
}

// testChangesDuringBaseline: the seam between baseline and stream loses nothing.
func testChangesDuringBaseline(t testing.TB, f Fixture) {
	f.Mutate(2000)
	r := start(t, f)
	for i := 0; r.baselines() == 0 && i < 3000; i++ {
		f.Mutate(5) // few, so that later ones do not hide that one was lost
		time.Sleep(time.Millisecond)
	}
	r.converge("after changes during the baseline")
}

// testResumes breaks the source off at various moments: it goes on from its
// cursors, without a baseline if it says so.
func testResumes(t testing.TB, f Fixture) {
	f.Mutate(100)
	r := start(t, f)
	r.converge("after the baseline")
	for i := range 6 {
		f.Mutate(50)
		time.Sleep(time.Duration(i*7) * time.Millisecond)
		r.checked.interrupt()
		f.Mutate(50)
		r.converge("after an interruption")
	}
	if n := r.baselines(); r.checked.SupportsResume() && n != 1 {
		t.Errorf("%d baselines were taken of a source that supports resuming, want one", n)
	}
}

func testPause(t testing.TB, f Fixture) {
	f.Mutate(100)
	r := start(t, f)
	r.converge("after the baseline")
	for range 3 {
		f.Source.Pause()
		f.Source.Pause()                   // does nothing more
		time.Sleep(200 * time.Millisecond) // what was under way may still arrive
		before := r.checked.delivered()
		f.Mutate(100)
		time.Sleep(300 * time.Millisecond)
		if n := r.checked.delivered() - before; n != 0 {
			t.Errorf("%d deliveries while the source was paused", n)
		}
		f.Source.Resume()
		f.Source.Resume()
		r.converge("after Resume")
	}
	if n := r.baselines(); n != 1 {
		t.Errorf("%d baselines were taken, want one: Resume needs no snapshot", n)
	}
	f.Source.Pause()
	r.stop() // a paused source ends too
	f.Source.Resume()
}

func testAck(t testing.TB, f Fixture) {
	f.Mutate(50)
	r := start(t, f)
	r.converge("after the baseline")
	first := r.cursors()
	f.Mutate(50)
	r.converge("after changes")
	for key, c := range r.cursors() {
		at := f.Source.LastAckedPosition(key.Log)
		for end := time.Now().Add(patience / 10); f.Source.ComparePositions(at, c.Position) != 0; at = f.Source.LastAckedPosition(key.Log) {
			if time.Now().After(end) {
				t.Errorf("log %s: acknowledged at %q, applied at %q", key.Log, at, c.Position)
				break
			}
			time.Sleep(time.Millisecond) // what is committed is seen before it is acknowledged
			c = r.cursors()[key]
		}
		f.Source.Ack(first[key], false)
		if now := f.Source.LastAckedPosition(key.Log); f.Source.ComparePositions(now, at) < 0 {
			t.Errorf("log %s: the acknowledged position went back from %q to %q", key.Log, at, now)
		}
	}
	if p := f.Source.LastAckedPosition(engine.LogID{Origin: "nobody", Epoch: 1}); p != "" {
		t.Errorf("an unknown log has been acknowledged at %q", p)
	}
	f.Mutate(50)
	r.converge("after an old acknowledgement")
}

func testPositions(t testing.TB, f Fixture) {
	f.Mutate(50)
	r := start(t, f)
	r.converge("after the baseline")
	f.Mutate(100)
	r.converge("after changes")
	s := f.Source
	seen := r.checked.positions()
	if len(seen) == 0 {
		t.Fatal("no position has been delivered")
	}
	for _, p := range seen {
		back, err := s.PositionFromString(s.PositionToString(p))
		if err != nil || s.ComparePositions(back, p) != 0 {
			t.Errorf("position %q came back from %q as %q, %v", p, s.PositionToString(p), back, err)
		}
		if s.ComparePositions("", p) >= 0 || s.ComparePositions(p, "") <= 0 || s.ComparePositions(p, p) != 0 {
			t.Errorf("position %q is not above the empty one, or not equal to itself", p)
		}
	}
	if p, err := s.PositionFromString("\x00 no position"); err == nil {
		t.Errorf("what is no position was read as %q", p)
	}
	switch o := s.OrderingGuarantee(); o {
	case engine.TotalOrder, engine.PerLogOrder, engine.PerKeyOrder, engine.UnorderedInput:
	default:
		t.Errorf("ordering %q is none of those there are", o)
	}
}

// testEnds: the source ends with its context, at any moment, and leaves no
// goroutine behind.
func testEnds(t testing.TB, f Fixture) {
	f.Mutate(500)
	_ = f.Truth()
	before := goleak.IgnoreCurrent()
	for _, after := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond, 300 * time.Millisecond} {
		r := start(t, f)
		time.Sleep(after)
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("ended %v after its context, which came %v after the start", took, after)
		}
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

func testLost(t testing.TB, f Fixture) {
	if f.Lose == nil {
		t.Skip("nothing that this source needs can be lost")
	}
	f.Mutate(100)
	r := start(t, f)
	r.converge("after the baseline")
	f.Lose()
	f.Mutate(50)
	r.checked.interrupt()
	r.converge("after what was needed had been lost")
	if n := r.baselines(); n < 2 {
		t.Errorf("%d baselines were taken, want another one", n)
	}
	f.Mutate(50)
	r.converge("after changes that follow")
}
