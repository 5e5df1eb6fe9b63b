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

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at each commit and change of adverts
	logs      map[LogID]*logState
	readers   map[readerKey]ReaderAck
	savedAcks map[readerKey]ReaderAck // of durable readers, as the store has them
}

// logState is what the engine knows of a log beside what the store holds.
type logState struct {
	compare   Comparator
	path      []string // nearest first; this node leads it
	tables    []TableName
	source    *source
	head      Position // as far as the source is known to have got
	headTime  Time
	headKnown bool
	unsaved   bool // path or tables have changed since they were saved
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
	}
	var last Time
	v := o.Store.View()
	for _, l := range v.Logs() {
		last = max(last, l.Time, Time(l.ID.Epoch))
	}
	v.Close()
	e.clock = NewClock(o.Now, last)
	e.restoreReaders()
	maps.Copy(e.savedAcks, e.readers)
	return e
}

// AddSource registers a source under its name in the configuration. Call it
// before Run.
func (e *Engine) AddSource(name string, s SyncSource, p Policy) {
	src := &source{
		engine: e, name: name, sync: s, policy: p,
		state: SourceState{Name: name, Reason: ReasonConnecting, Since: e.now()},
	}
	src.restore()
	e.sources = append(e.sources, src)
}

// Run feeds the engine from its sources until ctx ends. A source that fails is
// tried again, with a growing delay; it never holds up another.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range e.sources {
		g.Go(func() error { return s.run(ctx) })
	}
	if e.store.Durable() {
		g.Go(func() error { return e.retain(ctx) })
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
	newest := map[string]Advert{}
	for id, l := range e.logs {
		info, ok := v.Log(id) // from its first baseline on
		if !ok || newest[id.Origin].Log.Epoch > id.Epoch {
			continue
		}
		newest[id.Origin] = Advert{
			Log: id, Tables: slices.Clone(l.tables), Path: slices.Clone(l.path),
			Oldest: info.Oldest, Head: info.Head, Time: info.Time, Source: l.source.name,
		}
	}
	return slices.SortedFunc(maps.Values(newest), func(a, b Advert) int { return cmp.Compare(a.Log.Origin, b.Log.Origin) })
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
		if mintedBy(l.ID.Origin, node) {
			epoch, t = max(epoch, l.ID.Epoch), max(t, l.Time)
		}
	}
	return epoch, t
}

// Origin returns the origin under which a node mints the log of one of its
// sources.
func Origin(node, source string) string { return node + "#" + source }

func mintedBy(origin, node string) bool {
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
	ownEpoch, ownTime := e.Highest(e.id)
	for _, s := range e.sources {
		ownEpoch = max(ownEpoch, s.epoch()) // minted, and its baseline under way
	}
	if epoch <= ownEpoch && t <= max(ownTime, e.clock.Last()) {
		return
	}
	e.clock.Observe(seen)
	for _, s := range e.sources {
		s.renew(fmt.Sprintf("peer %s holds epoch %d, time %d of this node, which has epoch %d", peer, epoch, t, ownEpoch))
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
