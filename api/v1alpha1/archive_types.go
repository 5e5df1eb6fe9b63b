package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ArchiveFormat is how the artifacts of an archive are written.
// +kubebuilder:validation:Enum=protobuf;jsonl;jsonl.zst
type ArchiveFormat string

// The formats.
const (
	// FormatProtobuf: framed, compressed, with checksums.
	FormatProtobuf ArchiveFormat = "protobuf"
	// FormatJSONL: a line of JSON for each row or change, which a person can read.
	FormatJSONL ArchiveFormat = "jsonl"
	// FormatJSONLZstd: the same, compressed.
	FormatJSONLZstd ArchiveFormat = "jsonl.zst"
)

// ArchiveHistory says what the diffs of an archive hold.
// +kubebuilder:validation:Enum=net;full
type ArchiveHistory string

// The histories.
const (
	// HistoryNet: the last value of each row that has changed.
	HistoryNet ArchiveHistory = "net"
	// HistoryFull: every change.
	HistoryFull ArchiveHistory = "full"
)

// ArchiveStore is where an archive is kept.
// +kubebuilder:validation:XValidation:rule="has(self.s3) != has(self.local)",message="An archive's store must have exactly one of s3 and local."
type ArchiveStore struct {
	// S3 keeps it in a bucket of Amazon S3, or of a store with the same API.
	// +optional
	S3 *S3Store `json:"s3,omitempty"`

	// Local keeps it in a folder of a volume.
	// +optional
	Local *LocalStore `json:"local,omitempty"`
}

// S3Store is a bucket.
// +kubebuilder:validation:XValidation:rule="!has(self.kmsKey) || has(self.encryption) && self.encryption == 'aws:kms'",message="kmsKey is of the encryption aws:kms: set encryption to aws:kms, or take the key out."
type S3Store struct {
	// Bucket that the archive is in, by its name alone.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.contains('/') && !self.contains(' ')",message="bucket must be the name of a bucket alone: what follows a slash is the prefix."
	Bucket string `json:"bucket"`

	// Prefix comes before every key in the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=600
	Prefix string `json:"prefix,omitempty"`

	// Region of the bucket; the environment's when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	Region string `json:"region,omitempty"`

	// Endpoint is the URL of a store other than Amazon's.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && (url(self).getScheme() == 'http' || url(self).getScheme() == 'https')",message="endpoint must start with https:// or http:// and name a host, such as https://s3.example.com."
	Endpoint string `json:"endpoint,omitempty"`

	// PathStyle puts the bucket in the path of URLs, not in the host; true when it is
	// not set and there is an endpoint.
	// +optional
	PathStyle *bool `json:"pathStyle,omitempty"`

	// CASecretRef names the Secret, in the same namespace, whose key ca.crt holds the
	// authorities of the endpoint's certificate; the system's when it is not set.
	// +optional
	CASecretRef *LocalReference `json:"caSecretRef,omitempty"`

	// Encryption that the store is asked for.
	// +optional
	// +kubebuilder:validation:Enum=AES256;aws:kms
	Encryption string `json:"encryption,omitempty"`

	// KMSKey is the id of the key, of the encryption aws:kms.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	KMSKey string `json:"kmsKey,omitempty"`

	// Credentials say who asks the store. When they are not set, they are those of the
	// environment: of the machine, or those that a workload identity gives the pod by
	// podTemplate.serviceAccountAnnotations.
	// +optional
	Credentials *S3Credentials `json:"credentials,omitempty"`

	// SingleWriter does without conditional writes, for a store that has none: then
	// nothing holds a second writer off. See to it that there is one.
	// +optional
	SingleWriter bool `json:"singleWriter,omitempty"`
}

// S3Credentials say who asks a store: a static key or a profile, and a role that is
// assumed, with the pod's own token if asked for. No key stands in a resource.
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) || has(self.profile) || has(self.roleARN)",message="credentials say nothing: give secretRef, profile or roleARN, or take credentials out to use those of the environment."
// +kubebuilder:validation:XValidation:rule="!(has(self.secretRef) && has(self.profile))",message="credentials have both secretRef and profile: keep one of them."
// +kubebuilder:validation:XValidation:rule="has(self.roleARN) || !(has(self.roleSessionName) || has(self.externalID) || has(self.webIdentity) || has(self.stsEndpoint))",message="roleSessionName, externalID, webIdentity and stsEndpoint are of a role: name it by roleARN, or take them out."
// +kubebuilder:validation:XValidation:rule="!(has(self.externalID) && has(self.webIdentity))",message="A role that is assumed with a token has no externalID: take externalID or webIdentity out."
type S3Credentials struct {
	// SecretRef names the Secret, in the same namespace, whose keys accessKeyID and
	// secretAccessKey hold a static key. It is read again when it changes.
	// +optional
	SecretRef *LocalReference `json:"secretRef,omitempty"`

	// Profile of a configuration file.
	// +optional
	Profile *S3Profile `json:"profile,omitempty"`

	// RoleARN is the role that is assumed.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	RoleARN string `json:"roleARN,omitempty"`

	// RoleSessionName is what the sessions of the role are called.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RoleSessionName string `json:"roleSessionName,omitempty"`

	// ExternalID that the role asks for.
	// +optional
	// +kubebuilder:validation:MaxLength=1224
	ExternalID string `json:"externalID,omitempty"`

	// WebIdentity assumes the role with a token of the node's ServiceAccount, which is
	// mounted for this alone and is no access to the cluster's API.
	// +optional
	WebIdentity *WebIdentity `json:"webIdentity,omitempty"`

	// STSEndpoint is the URL where roles are assumed; Amazon's when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	STSEndpoint string `json:"stsEndpoint,omitempty"`
}

// S3Profile is a profile of a configuration file, as the tools of the store use it.
type S3Profile struct {
	// Name of the profile.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	Name string `json:"name"`

	// SecretRef names the Secret, in the same namespace, whose key config holds the
	// configuration file. A node has one such file.
	SecretRef LocalReference `json:"secretRef"`
}

// WebIdentity is a token of a ServiceAccount.
type WebIdentity struct {
	// Audience of the token; sts.amazonaws.com when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Audience string `json:"audience,omitempty"`
}

// LocalStore is a folder of a volume. The volume is nobody's: neither it nor what
// is in it is deleted with a resource that names it.
// +kubebuilder:validation:XValidation:rule="has(self.claim) != has(self.configMap)",message="A local store must have exactly one of claim and configMap."
type LocalStore struct {
	// Claim names the persistent volume claim, in the same namespace.
	// +optional
	Claim *LocalReference `json:"claim,omitempty"`

	// ConfigMap is a small archive that is read only, such as a seed that is committed
	// with the topology.
	// +optional
	ConfigMap *ArchiveConfigMap `json:"configMap,omitempty"`

	// Path of the folder within the volume; the volume itself when it is not set.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path must be a path within the volume: without a slash before it, and without '..'."
	Path string `json:"path,omitempty"`
}

// ArchiveConfigMap is a ConfigMap whose keys are the files of an archive.
type ArchiveConfigMap struct {
	// Name of the ConfigMap, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Items give keys the paths of files, since a key holds no slash; without them
	// each key is a file of its own name.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MaxItems=256
	Items []ConfigMapFile `json:"items,omitempty"`
}

// ConfigMapFile is the file that a key of a ConfigMap becomes.
type ConfigMapFile struct {
	// Key of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`

	// Path of the file, such as public.orders/manifest.json.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path"`
}

// ArchiveLocation says which archive is meant.
type ArchiveLocation struct {
	// Store that the archive is kept in.
	Store ArchiveStore `json:"store"`

	// KeyPrefix is what the keys of the archive begin with, as shop/public.orders/. A
	// reader's must be its writer's.
	// +optional
	// +kubebuilder:validation:MaxLength=600
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.split('/').exists(p, p in ['.', '..'] || p.startsWith('.tributary'))",message="keyPrefix must be names with a slash after each, such as shop/public.orders/."
	KeyPrefix string `json:"keyPrefix,omitempty"`

	// Group: each table has a prefix of its own below keyPrefix, schema.table. Without
	// it there is one table, and keyPrefix is its own.
	// +optional
	Group bool `json:"group,omitempty"`

	// Formats of the archive: a writer writes each, a reader tries them in order;
	// protobuf when it is not set.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	Formats []ArchiveFormat `json:"formats,omitempty"`
}

// NodeArchive is an archive of a node's tables. Readers that are behind what the
// node's journal holds are caught up from it; the node writes it if it is told to.
// +kubebuilder:validation:XValidation:rule="has(self.group) && self.group || has(self.tables) && self.tables.size() == 1",message="An archive without group is of one table: name it by tables, or set group to true, so that each table has a prefix of its own below keyPrefix."
// +kubebuilder:validation:XValidation:rule="!has(self.write) || !has(self.store.local) || has(self.store.local.claim)",message="An archive that is written needs a bucket or a volume: a ConfigMap cannot be written. Use s3, or local.claim."
// +kubebuilder:validation:XValidation:rule="!has(self.write) || !has(oldSelf.write) || has(self.keyPrefix) == has(oldSelf.keyPrefix) && (!has(self.keyPrefix) || self.keyPrefix == oldSelf.keyPrefix)",message="keyPrefix of an archive that is written cannot be changed: another prefix is another archive. Add another archive, and take this one out."
type NodeArchive struct {
	// Name of the archive within the node.
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="An archive's name must start with a lower case letter and hold lower case letters, digits and dashes only."
	Name string `json:"name"`

	ArchiveLocation `json:",inline"`

	// Tables that are archived there; with group all of the node when it is not set.
	// +optional
	// +listType=map
	// +listMapKey=schema
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=512
	Tables []TableReference `json:"tables,omitempty"`

	// Write has the node write the archive; another does when it is not set.
	// +optional
	Write *ArchiveWrite `json:"write,omitempty"`
}

// ArchiveWrite says how an archive is written.
type ArchiveWrite struct {
	// Interval at which what has changed is written; 1m when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="write.interval must be a duration from 1s to 24h, such as 1m."
	Interval *metav1.Duration `json:"interval,omitempty"`

	// MaxDiffBytes of the node's logs after which it is written earlier, from 64Ki to
	// 1Ti; 64Mi when it is not set.
	// +optional
	MaxDiffBytes *resource.Quantity `json:"maxDiffBytes,omitempty"`

	// History that diffs hold; net when it is not set.
	// +optional
	History ArchiveHistory `json:"history,omitempty"`

	// Writer names the writer in the archive; made from the node's name when it is not
	// set. Another writer is refused there.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Writer string `json:"writer,omitempty"`

	// TakeOver takes an archive over that another writer has written. That one finds
	// itself fenced.
	// +optional
	TakeOver bool `json:"takeOver,omitempty"`

	// CompressionLevel of zstd; 3 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=22
	CompressionLevel int32 `json:"compressionLevel,omitempty"`

	// Rebase says when the next base is written.
	// +optional
	Rebase *ArchiveRebase `json:"rebase,omitempty"`

	// Retention says what is kept.
	// +optional
	Retention *ArchiveRetention `json:"retention,omitempty"`
}

// ArchiveRebase says when the next base is written: once one of the bounds that are
// set is passed, but not before minInterval has. With none set: when the diffs are as
// large as the base, hold twice as many changes as it has rows, or are 10000.
type ArchiveRebase struct {
	// DiffBytes stored in the diffs since the base.
	// +optional
	DiffBytes *resource.Quantity `json:"diffBytes,omitempty"`

	// FractionPercent of the base's bytes that the diffs have come to.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	FractionPercent int32 `json:"fractionPercent,omitempty"`

	// ChurnPercent is how many changes there were for each 100 rows of the base.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	ChurnPercent int32 `json:"churnPercent,omitempty"`

	// MaxDiffs since the base.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxDiffs int32 `json:"maxDiffs,omitempty"`

	// MaxAge of the base.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('87600h')",message="rebase.maxAge must be a duration from 1s to 87600h, such as 168h."
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`

	// MinInterval between two bases; 1h when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('87600h')",message="rebase.minInterval must be a duration from 1s to 87600h, such as 1h."
	MinInterval *metav1.Duration `json:"minInterval,omitempty"`
}

// ArchiveRetention says what is kept: at least generations, and those that ended
// within age. One is always kept.
type ArchiveRetention struct {
	// Generations to keep, each a base and its diffs; 2 when it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	Generations int32 `json:"generations,omitempty"`

	// Age within which generations are kept.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('876000h')",message="retention.age must be a duration from 1s to 876000h, such as 720h."
	Age *metav1.Duration `json:"age,omitempty"`

	// Grace is how old an object is that no manifest lists before it is taken for a
	// leftover; 24h when it is not set.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('87600h')",message="retention.grace must be a duration from 1m to 87600h, such as 24h: longer than an upload takes."
	Grace *metav1.Duration `json:"grace,omitempty"`
}

// ArchiveHead is how far a log of a table is archived.
type ArchiveHead struct {
	// Table that is archived.
	Table string `json:"table"`

	// Origin of the log.
	Origin string `json:"origin"`

	// Epoch of the log.
	// +optional
	Epoch string `json:"epoch,omitempty"`

	// Position that the archive goes up to.
	Position string `json:"position"`
}

// ArchiveProgress is what an archive holds.
type ArchiveProgress struct {
	// Destination of the archive.
	// +optional
	Destination string `json:"destination,omitempty"`

	// Tables that are archived.
	// +optional
	Tables int32 `json:"tables,omitempty"`

	// Generation of the archive; of several tables the highest.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// Bytes stored, in round numbers.
	// +optional
	Bytes *resource.Quantity `json:"bytes,omitempty"`

	// Heads are how far the tables are archived, at most 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Heads []ArchiveHead `json:"heads,omitempty"`

	// LastError is what last went wrong, though it may be over.
	// +optional
	LastError string `json:"lastError,omitempty"`

	// NextStep is what comes next, or what a person must do.
	// +optional
	NextStep string `json:"nextStep,omitempty"`
}

// NodeArchiveStatus is what is known of one archive of a node.
type NodeArchiveStatus struct {
	// Name of the archive within the node.
	Name string `json:"name"`

	// State that the node reports: Waiting, Streaming, Retrying, Full, Fenced or
	// Failed.
	// +optional
	State string `json:"state,omitempty"`

	// Writes says that the node writes the archive.
	// +optional
	Writes bool `json:"writes,omitempty"`

	ArchiveProgress `json:",inline"`

	// Lag of the archive behind the node, in steps.
	// +optional
	Lag string `json:"lag,omitempty"`

	// Replays is how many readers were caught up from the archive by the present pods.
	// +optional
	Replays int64 `json:"replays,omitempty"`
}
