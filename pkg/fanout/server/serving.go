package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/ticks"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// serving drives the serving half of one session.
type serving struct {
	srv     *Server
	stream  *session.Sender
	log     *slog.Logger
	address string
	// identity is who reads; empty where nobody is identified.
	identity string
	since    time.Time
	dialled  bool // by this node
	inbox    inbox
	arrived  chan uint32 // channels whose replay has something to send
	wake     chan uint32 // channels whose snapshot has expired
	turn     *turn       // of the sending goroutine: asked for; nil if not

	mu        sync.Mutex // of the machine; never held while sending
	writer    *session.Writer
	snapshots map[uint32]*snapshot
	pins      map[uint32]*pin
	catchup   *catchup // nil: none
	lastSeen  uint64   // moment.no of what the machine was told last
}

func (s *Server) serving(stream *session.Sender, from session.Caller, dialled bool) *serving {
	v := &serving{
		identity: from.Identity, address: from.Address, srv: s, stream: stream, since: s.cfg.Now(), dialled: dialled, log: s.cfg.Logger,
		inbox: newInbox(), wake: make(chan uint32, 16), arrived: make(chan uint32), snapshots: map[uint32]*snapshot{}, pins: map[uint32]*pin{},
	}
	var permit func(engine.TableName) error
	if g := s.cfg.Guard; g != nil {
		permit = func(t engine.TableName) error { return g.Permit(v.identity, t) }
	}
	var archived func(log engine.LogID, tables []engine.TableName, from, oldest engine.Position) (engine.Cursor, bool)
	if a := s.cfg.Archives; a != nil {
		archived = a.Reach
	}
	var holders func(engine.LogID) (session.Holdings, engine.Position)
	var floor func(engine.LogID, string) engine.Position
	if t := s.cfg.Tree; t != nil {
		holders, floor = t.Holders, t.Floor
	}
	v.writer = session.NewWriter(session.WriterConfig{
		NodeID: s.cfg.Host.NodeID(), Software: s.cfg.Software, Limits: s.cfg.Limits, Held: s.cfg.Host.Highest, Provider: s.cfg.Provider,
		Share: s.hub.share, Permit: permit, Basic: s.cfg.Basic, Merged: s.hub.merged, Vectors: s.vectors, Archived: archived, Dialled: dialled, Duplex: s.cfg.Accept != nil,
		Holders: holders, Floor: floor,
	}, v.since)
	return v
}

// Session serves a peer that has dialled, and lets this node read from it if both
// want that.
func (s *Server) Session(stream grpc.BidiStreamingServer[wirepb.Frame, wirepb.Frame]) error {
	from := session.Caller{Identity: identityOf(stream.Context())}
	if p, ok := peer.FromContext(stream.Context()); ok {
		from.Address = p.Addr.String()
	}
	v := s.serving(session.NewSender(stream), from, false)
	if err := s.enter(v); err != nil {
		var e *session.Error
		if errors.As(err, &e) {
			if err := stream.Send(session.ErrorFrame(e)); err != nil {
				return err
			}
			return status.Error(codes.ResourceExhausted, e.Error())
		}
		return err
	}
	defer s.leave(v)
	defer v.close()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	s.wg.Add(1)
	go func() { // ends with the stream, just after this handler returns
		defer s.wg.Done()
		cancel(v.receive(ctx, stream, from, cancel))
	}()
	return v.ended(v.run(ctx))
}

// Join serves a peer in a session that this node has dialled. It is a
// session.Join.
func (s *Server) Join(ctx context.Context, from session.Caller, stream *session.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
	v := s.serving(stream, from, true)
	if err := s.enter(v); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer s.leave(v)
		defer cancel(nil)
		defer unlink()
		defer v.close()
		end(cmp.Or(v.ended(v.run(ctx)), errors.New("the peer is served no longer")))
	}()
	return v.inbox.add, nil
}

// ended says what the end of a session means to the stream.
func (v *serving) ended(err error) error {
	var e *session.Error
	switch {
	case errors.Is(err, io.EOF), status.Code(err) == codes.Canceled, errors.Is(err, context.Canceled):
		return nil
	case errors.As(err, &e):
		if e.Code == wirepb.ErrorCode_ERROR_CODE_DUPLICATE {
			return status.Error(codes.AlreadyExists, err.Error())
		}
		if !e.Remote {
			v.srv.metrics.faults.WithLabelValues(e.Code.String()).Inc()
		}
		v.log.Warn("session ended", "peer", v.name(), "identity", v.identity, "address", v.address, "error", err)
		return status.Error(codes.Aborted, err.Error())
	}
	return err
}

func (v *serving) name() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.writer.Peer()
}

// receive gives the frames of a session that the peer has dialled to the half that
// they are for.
func (v *serving) receive(ctx context.Context, stream grpc.ServerStream, from session.Caller, end context.CancelCauseFunc) error {
	var reader func(*wirepb.Frame) error // takes the frames that are for this node as a reader
	for {
		f := &wirepb.Frame{}
		if err := stream.RecvMsg(f); err != nil {
			return err
		}
		if h := f.GetHello(); h != nil && reader == nil && v.srv.cfg.Accept != nil && slices.Contains(h.GetCapabilities(), session.CapDuplex) {
			from.NodeID = h.GetNodeId()
			var err error
			if reader, err = v.srv.cfg.Accept(ctx, from, v.stream, func(err error) { end(err) }); err != nil {
				if f := session.ErrorFrame(err); f != nil {
					_ = v.stream.SendMsg(f)
				}
				return err
			}
			if reader == nil {
				v.mu.Lock()
				v.writer.Simplex()
				v.mu.Unlock()
			}
		}
		ours, writers := false, true
		if reader != nil {
			ours, writers = session.ForReader(f)
		}
		if writers { // first: the answer to a Hello comes before all else
			if err := v.inbox.put(ctx, f, reader != nil); err != nil {
				return err
			}
		}
		if ours {
			if err := reader(f); err != nil {
				return err
			}
		}
	}
}

// run is the session's one sending goroutine.
func (v *serving) run(ctx context.Context) error {
	tick := ticks.New(session.HeadEvery)
	defer tick.Stop()
	defer v.yield()
	drain := v.srv.drain
	var changed <-chan struct{} // at the node, since the last look
	for look := true; ; {
		if look {
			m := v.srv.hub.acquire()
			changed = m.changed
			var err error
			if look, err = v.pull(m); err != nil {
				return err
			}
		}
		var step func() []session.Output
		if look { // there is more to do: take what has come in between, without waiting
			select {
			case <-v.inbox.wake:
				step = v.frames
			case <-tick.C:
				step = v.tick
			case id := <-v.arrived:
				step = v.goOn(id)
			case <-ctx.Done():
				return context.Cause(ctx)
			default:
				continue
			}
			if err := v.do(step); err != nil {
				return err
			}
			continue
		}
		var come <-chan struct{}
		if v.turn != nil {
			come = v.turn.come
		}
		select {
		case <-changed:
			look = true
			continue
		case <-come:
			look = true
			continue
		case <-v.inbox.wake:
			look, step = true, v.frames
		case <-tick.C:
			step = v.tick
		case id := <-v.arrived:
			look, step = true, v.goOn(id)
		case id := <-v.wake:
			step = func() []session.Output {
				return v.writer.SnapshotFailed(id, wirepb.ErrorCode_ERROR_CODE_STALLED, errStalled)
			}
		case <-drain:
			drain = nil
			v.srv.mu.Lock()
			deadline := v.srv.deadline
			v.srv.mu.Unlock()
			step = func() []session.Output { return v.writer.Drain(time.Until(deadline)) }
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := v.do(step); err != nil {
			return err
		}
	}
}

// framesAtOnce is how many frames are taken in before it is looked at what there is to
// send, which costs more with every channel.
const framesAtOnce = 64

// frames gives the machine frames that have come.
func (v *serving) frames() (out []session.Output) {
	for range framesAtOnce {
		f := v.inbox.take()
		if f == nil {
			break
		}
		out = append(out, v.writer.Frame(f)...)
	}
	return out
}

func (v *serving) tick() []session.Output {
	v.unpinIdle()
	return v.writer.Tick(v.srv.cfg.Now())
}

// goOn lets a channel go on whose replay has something for it.
func (v *serving) goOn(channel uint32) func() []session.Output {
	return func() []session.Output {
		v.writer.Hold(channel, false)
		if s := v.snapshots[channel]; s != nil && s.replay != nil {
			s.timer.Reset(v.srv.cfg.StallTimeout)
		}
		return nil
	}
}

// yield gives the turn back, if one was asked for.
func (v *serving) yield() {
	if v.turn != nil {
		v.srv.turns.done(v.turn)
		v.turn = nil
	}
}

// pull does one piece of work at a moment, and releases it before anything is
// sent: a reader that blocks must not keep a view open, nor a turn. more is false
// if there was nothing to do, or it has to wait for its turn.
func (v *serving) pull(m *moment) (more bool, err error) {
	v.mu.Lock()
	var out []session.Output
	if v.lastSeen != m.no {
		v.lastSeen = m.no
		out = v.writer.Serve(m.seenBy(v.srv.cfg.Guard, v.identity))
	}
	if more = len(out) > 0; !more { // a snapshot may have to be abandoned before the next work
		var work session.Work
		work, more = v.writer.Next()
		switch {
		case more && work.Snapshot:
			if v.turn == nil {
				v.turn = v.srv.turns.ask()
			}
			if more = v.turn.has(); more {
				out = v.scan(m, work)
				v.yield()
			} else {
				v.patient(work.Channel)
			}
		case more:
			out = v.read(m, work)
			fallthrough
		default:
			v.yield()
		}
	}
	v.mu.Unlock()
	v.srv.hub.release(m)
	return more, v.send(out)
}

func (v *serving) read(m *moment, work session.Work) []session.Output {
	m = v.pinned(m, work)
	blocks, err := v.readLog(m, work)
	pieces := make([]session.Piece, 0, len(blocks))
	for _, b := range blocks {
		p := session.Piece{Block: b, Through: b.Position, Time: b.Time}
		if work.Scope != nil {
			if p, err = v.srv.hub.narrow(work.Log, work.Scope, b, m.view); err != nil {
				break
			}
		}
		pieces = append(pieces, p)
	}
	if errors.Is(err, engine.ErrGap) {
		v.srv.metrics.gaps.Inc()
	}
	return v.writer.Read(work.Channel, pieces, err)
}

// do lets the machine take a step, and sends what comes of it.
func (v *serving) do(step func() []session.Output) error {
	v.mu.Lock()
	out := step()
	v.mu.Unlock()
	return v.send(out)
}

func (v *serving) send(out []session.Output) error {
	host, m := v.srv.cfg.Host, v.srv.metrics
	if v.turn != nil && len(out) > 0 {
		v.srv.turns.leave(v.turn)
		defer v.srv.turns.back(v.turn)
	}
	for _, o := range out {
		switch {
		case o.Shared != nil:
			if err := v.stream.SendMsg(o.Shared); err != nil {
				return err
			}
			m.bytes.Add(float64(o.Shared.Size()))
			m.frames.Inc()
		case o.Frame != nil:
			if err := v.stream.SendMsg(o.Frame); err != nil {
				return err
			}
			m.control.Inc()
		case o.Acked != nil:
			reader := o.Acked.Reader
			if !v.trusted() {
				reader = v.identity + ":" + reader // no other's name
			}
			host.Acked(reader, o.Acked.Key, o.Acked.At, o.Acked.Durable)
			if t := v.srv.cfg.Tree; t != nil && o.Acked.Holders != nil && v.trusted() {
				t.Acked(o.Acked.Key.Log, o.Acked.Holders)
			}
		case o.Witness != nil && !v.trusted():
			v.log.Warn("what a reader says it holds of this node is passed over: it may not speak for the node that it says it is", "peer", o.Witness.Peer, "identity", v.identity)
		case o.Witness != nil:
			host.Witness(o.Witness.Peer, o.Witness.Epoch, o.Witness.Time)
		case o.Abandon != 0:
			v.abandon(o.Abandon)
		case o.Close != nil:
			return o.Close
		}
	}
	return nil
}

// trusted reports whether the peer may speak for the node that it says it is: it
// may read everything, or its permission names the node.
func (v *serving) trusted() bool {
	g := v.srv.cfg.Guard
	return g == nil || v.dialled || g.All(v.identity) || g.PermitNode(v.identity, v.name()) == nil
}

func (v *serving) reader() *wirepb.Reader {
	v.mu.Lock()
	defer v.mu.Unlock()
	return &wirepb.Reader{NodeId: v.writer.Peer(), Address: v.address, ConnectedSince: uint64(v.since.UnixMicro()), Channels: v.writer.Channels()}
}
