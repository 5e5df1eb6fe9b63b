package postgres

import (
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

const (
	slabSize  = 1 << 20
	batchSize = 1 << 20 // a batch of this many bytes takes no further transaction
)

// batch is a number of whole transactions in memory of its own. Rows and keys lie
// in slabs, so that a row costs no allocation.
type batch struct {
	slab    []byte // current slab; earlier ones live through the slices into them
	changes []engine.Change
	txs     []txEnd
	bytes   int // of rows and keys, and of the changes themselves
	shared  bool
	out     []engine.Transaction

	// A run of a large transaction: txs is empty, and all changes are of it.
	run  *txEnd
	last bool // no run follows
	// through is set on a batch without changes: nothing of ours came up to there.
	through engine.LSN
}

// txEnd is a transaction of a batch: the changes from the last one's end to end.
type txEnd struct {
	end     int
	prev    engine.Position
	lsn     engine.LSN
	commit  time.Time
	schemas []*engine.Schema
}

// changeSize is what a change costs beside its row and key.
const changeSize = 144

// reserve returns an empty slice with room for n bytes of the slab. keep
// takes what was appended to it.
func (b *batch) reserve(n int) []byte {
	if cap(b.slab)-len(b.slab) < n {
		size := slabSize
		if b.bytes < slabSize/16 {
			size = slabSize / 16 // most batches are small
		}
		b.slab = make([]byte, 0, max(n, size))
	}
	return b.slab[len(b.slab):]
}

// keep takes what was appended to the slice that reserve gave.
func (b *batch) keep(s []byte) []byte {
	if len(s) > 0 {
		b.slab = b.slab[:len(b.slab)+len(s)]
		b.bytes += len(s)
	}
	return s[:len(s):len(s)]
}

func (b *batch) add(c engine.Change) {
	b.changes = append(b.changes, c)
	b.bytes += changeSize
}

// done returns the number of changes in whole transactions.
func (b *batch) done() int {
	if len(b.txs) == 0 {
		return 0
	}
	return b.txs[len(b.txs)-1].end
}

// drop removes the changes after the last whole transaction.
func (b *batch) drop() {
	n := b.done()
	b.bytes -= (len(b.changes) - n) * changeSize
	clear(b.changes[n:])
	b.changes = b.changes[:n]
}

// maxCopied is how many bytes of rows and keys split copies.
const maxCopied = slabSize / 4

// split moves the unfinished transaction to another batch, which is empty. Few
// bytes are copied; where there are many, the rows stay where they are, and this
// batch's memory is not used again.
func (b *batch) split(to *batch) {
	open := b.changes[b.done():]
	size := 0
	for i := range open {
		size += len(open[i].Row) + len(open[i].Key)
	}
	b.shared = size > maxCopied
	for i := range open {
		c := &open[i]
		to.add(*c)
		if b.shared {
			to.bytes += len(c.Row) + len(c.Key)
			continue
		}
		moved := &to.changes[i]
		moved.Row, moved.Key = to.copy(c.Row), to.copy(c.Key)
		if c.OldKey != nil { // the key of the delete before it
			moved.OldKey = to.changes[i-1].Key
		}
	}
	b.bytes -= to.bytes
	clear(open)
	b.changes = b.changes[:len(b.changes)-len(open)]
}

// copy returns a copy of p in the slab.
func (b *batch) copy(p []byte) []byte {
	if len(p) == 0 {
		return p
	}
	return b.keep(append(b.reserve(len(p)), p...))
}

// transactions returns the batch's transactions. They are valid until reset.
func (b *batch) transactions() []engine.Transaction {
	b.out = b.out[:0]
	start := 0
	for i := range b.txs {
		t := &b.txs[i]
		b.out = append(b.out, t.transaction(b.changes[start:t.end:t.end]))
		start = t.end
	}
	return b.out
}

func (t *txEnd) transaction(changes []engine.Change) engine.Transaction {
	return engine.Transaction{
		Prev:     t.prev,
		Position: t.lsn.Position(),
		Major:    uint64(t.lsn),
		Commit:   t.commit,
		Schemas:  t.schemas,
		Changes:  changes,
	}
}

// reset empties the batch for another use. It returns false if its memory is
// not worth keeping or not its own.
func (b *batch) reset() bool {
	if b.shared || cap(b.slab) > slabSize || cap(b.changes) > 4*batchSize/changeSize {
		return false
	}
	clear(b.changes)
	clear(b.txs)
	clear(b.out)
	b.slab, b.changes, b.txs, b.out, b.bytes = b.slab[:0], b.changes[:0], b.txs[:0], b.out[:0], 0
	b.run, b.last, b.through = nil, false, 0
	return true
}
