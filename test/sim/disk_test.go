package sim

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// disk is a node's store. It outlives the node's process; what a crash takes of it
// is as the plan says.
type disk struct {
	*store.Memory
	n       *node
	durable bool
	full    bool           // nothing can be committed
	dies    int            // the process ends in so many commits
	keeps   bool           // and that commit is on the disk
	cursors engine.Cursors // as of the last commit
	logs    map[engine.LogID]bool
	backup  engine.View
	synced  engine.Cursors          // what a crash leaves: those, but for a planted bug
	marks   map[string]engine.Stamp // of a planted bug
	// of a tree
	holder    string        // its life
	gate      chan struct{} // transactions wait for it
	seen      map[cell]shown
	forgotten map[engine.LogID]bool // and not taken in again
	forgot    map[string]bool       // origins, ever
}

var (
	errCrashed = errors.New("the process has ended")
	errFull    = errors.New("no space left on device")
)

func newDisk(n *node, durable bool) *disk {
	d := &disk{n: n, durable: durable}
	d.wipe()
	return d
}

func (d *disk) wipe() {
	d.Memory = store.NewMemory(store.MemoryOptions{JournalBytes: d.n.w.plan.Journal})
	d.cursors, d.synced, d.logs, d.marks = engine.Cursors{}, engine.Cursors{}, map[engine.LogID]bool{}, map[string]engine.Stamp{}
	d.dies, d.full = 0, false
	d.holder, d.seen = relay.Holder(d.n.id, engine.Epoch(engine.TimeOf(d.n.wall()))), map[cell]shown{}
	d.forgotten, d.forgot = map[engine.LogID]bool{}, map[string]bool{}
}

// sync brings what has been committed to the disk, where that is not done by the
// commit.
func (d *disk) sync() { d.synced = d.cursors }

// reboot leaves what survives the end of the process.
func (d *disk) reboot() {
	if !d.durable {
		d.wipe()
	}
	d.dies = 0
}

// Durable reports whether the disk keeps anything.
func (d *disk) Durable() bool { return d.durable }

// Begin starts a transaction.
func (d *disk) Begin(ctx context.Context) (engine.Tx, error) {
	if d.gate != nil {
		<-d.gate
	}
	if d.n.dying {
		return nil, errCrashed
	}
	tx, err := d.Memory.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &diskTx{Tx: tx, d: d}, nil
}

// View is the store's, but for planted bugs.
func (d *disk) View() engine.View { return planted{d.Memory.View(), d} }

// planted is a view with a planted bug.
type planted struct {
	engine.View
	d *disk
}

func (v planted) Logs() []engine.LogInfo { return v.d.fenceless(v.View.Logs()) }

func (v planted) LogsOf(origin string) []engine.LogInfo {
	return v.d.fenceless(v.View.LogsOf(origin))
}

func (v planted) Cursor(k engine.CursorKey) (engine.Cursor, bool) {
	return v.d.scopeless(k, v.View)
}

func (v planted) Cursors() engine.Cursors { return v.d.allScopes(v.View.Cursors()) }

func (t *diskTx) Logs() []engine.LogInfo { return t.d.fenceless(t.Tx.Logs()) }

func (t *diskTx) LogsOf(origin string) []engine.LogInfo { return t.d.fenceless(t.Tx.LogsOf(origin)) }

func (t *diskTx) Cursor(k engine.CursorKey) (engine.Cursor, bool) { return t.d.scopeless(k, t.Tx) }

func (t *diskTx) Cursors() engine.Cursors { return t.d.allScopes(t.Tx.Cursors()) }

// fenceless hides what keeps an older epoch out.
func (d *disk) fenceless(logs []engine.LogInfo) []engine.LogInfo {
	if d.n.w.plant != noFence {
		return logs
	}
	return slices.DeleteFunc(slices.Clone(logs), func(l engine.LogInfo) bool { return l.ID.Origin != d.n.origin() })
}

// scopeless finds a cursor whatever its scope is.
func (d *disk) scopeless(k engine.CursorKey, v engine.View) (engine.Cursor, bool) {
	c, ok := v.Cursor(k)
	if ok || d.n.w.plant != anyScope {
		return c, ok
	}
	c, ok = d.allScopes(v.Cursors())[k]
	return c, ok
}

// allScopes gives the cursors of other scopes as those of the node's.
func (d *disk) allScopes(cursors engine.Cursors) engine.Cursors {
	if d.n.w.plant != anyScope {
		return cursors
	}
	all := engine.Cursors{}
	for k, c := range cursors {
		if k.Log.Origin != d.n.origin() {
			k.Scope = d.n.scope().ID()
			if have, ok := all[k]; ok && engine.CompareNumber(have.Position, c.Position) >= 0 {
				continue
			}
			c.CursorKey = k
		}
		all[k] = c
	}
	return all
}

// diskTx watches a transaction.
type diskTx struct {
	engine.Tx
	d      *disk
	resets []reset
	blocks []appended
	placed []cell
}

type reset struct {
	log  engine.LogID
	head engine.Position
}

type appended struct {
	log    engine.LogID
	blocks []*engine.Block
}

func (t *diskTx) Place(log engine.LogID, table engine.TableName, key []byte, place uint64, fresh bool) error {
	t.placed = append(t.placed, cell{table, string(key)})
	return t.Tx.Place(log, table, key, place, fresh)
}

func (t *diskTx) ResetLog(log engine.LogID, c engine.Comparator, head engine.Position, at engine.Time) error {
	t.resets = append(t.resets, reset{log, head})
	return t.Tx.ResetLog(log, c, head, at)
}

func (t *diskTx) Append(log engine.LogID, c engine.Comparator, blocks ...*engine.Block) error {
	i := slices.IndexFunc(t.blocks, func(a appended) bool { return a.log == log })
	if i < 0 {
		i = len(t.blocks)
		t.blocks = append(t.blocks, appended{log: log})
	}
	t.blocks[i].blocks = append(t.blocks[i].blocks, blocks...)
	return t.Tx.Append(log, c, blocks...)
}

// Merge is the store's, but for a planted bug: a mark per origin in place of the
// stamp of each key.
func (t *diskTx) Merge(r *engine.Record) (engine.Outcome, error) {
	if t.d.n.w.plant == originMark {
		if r.Stamp.Compare(t.d.marks[r.Stamp.Origin]) <= 0 {
			return engine.Repeated, nil
		}
		t.d.marks[r.Stamp.Origin] = r.Stamp
	}
	return t.Tx.Merge(r)
}

func (t *diskTx) PutSchema(log engine.LogID, s *engine.Schema) error {
	t.d.logs[log] = true
	return t.Tx.PutSchema(log, s)
}

func (t *diskTx) Commit() error {
	d := t.d
	switch {
	case d.full:
		t.Rollback()
		return errFull
	case d.dies == 1 && !d.keeps:
		t.Rollback()
		d.n.dying = true
		return errCrashed
	}
	if err := t.Tx.Commit(); err != nil {
		return err
	}
	d.committed(t)
	if d.dies > 0 {
		if d.dies--; d.dies == 0 {
			d.n.dying = true
			return errCrashed
		}
	}
	return nil
}

// forget notes that the node has forgotten a leaf, which may come back.
func (d *disk) forget(log engine.LogID) {
	d.forgotten[log], d.forgot[log.Origin] = true, true
	maps.DeleteFunc(d.seen, func(_ cell, s shown) bool { return s.stamp.Origin == log.Origin })
}

// committed checks what a commit has done to logs and cursors.
func (d *disk) committed(t *diskTx) {
	n := d.n
	w := n.w
	v := d.Memory.View()
	defer v.Close()
	now := v.Cursors()
	if w.tree != nil {
		w.tree.committed(n, t, v)
		for k := range d.cursors {
			if _, ok := now[k]; !ok && !replaced(k, now) {
				d.forget(k.Log)
			}
		}
		d.cursors = now
		for k := range now {
			delete(d.forgotten, k.Log)
		}
		if w.plant != lateSync {
			d.sync()
		}
		n.wake()
		return
	}
	for k, old := range d.cursors {
		c, ok := now[k]
		switch {
		case ok && engine.CompareNumber(c.Position, old.Position) < 0:
			w.fail("cursor", "node %s: the cursor of %s went from %s back to %s", n.id, k.Log, old.Position, c.Position)
		case !ok && !replaced(k, now):
			w.fail("cursor", "node %s: the cursor of %s at %s is gone", n.id, k.Log, old.Position)
		}
	}
	for k := range now {
		for o := range now { // the newer fences the older off, in one commit
			if o.Log.Origin == k.Log.Origin && o.Log.Epoch > k.Log.Epoch {
				w.fail("epoch", "node %s: has a cursor in epoch %d of %s beside one in epoch %d", n.id, k.Log.Epoch, k.Log.Origin, o.Log.Epoch)
			}
		}
	}
	d.cursors = now
	if w.plant != lateSync {
		d.sync()
	}
	for _, r := range t.resets {
		w.model.reset(n, r.log, r.head)
	}
	for _, a := range t.blocks {
		w.model.appended(n, a.log, a.blocks, v.Schema)
	}
	n.wake()
}

// replaced reports whether a cursor has gone for a reason: a newer epoch, or
// another scope.
func replaced(k engine.CursorKey, now engine.Cursors) bool {
	for o := range now {
		if o.Log.Origin == k.Log.Origin && (o.Log.Epoch > k.Log.Epoch || o.Scope != k.Scope) {
			return true
		}
	}
	return false
}

// keep makes a backup.
func (d *disk) keep() {
	if d.backup != nil {
		d.backup.Close()
	}
	d.backup = d.Memory.View()
}

// restore goes back to the backup; it reports whether there is one.
func (d *disk) restore() bool {
	v := d.backup
	if v == nil {
		return false
	}
	logs := d.logs
	d.wipe()
	d.logs = logs
	tx, err := d.Memory.Begin(context.Background())
	must(err)
	for log := range logs {
		for _, s := range v.Schemas(log) {
			must(tx.PutSchema(log, s))
		}
	}
	for _, t := range v.Tables() {
		must(v.Scan(t.Table, nil, func(r *engine.Record) bool {
			must(tx.Put(r))
			return true
		}))
		for log := range logs {
			if s := v.Truncated(t.Table, log.Origin); s != (engine.Stamp{}) {
				must(tx.SetTruncated(t.Table, s))
			}
		}
	}
	for _, l := range v.Logs() {
		must(tx.ResetLog(l.ID, engine.CompareNumber, l.Oldest, l.Time))
		blocks, err := v.ReadLog(l.ID, l.Oldest, 1<<30)
		must(err)
		must(tx.Append(l.ID, engine.CompareNumber, blocks...))
		must(tx.SetCompleteFrom(l.ID, l.CompleteFrom))
	}
	for _, c := range v.Cursors() {
		must(tx.SetCursor(c))
	}
	v.ScanMeta("", func(key string, value []byte) bool {
		must(tx.SetMeta(key, slices.Clone(value)))
		return true
	})
	must(tx.Commit())
	now := d.Memory.View()
	d.cursors = now.Cursors()
	d.synced = d.cursors
	now.Close()
	return true
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
