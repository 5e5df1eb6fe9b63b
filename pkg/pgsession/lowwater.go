package pgsession

import (
	"net"
	"syscall"
)

// LowWater is how many bytes a connection has to have received before anyone is
// woken for them. A server that sends each row by itself wakes the client's
// poller for each, even while nobody reads, and a wake-up costs more than a row.
// What has come can be read whatever the mark is; but who waits for it waits for
// the mark, so it is to be lowered before a read that may wait.
type LowWater struct {
	raw  syscall.RawConn // nil where the connection is of no kind that has it
	high bool
}

// NewLowWater returns the mark of a connection, which is down.
func NewLowWater(c net.Conn) *LowWater {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	w := &LowWater{}
	if s, ok := c.(syscall.Conn); ok {
		w.raw, _ = s.SyscallConn() // nil after an error
	}
	return w
}

// Raise lets no fewer than so many bytes wake anyone.
func (w *LowWater) Raise(bytes int) {
	if !w.high {
		w.high = true
		w.set(bytes)
	}
}

// Lower lets a single byte wake who waits.
func (w *LowWater) Lower() {
	if w.high {
		w.high = false
		w.set(1)
	}
}
