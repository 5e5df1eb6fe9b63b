package client_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
)

// wide returns rows of n keys that take about size bytes in all.
func wide(name string, n, size int) map[string]string {
	rows := map[string]string{}
	for i := range n {
		rows[fmt.Sprintf("%s%06d", name, i)] = fmt.Sprint(i, strings.Repeat(name, size/n))
	}
	return rows
}

// A table that joins a running node comes to its children alone, whatever it brings,
// in memory and on disk, several hops down, and to an application.
func TestTableJoinsAlone(t *testing.T) {
	for name, size := range map[string]int{"large": 12 << 20, "small": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "large" && testing.Short() {
				t.Skip("it moves 100 MiB")
			}
			o := ft.NewOrigin(0, "t")
			root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
			tables := []engine.TableName{ft.Table("t"), ft.Table("u")}
			for k, v := range wide("t", 1000, 8<<20) {
				o.Put(k, v)
			}
			ft.Converged(t, o, tables[0], root)

			disk, err := store.OpenPebble(store.PebbleOptions{Dir: filepath.Join(t.TempDir(), "store")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = disk.Close() })
			mid, midSource := ft.Child(t, "mid", nil, root)
			kept, keptSource := ft.ChildWith(t, "kept", ft.Options{Use: disk}, nil, root)
			leaf, leafSource := ft.Child(t, "leaf", nil, mid)
			some, someSource := ft.Child(t, "some", func(c *client.Config) { c.Scope = scope.Tables(tables...) }, kept)
			all := []*ft.Node{mid, kept, leaf, some}
			sources := []*client.Source{midSource, keptSource, leafSource, someSource}
			ft.Converged(t, o, tables[0], all...)

			app := newClient(t, client.WithUpstreams(leaf.Address))
			count := func(table engine.TableName) int {
				rows, _ := app.All(table)
				return len(rows)
			}
			ft.Eventually(t, 30*time.Second, func() error {
				if n := count(tables[0]); n != 1000 {
					return fmt.Errorf("%d rows", n)
				}
				return nil
			})
			told := map[engine.TableName]int{}
			app.Listen(func(old, fresh *engine.Record) {
				r := fresh
				if r == nil {
					r = old
				}
				told[r.Schema.Table]++
			})
			bytes := func(s *client.Source) (n int64, snapshots int64) {
				for _, l := range s.Status().Logs {
					n, snapshots = n+l.Counts.Bytes, snapshots+l.Counts.Snapshots
				}
				return n, snapshots
			}
			var before [4]int64
			for i, s := range sources {
				before[i], _ = bytes(s)
			}

			done := make(chan struct{})
			go func() { // the others go on
				defer close(done)
				for i := range 200 {
					o.Put(fmt.Sprint("t", i), "again")
					if i == 100 {
						o.Add(tables[1], wide("u", 1000, size))
					}
					time.Sleep(time.Millisecond)
				}
			}()
			<-done
			for _, table := range tables {
				ft.Converged(t, o, table, all...)
			}
			ft.Eventually(t, 30*time.Second, func() error {
				if n := count(tables[1]); n != 1000 {
					return fmt.Errorf("the application has %d rows of the table that joins", n)
				}
				if n, want := count(tables[0]), len(o.Rows(tables[0])); n != want {
					return fmt.Errorf("the application has %d rows of the other table, want %d", n, want)
				}
				return nil
			})
			for i, s := range sources {
				n, snapshots := bytes(s)
				if n -= before[i]; snapshots != 1 || n > int64(size)*5/4+1<<20 {
					t.Errorf("%s: %d snapshots; %d bytes have come for a table of %d", all[i].ID, snapshots, n, size)
				}
				if n := all[i].Baselines(); n != 1 {
					t.Errorf("%s has taken %d baselines", all[i].ID, n)
				}
			}
			n, snapshots := int64(0), int64(0)
			for _, l := range app.Status().Logs {
				n, snapshots = n+l.Counts.Bytes, snapshots+l.Counts.Snapshots
			}
			if snapshots != 1 || n > int64(size)*5/4+10<<20 {
				t.Errorf("the application has taken %d snapshots, and %d bytes", snapshots, n)
			}
			app.Close()
			if told[tables[0]] != 200 || told[tables[1]] != 1000 {
				t.Errorf("the listener was told %v", told)
			}
		})
	}
}
