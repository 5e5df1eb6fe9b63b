package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PostgresTLSMode says how a connection to PostgreSQL is protected. The names
// follow libpq's sslmode.
// +kubebuilder:validation:Enum=Disable;Prefer;Require;VerifyCA;VerifyFull
type PostgresTLSMode string

// Modes of protection, from none to a certificate whose name is checked.
const (
	PostgresTLSDisable    PostgresTLSMode = "Disable"
	PostgresTLSPrefer     PostgresTLSMode = "Prefer"
	PostgresTLSRequire    PostgresTLSMode = "Require"
	PostgresTLSVerifyCA   PostgresTLSMode = "VerifyCA"
	PostgresTLSVerifyFull PostgresTLSMode = "VerifyFull"
)

// PostgresHost is an address of a PostgreSQL server.
type PostgresHost struct {
	// Host name or address.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`

	// Port; 5432 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// PostgresTLS protects the connection to PostgreSQL.
// +kubebuilder:validation:XValidation:rule="!(self.mode in ['VerifyCA', 'VerifyFull']) || has(self.caSecretRef)",message="tls.caSecretRef is needed with the modes VerifyCA and VerifyFull: name the Secret whose key ca.crt holds the authority's certificate."
type PostgresTLS struct {
	// Mode of protection.
	Mode PostgresTLSMode `json:"mode"`

	// CASecretRef names the Secret whose key ca.crt holds the certificates of
	// the authorities to trust.
	// +optional
	CASecretRef *LocalReference `json:"caSecretRef,omitempty"`

	// CertSecretRef names the Secret whose keys tls.crt and tls.key hold the
	// certificate that the node shows, and its key. They are read again at each
	// connection.
	// +optional
	CertSecretRef *LocalReference `json:"certSecretRef,omitempty"`
}

// TargetSessionAttrs says which of several servers is taken. The names follow
// libpq's target_session_attrs.
// +kubebuilder:validation:Enum=Any;ReadWrite;ReadOnly;Primary;Standby;PreferStandby
type TargetSessionAttrs string

// What a server may be asked to be.
const (
	TargetAny           TargetSessionAttrs = "Any"
	TargetReadWrite     TargetSessionAttrs = "ReadWrite"
	TargetReadOnly      TargetSessionAttrs = "ReadOnly"
	TargetPrimary       TargetSessionAttrs = "Primary"
	TargetStandby       TargetSessionAttrs = "Standby"
	TargetPreferStandby TargetSessionAttrs = "PreferStandby"
)

// PostgresPublication is the publication that a node reads through.
type PostgresPublication struct {
	// Name of the publication. When it is not set, the name is made from the
	// source's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`

	// Managed says whether the node creates the publication when it is missing
	// and adds tables that it lacks; true when it is not set. A node never
	// drops a publication or takes a table out of one.
	// +optional
	Managed *bool `json:"managed,omitempty"`
}

// PostgresSlot is the replication slot that holds the source's log for a node.
type PostgresSlot struct {
	// Name of the slot. When it is not set, each node that uses the source has a
	// slot of its own, with a name made from the node's. Whether the slot is
	// temporary is for the node's storage to say: a node with memory storage
	// starts from a baseline each time and uses a temporary slot.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9_]{1,63}$')",message="A slot's name may hold lower case letters, digits and underscores only, at most 63 of them."
	Name string `json:"name,omitempty"`

	// DeletionPolicy says what becomes of the permanent slots of nodes with
	// persistent storage when the node or the source is deleted; Retain when it is
	// not set. A slot that is kept and never read makes the server keep WAL until
	// its disk is full, or max_slot_wal_keep_size is reached.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// PostgresSourceSpec says which database, and what of it, is a source.
// +kubebuilder:validation:XValidation:rule="(has(self.slot) && has(self.slot.name) ? self.slot.name : '-') == (has(oldSelf.slot) && has(oldSelf.slot.name) ? oldSelf.slot.name : '-')",message="slot.name cannot be changed, added or removed: another name is another slot, with another place in the log. Create a new source instead."
type PostgresSourceSpec struct {
	// Hosts to try in order. The first that accepts and is what
	// targetSessionAttrs asks for is used.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Hosts []PostgresHost `json:"hosts"`

	// TargetSessionAttrs says which of the hosts is taken; ReadWrite when it is not
	// set. A standby can be read from PostgreSQL 16 on.
	// +optional
	TargetSessionAttrs TargetSessionAttrs `json:"targetSessionAttrs,omitempty"`

	// Database to connect to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Database string `json:"database"`

	// CredentialsSecretRef names the Secret, in the same namespace, whose keys
	// username and password the node logs in with. They are read again at each
	// connection.
	CredentialsSecretRef LocalReference `json:"credentialsSecretRef"`

	// TLS protects the connection; Prefer when it is not set.
	// +optional
	TLS *PostgresTLS `json:"tls,omitempty"`

	// Publication to read through.
	// +optional
	Publication *PostgresPublication `json:"publication,omitempty"`

	// Slot that the source is read by.
	// +optional
	Slot *PostgresSlot `json:"slot,omitempty"`

	// Tables to replicate.
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=512
	Tables []TableReference `json:"tables"`
}

// PostgresSlotStatus is what is known of a source's slot.
type PostgresSlotStatus struct {
	// Name of the slot.
	// +optional
	Name string `json:"name,omitempty"`

	// Holder is the node that reads by the slot.
	// +optional
	Holder string `json:"holder,omitempty"`

	// Temporary says that the slot goes with the connection of its holder.
	// +optional
	Temporary bool `json:"temporary,omitempty"`

	// RetainedWAL is how much WAL the server keeps for the slot, in round numbers.
	// +optional
	RetainedWAL *resource.Quantity `json:"retainedWAL,omitempty"`
}

// PostgresSourceStatus is what the controllers know of a PostgresSource.
type PostgresSourceStatus struct {
	SourceStatus `json:",inline"`

	// Slots that nodes hold for this source, at most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Slots []PostgresSlotStatus `json:"slots,omitempty"`
}

// PostgresSource is a PostgreSQL database that nodes take tables from.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pgsrc,categories=tributary
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Database",type=string,JSONPath=`.spec.database`
// +kubebuilder:printcolumn:name="Holder",type=string,JSONPath=`.status.slots[0].holder`
// +kubebuilder:printcolumn:name="WAL",type=string,JSONPath=`.status.slots[0].retainedWAL`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PostgresSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PostgresSourceSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status PostgresSourceStatus `json:"status,omitempty"`
}

// PostgresSourceList is a list of PostgresSources.
//
// +kubebuilder:object:root=true
type PostgresSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PostgresSource `json:"items"`
}
