package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

func TestConflictPoliciesAreChecked(t *testing.T) {
	t.Parallel()
	for want, all := range map[string][]engine.Conflict{
		"the table has two": {
			{Table: tableA, Policy: engine.LastWriteWins}, {Table: tableA, Policy: engine.NamespaceByOrigin},
		},
		"lacks the column":                  {{Table: tableA, Policy: engine.OriginOwnsKey}},
		`"Newest" is not one`:               {{Table: tableA, Policy: "Newest"}},
		"goes by no column":                 {{Table: tableA, Policy: engine.LastWriteWins, Column: "id"}},
		"only OriginOwnsKey has owners":     {{Table: tableA, Policy: engine.NamespaceByOrigin, Owners: []engine.Owner{{Value: "x", Node: "n"}}}},
		`"x" has two owners`:                {{Table: tableA, Policy: engine.OriginOwnsKey, Column: "id", Owners: []engine.Owner{{Value: "x", Node: "n"}, {Value: "x", Node: "m"}}}},
		`the owner of "eu-" is not named`:   {{Table: tableA, Policy: engine.OriginOwnsKey, Column: "id", Owners: []engine.Owner{{Value: "eu-", Prefix: true}}}},
		"conflict policy of table public.a": {{Table: tableA}},
	} {
		if _, err := engine.NewConflicts(all...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// The digest goes by what the policies say, not by how they are written down.
func TestConflictDigest(t *testing.T) {
	t.Parallel()
	digest := func(all ...engine.Conflict) string {
		c, err := engine.NewConflicts(all...)
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest()
	}
	a := engine.Conflict{Table: tableA, Policy: engine.OriginOwnsKey, Column: "id", Owners: []engine.Owner{{Value: "x", Node: "n"}, {Value: "y", Prefix: true, Node: "m"}}}
	b := engine.Conflict{Table: tableB, Policy: engine.NamespaceByOrigin}
	same := digest(a, b)
	turned := a
	turned.Owners = []engine.Owner{a.Owners[1], a.Owners[0]}
	named := b
	named.Column = engine.DefaultOriginColumn
	if got := digest(named, turned); got != same {
		t.Errorf("the same in another order: %s, not %s", got, same)
	}
	other := a
	other.Owners = []engine.Owner{{Value: "x", Node: "n"}, {Value: "y", Node: "m"}}
	if got := digest(other, b); got == same {
		t.Error("other owners give the same digest")
	}
	if got := digest(engine.Conflict{Table: tableA, Policy: engine.LastWriteWins}); got != "" || (*engine.Conflicts)(nil).Digest() != "" {
		t.Errorf("LastWriteWins alone gives %q", got)
	}
}

// policies returns the policies of a test's tables.
func policies(t fatal, all ...engine.Conflict) *engine.Conflicts {
	c, err := engine.NewConflicts(all...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return c
}

// node with policies, and with a clock of its own.
func nodeWith(id string, st engine.Store, c *engine.Conflicts, now func() time.Time) *engine.Engine {
	return engine.New(engine.Options{NodeID: id, Store: st, Conflicts: c, Now: now, Logger: slog.New(slog.DiscardHandler)})
}

// stateOf is the whole state of a view: of each record all that readers can see.
func stateOf(v engine.View) string {
	var b strings.Builder
	for _, info := range v.Tables() {
		_ = v.Scan(info.Table, nil, func(r *engine.Record) bool {
			fmt.Fprintf(&b, "%s %q %s deleted=%t %x %x\n", info.Table, r.Key, r.Stamp, r.Deleted, r.Schema.Fingerprint(), r.Row)
			return true
		})
	}
	return b.String()
}

// mesh is nodes that each mint a log of their own database and carry those of
// all others.
type mesh struct {
	nodes []*engine.Engine
	dbs   []*database
	stops []func()
}

func (m *mesh) stop() {
	for _, stop := range m.stops {
		stop()
	}
}

// equal waits until every node has every log to its end, and compares.
func (m *mesh) equal(t fatal) string {
	for _, e := range m.nodes {
		for i, db := range m.dbs {
			_, head := db.head()
			await(t, e, fmt.Sprintf("the head of n%d at %s", i, e.NodeID()), func(v engine.View) bool {
				return ownLog(v, engine.Origin(fmt.Sprint("n", i), "db")).Head == head
			})
		}
	}
	var first string
	for i, e := range m.nodes {
		v := e.View()
		got := stateOf(v)
		v.Close()
		if i == 0 {
			first = got
		} else if got != first {
			t.Fatalf("n0 ends with\n%s\nand n%d with\n%s", first, i, got)
		}
	}
	return first
}

// drawMesh makes a mesh of which each node has other stores, clocks, and ways to
// deliver: repeated, reordered.
func drawMesh(t *rapid.T, n int, c func() *engine.Conflicts, clocks []func() time.Time) *mesh {
	m := &mesh{}
	for i := range n {
		db := newDatabase()
		m.dbs = append(m.dbs, db)
		e := nodeWith(fmt.Sprint("n", i), drawStore(t), c(), clocks[i])
		e.AddSource("db", &dbSource{db: db, batch: rapid.IntRange(1, 3).Draw(t, "batch"), run: rapid.IntRange(0, 2).Draw(t, "run")}, engine.Keep{})
		m.nodes = append(m.nodes, e)
	}
	for i, e := range m.nodes {
		for j, other := range m.nodes {
			if i == j {
				continue
			}
			seed := rapid.Uint64().Draw(t, "chaos")
			h := &hop{up: pointing(other), maxBytes: 200, self: e.NodeID(), only: engine.Origin(other.NodeID(), "db"), chaos: func(n int) int {
				seed = seed*6364136223846793005 + 1442695040888963407
				return int(seed>>33) % n
			}}
			e.AddSource(fmt.Sprint("from-n", j), h, engine.Keep{})
		}
	}
	for _, e := range m.nodes {
		m.stops = append(m.stops, start(t, e))
	}
	return m
}

// Whatever the policy, the stores, the order in which logs come and how often,
// and whatever the wall clocks do, all nodes end with the same bytes.
func TestMeshEndsEqual(t *testing.T) {
	t.Parallel()
	for name, all := range map[string][]engine.Conflict{
		"LastWriteWins": nil,
		"OriginOwnsKey": {
			{Table: tableA, Policy: engine.OriginOwnsKey, Column: "id", Owners: []engine.Owner{
				{Value: "k0", Node: "n0"}, {Value: "k1", Node: "n1"}, {Value: "k", Prefix: true, Node: "n2"},
			}},
			{Table: tableB, Policy: engine.OriginOwnsKey, Column: "id", Owners: []engine.Owner{{Value: "", Prefix: true, Node: "n1"}}},
		},
		"NamespaceByOrigin": {
			{Table: tableA, Policy: engine.NamespaceByOrigin}, {Table: tableB, Policy: engine.NamespaceByOrigin, Column: "node"},
		},
		"each its own": {{Table: tableA, Policy: engine.NamespaceByOrigin}, {Table: tableB, Policy: engine.OriginOwnsKey, Column: "id", Owners: []engine.Owner{
			{Value: "k0", Node: "n0"}, {Value: "", Prefix: true, Node: "n1"},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				const n = 3
				steps := make([]time.Duration, n) // of the wall clocks, an hour either way
				var clocks []func() time.Time
				for i := range n {
					steps[i] = time.Duration(rapid.IntRange(-3600, 3600).Draw(t, "clock")) * time.Second
					clocks = append(clocks, func() time.Time { return time.Now().Add(steps[i]) })
				}
				m := drawMesh(t, n, func() *engine.Conflicts { return policies(t, all...) }, clocks)
				defer m.stop()
				for range rapid.IntRange(1, 12).Draw(t, "commits") {
					i := rapid.IntRange(0, n-1).Draw(t, "node")
					step := time.Duration(rapid.IntRange(-3600, 3600).Draw(t, "step")) * time.Second
					m.dbs[i].commit(time.Now().Add(step), drawOps(t, false)...)
				}
				m.equal(t)
				for i, e := range m.nodes {
					checkPolicies(t, e, all, i, m.dbs)
				}
			})
		})
	}
}

// checkPolicies says whether the state is what the policies make of the
// databases.
func checkPolicies(t fatal, e *engine.Engine, all []engine.Conflict, at int, dbs []*database) {
	v := e.View()
	defer v.Close()
	for _, c := range all {
		got := map[string]string{} // by origin and id
		err := v.Scan(c.Table, nil, func(r *engine.Record) bool {
			if r.Deleted {
				return true
			}
			var cols []string
			for _, c := range r.Row.Columns() {
				cols = append(cols, string(c.Value))
			}
			if key, err := engine.AppendKey(nil, r.Schema, r.Row); err != nil || !bytes.Equal(key, r.Key) {
				t.Fatalf("a row has the key %q, and says %q: %v", r.Key, key, err)
			}
			got[r.Stamp.Origin+" "+cols[0]] = cols[1]
			if c.Policy == engine.NamespaceByOrigin && cols[len(cols)-1] != r.Stamp.Origin {
				t.Fatalf("a row of %s says it is of %s", r.Stamp.Origin, cols[len(cols)-1])
			}
			return true
		})
		if err != nil {
			t.Fatalf("%v", err)
		}
		want := map[string]string{}
		for i, db := range dbs {
			n, _ := db.head()
			node := fmt.Sprint("n", i)
			for id, row := range db.state(n)[c.Table] {
				if c.Policy == engine.OriginOwnsKey && ownerOf(c.Owners, id) != node {
					continue
				}
				want[engine.Origin(node, "db")+" "+id] = row[0]
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("n%d, table %s, %s: the rows are\n%v\nand are to be\n%v", at, c.Table, c.Policy, got, want)
		}
	}
}

// ownerOf is the naive reading of a list of owners.
func ownerOf(all []engine.Owner, id string) string {
	owner, longest := "", -1
	for _, o := range all {
		if !o.Prefix && o.Value == id {
			return o.Node
		}
		if o.Prefix && strings.HasPrefix(id, o.Value) && len(o.Value) > longest {
			owner, longest = o.Node, len(o.Value)
		}
	}
	return owner
}

// What is refused, lost, overwritten and repeated is counted.
func TestConflictsAreCounted(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]engine.Store{"memory": store.NewMemory(store.MemoryOptions{}), "durable": openDurable(t, vfs.NewMem(), false)} {
		t.Run(name, func(t *testing.T) {
			e, _, sink, keys := carryMany(t, st, 2)
			apply := func(k engine.CursorKey, b *engine.Block) {
				t.Helper()
				if err := sink.ApplyBlocks(context.Background(), k, []*engine.Block{b}); err != nil {
					t.Fatal(err)
				}
			}
			apply(keys[0], oneRow(keys[0].Log, 1, 5, "x"))
			apply(keys[1], oneRow(keys[1].Log, 1, 6, "x")) // over the one at 5
			apply(keys[0], oneRow(keys[0].Log, 5, 6, "x")) // o0 < o1 at one time: lost
			apply(keys[0], oneRow(keys[0].Log, 6, 7, "x")) // over it again
			apply(keys[0], oneRow(keys[0].Log, 5, 6, "x")) // come before
			st := e.Status()
			want := []engine.TableConflicts{{Table: tableA, Policy: engine.LastWriteWins, Lost: 1, Overwrote: 2}}
			if got := fmt.Sprint(st.Conflicts); got != fmt.Sprint(want) {
				t.Errorf("counted %v, not %v", got, want)
			}
			for _, l := range st.Logs {
				if want := map[string]uint64{"o0#db": 1, "o1#db": 0}[l.ID.Origin]; l.Repeated != want {
					t.Errorf("log %s: %d repeated, not %d", l.ID, l.Repeated, want)
				}
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		c := policies(t, engine.Conflict{Table: tableA, Policy: engine.OriginOwnsKey, Column: "id", Owners: []engine.Owner{{Value: "", Prefix: true, Node: "o0"}}})
		e, _, sink, keys := carryManyBy(t, nodeWith("n", store.NewMemory(store.MemoryOptions{}), c, nil), 2)
		for i, k := range keys {
			if err := sink.ApplyBlocks(context.Background(), k, []*engine.Block{oneRow(k.Log, 1, 5, fmt.Sprint("k", i))}); err != nil {
				t.Fatal(err)
			}
		}
		want := []engine.TableConflicts{{Table: tableA, Policy: engine.OriginOwnsKey, Refused: []engine.OriginCount{{Origin: "o1#db", Count: 1}}}}
		st := e.Status()
		if got := fmt.Sprint(st.Conflicts); got != fmt.Sprint(want) {
			t.Errorf("counted %v, not %v", got, want)
		}
		for _, l := range st.Logs {
			if l.Changes != 1 {
				t.Errorf("a carried log is to be carried whole: %+v", l.LogInfo)
			}
		}
		if st.Tables[0].Rows != 1 {
			t.Errorf("%d rows", st.Tables[0].Rows)
		}
	})
}

// A policy that a table does not fit stops its source, with a sentence; a log
// that is carried is held, and others go on.
func TestPolicyThatDoesNotFit(t *testing.T) {
	t.Parallel()
	c := policies(t, engine.Conflict{Table: tableA, Policy: engine.OriginOwnsKey, Column: "v"})
	e := nodeWith("n", store.NewMemory(store.MemoryOptions{}), c, nil)
	e.AddSource("db", &dbSource{db: newDatabase()}, engine.Keep{})
	defer start(t, e)()
	await(t, e, "the reason", func(engine.View) bool { return e.Status().Sources[0].Reason == engine.ReasonTableChanged })
	if msg := e.Status().Sources[0].Message; !strings.Contains(msg, `column "v", which is not part of the table's key`) {
		t.Error(msg)
	}

	c = policies(t, engine.Conflict{Table: tableA, Policy: engine.NamespaceByOrigin})
	_, _, sink, keys := carryManyBy(t, nodeWith("m", store.NewMemory(store.MemoryOptions{}), c, nil), 1)
	err := sink.ApplyBlocks(context.Background(), keys[0], []*engine.Block{oneRow(keys[0].Log, 1, 5, "k")})
	var se *engine.SourceError
	if !errors.As(err, &se) || !strings.Contains(err.Error(), "the node that its log comes from the same conflict policies") {
		t.Errorf("a log without the origin in its keys: %v", err)
	}
}

// Other tables by origin are another history: the rows are written again, under
// their new keys, and none is left under the old.
func TestNamespaceChanges(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.commit(time.Now(), op{kind: "put", table: tableA, id: "k", v: "1", doc: "d"})
	fs := vfs.NewMem()
	byOrigin := policies(t, engine.Conflict{Table: tableA, Policy: engine.NamespaceByOrigin})
	var epochs []engine.Epoch
	for i, c := range []*engine.Conflicts{nil, byOrigin, byOrigin, nil} {
		s, err := store.OpenPebble(store.PebbleOptions{Dir: "/store", FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		e := nodeWith("n", s, c, nil)
		e.AddSource("db", &dbSource{db: db}, engine.Keep{})
		stop := start(t, e)
		db.commit(time.Now(), op{kind: "touch", table: tableA, id: "k", v: fmt.Sprint(i), doc: "d"})
		_, head := db.head()
		await(t, e, "the head", func(v engine.View) bool { return ownLog(v, engine.Origin("n", "db")).Head == head })
		v := e.View()
		epochs = append(epochs, ownLog(v, engine.Origin("n", "db")).ID.Epoch)
		var rows []string
		_ = v.Scan(tableA, nil, func(r *engine.Record) bool {
			if !r.Deleted {
				parts, _ := engine.DecodeKey(r.Key)
				rows = append(rows, string(bytes.Join(parts, []byte(" "))))
			}
			return true
		})
		v.Close()
		want := []string{"k"}
		if c != nil {
			want = []string{"k n#db"}
		}
		if !slices.Equal(rows, want) {
			t.Errorf("life %d: rows %q, not %q", i, rows, want)
		}
		stop()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if epochs[0] == epochs[1] || epochs[1] != epochs[2] || epochs[2] == epochs[3] {
		t.Errorf("epochs %v", epochs)
	}
}
