// Package storetest is the suite that every engine.Store passes.
//
// Run covers what the contract says case by case, then drives random
// operations against a naive model and compares everything that can be read.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Options are the limits a store is opened with. Zero values are the store's
// defaults.
type Options struct {
	JournalBytes int
	Tombstones   int // per table
}

// Open opens a new, empty store. The suite closes it.
type Open func(t testing.TB, o Options) engine.Store

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		fn   func(*testing.T, Open)
	}{
		{"CommitShowsEverythingAtOnce", testCommit},
		{"RollbackLeavesNothing", testRollback},
		{"OneTransactionAtATime", testOneAtATime},
		{"TransactionIsSpent", testSpent},
		{"ViewsAreIsolated", testIsolation},
		{"TransactionSeesItsOwnWrites", testOwnWrites},
		{"ScanMayWrite", testScanMayWrite},
		{"ScanOrder", testScanOrder},
		{"LargeRows", testLargeRows},
		{"BytesAreCopied", testCopied},
		{"Merge", testMerge},
		{"Remove", testRemove},
		{"MayHold", testMayHold},
		{"Tombstones", testTombstones},
		{"TombstoneLimit", testTombstoneLimit},
		{"Schemas", testSchemas},
		{"Truncates", testTruncates},
		{"Cursors", testCursors},
		{"Stage", testStage},
		{"StageConcurrently", testStageConcurrently},
		{"Adopt", testAdopt},
		{"AppendChecksPrev", testAppendChecks},
		{"CommitWantsWholeTransactions", testCommitWhole},
		{"ReadLogEverywhere", testReadLog},
		{"ReadLogParts", testReadParts},
		{"ResetAndDropLog", testResetDrop},
		{"AppendInSeveralCalls", testAppendParts},
		{"TrimLog", testTrimLog},
		{"BlocksOutliveViews", testBlocksStay},
		{"CompleteFrom", testCompleteFrom},
		{"DropTable", testDropTable},
		{"Meta", testMeta},
		{"Places", testPlaces},
		{"JournalLimit", testJournalLimit},
		{"JournalLimitIsFair", testJournalFair},
		{"Changed", testChanged},
		{"ReadersNeverSeeHalf", testConcurrent},
		{"Close", testClose},
		{"RandomOperations", testRandom},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.fn(t, open)
		})
	}
}

// harness is a store with short ways to use it; what must not fail ends the test.
type harness struct {
	testing.TB
	s engine.Store
}

func start(t testing.TB, open Open, o Options) *harness {
	h := &harness{t, open(t, o)}
	t.Cleanup(func() { _ = h.s.Close() })
	return h
}

func (h *harness) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *harness) begin() engine.Tx {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tx, err := h.s.Begin(ctx)
	h.must(err)
	return tx
}

// commit runs fn in a transaction.
func (h *harness) commit(fn func(tx engine.Tx)) {
	h.Helper()
	tx := h.begin()
	defer tx.Rollback()
	fn(tx)
	h.must(tx.Commit())
}

// view runs fn on a view as of now.
func (h *harness) view(fn func(v engine.View)) {
	h.Helper()
	v := h.s.View()
	defer v.Close()
	fn(v)
}

// rows returns a table as strings: "key=row" in order, "key!" for a tombstone.
func (h *harness) rows(v interface {
	Scan(engine.TableName, []byte, func(*engine.Record) bool) error
}, table engine.TableName, from []byte) (out []string) {
	h.Helper()
	h.must(v.Scan(table, from, func(r *engine.Record) bool {
		out = append(out, brief(r))
		return true
	}))
	return out
}

func brief(r *engine.Record) string {
	if r.Deleted {
		return string(r.Key) + "!"
	}
	return string(r.Key) + "=" + string(r.Row)
}

func (h *harness) equal(got, want any, what string, args ...any) {
	h.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.Fatalf("%s: got %v, want %v", fmt.Sprintf(what, args...), got, want)
	}
}

func (h *harness) fails(err, want error, what string) {
	h.Helper()
	if err == nil || want != nil && !errors.Is(err, want) {
		h.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}

// The tables, logs and schemas of the suite.
var (
	tableA = engine.TableName{Schema: "public", Name: "a"}
	tableB = engine.TableName{Schema: "public", Name: "b"}

	logX  = engine.LogID{Origin: "x", Epoch: 7}
	logX8 = engine.LogID{Origin: "x", Epoch: 8}
	logY  = engine.LogID{Origin: "y", Epoch: 3}

	schemaA = schema(1, tableA, "id")
	schemaB = schema(2, tableB, "id")
)

func schema(id uint32, table engine.TableName, columns ...string) *engine.Schema {
	s := &engine.Schema{ID: id, Table: table, RelationOID: 16384, ReplicaIdentity: engine.IdentityDefault}
	for i, c := range columns {
		s.Columns = append(s.Columns, engine.Column{Name: c, Number: int16(i + 1), TypeOID: 25, TypeName: "text", TypeMod: -1, Key: i == 0})
		if i == 1 {
			s.Columns[i].TypeOID, s.Columns[i].TypeName, s.Columns[i].BaseOID, s.Columns[i].BaseName = 70000, "mood", 25, "text"
		}
	}
	return s
}

// put is a live record of table a, written in logX.
func put(key, row string, at engine.Time) *engine.Record {
	return &engine.Record{Schema: schemaA, Key: []byte(key), Row: engine.Row(row), Stamp: stamp(at)}
}

func tomb(key string, at engine.Time) *engine.Record {
	return &engine.Record{Schema: schemaA, Key: []byte(key), Deleted: true, Stamp: stamp(at)}
}

func stamp(at engine.Time) engine.Stamp {
	return engine.Stamp{Time: at, Origin: logX.Origin, Epoch: logX.Epoch, Version: engine.Version{Major: uint64(at), Minor: 1}}
}

// position is the end of the n-th transaction of a log.
func position(n int) engine.Position {
	if n == 0 {
		return ""
	}
	return engine.LSN(n * 0x100).Position()
}

// transaction is the n-th of a log: it puts a row of size bytes at each key.
func transaction(log engine.LogID, n, size int, keys ...string) *engine.Transaction {
	t := &engine.Transaction{Log: log, Prev: position(n - 1), Position: position(n), Time: engine.Time(n), Major: uint64(n)}
	for i, k := range keys {
		row := make([]byte, size)
		for j := range row {
			row[j] = byte(n + i + j)
		}
		t.Changes = append(t.Changes, engine.Change{Op: engine.OpPut, Schema: schemaA, Key: []byte(k), Row: row, Stamp: engine.Stamp{
			Time: t.Time, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: t.Major, Minor: uint32(i + 1)},
		}})
	}
	return t
}

// blocks packs transactions that follow prev, as many to a block as fit.
func blocks(log engine.LogID, prev engine.Position, txs ...*engine.Transaction) []*engine.Block {
	w := engine.NewBlockBuilder(log, prev)
	for _, t := range txs {
		w.Add(t)
	}
	return w.Blocks()
}
