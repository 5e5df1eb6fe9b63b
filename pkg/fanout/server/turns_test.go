package server

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Turns come in the order in which they were asked for; who is away is passed
// over and keeps its place; what is given back while it waits is out of the queue.
func TestTurns(t *testing.T) {
	t.Parallel()
	q := turns{metrics: newMetrics(nil), free: 2}
	all := make([]*turn, 8)
	for i := range all {
		all[i] = q.ask()
	}
	has := func(want ...int) {
		t.Helper()
		var have []int
		for i, n := range all {
			if n != nil && n.has() {
				have = append(have, i)
			}
		}
		if !slices.Equal(have, want) {
			t.Fatalf("turn of %v, want %v", have, want)
		}
		if got := int(testutil.ToFloat64(q.metrics.scanning)); got != len(want) {
			t.Fatalf("%d scans are counted, of %d", got, len(want))
		}
	}
	done := func(i int) {
		q.done(all[i])
		all[i] = nil
	}
	has(0, 1)
	done(0)
	has(1, 2)
	q.leave(all[1]) // whose turn it is
	has(2, 3)
	done(2)
	has(3, 4)
	q.back(all[1])
	has(3, 4)
	q.leave(all[5]) // whose turn it is not yet
	done(6)         // neither
	done(3)
	has(1, 4)
	done(1)
	has(4, 7)
	q.back(all[5])
	done(4)
	has(5, 7)
	done(5)
	done(7)
	has()
	if q.free != 2 || len(q.queue) != 0 || testutil.ToFloat64(q.metrics.queued) != 0 {
		t.Errorf("%d free, %d in the queue", q.free, len(q.queue))
	}
}
