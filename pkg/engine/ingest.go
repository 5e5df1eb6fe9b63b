package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Apply commits transactions of the log that this source mints.
func (s *source) Apply(ctx context.Context, txs []Transaction) error {
	if len(txs) == 0 {
		return nil
	}
	e := s.engine
	s.mu.Lock()
	log := s.own
	s.mu.Unlock()
	if log.IsZero() {
		return errors.New("engine: Apply from a source that does not mint")
	}
	tx, err := e.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	key := CursorKey{Log: log}
	cursor, ok := tx.Cursor(key)
	if !ok {
		return fmt.Errorf("log %s: transactions before a baseline: %w", log, ErrReBaselineRequired)
	}
	w := minting{source: s, tx: tx, m: merger{tx: tx}, log: log, compare: s.sync.ComparePositions, blocks: NewBlockBuilder(log, cursor.Position)}
	defer w.abort(txs)
	start := cursor
	for i := range txs {
		t := &txs[i]
		if w.compare(t.Position, cursor.Position) <= 0 {
			continue // sent again after a reconnect
		}
		t.Log, t.Prev, t.Time = log, cursor.Position, e.clock.NextAt(t.Commit)
		if err := w.add(t); err != nil {
			return err
		}
		cursor = Cursor{key, t.Position, t.Time}
	}
	if cursor == start {
		return nil
	}
	return s.commit(tx, cursor, w.compare, w.blocks.Blocks(), w.announce)
}

// commit appends blocks, moves the cursor to match, commits, and only then
// tells anyone; first of all it calls committed.
func (s *source) commit(tx Tx, cursor Cursor, compare Comparator, blocks []*Block, committed func()) error {
	if len(blocks) > 0 {
		if err := s.policy.Append(tx, cursor.Log, compare, blocks); err != nil {
			return err
		}
	}
	if err := tx.SetCursor(cursor); err != nil {
		return err
	}
	e := s.engine
	e.mu.Lock()
	l := e.logs[cursor.Log]
	unsaved := l != nil && l.unsaved
	e.mu.Unlock()
	if unsaved {
		if err := s.saveLog(tx, cursor.Log, nil); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		if l != nil {
			e.mu.Lock()
			l.unsaved = true
			e.mu.Unlock()
		}
		return err
	}
	if committed != nil {
		committed()
	}
	e.mu.Lock()
	e.notify()
	e.mu.Unlock()
	s.sync.Ack(cursor, e.store.Durable())
	return nil
}

// merger applies changes to the state within one store transaction.
type merger struct {
	tx  Tx
	rec Record
}

// apply merges one stamped change into the state: the greatest stamp per key
// stays, and a truncate covers the older writes of its own origin.
func (m *merger) apply(c *Change) error {
	if c.Op == OpTruncate {
		return m.truncate(c.Schema.Table, c.Stamp)
	}
	m.rec = Record{Schema: c.Schema, Key: c.Key, Row: c.Row, Stamp: c.Stamp, Deleted: c.Op == OpDelete}
	_, err := m.merge(&m.rec)
	return err
}

// merge writes a record if it is above what is there. A deleted row is above
// the same write of it: that is how a truncate leaves rows.
func (m *merger) merge(r *Record) (applied bool, err error) {
	if !r.Deleted && r.Stamp.Compare(m.tx.Truncated(r.Schema.Table, r.Stamp.Origin)) < 0 {
		// covered by a truncate that came first: it counts, as a deleted row
		r.Deleted, r.Row = true, nil
	}
	if applied, err = m.tx.Merge(r); applied || err != nil || !r.Deleted {
		return applied, err
	}
	have, ok, err := m.tx.Get(r.Schema.Table, r.Key)
	if err != nil || !ok || have.Deleted || have.Stamp != r.Stamp {
		return false, err
	}
	return true, m.tx.Put(r)
}

// truncate deletes the older rows of the stamp's origin. Each keeps the stamp
// of its last write, so that the order of arrival makes no difference.
func (m *merger) truncate(table TableName, at Stamp) error {
	if at.Compare(m.tx.Truncated(table, at.Origin)) <= 0 {
		return nil
	}
	var covered []Record
	err := m.tx.Scan(table, nil, func(r *Record) bool {
		if !r.Deleted && r.Stamp.Origin == at.Origin && r.Stamp.Compare(at) < 0 {
			covered = append(covered, Record{Schema: r.Schema, Key: slices.Clone(r.Key), Stamp: r.Stamp, Deleted: true})
		}
		return true
	})
	if err != nil {
		return err
	}
	for i := range covered {
		if err := m.tx.Put(&covered[i]); err != nil {
			return err
		}
	}
	return m.tx.SetTruncated(table, at)
}

// ApplyBlocks commits blocks of a carried log, verbatim.
func (s *source) ApplyBlocks(ctx context.Context, key CursorKey, blocks []*Block) error {
	if len(blocks) == 0 {
		return nil
	}
	e := s.engine
	compare, err := s.carried(key.Log)
	if err != nil {
		return err
	}
	tx, err := e.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	cursor, ok := tx.Cursor(key)
	if !ok {
		return &HoleError{key, "", blocks[0].Prev}
	}
	in := carrying{s: s, tx: tx, m: merger{tx: tx}, key: key, compare: compare, parts: s.openParts(key)}
	in.before = in.parts
	start := cursor
	for _, b := range blocks {
		if err = in.add(b, &cursor); err != nil {
			break
		}
	}
	if err == nil && cursor != start {
		err = s.commit(tx, cursor, compare, in.done, nil)
	}
	if err != nil { // what had come of the transaction that was open before still counts
		in.let(in.parts)
		return err
	}
	s.keepParts(key, in.parts)
	return nil
}

// carrying is a run of blocks of a carried log within one store transaction.
type carrying struct {
	s       *source
	tx      Tx
	m       merger
	key     CursorKey
	compare Comparator
	parts   *parts   // of the transaction that is open
	before  *parts   // of the one that was open at the start
	done    []*Block // applied, to be appended to the log
}

// add takes a block, and moves the cursor if a transaction ends in it.
func (c *carrying) add(b *Block, cursor *Cursor) error {
	b, follows, err := follow(c.key, cursor.Position, c.parts, b, c.compare)
	if err != nil || !follows {
		return err
	}
	if b.Part == 0 {
		c.let(c.parts)
		c.parts = nil
	}
	if !b.Last {
		if c.parts == nil {
			c.parts = startParts(c.s.engine.scratch, b)
		}
		return c.parts.add(b)
	}
	if whole := c.parts; whole != nil {
		c.parts = nil
		defer c.let(whole)
		if err := c.append(); err != nil {
			return err
		}
		err := whole.each(func(p *Block) error {
			if err := c.in(p); err != nil {
				return err
			}
			return c.append()
		})
		if err != nil {
			return err
		}
	}
	if err := c.in(b); err != nil {
		return err
	}
	*cursor = Cursor{c.key, b.Position, max(cursor.Time, b.Time)}
	return nil
}

// let lets go of parts that are of no more use, but for those that were there
// before: they are needed again if this run fails.
func (c *carrying) let(p *parts) {
	if p != c.before {
		p.close()
	}
}

// in applies a block.
func (c *carrying) in(b *Block) error {
	if err := c.m.blockIn(c.key.Log, b); err != nil {
		return fmt.Errorf("log %s: the block up to %s cannot be applied: %w", c.key.Log, b.Position, err)
	}
	c.done = append(c.done, b)
	return nil
}

// append moves what has been applied to the log.
func (c *carrying) append() error {
	if len(c.done) == 0 {
		return nil
	}
	err := c.s.policy.Append(c.tx, c.key.Log, c.compare, c.done)
	c.done = nil
	return err
}

// openParts returns what there is of the open transaction of a log, or nil.
func (s *source) openParts(key CursorKey) *parts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending[key]
}

// keepParts puts p, which may be nil, in the place of what openParts returned.
func (s *source) keepParts(key CursorKey, p *parts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was := s.pending[key]; was != p {
		was.close()
	}
	if p == nil {
		delete(s.pending, key)
	} else {
		s.pending[key] = p
	}
}

// dropParts forgets every open transaction.
func (s *source) dropParts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pending {
		p.close()
	}
	s.pending = map[CursorKey]*parts{}
}

// follow checks that b is what comes next after the cursor and the parts that
// wait, and takes off what was applied already. follows is false for a
// repetition.
func follow(key CursorKey, cursor Position, parts *parts, b *Block, compare Comparator) (next *Block, follows bool, err error) {
	if compare(b.Position, cursor) <= 0 {
		return nil, false, nil
	}
	if b.Part > 0 {
		if parts == nil || parts.next != b.Part || parts.position != b.Position {
			return nil, false, fmt.Errorf("part %d of the transaction at %s has no part before it: %w", b.Part, b.Position, &HoleError{key, cursor, b.Prev})
		}
		if b.Prev != parts.prev { // the first part began before the cursor
			c := *b
			c.Prev, b = parts.prev, &c
		}
		return b, true, nil
	}
	if compare(b.Prev, cursor) > 0 {
		return nil, false, &HoleError{key, cursor, b.Prev}
	}
	if compare(b.Prev, cursor) < 0 {
		if len(b.Ends) == 0 && !b.Last { // a whole transaction that began before the cursor and ends after it
			c := *b
			c.Prev = cursor
			return &c, true, nil
		}
		rest, ok := b.After(cursor, compare)
		if !ok {
			return nil, false, nil
		}
		if rest.Prev != cursor {
			c := *rest
			c.Prev, rest = cursor, &c
		}
		return rest, true, nil
	}
	return b, true, nil
}

// blockIn applies a block's changes to the state.
func (m *merger) blockIn(log LogID, b *Block) error {
	for _, sc := range b.Schemas {
		if err := m.tx.PutSchema(log, sc); err != nil {
			return err
		}
	}
	r := b.Reader(log, m.tx.Schema)
	for r.Next() {
		if r.IsBegin {
			continue
		}
		if err := m.apply(&r.Change); err != nil {
			return err
		}
	}
	return r.Err()
}

// carried returns the comparator of a log that this source has declared.
func (s *source) carried(log LogID) (Comparator, error) {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[log]
	if l == nil || l.source != s {
		return nil, fmt.Errorf("log %s: %w from source %q", log, ErrUnknownLog, s.name)
	}
	return l.compare, nil
}

// Progress advances a cursor over a stretch with nothing in its scope.
func (s *source) Progress(ctx context.Context, key CursorKey, prev, through Position, t Time) error {
	if key.Log.IsZero() {
		return s.Apply(ctx, []Transaction{{Position: through}})
	}
	return s.ApplyBlocks(ctx, key, []*Block{{Prev: prev, Position: through, Time: t, Last: true, Ends: []End{{Position: through}}}})
}

// Head tells how far the source's log has got, for lag.
func (s *source) Head(log LogID, head Position, t Time) {
	e := s.engine
	s.mu.Lock()
	if log.IsZero() {
		log = s.own
	}
	s.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[log]; l != nil && l.source == s {
		l.head, l.headTime, l.headKnown = head, t, true
	}
}

// Carry declares a carried log, or its new path.
func (s *source) Carry(log LogID, compare Comparator, path []string, tables []TableName) error {
	e := s.engine
	if slices.Contains(path, e.id) {
		return fmt.Errorf("log %s comes by way of this node: %v", log, path)
	}
	v := e.store.View()
	defer v.Close()
	for _, l := range v.Logs() {
		if l.ID.Origin == log.Origin && l.ID.Epoch > log.Epoch {
			return fmt.Errorf("log %s: epoch %d: %w", log, l.ID.Epoch, ErrStaleEpoch)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[log]
	if l == nil {
		l = &logState{}
		e.logs[log] = l
	}
	full := append([]string{e.id}, path...)
	if !slices.Equal(l.path, full) || l.source != s {
		l.unsaved = true
		defer e.notify()
	}
	l.compare, l.path, l.source = compare, full, s
	if tables != nil {
		l.unsaved = l.unsaved || !slices.Equal(l.tables, tables)
		l.tables = slices.Clone(tables)
	}
	return nil
}
