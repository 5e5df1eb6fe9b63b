package relay_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// What is stable is what every registered root has, whichever parent says so; of a
// root that came back empty, its new life counts.
func TestLeaf(t *testing.T) {
	t.Parallel()
	log := engine.LogID{Origin: "leaf#in", Epoch: 1}
	l := relay.NewLeaf(func(engine.LogID) engine.Comparator { return engine.CompareNumber })
	expect := func(at engine.Position, ok bool) {
		t.Helper()
		if got, is := l.Kept(log); got != at || is != ok {
			t.Errorf("the log is kept above %q, %t, want %q, %t", got, is, at, ok)
		}
	}
	expect("", true) // nobody has said who the roots are
	l.SetRoots([]string{"x", "y"})
	expect("", true)
	l.Acked(log, map[string]engine.Position{"x@1": "10", "branch@1": "3"})
	expect("", true) // y has nothing
	l.Acked(log, map[string]engine.Position{"y@1": "7", "x@1": "9"})
	expect("7", true)
	want := []relay.RootHas{{Root: "y", At: "7"}, {Root: "x", At: "10"}}
	if d := cmp.Diff(want, l.Roots(log)); d != "" {
		t.Error(d)
	}
	if at := l.Floor(log, "branch@1"); at != "3" {
		t.Errorf("the floor of a relay is %q", at)
	}
	if at := l.Floor(log, "branch@2"); at != "" {
		t.Errorf("the floor of another life is %q", at)
	}
	l.Acked(log, map[string]engine.Position{"x@2": "1"})
	expect("1", true)
	l.SetRoots([]string{"y"})
	expect("7", true)
	l.SetRoots(nil)
	expect("", false) // nobody is waited for

	// Another epoch is another log.
	l.SetRoots([]string{"y"})
	next := engine.LogID{Origin: "leaf#in", Epoch: 2}
	l.Acked(next, map[string]engine.Position{"y@1": "2"})
	if at, _ := l.Kept(next); at != "2" {
		t.Errorf("the new epoch is kept above %q", at)
	}
	expect("", true)
}
