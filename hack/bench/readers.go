package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
)

// readers are readers of one node that take everything in and keep nothing: a
// Sink that counts.
type readers struct {
	all  []*counter
	stop func()
}

// startReaders attaches n readers and waits until each has its snapshot.
func startReaders(ctx context.Context, n int, address string) (*readers, error) {
	ctx, cancel := context.WithCancel(ctx)
	rs := &readers{}
	var wg sync.WaitGroup
	rs.stop = func() { cancel(); wg.Wait() }
	for i := range n {
		c := &counter{cursors: engine.Cursors{}}
		var err error
		c.reader, err = client.NewReader(client.Config{
			NodeID: fmt.Sprintf("bench/reader-%d", i), Upstreams: []string{address}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			rs.stop()
			return nil, err
		}
		if _, err := c.reader.Open(ctx, nil); err != nil {
			rs.stop()
			return nil, err
		}
		if err := c.reader.Baseline(ctx, c); err != nil {
			rs.stop()
			return nil, err
		}
		rs.all = append(rs.all, c)
		wg.Go(func() {
			_ = c.reader.Stream(ctx, c.cursors, c)
			c.reader.Close()
		})
	}
	return rs, nil
}

// wait waits until every reader has received n changes.
func (rs *readers) wait(ctx context.Context, n int) error {
	for i, c := range rs.all {
		err := testnode.Until(ctx, 10*time.Minute, fmt.Sprintf("reader %d to have %d changes", i, n), func() (bool, error) {
			return c.changes.Load() >= int64(n), nil
		})
		if err != nil {
			return fmt.Errorf("%w; it has %d", err, c.changes.Load())
		}
	}
	return nil
}

// arrivals returns when each change reached the first reader.
func (rs *readers) arrivals() []time.Time {
	c := rs.all[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Time(nil), c.arrived...)
}

// maxArrivals bounds the arrivals that are remembered.
const maxArrivals = 10_000

// place returns where the first reader is in the one log that it reads.
func (rs *readers) place() (engine.LogID, engine.Position) {
	c := rs.all[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, cur := range c.cursors {
		return k.Log, cur.Position
	}
	return engine.LogID{}, ""
}

// counter is an engine.Sink that checks that nothing is missing and counts.
type counter struct {
	reader  *client.Reader
	changes atomic.Int64

	mu      sync.Mutex
	cursors engine.Cursors
	arrived []time.Time
}

func (c *counter) Baseline(_ context.Context, spec engine.BaselineSpec) (engine.BaselineWriter, error) {
	return &counted{c, spec}, nil
}

type counted struct {
	c    *counter
	spec engine.BaselineSpec
}

func (*counted) Rows(engine.TableName, []engine.Record) error { return nil }
func (*counted) Apply([]engine.Transaction) error             { return nil }
func (*counted) Abort()                                       {}
func (b *counted) Commit(context.Context) error {
	b.c.move(engine.CursorKey{Log: b.spec.Log, Scope: b.spec.Scope}, b.spec.At)
	return nil
}

func (c *counter) move(key engine.CursorKey, at engine.Position) {
	c.mu.Lock()
	cur := engine.Cursor{CursorKey: key, Position: at}
	c.cursors[key] = cur
	c.mu.Unlock()
	c.reader.Ack(cur, false)
}

func (c *counter) Apply(context.Context, []engine.Transaction) error {
	return fmt.Errorf("a fan-out mints nothing")
}

func (c *counter) ApplyBlocks(_ context.Context, key engine.CursorKey, blocks []*engine.Block) error {
	now := time.Now()
	n := 0
	c.mu.Lock()
	at := c.cursors[key].Position
	for _, b := range blocks {
		if b.Part == 0 && b.Prev != at {
			c.mu.Unlock()
			return &engine.HoleError{Key: key, Cursor: at, Prev: b.Prev}
		}
		if b.Last {
			at = b.Position
		}
		n += b.Changes
	}
	if len(c.arrived) < maxArrivals {
		for range n {
			c.arrived = append(c.arrived, now)
		}
	}
	c.mu.Unlock()
	c.move(key, at)
	c.changes.Add(int64(n))
	return nil
}

func (c *counter) Progress(_ context.Context, key engine.CursorKey, _, through engine.Position, _ engine.Time) error {
	c.move(key, through)
	return nil
}

func (c *counter) Head(engine.LogID, engine.Head) {}

func (c *counter) Carry(engine.LogID, engine.Comparator, []string, []engine.TableName) error {
	return nil
}
