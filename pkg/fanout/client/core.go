package client

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// Config configures a Reader or a Mesh. NodeID is required; zero fields have
// defaults. Without Upstreams they wait for SetUpstreams, or SetPeers.
type Config struct {
	NodeID    string
	Name      string   // of the source; names the reader to the upstream beside NodeID
	Upstreams []string // host:port, in order of preference
	Policy    Policy
	// Scope is what to read; nil: everything.
	Scope *scope.Scope
	// Compare orders positions of logs that do not say how; nil: PostgreSQL LSN order.
	Compare     engine.Comparator
	Credentials credentials.TransportCredentials // nil: none
	// Token says who the reader is, beside or in place of a certificate; nil: nothing.
	Token credentials.PerRPCCredentials
	// Buffer bounds the bytes that wait to be applied, in all; default 64 MiB.
	// While paused as much is taken in, and then no more.
	Buffer   int64
	Edges    *Edges          // shared with the node's server and its other readers
	Upward   func() []string // ids of the nodes above this one through re-origination; nil for none
	Software string
	Logger   *slog.Logger
	// Resolve returns the instances that an address leads to; nil: Lookup.
	Resolve func(ctx context.Context, address string) ([]string, error)
	Now     func() time.Time
	// Patience is how long Open tries before it says why it cannot; default 10 s.
	Patience time.Duration
	// Holder names this life of the node in a relay tree; empty elsewhere. Above
	// returns how far those above have a log that is read here, and Told is told what
	// children know of their logs; nil where there is no use for it.
	Holder string
	Above  func(log engine.LogID) session.Holdings
	Told   func(session.Stable)
	// Witness is told what peers hold of this node's own logs; nil: nobody is.
	Witness func(peer string, epoch engine.Epoch, t engine.Time)
	// Own, of a Mesh, returns where the node is in its own logs if these wait for what
	// the peers hold of them, and Rejoined is called when all of it is here: see
	// engine.Engine.AwaitPeers. Nil where nothing waits.
	Own      func() []engine.OwnLog
	Rejoined func()
	// Basic reads with one cursor for all logs of a peer, as nodes do that lack the
	// capability session.CapOriginCursors.
	Basic bool
	// Minted, of a Mesh, reads only the logs that peers have of themselves: they are
	// children in a relay tree.
	Minted bool
	// Elsewhere, of a Mesh, reports whether another source of the node reads an origin's log: a node
	// has one cursor in it, and one source reads it. Nil where there is no other.
	Elsewhere func(origin string) bool
	// Serve, of a Mesh, serves a peer over a session that this node has dialled; nil
	// where peers that want to read dial themselves.
	Serve session.Join

	snapshotFile  string // of a Client
	snapshotEvery time.Duration
	listeners     []func(old, fresh *engine.Record, at engine.Position)
}

func (cfg *Config) setDefaults() error {
	if cfg.NodeID == "" {
		return errors.New("a reader needs the id of its node")
	}
	if cfg.Compare == nil {
		cfg.Compare = engine.CompareLSN
	}
	if cfg.Buffer == 0 {
		cfg.Buffer = 64 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Resolve == nil {
		cfg.Resolve = Lookup
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	return nil
}

// window bounds of one log, within Buffer.
const (
	minWindow = 32 << 10
	maxWindow = 8 << 20
)

// core is what readers have in common: the deliveries of their sessions and the
// sink that takes them.
type core struct {
	cfg  Config
	hold bool

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced whenever something below changes
	report     func(reason string, err error)
	intake     *session.Intake
	links      map[*session.Reader]*link
	policy     Policy // with defaults
	active     bool   // logs are subscribed to
	streaming  bool   // in Stream, not Baseline
	shares     int    // logs that share the buffer
	sink       engine.Sink
	sinkCtx    context.Context // of sink
	paused     bool
	busy       int // deliveries being applied
	fatal      error
	appliers   map[string]*sync.Cond // on mu, by origin
	opened     bool
	told       string   // the last state that was reported
	reports    []func() // to be made, in order
	reportWake chan struct{}
	event      chan struct{} // something has changed at a link

	life context.Context // of one opening
	end  context.CancelFunc
	wg   sync.WaitGroup
}

func newCore(cfg Config, hold bool) core {
	return core{
		cfg: cfg, hold: hold, policy: cfg.Policy.withDefaults(), changed: make(chan struct{}), reportWake: make(chan struct{}, 1), event: make(chan struct{}, 1), report: func(string, error) {},
	}
}

// prepare is called once the core is where it stays.
func (r *core) prepare() {
	r.intake = session.NewIntake(session.IntakeConfig{Perform: r.perform, Compare: r.cfg.Compare, Hold: r.hold})
}

// begin makes ready for an opening; mu is held.
func (r *core) begin(ctx context.Context, report func(reason string, err error)) {
	if report != nil {
		r.report = report
	}
	r.intake.Reset()
	r.links = map[*session.Reader]*link{}
	r.sink, r.active, r.streaming, r.fatal, r.busy, r.opened, r.told = nil, false, false, nil, 0, true, ""
	r.appliers = map[string]*sync.Cond{}
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		r.reporting(r.life)
	}()
}

// finish ends an opening and waits for it; it reports whether there was one.
func (r *core) finish() bool {
	r.mu.Lock()
	if !r.opened {
		r.mu.Unlock()
		return false
	}
	r.opened = false
	r.end()
	r.wakeAll()
	r.bump()
	r.mu.Unlock()
	r.wg.Wait()
	r.intake.Close()
	return true
}

// perform does what a machine asks for; mu is held.
func (r *core) perform(m *session.Reader, acts []session.Action) {
	if l := r.links[m]; l != nil {
		l.perform(acts)
	}
}

// bump wakes whoever waits for a change; mu is held.
func (r *core) bump() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait waits until ok, which is called with mu held, returns true.
func (r *core) wait(ctx context.Context, ok func() bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() {
		c := r.changed
		r.mu.Unlock()
		select {
		case <-c:
		case <-ctx.Done():
		}
		r.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// window is how many bytes of each log may wait to be applied; mu is held.
func (r *core) window() int64 {
	share := r.cfg.Buffer / int64(max(1, r.shares))
	if r.paused {
		return max(share, minWindow)
	}
	return min(max(share, minWindow), maxWindow)
}

// gate opens the way to the sink; it reports whether it is the first time. mu is
// held.
func (r *core) gate(ctx context.Context, sink engine.Sink, from engine.Cursors, stream bool) (first bool) {
	r.sink, r.sinkCtx, r.streaming = sink, ctx, stream
	if r.paused {
		r.told = "" // the engine has just said otherwise
		r.tell(engine.ReasonPaused, nil)
	}
	if first = !r.active; first {
		r.active = true
		for k, c := range from {
			if k.Scope == r.cfg.Scope.ID() {
				r.intake.Resume(c, sink)
			}
		}
	}
	r.wakeAll()
	r.bump()
	return first
}

// stop closes the gate and waits until nothing is being applied.
func (r *core) stop(ctx context.Context, err error) error {
	r.mu.Lock()
	r.sink = nil
	if err == nil {
		err = r.fatal
	}
	r.mu.Unlock()
	// An apply in flight ends by itself, or with the context that it was given.
	_ = r.wait(context.WithoutCancel(ctx), func() bool { return r.busy == 0 })
	return err
}

// tell reports the state once it streams; mu is held. The report is made apart,
// since it may take locks of its own.
func (r *core) tell(reason string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if reason == engine.ReasonStreaming {
		switch {
		case r.paused:
			return
		case !r.streaming && !r.active:
			reason = engine.ReasonConnecting
		case !r.streaming:
			reason = engine.ReasonBaselining
		}
	}
	if r.told == reason+text {
		return
	}
	r.told = reason + text
	report := r.report
	r.reports = append(r.reports, func() { report(reason, err) })
	poke(r.reportWake)
}

// reporting makes the reports until ctx ends.
func (r *core) reporting(ctx context.Context) {
	for {
		select {
		case <-r.reportWake:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		todo := r.reports
		r.reports = nil
		r.mu.Unlock()
		for _, f := range todo {
			f()
		}
	}
}

// enqueue takes a delivery in; mu is held.
func (r *core) enqueue(d *session.Delivery) {
	origin := d.Key.Log.Origin
	more := r.appliers[origin]
	if more == nil {
		if !r.opened {
			return
		}
		more = sync.NewCond(&r.mu)
		r.appliers[origin] = more
		r.wg.Add(1)
		go func() {
			defer r.wg.Done()
			r.apply(origin, more)
		}()
	}
	r.intake.Add(d)
	more.Signal()
}

// wakeAll lets every applier look again; mu is held.
func (r *core) wakeAll() {
	for _, more := range r.appliers {
		more.Signal()
	}
}

// apply hands the deliveries of one origin to the sink, in order, apart from
// those of every other.
func (r *core) apply(origin string, more *sync.Cond) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.life.Err() == nil {
		var batch []*session.Delivery
		if r.sink != nil && !r.paused && r.fatal == nil {
			batch = r.intake.Next(r.cfg.Now(), origin)
		}
		if batch == nil {
			if due := r.intake.Due(origin); !due.IsZero() {
				t := time.AfterFunc(max(due.Sub(r.cfg.Now()), time.Millisecond), func() {
					r.mu.Lock()
					more.Signal()
					r.mu.Unlock()
				})
				more.Wait()
				t.Stop()
				continue
			}
			more.Wait()
			continue
		}
		sink, ctx, applier := r.sink, r.sinkCtx, r.intake.Applier(origin)
		r.busy++
		r.mu.Unlock()
		err := applier.Apply(ctx, sink, r.cfg.Compare, batch)
		r.mu.Lock()
		r.busy--
		kind := batch[0].Kind
		// Nobody waits for what is as it was: a stream that goes on.
		plain := err == nil && r.streaming && (kind == session.DeliverBlock || kind == session.DeliverProgress) && r.intake.Held(origin) == nil
		if err != nil && ctx.Err() != nil {
			// The phase is over, and with it the reader: nothing of this is kept.
			err = context.Cause(ctx)
		} else {
			if l := r.links[batch[0].From]; err == nil && l != nil && (kind == session.DeliverBlock || kind == session.DeliverProgress || kind == session.DeliverCommit) {
				l.brought = true
			}
			err = r.intake.Done(r.cfg.Now(), origin, batch, err)
		}
		if r.fatal == nil {
			r.fatal = err
		}
		if !plain || r.sink == nil || r.fatal != nil {
			r.bump()
		}
	}
}

// Ack says that everything up to c has been applied; the upstream is told. An
// older cursor than the last changes nothing.
func (r *core) Ack(c engine.Cursor, durable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.intake.Ack(c, durable)
}

// LastAckedPosition returns the newest position acknowledged in log, or "".
func (r *core) LastAckedPosition(log engine.LogID) engine.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.intake.Acked(log)
}

// Pause stops delivery. What arrives is kept, within Config.Buffer; then the
// upstream gets no more credit. Resume goes on without a snapshot.
func (r *core) Pause() { r.setPaused(true) }

// Resume undoes Pause.
func (r *core) Resume() { r.setPaused(false) }

func (r *core) setPaused(p bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused == p {
		return
	}
	r.paused = p
	for _, l := range r.links {
		l.perform(l.machine.SetWindow(r.window()))
	}
	r.wakeAll()
	if p {
		r.tell(engine.ReasonPaused, nil)
	} else if len(r.links) > 0 {
		r.tell(engine.ReasonStreaming, nil)
	}
}

// held says which logs are held, and why; nil if none is. mu is held.
func (r *core) held() error {
	var all []error
	for _, origin := range r.intake.Origins() {
		all = append(all, r.intake.Held(origin))
	}
	return errors.Join(all...)
}

// logPlaces returns how far each log has been read; mu is held.
func (r *core) logPlaces() []LogPlace {
	var all []LogPlace
	for log, p := range r.intake.Places().All() {
		l := LogPlace{Log: log, Received: p.Position, Acked: r.intake.Acked(log), Buffered: p.Buffered, Counts: p.Counts}
		if err := r.intake.Held(log.Origin); err != nil {
			l.Held = err.Error()
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b LogPlace) int { return strings.Compare(a.Log.String(), b.Log.String()) })
	return all
}
