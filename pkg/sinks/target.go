package sinks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Target is where a sink delivers. One goroutine calls it. An error that is no
// Rejection means that the target cannot be reached, or not now: the sink closes
// it, waits, and opens it again.
type Target interface {
	// Open connects and checks what it needs. It returns the cursors up to which
	// the target has everything.
	Open(ctx context.Context) (engine.Cursors, error)
	// Baseline makes the tables of the target what the snapshot holds, together
	// with its cursors.
	Baseline(ctx context.Context, s *Snapshot) error
	// Apply delivers a batch, together with its cursor.
	Apply(ctx context.Context, b *Batch) error
	Close()
}

// ErrFenced: another instance has moved the cursor at the target. The sink
// reads it again.
var ErrFenced = errors.New("another instance of this sink has moved the cursor at the target")

// Lost says that the target no longer has what was delivered to it, as when a table
// was dropped there: the log is baselined anew.
type Lost struct{ Why string }

func (e *Lost) Error() string { return e.Why }

// Rejection says that the target does not take what it was given, and that
// trying again cannot help until someone mends something.
type Rejection struct {
	// Entry that was rejected, where it is known.
	Entry *Rejected
	// Err says why, and how to mend it.
	Err error
}

func (e *Rejection) Error() string {
	if e.Entry == nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.Entry, e.Err)
}

func (e *Rejection) Unwrap() error { return e.Err }

// Rejected names an entry that a target rejected.
type Rejected struct {
	Table    engine.TableName
	Op       engine.Op
	Key      []byte // nil where the entry has none, or it is not known
	Log      engine.LogID
	Position engine.Position
}

func (r *Rejected) String() string {
	s := fmt.Sprintf("%s of %s at %s of log %s", r.Op, r.Table, r.Position, r.Log)
	if len(r.Key) > 0 {
		s = fmt.Sprintf("%s of %s with key %s at %s of log %s", r.Op, r.Table, FormatKey(r.Key), r.Position, r.Log)
	}
	return s
}

// FormatKey writes a key for people: its columns' values with commas.
func FormatKey(key []byte) string {
	parts, err := engine.DecodeKey(key)
	if err != nil {
		return fmt.Sprintf("%x", key)
	}
	s := "("
	for i, p := range parts {
		if i > 0 {
			s += ", "
		}
		switch {
		case p == nil:
			s += "null"
		case len(p) > maxShown:
			s += string(p[:maxShown]) + "..."
		default:
			s += string(p)
		}
	}
	return s + ")"
}

// maxShown bounds what is shown of a value.
const maxShown = 100

// Later says that the target asks not to be tried again before some time has
// passed.
type Later struct {
	Err   error
	After time.Duration
}

func (e *Later) Error() string { return e.Err.Error() }
func (e *Later) Unwrap() error { return e.Err }
