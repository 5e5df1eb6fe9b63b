package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// request is a batch that waits for its commit.
type request struct {
	ops   []operation
	bytes int64
	fact  string // of its idempotency key, or ""
	state atomic.Int32
	done  chan struct{} // closed once result or err are there
	// Of the goroutine that commits, until done is closed.
	result Result
	err    *Error
}

// The states of a request. Whoever takes it out of queued says what becomes of
// it.
const (
	queued    int32 = iota
	taken           // it is part of a commit
	abandoned       // its writer waits no more: it is left out
)

// Bounds of what shares a commit.
const (
	maxGroup      = 512
	maxGroupBytes = 8 << 20
)

// Write commits a batch, and returns once that is durable if the store is. It
// waits until ctx ends or Config.Timeout has passed. The error is an *Error.
func (s *Source) Write(ctx context.Context, b *Batch) (Result, error) {
	began := time.Now()
	res, bytes, err := s.write(ctx, b)
	s.metrics.observe(b, res, bytes, err, time.Since(began))
	if err != nil {
		return Result{}, err
	}
	return res, nil
}

func (s *Source) write(ctx context.Context, b *Batch) (Result, int, *Error) {
	ops, bytes, err := s.check(b)
	if err != nil {
		return Result{}, bytes, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	r := &request{ops: ops, bytes: int64(bytes), fact: fact(b.Writer, b.Key), done: make(chan struct{})}
	first, err := s.enqueue(r)
	if err != nil || first != nil {
		if first != nil {
			return *first, bytes, nil
		}
		return Result{}, bytes, err
	}
	select {
	case <-r.done:
		return r.answer(bytes)
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(queued, abandoned) {
		s.drop(r)
		return Result{}, bytes, refuse(Unavailable, -1, "nothing was written: the batch waited for %s, and %s", waited(ctx), s.why())
	}
	select {
	case <-r.done: // just in time
		return r.answer(bytes)
	default:
	}
	return Result{}, bytes, refuse(Unknown, -1, "the batch is being committed, and it is not known yet whether it will be: %s; send it again with the same idempotency key to learn it", s.why())
}

func waited(ctx context.Context) string {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return "as long as it may"
	}
	return "as long as its writer did"
}

func (r *request) answer(bytes int) (Result, int, *Error) {
	if r.err != nil {
		return Result{}, bytes, r.err
	}
	return r.result, bytes, nil
}

// why says what a batch waits for.
func (s *Source) why() string {
	if s.cfg.Stalled != nil {
		if err := s.cfg.Stalled(); err != nil {
			return fmt.Sprintf("the store cannot commit: %v", err)
		}
	}
	if s.cfg.Full != nil {
		if why := s.cfg.Full(); why != "" {
			return why
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.paused:
		return "the source is paused"
	case !s.live:
		return "the source does not run: see the node's status"
	}
	return fmt.Sprintf("the store is busy with the %d batches that wait", s.pending)
}

// enqueue puts a request in line. A batch that was committed before is answered
// with its first result.
func (s *Source) enqueue(r *request) (*Result, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, ok := s.known(r); ok {
		return first, nil
	}
	switch {
	case s.drained:
		return nil, refuse(Unavailable, -1, "nothing was written: the node is about to end; send the batch again shortly, or to another node")
	case s.pending >= s.cfg.MaxPending:
		return nil, refuse(Busy, -1, "nothing was written: %d batches wait to be committed, as many as are let in; send the batch again shortly", s.pending)
	case s.bytes+r.bytes > s.cfg.MaxPendingBytes:
		return nil, refuse(Busy, -1, "nothing was written: batches of %d bytes wait to be committed, and with this one it would be more than the %d that are let in; send it again shortly", s.bytes, s.cfg.MaxPendingBytes)
	}
	s.pending++
	s.bytes += r.bytes
	s.queue = append(s.queue, r)
	s.rouse()
	return nil, nil
}

// known returns the first result of a batch that was committed before. Callers
// hold s.mu.
func (s *Source) known(r *request) (*Result, bool) {
	if r.fact == "" {
		return nil, false
	}
	first, ok := s.keys.byFact[r.fact]
	first.Repeated = true
	return &first, ok
}

// rouse wakes Stream. Callers hold s.mu.
func (s *Source) rouse() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// take returns what is to be committed next, or a channel that is closed when it
// is worth asking again. Of batches with one key only the first goes: the others
// wait to be answered by its result.
func (s *Source) take() (g []*request, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		return nil, s.wake
	}
	var rest []*request
	var bytes int64
	facts := map[string]bool{}
	for i, r := range s.queue {
		if len(g) == maxGroup || len(g) > 0 && bytes+r.bytes > maxGroupBytes {
			rest = append(rest, s.queue[i:]...)
			break
		}
		first, repeated := s.known(r)
		switch {
		case repeated && r.state.CompareAndSwap(queued, taken):
			r.result = *first
			s.finish(r)
		case repeated: // its writer waits no more
		case r.fact != "" && facts[r.fact]:
			rest = append(rest, r)
		default:
			facts[r.fact] = true
			bytes += r.bytes
			g = append(g, r)
		}
	}
	s.queue = rest
	return g, s.wake
}

// settle answers the requests of a group. Of a commit that failed, those that
// had no part in it wait for the next. Callers hold s.mu.
func (s *Source) settle(g []*request, err error) {
	var again []*request
	for _, r := range g {
		switch {
		case r.state.Load() == abandoned:
		case err == nil:
			s.finish(r)
		case r.state.Load() == queued:
			again = append(again, r)
		case r.err != nil: // it would have failed whatever became of the commit, but it is not known what it saw
			r.err = nil
			fallthrough
		default:
			r.err = refuse(Unknown, -1, "the commit ended with an error, and it is not known whether the batch was written: %w; send it again with the same idempotency key to learn it", err)
			s.finish(r)
		}
	}
	s.queue = append(again, s.queue...)
}

// finish answers a request. Callers hold s.mu.
func (s *Source) finish(r *request) {
	s.pending--
	s.bytes -= r.bytes
	close(r.done)
}

// drop takes out a request that was abandoned.
func (s *Source) drop(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	s.bytes -= r.bytes
	for i, q := range s.queue {
		if q == r {
			s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
			return
		}
	}
}
