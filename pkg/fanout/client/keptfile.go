package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// keptFile keeps a client's snapshot file.
type keptFile struct {
	path    string
	every   time.Duration
	scope   engine.Scope
	compare engine.Comparator
	log     *slog.Logger
	store   *watchedStore

	saved engine.Cursors // of the file; of run, then of close

	mu    sync.Mutex
	found *snapshotFile // until taken in, or found to be of no use

	// stale is the file's content in a store of its own, to read from until the
	// client's own has a cursor; nil at any other time.
	stale atomic.Pointer[store.Memory]
}

// errNoUpstream: the upstream was lost before it could be asked.
var errNoUpstream = errors.New("the upstream was lost before it was known whether the snapshot file is of use there")

// keepFile opens the file if there is one.
func keepFile(cfg Config, w *watchedStore) *keptFile {
	k := &keptFile{path: cfg.snapshotFile, every: cfg.snapshotEvery, scope: cfg.Scope.ID(), compare: cfg.Compare, log: cfg.Logger, store: w}
	if k.every <= 0 {
		k.every = time.Minute
	}
	if p, err := filepath.Abs(k.path); err == nil {
		k.path = p
	}
	var err error
	if k.found, err = openFile(k.path, k.scope); err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.ignore(err)
	}
	return k
}

func (k *keptFile) ignore(err error) {
	k.log.Warn("the snapshot file is ignored: the client starts from its upstream", "file", k.path, "error", err)
}

// takeIn makes the file the client's state, if the upstream goes on from it. It
// does so once; what is not of use is left out, and the log says why.
func (k *keptFile) takeIn(ctx context.Context, offers map[engine.LogID]bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.found == nil {
		return nil
	}
	if offers == nil {
		return &engine.SourceError{Reason: engine.ReasonDisconnected, Err: errNoUpstream}
	}
	found := k.found
	k.found = nil
	defer found.close()
	if err := found.carriedBy(offers); err != nil {
		if !found.succeededBy(offers) { // else its rows are read until those of the new epoch are there
			k.stale.Store(nil)
		}
		k.ignore(err)
		return nil
	}
	defer k.stale.Store(nil)
	tx, err := k.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := found.load(tx, k.compare); err != nil {
		k.ignore(err)
		return nil
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("taking in the snapshot file %s: %w", k.path, err)
	}
	k.log.Info("going on from the snapshot file", "file", k.path)
	return nil
}

// serve lets the file be read from while no upstream can be.
func (k *keptFile) serve(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.found == nil || k.stale.Load() != nil {
		return
	}
	m := store.NewMemory(store.MemoryOptions{})
	err := k.fill(ctx, m)
	if err == nil {
		err = k.found.rewind()
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		k.found.close()
		k.found = nil
		k.ignore(err)
	default:
		k.stale.Store(m)
		k.log.Warn("no upstream can be reached: what is read is what the snapshot file has", "file", k.path)
	}
}

func (k *keptFile) fill(ctx context.Context, m *store.Memory) error {
	tx, err := m.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := k.found.load(tx, k.compare); err != nil {
		return err
	}
	return tx.Commit()
}

// view returns the view to read from, which is own or the file's, and whether it
// is the file's. It closes own if it is not that.
func (k *keptFile) view(own engine.View) (v engine.View, stale bool) {
	m := k.stale.Load()
	if m == nil {
		return own, false
	}
	if len(own.Cursors()) > 0 {
		k.stale.CompareAndSwap(m, nil)
		return own, false
	}
	own.Close()
	return m.View(), true
}

// run writes the file from time to time until ctx ends.
func (k *keptFile) run(ctx context.Context) {
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.save()
		case <-ctx.Done():
			return
		}
	}
}

// close writes the file a last time. Nothing else runs any more.
func (k *keptFile) close() {
	if k.found != nil { // never of use, and perhaps the next time
		k.found.close()
	}
	k.save()
}

// save writes the file if the client has got further than it.
func (k *keptFile) save() {
	v := k.store.View()
	defer v.Close()
	cursors := v.Cursors()
	if len(cursors) == 0 || maps.Equal(cursors, k.saved) {
		return
	}
	if err := saveFile(k.path, k.scope, v); err != nil {
		k.log.Error("the snapshot file cannot be written: the next start takes what it had before, or a snapshot", "file", k.path, "error", err)
		return
	}
	k.saved = maps.Clone(cursors)
}
