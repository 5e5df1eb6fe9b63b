package nodeconfig_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

const root = `version: 1
node:
  id: shop/root
sources:
  - name: main
    postgres:
      hosts:
        - host: db.shop.svc
      database: shop
      userFile: /secrets/main/username
      passwordFile: /secrets/main/password
      publication:
        name: tributary
        managed: true
      slot: tributary_root
      tables:
        - {schema: public, name: orders}
`

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := nodeconfig.Parse("node.yaml", []byte(root))
	if err != nil {
		t.Fatal(err)
	}
	want := &nodeconfig.Config{
		Version: 1,
		Node:    nodeconfig.Node{ID: "shop/root"},
		Listen:  nodeconfig.Listen{Replication: ":7400", HTTP: ":8080"},
		Storage: nodeconfig.Storage{Type: "memory", Journal: nodeconfig.Journal{MaxBytes: 256 << 20}},
		Sources: []nodeconfig.Source{{Name: "main", Postgres: &nodeconfig.Postgres{
			PostgresServer: nodeconfig.PostgresServer{
				Hosts: []nodeconfig.Host{{Host: "db.shop.svc", Port: 5432}}, Database: "shop",
				UserFile: "/secrets/main/username", PasswordFile: "/secrets/main/password", SSLMode: "prefer",
			},
			TargetSessionAttrs: "read-write",
			Publication:        nodeconfig.Publication{Name: "tributary", Managed: true}, Slot: "tributary_root",
			Tables: []nodeconfig.Table{{Schema: "public", Name: "orders"}},
		}}},
		Limits:       nodeconfig.Limits{MaxReaders: 4096, MaxPeerReaders: 4096, AdmitRate: 500, MaxChannels: 1024, HandshakeTimeout: 10 * time.Second},
		DrainTimeout: 20 * time.Second,
		Cursors:      nodeconfig.CursorsPerOrigin,
	}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
}

// Each fault is told with file, line, field and a way to mend it; all faults of
// a file are told at once.
func TestProblems(t *testing.T) {
	t.Parallel()
	edit := func(old, new string) string {
		if !strings.Contains(root, old) {
			t.Fatalf("%q is not in the document", old)
		}
		return strings.Replace(root, old, new, 1)
	}
	for name, c := range map[string]struct {
		doc  string
		want []string
	}{
		"unknown field":    {edit("database:", "databse:"), []string{"node.yaml:9: sources[0].postgres.databse is not a field that is known here: the fields are hosts, database, user, userFile, passwordFile, sslMode, sslRootCert, sslCert, sslKey, targetSessionAttrs, publication, slot, tables"}},
		"wrong type":       {edit("host: db.shop.svc", "host: db\n          port: many"), []string{`node.yaml:9: sources[0].postgres.hosts[0].port must not be "many": write a whole number`}},
		"number as text":   {edit("database: shop", "database: 12"), []string{`node.yaml:9: sources[0].postgres.database must not be "12": it is text: put it in quotes`}},
		"mapping as list":  {edit("  id: shop/root", "  - shop/root"), []string{"node.yaml:3: node must be a mapping: write its fields as name: value, indented under it"}},
		"missing":          {edit("      database: shop\n", ""), []string{"node.yaml:6: sources[0].postgres.database is missing: give it a value"}},
		"port range":       {edit("host: db.shop.svc", "host: db\n          port: 70000"), []string{"node.yaml:9: sources[0].postgres.hosts[0].port must not be 70000: use a value from 1 to 65535"}},
		"slot name":        {edit("tributary_root", "Tributary-Root"), []string{`node.yaml:15: sources[0].postgres.slot must not be "Tributary-Root": use lower case letters, digits and underscores, at most 63`}},
		"duration":         {root + "drainTimeout: 20\n", []string{`node.yaml:18: drainTimeout must not be "20": write a duration with its unit, such as 500ms or 20s`}},
		"size":             {root + "storage: {journal: {maxBytes: 12QB}}\n", []string{`node.yaml:18: storage.journal.maxBytes must not be "12QB": write a number of bytes, such as 1048576 or 256Mi`}},
		"given twice":      {root + "version: 1\n", []string{"node.yaml:18: version is given twice: keep one of them"}},
		"second document":  {root + "---\nversion: 1\n", []string{"node.yaml:18: a second document starts here: keep one document in the file"}},
		"alias":            {root + "listen: &a {}\nlimits: *a\n", []string{"node.yaml:19: limits is an alias: write the value out: aliases are not supported"}},
		"syntax":           {"version: 1\n\tnode: {}\n", []string{"node.yaml:2: is not YAML: found a tab character that violates indentation"}},
		"empty":            {"", []string{"node.yaml: is empty: write version: 1 and what the file is for"}},
		"version":          {edit("version: 1", "version: 2"), []string{"node.yaml:1: version must not be 2: this program reads version 1"}},
		"same ports":       {root + "listen: {http: ':7400'}\n", []string{"node.yaml:18: listen.http is the same as listen.replication: give each a port of its own"}},
		"wiring not named": {edit("sources:\n", "sources:\n  - {name: up, fanout: {}}\n"), []string{"node.yaml:1: wiringFile is missing: name the file that holds the parents of the fan-out sources, the peers of the mesh and the children"}},
		"source of no kind": {
			edit("sources:\n", "sources:\n  - name: up\n  - name: up\n"), []string{
				"node.yaml:5: sources[0] must have exactly one of postgres, fanout, ingest, mesh, archive and children: say what the source is",
				`node.yaml:6: sources[1].name "up" is also at sources[0].name: use each once`,
				"node.yaml:6: sources[1] must have exactly one of postgres, fanout, ingest, mesh, archive and children: say what the source is",
			},
		},
		"two users":               {edit("userFile:", "user: me\n      userFile:"), []string{"node.yaml:6: sources[0].postgres must have exactly one of user and userFile: say who logs in"}},
		"no ca":                   {edit("database: shop", "database: shop\n      sslMode: verify-full"), []string{"node.yaml:6: sources[0].postgres.sslRootCert is missing: sslMode verify-full needs the file with the authority's certificate"}},
		"certificate without key": {edit("database: shop", "database: shop\n      sslCert: /c"), []string{"node.yaml:6: sources[0].postgres has one of sslCert and sslKey: give both: a certificate is of no use without its key"}},
		"server of no kind":       {edit("database: shop", "database: shop\n      targetSessionAttrs: master"), []string{`node.yaml:10: sources[0].postgres.targetSessionAttrs must not be "master": use any or read-write or read-only or primary or standby or prefer-standby`}},
		"filter": {
			strings.Replace(root, "sources:\n", `wiringFile: /w
sources:
  - name: up
    fanout:
      tokenFile: /t
      tables:
        - {schema: public, name: orders, columns: [a, a], where: [{column: a, operator: Like, values: [x]}, {column: b, operator: Equal, values: ['1', '2']}, {operator: In, values: []}]}
`, 1), []string{
				`node.yaml:8: sources[0].fanout.tokenFile is set, and tls is not: set tls, if only to {}: a token sent in plain text is no secret`,
				`node.yaml:10: sources[0].fanout.tables[0].columns[1] "a" is also at sources[0].fanout.tables[0].columns[0]: use each once`,
				`node.yaml:10: sources[0].fanout.tables[0].where[0].operator must not be "Like": use Equal or In or Prefix`,
				`node.yaml:10: sources[0].fanout.tables[0].where[1].values has 2 items: give one, or use the operator In`,
				`node.yaml:10: sources[0].fanout.tables[0].where[2].column is missing: give it a value`,
				`node.yaml:10: sources[0].fanout.tables[0].where[2].values is empty: give at least 1`,
			},
		},
		"sinks": {root + `sinks:
  - {name: a, http: {url: 'ftp://x'}}
  - {name: a, onReject: DeadLetter, http: {url: 'https://x'}, postgres: {}}
  - {name: b, onReject: Drop, postgres: {hosts: [], database: d, user: u, sslMode: verify-ca}}
`, []string{
			`node.yaml:19: sinks[0].http.url must not be "ftp://x": write an address that starts with https:// or http://`,
			`node.yaml:20: sinks[1] must have exactly one of postgres and http: say where the sink delivers`,
			`node.yaml:20: sinks[1].onReject is DeadLetter, and the store is in memory: set storage.type to pebble, so that what is put aside outlives the node, or use Hold`,
			`node.yaml:20: sinks[1].name "a" is also at sinks[0].name: use each once`,
			`node.yaml:21: sinks[2].postgres.hosts is empty: give at least 1`,
			`node.yaml:21: sinks[2].postgres.sslRootCert is missing: sslMode verify-ca needs the file with the authority's certificate`,
			`node.yaml:21: sinks[2].onReject must not be "Drop": use Hold or DeadLetter`,
		}},
		"serving": {root + "serve: {tokensDir: /t, permissions: [{reader: a}, {reader: a}]}\n", []string{
			"node.yaml:18: serve.tokensDir is set, and serve.tls is not: set serve.tls: a token sent in plain text is no secret",
			`node.yaml:18: serve.permissions[1].reader "a" is also at serve.permissions[0].reader: use each once`,
		}},
		"readers without a name": {root + "serve: {tls: {certFile: /c}, permissions: [{reader: a}]}\n", []string{
			"node.yaml:18: serve.tls.keyFile is missing: give it a value",
			"node.yaml:18: serve.permissions need readers that say who they are: set serve.tokensDir or serve.tls.clientCAFile",
		}},
		"limits": {root + "limits: {maxReaders: 10, maxPeerReaders: 11, admitRate: 200000}\n", []string{
			"node.yaml:18: limits.maxPeerReaders must not be 11: use a value from 1 to limits.maxReaders",
			"node.yaml:18: limits.admitRate must not be 200000: use a value from 1 to 100000",
		}},
		"ingest": {strings.Replace(root, "sources:\n", `sources:
  - name: in
    ingest:
      tables:
        - {schema: public, name: a, columns: [{name: id, type: bigint}, {name: id, type: text}]}
        - {schema: public, name: a, columns: []}
  - {name: again, ingest: {volatile: true, timeout: 1ms, tables: [{schema: public, name: b, columns: [{name: id, type: int, key: true}]}]}}
`, 1) + "serve: {tls: {certFile: /c, keyFile: /k}, tokensDir: /t, permissions: [{reader: a, writes: [{schema: public, name: c}]}]}\n", []string{
			"node.yaml:6: sources[0].ingest is durable, and the store is in memory: set storage.type to pebble, so that what is written outlives the node, or volatile to true if it need not",
			`node.yaml:8: sources[0].ingest.tables[0].columns[1].name "id" is also at sources[0].ingest.tables[0].columns[0].name: use each once`,
			"node.yaml:8: sources[0].ingest.tables[0].columns have no key: mark the columns that identify a row with key: true",
			"node.yaml:9: sources[0].ingest.tables[1].columns is empty: give at least 1",
			"node.yaml:9: sources[0].ingest.tables[1].columns have no key: mark the columns that identify a row with key: true",
			`node.yaml:9: sources[0].ingest.tables[1] "public.a" is also at sources[0].ingest.tables[0]: use each once`,
			"node.yaml:10: sources[1] is an ingest source, and so is sources[0]: declare all tables in one of them: what is written goes by the table alone",
			"node.yaml:10: sources[1].ingest.timeout must not be 1ms: use a value from 100ms to 10m",
			"node.yaml:24: serve.permissions[0].writes[0] names public.c, which the ingest source does not declare: declare the table there, or take it out here",
		}},
		"conflicts": {strings.Replace(root, "sources:\n", `sources:
  - {name: in, ingest: {volatile: true, tables: [{schema: public, name: b, columns: [{name: id, type: int, key: true}, {name: site, type: text}]}]}}
`, 1) + `conflicts:
  - {table: {schema: public, name: orders}, policy: Newest}
  - {table: {schema: public, name: orders}, policy: OriginOwnsKey}
  - {table: {schema: public, name: b}, policy: OriginOwnsKey, ownerColumn: site, originColumn: o, owners: [{value: x, prefix: y, node: n}, {node: a}, {node: b}, {value: z}]}
  - {table: {schema: public, name: c}, policy: NamespaceByOrigin, ownerColumn: id, owners: [{node: n}]}
`, []string{
			`node.yaml:20: conflicts[0].policy must not be "Newest": use LastWriteWins or OriginOwnsKey or NamespaceByOrigin`,
			`node.yaml:21: conflicts[1].ownerColumn is missing: name the column of the key that says whose a row is`,
			`node.yaml:21: conflicts[1].table "public.orders" is also at conflicts[0].table: use each once`,
			`node.yaml:22: conflicts[2].ownerColumn "site" is not part of the table's key: name a column with key: true, or mark this one so`,
			`node.yaml:22: conflicts[2].originColumn is of NamespaceByOrigin only: take it out, or set policy to NamespaceByOrigin`,
			`node.yaml:22: conflicts[2].owners[0] has both value and prefix: give one of them`,
			`node.yaml:22: conflicts[2].owners[2] "all that is left" is also at conflicts[2].owners[1]: use each once`,
			`node.yaml:22: conflicts[2].owners[3].node is missing: give the id of the node that owns these rows`,
			`node.yaml:23: conflicts[3].table names public.c, which no source takes: take the policy out, or the table into a source`,
			`node.yaml:23: conflicts[3].ownerColumn is of OriginOwnsKey only: take it out, or set policy to OriginOwnsKey`,
			`node.yaml:23: conflicts[3].owners are of OriginOwnsKey only: take them out, or set policy to OriginOwnsKey`,
		}},
		"nobody writes": {strings.Replace(root, "sources:\n", `storage: {type: pebble, path: /s}
sources:
  - {name: in, ingest: {tables: [{schema: public, name: b, columns: [{name: id, type: int, key: true}]}]}}
`, 1) + "serve: {tls: {certFile: /c, keyFile: /k, clientCAFile: /ca}}\n", []string{
			"node.yaml:20: serve.tokensDir is missing: writers say who they are by a token: the write API's port takes no certificates",
			"node.yaml:20: serve.permissions let nobody write: give one of them writes, with tables of the ingest source",
		}},
		"everything": {"version: 1\nnode: {id: '-'}\nlimits: {maxReaders: -1}\nsources: []\n", []string{
			`node.yaml:2: node.id must not be "-": give the node a name of letters, digits, dots, dashes and slashes, at most 200, such as shop/edge`,
			"node.yaml:3: limits.maxReaders must not be -1: use a value from 1 to 1048576",
			"node.yaml:4: sources is empty: give at least 1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := nodeconfig.Parse("node.yaml", []byte(c.doc))
			if err == nil {
				t.Fatal("parsed")
			}
			if d := cmp.Diff(strings.Join(c.want, "\n"), err.Error()); d != "" {
				t.Error(d)
			}
			if got := nodeconfig.Problems(fmt.Errorf("wrapped: %w", err)); len(got) != len(c.want) {
				t.Errorf("Problems gives %d of %d", len(got), len(c.want))
			}
			if p := new(nodeconfig.Problem); !errors.As(err, &p) || p.File != "node.yaml" {
				t.Error("errors.As finds no Problem")
			}
		})
	}
}

func TestWiringProblems(t *testing.T) {
	t.Parallel()
	_, err := nodeconfig.ParseWiring("wiring.yaml", []byte(`version: 1
sources:
  - name: up
    candidates:
      - {id: shop/a, address: a, eligible: true}
      - {id: shop/a, address: 'dns:///a.shop.svc:7400', eligible: yes please}
`))
	want := `wiring.yaml:6: sources[0].candidates[1].eligible must not be "yes please": write true or false`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	_, err = nodeconfig.ParseWiring("wiring.yaml", []byte(`version: 1
sources:
  - name: up
    candidates:
      - {id: shop/a, address: a, eligible: true}
      - {id: shop/a, address: 'dns:///a.shop.svc:7400', eligible: true}
    policy: {unhealthyAfter: 1ms, failback: never}
`))
	want = `wiring.yaml:1: epoch is missing: give a number from 1 that grows with each change
wiring.yaml:5: sources[0].candidates[0].address must not be "a": write host:port or dns:///host:port
wiring.yaml:6: sources[0].candidates[1].id "shop/a" is also at sources[0].candidates[0].id: use each once
wiring.yaml:7: sources[0].policy.unhealthyAfter must not be 1ms: use a value from 750ms to 1h
wiring.yaml:7: sources[0].policy.failback must not be "never": use automatic or manual`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestCheckWiring(t *testing.T) {
	t.Parallel()
	c := &nodeconfig.Config{Sources: []nodeconfig.Source{{Name: "up", Fanout: &nodeconfig.Fanout{}}, {Name: "db", Postgres: &nodeconfig.Postgres{}}}}
	if err := c.CheckWiring("w", &nodeconfig.Wiring{Sources: []nodeconfig.WiredSource{{Name: "up"}}}); err != nil {
		t.Error(err)
	}
	err := c.CheckWiring("w", &nodeconfig.Wiring{Sources: []nodeconfig.WiredSource{{Name: "db"}}})
	want := `w: sources has nothing for the source "up": add an item with that name; its candidates may be empty
w: sources[0].name "db" is not a fan-out, mesh or children source of this node: take it out, or add the source to node.yaml`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	p := &nodeconfig.PostgresServer{User: "repl", PasswordFile: file}
	if _, _, err := p.Credentials(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), file) {
		t.Errorf("a missing file gives %v", err)
	}
	for _, password := range []string{"first", "second"} { // read anew each time
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, got, err := p.Credentials(); user != "repl" || got != password || err != nil {
			t.Errorf("got %q, %q, %v", user, got, err)
		}
	}
}

// The names that configuration may use are those that the engine has.
func TestNamesAreTheEngines(t *testing.T) {
	t.Parallel()
	if d := cmp.Diff(slices.Sorted(maps.Keys(engine.Comparators)), slices.Sorted(slices.Values(nodeconfig.Comparators))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{string(engine.TotalOrder), string(engine.PerLogOrder), string(engine.PerKeyOrder), string(engine.UnorderedInput)}, nodeconfig.Orderings); d != "" {
		t.Error(d)
	}
}

// Parsing what Marshal wrote gives the same value.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		data, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := nodeconfig.Parse("node.yaml", data)
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		if d := cmp.Diff(c, got); d != "" {
			t.Fatalf("%s\n%s", d, data)
		}

		w := drawWiring(t)
		if data, err = w.Marshal(); err != nil {
			t.Fatal(err)
		}
		wired, err := nodeconfig.ParseWiring("wiring.yaml", data)
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		if d := cmp.Diff(w, wired); d != "" {
			t.Fatalf("%s\n%s", d, data)
		}
	})
}

// text draws strings that YAML could mistake for something else.
func text() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"true", "null", "~", "12", "1e3", "0x1F", "- a", "a: b", "#x", "'", `"`, "&a", "*a", "!!int", "@x", "%", " lead", "trail ", "é", "日本", "{}", "[]", "2001-01-01", "yes", "1_000", "=", "<<"}),
		rapid.StringMatching(`[a-zA-Z0-9 :#'"{}\[\],&*!|>%@.-]{1,40}`),
	)
}

func names(t *rapid.T, label string, most int) []string {
	return rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]([-a-z0-9]{0,8}[a-z0-9])?`), 1, most, rapid.ID).Draw(t, label)
}

func tables(t *rapid.T, least int) []nodeconfig.Table {
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) nodeconfig.Table {
		return nodeconfig.Table{Schema: strings.ReplaceAll(text().Draw(t, "schema"), ".", "_"), Name: strings.ReplaceAll(text().Draw(t, "table"), ".", "_")}
	}), least, 4, rapid.ID).Draw(t, "tables")
}

func drawConfig(t *rapid.T) *nodeconfig.Config {
	c := &nodeconfig.Config{
		Version:    1,
		Node:       nodeconfig.Node{ID: rapid.StringMatching(`[a-z0-9]([a-z0-9./-]{0,60}[a-z0-9])?`).Draw(t, "id")},
		WiringFile: text().Draw(t, "wiringFile"),
	}
	if rapid.Bool().Draw(t, "explicit") {
		c.Listen = nodeconfig.Listen{Replication: "127.0.0.1:1", HTTP: "[::1]:0"}
		c.Storage.Journal.MaxBytes = nodeconfig.Size(rapid.Int64Range(1<<20, 1<<40).Draw(t, "journal"))
		c.Limits = nodeconfig.Limits{MaxReaders: rapid.IntRange(1, 1<<20).Draw(t, "readers"), MaxChannels: 7, HandshakeTimeout: 1500 * time.Millisecond}
		c.DrainTimeout = time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "drain"))
	}
	for _, name := range names(t, "sources", 4) {
		s := nodeconfig.Source{Name: name}
		if rapid.Bool().Draw(t, "postgres") {
			p := &nodeconfig.Postgres{
				PostgresServer: nodeconfig.PostgresServer{
					Hosts: []nodeconfig.Host{{Host: text().Draw(t, "host"), Port: rapid.IntRange(0, 65535).Draw(t, "port")}}, Database: text().Draw(t, "database"),
				},
				Publication: nodeconfig.Publication{Name: text().Draw(t, "publication"), Managed: rapid.Bool().Draw(t, "managed")},
				Slot:        rapid.StringMatching(`[a-z0-9_]{1,63}`).Draw(t, "slot"), Tables: tables(t, 1),
			}
			if rapid.Bool().Draw(t, "user") {
				p.User = text().Draw(t, "name")
			} else {
				p.UserFile, p.PasswordFile, p.SSLMode, p.SSLRootCert = "/u", "/p", "verify-full", text().Draw(t, "ca")
				p.SSLCert, p.SSLKey, p.TargetSessionAttrs = "/c", "/k", rapid.SampledFrom(nodeconfig.TargetSessionAttrs).Draw(t, "target")
			}
			s.Postgres = p
		} else {
			s.Fanout = &nodeconfig.Fanout{Comparator: rapid.SampledFrom(nodeconfig.Comparators).Draw(t, "comparator"), Ordering: rapid.SampledFrom(nodeconfig.Orderings).Draw(t, "ordering")}
			for _, ft := range tables(t, 0) {
				out := nodeconfig.FanoutTable{Schema: ft.Schema, Name: ft.Name}
				if rapid.Bool().Draw(t, "filter") {
					out.Columns = names(t, "columns", 3)
					out.Where = []nodeconfig.Condition{{Column: text().Draw(t, "column"), Operator: "In", Values: []string{text().Draw(t, "value"), ""}}}
				}
				s.Fanout.Tables = append(s.Fanout.Tables, out)
			}
			if rapid.Bool().Draw(t, "tls") {
				s.Fanout.TLS, s.Fanout.TokenFile = &nodeconfig.ClientTLS{CAFile: "/ca"}, "/token"
			}
		}
		c.Sources = append(c.Sources, s)
	}
	if rapid.Bool().Draw(t, "archives") {
		c.Archives = []nodeconfig.Archive{{ArchiveStore: drawStore(t), Tables: tables(t, 1), Group: true}}
		c.Sources = append(c.Sources, nodeconfig.Source{Name: "z-archive", Archive: &nodeconfig.ArchiveSource{
			ArchiveStore: drawStore(t), Tables: tables(t, 1), Group: true, Follow: rapid.Bool().Draw(t, "follow"), StatePath: text().Draw(t, "state"),
		}})
	}
	if rapid.Bool().Draw(t, "serve") {
		c.Serve = nodeconfig.Serve{
			TLS: &nodeconfig.ServeTLS{CertFile: "/c", KeyFile: "/k"}, TokensDir: "/tokens",
			Permissions: []nodeconfig.Permission{{Reader: text().Draw(t, "reader"), Tables: tables(t, 1)}},
		}
	}
	if rapid.Bool().Draw(t, "sinks") {
		for _, name := range names(t, "sink", 2) {
			c.Sinks = append(c.Sinks, nodeconfig.Sink{Name: name, HTTP: &nodeconfig.HTTPSink{URL: "https://x.test/a", TLS: &nodeconfig.ClientTLS{}}, Tables: tables(t, 1)})
		}
		c.Sinks = append(c.Sinks, nodeconfig.Sink{Name: "z-pg", Postgres: &nodeconfig.PostgresSink{
			PostgresServer: nodeconfig.PostgresServer{Hosts: []nodeconfig.Host{{Host: "db"}}, Database: text().Draw(t, "sunk"), User: "u"},
			Schema:         text().Draw(t, "schema"), CreateTables: true,
		}})
	}
	c.SetDefaults()
	return c
}

func drawStore(t *rapid.T) nodeconfig.ArchiveStore {
	a := nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, KeyPrefix: "a b/c"}
	if !rapid.Bool().Draw(t, "s3") {
		a.StoreConfig.Path = text().Draw(t, "path")
		return a
	}
	a.Store, a.Formats = nodeconfig.StoreS3, []string{"jsonl", "protobuf"}
	a.StoreConfig = nodeconfig.StoreConfig{Bucket: "bucket", Prefix: "x/y", Region: text().Draw(t, "region"), Encryption: "aws:kms", KMSKey: "k", SingleWriter: true}
	if rapid.Bool().Draw(t, "endpoint") {
		a.StoreConfig.Endpoint = "https://s3.test"
		a.StoreConfig.Credentials = &nodeconfig.StoreCredentials{RoleARN: text().Draw(t, "role"), WebIdentityTokenFile: "/token"}
	}
	return a
}

func drawWiring(t *rapid.T) *nodeconfig.Wiring {
	w := &nodeconfig.Wiring{Version: 1, Epoch: rapid.Uint64Min(1).Draw(t, "epoch")}
	for _, name := range names(t, "wired", 3) {
		s := nodeconfig.WiredSource{Name: name}
		for _, id := range names(t, "candidates", 3) {
			s.Candidates = append(s.Candidates, nodeconfig.Candidate{ID: id, Address: "dns:///" + id + ".shop.svc:7400", Eligible: rapid.Bool().Draw(t, "eligible")})
		}
		if rapid.Bool().Draw(t, "policy") {
			s.Policy = nodeconfig.Policy{UnhealthyAfter: time.Duration(rapid.Int64Range(int64(750*time.Millisecond), int64(time.Hour)).Draw(t, "after")), Failback: "manual", MaxSwitchesPerHour: 1}
		}
		w.Sources = append(w.Sources, s)
	}
	w.SetDefaults()
	return w
}

// Whatever the bytes are, parsing ends with a value or with problems that say
// where; and a value that was parsed can be written and read again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(root))
	f.Add([]byte("version: 1\nepoch: 3\nsources:\n  - {name: up, candidates: [{id: a, address: 'a:1', eligible: true}]}\n"))
	f.Add([]byte("a: &a [*a]\n? {x: y}\n: 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		check := func(err error) {
			for _, p := range nodeconfig.Problems(err) {
				if p.What == "" || p.Mend == "" || p.File != "f" {
					t.Errorf("an empty problem: %#v", p)
				}
			}
		}
		if c, err := nodeconfig.Parse("f", data); err != nil {
			check(err)
		} else if out, err := c.Marshal(); err != nil {
			t.Error(err)
		} else if again, err := nodeconfig.Parse("f", out); err != nil {
			t.Errorf("%v\n%s", err, out)
		} else if d := cmp.Diff(c, again); d != "" {
			t.Error(d)
		}
		if w, err := nodeconfig.ParseWiring("f", data); err != nil {
			check(err)
		} else if out, err := w.Marshal(); err != nil {
			t.Error(err)
		} else if again, err := nodeconfig.ParseWiring("f", out); err != nil {
			t.Errorf("%v\n%s", err, out)
		} else if d := cmp.Diff(w, again); d != "" {
			t.Error(d)
		}
	})
}
