package engine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxNetBytes bounds the net transaction that a re-baseline is told to readers
// as. A larger difference empties the log instead, and readers take a snapshot.
const maxNetBytes = 8 << 20

// baseline collects the rows of a baseline apart from the state.
type baseline struct {
	source *source
	spec   BaselineSpec
	mint   bool
	stamp  Stamp // of rows that come without one
	log    LogID
	again  bool // the log's origin has been baselined before
	began  time.Time
	was    Time // the log's CompleteFrom before
	since  Time // what was written in the log up to then has been told to its readers

	mu     sync.Mutex
	stages map[TableName]Stage
	done   bool
}

// Baseline starts a baseline.
func (s *source) Baseline(_ context.Context, spec BaselineSpec) (BaselineWriter, error) {
	b := &baseline{source: s, began: s.engine.now(), spec: spec, log: spec.Log, stages: map[TableName]Stage{}}
	if spec.Log.IsZero() {
		s.mu.Lock()
		b.mint, b.log = true, s.own
		s.mu.Unlock()
		if b.log.IsZero() {
			return nil, fmt.Errorf("engine: source %q does not mint, and its baseline names no log", s.name)
		}
		b.stamp = Stamp{s.engine.clock.Next(), b.log.Origin, b.log.Epoch, Version{Major: spec.Major}}
		b.spec.Time = b.stamp.Time
	} else if _, err := s.carried(spec.Log); err != nil {
		return nil, err
	}
	if spec.Reason != "" {
		s.mu.Lock()
		s.state.LastCause = spec.Reason
		s.mu.Unlock()
	}
	s.engine.mu.Lock()
	if l := s.engine.logs[b.log]; l != nil && l.tables == nil {
		l.tables = slices.Clone(spec.Tables) // it is served as soon as it is committed
	}
	s.engine.mu.Unlock()
	for _, t := range spec.Tables {
		b.stages[t] = s.engine.store.NewStage(t)
	}
	return b, nil
}

// Rows adds rows of one table.
func (b *baseline) Rows(table TableName, rs []Record) error {
	st := b.stages[table]
	if st == nil {
		return fmt.Errorf("baseline of log %s: table %s is not part of it", b.log, table)
	}
	if !b.mint {
		return st.Put(rs)
	}
	for i := range rs {
		rs[i].Stamp = b.stamp
	}
	if len(rs) > 0 && rs[0].Schema.Multiset() {
		return b.putMultiset(st, rs)
	}
	return st.Put(rs)
}

// putMultiset stages rows of a table without a key.
func (b *baseline) putMultiset(st Stage, rs []Record) error {
	b.mu.Lock() // a row's place depends on those before it
	defer b.mu.Unlock()
	for i := range rs {
		key, err := freeOrdinal(staged{st}, rs[i].Schema.Table, rs[i].Key)
		if err != nil {
			return err
		}
		rs[i].Key = key
		if err := st.Put(rs[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

// Abort forgets the baseline.
func (b *baseline) Abort() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	b.done = true
	for _, st := range b.stages {
		st.Close()
	}
}

// Commit makes the baseline the state. What it changes is told to readers as
// one transaction where the log goes on, so that a baseline which changes
// nothing sends nothing.
func (b *baseline) Commit(ctx context.Context) error {
	defer b.Abort()
	if b.mint && b.spec.Partial {
		return fmt.Errorf("engine: a partial baseline of log %s is committed by a transaction that names it", b.log)
	}
	s, e := b.source, b.source.engine
	compare := s.sync.ComparePositions
	if !b.mint {
		var err error
		if compare, err = s.carried(b.log); err != nil {
			return err
		}
	}
	tx, err := e.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := b.putSchemas(tx); err != nil {
		return err
	}
	if !b.mint {
		if err := forgetOtherScopes(tx, b.log, b.spec.Scope); err != nil {
			return err
		}
	}
	held := map[LogID]bool{}
	for _, l := range tx.Logs() {
		if l.ID == b.log {
			b.was = l.CompleteFrom
		}
		if held[l.ID] = true; l.ID.Origin != b.log.Origin {
			continue
		}
		if l.ID.Epoch > b.log.Epoch {
			return fmt.Errorf("baseline of log %s: epoch %d: %w", b.log, l.ID.Epoch, ErrStaleEpoch)
		}
		b.again = true
	}
	key := CursorKey{b.log, b.spec.Scope}
	old, resumes := tx.Cursor(key)
	if resumes && compare(b.spec.At, old.Position) < 0 {
		return fmt.Errorf("log %s: a baseline at %s is behind the cursor at %s", b.log, b.spec.At, old.Position)
	}
	net := &netChanges{keep: resumes, log: b.log, held: held}
	b.since = old.Time
	for _, table := range b.spec.Tables {
		if err := b.merge(tx, table, net); err != nil {
			return err
		}
	}
	if b.spec.Delta && !resumes {
		return fmt.Errorf("log %s: a baseline of what changed since the cursor, and there is no cursor", b.log)
	}
	cursor := Cursor{key, b.spec.At, max(old.Time, b.spec.Time)}
	moves := old.Position != b.spec.At
	var blocks []*Block
	switch {
	case resumes && net.keep && !moves && len(net.changes) == 0:
		cursor = old
	case resumes && net.keep && moves:
		w := NewBlockBuilder(b.log, old.Position)
		w.Add(&Transaction{
			Log: b.log, Prev: old.Position, Position: b.spec.At, Time: cursor.Time,
			Major: b.spec.Major, Schemas: b.spec.Schemas, Changes: net.changes,
		})
		blocks = w.Blocks()
	case resumes && b.mint && !moves:
		// A reader that is at this position would never learn of the changes.
		why := fmt.Sprintf("log %s: a baseline at %s changes rows, and the log is there already", b.log, b.spec.At)
		s.renew(why)
		return fmt.Errorf("%w: %s", errNewEpoch, why)
	default:
		if err := tx.ResetLog(b.log, compare, b.spec.At, cursor.Time); err != nil {
			return err
		}
	}
	if err := b.setCompleteFrom(tx, old, resumes); err != nil {
		return err
	}
	for l := range held {
		if l.Origin == b.log.Origin && l.Epoch < b.log.Epoch {
			if err := dropLog(tx, l); err != nil {
				return err
			}
		}
	}
	if b.mint {
		if err := tx.SetMeta(metaMemory+s.name, b.spec.Memory); err != nil {
			return err
		}
	}
	if err := s.saveLog(tx, b.log, b.spec.Tables); err != nil {
		return err
	}
	if err := s.commit(tx, cursor, compare, blocks, b.announce); err != nil {
		return err
	}
	e.log.Info("baselined", "source", s.name, "log", b.log.String(), "position", string(b.spec.At), "changes", len(net.changes))
	return nil
}

// setCompleteFrom says from when on the state now holds the deletes. Of a minted
// log that goes on it stays as it was: all that the baseline changes has newer
// stamps. Of a carried log, a row that the baseline lacks was deleted
// before its CompleteFrom, or has come with its tombstone.
func (b *baseline) setCompleteFrom(tx Tx, old Cursor, resumes bool) error {
	if b.mint {
		if !resumes {
			return nil
		}
		return tx.SetCompleteFrom(b.log, b.was)
	}
	from := b.spec.CompleteFrom
	if from == 0 {
		from = b.spec.Time
	}
	switch {
	case b.spec.Delta:
		from = b.was
	case resumes && from <= old.Time:
		from = min(from, b.was)
	}
	return tx.SetCompleteFrom(b.log, from)
}

func (b *baseline) putSchemas(tx Tx) error {
	for _, sc := range b.spec.Schemas {
		if err := tx.PutSchema(b.log, sc); err != nil {
			return err
		}
	}
	for log, scs := range b.spec.Others {
		for _, sc := range scs {
			if err := tx.PutSchema(log, sc); err != nil {
				return err
			}
		}
	}
	return nil
}

// announce lets go of the older epochs of the log's origin. They are served
// until the baseline is committed.
func (b *baseline) announce() {
	s, e := b.source, b.source.engine
	s.mu.Lock()
	s.state.LastBaseline = s.engine.now().Sub(b.began)
	if s.state.Baselines++; s.state.Baselines > 1 {
		s.state.Rebaselines++
	}
	s.mu.Unlock()
	s.keepParts(CursorKey{b.log, b.spec.Scope}, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	older := func(l LogID) bool { return l.Origin == b.log.Origin && l.Epoch < b.log.Epoch }
	maps.DeleteFunc(e.logs, func(l LogID, _ *logState) bool { return older(l) })
	maps.DeleteFunc(e.readers, func(k readerKey, _ ReaderAck) bool { return older(k.key.Log) })
	if l := e.logs[b.log]; l != nil {
		l.tables = slices.Clone(b.spec.Tables)
	}
}

// netChanges is what a baseline changed in the state, as far as the log's
// readers have to be told in one transaction of it.
type netChanges struct {
	log     LogID
	held    map[LogID]bool // logs with readers of their own
	keep    bool           // false: it cannot be told, and readers take a snapshot
	bytes   int
	changes []Change
}

func (n *netChanges) add(r *Record) {
	l := r.Stamp.Log()
	if !n.keep || l != n.log && n.held[l] {
		return // what another log wrote, its readers get from that log
	}
	// Blocks carry the schemas of their own log only.
	if n.bytes += len(r.Key) + len(r.Row) + 64; n.bytes > maxNetBytes || l != n.log {
		n.keep, n.changes = false, nil
		return
	}
	c := Change{Op: OpPut, Schema: r.Schema, Key: slices.Clone(r.Key), Row: slices.Clone(r.Row), Stamp: r.Stamp}
	if r.Deleted {
		c.Op, c.Row = OpDelete, nil
	}
	n.changes = append(n.changes, c)
}

// truncated adds a truncate of a table.
func (n *netChanges) truncated(s *Schema, at Stamp) {
	switch l := at.Log(); {
	case !n.keep || l != n.log && n.held[l]:
	case l != n.log || s == nil:
		n.keep, n.changes = false, nil
	default:
		n.changes = append(n.changes, Change{Op: OpTruncate, Schema: s, Stamp: at})
	}
}

// merge brings a staged table into the state. For each key the greatest stamp
// stays. Rows that a source which mints sends again as they are keep their
// stamps, and those that another origin has written since are left alone. Rows
// of the baseline's own origin that it would hold, and does not, become
// tombstones.
func (b *baseline) merge(tx Tx, table TableName, net *netChanges) error {
	stage := b.stages[table]
	// The rows of a minted partial baseline get the stamps of the transaction that
	// takes them in, so that readers that were there before are behind them.
	adopt := !b.spec.Delta && !(b.spec.Partial && b.mint) && b.adoptable(tx, table)
	m := merger{tx: tx}
	for _, at := range b.spec.Truncates[table] {
		if err := b.truncate(&m, table, at, net); err != nil {
			return err
		}
	}
	if adopt {
		if net.keep {
			if err := stage.Scan(nil, func(r *Record) bool { net.add(r); return net.keep }); err != nil {
				return err
			}
		}
		return tx.Adopt(stage)
	}
	var inner error
	err := stage.Scan(nil, func(r *Record) bool {
		if b.mint {
			var have Record
			var ok bool
			if have, ok, inner = tx.Get(table, r.Key); inner != nil {
				return false
			}
			if ok && (sameRow(&have, r) || b.again && have.Stamp.Origin != b.log.Origin) || r.Deleted && (!ok || have.Deleted) {
				return true
			}
		}
		row := *r
		if b.spec.Partial && b.mint {
			row.Stamp = b.stamp
		}
		var applied bool
		if l := row.Stamp.Log(); row.Deleted && l.Origin != b.log.Origin && net.held[l] {
			// A truncate leaves no newer stamp to tell it by: it comes with its own log.
			// (An older epoch of this origin has nothing more to come.)
			applied, inner = tx.Merge(&row)
		} else {
			applied, inner = m.merge(&row)
		}
		if applied || b.isNew(row.Stamp) {
			net.add(&row)
		}
		return inner == nil
	})
	if err = cmp.Or(err, inner); err != nil {
		return err
	}
	if b.spec.Delta {
		return nil // what is absent is unchanged
	}
	var gone []Record // written after the scan, which need not see it
	err = tx.Scan(table, nil, func(r *Record) bool {
		if !b.covers(r.Stamp) || r.Deleted && !b.isNew(r.Stamp) {
			return true
		}
		var ok bool
		if _, ok, inner = stage.Get(r.Key); inner != nil || ok {
			return inner == nil
		}
		g := Record{Schema: r.Schema, Key: slices.Clone(r.Key), Stamp: r.Stamp, Deleted: true}
		if b.mint {
			g.Schema, g.Stamp = b.schemaOf(table, r.Schema), b.stamp
		}
		gone = append(gone, g)
		return true
	})
	if err = cmp.Or(err, inner); err != nil {
		return err
	}
	for i := range gone {
		if err := tx.Put(&gone[i]); err != nil {
			return err
		}
		net.add(&gone[i])
	}
	return nil
}

// truncate takes in a truncate that the baseline knows of.
func (b *baseline) truncate(m *merger, table TableName, at Stamp, net *netChanges) error {
	if at.Compare(m.tx.Truncated(table, at.Origin)) <= 0 {
		return nil
	}
	if err := m.truncate(table, at); err != nil {
		return err
	}
	net.truncated(b.schemaOf(table, nil), at)
	return nil
}

// covers reports whether the baseline would hold a row with this stamp if it
// were still there: a write of its own log up to its position, or of an older
// epoch. A newer write can be in the state already, by way of another log.
func (b *baseline) covers(s Stamp) bool {
	return s.Origin == b.log.Origin && (s.Epoch < b.log.Epoch || s.Epoch == b.log.Epoch && s.Time <= b.spec.Time)
}

// isNew reports whether a carried log's readers have yet to be told of a write,
// though it may be in the state already, by way of another log.
func (b *baseline) isNew(s Stamp) bool {
	return !b.mint && s.Log() == b.log && s.Time > b.since
}

// adoptable reports whether a staged table can be taken as it is.
func (b *baseline) adoptable(tx Tx, table TableName) bool {
	truncated := tx.Truncated(table, b.log.Origin) != Stamp{}
	for l := range b.spec.Others {
		truncated = truncated || tx.Truncated(table, l.Origin) != Stamp{}
	}
	empty := true
	err := tx.Scan(table, nil, func(*Record) bool { empty = false; return false })
	return err == nil && empty && !truncated
}

// schemaOf returns the baseline's schema of a table, or the one given.
func (b *baseline) schemaOf(table TableName, otherwise *Schema) *Schema {
	for _, sc := range b.spec.Schemas {
		if sc.Table == table {
			return sc
		}
	}
	return otherwise
}

// sameRow reports whether two live records of one origin hold the same row.
func sameRow(a, b *Record) bool {
	return !a.Deleted && !b.Deleted && a.Stamp.Origin == b.Stamp.Origin &&
		(a.Schema == b.Schema || a.Schema.Fingerprint() == b.Schema.Fingerprint()) &&
		bytes.Equal(a.Row.Values(), b.Row.Values())
}
