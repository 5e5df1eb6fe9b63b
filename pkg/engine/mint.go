package engine

import (
	"bytes"
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
	blocks  *BlockBuilder
	taken   []*baseline // partial baselines that are in
	old     []byte      // scratch: the row a key change moved
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
	net, err := w.tables(t)
	if err != nil {
		return err
	}
	n, first := len(net.changes)+len(t.Changes), 0
	if t.More != nil {
		n = 0
	}
	if len(t.Changes) > 0 {
		first = t.Changes[0].room()
	}
	w.blocks.Begin(t, n, first)
	for i := range net.changes {
		w.blocks.Change(&net.changes[i])
	}
	minor := uint32(len(net.changes))
	for changes := t.Changes; ; {
		if err := w.mint(t, changes, &minor); err != nil {
			return err
		}
		for i := range changes {
			w.blocks.Change(&changes[i])
		}
		if t.More == nil {
			break
		}
		if changes, err = t.More(); err != nil {
			return fmt.Errorf("transaction at %s: %w", t.Position, err)
		}
		if len(changes) == 0 {
			break
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
			if err := b.merge(w.tx, table, net); err != nil {
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
// them to the state. Rows that had to be filled are replaced.
func (w *minting) mint(t *Transaction, changes []Change, minor *uint32) error {
	var moved Record // the row that the Delete of a key change took away
	for i := range changes {
		c := &changes[i]
		*minor++
		c.Stamp = Stamp{t.Time, t.Log.Origin, t.Log.Epoch, Version{t.Major, *minor}}
		var err error
		if moved, err = complete(w.tx, changes[i:], moved, &w.old); err != nil {
			return fmt.Errorf("transaction at %s: %w", t.Position, err)
		}
		if err := w.m.apply(c); err != nil {
			return err
		}
	}
	return nil
}

// rows is what changes are completed from: the state, or a stage.
type rows interface {
	Get(table TableName, key []byte) (Record, bool, error)
}

// complete makes the first of changes one that can be applied as it is: its
// unchanged columns are filled in, and the key of a row without one gets its
// ordinal. moved is the row that the change before it took away; the row that
// this one takes away, if the next one is the rest of the same update, is
// returned, in the memory of buf.
func complete(from rows, changes []Change, moved Record, buf *[]byte) (Record, error) {
	c := &changes[0]
	var taken Record
	switch {
	case c.Op == OpTruncate:
	case c.Schema.Multiset():
		return taken, ordinal(from, c)
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
