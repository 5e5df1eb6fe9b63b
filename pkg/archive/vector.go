package archive

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Cursor is how far a log is in an archive.
type Cursor struct {
	Log      engine.LogID
	Position engine.Position
	// Time of the last transaction up to Position; 0 where unknown.
	Time engine.Time
	// Order names the comparator of the log's positions in engine.Comparators;
	// empty means "lsn".
	Order string
	// CompleteFrom, in the vector of a base, is the time from which it holds every
	// delete of the log's origin as a tombstone; 0 where unknown. It is not compared.
	CompleteFrom engine.Time
}

// Compare compares the cursor's position with another of its log, in the log's order.
func (c Cursor) Compare(p engine.Position) int {
	order := c.Order
	if order == "" {
		order = "lsn"
	}
	return engine.Comparators[order](c.Position, p)
}

// Vector is a vector of cursors, one of each log, ordered by log. The empty vector
// means "nothing".
type Vector []Cursor

// NewVector returns a vector of cursors in any order.
func NewVector(cs ...Cursor) Vector {
	v := slices.Clone(cs)
	slices.SortFunc(v, func(a, b Cursor) int { return compareLogs(a.Log, b.Log) })
	return v
}

func compareLogs(a, b engine.LogID) int {
	return cmp.Or(strings.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
}

// Cursor returns the cursor of a log.
func (v Vector) Cursor(log engine.LogID) (Cursor, bool) {
	i, ok := slices.BinarySearchFunc(v, log, func(c Cursor, l engine.LogID) int { return compareLogs(c.Log, l) })
	if !ok {
		return Cursor{}, false
	}
	return v[i], true
}

// SameLogs reports whether two vectors are of the same logs.
func (v Vector) SameLogs(o Vector) bool {
	return slices.EqualFunc(v, o, func(a, b Cursor) bool { return a.Log == b.Log })
}

// Equal reports whether two vectors are of the same logs and at the same positions.
func (v Vector) Equal(o Vector) bool {
	return slices.EqualFunc(v, o, func(a, b Cursor) bool { return a.Log == b.Log && a.Compare(b.Position) == 0 })
}

// Reaches reports whether v is of the same logs as o and in none of them before it.
func (v Vector) Reaches(o Vector) bool {
	return slices.EqualFunc(v, o, func(a, b Cursor) bool { return a.Log == b.Log && a.Compare(b.Position) >= 0 })
}

// Time returns the latest time in the vector.
func (v Vector) Time() (t engine.Time) {
	for _, c := range v {
		t = max(t, c.Time)
	}
	return t
}

func (v Vector) String() string {
	if len(v) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for i, c := range v {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s", c.Log, cmp.Or(string(c.Position), "start"))
	}
	return b.String()
}

// check says whether the vector can be kept.
func (v Vector) check() error {
	for i, c := range v {
		switch {
		case c.Log.IsZero():
			return fmt.Errorf("vector %s: a cursor names no log", v)
		case i > 0 && compareLogs(v[i-1].Log, c.Log) >= 0:
			return fmt.Errorf("vector %s: it is not ordered by log", v)
		case c.Order != "" && engine.Comparators[c.Order] == nil:
			return fmt.Errorf("vector %s: the positions of log %s are ordered by %q, which is none of lsn, number and bytes", v, c.Log, c.Order)
		case !utf8.ValidString(c.Log.Origin) || !utf8.ValidString(string(c.Position)):
			return fmt.Errorf("vector %s: an origin or a position is not UTF-8", v)
		}
	}
	return nil
}
