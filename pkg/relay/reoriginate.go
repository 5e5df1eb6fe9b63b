package relay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// Delivery is how a table's changes reach the parents.
type Delivery string

// The deliveries.
const (
	// Latest: each row once, as it is now. It is the delivery of a table for which
	// none is given.
	Latest Delivery = "Latest"
	// All: every change, in order.
	All Delivery = "All"
	// Counted: as Latest; rows are shares of counters, which a newer epoch of their
	// leaf leaves alone. See Counters.
	Counted Delivery = "Counter"
)

// The defaults of Config.
const (
	DefaultWindow             = 100 * time.Millisecond
	DefaultMaxPending         = 8 << 20
	DefaultTombstoneRetention = 24 * time.Hour
)

// Config configures a Reoriginate.
type Config struct {
	Tables map[engine.TableName]Delivery
	// Window is how long changes are gathered before they are flushed: a row that
	// changes often is sent on once per window. 0: DefaultWindow; negative: not at
	// all.
	Window time.Duration
	// MaxPending are the bytes that may wait for a flush. When they are reached it
	// comes at once, and what comes meanwhile waits at its sender. A flush that is
	// larger, such as of a baseline, goes to the engine's scratch folder. 0:
	// DefaultMaxPending.
	MaxPending int
	// TombstoneRetention is how long a tombstone is kept at most, from its arrival. 0:
	// DefaultTombstoneRetention; negative: for as long as a registered reader has yet to
	// pass it.
	TombstoneRetention time.Duration
	// KeepOlder leaves the rows of a leaf's older epochs alone when a newer one has
	// said what stands.
	KeepOlder bool
	// Conflicts are those of the engine: where several leaves may write one row, its
	// tombstones stay for the retention.
	Conflicts *engine.Conflicts
	// Now is the clock by which the retention goes; nil: time.Now.
	Now func() time.Time
}

// all reports whether of some table every change is delivered.
func (c *Config) all() bool {
	for _, d := range c.Tables {
		if d == All {
			return true
		}
	}
	return false
}

// Reoriginate serves what a node takes in in one log of the node's own. Give it to
// engine.Record, and as policy to each source whose logs it is to take in.
type Reoriginate struct {
	cfg Config

	log     engine.LogID
	scratch *spill.Dir
	place   uint64      // of the last entry that is committed
	time    engine.Time // of the last flush
	tables  []engine.TableName

	// of the commit under way
	pending flush
	moved   []engine.Cursor
	next    uint64
	nextAt  engine.Time
	nextTab []engine.TableName
	begun   time.Time
	known   known // what it knows of leaves
	collect collector
	told    bool // how tables are delivered is in the store

	mu     sync.Mutex
	floors *Floors
	stats  Stats
	gap    Gap
	roots  []string // nodes that are registered; nil: nobody has said
	doubt  bool     // the log is to be begun anew: no acknowledgement counts
	passed []passed // what readers have been sent past since the last Collect
	// of the commit under way
	renewal   *renewal
	forgotten *forgotten
}

type rowKey struct {
	table engine.TableName
	key   string
}

var _ engine.Recorder = (*Reoriginate)(nil)

// New returns a policy, or says what is wrong with the configuration.
func New(cfg Config) (*Reoriginate, error) {
	for t, d := range cfg.Tables {
		if d != Latest && d != All && d != Counted {
			return nil, fmt.Errorf("delivery of table %s: %q is not one: use %s, %s or %s", t, d, Latest, All, Counted)
		}
	}
	cfg.Window = cmp.Or(cfg.Window, DefaultWindow)
	cfg.MaxPending = cmp.Or(cfg.MaxPending, DefaultMaxPending)
	cfg.TombstoneRetention = cmp.Or(cfg.TombstoneRetention, DefaultTombstoneRetention)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Reoriginate{cfg: cfg, floors: NewFloors()}, nil
}

// Position returns the position of a place in a relay's log.
func Position(place uint64) engine.Position {
	if place == 0 {
		return ""
	}
	return engine.Position(fmt.Sprintf("%016d", place))
}

// Place returns the place that a position stands for.
func Place(p engine.Position) (uint64, error) {
	if p == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(p), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("position %q is not one of a relay's log: want a number", string(p))
	}
	return n, nil
}

// Log returns the relay's log.
func (r *Reoriginate) Log() engine.LogID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log
}

// Append does nothing: what comes in is served on by End.
func (r *Reoriginate) Append(engine.Tx, engine.LogID, engine.Comparator, []*engine.Block) error {
	return nil
}

// Window returns how long and how much is gathered.
func (r *Reoriginate) Window() (time.Duration, int) {
	return max(0, r.cfg.Window), r.cfg.MaxPending
}

// Shares reports whether a table's rows are shares of counters.
func (r *Reoriginate) Shares(t engine.TableName) bool { return r.cfg.Tables[t] == Counted }

// Retires reports whether a leaf's newer epoch ends the rows of the older ones.
func (r *Reoriginate) Retires() bool { return !r.cfg.KeepOlder }

// Open takes up the log where it was.
func (r *Reoriginate) Open(log engine.LogID, v engine.View, scratch *spill.Dir) error {
	info, ok := v.Log(log)
	if !ok {
		return fmt.Errorf("relay: %w: %s", engine.ErrUnknownLog, log)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if r.place, err = Place(info.Head); err != nil {
		return err
	}
	r.log, r.time, r.scratch, r.tables = log, info.Time, scratch, nil
	for _, t := range v.Tables() {
		r.tables = append(r.tables, t.Table)
	}
	for _, t := range slices.SortedFunc(maps.Keys(r.cfg.Tables), engine.TableName.Compare) {
		if !slices.Contains(r.tables, t) {
			r.tables = append(r.tables, t)
		}
	}
	if err := r.known.restore(v); err != nil {
		return err
	}
	r.passed = []passed{{0, r.place}}
	if r.collect.complete, err = complete(v); err != nil {
		return err
	}
	if r.gap, err = lastGap(v); err != nil {
		return err
	}
	return r.floors.restore(v, log)
}

// Tables returns the tables of the log: those that are configured are among them before
// they have a row.
func (r *Reoriginate) Tables() []engine.TableName { return r.tables }

// Begin starts a commit.
func (r *Reoriginate) Begin(engine.Tx) {
	r.giveUp()
	r.pending.reset(r.scratch, r.cfg.MaxPending)
	r.known.begin()
	r.moved = r.moved[:0]
	r.next, r.nextAt, r.nextTab, r.begun = r.place, r.time, r.tables, r.cfg.Now()
}

// Record notes a write that has become part of the state.
func (r *Reoriginate) Record(rec *engine.Record, fresh bool) {
	c := engine.Change{Op: engine.OpPut, Schema: rec.Schema, Key: rec.Key, Row: rec.Row, Stamp: rec.Stamp}
	if rec.Deleted {
		c.Op, c.Row = engine.OpDelete, nil
	}
	r.note(entry{change: c, fresh: fresh}, r.cfg.Tables[rec.Schema.Table] != All)
}

// Truncated notes a truncate.
func (r *Reoriginate) Truncated(s *engine.Schema, at engine.Stamp) {
	r.note(entry{change: engine.Change{Op: engine.OpTruncate, Schema: s, Stamp: at}}, false)
}

func (r *Reoriginate) note(e entry, once bool) {
	c := &e.change
	r.nextAt = max(r.nextAt, c.Stamp.Time)
	if n := len(r.nextTab); n == 0 || r.nextTab[n-1] != c.Schema.Table {
		if !slices.Contains(r.nextTab, c.Schema.Table) {
			r.nextTab = append(slices.Clip(r.nextTab), c.Schema.Table)
		}
	}
	r.pending.change(e, once)
}

// Judge says what is known of a write that comes.
func (r *Reoriginate) Judge(s engine.Stamp, t engine.TableName) engine.Verdict {
	v := r.known.judge(s)
	v.Dead = v.Dead && !r.Shares(t)
	return v
}

// Covering notes which writes the covers that follow are about.
func (r *Reoriginate) Covering(marks []engine.Mark) bool {
	if !r.known.covering(marks, r.next+uint64(r.pending.len())+1) {
		return false
	}
	r.pending.note(&engine.Note{Marks: marks})
	return true
}

// Cover notes a cover.
func (r *Reoriginate) Cover(c *engine.Cover) {
	r.known.covered(c.Table)
	r.pending.note(&engine.Note{Cover: c})
}

// Gap notes that changes are missing.
func (r *Reoriginate) Gap(why string) {
	r.pending.gap = why
	r.pending.note(&engine.Note{Gap: why})
}

// Moved notes a cursor.
func (r *Reoriginate) Moved(c engine.Cursor) {
	r.moved = append(r.moved, c)
	r.known.moved()
}

// End makes what was noted one transaction of the log, and records how far the
// children have been read with it.
func (r *Reoriginate) End(tx engine.Tx) ([]engine.TableName, error) {
	if n := r.pending.len(); n > 0 {
		r.next = r.place + uint64(n)
		t := engine.Transaction{
			Log: r.log, Prev: Position(r.place), Position: Position(r.next), Time: r.nextAt, Major: r.next,
		}
		if err := r.pending.write(tx, &t, r.place, r.cfg.Tables); err != nil {
			return nil, err
		}
		if why := r.pending.gap; why != "" {
			if err := saveGap(tx, Gap{r.next, engine.TimeOf(r.begun), why}); err != nil {
				return nil, err
			}
		}
	}
	if err := r.known.save(tx); err != nil {
		return nil, err
	}
	if !r.told {
		if err := saveDeliveries(tx, r.cfg.Tables); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.renewal != nil {
		return r.nextTab, nil
	}
	return r.nextTab, r.floors.save(tx, r.log, r.next, engine.TimeOf(r.begun), r.moved)
}

// Committed takes over what End has made.
func (r *Reoriginate) Committed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.moved) > 0 && r.renewal == nil {
		r.floors.flushed(r.next, engine.TimeOf(r.begun), r.moved)
	}
	if r.next > r.place {
		r.stats.Flushes++
		r.stats.Changes += r.next - r.place
	}
	if why := r.pending.gap; why != "" {
		r.gap = Gap{r.next, engine.TimeOf(r.begun), why}
	}
	if n := r.renewal; n != nil {
		r.floors, r.renewal, r.doubt = n.floors, nil, false
		if r.collect.complete > 0 {
			r.collect.complete = r.next
		}
		r.collect.walked = [2]uint64{}
	}
	r.known.committed()
	if f := r.forgotten; f != nil {
		r.floors.replace(f.floors)
		r.forgotten = nil
		maps.DeleteFunc(r.floors.known, func(k told, _ has) bool { return k.child == f.leaf })
		delete(r.known.marks, f.leaf)
		delete(r.known.saved, f.leaf)
	}
	r.told = true
	r.place, r.time, r.tables = r.next, r.nextAt, r.nextTab
	r.pending.reset(r.scratch, r.cfg.MaxPending)
}

// Stats counts what a relay has done since it was started.
type Stats struct {
	Flushes    uint64 // that had changes
	Changes    uint64 // in them, covers included
	Tombstones uint64 // that have gone
	// Complete is the place up to which tombstones have gone; a reader behind it is
	// caught up by all there is.
	Complete uint64
	// Gap is the newest gap in tables of which every change is delivered.
	Gap Gap
}

// Stats returns the counts.
func (r *Reoriginate) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Complete, s.Gap = r.collect.complete, r.gap
	return s
}

// Ack says that a holder has durably applied the log up to a position.
func (r *Reoriginate) Ack(holder string, at engine.Position) error {
	place, err := Place(at)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.doubt {
		r.floors.Ack(holder, place)
	}
	return nil
}

// Acks returns how far each holder above has what a child has, to be passed on to
// the child.
func (r *Reoriginate) Acks(child engine.LogID) map[string]engine.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.floors.Acks(child)
}

// Has says, as a child has told, that a holder has the child's log up to a
// position; compare is the log's comparator.
func (r *Reoriginate) Has(child engine.LogID, compare engine.Comparator, holder string, at engine.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.floors.Has(child, compare, holder, at)
}

// Floor returns the position up to which a holder is known to have the log, by
// whatever way.
func (r *Reoriginate) Floor(holder string) engine.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Position(r.floors.Floor(holder))
}
