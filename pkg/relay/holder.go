package relay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Holder names one life of a node that keeps a state: one that comes back empty is
// another.
func Holder(node string, life engine.Epoch) string { return fmt.Sprintf("%s@%d", node, life) }

// nodeOf returns the node of a holder, and which of its lives it is.
func nodeOf(holder string) (node string, life uint64) {
	node, number, _ := strings.Cut(holder, "@")
	life, _ = strconv.ParseUint(number, 10, 64)
	return node, life
}

// NodeOf returns the node of a holder.
func NodeOf(holder string) string {
	node, _ := nodeOf(holder)
	return node
}

// maxLives is how many lives of one node are remembered: the newest.
const maxLives = 4

// Leaf is what a leaf knows of those above it: how far each has its logs. It is safe
// for concurrent use.
type Leaf struct {
	compare func(engine.LogID) engine.Comparator

	mu    sync.Mutex
	roots []string // nil: nobody has said
	logs  map[engine.LogID]*Holdings
}

// NewLeaf returns a Leaf that knows nothing; compare returns the order of a log's
// positions.
func NewLeaf(compare func(engine.LogID) engine.Comparator) *Leaf {
	return &Leaf{compare: compare, logs: map[engine.LogID]*Holdings{}}
}

// SetRoots registers the roots, by their node ids, in place of those before.
func (l *Leaf) SetRoots(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roots = append([]string{}, nodes...)
}

// Kept returns the position above which a log has to be kept for the roots; empty
// while that is not known, and all has to be. ok is false if no root is registered.
func (l *Leaf) Kept(log engine.LogID) (at engine.Position, ok bool) {
	l.mu.Lock()
	none := l.roots != nil && len(l.roots) == 0
	l.mu.Unlock()
	if none {
		return "", false
	}
	at, _ = l.Stable(log)
	return at, true
}

// Acked takes what a parent says of holders.
func (l *Leaf) Acked(log engine.LogID, holders map[string]engine.Position) {
	compare := l.compare(log)
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.logs[log]
	if h == nil {
		h = NewHoldings(compare)
		l.logs[log] = h
		for old := range l.logs {
			if old.Origin == log.Origin && old.Epoch < log.Epoch {
				delete(l.logs, old)
			}
		}
	}
	h.Ack(holders)
	h.forget()
}

// forget forgets all but the newest lives of each node.
func (h *Holdings) forget() {
	lives := map[string][]string{}
	for holder := range h.at {
		node, _ := nodeOf(holder)
		lives[node] = append(lives[node], holder)
	}
	for _, all := range lives {
		if len(all) <= maxLives {
			continue
		}
		slices.SortFunc(all, newestFirst)
		for _, holder := range all[maxLives:] {
			delete(h.at, holder)
		}
	}
}

func newestFirst(a, b string) int {
	_, x := nodeOf(a)
	_, y := nodeOf(b)
	return cmp.Compare(y, x)
}

// Holders returns how far each holder has a log, and what all roots have.
func (l *Leaf) Holders(log engine.LogID) (map[string]engine.Position, engine.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.logs[log]
	if h == nil {
		return nil, ""
	}
	at, _ := h.Stable(l.lives(h))
	return h.Of(), at
}

// lives returns the roots as holders: of each its newest life.
func (l *Leaf) lives(h *Holdings) []string {
	all := make([]string, len(l.roots))
	for i, root := range l.roots {
		all[i] = root // of which nothing is known
		for holder := range h.at {
			if node, _ := nodeOf(holder); node == root && (all[i] == root || newestFirst(holder, all[i]) < 0) {
				all[i] = holder
			}
		}
	}
	return all
}

// Stable returns how far all roots have a log; ok is false while of one nothing is
// known, or none is registered.
func (l *Leaf) Stable(log engine.LogID) (at engine.Position, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.logs[log]; h != nil {
		return h.Stable(l.lives(h))
	}
	return "", false
}

// RootHas is how far a registered root has a log.
type RootHas struct {
	Root string
	At   engine.Position // empty for not known
}

// Roots returns how far each registered root has a log, the slowest first.
func (l *Leaf) Roots(log engine.LogID) []RootHas {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.logs[log]
	if h == nil {
		h = NewHoldings(engine.CompareBytes)
	}
	all := make([]RootHas, len(l.roots))
	for i, holder := range l.lives(h) {
		all[i] = RootHas{l.roots[i], h.at[holder]}
	}
	slices.SortStableFunc(all, func(a, b RootHas) int {
		return cmp.Or(cmp.Compare(min(len(a.At), 1), min(len(b.At), 1)), h.compare(a.At, b.At))
	})
	return all
}

// Floor returns how far a holder has a log.
func (l *Leaf) Floor(log engine.LogID, holder string) engine.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.logs[log]; h != nil {
		return h.at[holder]
	}
	return ""
}

// Places is false: a leaf's rows have none.
func (l *Leaf) Places(engine.LogID) bool { return false }

// Marks is of logs with places.
func (l *Leaf) Marks(engine.View, engine.LogID) ([]engine.Mark, error) { return nil, nil }

// Read is of logs with places.
func (l *Leaf) Read(engine.View, engine.LogID, engine.Position, func([]*engine.Block) error) error {
	return fmt.Errorf("relay: the log of a leaf: %w", engine.ErrGap)
}

// Tree is a relay's knowledge of those above it, as its server needs it.
type Tree struct{ r *Reoriginate }

// Tree returns what the relay's server needs.
func (r *Reoriginate) Tree() Tree { return Tree{r} }

// Acked takes what a parent says of holders of the relay's log.
func (t Tree) Acked(log engine.LogID, holders map[string]engine.Position) {
	if log != t.r.Log() {
		return
	}
	for holder, at := range holders {
		_ = t.r.Ack(holder, at) // a position that is none says nothing
	}
}

// Holders returns how far each holder has the relay's log. What all roots have is the
// leaves' to know.
func (t Tree) Holders(log engine.LogID) (map[string]engine.Position, engine.Position) {
	if log != t.r.Log() {
		return nil, ""
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	all := make(map[string]engine.Position, len(t.r.floors.acks))
	for holder, place := range t.r.floors.acks {
		all[holder] = Position(place)
	}
	return all, ""
}

// Floor returns the position up to which a holder is known to have the relay's log.
func (t Tree) Floor(log engine.LogID, holder string) engine.Position {
	if log != t.r.Log() {
		return ""
	}
	return t.r.floorToRead(holder)
}

// Places is true of the relay's log.
func (t Tree) Places(log engine.LogID) bool { return log == t.r.Log() }

// Marks is Marks.
func (t Tree) Marks(v engine.View, _ engine.LogID) ([]engine.Mark, error) { return Marks(v) }

// Read is Read.
func (t Tree) Read(v engine.View, log engine.LogID, after engine.Position, fn func([]*engine.Block) error) error {
	return Read(v, log, after, fn)
}

// Told takes what a child says of holders of its log.
func (r *Reoriginate) Told(child engine.LogID, compare engine.Comparator, holders map[string]engine.Position) {
	for _, holder := range slices.Sorted(maps.Keys(holders)) {
		r.Has(child, compare, holder, holders[holder])
	}
}
