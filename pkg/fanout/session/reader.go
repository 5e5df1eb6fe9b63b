package session

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
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
	// Upward returns the ids of the nodes above this one, which read what it serves on
	// under another identity; nil for a node that does not. Asked at each Subscribe.
	Upward func() []string
	// Places are where the reader is. The machine keeps them up to date once it is
	// activated. Scalars are where it is in its peers' shared logs.
	Places  Places
	Scalars Scalars
	// Vectors are what the reader has told its peers of its places, by peer.
	Vectors Told
	// NoSnapshot refuses to be caught up by a snapshot.
	NoSnapshot bool
	// Duplex says that this side serves the peer in the same session, if the peer
	// wants that.
	Duplex bool
	// Basic says that this side keeps one cursor for all that it reads.
	Basic bool
	// Holder names this life of the node in acks, in a relay tree; empty elsewhere.
	// Above returns how far those above have a log; nil where there is nobody.
	Holder string
	Above  func(log engine.LogID) Holdings
	// Elsewhere reports whether an origin's log is read over another session; nil
	// where there is no other.
	Elsewhere func(origin string) bool
	// Own reports whether an origin is one of this node's own that is read all the
	// same: see Intake.Own. Nil where none is.
	Own func(origin string) bool
	// Called says that the peer has dialled: its Hello comes first, and the Writer
	// of this side answers it.
	Called bool
	// Heartbeat is how often the peer is to say that it lives while there is nothing
	// new; the least, and the default, is HeadEvery.
	Heartbeat time.Duration
	// Assigned says that only logs are read whose origins Assign names.
	Assigned bool
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
	Compare  engine.Comparator  // of the log's positions
	Counts   Counts
	// Floor says that the log is to be gone on with at the floor: the node has what is
	// below by way of another log.
	Floor bool

	// path is that by which the log is said to come, where it comes in shared logs: see
	// Router. Nil where it is that of the session it is read over.
	path []string
	// before are the Tables of before a baseline that has come whole, until the sink has
	// committed it; had says that there is one.
	before []engine.TableName
	had    bool
	trail  engine.Trail    // which tables were behind where, as far as it may be gone back
	copier *Reader         // that a baseline comes over
	acked  *ackedAt        // how far the sink has got; nil for not known
	handed map[uint32]bool // schemas that have been delivered
}

// Counts are what has happened to a log on its way here.
type Counts struct {
	Bytes          int64 // of batches and rows, all
	Duplicates     int64 // batches that had come already
	DuplicateBytes int64
	Holes          int64 // asked for again
	Resets         int64 // new epochs
	Snapshots      int64 // taken in whole
	Replays        int64 // caught up from an archive
	StateDeltas    int64
	Floors         int64 // taken over at the floor
	Starved        int64 // frames after which the peer had no credit left
}

// Places are a reader's places in all logs, by origin and epoch.
type Places map[string]map[engine.Epoch]*Place

// Of returns the place in a log; nil for none.
func (ps Places) Of(log engine.LogID) *Place { return ps[log.Origin][log.Epoch] }

// Put notes the place in a log.
func (ps Places) Put(log engine.LogID, p *Place) {
	if ps[log.Origin] == nil {
		ps[log.Origin] = map[engine.Epoch]*Place{}
	}
	ps[log.Origin][log.Epoch] = p
}

// Drop forgets the place in a log.
func (ps Places) Drop(log engine.LogID) {
	if delete(ps[log.Origin], log.Epoch); len(ps[log.Origin]) == 0 {
		delete(ps, log.Origin)
	}
}

// All goes through all places, in any order. The one that it is at may be dropped.
func (ps Places) All() iter.Seq2[engine.LogID, *Place] {
	return func(yield func(engine.LogID, *Place) bool) {
		for origin, epochs := range ps {
			for epoch, p := range epochs {
				if !yield(engine.LogID{Origin: origin, Epoch: epoch}, p) {
					return
				}
			}
		}
	}
}

// newest returns the newest epoch of an origin of which something is held; 0 for none.
func (ps Places) newest(origin string) (newest engine.Epoch) {
	for epoch, p := range ps[origin] {
		if p.Known {
			newest = max(newest, epoch)
		}
	}
	return newest
}

// Action is one thing for a Reader's driver to do: exactly one field is set.
type Action struct {
	Frame   *wirepb.Frame // send it
	Deliver *Delivery     // hand it to the sink, in order within the log's origin
	Head    *Head         // tell the sink
	GoAway  *GoAway       // move to another peer
	Offers  bool          // what the peer offers, or the answer to it, has changed
	Witness *Witness      // what the peer holds of this node's own logs
	Stable  *Stable       // what the peer knows of a log of its own
	Close   error         // end the session; nothing follows
}

// Head is how far a log has got at its origin, as the peer has heard.
type Head struct {
	Log engine.LogID
	engine.Head
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
	Refused *Refusal     // nil if it is read from the peer, or can be
	Compare engine.Comparator

	retry   time.Time // not before
	channel uint32    // 0: none
	stopped bool      // by Stop
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
	duplex  bool                      // the peer reads in this session too
	shared  *sharing                  // the pair has one cursor for all logs; nil where each has its own
	alone   bool                      // the peer serves single tables that a cursor does not cover
	vectors bool                      // the peer takes vectors of cursors
	shapes  map[uint32]*wirepb.Schema // of the peer's adverts
	floors  bool                      // the peer speaks of holders
	behind  bool                      // the peer speaks of tables that are behind
	active  bool
	limit   int64

	advert    []*wirepb.Advert // the run being received
	complete  bool             // the first run is here
	offers    map[engine.LogID]*Offer
	sorted    []*Offer        // nil when it has to be made again
	unsettled bool            // Assign has changed something
	assigned  map[string]bool // origins, if not all
	places    Places
	channels  map[uint32]*incoming
	byLog     map[engine.LogID][]*incoming // the same; there may be thousands
	last      uint32
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
	marks   []engine.Mark // that have come for the next
	follow  *following    // of a baseline that the log follows; nil for one that is whole
	rows    uint64
	mode    wirepb.Mode
	left    int64 // credit that the peer has
	holes   int   // in a row
	ack     *wirepb.Ack
	cause   string             // of a snapshot
	whole   []engine.TableName // asked for beside the cursor, which does not cover them
	cursor  bool               // Subscribe has named a cursor
	asked   engine.Position    // that cursor; empty for the beginning of the log too
	// behind are the tables that are behind where what comes next gets to; nil: as before.
	behind map[engine.TableName]engine.Reached
	run    uint32 // the first channel of the Resume that has opened it; 0 for none
	floor  bool   // or FLOOR is asked for
	// what Ack has told
	toldHolders Holdings
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
	r := &Reader{cfg: cfg, started: now, heard: now, limit: cfg.Window, offers: map[engine.LogID]*Offer{}, channels: map[uint32]*incoming{}, byLog: map[engine.LogID][]*incoming{}, places: cfg.Places}
	if r.places == nil {
		r.places = Places{}
	}
	if r.cfg.Vectors == nil {
		r.cfg.Vectors = Told{}
	}
	if r.cfg.Scalars == nil {
		r.cfg.Scalars = Scalars{}
	}
	if !cfg.Called {
		r.send(r.hello(nil))
	}
	return r, r.take()
}

func (r *Reader) hello(held *wirepb.Held) *wirepb.Hello {
	return &wirepb.Hello{MinVersion: MinVersion, Version: Version, NodeId: r.cfg.NodeID, Capabilities: capabilitiesOf(r.cfg.Duplex, r.cfg.Basic), Software: r.cfg.Software, Held: held}
}

// Peer returns the writer's node id; empty until its Hello.
func (r *Reader) Peer() string { return r.peer }

// Duplex reports whether the peer reads from this side in the same session.
func (r *Reader) Duplex() bool { return r.duplex }

func (r *Reader) upward() []string {
	if r.cfg.Upward == nil {
		return nil
	}
	return r.cfg.Upward()
}

func (r *Reader) heartbeatMs() uint32 { return uint32(r.cfg.Heartbeat.Milliseconds()) }

// Heard returns when the peer last sent something: it speaks every HeadEvery, or every
// ReaderConfig.Heartbeat.
func (r *Reader) Heard() time.Time { return r.heard }

// Complete reports whether the peer has said all it can serve.
func (r *Reader) Complete() bool { return r.complete }

// Offers returns what the peer can serve, ordered by log. It must not be altered.
func (r *Reader) Offers() []*Offer {
	if r.sorted == nil {
		r.sorted = slices.SortedFunc(maps.Values(r.offers), func(a, b *Offer) int { return compareLogs(a.Log, b.Log) })
	}
	return r.sorted
}

// Assign says whether an origin's log is read from this peer: see
// ReaderConfig.Assigned. What is no longer read ends at once; what is read from now
// on begins with Settle.
func (r *Reader) Assign(origin string, read bool) []Action {
	if r.closed || r.assigned[origin] == read {
		return nil
	}
	if r.assigned == nil {
		r.assigned = map[string]bool{}
	}
	r.unsettled = true
	if r.assigned[origin] = read; read {
		for _, o := range r.offersOf(origin) {
			if o.stopped {
				o.retry, o.stopped = time.Time{}, false
			}
		}
		return nil
	}
	delete(r.assigned, origin)
	for _, o := range r.offersOf(origin) {
		if c := r.channels[o.channel]; c != nil {
			r.send(&wirepb.Unsubscribe{Channel: c.id})
			r.drop(c)
		}
	}
	return r.take()
}

// offersOf returns the offers of an origin's logs.
func (r *Reader) offersOf(origin string) []*Offer {
	all := r.Offers()
	i, _ := slices.BinarySearchFunc(all, engine.LogID{Origin: origin}, func(o *Offer, log engine.LogID) int { return compareLogs(o.Log, log) })
	n := i
	for n < len(all) && all[n].Log.Origin == origin {
		n++
	}
	return all[i:n]
}

// Settle begins to read what Assign has named.
func (r *Reader) Settle(now time.Time) []Action {
	if r.closed || !r.unsettled {
		return nil
	}
	r.consider(now)
	return r.take()
}

// CostsSnapshot reports whether a reader that could go on from its place would
// have to take a snapshot here.
func (o *Offer) CostsSnapshot(p *Place) bool {
	return p != nil && p.Known && p.Lost == "" && !p.Floor && o.Compare(p.Position, o.Oldest) < 0 && (o.Since == 0 || p.Time < o.Since)
}

// anywhere reports whether the log can be read from any position on: its rows have
// places, and a new reader begins with the first.
func (o *Offer) anywhere() bool {
	return len(o.Path) == 1 && o.Oldest == "" && o.Since == math.MaxInt64
}

// Wanted reports whether the log can be read from the peer.
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
		c := r.channels[id]
		if r.abort(c); c.place.copier == r {
			c.place.copier = nil
		}
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
	c.spec, c.marks, c.follow = nil, nil, nil
}

func (r *Reader) drop(c *incoming) {
	r.abort(c)
	if c.place.copier == r {
		c.place.copier = nil
	}
	r.remove(c)
	if c.offer.channel == c.id {
		c.offer.channel = 0
	}
}

// add and remove keep the channels, also by the log that each is of.
func (r *Reader) add(c *incoming) {
	r.channels[c.id] = c
	r.byLog[c.log] = append(r.byLog[c.log], c)
}

func (r *Reader) remove(c *incoming) {
	delete(r.channels, c.id)
	rest := slices.DeleteFunc(r.byLog[c.log], func(o *incoming) bool { return o == c })
	if r.byLog[c.log] = rest; len(rest) == 0 {
		delete(r.byLog, c.log)
	}
}

func (r *Reader) deliver(c *incoming, d *Delivery) {
	d.Key, d.Schemas, d.From, d.place = r.key(c.log), c.schemas, r, c.place
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
	for log, p := range r.places.All() {
		if strings.HasPrefix(log.Origin, r.peer+"#") && p.Known {
			epoch, t = max(epoch, log.Epoch), max(t, p.Time)
		}
	}
	if epoch != 0 && !r.cfg.Called { // one that is called says so in the answer
		r.send(r.hello(&wirepb.Held{NodeId: r.peer, Epoch: uint64(epoch), Time: uint64(t)}))
	}
}

// consider decides anew about each offer, and subscribes where it can.
func (r *Reader) consider(now time.Time) {
	if r.shared != nil {
		r.considerShared(now)
		return
	}
	r.unsettled = false
	var plain []*Offer
	for _, o := range r.Offers() {
		tables := r.wantedOf(o)
		o.skip = len(tables) == 0 && r.cfg.Scope != nil
		refused := r.judge(o)
		if refused == nil && now.Before(o.retry) {
			refused = o.Refused // by the peer, or by the sink
		}
		if o.Refused = refused; !o.Wanted() || r.cfg.Assigned && !r.assigned[o.Log.Origin] {
			if c := r.channels[o.channel]; c != nil {
				r.send(&wirepb.Unsubscribe{Channel: c.id})
				r.drop(c)
			}
			continue
		}
		if c := r.channels[o.channel]; c != nil && o.anywhere() && c.state == inStream && !slices.Equal(c.tables, tables) {
			c.tables, c.place.Tables = tables, tables // what is new of them comes in the log
			r.carry(c)
		}
		if c := r.channels[o.channel]; c != nil && c.state == inStream && len(tables) < len(c.tables) && covers(c.tables, tables) {
			c.tables, c.place.Tables = tables, tables // the peer has less of the log from now on
			r.carry(c)
		}
		// (A baseline that is under way is not given up: what it lacks comes after it.)
		if c := r.channels[o.channel]; c != nil && !covers(c.tables, tables) && (c.state == inStream || c.state != inSubscribed && !r.alone) {
			if !r.alone {
				c.place.Lost = fmt.Sprintf("log %s now has tables that were not read before", o.Log)
			}
			r.send(&wirepb.Unsubscribe{Channel: c.id})
			r.drop(c)
		}
		switch n := len(plain); {
		case !r.active || o.channel != 0 || now.Before(o.retry) || r.awaitsReset(o), n > 0 && plain[n-1].Log.Origin == o.Log.Origin:
		case r.plain(o, tables):
			plain = append(plain, o)
		default:
			r.subscribe(o, tables)
		}
	}
	r.resume(plain)
}

// judge says why an offer cannot be taken, or nil.
func (r *Reader) judge(o *Offer) *Refusal {
	refuse := func(code RefusalCode, format string, args ...any) *Refusal {
		return &Refusal{o.Log, o.Path, code, fmt.Sprintf(format, args...)}
	}
	way := strings.Join(o.Path, " → ")
	path := o.Path
	if r.shared == nil && r.cfg.Own != nil && r.cfg.Own(o.Log.Origin) {
		path = path[:len(path)-1]
	}
	switch {
	case slices.Contains(path, r.cfg.NodeID):
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
	if held := r.places.newest(o.Log.Origin); held > o.Log.Epoch {
		return refuse(RefusedEpoch, "epoch %d of %s is held, and node %s has epoch %d: waiting until it has caught up", held, o.Log.Origin, r.peer, o.Log.Epoch)
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
	p := r.places.Of(o.Log)
	if p == nil {
		p = &Place{}
		r.places.Put(o.Log, p)
	}
	p.Compare = o.Compare
	p.trail = p.trail.Until(p.Position, p.Compare)
	if whole := !p.Known || p.Lost != ""; whole && p.copier != nil && p.copier != r && !p.copier.closed {
		return // it comes over another session already
	} else if whole {
		p.copier = r
	}
	var fresh []engine.TableName
	if p.Known && p.Lost == "" && !p.Floor && !o.anywhere() && !covers(p.Tables, tables) {
		if r.alone && p.Time > 0 {
			fresh = slices.DeleteFunc(slices.Clone(tables), func(t engine.TableName) bool { return slices.Contains(p.Tables, t) })
		} else {
			p.Lost = fmt.Sprintf("tables of log %s are wanted that were not read before", o.Log)
		}
	}
	behind, known := p.trail.Of(tables, p.Position, p.Compare)
	if len(behind) > 0 && !r.behind || !known { // the peer may not have what comes to them later
		late := slices.DeleteFunc(slices.Clone(tables), func(t engine.TableName) bool {
			_, is := behind[t]
			return known && !is || slices.Contains(fresh, t)
		})
		switch {
		case !p.Known || p.Lost != "" || p.Floor || o.anywhere():
		case r.alone && p.Time > 0 && known:
			fresh = append(fresh, late...)
		default:
			p.Lost = fmt.Sprintf("tables of log %s have not come up to its position %s, and node %s does not say whether it brings them", o.Log, p.Position, r.peer)
		}
		behind = nil
	}
	c := r.open(o, tables)
	m := &wirepb.Subscribe{Channel: c.id, Log: wire.FromLog(o.Log), Credit: uint64(c.left), Upward: r.upward(), Reader: r.cfg.Name, Follow: r.cfg.Holder != "", HeartbeatMs: r.heartbeatMs()}
	if r.cfg.Scope != nil {
		m.Scope = wire.FromScope(r.cfg.Scope.Only(tables))
	}
	beginning := (!p.Known || p.Lost != "" || p.Position == "") && o.anywhere()
	if c.floor = (p.Floor || beginning) && r.floors; c.floor {
		p.Parts = 0
		from := &wirepb.Floor{}
		if p.Floor {
			from.Holder = r.cfg.Holder
			p.Counts.Floors++
		}
		m.From = &wirepb.Subscribe_Floor{Floor: from}
	} else if p.Known && p.Lost == "" {
		c.cursor, c.asked = true, p.Position
		m.From = &wirepb.Subscribe_Cursor{Cursor: wire.FromCursor(p.Position, p.Time)}
		m.StagedParts, m.Behind = p.Parts, wire.FromBehind(behind)
	}
	if c.whole = fresh; len(fresh) > 0 {
		p.Parts, m.StagedParts, m.Fresh = 0, 0, wire.FromTables(fresh)
		c.cause = fmt.Sprintf("log %s has tables that were not read before, or had not come up to its position", o.Log)
	}
	m.Modes = r.modes()
	if c.cause = cmp.Or(p.Lost, p.Gap, c.cause); c.cause == "" && !p.Known {
		c.cause = r.newEpoch(o.Log)
	}
	r.carry(c)
	r.send(m)
}

// open makes a channel for a log of which there is a place.
func (r *Reader) open(o *Offer, tables []engine.TableName) *incoming {
	p := r.places.Of(o.Log)
	p.Compare = o.Compare
	r.last++
	c := &incoming{id: r.last, offer: o, place: p, log: o.Log, tables: tables, schemas: newSchemas(), left: max(0, r.limit-p.Buffered)}
	r.add(c)
	o.channel = c.id
	return c
}

// modes are those that the reader allows; nil for all.
func (r *Reader) modes() []wirepb.Mode {
	if !r.cfg.NoSnapshot {
		return nil
	}
	return []wirepb.Mode{wirepb.Mode_MODE_LIVE, wirepb.Mode_MODE_DELTA, wirepb.Mode_MODE_STATE_DELTA, wirepb.Mode_MODE_REPLAY_ARCHIVE}
}

// newEpoch says which epochs a log that is new here takes the place of; empty if
// its origin is new.
func (r *Reader) newEpoch(log engine.LogID) string {
	for old, p := range r.places[log.Origin] {
		if old < log.Epoch && p.Known {
			return fmt.Sprintf("epoch %d of %s has ended, and epoch %d begun", old, log.Origin, log.Epoch)
		}
	}
	return ""
}

// carry says that a log comes this way, with the tables that the place covers:
// others come with a snapshot, and must not be offered on before.
func (r *Reader) carry(c *incoming) {
	tables := c.tables
	if p := c.place; p.Known && p.Tables != nil && !r.shared.is(c.id) {
		tables = p.Tables
	}
	path := c.offer.Path
	if r.shared == nil {
		c.place.path = nil
	} else if c.place.path != nil {
		path = c.place.path
	}
	r.deliver(c, &Delivery{Kind: DeliverCarry, Path: path, Compare: c.offer.Compare, Tables: tables})
}

// say says by which path a log comes that is read in shared logs.
func (r *Reader) say(o *Offer) []Action {
	p := r.places.Of(o.Log)
	if r.closed || p == nil || !p.Known || slices.Equal(p.path, o.Path) {
		return nil
	}
	p.path = o.Path
	r.out = append(r.out, Action{Deliver: &Delivery{Kind: DeliverCarry, Key: r.key(o.Log), From: r, place: p, Path: o.Path, Compare: o.Compare}})
	return r.take()
}

// Applied says that there is room again for a log, as Place.Buffered says.
func (r *Reader) Applied(log engine.LogID) []Action {
	if r.closed {
		return nil
	}
	for _, c := range r.byLog[log] {
		r.grant(c)
	}
	r.grantShared()
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
	r.grantShared()
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
	for _, c := range r.byLog[key.Log] {
		if c.state == inStream || c.state == inRows {
			c.ack = &wirepb.Ack{Channel: c.id, Position: string(at), Durable: durable}
		}
	}
	r.ackShared(key, at, durable)
}

// Rewind goes back to a cursor: what was received after it has been given up.
// What was buffered of the log must have been accounted for with Applied.
func (r *Reader) Rewind(now time.Time, log engine.LogID, to engine.Position, t engine.Time) []Action {
	if p := r.places.Of(log); p != nil {
		p.Position, p.Time, p.Parts, p.handed = to, t, 0, nil
	}
	if r.closed {
		return nil
	}
	for _, c := range slices.Clone(r.byLog[log]) {
		r.send(&wirepb.Unsubscribe{Channel: c.id})
		r.drop(c)
	}
	r.consider(now)
	return r.take()
}

// Stop stops reading a log until Retry.
func (r *Reader) Stop(now time.Time, log engine.LogID) []Action {
	o := r.offers[log]
	if r.closed || o == nil {
		return nil
	}
	if c := r.channels[o.channel]; c != nil {
		r.send(&wirepb.Unsubscribe{Channel: c.id})
		r.drop(c)
	}
	o.retry, o.stopped = now.Add(time.Hour), true
	return r.take()
}

// Retry undoes Stop.
func (r *Reader) Retry(now time.Time, log engine.LogID) []Action {
	o := r.offers[log]
	if r.closed || o == nil {
		return nil
	}
	o.retry, o.stopped = now, false
	if r.shared != nil {
		r.skip(log) // it is all asked for again
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
		if m := r.ackOf(r.channels[id]); m != nil {
			r.send(m)
		}
	}
	r.tickShared()
	r.consider(now)
	return r.take()
}
