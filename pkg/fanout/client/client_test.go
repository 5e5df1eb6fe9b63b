package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

func column(r *engine.Record, i int) string {
	for j, c := range r.Row.Columns() {
		if j == i {
			return string(c.Value)
		}
	}
	return ""
}

// told is what a listener has been told.
type told struct {
	mu     sync.Mutex
	rows   map[string]string
	events []string
	wrong  []string
}

func (l *told) listen(old, fresh *engine.Record, at engine.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old != nil {
		if have := l.rows[column(old, 0)]; have != column(old, 1) {
			l.wrong = append(l.wrong, fmt.Sprintf("old %s=%s, and it was %s", column(old, 0), column(old, 1), have))
		}
		delete(l.rows, column(old, 0))
	}
	if fresh != nil {
		if old == nil && l.rows[column(fresh, 0)] != "" {
			l.wrong = append(l.wrong, fmt.Sprintf("%s is not new", column(fresh, 0)))
		}
		l.rows[column(fresh, 0)] = column(fresh, 1)
	}
	r := fresh
	if r == nil {
		r = old
	}
	l.events = append(l.events, fmt.Sprintf("%s@%s", column(r, 0), at))
}

func (l *told) take() (events, wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	events, wrong = l.events, l.wrong
	l.events, l.wrong = nil, nil
	return events, wrong
}

func newClient(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(append(opts, client.WithLogger(ft.Logger("client")))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClient(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(200, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	stop := writing(t, o, 200*time.Microsecond) // across the seam
	c := newClient(t, client.WithUpstreams(root.Address))
	l := &told{rows: map[string]string{}}
	end := c.ListenWithPosition(func(old, fresh *engine.Record, at engine.Position) {
		_ = c.LastSourcePosition() // the client may be asked from here
		if (fresh != nil && fresh.Schema.Table == table) || (old != nil && old.Schema.Table == table) {
			l.listen(old, fresh, at)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := c.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	stop()
	same := func() error {
		all, err := c.All(table)
		if err != nil {
			return err
		}
		rows := map[string]string{}
		for i := range all {
			rows[column(&all[i], 0)] = column(&all[i], 1)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if want := root.Rows(table); !maps.Equal(rows, want) || !maps.Equal(l.rows, want) {
			return fmt.Errorf("the client has %d rows, its listener %d, the node %d", len(rows), len(l.rows), len(want))
		}
		return nil
	}
	ft.Converged(t, o, table, root)
	ft.Eventually(t, 30*time.Second, same)
	if _, wrong := l.take(); len(wrong) > 0 {
		t.Errorf("the listener was told wrong: %v", wrong)
	}
	if cols := c.Columns()[table]; len(cols) != 2 || cols[0].Name != "id" || !cols[0].Key || cols[1].Key {
		t.Errorf("columns: %+v", cols)
	}
	if r, ok, err := c.Get(table, "k000007"); err != nil || !ok || column(&r, 1) != "baseline 7" {
		t.Errorf("%v %t %v", r, ok, err)
	}
	if _, ok, _ := c.Get(table, "nobody"); ok {
		t.Error("a row that is not there")
	}

	// Each change comes with the position of its own transaction.
	var want []string
	for i := range 50 {
		at := o.Write(ft.Change{Table: table, Key: fmt.Sprint("x", i), Value: "1"}, ft.Change{Table: table, Key: fmt.Sprint("y", i), Value: "1"})
		want = append(want, fmt.Sprintf("x%d@%s", i, at), fmt.Sprintf("y%d@%s", i, at))
	}
	ft.Converged(t, o, table, root)
	ft.Eventually(t, 30*time.Second, same)
	if events, wrong := l.take(); !slices.Equal(events, want) || wrong != nil {
		t.Errorf("told %v, want %v; wrong: %v", events, want, wrong)
	}
	if p := c.LastSourcePosition(); p != engine.Position(want[len(want)-1][4:]) {
		t.Errorf("the last position is %s", p)
	}

	// The node is started again: a new epoch, a new baseline, and the listener is
	// told only what is different.
	address := root.Address
	root.Stop()
	o.Write(ft.Change{Table: table, Key: "x1", Value: "2"}, ft.Change{Table: table, Key: "x2", Gone: true}, ft.Change{Table: table, Key: "x3", Value: "1"})
	root = ft.Start(t, "root", ft.Options{Address: address}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, root)
	ft.Eventually(t, 30*time.Second, same)
	events, wrong := l.take()
	for i, e := range events {
		events[i] = e[:2]
	}
	slices.Sort(events)
	if !slices.Equal(events, []string{"x1", "x2"}) || wrong != nil {
		t.Errorf("after a new baseline told %v; wrong: %v", events, wrong)
	}
	end()
	o.Put("z", "unheard")
	ft.Eventually(t, 30*time.Second, func() error {
		if _, ok, _ := c.Get(table, "z"); !ok {
			return errors.New("z is not there")
		}
		return nil
	})
	if events, _ := l.take(); len(events) > 0 {
		t.Errorf("told after the end: %v", events)
	}
}

func TestClientOfSomeTables(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(50, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	c := newClient(t, client.WithUpstreams(root.Address), client.WithTables(ft.Table("u")))
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := c.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		name := "t"
		if i%10 == 0 {
			name = "u"
		}
		o.Write(ft.Change{Table: ft.Table(name), Key: fmt.Sprint("n", i), Value: "x"},
			ft.Change{Table: ft.Table("t"), Key: fmt.Sprint("m", i), Value: "x"})
	}
	last := o.Write(ft.Change{Table: ft.Table("t"), Key: "last", Value: "x"})
	ft.Eventually(t, 30*time.Second, func() error {
		if p := c.LastSourcePosition(); p != last {
			return fmt.Errorf("the client is at %s, the origin at %s", p, last)
		}
		return nil
	})
	if n, err := c.All(ft.Table("u")); err != nil || len(n) != 80 {
		t.Errorf("%d rows of u, %v", len(n), err)
	}
	if n, _ := c.All(ft.Table("t")); len(n) != 0 {
		t.Errorf("%d rows of t, which was not asked for", len(n))
	}

	bad := newClient(t, client.WithUpstreams(root.Address), client.WithTables(ft.Table("nope")))
	ft.Eventually(t, 30*time.Second, func() error {
		for _, u := range bad.Status().Upstreams {
			if u.Error != "" {
				return nil
			}
		}
		return errors.New("nothing is wrong yet")
	})
	short, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := bad.AwaitReady(short)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
