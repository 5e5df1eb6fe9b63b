package relaymodel

import (
	"flag"
	"testing"
)

var (
	seeds  = flag.Uint64("seeds", 1500, "how many worlds TestModel tries")
	only   = flag.Uint64("seed", 0, "the one world that TestModel tries, with all that happens in it")
	shares = flag.Uint64("shares", 0, "how many worlds TestAlternatives tries, to say in how many of them each fails; 0: until the first")
)

// enough worlds to find out the rarest of the alternatives.
const enough = 10_000

func TestModel(t *testing.T) {
	t.Parallel()
	if *only > 0 {
		if err := run(*only, none, t.Logf); err != nil {
			t.Fatalf("seed %d: %v", *only, err)
		}
		return
	}
	bad := 0
	for seed := uint64(1); seed <= *seeds && bad < 5; seed++ {
		if err := run(seed, none, nil); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			bad++
		}
	}
}

// Each of the obvious alternatives loses something.
func TestAlternatives(t *testing.T) {
	t.Parallel()
	for f := none + 1; f < faults; f++ {
		if byHand[f] != nil && *shares == 0 {
			continue
		}
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			tried, bad, first := uint64(0), 0, ""
			for tried < *shares || *shares == 0 && bad == 0 && tried < enough {
				tried++
				if err := run(tried, f, nil); err != nil {
					if bad++; first == "" {
						first = err.Error()
					}
				}
			}
			t.Logf("%-16s fails in %d of %d worlds, %.2f %%: %s", f, bad, tried, 100*float64(bad)/float64(tried), first)
			if bad == 0 && byHand[f] == nil {
				t.Error("it is not found out")
			}
		})
	}
}

// What takes more than chance to find.
func TestByHand(t *testing.T) {
	t.Parallel()
	for f, story := range byHand {
		for _, with := range []fault{none, f} {
			w := emptyWorld(1, with)
			w.leaves = []*leaf{newLeaf(0, 0)}
			story(w)
			w.check()
			if (w.err != nil) != (with == f) {
				t.Errorf("%s: with %s: %v", f, with, w.err)
			}
			if with == f {
				t.Logf("%-16s %v", f, w.err)
			}
		}
	}
}

var byHand = map[fault]func(w *world){
	// What every root has may have come by way of another relay. A root that starts
	// from this one later would never get it.
	rootsFloor: func(w *world) {
		l := w.leaves[0]
		m, b, r := w.twoLevels()
		w.read(m[0], l)
		w.read(m[1], l)
		w.read(b[0], m[0]) // and then it loses touch with it
		w.write(l)
		w.read(m[0], l)
		w.read(m[1], l)
		w.read(b[1], m[0])
		w.read(r, b[1])
		r.tell(w, b[1])
		b[1].tell(w, m[0])
		m[0].tell(w, l)
		m[1].learn(w, l)
		w.read(b[0], m[1])
		r.wipe()
		w.read(r, b[0])
	},
	// A relay that has forgotten a leaf says that a root has all that it has. The
	// relay above has had more from it, and does not send it.
	forgetAtOnce: func(w *world) {
		l := w.leaves[0]
		m, b, r := w.twoLevels()
		w.read(r, b[0]) // nothing yet
		w.write(l)
		w.read(m[0], l)
		w.read(b[1], m[0])
		l.branch = 1
		w.forget(m[0])
		b[1].learn(w, m[0])
		w.read(r, b[1])
		m[1].branch = 1 // the leaf's new parent
		w.read(m[1], l)
		w.read(b[1], m[1])
		w.read(r, b[1])
	},
	// The same, where the leaf was forgotten in time, by a root that came later.
	newByFloor: func(w *world) {
		l := w.leaves[0]
		m, b, r := w.twoLevels()
		w.write(l)
		w.read(m[0], l)
		for _, n := range b {
			w.read(n, m[0])
			n.tell(w, m[0])
		}
		w.read(r, b[0])
		r.tell(w, b[0])
		b[0].tell(w, m[0])
		m[0].tell(w, l)
		m[0].learn(w, l)
		l.branch = 1
		w.forget(m[0])
		r.wipe()
		b[0].learn(w, m[0])
		w.read(r, b[0])
	},
	// The end of the flush says that nothing of the second epoch has come, and so
	// that everybody has all of it. The end of the first is in it too.
	spanEpochs: func(w *world) {
		l := w.leaves[0]
		m, b, r := w.twoLevels()
		w.read(r, b[0]) // nothing yet
		w.write(l)
		w.read(m[0], l)
		for b[1].pull(w, m[0]) {
		}
		m[0].wipe()
		b[1].pull(w, m[0])
		b[1].flush(w)
		w.read(m[0], l)
		w.read(b[1], m[0])
		b[1].learn(w, m[0])
		w.read(r, b[1])
	},
	// The baseline lacks what was written since, the flush says that all is there, and
	// nobody sends the root what it is said to have. Then the leaf loses all.
	fuzzyBaseline: func(w *world) {
		l := w.leaves[0]
		m, b, r := w.twoLevels()
		w.read(r, b[1])
		w.read(b[1], m[1])
		w.write(l)
		w.read(m[0], l)
		w.read(b[0], m[0])
		l.trim(l.ver)
		w.write(l)
		m[1].pull(w, l)
		m[1].flush(w)
		w.read(b[1], m[1])
		w.read(r, b[1])
		r.tell(w, b[1])
		b[1].tell(w, m[1])
		m[1].tell(w, l)
		m[0].learn(w, l)
		b[0].learn(w, m[0])
		w.read(r, b[0])
		l.wipe(w)
		w.read(m[0], l)
		w.read(b[0], m[0])
		w.read(r, b[0])
	},
}

// twoLevels makes two relays over the leaf, two over these, and a root.
func (w *world) twoLevels() (m, b []*node, r *node) {
	m = []*node{w.add(1, 0, false), w.add(1, 0, false)}
	b = []*node{w.add(2, -1, false), w.add(2, -1, false)}
	r = w.add(3, -1, true)
	w.join(b[0], [][]*node{m})
	w.join(b[1], [][]*node{m})
	w.join(r, [][]*node{b})
	return m, b, r
}

// read reads all that a child has, and stores it.
func (w *world) read(n *node, c child) {
	for n.pull(w, c) {
	}
	n.flush(w)
}

// write makes some changes.
func (w *world) write(l *leaf) {
	for to := l.ver + 20; l.ver < to; {
		l.write(w)
	}
}
