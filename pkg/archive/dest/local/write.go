package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Create begins a file under another name.
func (d *Dest) Create(ctx context.Context, key string) (dest.Writer, error) {
	w, err := d.create(ctx, key)
	if err != nil {
		return nil, d.fail("create", key, err)
	}
	return w, nil
}

func (d *Dest) create(ctx context.Context, key string) (*writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	path, err := d.path(key)
	if err != nil {
		return nil, err
	}
	f, err := d.temp()
	if err != nil {
		return nil, err
	}
	return &writer{ctx: ctx, d: d, key: key, path: path, f: f}, nil
}

type writer struct {
	ctx  context.Context
	d    *Dest
	key  string
	path string
	f    *temp
	err  error // of the first write that failed
	done bool
}

func (w *writer) Write(p []byte) (int, error) {
	if w.err == nil {
		w.err = w.usable()
	}
	if w.err != nil {
		return 0, w.d.fail("write", w.key, w.err)
	}
	n, err := w.f.Write(p)
	if err != nil {
		w.err = err
		return n, w.d.fail("write", w.key, err)
	}
	return n, nil
}

func (w *writer) usable() error {
	if w.done {
		return os.ErrClosed
	}
	return w.ctx.Err()
}

func (w *writer) Commit() error {
	if w.err == nil {
		w.err = w.usable()
	}
	if w.err == nil {
		w.err = w.f.Sync()
	}
	if w.err == nil {
		w.err = w.commit()
	}
	if w.err != nil {
		w.Abort()
		return w.d.fail("commit", w.key, w.err)
	}
	return nil
}

// commit renames the file, which has been synced, and syncs its folder.
func (w *writer) commit() error {
	folder := filepath.Dir(w.path)
	if err := makeDirs(folder); err != nil {
		return err
	}
	if err := os.Rename(w.f.Name(), w.path); err != nil {
		return err
	}
	w.done = true
	w.f.Close()
	return syncDir(folder)
}

func (w *writer) Abort() {
	if !w.done {
		w.done = true
		w.f.remove()
	}
}

// temp is a file being written. Its lock, which ends with the process, says that it
// is not stale.
type temp struct{ *os.File }

func (t *temp) remove() {
	os.Remove(t.Name()) // before its lock goes
	t.Close()
}

func (d *Dest) temp() (*temp, error) {
	folder := filepath.Join(d.root, house)
	if err := makeDirs(folder); err != nil {
		return nil, err
	}
	d.swept.Do(func() { sweep(folder) })
	for {
		f, err := os.CreateTemp(folder, "new-*")
		if err != nil {
			return nil, err
		}
		t := &temp{f}
		if err := f.Chmod(fileMode); err != nil {
			t.remove()
			return nil, err
		}
		if flock(f) == nil && t.linked() {
			return t, nil
		}
		// Another process that sweeps was between the two.
		t.remove()
	}
}

// linked reports whether the file still has its name.
func (t *temp) linked() bool {
	here, err := t.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(t.Name())
	return err == nil && os.SameFile(here, named)
}

// sweep removes the files that killed processes were writing. What cannot be removed
// stays: it is in nobody's way.
func sweep(folder string) {
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "new-") {
			continue
		}
		f, err := os.Open(filepath.Join(folder, e.Name()))
		if err != nil {
			continue
		}
		if t := (&temp{f}); flock(f) == nil {
			t.remove()
		} else {
			t.Close()
		}
	}
}

// lock takes the folder's lock, waiting for it.
func (d *Dest) lock(ctx context.Context) (unlock func(), err error) {
	folder := filepath.Join(d.root, house)
	if err := makeDirs(folder); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := flock(f)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		}
	}
}

// flock locks a file for this opening of it.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// makeDirs makes a folder and those it is in, and syncs what each was made in.
func makeDirs(folder string) error {
	st, err := os.Stat(folder)
	if err == nil {
		if !st.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: folder, Err: errors.New("there is a file of that name")}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(folder)
	if parent == folder {
		return err
	}
	if err := makeDirs(parent); err != nil {
		return err
	}
	if err := os.Mkdir(folder, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
