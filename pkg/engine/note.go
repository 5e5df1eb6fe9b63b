package engine

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// A relay's log says more than what has changed: see docs/design/relay.md. What it
// says beside changes are notes. Who does not ask for them does not see them, and a
// log that is seen in part has none.

// Mark says how far a log's writes are known: all of them up to a time.
type Mark struct {
	Log  LogID
	Time Time
	// Retires says that what is known of the log ends the rows of its origin's older
	// epochs.
	Retires bool
	// Gone says that this node has said it itself, of a log that is gone for good. It is
	// not in a note.
	Gone bool
}

// Cover says, of the writes that marks are about, which stand in a range of a
// table's keys: those that are named, and no others. Whoever takes one holds the
// range's keys in memory, so that a table is covered range by range.
type Cover struct {
	Table    TableName
	From, To []byte   // To is not in the range; nil is no such bound
	Keys     [][]byte // in order
	// Shares says that the rows are shares of counters: those of older epochs stand.
	Shares bool
}

// Note is one note. It has one of its fields.
type Note struct {
	Marks []Mark // what the covers that follow in the transaction are about
	Cover *Cover
	Gap   string // changes of tables of which every change is delivered are missing, and why
}

const (
	noteMarks = 1
	noteCover = 2
	noteGap   = 3

	noteRetires = 1
	noteShares  = 1
	noteBounded = 2
)

// CoverBytes is about how many bytes of keys one cover has.
const CoverBytes = MaxBlock / 2

// AppendNote encodes a note.
func AppendNote(p []byte, n *Note) []byte {
	b := func(v []byte) { p = append(binary.AppendUvarint(p, uint64(len(v))), v...) }
	switch {
	case n.Cover != nil:
		c := n.Cover
		flags := byte(0)
		if c.Shares {
			flags |= noteShares
		}
		if c.To != nil {
			flags |= noteBounded
		}
		p = append(p, noteCover, flags)
		b([]byte(c.Table.Schema))
		b([]byte(c.Table.Name))
		b(c.From)
		b(c.To)
		p = binary.AppendUvarint(p, uint64(len(c.Keys)))
		for _, k := range c.Keys {
			b(k)
		}
	case n.Gap != "":
		p = append(p, noteGap)
		b([]byte(n.Gap))
	default:
		p = binary.AppendUvarint(append(p, noteMarks), uint64(len(n.Marks)))
		for i := range n.Marks {
			m := &n.Marks[i]
			flags := byte(0)
			if m.Retires {
				flags |= noteRetires
			}
			p = append(p, flags)
			b([]byte(m.Log.Origin))
			p = binary.AppendUvarint(p, uint64(m.Log.Epoch))
			p = binary.AppendUvarint(p, uint64(m.Time))
		}
	}
	return p
}

// DecodeNote reads what AppendNote wrote. The keys share the memory of p.
func DecodeNote(p []byte) (*Note, error) {
	r := BlockReader{p: p}
	var n Note
	flags := func() byte {
		if len(r.p) == 0 {
			r.fail("a note is cut short")
			return 0
		}
		f := r.p[0]
		r.p = r.p[1:]
		return f
	}
	count := func() int {
		c := r.uvarint()
		if c > uint64(len(r.p)) {
			r.fail("a note is cut short")
			return 0
		}
		return int(c)
	}
	switch flags() {
	case noteMarks:
		for range count() {
			f := flags()
			n.Marks = append(n.Marks, Mark{Log: LogID{string(r.bytes()), Epoch(r.uvarint())}, Time: Time(r.uvarint()), Retires: f&noteRetires != 0})
		}
	case noteCover:
		f := flags()
		c := &Cover{Shares: f&noteShares != 0, Table: TableName{string(r.bytes()), string(r.bytes())}, From: r.bytes(), To: r.bytes()}
		if f&noteBounded == 0 {
			c.To = nil
		}
		for range count() {
			c.Keys = append(c.Keys, r.bytes())
		}
		if r.err == nil && !slices.IsSortedFunc(c.Keys, bytes.Compare) {
			r.fail("the keys of a cover are not in order")
		}
		n.Cover = c
	case noteGap:
		n.Gap = string(r.bytes())
	default:
		r.fail("a note of an unknown kind")
	}
	if r.err == nil && len(r.p) > 0 {
		r.fail("a note is too long")
	}
	return &n, r.err
}

// covering is what marks are about, by origin.
type covering map[string][]Mark

func newCovering(marks []Mark) covering {
	c := covering{}
	for _, m := range marks {
		c[m.Log.Origin] = append(c[m.Log.Origin], m)
	}
	return c
}

// covers reports whether a write is one of those that the marks are about.
func (c covering) covers(s Stamp, shares bool) bool {
	for _, m := range c[s.Origin] {
		if s.Epoch == m.Log.Epoch && s.Time <= m.Time || s.Epoch < m.Log.Epoch && m.Retires && !shares {
			return true
		}
	}
	return false
}

// CoverKeys makes covers of a table from its keys that stand, which each gives in
// order: of bounded size, and of the whole table together.
func CoverKeys(table TableName, shares bool, each func(fn func(key []byte) bool) error, fn func(*Cover) error) error {
	c := &Cover{Table: table, Shares: shares}
	size := 0
	var inner error
	err := each(func(key []byte) bool {
		key = bytes.Clone(key)
		if size > 0 && size+len(key) > CoverBytes {
			c.To = key
			if inner = fn(c); inner != nil {
				return false
			}
			c, size = &Cover{Table: table, Shares: shares, From: key}, 0
		}
		c.Keys, size = append(c.Keys, key), size+len(key)+8
		return true
	})
	if err != nil || inner != nil {
		return cmp.Or(err, inner)
	}
	return fn(c)
}

// note takes in a note of a block.
func (m *merger) note(n *Note) error {
	switch {
	case n.Cover != nil:
		if m.marks == nil {
			return fmt.Errorf("%w: a cover of table %s without marks before it", ErrCorruptRow, n.Cover.Table)
		}
		if m.known {
			return nil
		}
		return m.cover(n.Cover)
	case n.Gap != "":
		if m.to != nil {
			m.to.Gap(n.Gap)
		}
	default:
		m.marks, m.known = newCovering(n.Marks), false
		if m.to != nil {
			m.known = !m.to.Covering(n.Marks)
		}
	}
	return nil
}

// cover deletes what a cover does not name, each row with the stamp that it has. The rows are looked
// at only if some can be of the origins in question: a leaf that is new costs no look at a whole table.
func (m *merger) cover(c *Cover) error {
	var err error
	for origin := range m.marks {
		if m.tx.MayHold(c.Table, origin) {
			err = m.buryUnnamed(c)
			break
		}
	}
	if err == nil && m.to != nil {
		m.to.Cover(c)
	}
	return err
}

func (m *merger) buryUnnamed(c *Cover) error {
	keys := c.Keys
	return m.bury(c.Table, c.From, c.To, func(r *Record) (bool, error) {
		for len(keys) > 0 && bytes.Compare(keys[0], r.Key) < 0 {
			keys = keys[1:]
		}
		stands := len(keys) > 0 && bytes.Equal(keys[0], r.Key)
		return !stands && m.marks.covers(r.Stamp, c.Shares || r.Schema.Shares()), nil
	}, nil)
}

// buryStep bounds the records that bury holds.
const buryStep = 1024

// bury makes tombstones of rows in a range, with the stamps that they have. gone
// says of which; each, if not nil, is told of them.
func (m *merger) bury(table TableName, from, to []byte, gone func(*Record) (bool, error), each func(*Record)) error {
	for more := true; more; {
		more = false
		var dead []Record
		var inner error
		err := m.tx.Scan(table, from, func(r *Record) bool {
			if to != nil && bytes.Compare(r.Key, to) >= 0 {
				return false
			}
			if len(dead) == buryStep {
				from, more = slices.Clone(r.Key), true
				return false
			}
			var is bool
			if r.Deleted {
				return true
			}
			if is, inner = gone(r); is {
				dead = append(dead, Record{Schema: r.Schema, Key: slices.Clone(r.Key), Stamp: r.Stamp, Deleted: true})
			}
			return inner == nil
		})
		if err = cmp.Or(err, inner); err != nil {
			return err
		}
		for i := range dead {
			if err := m.tx.Put(&dead[i]); err != nil {
				return err
			}
			if m.to != nil {
				m.to.Record(&dead[i], false)
			}
			if each != nil {
				each(&dead[i])
			}
		}
	}
	return nil
}
