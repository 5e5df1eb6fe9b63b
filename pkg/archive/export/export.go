// Package export keeps archives of a node's tables: a base of each, and from then
// on what changes.
//
// An Exporter is a reader of its own node, as sinks are: it reads the engine through
// engine.Host, and registers as a durable reader, so that the node keeps of its logs
// what is not archived yet. At every interval it takes one view of the node and
// brings the archives of all tables to it, so that the ends of their diffs are
// consistent with each other. It has no state of its own: where it goes on is what
// the archives say.
package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// Config describes an exporter. Name, Host, Destination and Prefix are required.
type Config struct {
	Name        string
	Host        engine.Host
	Destination dest.Destination
	// Prefix returns the key prefix of a table's archive.
	Prefix func(engine.TableName) string
	// Tables to archive; all when empty.
	Tables  []engine.TableName
	Formats []archive.Format
	History archive.History
	// ID names the writer in the archives; the node's id and Name when empty.
	ID       string
	TakeOver bool
	// Interval is how often the archives are brought up to date; DefaultInterval when
	// 0. They are earlier once the node's logs have grown by DiffBytes, which is
	// DefaultDiffBytes when 0.
	Interval time.Duration
	// Passed, if not nil, is called after each time that they were.
	Passed    func()
	DiffBytes int64
	Policy    archive.Policy // when a new base is due
	Retention archive.Retention
	Level     int              // of zstd
	Scratch   *spill.Dir       // nil: the system's
	Logger    *slog.Logger     // nil: slog.Default()
	Now       func() time.Time // nil: time.Now
}

// The defaults of Config.
const (
	DefaultInterval  = time.Minute
	DefaultDiffBytes = 64 << 20
)

// bounds of waiting.
const (
	lookEvery  = time.Second // at how far the logs have grown
	retryFirst = 500 * time.Millisecond
	retryMax   = 30 * time.Second
	pruneEvery = 10 * time.Minute
	workers    = 4 // tables at once
)

// Exporter keeps archives. Run it.
type Exporter struct {
	cfg  Config
	log  *slog.Logger
	now  func() time.Time
	wake chan struct{}

	// Of the loop, and of what it starts for one pass.
	tables  map[engine.TableName]*table
	grown   map[engine.LogID]int // bytes of the logs at the last pass
	checked bool

	mu     sync.Mutex
	status Status
	asked  map[engine.TableName]bool // for a new base
	asks   int
	done   map[int]chan error // of Snapshot
}

// table is the archive of one table.
type table struct {
	name   engine.TableName
	prefix string
	w      *archive.Writer // nil until it is opened
	pruned time.Time
	fenced error
}

// New returns an exporter.
func New(c Config) (*Exporter, error) {
	if c.Name == "" || c.Host == nil || c.Destination == nil || c.Prefix == nil {
		return nil, errors.New("an exporter needs a name, a node, a destination and key prefixes")
	}
	c.ID = cmp.Or(c.ID, c.Host.NodeID()+"/"+c.Name)
	c.Interval, c.DiffBytes = cmp.Or(c.Interval, DefaultInterval), cmp.Or(c.DiffBytes, DefaultDiffBytes)
	if c.Policy == (archive.Policy{}) {
		c.Policy = archive.DefaultPolicy
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Scratch == nil {
		c.Scratch = spill.NewDir("")
	}
	x := &Exporter{
		cfg: c, log: c.Logger.With("archive", c.Name), now: c.Now, wake: make(chan struct{}, 1), tables: map[engine.TableName]*table{},
		grown: map[engine.LogID]int{}, asked: map[engine.TableName]bool{}, done: map[int]chan error{},
	}
	x.status = Status{Name: c.Name, Destination: c.Destination.Describe(), State: StateWaiting, Since: c.Now(), Tables: map[engine.TableName]TableStatus{}}
	return x, nil
}

// Name returns the exporter's name.
func (x *Exporter) Name() string { return x.cfg.Name }

// reader is the name that the exporter registers under as a reader of the node.
func (x *Exporter) reader() string { return "archive/" + x.cfg.Name }

func (x *Exporter) takes(t engine.TableName) bool {
	return len(x.cfg.Tables) == 0 || slices.Contains(x.cfg.Tables, t)
}

// Run archives until ctx ends. It returns nothing else: what fails is tried again,
// and the node keeps what is not archived meanwhile.
func (x *Exporter) Run(ctx context.Context) error {
	delay := retryFirst
	for ctx.Err() == nil {
		err := x.pass(ctx)
		wait := x.cfg.Interval
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			x.failed(err)
			wait = delay/2 + rand.N(delay)
			delay = min(2*delay, retryMax)
			x.log.Warn("archiving failed, trying again", "error", err, "in", wait)
		default:
			delay = retryFirst
		}
		if !x.rest(ctx, wait, err != nil) {
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// rest waits until the next pass is due.
func (x *Exporter) rest(ctx context.Context, wait time.Duration, failed bool) bool {
	due := time.NewTimer(wait)
	defer due.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-due.C:
			return true
		case <-x.wake:
			return true
		case <-look.C:
			if !failed && x.large() {
				return true
			}
		}
	}
}

// large reports whether the logs have grown so much that a pass is due, or that
// there are tables that no archive has been begun of.
func (x *Exporter) large() bool {
	v := x.cfg.Host.View()
	defer v.Close()
	var grown int64
	for _, a := range x.cfg.Host.Adverts() {
		for _, t := range a.Tables {
			if x.takes(t) && x.tables[t] == nil {
				return true
			}
		}
		if l, ok := v.Log(a.Log); ok {
			grown += int64(max(0, l.Bytes-x.grown[a.Log]))
		}
	}
	return grown >= x.cfg.DiffBytes
}

// Once brings the archives up to what the node holds now, with a new base of each
// table if base is set.
func (x *Exporter) Once(ctx context.Context, base bool) error {
	if base {
		x.mu.Lock()
		for _, a := range x.cfg.Host.Adverts() {
			for _, t := range a.Tables {
				x.asked[t] = true
			}
		}
		x.mu.Unlock()
	}
	return x.pass(ctx)
}

// Snapshot asks for a new base of a table, or of all if its name is empty, and waits
// until it is there.
func (x *Exporter) Snapshot(ctx context.Context, name engine.TableName) error {
	wait := make(chan error, 1)
	x.mu.Lock()
	found := false
	for t := range x.status.Tables {
		if name == (engine.TableName{}) || t == name {
			x.asked[t], found = true, true
		}
	}
	x.asks++
	id := x.asks
	x.done[id] = wait
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		delete(x.done, id)
		x.mu.Unlock()
	}()
	if !found {
		if name == (engine.TableName{}) {
			return fmt.Errorf("archive %s has no table yet", x.cfg.Name)
		}
		return fmt.Errorf("archive %s has no table %s", x.cfg.Name, name)
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
	select {
	case err := <-wait:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pass brings the archives of all tables to one view of the node.
func (x *Exporter) pass(ctx context.Context) (err error) {
	x.mu.Lock()
	asked, waiting := x.asked, x.done
	x.asked, x.done = map[engine.TableName]bool{}, map[int]chan error{}
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, w := range waiting {
			w <- err
		}
		for t := range asked {
			x.asked[t] = true // what was not done
		}
	}()
	if !x.checked {
		if err := x.cfg.Destination.Check(ctx); err != nil {
			return err
		}
		x.checked = true
	}
	adverts := x.cfg.Host.Adverts() // before the view: so each is in it, unless it has gone since
	v := x.cfg.Host.View()
	defer v.Close()
	cuts := x.cuts(v, adverts)
	if len(cuts) == 0 {
		x.report(StateWaiting, "the node serves none of the tables yet")
		return nil
	}
	errs := x.each(cuts, func(t *table, c cut) error {
		err := x.open(ctx, t)
		if err == nil && t.w.Manifest().Generation > 0 {
			err = t.w.Bring(ctx, c.together) // before any of them moves: what reads them then waits for all
		}
		return err
	})
	x.ack(cuts) // from here on the logs are needed
	for some := range slices.Chunk(cuts, routeTables) {
		lack := map[engine.TableName]*stretch{}
		for _, c := range some {
			if s := x.lacking(v, x.table(c.table), c); s != nil {
				lack[c.table] = s
			}
		}
		x.route(ctx, v, lack)
		maps.Copy(errs, x.each(some, func(t *table, c cut) error {
			s := lack[t.name]
			defer s.close()
			if t.w == nil || t.fenced != nil {
				return errs[t.name]
			}
			err := x.bring(ctx, v, t, c, s, asked[t.name])
			x.note(t, c, err)
			return err
		}))
	}
	x.ack(cuts)
	for _, c := range cuts {
		if errs[c.table] == nil {
			delete(asked, c.table)
		}
	}
	if len(errs) > 0 {
		var all []error
		for _, c := range cuts {
			if err := errs[c.table]; err != nil {
				all = append(all, fmt.Errorf("table %s: %w", c.table, err))
			}
		}
		return errors.Join(all...)
	}
	for _, l := range v.Logs() {
		x.grown[l.ID] = l.Bytes
	}
	x.report(StateStreaming, "")
	if x.cfg.Passed != nil {
		x.cfg.Passed()
	}
	return nil
}

// each calls fn for the tables of cuts, some at once, and returns what failed.
func (x *Exporter) each(cuts []cut, fn func(*table, cut) error) map[engine.TableName]error {
	var mu sync.Mutex
	errs := map[engine.TableName]error{}
	g := errgroup.Group{}
	g.SetLimit(workers)
	for _, c := range cuts {
		t := x.table(c.table)
		g.Go(func() error {
			if err := fn(t, c); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs[c.table] = err
			}
			return nil
		})
	}
	_ = g.Wait()
	return errs
}

// table returns the archive of a table.
func (x *Exporter) table(name engine.TableName) *table {
	t := x.tables[name]
	if t == nil {
		t = &table{name: name, prefix: x.cfg.Prefix(name)}
		x.tables[name] = t
	}
	return t
}

// cut is what a table's archive is to be brought to.
type cut struct {
	table engine.TableName
	// to is how far the node has the table: the heads of the logs that write it, but of a carried log the
	// place that the table is behind at, if it is; see engine.Trail.
	to       archive.Vector
	heads    archive.Vector
	minted   archive.Minted // of those logs
	together []engine.TableName
}

// cuts returns the tables to archive, and how far the node has each. One of which it cannot say is left as it is.
func (x *Exporter) cuts(v engine.View, adverts []engine.Advert) []cut {
	at, heads := map[engine.TableName][]archive.Cursor{}, map[engine.TableName][]archive.Cursor{}
	minted := map[engine.TableName]archive.Minted{}
	unknown := map[engine.TableName]bool{}
	for _, a := range adverts {
		info, ok := v.Log(a.Log)
		if !ok {
			continue // it has gone since: the next pass sees what has become of it
		}
		behind, _ := x.cfg.Host.TrailIn(v, a.Log).Of(a.Tables, info.Head, x.cfg.Host.Comparator(a.Log))
		c := archive.Cursor{Log: a.Log, Position: info.Head, Time: info.Time, Order: a.Order, CompleteFrom: info.CompleteFrom}
		is := archive.MintedLog{History: a.History}
		if a.History != "" {
			for _, s := range v.Schemas(a.Log) {
				is.Schemas = max(is.Schemas, s.ID)
			}
		}
		for _, t := range a.Tables {
			if !x.takes(t) {
				continue
			}
			heads[t] = append(heads[t], c)
			has := c
			if r, is := behind[t]; is {
				has.Position, has.Time = r.Position, r.Time
				unknown[t] = unknown[t] || r.Position == ""
			}
			if at[t] = append(at[t], has); a.History == "" {
				continue
			}
			if minted[t] == nil {
				minted[t] = archive.Minted{}
			}
			minted[t][a.Log.String()] = is
		}
	}
	var all []cut
	for _, info := range v.Tables() {
		if cs := at[info.Table]; len(cs) > 0 && !unknown[info.Table] {
			all = append(all, cut{table: info.Table, to: archive.NewVector(cs...), heads: archive.NewVector(heads[info.Table]...), minted: minted[info.Table]})
		}
	}
	var together []engine.TableName
	for _, c := range all {
		if c.to.Equal(c.heads) {
			together = append(together, c.table)
		}
	}
	for i := range all {
		if all[i].together = together; !all[i].to.Equal(all[i].heads) {
			all[i].together = []engine.TableName{all[i].table} // the others are elsewhere
		}
	}
	return all
}

// ack tells the node how far each log is archived.
func (x *Exporter) ack(cuts []cut) {
	floor := map[engine.LogID]engine.Position{}
	for _, c := range cuts {
		at := archive.Vector(nil)
		if t := x.tables[c.table]; t.w != nil {
			at, _ = t.w.Through()
		}
		for _, cur := range c.heads {
			has, ok := at.Cursor(cur.Log)
			if !ok || at.Equal(c.to) {
				has = cur // where its base will be, or up to where the log has nothing more of it
			}
			if low, ok := floor[cur.Log]; !ok || x.cfg.Host.Comparator(cur.Log)(has.Position, low) < 0 {
				floor[cur.Log] = has.Position
			}
		}
	}
	for log, at := range floor {
		x.cfg.Host.Acked(x.reader(), engine.CursorKey{Log: log}, at, true)
	}
}
