package store

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// entryReader reads a log's entries by number.
type entryReader interface {
	get(key []byte) ([]byte, io.Closer, error)
	reader() pebble.Reader // of pieces
	// entries calls fn for the entries from a number on, until it returns false.
	entries(l *diskLog, from uint64, fn func(seq uint64, value []byte) (bool, error)) error
}

func missingEntry(seq uint64) error { return fmt.Errorf("%w: entry %d is missing", errDamaged, seq) }

// readLog returns blocks that follow a position, from a part on.
func (p *Pebble) readLog(l *diskLog, after engine.Position, part uint32, maxBytes int, from entryReader) ([]*engine.Block, error) {
	if l.compare == nil {
		return nil, fmt.Errorf("log %s: the order of its positions is not known since the restart: it is, once its source has connected", l.id)
	}
	if oldest := l.oldestHeld(); l.compare(after, oldest) < 0 {
		return nil, fmt.Errorf("log %s holds nothing before %q, and %q was asked for: %w", l.id, oldest, after, engine.ErrGap)
	}
	if l.first == l.next || l.compare(after, l.head) >= 0 && l.open == nil {
		return nil, nil
	}
	if out, ok := p.recent.read(l, after, part, maxBytes); ok {
		return out, nil
	}
	seq, err := l.follows1(after, from)
	if err != nil {
		return nil, p.logError(err, l.id, after)
	}
	r := logRead{log: l, after: after, maxBytes: maxBytes}
	if seq += uint64(part); seq >= l.next {
		return nil, nil
	}
	err = from.entries(l, seq, func(seq uint64, v []byte) (bool, error) {
		b, in, err := decodeBlock(v, l.id, p.shapes.find)
		if err == nil && in.n > 0 {
			b.Payload, err = readPieces(from.reader(), spaceBlockIn, l.num, in)
		}
		if err != nil {
			return false, fmt.Errorf("%w: entry %d", err, seq)
		}
		return r.take(b), nil
	})
	if err != nil {
		return nil, p.logError(err, l.id, after)
	}
	return r.out, nil
}

// logRead gathers what a read returns.
type logRead struct {
	log      *diskLog
	after    engine.Position
	maxBytes int
	size     int
	out      []*engine.Block
}

func (r *logRead) take(b *engine.Block) bool {
	if len(r.out) == 0 && b.Part == 0 {
		if rest, ok := b.After(r.after, r.log.compare); ok {
			b = rest
		}
	}
	if r.size += len(b.Payload); len(r.out) > 0 && r.size > r.maxBytes {
		return false
	}
	r.out = append(r.out, b)
	return true
}

// follows1 returns the number of the first entry that ends after a position.
func (l *diskLog) follows1(after engine.Position, from entryReader) (uint64, error) {
	lo, hi := l.first, l.next
	for lo < hi {
		mid := lo + (hi-lo)/2
		m, err := l.meta(mid, from)
		if err != nil {
			return 0, err
		}
		if l.compare(m.position, after) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, nil
}

// meta returns what is known of an entry.
func (l *diskLog) meta(seq uint64, from entryReader) (blockMeta, error) {
	v, done, err := from.get(blockKey(nil, spaceIndex, l.num, seq))
	if err != nil {
		return blockMeta{}, err
	}
	if v == nil {
		return blockMeta{}, missingEntry(seq)
	}
	m, err := decodeBlockMeta(v)
	if done != nil {
		err = errors.Join(err, done.Close())
	}
	return m, err
}

// run is the newest entries of a log, decoded.
type run struct {
	base   uint64 // number of the first
	blocks []*engine.Block
	size   int
}

func (r *run) end() uint64 { return r.base + uint64(len(r.blocks)) }

// recentCost is about what an entry takes beside its payload.
func recentCost(b *engine.Block) int { return sizeOf(b) }

func (r *run) add(b *engine.Block) {
	r.blocks = append(r.blocks, b)
	r.size += recentCost(b)
}

// dropOldest lets go of the first entry. The slots before it are not reused.
func (r *run) dropOldest() int {
	n := recentCost(r.blocks[0])
	r.blocks[0] = nil
	r.blocks = r.blocks[1:]
	r.base++
	r.size -= n
	return n
}

// recentBlocks keeps the newest entries of all logs in memory, within a bound:
// what came first goes first.
type recentBlocks struct {
	limit int

	mu    sync.RWMutex
	runs  map[uint32]*run // by number of the log
	order []uint32        // whose entries came, oldest first
	size  int
}

func newRecent(limit int) *recentBlocks {
	return &recentBlocks{limit: limit, runs: map[uint32]*run{}}
}

func (c *recentBlocks) bytes() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.size
}

// add takes entries that have been committed.
func (c *recentBlocks) add(log uint32, n *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.runs[log]
	if r == nil || r.end() != n.base {
		if r != nil {
			c.size -= r.size
		}
		r = &run{base: n.base}
		c.runs[log] = r
	}
	for _, b := range n.blocks {
		r.add(b)
		c.order = append(c.order, log)
	}
	c.size += n.size
	for c.size > c.limit && len(c.order) > 0 {
		if old := c.runs[c.order[0]]; old != nil && len(old.blocks) > 0 {
			c.size -= old.dropOldest()
		}
		c.order = c.order[1:]
	}
}

// drop forgets a log.
func (c *recentBlocks) drop(log uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.runs[log]; r != nil {
		c.size -= r.size
		delete(c.runs, log)
	}
}

// read answers a read from memory, if it is all there.
func (c *recentBlocks) read(l *diskLog, after engine.Position, part uint32, maxBytes int) ([]*engine.Block, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	r := c.runs[l.num]
	if r == nil || len(r.blocks) == 0 || r.end() < l.next || r.base >= l.next {
		return nil, false
	}
	first := r.blocks[0]
	if first.Part != 0 || l.compare(after, first.Prev) < 0 {
		if first.Part == 0 || l.compare(after, first.Position) < 0 {
			return nil, false
		}
	}
	lo, hi := 0, int(l.next-r.base)
	for lo < hi {
		if mid := (lo + hi) / 2; l.compare(r.blocks[mid].Position, after) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	out := logRead{log: l, after: after, maxBytes: maxBytes}
	for i := lo + int(part); i < int(l.next-r.base); i++ {
		if !out.take(r.blocks[i]) {
			break
		}
	}
	return out.out, true
}
