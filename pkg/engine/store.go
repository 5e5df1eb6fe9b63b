package engine

import (
	"context"
	"errors"
)

// Errors of stores.
var (
	// ErrGap: the log no longer holds the position asked for; only a baseline helps.
	ErrGap = errors.New("the log no longer holds this position")
	// ErrUnknownLog: the store does not hold the log.
	ErrUnknownLog = errors.New("unknown log")
	// ErrClosed: the store has been closed.
	ErrClosed = errors.New("store is closed")
	// ErrCorruptStore: a store on disk does not read back what was written.
	ErrCorruptStore = errors.New("the store is damaged")
)

// Store keeps a node's logs, state and cursor vector, and commits changes to
// all three at once. Implementations pass storetest.Run.
type Store interface {
	// Durable reports whether what Commit has returned from survives a crash.
	Durable() bool
	// Begin starts the write transaction. There is one at a time: Begin waits for
	// the other to end, or for ctx.
	Begin(ctx context.Context) (Tx, error)
	// NewStage starts a staged table: rows of a baseline, kept apart from the
	// state until Tx.Adopt. It needs no write transaction.
	NewStage(table TableName) Stage
	// View returns a consistent, read-only view as of the last commit. It never
	// waits for a writer, and a writer never waits for it. Close it soon: it holds
	// memory.
	View() View
	// Changed returns a channel that is closed at the next commit.
	Changed() <-chan struct{}
	// Stalled says why commits wait, such as a full disk, or returns nil. A store
	// that is stalled loses nothing and goes on by itself when it can.
	Stalled() error
	Close() error
}

// LogInfo is what a store holds of a log. A reader whose cursor is at or after
// Oldest can be served from the log.
type LogInfo struct {
	ID      LogID
	Oldest  Position // position before the oldest entry held; equals Head when none is
	Head    Position // end of the newest transaction
	Time    Time     // of the newest transaction
	Changes int      // held
	Bytes   int      // held
	// CompleteFrom is the time from which the state holds every delete of the
	// log's origin, as a tombstone: a reader whose cursor is at or after it can be
	// caught up by what the state holds.
	CompleteFrom Time
}

// View is a consistent, read-only view of a store. It is safe for concurrent
// use. Bytes it returns are valid until Close and must not be altered; blocks
// stay valid after it.
type View interface {
	// Get returns the record at key, tombstones included.
	Get(table TableName, key []byte) (Record, bool, error)
	// Scan calls fn for each record of table with key >= from, in key order,
	// tombstones included, until fn returns false. The record passed to fn is
	// valid only during the call.
	Scan(table TableName, from []byte, fn func(*Record) bool) error
	// Tables returns the tables of the state, ordered by schema and name.
	Tables() []TableInfo
	// Truncated returns the newest truncate of the table by origin; zero if none.
	Truncated(table TableName, origin string) Stamp
	// Schema returns a schema of a log, or nil.
	Schema(log LogID, id uint32) *Schema
	// Schemas returns the schemas of a log, by ID.
	Schemas(log LogID) []*Schema
	// SchemasOf returns the schemas that rows of a table may have, by log and ID.
	SchemasOf(table TableName) map[LogID][]*Schema
	// Cursor returns one cursor of the vector; it is cheap however many there are.
	Cursor(key CursorKey) (Cursor, bool)
	// Cursors returns the cursor vector. It must not be altered.
	Cursors() Cursors
	// Logs returns the logs held, ordered by origin and epoch.
	Logs() []LogInfo
	// LogsOf returns those of one origin; it is cheap however many there are.
	LogsOf(origin string) []LogInfo
	Log(log LogID) (LogInfo, bool)
	// ReadLog returns blocks that follow position after, oldest first: at least
	// one if any, then as many as fit in maxBytes; none at the head. It gives
	// ErrGap if after is before the oldest entry held, ErrUnknownLog. All parts of
	// a transaction are in the view, or none; a read may end between parts, and
	// goes on with ReadPart.
	ReadLog(log LogID, after Position, maxBytes int) ([]*Block, error)
	// ReadPart is ReadLog from within the transaction that follows after: it
	// starts at the numbered part.
	ReadPart(log LogID, after Position, part uint32, maxBytes int) ([]*Block, error)
	// Places calls fn for each key that Tx.Place has given a place in a log after
	// one, in order of places, until fn returns false. A key whose record has gone
	// since, a tombstone, may still have its place.
	Places(log LogID, after uint64, fn func(place uint64, table TableName, key []byte) bool) error
	// Meta returns what SetMeta recorded under a key, or nil.
	Meta(key string) []byte
	// ScanMeta calls fn for each key with a prefix, in order, until it returns
	// false.
	ScanMeta(prefix string, fn func(key string, value []byte) bool)
	Close()
}

// TableInfo is what a store holds of a table.
type TableInfo struct {
	Table      TableName
	Schema     *Schema // newest
	Log        LogID   // of Schema
	Rows       int     // live
	Tombstones int
	Bytes      int // of live rows: keys and rows, without stamps
}

// Tx is a store's write transaction. Its reads see its own writes. Bytes passed
// in are copied. It may be of any size: a store on disk holds it in bounded
// memory.
type Tx interface {
	View
	// PutSchema records a schema of a log (idempotent).
	PutSchema(log LogID, s *Schema) error
	// Put writes a record, whatever is there: the engine has compared stamps.
	Put(r *Record) error
	// Merge is Put if the record's stamp is above the one at its key, tombstones
	// included, or if there is none.
	Merge(r *Record) (Outcome, error)
	// Remove takes a record out, leaving no tombstone.
	Remove(table TableName, key []byte) error
	// MayHold reports whether a record of a table can be one that an origin has written:
	// false only if the store has never had one. Those of a stage count once it is adopted.
	MayHold(table TableName, origin string) bool
	// SetTruncated records the newest truncate of table by s.Origin.
	SetTruncated(table TableName, s Stamp) error
	// Adopt makes a staged table the state's, replacing what is there. The stage
	// is spent.
	Adopt(s Stage) error
	// Append adds blocks to a log. The first block's Prev must be the log's head.
	// The parts of a transaction may come in several calls; Commit refuses one that
	// lacks parts. The block's memory passes to the store. Without blocks it only
	// tells the comparator, which a store that is opened again does not know.
	Append(log LogID, compare Comparator, blocks ...*Block) error
	// Place gives a key a place in a log instead of the one that it has; 0 takes it
	// away. It is how a log that holds each key once finds what changed after a
	// place. The places go with the log. fresh says that the key has none, so that
	// nothing need be read; where that is not so, the old place may stay beside the
	// new one.
	Place(log LogID, table TableName, key []byte, place uint64, fresh bool) error
	// ResetLog empties a log, or creates it, with its head at a position.
	// CompleteFrom becomes t.
	ResetLog(log LogID, compare Comparator, head Position, t Time) error
	// SetCompleteFrom lowers or raises CompleteFrom: a baseline came with older
	// tombstones. The store itself raises it past the tombstones that it lets go.
	SetCompleteFrom(log LogID, t Time) error
	// TrimLog lets go of the oldest transactions of a log until at most keep bytes
	// are held, but of none after notPast; "" is no such bound.
	TrimLog(log LogID, keep int, notPast Position) error
	// DropTable forgets a table: rows, tombstones, truncates.
	DropTable(table TableName) error
	// SetMeta records a small value beside the data, such as what a source has to
	// remember; nil removes it.
	SetMeta(key string, value []byte) error
	// DropLog forgets a log's entries and cursors. Its schemas stay: rows that were
	// stamped in it may still be there.
	DropLog(log LogID) error
	SetCursor(c Cursor) error
	// Commit makes everything visible at once, and durable if the store is.
	// After it, or Rollback, the transaction is spent.
	Commit() error
	Rollback()
}

// Outcome is what has become of a Merge.
type Outcome uint8

// The outcomes of a Merge. With the first three the record was written.
const (
	Inserted  Outcome = iota + 1 // there was none
	Replaced                     // an older write of the same origin
	Overwrote                    // an older write of another origin
	Repeated                     // not: the same write is there, or a newer one of its origin
	Lost                         // not: a newer write of another origin is there
)

// Applied reports whether the record was written.
func (o Outcome) Applied() bool { return o >= Inserted && o <= Overwrote }

// OutcomeOver returns what becomes of a record where one with another stamp is.
func OutcomeOver(r, have Stamp) Outcome {
	switch above := r.Compare(have) > 0; {
	case above && r.Origin == have.Origin:
		return Replaced
	case above:
		return Overwrote
	case r.Origin == have.Origin:
		return Repeated
	}
	return Lost
}

// Stage is a table being baselined. Put may be called from several goroutines.
type Stage interface {
	Table() TableName
	// Put adds records, in any order; of two with one key the later stays.
	Put(rs []Record) error
	// Get and Scan read the stage, as View's do.
	Get(key []byte) (Record, bool, error)
	Scan(from []byte, fn func(*Record) bool) error
	Rows() int
	Close()
}
