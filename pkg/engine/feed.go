package engine

import (
	"context"
	"fmt"
)

// Feed is a source that has been opened apart from Run: its owner delivers through
// the Sink what Stream would.
type Feed struct {
	Sink
	From Cursors // what to go on from
	live context.Context
}

// Err says why the source has to be opened again, such as for a new epoch; nil
// while it has not.
func (f *Feed) Err() error {
	if f.live.Err() == nil {
		return nil
	}
	return context.Cause(f.live)
}

// Open does once what Run does again and again, up to Stream: Init, and Baseline
// if one is due. It is for a driver that has a loop of its own and shares no
// goroutine with the engine, such as a simulation; do not mix it with Run. The
// Feed that was open before is over.
func (e *Engine) Open(ctx context.Context, name string) (*Feed, error) {
	for _, s := range e.sources {
		if s.name != name {
			continue
		}
		ctx, cancel := context.WithCancelCause(ctx)
		s.mu.Lock()
		if s.cancel != nil {
			s.cancel(nil)
		}
		s.cancel = cancel
		s.mu.Unlock()
		s.dropParts()
		baseline, cause := false, ""
		from, err := s.open(ctx, &baseline, &cause)
		if err != nil {
			cancel(err)
			return nil, err
		}
		f := &Feed{Sink: s, From: from, live: ctx}
		if n, ok := s.sync.(*namespaced); ok {
			f.Sink = namespacedSink{s, n}
		}
		return f, nil
	}
	return nil, fmt.Errorf("engine: no source is named %q", name)
}
