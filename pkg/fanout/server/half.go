package server

import (
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Halves are a Server without connections or goroutines, for a driver that has a
// loop of its own, such as a simulation.
type Halves struct{ srv *Server }

// NewHalves returns Halves. Accept of cfg only says that both sides may read.
func NewHalves(cfg Config) *Halves { return &Halves{bare(cfg)} }

// Half is the serving half of one session. It sends on its stream in the calls
// that it gets, which come from one goroutine. After an error it is to be closed.
type Half struct{ v *serving }

// Begin starts to serve a peer over a stream; dialled says that this node has
// dialled it.
func (h *Halves) Begin(stream *session.Sender, from session.Caller, dialled bool) (*Half, error) {
	v := h.srv.serving(stream, from, dialled)
	if err := h.srv.enter(v); err != nil {
		return nil, err
	}
	return &Half{v}, nil
}

// Frame takes a frame from the peer.
func (h *Half) Frame(f *wirepb.Frame) error {
	return h.v.do(func() []session.Output { return h.v.writer.Frame(f) })
}

// Tick lets time pass: call it every session.HeadEvery.
func (h *Half) Tick() error { return h.v.do(h.v.tick) }

// Work does one piece of what there is to do for the peer with the node as it is
// now, and reports whether there may be more.
func (h *Half) Work() (more bool, err error) {
	m := h.v.srv.hub.acquire()
	return h.v.pull(m)
}

// Close ends it.
func (h *Half) Close() {
	h.v.yield()
	h.v.close()
	h.v.srv.leave(h.v)
}
