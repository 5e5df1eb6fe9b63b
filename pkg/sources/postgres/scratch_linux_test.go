package postgres

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// A large transaction does not fit into the scratch directory: the source says
// so and waits for room, for longer than the server would wait for it, and
// nothing is lost.
func TestScratchFull(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	dir := t.TempDir()
	if err := unix.Mount("tributary", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("a small file system cannot be mounted: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	db.Exec(t, createT)
	smallDecoding(t, db)
	db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET wal_sender_timeout='2s'")
	n := start(t, permanent(db), durable, func(m *model) { m.scratch = dir })
	n.ready()
	pid := walsender(t, db)
	db.Exec(t, `INSERT INTO t SELECT i, 0, repeat('x', 1000) FROM generate_series(1,10000) i`)
	eventually(t, "it is told", func() bool { return n.sawReport(engine.ReasonScratchFull) && n.logged(dir) })
	time.Sleep(4 * time.Second)
	if n.rows("t") != 0 {
		t.Error("a part of a transaction was delivered")
	}
	if err := unix.Mount("tributary", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	n.converges(db, "t")
	if got := walsender(t, db); got != pid || n.baselines() != 1 || len(n.model.txs) != 1 {
		t.Errorf("walsender %s, was %s; %d baselines, %d transactions", got, pid, n.baselines(), len(n.model.txs))
	}
	eventually(t, "scratch is given back", func() bool { return n.src.Slot().ScratchBytes == 0 })
}
