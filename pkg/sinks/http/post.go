package http

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// head is what a request says beside its changes.
type head struct {
	Sink string `json:"sink"`
	Kind string `json:"kind"` // changes or baseline
	// Of changes: the log, the position before them and the one after.
	Origin string `json:"origin,omitempty"`
	Epoch  string `json:"epoch,omitempty"`
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	// Of a baseline: where the logs go on after it, and the tables that it covers.
	Reason  string       `json:"reason,omitempty"`
	Cursors []cursorJSON `json:"cursors,omitempty"`
	Covers  []tableJSON  `json:"covers,omitempty"`
	// Part numbers the requests of a baseline or a large transaction, from 0; Last
	// is true on the last one, and on each that stands alone.
	Part int  `json:"part"`
	Last bool `json:"last"`
}

type cursorJSON struct {
	Origin   string `json:"origin"`
	Epoch    string `json:"epoch"`
	Position string `json:"position"`
}

type tableJSON struct {
	Schema string `json:"schema"`
	Table  string `json:"table"`
}

type schemaJSON struct {
	ID      int          `json:"id"` // within the request
	Schema  string       `json:"schema"`
	Table   string       `json:"table"`
	Columns []columnJSON `json:"columns"`
}

type columnJSON struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
	Key  bool   `json:"key,omitempty"`
}

// rejecter decides on an entry that is not taken.
type rejecter func(ctx context.Context, e *sinks.Entry, why error, own bool) error

// post collects entries into requests.
type post struct {
	t      *Target
	head   head
	key    string
	parts  bool // it may be cut
	always bool // at least one request is sent
	reject rejecter

	schemas map[*engine.Schema]int
	defs    []schemaJSON
	changes [][]byte      // of the part, as JSON
	entries []sinks.Entry // of changes, where they may have to be told apart
	size    int
}

func newPost(t *Target, kind string) *post {
	p := &post{t: t, head: head{Sink: t.cfg.Sink, Kind: kind}}
	p.fresh()
	return p
}

func (p *post) fresh() {
	p.schemas, p.defs, p.changes, p.entries, p.size = map[*engine.Schema]int{}, nil, nil, nil, 0
}

// add adds an entry, and sends what is full.
func (p *post) add(ctx context.Context, e *sinks.Entry) error {
	if p.parts && p.size >= p.t.cfg.MaxBytes {
		if err := p.flush(ctx, false); err != nil {
			return err
		}
		p.head.Part++
	}
	text, err := p.encode(e)
	if err != nil {
		return &sinks.Rejection{Entry: e.Rejected(), Err: err}
	}
	p.changes = append(p.changes, text)
	p.size += len(text)
	if p.reject != nil {
		c := *e
		c.Key, c.Row = slices.Clone(e.Key), slices.Clone(e.Row)
		p.entries = append(p.entries, c)
	}
	return nil
}

// end sends the last request.
func (p *post) end(ctx context.Context) error {
	if len(p.changes) == 0 && p.head.Part == 0 && !p.always {
		return nil
	}
	return p.flush(ctx, true)
}

func (p *post) flush(ctx context.Context, last bool) error {
	key := p.key
	if p.parts {
		key += "#" + strconv.Itoa(p.head.Part)
	}
	err := p.span(ctx, key, 0, len(p.changes), last)
	p.fresh()
	return err
}

// span sends a range of the part's changes. Where the receiver rejects them,
// the one at fault is searched for by halves.
func (p *post) span(ctx context.Context, key string, from, to int, last bool) error {
	h := p.head
	h.Last = last && to == len(p.changes)
	body, err := p.body(h, p.changes[from:to])
	if err != nil {
		return err
	}
	err = p.t.send(ctx, key, body)
	var no *answer
	if err == nil || p.reject == nil || !errors.As(err, &no) || no.rejection() == nil {
		return err
	}
	switch n := to - from; {
	case n == 0:
		return err
	case n == 1 && !no.ofBatch():
		return p.reject(ctx, &p.entries[from], no.rejection(), false)
	case !no.ofBatch():
		return err
	case n == 1:
		if err := p.reject(ctx, &p.entries[from], no, true); err != nil || !h.Last {
			return err
		}
		return p.span(ctx, key+"!", to, to, last) // the receiver is to know of the end
	}
	mid := from + (to-from)/2
	if err := p.span(ctx, key+"."+strconv.Itoa(from), from, mid, last); err != nil {
		return err
	}
	return p.span(ctx, key+"."+strconv.Itoa(mid), mid, to, last)
}

// body writes a request: {head..., "schemas": [...], "changes": [...]}.
func (p *post) body(h head, changes [][]byte) ([]byte, error) {
	out, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	defs, err := json.Marshal(p.defs)
	if err != nil {
		return nil, err
	}
	if p.defs == nil {
		defs = []byte("[]")
	}
	out = append(out[:len(out)-1], `,"schemas":`...)
	out = append(append(out, defs...), `,"changes":[`...)
	for i, c := range changes {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, c...)
	}
	return append(out, "]}"...), nil
}

// encode writes one entry.
func (p *post) encode(e *sinks.Entry) ([]byte, error) {
	s := e.Schema
	id, ok := p.schemas[s]
	if !ok {
		id = len(p.defs)
		p.schemas[s] = id
		def := schemaJSON{ID: id, Schema: s.Table.Schema, Table: s.Table.Name, Columns: []columnJSON{}}
		for _, c := range s.Columns {
			def.Columns = append(def.Columns, columnJSON{c.Name, c.TypeName, c.Key})
		}
		p.defs = append(p.defs, def)
	}
	b := make([]byte, 0, 256+2*len(e.Row))
	b = append(append(append(b, `{"op":"`...), e.Op.String()...), `","schemaId":`...)
	b = strconv.AppendInt(b, int64(id), 10)
	b = append(appendString(append(b, `,"schema":`...), s.Table.Schema), `,"table":`...)
	b = appendString(b, s.Table.Name)
	if e.Op != engine.OpTruncate {
		var err error
		if b, err = appendKey(append(b, `,"key":`...), e); err != nil {
			return nil, err
		}
	}
	if e.Op == engine.OpPut {
		b = append(b, `,"row":{`...)
		first := true
		for i, c := range e.Row.Columns() {
			if i >= len(s.Columns) || c.State == engine.Absent {
				continue
			}
			b = appendField(b, &first, s.Columns[i].Name, c.Value, c.State == engine.Present)
		}
		b = append(b, '}')
	}
	b = appendString(append(b, `,"position":`...), string(e.Position))
	b = append(b, `,"stamp":{"time":"`...)
	b = e.Stamp.Time.Wall().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = appendString(append(b, `","origin":`...), e.Stamp.Origin)
	return fmt.Appendf(b, `,"epoch":"%d","version":"%d.%d"}}`, uint64(e.Stamp.Epoch), e.Stamp.Version.Major, e.Stamp.Version.Minor), nil
}

// appendKey writes the key columns. A row of a table without a key is named by
// all its columns and the number among its equals, as "#".
func appendKey(b []byte, e *sinks.Entry) ([]byte, error) {
	parts, err := engine.DecodeKey(e.Key)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range e.Schema.Columns {
		if c.Key || e.Schema.Multiset() {
			names = append(names, c.Name)
		}
	}
	if e.Schema.Multiset() {
		names = append(names, "#")
	}
	if len(names) != len(parts) {
		return nil, fmt.Errorf("%w: a key of %s has %d columns, want %d", engine.ErrCorruptRow, e.Schema.Table, len(parts), len(names))
	}
	b = append(b, '{')
	first := true
	for i, n := range names {
		b = appendField(b, &first, n, parts[i], parts[i] != nil)
	}
	return append(b, '}'), nil
}

func appendField(b []byte, first *bool, name string, value []byte, present bool) []byte {
	if !*first {
		b = append(b, ',')
	}
	*first = false
	b = append(appendString(b, name), ':')
	if !present {
		return append(b, "null"...)
	}
	return appendString(b, string(value))
}

// appendString writes a JSON string. Unlike encoding/json it leaves <, > and &
// as they are; bytes that are not UTF-8, which no PostgreSQL text has, become
// U+FFFD.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[from:i]...), `\ufffd`...)
				from = i + 1
			}
			i += n
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
