package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// terminate tells a node's process to end, and waits until it has: as it was told to.
func (r *running) terminate(t *testing.T) {
	t.Helper()
	if err := r.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() {
		t.Error("it does not end when it is told to")
		_ = r.process.Process.Signal(syscall.SIGQUIT) // says what it does instead
	})
	defer late.Stop()
	_ = r.process.Wait()
	r.stop = func() {}
	if code := r.process.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("it ended with %d", code)
	}
}

// A node whose disk is full in the middle of a transaction says so, and ends when it is told to, also before it has begun. Once there is
// room it goes on from where it was.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("it mounts a small file system, which takes root")
	}
	disk := t.TempDir()
	if err := unix.Mount("tributary", disk, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip("cannot mount a small file system: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t SELECT i, i, md5(i::text) FROM generate_series(1, 500) i")
	n := configured(t, "disk/full", nodeconfig.Config{
		Storage: nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(disk, "store"), ScratchPath: t.TempDir()},
		Sources: []nodeconfig.Source{{Name: "db", Postgres: database(t, db, plain)}},
	})
	asProcess(t, n)
	same := func() {
		t.Helper()
		read := readerOf(t, n)
		defer read.Close()
		(&hops{db: db, read: read, tables: []engine.TableName{plain}}).converge(t)
	}
	reason := func(is string) {
		t.Helper()
		until(t, "what the node says of its store", func() error {
			if st := n.statusz(t); st.Store == nil || st.Store.Reason != is {
				return fmt.Errorf("want %q: %+v", is, st.Store)
			}
			return nil
		})
	}
	same()
	db.Exec(t, "INSERT INTO t SELECT 1000 + i, i, (SELECT string_agg(md5(i || '.' || j), '') FROM generate_series(1, 1000) j) FROM generate_series(1, 1000) i")
	reason(nodeconfig.StoreDiskFull)
	read := readerOf(t, n)
	if all, err := read.All(plain); err != nil || len(all) != 500 {
		t.Errorf("it serves %d rows of the 500 that it has: %v", len(all), err)
	}
	read.Close()
	bytes, times := int64(0), 0
	until(t, "the transaction to wait too, and not only what is written of it already", func() error {
		if st := n.statusz(t); st.Store != nil && st.Store.Bytes != bytes {
			bytes, times = st.Store.Bytes, 0
		}
		if times++; times < 50 {
			return fmt.Errorf("the store has %d bytes", bytes)
		}
		return nil
	})
	for range 2 { // the second time it has no room from the start
		reason(nodeconfig.StoreDiskFull)
		n.terminate(t)
		n.again()
	}
	reason(nodeconfig.StoreDiskFull)
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT, "size=512m"); err != nil {
		t.Fatal(err)
	}
	same()
	reason("")
	if st := n.statusz(t); st.Rebaselines != 0 {
		t.Errorf("it took a baseline again: %+v", st.Sources)
	}
	n.terminate(t)
}
