package archive

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A decoder takes anything, and passes on only records that are well formed.
func fuzzDecoder(f *testing.F, format Format) {
	for _, h := range []History{Net, Full} {
		s := store(f, longStory(8), func(c *WriterConfig) { c.Formats, c.History, c.block = []Format{format}, h, 300 })
		for _, k := range s.keys {
			f.Add(s.data[k])
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := decode(bytes.NewReader(data), format, nil, "k", "d", nil, visitor{entry: wellFormed(t)})
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatal(err)
		}
	})
}

func wellFormed(t *testing.T) func(e *Entry) error {
	return func(e *Entry) error {
		if e.Schema == nil || e.Op != engine.OpTruncate && len(e.Key) == 0 && len(e.Schema.KeyColumns()) > 0 {
			t.Fatalf("%+v", e)
		}
		if e.Op == engine.OpPut {
			if unchanged, err := e.Row.Check(e.Schema); err != nil || unchanged {
				t.Fatalf("%+v: %v", e, err)
			}
		}
		return nil
	}
}

func FuzzProtobuf(f *testing.F) { fuzzDecoder(f, Protobuf) }
func FuzzJSONL(f *testing.F)    { fuzzDecoder(f, JSONL) }

// FuzzBlock takes the contents of a block, which the checksum keeps a fuzzer from.
func FuzzBlock(f *testing.F) {
	for _, h := range []History{Net, Full} {
		s := store(f, longStory(8), func(c *WriterConfig) { c.History, c.block = h, 300 })
		for _, k := range s.keys {
			for _, b := range blocksOf(s.data[k]) {
				if b[0] != blockData {
					continue
				}
				raw, err := zstdReader().DecodeAll(b[blockHeader:], make([]byte, 0, 1<<16))
				if err != nil {
					f.Fatal(err)
				}
				f.Add(raw, h == Full)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, full bool) {
		d := newDecoding(nil, "k", "d", visitor{entry: wellFormed(t)})
		d.head = header{Table: events, Kind: KindDiff, History: Net}
		if full {
			d.head.History = Full
		}
		p := &protobufDecoder{decoding: d}
		_ = p.block(data) // schemas and logs stay
		_ = p.block(data)
	})
}

// FuzzLine takes a line of the JSON format: one that is read fast is read as encoding/json
// reads it.
func FuzzLine(f *testing.F) {
	s := store(f, longStory(8), func(c *WriterConfig) { c.Formats, c.History = []Format{JSONL}, Full })
	for _, l := range bytes.SplitAfter(s.data[s.keys[1]], newline) {
		f.Add(l)
	}
	f.Add([]byte(`{"op":"put","stamp":"1:o@1:1.1","schema":1,"key":["1",null],"row":{"id":{"base64":"AAE="},"body":"\ud83d\ude00\\"}}`))
	for _, l := range []string{
		`{"op":"delete","stamp":"1:o@1:1.1","via":"p@2","schema":1,"key":["a\u0000\"\\\n\r\t\u001f",null]}`,
		`{"op":"put","stamp":"1:orders/root@1758000000000000:1.1","schema":1,"row":{"id":"1","body":"\u00e9"}}`,
		`{"op":"put","stamp":"01:o@1:1.4294967296","schema":01,"key":[],"row":{}}`,
	} {
		f.Add([]byte(l + "\n"))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		type got struct {
			entry Entry
			err   error
		}
		read := func(take func(*jsonDecoder) error) (g got) {
			d := newDecoding(nil, "k", "d", visitor{entry: func(e *Entry) error {
				g.entry = *e
				g.entry.Key, g.entry.Row = bytes.Clone(e.Key), bytes.Clone(e.Row)
				return wellFormed(t)(e)
			}})
			d.head = header{Table: events, Kind: KindDiff, History: Net}
			j := &jsonDecoder{decoding: d}
			for _, l := range append(longStory(1).logs, engine.LogID{Origin: "o", Epoch: 1}) {
				if err := j.schema(l, schemaOf(1, false)); err != nil {
					t.Fatal(err)
				}
			}
			g.err = take(j)
			return g
		}
		fast := read(func(j *jsonDecoder) error { return j.take(line) })
		slow := read(func(j *jsonDecoder) error { return j.takeAny(line) })
		if (fast.err == nil) != (slow.err == nil) {
			t.Fatalf("%q: %v, and by encoding/json %v", line, fast.err, slow.err)
		}
		if e := slow.entry.Schema; e != nil {
			slow.entry.Schema = fast.entry.Schema
		}
		if fast.err == nil && !reflect.DeepEqual(fast.entry, slow.entry) {
			t.Fatalf("%q: %+v, and by encoding/json %+v", line, fast.entry, slow.entry)
		}
	})
}

func FuzzManifest(f *testing.F) {
	s := store(f, longStory(8), func(c *WriterConfig) { c.seal = 1 })
	data, err := s.w.Manifest().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeManifest(data, "m")
		if err != nil {
			return
		}
		p := m.plan(formats, m.Through, AsOf{}, nil)
		if p.Mode == PlanDiffs && !p.To.Equal(m.Through) {
			t.Fatalf("a plan from where it is leads to %s", p.To)
		}
		m.chains()
		if again, err := m.encode(); err != nil {
			t.Fatal(err)
		} else if _, err := decodeManifest(again, "m"); err != nil {
			t.Fatal(err)
		}
	})
}
