package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// asProcess starts a node as a process of its own, which stop kills.
func asProcess(t *testing.T, r *running) {
	t.Helper()
	r.again = func() {
		c := exec.Command(os.Args[0], "-config", r.file, "-log-format", "text")
		c.Env = append(os.Environ(), nodeEnv+"=1")
		c.Stderr = t.Output()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		r.process = c
		r.stop = func() {
			r.stop = func() {}
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
	r.again()
}

// The disk of an archive fills up while nodes that follow it, and those below, are killed over and over: the node that writes says
// so and goes on serving; once there is room it goes on by itself, and everything is there.
func TestArchiveFullAndReadersKilled(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("it mounts a small file system, which takes root")
	}
	folder := t.TempDir()
	if err := unix.Mount("tributary", folder, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("cannot mount a small file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t SELECT i, i, md5(i::text) FROM generate_series(1, 5000) i", "CREATE TABLE u (id int PRIMARY KEY, v text)")
	u := table("public", "u")
	dir := t.TempDir()
	disk := func(name string) nodeconfig.Storage {
		return nodeconfig.Storage{
			Type: nodeconfig.StoragePebble, Path: filepath.Join(dir, name), Journal: nodeconfig.Journal{MaxBytes: 1 << 20, LimitBytes: 64 << 20},
		}
	}
	store := nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: folder}}
	names := []nodeconfig.Table{{Schema: "public", Name: "t"}, {Schema: "public", Name: "u"}}
	top := configured(t, "hops/top", nodeconfig.Config{
		Storage: disk("top"), Sources: []nodeconfig.Source{{Name: "db", Postgres: database(t, db, plain, u)}},
		Archives: []nodeconfig.Archive{{ArchiveStore: store, Group: true, Write: &nodeconfig.ArchiveWrite{
			Interval: time.Second, Rebase: nodeconfig.ArchiveRebase{MaxAge: time.Hour, MinInterval: time.Hour},
		}}},
	})
	seed := configured(t, "hops/seed", nodeconfig.Config{Storage: disk("seed"), Sources: []nodeconfig.Source{{Name: "seed", Archive: &nodeconfig.ArchiveSource{
		ArchiveStore: store, Group: true, Tables: names, Follow: true, PollInterval: 100 * time.Millisecond, StatePath: filepath.Join(dir, "state"),
	}}}})
	below := configured(t, "hops/below", nodeconfig.Config{Storage: disk("below"), Sources: []nodeconfig.Source{{Name: "up", Fanout: &nodeconfig.Fanout{}}}}, seed)
	for _, r := range []*running{top, seed, below} {
		asProcess(t, r)
	}
	tables := []engine.TableName{plain, u}
	same := func(n *running) {
		t.Helper()
		h := &hops{db: db, tables: tables, nodes: []*running{n}, read: readerOf(t, n)}
		h.converge(t)
		h.read.Close()
	}
	for _, n := range []*running{seed, below} {
		same(n)
	}
	archivedUpToHead(t, top)
	state := func(is string) {
		t.Helper()
		until(t, "the archive's state", func() error {
			if st := top.statusz(t); len(st.Archives) != 1 || st.Archives[0].State != is {
				return fmt.Errorf("want %s: %+v", is, st.Archives)
			}
			return nil
		})
	}
	for i := range 25 {
		db.Exec(t, fmt.Sprintf("UPDATE t SET b = md5('%d' || id) WHERE id %% 25 = %d", i, i), fmt.Sprintf("DELETE FROM t WHERE id %% 500 = %d", i),
			fmt.Sprintf("INSERT INTO u SELECT i, md5('%d' || i) FROM generate_series(%d, %d) i", i, i*20, i*20+19), fmt.Sprintf("DELETE FROM u WHERE id %% 7 = %d", i%7))
		switch {
		case i == 8: // all the room is taken
			f, err := os.Create(filepath.Join(folder, "filler"))
			if err != nil {
				t.Fatal(err)
			}
			for b := make([]byte, 4096); err == nil; {
				_, err = f.Write(b)
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			f.Close()
			state(nodeconfig.ArchiveFull)
			if m := top.statusz(t).Archives[0].Message; !strings.Contains(m, folder) {
				t.Errorf("it says %q", m)
			}
		case i == 16:
			if err := os.Remove(filepath.Join(folder, "filler")); err != nil {
				t.Fatal(err)
			}
			state(nodeconfig.ArchiveStreaming)
		}
		for j, n := range []*running{seed, below, top} {
			if (i+j)%3 == 0 && (n != top || i%2 == 0) {
				n.stop()
				n.again()
			}
		}
		time.Sleep(time.Duration(i%5) * 60 * time.Millisecond)
	}
	same(top)
	archivedUpToHead(t, top)
	for _, n := range []*running{seed, below} {
		same(n)
		if st := n.statusz(t); st.Rebaselines != 0 {
			t.Errorf("%s was baselined again: %+v", n.id, st.Sources)
		}
	}
}
