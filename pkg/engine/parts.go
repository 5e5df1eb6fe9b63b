package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// Of transactions whose last part has not come, partsHeld bytes of payload are kept in
// memory as they came, all logs together: what a relay flushes at once by default.
// What is more goes to the scratch folder, in pieces of partsMemory.
const (
	partsHeld   = 16 << 20
	partsMemory = 256 << 10
)

// partsRoom is what of partsHeld is in use.
type partsRoom struct{ used atomic.Int64 }

// take takes room for n bytes, and reports whether there is any.
func (r *partsRoom) take(n int) bool {
	if r.used.Add(int64(n)) <= partsHeld {
		return true
	}
	r.give(n)
	return false
}

func (r *partsRoom) give(n int) { r.used.Add(-int64(n)) }

// parts are the parts of one transaction that have come, in order, while its
// last one has not.
type parts struct {
	prev     Position
	position Position
	next     uint32 // number of the part that comes next
	room     *partsRoom
	held     []*Block // the first of them
	size     int      // of their payloads
	file     *spill.File
	schemas  map[uint32]partSchemas // of those in file, by the part's number
}

// partSchemas are those that a block names.
type partSchemas struct {
	own    []*Schema
	others []LogSchema
}

// startParts starts with the first part of a transaction.
func (e *Engine) startParts(first *Block) *parts {
	return &parts{prev: first.Prev, position: first.Position, room: &e.parts, file: e.scratch.New(partsMemory), schemas: map[uint32]partSchemas{}}
}

// add takes the next part.
func (p *parts) add(b *Block) error {
	if p.file.Len() == 0 && p.room.take(len(b.Payload)) {
		p.held = append(p.held, p.block(b))
		p.size += len(b.Payload)
		p.next++
		return nil
	}
	var head [2 * binary.MaxVarintLen64]byte
	h := binary.AppendUvarint(head[:0], uint64(b.Time))
	h = binary.AppendUvarint(h, uint64(b.Changes))
	if err := p.file.Append(h, b.Payload); err != nil {
		return fmt.Errorf("part %d of the transaction at %s: %w", b.Part, p.position, err)
	}
	if len(b.Schemas)+len(b.Others) > 0 {
		p.schemas[b.Part] = partSchemas{b.Schemas, b.Others}
	}
	p.next++
	return nil
}

// block returns the next part as the transaction has it.
func (p *parts) block(b *Block) *Block {
	return &Block{Prev: p.prev, Position: p.position, Part: p.next, Time: b.Time, Changes: b.Changes, Schemas: b.Schemas, Others: b.Others, Payload: b.Payload}
}

// each calls fn with each part, in memory of its own.
func (p *parts) each(fn func(*Block) error) error {
	for _, b := range p.held {
		if err := fn(b); err != nil {
			return err
		}
	}
	r := p.file.Reader()
	for n := uint32(len(p.held)); n < p.next; n++ {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("part %d of the transaction at %s: %w", n, p.position, err)
		}
		b := &Block{Prev: p.prev, Position: p.position, Part: n, Schemas: p.schemas[n].own, Others: p.schemas[n].others}
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
		p.room.give(p.size)
		p.held, p.size = nil, 0
	}
}
