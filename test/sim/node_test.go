package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// node is a member of the mesh: a process that comes and goes, and its disk. What
// package client has goroutines for is done here in events.
type node struct {
	w      *world
	index  int
	id     string
	spec   *NodeSpec
	disk   *disk
	offset time.Duration // of its wall clock
	peers  []*peer       // as configured
	kids   []*node       // of a tree: the children that are assigned to it
	role   roleIn
	slow   time.Duration                      // how long it takes to apply
	told   map[string]map[engine.LogID]string // vectors that its readers have named last

	up       bool
	dying    bool
	rejoined bool // its own log waits for nobody
	life     int

	eng      *engine.Engine
	halves   *server.Halves
	own      *ownSource
	ownFeed  *engine.Feed
	opening  bool
	meshFeed *engine.Feed
	intake   *session.Intake
	router   *session.Router
	provider map[string]string
	links    []*link // that have not ended
	byID     map[string]*link
	routing  bool
	shares   int
	applying map[string]bool
	member   *member // of a relay tree; nil in a mesh
}

// peer is a configured peer.
type peer struct {
	to       *node
	trying   bool
	failures int
	away     time.Duration // the peer has asked for it
	idle     bool          // of a tree: nothing is read from it
	retired  bool          // and its rows are to go: it has left for good
}

func (n *node) origin() string {
	if n.relays() {
		return engine.Origin(n.id, "relay")
	}
	return engine.Origin(n.id, "own")
}
func (n *node) wall() time.Time { return n.w.clock().Add(n.offset) }

// conflicts are the conflict policies of the plan.
func (n *node) conflicts() *engine.Conflicts {
	if n.w.plan.Tree != nil {
		return treeConflicts
	}
	c := engine.Conflict{Table: tableOf("shared"), Policy: n.w.plan.Policy}
	switch {
	case c.Policy == "" || n.w.plant == noPolicy && n.index == 0:
		return nil
	case c.Policy == engine.OriginOwnsKey:
		c.Column = "id"
		for i := range 12 {
			c.Owners = append(c.Owners, engine.Owner{Value: fmt.Sprint("k", i), Node: n.w.plan.owner(i)})
		}
	}
	all, err := engine.NewConflicts(c)
	must(err)
	return all
}

func (n *node) tables() []string {
	if n.w.plan.Tree != nil {
		return treeTables
	}
	return []string{"shared", "own_" + n.id}
}

func (n *node) scope() *scope.Scope {
	var names []engine.TableName
	for _, t := range n.spec.Tables {
		names = append(names, tableOf(t))
	}
	return scope.Tables(names...)
}

// wants reports whether the node reads a table; what it writes it has.
func (n *node) wants(t engine.TableName) bool {
	s := n.scope()
	return s == nil || s.Covers(t)
}

// wantsOf reports whether the node reads any table of an origin.
func (n *node) wantsOf(origin string) bool {
	for _, o := range n.w.nodes {
		if o.origin() == origin {
			return slices.ContainsFunc(o.tables(), func(t string) bool { return n.wants(tableOf(t)) })
		}
	}
	return false
}

// sees returns what the node sees of a transaction.
func (n *node) sees(ws []*write) []*write {
	if n.spec.Tables == nil {
		return ws
	}
	var in []*write
	for _, x := range ws {
		if n.wants(x.table) {
			in = append(in, x)
		}
	}
	return in
}

// start begins a life of the process.
func (n *node) start() {
	if n.up || n.role.gone {
		return
	}
	w := n.w
	n.life++
	n.up, n.dying = true, false
	n.disk.reboot()
	w.tracef("%s starts", n.id)
	n.eng = engine.New(engine.Options{NodeID: n.id, Store: n.disk, Logger: quiet, Now: n.wall, Conflicts: n.conflicts(), Retention: n.retention()})
	cfg := server.Config{
		Host: n.eng, Logger: quiet, Now: w.clock, Basic: n.spec.Basic, StallTimeout: 24 * time.Hour, Provider: func(origin string) string { return n.provider[origin] },
		Scopes: map[string]*scope.Scope{"mesh": n.scope()},
	}
	n.own, n.ownFeed, n.meshFeed, n.opening = &ownSource{n: n}, nil, nil, false
	if n.spec.Writes {
		n.eng.AddSource("own", n.own, engine.Keep{})
	}
	switch {
	case w.plan.Tree != nil && !n.joinTree(&cfg):
		n.up = false
		w.after(time.Second, n.start)
		return
	case w.plan.Tree == nil:
		n.eng.AddSource("mesh", &meshSource{n: n}, engine.Keep{})
		cfg.Accept = func(context.Context, session.Caller, *session.Sender, func(error)) (func(*wirepb.Frame) error, error) {
			return nil, nil
		}
	}
	n.intake = session.NewIntake(session.IntakeConfig{Perform: n.perform, Compare: engine.CompareNumber, Hold: true})
	n.router = session.NewRouter(session.RouterConfig{BehindFor: time.Second, BetterFor: w.plan.BetterFor, SparedFor: w.plan.SparedFor})
	n.provider, n.links, n.byID, n.applying, n.shares, n.routing = map[string]string{}, nil, map[string]*link{}, map[string]bool{}, 0, false
	n.halves = server.NewHalves(cfg)
	if w.plant != earlyEpoch && n.spec.Tables == nil && !n.spec.Basic && w.plan.Tree == nil {
		n.eng.AwaitPeers()
	}
	n.rejoined = len(n.eng.Own()) == 0
	for _, c := range n.eng.Own() {
		n.intake.Own(c)
	}
	n.openOwn()
	n.openMesh()
	for _, p := range n.peers {
		p.trying, p.failures = false, 0
		n.keep(p)
	}
	life := n.life
	if !n.leaf() {
		n.every(w.plan.routeEvery(), life, n.route)
	}
	if w.plant == lateSync {
		n.every(400*time.Millisecond, life, n.disk.sync)
	}
	if n.disk.durable {
		n.every(n.tidyEvery(), life, func() {
			if n.tidied() {
				return
			}
			if err := n.eng.Trim(context.Background()); err != nil && !errors.Is(err, errFull) && !n.dying {
				w.fail("trim", "node %s: %v", n.id, err)
			}
			n.collect()
			n.settle()
		})
	}
}

// every does something again and again in a life.
func (n *node) every(d time.Duration, life int, do func()) {
	n.w.after(n.w.some(d), func() {
		var again func()
		again = func() {
			if n.up && n.life == life {
				do()
				n.w.after(d, again)
			}
		}
		again()
	})
}

// soon does something in this life.
func (n *node) soon(d time.Duration, do func()) {
	life := n.life
	n.w.after(d, func() {
		if n.up && n.life == life {
			do()
			n.settle()
		}
	})
}

// settle does what follows from what has happened: the process may have ended, or
// have to begin a new epoch.
func (n *node) settle() {
	switch {
	case !n.up:
	case n.dying:
		n.stop(0)
		n.w.after(200*time.Millisecond+n.w.some(2*time.Second), n.start)
	case n.ownFeed != nil && n.ownFeed.Err() != nil:
		n.w.tracef("%s: %v", n.id, n.ownFeed.Err())
		n.ownFeed = nil
		n.openLater()
	}
}

func (n *node) openLater() {
	if !n.opening {
		n.opening = true
		n.soon(100*time.Millisecond+n.w.some(300*time.Millisecond), func() { n.opening = false; n.openOwn() })
	}
}

func (n *node) openOwn() {
	if !n.spec.Writes || n.dying || n.ownFeed != nil || !n.rejoined {
		return
	}
	f, err := n.eng.Open(context.Background(), "own")
	if err != nil {
		n.w.tracef("%s: its source cannot be opened: %v", n.id, err)
		n.openLater()
		return
	}
	n.ownFeed = f
	n.wake()
}

func (n *node) openMesh() {
	if n.dying || n.leaf() {
		return
	}
	f, err := n.eng.Open(context.Background(), "mesh")
	must(err)
	n.meshFeed = f
	for k, c := range f.From {
		if k.Scope == n.scope().ID() {
			n.intake.Resume(c, f.Sink)
		}
	}
}

// stop ends the process. Its peers see it after a time.
func (n *node) stop(seen time.Duration) {
	if !n.up {
		return
	}
	n.w.tracef("%s ends", n.id)
	n.up = false
	n.intake.Close()
	for _, l := range n.links {
		l.err = errCrashed
		l.half.close()
		l.c.ends[l.side] = nil
		l.c.cut(1-l.side, seen+n.w.some(10*time.Millisecond))
	}
	n.links = nil
}

// write commits a transaction of the node's own, if it can.
func (n *node) write(ops []Op) {
	if !n.up || n.ownFeed == nil || n.dying || n.role.leaving {
		return
	}
	if err := n.own.write(n.ownFeed, ops); err != nil && !errors.Is(err, errFull) && !errors.Is(err, errCrashed) && n.ownFeed.Err() == nil {
		n.w.fail("write", "node %s: %v", n.id, err)
	}
	n.settle()
}

// wake lets the sessions look at what the node has now.
func (n *node) wake() {
	for _, l := range n.links {
		l.poke()
	}
}

// link is a session of the node with another.
type link struct {
	n       *node
	c       *conn
	side    int
	machine *session.Reader // nil until the peer has said that it reads too
	half    half
	inbox   []*wirepb.Frame
	working bool
	ready   bool
	joined  bool
	goAway  bool
	err     error
	done    func(error) // of who has dialled: called when it is ready, or has ended before
}

// half is the serving half, if there is one.
type half struct{ *server.Half }

func (h *half) close() {
	if h.Half != nil {
		h.Half.Close()
		h.Half = nil
	}
}

func (l *link) dialled() bool { return l.side == 0 }

// SendMsg sends a frame.
func (l *link) SendMsg(m any) error {
	if l.c.ends[l.side] != l {
		return errCut
	}
	l.c.send(l.side, m)
	return nil
}

func (n *node) newLink(c *conn, side int) *link {
	l := &link{n: n, c: c, side: side}
	n.links = append(n.links, l)
	c.ends[side] = l
	tick := n.w.plan.tickEvery(c.nodes)
	n.w.after(n.w.some(tick), func() { l.tick(tick) })
	return l
}

// tick lets time pass, again and again until the session has ended.
func (l *link) tick(again time.Duration) {
	n := l.n
	if l.err != nil {
		return
	}
	if l.machine != nil {
		l.perform(l.machine.Tick(n.w.clock()))
	}
	if l.err == nil && l.half.Half != nil {
		if err := l.half.Tick(); err != nil {
			l.end(err)
		}
	}
	n.settle()
	n.w.after(again, func() { l.tick(again) })
}

func (l *link) newMachine(called bool) {
	n := l.n
	var acts []session.Action
	cfg := session.ReaderConfig{
		NodeID: n.id, Name: "mesh", Scope: n.scope(), Compare: engine.CompareNumber, Window: n.window(), Places: n.intake.Places(), Vectors: n.intake.Vectors(), Scalars: n.intake.Scalars(),
		Basic: n.spec.Basic, Elsewhere: func(origin string) bool { return n.intake.Over(origin) != nil }, Own: n.intake.Owns,
		Assigned: true, Duplex: n.member == nil, Called: called, Limits: session.Limits{HandshakeTimeout: 3 * time.Second},
	}
	if n.member != nil {
		cfg.Holder, cfg.Above = n.disk.holder, n.above
		cfg.Heartbeat = n.w.plan.heartbeatOf(l.c.nodes)
	}
	l.machine, acts = session.NewReader(cfg, n.w.clock())
	l.perform(acts)
}

// accept takes a connection in.
func (n *node) accept(c *conn) *link {
	l := n.newLink(c, 1)
	l.serve(false)
	return l
}

func (l *link) serve(dialled bool) {
	n := l.n
	h, err := n.halves.Begin(session.NewSender(l), session.Caller{NodeID: l.c.nodes[1-l.side].id, Address: l.c.nodes[1-l.side].id}, dialled)
	if err != nil {
		if f := session.ErrorFrame(err); f != nil { // it is to come back later
			_ = l.SendMsg(f)
		}
		l.end(err)
		return
	}
	l.half = half{h}
	l.poke()
}

// keep keeps a session with a peer.
func (n *node) keep(p *peer) {
	if p.trying || !n.configured(p) {
		return
	}
	p.trying = true
	wait := time.Duration(0)
	if p.failures > 0 {
		d := min(100*time.Millisecond<<min(p.failures-1, 10), 3*time.Second)
		wait = max(p.away, d/2+n.w.some(d))
	}
	p.away = 0
	n.soon(wait, func() {
		if !n.configured(p) || n.sessionWith(p) {
			p.trying, p.failures = false, 0
			return
		}
		p.failures++
		n.w.dial(n, p.to, func(c *conn, err error) {
			over := func(error) {
				p.trying = false
				n.keepLater(p)
			}
			if err != nil {
				over(err)
				return
			}
			l := n.newLink(c, 0)
			l.done = over
			l.newMachine(false)
			n.settle()
		})
	})
}

func (n *node) keepLater(p *peer) {
	n.soon(50*time.Millisecond+n.w.some(100*time.Millisecond), func() {
		if !n.sessionWith(p) {
			n.keep(p)
		}
	})
}

func (n *node) configured(p *peer) bool { return slices.Contains(n.peers, p) }

func (n *node) peerOf(id string) *peer {
	for _, p := range n.peers {
		if p.to.id == id {
			return p
		}
	}
	return nil
}

func (n *node) sessionWith(p *peer) bool {
	l := n.byID[p.to.id]
	return l != nil && l.err == nil
}

// setPeers replaces the peers.
func (n *node) setPeers(to []*node) {
	var all []*peer
	for _, t := range to {
		p := n.peerOf(t.id)
		if p == nil {
			p = &peer{to: t}
		}
		all = append(all, p)
	}
	n.peers = all
	if !n.up {
		return
	}
	for _, l := range slices.Clone(n.links) {
		if l.joined && n.peerOf(l.machine.Peer()) == nil {
			l.end(fmt.Errorf("node %s is no longer a peer", l.machine.Peer()))
		}
	}
	for _, p := range all {
		n.keep(p)
	}
}

// receive takes a frame from the peer.
func (l *link) receive(f *wirepb.Frame) {
	if l.err != nil || l.n.dying {
		return
	}
	defer l.n.settle()
	mine, others := l.machine != nil, !l.dialled()
	if l.dialled() {
		if l.half.Half != nil {
			mine, others = session.ForReader(f)
		}
		if mine {
			l.take(f)
		}
		if l.err != nil {
			return
		}
		if f.GetHello() != nil && l.half.Half == nil && l.machine.Duplex() {
			l.serve(true)
			others = true
		}
	} else {
		if h := f.GetHello(); h != nil && l.machine == nil && slices.Contains(h.GetCapabilities(), session.CapDuplex) {
			if err := l.n.mayRead(h.GetNodeId()); err != nil {
				if f := session.ErrorFrame(err); f != nil {
					_ = l.SendMsg(f)
				}
				l.end(err)
				return
			}
			l.newMachine(true)
		}
		if l.machine != nil {
			mine, others = session.ForReader(f)
		}
	}
	if others && l.err == nil {
		l.inbox = append(l.inbox, f)
		l.poke()
	}
	if mine && !l.dialled() && l.err == nil {
		l.take(f)
	}
}

// mayRead says why the node does not read from one that has dialled.
func (n *node) mayRead(id string) error {
	if n.peerOf(id) == nil {
		return &session.Error{Code: wirepb.ErrorCode_ERROR_CODE_REFUSED, Message: "not a peer"}
	}
	if have := n.byID[id]; have != nil && have.err == nil && have.dialled() && n.id < id && !have.silent() {
		return &session.Error{Code: wirepb.ErrorCode_ERROR_CODE_DUPLICATE, Message: "joined already"}
	}
	return nil
}

func (l *link) silent() bool {
	return l.machine.Complete() && l.n.w.clock().Sub(l.machine.Heard()) >= max(3*time.Second, 2*l.n.w.plan.tickEvery(l.c.nodes), 3*l.n.w.plan.heartbeatOf(l.c.nodes))
}

func (l *link) take(f *wirepb.Frame) {
	if l.n.w.plant == noFence {
		for _, o := range f.GetAdvert().GetLogs() {
			maps.DeleteFunc(l.n.intake.Places()[o.GetLog().GetOrigin()], func(e engine.Epoch, _ *session.Place) bool { return uint64(e) > o.GetLog().GetEpoch() })
		}
	}
	if b := f.GetBatch(); b.GetShared() != nil && l.n.w.plant == oneOfOther {
		for _, o := range l.machine.Offers() {
			if p := l.n.intake.Places().Of(o.Log); p != nil && p.Known && o.Wanted() && engine.CompareNumber(o.Head, p.Position) > 0 && o.Log.Origin != b.GetLog().GetOrigin() {
				p.Position, p.Time = o.Head, o.Time
			}
		}
	}
	l.perform(l.machine.Frame(l.n.w.clock(), f))
}

// poke lets the serving half work soon.
func (l *link) poke() {
	if l.working || l.err != nil || l.half.Half == nil {
		return
	}
	l.working = true
	l.n.soon(l.n.w.some(500*time.Microsecond), func() {
		l.working = false
		l.work()
	})
}

func (l *link) work() {
	for range 8 {
		if l.err != nil || l.n.dying {
			return
		}
		if len(l.inbox) > 0 {
			f := l.inbox[0]
			l.inbox = l.inbox[1:]
			if err := l.half.Frame(f); err != nil {
				l.end(err)
				return
			}
			l.n.touch()
		}
		more, err := l.half.Work()
		if err != nil {
			l.end(err)
			return
		}
		if !more && len(l.inbox) == 0 {
			return
		}
	}
	l.poke()
}

func (n *node) perform(m *session.Reader, acts []session.Action) {
	for _, l := range n.links {
		if l.machine == m {
			l.perform(acts)
		}
	}
}

// perform does what the reading machine asks for.
func (l *link) perform(acts []session.Action) {
	n := l.n
	for _, a := range acts {
		switch {
		case a.Frame != nil:
			_ = l.SendMsg(a.Frame)
		case a.Deliver != nil:
			n.deliver(a.Deliver)
		case a.Head != nil:
			n.meshFeed.Head(a.Head.Log, a.Head.Head)
		case a.Witness != nil:
			n.eng.Witness(a.Witness.Peer, a.Witness.Epoch, a.Witness.Time)
		case a.Stable != nil:
			n.member.relay.Told(a.Stable.Log, a.Stable.Compare, a.Stable.Holders)
		case a.GoAway != nil:
			l.goAway = true
		case a.Offers:
			if l.machine.Complete() && !l.ready {
				l.ready = true
				n.soon(n.w.some(time.Millisecond), l.join)
			}
			n.pokeRoute()
		case a.Close != nil:
			l.finish(a.Close)
		}
	}
}

// join takes in a session that stands.
func (l *link) join() {
	n := l.n
	if l.err != nil {
		return
	}
	if l.done != nil {
		l.done(nil)
		l.done = nil
	}
	id := l.machine.Peer()
	if have := n.byID[id]; have != nil && have.err == nil && have != l {
		if !have.silent() && session.Outlasts(n.id, id, have.dialled(), l.dialled()) {
			l.refuse()
			return
		}
		have.refuse()
	}
	n.w.tracef("%s joins %s by #%d", n.id, id, l.c.id)
	n.byID[id], l.joined = l, true
	l.perform(l.machine.SetWindow(n.window()))
	l.perform(l.machine.Activate(n.w.clock()))
	n.intake.TellAcks(l.machine)
	n.pokeRoute()
}

func (l *link) refuse() {
	l.perform(l.machine.Fail(&session.Error{Code: wirepb.ErrorCode_ERROR_CODE_DUPLICATE, Message: "joined by another session"}))
}

// end ends the session for a reason outside of it.
func (l *link) end(err error) {
	if l.err != nil {
		return
	}
	if l.machine != nil {
		l.perform(l.machine.End())
	}
	l.finish(err)
}

func (l *link) finish(err error) {
	if l.err != nil {
		return
	}
	n := l.n
	l.err = err
	n.w.tracef("%s: session #%d has ended: %v", n.id, l.c.id, err)
	l.half.close()
	l.c.shut(l.side)
	var refused *session.Error
	if p := n.peerOf(l.c.nodes[1-l.side].id); p != nil && errors.As(err, &refused) {
		p.away = refused.RetryAfter
	}
	if l.done != nil {
		l.done(err)
	} else if p := n.peerOf(l.c.nodes[1-l.side].id); p != nil {
		n.keepLater(p)
	}
	n.pokeRoute()
	n.soon(0, func() { n.links = slices.DeleteFunc(n.links, func(o *link) bool { return o == l }) })
}

func (n *node) window() int64 {
	return max(n.w.plan.Buffer/int64(max(1, n.shares)), n.w.plan.MinWindow)
}

func (n *node) pokeRoute() {
	if !n.routing {
		n.routing = true
		n.soon(2*time.Millisecond, func() { n.routing = false; n.route() })
	}
}

// route picks a session for each log.
func (n *node) route() {
	if n.dying || n.leaf() {
		return
	}
	if n.member != nil {
		n.turn()
	}
	var peers []session.Peer
	for i, p := range n.peers {
		l := n.byID[p.to.id]
		if l == nil || l.err != nil {
			continue
		}
		peers = append(peers, session.Peer{Session: l.machine, Order: i, Unwell: l.goAway || l.silent(), Reads: func(*session.Offer) bool { return n.reads(p) }})
	}
	for _, id := range slices.Sorted(maps.Keys(n.byID)) {
		if l := n.byID[id]; l.err != nil {
			delete(n.byID, id)
			n.intake.Ended(l.machine)
		}
	}
	n.router.Route(n.w.clock(), n.intake, peers)
	if !n.rejoined {
		tried := true
		for _, p := range n.peers {
			tried = tried && (n.sessionWith(p) || p.failures > 0)
		}
		if n.intake.Rejoin(n.w.clock(), peers, len(n.peers)-len(peers), tried) {
			n.eng.Rejoined()
			n.rejoined = true
			n.openOwn()
		}
	}
	shares := 0
	clear(n.provider)
	for _, p := range peers {
		for _, o := range p.Session.Offers() {
			if n.intake.Over(o.Log.Origin) == p.Session && !n.intake.Owns(o.Log.Origin) {
				n.provider[o.Log.Origin] = p.Session.Peer()
				shares++
			}
		}
	}
	if shares != n.shares {
		n.shares = shares
		for _, p := range peers {
			n.perform(p.Session, p.Session.SetWindow(n.window()))
		}
	}
	n.checkBuffers()
	n.settle()
}

// deliver takes a delivery in.
func (n *node) deliver(d *session.Delivery) {
	log := d.Key.Log
	path := d.Path
	switch {
	case n.intake.Owns(log.Origin) && len(path) > 0:
		path = path[:len(path)-1]
	case n.intake.Owns(log.Origin):
	case log.Origin == n.origin():
		n.w.fail("loop", "node %s is sent its own log %s: %s", n.id, log, d.Kind)
	}
	if slices.Contains(path, n.id) {
		n.w.fail("loop", "node %s is sent log %s by way of itself: %s", n.id, log, strings.Join(d.Path, " → "))
	}
	n.intake.Add(d)
	if n.member != nil {
		n.flushSoon(n.w.plan.Tree.Window)
		return
	}
	n.applySoon(log.Origin, 0)
}

func (n *node) applySoon(origin string, d time.Duration) {
	if n.applying[origin] {
		return
	}
	n.applying[origin] = true
	n.soon(d+n.w.some(time.Millisecond), func() { n.apply(origin) })
}

// apply hands deliveries of an origin to the engine. It takes its time.
func (n *node) apply(origin string) {
	n.applying[origin] = false
	batch := n.intake.Next(n.w.clock(), origin)
	if batch == nil {
		if due := n.intake.Due(origin); !due.IsZero() && due.After(n.w.clock()) {
			n.applySoon(origin, due.Sub(n.w.clock()))
		}
		return
	}
	n.applying[origin] = true
	n.soon(n.w.some(time.Millisecond)+n.w.some(n.slow), func() {
		err := n.intake.Applier(origin).Apply(context.Background(), n.meshFeed, engine.CompareNumber, batch)
		if n.dying {
			return
		}
		if err != nil {
			n.w.tracef("%s: log %s: %v", n.id, batch[0].Key.Log, err)
		}
		n.wake()
		n.soon(n.w.some(time.Millisecond), func() {
			if err := n.intake.Done(n.w.clock(), origin, batch, err); err != nil {
				n.w.fail("fatal", "node %s: %v", n.id, err)
			}
			n.applying[origin] = false
			n.applySoon(origin, 0)
		})
	})
}

// checkBuffers checks that no more waits than may.
func (n *node) checkBuffers() {
	if n.dying {
		return
	}
	ways := int64(1) // a log comes by the shared logs of several peers at once, each with a window
	for _, l := range n.links {
		if l.machine != nil && l.machine.Shared() {
			ways++
		}
	}
	for log, p := range n.intake.Places().All() {
		if p.Buffered < 0 || p.Buffered > ways*(n.maxWindow()+128<<10) {
			n.w.fail("memory", "node %s has %d bytes of log %s waiting; the window is %d", n.id, p.Buffered, log, n.maxWindow())
			return
		}
	}
}

func (n *node) maxWindow() int64 { return max(n.w.plan.Buffer, n.w.plan.MinWindow) }

// checkResumed follows the vector of a node's cursors as the wire protocol says, and
// notes what is read by it.
func (n *node) checkResumed(c *conn, side int, m *wirepb.Resume) {
	v := c.nodes[1-side].told[n.id]
	at := map[engine.LogID]string{}
	if len(m.GetBase()) > 0 {
		maps.Copy(at, v)
	}
	for _, g := range m.GetGone() {
		delete(at, logIDOf(g))
	}
	for _, x := range m.GetCursors() {
		at[logIDOf(x.GetLog())] = x.GetCursor().GetPosition()
	}
	if c.nodes[1-side].told == nil {
		c.nodes[1-side].told = map[string]map[engine.LogID]string{}
	}
	c.nodes[1-side].told[n.id] = at
	logs := slices.SortedFunc(maps.Keys(at), func(a, b engine.LogID) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
	})
	channel, next := m.GetChannel(), 0
	for i, count := range m.GetOpen() {
		for range count {
			if i%2 == 1 && next < len(logs) {
				c.reads[side][channel] = engine.CursorKey{Log: logs[next], Scope: n.scope().ID()}
				channel++
			}
			next++
		}
	}
}

func logIDOf(l *wirepb.LogID) engine.LogID {
	return engine.LogID{Origin: l.GetOrigin(), Epoch: engine.Epoch(l.GetEpoch())}
}

// checkSent checks that nothing is told that the disk does not have.
func (n *node) checkSent(c *conn, side int, f *wirepb.Frame) {
	past := func(what string, l *wirepb.LogID, at string) {
		log := engine.LogID{Origin: l.GetOrigin(), Epoch: engine.Epoch(l.GetEpoch())}
		v := n.disk.Memory.View()
		defer v.Close()
		if info, ok := v.Log(log); ok && engine.CompareNumber(engine.Position(at), info.Head) > 0 {
			n.w.fail("told", "node %s says in %s that log %s is at %s, and it has %s", n.id, what, log, at, info.Head)
		}
	}
	switch k := f.GetKind().(type) {
	case *wirepb.Frame_Advert:
		for _, l := range k.Advert.GetLogs() {
			past("an advert", l.GetLog(), l.GetHead().GetPosition())
			seen := map[string]bool{}
			for _, id := range l.GetPath() {
				if seen[id] {
					n.w.fail("loop", "node %s offers a log by %v", n.id, l.GetPath())
				}
				seen[id] = true
			}
		}
	case *wirepb.Frame_Error:
		switch k.Error.GetCode() {
		case wirepb.ErrorCode_ERROR_CODE_MALFORMED, wirepb.ErrorCode_ERROR_CODE_INTERNAL, wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED:
			n.w.fail("protocol", "node %s says to %s: %s", n.id, c.nodes[1-side].id, k.Error.GetMessage())
		}
	case *wirepb.Frame_Head:
		past("a head", k.Head.GetLog(), k.Head.GetHead().GetPosition())
	case *wirepb.Frame_Subscribe:
		m := k.Subscribe
		c.reads[side][m.GetChannel()] = engine.CursorKey{Log: engine.LogID{Origin: m.GetLog().GetOrigin(), Epoch: engine.Epoch(m.GetLog().GetEpoch())}, Scope: n.scope().ID()}
	case *wirepb.Frame_Resume:
		n.checkResumed(c, side, k.Resume)
	case *wirepb.Frame_Ack:
		key := c.reads[side][k.Ack.GetChannel()]
		if k.Ack.GetLog() != nil { // of a shared log
			key = engine.CursorKey{Log: logIDOf(k.Ack.GetLog())}
		}
		have, what := n.disk.cursors[key], "applied"
		if k.Ack.GetDurable() {
			have, what = n.disk.synced[key], "durable"
			if !n.disk.durable {
				n.w.fail("told", "node %s has no disk, and says that something is durable", n.id)
			}
		}
		if engine.CompareNumber(engine.Position(k.Ack.GetPosition()), have.Position) > 0 {
			n.w.fail("told", "node %s says that log %s is %s up to %s, and that is so up to %q", n.id, key.Log, what, k.Ack.GetPosition(), have.Position)
		}
	}
}
