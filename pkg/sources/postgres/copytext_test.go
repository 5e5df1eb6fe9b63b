package postgres

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// copyEscape writes a value as COPY does (PostgreSQL documentation, COPY, "Text
// Format").
var copyEscape = strings.NewReplacer(`\`, `\\`, "\b", `\b`, "\f", `\f`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\v", `\v`)

// Any rows, cut into messages anywhere, come out as they went in.
func TestCopyParser(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune("\\\t\n\r\b\f\vNx.,"))))
		null := rapid.Bool()
		var stream []byte
		var want [][]*string
		for i := range rapid.IntRange(0, 20).Draw(t, "rows") {
			key := fmt.Sprint(text.Draw(t, "key"), i)
			row := []*string{&key, nil, nil}
			for j := 1; j < 3; j++ {
				if !null.Draw(t, "null") {
					v := text.Draw(t, "value")
					row[j] = &v
				}
			}
			want = append(want, row)
			for j, v := range row {
				if j > 0 {
					stream = append(stream, '\t')
				}
				if v == nil {
					stream = append(stream, `\N`...)
				} else {
					stream = append(stream, copyEscape.Replace(*v)...)
				}
			}
			stream = append(stream, '\n')
		}
		p := newCopyParser(testSchema())
		var cut []byte
		for len(stream) > 0 {
			n := rapid.IntRange(0, len(stream)).Draw(t, "message")
			if rapid.Bool().Draw(t, "whole line") {
				n = bytes.IndexByte(stream, '\n') + 1
			}
			var err error
			if cut, err = p.message(cut, bytes.Clone(stream[:n])); err != nil {
				t.Fatal(err)
			}
			stream = stream[n:]
		}
		if len(cut) != 0 || len(p.records) != len(want) {
			t.Fatalf("%d rows and %d bytes left, want %d rows", len(p.records), len(cut), len(want))
		}
		for i, r := range p.records {
			if err := checkRow(r.Schema, r.Key, r.Row, false); err != nil {
				t.Fatal(err)
			}
			for j, c := range r.Row.Columns() {
				w := want[i][j]
				if (w == nil) != (c.State == engine.Null) || w != nil && *w != string(c.Value) {
					t.Fatalf("row %d column %d: got %q", i, j, c.Value)
				}
			}
		}
	})
}

func TestCopyParserDamage(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"", "1", "1\t2", "1\t2\t3\t4", `\N` + "\t2\t3"} {
		p := newCopyParser(testSchema())
		if err := p.line([]byte(line)); err == nil {
			t.Errorf("%q is taken as a row", line)
		}
	}
}

func FuzzCopyLine(f *testing.F) {
	f.Add([]byte("1\t\\N\ta\\tb\\\\"))
	f.Fuzz(func(t *testing.T, line []byte) {
		p := newCopyParser(testSchema())
		if p.line(line) != nil {
			return
		}
		if err := checkRow(p.records[0].Schema, p.records[0].Key, p.records[0].Row, false); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkCopyParser(b *testing.B) {
	fields := make([]string, len(benchValues))
	for i, v := range benchValues {
		fields[i] = `\N`
		if s, ok := v.(string); ok {
			fields[i] = copyEscape.Replace(s)
		}
	}
	line := []byte(strings.Join(fields, "\t") + "\n")
	p := newCopyParser(benchSchema())
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.message(nil, line); err != nil {
			b.Fatal(err)
		}
		if p.bytes >= baselineBatch {
			p.reset()
		}
	}
}
