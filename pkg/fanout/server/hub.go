package server

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// hub is what sessions share: one view of the store per commit, and blocks as
// they look through a scope.
type hub struct {
	host   engine.Host
	merged *session.Merged
	scopes map[string]*scope.Scope // of the node's sources, by name
	tree   Tree                    // nil: none
	now    func() time.Time

	mu   sync.Mutex
	cur  *moment // nil or open
	last *moment // the newest, whose view may be closed
	// looked is when the node was looked at last, and cost how long that took: it
	// grows with the logs.
	looked time.Time
	cost   time.Duration
	looks  uint64
	// base is the moment of the baseline that began last at a new one, if any is
	// still being sent, and since when.
	base      *moment
	baseSince time.Time

	narrowMu     sync.Mutex
	young, older map[narrowKey]*narrowed // two generations: a cheap LRU
	youngSize    int
	shared       map[engine.Scope]*scope.Scope
}

// moment is the node at a commit. Its view is open while someone holds it.
type moment struct {
	changed <-chan struct{} // closed when there is a newer one
	no      uint64          // of the look: moments with the same are served alike
	trails  uint64          // engine.Host.Trails before the look
	served  []session.Served
	view    engine.View
	refs    int // under hub.mu

	seenMu sync.Mutex
	seen   map[string][]session.Served // by identity

	strangersMu sync.Mutex
	found       map[strangerKey]map[engine.LogID][]*engine.Schema
}

func newHub(host engine.Host, scopes map[string]*scope.Scope, tree Tree, now func() time.Time) *hub {
	merged := session.NewMerged(host.NodeID(), engine.Epoch(engine.TimeOf(now())))
	return &hub{host: host, merged: merged, scopes: scopes, tree: tree, now: now, young: map[narrowKey]*narrowed{}, shared: map[engine.Scope]*scope.Scope{}}
}

// stale reports whether the node has changed since.
func (m *moment) stale() bool {
	select {
	case <-m.changed:
		return true
	default:
		return false
	}
}

// The pause between two looks at the node is so many times what a look costs, so that
// looking takes a small part of the time, within bounds.
const (
	pauseOfCost = 16
	minPause    = 200 * time.Microsecond
	maxPause    = 10 * time.Millisecond
)

// acquire returns the node as it is now. release it soon: it holds memory.
func (h *hub) acquire() *moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	// A node with many logs is not looked at again at once: commits are taken
	// together, or all the time would go into looking.
	if wait := min(pauseOfCost*h.cost, maxPause) - h.now().Sub(h.looked); wait > minPause && h.cur != nil && h.cur.stale() {
		h.mu.Unlock()
		time.Sleep(wait)
		h.mu.Lock()
	}
	switch {
	case h.cur == nil && h.last != nil && !h.last.stale():
		// Nobody holds it any more, and nothing has changed since: only the view was let
		// go. A view that is newer by now is as good, if it has the trails that are served.
		h.cur = &moment{changed: h.last.changed, no: h.last.no, trails: h.last.trails, served: h.last.served, view: h.host.View()}
		if h.host.Trails() != h.cur.trails {
			h.cur.view.Close()
			h.cur = h.look()
		}
	case h.cur == nil || h.cur.stale() && h.now().Sub(h.looked) >= min(pauseOfCost*h.cost, maxPause)-minPause:
		h.looked = h.now()
		h.cur = h.look()
		h.cost = h.now().Sub(h.looked)
	}
	h.last = h.cur
	h.cur.refs++
	return h.cur
}

// look reads the adverts before the view: so nothing is served that has not
// been committed. The trails are the view's own: what it has may be less or more than
// what the node has got to, also where a log's position is the same. A log whose source now reads another scope of it is served from
// the baseline of that scope on.
func (h *hub) look() *moment {
	h.looks++
	m := &moment{changed: h.host.Changed(), no: h.looks, trails: h.host.Trails()}
	adverts := h.host.Adverts()
	m.view = h.host.View()
	m.served = make([]session.Served, 0, len(adverts))
	read := sync.OnceValue(func() map[engine.LogID]bool { // those that have been read, under whatever scope
		all := map[engine.LogID]bool{}
		for k := range m.view.Cursors() {
			all[k.Log] = true
		}
		return all
	})
	for _, a := range adverts {
		s := h.scopes[a.Source]
		if _, ok := m.view.Cursor(engine.CursorKey{Log: a.Log, Scope: s.ID()}); !ok && (s != nil || read()[a.Log]) {
			continue
		}
		l := session.Served{Advert: a, Compare: h.host.Comparator(a.Log), Schemas: m.view.Schemas(a.Log), Scope: s.Partial(), Trail: h.host.TrailIn(m.view, a.Log)}
		if info, ok := m.view.Log(a.Log); ok {
			l.CompleteFrom = info.CompleteFrom
		}
		if h.tree != nil && h.tree.Places(a.Log) {
			l.Oldest = "" // it can be read on from anywhere
		}
		m.served = append(m.served, l)
	}
	h.merged.Advance(m.served)
	return m
}

// shareBaseline is how old a moment may be at which a baseline begins.
const shareBaseline = time.Second

// baseline returns a moment to begin a baseline at: a recent one at which others
// did, if it serves as well, or else m. So the views that baselines keep open,
// and what has to be found out at each, go with the time that they take and not
// with the number of readers or commits. Release it.
func (h *hub) baseline(m *moment, work session.Work) *moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if b := h.base; b == nil || now.Sub(h.baseSince) > shareBaseline || !b.begins(m, work) {
		h.base, h.baseSince = m, now
	}
	h.base.refs++
	return h.base
}

// begins reports whether a baseline can begin here as well as at the later m: the
// log is the same, it goes on from here, and the reader is not past it. The reader is told
// by the trail of the later one which tables are behind here: so that has to say the same.
func (m *moment) begins(later *moment, work session.Work) bool {
	if m == later {
		return true
	}
	was, ok := m.view.Log(work.Log)
	is, still := later.view.Log(work.Log)
	if !ok || !still || work.Since > 0 && (work.Since > was.Time || work.Since < was.CompleteFrom) {
		return false
	}
	compare := engine.CompareLSN
	has := false
	for _, l := range m.served {
		if l.Log == work.Log {
			compare, has = l.Compare, true
			for _, t := range work.Covers {
				has = has && slices.Contains(l.Tables, t)
			}
		}
	}
	return has && compare(was.Head, is.Oldest) >= 0 && m.agrees(later, work.Log, was.Head)
}

// agrees reports whether the trails of a log say the same of a position here and at
// another moment.
func (m *moment) agrees(other *moment, log engine.LogID, at engine.Position) bool {
	a, b := m.trail(log), other.trail(log)
	if len(a) == 0 && len(b) == 0 {
		return true
	}
	compare := engine.CompareLSN
	for _, l := range m.served {
		if l.Log == log {
			compare = l.Compare
		}
	}
	was, known := a.At(at, compare)
	is, still := b.At(at, compare)
	return known == still && maps.Equal(was, is)
}

// trail returns the trail of a log.
func (m *moment) trail(log engine.LogID) engine.Trail {
	for _, l := range m.served {
		if l.Log == log {
			return l.Trail
		}
	}
	return nil
}

func (h *hub) retain(m *moment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.refs++
}

func (h *hub) release(m *moment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.refs--; m.refs == 0 {
		m.view.Close()
		if h.cur == m {
			h.cur = nil
		}
		if h.base == m {
			h.base = nil
		}
	}
}

// share returns the one scope that stands for all that are equal to it.
func (h *hub) share(s *scope.Scope) *scope.Scope {
	h.narrowMu.Lock()
	defer h.narrowMu.Unlock()
	have := h.shared[s.ID()]
	if have == nil {
		if len(h.shared) >= maxShared {
			clear(h.shared) // readers keep theirs
		}
		h.shared[s.ID()], have = s, s
	}
	return have
}

// maxShared is how many scopes are remembered.
const maxShared = 4096

type narrowKey struct {
	log            engine.LogID
	scope          *scope.Scope
	prev, position engine.Position
	part           uint32
}

type narrowed struct {
	once  sync.Once
	piece session.Piece
	err   error
}

// size is what an entry takes in memory, about.
func (n *narrowed) size() int {
	const overhead = 512
	if n.piece.Block == nil {
		return overhead
	}
	return overhead + len(n.piece.Block.Payload)
}

// maxNarrowed bounds a generation of narrowed blocks, in bytes. There are two.
const maxNarrowed = 16 << 20

// narrow returns a block as a scope sees it. Readers with the same scope share
// the result.
func (h *hub) narrow(log engine.LogID, s *scope.Scope, b *engine.Block, view engine.View) (session.Piece, error) {
	k := narrowKey{log, s, b.Prev, b.Position, b.Part}
	h.narrowMu.Lock()
	n := h.young[k]
	fresh := n == nil
	if fresh {
		if n = h.older[k]; n == nil {
			n = &narrowed{}
		}
		h.young[k] = n
	}
	h.narrowMu.Unlock()
	n.once.Do(func() {
		n.piece = session.Piece{Through: b.Position, Time: b.Time}
		n.piece.Block, n.err = b.Narrow(log, view.Schema, s.View())
	})
	if fresh {
		h.narrowMu.Lock()
		if h.youngSize += n.size(); h.youngSize >= maxNarrowed {
			h.older, h.young, h.youngSize = h.young, map[narrowKey]*narrowed{}, 0
		}
		h.narrowMu.Unlock()
	}
	return n.piece, n.err
}
