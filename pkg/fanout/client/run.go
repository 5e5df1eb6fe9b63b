package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// run keeps the reader connected until ctx ends.
func (r *Reader) run(ctx context.Context) {
	defer r.disconnect()
	for ctx.Err() == nil {
		r.mu.Lock()
		changed := r.changed
		r.observe()
		c := r.selector.next(r.cfg.Now())
		if l := r.link; l != nil && l.goAway != nil && c.do == connect && r.intake.Baselining("") && r.cfg.Now().Before(r.stayUntil()) {
			c = choice{do: wait, until: r.stayUntil()}
		}
		r.mu.Unlock()
		switch c.do {
		case connect:
			r.move(ctx, c.address)
		case probe:
			l, err := r.try(ctx, c.address)
			r.mu.Lock()
			if err == nil {
				err = r.costsSnapshot(l.machine)
			}
			r.selector.probed(r.cfg.Now(), c.address, err == nil)
			r.note(c.address, err)
			r.mu.Unlock()
			if l != nil {
				l.close()
			}
		case wait:
			var due <-chan time.Time
			if !c.until.IsZero() {
				t := time.NewTimer(c.until.Sub(r.cfg.Now()))
				defer t.Stop()
				due = t.C
			}
			select {
			case <-changed:
			case <-due:
			case <-ctx.Done():
			}
		}
	}
}

// observe takes the evidence of the stream in use; mu is held.
func (r *Reader) observe() {
	l, now := r.link, r.cfg.Now()
	switch {
	case l == nil:
	case l.err != nil:
		r.link = nil
		r.intake.Ended(l.machine)
		r.left = l.instance
		err := r.cfg.explain(l.instance, l.err, 0)
		r.cfg.Logger.Info("upstream lost", "peer", l.machine.Peer(), "address", l.instance, "error", err)
		r.note(l.upstream, err)
		r.selector.lost(now, l.brought, retryAfter(l.err))
		r.tell(engine.ReasonNoHealthyParent, err)
		r.wg.Add(1)
		go func() { // its goroutines are on their way out; do not wait for them here
			defer r.wg.Done()
			l.close()
		}()
	case l.goAway != nil && !r.selector.leaving:
		r.left = l.instance
		r.selector.leave(now, false, l.brought)
	case l.goAway == nil:
		r.share(l)
		err := usable(l.machine, r.cfg.Scope.Names())
		silent := err == nil && l.silent()
		if silent {
			err = &engine.SourceError{Reason: engine.ReasonDisconnected, Err: fmt.Errorf("upstream %s has been silent since %s", l.instance, l.machine.Heard().Format(time.RFC3339Nano))}
		}
		var se *engine.SourceError
		switch {
		case err == nil:
			if r.selector.find(l.upstream) != nil {
				r.selector.leaving = false // it is well again, if it was not
			}
			r.tell(engine.ReasonStreaming, r.lacking(l.machine))
		case !r.selector.leaving && errors.As(err, &se):
			r.note(l.upstream, err)
			r.tell(se.Reason, err)
			r.selector.leave(now, silent, l.brought)
		}
	}
}

// note remembers how the last attempt at an upstream went; mu is held. One that has
// served this reader speaks as it should, so when it ends a connection at once it is
// going away: it is down, and nobody has to mend anything.
func (r *Reader) note(address string, err error) {
	if err == nil {
		delete(r.failures, address)
		delete(r.remembered, address)
		return
	}
	var e endedError
	if r.served[address] && errors.As(err, &e) {
		err = &engine.SourceError{Reason: engine.ReasonDisconnected, Err: e}
	}
	r.failures[address], r.remembered[address] = err, err
}

// stayUntil is how long a snapshot may go on with an upstream that drains: most
// of the time that it gave; mu is held.
func (r *Reader) stayUntil() time.Time {
	return r.link.awaySince.Add(r.link.goAway.Within * 3 / 4)
}

// try opens a link that can serve the reader.
func (r *Reader) try(ctx context.Context, address string) (*link, error) {
	l, err := r.open(ctx, address)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	err = usable(l.machine, r.cfg.Scope.Names())
	if err == nil && l.goAway != nil {
		err = fmt.Errorf("upstream %s is draining", l.instance)
	}
	r.mu.Unlock()
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// costsSnapshot says why going on at a peer would take a snapshot; nil if it
// would not. Nobody moves there who is well where it is. mu is held.
func (r *Reader) costsSnapshot(m *session.Reader) error {
	for _, o := range m.Offers() {
		p := r.intake.Places().Of(o.Log)
		if o.Wanted() && o.CostsSnapshot(p) {
			return fmt.Errorf("node %s holds log %s from %s only, and this reader is at %s: going on there would take a snapshot", m.Peer(), o.Log, o.Oldest, p.Position)
		}
	}
	return nil
}

// errNoLogs: the upstream is there, and has nothing to serve yet.
var errNoLogs = errors.New("serves no log yet")

// usable says why nothing can be read from a peer; nil if something can.
func usable(m *session.Reader, tables []engine.TableName) error {
	offers := m.Offers()
	var refused []string
	code := session.RefusalCode("")
	offered := map[engine.TableName]bool{}
	for _, o := range offers {
		if o.Wanted() {
			return nil
		}
		if o.Refused != nil {
			refused = append(refused, o.Refused.Reason)
			if code == "" || o.Refused.Code == session.RefusedLoop {
				code = o.Refused.Code
			}
		}
		for _, t := range o.Tables {
			offered[t] = true
		}
	}
	switch {
	case len(offers) == 0:
		return &engine.SourceError{Reason: engine.ReasonConnecting, Err: fmt.Errorf("upstream node %s %w", m.Peer(), errNoLogs)}
	case code == session.RefusedLoop:
		return &engine.SourceError{Reason: engine.ReasonLoopDetected, Permanent: true, Err: fmt.Errorf("reading from node %s would close a loop: %s", m.Peer(), strings.Join(refused, "; "))}
	case code != "":
		return &engine.SourceError{Reason: engine.ReasonDisconnected, Err: fmt.Errorf("nothing can be read from node %s: %s", m.Peer(), strings.Join(refused, "; "))}
	}
	var missing []string
	for _, t := range tables {
		if !offered[t] {
			missing = append(missing, t.String())
		}
	}
	return &engine.SourceError{Reason: engine.ReasonTableNotFound, Permanent: true, Err: fmt.Errorf(
		"node %s serves none of the tables %s: name tables that it has, or none for all", m.Peer(), strings.Join(missing, ", "))}
}

// refusals says which logs are not read from a peer that is of use otherwise.
func refusals(m *session.Reader) error {
	var text []string
	for _, o := range m.Offers() {
		if o.Refused != nil {
			text = append(text, o.Refused.Reason)
		}
	}
	if len(text) == 0 {
		return nil
	}
	return errors.New(strings.Join(text, "; "))
}

// lacking says which logs are not read from a peer, or are held; mu is held.
func (r *Reader) lacking(m *session.Reader) error {
	switch refused, held := refusals(m), r.held(); {
	case refused == nil:
		return held
	case held == nil:
		return refused
	default:
		return fmt.Errorf("%w; %w", held, refused)
	}
}

// retryAfter returns how long a peer has asked to be left alone; 0 if it has not.
func retryAfter(err error) time.Duration {
	var e *session.Error
	if errors.As(err, &e) && e.Remote {
		return e.RetryAfter
	}
	return 0
}

// move makes address the upstream: the new link stands before the old one goes.
func (r *Reader) move(ctx context.Context, address string) {
	l, err := r.try(ctx, address)
	r.mu.Lock()
	now := r.cfg.Now()
	spare := false
	if err == nil && len(r.selector.all) > 1 && !r.spared[address] {
		// another upstream may be able to go on without: look there first
		if err = r.costsSnapshot(l.machine); err != nil {
			spare, r.spared[address] = true, true
			defer l.close()
		}
	}
	if err != nil {
		var atMost time.Duration
		switch {
		case errors.Is(err, errNoLogs):
			atMost = 2 * time.Second
		case spare:
			atMost = 500 * time.Millisecond
		}
		r.note(address, err)
		r.selector.failed(now, address, atMost, retryAfter(err))
		if r.link == nil {
			var se *engine.SourceError
			if errors.As(r.why(), &se) {
				r.tell(se.Reason, se)
			}
		}
		r.bump()
		r.mu.Unlock()
		return
	}
	old := r.link
	if old != nil {
		r.left = old.instance
		old.perform(old.machine.End())
	}
	r.link = l
	r.intake.Use(l.machine)
	clear(r.spared)
	r.note(address, nil)
	r.served[address] = true
	r.selector.connected(now, address)
	if r.active {
		r.activate(l)
	}
	r.cfg.Logger.Info("reading from upstream", "peer", l.machine.Peer(), "address", l.instance)
	r.tell(engine.ReasonStreaming, r.lacking(l.machine))
	r.bump()
	r.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// share says which logs come over a link, and shares the buffer out between
// them; mu is held.
func (r *Reader) share(l *link) {
	var origins []string
	for _, o := range l.machine.Offers() {
		if o.Wanted() {
			origins = append(origins, o.Log.Origin)
		}
	}
	r.shares = len(origins)
	r.cfg.Edges.set(&r.core, l.machine.Peer(), origins)
	l.perform(l.machine.SetWindow(r.window()))
}

// activate starts reading over a link; mu is held.
func (r *Reader) activate(l *link) {
	r.share(l)
	l.perform(l.machine.Activate(r.cfg.Now()))
	r.intake.TellAcks(l.machine)
}

// disconnect ends the link, and the appliers with it.
func (r *Reader) disconnect() {
	r.mu.Lock()
	l := r.link
	r.link = nil
	r.mu.Unlock()
	if l != nil {
		l.close()
	}
	r.mu.Lock()
	r.wakeAll()
	r.mu.Unlock()
}
