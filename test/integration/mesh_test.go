package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// statusOf returns a node's status document.
func statusOf(n *testnode.Node) (st nodeconfig.Statusz, err error) {
	return n.Status()
}

// TestMesh: three nodes without a database write to the same rows, each to its own
// write API. One is killed again and again, and comes back. In the end all hold
// the same, and nobody has taken a baseline of what it had.
func TestMesh(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	var nodes []*testnode.Node
	for i := range 3 {
		id := fmt.Sprintf("shop/m%d", i)
		o := testnode.Options{ID: id, Dir: filepath.Join(dir, strconv.Itoa(i)), Source: tallySource(), Configure: func(c *nodeconfig.Config) {
			c.Sources = append(c.Sources, nodeconfig.Source{Name: "mesh", Mesh: &nodeconfig.Mesh{}})
		}}
		o.Storage = nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(o.Dir, "store")}
		n, err := testnode.Start(ctx, ownProcess(t, o))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			n.Kill()
			if t.Failed() {
				log, _ := os.ReadFile(n.Log())
				t.Logf("%s:\n%s", id, log)
			}
		})
		nodes = append(nodes, n)
	}
	for i, n := range nodes {
		if err := n.Wire(nodes[(i+1)%3], nodes[(i+2)%3]); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		if err := n.WaitReady(ctx, 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	const rows, each = 20, 150
	var wg sync.WaitGroup
	for w, n := range nodes {
		api := &ingestapi.Client{URL: "http://" + n.HTTP}
		wg.Go(func() {
			for i := range each {
				id, v := strconv.Itoa(i%rows), fmt.Sprintf("%d%04d", w, i)
				b := &ingest.Batch{Key: fmt.Sprintf("%d/%d", w, i), Ops: []ingest.Op{{Kind: ingest.Put, Table: tally, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "n", Value: &v}}}}}
				if i%17 == 3 {
					b.Ops = []ingest.Op{{Kind: ingest.Delete, Table: tally, Row: []ingest.Field{{Column: "id", Value: &id}}}}
				}
				for {
					_, err := api.Write(ctx, b)
					var e *ingest.Error
					if err == nil || ctx.Err() != nil {
						break
					}
					if errors.As(err, &e) && e.Code != ingest.Unavailable && e.Code != ingest.Unknown {
						t.Errorf("writer %d: %v", w, err)
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	for k := range 3 {
		time.Sleep(time.Duration(300+200*k) * time.Millisecond)
		nodes[1].Kill()
		time.Sleep(200 * time.Millisecond)
		if err := nodes[1].Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	read := func(n *testnode.Node) (map[string]string, error) {
		c, err := client.New(client.WithUpstreams(n.Repl), client.WithTables(tally))
		if err != nil {
			return nil, err
		}
		defer c.Close()
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := c.AwaitReady(wait); err != nil {
			return nil, err
		}
		all := map[string]string{}
		for i := range rows {
			row, ok, err := c.Get(tally, strconv.Itoa(i))
			if err != nil {
				return nil, err
			}
			if v, has := client.Text(&row, "n"); ok && has {
				all[strconv.Itoa(i)] = v
			}
		}
		return all, nil
	}
	var sts [3]nodeconfig.Statusz
	err := testnode.Until(ctx, 60*time.Second, "the nodes hold the same logs", func() (bool, error) {
		heads := make([]map[string]string, 3)
		for i, n := range nodes {
			var err error
			if sts[i], err = statusOf(n); err != nil {
				return false, nil
			}
			heads[i] = map[string]string{}
			for _, l := range sts[i].Logs {
				heads[i][l.Origin+"@"+l.Epoch] = l.Head
				if l.State != nodeconfig.LogCurrent {
					return false, nil
				}
			}
		}
		return len(heads[0]) == 3 && maps.Equal(heads[0], heads[1]) && maps.Equal(heads[1], heads[2]), nil
	})
	if err != nil {
		for _, st := range sts {
			text, _ := json.MarshalIndent(st, "", " ")
			t.Logf("%s", text)
		}
		t.Fatal(err)
	}
	want, err := read(nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(want) == 0 {
		t.Fatal("nothing is left of what was written")
	}
	for _, n := range nodes[1:] {
		if have, err := read(n); err != nil || !maps.Equal(want, have) {
			t.Errorf("%s holds %v (%v), and %s %v", n.ID, have, err, nodes[0].ID, want)
		}
	}
	for _, st := range sts {
		for _, l := range st.Logs {
			if d := l.Delivery; d != nil && (d.Snapshots > 1 || l.Peer == "") {
				t.Errorf("%s: log of %s: %+v %+v", st.Node, l.Origin, l, d)
			}
		}
	}
}
