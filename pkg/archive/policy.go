package archive

import (
	"fmt"
	"time"
)

// Policy says when a new base is due. What is zero does not count. A base is due as
// soon as one of the bounds is passed, but not before MinInterval has.
type Policy struct {
	DiffBytes int64         // stored, of the diffs since the base
	Fraction  float64       // stored bytes of the diffs over those of the base
	Churn     float64       // records in the diffs over rows of the base
	MaxDiffs  int           // since the base
	MaxAge    time.Duration // of the base
	// MinInterval is the floor: how old a base is at least before the next.
	MinInterval time.Duration
}

// DefaultPolicy keeps what a reader has to fetch below twice a base.
var DefaultPolicy = Policy{Fraction: 1, Churn: 2, MaxDiffs: 10_000, MinInterval: time.Hour}

// Due says why a base is due; empty if none is.
func (w *Writer) Due(p Policy) string {
	if _, needs := w.Through(); needs != "" {
		return needs
	}
	return p.due(w.Manifest().Current, w.cfg.Now())
}

func (p Policy) due(s Sum, now time.Time) string {
	age := now.Sub(s.Begun).Abs() // the clock can have gone back since
	switch {
	case age < p.MinInterval:
		return ""
	case p.DiffBytes > 0 && s.DiffBytes >= p.DiffBytes:
		return fmt.Sprintf("the diffs since the base take %d bytes", s.DiffBytes)
	case p.Fraction > 0 && float64(s.DiffBytes) >= p.Fraction*float64(s.BaseBytes):
		return fmt.Sprintf("the diffs since the base take %d bytes, and the base %d", s.DiffBytes, s.BaseBytes)
	case p.Churn > 0 && s.Records > 0 && float64(s.Records) >= p.Churn*float64(s.BaseRows):
		return fmt.Sprintf("the diffs since the base have %d records, and the base %d rows", s.Records, s.BaseRows)
	case p.MaxDiffs > 0 && s.Diffs >= p.MaxDiffs:
		return fmt.Sprintf("there are %d diffs since the base", s.Diffs)
	case p.MaxAge > 0 && age >= p.MaxAge && s.Diffs > 0:
		return fmt.Sprintf("the base is %s old", age.Round(time.Second))
	}
	return ""
}
