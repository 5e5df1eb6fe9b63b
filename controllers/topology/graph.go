package topology

import (
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// scope is a set of table classes, as bits. Tables that exactly the same edges
// carry are one class; class 0 is every table that no edge names.
type scope []uint64

func (s scope) intersect(t scope) (out scope, some bool) {
	out = make(scope, len(s))
	for i := range s {
		out[i] = s[i] & t[i]
		some = some || out[i] != 0
	}
	return out, some
}

// add puts t into s and says whether s grew.
func (s scope) add(t scope) (grew bool) {
	for i := range s {
		grew = grew || t[i]&^s[i] != 0
		s[i] |= t[i]
	}
	return grew
}

func (s scope) has(class int) bool { return s[class/64]&(1<<(class%64)) != 0 }

// scopes gives each of the table lists its scope; an empty list is all tables.
func scopes(lists [][]string) (out []scope, classes int) {
	users := map[string][]int{} // table -> lists that name it
	for i, list := range lists {
		for _, t := range list {
			users[t] = append(users[t], i)
		}
	}
	byUsers, classOf := map[string]int{}, map[string]int{}
	classes = 1
	for _, t := range slices.Sorted(maps.Keys(users)) {
		var b strings.Builder
		for _, i := range users[t] {
			b.WriteString(strconv.Itoa(i) + " ")
		}
		c, ok := byUsers[b.String()]
		if !ok {
			c, byUsers[b.String()] = classes, classes
			classes++
		}
		classOf[t] = c
	}
	out = make([]scope, len(lists))
	for i, list := range lists {
		s := make(scope, (classes+63)/64)
		if len(list) == 0 {
			for c := range classes {
				s[c/64] |= 1 << (c % 64)
			}
		}
		for _, t := range list {
			s[classOf[t]/64] |= 1 << (classOf[t] % 64)
		}
		out[i] = s
	}
	return out, classes
}

// edge says that a source of child reads, or may read, from parent.
type edge struct {
	parent Key
	child  SourceKey
	tables scope
}

// graph maps each node to the nodes above it, for one class of tables.
type graph map[Key][]Key

func graphOf(edges []edge, class int) graph {
	g := graph{}
	for _, e := range edges {
		if e.tables.has(class) {
			g[e.child.Node] = append(g[e.child.Node], e.parent)
		}
	}
	for _, up := range g {
		slices.SortFunc(up, compareKeys)
	}
	return g
}

// cycles returns, for each node that stands on a cycle of edges in some class
// of tables, a cycle through it: the nodes in the order that data travels, from
// the smallest name. Among several a shortest one, and the same for all nodes
// on it where that can be.
func cycles(edges []edge, classes int) map[Key][]Key {
	out := map[Key][]Key{}
	for class := range classes {
		g := graphOf(edges, class)
		for _, members := range g.components() {
			for _, k := range sortedKeys(members) {
				if out[k] != nil {
					continue
				}
				cycle := g.cycleThrough(k, members)
				for _, m := range cycle {
					if out[m] == nil {
						out[m] = cycle
					}
				}
			}
		}
	}
	return out
}

// components returns the strongly connected components that hold a cycle, by
// Tarjan's algorithm without recursion.
func (g graph) components() []map[Key]bool {
	type frame struct {
		k    Key
		next int
	}
	var (
		out     []map[Key]bool
		index   = map[Key]int{}
		low     = map[Key]int{}
		onStack = map[Key]bool{}
		stack   []Key
		calls   []frame
	)
	enter := func(k Key) {
		index[k] = len(index) + 1
		low[k] = index[k]
		stack, onStack[k] = append(stack, k), true
		calls = append(calls, frame{k: k})
	}
	for _, root := range sortedKeys(g) {
		if index[root] != 0 {
			continue
		}
		for enter(root); len(calls) > 0; {
			f := &calls[len(calls)-1]
			if f.next < len(g[f.k]) {
				up := g[f.k][f.next]
				f.next++
				if index[up] == 0 {
					enter(up)
				} else if onStack[up] {
					low[f.k] = min(low[f.k], index[up])
				}
				continue
			}
			k := f.k
			calls = calls[:len(calls)-1]
			if len(calls) > 0 {
				below := calls[len(calls)-1].k
				low[below] = min(low[below], low[k])
			}
			if low[k] != index[k] {
				continue
			}
			members := map[Key]bool{}
			for last := (Key{}); last != k; {
				last = stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				onStack[last] = false
				members[last] = true
			}
			if len(members) > 1 || slices.Contains(g[k], k) {
				out = append(out, members)
			}
		}
	}
	return out
}

// cycleThrough returns a shortest cycle through k within members.
func (g graph) cycleThrough(k Key, members map[Key]bool) []Key {
	below := map[Key]Key{} // the node that led up to this one
	queue := []Key{k}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, up := range g[at] {
			if up == k { // closed: walk down again, which is how data travels
				cycle := []Key{k}
				for ; at != k; at = below[at] {
					cycle = append(cycle, at)
				}
				return fromSmallest(cycle)
			}
			if _, seen := below[up]; !seen && members[up] {
				below[up] = at
				queue = append(queue, up)
			}
		}
	}
	return nil
}

func fromSmallest(cycle []Key) []Key {
	first := 0
	for i := range cycle {
		if compareKeys(cycle[i], cycle[first]) < 0 {
			first = i
		}
	}
	return slices.Concat(cycle[first:], cycle[:first])
}

// maxNames bounds how many names of a cycle a message holds.
const maxNames = 64

// writeCycle writes a cycle out for people in namespace, closed:
// a → b → c → a.
func writeCycle(cycle []Key, namespace string) string {
	names := make([]string, 0, len(cycle)+1)
	for _, k := range cycle {
		names = append(names, label(k, namespace))
	}
	if len(names) > maxNames {
		names = append(names[:maxNames], "…")
	}
	return strings.Join(append(names, label(cycle[0], namespace)), " → ")
}

// depths returns how many nodes stand above each node on its longest path, over
// all classes of tables. The edges of a class hold no cycle.
func depths(edges []edge, classes int) map[Key]int32 {
	most := map[Key]int32{}
	for class := range classes {
		g := graphOf(edges, class)
		known := map[Key]int32{}
		var depth func(Key) int32
		depth = func(k Key) int32 {
			if d, ok := known[k]; ok {
				return d
			}
			known[k] = 0 // ends the walk, should there be a cycle after all
			var d int32
			for _, up := range g[k] {
				d = max(d, depth(up)+1)
			}
			known[k] = d
			return d
		}
		for k := range g {
			most[k] = max(most[k], depth(k))
		}
	}
	return most
}

func sortEdges(edges []edge) {
	sort.Slice(edges, func(i, j int) bool {
		a, b := edges[i], edges[j]
		if c := compareKeys(a.child.Node, b.child.Node); c != 0 {
			return c < 0
		}
		if a.child.Source != b.child.Source {
			return a.child.Source < b.child.Source
		}
		return compareKeys(a.parent, b.parent) < 0
	})
}
