package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/pflag"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// said runs the command and returns what it wrote, and its code.
func said(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	code, err := execute(ctx, c)
	if err != nil {
		stderr.WriteString(err.Error())
	}
	return stdout.String(), stderr.String(), code
}

func well(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := said(t, args...)
	if code != 0 {
		t.Fatalf("tributary %s: %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// badly runs a command that is to fail with a code and a sentence.
func badly(t *testing.T, code int, want string, args ...string) string {
	t.Helper()
	out, errs, got := said(t, args...)
	if got != code || !strings.Contains(errs, want) {
		t.Errorf("tributary %s: %d (want %d), and %q does not hold %q", strings.Join(args, " "), got, code, errs, want)
	}
	return out
}

const oddTable = `CREATE TABLE "Odd.Names" ("Id" bigint, "a b" text, n numeric, b bytea, j jsonb, f float8, ts timestamptz, e text[], PRIMARY KEY ("Id"))`

// From a database into an archive and back, through every command, in a folder and in
// a bucket.
func TestArchive(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	for _, store := range []string{"folder", "bucket"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			at, flags := filepath.Join(t.TempDir(), "archive"), []string(nil)
			if store == "bucket" {
				b := tests3.NewBucket(t)
				at = "s3://" + b.Name + "/prod"
				access, secret := filepath.Join(t.TempDir(), "access"), filepath.Join(t.TempDir(), "secret")
				if err := errors.Join(os.WriteFile(access, []byte(tests3.AccessKey), 0o600), os.WriteFile(secret, []byte(tests3.SecretKey), 0o600)); err != nil {
					t.Fatal(err)
				}
				flags = []string{"--endpoint", b.Endpoint, "--access-key-file", access, "--secret-key-file", secret}
			}
			with := func(args ...string) []string { return append(append([]string{"archive"}, args...), flags...) }
			from, to := testpg.NewDB(t), testpg.NewDB(t)
			from.Exec(t, oddTable, `CREATE TABLE t (a int, b text, PRIMARY KEY (a))`,
				`CREATE TABLE nokey (a int, b text)`, `ALTER TABLE nokey REPLICA IDENTITY FULL`, `INSERT INTO nokey VALUES (1, 'twice'), (1, 'twice'), (NULL, NULL)`,
				`INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 5000) i`,
				`INSERT INTO "Odd.Names" VALUES (1, E'tab\tnewline\nback\\slash "quoted", comma', 123456789012345678901234567890.123456789, '\xdeadbeef00', '{"a": [1, null]}', 1e-300, '2026-01-01 00:00:00.123456+02', '{"x y",NULL}')`,
				`INSERT INTO "Odd.Names" VALUES (9007199254740993, '', 'NaN', '', 'null', '-infinity', 'infinity', '{}'), (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (4, '\N', 0, NULL, '"é"', 0.1, NULL, NULL)`)

			badly(t, 1, "there is no archive", with("ls", at)...)
			badly(t, 2, "say which tables", with("export", at, "--from", from.ConnString)...)
			badly(t, 2, "node://HOST:PORT/ID", with("export", at, "--from", "mysql://x", "-t", "t")...)
			if out := well(t, with("export", at, "--from", from.ConnString, "-t", "t", "-t", `public."Odd.Names"`, "--format", "protobuf,jsonl")...); !strings.Contains(out, "public.t: generation 1 under public.t/") {
				t.Errorf("export says %q", out)
			}
			if got := from.Value(t, `SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()) + (SELECT count(*) FROM pg_publication)`); got != "0" {
				t.Errorf("%s slots and publications are left", got)
			}

			if out := well(t, with("ls", at)...); !strings.Contains(out, `public."Odd.Names"`) || !strings.Contains(out, "public.t ") || !strings.Contains(out, "protobuf,jsonl") {
				t.Errorf("ls:\n%s", out)
			}
			if out := well(t, with("ls", at, "--table", "t")...); !strings.Contains(out, "base") || !strings.Contains(out, "5000") {
				t.Errorf("ls --table:\n%s", out)
			}
			var listed []struct {
				Table     string
				KeyPrefix string
				Artifacts []struct{ Kind string }
			}
			if err := json.Unmarshal([]byte(well(t, with("ls", at, "-o", "json")...)), &listed); err != nil || len(listed) != 2 || listed[1].KeyPrefix != "public.t/" || listed[1].Artifacts[0].Kind != "base" {
				t.Errorf("ls -o json: %+v, %v", listed, err)
			}
			if out := well(t, with("verify", at)...); strings.Count(out, ": whole: ") != 2 {
				t.Errorf("verify:\n%s", out)
			}

			// What is printed is what COPY would.
			for format, options := range map[string]string{"csv": "FORMAT csv, HEADER", "copy": "FORMAT text"} {
				for _, table := range []string{"public.t", `public."Odd.Names"`} {
					out := well(t, with("cat", at, "--table", table, "--format", format)...)
					to.Exec(t, strings.Replace(oddTable, "TABLE", "TABLE IF NOT EXISTS", 1), `CREATE TABLE IF NOT EXISTS t (a int, b text, PRIMARY KEY (a))`)
					copyIn(t, to, "COPY "+quoted(t, table)+" FROM STDIN WITH ("+options+")", out)
					same(t, from, to, quoted(t, table))
					to.Exec(t, "TRUNCATE "+quoted(t, table))
				}
			}
			var row map[string]*string
			first, _, _ := strings.Cut(well(t, with("cat", at, "-t", `public."Odd.Names"`)...), "\n")
			if err := json.Unmarshal([]byte(first), &row); err != nil || *row["n"] != "123456789012345678901234567890.123456789" || *row["a b"] != "tab\tnewline\nback\\slash \"quoted\", comma" {
				t.Errorf("cat as jsonl: %s, %v", first, err)
			}
			badly(t, 2, "name one by --table", with("cat", at)...)
			badly(t, 1, "those there are of", with("cat", at, "-t", "nothing")...)
			badly(t, 2, "use jsonl, csv or copy", with("cat", at, "-t", "t", "-f", "xml")...)

			// Restored into tables that are made, then refused, then forced.
			to.Exec(t, `DROP TABLE t, "Odd.Names"`)
			badly(t, 1, "use --create, or run: CREATE TABLE", with("restore", at, "--all", "--to", to.ConnString)...)
			well(t, with("restore", at, "--all", "--to", to.ConnString, "--create")...)
			same(t, from, to, "public.t")
			same(t, from, to, `public."Odd.Names"`)
			badly(t, 1, "holds rows: empty it, or use --force", with("restore", at, "--all", "--to", to.ConnString)...)
			to.Exec(t, `DELETE FROM t WHERE a < 100`, `ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a * 2) STORED`)
			well(t, with("restore", at, "-t", "t", "--to", to.ConnString, "--force")...)
			if got := to.Value(t, `SELECT count(*) || ' ' || sum(g) FROM t`); got != "5000 25005000" {
				t.Errorf("restored over a table with a generated column: %s", got)
			}
			to.Exec(t, `ALTER TABLE "Odd.Names" DROP COLUMN n`, `TRUNCATE "Odd.Names"`)
			badly(t, 1, `ADD COLUMN "n" numeric`, with("restore", at, "-t", `"Odd.Names"`, "--to", to.ConnString)...)
			well(t, with("restore", at, "-t", "t", "--to", to.ConnString, "--schema", "other place", "--create")...)
			if got := to.Value(t, `SELECT count(*) FROM "other place".t`); got != "5000" {
				t.Errorf("restored into another schema: %s", got)
			}

			// A second export is another generation; the moments between are told apart.
			before := time.Now().UTC().Format(time.RFC3339Nano)
			time.Sleep(10 * time.Millisecond)
			from.Exec(t, `DELETE FROM t WHERE a = 1`, `UPDATE t SET b = 'new' WHERE a = 2`, `INSERT INTO t VALUES (5001, 'added')`)
			well(t, with("export", at, "--from", from.ConnString, "-t", "t")...)
			well(t, with("export", at, "--from", from.ConnString, "-t", "nokey", "--key-prefix", "more")...)
			well(t, with("restore", at+"/more", "--to", to.ConnString, "--create")...)
			same(t, from, to, "nokey")
			if out := badly(t, 3, "", with("diff", at, "-t", "t", "--from-time", before)...); out != "- {\"a\":\"1\",\"b\":\"row 1\"}\n~ {\"a\":\"2\",\"b\":\"row 2\"}\n> {\"a\":\"2\",\"b\":\"new\"}\n+ {\"a\":\"5001\",\"b\":\"added\"}\n" {
				t.Errorf("diff:\n%s", out)
			}
			var moments []struct {
				Artifacts []struct {
					To []struct{ Log, Position string }
				}
			}
			if err := json.Unmarshal([]byte(well(t, with("ls", at, "-t", "t", "-o", "json")...)), &moments); err != nil || len(moments) != 1 || len(moments[0].Artifacts) != 2 {
				t.Fatalf("ls -o json: %+v, %v", moments, err)
			}
			a, b := moments[0].Artifacts[0].To[0], moments[0].Artifacts[1].To[0]
			was, is := a.Log+"="+a.Position, b.Log+"="+b.Position // each export is an epoch of its own
			if out := badly(t, 3, "", with("diff", at, "-t", "t", "--from-at", was, "--at", is)...); strings.Count(out, "\n") != 4 || !strings.Contains(out, `+ {"a":"5001","b":"added"}`) {
				t.Errorf("diff from %s to %s:\n%s", was, is, out)
			}
			if out := well(t, with("diff", at, "-t", "t", "--from-at", was, "--at", was)...); out != "" {
				t.Errorf("diff of one moment: %q", out)
			}
			if out := well(t, with("diff", at, at, "-t", "t")...); out != "" {
				t.Errorf("diff with itself: %q", out)
			}
			badly(t, 2, "say what to compare", with("diff", at, "-t", "t")...)
			badly(t, 2, `"yesterday" is no position of log`, with("cat", at, "-t", "t", "--at", "yesterday")...)
			if out := well(t, with("cat", at, "-t", "t", "--time", before)...); strings.Count(out, "\n") != 5000 || strings.Contains(out, "5001") {
				t.Errorf("cat as of a time: %d rows", strings.Count(out, "\n"))
			}
			badly(t, 2, "is no time", with("cat", at, "-t", "t", "--time", "yesterday")...)

			// What is kept.
			badly(t, 2, "say what stays", with("prune", at)...)
			badly(t, 1, "use --force", with("prune", at, "--keep", "1")...)
			if out := well(t, with("prune", at, "-t", "t", "--keep", "1", "--force")...); !strings.Contains(out, "1 generations with 1 artifacts are gone") {
				t.Errorf("prune: %s", out)
			}
			badly(t, 1, "", with("cat", at, "-t", "t", "--time", before)...)
			if out := well(t, with("compact", at, "-t", "t", "--keep", "1", "--force")...); !strings.Contains(out, "generation 3 begins with a base of 5000 rows") {
				t.Errorf("compact: %s", out)
			}
			if out := well(t, with("verify", at, "-t", "t")...); !strings.Contains(out, ": whole: 1 artifact ") {
				t.Errorf("verify afterwards:\n%s", out)
			}
			if out := well(t, with("cat", at, "-t", "t")...); strings.Count(out, "\n") != 5000 {
				t.Errorf("%d rows", strings.Count(out, "\n"))
			}
			if store == "folder" {
				damage(t, at)
				out := badly(t, 3, "1 of 3 archives are damaged", with("verify", at)...)
				if !strings.Contains(out, "is damaged") || !strings.Contains(out, "offset") {
					t.Errorf("verify of a damaged one:\n%s", out)
				}
				badly(t, 1, "damaged", with("cat", at, "-t", "t")...)
				badly(t, 1, "is not restored", with("restore", at, "-t", "t", "--to", to.ConnString, "--force")...)
				if got := to.Value(t, `SELECT count(*) FROM t`); got != "5000" {
					t.Errorf("a restore that failed left %s rows", got)
				}
			}
		})
	}
}

// quoted writes a table's name for SQL.
func quoted(t *testing.T, table string) string {
	t.Helper()
	name, err := parseTable(table)
	if err != nil {
		t.Fatal(err)
	}
	return `"` + name.Schema + `"."` + name.Name + `"`
}

func same(t *testing.T, a, b *testpg.DB, table string) {
	t.Helper()
	query := "SELECT * FROM " + table + " ORDER BY 1"
	if x, y := a.Digest(t, query), b.Digest(t, query); x != y {
		t.Errorf("%s: the rows are not the same", table)
	}
}

// damage flips a bit in the middle of an artifact.
func damage(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "public.t", "*.pb"))
	if err != nil || len(files) == 0 {
		all, _ := filepath.Glob(filepath.Join(folder, "public.t", "*", "*"))
		for _, f := range all {
			if strings.HasSuffix(f, ".pb") {
				files = append(files, f)
			}
		}
	}
	if len(files) == 0 {
		t.Fatal("there is no artifact to damage")
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(files[0], raw, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Every way to reach a bucket has its flags.
func TestStoreFlags(t *testing.T) {
	t.Parallel()
	var s storeFlags
	f := pflag.NewFlagSet("archive", pflag.ContinueOnError)
	s.flags(f)
	err := f.Parse([]string{
		"--region=r", "--endpoint=http://store:1", "--path-style=false", "--ca-file=/ca", "--encryption=aws:kms", "--kms-key=k", "--profile=p",
		"--role-arn=arn:aws:iam::1:role/r", "--web-identity-token-file=/token", "--sts-endpoint=http://sts:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	store, got, err := s.store("s3://bucket/prefix")
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := nodeconfig.StoreConfig{
		Bucket: "bucket", Prefix: "prefix", Region: "r", Endpoint: "http://store:1", PathStyle: &no, CAFile: "/ca", Encryption: "aws:kms", KMSKey: "k",
		Credentials: &nodeconfig.StoreCredentials{
			Profile: "p", RoleARN: "arn:aws:iam::1:role/r", WebIdentityTokenFile: "/token", STSEndpoint: "http://sts:1",
		},
	}
	if d := cmp.Diff(want, got); d != "" || store != nodeconfig.StoreS3 {
		t.Error(store, d)
	}
}

func TestParseTable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]engine.TableName{
		"orders": {Schema: "public", Name: "orders"}, "shop.orders": {Schema: "shop", Name: "orders"},
		`"a.b".c`: {Schema: "a.b", Name: "c"}, `x."say ""hi"""`: {Schema: "x", Name: `say "hi"`}, `"Odd.Names"`: {Schema: "public", Name: "Odd.Names"},
	} {
		got, err := parseTable(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if again, err := parseTable(quoteTable(want)); err != nil || again != want {
			t.Errorf("%s, quoted: %+v, %v", quoteTable(want), again, err)
		}
	}
	for _, text := range []string{"", ".", "a.", ".a", "a.b.c", `"a`, `"a"b`} {
		if got, err := parseTable(text); err == nil && text != `"a` {
			t.Errorf("%q was read as %+v", text, got)
		}
	}
}

// A position is of a log that the archive has.
func TestMoment(t *testing.T) {
	t.Parallel()
	a, b := engine.LogID{Origin: "a", Epoch: 1}, engine.LogID{Origin: "b", Epoch: 2}
	one := &found{manifest: &archive.Manifest{Through: archive.NewVector(archive.Cursor{Log: a, Position: "0/10"})}}
	two := &found{manifest: &archive.Manifest{Through: archive.NewVector(archive.Cursor{Log: a, Position: "0/10"}, archive.Cursor{Log: b, Position: "7", Order: "number"})}}
	got, err := (&moment{at: []string{"0/8"}}).of(one)
	if err != nil || len(got.At) != 1 || got.At[0].Log != a || got.At[0].Position != "0/8" {
		t.Errorf("%v, %v", got, err)
	}
	got, err = (&moment{at: []string{"b@2=5"}, time: "2026-03-01 12:00:00"}).of(two)
	if err != nil || got.At[0].Log != b || got.At[0].Order != "number" || got.Time.Wall().Hour() != 12 {
		t.Errorf("%v, %v", got, err)
	}
	for _, at := range []string{"0/8", "c@1=5"} {
		if _, err := (&moment{at: []string{at}}).of(two); err == nil {
			t.Errorf("%s was taken", at)
		}
	}
}

func copyIn(t *testing.T, db *testpg.DB, sql, rows string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), db.ConnString)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.CopyFrom(t.Context(), strings.NewReader(rows), sql); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
}

// An export that follows: from a database by a node, and from that node by another; it
// goes on where it was.
func TestArchiveFollow(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE t (a int PRIMARY KEY, b text)`, `INSERT INTO t SELECT i, 'first' FROM generate_series(1, 100) i`)
	at, state := filepath.Join(t.TempDir(), "archive"), filepath.Join(t.TempDir(), "state")
	follow := func(while func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := command()
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetErr(&out)
		c.SetArgs([]string{"archive", "export", at, "--from", db.ConnString, "-t", "t", "--follow", "--state", state, "--interval", "1s", "--name", "follower"})
		ended := make(chan error, 1)
		go func() { ended <- c.ExecuteContext(ctx) }()
		select {
		case err := <-ended:
			t.Fatalf("the export ended with %v\n%s", err, out.String())
		case <-time.After(300 * time.Millisecond): // what is asked for can be done
		}
		while()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the export ended with %v\n%s", err, out.String())
		}
	}
	has := func(want string) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			out, errs, code := said(t, "archive", "cat", at, "-t", "t")
			if code == 0 && strings.Contains(out, want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the archive does not get %s: %s", want, errs)
			}
		}
	}
	badly(t, 2, "needs --state", "archive", "export", at, "--from", db.ConnString, "-t", "t", "--follow")
	follow(func() {
		has(`{"a":"100","b":"first"}`)
		db.Exec(t, `INSERT INTO t VALUES (101, 'while it runs')`)
		has("while it runs")
	})
	db.Exec(t, `UPDATE t SET b = 'while it does not' WHERE a = 1`)
	follow(func() { has("while it does not") })
	out := well(t, "archive", "ls", at, "-t", "t")
	if strings.Count(out, " base ") != 1 || strings.Count(out, " diff ") < 2 {
		t.Errorf("it did not go on where it was:\n%s", out)
	}
	// Another writer is refused, and says so; with --take-over it is not.
	badly(t, 1, "follower", "archive", "export", at, "--from", db.ConnString, "-t", "t")
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "t", "--take-over")
}

// From a node.
func TestArchiveFromNode(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE t (a int PRIMARY KEY, b text)`, `INSERT INTO t SELECT i, 'row' FROM generate_series(1, 1000) i`, `CREATE TABLE u (a int PRIMARY KEY)`)
	dir := t.TempDir()
	x := export{from: db.ConnString, tables: []string{"t", "u"}, name: "shop/root", formats: []string{"jsonl"}}
	x.storeFlags.flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	cfg, err := x.config(dir, filepath.Join(dir, "unused"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Archives = nil
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	listens := make(chan string, 1)
	go func() {
		ended <- node.Run(ctx, node.Options{
			Config: cfg, Logger: slog.New(slog.DiscardHandler),
			Listening: func(replication, _ net.Addr) { listens <- replication.String() },
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	var address string
	select {
	case address = <-listens:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "archive")
	well(t, "archive", "export", at, "--from", "node://"+address+"/shop/root", "-t", "t", "--format", "jsonl.zst")
	if out := well(t, "archive", "cat", at); strings.Count(out, "\n") != 1000 {
		t.Errorf("%d rows", strings.Count(out, "\n"))
	}
	if out := well(t, "archive", "ls", at); !strings.Contains(out, "shop/root#from@") || strings.Contains(out, "public.u") {
		t.Errorf("ls:\n%s", out)
	}
}
