package session

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Served is what a node serves of a log at a moment.
type Served struct {
	engine.Advert
	Compare engine.Comparator
	Schemas []*engine.Schema // of the log, by ID
	// CompleteFrom is the time from which the state holds every delete; a cursor at
	// or after it can be caught up from there. 0 for none.
	CompleteFrom engine.Time
	// Trail says which tables were behind where in the log.
	Trail engine.Trail
	// Scope are the tables of which the node has only a part; nil for none.
	Scope *scope.Scope
	// Hidden says that the log has tables that the peer may not see; they are not
	// among Tables and Schemas.
	Hidden bool
}

// WriterConfig is what a Writer needs to know of its node.
type WriterConfig struct {
	NodeID   string
	Software string // for people
	Limits   Limits
	// Dialled says that this side has dialled: the peer's Hello answers that of the
	// Reader of this side.
	Dialled bool
	// Duplex says that this side may read from the peer in the same session.
	Duplex bool
	// Basic says that this side keeps one cursor for all that it reads, so that the
	// pair has the shared log between them.
	Basic bool
	// Vectors are what the node's readers have told of their places; nil: those of
	// this session only.
	Vectors *Vectors
	// Merged is the node's shared log.
	Merged *Merged
	// Held returns the highest epoch and time that the node holds of a node's own
	// logs.
	Held func(node string) (engine.Epoch, engine.Time)
	// Provider returns the peer from which this node reads an origin's log, or is
	// about to; empty for none.
	Provider func(origin string) string
	// Permit says why the peer may not read a table; nil where it may. A nil Permit
	// permits everything.
	Permit func(engine.TableName) error
	// Archived returns how far an archive leads a reader of tables of a log that is
	// at from, if that is at least to where the log begins; ok is false where none does. It
	// must not wait. Nil where nothing is archived.
	Archived func(log engine.LogID, tables []engine.TableName, from, oldest engine.Position) (to engine.Cursor, ok bool)
	// Holders returns how far each holder above has a log of this node, and what all
	// roots have of it; Floor what a holder has. Nil in a node that is part of no relay
	// tree.
	Holders func(log engine.LogID) (holders Holdings, stable engine.Position)
	Floor   func(log engine.LogID, holder string) engine.Position
	// Share returns the one scope that stands for all that are equal to it, so that
	// what is worked out for it is shared; nil where nothing is.
	Share func(*scope.Scope) *scope.Scope
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
	Holders Holdings // how far it and those above it have the log; nil if it does not say
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
	peer     string            // empty until its Hello
	delta    bool              // the peer can be caught up by STATE_DELTA
	replays  bool              // the peer can be caught up by REPLAY_ARCHIVE
	shared   bool              // the pair has one cursor for all logs
	resuming []*wirepb.Resume  // the run being received
	shapes   map[string]uint32 // that were told in adverts; nil where the peer knows none
	floors   bool              // the peer speaks of holders
	behind   bool              // the peer is told which tables are behind
	closed   bool
	draining bool

	served     []Served
	byOrigin   map[string][]int      // indexes into served
	gone       map[engine.LogID]bool // served once, and no longer
	advertised map[engine.LogID]*Served
	stated     map[engine.LogID]stated // of logs that the peer does not read
	lastHead   time.Time
	told       map[engine.LogID]told // heads
	headRound  int
	spoke      time.Time     // when heads were told last
	heartbeat  time.Duration // how often the reader wants to hear of this side; 0 before it has said

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
	scope  *scope.Scope  // as asked for; nil: all
	lens   *scope.Scope  // what is left to do for it here; nil: nothing
	has    *scope.Scope  // of the log at this node, when lens was made
	modes  []wirepb.Mode // nil: all
	shapes int           // schemas of the log that lens has been checked against
	state  channelState
	mode   wirepb.Mode
	// sent and parts are the reader's place: it has everything up to sent, and
	// parts of the transaction after it. Never past the store's head.
	sent      engine.Position
	time      engine.Time
	parts     uint32
	since     engine.Time     // of a STATE_DELTA: what was written up to then is known
	replay    engine.Position // of a REPLAY_ARCHIVE: up to where; empty where there is none
	failed    bool            // a replay: not tried again
	forgotten engine.Time     // deletes before it are no longer known; 0 for none that are
	held      bool            // the snapshot waits for its rows: see Hold
	// fresh are tables that the cursor does not cover, or that lack what the log does not
	// bring: they are sent whole.
	fresh   []engine.TableName
	behind  map[engine.TableName]engine.Reached // tables that sent is ahead of, as the peer knows it; never altered
	trail   engine.Trail                        // of the log, as last served
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
	brief   bool     // opened by Resume
	follow  bool     // a snapshot may be followed by the log
	merging *merging // of the shared log; nil for one log
	stated  stated
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
	quantum    = 64 << 10  // bytes of a channel's turn
	alone      = 256 << 10 // the same of the only channel that there is: nobody waits for it
	maxControl = 48 << 10  // bytes of lists in one control frame
	maxCredit  = 1 << 40
)

// NewWriter returns a Writer for a session that starts now.
func NewWriter(cfg WriterConfig, now time.Time) *Writer {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Vectors == nil {
		cfg.Vectors = NewVectors(0)
	}
	return &Writer{cfg: cfg, started: now, lastHead: now, channels: map[uint32]*outgoing{}, advertised: map[engine.LogID]*Served{}, stated: map[engine.LogID]stated{}, told: map[engine.LogID]told{}, gone: map[engine.LogID]bool{}}
}

// Peer returns the reader's node id; empty until its Hello.
func (w *Writer) Peer() string { return w.peer }

// Simplex says, before the peer's Hello, that this side does not read from it.
func (w *Writer) Simplex() { w.cfg.Duplex = false }

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
		return w.subscribe(k.Subscribe, false)
	case *wirepb.Frame_Resume:
		return w.resume(k.Resume)
	case *wirepb.Frame_Unsubscribe:
		if err := w.known(k.Unsubscribe.GetChannel(), "Unsubscribe"); err != nil {
			return err
		}
		w.drop(k.Unsubscribe.GetChannel())
	case *wirepb.Frame_Credit:
		return w.credit(k.Credit)
	case *wirepb.Frame_Ack:
		return w.ack(k.Ack)
	case *wirepb.Frame_GoAway:
		// The reader ends soon, which does not change what is sent.
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
	w.shared = w.cfg.Basic || !slices.Contains(h.GetCapabilities(), CapOriginCursors)
	w.delta = slices.Contains(h.GetCapabilities(), CapStateDelta)
	w.replays = slices.Contains(h.GetCapabilities(), CapReplayArchive)
	if slices.Contains(h.GetCapabilities(), CapShapes) {
		w.shapes = map[string]uint32{}
	}
	w.floors = slices.Contains(h.GetCapabilities(), CapFloors)
	w.behind = !w.shared && slices.Contains(h.GetCapabilities(), CapBehind)
	if !w.cfg.Dialled {
		w.answer()
	}
	if err := w.held(h.GetHeld()); err != nil {
		return err
	}
	w.advertise(true)
	return nil
}

// answer sends the Hello of a side that was dialled.
func (w *Writer) answer() {
	epoch, _ := w.cfg.Held(w.cfg.NodeID)
	m := &wirepb.Hello{
		MinVersion: MinVersion, Version: Version, NodeId: w.cfg.NodeID, Epoch: uint64(epoch), Capabilities: capabilitiesOf(w.cfg.Duplex, w.cfg.Basic), Software: w.cfg.Software,
	}
	if e, t := w.cfg.Held(w.peer); e != 0 {
		m.Held = &wirepb.Held{NodeId: w.peer, Epoch: uint64(e), Time: uint64(t)}
	}
	w.send(m)
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
	if c.merging != nil {
		log := wire.Log(m.GetLog())
		sent, ok := c.merging.sent[log]
		s, _ := w.find(log)
		if !ok || s == nil {
			return nil
		}
		if s.Compare(at, sent) > 0 {
			at = sent
		}
		w.out = append(w.out, Output{Acked: &Acked{Reader: c.reader, Key: engine.CursorKey{Log: log}, At: at, Durable: m.GetDurable()}})
		return nil
	}
	if c.state == stateStreaming && c.compare(at, c.sent) > 0 {
		at = c.sent // it has come further by way of another node
	}
	c.acked, c.durable = at, m.GetDurable()
	holders, err := toHoldings(m.GetHolders())
	if err != nil {
		return err
	}
	w.out = append(w.out, Output{Acked: &Acked{c.reader, engine.CursorKey{Log: c.log, Scope: c.scope.ID()}, at, c.durable, holders}})
	return nil
}

// Serve takes what the node serves now. Call it before the first frame, and
// after each change.
func (w *Writer) Serve(served []Served) []Output {
	if w.closed {
		return nil
	}
	if sameOffers(w.served, served) { // most often: only positions differ
		w.served = served
	} else {
		w.offer(served)
	}
	if w.peer != "" {
		for _, id := range slices.Clone(w.order) {
			if c := w.channels[id]; c != nil && c.merging != nil {
				c.merging.waits = false
				w.nextStretch(c)
			} else if c != nil {
				if err := w.advance(c); err != nil {
					w.fail(err)
				}
			}
		}
	}
	return w.take()
}

// offer takes logs that are not those of before, or are offered otherwise.
func (w *Writer) offer(served []Served) {
	for i := range w.served {
		w.gone[w.served[i].Log] = true
	}
	for i := range served {
		delete(w.gone, served[i].Log)
	}
	w.served = served
	w.byOrigin = make(map[string][]int, len(served))
	for i := range served {
		w.byOrigin[served[i].Log.Origin] = append(w.byOrigin[served[i].Log.Origin], i)
	}
	if w.peer != "" {
		w.advertise(false)
	}
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
		if w.heads(now.Sub(w.spoke) >= w.heartbeat-HeadEvery/8) {
			w.spoke = now
		}
		w.tellStable()
	}
	return w.take()
}

// told is what was told of a log: how far it is here, and at its origin.
type told struct {
	here   engine.Position
	origin engine.Head
}

// originFor returns the head at the origin as the peer is told: of a log of which it
// sees a part, a count would say nothing.
func (s *Served) originFor() engine.Head {
	h := s.Origin
	if s.Hidden {
		h.Changes, h.Counter = 0, 0
	}
	return h
}

// repeatHeads is after how many rounds the heads of logs that are read are told
// though they have not moved.
const repeatHeads = 16

// maxHeartbeat is the longest that a reader may want to hear nothing.
const maxHeartbeat = time.Minute

// heartbeatOf is how often a reader wants to hear of this side.
func heartbeatOf(m *wirepb.Subscribe) time.Duration {
	return min(time.Duration(m.GetHeartbeatMs())*time.Millisecond, maxHeartbeat)
}

// heads tells how far the logs have got since the last time; if none has moved, and a
// word is due, that the node lives. It reports whether it has told anything.
func (w *Writer) heads(due bool) bool {
	sent := false
	w.headRound++
	read := map[string]bool{}
	if repeat := w.headRound%repeatHeads == 1; repeat {
		for _, c := range w.channels {
			read[c.log.Origin] = true
		}
	}
	for i := range w.served {
		s := &w.served[i]
		if read[s.Log.Origin] || w.told[s.Log] != (told{s.Head, s.Origin}) {
			w.head(s)
			sent = true
		}
	}
	if !sent && due {
		w.send(&wirepb.Advert{})
		sent = true
	}
	return sent
}

// head tells where a log begins here, and how far it has got.
func (w *Writer) head(s *Served) {
	w.send(&wirepb.Head{Log: wire.FromLog(s.Log), Head: wire.FromCursor(s.Head, s.Time), Oldest: string(s.Oldest), Source: wire.FromHead(s.originFor())})
	w.told[s.Log] = told{s.Head, s.Origin}
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
