// Package local keeps an archive's objects as files of a folder: the key is the
// path in it.
//
// A file is written under another name, synced, renamed, and its folder synced, so
// that after a power cut it is there whole or as before. Swap holds a lock on a file
// in the folder while it compares and renames, which holds off other processes on
// the same machine, and on others where the file system passes locks on, as NFS does.
//
// The folder .tributary in it is for that lock and for files being written. Those
// that a killed process has left are removed by the next writer.
package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

const (
	house    = ".tributary" // the folder for what is the destination's own
	dirMode  = 0o755
	fileMode = 0o644
)

// Dest is a folder.
type Dest struct {
	root  string
	swept sync.Once
}

var _ dest.Destination = (*Dest)(nil)

// New returns the destination of a folder, which is made by the first write.
func New(folder string) (*Dest, error) {
	if folder == "" {
		return nil, errors.New("the folder of a local archive has no name: give its path")
	}
	abs, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	return &Dest{root: abs}, nil
}

// Describe returns the folder's path.
func (d *Dest) Describe() string { return d.root }

// Check writes, syncs and removes a file.
func (d *Dest) Check(ctx context.Context) error {
	f, err := d.temp()
	if err != nil {
		return d.fail("check", "", err)
	}
	defer f.remove()
	if _, err := f.Write([]byte("check\n")); err != nil {
		return d.fail("check", "", err)
	}
	if err := f.Sync(); err != nil {
		return d.fail("check", "", err)
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return d.fail("check", "", err)
	}
	unlock()
	return nil
}

// Open opens the file.
func (d *Dest) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	f, err := d.open(ctx, key)
	if err != nil {
		return nil, d.fail("open", key, err)
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		f.Close()
		return nil, d.fail("open", key, err)
	}
	return &reader{ctx, d, key, f}, nil
}

type reader struct {
	ctx context.Context
	d   *Dest
	key string
	f   *os.File
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, r.d.fail("read", r.key, err)
	}
	n, err := r.f.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.d.fail("read", r.key, err)
	}
	return n, err
}

// ReadAt reads at an offset of the whole object, whatever has become of its key.
func (r *reader) ReadAt(p []byte, offset int64) (int, error) {
	n, err := r.f.ReadAt(p, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.d.fail("read", r.key, err)
	}
	return n, err
}

func (r *reader) Close() error { return r.f.Close() }

// open opens a file that is an object.
func (d *Dest) open(ctx context.Context, key string) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	path, err := d.path(key)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, dest.ErrNotExist)
	}
	return f, nil
}

// Read reads the file. Its tag is made of its content.
func (d *Dest) Read(ctx context.Context, key string, have dest.Tag) ([]byte, dest.Tag, error) {
	data, err := d.read(ctx, key)
	if err != nil {
		return nil, "", d.fail("read", key, err)
	}
	tag := tagOf(data)
	if tag == have {
		return nil, "", d.fail("read", key, dest.ErrNotModified)
	}
	return data, tag, nil
}

func (d *Dest) read(ctx context.Context, key string) ([]byte, error) {
	f, err := d.open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, dest.MaxSmall+1))
	if err == nil && len(data) > dest.MaxSmall {
		err = dest.ErrTooLarge
	}
	return data, err
}

func tagOf(data []byte) dest.Tag {
	sum := sha256.Sum256(data)
	return dest.Tag(hex.EncodeToString(sum[:]))
}

// Swap compares and renames under the folder's lock.
func (d *Dest) Swap(ctx context.Context, key string, old dest.Tag, data []byte) (dest.Tag, error) {
	if err := d.swap(ctx, key, old, data); err != nil {
		return "", d.fail("swap", key, err)
	}
	return tagOf(data), nil
}

func (d *Dest) swap(ctx context.Context, key string, old dest.Tag, data []byte) error {
	if len(data) > dest.MaxSmall {
		return dest.ErrTooLarge
	}
	w, err := d.create(ctx, key)
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.f.Sync(); err != nil { // without the lock: it takes a while
		return err
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := d.read(ctx, key)
	switch {
	case err == nil && bytes.Equal(now, data):
		// Done before; but whether that reached the disk is not known.
		return syncDir(filepath.Dir(w.path))
	case err == nil && tagOf(now) != old, gone(err) && old != "":
		return dest.ErrConflict
	case err != nil && !gone(err):
		return err
	}
	return w.commit()
}

// Stat looks at the file.
func (d *Dest) Stat(ctx context.Context, key string) (dest.Info, error) {
	f, err := d.open(ctx, key)
	if err != nil {
		return dest.Info{}, d.fail("stat", key, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return dest.Info{}, d.fail("stat", key, err)
	}
	return dest.Info{Key: key, Size: st.Size(), Modified: st.ModTime()}, nil
}

// Delete removes the file.
func (d *Dest) Delete(ctx context.Context, key string) error {
	err := ctx.Err()
	if err == nil {
		var path string
		if path, err = d.path(key); err == nil {
			err = syscall.Unlink(path) // os.Remove would take folders too
		}
	}
	if err != nil && !gone(err) {
		return d.fail("delete", key, err)
	}
	return nil
}

// path is the file of a key.
func (d *Dest) path(key string) (string, error) {
	if err := dest.CheckKey(key); err != nil {
		return "", err
	}
	return filepath.Join(d.root, filepath.FromSlash(key)), nil
}

// gone reports whether an error says that there is no such file. A name on the way
// that is a file is no folder that holds it, and a folder is no object.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) || errors.Is(err, dest.ErrNotExist)
}

// fail says what failed, in the terms of package dest.
func (d *Dest) fail(op, key string, err error) error {
	switch {
	case gone(err) && (op == "open" || op == "read" || op == "stat"):
		err = dest.ErrNotExist
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		err = fmt.Errorf("%w: %w", dest.ErrFull, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		err = fmt.Errorf("%w: %w", dest.ErrDenied, err)
	}
	return &dest.Error{Op: op, Dest: d.root, Key: key, Err: err}
}
