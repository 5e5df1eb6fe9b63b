package session

import (
	"context"
	"sync"

	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Sender sends frames on a session's stream. Both halves of a session may use it
// at once.
type Sender struct {
	mu     sync.Mutex
	stream interface{ SendMsg(m any) error }
}

// NewSender makes a stream one that several may send on.
func NewSender(stream interface{ SendMsg(m any) error }) *Sender { return &Sender{stream: stream} }

// SendMsg sends a frame.
func (s *Sender) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.SendMsg(m)
}

// CloseSend says that nothing more is sent, on a stream that this side has opened.
func (s *Sender) CloseSend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.stream.(interface{ CloseSend() error }); ok {
		_ = c.CloseSend()
	}
}

// Caller is the other side of a session.
type Caller struct {
	NodeID   string
	Address  string
	Identity string // that it has proved; empty where nobody is identified
}

// Join makes a second half of a session whose stream the caller of Join reads:
// the frames that are for it (see ForReader) go to the function that it returns,
// which never waits. The half sends on stream by itself until ctx ends, and calls
// end when it can go on no longer. The other side's Hello is the first frame. A nil
// function without an error says that nothing is wanted of the other side.
type Join func(ctx context.Context, from Caller, stream *Sender, end func(error)) (take func(*wirepb.Frame) error, err error)

// Outlasts reports whether the older of two sessions between nodes self and peer
// is kept, each dialled by self or not. Of two that the two sides have dialled it
// is the one that the node with the smaller id has: both know it. Of two that the
// same side has dialled it is the newer: the other side may know already that the
// older is dead.
func Outlasts(self, peer string, older, newer bool) bool {
	return older != newer && older == (self < peer)
}
