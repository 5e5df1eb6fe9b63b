package session

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Merged is a node's shared log: all its logs in the one order in which their
// commits were seen, for peers that keep one cursor for all. An entry says only
// which stretch of which log came next; what it holds is read from that log. It
// lasts as long as the process, which is its epoch: a cursor of an earlier one says
// nothing. It is safe for concurrent use.
type Merged struct {
	node  string
	epoch engine.Epoch

	mu    sync.Mutex
	on    bool // someone reads it
	first uint64
	items []stretch
	heads map[engine.LogID]engine.Position
}

// stretch is a piece of a log.
type stretch struct {
	log      engine.LogID
	prev, to engine.Position
}

// maxMerged is how many stretches are remembered. A reader that is further behind
// is sent all that is held of each log.
const maxMerged = 1 << 16

// NewMerged returns the shared log of a node. epoch is another at each start.
func NewMerged(node string, epoch engine.Epoch) *Merged {
	return &Merged{node: node, epoch: epoch, first: 1, heads: map[engine.LogID]engine.Position{}}
}

// Advance takes what the node serves now.
func (m *Merged) Advance(served []Served) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on {
		return
	}
	for i := range served {
		s := &served[i]
		was, ok := m.heads[s.Log]
		if !ok {
			was = s.Oldest
		}
		if s.Compare(s.Head, was) <= 0 {
			continue
		}
		m.heads[s.Log] = s.Head
		m.items = append(m.items, stretch{s.Log, was, s.Head})
	}
	if n := len(m.items) - maxMerged; n > 0 {
		m.items = slices.Delete(m.items, 0, n)
		m.first += uint64(n)
	}
}

// start turns the log on, and returns the place after all that has been seen, and
// the heads of the logs there.
func (m *Merged) start(served []Served) (seq uint64, heads map[engine.LogID]engine.Position) {
	m.mu.Lock()
	if !m.on {
		m.on = true
		for i := range served {
			m.heads[served[i].Log] = served[i].Head
		}
	}
	m.mu.Unlock()
	m.Advance(served)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first + uint64(len(m.items)) - 1, maps.Clone(m.heads)
}

// has reports whether what follows a place is still known.
func (m *Merged) has(seq uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on && seq+1 >= m.first && seq < m.first+uint64(len(m.items))
}

// after returns the stretch that follows a place.
func (m *Merged) after(seq uint64) (s stretch, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seq+1 < m.first || seq+1 >= m.first+uint64(len(m.items)) {
		return s, false
	}
	return m.items[seq+1-m.first], true
}

// merging is a channel of the shared log.
type merging struct {
	ahead []stretch                        // to be sent before what follows seq
	seq   uint64                           // of the last stretch taken up
	whole uint64                           // all up to it has been sent; 0 while that is not so
	waits bool                             // for the node's view to have more of cur
	cur   *stretch                         // being sent
	sent  map[engine.LogID]engine.Position // of each log
	all   bool                             // it began with all that is held
}

// subscribeShared opens a channel of the shared log.
func (w *Writer) subscribeShared(c *outgoing, m *wirepb.Subscribe) error {
	refuse := func(message string) error {
		return &Error{Code: wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, Channel: c.id, Message: message}
	}
	switch {
	case w.cfg.Merged == nil:
		return refuse("node " + w.cfg.NodeID + " has no shared log")
	case m.GetScope() != nil:
		return refuse("the shared log has no scope: read all of it, or give both nodes the capability " + CapOriginCursors)
	}
	c.merging = &merging{sent: map[engine.LogID]engine.Position{}}
	c.state, c.mode = stateStreaming, wirepb.Mode_MODE_DELTA
	answer := &wirepb.Subscribed{Channel: c.id, Mode: c.mode}
	if at := m.GetShared(); at.GetNode() == w.cfg.NodeID && engine.Epoch(at.GetEpoch()) == w.cfg.Merged.epoch && at.GetSequence() > 0 && w.cfg.Merged.has(at.GetSequence()) {
		c.merging.seq, c.merging.whole = at.GetSequence(), at.GetSequence()
	} else {
		w.mergeAll(c)
	}
	w.channels[c.id] = c
	w.order = append(w.order, c.id)
	w.heartbeat = heartbeatOf(m)
	w.send(answer)
	w.nextStretch(c)
	return nil
}

// mergeAll has all sent that is held and was not sent on the channel, and then
// what follows in the shared log.
func (w *Writer) mergeAll(c *outgoing) {
	g := c.merging
	g.all = true
	var heads map[engine.LogID]engine.Position
	g.seq, heads = w.cfg.Merged.start(w.served)
	g.whole, g.cur, g.ahead = 0, nil, nil
	c.parts = 0
	for i := range w.served {
		s := &w.served[i]
		prev := s.Oldest
		if at, ok := g.sent[s.Log]; ok {
			prev = at
		}
		to := s.Head
		if at, ok := heads[s.Log]; ok && s.Compare(at, to) > 0 {
			to = at
		}
		g.ahead = append(g.ahead, stretch{s.Log, prev, to})
	}
	slices.SortStableFunc(g.ahead, func(a, b stretch) int {
		return compareLogs(a.log, b.log)
	})
}

// nextStretch takes up the next stretch that has something for the reader, if none
// is under way.
func (w *Writer) nextStretch(c *outgoing) {
	g := c.merging
	for g.cur == nil {
		var s stretch
		if len(g.ahead) > 0 {
			s, g.ahead = g.ahead[0], g.ahead[1:]
		} else {
			if !w.cfg.Merged.has(g.seq) {
				w.mergeAll(c)
				continue
			}
			g.whole = g.seq
			var ok bool
			if s, ok = w.cfg.Merged.after(g.seq); !ok {
				return
			}
			if have, other := w.find(s.log); have == nil && other == nil && !w.gone[s.log] {
				return // it is newer than what is served: see Serve
			}
			g.seq++
		}
		served, _ := w.find(s.log)
		if served == nil || served.Hidden || slices.Contains(served.Path, w.peer) {
			continue
		}
		from := s.prev
		if at, ok := g.sent[s.log]; ok {
			from = at
		} else if g.all {
			from = served.Oldest
		}
		if served.Compare(served.Oldest, from) > 0 {
			// The log has let go of what follows. The reader is told: it would see what is
			// missing by the next entry only, and that may be long in coming.
			from = served.Oldest
			g.sent[s.log] = from
			w.head(served)
		}
		if served.Compare(from, s.to) >= 0 {
			continue
		}
		g.cur = &s
		c.sent, c.parts, c.compare = from, 0, served.Compare
	}
}

// reached is where a reader is in the shared log that has all that was sent; 0 for
// nowhere yet.
func (g *merging) reached(c *outgoing) uint64 {
	if len(g.ahead) == 0 && c.parts == 0 && c.compare(c.sent, g.cur.to) >= 0 {
		return g.seq
	}
	return g.whole
}

// readShared takes what was read of the stretch under way.
func (w *Writer) readShared(c *outgoing, pieces []Piece, err error) []Output {
	g := c.merging
	if g.cur == nil {
		return nil
	}
	size := 0
	for _, p := range pieces {
		b := p.Block
		if b == nil {
			continue
		}
		if s, _ := w.find(g.cur.log); s != nil {
			w.sendSchemas(c, g.cur.log, s.Schemas)
		}
		w.sendSchemas(c, g.cur.log, b.Schemas)
		w.sendOthers(c, b)
		size += len(b.Payload)
		if !b.Last {
			c.parts = b.Part + 1
		} else {
			c.sent, c.parts = b.Position, 0
			g.sent[g.cur.log] = b.Position
		}
		var at *wirepb.SharedCursor
		if seq := g.reached(c); seq > 0 {
			at = &wirepb.SharedCursor{Node: w.cfg.NodeID, Epoch: uint64(w.cfg.Merged.epoch), Sequence: seq}
		}
		if len(b.Payload) == 0 && b.Last {
			w.send(&wirepb.Progress{Channel: c.id, Prev: string(b.Prev), Through: string(b.Position), Time: uint64(b.Time), Log: wire.FromLog(g.cur.log), Shared: at})
			continue
		}
		w.out = append(w.out, Output{Shared: wire.SharedBatch(c.id, b, g.cur.log, at)})
	}
	if err == nil && len(pieces) == 0 { // what is read from is older than what was seen
		g.waits = true
		return nil
	}
	w.spend(c, size)
	switch {
	case errors.Is(err, engine.ErrGap):
		// What is served may not tell yet that the log has let go of it.
		if s, _ := w.find(g.cur.log); s != nil && s.Compare(s.Oldest, c.sent) <= 0 {
			g.waits = true
			return w.take()
		}
		g.ahead = slices.Insert(g.ahead, 0, *g.cur)
		g.cur, c.parts = nil, 0
	case err != nil || c.parts == 0 && c.compare(c.sent, g.cur.to) >= 0:
		g.cur, c.parts = nil, 0
	}
	w.nextStretch(c)
	return w.take()
}
