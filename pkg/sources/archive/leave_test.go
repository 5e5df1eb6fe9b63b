package archive_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// older is a node's server as one of an older version: neither it nor its readers know that tables can be behind.
type older struct {
	wirepb.UnimplementedReplicationServer
	to wirepb.ReplicationClient
}

// asOlder returns the address of a node as one of an older version.
func asOlder(t *testing.T, n *ft.Node) string {
	t.Helper()
	conn, err := grpc.NewClient(n.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	wirepb.RegisterReplicationServer(s, older{to: wirepb.NewReplicationClient(conn)})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func (o older) Session(down grpc.BidiStreamingServer[wirepb.Frame, wirepb.Frame]) error {
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	up, err := o.to.Session(ctx)
	if err != nil {
		return err
	}
	pass := func(from func() (*wirepb.Frame, error), to func(*wirepb.Frame) error) error {
		for {
			f, err := from()
			if err != nil {
				return err
			}
			if h := f.GetHello(); h != nil {
				h.Capabilities = slices.DeleteFunc(h.Capabilities, func(c string) bool { return c == session.CapBehind })
			}
			if f.GetBehind() != nil || len(f.GetSubscribe().GetBehind()) > 0 || len(f.GetSubscribed().GetFresh()) > 0 {
				return fmt.Errorf("an older version does not know %v", f)
			}
			if err := to(f); err != nil {
				return err
			}
		}
	}
	failed := make(chan error, 2)
	go func() { failed <- pass(down.Recv, up.Send) }()
	go func() { failed <- pass(up.Recv, down.Send) }()
	return <-failed
}

const waitFor = 30 * time.Second

// lacks checks that nodes do not have yet what the second table's archive lacks: else the test would show nothing.
func (a *apart) lacks(nodes ...*ft.Node) {
	a.t.Helper()
	for _, n := range nodes {
		ft.Converged(a.t, a.o, t1, n)
		if n.Rows(t2)["k1"] == "below the cursor of t" {
			a.t.Fatalf("node %s is not behind", n.ID)
		}
	}
}

func (a *apart) all(nodes ...*ft.Node) {
	a.t.Helper()
	ft.Converged(a.t, a.o, t1, nodes...)
	ft.Converged(a.t, a.o, t2, nodes...)
}

func upstreams(addresses ...string) func(*client.Config) {
	return func(c *client.Config) { c.Upstreams = addresses }
}

// baselined returns how many baselines a reader has taken, and of how many tables alone.
func baselined(n *ft.Node) (all, tables int) {
	s := n.Engine.Status().Sources[0]
	return s.Baselines, s.TableBaselines
}

// A reader that leaves a node of which a table is behind has that table caught up by where it goes. So do readers
// of that reader, whether they go too or stay.
func TestLeavesWhileBehind(t *testing.T) {
	t.Parallel()
	for _, more := range []bool{false, true} { // has been written since where the reader is
		for _, old := range []bool{false, true} { // is where it goes to
			run := func(name string, test func(t *testing.T, a *apart, edge *ft.Node, to string)) {
				t.Run(fmt.Sprintf("%s/more=%v/old=%v", name, more, old), func(t *testing.T) {
					t.Parallel()
					a := newBehind(t)
					edge := a.node(nil)
					ft.Converged(t, a.o, t1, edge)
					if more {
						a.write(t1, "k7", "is not archived")
					}
					to := a.root.Address
					if old {
						to = asOlder(t, a.root)
					}
					test(t, a, edge, to)
				})
			}
			at := func(a *apart, edge *ft.Node, readers ...*ft.Node) {
				a.t.Helper()
				want := edge.Digest(t1)
				for _, n := range append(readers, edge) {
					ft.Eventually(a.t, waitFor, func() error {
						if have := n.Digest(t1); have != want {
							return fmt.Errorf("node %s has %s, the edge %s", n.ID, have, want)
						}
						return nil
					})
					if n.Rows(t2)["k1"] == "below the cursor of t" {
						a.t.Fatalf("node %s is not behind", n.ID)
					}
				}
			}
			run("moves", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				reader, src := ft.Child(t, "reader", nil, edge)
				at(a, edge, reader)
				src.SetUpstreams([]string{to}, client.Policy{})
				a.all(reader)
				if all, tables := baselined(reader); all != 1 || tables != 1 {
					t.Errorf("%d baselines, and of %d tables alone", all, tables)
				}
			})
			run("moves with the table alone", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				reader, src := ft.Child(t, "reader", func(c *client.Config) { c.Scope = scope.Tables(t2) }, edge)
				ft.Eventually(t, waitFor, func() error {
					if len(reader.Rows(t2)) == 0 {
						return fmt.Errorf("it has nothing")
					}
					return nil
				})
				src.SetUpstreams([]string{to}, client.Policy{})
				ft.Converged(t, a.o, t2, reader)
			})
			run("restarts", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				disk := ft.Durable(t)
				reader, _ := ft.ChildWith(t, "reader", ft.Options{Use: disk}, nil, edge)
				at(a, edge, reader)
				reader.Stop()
				reader, _ = ft.ChildWith(t, "reader", ft.Options{Use: disk}, upstreams(to))
				a.all(reader)
				if all, tables := baselined(reader); all != 0 || tables != 1 {
					t.Errorf("%d baselines, and of %d tables alone", all, tables)
				}
			})
			run("restarts with one cursor for all logs", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				disk := ft.Durable(t)
				reader, _ := ft.ChildWith(t, "reader", ft.Options{Use: disk}, nil, edge)
				at(a, edge, reader)
				reader.Stop()
				reader, _ = ft.ChildWith(t, "reader", ft.Options{Use: disk}, func(c *client.Config) { c.Upstreams, c.Basic = []string{to}, true })
				a.all(reader)
				a.write(t2, "k9", "goes on")
				a.all(reader)
				if all, _ := baselined(reader); all != 1 {
					t.Errorf("%d baselines", all)
				}
			})
			run("the second hop stays", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				mid, src := ft.Child(t, "mid", nil, edge)
				deep, _ := ft.Child(t, "deep", nil, mid)
				at(a, edge, mid, deep)
				src.SetUpstreams([]string{to}, client.Policy{})
				a.all(mid, deep)
			})
			run("the second hop moves", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				mid, _ := ft.Child(t, "mid", nil, edge)
				deep, src := ft.Child(t, "deep", nil, mid)
				at(a, edge, mid, deep)
				src.SetUpstreams([]string{to}, client.Policy{})
				a.all(deep)
				if all, tables := baselined(deep); all != 1 || tables != 1 {
					t.Errorf("%d baselines, and of %d tables alone", all, tables)
				}
			})
			run("the second hop is away", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				mid, src := ft.ChildWith(t, "mid", ft.Options{Store: store.MemoryOptions{JournalBytes: 2 << 10}}, nil, edge)
				deep, _ := ft.Child(t, "deep", nil, mid)
				at(a, edge, mid, deep)
				deep.Stop()
				src.SetUpstreams([]string{to}, client.Policy{})
				a.all(mid)
				for range 20 {
					a.o.Write(ft.Change{Table: t1, Key: "k1", Value: strings.Repeat("much", 100)})
				}
				a.all(mid)
				deep, _ = ft.ChildWith(t, "deep", ft.Options{Use: deep.Store}, nil, mid)
				a.all(deep)
			})
			run("goes and comes back", func(t *testing.T, a *apart, edge *ft.Node, to string) {
				reader, src := ft.Child(t, "reader", nil, edge)
				at(a, edge, reader)
				src.SetUpstreams([]string{to}, client.Policy{})
				a.all(reader)
				src.SetUpstreams([]string{edge.Address}, client.Policy{})
				a.write(t1, "k8", "moves the cursor")
				a.archive(t1)
				a.show(t1)
				a.all(reader)
				a.archive(t2)
				a.show(t2)
				a.write(t2, "k8", "moves it again")
				a.archive(t2)
				a.show(t2)
				a.all(edge, reader)
			})
		}
	}
}

// A reader that comes back to the node goes on in its log, however far the tables have come since; as does one that was
// never behind.
func TestComesBackWhileBehind(t *testing.T) {
	t.Parallel()
	a := newBehind(t)
	disk, kept := ft.Durable(t), ft.Durable(t)
	edge := a.node(disk)
	a.lacks(edge)
	reader, _ := ft.ChildWith(t, "reader", ft.Options{Use: kept}, nil, edge)
	a.lacks(reader)
	never, _ := ft.ChildWith(t, "never", ft.Options{}, nil, a.root)
	a.all(never)
	again := func() {
		t.Helper()
		reader, _ = ft.ChildWith(t, "reader", ft.Options{Use: kept}, nil, edge)
		never, _ = ft.ChildWith(t, "never", ft.Options{Use: never.Store}, nil, edge)
	}
	check := func() {
		t.Helper()
		for _, n := range []*ft.Node{reader, never} {
			if all, tables := baselined(n); all != 0 || tables != 0 {
				t.Errorf("node %s: %d baselines, and of %d tables alone", n.ID, all, tables)
			}
		}
	}
	reader.Stop()
	never.Stop()
	again()
	for i := range 6 {
		table := []engine.TableName{t1, t1, t2}[i%3]
		reader.Stop()
		never.Stop()
		a.show(t2) // to a place before the cursor
		a.write(t2, "k1", fmt.Sprint("below ", i))
		a.write(t1, "k1", fmt.Sprint("above ", i))
		a.archive(table)
		a.show(table)
		ft.Eventually(t, waitFor, func() error {
			if have := edge.Rows(table)["k1"]; !strings.HasSuffix(have, fmt.Sprint(" ", i)) {
				return fmt.Errorf("%d: the edge has %q", i, have)
			}
			return nil
		})
		if i == 3 {
			edge.Stop()
			edge = a.node(disk)
		}
		again()
		for _, n := range []*ft.Node{reader, never} {
			ft.Converged(t, a.o, table, n)
		}
		check()
	}
	a.archive(t1)
	a.archive(t2)
	a.show(t1)
	a.show(t2)
	a.write(t1, "k2", "last")
	a.archive(t1)
	a.show(t1)
	a.all(edge, reader, never)
	check()
}
