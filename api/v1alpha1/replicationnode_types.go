package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageType names a store.
// +kubebuilder:validation:Enum=Memory;Persistent
type StorageType string

// The stores.
const (
	// StorageMemory keeps everything in memory and starts from a baseline.
	StorageMemory StorageType = "Memory"
	// StoragePersistent keeps everything on a volume, and goes on from it after a
	// restart.
	StoragePersistent StorageType = "Persistent"
)

// DeletionPolicy says what becomes of something that outlives a resource.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// The policies.
const (
	// DeletionRetain keeps it.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete deletes it.
	DeletionDelete DeletionPolicy = "Delete"
)

// NodeSource is something a node takes data from: named, or given inline.
// +kubebuilder:validation:XValidation:rule="[has(self.postgresSourceRef), has(self.fanoutSourceRef), has(self.archiveSourceRef), has(self.postgres), has(self.fanout), has(self.ingest), has(self.archive)].filter(x, x).size() == 1",message="A source must have exactly one of postgresSourceRef, fanoutSourceRef, archiveSourceRef, postgres, fanout, ingest and archive."
type NodeSource struct {
	// Name of the source within the node.
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="A source's name must start with a lower case letter and hold lower case letters, digits and dashes only."
	Name string `json:"name"`

	// PostgresSourceRef names a PostgresSource of the same namespace.
	// +optional
	PostgresSourceRef *LocalReference `json:"postgresSourceRef,omitempty"`

	// FanoutSourceRef names a FanoutSource of the same namespace.
	// +optional
	FanoutSourceRef *LocalReference `json:"fanoutSourceRef,omitempty"`

	// ArchiveSourceRef names an ArchiveSource of the same namespace.
	// +optional
	ArchiveSourceRef *LocalReference `json:"archiveSourceRef,omitempty"`

	// Postgres gives a PostgreSQL source here, for this node alone.
	// +optional
	Postgres *PostgresSourceSpec `json:"postgres,omitempty"`

	// Fanout gives the upstream fan-outs here, for this node alone.
	// +optional
	Fanout *FanoutSourceSpec `json:"fanout,omitempty"`

	// Ingest gives the node a log of its own, which applications write to. The
	// source's name is part of the log's origin: do not change it.
	// +optional
	Ingest *IngestSource `json:"ingest,omitempty"`

	// Archive gives an archive to replay here, for this node alone.
	// +optional
	Archive *ArchiveSourceSpec `json:"archive,omitempty"`
}

// NodeJournal bounds what a node keeps of its logs for readers to resume from.
// +kubebuilder:validation:XValidation:rule="!has(self.maxBytes) || !has(self.limitBytes) || quantity(string(self.limitBytes)).compareTo(quantity(string(self.maxBytes))) >= 0",message="journal.limitBytes must be at least journal.maxBytes: between the two, entries are kept for durable readers that have yet to read them."
type NodeJournal struct {
	// MaxBytes of entries to keep over all logs. When it is not set: 256Mi in
	// memory, 1Gi on a volume.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="journal.maxBytes must be a quantity from 1Mi to 1Ti, such as 256Mi."
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`

	// LimitBytes is where entries go though a durable reader has yet to read
	// them; up to there they are kept for it. Four times maxBytes when it is not
	// set. Of persistent storage.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('4Ti')) <= 0",message="journal.limitBytes must be a quantity from 1Mi to 4Ti, such as 4Gi."
	LimitBytes *resource.Quantity `json:"limitBytes,omitempty"`

	// ReaderRetention is how long a durable reader that says nothing is waited
	// for; 24h when it is not set. Of persistent storage.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('8784h')",message="journal.readerRetention must be a duration from 1m to 8784h, such as 24h."
	ReaderRetention *metav1.Duration `json:"readerRetention,omitempty"`
}

// NodeCache is memory for what is read often.
type NodeCache struct {
	// MaxBytes of the cache; 64Mi when it is not set.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('8Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="cache.maxBytes must be a quantity from 8Mi to 1Ti, such as 64Mi."
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}

// NodeTombstones are deleted rows that are remembered for readers that were
// away.
type NodeTombstones struct {
	// Retention is how long they are remembered; 24h when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('8784h')",message="tombstones.retention must be a duration from 1m to 8784h, such as 24h."
	Retention *metav1.Duration `json:"retention,omitempty"`
}

// NodeStorage says where a node keeps state, logs and cursors.
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'Persistent' || has(self.size)",message="storage.size is needed with the type Persistent: say how large the volume is to be, such as 10Gi."
// +kubebuilder:validation:XValidation:rule="has(self.type) && self.type == 'Persistent' || !(has(self.size) || has(self.storageClassName) || has(self.persistentVolumeClaimRetentionPolicy) || has(self.cache) || has(self.tombstones) || has(self.journal) && (has(self.journal.limitBytes) || has(self.journal.readerRetention)))",message="size, storageClassName, persistentVolumeClaimRetentionPolicy, cache, tombstones, journal.limitBytes and journal.readerRetention are of the type Persistent: take them out, or set storage.type to Persistent."
// +kubebuilder:validation:XValidation:rule="!has(self.size) || !has(oldSelf.size) || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",message="storage.size can grow and never shrink, since no volume can: leave it as it is, or create another node."
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.size) || has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",message="storage.storageClassName cannot be changed, since no volume can change its class: leave it as it is, or create another node."
type NodeStorage struct {
	// Type of the store; Memory when it is not set. A node may turn from Memory to
	// Persistent, and not back.
	// +optional
	Type StorageType `json:"type,omitempty"`

	// Size of the volume, of persistent storage. It may grow, where the storage
	// class lets volumes grow.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="storage.size must be a quantity of at least 64Mi, such as 10Gi."
	Size *resource.Quantity `json:"size,omitempty"`

	// StorageClassName of the volume, of persistent storage; the cluster's default
	// class when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`

	// PersistentVolumeClaimRetentionPolicy says what becomes of the claim for the
	// volume when the node is deleted; Retain when it is not set. A node that is
	// created again under the same name goes on from a claim that was kept.
	// +optional
	PersistentVolumeClaimRetentionPolicy DeletionPolicy `json:"persistentVolumeClaimRetentionPolicy,omitempty"`

	// ScratchSize is how much may be spilled to the disk of the host, for parts of
	// large transactions; a pod that spills more is evicted. Without limit when
	// it is not set.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="storage.scratchSize must be a quantity of at least 64Mi, such as 2Gi."
	ScratchSize *resource.Quantity `json:"scratchSize,omitempty"`

	// Journal bounds what is kept for readers to resume from.
	// +optional
	Journal *NodeJournal `json:"journal,omitempty"`

	// Cache of a persistent store.
	// +optional
	Cache *NodeCache `json:"cache,omitempty"`

	// Tombstones says how long a persistent store remembers deleted rows.
	// +optional
	Tombstones *NodeTombstones `json:"tombstones,omitempty"`
}

// CursorMode is how a node keeps its place in what it reads from other nodes.
// +kubebuilder:validation:Enum=PerOrigin;Shared
type CursorMode string

// The modes of cursors.
const (
	// CursorsPerOrigin: one cursor for the log of each origin.
	CursorsPerOrigin CursorMode = "PerOrigin"
	// CursorsShared: one cursor for all logs of a peer.
	CursorsShared CursorMode = "Shared"
)

// ConsumerGrant allows a namespace to read from a node.
type ConsumerGrant struct {
	// Namespace that may read, or * for every one.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '*' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="A consumer's namespace must be the name of a namespace, or * for every one."
	Namespace string `json:"namespace"`
}

// NodeServe says how a node serves those below it.
// +kubebuilder:validation:XValidation:rule="!has(self.tokensSecretRef) || has(self.tls)",message="serve.tokensSecretRef needs serve.tls: a token sent in plain text is no secret."
// +kubebuilder:validation:XValidation:rule="!has(self.permissions) || has(self.tokensSecretRef) || has(self.tls) && has(self.tls.clientCASecretRef)",message="serve.permissions need readers that say who they are: set serve.tokensSecretRef or serve.tls.clientCASecretRef."
type NodeServe struct {
	// Port of the replication protocol; 7400 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self != 8080",message="serve.port cannot be 8080: the node serves HTTP there."
	Port int32 `json:"port,omitempty"`

	// AllowedConsumers are the other namespaces whose nodes and readers may
	// read from this node. Its own namespace always may.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +kubebuilder:validation:MaxItems=64
	AllowedConsumers []ConsumerGrant `json:"allowedConsumers,omitempty"`

	// TLS of the replication port; without it the port is in plain text.
	// +optional
	TLS *ServeTLS `json:"tls,omitempty"`

	// TokensSecretRef names the Secret with the tokens that readers may show:
	// each key is the name of a reader, its value the reader's token. It is read
	// again when it changes.
	// +optional
	TokensSecretRef *LocalReference `json:"tokensSecretRef,omitempty"`

	// Permissions say which reader may read which tables. When they are not set,
	// whoever is let in may read all; otherwise a reader that is not listed may
	// read nothing.
	// +optional
	// +listType=map
	// +listMapKey=reader
	// +kubebuilder:validation:MaxItems=256
	Permissions []ReadPermission `json:"permissions,omitempty"`

	// Limits of what readers may ask of each pod.
	// +optional
	Limits *ServeLimits `json:"limits,omitempty"`
}

// ServeLimits bounds what readers may ask of each pod of a node. A reader that is
// turned away tries another pod or comes back.
// +kubebuilder:validation:XValidation:rule="!has(self.maxPeerReaders) || self.maxPeerReaders <= (has(self.maxReaders) ? self.maxReaders : 4096)",message="serve.limits.maxPeerReaders must be at most serve.limits.maxReaders, which is 4096 when it is not set."
type ServeLimits struct {
	// MaxReaders is how many readers may be connected; 4096 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	MaxReaders int32 `json:"maxReaders,omitempty"`

	// MaxPeerReaders is how many readers of one name may be connected, or of one
	// address where readers do not say who they are; maxReaders when it is not
	// set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	MaxPeerReaders int32 `json:"maxPeerReaders,omitempty"`

	// AdmitRate is how many readers may connect in a second, and twice as many at
	// once; 500 when it is not set. Others are told when to come back.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	AdmitRate int32 `json:"admitRate,omitempty"`
}

// ServeTLS protects what a node serves.
type ServeTLS struct {
	// SecretRef names the Secret, in the same namespace, whose keys tls.crt and
	// tls.key hold the node's certificate and key. It is read again when it
	// changes.
	SecretRef LocalReference `json:"secretRef"`

	// ClientCASecretRef names the Secret whose key ca.crt holds the authorities of
	// readers' certificates. With it a reader must show a certificate, or a token
	// where there are tokens; the common name of the certificate is the reader's
	// name.
	// +optional
	ClientCASecretRef *LocalReference `json:"clientCASecretRef,omitempty"`
}

// ReadPermission lets a reader read tables, and write tables of the ingest source.
type ReadPermission struct {
	// Reader is the name of a reader, or * for every one that is let in.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Reader string `json:"reader"`

	// Tables that the reader may read; all when it is not set.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Tables []TableReference `json:"tables,omitempty"`

	// Writes are the tables of the ingest source that the reader may write; none
	// when it is not set.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Writes []TableReference `json:"writes,omitempty"`

	// Nodes of a mesh, as namespace/name, as which the reader may be read from when
	// it has dialled, beside the one of its own name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	Nodes []string `json:"nodes,omitempty"`
}

// NodePodTemplate is what may be said about a node's pods.
type NodePodTemplate struct {
	// Labels to add to the pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations to add to the pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitempty"`

	// ServiceAccountAnnotations are added to the pods' ServiceAccount, for workload
	// identities such as eks.amazonaws.com/role-arn.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	ServiceAccountAnnotations map[string]string `json:"serviceAccountAnnotations,omitempty"`

	// NodeSelector of the pods.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations of the pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// Affinity of the pods. When it is not set, the replicas of a node are
	// spread over hosts where that is possible.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// ImagePullSecrets for the node's image.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
}

// ReplicationNodeSpec says what a node replicates and how it runs.
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.storage) && has(oldSelf.storage.type) && oldSelf.storage.type == 'Persistent') || has(self.storage) && has(self.storage.type) && self.storage.type == 'Persistent'",message="storage.type cannot go from Persistent back to Memory: readers rely on what the node keeps. Create another node with memory storage, and let its readers move to it."
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || self.replicas <= 1 || !(has(self.storage) && has(self.storage.type) && self.storage.type == 'Persistent') && !has(self.sinks)",message="replicas must be at most 1 for a node with persistent storage or sinks: it has one store, and one place in each sink. Put a node with replicas and memory storage below it."
// +kubebuilder:validation:XValidation:rule="!has(self.sinks) || !self.sinks.exists(s, has(s.onReject) && s.onReject == 'DeadLetter') || has(self.storage) && has(self.storage.type) && self.storage.type == 'Persistent'",message="onReject: DeadLetter needs persistent storage: what is put aside must outlive the pod. Set storage.type to Persistent, or onReject to Hold."
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || self.replicas <= 1 || !has(self.sources) || !self.sources.exists(s, has(s.postgres) || has(s.postgresSourceRef))",message="replicas must be at most 1 for a node with a PostgreSQL source: a replication slot has one reader. Put a node with replicas below it."
// +kubebuilder:validation:XValidation:rule="!has(self.sources) || self.sources.filter(s, has(s.ingest)).size() <= 1",message="A node has at most one ingest source: declare all tables in it."
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || self.replicas <= 1 || !has(self.sources) || !self.sources.exists(s, has(s.ingest))",message="replicas must be at most 1 for a node with an ingest source: its log has one writer. Put a node with replicas below it."
// +kubebuilder:validation:XValidation:rule="!has(self.sources) || !self.sources.exists(s, has(s.ingest) && !(has(s.ingest.volatile) && s.ingest.volatile)) || has(self.storage) && has(self.storage.type) && self.storage.type == 'Persistent'",message="An ingest source needs persistent storage: what is written must outlive the pod. Set storage.type to Persistent, or ingest.volatile to true if it need not."
// +kubebuilder:validation:XValidation:rule="!has(self.serve) || !has(self.serve.permissions) || !self.serve.permissions.exists(p, has(p.writes)) || has(self.sources) && self.sources.exists(s, has(s.ingest))",message="serve.permissions give writes, and the node has no ingest source: take writes out, or add the source."
// +kubebuilder:validation:XValidation:rule="!has(self.archives) || !self.archives.exists(a, has(a.write)) || has(self.storage) && has(self.storage.type) && self.storage.type == 'Persistent'",message="An archive that is written needs persistent storage: what is not archived yet must outlive the pod, and an archive has one writer. Set storage.type to Persistent, or take write out."
type ReplicationNodeSpec struct {
	// Sources that the node takes data from; at least one, unless the node is the
	// member of a ReplicationMesh, which is then its only source. The nodes that a
	// RelayTree owns have none: the tree gives them theirs.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Sources []NodeSource `json:"sources,omitempty"`

	// Storage of the node.
	// +optional
	Storage *NodeStorage `json:"storage,omitempty"`

	// Cursors says how the node keeps its place in what it reads from other nodes;
	// PerOrigin when it is not set. With Shared it takes all that they have: its
	// fan-out sources, and its mesh, must not narrow tables. Two nodes of which one
	// has shared cursors use those, so that a mesh can be changed node by node.
	// +optional
	Cursors CursorMode `json:"cursors,omitempty"`

	// Sinks are the systems that the node delivers to.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Sinks []NodeSink `json:"sinks,omitempty"`

	// Archives of the node's tables, from which readers are caught up that are behind
	// what its journal holds, and that the node writes if it is told to. One that
	// cannot be read costs its own use and nothing else. Deleting the node leaves them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Archives []NodeArchive `json:"archives,omitempty"`

	// Serve says how the node serves those below it.
	// +optional
	Serve *NodeServe `json:"serve,omitempty"`

	// Replicas of a node without a PostgreSQL source; 1 when it is not set.
	// Each replica holds everything, and a reader resumes at any of them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// Image of the node; the manager's --node-image when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// Resources of the node's container.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// PodTemplate is what else may be said about the pods.
	// +optional
	PodTemplate *NodePodTemplate `json:"podTemplate,omitempty"`

	// Suspend stops the node's pods and keeps everything else.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// DrainTimeout is how long a node that ends waits for its readers to move
	// to another; 20s when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="drainTimeout must be a duration from 1s to 1h, such as 20s."
	DrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
}

// ParentStatus is a parent that a node reads from.
type ParentStatus struct {
	// ID of the parent: namespace/name of a node, or an address.
	ID string `json:"id"`

	// Address that the parent is read at.
	// +optional
	Address string `json:"address,omitempty"`

	// Since when the node reads from it.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// Why the node reads from it.
	// +optional
	Why string `json:"why,omitempty"`
}

// CandidateStatus is a parent that a node may read from.
type CandidateStatus struct {
	// ID of the candidate: namespace/name of a node, or an address.
	ID string `json:"id"`

	// Eligible says whether the node may move to it.
	Eligible bool `json:"eligible"`

	// Why a candidate is not eligible.
	// +optional
	Why string `json:"why,omitempty"`
}

// NodeSourceStatus is what is known of one source of a node.
type NodeSourceStatus struct {
	// Name of the source within the node.
	Name string `json:"name"`

	// Kind of the source: postgres, fanout, ingest, archive, mesh or children.
	Kind string `json:"kind"`

	// State that the node reports.
	// +optional
	State string `json:"state,omitempty"`

	// Slot that the node holds, of a PostgreSQL source.
	// +optional
	Slot string `json:"slot,omitempty"`

	// HistoryLost is how often peers held more of the source's log than the node's
	// present pods, as after a restore from a backup: it has taken a new epoch each time.
	// +optional
	HistoryLost int64 `json:"historyLost,omitempty"`

	// RetainedWAL is how much WAL the server keeps for the slot, in round numbers.
	// +optional
	RetainedWAL *resource.Quantity `json:"retainedWAL,omitempty"`

	// Parent that the node reads from at present.
	// +optional
	Parent *ParentStatus `json:"parent,omitempty"`

	// Candidates in order of preference.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Candidates []CandidateStatus `json:"candidates,omitempty"`
}

// NodeSinkStatus is what is known of one sink of a node.
type NodeSinkStatus struct {
	// Name of the sink within the node.
	Name string `json:"name"`

	// State that the node reports.
	// +optional
	State string `json:"state,omitempty"`

	// DeadLetters that were put aside and wait for a person.
	// +optional
	DeadLetters int64 `json:"deadLetters,omitempty"`
}

// NodeStorageStatus is what is known of a node's volume.
type NodeStorageStatus struct {
	// Claim is the name of the persistent volume claim.
	Claim string `json:"claim"`

	// Capacity of the volume.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`

	// Used by the store, in round numbers.
	// +optional
	Used *resource.Quantity `json:"used,omitempty"`
}

// OriginStatus is how far a node is with one log.
type OriginStatus struct {
	// Origin of the log.
	Origin string `json:"origin"`

	// Epoch of the log.
	// +optional
	Epoch string `json:"epoch,omitempty"`

	// Lag behind the origin, in steps: under 1s, 5s, 15s, 60s, 5m, 15m, 1h
	// or more; empty while it is not known. The exact series are metrics.
	// +optional
	Lag string `json:"lag,omitempty"`

	// LagChanges are the changes of the log that are not here yet; absent while that
	// is not known.
	// +optional
	LagChanges *int64 `json:"lagChanges,omitempty"`

	// Hops between the origin and this node.
	// +optional
	Hops int32 `json:"hops,omitempty"`
}

// ReplicationNodeStatus is what the controllers know of a node.
type ReplicationNodeStatus struct {
	// ObservedGeneration is the generation of the spec that this status is
	// about; -1 until a controller has seen the resource.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the node.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Mesh that the node is a member of.
	// +optional
	Mesh string `json:"mesh,omitempty"`

	// Tree that the node is a leaf, a relay or a root of.
	// +optional
	Tree string `json:"tree,omitempty"`

	// Branch of the tree that the node is of, or that it is assigned to.
	// +optional
	Branch string `json:"branch,omitempty"`

	// Parent of the first source, for people.
	// +optional
	Parent string `json:"parent,omitempty"`

	// Depth is how many nodes stand above this one on its longest active path.
	// +optional
	Depth *int32 `json:"depth,omitempty"`

	// Lag is the largest of the origins'.
	// +optional
	Lag string `json:"lag,omitempty"`

	// Sources of the node.
	// +optional
	// +listType=map
	// +listMapKey=name
	Sources []NodeSourceStatus `json:"sources,omitempty"`

	// Sinks of the node.
	// +optional
	// +listType=map
	// +listMapKey=name
	Sinks []NodeSinkStatus `json:"sinks,omitempty"`

	// Archives of the node.
	// +optional
	// +listType=map
	// +listMapKey=name
	Archives []NodeArchiveStatus `json:"archives,omitempty"`

	// Storage of the node, if it is persistent.
	// +optional
	Storage *NodeStorageStatus `json:"storage,omitempty"`

	// Origins that the node carries logs of, at most 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Origins []OriginStatus `json:"origins,omitempty"`

	// Children that have this node for their first parent, at most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Children []string `json:"children,omitempty"`

	// Endpoint that the node is read at.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// Image that the node runs.
	// +optional
	Image string `json:"image,omitempty"`

	// ConfigHash is the hash of the static configuration; another one rolls
	// the pods.
	// +optional
	ConfigHash string `json:"configHash,omitempty"`

	// WiringEpoch grows with each change of the wiring.
	// +optional
	WiringEpoch int64 `json:"wiringEpoch,omitempty"`

	// Rebaselines is how often the node's present pods had to copy tables
	// again.
	// +optional
	Rebaselines int64 `json:"rebaselines,omitempty"`

	// Replicas that exist.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// Selector of the pods, for autoscalers.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// ReplicationNode runs the engine: it takes data from its sources and serves
// it to those below.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=rnode,categories=tributary
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Parent",type=string,JSONPath=`.status.parent`
// +kubebuilder:printcolumn:name="Depth",type=integer,JSONPath=`.status.depth`
// +kubebuilder:printcolumn:name="Lag",type=string,JSONPath=`.status.lag`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="The name of a ReplicationNode may have at most 52 characters, since the names of its pods are made from it; choose a shorter one."
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="The name of a ReplicationNode must start with a lower case letter and hold lower case letters, digits and dashes only, since it is also the name of a Service."
// +kubebuilder:validation:XValidation:rule="!has(self.spec.sources) || !self.spec.sources.exists(s, has(s.fanout) && s.fanout.upstreams.exists(u, has(u.nodeRef) && u.nodeRef.name == self.metadata.name && !has(u.nodeRef.namespace)))",message="A node cannot be its own upstream: name another node, or leave this upstream out."
type ReplicationNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ReplicationNodeSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status ReplicationNodeStatus `json:"status,omitempty"`
}

// ReplicationNodeList is a list of ReplicationNodes.
//
// +kubebuilder:object:root=true
type ReplicationNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ReplicationNode `json:"items"`
}
