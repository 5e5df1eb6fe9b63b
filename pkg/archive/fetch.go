package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// errGone: an artifact is not there any more.
var errGone = errors.New("the artifact is gone")

// fetched is an artifact that has been read and verified in whole, and is kept until it is
// passed on: what goes wrong with an archive goes wrong before that.
type fetched struct {
	small []byte      // all of it, if that is little
	place placed      // where it can be read again in place
	file  *spill.File // it, if neither
	entry File
	want  header
	key   string
	where string
	m     *Manifest
}

// placed is an object that its destination lets be read again: see dest.Destination.
type placed interface {
	io.ReaderAt
	io.Closer
}

const (
	chunk       = 64 << 10
	openRetries = 3
)

// fetch reads an artifact, in the first of the formats in which it is there and whole.
func (r *Reader) fetch(ctx context.Context, m *Manifest, a *Artifact) (*fetched, error) {
	var first error
	found := false
	for _, format := range r.cfg.Formats {
		for _, f := range a.Files {
			if f.Format != format {
				continue
			}
			found = true
			got, err := r.fetchFile(ctx, m, a, f)
			if err == nil {
				return got, nil
			}
			if ctx.Err() != nil || !errors.Is(err, ErrCorrupt) && !errors.Is(err, dest.ErrNotExist) {
				return nil, err
			}
			if first == nil || errors.Is(first, dest.ErrNotExist) {
				first = err
			}
		}
	}
	if !found {
		return nil, fmt.Errorf("archive of %s: the %s %s is not there in any of the formats %v", m.Table, a.Kind, a.ID, r.cfg.Formats)
	}
	if errors.Is(first, dest.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errGone, first)
	}
	return nil, first
}

func (r *Reader) fetchFile(ctx context.Context, m *Manifest, a *Artifact, f File) (*fetched, error) {
	got := &fetched{
		entry: f, want: headerOf(m.Archive, m.Table, a), key: r.prefix + f.Key, where: r.dest.Describe(), m: m,
	}
	sum, size := sha256.New(), int64(0)
	in, err := r.dest.Open(ctx, got.key, 0)
	little := f.Size <= int64(r.cfg.Memory/8)
	if place, ok := in.(placed); ok && !little {
		if size, err = io.CopyBuffer(sum, io.LimitReader(in, f.Size+1), make([]byte, 4*chunk)); err == nil {
			got.place = place
		} else { // on another try it is copied, in parts that are tried again
			_ = place.Close()
			sum.Reset()
			in, size = nil, 0
		}
	}
	if got.place == nil {
		if little {
			got.small = make([]byte, 0, f.Size)
		} else {
			got.file = r.cfg.Scratch.New(4 * chunk)
		}
		err = r.read(ctx, got.key, in, err, func(p []byte) error {
			if size += int64(len(p)); size > f.Size {
				return nil // it is not what was written: no more of it is kept
			}
			_, _ = sum.Write(p)
			if little {
				got.small = append(got.small, p...)
				return nil
			}
			return got.file.Append(p)
		})
	}
	if err == nil && (size != f.Size || hex.EncodeToString(sum.Sum(nil)) != f.SHA256) {
		err = got.damage(size)
	}
	if err != nil {
		got.close()
		return nil, err
	}
	return got, nil
}

// read reads an object that was opened, or was not, as err says, going on where it was if
// the destination fails in between.
func (r *Reader) read(ctx context.Context, key string, in io.ReadCloser, err error, fn func([]byte) error) error {
	offset, failed := int64(0), 0
	buf := make([]byte, chunk)
	for {
		for err == nil {
			var n int
			if n, err = io.ReadFull(in, buf); n > 0 {
				offset += int64(n)
				failed = 0
				if err := fn(buf[:n]); err != nil {
					_ = in.Close()
					return err
				}
			}
		}
		if in != nil {
			_ = in.Close()
		}
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if failed++; failed > openRetries || ctx.Err() != nil || !dest.Retryable(err) {
			return err
		}
		in, err = r.dest.Open(ctx, key, offset)
	}
}

// damage says where an artifact that does not have its checksum is damaged.
func (g *fetched) damage(size int64) error {
	if size > g.entry.Size {
		return &CorruptError{Key: g.key, Where: g.where, Offset: g.entry.Size, Why: fmt.Sprintf("it has %d bytes, and the manifest says %d", size, g.entry.Size)}
	}
	if err := g.decoding(visitor{}).decode(g.input(), g.entry.Format); err != nil {
		return err
	}
	return &CorruptError{Key: g.key, Where: g.where, Offset: -1, Why: "its checksum is not the one in the manifest: it is another artifact"}
}

func (g *fetched) input() io.Reader {
	switch {
	case g.place != nil:
		return io.NewSectionReader(g.place, 0, g.entry.Size)
	case g.file != nil:
		return &fileReader{r: g.file.Reader()}
	}
	return &memory{g.small}
}

func (g *fetched) decoding(v visitor) *decoding {
	d := newDecoding(&g.want, g.key, g.where, v)
	d.columns = g.m.Columns
	return d
}

// decode passes on what is in it.
func (g *fetched) decode(v visitor) error {
	d := g.decoding(v)
	d.verified = true
	return d.decode(g.input(), g.entry.Format)
}

// schemas returns the schemas that come before the first change.
func (g *fetched) schemas(add func(engine.LogID, *engine.Schema) error) error {
	stop := errors.New("enough")
	d := g.decoding(visitor{schema: add, entry: func(*Entry) error { return stop }})
	d.verified, d.few = true, true
	err := d.decode(g.input(), g.entry.Format)
	if errors.Is(err, stop) {
		return nil
	}
	return err
}

func (g *fetched) close() {
	if g == nil {
		return
	}
	if g.place != nil {
		_ = g.place.Close()
	}
	if g.file != nil {
		g.file.Close()
	}
}

// fileReader reads the chunks of a scratch file.
type fileReader struct {
	r    *spill.Reader
	rest []byte
}

func (f *fileReader) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		var err error
		if f.rest, err = f.r.Next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}
