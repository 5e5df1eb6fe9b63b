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
	better *meshPeer // is preferred, and well
	since  time.Time // better is
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
// that one is gone; a preferred one that is back, when it has been well for long. mu
// is held.
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
			g = &group{}
			m.groups[name] = g
		}
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
			if best >= at || m.policy.Failback == FailbackNever {
				g.better = nil
				continue
			}
			if g.better != all[best] {
				g.better, g.since = all[best], now
			}
			if now.Sub(g.since) < m.policy.RecoverAfter {
				continue
			}
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

// takeOver begins to read from the active peer of a group. What the node has by way of
// another is not asked for again. mu is held.
func (m *Mesh) takeOver(all []*meshPeer, was *meshPeer) {
	var active *meshPeer
	known := false
	for _, p := range all {
		if g := m.groups[p.Group]; g.active == p {
			active = p
			continue
		}
		for log, place := range m.intake.Places().All() {
			known = known || place.Known && p.ID != "" && engine.MintedBy(log.Origin, p.ID)
		}
	}
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
