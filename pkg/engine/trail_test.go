package engine_test

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A trail says of each place what a list of all places would, and never more than is known.
func TestTrail(t *testing.T) {
	t.Parallel()
	pos := func(n int) engine.Position { return engine.LSN(n).Position() }
	rapid.Check(t, func(t *rapid.T) {
		var trail engine.Trail
		places := []map[engine.TableName]engine.Reached{{}} // at each place, from 0
		known := 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0: // it goes another way from an earlier place on
				if len(places) > known+1 {
					places = places[:rapid.IntRange(known+1, len(places)-1).Draw(t, "back")]
					trail = trail.Until(pos(len(places)-1), engine.CompareLSN)
				}
			case 1:
				known = rapid.IntRange(known, len(places)-1).Draw(t, "oldest")
				trail = trail.Since(pos(known), engine.CompareLSN)
			default:
				behind := map[engine.TableName]engine.Reached{}
				for _, name := range []string{"a", "b"} {
					if rapid.Bool().Draw(t, name) {
						behind[engine.TableName{Name: name}] = engine.Reached{Position: pos(rapid.IntRange(0, 2).Draw(t, "to"))}
					}
				}
				trail = trail.With(pos(len(places)), behind, engine.CompareLSN)
				places = append(places, behind)
			}
			for n, want := range places {
				have, ok := trail.At(pos(n), engine.CompareLSN)
				if n >= known && (!ok || !maps.Equal(have, want)) {
					t.Fatalf("at %d: %v (known: %v), want %v; from %d on, of %v", n, have, ok, want, known, trail)
				}
			}
		}
	})
}

// A trail is bounded, and what it has let go of is not known.
func TestTrailIsBounded(t *testing.T) {
	t.Parallel()
	var trail engine.Trail
	for n := 1; n <= 10_000; n++ {
		trail = trail.With(engine.LSN(n).Position(), map[engine.TableName]engine.Reached{{Name: fmt.Sprint(n)}: {}}, engine.CompareLSN)
	}
	if len(trail) > 4096 {
		t.Errorf("%d steps", len(trail))
	}
	if _, known := trail.At(engine.LSN(1).Position(), engine.CompareLSN); known {
		t.Error("the first place is known")
	}
	if behind, known := trail.At(engine.LSN(10_000).Position(), engine.CompareLSN); !known || len(behind) != 1 {
		t.Errorf("the last: %v, known: %v", behind, known)
	}
}
