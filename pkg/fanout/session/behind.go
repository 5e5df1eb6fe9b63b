package session

import (
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// A node that reads archives which were written apart has tables that are behind the position of the log that it serves:
// see engine.Trail. What they lack comes in its own log later, and nowhere else. So its readers keep, beside their
// cursor, which tables that is ahead of and how far they have those. A writer whose log does not bring the
// rest sends such tables whole, beside what follows the cursor.

// tellBehind says which tables are behind where a channel gets to, if those are others than the peer knows.
func (w *Writer) tellBehind(c *outgoing, at engine.Position, begins bool) {
	if !w.behind || len(c.trail) == 0 && len(c.behind) == 0 {
		return
	}
	behind, _ := c.trail.Of(c.tables, at, c.compare)
	if begins || !maps.Equal(behind, c.behind) {
		c.behind = behind
		w.send(&wirepb.Behind{Channel: c.id, Position: string(at), Tables: wire.FromBehind(behind)})
	}
}

// lacking returns the tables that the peer is behind with and that lack what this node had of them already at a
// position, and what does not come in its log after that.
func (w *Writer) lacking(c *outgoing, at engine.Position) (lacking []engine.TableName) {
	if len(c.behind) == 0 {
		return nil
	}
	had, known := c.trail.At(at, c.compare)
	if !known { // no more than at the first place that is known
		had = c.trail[0].Behind
	}
	for t, r := range c.behind {
		to, is := had[t]
		if c.covers(t) && (!is || c.compare(r.Position, to.Position) < 0) {
			lacking = append(lacking, t)
		}
	}
	slices.SortFunc(lacking, engine.TableName.Compare)
	return lacking
}

// behindNext takes the word of which tables are behind from a position on.
func (r *Reader) behindNext(m *wirepb.Behind) error {
	c, err := r.channel(m.GetChannel(), "Behind")
	if c == nil {
		return err
	}
	if len(m.GetTables()) > maxTables {
		return malformed("Behind on channel %d names %d tables", c.id, len(m.GetTables()))
	}
	c.behind = wire.Behind(m.GetTables())
	return nil
}

// next returns the tables that are behind where a place gets to by what comes on a channel now; nil if the peer has said
// nothing of it. Of those that do not come whole the node has no less then than before: what the peer lacks may have come
// by way of another.
func (c *incoming) next(whole func(engine.TableName) bool) map[engine.TableName]engine.Reached {
	behind, p := c.behind, c.place
	c.behind = nil
	had, known := p.trail.At(p.Position, p.Compare)
	maps.DeleteFunc(behind, func(t engine.TableName, _ engine.Reached) bool { return !slices.Contains(c.offer.Tables, t) })
	for t, to := range behind {
		have, is := had[t]
		if !is {
			have = engine.Reached{Position: p.Position, Time: p.Time}
		}
		if known && !whole(t) && p.Compare(have.Position, to.Position) > 0 {
			behind[t] = have
		}
	}
	return behind
}

// passes takes, before a place gets to a position by a block or progress, which tables are behind there; nil if they
// are the same as before.
func (c *incoming) passes(at engine.Position) map[engine.TableName]engine.Reached {
	behind, p := c.next(func(engine.TableName) bool { return false }), c.place
	if behind == nil {
		return nil
	}
	if p.acked != nil {
		p.trail = p.trail.Since(p.acked.cursor.Position, p.Compare)
	}
	p.trail = p.trail.With(at, behind, p.Compare)
	return behind
}
