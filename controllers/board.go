package controllers

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

// board is where the Topology reconciler and the Poller leave what they found
// for the others, and wake them.
type board struct {
	mu       sync.Mutex
	plan     topology.Plan
	observed map[topology.Key]*observed // nil until all nodes have been asked once
	members  map[topology.Key]*heardMember
	relays   map[topology.Key]*heardRelay
	shown    map[topology.Key]shown

	topology, nodes, postgresSources, fanoutSources, archiveSources, exports, meshes, trees wake
}

// shown is the plan of a node that has been put in place, and what its status has of it.
type shown struct {
	plan  *topology.Node
	hash  string
	epoch int64
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

// setPlan leaves a plan and wakes those whose part of it is another. The part of a node
// that is as it was stays the same pointer.
func (b *board) setPlan(p topology.Plan) {
	b.mu.Lock()
	old := b.plan
	var changed []topology.Key
	for k, n := range p.Nodes {
		if was := old.Nodes[k]; reflect.DeepEqual(was, n) {
			p.Nodes[k] = was
		} else {
			changed = append(changed, k)
		}
	}
	maps.DeleteFunc(b.shown, func(k topology.Key, _ shown) bool { return p.Nodes[k] == nil })
	b.plan = p
	b.mu.Unlock()
	for _, k := range changed {
		b.nodes.up(k)
	}
	wakeChanged(&b.postgresSources, old.PostgresSources, p.PostgresSources)
	wakeChanged(&b.fanoutSources, old.FanoutSources, p.FanoutSources)
	wakeChanged(&b.archiveSources, old.ArchiveSources, p.ArchiveSources)
	wakeChanged(&b.exports, old.Exports, p.Exports)
	wakeChanged(&b.meshes, old.Meshes, p.Meshes)
	wakeChanged(&b.trees, old.Trees, p.Trees)
}

func wakeChanged[T any](w *wake, old, now map[topology.Key]*T) {
	for k, v := range now {
		if !reflect.DeepEqual(old[k], v) {
			w.up(k)
		}
	}
}

// node returns the plan of a node.
func (b *board) node(k topology.Key) *topology.Node {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.Nodes[k]
}

// show says that the plan of a node is in place and its status written, and wakes its mesh
// or tree, which waits for that.
func (b *board) show(k topology.Key, plan *topology.Node, s *v1alpha1.ReplicationNodeStatus) {
	b.mu.Lock()
	was := b.shown[k].plan
	if b.shown == nil {
		b.shown = map[topology.Key]shown{}
	}
	b.shown[k] = shown{plan, s.ConfigHash, s.WiringEpoch}
	b.mu.Unlock()
	if was == plan {
		return
	}
	if plan.Mesh != (topology.Key{}) {
		b.meshes.up(plan.Mesh)
	}
	if plan.Tree != (topology.Key{}) && plan.Leaf == nil {
		b.trees.up(plan.Tree)
	}
}

// shows says whether the status of a node is of its present plan. Of a node that has not
// been looked at since the manager started it is what the caller says.
func (b *board) shows(n *v1alpha1.ReplicationNode, otherwise bool) bool {
	k := topology.Key{Namespace: n.Namespace, Name: n.Name}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.shown[k]
	if !ok {
		return otherwise
	}
	return s.plan == b.plan.Nodes[k] && s.hash == n.Status.ConfigHash && s.epoch == n.Status.WiringEpoch
}

// ahead returns whom a node's rollout waits for.
func (b *board) ahead(k topology.Key) topology.Ahead {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.Ahead(k)
}

// heard returns what was last heard of a node; false before all nodes have been
// asked once, when nothing can be said of any.
func (b *board) heard(k topology.Key) (*observed, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.observed[k], b.observed != nil
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

func (b *board) archiveSource(k topology.Key) *topology.SourcePlan {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.ArchiveSources[k]
}

func (b *board) export(k topology.Key) *topology.Export {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.Exports[k]
}

func (b *board) mesh(k topology.Key) *topology.Mesh {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.Meshes[k]
}

// membersHeard returns what was last heard of the members of a mesh; false before
// all nodes have been asked once.
func (b *board) membersHeard(m *topology.Mesh) (map[topology.Key]*heardMember, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[topology.Key]*heardMember{}
	for _, member := range m.Members {
		if h := b.members[member.Node]; h != nil {
			out[member.Node] = h
		}
	}
	return out, b.observed != nil
}

// setMembers leaves what was heard of members of meshes, and wakes the meshes of
// which something else was heard than before.
func (b *board) setMembers(now map[topology.Key]*heardMember) {
	b.mu.Lock()
	old := b.members
	b.members = now
	var changed []topology.Key
	for k, m := range b.plan.Meshes {
		if old == nil || slices.ContainsFunc(m.Members, func(m topology.MeshMember) bool { return !reflect.DeepEqual(old[m.Node], now[m.Node]) }) {
			changed = append(changed, k)
		}
	}
	b.mu.Unlock()
	for _, k := range changed {
		b.meshes.up(k)
	}
}

func (b *board) tree(k topology.Key) *topology.Tree {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.Trees[k]
}

// treeHeard returns what was last heard of the nodes and the leaves of a tree; false
// before all nodes have been asked once.
func (b *board) treeHeard(t *topology.Tree) (map[topology.Key]*heardRelay, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[topology.Key]*heardRelay{}
	for _, k := range t.All() {
		if h := b.relays[k]; h != nil {
			out[k] = h
		}
	}
	return out, b.observed != nil
}

// relayReports are what the plan needs of what relays say.
func (b *board) relayReports() map[topology.Key]topology.RelayReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[topology.Key]topology.RelayReport{}
	for k, h := range b.relays {
		if h.relay {
			out[k] = h.report
		}
	}
	return out
}

// setRelays leaves what was heard of trees, and wakes those of which something else was
// heard than before; and the planner, while something moves in one of them.
func (b *board) setRelays(now map[topology.Key]*heardRelay) {
	b.mu.Lock()
	old := b.relays
	b.relays = now
	var changed []topology.Key
	moving := false
	for k, t := range b.plan.Trees {
		if old == nil || slices.ContainsFunc(t.All(), func(n topology.Key) bool { return !reflect.DeepEqual(old[n], now[n]) }) {
			changed = append(changed, k)
			moving = moving || t.Moving
		}
	}
	b.mu.Unlock()
	if moving {
		b.topology.up(topologyRequest.NamespacedName)
	}
	for _, k := range changed {
		b.trees.up(k)
	}
}

// setObserved leaves what was heard of nodes. It wakes those of which something
// else was heard than before, and the planner if a node has another parent.
func (b *board) setObserved(now map[topology.Key]*observed) {
	b.mu.Lock()
	old := b.observed
	b.observed = now
	var waiting []topology.Key
	if old == nil { // all have waited for this
		waiting = slices.Collect(maps.Keys(b.plan.Nodes))
	}
	b.mu.Unlock()
	for _, k := range waiting {
		b.nodes.up(k)
	}
	moved := false
	changed := map[topology.Key]bool{}
	for k := range old {
		if now[k] == nil {
			b.nodes.up(k)
			changed[k] = true
			moved = moved || len(old[k].parents()) > 0
		}
	}
	for k, v := range now {
		if !reflect.DeepEqual(old[k], v) {
			b.nodes.up(k)
			changed[k] = true
			moved = moved || !reflect.DeepEqual(old[k].parents(), v.parents())
		}
	}
	if moved {
		b.topology.up(topologyRequest.NamespacedName)
	}
	for _, k := range b.sourcesHeldBy(changed) {
		b.postgresSources.up(k)
	}
	for _, k := range b.exportsBy(changed) {
		b.exports.up(k)
	}
}

// exportsBy are the exports that some nodes run, and end.
func (b *board) exportsBy(nodes map[topology.Key]bool) (out []topology.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, e := range b.plan.Exports {
		if e.Node != nil && nodes[e.Node.Key] {
			out = append(out, k)
		}
	}
	return out
}

// sourcesHeldBy are the PostgresSources whose slots some nodes hold.
func (b *board) sourcesHeldBy(nodes map[topology.Key]bool) (out []topology.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, s := range b.plan.PostgresSources {
		if slices.ContainsFunc(s.Slots, func(s topology.Slot) bool { return nodes[s.Holder] }) {
			out = append(out, k)
		}
	}
	return out
}

// reported is which node each source reads from: as was last heard, or else as
// status says, so that neither a new manager nor a node out of its reach changes
// the plan.
func (b *board) reported(nodes []v1alpha1.ReplicationNode) map[topology.SourceKey]topology.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[topology.SourceKey]topology.Key{}
	for i := range nodes {
		k := topology.Key{Namespace: nodes[i].Namespace, Name: nodes[i].Name}
		if o := b.observed[k]; o != nil {
			for source, parent := range o.parents() {
				out[topology.SourceKey{Node: k, Source: source}] = parent
			}
			continue
		}
		for _, s := range nodes[i].Status.Sources {
			if s.Parent == nil {
				continue
			}
			if parent, ok := topology.ParseID(s.Parent.ID); ok {
				out[topology.SourceKey{Node: k, Source: s.Name}] = parent
			}
		}
	}
	return out
}
