package server_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
)

// roomy is an archive: the log of a node that keeps all of it.
type roomy struct {
	node   *ft.Node
	begun  atomic.Int64
	gate   chan struct{} // replays wait for it, once they have begun; nil: they do not
	fail   atomic.Int64  // before that many records, from 1
	closed atomic.Bool   // reaches nothing

	mu sync.Mutex
	at engine.Cursor // its head; zero: that of the node
}

func (a *roomy) freeze() engine.Cursor {
	v := a.node.Store.View()
	defer v.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	l := v.Logs()[0]
	a.at = engine.Cursor{CursorKey: engine.CursorKey{Log: l.ID}, Position: l.Head, Time: l.Time}
	return a.at
}

func (a *roomy) Reach(log engine.LogID, _ []engine.TableName, from, _ engine.Position) (engine.Cursor, bool) {
	if a.node == nil || a.closed.Load() {
		return engine.Cursor{}, false
	}
	v := a.node.Store.View()
	defer v.Close()
	l, ok := v.Log(log)
	if !ok || engine.CompareLSN(from, l.Oldest) < 0 {
		return engine.Cursor{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.Position != "" {
		return a.at, true
	}
	return engine.Cursor{Position: l.Head, Time: l.Time}, true
}

func (a *roomy) Replay(ctx context.Context, r server.Replay) error {
	a.begun.Add(1)
	if a.gate != nil {
		select {
		case <-a.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	v := a.node.Store.View()
	defer v.Close()
	left := a.fail.Load()
	if left == 1 {
		return errors.New("the store of the archive does not answer")
	}
	last := map[engine.TableName]map[string]engine.Record{}
	cut := map[engine.TableName][]engine.Stamp{}
	for at := r.From; at != r.To.Position; {
		blocks, err := v.ReadLog(r.Log, at, 1<<20)
		if err != nil {
			return err
		}
		for _, b := range blocks {
			br := b.Reader(r.Log, v.Schema)
			for br.Next() {
				if br.IsBegin {
					continue
				}
				c := br.Change
				t := c.Schema.Table
				if c.Op == engine.OpTruncate {
					last[t], cut[t] = nil, []engine.Stamp{c.Stamp}
					continue
				}
				if last[t] == nil {
					last[t] = map[string]engine.Record{}
				}
				last[t][string(c.Key)] = engine.Record{Schema: c.Schema, Key: c.Key, Row: c.Row, Stamp: c.Stamp, Deleted: c.Op == engine.OpDelete}
			}
			if br.Err() != nil {
				return br.Err()
			}
			if at = b.Position; at == r.To.Position {
				break
			}
		}
	}
	if err := r.Begin(map[engine.LogID][]*engine.Schema{r.Log: v.Schemas(r.Log)}, cut); err != nil {
		return err
	}
	for i, t := range r.Tables {
		for _, rec := range last[t] {
			if left--; left == 0 {
				return errors.New("the store of the archive does not answer")
			}
			if err := r.Record(i, &rec); err != nil {
				return err
			}
		}
	}
	return nil
}

type archived struct {
	*roomy
	origin *ft.Origin
	root   *ft.Node
	count  func(name string) float64
	gone   int // rows that were deleted
	writes int
}

// startArchived starts an origin whose node forgets quickly, deletes too, and an
// archive of it.
func startArchived(t *testing.T, rows int, cfg server.Config) *archived {
	t.Helper()
	a := &archived{roomy: &roomy{}, origin: ft.NewOrigin(rows, "t", "u")}
	registry := prometheus.NewRegistry()
	cfg.Registry, cfg.Archives = registry, a
	a.root = ft.Start(t, "root", ft.Options{Store: store.MemoryOptions{JournalBytes: 8 << 10, Tombstones: 5}, Server: cfg}, map[string]engine.SyncSource{"pg": a.origin})
	ft.Converged(t, a.origin, table, a.root)
	keeper, _ := ft.Child(t, "keeper", nil, a.root)
	ft.Converged(t, a.origin, table, keeper)
	a.node = keeper
	a.count = counter(t, registry)
	return a
}

// busy writes more than the root remembers.
func (a *archived) busy(t *testing.T, deletes int) {
	t.Helper()
	step := func(i int) {
		if i%20 == 19 { // within what the root remembers
			ft.Converged(t, a.origin, table, a.node)
		}
	}
	for i := range deletes {
		a.origin.Write(ft.Change{Table: table, Key: fmt.Sprintf("k%06d", a.gone), Gone: true})
		a.gone++
		step(i)
	}
	for i := range 300 { // no value twice: what is equal before it is written tells nothing
		a.writes++
		a.origin.Put(fmt.Sprintf("k%06d", a.gone+i), fmt.Sprintf("%0100d", a.writes))
		step(i)
	}
	a.origin.Write(ft.Change{Table: ft.Table("u"), Truncate: true})
	a.origin.Write(ft.Change{Table: ft.Table("u"), Key: "only", Value: strconv.Itoa(a.writes)})
	ft.Converged(t, a.origin, ft.Table("u"), a.node)
	ft.Converged(t, a.origin, table, a.root, a.node)
}

func (a *archived) same(t *testing.T, n *ft.Node) {
	t.Helper()
	ft.Converged(t, a.origin, table, n)
	ft.Converged(t, a.origin, ft.Table("u"), n)
}

// A reader whose cursor neither the log nor the state of a node reaches is caught
// up from the archive; so are its own readers, and it goes on from there.
func TestReplayArchive(t *testing.T) {
	t.Parallel()
	a := startArchived(t, 2000, server.Config{})
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	child, _ := ft.ChildWith(t, "child", kept, nil, a.root)
	a.same(t, child)
	child.Stop()
	a.busy(t, 100)
	a.freeze()
	for i := range 20 { // the log goes on, within what the root holds
		a.origin.Put(fmt.Sprintf("k%06d", 500+i), "after the archive's head")
	}
	ft.Converged(t, a.origin, table, a.root)
	snapshots, bytes := a.count("snapshots_total"), a.count("sent_bytes_total")
	child, _ = ft.ChildWith(t, "child", kept, nil, a.root)
	a.same(t, child)
	if got := a.count("snapshots_total") - snapshots; got != 0 {
		t.Errorf("%v snapshots", got)
	}
	if got := a.count("replays_total"); got != 1 {
		t.Errorf("%v replays", got)
	}
	if got := a.count("sent_bytes_total") - bytes; got > 100<<10 {
		t.Errorf("%v bytes for 300 rows of 100 bytes and 100 deletes", got)
	}
	a.origin.Put("k000999", "and on")
	a.same(t, child)
	below, _ := ft.Child(t, "below", nil, child)
	a.same(t, below)
}

// A14, A15: what fails before the first row costs the replay, and no more; what
// fails after it is tried again from the same place.
func TestCaseA14A15(t *testing.T) {
	t.Parallel()
	a := startArchived(t, 2000, server.Config{})
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	back := func(want string) {
		t.Helper()
		replays, failures, snapshots := a.count("replays_total"), a.count("replay_failures_total"), a.count("snapshots_total")
		child, _ := ft.ChildWith(t, "child", kept, nil, a.root)
		a.same(t, child)
		got := fmt.Sprintf("%v replays, %v failed, %v snapshots", a.count("replays_total")-replays, a.count("replay_failures_total")-failures, a.count("snapshots_total")-snapshots)
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
		child.Stop()
		a.busy(t, 100)
	}
	back("0 replays, 0 failed, 1 snapshots")
	a.fail.Store(1)
	back("1 replays, 1 failed, 1 snapshots")
	a.fail.Store(0)
	back("1 replays, 0 failed, 0 snapshots")
	a.closed.Store(true)
	back("0 replays, 0 failed, 1 snapshots")
	a.closed.Store(false)
	at := a.freeze()
	a.busy(t, 0)
	if v := a.root.Store.View(); engine.CompareLSN(at.Position, v.Logs()[0].Oldest) >= 0 {
		t.Fatal("the root still holds what follows the archive's head")
	} else {
		v.Close()
	}
	back("0 replays, 0 failed, 1 snapshots")
	a.mu.Lock()
	a.at = engine.Cursor{}
	a.mu.Unlock()
	// After the first row: the reader comes back with its cursor until it gets through.
	a.fail.Store(250)
	time.AfterFunc(1500*time.Millisecond, func() { a.fail.Store(0) })
	child, _ := ft.ChildWith(t, "child", kept, nil, a.root)
	a.same(t, child)
	if a.count("snapshots_total") != 4+1 { // and the keeper's
		t.Errorf("%v snapshots", a.count("snapshots_total"))
	}
}

// While a reader is being caught up from an archive, the log runs over what the
// node holds: the handover is from where it was held.
func TestReplayHoldsTheLog(t *testing.T) {
	t.Parallel()
	a := startArchived(t, 2000, server.Config{})
	a.gate = make(chan struct{})
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	child, _ := ft.ChildWith(t, "child", kept, nil, a.root)
	a.same(t, child)
	child.Stop()
	a.busy(t, 100)
	snapshots := a.count("snapshots_total")
	child, _ = ft.ChildWith(t, "child", kept, nil, a.root)
	ft.Eventually(t, 30*time.Second, func() error {
		if a.begun.Load() == 0 {
			return errors.New("no replay has begun")
		}
		return nil
	})
	at := a.freeze()
	for range 3 {
		a.busy(t, 50)
	}
	v := a.root.Store.View()
	if engine.CompareLSN(at.Position, v.Logs()[0].Oldest) >= 0 {
		t.Fatal("the root still holds what follows the replay")
	}
	v.Close()
	a.mu.Lock()
	a.at = engine.Cursor{}
	a.mu.Unlock()
	close(a.gate)
	a.same(t, child)
	if got := a.count("snapshots_total") - snapshots; got != 0 {
		t.Errorf("%v snapshots", got)
	}
	t.Logf("%v replays, %v gaps, %v state deltas", a.count("replays_total"), a.count("gaps_total"), a.count("state_deltas_total"))
}

// A replay that is slow holds up nobody: not its own session's other logs, not
// other readers; and one that the reader gives up ends.
func TestReplayHoldsUpNobody(t *testing.T) {
	t.Parallel()
	a := startArchived(t, 500, server.Config{})
	a.gate = make(chan struct{})
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	child, _ := ft.ChildWith(t, "child", kept, nil, a.root)
	a.same(t, child)
	child.Stop()
	a.busy(t, 100)
	child, _ = ft.ChildWith(t, "child", kept, nil, a.root)
	ft.Eventually(t, 30*time.Second, func() error {
		if a.begun.Load() == 0 {
			return errors.New("no replay has begun")
		}
		return nil
	})
	other, _ := ft.Child(t, "other", nil, a.root)
	for range 5 {
		a.busy(t, 10)
		a.same(t, other)
	}
	child.Stop() // its replay waits still
}

// A replay shows what the reader may see, as a filter has it.
func TestReplayThroughFilter(t *testing.T) {
	t.Parallel()
	a := startArchived(t, 1000, server.Config{})
	s, err := scope.New(scope.Table{Name: table, Where: []scope.Condition{{Column: "v", Op: scope.Prefix, Values: []string{"base"}}}})
	if err != nil {
		t.Fatal(err)
	}
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	narrow := func(c *client.Config) { c.Scope = s }
	want := func(n *ft.Node) {
		t.Helper()
		ft.Eventually(t, 30*time.Second, func() error {
			left := map[string]string{}
			for k, v := range a.origin.Rows(table) {
				if strings.HasPrefix(v, "base") {
					left[k] = v
				}
			}
			got := n.Rows(table)
			if len(got) != len(left) {
				return fmt.Errorf("%d rows, want %d", len(got), len(left))
			}
			for k, v := range left {
				if got[k] != v {
					return fmt.Errorf("row %s is %q, want %q", k, got[k], v)
				}
			}
			return nil
		})
	}
	child, _ := ft.ChildWith(t, "child", kept, narrow, a.root)
	want(child)
	child.Stop()
	a.busy(t, 100) // rows go, and leave the filter
	snapshots := a.count("snapshots_total")
	child, _ = ft.ChildWith(t, "child", kept, narrow, a.root)
	want(child)
	if a.count("snapshots_total") != snapshots || a.count("replays_total") != 1 {
		t.Errorf("%v snapshots, %v replays", a.count("snapshots_total")-snapshots, a.count("replays_total"))
	}
}
