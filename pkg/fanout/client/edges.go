package client

import "sync"

// Edges is what a node's readers and its server know in common of whom the node
// reads from, so that two nodes that pick each other at the same moment can
// agree which of them yields. The zero Edges is ready for use.
type Edges struct {
	mu sync.Mutex
	m  map[string]edge // by origin
}

type edge struct {
	reader *core
	peer   string
}

// Provider returns the node from which an origin's log is read, or is about to
// be; empty for none.
func (e *Edges) Provider(origin string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.m[origin].peer
}

// set replaces what r reads: origins, from peer.
func (e *Edges) set(r *core, peer string, origins []string) {
	e.setAll(r, map[string][]string{peer: origins})
}

// setAll replaces what r reads: origins by peer.
func (e *Edges) setAll(r *core, origins map[string][]string) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for o, have := range e.m {
		if have.reader == r {
			delete(e.m, o)
		}
	}
	if e.m == nil {
		e.m = map[string]edge{}
	}
	for peer, os := range origins {
		for _, o := range os {
			e.m[o] = edge{r, peer}
		}
	}
}
