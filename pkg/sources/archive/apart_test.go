package archive_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

// only is an exporter of one table.
func only(t testing.TB, n *ft.Node, folder string, table engine.TableName) *writer {
	return exporter(t, n, folder, func(c *export.Config) { c.Tables = []engine.TableName{table} })
}

// Archives of one log that are written apart, one table at a time, are served together: each as far as it
// goes. A reader of the node gets what each adds, also one that is always there, and nothing is taken in again
// while nothing changes, or because the node is started again.
func TestWrittenApart(t *testing.T) {
	t.Parallel()
	o, root := served(t, 100)
	folder := t.TempDir()
	only(t, root, folder, t1).once(t)
	o.Put("k1", "after t was archived")
	o.Write(ft.Change{Table: t2, Key: "k1", Value: "before u was"})
	ft.Converged(t, o, t1, root)
	ft.Converged(t, o, t2, root)
	w2 := only(t, root, folder, t2)
	w2.once(t)
	kept := ft.Options{Use: ft.Durable(t)}
	seed := func() map[string]engine.SyncSource {
		return map[string]engine.SyncSource{"seed": from(t, folder, nil, t1, t2)}
	}
	edge := ft.Start(t, "edge", kept, seed())
	ft.Converged(t, o, t2, edge)
	reader, _ := ft.Child(t, "reader", nil, edge)
	ft.Converged(t, o, t2, reader)
	time.Sleep(200 * time.Millisecond)
	if n := baselines(edge); n != 1 {
		t.Fatalf("%d baselines of what does not change: %+v", n, edge.Engine.Status().Sources)
	}
	// Each in turn, as new bases that nothing leads to, and as diffs.
	for i := range 6 {
		for j, table := range []engine.TableName{t1, t2} {
			for _, name := range []engine.TableName{t1, t2} {
				o.Write(ft.Change{Table: name, Key: "k1", Value: fmt.Sprint("v", i, j)}, ft.Change{Table: name, Key: "k" + string(rune('2'+i)), Gone: true})
				ft.Converged(t, o, name, root)
			}
			if err := only(t, root, folder, table).Once(t.Context(), i%2 == 0); err != nil {
				t.Fatal(err)
			}
			ft.Converged(t, o, table, edge)
			ft.Converged(t, o, table, reader)
		}
		if i == 2 {
			edge.Stop()
			edge = ft.Start(t, "edge", kept, seed())
			reader.Stop()
			reader, _ = ft.Child(t, "reader", nil, edge)
			time.Sleep(200 * time.Millisecond)
			if n := baselines(edge); n != 0 {
				t.Errorf("%d baselines after a restart", n)
			}
		}
	}
}

// What comes just where another archive has moved the cursor reaches readers too, once there is more.
func TestWrittenApartToOnePlace(t *testing.T) {
	t.Parallel()
	o, root := served(t, 100)
	folder := t.TempDir()
	only(t, root, folder, t1).once(t)
	only(t, root, folder, t2).once(t)
	edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, folder, nil, t1, t2)})
	reader, _ := ft.Child(t, "reader", nil, edge)
	ft.Converged(t, o, t2, reader)
	for i := range 3 {
		for _, name := range []engine.TableName{t2, t1} {
			o.Write(ft.Change{Table: name, Key: "k1", Value: fmt.Sprint(i)})
			ft.Converged(t, o, name, root)
		}
		only(t, root, folder, t1).once(t)
		ft.Converged(t, o, t1, reader)
		only(t, root, folder, t2).once(t) // no further than t
		time.Sleep(100 * time.Millisecond)
		o.Write(ft.Change{Table: t1, Key: "k2", Value: fmt.Sprint(i)})
		ft.Converged(t, o, t1, root)
		only(t, root, folder, t1).once(t)
		for _, n := range []*ft.Node{edge, reader} {
			ft.Converged(t, o, t1, n)
			ft.Converged(t, o, t2, n)
		}
	}
}

// Of archives of two epochs the older is waited for, by what names it, and the rows that there are stay.
// A node that is started again meanwhile takes it in as well.
func TestTwoEpochs(t *testing.T) {
	t.Parallel()
	o, root := served(t, 100)
	w := exporter(t, root, t.TempDir(), nil)
	w.once(t)
	root.Stop()
	next := ft.NewOrigin(50, "t", "u")
	again := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": next})
	ft.Converged(t, next, t1, again)
	w2 := exporter(t, again, t.TempDir(), nil)
	w2.once(t)

	kept := ft.Options{Use: ft.Durable(t)}
	seed := func() map[string]engine.SyncSource {
		return map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)}
	}
	edge := ft.Start(t, "edge", kept, seed())
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
	replace(t, w.folder, w2.folder, t2)
	says := func() {
		t.Helper()
		ft.Eventually(t, 20*time.Second, func() error {
			if st := edge.Engine.Status().Sources[0]; !strings.Contains(st.Message, "the archive of public.t is of an older history") {
				return fmt.Errorf("it says %+v", st)
			}
			return nil
		})
	}
	says()
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
	edge.Stop()
	edge = ft.Start(t, "edge", kept, seed())
	says()
	replace(t, w.folder, w2.folder, t1)
	ft.Converged(t, next, t1, edge)
	ft.Converged(t, next, t2, edge)
}
