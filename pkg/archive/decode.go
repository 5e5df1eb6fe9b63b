package archive

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// visitor takes what an artifact holds, in order. What it is given is valid during the
// call. A nil function takes nothing.
type visitor struct {
	schema func(log engine.LogID, s *engine.Schema) error
	// entry takes a change. Of a net diff, Position, Time and Major are not set.
	entry func(e *Entry) error
}

// decoding is what decoders of both formats have in common.
type decoding struct {
	head    header
	want    *header // nil: any
	key     string  // of the object
	where   string
	visit   visitor
	columns []engine.Column // of an artifact without schemas; nil: as its first row names them
	assumed bool            // it has no schemas
	schemas map[schemaKey]*engine.Schema
	counts  counts
	last    Entry // the entry that is passed on
	inTx    bool
	keyBuf  []byte
	keyMade bool // keyBuf is the key of the row of last, which is whole, and has one if keyed
	keyed   bool
	passed  error // what the visitor said

	verified bool // the whole has been: each part is again, since it is kept where it can be damaged
	few      bool // little of it is wanted
}

// ahead is how many parts of an artifact are in memory at once.
func (d *decoding) ahead() int {
	if d.few {
		return 1
	}
	return min(runtime.GOMAXPROCS(0), 4) + 1
}

func newDecoding(want *header, key, where string, v visitor) *decoding {
	return &decoding{want: want, key: key, where: where, visit: v, schemas: map[schemaKey]*engine.Schema{}}
}

// headed takes the header.
func (d *decoding) headed() error {
	if d.want == nil {
		return nil
	}
	return d.head.check(d.want)
}

func (d *decoding) schema(log engine.LogID, s *engine.Schema) error {
	if s.Table != d.head.Table {
		return fmt.Errorf("a schema of table %s in an artifact of %s", s.Table, d.head.Table)
	}
	k := schemaKey{log, s.ID}
	if d.schemas[k] != nil {
		return fmt.Errorf("schema %d of log %s comes twice", s.ID, log)
	}
	d.schemas[k] = s
	if d.visit.schema != nil {
		d.passed = d.visit.schema(log, s)
	}
	return d.passed
}

// entry checks what is in d.last, completes its key and passes it on.
func (d *decoding) entry(hasKey bool) error {
	e := &d.last
	if e.Schema == nil {
		return errors.New("a record whose schema did not come before it")
	}
	switch e.Op {
	case engine.OpPut:
		keyed := d.keyed
		if !d.keyMade {
			var err error
			if d.keyBuf, keyed, err = rowKey(d.keyBuf[:0], e.Schema, e.Row); err != nil {
				return err
			}
		}
		d.keyMade = false
		switch {
		case hasKey:
		case keyed:
			e.Key = d.keyBuf
		case d.assumed: // all of it is what tells it from others
			d.keyBuf = d.keyBuf[:0]
			for _, c := range e.Row.Columns() {
				if c.State == engine.Present {
					d.keyBuf = engine.AppendKeyValue(d.keyBuf, c.Value)
				} else {
					d.keyBuf = engine.AppendKeyNull(d.keyBuf)
				}
			}
			e.Key = engine.AppendKeyValue(d.keyBuf, "0")
		default:
			return errors.New("a row of a table without a key, without its key")
		}
		d.counts.Puts++
	case engine.OpDelete:
		if !hasKey {
			return errors.New("a delete without a key")
		}
		d.counts.Deletes++
	case engine.OpTruncate:
		if d.head.Kind == KindBase {
			return errors.New("a truncate in a base")
		}
		e.Key = nil
		d.counts.Truncates++
	default:
		return fmt.Errorf("an unknown operation %d", e.Op)
	}
	switch {
	case d.head.Kind == KindBase:
		e.Log = engine.LogID{}
	case d.head.History == Full && !d.inTx:
		return errors.New("a change outside of a transaction")
	}
	if d.visit.entry != nil {
		d.passed = d.visit.entry(e)
	}
	return d.passed
}

func (d *decoding) ended(c counts) error {
	if c != d.counts {
		return fmt.Errorf("it ends after %d puts, %d deletes, %d truncates and %d transactions, and has %d, %d, %d and %d",
			c.Puts, c.Deletes, c.Truncates, c.Transactions, d.counts.Puts, d.counts.Deletes, d.counts.Truncates, d.counts.Transactions)
	}
	return nil
}

// corrupt says that and where the object is damaged. What the visitor said, and what
// tells of another version, stays as it is.
func (d *decoding) corrupt(block, line int, offset int64, err error) error {
	if d.passed != nil && errors.Is(err, d.passed) || errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it is cut short")
	} else if !isData(err) {
		return err
	}
	return &CorruptError{Key: d.key, Where: d.where, Block: block, Line: line, Offset: offset, Why: err.Error()}
}

// readError is an error of reading, which says nothing about what is stored.
type readError struct{ error }

func (e readError) Unwrap() error { return e.error }

func isData(err error) bool {
	var r readError
	return !errors.As(err, &r)
}

// reading marks the errors of a reader that are not of the data.
type reading struct{ r io.Reader }

func (r reading) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = readError{err}
	}
	return n, err
}

// memory is an artifact that is in memory.
type memory struct{ rest []byte }

func (m *memory) Read(p []byte) (int, error) {
	if len(m.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// take returns the next n bytes.
func (m *memory) take(n int) ([]byte, error) {
	if n > len(m.rest) {
		return nil, io.ErrUnexpectedEOF
	}
	p := m.rest[:n:n]
	m.rest = m.rest[n:]
	return p, nil
}

// decode passes on what an artifact holds, in any of the formats. It verifies a block
// before it passes on anything of it.
func decode(r io.Reader, f Format, want *header, key, where string, columns []engine.Column, v visitor) (*header, error) {
	d := newDecoding(want, key, where, v)
	d.columns = columns
	err := d.decode(r, f)
	return &d.head, err
}

func (d *decoding) decode(r io.Reader, f Format) error {
	if _, ok := r.(*memory); !ok {
		r = reading{r}
	}
	var err error
	switch f {
	case Protobuf:
		err = decodeProtobuf(r, d)
	case JSONL, JSONLZstd:
		err = decodeJSON(r, d, f == JSONLZstd)
	default:
		err = fmt.Errorf("unknown archive format %q", f)
	}
	var re readError
	if errors.As(err, &re) {
		err = re.error
	}
	return err
}
