package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// diskFS is the file system as the database sees it. The database takes a full
// disk for the end of the world, so it is never told of one: what finds no room
// waits until there is some. Once frozen, nothing is altered any more, as if the
// process had ended. If that is since it is to end without room, the database is not
// told of that either, which it cannot bear: what it writes then is kept in memory as
// far as it needs it to end, or nowhere. It also remembers how far files have been
// synced (see witness).
type diskFS struct {
	vfs.FS
	dir     string
	reserve int64
	frozen  atomic.Pointer[error]
	ending  chan struct{} // closed when nothing waits for room any more
	vain    *vfs.MemFS    // what is written in vain
	witness witness

	mu      sync.Mutex
	waiting int // for room
	full    *DiskFullError
	looked  time.Time // at the free space
	low     bool
}

// DiskFullError: writes wait for room. Nothing is lost, and they go on by
// themselves.
type DiskFullError struct {
	Path  string
	Free  uint64 // bytes, when last looked at
	Since time.Time
	Err   error // what the file system said, or nil if room is short of the reserve only
}

func (e *DiskFullError) Error() string {
	why := fmt.Sprintf("%d bytes are free, less than the reserve", e.Free)
	if e.Err != nil {
		why = fmt.Sprintf("%v (%d bytes are free)", e.Err, e.Free)
	}
	return fmt.Sprintf("no room to write %s: %s; commits wait since %s, nothing is lost, and they go on when there is room: "+
		"enlarge the volume, or lower what the node retains", e.Path, why, e.Since.UTC().Format(time.RFC3339))
}

func (e *DiskFullError) Unwrap() error {
	if e.Err != nil {
		return e.Err
	}
	return syscall.ENOSPC
}

func isFull(err error) bool {
	return err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

func newDiskFS(inner vfs.FS, dir string, reserve int64) *diskFS {
	return &diskFS{FS: inner, dir: dir, reserve: reserve, ending: make(chan struct{}), vain: vfs.NewMem()}
}

func (fs *diskFS) dbDir() string { return fs.PathJoin(fs.dir, "db") }

// Unwrap returns the file system below.
func (fs *diskFS) Unwrap() vfs.FS { return fs.FS }

// freeze lets nothing be altered any more.
func (fs *diskFS) freeze(err error) {
	fs.frozen.CompareAndSwap(nil, &err)
	fs.release()
}

// release makes what waits for room give up, now and later.
func (fs *diskFS) release() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	select {
	case <-fs.ending:
	default:
		close(fs.ending)
	}
}

func (fs *diskFS) refused() error {
	if err := fs.frozen.Load(); err != nil {
		return *err
	}
	return nil
}

// inVain reports whether the database ends without room, and what it writes is lost.
func (fs *diskFS) inVain() bool { return errors.Is(fs.refused(), engine.ErrClosed) }

// refusal is what the database is told of refused.
func (fs *diskFS) refusal() error {
	if fs.inVain() {
		return nil
	}
	return fs.refused()
}

// stalled returns why writes wait, or nil.
func (fs *diskFS) stalled() error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.full == nil {
		return nil
	}
	e := *fs.full
	return &e
}

// wait notes that a write waits for room. What it returns is called when it
// does no more.
func (fs *diskFS) wait(path string, err error) (done func()) {
	free := fs.free()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.waiting++
	if fs.full == nil {
		fs.full = &DiskFullError{Path: path, Since: time.Now()}
	}
	fs.full.Free = free
	if err != nil {
		fs.full.Err = err
	}
	return func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		if fs.waiting--; fs.waiting == 0 {
			fs.full = nil
		}
	}
}

func (fs *diskFS) free() uint64 {
	u, err := fs.GetDiskUsage(fs.dir)
	if err != nil {
		return 0
	}
	return u.AvailBytes
}

// How often a write that found no room is tried again.
const (
	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
)

// do does something that needs room until there is some, or in vain.
func (fs *diskFS) do(path string, fn func() error) error {
	if err := fs.try(path, fn); err != nil && !fs.inVain() {
		return err
	}
	return nil
}

// try does something that needs room until there is some.
func (fs *diskFS) try(path string, fn func() error) error {
	var done func()
	defer func() {
		if done != nil {
			done()
		}
	}()
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		if err := fs.refused(); err != nil {
			return err
		}
		err := fn()
		if !isFull(err) {
			return err
		}
		if done == nil {
			done = fs.wait(path, err)
		}
		select {
		case <-time.After(pause):
		case <-fs.ending:
			fs.freeze(engine.ErrClosed)
		}
	}
}

// room waits until the free space is above the reserve. How much is free is
// looked at ten times a second.
func (fs *diskFS) room(ctx context.Context, closed <-chan struct{}) error {
	if !fs.short() {
		return nil
	}
	done := fs.wait(fs.dir, nil)
	defer func() { done() }()
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		select {
		case <-time.After(pause):
		case <-closed:
			return engine.ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !fs.short() {
			return nil
		}
	}
}

// short reports whether the free space is below the reserve.
func (fs *diskFS) short() bool {
	if fs.reserve < 0 {
		return false
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if now := time.Now(); now.Sub(fs.looked) > 100*time.Millisecond || fs.low {
		fs.looked = now
		u, err := fs.GetDiskUsage(fs.dir)
		fs.low = err == nil && u.TotalBytes > 0 && u.AvailBytes < min(uint64(fs.reserve), u.TotalBytes/16)
		if fs.full != nil && err == nil {
			fs.full.Free = u.AvailBytes
		}
	}
	return fs.low
}

// make makes a file that is written.
func (fs *diskFS) make(name string, c vfs.DiskWriteCategory, fn func() (vfs.File, error)) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fn(); return err })
	switch {
	case err == nil:
		return &diskFile{File: f, fs: fs, name: name, table: isTable(name), proof: fs.witness.follow(fs.PathBase(name))}, nil
	case !fs.inVain():
		return nil, err
	}
	if f, err = fs.vain.Create(fs.PathBase(name), c); err != nil || isTable(name) && c == flushes {
		return f, err // is read again if the database has to compact it, before it can end
	}
	return &diskFile{File: f, fs: fs, name: name}, nil
}

// flushes are what the database writes of what it has in memory: a bounded amount.
const flushes vfs.DiskWriteCategory = "pebble-memtable-flush"

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

func (fs *diskFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.make(name, c, func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

func (fs *diskFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return fs.make(name, c, func() (vfs.File, error) { return fs.FS.OpenReadWrite(name, c, opts...) })
}

func (fs *diskFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.refused() == nil {
		fs.witness.forget(fs.PathBase(from))
	}
	return fs.make(to, c, func() (vfs.File, error) { return fs.FS.ReuseForWrite(from, to, c) })
}

func (fs *diskFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if fs.inVain() {
		if f, err := fs.vain.Open(fs.PathBase(name)); err == nil {
			return f, nil
		}
	}
	return fs.FS.Open(name, opts...)
}

func (fs *diskFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, fs: fs, name: name}, nil
}

func (fs *diskFS) Link(from, to string) error {
	return fs.do(to, func() error { return fs.FS.Link(from, to) })
}

func (fs *diskFS) Rename(from, to string) error {
	return fs.do(to, func() error { return fs.FS.Rename(from, to) })
}

func (fs *diskFS) MkdirAll(dir string, perm os.FileMode) error {
	return fs.do(dir, func() error { return fs.FS.MkdirAll(dir, perm) })
}

func (fs *diskFS) Remove(name string) error {
	if fs.refused() != nil {
		return fs.refusal()
	}
	fs.witness.forget(fs.PathBase(name))
	return fs.FS.Remove(name)
}

func (fs *diskFS) RemoveAll(name string) error {
	if fs.refused() != nil {
		return fs.refusal()
	}
	return fs.FS.RemoveAll(name)
}

// diskFile is a file of a diskFS. It is written from its start to its end, by
// one goroutine at a time.
type diskFile struct {
	vfs.File
	fs    *diskFS
	name  string
	table bool   // on disk
	proof *proof // nil: of no interest to the witness
	// Flushes and compactions sync one directory at the same time.
	size atomic.Int64 // written
	safe atomic.Int64 // of it synced
}

func (f *diskFile) Write(p []byte) (n int, err error) {
	if f.proof != nil {
		f.proof.wrote(p)
	}
	err = f.do(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		f.size.Add(int64(m))
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		return err
	})
	if err == nil {
		n = len(p) // or in vain
	}
	return n, err
}

func (f *diskFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.do(func() error { n, err = f.File.WriteAt(p, at); return err })
	if err == nil {
		n = len(p)
	}
	return n, err
}

// do is as that of the file system. A table that is on disk in part is given up: the
// database writes another.
func (f *diskFile) do(fn func() error) error {
	if f.table {
		return f.fs.try(f.name, fn)
	}
	return f.fs.do(f.name, fn)
}

// Preallocate waits for no room: it may ask for more than the disk will ever have, such
// as for a whole log, and the database goes on without.
func (f *diskFile) Preallocate(offset, length int64) error {
	if err := f.fs.refused(); err != nil {
		return err
	}
	return f.File.Preallocate(offset, length)
}

func (f *diskFile) Sync() error { return f.sync(f.File.Sync) }

func (f *diskFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *diskFile) SyncTo(length int64) (full bool, err error) {
	err = f.sync2(func() error { full, err = f.File.SyncTo(length); return err })
	if full && err == nil {
		f.synced()
	}
	return full, err
}

func (f *diskFile) sync(fn func() error) error {
	err := f.sync2(fn)
	if err == nil {
		f.synced()
	}
	return err
}

// sync2 syncs until there is room. A system that could not write what it had
// taken may forget that it has to: it is given again.
func (f *diskFile) sync2(fn func() error) error {
	again := false
	return f.do(func() error {
		if again {
			if err := f.rewrite(); err != nil {
				return err
			}
		}
		err := fn()
		again = isFull(err)
		return err
	})
}

// rewrite writes what has not been synced over itself.
func (f *diskFile) rewrite() error {
	buf := make([]byte, 64<<10)
	for at, end := f.safe.Load(), f.size.Load(); at < end; {
		n, err := f.File.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
		if n == 0 {
			return err
		}
		if _, err := f.File.WriteAt(buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

func (f *diskFile) synced() {
	if f.fs.refused() != nil { // in vain
		return
	}
	f.safe.Store(f.size.Load())
	if f.proof != nil {
		f.proof.synced()
	}
}
