package store_test

import (
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/engine/store/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(_ testing.TB, o storetest.Options) engine.Store {
		return store.NewMemory(store.MemoryOptions{JournalBytes: o.JournalBytes, Tombstones: o.Tombstones})
	})
}
