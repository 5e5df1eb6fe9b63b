package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// relation is the shape in which rows of a fold are shown: one list of columns, in which
// the rows of older shapes and of other origins find their places.
type relation struct {
	table   engine.TableName
	columns []engine.Column
	newest  map[engine.LogID]*engine.Schema
	places  map[*engine.Schema][]int // of each of its columns, its index in columns, or -1
}

func relationOf(m *archive.Manifest, f *archive.Fold) *relation {
	r := &relation{table: f.Table(), newest: map[engine.LogID]*engine.Schema{}, places: map[*engine.Schema][]int{}}
	for log, all := range f.Schemas() {
		for _, s := range all {
			if n := r.newest[log]; n == nil || s.ID > n.ID {
				r.newest[log] = s
			}
		}
	}
	if len(r.newest) == 0 {
		r.columns = m.Columns
		return r
	}
	// The columns of the head come first and in their order, as far as there are such
	// at the moment.
	var all []engine.Column
	add := func(c engine.Column) {
		if !slices.ContainsFunc(all, func(have engine.Column) bool { return have.Name == c.Name }) {
			all = append(all, c)
		}
	}
	for _, c := range m.Columns {
		for _, s := range r.newest {
			if i := slices.IndexFunc(s.Columns, func(have engine.Column) bool { return have.Name == c.Name }); i >= 0 {
				add(s.Columns[i])
			}
		}
	}
	logs := make([]engine.LogID, 0, len(r.newest))
	for log := range r.newest {
		logs = append(logs, log)
	}
	slices.SortFunc(logs, func(a, b engine.LogID) int { return strings.Compare(a.String(), b.String()) })
	for _, log := range logs {
		for _, c := range r.newest[log].Columns {
			add(c)
		}
	}
	r.columns = all
	return r
}

// place finds where the columns of a row's shape go: by number to the newest shape of
// its log, which a renamed column keeps, and from there by name.
func (r *relation) place(s *engine.Schema, log engine.LogID) []int {
	if at, ok := r.places[s]; ok {
		return at
	}
	at := make([]int, len(s.Columns))
	for i, c := range s.Columns {
		name := c.Name
		if n := r.newest[log]; n != nil && n.RelationOID == s.RelationOID && c.Number != 0 {
			if j := slices.IndexFunc(n.Columns, func(o engine.Column) bool { return o.Number == c.Number }); j >= 0 {
				name = n.Columns[j].Name
			} else {
				name = "" // it was dropped since
			}
		}
		at[i] = slices.IndexFunc(r.columns, func(o engine.Column) bool { return o.Name == name && name != "" })
	}
	r.places[s] = at
	return at
}

// values returns a row's values, nil for null, in the order of columns; they are valid
// until the next call.
func (r *relation) values(rec *engine.Record, into [][]byte) ([][]byte, error) {
	into = append(into[:0], make([][]byte, len(r.columns))...)
	if _, err := rec.Row.Check(rec.Schema); err != nil {
		return nil, fmt.Errorf("a row of %s: %w", r.table, err)
	}
	at := r.place(rec.Schema, rec.Stamp.Log())
	for i, c := range rec.Row.Columns() {
		if c.State == engine.Present && i < len(at) && at[i] >= 0 {
			into[at[i]] = c.Value
			if c.Value == nil {
				into[at[i]] = []byte{}
			}
		}
	}
	return into, nil
}

func (r *relation) names() []string {
	names := make([]string, len(r.columns))
	for i, c := range r.columns {
		names[i] = c.Name
	}
	return names
}

// rowFormats write rows. The header comes once, before them.
var rowFormats = map[string]struct {
	header func(dst []byte, names []string) []byte
	row    func(dst []byte, names []string, values [][]byte) []byte
}{
	"jsonl": {func(dst []byte, _ []string) []byte { return dst }, appendJSONRow},
	"csv":   {appendCSVHeader, appendCSVRow},
	"copy":  {func(dst []byte, _ []string) []byte { return dst }, appendCopyRow},
}

// appendJSONRow writes values as text, so that no digit is lost.
func appendJSONRow(dst []byte, names []string, values [][]byte) []byte {
	return append(appendJSONObject(dst, names, values), '\n')
}

func appendJSONObject(dst []byte, names []string, values [][]byte) []byte {
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONText(dst, name), ':')
		if values[i] == nil {
			dst = append(dst, "null"...)
		} else {
			dst = appendJSONText(dst, string(values[i]))
		}
	}
	return append(dst, '}')
}

func appendJSONText(dst []byte, s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // text always can be
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

func appendCSVHeader(dst []byte, names []string) []byte {
	values := make([][]byte, len(names))
	for i, n := range names {
		values[i] = []byte(n)
	}
	return appendCSVRow(dst, names, values)
}

// appendCSVRow writes what COPY ... WITH (FORMAT csv) reads: null is nothing, and empty
// text is two quotes.
func appendCSVRow(dst []byte, _ []string, values [][]byte) []byte {
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		switch {
		case v == nil:
		case len(v) == 0, bytes.ContainsAny(v, ",\"\r\n"), v[0] == ' ', v[len(v)-1] == ' ', len(values) == 1 && string(v) == `\.`:
			dst = append(dst, '"')
			dst = append(dst, bytes.ReplaceAll(v, []byte(`"`), []byte(`""`))...)
			dst = append(dst, '"')
		default:
			dst = append(dst, v...)
		}
	}
	return append(dst, '\n')
}

var copyEscapes = map[byte]byte{'\\': '\\', '\t': 't', '\n': 'n', '\r': 'r', '\b': 'b', '\f': 'f', '\v': 'v'}

// appendCopyRow writes what COPY reads.
func appendCopyRow(dst []byte, _ []string, values [][]byte) []byte {
	for i, v := range values {
		if i > 0 {
			dst = append(dst, '\t')
		}
		if v == nil {
			dst = append(dst, '\\', 'N')
			continue
		}
		for _, c := range v {
			if e, ok := copyEscapes[c]; ok {
				dst = append(dst, '\\', e)
			} else {
				dst = append(dst, c)
			}
		}
	}
	return append(dst, '\n')
}
