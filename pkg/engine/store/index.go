package store

import (
	"bytes"
	"sync/atomic"
)

// fan is how many records a node of an index finds: a node without kids then
// fills a size class of the allocator.
const fan = 62

// index is a copy-on-write B-tree of where the records of an arena are, by key.
// Most comparisons are of the first eight bytes of keys, which lie in the nodes;
// there is no pointer per record. Nodes that a published root knows are never
// altered: writing starts with share, and copies what it does not own.
//
// Nodes other than the root hold at least one record. They may hold fewer than
// half of fan: a node that is filled in key order is left full when it is split.
type index struct {
	arena *arena
	root  *node
	len   int
	owner uint64 // of the nodes that may be altered
}

type node struct {
	kids  *[fan + 1]*node // nil in a leaf; kids[i] comes before record i
	owner uint64
	n     int
	order [fan]uint64 // prefix of the key
	at    [fan]uint64
}

// owners numbers those who write indexes.
var owners atomic.Uint64

func newIndex(a *arena) *index { return &index{arena: a, owner: owners.Add(1)} }

// share returns an index of the same records; either may be written and the
// other does not change. x must not be written meanwhile.
func (x *index) share() *index {
	return &index{arena: x.arena, root: x.root, len: x.len, owner: owners.Add(1)}
}

// freeze is share for an index that is going to be written on.
func (x *index) freeze() *index {
	was := x.share()
	x.owner = owners.Add(1)
	return was
}

// search returns the place of key in n, or where it would be.
func (x *index) search(n *node, order uint64, key []byte) (i int, found bool) {
	lo, hi := 0, n.n
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		o := n.order[m]
		c := 0
		if o == order {
			c = bytes.Compare(x.arena.key(n.at[m]), key)
			if c == 0 {
				return m, true
			}
		}
		if o < order || c < 0 {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo, false
}

// get returns where the record at key is.
func (x *index) get(key []byte) (at uint64, ok bool) {
	order := prefix(key)
	for n := x.root; n != nil; {
		i, found := x.search(n, order, key)
		if found {
			return n.at[i], true
		}
		if n.kids == nil {
			break
		}
		n = n.kids[i]
	}
	return 0, false
}

// scan calls fn with each record from a key on, in key order, until it returns
// false.
func (x *index) scan(from []byte, fn func(at uint64) bool) {
	if x.root != nil {
		x.scanNode(x.root, len(from) > 0, prefix(from), from, fn)
	}
}

func (x *index) scanNode(n *node, bounded bool, order uint64, from []byte, fn func(uint64) bool) bool {
	i, found := 0, false
	if bounded {
		i, found = x.search(n, order, from)
	}
	if n.kids != nil && !found && !x.scanNode(n.kids[i], bounded, order, from, fn) {
		return false
	}
	for ; i < n.n; i++ {
		if !fn(n.at[i]) {
			return false
		}
		if n.kids != nil && !x.scanNode(n.kids[i+1], false, 0, nil, fn) {
			return false
		}
	}
	return true
}

// own returns the node at p as one that may be altered.
func (x *index) own(p **node) *node {
	n := *p
	if n.owner == x.owner {
		return n
	}
	c := *n
	c.owner = x.owner
	if n.kids != nil {
		kids := *n.kids
		c.kids = &kids
	}
	*p = &c
	return &c
}

// set makes at the record at key, and returns the one it takes the place of.
func (x *index) set(key []byte, at uint64) (old uint64, replaced bool) {
	order := prefix(key)
	if x.root == nil {
		x.root = &node{owner: x.owner}
	}
	old, replaced, up := x.setNode(&x.root, order, key, at)
	if up != nil {
		root := &node{owner: x.owner, kids: &[fan + 1]*node{x.root}}
		root.insert(0, up)
		x.root = root
	}
	if !replaced {
		x.len++
	}
	return old, replaced
}

// split is a record that a node hands up because it was full, with the node of
// what comes after it.
type split struct {
	order, at uint64
	right     *node
}

func (x *index) setNode(p **node, order uint64, key []byte, at uint64) (old uint64, replaced bool, up *split) {
	n := x.own(p)
	i, found := x.search(n, order, key)
	if found {
		old, n.at[i] = n.at[i], at
		return old, true, nil
	}
	if n.kids != nil && n.kids[i].n == fan && x.spread(n, i) {
		if i, found = x.search(n, order, key); found {
			old, n.at[i] = n.at[i], at
			return old, true, nil
		}
	}
	add := &split{order: order, at: at}
	if n.kids != nil {
		if old, replaced, add = x.setNode(&n.kids[i], order, key, at); add == nil {
			return old, replaced, nil
		}
	}
	if n.n == fan {
		up = n.split(i, x.owner)
		if i > n.n {
			n, i = up.right, i-n.n-1
		}
	}
	n.insert(i, add)
	return old, replaced, up
}

// insert puts a record at place i of a node with room, and what comes after it.
func (n *node) insert(i int, s *split) {
	copy(n.order[i+1:n.n+1], n.order[i:n.n])
	copy(n.at[i+1:n.n+1], n.at[i:n.n])
	n.order[i], n.at[i] = s.order, s.at
	if n.kids != nil {
		copy(n.kids[i+2:n.n+2], n.kids[i+1:n.n+1])
		n.kids[i+1] = s.right
	}
	n.n++
}

// split makes room in a full node for a record at place i. Where that is the
// end, keys come in order: the node is left full.
func (n *node) split(i int, owner uint64) *split {
	m := fan / 2
	if i == fan {
		m = fan - 1
	}
	right := &node{owner: owner, n: n.n - m - 1}
	copy(right.order[:], n.order[m+1:n.n])
	copy(right.at[:], n.at[m+1:n.n])
	if n.kids != nil {
		right.kids = &[fan + 1]*node{}
		copy(right.kids[:], n.kids[m+1:n.n+1])
		clear(n.kids[m+1:])
	}
	up := &split{n.order[m], n.at[m], right}
	n.n = m
	return up
}

// remove takes the record at key out and returns where it is.
func (x *index) remove(key []byte) (old uint64, ok bool) {
	if _, ok := x.get(key); !ok {
		return 0, false
	}
	old = x.removeNode(&x.root, prefix(key), key)
	x.len--
	switch {
	case x.len == 0:
		x.root = nil
	case x.root.n == 0:
		x.root = x.root.kids[0]
	}
	return old, true
}

// removeNode takes out a record that is there.
func (x *index) removeNode(p **node, order uint64, key []byte) (old uint64) {
	n := x.own(p)
	i, found := x.search(n, order, key)
	switch {
	case found && n.kids == nil:
		old = n.at[i]
		n.cut(i)
	case found:
		old = n.at[i]
		n.order[i], n.at[i] = x.popMax(&n.kids[i])
		x.mend(n, i)
	default:
		old = x.removeNode(&n.kids[i], order, key)
		x.mend(n, i)
	}
	return old
}

// popMax takes out the last record at or below a node.
func (x *index) popMax(p **node) (order, at uint64) {
	n := x.own(p)
	if n.kids == nil {
		n.n--
		return n.order[n.n], n.at[n.n]
	}
	order, at = x.popMax(&n.kids[n.n])
	x.mend(n, n.n)
	return order, at
}

// cut takes record i out of a node, and the kid after it.
func (n *node) cut(i int) {
	copy(n.order[i:], n.order[i+1:n.n])
	copy(n.at[i:], n.at[i+1:n.n])
	if n.kids != nil {
		copy(n.kids[i+1:], n.kids[i+2:n.n+1])
		n.kids[n.n] = nil
	}
	n.n--
}

// spread gives records of kid i, which is full, to a neighbour with room.
func (x *index) spread(n *node, i int) bool {
	const room = fan * 3 / 4
	switch {
	case i > 0 && n.kids[i-1].n <= room:
		x.even(n, i-1)
	case i < n.n && n.kids[i+1].n <= room:
		x.even(n, i)
	default:
		return false
	}
	return true
}

// mend joins kid i of n with a neighbour, or evens the two out, when it has
// become small.
func (x *index) mend(n *node, i int) {
	if n.kids[i].n >= fan/4 || n.n == 0 {
		return
	}
	if i == n.n {
		i--
	}
	if r := n.kids[i+1]; n.kids[i].n+1+r.n <= fan {
		x.own(&n.kids[i]).take(n.order[i], n.at[i], r, r.n)
		n.cut(i)
		return
	}
	x.even(n, i)
}

// even makes kids i and i+1 of n of about one size.
func (x *index) even(n *node, i int) {
	l, r := x.own(&n.kids[i]), x.own(&n.kids[i+1])
	if move := (r.n - l.n) / 2; move > 0 { // the record between goes left, and one of the right takes its place
		l.take(n.order[i], n.at[i], r, move-1)
		n.order[i], n.at[i] = r.order[move-1], r.at[move-1]
		r.shift(-move)
		return
	}
	move := (l.n - r.n) / 2
	if move == 0 {
		return
	}
	r.shift(move)
	keep := l.n - move
	copy(r.order[:], l.order[keep+1:l.n])
	copy(r.at[:], l.at[keep+1:l.n])
	r.order[move-1], r.at[move-1] = n.order[i], n.at[i]
	n.order[i], n.at[i] = l.order[keep], l.at[keep]
	if l.kids != nil {
		copy(r.kids[:], l.kids[keep+1:l.n+1])
		clear(l.kids[keep+1:])
	}
	l.n = keep
}

// take adds a record to the end of n, and the first records of r with the kids
// around them.
func (n *node) take(order, at uint64, r *node, count int) {
	n.order[n.n], n.at[n.n] = order, at
	copy(n.order[n.n+1:], r.order[:count])
	copy(n.at[n.n+1:], r.at[:count])
	if n.kids != nil {
		copy(n.kids[n.n+1:], r.kids[:count+1])
	}
	n.n += 1 + count
}

// shift moves all of n by some places: to the left the first ones are lost, to
// the right there is room for others.
func (n *node) shift(by int) {
	if by < 0 {
		copy(n.order[:], n.order[-by:n.n])
		copy(n.at[:], n.at[-by:n.n])
		if n.kids != nil {
			copy(n.kids[:], n.kids[-by:n.n+1])
			clear(n.kids[n.n+by+1:])
		}
	} else {
		copy(n.order[by:], n.order[:n.n])
		copy(n.at[by:], n.at[:n.n])
		if n.kids != nil {
			copy(n.kids[by:], n.kids[:n.n+1])
		}
	}
	n.n += by
}
