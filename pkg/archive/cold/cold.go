// Package cold serves readers from archives: those whose cursor a node's log no longer
// holds, up to where it does. It is a server.Archives.
//
// The manifests are looked at now and then, so that whether an archive reaches is
// known at once. Replays wait for one another, a few at a time, and share what they
// read of the store. One that is read waits for its reader, which may be slow, and
// keeps none of those that are still to be read from their turn.
package cold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/cache"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
)

// Location is where the archive of a table is.
type Location struct {
	Archive     string // its name, for status
	Destination dest.Destination
	Prefix      string           // of its keys
	Formats     []archive.Format // tried in order; all when empty
}

// Config describes archives that a node's readers are served from. Locate is required.
type Config struct {
	// Locate returns where the archive of a table is; ok is false where there is none.
	Locate func(engine.TableName) (at Location, ok bool)
	// Poll is how often manifests are looked at; DefaultPoll when 0.
	Poll time.Duration
	// Concurrent is how many replays are read at once; DefaultConcurrent when 0. Waiting
	// is how many there are at most that are being read, or have been and wait for their
	// readers; DefaultWaiting when 0. Each of them holds about 8 MiB, and what is more in
	// Scratch.
	Concurrent, Waiting int
	// CacheBytes bounds what is kept of the store for replays that need the same, in
	// Scratch; DefaultCacheBytes when 0.
	CacheBytes int64
	Scratch    *spill.Dir
	Logger     *slog.Logger // nil: slog.Default()
}

// The defaults of Config.
const (
	DefaultPoll       = 10 * time.Second
	DefaultConcurrent = 2
	DefaultWaiting    = 16
	DefaultCacheBytes = 1 << 30
)

const (
	keep   = 5 * time.Minute // how long what was read of the store is kept
	memory = 8 << 20         // of a replay
)

// Archives are archives to serve from. Run it.
type Archives struct {
	cfg   Config
	log   *slog.Logger
	slots chan struct{} // of all replays
	turns chan struct{} // of those that are being read
	wake  chan struct{}

	mu     sync.Mutex
	dir    string // of caches; made when it is needed
	caches map[dest.Destination]*cache.Cache
	tables map[engine.TableName]*table
}

type table struct {
	at       Location
	reader   *archive.Reader
	manifest *archive.Manifest // as it was seen last; nil if it has not been
	err      error             // of the last look
	logged   string
	declined string    // why it was of no use, the last time
	refused  time.Time // when that was
	replays  int64
}

// New returns archives. It touches nothing yet.
func New(c Config) *Archives {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Poll, c.CacheBytes = cmp.Or(c.Poll, DefaultPoll), cmp.Or(c.CacheBytes, DefaultCacheBytes)
	c.Concurrent, c.Waiting = cmp.Or(c.Concurrent, DefaultConcurrent), cmp.Or(c.Waiting, DefaultWaiting)
	if c.Scratch == nil {
		c.Scratch = spill.NewDir("")
	}
	return &Archives{
		cfg: c, log: c.Logger, caches: map[dest.Destination]*cache.Cache{}, slots: make(chan struct{}, c.Waiting),
		turns: make(chan struct{}, c.Concurrent), wake: make(chan struct{}, 1), tables: map[engine.TableName]*table{},
	}
}

// Run looks at the manifests until ctx ends.
func (a *Archives) Run(ctx context.Context) error {
	defer a.close()
	t := time.NewTicker(a.cfg.Poll)
	defer t.Stop()
	for {
		a.look(ctx)
		select {
		case <-t.C:
		case <-a.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *Archives) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.caches {
		c.Close()
	}
	if a.dir != "" {
		_ = os.RemoveAll(a.dir)
	}
}

// look reads the manifests. What cannot be read costs replays only.
func (a *Archives) look(ctx context.Context) {
	a.mu.Lock()
	all := maps.Clone(a.tables)
	a.mu.Unlock()
	for name, t := range all {
		if t.reader == nil {
			continue
		}
		m, err := t.reader.Manifest(ctx)
		if ctx.Err() != nil {
			return
		}
		a.mu.Lock()
		if t.err = err; err == nil {
			t.manifest = m
		} else if errors.Is(err, archive.ErrNoArchive) {
			t.manifest = nil
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		changed := text != t.logged
		t.logged = text
		a.mu.Unlock()
		switch {
		case changed && err != nil:
			a.log.Warn("readers that are far behind take a snapshot: the archive cannot be used", "table", name.String(), "error", err)
		case changed:
			a.log.Info("the archive can be used", "table", name.String(), "through", m.Through.String())
		}
	}
}

// table returns what is known of a table's archive; nil if it is not archived.
// Callers hold a.mu.
func (a *Archives) table(name engine.TableName) *table {
	t := a.tables[name]
	if t != nil {
		return t
	}
	at, ok := a.cfg.Locate(name)
	if !ok {
		return nil
	}
	c := a.caches[at.Destination]
	if c == nil && a.dir == "" {
		var err error
		if a.dir, err = os.MkdirTemp(a.cfg.Scratch.Path(), "archive-"); err != nil {
			return &table{at: at, err: err} // it is tried again
		}
	}
	if c == nil {
		c = cache.New(at.Destination, a.dir, a.cfg.CacheBytes, keep)
		a.caches[at.Destination] = c
	}
	r, err := archive.NewReader(archive.ReaderConfig{Destination: c, Prefix: at.Prefix, Table: name, Formats: at.Formats, Memory: memory, Scratch: a.cfg.Scratch})
	if t = (&table{at: at, err: err}); err == nil {
		t.reader = r
	}
	a.tables[name] = t
	a.Look()
	return t
}

// Look has the manifests looked at now.
func (a *Archives) Look() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Watch has the archives of tables looked at, before they are asked for.
func (a *Archives) Watch(tables ...engine.TableName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range tables {
		a.table(name)
	}
}

// Reach returns how far the archives lead a reader of tables of a log: to one position
// that they have in common.
func (a *Archives) Reach(log engine.LogID, tables []engine.TableName, from, oldest engine.Position) (engine.Cursor, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	to := engine.Cursor{CursorKey: engine.CursorKey{Log: log}}
	decline := func(t *table, why string) (engine.Cursor, bool) {
		if t != nil {
			t.declined, t.refused = why, time.Now()
		}
		return engine.Cursor{}, false
	}
	var compare engine.Comparator
	for i, name := range tables {
		t := a.table(name)
		switch {
		case t == nil:
			return decline(t, "")
		case t.manifest == nil && t.err != nil:
			return decline(t, t.err.Error())
		case t.manifest == nil:
			return decline(t, "it has not been looked at yet")
		}
		c, ok := t.manifest.Through.Cursor(log)
		if !ok {
			return decline(t, fmt.Sprintf("it has nothing of log %s", log))
		}
		if compare == nil {
			compare = engine.Comparators[cmp.Or(c.Order, "lsn")]
		}
		if i == 0 || compare(c.Position, to.Position) < 0 {
			to.Position, to.Time = c.Position, c.Time
		}
	}
	if compare != nil && compare(to.Position, oldest) < 0 {
		a.Look() // there may be more by now
		for _, name := range tables {
			decline(a.tables[name], fmt.Sprintf("it ends at %s, as far as is known, and the node's log begins after %s", to.Position, oldest))
		}
		return engine.Cursor{}, false
	}
	for _, name := range tables {
		t := a.tables[name]
		p := t.manifest.Plan(ahead(t.manifest, log, from), archive.AsOf{At: archive.NewVector(archive.Cursor{Log: log, Position: to.Position})})
		if p.Mode != archive.PlanDiffs {
			return decline(t, cmp.Or(p.Reason, fmt.Sprintf("only a base leads on from %s", from)))
		}
		if c, _ := p.To.Cursor(log); c.Position != to.Position {
			return decline(t, fmt.Sprintf("it can be read up to %s, and those of other tables up to %s", c.Position, to.Position))
		}
	}
	return to, len(tables) > 0
}

// ahead is a place in an archive: at a position of one log, and at the end of all
// others.
func ahead(m *archive.Manifest, log engine.LogID, at engine.Position) archive.Vector {
	v := slices.Clone(m.Through)
	for i := range v {
		if v[i].Log == log {
			v[i].Position, v[i].Time = at, 0
		}
	}
	return v
}

// Replay passes on what archives have. It is as server.Archives has it.
func (a *Archives) Replay(ctx context.Context, r server.Replay) error {
	if err := take(ctx, a.slots); err != nil {
		return err
	}
	defer func() { <-a.slots }()
	folds, err := a.read(ctx, r)
	defer func() {
		for _, f := range folds {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	schemas, truncates := map[engine.LogID][]*engine.Schema{}, map[engine.TableName][]engine.Stamp{}
	for i, f := range folds {
		for log, of := range f.Schemas() {
			schemas[log] = append(schemas[log], of...)
		}
		for _, at := range f.Truncates() {
			if at.Origin == r.Log.Origin {
				truncates[r.Tables[i]] = append(truncates[r.Tables[i]], at)
			}
		}
	}
	if err := r.Begin(schemas, truncates); err != nil {
		return err
	}
	for i, f := range folds {
		if err := f.Rows(func(rec *engine.Record) error { return r.Record(i, rec) }); err != nil {
			return err
		}
	}
	return nil
}

// read reads what a replay asks for, in its turn.
func (a *Archives) read(ctx context.Context, r server.Replay) (folds []*archive.Fold, err error) {
	if err := take(ctx, a.turns); err != nil {
		return nil, err
	}
	defer func() { <-a.turns }()
	to := archive.AsOf{At: archive.NewVector(archive.Cursor{Log: r.Log, Position: r.To.Position})}
	for _, name := range r.Tables {
		a.mu.Lock()
		t := a.table(name)
		m := t.manifest
		t.replays++
		a.mu.Unlock()
		f, err := t.reader.Delta(ctx, ahead(m, r.Log, r.From), to)
		if err != nil {
			return folds, fmt.Errorf("archive of %s: %w", name, err)
		}
		folds = append(folds, f)
		if c, _ := f.At().Cursor(r.Log); c.Position != r.To.Position {
			return folds, fmt.Errorf("archive of %s: it ends at %s now, and %s was to be reached", name, c.Position, r.To.Position)
		}
	}
	return folds, nil
}

func take(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Status is how the archive of a table is.
type Status struct {
	Table   engine.TableName
	At      Location
	Through archive.Vector // as it was seen last
	Error   string         // why it cannot be used
	// Declined says why it was of no use to a reader, and when.
	Declined   string
	DeclinedAt time.Time
	Replays    int64 // begun
}

// Status returns how the archives are, by table.
func (a *Archives) Status() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Status
	for name, t := range a.tables {
		s := Status{Table: name, At: t.at, Error: t.logged, Declined: t.declined, DeclinedAt: t.refused, Replays: t.replays}
		if t.manifest != nil {
			s.Through = t.manifest.Through
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Status) int { return a.Table.Compare(b.Table) })
	return all
}
