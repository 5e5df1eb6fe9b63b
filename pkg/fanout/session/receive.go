package session

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Frame takes a frame from the peer.
func (r *Reader) Frame(now time.Time, f *wirepb.Frame) []Action {
	if r.closed {
		return nil
	}
	r.heard = now
	if err := r.frame(now, f); err != nil {
		r.fail(err)
	}
	return r.take()
}

func (r *Reader) frame(now time.Time, f *wirepb.Frame) error {
	switch k := f.GetKind().(type) {
	case *wirepb.Frame_Hello:
		return r.peerHello(k.Hello)
	case *wirepb.Frame_Error:
		return r.peerError(now, k.Error)
	case nil:
		return malformed("a frame of a kind that this node (protocol version %d) does not know", Version)
	default:
		if r.peer == "" {
			return malformed("%s before Hello", kindName(f))
		}
	}
	switch k := f.GetKind().(type) {
	case *wirepb.Frame_Advert:
		return r.adverts(now, k.Advert)
	case *wirepb.Frame_Subscribed:
		return r.subscribed(k.Subscribed)
	case *wirepb.Frame_Schema:
		return r.schema(k.Schema)
	case *wirepb.Frame_SnapshotBegin:
		return r.snapshotBegin(k.SnapshotBegin)
	case *wirepb.Frame_SnapshotRows:
		return r.snapshotRows(k.SnapshotRows)
	case *wirepb.Frame_SnapshotEnd:
		return r.snapshotEnd(k.SnapshotEnd)
	case *wirepb.Frame_Batch:
		return r.batch(now, k.Batch)
	case *wirepb.Frame_Progress:
		return r.progress(now, k.Progress)
	case *wirepb.Frame_Head:
		log := wire.Log(k.Head.GetLog())
		if o := r.offers[log]; o != nil && o.Wanted() {
			o.Head, o.Time = engine.Position(k.Head.GetHead().GetPosition()), engine.Time(k.Head.GetHead().GetTime())
			r.out = append(r.out, Action{Head: &Head{log, o.Head, o.Time}})
		}
	case *wirepb.Frame_Gap:
		return r.gap(now, k.Gap)
	case *wirepb.Frame_Reset_:
		return r.reset(k.Reset_)
	case *wirepb.Frame_GoAway:
		r.out = append(r.out, Action{GoAway: &GoAway{k.GoAway.GetMessage(), time.Duration(k.GoAway.GetDeadlineMs()) * time.Millisecond}})
	default:
		return malformed("%s is not a frame that a writer sends", kindName(f))
	}
	return nil
}

func (r *Reader) peerHello(h *wirepb.Hello) error {
	if r.peer != "" {
		return malformed("a second Hello from node %s", r.peer)
	}
	if err := negotiate(r.cfg.NodeID, h); err != nil {
		return err
	}
	r.peer = h.GetNodeId()
	if r.active {
		r.tellHeld()
	}
	return nil
}

func (r *Reader) peerError(now time.Time, e *wirepb.Error) error {
	if e.Channel == nil {
		return &Error{Code: e.GetCode(), Message: e.GetMessage(), Remote: true, RetryAfter: time.Duration(e.GetRetryAfterMs()) * time.Millisecond}
	}
	c, err := r.channel(e.GetChannel(), "Error")
	if c == nil {
		return err
	}
	code := RefusedPeer
	if e.GetCode() == wirepb.ErrorCode_ERROR_CODE_LOOP {
		code = RefusedLoop
	}
	wait := max(retryAfter, time.Duration(e.GetRetryAfterMs())*time.Millisecond)
	c.offer.retry = now.Add(wait)
	c.offer.Refused = &Refusal{c.log, c.offer.Path, code, e.GetMessage()}
	r.drop(c)
	r.out = append(r.out, Action{Offers: true})
	return nil
}

// channel returns an open channel; nil without an error for one that has been
// closed here while the frame was on its way.
func (r *Reader) channel(id uint32, what string) (*incoming, error) {
	if id == 0 || id > r.last {
		return nil, malformed("%s for channel %d, which was never opened", what, id)
	}
	return r.channels[id], nil
}

// in is channel for a frame that is only allowed in a state.
func (r *Reader) in(id uint32, state incomingState, what string) (*incoming, error) {
	c, err := r.channel(id, what)
	if c == nil || err != nil {
		return nil, err
	}
	if c.state != state {
		return nil, malformed("%s on channel %d (log %s) where it is not expected", what, id, c.log)
	}
	return c, nil
}

func (r *Reader) adverts(now time.Time, a *wirepb.Advert) error {
	r.advert = append(r.advert, a)
	if a.GetMore() {
		if len(r.advert) > maxRun {
			return malformed("an advert of more than %d frames", maxRun)
		}
		return nil
	}
	run := r.advert
	r.advert = nil
	if r.complete && len(run) == 1 && len(a.GetLogs()) == 0 && len(a.GetWithdrawn()) == 0 {
		return nil // only says that the peer lives
	}
	seen := map[engine.LogID]*Offer{}
	for _, a := range run {
		for _, l := range a.GetLogs() {
			if err := r.offered(seen, l); err != nil {
				return err
			}
		}
	}
	for _, a := range run {
		for _, l := range a.GetWithdrawn() {
			if log := wire.Log(l); seen[log] == nil {
				delete(r.offers, log)
			}
		}
	}
	tables := 0
	for _, o := range r.offers {
		tables += len(o.Tables) + 1
	}
	if tables > maxTables {
		return malformed("adverts with more than %d tables", maxTables)
	}
	r.complete = true
	r.consider(now)
	for _, o := range r.Offers() { // a new path, or other tables, of a log that is being read
		if c := r.channels[o.channel]; c != nil && seen[o.Log] != nil && c.state != inSubscribed {
			r.carry(c)
		}
	}
	r.out = append(r.out, Action{Offers: true})
	return nil
}

func (r *Reader) offered(seen map[engine.LogID]*Offer, l *wirepb.LogAdvert) error {
	log := wire.Log(l.GetLog())
	if log.Origin == "" || log.Epoch == 0 {
		return malformed("an advert names no log")
	}
	if len(l.GetPath()) == 0 || l.GetPath()[0] != r.peer {
		return malformed("the advert of log %s has path %q, which does not start at node %s", log, l.GetPath(), r.peer)
	}
	o := seen[log]
	if o == nil {
		o = &Offer{Log: log, Path: l.GetPath(), Schemas: map[engine.TableName]*engine.Schema{}, Oldest: engine.Position(l.GetOldest()), Since: engine.Time(l.GetCompleteSince()), Head: engine.Position(l.GetHead().GetPosition()), Time: engine.Time(l.GetHead().GetTime())}
		if old := r.offers[log]; old != nil {
			o.channel, o.retry, o.Refused = old.channel, old.retry, old.Refused
			if c := r.channels[o.channel]; c != nil {
				c.offer = o
			}
		}
		seen[log], r.offers[log] = o, o
	}
	if l.GetScope() != nil {
		var err error
		if o.Scope, err = wire.Scope(l.GetScope()); err != nil {
			return malformed("the advert of log %s: %v", log, err)
		}
	}
	o.Tables = append(o.Tables, wire.Tables(l.GetTables())...)
	for _, m := range l.GetSchemas() {
		of, s, err := wire.Schema(m)
		if err != nil {
			return malformed("advert: %v", err)
		}
		if of != log {
			return malformed("the advert of log %s has a schema of log %s", log, of)
		}
		o.Schemas[s.Table] = s
	}
	return nil
}

func (r *Reader) subscribed(m *wirepb.Subscribed) error {
	c, err := r.channel(m.GetChannel(), "Subscribed")
	if c == nil {
		return err
	}
	if log := wire.Log(m.GetLog()); log != c.log {
		return malformed("Subscribed on channel %d for log %s, which was opened for log %s", c.id, log, c.log)
	}
	for _, s := range m.GetSchemas() {
		if err := r.addSchema(c, s); err != nil {
			return err
		}
	}
	r.abort(c)
	mode := m.GetMode()
	switch mode {
	case wirepb.Mode_MODE_SNAPSHOT:
		if r.cfg.NoSnapshot {
			return malformed("a snapshot on channel %d, which does not allow it", c.id)
		}
		c.state, c.delta = inSnapshot, false
		return nil
	case wirepb.Mode_MODE_LIVE, wirepb.Mode_MODE_DELTA, wirepb.Mode_MODE_STATE_DELTA:
	default:
		return malformed("channel %d is to be caught up by %s, which was not asked for", c.id, mode)
	}
	start := engine.Position(m.GetStart().GetPosition())
	if !c.place.Known || c.place.Lost != "" || start != c.place.Position {
		return malformed("channel %d starts at %q, and the reader of log %s is at %q", c.id, start, c.log, c.place.Position)
	}
	if mode == wirepb.Mode_MODE_STATE_DELTA {
		c.state, c.delta = inSnapshot, true
		return nil
	}
	c.state, c.place.Tables, c.place.Gap = inStream, c.tables, ""
	return nil
}

func (r *Reader) schema(m *wirepb.Schema) error {
	c, err := r.channel(m.GetChannel(), "Schema")
	if c == nil {
		return err
	}
	return r.addSchema(c, m)
}

// maxSchemas bounds the schemas of one channel.
const maxSchemas = 1 << 16

func (r *Reader) addSchema(c *incoming, m *wirepb.Schema) error {
	log, s, err := wire.Schema(m)
	if err != nil {
		return malformed("channel %d: %v", c.id, err)
	}
	if c.schemas.count() >= maxSchemas {
		return malformed("channel %d has more than %d schemas", c.id, maxSchemas)
	}
	if c.schemas.add(log, s) && log == c.log && !c.place.handed[s.ID] {
		c.fresh = append(c.fresh, s)
	}
	return nil
}

// hand notes that the channel's fresh schemas go out with a delivery.
func (c *incoming) hand() []*engine.Schema {
	f := c.fresh
	c.fresh = nil
	if c.place.handed == nil {
		c.place.handed = map[uint32]bool{}
	}
	for _, s := range f {
		c.place.handed[s.ID] = true
	}
	return f
}

func (r *Reader) snapshotBegin(m *wirepb.SnapshotBegin) error {
	c, err := r.in(m.GetChannel(), inSnapshot, "SnapshotBegin")
	if c == nil {
		return err
	}
	spec := &engine.BaselineSpec{
		Log: c.log, Scope: r.key(c.log).Scope, Others: c.schemas.byLog(), Reason: c.cause,
		At: engine.Position(m.GetAt().GetPosition()), Time: engine.Time(m.GetAt().GetTime()), Major: m.GetMajor(),
		Delta: c.delta, CompleteFrom: engine.Time(m.GetCompleteSince()), Truncates: map[engine.TableName][]engine.Stamp{},
	}
	if c.delta && r.cfg.Compare(spec.At, c.place.Position) < 0 {
		return malformed("SnapshotBegin on channel %d at %s, and the reader of log %s is at %s", c.id, spec.At, c.log, c.place.Position)
	}
	spec.Schemas = spec.Others[c.log]
	delete(spec.Others, c.log)
	slices.SortFunc(spec.Schemas, func(a, b *engine.Schema) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range m.GetTables() {
		if name := wire.Table(t.GetTable()); slices.Contains(spec.Tables, name) {
			return malformed("SnapshotBegin on channel %d names table %s twice", c.id, name)
		} else {
			spec.Tables = append(spec.Tables, name)
			for _, s := range t.GetTruncates() {
				spec.Truncates[name] = append(spec.Truncates[name], wire.Stamp(s))
			}
		}
	}
	c.state, c.spec, c.rows, c.tables = inRows, spec, 0, spec.Tables
	c.place.handed = nil
	c.fresh = append(c.fresh, spec.Schemas...)
	c.hand()
	r.deliver(c, &Delivery{Kind: DeliverBaseline, Spec: spec})
	return nil
}

// receive takes a payload's bytes from the credit that the peer has.
func (r *Reader) receive(c *incoming, n int) (int64, error) {
	if n > r.cfg.Limits.MaxFrame {
		return 0, &Error{Code: wirepb.ErrorCode_ERROR_CODE_LIMIT, Message: fmt.Sprintf("a frame of %d bytes on channel %d; at most %d are taken", n, c.id, r.cfg.Limits.MaxFrame)}
	}
	if c.left <= 0 {
		return 0, malformed("%d bytes on channel %d, which has no credit", n, c.id)
	}
	c.left -= int64(n)
	return int64(n), nil
}

func (r *Reader) snapshotRows(m *wirepb.SnapshotRows) error {
	c, err := r.in(m.GetChannel(), inRows, "SnapshotRows")
	if c == nil {
		return err
	}
	if int(m.GetTable()) >= len(c.spec.Tables) {
		return malformed("SnapshotRows of table number %d on channel %d, which has %d", m.GetTable(), c.id, len(c.spec.Tables))
	}
	n, err := r.receive(c, len(m.GetPayload()))
	if err != nil {
		return err
	}
	c.rows += uint64(m.GetRecords())
	r.deliver(c, &Delivery{Kind: DeliverRows, Table: c.spec.Tables[m.GetTable()], Payload: m.GetPayload(), Size: n})
	return nil
}

func (r *Reader) snapshotEnd(m *wirepb.SnapshotEnd) error {
	c, err := r.in(m.GetChannel(), inRows, "SnapshotEnd")
	if c == nil {
		return err
	}
	i := slices.IndexFunc(m.GetCursors(), func(lc *wirepb.LogCursor) bool { return wire.Log(lc.GetLog()) == c.log })
	if i < 0 || engine.Position(m.GetCursors()[i].GetCursor().GetPosition()) != c.spec.At {
		return malformed("SnapshotEnd on channel %d does not cover %s at %s, where it began", c.id, c.log, c.spec.At)
	}
	if m.GetRecords() != c.rows {
		return malformed("SnapshotEnd on channel %d after %d records; the writer sent %d", c.id, c.rows, m.GetRecords())
	}
	r.deliver(c, &Delivery{Kind: DeliverCommit})
	p := c.place
	p.Position, p.Time, p.Known, p.Parts, p.Lost, p.Gap, p.Tables = c.spec.At, max(p.Time, c.spec.Time), true, 0, "", "", c.spec.Tables
	c.state, c.spec, c.cause = inStream, nil, ""
	for log := range r.places {
		if log.Origin == c.log.Origin && log.Epoch < c.log.Epoch {
			delete(r.places, log)
		}
	}
	return nil
}

func (r *Reader) batch(now time.Time, m *wirepb.Batch) error {
	c, err := r.in(m.GetChannel(), inStream, "Batch")
	if c == nil {
		return err
	}
	if m.GetCodec() != wirepb.Codec_CODEC_UNSPECIFIED {
		return malformed("Batch on channel %d is packed with codec %d, which was not agreed", c.id, m.GetCodec())
	}
	b, p := wire.Block(m), c.place
	n, err := r.receive(c, len(b.Payload))
	if err != nil {
		return err
	}
	if b.Position == "" || r.cfg.Compare(b.Prev, b.Position) >= 0 {
		return malformed("Batch on channel %d goes from %q to %q", c.id, b.Prev, b.Position)
	}
	switch ahead := r.cfg.Compare(b.Prev, p.Position); {
	case r.cfg.Compare(b.Position, p.Position) <= 0, ahead == 0 && b.Part < p.Parts:
		c.left += n // a repetition: the bytes are free again
		r.send(&wirepb.Credit{Channel: c.id, Bytes: uint64(n)})
		return nil
	case ahead > 0, ahead == 0 && b.Part > p.Parts, ahead < 0 && (b.Part > 0 || !b.Last):
		return r.hole(now, c, b.Prev, b.Part)
	case ahead < 0:
		if err := b.Index(c.log, c.schemas.Schema); err != nil {
			return err
		}
		rest, ok := b.After(p.Position, r.cfg.Compare)
		if !ok || rest.Prev != p.Position {
			return malformed("Batch on channel %d from %q to %q lies across %q", c.id, b.Prev, b.Position, p.Position)
		}
		b = rest
	}
	c.holes = 0
	b.Schemas = c.hand()
	if b.Last {
		p.Position, p.Time, p.Parts = b.Position, b.Time, 0
	} else {
		p.Parts = b.Part + 1
	}
	r.deliver(c, &Delivery{Kind: DeliverBlock, Block: b, Size: n})
	return nil
}

func (r *Reader) progress(now time.Time, m *wirepb.Progress) error {
	c, err := r.in(m.GetChannel(), inStream, "Progress")
	if c == nil {
		return err
	}
	p, prev, through := c.place, engine.Position(m.GetPrev()), engine.Position(m.GetThrough())
	switch {
	case r.cfg.Compare(prev, through) >= 0:
		return malformed("Progress on channel %d goes from %q to %q", c.id, prev, through)
	case r.cfg.Compare(through, p.Position) <= 0:
		return nil
	case r.cfg.Compare(prev, p.Position) > 0, p.Parts > 0:
		return r.hole(now, c, prev, 0)
	}
	c.holes = 0
	r.deliver(c, &Delivery{Kind: DeliverProgress, Prev: p.Position, Through: through, Time: engine.Time(m.GetTime())})
	p.Position, p.Time = through, engine.Time(m.GetTime())
	return nil
}

// hole holds the log and asks for it again from where the reader is. A writer
// that does not fill it is given up.
func (r *Reader) hole(now time.Time, c *incoming, prev engine.Position, part uint32) error {
	holes := c.holes + 1
	if holes > maxHoles {
		return malformed("log %s: the reader is at %s (part %d), and for the %dth time the next frame follows %s (part %d)", c.log, c.place.Position, c.place.Parts, holes, prev, part)
	}
	o := c.offer
	r.send(&wirepb.Unsubscribe{Channel: c.id})
	r.drop(c)
	o.retry = time.Time{}
	r.consider(now)
	if again := r.channels[o.channel]; again != nil {
		again.holes = holes
	}
	return nil
}

func (r *Reader) gap(now time.Time, m *wirepb.Gap) error {
	c, err := r.channel(m.GetChannel(), "Gap")
	if c == nil {
		return err
	}
	c.place.Gap, c.place.Parts = m.GetMessage(), 0 // the writer may help from its state, without a snapshot
	o := c.offer
	r.drop(c)
	if r.cfg.NoSnapshot {
		o.Refused, o.retry = &Refusal{o.Log, o.Path, RefusedPeer, m.GetMessage()}, now.Add(5*retryAfter)
	}
	r.out = append(r.out, Action{Offers: true})
	r.consider(now)
	return nil
}

func (r *Reader) reset(m *wirepb.Reset) error {
	c, err := r.channel(m.GetChannel(), "Reset")
	if c == nil {
		return err
	}
	log, epoch := wire.Log(m.GetLog()), engine.Epoch(m.GetEpoch())
	if log != c.log || epoch <= log.Epoch {
		return malformed("Reset on channel %d of log %s to epoch %d, where log %s is read", c.id, log, epoch, c.log)
	}
	log.Epoch = epoch
	o := r.offers[log]
	if o == nil {
		return malformed("Reset on channel %d to log %s, which was never advertised", c.id, log)
	}
	r.abort(c)
	if c.offer.channel == c.id {
		c.offer.channel = 0
	}
	if !o.Wanted() {
		r.send(&wirepb.Unsubscribe{Channel: c.id})
		delete(r.channels, c.id)
		return nil
	}
	cause := fmt.Sprintf("epoch %d of %s has ended, and epoch %d begun", c.log.Epoch, log.Origin, epoch)
	p := r.places[log]
	if p == nil {
		p = &Place{}
		r.places[log] = p
	}
	p.Lost = cause
	c.log, c.offer, c.place, c.state, c.fresh, c.ack, c.cause = log, o, p, inSubscribed, nil, nil, cause
	c.tables = r.wantedOf(o)
	o.channel = c.id
	r.carry(c)
	return nil
}
