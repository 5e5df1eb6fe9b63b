package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Fold is the state of a table at a moment, or what has become of it since
// another. It has been read and verified in whole: nothing of the archive is needed
// any more once there is a Fold. Close it.
type Fold struct {
	plan      *Plan
	at        Vector
	schemas   Schemas
	truncates Stamps
	base      *fetched
	sorter    *sorter
	partial   map[engine.LogID]Cursor // where the last diff was cut off
}

// Fold reads the state at a moment. It fails with ErrNotCovered if the archive does
// not reach so far back. Artifacts that a writer prunes meanwhile are planned round, and so is a
// base that is damaged if an older one and diffs lead to the same state.
func (r *Reader) Fold(ctx context.Context, at AsOf) (*Fold, error) {
	return r.build(ctx, at, func(m *Manifest, skip map[string]bool) *Plan { return m.planBase(at, skip).weigh(r.cfg.Formats) })
}

// Delta reads what has changed after a vector, up to a moment: the last record of each key,
// and the truncates. A record may have been in the state at from already. It fails with
// ErrNotCovered if diffs do not lead there.
func (r *Reader) Delta(ctx context.Context, from Vector, to AsOf) (*Fold, error) {
	return r.build(ctx, to, func(m *Manifest, _ map[string]bool) *Plan { return m.planDiffs(from, to).weigh(r.cfg.Formats) })
}

// build reads what a plan names. It plans anew while artifacts go away, or cannot be read.
func (r *Reader) build(ctx context.Context, at AsOf, plan func(*Manifest, map[string]bool) *Plan) (*Fold, error) {
	skip := map[string]bool{}
	var first error // what was wrong before
	for {
		m, err := r.Manifest(ctx)
		if err != nil {
			return nil, err
		}
		p := plan(m, skip)
		if p.Mode == PlanNone {
			if first != nil {
				return nil, first
			}
			return nil, m.notCovered(p)
		}
		f, baseFailed, err := r.fold(ctx, p, at)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, errGone) {
			now, merr := r.Manifest(ctx)
			if merr != nil {
				return nil, merr
			}
			if now.Commit != m.Commit || now.Archive != m.Archive {
				continue
			}
			err = missing(r, err)
		}
		if !baseFailed || !errors.Is(err, ErrCorrupt) || ctx.Err() != nil {
			return nil, err
		}
		if first == nil {
			first = err
		}
		skip[p.Base.ID] = true
	}
}

// notCovered is the error of a plan that leads nowhere: maybe because of what is damaged.
func (m *Manifest) notCovered(p *Plan) error {
	if len(m.problems) > 0 {
		return m.problems[0]
	}
	return &NotCoveredError{Table: m.Table, Reason: p.Reason}
}

// missing is the error of an artifact that the manifest lists, and that is not there.
func missing(r *Reader, err error) error {
	return &CorruptError{Key: r.manifestKey(), Where: r.dest.Describe(), Offset: -1, Why: fmt.Sprintf("it lists what is missing: %v", err)}
}

// fold reads what a plan names. baseFailed says that it was the base that could not be read.
func (r *Reader) fold(ctx context.Context, p *Plan, at AsOf) (f *Fold, baseFailed bool, err error) {
	f = &Fold{plan: p, at: p.To, schemas: Schemas{}, sorter: newSorter(r.cfg.Scratch, r.cfg.Memory/2, false)}
	if p.Base != nil {
		if err := r.foldBase(ctx, f); err != nil {
			f.Close()
			return nil, true, err
		}
	}
	for i := range p.Diffs {
		last := i == len(p.Diffs)-1
		if err := r.foldDiff(ctx, f, &p.Diffs[i], at, last && p.partial); err != nil {
			f.Close()
			return nil, false, err
		}
	}
	return f, false, nil
}

func (r *Reader) foldBase(ctx context.Context, f *Fold) (err error) {
	if f.base, err = r.fetch(ctx, f.plan.m, f.plan.Base); err != nil {
		return err
	}
	for _, t := range f.plan.Base.Truncates {
		f.truncates = f.truncates.newest(t)
	}
	return f.base.schemas(f.addSchema)
}

// foldDiff takes in a diff; of one that goes beyond the moment, what is before it.
func (r *Reader) foldDiff(ctx context.Context, f *Fold, a *Artifact, at AsOf, partial bool) error {
	got, err := r.fetch(ctx, f.plan.m, a)
	if err != nil {
		return err
	}
	defer got.close()
	schema, of := f.addSchema, (*engine.Schema)(nil)
	if partial {
		f.partial = map[engine.LogID]Cursor{}
		schema = nil // those that come into use after the moment are not of its table
	}
	err = got.decode(visitor{schema: schema, entry: func(e *Entry) error {
		if partial {
			c, ok := a.To.Cursor(e.Log)
			if !ok || !at.takes(e, c.Order) {
				return nil
			}
			c.Position, c.Time = e.Position, e.Time
			f.partial[e.Log] = c
			if e.Schema != of && e.Schema != nil {
				of = e.Schema
				if err := f.addSchema(e.Stamp.Log(), of); err != nil {
					return err
				}
			}
		}
		if e.Op == engine.OpTruncate {
			f.truncates = f.truncates.newest(e.Stamp)
			return nil
		}
		return f.sorter.add(e)
	}})
	if err != nil || !partial {
		return err
	}
	f.at = slices.Clone(f.at)
	for i, c := range f.at {
		if end, ok := a.To.Cursor(c.Log); ok && (AsOf{At: only(at.At, c.Log), Time: at.Time}).holds(Vector{end}) {
			f.at[i] = end // the whole of it
		} else if end, ok := f.partial[c.Log]; ok {
			f.at[i] = end
		}
	}
	return nil
}

func only(v Vector, log engine.LogID) Vector {
	if c, ok := v.Cursor(log); ok {
		return Vector{c}
	}
	return nil
}

func (f *Fold) addSchema(log engine.LogID, s *engine.Schema) error {
	for _, have := range f.schemas[log] {
		if have.ID == s.ID {
			if have.Fingerprint() != s.Fingerprint() {
				return fmt.Errorf("schema %d of log %s is two different ones in two artifacts", s.ID, log)
			}
			return nil
		}
	}
	f.schemas[log] = append(f.schemas[log], s)
	return nil
}

// Plan returns what has been read.
func (f *Fold) Plan() *Plan { return f.plan }

// At returns the vector that the state is of: the moment asked for, or the last one
// before it that the archive knows. With a base, CompleteFrom is set where known.
func (f *Fold) At() Vector {
	v := slices.Clone(f.at)
	for i := range v {
		v[i].CompleteFrom = 0
		if f.plan.Base != nil {
			if c, ok := f.plan.Base.To.Cursor(v[i].Log); ok {
				v[i].CompleteFrom = c.CompleteFrom
			}
		}
	}
	return v
}

// Table returns the table.
func (f *Fold) Table() engine.TableName { return f.plan.m.Table }

// Schemas returns all schemas that the rows use. Those of an archive that records none are made
// up, of names only.
func (f *Fold) Schemas() Schemas { return f.schemas }

// Truncates returns the newest truncate of each origin.
func (f *Fold) Truncates() []engine.Stamp { return f.truncates }

// Rows calls emit for each row and tombstone, in order of their keys. A record is
// valid during the call. It is called once.
func (f *Fold) Rows(emit func(*engine.Record) error) error {
	it := f.sorter.iterate()
	cur, err := it.next()
	if err != nil && err != io.EOF {
		return err
	}
	var rec engine.Record
	pass := func(e *Entry) error {
		rec = engine.Record{Schema: e.Schema, Key: e.Key, Row: e.Row, Stamp: e.Stamp, Deleted: e.Op == engine.OpDelete}
		if !rec.Deleted && e.Stamp.Compare(f.truncates.of(e.Stamp.Origin)) < 0 {
			rec.Deleted, rec.Row = true, nil
		}
		return emit(&rec)
	}
	advance := func() error {
		var err error
		if cur, err = it.next(); err == io.EOF {
			cur, err = nil, nil
		}
		return err
	}
	// before passes on what comes before a key of the base.
	before := func(key []byte) error {
		for cur != nil && (key == nil || bytes.Compare(cur.Key, key) < 0) {
			if err := pass(cur); err != nil {
				return err
			}
			if err := advance(); err != nil {
				return err
			}
		}
		return nil
	}
	if f.base != nil {
		err := f.base.decode(visitor{entry: func(e *Entry) error {
			if err := before(e.Key); err != nil {
				return err
			}
			if cur == nil || !bytes.Equal(cur.Key, e.Key) {
				return pass(e)
			}
			if c := cur.Stamp.Compare(e.Stamp); c > 0 || c == 0 && cur.Op == engine.OpDelete {
				e = cur
			}
			if err := pass(e); err != nil {
				return err
			}
			return advance()
		}})
		if err != nil {
			return err
		}
	}
	return before(nil)
}

// Close lets go of what is held.
func (f *Fold) Close() {
	f.base.close()
	f.sorter.close()
}
