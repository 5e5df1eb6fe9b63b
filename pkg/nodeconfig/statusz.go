package nodeconfig

import "time"

// Statusz is the JSON document that a node answers /statusz with. Reasons are
// those of the Streaming condition; unknown ones are passed on as they are.
type Statusz struct {
	// Node is the node's id; Instance tells its replicas apart.
	Node     string `json:"node"`
	Instance string `json:"instance,omitempty"`
	Version  string `json:"version,omitempty"`
	// Ready: every source has been baselined and is served, and the wiring has been read.
	Ready bool `json:"ready"`
	// Draining: the node is ending; readers are asked to move.
	Draining bool `json:"draining,omitempty"`
	// WiringEpoch is the epoch of the wiring in use.
	WiringEpoch uint64 `json:"wiringEpoch,omitempty"`
	// ConflictDigest is equal on nodes whose conflict policies are; empty where the
	// last write wins in all tables.
	ConflictDigest string `json:"conflictDigest,omitempty"`

	Sources []SourceStatus  `json:"sources"`
	Logs    []LogStatus     `json:"logs"`
	Tables  []TableStatus   `json:"tables"`
	Readers []ReaderStatus  `json:"readers"`
	Refused []RefusedAdvert `json:"refused,omitempty"`
	Sinks   []SinkStatus    `json:"sinks,omitempty"`
	// Archives that the node writes, or serves readers from.
	Archives []ArchiveStatus `json:"archives,omitempty"`
	// Store is what there is to know of a durable store; nil for one in memory.
	Store *StoreStatus `json:"store,omitempty"`
	// Tree is what the node is in a relay tree; nil where it is part of none.
	Tree *TreeStatus `json:"tree,omitempty"`
	// Rebaselines is how often tables were copied again since the start.
	Rebaselines int64 `json:"rebaselines"`
	// Passed is how much of what a relay of a tree has read those above it have; nil for
	// a node that is none.
	Passed *PassedStatus `json:"passed,omitempty"`
}

// Kinds of sources.
const (
	KindPostgres = "postgres"
	KindFanout   = "fanout"
	KindMesh     = "mesh"
	KindIngest   = "ingest"
	KindArchive  = "archive"
	KindChildren = "children"
)

// States of a source.
const (
	// StateStarting: nothing has been received yet.
	StateStarting = "starting"
	// StateBaselining: tables are being copied.
	StateBaselining = "baselining"
	// StateStreaming: all is well.
	StateStreaming = "streaming"
	// StatePaused: delivery is paused.
	StatePaused = "paused"
	// StateFailed: something is wrong; Reason and Message say what.
	StateFailed = "failed"
)

// SourceStatus is the state of one source.
type SourceStatus struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	State string `json:"state"`
	// Reason is a CamelCase word, such as TableNotFound; Message is a stable
	// sentence for a person, without a number that keeps changing.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since when it is in this state.
	Since time.Time `json:"since,omitzero"`
	// HistoryLost is how often, since the start, peers held more of the source's own
	// log than the node, as after a restore from a backup: it has taken a new epoch each
	// time.
	HistoryLost int `json:"historyLost,omitempty"`
	// LastCause is why the source was last baselined again, or took a new epoch.
	LastCause string `json:"lastCause,omitempty"`

	// Parent is what a fan-out source reads from at present.
	Parent     *ParentStatus     `json:"parent,omitempty"`
	Candidates []CandidateStatus `json:"candidates,omitempty"`
	// Peers are the nodes of a mesh or children source, as the wiring names them.
	Peers []PeerStatus `json:"peers,omitempty"`
	// Slot is what a PostgreSQL source is read by.
	Slot *SlotStatus `json:"slot,omitempty"`
	// Baseline is the tables that are being copied.
	Baseline []BaselineStatus `json:"baseline,omitempty"`
	// Ingest is what waits at an ingest source.
	Ingest *IngestStatus `json:"ingest,omitempty"`
}

// PassedStatus is how much of what a relay has read those above it have durably,
// whichever way it went.
type PassedStatus struct {
	// Nothing was ever read: there is nothing to have.
	Nothing bool `json:"nothing,omitempty"`
	// To are the ids of the nodes above that have all that was ever read.
	To []string `json:"to"`
	// Children, of which it has read something.
	Children []PassedChild `json:"children"`
}

// PassedChild is how much of what was read of a child those above have.
type PassedChild struct {
	ID string `json:"id"`
	// To are the ids of the nodes above that have all of it.
	To []string `json:"to"`
}

// PeerStatus is what is known of a peer of a mesh.
type PeerStatus struct {
	ID        string    `json:"id"`
	Address   string    `json:"address"`
	Connected bool      `json:"connected"`
	Dialled   bool      `json:"dialled,omitempty"` // by this node, rather than by the peer
	Since     time.Time `json:"since,omitzero"`
	// Logs that are read over it.
	Logs int `json:"logs"`
	// Group of a child, if it is in one.
	Group string `json:"group,omitempty"`
	// Message says why there is no session, or what is not read over it.
	Message string `json:"message,omitempty"`
}

// Roles in a relay tree.
const (
	RoleLeaf  = "Leaf"
	RoleRelay = "Relay"
	RoleRoot  = "Root"
)

// TreeStatus is what a node is in a relay tree.
type TreeStatus struct {
	Role string `json:"role"`
	// Holder is this life of the node, as acks name it.
	Holder string `json:"holder"`
	// Log that a relay or leaf serves to its parents.
	Log string `json:"log,omitempty"`

	// Of a relay or root: its children, those with which a session stands, and the logs
	// and cursors that it has of them. There are as many as children, whatever is below
	// them.
	Children  int `json:"children,omitempty"`
	Connected int `json:"connected,omitempty"`
	Logs      int `json:"logs,omitempty"`
	Cursors   int `json:"cursors,omitempty"`

	// Of a relay, since it was started: its flushes, and the changes in them.
	Flushes uint64 `json:"flushes,omitempty"`
	Changes uint64 `json:"changes,omitempty"`
	// Gap is the newest place in its log before which changes are missing, of tables of
	// which every change is delivered.
	Gap *GapStatus `json:"gap,omitempty"`

	// Of a leaf: what all roots have, how far each is, the slowest first, and how much
	// of its log it keeps.
	Stable      string       `json:"stable,omitempty"`
	Roots       []RootStatus `json:"roots,omitempty"`
	LogBytes    int64        `json:"logBytes,omitempty"`
	MaxLogBytes int64        `json:"maxLogBytes,omitempty"`
	// Full: what is written waits. PinnedBy is the root that has least.
	Full     bool   `json:"full,omitempty"`
	PinnedBy string `json:"pinnedBy,omitempty"`
	// Parents that the node dials.
	Parents []PeerStatus `json:"parents,omitempty"`
}

// GapStatus is a place in a log before which changes are missing.
type GapStatus struct {
	Position string    `json:"position"`
	Since    time.Time `json:"since"`
	Message  string    `json:"message"`
}

// RootStatus is how far a root has the log of a leaf.
type RootStatus struct {
	Node string `json:"node"`
	// Position is empty while it is not known.
	Position string `json:"position,omitempty"`
}

// IngestStatus is what waits at an ingest source, and what it remembers.
type IngestStatus struct {
	PendingBatches  int   `json:"pendingBatches"`
	PendingBytes    int64 `json:"pendingBytes"`
	IdempotencyKeys int   `json:"idempotencyKeys"`
}

// BaselineStatus is how far the baseline of a table has got.
type BaselineStatus struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
	// OfRows and OfBytes are the server's estimates of what there is; bytes are
	// those on disk.
	OfRows  int64 `json:"ofRows,omitempty"`
	OfBytes int64 `json:"ofBytes,omitempty"`
}

// ParentStatus is a parent in use.
type ParentStatus struct {
	ID      string    `json:"id"`
	Address string    `json:"address"`
	Since   time.Time `json:"since,omitzero"`
	// Why the node reads from it: initial, failover, failback or lag.
	Why string `json:"why,omitempty"`
}

// CandidateStatus is what a node knows of a candidate.
type CandidateStatus struct {
	ID       string `json:"id"`
	Address  string `json:"address"`
	Eligible bool   `json:"eligible"`
	Healthy  bool   `json:"healthy"`
	Message  string `json:"message,omitempty"`
}

// SlotStatus is what a node knows of its slot.
type SlotStatus struct {
	Name      string `json:"name"`
	Temporary bool   `json:"temporary"`
	// Checked is when the server was last asked for it; what follows is as of then.
	Checked time.Time `json:"checked,omitzero"`
	// Exists: it is there.
	Exists bool `json:"exists,omitempty"`
	// RetainedBytes of WAL that the server keeps for it, and PendingBytes of those
	// that are not confirmed.
	RetainedBytes int64 `json:"retainedBytes,omitempty"`
	PendingBytes  int64 `json:"pendingBytes,omitempty"`
	// WALStatus is reserved, extended, unreserved or lost.
	WALStatus string `json:"walStatus,omitempty"`
	// LimitBytes is max_slot_wal_keep_size, and SafeBytes how much may yet be
	// written before the slot is in danger; both are left out without a limit.
	LimitBytes *int64 `json:"limitBytes,omitempty"`
	SafeBytes  *int64 `json:"safeBytes,omitempty"`
	// Holder is who else uses it.
	Holder string `json:"holder,omitempty"`
	// Invalid is why it can be used no more.
	Invalid string `json:"invalid,omitempty"`
	// InactiveSince is when it was last in use, where the server says.
	InactiveSince time.Time `json:"inactiveSince,omitzero"`
	// Failover: standbys take it over.
	Failover bool `json:"failover,omitempty"`
	// ScratchBytes is what is held of large transactions on the node's disk.
	ScratchBytes int64 `json:"scratchBytes,omitempty"`
}

// States of a sink.
const (
	// SinkConnecting: the target has not been reached yet.
	SinkConnecting = "Connecting"
	// SinkWaiting: the node serves nothing that the sink delivers.
	SinkWaiting = "Waiting"
	// SinkBaselining: the state is being copied.
	SinkBaselining = "Baselining"
	// SinkStreaming: all is well.
	SinkStreaming = "Streaming"
	// SinkHeld: the target rejects something; Message names it.
	SinkHeld = "Held"
	// SinkRetrying: the target cannot be reached, or not now.
	SinkRetrying = "Retrying"
	// SinkSuperseded: the target has a newer history than the node.
	SinkSuperseded = "Superseded"
)

// Kinds of sinks.
const (
	SinkPostgres = "postgres"
	SinkHTTP     = "http"
)

// ArchiveStatus is the state of an archive that the node writes, or serves readers
// from.
type ArchiveStatus struct {
	Name        string `json:"name"`
	Destination string `json:"destination,omitempty"`
	// State is one of the Archive constants; Message is a stable sentence for a person,
	// empty when all is well.
	State   string    `json:"state"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Writes is true if the node writes it.
	Writes bool                 `json:"writes"`
	Tables []ArchiveTableStatus `json:"tables,omitempty"`
	// LastError is what last went wrong, though it may be over.
	LastError string `json:"lastError,omitempty"`
}

// States of an archive.
const (
	ArchiveWaiting   = "Waiting"   // for tables
	ArchiveStreaming = "Streaming" // it is written, or read
	ArchiveRetrying  = "Retrying"  // the destination cannot be reached, or not now
	ArchiveFull      = "Full"      // the destination has no room
	ArchiveFenced    = "Fenced"    // another writer has it
	ArchiveFailed    = "Failed"    // it cannot be used: a person must act
)

// ArchiveTableStatus is the archive of one table.
type ArchiveTableStatus struct {
	Table     string `json:"table"`
	KeyPrefix string `json:"keyPrefix"`
	// Doing is Basing or Appending while it is written.
	Doing      string    `json:"doing,omitempty"`
	Generation uint64    `json:"generation,omitempty"`
	Artifacts  int       `json:"artifacts,omitempty"`
	Bytes      int64     `json:"bytes,omitempty"` // stored
	Written    time.Time `json:"written,omitzero"`
	// Through is what is archived, by origin.
	Through []ArchivePosition `json:"through,omitempty"`
	// LagKnown is false while nothing is archived.
	LagKnown   bool    `json:"lagKnown"`
	LagSeconds float64 `json:"lagSeconds"`
	Bases      int64   `json:"bases,omitempty"` // written since the start
	LastCause  string  `json:"lastCause,omitempty"`
	LastError  string  `json:"lastError,omitempty"`
	// Replays are readers caught up from it since the start; Declined says why the last
	// one that could not be was not.
	Replays    int64     `json:"replays,omitempty"`
	Declined   string    `json:"declined,omitempty"`
	DeclinedAt time.Time `json:"declinedAt,omitzero"`
}

// ArchivePosition is how far a log is archived.
type ArchivePosition struct {
	Origin   string `json:"origin"`
	Epoch    string `json:"epoch"`
	Position string `json:"position"`
}

// SinkStatus is the state of one sink.
type SinkStatus struct {
	Name string `json:"name"`
	Kind string `json:"kind,omitempty"`
	// State is one of the Sink constants; Message is a stable sentence for a
	// person, empty when all is well.
	State   string    `json:"state"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// DeadLetters that were put aside and wait for a person.
	DeadLetters int64 `json:"deadLetters,omitempty"`
	// Logs it delivers, and how far.
	Logs []SinkLogStatus `json:"logs,omitempty"`
	// LastError is what last went wrong, though it may be over.
	LastError string `json:"lastError,omitempty"`
	// Baselines delivered since the start, those of logs that the target already
	// had, and why the last one was.
	Baselines   int64  `json:"baselines,omitempty"`
	Rebaselines int64  `json:"rebaselines,omitempty"`
	LastCause   string `json:"lastCause,omitempty"`
}

// SinkLogStatus is how far a sink is with one log.
type SinkLogStatus struct {
	Origin string `json:"origin"`
	Epoch  string `json:"epoch"`
	// Position that the target has, and Head that the node has.
	Position string `json:"position"`
	Head     string `json:"head"`
	// LagKnown is false while the target has nothing of the log.
	LagKnown   bool    `json:"lagKnown"`
	LagSeconds float64 `json:"lagSeconds"`
	// Held is what the target rejects; nil when all is well.
	Held *HeldEntry `json:"held,omitempty"`
}

// HeldEntry is an entry that a sink cannot pass. Only Error and Since are set
// where it is not one entry that is at fault.
type HeldEntry struct {
	Table    string    `json:"table,omitempty"`
	Op       string    `json:"op,omitempty"`
	Key      string    `json:"key,omitempty"`
	Position string    `json:"position,omitempty"`
	Error    string    `json:"error"`
	Since    time.Time `json:"since,omitzero"`
}

// Reasons of a store that cannot be written.
const (
	StoreDiskFull = "DiskFull"
	StoreFailed   = "StoreFailed"
)

// StoreStatus is the state of a durable store.
type StoreStatus struct {
	// Bytes on disk.
	Bytes int64 `json:"bytes"`
	// Reason why commits wait or fail, and a stable sentence for a person; empty
	// when all is well.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// LogStatus is how far a node is with one log.
type LogStatus struct {
	Origin string `json:"origin"`
	Epoch  string `json:"epoch"`
	// Source that the log comes in by; empty for a log that is only kept.
	Source string `json:"source,omitempty"`
	// Head is the newest position committed here, Oldest the oldest that a
	// reader can resume from.
	Head   string `json:"head"`
	Oldest string `json:"oldest"`
	// AppliedTime is when the transaction at Head was committed at its origin.
	AppliedTime time.Time `json:"appliedTime,omitzero"`
	// LagKnown is false while nothing is known of the origin's head: then
	// LagSeconds says nothing. Unknown never reads as caught up.
	LagKnown bool `json:"lagKnown"`
	// LagSeconds is 0 when everything known of has been applied, else how long ago
	// the first transaction was committed that has not.
	LagSeconds float64 `json:"lagSeconds"`
	// LagChanges are the changes that have not been applied; nil where that is not
	// known: of a log that is read in part, and until the node has once caught up.
	LagChanges *uint64 `json:"lagChanges,omitempty"`
	// Path is the nodes the log passes, this one first.
	Path []string `json:"path"`
	// RepeatedChanges had come before, since the node has started; they were dropped.
	RepeatedChanges uint64 `json:"repeatedChanges,omitempty"`
	// State is one of the LogState constants.
	State string `json:"state"`
	// SourceHead is how far the log is known to have got where it comes from,
	// Received how far it has come here, Durable how far it is stored durably; empty
	// where it is not known, or not so.
	SourceHead string `json:"sourceHead,omitempty"`
	Received   string `json:"received,omitempty"`
	Durable    string `json:"durable,omitempty"`
	// Peer is the node that the log is read from; empty for a log minted here, and
	// while nobody offers it.
	Peer string `json:"peer,omitempty"`
	// Delivery counts what has happened to the log on its way here.
	Delivery *DeliveryStatus `json:"delivery,omitempty"`
}

// The states of a log at a node.
const (
	LogUnknown = "Unknown" // nothing is known of its origin's head
	LogCurrent = "Current" // all that is known of has been applied
	LogBehind  = "Behind"  // and it is moving
	LogStalled = "Stalled" // behind, and nothing has been applied for a while
	LogHeld    = "Held"    // an entry cannot be applied: Message of Delivery says why
)

// DeliveryStatus counts what has happened to a log on its way here, since the
// node started.
type DeliveryStatus struct {
	Bytes          int64  `json:"bytes"`         // received, all
	BufferedBytes  int64  `json:"bufferedBytes"` // received and not applied
	Duplicates     int64  `json:"duplicates"`    // batches that had come already
	DuplicateBytes int64  `json:"duplicateBytes"`
	Holes          int64  `json:"holes"`        // asked for again
	Resets         int64  `json:"resets"`       // new epochs
	Snapshots      int64  `json:"snapshots"`    // taken in whole
	StateDeltas    int64  `json:"stateDeltas"`  // caught up from the peer's state
	Replays        int64  `json:"replays"`      // caught up from the peer's archive
	Floors         int64  `json:"floors"`       // taken over at the floor
	CreditStalls   int64  `json:"creditStalls"` // times the peer had no more credit
	Moves          int64  `json:"moves"`        // from one peer to another
	Message        string `json:"message,omitempty"`
}

// ConflictStatus counts what has become of writes of several origins to the rows
// of a table, since the node has started.
type ConflictStatus struct {
	Policy    string `json:"policy"`
	Lost      uint64 `json:"lost"`      // found a newer write of another origin
	Overwrote uint64 `json:"overwrote"` // replaced an older write of another origin
	// Refused are writes to rows that belong to another node.
	Refused []RefusedWrites `json:"refused,omitempty"`
}

// RefusedWrites are how many writes of an origin were refused.
type RefusedWrites struct {
	Origin string `json:"origin"`
	Writes uint64 `json:"writes"`
}

// TableStatus is one table served.
type TableStatus struct {
	// Name is schema.table.
	Name string `json:"name"`
	Rows int64  `json:"rows"`
	// Reason why the table is not served; empty when it is.
	Reason string `json:"reason,omitempty"`
	// Conflicts of the table; nil where there were none, and it has no policy.
	Conflicts *ConflictStatus `json:"conflicts,omitempty"`
}

// ReaderStatus is one reader of the node.
type ReaderStatus struct {
	ID      string    `json:"id"`
	Address string    `json:"address,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Origin  string    `json:"origin,omitempty"`
	Epoch   string    `json:"epoch,omitempty"`
	// Mode that its cursor was caught up by: LIVE, DELTA or SNAPSHOT.
	Mode string `json:"mode,omitempty"`
	// Position acknowledged.
	Position string `json:"position,omitempty"`
	Durable  bool   `json:"durable,omitempty"`
}

// RefusedAdvert is a log that the node was offered and does not take.
type RefusedAdvert struct {
	// Log is origin@epoch.
	Log string `json:"log"`
	// From is the id of the node that offered it.
	From string   `json:"from,omitempty"`
	Path []string `json:"path"`
	// Reason: LoopDetected or MaxDepthExceeded.
	Reason string `json:"reason"`
}
