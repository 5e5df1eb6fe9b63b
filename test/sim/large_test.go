package sim

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// Large trees: the same nodes and faults as in small ones, with leaves that write now
// and then for as long as the run lasts. What is checked is the same; what would cost
// the square of the leaves is checked of those that something has happened to.

var (
	leavesFlag   = flag.Int("sim.leaves", 300, "leaves of the large tree")
	branchesFlag = flag.Int("sim.branches", 6, "branches of the large tree, of two relays each")
	rootsFlag    = flag.Int("sim.roots", 2, "roots of the large tree")
	minutesFlag  = flag.Int("sim.minutes", 5, "simulated minutes of the large tree")
)

// largePlan is what a plan of a large tree has beside that of a small one.
type largePlan struct {
	Every    time.Duration // a leaf writes so often, about
	LeafTick time.Duration // of the sessions of leaves
	Tick     time.Duration // of other sessions
	watch    func(*world)
}

// faultsAnHour is how often what happens to one node, and to one of its links up.
var faultsAnHour = map[string]struct{ leaf, above float64 }{
	"cut": {0.1, 4}, "halfopen": {0.05, 2}, "partition": {0.1, 2}, "crash": {0.3, 2}, "dies": {0.2, 2}, "full": {0.1, 1},
	"clock": {0.2, 2}, "slow": {0.05, 2}, "stall": {0.02, 2}, "move": {0.05, 0}, "leave": {0.02, 0},
}

// newLarge makes a plan of a large tree.
func newLarge(seed uint64, leaves, branches, roots int, length time.Duration) *Plan {
	r := rand.New(rand.NewPCG(seed, 0x1a))
	p := &Plan{
		Seed: seed, Length: length, Journal: 1 << 30, Retain: 1 << 30, Buffer: 8 << 20, MinWindow: 32 << 10, BetterFor: 30 * time.Second, SparedFor: 3 * time.Second,
		Tree: &TreePlan{
			Window: 5 * time.Second, Retention: 24 * time.Hour, Readers: true, Whole: true,
			Large: &largePlan{Every: 2 * time.Minute, LeafTick: 20 * time.Second, Tick: 2 * time.Second},
		},
	}
	t := p.Tree
	add := func(s NodeSpec) int {
		s.Durable = true
		p.Nodes = append(p.Nodes, s)
		return len(p.Nodes) - 1
	}
	var above []int
	for range roots {
		above = append(above, add(NodeSpec{Role: aRoot}))
	}
	for i := range branches {
		s := NodeSpec{Role: aRelay, Branch: fmt.Sprint("b", i), Parents: above}
		t.Branches = append(t.Branches, []int{add(s), add(s)})
	}
	first := len(p.Nodes)
	for i := range leaves {
		s := NodeSpec{Role: aLeaf, Writes: true, Parents: t.Branches[i%branches]}
		if r.IntN(10) == 0 {
			s.From = time.Duration(r.Int64N(int64(length) * 9 / 10)) // it joins
		}
		add(s)
	}
	secs := func(most int) time.Duration { return time.Duration(r.Int64N(int64(most) * int64(time.Second))) }
	for _, kind := range slices.Sorted(maps.Keys(faultsAnHour)) {
		rate := faultsAnHour[kind]
		for i := range p.Nodes {
			n := rate.leaf
			if i < first {
				n = rate.above
			}
			for n *= length.Hours(); n > 0; n-- {
				if n < 1 && r.Float64() >= n {
					break
				}
				s := Step{Kind: kind, At: time.Duration(r.Int64N(int64(length))), Node: i, Other: -1, Keep: r.IntN(2) == 0}
				switch kind {
				case "cut", "halfopen", "partition", "slow":
					ps := p.Nodes[i].Parents
					if len(ps) == 0 {
						continue
					}
					s.Other, s.For, s.N = ps[r.IntN(len(ps))], secs(60), 20+r.IntN(400)
				case "crash":
					s.For = secs(120)
				case "dies":
					s.N = 1 + r.IntN(4)
				case "full":
					s.For = secs(10)
				case "clock":
					s.For = time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour
				case "stall":
					s.For, s.N = secs(20), 10+r.IntN(1000)
				case "move":
					s.N = r.IntN(branches)
				}
				p.Steps = append(p.Steps, s)
			}
		}
	}
	slices.SortStableFunc(p.Steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return p
}

// beginLoad makes the leaves of a large tree write.
func (m *treeModel) beginLoad() {
	l := m.w.plan.Tree.Large
	if l == nil {
		return
	}
	for _, n := range m.w.nodes {
		if !n.leaf() {
			continue
		}
		var again func()
		again = func() {
			if m.w.quiet || n.role.gone {
				return
			}
			n.write(m.ops(n))
			m.w.after(m.w.some(2*l.Every), again)
		}
		m.w.after(m.w.some(2*l.Every), again)
	}
}

// ops is what a leaf of a large tree writes at once: rows of its own, counters that all
// leaves count, rows that several leaves write.
func (m *treeModel) ops(n *node) (all []Op) {
	r := m.w.rng
	for count := 1 + max(0, r.IntN(8)-5); count > 0; count-- {
		m.num++
		op := Op{Kind: "put", Table: treeTables[r.IntN(3)], Key: fmt.Sprint("k", r.IntN(8)), N: m.num}
		if r.IntN(12) == 0 {
			op.Table, op.Key = "shared", fmt.Sprint("k", r.IntN(1+len(m.w.nodes)/8))
		}
		if op.Table == "hits" {
			op.Kind, op.N = "add", 1+r.IntN(100)
		}
		if r.IntN(8) == 0 {
			op.Kind = "delete"
		}
		all = append(all, op)
	}
	return all
}

// touch notes that something has come to a node, or been written there.
func (n *node) touch() {
	if n.member == nil || !n.leaf() {
		return
	}
	n.role.touched = true
	if t := n.w.tree; !n.role.dirty {
		n.role.dirty = true
		t.dirty = append(t.dirty, n)
	}
}

// tidyEvery is how often a node looks after its logs.
func (n *node) tidyEvery() time.Duration {
	switch t := n.w.plan.Tree; {
	case t == nil || t.Large == nil:
		return time.Second
	case n.leaf():
		return t.Large.LeafTick
	}
	return 2 * n.w.plan.Tree.Large.Tick
}

// tidied reports whether there is nothing to look after: nothing has come since the last
// time.
func (n *node) tidied() bool {
	if t := n.w.plan.Tree; t == nil || t.Large == nil || !n.leaf() {
		return false
	}
	was := n.role.touched
	n.role.touched = false
	return !was
}

// checkLarge checks what holds at any time, of what has changed.
func (m *treeModel) checkLarge(l *largePlan) {
	for _, n := range m.dirty {
		n.role.dirty = false
		if m.w.failed == nil && n.up {
			m.checkNews(n)
		}
	}
	m.dirty = m.dirty[:0]
	if (m.w.now/time.Second)%10 > 0 {
		return
	}
	for _, n := range m.w.nodes {
		if n.relays() && m.w.failed == nil {
			m.checkDegree(n)
		}
	}
}

// checkNews checks that those above have what a leaf says that they have, and has not
// said before: see checkHeld. A node that has shown a row does not go back behind it.
func (m *treeModel) checkNews(n *node) {
	l := m.w.model.newest(n.origin())
	if l == nil || m.lost[l.id] {
		return
	}
	if n.role.of != l.id {
		n.role.of, n.role.proved = l.id, map[string]int{}
	}
	holders, _ := n.member.leaf.Holders(l.id)
	for _, h := range slices.Concat(m.w.roots, n.parents()) {
		at := holders[h.disk.holder]
		if at == "" || h.disk.forgotten[l.id] {
			continue
		}
		have := n.role.proved[h.disk.holder]
		if have >= len(l.txs) || engine.CompareNumber(l.txs[have].pos, at) > 0 {
			continue
		}
		v := h.disk.Memory.View()
		for ; have < len(l.txs) && engine.CompareNumber(l.txs[have].pos, at) <= 0; have++ {
			for _, x := range l.txs[have].writes {
				m.checkHas(n, h, v, at, x)
			}
		}
		v.Close()
		n.role.proved[h.disk.holder] = have
	}
}

// checkHas checks that a holder has a write of a leaf, or what came after.
func (m *treeModel) checkHas(n, h *node, v engine.View, at engine.Position, x *write) {
	if x.op == engine.OpTruncate {
		return
	}
	k := cell{x.table, x.key}
	rec, ok, err := v.Get(k.table, []byte(k.key))
	must(err)
	if ok && rec.Stamp.Compare(x.stamp) >= 0 {
		return
	}
	for _, o := range slices.Backward(m.w.model.writes[k]) {
		switch {
		case o.stamp.Compare(x.stamp) < 0:
		case o.log.Origin != x.log.Origin:
			if o.stamp != x.stamp && (!ok || h.disk.forgot[o.log.Origin]) {
				return // another leaf's, and that was forgotten
			}
		case o.op == engine.OpDelete && (!ok || rec.Deleted):
			return
		}
	}
	for _, o := range m.w.model.truncs[x.table] {
		if o.log.Origin == x.log.Origin && o.stamp.Compare(x.stamp) >= 0 && (!ok || rec.Deleted) {
			return
		}
	}
	m.w.fail("held", "leaf %s says that %s has its log up to %s, and that has no %v by %s; it has %s", n.id, h.disk.holder, at, k, x.stamp, rec.Stamp)
}

// behind says which leaf has yet to leave, and of a large tree, what a node has yet to
// read; empty if nothing.
func (m *treeModel) behind() string {
	for _, n := range m.w.nodes {
		if n.role.leaving && !n.role.gone {
			return fmt.Sprintf("leaf %s has yet to leave", n.id)
		}
		if !n.relays() || m.w.plan.Tree.Large == nil {
			continue
		}
		for _, p := range n.peers {
			switch {
			case p.idle:
				return fmt.Sprintf("node %s has yet to forget %s", n.id, p.to.id)
			case p.to.leaf():
				l := m.w.model.newest(p.to.origin())
				if l == nil {
					return fmt.Sprintf("leaf %s has yet to begin", p.to.id)
				}
				if at := n.disk.cursors[engine.CursorKey{Log: l.id}].Position; at != l.head() {
					return fmt.Sprintf("node %s is at %q of log %s, whose head is %q", n.id, at, l.id, l.head())
				}
			default:
				log := p.to.member.relay.Log()
				v := p.to.disk.Memory.View()
				info, _ := v.Log(log)
				v.Close()
				if at := n.disk.cursors[engine.CursorKey{Log: log}].Position; at != info.Head {
					return fmt.Sprintf("node %s is at %q of log %s, whose head is %q", n.id, at, log, info.Head)
				}
			}
		}
	}
	return ""
}

// counters checks what the roots count: what all leaves have added since they began, or
// have deleted the counter.
func (m *treeModel) counters() (counters, shares int) {
	type sum struct{ total, shares int }
	want := map[string]*sum{}
	hits := tableOf("hits")
	for k, x := range m.wanted() {
		if k.table != hits {
			continue
		}
		parts, err := engine.DecodeKey([]byte(k.key))
		must(err)
		name := string(parts[0])
		if want[name] == nil {
			want[name] = &sum{}
		}
		want[name].total += valueOf(rowOf(x.row))
		want[name].shares++
	}
	for _, n := range m.w.roots {
		v := n.disk.Memory.View()
		counters, shares = 0, 0
		must(relay.Counters(v, hits, nil, []string{"v"}, func(c relay.Counter) bool {
			parts, err := engine.DecodeKey(c.Key)
			must(err)
			counters, shares = counters+1, shares+len(c.Shares)
			if s := want[string(parts[0])]; s == nil || fmt.Sprint(s.total) != c.Totals[0] || s.shares != len(c.Shares) {
				m.w.fail("counters", "root %s counts %s of %q, of %d leaves; it is %v", n.id, c.Totals[0], parts[0], len(c.Shares), s)
			}
			return true
		}))
		v.Close()
		if counters != len(want) {
			m.w.fail("counters", "root %s has %d counters of %d", n.id, counters, len(want))
		}
	}
	return counters, shares
}

// cpu is the time that the process has taken of all cores, and the most memory that it
// has had, in bytes.
func cpu() (time.Duration, int64) {
	var u syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Maxrss << 10
}

// TestLarge runs a relay tree of some size for some time. The flags make it larger.
func TestLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, _ := cpu()
		minutes := *minutesFlag
		if testing.Short() {
			minutes = 1
		}
		p := newLarge(max(*seedFlag, 1), *leavesFlag, *branchesFlag, *rootsFlag, time.Duration(minutes)*time.Minute)
		last := time.Duration(0)
		p.Tree.Large.watch = func(w *world) {
			if now, most := cpu(); w.now%time.Minute == 0 {
				t.Logf("%s: %s, %d events, %d frames, %d MB", w.now, (now - began - last).Round(time.Millisecond), w.steps, w.frames, most>>20)
				last = now - began
			}
		}
		w := execute(p, noPlant, *traceFlag != "")
		if *traceFlag != "" {
			must(os.WriteFile(*traceFlag, w.trace, 0o644))
		}
		if w.failed != nil {
			t.Fatal(w.failed)
		}
		counters, shares := w.tree.counters()
		if w.failed != nil {
			t.Fatal(w.failed)
		}
		now, most := cpu()
		writes, txs := 0, 0
		for _, l := range w.model.logs {
			txs += len(l.txs)
			for _, tx := range l.txs {
				writes += len(tx.writes)
			}
		}
		t.Logf("%d leaves, %d branches of 2, %d roots, %s simulated (%s of them after the faults): %s of CPU, at most %d MB",
			*leavesFlag, *branchesFlag, *rootsFlag, w.now, w.now-p.Length, (now - began).Round(time.Second), most>>20)
		t.Logf("%d events, %d frames, %d MB; %d transactions of %d changes", w.steps, w.frames, w.bytes>>20, txs, writes)
		for _, n := range w.roots {
			v := n.disk.Memory.View()
			rows, _ := w.tree.has(n)
			t.Logf("root %s: %d logs of others, %d cursors, %d rows", n.id, len(v.Logs())-1, len(v.Cursors()), strings.Count(rows, "\n")+1)
			v.Close()
		}
		t.Logf("%d counters of %d shares, all exact", counters, shares)
		late := 0
		for i := range p.Nodes {
			if p.Nodes[i].From > 0 {
				late++
			}
		}
		for _, k := range slices.Sorted(maps.Keys(w.did)) {
			t.Logf("%9d %s", w.did[k], k)
		}
		t.Logf("%9d join later", late)
		for _, k := range slices.Sorted(maps.Keys(w.kinds)) {
			t.Logf("%9d %s", w.kinds[k], k)
		}
	})
}
