package nodeconfig

import "time"

// Statusz is the JSON document that a node answers /statusz with. Reasons are
// those of the Streaming condition; unknown ones are passed on as they are.
type Statusz struct {
	// Node is the node's id; Instance tells its replicas apart.
	Node     string `json:"node"`
	Instance string `json:"instance,omitempty"`
	Version  string `json:"version,omitempty"`
	// Ready: every source has been baselined and is served.
	Ready bool `json:"ready"`
	// Draining: the node is ending; readers are asked to move.
	Draining bool `json:"draining,omitempty"`
	// WiringEpoch is the epoch of the wiring in use.
	WiringEpoch uint64 `json:"wiringEpoch,omitempty"`

	Sources []SourceStatus  `json:"sources"`
	Logs    []LogStatus     `json:"logs"`
	Tables  []TableStatus   `json:"tables"`
	Readers []ReaderStatus  `json:"readers"`
	Refused []RefusedAdvert `json:"refused,omitempty"`
	Sinks   []SinkStatus    `json:"sinks,omitempty"`
	// Store is what there is to know of a durable store; nil for one in memory.
	Store *StoreStatus `json:"store,omitempty"`
	// Rebaselines is how often tables were copied again since the start.
	Rebaselines int64 `json:"rebaselines"`
}

// Kinds of sources.
const (
	KindPostgres = "postgres"
	KindFanout   = "fanout"
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

	// Parent is what a fan-out source reads from at present.
	Parent     *ParentStatus     `json:"parent,omitempty"`
	Candidates []CandidateStatus `json:"candidates,omitempty"`
	// Slot is what a PostgreSQL source is read by.
	Slot *SlotStatus `json:"slot,omitempty"`
	// Baseline is the tables that are being copied.
	Baseline []BaselineStatus `json:"baseline,omitempty"`
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
	// LagSeconds is 0 when everything known of has been applied, else the age of
	// the newest transaction applied.
	LagSeconds float64 `json:"lagSeconds"`
	// Path is the nodes the log passes, this one first.
	Path []string `json:"path"`
}

// TableStatus is one table served.
type TableStatus struct {
	// Name is schema.table.
	Name string `json:"name"`
	Rows int64  `json:"rows"`
	// Reason why the table is not served; empty when it is.
	Reason string `json:"reason,omitempty"`
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
