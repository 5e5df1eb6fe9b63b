package controllers

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/controllers/topology"
)

// lagEvery is how often status is written for nothing but lag and the like.
const lagEvery = 30 * time.Second

// pace keeps when status was last written.
type pace struct {
	mu      sync.Mutex
	written map[topology.Key]time.Time
}

// wait is how long to wait before status is written for nothing but lag.
func (p *pace) wait(k topology.Key) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return lagEvery - time.Since(p.written[k])
}

func (p *pace) wrote(k topology.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written == nil {
		p.written = map[topology.Key]time.Time{}
	}
	p.written[k] = time.Now()
}

func (p *pace) forget(k topology.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.written, k)
}

// putStatus writes the status of an object if it has changed; if nothing has but
// what steady leaves out, at most every lagEvery. again is after how long to come
// again where there is something to write then.
func putStatus[S any](ctx context.Context, c client.Client, p *pace, kind string, o client.Object, was, now S, steady func(S) S) (written bool, again time.Duration, err error) {
	if sameStatus(now, was) {
		return false, 0, nil
	}
	key := client.ObjectKeyFromObject(o)
	if wait := p.wait(key); wait > 0 && sameStatus(steady(now), steady(was)) {
		return false, wait, nil
	}
	if err := applyStatus(ctx, c, kind, o, &now); err != nil {
		return false, 0, err
	}
	p.wrote(key)
	return true, 0, nil
}
