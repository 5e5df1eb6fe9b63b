package store_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/engine/store/storetest"
)

// TestPebble runs the suite on a file system in memory: once with transactions
// and entries that are kept in memory too, and once with hardly any that are.
func TestPebble(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]struct{ tx, cache int }{"much in memory": {}, "little in memory": {512, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t testing.TB, o storetest.Options) engine.Store {
				s, err := store.OpenPebble(store.PebbleOptions{
					Dir: "/store", FS: vfs.NewMem(), JournalBytes: o.JournalBytes, Tombstones: o.Tombstones, TombstoneRetention: -1,
					TxBytes: limits.tx, CacheBytes: limits.cache, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20,
				})
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
}
