package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
)

// An export that does not follow ends where it cannot write, and leaves nothing in the
// database.
func TestArchiveExportEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE t (a int PRIMARY KEY)`, `INSERT INTO t VALUES (1)`)
	b := tests3.NewBucket(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(tests3.AccessKey), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(tests3.SecretKey), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for at, c := range map[string]struct{ secret, want string }{
		"s3://bucket-of-nobody/x": {secret, "there is no bucket bucket-of-nobody"},
		"s3://" + b.Name + "/x":   {key, "access is denied"}, // not the secret
		filepath.Join(file, "x"):  {secret, "not a directory"},
	} {
		began := time.Now()
		badly(t, 1, c.want, "archive", "export", at, "--from", db.ConnString, "-t", "t",
			"--endpoint", b.Endpoint, "--access-key-file", key, "--secret-key-file", c.secret)
		if took := time.Since(began); took > 60*time.Second {
			t.Errorf("%s: it took %s to end", at, took)
		}
	}
	badly(t, 1, "if the publication", "archive", "export", t.TempDir(), "--from", "postgres://127.0.0.1:1/none", "-t", "t")
	if got := db.Value(t, `SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()) + (SELECT count(*) FROM pg_publication)`); got != "0" {
		t.Errorf("%s slots and publications are left", got)
	}
}

// The slot of an export that does not follow goes with its connection, so that one that is killed
// does not hold the log of the database back.
func TestArchiveExportSlot(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE t (a int PRIMARY KEY)`)
	ended := make(chan int, 1)
	at := t.TempDir()
	go func() {
		_, _, code := said(t, "archive", "export", at, "--from", db.ConnString, "-t", "t")
		ended <- code
	}()
	seen := map[string]bool{}
	for {
		select {
		case code := <-ended:
			if code != 0 {
				t.Errorf("the export ends with %d", code)
			}
			if !seen["true"] || len(seen) != 1 {
				t.Errorf("whether slots were temporary: %v", seen)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
		for _, row := range db.Query(t, `SELECT temporary::text FROM pg_replication_slots WHERE database = current_database()`) {
			seen[*row[0]] = true
		}
	}
}

// One manifest that is damaged keeps nothing else from being looked at, and an archive without a base
// is no backup.
func TestArchiveUnread(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE TABLE b (a int PRIMARY KEY)`, `CREATE TABLE c (a int PRIMARY KEY)`)
	at := t.TempDir()
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a", "-t", "b", "-t", "c")
	if out := well(t, "archive", "verify", at, "-t", "a", "-t", "c"); strings.Count(out, ": whole: ") != 2 || strings.Contains(out, "public.b") {
		t.Errorf("verify of two:\n%s", out)
	}
	badly(t, 2, "one table at a time", "archive", "cat", at, "-t", "a", "-t", "c")
	manifest := filepath.Join(at, "public.b", "manifest.json")
	whole, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		with string
		code int
		want string
	}{
		{string(whole[:len(whole)/2]), 3, "1 of 3 archives are damaged"},
		{"", 3, "1 of 3 archives are damaged"},
		{strings.Replace(string(whole), `"version":1`, `"version":99`, 1), 1, "of version 99"},
		{`{"version":1,"archive":"x","table":{"schema":"public","name":"b"},"history":"net","writer":{"id":"export","fence":1},"commit":1,"written":"2026-01-01T00:00:00Z"}`, 3, "1 of 3 archives are empty"},
	} {
		if err := os.WriteFile(manifest, []byte(c.with), 0o600); err != nil {
			t.Fatal(err)
		}
		if out := badly(t, c.code, c.want, "archive", "verify", at); strings.Count(out, ": whole: ") != 2 || !strings.Contains(out, "public.b") {
			t.Errorf("%s: verify:\n%s", c.want, out)
		}
		out, _, code := said(t, "archive", "ls", at)
		if !strings.Contains(out, "public.a ") || !strings.Contains(out, "public.c ") || code != 1 && !strings.Contains(out, "public.b ") {
			t.Errorf("%s: ls, %d:\n%s", c.want, code, out)
		}
	}
}

// Tables that refer to each other are emptied and filled in an order that their keys allow.
func TestArchiveRestoreReferences(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	from, to := testpg.NewDB(t), testpg.NewDB(t)
	for _, db := range []*testpg.DB{from, to} {
		db.Exec(t, `CREATE TABLE z (a int PRIMARY KEY, up int REFERENCES z)`, `CREATE TABLE m (a int PRIMARY KEY, z int REFERENCES z)`,
			`CREATE TABLE a (a int PRIMARY KEY, m int REFERENCES m, z int REFERENCES z)`)
		db.Exec(t, `INSERT INTO z VALUES (1, 2), (2, NULL)`, `INSERT INTO m VALUES (1, 1)`, `INSERT INTO a VALUES (1, 1, 2)`)
	}
	at := t.TempDir()
	well(t, "archive", "export", at, "--from", from.ConnString, "-t", "a", "-t", "m", "-t", "z")
	to.Exec(t, `INSERT INTO z VALUES (3, 3)`)
	well(t, "archive", "restore", at, "--all", "--to", to.ConnString, "--force")
	for _, table := range []string{"a", "m", "z"} {
		same(t, from, to, table)
	}
	to.Exec(t, `INSERT INTO z VALUES (3, 3)`)
	well(t, "archive", "restore", at, "-t", "z", "-t", "a", "-t", "m", "--to", to.ConnString, "--force")
	same(t, from, to, "z")
	// What PostgreSQL says in full.
	badly(t, 1, `Table "m" references "z"`, "archive", "restore", at, "-t", "z", "--to", to.ConnString, "--force")
}

// What is compacted is gone on with as before: exports of the tables go on in one log, and say which they bring to one place.
func TestArchiveCompactedGoesOn(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE TABLE b (a int PRIMARY KEY)`, `INSERT INTO a VALUES (1)`)
	at := t.TempDir()
	read := func(table string) *archive.Manifest {
		t.Helper()
		d, err := local.New(at)
		if err != nil {
			t.Fatal(err)
		}
		f, err := openFound(t.Context(), d, "public."+table)
		if err != nil {
			t.Fatal(err)
		}
		return f.manifest
	}
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a", "-t", "b")
	was := read("a")
	well(t, "archive", "compact", at, "-t", "a", "--force")
	now := read("a")
	if now.Generation != was.Generation+1 || !maps.Equal(now.Minted, was.Minted) || !slices.Equal(now.Together, was.Together) || len(was.Minted) != 1 || len(was.Together) != 2 {
		t.Errorf("minted %v and together with %v before it was compacted, and %v and %v after that", was.Minted, was.Together, now.Minted, now.Together)
	}
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a")
	if x, y := read("a").Through[0].Log, read("b").Through[0].Log; x != y {
		t.Errorf("the log is %s in one archive, and %s in the other", x, y)
	}
	badly(t, 2, "-o yaml is not known", "archive", "ls", at, "-o", "yaml")
	badly(t, 2, "say what stays", "archive", "prune", at, "--keep", "-1", "--older-than", "1h")
}

// Two archives are not restored into one table: one of them would be left out.
func TestArchiveRestoreTwo(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE SCHEMA other`, `CREATE TABLE other.a (a int PRIMARY KEY)`, `INSERT INTO a VALUES (1)`, `INSERT INTO other.a VALUES (2)`)
	at := t.TempDir()
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a", "-t", "other.a")
	badly(t, 2, `would both be restored into table "both"."a"`, "archive", "restore", at, "--all", "--schema", "both", "--create", "--to", db.ConnString)
	well(t, "archive", "restore", at, "-t", "other.a", "--schema", "both", "--create", "--to", db.ConnString)
	well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a", "--key-prefix", "more")
	badly(t, 2, "give the location of one", "archive", "restore", at, "--all", "--force", "--to", db.ConnString)
}

// Of tables that are written together and whose writer has broken off between them, what is restored is of one moment.
func TestArchiveRestoreTogether(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs PostgreSQL")
	}
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TABLE a (a int PRIMARY KEY)`, `CREATE TABLE b (a int PRIMARY KEY)`, `INSERT INTO a VALUES (1)`, `INSERT INTO b VALUES (1)`)
	at := t.TempDir()
	export := func() { well(t, "archive", "export", at, "--from", db.ConnString, "-t", "a", "-t", "b") }
	export()
	kept := filepath.Join(t.TempDir(), "b")
	if err := os.CopyFS(kept, os.DirFS(filepath.Join(at, "public.b"))); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `INSERT INTO a VALUES (2)`, `INSERT INTO b VALUES (2)`)
	export()
	restored := func(want string, args ...string) {
		t.Helper()
		well(t, append([]string{"archive", "restore", at, "--create", "--force", "--to", db.ConnString, "--schema", "other"}, args...)...)
		if got := db.Value(t, `SELECT (SELECT count(*) FROM other.a) || ' ' || (SELECT count(*) FROM other.b)`); got != want {
			t.Errorf("%q: %s rows are restored, want %s", args, got, want)
		}
	}
	restored("2 2", "--all")
	manifest := filepath.Join(at, "public.b", archive.ManifestName)
	if err := os.Rename(manifest, manifest+".away"); err != nil {
		t.Fatal(err)
	}
	if out := badly(t, 3, "1 of 2 archives are damaged", "archive", "verify", at); !strings.Contains(out, "public.b: its archive is not in") {
		t.Errorf("of an archive that is gone verify says %q", out)
	}
	badly(t, 1, "Nothing is restored", "archive", "restore", at, "--all", "--force", "--to", db.ConnString, "--schema", "other")
	well(t, "archive", "verify", at, "-t", "a")
	well(t, "archive", "verify", filepath.Join(at, "public.a"))
	if err := os.RemoveAll(filepath.Join(at, "public.b")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(kept, filepath.Join(at, "public.b")); err != nil {
		t.Fatal(err)
	}
	restored("1 1", "--all")
	restored("1 1", "-t", "b", "-t", "a", "--time", "2100-01-01")
	restored("2 1", "-t", "a")
	well(t, "archive", "prune", at, "-t", "a", "--keep", "1", "--force")
	badly(t, 1, "restore them one by one", "archive", "restore", at, "--all", "--force", "--to", db.ConnString, "--schema", "other")
	if got := db.Value(t, `SELECT (SELECT count(*) FROM other.a) || ' ' || (SELECT count(*) FROM other.b)`); got != "2 1" {
		t.Errorf("%s rows are there, want what was", got)
	}
}
