package store

import (
	"fmt"

	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// front is where a log goes on.
type front struct {
	id       engine.LogID
	compare  engine.Comparator
	head     engine.Position
	time     engine.Time
	complete engine.Time // the state holds every later delete of the origin
	// open is the part that came last, of a transaction that lacks parts. Only
	// the transaction that writes the log sees it.
	open *engine.Block
}

// journal is one log's ring as of a root: immutable once its root is published.
type journal struct {
	front
	blocks  *btree.BTreeG[*engine.Block] // by position, then part
	first   *engine.Block                // the lowest of blocks; nil if there are none
	bytes   int
	changes int
	owner   uint64 // seq of the root it is being written for
	overrun bool   // what is open is larger than the journal, and not kept
}

// blockCost is about what a block takes beside its payload.
const (
	blockCost = 192
	endCost   = 40
)

func sizeOf(b *engine.Block) int { return cap(b.Payload) + len(b.Ends)*endCost + blockCost }

func newJournal(id engine.LogID, compare engine.Comparator, head engine.Position, t engine.Time, owner uint64) *journal {
	j := &journal{front: front{id: id, compare: compare, head: head, time: t, complete: t}, owner: owner}
	j.blocks = newTree(func(a, b *engine.Block) bool {
		if c := compare(a.Position, b.Position); c != 0 {
			return c < 0
		}
		return a.Part < b.Part
	})
	return j
}

func (j *journal) write(seq uint64) *journal {
	c := *j
	c.blocks, c.owner = j.blocks.Copy(), seq
	return &c
}

func (j *journal) info() engine.LogInfo {
	i := engine.LogInfo{ID: j.id, Oldest: j.oldest(), Head: j.head, Time: j.time, Changes: j.changes, Bytes: j.bytes, CompleteFrom: j.complete}
	return i
}

func (j *journal) oldest() engine.Position {
	if j.first != nil {
		return j.first.Prev
	}
	return j.head
}

// follows checks that blocks go on from the head, or from the part that is open.
func (j *front) follows(blocks []*engine.Block) error {
	head, open := j.head, j.open
	for _, b := range blocks {
		switch {
		case open != nil && (b.Part != open.Part+1 || b.Position != open.Position || b.Prev != open.Prev):
			return fmt.Errorf("log %s: part %d of the transaction at %s is followed by part %d of the one at %s", j.id, open.Part, open.Position, b.Part, b.Position)
		case open == nil && b.Part != 0:
			return fmt.Errorf("log %s: part %d of the transaction at %s comes without the parts before it", j.id, b.Part, b.Position)
		case j.compare(b.Prev, head) != 0:
			return &engine.HoleError{Key: engine.CursorKey{Log: j.id}, Cursor: head, Prev: b.Prev}
		case j.compare(b.Position, b.Prev) <= 0:
			return fmt.Errorf("log %s: a block at %q does not come after %q", j.id, b.Position, b.Prev)
		}
		if open = b; b.Last {
			open, head = nil, b.Position
		}
	}
	return nil
}

// whole checks that no transaction lacks parts.
func (j *front) whole() error {
	if j.open != nil {
		return fmt.Errorf("log %s: the transaction at %s lacks its last part", j.id, j.open.Position)
	}
	return nil
}

// took moves on past a block.
func (j *front) took(b *engine.Block) {
	if j.open = b; b.Last {
		j.open, j.head, j.time = nil, b.Position, max(j.time, b.Time)
	}
}

// append adds a block. A transaction that is larger than limit by itself is not
// kept: its readers are told that they have missed it.
func (j *journal) append(b *engine.Block, limit int) {
	if b.Part == 0 {
		j.overrun = false
	}
	if !j.overrun {
		j.blocks.Load(b)
		if j.first == nil {
			j.first = b
		}
		j.bytes += sizeOf(b)
		j.changes += b.Changes
	}
	if j.took(b); b.Last {
		return
	}
	for j.bytes > limit && !j.overrun {
		j.overrun = j.first.Position == b.Position
		j.dropOldest()
	}
}

// dropOldest drops the oldest block, with all parts of its transaction.
func (j *journal) dropOldest() {
	for last := false; !last; {
		b, ok := j.blocks.PopMin()
		if !ok {
			break
		}
		j.bytes -= sizeOf(b)
		j.changes -= b.Changes
		last = b.Last
	}
	j.first, _ = j.blocks.Min()
}

// trim lets go of the oldest transactions until at most keep bytes are held,
// but of none after notPast, unless that is "".
func (j *journal) trim(keep int, notPast engine.Position) {
	for j.bytes > keep {
		if j.first == nil || notPast != "" && j.compare(j.first.Position, notPast) > 0 {
			return
		}
		j.dropOldest()
	}
}

// read returns blocks that follow after, from a part on.
func (j *journal) read(after engine.Position, part uint32, maxBytes int) ([]*engine.Block, error) {
	if j.compare(after, j.oldest()) < 0 {
		return nil, fmt.Errorf("log %s holds nothing before %q, and %q was asked for: %w", j.id, j.oldest(), after, engine.ErrGap)
	}
	from := &engine.Block{Position: after, Part: 1<<32 - 1} // after every part of it
	if part > 0 {
		j.blocks.Ascend(from, func(b *engine.Block) bool {
			from = &engine.Block{Position: b.Position, Part: part}
			return false
		})
	}
	var out []*engine.Block
	size := 0
	j.blocks.Ascend(from, func(b *engine.Block) bool {
		if len(out) == 0 && b.Part == 0 {
			if rest, ok := b.After(after, j.compare); ok {
				b = rest
			}
		}
		if size += len(b.Payload); len(out) > 0 && size > maxBytes {
			return false
		}
		out = append(out, b)
		return true
	})
	return out, nil
}
