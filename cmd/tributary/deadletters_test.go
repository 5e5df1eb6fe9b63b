package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/internal/testport"
	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// TestMain runs a node where tributary run starts this program as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "node" {
		os.Exit(node.Main(os.Args[2:], os.Stderr))
	}
	os.Exit(testpg.Main(tests3.With(m), testpg.Options{}))
}

func tributary(args ...string) (string, error) {
	var out bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(context.Background())
	return out.String(), err
}

// The dead letters of a real node, as a local run and through an API server's
// proxy.
func TestDeadLetters(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	from, to := testpg.NewDB(t), testpg.NewDB(t)
	from.Exec(t, `CREATE TABLE a (id int PRIMARY KEY, v text)`)
	to.Exec(t, `CREATE TABLE a (id int PRIMARY KEY, v text CONSTRAINT short CHECK (length(v) < 5))`)
	dir := t.TempDir()
	pass := filepath.Join(dir, "password")
	if err := os.WriteFile(pass, []byte(testpg.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	web, err := testport.TakeAddress()
	if err != nil {
		t.Fatal(err)
	}
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
  - {name: copy, onReject: DeadLetter, postgres: {%s}}
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

	// What tributary run writes, and an API server that passes calls on to the pod.
	if err := os.WriteFile(filepath.Join(dir, "run.json"), []byte(fmt.Sprintf(`{"nodes":[{"id":"shop/copy","http":"http://%s"}]}`, web)), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: web})
	api := httptest.NewServer(http.StripPrefix("/api/v1/namespaces/shop/pods/copy-0:8080/proxy", pod))
	t.Cleanup(api.Close)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: "%s"}}], contexts: [{name: c, context: {cluster: c, namespace: shop, user: u}}], users: [{name: u, user: {}}]}`, api.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	local, cluster := []string{"--run", dir}, []string{"--kubeconfig", kubeconfig}
	on := func(place []string, args ...string) (string, error) {
		t.Helper()
		out, err := tributary(append(append([]string{"deadletters"}, args...), place...)...)
		t.Logf("%v: %s%v", args, out, err)
		return out, err
	}
	waitFor := func(n int) (ids []string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			out, err := tributary(append([]string{"deadletters", "list", "copy", "copy"}, local...)...)
			if ids = regexp.MustCompile(`(?m)^[0-9a-f]{24}`).FindAllString(out, -1); err == nil && len(ids) == n && (n > 0 || strings.Contains(out, "no dead letters")) {
				return ids
			}
			if time.Now().After(deadline) {
				t.Fatalf("waiting for %d dead letters: %s%v", n, out, err)
			}
		}
	}
	waitFor(0)
	from.Exec(t, `INSERT INTO a VALUES (1, 'too long'), (2, 'longer still'), (3, 'and this'), (4, 'ok')`)
	ids := waitFor(3)

	out, err := on(cluster, "list", "copy", "copy")
	if err != nil || !strings.Contains(out, "public.a") || !strings.Contains(out, "(2)") || !strings.Contains(out, "short") {
		t.Error("the list through the API server is not whole")
	}
	out, err = on(cluster, "show", "copy", "copy", ids[0][:12])
	if err != nil || !strings.Contains(out, `"too long"`) || !strings.Contains(out, "shop/copy#db@") {
		t.Error("what is shown is not whole")
	}
	if _, err := on(local, "replay", "copy", "copy", ids[0]); err == nil || !strings.Contains(err.Error(), "1 of 1 dead letters are left") {
		t.Errorf("replayed into a target that rejects it: %v", err)
	}
	if out, err := on(local, "discard", "copy", "copy", ids[0]); err != nil || !strings.Contains(out, ids[0]+": Discarded") {
		t.Error("not discarded")
	}
	to.Exec(t, `ALTER TABLE a DROP CONSTRAINT short`)
	if out, err := on(cluster, "requeue", "copy", "copy", "--all"); err != nil || strings.Count(out, ": Applied") != 2 {
		t.Error("not all are replayed")
	}
	waitFor(0)
	if got := to.Value(t, `SELECT string_agg(id::text, ',' ORDER BY id) FROM a`); got != "2,3,4" {
		t.Errorf("the target has %s", got)
	}

	for _, c := range []struct {
		place []string
		args  []string
		want  string
	}{
		{local, []string{"show", "copy", "copy", "none"}, `sink copy has no dead letter "none": list them by`},
		{local, []string{"list", "copy", "other"}, `this node has no sink "other"`},
		{local, []string{"list", "nobody", "copy"}, "has no node nobody"},
		{local, []string{"replay", "copy", "copy"}, "say which dead letters to replay: their ids, or --all"},
		{local, []string{"discard", "copy", "copy", "x", "--all"}, "say which dead letters to discard: their ids, or --all"},
		{cluster, []string{"list", "other", "copy"}, "node shop/other answers 404"},
	} {
		if _, err := on(c.place, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.args, err, c.want)
		}
	}
	if out, err := tributary("deadletters", "--help"); err != nil || !strings.Contains(out, "replay") {
		t.Errorf("help: %s%v", out, err)
	}
}
