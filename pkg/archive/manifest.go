package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Version is the version of the format that this package writes, and the only one
// that it reads.
const Version = 1

// ManifestName is the key of the manifest below an archive's prefix.
const ManifestName = "manifest.json"

// WriterID identifies a writer, and one life of it.
type WriterID struct {
	ID    string `json:"id"`
	Fence uint64 `json:"fence"` // each life has a greater one
	// Life is random: two writers that claim an archive at one moment would otherwise write
	// the same bytes, and each would take the other's claim for its own. Archives that were
	// last claimed before there was one lack it.
	Life string `json:"life,omitempty"`
}

// Kind is what an artifact is.
type Kind string

// The kinds.
const (
	KindBase Kind = "base"
	KindDiff Kind = "diff"
)

// File is an artifact in one format.
type File struct {
	Format Format `json:"format"`
	Key    string `json:"key"` // below the archive's prefix
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hexadecimal, of all of it
}

// Artifact is a base or a diff, in one or more formats.
type Artifact struct {
	ID         string  `json:"id"` // of the attempt that wrote it
	Kind       Kind    `json:"kind"`
	Generation uint64  `json:"generation"`
	Fence      uint64  `json:"fence"`             // of the writer
	History    History `json:"history,omitempty"` // of a diff
	From       Vector  `json:"from,omitempty"`    // of a diff
	// Quiet, of a diff, is up to where nothing had changed since From, if that was known
	// before the diff was written. So the state at any place up to there is that at From.
	Quiet Vector `json:"quiet,omitempty"`
	To    Vector `json:"to"`
	// Continues says of a base that it is what the artifacts before it give at To, so
	// that a chain of diffs goes on across it.
	Continues  bool      `json:"continues,omitempty"`
	Reason     string    `json:"reason,omitempty"` // for a base
	Files      []File    `json:"files"`
	Rows       int64     `json:"rows"`                 // puts
	Tombstones int64     `json:"tombstones,omitempty"` // deletes
	Bytes      int64     `json:"bytes"`                // of keys and rows
	Truncates  Stamps    `json:"truncates,omitempty"`  // newest of each origin
	Written    time.Time `json:"written"`              // by the writer's clock
}

// Stored returns the size of the artifact in the format that comes first in the list and
// that it has; of the list's end, in any.
func (a *Artifact) Stored(formats ...Format) int64 {
	for _, f := range formats {
		for _, have := range a.Files {
			if have.Format == f {
				return have.Size
			}
		}
	}
	if len(a.Files) == 0 {
		return 0
	}
	return a.Files[0].Size
}

// Sum is what the artifacts of the current generation add up to.
type Sum struct {
	BaseBytes int64     `json:"baseBytes"` // stored, in the first format
	BaseRows  int64     `json:"baseRows"`
	Begun     time.Time `json:"begun"` // when the base was written
	Diffs     int       `json:"diffs"`
	DiffBytes int64     `json:"diffBytes"`
	Records   int64     `json:"records"` // in the diffs
}

// Minted is what a writer says of the logs that it has minted, by the logs as they are written.
type Minted map[string]MintedLog

// MintedLog is what has to be known of a log to go on minting it elsewhere.
type MintedLog struct {
	History string `json:"history"` // behind it, as engine.Info names it
	Schemas uint32 `json:"schemas"` // the highest ID of its schemas
}

// Manifest is what an archive says of itself. It is not to be altered.
type Manifest struct {
	Version    int
	Archive    string // random: which archive it is, of those that there have been under the key
	Table      engine.TableName
	Columns    []engine.Column // of the newest schema; nil where not recorded
	Generation uint64          // 0 before the first base
	History    History
	Writer     WriterID
	Commit     uint64 // raised by each commit
	// Through is up to where the archive has everything: what follows the last
	// artifact changed nothing.
	Through Vector
	// Minted are the logs that the writer of the current base has minted.
	Minted Minted
	// Together are the tables, this one among them, that the writer brings to one vector; nil where not
	// recorded. Another table of the same logs is archived apart.
	Together []engine.TableName
	Written  time.Time
	Current  Sum
	// Artifacts are in order: generations, and within each a base and its diffs. A
	// writer's manifest lacks those that are sealed.
	Artifacts []Artifact

	sealed   []segment
	problems []error // segments that cannot be read
}

// segment is a run of artifacts of one generation, the oldest that there are, moved to an
// object of their own that is never changed: so that a commit costs the same however long
// an archive is.
type segment struct {
	Key        string    `json:"key"`
	Generation uint64    `json:"generation"`
	Artifacts  int       `json:"artifacts"`
	Size       int64     `json:"size"`
	SHA256     string    `json:"sha256"`
	Ended      time.Time `json:"ended"` // when the last of them was written
}

type manifestJSON struct {
	Version    int          `json:"version"`
	Archive    string       `json:"archive"`
	Table      tableJSON    `json:"table"`
	Columns    []columnJSON `json:"columns,omitempty"`
	Generation uint64       `json:"generation"`
	History    History      `json:"history"`
	Writer     WriterID     `json:"writer"`
	Commit     uint64       `json:"commit"`
	Through    Vector       `json:"through,omitempty"`
	Minted     Minted       `json:"minted,omitempty"`
	Together   []tableJSON  `json:"together,omitempty"`
	Written    time.Time    `json:"written"`
	Current    *Sum         `json:"current,omitempty"`
	Sealed     []segment    `json:"sealed,omitempty"`
	Artifacts  []Artifact   `json:"artifacts"`
	SHA256     string       `json:"sha256,omitempty"` // of all before the field; see withSum
}

// segmentJSON is a sealed segment's object.
type segmentJSON struct {
	Version   int        `json:"version"`
	Archive   string     `json:"archive"`
	Artifacts []Artifact `json:"artifacts"`
}

// encode returns the manifest's object.
func (m *Manifest) encode() ([]byte, error) {
	j := manifestJSON{
		Version: m.Version, Archive: m.Archive, Table: tableJSON{m.Table.Schema, m.Table.Name},
		Generation: m.Generation, History: m.History, Writer: m.Writer, Commit: m.Commit,
		Through: m.Through, Minted: m.Minted, Written: m.Written, Sealed: m.sealed, Artifacts: m.Artifacts,
	}
	for _, t := range m.Together {
		j.Together = append(j.Together, tableJSON{t.Schema, t.Name})
	}
	if m.Columns != nil {
		j.Columns = columnsJSON(m.Columns)
	}
	if m.Current != (Sum{}) {
		j.Current = &m.Current
	}
	if j.Artifacts == nil {
		j.Artifacts = []Artifact{}
	}
	b, err := json.Marshal(&j)
	return withSum(b), err
}

// sumField ends a manifest's object: the SHA-256 of all that comes before the field.
const (
	sumField = `,"sha256":"`
	sumEnd   = "\"}\n"
	sumLen   = len(sumField) + 2*sha256.Size + len(sumEnd)
)

// withSum adds its checksum to a JSON object, and a line feed.
func withSum(object []byte) []byte {
	object = bytes.TrimSuffix(object, []byte("}"))
	return append(object, sumText(object)...)
}

// sumText is how a manifest ends whose object is, up to there, as given.
func sumText(object []byte) string {
	sum := sha256.Sum256(object)
	return sumField + hex.EncodeToString(sum[:]) + sumEnd
}

// checkSum compares the checksum of a manifest's object, if it has one.
func checkSum(data []byte, has bool) error {
	at := len(data) - sumLen
	if at < 0 || !bytes.HasPrefix(data[at:], []byte(sumField)) {
		if has {
			return errors.New("its checksum does not end it")
		}
		return nil // an older one has none
	}
	if string(data[at:]) != sumText(data[:at]) {
		return errors.New("its checksum does not match: it was changed since it was written")
	}
	return nil
}

// checkVersion looks at the version before anything else.
func checkVersion(data []byte, where string) error {
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	if v.Version == nil {
		return errors.New("it has no version")
	}
	if *v.Version != Version {
		return &VersionError{Where: where, Has: *v.Version, Known: Version}
	}
	return nil
}

// decodeManifest reads a manifest's object: its own artifacts only. Fields that it does not
// know are left out.
func decodeManifest(data []byte, where string) (*Manifest, error) {
	if err := checkVersion(data, where); err != nil {
		return nil, err
	}
	var j manifestJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, err
	}
	if err := checkSum(data, j.SHA256 != ""); err != nil {
		return nil, err
	}
	m := &Manifest{
		Version: j.Version, Archive: j.Archive, Table: engine.TableName{Schema: j.Table.Schema, Name: j.Table.Name},
		Columns: columnsOf(j.Columns), Generation: j.Generation, History: j.History, Writer: j.Writer, Commit: j.Commit,
		Through: j.Through, Minted: j.Minted, Written: j.Written, Artifacts: j.Artifacts, sealed: j.Sealed,
	}
	if j.Current != nil {
		m.Current = *j.Current
	}
	for _, t := range j.Together {
		m.Together = append(m.Together, engine.TableName{Schema: t.Schema, Name: t.Name})
	}
	if m.Table.Name == "" {
		return nil, errors.New("it names no table")
	}
	if err := m.Through.check(); err != nil {
		return nil, err
	}
	return m, checkArtifacts(m.Artifacts)
}

func decodeSegment(data []byte, where string) ([]Artifact, error) {
	if err := checkVersion(data, where); err != nil {
		return nil, err
	}
	var j segmentJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, err
	}
	return j.Artifacts, checkArtifacts(j.Artifacts)
}

// checkArtifacts refuses artifacts that nothing could be made of.
func checkArtifacts(as []Artifact) error {
	for i := range as {
		a := &as[i]
		if a.Kind != KindBase && a.Kind != KindDiff {
			return fmt.Errorf("artifact %s is of kind %q, which is neither base nor diff", a.ID, a.Kind)
		}
		if err := errors.Join(a.From.check(), a.To.check()); err != nil {
			return fmt.Errorf("artifact %s: %w", a.ID, err)
		}
		if a.Kind == KindDiff && (len(a.From) == 0 || !a.To.Reaches(a.From)) {
			return fmt.Errorf("artifact %s: a diff from %s to %s", a.ID, a.From, a.To)
		}
		for _, f := range a.Files {
			if f.Size < 0 || len(f.SHA256) != 64 || f.Key == "" {
				return fmt.Errorf("artifact %s: its file %q lacks its size or checksum", a.ID, f.Key)
			}
		}
	}
	return nil
}

// end is where the last artifact ends.
func (m *Manifest) end() Vector {
	if len(m.Artifacts) == 0 {
		return nil
	}
	return m.Artifacts[len(m.Artifacts)-1].To
}
