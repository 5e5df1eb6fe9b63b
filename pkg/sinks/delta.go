package sinks

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A log that no longer holds what follows a cursor need not cost the target a
// baseline: where the state knows every delete since, what the state holds that was
// written after the cursor is delivered as one transaction. So a large table that
// joins a node, for which the log is emptied, comes alone.

// fromState reports whether a log can be gone on with from the state. (Of a table
// without a key that other logs write too it cannot: whose rows the target has, it
// does not say.)
func (s *Sink) fromState(v engine.View, a engine.Advert, adverts []engine.Advert, c engine.Cursor) bool {
	info, ok := v.Log(a.Log)
	if !ok || c.Time == 0 || info.CompleteFrom == 0 || c.Time < info.CompleteFrom || c.Time < a.Whole {
		return false
	}
	others := shared(a, adverts)
	return !slices.ContainsFunc(v.Tables(), func(t engine.TableInfo) bool {
		return s.takes(t.Table) && others[t.Table] && t.Schema != nil && t.Schema.Multiset()
	})
}

// delta returns what was written in a log after a cursor, out of the state.
func (s *Sink) delta(v engine.View, a engine.Advert, adverts []engine.Advert, from engine.Cursor, careful bool) (*Batch, error) {
	info, ok := v.Log(a.Log)
	if !ok {
		return nil, fmt.Errorf("log %s: %w", a.Log, engine.ErrUnknownLog)
	}
	b := &Batch{From: from, sink: s, view: v, shared: shared(a, adverts), Large: true, Careful: careful}
	b.To = engine.Cursor{CursorKey: from.CursorKey, Position: info.Head, Time: max(from.Time, info.Time)}
	for _, t := range v.Tables() { // all of them, in order of names: one may hold rows and be taken out since
		if s.takes(t.Table) && t.Schema != nil {
			b.state = append(b.state, t)
		}
	}
	s.log.Info("sink goes on from the state", "log", a.Log.String(), "from", string(from.Position), "to", string(info.Head))
	return b, nil
}

// changed calls fn for what was written after the cursor: of each table the
// truncate, the rows that are gone, and then those that are there.
func (b *Batch) changed(fn func(*Entry) error) error {
	log, since := b.From.Log, b.From.Time
	for _, t := range b.state {
		e := Entry{Log: log, Position: b.To.Position, Time: b.To.Time}
		if t.Schema.Multiset() {
			if err := b.changedBag(t, fn); err != nil {
				return err
			}
			continue
		}
		if at := b.view.Truncated(t.Table, log.Origin); at.Time > since {
			e.Change = engine.Change{Op: engine.OpTruncate, Schema: t.Schema, Stamp: at}
			if err := b.entry(&e, fn); err != nil {
				return err
			}
		}
		for _, gone := range []bool{true, false} {
			var inner error
			err := b.view.Scan(t.Table, nil, func(r *engine.Record) bool {
				if r.Deleted != gone || r.Stamp.Origin != log.Origin || r.Stamp.Time <= since {
					return true
				}
				e.Change = engine.Change{Op: engine.OpPut, Schema: r.Schema, Key: slices.Clone(r.Key), Row: slices.Clone(r.Row), Stamp: r.Stamp} // the target keeps it
				if gone {
					e.Op, e.Row = engine.OpDelete, nil
				}
				inner = b.entry(&e, fn)
				return inner == nil
			})
			if err == nil {
				err = inner
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// maxBag bounds how many rows are taken away one by one of a table without a key:
// the target may look through all of it for each.
const maxBag = 100

// changedBag is changed for a table without a key. Equal rows are told apart by
// their number only, so of each row that was written after the cursor as many are
// taken away as the target can have, and then as many put as there are. Where all
// of the table is new, or that would be much, the table is emptied and filled anew.
func (b *Batch) changedBag(t engine.TableInfo, fn func(*Entry) error) error {
	log := b.From.Log
	e := Entry{Log: log, Position: b.To.Position, Time: b.To.Time}
	pass := func(op engine.Op, sc *engine.Schema, key []byte, row engine.Row, at engine.Stamp) error {
		e.Change = engine.Change{Op: op, Schema: sc, Key: key, Row: row, Stamp: at}
		return b.entry(&e, fn)
	}
	var old bool
	var gone int
	err := b.bags(t.Table, func(g *bag) error {
		old = old || g.old
		if g.written() {
			gone += g.there + g.gone
		}
		return nil
	})
	if err != nil || gone == 0 {
		return err
	}
	anew := !old || gone > maxBag || b.view.Truncated(t.Table, log.Origin).Time > b.From.Time
	if anew {
		at := engine.Stamp{Time: b.To.Time, Origin: log.Origin, Epoch: log.Epoch}
		if err := pass(engine.OpTruncate, t.Schema, nil, nil, at); err != nil {
			return err
		}
	}
	return b.bags(t.Table, func(g *bag) error {
		if !anew && !g.written() {
			return nil
		}
		for i := 0; !anew && i < g.there+g.gone; i++ {
			if err := pass(engine.OpDelete, g.schema, engine.WithOrdinal(g.row, i), nil, g.stamp); err != nil {
				return err
			}
		}
		for i := range g.there {
			if err := pass(engine.OpPut, g.schema, engine.WithOrdinal(g.row, i), g.values, g.stamp); err != nil {
				return err
			}
		}
		return nil
	})
}

// bag is what the state holds of equal rows of a table without a key. At the cursor
// there were at most there+gone of them: each that is gone since has left its
// tombstone.
type bag struct {
	row    []byte // their key without the ordinal
	schema *engine.Schema
	values engine.Row
	stamp  engine.Stamp // the newest
	there  int
	gone   int  // tombstones that are newer than the cursor
	new    bool // some that are there were written after the cursor
	old    bool // some that are there were written before
}

func (g *bag) written() bool { return g.new || g.gone > 0 }

// bags calls fn for each set of equal rows that the batch's log has written.
func (b *Batch) bags(table engine.TableName, fn func(*bag) error) error {
	var g bag
	var inner error
	end := func() bool {
		if g.row != nil && g.there+g.gone > 0 {
			inner = fn(&g)
		}
		return inner == nil
	}
	err := b.view.Scan(table, nil, func(r *engine.Record) bool {
		row, _, ok := engine.SplitOrdinal(r.Key)
		if !ok && r.Deleted {
			return true // from when the table had a key
		} else if !ok {
			inner = fmt.Errorf("%w: a key of %s, which has none of its own, has no number", engine.ErrCorruptRow, table)
			return false
		}
		if r.Stamp.Origin != b.From.Log.Origin {
			return true
		}
		if g.row == nil || !bytes.Equal(row, g.row) {
			if !end() {
				return false
			}
			g = bag{row: slices.Clone(row)} // the target keeps what is made of it
		}
		since := r.Stamp.Time > b.From.Time
		switch {
		case !r.Deleted:
			g.there++
			g.new, g.old = g.new || since, g.old || !since
			if g.values == nil || r.Stamp.Compare(g.stamp) > 0 {
				g.values = slices.Clone(r.Row)
			}
		case since:
			g.gone++
		default:
			return true
		}
		if g.schema == nil || r.Stamp.Compare(g.stamp) > 0 {
			g.schema, g.stamp = r.Schema, r.Stamp
		}
		return true
	})
	if err == nil && inner == nil {
		end()
	}
	return cmp.Or(err, inner)
}
