package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LocalReference names an object in the same namespace.
type LocalReference struct {
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SecretKeyReference names a key of a Secret in the same namespace.
type SecretKeyReference struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Key of the Secret.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$')",message="A key of a Secret must hold letters, digits, dashes, dots and underscores only."
	Key string `json:"key"`
}

// NodeReference names a ReplicationNode.
type NodeReference struct {
	// Name of the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Namespace of the node; the referring object's own when it is not set. In
	// another namespace the node must list the referring one in its
	// serve.allowedConsumers.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// TableReference names a table.
type TableReference struct {
	// Schema of the table.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Schema string `json:"schema"`

	// Name of the table.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// SourceStatus is what PostgresSource and FanoutSource have in common.
type SourceStatus struct {
	// ObservedGeneration is the generation of the spec that this status is
	// about; -1 until a controller has seen the resource.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the source.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Nodes that take data from this source, by name, at most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Nodes []string `json:"nodes,omitempty"`
}

// String writes the table as schema.name.
func (t TableReference) String() string { return t.Schema + "." + t.Name }
