package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// Options configure an Engine. NodeID and Store are required.
type Options struct {
	NodeID string
	Store  Store
	Logger *slog.Logger     // nil: slog.Default()
	Now    func() time.Time // nil: time.Now
	// Retention bounds the logs of a durable store.
	Retention Retention
	// Conflicts are the conflict policies of tables; nil: LastWriteWins.
	Conflicts *Conflicts
	// Scratch is the folder for what is spilled; empty: the system's.
	Scratch string
}

// Engine is a running node: it takes in what its sources deliver and keeps
// store, adverts and status in step. It implements Host.
type Engine struct {
	id        string
	store     Store
	clock     *Clock
	now       func() time.Time
	log       *slog.Logger
	sources   []*source
	retention Retention
	scratch   *spill.Dir
	parts     partsRoom
	writes    group
	conflicts *Conflicts
	tally     tally
	rejoin    *rejoin // under mu; nil: its own logs wait for nobody
	unread    string  // see CannotAwaitPeers

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at each commit and change of adverts
	counter   uint64        // names the counts of this life: see Head
	headsTold time.Time     // when heads that have moved were told last
	logs      map[LogID]*logState
	sorted    []LogID // the keys of logs; nil when they have changed
	readers   map[readerKey]ReaderAck
	full      *Full                   // nil while there is room
	emptied   chan struct{}           // closed when there is room again
	savedAcks map[readerKey]ReaderAck // of durable readers, as the store has them

	foreign error // the store is another node's

	trails atomic.Uint64 // see Host.Trails
}

// logState is what the engine knows of a log beside what the store holds.
type logState struct {
	compare Comparator
	order   string // its name, once it is named
	named   bool
	path    []string    // nearest first; this node leads it; never altered
	tables  []TableName // never altered
	covered []TableName // of a carried log: what its cursor has covered since its baseline; nil if unknown
	trail   Trail       // of a carried log: tables that places in it are ahead of
	whole   Time        // see Advert.Whole
	source  *source
	history string // behind a log that is minted here
	reach   reach  // how far it has got at its origin
	moved   time.Time
	unsaved bool // path or tables have changed since they were saved

	trailMeta []byte // what was saved of the log when its trail was last read from a view
	trailRead Trail
}

type readerKey struct {
	reader string
	key    CursorKey
}

// ReaderAck is how far a reader has got.
type ReaderAck struct {
	Reader  string
	Key     CursorKey
	At      Position
	Durable bool
	When    time.Time
}

// New returns an engine over a store. Add sources, then Run it.
func New(o Options) *Engine {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &Engine{
		id: o.NodeID, store: o.Store, now: o.Now, log: o.Logger,
		changed: make(chan struct{}), logs: map[LogID]*logState{}, readers: map[readerKey]ReaderAck{},
		savedAcks: map[readerKey]ReaderAck{}, retention: o.Retention.withDefaults(), scratch: spill.NewDir(o.Scratch),
		conflicts: o.Conflicts,
	}
	var last Time
	v := o.Store.View()
	for _, l := range v.Logs() {
		last = max(last, l.Time, Time(l.ID.Epoch))
	}
	v.Close()
	e.clock = NewClock(o.Now, last)
	e.counter = uint64(e.clock.Next())
	e.writes = group{store: o.Store, bytes: groupBytes, notify: func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.notify()
	}}
	e.restoreReaders()
	maps.Copy(e.savedAcks, e.readers)
	return e
}

// Known is what is known of the log that a source has minted in an earlier life of the
// node, of which the store has nothing.
type Known struct {
	Log     LogID
	History string   // see Info
	At      Position // how far it has got
	Schemas uint32   // the highest ID of its schemas
	Time    Time     // the newest stamped in it
}

// Recall has a source go on with a log if the history behind it is the same, and in any
// case in none that is older. What the store has of a source's log counts before it. Call it before
// AddSource.
func (e *Engine) Recall(source string, k Known) error {
	e.clock.Observe(max(k.Time, Time(k.Log.Epoch)))
	tx, err := e.store.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if tx.Meta(metaSource+source) != nil || k.Log.Origin != Origin(e.id, source) || k.History == "" {
		return nil
	}
	if err := setMeta(tx, metaSource+source, savedSource{Origin: k.Log.Origin, Epoch: k.Log.Epoch, History: k.History, At: k.At, Schemas: k.Schemas}); err != nil {
		return err
	}
	return tx.Commit()
}

// AddSource registers a source under its name in the configuration. Call it
// before Run.
func (e *Engine) AddSource(name string, s SyncSource, p Policy) {
	src := &source{
		engine: e, name: name, sync: s, policy: p, known: unknown,
		state: SourceState{Name: name, Reason: ReasonConnecting, Since: e.now()},
	}
	src.restore()
	src.sync = namespace(s, e.conflicts, src.info.History)
	e.sources = append(e.sources, src)
}

// Run feeds the engine from its sources until ctx ends. A source that fails is
// tried again, with a growing delay; it never holds up another. Over a store of
// another node it ends at once.
func (e *Engine) Run(ctx context.Context) error {
	if e.foreign != nil {
		return e.foreign
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range e.sources {
		g.Go(func() error { return s.run(ctx) })
	}
	if e.store.Durable() || e.retention.OnFull == OnFullBlock {
		g.Go(func() error { return e.retain(ctx) })
	}
	if e.writes.rec != nil {
		g.Go(func() error { return e.collect(ctx) })
	}
	g.Go(func() error { <-ctx.Done(); return ctx.Err() }) // also without any source
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return context.Cause(ctx)
}

// Pause stops delivery from every source; Resume goes on without a snapshot.
func (e *Engine) Pause() {
	for _, s := range e.sources {
		s.sync.Pause()
	}
}

// Resume undoes Pause.
func (e *Engine) Resume() {
	for _, s := range e.sources {
		s.sync.Resume()
	}
}

// NodeID returns the node's id.
func (e *Engine) NodeID() string { return e.id }

// View returns a view of the store as of the last commit.
func (e *Engine) View() View { return e.store.View() }

// Changed returns a channel that is closed at the next commit or change of
// adverts.
func (e *Engine) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// notify wakes what waits on Changed. Callers hold e.mu.
func (e *Engine) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// Adverts returns the logs that can be served: baselined, committed, and of
// each origin the newest epoch only.
func (e *Engine) Adverts() []Advert {
	v := e.store.View()
	defer v.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sorted == nil {
		e.sorted = slices.SortedFunc(maps.Keys(e.logs), func(a, b LogID) int {
			return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(b.Epoch, a.Epoch)) // the newest first
		})
	}
	all := make([]Advert, 0, len(e.sorted))
	for _, id := range e.sorted {
		if n := len(all); n > 0 && all[n-1].Log.Origin == id.Origin {
			continue
		}
		l := e.logs[id]
		info, ok := v.Log(id) // from its first baseline on
		if !ok || l.source.recorder() != nil {
			continue
		}
		if !l.named {
			l.order, l.named = l.compare.Name(), true
		}
		origin := l.origin(e.counter)
		if l.source == e.writes.own {
			origin = recorded(&info)
		}
		all = append(all, Advert{
			Log: id, Tables: l.tables, Path: l.path,
			Oldest: info.Oldest, Head: info.Head, Time: info.Time, Order: l.order, Source: l.source.name, History: l.history, Whole: l.whole, Origin: origin,
		})
	}
	return all
}

// Comparator returns a log's comparator; PostgreSQL LSN order for a log that is
// not known.
func (e *Engine) Comparator(log LogID) Comparator {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[log]; l != nil {
		return l.compare
	}
	return CompareLSN
}

// Highest returns the highest epoch and time held of a node's logs.
func (e *Engine) Highest(node string) (Epoch, Time) {
	v := e.store.View()
	defer v.Close()
	var epoch Epoch
	var t Time
	for _, l := range v.Logs() {
		if MintedBy(l.ID.Origin, node) {
			epoch, t = max(epoch, l.ID.Epoch), max(t, l.Time)
			if c, ok := v.Cursor(CursorKey{Log: l.ID}); ok { // a log that comes to a recorder has no entries
				t = max(t, c.Time)
			}
		}
	}
	return epoch, t
}

// Origin returns the origin under which a node mints the log of one of its
// sources.
func Origin(node, source string) string { return node + "#" + source }

// MintedBy reports whether a node mints the log of an origin.
func MintedBy(origin, node string) bool {
	return strings.HasPrefix(origin, node+"#")
}

// maxAhead bounds what a peer can make a node's clock jump to.
const maxAhead = 366 * 24 * time.Hour

// Witness tells the node the highest epoch and time that a peer holds of it. If
// one is above its own, the node has lost history it once served: it takes a
// new epoch above both.
func (e *Engine) Witness(peer string, epoch Epoch, t Time) {
	if epoch == 0 && t == 0 {
		return
	}
	seen := max(Time(epoch), t)
	if seen > TimeOf(e.now().Add(maxAhead)) {
		e.log.Warn("a peer claims a time of this node that is more than a year ahead; ignored", "peer", peer, "epoch", epoch, "time", t)
		return
	}
	if e.doubt(peer, epoch, t) {
		e.clock.Observe(seen)
	}
	if e.witness(peer, epoch, t) {
		return
	}
	ownEpoch, ownTime := e.Highest(e.id)
	for _, s := range e.sources {
		ownEpoch = max(ownEpoch, s.epoch()) // minted, and its baseline under way
	}
	if epoch <= ownEpoch && t <= max(ownTime, e.clock.Last()) {
		return
	}
	e.clock.Observe(seen)
	for _, s := range e.sources {
		s.renew(fmt.Sprintf("peer %s holds epoch %d, time %d of this node, which has epoch %d%s", peer, epoch, t, ownEpoch, e.unread), true, epoch)
	}
}

// Observe is as in Host. A time that is more than a year ahead does not count.
func (e *Engine) Observe(t Time) {
	if t <= TimeOf(e.now().Add(maxAhead)) {
		e.clock.Observe(t)
	}
}

// Acked records how far a reader has got.
func (e *Engine) Acked(reader string, key CursorKey, at Position, durable bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := readerKey{reader, key}
	a := e.readers[k]
	e.readers[k] = ReaderAck{reader, key, at, durable || a.Durable && a.At == at, e.now()}
	if len(e.readers) > maxReaderAcks {
		e.forgetReaders()
	}
}

// maxReaderAcks bounds what is remembered of readers that have gone.
const maxReaderAcks = 20_000

func (e *Engine) forgetReaders() {
	all := slices.SortedFunc(maps.Values(e.readers), func(a, b ReaderAck) int { return a.When.Compare(b.When) })
	for _, a := range all[:len(all)/2] {
		delete(e.readers, readerKey{a.Reader, a.Key})
	}
}
