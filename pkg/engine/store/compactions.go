package store

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// compactions schedules a database's compactions as pebble's own scheduler does, which
// looks ten times a second whether one may run that had to wait. This one looks while one
// waits: a database at which nothing happens does not wake its process.
type compactions struct {
	*pebble.ConcurrencyLimitScheduler
	mu     sync.Mutex
	look   *time.Timer // not nil while a compaction waits
	closed bool
}

// compactionsEvery is how often it is looked whether a compaction that waits may run. One
// that ends lets the next run at once: this is for more of them that may run at a time.
const compactionsEvery = 100 * time.Millisecond

func newCompactions() *compactions {
	return &compactions{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// TrySchedule asks whether a compaction may run now. The database asks no more after it
// was refused: it is told when.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	ok, h := c.ConcurrencyLimitScheduler.TrySchedule()
	if !ok {
		c.later()
	}
	return ok, h
}

func (c *compactions) later() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.look == nil && !c.closed {
		c.look = time.AfterFunc(compactionsEvery, c.grant)
	}
}

// grant lets what waits run, if it may: what ends makes room for it.
func (c *compactions) grant() {
	c.mu.Lock()
	c.look = nil
	c.mu.Unlock()
	if ok, h := c.TrySchedule(); ok {
		h.Done()
	}
}

// Unregister ends it.
func (c *compactions) Unregister() {
	c.mu.Lock()
	c.closed = true
	if c.look != nil {
		c.look.Stop()
	}
	c.mu.Unlock()
	c.ConcurrencyLimitScheduler.Unregister()
}
