package relaymodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// fault puts the obvious alternative in the place of a rule.
type fault int

const (
	none fault = iota
	// byVersion: a reader's place in a log is the newest stamp it has had of it.
	byVersion
	// restamp: a relay gives changes a stamp of its own.
	restamp
	// groupCursor: parents of one branch have one sequence, and a place in one is a
	// place in the other.
	groupCursor
	// takeHead: a parent that takes over is read from where it is now.
	takeHead
	// rootsFloor: a relay that takes up a child reads from what all roots have, not
	// from what it has itself.
	rootsFloor
	// anyRoot: a leaf lets go of what one of the roots has.
	anyRoot
	// leafMark: what is not above the newest change of its leaf is dropped.
	leafMark
	// noCovers: a baseline or snapshot deletes nothing at who takes it.
	noCovers
	// noMarks: tombstones go after a while, and nothing is remembered of them.
	noMarks
	// silentGap: a reader that has missed tombstones goes on from its place.
	silentGap
	// increments: counters are added to, and a change is what was added.
	increments
	// shareByOrigin: a leaf's share of a counter has no epoch.
	shareByOrigin
	// ackApplied: what is read is acknowledged before it is stored.
	ackApplied
	// reassignDeletes: a parent deletes the rows of a leaf that is assigned elsewhere.
	reassignDeletes
	// allFromHead: a new parent takes the state as of now.
	allFromHead
	// forgetAtOnce: a parent forgets a leaf as soon as it is assigned elsewhere.
	forgetAtOnce
	// newByFloor: a new holder starts from what it is known to have.
	newByFloor
	// spanEpochs: a flush may hold the end of one epoch of a child and the beginning of the next.
	spanEpochs
	// fuzzyBaseline: a flush may end after a baseline, before the log that goes with it.
	fuzzyBaseline
	faults
)

var faultNames = [...]string{
	"none", "byVersion", "restamp", "groupCursor", "takeHead", "rootsFloor", "anyRoot", "leafMark", "noCovers", "noMarks", "silentGap",
	"increments", "shareByOrigin", "ackApplied", "reassignDeletes", "allFromHead",
	"forgetAtOnce", "newByFloor", "spanEpochs", "fuzzyBaseline",
}

func (f fault) String() string { return faultNames[f] }

// world is one run.
type world struct {
	rng     *rand.Rand
	fault   fault
	now     int
	keys    int
	leaves  []*leaf
	nodes   []*node           // relays by level, then roots
	uppers  map[*node][]*node // who reads from a node
	groups  map[*node][][]*node
	standby map[*node]bool
	reading map[*node][]int // of each group, which of it is read by one that has a standby
	often   []int           // how often each of ops happens
	total   int             // the sum
	calm    bool            // no leaf and no relay is lost: roots start again from what relays have
	scrub   bool            // a leaf was lost: at the end, every parent is read once
	lost    bool            // a copy was lost, or given up
	err     error
	log     func(format string, args ...any) // nil, or told of what happens
}

func (w *world) tell(format string, args ...any) {
	if w.log != nil {
		w.log(format, args...)
	}
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) holders() (hs []holder) {
	for _, n := range w.nodes {
		hs = append(hs, n.holder())
	}
	return hs
}

func (w *world) roots() (hs []holder) {
	for _, n := range w.nodes {
		if n.root {
			hs = append(hs, n.holder())
		}
	}
	return hs
}

func (w *world) readers(n *node) (hs []holder) {
	for _, r := range w.uppers[n] {
		hs = append(hs, r.holder())
	}
	return hs
}

// above reports whether a holder is above a relay.
func (w *world) above(h holder, n *node) bool {
	for _, u := range w.nodes {
		if u.holder() == h {
			return u.level > n.level
		}
	}
	return false
}

func (w *world) group(n *node) []*node {
	for _, r := range w.uppers[n] {
		for _, g := range w.groups[r] {
			if slices.Contains(g, n) {
				return g
			}
		}
	}
	return nil
}

func emptyWorld(seed uint64, f fault) *world {
	r := rand.New(rand.NewPCG(seed, 6))
	return &world{
		rng: r, fault: f, keys: 1 + r.IntN(5), uppers: map[*node][]*node{}, groups: map[*node][][]*node{},
		standby: map[*node]bool{}, reading: map[*node][]int{},
	}
}

// add adds a node. It reads one parent of a branch, and has the others as
// standbys, or it reads them all.
func (w *world) add(level, branch int, root bool) *node {
	n := newNode(len(w.nodes)+1, level, branch, root)
	w.nodes = append(w.nodes, n)
	w.standby[n] = w.rng.IntN(2) == 0
	return n
}

// join makes a node read from groups of redundant parents.
func (w *world) join(n *node, groups [][]*node) {
	w.groups[n] = groups
	for _, g := range groups {
		w.reading[n] = append(w.reading[n], w.rng.IntN(len(g)))
		for _, s := range g {
			w.uppers[s] = append(w.uppers[s], n)
		}
	}
}

// newWorld makes a random world.
func newWorld(seed uint64, f fault) *world {
	w := emptyWorld(seed, f)
	r := w.rng
	branches := 1 + r.IntN(2)
	w.calm = r.IntN(3) == 0
	var groups [][]*node
	for b := range branches {
		var g []*node
		for range 1 + r.IntN(3) {
			g = append(g, w.add(1, b, false))
		}
		groups = append(groups, g)
	}
	if r.IntN(2) == 0 {
		var top []*node
		for range 1 + r.IntN(2) {
			n := w.add(2, -1, false)
			w.join(n, groups)
			top = append(top, n)
		}
		groups = [][]*node{top}
	}
	for range 1 + r.IntN(3) {
		w.join(w.add(3, -1, true), groups)
	}
	for i := range 1 + r.IntN(4) {
		w.leaves = append(w.leaves, newLeaf(i, r.IntN(branches)))
	}
	w.weigh()
	return w
}

// children are what a node reads from now.
func (w *world) children(n *node, all bool) (cs []child) {
	if n.level == 1 {
		for _, l := range w.leaves {
			cs = append(cs, l)
		}
		return cs
	}
	for i, g := range w.groups[n] {
		for j, s := range g {
			if all || !w.standby[n] || w.reading[n][i] == j {
				cs = append(cs, s)
			}
		}
	}
	return cs
}

// op is a thing that can happen, and how often it does in a thousand steps.
type op struct {
	often int
	rare  bool // a fault: in half of the worlds it does not happen, and in some it does often
	do    func(w *world, n *node, c child, l *leaf)
}

var ops = []op{
	{200, false, func(w *world, n *node, c child, l *leaf) { l.write(w) }},
	{250, false, func(w *world, n *node, c child, l *leaf) {
		if n.up {
			n.pull(w, c)
		}
	}},
	{170, false, func(w *world, n *node, c child, l *leaf) {
		if n.up {
			n.flush(w)
		}
	}},
	{120, false, func(w *world, n *node, c child, l *leaf) {
		if n.up {
			n.tell(w, c)
		}
	}},
	{80, false, func(w *world, n *node, c child, l *leaf) {
		if n.up {
			n.learn(w, c)
		}
	}},
	{40, false, func(w *world, n *node, c child, l *leaf) { l.settle(w) }},
	{25, false, func(w *world, n *node, c child, l *leaf) { n.collect(w, false) }},
	{30, true, func(w *world, n *node, c child, l *leaf) { n.collect(w, true) }},
	{25, true, func(w *world, n *node, c child, l *leaf) { // another parent is read
		if gs := w.groups[n]; len(gs) > 0 {
			i := w.rng.IntN(len(gs))
			w.reading[n][i] = w.rng.IntN(len(gs[i]))
		}
	}},
	{20, true, func(w *world, n *node, c child, l *leaf) {
		w.tell("%d: node %d crashes", w.now, n.id)
		n.crash()
	}},
	{20, true, func(w *world, n *node, c child, l *leaf) { n.up = !n.up }},
	{15, true, func(w *world, n *node, c child, l *leaf) { n.cut[c] = !n.cut[c] }},
	{6, true, func(w *world, n *node, c child, l *leaf) { l.branch = w.rng.IntN(w.branches()) }},
	{6, true, func(w *world, n *node, c child, l *leaf) {
		if n.level == 1 {
			w.forget(n)
		}
	}},
	{6, true, func(w *world, n *node, c child, l *leaf) {
		if w.calm && !n.root {
			return
		}
		w.tell("%d: node %d loses all", w.now, n.id)
		w.lost = true
		n.wipe()
	}},
	{3, true, func(w *world, n *node, c child, l *leaf) {
		w.tell("%d: leaf %d overflows at %d", w.now, l.id, l.ver)
		l.overflow(w)
	}},
	{2, true, func(w *world, n *node, c child, l *leaf) {
		if w.calm {
			return
		}
		w.tell("%d: leaf %d loses all", w.now, l.id)
		l.wipe(w)
		w.scrub = true
	}},
}

// weigh says how often each thing happens in this world.
func (w *world) weigh() {
	for _, o := range ops {
		often := o.often
		if o.rare {
			often *= []int{0, 0, 1, 5}[w.rng.IntN(4)]
		}
		w.often = append(w.often, often)
		w.total += often
	}
}

// step does one thing.
func (w *world) step() {
	w.now++
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	l := w.leaves[w.rng.IntN(len(w.leaves))]
	cs := w.children(n, false)
	c := cs[w.rng.IntN(len(cs))]
	x := w.rng.IntN(w.total)
	for i, o := range ops {
		if x -= w.often[i]; x < 0 {
			o.do(w, n, c, l)
			return
		}
	}
}

func (w *world) branches() int {
	b := 0
	for _, n := range w.nodes {
		b = max(b, n.branch+1)
	}
	return b
}

// forget makes a relay forget the leaves that it has no longer.
func (w *world) forget(n *node) {
	for _, l := range w.leaves {
		if _, ok := n.read[l]; ok && l.branch != n.branch && (n.mayForget(w, l) || w.fault == reassignDeletes || w.fault == forgetAtOnce) {
			w.tell("%d: node %d forgets leaf %d", w.now, n.id, l.id)
			w.lost = true
			n.forget(w, l)
		}
	}
}

// heal mends everything and lets the world come to rest.
func (w *world) heal() {
	for _, n := range w.nodes {
		n.up = true
		clear(n.cut)
		if n.level == 1 {
			w.forget(n)
		}
	}
	for range 8 {
		for _, n := range w.nodes {
			for _, c := range w.children(n, w.scrub) {
				for n.pull(w, c) {
				}
			}
			if n.level == 1 {
				w.forget(n)
			}
			n.flush(w)
		}
		for _, n := range slices.Backward(w.nodes) {
			for _, c := range w.children(n, true) {
				n.tell(w, c)
			}
		}
		for _, l := range w.leaves {
			l.settle(w)
		}
		for _, n := range w.nodes {
			for _, c := range w.children(n, true) {
				n.learn(w, c)
			}
		}
	}
}

// run makes a world, lets it go on for a while, heals it and checks it.
func run(seed uint64, f fault, log func(string, ...any)) error {
	w := newWorld(seed, f)
	w.log = log
	for range 50 + w.rng.IntN(500) {
		if w.step(); w.err != nil {
			return w.err
		}
	}
	w.tell("%d: all is healed", w.now)
	w.heal()
	w.check()
	return w.err
}

// check compares each root with the leaves.
func (w *world) check() {
	wiped := false
	for _, l := range w.leaves {
		wiped = wiped || l.epoch > 1
	}
	type value struct {
		st  stamp
		val int
	}
	want := map[key]value{}
	for _, l := range w.leaves {
		for k, c := range l.state {
			if k.kind == counter && l.epoch > 1 || k.kind == shared && wiped || c.del {
				continue
			}
			if have, ok := want[k]; !ok || have.st.less(c.st) {
				want[k] = value{c.st, c.val}
			}
		}
	}
	var first map[key]value
	for _, n := range w.nodes {
		if !n.root {
			continue
		}
		// What was lost together with its leaf and every parent that had it may be at
		// one root and not at another. all is what must be at each of them.
		got, all := map[key]value{}, map[key]value{}
		for k, r := range n.recs {
			if r.del {
				continue
			}
			v := value{r.st, r.val}
			if w.fault == restamp {
				v.st = stamp{}
			}
			unsure := k.kind == counter && w.leaves[k.leaf].epoch > 1 || k.kind == shared && wiped
			if !unsure || !w.lost {
				all[k] = v
			}
			if !unsure {
				got[k] = v
			}
		}
		for k, v := range want {
			if w.fault == restamp {
				v.st = stamp{}
			}
			if got[k] != v {
				w.fail("root %d: %c%d of leaf %d (epoch %d) is %v, and should be %v", n.id, k.kind, k.n, k.leaf, k.epoch, got[k], v)
			}
			delete(got, k)
		}
		for k, v := range got {
			w.fail("root %d: %c%d of leaf %d (epoch %d) is %v, and should not be there", n.id, k.kind, k.n, k.leaf, k.epoch, v)
		}
		if first == nil {
			first = all
		}
		for k := range all {
			if all[k] != first[k] {
				w.fail("root %d: %c%d of leaf %d (epoch %d) is %v, and %v at another root", n.id, k.kind, k.n, k.leaf, k.epoch, all[k], first[k])
			}
		}
		for k := range first {
			if all[k] != first[k] {
				w.fail("root %d: %c%d of leaf %d (epoch %d) is %v, and %v at another root", n.id, k.kind, k.n, k.leaf, k.epoch, all[k], first[k])
			}
		}
		if cs := len(n.cursors); cs > len(w.children(n, true)) {
			w.fail("root %d has %d cursors", n.id, cs)
		}
		w.checkCounters(n)
		w.checkAll(n)
	}
}

// checkCounters: a share is what its leaf has added in its epoch. Of a leaf that
// has lost all, the shares of earlier epochs are at least what was stable.
func (w *world) checkCounters(n *node) {
	for _, l := range w.leaves {
		for i := range w.keys {
			low, high, got := 0, 0, 0
			for e := 1; e <= l.epoch; e++ {
				stable, most := 0, 0
				for _, x := range l.ledger[life{l.id, e}] {
					if x.n == i && (x.ver <= l.safe[e] || e == l.epoch) {
						stable = x.val
					}
					if x.n == i {
						most = max(most, x.val)
					}
				}
				low, high = low+stable, high+most
			}
			for k, r := range n.recs {
				if k.kind == counter && k.n == i && k.leaf == l.id && !r.del {
					got += r.val
				}
			}
			if l.epoch == 1 && got != low || l.epoch > 1 && !l.endedEver(i) && (got < low && !w.lost || got > high) {
				w.fail("root %d: counter %d: leaf %d has added %d, and between %d and %d is right", n.id, i, l.id, got, low, high)
			}
		}
	}
}

// checkAll: of a table that is delivered as All every change came, once.
func (w *world) checkAll(n *node) {
	for st, times := range n.journal {
		if times > 1 {
			w.fail("root %d: change %v of a table delivered as All came %d times", n.id, st, times)
		}
	}
	if n.gapped {
		return
	}
	for _, l := range w.leaves {
		for st := range l.alls {
			if n.journal[st] == 0 {
				w.fail("root %d: change %v of a table delivered as All did not come, and nothing said so", n.id, st)
			}
		}
	}
}
