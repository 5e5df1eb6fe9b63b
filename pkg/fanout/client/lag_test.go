package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

// Lag is that behind the origin, over any number of hops: 0 only while it is heard
// of, unknown where it is not, and counted in changes.
func TestLagDownTheTree(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(10, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	mid, midSource := ft.Child(t, "mid", nil, root)
	leaf, _ := ft.Child(t, "leaf", nil, mid)
	all := []*ft.Node{root, mid, leaf}
	lag := func(what string, ok func(engine.Lag) bool, nodes ...*ft.Node) {
		t.Helper()
		for _, n := range nodes {
			ft.Eventually(t, 30*time.Second, func() error {
				for _, l := range n.Engine.Status().Logs {
					if ok(l.Lag) {
						return nil
					}
					return fmt.Errorf("%s: the lag of %s is %+v", what, n.ID, l.Lag)
				}
				return fmt.Errorf("%s: %s has no log", what, n.ID)
			})
		}
	}
	none := func(l engine.Lag) bool { return l == engine.Lag{Known: true, CountKnown: true} }
	lag("caught up", none, all...)
	o.Put("a", "1")
	ft.Converged(t, o, ft.Table("t"), all...)
	lag("caught up again", none, all...)

	o.SetDown(true)
	lag("the database is down", func(l engine.Lag) bool { return !l.Known }, all...)
	o.SetDown(false)
	lag("it is back", none, all...)

	midSource.Pause()
	for i := range 7 {
		o.Put(fmt.Sprint("b", i), "1")
	}
	time.Sleep(1200 * time.Millisecond)
	behind := func(l engine.Lag) bool {
		return l.Known && l.Seconds > 1 && l.Seconds < 10 && l.CountKnown && l.Changes == 7
	}
	lag("mid is paused", behind, mid, leaf)
	midSource.Resume()
	lag("and goes on", none, all...)
}
