package ticks_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine/ticks"
)

// Tickers that were made at different times tick at the same ones, and one of twice the
// interval with every second of them.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 250 * time.Millisecond
		a := ticks.New(every)
		time.Sleep(90 * time.Millisecond)
		b := ticks.New(every)
		time.Sleep(70 * time.Millisecond)
		c := ticks.New(2 * every)
		defer b.Stop()
		defer c.Stop()
		seen := map[time.Time]int{}
		for range 8 {
			seen[<-a.C]++
			seen[<-b.C]++
		}
		for range 3 {
			seen[<-c.C]++ // the channel has the first of them; the others come
		}
		if len(seen) > 8+3 {
			t.Errorf("%d times were ticked at: %v", len(seen), seen)
		}
		both := 0
		for _, n := range seen {
			if n >= 2 {
				both++
			}
		}
		if both < 7 {
			t.Errorf("%d of 8 ticks came together: %v", both, seen)
		}
		synctest.Wait()
		a.Stop()
		for len(a.C) > 0 {
			<-a.C
		}
		time.Sleep(4 * every)
		if len(a.C) > 0 {
			t.Error("it ticks after Stop")
		}
	})
}
