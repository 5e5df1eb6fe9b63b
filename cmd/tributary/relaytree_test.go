package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/localrun"
	"github.com/tributary-dev/tributary/internal/testport"
)

// A relay tree of the manifests runs as local processes. It grows by a branch and loses it
// again while its leaves are written to: the branch ends by itself, and the root has what
// was written.
func TestRelayTreeRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "tree.yaml")
	manifests := func(branches int) {
		t.Helper()
		text := fmt.Sprintf(`apiVersion: tributary.dev/v1alpha1
kind: RelayTree
metadata: {name: sales}
spec:
  branches: {count: %d}
  redundancy: {parents: 1}
  leaves: {selector: {matchLabels: {sales: till}}}
`, branches)
		for i := range 3 {
			text += fmt.Sprintf(`---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: till-%d, labels: {sales: till}}
spec:
  storage: {type: Persistent, size: 1Gi}
  sources:
  - name: local
    ingest: {tables: [{schema: public, name: orders, columns: [{name: id, type: bigint, key: true}, {name: state, type: text}]}]}
`, i)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	manifests(1)
	if out, err := tributary("validate", "-f", file); err != nil || !strings.Contains(out, "1 relay tree") {
		t.Fatalf("%s%v", out, err)
	}
	port, err := testport.TakeRow(100)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		c := command()
		c.SetOut(t.Output())
		c.SetErr(t.Output())
		c.SetArgs([]string{"run", "-f", file, "--dir", filepath.Join(dir, "run"), "--first-port", strconv.Itoa(port)})
		done <- c.ExecuteContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	until := func(what string, ok func() error) {
		t.Helper()
		for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			err := ok()
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	at := func(name string) (string, error) {
		st, err := localrun.ReadState(filepath.Join(dir, "run"))
		if err != nil {
			return "", err
		}
		for _, n := range st.Nodes {
			if n.ID == "default/"+name {
				return n.HTTP, nil
			}
		}
		return "", fmt.Errorf("%s does not run", name)
	}
	want := map[string]string{}
	batch := filepath.Join(dir, "batch.json")
	write := func(state string) {
		t.Helper()
		for i := range 30 {
			text := fmt.Sprintf(`{"operations": [{"op": "put", "table": "orders", "row": {"id": %d, "state": %q}}]}`, i, state)
			if err := os.WriteFile(batch, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			until("a write", func() error {
				node, err := at(fmt.Sprintf("till-%d", i%3))
				if err == nil {
					_, err = tributary("write", "--node", node, "-f", batch)
				}
				return err
			})
			want[strconv.Itoa(i)] = state
		}
	}
	rows := func() error {
		node, err := at("sales-root-0")
		if err != nil {
			return err
		}
		resp, err := http.Get(node + "/v1/tables/public.orders/rows")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		var page struct {
			Rows []struct {
				ID    json.Number
				State string
			}
		}
		if err := json.Unmarshal(text, &page); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		got := map[string]string{}
		for _, r := range page.Rows {
			got[r.ID.String()] = r.State
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("the root has %v, and %v was written", got, want)
		}
		return nil
	}
	drawn := func(has ...string) func() error {
		return func() error {
			out, err := tributary("tree", "--run", filepath.Join(dir, "run"))
			for _, h := range has {
				if err == nil && !strings.Contains(strings.Join(strings.Fields(out), " "), h) {
					err = fmt.Errorf("no %q in\n%s", h, out)
				}
			}
			return err
		}
	}
	write("new")
	until("the rows at the root", rows)
	until("the tree", drawn("◆ tree default/sales Ready", "◆ branch default/sales/b0 Ready", "default/sales-root-0 Streaming 0.0s 1 of 1 children", "default/sales-b0-0 Streaming 0.0s 3 of 3 children"))

	manifests(2)
	write("paid")
	until("two branches", drawn("2 of 2 children", "branch default/sales/b1 Ready", "1 of 1 children"))
	until("the rows at the root", rows)
	manifests(1)
	write("sent")
	until("the end of b1", func() error {
		if _, err := at("sales-b1-0"); err == nil {
			return fmt.Errorf("it runs: %w", drawn("sales-b1-0 is gone")())
		}
		return nil
	})
	until("the rows at the root", rows)
	until("one branch", drawn("3 of 3 children", "1 of 1 children"))
}
