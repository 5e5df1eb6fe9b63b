package session

import (
	"cmp"
	"maps"
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
		if w.shared && s.Hidden {
			continue // the shared log cannot hide a part of it
		}
		now[s.Log] = s
		if old := w.advertised[s.Log]; old != nil && sameOffer(old, s) {
			continue
		}
		entry := func() *wirepb.LogAdvert {
			return &wirepb.LogAdvert{
				Log: wire.FromLog(s.Log), Oldest: string(s.Oldest), Head: wire.FromCursor(s.Head, s.Time), Path: s.Path, CompleteSince: uint64(s.CompleteFrom), Order: s.Order,
			}
		}
		a := entry()
		a.Scope = wire.FromScope(s.Scope)
		room(a)
		cur.Logs = append(cur.Logs, a)
		for _, t := range s.Tables {
			sc := newest(s.Schemas, t)
			var m *wirepb.Schema
			if sc != nil {
				m = w.shape(wire.FromSchema(s.Log, sc))
			}
			if m.GetShape() == 0 {
				table := wire.FromTable(t)
				if room(table) {
					a = entry()
					cur.Logs = append(cur.Logs, a)
				}
				a.Tables = append(a.Tables, table)
			}
			if m != nil {
				if room(m) {
					a = entry()
					cur.Logs = append(cur.Logs, a)
				}
				a.Schemas = append(a.Schemas, m)
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(w.advertised), compareLogs) {
		if now[id] == nil {
			m := wire.FromLog(id)
			room(m)
			cur.Withdrawn = append(cur.Withdrawn, m)
		}
	}
	w.advertised = now
	if frames = append(frames, cur); size == 0 && !first {
		return
	}
	for i, a := range frames {
		a.More = i < len(frames)-1
		w.send(a)
	}
}

// shape leaves out of a schema what the peer has from another, if it can.
func (w *Writer) shape(m *wirepb.Schema) *wirepb.Schema {
	if w.shapes == nil {
		return m
	}
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(&wirepb.Schema{Table: m.GetTable(), Columns: m.GetColumns()})
	if err != nil {
		return m
	}
	n, told := w.shapes[string(key)]
	switch {
	case told:
		m.Table, m.Columns = nil, nil
	case len(w.shapes) >= maxShapes:
		return m
	default:
		n = uint32(len(w.shapes) + 1)
		w.shapes[string(key)] = n
	}
	m.Log, m.Shape = nil, n
	return m
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

// sameOffers reports whether two lists are of the same logs, offered alike.
func sameOffers(a, b []Served) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a, b := &a[i], &b[i]; a.Log != b.Log || a.Hidden != b.Hidden || !sameOffer(a, b) {
			return false
		}
	}
	return true
}

func compareLogs(a, b engine.LogID) int {
	return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
}
