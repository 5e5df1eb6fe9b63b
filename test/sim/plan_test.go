package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Plan is all that a run does, but for the small delays, which come from its seed.
type Plan struct {
	Seed      uint64
	Nodes     []NodeSpec
	Edges     [][2]int
	Steps     []Step
	Length    time.Duration // of the schedule; then everything is healed
	Journal   int           // bytes of logs a store keeps
	Retain    int           // bytes of logs an engine keeps
	Buffer    int64
	MinWindow int64
	BetterFor time.Duration
	SparedFor time.Duration
	Policy    engine.ConflictPolicy // of the shared table
	Tree      *TreePlan             // nil: a mesh

	conns int
}

// owner is the node that owns a key of the shared table, where keys have owners.
func (p *Plan) owner(key int) string { return fmt.Sprint("n", key%len(p.Nodes)) }

// NodeSpec is a node.
type NodeSpec struct {
	Writes  bool
	Durable bool
	Tables  []string // that it reads; nil: all
	Basic   bool     // it has one cursor for all logs of a peer
	// of a tree
	Role    string
	Branch  string // of relays that carry the same
	Parents []int
	From    time.Duration // when it is there
}

// Step is one thing that happens.
type Step struct {
	At    time.Duration
	Kind  string
	Node  int
	Other int
	For   time.Duration
	N     int
	Keep  bool
	Ops   []Op
}

// Op is one operation of a transaction.
type Op struct {
	Kind, Table, Key string
	N, Size          int
}

func (o *Op) value() string {
	s := fmt.Sprintf("%d.", o.N)
	if o.Size > 0 {
		s += strings.Repeat("x", o.Size)
	}
	return s
}

func (s Step) String() string {
	out := fmt.Sprintf("%9.3f %-9s n%d", s.At.Seconds(), s.Kind, s.Node)
	if s.Other >= 0 {
		out += fmt.Sprintf(" n%d", s.Other)
	}
	if s.For != 0 {
		out += fmt.Sprintf(" for %s", s.For)
	}
	if s.N != 0 {
		out += fmt.Sprintf(" n=%d", s.N)
	}
	if s.Keep {
		out += " kept"
	}
	for _, o := range s.Ops {
		out += fmt.Sprintf(" %s %s/%s", o.Kind, o.Table, o.Key)
		if o.Kind == "put" {
			out += fmt.Sprintf("=%d", o.N)
		}
		if o.Size > 0 {
			out += fmt.Sprintf("+%d", o.Size)
		}
	}
	return out
}

func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s, journal %d, retain %d, buffer %d, window %d, better %s, spared %s, policy %q\n", p.Seed, p.Length, p.Journal, p.Retain, p.Buffer, p.MinWindow, p.BetterFor, p.SparedFor, p.Policy)
	if t := p.Tree; t != nil {
		fmt.Fprintf(&b, "tree: branches %v, standby %t, window %s, retention %s, readers %t\n", t.Branches, t.Standby, t.Window, t.Retention, t.Readers)
	}
	for i, n := range p.Nodes {
		if n.Role != "" {
			fmt.Fprintf(&b, "n%d %s %s parents %v from %s\n", i, n.Role, n.Branch, n.Parents, n.From)
			continue
		}
		fmt.Fprintf(&b, "n%d writes=%t durable=%t tables=%v basic=%t\n", i, n.Writes, n.Durable, n.Tables, n.Basic)
	}
	fmt.Fprintf(&b, "edges %v\n", p.Edges)
	for _, s := range p.Steps {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}

func (p *Plan) nextConn(*world) int { p.conns++; return p.conns }

// options say what plans may hold.
type options struct {
	nodes  int  // 0: 2 to 6
	lossy  bool // disks are wiped and rolled back
	scopes bool // nodes read some tables only, and change which
	basic  bool // nodes have one cursor for all logs of a peer, and change that
	policy engine.ConflictPolicy
	steps  int // 0: up to 120
}

// scopes are what nodes read, where that changes.
var scopes = [][]string{nil, {"shared"}, {"shared", "own_n0"}, {"own_n0", "own_n1"}}

// newPlan makes a plan of a seed.
func newPlan(seed uint64, o options) *Plan {
	r := rand.New(rand.NewPCG(seed, 0x51))
	pick := func(ns ...int) int { return ns[r.IntN(len(ns))] }
	p := &Plan{
		Seed: seed, Length: time.Duration(5+r.IntN(40)) * time.Second, Journal: pick(20<<10, 1<<30, 1<<30), Retain: pick(4<<10, 64<<10, 1<<30),
		Buffer: int64(pick(16<<10, 256<<10, 8<<20)), MinWindow: int64(pick(2<<10, 32<<10)),
		BetterFor: time.Duration(pick(2, 6)) * time.Second, SparedFor: time.Duration(pick(1, 3)) * time.Second, Policy: o.policy,
	}
	n := o.nodes
	if n == 0 {
		n = 2 + r.IntN(5)
	}
	for i := range n {
		s := NodeSpec{Writes: i == 0 || r.IntN(4) > 0, Durable: true}
		if !s.Writes && r.IntN(2) == 0 {
			s.Durable = false
		}
		p.Nodes = append(p.Nodes, s)
	}
	if o.scopes {
		p.Nodes[n-1].Writes, p.Nodes[n-1].Tables = false, scopes[r.IntN(len(scopes))]
	}
	if o.basic {
		for i := range p.Nodes {
			p.Nodes[i].Basic = r.IntN(2) == 0
		}
		for range 4 {
			p.Steps = append(p.Steps, Step{At: time.Duration(r.Int64N(int64(p.Length))), Kind: "flip", Node: r.IntN(n), Other: -1})
		}
	}
	// A tree joins all; more edges make rings, up to a full mesh.
	have := map[[2]int]bool{}
	edge := func(a, b int) {
		if a != b && !have[pair(a, b)] {
			have[pair(a, b)] = true
			p.Edges = append(p.Edges, pair(a, b))
		}
	}
	for i := 1; i < n; i++ {
		edge(i, r.IntN(i))
	}
	for range r.IntN(n * (n - 1) / 2) {
		edge(r.IntN(n), r.IntN(n))
	}
	steps := o.steps
	if steps == 0 {
		steps = 20 + r.IntN(100)
	}
	num := 0
	for range steps {
		s := Step{At: time.Duration(r.Int64N(int64(p.Length))), Node: r.IntN(n), Other: -1}
		other := func() {
			for s.Other = r.IntN(n); s.Other == s.Node; s.Other = r.IntN(n) {
			}
		}
		secs := func(most int) time.Duration {
			return time.Duration(r.Int64N(int64(time.Duration(most) * time.Second)))
		}
		switch k := r.IntN(100); {
		case k < 62:
			s.Kind = "write"
			if !p.Nodes[s.Node].Writes {
				s.Node = 0
			}
			table := func() string {
				if r.IntN(2) == 0 {
					return "shared"
				}
				return fmt.Sprintf("own_n%d", s.Node)
			}
			count := pick(1, 1, 1, 2, 5)
			size := 0
			if r.IntN(12) == 0 {
				count, size = 1+r.IntN(30), 8<<10
			}
			for range count {
				num++
				op := Op{Kind: "put", Table: table(), Key: fmt.Sprint("k", r.IntN(12)), N: num, Size: size}
				switch r.IntN(12) {
				case 0, 1:
					op.Kind = "delete"
				case 2:
					if r.IntN(3) == 0 {
						op = Op{Kind: "truncate", Table: table()}
					}
				}
				s.Ops = append(s.Ops, op)
			}
		case k < 68:
			s.Kind = "cut"
			other()
		case k < 72:
			s.Kind, s.Keep = "halfopen", r.IntN(2) == 0
			other()
		case k < 76:
			s.Kind, s.For = "partition", secs(20)
			other()
		case k < 82:
			s.Kind, s.For, s.Keep = "crash", secs(6), r.IntN(2) == 0
		case k < 86:
			s.Kind, s.N, s.Keep = "dies", 1+r.IntN(4), r.IntN(2) == 0
		case k < 89:
			s.Kind, s.For = "full", secs(4)
		case k < 92:
			s.Kind, s.For = "clock", time.Duration(r.Int64N(int64(2*time.Hour)))-time.Hour
		case k < 94:
			s.Kind, s.For, s.N = "slow", secs(10), pick(20, 100, 400)
			other()
		case k < 96:
			s.Kind, s.For, s.N = "stall", secs(8), pick(10, 100, 1000)
		case k < 98:
			s.Kind, s.For = "unpeer", secs(10)
			other()
		case o.scopes:
			s.Kind, s.Node, s.N = "rescope", n-1, r.IntN(len(scopes))
		case o.lossy && r.IntN(2) == 0:
			s.Kind = "wipe"
		case o.lossy:
			s.Kind = "backup"
			p.Steps = append(p.Steps, Step{At: s.At + secs(10), Kind: "restore", Node: s.Node, Other: -1})
		default:
			s.Kind, s.For = "crash", secs(20)
		}
		p.Steps = append(p.Steps, s)
	}
	slices.SortStableFunc(p.Steps, func(a, b Step) int { return int(a.At - b.At) })
	return p
}

// comesBack makes a plan in which an origin's disk is lost while one of its readers
// is away, and the other then meets that reader alone, who knows the old epoch only.
func comesBack(seed uint64) *Plan {
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	w := func(s float64, key string) Step {
		return Step{At: at(s), Kind: "write", Node: 0, Other: -1, Ops: []Op{{Kind: "put", Table: "shared", Key: key, N: 1}}}
	}
	return &Plan{
		Seed: seed, Length: 30 * time.Second, Journal: 1 << 30, Retain: 1 << 30, Buffer: 1 << 20, MinWindow: 32 << 10, BetterFor: 2 * time.Second, SparedFor: time.Second,
		Nodes: []NodeSpec{{Writes: true, Durable: true}, {Durable: true}, {Durable: true}},
		Edges: [][2]int{{0, 1}, {0, 2}, {1, 2}},
		Steps: []Step{
			w(2, "a"),
			{At: at(4), Kind: "crash", Node: 2, Other: -1, For: 8 * time.Second},
			{At: at(5), Kind: "wipe", Node: 0, Other: -1},
			w(7, "b"),
			{At: at(10), Kind: "crash", Node: 0, Other: -1, For: 15 * time.Second},
		},
	}
}

// restored makes a plan in which a node goes back to a backup, while its peers have
// all that it has written since.
func restored(seed uint64) *Plan {
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	n := 0
	w := func(s float64, node int, kind, key string) Step {
		n++
		return Step{At: at(s), Kind: "write", Node: node, Other: -1, Ops: []Op{{Kind: kind, Table: "shared", Key: key, N: n}}}
	}
	return &Plan{
		Seed: seed, Length: 40 * time.Second, Journal: 1 << 30, Retain: 1 << 30, Buffer: 1 << 20, MinWindow: 32 << 10, BetterFor: 2 * time.Second, SparedFor: time.Second,
		Nodes: []NodeSpec{{Writes: true, Durable: true}, {Writes: true, Durable: true}, {Durable: true}},
		Edges: [][2]int{{0, 1}, {0, 2}, {1, 2}},
		Steps: []Step{
			w(2, 0, "put", "a"), w(2.1, 0, "put", "b"), w(2.2, 0, "put", "c"), w(2.3, 1, "put", "d"),
			{At: at(4), Kind: "backup", Node: 0, Other: -1},
			w(5, 0, "put", "a"), w(5.1, 0, "put", "new"), w(5.2, 0, "delete", "c"), w(5.3, 1, "put", "b"), w(5.4, 0, "put", "d"),
			{At: at(10), Kind: "restore", Node: 0, Other: -1, Keep: true},
			w(20, 0, "put", "after"), w(21, 1, "put", "after"), w(22, 0, "put", "e"),
		},
	}
}

// newWorld makes the nodes of a plan.
func newWorld(p *Plan, pl plant, trace bool) *world {
	p.conns = 0
	w := &world{plan: p, plant: pl, rng: rand.New(rand.NewPCG(p.Seed, 0x17)), blocked: map[[2]int]int{}, slow: map[[2]int]time.Duration{}, kinds: map[string]int{}, did: map[string]int{}, tracing: trace}
	w.model = newModel(w)
	for i := range p.Nodes {
		n := &node{w: w, index: i, id: fmt.Sprint("n", i), spec: &NodeSpec{}}
		*n.spec = p.Nodes[i]
		n.disk = newDisk(n, n.spec.Durable)
		w.nodes = append(w.nodes, n)
	}
	if p.Tree != nil {
		w.tree = newTreeModel(w)
	}
	w.connectAll()
	for _, n := range w.nodes {
		w.after(n.spec.From+w.some(500*time.Millisecond), n.start)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		w.after(s.At, func() { w.step(s) })
	}
	if w.tree != nil {
		w.tree.beginLoad()
	}
	return w
}

// connectAll makes the peers those of the plan.
func (w *world) connectAll() {
	if w.plan.Tree != nil {
		w.connectTree()
		return
	}
	peers := make([][]*node, len(w.nodes))
	for _, e := range w.plan.Edges {
		peers[e[0]] = append(peers[e[0]], w.nodes[e[1]])
		peers[e[1]] = append(peers[e[1]], w.nodes[e[0]])
	}
	for i, n := range w.nodes {
		n.setPeers(peers[i])
	}
}

// step does a step.
func (w *world) step(s *Step) {
	n := w.nodes[s.Node]
	w.did[s.Kind]++
	if w.tracing {
		w.tracef("-- %s", strings.TrimSpace(s.String()))
	}
	switch s.Kind {
	case "write":
		n.write(s.Ops)
	case "cut":
		for _, c := range w.between(s.Node, s.Other) {
			c.cut(0, w.some(5*time.Millisecond))
			c.cut(1, w.some(5*time.Millisecond))
		}
	case "halfopen":
		for _, c := range w.between(s.Node, s.Other) {
			side := 0
			if s.Keep {
				side = 1
			}
			c.cut(side, 0)
			c.cut(1-side, keepalive)
		}
	case "partition":
		w.partition(s.Node, s.Other, s.For)
	case "crash":
		seen := time.Duration(0)
		if s.Keep {
			seen = keepalive // it has lost power
		}
		n.stop(seen)
		w.after(s.For, n.start)
	case "dies":
		n.disk.dies, n.disk.keeps = s.N, s.Keep
	case "full":
		n.disk.full = true
		w.after(s.For, func() { n.disk.full = false })
	case "clock":
		n.offset = s.For
	case "slow":
		p := pair(s.Node, s.Other)
		w.slow[p] = time.Duration(s.N) * time.Millisecond
		w.after(s.For, func() { delete(w.slow, p) })
		for _, c := range w.between(s.Node, s.Other) {
			was, per := c.lag, c.perKiB
			c.lag, c.perKiB = w.slow[p], w.slow[p]/50
			w.after(s.For, func() { c.lag, c.perKiB = was, per })
		}
	case "stall":
		n.slow = time.Duration(s.N) * time.Millisecond
		w.after(s.For, func() { n.slow = 0 })
	case "unpeer":
		var rest []*node
		for _, p := range n.peers {
			if p.to.index != s.Other {
				rest = append(rest, p.to)
			}
		}
		n.setPeers(rest)
		w.after(s.For, w.connectAll)
	case "wipe":
		n.stop(0)
		n.disk.wipe()
		w.model.lossy = true
		if w.tree != nil {
			w.tree.wiped(n)
		}
		n.start()
	case "rescope":
		n.stop(0)
		n.spec.Tables = scopes[s.N]
		n.start()
	case "flip":
		n.stop(0)
		n.spec.Basic = !n.spec.Basic
		n.start()
	case "move":
		n.move(s.N)
	case "leave":
		n.leave()
	case "backup":
		n.disk.keep()
	case "restore":
		if n.disk.backup != nil {
			if s.Keep {
				w.model.keep()
			}
			n.stop(0)
			n.disk.restore()
			w.model.lossy = true
			n.start()
		}
	}
	n.settle()
}

// heal ends all faults.
func (w *world) heal() {
	w.quiet = true
	w.tracef("-- heal")
	clear(w.blocked)
	clear(w.slow)
	w.connectAll()
	for _, n := range w.nodes {
		n.disk.full, n.disk.dies, n.slow = false, 0, 0
		n.start()
	}
	for _, c := range w.conns {
		c.lag, c.perKiB = 3*time.Millisecond, 0
	}
}

// execute runs a plan to its end and returns what was wrong.
func execute(p *Plan, pl plant, trace bool) *world {
	w := newWorld(p, pl, trace)
	defer func() {
		for _, n := range w.nodes {
			n.stop(0)
		}
	}()
	if p.Tree != nil {
		w.executeTree()
		return w
	}
	for at := time.Second; w.failed == nil && at < p.Length; at += time.Second {
		w.run(at)
		for _, n := range w.nodes {
			w.model.check(n, false)
		}
	}
	w.run(p.Length)
	w.heal()
	const patience = 3 * time.Minute
	for healed := w.now; w.failed == nil; {
		w.run(w.now + time.Second)
		why := ""
		for _, n := range w.nodes {
			if why == "" {
				why = w.model.behind(n)
			}
			w.model.check(n, false)
		}
		if why == "" {
			break
		}
		if w.now-healed > patience {
			w.fail("stuck", "%s after everything was healed: %s", patience, why)
		}
	}
	if w.failed != nil {
		return w
	}
	for _, n := range w.nodes {
		w.model.check(n, true)
	}
	w.model.kept()
	w.equal()
	w.silence()
	return w
}

// equal checks that all nodes hold the same.
func (w *world) equal() {
	for _, n := range w.nodes[1:] {
		a, b := dump(w.nodes[0], n.wants), dump(n, n.wants)
		if w.failed == nil && a != b {
			w.fail("equal", "nodes n0 and %s differ:\n%s", n.id, diff(a, b))
		}
	}
}

func diff(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out []string
	without := func(sign string, all, other []string) {
		has := make(map[string]bool, len(other))
		for _, l := range other {
			has[l] = true
		}
		for _, l := range all {
			if !has[l] {
				out = append(out, sign+brief(l))
			}
		}
	}
	without("- ", x, y)
	without("+ ", y, x)
	return strings.Join(out, "\n")
}

func brief(s string) string {
	if len(s) > 160 {
		return s[:160] + "..."
	}
	return s
}

// silence checks that nothing more is sent once there is nothing to say, but a
// session moving for good.
func (w *world) silence() {
	// A connection that is dead is found to be so, and then one log after the other is read
	// by the better way that there is again.
	w.run(w.now + keepalive + 3*time.Second + time.Duration(len(w.nodes))*(w.plan.BetterFor+time.Second))
	before := w.dataFrames
	w.run(w.now + 10*time.Second)
	if w.dataFrames != before {
		w.fail("silence", "%d frames of data in 10 s in which nothing happens", w.dataFrames-before)
	}
	for _, n := range w.nodes {
		w.model.check(n, true)
	}
}
