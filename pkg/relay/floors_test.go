package relay_test

import (
	"cmp"
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// plainFloors is Floors as it is defined: it looks at every flush each time.
type plainFloors struct {
	flushes []plainFlush
	acks    map[string]uint64
	has     map[string]engine.Position // by child and holder
}

type plainFlush struct {
	place uint64
	moved map[string]engine.Position
}

func (p *plainFloors) floor(holder string) (at uint64) {
	for _, f := range p.flushes {
		for child, to := range f.moved {
			if have, ok := p.has[child+"/"+holder]; !ok || have < to {
				return max(at, p.acks[holder])
			}
		}
		at = f.place
	}
	return max(at, p.acks[holder])
}

func (p *plainFloors) ackOf(child string) map[string]engine.Position {
	all := map[string]engine.Position{}
	for h, place := range p.acks {
		for _, f := range p.flushes {
			if to, ok := f.moved[child]; ok && f.place <= place {
				all[h] = to
			}
		}
	}
	return all
}

// What Floors finds in what it has sorted is what looking at every flush finds.
func TestFloorsAsDefined(t *testing.T) {
	t.Parallel()
	children, holders := []string{"a", "b", "c"}, []string{"root@1", "root@2", "east@1"}
	log := func(child string) engine.LogID { return engine.LogID{Origin: child + "#in", Epoch: 1} }
	at := func(n int) engine.Position { return engine.Position(fmt.Sprintf("%04d", n)) }
	rapid.Check(t, func(rt *rapid.T) {
		f := relay.NewFloors()
		p := &plainFloors{acks: map[string]uint64{}, has: map[string]engine.Position{}}
		place, read := uint64(0), map[string]int{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			child, holder := rapid.SampledFrom(children).Draw(rt, "child"), rapid.SampledFrom(holders).Draw(rt, "holder")
			switch n := rapid.IntRange(0, 9).Draw(rt, "n"); {
			case n < 5: // a flush; sometimes without changes
				if place += uint64(n % 3); place == 0 {
					place = 1
				}
				read[child]++
				f.Flushed(place, []engine.Cursor{{CursorKey: engine.CursorKey{Log: log(child)}, Position: at(read[child])}})
				if n := len(p.flushes); n == 0 || p.flushes[n-1].place < place {
					p.flushes = append(p.flushes, plainFlush{place, map[string]engine.Position{}})
				}
				p.flushes[len(p.flushes)-1].moved[child] = at(read[child])
			case n < 6:
				to := rapid.Uint64Range(0, place).Draw(rt, "place")
				f.Ack(holder, to)
				p.acks[holder] = max(p.acks[holder], to)
			default:
				to := at(rapid.IntRange(0, read[child]+1).Draw(rt, "at"))
				f.Has(log(child), cmp.Compare[engine.Position], holder, to)
				p.has[child+"/"+holder] = max(p.has[child+"/"+holder], to)
			}
			for _, h := range holders {
				if got, want := f.Floor(h), p.floor(h); got != want {
					rt.Fatalf("the floor of %s is %d, want %d", h, got, want)
				}
			}
			for _, c := range children {
				if got, want := f.Acks(log(c)), p.ackOf(c); !maps.Equal(got, want) {
					rt.Fatalf("the acks of %s are %v, want %v", c, got, want)
				}
			}
		}
	})
}
