package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// A node of a configuration file delivers to a database; what that rejects is
// listed and replayed over the node's address.
func TestSinkOfANode(t *testing.T) {
	t.Parallel()
	from, to := testpg.NewDB(t), testpg.NewDB(t)
	from.Exec(t, `CREATE TABLE a (id int PRIMARY KEY, v text)`, `INSERT INTO a VALUES (1, 'x')`)
	dir := t.TempDir()
	pass := filepath.Join(dir, "password")
	if err := os.WriteFile(pass, []byte(testpg.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	web := freeAddress(t)
	server := func(db *testpg.DB) string {
		return fmt.Sprintf("hosts: [{host: 127.0.0.1, port: %d}], database: %s, user: %s, passwordFile: %s, sslMode: disable", db.Server.Port, db.Name, testpg.User, pass)
	}
	cfg, err := nodeconfig.Parse("node.yaml", []byte(fmt.Sprintf(`
version: 1
node: {id: shop/copy}
listen: {replication: "127.0.0.1:0", http: "%s"}
storage: {type: pebble, path: %s}
drainTimeout: 100ms
sources:
  - name: db
    postgres: {%s, publication: {name: pub, managed: true}, slot: slot_%s, tables: [{schema: public, name: a}]}
sinks:
  - name: copy
    onReject: DeadLetter
    tables: [{schema: public, name: a}]
    postgres: {%s, schema: mirror, createTables: true}
`, web, filepath.Join(dir, "store"), server(from), from.Name, server(to))))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- node.Run(ctx, node.Options{Config: cfg, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("node: %v", err)
		}
	})
	call := func(method, path string) string {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+web+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !cond(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waiting for %s: %s", what, call("GET", "/sinks"))
			}
		}
	}
	status := func() (s nodeconfig.SinkStatus) {
		var doc nodeconfig.Statusz
		if json.Unmarshal([]byte(call("GET", "/statusz")), &doc) == nil && len(doc.Sinks) == 1 {
			s = doc.Sinks[0]
		}
		return s
	}
	until("the baseline", func() bool { s := status(); return s.State == nodeconfig.SinkStreaming && s.Baselines == 1 })
	to.Exec(t, `ALTER TABLE mirror.a ADD CONSTRAINT short CHECK (length(v) < 5)`)
	from.Exec(t, `INSERT INTO a VALUES (2, 'too long'), (3, 'ok')`)
	until("the dead letter", func() bool { return status().DeadLetters == 1 })
	list := call("GET", "/sinks/copy/deadletters")
	for _, want := range []string{`"table": "public.a"`, `"key": "(2)"`, `"v": "too long"`, "short"} {
		if !strings.Contains(list, want) {
			t.Errorf("the list lacks %s: %s", want, list)
		}
	}
	to.Exec(t, `ALTER TABLE mirror.a DROP CONSTRAINT short`)
	if out := call("POST", "/sinks/copy/deadletters/replay"); !strings.Contains(out, `"outcome": "Applied"`) {
		t.Errorf("replay: %s", out)
	}
	if got := to.Value(t, `SELECT string_agg(id || v, ',' ORDER BY id) FROM mirror.a`); got != "1x,2too long,3ok" {
		t.Errorf("the target has %s", got)
	}
	if out := call("POST", "/sinks/copy/deadletters/none/discard"); !strings.Contains(out, "has no dead letter none") {
		t.Errorf("discard: %s", out)
	}
	metrics := call("GET", "/metrics")
	for _, want := range []string{`tributary_sink_dead_letters{sink="copy"} 0`, `tributary_sink_held{origin="shop/copy#db",sink="copy"} 0`, `tributary_sink_rejected_total{sink="copy"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
