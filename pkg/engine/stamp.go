package engine

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Time is a hybrid logical time: microseconds since 1970, never falling within
// an origin. The zero Time is before every other.
type Time uint64

// Wall returns the wall-clock reading nearest to t.
func (t Time) Wall() time.Time { return time.UnixMicro(int64(t)).UTC() }

// TimeOf returns the hybrid time of a wall-clock reading; readings before 1970 give 0.
func TimeOf(w time.Time) Time {
	if us := w.UnixMicro(); us > 0 {
		return Time(us)
	}
	return 0
}

// Epoch names one unbroken history of an origin. It is the hybrid time at
// which it was minted, so epochs of one origin are ordered. Zero is no epoch.
type Epoch uint64

func (e Epoch) String() string { return fmt.Sprintf("%d", uint64(e)) }

// LogID names a log.
type LogID struct {
	Origin string // the node that minted the log, such as "orders/root"
	Epoch  Epoch
}

func (l LogID) String() string { return l.Origin + "@" + l.Epoch.String() }

// IsZero reports whether l names no log.
func (l LogID) IsZero() bool { return l == LogID{} }

// Version orders the changes within one (origin, epoch). For PostgreSQL, Major
// is the end LSN of the transaction and Minor the index of the change in it,
// from 1; baseline rows are (consistent point, 0).
type Version struct {
	Major uint64
	Minor uint32
}

// Compare orders versions of one (origin, epoch).
func (v Version) Compare(o Version) int {
	if c := cmp.Compare(v.Major, o.Major); c != 0 {
		return c
	}
	return cmp.Compare(v.Minor, o.Minor)
}

// Stamp is the identity of a write. It travels with the change unaltered,
// whatever path the change takes.
type Stamp struct {
	Time    Time
	Origin  string
	Epoch   Epoch
	Version Version
}

// Log returns the log in which the write was made.
func (s Stamp) Log() LogID { return LogID{s.Origin, s.Epoch} }

// Compare is the one total order of writes: time, origin, epoch, version.
func (s Stamp) Compare(o Stamp) int {
	if c := cmp.Compare(s.Time, o.Time); c != 0 {
		return c
	}
	if c := strings.Compare(s.Origin, o.Origin); c != 0 {
		return c
	}
	if c := cmp.Compare(s.Epoch, o.Epoch); c != 0 {
		return c
	}
	return s.Version.Compare(o.Version)
}

func (s Stamp) String() string {
	return fmt.Sprintf("%d:%s@%d:%d.%d", s.Time, s.Origin, s.Epoch, s.Version.Major, s.Version.Minor)
}

// Clock is a hybrid logical clock. It is safe for concurrent use.
type Clock struct {
	now  func() time.Time
	mu   sync.Mutex
	last Time // never falls
}

// NewClock returns a clock over now (nil: time.Now) that starts above last.
func NewClock(now func() time.Time, last Time) *Clock {
	if now == nil {
		now = time.Now
	}
	return &Clock{now: now, last: last}
}

// Next returns a time above every time the clock has returned or observed.
func (c *Clock) Next() Time { return c.NextAt(c.now()) }

// NextAt is Next with the wall reading given: the commit time of a
// transaction, say.
func (c *Clock) NextAt(wall time.Time) Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(TimeOf(wall), c.last+1)
	return c.last
}

// Observe makes every later time be above t.
func (c *Clock) Observe(t Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, t)
}

// Last returns the newest time returned or observed.
func (c *Clock) Last() Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}
