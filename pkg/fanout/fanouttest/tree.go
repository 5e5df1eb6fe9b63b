package fanouttest

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// Durable returns a store that keeps what is committed. It lives in memory, and ends
// with the test.
func Durable(t testing.TB) engine.Store {
	t.Helper()
	st, err := store.OpenPebble(store.PebbleOptions{
		Dir: "store", FS: vfs.NewMem(), Tombstones: -1, TombstoneRetention: -1, ReserveBytes: -1, Logger: slog.New(slog.DiscardHandler),
		MemTableBytes: 1 << 20, CacheBytes: 4 << 20, BlockCacheBytes: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

// Leaf starts a leaf of a relay tree.
func Leaf(t testing.TB, id string, o engine.SyncSource, roots ...string) (*Node, *relay.Leaf) {
	t.Helper()
	l := relay.NewLeaf(func(engine.LogID) engine.Comparator { return engine.CompareLSN })
	l.SetRoots(roots)
	return Start(t, id, Options{Leaf: l, Use: Durable(t)}, map[string]engine.SyncSource{"own": o}), l
}

// Relay starts a relay. Its children are set with SetPeers.
func Relay(t testing.TB, id string, cfg relay.Config) (*Node, *client.Mesh, *relay.Reoriginate) {
	t.Helper()
	return RelayIn(t, id, 1, Options{Use: Durable(t)}, cfg)
}

// RelayIn is Relay in one of its lives.
func RelayIn(t testing.TB, id string, life engine.Epoch, opts Options, cfg relay.Config) (*Node, *client.Mesh, *relay.Reoriginate) {
	t.Helper()
	r, err := relay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	opts.Relay = r
	n, m := Member(t, id, opts, nil, func(c *client.Config) {
		c.Minted, c.Holder, c.Above, c.Upward = true, relay.Holder(id, life), r.Acks, r.Above
		c.Told = func(s session.Stable) { r.Told(s.Log, s.Compare, s.Holders) }
	})
	return n, m, r
}

// Root starts a root over relays, or leaves. They are set with SetPeers.
func Root(t testing.TB, id string) (*Node, *client.Mesh) {
	t.Helper()
	return Member(t, id, Options{Use: Durable(t)}, nil, func(c *client.Config) { c.Minted, c.Holder = true, relay.Holder(id, 1) })
}

// Grouped returns nodes as peers of one group.
func Grouped(group string, nodes ...*Node) []client.MeshPeer {
	all := Peers(nodes...)
	for i := range all {
		all[i].Group = group
	}
	return all
}
