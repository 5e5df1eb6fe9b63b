package session

import (
	"cmp"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// How long a node that has come back waits for peers before it writes in its own
// logs: for those that cannot be reached, and for any at all.
const (
	rejoinSome = 3 * time.Second
	rejoinMost = 10 * time.Second
)

// Own lets what peers hold of a log of this node be read, though that closes a loop:
// the node has come back, perhaps with less than it had. It ends with Rejoin.
func (in *Intake) Own(l engine.OwnLog) {
	in.own[l.Log.Origin] = l.Tables
	in.places.Put(l.Log, &Place{Position: l.Position, Time: l.Time, Known: true, Tables: l.Tables})
	in.applied[l.Log] = true
}

// Owns reports whether an origin is one of Own.
func (in *Intake) Owns(origin string) bool { _, own := in.own[origin]; return own }

// brings reports whether a peer has more of one of the node's own logs, and all of its
// tables.
func (in *Intake) brings(o *Offer) bool {
	p := in.places.Of(o.Log)
	return o.Scope == nil && covers(o.Tables, in.own[o.Log.Origin]) && (p == nil || !p.Known || p.Lost != "" || o.Compare(o.Head, p.Position) > 0)
}

// Rejoin reports whether all is read that the peers hold of the node's own logs. Peers are
// those with a session; away is how many have none, and tried that each of them has
// been dialled. Once it has returned true the logs are read no more.
func (in *Intake) Rejoin(now time.Time, peers []Peer, away int, tried bool) bool {
	if in.since.IsZero() {
		in.since = now
	}
	waited := now.Sub(in.since)
	late := waited >= rejoinMost
	if away > 0 && !late && (len(peers) == 0 || !tried || waited < rejoinSome) {
		return false
	}
	for origin := range in.own {
		if q := in.queues[origin]; q != nil && (q.taken || len(q.waits) > 0) {
			return false
		}
		for i := range peers {
			for _, o := range peers[i].Session.offersOf(origin) {
				if in.brings(o) && (o.Wanted() || o.Refused != nil && o.Refused.Code == RefusedPeer && !late) {
					return false
				}
			}
		}
	}
	for origin := range in.own {
		in.Assign(origin, nil)
		delete(in.places, origin)
	}
	clear(in.own)
	return true
}

// ofOwn picks the session over which one of the node's own logs is read: that of the
// peer that has most of it, if that is more than is here.
func (in *Intake) ofOwn(all []option) *Reader {
	all = slices.DeleteFunc(all, func(o option) bool { return !in.brings(o.offer) })
	if len(all) == 0 {
		return nil
	}
	return slices.MaxFunc(all, func(a, b option) int {
		return cmp.Or(cmp.Compare(a.offer.Log.Epoch, b.offer.Log.Epoch), a.offer.Compare(a.offer.Head, b.offer.Head))
	}).peer.Session
}
