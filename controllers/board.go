package controllers

import (
	"context"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tributary-dev/tributary/controllers/topology"
)

// board is where the Topology reconciler and the Poller leave what they found
// for the others, and wake them.
type board struct {
	mu       sync.Mutex
	plan     topology.Plan
	observed map[topology.Key]*observed

	topology, nodes, postgresSources, fanoutSources wake
}

// wake holds the queue of a controller, once it has started.
type wake struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	waiting []reconcile.Request
}

// source gives a controller's queue to wake.
func (w *wake) source() source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.queue = q
		for _, r := range w.waiting {
			q.Add(r)
		}
		w.waiting = nil
		return nil
	})
}

func (w *wake) up(k types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := reconcile.Request{NamespacedName: k}
	if w.queue == nil {
		w.waiting = append(w.waiting, r)
		return
	}
	w.queue.Add(r)
}

// setPlan leaves a plan and wakes those whose part of it is another.
func (b *board) setPlan(p topology.Plan) {
	b.mu.Lock()
	old := b.plan
	b.plan = p
	b.mu.Unlock()
	wakeChanged(&b.nodes, old.Nodes, p.Nodes)
	wakeChanged(&b.postgresSources, old.PostgresSources, p.PostgresSources)
	wakeChanged(&b.fanoutSources, old.FanoutSources, p.FanoutSources)
}

func wakeChanged[T any](w *wake, old, now map[topology.Key]*T) {
	for k, v := range now {
		if !reflect.DeepEqual(old[k], v) {
			w.up(k)
		}
	}
}

// node returns the plan of a node and what was last heard of it.
func (b *board) node(k topology.Key) (*topology.Node, *observed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.Nodes[k], b.observed[k]
}

func (b *board) postgresSource(k topology.Key) *topology.SourcePlan {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.PostgresSources[k]
}

func (b *board) fanoutSource(k topology.Key) *topology.SourcePlan {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.FanoutSources[k]
}

// setObserved leaves what was heard of nodes. It wakes those of which something
// else was heard than before, and the planner if a node has another parent.
func (b *board) setObserved(now map[topology.Key]*observed) {
	b.mu.Lock()
	old := b.observed
	b.observed = now
	b.mu.Unlock()
	moved := false
	for k := range old {
		if now[k] == nil {
			b.nodes.up(k)
			moved = moved || len(old[k].parents()) > 0
		}
	}
	for k, v := range now {
		if !reflect.DeepEqual(old[k], v) {
			b.nodes.up(k)
			moved = moved || !reflect.DeepEqual(old[k].parents(), v.parents())
		}
	}
	if moved {
		b.topology.up(topologyRequest.NamespacedName)
	}
}

// reported is which node each source reads from, as far as was heard.
func (b *board) reported() map[topology.SourceKey]topology.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[topology.SourceKey]topology.Key{}
	for k, o := range b.observed {
		for source, parent := range o.parents() {
			out[topology.SourceKey{Node: k, Source: source}] = parent
		}
	}
	return out
}
