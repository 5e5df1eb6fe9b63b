package session

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// subscribe opens a channel; brief says that it is one of Resume.
func (w *Writer) subscribe(m *wirepb.Subscribe, brief bool) error {
	id := m.GetChannel()
	if id <= w.last {
		return malformed("Subscribe for channel %d after channel %d: numbers only grow", id, w.last)
	}
	w.last = id
	fail := func(code wirepb.ErrorCode, format string, args ...any) error {
		return &Error{Code: code, Channel: id, Message: fmt.Sprintf(format, args...)}
	}
	c := &outgoing{
		id: id, log: wire.Log(m.GetLog()), modes: m.GetModes(), credit: int64(min(m.GetCredit(), maxCredit)),
		parts: m.GetStagedParts(), schemas: map[schemaKey]bool{}, compare: engine.CompareLSN, reader: w.peer, brief: brief, follow: m.GetFollow(),
	}
	if m.GetReader() != "" {
		c.reader += "/" + m.GetReader()
	}
	switch {
	case len(w.channels) >= w.cfg.Limits.MaxChannels:
		return fail(wirepb.ErrorCode_ERROR_CODE_LIMIT, "a session has at most %d channels", w.cfg.Limits.MaxChannels)
	case m.GetLog() == nil && w.draining:
		return fail(wirepb.ErrorCode_ERROR_CODE_DRAINING, "node %s is draining", w.cfg.NodeID)
	case m.GetLog() == nil && slices.Contains(m.GetUpward(), w.cfg.NodeID):
		return fail(wirepb.ErrorCode_ERROR_CODE_LOOP, "node %s is above node %s: reading from it would close a loop", w.cfg.NodeID, w.peer)
	case m.GetLog() == nil:
		return w.subscribeShared(c, m)
	case w.shared && m.GetFrom() != nil:
		return fail(wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, "nodes %s and %s have no cursor of one log between them: not both have the capability %s", w.cfg.NodeID, w.peer, CapOriginCursors)
	case c.log.Origin == "" || c.log.Epoch == 0:
		return malformed("Subscribe for channel %d names no log", id)
	case w.draining:
		return fail(wirepb.ErrorCode_ERROR_CODE_DRAINING, "node %s is draining", w.cfg.NodeID)
	case slices.Contains(m.GetUpward(), w.cfg.NodeID):
		return fail(wirepb.ErrorCode_ERROR_CODE_LOOP, "node %s is above node %s: reading from it would close a loop", w.cfg.NodeID, w.peer)
	case w.cfg.Provider != nil && w.cfg.Provider(c.log.Origin) == w.peer && w.peer > w.cfg.NodeID && !strings.HasPrefix(c.log.Origin, w.peer+"#"):
		return fail(wirepb.ErrorCode_ERROR_CODE_LOOP, "nodes %s and %s have picked each other for log %s: the larger id yields", w.cfg.NodeID, w.peer, c.log)
	}
	var err error
	if c.scope, err = wire.Scope(m.GetScope()); err != nil {
		return fail(wirepb.ErrorCode_ERROR_CODE_SCOPE, "%v", err)
	}
	if w.cfg.Permit != nil {
		for _, t := range c.scope.Names() {
			if err := w.cfg.Permit(t); err != nil {
				return fail(wirepb.ErrorCode_ERROR_CODE_PERMISSION, "%v", err)
			}
		}
	}
	switch from := m.GetFrom().(type) {
	case *wirepb.Subscribe_Cursor:
		c.hasFrom, c.sent, c.time = true, engine.Position(from.Cursor.GetPosition()), engine.Time(from.Cursor.GetTime())
	case *wirepb.Subscribe_Floor:
		if w.cfg.Floor == nil {
			return fail(wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, "node %s is part of no relay tree, and knows of no floor", w.cfg.NodeID)
		}
		c.hasFrom, c.sent, c.parts = true, w.cfg.Floor(c.log, from.Floor.GetHolder()), 0
	case nil:
	default:
		return fail(wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, "node %s serves from a cursor or a snapshot only", w.cfg.NodeID)
	}
	if len(m.GetBehind()) > maxTables {
		return malformed("Subscribe names %d tables that its cursor is ahead of", len(m.GetBehind()))
	}
	if c.fresh, c.behind = wire.Tables(m.GetFresh()), wire.Behind(m.GetBehind()); !c.hasFrom {
		c.parts, c.fresh, c.behind = 0, nil, nil
	}
	w.channels[id] = c
	w.order = append(w.order, id)
	w.heartbeat = heartbeatOf(m)
	return w.advance(c)
}

func (c *outgoing) allows(m wirepb.Mode) bool {
	return len(c.modes) == 0 || slices.Contains(c.modes, m)
}

// find returns the log as served now, or the log of another epoch that is
// served in its place.
func (w *Writer) find(log engine.LogID) (s *Served, other *Served) {
	for _, i := range w.byOrigin[log.Origin] {
		if w.served[i].Log == log {
			return &w.served[i], nil
		}
		other = &w.served[i]
	}
	return nil, other
}

// advance brings a channel in step with what the node serves.
func (w *Writer) advance(c *outgoing) error {
	s, other := w.find(c.log)
	switch {
	case s != nil:
	case other == nil:
		return &Error{Code: wirepb.ErrorCode_ERROR_CODE_UNKNOWN_LOG, Channel: c.id, Message: fmt.Sprintf("node %s does not serve log %s", w.cfg.NodeID, c.log)}
	case other.Log.Epoch < c.log.Epoch:
		if c.state == stateSnapshot {
			w.out = append(w.out, Output{Abandon: c.id})
			c.hasFrom = c.since > 0 || c.replay != ""
		}
		c.state = stateWaiting // until this node has what the reader has
		return nil
	default:
		w.reset(c, other)
		s = other
	}
	c.head, c.compare, c.trail = s.Head, s.Compare, s.Trail
	if err := w.look(c, s); err != nil {
		return err
	}
	if lacking := w.lacking(c, c.sent); c.state == stateStreaming && len(lacking) > 0 {
		w.end(c, s.Oldest, fmt.Sprintf("what table %s lacked at position %s of log %s has come to node %s otherwise than by the log", lacking[0], c.sent, c.log, w.cfg.NodeID))
		return nil
	}
	if c.state != stateWaiting {
		return nil
	}
	return w.begin(c, s)
}

// look finds out how a channel sees a log, and that it still can: a column may
// be gone by which rows are chosen.
func (w *Writer) look(c *outgoing, s *Served) error {
	if c.shapes == len(s.Schemas) && c.shapes > 0 && c.has.ID() == s.Scope.ID() && (c.scope != nil || c.sees(s)) {
		return nil
	}
	fail := func(code wirepb.ErrorCode, err error) error {
		return &Error{Code: code, Channel: c.id, RetryAfter: 5 * time.Second, Message: err.Error()}
	}
	tables := s.Tables
	if c.scope != nil {
		tables = c.scope.Names()
	}
	for _, t := range tables {
		if !slices.Contains(s.Tables, t) {
			return fail(wirepb.ErrorCode_ERROR_CODE_UNKNOWN_TABLE, fmt.Errorf("log %s on node %s has no table %s", c.log, w.cfg.NodeID, t))
		}
		if s.Scope.Covers(t) {
			if err := c.scope.Of(t).Within(s.Scope.Of(t)); err != nil {
				return fail(wirepb.ErrorCode_ERROR_CODE_SCOPE, fmt.Errorf("node %s has a part of log %s only: %w; or read from a node that has all", w.cfg.NodeID, c.log, err))
			}
		}
	}
	lens := c.scope.Beyond(s.Scope)
	if lens == nil && s.Hidden {
		lens = scope.Tables(s.Tables...)
	}
	if lens != nil {
		for _, t := range tables {
			if sc := newest(s.Schemas, t); sc != nil {
				if err := lens.Check(sc); err != nil {
					return fail(wirepb.ErrorCode_ERROR_CODE_SCOPE, err)
				}
			}
		}
		if w.cfg.Share != nil {
			lens = w.cfg.Share(lens)
		}
	}
	c.lens, c.has, c.shapes = lens, s.Scope, len(s.Schemas)
	return nil
}

// reset moves a channel to a newer epoch of its log.
func (w *Writer) reset(c *outgoing, to *Served) {
	if c.state == stateSnapshot {
		w.out = append(w.out, Output{Abandon: c.id})
	}
	w.send(&wirepb.Reset{Channel: c.id, Log: wire.FromLog(c.log), Epoch: uint64(to.Log.Epoch)})
	c.log, c.state, c.hasFrom, c.sent, c.time, c.parts, c.acked, c.durable, c.since, c.shapes = to.Log, stateWaiting, false, "", 0, 0, "", false, 0, 0
	c.replay, c.failed, c.held, c.fresh, c.brief, c.forgotten, c.behind = "", false, false, nil, false, 0, nil
}

// begin chooses the mode of a waiting channel, if the node has what it takes.
func (w *Writer) begin(c *outgoing, s *Served) error {
	c.tables = s.Tables
	if c.scope != nil {
		c.tables = c.scope.Names()
	}
	c.mode = wirepb.Mode_MODE_SNAPSHOT
	// A table that the node lacks is not sent, and the reader told so.
	c.fresh = slices.DeleteFunc(c.fresh, func(t engine.TableName) bool { return !c.covers(t) })
	if c.hasFrom {
		ahead := s.Compare(c.sent, s.Head)
		lacking := w.lacking(c, s.Head)
		if ahead == 0 && c.allows(wirepb.Mode_MODE_LIVE) || s.Compare(c.sent, s.Oldest) >= 0 && c.allows(wirepb.Mode_MODE_DELTA) {
			lacking = w.lacking(c, c.sent)
		}
		c.fresh = append(c.fresh, slices.DeleteFunc(lacking, func(t engine.TableName) bool { return slices.Contains(c.fresh, t) })...)
		delta := w.delta && c.time > 0 && s.CompleteFrom > 0 && c.time >= max(s.CompleteFrom, c.forgotten) && c.allows(wirepb.Mode_MODE_STATE_DELTA)
		switch {
		case ahead > 0 && len(s.Path) == 1:
			// This node minted the log and is behind its reader: it has lost history.
			w.out = append(w.out, Output{Witness: &Witness{w.peer, c.log.Epoch, max(c.time, s.Time+1)}})
			return nil
		case ahead > 0:
			return nil // a carrier that is behind makes the reader wait
		case len(c.fresh) > 0 && delta:
			c.mode = wirepb.Mode_MODE_STATE_DELTA
		case len(c.fresh) > 0:
		case ahead == 0 && c.allows(wirepb.Mode_MODE_LIVE):
			c.mode = wirepb.Mode_MODE_LIVE
		case s.Compare(c.sent, s.Oldest) >= 0 && c.allows(wirepb.Mode_MODE_DELTA):
			c.mode = wirepb.Mode_MODE_DELTA
		case delta:
			c.mode = wirepb.Mode_MODE_STATE_DELTA
		case w.replayable(c, s):
			c.mode = wirepb.Mode_MODE_REPLAY_ARCHIVE
		}
	}
	if !c.allows(c.mode) {
		return w.gap(c, s.Oldest)
	}
	answer := &wirepb.Subscribed{
		Channel: c.id, Log: wire.FromLog(c.log), Mode: c.mode, Head: wire.FromCursor(s.Head, s.Time), Tables: wire.FromTables(c.tables),
	}
	switch c.mode {
	case wirepb.Mode_MODE_SNAPSHOT:
		c.state, c.sent, c.parts, c.since, c.replay, c.fresh = stateSnapshot, "", 0, 0, "", nil
	case wirepb.Mode_MODE_STATE_DELTA:
		answer.Start = wire.FromCursor(c.sent, c.time)
		if w.behind {
			answer.Fresh = wire.FromTables(c.fresh)
		}
		c.state, c.parts, c.since, c.replay = stateSnapshot, 0, c.time, ""
	case wirepb.Mode_MODE_REPLAY_ARCHIVE:
		answer.Start = wire.FromCursor(c.sent, c.time)
		c.state, c.parts, c.since = stateSnapshot, 0, 0
	default:
		c.state = stateStreaming
		answer.Start = wire.FromCursor(c.sent, c.time)
		if c.brief && c.lens == nil && c.scope == nil {
			w.abridge(c, s, answer)
		}
	}
	c.brief = false
	rest := s.Schemas
	for size := 0; len(rest) > 0; rest = rest[1:] {
		sc := c.lens.Schema(rest[0])
		if sc == nil || !c.covers(sc.Table) || c.schemas[schemaKey{c.log, sc.ID}] {
			continue
		}
		m := wire.FromSchema(c.log, sc)
		if size += proto.Size(m) + 8; size > maxControl {
			break
		}
		answer.Schemas = append(answer.Schemas, m)
		c.schemas[schemaKey{c.log, sc.ID}] = true
	}
	w.send(answer)
	w.sendSchemas(c, c.log, rest)
	return nil
}

// abridge leaves out of an answer what the peer knows.
func (w *Writer) abridge(c *outgoing, s *Served, answer *wirepb.Subscribed) {
	answer.AsAdvertised, answer.Log, answer.Start, answer.Tables = true, nil, nil, nil
	if c.mode == wirepb.Mode_MODE_LIVE {
		answer.Head = nil
	}
	for _, t := range s.Tables {
		if sc := newest(s.Schemas, t); sc != nil {
			c.schemas[schemaKey{c.log, sc.ID}] = true
		}
	}
}

// replayable reports whether an archive leads a channel from where it is to where
// the log begins, and notes how far.
func (w *Writer) replayable(c *outgoing, s *Served) bool {
	if !w.replays || c.failed || w.cfg.Archived == nil || c.time < s.Whole || !c.allows(wirepb.Mode_MODE_REPLAY_ARCHIVE) {
		return false
	}
	to, ok := w.cfg.Archived(c.log, c.tables, c.sent, s.Oldest)
	if !ok || s.Compare(to.Position, c.sent) <= 0 || s.Compare(to.Position, s.Oldest) < 0 || s.Compare(to.Position, s.Head) > 0 {
		return false
	}
	c.replay = to.Position
	return true
}

// sees reports whether a channel of the whole log sees all that the peer may.
func (c *outgoing) sees(s *Served) bool {
	if !s.Hidden {
		return c.lens == nil
	}
	return c.lens != nil && len(c.lens.Tables()) == len(s.Tables) && !slices.ContainsFunc(s.Tables, func(t engine.TableName) bool { return !c.lens.Covers(t) })
}

func (c *outgoing) covers(t engine.TableName) bool { return slices.Contains(c.tables, t) }

func (w *Writer) sendSchemas(c *outgoing, log engine.LogID, schemas []*engine.Schema) {
	for _, s := range schemas {
		if s = c.lens.Schema(s); s == nil {
			continue
		}
		if k := (schemaKey{log, s.ID}); !c.schemas[k] {
			c.schemas[k] = true
			m := wire.FromSchema(log, s)
			m.Channel = c.id
			w.send(m)
		}
	}
}

// sendOthers sends the schemas of other logs that a block uses.
func (w *Writer) sendOthers(c *outgoing, b *engine.Block) {
	for i := range b.Others {
		if o := &b.Others[i]; !c.schemas[schemaKey{o.Log, o.Schema.ID}] {
			w.sendSchemas(c, o.Log, []*engine.Schema{o.Schema})
		}
	}
}

func (w *Writer) gap(c *outgoing, oldest engine.Position) error {
	why := fmt.Sprintf("node %s no longer holds position %s of log %s (its oldest is %s), and the reader allows no snapshot here", w.cfg.NodeID, c.sent, c.log, oldest)
	if !c.hasFrom {
		why = fmt.Sprintf("a reader without a cursor of log %s starts from a snapshot, which this one does not allow", c.log)
	} else if c.state == stateStreaming {
		why = fmt.Sprintf("the log %s on node %s has overtaken the reader at %s (its oldest is now %s)", c.log, w.cfg.NodeID, c.sent, oldest)
	}
	w.end(c, oldest, why)
	return nil
}

// end ends a channel; why says what for.
func (w *Writer) end(c *outgoing, oldest engine.Position, why string) {
	w.send(&wirepb.Gap{Channel: c.id, Oldest: string(oldest), Message: why})
	w.drop(c.id)
}
