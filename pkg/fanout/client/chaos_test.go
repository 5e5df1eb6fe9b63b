package client_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

// Parents come and go in turn while transactions of all sizes are written, some
// of them larger than a frame: the leaf ends with the origin's rows, and a
// restart seldom costs it a baseline.
func TestCaseR17(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	o := ft.NewOrigin(500, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	parent := func(id, address string) *ft.Node {
		edges := &client.Edges{}
		s := ft.Source(t, id, func(c *client.Config) { c.Edges = edges }, root)
		return ft.StartWith(t, id, ft.Options{Address: address}, edges, map[string]engine.SyncSource{"up": s})
	}
	parents := []*ft.Node{parent("p0", ""), parent("p1", "")}
	ft.Converged(t, o, table, parents...)
	leaf, _ := ft.Child(t, "leaf", func(c *client.Config) {
		c.Policy = client.Policy{RecoverAfter: 200 * time.Millisecond, MaxSwitchesPerHour: 1000}
		c.Buffer = 1
	}, parents...)
	ft.Converged(t, o, table, leaf)
	stop := make(chan struct{})
	written := make(chan struct{})
	go func() {
		defer close(written)
		rnd := rand.New(rand.NewPCG(seed, 1))
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			n, size := 1+rnd.IntN(5), 20
			if i%40 == 0 { // parts
				n, size = 200, 2000
			}
			var tx []ft.Change
			for range n {
				name := []string{"t", "u"}[rnd.IntN(2)]
				tx = append(tx, ft.Change{Table: ft.Table(name), Key: fmt.Sprintf("k%06d", rnd.IntN(2000)), Value: strings.Repeat("v", size) + fmt.Sprint(i), Gone: rnd.IntN(5) == 0})
			}
			o.Write(tx...)
			time.Sleep(time.Millisecond)
		}
	}()
	for i := range 6 {
		n := parents[i%2]
		time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
		n.Stop()
		time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
		parents[i%2] = parent(n.ID, n.Address)
		ft.Eventually(t, 30*time.Second, func() error {
			if parents[i%2].Baselines() == 0 {
				return fmt.Errorf("%s is not back: %+v", n.ID, parents[i%2].Engine.Status().Sources)
			}
			// Its log begins at its baseline: a leaf that has not got that far by way
			// of the other parent could only take a snapshot from it.
			from, have := parents[i%2].Engine.Status().Logs[0].Oldest, leaf.Engine.Status().Logs[0].Head
			if engine.CompareLSN(have, from) < 0 {
				return fmt.Errorf("the leaf is at %s, before %s", have, from)
			}
			return nil
		})
	}
	close(stop)
	<-written
	ft.Converged(t, o, table, root, parents[0], parents[1], leaf)
	ft.Converged(t, o, ft.Table("u"), leaf)
	// A parent with the memory store holds its log from its own baseline on. A leaf
	// that is pushed there before it has got that far takes a snapshot: seldom, since
	// it looks for another parent first.
	if n := leaf.Baselines(); n > 4 {
		t.Errorf("%d baselines at the leaf for 6 restarts of its parents; %+v", n, leaf.Engine.Status().Sources)
	}
}

func BenchmarkHop(b *testing.B) {
	o := ft.NewOrigin(0, "t")
	root := ft.Start(b, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	leaf, _ := ft.Child(b, "leaf", nil, root)
	ft.Converged(b, o, table, leaf)
	tx := make([]ft.Change, 10)
	for i := range tx {
		tx[i] = ft.Change{Table: table, Value: strings.Repeat("v", 100)}
	}
	var last engine.Position
	n := 0
	b.ReportAllocs()
	start := time.Now()
	for b.Loop() {
		for i := range tx {
			tx[i].Key = fmt.Sprintf("k%06d", (n*10+i)%50_000)
		}
		last = o.Write(append([]ft.Change(nil), tx...)...)
		n++
	}
	ft.Eventually(b, time.Minute, func() error {
		for _, l := range leaf.Engine.Status().Logs {
			if l.Head == last {
				return nil
			}
		}
		return fmt.Errorf("not there yet")
	})
	b.ReportMetric(float64(n*10)/time.Since(start).Seconds(), "changes/s")
}
