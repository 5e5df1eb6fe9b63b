package server

import (
	"slices"
	"sync"
)

// turns lets a few sessions at a time read frames of baselines, in the order in
// which they ask. A turn is one frame: a reader with a large table, or one that
// takes its frames slowly, is behind the others again after each.
type turns struct {
	metrics *metrics

	mu    sync.Mutex
	free  int
	queue []*turn
}

// turn is a place in the queue.
type turn struct {
	come chan struct{} // closed when it is one's turn; of its session's one goroutine
	away bool          // passed over
}

// ask queues up. Give the turn back with done, also one that has not come.
func (t *turns) ask() *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := &turn{come: make(chan struct{})}
	t.queue = append(t.queue, n)
	t.next()
	return n
}

func (t *turns) done(n *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, n); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	} else {
		t.free++
		t.metrics.scanning.Dec()
	}
	t.next()
}

// leave keeps the place of one that may block: what comes meanwhile is others'.
func (t *turns) leave(n *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.away = true
	if n.has() {
		n.come = make(chan struct{})
		t.queue = slices.Insert(t.queue, 0, n)
		t.free++
		t.metrics.scanning.Dec()
		t.next()
	}
}

// back undoes leave.
func (t *turns) back(n *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.away = false
	t.next()
}

// next lets in those at the front; mu is held.
func (t *turns) next() {
	for t.free > 0 {
		i := slices.IndexFunc(t.queue, func(n *turn) bool { return !n.away })
		if i < 0 {
			break
		}
		n := t.queue[i]
		t.queue = slices.Delete(t.queue, i, i+1)
		t.free--
		t.metrics.scanning.Inc()
		close(n.come)
	}
	t.metrics.queued.Set(float64(len(t.queue)))
}

// has reports whether the turn has come.
func (n *turn) has() bool {
	select {
	case <-n.come:
		return true
	default:
		return false
	}
}
