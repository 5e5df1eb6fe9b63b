package topology

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawNames(t *rapid.T, prefix string, least, most int) []string {
	out := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprint(prefix, rapid.IntRange(0, 2*most).Draw(t, "n"))
	}), least, most, rapid.ID).Draw(t, prefix)
	return out
}

// Through any history of leaves and branches that come and go: every leaf has a branch,
// branches differ by at most one leaf, no assignment that is as even moves fewer, and the
// order of the names makes no difference.
func TestAssign(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before := map[string]string{}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			children, groups := drawNames(t, "leaf", 0, 60), drawNames(t, "b", 1, 12)
			got := assign(children, groups, before)
			if d := cmp.Diff(got, assign(rapid.Permutation(children).Draw(t, "children"), rapid.Permutation(groups).Draw(t, "groups"), before)); d != "" {
				t.Fatalf("the order of the names makes a difference: %s", d)
			}
			load, had, moved := map[string]int{}, map[string]int{}, 0
			for _, c := range children {
				g, ok := got[c]
				if !ok || !slices.Contains(groups, g) {
					t.Fatalf("%s has the group %q of %v", c, g, groups)
				}
				load[g]++
				if b, ok := before[c]; ok && slices.Contains(groups, b) {
					had[b]++
					if b != g {
						moved++
					}
				}
			}
			least, most := len(children), 0
			for _, g := range groups {
				least, most = min(least, load[g]), max(most, load[g])
			}
			if most-least > 1 {
				t.Fatalf("groups have from %d to %d: %v", least, most, load)
			}
			if want := fewestMoves(groups, had, len(children)); moved != want {
				t.Fatalf("%d moved, and %d had to: %v", moved, want, had)
			}
			if d := cmp.Diff(got, assign(children, groups, got)); d != "" {
				t.Fatalf("it does not stay: %s", d)
			}
			before = got
		}
	})
}

// fewestMoves tries every way of giving some groups one more than the others: by the
// number of those, of each which groups does not matter but by what they had.
func fewestMoves(groups []string, had map[string]int, children int) int {
	share, larger := children/len(groups), children%len(groups)
	total, over, larges := 0, 0, 0
	for _, g := range groups {
		total += had[g]
		over += min(had[g], share)
		if had[g] > share {
			larges++
		}
	}
	return total - over - min(larger, larges)
}

// A branch that is added takes its share and no more; one that is lost gives up what it
// had and no more; and so do leaves.
func TestAssignMovesFew(t *testing.T) {
	t.Parallel()
	var leaves []string
	for i := range 1000 {
		leaves = append(leaves, fmt.Sprintf("shops/till-%d", i))
	}
	groups := []string{"b0", "b1", "b2", "b3"}
	moved := func(a, b map[string]string) (n int) {
		for c := range b {
			if a[c] != "" && a[c] != b[c] {
				n++
			}
		}
		return n
	}
	first := assign(leaves, groups, nil)
	more := assign(leaves, append(groups, "b4"), first)
	if n := moved(first, more); n != 200 {
		t.Errorf("a branch more moves %d of 1000", n)
	}
	less := assign(leaves, groups[1:], first)
	if n := moved(first, less); n != 250 {
		t.Errorf("a branch less moves %d of 1000", n)
	}
	if n := moved(first, assign(leaves[:999], groups, first)); n > 1 {
		t.Errorf("a leaf less moves %d", n)
	}
	if n := moved(first, assign(append(slices.Clone(leaves), "new"), groups, first)); n != 0 {
		t.Errorf("a leaf more moves %d", n)
	}
	if back := assign(leaves, groups, more); moved(more, back) != 200 {
		t.Errorf("and back it moves %d", moved(more, back))
	}
	if got := assign(leaves, nil, first); len(got) != 0 {
		t.Errorf("without branches: %d", len(got))
	}
	// without a before, names alone decide: most are where they are with one branch more
	if n := moved(first, assign(leaves, append(groups, "b4"), nil)); n > 450 {
		t.Errorf("from nothing, a branch more moves %d of 1000", n)
	}
}
