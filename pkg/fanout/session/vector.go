package session

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// vector is where a reader is in many logs, as it has told a peer. It is named by
// what is in it, so that both sides can tell whether they mean the same one. It is
// never altered.
type vector struct {
	id   string
	logs []engine.LogID // in order
	at   map[engine.LogID]place
}

type place struct {
	position engine.Position
	time     engine.Time
}

// Told is the vector that a reader has named last to each peer.
type Told map[string]*vector

// maxVector is how many logs a vector may have: more than a peer may offer.
const maxVector = 1 << 16

func newVector(at map[engine.LogID]place) *vector {
	v := &vector{logs: slices.SortedFunc(maps.Keys(at), compareLogs), at: at}
	sum := sha256.New()
	var buf []byte
	for _, log := range v.logs {
		p := at[log]
		buf = binary.AppendUvarint(buf[:0], uint64(len(log.Origin)))
		buf = append(buf, log.Origin...)
		buf = binary.AppendUvarint(buf, uint64(log.Epoch))
		buf = binary.AppendUvarint(buf, uint64(len(p.position)))
		buf = append(buf, p.position...)
		buf = binary.AppendUvarint(buf, uint64(p.time))
		sum.Write(buf)
	}
	v.id = string(sum.Sum(nil)[:8])
	return v
}

// Vectors remember the last vector of each of a node's readers beyond their
// sessions, as far as there is room for them. They are safe for concurrent use.
type Vectors struct {
	max int

	mu           sync.Mutex
	young, older map[string]*vector // two generations: a cheap LRU
	size         int                // logs in young
}

// NewVectors returns Vectors that have room for about so many cursors; with 0 for
// 131,072, which is some 20 MB.
func NewVectors(cursors int) *Vectors {
	if cursors == 0 {
		cursors = 1 << 17
	}
	return &Vectors{max: cursors, young: map[string]*vector{}}
}

// get returns a reader's vector of that name; nil if it is not known.
func (vs *Vectors) get(reader, id string) *vector {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v := vs.young[reader]
	if v == nil {
		v = vs.older[reader]
	}
	if v == nil || v.id != id {
		return nil
	}
	return v
}

// put takes the place of a reader's vector.
func (vs *Vectors) put(reader string, v *vector) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if old := vs.young[reader]; old != nil {
		vs.size -= len(old.logs)
	}
	vs.young[reader] = v
	if vs.size += len(v.logs); vs.size > vs.max/2 {
		vs.older, vs.young, vs.size = vs.young, map[string]*vector{}, 0
	}
}

// plain reports whether a log can be subscribed to with nothing but a cursor.
func (r *Reader) plain(o *Offer, tables []engine.TableName) bool {
	p := r.places.Of(o.Log)
	return r.vectors && r.cfg.Scope == nil && p != nil && p.Known && p.Lost == "" && !p.Floor && p.Parts == 0 && p.Position != "" && covers(p.Tables, tables) && len(p.trail) == 0
}

// resume opens a channel for each of several offers, which are in order.
func (r *Reader) resume(offers []*Offer) {
	if len(offers) < 2 {
		for _, o := range offers {
			r.subscribe(o, r.wantedOf(o))
		}
		return
	}
	base := r.cfg.Vectors[r.peer]
	at := map[engine.LogID]place{}
	m := &wirepb.Resume{Channel: r.last + 1, Upward: r.upward(), Reader: r.cfg.Name, Modes: r.modes(), Follow: r.cfg.Holder != "", HeartbeatMs: r.heartbeatMs()}
	if base != nil {
		maps.Copy(at, base.at)
		m.Base = []byte(base.id)
		for _, log := range base.logs {
			if r.offers[log] == nil {
				delete(at, log)
				m.Gone = append(m.Gone, wire.FromLog(log))
			}
		}
	}
	even := true
	for _, o := range offers {
		c := r.open(o, r.wantedOf(o))
		c.run, c.cursor, c.asked = m.Channel, true, c.place.Position
		p := place{c.place.Position, c.place.Time}
		if have, ok := at[o.Log]; !ok || have != p {
			at[o.Log] = p
			m.Cursors = append(m.Cursors, &wirepb.LogCursor{Log: wire.FromLog(o.Log), Cursor: wire.FromCursor(p.position, p.time)})
		}
		m.Credit = append(m.Credit, uint64(c.left))
		even = even && c.left == int64(m.Credit[0])
		c.cause = c.place.Gap
		r.carry(c)
	}
	if even {
		m.Credit = m.Credit[:1]
	}
	v := newVector(at)
	m.Vector, m.Open = []byte(v.id), turns(v.logs, offers)
	r.cfg.Vectors[r.peer] = v
	r.sendResume(m)
}

// turns says which logs of a vector the offers are.
func turns(logs []engine.LogID, offers []*Offer) (open []uint32) {
	open = []uint32{0}
	for _, log := range logs {
		is := len(offers) > 0 && offers[0].Log == log
		if is {
			offers = offers[1:]
		}
		if is != (len(open)%2 == 0) {
			open = append(open, 0)
		}
		open[len(open)-1]++
	}
	if len(open)%2 == 1 {
		open = open[:len(open)-1] // nothing is opened after them
	}
	return open
}

// sendResume sends a Resume as frames of a size that is allowed.
func (r *Reader) sendResume(m *wirepb.Resume) {
	part, size := &wirepb.Resume{}, 0
	room := func(x proto.Message) {
		n := proto.Size(x) + 4
		if size > 0 && size+n > maxControl {
			part.More = true
			r.send(part)
			part, size = &wirepb.Resume{}, 0
		}
		size += n
	}
	for _, c := range m.GetCursors() {
		room(c)
		part.Cursors = append(part.Cursors, c)
	}
	for _, g := range m.GetGone() {
		room(g)
		part.Gone = append(part.Gone, g)
	}
	rest := proto.CloneOf(m)
	rest.Cursors, rest.Gone = nil, nil
	if size > 0 && size+proto.Size(rest) > maxControl {
		part.More = true
		r.send(part)
		part = &wirepb.Resume{}
	}
	rest.Cursors, rest.Gone = part.GetCursors(), part.GetGone()
	r.send(rest)
}

// unknownBase: the peer does not know the vector that a Resume has named. All of
// it is sent.
func (r *Reader) unknownBase(channel uint32) (known bool) {
	for _, c := range r.channelsOf(channel) {
		r.drop(c)
		known = true
	}
	delete(r.cfg.Vectors, r.peer)
	return known
}

// channelsOf returns the channels that a Resume has opened, in order.
func (r *Reader) channelsOf(run uint32) (all []*incoming) {
	for _, id := range slices.Sorted(maps.Keys(r.channels)) {
		if c := r.channels[id]; c.run == run {
			all = append(all, c)
		}
	}
	return all
}

// resume opens the channels that a run of Resume frames names.
func (w *Writer) resume(part *wirepb.Resume) error {
	if w.resuming = append(w.resuming, part); part.GetMore() {
		if len(w.resuming) > maxRun {
			return malformed("a Resume of more than %d frames", maxRun)
		}
		return nil
	}
	m, run := part, w.resuming
	w.resuming = nil
	n := 0
	for i, count := range m.GetOpen() {
		if count > maxVector {
			return malformed("Resume passes over or opens %d logs at once; at most %d are in a vector", count, maxVector)
		}
		if i%2 == 1 {
			n += int(count)
		}
	}
	first := m.GetChannel()
	switch {
	case first <= w.last:
		return malformed("Resume from channel %d after channel %d: numbers only grow", first, w.last)
	case n == 0 || n > maxVector || uint64(first)+uint64(n) > 1<<31:
		return malformed("Resume opens %d channels from number %d", n, first)
	case len(m.GetCredit()) != 1 && len(m.GetCredit()) != n:
		return malformed("Resume opens %d channels, and has credit for %d", n, len(m.GetCredit()))
	}
	reader := w.peer + "/" + m.GetReader()
	at := map[engine.LogID]place{}
	if len(m.GetBase()) > 0 {
		base := w.cfg.Vectors.get(reader, string(m.GetBase()))
		if base == nil {
			return w.forceFull(first, n)
		}
		maps.Copy(at, base.at)
	}
	for _, p := range run {
		for _, g := range p.GetGone() {
			delete(at, wire.Log(g))
		}
		for _, c := range p.GetCursors() {
			at[wire.Log(c.GetLog())] = place{engine.Position(c.GetCursor().GetPosition()), engine.Time(c.GetCursor().GetTime())}
		}
		if len(at) > maxVector {
			return malformed("a vector of more than %d logs", maxVector)
		}
	}
	v := newVector(at)
	switch {
	case v.id == string(m.GetVector()):
	case len(m.GetBase()) > 0:
		return w.forceFull(first, n)
	default:
		return malformed("Resume names a vector of %d logs otherwise than by what is in it", len(v.logs))
	}
	var opened []engine.LogID
	next := 0
	for i, count := range m.GetOpen() {
		if next+int(count) > len(v.logs) {
			return malformed("Resume opens logs beyond the %d of its vector", len(v.logs))
		}
		if i%2 == 1 {
			opened = append(opened, v.logs[next:next+int(count)]...)
		}
		next += int(count)
	}
	w.cfg.Vectors.put(reader, v)
	for i, log := range opened {
		sub := &wirepb.Subscribe{
			Channel: first + uint32(i), Log: wire.FromLog(log), From: &wirepb.Subscribe_Cursor{Cursor: wire.FromCursor(at[log].position, at[log].time)},
			Modes: m.GetModes(), Credit: m.GetCredit()[min(i, len(m.GetCredit())-1)], Upward: m.GetUpward(), Reader: m.GetReader(), Follow: m.GetFollow(),
			HeartbeatMs: m.GetHeartbeatMs(),
		}
		if err := w.subscribe(sub, true); err != nil {
			if w.fail(err); w.closed {
				return nil
			}
		}
	}
	return nil
}

// forceFull has a reader say its vector in full.
func (w *Writer) forceFull(first uint32, n int) error {
	w.last = first + uint32(n) - 1
	return &Error{Code: wirepb.ErrorCode_ERROR_CODE_UNKNOWN_BASE, Channel: first, Message: fmt.Sprintf("node %s does not know the vector that this one changes: say it in full", w.cfg.NodeID)}
}
