package archive

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// The golden archives are of version 1 of the format. They are never written again: every later
// version must read them as they are.
var writeGolden = flag.Bool("write-golden", false, "write golden archives that are not there")

// goldenStory is what the golden archives are of. What they are to give is in expected.txt, which is
// written by hand.
func goldenStory() *story {
	a := engine.LogID{Origin: "orders/root", Epoch: 1700000000000000}
	b := engine.LogID{Origin: "edge@2", Epoch: 1700000000000001}
	shape := func(id uint32, oid uint32, note bool) *engine.Schema {
		s := &engine.Schema{ID: id, Table: events, RelationOID: oid, ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
			{Name: "id", Number: 1, TypeOID: 20, TypeName: "bigint", TypeMod: -1, Key: true},
			{Name: "name", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
			{Name: "price", Number: 3, TypeOID: 1700, TypeName: "numeric(10,2)", TypeMod: 655366},
		}}
		if note {
			s.Columns = append(s.Columns, engine.Column{Name: `the "note"`, Number: 5, TypeOID: 90210, TypeName: "public.note", TypeMod: -1, BaseOID: 25, BaseName: "text"})
		}
		return s
	}
	a1, a2, b1 := shape(1, 16384, false), shape(2, 16384, true), shape(1, 24576, false)
	put := func(s *engine.Schema, values ...*string) engine.Change {
		return engine.Change{Op: engine.OpPut, Schema: s, Key: engine.AppendKeyValue(nil, *values[0]), Row: row(s, values...)}
	}
	del := func(s *engine.Schema, id string) engine.Change {
		return engine.Change{Op: engine.OpDelete, Schema: s, Key: engine.AppendKeyValue(nil, id)}
	}
	s := &story{logs: []engine.LogID{a, b}, schemas: Schemas{a: {a1, a2}, b: {b1}}}
	s.add(a, 1700000000000100, put(a1, text("1"), text("Ada"), text("10.50")), put(a1, text("2"), nil, text("99999999999999999999.01")))
	s.add(b, 1700000000000090, put(b1, text("3"), text("bytes \xff\x00 and \"quotes\"\n"), text("NaN")))
	s.add(a, 1700000000000200, put(a2, text("1"), text("Ada"), text("11.00"), text("é")), del(a1, "2"))
	s.add(b, 1700000000000300, put(b1, text("2"), text(""), nil))
	s.add(b, 1700000000000400, engine.Change{Op: engine.OpTruncate, Schema: b1}, put(b1, text("4"), text("after"), text("0")))
	s.add(a, 1700000000000500, del(a2, "1"), put(a2, text("5"), text("new"), nil, nil))
	return s
}

var goldens = map[string]struct {
	formats []Format
	history History
}{
	"net": {[]Format{Protobuf, JSONL}, Net}, "full": {[]Format{Protobuf, JSONL}, Full}, "packed": {[]Format{JSONLZstd}, Net},
}

func writeGoldens(t *testing.T, dir string) {
	s := goldenStory()
	for name, g := range goldens {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			continue
		}
		d, err := local.New(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		w := openWriter(t, d, func(c *WriterConfig) { c.Formats, c.History, c.block, c.seal = g.formats, g.history, 150, 3 })
		mustBase(t, w, s.base(2))
		mustDiff(t, w, s.diff(2, 4))
		mustDiff(t, w, s.diff(4, 5))
		b := s.base(5)
		b.Continues, b.Reason = true, "golden"
		mustBase(t, w, b)
		mustDiff(t, w, s.diff(5, 6))
	}
}

// expected reads the sections of expected.txt.
func expected(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out, name := map[string]string{}, ""
	for sc := bufio.NewScanner(f); sc.Scan(); {
		switch line := sc.Text(); {
		case strings.HasPrefix(line, "== "):
			name = line[3:]
		case line != "" && !strings.HasPrefix(line, "#"):
			out[name] += line + "\n"
		}
	}
	return out
}

func TestGoldenArchives(t *testing.T) {
	dir := filepath.Join("testdata", "golden")
	if *writeGolden {
		writeGoldens(t, dir)
	}
	want := expected(t, filepath.Join(dir, "expected.txt"))
	s := goldenStory()
	for name, g := range goldens {
		for _, format := range g.formats {
			t.Run(name+" "+string(format), func(t *testing.T) {
				d, err := local.New(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				r := reader(t, d, func(c *ReaderConfig) { c.Formats = []Format{format} })
				ends := []int{2, 4, 5, 6}
				if g.history == Full {
					ends = []int{2, 3, 4, 5, 6}
				}
				for _, n := range ends {
					f, err := r.Fold(context.Background(), AsOf{At: s.at(n)})
					if err != nil {
						t.Fatal(err)
					}
					if !f.At().Equal(s.at(n)) {
						t.Errorf("after %d transactions it is at %s", n, f.At())
					}
					var b strings.Builder
					for _, c := range f.Truncates() {
						fmt.Fprintf(&b, "truncate %s\n", c)
					}
					err = f.Rows(func(r *engine.Record) error {
						key, err := engine.DecodeKey(r.Key)
						if r.Deleted {
							fmt.Fprintf(&b, "deleted %s %s\n", key[0], r.Stamp)
							return err
						}
						fmt.Fprintf(&b, "row %s %s", key[0], r.Stamp)
						for i, c := range r.Row.Columns() {
							fmt.Fprintf(&b, " %s(%s)=", r.Schema.Columns[i].Name, r.Schema.Columns[i].TypeName)
							if c.State == engine.Present {
								fmt.Fprintf(&b, "%q", c.Value)
							} else {
								b.WriteString("null")
							}
						}
						b.WriteByte('\n')
						return err
					})
					f.Close()
					if err != nil {
						t.Fatal(err)
					}
					if got, want := b.String(), want[fmt.Sprintf("after %d", n)]; got != want {
						t.Errorf("after %d transactions it is\n%s\nand should be\n%s", n, got, want)
					}
				}
				rep, err := r.Verify(context.Background(), nil)
				if err != nil || len(rep.Problems)+len(rep.Orphans) > 0 || rep.Artifacts != 5 {
					t.Errorf("%+v %v", rep, err)
				}
			})
		}
	}
}

// Any tool reads the JSON format.
func TestGoldenLinesAreJSON(t *testing.T) {
	t.Parallel()
	paths, _ := filepath.Glob(filepath.Join("testdata", "golden", "*", "public.events", "*.jsonl"))
	if len(paths) != 10 {
		t.Fatalf("%d files", len(paths))
	}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
			var v map[string]any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Errorf("%s:%d: %v", p, i+1, err)
			}
		}
	}
}
