package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// sealAt is how many artifacts the manifest itself lists at most. Past it, the oldest of them
// move to a segment.
const sealAt = 256

// where names the manifest in messages.
func (w *Writer) where() string {
	return fmt.Sprintf("%q in %s", w.prefix+ManifestName, w.dest.Describe())
}

func (w *Writer) own() WriterID {
	if w.m == nil {
		return WriterID{ID: w.cfg.ID}
	}
	return w.m.Writer
}

// load reads the manifest that there is; nil if there is none.
func (w *Writer) load(ctx context.Context) (*Manifest, dest.Tag, error) {
	data, tag, err := w.dest.Read(ctx, w.prefix+ManifestName, "")
	if errors.Is(err, dest.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	m, err := decodeManifest(data, w.where())
	if err != nil && !errors.Is(err, ErrVersion) {
		err = &CorruptError{Key: w.prefix + ManifestName, Where: w.dest.Describe(), Offset: -1, Why: err.Error()}
	}
	return m, tag, err
}

// claim makes the archive this writer's.
func (w *Writer) claim(ctx context.Context) error {
	for try := 0; ; try++ {
		have, tag, err := w.load(ctx)
		if errors.Is(err, ErrCorrupt) && w.cfg.TakeOver {
			have, err = nil, nil // nothing can be made of it
		}
		if err != nil {
			return err
		}
		next := &Manifest{Version: Version, Archive: newID(), Table: w.cfg.Table}
		if have != nil {
			if have.Table != w.cfg.Table {
				return fmt.Errorf("%w: %s is of %s, and this writer is for %s: use another prefix", ErrOtherTable, w.where(), have.Table, w.cfg.Table)
			}
			if have.Writer.ID != w.cfg.ID && !w.cfg.TakeOver {
				return &FencedError{Where: w.where(), Writer: have.Writer, Own: WriterID{ID: w.cfg.ID}}
			}
			c := *have
			next = &c
		}
		next.Writer = WriterID{ID: w.cfg.ID, Fence: next.Writer.Fence + 1, Life: newID()}
		next.Commit++
		next.History, next.Written = w.cfg.History, w.cfg.Now().UTC()
		data, err := next.encode()
		if err != nil {
			return err
		}
		tag, err = w.dest.Swap(ctx, w.prefix+ManifestName, tag, data)
		if errors.Is(err, dest.ErrConflict) && try < 4 {
			continue // somebody else has just written
		}
		if err != nil {
			return err
		}
		w.m, w.tag = next, tag
		return w.look(ctx)
	}
}

// look checks that the artifacts of the current chain are there.
func (w *Writer) look(ctx context.Context) error {
	if w.m.Generation == 0 {
		return nil
	}
	there := map[string]int64{}
	for info, err := range w.dest.List(ctx, w.prefix) {
		if err != nil {
			return err
		}
		there[info.Key] = info.Size
	}
	var chain []Artifact
	for _, s := range w.m.sealed {
		if s.Generation != w.m.Generation {
			continue
		}
		as, err := readSegment(ctx, w.dest, w.prefix, s)
		if errors.Is(err, dest.ErrNotExist) || errors.Is(err, ErrCorrupt) {
			w.broken = fmt.Sprintf("the list of artifacts %q is missing or damaged", w.prefix+s.Key)
			return nil
		}
		if err != nil {
			return err
		}
		chain = append(chain, as...)
	}
	for _, a := range w.m.Artifacts {
		if a.Generation == w.m.Generation {
			chain = append(chain, a)
		}
	}
	for i := range chain {
		whole := func(f File) bool { size, ok := there[w.prefix+f.Key]; return ok && size == f.Size }
		if !slices.ContainsFunc(chain[i].Files, whole) {
			w.broken = fmt.Sprintf("the %s %s, up to %s, is missing or not whole", chain[i].Kind, chain[i].ID, chain[i].To)
			return nil
		}
	}
	return nil
}

// settle finds out what a commit that failed has done.
func (w *Writer) settle(ctx context.Context) error {
	w.mu.Lock()
	unsure, fenced, was := w.unsure, w.fenced, w.m
	w.mu.Unlock()
	if fenced != nil || !unsure {
		return fenced
	}
	have, tag, err := w.load(ctx)
	if err != nil {
		return err
	}
	if have == nil {
		have = &Manifest{}
	}
	if have.Writer != was.Writer || have.Archive != was.Archive {
		return w.lost(have)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if have.Generation != w.m.Generation {
		w.broken = "" // the base was committed
	}
	w.m, w.tag, w.unsure = have, tag, false
	return nil
}

// lost takes note that another writer has the archive.
func (w *Writer) lost(have *Manifest) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fenced = &FencedError{Where: w.where(), Writer: have.Writer, Own: w.own()}
	return w.fenced
}

// commit changes the manifest. Where it fails, the change has not been made, or that is not
// known until the next settle.
func (w *Writer) commit(ctx context.Context, change func(*Manifest)) error {
	w.mu.Lock()
	was, tag := w.m, w.tag
	w.mu.Unlock()
	c := *was
	c.Artifacts, c.sealed = slices.Clone(was.Artifacts), slices.Clone(was.sealed)
	change(&c)
	c.Commit++
	c.Written = w.cfg.Now().UTC()
	if err := w.seal(ctx, &c); err != nil {
		return fmt.Errorf("archive of %s: %w", c.Table, err)
	}
	data, err := c.encode()
	if err != nil {
		return err
	}
	tag, err = w.dest.Swap(ctx, w.prefix+ManifestName, tag, data)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.m, w.tag = &c, tag
		return nil
	}
	w.mu.Lock()
	w.unsure = true
	w.mu.Unlock()
	if errors.Is(err, dest.ErrConflict) {
		if serr := w.settle(ctx); serr != nil {
			return serr
		}
		if w.Manifest().Commit == c.Commit && slices.EqualFunc(w.Manifest().Artifacts, c.Artifacts, func(a, b Artifact) bool { return a.ID == b.ID }) &&
			w.Manifest().Through.Equal(c.Through) {
			return nil // it was this commit, whose answer was late
		}
		return fmt.Errorf("archive of %s: %w: a commit that had failed was done after all, up to %s", c.Table, ErrNotContiguous, w.Manifest().Through)
	}
	return fmt.Errorf("archive of %s: %w", c.Table, err)
}

// seal moves the oldest artifacts to a segment if there are too many.
func (w *Writer) seal(ctx context.Context, m *Manifest) error {
	limit := cmp.Or(w.cfg.seal, sealAt)
	if len(m.Artifacts) <= limit {
		return nil
	}
	n := 1
	for n < limit && m.Artifacts[n].Generation == m.Artifacts[0].Generation {
		n++
	}
	old := m.Artifacts[:n]
	data, err := json.Marshal(&segmentJSON{Version: Version, Archive: m.Archive, Artifacts: old})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	s := segment{
		Key: segmentKey(old[0].Generation), Generation: old[0].Generation, Artifacts: n, Size: int64(len(data)),
		SHA256: hex.EncodeToString(sum[:]), Ended: old[n-1].Written,
	}
	if _, err := w.dest.Swap(ctx, w.prefix+s.Key, "", data); err != nil {
		return err
	}
	m.sealed = append(m.sealed, s)
	m.Artifacts = slices.Clone(m.Artifacts[n:])
	return nil
}

// readSegment reads a segment.
func readSegment(ctx context.Context, d dest.Destination, prefix string, s segment) ([]Artifact, error) {
	data, _, err := d.Read(ctx, prefix+s.Key, "")
	if err != nil {
		return nil, err
	}
	bad := func(why string) error {
		return &CorruptError{Key: prefix + s.Key, Where: d.Describe(), Offset: -1, Why: why}
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != s.SHA256 {
		return nil, bad("its checksum does not match the manifest's")
	}
	as, err := decodeSegment(data, fmt.Sprintf("%q in %s", prefix+s.Key, d.Describe()))
	if err != nil {
		return nil, bad(err.Error())
	}
	if len(as) != s.Artifacts {
		return nil, bad(fmt.Sprintf("it lists %d artifacts, and the manifest says %d", len(as), s.Artifacts))
	}
	return as, nil
}
