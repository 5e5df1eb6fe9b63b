package client

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A snapshot file is a client's state at one commit: rows, tombstones, truncates,
// schemas, logs with the place from which their deletes are complete, cursors,
// and what the engine remembers of the logs.
//
//	file   = magic version header frame* 0x00 checksum
//	magic  = "TRIBUTARYCLIENT\n"
//	version = uint32, big endian: another one is not read
//	header = uvarint(len) JSON of fileHeader
//	frame  = uvarint(1+index into header.Tables) uvarint(len) records, as in engine.DecodeRecords
//	checksum = SHA-256 of all before it
//
// The checksum is verified before anything is taken in. A file is written beside
// the old one, synced and renamed, so that there is always a whole one.
const (
	fileMagic   = "TRIBUTARYCLIENT\n"
	fileVersion = 1
	fileFrame   = 64 << 10 // bytes of a frame past which it takes no further record
)

type fileHeader struct {
	Scope     engine.Scope
	Logs      []engine.LogInfo
	Schemas   []fileSchema
	Cursors   []engine.Cursor
	Tables    []engine.TableName
	Truncates []fileTruncate
	Meta      map[string][]byte
}

type fileSchema struct {
	Log    engine.LogID
	Schema *engine.Schema
}

type fileTruncate struct {
	Table engine.TableName
	At    engine.Stamp
}

// saveFile writes what a view holds.
func saveFile(path string, scope engine.Scope, v engine.View) (err error) {
	h := fileHeader{Scope: scope, Logs: v.Logs(), Meta: map[string][]byte{}}
	for i := range h.Logs {
		h.Logs[i].Oldest, h.Logs[i].Changes, h.Logs[i].Bytes = h.Logs[i].Head, 0, 0 // its entries are not kept
	}
	for _, c := range v.Cursors() {
		h.Cursors = append(h.Cursors, c)
	}
	v.ScanMeta("", func(key string, value []byte) bool {
		h.Meta[key] = bytes.Clone(value)
		return true
	})
	type id struct {
		log engine.LogID
		id  uint32
	}
	known := map[id]bool{}
	schema := func(log engine.LogID, s *engine.Schema) {
		if k := (id{log, s.ID}); !known[k] {
			known[k] = true
			h.Schemas = append(h.Schemas, fileSchema{log, s})
		}
	}
	origins := map[string]bool{}
	for _, l := range h.Logs {
		origins[l.ID.Origin] = true
		for _, s := range v.Schemas(l.ID) {
			schema(l.ID, s)
		}
	}
	for _, t := range v.Tables() {
		h.Tables = append(h.Tables, t.Table)
		if err := v.Scan(t.Table, nil, func(r *engine.Record) bool { // rows of logs that are no more
			origins[r.Stamp.Origin] = true
			schema(r.Stamp.Log(), r.Schema)
			return true
		}); err != nil {
			return err
		}
		for o := range origins {
			if at := v.Truncated(t.Table, o); at != (engine.Stamp{}) {
				h.Truncates = append(h.Truncates, fileTruncate{t.Table, at})
			}
		}
	}
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(tmp)
		}
	}()
	if err := writeFile(f, &h, v); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

func writeFile(f io.Writer, h *fileHeader, v engine.View) error {
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), fileFrame)
	header, err := json.Marshal(h)
	if err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint32([]byte(fileMagic), fileVersion)
	head = binary.AppendUvarint(head, uint64(len(header)))
	_, _ = w.Write(head) // the writer keeps its first error
	_, _ = w.Write(header)
	for i, t := range h.Tables {
		var enc engine.RecordEncoder
		flush := func() {
			if enc.Records() > 0 {
				n := enc.Len()
				_, _ = w.Write(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(i)+1), uint64(n)))
				_, _ = w.Write(enc.Take())
			}
		}
		if err := v.Scan(t, nil, func(r *engine.Record) bool {
			if enc.Len() > 0 && enc.Len()+len(r.Key)+len(r.Row) > fileFrame {
				flush()
			}
			enc.Append(r)
			return true
		}); err != nil {
			return err
		}
		flush()
	}
	_ = w.WriteByte(0)
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = f.Write(sum.Sum(nil))
	return err
}

// snapshotFile is a file that has been found whole.
type snapshotFile struct {
	file   *os.File
	body   int64 // where the checksum begins
	in     *bufio.Reader
	header fileHeader
}

func (s *snapshotFile) close() { _ = s.file.Close() }

// rewind makes the file ready to be loaded.
func (s *snapshotFile) rewind() error {
	at := int64(len(fileMagic) + 4)
	s.in = bufio.NewReaderSize(io.NewSectionReader(s.file, at, s.body-at), fileFrame)
	header, err := s.bytes(s.body)
	if err != nil {
		return err
	}
	s.header = fileHeader{}
	if err := json.Unmarshal(header, &s.header); err != nil {
		return fmt.Errorf("its header cannot be read: %w", err)
	}
	return nil
}

// openFile opens a snapshot file for a client of a scope and verifies it. The
// error says why it is of no use.
func openFile(path string, scope engine.Scope) (s *snapshotFile, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	head := make([]byte, len(fileMagic)+4)
	if _, err := io.ReadFull(f, head); err != nil || string(head[:len(fileMagic)]) != fileMagic {
		return nil, errors.New("it is not a snapshot of a client")
	}
	if v := binary.BigEndian.Uint32(head[len(fileMagic):]); v != fileVersion {
		return nil, fmt.Errorf("it has format %d, and this version reads format %d", v, fileVersion)
	}
	body := info.Size() - sha256.Size
	if body < int64(len(head)) {
		return nil, errors.New("it is cut short")
	}
	if err := verify(f, body, sha256.New()); err != nil {
		return nil, err
	}
	s = &snapshotFile{file: f, body: body}
	if err := s.rewind(); err != nil {
		return nil, err
	}
	if s.header.Scope != scope {
		return nil, errors.New("it was written by a client of other tables, columns or rows")
	}
	for _, c := range s.header.Cursors {
		if c.Scope != scope {
			return nil, errors.New("it has a cursor of other tables, columns or rows")
		}
	}
	return s, nil
}

func verify(f *os.File, body int64, sum hash.Hash) error {
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, body)); err != nil {
		return err
	}
	want := make([]byte, sha256.Size)
	if _, err := f.ReadAt(want, body); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errors.New("it is damaged or cut short: its checksum is wrong")
	}
	return nil
}

// bytes reads a length and that many bytes, at most max.
func (s *snapshotFile) bytes(max int64) ([]byte, error) {
	n, err := binary.ReadUvarint(s.in)
	if err != nil {
		return nil, err
	}
	if n > uint64(max) {
		return nil, fmt.Errorf("it claims a part of %d bytes, which is more than it has", n)
	}
	p := make([]byte, n)
	_, err = io.ReadFull(s.in, p)
	return p, err
}

// carriedBy says why an upstream that offers logs cannot go on from the file; nil
// if it can.
func (s *snapshotFile) carriedBy(offers map[engine.LogID]bool) error {
	if len(s.header.Cursors) == 0 {
		return errors.New("it has no cursor")
	}
	for _, c := range s.header.Cursors {
		if !offers[c.Log] {
			return fmt.Errorf("it is of log %s, which the upstream does not have: another epoch has begun, or the file is of another topology", c.Log)
		}
	}
	return nil
}

// succeededBy reports whether an upstream that offers logs has the origins of the
// file, if in other epochs.
func (s *snapshotFile) succeededBy(offers map[engine.LogID]bool) bool {
	for _, c := range s.header.Cursors {
		found := false
		for log := range offers {
			found = found || log.Origin == c.Log.Origin
		}
		if !found {
			return false
		}
	}
	return true
}

// load takes the file into an empty store, in one transaction that is the
// caller's to commit.
func (s *snapshotFile) load(tx engine.Tx, compare engine.Comparator) error {
	type id struct {
		log engine.LogID
		id  uint32
	}
	schemas := map[id]*engine.Schema{}
	for _, sc := range s.header.Schemas {
		if sc.Schema == nil {
			return errors.New("it has an empty schema")
		}
		schemas[id{sc.Log, sc.Schema.ID}] = sc.Schema
		if err := tx.PutSchema(sc.Log, sc.Schema); err != nil {
			return err
		}
	}
	for _, l := range s.header.Logs {
		if err := tx.ResetLog(l.ID, compare, l.Head, l.Time); err != nil {
			return err
		}
		if err := tx.SetCompleteFrom(l.ID, l.CompleteFrom); err != nil {
			return err
		}
	}
	var records []engine.Record
	for {
		table, err := binary.ReadUvarint(s.in)
		if err != nil {
			return err
		}
		if table == 0 {
			break
		}
		if table > uint64(len(s.header.Tables)) {
			return fmt.Errorf("it has rows of table %d of %d", table, len(s.header.Tables))
		}
		info, err := s.file.Stat()
		if err != nil {
			return err
		}
		p, err := s.bytes(info.Size())
		if err != nil {
			return err
		}
		records, err = engine.DecodeRecords(records[:0], s.header.Tables[table-1], p, func(log engine.LogID, n uint32) *engine.Schema { return schemas[id{log, n}] })
		if err != nil {
			return err
		}
		for i := range records {
			if err := tx.Put(&records[i]); err != nil {
				return err
			}
		}
	}
	for _, t := range s.header.Truncates {
		if err := tx.SetTruncated(t.Table, t.At); err != nil {
			return err
		}
	}
	for key, value := range s.header.Meta {
		if err := tx.SetMeta(key, value); err != nil {
			return err
		}
	}
	for _, c := range s.header.Cursors {
		if err := tx.SetCursor(c); err != nil {
			return err
		}
	}
	return nil
}
