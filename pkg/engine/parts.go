package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// partsMemory is how much of a transaction's parts is kept in memory until its
// last one comes; the rest goes to the scratch folder.
const partsMemory = 1 << 20

// parts are the parts of one transaction that have come, in order, while its
// last one has not.
type parts struct {
	prev     Position
	position Position
	next     uint32 // number of the part that comes next
	file     *spill.File
	schemas  map[uint32][]*Schema // first used in a part, by its number
}

// startParts starts with the first part of a transaction.
func startParts(dir *spill.Dir, first *Block) *parts {
	return &parts{prev: first.Prev, position: first.Position, file: dir.New(partsMemory), schemas: map[uint32][]*Schema{}}
}

// add takes the next part.
func (p *parts) add(b *Block) error {
	var head [2 * binary.MaxVarintLen64]byte
	h := binary.AppendUvarint(head[:0], uint64(b.Time))
	h = binary.AppendUvarint(h, uint64(b.Changes))
	if err := p.file.Append(h, b.Payload); err != nil {
		return fmt.Errorf("part %d of the transaction at %s: %w", b.Part, p.position, err)
	}
	if len(b.Schemas) > 0 {
		p.schemas[b.Part] = b.Schemas
	}
	p.next++
	return nil
}

// each calls fn with each part, in memory of its own.
func (p *parts) each(fn func(*Block) error) error {
	r := p.file.Reader()
	for n := range p.next {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("part %d of the transaction at %s: %w", n, p.position, err)
		}
		b := &Block{Prev: p.prev, Position: p.position, Part: n, Schemas: p.schemas[n]}
		t, k := binary.Uvarint(rec)
		rec = rec[k:]
		changes, k := binary.Uvarint(rec)
		b.Time, b.Changes, b.Payload = Time(t), int(changes), append([]byte(nil), rec[k:]...)
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// close gives the room back. p may be nil.
func (p *parts) close() {
	if p != nil {
		p.file.Close()
	}
}
