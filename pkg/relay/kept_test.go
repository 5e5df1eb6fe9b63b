package relay_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// A relay with a table of which every change is delivered keeps its log until all
// registered roots have it: of each, its newest life counts.
func TestKept(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, "leaf")
	a := newRelay(t, "a", nil, relay.Config{Window: -1}, l)
	log := a.relay.Log()
	kept := func(what string, want engine.Position, wantOK bool) {
		t.Helper()
		if at, ok := a.relay.Kept(log); at != want || ok != wantOK {
			t.Errorf("%s: kept above %q (%v), want %q (%v)", what, at, ok, want, wantOK)
		}
	}
	ack := func(holder string, at engine.Position) {
		t.Helper()
		if err := a.relay.Ack(holder, at); err != nil {
			t.Fatal(err)
		}
	}
	kept("nobody has said who is above", "", true)
	for i := range 5 {
		l.write(ingest.Put, events, "leaf", l.id, "id", i, "v", 0)
	}
	want := union(l)
	a.until("it holds what the leaf holds", func() bool { return union(a) == want })
	head := a.Adverts()[0].Head
	a.relay.SetRoots([]string{"r/one", "r/two"})
	ack("r/one@1", head)
	kept("of a root nothing is known", "", true)
	ack("r/two@1", relay.Position(2))
	kept("a root is behind", relay.Position(2), true)
	if all := a.relay.RootsHave(); len(all) != 2 || all[0].Root != "r/two" || all[1].At != head {
		t.Errorf("the roots have %+v", all)
	}
	ack("r/two@1", head)
	kept("both have it", head, true)
	ack("r/one@2", "")
	kept("a root has come back empty", "", true)
	a.relay.SetRoots([]string{"r/two"})
	kept("it is unregistered", head, true)
	a.relay.SetRoots(nil)
	kept("no root is registered", "", false)
	if _, ok := a.relay.Kept(l.own); ok {
		t.Error("a child's log is kept")
	}
	b := newRelay(t, "b", nil, relay.Config{Window: -1, Tables: map[engine.TableName]relay.Delivery{readings: relay.Latest}}, l)
	if _, ok := b.relay.Kept(b.relay.Log()); ok {
		t.Error("a log is kept of which each row is delivered once")
	}
}

// Tables that are configured are offered before they have a row, so that a reader
// that asks for one waits for it at the relay.
func TestOffered(t *testing.T) {
	t.Parallel()
	a := newRelay(t, "a", nil, relay.Config{Window: -1, Tables: map[engine.TableName]relay.Delivery{readings: relay.Latest, events: relay.All}})
	ads := a.Adverts()
	if len(ads) != 1 || !slices.Equal(ads[0].Tables, []engine.TableName{events, readings}) {
		t.Errorf("the relay offers %+v", ads)
	}
}

// When a relay's log is as much as it may be, and a root has yet to have it, it takes no
// more in; or the oldest goes, and it is known up to where.
func TestRelayFull(t *testing.T) {
	t.Parallel()
	for _, on := range []engine.OnFull{engine.OnFullBlock, engine.OnFullRebaseline} {
		t.Run(string(on), func(t *testing.T) {
			t.Parallel()
			l := newLeaf(t, "leaf")
			a := &node{t: t, id: "a", store: store.NewMemory(store.MemoryOptions{})}
			var err error
			if a.relay, err = relay.New(relay.Config{Window: -1, Tables: map[engine.TableName]relay.Delivery{events: relay.All}}); err != nil {
				t.Fatal(err)
			}
			a.relay.SetRoots([]string{"root"})
			a.Engine = engine.New(engine.Options{
				NodeID: a.id, Store: a.store, Logger: slog.New(slog.DiscardHandler),
				Retention: engine.Retention{Bytes: 5_000, MaxBytes: 10_000, OnFull: on, Stable: a.relay.Kept},
			})
			if a.own, err = a.Record(context.Background(), "relay", a.relay); err != nil {
				t.Fatal(err)
			}
			a.reads(l, a.relay)
			a.start()
			bytes := func() int {
				v := a.View()
				defer v.Close()
				info, _ := v.Log(a.own)
				return info.Bytes
			}
			trim := func() {
				if err := a.Trim(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			n := 0
			write := func() {
				l.write(ingest.Put, events, "leaf", l.id, "id", n, "v", n)
				n++
			}
			a.until("its log is full", func() bool { write(); return bytes() > 10_000 })
			trim()
			v := a.View()
			gone := engine.Gone(v, a.own)
			v.Close()
			if full := a.Status().Full != nil; full != (on == engine.OnFullBlock) || (gone == "") != full {
				t.Fatalf("full: %v; gone up to %q", full, gone)
			}
			if on == engine.OnFullRebaseline {
				if bytes() > 10_000 {
					t.Errorf("the log holds %d bytes", bytes())
				}
				return
			}
			for range 20 {
				write()
			}
			want := union(l)
			time.Sleep(200 * time.Millisecond)
			if union(a) == want {
				t.Error("a relay that is full has taken all in")
			}
			if err := a.relay.Ack("root@1", a.Adverts()[0].Head); err != nil {
				t.Fatal(err)
			}
			trim()
			a.until("it goes on", func() bool { trim(); _ = a.relay.Ack("root@1", a.Adverts()[0].Head); return union(a) == want })
		})
	}
}
