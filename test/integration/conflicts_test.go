package integration

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// TestMeshConflicts: two nodes of a mesh, one on disk and one in memory, write the
// same rows of a table whose rows have owners, and of one in which each origin has
// its own. Both end with the same rows, and refuse to write a row of the other's.
func TestMeshConflicts(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	owned, each := engine.TableName{Schema: "public", Name: "owned"}, engine.TableName{Schema: "public", Name: "each"}
	columns := []nodeconfig.IngestColumn{{Name: "id", Type: "text", Key: true}, {Name: "n", Type: "numeric"}}
	var nodes []*testnode.Node
	for i := range 2 {
		o := testnode.Options{ID: fmt.Sprint("shop/m", i), Dir: filepath.Join(dir, strconv.Itoa(i)), Source: nodeconfig.Source{
			Name: "in", Ingest: &nodeconfig.Ingest{Volatile: i == 1, Tables: []nodeconfig.IngestTable{
				{Schema: owned.Schema, Name: owned.Name, Columns: columns}, {Schema: each.Schema, Name: each.Name, Columns: columns},
			}},
		}, Configure: func(c *nodeconfig.Config) {
			c.Sources = append(c.Sources, nodeconfig.Source{Name: "mesh", Mesh: &nodeconfig.Mesh{}})
			c.Conflicts = []nodeconfig.Conflict{
				{Table: nodeconfig.Table{Schema: owned.Schema, Name: owned.Name}, Policy: nodeconfig.ConflictOriginOwnsKey, OwnerColumn: "id", Owners: []nodeconfig.Owner{
					{Prefix: "eu-", Node: "shop/m0"}, {Node: "shop/m1"},
				}},
				{Table: nodeconfig.Table{Schema: each.Schema, Name: each.Name}, Policy: nodeconfig.ConflictNamespaceByOrigin},
			}
		}}
		if i == 0 {
			o.Storage = nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(o.Dir, "store")}
		}
		n, err := testnode.Start(ctx, ownProcess(t, o))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Kill)
		nodes = append(nodes, n)
	}
	for i, n := range nodes {
		if err := n.Wire(nodes[1-i]); err != nil {
			t.Fatal(err)
		}
		if err := n.WaitReady(ctx, 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	ids := []string{"eu-1", "eu-2", "us-1"}
	for i, n := range nodes {
		api := &ingestapi.Client{URL: "http://" + n.HTTP}
		for _, table := range []engine.TableName{owned, each} {
			for _, id := range ids {
				for range 2 { // what is there is added to: ingest finds its own row
					one := strconv.Itoa(i + 1)
					b := &ingest.Batch{Ops: []ingest.Op{{Kind: ingest.Add, Table: table, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "n", Value: &one}}}}}
					var refused *ingest.Error
					switch _, err := api.Write(ctx, b); {
					case table == owned && strings.HasPrefix(id, "eu-") != (i == 0):
						if !errors.As(err, &refused) || refused.Code != ingest.Conflict || !strings.Contains(err.Error(), "belongs to node "+nodes[1-i].ID) {
							t.Fatalf("a write to %s's row at %s is answered with %v", nodes[1-i].ID, n.ID, err)
						}
					case err != nil:
						t.Fatal(err)
					}
				}
			}
		}
	}
	want := "eu-1=2 shop/m0#in, eu-1=4 shop/m1#in, eu-2=2 shop/m0#in, eu-2=4 shop/m1#in, us-1=2 shop/m0#in, us-1=4 shop/m1#in, eu-1=2, eu-2=2, us-1=4"
	for i, n := range nodes {
		var got string
		err := testnode.Until(ctx, 30*time.Second, "the rows", func() (bool, error) {
			c, err := client.New(client.WithUpstreams(n.Repl))
			if err != nil {
				return false, err
			}
			defer c.Close()
			if err := c.AwaitReady(ctx); err != nil {
				return false, err
			}
			var have []string
			for _, table := range []engine.TableName{each, owned} {
				rows, err := c.All(table)
				if err != nil {
					return false, nil // the table has not come yet
				}
				for i := range rows {
					id, _ := client.Text(&rows[i], "id")
					v, _ := client.Text(&rows[i], "n")
					origin, _ := client.Text(&rows[i], "origin")
					have = append(have, strings.TrimSpace(id+"="+v+" "+origin))
				}
			}
			got = strings.Join(have, ", ")
			return got == want, nil
		})
		if err != nil {
			t.Errorf("%s holds %s (%v), not %s", n.ID, got, err, want)
		}
		st, err := statusOf(n)
		if err != nil {
			t.Fatal(err)
		}
		other, err := statusOf(nodes[1-i])
		if err != nil || st.ConflictDigest == "" || st.ConflictDigest != other.ConflictDigest {
			t.Errorf("digests %q and %q: %v", st.ConflictDigest, other.ConflictDigest, err)
		}
		for _, table := range st.Tables {
			if !strings.HasSuffix(table.Name, "owned") {
				continue
			}
			if c := table.Conflicts; c == nil || c.Policy != nodeconfig.ConflictOriginOwnsKey || len(c.Refused) > 0 {
				t.Errorf("%s counts %+v", n.ID, c)
			}
		}
	}
}
