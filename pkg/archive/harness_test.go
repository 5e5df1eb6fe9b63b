package archive

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/engine"
)

var events = engine.TableName{Schema: "public", Name: "events"}

// schemaOf is the n-th shape of the table in a log.
func schemaOf(n int, keyless bool) *engine.Schema {
	s := &engine.Schema{
		ID: uint32(n), Table: events, RelationOID: 16384, ReplicaIdentity: engine.IdentityDefault,
		Columns: []engine.Column{
			{Name: "id", Number: 1, TypeOID: 20, TypeName: "bigint", TypeMod: -1, Key: !keyless},
			{Name: "body", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
		},
	}
	if n > 1 {
		s.Columns = append(s.Columns, engine.Column{Name: `odd "name"`, Number: 3, TypeOID: 1043, TypeName: "character varying(9)", TypeMod: 13, BaseOID: 25, BaseName: "text"})
	}
	return s
}

// row packs values; a nil one is null.
func row(s *engine.Schema, values ...*string) engine.Row {
	r := engine.AppendRowHeader(nil, s.ID, len(s.Columns))
	for i := range s.Columns {
		switch {
		case i >= len(values):
			r = engine.AppendAbsent(r)
		case values[i] == nil:
			r = engine.AppendNull(r)
		default:
			r = engine.AppendValue(r, *values[i])
		}
	}
	return r
}

func text(s string) *string { return &s }

// tx is a transaction of a log.
type tx struct {
	log      engine.LogID
	position engine.Position
	time     engine.Time
	major    uint64
	changes  []Entry
}

// story is a history of the table, in the order in which a node took it in.
type story struct {
	logs    []engine.LogID
	schemas Schemas
	txs     []tx
}

// add appends a transaction of a log, and completes its changes.
func (s *story) add(log engine.LogID, t engine.Time, changes ...engine.Change) {
	lsn := engine.LSN(len(s.txs)+1) * 0x100
	x := tx{log: log, position: lsn.Position(), time: t, major: uint64(lsn)}
	for i, c := range changes {
		if c.Stamp == (engine.Stamp{}) {
			c.Stamp = engine.Stamp{Time: t, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: x.major, Minor: uint32(i + 1)}}
		}
		x.changes = append(x.changes, Entry{Change: c, Log: log, Position: x.position, Time: t, Major: x.major})
	}
	s.txs = append(s.txs, x)
}

// at is the vector after the first n transactions.
func (s *story) at(n int) Vector {
	var v Vector
	for _, l := range s.logs {
		c := Cursor{Log: l, Position: "0/1"}
		for _, x := range s.txs[:n] {
			if x.log == l {
				c.Position, c.Time = x.position, x.time
			}
		}
		v = append(v, c)
	}
	return NewVector(v...)
}

// changes calls emit for the changes from the m-th up to the n-th transaction.
func (s *story) changes(m, n int) func(func(*Entry) error) error {
	return func(emit func(*Entry) error) error {
		for _, x := range s.txs[m:n] {
			for i := range x.changes {
				if err := emit(&x.changes[i]); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func (s *story) diff(m, n int) Diff {
	return Diff{From: s.at(m), To: s.at(n), Schemas: s.schemas, Changes: s.changes(m, n)}
}

// model is a table, by the simplest rules there are.
type model struct {
	records map[string]engine.Record
	cuts    map[string]engine.Stamp
}

func newModel() *model {
	return &model{map[string]engine.Record{}, map[string]engine.Stamp{}}
}

func (m *model) apply(e *Entry) {
	if e.Op == engine.OpTruncate {
		if e.Stamp.Compare(m.cuts[e.Stamp.Origin]) > 0 {
			m.cuts[e.Stamp.Origin] = e.Stamp
		}
		return
	}
	r := engine.Record{Schema: e.Schema, Key: slices.Clone(e.Key), Row: slices.Clone(e.Row), Stamp: e.Stamp, Deleted: e.Op == engine.OpDelete}
	m.merge(r)
}

func (m *model) merge(r engine.Record) {
	have, ok := m.records[string(r.Key)]
	if c := r.Stamp.Compare(have.Stamp); !ok || c > 0 || c == 0 && r.Deleted {
		m.records[string(r.Key)] = r
	}
}

// state returns the records in order of their keys.
func (m *model) state() []engine.Record {
	var out []engine.Record
	for _, k := range slices.Sorted(maps.Keys(m.records)) {
		r := m.records[k]
		if !r.Deleted && r.Stamp.Compare(m.cuts[r.Stamp.Origin]) < 0 {
			r.Deleted, r.Row = true, nil
		}
		out = append(out, r)
	}
	return out
}

func (m *model) truncates() (out Stamps) {
	for _, s := range m.cuts {
		out = out.newest(s)
	}
	return out
}

func (m *model) String() string { return dump(m.state(), m.truncates()) }

func dump(rs []engine.Record, cuts []engine.Stamp) string {
	var b strings.Builder
	for _, c := range cuts {
		fmt.Fprintf(&b, "truncate %s\n", c)
	}
	for _, r := range rs {
		fmt.Fprintf(&b, "%q %s schema %d %x deleted=%t row=%q\n", r.Key, r.Stamp, r.Schema.ID, r.Schema.Fingerprint(), r.Deleted, []byte(r.Row))
	}
	return b.String()
}

// model returns the table after the first n transactions.
func (s *story) model(n int) *model {
	m := newModel()
	for _, x := range s.txs[:n] {
		for i := range x.changes {
			m.apply(&x.changes[i])
		}
	}
	return m
}

func (s *story) base(n int) Base {
	m := s.model(n)
	return Base{
		At: s.at(n), Schemas: s.schemas, Truncates: m.truncates(),
		Rows: func(emit func(*engine.Record) error) error {
			for _, r := range m.state() {
				if err := emit(&r); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// drawStory makes a story of up to n transactions.
func drawStory(t *rapid.T, n int) *story {
	keyless := rapid.Bool().Draw(t, "keyless")
	s := &story{schemas: Schemas{}}
	clock := map[engine.LogID]engine.Time{}
	for i := range rapid.IntRange(1, 3).Draw(t, "origins") {
		l := engine.LogID{Origin: []string{"a/n@x", "b", "c:d"}[i], Epoch: engine.Epoch(10 + i)}
		s.logs = append(s.logs, l)
		s.schemas[l] = []*engine.Schema{schemaOf(1, keyless), schemaOf(2, keyless)}
		clock[l] = engine.Time(rapid.IntRange(1, 300).Draw(t, "clock"))
	}
	value := rapid.SampledFrom([]string{"", "x", "long " + strings.Repeat("text ", 9), "\xff\xfe\x00", "tab\t\"q\" \\ é\n\x01", "null"})
	for range rapid.IntRange(1, n).Draw(t, "transactions") {
		l := rapid.SampledFrom(s.logs).Draw(t, "log")
		clock[l] += engine.Time(rapid.IntRange(1, 50).Draw(t, "tick"))
		var cs []engine.Change
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			sc := rapid.SampledFrom(s.schemas[l]).Draw(t, "schema")
			id := rapid.SampledFrom([]string{"1", "2", "3", "10", "\xff\x00"}).Draw(t, "id")
			values := []*string{text(id), nil, nil}[:len(sc.Columns)]
			for i := 1; i < len(values); i++ {
				if rapid.Bool().Draw(t, "present") {
					values[i] = text(value.Draw(t, "value"))
				}
			}
			c := engine.Change{Op: engine.OpPut, Schema: sc, Row: row(sc, values...), Key: engine.AppendKeyValue(nil, id)}
			if keyless {
				c.Key = engine.AppendKeyNull(c.Key)
				c.Key = engine.AppendKeyValue(c.Key, "0")
			}
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0, 1, 2:
				c.Op, c.Row = engine.OpDelete, nil
			case 3:
				c.Op, c.Row, c.Key = engine.OpTruncate, nil, nil
			}
			cs = append(cs, c)
		}
		s.add(l, clock[l], cs...)
	}
	return s
}

// folder is a destination of the test's own, in memory where there is such a folder: what
// outlives a power cut is for the destination's tests.
func folder(t testing.TB) dest.Destination {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "tributary-archive-")
	if err != nil {
		dir = t.TempDir()
	} else {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	d, err := local.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func openWriter(t testing.TB, d dest.Destination, change ...func(*WriterConfig)) *Writer {
	t.Helper()
	w, err := OpenWriter(context.Background(), writerConfig(d, change...))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func writerConfig(d dest.Destination, change ...func(*WriterConfig)) WriterConfig {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := WriterConfig{
		Destination: d, Prefix: "public.events", Table: events, ID: "writer", Level: 1,
		Now: func() time.Time { at = at.Add(time.Second); return at },
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func reader(t testing.TB, d dest.Destination, change ...func(*ReaderConfig)) *Reader {
	t.Helper()
	c := ReaderConfig{Destination: d, Prefix: "public.events", Table: events}
	for _, f := range change {
		f(&c)
	}
	r, err := NewReader(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// folded reads a fold and closes it.
func folded(f *Fold) (string, error) {
	defer f.Close()
	var rs []engine.Record
	err := f.Rows(func(r *engine.Record) error {
		c := *r
		c.Key, c.Row = slices.Clone(r.Key), slices.Clone(r.Row)
		rs = append(rs, c)
		for _, s := range f.Schemas()[r.Stamp.Log()] {
			if s.ID == r.Schema.ID && s.Fingerprint() == r.Schema.Fingerprint() {
				return nil
			}
		}
		return fmt.Errorf("schema %d of %s was not told before", r.Schema.ID, r.Stamp.Log())
	})
	return dump(rs, f.Truncates()), err
}

func mustFold(t interface {
	Fatalf(string, ...any)
	Helper()
}, r *Reader, at AsOf) (string, Vector) {
	t.Helper()
	f, err := r.Fold(context.Background(), at)
	if err != nil {
		t.Fatalf("fold as of %s: %v", at, err)
	}
	got, err := folded(f)
	if err != nil {
		t.Fatalf("fold as of %s: %v", at, err)
	}
	return got, f.At()
}

// after returns how many transactions a vector has, or -1 if it is none of the story's.
func (s *story) after(v Vector) int {
	for n := len(s.txs); n >= 0; n-- {
		if s.at(n).Equal(v) {
			return n
		}
	}
	return -1
}
