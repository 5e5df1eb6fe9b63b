package relay

import (
	"bytes"
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Doubt stops acknowledgements: the log is not what a reader knows of it.
func (r *Reoriginate) Doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubt = true
	clear(r.floors.acks)
}

// renewal is what becomes of a relay with another log.
type renewal struct {
	was, log engine.LogID
	place    uint64 // before
	keys     int
	floors   *Floors
}

// Renew begins another log, in which all that the state holds has a place.
func (r *Reoriginate) Renew(tx engine.Tx, log engine.LogID) (engine.Position, engine.Time, error) {
	n := &renewal{was: r.log, log: log, place: r.place, floors: NewFloors()}
	for _, t := range tx.Tables() {
		if err := tx.Scan(t.Table, nil, func(*engine.Record) bool { n.keys++; return true }); err != nil {
			return "", 0, err
		}
	}
	n.keys++ // so that it does not begin at the beginning
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewal = n
	return Position(uint64(n.keys)), r.time, nil
}

// Placed gives all that the state holds its place.
func (r *Reoriginate) Placed(tx engine.Tx) error {
	n := r.renewal
	head := uint64(n.keys)
	place := uint64(0)
	for _, t := range tx.Tables() {
		var inner error
		err := tx.Scan(t.Table, nil, func(rec *engine.Record) bool {
			place++
			inner = tx.Place(n.log, t.Table, rec.Key, place, true)
			return inner == nil
		})
		if inner != nil || err != nil {
			return firstOf(inner, err)
		}
	}
	for _, c := range r.known.covers {
		c.Place = min(c.Place, 1) * head // one of a leaf that was forgotten is nowhere
		r.known.news[c.Origin] = c
	}
	if r.collect.complete > 0 {
		if err := setMeta(tx, metaComplete, head); err != nil {
			return err
		}
	}
	if r.cfg.all() {
		r.pending.gap = "the log was begun anew"
		if err := saveGap(tx, Gap{head, engine.TimeOf(r.begun), r.pending.gap}); err != nil {
			return err
		}
	}
	var gone []string
	tx.ScanMeta(metaPrefix(n.was), func(key string, _ []byte) bool {
		gone = append(gone, key)
		return true
	})
	for _, k := range gone {
		if err := tx.SetMeta(k, nil); err != nil {
			return err
		}
	}
	var cursors []engine.Cursor
	for _, c := range tx.Cursors() {
		cursors = append(cursors, c)
	}
	at := engine.TimeOf(r.begun)
	if err := n.floors.save(tx, n.log, head, at, cursors); err != nil {
		return err
	}
	n.floors.flushed(head, at, cursors)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log, r.place, r.next = n.log, head, head
	return nil
}

// giveUp puts back what a commit that failed has changed.
func (r *Reoriginate) giveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.renewal; n != nil {
		r.log, r.place, r.renewal = n.was, n.place, nil
	}
	r.forgotten = nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// forgotten is a leaf that is being forgotten.
type forgotten struct {
	leaf   engine.LogID
	floors []checkpoint
}

// Forget takes a leaf that has been assigned elsewhere out of the state, without
// tombstones, if all nodes that are above have what was read of it, or it is retired; the
// registered readers and roots are above too. Shares that cannot come by another way stay: of epochs that the
// leaf has lost, and all of a leaf that is retired. Whoever reads on hears that nothing else
// of that stands.
func (r *Reoriginate) Forget(tx engine.Tx, leaf engine.LogID, at engine.Position, retired bool, above []string) (bool, error) {
	r.mu.Lock()
	f := &forgotten{leaf: leaf}
	passed := r.floors.Passed(leaf, at) // also by what they have acknowledged: a leaf that is gone tells nothing after a restart
	for _, n := range slices.Concat(above, r.collect.readers, r.roots) {
		if !retired && !slices.Contains(passed, r.floors.life(n)) {
			r.mu.Unlock()
			return false, nil
		}
	}
	for _, c := range r.floors.checkpoints {
		if _, ok := c.Cursors[leaf]; ok {
			c.Cursors = maps.Clone(c.Cursors)
			delete(c.Cursors, leaf)
			if err := c.save(tx, r.log); err != nil {
				r.mu.Unlock()
				return false, err
			}
		}
		f.floors = append(f.floors, c)
	}
	r.mu.Unlock()
	for _, t := range tx.Tables() {
		if !writes(tx, leaf.Origin, t.Table) {
			continue // of a relay no row is
		}
		var inner error
		err := tx.Scan(t.Table, nil, func(rec *engine.Record) bool {
			if rec.Stamp.Origin != leaf.Origin || rec.Stamp.Epoch > leaf.Epoch || (r.Shares(t.Table) || rec.Schema.Shares()) && (retired || rec.Stamp.Epoch < leaf.Epoch) {
				return true
			}
			key := bytes.Clone(rec.Key)
			inner = firstOf(tx.Remove(t.Table, key), tx.Place(r.log, t.Table, key, 0, false))
			return inner == nil
		})
		if inner != nil || err != nil {
			return false, firstOf(inner, err)
		}
	}
	if err := tx.SetMeta(metaMark+leaf.String(), nil); err != nil {
		return false, err
	}
	if c, ok := r.known.covers[leaf.Origin]; ok && !retired { // that nothing of it stands is yet to be heard
		c.Place, c.Time = 0, 0 // that it has ended older epochs stays
		r.known.news[leaf.Origin] = c
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgotten = f
	return true, nil
}

// writes reports whether there may be rows of a table that are an origin's.
func writes(v engine.View, origin string, t engine.TableName) bool {
	for log := range v.SchemasOf(t) {
		if log.Origin == origin {
			return true
		}
	}
	return false
}
