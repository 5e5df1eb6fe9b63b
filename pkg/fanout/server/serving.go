package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// serving drives one session.
type serving struct {
	srv     *Server
	stream  grpc.ServerStream
	log     *slog.Logger
	address string
	// identity is who reads; empty where nobody is identified.
	identity string
	since    time.Time
	inbox    chan *wirepb.Frame
	wake     chan uint32 // channels whose snapshot has expired
	turn     *turn       // of the sending goroutine: asked for; nil if not

	mu        sync.Mutex // of the machine; never held while sending
	writer    *session.Writer
	snapshots map[uint32]*snapshot
	lastSeen  *moment // last told to the machine; only compared
}

// Session serves a reader.
func (s *Server) Session(stream grpc.BidiStreamingServer[wirepb.Frame, wirepb.Frame]) error {
	v := &serving{
		identity: identityOf(stream.Context()), srv: s, stream: stream, since: time.Now(), log: s.cfg.Logger, inbox: make(chan *wirepb.Frame, 16), wake: make(chan uint32, 16),
		snapshots: map[uint32]*snapshot{},
	}
	if p, ok := peer.FromContext(stream.Context()); ok {
		v.address = p.Addr.String()
	}
	var permit func(engine.TableName) error
	if g := s.cfg.Guard; g != nil {
		permit = func(t engine.TableName) error { return g.Permit(v.identity, t) }
	}
	v.writer = session.NewWriter(session.WriterConfig{
		NodeID: s.cfg.Host.NodeID(), Software: s.cfg.Software, Limits: s.cfg.Limits, Held: s.cfg.Host.Highest, Provider: s.cfg.Provider,
		Share: s.hub.share, Permit: permit,
	}, v.since)
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
		v.receive(ctx, cancel)
	}()
	err := v.run(ctx)
	var e *session.Error
	switch {
	case errors.Is(err, io.EOF), status.Code(err) == codes.Canceled, errors.Is(err, context.Canceled):
		return nil
	case errors.As(err, &e):
		if !e.Remote {
			s.metrics.faults.WithLabelValues(e.Code.String()).Inc()
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

func (v *serving) receive(ctx context.Context, cancel context.CancelCauseFunc) {
	for {
		f := &wirepb.Frame{}
		if err := v.stream.RecvMsg(f); err != nil {
			cancel(err)
			return
		}
		select {
		case v.inbox <- f:
		case <-ctx.Done():
			return
		}
	}
}

// run is the session's one sending goroutine.
func (v *serving) run(ctx context.Context) error {
	tick := time.NewTicker(session.HeadEvery)
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
			case f := <-v.inbox:
				step = func() []session.Output { return v.writer.Frame(f) }
			case <-tick.C:
				step = v.tick
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
		case f := <-v.inbox:
			look = true
			step = func() []session.Output { return v.writer.Frame(f) }
		case <-tick.C:
			step = v.tick
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

func (v *serving) tick() []session.Output { return v.writer.Tick(time.Now()) }

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
	if v.lastSeen != m {
		v.lastSeen = m
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
	var blocks []*engine.Block
	var err error
	if work.Part > 0 {
		blocks, err = m.view.ReadPart(work.Log, work.After, work.Part, work.MaxSize)
	} else {
		blocks, err = m.view.ReadLog(work.Log, work.After, work.MaxSize)
	}
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
			host.Acked(o.Acked.Reader, o.Acked.Key, o.Acked.At, o.Acked.Durable)
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

func (v *serving) reader() *wirepb.Reader {
	v.mu.Lock()
	defer v.mu.Unlock()
	return &wirepb.Reader{NodeId: v.writer.Peer(), Address: v.address, ConnectedSince: uint64(v.since.UnixMicro()), Channels: v.writer.Channels()}
}
