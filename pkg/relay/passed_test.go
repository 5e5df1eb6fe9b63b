package relay_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// What was read of a child has passed to those that have acknowledged the flush that it is
// in, or of which the child has told so; what another child has makes no difference.
func TestPassed(t *testing.T) {
	t.Parallel()
	a, b := engine.LogID{Origin: "s/a#in", Epoch: 1}, engine.LogID{Origin: "s/b#in", Epoch: 1}
	compare := cmp.Compare[engine.Position]
	f := relay.NewFloors()
	want := func(child engine.LogID, at engine.Position, holders ...string) {
		t.Helper()
		if got := f.Passed(child, at); !slices.Equal(got, holders) {
			t.Errorf("%s at %s has passed to %v, want %v", child, at, got, holders)
		}
	}
	want(a, "1")
	f.Flushed(1, []engine.Cursor{{CursorKey: engine.CursorKey{Log: a}, Position: "1"}})
	f.Flushed(2, []engine.Cursor{{CursorKey: engine.CursorKey{Log: a}, Position: "2"}, {CursorKey: engine.CursorKey{Log: b}, Position: "7"}})
	f.Ack("east", 1)
	want(a, "2")
	f.Ack("east", 2)
	want(a, "2", "east")
	want(b, "7", "east")
	f.Flushed(3, []engine.Cursor{{CursorKey: engine.CursorKey{Log: b}, Position: "8"}}) // a is where it was
	want(a, "2", "east")
	want(b, "8")
	f.Has(b, compare, "west", "9")
	want(b, "8", "west")
	want(a, "2", "east")
}
