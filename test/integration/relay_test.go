package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

var measured = engine.TableName{Schema: "public", Name: "measured"}

// measuredSource is a table that leaves write, each its own rows.
func measuredSource() nodeconfig.Source {
	return nodeconfig.Source{Name: "in", Ingest: &nodeconfig.Ingest{Tables: []nodeconfig.IngestTable{{Schema: "public", Name: "measured", Columns: []nodeconfig.IngestColumn{
		{Name: "leaf", Type: "text", Key: true}, {Name: "id", Type: "text", Key: true}, {Name: "v", Type: "bigint"},
	}}}}}
}

// sizes of a tree.
type sizes struct{ leaves, databases, branches int }

// treeSizes are small, and those of a real tree where SOAK is set.
func treeSizes() sizes {
	if os.Getenv("SOAK") != "" {
		return sizes{200, 4, 4}
	}
	return sizes{12, 1, 2}
}

// pause is how long a leaf's writer rests between two writes. All leaves together write what
// a machine of two processors carries beside their processes: 50 rows a second of many, and
// at most 650 of few. With more, what is measured is how long its queue is.
func (s sizes) pause() time.Duration {
	if n := s.leaves + s.databases; n > 50 {
		return 20 * time.Millisecond * time.Duration(n)
	}
	return 20 * time.Millisecond
}

// mayStand is how long a branch may stand still whose relay is killed. It is a fraction of
// a second where the machine has nothing else to do.
func mayStand() time.Duration {
	if os.Getenv("SOAK") != "" {
		return 2 * time.Second
	}
	return 5 * time.Second
}

// relayTree is a tree of real processes: leaves, two relays for each branch, a root.
type relayTree struct {
	t      *testing.T
	dir    string
	leaves []*testnode.Node // by number; leaf i is of branch i modulo the branches
	dbs    []*testpg.DB     // of the last leaves
	relays [][2]*testnode.Node
	root   *testnode.Node
	center *testpg.DB // that the root feeds
}

func (tr *relayTree) start(id string, configure func(*nodeconfig.Config), wiring func(*nodeconfig.Wiring)) *testnode.Node {
	tr.t.Helper()
	dir := filepath.Join(tr.dir, strings.ReplaceAll(id, "/", "-"))
	n, err := testnode.Start(tr.t.Context(), ownProcess(tr.t, testnode.Options{
		ID: id, Dir: dir,
		Storage:   nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(dir, "store"), Cache: nodeconfig.Cache{MaxBytes: 8 << 20}},
		Configure: configure, Wiring: wiring, Env: []string{"GOMAXPROCS=2"},
	}))
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() {
		n.Kill()
		if tr.t.Failed() {
			log, _ := os.ReadFile(n.Log())
			tr.t.Logf("%s:\n%.20000s", id, log)
		}
	})
	return n
}

func childrenOf(nodes []*testnode.Node, group func(i int) string) func(*nodeconfig.Wiring) {
	return func(w *nodeconfig.Wiring) {
		w.Sources[0].Children = nil
		for i, n := range nodes {
			w.Sources[0].Children = append(w.Sources[0].Children, nodeconfig.Child{ID: n.ID, Address: n.Repl, Group: group(i)})
		}
	}
}

func newRelayTree(t *testing.T, size sizes, redundancy string) *relayTree {
	t.Helper()
	tr := &relayTree{t: t, dir: t.TempDir()}
	roots := func(w *nodeconfig.Wiring) { w.Parents.Roots = []string{"tree/root"} }
	for i := range size.leaves {
		tr.leaves = append(tr.leaves, tr.start(fmt.Sprintf("tree/leaf-%d", i), func(c *nodeconfig.Config) {
			c.Sources, c.Parents = []nodeconfig.Source{measuredSource()}, &nodeconfig.Parents{}
		}, roots))
	}
	for i := range size.databases {
		db := testpg.NewDB(t)
		db.Exec(t, "CREATE TABLE measured (leaf text, id text, v bigint, PRIMARY KEY (leaf, id))")
		tr.dbs = append(tr.dbs, db)
		dir := filepath.Join(tr.dir, fmt.Sprintf("pass-%d", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		src, err := testnode.Postgres(db, dir, "", measured)
		if err != nil {
			t.Fatal(err)
		}
		tr.leaves = append(tr.leaves, tr.start(fmt.Sprintf("tree/db-%d", i), func(c *nodeconfig.Config) {
			c.Sources, c.Parents = []nodeconfig.Source{src}, &nodeconfig.Parents{}
		}, roots))
	}
	var all []*testnode.Node
	for b := range size.branches {
		var below []*testnode.Node
		for i := b; i < len(tr.leaves); i += size.branches {
			below = append(below, tr.leaves[i])
		}
		var pair [2]*testnode.Node
		for j := range pair {
			pair[j] = tr.start(fmt.Sprintf("tree/branch-%d-%c", b, 'a'+j), func(c *nodeconfig.Config) {
				c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
				c.Relay = &nodeconfig.Relay{}
			}, childrenOf(below, func(int) string { return "" }))
			all = append(all, pair[j])
		}
		tr.relays = append(tr.relays, pair)
	}
	tr.center = testpg.NewDB(t)
	center, err := testnode.Postgres(tr.center, tr.dir, "", measured)
	if err != nil {
		t.Fatal(err)
	}
	tr.root = tr.start("tree/root", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
		c.Sinks = []nodeconfig.Sink{{Name: "center", Postgres: &nodeconfig.PostgresSink{PostgresServer: center.Postgres.PostgresServer, CreateTables: true, Provenance: true}}}
	}, func(w *nodeconfig.Wiring) {
		w.Sources[0].Redundancy = redundancy
		childrenOf(all, func(i int) string { return fmt.Sprintf("branch-%d", i/2) })(w)
	})
	for _, n := range slices.Concat(tr.leaves, all, []*testnode.Node{tr.root}) {
		if err := n.WaitReady(t.Context(), 2*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

// put writes a row at an ingest leaf.
func put(ctx context.Context, leaf *testnode.Node, key string, rows ...[2]string) error {
	b := &ingest.Batch{Key: key}
	for _, r := range rows {
		id := leaf.ID
		b.Ops = append(b.Ops, ingest.Op{Kind: ingest.Put, Table: measured, Row: []ingest.Field{{Column: "leaf", Value: &id}, {Column: "id", Value: &r[0]}, {Column: "v", Value: &r[1]}}})
	}
	api := &ingestapi.Client{URL: "http://" + leaf.HTTP}
	for {
		_, err := api.Write(ctx, b)
		var e *ingest.Error
		if err == nil || ctx.Err() != nil || errors.As(err, &e) && e.Code != ingest.Unavailable && e.Code != ingest.Unknown {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// write writes a row at leaf i, or in its database.
func (tr *relayTree) write(ctx context.Context, i int, id, v string) error {
	leaf := tr.leaves[i]
	if d := i - (len(tr.leaves) - len(tr.dbs)); d >= 0 {
		return tr.dbs[d].ExecContext(ctx, fmt.Sprintf("INSERT INTO measured VALUES ('%s', '%s', %s) ON CONFLICT (leaf, id) DO UPDATE SET v = EXCLUDED.v", leaf.ID, id, v))
	}
	return put(ctx, leaf, id+"/"+v, [2]string{id, v})
}

// rowsAt returns what a node holds of the table, by leaf and id.
func rowsAt(n *testnode.Node) (map[string]string, error) {
	all, after := map[string]string{}, ""
	for {
		url := "http://" + n.HTTP + "/v1/tables/public.measured/rows?limit=10000"
		if after != "" {
			url += "&after=" + after
		}
		resp, err := http.Get(url)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
		var page struct {
			Rows []struct {
				Leaf, ID string
				V        int64
			}
			Next, Error string
		}
		if err := json.Unmarshal(text, &page); err != nil {
			return nil, err
		}
		if page.Error != "" {
			return nil, errors.New(page.Error)
		}
		for _, r := range page.Rows {
			all[r.Leaf+"/"+r.ID] = strconv.FormatInt(r.V, 10)
		}
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}

// TestRelayTree: leaves that are written to and databases, two relays for each branch,
// one root. A relay is killed under load, in both ways of redundancy: nothing that was
// acknowledged is lost, and its branch goes on by way of the other relay.
func TestRelayTree(t *testing.T) {
	for _, redundancy := range nodeconfig.Redundancies {
		t.Run(redundancy, func(t *testing.T) {
			size := treeSizes()
			tr := newRelayTree(t, size, redundancy)
			ctx := t.Context()
			want := map[string]string{}
			for i, leaf := range tr.leaves { // a relay serves what tables its children have written to
				if err := tr.write(ctx, i, "first", "1"); err != nil {
					t.Fatal(err)
				}
				want[leaf.ID+"/first"] = "1"
			}
			if err := testnode.Until(ctx, 3*time.Minute, "the root to have the first rows", func() (bool, error) {
				got, err := rowsAt(tr.root)
				return err == nil && maps.Equal(got, want), nil
			}); err != nil {
				t.Fatal(err)
			}
			read, err := client.New(client.WithUpstreams(tr.root.Repl), client.WithTables(measured))
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			var killed atomic.Int64 // when, as microseconds
			var after atomic.Int64  // the first row of branch 0 that was written since came then
			stop := read.Listen(func(_, fresh *engine.Record) {
				if fresh == nil || killed.Load() == 0 || after.Load() != 0 || fresh.Stamp.Time.Wall().UnixMicro() <= killed.Load() {
					return
				}
				key, _ := engine.DecodeKey(fresh.Key)
				leaf := string(key[0])
				if i := slices.IndexFunc(tr.leaves, func(n *testnode.Node) bool { return n.ID == leaf }); i >= 0 && i%size.branches == 0 {
					after.CompareAndSwap(0, time.Now().UnixMicro())
				}
			})
			defer stop()

			var mu sync.Mutex
			wctx, end := context.WithCancel(ctx)
			defer end()
			var wg sync.WaitGroup
			began, written := time.Now(), 0
			for i, leaf := range tr.leaves {
				wg.Go(func() {
					for k := 0; wctx.Err() == nil; k++ {
						id, v := fmt.Sprint(k%50), fmt.Sprint(k)
						if err := tr.write(ctx, i, id, v); err != nil {
							t.Errorf("%s: %v", leaf.ID, err)
							return
						}
						mu.Lock()
						want[leaf.ID+"/"+id] = v
						written++
						mu.Unlock()
						time.Sleep(size.pause())
					}
				})
			}
			time.Sleep(3 * time.Second)
			victim := tr.relays[0][0]
			if redundancy == nodeconfig.ActiveStandby { // whichever is read
				st, err := statusOf(tr.root)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range st.Sources[0].Peers {
					if p.ID == tr.relays[0][1].ID && p.Logs > 0 {
						victim = tr.relays[0][1]
					}
				}
			}
			victim.Kill()
			killed.Store(time.Now().UnixMicro())
			if err := testnode.Until(ctx, 30*time.Second, "the branch to go on", func() (bool, error) { return after.Load() != 0, nil }); err != nil {
				t.Error(err)
			}
			gap := time.Duration(after.Load()-killed.Load()) * time.Microsecond
			t.Logf("%s: first record by way of the other relay after %s", redundancy, gap)
			if gap > mayStand() {
				t.Errorf("the branch went on after %s", gap)
			}
			time.Sleep(time.Second)
			if err := victim.Run(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			end()
			wg.Wait()
			took := time.Since(began)
			for _, n := range []*testnode.Node{tr.root, tr.relays[0][0], tr.relays[0][1]} {
				if err := testnode.Until(ctx, 3*time.Minute, n.ID+" to have what was written", func() (bool, error) {
					got, err := rowsAt(n)
					return err == nil && (n != tr.root || maps.Equal(got, want)) && len(got) > 0, nil
				}); err != nil {
					got, _ := rowsAt(n)
					t.Errorf("%v: %d rows of %d; %s", err, len(got), len(want), firstDifference(got, want))
				}
			}

			// The database at the center has the same, and says where each row is from.
			if err := testnode.Until(ctx, 3*time.Minute, "the database to have what was written", func() (bool, error) {
				got, err := tr.centerRows(ctx)
				return err == nil && maps.Equal(got, want), nil
			}); err != nil {
				got, _ := tr.centerRows(ctx)
				t.Errorf("%v: %d rows of %d; %s", err, len(got), len(want), firstDifference(got, want))
			}
			if rows, err := tr.center.QueryContext(ctx, `SELECT count(*) FROM measured WHERE tributary_origin NOT IN (leaf || '#in', leaf || '#db')
				OR tributary_epoch <= 0 OR tributary_version !~ '^[0-9]+\.[0-9]+$' OR tributary_time NOT BETWEEN now() - interval '1 hour' AND now() + interval '1 minute'`); err != nil || *rows[0][0] != "0" {
				t.Errorf("rows of another provenance: %v %v", rows, err)
			}

			// Logs and cursors are as many as the node has children.
			var st nodeconfig.Statusz
			for b, pair := range tr.relays {
				for _, relay := range pair {
					if st, err = statusOf(relay); err != nil {
						t.Fatal(err)
					}
					below := (len(tr.leaves) - b + size.branches - 1) / size.branches
					if q := st.Tree; q.Role != nodeconfig.RoleRelay || q.Children != below || q.Logs != below || q.Cursors != below {
						t.Errorf("%s: %+v, want %d children, logs and cursors", relay.ID, q, below)
					}
				}
			}
			if st, err = statusOf(tr.root); err != nil {
				t.Fatal(err)
			}
			most := 2 * size.branches
			if q := st.Tree; q.Role != nodeconfig.RoleRoot || q.Children != most || q.Logs != q.Cursors || q.Logs > most || redundancy == nodeconfig.ActiveActive && q.Logs != most {
				t.Errorf("the root: %+v, want %d children, and at most as many logs and cursors", q, most)
			}
			var bytes, floors int64
			for _, l := range st.Logs {
				if l.Delivery != nil {
					bytes, floors = bytes+l.Delivery.Bytes, floors+l.Delivery.Floors
				}
			}
			t.Logf("%s: %d writes in %s; the root took in %d bytes in %d logs, %d taken over at the floor; %d rows", redundancy, written, took, bytes, st.Tree.Logs, floors, len(want))
			var own []int
			for _, n := range tr.leaves {
				own = append(own, memoryOf(t, n.PID(), "RssAnon"))
			}
			slices.Sort(own)
			t.Logf("%s: memory of a leaf: %d MB in the middle, %d MB at most; of the root %d MB", redundancy, own[len(own)/2]>>20, own[len(own)-1]>>20, memoryOf(t, tr.root.PID(), "RssAnon")>>20)
			if redundancy == nodeconfig.ActiveStandby && floors == 0 {
				t.Error("the other relay was not taken over at the floor")
			}

			// What the root has, the leaves need not keep.
			if err := testnode.Until(ctx, time.Minute, "a leaf to know what is stable", func() (bool, error) {
				st, err := statusOf(tr.leaves[0])
				return err == nil && st.Tree.Stable != "" && st.Tree.Stable == st.Logs[0].Head, nil
			}); err != nil {
				st, _ := statusOf(tr.leaves[0])
				t.Errorf("%v: %+v", err, st.Tree)
			}
		})
	}
}

// centerRows returns what the database at the center has.
func (tr *relayTree) centerRows(ctx context.Context) (map[string]string, error) {
	rows, err := tr.center.QueryContext(ctx, `SELECT leaf || '/' || id, v FROM measured`)
	all := map[string]string{}
	for _, r := range rows {
		all[*r[0]] = *r[1]
	}
	return all, err
}

func firstDifference(got, want map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if got[k] != want[k] {
			return fmt.Sprintf("%s is %q, and %q was written", k, got[k], want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			return k + " was never written"
		}
	}
	return "no difference"
}

// TestRelayCoalesces: keys that change a hundred times in a window are sent on once.
func TestRelayCoalesces(t *testing.T) {
	t.Parallel()
	tr := &relayTree{t: t, dir: t.TempDir()}
	ctx := t.Context()
	const keys, window, windows = 10, 2 * time.Second, 8 // one flush more at each end makes little of it
	leaf := tr.start("hot/leaf", func(c *nodeconfig.Config) {
		c.Sources, c.Parents = []nodeconfig.Source{measuredSource()}, &nodeconfig.Parents{}
	}, nil)
	relay := tr.start("hot/relay", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
		c.Relay = &nodeconfig.Relay{Window: window}
	}, childrenOf([]*testnode.Node{leaf}, func(int) string { return "" }))
	root := tr.start("hot/root", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
	}, childrenOf([]*testnode.Node{relay}, func(int) string { return "" }))
	for _, n := range []*testnode.Node{leaf, relay, root} {
		if err := n.WaitReady(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	n := 0
	for ; time.Since(began) < windows*window || n < 100*windows; n++ {
		var rows [][2]string
		for k := range keys {
			rows = append(rows, [2]string{fmt.Sprint(k), fmt.Sprint(n)})
		}
		if err := put(ctx, leaf, fmt.Sprint(n), rows...); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(began)
	want := map[string]string{}
	for k := range keys {
		want[fmt.Sprintf("hot/leaf/%d", k)] = fmt.Sprint(n - 1)
	}
	if err := testnode.Until(ctx, 30*time.Second, "the root to have the last", func() (bool, error) {
		got, err := rowsAt(root)
		return err == nil && maps.Equal(got, want), nil
	}); err != nil {
		t.Fatal(err)
	}
	st, err := statusOf(relay)
	if err != nil {
		t.Fatal(err)
	}
	ideal := keys * (int(took/window) + 1)
	perWindow := float64(n) / (float64(took) / float64(window))
	t.Logf("%d changes, %.0f of each key in a window; %d records delivered in %d flushes, ideally %d", n*keys, perWindow, st.Tree.Changes, st.Tree.Flushes, ideal)
	if perWindow < 100 {
		t.Errorf("%.0f changes of a key in a window: too few to tell", perWindow)
	}
	if float64(st.Tree.Changes) > 1.2*float64(ideal) {
		t.Errorf("%d records delivered, want at most %.0f", st.Tree.Changes, 1.2*float64(ideal))
	}
}

// TestCaseR23LeafFull: a leaf whose root is away keeps its log up to a bound, and then lets
// its writers wait, and says for whom. When the root is unregistered it goes on.
func TestCaseR23LeafFull(t *testing.T) {
	t.Parallel()
	tr := &relayTree{t: t, dir: t.TempDir()}
	ctx := t.Context()
	leaf := tr.start("full/leaf", func(c *nodeconfig.Config) {
		c.Sources, c.Parents = []nodeconfig.Source{measuredSource()}, &nodeconfig.Parents{MaxLog: 1 << 20}
		c.Sources[0].Ingest.Timeout = 2 * time.Second
	}, func(w *nodeconfig.Wiring) { w.Parents.Roots = []string{"full/root"} })
	if err := leaf.WaitReady(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	wctx, end := context.WithCancel(ctx)
	var written atomic.Int64
	done := make(chan error, 1)
	go func() {
		for n := 0; wctx.Err() == nil; n++ {
			var rows [][2]string
			for k := range 100 {
				rows = append(rows, [2]string{fmt.Sprintf("%0200d", k), fmt.Sprint(n)})
			}
			if err := put(wctx, leaf, fmt.Sprint(n), rows...); err != nil && wctx.Err() == nil {
				done <- err
				return
			}
			written.Add(1)
		}
		done <- nil
	}()
	var tree *nodeconfig.TreeStatus
	if err := testnode.Until(ctx, time.Minute, "the leaf to be full", func() (bool, error) {
		st, err := statusOf(leaf)
		tree = st.Tree
		return err == nil && tree.Full, nil
	}); err != nil {
		t.Fatalf("%v: %+v", err, tree)
	}
	if tree.PinnedBy != "full/root" || tree.LogBytes < 1<<20 {
		t.Errorf("%+v", tree)
	}
	time.Sleep(time.Second) // what was on its way is taken
	before := written.Load()
	time.Sleep(2 * time.Second)
	if n := written.Load() - before; n > 1 {
		t.Errorf("%d batches were taken by a leaf that is full", n)
	}
	if _, err := (&ingestapi.Client{URL: "http://" + leaf.HTTP}).Write(ctx, &ingest.Batch{Ops: []ingest.Op{measure(ingest.Put, "x", "1", "1")}}); err == nil || !strings.Contains(err.Error(), "full/root has yet to take it") {
		t.Errorf("a write to a leaf that is full is answered with %v", err)
	}
	if err := leaf.Rewire(func(w *nodeconfig.Wiring) { w.Parents.Roots = nil }); err != nil {
		t.Fatal(err)
	}
	if err := testnode.Until(ctx, time.Minute, "the leaf to go on", func() (bool, error) {
		st, err := statusOf(leaf)
		return err == nil && !st.Tree.Full && written.Load() > before+1, nil
	}); err != nil {
		t.Error(err)
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
