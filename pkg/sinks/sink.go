package sinks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// OnReject says what becomes of an entry that the target rejects.
type OnReject string

// The policies.
const (
	// Hold keeps the log where it is, with the entry named, and tries again.
	Hold OnReject = "Hold"
	// DeadLetter puts the entry aside, where it can be listed and replayed, and
	// goes on.
	DeadLetter OnReject = "DeadLetter"
)

// Config describes a sink. Name, Host, Store and Target are required.
type Config struct {
	Name   string
	Host   engine.Host
	Store  engine.Store // of the host: keeps dead letters
	Target Target
	// Tables to deliver; all when empty.
	Tables []engine.TableName
	// Variant tells apart places in the target, such as the schema that tables go
	// to: another one is baselined anew.
	Variant  string
	OnReject OnReject // Hold when empty
	// MaxDeadLetters is how many are kept; at the bound the sink holds.
	// DefaultMaxDeadLetters when 0.
	MaxDeadLetters int
	// BatchBytes is about how much of a log is delivered in one go;
	// DefaultBatchBytes when 0.
	BatchBytes int
	Logger     *slog.Logger     // nil: slog.Default()
	Now        func() time.Time // nil: time.Now
}

// The defaults of Config.
const (
	DefaultMaxDeadLetters = 1000
	DefaultBatchBytes     = 1 << 20
)

// Sink delivers a node's logs to a target.
type Sink struct {
	cfg      Config
	host     engine.Host
	store    engine.Store
	target   Target
	log      *slog.Logger
	now      func() time.Time
	scope    engine.Scope
	only     map[engine.TableName]bool // nil: all
	letters  *letters
	commands chan command

	// Of the loop.
	cursors engine.Cursors         // as the target has them
	flows   map[engine.LogID]*flow // of what is served
	unknown map[string]time.Time   // origins that the target knows and the node does not serve, since when
	touched time.Time              // when the node was last told how far the sink is
	failing bool                   // the last life ended in an error, and nothing has been delivered since

	mu sync.Mutex
	st Status
}

// flow is what the loop knows of one log beside its cursor.
type flow struct {
	careful engine.Position // up to here it goes transaction by transaction
	trying  engine.Position // end of the batch that was tried last and did not get through
	whole   engine.Time     // engine.Advert.Whole at the last baseline
	held    *Rejection
	stale   error     // why the log cannot be taken
	lost    string    // why the target has to have a baseline
	ahead   bool      // the target has more than the node
	since   time.Time // of held
	next    time.Time // of the next try
	delay   time.Duration
}

// bounds of waiting.
const (
	retryFirst  = 250 * time.Millisecond
	retryMax    = 30 * time.Second
	holdFirst   = time.Second
	holdMax     = time.Minute
	laterMax    = 10 * time.Minute
	touchEvery  = 30 * time.Second
	settleAfter = 10 * time.Second
)

// New returns a sink. Run it.
func New(c Config) (*Sink, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.OnReject == "" {
		c.OnReject = Hold
	}
	if c.OnReject != Hold && c.OnReject != DeadLetter {
		return nil, fmt.Errorf("sink %s: onReject is %q: use %s or %s", c.Name, c.OnReject, Hold, DeadLetter)
	}
	if c.MaxDeadLetters == 0 {
		c.MaxDeadLetters = DefaultMaxDeadLetters
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = DefaultBatchBytes
	}
	s := &Sink{
		cfg: c, host: c.Host, store: c.Store, target: c.Target, log: c.Logger.With("sink", c.Name), now: c.Now,
		scope: scopeOf(c.Tables, c.Variant), commands: make(chan command),
		flows: map[engine.LogID]*flow{}, unknown: map[string]time.Time{},
	}
	if len(c.Tables) > 0 {
		s.only = map[engine.TableName]bool{}
		for _, t := range c.Tables {
			s.only[t] = true
		}
	}
	var err error
	if s.letters, err = loadLetters(c.Store, c.Name); err != nil {
		return nil, fmt.Errorf("sink %s: %w", c.Name, err)
	}
	s.st = Status{Name: c.Name, State: StateConnecting, Since: c.Now()}
	return s, nil
}

// scopeOf names what the sink's cursors cover. What was delivered of fewer
// tables, or to another place, proves nothing about more.
func scopeOf(tables []engine.TableName, variant string) engine.Scope {
	if len(tables) == 0 && variant == "" {
		return ""
	}
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = fmt.Sprintf("%q.%q", t.Schema, t.Name)
	}
	slices.Sort(names)
	return engine.Scope(strings.TrimSuffix(strings.Join(names, ",")+";"+variant, ";"))
}

func (s *Sink) takes(t engine.TableName) bool { return s.only == nil || s.only[t] }

// Name returns the sink's name.
func (s *Sink) Name() string { return s.cfg.Name }

// reader is the name that the sink registers under as a reader of the node.
func (s *Sink) reader() string { return "sink/" + s.cfg.Name }

// Run delivers until ctx ends. It returns nothing else: what fails is tried
// again.
func (s *Sink) Run(ctx context.Context) error {
	delay := retryFirst
	for {
		began := s.now()
		err := s.session(ctx)
		s.target.Close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.now().Sub(began) > 2*retryMax {
			delay = retryFirst
		}
		wait := jitter(delay)
		var later *Later
		if errors.As(err, &later) {
			wait = max(wait, min(later.After, laterMax))
		}
		var rej *Rejection
		switch {
		case errors.Is(err, ErrFenced):
			wait = jitter(retryFirst)
		case errors.As(err, &rej): // the target as a whole is not as it should be
			s.report(StateHeld, err)
			s.count(func(st *Status) { st.Rejected++ })
		default:
			s.failing = true
			s.report(StateRetrying, err)
			s.count(func(st *Status) { st.Errors++ })
		}
		s.log.Warn("sink ended, trying again", "error", err, "in", wait)
		if !s.rest(ctx, wait, err) {
			return ctx.Err()
		}
		delay = min(delay*2, retryMax)
	}
}

// session is one life of the target: Open, and then all there is to deliver.
func (s *Sink) session(ctx context.Context) error {
	cursors, err := s.target.Open(ctx)
	if err != nil {
		return err
	}
	s.cursors = engine.Cursors{}
	for k, c := range cursors {
		if k.Scope == s.scope {
			s.cursors[k] = c
		}
	}
	s.touch()
	if !s.failing {
		s.report(StateWaiting, nil)
	}
	for {
		changed := s.host.Changed()
		worked, wake, err := s.step(ctx)
		if err != nil {
			return err
		}
		if worked {
			select {
			case c := <-s.commands:
				if err := s.do(ctx, c); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			default:
			}
			continue
		}
		timer := time.NewTimer(wake)
		select {
		case <-changed:
		case <-timer.C:
		case c := <-s.commands:
			err = s.do(ctx, c)
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		if err != nil {
			return err
		}
		s.touchNowAndThen()
	}
}

// step does what there is to do at this moment: a baseline, or a batch of each
// log. wake is when to look again if nothing changes.
func (s *Sink) step(ctx context.Context) (worked bool, wake time.Duration, err error) {
	adverts := s.served() // before the view: so each is in it, unless it has gone since
	v := s.host.View()
	defer v.Close()
	s.look(v, adverts)
	wake = touchEvery
	if len(adverts) == 0 {
		s.failing = false
		s.report(StateWaiting, nil)
		return false, wake, nil
	}
	plan, blocked, wait := s.plan(v, adverts)
	if plan != nil {
		return s.baseline(ctx, v, plan)
	}
	wake = min(wake, wait)
	for _, a := range adverts {
		if blocked[a.Log] {
			continue
		}
		f := s.flow(a.Log)
		if f.held == nil || !s.now().Before(f.next) {
			did, err := s.advance(ctx, v, a, adverts, f)
			if err != nil {
				return worked, wake, err
			}
			worked = worked || did
		}
		if f.held != nil {
			wake = min(wake, f.next.Sub(s.now()))
		}
	}
	s.failing = s.failing && worked // there was nothing to deliver: all is well again
	s.look(v, adverts)
	return worked, wake, nil
}

// served returns the logs that carry a table of the sink's.
func (s *Sink) served() []engine.Advert {
	return slices.DeleteFunc(s.host.Adverts(), func(a engine.Advert) bool {
		return s.only != nil && !slices.ContainsFunc(a.Tables, s.takes)
	})
}

func (s *Sink) flow(log engine.LogID) *flow {
	f := s.flows[log]
	if f == nil {
		f = &flow{}
		s.flows[log] = f
	}
	return f
}

func (s *Sink) key(log engine.LogID) engine.CursorKey {
	return engine.CursorKey{Log: log, Scope: s.scope}
}

// advance delivers the next batch of a log.
func (s *Sink) advance(ctx context.Context, v engine.View, a engine.Advert, adverts []engine.Advert, f *flow) (worked bool, err error) {
	b, err := s.next(v, a, adverts, f)
	if err != nil || b == nil {
		return false, err
	}
	f.trying = b.To.Position
	if err = s.target.Apply(ctx, b); err == nil {
		f.trying = ""
		return true, s.delivered(ctx, b, f)
	}
	var rej *Rejection
	var lost *Lost
	switch {
	case ctx.Err() != nil:
		return false, err
	case errors.As(err, &lost):
		f.lost = lost.Why
		return true, nil
	case !errors.As(err, &rej):
		return false, err
	}
	if !b.Careful { // find out which entry it is
		f.careful = b.To.Position
		return true, nil
	}
	s.hold(f, rej)
	return false, nil
}

// next returns what follows a log's cursor, or nil.
func (s *Sink) next(v engine.View, a engine.Advert, adverts []engine.Advert, f *flow) (*Batch, error) {
	from := s.cursors[s.key(a.Log)]
	blocks, err := v.ReadLog(a.Log, from.Position, s.cfg.BatchBytes)
	if errors.Is(err, engine.ErrGap) {
		return s.delta(v, a, adverts, from, f.careful != "")
	}
	if err != nil || len(blocks) == 0 {
		return nil, err
	}
	b := &Batch{From: from, sink: s, view: v, shared: shared(a, adverts)}
	if f.trying != "" && f.careful == "" {
		blocks = s.upTo(a.Log, blocks, f.trying)
	}
	if f.careful != "" {
		b.Careful = true
		blocks = blocks[:1]
		if one := blocks[0].Split(a.Log); len(one) > 1 {
			blocks = one[:1]
		}
	} else if i := slices.IndexFunc(blocks, func(b *engine.Block) bool { return !b.Last }); i == 0 {
		blocks = upToLast(blocks)
	} else if i > 0 {
		blocks = blocks[:i] // what comes in parts goes alone
	}
	b.blocks, b.Large = blocks, !blocks[0].Last
	last := blocks[len(blocks)-1]
	b.To = engine.Cursor{CursorKey: from.CursorKey, Position: last.Position, Time: max(from.Time, last.Time)}
	return b, nil
}

// upTo cuts blocks after a position, so that a batch that is tried again is the
// same one. Where that is not the end of one of their transactions, they stay as
// they are.
func (s *Sink) upTo(log engine.LogID, blocks []*engine.Block, end engine.Position) []*engine.Block {
	compare := s.host.Comparator(log)
	for i, b := range blocks {
		if compare(b.Position, end) < 0 {
			continue
		}
		if b.Position == end {
			for i+1 < len(blocks) && blocks[i+1].Position == end { // its parts
				i++
			}
			return blocks[:i+1]
		}
		one := b.Split(log)
		n := slices.IndexFunc(one, func(b *engine.Block) bool { return b.Position == end })
		if n < 0 {
			break // the target has passed it
		}
		return append(slices.Clone(blocks[:i]), one[:n+1]...)
	}
	return blocks
}

// shared returns the tables of a log that other logs write too.
func shared(a engine.Advert, adverts []engine.Advert) map[engine.TableName]bool {
	out := map[engine.TableName]bool{}
	for _, o := range adverts {
		if o.Log == a.Log {
			continue
		}
		for _, t := range o.Tables {
			if slices.Contains(a.Tables, t) {
				out[t] = true
			}
		}
	}
	return out
}

// delivered takes note of a batch that the target has.
func (s *Sink) delivered(ctx context.Context, b *Batch, f *flow) error {
	s.failing = false
	s.cursors[b.To.CursorKey] = b.To
	if f.careful != "" && s.host.Comparator(b.To.Log)(b.To.Position, f.careful) >= 0 {
		f.careful = ""
	}
	if f.held != nil {
		s.log.Info("sink goes on", "log", b.To.Log.String(), "held", f.held.Error())
		f.held, f.delay = nil, 0
	}
	s.host.Acked(s.reader(), b.To.CursorKey, b.To.Position, true)
	s.count(func(st *Status) {
		st.Changes += int64(b.passed)
		st.Batches++
	})
	return s.settle(ctx, b.gone)
}

// hold keeps a log where it is, for now.
func (s *Sink) hold(f *flow, rej *Rejection) {
	now := s.now()
	if f.held == nil {
		f.since = now
		s.log.Warn("the target rejects an entry; the log holds", "error", rej)
		s.count(func(st *Status) { st.Rejected++ })
	}
	f.delay = min(max(2*f.delay, holdFirst), holdMax)
	f.held, f.next = rej, now.Add(jitter(f.delay))
}

// reject decides on an entry that the target does not take.
func (s *Sink) reject(ctx context.Context, e *Entry, why error, own bool) error {
	held := &Rejection{Entry: e.Rejected(), Err: why}
	if s.cfg.OnReject != DeadLetter || !own || e.Op == engine.OpTruncate {
		return held
	}
	if err := s.letters.put(ctx, e, why, s.now(), s.cfg.MaxDeadLetters); err != nil {
		if errors.Is(err, errFull) {
			held.Err = fmt.Errorf("%w (it was not put aside: %w)", why, err)
			return held
		}
		return err
	}
	s.count(func(st *Status) { st.Rejected++ })
	s.log.Warn("the target rejects an entry; it is put aside", "entry", held.Entry.String(), "error", why)
	return nil
}

// settle forgets dead letters that later entries have made moot.
func (s *Sink) settle(ctx context.Context, gone map[letterKey]bool) error {
	if len(gone) == 0 {
		return nil
	}
	return s.letters.drop(ctx, gone)
}

// touch tells the node how far the sink is.
func (s *Sink) touch() {
	s.touched = s.now()
	for k, c := range s.cursors {
		s.host.Acked(s.reader(), k, c.Position, true)
	}
}

func (s *Sink) touchNowAndThen() {
	if s.now().Sub(s.touched) >= touchEvery {
		s.touch()
	}
}

// rest waits before the next life of the target. It answers commands meanwhile,
// and is false when ctx has ended.
func (s *Sink) rest(ctx context.Context, wait time.Duration, why error) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		s.touchNowAndThen()
		select {
		case <-timer.C:
			return true
		case c := <-s.commands:
			c.answer(fmt.Errorf("the sink is not connected to its target: %w", why))
		case <-ctx.Done():
			return false
		}
	}
}
