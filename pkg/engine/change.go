package engine

import (
	"errors"
	"time"
)

// Op is what a change does.
type Op uint8

// The operations. An insert and an update are both a Put: readers always get
// full rows, and applying one twice is applying it once.
const (
	OpPut Op = iota + 1
	OpDelete
	OpTruncate // of the rows of the change's origin, never of others'
)

func (o Op) String() string {
	switch o {
	case OpPut:
		return "put"
	case OpDelete:
		return "delete"
	case OpTruncate:
		return "truncate"
	}
	return "unknown"
}

// Change is one change to one row (or, for OpTruncate, to one table).
type Change struct {
	Op     Op
	Schema *Schema
	Key    []byte // see AppendKey; empty for OpTruncate
	// OldKey is set on a Put that moved a row to a new key: unchanged columns are
	// taken from the row at OldKey. A source emits such an update as a Delete of
	// OldKey and then this Put, in one transaction.
	OldKey []byte
	Row    Row // OpPut only
	// Partial says that Row has unchanged columns. Only a source that mints may
	// send one: the engine fills it in from the state.
	Partial bool
	// Stamp identifies the write. A source that mints sets only Version; the
	// engine fills in the rest.
	Stamp Stamp
}

// Transaction is a whole transaction of one log. Its changes share one
// position, its end, and one time.
type Transaction struct {
	Log      LogID    // zero from a source that mints: the engine names the log
	Prev     Position // the position before it in this log (and scope)
	Position Position
	Time     Time      // zero from a source that mints
	Major    uint64    // Version.Major of its changes
	Commit   time.Time // wall-clock commit time at the source, where known
	Schemas  []*Schema // first used in this transaction
	Changes  []Change
	// More returns the changes that follow Changes, a run at a time, and none at
	// the end: a transaction that is too large for memory. The run before may be
	// overwritten. Nil for a transaction whose changes are all in Changes. Only a
	// source that mints sends one.
	More func() ([]Change, error)
	// Memory, if not nil, is what the source wants to be given as Env.Memory after a
	// restart of the node that comes after this transaction. Only a source that
	// mints has one.
	Memory []byte
	// Remember is what the source wants to be given back one by one, as Env.Facts,
	// after a restart of the node that comes after this transaction. Unlike Memory,
	// what is not named stays as it is. Only a source that mints has any.
	Remember []Fact
	// Make, if not nil, makes the transaction within the commit that it is part of,
	// once: state is what the node holds then, with all that comes before in the
	// commit. It sets Changes and Remember, and may raise Time, to be above a row
	// that it replaces. ErrSkip leaves the transaction out as if it had not been
	// sent; any other error ends the commit. Only a source that mints sends one.
	Make func(t *Transaction, state Rows) error
	// Tables are partial baselines that become the state with this transaction,
	// ahead of its changes. They are spent, whatever becomes of it. Only a source
	// that mints sends them.
	Tables []BaselineWriter
}

// Fact is a small value that a source remembers under a key; nil forgets it.
type Fact struct {
	Key   string
	Value []byte
}

// ErrSkip is what Transaction.Make returns to leave a transaction out.
var ErrSkip = errors.New("the transaction is left out")

// Rows are what changes are made and completed from: the state, or a stage.
type Rows interface {
	// Get returns the record at key, tombstones included.
	Get(table TableName, key []byte) (Record, bool, error)
}

// Record is a row of the state, or a tombstone.
type Record struct {
	Schema  *Schema
	Key     []byte
	Row     Row // nil if Deleted
	Stamp   Stamp
	Deleted bool
}

// Scope names the part of a log that a cursor covers. The empty Scope is the
// whole log. What was read through a narrower scope proves nothing about a
// wider one.
type Scope string

// CursorKey names a cursor of the vector.
type CursorKey struct {
	Log   LogID
	Scope Scope
}

// Cursor is one entry of a cursor vector.
type Cursor struct {
	CursorKey
	Position Position
	Time     Time // of the last transaction applied; 0 where unknown
}

// Cursors is a cursor vector: the last position applied of each upstream log.
type Cursors map[CursorKey]Cursor
