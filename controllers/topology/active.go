package topology

import (
	"errors"
	"fmt"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// ErrStaleEpoch: the wiring has moved on since it was looked at. Look again and
// choose again.
var ErrStaleEpoch = errors.New("the wiring has changed since it was looked at")

// allTables is the scope where tables are not told apart.
var allTables = scope{1}

// Active is which node each source reads from, at one wiring epoch. It is the
// one place where a choice of parents is checked against the others, so two
// choices made from the same view cannot close a ring between them: the second
// is refused for its epoch, looks again, and finds the first.
type Active struct {
	epoch    uint64
	edges    map[SourceKey][]edge
	bySource map[Key][]SourceKey
}

// NewActive returns the edges that nodes read by, at an epoch.
func NewActive(epoch uint64, parents map[SourceKey]Key) *Active {
	a := &Active{epoch: epoch, edges: map[SourceKey][]edge{}, bySource: map[Key][]SourceKey{}}
	for s, parent := range parents {
		a.add(edge{parent: parent, child: s, tables: allTables})
	}
	return a
}

// Epoch grows with each choice.
func (a *Active) Epoch() uint64 { return a.epoch }

// Parent returns the node that a source reads from.
func (a *Active) Parent(s SourceKey) (Key, bool) {
	if es := a.edges[s]; len(es) > 0 {
		return es[0].parent, true
	}
	return Key{}, false
}

// ChooseParent moves a source to the first of its candidates that is eligible,
// well, and not below the source's own node, and returns it. The epoch is the
// one at which the caller looked. False means that there is none: hold, and
// keep what there is.
func (a *Active) ChooseParent(epoch uint64, s SourceKey, candidates []Candidate, well func(Candidate) bool) (Candidate, bool, error) {
	if epoch != a.epoch {
		return Candidate{}, false, fmt.Errorf("%w: epoch %d was looked at, %d is current", ErrStaleEpoch, epoch, a.epoch)
	}
	c, ok := a.choose(s, allTables, candidates, well)
	return c, ok, nil
}

func (a *Active) choose(s SourceKey, tables scope, candidates []Candidate, well func(Candidate) bool) (Candidate, bool) {
	old := a.edges[s]
	a.remove(s) // what it reads from now does not stand in its own way
	for _, c := range candidates {
		if !c.Eligible || !well(c) || a.below(c.Node, s.Node, tables) {
			continue
		}
		if c.Node != (Key{}) {
			a.add(edge{parent: c.Node, child: s, tables: tables})
		}
		a.epoch++
		return c, true
	}
	for _, e := range old {
		a.add(e)
	}
	return Candidate{}, false
}

// below says whether data of some of the tables travels from node to candidate:
// the candidate is the node itself or one of those below it. It walks up from
// the candidate.
func (a *Active) below(candidate, node Key, tables scope) bool {
	if candidate == node {
		return true
	}
	if candidate == (Key{}) {
		return false
	}
	type step struct {
		k      Key
		tables scope
	}
	seen := map[Key]scope{}
	for todo := []step{{candidate, tables}}; len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, s := range a.bySource[at.k] {
			for _, e := range a.edges[s] {
				carried, some := at.tables.intersect(e.tables)
				if !some {
					continue
				}
				if e.parent == node {
					return true
				}
				if seen[e.parent] == nil {
					seen[e.parent] = make(scope, len(carried))
				}
				if seen[e.parent].add(carried) {
					todo = append(todo, step{e.parent, carried})
				}
			}
		}
	}
	return false
}

func (a *Active) add(e edge) {
	if len(a.edges[e.child]) == 0 {
		a.bySource[e.child.Node] = append(a.bySource[e.child.Node], e.child)
	}
	a.edges[e.child] = append(a.edges[e.child], e)
}

func (a *Active) remove(s SourceKey) {
	if len(a.edges[s]) == 0 {
		return
	}
	delete(a.edges, s)
	for i, other := range a.bySource[s.Node] {
		if other == s {
			a.bySource[s.Node] = append(a.bySource[s.Node][:i:i], a.bySource[s.Node][i+1:]...)
			return
		}
	}
}

// list returns the edges in a stable order.
func (a *Active) list() []edge {
	var out []edge
	for _, es := range a.edges {
		out = append(out, es...)
	}
	sortEdges(out)
	return out
}

// tooDeep says whether a node below a candidate of this depth is deeper than
// is allowed.
func tooDeep(depth int32) bool { return depth+1 > v1alpha1.MaxDepth }
