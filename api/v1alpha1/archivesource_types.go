package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ArchiveSourceType says what kind of archive is meant.
// +kubebuilder:validation:Enum=archive;file
type ArchiveSourceType string

// The types.
const (
	// ArchiveTypeArchive: in any store.
	ArchiveTypeArchive ArchiveSourceType = "archive"
	// ArchiveTypeFile: in files of a volume.
	ArchiveTypeFile ArchiveSourceType = "file"
)

// ArchiveSourceSpec says which archive is a source, and what of it.
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'file' || has(self.store.local)",message="type: file is of an archive in files of a volume: set store.local, or type to archive."
// +kubebuilder:validation:XValidation:rule="has(self.group) && self.group || self.tables.size() == 1",message="An archive without group is of one table: name one, or set group to true, so that each table has a prefix of its own below keyPrefix."
// +kubebuilder:validation:XValidation:rule="!has(self.pollInterval) || has(self.follow) && self.follow",message="pollInterval is of a source that follows its archive: set follow to true, or take it out."
type ArchiveSourceSpec struct {
	// Type of the archive: archive when it is not set, or file for one in files of a
	// volume.
	// +optional
	Type ArchiveSourceType `json:"type,omitempty"`

	ArchiveLocation `json:",inline"`

	// Tables to take.
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=512
	Tables []TableReference `json:"tables"`

	// Follow goes on with what is added to the archive.
	// +optional
	Follow bool `json:"follow,omitempty"`

	// PollInterval is how often the archive is looked at; 10s when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('100ms') && duration(self) <= duration('24h')",message="pollInterval must be a duration from 100ms to 24h, such as 10s."
	PollInterval *metav1.Duration `json:"pollInterval,omitempty"`

	// Comparator names the order of positions that do not say theirs; lsn when it is
	// not set.
	// +optional
	Comparator Comparator `json:"comparator,omitempty"`
}

// ArchiveSourceStatus is what the controllers know of an ArchiveSource.
type ArchiveSourceStatus struct {
	SourceStatus `json:",inline"`
}

// ArchiveSource is an archive that nodes replay: they need no database.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=asrc,categories=tributary
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Prefix",type=string,JSONPath=`.spec.keyPrefix`
// +kubebuilder:printcolumn:name="Follow",type=boolean,JSONPath=`.spec.follow`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ArchiveSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ArchiveSourceSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status ArchiveSourceStatus `json:"status,omitempty"`
}

// ArchiveSourceList is a list of ArchiveSources.
//
// +kubebuilder:object:root=true
type ArchiveSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ArchiveSource `json:"items"`
}
