package postgres

import (
	"slices"
	"strconv"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// The columns of Config.Provenance. Their numbers are none that a source's column has.
var provenance = []engine.Column{
	{Name: "tributary_origin", Number: -1, TypeOID: 25, TypeName: "text", TypeMod: -1},
	{Name: "tributary_epoch", Number: -2, TypeOID: 20, TypeName: "bigint", TypeMod: -1},
	{Name: "tributary_version", Number: -3, TypeOID: 25, TypeName: "text", TypeMod: -1},
	{Name: "tributary_time", Number: -4, TypeOID: 1184, TypeName: "timestamp with time zone", TypeMod: -1},
}

// provenanced returns a schema with the columns of provenance. A table without a key
// is left as it is: its rows are told apart by all of their values.
func (t *Target) provenanced(s *engine.Schema) *engine.Schema {
	if !t.cfg.Provenance || s.Multiset() {
		return s
	}
	if p := t.extended[s]; p != nil {
		return p
	}
	if len(t.extended) >= maxShapes {
		clear(t.extended)
	}
	p := *s
	p.Columns = append(slices.Clip(s.Columns), provenance...)
	t.extended[s] = &p
	return &p
}

// told returns an entry with its provenance among its columns.
func (t *Target) told(e *sinks.Entry) *sinks.Entry {
	s := t.provenanced(e.Schema)
	if s == e.Schema {
		return e
	}
	d := *e
	d.Schema = s
	if e.Op != engine.OpPut {
		return &d
	}
	row := engine.AppendRowHeader(nil, s.ID, len(s.Columns))
	for _, c := range e.Row.Columns() {
		if c.State == engine.Present {
			row = engine.AppendValue(row, c.Value)
		} else {
			row = engine.AppendNull(row)
		}
	}
	row = engine.AppendValue(row, e.Stamp.Origin)
	row = engine.AppendValue(row, strconv.FormatUint(uint64(e.Stamp.Epoch), 10))
	row = engine.AppendValue(row, strconv.FormatUint(e.Stamp.Version.Major, 10)+"."+strconv.FormatUint(uint64(e.Stamp.Version.Minor), 10))
	d.Row = engine.AppendValue(row, e.Stamp.Time.Wall().UTC().Format("2006-01-02 15:04:05.000000Z"))
	return &d
}
