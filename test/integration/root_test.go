package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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

var visits = engine.TableName{Schema: "public", Name: "visits"}

// countingSource has the table of measurements, and a counter.
func countingSource() nodeconfig.Source {
	s := measuredSource()
	s.Ingest.Tables = append(s.Ingest.Tables, nodeconfig.IngestTable{Schema: "public", Name: "visits", Columns: []nodeconfig.IngestColumn{
		{Name: "page", Type: "text", Key: true}, {Name: "n", Type: "numeric(20,2)"},
	}})
	return s
}

var (
	perEpoch = []nodeconfig.Conflict{{Table: nodeconfig.Table{Schema: "public", Name: "visits"}, Policy: nodeconfig.ConflictNamespaceByOrigin, PerEpoch: true}}
	counted  = []nodeconfig.RelayTable{{Schema: "public", Name: "visits", Delivery: nodeconfig.DeliverCounter, Columns: []string{"n"}}}
)

// newCountingTree is two leaves, a branch of two relays that gather for different
// times, and a root that feeds a database and writes an archive.
func newCountingTree(t *testing.T) *relayTree {
	t.Helper()
	tr := &relayTree{t: t, dir: t.TempDir()}
	for i := range 2 {
		tr.leaves = append(tr.leaves, tr.start(fmt.Sprintf("count/leaf-%d", i), func(c *nodeconfig.Config) {
			c.Sources, c.Parents, c.Conflicts = []nodeconfig.Source{countingSource()}, &nodeconfig.Parents{}, perEpoch
		}, func(w *nodeconfig.Wiring) { w.Parents.Roots = []string{"count/root"} }))
	}
	var pair [2]*testnode.Node
	for j := range pair {
		pair[j] = tr.start(fmt.Sprintf("count/branch-%c", 'a'+j), func(c *nodeconfig.Config) {
			c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
			c.Conflicts, c.Relay = perEpoch, &nodeconfig.Relay{Window: time.Duration(20+130*j) * time.Millisecond, Tables: counted}
		}, childrenOf(tr.leaves, func(int) string { return "" }))
	}
	tr.relays = [][2]*testnode.Node{pair}
	tr.center = testpg.NewDB(t)
	center, err := testnode.Postgres(tr.center, tr.dir, "", measured)
	if err != nil {
		t.Fatal(err)
	}
	tr.root = tr.start("count/root", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}
		c.Conflicts, c.Root = perEpoch, &nodeconfig.Root{Tables: counted}
		c.Sinks = []nodeconfig.Sink{{Name: "center", Postgres: &nodeconfig.PostgresSink{PostgresServer: center.Postgres.PostgresServer, CreateTables: true, Provenance: true}}}
		c.Archives = []nodeconfig.Archive{{ArchiveStore: tr.archive(), Group: true, Write: &nodeconfig.ArchiveWrite{Interval: time.Second}}}
	}, childrenOf(pair[:], func(int) string { return "branch" }))
	for _, n := range []*testnode.Node{tr.leaves[0], tr.leaves[1], pair[0], pair[1], tr.root} {
		if err := n.WaitReady(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

// archive is where the root writes its tables.
func (tr *relayTree) archive() nodeconfig.ArchiveStore {
	return nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: filepath.Join(tr.dir, "archive")}}
}

// provenance returns what a node's read API says of a table: each row, and where it is
// from.
func provenance(n *testnode.Node, table engine.TableName) (string, error) {
	resp, err := http.Get("http://" + n.HTTP + "/v1/tables/" + table.String() + "/rows?provenance=true")
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var doc struct{ Rows []json.RawMessage }
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || len(doc.Rows) == 0 {
		return "", fmt.Errorf("%s: %d rows: %s: %w", table, len(doc.Rows), resp.Status, err)
	}
	var b strings.Builder
	for _, r := range doc.Rows {
		b.Write(append(r, '\n'))
	}
	return b.String(), nil
}

// add adds to a counter at a leaf.
func add(ctx context.Context, leaf *testnode.Node, key, page, n string) error {
	_, err := (&ingestapi.Client{URL: "http://" + leaf.HTTP}).Write(ctx, &ingest.Batch{Key: key, Ops: []ingest.Op{{
		Kind: ingest.Add, Table: visits, Row: []ingest.Field{{Column: "page", Value: &page}, {Column: "n", Value: &n}},
	}}})
	return err
}

func remove(ctx context.Context, leaf *testnode.Node, id string) error {
	at := leaf.ID
	_, err := (&ingestapi.Client{URL: "http://" + leaf.HTTP}).Write(ctx, &ingest.Batch{Key: "delete " + id, Ops: []ingest.Op{{
		Kind: ingest.Delete, Table: measured, Row: []ingest.Field{{Column: "leaf", Value: &at}, {Column: "id", Value: &id}},
	}}})
	return err
}

// counts returns what a node's read API says of a page: the total, and each leaf's
// share in each of its epochs.
func counts(n *testnode.Node, page string) (total string, shares []string, err error) {
	resp, err := http.Get("http://" + n.HTTP + "/v1/tables/public.visits/counters?key=" + page)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var doc struct {
		Counters []struct {
			Totals map[string]json.Number
			Shares []struct {
				Origin, Version string
				Epoch           json.Number
				Time            time.Time
				Values          map[string]json.Number
			}
		}
		Error string
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || len(doc.Counters) != 1 {
		return "", nil, fmt.Errorf("%d counters: %s %w", len(doc.Counters), doc.Error, err)
	}
	for _, s := range doc.Counters[0].Shares {
		if s.Version == "" || s.Time.IsZero() || s.Epoch == "" {
			return "", nil, fmt.Errorf("a share without its provenance: %+v", s)
		}
		shares = append(shares, s.Origin+"="+s.Values["n"].String())
	}
	return doc.Counters[0].Totals["n"].String(), shares, nil
}

// A root says of a counter the total and each leaf's share, to whoever asks: exactly,
// with two parents that gather differently, one of which is killed and comes back
// empty, so that all comes again, and with a leaf that lost all and counts from
// nothing. The rows that such a leaf had are deleted at the root, and where the root is
// read: by a client, in the database that it feeds, and by a node that has nothing but
// the archive that it writes.
func TestRootServes(t *testing.T) {
	t.Parallel()
	tr := newCountingTree(t)
	ctx := t.Context()
	until := func(what string, fn func() error) {
		t.Helper()
		var last error
		if err := testnode.Until(ctx, time.Minute, what, func() (bool, error) { last = fn(); return last == nil, nil }); err != nil {
			t.Fatalf("%v: %v", err, last)
		}
	}
	want := map[string]string{}
	for i, leaf := range tr.leaves {
		for k := range 5 {
			if err := tr.write(ctx, i, fmt.Sprint(k), "1"); err != nil {
				t.Fatal(err)
			}
			want[fmt.Sprintf("%s/%d", leaf.ID, k)] = "1"
			if err := add(ctx, leaf, fmt.Sprint("add", k), "home", fmt.Sprintf("%d.50", i+1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	read, err := client.New(client.WithUpstreams(tr.root.Repl))
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()

	cold := tr.start("count/cold", func(c *nodeconfig.Config) {
		c.Sources = []nodeconfig.Source{{Name: "archive", Archive: &nodeconfig.ArchiveSource{
			ArchiveStore: tr.archive(), Group: true, Follow: true, PollInterval: time.Second,
			Tables: []nodeconfig.Table{{Schema: "public", Name: "measured"}, {Schema: "public", Name: "visits"}},
		}}}
	}, nil)
	archived := func() {
		t.Helper()
		for _, table := range []engine.TableName{measured, visits} {
			until("the node with the archive to have "+table.String(), func() error {
				want, err := provenance(tr.root, table)
				if err != nil {
					return err
				}
				if got, err := provenance(cold, table); err != nil || got != want || !strings.Contains(got, "count/leaf-1#in") {
					return fmt.Errorf("it has\n%s, and the root\n%s (%v)", got, want, err)
				}
				return nil
			})
		}
	}
	total := func(n string, shares ...string) {
		t.Helper()
		until("the root to count "+n, func() error {
			got, all, err := counts(tr.root, "home")
			if err != nil || got != n || strings.Join(all, " ") != strings.Join(shares, " ") {
				return fmt.Errorf("it counts %s, of %v (%v)", got, all, err)
			}
			return nil
		})
		until("the client to count "+n, func() error {
			all, err := read.Counters(visits, "n")
			if err != nil || len(all) != 1 || all[0].Totals[0] != n || len(all[0].Shares) != len(shares) {
				return fmt.Errorf("it counts %+v (%v)", all, err)
			}
			return nil
		})
		until("the database to count "+n, func() error {
			rows, err := tr.center.QueryContext(ctx, `SELECT n FROM visits_total WHERE page = 'home'`)
			if err != nil || len(rows) != 1 || *rows[0][0] != n {
				return fmt.Errorf("it counts %v (%v)", rows, err)
			}
			if rows, err = tr.center.QueryContext(ctx, `SELECT count(*) FROM visits WHERE tributary_origin = origin AND tributary_epoch = epoch`); err != nil || *rows[0][0] != fmt.Sprint(len(shares)) {
				return fmt.Errorf("it has %s shares (%v)", *rows[0][0], err)
			}
			return nil
		})
	}
	rows := func() {
		t.Helper()
		until("the root to have the rows", func() error {
			got, err := rowsAt(tr.root)
			if err != nil || !maps.Equal(got, want) {
				return fmt.Errorf("%s (%v)", firstDifference(got, want), err)
			}
			return nil
		})
		until("the client to have the rows", func() error {
			all, err := read.All(measured)
			got := map[string]string{}
			for _, r := range all {
				key, _ := engine.DecodeKey(r.Key)
				got[string(key[0])+"/"+string(key[1])] = "1"
			}
			if err != nil || !maps.Equal(got, want) {
				return fmt.Errorf("%s (%v)", firstDifference(got, want), err)
			}
			return nil
		})
		until("the database to have the rows", func() error {
			got, err := tr.centerRows(ctx)
			if err != nil || !maps.Equal(got, want) {
				return fmt.Errorf("%s (%v)", firstDifference(got, want), err)
			}
			return nil
		})
	}
	total("20.00", "count/leaf-0#in=7.50", "count/leaf-1#in=12.50")
	rows()
	archived()

	// A relay that comes back empty reads its leaves from the start, and is read from
	// the start.
	a := tr.relays[0][0]
	a.Kill()
	if err := add(ctx, tr.leaves[0], "meanwhile", "home", "10"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(tr.dir, "count-branch-a", "store")); err != nil {
		t.Fatal(err)
	}
	if err := a.Run(ctx); err != nil {
		t.Fatal(err)
	}
	until("the relay to count", func() error {
		got, _, err := counts(a, "home")
		if got != "30.00" {
			return fmt.Errorf("it counts %s (%v)", got, err)
		}
		return nil
	})
	total("30.00", "count/leaf-0#in=17.50", "count/leaf-1#in=12.50")

	// A row is deleted, and the leaf adds on.
	if err := remove(ctx, tr.leaves[1], "4"); err != nil {
		t.Fatal(err)
	}
	delete(want, tr.leaves[1].ID+"/4")
	rows()

	// A leaf that has lost all.
	leaf := tr.leaves[0]
	leaf.Kill()
	if err := os.RemoveAll(filepath.Join(tr.dir, "count-leaf-0", "store")); err != nil {
		t.Fatal(err)
	}
	if err := leaf.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := leaf.WaitReady(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, leaf, "again", [2]string{"7", "1"}); err != nil {
		t.Fatal(err)
	}
	if err := add(ctx, leaf, "add again", "home", "0.25"); err != nil {
		t.Fatal(err)
	}
	for k := range 5 {
		delete(want, fmt.Sprintf("%s/%d", leaf.ID, k))
	}
	want[leaf.ID+"/7"] = "1"
	rows()
	total("30.25", "count/leaf-0#in=17.50", "count/leaf-0#in=0.25", "count/leaf-1#in=12.50")
	archived()

	var st nodeconfig.Statusz
	if st, err = statusOf(tr.root); err != nil {
		t.Fatal(err)
	}
	if q := st.Tree; q.Role != nodeconfig.RoleRoot || q.Children != 2 || q.Logs != 2 || q.Cursors != 2 || q.Log == "" {
		t.Errorf("the root: %+v", q)
	}
}
