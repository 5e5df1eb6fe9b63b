package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Report is what a Verify has found.
type Report struct {
	Manifest  *Manifest
	Artifacts int // verified
	Files     int
	Bytes     int64
	// Problems are what is damaged or missing, and where a chain is broken.
	Problems []error
	// Orphans are objects under the prefix that the manifest does not list: what an
	// attempt left behind, or one that is on its way.
	Orphans []string
}

// Verify reads all of an archive: every checksum, count and chain. Progress, if not nil, is
// called after each artifact. What is wrong with the archive is in the report; the error
// is for what kept it from looking.
func (r *Reader) Verify(ctx context.Context, progress func(done, of int)) (*Report, error) {
	m, err := r.Manifest(ctx)
	if err != nil {
		return nil, err
	}
	rep := &Report{Manifest: m}
	rep.Problems = append(slices.Clone(m.problems), m.chains()...)
	listed := map[string]bool{r.manifestKey(): true}
	for _, s := range m.sealed {
		listed[r.prefix+s.Key] = true
	}
	for i := range m.Artifacts {
		a := &m.Artifacts[i]
		whole := true
		for _, f := range a.Files {
			listed[r.prefix+f.Key] = true
			err := r.verify(ctx, m, a, f)
			if ctx.Err() != nil {
				return rep, ctx.Err()
			}
			if errors.Is(err, dest.ErrNotExist) {
				pruned, merr := r.pruned(ctx, a)
				if merr != nil {
					return rep, merr
				}
				if pruned {
					whole = false
					continue
				}
				err = &CorruptError{Key: r.prefix + f.Key, Where: r.dest.Describe(), Offset: -1, Why: fmt.Sprintf("the manifest lists it, and it is not there: the %s up to %s", a.Kind, a.To)}
			} else if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				return rep, err
			}
			if err != nil {
				whole = false
				rep.Problems = append(rep.Problems, err)
				continue
			}
			rep.Files++
			rep.Bytes += f.Size
		}
		if whole {
			rep.Artifacts++
		}
		if progress != nil {
			progress(i+1, len(m.Artifacts))
		}
	}
	for info, err := range r.dest.List(ctx, r.prefix) {
		if err != nil {
			return rep, err
		}
		if !listed[info.Key] && ours.MatchString(strings.TrimPrefix(info.Key, r.prefix)) {
			rep.Orphans = append(rep.Orphans, info.Key)
		}
	}
	return rep, nil
}

// pruned reports whether the archive has come to list an artifact no more: then it is not missed.
func (r *Reader) pruned(ctx context.Context, a *Artifact) (bool, error) {
	m, err := r.Manifest(ctx)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(m.Artifacts, func(have Artifact) bool { return have.ID == a.ID }), nil
}

// verify reads a file of an artifact, in bounded memory.
func (r *Reader) verify(ctx context.Context, m *Manifest, a *Artifact, f File) error {
	key := r.prefix + f.Key
	in, err := r.dest.Open(ctx, key, 0)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	sum := sha256.New()
	want := headerOf(m.Archive, m.Table, a)
	var last []byte
	var n counts
	var cuts Stamps
	begun := false
	corrupt := func(why string) error {
		return &CorruptError{Key: key, Where: r.dest.Describe(), Offset: -1, Why: why}
	}
	_, err = decode(io.TeeReader(in, sum), f.Format, &want, key, r.dest.Describe(), m.Columns, visitor{entry: func(e *Entry) error {
		switch e.Op.String() {
		case "put":
			n.Puts++
		case "delete":
			n.Deletes++
		default:
			cuts = cuts.newest(e.Stamp)
			return nil
		}
		if a.Kind == KindBase {
			if begun && bytes.Compare(e.Key, last) <= 0 {
				return corrupt("its rows are not in order of their keys")
			}
			begun, last = true, append(last[:0], e.Key...)
		}
		if a.History == Full {
			from, _ := a.From.Cursor(e.Log)
			to, ok := a.To.Cursor(e.Log)
			if !ok || from.Compare(e.Position) >= 0 || to.Compare(e.Position) < 0 {
				return corrupt(fmt.Sprintf("it goes from %s to %s, and has a change of log %s at %s", a.From, a.To, e.Log, e.Position))
			}
		}
		return nil
	}})
	switch {
	case err != nil:
		return err
	case hex.EncodeToString(sum.Sum(nil)) != f.SHA256:
		return corrupt("its checksum is not the one in the manifest")
	case n.Puts != a.Rows || n.Deletes != a.Tombstones:
		return corrupt(fmt.Sprintf("it has %d rows and %d tombstones, and the manifest says %d and %d", n.Puts, n.Deletes, a.Rows, a.Tombstones))
	case a.Kind == KindDiff && fmt.Sprint(cuts) != fmt.Sprint(a.Truncates):
		return corrupt("it has other truncates than the manifest says")
	}
	return nil
}

// chains checks that artifacts follow on from each other.
func (m *Manifest) chains() (problems []error) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for i := range m.Artifacts {
		a := &m.Artifacts[i]
		if i == 0 {
			if a.Kind != KindBase {
				bad("the archive begins with a %s, %s, that follows no base", a.Kind, a.ID)
			}
			continue
		}
		before := &m.Artifacts[i-1]
		switch {
		case a.Kind == KindBase && a.Generation <= before.Generation:
			bad("the base %s is of generation %d, and comes after generation %d", a.ID, a.Generation, before.Generation)
		case a.Kind == KindDiff && a.Generation != before.Generation:
			bad("the diff %s of generation %d follows no base of it", a.ID, a.Generation)
		case a.Kind == KindDiff && !a.From.Equal(before.To):
			bad("the diff %s begins at %s, and the artifact before it ends at %s", a.ID, a.From, before.To)
		}
	}
	if end := m.end(); len(end) > 0 && !m.Through.Reaches(end) {
		bad("the manifest is at %s, and its last artifact ends at %s", m.Through, end)
	}
	return problems
}
