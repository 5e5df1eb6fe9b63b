package sim

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"time"
)

// world is one run of a plan.
type world struct {
	plan    *Plan
	plant   plant
	now     time.Duration // since the start
	seq     uint64
	queue   events
	rng     *rand.Rand
	nodes   []*node
	roots   []*node // of a tree
	rootIDs []string
	conns   []*conn
	model   *model
	tree    *treeModel // nil: a mesh
	failed  error
	quiet   bool // the schedule is over, and everything is healed

	blocked map[[2]int]int // partitions between nodes, by number of events that make one
	slow    map[[2]int]time.Duration

	tracing bool
	trace   []byte
	sum     uint64 // of the trace

	frames, dataFrames, bytes int64
	dataBytes                 int64
	kinds                     map[string]int // frames
	did                       map[string]int // steps
	steps                     int
}

// epoch is the wall clock at the start of every run.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type events []event

func (q events) less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

// push adds an event to the heap.
func (q *events) push(e event) {
	*q = append(*q, e)
	all := *q
	for i := len(all) - 1; i > 0 && all.less(i, (i-1)/2); i = (i - 1) / 2 {
		all[i], all[(i-1)/2] = all[(i-1)/2], all[i]
	}
}

// pop takes the first event out.
func (q *events) pop() event {
	all := *q
	e, n := all[0], len(all)-1
	all[0], all[n] = all[n], event{}
	all = all[:n]
	for i := 0; ; {
		next := 2*i + 1
		if next+1 < n && all.less(next+1, next) {
			next++
		}
		if next >= n || !all.less(next, i) {
			break
		}
		all[i], all[next] = all[next], all[i]
		i = next
	}
	*q = all
	return e
}

func (w *world) clock() time.Time { return epoch.Add(w.now) }

// after does something later.
func (w *world) after(d time.Duration, do func()) {
	w.seq++
	w.queue.push(event{w.now + max(d, 0), w.seq, do})
}

// some returns a random time up to d.
func (w *world) some(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

// run lets events happen until a time, or a failure.
func (w *world) run(until time.Duration) {
	for w.failed == nil && len(w.queue) > 0 && w.queue[0].at <= until {
		e := w.queue.pop()
		w.now = e.at
		w.steps++
		e.do()
	}
	w.now = max(w.now, until)
}

// fail ends the run. The first failure counts.
func (w *world) fail(kind, format string, args ...any) {
	if w.failed == nil {
		w.failed = &failure{kind, w.now, fmt.Sprintf(format, args...)}
		w.tracef("FAILED %v", w.failed)
	}
}

// failure is a broken invariant.
type failure struct {
	kind string
	at   time.Duration
	text string
}

func (f *failure) Error() string { return fmt.Sprintf("%s at %s: %s", f.kind, f.at, f.text) }

// tracef notes what happens.
func (w *world) tracef(format string, args ...any) {
	if !w.tracing {
		return
	}
	w.trace = fmt.Appendf(w.trace, "%10.6f ", w.now.Seconds())
	w.trace = fmt.Appendf(w.trace, format, args...)
	w.trace = append(w.trace, '\n')
}

var quiet = slog.New(slog.DiscardHandler)

func hash(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return h.Sum64()
}
