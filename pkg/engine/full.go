package engine

import (
	"context"
	"time"
)

// OnFull is what a node does when its logs hold as much as they may, and somebody
// still needs all of it.
type OnFull string

// What is done.
const (
	// OnFullRebaseline lets the oldest go: who lacks it takes a baseline. It is what is
	// done if nothing is said.
	OnFullRebaseline OnFull = "Rebaseline"
	// OnFullBlock holds up what the node mints.
	OnFullBlock OnFull = "Block"
)

// Full says that the logs are full, and writes wait.
type Full struct {
	Since time.Time
	Bytes int64 // held
	Limit int64
}

// fill notes whether the logs are full, or lets go on who waits.
func (e *Engine) fill(held int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	limit := e.retention.MaxBytes
	switch full := e.retention.OnFull == OnFullBlock && held > limit; {
	case full && e.full == nil:
		e.full, e.emptied = &Full{Since: e.now(), Limit: limit}, make(chan struct{})
		e.log.Warn("the logs are full, and all of it is needed: writes wait", "bytes", held, "limit", limit)
	case !full && e.full != nil:
		e.full = nil
		close(e.emptied)
		e.log.Info("the logs are not full any more: writes go on")
	}
	if e.full != nil {
		e.full.Bytes = held
	}
}

// room waits while the logs are full.
func (e *Engine) room(ctx context.Context) error {
	for {
		e.mu.Lock()
		full, emptied := e.full != nil, e.emptied
		e.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-emptied:
		}
	}
}
