// Package spill keeps runs of records that may be larger than memory in
// scratch files: the changes of a transaction before its commit is known.
//
// A File holds its newest records in memory and appends them to a file of its
// own once there are more than a bound. The file has no name any more when it
// holds anything, so that nothing is left behind however the process ends, and
// nothing is ever synced: what a crash takes, its origin sends again.
//
// An Append that fails has taken nothing of its record, and can be tried again
// when there is room.
package spill

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
)

// Error is a scratch file that could not be made, written or read.
type Error struct {
	Op  string // create, write or read
	Dir string // the scratch directory
	// Held is how much the scratch files of this Dir hold.
	Held int64
	Err  error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("scratch directory %s (%d bytes held in it): %s: %v", e.Dir, e.Held, e.Op, e.Err)
	switch {
	case Full(e.Err):
		s += ". Make room on that file system, or name a directory on a larger one"
	case e.Op == "create":
		s += ". It must be there, and this process must be able to write to it"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Full reports whether an error says that there is no room: it may pass.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Dir is a scratch directory. It is safe for concurrent use.
type Dir struct {
	path string
	used atomic.Int64
}

// NewDir returns a scratch directory at a path; os.TempDir() if that is empty.
func NewDir(path string) *Dir {
	if path == "" {
		path = os.TempDir()
	}
	return &Dir{path: path}
}

// Path is where the directory is.
func (d *Dir) Path() string { return d.path }

// Used is how many bytes the files made in it hold on disk.
func (d *Dir) Used() int64 { return d.used.Load() }

func (d *Dir) fail(op string, err error) error {
	return &Error{Op: op, Dir: d.path, Held: d.Used(), Err: err}
}

// File is an append-only run of records. It is for one goroutine.
type File struct {
	dir     *Dir
	memory  int
	tail    []byte   // records that are not in the file
	file    *os.File // nil until needed
	written int64
	records int
	size    int64
}

// New returns an empty File that keeps about that many bytes in memory.
func (d *Dir) New(memory int) *File { return &File{dir: d, memory: memory} }

// Len is the number of records.
func (f *File) Len() int { return f.records }

// Size is the number of bytes in records.
func (f *File) Size() int64 { return f.size }

// Spilled is the number of bytes that are on disk.
func (f *File) Spilled() int64 { return f.written }

// Append adds a record: its parts, one after the other.
func (f *File) Append(parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if len(f.tail) > 0 && len(f.tail)+n+binary.MaxVarintLen32 > f.memory {
		if err := f.flush(); err != nil {
			return err
		}
	}
	f.tail = binary.AppendUvarint(f.tail, uint64(n))
	for _, p := range parts {
		f.tail = append(f.tail, p...)
	}
	f.records++
	f.size += int64(n)
	return nil
}

// flush writes what is in memory to the file.
func (f *File) flush() error {
	if f.file == nil {
		file, err := os.CreateTemp(f.dir.path, "tributary-spill-")
		if err != nil {
			return f.dir.fail("create", err)
		}
		if err := os.Remove(file.Name()); err != nil {
			_ = file.Close()
			return f.dir.fail("create", err)
		}
		f.file = file
	}
	if _, err := f.file.WriteAt(f.tail, f.written); err != nil {
		return f.dir.fail("write", err)
	}
	f.written += int64(len(f.tail))
	f.dir.used.Add(int64(len(f.tail)))
	if cap(f.tail) > 2*f.memory {
		f.tail = nil // one large record was in it
	}
	f.tail = f.tail[:0]
	return nil
}

// Close gives the file's room back.
func (f *File) Close() {
	if f.file != nil {
		_ = f.file.Close() // it has no name and nothing in it is wanted
		f.file = nil
	}
	f.dir.used.Add(-f.written)
	f.tail, f.written, f.records, f.size = nil, 0, 0, 0
}

// readAhead is how much of a file is read at once.
const readAhead = 256 << 10

// Reader reads a File from its first record on. Nothing is appended meanwhile.
type Reader struct {
	f    *File
	disk *bufio.Reader // nil if nothing of the file is left
	skip int           // bytes of disk that were handed out last
	tail []byte
	big  []byte
}

// Reader returns a reader of the records appended so far.
func (f *File) Reader() *Reader {
	r := &Reader{f: f, tail: f.tail}
	if f.written > 0 {
		r.disk = bufio.NewReaderSize(io.NewSectionReader(f.file, 0, f.written), readAhead)
	}
	return r
}

// Next returns a record, which is valid until the next call, and io.EOF after
// the last one.
func (r *Reader) Next() ([]byte, error) {
	if r.disk != nil {
		rec, err := r.fromDisk()
		if err != io.EOF {
			return rec, err
		}
		r.disk, r.big = nil, nil
	}
	if len(r.tail) == 0 {
		return nil, io.EOF
	}
	n, used := binary.Uvarint(r.tail)
	rec := r.tail[used : used+int(n)]
	r.tail = r.tail[used+int(n):]
	return rec[:n:n], nil
}

func (r *Reader) fromDisk() ([]byte, error) {
	if _, err := r.disk.Discard(r.skip); err != nil {
		return nil, r.f.dir.fail("read", err)
	}
	r.skip = 0
	n, err := binary.ReadUvarint(r.disk)
	if err == io.EOF {
		return nil, io.EOF
	}
	if err != nil {
		return nil, r.f.dir.fail("read", err)
	}
	size := int(n)
	if size <= readAhead {
		rec, err := r.disk.Peek(size)
		if err != nil {
			return nil, r.f.dir.fail("read", unexpected(err))
		}
		r.skip = size
		return rec[:size:size], nil
	}
	if cap(r.big) < size {
		r.big = make([]byte, size)
	}
	r.big = r.big[:size]
	if _, err := io.ReadFull(r.disk, r.big); err != nil {
		return nil, r.f.dir.fail("read", unexpected(err))
	}
	return r.big, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
