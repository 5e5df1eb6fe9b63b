package archive_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/sourcetest"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	source "github.com/tributary-dev/tributary/pkg/sources/archive"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t1, t2 = ft.Table("t"), ft.Table("u")

func prefix(t engine.TableName) string { return t.String() + "/" }

// writer keeps the archives of a node's tables in a folder.
type writer struct {
	*export.Exporter
	folder string
}

// served is an origin of two tables with rows, and a node that has them.
func served(t testing.TB, rows int) (*ft.Origin, *ft.Node) {
	t.Helper()
	o := ft.NewOrigin(rows, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, t1, root)
	return o, root
}

func exporter(t testing.TB, n *ft.Node, folder string, change func(*export.Config)) *writer {
	t.Helper()
	d, err := local.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	c := export.Config{Name: "a", Host: n.Engine, Destination: d, Prefix: prefix, Logger: ft.Logger("exporter")}
	if change != nil {
		change(&c)
	}
	x, err := export.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &writer{x, folder}
}

func (w *writer) once(t testing.TB) {
	t.Helper()
	if err := w.Once(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

func from(t testing.TB, folder string, change func(*source.Config), tables ...engine.TableName) *source.Source {
	t.Helper()
	d, err := local.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	c := source.Config{Name: "seed", Follow: true, Poll: 20 * time.Millisecond, Logger: ft.Logger("source")}
	for _, name := range tables {
		r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: prefix(name), Table: name})
		if err != nil {
			t.Fatal(err)
		}
		c.Tables = append(c.Tables, source.Table{Name: name, Reader: r})
	}
	if change != nil {
		change(&c)
	}
	s, err := source.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func baselines(n *ft.Node) int { return n.Engine.Status().Sources[0].Baselines }

// A node that has nothing but archives serves what the node had that they are of, and
// follows them: with the logs, positions and stamps that they were written with.
func TestFollow(t *testing.T) {
	t.Parallel()
	for _, history := range []archive.History{archive.Net, archive.Full} {
		t.Run(string(history), func(t *testing.T) {
			t.Parallel()
			o := ft.NewOrigin(300, "t", "u")
			root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
			ft.Converged(t, o, t1, root)
			w := exporter(t, root, t.TempDir(), func(c *export.Config) { c.History = history })
			w.once(t)
			edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)})
			ft.Converged(t, o, t1, edge)
			ft.Converged(t, o, t2, edge)
			reader, _ := ft.Child(t, "reader", nil, edge)
			rnd := rand.New(rand.NewPCG(1, 1))
			for range 10 {
				mutate(o, rnd, 60)
				ft.Converged(t, o, t1, root)
				ft.Converged(t, o, t2, root)
				w.once(t)
				for _, n := range []*ft.Node{edge, reader} {
					ft.Converged(t, o, t1, n)
					ft.Converged(t, o, t2, n)
				}
			}
			if a, b := root.Engine.Adverts()[0], edge.Engine.Adverts()[0]; a.Log != b.Log || a.Head != b.Head || a.Time != b.Time || baselines(edge) != 1 {
				t.Errorf("%+v\n%+v\n%d baselines", a, b, baselines(edge))
			}
			if st := reader.Engine.Status().Sources[0]; st.Baselines != 1 {
				t.Errorf("the reader was baselined %d times", st.Baselines)
			}
			// A reader goes on at the node that the archive is of, where the edge left it.
			kept := ft.Options{Use: reader.Store}
			reader.Stop()
			o.Put("after", "the edge")
			ft.Converged(t, o, t1, root)
			moved, _ := ft.ChildWith(t, "reader", kept, nil, root)
			ft.Converged(t, o, t1, moved)
			if baselines(moved) != 0 {
				t.Errorf("%d baselines after moving", baselines(moved))
			}
		})
	}
}

func mutate(o *ft.Origin, rnd *rand.Rand, n int) {
	for n > 0 {
		var tx []ft.Change
		for range min(n, 1+rnd.IntN(20)) {
			c := ft.Change{Table: o.Tables[rnd.IntN(len(o.Tables))], Key: fmt.Sprint("k", rnd.IntN(500)), Value: fmt.Sprint("v", rnd.Int()), Gone: rnd.IntN(5) == 0}
			if rnd.IntN(400) == 0 {
				c = ft.Change{Table: c.Table, Truncate: true}
			}
			tx = append(tx, c)
		}
		n -= len(tx)
		o.Write(tx...)
	}
}

// The suite that every source passes.
func TestSuite(t *testing.T) {
	sourcetest.Run(t, func(t testing.TB) sourcetest.Fixture {
		o := ft.NewOrigin(50, "t", "u")
		root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
		ft.Converged(t, o, t1, root)
		w := exporter(t, root, t.TempDir(), nil)
		w.once(t)
		rnd := rand.New(rand.NewPCG(1, 2))
		return sourcetest.Fixture{
			Source: from(t, w.folder, func(c *source.Config) { c.StatePath = filepath.Join(t.TempDir(), "state.json") }, t1, t2),
			Mutate: func(n int) {
				for ; n > 0; n -= 40 {
					mutate(o, rnd, min(n, 40))
					ft.Converged(t, o, t1, root)
					ft.Converged(t, o, t2, root)
					w.once(t)
				}
			},
			Truth: func() sourcetest.Rows {
				rows := sourcetest.Rows{}
				for _, table := range o.Tables {
					for k, v := range o.Rows(table) {
						rows[table] = append(rows[table], sourcetest.Row(&k, &v))
					}
				}
				return rows
			},
			Lose: func() { // a re-base without what led there
				if err := w.Once(context.Background(), true); err != nil {
					t.Fatal(err)
				}
				root.Stop()
				root = ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
				ft.Converged(t, o, t1, root)
				w = exporter(t, root, w.folder, func(c *export.Config) { c.ID = "root/a" })
				w.once(t)
			},
		}
	})
}

// A10: an archive is replaced in whole by one of another history: one more baseline. An older
// one of the same history is refused, with a sentence, and nothing is lost.
func TestCaseA10(t *testing.T) {
	t.Parallel()
	o, root := served(t, 300)
	w := exporter(t, root, t.TempDir(), nil)
	w.once(t)
	old := t.TempDir()
	if err := os.CopyFS(old, os.DirFS(w.folder)); err != nil {
		t.Fatal(err)
	}
	edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1)})
	ft.Converged(t, o, t1, edge)
	o.Put("k1", "later")
	ft.Converged(t, o, t1, root)
	w.once(t)
	ft.Converged(t, o, t1, edge)
	put := func(folder string) {
		t.Helper()
		if err := os.RemoveAll(w.folder); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(w.folder, os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	put(old)
	ft.Eventually(t, 30*time.Second, func() error {
		st := edge.Engine.Status().Sources[0]
		if !strings.Contains(st.Message, "older state of the same history") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	ft.Converged(t, o, t1, edge)
	o2 := ft.NewOrigin(7, "t", "u")
	root2 := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o2})
	ft.Converged(t, o2, t1, root2)
	w2 := exporter(t, root2, t.TempDir(), nil)
	w2.once(t)
	again := ft.Start(t, "edge2", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1)})
	ft.Eventually(t, 30*time.Second, func() error {
		if baselines(again) == 0 {
			return errors.New("no baseline yet")
		}
		return nil
	})
	put(w2.folder)
	ft.Converged(t, o2, t1, again)
	if st := again.Engine.Status().Sources[0]; st.Rebaselines != 1 {
		t.Errorf("%+v", st)
	}
}

// A18: a node starts from a seed in no time, with no network; what it says where there
// is none names what was looked for.
func TestCaseA18(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(20_000, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, t1, root)
	w := exporter(t, root, t.TempDir(), func(c *export.Config) { c.Formats = []archive.Format{archive.JSONL} })
	w.once(t)
	root.Stop()
	began := time.Now()
	edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, func(c *source.Config) { c.Follow = false }, t1, t2)})
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
	t.Logf("20,000 rows twice in %s", time.Since(began))
	nothing := ft.Start(t, "nothing", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, t.TempDir(), nil, t1)})
	ft.Eventually(t, 30*time.Second, func() error {
		if m := nothing.Engine.Status().Sources[0].Message; !strings.Contains(m, "public.t/manifest.json") {
			return fmt.Errorf("%q", m)
		}
		return nil
	})
}

// The archives of a group end at different positions where their writer was stopped between
// two tables: they are taken in at one that all have.
func TestGroupIsConsistent(t *testing.T) {
	t.Parallel()
	o, root := served(t, 100)
	w := exporter(t, root, t.TempDir(), nil)
	w.once(t)
	only := exporter(t, root, w.folder, func(c *export.Config) { c.Tables, c.TakeOver = []engine.TableName{t1}, true })
	at, _ := root.Store.View().Log(root.Engine.Adverts()[0].Log)
	o.Write(ft.Change{Table: t1, Key: "a", Value: "both"}, ft.Change{Table: t2, Key: "a", Value: "both"})
	ft.Converged(t, o, t1, root)
	only.once(t)
	edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)})
	ft.Eventually(t, 30*time.Second, func() error {
		if baselines(edge) == 0 {
			return errors.New("no baseline yet")
		}
		return nil
	})
	v := edge.Store.View()
	is, _ := v.Log(edge.Engine.Adverts()[0].Log)
	v.Close()
	if is.Head != at.Head || edge.Rows(t1)["a"] != "" {
		t.Errorf("at %s with %q, want %s", is.Head, edge.Rows(t1)["a"], at.Head)
	}
	rest := exporter(t, root, w.folder, func(c *export.Config) { c.TakeOver = true })
	rest.once(t)
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
}

// A node with a store on disk goes on where it was; so does its state file.
func TestResume(t *testing.T) {
	t.Parallel()
	o, root := served(t, 300)
	w := exporter(t, root, t.TempDir(), nil)
	w.once(t)
	first := t.TempDir()
	if err := os.CopyFS(first, os.DirFS(w.folder)); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state.json")
	disk, err := store.OpenPebble(store.PebbleOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	kept := ft.Options{Use: disk}
	with := func(c *source.Config) { c.StatePath = state }
	edge := ft.Start(t, "edge", kept, map[string]engine.SyncSource{"seed": from(t, w.folder, with, t1, t2)})
	ft.Converged(t, o, t1, edge)
	edge.Stop()
	last := o.Put("k1", "while it was away")
	ft.Converged(t, o, t1, root)
	w.once(t)
	s := from(t, w.folder, with, t1, t2)
	log := root.Engine.Adverts()[0].Log
	if s.LastAckedPosition(log) == "" {
		t.Error("the state file is not read")
	}
	edge = ft.Start(t, "edge", kept, map[string]engine.SyncSource{"seed": s})
	ft.Converged(t, o, t1, edge)
	ft.Eventually(t, 30*time.Second, func() error {
		if got := s.LastAckedPosition(log); got != last {
			return fmt.Errorf("acknowledged %s, want %s", got, last)
		}
		return nil
	})
	if st := edge.Engine.Status().Sources[0]; st.Rebaselines != 0 {
		t.Errorf("%+v", st)
	}
	edge.Stop()
	// The store is lost, and the archive is an older one: the state file says what there is.
	older := t.TempDir()
	if err := os.CopyFS(older, os.DirFS(first)); err != nil {
		t.Fatal(err)
	}
	s = from(t, older, with, t1, t2)
	edge = ft.Start(t, "edge", ft.Options{Use: ft.Durable(t)}, map[string]engine.SyncSource{"seed": s})
	ft.Eventually(t, 30*time.Second, func() error {
		got, again := s.LastAckedPosition(log), from(t, older, with, t1, t2).LastAckedPosition(log)
		if len(edge.Rows(t1)) != 300 || got != again || engine.CompareLSN(got, last) >= 0 {
			return fmt.Errorf("acknowledged %s, the state file says %s, and it was at %s in another life", got, again, last)
		}
		return nil
	})
	edge.Stop()
	// Each table can have a file of its own.
	each := func(c *source.Config) {
		for i := range c.Tables {
			c.Tables[i].StatePath = state + "." + c.Tables[i].Name.Name
		}
	}
	edge = ft.Start(t, "edge", ft.Options{Use: ft.Durable(t)}, map[string]engine.SyncSource{"seed": from(t, w.folder, each, t1, t2)})
	ft.Converged(t, o, t1, edge)
	ft.Eventually(t, 30*time.Second, func() error {
		for _, of := range []engine.TableName{t1, t2} {
			if b, err := os.ReadFile(state + "." + of.Name); err != nil || !strings.Contains(string(b), string(last)) {
				return fmt.Errorf("%s: %s, %v", of, b, err)
			}
		}
		return nil
	})
	if got := from(t, w.folder, each, t1, t2).LastAckedPosition(log); got != last {
		t.Errorf("the state files say %s, and not %s", got, last)
	}
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := source.New(source.Config{Name: "seed", Tables: []source.Table{{Name: t1}}, StatePath: state}); err == nil || !strings.Contains(err.Error(), state) {
		t.Errorf("a damaged state file gave %v", err)
	}
}
