package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// reader owns a replication socket: it alone reads it, writes to it, decodes
// what comes, and hands whole transactions to the mailbox.
type reader struct {
	s    *Source
	sess *session
	dec  *decoder
	box  *mailbox
	head func(engine.Position, engine.Time)
	held holding

	confirmed engine.LSN // flush and apply of the last status; never falls
	idle      engine.LSN // newest position that needs nothing of us, if nothing is in flight
	advanced  time.Time  // when the cursor was last moved to it
	sent      time.Time  // of the last status
	heard     time.Time  // of the last read that brought something
	silence   time.Duration
	messages  int
	lastRead  time.Time
	lastBytes int64         // read until then
	gather    time.Duration // before that
	quick     int           // reads in a row that came within a burst of each other

	mark *pgsession.LowWater

	hurried     atomic.Bool // someone waits to learn how far the server is
	asked       atomic.Bool // the server waits for what is still in flight
	interrupted atomic.Bool // someone set the read deadline to get attention
}

// statusLag is how long an acknowledgement may wait to be confirmed.
const statusLag = time.Second

// run reads until ctx ends or something breaks. It returns with the final
// status sent, if the connection still takes it.
func (r *reader) run(ctx context.Context) error {
	now := time.Now()
	r.sent, r.heard = now, now
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.status(true); err != nil { // its answer tells how far the log has got
		return err
	}
	for {
		err := r.step(ctx)
		var ne net.Error
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &ne) && ne.Timeout() || errors.Is(err, os.ErrDeadlineExceeded):
			if err := r.tick(); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// start sends START_REPLICATION and waits for the stream to open.
func (r *reader) start(ctx context.Context) error {
	// The publication's name is an identifier within a string, and the
	// replication grammar's strings know no escape but the doubled quote.
	pub := strings.ReplaceAll(quoteIdent(r.s.publication), "'", "''")
	sql := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s (proto_version '2', streaming 'on', publication_names '%s')", quoteIdent(r.sess.slot), r.dec.from, pub)
	stop := context.AfterFunc(ctx, func() { _ = r.sess.Conn().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := r.sess.Conn().SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	r.sess.Frontend().SendQuery(&pgproto3.Query{String: sql})
	if err := r.sess.Frontend().Flush(); err != nil {
		return err
	}
	for {
		typ, body, err := r.sess.frames.next()
		if err != nil {
			return err
		}
		switch typ {
		case 'W':
			return nil
		case 'E':
			return serverError(body)
		case 'N', 'S':
		default:
			return fmt.Errorf("START_REPLICATION was answered by a message of type %q", typ)
		}
	}
}

// step takes one message.
func (r *reader) step(ctx context.Context) error {
	waits := !r.sess.frames.buffered()
	if waits {
		if err := r.beforeRead(ctx); err != nil {
			return err
		}
	} else if r.messages++; r.messages%1024 == 0 {
		if err := r.keepInTouch(time.Now()); err != nil {
			return err
		}
	}
	typ, body, err := r.sess.frames.next()
	if err != nil {
		return err
	}
	if waits {
		r.heard = time.Now()
		if r.gather > 0 {
			r.mark.Raise(lowWater)
		}
	}
	switch typ {
	case 'd':
		return r.copyData(ctx, body)
	case 'E':
		return serverError(body)
	case 'N':
		// Where servers up to 17 end the stream, later ones pass over changes, and
		// give no more than a warning of it.
		if w := serverError(body); sqlState(w) == "55000" {
			return rebaseline("the publication was not there, or was made again, and changes were passed over (%v)", w)
		}
	case 'c', 'C', 'Z':
		return errors.New("the server ended the stream")
	}
	return nil // a notice or a changed setting
}

// burst is how long the reader lets small messages gather under load, which is
// when more than quickReads reads have come within it of each other: each
// wake-up, here and in everything that follows, costs more than a row does. Where
// so much gathers that a reader behind the node is not waiting for a single row
// any more, heavyRate bytes a millisecond, it is heavyBurst. Meanwhile the kernel
// wakes nobody for less than lowWater bytes.
const (
	burst      = time.Millisecond
	heavyBurst = 4 * time.Millisecond
	heavyRate  = 4 << 10
	quickReads = 8
	lowWater   = readBuffer / 2
)

// silence is how long a server may say nothing that is asked with every status:
// as long as it waits for us, but no less than a minute. A network that drops
// everything is noticed sooner, by TCP (see pgsession); this is for what answers
// in its place.
func silence(senderTimeout time.Duration) time.Duration {
	if senderTimeout <= 0 {
		return 5 * time.Minute
	}
	return max(senderTimeout, time.Minute)
}

// beforeRead is what is done while the socket has nothing buffered: whole
// transactions go to the applier, the server hears of us, and under load the
// socket gets time to fill.
func (r *reader) beforeRead(ctx context.Context) error {
	r.interrupted.Store(false)
	r.publish()
	now := time.Now()
	r.advance(now)
	if _, err := r.box.state(); err != nil {
		return err
	}
	if err := r.keepInTouch(now); err != nil {
		return err
	}
	since, got := now.Sub(r.lastRead), r.sess.frames.read-r.lastBytes
	heavy := got >= heavyRate*max(1, (r.gather+since).Milliseconds())
	r.gather = 0
	if since >= burst && !heavy {
		r.quick = 0
	} else if r.quick++; r.quick > quickReads {
		if r.gather = burst; heavy {
			r.gather = heavyBurst
		}
		time.Sleep(r.gather - since)
		now = time.Now()
	}
	r.mark.Lower()
	r.lastRead, r.lastBytes = now, r.sess.frames.read
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := r.sess.Conn().SetReadDeadline(r.nextStatus(now)); err != nil {
		return err
	}
	if r.interrupted.Load() { // before the deadline was set, and for what was not seen above
		return os.ErrDeadlineExceeded
	}
	return nil
}

// interrupt ends a read that waits. It may come from any goroutine.
func (r *reader) interrupt() {
	if !r.interrupted.Swap(true) {
		_ = r.sess.Conn().SetReadDeadline(time.Unix(1, 0))
	}
}

// hurry asks the server how far it is.
func (r *reader) hurry() {
	r.hurried.Store(true)
	r.interrupt()
}

// acknowledged passes an acknowledgement on at once if the server waits for it.
func (r *reader) acknowledged() {
	if r.asked.Load() {
		r.interrupt()
	}
}

// nextStatus is when the server has to hear of us: soon, while something is not
// confirmed yet.
func (r *reader) nextStatus(now time.Time) time.Time {
	if r.s.cfg.Permanent && r.asked.Load() && r.confirmed < r.idle {
		return now.Add(advanceAsked) // a server that shuts down waits for it
	}
	if r.confirmed < r.dec.end {
		return now.Add(min(statusLag, r.sess.interval))
	}
	return r.sent.Add(r.sess.interval)
}

// tick is what is done when a read has timed out.
func (r *reader) tick() error {
	now := time.Now()
	if silent := now.Sub(r.heard); silent > r.silence {
		return fmt.Errorf("the server has not answered for %s", silent.Round(time.Second))
	}
	r.advance(now)
	return r.keepInTouch(now)
}

// keepInTouch sends a status if one is due.
func (r *reader) keepInTouch(now time.Time) error {
	if r.hurried.Swap(false) {
		return r.status(true)
	}
	target := r.confirmable()
	since := now.Sub(r.sent)
	if since >= r.sess.interval || target > r.confirmed && (r.asked.Load() || since >= statusLag) {
		return r.status(true)
	}
	return nil
}

// confirmable is the newest position that the slot may forget: what has been
// acknowledged and, while all that was received is acknowledged, the end of
// what the server says it has passed. A permanent slot is confirmed no further
// than the cursor: a slot that is ahead of it is one that was made anew.
func (r *reader) confirmable() engine.LSN {
	acked := engine.LSN(r.s.acked.Load())
	c := max(r.confirmed, acked)
	if !r.s.cfg.Permanent && !r.dec.inTx && acked >= r.dec.end {
		c = max(c, r.idle)
	}
	return c
}

// status sends a standby status update. A zero flush position would count as
// the write position in some clients and as no news at the server: all three
// are always set.
func (r *reader) status(reply bool) error {
	r.confirmed = r.confirmable()
	write := max(r.confirmed, r.dec.seen)
	msg := make([]byte, 0, 39)
	msg = append(msg, 'd')
	msg = binary.BigEndian.AppendUint32(msg, 38)
	msg = append(msg, 'r')
	msg = binary.BigEndian.AppendUint64(msg, uint64(write))
	msg = binary.BigEndian.AppendUint64(msg, uint64(r.confirmed))
	msg = binary.BigEndian.AppendUint64(msg, uint64(r.confirmed))
	now := time.Now()
	msg = binary.BigEndian.AppendUint64(msg, uint64(now.UnixMicro()-postgresEpoch))
	if reply {
		msg = append(msg, 1) // its answer shows that the server is there
	} else {
		msg = append(msg, 0)
	}
	r.sent = now
	r.asked.Store(r.confirmed < r.idle && r.asked.Load())
	if err := r.sess.Conn().SetWriteDeadline(now.Add(10 * time.Second)); err != nil {
		return err
	}
	_, err := r.sess.Conn().Write(msg)
	return err
}

// copyData takes a message of the replication stream.
func (r *reader) copyData(ctx context.Context, p []byte) error {
	if len(p) == 0 {
		return fmt.Errorf("%w: an empty replication message", errMessage)
	}
	switch p[0] {
	case 'w':
		if len(p) < 25 {
			return fmt.Errorf("%w: WAL data of %d bytes", errMessage, len(p))
		}
		return r.walData(ctx, p[25:])
	case 'k':
		if len(p) != 18 {
			return fmt.Errorf("%w: a keepalive of %d bytes", errMessage, len(p))
		}
		r.heard = time.Now()
		r.idle = max(r.idle, engine.LSN(binary.BigEndian.Uint64(p[1:])))
		if r.dec.batch == nil || len(r.dec.batch.txs) == 0 { // what it has sent has been passed on
			r.tellHead()
		}
		if p[17] == 0 {
			return nil
		}
		// It is answered at once; while something is in flight, the applier's next
		// acknowledgement is passed on at once too, since a server that shuts down
		// waits for it.
		r.asked.Store(true)
		if r.heard.Sub(r.sent) < 10*time.Millisecond && r.confirmable() == r.confirmed {
			return nil // it asks again with every answer
		}
		return r.status(false)
	}
	return fmt.Errorf("%w: a replication message of type %q", errMessage, p[0])
}

func (r *reader) walData(ctx context.Context, msg []byte) error {
	if len(msg) > 0 && (r.held.current != nil || streaming(msg[0])) {
		if err := r.holdMessage(ctx, msg); err != nil {
			return err
		}
	} else {
		if r.dec.batch == nil {
			r.dec.batch = r.box.open()
		}
		committed, err := r.dec.decode(msg)
		if err != nil {
			return err
		}
		if !committed {
			if r.dec.batch.bytes >= largeTx {
				r.holdRest()
			}
			return nil
		}
	}
	if r.dec.seen > r.dec.end { // it held nothing of ours
		r.idle = max(r.idle, r.dec.seen)
	}
	if r.dec.batch == nil || r.dec.batch.bytes < batchSize {
		return nil
	}
	r.publish()
	return r.awaitSpace(ctx)
}

const (
	// advanceEvery is how often the cursor follows an idle stream.
	advanceEvery = 10 * time.Second
	// advanceAsked is how often it does while the server asks for an answer.
	advanceAsked = 100 * time.Millisecond
)

// advance moves the cursor over what held nothing of ours, if nothing is in
// flight: a slot that outlives its connection is confirmed no further than the
// cursor, and would else keep the WAL of all that happens elsewhere.
func (r *reader) advance(now time.Time) {
	hurry := r.s.tables.hurry.Load()
	if !r.s.cfg.Permanent && !hurry || r.dec.inTx || r.held.current != nil || r.idle <= r.dec.end || engine.LSN(r.s.acked.Load()) < r.dec.end {
		return
	}
	if since := now.Sub(r.advanced); since < r.s.cfg.advance && !hurry && (!r.asked.Load() || since < advanceAsked) {
		return
	}
	r.advanced = now
	r.dec.prev, r.dec.end = r.idle.Position(), r.idle
	r.box.put(&batch{through: r.idle})
}

// publish hands the whole transactions of the current batch to the applier.
func (r *reader) publish() {
	b := r.dec.batch
	if b == nil || len(b.txs) == 0 {
		return
	}
	r.dec.batch = nil
	if r.dec.inTx {
		r.dec.batch = r.box.fresh()
		b.split(r.dec.batch)
	}
	r.box.put(b)
	r.heard = time.Now()
	r.tellHead()
}

// tellHead tells how far the log has got.
func (r *reader) tellHead() {
	var t engine.Time // of no transaction in this session
	if !r.dec.commit.IsZero() {
		t = engine.TimeOf(r.dec.commit)
	}
	r.head(r.dec.end.Position(), t)
}

// awaitSpace stops reading while too much is waiting to be applied.
func (r *reader) awaitSpace(ctx context.Context) error {
	for {
		bytes, err := r.box.state()
		if err != nil {
			return err
		}
		if bytes <= r.s.cfg.MaxBuffer {
			r.heard = time.Now()
			return nil
		}
		if err := r.await(ctx, r.box.space); err != nil {
			return err
		}
	}
}

// await waits for a signal, and goes on reporting status meanwhile.
func (r *reader) await(ctx context.Context, done <-chan struct{}) error {
	for {
		now := time.Now()
		t := time.NewTimer(max(0, r.nextStatus(now).Sub(now)))
		select {
		case <-done:
			t.Stop()
			return nil
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
		if err := r.keepInTouch(time.Now()); err != nil {
			return err
		}
	}
}

// finish sends a last status, ends the stream and lets the server read that
// before the connection goes.
func (r *reader) finish() {
	r.mark.Lower()
	deadline := time.Now().Add(2 * time.Second)
	if r.status(false) != nil {
		return
	}
	if _, err := r.sess.Conn().Write([]byte{'c', 0, 0, 0, 4}); err != nil {
		return
	}
	if r.sess.Conn().SetReadDeadline(deadline) != nil {
		return
	}
	for range math.MaxInt {
		typ, _, err := r.sess.frames.next()
		if err != nil || typ == 'Z' || typ == 'E' {
			return
		}
	}
}
