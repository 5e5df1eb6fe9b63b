package store

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// CorruptError says what of a store is damaged, as far as is known.
// errors.Is(err, engine.ErrCorruptStore).
type CorruptError struct {
	Dir  string
	File string // empty where it is not known
	What string // such as a table and key, or a log and position
	Err  error
}

func (e *CorruptError) Error() string {
	where := e.What
	if e.File != "" {
		where = e.File + " (" + e.What + ")"
	}
	return fmt.Sprintf("store %s: %s is damaged: %v. The disk, or something that writes to it, does not return what was written: "+
		"replace the volume or empty the directory, and the node takes a new baseline", e.Dir, where, e.Err)
}

func (e *CorruptError) Unwrap() []error { return []error{engine.ErrCorruptStore, e.Err} }

// isDamage reports whether an error of the database means that what it read is
// not what it wrote.
func isDamage(err error) bool {
	return errors.Is(err, errDamaged) || pebble.IsCorruptionError(err)
}

// readError names where reading failed.
func (p *Pebble) readError(err error, what string) error {
	var known *CorruptError
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, engine.ErrClosed):
		return err
	case p.fs.inVain(): // what was not kept is not damaged
		return engine.ErrClosed
	case !isDamage(err):
		return fmt.Errorf("store %s: reading %s: %w", p.opts.Dir, what, err)
	}
	c := &CorruptError{Dir: p.opts.Dir, What: what, Err: err}
	if i := pebble.ExtractDataCorruptionInfo(err); i != nil {
		c.File = i.Path
	}
	p.rot(c)
	return c
}

func (p *Pebble) rowError(err error, table engine.TableName, key []byte) error {
	if err == nil {
		return nil
	}
	if key == nil {
		return p.readError(err, fmt.Sprintf("table %s", table))
	}
	return p.readError(err, fmt.Sprintf("table %s, key %q", table, key))
}

func (p *Pebble) logError(err error, log engine.LogID, after engine.Position) error {
	if err == nil {
		return nil
	}
	return p.readError(err, fmt.Sprintf("log %s after %q", log, string(after)))
}

// commitError names a write that failed.
func (p *Pebble) commitError(err error) error {
	var known *CorruptError
	if err == nil || errors.As(err, &known) || errors.Is(err, engine.ErrClosed) {
		return err
	}
	if e := p.usable(); e != nil {
		return e
	}
	return fmt.Errorf("store %s: %w", p.opts.Dir, err)
}

// damaged hears of damage that the database has met, also in the background.
func (p *Pebble) damaged(err error) {
	_ = p.readError(err, "found by background work or a read")
}

// rot makes the store refuse to build on what is damaged.
func (p *Pebble) rot(c *CorruptError) {
	var err error = c
	if p.rotten.CompareAndSwap(nil, &err) {
		p.opts.Logger.Error("store: damaged", "dir", p.opts.Dir, "error", err)
	}
}

// openError names why the database does not open.
func (p *Pebble) openError(err error) error {
	if e := p.fs.refused(); e != nil {
		return e
	}
	var errno syscall.Errno
	if errors.Is(err, os.ErrPermission) || errors.As(err, &errno) && errno != syscall.ENOENT {
		return fmt.Errorf("store %s: it cannot be opened: %w", p.opts.Dir, err)
	}
	c := &CorruptError{Dir: p.opts.Dir, What: "found at open", Err: err}
	if i := pebble.ExtractDataCorruptionInfo(err); i != nil {
		c.File = i.Path
	}
	return c
}
