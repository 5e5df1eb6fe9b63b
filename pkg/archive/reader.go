package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// ReaderConfig describes a reader. Destination is required.
type ReaderConfig struct {
	Destination dest.Destination
	// Prefix that the archive was written under. A slash is added where it lacks one.
	Prefix string
	// Table that the archive must be of; zero for any.
	Table engine.TableName
	// Formats are tried in order; all when empty.
	Formats []Format
	// Memory is about how much a fold or replay holds; DefaultMemory when 0. Scratch
	// takes what is larger: the stored bytes of the base, and diffs.
	Memory  int
	Scratch *spill.Dir // nil: the system's
}

// Reader reads an archive. It is safe for concurrent use, also while the archive is
// written, re-based and pruned.
type Reader struct {
	cfg    ReaderConfig
	dest   dest.Destination
	prefix string

	mu       sync.Mutex // of what was read last
	m        *Manifest
	tag      dest.Tag
	segments map[string][]Artifact
}

// NewReader returns a reader. It touches nothing yet.
func NewReader(cfg ReaderConfig) (*Reader, error) {
	if cfg.Destination == nil {
		return nil, errors.New("archive reader: a destination is required")
	}
	prefix, err := normalPrefix(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	if len(cfg.Formats) == 0 {
		cfg.Formats = formats
	}
	for _, f := range cfg.Formats {
		if _, err := ParseFormats(string(f)); err != nil {
			return nil, err
		}
	}
	if i := slices.Index(cfg.Formats, JSONL); i >= 0 && !slices.Contains(cfg.Formats, JSONLZstd) {
		cfg.Formats = slices.Insert(slices.Clone(cfg.Formats), i+1, JSONLZstd) // the same but for its size
	}
	if cfg.Scratch == nil {
		cfg.Scratch = spill.NewDir("")
	}
	cfg.Memory = cmp.Or(cfg.Memory, DefaultMemory)
	return &Reader{cfg: cfg, dest: cfg.Destination, prefix: prefix}, nil
}

func (r *Reader) manifestKey() string { return r.prefix + ManifestName }

func (r *Reader) where() string {
	return fmt.Sprintf("%q in %s", r.manifestKey(), r.dest.Describe())
}

// Manifest returns the manifest as it is now, with all artifacts. It fails with
// ErrNoArchive, naming the key that was looked for, ErrVersion, ErrOtherTable and
// ErrCorrupt.
func (r *Reader) Manifest(ctx context.Context) (*Manifest, error) {
	for try := 0; ; try++ {
		m, err := r.manifest(ctx, try == 3)
		if errors.Is(err, dest.ErrNotExist) && !errors.Is(err, ErrNoArchive) {
			continue // a segment has been pruned since the manifest was read
		}
		return m, err
	}
}

// manifest reads the manifest. Where a segment is damaged, or missing for good, the manifest is
// without it: what needs it fails, and the rest is served.
func (r *Reader) manifest(ctx context.Context, last bool) (*Manifest, error) {
	r.mu.Lock()
	had, tag, segments := r.m, r.tag, r.segments
	r.mu.Unlock()
	data, tag, err := r.dest.Read(ctx, r.manifestKey(), tag)
	switch {
	case errors.Is(err, dest.ErrNotModified) && had != nil:
		return had, nil
	case errors.Is(err, dest.ErrNotExist):
		return nil, fmt.Errorf("%w: looked for %s. The prefix must be the one that the archive was written under", ErrNoArchive, r.where())
	case err != nil:
		return nil, err
	}
	m, err := decodeManifest(data, r.where())
	if errors.Is(err, ErrVersion) {
		return nil, err
	}
	if err != nil {
		return nil, &CorruptError{Key: r.manifestKey(), Where: r.dest.Describe(), Offset: -1, Why: err.Error()}
	}
	if want := r.cfg.Table; want != (engine.TableName{}) && m.Table != want {
		return nil, fmt.Errorf("%w: %s is of %s, and %s was asked for: the prefix is another table's", ErrOtherTable, r.where(), m.Table, want)
	}
	kept := map[string][]Artifact{}
	var all []Artifact
	for _, s := range m.sealed {
		as, ok := segments[s.Key]
		if !ok {
			as, err = readSegment(ctx, r.dest, r.prefix, s)
			if errors.Is(err, dest.ErrNotExist) && last {
				err = missing(r, err)
			}
			if errors.Is(err, ErrCorrupt) {
				m.problems = append(m.problems, err)
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		kept[s.Key] = as
		all = append(all, as...)
	}
	m.Artifacts = append(all, m.Artifacts...)
	r.mu.Lock()
	r.m, r.tag, r.segments = m, tag, kept
	r.mu.Unlock()
	return m, nil
}

// PollKind is what has become of an archive.
type PollKind string

// The kinds.
const (
	PollSame PollKind = "same"
	// PollAppended: there is more, and diffs lead to it: Replay goes on.
	PollAppended PollKind = "appended"
	// PollReplaced: diffs do not lead on from where the follower is. It needs a Fold.
	PollReplaced PollKind = "replaced"
)

// Poll is the answer of Reader.Poll.
type Poll struct {
	Kind   PollKind
	Head   Vector
	Reason string // of PollReplaced
}

// Poll says what there is for a follower that has everything up to a vector, which is not
// empty. It is cheap when nothing has changed. An archive that is gone is
// ErrNoArchive.
func (r *Reader) Poll(ctx context.Context, at Vector) (Poll, error) {
	m, err := r.Manifest(ctx)
	if err != nil {
		return Poll{}, err
	}
	if m.Generation == 0 {
		return Poll{Kind: PollSame, Head: at}, nil // a new archive that has yet to begin
	}
	if at.Equal(m.Through) {
		return Poll{Kind: PollSame, Head: m.Through}, nil
	}
	p := m.plan(r.cfg.Formats, at, AsOf{}, nil)
	if p.Mode != PlanDiffs {
		return Poll{Kind: PollReplaced, Head: m.Through, Reason: p.Reason}, nil
	}
	return Poll{Kind: PollAppended, Head: m.Through}, nil
}
