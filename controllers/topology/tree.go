package topology

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// ChildrenSource is the name of the source that a tree gives its relays and roots.
const ChildrenSource = "children"

// Tree is the plan of a RelayTree.
type Tree struct {
	Key        Key
	UID        types.UID
	Generation int64
	// Conditions are Accepted, ResolvedRefs and LeavesAssigned, in this order.
	Conditions []Condition
	// Want are the ReplicationNodes that are to be there; nil if the spec cannot be made
	// out, and then what is there stays.
	Want []v1alpha1.ReplicationNode
	// Branches of the tree, roots first: those of the spec, and those that drain.
	Branches []TreeBranch
	// Remove are nodes of branches that have drained.
	Remove []Key
	// Leaves that take part, by name, and how many are selected and do not.
	Leaves     []TreeLeaf
	Unassigned int
	// Moving says that children are on their way from one branch to another, or branches
	// drain.
	Moving bool
}

// TreeLeaf is a leaf and the branch that it is assigned to.
type TreeLeaf struct {
	Node   Key
	Branch string
}

// TreeBranch is a branch of a tree, or a root.
type TreeBranch struct {
	Name     string
	Level    int32 // 0 of a root
	Draining bool
	Nodes    []TreeNode
	Children int // that are assigned to it
}

// TreeNode is a node of a branch.
type TreeNode struct {
	Node     Key
	Children []Child
}

// Child is a node that a relay reads from.
type Child struct {
	Node    Key
	Address string
	Group   string
	State   string // of nodeconfig
}

// Leaves reports whether the child is no longer read.
func (c Child) Leaves() bool { return (&nodeconfig.Child{State: c.State}).Leaves() }

// RelayReport is what a relay says of its children and of those above it.
type RelayReport struct {
	// Epoch of the wiring that it has.
	Epoch uint64
	// Children that it knows or has something of, by id.
	Children map[string]ChildReport
	// Passed are the nodes above that have all that it has ever read, by id; Nothing was.
	Passed  []string
	Nothing bool
}

// ChildReport is what a relay says of a child.
type ChildReport struct {
	Connected bool
	// Holds says that it has something of it.
	Holds bool
	// Passed are the nodes above that have all that was read of it, by id.
	Passed []string
}

// Report is what the plan needs of what a node says; false if it reads no children.
func Report(d *nodeconfig.Statusz) (RelayReport, bool) {
	i := slices.IndexFunc(d.Sources, func(s nodeconfig.SourceStatus) bool { return s.Kind == nodeconfig.KindChildren })
	if i < 0 {
		return RelayReport{}, false
	}
	r := RelayReport{Epoch: d.WiringEpoch, Children: map[string]ChildReport{}}
	for _, p := range d.Sources[i].Peers {
		r.Children[p.ID] = ChildReport{Connected: p.Connected}
	}
	if d.Passed != nil {
		r.Passed, r.Nothing = d.Passed.To, d.Passed.Nothing
		for _, c := range d.Passed.Children {
			r.Children[c.ID] = ChildReport{r.Children[c.ID].Connected, true, c.To}
		}
	}
	return r, true
}

// Condition returns the condition of a type; the zero Condition if there is
// none.
func (t *Tree) Condition(kind string) Condition { return find(t.Conditions, kind) }

// All are the nodes of the tree that are heard: roots, branches and leaves.
func (t *Tree) All() (out []Key) {
	for _, b := range t.Branches {
		for _, n := range b.Nodes {
			out = append(out, n.Node)
		}
	}
	for _, l := range t.Leaves {
		out = append(out, l.Node)
	}
	return out
}

// treeDraft is a tree's plan in the making.
type treeDraft struct {
	*Tree
	spec *v1alpha1.RelayTree
	findings
	leaves fault // of LeavesAssigned
	// broken: what the spec says cannot be made out, and what is there stays.
	broken bool

	selected map[string]bool // nodes, by id: they take part, or could

	members map[branch]*treeBranch
	order   []*treeBranch // roots first, then down to the leaves, those that drain last
	byID    map[string]*treeBranch
}

// treeBranch is a branch in the making.
type treeBranch struct {
	branch
	draining bool
	nodes    []branchNode
	above    *treeBranch // nil: the roots
	children []Child
}

type branchNode struct {
	key     Key
	address string
	last    Wiring
	wired   bool
	there   *draft // nil while it does not exist
}

// resolveTrees finds the nodes and the leaves of every tree. The older tree keeps a leaf
// that two of them select.
func (p *planner) resolveTrees() {
	order := make([]*treeDraft, 0, len(p.trees))
	for _, k := range sortedKeys(p.trees) {
		order = append(order, p.trees[k])
	}
	slices.SortStableFunc(order, func(a, b *treeDraft) int {
		return a.spec.CreationTimestamp.Compare(b.spec.CreationTimestamp.Time)
	})
	for _, t := range order {
		if t.spec.DeletionTimestamp != nil {
			continue
		}
		for _, m := range checkTree(t.spec) {
			t.accepted.add(v1alpha1.ReasonInvalid, "%s", m)
			t.broken = true
		}
		if t.broken {
			continue
		}
		t.Want = TreeNodes(t.spec)
		p.checkSecrets(&t.resolved, t.Key.Namespace, TreeSecrets(&t.spec.Spec))
		p.branches(t)
		leaves := p.treeLeaves(t)
		p.assignTree(t, leaves)
		p.wireTree(t)
	}
	for _, t := range order {
		for _, d := range p.order { // it may be a leaf of one that is broken: it keeps what it has
			d.held = d.held || t.broken && d.tree == nil && d.Key.Namespace == t.Key.Namespace && p.in.Last[d.Key].Leaf
		}
	}
}

// branches makes out the branches of a tree: those of the spec, and those of nodes that
// are there and no longer asked for.
func (p *planner) branches(t *treeDraft) {
	t.members, t.byID = map[branch]*treeBranch{}, map[string]*treeBranch{}
	add := func(b branch, n *v1alpha1.ReplicationNode, draining bool) {
		m := t.members[b]
		if m == nil {
			m = &treeBranch{branch: b, draining: draining}
			t.members[b] = m
			t.order = append(t.order, m)
		}
		k := keyOf(n)
		node := branchNode{key: k, address: p.in.Address(n)}
		node.last, node.wired = p.in.Last[k]
		if d := p.nodes[k]; d != nil && TreeOf(d.spec) == t.Key.Name {
			node.there, d.tree = d, t
		}
		m.nodes = append(m.nodes, node)
		t.byID[k.String()] = m
	}
	for i := range t.Want {
		n := &t.Want[i]
		b, _ := branchOf(n) // it has its labels
		if d := p.nodes[keyOf(n)]; d != nil && TreeOf(d.spec) != t.Key.Name {
			t.accepted.add(v1alpha1.ReasonInvalid, "A node of this tree has the name %s, and there is a ReplicationNode of that name already: rename the tree, or the node.", n.Name)
		}
		add(b, n, false)
	}
	for _, d := range p.order {
		if d.Key.Namespace != t.Key.Namespace || TreeOf(d.spec) != t.Key.Name || d.spec.DeletionTimestamp != nil || t.byID[d.Key.String()] != nil {
			continue
		}
		b, ok := branchOf(d.spec)
		if !ok {
			continue // someone has taken its labels away; it is left alone
		}
		if b.level == rootLevel { // it is gone for good: nothing is kept for it
			t.Remove = append(t.Remove, d.Key)
			continue
		}
		add(b, d.spec, true)
	}
}

// treeLeaves are the nodes that take part as leaves, by name.
func (p *planner) treeLeaves(t *treeDraft) (out []*draft) {
	selector, err := metav1.LabelSelectorAsSelector(&t.spec.Spec.Leaves.Selector)
	if err != nil {
		return nil // checkTree has said so
	}
	t.selected = map[string]bool{}
	for _, d := range p.order {
		if d.Key.Namespace != t.Key.Namespace || d.ofExport() || d.spec.DeletionTimestamp != nil || TreeOf(d.spec) == t.Key.Name || !selector.Matches(labels.Set(d.spec.Labels)) {
			continue
		}
		t.selected[d.Key.String()] = true
		n := d.spec
		switch {
		case TreeOf(n) != "":
			t.leaves.add(v1alpha1.ReasonLeafUnfit, "The node %s belongs to the RelayTree %s, and takes no part: it writes nothing of its own. Let the selector pass it by.", n.Name, TreeOf(n))
		case d.tree != nil:
			t.leaves.add(v1alpha1.ReasonTreeConflict, "The node %s is a leaf of the older RelayTree %s, where it stays: a node is a leaf of at most one tree. Let one of them pass it by.", n.Name, d.tree.Key.Name)
		case !slices.ContainsFunc(n.Spec.Sources, func(s v1alpha1.NodeSource) bool {
			return s.Ingest != nil || s.Postgres != nil || s.PostgresSourceRef != nil
		}):
			t.leaves.add(v1alpha1.ReasonLeafUnfit, "The node %s has no PostgreSQL and no ingest source, and takes no part: it writes nothing of its own.", n.Name)
		case !Persistent(n):
			t.leaves.add(v1alpha1.ReasonLeafUnfit, "The node %s keeps its log in memory, and takes no part: a leaf keeps its log until the roots have it. Set its spec.storage.type to Persistent.", n.Name)
		case n.Spec.Cursors == v1alpha1.CursorsShared:
			t.leaves.add(v1alpha1.ReasonLeafUnfit, "The node %s has shared cursors, and takes no part: a tree reads each log by itself. Set its spec.cursors to PerOrigin.", n.Name)
		default:
			d.tree, d.Leaf = t, &t.spec.Spec
			out = append(out, d)
			t.checkTLS(n)
			t.checkLeafTables(d)
		}
	}
	if t.Unassigned = len(t.selected) - len(out); len(t.selected) == 0 {
		t.leaves.add(v1alpha1.ReasonNoLeaves, "No node of the namespace has the labels %s that the tree selects: give them to nodes, or change leaves.selector.", selector)
	}
	for _, c := range t.spec.Spec.Conflicts {
		for _, o := range c.Owners {
			if !slices.ContainsFunc(out, func(d *draft) bool { return d.Key.Name == o.Node }) {
				t.resolved.add(v1alpha1.ReasonMemberNotFound, "The owner %s of rows of %s is not a leaf of the tree.", o.Node, c.TableReference)
			}
		}
	}
	return out
}

// checkLeafTables checks what the tree says of tables against those that are written to a
// leaf: what goes by a column that is not there would stop the leaf, or count nothing.
func (t *treeDraft) checkLeafTables(d *draft) {
	s := &t.spec.Spec
	if c := keyless(d.spec, s.Conflicts); c != nil && d.mesh == nil {
		d.accepted.add(v1alpha1.ReasonInvalid, "The RelayTree %s says that %s of table %s says whose a row is, and the column is not part of the table's key here: mark it with key: true, or name one that is.", t.Key.Name, c.OwnerColumn, c.TableReference)
	}
	for _, source := range d.spec.Spec.Sources {
		if source.Ingest == nil {
			continue
		}
		for _, table := range source.Ingest.Tables {
			i := slices.IndexFunc(s.Tables, func(c v1alpha1.TreeTable) bool {
				return c.TableReference == table.TableReference && c.Delivery == v1alpha1.DeliveryCounter
			})
			if i < 0 {
				continue
			}
			for _, name := range s.Tables[i].Columns {
				if why := uncountable(table.Columns, name); why != "" {
					t.accepted.add(v1alpha1.ReasonInvalid, "tables[%d] counts %s of %s, %s at the leaf %s: name columns of integers or numeric that are not of the key, and that every leaf has.", i, name, table.TableReference, why, d.Key.Name)
				}
			}
		}
	}
}

// adds are the types of which numbers add up, exactly.
var adds = regexp.MustCompile(`(?i)^\s*(smallint|integer|bigint|int|int2|int4|int8|oid|numeric|decimal)\s*(\([0-9, ]*\))?\s*$`)

// uncountable says why a column does not add up; it is empty if it does.
func uncountable(columns []v1alpha1.IngestColumn, name string) string {
	i := slices.IndexFunc(columns, func(c v1alpha1.IngestColumn) bool { return c.Name == name })
	switch {
	case i < 0:
		return "which is no column of it"
	case columns[i].Key:
		return "which is part of its key"
	case !adds.MatchString(columns[i].Type):
		return "which is of type " + columns[i].Type
	}
	return ""
}

// assignTree gives each leaf its branch, each branch the one above it, and each leaf its
// roots.
func (p *planner) assignTree(t *treeDraft, leaves []*draft) {
	before := t.before()
	var units []string
	for _, d := range leaves {
		units = append(units, d.Key.String())
	}
	depth := treeDepth(&t.spec.Spec)
	for level := int32(1); level <= depth; level++ {
		given := assign(units, treeBranches(&t.spec.Spec, level), before[level])
		units = nil
		for _, m := range t.order {
			if m.level == level {
				units = append(units, m.name) // also of those that drain
			}
		}
		if level == 1 {
			for _, d := range leaves {
				m := t.members[branch{given[d.Key.String()], level}]
				m.children = append(m.children, Child{Node: d.Key, Address: p.in.Address(d.spec)})
				t.Leaves = append(t.Leaves, TreeLeaf{d.Key, m.name})
				d.Branch = m.name
			}
			continue
		}
		for _, m := range t.order {
			if m.level == level-1 {
				m.above = t.members[branch{given[m.name], level}]
			}
		}
	}
	for _, m := range t.order {
		if m.level == rootLevel {
			continue
		}
		var own []Child
		for _, n := range m.nodes {
			own = append(own, Child{Node: n.key, Address: n.address, Group: m.name})
		}
		if m.above != nil {
			m.above.children = append(m.above.children, own...)
			continue
		}
		for _, r := range t.order {
			if r.level == rootLevel {
				r.children = append(r.children, own...)
			}
		}
	}
	for _, d := range leaves {
		d.Wiring.Leaf = true
		for _, r := range t.order {
			if r.level == rootLevel {
				d.Wiring.Roots = append(d.Wiring.Roots, r.nodes[0].key.String())
			}
		}
	}
}

// before is where leaves and branches are now, by level of the branch that has them.
func (t *treeDraft) before() map[int32]map[string]string {
	out := map[int32]map[string]string{}
	for _, m := range t.order {
		for _, n := range m.nodes {
			for _, c := range n.last.children() {
				if c.State != "" {
					continue
				}
				if out[m.level] == nil {
					out[m.level] = map[string]string{}
				}
				out[m.level][cmp.Or(c.Group, c.Node.String())] = m.name
			}
		}
	}
	return out
}

// children are those that a node was wired with.
func (w Wiring) children() []Child {
	for _, s := range w.Sources {
		if s.Tree {
			return s.Children
		}
	}
	return nil
}

// wireTree wires the nodes of a tree, and finds those that have drained. A child that is
// assigned elsewhere is read on until it is read there, then no longer; it goes once
// those above have all that was read of it. Of a leaf that is gone, the rows may have to
// go too.
func (p *planner) wireTree(t *treeDraft) {
	removes := t.spec.Spec.Leaves.OnRemoval == v1alpha1.RowsRemove
	read := map[string][]*treeBranch{} // who reads it, as they say
	assigned := map[string]*treeBranch{}
	arrived := func(id string) bool { // it is read where it is assigned
		a := assigned[id]
		return slices.ContainsFunc(read[id], func(m *treeBranch) bool { return m == a || m.level == rootLevel && a.level == rootLevel })
	}
	for _, m := range t.order {
		for _, c := range m.children {
			assigned[c.Node.String()] = m
		}
		for _, n := range m.nodes {
			for id, r := range p.in.Relays[n.key].Children {
				if r.Connected {
					read[id] = append(read[id], m)
				}
			}
		}
	}
	for _, m := range t.order {
		out := TreeBranch{Name: m.name, Level: m.level, Draining: m.draining, Children: len(m.children)}
		for _, n := range m.nodes {
			report, known := p.in.Relays[n.key]
			settled := known && n.wired && report.Epoch >= n.last.Epoch
			children := slices.Clone(m.children)
			for _, c := range n.last.children() {
				if slices.ContainsFunc(m.children, func(o Child) bool { return o.Node == c.Node }) {
					continue
				}
				id := c.Node.String()
				said := report.Children[id]
				switch {
				case c.Leaves() && settled && (!said.Holds || t.passed(m, said.Passed)):
					continue // nobody needs it here any more
				case c.State == nodeconfig.ChildRetired || removes && m.level == 1 && !t.selected[id]:
					c.State = nodeconfig.ChildRetired
				case c.Leaves() || assigned[id] == nil || arrived(id):
					c.State = nodeconfig.ChildLeaving
				default:
					c.State = nodeconfig.ChildMoving
				}
				children = append(children, c)
				t.Moving = true
			}
			slices.SortFunc(children, func(a, b Child) int { return compareKeys(a.Node, b.Node) })
			out.Nodes = append(out.Nodes, TreeNode{n.key, children})
			if m.draining && settled && len(children) == 0 && len(n.last.children()) == 0 && (report.Nothing || t.passed(m, report.Passed)) {
				t.Remove = append(t.Remove, n.key)
			}
			if n.there != nil {
				n.there.relay, n.there.relayWiring = m, p.relayWiring(t, m, children)
				if m.level > rootLevel {
					n.there.Branch = m.name
				}
			}
		}
		t.Moving = t.Moving || m.draining
		t.Branches = append(t.Branches, out)
		if m.level > rootLevel {
			for _, n := range m.nodes {
				if n.there != nil {
					t.checkTLS(n.there.spec)
				}
			}
		}
	}
	slices.SortFunc(t.Remove, compareKeys)
}

// passed says whether to holds everybody above a branch: those on the way to the roots,
// and the roots.
func (t *treeDraft) passed(m *treeBranch, to []string) bool {
	if m.level == rootLevel {
		return true // nobody is
	}
	above := map[*treeBranch]bool{}
	for a := m.above; a != nil && !above[a]; a = a.above {
		above[a] = true
	}
	for _, a := range t.order {
		if a.level != rootLevel && !above[a] {
			continue
		}
		for _, n := range a.nodes {
			if !slices.Contains(to, n.key.String()) {
				return false
			}
		}
	}
	return true
}

// ids are those of a branch's nodes, in order.
func (m *treeBranch) ids() (out []string) {
	for _, n := range m.nodes {
		out = append(out, n.key.String())
	}
	slices.Sort(out)
	return out
}

func (p *planner) relayWiring(t *treeDraft, m *treeBranch, children []Child) WiredSource {
	mode := nodeconfig.ActiveActive
	if r := t.spec.Spec.Redundancy; r != nil && r.Mode != "" {
		mode = string(r.Mode)
	}
	w := WiredSource{Name: ChildrenSource, Policy: policy(nil), Tree: true, Children: children, Redundancy: mode}
	if m.level == rootLevel {
		return w // nobody is above
	}
	for _, r := range t.order {
		if r.level == rootLevel && !r.draining {
			w.Roots = append(w.Roots, r.ids()...)
		}
	}
	slices.Sort(w.Roots)
	w.Readers = w.Roots
	if a := m.above; a != nil && a.level != rootLevel {
		w.Readers = a.ids()
	}
	return w
}

// relayNode adds the source that its tree gives a root or a relay.
func (p *planner) relayNode(d *draft) {
	spec := &d.tree.spec.Spec
	d.Single = true
	d.Sources = append(d.Sources, Source{Name: ChildrenSource, Children: spec})
	d.Secrets = append(d.Secrets, TreeSecrets(spec)...)
	d.Wiring.Sources = append(d.Wiring.Sources, d.relayWiring)
}

// TreeSecrets lists the Secrets that a tree uses beside those of its nodes.
func TreeSecrets(spec *v1alpha1.RelayTreeSpec) []SecretUse {
	return FanoutSecrets(&v1alpha1.FanoutSourceSpec{TLS: spec.TLS, TokenSecretRef: spec.TokenSecretRef})
}

// checkTLS says what keeps a node from being read by those above it: see
// planner.checkTLS.
func (t *treeDraft) checkTLS(n *v1alpha1.ReplicationNode) {
	checkServing(&t.accepted, "The nodes of the tree", "the tree", t.spec.Spec.TLS, t.spec.Spec.TokenSecretRef, n)
}

func (t *treeDraft) plan() *Tree {
	t.Conditions = append(t.conditions(), t.leaves.condition(v1alpha1.ConditionLeavesAssigned, v1alpha1.ReasonAssigned, "Every leaf has a branch."))
	slices.SortFunc(t.Leaves, func(a, b TreeLeaf) int { return strings.Compare(a.Node.Name, b.Node.Name) })
	return t.Tree
}
