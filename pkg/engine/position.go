package engine

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// Position is a place in a log: always the end of a transaction. It is opaque;
// only the log's Comparator looks inside. The empty Position is lowest under
// every comparator and means "before everything".
type Position string

// Comparator orders the positions of a log: negative when a is before b, zero
// when they are equal, positive when a is after b.
type Comparator func(a, b Position) int

// LSN is a PostgreSQL log sequence number.
type LSN uint64

// ParseLSN reads PostgreSQL's text form, two hexadecimal halves with a slash.
func ParseLSN(p Position) (LSN, error) {
	if lsn, ok := parseLSN(string(p)); ok {
		return lsn, nil
	}
	return 0, fmt.Errorf("position %q is not a PostgreSQL LSN: want two hexadecimal numbers with a slash, such as 16/B374D848", string(p))
}

// parseLSN is ParseLSN without its error: positions are compared at every step of a
// search in a log.
func parseLSN(s string) (LSN, bool) {
	var halves [2]uint64
	h, digits := 0, 0
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c == '/' && h == 0 && digits > 0:
			h, digits = 1, 0
			continue
		default:
			return 0, false
		}
		if halves[h] = halves[h]<<4 | uint64(c); halves[h] > math.MaxUint32 {
			return 0, false
		}
		digits++
	}
	return LSN(halves[0]<<32 | halves[1]), h == 1 && digits > 0
}

// Position returns the LSN in PostgreSQL's text form.
func (l LSN) Position() Position {
	var b [17]byte
	s := strconv.AppendUint(b[:0], uint64(l>>32), 16)
	s = append(s, '/')
	s = strconv.AppendUint(s, uint64(uint32(l)), 16)
	for i, c := range s {
		if c >= 'a' {
			s[i] = c - 'a' + 'A'
		}
	}
	return Position(s)
}

func (l LSN) String() string { return string(l.Position()) }

// CompareLSN is the default Comparator: PostgreSQL LSN order. A position that
// is not an LSN sorts below every LSN and by its bytes among its kind, so that
// the order stays total whatever a peer sends.
func CompareLSN(a, b Position) int {
	if a == b {
		return 0
	}
	if a == "" || b == "" {
		return cmp.Compare(len(a), len(b))
	}
	x, okA := parseLSN(string(a))
	y, okB := parseLSN(string(b))
	switch {
	case okA && okB:
		return cmp.Compare(x, y)
	case !okA && !okB:
		return cmp.Compare(a, b)
	case !okA:
		return -1
	}
	return 1
}

// CompareNumber orders decimal numbers of any length; the empty position is lowest.
func CompareNumber(a, b Position) int {
	x, y := strings.TrimLeft(string(a), "0"), strings.TrimLeft(string(b), "0")
	if c := cmp.Compare(len(x), len(y)); c != 0 {
		return c
	}
	if c := cmp.Compare(x, y); c != 0 || a == b {
		return c
	}
	return cmp.Compare(len(a), len(b))
}

// CompareBytes orders positions by their bytes.
func CompareBytes(a, b Position) int { return cmp.Compare(a, b) }

// Comparators are the comparators that configuration and adverts can name.
var Comparators = map[string]Comparator{
	"lsn":    CompareLSN,
	"number": CompareNumber,
	"bytes":  CompareBytes,
}

// Name returns the name of one of Comparators, or "" for another.
func (c Comparator) Name() string {
	for name, f := range Comparators {
		if c != nil && reflect.ValueOf(f).Pointer() == reflect.ValueOf(c).Pointer() {
			return name
		}
	}
	return ""
}
