package relaymodel

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// node is a relay or a root.
type node struct {
	id, level, branch int
	root              bool
	life              int // as a holder, and the epoch of its log
	up                bool
	kept
	pend []batch
	read map[child]place // how far it has read, flushed or not
	cut  map[child]bool

	journal map[stamp]int // of a root, for the check: changes applied of tables delivered as All
	gapped  bool          // some of them are known to be lost
	top     map[key]stamp // for the check: the newest write ever applied
}

// kept is what a node has on disk.
type kept struct {
	recs    map[key]*record
	seq     int
	alls    []placed // the changes of tables that are delivered as All
	trimmed int      // of alls: up to here they are gone
	covers  []coverAt
	gapAt   int // where the newest gap is
	// complete is the place up to which tombstones have gone: who is behind it takes a
	// snapshot.
	complete int
	// marks are how far the state has all of a leaf's writes.
	marks map[life]int
	lives map[int]int // the newest epoch known of each leaf
	hi    map[life]int
	// cursors are how far each child has been read, and checkpoints how far they had
	// been at the end of each flush.
	cursors     map[child]place
	checkpoints []checkpoint
	acks        map[holder]int             // of this log
	known       map[child]map[knownKey]int // what children have told of what is stable
	seen        map[child]map[life]int     // the newest write read since the last time at the head
	maxTime     map[child]int
}

type knownKey struct {
	holder
	epoch int
}

type record struct {
	change
	at int
}

type placed struct {
	change
	at int
}

type coverAt struct {
	cover
	at int
}

type checkpoint struct {
	seq     int
	cursors map[child]place
}

type batch struct {
	from child
	feed
}

func newNode(id, level, branch int, root bool) *node {
	n := &node{id: id, level: level, branch: branch, root: root, up: true, cut: map[child]bool{}}
	n.wipe()
	return n
}

// wipe is the loss of all that the node has. It comes back as a new holder.
func (n *node) wipe() {
	n.life++
	n.kept = kept{
		recs: map[key]*record{}, marks: map[life]int{}, lives: map[int]int{}, hi: map[life]int{}, cursors: map[child]place{},
		acks: map[holder]int{}, known: map[child]map[knownKey]int{}, seen: map[child]map[life]int{}, maxTime: map[child]int{},
	}
	n.pend, n.read = nil, map[child]place{}
	n.gapped = n.gapped || n.life > 1
	n.journal, n.top = map[stamp]int{}, map[key]stamp{}
}

// crash loses what is not flushed.
func (n *node) crash() {
	n.pend, n.read = nil, map[child]place{}
	for c, p := range n.cursors {
		n.read[c] = p
	}
}

func (n *node) holder() holder { return holder{n.id, n.life} }

// pull reads from a child.
func (n *node) pull(w *world, c child) bool {
	if n.cut[c] {
		return false
	}
	var at *place
	if p, ok := n.read[c]; ok {
		at = &p
	}
	f, ok := c.serve(w, n, at)
	if !ok || at != nil && f.to == *at && len(f.changes) == 0 && len(f.covers) == 0 && !f.head {
		return false
	}
	moved := at == nil || f.to != *at
	if at != nil && at.epoch != f.to.epoch && w.fault != spanEpochs {
		n.flush(w) // no flush spans two epochs of a child: its end would say nothing of the first
		delete(n.seen, c)
	}
	if !moved {
	} else if l, ok := c.(*leaf); ok {
		w.tell("%d: node %d reads leaf %d from %v to %v: %v covers %v", w.now, n.id, l.id, at, f.to, brief(f.changes), f.covers)
	} else {
		w.tell("%d: node %d reads node %d from %v to %v: %v covers %v gap %v", w.now, n.id, c.(*node).id, at, f.to, brief(f.changes), f.covers, f.gap)
	}
	n.read[c] = f.to
	n.pend = append(n.pend, batch{c, f})
	if w.fault == groupCursor && moved {
		if s, ok := c.(*node); ok {
			for _, o := range w.group(s) {
				if o != s {
					n.read[o] = place{o.life, f.to.pos}
				}
			}
		}
	}
	return moved
}

// flush makes what has been read part of the state and of the log: one commit.
func (n *node) flush(w *world) {
	if len(n.pend) == 0 {
		return
	}
	dirty := map[key]bool{}
	var alls []change
	var covers []cover
	merge := func(c change) {
		had := n.recs[c.key]
		again := had != nil && had.st == c.st || n.lives[c.st.leaf] > c.st.epoch
		if !n.merge(w, c) {
			return
		}
		if c.kind == every && !again {
			n.journal[c.st]++
		}
		if c.kind == every {
			alls = append(alls, n.recs[c.key].change)
		} else {
			dirty[c.key] = true
		}
	}
	gap := false
	for _, b := range n.pend {
		if n.seen[b.from] == nil {
			n.seen[b.from] = map[life]int{}
		}
		seen := n.seen[b.from]
		for _, c := range b.changes {
			lf := life{c.st.leaf, c.st.epoch}
			seen[lf] = max(seen[lf], c.st.ver)
			merge(c)
		}
		for _, v := range b.covers {
			if w.fault != noCovers {
				for _, k := range n.cover(v) {
					if k.kind == every {
						alls = append(alls, n.recs[k].change)
					} else {
						dirty[k] = true
					}
				}
				covers = append(covers, v)
			}
			seen[v.life] = max(seen[v.life], v.ver)
		}
		if b.head {
			for lf, v := range seen {
				if b.marks != nil {
					v = min(v, b.marks[lf]) // the child may not have all of what it has sent some
				}
				n.marks[lf] = max(n.marks[lf], v)
			}
			clear(seen)
		}
		n.cursors[b.from] = b.to
		gap = gap || b.gap
	}
	n.pend = nil
	defer func() {
		w.tell("%d: node %d flushes up to %d, cursors %v, marks %v", w.now, n.id, n.seq, n.places(), n.marks)
	}()
	order := make([]key, 0, len(dirty))
	for k := range dirty {
		order = append(order, k)
	}
	slices.SortFunc(order, compareKeys)
	w.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, k := range order {
		n.seq++
		r := n.recs[k]
		r.at = n.seq
		if w.fault == restamp {
			r.st = stamp{w.now, 1000 + n.id, n.life, n.seq}
		}
	}
	for _, c := range alls {
		n.seq++
		n.recs[c.key].at = n.seq
		if w.fault == restamp {
			c.st = stamp{w.now, 1000 + n.id, n.life, n.seq}
			n.recs[c.key].st = c.st
		}
		n.alls = append(n.alls, placed{c, n.seq})
	}
	for _, v := range covers {
		n.seq++
		n.covers = append(n.covers, coverAt{v, n.seq})
	}
	if gap {
		n.seq++
		n.gapAt, n.gapped = n.seq, true
	}
	at := map[child]place{}
	for c, p := range n.cursors {
		at[c] = p
	}
	n.checkpoints = append(n.checkpoints, checkpoint{n.seq, at})
	n.watch(w)
}

// merge is the one rule by which a change becomes part of a state.
func (n *node) merge(w *world, c change) bool {
	lf := life{c.st.leaf, c.st.epoch}
	if w.fault == leafMark {
		if c.st.ver <= n.hi[lf] {
			return false
		}
		n.hi[lf] = c.st.ver
	}
	have := n.recs[c.key]
	if c.kind == counter {
		for k, r := range n.recs { // a newer epoch has ended it
			c.del = c.del || k.kind == counter && k.n == c.n && k.leaf == c.leaf && k.epoch > c.epoch && r.ends
		}
	}
	// A newer epoch of the leaf has said what stands.
	retired := c.kind != counter && n.lives[c.st.leaf] > c.st.epoch
	c.del = c.del || retired
	switch {
	case (have == nil || have.st.less(c.st)) && (retired && have == nil && c.kind != shared || c.st.ver <= n.marks[lf]) && w.fault != noMarks:
		return false // it was deleted, and its tombstone has gone
	case have == nil:
		n.recs[c.key] = &record{change: c}
	case have.st.less(c.st):
		if w.fault == increments && c.kind == counter && !c.del {
			if !have.del {
				c.val = have.val + c.delta
			}
			if have.at > n.passed(w) {
				c.delta += have.delta
			}
		}
		have.change = c
	case have.st == c.st && c.del && !have.del:
		have.del = true
	default:
		return false
	}
	if c.kind == counter && c.ends {
		for k, r := range n.recs {
			if k.kind == counter && k.n == c.n && k.leaf == c.leaf && k.epoch < c.epoch && !r.del {
				r.del = true
			}
		}
	}
	return true
}

// passed is the place that every reader has passed.
func (n *node) passed(w *world) int {
	at := n.seq
	for _, h := range w.readers(n) {
		at = min(at, n.acks[h])
	}
	return at
}

// cover deletes what no longer stands.
func (n *node) cover(v cover) (gone []key) {
	n.lives[v.leaf] = max(n.lives[v.leaf], v.epoch)
	for k, r := range n.recs {
		older := r.st.epoch < v.epoch && k.kind != counter
		if r.st.leaf == v.leaf && !r.del && !v.keys[k] && (older || r.st.epoch == v.epoch && r.st.ver <= v.ver) {
			r.del = true
			gone = append(gone, k)
		}
	}
	n.marks[v.life] += 0 // known from now on, complete or not
	slices.SortFunc(gone, compareKeys)
	return gone
}

// watch checks that nothing older has come back.
func (n *node) watch(w *world) {
	for k, r := range n.recs {
		if r.st.less(n.top[k]) && !r.del {
			w.fail("node %d: %c%d of leaf %d is at %v, and was at %v before", n.id, k.kind, k.n, k.leaf, r.st, n.top[k])
		}
		if n.top[k].less(r.st) {
			n.top[k] = r.st
		}
	}
}

// collect lets tombstones go that every reader has passed, or, if forced, whether
// they have or not.
func (n *node) collect(w *world, forced bool) {
	passed := n.seq
	for _, h := range w.readers(n) {
		passed = min(passed, n.floor(w, h))
	}
	for k, r := range n.recs {
		if !r.del || k.kind == shared || k.kind == counter || !forced && r.at > passed {
			continue
		}
		lf := life{r.st.leaf, r.st.epoch}
		if n.marks[lf] < r.st.ver && n.lives[r.st.leaf] <= r.st.epoch && w.fault != noMarks {
			continue
		}
		delete(n.recs, k)
		if !forced || w.fault != silentGap {
			n.complete = max(n.complete, r.at)
		}
	}
	keep := n.seq
	for _, h := range w.roots() {
		keep = min(keep, n.floor(w, h))
	}
	for len(n.alls) > 0 && n.alls[0].at <= keep {
		n.trimmed = n.alls[0].at
		n.alls = n.alls[1:]
	}
}

// floor is the place up to which a holder is known to have all.
func (n *node) floor(w *world, h holder) int {
	at := 0
	for _, p := range n.checkpoints {
		ok := true
		for c, to := range p.cursors {
			known, told := n.known[c][knownKey{h, to.epoch}]
			ok = ok && told && known >= to.pos
		}
		if !ok {
			break
		}
		at = p.seq
	}
	return max(at, n.acks[h])
}

func (n *node) stable(w *world, h holder) place { return place{n.life, n.floor(w, h)} }

// learn asks a child what is stable.
func (n *node) learn(w *world, c child) {
	if n.cut[c] {
		return
	}
	if n.known[c] == nil {
		n.known[c] = map[knownKey]int{}
	}
	for _, h := range w.holders() {
		p := c.stable(w, h)
		k := knownKey{h, p.epoch}
		if had, ok := n.known[c][k]; p.pos >= 0 && (!ok || p.pos > had) {
			n.known[c][k] = p.pos
		}
	}
}

func (n *node) ack(h holder, at place) {
	if at.epoch == n.life {
		n.acks[h] = max(n.acks[h], at.pos)
	}
}

// tell passes on to a child what it and those above it have.
func (n *node) tell(w *world, c child) {
	if n.cut[c] {
		return
	}
	if at, ok := n.cursors[c]; ok {
		if w.fault == ackApplied {
			at = n.read[c]
		}
		c.ack(n.holder(), at)
	}
	for h, seq := range n.acks {
		for i := len(n.checkpoints) - 1; i >= 0; i-- {
			if p := n.checkpoints[i]; p.seq <= seq {
				if at, ok := p.cursors[c]; ok {
					c.ack(h, at)
				}
				break
			}
		}
	}
}

// forget drops a leaf that has been assigned elsewhere.
func (n *node) forget(w *world, l *leaf) {
	for k, r := range n.recs {
		if r.st.leaf != l.id || k.kind == counter && r.st.epoch < l.epoch {
			continue // what the leaf itself has lost cannot come by way of its new parents
		}
		if w.fault != reassignDeletes {
			delete(n.recs, k)
		} else if !r.del {
			n.seq++
			r.del, r.at = true, n.seq
		}
	}
	n.alls = slices.DeleteFunc(n.alls, func(p placed) bool { return p.st.leaf == l.id })
	n.covers = slices.DeleteFunc(n.covers, func(v coverAt) bool { return v.leaf == l.id })
	for lf := range n.marks {
		if lf.leaf == l.id && lf.epoch == l.epoch {
			delete(n.marks, lf)
		}
	}
	n.pend = slices.DeleteFunc(n.pend, func(b batch) bool { return b.from == child(l) })
	delete(n.read, l)
	delete(n.cursors, l)
	delete(n.seen, l)
	for _, p := range n.checkpoints {
		if p.cursors[l].epoch == l.epoch {
			delete(p.cursors, l)
		}
	}
	if w.fault == reassignDeletes {
		n.checkpoints = append(n.checkpoints, checkpoint{n.seq, cloneCursors(n.cursors)})
	}
	for k, st := range n.top {
		if st.leaf == l.id {
			delete(n.top, k)
		}
	}
}

func cloneCursors(m map[child]place) map[child]place {
	c := map[child]place{}
	for k, v := range m {
		c[k] = v
	}
	return c
}

// knows reports whether any of a branch's parents has been read.
func (n *node) knows(group []*node) bool {
	for _, s := range group {
		if _, ok := n.read[s]; ok {
			return true
		}
	}
	return false
}

// mayForget: whoever is above has all that was read of the leaf. Its old parents are told
// so by the leaf, though it is assigned elsewhere.
func (n *node) mayForget(w *world, l *leaf) bool {
	for _, h := range w.holders() {
		if known, ok := n.known[l][knownKey{h, l.epoch}]; w.above(h, n) && (!ok || known < n.read[l].pos) {
			return false
		}
	}
	return true
}

// keysOf are the keys of a leaf that stand here.
func (n *node) keysOf(l int) map[key]bool {
	m := map[key]bool{}
	for k, r := range n.recs {
		if r.st.leaf == l && !r.del || r.st.leaf != l && k.leaf < 0 {
			m[k] = true
		}
	}
	return m
}

// serve reads on from a place, to the end of a flush: each key once, at its newest
// place, and the changes of tables that are delivered as All one by one.
func (n *node) serve(w *world, to *node, at *place) (feed, bool) {
	if !n.up {
		return feed{}, false
	}
	from := 0
	switch {
	case at != nil && at.epoch == n.life:
		from = at.pos
	case !to.knows(w.group(n)) && w.fault != newByFloor:
		// A new holder takes all there is, from the first it reads of each branch.
	case w.fault == takeHead:
		from = n.seq
	case w.fault == rootsFloor && !to.root:
		from = n.seq
		for _, h := range w.roots() {
			from = min(from, n.floor(w, h))
		}
	default:
		from = n.floor(w, to.holder())
	}
	if from < n.complete {
		f := feed{to: place{n.life, n.seq}, marks: maps.Clone(n.marks), head: true, gap: from < n.gapAt}
		var rs []record
		for _, r := range n.recs {
			rs = append(rs, *r)
		}
		f.changes = n.inOrder(rs, from, n.seq)
		for lf, ver := range n.marks {
			f.covers = append(f.covers, cover{lf, ver, n.keysOf(lf.leaf)})
		}
		slices.SortFunc(f.covers, func(a, b cover) int { return cmp.Or(a.leaf-b.leaf, a.epoch-b.epoch) })
		return f, true
	}
	ends := []int{}
	for _, p := range n.checkpoints {
		if p.seq > from {
			ends = append(ends, p.seq)
		}
	}
	f := feed{to: place{n.life, from}, marks: maps.Clone(n.marks), gap: from < n.gapAt}
	if len(ends) > 0 {
		f.to.pos = ends[w.rng.IntN(min(3, len(ends)))]
	}
	var rs []record
	for _, r := range n.recs {
		if r.at > from && r.at <= f.to.pos {
			rs = append(rs, *r)
		}
	}
	f.changes = n.inOrder(rs, from, f.to.pos)
	if w.fault == byVersion {
		kept := f.changes[:0]
		for _, c := range f.changes {
			if c.st.time > to.maxTime[n] {
				kept = append(kept, c)
			}
		}
		for _, c := range kept {
			to.maxTime[n] = max(to.maxTime[n], c.st.time)
		}
		f.changes = kept
	}
	for _, v := range n.covers {
		if v.at > from && v.at <= f.to.pos {
			f.covers = append(f.covers, cover{v.life, v.ver, n.keysOf(v.leaf)})
		}
	}
	f.head = f.to.pos == n.seq
	return f, true
}

// inOrder returns records by place, with the changes of tables delivered as All
// between from and to in place of their newest.
func (n *node) inOrder(rs []record, from, to int) []change {
	held := map[int]bool{}
	var all []placed
	for _, p := range n.alls {
		if p.at > from && p.at <= to {
			held[p.at] = true
			all = append(all, p)
		}
	}
	for _, r := range rs {
		if !held[r.at] {
			all = append(all, placed{r.change, r.at})
		}
	}
	slices.SortFunc(all, func(a, b placed) int { return a.at - b.at })
	cs := make([]change, len(all))
	for i, p := range all {
		cs[i] = p.change
	}
	return cs
}

func compareKeys(a, b key) int {
	return cmp.Or(int(a.kind)-int(b.kind), a.n-b.n, a.leaf-b.leaf, a.epoch-b.epoch)
}

func (n *node) places() (ps []place) {
	for _, p := range n.cursors {
		ps = append(ps, p)
	}
	return ps
}

func brief(cs []change) (s []string) {
	for _, c := range cs {
		b := fmt.Sprintf("%c%d@%d.%d.%d", c.kind, c.n, c.st.leaf, c.st.epoch, c.st.ver)
		if c.del {
			b += "x"
		}
		s = append(s, b)
	}
	return s
}
