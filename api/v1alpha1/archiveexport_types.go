package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ExportMode says when an archive is written.
// +kubebuilder:validation:Enum=once;scheduled;follow
type ExportMode string

// The modes.
const (
	// ExportOnce writes it once, by a Job.
	ExportOnce ExportMode = "once"
	// ExportScheduled writes a new base at each time of a schedule, by a CronJob.
	ExportScheduled ExportMode = "scheduled"
	// ExportFollow goes on writing what changes, by a ReplicationNode of its own.
	ExportFollow ExportMode = "follow"
)

// ArchiveExportSpec says what is archived, where, and when.
// +kubebuilder:validation:XValidation:rule="[has(self.postgresSourceRef), has(self.fanoutSourceRef), has(self.nodeRef)].filter(x, x).size() == 1",message="An export must have exactly one of postgresSourceRef, fanoutSourceRef and nodeRef."
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'scheduled') == has(self.schedule)",message="schedule is needed with the mode scheduled, and with no other: give a time such as '0 3 * * *'."
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'follow') == has(self.storage)",message="storage is needed with the mode follow, and with no other: what is not archived yet must outlive the pod. Give type: Persistent and a size."
// +kubebuilder:validation:XValidation:rule="!has(self.storage) || has(self.storage.type) && self.storage.type == 'Persistent'",message="storage.type must be Persistent: what is not archived yet must outlive the pod."
// +kubebuilder:validation:XValidation:rule="(has(self.mode) ? self.mode : 'once') == (has(oldSelf.mode) ? oldSelf.mode : 'once')",message="mode cannot be changed: create another export. The archive stays."
// +kubebuilder:validation:XValidation:rule="has(self.keyPrefix) == has(oldSelf.keyPrefix) && (!has(self.keyPrefix) || self.keyPrefix == oldSelf.keyPrefix)",message="keyPrefix cannot be changed: another prefix is another archive. Create another export; this archive stays."
// +kubebuilder:validation:XValidation:rule="has(self.group) && self.group || has(self.tables) && self.tables.size() == 1",message="An archive without group is of one table: name it by tables, or set group to true, so that each table has a prefix of its own below keyPrefix."
// +kubebuilder:validation:XValidation:rule="!has(self.store.local) || has(self.store.local.claim)",message="An archive that is written needs a bucket or a volume: a ConfigMap cannot be written. Use s3, or local.claim."
type ArchiveExportSpec struct {
	// Mode says when the archive is written; once when it is not set.
	// +optional
	Mode ExportMode `json:"mode,omitempty"`

	// Schedule of the mode scheduled, as cron writes times.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Schedule string `json:"schedule,omitempty"`

	// PostgresSourceRef names the PostgresSource, in the same namespace, that is
	// archived. It is read by a replication slot of the export's own.
	// +optional
	PostgresSourceRef *LocalReference `json:"postgresSourceRef,omitempty"`

	// FanoutSourceRef names the FanoutSource, in the same namespace, that is archived.
	// +optional
	FanoutSourceRef *LocalReference `json:"fanoutSourceRef,omitempty"`

	// NodeRef names the ReplicationNode that is archived. One that serves with TLS is
	// named by a FanoutSource.
	// +optional
	NodeRef *NodeReference `json:"nodeRef,omitempty"`

	ArchiveLocation `json:",inline"`

	// Tables to archive; with group all of the source when it is not set.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=512
	Tables []TableReference `json:"tables,omitempty"`

	// Write says how the archive is written.
	// +optional
	Write *ArchiveWrite `json:"write,omitempty"`

	// Storage of the mode follow. Exports of the other modes hold the tables in scratch
	// space while they run.
	// +optional
	Storage *NodeStorage `json:"storage,omitempty"`

	// Image of the node that writes; the manager's --node-image when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// Resources of the container that writes.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// PodTemplate is what else may be said about the pods.
	// +optional
	PodTemplate *NodePodTemplate `json:"podTemplate,omitempty"`

	// BackoffLimit is how often a Job that fails is tried again; 6 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`

	// Suspend stops writing and keeps everything else.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// ArchiveExportStatus is what the controllers know of an ArchiveExport.
type ArchiveExportStatus struct {
	// ObservedGeneration is the generation of the spec that this status is
	// about; -1 until a controller has seen the resource.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the export.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Workload that writes, as kind/name.
	// +optional
	Workload string `json:"workload,omitempty"`

	// Job that ran last, or runs.
	// +optional
	Job string `json:"job,omitempty"`

	// StartTime of that Job.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime of the last Job that ended well.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	ArchiveProgress `json:",inline"`

	// Lag of the archive behind its source, in steps, of the mode follow.
	// +optional
	Lag string `json:"lag,omitempty"`
}

// ArchiveExport writes an archive of a source or of a node. The archive is kept when
// the export is deleted.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=aexp,categories=tributary
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Bytes",type=string,JSONPath=`.status.bytes`
// +kubebuilder:printcolumn:name="Lag",type=string,JSONPath=`.status.lag`
// +kubebuilder:printcolumn:name="Completed",type=date,JSONPath=`.status.completionTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40",message="The name of an ArchiveExport may have at most 40 characters, since the names of its Jobs and pods are made from it; choose a shorter one."
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="The name of an ArchiveExport must start with a lower case letter and hold lower case letters, digits and dashes only."
type ArchiveExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ArchiveExportSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status ArchiveExportStatus `json:"status,omitempty"`
}

// ArchiveExportList is a list of ArchiveExports.
//
// +kubebuilder:object:root=true
type ArchiveExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ArchiveExport `json:"items"`
}
