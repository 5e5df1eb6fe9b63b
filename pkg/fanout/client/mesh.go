package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/ticks"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Mesh is an engine.SyncSource over the other nodes of a mesh. It keeps one
// session with each, whoever has dialled, and reads each origin's log over the one
// that serves it best: see session.Router. When a session ends, the logs that were
// read over it go on over others at the same cursors.
type Mesh struct {
	core
	// Under mu:
	router *session.Router
	listed bool                  // SetPeers has been called
	peers  []*meshPeer           // as configured
	byID   map[string]*link      // the session with each node that one stands with
	moves  map[string]int        // changes of session, by origin
	via    map[string]string     // peer that an origin was read from last
	lost   map[engine.LogID]bool // logs whose heads are no longer known, and have been told to be so
	back   bool                  // the node's own logs wait for what the peers hold of them
	groups map[string]*group     // of peers of which one is read

	dialling chan struct{} // has room for those that are dialled at once
}

// MeshPeer is a node of the mesh.
type MeshPeer struct {
	ID      string // its node id; empty if it is not known
	Address string // host:port; empty if it dials
	Group   string // of peers that carry the same: see Policy.Standby
	Idle    bool   // nothing is read from it; what it has to say is heard
	Alone   bool   // nothing else has what it has: it need not say often that it lives
}

// meshPeer is what is known of a configured peer.
type meshPeer struct {
	MeshPeer
	err    error // of the last attempt
	cancel context.CancelFunc
}

// aloneHeartbeat is how often a peer says that it lives while nothing happens, of which
// there is no other to go to. An edge that is idle, and pays for what it sends, sends an
// eighth of what it would.
const aloneHeartbeat = 2 * time.Second

// heartbeat is how often the peer is to say that it lives; 0 for the usual.
func (p *meshPeer) heartbeat() time.Duration {
	if p != nil && p.Alone {
		return aloneHeartbeat
	}
	return 0
}

// maxDialling is how many peers are dialled at once.
const maxDialling = 64

// routeEvery is how often it is looked at which session serves a log best, if
// nothing happens before.
const routeEvery = 250 * time.Millisecond

// NewMesh returns a Mesh without peers: see SetPeers.
func NewMesh(cfg Config) (*Mesh, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	m := &Mesh{core: newCore(cfg, true), byID: map[string]*link{}, moves: map[string]int{}, via: map[string]string{}, lost: map[engine.LogID]bool{}, groups: map[string]*group{}, dialling: make(chan struct{}, maxDialling)}
	m.prepare()
	m.router = session.NewRouter(m.routerConfig())
	return m, nil
}

func (m *Mesh) routerConfig() session.RouterConfig {
	return session.RouterConfig{BehindFor: m.policy.UnhealthyAfter, BetterFor: m.policy.RecoverAfter}
}

// Init begins to connect to the peers. A mesh may be empty: there is nothing to
// wait for.
func (m *Mesh) Init(ctx context.Context, env engine.Env) (engine.Info, error) {
	m.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin(ctx, env.Report)
	if m.cfg.Own != nil {
		for _, c := range m.cfg.Own() {
			m.intake.Own(c)
			m.back = true
		}
	}
	m.byID = map[string]*link{}
	m.router = session.NewRouter(m.routerConfig())
	life := m.life
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		m.run(life)
	}()
	for _, p := range m.peers {
		if p.Address != "" {
			m.keep(p)
		}
	}
	return engine.Info{}, nil
}

// Baseline returns when every log is baselined that the peers offer which can be
// reached. What comes later is baselined in Stream, apart from the others.
func (m *Mesh) Baseline(ctx context.Context, sink engine.Sink) error {
	m.mu.Lock()
	m.open(ctx, sink, nil, false)
	m.mu.Unlock()
	err := m.wait(ctx, func() bool {
		if m.fatal != nil {
			return true
		}
		if !m.listed {
			return false // nobody has said who the peers are
		}
		for _, p := range m.peers {
			if p.Address != "" && p.err == nil && m.sessionWith(p) == nil {
				return false // on the way
			}
		}
		for name := range m.groups {
			if m.groups[name].active == nil && slices.ContainsFunc(m.peers, func(p *meshPeer) bool { return p.Group == name && m.well(p) }) {
				return false // one is about to be picked
			}
		}
		for _, l := range m.byID {
			for _, o := range l.machine.Offers() {
				if o.Wanted() && m.reads(l, o) && !m.intake.Applied(o.Log) && !m.surpassed(o.Log) {
					return false
				}
			}
		}
		return true
	})
	if err = m.core.stop(ctx, err); err != nil {
		m.Close()
	}
	return err
}

// surpassed reports whether a newer epoch of a log's origin is offered; mu is held.
func (m *Mesh) surpassed(log engine.LogID) bool {
	for _, l := range m.byID {
		for _, o := range l.machine.Offers() {
			if o.Wanted() && o.Log.Origin == log.Origin && o.Log.Epoch > log.Epoch {
				return true
			}
		}
	}
	return false
}

// open opens the gate to the sink; mu is held.
func (m *Mesh) open(ctx context.Context, sink engine.Sink, from engine.Cursors, stream bool) {
	if m.gate(ctx, sink, from, stream) {
		for _, l := range m.byID {
			m.activate(l)
		}
	}
	poke(m.event)
}

// Stream delivers what follows the cursors until ctx ends or the sink fails as a
// whole.
func (m *Mesh) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	m.mu.Lock()
	m.open(ctx, sink, from, true)
	m.tellState()
	m.mu.Unlock()
	err := m.wait(ctx, func() bool { return m.fatal != nil })
	err = m.core.stop(ctx, err)
	m.Close()
	return err
}

// Close ends the sessions and waits for them. Init opens the mesh again.
func (m *Mesh) Close() {
	if m.finish() {
		m.cfg.Edges.set(&m.core, "", nil)
	}
}

// SetPeers replaces the list of peers while reading. Sessions with peers that are
// still listed are not interrupted.
func (m *Mesh) SetPeers(peers []MeshPeer, p Policy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.policy = p.withDefaults()
	var all []*meshPeer
	for _, want := range peers {
		i := slices.IndexFunc(m.peers, func(have *meshPeer) bool { return have.MeshPeer == want })
		if i >= 0 {
			all = append(all, m.peers[i])
			continue
		}
		n := &meshPeer{MeshPeer: want}
		all = append(all, n)
		if m.opened && n.Address != "" {
			m.keep(n)
		}
	}
	for _, p := range peers {
		if p.Group != "" && m.policy.Standby && m.groups[p.Group] == nil {
			m.groups[p.Group] = &group{}
		}
	}
	for _, have := range m.peers {
		if !slices.Contains(all, have) && have.cancel != nil {
			have.cancel()
		}
	}
	m.peers = all
	poke(m.event)
	m.router.Configure(m.routerConfig())
	m.listed = true
	for id, l := range m.byID {
		if m.peerOf(id, l) == nil {
			l.perform(l.machine.End())
			l.finish(fmt.Errorf("node %s is no longer a peer", id))
		}
	}
	m.bump()
}

// Idle reports whether nothing of an origin is read, and nothing waits to be applied.
func (m *Mesh) Idle(origin string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.intake.Idle(origin)
}

// Forget forgets a log that the sink has forgotten.
func (m *Mesh) Forget(log engine.LogID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.intake.Forget(log)
}

// peerOf returns the configured peer that a session is with, or nil; mu is held.
func (m *Mesh) peerOf(id string, l *link) *meshPeer {
	for _, p := range m.peers {
		if p.ID == id || l != nil && p.at(l) {
			return p
		}
	}
	return nil
}

// named reports whether the peer's id is known, and not only where it is.
func (p *meshPeer) named() bool { return p.ID != "" && !strings.Contains(p.ID, ":") }

// at reports whether a session that was dialled is with the peer, of which no id is known.
func (p *meshPeer) at(l *link) bool {
	return !p.named() && l.upstream != "" && l.upstream == p.Address
}

// keep keeps a session with a peer until the mesh is closed or the peer is no
// longer listed; mu is held.
func (m *Mesh) keep(p *meshPeer) {
	ctx, cancel := context.WithCancel(m.life)
	p.cancel = cancel
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		defer cancel()
		var again redial
		wait := time.Duration(0)
		for ctx.Err() == nil {
			m.mu.Lock()
			l := m.sessionWith(p) // it may have dialled
			m.mu.Unlock()
			switch {
			case l != nil:
				select {
				case <-l.done:
				case <-ctx.Done():
				}
			case wait > 0:
				select {
				case <-time.After(wait):
				case <-ctx.Done():
				}
				wait = 0
				continue
			default:
				var err error
				l, err = m.connect(ctx, p)
				m.mu.Lock()
				if p.err = err; err == nil {
					m.joined(l)
				} else {
					wait = again.next(0, retryAfter(err), rand.Float64())
					m.tellState()
				}
				m.bump()
				m.mu.Unlock()
				if err != nil {
					continue
				}
				select {
				case <-l.done:
				case <-ctx.Done():
				}
				l.close()
			}
			m.mu.Lock()
			again.ended(m.cfg.Now().Sub(l.since), l.brought)
			wait = again.next(0, retryAfter(l.err), rand.Float64())
			m.mu.Unlock()
		}
	}()
}

// sessionWith returns the session that stands with a peer, or nil; mu is held.
func (m *Mesh) sessionWith(p *meshPeer) *link {
	if l := m.byID[p.ID]; l != nil && l.err == nil {
		return l
	}
	for _, l := range m.byID {
		if p.at(l) && l.err == nil {
			return l
		}
	}
	return nil
}

// connect dials a peer.
func (m *Mesh) connect(ctx context.Context, p *meshPeer) (*link, error) {
	select { // not all at once, where there are thousands
	case m.dialling <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-m.dialling }()
	instances, err := m.cfg.Resolve(ctx, p.Address)
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", p.Address, err)
	}
	err = fmt.Errorf("%s leads to no address", p.Address)
	for _, in := range instances {
		var l *link
		if l, err = m.dial(ctx, p.Address, in, connectTimeout, p); err == nil {
			m.mu.Lock()
			id := l.machine.Peer()
			m.mu.Unlock()
			if id == p.ID || !p.named() {
				return l, nil
			}
			err = fmt.Errorf("%s is node %s, and node %s is to be there", in, id, p.ID)
			l.close()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, err
}

// joined takes in a session that stands; mu is held. Of two with one node one is
// kept: see session.Outlasts; one that is silent is not, since the peer has dialled
// anew without it.
func (m *Mesh) joined(l *link) {
	id := l.machine.Peer()
	switch {
	case l.err != nil:
		return
	case m.peerOf(id, l) == nil:
		l.perform(l.machine.End())
		l.finish(fmt.Errorf("node %s is no longer a peer", id))
		return
	}
	if have := m.byID[id]; have != nil && have.err == nil && have != l {
		// A session over which the peer does not read gives way to one over which it does.
		if !have.silent() && have.machine.Duplex() && session.Outlasts(m.cfg.NodeID, id, have.upstream != "", l.upstream != "") {
			l.refuse(id)
			return
		}
		have.refuse(id)
	}
	m.byID[id] = l
	if m.active {
		m.activate(l)
	}
	m.cfg.Logger.Info("joined a peer", "peer", id, "address", l.instance, "dialled", l.upstream != "")
	poke(m.event)
}

// refuse ends a session since there is another with the same node; mu is held.
func (l *link) refuse(id string) {
	l.perform(l.machine.Fail(&session.Error{
		Code: wirepb.ErrorCode_ERROR_CODE_DUPLICATE, Message: fmt.Sprintf("nodes %s and %s are joined by another session already", l.reader.cfg.NodeID, id),
	}))
}

func (m *Mesh) activate(l *link) {
	l.perform(l.machine.SetWindow(m.window()))
	l.perform(l.machine.Activate(m.cfg.Now()))
	m.intake.TellAcks(l.machine)
}

// Accept reads from a peer that has dialled: a session.Join.
func (m *Mesh) Accept(ctx context.Context, from session.Caller, stream *session.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	refuse := func(code wirepb.ErrorCode, format string, args ...any) (func(*wirepb.Frame) error, error) {
		return nil, &session.Error{Code: code, Message: fmt.Sprintf(format, args...), RetryAfter: time.Second}
	}
	p := m.peerOf(from.NodeID, nil)
	switch {
	case !m.opened:
		return refuse(wirepb.ErrorCode_ERROR_CODE_REFUSED, "node %s is not ready for peers yet", m.cfg.NodeID)
	case p == nil:
		return nil, nil // it reads from this node, and this node not from it
	}
	if have := m.byID[from.NodeID]; have != nil && have.err == nil && have.upstream != "" && have.machine.Duplex() && m.cfg.NodeID < from.NodeID && !have.silent() {
		return refuse(wirepb.ErrorCode_ERROR_CODE_DUPLICATE, "nodes %s and %s are joined by another session already", m.cfg.NodeID, from.NodeID)
	}
	lctx, cancel := context.WithCancel(ctx)
	l := m.newLink(stream, session.ReaderConfig{Assigned: true, Called: true, Duplex: true, Heartbeat: p.heartbeat()})
	l.instance, l.cancel = from.Address, cancel
	l.wg.Add(1)
	go l.send(lctx)
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		select {
		case <-l.ready:
			m.mu.Lock()
			m.joined(l)
			m.mu.Unlock()
		case <-l.done:
		case <-ctx.Done():
		case <-m.life.Done():
		}
		select {
		case <-l.done:
		case <-ctx.Done():
			l.end(context.Cause(ctx))
		case <-m.life.Done():
		}
		close(l.gone)
		l.close()
		m.mu.Lock()
		err := cmp.Or(l.err, errors.New("the node reads no more"))
		m.mu.Unlock()
		end(err)
	}()
	return func(f *wirepb.Frame) error {
		l.take(f)
		return nil
	}, nil
}

// run routes the logs until ctx ends.
func (m *Mesh) run(ctx context.Context) {
	t := ticks.New(routeEvery)
	defer t.Stop()
	for {
		m.mu.Lock()
		m.route()
		rejoined := m.rejoined()
		lost, sink := m.headless(), m.sink
		m.mu.Unlock()
		if rejoined {
			m.cfg.Rejoined()
		}
		if sink != nil {
			for _, log := range lost {
				sink.Head(log, engine.Head{})
			}
		}
		select {
		case <-t.C:
		case <-m.event:
			// What comes in a burst is looked at together.
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// route picks a session for each log; mu is held.
func (m *Mesh) route() {
	now := m.cfg.Now()
	var peers []session.Peer
	for id, l := range m.byID {
		if l.err != nil {
			delete(m.byID, id)
			m.intake.Ended(l.machine)
			if p := m.peerOf(id, l); p != nil {
				p.err = m.cfg.explain(l.instance, l.err, 0)
			}
			m.cfg.Logger.Info("peer lost", "peer", id, "address", l.instance, "error", l.err)
			continue
		}
		order := slices.IndexFunc(m.peers, func(p *meshPeer) bool { return p == m.peerOf(id, l) })
		peers = append(peers, session.Peer{
			Session: l.machine, Order: order, Unwell: l.goAway != nil || l.silent(), Leaving: l.goAway != nil,
			Reads: func(o *session.Offer) bool { return m.reads(l, o) },
		})
	}
	if !m.active {
		return
	}
	m.turnTo(now)
	m.router.Route(now, m.intake, peers)
	origins := map[string][]string{}
	n := 0
	for _, p := range peers {
		for _, o := range p.Session.Offers() {
			if m.intake.Over(o.Log.Origin) == p.Session && !m.intake.Owns(o.Log.Origin) {
				origins[p.Session.Peer()] = append(origins[p.Session.Peer()], o.Log.Origin)
				if was := m.via[o.Log.Origin]; was != p.Session.Peer() {
					if was != "" {
						m.moves[o.Log.Origin]++
					}
					m.via[o.Log.Origin] = p.Session.Peer()
				}
				n++
			}
		}
	}
	m.cfg.Edges.setAll(&m.core, origins)
	if n != m.shares {
		m.shares = n
		for _, l := range m.byID {
			l.perform(l.machine.SetWindow(m.window()))
		}
	}
	m.tellState()
}

// rejoined reports, once, that the node's own logs need not wait any longer; mu is
// held.
func (m *Mesh) rejoined() bool {
	if !m.back || !m.active {
		return false
	}
	var peers []session.Peer
	away, tried := 0, true
	for _, p := range m.peers {
		if l := m.sessionWith(p); l != nil && l.machine.Complete() {
			peers = append(peers, session.Peer{Session: l.machine})
		} else {
			away++
			tried = tried && p.err != nil
		}
	}
	if !m.listed { // nobody has said who the peers are
		away++
	}
	m.back = !m.intake.Rejoin(m.cfg.Now(), peers, away, tried)
	return !m.back
}

// headless returns the logs that have lost the last peer that offers them; mu is
// held.
func (m *Mesh) headless() (lost []engine.LogID) {
	for log := range m.intake.Places().All() {
		switch gone := m.intake.Over(log.Origin) == nil && m.offeredShared(log.Origin) == nil; {
		case !gone:
			delete(m.lost, log)
		case !m.lost[log]:
			m.lost[log] = true
			lost = append(lost, log)
		}
	}
	return lost
}

// offeredShared returns a peer that offers an origin's log in a shared one; nil if
// there is none. mu is held.
func (m *Mesh) offeredShared(origin string) *link {
	for _, id := range slices.Sorted(maps.Keys(m.byID)) {
		if l := m.byID[id]; l.err == nil && l.machine.Shared() && l.machine.Offering(origin) {
			return l
		}
	}
	return nil
}

// tells reports whether it is to be told that a log is not taken. Those that have come by
// way of this node are many in a mesh; the own log of a node that is read for it alone is
// not among them.
func (m *Mesh) tells(l *link, o *session.Offer) bool {
	return o.Refused != nil && (o.Refused.Code != session.RefusedLoop || m.cfg.Minted && engine.MintedBy(o.Log.Origin, l.machine.Peer()))
}

// tellState reports what there is to know; mu is held.
func (m *Mesh) tellState() {
	var text []string
	for _, origin := range m.intake.Origins() {
		if err := m.intake.Held(origin); err != nil {
			text = append(text, err.Error())
		}
	}
	down := 0
	for _, p := range m.peers {
		if m.sessionWith(p) == nil && p.err != nil {
			down++
			text = append(text, p.err.Error())
		}
	}
	for _, l := range m.byID {
		for _, o := range l.machine.Offers() {
			if m.tells(l, o) && m.intake.Over(o.Log.Origin) == nil {
				text = append(text, o.Refused.Reason)
			}
		}
	}
	var err error
	if len(text) > 0 {
		slices.Sort(text)
		err = errors.New(strings.Join(slices.Compact(text), "; "))
	}
	if !m.listed {
		m.tell(engine.ReasonConnecting, errors.New("nobody has said yet who the peers are: the node has no wiring"))
		return
	}
	if len(m.peers) > 0 && len(m.byID) == 0 && down == len(m.peers) {
		m.tell(engine.ReasonNoHealthyParent, err)
		return
	}
	m.tell(engine.ReasonStreaming, err)
}

// Scope returns what is read; nil for everything.
func (m *Mesh) Scope() *scope.Scope { return m.cfg.Scope }

// SupportsResume is true: any peer that carries a log resumes any cursor of it.
func (m *Mesh) SupportsResume() bool { return true }

// OrderingGuarantee is engine.PerLogOrder: each log is in order, and several have
// none between them.
func (m *Mesh) OrderingGuarantee() engine.Ordering { return engine.PerLogOrder }

// ComparePositions orders the positions of logs that do not say how.
func (m *Mesh) ComparePositions(a, b engine.Position) int { return m.cfg.Compare(a, b) }

// PositionToString returns a position as it is: positions are strings already.
func (m *Mesh) PositionToString(p engine.Position) string { return string(p) }

// PositionFromString takes any string that is a position at all.
func (m *Mesh) PositionFromString(text string) (engine.Position, error) {
	if text == "" {
		return "", errors.New("an empty position is before everything, and names no place in a log")
	}
	return engine.Position(text), nil
}

// MeshStatus is what a Mesh says of itself.
type MeshStatus struct {
	Paused bool
	Peers  []PeerState
	Logs   []MeshLog
}

// PeerState is what is known of a peer.
type PeerState struct {
	MeshPeer
	Connected bool
	Dialled   bool // by this node
	Since     time.Time
	Error     string // of the last attempt; empty if it worked
	Refused   []session.Refusal
}

// MeshLog is how far a log has been read, and over which peer.
type MeshLog struct {
	LogPlace
	Peer     string // empty if nobody offers it
	Head     engine.Position
	HeadTime engine.Time
	Moves    int // from one peer to another
}

// Status returns the mesh's state.
func (m *Mesh) Status() MeshStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := MeshStatus{Paused: m.paused}
	listed := map[*link]bool{}
	add := func(p MeshPeer, l *link, err error) {
		s := PeerState{MeshPeer: p}
		if err != nil {
			s.Error = err.Error()
		}
		if l != nil {
			listed[l] = true
			s.ID, s.Connected, s.Dialled, s.Since, s.Error = l.machine.Peer(), true, l.upstream != "", l.since, ""
			for _, o := range l.machine.Offers() {
				if m.tells(l, o) {
					s.Refused = append(s.Refused, *o.Refused)
				}
			}
		}
		st.Peers = append(st.Peers, s)
	}
	for _, p := range m.peers {
		add(p.MeshPeer, m.sessionWith(p), p.err)
	}
	for _, id := range slices.Sorted(maps.Keys(m.byID)) {
		if l := m.byID[id]; !listed[l] {
			add(MeshPeer{ID: id, Address: l.instance}, l, nil)
		}
	}
	for _, p := range m.logPlaces() {
		l := MeshLog{LogPlace: p, Moves: m.moves[p.Log.Origin]}
		r := m.intake.Over(p.Log.Origin)
		if s := m.offeredShared(p.Log.Origin); r == nil && s != nil {
			r = s.machine
		}
		if r != nil {
			l.Peer = r.Peer()
			for _, o := range r.Offers() {
				if o.Log == p.Log {
					l.Head, l.HeadTime = o.Head, o.Time
				}
			}
		}
		st.Logs = append(st.Logs, l)
	}
	return st
}
