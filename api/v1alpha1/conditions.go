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
	// ConditionArchiveHealthy says whether every archive of a node is written and can be
	// read, or that of an export is written; only nodes with archives have it. An
	// archive that a node only reads does not affect Ready: without it readers that are
	// far behind take a snapshot.
	ConditionArchiveHealthy = "ArchiveHealthy"
	// ConditionComplete says whether an export that is not to go on has been written.
	ConditionComplete = "Complete"
	// ConditionMembersReady says whether every member of a mesh is ready.
	ConditionMembersReady = "MembersReady"
	// ConditionPeersConnected says whether every member of a mesh has a session with
	// each of its peers.
	ConditionPeersConnected = "PeersConnected"
	// ConditionConflictPolicyAgreed says whether the members of a mesh run with the
	// same conflict policies.
	ConditionConflictPolicyAgreed = "ConflictPolicyAgreed"
	// ConditionConverged says whether every member of a mesh has every log, within a
	// second. It does not affect Ready.
	ConditionConverged = "Converged"
	// ConditionLeavesAssigned says whether every leaf that a tree selects has a branch.
	ConditionLeavesAssigned = "LeavesAssigned"
	// ConditionNodesReady says whether every root and every node of a branch of a tree is
	// ready.
	ConditionNodesReady = "NodesReady"
	// ConditionLeavesAttached says whether a node of its branch has a session with every
	// leaf of a tree.
	ConditionLeavesAttached = "LeavesAttached"
	// ConditionLogsBounded says whether the leaves of a tree keep no more for its roots
	// than they may.
	ConditionLogsBounded = "LogsBounded"
	// ConditionSettled says whether every leaf is read by its own branch alone, and no
	// branch drains. It does not affect Ready.
	ConditionSettled = "Settled"
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
	// ReasonArchiveStreaming: every archive is written, or can be read.
	ReasonArchiveStreaming = "ArchiveStreaming"
	// ReasonComplete: the export has been written.
	ReasonComplete = "Complete"
	// ReasonMembersReady: every member is ready.
	ReasonMembersReady = "MembersReady"
	// ReasonConnected: every member has its sessions.
	ReasonConnected = "Connected"
	// ReasonAgreed: every member has the same conflict policies.
	ReasonAgreed = "Agreed"
	// ReasonConverged: every member has every log, within a second.
	ReasonConverged = "Converged"
	// ReasonAssigned: every leaf has a branch.
	ReasonAssigned = "Assigned"
	// ReasonNodesReady: every root and every node of a branch is ready.
	ReasonNodesReady = "NodesReady"
	// ReasonAttached: every leaf is read.
	ReasonAttached = "Attached"
	// ReasonBounded: no leaf has as much of its log as it may keep.
	ReasonBounded = "Bounded"
	// ReasonSettled: nothing moves.
	ReasonSettled = "Settled"
)

// Reasons of Accepted.
const (
	// ReasonInvalid: the spec contradicts itself; the message says where.
	ReasonInvalid = "Invalid"
	// ReasonNotPermitted: a parent in another namespace does not list this
	// namespace in its serve.allowedConsumers.
	ReasonNotPermitted = "NotPermitted"
	// ReasonTLSMismatch: a source and a node that it reads from do not agree on TLS,
	// or on how the reader says who it is. The wiring is put in place all the same.
	ReasonTLSMismatch = "TLSMismatch"
	// ReasonSlotConflict: an older resource holds the same replication slot on
	// the same server.
	ReasonSlotConflict = "SlotConflict"
	// ReasonArchiveConflict: an older resource writes the same archive.
	ReasonArchiveConflict = "ArchiveConflict"
	// ReasonArchiveTableMismatch: the archive that is read at a key prefix is one of
	// another table, as its writer says.
	ReasonArchiveTableMismatch = "ArchiveTableMismatch"
	// ReasonMeshConflict: an older mesh has the same node for a member. The node
	// stays in that one.
	ReasonMeshConflict = "MeshConflict"
	// ReasonMeshDivided: no edges join some members with the others. The wiring is
	// put in place all the same.
	ReasonMeshDivided = "MeshDivided"
)

// Reasons of ResolvedRefs. All of them mean waiting, and heal by themselves.
const (
	// ReasonParentNotFound: a parent node does not exist, or is being deleted.
	ReasonParentNotFound = "ParentNotFound"
	// ReasonSourceNotFound: a PostgresSource, FanoutSource or ArchiveSource does not
	// exist.
	ReasonSourceNotFound = "SourceNotFound"
	// ReasonSecretNotFound: a Secret, or a key in it, does not exist.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonMemberNotFound: a member of a mesh does not exist, or is being deleted,
	// or an edge names a node that is no member. The other members are wired.
	ReasonMemberNotFound = "MemberNotFound"
)

// Warnings of ResolvedRefs: the condition is true and Ready is not affected.
const (
	// ReasonKeyPrefixUnwritten: no resource writes an archive at the key prefix that is
	// read, while one writes to the same store; the message names both keys.
	ReasonKeyPrefixUnwritten = "KeyPrefixUnwritten"
	// ReasonComparatorMismatch: a source compares positions otherwise than where they
	// come from.
	ReasonComparatorMismatch = "ComparatorMismatch"
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
	// ReasonProgressing: the pods are being created or are not ready yet; of Reconciling of a
	// mesh, a tree or an export: nodes of it are not yet what they are to be.
	ReasonProgressing = "Progressing"
	// ReasonRollingOut: pods of a former configuration are being replaced.
	ReasonRollingOut = "RollingOut"
	// ReasonWaitingForTier: pods are replaced once those of a node that reads from this
	// one, or stands in for it, have been; the message says whose.
	ReasonWaitingForTier = "WaitingForTier"
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
	// ReasonPermissionDenied: the user of the source lacks a right; the message has the
	// statement that grants it.
	ReasonPermissionDenied = "PermissionDenied"
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

// Reasons of ArchiveHealthy, as nodes report the states of their archives.
const (
	// ReasonArchiveWaiting: there is no table to archive yet.
	ReasonArchiveWaiting = "ArchiveWaiting"
	// ReasonArchiveRetrying: the store cannot be reached, or not now.
	ReasonArchiveRetrying = "ArchiveRetrying"
	// ReasonArchiveFull: the store has no room; what is not archived is kept.
	ReasonArchiveFull = "ArchiveFull"
	// ReasonArchiveFenced: another writer has the archive.
	ReasonArchiveFenced = "ArchiveFenced"
	// ReasonArchiveFailed: the archive cannot be used.
	ReasonArchiveFailed = "ArchiveFailed"
)

// Reasons of Complete.
const (
	// ReasonExporting: the export is being written.
	ReasonExporting = "Exporting"
	// ReasonExportFailed: the Job has failed for good; the message is its last word.
	ReasonExportFailed = "ExportFailed"
	// ReasonScheduled: the next run comes at the time that the schedule says.
	ReasonScheduled = "Scheduled"
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

// Reasons of the conditions of a mesh.
const (
	// ReasonMembersNotReady: a member is not ready; the message says which, and why.
	ReasonMembersNotReady = "MembersNotReady"
	// ReasonPeersMissing: a member has no session with a peer.
	ReasonPeersMissing = "PeersMissing"
	// ReasonPoliciesDiffer: members run with different conflict policies, as while
	// they are rolled out.
	ReasonPoliciesDiffer = "PoliciesDiffer"
	// ReasonConverging: a member is behind; the message says with what, and how far.
	ReasonConverging = "Converging"
)

// Reasons of the conditions of a tree.
const (
	// ReasonTreeConflict: an older tree has the same leaf. The leaf stays in that one.
	ReasonTreeConflict = "TreeConflict"
	// ReasonLeafUnfit: a node that is selected cannot be a leaf; the message says why.
	ReasonLeafUnfit = "LeafUnfit"
	// ReasonNoLeaves: the tree selects no node.
	ReasonNoLeaves = "NoLeaves"
	// ReasonNodesNotReady: a root or a node of a branch is not ready.
	ReasonNodesNotReady = "NodesNotReady"
	// ReasonLeavesDetached: a leaf is read by no node of its branch. It keeps what is
	// written meanwhile.
	ReasonLeavesDetached = "LeavesDetached"
	// ReasonLogFull: a leaf keeps as much as it may for a root that does not take it; the
	// message says for which.
	ReasonLogFull = "LogFull"
	// ReasonMoving: leaves or branches are read anew by others.
	ReasonMoving = "Moving"
	// ReasonDraining: a branch goes once those above have all that it has.
	ReasonDraining = "Draining"
)

// ReasonLagging is the reason of CaughtUp while the lag is out of bounds.
const ReasonLagging = "Lagging"

// MaxDepth is how many nodes may stand above a node on its active path.
const MaxDepth = 8
