package pgsession

import "golang.org/x/sys/unix"

// set asks the kernel to wake nobody for less than so many bytes.
func (w *LowWater) set(bytes int) {
	if w.raw == nil {
		return
	}
	_ = w.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) // sockets without it wake as they always do
	})
}
