package client

import (
	"testing"
	"time"
)

func TestRedial(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var r redial
	next := func(atMost, away, want time.Duration) {
		t.Helper()
		if got := r.next(atMost, away, 0.5); got != want {
			t.Errorf("waits %s, want %s", got, want)
		}
	}
	next(0, 0, 100*ms)
	next(0, 0, 200*ms)
	r.ended(lasting-1, false) // as another that has failed
	next(0, 0, 400*ms)
	for range 10 {
		r.next(0, 0, 0.5)
	}
	next(0, 0, backoffMax)
	next(500*ms, 0, 500*ms)
	r.ended(lasting, false)
	next(0, 0, 100*ms)
	r.next(0, 0, 0.5)
	r.ended(0, true)
	next(0, 0, 100*ms)
	next(0, time.Second, 1125*ms) // it has asked for it
	next(0, 1, 400*ms)            // to ask for less helps nobody
	next(0, time.Hour, maxAway+maxAway/8)
	r.ended(0, true)
	if least, most := r.next(0, 0, 0), r.next(0, 0, 1); least != 50*ms || most != 300*ms {
		t.Errorf("waits %s and %s", least, most)
	}
}
