package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Key names a resource.
type Key = types.NamespacedName

// SourceKey names a source of a node.
type SourceKey struct {
	Node   Key
	Source string
}

// Inputs is everything a plan is made from. Nothing in it is changed.
type Inputs struct {
	Nodes           []v1alpha1.ReplicationNode
	PostgresSources []v1alpha1.PostgresSource
	FanoutSources   []v1alpha1.FanoutSource
	ArchiveSources  []v1alpha1.ArchiveSource
	Exports         []v1alpha1.ArchiveExport
	Meshes          []v1alpha1.ReplicationMesh
	Trees           []v1alpha1.RelayTree

	// Secrets holds, for each Secret that exists, the names of its keys. Nil
	// means that Secrets are not known here and are not checked.
	Secrets map[Key][]string
	// Last is the wiring that each node has now: of its last plan whose Action
	// was not Hold.
	Last map[Key]Wiring
	// Reported is which node each source reads from, as the nodes say.
	Reported map[SourceKey]Key
	// Relays are what the relays and roots of trees say.
	Relays map[Key]RelayReport
	// Address gives the address that a node is read at; nil is the one of its
	// Service.
	Address func(*v1alpha1.ReplicationNode) string
}

// Plan is what follows from the inputs.
type Plan struct {
	Nodes           map[Key]*Node
	PostgresSources map[Key]*SourcePlan
	FanoutSources   map[Key]*SourcePlan
	ArchiveSources  map[Key]*SourcePlan
	Exports         map[Key]*Export
	Meshes          map[Key]*Mesh
	Trees           map[Key]*Tree
}

// Condition is a condition of a resource without the times.
type Condition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// Action says how much of a node's plan may be put in place.
type Action int

const (
	// Hold: leave everything as it is.
	Hold Action = iota
	// Rewire: put the wiring in place and leave the rest as it is.
	Rewire
	// Apply: put everything in place.
	Apply
)

// Node is the plan of one node.
type Node struct {
	Key        Key
	Generation int64
	UID        types.UID

	// Conditions are Accepted, ResolvedRefs and Acyclic, in this order.
	Conditions []Condition
	Action     Action
	// Sources in the order of the spec; complete only if Action is Apply.
	Sources []Source
	// Wiring of the fan-out sources and of the mesh.
	Wiring Wiring
	// Mesh that the node is a member of; zero if there is none.
	Mesh Key
	// Tree that the node is a leaf, a relay or a root of; zero if there is none. Of a
	// leaf, Leaf is its spec. Branch is where it stands there; empty for a root.
	Tree   Key
	Leaf   *v1alpha1.RelayTreeSpec
	Branch string
	// Depth is how many nodes stand above on the longest active path; -1 when
	// nothing does and the node has no source of its own either.
	Depth int32
	// Children have this node for their active parent, by name.
	Children []Key
	// Single says that at most one pod of the node may run at a time: it reads by a
	// replication slot, has a log or a store of its own, fills sinks, is in a mesh
	// or is part of a tree.
	Single bool
	// Secrets that the node uses, each once.
	Secrets []SecretUse
}

// Source is a source of a node with its reference resolved: exactly one of
// Postgres, Fanout, Ingest, Archive, Mesh and Children is set.
type Source struct {
	Name     string
	Postgres *Postgres
	Fanout   *v1alpha1.FanoutSourceSpec
	Ingest   *v1alpha1.IngestSource
	Archive  *v1alpha1.ArchiveSourceSpec
	Mesh     *v1alpha1.ReplicationMeshSpec
	Children *v1alpha1.RelayTreeSpec
}

// Postgres is a PostgreSQL source with its names made out.
type Postgres struct {
	Spec        *v1alpha1.PostgresSourceSpec
	Slot        string
	Permanent   bool // the slot outlives the connection
	DropSlot    bool // and must not outlive the node
	Publication string
	Managed     bool
}

// Wiring is who a node may read from.
type Wiring struct {
	Epoch   uint64
	Sources []WiredSource

	// Leaf: the node is a leaf of a tree, and keeps its log for Roots, by id.
	Leaf  bool
	Roots []string
}

// WiredSource is the candidates of one source, in order of preference: the parents
// of a fan-out source, or the peers of a mesh; or the children of a relay.
type WiredSource struct {
	Name       string
	Candidates []Candidate
	Policy     nodeconfig.Policy

	// Mesh says that these are peers: their edges are no edges of trees.
	Mesh bool

	// Tree says that the source is Children, all of which are read; Redundancy says how
	// those of one group are.
	Tree       bool
	Children   []Child
	Redundancy string
	// Readers are the ids of the nodes that read a relay's log, and Roots those of the
	// roots.
	Readers, Roots []string
}

// hasParents says whether one of the candidates is read, as a parent.
func (s *WiredSource) hasParents() bool { return !s.Mesh && !s.Tree }

// Candidate is a parent that a source may read from.
type Candidate struct {
	// ID is namespace/name of a node, or the address of what is outside.
	ID string
	// Node is zero for an address outside.
	Node    Key
	Address string
	// Eligible is false for a candidate that must not be moved to; Why says
	// why, as a reason of the condition Acyclic.
	Eligible bool
	Why      string
}

// SourcePlan is the plan of a PostgresSource, FanoutSource or ArchiveSource.
type SourcePlan struct {
	Key        Key
	Generation int64
	// Conditions are Accepted and ResolvedRefs, in this order.
	Conditions []Condition
	// Nodes that use it, by name.
	Nodes []Key
	// Slots that those nodes hold for it, of a PostgresSource.
	Slots []Slot
}

// Slot is a replication slot and the node that reads by it.
type Slot struct {
	Name   string
	Holder Key
	Source string // of the node
	// Permanent says that the slot outlives the connection of its holder.
	Permanent bool
}

// Persistent says whether a node keeps its store on a volume.
func Persistent(n *v1alpha1.ReplicationNode) bool {
	return n.Spec.Storage != nil && n.Spec.Storage.Type == v1alpha1.StoragePersistent
}

// ServiceAddress is the address of a node's Service as a gRPC target; it
// resolves to every replica that is ready.
func ServiceAddress(n *v1alpha1.ReplicationNode) string {
	return fmt.Sprintf("dns:///%s.%s.svc:%d", n.Name, n.Namespace, Port(n))
}

// Port is the port that a node serves the replication protocol at.
func Port(n *v1alpha1.ReplicationNode) int32 {
	if n.Spec.Serve != nil && n.Spec.Serve.Port != 0 {
		return n.Spec.Serve.Port
	}
	return nodeconfig.DefaultReplicationPort
}

// Condition returns the condition of a type; the zero Condition if there is
// none.
func (n *Node) Condition(kind string) Condition { return find(n.Conditions, kind) }

// Condition returns the condition of a type; the zero Condition if there is
// none.
func (s *SourcePlan) Condition(kind string) Condition { return find(s.Conditions, kind) }

func find(cs []Condition, kind string) Condition {
	for _, c := range cs {
		if c.Type == kind {
			return c
		}
	}
	return Condition{}
}

// Compute makes the plan.
func Compute(in Inputs) Plan {
	p := newPlanner(in)
	p.resolve()
	p.claimSlots()
	p.checkComparators()
	p.archives()
	p.wire()
	return p.finish()
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func sortedKeys[V any](m map[Key]V) []Key {
	keys := make([]Key, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// label writes a key as people in namespace would: without the namespace where
// it is their own.
func label(k Key, namespace string) string {
	if k.Namespace == namespace {
		return k.Name
	}
	return k.String()
}

// Config is the wiring as the node's file.
func (w Wiring) Config() *nodeconfig.Wiring {
	out := &nodeconfig.Wiring{Version: nodeconfig.Version, Epoch: w.Epoch}
	for _, s := range w.Sources {
		ws := nodeconfig.WiredSource{Name: s.Name, Policy: s.Policy}
		for _, c := range s.Candidates {
			ws.Candidates = append(ws.Candidates, nodeconfig.Candidate{ID: c.ID, Address: c.Address, Eligible: c.Eligible})
		}
		for _, c := range s.Children {
			ws.Children = append(ws.Children, nodeconfig.Child{ID: c.Node.String(), Address: c.Address, Group: c.Group, State: c.State})
		}
		ws.Redundancy, ws.Readers, ws.Roots = s.Redundancy, s.Readers, s.Roots
		out.Sources = append(out.Sources, ws)
	}
	if w.Leaf {
		out.Parents = &nodeconfig.WiredParents{Roots: w.Roots}
	}
	return out
}

// WiringFromConfig is the wiring that a node's file says.
func WiringFromConfig(f *nodeconfig.Wiring) Wiring {
	out := Wiring{Epoch: f.Epoch}
	for _, s := range f.Sources {
		ws := WiredSource{Name: s.Name, Policy: s.Policy}
		for _, c := range s.Candidates {
			k, _ := ParseID(c.ID)
			ws.Candidates = append(ws.Candidates, Candidate{ID: c.ID, Node: k, Address: c.Address, Eligible: c.Eligible})
		}
		for _, c := range s.Children {
			k, _ := ParseID(c.ID)
			ws.Children = append(ws.Children, Child{Node: k, Address: c.Address, Group: c.Group, State: c.State})
		}
		ws.Redundancy, ws.Tree = s.Redundancy, s.Redundancy != ""
		ws.Readers, ws.Roots = s.Readers, s.Roots
		out.Sources = append(out.Sources, ws)
	}
	if p := f.Parents; p != nil {
		out.Leaf, out.Roots = true, p.Roots
	}
	return out
}

// ParseID returns the node that an id names; false for an address outside.
func ParseID(id string) (Key, bool) {
	ns, name, ok := strings.Cut(id, "/")
	if !ok || ns == "" || name == "" || strings.ContainsAny(id, ":") || strings.Contains(name, "/") {
		return Key{}, false
	}
	return Key{Namespace: ns, Name: name}, true
}
