package server_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
)

// where is the scope of table t of rows whose value starts with a prefix.
func where(t testing.TB, prefix string, columns ...string) *scope.Scope {
	t.Helper()
	s, err := scope.New(scope.Table{Name: table, Columns: columns, Where: []scope.Condition{{Column: "v", Op: scope.Prefix, Values: []string{prefix}}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// scoped lets a reader read a scope.
func scoped(s *scope.Scope) func(*client.Config) {
	return func(c *client.Config) { c.Scope = s }
}

// holds waits until a node has exactly the rows of the origin that pass.
func holds(t *testing.T, o *ft.Origin, n *ft.Node, passes func(k, v string) bool) {
	t.Helper()
	ft.Eventually(t, 30*time.Second, func() error {
		want := o.Rows(table)
		maps.DeleteFunc(want, func(k, v string) bool { return !passes(k, v) })
		if have := n.Rows(table); !maps.Equal(want, have) {
			return fmt.Errorf("node %s has %d rows, the origin %d that belong there; status %+v", n.ID, len(have), len(want), n.Engine.Status().Sources)
		}
		return nil
	})
}

func starts(prefix string) func(k, v string) bool {
	return func(_, v string) bool { return strings.HasPrefix(v, prefix) }
}

// Rows move in and out of a filter; a node that has only some rows serves them
// on as such, and who wants more is told why it cannot have it there.
func TestFilter(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t", "u")
	for i := range 50 {
		o.Put(fmt.Sprint("k", i), []string{"a", "b"}[i%2])
	}
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, root)
	as, _ := ft.Child(t, "as", scoped(where(t, "a")), root)
	holds(t, o, as, starts("a"))
	o.Put("k0", "b moved out")
	o.Put("k1", "a moved in")
	o.Put("k2", "a stays")
	o.Put("k3", "b stays out")
	o.Put("new", "a new")
	o.Write(ft.Change{Table: table, Key: "k4", Gone: true}, ft.Change{Table: ft.Table("u"), Key: "x", Value: "a but of another table"})
	holds(t, o, as, starts("a"))
	if got := as.Rows(ft.Table("u")); len(got) != 0 {
		t.Errorf("rows of a table outside the scope: %v", got)
	}

	// The same filter, by way of the node that has only that; and a narrower one.
	same, _ := ft.Child(t, "same", scoped(where(t, "a")), as)
	narrower, _ := ft.Child(t, "narrower", scoped(where(t, "a ")), as)
	holds(t, o, same, starts("a"))
	holds(t, o, narrower, starts("a "))
	if at, ok := same.Engine.View().Cursor(engine.CursorKey{Log: same.Engine.Adverts()[0].Log, Scope: where(t, "a").ID()}); !ok || at.Position == "" {
		t.Error("the cursor is not kept under the scope")
	}
	whole := ft.Source(t, "whole", func(c *client.Config) { c.Patience = 2 * time.Second }, as)
	if _, err := whole.Init(t.Context(), engine.Env{}); err == nil || !strings.Contains(err.Error(), "only the rows of table public.t where v LIKE 'a%'") {
		t.Errorf("a reader of everything is told %v", err)
	}
	o.Write(ft.Change{Table: table, Truncate: true})
	o.Put("after", "a after the truncate")
	for _, n := range []*ft.Node{as, same} {
		holds(t, o, n, starts("a"))
	}
	if as.Baselines() != 1 || same.Baselines() != 1 {
		t.Errorf("%d and %d baselines", as.Baselines(), same.Baselines())
	}
}

// Columns that are not asked for do not come; the key always does, and rows can
// be chosen by a column that is not sent.
func TestColumns(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t")
	o.Put("k1", "a")
	o.Put("k2", "b")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, root)
	n, _ := ft.Child(t, "n", scoped(where(t, "a", "id")), root)
	keys := func(want ...string) {
		t.Helper()
		ft.Eventually(t, 30*time.Second, func() error {
			have := n.Rows(table)
			for _, k := range want {
				if v, ok := have[k]; !ok || v != "" {
					return fmt.Errorf("row %s is %q, %t", k, v, ok)
				}
			}
			if len(have) != len(want) {
				return fmt.Errorf("rows %v, want %v", have, want)
			}
			return nil
		})
	}
	keys("k1")
	o.Put("k3", "a")
	o.Put("k1", "b")
	keys("k3")
	for _, l := range n.Engine.Status().Tables {
		if len(l.Schema.Columns) != 1 {
			t.Errorf("the schema has columns %+v", l.Schema.Columns)
		}
	}
	// Below it nobody can choose by the column that is gone, and need not: the rows
	// are chosen already.
	below, _ := ft.Child(t, "below", scoped(where(t, "a", "id")), n)
	ft.Eventually(t, 30*time.Second, func() error {
		if have := below.Rows(table); len(have) != 1 {
			return fmt.Errorf("%v", have)
		}
		return nil
	})
	bad := ft.Source(t, "bad", func(c *client.Config) {
		c.Scope, c.Patience = where(t, "ab", "id"), time.Second
	}, n)
	if _, err := bad.Init(t.Context(), engine.Env{}); err != nil {
		t.Fatal(err) // it learns of it by subscribing
	}
	go func() { _ = bad.Stream(t.Context(), nil, &counting{}) }()
	ft.Eventually(t, 30*time.Second, func() error {
		for _, r := range bad.Status().Refused {
			if strings.Contains(r.Reason, `no column "v"`) {
				return nil
			}
		}
		return fmt.Errorf("refused: %+v", bad.Status().Refused)
	})
	bad.Close()
}

// Random writes, readers with filters that come and go, a small journal: each
// ends with what a query with its filter would give.
func TestFilterModel(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t")
	for i := range 200 {
		o.Put(fmt.Sprint("k", i), []string{"a", "b", "ab"}[i%3])
	}
	root := ft.Start(t, "root", ft.Options{Store: store.MemoryOptions{JournalBytes: 8 << 10}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, root)
	type reader struct {
		n      *ft.Node
		s      *client.Source
		prefix string
	}
	var all []reader
	for i, p := range []string{"a", "ab", "b", "a"} {
		n, s := ft.Child(t, fmt.Sprint("r", i), scoped(where(t, p)), root)
		all = append(all, reader{n, s, p})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		r := all[rnd.IntN(len(all))]
		r.s.Pause()
		for range rnd.IntN(150) {
			k := fmt.Sprint("k", rnd.IntN(250))
			switch rnd.IntN(40) {
			case 0:
				o.Write(ft.Change{Table: table, Truncate: true})
			case 1, 2, 3, 4, 5, 6, 7:
				o.Write(ft.Change{Table: table, Key: k, Gone: true})
			default:
				o.Put(k, []string{"a", "b", "ab", "c"}[rnd.IntN(4)]+strings.Repeat("x", rnd.IntN(40)))
			}
		}
		if rnd.IntN(2) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		r.s.Resume()
	}
	for _, r := range all {
		holds(t, o, r.n, starts(r.prefix))
	}
}

// A filter that is widened, or made another one, over a state that was read
// through it: what it hid before is delivered, and what it has no more is gone.
func TestCaseR14(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(0, "t")
	for i := range 60 {
		o.Put(fmt.Sprint("k", i), []string{"a", "b", "ab"}[i%3])
	}
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, root)
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	n, _ := ft.ChildWith(t, "n", kept, scoped(where(t, "ab")), root)
	holds(t, o, n, starts("ab"))
	o.Put("k0", "b after all") // outside: a tombstone with the write's own stamp
	holds(t, o, n, starts("ab"))
	for _, next := range []struct {
		s      *scope.Scope
		passes func(k, v string) bool
	}{{where(t, "a"), starts("a")}, {nil, starts("")}, {where(t, "b"), starts("b")}, {where(t, "b", "id"), nil}, {nil, starts("")}} {
		n.Stop()
		n, _ = ft.ChildWith(t, "n", kept, scoped(next.s), root)
		o.Put("k1", "b"+fmt.Sprint(len(next.s.ID())))
		if next.passes == nil {
			ft.Eventually(t, 30*time.Second, func() error {
				for k, v := range n.Rows(table) {
					if v != "" {
						return fmt.Errorf("row %s has the value %q, which is not asked for", k, v)
					}
				}
				return nil
			})
			continue
		}
		holds(t, o, n, next.passes)
	}
}
