package testnode

import (
	"io"
	"net"
	"sync"
)

// Proxy passes TCP connections on, and can cut them or let them hang.
type Proxy struct {
	Address string
	target  string
	l       net.Listener
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	hang  chan struct{} // nil: bytes flow
	end   bool
}

// NewProxy returns a proxy to an address.
func NewProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Address: l.Addr().String(), target: target, l: l, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.pass(c) })
	}
}

func (p *Proxy) pass(c net.Conn) {
	up, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = c.Close()
		return
	}
	p.mu.Lock()
	if p.end {
		_, _ = c.Close(), up.Close()
	}
	p.conns[c], p.conns[up] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, up}, {up, c}} {
		both.Go(func() {
			_, _ = io.Copy(slow{way[1], p}, way[0])
			_, _ = c.Close(), up.Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	delete(p.conns, up)
	p.mu.Unlock()
}

// slow waits while the proxy hangs.
type slow struct {
	io.Writer
	p *Proxy
}

func (s slow) Write(b []byte) (int, error) {
	s.p.mu.Lock()
	hang := s.p.hang
	s.p.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return s.Writer.Write(b)
}

// Cut ends every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Hang holds every byte back, without an error anywhere, until Flow or Close.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hang == nil && !p.end {
		p.hang = make(chan struct{})
	}
}

// Flow undoes Hang.
func (p *Proxy) Flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hang != nil {
		close(p.hang)
		p.hang = nil
	}
}

// Close ends the proxy and waits for it.
func (p *Proxy) Close() {
	_ = p.l.Close()
	p.mu.Lock()
	p.end = true
	p.mu.Unlock()
	p.Flow()
	p.Cut()
	p.wg.Wait()
}
