package engine_test

import (
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Tables are ordered by their parts, and not by what they read like.
func TestTableNameCompare(t *testing.T) {
	t.Parallel()
	want := []engine.TableName{{Schema: "", Name: "z"}, {Schema: "a", Name: "b.c"}, {Schema: "a", Name: "c"}, {Schema: "a.a", Name: "a"}, {Schema: "b", Name: ""}}
	got := slices.Clone(want)
	slices.Reverse(got)
	if slices.SortFunc(got, engine.TableName.Compare); !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
	if n := want[1].Compare(want[1]); n != 0 {
		t.Errorf("a table compares to itself as %d", n)
	}
}
