package session

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// advertise tells the peer what has changed; everything the first time.
func (w *Writer) advertise(first bool) {
	var frames []*wirepb.Advert
	cur, size := &wirepb.Advert{}, 0
	room := func(m proto.Message) bool {
		n := proto.Size(m) + 8
		full := size > 0 && size+n > maxControl
		if full {
			frames, cur, size = append(frames, cur), &wirepb.Advert{}, 0
		}
		size += n
		return full
	}
	now := map[engine.LogID]*Served{}
	for i := range w.served {
		s := &w.served[i]
		now[s.Log] = s
		if old := w.advertised[s.Log]; old != nil && sameOffer(old, s) {
			continue
		}
		entry := func() *wirepb.LogAdvert {
			return &wirepb.LogAdvert{
				Log: wire.FromLog(s.Log), Oldest: string(s.Oldest), Head: wire.FromCursor(s.Head, s.Time), Path: s.Path, CompleteSince: uint64(s.CompleteFrom),
			}
		}
		a := entry()
		a.Scope = wire.FromScope(s.Scope)
		room(a)
		cur.Logs = append(cur.Logs, a)
		for _, t := range s.Tables {
			table := wire.FromTable(t)
			if room(table) {
				a = entry()
				cur.Logs = append(cur.Logs, a)
			}
			a.Tables = append(a.Tables, table)
			if sc := newest(s.Schemas, t); sc != nil {
				m := wire.FromSchema(s.Log, sc)
				if room(m) {
					a = entry()
					cur.Logs = append(cur.Logs, a)
				}
				a.Schemas = append(a.Schemas, m)
			}
		}
	}
	for id := range w.advertised {
		if now[id] == nil {
			m := wire.FromLog(id)
			room(m)
			cur.Withdrawn = append(cur.Withdrawn, m)
		}
	}
	slices.SortFunc(cur.Withdrawn, func(a, b *wirepb.LogID) int { return int(int64(a.Epoch) - int64(b.Epoch)) })
	w.advertised = now
	if frames = append(frames, cur); size == 0 && !first {
		return
	}
	for i, a := range frames {
		a.More = i < len(frames)-1
		w.send(a)
	}
}

func newest(schemas []*engine.Schema, table engine.TableName) *engine.Schema {
	for _, s := range slices.Backward(schemas) {
		if s.Table == table {
			return s
		}
	}
	return nil
}

// sameOffer reports whether two offers of a log differ in no more than their
// positions.
func sameOffer(a, b *Served) bool {
	return slices.Equal(a.Path, b.Path) && slices.Equal(a.Tables, b.Tables) && len(a.Schemas) == len(b.Schemas) && a.Scope.ID() == b.Scope.ID()
}
