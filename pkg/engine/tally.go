package engine

import (
	"maps"
	"slices"
	"sync"
)

// TableConflicts counts what has become of writes of several origins to the rows
// of a table, since the node has started.
type TableConflicts struct {
	Table     TableName
	Policy    ConflictPolicy
	Lost      uint64 // writes that found a newer one of another origin
	Overwrote uint64 // writes that replaced one of another origin
	// Refused are the writes to rows that belong to another node, by origin.
	Refused []OriginCount
}

// OriginCount is a count of one origin's writes.
type OriginCount struct {
	Origin string
	Count  uint64
}

// tally adds up what commits have counted.
type tally struct {
	mu       sync.Mutex
	tables   map[TableName]*fate
	repeated map[string]uint64 // by the origin of the log they came in
}

// add adds what has been counted within a transaction that is committed.
func (t *tally) add(origin string, g *gate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g.repeated > 0 {
		if t.repeated == nil {
			t.repeated = map[string]uint64{}
		}
		t.repeated[origin] += g.repeated
	}
	for name, f := range g.fates {
		if f.rule == nil && f.lost == 0 && f.overwrote == 0 {
			continue
		}
		if t.tables == nil {
			t.tables = map[TableName]*fate{}
		}
		to := t.tables[name]
		if to == nil {
			to = &fate{rule: f.rule, refused: map[string]uint64{}}
			t.tables[name] = to
		}
		to.lost += f.lost
		to.overwrote += f.overwrote
		for o, n := range f.refused {
			to.refused[o] += n
		}
	}
}

// conflicts returns the counts by table.
func (t *tally) conflicts() []TableConflicts {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []TableConflicts
	for name, f := range t.tables {
		c := TableConflicts{Table: name, Policy: LastWriteWins, Lost: f.lost, Overwrote: f.overwrote}
		if f.rule != nil {
			c.Policy = f.rule.Policy
		}
		for _, o := range slices.Sorted(maps.Keys(f.refused)) {
			c.Refused = append(c.Refused, OriginCount{o, f.refused[o]})
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b TableConflicts) int { return a.Table.Compare(b.Table) })
	return all
}

// repeats returns how many changes of an origin's log had come before.
func (t *tally) repeats(origin string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.repeated[origin]
}
