package v1alpha1

// Conditions. Ready is the summary and mirrors the first of the others that
// does not hold. Reconciling and Stalled follow kstatus: they are present only
// while they are true, and Stalled only where a person must act.
const (
	// ConditionReady is the summary: the resource does what its spec says.
	ConditionReady = "Ready"
	// ConditionReconciling is present while the controllers or the node are
	// still on their way and will go on by themselves.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is present while nothing will move until a person
	// changes something.
	ConditionStalled = "Stalled"
	// ConditionAccepted says whether the spec can be acted on at all.
	ConditionAccepted = "Accepted"
	// ConditionResolvedRefs says whether every source, parent and Secret that
	// the spec names exists and may be used.
	ConditionResolvedRefs = "ResolvedRefs"
	// ConditionAcyclic says whether data can travel without coming back.
	ConditionAcyclic = "Acyclic"
	// ConditionWorkloadAvailable says whether the node's pods run.
	ConditionWorkloadAvailable = "WorkloadAvailable"
	// ConditionStreaming says whether the node receives from all its sources,
	// as the node itself reports it.
	ConditionStreaming = "Streaming"
	// ConditionCaughtUp says whether the node's lag is within bounds.
	ConditionCaughtUp = "CaughtUp"
	// ConditionSinksHealthy says whether every sink of a node delivers; only nodes
	// with sinks have it.
	ConditionSinksHealthy = "SinksHealthy"
	// ConditionStorageHealthy says whether a node's volume is there, and its store
	// can be written; only nodes with persistent storage have it.
	ConditionStorageHealthy = "StorageHealthy"
)

// Reasons that say a condition holds.
const (
	// ReasonReady: everything holds.
	ReasonReady = "Ready"
	// ReasonAccepted: the spec is acted on.
	ReasonAccepted = "Accepted"
	// ReasonResolved: every reference was found.
	ReasonResolved = "Resolved"
	// ReasonAcyclic: no cycle runs through this node.
	ReasonAcyclic = "Acyclic"
	// ReasonAvailable: the pods run and are ready.
	ReasonAvailable = "Available"
	// ReasonStreaming: every source delivers.
	ReasonStreaming = "Streaming"
	// ReasonCaughtUp: the lag is within bounds.
	ReasonCaughtUp = "CaughtUp"
	// ReasonDelivering: every sink delivers.
	ReasonDelivering = "Delivering"
	// ReasonHealthy: the store can be written, on a volume of the size wanted.
	ReasonHealthy = "Healthy"
)

// Reasons of Accepted.
const (
	// ReasonInvalid: the spec contradicts itself; the message says where.
	ReasonInvalid = "Invalid"
	// ReasonNotPermitted: a parent in another namespace does not list this
	// namespace in its serve.allowedConsumers.
	ReasonNotPermitted = "NotPermitted"
	// ReasonSlotConflict: an older resource holds the same replication slot on
	// the same server.
	ReasonSlotConflict = "SlotConflict"
)

// Reasons of ResolvedRefs. All of them mean waiting, and heal by themselves.
const (
	// ReasonParentNotFound: a parent node does not exist, or is being deleted.
	ReasonParentNotFound = "ParentNotFound"
	// ReasonSourceNotFound: a PostgresSource or FanoutSource does not exist.
	ReasonSourceNotFound = "SourceNotFound"
	// ReasonSecretNotFound: a Secret, or a key in it, does not exist.
	ReasonSecretNotFound = "SecretNotFound"
)

// Reasons of Acyclic.
const (
	// ReasonLoopDetected: the node stands on a cycle; the message writes it
	// out from its smallest name. The node keeps its last good wiring.
	ReasonLoopDetected = "LoopDetected"
	// ReasonConditionalLoop: a cycle would close if standby parents took over.
	// A warning: the condition is true and Ready is not affected. A candidate
	// that stands below the node is listed but not eligible.
	ReasonConditionalLoop = "ConditionalLoop"
	// ReasonMaxDepthExceeded: more than MaxDepth nodes stand above this one.
	ReasonMaxDepthExceeded = "MaxDepthExceeded"
)

// Reasons of WorkloadAvailable.
const (
	// ReasonProgressing: the pods are being created or are not ready yet.
	ReasonProgressing = "Progressing"
	// ReasonRollingOut: pods of a former configuration are being replaced.
	ReasonRollingOut = "RollingOut"
	// ReasonSuspended: spec.suspend is true; no pod runs.
	ReasonSuspended = "Suspended"
	// ReasonObjectConflict: an object that this node needs exists already and
	// belongs to someone else.
	ReasonObjectConflict = "ObjectConflict"
	// ReasonWaiting: an earlier condition keeps the workload from existing.
	ReasonWaiting = "Waiting"
)

// Reasons of Streaming, as nodes report them.
const (
	// ReasonConnecting: a source is being connected to.
	ReasonConnecting = "Connecting"
	// ReasonBaselining: the first copy of the tables is under way.
	ReasonBaselining = "Baselining"
	// ReasonRebaselining: the tables are copied again; the old rows are served
	// meanwhile.
	ReasonRebaselining = "Rebaselining"
	// ReasonNoHealthyParent: no candidate answers; the node holds and serves
	// what it has.
	ReasonNoHealthyParent = "NoHealthyParent"
	// ReasonAuthenticationFailed: the source refused the credentials.
	ReasonAuthenticationFailed = "AuthenticationFailed"
	// ReasonPreflightFailed: the source is not set up for replication.
	ReasonPreflightFailed = "PreflightFailed"
	// ReasonTableNotFound: a table does not exist at the source.
	ReasonTableNotFound = "TableNotFound"
	// ReasonNoReplicaIdentity: a table's updates and deletes do not say which row
	// they concern.
	ReasonNoReplicaIdentity = "NoReplicaIdentity"
	// ReasonSlotBusy: the replication slot is in use by another session.
	ReasonSlotBusy = "SlotBusy"
	// ReasonDisconnected: the connection to the source is gone; the node holds,
	// serves what it has and tries again.
	ReasonDisconnected = "Disconnected"
	// ReasonScratchFull: a large transaction does not fit into the scratch
	// directory; reading goes on once there is room.
	ReasonScratchFull = "ScratchFull"
	// ReasonPaused: the source is paused; what arrives is buffered.
	ReasonPaused = "Paused"
	// ReasonStatusUnknown: the manager has no report of the node; that alone
	// changes nothing about the node.
	ReasonStatusUnknown = "StatusUnknown"
)

// Reasons of SinksHealthy, as nodes report the states of their sinks.
const (
	// ReasonSinkConnecting: a target has not been reached yet.
	ReasonSinkConnecting = "SinkConnecting"
	// ReasonSinkBaselining: the state is being copied to a target.
	ReasonSinkBaselining = "SinkBaselining"
	// ReasonSinkRetrying: a target cannot be reached, or not now.
	ReasonSinkRetrying = "SinkRetrying"
	// ReasonSinkHeld: a target rejects something; the message names it.
	ReasonSinkHeld = "SinkHeld"
	// ReasonSinkSuperseded: a target has a newer history than the node.
	ReasonSinkSuperseded = "SinkSuperseded"
)

// Reasons of StorageHealthy.
const (
	// ReasonVolumePending: the claim for the volume is not bound yet.
	ReasonVolumePending = "VolumePending"
	// ReasonResizing: the volume is growing.
	ReasonResizing = "Resizing"
	// ReasonExpansionRefused: the volume cannot grow to the size that is wanted.
	// A warning: the condition is true, and the node goes on with what it has.
	ReasonExpansionRefused = "ExpansionRefused"
	// ReasonDiskFull: the store waits for space on its volume.
	ReasonDiskFull = "DiskFull"
	// ReasonStoreFailed: the store cannot be written, or is damaged.
	ReasonStoreFailed = "StoreFailed"
)

// FinalizerSlots keeps a resource until the slots that it must not leave behind
// are dropped, or the time for it is over. Taking it out by hand is safe: the
// slots stay.
const FinalizerSlots = "tributary.dev/slots"

// ReasonLagging is the reason of CaughtUp while the lag is out of bounds.
const ReasonLagging = "Lagging"

// MaxDepth is how many nodes may stand above a node on its active path.
const MaxDepth = 8
