// Package testport hands out TCP ports on the loopback interface, for tests and
// benchmarks that start servers which are told their port.
//
// A port that was found free by listening on port 0 may be taken again before the
// server listens on it: by another test that looks for one, or by the kernel for a
// connection that goes out. Those handed out here lie below what the kernel gives to
// connections, and no two processes get one port.
package testport

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The ports that are handed out: above those of well-known services, below the
// node ports of Kubernetes.
const lowest, highest = 12000, 29999

var (
	mu    sync.Mutex
	locks *os.File // a byte for each port, locked by the process that has it
	taken = map[int]bool{}
)

// Take returns a port that nobody listens on, and that stays this process's until it ends.
func Take() (int, error) { return TakeRow(1) }

// TakeRow is Take for n ports one after the other, of which it returns the first.
func TakeRow(n int) (int, error) {
	mu.Lock()
	defer mu.Unlock()
	if locks == nil {
		f, err := os.OpenFile(filepath.Join(os.TempDir(), "tributary-test-ports"), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return 0, err
		}
		locks = f // for good: a process's locks go when it closes the file, and when it ends
	}
	top := highest
	if out := outgoing(); out > lowest {
		top = min(top, out-1)
	}
	for range 10 * (top - lowest + 1) {
		port := lowest + rand.IntN(top-lowest-n+2)
		if slices.ContainsFunc(row(port, n), func(p int) bool { return taken[p] }) {
			continue // this process's own, which its locks do not keep from it
		}
		lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: int64(port), Len: int64(n)}
		err := syscall.FcntlFlock(locks.Fd(), syscall.F_SETLK, &lock)
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			continue // another process's
		}
		if err != nil {
			return 0, fmt.Errorf("locking a port in %s: %w", locks.Name(), err)
		}
		for _, p := range row(port, n) {
			taken[p] = true
		}
		if !slices.ContainsFunc(row(port, n), listened) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no %d ports are free from %d to %d", n, lowest, top)
}

// row is n ports from the first on.
func row(first, n int) []int {
	ports := make([]int, n)
	for i := range ports {
		ports[i] = first + i
	}
	return ports
}

// listened reports whether somebody listens on the port.
func listened(port int) bool {
	l, err := net.Listen("tcp", Address(port))
	if err == nil {
		_ = l.Close()
	}
	return err != nil
}

// TakeAddress is Take with the loopback address.
func TakeAddress() (string, error) {
	port, err := Take()
	return Address(port), err
}

// Address is a port of the loopback address.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// outgoing is the lowest port that the kernel gives to connections; 0 where it does not say.
func outgoing() int {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\t")
	port, _ := strconv.Atoi(first)
	return port
}
