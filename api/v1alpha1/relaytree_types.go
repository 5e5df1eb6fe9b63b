package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RedundancyMode says how the parents of a branch share its work.
// +kubebuilder:validation:Enum=ActiveActive;ActiveStandby
type RedundancyMode string

// The modes of redundancy.
const (
	// RedundancyActiveActive: all parents of a branch are read from at once.
	RedundancyActiveActive RedundancyMode = "ActiveActive"
	// RedundancyActiveStandby: one is read from; another takes over when it is gone.
	RedundancyActiveStandby RedundancyMode = "ActiveStandby"
)

// Delivery says which changes of a table reach the roots.
// +kubebuilder:validation:Enum=All;Latest;Counter
type Delivery string

// The deliveries.
const (
	// DeliveryAll: every change.
	DeliveryAll Delivery = "All"
	// DeliveryLatest: of each row the newest, once for each window.
	DeliveryLatest Delivery = "Latest"
	// DeliveryCounter: columns of numbers add up over the leaves.
	DeliveryCounter Delivery = "Counter"
)

// FullPolicy says what a leaf does when its log has reached its bound, since a root
// has yet to take it.
// +kubebuilder:validation:Enum=Block;Rebaseline
type FullPolicy string

// The policies.
const (
	// FullBlock: it takes no more until there is room. Nothing is lost.
	FullBlock FullPolicy = "Block"
	// FullRebaseline: the log goes, and the roots take the leaf's state again. What
	// tables with the delivery All have missed is shown as a gap.
	FullRebaseline FullPolicy = "Rebaseline"
)

// RowsPolicy says what becomes of rows above a leaf.
// +kubebuilder:validation:Enum=Keep;Remove
type RowsPolicy string

// The policies.
const (
	// RowsKeep: they stay as they are.
	RowsKeep RowsPolicy = "Keep"
	// RowsRemove: they are deleted at every relay and root. Shares of counters stay.
	RowsRemove RowsPolicy = "Remove"
)

// TreeNodes say how the nodes that a tree owns run: those of its roots, or those of its
// branches. They always have persistent storage.
// +kubebuilder:validation:XValidation:rule="!has(self.storage) || has(self.storage.type) && self.storage.type == 'Persistent'",message="storage.type must be Persistent: a relay keeps its log and its rows on a volume. Set it, with a size, or leave storage out."
type TreeNodes struct {
	// Storage of each node: Persistent, with 10Gi when it is not set.
	// +optional
	Storage *NodeStorage `json:"storage,omitempty"`

	// Zones that the nodes are put in, by turns, so that those that stand in for each
	// other are not in one. When it is not set, they are spread over zones and hosts
	// where that is possible.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Zones []string `json:"zones,omitempty"`

	// Serve says how the nodes serve those that read from them.
	// +optional
	Serve *NodeServe `json:"serve,omitempty"`

	// Image of the nodes; the manager's --node-image when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// Resources of the nodes' containers.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// PodTemplate is what else may be said about the pods.
	// +optional
	PodTemplate *NodePodTemplate `json:"podTemplate,omitempty"`

	// Archives of the nodes' tables. Each node has its own, below keyPrefix under the
	// name of the node, as sales-root-0/.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	Archives []NodeArchive `json:"archives,omitempty"`
}

// TreeRoots are the nodes that all data of a tree comes to. They do not talk: each has
// everything. One that is taken out of the list is gone for good: leaves no longer keep
// anything for it.
// +kubebuilder:validation:XValidation:rule="!has(self.count) || !has(self.names)",message="roots has count and names: give one of them."
type TreeRoots struct {
	TreeNodes `json:",inline"`

	// Count of the roots, with the names root-0, root-1 and so on; 1 when neither it
	// nor names is set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	Count *int32 `json:"count,omitempty"`

	// Names of the roots. The node of a root is TREE-NAME.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.all(n, n.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$'))",message="A root's name must start with a lower case letter and hold at most 16 lower case letters, digits and dashes."
	Names []string `json:"names,omitempty"`

	// Sinks that every root delivers to.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	Sinks []NodeSink `json:"sinks,omitempty"`
}

// TreeBranches gather leaves for the roots.
// +kubebuilder:validation:XValidation:rule="!has(self.count) || !has(self.names)",message="branches has count and names: give one of them."
// +kubebuilder:validation:XValidation:rule="has(self.count) || has(self.names)",message="branches has neither count nor names: give one of them."
type TreeBranches struct {
	TreeNodes `json:",inline"`

	// Count of the branches, with the names b0, b1 and so on.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	Count *int32 `json:"count,omitempty"`

	// Names of the branches. The nodes of a branch are TREE-NAME-0, TREE-NAME-1 and so
	// on.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.all(n, n.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$'))",message="A branch's name must start with a lower case letter and hold at most 16 lower case letters, digits and dashes."
	Names []string `json:"names,omitempty"`
}

// TreeRedundancy says how many nodes do the work of a branch, and how.
type TreeRedundancy struct {
	// Mode of redundancy; ActiveActive when it is not set.
	// +optional
	Mode RedundancyMode `json:"mode,omitempty"`

	// Parents are the nodes of each branch; 2 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4
	Parents int32 `json:"parents,omitempty"`
}

// TreeLeaves are the nodes that the data of a tree comes from.
type TreeLeaves struct {
	// Selector selects ReplicationNodes of the namespace by their labels. They must have
	// a PostgreSQL or an ingest source, and persistent storage. A node is a leaf
	// of at most one tree.
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && self.matchLabels.size() > 0 || has(self.matchExpressions) && self.matchExpressions.size() > 0",message="leaves.selector is empty, and would select every node: give it labels."
	Selector metav1.LabelSelector `json:"selector"`

	// MaxLog is how much of its log a leaf keeps that some root has yet to take; 1Gi
	// when it is not set.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="leaves.maxLog must be a quantity from 1Mi to 1Ti, such as 1Gi."
	MaxLog *resource.Quantity `json:"maxLog,omitempty"`

	// OnFull says what a leaf does then; Block when it is not set.
	// +optional
	OnFull FullPolicy `json:"onFull,omitempty"`

	// OnReset says what becomes of the rows that a leaf had written and does not have any
	// more, when it has lost its storage and comes back; Remove when it is not set.
	// +optional
	OnReset RowsPolicy `json:"onReset,omitempty"`

	// OnRemoval says what becomes of the rows of a leaf that is deleted, or no longer
	// selected; Keep when it is not set.
	// +optional
	OnRemoval RowsPolicy `json:"onRemoval,omitempty"`
}

// TreeTable says how a table is delivered.
// +kubebuilder:validation:XValidation:rule="has(self.columns) == (self.delivery == 'Counter')",message="columns are needed with the delivery Counter, and with no other: name the columns of numbers that add up."
type TreeTable struct {
	TableReference `json:",inline"`

	// Delivery of the table.
	Delivery Delivery `json:"delivery"`

	// Columns that add up, of the delivery Counter.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Columns []string `json:"columns,omitempty"`
}

// RelayTreeSpec says what a tree gathers, and how.
// +kubebuilder:validation:XValidation:rule="!has(self.tokenSecretRef) || has(self.tls)",message="tokenSecretRef needs tls: a token sent in plain text is no secret. Set tls, if only to {}."
type RelayTreeSpec struct {
	// Roots of the tree; one when it is not set.
	// +optional
	Roots *TreeRoots `json:"roots,omitempty"`

	// Branches between the leaves and the roots.
	Branches TreeBranches `json:"branches"`

	// Redundancy of the branches.
	// +optional
	Redundancy *TreeRedundancy `json:"redundancy,omitempty"`

	// Depth is how many relays a change passes on its way to a root; 1 when it is not
	// set. With more, the branches are gathered by fewer, which are named trunk2-0,
	// trunk2-1 and so on, and trunk3-0 above them.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3
	Depth int32 `json:"depth,omitempty"`

	// Leaves of the tree.
	Leaves TreeLeaves `json:"leaves"`

	// Tables that are not delivered as Latest.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Tables []TreeTable `json:"tables,omitempty"`

	// Conflicts are the conflict policies of tables that several leaves write; in others
	// the last write wins.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Conflicts []TableConflicts `json:"conflicts,omitempty"`

	// Window is how long a relay gathers changes before it passes them on; 100ms when it
	// is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('1m')",message="window must be a duration from 1ms to 1m, such as 100ms."
	Window *metav1.Duration `json:"window,omitempty"`

	// MaxPending is how much may wait for the end of a window, which then ends; 16Mi
	// when it is not set.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('64Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Gi')) <= 0",message="maxPending must be a quantity from 64Ki to 1Gi, such as 16Mi."
	MaxPending *resource.Quantity `json:"maxPending,omitempty"`

	// TombstoneRetention is how long relays and roots remember deleted rows at most; 24h
	// when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('8784h')",message="tombstoneRetention must be a duration from 1m to 8784h, such as 24h."
	TombstoneRetention *metav1.Duration `json:"tombstoneRetention,omitempty"`

	// TLS protects the connections of the tree, whose nodes must then all serve TLS;
	// they are in plain text when it is not set. Without certSecretRef each node
	// shows the certificate that it serves with.
	// +optional
	TLS *ClientTLS `json:"tls,omitempty"`

	// TokenSecretRef names the Secret, in the same namespace, whose key token the nodes
	// show each other. It is read again at each connection.
	// +optional
	TokenSecretRef *LocalReference `json:"tokenSecretRef,omitempty"`
}

// TreeNodeStatus is what is known of a node that a tree owns.
type TreeNodeStatus struct {
	// Node is the name of the ReplicationNode.
	Node string `json:"node"`

	// Ready says whether the node is.
	Ready bool `json:"ready"`

	// Children that the wiring gives it.
	Children int32 `json:"children"`

	// Attached children: those that it has a session with.
	Attached int32 `json:"attached"`

	// Logs that the node reads, which are as many as its children.
	// +optional
	Logs int32 `json:"logs,omitempty"`

	// Lag is the largest of its children's, in steps as of a node.
	// +optional
	Lag string `json:"lag,omitempty"`

	// Message says what is wrong with it.
	// +optional
	Message string `json:"message,omitempty"`
}

// States of a branch.
const (
	// BranchActive: leaves are assigned to it.
	BranchActive = "Active"
	// BranchDraining: it is no longer in the spec, and is kept until those above have
	// all that it has.
	BranchDraining = "Draining"
)

// TreeBranchStatus is what is known of a branch.
type TreeBranchStatus struct {
	// Name of the branch.
	Name string `json:"name"`

	// Level is 1 for branches that gather leaves.
	Level int32 `json:"level"`

	// State is Active or Draining.
	State string `json:"state"`

	// Children that are assigned to it: leaves, or branches of the level below.
	Children int32 `json:"children"`

	// Leaving are those that it had and that are assigned elsewhere, or gone; it forgets
	// them once those above have all that it has of them.
	// +optional
	Leaving int32 `json:"leaving,omitempty"`

	// Lag of the branch: the least of its nodes'.
	// +optional
	Lag string `json:"lag,omitempty"`

	// Nodes of the branch.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Nodes []TreeNodeStatus `json:"nodes,omitempty"`
}

// TreeOverlap is a table of which several leaves write the same rows.
type TreeOverlap struct {
	// Table, as schema.name.
	Table string `json:"table"`

	// Refused are leaves whose writes were, since the rows belong to others; only with
	// the conflict policy OriginOwnsKey.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Refused []string `json:"refused,omitempty"`
}

// RelayTreeStatus is what the controllers know of a tree.
type RelayTreeStatus struct {
	// ObservedGeneration is the generation of the spec that this status is
	// about; -1 until a controller has seen the resource.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the tree.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Summary is how many leaves are attached, of how many, for people.
	// +optional
	Summary string `json:"summary,omitempty"`

	// Leaves that the tree has.
	// +optional
	Leaves int32 `json:"leaves,omitempty"`

	// Attached leaves: those that a node of their branch has a session with.
	// +optional
	Attached int32 `json:"attached,omitempty"`

	// Unassigned leaves: those that are selected and take no part.
	// +optional
	Unassigned int32 `json:"unassigned,omitempty"`

	// BranchCount is how many branches leaves are assigned to.
	// +optional
	BranchCount int32 `json:"branchCount,omitempty"`

	// Logs that the root with the most reads: as many as it has children, whatever the
	// number of leaves.
	// +optional
	Logs int32 `json:"logs,omitempty"`

	// RootLag is the lag of the root that is furthest behind.
	// +optional
	RootLag string `json:"rootLag,omitempty"`

	// Registered are the roots that leaves keep their logs for.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Registered []string `json:"registered,omitempty"`

	// Overlaps are the tables of which several leaves write the same rows, as far as
	// the present pods of roots and branches have met such rows; at most 64. The
	// table's conflict policy says what becomes of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Overlaps []TreeOverlap `json:"overlaps,omitempty"`

	// Roots of the tree.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Roots []TreeNodeStatus `json:"roots,omitempty"`

	// Branches of the tree, at most 64: those that drain or have trouble come first. The
	// rest is in the status of their nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Branches []TreeBranchStatus `json:"branches,omitempty"`
}

// RelayTree gathers the data of many leaves at few roots, by way of branches. Each level
// reads as many logs as it has children, so the roots do not feel the number of leaves.
// The tree owns the ReplicationNodes of its roots and branches; deleting it deletes them,
// and leaves their volumes as their storage says.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rtree,categories=tributary
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Leaves",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Branches",type=integer,JSONPath=`.status.branchCount`
// +kubebuilder:printcolumn:name="Logs",type=integer,JSONPath=`.status.logs`
// +kubebuilder:printcolumn:name="Lag",type=string,JSONPath=`.status.rootLag`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 30",message="The name of a RelayTree may have at most 30 characters, since the names of its nodes are made from it; choose a shorter one."
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="The name of a RelayTree must start with a lower case letter and hold lower case letters, digits and dashes only, since the names of its nodes are made from it."
// +kubebuilder:validation:XValidation:rule="!has(self.spec.branches.names) || !self.spec.branches.names.exists(n, n.matches('^(root|trunk)[-0-9]') || has(self.spec.roots) && has(self.spec.roots.names) && self.spec.roots.names.exists(r, r.startsWith(n + '-')))",message="A branch has the name of a root, or of a trunk, or one from which a root's would be made: choose another."
type RelayTree struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RelayTreeSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status RelayTreeStatus `json:"status,omitempty"`
}

// RelayTreeList is a list of RelayTrees.
//
// +kubebuilder:object:root=true
type RelayTreeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RelayTree `json:"items"`
}
