package archive_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	source "github.com/tributary-dev/tributary/pkg/sources/archive"
)

// hooked calls a function before an object is opened.
type hooked struct {
	dest.Destination
	open func()
}

func (h hooked) Open(ctx context.Context, key string, at int64) (io.ReadCloser, error) {
	h.open()
	return h.Destination.Open(ctx, key, at)
}

// The archives of a group are replaced one after the other: one at the very moment that the node reads it as it
// was, and the other later. The node has what they were until both are there, and says which it waits for.
func TestReplacedOneByOne(t *testing.T) {
	t.Parallel()
	o, root := served(t, 300)
	w := exporter(t, root, t.TempDir(), nil)
	w.once(t)
	next := ft.NewOrigin(200, "t", "u")
	again := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": next})
	w2 := exporter(t, again, t.TempDir(), nil)

	var armed atomic.Bool
	folder, err := local.New(w.folder)
	if err != nil {
		t.Fatal(err)
	}
	late, err := archive.NewReader(archive.ReaderConfig{Prefix: prefix(t1), Table: t1, Destination: hooked{folder, func() {
		if armed.CompareAndSwap(true, false) {
			replace(t, w.folder, w2.folder, t1) // it is read as it was
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, func(c *source.Config) { c.Tables[0].Reader = late }, t1, t2)})
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
	o.Put("k1", "of the first")
	ft.Converged(t, o, t1, root)
	next.Write(ft.Change{Table: t1, Key: "k1", Value: "of the second"}, ft.Change{Table: t2, Key: "k1", Value: "of the second"})
	ft.Converged(t, next, t1, again)
	ft.Converged(t, next, t2, again)
	w2.once(t)
	armed.Store(true)
	w.once(t)
	ft.Eventually(t, 30*time.Second, func() error {
		if st := edge.Engine.Status().Sources[0]; !strings.Contains(st.Message, "the archive of public.u is of an older history") {
			return fmt.Errorf("it says %+v", st)
		}
		return nil
	})
	if armed.Load() {
		t.Error("the archive was not read meanwhile")
	}
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
	replace(t, w.folder, w2.folder, t2)
	ft.Converged(t, next, t2, edge)
	ft.Converged(t, next, t1, edge)
	if n := baselines(edge); n != 2 {
		t.Errorf("%d baselines", n)
	}
}

// replace puts the archive of a table in the place of another, its manifest last.
func replace(t *testing.T, folder, by string, table engine.TableName) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(by, prefix(table)))
	if err != nil {
		t.Error(err)
	}
	for _, manifest := range []bool{false, true} {
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), "manifest.json") != manifest {
				continue
			}
			data, err := os.ReadFile(filepath.Join(by, prefix(table), e.Name()))
			if err != nil {
				t.Error(err)
			}
			at := filepath.Join(folder, prefix(table), e.Name())
			if err := os.WriteFile(at+".new", data, 0o600); err != nil {
				t.Error(err)
			}
			if err := os.Rename(at+".new", at); err != nil {
				t.Error(err)
			}
		}
	}
}

// Archives are replaced by those of another origin, as a takeover under another name does: rows that were
// deleted in between go, at the node, at its readers and at theirs, also if the node is started again meanwhile.
func TestReplacedByAnotherOrigin(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("started again ", again), func(t *testing.T) {
			t.Parallel()
			o, root := served(t, 300)
			w := exporter(t, root, t.TempDir(), nil)
			w.once(t)
			disk := ft.Durable(t)
			seed := func() map[string]engine.SyncSource {
				return map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)}
			}
			edge := ft.Start(t, "edge", ft.Options{Use: disk}, seed())
			reader, _ := ft.Child(t, "reader", nil, edge)
			deep, _ := ft.Child(t, "deep", nil, reader)
			all := []*ft.Node{edge, reader, deep}
			ft.Converged(t, o, t1, all...)
			ft.Converged(t, o, t2, all...)
			if again {
				edge.Stop()
			}
			next := ft.NewOrigin(200, "t", "u") // of which 100 rows are gone
			next.Write(ft.Change{Table: t1, Key: "k7", Gone: true}, ft.Change{Table: t2, Key: "k8", Value: "changed"})
			other := ft.Start(t, "other", ft.Options{}, map[string]engine.SyncSource{"pg": next})
			ft.Converged(t, next, t1, other)
			ft.Converged(t, next, t2, other)
			w2 := exporter(t, other, w.folder, func(c *export.Config) { c.TakeOver = true })
			w2.once(t)
			if again {
				all[0] = ft.Start(t, "edge", ft.Options{Use: disk}, seed())
				reader.Stop()
				deep.Stop()
				all[1], _ = ft.ChildWith(t, "reader", ft.Options{Use: reader.Store}, nil, all[0])
				all[2], _ = ft.ChildWith(t, "deep", ft.Options{Use: deep.Store}, nil, all[1])
			}
			for i := range 2 {
				ft.Converged(t, next, t1, all...)
				ft.Converged(t, next, t2, all...)
				next.Write(ft.Change{Table: t1, Key: "k9", Gone: true}, ft.Change{Table: t2, Key: "k300", Value: fmt.Sprint("back", i)})
				ft.Converged(t, next, t2, other)
				w2.once(t)
			}
			if n := len(all[0].Engine.Adverts()); n != 1 {
				t.Errorf("the node serves %d logs", n)
			}
		})
	}
}

// An archive is taken over by a writer that has stamped its rows before the one that it takes it from, since its clock is
// behind or it is older: what it has stands all the same, at a node that follows and at its readers, and what it writes
// from then on.
func TestReplacedByOlderStamps(t *testing.T) {
	t.Parallel()
	for _, behind := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprint(behind), func(t *testing.T) {
			t.Parallel()
			next := ft.NewOrigin(100, "t", "u")
			other := ft.Start(t, "other", ft.Options{Now: func() time.Time { return time.Now().Add(-behind) }}, map[string]engine.SyncSource{"pg": next})
			ft.Converged(t, next, t1, other)
			ft.Converged(t, next, t2, other)
			o, root := served(t, 50)
			w := exporter(t, root, t.TempDir(), nil)
			edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)})
			reader, _ := ft.Child(t, "reader", nil, edge)
			o.Write(ft.Change{Table: t1, Key: "k000001", Value: "newer"}, ft.Change{Table: t1, Key: "k000002", Value: "newer"}, ft.Change{Table: t1, Key: "k000003", Gone: true}, ft.Change{Table: t1, Key: "new", Value: "newer"})
			ft.Converged(t, o, t1, root)
			w.once(t)
			all := []*ft.Node{edge, reader}
			ft.Converged(t, o, t1, all...)
			w2 := exporter(t, other, w.folder, func(c *export.Config) { c.TakeOver = true })
			w2.once(t)
			for i := range 3 {
				ft.Converged(t, next, t1, all...)
				ft.Converged(t, next, t2, all...)
				next.Write(ft.Change{Table: t1, Key: "k000001", Value: fmt.Sprint(i)}, ft.Change{Table: t1, Key: "k000002", Gone: true}, ft.Change{Table: t1, Key: "new", Value: "again"}, ft.Change{Table: t2, Key: "k2", Value: fmt.Sprint(i)})
				ft.Converged(t, next, t1, other)
				ft.Converged(t, next, t2, other)
				w2.once(t)
			}
		})
	}
}
