package engine

import "fmt"

// Index checks a block that came from outside, record by record, and fills in
// Changes, Ends and Others from its payload. schema resolves the schemas of a log.
func (b *Block) Index(log LogID, schema func(LogID, uint32) *Schema) error {
	b.Changes, b.Ends, b.Others = 0, nil, nil
	r := b.Reader(log, schema).Notes()
	var at Position
	for start := 0; r.Next(); start = r.Offset() {
		if r.Note != nil {
			continue
		}
		if r.IsBegin {
			if at != "" {
				b.Ends = append(b.Ends, End{at, start, b.Changes})
			}
			if at = r.Begin.Position; at == "" {
				return fmt.Errorf("%w: block of log %s: a transaction without a position", ErrCorruptRow, log)
			}
			continue
		}
		b.Changes++
		b.uses(log, &r.Change)
		if r.Change.Op != OpPut {
			continue
		}
		if unchanged, err := r.Change.Row.Check(r.Change.Schema); err != nil {
			return err
		} else if unchanged {
			return fmt.Errorf("%w: a row of %s with a column that says unchanged", ErrCorruptRow, r.Change.Schema.Table)
		}
	}
	switch {
	case r.Err() != nil:
		return r.Err()
	case at != b.Position:
		return fmt.Errorf("%w: block of log %s says it ends at %q, and its last transaction at %q", ErrCorruptRow, log, b.Position, at)
	case (b.Part > 0 || !b.Last) && len(b.Ends) > 0:
		return fmt.Errorf("%w: block of log %s: a part with more than one transaction", ErrCorruptRow, log)
	}
	if b.Last {
		b.Ends = append(b.Ends, End{at, len(b.Payload), b.Changes})
	}
	return nil
}

// Lens is how a log looks to someone who sees a part of it.
type Lens interface {
	// Change makes a change what it is in that part, and reports whether it is
	// anything there. Its row may be valid until the next call only.
	Change(c *Change) bool
	// Schema returns a schema as it is in that part; nil if nothing of it is.
	Schema(s *Schema) *Schema
}

// Narrow returns the block as it looks through a lens, or nil if nothing of it is
// left; b itself if it looks the same. Transactions with nothing left are
// dropped, from the end too: what it covers then is still up to b.Position. Parts
// of a large transaction are kept even if empty, so that their numbers go on.
func (b *Block) Narrow(log LogID, schema func(LogID, uint32) *Schema, lens Lens) (*Block, error) {
	w := narrower{to: &Block{Prev: b.Prev, Part: b.Part, Last: b.Last, Time: b.Time}}
	whole := b.Part == 0 && b.Last
	r := b.Reader(log, schema).Notes()
	for r.Next() {
		if r.Note != nil {
			w.altered = true // it names keys, whether they are seen or not
			continue
		}
		if r.IsBegin {
			w.end(whole)
			w.open(&r.Begin, b.Part > 0)
			continue
		}
		c := r.Change
		if in := lens.Change(&c); in {
			w.change(log, &c)
			w.altered = w.altered || c.Op != r.Change.Op || c.Schema != r.Change.Schema
		} else {
			w.altered = true
		}
	}
	if r.Err() != nil {
		return nil, r.Err()
	}
	w.end(whole)
	if !w.altered {
		return b, nil
	}
	to := w.to
	if whole {
		if len(to.Ends) == 0 {
			return nil, nil
		}
		to.Position = to.Ends[len(to.Ends)-1].Position
	} else {
		to.Position = b.Position
		if b.Last {
			to.Ends = []End{{b.Position, len(to.Payload), to.Changes}}
		}
	}
	for _, s := range b.Schemas {
		if s = lens.Schema(s); s != nil {
			to.Schemas = append(to.Schemas, s)
		}
	}
	return to, nil
}

// narrower builds a narrowed block, one transaction at a time.
type narrower struct {
	to      *Block
	altered bool // to is not what it was made from
	begin   TxHeader
	isOpen  bool
	body    []byte // of the transaction being built
	kept    int    // in body
	minor   uint32 // that a change without a stamp would now get, less 1
}

func (w *narrower) open(h *TxHeader, continues bool) {
	w.begin, w.isOpen, w.body, w.kept, w.minor = *h, true, w.body[:0], 0, 0
	if continues {
		w.minor = uint32(h.Changes)
	}
}

func (w *narrower) change(log LogID, c *Change) {
	w.kept++
	w.minor++
	implied := c.Stamp == Stamp{w.begin.Time, log.Origin, log.Epoch, Version{w.begin.Major, w.minor}}
	w.body = appendChange(w.body, c, implied)
}

func (w *narrower) end(whole bool) {
	if !w.isOpen {
		return
	}
	w.isOpen = false
	if whole && w.kept == 0 {
		w.altered = true // even where it was empty from the start
		return
	}
	to := w.to
	h := w.begin
	if whole {
		h.Changes = w.kept
	}
	to.Payload = append(appendBegin(to.Payload, &h), w.body...)
	to.Changes += w.kept
	if whole {
		to.Time = w.begin.Time
		to.Ends = append(to.Ends, End{w.begin.Position, len(to.Payload), to.Changes})
	}
}

// Split returns a block for each whole transaction in b, sharing its memory; b
// itself if it is a part, or one transaction.
func (b *Block) Split(log LogID) []*Block {
	if b.Part > 0 || !b.Last || len(b.Ends) < 2 {
		return []*Block{b}
	}
	all := make([]*Block, len(b.Ends))
	prev, from, changes := b.Prev, 0, 0
	for i, e := range b.Ends {
		p := b.Payload[from:e.Offset:e.Offset]
		t := &Block{
			Prev: prev, Position: e.Position, Time: b.Time, Changes: e.Changes - changes, Last: true, Payload: p,
			Ends: []End{{e.Position, len(p), e.Changes - changes}},
		}
		if r := t.Reader(log, nil); r.Next() && r.IsBegin {
			t.Time = r.Begin.Time
		}
		if i == 0 {
			t.Schemas = b.Schemas
		}
		all[i], prev, from, changes = t, e.Position, e.Offset, e.Changes
	}
	all[len(all)-1].Behind = b.Behind
	return all
}
