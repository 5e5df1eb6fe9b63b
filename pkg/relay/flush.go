package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// flush is what a commit adds to a relay's log: changes and notes, in order. What is
// more than a bound goes to the scratch folder, and a row may be in it once more
// then.
type flush struct {
	scratch *spill.Dir
	limit   int // bytes that are held in memory, about

	entries []entry
	at      map[rowKey]int // in entries, of rows that are delivered once
	size    int
	spilled *spill.File
	schemas []*engine.Schema // of what was spilled
	numbers map[*engine.Schema]uint64
	failed  error // of the scratch folder
	gap     string
}

// entry is a change or a note.
type entry struct {
	change engine.Change
	note   *engine.Note
	fresh  bool // the row has no place yet
}

func (f *flush) reset(dir *spill.Dir, limit int) {
	if f.spilled != nil {
		f.spilled.Close()
	}
	if f.at == nil {
		f.at = map[rowKey]int{}
	}
	clear(f.at)
	clear(f.entries)
	*f = flush{scratch: dir, limit: limit, entries: f.entries[:0], at: f.at}
}

// len is how many places it takes.
func (f *flush) len() int {
	n := len(f.entries)
	if f.spilled != nil {
		n += f.spilled.Len()
	}
	return n
}

func (f *flush) change(e entry, once bool) {
	c := &e.change
	if once {
		k := rowKey{c.Schema.Table, string(c.Key)}
		if i, ok := f.at[k]; ok {
			f.size += len(c.Row) - len(f.entries[i].change.Row)
			f.entries[i].change = *c
			return
		}
		f.at[k] = len(f.entries)
	}
	f.add(e, len(c.Key)+len(c.Row)+128)
}

func (f *flush) note(n *engine.Note) {
	size := 64
	if n.Cover != nil {
		size = engine.CoverBytes
	}
	f.add(entry{note: n}, size+len(n.Marks)*64)
}

func (f *flush) add(e entry, size int) {
	f.entries = append(f.entries, e)
	if f.size += size; f.size > f.limit {
		f.spill()
	}
}

// spill moves what is in memory to the scratch folder.
func (f *flush) spill() {
	if f.spilled == nil {
		f.spilled, f.numbers = f.scratch.New(256<<10), map[*engine.Schema]uint64{}
	}
	var buf []byte
	for i := range f.entries {
		if f.failed != nil {
			break
		}
		buf = f.encode(buf[:0], &f.entries[i])
		f.failed = f.spilled.Append(buf)
	}
	clear(f.at)
	clear(f.entries)
	f.entries, f.size = f.entries[:0], 0
}

// The first byte of what is spilled is its operation, with spilledFresh added, or
// spilledNote.
const (
	spilledFresh = 0x80
	spilledNote  = 0xff
)

func (f *flush) encode(p []byte, e *entry) []byte {
	if e.note != nil {
		return engine.AppendNote(append(p, spilledNote), e.note)
	}
	c := &e.change
	n, ok := f.numbers[c.Schema]
	if !ok {
		n = uint64(len(f.schemas))
		f.schemas, f.numbers[c.Schema] = append(f.schemas, c.Schema), n
	}
	op := byte(c.Op)
	if e.fresh {
		op |= spilledFresh
	}
	p = binary.AppendUvarint(append(p, op), n)
	p = binary.AppendUvarint(p, uint64(c.Stamp.Time))
	p = binary.AppendUvarint(p, uint64(c.Stamp.Epoch))
	p = binary.AppendUvarint(p, c.Stamp.Version.Major)
	p = binary.AppendUvarint(p, uint64(c.Stamp.Version.Minor))
	p = append(binary.AppendUvarint(p, uint64(len(c.Stamp.Origin))), c.Stamp.Origin...)
	p = append(binary.AppendUvarint(p, uint64(len(c.Key))), c.Key...)
	return append(p, c.Row...)
}

func (f *flush) decode(p []byte) (e entry, err error) {
	if p[0] == spilledNote {
		e.note, err = engine.DecodeNote(p[1:])
		return e, err
	}
	c := &e.change
	c.Op, e.fresh, p = engine.Op(p[0]&^spilledFresh), p[0]&spilledFresh != 0, p[1:]
	num := func() uint64 {
		n, used := binary.Uvarint(p)
		p = p[used:]
		return n
	}
	str := func() []byte {
		n := num()
		b := p[:n:n]
		p = p[n:]
		return b
	}
	c.Schema = f.schemas[num()]
	c.Stamp.Time, c.Stamp.Epoch = engine.Time(num()), engine.Epoch(num())
	c.Stamp.Version = engine.Version{Major: num(), Minor: uint32(num())}
	c.Stamp.Origin = string(str())
	c.Key = str()
	if c.Op == engine.OpPut {
		c.Row = p
	}
	return e, nil
}

// each calls fn with each entry, which is valid during the call.
func (f *flush) each(fn func(*entry) error) error {
	if f.failed != nil {
		return fmt.Errorf("a flush of the relay that does not fit in memory: %w", f.failed)
	}
	if f.spilled != nil {
		r := f.spilled.Reader()
		for range f.spilled.Len() {
			p, err := r.Next()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			e, err := f.decode(p)
			if err != nil {
				return err
			}
			if err := fn(&e); err != nil {
				return err
			}
		}
	}
	for i := range f.entries {
		if err := fn(&f.entries[i]); err != nil {
			return err
		}
	}
	return nil
}

// write adds it to the log as one transaction, and gives rows their places after
// one. It holds a bounded part of it in memory.
func (f *flush) write(tx engine.Tx, t *engine.Transaction, after uint64, tables map[engine.TableName]Delivery) error {
	w := engine.NewBlockBuilder(t.Log, t.Prev)
	begun := false
	full := func() error {
		blocks := w.Blocks()
		if len(blocks) == 0 {
			return nil
		}
		return tx.Append(t.Log, engine.CompareNumber, blocks...)
	}
	n := 0
	if f.spilled == nil {
		for i := range f.entries {
			if f.entries[i].note == nil {
				n++
			}
		}
	}
	place := after
	err := f.each(func(e *entry) error {
		if !begun {
			w.Begin(t, n, 0)
			begun = true
		}
		place++
		if e.note != nil {
			w.Note(e.note)
			return full()
		}
		c := &e.change
		w.Change(c)
		if c.Op != engine.OpTruncate {
			if err := tx.Place(t.Log, c.Schema.Table, c.Key, place, e.fresh); err != nil {
				return err
			}
		}
		return full()
	})
	if err != nil {
		return err
	}
	w.End()
	return tx.Append(t.Log, engine.CompareNumber, w.Blocks()...)
}
