package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OrderingGuarantee is what a source promises about the order of its changes.
// +kubebuilder:validation:Enum=Total;PerLog;PerKey;Unordered
type OrderingGuarantee string

// The guarantees, from the strongest.
const (
	// OrderingTotal: all changes arrive as they were committed at the source.
	OrderingTotal OrderingGuarantee = "Total"
	// OrderingPerLog: total within each log, none across.
	OrderingPerLog OrderingGuarantee = "PerLog"
	// OrderingPerKey: the changes of one key arrive in order.
	OrderingPerKey OrderingGuarantee = "PerKey"
	// OrderingUnordered: nothing is promised; stamps decide.
	OrderingUnordered OrderingGuarantee = "Unordered"
)

// Comparator names the order of a log's positions.
// +kubebuilder:validation:Enum=lsn;number;bytes
type Comparator string

// The comparators.
const (
	// ComparatorLSN: PostgreSQL's log sequence numbers.
	ComparatorLSN Comparator = "lsn"
	// ComparatorNumber: decimal numbers of any length.
	ComparatorNumber Comparator = "number"
	// ComparatorBytes: byte by byte.
	ComparatorBytes Comparator = "bytes"
)

// FailbackMode says what a node does when a parent that it prefers is back.
// +kubebuilder:validation:Enum=Automatic;Manual
type FailbackMode string

// The modes of failback.
const (
	// FailbackAutomatic: move back once the parent has been well for
	// recoverAfter.
	FailbackAutomatic FailbackMode = "Automatic"
	// FailbackManual: stay until a person moves the node.
	FailbackManual FailbackMode = "Manual"
)

// FailoverPolicy says when a node leaves its parent for the next candidate.
type FailoverPolicy struct {
	// UnhealthyAfter is how long a parent's stream must be down before the
	// node leaves it; 1s when it is not set. A connection that
	// breaks is left at once.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('750ms') && duration(self) <= duration('1h')",message="unhealthyAfter must be a duration from 750ms to 1h, such as 1s."
	UnhealthyAfter *metav1.Duration `json:"unhealthyAfter,omitempty"`

	// RecoverAfter is how long a preferred parent must have been well before
	// the node moves back to it; 30s when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="recoverAfter must be a duration from 1s to 24h, such as 30s."
	RecoverAfter *metav1.Duration `json:"recoverAfter,omitempty"`

	// Failback says whether the node moves back by itself; Automatic when it
	// is not set.
	// +optional
	Failback FailbackMode `json:"failback,omitempty"`

	// MaxSwitchesPerHour bounds how often the node changes its parent by
	// itself while the present one still answers; 12 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	MaxSwitchesPerHour *int32 `json:"maxSwitchesPerHour,omitempty"`
}

// Upstream is a place to take data from: a node, nodes by their labels, or an
// address outside.
// +kubebuilder:validation:XValidation:rule="[has(self.nodeRef), has(self.selector), has(self.address)].filter(x, x).size() == 1",message="An upstream must have exactly one of nodeRef, selector and address."
type Upstream struct {
	// NodeRef names a node.
	// +optional
	NodeRef *NodeReference `json:"nodeRef,omitempty"`

	// Selector selects nodes of the same namespace by their labels. They are
	// candidates in the order of their names; the node itself is left out.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Address of a fan-out outside, as host:port or dns:///host:port.
	// +optional
	// +kubebuilder:validation:MaxLength=280
	// +kubebuilder:validation:XValidation:rule="self.matches('^(dns:///)?([A-Za-z0-9._-]+|[[][0-9a-fA-F:.]+[]]):[0-9]{1,5}$')",message="An address must be host:port or dns:///host:port."
	Address string `json:"address,omitempty"`
}

// FanoutSourceSpec says which fan-outs are a source, and in what order.
// +kubebuilder:validation:XValidation:rule="!has(self.tokenSecretRef) || has(self.tls)",message="tokenSecretRef needs tls: a token sent in plain text is no secret. Set tls, if only to {}."
type FanoutSourceSpec struct {
	// Upstreams in order of preference.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Upstreams []Upstream `json:"upstreams"`

	// Comparator names the order of the upstream's positions; lsn when it is
	// not set.
	// +optional
	Comparator Comparator `json:"comparator,omitempty"`

	// Ordering is what the upstream promises about the order of its changes;
	// Total when it is not set, which holds for every fan-out of PostgreSQL.
	// +optional
	Ordering OrderingGuarantee `json:"ordering,omitempty"`

	// Failover says when to leave a parent for the next candidate.
	// +optional
	Failover *FailoverPolicy `json:"failover,omitempty"`

	// Tables to take, of those that the upstream has; all when it is not set.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=512
	Tables []FanoutTable `json:"tables,omitempty"`

	// TLS protects the connections to the upstreams; they are in plain text when
	// it is not set.
	// +optional
	TLS *ClientTLS `json:"tls,omitempty"`

	// TokenSecretRef names the Secret, in the same namespace, whose key token the
	// node shows to the upstreams. It is read again at each connection.
	// +optional
	TokenSecretRef *LocalReference `json:"tokenSecretRef,omitempty"`
}

// FilterOperator is how a condition compares.
// +kubebuilder:validation:Enum=Equal;In;Prefix
type FilterOperator string

// The operators.
const (
	// FilterEqual: the column is the value.
	FilterEqual FilterOperator = "Equal"
	// FilterIn: the column is one of the values.
	FilterIn FilterOperator = "In"
	// FilterPrefix: the column starts with the value.
	FilterPrefix FilterOperator = "Prefix"
)

// RowCondition says which rows are wanted by one of their columns. A column that
// is null never meets it.
// +kubebuilder:validation:XValidation:rule="self.operator == 'In' || self.values.size() == 1",message="The operators Equal and Prefix take exactly one value; use In for several."
type RowCondition struct {
	// Column to compare.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Column string `json:"column"`

	// Operator to compare by.
	Operator FilterOperator `json:"operator"`

	// Values to compare with, in PostgreSQL's text form, compared by the column's
	// type.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=1024
	Values []string `json:"values"`
}

// FanoutTable names a table, and what of it to take.
type FanoutTable struct {
	TableReference `json:",inline"`

	// Columns to take beside those of the key; all when it is not set.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1600
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Columns []string `json:"columns,omitempty"`

	// Where says which rows to take: those that meet every condition; all when it
	// is not set.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Where []RowCondition `json:"where,omitempty"`
}

// FanoutSourceStatus is what the controllers know of a FanoutSource.
type FanoutSourceStatus struct {
	SourceStatus `json:",inline"`
}

// FanoutSource is an ordered list of upstream fan-outs that nodes take data
// from.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=fsrc,categories=tributary
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Parent",type=string,JSONPath=`.spec.upstreams[0].nodeRef.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type FanoutSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FanoutSourceSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status FanoutSourceStatus `json:"status,omitempty"`
}

// FanoutSourceList is a list of FanoutSources.
//
// +kubebuilder:object:root=true
type FanoutSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FanoutSource `json:"items"`
}
