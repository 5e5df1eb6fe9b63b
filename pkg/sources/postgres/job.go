package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// job is a baseline of some tables while the stream of the others goes on.
type job struct {
	names   []engine.TableName
	why     map[engine.TableName]string
	backlog *backlog
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed once it is committed

	// Under tables.mu:
	at        engine.LSN     // of the snapshot; 0 until it is there
	missed    engine.LSN     // end of the newest transaction with changes that are lost to the backlog
	kept      engine.Version // of the newest change that the backlog has had
	schemas   map[engine.TableName]*engine.Schema
	evidence  map[engine.TableName]evidence
	truncates map[engine.TableName]int            // up to the snapshot
	before    map[engine.TableName]*engine.Schema // it was handed over
	spec      engine.BaselineSpec
	w         engine.BaselineWriter // nil before it is there, and once it is spent
	ready     bool                  // to be named in the next transaction
}

// errSpoiled ends a job that has to begin again.
var errSpoiled = errors.New("it has to begin again")

func (j *job) spoil(why string) { j.cancel(fmt.Errorf("%w: %s", errSpoiled, why)) }

// run baselines tables alone, and looks after all of them, until ctx ends.
func (t *tables) run(ctx context.Context, sink engine.Sink) {
	a := auditor{t: t}
	defer a.close()
	for ctx.Err() == nil {
		if now := time.Now(); now.Sub(t.audited) >= t.s.cfg.audit {
			t.audited = now
			if err := a.audit(ctx); err != nil && ctx.Err() == nil {
				t.s.env.Logger.Info("the tables could not be looked at", "server", t.s.server(), "error", err)
			}
			t.report()
		}
		t.mu.Lock()
		names, next := t.wanted(time.Now())
		t.mu.Unlock()
		if len(names) > 0 {
			if err := t.baseline(ctx, sink, names); err != nil && ctx.Err() == nil {
				t.s.env.Logger.Warn("tables could not be baselined, trying again", "server", t.s.server(), "tables", len(names), "error", err)
			}
			t.report()
			continue
		}
		wait := time.Until(t.audited.Add(t.s.cfg.audit))
		if !next.IsZero() {
			wait = min(wait, time.Until(next))
		}
		timer := time.NewTimer(max(wait, 0))
		select {
		case <-t.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// baseline takes one baseline of some tables, and waits until it is committed.
func (t *tables) baseline(ctx context.Context, sink engine.Sink, names []engine.TableName) error {
	names, err := t.ready(ctx, names)
	if err != nil || len(names) == 0 {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j := &job{names: names, why: map[engine.TableName]string{}, backlog: newBacklog(t.s.scratch), cancel: cancel, done: make(chan struct{}),
		schemas: map[engine.TableName]*engine.Schema{}, evidence: map[engine.TableName]evidence{}, truncates: map[engine.TableName]int{}, before: map[engine.TableName]*engine.Schema{}}
	defer j.backlog.close()
	t.mu.Lock()
	t.job = j // before the slot: what comes from now on may be later than the snapshot
	for _, name := range names {
		if st := t.of(name); st != nil {
			j.why[name], st.job = st.why, j
			j.truncates[name] = st.truncates
		}
	}
	t.mu.Unlock()
	for range baselineTries {
		if err = t.read(ctx, sink, j); !errors.Is(err, errRewritten) && !errors.Is(err, errLocked) {
			break
		}
		if serr := sleep(ctx, rand.N(lockWait)); serr != nil {
			break
		}
	}
	if err == nil {
		err = t.await(ctx, j)
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSpoiled) {
		err = cause
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		for _, name := range names {
			if st := t.of(name); st != nil {
				st.failed, st.pause = nil, 0
			}
		}
		return nil
	}
	if t.taken == j {
		return err // its fate is that of the transaction under way
	}
	if t.job == j {
		t.job = nil
	}
	if j.w != nil {
		j.w.Abort()
	}
	for _, name := range names {
		if st := t.of(name); st != nil && st.why != "" {
			st.job = nil
			t.fail(st, t.s.asSourceError(err))
		}
	}
	return err
}

// ready returns the tables that can be baselined now, and sees to it that the
// publication holds them.
func (t *tables) ready(ctx context.Context, names []engine.TableName) (able []engine.TableName, err error) {
	c, err := t.s.connect(ctx, false)
	if err == nil {
		defer c.close()
	}
	for _, name := range names {
		perr := err
		if err == nil {
			perr = t.s.admit(ctx, c, name)
		}
		if perr == nil {
			able = append(able, name)
			continue
		}
		t.mu.Lock()
		if st := t.of(name); st != nil {
			t.fail(st, perr)
		}
		t.mu.Unlock()
	}
	return able, err
}

// read copies a job's tables in a snapshot of its own slot.
func (t *tables) read(ctx context.Context, sink engine.Sink, j *job) error {
	s := t.s
	var readers []*conn
	defer func() {
		for _, r := range readers {
			r.close()
		}
	}()
	for range s.cfg.BaselineWorkers {
		c, err := s.connect(ctx, false)
		if err != nil {
			return err
		}
		readers = append(readers, c)
	}
	sess, err := s.openSession(ctx)
	if err != nil {
		return err
	}
	defer sess.close() // and with it the slot
	if sess.id.String() != s.id.String() {
		return fmt.Errorf("the server's history is %s, and was %s", sess.id, s.id)
	}
	snapshot, err := s.createSlotNamed(ctx, sess, s.slot[:min(len(s.slot), 56)]+"_tables")
	if err != nil {
		return err
	}
	entered, found, err := s.enter(ctx, readers, snapshot, j.names)
	if err != nil {
		return err
	}
	spec := engine.BaselineSpec{At: sess.consistent.Position(), Major: uint64(sess.consistent), Partial: true}
	t.mu.Lock()
	for _, tb := range found {
		name := tb.schema.Table
		tb.schema, _ = s.env.Schemas.Define(tb.schema)
		spec.Schemas = append(spec.Schemas, tb.schema)
		spec.Tables = append(spec.Tables, name)
		j.schemas[name], j.evidence[name] = tb.schema, tb.evidence
		if spec.Reason != "" {
			spec.Reason += "; "
		}
		spec.Reason += fmt.Sprintf("table %s: %s", name, j.why[name])
	}
	j.spec = spec
	t.mu.Unlock()
	w, err := sink.Baseline(ctx, spec)
	if err != nil {
		return err
	}
	t.mu.Lock()
	j.at, j.w = sess.consistent, w // from here on, what the snapshot has is not kept any more
	missed := j.missed
	t.mu.Unlock()
	if missed > sess.consistent {
		return fmt.Errorf("%w: there were changes in a shape that could not be told", errSpoiled)
	}
	s.env.Logger.Info("baseline of tables begins", "server", s.server(), "position", spec.At, "tables", len(found), "reason", spec.Reason)
	return s.copyTables(ctx, w, sess, entered, found)
}

// await brings the baseline up to date by the backlog, until little is left, and
// waits until it is named in a transaction.
func (t *tables) await(ctx context.Context, j *job) error {
	for {
		t.mu.Lock()
		gathered := j.backlog.take()
		if gathered == nil {
			j.ready = true
			t.mu.Unlock()
			break
		}
		t.mu.Unlock()
		err := gathered.replay(j.at, j.w)
		gathered.close()
		if err != nil {
			return err
		}
	}
	t.hurry.Store(true)
	defer t.hurry.Store(false)
	for nudge := time.Duration(0); ; nudge = 200 * time.Millisecond {
		timer := time.NewTimer(nudge)
		select {
		case <-j.done:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
			t.s.nudge()
		}
	}
}
