package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// PebbleOptions configure a durable store. The zero value of all but Dir has
// the defaults, which fit a container of 256 MiB.
type PebbleOptions struct {
	// Dir is where the store is. It is made if need be, and belongs to one
	// process at a time.
	Dir string
	// JournalBytes bounds the logs' entries, all logs together, as in a memory
	// store. Default 1 GiB.
	JournalBytes int
	// CacheBytes bounds the newest entries of the logs that are kept in memory
	// too, so that readers near the head never touch the disk. Default 32 MiB.
	CacheBytes int
	// BlockCacheBytes bounds the cache of what has been read from disk. Default 32 MiB.
	BlockCacheBytes int
	// MemTableBytes is how much is gathered before it is written out in order. Up to three
	// times that is in memory. A transaction of half as much or more is written out by
	// itself, which costs more: hence the default, 16 MiB, is twice TxBytes.
	MemTableBytes int
	// TxBytes is how much of a transaction is kept in memory; a larger one goes
	// to disk as it grows. Default 8 MiB.
	TxBytes int
	// Tombstones bounds the tombstones of a table; the oldest by stamp go first.
	// Default 1,000,000; negative keeps all.
	Tombstones int
	// TombstoneRetention is how long tombstones are kept, by their stamp. Default
	// 24 hours; negative keeps all.
	TombstoneRetention time.Duration
	// ReserveBytes is the free space below which transactions wait to begin.
	// Default 64 MiB, or a sixteenth of the file system if that is less; negative
	// is none.
	ReserveBytes int64
	Logger       *slog.Logger
	// Waits, if not nil, is called now and then while the store cannot be opened for
	// want of room.
	Waits func(*DiskFullError)
	// FS is the file system; nil is the operating system's.
	FS vfs.FS

	now func() time.Time
}

// The defaults of PebbleOptions.
const (
	DefaultDiskJournalBytes   = 1 << 30
	DefaultDiskCacheBytes     = 32 << 20
	DefaultBlockCacheBytes    = 32 << 20
	DefaultMemTableBytes      = 2 * DefaultTxBytes
	DefaultTxBytes            = 8 << 20
	DefaultDiskTombstones     = 1_000_000
	DefaultTombstoneRetention = 24 * time.Hour
	DefaultReserveBytes       = 64 << 20
)

// memTables is how many times MemTableBytes there can be in memory.
const memTables = 3

func (o *PebbleOptions) defaults() {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.JournalBytes, DefaultDiskJournalBytes)
	def(&o.CacheBytes, DefaultDiskCacheBytes)
	def(&o.BlockCacheBytes, DefaultBlockCacheBytes)
	def(&o.MemTableBytes, DefaultMemTableBytes)
	def(&o.TxBytes, DefaultTxBytes)
	o.Tombstones = cmp.Or(o.Tombstones, DefaultDiskTombstones)
	o.TombstoneRetention = cmp.Or(o.TombstoneRetention, DefaultTombstoneRetention)
	o.ReserveBytes = cmp.Or(o.ReserveBytes, DefaultReserveBytes)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.now == nil {
		o.now = time.Now
	}
}

// Pebble is an engine.Store on disk.
type Pebble struct {
	opts   PebbleOptions
	fs     *diskFS
	db     *pebble.DB
	lock   io.Closer
	shapes *shapes
	turn   chan struct{} // holds one token: the right to write
	closed chan struct{}
	ops    opGate
	recent *recentBlocks
	rotten atomic.Pointer[error] // something read was damaged

	nextTable atomic.Uint32 // highest number of a table given out

	mu       sync.Mutex
	cur      *edition
	editions map[*edition]struct{} // with snapshots
	changed  chan struct{}         // nil until asked for
	closeErr error

	// of whoever holds the turn
	writer    *rowWriter
	notes     *pebble.Batch
	nextLog   uint32 // highest number of a log given out
	shapesOut int    // shapes that are on disk
	aged      time.Time
}

var _ engine.Store = (*Pebble)(nil)

// edition is what views see: a root, and the rows and entries as of it.
type edition struct {
	root *diskRoot
	snap *pebble.Snapshot
	refs int
}

// OpenPebble is OpenPebbleContext without an end.
func OpenPebble(o PebbleOptions) (*Pebble, error) {
	return OpenPebbleContext(context.Background(), o)
}

// OpenPebbleContext opens the store in o.Dir, or makes one. A directory in use gives
// ErrInUse, a damaged one engine.ErrCorruptStore, one of a newer version
// ErrFormat. It writes too, and so waits for room where the disk is full. When ctx
// ends it returns, though the database cannot be told to give up: it has the
// directory until there is room, or the process ends.
func OpenPebbleContext(ctx context.Context, o PebbleOptions) (*Pebble, error) {
	o.defaults()
	if o.Dir == "" {
		return nil, errors.New("a durable store needs a directory")
	}
	p := &Pebble{
		opts: o, shapes: newShapes(), turn: make(chan struct{}, 1), closed: make(chan struct{}),
		recent: newRecent(o.CacheBytes), editions: map[*edition]struct{}{},
	}
	p.fs = newDiskFS(o.FS, o.Dir, o.ReserveBytes)
	opened := make(chan error, 1)
	go func() { opened <- p.open() }()
	look := time.NewTicker(waitsEvery)
	defer look.Stop()
	for {
		select {
		case err := <-opened:
			if err != nil {
				return nil, err
			}
			return p, nil
		case <-ctx.Done():
			go func() {
				if <-opened == nil {
					_ = p.Close()
				}
			}()
			return nil, fmt.Errorf("store %s: it was not opened: %w", o.Dir, errors.Join(context.Cause(ctx), p.fs.stalled()))
		case <-look.C:
			var full *DiskFullError
			if o.Waits != nil && errors.As(p.fs.stalled(), &full) {
				o.Waits(full)
			}
		}
	}
}

// waitsEvery is how often PebbleOptions.Waits is called.
const waitsEvery = 500 * time.Millisecond

func (p *Pebble) open() (err error) {
	o := &p.opts
	if err := p.fs.MkdirAll(o.Dir, 0o750); err != nil {
		return fmt.Errorf("store %s: the directory cannot be made: %w", o.Dir, err)
	}
	p.lock, err = o.FS.Lock(o.FS.PathJoin(o.Dir, "LOCK"))
	if err != nil {
		return inUse(o.Dir, err)
	}
	defer func() {
		if err != nil {
			p.fs.close()
			if p.db != nil {
				p.closeDB()
			}
			_ = p.lock.Close()
		}
	}()
	if err := p.fs.checkFormat(); err != nil {
		return err
	}
	if err := p.fs.openWitness(); err != nil {
		return err
	}
	if p.db, err = p.openDB(); err != nil {
		return p.openError(err)
	}
	p.writer, p.notes = newRowWriter(p), p.newBatch()
	root, err := p.load()
	if err != nil {
		return err
	}
	p.publish(root, false)
	p.turn <- struct{}{}
	return nil
}

func (p *Pebble) newBatch() *pebble.Batch {
	return p.db.NewBatch(pebble.WithInitialSizeBytes(64<<10), pebble.WithMaxRetainedSizeBytes(2*p.opts.TxBytes))
}

// openDB opens the database. What is damaged in a way that it does not expect
// can make it panic.
func (p *Pebble) openDB() (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, fmt.Errorf("%w: %v", pebble.ErrCorruption, r)
		}
	}()
	o := p.opts.Database()
	o.FS, o.Logger = p.fs, &pebbleLogger{p}
	o.EventListener = &pebble.EventListener{
		DataCorruption: func(i pebble.DataCorruptionInfo) { p.damaged(i.Details) },
		BackgroundError: func(err error) {
			if !p.fs.inVain() {
				p.opts.Logger.Warn("store: background work failed", "error", err)
			}
		},
	}
	return pebble.Open(p.fs.dbDir(), o)
}

// Database returns the options that the store gives its database, but for the file
// system and who listens: what is measured beside it should have the same.
func (o PebbleOptions) Database() *pebble.Options {
	o.defaults()
	d := &pebble.Options{
		// Version 6 of tables has checksums of all parts; logs say how far they
		// were synced since an earlier one.
		FormatMajorVersion: pebble.FormatTableFormatV6,
		// The database takes what it gathers in memory out of the cache's size.
		CacheSize:                   int64(o.BlockCacheBytes + memTables*o.MemTableBytes),
		MemTableSize:                uint64(o.MemTableBytes),
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       24,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                500,
		WALBytesPerSync:             1 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
	}
	d.Experimental.ReadSamplingMultiplier = -1
	d.Experimental.CompactionScheduler = newCompactions()
	for i := range d.Levels {
		d.Levels[i].BlockSize = 8 << 10
		d.Levels[i].IndexBlockSize = 64 << 10
		d.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return d
}

// KeepTombstones makes the store let no tombstone go by itself.
func (p *Pebble) KeepTombstones(ctx context.Context) error {
	t, err := p.Begin(ctx)
	if err != nil {
		return err
	}
	defer t.Rollback()
	p.opts.Tombstones, p.opts.TombstoneRetention = -1, 0
	return nil
}

// Durable reports true: what Commit has returned from survives a crash.
func (p *Pebble) Durable() bool { return true }

// Begin starts the write transaction. It also waits while the disk is nearly
// full.
func (p *Pebble) Begin(ctx context.Context) (engine.Tx, error) {
	if p.isClosed() {
		return nil, engine.ErrClosed
	}
	select {
	case <-p.turn:
	case <-p.closed:
		return nil, engine.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	err := p.usable()
	if err == nil {
		err = p.fs.room(ctx, p.closed)
	}
	if err != nil {
		p.turn <- struct{}{}
		return nil, err
	}
	return p.newTx(), nil
}

// usable says why nothing can be written, or returns nil.
func (p *Pebble) usable() error {
	if err := p.fs.refused(); err != nil {
		return err
	}
	if err := p.rotten.Load(); err != nil {
		return *err
	}
	return nil
}

func (p *Pebble) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

// View returns a view as of the last commit.
func (p *Pebble) View() engine.View {
	v := &diskView{}
	v.p, v.err = p, engine.ErrClosed
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed() {
		v.over.Store(true)
		v.root = newDiskRoot()
		v.catalog = v.root.catalog
		return v
	}
	v.edition = p.cur
	v.edition.refs++
	v.root, v.catalog = p.cur.root, p.cur.root.catalog
	return v
}

// release lets go of an edition that a view held.
func (p *Pebble) release(e *edition) {
	p.mu.Lock()
	e.refs--
	snap := p.unused(e)
	p.mu.Unlock()
	if snap != nil {
		_ = snap.Close()
	}
}

// unused returns the snapshot of an edition that nobody needs any more. Callers
// hold p.mu, and close it.
func (p *Pebble) unused(e *edition) *pebble.Snapshot {
	if e == nil || e.refs > 0 || e == p.cur {
		return nil
	}
	delete(p.editions, e)
	s := e.snap
	e.snap = nil
	return s
}

// publish makes r what views see. The caller holds the turn.
func (p *Pebble) publish(r *diskRoot, wake bool) {
	e := &edition{root: r, snap: p.db.NewSnapshot()}
	p.mu.Lock()
	old := p.cur
	p.cur = e
	p.editions[e] = struct{}{}
	snap := p.unused(old)
	if wake {
		p.wake()
	}
	p.mu.Unlock()
	if snap != nil {
		_ = snap.Close()
	}
}

// Changed returns a channel that is closed at the next commit, or by Close.
func (p *Pebble) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// wake wakes what waits on Changed. Callers hold p.mu.
func (p *Pebble) wake() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Stalled says why commits wait or fail: a *DiskFullError, damage
// (engine.ErrCorruptStore), or an error of the disk.
func (p *Pebble) Stalled() error {
	if err := p.usable(); err != nil {
		return err
	}
	return p.fs.stalled()
}

// Close ends the store: it waits for what is under way, but not for room on a
// disk that is full. Views that are open find nothing after it.
func (p *Pebble) Close() error {
	p.mu.Lock()
	if p.isClosed() {
		p.mu.Unlock()
		return p.closeErr
	}
	close(p.closed)
	p.wake()
	p.mu.Unlock()
	p.fs.release() // what waits for room gives up
	idle := p.ops.shut(closeGrace)
	err := p.finish(idle)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeErr = err
	return err
}

// closeGrace bounds how long Close waits for what is under way, in a disk that
// does not answer.
const closeGrace = 10 * time.Second

func (p *Pebble) finish(idle bool) error {
	if !idle {
		p.fs.freeze(errors.New("the store was closed while a write did not end"))
		_ = p.lock.Close()
		return fmt.Errorf("store %s: a write did not end within %s of Close: its files are as after a crash", p.opts.Dir, closeGrace)
	}
	p.mu.Lock()
	for e := range p.editions {
		_ = e.snap.Close()
		e.snap = nil
	}
	p.editions = map[*edition]struct{}{}
	p.mu.Unlock()
	p.writer.ahead.close() // of a transaction that is open
	err := p.closeDB()
	if p.fs.refused() != nil {
		err = nil // it was told to who wrote
	}
	p.fs.close()
	return errors.Join(err, p.lock.Close())
}

// closeDB closes the database. One that has met an error that it does not
// expect can panic.
func (p *Pebble) closeDB() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("store %s: %v", p.opts.Dir, r)
		}
	}()
	return p.db.Close()
}

// fail makes the store refuse to write any more: what is on disk is as after a
// crash, and opening it again mends it.
func (p *Pebble) fail(cause error) {
	err := cause
	if p.isClosed() {
		err = engine.ErrClosed
	}
	p.fs.freeze(err)
}

// pebbleLogger hears what the database says of itself.
type pebbleLogger struct{ p *Pebble }

func (l *pebbleLogger) Infof(string, ...any) {}

func (l *pebbleLogger) Errorf(format string, args ...any) {
	l.p.opts.Logger.Warn("store: " + fmt.Sprintf(format, args...))
}

// Fatalf is called where the database would end the process: a write has
// failed, and it does not know what is on disk.
func (l *pebbleLogger) Fatalf(format string, args ...any) {
	if l.p.fs.inVain() {
		return
	}
	msg := fmt.Sprintf(format, args...)
	l.p.opts.Logger.Error("store: nothing more is written", "dir", l.p.opts.Dir, "error", msg)
	l.p.fail(fmt.Errorf("store %s: a write failed, and nothing more is written until it is opened again: %s", l.p.opts.Dir, msg))
}

// opGate counts what is under way, so that Close can wait for it.
type opGate struct {
	n    atomic.Int64
	over atomic.Bool
}

func (g *opGate) enter() bool {
	g.n.Add(1)
	if g.over.Load() {
		g.n.Add(-1)
		return false
	}
	return true
}

func (g *opGate) leave() { g.n.Add(-1) }

// shut lets nothing more in, and waits for what is.
func (g *opGate) shut(atMost time.Duration) bool {
	g.over.Store(true)
	for end := time.Now().Add(atMost); g.n.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// get returns what is at a key as of a reader. The value is valid until done.
func get(from pebble.Reader, key []byte) (v []byte, done io.Closer, err error) {
	v, done, err = from.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil, nil
	}
	return v, done, err
}

// PebbleMetrics is how a durable store fares.
type PebbleMetrics struct {
	DiskBytes       uint64 // on disk, with what waits to be deleted
	LiveBytes       uint64 // of tables in use
	WALBytes        uint64 // written ahead and not yet in tables
	MemTableBytes   uint64
	CompactionDebt  uint64 // bytes to compact until the shape is right
	BlockCacheBytes int64
	BlockCacheHits  int64
	BlockCacheMiss  int64
	RecentBytes     int // of log entries in memory
	JournalBytes    int // of log entries
	Stalled         bool
}

// Metrics returns how the store fares; all zero once it is closed.
func (p *Pebble) Metrics() PebbleMetrics {
	if !p.ops.enter() {
		return PebbleMetrics{}
	}
	defer p.ops.leave()
	m := p.db.Metrics()
	p.mu.Lock()
	journal := p.cur.root.journal
	p.mu.Unlock()
	return PebbleMetrics{
		DiskBytes: m.DiskSpaceUsage(), LiveBytes: m.Table.Local.LiveSize, WALBytes: m.WAL.Size, MemTableBytes: m.MemTable.Size,
		CompactionDebt: m.Compact.EstimatedDebt, BlockCacheBytes: m.BlockCache.Size, BlockCacheHits: m.BlockCache.Hits,
		BlockCacheMiss: m.BlockCache.Misses, RecentBytes: p.recent.bytes(), JournalBytes: journal, Stalled: p.Stalled() != nil,
	}
}

// ErrInUse: another process has the store open.
var ErrInUse = errors.New("the store is in use")

func inUse(dir string, err error) error {
	if unmade := (*os.PathError)(nil); errors.As(err, &unmade) {
		return fmt.Errorf("store %s: it cannot be locked: %w: let this node write to its directory, or name another", dir, err)
	}
	return fmt.Errorf("store %s: %w by another process (or twice by this one): a directory belongs to one node; end the other, or give this one a directory of its own: %w", dir, ErrInUse, err)
}
