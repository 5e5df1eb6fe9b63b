package sim

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

var (
	seedFlag  = flag.Uint64("sim.seed", 0, "run this seed alone")
	seedsFlag = flag.Int("sim.seeds", 30, "how many seeds to run")
	firstFlag = flag.Uint64("sim.first", 1, "the first of them")
	timeFlag  = flag.Duration("sim.time", 0, "for how long to run seeds; 0: until all have run")
	traceFlag = flag.String("sim.trace", "", "a file for the trace of sim.seed")
)

// of returns what a seed's plan may hold: every third has a node that reads some
// tables only, and not always the same; of the others some have nodes with one cursor
// for all logs of a peer, and some a conflict policy.
func of(seed uint64) options {
	o := options{scopes: seed%3 == 0}
	switch {
	case o.scopes:
	case seed%5 == 0:
		o.basic = true
	case seed%5 == 1:
		o.policy = engine.OriginOwnsKey
	case seed%5 == 2:
		o.policy = engine.NamespaceByOrigin
	}
	return o
}

// plant is a bug that is put in on purpose.
type plant string

const (
	noPlant    plant = ""
	lateSync   plant = "ack before durable"
	originMark plant = "dedup by a mark per origin"
	noFence    plant = "older epoch after a newer one"
	anyScope   plant = "cursor carried across a scope"
	oneOfOther plant = "a log's cursor made of the shared one"
	noPolicy   plant = "a node without the conflict policy of the others"
	earlyEpoch plant = "new epoch before the peers are met"
	// of trees
	headFloor plant = "floor taken from the head"
	forgetful plant = "tombstones forgotten early"
	headAcks  plant = "acks of the log's head, whatever has come of it"
)

func TestSim(t *testing.T) {
	t.Parallel()
	if *seedFlag != 0 {
		w := execute(newPlan(*seedFlag, of(*seedFlag)), noPlant, true)
		if *traceFlag != "" {
			if err := os.WriteFile(*traceFlag, w.trace, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if w.failed != nil {
			report(t, w.plan, w.failed)
		}
		return
	}
	began := realNow()
	n := 0
	var steps int
	var simulated time.Duration
	var frames int64
	kinds := map[string]int{}
	for i := range *seedsFlag {
		if *timeFlag > 0 && realNow().Sub(began) > *timeFlag {
			break
		}
		w := execute(newPlan(*firstFlag+uint64(i), of(*firstFlag+uint64(i))), noPlant, false)
		if w.failed != nil {
			report(t, w.plan, w.failed)
			return
		}
		n++
		for k, c := range w.kinds {
			kinds[k] += c
		}
		steps, frames, simulated = steps+w.steps, frames+w.frames, simulated+w.now
	}
	took := realNow().Sub(began)
	t.Logf("%d seeds in %s: %.1f a second; %d events, %d frames, %s simulated", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), steps, frames, simulated.Round(time.Second))
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		t.Logf("%9d %s", kinds[k], k)
	}
}

// TestPlanted puts in bugs: each is found.
func TestPlanted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		plant plant
		kind  string // of the failure
		plan  func(seed uint64) *Plan
	}{
		{lateSync, "told", func(seed uint64) *Plan { return newPlan(seed, options{}) }},
		{originMark, "state", func(seed uint64) *Plan { return newPlan(seed, options{}) }},
		{anyScope, "state", func(seed uint64) *Plan { return newPlan(seed, options{scopes: true}) }},
		{noFence, "epoch", comesBack},
		{oneOfOther, "stuck", func(seed uint64) *Plan { return newPlan(seed, options{basic: true, nodes: 6}) }},
		{noPolicy, "policy", func(seed uint64) *Plan { return newPlan(seed, options{policy: engine.OriginOwnsKey}) }},
		{earlyEpoch, "kept", restored},
	} {
		t.Run(string(c.plant), func(t *testing.T) {
			t.Parallel()
			if w := execute(c.plan(1), noPlant, false); w.failed != nil {
				t.Fatalf("without the bug: %v", w.failed)
			}
			const seeds = 40
			for seed := uint64(1); seed <= seeds; seed++ {
				w := execute(c.plan(seed), c.plant, false)
				if w.failed == nil {
					continue
				}
				if f := w.failed.(*failure); f.kind != c.kind {
					t.Errorf("seed %d: it is found as %v; want a failure of kind %q", seed, f, c.kind)
				}
				t.Logf("found by seed %d: %v", seed, w.failed)
				return
			}
			t.Errorf("not found by %d seeds", seeds)
		})
	}
}

// TestFound runs seeds that have found something once.
func TestFound(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{
		1215,  // a node that came back read its own log from a peer that has only some of its tables
		6260,  // shared logs: a path that had come to lead in a ring was kept, and nobody was sent the log
		10565, // the same
		8514,  // a table that a baseline was to bring was offered on, though the baseline could not be taken in
		25391, // after a baseline from an earlier place, a state delta from the time of what could not be taken in
		50613, // a peer had fewer tables of a log when it answered than when it was asked, and the others were said to have come along
		23916, // a baseline could not be taken in, and was not asked for again where its log was read by then
		14585, // a shared log let go of an entry before it was sent, and nothing told the reader
		6717,  // a baseline of a log lacked a row in whose place another log's had come
	} {
		if w := execute(newPlan(seed, of(seed)), noPlant, false); w.failed != nil {
			report(t, w.plan, w.failed)
		}
	}
}

// TestReplay checks that a seed does the same every time.
func TestReplay(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 5; seed++ {
		a, b := execute(newPlan(seed, of(seed)), noPlant, true), execute(newPlan(seed, of(seed)), noPlant, true)
		if !bytes.Equal(a.trace, b.trace) {
			i := 0
			for i < min(len(a.trace), len(b.trace)) && a.trace[i] == b.trace[i] {
				i++
			}
			t.Fatalf("seed %d: the traces differ:\n%s\n%s", seed, a.trace[max(0, i-500):min(len(a.trace), i+200)], b.trace[max(0, i-200):min(len(b.trace), i+200)])
		}
	}
}

// report prints a failing plan, made as small as can be in a while.
func report(t *testing.T, p *Plan, err error) {
	t.Helper()
	small, kept := shrink(p, noPlant, err)
	w := execute(small, noPlant, true)
	t.Errorf("seed %d: %v\nsmallest (%d of %d steps), which fails with: %v\n%s\n%s\nreplay: go test ./test/sim -run %s -sim.seed=%d", p.Seed, err, kept, len(p.Steps), w.failed, small, tail(w.trace, 60), t.Name(), p.Seed)
}

func tail(trace []byte, lines int) string {
	var some []byte
	for line := range bytes.Lines(trace) {
		if !bytes.HasSuffix(line, []byte(" advert\n")) && !bytes.Contains(line, []byte(" head ")) { // they only say that a node lives
			some = append(some, line...)
		}
	}
	trace = some
	at := len(trace)
	for ; at > 0 && lines >= 0; at-- {
		if trace[at-1] == '\n' {
			lines--
		}
	}
	return fmt.Sprintf("trace, the end of it:\n%s", trace[at:])
}

// realNow is the time, also where the tests' clock stands still.
func realNow() time.Time {
	var tv syscall.Timeval
	must(syscall.Gettimeofday(&tv))
	return time.Unix(tv.Unix())
}

// shrink leaves out of a plan what it fails without in the same way, within a time.
func shrink(p *Plan, pl plant, err error) (*Plan, int) {
	var as *failure
	errors.As(err, &as)
	fails := func(p *Plan) bool {
		var f *failure
		return errors.As(execute(p, pl, false).failed, &f) && f.kind == as.kind
	}
	deadline := realNow().Add(20 * time.Second)
	best := *p
	for size := max(1, len(best.Steps)/2); size >= 1; {
		shrunk := false
		for at := 0; at < len(best.Steps) && realNow().Before(deadline); {
			try := best
			try.Steps = append(append([]Step{}, best.Steps[:at]...), best.Steps[min(at+size, len(best.Steps)):]...)
			if fails(&try) {
				best, shrunk = try, true
			} else {
				at += size
			}
		}
		if size == 1 && !shrunk || realNow().After(deadline) {
			break
		}
		size = max(1, size/2)
	}
	return &best, len(best.Steps)
}
