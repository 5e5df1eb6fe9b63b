package topology

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// assign gives each child one of the groups. Groups differ by at most one child; of
// all such assignments it is one that moves the fewest children from where they were
// before. Children that must move, and new ones, go where the highest score of child
// and group has room (rendezvous hashing), so that without a before it depends on the
// names alone.
func assign(children, groups []string, before map[string]string) map[string]string {
	out := make(map[string]string, len(children))
	if len(groups) == 0 {
		return out
	}
	kept := make(map[string][]string, len(groups)) // children by group
	for _, g := range groups {
		kept[g] = nil
	}
	var open []string
	for _, c := range slices.Sorted(slices.Values(children)) {
		if g, ok := before[c]; ok {
			if _, there := kept[g]; there {
				kept[g] = append(kept[g], c)
				continue
			}
		}
		open = append(open, c)
	}

	// The larger shares go to the groups that have more than the others are given: so the
	// fewest must move. Beyond that names decide, and not what is known of the past, which
	// for groups that are being made is nothing yet.
	least := len(children) / len(groups)
	order := slices.SortedFunc(slices.Values(groups), func(a, b string) int {
		return cmp.Or(cmp.Compare(max(len(kept[b]), least), max(len(kept[a]), least)), cmp.Compare(a, b))
	})
	room := make(map[string]int, len(groups))
	for i, g := range order {
		share := least
		if i < len(children)%len(groups) {
			share++
		}
		have := kept[g]
		slices.SortFunc(have, func(a, b string) int { return compareScores(b, g, a, g) })
		if len(have) > share {
			open = append(open, have[share:]...)
			have = have[:share]
		}
		for _, c := range have {
			out[c] = g
		}
		room[g] = share - len(have)
	}

	slices.Sort(open)
	for _, c := range open {
		best := ""
		for _, g := range order {
			if room[g] > 0 && (best == "" || compareScores(c, g, c, best) > 0) {
				best = g
			}
		}
		out[c] = best
		room[best]--
	}
	return out
}

// compareScores compares how well a child goes with a group, and another with another.
func compareScores(child, group, child2, group2 string) int {
	return cmp.Or(cmp.Compare(score(child, group), score(child2, group2)), cmp.Compare(child2, child), cmp.Compare(group2, group))
}

func score(child, group string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(child + "\x00" + group)) // it never fails
	// FNV's last bytes hardly reach the high bits: mix them (Murmur3's finalizer).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
