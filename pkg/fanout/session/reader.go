package session

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// ReaderConfig is what a Reader needs to know.
type ReaderConfig struct {
	NodeID   string
	Name     string // of the source in the node; names the reader in acks
	Software string
	Scope    *scope.Scope      // wanted; nil: all
	Compare  engine.Comparator // of positions
	Limits   Limits
	// Window is how many bytes of a log may wait here to be applied.
	Window int64
	// Upward are the ids of the nodes above this one through its other edges.
	Upward []string
	// Places are where the reader is. The machine keeps them up to date once it is
	// activated.
	Places Places
	// NoSnapshot refuses to be caught up by a snapshot.
	NoSnapshot bool
}

// Place is how far a reader has got in a log. It outlives sessions: the next
// one goes on from it, wherever it leads.
type Place struct {
	// Position is the end of the last transaction received whole; Known is false
	// before there is one.
	Position engine.Position
	Time     engine.Time
	Known    bool
	Parts    uint32             // received of the transaction after Position
	Tables   []engine.TableName // covered up to Position; nil where it is not known
	Lost     string             // why only a snapshot can go on from here; empty if it can
	Gap      string             // what the last peer said of a cursor that it no longer held
	Buffered int64              // bytes received and not yet applied

	handed map[uint32]bool // schemas that have been delivered
}

// Places are a reader's places in all logs.
type Places map[engine.LogID]*Place

// Action is one thing for a Reader's driver to do: exactly one field is set.
type Action struct {
	Frame   *wirepb.Frame // send it
	Deliver *Delivery     // hand it to the sink, in order within the log's origin
	Head    *Head         // tell the sink
	GoAway  *GoAway       // move to another peer
	Offers  bool          // what the peer offers, or the answer to it, has changed
	Close   error         // end the session; nothing follows
}

// Head is how far a log has got at the peer.
type Head struct {
	Log      engine.LogID
	Position engine.Position
	Time     engine.Time
}

// GoAway is a peer's wish to end.
type GoAway struct {
	Message string
	Within  time.Duration
}

// Offer is a log that the peer can serve.
type Offer struct {
	Log     engine.LogID
	Path    []string
	Tables  []engine.TableName
	Schemas map[engine.TableName]*engine.Schema // newest
	Oldest  engine.Position                     // it can be gone on with from here, and from later
	Head    engine.Position
	Time    engine.Time
	Scope   *scope.Scope // tables of which the peer has only a part; nil for none
	Since   engine.Time  // a cursor from then on can be caught up from the peer's state; 0 for none
	Refused *Refusal     // nil if it is read from the peer

	retry   time.Time // not before
	channel uint32    // 0: none
	skip    bool      // nothing of it is wanted
}

// Reader is the reading side of a session.
type Reader struct {
	cfg     ReaderConfig
	out     []Action
	started time.Time
	heard   time.Time
	peer    string
	closed  bool
	active  bool
	limit   int64

	advert   []*wirepb.Advert // the run being received
	complete bool             // the first run is here
	offers   map[engine.LogID]*Offer
	places   Places
	channels map[uint32]*incoming
	last     uint32
}

// incoming is a channel being read.
type incoming struct {
	id      uint32
	offer   *Offer
	place   *Place
	log     engine.LogID
	state   incomingState
	tables  []engine.TableName
	schemas *Schemas
	fresh   []*engine.Schema // of log, received and not yet delivered
	spec    *engine.BaselineSpec
	rows    uint64
	delta   bool  // caught up by STATE_DELTA
	left    int64 // credit that the peer has
	holes   int   // in a row
	ack     *wirepb.Ack
	cause   string // of a snapshot
}

type incomingState uint8

const (
	inSubscribed incomingState = iota // Subscribe is sent
	inSnapshot                        // Subscribed has come, SnapshotBegin has not
	inRows
	inStream
)

const (
	maxTables  = 1 << 16 // in all of a peer's adverts
	maxRun     = 1 << 12 // frames of one advert
	maxHoles   = 3
	retryAfter = time.Second
)

// NewReader returns a Reader for a session that starts now, and its Hello.
func NewReader(cfg ReaderConfig, now time.Time) (*Reader, []Action) {
	cfg.Limits = cfg.Limits.withDefaults()
	r := &Reader{cfg: cfg, started: now, heard: now, limit: cfg.Window, offers: map[engine.LogID]*Offer{}, channels: map[uint32]*incoming{}, places: cfg.Places}
	if r.places == nil {
		r.places = Places{}
	}
	r.send(r.hello(nil))
	return r, r.take()
}

func (r *Reader) hello(held *wirepb.Held) *wirepb.Hello {
	return &wirepb.Hello{MinVersion: MinVersion, Version: Version, NodeId: r.cfg.NodeID, Capabilities: capabilities, Software: r.cfg.Software, Held: held}
}

// Peer returns the writer's node id; empty until its Hello.
func (r *Reader) Peer() string { return r.peer }

// Heard returns when the peer last sent something: it speaks every HeadEvery.
func (r *Reader) Heard() time.Time { return r.heard }

// Complete reports whether the peer has said all it can serve.
func (r *Reader) Complete() bool { return r.complete }

// Offers returns what the peer can serve, ordered by log.
func (r *Reader) Offers() []*Offer {
	return slices.SortedFunc(maps.Values(r.offers), func(a, b *Offer) int {
		return cmp.Or(cmp.Compare(a.Log.Origin, b.Log.Origin), cmp.Compare(a.Log.Epoch, b.Log.Epoch))
	})
}

// Wanted reports whether the log is read from the peer, or will be.
func (o *Offer) Wanted() bool { return o.Refused == nil && !o.skip }

func (r *Reader) take() []Action {
	o := r.out
	r.out = nil
	return o
}

func (r *Reader) send(kind any) { r.out = append(r.out, Action{Frame: frame(kind)}) }

func (r *Reader) fail(err error) {
	var e *Error
	if !errors.As(err, &e) {
		err = malformed("%v", err)
	}
	if f := ErrorFrame(err); f != nil {
		r.out = append(r.out, Action{Frame: f})
	}
	r.end()
	r.out = append(r.out, Action{Close: err})
}

func (r *Reader) end() {
	r.closed = true
	for _, id := range slices.Sorted(maps.Keys(r.channels)) {
		r.abort(r.channels[id])
	}
}

// End ends the session from this side: what was half received of a snapshot is
// given up.
func (r *Reader) End() []Action {
	if !r.closed {
		r.end()
	}
	return r.take()
}

// Fail ends the session with an error that the driver has found, such as damage
// in a payload.
func (r *Reader) Fail(err error) []Action {
	if !r.closed {
		r.fail(err)
	}
	return r.take()
}

func (r *Reader) abort(c *incoming) {
	if c.state == inRows {
		r.deliver(c, &Delivery{Kind: DeliverAbort})
	}
	c.spec = nil
}

func (r *Reader) drop(c *incoming) {
	r.abort(c)
	delete(r.channels, c.id)
	if c.offer.channel == c.id {
		c.offer.channel = 0
	}
}

func (r *Reader) deliver(c *incoming, d *Delivery) {
	d.Key, d.Schemas = r.key(c.log), c.schemas
	c.place.Buffered += d.Size
	r.out = append(r.out, Action{Deliver: d})
}

func (r *Reader) key(log engine.LogID) engine.CursorKey {
	return engine.CursorKey{Log: log, Scope: r.cfg.Scope.ID()}
}

// Activate starts reading: what is offered is subscribed to.
func (r *Reader) Activate(now time.Time) []Action {
	if r.closed || r.active {
		return nil
	}
	r.active = true
	if r.peer != "" {
		r.tellHeld()
	}
	r.consider(now)
	return r.take()
}

// tellHeld says what is held of the peer's own logs, before the first Subscribe.
func (r *Reader) tellHeld() {
	var epoch engine.Epoch
	var t engine.Time
	for log, p := range r.places {
		if strings.HasPrefix(log.Origin, r.peer+"#") && p.Known {
			epoch, t = max(epoch, log.Epoch), max(t, p.Time)
		}
	}
	if epoch != 0 {
		r.send(r.hello(&wirepb.Held{NodeId: r.peer, Epoch: uint64(epoch), Time: uint64(t)}))
	}
}

// consider decides anew about each offer, and subscribes where it can.
func (r *Reader) consider(now time.Time) {
	for _, o := range r.Offers() {
		tables := r.wantedOf(o)
		o.skip = len(tables) == 0 && r.cfg.Scope != nil
		refused := r.judge(o)
		if refused == nil && now.Before(o.retry) {
			refused = o.Refused // by the peer, or by the sink
		}
		if o.Refused = refused; !o.Wanted() {
			if c := r.channels[o.channel]; c != nil {
				r.send(&wirepb.Unsubscribe{Channel: c.id})
				r.drop(c)
			}
			continue
		}
		if c := r.channels[o.channel]; c != nil && !covers(c.tables, tables) && c.state != inSubscribed {
			c.place.Lost = fmt.Sprintf("log %s now has tables that were not read before", o.Log)
			r.send(&wirepb.Unsubscribe{Channel: c.id})
			r.drop(c)
		}
		if r.active && o.channel == 0 && !now.Before(o.retry) && !r.awaitsReset(o) {
			r.subscribe(o, tables)
		}
	}
}

// judge says why an offer cannot be taken, or nil.
func (r *Reader) judge(o *Offer) *Refusal {
	refuse := func(code RefusalCode, format string, args ...any) *Refusal {
		return &Refusal{o.Log, o.Path, code, fmt.Sprintf(format, args...)}
	}
	way := strings.Join(o.Path, " → ")
	switch {
	case slices.Contains(o.Path, r.cfg.NodeID):
		return refuse(RefusedLoop, "log %s has come by way of this node: %s → %s", o.Log, r.cfg.NodeID, way)
	case len(o.Path) > MaxPath:
		return refuse(RefusedPath, "log %s has passed %d nodes, and at most %d are allowed: %s", o.Log, len(o.Path), MaxPath, way)
	}
	for _, t := range r.wantedOf(o) {
		if o.Scope != nil && o.Scope.Covers(t) {
			if err := r.cfg.Scope.Of(t).Within(o.Scope.Of(t)); err != nil {
				return refuse(RefusedScope, "node %s has a part of log %s only: %v; or read from a node that has all", r.peer, o.Log, err)
			}
		}
	}
	for log, p := range r.places {
		if log.Origin == o.Log.Origin && log.Epoch > o.Log.Epoch && p.Known {
			return refuse(RefusedEpoch, "epoch %d of %s is held, and node %s has epoch %d: waiting until it has caught up", log.Epoch, o.Log.Origin, r.peer, o.Log.Epoch)
		}
	}
	return nil
}

// awaitsReset reports whether a channel of an older epoch of the log is open:
// the writer moves it by itself.
func (r *Reader) awaitsReset(o *Offer) bool {
	for _, c := range r.channels {
		if c.log.Origin == o.Log.Origin && c.log.Epoch < o.Log.Epoch {
			return true
		}
	}
	return false
}

func (r *Reader) wantedOf(o *Offer) []engine.TableName {
	if r.cfg.Scope == nil {
		return o.Tables
	}
	var ts []engine.TableName
	for _, t := range r.cfg.Scope.Names() {
		if slices.Contains(o.Tables, t) {
			ts = append(ts, t)
		}
	}
	return ts
}

// covers reports whether have, if known, holds all of want.
func covers(have, want []engine.TableName) bool {
	if have == nil {
		return true
	}
	for _, t := range want {
		if !slices.Contains(have, t) {
			return false
		}
	}
	return true
}

func (r *Reader) subscribe(o *Offer, tables []engine.TableName) {
	p := r.places[o.Log]
	if p == nil {
		p = &Place{}
		r.places[o.Log] = p
	}
	if p.Known && p.Lost == "" && !covers(p.Tables, tables) {
		p.Lost = fmt.Sprintf("tables of log %s are wanted that were not read before", o.Log)
	}
	r.last++
	c := &incoming{id: r.last, offer: o, place: p, log: o.Log, tables: tables, schemas: newSchemas(), left: max(0, r.limit-p.Buffered)}
	r.channels[c.id], o.channel = c, c.id
	m := &wirepb.Subscribe{Channel: c.id, Log: wire.FromLog(o.Log), Credit: uint64(c.left), Upward: r.cfg.Upward, Reader: r.cfg.Name}
	if r.cfg.Scope != nil {
		m.Scope = wire.FromScope(r.cfg.Scope.Only(tables))
	}
	if p.Known && p.Lost == "" {
		m.From = &wirepb.Subscribe_Cursor{Cursor: wire.FromCursor(p.Position, p.Time)}
		m.StagedParts = p.Parts
	}
	if r.cfg.NoSnapshot {
		m.Modes = []wirepb.Mode{wirepb.Mode_MODE_LIVE, wirepb.Mode_MODE_DELTA, wirepb.Mode_MODE_STATE_DELTA}
	}
	c.cause = cmp.Or(p.Lost, p.Gap)
	r.carry(c)
	r.send(m)
}

func (r *Reader) carry(c *incoming) {
	r.deliver(c, &Delivery{Kind: DeliverCarry, Path: c.offer.Path, Tables: c.tables})
}

// Applied says that bytes of a log have been applied, so that there is room.
func (r *Reader) Applied(log engine.LogID, n int64) []Action {
	if p := r.places[log]; p != nil {
		p.Buffered -= n
	}
	if r.closed {
		return nil
	}
	for _, c := range r.channels {
		if c.log == log {
			r.grant(c)
		}
	}
	return r.take()
}

// SetWindow changes how many bytes of each log may wait to be applied.
func (r *Reader) SetWindow(n int64) []Action {
	r.limit = n
	if r.closed {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(r.channels)) {
		r.grant(r.channels[id])
	}
	return r.take()
}

// grant lets the peer send what there is room for, unless that is little.
func (r *Reader) grant(c *incoming) {
	room := r.limit - c.place.Buffered - c.left
	if room <= 0 || room < r.limit/4 {
		return
	}
	c.left += room
	r.send(&wirepb.Credit{Channel: c.id, Bytes: uint64(room)})
}

// Ack notes how far a log has been applied; it is sent with the next Tick.
func (r *Reader) Ack(key engine.CursorKey, at engine.Position, durable bool) {
	for _, c := range r.channels {
		if c.log == key.Log && (c.state == inStream || c.state == inRows) {
			c.ack = &wirepb.Ack{Channel: c.id, Position: string(at), Durable: durable}
		}
	}
}

// Rewind goes back to a cursor: what was received after it has been given up.
// What was buffered of the log must have been accounted for with Applied.
func (r *Reader) Rewind(now time.Time, log engine.LogID, to engine.Position, t engine.Time) []Action {
	if p := r.places[log]; p != nil {
		p.Position, p.Time, p.Parts, p.handed = to, t, 0, nil
	}
	if r.closed {
		return nil
	}
	for _, c := range r.channels {
		if c.log == log {
			r.send(&wirepb.Unsubscribe{Channel: c.id})
			r.drop(c)
		}
	}
	r.consider(now)
	return r.take()
}

// Refuse stops reading a log that the sink does not take.
func (r *Reader) Refuse(now time.Time, log engine.LogID, code RefusalCode, why string) []Action {
	o := r.offers[log]
	if r.closed || o == nil {
		return nil
	}
	if c := r.channels[o.channel]; c != nil {
		r.send(&wirepb.Unsubscribe{Channel: c.id})
		r.drop(c)
	}
	o.Refused, o.retry = &Refusal{log, o.Path, code, why}, now.Add(5*retryAfter)
	r.out = append(r.out, Action{Offers: true})
	return r.take()
}

// Tick lets time pass. Call it every few hundred milliseconds.
func (r *Reader) Tick(now time.Time) []Action {
	switch {
	case r.closed:
		return nil
	case !r.complete && now.Sub(r.started) >= r.cfg.Limits.HandshakeTimeout:
		r.fail(&Error{Code: wirepb.ErrorCode_ERROR_CODE_TIMEOUT, Message: fmt.Sprintf("no Hello and Advert within %s", r.cfg.Limits.HandshakeTimeout)})
		return r.take()
	}
	for _, id := range slices.Sorted(maps.Keys(r.channels)) {
		if c := r.channels[id]; c.ack != nil {
			r.send(c.ack)
			c.ack = nil
		}
	}
	r.consider(now)
	return r.take()
}
