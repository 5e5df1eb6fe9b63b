package relay

import (
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Passed returns the holders that have a child's log up to where it was read: by what
// they have acknowledged here, or as the child has told.
func (f *Floors) Passed(child engine.LogID, at engine.Position) (holders []string) {
	for h, have := range f.Acks(child) {
		if have == at {
			holders = append(holders, h)
		}
	}
	for k, have := range f.known {
		if k.child == child && have.compare(at, have.at) <= 0 && !slices.Contains(holders, k.holder) {
			holders = append(holders, k.holder)
		}
	}
	slices.Sort(holders)
	return holders
}

// Passed returns the holders above that have a child's log up to the cursor that is kept
// in it, whichever way it came to them.
func (r *Reoriginate) Passed(child engine.LogID, at engine.Position) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.floors.Passed(child, at)
}
