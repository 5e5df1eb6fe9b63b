// Package client reads a node's logs over the wire protocol.
//
// Reader is for nodes: it reads from the first of an ordered list of upstreams
// that can serve it, delivers into an engine.Sink, and moves to another at the
// same cursors when its stream gives cause. Client is for applications: it
// keeps tables in memory, and tells what changes in them.
//
// Limits: a Reader reads all its logs from one upstream at a time. What has been
// received and not yet applied is bounded by Config.Buffer in all, or 128 KiB per
// log where that is more; a row that is larger by itself comes on top.
package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// Config configures a Reader. NodeID is required; zero fields have defaults.
// Without Upstreams a Reader waits for SetUpstreams.
type Config struct {
	NodeID    string
	Name      string   // of the source; names the reader to the upstream beside NodeID
	Upstreams []string // host:port, in order of preference
	Policy    Policy
	// Scope is what to read; nil: everything.
	Scope *scope.Scope
	// Compare orders positions; nil: PostgreSQL LSN order.
	Compare     engine.Comparator
	Credentials credentials.TransportCredentials // nil: none
	// Token says who the reader is, beside or in place of a certificate; nil: nothing.
	Token credentials.PerRPCCredentials
	// Buffer bounds the bytes that wait to be applied, in all; default 64 MiB.
	// While paused as much is taken in, and then no more.
	Buffer   int64
	Edges    *Edges          // shared with the node's server and its other readers
	Upward   func() []string // ids of the nodes above this one through re-origination
	Software string
	Logger   *slog.Logger
	// Resolve returns the instances that an address leads to; nil: Lookup.
	Resolve func(ctx context.Context, address string) ([]string, error)
	Now     func() time.Time
	// Patience is how long Open tries before it says why it cannot; default 10 s.
	Patience time.Duration

	snapshotFile  string // of a Client
	snapshotEvery time.Duration
}

// window bounds of one log, within Buffer.
const (
	minWindow = 128 << 10
	maxWindow = 8 << 20
)

// Reader reads from one of several upstreams. Its calls come in the order
// Open, Baseline if wanted, Stream; it may be opened again after that.
type Reader struct {
	cfg Config
	lsn bool // positions are in the default order

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced whenever something below changes
	selector   *selector
	report     func(reason string, err error)
	link       *link
	left       string           // instance that was left last
	failures   map[string]error // of this opening
	remembered map[string]error // how the last attempt went, for status
	spared     map[string]bool  // upstreams passed over once because going on there takes a snapshot
	active     bool             // logs are subscribed to
	streaming  bool             // in Stream, not Baseline
	shares     int              // logs that share the buffer
	places     session.Places
	applied    map[engine.LogID]bool // has a cursor in the sink
	acked      map[engine.LogID]ackedAt
	sink       engine.Sink     // nil: deliveries wait
	sinkCtx    context.Context // of sink
	paused     bool
	busy       int // deliveries being applied
	fatal      error
	origins    map[string]*applier
	opened     bool
	told       string   // the last state that was reported
	reports    []func() // to be made, in order
	reportWake chan struct{}

	life context.Context // of one opening
	end  context.CancelFunc
	wg   sync.WaitGroup
}

type ackedAt struct {
	cursor  engine.Cursor
	durable bool
}

// NewReader returns a Reader.
func NewReader(cfg Config) (*Reader, error) {
	if cfg.NodeID == "" {
		return nil, errors.New("a reader needs the id of its node")
	}
	lsn := cfg.Compare == nil
	if lsn {
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
	return &Reader{
		cfg: cfg, lsn: lsn, changed: make(chan struct{}), reportWake: make(chan struct{}, 1), selector: newSelector(cfg.Upstreams, cfg.Policy, rand.Float64),
		report: func(string, error) {}, acked: map[engine.LogID]ackedAt{}, remembered: map[string]error{},
	}, nil
}

// bump wakes whoever waits for a change; mu is held.
func (r *Reader) bump() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait waits until ok, which is called with mu held, returns true.
func (r *Reader) wait(ctx context.Context, ok func() bool) error {
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
func (r *Reader) window() int64 {
	share := r.cfg.Buffer / int64(max(1, r.shares))
	if r.paused {
		return max(share, minWindow)
	}
	return min(max(share, minWindow), maxWindow)
}

// Open connects to the first upstream that can serve, and returns the tables it
// offers. report, which may be nil, is told the state from then on. What is
// wrong comes as an engine.SourceError.
func (r *Reader) Open(ctx context.Context, report func(reason string, err error)) ([]*engine.Schema, error) {
	r.Close()
	r.mu.Lock()
	if report != nil {
		r.report = report
	}
	r.failures, r.spared, r.places, r.applied = map[string]error{}, map[string]bool{}, session.Places{}, map[engine.LogID]bool{}
	r.sink, r.active, r.streaming, r.fatal, r.busy, r.opened, r.told = nil, false, false, nil, 0, true, ""
	r.origins = map[string]*applier{}
	r.selector.current, r.selector.leaving = "", false
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	life := r.life
	r.wg.Add(2)
	r.mu.Unlock()
	go func() {
		defer r.wg.Done()
		r.run(life)
	}()
	go func() {
		defer r.wg.Done()
		r.reporting(life)
	}()
	patience, cancel := context.WithTimeout(ctx, r.cfg.Patience)
	defer cancel()
	var schemas []*engine.Schema
	err := r.wait(patience, func() bool {
		if r.link == nil {
			return r.hopeless()
		}
		for _, o := range r.link.machine.Offers() {
			if o.Wanted() {
				schemas = slices.AppendSeq(schemas, maps.Values(o.Schemas))
			}
		}
		return true
	})
	if len(schemas) > 0 {
		for i, s := range schemas {
			schemas[i] = r.cfg.Scope.Schema(s)
		}
		schemas = slices.DeleteFunc(schemas, func(s *engine.Schema) bool { return s == nil })
		slices.SortFunc(schemas, func(a, b *engine.Schema) int { return scope.CompareTables(a.Table, b.Table) })
		return schemas, nil
	}
	if ctx.Err() != nil {
		r.Close()
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	why := r.why()
	none := len(r.selector.all) == 0
	r.mu.Unlock()
	r.Close()
	switch {
	case none:
		why = &engine.SourceError{Reason: engine.ReasonNoHealthyParent, Err: errors.New("no upstream is configured: waiting for one")}
	case why == nil:
		why = &engine.SourceError{Reason: engine.ReasonNoHealthyParent, Err: fmt.Errorf("no upstream has answered: %w", err)}
	}
	return nil, why
}

// offered returns the logs that the upstream offers to the reader; nil while there
// is no upstream.
func (r *Reader) offered() map[engine.LogID]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link == nil || !r.link.machine.Complete() {
		return nil
	}
	all := map[engine.LogID]bool{}
	for _, o := range r.link.machine.Offers() {
		all[o.Log] = o.Wanted()
	}
	return all
}

// hopeless reports whether every upstream has failed in a way that time alone
// does not mend; mu is held.
func (r *Reader) hopeless() bool {
	for _, u := range r.selector.all {
		var se *engine.SourceError
		if !errors.As(r.failures[u.address], &se) || !se.Permanent {
			return false
		}
	}
	return len(r.selector.all) > 0
}

// why sums up the upstreams' failures; nil if there are none. mu is held.
func (r *Reader) why() error {
	reason, permanent, n := "", true, 0
	var text []string
	for _, u := range r.selector.all {
		err := r.failures[u.address]
		if err == nil {
			continue
		}
		n++
		text = append(text, err.Error())
		var se *engine.SourceError
		switch {
		case !errors.As(err, &se):
			permanent = false
		case reason == "":
			reason, permanent = se.Reason, permanent && se.Permanent
		case reason != se.Reason:
			reason, permanent = engine.ReasonNoHealthyParent, permanent && se.Permanent
		}
	}
	if n == 0 {
		return nil
	}
	if reason == "" || reason == engine.ReasonDisconnected {
		reason = engine.ReasonNoHealthyParent
	}
	return &engine.SourceError{Reason: reason, Err: errors.New(strings.Join(text, "; "))}
}

// Baseline delivers a baseline of every log that the upstream serves and the
// sink has no cursor for, and returns when all are committed. What comes after
// waits, within the bounds of the buffer, for Stream.
func (r *Reader) Baseline(ctx context.Context, sink engine.Sink) error {
	r.start(ctx, sink, nil, false)
	err := r.wait(ctx, func() bool {
		if r.fatal != nil {
			return true
		}
		if r.link == nil || r.link.err != nil || !r.link.machine.Complete() {
			return false
		}
		n := 0
		for _, o := range r.link.machine.Offers() {
			if o.Wanted() {
				if !r.applied[o.Log] {
					return false
				}
				n++
			}
		}
		return n > 0
	})
	err = r.stop(ctx, err)
	if err != nil {
		r.Close()
	}
	return err
}

// Stream delivers what follows the cursors until ctx ends or the sink fails. A
// log without a cursor is baselined first. It outlives its upstreams: without
// any it waits for one.
func (r *Reader) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	r.start(ctx, sink, from, true)
	err := r.wait(ctx, func() bool { return r.fatal != nil })
	err = r.stop(ctx, err)
	r.Close()
	return err
}

// start opens the gate to the sink.
func (r *Reader) start(ctx context.Context, sink engine.Sink, from engine.Cursors, stream bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sink, r.sinkCtx, r.streaming = sink, ctx, stream
	if r.paused {
		r.told = "" // the engine has just said otherwise
		r.tell(engine.ReasonPaused, nil)
	}
	if !r.active {
		r.active = true
		for k, c := range from {
			if k.Scope == r.cfg.Scope.ID() {
				r.places[k.Log] = &session.Place{Position: c.Position, Time: c.Time, Known: true}
				r.applied[k.Log] = true
			}
		}
		if r.link != nil {
			r.activate(r.link)
		}
	}
	r.wakeAll()
	r.bump()
}

// stop closes the gate and waits until nothing is being applied.
func (r *Reader) stop(ctx context.Context, err error) error {
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

// Close ends the reading and waits for it. The reader may be opened again.
func (r *Reader) Close() {
	r.mu.Lock()
	if !r.opened {
		r.mu.Unlock()
		return
	}
	r.opened = false
	r.end()
	r.wakeAll()
	r.bump()
	r.mu.Unlock()
	r.wg.Wait()
	r.cfg.Edges.set(r, "", nil)
}

// Ack says that everything up to c has been applied; the upstream is told. An
// older cursor than the last changes nothing.
func (r *Reader) Ack(c engine.Cursor, durable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cfg.Compare(c.Position, r.acked[c.Log].cursor.Position) < 0 {
		return
	}
	r.acked[c.Log] = ackedAt{c, durable}
	if r.link != nil {
		r.link.machine.Ack(c.CursorKey, c.Position, durable)
	}
}

// LastAckedPosition returns the newest position acknowledged in log, or "".
func (r *Reader) LastAckedPosition(log engine.LogID) engine.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked[log].cursor.Position
}

// Pause stops delivery. What arrives is kept, within Config.Buffer; then the
// upstream gets no more credit. Resume goes on without a snapshot.
func (r *Reader) Pause() { r.setPaused(true) }

// Resume undoes Pause.
func (r *Reader) Resume() { r.setPaused(false) }

func (r *Reader) setPaused(p bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused == p {
		return
	}
	r.paused = p
	if r.link != nil {
		r.link.perform(r.link.machine.SetWindow(r.window()))
	}
	r.wakeAll()
	if p {
		r.tell(engine.ReasonPaused, nil)
	} else if r.link != nil {
		r.tell(engine.ReasonStreaming, nil)
	}
}

// SetUpstreams replaces the list and the policy while reading. If the upstream
// in use is still listed nothing is interrupted.
func (r *Reader) SetUpstreams(addresses []string, p Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.selector.replace(addresses, p)
	r.bump()
}

// Status is what a reader says of itself.
type Status struct {
	Upstream  string // as configured; empty while there is none
	Instance  string // as dialled
	Peer      string // its node id
	Since     time.Time
	Paused    bool
	Refused   []session.Refusal
	Logs      []LogPlace
	Upstreams []UpstreamState // in order of preference
}

// LogPlace is how far a log has been read.
type LogPlace struct {
	Log      engine.LogID
	Received engine.Position
	Acked    engine.Position
	Buffered int64 // bytes received and not applied
}

// UpstreamState is what is known of an upstream.
type UpstreamState struct {
	Address string
	Error   string // of the last attempt; empty if it worked
}

// Status returns the reader's state.
func (r *Reader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Paused: r.paused}
	if l := r.link; l != nil {
		s.Upstream, s.Instance, s.Peer, s.Since = l.upstream, l.instance, l.machine.Peer(), l.since
		for _, o := range l.machine.Offers() {
			if o.Refused != nil {
				s.Refused = append(s.Refused, *o.Refused)
			}
		}
	}
	for log, p := range r.places {
		s.Logs = append(s.Logs, LogPlace{log, p.Position, r.acked[log].cursor.Position, p.Buffered})
	}
	slices.SortFunc(s.Logs, func(a, b LogPlace) int { return strings.Compare(a.Log.String(), b.Log.String()) })
	for _, u := range r.selector.all {
		st := UpstreamState{Address: u.address}
		if err := r.remembered[u.address]; err != nil {
			st.Error = err.Error()
		}
		s.Upstreams = append(s.Upstreams, st)
	}
	return s
}
