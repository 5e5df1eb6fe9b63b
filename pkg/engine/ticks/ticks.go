// Package ticks has tickers that tick together. What wakes a process that is idle costs
// it more than what it then does: a node has some ticker for each session, and a machine
// may run hundreds of nodes. Tickers of one interval, or of multiples of one, wake the
// process once.
package ticks

import (
	"sync"
	"time"
)

var started = time.Now()

// Ticker is a ticker that all others of the process tick with.
type Ticker struct {
	C <-chan time.Time // the ticks; one that nobody takes is dropped

	every   time.Duration
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// New returns a ticker of an interval above 0. Its first tick comes within that.
func New(every time.Duration) *Ticker {
	c := make(chan time.Time, 1)
	t := &Ticker{C: c, every: every}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(t.left(), func() {
		select {
		case c <- time.Now():
		default:
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.stopped {
			t.timer.Reset(t.left())
		}
	})
	return t
}

// left is how long it is to the next tick.
func (t *Ticker) left() time.Duration { return t.every - time.Since(started)%t.every }

// Stop ends the ticks. It does not close C.
func (t *Ticker) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	t.timer.Stop()
}
