package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

const (
	// largeTx is how many bytes of a transaction are decoded ahead of its commit;
	// what follows is held as it came.
	largeTx = 4 << 20
	// heldMemory is how much of a held transaction stays in memory.
	heldMemory = 256 << 10
)

// held is a transaction whose messages are kept until its commit has come: one
// that is sent while it is in progress, or the rest of one that is large.
type held struct {
	xid       uint32          // 0 for one that came whole
	head      *batch          // of one that came whole: what was decoded before
	file      *spill.File     // records: subtransaction, message
	gone      map[uint32]bool // subtransactions that were rolled back
	relations []heldRelation  // the Relation messages of the file, in order
}

type heldRelation struct {
	*relationMessage
	sub   uint32
	order uint64 // among all Relation messages received
}

// holding is what a reader holds.
type holding struct {
	scratch *spill.Dir
	streams map[uint32]*held // by transaction
	current *held            // that the next message belongs to
	full    bool             // the scratch directory has no room
}

func newHolding(scratch *spill.Dir) holding {
	return holding{scratch: scratch, streams: map[uint32]*held{}}
}

func (h *holding) close() {
	for _, t := range h.streams {
		t.file.Close()
	}
	if h.current != nil {
		h.current.file.Close()
	}
}

// streaming says whether a message is about a transaction in progress.
func streaming(typ byte) bool { return typ == 'S' || typ == 'E' || typ == 'c' || typ == 'A' }

// holdRest begins to hold a transaction that is growing large.
func (r *reader) holdRest() {
	r.publish() // the transactions before it
	if r.dec.batch.bytes < largeTx {
		return
	}
	r.held.current = &held{head: r.dec.batch, file: r.held.scratch.New(heldMemory)}
	r.dec.batch = nil
}

// holdMessage takes a message of a transaction that is held, or about one.
func (r *reader) holdMessage(ctx context.Context, msg []byte) error {
	typ, p := msg[0], msg[1:]
	h := r.held.current
	bad := func(format string, args ...any) error {
		return fmt.Errorf("decoding a message of type %q and %d bytes: %w: %s", typ, len(msg), errMessage, fmt.Sprintf(format, args...))
	}
	switch {
	case h != nil && h.xid == 0: // it came whole
		switch typ {
		case 'I', 'U', 'D', 'T', 'R', 'Y', 'O', 'M':
			return r.hold(ctx, h, []byte{0, 0, 0, 0}, msg[:1], p)
		case 'C':
			if len(p) != 25 {
				return bad("a commit")
			}
			r.held.current = nil
			end, commit := readCommit(p)
			return r.deliver(ctx, h, end, commit)
		}
		return bad("it is within a transaction")
	case h != nil: // a part of a stream
		switch typ {
		case 'I', 'U', 'D', 'T', 'R', 'Y', 'M':
			if len(p) < 4 {
				return bad("no transaction")
			}
			return r.hold(ctx, h, p[:4], msg[:1], p[4:])
		case 'O':
			return nil
		case 'E':
			r.held.current = nil
			return nil
		}
		return bad("it is within a part of transaction %d", h.xid)
	case r.dec.inTx:
		return bad("it is within a transaction")
	case typ == 'S':
		if len(p) != 5 {
			return bad("a start")
		}
		return r.startStream(binary.BigEndian.Uint32(p), p[4] != 0, bad)
	case typ == 'A':
		if len(p) < 8 {
			return bad("an abort")
		}
		r.abortStream(binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:]))
		return nil
	case typ == 'c':
		if len(p) != 29 {
			return bad("a commit")
		}
		xid := binary.BigEndian.Uint32(p)
		if h = r.held.streams[xid]; h == nil {
			return bad("the commit of transaction %d, of which nothing came", xid)
		}
		delete(r.held.streams, xid)
		end, commit := readCommit(p[4:])
		return r.deliver(ctx, h, end, commit)
	}
	return bad("the end of a part that has not begun")
}

// startStream takes the start of a part of a transaction in progress.
func (r *reader) startStream(xid uint32, first bool, bad func(string, ...any) error) error {
	h := r.held.streams[xid]
	switch {
	case xid == 0 || first && h != nil:
		return bad("transaction %d begins twice", xid)
	case !first && h == nil:
		return bad("transaction %d goes on, and has not begun", xid)
	case first:
		h = &held{xid: xid, file: r.held.scratch.New(heldMemory), gone: map[uint32]bool{}}
		r.held.streams[xid] = h
	}
	r.held.current = h
	return nil
}

// abortStream forgets a transaction in progress, or one of its subtransactions.
// Each subtransaction within that one gets an abort of its own.
func (r *reader) abortStream(xid, sub uint32) {
	h := r.held.streams[xid]
	switch {
	case h == nil: // it was rolled back before anything of it was sent
	case xid == sub:
		h.file.Close()
		delete(r.held.streams, xid)
	default:
		h.gone[sub] = true
	}
}

// hold keeps a message. If there is no room for it, the reader stops reading
// until there is: PostgreSQL waits meanwhile.
func (r *reader) hold(ctx context.Context, h *held, sub, typ, rest []byte) error {
	switch typ[0] {
	case 'Y', 'O', 'M':
		return nil
	case 'R':
		m, err := readRelation(rest)
		if err != nil {
			return err
		}
		r.dec.order++
		h.relations = append(h.relations, heldRelation{m, binary.BigEndian.Uint32(sub), r.dec.order})
	}
	for {
		err := h.file.Append(sub, typ, rest)
		if !spill.Full(err) {
			if err == nil && r.held.full {
				r.held.full = false
				r.s.env.Report(engine.ReasonStreaming, nil)
			}
			return err
		}
		r.held.full = true
		r.s.env.Report(engine.ReasonScratchFull, fmt.Errorf("a large transaction does not fit, and reading has stopped: %w", err))
		if err := r.pause(ctx, statusLag); err != nil {
			return err
		}
	}
}

// pause waits, and goes on reporting status meanwhile.
func (r *reader) pause(ctx context.Context, d time.Duration) error {
	done := make(chan struct{})
	t := time.AfterFunc(d, func() { close(done) })
	defer t.Stop()
	return r.await(ctx, done)
}

// deliver hands on a held transaction whose commit has come: as any other if it
// is small, else a run of changes at a time.
func (r *reader) deliver(ctx context.Context, h *held, end engine.LSN, commit time.Time) error {
	defer h.file.Close()
	d := r.dec
	relations := make([]*relation, len(h.relations))
	for i, m := range h.relations { // even if it has been applied: what they describe is not described again
		if h.gone[m.sub] {
			continue
		}
		var err error
		if relations[i], err = d.resolve(m.relationMessage); err != nil {
			return err
		}
	}
	before := d.relations
	if h.xid != 0 {
		// A stream describes the relations that it uses; what has been described
		// since, for others, stays in place after it.
		d.relations, d.last = map[uint32]*relation{}, nil
	}
	err := r.replay(ctx, h, relations, end, commit)
	d.relations, d.last = before, nil
	for i, m := range h.relations {
		if !h.gone[m.sub] && m.order > d.described[m.oid] {
			d.relations[m.oid], d.described[m.oid] = relations[i], m.order
		}
	}
	return err
}

// replay decodes a held transaction, whose relations are known by now.
func (r *reader) replay(ctx context.Context, h *held, relations []*relation, end engine.LSN, commit time.Time) error {
	d := r.dec
	if r.publish(); h.head != nil {
		d.batch = h.head
	} else {
		d.batch = r.box.fresh()
	}
	d.inTx = true
	// The first run carries every schema that any of them uses; so what is unclear by
	// now stays it.
	retry := d.retry
	defer func() { d.retry = retry }()
	d.retry = nil
	for _, rel := range slices.Concat(slices.Collect(maps.Values(d.relations)), relations) {
		if rel != nil && rel.unclear != nil && retry != nil {
			if err := retry(rel); err != nil {
				return err
			}
		}
		d.name(rel)
	}
	applied := end <= d.from
	var run *txEnd
	runs := 0 // changes in runs so far
	put := func(last bool) {
		if run == nil {
			t := d.close(0, end, commit)
			run = &t
			r.head(end.Position(), engine.TimeOf(commit))
		}
		b := d.batch
		number(b.changes, end, runs)
		runs += len(b.changes)
		b.run, b.last = run, last
		d.batch = nil
		r.box.put(b)
	}
	for records, next := h.file.Reader(), 0; ; {
		if d.batch.bytes >= batchSize && !applied {
			put(false)
			if err := r.awaitSpace(ctx); err != nil {
				return err
			}
			d.batch = r.box.fresh()
		}
		rec, err := records.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		gone, msg := h.gone[binary.BigEndian.Uint32(rec)], rec[4:]
		switch {
		case msg[0] == 'R':
			if next++; !gone {
				d.relations[h.relations[next-1].oid], d.last = relations[next-1], nil
			}
		case !gone && !applied:
			if _, err := d.decode(msg); err != nil {
				return err
			}
		}
	}
	if run == nil {
		d.commitAt(end, commit)
		return nil
	}
	d.tellMissed(end)
	put(true)
	d.inTx, d.seen = false, max(d.seen, end)
	return nil
}
