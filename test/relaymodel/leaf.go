package relaymodel

import "slices"

// stamp is the identity of a write.
type stamp struct{ time, leaf, epoch, ver int }

func (a stamp) less(b stamp) bool {
	if a.time != b.time {
		return a.time < b.time
	}
	if a.leaf != b.leaf {
		return a.leaf < b.leaf
	}
	if a.epoch != b.epoch {
		return a.epoch < b.epoch
	}
	return a.ver < b.ver
}

// life is one epoch of a leaf.
type life struct{ leaf, epoch int }

// What a key is of.
const (
	latest  = 'l' // delivered as Latest, written by one leaf
	shared  = 's' // the same, written by any leaf
	every   = 'a' // delivered as All
	counter = 'c' // a leaf's share of a counter
)

// key is the key of a row; of a counter's, also whose share it is.
type key struct {
	kind           byte
	n, leaf, epoch int
}

// change is a write, and also the record that it leaves.
type change struct {
	key
	st    stamp
	val   int  // of a counter: all that the leaf has added in its epoch
	delta int  // of a counter: what this change has added
	ends  bool // the shares of the leaf's older epochs have ended
	del   bool
}

// cover says that of a leaf's writes up to a version those stand that are named,
// and no others.
type cover struct {
	life
	ver  int
	keys map[key]bool
}

// place is a position in a log.
type place struct{ epoch, pos int }

// holder is a node above the leaves that keeps a state: one life of it.
type holder struct{ node, life int }

// feed is what a child gives to a parent.
type feed struct {
	changes []change
	covers  []cover
	to      place
	head    bool         // it is all there is
	marks   map[life]int // of a relay: its own
	gap     bool         // of the tables that are delivered as All, some changes are lost
}

// child is a leaf or a relay, as its parents see it.
type child interface {
	serve(w *world, to *node, at *place) (feed, bool)
	ack(h holder, at place)
	// stable is how far a holder is known to have what the child has.
	stable(w *world, h holder) place
}

// leaf is where writes are made.
type leaf struct {
	id, epoch, branch int
	ver, clock        int
	state             map[key]change
	log               []change
	from              int // the log holds what comes after
	lost              int // up to here the log went before it was stable
	acks              map[holder]int
	ended             map[int]bool     // counters that were deleted in this epoch
	ledger            map[life][]entry // of counters, for the check: what was made
	alls              map[stamp]change // for the check
	safe              map[int]int      // for the check: of each epoch that was lost, what was stable
}

type entry struct {
	ver, n, val int
	ends        bool
}

func newLeaf(id, branch int) *leaf {
	return &leaf{id: id, epoch: 1, branch: branch, state: map[key]change{}, acks: map[holder]int{},
		ended: map[int]bool{}, ledger: map[life][]entry{}, alls: map[stamp]change{}, safe: map[int]int{}}
}

// write makes a random change.
func (l *leaf) write(w *world) {
	r := w.rng
	k := key{kind: "llsaacc"[r.IntN(7)], n: r.IntN(w.keys), leaf: l.id}
	switch k.kind {
	case shared:
		k.leaf = -1
	case counter:
		if k.epoch = l.epoch; w.fault == shareByOrigin {
			k.epoch = 0
		}
	}
	l.ver++
	l.clock = max(l.clock+1, w.now+r.IntN(20)-10) // a wall clock that is not to be trusted
	c := change{key: k, st: stamp{l.clock, l.id, l.epoch, l.ver}}
	have, ok := l.state[k]
	switch {
	case ok && !have.del && r.IntN(10) < 3 && k.kind != shared:
		c.del = true
		if k.kind == counter {
			c.ends, l.ended[k.n] = true, true
		}
	case k.kind == counter:
		c.delta = 1 + r.IntN(3)
		c.val, c.ends = have.val+c.delta, l.ended[k.n]
	default:
		c.val = l.ver*10 + l.id
	}
	if k.kind == counter {
		lf := life{l.id, l.epoch}
		l.ledger[lf] = append(l.ledger[lf], entry{l.ver, k.n, c.val, c.ends})
	}
	if k.kind == every {
		l.alls[c.st] = c
	}
	w.tell("%d: leaf %d writes %c%d %+v", w.now, l.id, k.kind, k.n, c)
	if l.state[k] = c; c.del && k.kind != counter {
		delete(l.state, k)
	}
	l.log = append(l.log, c)
}

// floor is how far every root has what the leaf has.
func (l *leaf) floor(w *world) int {
	var all []int
	for _, h := range w.roots() {
		all = append(all, l.acks[h])
	}
	if w.fault == anyRoot {
		return slices.Max(all)
	}
	return slices.Min(all)
}

// settle lets go of what every root has.
func (l *leaf) settle(w *world) { l.trim(max(l.from, l.floor(w))) }

func (l *leaf) trim(to int) {
	for len(l.log) > 0 && l.log[0].st.ver <= to {
		l.log = l.log[1:]
	}
	l.from = to
}

// overflow lets go of the whole log: its bound is reached.
func (l *leaf) overflow(w *world) {
	if l.floor(w) < l.ver {
		l.lost = l.ver
	}
	l.trim(l.ver)
}

// wipe is the loss of all that the leaf has.
func (l *leaf) wipe(w *world) {
	l.safe[l.epoch] = l.floor(w)
	n := newLeaf(l.id, l.branch)
	n.safe = l.safe
	n.epoch, n.clock, n.ledger = l.epoch+1, l.clock, l.ledger
	*l = *n
}

func (l *leaf) serve(w *world, to *node, at *place) (feed, bool) {
	if to.branch != l.branch {
		return feed{}, false
	}
	if at == nil || at.epoch != l.epoch || at.pos < l.from {
		// The state as of where the log begins, and the log after it, in one: rows that
		// were written since are in the log only.
		base := l.from
		if w.fault == allFromHead {
			base = l.ver
		}
		f := feed{to: place{l.epoch, l.ver}, head: true, gap: l.lost > l.floor(w)}
		v := cover{life{l.id, l.epoch}, l.ver, map[key]bool{}}
		for k, c := range l.state {
			if v.keys[k] = true; c.st.ver <= base {
				f.changes = append(f.changes, c)
			}
		}
		for _, c := range l.log {
			if v.keys[c.key] = true; c.st.ver > base {
				f.changes = append(f.changes, c)
			}
		}
		slices.SortFunc(f.changes, func(a, b change) int { return a.st.ver - b.st.ver })
		f.covers = []cover{v}
		if w.fault == fuzzyBaseline {
			f.cut(base)
		}
		return f, true
	}
	f := feed{to: *at}
	n := 1 + w.rng.IntN(4)
	for _, c := range l.log {
		if c.st.ver > at.pos && n > 0 {
			f.changes = append(f.changes, c)
			f.to.pos = c.st.ver
			n--
		}
	}
	f.head = f.to.pos == l.ver
	return f, true
}

// cut leaves of a baseline what is not above a version.
func (f *feed) cut(base int) {
	f.to.pos, f.covers[0].ver, f.head = base, base, f.to.pos == base
	f.changes = slices.DeleteFunc(f.changes, func(c change) bool { return c.st.ver > base })
}

func (l *leaf) ack(h holder, at place) {
	if at.epoch == l.epoch {
		l.acks[h] = max(l.acks[h], at.pos)
	}
}

// stable is -1 of a holder that has not taken in how the epoch begins.
func (l *leaf) stable(_ *world, h holder) place {
	at, ok := l.acks[h]
	if !ok {
		at = -1
	}
	return place{l.epoch, at}
}

// endedEver reports whether a counter was ever deleted at the leaf.
func (l *leaf) endedEver(n int) bool {
	for _, es := range l.ledger {
		for _, x := range es {
			if x.n == n && x.ends {
				return true
			}
		}
	}
	return false
}
