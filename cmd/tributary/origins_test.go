package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/localrun"
	"github.com/tributary-dev/tributary/internal/origins"
	"github.com/tributary-dev/tributary/internal/testport"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// A mesh of the manifests runs as local processes: what is written at each node
// comes to all, and tree and origins show it.
func TestMeshRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	t.Parallel()
	dir := t.TempDir()
	port, err := testport.TakeRow(20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		c := command()
		c.SetOut(t.Output())
		c.SetErr(t.Output())
		c.SetArgs([]string{
			"run", "-f", filepath.Join("..", "..", "examples", "cluster", "mesh.yaml"), "--dir", dir,
			"--first-port", strconv.Itoa(port),
		})
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
		for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			err := ok()
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	writers := []string{"east", "north", "west"}
	batch := filepath.Join(dir, "batch.json")
	for i, w := range writers {
		text := fmt.Sprintf(`{"idempotencyKey": "%s", "operations": [{"op": "put", "table": "orders", "row": {"id": %d, "state": "new"}}]}`, w, i)
		if err := os.WriteFile(batch, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		until("a write to "+w, func() error {
			st, err := localrun.ReadState(dir)
			if err != nil {
				return err
			}
			for _, n := range st.Nodes {
				if n.ID == "default/"+w {
					out, err := tributary("write", "--node", n.HTTP, "-f", batch)
					if err != nil {
						err = fmt.Errorf("%s%w", out, err)
					}
					return err
				}
			}
			return fmt.Errorf("%s does not run", w)
		})
	}
	var r origins.Report
	until("every log at every node", func() error {
		out, err := tributary("origins", "--run", dir, "-o", "json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			return err
		}
		for _, l := range r.Logs {
			if l.State != nodeconfig.LogCurrent || l.Applied != "0000000000000001" || l.Head != l.Applied || l.LagSeconds == nil || *l.LagSeconds != 0 {
				return fmt.Errorf("%+v", l)
			}
		}
		if len(r.Logs) != 4*len(writers) || len(r.Silent) > 0 {
			return fmt.Errorf("%d logs, %v", len(r.Logs), r.Silent)
		}
		return nil
	})
	until("the table", func() error {
		out, err := tributary("origins", "west", "--run", dir)
		if err == nil && (strings.Count(out, "default/west ") != 3 || strings.Contains(out, "default/reader ")) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if out, err := tributary("origins", "nobody", "--run", dir); err == nil || !strings.Contains(err.Error(), "no node nobody runs there") {
		t.Errorf("%s%v", out, err)
	}
	until("the tree", func() error {
		out, err := tributary("tree", "--run", dir)
		if err == nil && (!strings.HasPrefix(strings.SplitN(out, "\n", 2)[1], "◆ mesh default/shops ") || strings.Count(out, "writers, 2 of 2 peers") != 3 ||
			!strings.Contains(out, "─ ● default/reader ")) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}
