package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

var tally = engine.TableName{Schema: "public", Name: "tally"}

func tallySource(more ...nodeconfig.IngestColumn) nodeconfig.Source {
	return nodeconfig.Source{Name: "in", Ingest: &nodeconfig.Ingest{Tables: []nodeconfig.IngestTable{{Schema: "public", Name: "tally", Columns: append([]nodeconfig.IngestColumn{
		{Name: "id", Type: "bigint", Key: true}, {Name: "n", Type: "numeric"},
	}, more...)}}}}
}

// TestIngest: writers add to the rows of a node that is killed again and again,
// and send what they had no answer to again, with the same key. Every number is
// counted once, at the node, at one that reads it, and at a reader of that.
func TestIngest(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	start := func(o testnode.Options) *testnode.Node {
		t.Helper()
		o.Dir = filepath.Join(dir, o.ID)
		o.Storage = nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(o.Dir, "store")}
		n, err := testnode.Start(ctx, ownProcess(t, o))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			n.Kill()
			if t.Failed() {
				log, _ := os.ReadFile(n.Log())
				t.Logf("%s:\n%s", o.ID, log)
			}
		})
		if err := n.WaitReady(ctx, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		return n
	}
	leaf := start(testnode.Options{ID: "leaf", Source: tallySource()})
	hub := start(testnode.Options{ID: "hub", Source: nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, Parents: []*testnode.Node{leaf}})
	read, err := client.New(client.WithUpstreams(hub.Repl), client.WithTables(tally))
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()

	const rows, writers, each = 5, 8, 60
	api := &ingestapi.Client{URL: "http://" + leaf.HTTP}
	add := func(key string, row int, n string) error {
		id := strconv.Itoa(row)
		b := &ingest.Batch{Key: key, Ops: []ingest.Op{{Kind: ingest.Add, Table: tally, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "n", Value: &n}}}}}
		for {
			_, err := api.Write(ctx, b)
			var e *ingest.Error
			switch {
			case err == nil:
				return nil
			case ctx.Err() != nil, errors.As(err, &e) && e.Code != ingest.Unavailable && e.Code != ingest.Unknown:
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := add(fmt.Sprintf("%d/%d", w, i), (w+i)%rows, "0.1"); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); wg.Wait() }()
	kills := 0
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(time.Duration(100+kills*150) * time.Millisecond):
			if kills < 4 {
				kills++
				leaf.Kill()
				if err := leaf.Run(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	want := map[string]string{}
	for i := range rows {
		want[strconv.Itoa(i)] = fmt.Sprintf("%d.%d", writers*each/rows/10, writers*each/rows%10)
	}
	expect := func(column string, want map[string]string) {
		t.Helper()
		wait, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if err := read.AwaitReady(wait); err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			got = map[string]string{}
			for _, id := range slices.Sorted(maps.Keys(want)) {
				if row, ok, err := read.Get(tally, id); err == nil && ok {
					if v, ok := client.Text(&row, column); ok {
						got[id] = v
					}
				}
			}
			if maps.Equal(got, want) {
				return
			}
		}
		t.Fatalf("after %d kills the reader has %v, want %v", kills, got, want)
	}
	expect("n", want)
	if kills == 0 {
		t.Error("the node was never killed")
	}
	if n, err := leaf.Metric("tributary_ingest_idempotency_keys"); err != nil || n != writers*each {
		t.Errorf("%v keys are remembered, want %d (%v)", n, writers*each, err)
	}

	// A column is added; what is there stays, and readers go on.
	leaf.Stop()
	cfg, err := nodeconfig.Load(filepath.Join(dir, "leaf", "node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Sources = []nodeconfig.Source{tallySource(nodeconfig.IngestColumn{Name: "note", Type: "text"})}
	cfg.SetDefaults()
	text, err := cfg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "leaf", "node.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := leaf.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := leaf.WaitReady(ctx, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	id, note := "3", "here"
	if _, err := api.Write(ctx, &ingest.Batch{Ops: []ingest.Op{{Kind: ingest.Set, Table: tally, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "note", Value: &note}}}}}); err != nil {
		t.Fatal(err)
	}
	expect("note", map[string]string{"3": "here"})
	expect("n", want)
}
