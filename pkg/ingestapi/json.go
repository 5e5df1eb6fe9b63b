package ingestapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/readapi"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

type batchDoc struct {
	IdempotencyKey string  `json:"idempotencyKey,omitempty"`
	Operations     []opDoc `json:"operations"`
}

type opDoc struct {
	Op    string `json:"op"`
	Table string `json:"table"`
	Row   rowDoc `json:"row,omitempty"`
}

type resultDoc struct {
	Origin   string `json:"origin"`
	Epoch    string `json:"epoch"` // text: it has more digits than some readers of JSON keep
	Position string `json:"position"`
	Time     string `json:"time"` // of the stamp, in RFC 3339 with microseconds
	Rows     int    `json:"rows"`
	Repeated bool   `json:"repeated,omitempty"`
}

const timeForm = "2006-01-02T15:04:05.000000Z"

type faultDoc struct {
	Error     string `json:"error"`
	Code      string `json:"code"`
	Operation *int   `json:"operation,omitempty"`
}

// rowDoc is a row as a JSON object. Numbers keep their digits, and a column that
// is given twice is seen.
type rowDoc []ingest.Field

// UnmarshalJSON implements json.Unmarshaler.
func (r *rowDoc) UnmarshalJSON(data []byte) error {
	*r = nil
	dec := json.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		if tok == nil && err == nil {
			return nil // null: no row
		}
		return errors.New("a row must be an object of columns and values")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		f := ingest.Field{Column: name.(string)}
		var text string
		switch raw[0] {
		case 'n':
		case '"':
			if err := json.Unmarshal(raw, &text); err != nil {
				return err
			}
			f.Value = &text
		default:
			text = string(raw)
			f.Value, f.JSON = &text, raw[0] == '{' || raw[0] == '['
		}
		*r = append(*r, f)
	}
	return nil
}

// MarshalJSON implements json.Marshaler. Every value is a string: its text form.
func (r rowDoc) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range r {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(f.Column)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.Value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), value...)
	}
	return append(b, '}'), nil
}

// Decode reads a batch as JSON. Fields that are not known are refused.
func Decode(r io.Reader) (*ingest.Batch, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return decode(text)
}

func decode(text []byte) (*ingest.Batch, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("the batch is not UTF-8: write bytes as bytea, such as \"\\\\x00ff\"")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var d batchDoc
	if err := dec.Decode(&d); err != nil {
		return nil, fmt.Errorf(`the batch cannot be read: %w; write {"operations": [{"op": "put", "table": "public.t", "row": {"id": 1}}]}`, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the batch: send one batch in a request")
	}
	b := &ingest.Batch{Key: d.IdempotencyKey}
	for i, o := range d.Operations {
		op := ingest.Op{Kind: ingest.Kind(o.Op), Row: o.Row}
		var err error
		if op.Table, err = readapi.ParseTable(o.Table); err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
		b.Ops = append(b.Ops, op)
	}
	return b, nil
}

func encode(b *ingest.Batch) ([]byte, error) {
	d := batchDoc{IdempotencyKey: b.Key}
	for _, op := range b.Ops {
		d.Operations = append(d.Operations, opDoc{string(op.Kind), readapi.FormatTable(op.Table), op.Row})
	}
	return json.Marshal(d)
}
