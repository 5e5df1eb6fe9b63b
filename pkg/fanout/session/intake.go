package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Intake is the reading side of a node, over all its sessions: where each log
// is, what has come of it and waits to be applied, and which session it is read
// over. Like the machines it has no clock, no socket and no goroutine: a driver
// takes what waits of each origin, applies it, apart from every other origin,
// and says how that went.
type Intake struct {
	cfg     IntakeConfig
	places  Places
	applied map[engine.LogID]bool // has a cursor in the sink
	acked   map[engine.LogID]ackedAt
	queues  map[string]*queue
	only    *Reader            // all logs are read over it
	via     map[string]*Reader // or each origin's
	// shared are the sessions over which all logs come with one cursor, and scalars
	// where each peer's shared log has been read to.
	shared  map[*Reader]bool
	scalars Scalars
	vectors Told // what each peer was told
	// own are the tables of the node's own logs, by origin, while what peers hold of
	// them is read, and since is when that began.
	own   map[string][]engine.TableName
	since time.Time
}

// IntakeConfig is what an Intake needs of its driver.
type IntakeConfig struct {
	// Perform does what a machine asks for.
	Perform func(r *Reader, acts []Action)
	// Compare orders the positions of logs that are not known.
	Compare engine.Comparator
	// Hold keeps a log whose deliveries the sink does not take where it is, and
	// tries again, while the others go on. Without it such an error is fatal, unless
	// it says that what has come is damaged: then the log is held all the same.
	Hold bool
}

type ackedAt struct {
	cursor  engine.Cursor
	durable bool
}

// queue is what waits of one origin.
type queue struct {
	waits     []*Delivery
	applier   Applier
	taken     bool // a batch is being applied
	baseline  bool // one is on its way
	held      error
	holdUntil time.Time
	holds     int
	resubmit  engine.LogID // to be subscribed to anew when the hold ends
	stopped   *Reader      // over which it is read
}

// Bounds of the time after which a log that is held is tried again.
const (
	holdFirst = 250 * time.Millisecond
	holdMax   = 15 * time.Second
)

// maxApply is how many bytes of blocks go into one commit of the sink.
const maxApply = 1 << 20

// NewIntake returns an Intake that has read nothing.
func NewIntake(cfg IntakeConfig) *Intake {
	return &Intake{
		cfg: cfg, places: Places{}, applied: map[engine.LogID]bool{}, acked: map[engine.LogID]ackedAt{},
		queues: map[string]*queue{}, via: map[string]*Reader{}, shared: map[*Reader]bool{}, scalars: Scalars{}, vectors: Told{}, own: map[string][]engine.TableName{},
	}
}

// Reset forgets all but what has been acknowledged.
func (in *Intake) Reset() {
	acked := in.acked
	*in = *NewIntake(in.cfg)
	in.acked = acked
}

// Places are what the machines of the node's sessions share.
func (in *Intake) Places() Places { return in.places }

// Scalars are where the node is in its peers' shared logs.
func (in *Intake) Scalars() Scalars { return in.scalars }

// Vectors are what the node has told its peers of its places.
func (in *Intake) Vectors() Told { return in.vectors }

// Resume says which cursor the sink has of a log. Peers are told of it if it is durable:
// one that has started again may know nothing.
func (in *Intake) Resume(c engine.Cursor, sink engine.Sink) {
	p := &Place{Position: c.Position, Time: c.Time, Known: true}
	if s, ok := sink.(engine.Covering); ok {
		p.Tables = s.Covered(c.Log)
		if behind := s.Behind(c.Log, c.Position); len(behind) > 0 {
			p.trail = engine.Trail{{From: c.Position, Behind: behind}}
		}
	}
	if s, ok := sink.(engine.Lasting); ok && s.Durable() {
		p.acked = &ackedAt{c, true}
	}
	in.places.Put(c.Log, p)
	in.applied[c.Log] = true
}

// Applied reports whether the sink has a cursor of a log.
func (in *Intake) Applied(log engine.LogID) bool { return in.applied[log] }

// Use makes one session the one that all logs are read over; nil for none.
func (in *Intake) Use(r *Reader) { in.only = r }

// Over returns the session that an origin's log is read over; nil for none.
func (in *Intake) Over(origin string) *Reader {
	if in.only != nil {
		return in.only
	}
	return in.via[origin]
}

// Assign moves an origin's log to a session, nil for none. It goes on at the
// same cursor, once the session is told to Settle.
func (in *Intake) Assign(origin string, to *Reader) {
	was := in.via[origin]
	if was == to {
		return
	}
	if was != nil {
		in.cfg.Perform(was, was.Assign(origin, false))
	}
	delete(in.via, origin)
	if to != nil {
		in.via[origin] = to
		in.cfg.Perform(to, to.Assign(origin, true))
	}
}

// TakeOver says that the node has what a log has below the floor, by way of another
// log that carries the same: it is gone on with there.
func (in *Intake) TakeOver(log engine.LogID) {
	p := in.places.Of(log)
	if p == nil {
		p = &Place{}
		in.places.Put(log, p)
	}
	p.Floor = true
}

// Forget forgets a log that the sink has forgotten: when it is read again, that is from
// its beginning, and nothing of it is acknowledged before.
func (in *Intake) Forget(log engine.LogID) {
	in.places.Drop(log)
	delete(in.applied, log)
	delete(in.acked, log)
}

// Idle reports whether nothing of an origin is read, and nothing waits.
func (in *Intake) Idle(origin string) bool {
	q := in.queues[origin]
	return in.Over(origin) == nil && (q == nil || len(q.waits) == 0)
}

// Ended says that a session is over.
func (in *Intake) Ended(r *Reader) {
	if in.only == r {
		in.only = nil
	}
	delete(in.shared, r)
	for o, have := range in.via {
		if have == r {
			delete(in.via, o)
		}
	}
}

// Add takes a delivery of a machine. fresh is true if it is the first of its
// origin.
func (in *Intake) Add(d *Delivery) (fresh bool) {
	if d.From.shared != nil {
		in.shared[d.From] = true
	}
	q := in.queues[d.Key.Log.Origin]
	if q == nil {
		q, fresh = &queue{}, true
		in.queues[d.Key.Log.Origin] = q
	}
	switch d.Kind {
	case DeliverBaseline:
		q.baseline = true
	case DeliverCommit, DeliverAbort:
		q.baseline = false
	}
	if n := len(q.waits); d.Kind == DeliverProgress && n > 0 && !q.taken {
		if last := q.waits[n-1]; last.Kind == DeliverProgress && last.Key == d.Key && last.Through == d.Prev {
			last.Through, last.Time = d.Through, d.Time
			if d.Behind != nil {
				last.Behind = d.Behind
			}
			return fresh
		}
	}
	q.waits = append(q.waits, d)
	return fresh
}

// Origins returns the origins of which something waits, or has.
func (in *Intake) Origins() []string { return slices.Sorted(maps.Keys(in.queues)) }

// Baselining reports whether a baseline is on its way, of one origin, or of any
// for "".
func (in *Intake) Baselining(origin string) bool {
	if origin != "" {
		q := in.queues[origin]
		return q != nil && q.baseline
	}
	for _, q := range in.queues {
		if q.baseline {
			return true
		}
	}
	return false
}

// Held returns why an origin's log is held, and nil if it is not.
func (in *Intake) Held(origin string) error {
	if q := in.queues[origin]; q != nil {
		return q.held
	}
	return nil
}

// Due returns when an origin that is held is to be tried again; zero if it is not
// held.
func (in *Intake) Due(origin string) time.Time {
	if q := in.queues[origin]; q != nil && q.held != nil {
		return q.holdUntil
	}
	return time.Time{}
}

// Next returns what is to be applied of an origin next: one delivery, or blocks
// of one log that follow each other; nothing while a batch is being applied.
// Apply it, and then call Done.
func (in *Intake) Next(now time.Time, origin string) []*Delivery {
	q := in.queues[origin]
	if q == nil || q.taken || q.held != nil && now.Before(q.holdUntil) {
		return nil
	}
	if log := q.resubmit; !log.IsZero() {
		q.resubmit = engine.LogID{}
		q.held = nil
		in.cfg.Perform(q.stopped, q.stopped.Retry(now, log))
		q.stopped = nil
	}
	if len(q.waits) == 0 {
		return nil
	}
	n, size := 1, q.waits[0].Size
	for n < len(q.waits) && q.waits[0].Kind == DeliverBlock && q.waits[n].Kind == DeliverBlock &&
		q.waits[n].Key == q.waits[0].Key && size < maxApply {
		size += q.waits[n].Size
		n++
	}
	q.taken = true
	return q.waits[:n:n]
}

// Applier returns what applies an origin's batches. Only one goroutine may use it.
func (in *Intake) Applier(origin string) *Applier { return &in.queues[origin].applier }

// Done says what has become of a batch that Next has returned. It returns an
// error that ends the whole intake.
func (in *Intake) Done(now time.Time, origin string, batch []*Delivery, err error) (fatal error) {
	q := in.queues[origin]
	q.taken = false
	log, kind := batch[0].Key.Log, batch[0].Kind
	if err != nil && in.holds(q, now, batch, err) {
		return nil
	}
	q.waits = q.waits[len(batch):]
	if len(q.waits) == 0 {
		q.waits = nil
	}
	in.free(batch)
	if err == nil {
		q.held, q.holds = nil, 0
		if p := batch[0].place; kind == DeliverCommit {
			p.before, p.had = nil, slices.ContainsFunc(q.waits, func(d *Delivery) bool { return d.Kind == DeliverCommit && d.place == p })
			if p.had { // there is another one, in place of this
				p.before = batch[0].Tables
			}
		}
		if kind == DeliverCommit || kind == DeliverBlock || kind == DeliverProgress {
			in.applied[log] = true
		}
		return nil
	}
	return in.failed(now, q, log, err)
}

// holds puts a log on hold, if that is what the error calls for. Blocks and
// progress stay where they are; a baseline is given up, and asked for again, and so
// are blocks that are damaged.
func (in *Intake) holds(q *queue, now time.Time, batch []*Delivery, err error) bool {
	corrupt := errors.Is(err, engine.ErrCorruptRow)
	if errors.Is(err, engine.ErrHole) || errors.Is(err, engine.ErrStaleEpoch) || errors.Is(err, engine.ErrUnknownLog) || !in.cfg.Hold && !corrupt {
		return false
	}
	log := batch[0].Key.Log
	delay := min(holdFirst<<min(q.holds, 10), holdMax)
	q.holds++
	q.held, q.holdUntil = fmt.Errorf("log %s is held at %s: %w", log, in.places.at(log, batch[0]), err), now.Add(delay)
	switch batch[0].Kind {
	case DeliverBaseline, DeliverRows, DeliverFollow, DeliverCommit, DeliverBlock:
		if batch[0].Kind == DeliverBlock && !corrupt {
			break
		}
		q.applier.Abort()
		in.clear(q, log)
		switch p := in.places.Of(log); {
		case p == nil:
		case corrupt && batch[0].Block != nil: // it is asked for again: what is damaged may be so on this way only
			p.Position, p.Time, p.Parts, p.handed = batch[0].Block.Prev, 0, 0, nil
		default:
			p.Lost, p.Parts, p.handed = cmp.Or(p.Lost, "its baseline could not be taken in"), 0, nil
			if p.had { // what it was to bring is not here, and must not be offered on
				p.Tables, p.before, p.had = p.before, nil, false
			}
		}
		q.resubmit, q.stopped = log, batch[0].From
		if r := in.Over(log.Origin); r != nil { // it may have moved since that was sent
			q.stopped = r
		}
		in.cfg.Perform(q.stopped, q.stopped.Stop(now, log))
	}
	return true
}

// at is where the sink is in the log of a delivery.
func (ps Places) at(log engine.LogID, d *Delivery) string {
	switch {
	case d.Block != nil:
		return string(d.Block.Prev)
	case d.Kind == DeliverProgress:
		return string(d.Prev)
	}
	if p := ps.Of(log); p != nil && p.Known {
		return string(p.Position)
	}
	return "its baseline"
}

// failed decides what an error of the sink means.
func (in *Intake) failed(now time.Time, q *queue, log engine.LogID, err error) (fatal error) {
	r := in.Over(log.Origin)
	var hole *engine.HoleError
	switch {
	case errors.As(err, &hole):
		q.applier.Abort()
		in.clear(q, log)
		if r != nil {
			in.cfg.Perform(r, r.Rewind(now, log, hole.Cursor, 0))
		} else if p := in.places.Of(log); p != nil {
			*p = Place{Position: hole.Cursor, Known: true, Tables: p.Tables, Buffered: p.Buffered, Compare: p.Compare, Counts: p.Counts, trail: p.trail}
		}
	case errors.Is(err, engine.ErrStaleEpoch), errors.Is(err, engine.ErrUnknownLog):
		q.applier.Abort()
		in.clear(q, log)
		in.Forget(log)
		if r != nil {
			in.cfg.Perform(r, r.Refuse(now, log, RefusedEpoch, err.Error()))
		}
	default:
		return err
	}
	return nil
}

// clear forgets what waits of a log.
func (in *Intake) clear(q *queue, log engine.LogID) {
	var gone, rest []*Delivery
	for _, d := range q.waits {
		if d.Key.Log == log {
			gone = append(gone, d)
		} else {
			rest = append(rest, d)
		}
	}
	q.waits, q.baseline = rest, false
	in.free(gone)
}

// free gives the bytes of deliveries of one log, which are no longer kept, back to
// the credit of the sessions that it is read over.
func (in *Intake) free(ds []*Delivery) {
	if len(ds) == 0 {
		return
	}
	for _, d := range ds {
		d.place.Buffered -= d.Size
	}
	log, from := ds[0].Key.Log, ds[len(ds)-1].From
	r := in.Over(log.Origin)
	if r != nil {
		in.cfg.Perform(r, r.Applied(log))
	}
	if from != r {
		in.cfg.Perform(from, from.Applied(log))
	}
}

// Close gives up the baselines that are under way.
func (in *Intake) Close() {
	for _, q := range in.queues {
		q.applier.Abort()
	}
}

// Ack notes how far the sink has got in a log, and tells the peer. An older
// cursor than the last changes nothing.
func (in *Intake) Ack(c engine.Cursor, durable bool) {
	compare := in.cfg.Compare
	if p := in.places.Of(c.Log); p != nil && p.Compare != nil {
		compare = p.Compare
	}
	if compare(c.Position, in.acked[c.Log].cursor.Position) < 0 {
		return
	}
	in.acked[c.Log] = ackedAt{c, durable}
	if p := in.places.Of(c.Log); p != nil {
		p.acked = &ackedAt{c, durable}
	}
	if r := in.Over(c.Log.Origin); r != nil {
		r.Ack(c.CursorKey, c.Position, durable)
	}
	for r := range in.shared {
		r.Ack(c.CursorKey, c.Position, durable)
	}
}

// Acked returns the newest position acknowledged in a log, or "".
func (in *Intake) Acked(log engine.LogID) engine.Position { return in.acked[log].cursor.Position }

// TellAcks tells a session's peer all that has been acknowledged.
func (in *Intake) TellAcks(r *Reader) {
	for _, a := range in.acked {
		r.Ack(a.cursor.CursorKey, a.cursor.Position, a.durable)
	}
}

var errGivenUp = errors.New("its baseline was given up before it was complete")

// Applier hands deliveries of one origin to a sink, in order.
type Applier struct {
	writer  engine.BaselineWriter
	from    *Reader // that brings the baseline
	records []engine.Record
}

// Apply applies a batch that Intake.Next has returned. compare orders the
// positions of a log that does not say how.
func (a *Applier) Apply(ctx context.Context, sink engine.Sink, compare engine.Comparator, batch []*Delivery) error {
	d := batch[0]
	switch d.Kind {
	case DeliverCarry:
		if d.Compare != nil {
			compare = d.Compare
		}
		return sink.Carry(d.Key.Log, compare, d.Path, d.Tables)
	case DeliverBaseline:
		a.Abort()
		w, err := sink.Baseline(ctx, *d.Spec)
		a.writer, a.from = w, d.From
		return err
	case DeliverRows:
		if a.writer == nil || a.from != d.From {
			return nil // given up
		}
		var err error
		if a.records, err = engine.DecodeRecords(a.records[:0], d.Table, d.Payload, d.Schemas.Schema); err != nil {
			return err
		}
		return a.writer.Rows(d.Table, a.records)
	case DeliverFollow:
		if a.writer == nil || a.from != d.From {
			return nil // given up
		}
		if err := d.Block.Index(d.Key.Log, d.Schemas.Schema); err != nil {
			return err
		}
		w, ok := a.writer.(engine.FollowingWriter)
		if !ok {
			return fmt.Errorf("log %s: a baseline that the log follows, and its writer takes none", d.Key.Log)
		}
		return w.Follow([]*engine.Block{d.Block})
	case DeliverCommit:
		w := a.writer
		if w == nil || a.from != d.From {
			return fmt.Errorf("log %s: %w", d.Key.Log, errGivenUp)
		}
		a.writer = nil
		return w.Commit(ctx)
	case DeliverAbort:
		if a.from == d.From {
			a.Abort()
		}
		return nil
	case DeliverProgress:
		if _, ok := sink.(engine.Covering); ok && d.Behind != nil {
			return sink.ApplyBlocks(ctx, d.Key, []*engine.Block{{
				Prev: d.Prev, Position: d.Through, Time: d.Time, Last: true, Ends: []engine.End{{Position: d.Through}}, Behind: d.Behind,
			}})
		}
		return sink.Progress(ctx, d.Key, d.Prev, d.Through, d.Time)
	case DeliverBlock:
		blocks := make([]*engine.Block, len(batch))
		for i, d := range batch {
			if err := d.Block.Index(d.Key.Log, d.Schemas.Schema); err != nil {
				return fmt.Errorf("the block up to %s: %w", d.Block.Position, err)
			}
			blocks[i] = d.Block
		}
		return sink.ApplyBlocks(ctx, d.Key, blocks)
	}
	return fmt.Errorf("a delivery of kind %s", d.Kind)
}

// Abort gives up the baseline that is under way, if any.
func (a *Applier) Abort() {
	if w := a.writer; w != nil {
		a.writer = nil
		w.Abort()
	}
}
