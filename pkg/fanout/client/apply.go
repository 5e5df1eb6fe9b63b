package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// applier hands the deliveries of one origin to the sink, in order, apart from
// those of every other.
type applier struct {
	reader *Reader
	more   *sync.Cond // on reader.mu
	queue  []*session.Delivery

	// Of the applier's goroutine; writer is also read under reader.mu.
	writer  engine.BaselineWriter
	records []engine.Record
}

// maxApply is how many bytes of blocks go into one commit of the sink.
const maxApply = 1 << 20

// enqueue adds a delivery; mu is held.
func (r *Reader) enqueue(d *session.Delivery) {
	origin := d.Key.Log.Origin
	a := r.origins[origin]
	if a == nil {
		if !r.opened {
			return
		}
		a = &applier{reader: r, more: sync.NewCond(&r.mu)}
		r.origins[origin] = a
		r.wg.Add(1)
		go func() {
			defer r.wg.Done()
			a.run()
		}()
	}
	a.queue = append(a.queue, d)
	a.more.Signal()
}

// wakeAll lets every applier look again; mu is held.
func (r *Reader) wakeAll() {
	for _, a := range r.origins {
		a.more.Signal()
	}
}

func (a *applier) run() {
	r := a.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if a.writer != nil {
			a.writer.Abort()
			a.writer = nil
		}
	}()
	for r.life.Err() == nil {
		if len(a.queue) == 0 || r.sink == nil || r.paused || r.fatal != nil {
			a.more.Wait()
			continue
		}
		batch := a.next()
		sink, ctx := r.sink, r.sinkCtx
		r.busy++
		r.mu.Unlock()
		err := a.apply(ctx, sink, batch)
		r.mu.Lock()
		r.busy--
		var size int64
		for _, d := range batch {
			size += d.Size
		}
		log := batch[0].Key.Log
		r.free(log, size)
		if err != nil {
			a.failed(ctx, log, err)
		} else if k := batch[0].Kind; k == session.DeliverCommit || k == session.DeliverBlock || k == session.DeliverProgress {
			r.applied[log] = true
		}
		r.bump()
	}
}

// next takes a delivery, or blocks of one log that follow each other, from the
// queue; mu is held.
func (a *applier) next() []*session.Delivery {
	n, size := 1, a.queue[0].Size
	for n < len(a.queue) && a.queue[0].Kind == session.DeliverBlock && a.queue[n].Kind == session.DeliverBlock &&
		a.queue[n].Key == a.queue[0].Key && size < maxApply {
		size += a.queue[n].Size
		n++
	}
	batch := a.queue[:n:n]
	if a.queue = a.queue[n:]; len(a.queue) == 0 {
		a.queue = nil
	}
	return batch
}

// free gives bytes that are no longer kept back to the log's credit; mu is held.
func (r *Reader) free(log engine.LogID, n int64) {
	if r.link != nil {
		r.link.perform(r.link.machine.Applied(log, n))
	} else if p := r.places[log]; p != nil {
		p.Buffered -= n
	}
}

func (a *applier) apply(ctx context.Context, sink engine.Sink, batch []*session.Delivery) error {
	d := batch[0]
	switch d.Kind {
	case session.DeliverCarry:
		return sink.Carry(d.Key.Log, a.reader.cfg.Compare, d.Path, d.Tables)
	case session.DeliverBaseline:
		w, err := sink.Baseline(ctx, *d.Spec)
		a.set(w)
		return err
	case session.DeliverRows:
		if a.writer == nil {
			return nil // given up
		}
		var err error
		if a.records, err = engine.DecodeRecords(a.records[:0], d.Table, d.Payload, d.Schemas.Schema); err != nil {
			return err
		}
		return a.writer.Rows(d.Table, a.records)
	case session.DeliverCommit:
		if a.writer == nil {
			return nil
		}
		w := a.writer
		a.set(nil)
		return w.Commit(ctx)
	case session.DeliverAbort:
		if w := a.writer; w != nil {
			a.set(nil)
			w.Abort()
		}
		return nil
	case session.DeliverProgress:
		return sink.Progress(ctx, d.Key, d.Prev, d.Through, d.Time)
	case session.DeliverBlock:
		blocks := make([]*engine.Block, len(batch))
		for i, d := range batch {
			if err := d.Block.Index(d.Key.Log, d.Schemas.Schema); err != nil {
				return err
			}
			blocks[i] = d.Block
		}
		return sink.ApplyBlocks(ctx, d.Key, blocks)
	}
	return fmt.Errorf("a delivery of kind %s", d.Kind)
}

// set changes the open baseline. (a.writer is read by others under mu.)
func (a *applier) set(w engine.BaselineWriter) {
	a.reader.mu.Lock()
	a.writer = w
	a.reader.mu.Unlock()
}

// failed decides what an error of the sink means; mu is held.
func (a *applier) failed(ctx context.Context, log engine.LogID, err error) {
	r := a.reader
	now := r.cfg.Now()
	var hole *engine.HoleError
	switch {
	case ctx.Err() != nil:
		// The phase is over, and with it the reader: nothing of this is kept.
		if r.fatal == nil {
			r.fatal = context.Cause(ctx)
		}
	case errors.As(err, &hole):
		a.clear(log)
		if r.link != nil {
			r.link.perform(r.link.machine.Rewind(now, log, hole.Cursor, 0))
		} else if p := r.places[log]; p != nil {
			*p = session.Place{Position: hole.Cursor, Known: true, Tables: p.Tables, Buffered: p.Buffered}
		}
	case errors.Is(err, engine.ErrStaleEpoch), errors.Is(err, engine.ErrUnknownLog):
		a.clear(log)
		delete(r.places, log)
		if r.link != nil {
			r.link.perform(r.link.machine.Refuse(now, log, session.RefusedEpoch, err.Error()))
		}
	case errors.Is(err, engine.ErrCorruptRow):
		a.clear(log)
		if r.link != nil { // what was staged of it is gone: start over from the sink's cursor
			r.link.perform(r.link.machine.Fail(err))
		}
		r.fatal = err
	default:
		r.fatal = err
	}
}

// clear forgets what waits of a log; mu is held.
func (a *applier) clear(log engine.LogID) {
	var size int64
	var rest []*session.Delivery
	for _, d := range a.queue {
		if d.Key.Log == log {
			size += d.Size
		} else {
			rest = append(rest, d)
		}
	}
	a.queue = rest
	if a.writer != nil {
		a.writer.Abort()
		a.writer = nil
	}
	a.reader.free(log, size)
}
