package main

import (
	"fmt"
	"slices"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// moments returns the moment as of which to read each of some archives. Those that one writer brings to one place
// together get one that they have in common: where the writer is between them, or has broken off there, or goes on
// meanwhile, their heads are not of one moment.
func (m *moment) moments(tables []*found) (map[*found]archive.AsOf, error) {
	asked, ask := map[*found]archive.AsOf{}, map[*found]archive.AsOf{}
	for _, f := range tables {
		at, err := m.of(f)
		if err != nil {
			return nil, err
		}
		asked[f], ask[f] = at, at
	}
	for changed := true; changed; { // each time one goes back to the end of an artifact
		changed = false
		plans := map[*found]*archive.Plan{}
		for _, f := range tables {
			plans[f] = f.manifest.Plan(nil, ask[f])
			if plans[f].Mode != archive.PlanNone {
				continue
			}
			err := error(&archive.NotCoveredError{Table: f.manifest.Table, Reason: plans[f].Reason})
			if f.manifest.Plan(nil, asked[f]).Mode != archive.PlanNone {
				err = fmt.Errorf("archives that are written together end apart, and this one cannot be read as of where another ends; restore them one by one with --table: %w", err)
			}
			return nil, fmt.Errorf("%s is not restored, and nothing else: %w", quoteTable(f.manifest.Table), err)
		}
		for _, f := range tables {
			for _, o := range tables {
				if !together(f, o) || plans[o].Within() {
					continue
				}
				at := ask[f]
				for _, end := range plans[o].To {
					if _, ok := plans[f].To.Cursor(end.Log); !ok {
						continue
					}
					has, ok := at.At.Cursor(end.Log)
					if ok && end.Compare(has.Position) >= 0 {
						continue
					}
					others := slices.DeleteFunc(slices.Clone(at.At), func(c archive.Cursor) bool { return c.Log == end.Log })
					at.At, changed = archive.NewVector(append(others, end)...), true
				}
				ask[f] = at
			}
		}
	}
	return ask, nil
}

// together reports whether two archives say of each other that they are brought to one place.
func together(a, b *found) bool {
	return slices.Contains(a.manifest.Together, b.manifest.Table) && slices.Contains(b.manifest.Together, a.manifest.Table)
}

// missing are the archives that others of a location are written together with, and that are not there.
func missing(all []*found) (errs []error) {
	known := map[engine.TableName]bool{}
	for _, f := range all {
		known[f.manifest.Table] = true
	}
	for _, f := range all {
		for _, t := range f.manifest.Together {
			if f.prefix == "" || known[t] {
				continue
			}
			known[t] = true
			errs = append(errs, fmt.Errorf("%s: its archive is not in %s, though that of %s is written together with it: it has no %s any more, or has been moved",
				quoteTable(t), f.dest.Describe(), quoteTable(f.manifest.Table), archive.ManifestName))
		}
	}
	return errs
}
