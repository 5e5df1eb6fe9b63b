package engine

import (
	"bytes"
	"math"
	"slices"
)

// A node that has lost all, and whose clock is behind what it was, begins with an epoch
// that sorts below one that its peers hold. When it learns that, it takes an epoch above.
// What it has written meanwhile is newer than all that the peers hold of it, and has to
// be above it too: it is written again in the new epoch, deletes as well. The same goes
// for what a node that was restored from a backup has written since. What is in the
// backup is not: it stays as old as it is.

// opens notes, once in a life of the node, which rows of the log are of the history that
// its peers know: those up to a time. A log that nobody has read is all news. s.mu is
// held.
func (s *source) opens() {
	if s.known != unknown {
		return
	}
	s.known, s.unread = 0, !s.newEpoch || s.lost // else it has read back what its peers held
	if s.own.IsZero() {
		return
	}
	s.engine.mu.Lock()
	for k := range s.engine.readers {
		s.unread = s.unread && k.key.Log.Origin != s.own.Origin
	}
	s.engine.mu.Unlock()
	v := s.engine.store.View()
	defer v.Close()
	for _, l := range v.LogsOf(s.own.Origin) {
		s.known = max(s.known, l.Time)
	}
}

// loses notes that a peer holds more, in an epoch: if it is the log's own, that has been
// read. s.mu is held.
func (s *source) loses(held Epoch) {
	s.lost, s.read = true, s.read || held == s.own.Epoch
}

// since is the time after which rows are written again. s.mu is held.
func (s *source) since() Time {
	if s.unread && !s.read {
		return 0
	}
	return s.known
}

// unknown is before it is noted.
const unknown = Time(math.MaxUint64)

// rewrite writes again what the log's origin has written after a time.
func (b *baseline) rewrite(tx Tx, after Time) error {
	m := merger{tx: tx}
	put := func(r *Record) error {
		_, err := m.merge(r)
		return err
	}
	for _, table := range b.spec.Tables {
		err := replacing(tx, table, put, func(r *Record) ([]Record, error) {
			if r.Stamp.Origin != b.log.Origin || r.Stamp.Epoch >= b.log.Epoch || r.Stamp.Time <= after {
				return nil, nil
			}
			if r.Schema.Shares() {
				if moved, err := b.moved(&m, r, after); moved || err != nil {
					return nil, err
				}
			}
			return b.rewritten(r), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// moved reports whether a share is what was left when it moved to another epoch, whose
// share is the one to be written again: there is one in an epoch between.
func (b *baseline) moved(m *merger, r *Record, after Time) (bool, error) {
	all, err := m.epochs(r.Stamp.Origin, r.Stamp.Epoch)
	if err != nil {
		return false, err
	}
	base := bytes.TrimSuffix(r.Key, AppendKeyValue(nil, epochText(r.Stamp.Epoch)))
	for _, e := range all {
		if e <= r.Stamp.Epoch || e >= b.log.Epoch {
			continue
		}
		newer, ok, err := m.tx.Get(r.Schema.Table, AppendKeyValue(slices.Clone(base), epochText(e)))
		if err != nil || ok && newer.Stamp.Time > after {
			return ok, err
		}
	}
	return false, nil
}

// rewritten returns a record as it is written again; nothing if it stands as it is. A
// share moves to the new epoch, and counts for nothing in its own: who has read it there
// is told so.
func (b *baseline) rewritten(r *Record) []Record {
	sc := b.schemaOf(r.Schema.Table, nil)
	if sc == nil || sc.Fingerprint() != r.Schema.Fingerprint() {
		return nil // of an older shape: the log has no schema for it
	}
	n := Record{Schema: sc, Key: slices.Clone(r.Key), Stamp: b.stamp, Deleted: r.Deleted}
	if !r.Schema.Shares() {
		if !r.Deleted {
			n.Row = rowWith(r, sc, func(*Column) string { return "" })
		}
		return []Record{n}
	}
	was := Record{Schema: r.Schema, Key: slices.Clone(r.Key), Stamp: Stamp{b.stamp.Time, r.Stamp.Origin, r.Stamp.Epoch, b.stamp.Version}, Deleted: r.Deleted}
	n.Key = AppendKeyValue(bytes.TrimSuffix(n.Key, AppendKeyValue(nil, epochText(r.Stamp.Epoch))), epochText(b.log.Epoch))
	if r.Deleted {
		return []Record{n}
	}
	ends := sinceOf(r) >= r.Stamp.Epoch
	n.Row = rowWith(r, sc, func(c *Column) string {
		if c.Number == epochNumber || c.Number == sinceNumber && ends {
			return epochText(b.log.Epoch)
		}
		return ""
	})
	was.Row = rowWith(r, r.Schema, func(c *Column) string {
		if !c.Key && !c.Added() && countable(c.TypeOID) {
			return "0"
		}
		return ""
	})
	return []Record{n, was}
}

// countable reports whether values of a type add up.
func countable(oid uint32) bool {
	return slices.Contains([]uint32{20, 21, 23, 700, 701, 1700}, oid) // bigint, smallint, integer, real, double precision, numeric
}

// rowWith returns a record's row with a schema, and with other values for some columns.
func rowWith(r *Record, sc *Schema, other func(*Column) string) Row {
	row := AppendRowHeader(nil, sc.ID, len(sc.Columns))
	for i, c := range r.Row.Columns() {
		v := ""
		if c.State == Present {
			v = other(&sc.Columns[i])
		}
		switch {
		case v != "":
			row = AppendValue(row, v)
		case c.State == Present:
			row = AppendValue(row, c.Value)
		default:
			row = append(row, byte(c.State))
		}
	}
	return row
}
