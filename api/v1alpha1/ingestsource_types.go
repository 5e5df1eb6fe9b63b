package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IngestSource is a log of the node's own, which applications write to by the
// node's write API: POST /v1/write, or gRPC, on port 8080 of its Service.
type IngestSource struct {
	// Tables that can be written.
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Tables []IngestTable `json:"tables"`

	// Idempotency bounds the idempotency keys that are remembered: the oldest go.
	// +optional
	Idempotency *IngestIdempotency `json:"idempotency,omitempty"`

	// Pending bounds the batches that wait to be committed: others are told to
	// come back.
	// +optional
	Pending *IngestPending `json:"pending,omitempty"`

	// Timeout is how long a batch waits for its commit, where its writer does not
	// say less; 30s when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('100ms') && duration(self) <= duration('10m')",message="ingest.timeout must be a duration from 100ms to 10m, such as 30s."
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// Volatile says that what is written may be lost when the pod ends. Without it
	// the node must have persistent storage.
	// +optional
	Volatile bool `json:"volatile,omitempty"`
}

// IngestTable declares a table that can be written.
// +kubebuilder:validation:XValidation:rule="self.columns.exists(c, has(c.key) && c.key)",message="A table of an ingest source must have a key: mark the columns that identify a row with key: true."
type IngestTable struct {
	TableReference `json:",inline"`

	// Columns of the table.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Columns []IngestColumn `json:"columns"`
}

// IngestColumn declares a column.
type IngestColumn struct {
	// Name of the column.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Type as PostgreSQL names it, such as numeric(12,2).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	Type string `json:"type"`

	// Key says that the column is of the key: those of the key, in their order,
	// identify a row.
	// +optional
	Key bool `json:"key,omitempty"`
}

// IngestIdempotency bounds the idempotency keys that are remembered.
type IngestIdempotency struct {
	// MaxKeys that are remembered; 65536 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxKeys int32 `json:"maxKeys,omitempty"`

	// Retention is how long a key is remembered; 24h when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('8784h')",message="idempotency.retention must be a duration from 1s to 8784h, such as 24h."
	Retention *metav1.Duration `json:"retention,omitempty"`
}

// IngestPending bounds the batches that wait to be committed.
type IngestPending struct {
	// MaxBatches that may wait; 4096 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	MaxBatches int32 `json:"maxBatches,omitempty"`

	// MaxBytes that may wait, from 8Mi to 1Ti; 64Mi when it is not set.
	// +optional
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}
