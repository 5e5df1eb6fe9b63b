package relay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Floors knows how far those above have what the children have. It is a machine
// without clock, socket or disk; save and restore keep its checkpoints in the
// store. The zero value is not ready: see NewFloors.
//
// A child is named by its log: another epoch is another child, and what is known
// of the one says nothing of the other.
type Floors struct {
	// checkpoints are the ends of flushes, by place, each with the cursors that moved
	// since the one before. At most one for each place.
	checkpoints []checkpoint
	moves       map[engine.LogID][]move // the same, by child
	acks        map[string]uint64       // of this log, by holder
	known       map[told]has
	lives       map[string]string // the newest holder of each node of which anything was known
	// covered is up to where each holder was found to have all that the children had told.
	// What children tell only grows, and so does this; the newest checkpoint is never among
	// it, since cursors may yet be added to that.
	covered map[string]uint64
}

// move is a child's cursor at a checkpoint.
type move struct {
	place uint64
	at    engine.Position
}

type checkpoint struct {
	Place   uint64
	At      engine.Time // when
	Cursors map[engine.LogID]engine.Position
}

type told struct {
	child  engine.LogID
	holder string
}

type has struct {
	at      engine.Position
	compare engine.Comparator
}

// maxCheckpoints bounds them. Every other one goes when there are more: a floor or
// an ack is then a little older, and more is sent.
const maxCheckpoints = 4096

// NewFloors returns a Floors that knows nothing.
func NewFloors() *Floors {
	return &Floors{moves: map[engine.LogID][]move{}, acks: map[string]uint64{}, known: map[told]has{}, lives: map[string]string{}, covered: map[string]uint64{}}
}

// Flushed says that a flush has ended at a place, with these cursors moved. One
// without changes ends where the last did.
func (f *Floors) Flushed(place uint64, moved []engine.Cursor) { f.flushed(place, 0, moved) }

func (f *Floors) flushed(place uint64, at engine.Time, moved []engine.Cursor) {
	n := len(f.checkpoints)
	if n == 0 || f.checkpoints[n-1].Place < place {
		f.checkpoints = append(f.checkpoints, checkpoint{place, at, map[engine.LogID]engine.Position{}})
		n++
	}
	for _, c := range moved {
		f.checkpoints[n-1].Cursors[c.Log] = c.Position
		f.moved(c.Log, move{f.checkpoints[n-1].Place, c.Position})
	}
}

func (f *Floors) moved(child engine.LogID, m move) {
	all := f.moves[child]
	if n := len(all); n > 0 && all[n-1].place == m.place {
		all[n-1] = m
		return
	}
	f.moves[child] = append(all, m)
}

// replace puts other checkpoints in place.
func (f *Floors) replace(all []checkpoint) {
	f.checkpoints = all
	clear(f.moves)
	for _, c := range all {
		for child, at := range c.Cursors {
			f.moved(child, move{c.Place, at})
		}
	}
}

// before returns the place up to which all was flushed by a time.
func (f *Floors) before(at engine.Time) (place uint64) {
	for _, c := range f.checkpoints {
		if c.At > at {
			break
		}
		place = c.Place
	}
	return place
}

// Ack says that a holder has durably applied this log up to a place.
func (f *Floors) Ack(holder string, place uint64) {
	f.acks[holder] = max(f.acks[holder], place)
	f.lived(holder)
}

// Acks returns, by holder, the position up to which a child is covered by what the
// holder has acknowledged.
func (f *Floors) Acks(child engine.LogID) map[string]engine.Position {
	all := map[string]engine.Position{}
	moves := f.moves[child]
	for h, place := range f.acks {
		if i := sort.Search(len(moves), func(i int) bool { return moves[i].place > place }); i > 0 {
			all[h] = moves[i-1].at
		}
	}
	return all
}

// Has says that a holder has a child's log up to a position.
func (f *Floors) Has(child engine.LogID, compare engine.Comparator, holder string, at engine.Position) {
	k := told{child, holder}
	if have, ok := f.known[k]; !ok || compare(at, have.at) > 0 {
		f.known[k] = has{at, compare}
		f.lived(holder)
	}
}

// Floor returns the place up to which a holder is known to have this log: by what
// it has acknowledged here, or because each child says that the holder has what had
// been read of it.
func (f *Floors) Floor(holder string) uint64 {
	at := f.covered[holder]
	first := sort.Search(len(f.checkpoints), func(i int) bool { return f.checkpoints[i].Place > at })
	for i, c := range f.checkpoints[first:] {
		if !f.covers(holder, c.Cursors) {
			break
		}
		if at = c.Place; first+i+1 < len(f.checkpoints) {
			f.covered[holder] = at
		}
	}
	return max(at, f.acks[holder])
}

// life returns the newest life of a node of which anything is known.
func (f *Floors) life(node string) string { return cmp.Or(f.lives[node], node) }

// lived notes that something is known of a holder.
func (f *Floors) lived(holder string) {
	node := NodeOf(holder)
	if have, ok := f.lives[node]; !ok || newestFirst(holder, have) < 0 {
		f.lives[node] = holder
	}
}

// least returns the place up to which all of some nodes have this log; 0 for none.
func (f *Floors) least(nodes []string) (place uint64) {
	for i, n := range nodes {
		if at := f.Floor(f.life(n)); i == 0 || at < place {
			place = at
		}
	}
	return place
}

func (f *Floors) covers(holder string, cursors map[engine.LogID]engine.Position) bool {
	for child, at := range cursors {
		if have, ok := f.known[told{child, holder}]; !ok || have.compare(at, have.at) > 0 {
			return false
		}
	}
	return true
}

// thin lets every other checkpoint go: what moved with it counts with the next.
func (f *Floors) thin() (gone []uint64, kept []checkpoint) {
	for i := 0; i+1 < len(f.checkpoints); i += 2 {
		a, b := f.checkpoints[i], f.checkpoints[i+1]
		merged := maps.Clone(a.Cursors)
		maps.Copy(merged, b.Cursors)
		gone, kept = append(gone, a.Place), append(kept, checkpoint{b.Place, b.At, merged})
	}
	if n := len(f.checkpoints); n%2 == 1 {
		kept = append(kept, f.checkpoints[n-1])
	}
	return gone, kept
}

// In the store, a checkpoint is a value under the log and its place.

func metaPrefix(log engine.LogID) string { return "relay/" + log.String() + "/" }

func metaKey(log engine.LogID, place uint64) string {
	return fmt.Sprintf("%s%016d", metaPrefix(log), place)
}

type savedCursor struct {
	Origin string          `json:"o"`
	Epoch  engine.Epoch    `json:"e"`
	At     engine.Position `json:"p"`
}

type savedCheckpoint struct {
	Place   uint64        `json:"place"`
	At      engine.Time   `json:"at,omitempty"`
	Cursors []savedCursor `json:"cursors"`
}

func (c checkpoint) save(tx engine.Tx, log engine.LogID) error {
	s := savedCheckpoint{Place: c.Place, At: c.At}
	for l, at := range c.Cursors {
		s.Cursors = append(s.Cursors, savedCursor{l.Origin, l.Epoch, at})
	}
	slices.SortFunc(s.Cursors, func(a, b savedCursor) int { return slices.Compare([]byte(a.Origin), []byte(b.Origin)) })
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return tx.SetMeta(metaKey(log, c.Place), b)
}

// save writes what Flushed is told if the commit succeeds.
func (f *Floors) save(tx engine.Tx, log engine.LogID, place uint64, at engine.Time, moved []engine.Cursor) error {
	if len(moved) == 0 {
		return nil
	}
	if len(f.checkpoints) >= maxCheckpoints {
		gone, kept := f.thin()
		for _, p := range gone {
			if err := tx.SetMeta(metaKey(log, p), nil); err != nil {
				return err
			}
		}
		for _, c := range kept {
			if err := c.save(tx, log); err != nil {
				return err
			}
		}
		f.replace(kept) // also if the commit fails: knowing less only sends more
	}
	c := checkpoint{place, at, map[engine.LogID]engine.Position{}}
	if n := len(f.checkpoints); n > 0 && f.checkpoints[n-1].Place == place {
		c.At = f.checkpoints[n-1].At
		maps.Copy(c.Cursors, f.checkpoints[n-1].Cursors)
	}
	for _, m := range moved {
		c.Cursors[m.Log] = m.Position
	}
	return c.save(tx, log)
}

func (f *Floors) restore(v engine.View, log engine.LogID) (err error) {
	var all []checkpoint
	v.ScanMeta(metaPrefix(log), func(key string, value []byte) bool {
		var s savedCheckpoint
		if err = json.Unmarshal(value, &s); err != nil {
			err = fmt.Errorf("relay: the checkpoint %q cannot be read: %w", key, err)
			return false
		}
		c := checkpoint{s.Place, s.At, map[engine.LogID]engine.Position{}}
		for _, x := range s.Cursors {
			c.Cursors[engine.LogID{Origin: x.Origin, Epoch: x.Epoch}] = x.At
		}
		all = append(all, c)
		return true
	})
	f.replace(all)
	return err
}

// Holdings are how far holders have a leaf's log, as its parents have told.
type Holdings struct {
	compare engine.Comparator
	at      map[string]engine.Position
}

// NewHoldings returns the holdings of a log with positions of that order.
func NewHoldings(compare engine.Comparator) *Holdings {
	return &Holdings{compare, map[string]engine.Position{}}
}

// Ack takes what a parent says.
func (h *Holdings) Ack(acks map[string]engine.Position) {
	for holder, at := range acks {
		if have, ok := h.at[holder]; !ok || h.compare(at, have) > 0 {
			h.at[holder] = at
		}
	}
}

// Of returns how far each holder has the log, to be told to every parent.
func (h *Holdings) Of() map[string]engine.Position { return maps.Clone(h.at) }

// Stable returns how far all roots have the log; ok is false if of one nothing is
// known.
func (h *Holdings) Stable(roots []string) (at engine.Position, ok bool) {
	for i, r := range roots {
		have, known := h.at[r]
		if !known {
			return "", false
		}
		if i == 0 || h.compare(have, at) < 0 {
			at = have
		}
	}
	return at, len(roots) > 0
}
