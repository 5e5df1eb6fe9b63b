package archive_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	source "github.com/tributary-dev/tributary/pkg/sources/archive"
)

// A writer begins a generation with each pass and takes the one before away, while a node reads slowly: it gets there all the
// same, also one that begins meanwhile.
func TestPrunedWhileFollowed(t *testing.T) {
	t.Parallel()
	o, root := served(t, 300)
	var passed atomic.Int64
	w := exporter(t, root, t.TempDir(), func(c *export.Config) {
		c.Retention = archive.Retention{Generations: 1, Grace: time.Nanosecond}
		c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load()) * 24 * time.Hour) }
	})
	w.once(t)
	slow := func(c *source.Config) {
		for i := range c.Tables {
			d, err := local.New(w.folder)
			if err != nil {
				t.Fatal(err)
			}
			r, err := archive.NewReader(archive.ReaderConfig{Prefix: prefix(c.Tables[i].Name), Table: c.Tables[i].Name, Destination: hooked{d, func() { time.Sleep(5 * time.Millisecond) }}})
			if err != nil {
				t.Fatal(err)
			}
			c.Tables[i].Reader = r
		}
	}
	start := func(id string) *ft.Node {
		return ft.Start(t, id, ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, slow, t1, t2)})
	}
	nodes := []*ft.Node{start("first")}
	rnd := rand.New(rand.NewPCG(5, 5))
	for i := range 40 {
		mutate(o, rnd, 20)
		ft.Converged(t, o, t1, root)
		ft.Converged(t, o, t2, root)
		passed.Add(1)
		if err := w.Once(context.Background(), i%3 > 0); err != nil {
			t.Fatal(err)
		}
		if i%10 == 5 {
			nodes = append(nodes, start(fmt.Sprint("later", i)))
		}
		time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond)
	}
	for _, n := range nodes {
		ft.Converged(t, o, t1, n)
		ft.Converged(t, o, t2, n)
	}
	if st := w.Status(); st.State != export.StateStreaming || st.Tables[t1].Artifacts > 3 {
		t.Errorf("nothing was taken away: %+v", st.Tables[t1])
	}
}
