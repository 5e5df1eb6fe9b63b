package session

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// subscribe opens a channel.
func (w *Writer) subscribe(m *wirepb.Subscribe) error {
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
		parts: m.GetStagedParts(), schemas: map[schemaKey]bool{}, compare: engine.CompareLSN, reader: w.peer,
	}
	if m.GetReader() != "" {
		c.reader += "/" + m.GetReader()
	}
	switch {
	case len(w.channels) >= w.cfg.Limits.MaxChannels:
		return fail(wirepb.ErrorCode_ERROR_CODE_LIMIT, "a session has at most %d channels", w.cfg.Limits.MaxChannels)
	case m.GetLog() == nil:
		return fail(wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, "node %s has no shared log", w.cfg.NodeID)
	case c.log.Origin == "" || c.log.Epoch == 0:
		return malformed("Subscribe for channel %d names no log", id)
	case w.draining:
		return fail(wirepb.ErrorCode_ERROR_CODE_DRAINING, "node %s is draining", w.cfg.NodeID)
	case slices.Contains(m.GetUpward(), w.cfg.NodeID):
		return fail(wirepb.ErrorCode_ERROR_CODE_LOOP, "node %s is above node %s: reading from it would close a loop", w.cfg.NodeID, w.peer)
	case w.cfg.Provider != nil && w.cfg.Provider(c.log.Origin) == w.peer && w.peer > w.cfg.NodeID:
		return fail(wirepb.ErrorCode_ERROR_CODE_LOOP, "nodes %s and %s have picked each other for log %s: the larger id yields", w.cfg.NodeID, w.peer, c.log)
	}
	for _, t := range m.GetScope().GetTables() {
		if len(t.GetColumns()) > 0 || len(t.GetWhere()) > 0 {
			return fail(wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, "node %s does not filter by column or row", w.cfg.NodeID)
		}
		c.scope = append(c.scope, wire.Table(t.GetTable()))
	}
	switch from := m.GetFrom().(type) {
	case *wirepb.Subscribe_Cursor:
		c.hasFrom, c.sent, c.time = true, engine.Position(from.Cursor.GetPosition()), engine.Time(from.Cursor.GetTime())
	case nil:
	default:
		return fail(wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, "node %s serves from a cursor or a snapshot only", w.cfg.NodeID)
	}
	if !c.hasFrom {
		c.parts = 0
	}
	w.channels[id] = c
	w.order = append(w.order, id)
	return w.advance(c)
}

func (c *outgoing) allows(m wirepb.Mode) bool {
	return len(c.modes) == 0 || slices.Contains(c.modes, m)
}

// find returns the log as served now, or the log of another epoch that is
// served in its place.
func (w *Writer) find(log engine.LogID) (s *Served, other *Served) {
	for i := range w.served {
		if w.served[i].Log == log {
			return &w.served[i], nil
		}
		if w.served[i].Log.Origin == log.Origin {
			other = &w.served[i]
		}
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
			c.hasFrom = false
		}
		c.state = stateWaiting // until this node has what the reader has
		return nil
	default:
		w.reset(c, other)
		s = other
	}
	c.head, c.compare = s.Head, s.Compare
	if c.state != stateWaiting {
		return nil
	}
	return w.begin(c, s)
}

// reset moves a channel to a newer epoch of its log.
func (w *Writer) reset(c *outgoing, to *Served) {
	if c.state == stateSnapshot {
		w.out = append(w.out, Output{Abandon: c.id})
	}
	w.send(&wirepb.Reset{Channel: c.id, Log: wire.FromLog(c.log), Epoch: uint64(to.Log.Epoch)})
	c.log, c.state, c.hasFrom, c.sent, c.time, c.parts, c.acked, c.durable = to.Log, stateWaiting, false, "", 0, 0, "", false
}

// begin chooses the mode of a waiting channel, if the node has what it takes.
func (w *Writer) begin(c *outgoing, s *Served) error {
	c.tables = s.Tables
	if c.scope != nil {
		for _, t := range c.scope {
			if !slices.Contains(s.Tables, t) {
				return &Error{Code: wirepb.ErrorCode_ERROR_CODE_UNKNOWN_TABLE, Channel: c.id, Message: fmt.Sprintf("log %s on node %s has no table %s", c.log, w.cfg.NodeID, t)}
			}
		}
		c.tables = c.scope
	}
	c.mode = wirepb.Mode_MODE_SNAPSHOT
	if c.hasFrom {
		switch ahead := s.Compare(c.sent, s.Head); {
		case ahead > 0 && len(s.Path) == 1:
			// This node minted the log and is behind its reader: it has lost history.
			w.out = append(w.out, Output{Witness: &Witness{w.peer, c.log.Epoch, max(c.time, s.Time+1)}})
			return nil
		case ahead > 0:
			return nil // a carrier that is behind makes the reader wait
		case ahead == 0 && c.allows(wirepb.Mode_MODE_LIVE):
			c.mode = wirepb.Mode_MODE_LIVE
		case s.Compare(c.sent, s.Oldest) >= 0 && c.allows(wirepb.Mode_MODE_DELTA):
			c.mode = wirepb.Mode_MODE_DELTA
		}
	}
	if !c.allows(c.mode) {
		return w.gap(c, s.Oldest)
	}
	answer := &wirepb.Subscribed{
		Channel: c.id, Log: wire.FromLog(c.log), Mode: c.mode, Head: wire.FromCursor(s.Head, s.Time), Tables: wire.FromTables(c.tables),
	}
	if c.mode == wirepb.Mode_MODE_SNAPSHOT {
		c.state, c.sent, c.parts = stateSnapshot, "", 0
	} else {
		c.state = stateStreaming
		answer.Start = wire.FromCursor(c.sent, c.time)
	}
	rest := s.Schemas
	for size := 0; len(rest) > 0; rest = rest[1:] {
		if c.schemas[schemaKey{c.log, rest[0].ID}] || !c.covers(rest[0].Table) {
			continue
		}
		m := wire.FromSchema(c.log, rest[0])
		if size += proto.Size(m) + 8; size > maxControl {
			break
		}
		answer.Schemas = append(answer.Schemas, m)
		c.schemas[schemaKey{c.log, rest[0].ID}] = true
	}
	w.send(answer)
	w.sendSchemas(c, c.log, rest)
	return nil
}

func (c *outgoing) covers(t engine.TableName) bool { return slices.Contains(c.tables, t) }

func (w *Writer) sendSchemas(c *outgoing, log engine.LogID, schemas []*engine.Schema) {
	for _, s := range schemas {
		if k := (schemaKey{log, s.ID}); !c.schemas[k] && (c.scope == nil || c.covers(s.Table)) {
			c.schemas[k] = true
			m := wire.FromSchema(log, s)
			m.Channel = c.id
			w.send(m)
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
	w.send(&wirepb.Gap{Channel: c.id, Oldest: string(oldest), Message: why})
	w.drop(c.id)
	return nil
}
