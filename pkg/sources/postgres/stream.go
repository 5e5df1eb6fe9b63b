package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// applyError marks what the engine, and not the server, ended the stream with.
type applyError struct{ err error }

func (e *applyError) Error() string { return e.err.Error() }
func (e *applyError) Unwrap() error { return e.err }

// Stream implements engine.SyncSource. It goes on with the session that
// Baseline left, or on the permanent slot. A lost connection is made again, with
// growing pauses, for as long as ctx lives; if the slot was temporary, or can
// not go on from the cursor, Stream then gives ErrReBaselineRequired.
func (s *Source) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	cursor, err := startOf(from)
	if err != nil {
		return err
	}
	sess := s.takeSession()
	if sess != nil && sess.slot == s.slot && !s.cfg.Permanent && cursor < sess.consistent {
		sess.close()
		return rebaseline("the cursor %s is before the slot's first position %s", cursor, sess.consistent)
	}
	if sess == nil && !s.cfg.Permanent {
		return rebaseline("there is no slot: a temporary slot begins with a baseline")
	}
	if cursor == 0 {
		sess.end()
		return rebaseline("there is no cursor to go on from")
	}
	s.acked.Store(uint64(cursor))
	unwatch := s.watch(ctx, s.slot)
	defer unwatch()
	s.tables.begin(s.names(), s.held)
	tctx, stop := context.WithCancel(ctx)
	looked := make(chan struct{})
	direct := sink
	go func() { // waited for below
		defer close(looked)
		s.tables.run(tctx, direct)
	}()
	defer func() {
		stop()
		<-looked
	}()
	sink = router{sink, s.tables}
	var cause error
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, s.cfg.retry) {
		if sess == nil {
			sess, err = s.resume(ctx, cursor, cause)
		}
		if err == nil {
			pause = 200 * time.Millisecond
			s.env.Report(engine.ReasonStreaming, nil)
			cursor, err = s.stream(ctx, sess, cursor, sink)
			sess.close()
			sess = nil
		}
		if err = s.verdict(ctx, err); err != nil {
			var lost *lostError
			if !errors.As(err, &lost) {
				return err
			}
			cause = lost.err
			s.report(cause)
		}
		err = nil
		if err := sleep(ctx, pause/2+rand.N(pause/2)); err != nil {
			return err
		}
	}
}

// startOf returns the cursor of the source's log, which is the only one.
func startOf(from engine.Cursors) (engine.LSN, error) {
	var start engine.LSN
	for key, c := range from {
		lsn, err := engine.ParseLSN(c.Position)
		if err != nil {
			return 0, fmt.Errorf("the cursor of log %s: %w", key.Log, err)
		}
		start = max(start, lsn)
	}
	return start, nil
}

// resume opens a session after the last one was lost.
func (s *Source) resume(ctx context.Context, cursor engine.LSN, cause error) (*session, error) {
	s.unpin()
	if s.cfg.Permanent {
		return s.resumeSession(ctx, cursor)
	}
	// The slot is gone, but a new baseline is of use only once the server answers.
	c, err := s.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	c.close()
	return nil, rebaseline("the temporary slot ended with its connection (%v)", cause)
}

// lostError is a stream that can be opened again.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// verdict sorts what ended a session: a lostError is tried again, anything else
// ends Stream.
func (s *Source) verdict(ctx context.Context, err error) error {
	var apply *applyError
	var unidentified *identityError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &apply):
		return apply.err
	case errors.As(err, &unidentified):
		return sourceError(s.server(), unidentified.problem())
	case errors.Is(err, engine.ErrReBaselineRequired), errors.Is(err, errMessage), errors.Is(err, errHistory):
		return err
	}
	switch sqlState(err) {
	case "42704": // the publication went away, or was made again after the position
		return rebaseline("the publication or the slot is not there any more (%v)", err)
	case "55000", "58P01":
		return rebaseline("the slot has lost the WAL it needs (%v)", err)
	}
	return &lostError{err}
}

// report tells the engine why the stream is down.
func (s *Source) report(cause error) {
	var p *Problem
	if !errors.As(cause, &p) {
		p = &Problem{Reason: ServerUnreachable, What: "the replication connection was lost", Err: cause}
	}
	err := sourceError(s.server(), p)
	var se *engine.SourceError
	errors.As(err, &se)
	s.env.Report(se.Reason, err)
}

// stream runs one session: this goroutine owns the socket, another one applies.
// It returns the position that has been applied.
func (s *Source) stream(ctx context.Context, sess *session, cursor engine.LSN, sink engine.Sink) (engine.LSN, error) {
	s.walsender.Store(sess.PID())
	r := &reader{s: s, sess: sess, silence: sess.silence, box: newMailbox(), confirmed: engine.LSN(s.acked.Load())}
	r.mark = pgsession.NewLowWater(sess.Conn())
	r.held = newHolding(s.scratch)
	defer r.held.close()
	r.head = func(p engine.Position, t engine.Time) { sink.Head(engine.LogID{}, engine.Head{Position: p, Time: t}) }
	rel := newRelations(ctx, s, r)
	defer rel.close()
	r.dec = newDecoder(cursor, func(m *relationMessage) (*relation, error) { return rel.resolve(ctx, m) })
	r.dec.retry, r.dec.missed = rel.retry, s.tables.missed
	r.dec.again = func() (map[uint32]*relation, error) { return rel.again(ctx) }
	rctx, stop := context.WithCancel(ctx)
	defer stop()
	wake := context.AfterFunc(rctx, r.interrupt)
	defer wake()

	s.mu.Lock()
	s.poke, s.hurry = r.acknowledged, r.hurry
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.poke, s.hurry = nil, nil
		s.mu.Unlock()
	}()

	applied := make(chan struct{})
	go func() { // ends when rctx does, or Apply fails; waited for below
		defer close(applied)
		var err error
		cursor, err = s.applyAll(rctx, r.box, cursor, sink)
		if rctx.Err() == nil {
			r.box.fail(&applyError{err})
			r.interrupt()
		}
	}()
	err := r.run(rctx)
	stop()
	<-applied
	var apply *applyError
	if ctx.Err() != nil || errors.As(err, &apply) {
		r.finish()
	}
	return cursor, err
}

// applyAll applies batches until ctx ends or the engine fails.
func (s *Source) applyAll(ctx context.Context, box *mailbox, cursor engine.LSN, sink engine.Sink) (engine.LSN, error) {
	for {
		b, err := box.take(ctx)
		if err == nil {
			err = s.gate.pass(ctx)
		}
		if err != nil {
			return cursor, err
		}
		to := b.through
		switch {
		case b.run != nil:
			to = b.run.lsn
			b, err = applyRuns(ctx, box, b, sink)
		case to != 0:
			err = sink.Progress(ctx, engine.CursorKey{}, "", to.Position(), 0)
		default:
			to = b.txs[len(b.txs)-1].lsn
			err = sink.Apply(ctx, b.transactions())
		}
		if err != nil {
			return cursor, err
		}
		cursor = to
		box.release(b)
	}
}

// applyRuns applies a large transaction, of which b is the first run; it returns
// the last.
func applyRuns(ctx context.Context, box *mailbox, b *batch, sink engine.Sink) (*batch, error) {
	var failed error
	more := func() ([]engine.Change, error) {
		for failed == nil && !b.last {
			box.release(b) // before the next comes: the reader may wait for its room
			if b, failed = box.take(ctx); failed == nil && len(b.changes) > 0 {
				return b.changes, nil
			}
		}
		return nil, failed
	}
	t := b.run.transaction(b.changes)
	t.More = more
	if err := sink.Apply(ctx, []engine.Transaction{t}); err != nil {
		return b, err
	}
	for { // an engine that had it before has not asked for more
		if rest, err := more(); err != nil || len(rest) == 0 {
			return b, err
		}
	}
}
