package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
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
	ReasonRejoining            = "Rejoining" // the node has come back, and reads what its peers hold of its own log
	ReasonBaselining           = "Baselining"
	ReasonRebaselining         = "Rebaselining"
	ReasonStreaming            = "Streaming"
	ReasonPaused               = "Paused"
	ReasonNoHealthyParent      = "NoHealthyParent"
	ReasonAuthenticationFailed = "AuthenticationFailed"
	ReasonPreflightFailed      = "PreflightFailed"
	ReasonTableNotFound        = "TableNotFound"
	ReasonPermissionDenied     = "PermissionDenied"
	ReasonNoReplicaIdentity    = "NoReplicaIdentity" // an update or delete does not say which row it concerns
	ReasonSlotBusy             = "SlotBusy"
	ReasonLoopDetected         = "LoopDetected"
	ReasonDisconnected         = "Disconnected"
	ReasonScratchFull          = "ScratchFull"
	ReasonTableChanged         = "TableChanged" // its configuration does not fit the rows that there are
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
	// Recalled is how far the log had got in a life of the node of which the store has nothing: see
	// Known. A source that has gone back before it has another History.
	Recalled Position
	// Memory is what the source wanted to remember with the transactions up to
	// Cursor: see Transaction.Memory and BaselineSpec.Memory.
	Memory []byte
	// Facts gives what the source wanted to remember one by one, ordered by key: see
	// Transaction.Remember. The values are valid during the call. A baseline leaves
	// facts as they are.
	Facts   iter.Seq2[string, []byte]
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
	// RolledBackTo, where History has gone back in that of Env, is the Version.Major
	// up to which the two are the same; 0 if it has not, or if that is not known.
	RolledBackTo uint64
	// Order names ComparePositions in Comparators, so that readers of a minted log
	// need not be told it; empty for an order that has no name.
	Order  string
	Tables []*Schema
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
	// Head tells how far the source's log has got, for lag; without a position it
	// says that this is no longer known.
	Head(log LogID, head Head)
	// Carry declares a carried log: its comparator and its path, nearest node
	// first. An epoch older than one already carried gives ErrStaleEpoch.
	Carry(log LogID, compare Comparator, path []string, tables []TableName) error
}

// Covering is what a Sink may be too: it knows the tables that a carried log's
// cursor covers, nil where it does not, and of those, how far it has the ones that a
// cursor at a position is ahead of.
type Covering interface {
	Covered(log LogID) []TableName
	Behind(log LogID, at Position) map[TableName]Reached
}

// Reached is how far a table has been taken in, and the time of the last transaction up to there.
type Reached struct {
	Position Position
	Time     Time
}

// Lasting is what a Sink may be too: it says whether what is committed outlasts the
// process.
type Lasting interface {
	Durable() bool
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
	// Standing baselines have no rows of their own: the rows of the log's origin that
	// the state holds stand, with their stamps. For a source that mints and has no
	// other copy of them, such as when it begins a new epoch.
	Standing bool
	// Delta baselines hold only what was written after the cursor: an absent row is
	// unchanged. Their tombstones are complete from the cursor on.
	Delta bool
	// Fresh are tables of a delta baseline that it holds whole: the cursor has not
	// covered them.
	Fresh []TableName
	// Instead are logs that the source has brought before and that there are no more: the baseline comes
	// in their place. Rows of their origins that it lacks are gone, in all tables that they were of.
	Instead []LogID
	// Over are such logs that a later baseline comes in the place of. What this one has stands over what they have;
	// what it lacks of them may be in that one.
	Over []LogID
	// Behind are tables of a carried log that the baseline holds up to a place before At, and
	// of which more is to come in the log: see Trail.
	Behind map[TableName]Reached
	// CompleteFrom is the time from which the tombstones are complete; zero from a
	// source that mints, and for "from At on".
	CompleteFrom Time
	// Truncates are the newest truncates of the tables, one of each origin; that of the
	// log's own origin above all, since the rows that it took away have no newer stamp to
	// tell it by.
	Truncates map[TableName][]Stamp
	// Marks say up to when the baseline has all of other logs, which a relay has taken
	// in: of those writes a row that is not in it is gone.
	Marks []Mark
	// Gap says that changes of tables of which every change is delivered are not in the
	// baseline, nor in what follows, and why; empty if there are none.
	Gap string
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
