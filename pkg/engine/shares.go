package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A share of a counter is what one origin has counted in one epoch: the epoch is the
// last part of the key, behind the origin. Where shares of older epochs count too, the
// value of the counter is the sum of all. A delete at the origin ends its shares, those
// of older epochs too; and since its tombstone is overwritten by the next addition, that
// says from which epoch on shares count.

// The columns that a table by epoch gets, behind that of the origin.
const (
	EpochColumn = "epoch"       // of the key
	SinceColumn = "epoch_since" // shares of older epochs of the origin have ended
)

const (
	epochNumber = math.MaxInt16 - 1
	sinceNumber = math.MaxInt16 - 2
)

func shareColumns(key bool) []Column {
	c := Column{TypeOID: 20, TypeName: "bigint", TypeMod: -1}
	epoch, since := c, c
	epoch.Name, epoch.Number, epoch.Key = EpochColumn, epochNumber, key
	since.Name, since.Number = SinceColumn, sinceNumber
	return []Column{epoch, since}
}

// Shares reports whether rows with a schema are shares of counters, by epoch.
func (s *Schema) Shares() bool {
	n := len(s.Columns)
	return n > 2 && s.Columns[n-2].Number == epochNumber && s.Columns[n-1].Number == sinceNumber && s.Columns[n-2].Key
}

// Added reports whether the column is one that the conflict policy NamespaceByOrigin
// has added to its table.
func (c *Column) Added() bool { return c.Number >= sinceNumber }

func epochText(e Epoch) string { return strconv.FormatUint(uint64(e), 10) }

// sharing is what has to be known to write shares within a transaction.
type sharing struct {
	epoch Epoch
	state Rows
	ended map[shareKey]Epoch // by the keys that the transaction has deleted: since when shares count
}

type shareKey struct {
	table TableName
	key   string
}

var errShares = errors.New("its rows are by epoch, which is for rows that are written to the node itself: set perEpoch to false")

// sharing returns what is needed to write shares of a table; nil if it has none.
func (n *namespaced) sharing(t TableName, by *sharing) (*sharing, error) {
	if !n.epochs[t] {
		return nil, nil
	}
	if by == nil {
		return nil, &SourceError{Reason: ReasonTableChanged, Permanent: true, Err: fmt.Errorf("table %s: %w", t, errShares)}
	}
	return by, nil
}

// since returns from which epoch on shares count, for a share that is written.
func (by *sharing) since(table TableName, key []byte) (Epoch, error) {
	if e, ok := by.ended[shareKey{table, string(key)}]; ok {
		return e, nil
	}
	rec, ok, err := by.state.Get(table, key)
	if err != nil || !ok {
		return 0, err
	}
	return sinceOf(&rec), nil
}

// did notes a change that has been made.
func (by *sharing) did(c *Change) {
	if c.Op == OpDelete {
		by.ended[shareKey{c.Schema.Table, string(c.Key)}] = by.epoch
	}
}

// sinceOf returns from which epoch on shares of the origin count, as a share says.
func sinceOf(r *Record) Epoch {
	if r.Deleted {
		return r.Stamp.Epoch
	}
	e := Epoch(0)
	last := len(r.Schema.Columns) - 1
	for i, c := range r.Row.Columns() {
		if i == last && c.State == Present {
			n, _ := strconv.ParseUint(string(c.Value), 10, 64)
			e = Epoch(n)
		}
	}
	return e
}

const metaShares = "shares/"

// epochs returns the epochs in which an origin has written shares, with one more.
func (m *merger) epochs(origin string, with Epoch) ([]Epoch, error) {
	all, ok := m.shared[origin]
	if !ok {
		if b := m.tx.Meta(metaShares + origin); b != nil {
			if err := json.Unmarshal(b, &all); err != nil {
				return nil, fmt.Errorf("the epochs of the shares of %s cannot be read: %w", origin, err)
			}
		}
	}
	if !slices.Contains(all, with) {
		all = append(slices.Clip(all), with)
		slices.Sort(all)
		if err := setMeta(m.tx, metaShares+origin, all); err != nil {
			return nil, err
		}
		ok = false
	}
	if !ok {
		if m.shared == nil {
			m.shared = map[string][]Epoch{}
		}
		m.shared[origin] = all
	}
	return all, nil
}

// share merges a share. One that has been ended is a deletion, and one that ends
// older ones makes them such.
func (m *merger) share(r *Record) (Outcome, error) {
	all, err := m.epochs(r.Stamp.Origin, r.Stamp.Epoch)
	if err != nil {
		return 0, err
	}
	if len(all) == 1 {
		return m.put(r)
	}
	table := r.Schema.Table
	own := len(AppendKeyValue(nil, epochText(r.Stamp.Epoch)))
	if len(r.Key) < own {
		return 0, fmt.Errorf("table %s: %w: a share without its epoch", table, ErrCorruptRow)
	}
	other := func(e Epoch) (Record, bool, error) {
		return m.tx.Get(table, AppendKeyValue(slices.Clone(r.Key[:len(r.Key)-own]), epochText(e)))
	}
	for _, e := range all {
		if e <= r.Stamp.Epoch || r.Deleted {
			continue
		}
		newer, ok, err := other(e)
		if err != nil {
			return 0, err
		}
		if ok && sinceOf(&newer) > r.Stamp.Epoch {
			r.Deleted, r.Row = true, nil
		}
	}
	o, err := m.put(r)
	if err != nil || !o.Applied() {
		return o, err
	}
	since := sinceOf(r)
	for _, e := range all {
		if e >= since {
			continue
		}
		older, ok, err := other(e)
		if err != nil {
			return o, err
		}
		if !ok || older.Deleted {
			continue
		}
		older.Deleted, older.Row = true, nil
		if err := m.tx.Put(&older); err != nil {
			return o, err
		}
		if m.to != nil {
			m.to.Record(&older, false)
		}
	}
	return o, nil
}
