package topology

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// MeshSource is the name of the source that a mesh gives its members.
const MeshSource = "mesh"

// wholeCursor says that a node with shared cursors is to read a part.
const wholeCursor = "%s narrows tables, and spec.cursors is Shared: such a cursor covers all logs of a peer whole. Take its tables out, or set spec.cursors to PerOrigin."

// maxMembers bounds how many nodes a mesh may have.
const maxMembers = maxCandidates

// Mesh is the plan of a ReplicationMesh.
type Mesh struct {
	Key        Key
	Generation int64
	// Conditions are Accepted and ResolvedRefs, in this order.
	Conditions []Condition
	// Members that take part, by name.
	Members []MeshMember
}

// MeshMember is a node of a mesh and its peers, in order of preference.
type MeshMember struct {
	Node  Key
	Peers []Key
}

// Condition returns the condition of a type; the zero Condition if there is
// none.
func (m *Mesh) Condition(kind string) Condition { return find(m.Conditions, kind) }

// meshDraft is a mesh's plan in the making.
type meshDraft struct {
	*Mesh
	spec *v1alpha1.ReplicationMesh
	findings
	// broken: what the spec says cannot be made out; who its members are is not
	// known.
	broken bool
}

// resolveMeshes finds the members of every mesh, and gives each node its mesh and
// its peers there. The older mesh keeps a node that two of them have.
func (p *planner) resolveMeshes() {
	order := make([]*meshDraft, 0, len(p.meshes))
	for _, k := range sortedKeys(p.meshes) {
		order = append(order, p.meshes[k])
	}
	slices.SortStableFunc(order, func(a, b *meshDraft) int {
		return a.spec.CreationTimestamp.Compare(b.spec.CreationTimestamp.Time)
	})
	for _, m := range order {
		if m.spec.DeletionTimestamp != nil {
			continue
		}
		if wrong := checkMesh(&m.spec.Spec); len(wrong) > 0 {
			for _, w := range wrong {
				m.accepted.add(v1alpha1.ReasonInvalid, "%s", w)
			}
			m.broken = true
			continue
		}
		p.checkSecrets(&m.resolved, m.Key.Namespace, MeshSecrets(&m.spec.Spec))
		p.join(m)
	}
	for _, m := range order {
		if !m.broken {
			continue
		}
		for _, d := range p.order { // it may be a member: it keeps what it has
			if d.Key.Namespace == m.Key.Namespace && d.mesh == nil {
				d.unsure = true
			}
		}
	}
}

// join makes nodes members of a mesh and wires them.
func (p *planner) join(m *meshDraft) {
	members, complete := p.members(m)
	if len(members) > maxMembers {
		m.accepted.add(v1alpha1.ReasonInvalid, "The mesh has %d members, and may have %d: the last ones take no part. Make it smaller, or put nodes below its members by a FanoutSource.", len(members), maxMembers)
		members, complete = members[:maxMembers], false
	}
	joined := p.joins(m, members, complete)
	for _, c := range m.spec.Spec.Conflicts {
		for _, o := range c.Owners {
			if complete && !slices.ContainsFunc(members, func(d *draft) bool { return d.Key.Name == o.Node }) {
				m.resolved.add(v1alpha1.ReasonMemberNotFound, "The owner %s of rows of %s is not a member of the mesh.", o.Node, c.TableReference)
			}
		}
	}
	for i, d := range members {
		d.mesh, d.Mesh = m, m.Key
		member := MeshMember{Node: d.Key}
		for j, peer := range members {
			if i == j || !joined(i, j) {
				continue
			}
			c := p.nodeCandidate(peer.spec)
			c.Eligible = true
			d.peers = append(d.peers, c)
			member.Peers = append(member.Peers, peer.Key)
		}
		m.Members = append(m.Members, member)
		m.checkTLS(d.spec)
	}
}

// members finds the nodes of a mesh: those named, in their order, and then those
// selected. complete says whether every one that is meant takes part.
func (p *planner) members(m *meshDraft) (out []*draft, complete bool) {
	complete = true
	add := func(d *draft) {
		if slices.Contains(out, d) {
			return
		}
		n := d.spec
		switch {
		case d.mesh != nil:
			m.accepted.add(v1alpha1.ReasonMeshConflict, "The node %s is a member of the older ReplicationMesh %s, where it stays: a node is in at most one mesh. Take it out of one of them.", n.Name, d.mesh.Key.Name)
		case n.Spec.Replicas != nil && *n.Spec.Replicas > 1:
			m.accepted.add(v1alpha1.ReasonInvalid, "The node %s has %d replicas, and takes no part: a member of a mesh has one, since peers tell members by their names. Set its spec.replicas to 1, and put a node with replicas below it.", n.Name, *n.Spec.Replicas)
		case ownSource(n, MeshSource):
			m.accepted.add(v1alpha1.ReasonInvalid, "The node %s has a source of its own with the name %s, and takes no part: the mesh's source has that name. Give the node's own another.", n.Name, MeshSource)
		default:
			out = append(out, d)
			return
		}
		complete = false
	}
	for _, ref := range m.spec.Spec.Members.Nodes {
		switch d := p.nodes[Key{Namespace: m.Key.Namespace, Name: ref.Name}]; {
		case d == nil || d.export != nil:
			m.resolved.add(v1alpha1.ReasonMemberNotFound, "The member %s does not exist.", ref.Name)
			complete = false
		case d.spec.DeletionTimestamp != nil:
			m.resolved.add(v1alpha1.ReasonMemberNotFound, "The member %s is being deleted.", ref.Name)
			complete = false
		default:
			add(d)
		}
	}
	if s := m.spec.Spec.Members.Selector; s != nil {
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil { // checkMesh has said so
			return out, false
		}
		for _, d := range p.order {
			if d.Key.Namespace == m.Key.Namespace && !d.ofExport() && d.spec.DeletionTimestamp == nil && selector.Matches(labels.Set(d.spec.Labels)) {
				add(d)
			}
		}
		if len(out) == 0 && complete {
			m.resolved.add(v1alpha1.ReasonMemberNotFound, "No node of the namespace has the labels %s that the mesh selects.", selector)
		}
	}
	return out, complete
}

func ownSource(n *v1alpha1.ReplicationNode, name string) bool {
	return slices.ContainsFunc(n.Spec.Sources, func(s v1alpha1.NodeSource) bool { return s.Name == name })
}

// joins says which members replicate with each other, by their places.
func (p *planner) joins(m *meshDraft, members []*draft, complete bool) func(i, j int) bool {
	if len(m.spec.Spec.Edges) == 0 {
		return func(int, int) bool { return true }
	}
	place := map[string]int{}
	for i, d := range members {
		place[d.Key.Name] = i
	}
	joined, whole := map[[2]int]bool{}, complete
	above := make([]int, len(members)) // of a forest: members below one root are connected
	for i := range above {
		above[i] = i
	}
	root := func(i int) int {
		for above[i] != i {
			i = above[i]
		}
		return i
	}
	for _, e := range m.spec.Spec.Edges {
		a, b := e.Nodes[0], e.Nodes[1]
		i, oki := place[a]
		j, okj := place[b]
		if oki && okj {
			joined[[2]int{i, j}], joined[[2]int{j, i}] = true, true
			above[root(i)] = root(j)
			continue
		}
		whole = false
		stranger := a
		if oki {
			stranger = b
		}
		if complete { // else it is said why there are fewer members
			m.resolved.add(v1alpha1.ReasonMemberNotFound, "The edge of %s and %s is not there: %s is not a member of the mesh.", a, b, stranger)
		}
	}
	for i := range members {
		if whole && root(i) != root(0) {
			m.accepted.add(v1alpha1.ReasonMeshDivided, "No edges lead from %s to %s: what is written on one side does not come to the other. Add an edge between them.", members[0].Key.Name, members[i].Key.Name)
			break
		}
	}
	return func(i, j int) bool { return joined[[2]int{i, j}] }
}

// checkTLS says what keeps members from being let in by each other: see
// planner.checkTLS.
func (m *meshDraft) checkTLS(n *v1alpha1.ReplicationNode) {
	checkServing(&m.accepted, "The members", "the mesh", m.spec.Spec.TLS, m.spec.Spec.TokenSecretRef, n)
}

// checkServing says what keeps nodes that are told how to connect by one resource from
// being let in by a node.
func checkServing(f *fault, who, where string, tls *v1alpha1.ClientTLS, token *v1alpha1.LocalReference, n *v1alpha1.ReplicationNode) {
	serve := n.Spec.Serve
	secured := serve != nil && serve.TLS != nil
	switch {
	case secured && tls == nil:
		f.add(v1alpha1.ReasonTLSMismatch, "%s connect in plain text, and %s serves TLS: set spec.tls of %s, with caSecretRef where the authority is not one of the system's, or take spec.serve.tls out of %s.", who, n.Name, where, n.Name)
	case !secured && tls != nil:
		f.add(v1alpha1.ReasonTLSMismatch, "%s connect by TLS, and %s serves in plain text: set spec.serve.tls of %s, or take tls out of %s.", who, n.Name, n.Name, where)
	case secured && serve.TLS.ClientCASecretRef == nil && serve.TokensSecretRef != nil && token == nil:
		f.add(v1alpha1.ReasonTLSMismatch, "%s show no token, and %s asks for one: set tokenSecretRef of %s to one of the tokens in spec.serve.tokensSecretRef of %s.", who, n.Name, where, n.Name)
	}
}

// mesh adds the source that its mesh gives a node.
func (p *planner) mesh(d *draft) {
	spec := &d.mesh.spec.Spec
	if d.spec.Spec.Cursors == v1alpha1.CursorsShared && len(spec.Tables) > 0 {
		d.accepted.add(v1alpha1.ReasonInvalid, wholeCursor, "The ReplicationMesh "+d.mesh.Key.Name)
	}
	if c := keyless(d.spec, spec.Conflicts); c != nil {
		d.accepted.add(v1alpha1.ReasonInvalid, "The ReplicationMesh %s says that %s of table %s says whose a row is, and the column is not part of the table's key here: mark it with key: true, or name one that is.", d.mesh.Key.Name, c.OwnerColumn, c.TableReference)
	}
	d.Single = true
	d.Sources = append(d.Sources, Source{Name: MeshSource, Mesh: spec})
	d.Secrets = append(d.Secrets, MeshSecrets(spec)...)
	d.Wiring.Sources = append(d.Wiring.Sources, d.meshWiring())
}

func (d *draft) meshWiring() WiredSource {
	return WiredSource{Name: MeshSource, Candidates: slices.Clone(d.peers), Policy: policy(nil), Mesh: true}
}

// MeshSecrets lists the Secrets that a mesh uses.
func MeshSecrets(spec *v1alpha1.ReplicationMeshSpec) []SecretUse {
	return FanoutSecrets(&v1alpha1.FanoutSourceSpec{TLS: spec.TLS, TokenSecretRef: spec.TokenSecretRef})
}

func (m *meshDraft) plan() *Mesh {
	m.Conditions = m.conditions()
	slices.SortStableFunc(m.Members, func(a, b MeshMember) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	return m.Mesh
}
