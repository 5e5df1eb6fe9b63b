package relay

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Since returns what a reader at a position of a relay's log lacks, as one
// transaction that ends at the head: see Read.
func Since(v engine.View, log engine.LogID, after engine.Position) (all []*engine.Block, err error) {
	err = Read(v, log, after, func(bs []*engine.Block) error {
		all = append(all, bs...)
		return nil
	})
	return all, err
}

// Read gives what a reader at a position of a relay's log lacks, as one transaction
// that ends at the head, some blocks at a time. It is for a reader that the log's
// entries no longer reach back to, and holds a bounded part of it in memory.
//
// Each row that has a place after the position is in it once, as it is now, and the
// changes of tables that are delivered as All one by one, as far back as the log
// reaches; then the newest cover of each leaf that has one after the position, with
// the keys that stand. Where tombstones have gone that the reader may not have had,
// it is all there is: every row and tombstone, and a cover of every leaf at its mark.
func Read(v engine.View, log engine.LogID, after engine.Position, fn func([]*engine.Block) error) error {
	info, ok := v.Log(log)
	if !ok {
		return fmt.Errorf("relay: %w: %s", engine.ErrUnknownLog, log)
	}
	from, err := Place(after)
	if err != nil || engine.CompareNumber(after, info.Head) >= 0 {
		return err
	}
	head, err := Place(info.Head)
	if err != nil {
		return err
	}
	oldest, err := Place(info.Oldest)
	if err != nil {
		return err
	}
	s := since{v: v, log: log, oldest: oldest, oldestAt: info.Oldest}
	t := engine.Transaction{Log: log, Prev: after, Position: info.Head, Time: info.Time, Major: head}
	s.w = engine.NewBlockBuilder(log, after)
	s.full = func() error {
		if bs := s.w.Blocks(); len(bs) > 0 {
			return fn(bs)
		}
		return nil
	}
	s.w.Begin(&t, 0, 0)
	if err := s.read(from); err != nil {
		return err
	}
	s.w.End()
	return s.full()
}

// since is one reading.
type since struct {
	v        engine.View
	log      engine.LogID
	oldest   uint64 // the entries reach back to here
	oldestAt engine.Position
	all      map[engine.TableName]bool // the tables that are delivered as All
	shares   map[engine.TableName]bool // and as Counter
	w        *engine.BlockBuilder
	full     func() error
}

func (s *since) read(from uint64) error {
	ds, err := deliveries(s.v)
	if err != nil {
		return err
	}
	s.all, s.shares = ds[All], ds[Counted]
	gone, err := complete(s.v)
	if err != nil {
		return err
	}
	var marks []engine.Mark
	if from < gone {
		if marks, err = Marks(s.v); err != nil {
			return err
		}
	}
	if err := s.gap(from); err != nil {
		return err
	}
	start := from
	if from < gone {
		start = 0
	}
	if err := s.rows(start); err != nil {
		return err
	}
	if len(s.all) > 0 {
		if err := s.entries(from); err != nil {
			return err
		}
	}
	return s.covers(from, marks)
}

// gap says what the reader misses.
func (s *since) gap(from uint64) error {
	g, err := lastGap(s.v)
	switch {
	case err != nil:
		return err
	case g.Place > from:
		s.w.Note(&engine.Note{Gap: g.Why})
	case len(s.all) > 0 && from < s.oldest:
		s.w.Note(&engine.Note{Gap: fmt.Sprintf("the reader was at place %d, and entries of log %s up to place %d have gone", from, s.log, s.oldest)})
	}
	return nil
}

func (s *since) rows(after uint64) error {
	var inner error
	err := s.v.Places(s.log, after, func(place uint64, table engine.TableName, key []byte) bool {
		if s.all[table] && place > s.oldest {
			return true // it comes as an entry
		}
		r, ok, err := s.v.Get(table, key)
		if err != nil || !ok {
			inner = err
			return err == nil // of a leaf that was forgotten
		}
		c := engine.Change{Op: engine.OpPut, Schema: r.Schema, Key: bytes.Clone(key), Row: r.Row, Stamp: r.Stamp}
		if r.Deleted {
			c.Op, c.Row = engine.OpDelete, nil
		}
		s.w.Change(&c)
		inner = s.full()
		return inner == nil
	})
	if inner != nil {
		return inner
	}
	return err
}

// entriesStep is how much of the log is read at once.
const entriesStep = 1 << 20

// entries gives the changes of the tables that are delivered as All, and truncates.
func (s *since) entries(from uint64) error {
	at, part := s.oldestAt, uint32(0)
	if from > s.oldest {
		at = Position(from)
	}
	for {
		var bs []*engine.Block
		var err error
		if part > 0 {
			bs, err = s.v.ReadPart(s.log, at, part, entriesStep)
		} else {
			bs, err = s.v.ReadLog(s.log, at, entriesStep)
		}
		if err != nil || len(bs) == 0 {
			return err
		}
		for _, b := range bs {
			r := b.Reader(s.log, s.v.Schema)
			for r.Next() {
				if r.IsBegin || !s.all[r.Change.Schema.Table] {
					continue
				}
				s.w.Change(&r.Change)
				if err := s.full(); err != nil {
					return err
				}
			}
			if r.Err() != nil {
				return r.Err()
			}
			if part = b.Part + 1; b.Last {
				at, part = b.Position, 0
			}
		}
	}
}

// covers gives the covers after a place, and those of marks.
func (s *since) covers(from uint64, marks []engine.Mark) error {
	cs, err := covers(s.v)
	if err != nil {
		return err
	}
	tables := map[engine.TableName]bool{}
	if len(marks) > 0 {
		for _, t := range s.v.Tables() {
			tables[t.Table] = true
		}
	}
	of := map[string]bool{}
	for _, m := range marks {
		of[m.Log.Origin] = true
	}
	for _, c := range cs {
		if c.Place <= from {
			continue
		}
		for _, t := range c.Tables {
			tables[t] = true
		}
		of[c.Origin] = true
		m := engine.Mark{Log: c.log(), Time: c.Time, Retires: c.Retires}
		if i := slices.IndexFunc(marks, func(o engine.Mark) bool { return o.Log == m.Log }); i < 0 {
			marks = append(marks, m)
		} else {
			marks[i].Time = max(marks[i].Time, m.Time)
		}
	}
	if len(marks) == 0 {
		return nil
	}
	s.w.Note(&engine.Note{Marks: marks})
	for _, t := range slices.SortedFunc(maps.Keys(tables), engine.TableName.Compare) {
		each := func(fn func([]byte) bool) error {
			return s.v.Scan(t, nil, func(r *engine.Record) bool {
				return r.Deleted || !of[r.Stamp.Origin] || fn(r.Key)
			})
		}
		err := engine.CoverKeys(t, s.shares[t], each, func(c *engine.Cover) error {
			s.w.Note(&engine.Note{Cover: c})
			return s.full()
		})
		if err != nil {
			return err
		}
	}
	return nil
}
