package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// WriterConfig describes a writer. Destination, Table and ID are required.
type WriterConfig struct {
	Destination dest.Destination
	// Prefix of the keys, such as "public.events/". A slash is added where it lacks one.
	Prefix  string
	Table   engine.TableName
	Formats []Format // Protobuf when empty
	History History  // Net when empty
	// ID names the writer across restarts. A writer with the ID that the archive
	// names goes on with it; another is refused, unless it takes over.
	ID       string
	TakeOver bool
	// Level of zstd, 1 to 22 as its command line has it; 3 when 0.
	Level int
	// Memory is about how much is held while records are sorted; DefaultMemory when 0.
	Memory  int
	Scratch *spill.Dir       // nil: the system's
	Now     func() time.Time // nil: time.Now

	block int // size of blocks; 0: as the formats have it
	seal  int // sealAt when 0
}

// DefaultMemory is the bound on memory of writers and readers.
const DefaultMemory = 64 << 20

// Base is a state to be written.
type Base struct {
	// At is what the rows are consistent at.
	At Vector
	// Schemas are all that the rows use. Those of other tables are left out.
	Schemas Schemas
	// Truncates are the newest truncates of the table, one of each origin.
	Truncates []engine.Stamp
	// Continues says that At continues the vector Through and that the rows are what
	// the archive gives there already: a chain of diffs goes on across the base. It
	// is an error if At is not Through.
	Continues bool
	Reason    string // for the manifest; empty for the first
	Minted    Minted
	// Together are the tables whose archives are brought to At too, this one among them.
	Together []engine.TableName
	// Rows calls emit for each row and tombstone, in order of their keys, as
	// engine.View.Scan does. It is called once.
	Rows func(emit func(*engine.Record) error) error
}

// Diff is a stretch of history to be written.
type Diff struct {
	// From is where it begins: the Through of the archive. To is of the same logs.
	From, To Vector
	// Schemas are those that the changes use. Those that are not among them are taken from
	// the changes.
	Schemas Schemas
	// Changes calls emit for each change after From and up to To, the changes of
	// each log in order. It is called once.
	Changes func(emit func(*Entry) error) error
}

// Writer writes an archive. Its methods are safe for concurrent use, and wait for each
// other. What fails leaves the archive as it was, or is done if only the answer was
// lost. To go on, ask Through again; if a commit turns out to have been done only then, the next
// call fails with ErrNotContiguous and writes nothing.
type Writer struct {
	cfg    WriterConfig
	dest   dest.Destination
	prefix string
	zstd   *compressor
	scr    *spill.Dir

	busy chan struct{} // held by the method that writes

	mu     sync.Mutex // of what follows
	m      *Manifest  // as of the last commit that is known
	tag    dest.Tag
	unsure bool   // a commit has failed, and may have been done all the same
	broken string // what the chain lacks
	fenced error
}

// OpenWriter opens the archive of a table for writing, and claims it: every older
// writer is fenced from then on. It fails with a FencedError if another writer has
// it, and WriterConfig.TakeOver is not set. An archive that is not there begins with
// the first base.
func OpenWriter(ctx context.Context, cfg WriterConfig) (*Writer, error) {
	if cfg.Destination == nil || cfg.ID == "" || cfg.Table.Name == "" {
		return nil, errors.New("archive writer: a destination, a table and the writer's ID are required")
	}
	if err := errors.Join(checkText("table", cfg.Table.String()), checkText("writer", cfg.ID)); err != nil {
		return nil, err
	}
	prefix, err := normalPrefix(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	if len(cfg.Formats) == 0 {
		cfg.Formats = []Format{Protobuf}
	}
	for _, f := range cfg.Formats {
		if _, err := ParseFormats(string(f)); err != nil {
			return nil, err
		}
	}
	cfg.History = cmp.Or(cfg.History, Net)
	if cfg.History != Net && cfg.History != Full {
		return nil, fmt.Errorf("archive writer: the history is %q: use %s or %s", cfg.History, Net, Full)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Scratch == nil {
		cfg.Scratch = spill.NewDir("")
	}
	cfg.Memory = cmp.Or(cfg.Memory, DefaultMemory)
	z, err := newCompressor(cmp.Or(cfg.Level, 3))
	if err != nil {
		return nil, err
	}
	w := &Writer{cfg: cfg, dest: cfg.Destination, prefix: prefix, zstd: z, scr: cfg.Scratch, busy: make(chan struct{}, 1)}
	if err := w.dest.Check(ctx); err != nil {
		return nil, err
	}
	if err := w.claim(ctx); err != nil {
		return nil, err
	}
	return w, nil
}

// take waits for the other methods. It fails once the writer is fenced, and finds out what
// has become of a commit that failed: late is the error if it was done, and what the caller
// is about to write may be there.
func (w *Writer) take(ctx context.Context) (late, err error) {
	select {
	case w.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	was := w.Manifest()
	if err = w.settle(ctx); err != nil {
		w.give()
		return nil, err
	}
	if now := w.Manifest(); now.Commit != was.Commit {
		late = fmt.Errorf("archive of %s: %w: a commit that had failed was done after all, and it is at %s", now.Table, ErrNotContiguous, now.Through)
	}
	return late, nil
}

// takeToWrite is take for what follows on from Through.
func (w *Writer) takeToWrite(ctx context.Context) error {
	late, err := w.take(ctx)
	if late != nil {
		w.give()
		return late
	}
	return err
}

func (w *Writer) give() { <-w.busy }

// Manifest returns the manifest as of the last commit, without artifacts that have
// been sealed.
func (w *Writer) Manifest() *Manifest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m
}

// Through returns up to where the archive has everything, and where a diff begins.
// Without it, needs says why a base is needed: there is none, or an artifact of the
// chain is missing.
func (w *Writer) Through() (at Vector, needs string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.m.Generation == 0:
		return nil, "the archive has no base"
	case w.broken != "":
		return nil, w.broken
	}
	return w.m.Through, ""
}

// Base writes a base, and with it begins a generation.
func (w *Writer) Base(ctx context.Context, b Base) (*Artifact, error) {
	if err := w.takeToWrite(ctx); err != nil {
		return nil, err
	}
	defer w.give()
	m := w.Manifest()
	if err := b.At.check(); err != nil {
		return nil, err
	}
	if len(b.At) == 0 {
		return nil, errors.New("a base names no log that it is consistent at")
	}
	if b.Continues {
		if at, needs := w.Through(); needs != "" || !b.At.Equal(at) {
			return nil, fmt.Errorf("a base at %s does not continue the archive, which is at %s: %w", b.At, at, ErrNotContiguous)
		}
	}
	h := header{
		Archive: m.Archive, Table: m.Table, ID: newID(), Kind: KindBase, Generation: m.Generation + 1,
		Fence: m.Writer.Fence, To: b.At, Continues: b.Continues,
	}
	art, columns, err := w.write(ctx, h, func(a *artifactWriter) error {
		if err := a.schemas(b.Schemas); err != nil {
			return err
		}
		var e Entry
		var last []byte
		begun := false
		return b.Rows(func(r *engine.Record) error {
			if begun && slices.Compare(r.Key, last) <= 0 {
				return errors.New("the rows of a base do not come in order of their keys")
			}
			begun, last = true, append(last[:0], r.Key...)
			e.Change = engine.Change{Op: engine.OpPut, Schema: r.Schema, Key: r.Key, Row: r.Row, Stamp: r.Stamp}
			if r.Deleted {
				e.Op, e.Row = engine.OpDelete, nil
			}
			return a.put(&e)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("archive of %s: base at %s: %w", m.Table, b.At, err)
	}
	art.Reason = b.Reason
	for _, s := range b.Truncates {
		art.Truncates = art.Truncates.newest(s)
	}
	err = w.commit(ctx, func(m *Manifest) {
		m.Generation, m.Through, m.Minted, m.Together = h.Generation, b.At, b.Minted, b.Together
		m.Current = Sum{BaseBytes: art.Stored(w.cfg.Formats...), BaseRows: art.Rows, Begun: art.Written}
		m.Columns = columns
		if columns == nil {
			m.Columns = newestColumns(b.Schemas, m.Table)
		}
		m.Artifacts = append(m.Artifacts, *art)
	})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.broken = ""
	w.mu.Unlock()
	return art, nil
}

// newestColumns returns the columns of a table that has no row.
func newestColumns(all Schemas, table engine.TableName) (columns []engine.Column) {
	var at engine.LogID
	for log, ss := range all {
		for _, s := range ss {
			if s.Table == table && (columns == nil || log.Epoch >= at.Epoch) {
				columns, at = s.Columns, log
			}
		}
	}
	return columns
}

// Diff writes a diff. Without changes it is Advance, and there is no artifact. It
// fails with ErrNotContiguous if From is not Through, and with ErrNeedsBase.
func (w *Writer) Diff(ctx context.Context, d Diff) (*Artifact, error) {
	if err := w.takeToWrite(ctx); err != nil {
		return nil, err
	}
	defer w.give()
	if err := w.follows(d.From, d.To); err != nil {
		return nil, err
	}
	m := w.Manifest()
	h := header{
		Archive: m.Archive, Table: m.Table, ID: newID(), Kind: KindDiff, Generation: m.Generation,
		Fence: m.Writer.Fence, History: w.cfg.History, From: m.end(), To: d.To,
	}
	fill := w.full(&d)
	if h.History == Net {
		s, cuts, err := w.sort(&d)
		if s != nil {
			defer s.close()
		}
		if err != nil {
			return nil, fmt.Errorf("archive of %s: diff from %s to %s: %w", m.Table, d.From, d.To, err)
		}
		if s == nil {
			return nil, w.advance(ctx, d.To)
		}
		fill = s.fill(&d, cuts)
	}
	art, columns, err := w.write(ctx, h, fill)
	if errors.Is(err, errNothing) {
		return nil, w.advance(ctx, d.To)
	}
	if err != nil {
		return nil, fmt.Errorf("archive of %s: diff from %s to %s: %w", m.Table, d.From, d.To, err)
	}
	if !d.From.Equal(h.From) {
		art.Quiet = d.From
	}
	err = w.commit(ctx, func(m *Manifest) {
		m.Through = d.To
		m.Current.Diffs++
		m.Current.DiffBytes += art.Stored(w.cfg.Formats...)
		m.Current.Records += art.Rows + art.Tombstones
		if columns != nil {
			m.Columns = columns
		}
		m.Artifacts = append(m.Artifacts, *art)
	})
	if err != nil {
		return nil, err
	}
	return art, nil
}

// Bring says which tables' archives are brought to one vector from now on, this one among them, if those are others than
// the archive says.
func (w *Writer) Bring(ctx context.Context, together []engine.TableName) error {
	if slices.Equal(w.Manifest().Together, together) {
		return nil
	}
	if err := w.takeToWrite(ctx); err != nil {
		return err
	}
	defer w.give()
	return w.commit(ctx, func(m *Manifest) { m.Together = together })
}

// Advance says that nothing has changed from Through up to a vector.
func (w *Writer) Advance(ctx context.Context, to Vector) error {
	if err := w.takeToWrite(ctx); err != nil {
		return err
	}
	defer w.give()
	at, _ := w.Through()
	if err := w.follows(at, to); err != nil {
		return err
	}
	return w.advance(ctx, to)
}

func (w *Writer) advance(ctx context.Context, to Vector) error {
	if at, _ := w.Through(); at.Equal(to) {
		return nil
	}
	return w.commit(ctx, func(m *Manifest) { m.Through = to })
}

// follows checks that a stretch of history begins where the archive ends.
func (w *Writer) follows(from, to Vector) error {
	if err := errors.Join(from.check(), to.check()); err != nil {
		return err
	}
	at, needs := w.Through()
	switch {
	case needs != "":
		return fmt.Errorf("archive of %s: %w: %s", w.cfg.Table, ErrNeedsBase, needs)
	case !from.Equal(at):
		return fmt.Errorf("archive of %s: %w: it ends at %s, and the diff begins at %s", w.cfg.Table, ErrNotContiguous, at, from)
	case !to.SameLogs(at):
		return fmt.Errorf("archive of %s: %w: the logs are others than those at %s, and now %s", w.cfg.Table, ErrNeedsBase, at, to)
	case !to.Reaches(from):
		return fmt.Errorf("archive of %s: %w: it is at %s, and the diff ends before, at %s", w.cfg.Table, ErrNotContiguous, at, to)
	}
	return nil
}

// write writes an artifact. Nothing lists it yet.
func (w *Writer) write(ctx context.Context, h header, fill func(*artifactWriter) error) (*Artifact, []engine.Column, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a, err := w.newArtifactWriter(ctx, h)
	if err != nil {
		return nil, nil, err
	}
	defer a.abort()
	if err := fill(a); err != nil {
		return nil, nil, err
	}
	files, err := a.commit()
	if err != nil {
		return nil, nil, err
	}
	return &Artifact{
		ID: h.ID, Kind: h.Kind, Generation: h.Generation, Fence: h.Fence, History: h.History, From: h.From, To: h.To,
		Continues: h.Continues, Files: files, Rows: a.counts.Puts, Tombstones: a.counts.Deletes, Bytes: a.bytes,
		Truncates: a.cuts, Written: w.cfg.Now().UTC(),
	}, a.columns, nil
}

var errNothing = errors.New("there is no change")

// within checks that a change is where a diff says that it is.
func (d *Diff) within(e *Entry) error {
	to, ok := d.To.Cursor(e.Log)
	if !ok {
		return fmt.Errorf("a change of log %s, which is not among those of the diff", e.Log)
	}
	from, _ := d.From.Cursor(e.Log)
	if from.Compare(e.Position) >= 0 || to.Compare(e.Position) < 0 {
		return fmt.Errorf("a change of log %s at %s, which is not after %s and up to %s", e.Log, e.Position, from.Position, to.Position)
	}
	return nil
}

// full returns what fills an artifact with every change.
func (w *Writer) full(d *Diff) func(*artifactWriter) error {
	return func(a *artifactWriter) error {
		if err := a.schemas(d.Schemas); err != nil {
			return err
		}
		at := map[engine.LogID]engine.Position{}
		var log engine.LogID
		var pos engine.Position
		err := d.Changes(func(e *Entry) error {
			if e.Log != log || e.Position != pos {
				if err := errors.Join(d.within(e), checkText("position", string(e.Position))); err != nil {
					return err
				}
				if c, _ := d.To.Cursor(e.Log); at[e.Log] != "" && (Cursor{Position: at[e.Log], Order: c.Order}).Compare(e.Position) >= 0 {
					return fmt.Errorf("log %s: a change at %s comes after one at %s", e.Log, e.Position, at[e.Log])
				}
				log, pos = e.Log, e.Position
				at[log] = pos
			}
			return a.put(e)
		})
		if err == nil && a.counts == (counts{}) {
			err = errNothing
		}
		return err
	}
}

// sort collapses the changes of a diff. Without any there is no sorter.
func (w *Writer) sort(d *Diff) (*sorter, map[cut]*Entry, error) {
	s := newSorter(w.scr, w.cfg.Memory, true)
	cuts := map[cut]*Entry{}
	n := 0
	err := d.Changes(func(e *Entry) error {
		if err := d.within(e); err != nil {
			return err
		}
		n++
		if e.Op != engine.OpTruncate {
			return s.add(e)
		}
		k := cut{e.Log, e.Stamp.Origin}
		if have := cuts[k]; have == nil || e.Stamp.Compare(have.Stamp) > 0 {
			c := *e
			c.Key, c.Row = nil, nil
			cuts[k] = &c
		}
		return nil
	})
	if err != nil || n == 0 {
		s.close()
		return nil, nil, err
	}
	return s, cuts, nil
}

// cut names a truncate: the newest of each stays.
type cut struct {
	via    engine.LogID
	origin string
}

// fill returns what fills an artifact with what the sorter has kept.
func (s *sorter) fill(d *Diff, cuts map[cut]*Entry) func(*artifactWriter) error {
	return func(a *artifactWriter) error {
		if err := a.schemas(d.Schemas); err != nil {
			return err
		}
		order := make([]*Entry, 0, len(cuts))
		for _, e := range cuts {
			order = append(order, e)
		}
		slices.SortFunc(order, func(a, b *Entry) int {
			return cmp.Or(compareLogs(a.Log, b.Log), cmp.Compare(a.Stamp.Origin, b.Stamp.Origin))
		})
		for _, e := range order {
			if err := a.put(e); err != nil {
				return err
			}
		}
		it := s.iterate()
		for {
			e, err := it.next()
			if err == io.EOF {
				return nil
			}
			if err == nil {
				err = a.put(e)
			}
			if err != nil {
				return err
			}
		}
	}
}
