package archive_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

// apart is a pair of archives that are written apart: what is archived is kept aside, and comes to
// the folder that a node reads when the test says so.
type apart struct {
	t      *testing.T
	o      *ft.Origin
	root   *ft.Node
	folder string // what the node reads
	aside  string // where the archives are written
}

func newApart(t *testing.T) *apart {
	t.Helper()
	o, root := served(t, 100)
	ft.Converged(t, o, t2, root)
	a := &apart{t: t, o: o, root: root, folder: t.TempDir(), aside: t.TempDir()}
	for _, table := range []engine.TableName{t1, t2} {
		a.archive(table)
		if err := os.MkdirAll(a.folder+"/"+prefix(table), 0o755); err != nil {
			t.Fatal(err)
		}
		a.show(table)
	}
	return a
}

// newBehind has an archive of the first table, of which readers know, and one of the second that ends before it and that
// none has seen.
func newBehind(t *testing.T) *apart {
	a := newApart(t)
	a.write(t2, "k1", "below the cursor of t")
	a.write(t2, "k2", "")
	a.archive(t2)
	a.write(t1, "k1", "above it")
	a.archive(t1)
	a.show(t1)
	return a
}

func (a *apart) write(table engine.TableName, key, value string) {
	a.t.Helper()
	a.o.Write(ft.Change{Table: table, Key: key, Value: value, Gone: value == ""})
	ft.Converged(a.t, a.o, table, a.root)
}

// archive brings a table's archive up to now, aside.
func (a *apart) archive(table engine.TableName) {
	a.t.Helper()
	only(a.t, a.root, a.aside, table).once(a.t)
}

// show lets the node see a table's archive as it is now.
func (a *apart) show(table engine.TableName) {
	a.t.Helper()
	replace(a.t, a.folder, a.aside, table)
}

func (a *apart) node(use engine.Store) *ft.Node {
	a.t.Helper()
	return ft.Start(a.t, "edge", ft.Options{Use: use}, map[string]engine.SyncSource{"seed": from(a.t, a.folder, nil, t1, t2)})
}

// An archive that comes to a place before the cursor, which another has moved, waits for the next position. A node
// that ends meanwhile takes it in all the same once there is more, and so do its readers.
func TestBehindTheCursorAcrossARestart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		seen          bool // by the first life
		more, another bool // of the same archive; of the other
	}{
		{name: "waits, then the other goes on", seen: true, another: true},
		{name: "waits, then it goes on itself", seen: true, more: true},
		{name: "comes while the node is away, then the other goes on", another: true},
		{name: "comes and goes on while the node is away", more: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newBehind(t)
			disk := ft.Durable(t)
			edge := a.node(disk)
			ft.Converged(t, a.o, t1, edge)
			reader, _ := ft.Child(t, "reader", nil, edge)
			ft.Converged(t, a.o, t1, reader)
			if c.seen {
				a.show(t2)
				time.Sleep(100 * time.Millisecond)
			}
			if edge.Rows(t2)["k1"] == "below the cursor of t" {
				t.Fatal("it did not wait, and a reader would not learn of it")
			}
			edge.Stop()
			a.show(t2)
			if c.more {
				a.write(t2, "k3", "later")
				a.archive(t2)
				a.show(t2)
			}
			edge = a.node(disk)
			reader.Stop()
			reader, _ = ft.ChildWith(t, "reader", ft.Options{Use: reader.Store}, nil, edge)
			if c.another {
				a.write(t1, "k2", "moves the cursor")
				a.archive(t1)
				a.show(t1)
			}
			for _, n := range []*ft.Node{edge, reader} {
				ft.Converged(t, a.o, t1, n)
				ft.Converged(t, a.o, t2, n)
			}
			if n := baselines(edge); n != 0 {
				t.Errorf("%d baselines after a restart", n)
			}
		})
	}
}

// failing is a store of which some commits fail, as where a node is killed.
type failing struct {
	engine.Store
	fail func() bool
}

type failingTx struct {
	engine.Tx
	fail func() bool
}

func (s failing) Begin(ctx context.Context) (engine.Tx, error) {
	tx, err := s.Store.Begin(ctx)
	return failingTx{tx, s.fail}, err
}

func (tx failingTx) Commit() error {
	if tx.fail() {
		tx.Rollback()
		return errors.New("killed")
	}
	return tx.Tx.Commit()
}

// Whatever comes in whatever order, to nodes and readers that end and come back: in the end all have all. Readers are
// caught up from a log that is short, by what the state holds, and by snapshots.
func TestApartInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 7))
			a := newApart(t)
			var fails atomic.Int64
			disk := failing{kept{store.NewMemory(store.MemoryOptions{JournalBytes: 2 << 10, Tombstones: -1})}, func() bool { return fails.Add(-1) >= 0 }}
			edge := a.node(disk)
			ft.Converged(t, a.o, t2, edge)
			reader, _ := ft.Child(t, "reader", nil, edge)
			ft.Converged(t, a.o, t2, reader)
			tables := []engine.TableName{t1, t2}
			away := false
			var story []string
			for i := range 40 {
				table := tables[rnd.IntN(2)]
				step := rnd.IntN(12)
				story = append(story, fmt.Sprint(step, table.Name))
				switch step {
				case 0, 1, 2:
					a.write(table, fmt.Sprint("k", rnd.IntN(20)), fmt.Sprint(i))
				case 3:
					a.write(table, fmt.Sprint("k", rnd.IntN(20)), "")
				case 4, 5:
					a.archive(table)
				case 6, 7:
					a.show(table)
				case 8:
					edge.Stop()
					edge = a.node(disk)
					if !away {
						reader.Stop()
						reader, _ = ft.ChildWith(t, "reader", ft.Options{Use: reader.Store}, nil, edge)
					}
				case 9:
					reader.Stop()
					if away = !away; !away {
						reader, _ = ft.ChildWith(t, "reader", ft.Options{Use: reader.Store}, nil, edge)
					}
				case 10:
					fails.Store(1)
				case 11:
					time.Sleep(50 * time.Millisecond)
				}
			}
			fails.Store(0)
			if away {
				reader, _ = ft.ChildWith(t, "reader", ft.Options{Use: reader.Store}, nil, edge)
			}
			for _, table := range append(tables, t1) {
				a.write(table, "last", fmt.Sprint(table.Name))
				a.archive(table)
				a.show(table)
			}
			defer func() {
				if t.Failed() {
					t.Log(story)
				}
			}()
			for _, n := range []*ft.Node{edge, reader} {
				ft.Converged(t, a.o, t1, n)
				ft.Converged(t, a.o, t2, n)
			}
		})
	}
}

// Rows that were written before where a reader is, and come after it, reach a reader that was away for longer than the
// log goes back: of a node that reads the archives, and of one below it.
func TestBehindTheCursorOfReadersAway(t *testing.T) {
	t.Parallel()
	a := newBehind(t)
	short := ft.Options{Store: store.MemoryOptions{JournalBytes: 2 << 10}}
	edge := ft.Start(t, "edge", short, map[string]engine.SyncSource{"seed": from(t, a.folder, nil, t1, t2)})
	mid, _ := ft.ChildWith(t, "mid", short, nil, edge)
	away, _ := ft.Child(t, "away", nil, edge)
	deep, _ := ft.Child(t, "deep", nil, mid)
	all := []*ft.Node{edge, mid, away, deep}
	ft.Converged(t, a.o, t1, all...)
	away.Stop()
	deep.Stop()
	a.show(t2)
	for range 20 {
		for range 10 {
			a.o.Write(ft.Change{Table: t1, Key: "k1", Value: strings.Repeat("much", 100)})
		}
		a.write(t1, "k1", fmt.Sprint("moves the cursor"))
		a.archive(t1)
		a.show(t1)
		ft.Converged(t, a.o, t1, edge, mid)
	}
	all[2], _ = ft.ChildWith(t, "away", ft.Options{Use: away.Store}, nil, edge)
	all[3], _ = ft.ChildWith(t, "deep", ft.Options{Use: deep.Store}, nil, mid)
	ft.Converged(t, a.o, t1, all...)
	ft.Converged(t, a.o, t2, all...)
}
