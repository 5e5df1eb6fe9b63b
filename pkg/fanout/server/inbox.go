package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// inbox holds frames that a session's sending goroutine has yet to see.
type inbox struct {
	state *inboxState
	wake  chan struct{} // there is something
}

type inboxState struct {
	mu     sync.Mutex
	frames []*wirepb.Frame
	room   chan struct{} // there is room again
}

const (
	// inboxRoom is how many frames wait before the stream does.
	inboxRoom = 16
	// inboxMax is how many wait of a session in which both sides read. There the
	// stream cannot wait, or each side could wait for the other to read.
	inboxMax = 1 << 16
)

func newInbox() inbox {
	return inbox{state: &inboxState{room: make(chan struct{}, 1)}, wake: make(chan struct{}, 1)}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds a frame; unless the session is duplex it waits for room.
func (b inbox) put(ctx context.Context, f *wirepb.Frame, duplex bool) error {
	for !duplex {
		b.state.mu.Lock()
		n := len(b.state.frames)
		b.state.mu.Unlock()
		if n < inboxRoom {
			break
		}
		select {
		case <-b.state.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return b.add(f)
}

// add adds a frame at once.
func (b inbox) add(f *wirepb.Frame) error {
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	if len(b.state.frames) >= inboxMax {
		return &session.Error{Code: wirepb.ErrorCode_ERROR_CODE_LIMIT, Message: fmt.Sprintf("%d frames wait to be seen", inboxMax)}
	}
	b.state.frames = append(b.state.frames, f)
	poke(b.wake)
	return nil
}

// take returns the next frame, or nil.
func (b inbox) take() *wirepb.Frame {
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	if len(b.state.frames) == 0 {
		return nil
	}
	f := b.state.frames[0]
	b.state.frames[0] = nil
	if b.state.frames = b.state.frames[1:]; len(b.state.frames) > 0 {
		poke(b.wake)
	} else {
		b.state.frames = nil
	}
	poke(b.state.room)
	return f
}
