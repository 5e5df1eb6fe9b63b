package sim

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestTree runs relay trees.
func TestTree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if *seedFlag != 0 {
			w := execute(newTree(*seedFlag, kindsOf(*seedFlag)), noPlant, true)
			if *traceFlag != "" {
				if err := os.WriteFile(*traceFlag, w.trace, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if w.failed != nil {
				report(t, w.plan, w.failed)
			}
			return
		}
		began, n := realNow(), 0
		var steps int
		var frames int64
		var simulated time.Duration
		for i := range *seedsFlag {
			if *timeFlag > 0 && realNow().Sub(began) > *timeFlag {
				break
			}
			seed := *firstFlag + uint64(i)
			w := execute(newTree(seed, kindsOf(seed)), noPlant, false)
			if w.failed != nil {
				report(t, w.plan, w.failed)
				return
			}
			n, steps, frames, simulated = n+1, steps+w.steps, frames+w.frames, simulated+w.now
		}
		t.Logf("%d seeds in %s: %d events, %d frames, %s simulated", n, realNow().Sub(began).Round(time.Millisecond), steps, frames, simulated.Round(time.Second))
	})
}

// TestTreePlanted puts bugs into relay trees: each is found.
func TestTreePlanted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		plant plant
		kinds treeKinds
		as    []string // kinds of the failure
	}{
		{lateSync, treeKinds{}, []string{"told"}},
		{originMark, treeKinds{}, []string{"held", "stuck"}},
		{headFloor, treeKinds{}, []string{"held", "stuck"}},
		{forgetful, treeKinds{}, []string{"back", "stuck", "held", "twice"}}, // an older write by the other parent is new again
		{headAcks, treeKinds{}, []string{"held"}},
	} {
		t.Run(string(c.plant), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const seeds = 60
				for seed := uint64(1); seed <= seeds; seed++ {
					w := execute(newTree(seed, c.kinds), c.plant, false)
					if w.failed == nil {
						continue
					}
					if f := w.failed.(*failure); !slices.Contains(c.as, f.kind) {
						t.Errorf("seed %d: it is found as %v; want a failure of one of the kinds %q", seed, f, c.as)
					}
					if w := execute(newTree(seed, c.kinds), noPlant, false); w.failed != nil {
						t.Errorf("seed %d without the bug: %v", seed, w.failed)
					}
					t.Logf("found by seed %d: %.300v", seed, w.failed)
					return
				}
				t.Errorf("not found by %d seeds", seeds)
			})
		})
	}
}

// TestTreeReplay checks that a tree's seed does the same every time.
func TestTreeReplay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for seed := uint64(1); seed <= 5; seed++ {
			a, b := execute(newTree(seed, kindsOf(seed)), noPlant, true), execute(newTree(seed, kindsOf(seed)), noPlant, true)
			if !bytes.Equal(a.trace, b.trace) {
				t.Errorf("seed %d: the traces of two runs differ", seed)
			}
		}
	})
}

// TestTreeFound runs seeds that have found something once.
func TestTreeFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, seed := range []uint64{
			518, // a relay took it that a reader knew more of its log, which had begun where nothing was
			// A leaf is gone for good, of which one relay had read more than the other: a root turned to the other, and kept its rows.
			40217, // it had the rest by the relay that it had left
			40528, // the floor was past the place that says that the leaf is gone
			50099, // as the first
			56907, // a leaf was told twice to take an epoch above: what had been left of a share in the first took its place
			58482, // two relays came in one commit: a row that the first had truncated came back by the second
		} {
			if w := execute(newTree(seed, kindsOf(seed)), noPlant, false); w.failed != nil {
				report(t, w.plan, w.failed)
			}
		}
	})
}
