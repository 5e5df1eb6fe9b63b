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
	s.mu.Lock()
	log := s.own
	s.mu.Unlock()
	if log.IsZero() {
		return errors.New("engine: Apply from a source that does not mint")
	}
	if err := s.engine.room(ctx); err != nil {
		return err
	}
	w := minting{source: s, log: log, compare: s.sync.ComparePositions, key: CursorKey{Log: log}}
	defer w.abort(txs)
	err := s.engine.writes.do(&write{
		ctx: ctx, size: sizeOf(txs), once: true,
		apply: func(tx Tx) (bool, error) {
			err := w.apply(tx, txs)
			return w.moved, err
		},
		committed: func() {
			if w.moved {
				w.announce()
				s.engine.tally.add(log.Origin, &w.m.gate)
				s.engine.moved(w.cursor, w.changes, true)
			}
		},
		undone: func() { s.engine.unsaved(w.saved) },
	})
	if err == nil && w.moved {
		s.sync.Ack(w.cursor, s.engine.store.Durable())
	}
	return err
}

// sizeOf is about how large transactions are; one that comes in runs is larger
// than any group.
func sizeOf(txs []Transaction) (n int) {
	for i := range txs {
		if txs[i].More != nil || len(txs[i].Tables) > 0 {
			return groupBytes
		}
		for j := range txs[i].Changes {
			n += txs[i].Changes[j].room()
		}
	}
	return n
}

// move appends blocks, and moves the cursor to match. It also writes the log's
// path and tables if they have changed: saved is the log then.
func (s *source) move(tx Tx, cursor Cursor, compare Comparator, blocks []*Block) (saved *logState, err error) {
	if len(blocks) > 0 {
		if err := s.policy.Append(tx, cursor.Log, compare, blocks); err != nil {
			return nil, err
		}
	}
	if err := tx.SetCursor(cursor); err != nil {
		return nil, err
	}
	e := s.engine
	if rec := s.recorder(); rec != nil {
		rec.Moved(cursor)
	}
	e.mu.Lock()
	l := e.logs[cursor.Log]
	unsaved := l != nil && l.unsaved
	e.mu.Unlock()
	if !unsaved {
		return nil, nil
	}
	return l, s.saveLog(tx, cursor.Log, nil)
}

// unsaved notes that what was to be remembered of a log, if that is not nil, was
// not committed.
func (e *Engine) unsaved(l *logState) {
	if l == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l.unsaved = true
}

// merger returns what applies changes within a store transaction.
func (s *source) merger(tx Tx) merger {
	return merger{gate: gate{conflicts: s.engine.conflicts}, tx: tx, to: s.recorder()}
}

// merger applies changes to the state within one store transaction.
type merger struct {
	gate
	tx    Tx
	rec   Record
	to    Recorder // nil, or told of what becomes part of the state
	marks covering // of the transaction's covers; nil before the first
	known bool     // what they say has come before
	// shared are the epochs in which origins have written shares of counters.
	shared map[string][]Epoch
	// late says that a block has brought what was written in its log up to before, which is where
	// the log's cursor was.
	late   bool
	before Time
}

// apply merges one stamped change into the state: the greatest stamp per key
// stays, and a truncate covers the older writes of its own origin. The gate has
// admitted the change.
func (m *merger) apply(c *Change) error {
	if c.Op == OpTruncate {
		if m.to != nil && c.Stamp.Compare(m.tx.Truncated(c.Schema.Table, c.Stamp.Origin)) > 0 {
			m.to.Truncated(c.Schema, c.Stamp)
		}
		return m.truncate(c.Schema.Table, c.Stamp)
	}
	m.rec = Record{Schema: c.Schema, Key: c.Key, Row: c.Row, Stamp: c.Stamp, Deleted: c.Op == OpDelete}
	o, err := m.merge(&m.rec)
	switch o {
	case Overwrote:
		m.at.overwrote++
	case Lost:
		m.at.lost++
	case Repeated:
		m.repeated++
	}
	if m.to != nil && err == nil && o.Applied() {
		m.to.Record(&m.rec, o == Inserted)
	}
	return err
}

// merge writes a record if it is above what is there. A deleted row is above
// the same write of it: that is how a truncate leaves rows.
func (m *merger) merge(r *Record) (Outcome, error) {
	if !r.Deleted && r.Stamp.Compare(m.tx.Truncated(r.Schema.Table, r.Stamp.Origin)) < 0 {
		// covered by a truncate that came first: it counts, as a deleted row
		r.Deleted, r.Row = true, nil
	}
	if m.to != nil {
		if drop, err := m.judge(r); drop || err != nil {
			return Repeated, err
		}
	}
	if r.Schema.Shares() {
		return m.share(r)
	}
	return m.put(r)
}

// put writes a record if it is above what is there, or is the deletion of it.
func (m *merger) put(r *Record) (Outcome, error) {
	o, err := m.tx.Merge(r)
	if o != Repeated || err != nil || !r.Deleted {
		return o, err
	}
	have, ok, err := m.tx.Get(r.Schema.Table, r.Key)
	if err != nil || !ok || have.Deleted || have.Stamp != r.Stamp {
		return o, err
	}
	return Replaced, m.tx.Put(r)
}

// judge looks at a record that comes to a recorder, and reports whether it is to be
// dropped.
func (m *merger) judge(r *Record) (drop bool, err error) {
	v := m.to.Judge(r.Stamp, r.Schema.Table)
	if !v.Dead && !v.Below {
		return false, nil
	}
	have, ok, err := m.tx.Get(r.Schema.Table, r.Key)
	if err != nil {
		return false, err
	}
	if v.Dead = v.Dead && !r.Schema.Shares(); v.Dead {
		if ok && !have.Deleted && have.Stamp == r.Stamp {
			return true, nil // the newer epoch has it, as one that is restored has rows of the older
		}
		r.Deleted, r.Row = true, nil
	}
	if ok && r.Stamp.Compare(have.Stamp) <= 0 {
		return false, nil
	}
	// Where several origins write one row, the tombstone of one outlasts the older
	// writes of the others.
	return v.Below || !ok && m.conflicts.rule(r.Schema.Table) != nil, nil
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
		if m.to != nil {
			m.to.Record(&covered[i], false)
		}
	}
	return m.tx.SetTruncated(table, at)
}

// ApplyBlocks commits blocks of a carried log, verbatim.
func (s *source) ApplyBlocks(ctx context.Context, key CursorKey, blocks []*Block) error {
	if len(blocks) == 0 {
		return nil
	}
	if s.recorder() != nil { // what comes in is minted anew
		if err := s.engine.room(ctx); err != nil {
			return err
		}
	}
	compare, err := s.carried(key.Log)
	if err != nil {
		return err
	}
	in := carrying{s: s, key: key, compare: compare, before: s.openParts(key)}
	w := write{
		ctx: ctx, once: in.before != nil,
		apply: func(tx Tx) (bool, error) {
			err := in.apply(tx, blocks)
			return in.wrote, err
		},
		committed: func() {
			s.engine.tally.add(key.Log.Origin, &in.m.gate)
			if in.wrote {
				s.engine.moved(in.cursor, in.changes, key.Scope == "")
			}
		},
		undone: func() { in.undone() },
	}
	for _, b := range blocks {
		w.size += len(b.Payload)
		w.once = w.once || !b.Last || b.Part > 0 // parts are kept outside of the store
	}
	if err := s.engine.writes.do(&w); err != nil {
		in.let(in.parts) // what had come of the transaction that was open before still counts
		return err
	}
	s.keepParts(key, in.parts)
	if in.wrote {
		s.sync.Ack(in.cursor, s.engine.store.Durable())
	}
	return nil
}

// carrying is a run of blocks of a carried log within one store transaction.
type carrying struct {
	s       *source
	tx      Tx
	m       merger
	key     CursorKey
	compare Comparator
	cursor  Cursor
	saved   *logState // see move
	wrote   bool
	changes uint64   // of the blocks that were applied
	parts   *parts   // of the transaction that is open
	before  *parts   // of the one that was open at the start
	late    Time     // where not 0: the blocks brought what was written up to it, though the cursor was there
	done    []*Block // applied, to be appended to the log
	aside   bool     // nothing is appended to the log
	trail   Trail    // of the log, where steps says that blocks have added to it
	steps   bool
	was     Trail // before, where told says that the other has taken its place
	told    bool
}

// apply takes blocks in; it starts afresh each time.
func (c *carrying) apply(tx Tx, blocks []*Block) error {
	c.tx, c.m, c.wrote, c.parts, c.done, c.saved, c.changes, c.late, c.steps, c.told = tx, c.s.merger(tx), false, c.before, nil, nil, 0, 0, false, false
	cursor, ok := tx.Cursor(c.key)
	if !ok {
		return &HoleError{c.key, "", blocks[0].Prev}
	}
	for _, b := range blocks {
		if err := c.add(b, &cursor); err != nil {
			return err
		}
	}
	if c.cursor = cursor; !c.wrote {
		return nil
	}
	if c.late > 0 {
		if err := c.s.engine.cameLate(tx, c.key.Log, c.late); err != nil {
			return err
		}
	}
	if c.steps {
		c.was, c.told = c.s.engine.setTrail(c.key.Log, c.trail), true
	}
	var err error
	c.saved, err = c.s.move(tx, cursor, c.compare, c.done)
	return err
}

// undone takes back what is known of the log beside the store.
func (c *carrying) undone() {
	if c.told {
		c.s.engine.setTrail(c.key.Log, c.was)
		c.told = false
	}
	c.s.engine.unsaved(c.saved)
}

// add takes a block, and moves the cursor if a transaction ends in it.
func (c *carrying) add(b *Block, cursor *Cursor) error {
	had := b.Changes
	b, follows, err := follow(c.key, cursor.Position, c.parts, b, c.compare)
	if err != nil || !follows {
		if err == nil {
			c.m.repeated += uint64(had)
		}
		return err
	}
	c.m.repeated += uint64(had - b.Changes)
	c.m.before, c.m.late = cursor.Time, false
	defer func() {
		if c.m.late {
			c.late = max(c.late, c.m.before)
		}
	}()
	if b.Part == 0 {
		c.let(c.parts)
		c.parts = nil
	}
	if !b.Last {
		if c.parts == nil {
			c.parts = c.s.engine.startParts(b)
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
	if b.Behind != nil {
		if !c.steps {
			c.trail, c.steps = c.s.engine.Trail(c.key.Log), true
		}
		c.trail = c.trail.With(b.Position, b.Behind, c.compare)
	}
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
	c.wrote = true
	c.changes += uint64(b.Changes)
	if err := c.m.blockIn(c.key.Log, b); err != nil {
		return fmt.Errorf("log %s: the block up to %s cannot be applied: %w", c.key.Log, b.Position, err)
	}
	c.done = append(c.done, b)
	return nil
}

// append moves what has been applied to the log.
func (c *carrying) append() error {
	if len(c.done) == 0 || c.aside {
		c.done = nil
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
	for _, o := range b.Others {
		if err := m.tx.PutSchema(o.Log, o.Schema); err != nil {
			return err
		}
	}
	r := b.Reader(log, m.tx.Schema).Notes()
	for r.Next() {
		if r.IsBegin {
			if b.Part == 0 {
				m.marks = nil
			}
			continue
		}
		if r.Note != nil {
			if err := m.note(r.Note); err != nil {
				return err
			}
			continue
		}
		c := &r.Change
		m.late = m.late || c.Stamp.Time <= m.before && c.Stamp.Log() == log
		ok, err := m.admits(c.Schema, c.Key, c.Stamp.Origin)
		if ok {
			err = m.apply(c)
		}
		if err != nil {
			return err
		}
	}
	return r.Err()
}

// cameLate notes that a log has brought what was written in it up to a time at which its cursor was
// already: a table that was archived apart was behind. A reader that is there, or before, learns of it
// from the log or by a snapshot only, since what the state and archives have after its time lacks it.
func (e *Engine) cameLate(tx Tx, log LogID, at Time) error {
	info, ok := tx.Log(log)
	if !ok {
		return nil
	}
	e.mu.Lock()
	if l := e.logs[log]; l != nil {
		l.whole, l.unsaved = max(l.whole, at+1), true
	}
	e.mu.Unlock()
	return tx.SetCompleteFrom(log, max(info.CompleteFrom, at+1))
}

// carried returns the comparator of a log that this source has declared.
func (s *source) carried(log LogID) (Comparator, error) {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[log]
	if l == nil || l.source != s && !e.takesBack(log) {
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

// Carry declares a carried log, or its new path.
func (s *source) Carry(log LogID, compare Comparator, path []string, tables []TableName) error {
	e := s.engine
	if MintedBy(log.Origin, e.id) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.takesBack(log) {
			e.takeBack(log, compare, slices.Clone(tables))
			return nil
		}
		return fmt.Errorf("log %s is minted by this node, and comes from another", log)
	}
	if slices.Contains(path, e.id) {
		return fmt.Errorf("log %s comes by way of this node: %v", log, path)
	}
	v := e.store.View()
	defer v.Close()
	for _, l := range v.LogsOf(log.Origin) {
		if l.ID.Epoch > log.Epoch {
			return fmt.Errorf("log %s: epoch %d: %w", log, l.ID.Epoch, ErrStaleEpoch)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.logs[log]
	if l == nil {
		l = &logState{}
		e.logs[log], e.sorted = l, nil
	}
	full := append([]string{e.id}, path...)
	if !slices.Equal(l.path, full) || l.source != s || tables != nil && !slices.Equal(l.tables, tables) {
		l.unsaved = true
		defer e.notify()
	}
	l.compare, l.named, l.path, l.source = compare, false, full, s
	if tables != nil {
		l.unsaved = l.unsaved || !slices.Equal(l.tables, tables)
		l.tables = slices.Clone(tables)
		l.covered = slices.DeleteFunc(slices.Clone(l.covered), func(t TableName) bool { return !slices.Contains(tables, t) })
	}
	return nil
}

// Durable is as in Lasting.
func (s *source) Durable() bool { return s.engine.store.Durable() }

// Covered returns the tables that a carried log's cursor covers: those of which
// everything has come since the log's baseline, or is to come in the log: see Behind.
// It returns nil if that is not known. A table that was left out for a while is not among them, until the next
// baseline of it.
func (s *source) Covered(log LogID) []TableName {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[log]; l != nil && l.source == s {
		return slices.Clone(l.covered)
	}
	return nil
}
