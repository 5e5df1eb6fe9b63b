package session

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// sharing is the reading of a peer's shared log: one channel and one cursor for all
// of its logs. The entries say which log they are of, and where in it, so that
// the reader's place in each log advances beside the cursor, and neither is ever
// made of the other. A log of which nothing is held is copied first, on a channel
// of its own; the shared log waits until then.
type sharing struct {
	id    uint32 // of the channel; 0 for none
	left  int64  // credit that the peer has
	whole bool   // the channel began with all that is held
	logs  map[engine.LogID]*incoming
	// schemas are those that have come, also of logs that are not taken from here: each
	// comes once, and its log may be taken from here later.
	schemas *Schemas
	retry   time.Time
}

// Scalar is where a node is in a peer's shared log. It outlives sessions, as a Place
// does.
type Scalar struct {
	at *wirepb.SharedCursor // nil: all that the peer holds is asked for
	// skipped are logs of which something was passed over before the cursor: here, where
	// they are read elsewhere, held, or not read at all for now; or by the peer, where
	// its path leads through this node.
	skipped map[engine.LogID]bool
}

// Scalars are where a node is in its peers' shared logs.
type Scalars map[string]*Scalar

// of returns where the node is in a peer's.
func (ss Scalars) of(peer string) *Scalar {
	s := ss[peer]
	if s == nil {
		s = &Scalar{skipped: map[engine.LogID]bool{}}
		ss[peer] = s
	}
	return s
}

func newSharing() *sharing {
	return &sharing{logs: map[engine.LogID]*incoming{}, schemas: newSchemas()}
}

// is reports whether a channel is that of the shared log.
func (s *sharing) is(channel uint32) bool { return s != nil && s.id != 0 && s.id == channel }

// drop forgets the channel; it is opened again after a time.
func (s *sharing) drop(retry time.Time) {
	s.id, s.retry, s.schemas = 0, retry, newSchemas()
	clear(s.logs)
}

// Shared reports whether the pair has one cursor for all logs.
func (r *Reader) Shared() bool { return r.shared != nil }

// Offering reports whether the peer offers an origin's log.
func (r *Reader) Offering(origin string) bool {
	for _, o := range r.offersOf(origin) {
		if o.Wanted() {
			return true
		}
	}
	return false
}

// considerShared copies what has to be copied, and opens the shared log when that
// is done.
func (r *Reader) considerShared(now time.Time) {
	s, at := r.shared, r.cfg.Scalars.of(r.peer)
	waits := false
	for _, o := range r.Offers() {
		tables := r.wantedOf(o)
		o.skip = len(tables) == 0 && r.cfg.Scope != nil
		refused := r.judge(o)
		if refused == nil && now.Before(o.retry) {
			refused = o.Refused
		}
		if o.Refused = refused; o.leftOut() {
			at.skipped[o.Log] = true
		}
		p := r.places.Of(o.Log)
		c := r.channels[o.channel]
		ours := o.Wanted() && !o.stopped && !r.elsewhere(o.Log.Origin)
		if ours && p != nil && p.Known && p.Lost == "" && o.Compare(p.Position, o.Oldest) < 0 {
			p.Lost = fmt.Sprintf("node %s holds log %s from %s only, and the reader is at %s", r.peer, o.Log, o.Oldest, p.Position)
		}
		if ours && p != nil && p.Known && p.Lost == "" {
			p.Compare = o.Compare
			if behind, known := p.trail.Of(tables, p.Position, p.Compare); len(behind) > 0 || !known {
				p.Lost = fmt.Sprintf("tables of log %s have not come up to its position %s, and node %s does not say whether it brings them", o.Log, p.Position, r.peer)
			}
		}
		needed := ours && (p == nil || !p.Known || p.Lost != "")
		if ours && !needed && at.skipped[o.Log] { // what was passed over is wanted now, if it has not come since
			delete(at.skipped, o.Log)
			if o.Compare(p.Position, o.Head) < 0 {
				r.askAll()
			}
		}
		switch {
		case !r.active:
		case !needed && c != nil:
			r.send(&wirepb.Unsubscribe{Channel: c.id})
			r.drop(c)
		case needed && c == nil && !now.Before(o.retry):
			r.subscribe(o, tables)
		}
		waits = waits || needed && o.channel != 0
	}
	maps.DeleteFunc(at.skipped, func(log engine.LogID, _ bool) bool { // of no log that is read, or may be
		return r.places.Of(log) == nil && !r.offers[log].leftOut()
	})
	switch {
	case !r.active:
	case waits && s.id != 0:
		r.send(&wirepb.Unsubscribe{Channel: s.id})
		s.drop(time.Time{})
	case !waits && s.id == 0 && r.complete && !now.Before(s.retry):
		r.openShared()
	}
}

// leftOut reports whether the peer passes a log over, since it has come by way of this
// node.
func (o *Offer) leftOut() bool { return o != nil && o.Refused != nil && o.Refused.Code == RefusedLoop }

// askAll gives up the channel and the cursor, so that all that the peer holds is asked
// for.
func (r *Reader) askAll() {
	r.cfg.Scalars.of(r.peer).at = nil
	if s := r.shared; s.id != 0 {
		r.send(&wirepb.Unsubscribe{Channel: s.id})
		s.drop(time.Time{})
	}
}

// skip notes that something of a log was passed over.
func (r *Reader) skip(log engine.LogID) { r.cfg.Scalars.of(r.peer).skipped[log] = true }

// heard notes that the peer has a log up to a position.
func (o *Offer) heard(at engine.Position) {
	if o != nil && o.Compare(at, o.Head) > 0 {
		o.Head = at
	}
}

func (r *Reader) elsewhere(origin string) bool {
	return r.cfg.Elsewhere != nil && r.cfg.Elsewhere(origin)
}

// openShared opens the channel at the cursor, or, with none, with all that the peer
// holds.
func (r *Reader) openShared() {
	s, from := r.shared, r.cfg.Scalars.of(r.peer)
	at := from.at
	r.last++
	s.id, s.whole, s.left = r.last, at == nil, r.limit
	if s.whole {
		maps.DeleteFunc(from.skipped, func(log engine.LogID, _ bool) bool {
			return r.offers[log] != nil && !r.offers[log].leftOut()
		})
	}
	for _, p := range r.places.All() {
		s.left -= p.Buffered
	}
	s.left = max(s.left, 0)
	m := &wirepb.Subscribe{Channel: s.id, Credit: uint64(s.left), Upward: r.upward(), Reader: r.cfg.Name, HeartbeatMs: r.heartbeatMs()}
	if at != nil {
		m.From = &wirepb.Subscribe_Shared{Shared: at}
	} else {
		m.From = &wirepb.Subscribe_Floor{Floor: &wirepb.Floor{}}
	}
	r.send(m)
}

// copied ends the channel on which a log was copied.
func (r *Reader) copied(c *incoming) {
	if r.shared == nil {
		return
	}
	r.send(&wirepb.Unsubscribe{Channel: c.id})
	r.drop(c)
	delete(r.cfg.Scalars.of(r.peer).skipped, c.log)
	r.considerShared(r.heard)
}

// sharedSchema takes in a schema of the shared log's channel.
func (r *Reader) sharedSchema(m *wirepb.Schema) error {
	s := r.shared
	log, sc, err := wire.Schema(m)
	switch {
	case err != nil:
		return malformed("channel %d: %v", s.id, err)
	case s.schemas.count() >= maxSchemas:
		return malformed("channel %d has more than %d schemas", s.id, maxSchemas)
	}
	if c := s.logs[log]; s.schemas.add(log, sc) && c != nil && !c.place.handed[sc.ID] {
		c.fresh = append(c.fresh, sc)
	}
	return nil
}

// part returns what is known of a log that is read in the shared one; nil for one
// that is not.
func (r *Reader) part(log engine.LogID) *incoming {
	s, o, p := r.shared, r.offers[log], r.places.Of(log)
	if o == nil || !o.Wanted() || o.stopped || p == nil || !p.Known || p.Lost != "" {
		return nil
	}
	c := s.logs[log]
	if c == nil {
		c = &incoming{id: s.id, log: log, state: inStream, schemas: s.schemas}
		for _, sc := range s.schemas.byLog()[log] {
			if !p.handed[sc.ID] {
				c.fresh = append(c.fresh, sc)
			}
		}
		slices.SortFunc(c.fresh, func(a, b *engine.Schema) int { return cmp.Compare(a.ID, b.ID) })
		s.logs[log] = c
	}
	if p.Compare == nil {
		p.Compare = o.Compare
	}
	if c.offer != o || c.place != p {
		c.offer, c.place, c.tables = o, p, r.wantedOf(o)
		if !r.elsewhere(log.Origin) {
			r.carry(c)
		}
	}
	return c
}

func (r *Reader) sharedBatch(now time.Time, m *wirepb.Batch) error {
	s := r.shared
	b, err := unpack(s.id, m)
	if err != nil {
		return err
	}
	n := int64(len(b.Payload))
	switch {
	case n > int64(r.cfg.Limits.MaxFrame):
		return &Error{Code: wirepb.ErrorCode_ERROR_CODE_LIMIT, Message: fmt.Sprintf("a frame of %d bytes on channel %d; at most %d are taken", n, s.id, r.cfg.Limits.MaxFrame)}
	case s.left <= 0:
		return malformed("%d bytes on channel %d, which has no credit", n, s.id)
	}
	s.left -= n
	what := blockRepeated
	log := wire.Log(m.GetLog())
	r.offers[log].heard(b.Position)
	if c := r.part(log); c == nil {
		r.skip(log)
	} else {
		if what, err = r.block(c, b, n); err != nil {
			return err
		}
		if what == blockHole && !r.elsewhere(c.log.Origin) {
			return r.sharedHole(now, c)
		}
		if what == blockHole {
			r.skip(log)
		}
	}
	if what != blockNext {
		s.left += n
		r.send(&wirepb.Credit{Channel: s.id, Bytes: uint64(n)})
	}
	r.reached(m.GetShared())
	return nil
}

func (r *Reader) sharedProgress(now time.Time, m *wirepb.Progress) error {
	log := wire.Log(m.GetLog())
	r.offers[log].heard(engine.Position(m.GetThrough()))
	if c := r.part(log); c == nil {
		r.skip(log)
	} else {
		what, err := r.passed(c, m)
		if err != nil {
			return err
		}
		if what == blockHole && !r.elsewhere(c.log.Origin) {
			return r.sharedHole(now, c)
		}
		if what == blockHole {
			r.skip(log)
		}
	}
	r.reached(m.GetShared())
	return nil
}

// reached notes how far the shared log has been read.
func (r *Reader) reached(at *wirepb.SharedCursor) {
	if at != nil {
		r.cfg.Scalars.of(r.peer).at = at
	}
}

// sharedHole: a log has a hole in the shared log. All that the peer holds is asked
// for once; what is not there either has to be copied.
func (r *Reader) sharedHole(now time.Time, c *incoming) error {
	c.place.Counts.Holes++
	if r.shared.whole && !r.cfg.Scalars.of(r.peer).skipped[c.log] {
		c.place.Lost = fmt.Sprintf("node %s no longer holds position %s of log %s", r.peer, c.place.Position, c.log)
	}
	c.place.Parts = 0
	r.askAll()
	r.considerShared(now)
	return nil
}

// grantShared lets the peer send what there is room for, unless that is little.
func (r *Reader) grantShared() {
	s := r.shared
	if s == nil || s.id == 0 || r.closed {
		return
	}
	room := r.limit - s.left
	for log, c := range s.logs {
		if r.places.Of(log) == c.place {
			room -= c.place.Buffered
		}
	}
	if room <= 0 || room < r.limit/4 {
		return
	}
	s.left += room
	r.send(&wirepb.Credit{Channel: s.id, Bytes: uint64(room)})
}

// ackShared notes how far a log has been applied that is read in the shared one.
func (r *Reader) ackShared(key engine.CursorKey, at engine.Position, durable bool) {
	if r.shared == nil {
		return
	}
	if c := r.shared.logs[key.Log]; c != nil {
		c.ack = &wirepb.Ack{Channel: r.shared.id, Log: wire.FromLog(key.Log), Position: string(at), Durable: durable}
	}
}

// tickShared sends what has been noted.
func (r *Reader) tickShared() {
	if r.shared == nil {
		return
	}
	for _, log := range slices.SortedFunc(maps.Keys(r.shared.logs), compareLogs) {
		if c := r.shared.logs[log]; c.ack != nil {
			r.send(c.ack)
			c.ack = nil
		}
	}
}
