package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// ErrReBaselineRequired ends a Stream that cannot go on from its cursor: the
// slot is gone, the history is another. The engine takes a new baseline.
var ErrReBaselineRequired = errors.New("a new baseline is required")

// SourceError is an error of a source that a person must know of. Reason is one
// of the documented reasons of the Streaming condition.
type SourceError struct {
	Reason string // such as ReasonTableNotFound
	Err    error  // says what, where, why and how to mend it
	// Permanent means that trying again cannot help until someone changes
	// something: it is retried seldom.
	Permanent bool
}

func (e *SourceError) Error() string { return e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// Reasons that sources report, in status and conditions.
const (
	ReasonConnecting           = "Connecting"
	ReasonBaselining           = "Baselining"
	ReasonRebaselining         = "Rebaselining"
	ReasonStreaming            = "Streaming"
	ReasonPaused               = "Paused"
	ReasonNoHealthyParent      = "NoHealthyParent"
	ReasonAuthenticationFailed = "AuthenticationFailed"
	ReasonPreflightFailed      = "PreflightFailed"
	ReasonTableNotFound        = "TableNotFound"
	ReasonNoReplicaIdentity    = "NoReplicaIdentity" // an update or delete does not say which row it concerns
	ReasonSlotBusy             = "SlotBusy"
	ReasonLoopDetected         = "LoopDetected"
	ReasonDisconnected         = "Disconnected"
	ReasonScratchFull          = "ScratchFull"
)

// Ordering is what a source promises about the order of what it delivers.
type Ordering string

// The ordering guarantees.
const (
	TotalOrder     Ordering = "Total"     // as committed at the source
	PerLogOrder    Ordering = "PerLog"    // total within each log, none across
	PerKeyOrder    Ordering = "PerKey"    // per key only
	UnorderedInput Ordering = "Unordered" // none: stamps decide
)

// SyncSource feeds an engine. Calls come from one goroutine in this order:
// Init, then Baseline if the cursor vector cannot be resumed, then Stream; Ack,
// Pause, Resume and LastAckedPosition may come at any time from others.
// Implementations pass sourcetest.Run.
type SyncSource interface {
	// Init connects, checks what it needs and discovers the tables. It may be
	// called again after Stream or Baseline has ended. What is wrong comes as a
	// SourceError.
	Init(ctx context.Context, env Env) (Info, error)
	// Baseline delivers a consistent copy of every table through sink.Baseline
	// and commits it with the cursor it is consistent at.
	Baseline(ctx context.Context, sink Sink) error
	// Stream delivers what follows the cursors, through sink, until ctx ends or
	// something breaks. It gives ErrReBaselineRequired when only a baseline helps.
	Stream(ctx context.Context, from Cursors, sink Sink) error
	// Ack says that everything up to c has been applied, or stored durably.
	Ack(c Cursor, durable bool)
	// LastAckedPosition returns the newest position acknowledged in log, or "".
	LastAckedPosition(log LogID) Position
	// SupportsResume reports whether Stream can start at a cursor kept from an
	// earlier life of the node.
	SupportsResume() bool
	OrderingGuarantee() Ordering
	ComparePositions(a, b Position) int
	// PositionToString and PositionFromString convert positions to and from the
	// form that people and status documents use; FromString refuses what is not one.
	PositionToString(p Position) string
	PositionFromString(s string) (Position, error)
	// Pause stops delivery; what arrives is buffered within the source's bound,
	// and then held back at the sender. Resume goes on without a snapshot.
	Pause()
	Resume()
}

// Env is what an engine gives a source at Init.
type Env struct {
	NodeID string
	Source string // its name in the node's configuration
	// History is what Info named at the last Init, also before a restart of the
	// node, and Cursor how far the source's minted log has got since. Both are
	// empty before the first baseline, and for a source that does not mint.
	History string
	Cursor  Position
	// Memory is what the source wanted to remember with the transactions up to
	// Cursor: see Transaction.Memory and BaselineSpec.Memory.
	Memory  []byte
	Scratch string     // folder for what is spilled; empty: the system's
	Schemas *SchemaSet // for a source that mints: gives out schema IDs of the log
	// Report tells the state of the source to status and metrics; it is cheap
	// and may be called often. err is nil when all is well.
	Report func(reason string, err error)
	Logger *slog.Logger
}

// Info is what a source says of itself at Init.
type Info struct {
	// Mints is true if the source's changes have no stamp yet: the engine mints
	// the log, and the source's transactions name none.
	Mints bool
	// History names the history behind a minted log, such as PostgreSQL's system
	// identifier and timeline. Another History is another epoch.
	History string
	// Continues says that History, though another than Env.History, goes on from
	// it, and has branched off after Env.Cursor: the log keeps its epoch.
	Continues bool
	Tables    []*Schema
}

// Sink is where a source delivers: an engine.
type Sink interface {
	// Baseline starts a baseline of tables of one log. Other logs are not held up
	// by it, and readers see nothing of it until Commit.
	Baseline(ctx context.Context, spec BaselineSpec) (BaselineWriter, error)
	// Apply commits transactions of a log that the source mints, in order. It
	// returns when they are committed, and waits while the engine is held up.
	// The transactions' memory may be used again afterwards.
	Apply(ctx context.Context, txs []Transaction) error
	// ApplyBlocks commits blocks of a carried log, verbatim. The memory of the
	// blocks passes to the engine. Parts of a transaction become visible with the
	// last. Blocks at or before the cursor are dropped; a hole gives ErrHole.
	ApplyBlocks(ctx context.Context, key CursorKey, blocks []*Block) error
	// Progress advances a cursor over a stretch with nothing in its scope. A source
	// that mints passes the zero CursorKey and no prev and time.
	Progress(ctx context.Context, key CursorKey, prev, through Position, t Time) error
	// Head tells how far the source's log has got, for lag.
	Head(log LogID, head Position, t Time)
	// Carry declares a carried log: its comparator and its path, nearest node
	// first. An epoch older than one already carried gives ErrStaleEpoch.
	Carry(log LogID, compare Comparator, path []string, tables []TableName) error
}

// BaselineSpec says what a baseline covers.
type BaselineSpec struct {
	Log     LogID // zero from a source that mints
	Scope   Scope
	Schemas []*Schema // of Log, all that its rows and changes may use
	// Others are schemas of other logs that rows are stamped with.
	Others map[LogID][]*Schema
	Tables []TableName
	Reason string // why, for status and events; empty for the first
	// At is the position the baseline is consistent at, and Time that of the last
	// transaction in it; a source that mints leaves Time zero.
	At   Position
	Time Time
	// Major is the Version.Major of rows without a stamp.
	Major uint64
	// Memory is as Transaction.Memory, of a source that mints; nil forgets what was.
	Memory []byte
	// Partial baselines take in or replace their tables only; the log goes on, and
	// so do its other tables. Of a source that mints, such a baseline is committed
	// by the transaction that names it in Tables.
	Partial bool
	// Delta baselines hold only what was written after the cursor: an absent row is
	// unchanged. Their tombstones are complete from the cursor on.
	Delta bool
	// CompleteFrom is the time from which the tombstones are complete; zero from a
	// source that mints, and for "from At on".
	CompleteFrom Time
	// Truncates are the newest truncates of the tables, one of each origin.
	Truncates map[TableName][]Stamp
}

// BaselineWriter takes the rows of a baseline. Rows may be called from several
// goroutines; the memory of rs may be used again afterwards. Exactly one of
// Commit and Abort ends it.
type BaselineWriter interface {
	// Rows adds rows and tombstones of one table. A source that mints sets no stamp.
	Rows(table TableName, rs []Record) error
	// Apply brings the staged rows of a partial baseline up to date by what
	// happened to its tables after spec.At, before it is committed. It goes by the
	// order of the calls; the transactions' memory may be used again afterwards.
	Apply(txs []Transaction) error
	// Commit makes the baseline the state as of spec.At, in one commit with the
	// cursor.
	Commit(ctx context.Context) error
	Abort()
}

// ErrHole: a block does not follow on from the cursor. The source asks again
// from the cursor; nothing has been applied.
var ErrHole = errors.New("the block does not follow on from the cursor")

// ErrStaleEpoch: the log's epoch is older than one already held of its origin.
var ErrStaleEpoch = errors.New("a newer epoch of this origin is already held")

// HoleError says where a hole is. errors.Is(err, ErrHole).
type HoleError struct {
	Key    CursorKey
	Cursor Position
	Prev   Position
}

func (e *HoleError) Error() string {
	return fmt.Sprintf("log %s: cursor is at %q and the next block follows %q", e.Key.Log, e.Cursor, e.Prev)
}

func (e *HoleError) Unwrap() error { return ErrHole }
