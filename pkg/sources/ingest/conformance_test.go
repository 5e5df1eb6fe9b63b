package ingest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine/sourcetest"
)

// The suite that every source passes, against the real engine.
func TestConformance(t *testing.T) { // not parallel: the suite looks for goroutines left behind
	sourcetest.Run(t, func(t testing.TB) sourcetest.Fixture {
		s, err := New(Config{Tables: testTables(), MaxPending: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		r, m := rand.New(rand.NewPCG(1, 2)), newModel()
		return sourcetest.Fixture{
			Source: s,
			// What is written while the source is paused waits, so this does not.
			Mutate: func(n int) {
				mu.Lock()
				defer mu.Unlock()
				for n > 0 {
					b := randomBatch(r, min(n, 1+r.IntN(20)))
					n -= len(b.Ops)
					ops, bytes, err := s.check(b)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := s.enqueue(&request{ops: ops, bytes: int64(bytes), done: make(chan struct{})}); err != nil {
						t.Fatal(err)
					}
					m.apply(b)
				}
			},
			Truth: func() sourcetest.Rows {
				mu.Lock()
				defer mu.Unlock()
				return m.rows()
			},
		}
	})
}
