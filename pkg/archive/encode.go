package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// header is what an artifact says of itself before all else: the same in every format.
// All checksums within it depend on it.
type header struct {
	Archive    string
	Table      engine.TableName
	ID         string
	Kind       Kind
	Generation uint64
	Fence      uint64
	History    History
	From, To   Vector
	Continues  bool
}

// headerOf returns what the header of a listed artifact must be.
func headerOf(archive string, table engine.TableName, a *Artifact) header {
	return header{archive, table, a.ID, a.Kind, a.Generation, a.Fence, a.History, a.From, a.To, a.Continues}
}

// check says in which way a header is not the one that was expected.
func (h *header) check(want *header) error {
	switch {
	case h.Table != want.Table:
		return fmt.Errorf("it is of table %s, and the manifest is of %s", h.Table, want.Table)
	case h.ID != want.ID || h.Archive != want.Archive:
		return fmt.Errorf("it is artifact %s of archive %s, and the manifest lists artifact %s of archive %s", h.ID, h.Archive, want.ID, want.Archive)
	case h.Kind != want.Kind || h.Generation != want.Generation || h.Fence != want.Fence || h.History != want.History || h.Continues != want.Continues:
		return fmt.Errorf("it is a %s of generation %d, and the manifest lists a %s of generation %d", h.Kind, h.Generation, want.Kind, want.Generation)
	case !h.From.Equal(want.From) || !h.To.Equal(want.To):
		return fmt.Errorf("it goes from %s to %s, and the manifest says from %s to %s", h.From, h.To, want.From, want.To)
	}
	return nil
}

// counts are what the end of an artifact says was in it.
type counts struct {
	Puts, Deletes, Truncates, Transactions int64
}

// encoder writes an artifact in one format.
type encoder interface {
	schema(log engine.LogID, s *engine.Schema) error
	// begin starts a transaction of a full history.
	begin(e *Entry) error
	// record writes a change. implied says that its key follows from its row.
	record(e *Entry, implied bool) error
	// end writes what comes last.
	end(c counts) error
	// stop waits for what the encoder has started. It is called in any case.
	stop()
}

// artifactWriter writes one artifact in all its formats.
type artifactWriter struct {
	head    header
	files   []*fileWriter
	known   map[schemaKey]*engine.Schema
	counts  counts
	bytes   int64
	cuts    Stamps
	columns []engine.Column // of the newest schema
	newest  engine.Time     // of the write that had it
	key     []byte
	lastLog engine.LogID
	lastPos engine.Position
}

type schemaKey struct {
	log engine.LogID
	id  uint32
}

// fileWriter counts and sums up what goes to an object.
type fileWriter struct {
	File
	full string // its whole key
	w    dest.Writer
	sum  hash.Hash
	enc  encoder
}

func (f *fileWriter) Write(p []byte) (int, error) {
	f.sum.Write(p)
	f.Size += int64(len(p))
	return f.w.Write(p)
}

// compressor makes encoders of a level.
type compressor struct {
	level zstd.EncoderLevel
	all   *zstd.Encoder // for EncodeAll
}

func newCompressor(level int) (*compressor, error) {
	l := zstd.EncoderLevelFromZstd(level)
	all, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(l), zstd.WithEncoderCRC(false))
	return &compressor{l, all}, err
}

func (w *Writer) newArtifactWriter(ctx context.Context, h header) (*artifactWriter, error) {
	a := &artifactWriter{head: h, known: map[schemaKey]*engine.Schema{}}
	like := Artifact{ID: h.ID, Kind: h.Kind, Generation: h.Generation}
	for _, format := range w.cfg.Formats {
		f := &fileWriter{File: File{Format: format, Key: like.keyOf(format)}, sum: sha256.New()}
		f.full = w.prefix + f.Key
		var err error
		if f.w, err = w.dest.Create(ctx, f.full); err == nil {
			a.files = append(a.files, f)
			if format == Protobuf {
				f.enc, err = newProtobufEncoder(f, &h, w.zstd, cmp.Or(w.cfg.block, maxPayload))
			} else {
				f.enc, err = newJSONEncoder(f, &h, w.zstd, format == JSONLZstd, cmp.Or(w.cfg.block, maxLines))
			}
		}
		if err != nil {
			a.abort()
			return nil, err
		}
	}
	return a, nil
}

func (a *artifactWriter) schemas(all Schemas) error {
	logs := make([]engine.LogID, 0, len(all))
	for l := range all {
		logs = append(logs, l)
	}
	slices.SortFunc(logs, compareLogs)
	for _, l := range logs {
		for _, s := range all[l] {
			if s.Table != a.head.Table {
				continue // View.Schemas gives those of all tables of a log
			}
			if err := a.schema(l, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *artifactWriter) schema(log engine.LogID, s *engine.Schema) error {
	k := schemaKey{log, s.ID}
	if have := a.known[k]; have != nil {
		if have != s && have.Fingerprint() != s.Fingerprint() {
			return fmt.Errorf("schema %d of log %s is two different ones", s.ID, log)
		}
		a.known[k] = s
		return nil
	}
	if s.Table != a.head.Table {
		return fmt.Errorf("a schema of %s in an archive of %s", s.Table, a.head.Table)
	}
	if err := checkText("origin", log.Origin); err != nil {
		return err
	}
	for _, c := range s.Columns {
		if err := errors.Join(checkText("column name", c.Name), checkText("type name", c.TypeName)); err != nil {
			return err
		}
	}
	a.known[k] = s
	for _, f := range a.files {
		if err := f.enc.schema(log, s); err != nil {
			return err
		}
	}
	return nil
}

// put writes a change.
func (a *artifactWriter) put(e *Entry) error {
	log := e.Stamp.Log()
	if have := a.known[schemaKey{log, e.Schema.ID}]; have != e.Schema {
		if have == nil && a.head.Kind == KindBase {
			return fmt.Errorf("a row uses schema %d of log %s, which is not among those given", e.Schema.ID, log)
		}
		if err := a.schema(log, e.Schema); err != nil {
			return err
		}
	}
	if a.columns == nil || e.Stamp.Time >= a.newest {
		a.columns, a.newest = e.Schema.Columns, e.Stamp.Time
	}
	if a.head.History == Full && (e.Log != a.lastLog || e.Position != a.lastPos) {
		a.lastLog, a.lastPos = e.Log, e.Position
		a.counts.Transactions++
		for _, f := range a.files {
			if err := f.enc.begin(e); err != nil {
				return err
			}
		}
	}
	implied := false
	switch e.Op {
	case engine.OpPut:
		var keyed bool
		var err error
		if a.key, keyed, err = rowKey(a.key[:0], e.Schema, e.Row); err != nil {
			return err
		}
		implied = keyed && bytes.Equal(a.key, e.Key)
		a.counts.Puts++
	case engine.OpDelete:
		a.counts.Deletes++
	case engine.OpTruncate:
		a.counts.Truncates++
		a.cuts = a.cuts.newest(e.Stamp)
	default:
		return fmt.Errorf("a change that is neither put, delete nor truncate: %d", e.Op)
	}
	a.bytes += int64(len(e.Key) + len(e.Row))
	for _, f := range a.files {
		if err := f.enc.record(e, implied); err != nil {
			return err
		}
	}
	return nil
}

// commit ends the artifact and puts its files where they belong.
func (a *artifactWriter) commit() (files []File, err error) {
	for _, f := range a.files {
		if err := f.enc.end(a.counts); err != nil {
			return nil, err
		}
		f.enc.stop()
		f.SHA256 = hex.EncodeToString(f.sum.Sum(nil))
		if err := f.w.Commit(); err != nil {
			return nil, err
		}
		files = append(files, f.File)
	}
	return files, nil
}

// abort leaves nothing behind of what is not committed.
func (a *artifactWriter) abort() {
	for _, f := range a.files {
		if f.enc != nil {
			f.enc.stop()
		}
		f.w.Abort()
	}
}
