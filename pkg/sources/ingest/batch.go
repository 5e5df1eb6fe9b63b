package ingest

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Bounds of a batch.
const (
	MaxOps        = 10_000
	MaxBatchBytes = 4 << 20
	// MaxKeyBytes is the length of an idempotency key.
	MaxKeyBytes = 200
)

// Kind is what an operation does.
type Kind string

// The operations.
const (
	// Put writes a whole row: columns that it does not name become null.
	Put Kind = "put"
	// Set writes the columns that it names; the others stay as they are, or are null
	// in a row that is new.
	Set Kind = "set"
	// Delete takes a row away, if it is there. It names the key's columns only.
	Delete Kind = "delete"
	// Add adds a number to each column that it names beside the key. A row that is
	// not there is made, and null counts as 0.
	Add Kind = "add"
	// Truncate takes away all rows of a table that were last written here.
	Truncate Kind = "truncate"
)

// Kinds lists the operations.
var Kinds = []Kind{Put, Set, Delete, Add, Truncate}

// Batch is a transaction: all of it is applied, or nothing.
type Batch struct {
	// Key makes sending the batch again harmless; empty: it has none.
	Key string
	// Writer is who writes: idempotency keys are each writer's own.
	Writer string
	Ops    []Op
}

// Op is one operation.
type Op struct {
	Kind  Kind
	Table engine.TableName
	Row   []Field
}

// Field is a column of a row. Columns that are not named are absent.
type Field struct {
	Column string
	// Value in PostgreSQL's text form; nil is null.
	Value *string
	// JSON says that Value is a JSON object or array as it came: for columns of type
	// json and jsonb only.
	JSON bool
}

// Result says where a batch is in the log.
type Result struct {
	Log      engine.LogID
	Position engine.Position
	Time     engine.Time // of the batch's stamps
	Rows     int         // written and deleted; a truncate counts as one
	// Repeated: the batch had been committed before, and nothing was applied now.
	Repeated bool
}

// Code says what kind of fault an Error is.
type Code string

// The codes.
const (
	Invalid     Code = "invalid"     // the batch is not well formed, whatever the state
	NoTable     Code = "no_table"    // a table is not declared here
	Denied      Code = "denied"      // the writer may not write a table
	Conflict    Code = "conflict"    // the batch does not fit the rows that there are
	TooLarge    Code = "too_large"   // the batch is past the limits
	Busy        Code = "busy"        // more waits than is let in; nothing was written
	Unavailable Code = "unavailable" // it was not committed in time; nothing was written
	Unknown     Code = "unknown"     // it may or may not have been committed
)

// Error is why a batch was not written. Its text is for a person.
type Error struct {
	Code Code
	// Op is the operation at fault, from 0; -1 for the batch as a whole.
	Op  int
	Err error
}

func (e *Error) Error() string {
	if e.Op >= 0 {
		return fmt.Sprintf("operation %d: %v", e.Op, e.Err)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func refuse(code Code, op int, format string, args ...any) *Error {
	return &Error{code, op, fmt.Errorf(format, args...)}
}

// operation is an operation that has been checked against its table.
type operation struct {
	kind   Kind
	table  *table
	values []value // by column
	key    []byte
}

// value is a column's: absent, null or text.
type value struct {
	state engine.ColumnState
	text  string
}

// check makes operations of a batch, or says what is wrong with it.
func (s *Source) check(b *Batch) (ops []operation, bytes int, err *Error) {
	switch {
	case len(b.Ops) == 0:
		return nil, 0, refuse(Invalid, -1, "the batch has no operations: give at least one")
	case len(b.Ops) > MaxOps:
		return nil, 0, refuse(TooLarge, -1, "the batch has %d operations and may have %d: send it in parts", len(b.Ops), MaxOps)
	case len(b.Key) > MaxKeyBytes:
		return nil, 0, refuse(Invalid, -1, "the idempotency key is %d bytes long and may be %d", len(b.Key), MaxKeyBytes)
	case !utf8.ValidString(b.Key) || strings.ContainsFunc(b.Key, unicode.IsControl):
		return nil, 0, refuse(Invalid, -1, "the idempotency key must be text without control characters")
	}
	ops = make([]operation, len(b.Ops))
	for i := range b.Ops {
		n, err := s.checkOp(&ops[i], &b.Ops[i])
		if err != nil {
			err.Op = i
			return nil, 0, err
		}
		if bytes += n; bytes > MaxBatchBytes {
			return nil, 0, refuse(TooLarge, -1, "the batch is larger than %d bytes: send it in parts", MaxBatchBytes)
		}
	}
	return ops, bytes, nil
}

func (s *Source) checkOp(to *operation, op *Op) (bytes int, _ *Error) {
	t := s.tables[op.Table]
	if t == nil {
		return 0, refuse(NoTable, 0, "table %s is not declared for writing on this node: name one that is, or add it to the tables of the node's ingest source", op.Table)
	}
	to.kind, to.table = op.Kind, t
	switch op.Kind {
	case Put, Set, Delete, Add:
	case Truncate:
		if len(op.Row) > 0 {
			return 0, refuse(Invalid, 0, "a truncate of table %s has a row: leave it out, or write delete", t.name)
		}
		return 64, nil
	default:
		return 0, refuse(Invalid, 0, "%q is not an operation: write put, set, delete, add or truncate", string(op.Kind))
	}
	to.values = make([]value, len(t.columns))
	bytes = 64
	others := 0
	for _, f := range op.Row {
		i, ok := t.byName[f.Column]
		if !ok {
			return 0, refuse(Invalid, 0, "table %s has no column %q", t.name, f.Column)
		}
		if to.values[i].state != engine.Absent {
			return 0, refuse(Invalid, 0, "column %s of table %s is given twice", f.Column, t.name)
		}
		v, err := t.columns[i].value(op.Kind, &f)
		if err != nil {
			return 0, refuse(Invalid, 0, "column %s of table %s: %w", f.Column, t.name, err)
		}
		to.values[i] = v
		bytes += len(v.text) + 8
		if !t.columns[i].key {
			others++
		}
	}
	for _, k := range t.keys {
		if to.values[k].state != engine.Present {
			return 0, refuse(Invalid, 0, "column %s is of the key of table %s and has no value", t.columns[k].name, t.name)
		}
		to.key = engine.AppendKeyValue(to.key, to.values[k].text)
	}
	switch {
	case op.Kind == Delete && others > 0:
		return 0, refuse(Invalid, 0, "a delete names columns beside the key of table %s: leave them out", t.name)
	case op.Kind == Add && others == 0:
		return 0, refuse(Invalid, 0, "an add to table %s names no column beside the key: say what to add to", t.name)
	}
	return bytes, nil
}

// value checks what an operation says of a column.
func (c *column) value(k Kind, f *Field) (value, error) {
	if k == Add && !c.key {
		if !c.typ.adds() {
			return value{}, fmt.Errorf("numbers can be added to integers and to numeric only, and it is of type %s", c.typ.name)
		}
		if f.Value == nil {
			return value{}, fmt.Errorf("null cannot be added")
		}
		if _, err := parseDecimal(*f.Value); err != nil {
			return value{}, err
		}
		return value{engine.Present, *f.Value}, nil
	}
	if f.Value == nil {
		return value{state: engine.Null}, nil
	}
	if f.JSON && c.typ.kind != kindJSON {
		return value{}, fmt.Errorf("a JSON object or array is for columns of type json and jsonb, and it is of type %s: write PostgreSQL's text form as a string, such as \"{1,2}\"", c.typ.name)
	}
	text, err := c.typ.canonical(*f.Value)
	return value{engine.Present, text}, err
}
