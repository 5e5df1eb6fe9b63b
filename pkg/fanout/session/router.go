package session

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// RouterConfig says when an origin's log is read from another peer. Zero fields
// have defaults.
type RouterConfig struct {
	// BehindFor is how long the peer may be behind another that has what this node
	// lacks. Default 1 s.
	BehindFor time.Duration
	// BetterFor is how long another peer must have been the better one, though this
	// one is well. Default 30 s.
	BetterFor time.Duration
	// SparedFor is how long a snapshot is put off that a peer who is not there yet
	// may spare. Default 3 s.
	SparedFor time.Duration
}

func (c RouterConfig) withDefaults() RouterConfig {
	c.BehindFor = cmp.Or(c.BehindFor, time.Second)
	c.BetterFor = cmp.Or(c.BetterFor, 30*time.Second)
	c.SparedFor = cmp.Or(c.SparedFor, 3*time.Second)
	return c
}

// Router picks, for each origin, the one session that its log is read over: of
// the newest epoch offered, the shortest path, then the configured order. One
// that works is kept, unless it has fallen behind, or another has been the better
// one for long. A change of session costs nothing but a Subscribe at the same
// cursor, and concerns no other origin.
type Router struct {
	cfg    RouterConfig
	routes map[string]*route
}

// route is what is remembered of one origin's choice.
type route struct {
	behind time.Time // since when the peer is behind another; zero if it is not
	better time.Time // since when there is a better one
	costly time.Time // since when only a snapshot is to be had
}

// NewRouter returns a Router.
func NewRouter(cfg RouterConfig) *Router {
	return &Router{cfg: cfg.withDefaults(), routes: map[string]*route{}}
}

// Configure replaces when origins move.
func (rt *Router) Configure(cfg RouterConfig) { rt.cfg = cfg.withDefaults() }

// Peer is a session that a Router may choose.
type Peer struct {
	Session *Reader
	Order   int  // in the configuration
	Unwell  bool // silent, or about to leave: taken if there is no other
	Leaving bool // it has asked to be left
	// Reads reports whether a log is read from it at all; nil: every one is.
	Reads func(*Offer) bool
}

// option is a way to read an origin's log.
type option struct {
	peer     *Peer
	offer    *Offer
	snapshot bool // only a snapshot helps there
	narrow   bool // tables are missing there that others have, or the reader has already
}

// Route assigns every origin that the peers offer.
func (rt *Router) Route(now time.Time, in *Intake, peers []Peer) {
	options := map[string][]option{}
	for i := range peers {
		if peers[i].Session.shared != nil {
			continue // what it brings comes all together
		}
		for _, o := range peers[i].Session.Offers() {
			if o.Wanted() && (peers[i].Reads == nil || peers[i].Reads(o)) {
				options[o.Log.Origin] = append(options[o.Log.Origin], option{peer: &peers[i], offer: o})
			}
		}
	}
	for _, origin := range slices.Sorted(maps.Keys(in.via)) {
		if len(options[origin]) == 0 {
			in.Assign(origin, nil)
		}
	}
	maps.DeleteFunc(rt.routes, func(origin string, _ *route) bool { return len(options[origin]) == 0 })
	for _, origin := range slices.Sorted(maps.Keys(options)) {
		if in.Owns(origin) {
			in.Assign(origin, in.ofOwn(options[origin]))
			continue
		}
		in.Assign(origin, rt.choose(now, in, origin, options[origin]))
	}
	for i := range peers {
		in.cfg.Perform(peers[i].Session, peers[i].Session.Settle(now))
	}
	rt.say(in, peers)
}

// say says of the logs that come in shared logs by which path they come: by the
// shortest that is offered now. What is read there comes over all of them at once, and a
// path that is kept for longer than it is offered may since lead through this node, or
// through one that is not sent the log for that reason.
func (rt *Router) say(in *Intake, peers []Peer) {
	best := map[engine.LogID]option{}
	for i := range peers {
		p := &peers[i]
		if p.Session.shared == nil {
			continue
		}
		for _, o := range p.Session.Offers() {
			if !o.Wanted() || o.stopped || p.Reads != nil && !p.Reads(o) || in.Over(o.Log.Origin) != nil {
				continue
			}
			have, ok := best[o.Log]
			if !ok || cmp.Or(cmp.Compare(len(o.Path), len(have.offer.Path)), cmp.Compare(p.Order, have.peer.Order), cmp.Compare(p.Session.peer, have.peer.Session.peer)) < 0 {
				best[o.Log] = option{peer: p, offer: o}
			}
		}
	}
	for _, log := range slices.SortedFunc(maps.Keys(best), compareLogs) {
		in.cfg.Perform(best[log].peer.Session, best[log].peer.Session.say(best[log].offer))
	}
}

func (rt *Router) choose(now time.Time, in *Intake, origin string, all []option) *Reader {
	var newest engine.Epoch
	for _, o := range all {
		newest = max(newest, o.offer.Log.Epoch)
	}
	all = slices.DeleteFunc(all, func(o option) bool { return o.offer.Log.Epoch != newest })
	place := in.places.Of(all[0].offer.Log)
	for i := range all {
		all[i].snapshot = all[i].offer.CostsSnapshot(place)
	}
	findNarrow(all, place)
	slices.SortFunc(all, func(a, b option) int {
		return cmp.Or(a.rank(&b), cmp.Compare(a.peer.Session.peer, b.peer.Session.peer))
	})
	best := all[0]
	r := rt.routes[origin]
	if r == nil {
		r = &route{}
		rt.routes[origin] = r
	}
	i := slices.IndexFunc(all, func(o option) bool { return o.peer.Session == in.via[origin] })
	if i < 0 { // it has no session, or its own is no longer of use
		r.behind, r.better = time.Time{}, time.Time{}
		if (best.snapshot || best.narrow) && !since(&r.costly, now, true, rt.cfg.SparedFor) {
			return nil
		}
		r.costly = time.Time{}
		return best.peer.Session
	}
	cur := all[i]
	switch ahead := slices.IndexFunc(all, func(o option) bool { return o.aheadOf(&cur, place) }); {
	case cur.peer.Unwell && !best.peer.Unwell && !best.snapshot && (cur.peer.Leaving || best.gains(place)):
		// Silence alone moves nothing that has nothing to gain: on a machine that has no
		// time for anybody all peers are silent.
	case since(&r.behind, now, ahead >= 0 || cur.narrow && !best.narrow && !best.peer.Unwell && !in.Baselining(origin), rt.cfg.BehindFor):
		if ahead >= 0 {
			best = all[ahead]
		}
	case since(&r.better, now, best.rank(&cur) < 0 && !best.snapshot && !in.Baselining(origin), rt.cfg.BetterFor):
	default:
		return cur.peer.Session
	}
	*r = route{}
	return best.peer.Session
}

// findNarrow finds the options that lack tables. What is read there has to be read
// again when the tables come back.
func findNarrow(all []option, place *Place) {
	var tables []engine.TableName
	if place != nil && place.Known && place.Lost == "" {
		tables = place.Tables
	}
	for _, o := range all {
		if ts := o.peer.Session.wantedOf(o.offer); len(ts) > len(tables) {
			tables = ts
		}
	}
	for i := range all {
		o := &all[i]
		ts := o.peer.Session.wantedOf(o.offer)
		o.narrow = len(ts) < len(tables) || !covers(ts, tables)
	}
}

// since reports whether a condition has held for as long as d; from is when it
// began.
func since(from *time.Time, now time.Time, holds bool, d time.Duration) bool {
	switch {
	case !holds:
		*from = time.Time{}
	case from.IsZero():
		*from = now
	}
	return holds && now.Sub(*from) >= d
}

// rank is negative if a is to be preferred to b.
func (a *option) rank(b *option) int {
	flag := func(f bool) int {
		if f {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(flag(a.peer.Unwell), flag(b.peer.Unwell)), cmp.Compare(flag(a.narrow), flag(b.narrow)),
		cmp.Compare(flag(a.snapshot), flag(b.snapshot)), cmp.Compare(len(a.offer.Path), len(b.offer.Path)), cmp.Compare(a.peer.Order, b.peer.Order))
}

// gains reports whether a can bring the reader on.
func (a *option) gains(p *Place) bool {
	return p == nil || !p.Known || p.Lost != "" || a.offer.Compare(a.offer.Head, p.Position) > 0
}

// aheadOf reports whether a can bring the reader on now, and the present session
// cannot.
func (a *option) aheadOf(cur *option, p *Place) bool {
	if p == nil || !p.Known || a.peer.Unwell || a.snapshot || a.narrow || a.peer.Session == cur.peer.Session {
		return false
	}
	return a.offer.Compare(cur.offer.Head, p.Position) <= 0 && a.offer.Compare(a.offer.Head, p.Position) > 0
}
