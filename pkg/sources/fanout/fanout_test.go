package fanout_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/sourcetest"
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
	ft.Eventually(t, 30*time.Second, func() error {
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

// The suite that every source passes.
func TestSuite(t *testing.T) {
	tables := []engine.TableName{ft.Table("t"), ft.Table("u")}
	sourcetest.Run(t, func(t testing.TB) sourcetest.Fixture {
		o := ft.NewOrigin(50, "t", "u")
		root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
		ft.Converged(t, o, tables[0], root)
		s, err := fanout.New("suite", "source", []string{root.Address})
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		return sourcetest.Fixture{
			Source: s,
			Mutate: func(n int) {
				for n > 0 {
					var tx []ft.Change
					for range min(n, 1+rnd.IntN(20)) {
						c := ft.Change{Table: tables[rnd.IntN(2)], Key: fmt.Sprint("k", rnd.IntN(3000)), Value: fmt.Sprint("v", rnd.Int()), Gone: rnd.IntN(6) == 0}
						if rnd.IntN(2000) == 0 {
							c = ft.Change{Table: c.Table, Truncate: true}
						}
						tx = append(tx, c)
					}
					n -= len(tx)
					o.Write(tx...)
				}
			},
			Truth: func() sourcetest.Rows {
				rows := sourcetest.Rows{}
				for _, table := range tables {
					for k, v := range o.Rows(table) {
						rows[table] = append(rows[table], sourcetest.Row(&k, &v))
					}
				}
				return rows
			},
			Lose: func() { // the node starts anew: nothing proves what it had served
				address := root.Address
				root.Stop()
				root = ft.Start(t, "root", ft.Options{Address: address}, map[string]engine.SyncSource{"pg": o})
			},
		}
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
