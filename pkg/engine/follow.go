package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// FollowingWriter is what the writer of a carried log's baseline is too: the
// baseline and the log after it can become the state in one commit. So it can be as
// of where the log begins, without a moment in which what was written since is
// missing.
type FollowingWriter interface {
	BaselineWriter
	// Follow adds the blocks that follow: the first after BaselineSpec.At, each after
	// the one before. The cursor is at the end of the last then. Their memory passes to
	// the writer, and only a bounded part of them is held in it.
	Follow(blocks []*Block) error
}

var _ FollowingWriter = (*baseline)(nil)

// Follow adds blocks.
func (b *baseline) Follow(blocks []*Block) error {
	if b.mint || b.spec.Partial {
		return errors.New("engine: only the baseline of a carried log is followed by blocks")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return errors.New("engine: the baseline has ended")
	}
	for _, x := range blocks {
		if err := b.following.add(b.source.engine.scratch, x); err != nil {
			return fmt.Errorf("baseline of log %s: %w", b.log, err)
		}
	}
	return nil
}

// run is a run of blocks that may be larger than memory.
type run struct {
	file    *spill.File
	schemas []partSchemas
}

func (q *run) add(dir *spill.Dir, b *Block) error {
	if q.file == nil {
		q.file = dir.New(partsMemory)
	}
	head := binary.AppendUvarint(nil, uint64(len(b.Prev)))
	head = append(head, b.Prev...)
	head = binary.AppendUvarint(head, uint64(len(b.Position)))
	head = append(head, b.Position...)
	last := uint64(0)
	if b.Last {
		last = 1
	}
	for _, n := range []uint64{uint64(b.Time), uint64(b.Changes), uint64(b.Part), last, uint64(len(b.Ends))} {
		head = binary.AppendUvarint(head, n)
	}
	for _, e := range b.Ends {
		head = binary.AppendUvarint(head, uint64(len(e.Position)))
		head = append(head, e.Position...)
		head = binary.AppendUvarint(head, uint64(e.Offset))
		head = binary.AppendUvarint(head, uint64(e.Changes))
	}
	if err := q.file.Append(head, b.Payload); err != nil {
		return err
	}
	q.schemas = append(q.schemas, partSchemas{b.Schemas, b.Others})
	return nil
}

// each calls fn with each block, in memory of its own.
func (q *run) each(fn func(*Block) error) error {
	if q.file == nil {
		return nil
	}
	f := q.file.Reader()
	for _, s := range q.schemas {
		rec, err := f.Next()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		r := BlockReader{p: rec}
		b := &Block{
			Prev: Position(r.bytes()), Position: Position(r.bytes()), Time: Time(r.uvarint()), Changes: int(r.uvarint()),
			Part: r.uint32(), Last: r.uvarint() == 1, Schemas: s.own, Others: s.others,
		}
		for range r.uvarint() {
			b.Ends = append(b.Ends, End{Position(r.bytes()), int(r.uvarint()), int(r.uvarint())})
		}
		if r.err != nil {
			return r.err
		}
		b.Payload = append([]byte(nil), r.p...)
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

func (q *run) close() {
	if q.file != nil {
		q.file.Close()
	}
	*q = run{}
}

// follow takes in the blocks that follow a baseline, from its cursor on, and
// returns the cursor after them. The cursor is set by the caller.
func (b *baseline) follow(tx Tx, net *netChanges, compare Comparator, cursor Cursor) (Cursor, error) {
	if b.following.file == nil {
		return cursor, nil
	}
	net.keep, net.changes = false, nil
	c := carrying{s: b.source, tx: tx, m: b.source.merger(tx), key: cursor.CursorKey, compare: compare, aside: true} // the log begins after them
	defer func() { c.parts.close() }()
	err := b.following.each(func(x *Block) error {
		c.done = nil
		return c.add(x, &cursor)
	})
	if err == nil && c.parts != nil {
		err = fmt.Errorf("log %s: the blocks that follow the baseline end within a transaction", b.log)
	}
	b.followed = c.m.gate
	return cursor, err
}

// TimeAt returns the time up to which writes of a log are at or before a position
// that the log still reaches back to: those of the state with a later one have come
// after the position.
func TimeAt(v View, log LogID, at Position, compare Comparator) (Time, error) {
	info, ok := v.Log(log)
	if !ok {
		return 0, fmt.Errorf("log %s: %w", log, ErrUnknownLog)
	}
	if compare(at, info.Head) >= 0 {
		return info.Time, nil
	}
	blocks, err := v.ReadLog(log, at, 1)
	if err != nil {
		return 0, err
	}
	if len(blocks) == 0 {
		return info.Time, nil
	}
	b, ok := blocks[0].After(at, compare)
	if !ok {
		return info.Time, nil
	}
	if r := b.Reader(log, v.Schema); r.Next() && r.IsBegin && r.Begin.Time > 0 {
		return r.Begin.Time - 1, nil
	}
	return 0, fmt.Errorf("log %s: %w: the block after %s has no transaction", log, ErrCorruptRow, at)
}
