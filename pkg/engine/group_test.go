package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// carryMany returns an engine that carries many empty logs of one table, each
// with its own rows, and the sink to feed them by.
func carryMany(t fatal, st engine.Store, n int) (*engine.Engine, *byHand, engine.Sink, []engine.CursorKey) {
	return carryManyBy(t, nodeOver("n", st), n)
}

func carryManyBy(t fatal, e *engine.Engine, n int) (*engine.Engine, *byHand, engine.Sink, []engine.CursorKey) {
	src := newByHand()
	var keys []engine.CursorKey
	for i := range n {
		keys = append(keys, engine.CursorKey{Log: engine.LogID{Origin: fmt.Sprintf("o%d#db", i), Epoch: 1}})
	}
	src.baseline = func(ctx context.Context, sink engine.Sink) error {
		for _, k := range keys {
			if err := sink.Carry(k.Log, engine.CompareLSN, []string{"up"}, tables); err != nil {
				return err
			}
			s := shapeOf(tableA)
			s.ID = 1
			w, err := sink.Baseline(ctx, engine.BaselineSpec{Log: k.Log, Schemas: []*engine.Schema{s}, Tables: tables, At: "0/1", Time: 1})
			if err != nil {
				return err
			}
			if err := w.Commit(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	e.AddSource("up", src, engine.Keep{})
	start(t, e)
	return e, src, <-src.sinks, keys
}

// oneRow is the block of one transaction that writes a row.
func oneRow(log engine.LogID, prev, at engine.LSN, id string) *engine.Block {
	s := shapeOf(tableA)
	s.ID = 1
	w := engine.NewBlockBuilder(log, prev.Position())
	stamp := engine.Stamp{Time: engine.Time(at), Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: uint64(at), Minor: 1}}
	w.Add(&engine.Transaction{Log: log, Position: at.Position(), Time: engine.Time(at), Major: uint64(at), Changes: []engine.Change{
		{Op: engine.OpPut, Schema: s, Key: keyOf(id), Row: rowOf(s, id, "v", "d"), Stamp: stamp},
	}})
	return w.Blocks()[0]
}

// heldCommits is a store whose first counted commit waits until it is let go.
type heldCommits struct {
	*watched
	commits atomic.Int64
	counted atomic.Bool
	held    chan struct{} // closed when the first has come
	let     chan struct{}
	fail    func(n int64) error // nil, or what becomes of the n-th commit
}

func holdCommits(st engine.Store) *heldCommits {
	h := &heldCommits{watched: &watched{Store: st}, held: make(chan struct{}), let: make(chan struct{})}
	h.before = func() error {
		if !h.counted.Load() {
			return nil
		}
		n := h.commits.Add(1)
		if n == 1 {
			close(h.held)
			<-h.let
		}
		if h.fail != nil {
			return h.fail(n)
		}
		return nil
	}
	return h
}

// together applies one block of each log: the first is being committed when all
// the others come. It returns what they were answered.
func together(t *testing.T, h *heldCommits, sink engine.Sink, keys []engine.CursorKey, blocks [][]*engine.Block, ctx func(i int) context.Context) []error {
	t.Helper()
	errs := make([]error, len(keys))
	var wg sync.WaitGroup
	h.counted.Store(true)
	for i := range keys {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = sink.ApplyBlocks(ctx(i), keys[i], blocks[i])
		}()
		if i == 0 {
			<-h.held
		}
	}
	time.Sleep(100 * time.Millisecond) // until they wait; a later one would be in a later group
	close(h.let)
	wg.Wait()
	return errs
}

// Those that come while a commit is under way are committed together, and each
// is told of its own.
func TestWaitingWritesShareACommit(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]engine.Store{"memory": store.NewMemory(store.MemoryOptions{}), "durable": openDurable(t, vfs.NewMem(), false)} {
		t.Run(name, func(t *testing.T) {
			const n = 40
			h := holdCommits(st)
			e, src, sink, keys := carryMany(t, h, n)
			var blocks [][]*engine.Block
			for i, k := range keys {
				blocks = append(blocks, []*engine.Block{oneRow(k.Log, 1, 5, fmt.Sprint("k", i))})
			}
			for i, err := range together(t, h, sink, keys, blocks, func(int) context.Context { return context.Background() }) {
				if err != nil {
					t.Errorf("log %d: %v", i, err)
				}
			}
			if got := h.commits.Load(); got > n/4 { // 2, but for those that are late on a busy machine
				t.Errorf("%d writes took %d commits", n, got)
			}
			v := e.View()
			defer v.Close()
			for _, k := range keys {
				if c, _ := v.Cursor(k); c.Position != engine.LSN(5).Position() {
					t.Errorf("the cursor of %s is at %s", k.Log, c.Position)
				}
				if l, _ := v.Log(k.Log); l.Changes != 1 {
					t.Errorf("log %s: %+v", k.Log, l)
				}
				if at := src.LastAckedPosition(k.Log); at != engine.LSN(5).Position() {
					t.Errorf("log %s is acknowledged at %q", k.Log, at)
				}
			}
			if rows := v.Tables()[0].Rows; rows != n {
				t.Errorf("%d rows, not %d", rows, n)
			}
		})
	}
}

// Invariant 5: a write that fails, before or after it has written something, or
// that is given up, leaves those beside it alone, and gets its own error.
func TestAFailingWriteLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]engine.Store{"memory": store.NewMemory(store.MemoryOptions{}), "durable": openDurable(t, vfs.NewMem(), false)} {
		t.Run(name, func(t *testing.T) {
			const n, broken, hole, gone = 20, 5, 9, 13
			h := holdCommits(st)
			e, _, sink, keys := carryMany(t, h, n)
			var blocks [][]*engine.Block
			for i, k := range keys {
				b := oneRow(k.Log, 1, 5, fmt.Sprint("k", i))
				switch next := oneRow(k.Log, 5, 6, fmt.Sprint("m", i)); i {
				case broken: // after a whole transaction
					next.Payload[len(next.Payload)-1]++
					next.Payload = next.Payload[:len(next.Payload)-3]
					blocks = append(blocks, []*engine.Block{b, next})
				case hole:
					blocks = append(blocks, []*engine.Block{next})
				default:
					blocks = append(blocks, []*engine.Block{b, next})
				}
			}
			given, giveUp := context.WithCancelCause(context.Background())
			time.AfterFunc(20*time.Millisecond, func() { giveUp(errConnection) })
			errs := together(t, h, sink, keys, blocks, func(i int) context.Context {
				if i == gone {
					return given
				}
				return context.Background()
			})
			if err := errs[broken]; !errors.Is(err, engine.ErrCorruptRow) || !strings.Contains(err.Error(), keys[broken].Log.String()) {
				t.Errorf("the damaged block gave %v", err)
			}
			var he *engine.HoleError
			if err := errs[hole]; !errors.As(err, &he) || he.Key != keys[hole] {
				t.Errorf("the hole gave %v", err)
			}
			if err := errs[gone]; !errors.Is(err, errConnection) {
				t.Errorf("what was given up gave %v", err)
			}
			v := e.View()
			defer v.Close()
			for i, k := range keys {
				bad := slices.Contains([]int{broken, hole, gone}, i)
				if !bad && errs[i] != nil {
					t.Errorf("log %d: %v", i, errs[i])
				}
				want := engine.LSN(6).Position()
				if bad {
					want = "0/1"
				}
				if c, _ := v.Cursor(k); engine.CompareLSN(c.Position, want) != 0 {
					t.Errorf("log %d: the cursor is at %s, not %s", i, c.Position, want)
				}
			}
			if rows := v.Tables()[0].Rows; rows != 2*(n-3) {
				t.Errorf("%d rows, not %d", rows, 2*(n-3))
			}
		})
	}
}

// Where a commit of several fails, each is tried by itself.
func TestEachIsTriedAloneAfterAFailedCommit(t *testing.T) {
	t.Parallel()
	const n = 6
	h := holdCommits(store.NewMemory(store.MemoryOptions{}))
	failed := errors.New("no")
	h.fail = func(n int64) error {
		if n == 2 || n == 4 { // the group, and the second of those tried alone
			return failed
		}
		return nil
	}
	e, _, sink, keys := carryMany(t, h, n)
	var blocks [][]*engine.Block
	for i, k := range keys {
		blocks = append(blocks, []*engine.Block{oneRow(k.Log, 1, 5, fmt.Sprint("k", i))})
	}
	wrong := 0
	for i, err := range together(t, h, sink, keys, blocks, func(int) context.Context { return context.Background() }) {
		v := e.View()
		c, _ := v.Cursor(keys[i])
		v.Close()
		if committed := c.Position == engine.LSN(5).Position(); committed == (err != nil) {
			t.Errorf("log %d is at %s, and was told %v", i, c.Position, err)
		}
		if errors.Is(err, failed) {
			wrong++
		} else if err != nil {
			t.Errorf("log %d: %v", i, err)
		}
	}
	if wrong != 1 {
		t.Errorf("%d writes failed, not 1", wrong)
	}
}
