package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// planner holds what is known of the resources while a plan is made.
type planner struct {
	in      Inputs
	nodes   map[Key]*draft
	order   []*draft // by key
	sources struct {
		postgres map[Key]*sourceDraft[v1alpha1.PostgresSource]
		fanout   map[Key]*sourceDraft[v1alpha1.FanoutSource]
		archive  map[Key]*sourceDraft[v1alpha1.ArchiveSource]
	}
	exports map[Key]*exportDraft
	orders  map[Key]string // of positions, by node
	meshes  map[Key]*meshDraft
	trees   map[Key]*treeDraft
	active  *Active
}

// draft is a node's plan in the making.
type draft struct {
	*Node
	spec *v1alpha1.ReplicationNode
	findings
	// first is, per source, whether its first upstream was found; only then is
	// the first candidate the declared edge.
	first map[string]bool
	// refused: what is declared makes a circle, or too long a path.
	refused bool
	// kept: the node keeps its last wiring; what it declares is not put in place.
	kept    bool
	warning Condition // of Acyclic, while it holds

	mesh  *meshDraft  // that it is a member of
	peers []Candidate // in it

	// tree that it is a leaf, a relay or a root of; relay is its place there, and
	// relayWiring what it reads, of one that is no leaf.
	tree        *treeDraft
	relay       *treeBranch
	relayWiring WiredSource
	// held: it cannot be said whether the node is in a tree, and it was.
	held bool

	// export that the node is planned for; nil for one that exists by itself.
	export *v1alpha1.ArchiveExport
	// unsure: it cannot be said whether the node is in a mesh.
	unsure bool
}

type sourceDraft[T any] struct {
	spec  *T
	nodes map[Key]bool
	slots []Slot
	findings
}

// findings are the faults found so far, one condition each: the gravest reason
// is the condition's, and all messages are joined.
type findings struct {
	accepted, resolved, acyclic fault
	warned                      fault // of resolved, if nothing is wrong with it
}

type fault struct {
	reason   string
	messages []string
}

// gravity of reasons within a condition; the others are below all of these.
var gravity = map[string]int{
	v1alpha1.ReasonInvalid:              2,
	v1alpha1.ReasonSlotConflict:         1,
	v1alpha1.ReasonArchiveConflict:      1,
	v1alpha1.ReasonArchiveTableMismatch: 1,
	v1alpha1.ReasonMeshConflict:         1,
	v1alpha1.ReasonTreeConflict:         1,
	v1alpha1.ReasonSourceNotFound:       2,
	v1alpha1.ReasonSecretNotFound:       1,
}

func (f *fault) add(reason, format string, args ...any) {
	if f.reason == "" || gravity[reason] > gravity[f.reason] {
		f.reason = reason
	}
	m := fmt.Sprintf(format, args...)
	if !slices.Contains(f.messages, m) {
		f.messages = append(f.messages, m)
	}
}

func (f *fault) condition(kind, good, message string) Condition {
	if f.reason == "" {
		return Condition{kind, metav1.ConditionTrue, good, message}
	}
	return Condition{kind, metav1.ConditionFalse, f.reason, bounded(strings.Join(f.messages, " "))}
}

// bounded keeps a message within what a condition may hold.
func bounded(m string) string {
	const most = 8192
	if len(m) <= most {
		return m
	}
	return strings.ToValidUTF8(m[:most], "") + "…"
}

func newPlanner(in Inputs) *planner {
	if in.Address == nil {
		in.Address = ServiceAddress
	}
	p := &planner{in: in, nodes: map[Key]*draft{}, meshes: map[Key]*meshDraft{}, trees: map[Key]*treeDraft{}}
	p.sources.postgres = map[Key]*sourceDraft[v1alpha1.PostgresSource]{}
	p.sources.fanout = map[Key]*sourceDraft[v1alpha1.FanoutSource]{}
	p.sources.archive = map[Key]*sourceDraft[v1alpha1.ArchiveSource]{}
	p.exports, p.orders = map[Key]*exportDraft{}, map[Key]string{}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		k := keyOf(n)
		p.nodes[k] = &draft{
			spec: n, first: map[string]bool{},
			Node: &Node{Key: k, UID: n.UID, Generation: n.Generation, Depth: -1},
		}
	}
	for i := range in.PostgresSources {
		s := &in.PostgresSources[i]
		p.sources.postgres[keyOf(s)] = &sourceDraft[v1alpha1.PostgresSource]{spec: s, nodes: map[Key]bool{}}
	}
	for i := range in.FanoutSources {
		s := &in.FanoutSources[i]
		p.sources.fanout[keyOf(s)] = &sourceDraft[v1alpha1.FanoutSource]{spec: s, nodes: map[Key]bool{}}
	}
	for i := range in.ArchiveSources {
		s := &in.ArchiveSources[i]
		p.sources.archive[keyOf(s)] = &sourceDraft[v1alpha1.ArchiveSource]{spec: s, nodes: map[Key]bool{}}
	}
	for i := range in.Exports {
		p.addExport(&in.Exports[i])
	}
	for i := range in.Meshes {
		m := &in.Meshes[i]
		k := keyOf(m)
		p.meshes[k] = &meshDraft{spec: m, Mesh: &Mesh{Key: k, Generation: m.Generation}}
	}
	for i := range in.Trees {
		t := &in.Trees[i]
		k := keyOf(t)
		p.trees[k] = &treeDraft{spec: t, Tree: &Tree{Key: k, UID: t.UID, Generation: t.Generation}}
	}
	for _, k := range sortedKeys(p.nodes) {
		p.order = append(p.order, p.nodes[k])
	}
	return p
}

func keyOf(o metav1.Object) Key { return Key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// finish writes the conditions and puts the plan together.
func (p *planner) finish() Plan {
	out := Plan{
		Nodes:           make(map[Key]*Node, len(p.nodes)),
		PostgresSources: make(map[Key]*SourcePlan, len(p.sources.postgres)),
		FanoutSources:   make(map[Key]*SourcePlan, len(p.sources.fanout)),
		ArchiveSources:  make(map[Key]*SourcePlan, len(p.sources.archive)),
		Exports:         make(map[Key]*Export, len(p.exports)),
		Meshes:          make(map[Key]*Mesh, len(p.meshes)),
		Trees:           make(map[Key]*Tree, len(p.trees)),
	}
	for _, d := range p.order {
		acyclic := d.acyclic.condition(v1alpha1.ConditionAcyclic, v1alpha1.ReasonAcyclic, "No cycle runs through this node.")
		if d.acyclic.reason == "" && d.warning.Reason != "" {
			acyclic = d.warning
		}
		d.Conditions = append(d.findings.conditions(), acyclic)
		d.Action = p.action(d)
		slices.SortFunc(d.Children, compareKeys)
		if d.export == nil {
			out.Nodes[d.Key] = d.Node
		}
	}
	for k, e := range p.exports {
		out.Exports[k] = e.plan(k)
	}
	for k, s := range p.sources.archive {
		out.ArchiveSources[k] = s.plan(k, s.spec.Generation)
	}
	for k, s := range p.sources.postgres {
		slices.SortFunc(s.slots, func(a, b Slot) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), compareKeys(a.Holder, b.Holder))
		})
		out.PostgresSources[k] = s.plan(k, s.spec.Generation)
	}
	for k, s := range p.sources.fanout {
		out.FanoutSources[k] = s.plan(k, s.spec.Generation)
	}
	for k, m := range p.meshes {
		out.Meshes[k] = m.plan()
	}
	for k, t := range p.trees {
		out.Trees[k] = t.plan()
	}
	return out
}

func (f *findings) conditions() []Condition {
	resolved := f.resolved.condition(v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolved, "Every reference was found.")
	if f.resolved.reason == "" && f.warned.reason != "" {
		resolved = f.warned.condition(v1alpha1.ConditionResolvedRefs, "", "")
		resolved.Status = metav1.ConditionTrue
	}
	return []Condition{f.accepted.condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "The spec is acted on."), resolved}
}

// warn adds what is worth knowing and keeps nothing from being put in place.
func (f *findings) warn(reason, format string, args ...any) { f.warned.add(reason, format, args...) }

func (s *sourceDraft[T]) plan(k Key, generation int64) *SourcePlan {
	return &SourcePlan{
		Key: k, Generation: generation, Conditions: s.conditions(),
		Nodes: slices.SortedFunc(maps.Keys(s.nodes), compareKeys), Slots: s.slots,
	}
}

// action says how much of the plan may be put in place. A node that has been
// wired before never keeps a parent that it may not have: it is rewired, to
// nothing if need be, and holds what it has.
func (p *planner) action(d *draft) Action {
	incomplete := d.kept || slices.ContainsFunc(d.Wiring.Sources, func(s WiredSource) bool { return len(s.Candidates) == 0 && s.hasParents() })
	_, wired := p.in.Last[d.Key]
	switch {
	case !incomplete:
		return Apply
	case wired:
		return Rewire
	}
	return Hold
}

// incomplete says whether the node's configuration cannot be made from what
// there is.
func (f *findings) incomplete() bool {
	return f.accepted.reason == v1alpha1.ReasonInvalid || f.accepted.reason == v1alpha1.ReasonSlotConflict ||
		f.accepted.reason == v1alpha1.ReasonArchiveConflict || f.accepted.reason == v1alpha1.ReasonArchiveTableMismatch ||
		f.resolved.reason == v1alpha1.ReasonSourceNotFound || f.resolved.reason == v1alpha1.ReasonSecretNotFound
}
