package session

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// maxAhead is how far ahead of this node's clock an epoch may be.
const maxAhead = 366 * 24 * time.Hour

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
	case *wirepb.Frame_SnapshotMarks:
		return r.snapshotMarks(k.SnapshotMarks)
	case *wirepb.Frame_Behind:
		return r.behindNext(k.Behind)
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
			o.Oldest = engine.Position(k.Head.GetOldest())
			r.out = append(r.out, Action{Head: &Head{log, wire.Head(k.Head.GetSource())}})
		}
	case *wirepb.Frame_Stable:
		return r.stable(k.Stable)
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
		if r.cfg.Called && h.GetNodeId() == r.peer {
			return nil // the peer's other half says what it holds of this node
		}
		return malformed("a second Hello from node %s", r.peer)
	}
	if err := negotiate(r.cfg.NodeID, h); err != nil {
		return err
	}
	r.peer = h.GetNodeId()
	if r.cfg.Basic || !slices.Contains(h.GetCapabilities(), CapOriginCursors) {
		if r.cfg.Scope != nil {
			return &Error{Code: wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, Message: fmt.Sprintf(
				"nodes %s and %s keep one cursor for all logs between them, and what is read is narrowed to tables: take all, or give both the capability %s", r.cfg.NodeID, h.GetNodeId(), CapOriginCursors)}
		}
		r.shared = newSharing()
	}
	r.floors = r.shared == nil && slices.Contains(h.GetCapabilities(), CapFloors)
	r.alone = r.shared == nil && slices.Contains(h.GetCapabilities(), CapFreshTables)
	r.behind = r.shared == nil && slices.Contains(h.GetCapabilities(), CapBehind)
	r.vectors = r.shared == nil && slices.Contains(h.GetCapabilities(), CapVector)
	r.duplex = r.cfg.Duplex && slices.Contains(h.GetCapabilities(), CapDuplex)
	if held := h.GetHeld(); held.GetNodeId() == r.cfg.NodeID && held.GetEpoch() != 0 {
		r.out = append(r.out, Action{Witness: &Witness{r.peer, engine.Epoch(held.GetEpoch()), engine.Time(held.GetTime())}})
	}
	if r.active {
		r.tellHeld()
	}
	return nil
}

func (r *Reader) peerError(now time.Time, e *wirepb.Error) error {
	if e.Channel == nil {
		return &Error{Code: e.GetCode(), Message: e.GetMessage(), Remote: true, RetryAfter: time.Duration(e.GetRetryAfterMs()) * time.Millisecond}
	}
	if r.shared.is(e.GetChannel()) {
		r.shared.drop(now.Add(max(retryAfter, time.Duration(e.GetRetryAfterMs())*time.Millisecond)))
		return nil
	}
	if e.GetCode() == wirepb.ErrorCode_ERROR_CODE_UNKNOWN_BASE && r.unknownBase(e.GetChannel()) {
		r.consider(now)
		return nil
	}
	c, err := r.channel(e.GetChannel(), "Error")
	if c == nil {
		return err
	}
	code := RefusedPeer
	if e.GetCode() == wirepb.ErrorCode_ERROR_CODE_LOOP {
		code = RefusedLoop
	}
	if c.floor && e.GetCode() == wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED {
		c.place.Floor = false // what there is helps on
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
				r.sorted = nil
				if r.shared != nil {
					r.skip(log)
				}
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
	if origin := l.GetPath()[len(l.GetPath())-1]; !strings.HasPrefix(log.Origin, origin+"#") {
		return malformed("the advert of log %s has path %q, which does not end at the log's origin", log, l.GetPath())
	}
	if engine.Time(log.Epoch).Wall().Sub(r.heard) > maxAhead && r.heard.Year() > 2000 {
		return malformed("the advert of log %s is of an epoch that is more than a year ahead", log)
	}
	o := seen[log]
	if o == nil {
		o = &Offer{Log: log, Path: l.GetPath(), Schemas: map[engine.TableName]*engine.Schema{}, Oldest: engine.Position(l.GetOldest()), Since: engine.Time(l.GetCompleteSince()), Head: engine.Position(l.GetHead().GetPosition()), Time: engine.Time(l.GetHead().GetTime())}
		if o.Compare = engine.Comparators[l.GetOrder()]; o.Compare == nil {
			o.Compare = r.cfg.Compare
		}
		if old := r.offers[log]; old != nil {
			o.channel, o.retry, o.Refused = old.channel, old.retry, old.Refused
			if c := r.channels[o.channel]; c != nil {
				c.offer = o
			}
		}
		seen[log], r.offers[log], r.sorted = o, o, nil
	}
	if l.GetScope() != nil {
		var err error
		if o.Scope, err = wire.Scope(l.GetScope()); err != nil {
			return malformed("the advert of log %s: %v", log, err)
		}
	}
	o.Tables = append(o.Tables, wire.Tables(l.GetTables())...)
	for _, m := range l.GetSchemas() {
		m, err := r.shaped(o, m)
		if err != nil {
			return err
		}
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

// maxShapes bounds what a peer can make a reader remember of them.
const maxShapes = 1 << 12

// shaped returns a schema of an advert with what others had of it before.
func (r *Reader) shaped(o *Offer, m *wirepb.Schema) (*wirepb.Schema, error) {
	n := m.GetShape()
	if n == 0 {
		return m, nil
	}
	if m.GetTable() == nil {
		of := r.shapes[n]
		if of == nil {
			return nil, malformed("the advert of log %s has a schema of shape %d, which has not come", o.Log, n)
		}
		m.Table, m.Columns = of.GetTable(), of.GetColumns()
	} else if len(r.shapes) >= maxShapes {
		return nil, malformed("adverts of more than %d shapes", maxShapes)
	} else {
		if r.shapes == nil {
			r.shapes = map[uint32]*wirepb.Schema{}
		}
		r.shapes[n] = &wirepb.Schema{Table: m.GetTable(), Columns: m.GetColumns()}
	}
	m.Log = wire.FromLog(o.Log)
	o.Tables = append(o.Tables, wire.Table(m.GetTable()))
	return m, nil
}

func (r *Reader) subscribed(m *wirepb.Subscribed) error {
	if r.shared.is(m.GetChannel()) {
		return nil
	}
	c, err := r.channel(m.GetChannel(), "Subscribed")
	if c == nil {
		return err
	}
	if m.GetAsAdvertised() {
		if c.run == 0 {
			return malformed("Subscribed on channel %d is short, and it was not opened by Resume", c.id)
		}
		for _, t := range c.tables {
			if s := c.offer.Schemas[t]; s != nil {
				r.learn(c, c.log, s)
			}
		}
	} else if log := wire.Log(m.GetLog()); log != c.log {
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
		c.state, c.mode = inSnapshot, mode
		return nil
	case wirepb.Mode_MODE_LIVE, wirepb.Mode_MODE_DELTA, wirepb.Mode_MODE_STATE_DELTA, wirepb.Mode_MODE_REPLAY_ARCHIVE:
	default:
		return malformed("channel %d is to be caught up by %s, which was not asked for", c.id, mode)
	}
	start := engine.Position(m.GetStart().GetPosition())
	if c.floor {
		if mode != wirepb.Mode_MODE_LIVE && mode != wirepb.Mode_MODE_DELTA {
			return malformed("channel %d is to be caught up by %s from a floor", c.id, mode)
		}
		c.floor = false
		r.floored(c, m)
		c.state, c.whole = inStream, nil
		if tables := r.wantedOf(c.offer); c.offer.anywhere() && !slices.Equal(tables, c.tables) {
			c.tables, c.place.Tables = tables, tables // they have been advertised since
			r.carry(c)
		}
		return nil
	}
	if m.GetAsAdvertised() {
		start = c.asked
	}
	if !c.cursor {
		return malformed("channel %d starts at %q, and the reader of log %s has no cursor", c.id, start, c.log)
	}
	if start != c.asked { // the reader may be further by now, by way of another session
		return malformed("channel %d starts at %q, and the reader of log %s has asked for %q", c.id, start, c.log, c.asked)
	}
	if mode == wirepb.Mode_MODE_STATE_DELTA || mode == wirepb.Mode_MODE_REPLAY_ARCHIVE {
		c.state, c.mode = inSnapshot, mode
		if fresh := wire.Tables(m.GetFresh()); len(fresh) > 0 {
			c.whole = append(c.whole, slices.DeleteFunc(fresh, func(t engine.TableName) bool { return slices.Contains(c.whole, t) })...)
			c.cause = cmp.Or(c.cause, fmt.Sprintf("log %s has tables that had not come up to %s, where it is gone on with elsewhere", c.log, c.asked))
		}
		return nil
	}
	c.tables = slices.DeleteFunc(r.stillOffered(c, c.tables), func(t engine.TableName) bool { return slices.Contains(c.whole, t) })
	c.whole = nil
	fewer := c.place.Tables != nil && !covers(c.tables, c.place.Tables)
	c.state, c.place.Tables, c.place.Gap = inStream, c.tables, ""
	if fewer {
		r.carry(c)
	}
	if a := c.place.acked; a != nil { // what the last peer was told
		c.ack = &wirepb.Ack{Channel: c.id, Position: string(a.cursor.Position), Durable: a.durable}
	}
	return nil
}

func (r *Reader) schema(m *wirepb.Schema) error {
	if r.shared.is(m.GetChannel()) {
		return r.sharedSchema(m)
	}
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
	r.learn(c, log, s)
	return nil
}

func (r *Reader) learn(c *incoming, log engine.LogID, s *engine.Schema) {
	if c.schemas.add(log, s) && log == c.log && !c.place.handed[s.ID] {
		c.fresh = append(c.fresh, s)
	}
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
		Delta: c.mode != wirepb.Mode_MODE_SNAPSHOT, CompleteFrom: engine.Time(m.GetCompleteSince()), Truncates: map[engine.TableName][]engine.Stamp{},
		Gap: m.GetGap(),
	}
	if m.GetRelayed() {
		spec.Marks = append([]engine.Mark{}, c.marks...)
	}
	c.marks, c.follow = nil, nil
	if to := engine.Position(m.GetFollows()); to != "" {
		if r.cfg.Holder == "" || c.offer.Compare(to, spec.At) < 0 {
			return malformed("SnapshotBegin on channel %d at %s, which the log of %s is to follow up to %s", c.id, spec.At, c.log, to)
		}
		c.follow = &following{to: to, at: spec.At}
	}
	if spec.Delta && c.offer.Compare(spec.At, c.asked) < 0 {
		return malformed("SnapshotBegin on channel %d at %s, and the reader of log %s has asked for %s", c.id, spec.At, c.log, c.asked)
	}
	if c.place.Known && c.place.Lost == "" && c.offer.Compare(spec.At, c.place.Position) < 0 {
		// It has come further by way of another session: what follows is asked for.
		r.send(&wirepb.Unsubscribe{Channel: c.id})
		r.drop(c)
		return nil
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
	if c.mode == wirepb.Mode_MODE_STATE_DELTA {
		spec.Fresh = slices.DeleteFunc(c.whole, func(t engine.TableName) bool { return !slices.Contains(spec.Tables, t) })
	}
	spec.Behind = c.next(func(t engine.TableName) bool { return !spec.Delta || slices.Contains(spec.Fresh, t) })
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
	c.place.Counts.Bytes += int64(n)
	if c.left -= int64(n); c.left <= 0 {
		c.place.Counts.Starved++
	}
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

// stillOffered returns tables without those that a channel was opened for and that the peer
// has offered no more since: it does not send them from now on.
func (r *Reader) stillOffered(c *incoming, tables []engine.TableName) []engine.TableName {
	offered := r.wantedOf(c.offer)
	return slices.DeleteFunc(slices.Clone(tables), func(t engine.TableName) bool {
		return slices.Contains(c.tables, t) && !slices.Contains(offered, t)
	})
}

func (r *Reader) snapshotEnd(m *wirepb.SnapshotEnd) error {
	c, err := r.in(m.GetChannel(), inRows, "SnapshotEnd")
	if c == nil {
		return err
	}
	i := slices.IndexFunc(m.GetCursors(), func(lc *wirepb.LogCursor) bool { return wire.Log(lc.GetLog()) == c.log })
	at, t := c.spec.At, c.spec.Time
	if f := c.follow; f != nil {
		if at, t = f.at, max(t, f.time); f.parts > 0 || at != f.to {
			return malformed("SnapshotEnd on channel %d at %s (part %d), and the log was to follow up to %s", c.id, at, f.parts, f.to)
		}
	}
	if i < 0 || engine.Position(m.GetCursors()[i].GetCursor().GetPosition()) != at {
		return malformed("SnapshotEnd on channel %d does not cover %s at %s, where it is", c.id, c.log, at)
	}
	if m.GetRecords() != c.rows {
		return malformed("SnapshotEnd on channel %d after %d records; the writer sent %d", c.id, c.rows, m.GetRecords())
	}
	r.deliver(c, &Delivery{Kind: DeliverCommit, Tables: c.spec.Tables})
	p := c.place
	switch c.mode {
	case wirepb.Mode_MODE_STATE_DELTA:
		p.Counts.StateDeltas++
		t = max(t, p.Time)
	case wirepb.Mode_MODE_REPLAY_ARCHIVE:
		p.Counts.Replays++
		t = max(t, p.Time)
	default: // it is all that is here: how far the log had come before says nothing any more
		p.Counts.Snapshots++
	}
	if !p.had {
		p.before, p.had = p.Tables, true
	}
	p.trail = p.trail.With(at, c.spec.Behind, c.offer.Compare)
	p.Position, p.Time, p.Known, p.Parts, p.Lost, p.Gap, p.Tables = at, t, true, 0, "", "", c.spec.Tables
	c.state, c.spec, c.follow, c.cause, c.whole = inStream, nil, nil, "", nil
	p.copier = nil
	if still := r.stillOffered(c, p.Tables); len(still) < len(p.Tables) {
		p.Tables = still
		r.carry(c)
	}
	c.tables = r.stillOffered(c, c.tables)
	defer r.copied(c)
	maps.DeleteFunc(r.places[c.log.Origin], func(e engine.Epoch, _ *Place) bool { return e < c.log.Epoch })
	return nil
}

func (r *Reader) batch(now time.Time, m *wirepb.Batch) error {
	if r.shared.is(m.GetChannel()) {
		return r.sharedBatch(now, m)
	}
	c, err := r.channel(m.GetChannel(), "Batch")
	if c != nil && c.state == inRows && c.follow != nil {
		return r.followed(c, m)
	}
	if c, err = r.in(m.GetChannel(), inStream, "Batch"); c == nil {
		return err
	}
	b, err := unpack(c.id, m)
	if err != nil {
		return err
	}
	n, err := r.receive(c, len(b.Payload))
	if err != nil {
		return err
	}
	what, err := r.block(c, b, n)
	switch {
	case err != nil:
		return err
	case what == blockRepeated:
		c.left += n // the bytes are free again
		r.send(&wirepb.Credit{Channel: c.id, Bytes: uint64(n)})
	case what == blockHole:
		return r.hole(now, c, b.Prev, b.Part)
	default:
		c.holes = 0
	}
	return nil
}

func unpack(channel uint32, m *wirepb.Batch) (*engine.Block, error) {
	if m.GetCodec() != wirepb.Codec_CODEC_UNSPECIFIED {
		return nil, malformed("Batch on channel %d is packed with codec %d, which was not agreed", channel, m.GetCodec())
	}
	return wire.Block(m), nil
}

// blockIs is what a block is to a reader.
type blockIs uint8

const (
	blockNext blockIs = iota
	blockRepeated
	blockHole
)

// block takes in a block of a channel's log, if it is the next.
func (r *Reader) block(c *incoming, b *engine.Block, n int64) (blockIs, error) {
	p := c.place
	if b.Position == "" || c.offer.Compare(b.Prev, b.Position) >= 0 {
		return 0, malformed("Batch on channel %d goes from %q to %q", c.id, b.Prev, b.Position)
	}
	// A transaction that begins before the place and ends after it is one by which
	// the peer was caught up itself: it stands for those that the place covers, and
	// what of them it holds is here already.
	part, ahead := b.Part > 0 || !b.Last, c.offer.Compare(b.Prev, p.Position)
	switch {
	case c.offer.Compare(b.Position, p.Position) <= 0, (ahead == 0 || part) && ahead <= 0 && b.Part < p.Parts:
		p.Counts.Duplicates++
		p.Counts.DuplicateBytes += n
		return blockRepeated, nil
	case ahead > 0, (ahead == 0 || part) && b.Part > p.Parts:
		return blockHole, nil
	case ahead < 0 && part:
		b.Prev = p.Position
	case ahead < 0:
		rest := b // if it is damaged, whoever applies it finds so
		if b.Index(c.log, c.schemas.Schema) == nil {
			rest, _ = b.After(p.Position, c.offer.Compare)
		}
		following := *rest
		following.Prev, b = p.Position, &following
	}
	b.Schemas = c.hand()
	if b.Last {
		b.Behind = c.passes(b.Position)
		p.Position, p.Time, p.Parts = b.Position, b.Time, 0
	} else {
		p.Parts = b.Part + 1
	}
	r.deliver(c, &Delivery{Kind: DeliverBlock, Block: b, Size: n})
	return blockNext, nil
}

func (r *Reader) progress(now time.Time, m *wirepb.Progress) error {
	if r.shared.is(m.GetChannel()) {
		return r.sharedProgress(now, m)
	}
	c, err := r.in(m.GetChannel(), inStream, "Progress")
	if c == nil {
		return err
	}
	what, err := r.passed(c, m)
	switch {
	case err != nil:
		return err
	case what == blockHole:
		return r.hole(now, c, engine.Position(m.GetPrev()), 0)
	case what == blockNext:
		c.holes = 0
	}
	return nil
}

// passed takes in a stretch with nothing in it.
func (r *Reader) passed(c *incoming, m *wirepb.Progress) (blockIs, error) {
	p, prev, through := c.place, engine.Position(m.GetPrev()), engine.Position(m.GetThrough())
	switch {
	case c.offer.Compare(prev, through) >= 0:
		return 0, malformed("Progress on channel %d goes from %q to %q", c.id, prev, through)
	case c.offer.Compare(through, p.Position) <= 0:
		return blockRepeated, nil
	case c.offer.Compare(prev, p.Position) > 0, p.Parts > 0:
		return blockHole, nil
	}
	r.deliver(c, &Delivery{Kind: DeliverProgress, Prev: p.Position, Through: through, Time: engine.Time(m.GetTime()), Behind: c.passes(through)})
	p.Position, p.Time = through, engine.Time(m.GetTime())
	return blockNext, nil
}

// hole holds the log and asks for it again from where the reader is. A writer
// that does not fill it is given up.
func (r *Reader) hole(now time.Time, c *incoming, prev engine.Position, part uint32) error {
	c.place.Counts.Holes++
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
		r.remove(c)
		return nil
	}
	cause := fmt.Sprintf("epoch %d of %s has ended, and epoch %d begun", c.log.Epoch, log.Origin, epoch)
	p := r.places.Of(log)
	if p == nil {
		p = &Place{}
		r.places.Put(log, p)
	}
	if c.place.copier == r {
		c.place.copier = nil
	}
	p.Lost, p.copier, p.Compare = cause, r, o.Compare
	p.Counts.Resets++
	r.remove(c)
	c.log, c.offer, c.place, c.state, c.fresh, c.ack, c.cause, c.whole, c.behind, c.cursor, c.asked = log, o, p, inSubscribed, nil, nil, cause, nil, nil, false, ""
	r.add(c)
	c.tables = r.wantedOf(o)
	o.channel = c.id
	r.carry(c)
	return nil
}
