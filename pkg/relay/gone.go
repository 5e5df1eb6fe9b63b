package relay

import (
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A leaf that is gone for good moves no cursor: that nothing of it stands is in the log,
// but in no checkpoint, and the floor of a reader is past it. Such covers are few, and
// are said again at the head for whoever is sent past them.

// passed is a part of the log that a reader does not read, since it has what is in it
// by another way.
type passed struct{ from, to uint64 }

// floorToRead is Floor, for a holder that goes on there.
func (r *Reoriginate) floorToRead(holder string) engine.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.floors.Floor(holder)
	if have := r.floors.acks[holder]; have < at {
		r.passed = append(r.passed, passed{have, at})
	}
	return Position(at)
}

// sayAgain adds to the log the covers of leaves that are gone for good and that a reader
// was sent past; after a start, since it is not known who was, all of them.
func (r *Reoriginate) sayAgain(tx engine.Tx) bool {
	r.mu.Lock()
	all := r.passed
	r.mu.Unlock()
	if r.collect.next.passed = len(all); len(all) == 0 {
		return false
	}
	var marks []engine.Mark
	tables := map[engine.TableName]bool{}
	for _, o := range slices.Sorted(maps.Keys(r.known.covers)) {
		c := r.known.cover(o)
		if !c.Gone || c.Place == 0 || !slices.ContainsFunc(all, func(p passed) bool { return p.from < c.Place && c.Place <= p.to }) {
			continue
		}
		marks = append(marks, engine.Mark{Log: c.log(), Time: c.Time, Retires: c.Retires, Gone: true})
		for _, t := range c.Tables {
			tables[t] = true
		}
		c.Place = r.next + uint64(r.pending.len()) + 1
		r.known.news[o] = c
	}
	if len(marks) == 0 {
		return false
	}
	r.pending.note(&engine.Note{Marks: marks})
	for _, t := range tx.Tables() {
		if tables[t.Table] && !r.Shares(t.Table) && !t.Schema.Shares() { // shares stay
			r.pending.note(&engine.Note{Cover: &engine.Cover{Table: t.Table}})
		}
	}
	return true
}
