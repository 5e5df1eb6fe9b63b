package session

import (
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// In a relay tree a reader says with its acks how far those above it have the log,
// and the writer says how far each is known to have it, by whatever way. A reader
// that takes over from another asks for what a holder lacks: FLOOR.

// Holdings are how far holders have a log.
type Holdings = map[string]engine.Position

// Stable is what a child knows of a log of its own.
type Stable struct {
	Log     engine.LogID
	At      engine.Position // what every root has; empty where it is not known
	Holders Holdings
	Compare engine.Comparator
}

// maxHolders bounds what a peer may say of one log.
const maxHolders = 1 << 10

func fromHoldings(hs Holdings) []*wirepb.Holding {
	all := make([]*wirepb.Holding, 0, len(hs))
	for _, h := range slices.Sorted(maps.Keys(hs)) {
		all = append(all, &wirepb.Holding{Holder: h, Position: string(hs[h])})
	}
	return all
}

func toHoldings(ms []*wirepb.Holding) (Holdings, error) {
	if len(ms) > maxHolders {
		return nil, malformed("%d holders of one log; at most %d are taken", len(ms), maxHolders)
	}
	if len(ms) == 0 {
		return nil, nil
	}
	hs := make(Holdings, len(ms))
	for _, m := range ms {
		if m.GetHolder() == "" {
			return nil, malformed("a holder without a name")
		}
		hs[m.GetHolder()] = engine.Position(m.GetPosition())
	}
	return hs, nil
}

// stated is what Stable has told of a log.
type stated struct {
	holders Holdings
	at      engine.Position
}

// tellStable says what is known of the logs that the peer may read, if that has
// changed: also of one that it reads no more, which it forgets by what it hears.
func (w *Writer) tellStable() {
	if !w.floors || w.cfg.Holders == nil {
		return
	}
	read := map[engine.LogID]bool{}
	for _, id := range w.order {
		c := w.channels[id]
		if c.merging != nil {
			continue
		}
		if read[c.log] = true; c.state != stateWaiting {
			w.state(c.log, &c.stated)
		}
	}
	for i := range w.served {
		log := w.served[i].Log
		if w.advertised[log] == nil || read[log] {
			continue
		}
		s := w.stated[log]
		w.state(log, &s)
		w.stated[log] = s
	}
}

// state says what is known of a log, if that is not what was said.
func (w *Writer) state(log engine.LogID, said *stated) {
	hs, at := w.cfg.Holders(log)
	if said.at == at && maps.Equal(said.holders, hs) {
		return
	}
	*said = stated{hs, at}
	w.send(&wirepb.Stable{Log: wire.FromLog(log), Position: string(at), Holders: fromHoldings(hs)})
}

// ackOf returns what there is to acknowledge on a channel, or nil.
func (r *Reader) ackOf(c *incoming) *wirepb.Ack {
	m := c.ack
	c.ack = nil
	if !r.floors || r.cfg.Holder == "" || c.state != inStream {
		return m
	}
	news := m != nil
	at, durable := engine.Position(m.GetPosition()), m.GetDurable()
	if a := c.place.acked; !news && a != nil {
		at, durable = a.cursor.Position, a.durable
	} else if !news {
		return nil
	}
	var above Holdings
	if r.cfg.Above != nil {
		above = r.cfg.Above(c.log)
	}
	if (!news || durable) && r.told(c.toldHolders, above, at, durable) {
		return nil
	}
	if !news {
		m = &wirepb.Ack{Channel: c.id, Position: string(at), Durable: durable}
	}
	hs := Holdings{}
	maps.Copy(hs, above)
	if durable { // else the child must keep what is only here
		hs[r.cfg.Holder] = at
	}
	c.toldHolders, m.Holders = hs, fromHoldings(hs)
	return m
}

// told reports whether the peer was told that those above are there, and if it is durable
// that this node is at a position. Every session is asked at every tick.
func (r *Reader) told(told, above Holdings, at engine.Position, durable bool) bool {
	n := 0
	for h, p := range above {
		if durable && h == r.cfg.Holder {
			continue
		}
		if was, ok := told[h]; !ok || was != p {
			return false
		}
		n++
	}
	if durable {
		if was, ok := told[r.cfg.Holder]; !ok || was != at {
			return false
		}
		n++
	}
	return n == len(told)
}

// stable takes what a child says of its log.
func (r *Reader) stable(m *wirepb.Stable) error {
	log := wire.Log(m.GetLog())
	o := r.offers[log]
	if o == nil {
		return nil
	}
	hs, err := toHoldings(m.GetHolders())
	if err == nil {
		r.out = append(r.out, Action{Stable: &Stable{log, engine.Position(m.GetPosition()), hs, o.Compare}})
	}
	return err
}

// floored begins to read a log at the floor that the peer has found.
func (r *Reader) floored(c *incoming, m *wirepb.Subscribed) {
	p := c.place
	start, t := engine.Position(m.GetStart().GetPosition()), engine.Time(m.GetStart().GetTime())
	p.Floor = false
	switch {
	case !p.Known || p.Lost != "":
		// The node has what is below the floor: a baseline without rows stands for it.
		spec := &engine.BaselineSpec{
			Log: c.log, Scope: r.key(c.log).Scope, Others: c.schemas.byLog(),
			At: start, Time: max(t, 1), CompleteFrom: c.offer.Since, Truncates: map[engine.TableName][]engine.Stamp{},
		}
		spec.Schemas = spec.Others[c.log]
		delete(spec.Others, c.log)
		slices.SortFunc(spec.Schemas, func(a, b *engine.Schema) int { return int(a.ID) - int(b.ID) })
		c.fresh = append(c.fresh, spec.Schemas...)
		c.hand()
		r.deliver(c, &Delivery{Kind: DeliverBaseline, Spec: spec})
		r.deliver(c, &Delivery{Kind: DeliverCommit})
		p.Position, p.Time, p.Known, p.Parts, p.Lost, p.Gap, p.Tables = start, t, true, 0, "", "", c.tables
		p.copier = nil
		r.carry(c) // the baseline has no tables, and the log has
	case c.offer.Compare(start, p.Position) > 0:
		r.deliver(c, &Delivery{Kind: DeliverProgress, Prev: p.Position, Through: start, Time: t})
		p.Position, p.Time, p.Parts = start, max(p.Time, t), 0
	} // else what comes of what is here already is dropped
}
