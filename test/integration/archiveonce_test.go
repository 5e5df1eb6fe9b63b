package integration

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/build"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// A node that archives once writes a new base each time and ends; what it leaves behind
// says what there is, or why there is nothing. A node serves what it has written.
func TestArchiveOnce(t *testing.T) {
	t.Parallel()
	db, b := testpg.NewDB(t), tests3.NewBucket(t)
	db.Exec(t, createT, "INSERT INTO t SELECT i, i, 'x' FROM generate_series(1, 1000) i", "CREATE TABLE u (id int PRIMARY KEY)")
	store := bucket(t, b)
	var recall map[string]engine.Known
	run := func(change func(*nodeconfig.Archive)) (r nodeconfig.ArchiveResult, err error) {
		t.Helper()
		a := nodeconfig.Archive{ArchiveStore: store, Group: true, Write: &nodeconfig.ArchiveWrite{}}
		change(&a)
		cfg := &nodeconfig.Config{
			Version: nodeconfig.Version, Node: nodeconfig.Node{ID: "hops/once"}, Listen: nodeconfig.Listen{Replication: freeAddress(t), HTTP: freeAddress(t)},
			Sources: []nodeconfig.Source{{Name: "db", Postgres: database(t, db, plain, table("public", "u"))}}, Archives: []nodeconfig.Archive{a},
		}
		cfg.SetDefaults()
		file := filepath.Join(t.TempDir(), "result")
		err = node.Run(t.Context(), node.Options{Config: cfg, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), ArchiveOnce: true, ResultFile: file, Recall: recall})
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		return r, err
	}
	// Each run goes on with the log, also where it is of another table, and not where the server has gone back.
	var logs []engine.LogID
	for generation := range 4 {
		db.Exec(t, fmt.Sprintf("INSERT INTO u VALUES (%d)", generation))
		if generation == 3 {
			recall = map[string]engine.Known{"db": {Log: logs[2], At: "FFFF/0", History: manifestOf(t, b, "prod/public.u/").Minted[logs[2].String()].History}}
		}
		r, err := run(func(*nodeconfig.Archive) {})
		logs = append(logs, manifestOf(t, b, "prod/public.u/").Through[0].Log)
		if err != nil || r.Error != "" || r.Tables != 2 || r.Generation != uint64(generation+1) || r.Bytes == 0 || len(r.Heads) != 2 || r.Heads[0].Table != "public.t" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if logs[0] != logs[1] || logs[1] != logs[2] || logs[2].Origin != logs[3].Origin || logs[2].Epoch >= logs[3].Epoch {
		t.Errorf("the logs are %v", logs)
	}
	recall = nil
	seed := startConfig(t, "hops/seed", nodeconfig.Config{Sources: []nodeconfig.Source{{Name: "seed", Archive: &nodeconfig.ArchiveSource{
		ArchiveStore: store, Group: true, Tables: []nodeconfig.Table{{Schema: "public", Name: "t"}, {Schema: "public", Name: "u"}},
	}}}})
	h := &hops{db: db, nodes: []*running{seed}, read: readerOf(t, seed)}
	defer h.read.Close()
	until(t, "the archive's rows", func() error {
		if got, want := h.reader(t, table("public", "u")), h.source(t, table("public", "u")); !slices.Equal(got, want) {
			return fmt.Errorf("%d rows of %d", len(got), len(want))
		}
		return nil
	})
	if kind := seed.statusz(t).Sources[0].Kind; kind != nodeconfig.KindArchive {
		t.Errorf("the source is of the kind %q", kind)
	}

	for want, change := range map[string]func(*nodeconfig.Archive){
		"the node does not have public.gone: name tables that its sources have": func(a *nodeconfig.Archive) {
			a.Tables = []nodeconfig.Table{{Schema: "public", Name: "t"}, {Schema: "public", Name: "gone"}}
		},
		"no-such-bucket": func(a *nodeconfig.Archive) { a.StoreConfig.Bucket = "no-such-bucket" },
		"the configuration has no archive that the node is to write": func(a *nodeconfig.Archive) { a.Write = nil },
	} {
		start := time.Now()
		r, err := run(change)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(r.Error, want) {
			t.Errorf("%s: %+v, %v", want, r, err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s: said after %s", want, took)
		}
	}
}

func manifestOf(t *testing.T, b *tests3.Bucket, prefix string) *archive.Manifest {
	t.Helper()
	store := bucket(t, b)
	d, err := build.Destination(t.Context(), store.Store, &store.StoreConfig)
	if err != nil {
		t.Fatal(err)
	}
	r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A node that archives once holds tables that are larger than its memory may be: its heap is a fraction of them.
func TestArchiveOnceIsBounded(t *testing.T) {
	db := testpg.NewDB(t)
	const rows = 300_000
	db.Exec(t, "CREATE TABLE big (id int PRIMARY KEY, v text)",
		fmt.Sprintf("INSERT INTO big SELECT i, repeat(md5(i::text), 31) FROM generate_series(1, %d) i", rows))
	cfg := &nodeconfig.Config{
		Version: nodeconfig.Version, Node: nodeconfig.Node{ID: "hops/bounded"}, Listen: nodeconfig.Listen{Replication: freeAddress(t), HTTP: freeAddress(t)},
		Storage: nodeconfig.Storage{ScratchPath: t.TempDir()},
		Sources: []nodeconfig.Source{{Name: "db", Postgres: database(t, db, table("public", "big"))}},
		Archives: []nodeconfig.Archive{{
			ArchiveStore: nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: t.TempDir()}}, Group: true, Write: &nodeconfig.ArchiveWrite{},
		}},
	}
	cfg.SetDefaults()
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	done := make(chan error, 1)
	go func() {
		done <- node.Run(t.Context(), node.Options{Config: cfg, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), ArchiveOnce: true})
	}()
	most := uint64(0)
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("a table of %d MB, and %d MB of heap at most", rows*1000>>20, most>>20)
			if most > rows*1000/2 {
				t.Errorf("%d bytes of heap for a table of %d", most, rows*1000)
			}
			if left, err := os.ReadDir(cfg.Storage.ScratchPath); err != nil || len(left) > 0 {
				t.Errorf("%v is left in the scratch folder, %v", left, err)
			}
			return
		case <-time.After(250 * time.Millisecond):
			runtime.GC() // what is held, and not what is yet to be collected
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
		}
	}
}
