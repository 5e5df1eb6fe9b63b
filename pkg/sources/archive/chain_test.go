package archive_test

import (
	"fmt"
	"testing"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

// manifestOf reads the manifest of a table's archive.
func manifestOf(t *testing.T, folder string, table engine.TableName) *archive.Manifest {
	t.Helper()
	d, err := local.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: prefix(table), Table: table})
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rep, err := r.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) > 0 {
		t.Fatal(err, rep)
	}
	return m
}

// A node of which a table is behind archives no more of it than it has: a node that is fed by those archives, and a
// reader of that, get the rest, wherever they go. While one table is behind the others are brought on.
func TestArchivedWhileBehind(t *testing.T) {
	t.Parallel()
	for _, history := range []archive.History{archive.Net, archive.Full} {
		for _, journal := range []int{2 << 10, 64 << 20} {
			t.Run(fmt.Sprintf("%s/%d", history, journal), func(t *testing.T) {
				t.Parallel()
				a := newBehind(t)
				seed := from(t, a.folder, nil, t1, t2)
				edge := ft.Start(t, "edge", ft.Options{Store: store.MemoryOptions{JournalBytes: journal}}, map[string]engine.SyncSource{"seed": seed})
				a.lacks(edge)
				w := exporter(t, edge, t.TempDir(), func(c *export.Config) { c.History = history })
				behind := func(is bool, cause string) {
					t.Helper()
					w.once(t)
					m1, m2 := manifestOf(t, w.folder, t1), manifestOf(t, w.folder, t2)
					if c := engine.CompareLSN(m2.Through[0].Position, m1.Through[0].Position); is != (c < 0) || c > 0 {
						t.Fatalf("%s: the archive of t is at %s, that of u at %s", cause, m1.Through, m2.Through)
					}
					if want := map[bool]int{true: 1, false: 2}[is]; len(m1.Together) != want || len(m2.Together) != want {
						t.Errorf("%s: t goes with %v, u with %v", cause, m1.Together, m2.Together)
					}
				}
				behind(true, "it begins")
				generation := manifestOf(t, w.folder, t2).Generation
				behind(true, "nothing has changed")
				if g := manifestOf(t, w.folder, t2).Generation; g != generation {
					t.Errorf("a pass without changes has written a base")
				}
				far := ft.Start(t, "far", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)})
				a.lacks(far)
				stays, _ := ft.Child(t, "stays", nil, far)
				leaves, src := ft.Child(t, "leaves", nil, far)
				a.lacks(stays, leaves)
				src.SetUpstreams([]string{a.root.Address}, client.Policy{})
				a.all(leaves)

				a.write(t1, "k3", "goes on though u is behind")
				a.archive(t1)
				a.show(t1)
				ft.Converged(t, a.o, t1, edge)
				behind(true, "t has gone on, and u has come to where t was") // u was shown before, if at all
				ft.Converged(t, a.o, t1, far, stays)

				a.show(t2) // to a place before the cursor
				a.write(t1, "k4", "brings it")
				a.archive(t1)
				a.show(t1)
				a.all(edge)
				behind(true, "u has come on, and is behind still")
				a.write(t1, "k5", "takes it to far")
				a.archive(t1)
				a.show(t1)
				ft.Converged(t, a.o, t1, edge)
				behind(true, "t has gone on again")
				a.all(far, stays)

				for i := 0; ; i++ { // until both are seen at one place
					seed.Pause()
					a.write(t1, "k6", fmt.Sprint(i))
					a.write(t2, "k6", fmt.Sprint(i))
					a.archive(t1)
					a.archive(t2)
					a.show(t1)
					a.show(t2)
					seed.Resume()
					ft.Converged(t, a.o, t1, edge)
					if edge.Rows(t2)["k6"] == fmt.Sprint(i) {
						break
					}
				}
				a.all(edge)
				behind(false, "both are at one place")
				a.all(far, stays, leaves)
			})
		}
	}
}
