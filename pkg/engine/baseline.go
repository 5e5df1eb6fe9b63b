package engine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
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
	// restored: the epoch was entered by a rollback, and stamps are as over says.
	restored bool
	lost     bool // peers hold more of the log: what is newer than known is written again
	known    Time
	log      LogID
	again    bool // the log's origin has been baselined before
	began    time.Time
	was      Time // the log's CompleteFrom before
	since    Time // what was written in the log up to then has been told to its readers
	old      bool // it has brought rows that were written before
	late     bool // and so has a delta, of a table that was behind: see Engine.cameLate

	mu     sync.Mutex
	stages map[TableName]Stage
	gate   gate // of the rows and changes that come
	done   bool

	marks     covering // of spec.Marks
	following run      // blocks that follow
	followed  gate     // of them
	adopted   bool     // the table merged last was taken as it is
}

// Baseline starts a baseline.
func (s *source) Baseline(_ context.Context, spec BaselineSpec) (BaselineWriter, error) {
	b := &baseline{source: s, began: s.engine.now(), spec: spec, log: spec.Log, stages: map[TableName]Stage{}, gate: gate{conflicts: s.engine.conflicts}, marks: newCovering(spec.Marks)}
	if spec.Log.IsZero() {
		s.mu.Lock()
		b.mint, b.log = true, s.own
		back := s.rollback
		b.lost, b.known = s.lost, s.since()
		s.mu.Unlock()
		if b.log.IsZero() {
			return nil, fmt.Errorf("engine: source %q does not mint, and its baseline names no log", s.name)
		}
		if !spec.Standing {
			if err := s.orphaned(b.log, spec.Tables); err != nil {
				return nil, err
			}
		}
		b.stamp = Stamp{s.engine.clock.Next(), b.log.Origin, b.log.Epoch, Version{Major: spec.Major}}
		b.spec.Time = b.stamp.Time
		if back != nil && !spec.Partial {
			v := s.engine.store.View()
			t, err := back.from(v)
			v.Close()
			if err != nil {
				return nil, err
			}
			b.stamp.Time, b.restored = t, true
		}
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
		if spec.Standing {
			break
		}
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
	if b.mint {
		for i := range rs {
			rs[i].Stamp = b.stamp
		}
	}
	if b.gate.conflicts.rule(table) != nil {
		var err error
		if rs, err = b.admitted(rs); err != nil {
			return err
		}
	}
	if !b.mint {
		return st.Put(rs)
	}
	if len(rs) > 0 && rs[0].Schema.Multiset() {
		return b.putMultiset(st, rs)
	}
	return st.Put(rs)
}

// admitted returns rows without those that their origins may not write.
func (b *baseline) admitted(rs []Record) ([]Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := rs[:0]
	for i := range rs {
		ok, err := b.gate.admits(rs[i].Schema, rs[i].Key, rs[i].Stamp.Origin)
		if err != nil {
			return nil, fmt.Errorf("baseline of log %s: %w", b.log, err)
		}
		if ok {
			kept = append(kept, rs[i])
		}
	}
	return kept, nil
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
	b.following.close()
	for _, st := range b.stages {
		st.Close()
	}
}

// Commit makes the baseline the state. What it changes is told to readers as
// one transaction where the log goes on, so that a baseline which changes
// nothing sends nothing.
func (b *baseline) Commit(ctx context.Context) (err error) {
	defer b.Abort()
	if b.spec.Standing && !b.mint {
		return fmt.Errorf("engine: a standing baseline of log %s, which is not minted here", b.log)
	}
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
	defer e.writes.begin(tx)()
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
	if b.spec.Delta && !resumes {
		return fmt.Errorf("log %s: a baseline of what changed since the cursor, and there is no cursor", b.log)
	}
	cursor := Cursor{key, b.spec.At, max(old.Time, b.spec.Time)}
	if !b.spec.Standing {
		if cursor, err = b.enter(tx, net, compare, cursor); err != nil {
			return err
		}
	}
	if len(b.spec.Instead)+len(b.spec.Over) > 0 {
		if err := b.replace(tx, net); err != nil {
			return err
		}
	}
	if b.lost && !resumes {
		if err := b.rewrite(tx, b.known); err != nil {
			return err
		}
	}
	moves := old.Position != cursor.Position
	var blocks []*Block
	switch {
	case resumes && net.keep && !moves && len(net.changes) == 0:
		cursor = old
	case resumes && net.keep && moves:
		w := NewBlockBuilder(b.log, old.Position)
		w.Add(&Transaction{
			Log: b.log, Prev: old.Position, Position: cursor.Position, Time: cursor.Time,
			Major: b.spec.Major, Schemas: b.spec.Schemas, Changes: net.changes,
		})
		blocks = w.Blocks()
	case resumes && b.mint && !moves:
		// A reader that is at this position would never learn of the changes.
		why := fmt.Sprintf("log %s: a baseline at %s changes rows, and the log is there already", b.log, b.spec.At)
		s.renew(why, false, 0)
		return fmt.Errorf("%w: %s", errNewEpoch, why)
	default:
		if err := tx.ResetLog(b.log, compare, cursor.Position, cursor.Time); err != nil {
			return err
		}
		b.reset(cursor.Time, old, resumes)
	}
	if err := b.setCompleteFrom(tx, old, resumes); err != nil {
		return err
	}
	if b.spec.Delta && len(b.spec.Fresh) == 0 && b.late {
		if err := e.cameLate(tx, b.log, old.Time); err != nil {
			return err
		}
	}
	for l := range held {
		if b.ends(l) {
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
	if !b.mint {
		was := e.Trail(b.log)
		e.setTrail(b.log, was.With(cursor.Position, b.spec.Behind, compare))
		defer func() {
			if err != nil {
				e.setTrail(b.log, was)
			}
		}()
	}
	if err := s.saveLog(tx, b.log, b.spec.Tables); err != nil {
		return err
	}
	if _, err := s.move(tx, cursor, compare, blocks); err != nil {
		return err
	}
	if err := e.writes.finish(tx); err != nil {
		e.mu.Lock()
		l := e.logs[b.log]
		e.mu.Unlock()
		e.unsaved(l)
		return err
	}
	b.announce()
	e.tally.add(b.log.Origin, &b.gate)
	e.tally.add(b.log.Origin, &b.followed)
	e.rebased(cursor)
	e.mu.Lock()
	e.notify()
	e.mu.Unlock()
	s.sync.Ack(cursor, e.store.Durable())
	level, what := slog.LevelInfo, "baselined"
	if b.spec.Delta {
		level, what = slog.LevelDebug, "caught up"
	}
	e.log.Log(ctx, level, what, "source", s.name, "log", b.log.String(), "position", string(b.spec.At), "changes", len(net.changes))
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
	case b.spec.Delta && len(b.spec.Fresh) > 0:
		from = max(from, b.was)
	case b.spec.Delta:
		from = b.was
	case resumes && from <= old.Time:
		from = min(from, b.was)
	}
	return tx.SetCompleteFrom(b.log, from)
}

// reset notes of a log that has been emptied from when on a cursor has had a part
// in all of its tables.
func (b *baseline) reset(at Time, old Cursor, resumes bool) {
	whole := at // what the node had carried in an earlier life is not known
	switch {
	case b.mint, resumes && !b.old:
		return
	case resumes:
		whole = old.Time + 1
	}
	e := b.source.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[b.log]; l != nil {
		l.whole = whole
	}
}

// whole reports whether the baseline holds all of a table.
func (b *baseline) whole(t TableName) bool {
	return !b.spec.Delta || slices.Contains(b.spec.Fresh, t)
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

// announce lets go of the older epochs of the log's origin, and of the logs in whose place
// the baseline comes. They are served until it is committed.
func (b *baseline) announce() {
	s, e := b.source, b.source.engine
	s.mu.Lock()
	s.state.TableBaselines += len(b.spec.Fresh)
	if len(b.spec.Fresh) == 0 && !b.spec.Delta { // else the others, or all, have gone on
		s.state.LastBaseline = s.engine.now().Sub(b.began)
		if s.state.Baselines++; s.state.Baselines > 1 {
			s.state.Rebaselines++
		}
	}
	s.rollback, s.lost = nil, s.lost && s.newEpoch // else it has been written again
	s.at = ""                                      // the store has the log
	s.mu.Unlock()
	s.keepParts(CursorKey{b.log, b.spec.Scope}, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sorted = nil
	maps.DeleteFunc(e.logs, func(l LogID, _ *logState) bool { return b.ends(l) })
	maps.DeleteFunc(e.readers, func(k readerKey, _ ReaderAck) bool { return b.ends(k.key.Log) })
	if l := e.logs[b.log]; l != nil {
		l.tables = slices.Clone(b.spec.Tables)
		if !b.mint {
			l.covered = slices.Clone(b.spec.Tables)
		}
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
	rec := b.source.recorder()
	b.adopted = false
	adopt := rec == nil && b.whole(table) && !(b.spec.Partial && b.mint) && b.adoptable(tx, table)
	m := merger{tx: tx, to: rec}
	for _, at := range b.spec.Truncates[table] {
		if err := b.truncate(&m, table, at, net); err != nil {
			return err
		}
	}
	if adopt {
		asks := func() bool { return !b.mint && b.since > 0 && !b.old }
		if net.keep || asks() {
			if err := stage.Scan(nil, func(r *Record) bool { b.brings(r); net.add(r); return net.keep || asks() }); err != nil {
				return err
			}
		}
		b.adopted = true
		return tx.Adopt(stage)
	}
	var inner error
	err := stage.Scan(nil, func(r *Record) bool {
		var have *Record
		if b.mint {
			var rec Record
			var ok bool
			if rec, ok, inner = tx.Get(table, r.Key); inner != nil {
				return false
			}
			if ok && (sameRow(&rec, r) || b.again && rec.Stamp.Origin != b.log.Origin) || r.Deleted && (!ok || rec.Deleted) {
				return true
			}
			if ok {
				have = &rec
			}
		}
		row := *r
		if b.mint && (b.spec.Partial || b.restored) {
			row.Stamp = b.over(tx, table, have)
		}
		var o Outcome
		if l := row.Stamp.Log(); row.Deleted && l.Origin != b.log.Origin && net.held[l] && rec == nil {
			// A truncate leaves no newer stamp to tell it by: it comes with its own log.
			// (An older epoch of this origin has nothing more to come.)
			o, inner = tx.Merge(&row)
		} else {
			o, inner = m.merge(&row)
		}
		if o.Applied() || b.isNew(row.Stamp) {
			b.brings(&row)
			net.add(&row)
		}
		if rec != nil && o.Applied() {
			kept := row
			kept.Key, kept.Row = slices.Clone(row.Key), slices.Clone(row.Row)
			rec.Record(&kept, o == Inserted)
		}
		return inner == nil
	})
	if err = cmp.Or(err, inner); err != nil {
		return err
	}
	return nil
}

// mayRetire reports whether retire can find anything in a table. It is asked before the
// baseline is merged, whose own rows stand: that of an origin that is new costs no look at
// what others have written.
func (b *baseline) mayRetire(tx Tx, table TableName) bool {
	may := tx.MayHold(table, b.log.Origin)
	for origin := range b.marks {
		may = may || tx.MayHold(table, origin)
	}
	return may
}

// retire makes tombstones of the rows that a table would hold, and does not.
func (b *baseline) retire(tx Tx, table TableName, net *netChanges) error {
	stage, rec := b.stages[table], b.source.recorder()
	shares, older := false, true
	if rec != nil {
		shares, older = rec.Shares(table), rec.Retires()
	}
	put := func(g *Record) error {
		if err := tx.Put(g); err != nil {
			return err
		}
		net.add(g)
		if rec != nil {
			rec.Record(g, false)
		}
		return nil
	}
	return replacing(tx, table, put, func(r *Record) ([]Record, error) {
		stand := shares || r.Schema.Shares()
		own := b.covers(table, r.Stamp) && (r.Stamp.Epoch == b.log.Epoch || older && !stand)
		if !own && !b.marks.covers(r.Stamp, stand) || r.Deleted && !b.isNew(r.Stamp) {
			return nil, nil
		}
		if _, ok, err := stage.Get(r.Key); err != nil || ok {
			return nil, err
		}
		g := Record{Schema: r.Schema, Key: slices.Clone(r.Key), Stamp: r.Stamp, Deleted: true}
		if b.mint {
			g.Schema, g.Stamp = b.schemaOf(table, r.Schema), b.over(tx, table, r)
		}
		return []Record{g}, nil
	})
}

// replacing puts, for records of a table, what takes their places. That is written after
// the scan has passed, some at a time: it need not see it, since it sees what was there at
// its start.
func replacing(tx Tx, table TableName, put func(*Record) error, by func(*Record) ([]Record, error)) error {
	var news []Record
	flush := func() error {
		for i := range news {
			if err := put(&news[i]); err != nil {
				return err
			}
		}
		news = news[:0]
		return nil
	}
	var inner error
	err := tx.Scan(table, nil, func(r *Record) bool {
		var some []Record
		if some, inner = by(r); inner != nil {
			return false
		}
		if news = append(news, some...); len(news) >= buryStep {
			inner = flush()
		}
		return inner == nil
	})
	if err = cmp.Or(err, inner); err != nil {
		return err
	}
	return flush()
}

// enter brings what has been staged into the state, and what follows it, and
// returns the cursor after that.
func (b *baseline) enter(tx Tx, net *netChanges, compare Comparator, cursor Cursor) (Cursor, error) {
	var whole, retire []TableName
	for _, table := range b.spec.Tables {
		had := b.mayRetire(tx, table)
		if err := b.merge(tx, table, net); err != nil {
			return cursor, err
		}
		if b.adopted || !b.whole(table) { // what is absent is unchanged
			continue
		}
		if whole = append(whole, table); had {
			retire = append(retire, table)
		}
	}
	cursor, err := b.follow(tx, net, compare, cursor)
	if err != nil {
		return cursor, err
	}
	for _, table := range retire {
		if err := b.retire(tx, table, net); err != nil {
			return cursor, err
		}
	}
	if b.spec.Gap != "" && b.source.recorder() != nil {
		b.source.recorder().Gap(b.spec.Gap)
	}
	return cursor, b.cover(whole)
}

// cover tells a recorder what stands.
func (b *baseline) cover(tables []TableName) error {
	rec := b.source.recorder()
	if rec == nil || b.mint || len(tables) == 0 {
		return nil
	}
	marks := b.spec.Marks
	if b.spec.Marks == nil { // else it is a relay's, and no row is stamped in it
		marks = append(slices.Clip(marks), Mark{Log: b.log, Time: b.spec.Time, Retires: rec.Retires()})
	}
	if len(marks) == 0 || !rec.Covering(marks) {
		return nil
	}
	for _, table := range tables {
		each := func(fn func([]byte) bool) error {
			return b.stages[table].Scan(nil, func(r *Record) bool { return r.Deleted || fn(r.Key) })
		}
		err := CoverKeys(table, rec.Shares(table), each, func(c *Cover) error { rec.Cover(c); return nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// brings notes a row that the baseline has written.
func (b *baseline) brings(r *Record) {
	before := !b.mint && r.Stamp.Time <= b.since
	b.old = b.old || before && !r.Deleted
	b.late = b.late || before && r.Stamp.Log() == b.log
}

// truncate takes in a truncate that the baseline knows of.
func (b *baseline) truncate(m *merger, table TableName, at Stamp, net *netChanges) error {
	if at.Compare(m.tx.Truncated(table, at.Origin)) <= 0 {
		return nil
	}
	if err := m.truncate(table, at); err != nil {
		return err
	}
	if rec := b.source.recorder(); rec != nil {
		if sc := b.schemaOf(table, nil); sc != nil {
			rec.Truncated(sc, at)
		}
	}
	b.late = b.late || !b.mint && at.Time <= b.since && at.Log() == b.log
	net.truncated(b.schemaOf(table, nil), at)
	return nil
}

// covers reports whether the baseline would hold a row with this stamp if it
// were still there: a write of its own log up to its position, or of an older
// epoch. A newer write can be in the state already, by way of another log.
func (b *baseline) covers(table TableName, s Stamp) bool {
	until := b.spec.Time
	if r, ok := b.spec.Behind[table]; ok {
		until = r.Time
	}
	return s.Origin == b.log.Origin && (s.Epoch < b.log.Epoch || s.Epoch == b.log.Epoch && s.Time <= until)
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
