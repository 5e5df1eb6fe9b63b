package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/ticks"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// link is one session with one instance of an upstream, or with a peer that has
// dialled.
type link struct {
	reader   *core
	upstream string // as configured; empty if the peer has dialled
	instance string // as dialled, or where the peer is
	since    time.Time
	stream   *session.Sender
	cancel   context.CancelFunc
	wg       sync.WaitGroup // of its goroutines

	heartbeat time.Duration // that the peer is asked for; 0 for the usual

	// Of a link that was dialled:
	conn  *grpc.ClientConn
	alive *atomic.Int64
	bidi  grpc.BidiStreamingClient[wirepb.Frame, wirepb.Frame]
	other func(*wirepb.Frame) error // takes the frames of the half that serves the peer; nil if there is none

	// Under reader.mu:
	machine   *session.Reader
	outbox    []*wirepb.Frame
	goAway    *session.GoAway
	awaySince time.Time // of goAway
	err       error     // why it ended
	suspect   bool      // silent, when last looked at
	brought   bool      // something has been applied that came over it

	ready chan struct{} // closed when the peer has said what it serves
	wake  chan struct{} // there is something in outbox
	done  chan struct{} // closed when it has ended, err says why
	gone  chan struct{} // closed when the stream has ended
}

// connectTimeout bounds how long one instance may take to answer at the first
// attempt. It grows with each that fails, up to maxConnectTimeout: an upstream
// that is slow because many connect at once must not be made slower by trying
// in vain.
const (
	connectTimeout    = 3 * time.Second
	maxConnectTimeout = 24 * time.Second
)

// open connects to an upstream: to one of the instances its address leads to,
// in random order, those that were left last of all.
func (r *Reader) open(ctx context.Context, address string) (*link, error) {
	instances, err := r.cfg.Resolve(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", address, err)
	}
	rand.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] })
	r.mu.Lock()
	left, timeout := r.left, connectTimeout
	if u := r.selector.find(address); u != nil {
		timeout = min(connectTimeout<<min(u.again.failures, 10), maxConnectTimeout)
	}
	r.mu.Unlock()
	err = fmt.Errorf("%s leads to no address", address)
	for _, last := range []bool{false, true} {
		for _, in := range instances {
			if (in == left) != last {
				continue
			}
			var l *link
			if l, err = r.dial(ctx, address, in, timeout, nil); err == nil {
				return l, nil
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
	}
	return nil, err
}

// dial opens a session with one instance and waits for its first advert. Peer is that of
// a mesh; nil where all is read from one upstream.
func (r *core) dial(ctx context.Context, address, instance string, timeout time.Duration, peer *meshPeer) (*link, error) {
	creds := r.cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.NewCodec()), grpc.MaxCallRecvMsgSize(session.DefaultLimits.MaxFrame+1<<20)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
		grpc.WithDisableServiceConfig(),
	}
	if r.cfg.Token != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(r.cfg.Token))
	}
	if host, _, err := net.SplitHostPort(address); err == nil && instance != address {
		opts = append(opts, grpc.WithAuthority(host))
	}
	var alive atomic.Int64 // when bytes came last, as microseconds
	opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return &livingConn{c, &alive, r.cfg.Now}, nil
	}))
	conn, err := grpc.NewClient("passthrough:///"+instance, opts...)
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", instance, err)
	}
	sctx, cancel := context.WithCancel(r.life)
	late := time.AfterFunc(timeout, cancel)
	bidi, err := wirepb.NewReplicationClient(conn).Session(sctx)
	if err != nil {
		late.Stop()
		cancel()
		_ = conn.Close()
		return nil, r.cfg.explain(instance, err, timeout)
	}
	r.mu.Lock()
	l := r.newLink(session.NewSender(bidi), session.ReaderConfig{
		Assigned: peer != nil, Duplex: peer != nil && r.cfg.Serve != nil, Limits: session.Limits{HandshakeTimeout: timeout},
		Heartbeat: peer.heartbeat(),
	})
	l.alive = &alive
	l.upstream, l.instance, l.conn, l.bidi, l.cancel = address, instance, conn, bidi, cancel
	r.mu.Unlock()
	l.wg.Add(2)
	go l.receive(sctx)
	go l.send(sctx)
	select {
	case <-l.ready:
		if late.Stop() {
			return l, nil
		}
		<-l.done
	case <-l.done:
	case <-ctx.Done():
	}
	late.Stop()
	l.close()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return nil, r.cfg.explain(instance, l.err, timeout)
}

// newLink returns a link over a stream, with the machine of cfg; mu is held.
func (r *core) newLink(stream *session.Sender, cfg session.ReaderConfig) *link {
	l := &link{
		reader: r, since: r.cfg.Now(), stream: stream,
		ready: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{}), gone: make(chan struct{}),
	}
	l.heartbeat = cfg.Heartbeat
	cfg.NodeID, cfg.Name, cfg.Software, cfg.Scope, cfg.Compare = r.cfg.NodeID, r.cfg.Name, r.cfg.Software, r.cfg.Scope, r.cfg.Compare
	cfg.Window, cfg.Places, cfg.Scalars, cfg.Vectors, cfg.Basic = minWindow, r.intake.Places(), r.intake.Scalars(), r.intake.Vectors(), r.cfg.Basic
	if cfg.Assigned {
		cfg.Elsewhere = func(origin string) bool {
			return r.intake.Over(origin) != nil || r.cfg.Elsewhere != nil && r.cfg.Elsewhere(origin)
		}
		cfg.Own = r.intake.Owns
	}
	cfg.Holder, cfg.Above, cfg.Upward = r.cfg.Holder, r.cfg.Above, r.cfg.Upward
	var acts []session.Action
	l.machine, acts = session.NewReader(cfg, r.cfg.Now())
	r.links[l.machine] = l
	l.perform(acts)
	return l
}

// receive feeds the machine, and the half that serves the peer, until the stream
// ends.
func (l *link) receive(ctx context.Context) {
	defer l.wg.Done()
	defer close(l.gone)
	for {
		f := &wirepb.Frame{}
		err := l.bidi.RecvMsg(f)
		if err == nil {
			err = l.route(ctx, f)
		}
		if err != nil {
			l.end(err)
			return
		}
	}
}

// route gives a frame of a link that was dialled to the half that it is for.
func (l *link) route(ctx context.Context, f *wirepb.Frame) error {
	mine, others := true, false
	if l.other != nil {
		mine, others = session.ForReader(f)
	}
	if mine {
		l.take(f)
	}
	if f.GetHello() != nil && l.other == nil {
		l.reader.mu.Lock()
		duplex, peer := l.machine.Duplex(), l.machine.Peer()
		l.reader.mu.Unlock()
		if duplex {
			half, err := l.reader.cfg.Serve(ctx, session.Caller{NodeID: peer, Address: l.instance, Identity: peer}, l.stream, l.end)
			if err != nil {
				return err
			}
			l.other, others = half, true
		}
	}
	if others {
		return l.other(f)
	}
	return nil
}

// take feeds the machine.
func (l *link) take(f *wirepb.Frame) {
	r := l.reader
	r.mu.Lock()
	todo := l.perform(l.machine.Frame(r.cfg.Now(), f))
	sink := r.sink
	if len(todo) == 0 {
		r.mu.Unlock()
		return
	}
	r.busy++                      // the sink is in use until this is done
	provides := map[string]bool{} // origins: what others say of a head is not what is read
	for _, a := range todo {
		if a.Head != nil {
			over := r.intake.Over(a.Head.Log.Origin)
			provides[a.Head.Log.Origin] = over == l.machine || over == nil && l.machine.Shared()
		}
	}
	r.mu.Unlock()
	for _, a := range todo {
		switch {
		case a.Head != nil && sink != nil && provides[a.Head.Log.Origin]:
			sink.Head(a.Head.Log, a.Head.Head)
		case a.Witness != nil && r.cfg.Witness != nil:
			r.cfg.Witness(a.Witness.Peer, a.Witness.Epoch, a.Witness.Time)
		case a.Stable != nil && r.cfg.Told != nil:
			r.cfg.Told(*a.Stable)
		}
	}
	r.mu.Lock()
	if r.busy--; r.sink == nil {
		r.bump()
	}
	r.mu.Unlock()
}

// send is the one goroutine that sends on the stream; it also tells the machine
// the time.
func (l *link) send(ctx context.Context) {
	defer l.wg.Done()
	tick := ticks.New(session.HeadEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.wake:
		case <-tick.C:
			l.reader.mu.Lock()
			l.perform(l.machine.Tick(l.reader.cfg.Now()))
			if silent := l.silent(); silent != l.suspect {
				l.suspect = silent
				l.reader.bump()
				poke(l.reader.event)
			}
			l.reader.mu.Unlock()
		case <-ctx.Done():
			return
		}
		l.reader.mu.Lock()
		out, ended := l.outbox, l.err != nil
		l.outbox = nil
		l.reader.mu.Unlock()
		for _, f := range out {
			if err := l.stream.SendMsg(f); err != nil {
				return // receive says why
			}
		}
		if ended {
			l.stream.CloseSend()
			return
		}
	}
}

// silent reports whether nothing has been heard from the peer for too long;
// reader.mu is held. That is a reason to look for another upstream. It is none to
// end the stream before there is one: the peer may only be busy, and if it is
// gone grpc's keepalive will tell.
//
// A frame that is large, or comes slowly, is heard as it comes.
func (l *link) silent() bool {
	heard := l.machine.Heard()
	if l.alive != nil {
		if t := time.UnixMicro(l.alive.Load()); t.After(heard) {
			heard = t
		}
	}
	return l.machine.Complete() && l.reader.cfg.Now().Sub(heard) >= max(l.reader.policy.UnhealthyAfter, 3*l.heartbeat)
}

// livingConn notes when bytes come.
type livingConn struct {
	net.Conn
	last *atomic.Int64
	now  func() time.Time
}

func (c *livingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.last.Store(c.now().UnixMicro())
	}
	return n, err
}

// perform does what the machine asks for; reader.mu is held. What is returned is
// for the caller to pass on without it.
func (l *link) perform(acts []session.Action) (rest []session.Action) {
	r := l.reader
	for _, a := range acts {
		switch {
		case a.Frame != nil:
			l.outbox = append(l.outbox, a.Frame)
			poke(l.wake)
		case a.Deliver != nil:
			r.enqueue(a.Deliver)
		case a.Head != nil, a.Witness != nil, a.Stable != nil:
			rest = append(rest, a)
		case a.GoAway != nil:
			l.goAway, l.awaySince = a.GoAway, r.cfg.Now()
			r.bump()
			poke(r.event)
		case a.Offers:
			if l.machine.Complete() {
				select {
				case <-l.ready:
				default:
					close(l.ready)
				}
			}
			r.bump()
			poke(r.event)
		case a.Close != nil:
			l.finish(a.Close)
		}
	}
	return rest
}

// finish notes why the link has ended; reader.mu is held.
func (l *link) finish(err error) {
	if l.err != nil {
		return
	}
	l.err = err
	close(l.done)
	poke(l.wake)
	l.reader.bump()
	poke(l.reader.event)
}

// end is finish for an error of the stream.
func (l *link) end(err error) {
	l.reader.mu.Lock()
	defer l.reader.mu.Unlock()
	l.perform(l.machine.End())
	l.finish(err)
}

// close ends the link from this side and waits for its goroutines. A peer that
// is told of an error gets a moment to take it.
func (l *link) close() {
	l.reader.mu.Lock()
	var e *session.Error
	polite := errors.As(l.err, &e) && !e.Remote
	l.reader.mu.Unlock()
	if polite {
		select {
		case <-l.gone:
		case <-time.After(500 * time.Millisecond):
		}
	}
	l.cancel()
	l.wg.Wait()
	if l.conn != nil {
		_ = l.conn.Close()
	}
	l.reader.mu.Lock()
	delete(l.reader.links, l.machine)
	l.reader.mu.Unlock()
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// explain makes an error of the stream one that a person can use. timeout is
// why it was cut off from this side, if it was.
func (cfg *Config) explain(instance string, err error, timeout time.Duration) error {
	reason, text := engine.ReasonDisconnected, err.Error()
	var e *session.Error
	if errors.As(err, &e) {
		switch e.Code {
		case wirepb.ErrorCode_ERROR_CODE_VERSION, wirepb.ErrorCode_ERROR_CODE_UNSUPPORTED, wirepb.ErrorCode_ERROR_CODE_MALFORMED:
			reason = engine.ReasonPreflightFailed
		}
		return &engine.SourceError{Reason: reason, Err: fmt.Errorf("upstream %s: %w", instance, err), Permanent: reason == engine.ReasonPreflightFailed}
	}
	if s, ok := status.FromError(err); ok {
		text = s.Message()
		if why := tlsFault(instance, text, cfg.Credentials != nil); why != "" {
			cause := errors.New(why)
			if ended(text) {
				cause = endedError{why}
			}
			return &engine.SourceError{Reason: engine.ReasonAuthenticationFailed, Permanent: true, Err: cause}
		}
		switch {
		case strings.Contains(text, "server preface") && strings.Contains(text, "use of closed network connection"):
			// This side has given up waiting: a peer that hangs, or a network that holds what
			// is sent, behind something that accepts connections.
			text = "it accepts connections and says nothing (" + text + ")"
		case s.Code() == codes.Unimplemented,
			s.Code() == codes.Unknown && strings.Contains(text, "content-type"),
			strings.Contains(text, "server preface"), strings.Contains(text, "http2:"):
			return &engine.SourceError{Reason: engine.ReasonPreflightFailed, Permanent: true, Err: fmt.Errorf(
				"upstream %s answers, but not with Tributary's protocol (%s): the address must be a node's fan-out port", instance, text)}
		case s.Code() == codes.Unauthenticated, s.Code() == codes.PermissionDenied, strings.Contains(text, "authentication handshake failed"):
			return &engine.SourceError{Reason: engine.ReasonAuthenticationFailed, Permanent: true, Err: fmt.Errorf("upstream %s refuses this node: %s", instance, text)}
		case s.Code() == codes.Canceled:
			text = fmt.Sprintf("no answer within %s", timeout)
		}
	}
	return &engine.SourceError{Reason: reason, Err: fmt.Errorf("upstream %s: %s", instance, text)}
}

// Lookup is the default of Config.Resolve: the addresses that the name in
// host:port has in DNS.
func Lookup(ctx context.Context, address string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%q is not host:port: %w", address, err)
	}
	if net.ParseIP(host) != nil {
		return []string{address}, nil
	}
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	for i, ip := range ips {
		ips[i] = net.JoinHostPort(ip, port)
	}
	return ips, nil
}
