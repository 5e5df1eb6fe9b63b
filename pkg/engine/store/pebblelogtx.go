package store

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// log returns a log for writing, or nil.
func (t *diskTx) log(id engine.LogID) *diskLog {
	l := t.root.log(id)
	if l == nil {
		return nil
	}
	t.writes(id)
	if l.owner != t.root.seq {
		c := *l
		c.owner = t.root.seq
		for _, space := range []byte{spaceBlock, spaceIndex} {
			t.undo = append(t.undo, keyRange{blockKey(nil, space, l.num, l.next), rangeOf(space, l.num).to})
		}
		l = &c
		t.root.setLog(l)
	}
	return l
}

func (t *diskTx) writes(id engine.LogID) {
	if t.logs == nil {
		t.logs = map[engine.LogID]struct{}{}
	}
	t.logs[id] = struct{}{}
}

// Append adds blocks to a log.
func (t *diskTx) Append(log engine.LogID, compare engine.Comparator, blocks ...*engine.Block) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	l := t.log(log)
	if l == nil {
		return unknownLog(log)
	}
	if compare != nil {
		l.compare = compare
	}
	if l.compare == nil {
		return fmt.Errorf("log %s: the order of its positions is not known since the restart", log)
	}
	if err := l.follows(blocks); err != nil {
		return err
	}
	for _, b := range blocks {
		if err := t.append(l, b); err != nil {
			return err
		}
	}
	return nil
}

func (t *diskTx) append(l *diskLog, b *engine.Block) error {
	if l.first == l.next && l.open == nil {
		l.oldest = l.head
	}
	p := t.p
	m := blockMeta{position: b.Position, changes: b.Changes, part: b.Part, last: b.Last}
	t.val = t.val[:0]
	payload := b.Payload
	if p.large(len(payload)) {
		in, err := t.w.setPieces(spaceBlockIn, l.num, l.next, payload)
		if err != nil {
			return p.commitError(err)
		}
		m.pieces, t.val, payload = in.n, in.append(t.val), nil
	}
	t.val = appendBlockHead(t.val, l.id, b, func(log engine.LogID, s *engine.Schema) uint32 { return t.w.shape.number(p.shapes, log, s) })
	m.size = len(t.val) + len(b.Payload) + len(b.Position) + 32 // about: with what is kept beside it
	t.w.key = blockKey(t.w.key[:0], spaceBlock, l.num, l.next)
	t.w.set(t.w.key, t.val, payload)
	t.val = m.append(t.val[:0])
	t.w.key = blockKey(t.w.key[:0], spaceIndex, l.num, l.next)
	t.w.set(t.w.key, t.val, nil)
	t.keep(l, b)
	l.next++
	l.changes += b.Changes
	t.grow(l, m.size)
	l.took(b)
	return t.room()
}

func (t *diskTx) grow(l *diskLog, by int) {
	l.bytes += by
	t.root.journal += by
}

// keep notes a block for the readers that are near the head.
func (t *diskTx) keep(l *diskLog, b *engine.Block) {
	if t.newest == nil {
		t.newest = map[uint32]*run{}
	}
	r := t.newest[l.num]
	if r == nil {
		r = &run{base: l.next}
		t.newest[l.num] = r
	}
	r.add(b)
	for r.size > t.p.opts.CacheBytes && len(r.blocks) > 1 {
		r.dropOldest()
	}
}

// ResetLog empties a log, or creates it.
func (t *diskTx) ResetLog(log engine.LogID, compare engine.Comparator, head engine.Position, at engine.Time) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	t.forgetLog(log)
	t.p.nextLog++
	l := &diskLog{front: front{id: log, compare: compare, head: head, time: at, complete: at}, num: t.p.nextLog, owner: t.root.seq}
	t.undo = append(t.undo, logRanges(l.num)...)
	t.root.setLog(l)
	t.writes(log)
	return nil
}

// forgetLog takes a log out, with its entries.
func (t *diskTx) forgetLog(log engine.LogID) {
	if old := t.root.log(log); old != nil {
		t.drops = append(t.drops, logRanges(old.num)...)
		t.dropped = append(t.dropped, old.num)
		delete(t.newest, old.num)
		t.root.journal -= old.bytes
	}
}

// DropLog forgets a log's entries and cursors.
func (t *diskTx) DropLog(log engine.LogID) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	if old := t.log(log); old != nil {
		t.forgetLog(log)
		t.root.logs.Delete(item[engine.LogID, *diskLog]{key: log})
		_ = t.notes.Delete(old.key(), nil)
		delete(t.logs, log)
	}
	for _, c := range t.root.dropCursors(log) {
		_ = t.notes.Delete(cursorKey(c.CursorKey), nil)
	}
	return nil
}

// SetCompleteFrom says from when on a log's deletes are known.
func (t *diskTx) SetCompleteFrom(log engine.LogID, at engine.Time) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	l := t.log(log)
	if l == nil {
		return unknownLog(log)
	}
	l.complete = at
	return nil
}

// TrimLog lets go of the oldest transactions of a log.
func (t *diskTx) TrimLog(log engine.LogID, keep int, notPast engine.Position) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	l := t.log(log)
	if l == nil {
		return unknownLog(log)
	}
	if err := l.whole(); err != nil {
		return err
	}
	for l.bytes > keep && l.first < l.next {
		if done, err := t.trimOldest(l, notPast); done || err != nil {
			return err
		}
	}
	return nil
}

// pointDeletes is how many entries are removed one by one. A range costs every later read of what is not yet written out.
const pointDeletes = 256

// trimOldest removes the oldest transaction of a log, with all its parts, unless
// it is past a position.
func (t *diskTx) trimOldest(l *diskLog, notPast engine.Position) (past bool, err error) {
	from, large := l.first, false
	for seq, last := from, false; !last && seq < l.next; seq++ {
		m, err := l.meta(seq, t)
		if err != nil {
			return false, t.p.logError(err, l.id, l.oldest)
		}
		if notPast != "" && l.compare(m.position, notPast) > 0 {
			return true, nil
		}
		if last = m.last; last {
			l.oldest = m.position
		}
		l.first = seq + 1
		l.changes -= m.changes
		large = large || m.pieces > 0
		t.grow(l, -m.size)
	}
	if n := len(t.cuts); n > 0 && t.cuts[n-1].log == l.num && t.cuts[n-1].to == from {
		t.cuts[n-1].to = l.first
		t.cuts[n-1].large = large || t.cuts[n-1].large
	} else {
		t.cuts = append(t.cuts, cut{l.num, from, l.first, large})
	}
	return false, nil
}

// cut is a run of a log's entries that are let go. They are removed with the
// commit, and not before: until then a root refers to them.
type cut struct {
	log      uint32
	from, to uint64
	large    bool // some are in pieces
}

// ranges returns the keys of the entries.
func (c cut) ranges() (out []keyRange) {
	for _, space := range []byte{spaceBlock, spaceBlockIn, spaceIndex} {
		if space == spaceBlockIn && !c.large {
			continue
		}
		out = append(out, keyRange{blockKey(nil, space, c.log, c.from), blockKey(nil, space, c.log, c.to)})
	}
	return out
}

// remove adds the removal of the entries to a batch.
func (c cut) remove(b *pebble.Batch) error {
	if c.to-c.from > pointDeletes {
		for _, r := range c.ranges() {
			if err := b.DeleteRange(r.from, r.to, nil); err != nil {
				return err
			}
		}
		return nil
	}
	if c.large {
		if err := b.DeleteRange(blockKey(nil, spaceBlockIn, c.log, c.from), blockKey(nil, spaceBlockIn, c.log, c.to), nil); err != nil {
			return err
		}
	}
	var key []byte
	for seq := c.from; seq < c.to; seq++ {
		for _, space := range []byte{spaceBlock, spaceIndex} {
			key = blockKey(key[:0], space, c.log, seq)
			if err := b.Delete(key, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadLog returns blocks that follow a position.
func (t *diskTx) ReadLog(log engine.LogID, after engine.Position, maxBytes int) ([]*engine.Block, error) {
	return t.ReadPart(log, after, 0, maxBytes)
}

// ReadPart returns blocks from a part of the transaction that follows a
// position on.
func (t *diskTx) ReadPart(log engine.LogID, after engine.Position, part uint32, maxBytes int) ([]*engine.Block, error) {
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer t.leave()
	l := t.root.log(log)
	if l == nil {
		return nil, unknownLog(log)
	}
	return t.p.readLog(l, after, part, maxBytes, t)
}

func (t *diskTx) reader() pebble.Reader { return t.p.db }

// entries calls fn for the entries of a log from a number on.
func (t *diskTx) entries(l *diskLog, from uint64, fn func(seq uint64, value []byte) (bool, error)) error {
	var key []byte
	for seq := from; seq < l.next; seq++ {
		key = blockKey(key[:0], spaceBlock, l.num, seq)
		v, done, err := t.get(key)
		if err != nil {
			return err
		}
		if v == nil {
			return missingEntry(seq)
		}
		more, err := fn(seq, v)
		if done != nil {
			_ = done.Close()
		}
		if !more || err != nil {
			return err
		}
	}
	return nil
}
