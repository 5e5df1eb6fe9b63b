package session

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Served is what a node serves of a log at a moment.
type Served struct {
	engine.Advert
	Compare engine.Comparator
	Schemas []*engine.Schema // of the log, by ID
}

// WriterConfig is what a Writer needs to know of its node.
type WriterConfig struct {
	NodeID   string
	Software string // for people
	Limits   Limits
	// Held returns the highest epoch and time that the node holds of a node's own
	// logs.
	Held func(node string) (engine.Epoch, engine.Time)
	// Provider returns the peer from which this node reads an origin's log, or is
	// about to; empty for none.
	Provider func(origin string) string
}

// Output is one thing for a Writer's driver to do: exactly one field is set.
type Output struct {
	Frame   *wirepb.Frame // send it
	Shared  *wire.Shared  // send it
	Acked   *Acked        // tell the host
	Witness *Witness      // tell the host
	Abandon uint32        // forget the snapshot of this channel
	Close   error         // end the session; nothing follows
}

// Acked is how far a reader has got.
type Acked struct {
	Reader  string
	Key     engine.CursorKey
	At      engine.Position
	Durable bool
}

// Witness is what a peer holds of this node.
type Witness struct {
	Peer  string
	Epoch engine.Epoch
	Time  engine.Time
}

// Writer is the serving side of a session.
type Writer struct {
	cfg      WriterConfig
	out      []Output
	started  time.Time
	peer     string // empty until its Hello
	closed   bool
	draining bool

	served     []Served
	advertised map[engine.LogID]*Served
	lastHead   time.Time

	channels map[uint32]*outgoing
	order    []uint32 // channels in turn
	turn     int      // index into order
	last     uint32   // highest channel number used
}

// outgoing is a channel being served.
type outgoing struct {
	id     uint32
	reader string
	log    engine.LogID
	scope  []engine.TableName // nil: all
	modes  []wirepb.Mode      // nil: all
	state  channelState
	mode   wirepb.Mode
	// sent and parts are the reader's place: it has everything up to sent, and
	// parts of the transaction after it. Never past the store's head.
	sent    engine.Position
	time    engine.Time
	parts   uint32
	hasFrom bool
	head    engine.Position // of the log, as last served
	compare engine.Comparator
	tables  []engine.TableName // it covers
	schemas map[schemaKey]bool // sent
	acked   engine.Position
	durable bool
	credit  int64 // may be sent; below 0 by at most one frame
	deficit int64 // of its turn
	at      engine.Position
	atTime  engine.Time
	records uint64
}

type schemaKey struct {
	log engine.LogID
	id  uint32
}

type channelState uint8

const (
	stateWaiting  channelState = iota // for the node to have what is asked for
	stateSnapshot                     // Subscribed is sent, SnapshotEnd is not
	stateStreaming
)

func (s channelState) String() string { return [...]string{"waiting", "snapshot", "streaming"}[s] }

// HeadEvery is how often a writer says how far its logs have got, and so that
// it lives.
const HeadEvery = 250 * time.Millisecond

const (
	quantum    = 64 << 10 // bytes of a channel's turn
	maxControl = 48 << 10 // bytes of lists in one control frame
	maxCredit  = 1 << 40
)

// NewWriter returns a Writer for a session that starts now.
func NewWriter(cfg WriterConfig, now time.Time) *Writer {
	cfg.Limits = cfg.Limits.withDefaults()
	return &Writer{cfg: cfg, started: now, lastHead: now, channels: map[uint32]*outgoing{}, advertised: map[engine.LogID]*Served{}}
}

// Peer returns the reader's node id; empty until its Hello.
func (w *Writer) Peer() string { return w.peer }

// take returns what there is to do.
func (w *Writer) take() []Output {
	o := w.out
	w.out = nil
	return o
}

func (w *Writer) send(kind any) { w.out = append(w.out, Output{Frame: frame(kind)}) }

// fail ends a channel or the session.
func (w *Writer) fail(err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Code: wirepb.ErrorCode_ERROR_CODE_INTERNAL, Message: err.Error()}
	}
	if f := ErrorFrame(e); f != nil {
		w.out = append(w.out, Output{Frame: f})
	}
	if e.Channel != 0 && !e.Remote {
		w.drop(e.Channel)
		return
	}
	w.closed = true
	w.out = append(w.out, Output{Close: e})
}

func (w *Writer) drop(id uint32) {
	c := w.channels[id]
	if c == nil {
		return
	}
	if c.state == stateSnapshot {
		w.out = append(w.out, Output{Abandon: id})
	}
	delete(w.channels, id)
	i := slices.Index(w.order, id)
	w.order = slices.Delete(w.order, i, i+1)
	if w.turn > i {
		w.turn--
	}
}

// Frame takes a frame from the peer.
func (w *Writer) Frame(f *wirepb.Frame) []Output {
	if w.closed {
		return nil
	}
	if err := w.frame(f); err != nil {
		w.fail(err)
	}
	return w.take()
}

func (w *Writer) frame(f *wirepb.Frame) error {
	if h := f.GetHello(); h != nil {
		return w.hello(h)
	}
	if e := f.GetError(); e != nil {
		return w.peerError(e)
	}
	if w.peer == "" {
		return malformed("%s before Hello", kindName(f))
	}
	switch k := f.GetKind().(type) {
	case *wirepb.Frame_Subscribe:
		return w.subscribe(k.Subscribe)
	case *wirepb.Frame_Unsubscribe:
		if err := w.known(k.Unsubscribe.GetChannel(), "Unsubscribe"); err != nil {
			return err
		}
		w.drop(k.Unsubscribe.GetChannel())
	case *wirepb.Frame_Credit:
		return w.credit(k.Credit)
	case *wirepb.Frame_Ack:
		return w.ack(k.Ack)
	case *wirepb.Frame_GoAway, *wirepb.Frame_Stable:
		// The reader ends soon; a leaf's stable position. Neither changes what is sent.
	case nil:
		return malformed("a frame of a kind that this node (protocol version %d) does not know", Version)
	default:
		return malformed("%s is not a frame that a reader sends", kindName(f))
	}
	return nil
}

func (w *Writer) hello(h *wirepb.Hello) error {
	if w.peer != "" {
		switch {
		case h.GetNodeId() != w.peer:
			return malformed("a second Hello names another node: %s, then %s", w.peer, h.GetNodeId())
		case w.last != 0:
			return malformed("Hello after Subscribe")
		}
		return w.held(h.GetHeld())
	}
	if err := negotiate(w.cfg.NodeID, h); err != nil {
		return err
	}
	w.peer = h.GetNodeId()
	epoch, _ := w.cfg.Held(w.cfg.NodeID)
	answer := &wirepb.Hello{
		MinVersion: MinVersion, Version: Version, NodeId: w.cfg.NodeID, Epoch: uint64(epoch), Capabilities: capabilities, Software: w.cfg.Software,
	}
	if e, t := w.cfg.Held(w.peer); e != 0 {
		answer.Held = &wirepb.Held{NodeId: w.peer, Epoch: uint64(e), Time: uint64(t)}
	}
	w.send(answer)
	if err := w.held(h.GetHeld()); err != nil {
		return err
	}
	w.advertise(true)
	return nil
}

func (w *Writer) held(h *wirepb.Held) error {
	if h == nil {
		return nil
	}
	if h.GetNodeId() != w.cfg.NodeID {
		return malformed("Hello says what is held of node %s, and this is node %s", h.GetNodeId(), w.cfg.NodeID)
	}
	w.out = append(w.out, Output{Witness: &Witness{w.peer, engine.Epoch(h.GetEpoch()), engine.Time(h.GetTime())}})
	return nil
}

func (w *Writer) peerError(e *wirepb.Error) error {
	if e.Channel == nil {
		return &Error{Code: e.GetCode(), Message: e.GetMessage(), Remote: true}
	}
	if err := w.known(e.GetChannel(), "Error"); err != nil {
		return err
	}
	w.drop(e.GetChannel())
	return nil
}

// known checks that a channel is open, or has been.
func (w *Writer) known(id uint32, what string) error {
	if id == 0 || id > w.last {
		return malformed("%s for channel %d, which was never opened", what, id)
	}
	return nil
}

func (w *Writer) credit(m *wirepb.Credit) error {
	if err := w.known(m.GetChannel(), "Credit"); err != nil {
		return err
	}
	c := w.channels[m.GetChannel()]
	if c == nil {
		return nil // it ended while this was on its way
	}
	if m.GetBytes() > maxCredit || c.credit+int64(m.GetBytes()) > maxCredit {
		return malformed("Credit of %d bytes on channel %d, which has %d", m.GetBytes(), c.id, c.credit)
	}
	c.credit += int64(m.GetBytes())
	return nil
}

func (w *Writer) ack(m *wirepb.Ack) error {
	if err := w.known(m.GetChannel(), "Ack"); err != nil {
		return err
	}
	c := w.channels[m.GetChannel()]
	if c == nil {
		return nil
	}
	at := engine.Position(m.GetPosition())
	if c.state == stateStreaming && c.compare(at, c.sent) > 0 {
		return malformed("Ack of %s on channel %d, where only %s has been sent", at, c.id, c.sent)
	}
	c.acked, c.durable = at, m.GetDurable()
	w.out = append(w.out, Output{Acked: &Acked{c.reader, engine.CursorKey{Log: c.log, Scope: wire.ScopeOf(c.scope)}, at, c.durable}})
	return nil
}

// Serve takes what the node serves now. Call it before the first frame, and
// after each change.
func (w *Writer) Serve(served []Served) []Output {
	if w.closed {
		return nil
	}
	w.served = served
	if w.peer != "" {
		w.advertise(false)
		for _, id := range slices.Clone(w.order) {
			if c := w.channels[id]; c != nil {
				if err := w.advance(c); err != nil {
					w.fail(err)
				}
			}
		}
	}
	return w.take()
}

// advertise tells the peer what has changed; everything the first time.
func (w *Writer) advertise(first bool) {
	var frames []*wirepb.Advert
	cur, size := &wirepb.Advert{}, 0
	room := func(m proto.Message) bool {
		n := proto.Size(m) + 8
		full := size > 0 && size+n > maxControl
		if full {
			frames, cur, size = append(frames, cur), &wirepb.Advert{}, 0
		}
		size += n
		return full
	}
	now := map[engine.LogID]*Served{}
	for i := range w.served {
		s := &w.served[i]
		now[s.Log] = s
		if old := w.advertised[s.Log]; old != nil && sameOffer(old, s) {
			continue
		}
		entry := func() *wirepb.LogAdvert {
			return &wirepb.LogAdvert{
				Log: wire.FromLog(s.Log), Oldest: string(s.Oldest), Head: wire.FromCursor(s.Head, s.Time), Path: s.Path,
			}
		}
		a := entry()
		room(a)
		cur.Logs = append(cur.Logs, a)
		for _, t := range s.Tables {
			table := wire.FromTable(t)
			if room(table) {
				a = entry()
				cur.Logs = append(cur.Logs, a)
			}
			a.Tables = append(a.Tables, table)
			if sc := newest(s.Schemas, t); sc != nil {
				m := wire.FromSchema(s.Log, sc)
				if room(m) {
					a = entry()
					cur.Logs = append(cur.Logs, a)
				}
				a.Schemas = append(a.Schemas, m)
			}
		}
	}
	for id := range w.advertised {
		if now[id] == nil {
			m := wire.FromLog(id)
			room(m)
			cur.Withdrawn = append(cur.Withdrawn, m)
		}
	}
	slices.SortFunc(cur.Withdrawn, func(a, b *wirepb.LogID) int { return int(int64(a.Epoch) - int64(b.Epoch)) })
	w.advertised = now
	if frames = append(frames, cur); size == 0 && !first {
		return
	}
	for i, a := range frames {
		a.More = i < len(frames)-1
		w.send(a)
	}
}

func newest(schemas []*engine.Schema, table engine.TableName) *engine.Schema {
	for _, s := range slices.Backward(schemas) {
		if s.Table == table {
			return s
		}
	}
	return nil
}

// sameOffer reports whether two offers of a log differ in no more than their
// positions.
func sameOffer(a, b *Served) bool {
	return slices.Equal(a.Path, b.Path) && slices.Equal(a.Tables, b.Tables) && len(a.Schemas) == len(b.Schemas)
}

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

// Tick lets time pass. Call it every few hundred milliseconds.
func (w *Writer) Tick(now time.Time) []Output {
	switch {
	case w.closed:
		return nil
	case w.peer == "":
		if now.Sub(w.started) >= w.cfg.Limits.HandshakeTimeout {
			w.fail(&Error{Code: wirepb.ErrorCode_ERROR_CODE_TIMEOUT, Message: fmt.Sprintf("no Hello within %s", w.cfg.Limits.HandshakeTimeout)})
		}
		return w.take()
	}
	if now.Sub(w.lastHead) >= HeadEvery-HeadEvery/8 { // ticks are not exact
		w.lastHead = now
		w.heads()
	}
	return w.take()
}

// heads tells how far the logs being read have got; without any, that the node
// lives.
func (w *Writer) heads() {
	sent := false
	for i := range w.served {
		s := &w.served[i]
		for _, c := range w.channels {
			if c.log.Origin == s.Log.Origin {
				w.send(&wirepb.Head{Log: wire.FromLog(s.Log), Head: wire.FromCursor(s.Head, s.Time), Oldest: string(s.Oldest)})
				sent = true
				break
			}
		}
	}
	if !sent {
		w.send(&wirepb.Advert{})
	}
}

// Drain tells the peer to move to another node by a deadline, and takes no new
// subscription.
func (w *Writer) Drain(deadline time.Duration) []Output {
	if w.closed || w.draining {
		return nil
	}
	w.draining = true
	w.send(&wirepb.GoAway{Message: fmt.Sprintf("node %s is draining", w.cfg.NodeID), DeadlineMs: uint32(deadline.Milliseconds())})
	return w.take()
}

// Channels returns what the session reads, for status, in the order of its
// channels.
func (w *Writer) Channels() []*wirepb.ReaderChannel {
	var all []*wirepb.ReaderChannel
	for _, id := range w.order {
		c := w.channels[id]
		all = append(all, &wirepb.ReaderChannel{
			Log: wire.FromLog(c.log), Mode: c.mode, Position: string(c.sent), Acked: string(c.acked), Durable: c.durable,
			Credit: c.credit, State: c.state.String(), Tables: wire.FromTables(c.tables),
		})
	}
	return all
}
