package export

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// open opens the archive of a table for writing, if it is not.
func (x *Exporter) open(ctx context.Context, t *table) (err error) {
	if t.fenced != nil {
		return t.fenced
	}
	if t.w != nil {
		return nil
	}
	if t.w, err = archive.OpenWriter(ctx, archive.WriterConfig{
		Destination: x.cfg.Destination, Prefix: t.prefix, Table: t.name, Formats: x.cfg.Formats, History: x.cfg.History,
		ID: x.cfg.ID, TakeOver: x.cfg.TakeOver, Level: x.cfg.Level, Scratch: x.cfg.Scratch, Now: x.cfg.Now,
	}); err != nil {
		return err
	}
	// What the archive's readers have is replaced by what this node writes from now on, also where another has written it
	// with a clock that is ahead.
	x.cfg.Host.Observe(t.w.Manifest().Through.Time() + 1)
	return nil
}

// bring brings the archive of a table to a cut of a view. s, if not nil, is what it lacks.
func (x *Exporter) bring(ctx context.Context, v engine.View, t *table, c cut, s *stretch, asked bool) error {
	err := x.write(ctx, v, t, c, s, asked)
	if err == nil && x.now().Sub(t.pruned) >= pruneEvery {
		t.pruned = x.now()
		var p archive.Pruned
		if p, err = t.w.Prune(ctx, x.cfg.Retention); err == nil && p.Objects > 0 {
			x.log.Info("archive pruned", "table", t.name.String(), "generations", p.Generations, "objects", p.Objects, "bytes", p.Bytes)
		}
	}
	if errors.Is(err, archive.ErrFenced) {
		// Another life of this writer, or another writer, has the archive: to claim it
		// again would only fence that one.
		t.fenced = err
	}
	return err
}

// lacking returns the stretch that the archive of a table lacks up to a cut, without
// its changes; nil if there is none that could be written.
func (x *Exporter) lacking(v engine.View, t *table, c cut) *stretch {
	if t.w == nil || t.fenced != nil {
		return nil
	}
	through, needs := t.w.Through()
	if needs != "" || through.Equal(c.to) {
		return nil
	}
	if why, later := x.broken(v, t.name, through, c.to); why != "" || later {
		return nil
	}
	return &stretch{from: through, to: c.to}
}

// write writes what the archive of a table lacks.
func (x *Exporter) write(ctx context.Context, v engine.View, t *table, c cut, s *stretch, asked bool) error {
	through, why := t.w.Through()
	if why == "" && !through.Equal(c.to) {
		var later bool
		if why, later = x.broken(v, t.name, through, c.to); later {
			return nil
		}
	}
	first := len(through) == 0
	if why == "" && s != nil {
		x.state(t, "Appending")
		err := s.err
		switch {
		case err != nil:
		case s.changes.Len() == 0:
			err = t.w.Advance(ctx, s.to)
		default:
			_, err = t.w.Diff(ctx, archive.Diff{From: s.from, To: s.to, Changes: s.each})
		}
		switch {
		case errors.Is(err, archive.ErrNeedsBase), errors.Is(err, engine.ErrGap):
			why = err.Error()
		case err != nil:
			return err
		}
	}
	continues := why == ""
	if why == "" {
		why = t.w.Due(x.cfg.Policy)
	}
	if why == "" && asked {
		why = "it was asked for"
	}
	if why == "" {
		return nil
	}
	return x.base(ctx, v, t, c, why, first, continues)
}

// broken says why the archive cannot go on from where it is by what the node's logs
// hold. later is true if the node has yet to come to where the archive is.
func (x *Exporter) broken(v engine.View, name engine.TableName, through, to archive.Vector) (why string, later bool) {
	if !through.SameLogs(to) {
		return fmt.Sprintf("the logs that write it are others: %s, and the archive has %s", to, through), false
	}
	for _, is := range to {
		was, _ := through.Cursor(is.Log)
		info, ok := v.Log(is.Log)
		compare := x.cfg.Host.Comparator(is.Log)
		switch {
		case !ok:
			return "", true
		case compare(was.Position, info.Head) > 0:
			return "", true // a node that was restored, and that has yet to come there again, or to take a new epoch
		case compare(was.Position, info.Oldest) < 0 && !x.lateIn(v, info, name, was.Position):
			return fmt.Sprintf("log %s holds what follows %s, and the archive is at %s", is.Log, info.Oldest, was.Position), false
		}
	}
	return "", false
}

// lateIn reports whether a log has of a table no more than up to a place where it begins, so that what follows that
// place comes in what it holds.
func (x *Exporter) lateIn(v engine.View, info engine.LogInfo, name engine.TableName, at engine.Position) bool {
	compare := x.cfg.Host.Comparator(info.ID)
	behind, known := x.cfg.Host.TrailIn(v, info.ID).At(info.Oldest, compare)
	r, is := behind[name]
	return known && is && r.Position != "" && compare(at, r.Position) >= 0
}

// base writes the state of a table as the next base of its archive.
func (x *Exporter) base(ctx context.Context, v engine.View, t *table, c cut, why string, first, continues bool) error {
	x.state(t, "Basing")
	b := archive.Base{At: c.to, Schemas: v.SchemasOf(t.name), Continues: continues, Minted: c.minted, Together: c.together, Rows: func(emit func(*engine.Record) error) error {
		var failed error
		err := v.Scan(t.name, nil, func(r *engine.Record) bool {
			failed = emit(r)
			return failed == nil && ctx.Err() == nil
		})
		return errors.Join(err, failed, ctx.Err())
	}}
	if !first {
		b.Reason = why
	}
	for _, cur := range c.to {
		if s := v.Truncated(t.name, cur.Log.Origin); s != (engine.Stamp{}) && !slices.Contains(b.Truncates, s) {
			b.Truncates = append(b.Truncates, s)
		}
	}
	began := x.now()
	a, err := t.w.Base(ctx, b)
	if err != nil {
		return err
	}
	x.log.Info("base archived", "table", t.name.String(), "reason", why, "rows", a.Rows, "bytes", a.Bytes, "generation", a.Generation, "took", x.now().Sub(began))
	return nil
}
