package postgres

import (
	"context"
	"sync"
)

// mailbox hands batches from the goroutine that reads the socket to the one that
// applies. It bounds nothing by itself: the reader looks at size between
// transactions, and stops reading.
type mailbox struct {
	mu    sync.Mutex
	ready []*batch
	bytes int      // of batches put and not released
	spare []*batch // for use again
	err   error    // why the applier ended

	more  chan struct{} // a batch was put
	space chan struct{} // a batch was released, or the applier ended
}

func newMailbox() *mailbox {
	return &mailbox{more: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put hands a batch over.
func (m *mailbox) put(b *batch) {
	m.mu.Lock()
	m.ready = append(m.ready, b)
	m.bytes += b.bytes
	m.mu.Unlock()
	signal(m.more)
}

// open returns a batch for further transactions: the last one put, if it still
// lies here and has room, or an empty one. So batches grow while the applier is
// busy, and go at once while it is not.
func (m *mailbox) open() *batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.ready); n > 0 && m.ready[n-1].open() {
		b := m.ready[n-1]
		m.ready = m.ready[:n-1]
		m.bytes -= b.bytes
		return b
	}
	return m.empty()
}

// open says whether a batch that was put can take further transactions.
func (b *batch) open() bool {
	return b.bytes < batchSize && !b.shared && b.run == nil && b.through == 0
}

// fresh returns an empty batch.
func (m *mailbox) fresh() *batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.empty()
}

func (m *mailbox) empty() *batch {
	if n := len(m.spare); n > 0 {
		b := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return b
	}
	return &batch{}
}

// take waits for a batch.
func (m *mailbox) take(ctx context.Context) (*batch, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m.mu.Lock()
		if len(m.ready) > 0 {
			b := m.ready[0]
			m.ready[0] = nil // it may be large
			m.ready = m.ready[1:]
			m.mu.Unlock()
			return b, nil
		}
		m.mu.Unlock()
		select {
		case <-m.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// release takes back a batch that has been applied.
func (m *mailbox) release(b *batch) {
	m.mu.Lock()
	m.bytes -= b.bytes
	if len(m.spare) < 4 && b.reset() {
		m.spare = append(m.spare, b)
	}
	m.mu.Unlock()
	signal(m.space)
}

// fail ends the mailbox: the applier takes no more.
func (m *mailbox) fail(err error) {
	m.mu.Lock()
	m.err = err
	m.mu.Unlock()
	signal(m.space)
}

func (m *mailbox) state() (bytes int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes, m.err
}
