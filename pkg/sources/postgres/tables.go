package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// tables knows what the state holds of each table, and keeps from it what it
// cannot take: the changes of a table that has to be baselined again, alone,
// while the others go on.
//
// A table is live, or a baseline of it is wanted. What happens to a table that
// is not live is dropped until a job begins to baseline it, since the job's
// snapshot is later and has it. From then on it is kept in the job's backlog.
// What the snapshot has of the backlog is skipped, the rest is given to the
// baseline, and with the transaction that names the baseline the table is live.
type tables struct {
	s    *Source
	wake chan struct{} // a baseline is wanted, or has been handed over
	// hurry is set while a job waits for a transaction to be named in: then the
	// position of an idle stream does as well.
	hurry atomic.Bool
	// generation grows when tables are added.
	generation atomic.Uint64

	mu       sync.Mutex
	state    map[engine.TableName]*tableState
	filled   map[*engine.Schema]map[int16]bool // columns that older rows may have values in
	withheld map[*engine.Schema]bool           // that the engine has not been told of
	job      *job                              // under way; nil if none
	taken    *job                              // handed over, and not committed yet
	position engine.LSN                        // of the newest transaction seen
	removed  []*engine.Schema                  // of tables whose rows are to go
	unsaved  bool                              // something of state has changed since it was saved
	audited  time.Time
	reported string // problems as they were last reported
}

type tableState struct {
	name engine.TableName
	// schema is what the newest change or the baseline was of; nil if the state
	// does not hold the table.
	schema    *engine.Schema
	evidence  evidence
	evidenced int    // truncates that evidence is from after
	why       string // a baseline is wanted; "" if the table is live
	after     time.Time
	pause     time.Duration // until it is tried again
	failed    error         // what keeps it from being baselined, or from being there at all
	job       *job

	truncates int // seen in the stream
	suspect   *suspicion
}

func newTables(s *Source) *tables {
	return &tables{s: s, wake: make(chan struct{}, 1), state: map[engine.TableName]*tableState{},
		filled: map[*engine.Schema]map[int16]bool{}, withheld: map[*engine.Schema]bool{}}
}

// reset takes in a baseline of all tables.
func (t *tables) reset(all []*table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.state)
	clear(t.withheld)
	t.unsaved = false // it came with what memoryOf gave
	for _, tb := range all {
		t.state[tb.schema.Table] = &tableState{name: tb.schema.Table, schema: tb.schema, evidence: tb.evidence}
	}
}

// of returns the state of a table that is configured, or nil. Callers hold t.mu.
func (t *tables) of(name engine.TableName) *tableState { return t.state[name] }

// ours reports whether a table is configured.
func (t *tables) ours(name engine.TableName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(name) != nil
}

// begin prepares for a stream: what the state does not hold is wanted. Of those that
// are held it is said at once what is wrong.
func (t *tables) begin(names []engine.TableName, held map[engine.TableName]error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.withheld)
	clear(t.filled)
	if t.audited = time.Now(); len(held) > 0 {
		t.audited = time.Time{}
	}
	for _, name := range names {
		if t.state[name] == nil {
			t.state[name] = &tableState{name: name}
		}
		st := t.state[name]
		if st.job, st.after = nil, (time.Time{}); st.schema == nil {
			t.want(st, "the state does not hold it yet")
		}
	}
}

// want asks for a baseline of a table alone. Callers hold t.mu.
func (t *tables) want(st *tableState, why string) {
	if st.why != "" {
		return
	}
	st.why, st.suspect, t.unsaved = why, nil, true
	t.s.env.Logger.Info("table has to be baselined", "table", st.name.String(), "reason", why)
	signal(t.wake)
}

// demand is want for a table by name.
func (t *tables) demand(name engine.TableName, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if st := t.of(name); st != nil {
		t.want(st, why)
	}
}

// missed takes note of tables of which a transaction had changes that could not be
// read. A baseline that is under way has them only if its snapshot is later.
func (t *tables) missed(names map[engine.TableName]bool, end engine.LSN) {
	const why = "there were changes of it in a shape that could not be told"
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range names {
		st := t.of(name)
		switch {
		case st == nil:
		case st.job == nil:
			t.want(st, why)
		case st.job.at == 0:
			st.job.missed = max(st.job.missed, end)
		case end > st.job.at:
			st.job.spoil(why)
		}
	}
}

// shaped notes which columns of a schema older rows may have values in.
func (t *tables) shaped(s *engine.Schema, filled map[int16]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.filled[s] == nil {
		t.filled[s] = filled
	}
}

// router is the engine's sink with what tables does before it.
type router struct {
	engine.Sink
	t *tables
}

// Apply applies what is left of transactions.
func (r router) Apply(ctx context.Context, txs []engine.Transaction) error {
	if err := r.remove(ctx, &txs[0]); err != nil {
		return err
	}
	r.t.mu.Lock()
	for i := range txs {
		r.t.route(&txs[i])
	}
	var err error
	if r.t.unsaved {
		txs[len(txs)-1].Memory, err = r.t.save()
	}
	r.t.mu.Unlock()
	if err == nil {
		err = r.Sink.Apply(ctx, txs)
	}
	r.t.applied(err)
	return err
}

// Progress advances the cursor, or hands over a baseline that waits for nothing
// else.
func (r router) Progress(ctx context.Context, key engine.CursorKey, prev, through engine.Position, at engine.Time) error {
	lsn, err := engine.ParseLSN(through)
	if err != nil {
		return err
	}
	t := r.t
	t.mu.Lock()
	t.position = max(t.position, lsn)
	ready := t.job != nil && t.job.ready && lsn >= t.job.at || len(t.removed) > 0
	t.mu.Unlock()
	if !ready {
		return r.Sink.Progress(ctx, key, prev, through, at)
	}
	return r.Apply(ctx, []engine.Transaction{{Position: through, Major: uint64(lsn)}})
}

// route takes out of a transaction what the engine is not to have, and names the
// baselines that are ready. Callers hold t.mu.
func (t *tables) route(tx *engine.Transaction) {
	lsn, schemas := engine.LSN(tx.Major), tx.Schemas
	t.position = max(t.position, lsn)
	if len(schemas) > 0 {
		var kept []*engine.Schema
		for _, s := range schemas {
			if st := t.of(s.Table); st != nil && st.why == "" && (st.schema == s || incompatible(st.schema, s, t.filled[s], st.evidence.columns) == "") {
				kept = append(kept, s)
			} else {
				t.withheld[s] = true
			}
		}
		tx.Schemas = kept
	}
	if j := t.job; j != nil && j.ready && lsn >= j.at {
		t.handOver(j, tx, schemas)
	}
	tx.Changes = t.filter(tx, tx.Changes)
	if more := tx.More; more != nil {
		// The schemas of all runs come with the first.
		t.mu.Unlock()
		tx.More = func() ([]engine.Change, error) {
			for {
				changes, err := more()
				if err != nil || len(changes) == 0 {
					return nil, err
				}
				t.mu.Lock()
				changes = t.filter(tx, changes)
				t.mu.Unlock()
				if len(changes) > 0 {
					return changes, nil
				}
			}
		}
		t.mu.Lock()
	}
}

// filter returns the changes that the engine is to have. Callers hold t.mu.
func (t *tables) filter(tx *engine.Transaction, changes []engine.Change) []engine.Change {
	var last *engine.Schema
	live, n := false, 0
	for i := range changes {
		c := &changes[i]
		if c.Schema != last {
			last = c.Schema
			live = t.live(tx, c.Schema)
		}
		if c.Op == engine.OpTruncate {
			if st := t.of(c.Schema.Table); st != nil {
				st.truncates++
				t.unsaved = true
			}
		}
		if !live {
			t.divert(c)
			continue
		}
		if n != i {
			changes[n] = *c
		}
		n++
	}
	return changes[:n]
}

// live reports whether the engine takes changes of a schema. Callers hold t.mu.
func (t *tables) live(tx *engine.Transaction, s *engine.Schema) bool {
	st := t.of(s.Table)
	if st == nil {
		return false
	}
	if st.why == "" && st.schema != s {
		if why := incompatible(st.schema, s, t.filled[s], st.evidence.columns); why != "" {
			t.want(st, why)
		} else {
			st.schema, t.unsaved = s, true
		}
	}
	if st.why != "" {
		return false
	}
	if t.withheld[s] {
		delete(t.withheld, s)
		tx.Schemas = append(tx.Schemas, s)
	}
	return true
}

// divert keeps a change for the table's job, or drops it: also what it has kept
// before, when the session was lost before the engine had its transaction. Callers
// hold t.mu.
func (t *tables) divert(c *engine.Change) {
	st := t.of(c.Schema.Table)
	if st == nil || st.job == nil {
		return
	}
	j, lsn := st.job, engine.LSN(c.Stamp.Version.Major)
	if c.Stamp.Version.Compare(j.kept) <= 0 {
		return
	}
	j.kept = c.Stamp.Version
	if c.Op == engine.OpTruncate && (j.at == 0 || lsn <= j.at) {
		j.truncates[st.name] = st.truncates
	}
	if j.at != 0 {
		if lsn <= j.at {
			return // the snapshot has it
		}
		if is := j.schemas[st.name]; is != c.Schema {
			if why := incompatible(is, c.Schema, t.filled[c.Schema], j.evidence[st.name].columns); why != "" {
				j.spoil(why)
				return
			}
			j.schemas[st.name] = c.Schema
		}
	}
	if err := j.backlog.add(lsn, c); err != nil {
		j.spoil(err.Error())
	}
}

// handOver names a job's baseline in a transaction, which came with these schemas.
// Callers hold t.mu.
func (t *tables) handOver(j *job, tx *engine.Transaction, schemas []*engine.Schema) {
	t.job = nil
	if err := j.backlog.replay(j.at, j.w); err != nil {
		j.spoil(err.Error())
		return
	}
	for _, name := range j.names {
		st := t.of(name)
		if st == nil {
			continue
		}
		j.before[name] = st.schema
		t.unsaved = true
		st.schema, st.evidence, st.evidenced, st.why, st.job = j.schemas[name], j.evidence[name], j.truncates[name], "", nil
	}
	// What was used before the snapshot may have a higher ID than the snapshot's.
	for _, s := range schemas {
		if t.withheld[s] && slices.Contains(j.names, s.Table) {
			tx.Schemas = append(tx.Schemas, s)
			delete(t.withheld, s)
		}
	}
	tx.Tables = append(tx.Tables, j.w)
	t.taken = j
}

// applied takes note of how the engine has taken the last transactions.
func (t *tables) applied(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unsaved = t.unsaved || err != nil
	j := t.taken
	if t.taken = nil; j == nil {
		return
	}
	j.w = nil // spent
	if err != nil {
		for _, name := range j.names {
			if st := t.of(name); st != nil {
				st.schema, st.why = j.before[name], j.why[name]
			}
		}
		j.spoil(err.Error())
		return
	}
	close(j.done)
}

// wanted returns the tables of which a baseline is due, and when the next one
// will be. Callers hold t.mu.
func (t *tables) wanted(now time.Time) (names []engine.TableName, next time.Time) {
	for _, st := range t.state {
		switch {
		case st.why == "":
		case st.after.After(now):
			if next.IsZero() || st.after.Before(next) {
				next = st.after
			}
		default:
			names = append(names, st.name)
		}
	}
	slices.SortFunc(names, engine.TableName.Compare)
	return names, next
}

// fail notes why a table could not be baselined. Callers hold t.mu.
func (t *tables) fail(st *tableState, err error) {
	st.pause = min(max(2*st.pause, t.s.cfg.retry/8), 4*t.s.cfg.retry)
	st.after = time.Now().Add(st.pause)
	st.failed = err
}

// report tells of the tables that something keeps from being replicated, while
// the others go on.
func (t *tables) report() {
	t.mu.Lock()
	var problems []*Problem
	for _, st := range t.state {
		var p *Problem
		if errors.As(st.failed, &p) && p.Reason != ServerUnreachable {
			problems = append(problems, p)
		}
	}
	slices.SortFunc(problems, func(a, b *Problem) int { return cmp.Compare(a.Error(), b.Error()) })
	text := ""
	if len(problems) > 0 {
		text = fmt.Sprint(problems)
	}
	changed := text != t.reported
	t.reported = text
	t.mu.Unlock()
	switch {
	case len(problems) > 0:
		err := sourceError(t.s.server(), problems...)
		t.s.env.Report(err.(*engine.SourceError).Reason, err)
	case changed:
		t.s.env.Report(engine.ReasonStreaming, nil)
	}
}
