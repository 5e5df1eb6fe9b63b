package node

import (
	"context"
	"errors"
	"os"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// scratchStore is the store of a node that ends once it has archived, and that is given none on disk: it
// holds tables that are larger than memory, and nothing of it outlives the node. So it
// is not durable, whatever it survives: slots are temporary, and every start takes a baseline.
type scratchStore struct {
	*store.Pebble
	dir string
}

// scratchMemTable is smaller than that of a node that goes on: what it brings is one
// baseline, which is written out as it comes.
const scratchMemTable = 8 << 20

func (n *node) openScratchStore(ctx context.Context, scratch string, waits func(*store.DiskFullError)) (engine.Store, error) {
	dir, err := os.MkdirTemp(scratch, "tributary-store-")
	if err != nil {
		return nil, err
	}
	p, err := store.OpenPebbleContext(ctx, store.PebbleOptions{Dir: dir, MemTableBytes: scratchMemTable, Logger: n.log, Waits: waits})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &scratchStore{p, dir}, nil
}

// Durable implements engine.Store.
func (*scratchStore) Durable() bool { return false }

// Close implements engine.Store.
func (s *scratchStore) Close() error { return errors.Join(s.Pebble.Close(), os.RemoveAll(s.dir)) }
