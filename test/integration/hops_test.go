// Package integration runs whole nodes, in this process, between a real
// PostgreSQL and a real reader.
package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/internal/testport"
	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// nodeEnv makes a process of the test a node.
const nodeEnv = "TRIBUTARY_TEST_NODE"

// ownProcess makes a node of the options a process of this program: no test has to wait
// for another to be built.
func ownProcess(t *testing.T, o testnode.Options) testnode.Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Binary, o.Env = self, append(o.Env, nodeEnv+"=1")
	return o
}

func TestMain(m *testing.M) {
	if os.Getenv(nodeEnv) != "" {
		os.Exit(node.Main(os.Args[1:], os.Stderr))
	}
	os.Exit(testpg.Main(tests3.With(m), testpg.Options{Settings: map[string]string{"timezone": "Asia/Kolkata"}}))
}

// hops is a database, two nodes in a row and a reader of the second.
type hops struct {
	db     *testpg.DB
	tables []engine.TableName
	read   *client.Client
	nodes  []*running
}

type running struct {
	id, repl, http string
	stop           func()
	again          func() // starts it anew, at the same addresses
	cfg            *nodeconfig.Config
	file           string    // of cfg
	process        *exec.Cmd // of a node that asProcess has started
}

// twoHops starts the nodes over a database whose tables exist.
func twoHops(t *testing.T, db *testpg.DB, tables ...engine.TableName) *hops {
	t.Helper()
	h := &hops{db: db, tables: tables}
	top := startNode(t, "hops/top", nodeconfig.Source{Name: "db", Postgres: database(t, db, tables...)})
	below := startNode(t, "hops/below", nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, top)
	h.nodes = []*running{top, below}
	h.read = readerOf(t, below)
	return h
}

// readerOf returns a reader of a node that has all of its tables, or what opts say.
func readerOf(t *testing.T, n *running, opts ...client.Option) *client.Client {
	t.Helper()
	read, err := client.New(append(opts, client.WithUpstreams(n.repl), client.WithLogger(slog.New(slog.DiscardHandler)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(read.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := read.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return read
}

// database is the configuration of a source of tables.
func database(t *testing.T, db *testpg.DB, tables ...engine.TableName) *nodeconfig.Postgres {
	t.Helper()
	pass := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(pass, []byte(testpg.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	pg := &nodeconfig.Postgres{
		PostgresServer: nodeconfig.PostgresServer{
			Hosts: []nodeconfig.Host{{Host: "127.0.0.1", Port: db.Server.Port}}, Database: db.Name,
			User: testpg.User, PasswordFile: pass, SSLMode: nodeconfig.SSLDisable,
		},
		Publication: nodeconfig.Publication{Name: "Pub", Managed: true}, Slot: "slot_" + strings.ToLower(db.Name),
	}
	for _, n := range tables {
		pg.Tables = append(pg.Tables, nodeconfig.Table{Schema: n.Schema, Name: n.Name})
	}
	return pg
}

func startNode(t *testing.T, id string, src nodeconfig.Source, parents ...*running) *running {
	t.Helper()
	return startConfig(t, id, nodeconfig.Config{Sources: []nodeconfig.Source{src}}, parents...)
}

// startConfig starts a node of a configuration that says what is particular to
// it. Its first source reads from parents, if there are any.
func startConfig(t *testing.T, id string, c nodeconfig.Config, parents ...*running) *running {
	t.Helper()
	r := configured(t, id, c, parents...)
	r.again()
	return r
}

// configured returns a node that is yet to be started.
func configured(t *testing.T, id string, c nodeconfig.Config, parents ...*running) *running {
	t.Helper()
	r := &running{id: id, repl: freeAddress(t), http: freeAddress(t)}
	cfg := &c
	cfg.Version, cfg.Node, cfg.DrainTimeout = nodeconfig.Version, nodeconfig.Node{ID: id}, 100*time.Millisecond
	cfg.Listen = nodeconfig.Listen{Replication: r.repl, HTTP: r.http}
	if len(parents) > 0 {
		w := nodeconfig.Wiring{Version: nodeconfig.Version, Epoch: 1, Sources: []nodeconfig.WiredSource{{Name: cfg.Sources[0].Name}}}
		for _, p := range parents {
			w.Sources[0].Candidates = append(w.Sources[0].Candidates, nodeconfig.Candidate{ID: p.id, Address: p.repl, Eligible: true})
		}
		w.SetDefaults()
		text, err := w.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		cfg.WiringFile = filepath.Join(t.TempDir(), "wiring.yaml")
		if err := os.WriteFile(cfg.WiringFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg.SetDefaults()
	r.cfg, r.file = cfg, filepath.Join(t.TempDir(), "node.yaml")
	r.write(t, cfg)
	r.stop = func() {}
	r.again = func() {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- node.Run(ctx, node.Options{Config: cfg, ConfigFile: r.file, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		}()
		r.stop = func() {
			cancel()
			r.stop = func() {}
			if err := <-done; err != nil {
				t.Errorf("node %s: %v", id, err)
			}
		}
	}
	t.Cleanup(func() { r.stop() })
	return r
}

// write makes a configuration that of the node's file.
func (r *running) write(t *testing.T, c *nodeconfig.Config) {
	t.Helper()
	text, err := c.Marshal()
	if err == nil {
		err = os.WriteFile(r.file+".new", text, 0o644)
	}
	if err == nil {
		err = os.Rename(r.file+".new", r.file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := testport.TakeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// source returns a table's rows as PostgreSQL prints them: each column's text
// under the settings that values are pinned to, null as such.
func (h *hops) source(t *testing.T, table engine.TableName) []string {
	t.Helper()
	name := testpg.QuoteIdent(table.Schema) + "." + testpg.QuoteIdent(table.Name)
	columns := h.db.Query(t, fmt.Sprintf("SELECT attname FROM pg_attribute WHERE attrelid = '%s'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum", strings.ReplaceAll(name, "'", "''")))
	var list []string
	for _, c := range columns {
		list = append(list, testpg.QuoteIdent(*c[0])+"::text")
	}
	conn, err := h.db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	results, err := conn.Exec(t.Context(), `SET datestyle = 'ISO, MDY'; SET intervalstyle = 'postgres'; SET extra_float_digits = 3;
		SET timezone = 'UTC'; SET bytea_output = 'hex'; SELECT `+strings.Join(list, ", ")+" FROM "+name).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, r := range results[len(results)-1].Rows {
		var b strings.Builder
		for _, v := range r {
			if v == nil {
				b.WriteString("∅|")
			} else {
				fmt.Fprintf(&b, "%q|", v)
			}
		}
		rows = append(rows, b.String())
	}
	slices.Sort(rows)
	return rows
}

// reader returns the table's rows as the reader of the second node has them.
func (h *hops) reader(t *testing.T, table engine.TableName) []string {
	t.Helper()
	all, err := h.read.All(table)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, r := range all {
		var b strings.Builder
		for _, c := range r.Row.Columns() {
			switch c.State {
			case engine.Null:
				b.WriteString("∅|")
			case engine.Present:
				fmt.Fprintf(&b, "%q|", c.Value)
			default:
				t.Fatalf("%s: a reader has a column that is neither a value nor null", table)
			}
		}
		rows = append(rows, b.String())
	}
	slices.Sort(rows)
	return rows
}

// converge waits until the reader has what the source has.
func (h *hops) converge(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, table := range h.tables {
		want := h.source(t, table)
		for {
			got := h.reader(t, table)
			if slices.Equal(got, want) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the reader has %d rows, the source %d:\n%s", table, len(got), len(want), testnode.Difference(got, want))
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// showsRows waits until a reader has rows, each its values with blanks between.
func showsRows(t *testing.T, read *client.Client, when string, table engine.TableName, want ...string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		all, err := read.All(table)
		if err != nil && len(want) > 0 && time.Now().After(deadline) {
			t.Fatalf("%s: %v", when, err)
		}
		var got []string
		for _, r := range all {
			var row []string
			for _, c := range r.Row.Columns() {
				row = append(row, string(c.Value))
			}
			got = append(got, strings.Join(row, " "))
		}
		slices.Sort(got)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s holds\n%s\nwant\n%s", when, table, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
