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
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// Reader reads from one of several upstreams. Its calls come in the order
// Open, Baseline if wanted, Stream; it may be opened again after that.
type Reader struct {
	core
	lsn bool // positions are in the default order

	// Under mu:
	selector   *selector
	link       *link
	left       string           // instance that was left last
	failures   map[string]error // of this opening
	remembered map[string]error // how the last attempt went, for status
	served     map[string]bool  // upstreams that have been read from
	spared     map[string]bool  // upstreams passed over once because going on there takes a snapshot
}

// NewReader returns a Reader.
func NewReader(cfg Config) (*Reader, error) {
	lsn := cfg.Compare == nil
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	r := &Reader{core: newCore(cfg, false), lsn: lsn, selector: newSelector(cfg.Upstreams, cfg.Policy, rand.Float64), remembered: map[string]error{}, served: map[string]bool{}}
	r.prepare()
	return r, nil
}

// Open connects to the first upstream that can serve, and returns the tables it
// offers. report, which may be nil, is told the state from then on. What is
// wrong comes as an engine.SourceError.
func (r *Reader) Open(ctx context.Context, report func(reason string, err error)) ([]*engine.Schema, error) {
	r.Close()
	r.mu.Lock()
	r.begin(ctx, report)
	r.failures, r.spared = map[string]error{}, map[string]bool{}
	r.selector.current, r.selector.leaving = "", false
	life := r.life
	r.wg.Add(1)
	r.mu.Unlock()
	go func() {
		defer r.wg.Done()
		r.run(life)
	}()
	patience, cancel := context.WithTimeout(ctx, r.cfg.Patience)
	defer cancel()
	var schemas []*engine.Schema
	found := false // the schemas of a relay's log are of other logs, and come with its rows
	err := r.wait(patience, func() bool {
		if r.link == nil {
			return r.hopeless()
		}
		for _, o := range r.link.machine.Offers() {
			if o.Wanted() {
				schemas = slices.AppendSeq(schemas, maps.Values(o.Schemas))
				found = found || len(o.Tables) > 0
			}
		}
		return true
	})
	if found {
		for i, s := range schemas {
			schemas[i] = r.cfg.Scope.Schema(s)
		}
		schemas = slices.DeleteFunc(schemas, func(s *engine.Schema) bool { return s == nil })
		slices.SortFunc(schemas, func(a, b *engine.Schema) int { return a.Table.Compare(b.Table) })
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
	case why == nil && err == nil:
		why = &engine.SourceError{Reason: engine.ReasonTableNotFound, Err: errors.New("the upstream has no table that is wanted yet: waiting for one")}
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
				if !r.intake.Applied(o.Log) {
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
	if r.gate(ctx, sink, from, stream) && r.link != nil {
		r.activate(r.link)
	}
}

// Close ends the reading and waits for it. The reader may be opened again.
func (r *Reader) Close() {
	if r.finish() {
		r.cfg.Edges.set(&r.core, "", nil)
	}
}

// SetUpstreams replaces the list and the policy while reading. If the upstream
// in use is still listed nothing is interrupted.
func (r *Reader) SetUpstreams(addresses []string, p Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policy = p.withDefaults()
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
	Counts   session.Counts
	Held     string // why it is not applied; empty if it is
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
	s.Logs = r.logPlaces()
	for _, u := range r.selector.all {
		st := UpstreamState{Address: u.address}
		if err := r.remembered[u.address]; err != nil {
			st.Error = err.Error()
		}
		s.Upstreams = append(s.Upstreams, st)
	}
	return s
}
