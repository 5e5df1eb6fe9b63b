package relay

import (
	"bytes"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Tombstones go when those above have passed them, or after a time; and only where
// the mark of their leaf keeps an older write from bringing the row back. What
// remembers them then is the mark, and for readers the place up to which they have
// gone.

// collectStep bounds the places that one Collect looks at.
const collectStep = 20_000

// collector walks over the places of the log, once behind what every reader has
// passed and once behind what is older than the retention. A row that is deleted later
// has a new place, ahead of it.
type collector struct {
	readers  []string // nodes that are registered
	complete uint64   // up to here tombstones have gone
	walked   [2]uint64
	left     bool // some were left behind, whose marks were not there yet
	laps     int  // calls since then

	// of the commit under way
	next collected
}

// The walks.
const (
	byReaders = iota
	byAge
)

type collected struct {
	any      bool // it has done something
	complete uint64
	walked   [2]uint64
	left     bool
	gone     uint64
	passed   int // of what readers were sent past it has seen to
}

// lapAfter is after how many Collects that find nothing new the walk begins again, if
// tombstones were left behind.
const lapAfter = 600

// SetReaders registers the nodes that read the log: tombstones wait for all of them, for
// at most the retention. One that is not registered, and comes too late, is caught up
// by all there is.
func (r *Reoriginate) SetReaders(nodes []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.collect.readers = slices.Clone(nodes)
}

// SetRoots registers the roots of the tree, by their node ids: see Kept.
func (r *Reoriginate) SetRoots(nodes []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roots = append([]string{}, nodes...)
}

// Above returns the ids of the nodes above: those that are registered, and those that have
// acknowledged the log, or of which one of them has said that they have.
func (r *Reoriginate) Above() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	above := slices.Concat(r.collect.readers, r.roots)
	for holder := range r.floors.acks {
		above = append(above, NodeOf(holder))
	}
	slices.Sort(above)
	return slices.Compact(above)
}

// Kept returns the position above which the relay's log has to be kept for the roots,
// since it has tables of which every change is delivered; empty while that is not known,
// and all has to be. ok is false for another log, for one without such tables, and if no
// root is registered: who reads it decides.
func (r *Reoriginate) Kept(log engine.LogID) (at engine.Position, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if log != r.log || r.roots != nil && len(r.roots) == 0 || !r.cfg.all() {
		return "", false
	}
	return Position(r.floors.least(r.roots)), true
}

// RootsHave returns how far each registered root has the relay's log, the slowest first.
func (r *Reoriginate) RootsHave() []RootHas {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]RootHas, len(r.roots))
	for i, root := range r.roots {
		all[i] = RootHas{root, Position(r.floors.Floor(r.floors.life(root)))}
	}
	slices.SortStableFunc(all, func(a, b RootHas) int { return engine.CompareNumber(a.At, b.At) })
	return all
}

// limits returns up to where every reader has passed, and up to where the log is
// older than the retention.
func (r *Reoriginate) limits() (passed, old uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed = r.floors.least(r.collect.readers)
	if keep := r.cfg.TombstoneRetention; keep > 0 {
		old = r.floors.before(engine.TimeOf(r.cfg.Now().Add(-keep)))
	}
	return passed, old
}

// Collect lets tombstones go, some way.
func (r *Reoriginate) Collect(tx engine.Tx) (did bool, err error) {
	passed, old := r.limits()
	c := &r.collect
	if c.laps++; c.left && c.laps >= lapAfter {
		c.laps, c.left, c.walked = 0, false, [2]uint64{}
	}
	c.next = collected{complete: c.complete, walked: c.walked, left: c.left}
	did = r.sayAgain(tx)
	for walk, limit := range []uint64{byReaders: passed, byAge: old} {
		if err := r.walk(tx, walk, min(limit, r.place)); err != nil {
			return false, err
		}
	}
	if c.next.gone == 0 {
		return did, nil
	}
	if err := r.known.saveMarks(tx); err != nil {
		return false, err
	}
	return true, setMeta(tx, metaComplete, c.next.complete)
}

// walk looks at the places up to a limit that it has not looked at.
func (r *Reoriginate) walk(tx engine.Tx, walk int, limit uint64) error {
	n := &r.collect.next
	if limit <= n.walked[walk] {
		return nil
	}
	type placed struct {
		place uint64
		table engine.TableName
		key   []byte
	}
	var all []placed
	to := limit
	err := tx.Places(r.log, n.walked[walk], func(place uint64, table engine.TableName, key []byte) bool {
		if place > limit {
			return false
		}
		if len(all) == collectStep {
			to = all[len(all)-1].place
			return false
		}
		all = append(all, placed{place, table, bytes.Clone(key)})
		return true
	})
	if err != nil {
		return err
	}
	n.any, n.walked[walk] = true, to
	for _, p := range all {
		rec, ok, err := tx.Get(p.table, p.key)
		if err != nil {
			return err
		}
		if !ok || !rec.Deleted || !r.mayGo(&rec, walk) {
			continue
		}
		if err := firstOf(tx.Remove(p.table, p.key), tx.Place(r.log, p.table, p.key, 0, false)); err != nil {
			return err
		}
		n.gone++
		n.complete = max(n.complete, p.place)
	}
	return nil
}

// mayGo reports whether nobody needs a tombstone any more. A share's stays.
func (r *Reoriginate) mayGo(rec *engine.Record, walk int) bool {
	t := rec.Schema.Table
	if r.Shares(t) || rec.Schema.Shares() {
		return false
	}
	if v := r.known.peek(rec.Stamp); !v.Dead && !v.Below {
		r.collect.next.left = true
		return false
	}
	// An older write of another leaf may be on its way to the row.
	return walk == byAge || r.cfg.Conflicts.Policy(t) != engine.LastWriteWins
}

// Collected takes over what a Collect has come to, once it is committed or was for
// nothing.
func (r *Reoriginate) Collected() {
	c := &r.collect
	n := c.next
	c.next = collected{}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.passed = r.passed[n.passed:]; !n.any {
		return
	}
	c.complete, c.walked, c.left = n.complete, n.walked, n.left
	if r.stats.Tombstones += n.gone; n.gone > 0 {
		r.known.savedMarks()
	}
}
