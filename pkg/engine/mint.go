package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// minting is a run of transactions of a minted log within one store
// transaction.
type minting struct {
	source  *source
	tx      Tx
	m       merger
	log     LogID
	compare Comparator
	key     CursorKey
	cursor  Cursor
	saved   *logState // see move
	moved   bool      // something was written
	changes uint64    // that were written
	blocks  *BlockBuilder
	taken   []*baseline // partial baselines that are in
	old     []byte      // scratch: the row a key change moved
	bags    ordinals
}

// apply takes transactions in.
func (w *minting) apply(tx Tx, txs []Transaction) error {
	clock := w.source.engine.clock
	w.tx, w.m, w.changes = tx, w.source.merger(tx), 0
	cursor, ok := tx.Cursor(w.key)
	if !ok {
		return fmt.Errorf("log %s: transactions before a baseline: %w", w.log, ErrReBaselineRequired)
	}
	w.blocks = NewBlockBuilder(w.log, cursor.Position)
	for i := range txs {
		t := &txs[i]
		if w.compare(t.Position, cursor.Position) <= 0 {
			if t.namesUntaken() {
				return fmt.Errorf("engine: transaction at %s names a baseline that has not been taken in, and log %s is at %s already", t.Position, w.log, cursor.Position)
			}
			continue // sent again after a reconnect
		}
		t.Log, t.Prev, t.Time = w.log, cursor.Position, clock.NextAt(t.Commit)
		if t.Make != nil {
			switch err := t.Make(t, tx); {
			case errors.Is(err, ErrSkip):
				continue
			case err != nil:
				return err
			}
			clock.Observe(t.Time)
		}
		w.moved = true
		if err := w.add(t); err != nil {
			return err
		}
		cursor = Cursor{w.key, t.Position, t.Time}
	}
	if w.cursor = cursor; !w.moved {
		return nil
	}
	var err error
	w.saved, err = w.source.move(tx, cursor, w.compare, w.blocks.Blocks())
	return err
}

// add applies a transaction, and packs it for the log.
func (w *minting) add(t *Transaction) error {
	for _, sc := range t.Schemas {
		if err := w.tx.PutSchema(w.log, sc); err != nil {
			return err
		}
	}
	if t.Memory != nil {
		if err := w.tx.SetMeta(metaMemory+w.source.name, t.Memory); err != nil {
			return err
		}
	}
	for _, f := range t.Remember {
		if err := w.tx.SetMeta(metaFact+w.source.name+"/"+f.Key, f.Value); err != nil {
			return err
		}
	}
	net, err := w.tables(t)
	if err != nil {
		return err
	}
	minor := uint32(len(net.changes))
	changes, err := w.mint(t, t.Changes, &minor)
	if err != nil {
		return err
	}
	n, first := len(net.changes)+len(changes), 0
	if t.More != nil {
		n = 0
	}
	if len(changes) > 0 {
		first = changes[0].room()
	}
	w.blocks.Begin(t, n, first)
	for i := range net.changes {
		w.blocks.Change(&net.changes[i])
	}
	w.changes += uint64(len(net.changes))
	for {
		for i := range changes {
			w.blocks.Change(&changes[i])
		}
		w.changes += uint64(len(changes))
		if t.More == nil {
			break
		}
		if changes, err = t.More(); err != nil {
			return fmt.Errorf("transaction at %s: %w", t.Position, err)
		}
		if len(changes) == 0 {
			break
		}
		if changes, err = w.mint(t, changes, &minor); err != nil {
			return err
		}
		if !net.keep {
			w.blocks.Blocks() // the log is emptied below: none of it is kept
		} else if err := w.append(); err != nil {
			return err
		}
	}
	w.blocks.End()
	if net.keep {
		return nil
	}
	// The difference is too large to be told change by change: readers are caught
	// up by what the state holds.
	w.blocks = NewBlockBuilder(w.log, t.Position)
	info, _ := w.tx.Log(w.log)
	if err := w.tx.ResetLog(w.log, w.compare, t.Position, t.Time); err != nil {
		return err
	}
	return w.tx.SetCompleteFrom(w.log, info.CompleteFrom)
}

// append moves the blocks that are full to the log.
func (w *minting) append() error {
	blocks := w.blocks.Blocks()
	if len(blocks) == 0 {
		return nil
	}
	return w.source.policy.Append(w.tx, w.log, w.compare, blocks)
}

// tables brings the partial baselines that a transaction names into the state.
func (w *minting) tables(t *Transaction) (*netChanges, error) {
	net := &netChanges{keep: true, log: w.log, held: map[LogID]bool{}}
	if len(t.Tables) == 0 {
		return net, nil
	}
	w.bags.forget()
	for _, l := range w.tx.Logs() {
		net.held[l.ID] = true
	}
	for _, bw := range t.Tables {
		b, ok := bw.(*baseline)
		if !ok || !b.mint || !b.spec.Partial || b.source != w.source || b.log != w.log || b.done {
			return nil, fmt.Errorf("engine: transaction at %s of log %s names a baseline that is not a partial one of this log", t.Position, w.log)
		}
		if w.compare(t.Position, b.spec.At) < 0 {
			return nil, fmt.Errorf("engine: transaction at %s of log %s names a baseline as of %s", t.Position, w.log, b.spec.At)
		}
		b.stamp = Stamp{t.Time, w.log.Origin, w.log.Epoch, Version{Major: t.Major}}
		b.spec.Time, b.again = t.Time, true
		if err := b.putSchemas(w.tx); err != nil {
			return nil, err
		}
		for _, table := range b.spec.Tables {
			had := b.mayRetire(w.tx, table)
			if err := b.merge(w.tx, table, net); err != nil {
				return nil, err
			}
			if !had {
				continue
			}
			if err := b.retire(w.tx, table, net); err != nil {
				return nil, err
			}
		}
		if net.keep {
			t.Schemas = append(slices.Clip(t.Schemas), b.spec.Schemas...)
		}
		w.taken = append(w.taken, b)
	}
	return net, w.source.saveLog(w.tx, w.log, w.source.withTables(w.log, w.taken))
}

// namesUntaken reports whether a transaction names a partial baseline that is
// neither part of the state nor given up.
func (t *Transaction) namesUntaken() bool {
	return slices.ContainsFunc(t.Tables, func(bw BaselineWriter) bool {
		b, ok := bw.(*baseline)
		if !ok {
			return true
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return !b.done
	})
}

// abort gives up the partial baselines that have not become the state.
func (w *minting) abort(txs []Transaction) {
	for i := range txs {
		for _, b := range txs[i].Tables {
			b.Abort()
		}
	}
}

// announce tells of the partial baselines once they are committed.
func (w *minting) announce() {
	for _, b := range w.taken {
		b.announcePartial()
	}
}

// mint stamps changes of a transaction, fills in unchanged columns and applies
// them to the state. Rows that had to be filled are replaced. It returns the
// changes without those that this origin may not make: they go no further. (They
// could not be completed either, since the state does not hold their rows.)
func (w *minting) mint(t *Transaction, changes []Change, minor *uint32) ([]Change, error) {
	var moved Record // the row that the Delete of a key change took away
	kept := changes[:0]
	for i := range changes {
		c := &changes[i]
		*minor++
		c.Stamp = Stamp{t.Time, t.Log.Origin, t.Log.Epoch, Version{t.Major, *minor}}
		ok, err := w.m.admits(c.Schema, c.Key, t.Log.Origin)
		if err != nil {
			return nil, fmt.Errorf("transaction at %s: %w", t.Position, err)
		}
		if !ok {
			moved = Record{}
			continue
		}
		if moved, err = complete(w.tx, changes[i:], moved, &w.old, &w.bags); err != nil {
			return nil, fmt.Errorf("transaction at %s: %w", t.Position, err)
		}
		if err := w.m.apply(c); err != nil {
			return nil, err
		}
		if len(kept) == i {
			kept = changes[:i+1]
		} else {
			kept = append(kept, *c)
		}
	}
	return kept, nil
}

// complete makes the first of changes one that can be applied as it is: its
// unchanged columns are filled in, and the key of a row without one gets its
// ordinal. moved is the row that the change before it took away; the row that
// this one takes away, if the next one is the rest of the same update, is
// returned, in the memory of buf.
func complete(from Rows, changes []Change, moved Record, buf *[]byte, bags *ordinals) (Record, error) {
	c := &changes[0]
	var taken Record
	switch {
	case c.Op == OpTruncate:
		bags.forget()
	case c.Schema.Multiset():
		return taken, bags.complete(from, c)
	case c.Op == OpDelete && len(changes) > 1 && changes[1].Partial && bytes.Equal(changes[1].OldKey, c.Key):
		old, ok, err := from.Get(c.Schema.Table, c.Key)
		if err != nil {
			return taken, err
		}
		if ok && !old.Deleted {
			*buf = append((*buf)[:0], old.Row...)
			taken = Record{Schema: old.Schema, Key: c.Key, Row: *buf}
		}
	case c.Partial:
		old := moved
		if c.OldKey == nil || !bytes.Equal(c.OldKey, moved.Key) {
			var ok bool
			var err error
			if old, ok, err = from.Get(c.Schema.Table, c.Key); err != nil {
				return taken, err
			}
			if !ok || old.Deleted {
				return taken, fmt.Errorf("an update of %s leaves columns unchanged, and the state does not hold the row: %w", c.Schema.Table, ErrReBaselineRequired)
			}
		}
		row, err := c.Row.FillUnchanged(nil, c.Schema, old.Row, old.Schema)
		if err != nil {
			return taken, fmt.Errorf("%w: %w", err, ErrReBaselineRequired)
		}
		c.Row, c.Partial = row, false
	}
	return taken, nil
}
