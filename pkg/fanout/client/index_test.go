package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

// An index follows the rows: new, changed, deleted and truncated.
func TestIndex(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t")
	o.Put("k1", "red")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	table := ft.Table("t")
	ft.Converged(t, o, table, root)
	c := newClient(t, client.WithUpstreams(root.Address))
	if err := c.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	x, err := c.Index(table, "v")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	has := func(value string, want ...string) {
		t.Helper()
		ft.Eventually(t, 30*time.Second, func() error {
			rows, err := x.Lookup(value)
			if err != nil {
				return err
			}
			var got []string
			for i := range rows {
				id, _ := client.Text(&rows[i], "id")
				got = append(got, id)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%s has %v, want %v", value, got, want)
			}
			return nil
		})
	}
	has("red", "k1")
	o.Put("k2", "red")
	o.Put("k3", "blue")
	has("red", "k1", "k2")
	o.Put("k1", "blue")
	has("red", "k2")
	has("blue", "k1", "k3")
	o.Write(ft.Change{Table: table, Key: "k3", Gone: true})
	has("blue", "k1")
	o.Write(ft.Change{Table: table, Truncate: true})
	has("blue")
	has("red")
	if _, err := c.Index(table, "nope"); err == nil || !strings.Contains(err.Error(), `no column "nope"`) {
		t.Errorf("%v", err)
	}
	if _, err := x.Lookup("a", "b"); err == nil {
		t.Error("two values for one column")
	}
}

// A serving tier is restarted one after the other under writes: no reader takes
// a second baseline, and all end with every row.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(200, "t")
	table := ft.Table("t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	tier := make([]*ft.Node, 3)
	for i := range tier {
		tier[i], _ = ft.Child(t, fmt.Sprint("s", i), nil, root)
	}
	ft.Converged(t, o, table, tier...)
	readers := make([]*ft.Node, 6)
	for i := range readers {
		from := slices.Concat(tier[i%3:], tier[:i%3])
		readers[i], _ = ft.ChildWith(t, fmt.Sprint("r", i), ft.Options{Store: store.MemoryOptions{}}, nil, from...)
	}
	ft.Converged(t, o, table, readers...)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				o.Put(fmt.Sprintf("k%06d", i%300), fmt.Sprint("write ", i))
			}
		}
	}()
	for i, n := range tier {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		if err := n.Server.Drain(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		n.Stop()
		tier[i], _ = ft.ChildWith(t, n.ID, ft.Options{Address: n.Address}, nil, root)
		ft.Eventually(t, 30*time.Second, func() error {
			if !tier[i].Engine.Status().Ready {
				return fmt.Errorf("%s is not ready", n.ID)
			}
			return nil
		})
	}
	close(stop)
	<-done
	ft.Converged(t, o, table, readers...)
	for _, r := range readers {
		if got := r.Baselines(); got != 1 {
			t.Errorf("%s took %d baselines", r.ID, got)
		}
	}
}
