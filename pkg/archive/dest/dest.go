// Package dest says what an archive needs of the place that keeps it.
//
// A Destination keeps objects under keys. Artifacts are streamed into it once
// and never changed; a manifest is small and is replaced by compare-and-swap,
// which is what makes one of two writers win. Package local keeps objects in a
// folder, package s3 in a bucket; desttest is the suite that both pass, and makes
// a destination fail where a test wants it to.
//
// A key is one or more names joined by slashes: see CheckKey. A key cannot be a
// folder of another one at the same time, as in a/b and a/b/c: some stores cannot
// keep both.
package dest

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Destination is a place that keeps an archive's objects. It is safe for concurrent
// use, by several processes too. Every error of it is an *Error.
type Destination interface {
	// Check says whether an archive can be written there: that it can be reached and
	// written to, and that Swap holds against others. A writer calls it once, before
	// it writes; it leaves nothing behind.
	Check(ctx context.Context) error
	// Create begins an object, in place of what is under the key, if anything.
	// Ending ctx fails what the Writer does.
	Create(ctx context.Context, key string) (Writer, error)
	// Open reads an object from an offset on; past its end there is nothing to read.
	// It fails with ErrNotExist, at once or at the first Read. An object that is
	// deleted or replaced meanwhile is read as it was or fails. If what is returned is an
	// io.ReaderAt too, then of the whole object, and until it is closed, also once ctx has
	// ended: who needs it twice need not keep a copy.
	Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	// Read reads a small object whole, and its tag. It fails with ErrNotExist, and
	// with ErrNotModified if its tag is have, unless that is empty.
	Read(ctx context.Context, key string, have Tag) ([]byte, Tag, error)
	// Swap replaces a small object if it still has the tag old, or makes it if old is
	// empty and there is none; otherwise it fails with ErrConflict. A swap whose answer
	// was lost is recognized: what is stored under the key is data. So data that several
	// may swap in at once needs something of each one's own. After any other error it may
	// have been done or not, as reading it again tells.
	Swap(ctx context.Context, key string, old Tag, data []byte) (Tag, error)
	// Stat tells an object's size and time. It fails with ErrNotExist.
	Stat(ctx context.Context, key string) (Info, error)
	// List lists the objects whose keys begin with a prefix, which may end within a
	// name, in no order. It ends at the first error. What is committed or deleted
	// meanwhile may be listed or not.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete deletes an object; one that is not there is deleted.
	Delete(ctx context.Context, key string) error
	// Describe names the destination for messages: a folder, or s3://bucket/prefix.
	Describe() string
}

// Writer writes an object. It is not safe for concurrent use. It ends with Commit
// or with Abort.
type Writer interface {
	io.Writer
	// Commit puts the object under its key. Once it has returned nil the object is
	// there whole and outlives a power cut; before, and after an error, there is
	// what was there before, or all of it, but never a part.
	Commit() error
	// Abort leaves nothing behind. After Commit it does nothing.
	Abort()
}

// Tag stands for what an object held when it was read. It means something to the
// destination that gave it only, and is compared, never taken apart.
type Tag string

// Info is what List and Stat tell of an object.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Limits of what is kept.
const (
	MaxKey   = 900       // bytes of a key
	MaxName  = 200       // bytes of each of its names
	MaxSmall = 256 << 20 // bytes of an object that is read whole or swapped
)

// reserved begins names that destinations keep for themselves.
const reserved = ".tributary"

// CheckKey says whether a key can be used with every destination: names of at most
// MaxName bytes of printable UTF-8, MaxKey in all, none of them empty, "." or ".." or
// beginning with ".tributary", and without backslashes.
func CheckKey(key string) error {
	if why := keyProblem(key); why != "" {
		return fmt.Errorf("%w %q: %s", ErrKey, key, why)
	}
	return nil
}

func keyProblem(key string) string {
	switch {
	case key == "":
		return "it is empty"
	case len(key) > MaxKey:
		return fmt.Sprintf("it is %d bytes long, and %d is the limit", len(key), MaxKey)
	case !utf8.ValidString(key):
		return "it is not UTF-8"
	}
	for name := range strings.SplitSeq(key, "/") {
		switch {
		case name == "":
			return "a name in it is empty: take out the slash at its beginning or end, or the second of two"
		case name == "." || name == "..":
			return fmt.Sprintf("the name %q in it would lead elsewhere", name)
		case len(name) > MaxName:
			return fmt.Sprintf("a name in it is %d bytes long, and %d is the limit", len(name), MaxName)
		case strings.HasPrefix(name, reserved):
			return "names that begin with " + reserved + " are kept for destinations themselves"
		}
		if i := strings.IndexFunc(name, func(r rune) bool { return r == '\\' || !unicode.IsPrint(r) }); i >= 0 {
			r, _ := utf8.DecodeRuneInString(name[i:])
			return fmt.Sprintf("it holds the character %q", r)
		}
	}
	return ""
}
