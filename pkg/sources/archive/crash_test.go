package archive_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/desttest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	source "github.com/tributary-dev/tributary/pkg/sources/archive"
)

// kept is a store that outlives the lives of a node, as one on disk does.
type kept struct{ *store.Memory }

func (kept) Durable() bool { return true }

// stage is an archive at one time, and what it holds.
type stage struct {
	folder  string
	head    engine.Position
	digests [2]string
}

// put makes a folder hold what the stage has: the manifests come last, as a writer
// writes them.
func (s *stage) put(t *testing.T, folder string) {
	t.Helper()
	for _, manifests := range []bool{false, true} {
		err := filepath.WalkDir(s.folder, func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() || (e.Name() == "manifest.json") != manifests {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			to := filepath.Join(folder, strings.TrimPrefix(path, s.folder))
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(to+".new", text, 0o600); err != nil {
				return err
			}
			return os.Rename(to+".new", to)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A node that reads archives and is killed at any operation, on the archives or on its
// state file, has nothing, or a state that the source had, at the position that it
// claims; the state file says no more than it has; and the next life goes on without
// a baseline.
func TestReaderKilledAtEveryOperation(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(60, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	rnd := rand.New(rand.NewPCG(3, 1))
	w := exporter(t, root, t.TempDir(), nil)
	var stages [2]stage
	for i := range stages {
		ft.Converged(t, o, t1, root)
		ft.Converged(t, o, t2, root)
		w.once(t)
		s := &stages[i]
		s.folder, s.head, s.digests = t.TempDir(), root.Engine.Adverts()[0].Head, [2]string{o.Digest(t1), o.Digest(t2)}
		(&stage{folder: w.folder}).put(t, s.folder)
		mutate(o, rnd, 40)
	}
	log := root.Engine.Adverts()[0].Log
	seed := func(archives, states dest.Destination, statePath string) *source.Source {
		c := source.Config{Name: "seed", Follow: true, Poll: 5 * time.Millisecond, Logger: ft.Logger("source"), StatePath: statePath}
		for _, name := range []engine.TableName{t1, t2} {
			r, err := archive.NewReader(archive.ReaderConfig{Destination: archives, Prefix: prefix(name), Table: name})
			if err != nil {
				t.Fatal(err)
			}
			c.Tables = append(c.Tables, source.Table{Name: name, Reader: r})
		}
		s, err := source.New(c)
		if err != nil {
			t.Fatal(err)
		}
		s.KeepStateIn(states)
		return s
	}
	at := func(n *ft.Node) engine.Position {
		v := n.Engine.View()
		defer v.Close()
		c, _ := v.Cursor(engine.CursorKey{Log: log})
		return c.Position
	}
	stated := func(path string) (engine.Position, error) {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return "", nil
		}
		var f struct {
			Logs []struct{ Position engine.Position }
		}
		if err == nil {
			err = json.Unmarshal(text, &f)
		}
		if err != nil || len(f.Logs) != 1 {
			return "", fmt.Errorf("the state file holds %q: %v", text, err)
		}
		return f.Logs[0].Position, nil
	}
	// life runs a node that is killed as the plans say, and the next one; it returns
	// the operations of the first.
	life := func(t *testing.T, plan, statePlan func(desttest.Op) desttest.Fault) (ops, stateOps []desttest.Op) {
		t.Helper()
		dir, states := t.TempDir(), t.TempDir()
		path := filepath.Join(states, "state.json")
		folder := func(dir string) dest.Destination {
			d, err := local.New(dir)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		stages[0].put(t, dir)
		f, sf := desttest.NewFaults(folder(dir), plan), desttest.NewFaults(folder(states), statePlan)
		st := ft.Options{Use: kept{store.NewMemory(store.MemoryOptions{})}}
		n := ft.Start(t, "edge", st, map[string]engine.SyncSource{"seed": seed(f, sf, path)})
		for i := range stages {
			ft.Eventually(t, 30*time.Second, func() error {
				if f.Crashed() || sf.Crashed() {
					return nil
				}
				said, err := stated(path)
				if err == nil && (at(n) != stages[i].head || said != stages[i].head) {
					err = fmt.Errorf("it is at %s, and says %s; want %s", at(n), said, stages[i].head)
				}
				return err
			})
			if i == 0 && !f.Crashed() && !sf.Crashed() {
				stages[1].put(t, dir)
			}
		}
		n.Stop()
		is := at(n)
		found := is == "" && len(n.Rows(t1))+len(n.Rows(t2)) == 0
		for _, s := range stages {
			found = found || s.head == is && s.digests == [2]string{n.Digest(t1), n.Digest(t2)}
		}
		if !found {
			t.Errorf("it is at %q with %d and %d rows, which the source never was", is, len(n.Rows(t1)), len(n.Rows(t2)))
		}
		if said, err := stated(path); err != nil || engine.CompareLSN(said, is) > 0 {
			t.Errorf("it is at %q, and says %q, %v", is, said, err)
		}
		stages[1].put(t, dir)
		n = ft.Start(t, "edge", st, map[string]engine.SyncSource{"seed": seed(folder(dir), folder(states), path)})
		ft.Eventually(t, 30*time.Second, func() error {
			if said, err := stated(path); err != nil || at(n) != stages[1].head || engine.CompareLSN(said, at(n)) > 0 || stages[1].digests != [2]string{n.Digest(t1), n.Digest(t2)} {
				return fmt.Errorf("it is at %s, and says %s, %v", at(n), said, err)
			}
			return nil
		})
		if b := baselines(n); is != "" && b != 0 {
			t.Errorf("the next life was at %s, and took %d baselines", is, b)
		}
		n.Stop()
		return f.Ops(), sf.Ops()
	}
	ops, stateOps := life(t, nil, nil)
	if len(ops) < 10 || len(stateOps) < 4 {
		t.Fatalf("only %d and %d operations", len(ops), len(stateOps))
	}
	for _, fault := range []desttest.Fault{desttest.Crash, desttest.CrashIn} {
		for n := range min(len(ops), 40) {
			t.Run(fmt.Sprintf("archives/%d/%d", fault, n+1), func(t *testing.T) {
				t.Parallel()
				life(t, desttest.At(n+1, fault), nil)
			})
		}
		for n := range stateOps {
			t.Run(fmt.Sprintf("state/%d/%d", fault, n+1), func(t *testing.T) {
				t.Parallel()
				life(t, nil, desttest.At(n+1, fault))
			})
		}
	}
}
