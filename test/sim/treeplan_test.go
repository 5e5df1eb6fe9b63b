package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// TreePlan is what a plan says of a relay tree.
type TreePlan struct {
	Branches  [][]int       // the relays that gather leaves, by branch
	Standby   bool          // of the relays of a branch one is read
	Window    time.Duration // how long a relay gathers
	Retention time.Duration // of tombstones
	Readers   bool          // relays know who reads them
	Admit     int           // sessions that a node lets begin in a second
	Whole     bool          // nothing is lost on purpose: every change of table every reaches the roots
	Large     *largePlan    // nil: a small one
}

// tickEvery is how often the session of two nodes ticks.
func (p *Plan) tickEvery(of [2]*node) time.Duration {
	switch {
	case p.Tree == nil || p.Tree.Large == nil:
		return session.HeadEvery
	case of[0].leaf() || of[1].leaf():
		return p.Tree.Large.LeafTick
	}
	return p.Tree.Large.Tick
}

// heartbeatOf is how often a leaf says that it lives to those that have nobody else to go
// to; 0 for the usual.
func (p *Plan) heartbeatOf(of [2]*node) time.Duration {
	if p.Tree == nil || p.Tree.Large == nil || !of[0].leaf() && !of[1].leaf() {
		return 0
	}
	return 2 * p.Tree.Large.LeafTick
}

// routeEvery is how often a node looks whether a log is to be read elsewhere, beside when
// something has changed.
func (p *Plan) routeEvery() time.Duration {
	if p.Tree == nil || p.Tree.Large == nil {
		return session.HeadEvery
	}
	return p.Tree.Large.LeafTick / 2
}

// treeKinds say what a tree's plan may hold.
type treeKinds struct {
	wipes  bool // nodes come back empty
	moves  bool // leaves are assigned elsewhere
	late   bool // nodes come later
	shared bool // several leaves write one row
	full   bool // the logs of leaves are too small
	leave  bool // leaves go for good
	back   bool // of the nodes that come back empty, all leaves, some have a clock that is behind: their parents know what they were
}

// kindsOf returns what the plan of a seed may hold.
func kindsOf(seed uint64) treeKinds {
	return treeKinds{wipes: seed%3 == 0, moves: seed%4 == 1, late: seed%2 == 0, shared: seed%3 == 1, full: seed%5 == 2, leave: seed%6 >= 4, back: seed%12 == 3}
}

// newTree makes a plan of a tree of a seed.
func newTree(seed uint64, k treeKinds) *Plan {
	r := rand.New(rand.NewPCG(seed, 0x7e))
	pick := func(ns ...int) int { return ns[r.IntN(len(ns))] }
	ms := func(ns ...int) time.Duration { return time.Duration(pick(ns...)) * time.Millisecond }
	secs := func(most int) time.Duration { return time.Duration(r.Int64N(int64(most) * int64(time.Second))) }
	t := &TreePlan{Standby: r.IntN(2) == 0, Window: ms(1, 100, 1000), Retention: ms(3000, 10_000, 3600_000), Readers: r.IntN(2) == 0, Whole: !k.wipes && !k.full}
	if k.shared {
		t.Retention = 24 * time.Hour // an older write of another leaf may come for as long as it is kept off
	}
	p := &Plan{
		Seed: seed, Length: time.Duration(8+r.IntN(40)) * time.Second, Journal: 1 << 30, Retain: 1 << 30,
		Buffer: int64(pick(16<<10, 256<<10, 8<<20)), MinWindow: int64(pick(2<<10, 32<<10)), BetterFor: 2 * time.Second, SparedFor: time.Second, Tree: t,
	}
	if k.full {
		p.Retain = pick(2<<10, 16<<10)
	}
	// Roots, perhaps a level between, branches, leaves.
	level := func(role, branch string, n int, parents []int) (all []int) {
		for range n {
			all = append(all, len(p.Nodes))
			s := NodeSpec{Durable: true, Role: role, Branch: branch, Parents: parents}
			if k.late && role != aRoot && r.IntN(4) == 0 || k.late && r.IntN(8) == 0 {
				s.From = secs(int(p.Length / time.Second))
			}
			p.Nodes = append(p.Nodes, s)
		}
		return all
	}
	above := level(aRoot, "", 1+r.IntN(2), nil)
	tops := [][]int{above}
	if r.IntN(3) == 0 {
		tops = nil
		for i := range 1 + r.IntN(2) {
			tops = append(tops, level(aRelay, fmt.Sprint("t", i), 1+r.IntN(2), above))
		}
	}
	for i := range 1 + r.IntN(2) {
		t.Branches = append(t.Branches, level(aRelay, fmt.Sprint("b", i), 1+r.IntN(2), tops[r.IntN(len(tops))]))
	}
	first := len(p.Nodes)
	leaves := 2 + r.IntN(6)
	for range leaves {
		level(aLeaf, "", 1, t.Branches[r.IntN(len(t.Branches))])
	}
	n := len(p.Nodes)
	for i := first; i < n; i++ {
		p.Nodes[i].Writes = true
	}
	num := 0
	for range 20 + r.IntN(120) {
		s := Step{At: time.Duration(r.Int64N(int64(p.Length))), Node: r.IntN(n), Other: -1}
		link := func() { // a node and one of its parents
			s.Node = len(p.Nodes) - 1 - r.IntN(n-len(above))
			ps := p.Nodes[s.Node].Parents
			s.Other = ps[r.IntN(len(ps))]
		}
		switch what := r.IntN(100); {
		case what < 66:
			s.Kind, s.Node = "write", first+r.IntN(leaves)
			for range pick(1, 1, 1, 2, 5, 20) {
				num++
				op := Op{Kind: "put", Table: treeTables[r.IntN(3)], Key: fmt.Sprint("k", r.IntN(8)), N: num, Size: pick(0, 0, 0, 0, 0, 300)}
				if k.shared && r.IntN(4) == 0 {
					op.Table = "shared"
				}
				if op.Table == "hits" {
					op.Kind, op.N, op.Size = "add", 1+r.IntN(100), 0
				}
				switch r.IntN(14) {
				case 0, 1, 2:
					op.Kind = "delete"
				case 3:
					if r.IntN(3) == 0 && op.Table != "hits" {
						op = Op{Kind: "truncate", Table: op.Table}
					}
				}
				s.Ops = append(s.Ops, op)
			}
		case what < 71:
			s.Kind = "cut"
			link()
		case what < 74:
			s.Kind, s.Keep = "halfopen", r.IntN(2) == 0
			link()
		case what < 79:
			s.Kind, s.For = "partition", secs(25)
			link()
		case what < 85:
			s.Kind, s.For, s.Keep = "crash", secs(10), r.IntN(2) == 0
		case what < 89:
			s.Kind, s.N, s.Keep = "dies", 1+r.IntN(4), r.IntN(2) == 0
		case what < 91:
			s.Kind, s.For = "full", secs(4)
		case what < 93 && (!k.wipes || k.back):
			s.Kind, s.For = "clock", time.Duration(r.Int64N(int64(2*time.Hour)))-time.Hour
		case what < 95:
			s.Kind, s.For, s.N = "slow", secs(10), pick(20, 100, 400)
			link()
		case what < 96:
			s.Kind, s.For, s.N = "stall", secs(8), pick(10, 100, 1000)
		case what < 98 && k.moves:
			s.Kind, s.Node, s.N = "move", first+r.IntN(leaves), r.IntN(len(t.Branches))
		case k.back:
			s.Kind, s.Node = "wipe", first+r.IntN(leaves)
		case k.wipes:
			s.Kind = "wipe"
		case k.leave:
			s.Kind, s.Node = "leave", first+r.IntN(leaves)
		default:
			s.Kind, s.For = "crash", secs(25)
		}
		p.Steps = append(p.Steps, s)
	}
	slices.SortStableFunc(p.Steps, func(a, b Step) int { return int(a.At - b.At) })
	return p
}

// executeTree runs a plan of a tree.
func (w *world) executeTree() {
	step := func() {
		w.run(w.now + time.Second)
		w.tree.check()
		if l := w.plan.Tree.Large; l != nil && l.watch != nil {
			l.watch(w)
		}
	}
	for w.failed == nil && w.now < w.plan.Length {
		step()
	}
	w.heal()
	const patience = 3 * time.Minute
	for healed := w.now; w.failed == nil; {
		step()
		d := cmp.Or(w.tree.behind(), w.tree.differs())
		if d == "" {
			break
		}
		if w.now-healed > patience {
			w.fail("stuck", "%s after everything was healed: %s", patience, d)
		}
	}
	for range 20 {
		if w.failed == nil {
			step()
		}
	}
	if w.failed == nil {
		w.tree.done()
	}
}
