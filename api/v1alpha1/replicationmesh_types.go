package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MeshTopology says which members of a mesh replicate with which.
// +kubebuilder:validation:Enum=FullMesh
type MeshTopology string

// MeshFull: every member with every other.
const MeshFull MeshTopology = "FullMesh"

// MeshMember names a member of a mesh.
type MeshMember struct {
	// Name of the ReplicationNode.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// MeshMembers says which ReplicationNodes of the namespace are members: those
// that are named and those that are selected.
// +kubebuilder:validation:XValidation:rule="has(self.nodes) || has(self.selector)",message="members must have nodes, a selector, or both."
type MeshMembers struct {
	// Nodes by name. Peers are preferred in this order, and after them those that
	// are selected, in the order of their names.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Nodes []MeshMember `json:"nodes,omitempty"`

	// Selector selects nodes by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// MeshEdge is two members that replicate with each other.
type MeshEdge struct {
	// Nodes are the names of the two members.
	// +listType=set
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Nodes []string `json:"nodes"`
}

// ConflictPolicy says what becomes of writes of several origins to one row.
// +kubebuilder:validation:Enum=LastWriteWins;OriginOwnsKey;NamespaceByOrigin
type ConflictPolicy string

// The conflict policies.
const (
	// ConflictLastWriteWins: of all writes to a row the last one stays.
	ConflictLastWriteWins ConflictPolicy = "LastWriteWins"
	// ConflictOriginOwnsKey: a row belongs to one member, by its key; what others
	// write to it is refused, everywhere alike.
	ConflictOriginOwnsKey ConflictPolicy = "OriginOwnsKey"
	// ConflictNamespaceByOrigin: each origin has rows of its own, by a column that is
	// added to the key.
	ConflictNamespaceByOrigin ConflictPolicy = "NamespaceByOrigin"
)

// RowOwner is a member that owns rows by the value of a column: by the whole
// value, or else by its longest prefix. One with neither owns what is left; without
// it that belongs to nobody, and no write of it is taken.
// +kubebuilder:validation:XValidation:rule="!has(self.value) || !has(self.prefix)",message="An owner has value or prefix, or neither."
type RowOwner struct {
	// Node that owns the rows.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`

	// Value of the column.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value,omitempty"`

	// Prefix of the values.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Prefix string `json:"prefix,omitempty"`
}

// TableConflicts is the conflict policy of a table.
// +kubebuilder:validation:XValidation:rule="has(self.ownerColumn) == (self.policy == 'OriginOwnsKey')",message="ownerColumn is needed with the policy OriginOwnsKey, and with no other: name the column of the key that says whose a row is."
// +kubebuilder:validation:XValidation:rule="!has(self.owners) || self.policy == 'OriginOwnsKey'",message="owners are of the policy OriginOwnsKey: take them out, or set policy to OriginOwnsKey."
// +kubebuilder:validation:XValidation:rule="!has(self.originColumn) || self.policy == 'NamespaceByOrigin'",message="originColumn is of the policy NamespaceByOrigin: take it out, or set policy to NamespaceByOrigin."
type TableConflicts struct {
	TableReference `json:",inline"`

	// Policy of the table.
	Policy ConflictPolicy `json:"policy"`

	// OwnerColumn, of OriginOwnsKey, is the column of the key that says whose a row
	// is.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	OwnerColumn string `json:"ownerColumn,omitempty"`

	// Owners say which member owns which values of it. When they are not set, the
	// value is namespace/name of the member.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Owners []RowOwner `json:"owners,omitempty"`

	// OriginColumn, of NamespaceByOrigin, is the column that is added to the key;
	// origin when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	OriginColumn string `json:"originColumn,omitempty"`
}

// ReplicationMeshSpec says which nodes replicate each other, and how.
// +kubebuilder:validation:XValidation:rule="!has(self.topology) || !has(self.edges)",message="topology: FullMesh joins every member with every other: take edges out, or topology."
// +kubebuilder:validation:XValidation:rule="!has(self.tokenSecretRef) || has(self.tls)",message="tokenSecretRef needs tls: a token sent in plain text is no secret. Set tls, if only to {}."
type ReplicationMeshSpec struct {
	// Members of the mesh, at most 64.
	Members MeshMembers `json:"members"`

	// Topology of the mesh; FullMesh when neither it nor edges is set.
	// +optional
	Topology MeshTopology `json:"topology,omitempty"`

	// Edges join members in pairs, in place of a topology. Data travels over any
	// number of them, both ways.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2016
	Edges []MeshEdge `json:"edges,omitempty"`

	// Tables that members take from each other; all when it is not set.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=512
	Tables []FanoutTable `json:"tables,omitempty"`

	// Conflicts are the conflict policies of tables; in others the last write wins.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Conflicts []TableConflicts `json:"conflicts,omitempty"`

	// TLS protects the connections between the members, all of which must then
	// serve TLS; they are in plain text when it is not set. Without certSecretRef
	// each member shows its peers the certificate that it serves with. A peer
	// lets it be read from where the certificate's common name is its
	// namespace/name, or a permission of the peer lists it by nodes.
	// +optional
	TLS *ClientTLS `json:"tls,omitempty"`

	// TokenSecretRef names the Secret, in the same namespace, whose key token the
	// members show each other. It is read again at each connection.
	// +optional
	TokenSecretRef *LocalReference `json:"tokenSecretRef,omitempty"`
}

// MeshMemberStatus is what is known of a member of a mesh.
type MeshMemberStatus struct {
	// Name of the node.
	Name string `json:"name"`

	// Ready says whether the node is.
	Ready bool `json:"ready"`

	// Peers that the wiring gives it, and how many of them it has a session with.
	Peers int32 `json:"peers"`

	// Connected is the number of peers that it has a session with.
	Connected int32 `json:"connected"`

	// Lag is the largest of its logs, in steps as of a node.
	// +optional
	Lag string `json:"lag,omitempty"`

	// Message says what is wrong with it.
	// +optional
	Message string `json:"message,omitempty"`
}

// MeshOriginStatus is how far the members are with the log of one origin.
type MeshOriginStatus struct {
	// Origin of the log.
	Origin string `json:"origin"`

	// Epoch of the log.
	Epoch string `json:"epoch"`

	// Node that the log is of, if it is a member.
	// +optional
	Node string `json:"node,omitempty"`

	// Head of the log at that node.
	// +optional
	Head string `json:"head,omitempty"`

	// Members that have the log.
	Members int32 `json:"members"`

	// Current is the number of those that have all of it that they know of.
	Current int32 `json:"current"`

	// Worst is the member that is furthest behind; not set while all are current.
	// +optional
	Worst *MeshOriginMember `json:"worst,omitempty"`
}

// MeshOriginMember is how far one member is with the log of one origin.
type MeshOriginMember struct {
	// Name of the member.
	Name string `json:"name"`

	// Applied position.
	// +optional
	Applied string `json:"applied,omitempty"`

	// Lag in steps, as of a node; empty while it is not known.
	// +optional
	Lag string `json:"lag,omitempty"`

	// State is Missing, Unknown, Behind, Stalled or Held.
	State string `json:"state"`
}

// ReplicationMeshStatus is what the controllers know of a mesh.
type ReplicationMeshStatus struct {
	// ObservedGeneration is the generation of the spec that this status is
	// about; -1 until a controller has seen the resource.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the mesh.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Summary is how many members are ready, of how many, for people.
	// +optional
	Summary string `json:"summary,omitempty"`

	// Lag is the largest of all members.
	// +optional
	Lag string `json:"lag,omitempty"`

	// Members of the mesh.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Members []MeshMemberStatus `json:"members,omitempty"`

	// OriginCount is how many logs the members carry.
	// +optional
	OriginCount int32 `json:"originCount,omitempty"`

	// Origins whose logs the members carry, at most 64: those that members are
	// behind with come first. The rest is in the metrics and in "tributary
	// origins".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Origins []MeshOriginStatus `json:"origins,omitempty"`
}

// ReplicationMesh is nodes that replicate each other: what is written at one of
// them comes to all, over any number of hops, by one cursor per origin. A node is
// in at most one mesh, and may feed a tree of fan-out readers besides.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rmesh,path=replicationmeshes,categories=tributary
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Members",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Origins",type=integer,JSONPath=`.status.originCount`
// +kubebuilder:printcolumn:name="Converged",type=string,JSONPath=`.status.conditions[?(@.type=="Converged")].status`
// +kubebuilder:printcolumn:name="Lag",type=string,JSONPath=`.status.lag`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ReplicationMesh struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ReplicationMeshSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status ReplicationMeshStatus `json:"status,omitempty"`
}

// ReplicationMeshList is a list of ReplicationMeshes.
//
// +kubebuilder:object:root=true
type ReplicationMeshList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ReplicationMesh `json:"items"`
}
