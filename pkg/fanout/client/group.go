package client

import (
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// group is peers that carry the same, of which one is read.
type group struct {
	active *meshPeer
	better *meshPeer   // is to be read, and well
	since  time.Time   // better is
	left   []*meshPeer // were read before, and are to be once more
}

// next returns the member of a group that is to be read in place of the one that is, which
// is well, at its place among all; nil for none. One that was left comes first: it may have
// something of a leaf that is gone for good, and that the others had not read as far.
func (m *Mesh) next(g *group, all []*meshPeer, at int) *meshPeer {
	if m.policy.Failback == FailbackNever {
		return nil
	}
	if i := slices.IndexFunc(g.left, m.well); i >= 0 {
		return g.left[i]
	}
	if best := slices.IndexFunc(all, m.well); best < at {
		return all[best]
	}
	return nil
}

// reads reports whether a log that a peer offers is read from it; mu is held.
func (m *Mesh) reads(l *link, o *session.Offer) bool {
	if m.cfg.Minted && len(o.Path) != 1 || m.cfg.Elsewhere != nil && m.cfg.Elsewhere(o.Log.Origin) {
		return false
	}
	p := m.peerOf(l.machine.Peer(), l)
	if p != nil && p.Idle {
		return false
	}
	if !m.policy.Standby || p == nil || p.Group == "" {
		return true
	}
	g := m.groups[p.Group]
	return g != nil && g.active == p
}

// turnTo picks the peer of each group that is read. Another is taken at once when
// that one is gone; the one that was left, for a while, and then a preferred one, when
// they are back and have been well for long. mu is held.
func (m *Mesh) turnTo(now time.Time) {
	if !m.policy.Standby {
		return
	}
	members := map[string][]*meshPeer{}
	for _, p := range m.peers {
		if p.Group != "" && !p.Idle {
			members[p.Group] = append(members[p.Group], p)
		}
	}
	for name := range m.groups {
		if len(members[name]) == 0 {
			delete(m.groups, name)
		}
	}
	for name, all := range members {
		g := m.groups[name]
		if g == nil {
			g = &group{left: slices.DeleteFunc(slices.Clone(all), func(p *meshPeer) bool { return !m.knows(p) })}
			m.groups[name] = g
		}
		g.left = slices.DeleteFunc(g.left, func(p *meshPeer) bool { return p == g.active || !slices.Contains(all, p) })
		best := slices.IndexFunc(all, m.well)
		at := slices.Index(all, g.active)
		switch {
		case best < 0:
			if at >= 0 && m.sessionWith(g.active) != nil {
				continue // it is silent, and so is everybody
			}
			best = slices.IndexFunc(all, func(p *meshPeer) bool { return m.sessionWith(p) != nil })
			if best < 0 {
				continue
			}
		case at >= 0 && m.well(g.active):
			next := m.next(g, all, at)
			if g.better != next {
				g.better, g.since = next, now
			}
			if next == nil || now.Sub(g.since) < m.policy.RecoverAfter {
				continue
			}
			best = slices.Index(all, next)
		case at >= 0:
			g.left = append(g.left, g.active)
		}
		if all[best] == g.active {
			continue
		}
		was := g.active
		g.active, g.better = all[best], nil
		m.takeOver(all, was)
	}
}

// well reports whether a peer can be read from; mu is held.
func (m *Mesh) well(p *meshPeer) bool {
	l := m.sessionWith(p)
	return l != nil && l.goAway == nil && !l.silent() && l.machine.Complete() && len(m.own(l)) > 0
}

// own returns the logs of itself that a peer offers; mu is held.
func (m *Mesh) own(l *link) (logs []engine.LogID) {
	for _, o := range l.machine.Offers() {
		if o.Wanted() && len(o.Path) == 1 {
			logs = append(logs, o.Log)
		}
	}
	return logs
}

// knows reports whether something has been read of a peer's own log; mu is held.
func (m *Mesh) knows(p *meshPeer) bool {
	for log, place := range m.intake.Places().All() {
		if place.Known && p.ID != "" && engine.MintedBy(log.Origin, p.ID) {
			return true
		}
	}
	return false
}

// takeOver begins to read from the active peer of a group. What the node has by way of
// another is not asked for again. mu is held.
func (m *Mesh) takeOver(all []*meshPeer, was *meshPeer) {
	active := m.groups[all[0].Group].active
	known := slices.ContainsFunc(all, func(p *meshPeer) bool { return p != active && m.knows(p) })
	l := m.sessionWith(active)
	if l == nil {
		return
	}
	logs := m.own(l)
	if known {
		for _, log := range logs {
			m.intake.TakeOver(log)
		}
	}
	if was != nil {
		m.cfg.Logger.Info("reading from another peer of the group", "group", active.Group, "peer", active.ID, "was", was.ID)
	}
}
