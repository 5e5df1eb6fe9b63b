package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
)

// blocker is a mesh source whose engine does not take one origin's blocks while a
// gate is closed.
type blocker struct {
	*client.Mesh
	origin string
	gate   atomic.Pointer[chan struct{}]
}

func (b *blocker) close() (open func()) {
	gate := make(chan struct{})
	b.gate.Store(&gate)
	return func() { b.gate.Store(nil); close(gate) }
}

func (b *blocker) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	return b.Mesh.Stream(ctx, from, &blockerSink{sink, b})
}

type blockerSink struct {
	engine.Sink
	b *blocker
}

func (s *blockerSink) ApplyBlocks(ctx context.Context, key engine.CursorKey, blocks []*engine.Block) error {
	if gate := s.b.gate.Load(); gate != nil && key.Log.Origin == s.b.origin {
		select {
		case <-*gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Sink.ApplyBlocks(ctx, key, blocks)
}

// isolated is a mesh in which one origin, the victim's, comes to the edge by way of the
// hub, as all others do, or of another peer.
type isolated struct {
	victim, hub, other, edge *member
	minters                  []*minter
	blocked                  *blocker
}

const isolatedOrigins = 50

func startIsolated(ctx context.Context) (m *isolated, stop func(), err error) {
	m = &isolated{minters: make([]*minter, isolatedOrigins), blocked: &blocker{origin: engine.Origin("victim", "o0000")}}
	for i := range m.minters {
		m.minters[i] = newMinter()
	}
	var nodes []*member
	stop = func() {
		for _, n := range nodes {
			n.stop()
		}
	}
	start := func(id string, own []*minter, wrap func(*client.Mesh) engine.SyncSource) (n *member) {
		if err != nil {
			return nil
		}
		if n, err = startMemberWith(ctx, id, store.NewMemory(store.MemoryOptions{}), own, wrap); err == nil {
			nodes = append(nodes, n)
		}
		return n
	}
	m.victim = start("victim", m.minters[:1], nil)
	m.hub = start("hub", m.minters[1:], nil)
	m.other = start("other", nil, nil)
	m.edge = start("edge", nil, func(mesh *client.Mesh) engine.SyncSource {
		m.blocked.Mesh = mesh
		return m.blocked
	})
	if err != nil {
		stop()
		return nil, nil, err
	}
	m.victim.peers(m.hub, m.other)
	m.other.peers(m.victim, m.edge)
	m.hub.peers(m.victim, m.edge)
	m.edge.peers(m.hub, m.other)
	if err := m.edge.until(ctx, "the edge has every log", func() bool { return len(m.edge.heads()) == isolatedOrigins }); err != nil {
		stop()
		return nil, nil, err
	}
	return m, stop, nil
}

// over is the peer that the edge reads the victim's log of.
func (m *isolated) over() string {
	for _, l := range m.edge.mesh.Status().Logs {
		if l.Log.Origin == m.blocked.origin {
			return l.Peer
		}
	}
	return ""
}

// measure writes to all for a while, and takes the time until the edge has what was
// written to all but the victim. It adds the times to all.
func (m *isolated) measure(ctx context.Context, phase time.Duration, all []time.Duration) ([]time.Duration, error) {
	for end := time.Now().Add(phase); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		began := time.Now()
		for _, m := range m.minters {
			m.want <- 1
		}
		for _, m := range m.minters {
			<-m.done
		}
		want := m.hub.heads()
		for log := range want {
			if log.Origin == m.blocked.origin {
				delete(want, log)
			}
		}
		err := m.edge.until(ctx, "the edge has what was written", func() bool {
			have := m.edge.heads()
			for log, at := range want {
				if engine.CompareLSN(have[log], at) >= 0 {
					delete(want, log)
					all = append(all, time.Since(began))
				}
			}
			return len(want) == 0
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// p99 is in milliseconds.
func p99(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)*99/100].Microseconds()) / 1000
}

// isolation measures what one origin's trouble costs the others that come through
// the same peer: its apply is blocked, which is set against the time before and after it;
// and its log moves to another peer, which is set against the time before and after it,
// several times.
func (b *bench) isolation(ctx context.Context) error {
	if err := b.isolationBlocked(ctx); err != nil {
		return err
	}
	// Each time in a mesh that is new: the ways of a log do not come back at once.
	const turns, phase = 7, 3 * time.Second
	var ratios, with, without []float64
	samples := 0
	for range turns {
		free, troubled, err := failsOver(ctx, phase)
		if err != nil {
			return err
		}
		f, tr := p99(free), p99(troubled)
		ratios, with, without = append(ratios, tr/f), append(with, tr), append(without, f)
		samples += len(troubled)
	}
	b.atMost("isolation-failover", "p99 of 49 origins with one that fails over / without", median(ratios), 1.2, 1.05,
		"%.2f / %.2f ms; median of %d, from %.2f to %.2f, of %d in all", median(with), median(without), turns, slices.Min(ratios), slices.Max(ratios), samples)
	return nil
}

func (b *bench) isolationBlocked(ctx context.Context) error {
	// The times with and without are equally long: what happens once in ten seconds is in the 99th of a
	// hundred of a minute, and not of five seconds.
	const phase, blockedFor = 30 * time.Second, time.Minute
	m, stop, err := startIsolated(ctx)
	if err != nil {
		return err
	}
	defer stop()
	free, err := m.measure(ctx, phase, nil)
	if err != nil {
		return err
	}
	open := m.blocked.close()
	troubled, err := m.measure(ctx, blockedFor, nil)
	open()
	if err != nil {
		return err
	}
	if free, err = m.measure(ctx, phase, free); err != nil {
		return err
	}
	f, tr := p99(free), p99(troubled)
	b.atMost("isolation-blocked", "p99 of 49 origins with one blocked / without", tr/f, 1.2, 1.05, "%.2f / %.2f ms, of %d and %d", tr, f, len(troubled), len(free))
	return nil
}

func failsOver(ctx context.Context, phase time.Duration) (free, troubled []time.Duration, err error) {
	m, stop, err := startIsolated(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer stop()
	if _, err = m.measure(ctx, phase/3, nil); err != nil { // to warm up
		return nil, nil, err
	}
	if free, err = m.measure(ctx, phase, nil); err != nil {
		return nil, nil, err
	}
	// One of the two no longer hears of the victim: its log goes on over the other.
	from, to := m.hub, m.other
	if m.over() == to.id {
		from, to = to, from
	}
	from.peers(m.edge)
	if troubled, err = m.measure(ctx, phase, nil); err != nil {
		return nil, nil, err
	}
	if at := m.over(); at != to.id {
		return nil, nil, fmt.Errorf("the victim's log is read over %q, and should have moved from %s to %s", at, from.id, to.id)
	}
	// What it costs that the log comes another way from then on is no trouble of the
	// failover.
	free, err = m.measure(ctx, phase, free)
	return free, troubled, err
}
