package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// maxUnchecked bounds the lines between two checks, but for a single line that is larger.
const maxUnchecked = 4 * maxLines

type jsonDecoder struct {
	*decoding
	log      engine.LogID // of the transaction that is open
	key, row []byte
	cells    []cell

	// What scan remembers.
	scanner   scanner
	logs      map[string]engine.LogID
	schemaOf  *engine.Schema
	schemaLog engine.LogID
	names     [][]byte // of the columns of namesOf
	namesOf   *engine.Schema
	// How the last line of a put without a key began, up to its row, and what that says.
	like      []byte
	likeStamp engine.Stamp
	likeLog   engine.LogID
	likeOf    *engine.Schema
}

// lines are those up to a check, verified.
type lines struct {
	buf    []byte // what has been read
	lines  []byte // part of it
	check  []byte
	end    *endJSON // the last line, which follows no lines
	first  int      // number of the first of the lines, or of the line that err is about
	offset int64
	err    error
}

// lineReader reads lines and verifies them.
type lineReader struct {
	in       io.Reader
	rest     []byte // read already
	artifact [32]byte
	number   uint32 // of the next check
	line     int    // of the next line
	offset   int64
}

// lineChunk is how much is read at once.
const lineChunk = 64 << 10

// more reads on, after b. It returns io.EOF only with nothing read.
func (r *lineReader) more(b []byte) ([]byte, error) {
	b = slices.Grow(b, lineChunk)
	for {
		n, err := r.in.Read(b[len(b) : len(b)+lineChunk])
		if n > 0 {
			return b[:len(b)+n], nil
		}
		if err != nil {
			return b, err
		}
	}
}

// header reads the first line.
func (r *lineReader) header() (line []byte, err error) {
	for {
		if i := bytes.IndexByte(r.rest, '\n'); i >= 0 {
			line, r.rest = r.rest[:i+1:i+1], r.rest[i+1:]
			r.artifact = sha256.Sum256(line)
			r.line, r.offset, r.number = 2, int64(len(line)), 1
			return line, nil
		}
		if len(r.rest) > maxUnchecked {
			return nil, errors.New("it is not an artifact in JSON format: it does not begin with a line of JSON")
		}
		if r.rest, err = r.more(r.rest); err != nil {
			return nil, err
		}
	}
}

// next reads the lines up to a check, or the last line, using the memory of b again.
func (r *lineReader) next(b *lines) {
	if _, ok := r.in.(*memory); ok {
		b.buf = r.rest
	} else {
		b.buf = append(b.buf[:0], r.rest...)
	}
	b.end, b.check, b.first, b.offset, b.err = nil, nil, r.line, r.offset, nil
	at, searched := 0, 0 // where a line begins, and up to where its end has been looked for
	for {
		i := bytes.IndexByte(b.buf[searched:], '\n')
		if i < 0 {
			var err error
			searched = len(b.buf)
			if b.buf, err = r.more(b.buf); err != nil {
				b.first, b.offset = r.line, r.offset+int64(len(b.buf))
				b.err = err
				return
			}
			continue
		}
		line := b.buf[at : searched+i+1]
		switch {
		case isCheck(line):
			b.lines, b.check = b.buf[:at:at], line
			r.rest = b.buf[at+len(line):]
			r.line++
			r.offset += int64(at + len(line))
			var c struct{ Check checkJSON }
			if err := json.Unmarshal(line, &c); err != nil || c.Check.Number != r.number || c.Check.Sum != linesSum(&r.artifact, r.number, b.lines) {
				b.err = fmt.Errorf("the checksum of the %d lines from here on does not match: their bytes have changed, or they are of another artifact", bytes.Count(b.lines, newline))
			}
			r.number++
			return
		case bytes.HasPrefix(line, []byte(`{"end":`)):
			if at > 0 {
				b.err = errors.New("lines that no check follows")
			}
			var e struct{ End endJSON }
			if err := json.Unmarshal(line, &e); err != nil {
				b.err = err
			}
			b.end, r.rest = &e.End, b.buf[at+len(line):]
			return
		case at > maxUnchecked:
			b.err = fmt.Errorf("no check follows within %d bytes", maxUnchecked)
			return
		}
		r.line++
		at += len(line)
		searched = at
	}
}

// ended reports an error if there is more.
func (r *lineReader) ended() error {
	more, err := r.rest, error(nil)
	if len(more) == 0 {
		more, err = r.more(nil)
	}
	switch {
	case len(more) > 0:
		return errors.New("there is more after its end")
	case err != io.EOF:
		return err
	}
	return nil
}

// decodeJSON passes on what is in an artifact of the JSON format.
func decodeJSON(in io.Reader, d *decoding, packed bool) error {
	if packed {
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(1<<30))
		if err != nil {
			return err
		}
		defer z.Close()
		in = unpacking{z}
	}
	r := &lineReader{in: in}
	if m, ok := in.(*memory); ok {
		r.rest, m.rest = m.rest, nil
	}
	j := &jsonDecoder{decoding: d}
	head, err := r.header()
	if err == nil {
		err = j.readHeader(head)
	}
	if err != nil {
		return d.corrupt(0, 1, 0, err)
	}
	var sum hash.Hash
	if !d.verified {
		sum = sha256.New()
		sum.Write(head)
	}

	// Lines are read and verified ahead of where they are passed on.
	free := make(chan *lines, d.ahead())
	for range cap(free) {
		free <- &lines{}
	}
	ahead := make(chan *lines, cap(free))
	stop := make(chan struct{})
	var g sync.WaitGroup
	defer func() { close(stop); g.Wait() }()
	g.Go(func() {
		for {
			var b *lines
			select {
			case b = <-free:
			case <-stop:
				return
			}
			r.next(b)
			switch {
			case b.err != nil:
			case b.end == nil && sum != nil:
				sum.Write(b.lines)
				sum.Write(b.check)
			case b.end != nil && sum != nil && b.end.SHA256 != hex.EncodeToString(sum.Sum(nil)):
				b.err = errors.New("the checksum of the whole does not match")
			case b.end != nil:
				b.err = r.ended()
			}
			last := b.err != nil || b.end != nil
			ahead <- b
			if last {
				return
			}
		}
	})
	for {
		b := <-ahead
		if b.err != nil {
			return d.corrupt(0, b.first, b.offset, b.err)
		}
		if b.end != nil {
			if err := j.ended(counts{b.end.Puts, b.end.Deletes, b.end.Truncates, b.end.Transactions}); err != nil {
				return d.corrupt(0, b.first, b.offset, err)
			}
			return nil
		}
		n, at := b.first, b.offset
		for rest := b.lines; len(rest) > 0; n++ {
			line := rest[:bytes.IndexByte(rest, '\n')+1]
			if err := j.take(line); err != nil {
				return d.corrupt(0, n, at, err)
			}
			rest, at = rest[len(line):], at+int64(len(line))
		}
		free <- b
	}
}

var newline = []byte{'\n'}

// unpacking is a compressed stream: what is wrong with it is wrong with the data.
type unpacking struct{ z *zstd.Decoder }

func (u unpacking) Read(p []byte) (int, error) {
	n, err := u.z.Read(p)
	if err != nil && err != io.EOF && isData(err) {
		err = fmt.Errorf("it does not unpack: %w", err)
	}
	return n, err
}

func (j *jsonDecoder) readHeader(line []byte) error {
	var h headerJSON
	if err := json.Unmarshal(line, &h); err != nil {
		return fmt.Errorf("it is not an artifact in JSON format: %w", err)
	}
	if h.Format != "archive" {
		return errors.New(`it is not an artifact in JSON format: its first line lacks "tributary":"archive"`)
	}
	j.head = header{
		h.Archive, engine.TableName{Schema: h.Table.Schema, Name: h.Table.Name}, h.ID, h.Kind, h.Generation, h.Fence,
		h.History, h.From, h.To, h.Continues,
	}
	if err := j.version(h.Version); err != nil {
		return err
	}
	return j.headed()
}

type lineJSON struct {
	Op          string           `json:"op"`
	Stamp       string           `json:"stamp"`
	Via         string           `json:"via"`
	SchemaID    json.RawMessage  `json:"schema"`
	Key         []cell           `json:"key"`
	Row         json.RawMessage  `json:"row"`
	Transaction *transactionJSON `json:"transaction"`
}

// take passes on a line.
func (j *jsonDecoder) take(line []byte) error {
	hasKey, ok := j.scan(line)
	if ok {
		return j.entry(hasKey)
	}
	j.keyMade, j.like = false, j.like[:0]
	return j.takeAny(line)
}

// takeAny passes on a line of whatever shape. A kind of line that it does not know is left out.
func (j *jsonDecoder) takeAny(line []byte) error {
	l := lineJSON{Key: j.cells[:0]}
	if err := json.Unmarshal(line, &l); err != nil {
		return err
	}
	switch {
	case l.Transaction != nil:
		return j.transaction(l.Transaction)
	case l.Op != "":
		return j.record(&l)
	case len(l.SchemaID) > 0:
		return j.readSchema(l.SchemaID)
	}
	return nil
}

func (j *jsonDecoder) transaction(t *transactionJSON) (err error) {
	if j.head.History != Full {
		return errors.New("a transaction in an artifact that has none")
	}
	e := &j.last
	e.Position, e.Time, e.Major = engine.Position(t.Position), t.Time, t.Major
	j.counts.Transactions++
	j.inTx = true
	j.log, err = parseLog(t.Log)
	return err
}

func (j *jsonDecoder) readSchema(raw []byte) error {
	var s schemaJSON
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	log, err := parseLog(s.Log)
	if err != nil {
		return err
	}
	out := &engine.Schema{
		ID: s.ID, Table: engine.TableName{Schema: s.Table.Schema, Name: s.Table.Name},
		RelationOID: s.RelationOID, Columns: columnsOf(s.Columns),
	}
	if s.ReplicaIdentity != "" {
		out.ReplicaIdentity = engine.ReplicaIdentity(s.ReplicaIdentity[0])
	}
	return j.schema(log, out)
}

func (j *jsonDecoder) record(l *lineJSON) error {
	e := &j.last
	var err error
	if e.Stamp, err = parseStamp(l.Stamp); err != nil {
		return err
	}
	switch l.Op {
	case "put":
		e.Op = engine.OpPut
	case "delete":
		e.Op = engine.OpDelete
	case "truncate":
		e.Op = engine.OpTruncate
	default:
		return fmt.Errorf("an unknown operation %q", l.Op)
	}
	log := e.Stamp.Log()
	switch {
	case j.head.History == Full:
		e.Log = j.log
	case l.Via == "":
		e.Log = log
	default:
		if e.Log, err = parseLog(l.Via); err != nil {
			return err
		}
	}
	var id uint32
	if len(l.SchemaID) > 0 {
		if err := json.Unmarshal(l.SchemaID, &id); err != nil {
			return err
		}
	}
	e.Key, e.Row = nil, nil
	if e.Schema = j.schemas[schemaKey{log, id}]; e.Schema == nil {
		if e.Schema, err = j.assume(log, id, l.Row); err != nil {
			return err
		}
	}
	if e.Op == engine.OpPut {
		if j.row, err = j.appendRow(j.row[:0], e.Schema, l.Row); err != nil {
			return err
		}
		e.Row = j.row
	}
	hasKey := len(l.Key) > 0
	if hasKey {
		j.key, j.cells = j.key[:0], l.Key
		for _, c := range l.Key {
			if c.null {
				j.key = engine.AppendKeyNull(j.key)
			} else {
				j.key = engine.AppendKeyValue(j.key, c.value)
			}
		}
		e.Key = j.key
	}
	return j.entry(hasKey)
}

// assume makes a schema for an artifact that has none: of the manifest's columns, or of the names
// in the first row.
func (j *jsonDecoder) assume(log engine.LogID, id uint32, row []byte) (*engine.Schema, error) {
	columns := j.columns
	if columns == nil {
		err := cells(row, func(name []byte, _ cell) error {
			columns = append(columns, engine.Column{Name: string(name)})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(columns) == 0 {
		return nil, fmt.Errorf("schema %d of log %s did not come before it is used, and there is no row to take names from", id, log)
	}
	j.columns, j.assumed = columns, true
	s := &engine.Schema{ID: id, Table: j.head.Table, Columns: columns}
	return s, j.schema(log, s)
}

// appendRow packs a row.
func (j *jsonDecoder) appendRow(dst []byte, s *engine.Schema, raw []byte) ([]byte, error) {
	dst = engine.AppendRowHeader(dst, s.ID, len(s.Columns))
	i := 0
	err := cells(raw, func(name []byte, c cell) error {
		for ; i < len(s.Columns); i++ {
			if s.Columns[i].Name != string(name) {
				dst = engine.AppendAbsent(dst)
				continue
			}
			i++
			if c.null {
				dst = engine.AppendNull(dst)
			} else {
				dst = engine.AppendValue(dst, c.value)
			}
			return nil
		}
		return fmt.Errorf("column %q of the row is not part of schema %d, or not in its place", name, s.ID)
	})
	for ; err == nil && i < len(s.Columns); i++ {
		dst = engine.AppendAbsent(dst)
	}
	return dst, err
}

// cell is a value in JSON: null, a string, or an object with base64.
type cell struct {
	null  bool
	value []byte
}

func (c *cell) UnmarshalJSON(b []byte) error {
	*c = cell{}
	switch b[0] {
	case 'n':
		c.null = true
		return nil
	case '"':
		v, err := unquote(b)
		c.value = v
		return err
	}
	var o struct {
		Base64 *string `json:"base64"`
	}
	err := json.Unmarshal(b, &o)
	if err != nil || o.Base64 == nil {
		return fmt.Errorf("a value that is neither a string, null nor base64: %.40s", b)
	}
	c.value, err = base64.StdEncoding.DecodeString(*o.Base64)
	return err
}

// unquote reads a JSON string, whose syntax has been checked.
func unquote(b []byte) ([]byte, error) {
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1], nil
	}
	var s string
	err := json.Unmarshal(b, &s)
	return []byte(s), err
}

// cells calls fn for each member of an object whose values are cells. Its syntax has been
// checked.
func cells(b []byte, fn func(name []byte, c cell) error) error {
	space := func() {
		for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\r' || b[0] == '\n') {
			b = b[1:]
		}
	}
	value := func() []byte { // a string, a word, or an object without strings that hold braces
		end := 0
		switch b[0] {
		case '"':
			for end = 1; end < len(b) && b[end] != '"'; end++ {
				if b[end] == '\\' {
					end++
				}
			}
			end++
		case '{':
			end = bytes.IndexByte(b, '}') + 1
		default:
			for end < len(b) && b[end] != ',' && b[end] != '}' && b[end] != ' ' {
				end++
			}
		}
		end = min(max(end, 1), len(b))
		v := b[:end]
		b = b[end:]
		return v
	}
	bad := fmt.Errorf("a row that is not an object of strings: %.40s", b)
	space()
	if len(b) == 0 || b[0] != '{' {
		return bad
	}
	b = b[1:]
	for space(); len(b) > 0 && b[0] != '}'; space() {
		if b[0] != '"' {
			return bad
		}
		name, err := unquote(value())
		if err != nil {
			return err
		}
		if space(); len(b) == 0 || b[0] != ':' {
			return bad
		}
		b = b[1:]
		if space(); len(b) == 0 {
			return bad
		}
		var c cell
		if err := c.UnmarshalJSON(value()); err != nil {
			return err
		}
		if err := fn(name, c); err != nil {
			return err
		}
		if space(); len(b) > 0 && b[0] == ',' {
			b = b[1:]
		}
	}
	return nil
}
