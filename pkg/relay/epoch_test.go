package relay_test

import (
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// A leaf loses all, and its clock is an hour behind what it was: its epoch sorts below
// the one before. What it has written when it learns that, is newer than all that is
// known of it: the roots come to hold it, and it alone.
func TestClockBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ again, twice bool }{
		"wiped":                      {},
		"wiped and restarted":        {again: true},
		"told twice":                 {twice: true}, // by two parents, of which the second knows more
		"told twice, once restarted": {again: true, twice: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ahead := func() time.Time { return time.Now().Add(time.Hour) }
			l := newLeafWith(t, "leaf", nil, true, ahead)
			cfg := relay.Config{Window: soon, Tables: map[engine.TableName]relay.Delivery{events: relay.All, hits: relay.Counted}}
			a := newRelay(t, "a", nil, cfg, l)
			root := newRelay(t, "root", nil, cfg, a)
			for i := range 10 {
				l.write(ingest.Put, readings, "leaf", l.id, "id", i, "v", 1)
				l.write(ingest.Put, events, "leaf", l.id, "id", i, "v", 1)
			}
			l.write(ingest.Add, hits, "page", "kept", "n", 5)
			l.write(ingest.Add, hits, "page", "ended", "n", 5)
			l.write(ingest.Add, hits, "page", "begun again", "n", 5)
			l.write(ingest.Delete, hits, "page", "begun again")
			was := l.Adverts()[0]
			want := union(l)
			root.until("it holds what the leaf holds", func() bool { return union(root) == want })
			l.end()

			st := store.NewMemory(store.MemoryOptions{})
			l = newLeafOver(t, "leaf", st)
			if l.own.Epoch >= was.Log.Epoch {
				t.Fatalf("epoch %d does not sort below %d", l.own.Epoch, was.Log.Epoch)
			}
			l.write(ingest.Put, readings, "leaf", l.id, "id", 3, "v", 2)
			l.write(ingest.Put, readings, "leaf", l.id, "id", 77, "v", 2)
			l.write(ingest.Put, events, "leaf", l.id, "id", 4, "v", 2)
			l.write(ingest.Delete, readings, "leaf", l.id, "id", 77)
			l.write(ingest.Add, hits, "page", "kept", "n", 1)
			l.write(ingest.Add, hits, "page", "ended", "n", 1)
			l.write(ingest.Delete, hits, "page", "ended")
			l.write(ingest.Add, hits, "page", "ended", "n", 2)
			l.write(ingest.Add, hits, "page", "begun again", "n", 3)
			l.write(ingest.Add, hits, "page", "ended before", "n", 3)
			l.write(ingest.Delete, hits, "page", "ended before")
			l.write(ingest.Add, hits, "page", "ended late", "n", 3)
			if c.again {
				l.end()
				l = newLeafOver(t, "leaf", st)
			}
			told := func(held engine.Time) {
				t.Helper()
				before := l.own.Epoch
				l.Witness("a", was.Log.Epoch, held)
				l.until("it has taken an epoch above", func() bool {
					return len(l.Adverts()) == 1 && l.Adverts()[0].Log.Epoch > max(was.Log.Epoch, before)
				})
				l.own = l.Adverts()[0].Log
				l.write(ingest.Add, hits, "page", "kept", "n", 1)
			}
			told(was.Time)
			l.write(ingest.Add, hits, "page", "ended before", "n", 4)
			l.write(ingest.Delete, hits, "page", "ended late")
			kept := "7.00"
			if c.twice {
				told(was.Time + engine.Time(10*time.Minute/time.Microsecond))
				kept = "8.00"
			}
			a.end()
			b := newRelay(t, "b", nil, cfg, l)
			root = root.again(func(id string, st engine.Store) *node { return newRelay(t, id, st, cfg, b) })
			b.until("it has read all", func() bool { return b.links[0].head() == l.Adverts()[0].Head })
			root.until("it has read all", func() bool { return root.links[0].head() == b.Adverts()[0].Head })
			v := root.View()
			defer v.Close()
			for page, total := range map[string]string{"kept": kept, "ended": "2.00", "begun again": "3.00", "ended before": "4.00", "ended late": ""} {
				c, ok, err := relay.CounterOf(v, hits, engine.AppendKeyValue(nil, page), []string{"n"})
				if err != nil || ok != (total != "") || ok && c.Totals[0] != total {
					t.Errorf("counter %s: %+v, %v; want %s", page, c, err, total)
				}
			}
			for _, table := range []engine.TableName{readings, events} {
				rows := map[string]string{}
				for _, n := range []*node{l, root} {
					v := n.View()
					err := v.Scan(table, nil, func(r *engine.Record) bool {
						if !r.Deleted {
							rows[n.id] += string(r.Key) + string(r.Row.Values()) + r.Stamp.String() + "\n"
						}
						return true
					})
					v.Close()
					if err != nil {
						t.Fatal(err)
					}
				}
				if rows[l.id] != rows[root.id] || rows[l.id] == "" {
					t.Errorf("table %s: the root holds\n%q, and the leaf\n%q", table, rows[root.id], rows[l.id])
				}
			}
		})
	}
}
