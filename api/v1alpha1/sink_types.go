package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RejectPolicy says what becomes of an entry that a sink's target rejects.
// +kubebuilder:validation:Enum=Hold;DeadLetter
type RejectPolicy string

// The policies.
const (
	// RejectHold keeps the log where it is, with the entry named, and tries again.
	RejectHold RejectPolicy = "Hold"
	// RejectDeadLetter puts the entry aside, where it can be listed and replayed,
	// and goes on.
	RejectDeadLetter RejectPolicy = "DeadLetter"
)

// NodeSink is a system that a node delivers to.
// +kubebuilder:validation:XValidation:rule="has(self.postgres) != has(self.http)",message="A sink must have exactly one of postgres and http."
// +kubebuilder:validation:XValidation:rule="!has(self.deadLetters) || has(self.onReject) && self.onReject == 'DeadLetter'",message="A sink's deadLetters are of onReject: DeadLetter: take them out, or set onReject to DeadLetter."
type NodeSink struct {
	// Name of the sink within the node. Its place at the target is kept under this
	// name: another name starts from a baseline.
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="A sink's name must start with a lower case letter and hold lower case letters, digits and dashes only."
	Name string `json:"name"`

	// Postgres delivers to tables of a PostgreSQL database.
	// +optional
	Postgres *PostgresSink `json:"postgres,omitempty"`

	// HTTP delivers in batches to an address.
	// +optional
	HTTP *HTTPSink `json:"http,omitempty"`

	// Tables to deliver; all when it is not set.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=512
	Tables []TableReference `json:"tables,omitempty"`

	// OnReject says what becomes of an entry that the target rejects; Hold when it
	// is not set.
	// +optional
	OnReject RejectPolicy `json:"onReject,omitempty"`

	// DeadLetters bounds what is put aside.
	// +optional
	DeadLetters *SinkDeadLetters `json:"deadLetters,omitempty"`
}

// SinkDeadLetters bounds the entries that a sink puts aside.
type SinkDeadLetters struct {
	// MaxEntries that are put aside; 1000 when it is not set. A sink that has as
	// many holds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxEntries int32 `json:"maxEntries,omitempty"`
}

// PostgresSink is a database that tables are written to, with the sink's place
// in each log beside them, in the same transaction.
type PostgresSink struct {
	// Hosts to try in order. The first that accepts writes is used.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Hosts []PostgresHost `json:"hosts"`

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

	// Schema to write all tables to; each table's own when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Schema string `json:"schema,omitempty"`

	// CreateTables says whether the node creates tables and columns that are
	// missing; false when it is not set.
	// +optional
	CreateTables bool `json:"createTables,omitempty"`

	// Provenance gives each table with a key columns for the origin, the epoch, the
	// version and the time of the write that a row is of.
	// +optional
	Provenance bool `json:"provenance,omitempty"`
}

// HTTPSink is an address that batches of changes are posted to.
type HTTPSink struct {
	// URL to post to.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && (url(self).getScheme() == 'http' || url(self).getScheme() == 'https')",message="url must start with https:// or http:// and name a host, such as https://example.com/changes."
	URL string `json:"url"`

	// TokenSecretRef names the Secret, in the same namespace, whose key token is
	// sent as a bearer token. It is read again when it changes.
	// +optional
	TokenSecretRef *LocalReference `json:"tokenSecretRef,omitempty"`

	// TLS says whom to trust and what certificate to show; the system's
	// authorities and none when it is not set.
	// +optional
	TLS *ClientTLS `json:"tls,omitempty"`

	// Headers to send with each request.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Headers []HTTPHeader `json:"headers,omitempty"`

	// Gzip says whether what is sent is compressed; false when it is not set.
	// +optional
	Gzip bool `json:"gzip,omitempty"`

	// Timeout of one request; 30s when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('100ms') && duration(self) <= duration('10m')",message="http.timeout must be a duration from 100ms to 10m, such as 30s."
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// MaxBatchBytes is about how much one request holds, before it is compressed:
	// from 1Ki to 64Mi; 1Mi when it is not set.
	// +optional
	MaxBatchBytes *resource.Quantity `json:"maxBatchBytes,omitempty"`
}

// HTTPHeader is a header that is sent with each request.
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueSecretRef)",message="A header must have exactly one of value and valueSecretRef."
type HTTPHeader struct {
	// Name of the header.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9-]+$')",message="A header's name must hold letters, digits and dashes only."
	// +kubebuilder:validation:XValidation:rule="!(self.lowerAscii() in ['authorization', 'content-encoding', 'content-length', 'content-type', 'host', 'idempotency-key'])",message="The sink sets this header itself: take it out; tokenSecretRef is for a bearer token."
	Name string `json:"name"`

	// Value of the header.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x1f\\x7f]')",message="A header's value must not hold control characters, such as the end of a line."
	Value string `json:"value,omitempty"`

	// ValueSecretRef names the key of a Secret, in the same namespace, that holds
	// the value. It is read again when it changes.
	// +optional
	ValueSecretRef *SecretKeyReference `json:"valueSecretRef,omitempty"`
}

// ClientTLS says whom to trust and what certificate to show.
type ClientTLS struct {
	// CASecretRef names the Secret, in the same namespace, whose key ca.crt holds
	// the certificates of the authorities to trust; the system's when it is not
	// set.
	// +optional
	CASecretRef *LocalReference `json:"caSecretRef,omitempty"`

	// CertSecretRef names the Secret whose keys tls.crt and tls.key hold the
	// certificate to show and its key.
	// +optional
	CertSecretRef *LocalReference `json:"certSecretRef,omitempty"`

	// ServerName that the certificate of the other side must have; the host of the
	// address when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`
}
