package store

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// apply writes a batch.
func (p *Pebble) apply(b *pebble.Batch, o *pebble.WriteOptions) error {
	if err := p.usable(); err != nil {
		return err
	}
	if err := p.db.Apply(b, o); err != nil {
		return err
	}
	// The database does not return the error of a write that failed, or was in vain.
	return p.fs.refused()
}

// spillChunk is how much goes to disk in one batch while a transaction is being
// written or folded in.
const spillChunk = 4 << 20

// chunks writes batches of bounded size.
type chunks struct {
	p *Pebble
	b *pebble.Batch
}

func (p *Pebble) newChunks() *chunks { return &chunks{p, p.newBatch()} }

// next returns the batch to add to.
func (c *chunks) next() (*pebble.Batch, error) {
	if c.b.Len() < min(spillChunk, c.p.opts.TxBytes) {
		return c.b, nil
	}
	return c.b, c.flush()
}

func (c *chunks) flush() error {
	if c.b.Empty() {
		return nil
	}
	err := c.p.apply(c.b, pebble.NoSync)
	c.b.Reset()
	return err
}

func (c *chunks) close() { _ = c.b.Close() }

// spill moves what is in the batch to disk, where only this transaction sees it:
// what no root refers to yet goes to its place, all else to the overlay.
func (t *diskTx) spill() error {
	w := t.w
	out := t.p.newChunks()
	defer out.close()
	r := w.batch.Reader()
	for {
		kind, key, v, ok, err := r.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		b, err := out.next()
		if err != nil {
			return err
		}
		deleted := kind != pebble.InternalKeyKindSet
		switch {
		case !w.direct(key):
			w.overlay = true
			w.other = append(append(w.other[:0], spaceOverlay), key...)
			if deleted {
				err = b.Set(w.other, []byte{overlayDelete}, nil)
				break
			}
			op := b.SetDeferred(len(w.other), 1+len(v))
			copy(op.Key, w.other)
			op.Value[0] = overlaySet
			copy(op.Value[1:], v)
		case deleted:
			err = b.Delete(key, nil)
		default:
			err = b.Set(key, v, nil)
		}
		if err != nil {
			return err
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	if t.scanning > 0 {
		w.batch = t.p.newBatch() // the old one's bytes are being looked at
	} else {
		w.batch.Reset()
	}
	w.own.reset()
	w.spilled = true
	return nil
}

// Commit makes everything visible at once, and durable.
func (t *diskTx) Commit() error {
	if err := t.enter(); err != nil {
		if t.failed() == nil {
			t.Rollback()
		}
		return err
	}
	defer t.leave()
	for id := range t.logs {
		if l := t.root.log(id); l != nil {
			if err := l.whole(); err != nil {
				t.Rollback()
				return err
			}
		}
	}
	if err := t.write(pebble.Sync); err != nil {
		t.abandon()
		t.end()
		return t.p.commitError(err)
	}
	t.publish(true)
	t.p.keepHouse(t)
	t.end()
	return nil
}

// write makes the transaction part of what is on disk, all or nothing.
func (t *diskTx) write(o *pebble.WriteOptions) error {
	shapes := t.note()
	if t.w.spilled {
		if err := t.fold(); err != nil {
			return err
		}
	} else {
		if err := t.w.batch.Apply(t.notes, nil); err != nil {
			return err
		}
		for _, c := range t.cuts {
			if err := c.remove(t.w.batch); err != nil {
				return err
			}
		}
		for _, d := range t.drops {
			if err := t.w.batch.DeleteRange(d.from, d.to, nil); err != nil {
				return err
			}
		}
		if !t.w.batch.Empty() {
			if err := t.p.apply(t.w.batch, o); err != nil {
				return err
			}
		}
	}
	t.p.shapesOut = shapes
	return nil
}

// note adds to the notes what has become of tables, logs and shapes. It returns
// how many shapes are on disk then.
func (t *diskTx) note() (shapes int) {
	for _, n := range t.tables {
		t.val = n.value(t.val[:0])
		_ = t.notes.Set(n.key(), t.val, nil)
	}
	for id := range t.logs {
		if l := t.root.log(id); l != nil {
			t.val = l.value(t.val[:0])
			_ = t.notes.Set(l.key(), t.val, nil)
		}
	}
	all := *t.p.shapes.all.Load()
	for n := t.p.shapesOut; n < len(all); n++ {
		t.val = appendSchema(appendLog(t.val[:0], all[n].log), all[n].schema)
		_ = t.notes.Set(shapeKey(uint32(n)), t.val, nil)
	}
	return len(all)
}

// fold commits a transaction that is on disk already: one batch decides it,
// then the overlay is folded in. Until that is done, views see the edition
// before it. A crash in between is mended at open.
func (t *diskTx) fold() error {
	if err := t.spill(); err != nil {
		return err
	}
	for _, c := range t.cuts {
		t.drops = append(t.drops, c.ranges()...)
	}
	v := appendUvarints(nil, uint64(len(t.drops)))
	for _, d := range t.drops {
		v = appendStr(appendStr(v, d.from), d.to)
	}
	if err := t.notes.Set(metaKey(metaFold), v, nil); err != nil {
		return err
	}
	if err := t.p.apply(t.notes, pebble.Sync); err != nil {
		return err
	}
	t.undo, t.adopted, t.w.overlay, t.w.made = nil, false, false, nil
	if err := t.p.foldIn(t.drops); err != nil {
		// It is decided, and cannot be undone: nothing may be written on top of it.
		t.p.fail(err)
		return err
	}
	return nil
}

// foldIn brings the overlay to its place.
func (p *Pebble) foldIn(drops []keyRange) (err error) {
	all := keyRange{[]byte{spaceOverlay}, []byte{spaceOverlay + 1}}
	it, err := p.db.NewIter(&pebble.IterOptions{LowerBound: all.from, UpperBound: all.to})
	if err != nil {
		return err
	}
	out := p.newChunks()
	defer out.close()
	err = func() error {
		for it.First(); it.Valid(); it.Next() {
			b, err := out.next()
			if err != nil {
				return err
			}
			v, err := it.ValueAndErr()
			switch {
			case err != nil:
			case len(v) == 0:
				err = errDamaged
			case v[0] == overlayDelete:
				err = b.Delete(it.Key()[1:], nil)
			default:
				err = b.Set(it.Key()[1:], v[1:], nil)
			}
			if err != nil {
				return err
			}
		}
		return it.Error()
	}()
	if err = errors.Join(err, it.Close()); err != nil {
		return err
	}
	for _, d := range append(drops, all) {
		if err := out.b.DeleteRange(d.from, d.to, nil); err != nil {
			return err
		}
	}
	if err := out.b.Delete(metaKey(metaFold), nil); err != nil {
		return err
	}
	return p.apply(out.b, pebble.Sync)
}

// publish makes what has been written visible.
func (t *diskTx) publish(wake bool) {
	for num, r := range t.newest {
		t.p.recent.add(num, r)
	}
	for _, num := range t.dropped {
		t.p.recent.drop(num)
	}
	t.p.publish(t.root, wake)
}

// abandon removes what the transaction has on disk. If that fails, it is done
// at the next open.
func (t *diskTx) abandon() {
	if !t.w.spilled && !t.adopted && len(t.w.made) == 0 || !t.p.ops.enter() {
		return
	}
	defer t.p.ops.leave()
	b := t.p.newBatch()
	defer func() { _ = b.Close() }()
	undo := append(t.undo, t.w.made...)
	if t.w.overlay {
		undo = append(undo, keyRange{[]byte{spaceOverlay}, []byte{spaceOverlay + 1}})
	}
	for _, r := range undo {
		_ = b.DeleteRange(r.from, r.to, nil)
	}
	if err := t.p.apply(b, pebble.NoSync); err != nil && !errors.Is(err, engine.ErrClosed) {
		t.p.opts.Logger.Warn("store: what a transaction left is removed at the next start", "error", err)
	}
}
