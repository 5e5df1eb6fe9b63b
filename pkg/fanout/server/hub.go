package server

import (
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
)

// hub is what sessions share: one view of the store per commit, and blocks as
// they look through a scope.
type hub struct {
	host engine.Host

	mu  sync.Mutex
	cur *moment // nil or open

	narrowMu     sync.Mutex
	young, older map[narrowKey]*narrowed // two generations: a cheap LRU
}

// moment is the node at a commit. Its view is open while someone holds it.
type moment struct {
	changed <-chan struct{} // closed when there is a newer one
	served  []session.Served
	view    engine.View
	refs    int // under hub.mu
}

func newHub(host engine.Host) *hub {
	return &hub{host: host, young: map[narrowKey]*narrowed{}}
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

// acquire returns the node as it is now. release it soon: it holds memory.
func (h *hub) acquire() *moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cur == nil || h.cur.stale() {
		h.cur = h.look()
	}
	h.cur.refs++
	return h.cur
}

// look reads the adverts before the view: so nothing is served that has not
// been committed.
func (h *hub) look() *moment {
	m := &moment{changed: h.host.Changed()}
	adverts := h.host.Adverts()
	m.view = h.host.View()
	m.served = make([]session.Served, len(adverts))
	for i, a := range adverts {
		m.served[i] = session.Served{Advert: a, Compare: h.host.Comparator(a.Log), Schemas: m.view.Schemas(a.Log)}
	}
	return m
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
	}
}

type narrowKey struct {
	log            engine.LogID
	scope          engine.Scope
	prev, position engine.Position
	part           uint32
}

type narrowed struct {
	once  sync.Once
	piece session.Piece
	err   error
}

// maxNarrowed is how many blocks of a generation are kept: 15 MiB at most.
const maxNarrowed = 256

// narrow returns a block as a scope sees it. Readers with the same scope share
// the result.
func (h *hub) narrow(log engine.LogID, tables []engine.TableName, b *engine.Block, view engine.View) (session.Piece, error) {
	k := narrowKey{log, wire.ScopeOf(tables), b.Prev, b.Position, b.Part}
	h.narrowMu.Lock()
	n := h.young[k]
	if n == nil {
		if n = h.older[k]; n == nil {
			n = &narrowed{}
		}
		if len(h.young) >= maxNarrowed {
			h.older, h.young = h.young, make(map[narrowKey]*narrowed, maxNarrowed)
		}
		h.young[k] = n
	}
	h.narrowMu.Unlock()
	n.once.Do(func() {
		wanted := make(map[engine.TableName]bool, len(tables))
		for _, t := range tables {
			wanted[t] = true
		}
		n.piece = session.Piece{Through: b.Position, Time: b.Time}
		n.piece.Block, n.err = b.Narrow(log, view.Schema, func(s *engine.Schema) bool { return wanted[s.Table] })
	})
	return n.piece, n.err
}
