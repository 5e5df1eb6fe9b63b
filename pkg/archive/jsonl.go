package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// The JSON format: an object a line. See docs/archive-format.md.

// maxLines is the size of the lines past which a check line follows.
const maxLines = 256 << 10

type headerJSON struct {
	Format     string    `json:"tributary"` // "archive"
	Version    int       `json:"version"`
	Table      tableJSON `json:"table"`
	Archive    string    `json:"archive"`
	ID         string    `json:"id"`
	Kind       Kind      `json:"kind"`
	Generation uint64    `json:"generation"`
	Fence      uint64    `json:"fence"`
	History    History   `json:"history,omitempty"`
	From       Vector    `json:"from,omitempty"`
	To         Vector    `json:"to"`
	Continues  bool      `json:"continues,omitempty"`
}

type schemaJSON struct {
	Log             string       `json:"log"`
	ID              uint32       `json:"id"`
	Table           tableJSON    `json:"table"`
	RelationOID     uint32       `json:"relationOID,omitempty"`
	ReplicaIdentity string       `json:"replicaIdentity,omitempty"`
	Columns         []columnJSON `json:"columns"`
}

type transactionJSON struct {
	Log      string      `json:"log"`
	Position string      `json:"position"`
	Time     engine.Time `json:"time,string"`
	Major    uint64      `json:"major,string"`
}

type checkJSON struct {
	Number uint32 `json:"number"`
	Sum    string `json:"sum"`
}

type endJSON struct {
	Puts         int64  `json:"puts"`
	Deletes      int64  `json:"deletes"`
	Truncates    int64  `json:"truncates"`
	Transactions int64  `json:"transactions"`
	SHA256       string `json:"sha256"`
}

// jsonEncoder writes the JSON format.
type jsonEncoder struct {
	w      io.Writer // of the lines
	zstd   *zstd.Encoder
	limit  int // of the lines between two checks
	header [32]byte
	number uint32
	sum    hash.Hash // of all lines
	summed bool      // what is written to w is summed up there
	lines  []byte    // since the last check
	tx     bool

	// How a record of the kind of the last one begins, and what stands before its values.
	like  recordLike
	head  []byte
	names map[*engine.Schema][][]byte
}

// recordLike is what the beginning of a record's line depends on.
type recordLike struct {
	op     engine.Op
	stamp  engine.Stamp
	via    engine.LogID
	schema uint32
}

// linesSum is the checksum of the lines between two checks: it depends on the artifact that they
// are part of, and on their place in it.
func linesSum(header *[32]byte, number uint32, lines []byte) string {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(header[:])
	_, _ = d.Write([]byte{byte(number), byte(number >> 8), byte(number >> 16), byte(number >> 24)})
	_, _ = d.Write(lines)
	return hex.EncodeToString(d.Sum(nil))
}

func newJSONEncoder(w *fileWriter, h *header, z *compressor, pack bool, limit int) (*jsonEncoder, error) {
	j := &jsonEncoder{w: w, limit: limit, sum: w.sum, summed: true, number: 1}
	if pack {
		j.sum, j.summed = sha256.New(), false
		var err error
		if j.zstd, err = zstd.NewWriter(w, zstd.WithEncoderLevel(z.level), zstd.WithEncoderCRC(false)); err != nil {
			return nil, err
		}
		j.w = j.zstd
	}
	line, err := json.Marshal(&headerJSON{
		"archive", Version, tableJSON{h.Table.Schema, h.Table.Name}, h.Archive, h.ID, h.Kind,
		h.Generation, h.Fence, h.History, h.From, h.To, h.Continues,
	})
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	j.header = sha256.Sum256(line)
	return j, j.write(line)
}

func (j *jsonEncoder) write(b []byte) error {
	if !j.summed {
		_, _ = j.sum.Write(b)
	}
	_, err := j.w.Write(b)
	return err
}

func (j *jsonEncoder) flush() error {
	if len(j.lines) == 0 {
		return nil
	}
	sum := linesSum(&j.header, j.number, j.lines)
	j.lines = fmt.Appendf(j.lines, `{"check":{"number":%d,"sum":"%s"}}`+"\n", j.number, sum)
	j.number++
	err := j.write(j.lines)
	if j.lines = j.lines[:0]; cap(j.lines) > 8*j.limit {
		j.lines = nil
	}
	return err
}

func (j *jsonEncoder) line(name string, v any) error {
	b, err := json.Marshal(map[string]any{name: v})
	if err != nil {
		return err
	}
	j.lines = append(append(j.lines, b...), '\n')
	return j.room()
}

func (j *jsonEncoder) room() error {
	if len(j.lines) < j.limit {
		return nil
	}
	return j.flush()
}

func (j *jsonEncoder) schema(log engine.LogID, s *engine.Schema) error {
	id := ""
	if s.ReplicaIdentity != 0 {
		id = string(rune(s.ReplicaIdentity))
	}
	return j.line("schema", &schemaJSON{log.String(), s.ID, tableJSON{s.Table.Schema, s.Table.Name}, s.RelationOID, id, columnsJSON(s.Columns)})
}

func (j *jsonEncoder) begin(e *Entry) error {
	j.tx = true
	return j.line("transaction", &transactionJSON{e.Log.String(), string(e.Position), e.Time, e.Major})
}

func (j *jsonEncoder) record(e *Entry, implied bool) error {
	if like := (recordLike{e.Op, e.Stamp, e.Log, e.Schema.ID}); j.head == nil || like != j.like {
		j.begins(e)
		j.like = like
	}
	p := append(j.lines, j.head...)
	if e.Op != engine.OpTruncate && !implied {
		parts, err := engine.DecodeKey(e.Key)
		if err != nil {
			return err
		}
		p = append(p, `,"key":[`...)
		for i, part := range parts {
			if i > 0 {
				p = append(p, ',')
			}
			if part == nil {
				p = append(p, "null"...)
			} else {
				p = appendText(p, part)
			}
		}
		p = append(p, ']')
	}
	if e.Op == engine.OpPut {
		names := j.names[e.Schema]
		if names == nil {
			if names = memberNames(e.Schema); j.names == nil {
				j.names = map[*engine.Schema][][]byte{}
			}
			j.names[e.Schema] = names
		}
		_, _, body, err := e.Row.Header()
		if err != nil {
			return err
		}
		p = append(p, `,"row":{`...)
		first := true
		for _, name := range names {
			var st engine.ColumnState
			var v []byte
			if st, v, body, err = engine.NextColumn(body); err != nil {
				return err
			}
			if st == engine.Absent {
				continue
			}
			if !first {
				p = append(p, ',')
			}
			first = false
			p = append(p, name...)
			if st == engine.Null {
				p = append(p, "null"...)
			} else {
				p = appendText(p, v)
			}
		}
		p = append(p, '}')
	}
	j.lines = append(p, "}\n"...)
	return j.room()
}

// begins makes how the line of a record begins.
func (j *jsonEncoder) begins(e *Entry) {
	p := append(j.head[:0], `{"op":"`...)
	p = append(p, e.Op.String()...)
	p = append(p, `","stamp":`...)
	p = appendText(p, []byte(e.Stamp.String()))
	if log := e.Stamp.Log(); !j.tx && e.Log != log && e.Log != (engine.LogID{}) {
		p = append(p, `,"via":`...)
		p = appendText(p, []byte(e.Log.String()))
	}
	p = append(p, `,"schema":`...)
	j.head = strconv.AppendUint(p, uint64(e.Schema.ID), 10)
}

// memberNames are the names of a schema's columns as they stand in a row's object, with the colons.
func memberNames(s *engine.Schema) [][]byte {
	names := make([][]byte, len(s.Columns))
	for i := range s.Columns {
		names[i] = append(appendText(nil, []byte(s.Columns[i].Name)), ':')
	}
	return names
}

const hexDigits = "0123456789abcdef"

// appendText adds a string. What is not UTF-8 goes in base64, in an object, so that no byte
// is lost.
func appendText(dst, v []byte) []byte {
	if !utf8.Valid(v) {
		dst = append(dst, `{"base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, v)
		return append(dst, `"}`...)
	}
	dst = append(dst, '"')
	for {
		i := special(v)
		dst = append(dst, v[:i]...)
		if i == len(v) {
			return append(dst, '"')
		}
		c := v[i]
		v = v[i+1:]
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
}

func (j *jsonEncoder) end(c counts) error {
	if err := j.flush(); err != nil {
		return err
	}
	line, err := json.Marshal(map[string]any{"end": &endJSON{c.Puts, c.Deletes, c.Truncates, c.Transactions, hex.EncodeToString(j.sum.Sum(nil))}})
	if err != nil {
		return err
	}
	if _, err = j.w.Write(append(line, '\n')); err != nil || j.zstd == nil {
		return err
	}
	err = j.zstd.Close()
	j.zstd = nil
	return err
}

func (j *jsonEncoder) stop() {
	if j.zstd != nil {
		j.zstd.Reset(io.Discard)
		_ = j.zstd.Close()
		j.zstd = nil
	}
}

// isCheck reports whether a line is a check.
func isCheck(line []byte) bool { return bytes.HasPrefix(line, []byte(`{"check":`)) }
