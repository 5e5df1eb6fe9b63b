package nodeconfig_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// The archive of a fan-out, from a file in HOCON.
func TestHOCON(t *testing.T) {
	t.Parallel()
	c, err := nodeconfig.Load("testdata/archive.conf")
	if err != nil {
		t.Fatal(err)
	}
	events := nodeconfig.Table{Schema: "public", Name: "events"}
	want, err := nodeconfig.Parse("node.yaml", []byte(root))
	if err != nil {
		t.Fatal(err)
	}
	pg := want.Sources[0].Postgres
	want.Sources[0].Name = "pg"
	pg.UserFile, pg.PasswordFile, pg.User, pg.Tables = "", "", "repl", []nodeconfig.Table{events}
	want.Storage.Journal.MaxBytes = 256_000_000 // a million entries
	want.Archives = []nodeconfig.Archive{{
		Name: "archive",
		ArchiveStore: nodeconfig.ArchiveStore{
			Store: "local", StoreConfig: nodeconfig.StoreConfig{Path: "/var/lib/laredo/archive/events"}, Formats: []string{"jsonl"}, KeyPrefix: "public.events/",
		},
		Tables: []nodeconfig.Table{events},
	}}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
	if got := c.Archives[0].Prefix(events); got != "public.events/" {
		t.Errorf("the prefix is %q", got)
	}
}

const hoconNode = `node.id = shop/edge
wiring_file = /etc/wiring.yaml
`

// Sources of every kind, and what HOCON has beside plain values.
func TestHOCONSources(t *testing.T) {
	t.Parallel()
	c, err := nodeconfig.Parse("node.conf", []byte(hoconNode+`
storage { type = pebble, path = "/var/lib/node" }
storage.journal.max_bytes = 1Gi   # merged into the object above
"drain_timeout" : 5s,
limits { max_readers: 10, max_readers: 20 }
sources {
  seed { type = archive, store = s3, format = [protobuf, jsonl], key_prefix = shop, group = true, follow = true, poll_interval = 30s
         state_path = /var/lib/node/seed.state
         store_config { bucket = b, path_style = true, region = eu-west-1, credentials { role_arn = "arn:aws:iam::1:role/r", web_identity_token_file = /token } } }
  dev { type = file, path = ./seed data }
  up { type = fanout, ordering = Total, tls { ca_file = /ca } }
}
tables = [
  { source = seed, schema = public, table = orders }
  { source = seed, schema = public, table = """say "hi"""" }, { source = dev, schema = "public", table = items },
]
serve { tls { cert_file = /c, key_file = /k, client_ca_file = /ca } }
`))
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	want, err := nodeconfig.Parse("node.yaml", []byte(`version: 1
node: {id: shop/edge}
wiringFile: /etc/wiring.yaml
drainTimeout: 5s
storage: {type: pebble, path: /var/lib/node, journal: {maxBytes: 1Gi}}
limits: {maxReaders: 20}
serve: {tls: {certFile: /c, keyFile: /k, clientCAFile: /ca}}
sources:
  - name: seed
    archive:
      store: s3
      storeConfig: {bucket: b, region: eu-west-1, credentials: {roleARN: 'arn:aws:iam::1:role/r', webIdentityTokenFile: /token}}
      formats: [protobuf, jsonl]
      keyPrefix: shop
      group: true
      follow: true
      pollInterval: 30s
      statePath: /var/lib/node/seed.state
      tables: [{schema: public, name: orders}, {schema: public, name: say "hi"}]
  - name: dev
    archive: {store: local, storeConfig: {path: ./seed data}, formats: [jsonl], tables: [{schema: public, name: items}]}
  - name: up
    fanout: {ordering: Total, tls: {caFile: /ca}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want.Sources[0].Archive.StoreConfig.PathStyle = &yes
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
	if c.Sources[0].Archive.PollInterval != 30*time.Second {
		t.Error("the interval is not read")
	}
}

// The largest max_age of a journal is how long a store on disk waits for a reader.
func TestHOCONJournalAge(t *testing.T) {
	t.Parallel()
	for storage, want := range map[string]time.Duration{
		"storage { type = pebble, path = /s }":                                    36 * time.Hour,
		"storage { type = pebble, path = /s, journal { reader_retention = 2h } }": 2 * time.Hour,
		"storage { type = memory }":                                               0,
	} {
		c, err := nodeconfig.Parse("node.conf", []byte(`node { id = a }
wiring_file = /w
sources { pg { type = fanout } }
`+storage+`
tables = [
  { source = pg, schema = public, table = a, targets = [{ type = replication-fanout, journal { max_age = 36h } }] }
  { source = pg, schema = public, table = b, targets = [{ type = replication-fanout, journal { max_age = 1h } }] }
]
`))
		if err != nil {
			t.Errorf("%s: %v", storage, err)
		} else if got := c.Storage.Journal.ReaderRetention; got != want {
			t.Errorf("%s: %s, want %s", storage, got, want)
		}
	}
}

// Faults are told with file and line.
func TestHOCONProblems(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/archive.conf")
	if err != nil {
		t.Fatal(err)
	}
	whole := string(raw)
	edit := func(old, new string) string {
		if !strings.Contains(whole, old) {
			t.Fatalf("%q is not in the document", old)
		}
		return strings.Replace(whole, old, new, 1)
	}
	for name, c := range map[string]struct{ doc, want string }{
		"format":       {edit("format     = jsonl", "format     = parquet"), `node.conf:27: archives[0].formats[0] must not be "parquet": use protobuf or jsonl or jsonl.zst`},
		"store":        {edit("store = local", "store = tape"), `node.conf:25: archives[0].store must not be "tape": use local or s3`},
		"path":         {edit(`path = "/var/lib/laredo/archive/events"`, ""), `node.conf:26: archives[0].storeConfig.path is missing: give it a value`},
		"source":       {edit("source = pg", "source = pq"), `node.conf:15: tables[0].source names "pq", which is not among the sources: declare it under sources, or name one of those`},
		"table":        {edit("table  = events", ""), `node.conf:14: tables[0] must have a schema and a table: write schema = public and table = ...`},
		"target":       {edit("type = replication-fanout", "type = http-sync"), `node.conf:20: tables[0].targets[0].type must not be "http-sync": use replication-fanout; what else the node delivers to is declared under sinks`},
		"age":          {edit("max_age = 24h", "max_age = 1 fortnight"), `node.conf:21: tables[0].targets[0].journal.max_age must not be "1 fortnight": write a duration with its unit, such as 24h`},
		"unknown":      {edit("max_entries", "max_entreis"), `node.conf:21: tables[0].targets[0].journal.max_entreis is not a field that is known here: the fields are max_entries, max_age, max_bytes`},
		"kind":         {edit("= postgresql", "= kinesis"), `node.conf:5: sources[0].type must not be "kinesis": use postgresql, fanout, ingest, mesh, archive, children or file`},
		"field":        {edit("database = shop", "data_base = shop"), "node.conf:7: sources[0].postgres.data_base is not a field that is known here: "},
		"brace":        {whole + "serve {", `node.conf:32: ends within an object: close the one that begins at line 32 with }`},
		"bracket":      {"a = [1, 2\n", `node.conf:2: ends within a list: close the one that begins at line 1 with ]`},
		"substitution": {"\nnode.id = ${ID}\n", `node.conf:2: substitutions such as ${name} are not supported: write the value out`},
		"include":      {"include \"other.conf\"\n", `node.conf:1: include is not supported: write what it includes into this file`},
		"append":       {"sources += { type = mesh }\n", `node.conf:1: += is not supported: write the list out`},
		"no value":     {"node\nid = x\n", `node.conf:2: "node" has no value: write = and a value after it`},
		"empty":        {"node { id = }\n", `node.conf:1: a value is missing: write one, or "" for an empty one`},
		"colon":        {"listen.http = 0.0.0.0:80\n", `node.conf:1: must not have ':' in a value without quotes: put the value in quotes`},
		"quotes":       {"node.id = \"x\n", `node.conf:1: text in quotes does not end: close the quotes on the same line`},
		"no comma":     {"a = {} b = 1\n", `node.conf:1: must not go on with 'b' here: put a comma or the end of the line after an object or a list`},
		"depth":        {strings.Repeat("a={", 100), `node.conf:1: is nested too deeply: 64 levels are the limit`},
		"not text":     {"a = 1\n\xff", `node.conf:2: is not text in UTF-8: save it as such`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := nodeconfig.Parse("node.conf", []byte(c.doc))
			if err == nil {
				t.Fatal("parsed")
			}
			if got := nodeconfig.Problems(err)[0].Error(); !strings.HasPrefix(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// Whatever the bytes are, parsing ends with a value or with problems that say where.
func FuzzHOCON(f *testing.F) {
	raw, err := os.ReadFile("testdata/archive.conf")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`a.b."c.d" = [1, {x: """y""" }, "\u00e9\n"] // z` + "\n{ b : 1 e 2 }"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := nodeconfig.Parse("f.conf", data)
		for _, p := range nodeconfig.Problems(err) {
			if p.What == "" || p.Mend == "" || p.File != "f.conf" || p.Line == 0 && len(data) < 1<<20 {
				t.Errorf("an empty problem: %#v", p)
			}
		}
		if err != nil {
			return
		}
		out, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := nodeconfig.Parse("f.yaml", out); err != nil {
			t.Errorf("%v\n%s", err, out)
		} else if d := cmp.Diff(c, again); d != "" {
			t.Error(d)
		}
	})
}
