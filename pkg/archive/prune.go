package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Retention says which generations stay: those that either bound keeps. The newest stays,
// whatever it says. A bound that is zero keeps nothing; without any, all stay.
type Retention struct {
	Generations int           // how many stay, the newest
	Age         time.Duration // how long ago a generation may have ended, to stay
	// Grace is how old an object is that no manifest lists before it is taken for a
	// leftover; DefaultGrace when 0. It must be longer than an upload takes.
	Grace time.Duration
}

// DefaultGrace is a day.
const DefaultGrace = 24 * time.Hour

// Pruned is what a Prune has taken away.
type Pruned struct {
	Generations int
	Artifacts   int
	Objects     int // artifacts, lists of them, and leftovers
	Bytes       int64
}

// Prune takes away generations that are not to be kept, and objects that an attempt
// to write left behind. What it does not get to, the next one does.
//
// A generation leaves the manifest first, and its objects go after that: a reader that has
// planned with them plans anew. Leftovers go only if they are older than the grace, have a name that a
// writer gives, and after a commit of this writer: so the writer whose upload they are
// has been fenced, and a commit that would list them cannot succeed any more.
func (w *Writer) Prune(ctx context.Context, r Retention) (Pruned, error) {
	var out Pruned
	if _, err := w.take(ctx); err != nil {
		return out, err
	}
	defer w.give()
	m := w.Manifest()
	keep := m.keep(r, w.cfg.Now())
	var gone []Artifact
	var segments []segment
	for _, s := range m.sealed {
		if s.Generation >= keep {
			continue
		}
		as, err := readSegment(ctx, w.dest, w.prefix, s)
		if err != nil && !errors.Is(err, dest.ErrNotExist) && !errors.Is(err, ErrCorrupt) {
			return out, err
		}
		gone, segments = append(gone, as...), append(segments, s)
	}
	generations := map[uint64]bool{}
	for _, a := range m.Artifacts {
		if a.Generation < keep {
			gone = append(gone, a)
		}
	}
	for _, a := range gone {
		generations[a.Generation] = true
	}
	old, err := w.leftovers(ctx, m, r)
	if err != nil || len(gone)+len(segments)+len(old) == 0 {
		return out, err
	}
	err = w.commit(ctx, func(m *Manifest) {
		m.Artifacts = slices.DeleteFunc(m.Artifacts, func(a Artifact) bool { return a.Generation < keep })
		m.sealed = slices.DeleteFunc(m.sealed, func(s segment) bool { return s.Generation < keep })
	})
	if err != nil {
		return out, err
	}
	out.Generations, out.Artifacts = len(generations), len(gone)
	for _, a := range gone {
		for _, f := range a.Files {
			old = append(old, dest.Info{Key: w.prefix + f.Key, Size: f.Size})
		}
	}
	for _, s := range segments {
		old = append(old, dest.Info{Key: w.prefix + s.Key, Size: s.Size})
	}
	for _, o := range old {
		if err := w.dest.Delete(ctx, o.Key); err != nil {
			return out, fmt.Errorf("archive of %s: pruning: %w", m.Table, err)
		}
		out.Objects++
		out.Bytes += o.Size
	}
	return out, nil
}

// keep returns the oldest generation that stays.
func (m *Manifest) keep(r Retention, now time.Time) uint64 {
	ended := map[uint64]time.Time{} // by generation
	for _, s := range m.sealed {
		ended[s.Generation] = s.Ended
	}
	for _, a := range m.Artifacts {
		ended[a.Generation] = a.Written
	}
	var all []uint64
	for g := range ended {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b uint64) int { return cmp.Compare(b, a) }) // newest first
	keep := m.Generation
	for i, g := range all {
		kept := r.Generations <= 0 && r.Age <= 0 || i < r.Generations || r.Age > 0 && now.Sub(ended[g]) <= r.Age
		if g != m.Generation && !kept {
			break
		}
		keep = min(keep, g)
	}
	return keep
}

// leftovers finds the objects that nothing lists, and that are old enough. Nothing of this writer
// is on its way: Prune waits for its other methods.
func (w *Writer) leftovers(ctx context.Context, m *Manifest, r Retention) ([]dest.Info, error) {
	listed := map[string]bool{}
	add := func(as []Artifact) {
		for _, a := range as {
			for _, f := range a.Files {
				listed[w.prefix+f.Key] = true
			}
		}
	}
	add(m.Artifacts)
	for _, s := range m.sealed {
		listed[w.prefix+s.Key] = true
		as, err := readSegment(ctx, w.dest, w.prefix, s)
		if errors.Is(err, dest.ErrNotExist) || errors.Is(err, ErrCorrupt) {
			return nil, nil // what it lists is not known: nothing is a leftover for sure
		}
		if err != nil {
			return nil, err
		}
		add(as)
	}
	var old []dest.Info
	before := w.cfg.Now().Add(-cmp.Or(r.Grace, DefaultGrace))
	for info, err := range w.dest.List(ctx, w.prefix) {
		if err != nil {
			return nil, err
		}
		if !listed[info.Key] && ours.MatchString(strings.TrimPrefix(info.Key, w.prefix)) && info.Modified.Before(before) {
			old = append(old, info)
		}
	}
	return old, nil
}
