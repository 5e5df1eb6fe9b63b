package fanout_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/sources/fanout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A node with two upstreams serves on what they serve, and moves between them
// without a baseline.
func TestSource(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(300, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	p1, _ := ft.Child(t, "p1", nil, root)
	p2, _ := ft.Child(t, "p2", nil, root)
	ft.Converged(t, o, ft.Table("t"), p1, p2)
	s, err := fanout.New("leaf", "up", []string{p1.Address, p2.Address}, fanout.WithTables(ft.Table("t")), fanout.WithSoftware("test"))
	if err != nil {
		t.Fatal(err)
	}
	leaf := ft.Start(t, "leaf", ft.Options{}, map[string]engine.SyncSource{"up": s})
	ft.Converged(t, o, ft.Table("t"), leaf)
	p1.Stop()
	var last engine.Position
	for i := range 200 {
		last = o.Put(fmt.Sprint("k", i), "v")
	}
	ft.Converged(t, o, ft.Table("t"), leaf)
	if n := leaf.Baselines(); n != 1 {
		t.Errorf("%d baselines", n)
	}
	if rows := leaf.Rows(ft.Table("u")); len(rows) != 0 {
		t.Errorf("%d rows of a table that was not asked for", len(rows))
	}
	log := leaf.Engine.Adverts()[0].Log
	ft.Eventually(t, 5*time.Second, func() error {
		if at := s.LastAckedPosition(log); at != last {
			return fmt.Errorf("acked %s, written %s", at, last)
		}
		for _, a := range p2.Engine.Status().Readers {
			if a.Reader == "leaf/up" && a.At == last && !a.Durable {
				return nil
			}
		}
		return fmt.Errorf("p2 does not know how far its reader is: %+v", p2.Engine.Status().Readers)
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	s, err := fanout.New("n", "up", nil, fanout.WithPositionComparator(engine.CompareNumber), fanout.WithOrderingGuarantee(engine.PerLogOrder))
	if err != nil {
		t.Fatal(err)
	}
	if s.ComparePositions("9", "10") >= 0 || s.ComparePositions("", "1") >= 0 || s.OrderingGuarantee() != engine.PerLogOrder || !s.SupportsResume() {
		t.Error("the options are not taken")
	}
	if p, err := s.PositionFromString("17"); err != nil || s.PositionToString(p) != "17" {
		t.Errorf("%q %v", p, err)
	}
	d, err := fanout.New("n", "up", nil)
	if err != nil {
		t.Fatal(err)
	}
	if d.ComparePositions("1/0", "0/FFFFFFFF") <= 0 || d.ComparePositions("", "0/0") >= 0 || d.OrderingGuarantee() != engine.TotalOrder {
		t.Error("the defaults are not PostgreSQL's")
	}
	for _, bad := range []string{"", "17", "x/y"} {
		if _, err := d.PositionFromString(bad); err == nil {
			t.Errorf("%q was taken for a position", bad)
		}
	}
	if _, err := fanout.New("", "up", nil); err == nil {
		t.Error("a source of no node")
	}
}

// A source without upstreams waits for them.
func TestNoUpstreams(t *testing.T) {
	t.Parallel()
	s, err := fanout.New("n", "up", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Init(ctx, engine.Env{}); err == nil || ctx.Err() == nil {
		t.Errorf("%v", err)
	}
}

func ExampleNew() {
	s, err := fanout.New("edge-7", "region", []string{"region-a.example:7400", "region-b.example:7400"})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.OrderingGuarantee())
	// An engine takes it with AddSource("region", s, engine.Keep{}) and runs it.
	// Output: Total
}
