package server_test

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// arrivals are the times at which leaves dial.
type arrivals []arrival

type arrival struct {
	at    time.Time
	leaf  int
	tries int
}

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)        { *a = append(*a, x.(arrival)) }
func (a *arrivals) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

type nowhere struct{}

func (nowhere) SendMsg(any) error { return nil }

// Case R20: ten thousand leaves come back within a second. They are admitted at a
// bounded rate, each of the others is told when to come, and comes once more.
func TestStorm(t *testing.T) {
	t.Parallel()
	const leaves, rate = 10_000, 500
	now := time.Unix(1_000_000, 0)
	e := engine.New(engine.Options{NodeID: "parent", Store: store.NewMemory(store.MemoryOptions{}), Logger: ft.Logger("parent")})
	halves := server.NewHalves(server.Config{Host: e, Logger: ft.Logger("parent"), AdmitRate: rate, Now: func() time.Time { return now }})
	var due arrivals
	r := rand.New(rand.NewPCG(1, 2))
	for i := range leaves {
		due = append(due, arrival{at: now.Add(rand.N(time.Second)), leaf: i})
	}
	heap.Init(&due)
	began := now
	perSecond := map[int64]int{}
	var open []*server.Half
	most := 0
	for len(due) > 0 {
		a := heap.Pop(&due).(arrival)
		now = a.at
		a.tries++
		most = max(most, a.tries)
		stream := session.NewSender(nowhere{})
		h, err := halves.Begin(stream, session.Caller{NodeID: fmt.Sprint("leaf-", a.leaf), Address: fmt.Sprintf("10.%d.%d.1:7400", a.leaf/256, a.leaf%256)}, false)
		if err != nil {
			var se *session.Error
			if !errors.As(err, &se) || se.RetryAfter <= 0 {
				t.Fatalf("leaf %d is turned away without a time to come back: %v", a.leaf, err)
			}
			a.at = now.Add(se.RetryAfter + time.Duration(r.Int64N(int64(50*time.Millisecond))))
			heap.Push(&due, a)
			continue
		}
		if err := h.Frame(&wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: fmt.Sprint("leaf-", a.leaf)}}}); err != nil {
			t.Fatal(err)
		}
		open = append(open, h)
		perSecond[int64(now.Sub(began)/time.Second)]++
	}
	for _, h := range open {
		h.Close()
	}
	if len(open) != leaves {
		t.Errorf("%d of %d leaves are attached", len(open), leaves)
	}
	for s, n := range perSecond {
		if n > 3*rate {
			t.Errorf("%d leaves were let in in second %d, at a rate of %d", n, s, rate)
		}
	}
	if took := now.Sub(began); took > leaves/rate*time.Second+5*time.Second {
		t.Errorf("the last leaf was let in after %s", took)
	}
	if most > 4 {
		t.Errorf("a leaf had to come %d times", most)
	}
	t.Logf("%d leaves within %s; at most %d attempts", leaves, now.Sub(began), most)
}
