package archive

import (
	"errors"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// What is wrong, for errors.Is. What a destination says, such as dest.ErrFull, is
// wrapped as it is.
var (
	// ErrNoArchive: there is no manifest under the key that was looked for.
	ErrNoArchive = errors.New("there is no archive")
	// ErrFenced: another writer has the archive. See FencedError.
	ErrFenced = errors.New("another writer has the archive")
	// ErrVersion: the manifest or an artifact is of a version that this one does not
	// know. See VersionError.
	ErrVersion = errors.New("unknown archive version")
	// ErrOtherTable: the archive is of another table.
	ErrOtherTable = errors.New("the archive is of another table")
	// ErrCorrupt: what is stored is not what was written. See CorruptError.
	ErrCorrupt = errors.New("the archive is damaged")
	// ErrNeedsBase: there is no base that a diff could follow.
	ErrNeedsBase = errors.New("the archive needs a base first")
	// ErrNotContiguous: a diff does not begin where the archive is. Ask
	// Writer.Through and begin there.
	ErrNotContiguous = errors.New("the diff does not begin where the archive ends")
	// ErrNotCovered: the archive has no chain of artifacts that serves what was
	// asked for.
	ErrNotCovered = errors.New("the archive does not reach")
)

// FencedError names the writer that has the archive.
type FencedError struct {
	Where  string // the manifest
	Writer WriterID
	Own    WriterID
}

func (e *FencedError) Error() string {
	if e.Own.ID == e.Writer.ID {
		return fmt.Sprintf("%s: a later life of writer %q, with fence %d, has the archive; this one, with fence %d, writes no more",
			e.Where, e.Writer.ID, e.Writer.Fence, e.Own.Fence)
	}
	return fmt.Sprintf("%s: writer %q, with fence %d, has the archive, and this is %q: end that one, or have this one take the archive over",
		e.Where, e.Writer.ID, e.Writer.Fence, e.Own.ID)
}

func (e *FencedError) Unwrap() error { return ErrFenced }

// VersionError names both versions.
type VersionError struct {
	Where string
	Has   int
	Known int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s is of version %d, and this program reads version %d: use a newer one", e.Where, e.Has, e.Known)
}

func (e *VersionError) Unwrap() error { return ErrVersion }

// CorruptError says where an archive is damaged. Line is for JSON, and Block for
// the other format; both count from 1, and are 0 where that is not known.
type CorruptError struct {
	Key    string // of the object
	Where  string // the destination
	Block  int
	Line   int
	Offset int64 // of the block or line in the object; -1 where not known
	Why    string
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("%q in %s is damaged", e.Key, e.Where)
	switch {
	case e.Line > 0:
		s += fmt.Sprintf(" at line %d (offset %d)", e.Line, e.Offset)
	case e.Block > 0:
		s += fmt.Sprintf(" at block %d (offset %d)", e.Block, e.Offset)
	case e.Offset >= 0:
		s += fmt.Sprintf(" at offset %d", e.Offset)
	}
	return s + ": " + e.Why
}

func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// NotCoveredError says what the archive has instead.
type NotCoveredError struct {
	Table  engine.TableName
	Reason string
}

func (e *NotCoveredError) Error() string {
	return fmt.Sprintf("archive of %s: %s", e.Table, e.Reason)
}

func (e *NotCoveredError) Unwrap() error { return ErrNotCovered }
