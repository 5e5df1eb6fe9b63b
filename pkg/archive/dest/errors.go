package dest

import (
	"context"
	"errors"
	"fmt"
)

// What is wrong, for errors.Is.
var (
	ErrNotExist    = errors.New("there is no such object")
	ErrConflict    = errors.New("another writer has changed the object")
	ErrNotModified = errors.New("the object has not changed")
	ErrFull        = errors.New("there is no space left")
	ErrDenied      = errors.New("access is denied")
	ErrKey         = errors.New("cannot use the key")
	ErrTooLarge    = errors.New("the object is too large to be read whole")
	// ErrNoSwap is of a store that cannot hold off a second writer.
	ErrNoSwap = errors.New("the store does not honour conditional writes")
)

// Error is an error of a destination: what failed there, with which object, and
// why.
type Error struct {
	Op   string // open, read, swap, ...
	Dest string // as Describe names it
	Key  string // empty where it is about the whole
	Err  error
}

func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s %s: %v", e.Op, e.Dest, e.Err)
	}
	return fmt.Sprintf("%s %q in %s: %v", e.Op, e.Key, e.Dest, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Retryable reports whether the same may go well a little later: what failed is
// neither an answer, such as ErrNotExist, nor something that a person has to mend.
// ErrFull counts as retryable, as space comes back.
func Retryable(err error) bool {
	for _, final := range []error{ErrNotExist, ErrConflict, ErrNotModified, ErrDenied, ErrKey, ErrTooLarge, ErrNoSwap, context.Canceled} {
		if errors.Is(err, final) {
			return false
		}
	}
	return err != nil
}
