package relay

import (
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Two children come in one commit, and the first has more of a leaf. What the second has
// besides was deleted since: it does not come back. While the first is being taken in
// nothing follows from what it has brought so far, nor from a commit that was given up.
func TestKnownWithinACommit(t *testing.T) {
	t.Parallel()
	leaf, other := engine.LogID{Origin: "leaf#in", Epoch: 1}, engine.LogID{Origin: "other#in", Epoch: 1}
	k := known{marks: map[engine.LogID]engine.Time{}, saved: map[engine.LogID]engine.Time{}, covers: map[string]covered{}}
	below := func(l engine.LogID, at engine.Time) bool {
		return k.judge(engine.Stamp{Time: at, Origin: l.Origin, Epoch: l.Epoch}).Below
	}
	for _, by := range []string{"a row", "a cover"} {
		k.begin()
		if by == "a row" {
			k.judge(engine.Stamp{Time: 10, Origin: leaf.Origin, Epoch: leaf.Epoch})
		} else {
			k.covering([]engine.Mark{{Log: leaf, Time: 10}}, 1)
		}
		if below(leaf, 5) {
			t.Errorf("%s: an older write of the same child is below it", by)
		}
		below(other, 7)
		k.moved()
		if !below(leaf, 5) || !below(leaf, 10) || below(leaf, 11) {
			t.Errorf("%s: of another child, 5 is below: %t, 10: %t, and 11: %t", by, below(leaf, 5), below(leaf, 10), below(leaf, 11))
		}
		if !below(other, 7) || below(other, 8) {
			t.Errorf("%s: of another leaf, 7 is below: %t, and 8: %t", by, below(other, 7), below(other, 8))
		}
	}
	k.begin()
	if below(leaf, 5) {
		t.Error("a commit that was given up has left a mark")
	}
	k.judge(engine.Stamp{Time: 20, Origin: leaf.Origin, Epoch: leaf.Epoch})
	k.moved()
	k.committed()
	k.begin()
	if !below(leaf, 20) || below(leaf, 21) {
		t.Error("the mark of a commit is another")
	}
}
