package server

import (
	"errors"
	"iter"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// Tree is what a node of a relay tree knows of those above it: package relay has it
// of leaves and of relays.
type Tree interface {
	// Acked takes how far holders have a log of the node, as a reader says.
	Acked(log engine.LogID, holders session.Holdings)
	// Holders returns how far each is known to have it, and what all roots have; empty
	// where that is not known.
	Holders(log engine.LogID) (holders session.Holdings, stable engine.Position)
	// Floor returns how far a holder is known to have it.
	Floor(log engine.LogID, holder string) engine.Position
	// Places reports whether the log's rows have places, so that it can be read on from
	// any position by Read.
	Places(log engine.LogID) bool
	// Marks returns up to where a log with places has all of other logs: see
	// engine.BaselineSpec.
	Marks(v engine.View, log engine.LogID) ([]engine.Mark, error)
	// Read gives what a reader at a position lacks, as one transaction, some blocks at a
	// time.
	Read(v engine.View, log engine.LogID, after engine.Position, fn func([]*engine.Block) error) error
}

// catchup is what a channel is sent that is behind the entries of a log with places:
// one transaction, read from a moment as it is sent.
type catchup struct {
	channel uint32
	after   engine.Position
	part    uint32          // the next
	ready   []*engine.Block // parts that have been read, from it on
	next    func() ([]*engine.Block, error, bool)
	stop    func()
}

var errStopped = errors.New("the reader has gone")

// catchUp begins to read what a channel lacks.
func (v *serving) catchUp(m *moment, work session.Work) *catchup {
	hub := v.srv.hub
	hub.retain(m)
	next, stop := iter.Pull2(func(yield func([]*engine.Block, error) bool) {
		err := v.srv.cfg.Tree.Read(m.view, work.Log, work.After, func(bs []*engine.Block) error {
			if !yield(bs, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	})
	return &catchup{channel: work.Channel, after: work.After, next: next, stop: func() { stop(); hub.release(m) }}
}

// take returns the next parts, of about size bytes, and at least one while there is
// one.
func (c *catchup) take(size int) (blocks []*engine.Block, err error) {
	for {
		if len(c.ready) == 0 {
			bs, err, ok := c.next()
			if err != nil || !ok {
				return blocks, err
			}
			c.ready = bs
			continue
		}
		b := c.ready[0]
		if size -= len(b.Payload); size < 0 && len(blocks) > 0 {
			return blocks, nil
		}
		blocks, c.ready, c.part = append(blocks, b), c.ready[1:], b.Part+1
		if b.Last || size <= 0 {
			return blocks, nil
		}
	}
}

// endCatchup lets go of what the channel that is caught up has not been sent.
func (v *serving) endCatchup() {
	if c := v.catchup; c != nil {
		v.catchup = nil
		c.stop()
	}
}

// readLog reads what follows for a channel. A log with places leads on from where its
// entries no longer reach back to.
func (v *serving) readLog(m *moment, work session.Work) ([]*engine.Block, error) {
	c := v.catchup
	if c != nil && c.channel == work.Channel && work.Part > 0 && c.after == work.After && c.part == work.Part {
		return v.takeCatchup(work)
	}
	if work.Part > 0 {
		return m.view.ReadPart(work.Log, work.After, work.Part, work.MaxSize)
	}
	blocks, err := m.view.ReadLog(work.Log, work.After, work.MaxSize)
	if tree := v.srv.cfg.Tree; !errors.Is(err, engine.ErrGap) || tree == nil || !tree.Places(work.Log) {
		return blocks, err
	}
	v.endCatchup()
	v.catchup = v.catchUp(m, work)
	return v.takeCatchup(work)
}

func (v *serving) takeCatchup(work session.Work) ([]*engine.Block, error) {
	blocks, err := v.catchup.take(work.MaxSize)
	if n := len(blocks); err != nil || n == 0 || blocks[n-1].Last {
		v.endCatchup()
	}
	return blocks, err
}
