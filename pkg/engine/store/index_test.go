package store

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"pgregory.net/rapid"
)

// naive is an index as a map, with the arena it shares.
type naive map[string]uint64

func (m naive) compare(t *rapid.T, x *index) {
	keys := slices.Sorted(maps.Keys(m))
	if x.len != len(keys) {
		t.Fatalf("the index has %d records, want %d", x.len, len(keys))
	}
	i := 0
	x.scan(nil, func(at uint64) bool {
		if k := string(x.arena.key(at)); i >= len(keys) || k != keys[i] || at != m[k] {
			t.Fatalf("record %d is %q at %d", i, k, at)
		}
		i++
		return true
	})
	if i != len(keys) {
		t.Fatalf("a scan gave %d records of %d", i, len(keys))
	}
	for i := 0; i < len(keys); i += 1 + len(keys)/20 {
		if at, ok := x.get([]byte(keys[i])); !ok || at != m[keys[i]] {
			t.Fatalf("get of %q gave %d, %v", keys[i], at, ok)
		}
		if _, ok := x.get([]byte(keys[i] + "\x00")); ok {
			t.Fatalf("get found a key that is not there")
		}
		var first string
		x.scan([]byte(keys[i]+"\x00"), func(at uint64) bool { first = string(x.arena.key(at)); return false })
		if i+1 < len(keys) && first != keys[i+1] || i+1 == len(keys) && first != "" {
			t.Fatalf("a scan from after %q starts at %q", keys[i], first)
		}
	}
	if x.root != nil {
		checkNode(t, x.root, true)
	}
}

// checkNode checks what holds of every node, and returns the height.
func checkNode(t *rapid.T, n *node, root bool) int {
	if n.n > fan || n.n < 1 {
		t.Fatalf("a node (root: %v) has %d records", root, n.n)
	}
	if n.kids == nil {
		return 1
	}
	h := 0
	for i, k := range n.kids {
		if (k != nil) != (i <= n.n) {
			t.Fatalf("kid %d of a node of %d records is %v", i, n.n, k)
		}
		if k == nil {
			continue
		}
		if g := checkNode(t, k, false); i > 0 && g != h {
			t.Fatalf("kids of heights %d and %d", h, g)
		} else {
			h = g
		}
	}
	return h + 1
}

// TestIndex runs random and ordered insertions and removals against a map, and
// keeps copies that must not change.
func TestIndex(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, m := newIndex(newArena(newShapes())), naive{}
		type copied struct {
			x *index
			m naive
		}
		var copies []copied
		width := rapid.SampledFrom([]string{"%d", "%08d", "a-long-common-prefix-%d"}).Draw(t, "form of keys")
		set := func(i int) {
			key := fmt.Sprintf(width, i)
			at := x.arena.add(&engine.Record{Key: []byte(key), Deleted: true}, 0)
			old, replaced := x.set([]byte(key), at)
			if was, ok := m[key]; ok != replaced || was != old {
				t.Fatalf("set of %q replaced %d (%v), want %d (%v)", key, old, replaced, was, ok)
			}
			m[key] = at
		}
		remove := func(i int) {
			key := fmt.Sprintf(width, i)
			old, ok := x.remove([]byte(key))
			if was, had := m[key]; ok != had || old != was {
				t.Fatalf("remove of %q gave %d (%v), want %d (%v)", key, old, ok, was, had)
			}
			delete(m, key)
		}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			from, n := rapid.IntRange(0, 6_000).Draw(t, "from"), rapid.IntRange(1, 2000).Draw(t, "n")
			step := rapid.SampledFrom([]int{1, -1, 7, 7919}).Draw(t, "step")
			do := set
			if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				do = remove
			}
			for i := range n {
				do(((from+i*step)%6_000 + 6_000) % 6_000)
			}
			m.compare(t, x)
			switch rapid.IntRange(0, 3).Draw(t, "copy") {
			case 0:
				copies = append(copies, copied{x.freeze(), maps.Clone(m)})
			case 1: // as a transaction does: the old one is written no more
				copies = append(copies, copied{x, maps.Clone(m)})
				x = x.share()
			}
		}
		for _, c := range copies {
			c.m.compare(t, c.x)
		}
		for i := range 6_000 {
			remove(i)
		}
		m.compare(t, x)
		if x.root != nil {
			t.Fatal("an empty index has a root")
		}
	})
}

// TestIndexFill holds the memory that an index takes where keys come in order,
// as those of a baseline do.
func TestIndexFill(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"%08d", "%d"} {
		x := newIndex(newArena(newShapes()))
		const rows = 200_000
		for i := range rows {
			key := fmt.Appendf(nil, form, i)
			x.set(key, x.arena.add(&engine.Record{Key: key, Deleted: true}, 0))
		}
		var nodes int
		var count func(n *node)
		count = func(n *node) {
			nodes++
			for i := 0; n.kids != nil && i <= n.n; i++ {
				count(n.kids[i])
			}
		}
		count(x.root)
		if full := float64(rows) / float64(nodes*fan); full < 0.8 {
			t.Errorf("keys of form %s: nodes are %.0f%% full", form, 100*full)
		}
	}
}
