package relay_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// A small tree, driven step by step: two leaves, two relays that read both, two roots
// that read both relays. Engines, relays and stores are the real ones, and nothing
// happens but what a step says.

// step is one thing that happens in a tree.
type step struct {
	kind kind
	a, b int
}

type kind int

const (
	writes    kind = iota // leaf a writes; b says what
	moves                 // node a reads what there is by link b
	passes                // acknowledgements go down, and what is stable comes up
	collects              // node a lets tombstones go; with an odd b time has passed
	crashes               // node a ends, and is started over what its disk holds
	wipes                 // node a comes back empty
	wipesLeaf             // leaf a comes back empty, once all of it has come up
	kinds
)

// often says how often steps are of a kind.
type often [kinds]int

// usual is of 20 steps.
var usual = often{writes: 7, moves: 6, passes: 2, collects: 2, crashes: 1, wipes: 1, wipesLeaf: 1}

func drawSteps(least, most int, weights often) *rapid.Generator[[]step] {
	var all []kind
	for k, c := range weights {
		all = append(all, slices.Repeat([]kind{kind(k)}, c)...)
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step { return drawStep(t, all) }), least, most)
}

func drawStep(t *rapid.T, kinds []kind) step {
	return step{rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.IntRange(0, 3).Draw(t, "a"), rapid.IntRange(0, 59).Draw(t, "b")}
}

// drawOnly draws steps in which only the first root reads, and what each step is of
// comes as often as is said.
func drawOnly(n int, weights often, links map[[2]int]int) *rapid.Generator[[]step] {
	var all []step // of moves, what is moved; of others, the kind
	for k, c := range weights {
		all = append(all, slices.Repeat([]step{{kind: kind(k), a: -1}}, c)...)
	}
	for l, c := range links {
		all = append(all, slices.Repeat([]step{{moves, l[0], l[1]}}, c)...)
	}
	slices.SortFunc(all, func(x, y step) int { return cmp.Or(int(x.kind-y.kind), x.a-y.a, x.b-y.b) })
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		s := rapid.SampledFrom(all).Draw(t, "step")
		switch s.kind {
		case moves:
			return s
		case collects:
			return step{collects, 2, 1}
		case wipes:
			return step{wipes, rapid.IntRange(0, 1).Draw(t, "relay"), 0}
		}
		return drawStep(t, []kind{s.kind})
	}), n, n)
}

// fault is a mistake that the test is to find.
type fault string

const (
	noFault    fault = ""
	noCovers   fault = "covers are not taken"
	noMarks    fault = "what tombstones have gone is forgotten"
	noEpochs   fault = "a share is of all epochs"
	oldHolder  fault = "a node that comes back empty calls itself what it was"
	earlyAcks  fault = "what has been read is acknowledged before it is in the state"
	deletesGo  fault = "a delete is not told to the recorder"
	lostCursor fault = "the cursor goes ahead of what is applied"
)

// faulty is a relay with a mistake in it.
type faulty struct {
	*relay.Reoriginate
	fault fault
}

func (f *faulty) Judge(s engine.Stamp, t engine.TableName) engine.Verdict {
	v := f.Reoriginate.Judge(s, t)
	if f.fault == noMarks {
		v.Below = false
	}
	return v
}

func (f *faulty) Covering(marks []engine.Mark) bool {
	return f.fault != noCovers && f.Reoriginate.Covering(marks)
}

func (f *faulty) Record(r *engine.Record, fresh bool) {
	if f.fault != deletesGo || !r.Deleted {
		f.Reoriginate.Record(r, fresh)
	}
}

// world is the tree.
type world struct {
	t      testing.TB
	fault  fault
	rnd    *rand.Rand
	leaves []*node
	nodes  []*treeNode // relays 0 and 1, roots 2 and 3
	clock  clock
	lives  int
	wiped  bool // some leaf has been
	short  bool // the logs of leaves hold no more than their last transaction
	// added is what each leaf has added, by epoch.
	added []map[engine.Epoch]int
	shown []map[string]sighting // of nodes
}

type treeNode struct {
	*node
	fs    *vfs.MemFS
	life  string
	feeds []*engine.Feed
}

// sighting is what a node has shown of a row.
type sighting struct {
	stamp engine.Stamp
	gone  bool
}

func newWorld(t testing.TB, f fault, seed uint64) *world {
	w := &world{t: t, fault: f, rnd: rand.New(rand.NewPCG(seed, 7)), short: seed%2 == 1}
	for i := range 2 {
		w.leaves = append(w.leaves, w.leaf(i))
		w.added = append(w.added, map[engine.Epoch]int{})
	}
	for i := range 4 {
		w.nodes = append(w.nodes, nil)
		w.shown = append(w.shown, nil)
		w.start(i, vfs.NewCrashableMem(), true)
	}
	return w
}

func (w *world) leaf(i int) *node {
	var o store.MemoryOptions
	if w.short {
		o.JournalBytes = 1
	}
	return newLeafWith(w.t, fmt.Sprintf("leaf%d", i), store.NewMemory(o), w.fault != noEpochs, nil)
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.stop()
	}
	for _, l := range w.leaves {
		l.end()
		_ = l.store.Close()
	}
}

func (n *treeNode) stop() { _ = n.store.Close() }

// start runs a node over a file system; with fresh it is another holder.
func (w *world) start(i int, fs *vfs.MemFS, fresh bool) {
	id := []string{"low0", "low1", "root0", "root1"}[i]
	st, err := store.OpenPebble(store.PebbleOptions{Dir: "/store", FS: fs, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		w.t.Fatal(err)
	}
	c := owned(w.t)
	n := &treeNode{fs: fs, node: &node{t: w.t, id: id, store: st}}
	n.Engine = engine.New(engine.Options{NodeID: id, Store: st, Logger: slog.New(slog.DiscardHandler), Conflicts: c})
	was := w.nodes[i]
	switch {
	case was == nil || fresh && w.fault != oldHolder:
		w.lives++
		n.life = fmt.Sprintf("%s@%d", id, w.lives)
		w.shown[i] = map[string]sighting{}
	default:
		n.life = was.life
		if fresh {
			w.shown[i] = map[string]sighting{}
		}
	}
	if n.relay, err = relay.New(relay.Config{
		Window: -1, Now: w.clock.now, Conflicts: c, Tables: map[engine.TableName]relay.Delivery{hits: relay.Counted},
	}); err != nil {
		w.t.Fatal(err)
	}
	rec := &faulty{Reoriginate: n.relay, fault: w.fault}
	if n.own, err = n.Record(context.Background(), "relay", rec); err != nil {
		w.t.Fatal(err)
	}
	w.nodes[i] = n
	below := w.leaves
	if i >= 2 {
		below = []*node{w.nodes[0].node, w.nodes[1].node}
	}
	for j, c := range below {
		l := &link{up: c, holder: n.life, floor: i >= 2, stable: i < 2}
		n.links = append(n.links, l)
		n.AddSource(fmt.Sprint("up", j), l, rec)
	}
	n.feeds = make([]*engine.Feed, len(n.links))
	for k := 2; i < 2 && k < len(w.nodes); k++ { // those above read the new one
		if w.nodes[k] != nil {
			w.nodes[k].links[i].up = n.node
		}
	}
	w.register()
}

// register tells relays whom they have above them.
func (w *world) register() {
	var roots []string
	for _, n := range w.nodes[min(2, len(w.nodes)):] {
		if n != nil {
			roots = append(roots, n.life)
		}
	}
	for _, n := range w.nodes[:min(2, len(w.nodes))] {
		if n != nil {
			n.relay.SetReaders(roots)
		}
	}
}

// move makes a node read by a link, and reports whether there was anything.
func (w *world) move(i, j int) (did bool, err error) {
	n := w.nodes[i]
	l := n.links[j]
	if len(l.up.Adverts()) != 1 {
		return false, nil
	}
	ctx := context.Background()
	at := func() (engine.LogID, engine.Position) {
		v := n.View()
		defer v.Close()
		for k, c := range v.Cursors() {
			if engine.MintedBy(k.Log.Origin, l.up.id) && k.Log == l.up.Adverts()[0].Log {
				return k.Log, c.Position
			}
		}
		return engine.LogID{}, ""
	}
	f := n.feeds[j]
	if f == nil || f.Err() != nil {
		if f, err = n.Open(ctx, fmt.Sprint("up", j)); err != nil {
			return false, err
		}
		n.feeds[j] = f
	}
	log, from := at()
	if log.IsZero() { // it is another than before
		return true, l.copy(ctx, f.Sink, l.up.Adverts()[0])
	}
	if w.fault == earlyAcks || w.fault == lostCursor {
		if did, err := w.mistake(l, f, log, from); did || err != nil {
			return did, err
		}
	}
	to, err := l.read(ctx, f.Sink, log, from)
	if errors.Is(err, engine.ErrReBaselineRequired) || errors.Is(err, engine.ErrGap) {
		return true, l.copy(ctx, f.Sink, l.up.Adverts()[0])
	}
	return to != from, err
}

// mistake acknowledges what has yet to be applied, or passes it over, now and then.
func (w *world) mistake(l *link, f *engine.Feed, log engine.LogID, from engine.Position) (did bool, err error) {
	head := l.up.Adverts()[0].Head
	often := 4
	if w.fault == earlyAcks {
		often = 2
	}
	if head == from || w.rnd.IntN(often) > 0 {
		return false, nil
	}
	if w.fault == earlyAcks {
		l.tell(map[string]engine.Position{l.holder: head})
		return true, nil
	}
	return false, f.Progress(context.Background(), engine.CursorKey{Log: log}, from, head, l.up.Adverts()[0].Time)
}

// settle makes all come to the roots.
func (w *world) settle() error {
	for round := 0; ; round++ {
		did := false
		for i, n := range w.nodes {
			for j := range n.links {
				d, err := w.move(i, j)
				if err != nil {
					return fmt.Errorf("%s reads %s: %w", n.id, n.links[j].up.id, err)
				}
				did = did || d
			}
		}
		if !did {
			return nil
		}
		if round > 50 {
			return errors.New("it does not settle")
		}
	}
}

// do does a step.
func (w *world) do(s step) error {
	switch s.kind {
	case writes:
		w.write(s.a%2, s.b)
	case moves:
		if _, err := w.move(s.a, s.b%2); err != nil {
			return err
		}
	case passes:
		for _, n := range w.nodes[:2] {
			for _, l := range n.links {
				l.tell(n.relay.Acks(l.up.own))
				for h, at := range l.up.has.Of() {
					n.relay.Has(l.up.own, engine.CompareBytes, h, at)
				}
			}
		}
	case collects:
		if s.b%2 == 1 {
			w.clock.ahead.Add(int64(25 * time.Hour))
		}
		if err := w.nodes[s.a].Collect(context.Background()); err != nil {
			return err
		}
	case crashes:
		n := w.nodes[s.a]
		fs := n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: s.b, RNG: w.rnd})
		n.stop()
		w.start(s.a, fs, false)
	case wipes:
		if s.a == 0 && w.wiped {
			return nil // what a leaf has lost is kept by someone
		}
		w.nodes[s.a].stop()
		w.start(s.a, vfs.NewCrashableMem(), true)
	case wipesLeaf:
		return w.wipeLeaf(s.a % 2)
	}
	return w.look()
}

func (w *world) write(i, b int) {
	l := w.leaves[i]
	switch id := b % 4; b % 15 / 3 {
	case 0:
		l.write(ingest.Delete, readings, "leaf", l.id, "id", id)
	case 1:
		if b%5 == 0 { // what it has counted ends, in all epochs, if it knows of any
			if res := l.write(ingest.Delete, hits, "page", "home"); w.added[i][l.own.Epoch] > 0 {
				clear(w.added[i])
			} else if res.Rows > 0 {
				w.t.Errorf("a share that is not there was deleted: %+v", res)
			}
			return
		}
		fallthrough
	case 2:
		l.write(ingest.Add, hits, "page", "home", "n", id+1)
		w.added[i][l.own.Epoch] += id + 1
	case 3:
		if b == 9 {
			l.write(ingest.Truncate, readings)
			return
		}
		fallthrough
	default:
		l.write(ingest.Put, readings, "leaf", l.id, "id", id, "v", b)
	}
}

func (w *world) wipeLeaf(i int) error {
	if err := w.settle(); err != nil {
		return err
	}
	w.wiped = true
	l := w.leaves[i]
	l.end()
	_ = l.store.Close()
	w.leaves[i] = w.leaf(i)
	for _, n := range w.nodes[:2] {
		n.links[i].up = w.leaves[i]
	}
	return nil
}

// look says whether a node shows a row that is older than one it has shown, or one that
// it has shown to be gone.
func (w *world) look() error {
	for i, n := range w.nodes {
		seen := w.shown[i]
		now := map[string]engine.Stamp{}
		v := n.View()
		err := v.Scan(readings, nil, func(r *engine.Record) bool {
			if !r.Deleted {
				now[string(r.Key)] = r.Stamp
			}
			return true
		})
		v.Close()
		if err != nil {
			return err
		}
		for k, at := range now {
			was, ok := seen[k]
			if c := at.Compare(was.stamp); ok && (c < 0 || c == 0 && was.gone) {
				return fmt.Errorf("%s shows %q as of %s, and has shown it as of %s (gone: %v)", n.id, k, at, was.stamp, was.gone)
			}
			seen[k] = sighting{stamp: at}
		}
		for k, was := range seen {
			if _, ok := now[k]; !ok {
				seen[k] = sighting{was.stamp, true}
			}
		}
	}
	return nil
}

// wantHits is what all have counted.
func (w *world) wantHits() (total int, shares int) {
	for _, m := range w.added {
		for _, n := range m {
			total += n
			shares++
		}
	}
	return total, shares
}

// check says what of the roots is not as it is to be when all has come.
func (w *world) check() error {
	if err := w.settle(); err != nil {
		return err
	}
	if err := w.look(); err != nil {
		return err
	}
	without := func(rows string) string { // shares are of other epochs too
		return strings.Join(slices.DeleteFunc(strings.SplitAfter(rows, "\n"), func(r string) bool { return strings.HasPrefix(r, "hits ") }), "")
	}
	var want []string
	for _, l := range w.leaves {
		want = append(want, without(l.rows()))
	}
	total, shares := w.wantHits()
	for _, n := range w.nodes {
		if got, want := without(unionOf(n.rows())), unionOf(want...); got != want {
			return fmt.Errorf("%s holds\n%s, and the leaves\n%s", n.id, got, want)
		}
	}
	for _, n := range w.nodes[2:] {
		all := n.counters()
		switch {
		case shares == 0 && len(all) == 0:
		case len(all) != 1 || all[0].Totals[0] != fmt.Sprintf("%d.00", total) && all[0].Totals[0] != fmt.Sprint(total) || len(all[0].Shares) != shares:
			return fmt.Errorf("%s counts %+v; it is %d, of %v", n.id, all, total, w.added)
		}
	}
	if a, b := w.nodes[2].rows(), w.nodes[3].rows(); a != b {
		return fmt.Errorf("the roots differ:\n%s\n%s", a, b)
	}
	return nil
}

// run does the steps of a plan.
func run(t testing.TB, f fault, steps []step) error {
	w := newWorld(t, f, uint64(len(steps)))
	defer w.close()
	for _, s := range steps {
		if err := w.do(s); err != nil {
			return fmt.Errorf("%+v: %w", s, err)
		}
	}
	return w.check()
}

// Whatever is written, crashes at either level or comes back empty, and in whatever
// order all is read: in the end both roots hold the same, to the byte, and what the
// leaves hold; what is deleted stays deleted, counters are exact; and no node ever
// shows a row that is older than one it has shown.
func TestProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		if err := run(t, noFault, drawSteps(1, 60, usual).Draw(rt, "steps")); err != nil {
			rt.Fatal(err)
		}
	})
}

// The property is one that mistakes are found by.
func TestPropertyFinds(t *testing.T) {
	t.Parallel()
	for f, steps := range map[fault]*rapid.Generator[[]step]{
		noEpochs: drawSteps(1, 60, usual), oldHolder: drawSteps(1, 60, usual), lostCursor: drawSteps(1, 60, usual), deletesGo: drawSteps(1, 60, usual),
		noCovers: drawSteps(30, 60, often{writes: 6, moves: 6, wipes: 4}),
		// One relay is slow, and the root has let tombstones go when it reads it.
		noMarks: drawOnly(80, often{writes: 5, collects: 3}, map[[2]int]int{{0, 0}: 3, {0, 1}: 3, {2, 0}: 5, {1, 0}: 1, {1, 1}: 1, {2, 1}: 1}),
		// Both relays come back empty before the root reads what it has acknowledged.
		earlyAcks: drawOnly(80, often{writes: 2, passes: 4, wipes: 2}, map[[2]int]int{{0, 0}: 3, {0, 1}: 3, {1, 0}: 3, {1, 1}: 3, {2, 0}: 1, {2, 1}: 1}),
	} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			for seed := range 400 {
				plan := steps.Example(seed)
				err := run(t, f, plan)
				if err == nil {
					continue
				}
				t.Logf("seed %d: %.300v", seed, err)
				if err := run(t, noFault, plan); err != nil {
					t.Errorf("seed %d without the mistake: %v", seed, err)
				}
				return
			}
			t.Errorf("not found in 400 plans: %s", f)
		})
	}
}
