package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// longStory is a story of one log: n transactions of three changes.
func longStory(n int) *story {
	l := engine.LogID{Origin: "orders/root", Epoch: 1758000000000000}
	sc := schemaOf(1, false)
	s := &story{logs: []engine.LogID{l}, schemas: Schemas{l: {sc}}}
	for i := range n {
		var cs []engine.Change
		for j := range 3 {
			id := fmt.Sprint((i*3 + j) % (n + 3))
			c := engine.Change{Op: engine.OpPut, Schema: sc, Key: engine.AppendKeyValue(nil, id), Row: row(sc, text(id), text(fmt.Sprintf("%d and %d", i*7919, j)))}
			if i%5 == 4 && j == 1 {
				c.Op, c.Row = engine.OpDelete, nil
			}
			cs = append(cs, c)
		}
		if i == n/2 {
			cs = append(cs, engine.Change{Op: engine.OpTruncate, Schema: sc})
		}
		s.add(l, engine.Time(1000+i), cs...)
	}
	return s
}

type stored struct {
	w    *Writer
	dir  string
	d    *local.Dest
	keys []string
	data map[string][]byte
}

// store writes a base and two diffs of a story.
func store(t testing.TB, s *story, change ...func(*WriterConfig)) *stored {
	t.Helper()
	dir := t.TempDir()
	d, err := local.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := &stored{dir: dir, d: d, data: map[string][]byte{}}
	w := openWriter(t, d, change...)
	out.w = w
	n := len(s.txs)
	ctx := context.Background()
	if _, err := w.Base(ctx, s.base(n/2)); err != nil {
		t.Fatal(err)
	}
	for _, d := range []Diff{s.diff(n/2, n*3/4), s.diff(n*3/4, n)} {
		if _, err := w.Diff(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range w.Manifest().Artifacts {
		for _, f := range a.Files {
			key := "public.events/" + f.Key
			out.keys = append(out.keys, key)
			data, err := os.ReadFile(filepath.Join(dir, key))
			if err != nil {
				t.Fatal(err)
			}
			out.data[key] = data
		}
	}
	return out
}

func (s *stored) put(t *testing.T, key string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, key), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// entries reads an artifact without its manifest.
func entries(data []byte, f Format, want *header) (out []string, err error) {
	_, err = decode(bytes.NewReader(data), f, want, "k", "d", nil, visitor{entry: func(e *Entry) error {
		out = append(out, fmt.Sprintf("%s %q %s %q %s %s %d", e.Op, e.Key, e.Stamp, []byte(e.Row), e.Log, e.Position, e.Time))
		return nil
	}})
	return out, err
}

var damageFormats = []Format{Protobuf, JSONL, JSONLZstd}

// A07, first half: a damaged artifact is found by what it holds alone, and nothing of a block
// that is damaged is passed on.
func TestCaseA07DamageIsFoundInAnArtifactAlone(t *testing.T) {
	t.Parallel()
	for _, f := range damageFormats {
		for _, h := range []History{Net, Full} {
			t.Run(string(f)+" "+string(h), func(t *testing.T) {
				t.Parallel()
				s := store(t, longStory(16), func(c *WriterConfig) { c.Formats, c.History, c.block = []Format{f}, h, 700 })
				for i, key := range s.keys {
					whole := s.data[key]
					all, err := entries(whole, f, nil)
					if err != nil {
						t.Fatal(err)
					}
					if len(all) < 5 {
						t.Fatalf("%s has %d entries", key, len(all))
					}
					check := func(what string, data []byte, must bool) {
						t.Helper()
						got, err := entries(data, f, nil)
						if err == nil && (must || fmt.Sprint(got) != fmt.Sprint(all)) {
							t.Fatalf("%s: %s: no error", key, what)
						}
						if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
							t.Fatalf("%s: %s: %v", key, what, err)
						}
						if len(got) > len(all) || fmt.Sprint(got) != fmt.Sprint(all[:len(got)]) {
							t.Fatalf("%s: %s: it passes on what was not written", key, what)
						}
					}
					step := 11 // of bytes: all of them where that is fast
					if f == Protobuf && i < 2 {
						step = 1
					}
					for n := range whole {
						if n%step == 0 || n > len(whole)-40 {
							check(fmt.Sprintf("cut at %d", n), whole[:n], true)
						}
						if n%step == 0 {
							bad := bytes.Clone(whole)
							bad[n] ^= 1 << (n % 8)
							check(fmt.Sprintf("byte %d is another", n), bad, false)
						}
					}
					check("more after the end", append(bytes.Clone(whole), '\n'), true)
				}
			})
		}
	}
}

// blocksOf cuts an artifact of the protobuf format into its blocks.
func blocksOf(data []byte) (out [][]byte) {
	data = data[len(magic):]
	for len(data) > 0 {
		n := blockHeader + int(uint32(data[4])|uint32(data[5])<<8|uint32(data[6])<<16|uint32(data[7])<<24)
		out, data = append(out, data[:n]), data[n:]
	}
	return out
}

// A07: a block of another artifact, or from elsewhere in the same one, is not taken for the one
// that belongs there.
func TestCaseA07SwappedBlocks(t *testing.T) {
	t.Parallel()
	s := store(t, longStory(60), func(c *WriterConfig) { c.block = 300 })
	a, b := s.data[s.keys[1]], s.data[s.keys[2]]
	x, y := blocksOf(a), blocksOf(b)
	if len(x) < 5 || len(y) < 5 {
		t.Fatalf("%d and %d blocks", len(x), len(y))
	}
	all, _ := entries(a, Protobuf, nil)
	for i := range x {
		for what, with := range map[string][]byte{"one of another artifact": y[min(i, len(y)-1)], "its neighbour": x[(i+1)%len(x)], "nothing": nil} {
			blocks := append([][]byte{[]byte(magic)}, x...)
			blocks[i+1] = with
			got, err := entries(bytes.Join(blocks, nil), Protobuf, nil)
			var c *CorruptError
			if !errors.As(err, &c) && i > 0 { // a whole header of another artifact makes all else foreign
				t.Fatalf("block %d is %s: %v", i, what, err)
			}
			if err == nil || len(got) > len(all) || fmt.Sprint(got) != fmt.Sprint(all[:len(got)]) {
				t.Fatalf("block %d is %s: %d entries, %v", i, what, len(got), err)
			}
			if c != nil && i > 0 && what == "one of another artifact" && i < len(x)-1 && i < len(y)-1 {
				if c.Block != i+1 || c.Offset <= 0 {
					t.Fatalf("block %d is %s, and the error is %v", i, what, err)
				}
			}
		}
	}
	lines := func(data []byte) [][]byte { return bytes.SplitAfter(data, []byte("\n")) }
	j := store(t, longStory(60), func(c *WriterConfig) { c.Formats, c.block = []Format{JSONL}, 300 })
	p, q := lines(j.data[j.keys[1]]), lines(j.data[j.keys[2]])
	for i := 1; i < min(len(p), len(q))-2; i++ {
		with := bytes.Clone(q[i])
		if isCheck(p[i]) || bytes.Equal(p[i], with) {
			continue
		}
		bad := append(append(bytes.Join(p[:i], nil), with...), bytes.Join(p[i+1:], nil)...)
		_, err := entries(bad, JSONL, nil)
		var c *CorruptError
		if !errors.As(err, &c) || c.Line == 0 || c.Line > i+1 {
			t.Fatalf("line %d is of another artifact: %v", i+1, err)
		}
	}
}

// A07, second half: a reader names the object, and passes nothing on.
func TestCaseA07DamagedArtifactsAreNamed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, f := range damageFormats {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			st := longStory(40)
			s := store(t, st, func(c *WriterConfig) { c.Formats, c.block = []Format{f}, 700 })
			other := store(t, longStory(44), func(c *WriterConfig) { c.Formats, c.block = []Format{f}, 700 })
			r := reader(t, s.d)
			for i, key := range s.keys {
				whole := s.data[key]
				flipped := bytes.Clone(whole)
				flipped[len(flipped)*2/3] ^= 4
				for what, data := range map[string][]byte{
					"empty": {}, "cut": whole[:len(whole)-1], "half": whole[:len(whole)/2], "longer": append(bytes.Clone(whole), 0),
					"flipped": flipped, "of another artifact": s.data[s.keys[(i+1)%3]], "of another archive": other.data[other.keys[i]], "missing": nil,
				} {
					if what == "missing" {
						if err := os.Remove(filepath.Join(s.dir, key)); err != nil {
							t.Fatal(err)
						}
					} else {
						s.put(t, key, data)
					}
					_, err := r.Fold(ctx, AsOf{})
					if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), key) {
						t.Fatalf("%s is %s: fold says %v", key, what, err)
					}
					rep, err := r.Verify(ctx, nil)
					if err != nil || len(rep.Problems) != 1 || !strings.Contains(rep.Problems[0].Error(), key) {
						t.Fatalf("%s is %s: verify says %v %v", key, what, rep.Problems, err)
					}
					if i > 0 {
						p, err := r.Replay(ctx, st.at(20))
						if err != nil {
							t.Fatal(err)
						}
						n := 0
						err = p.Each(ctx, func(*Step) error { return nil }, func(e *Entry) error {
							if e.Position > st.at(30)[0].Position || i == 1 {
								n++
							}
							return nil
						})
						if err == nil || n > 0 {
							t.Fatalf("%s is %s: %d changes of it are replayed, and %v", key, what, n, err)
						}
					}
				}
				s.put(t, key, whole)
			}
			if _, err := r.Fold(ctx, AsOf{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// With two formats, what is damaged in one is read in the other.
func TestTheOtherFormatIsTriedWhereOneIsDamaged(t *testing.T) {
	t.Parallel()
	st := longStory(20)
	s := store(t, st, func(c *WriterConfig) { c.Formats = []Format{Protobuf, JSONL} })
	s.put(t, s.keys[0], []byte("nothing"))
	if err := os.Remove(filepath.Join(s.dir, s.keys[2])); err != nil {
		t.Fatal(err)
	}
	got, _ := mustFold(t, reader(t, s.d), AsOf{})
	if want := st.model(20).String(); got != want {
		t.Fatalf("it is\n%s\nand should be\n%s", got, want)
	}
}

// A base that is damaged is planned round where an older one and diffs lead to the same.
func TestAnOlderBaseIsTakenWhereOneIsDamaged(t *testing.T) {
	t.Parallel()
	st := longStory(20)
	s := store(t, st)
	b := st.base(20)
	b.Continues = true
	a, err := s.w.Base(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, "public.events/"+a.Files[0].Key, []byte("nothing"))
	got, at := mustFold(t, reader(t, s.d), AsOf{})
	if want := st.model(20).String(); got != want || !at.Equal(st.at(20)) {
		t.Fatalf("it is\n%s\nand should be\n%s", got, want)
	}
}

// Whatever bit of a manifest is flipped, it is named, or what the manifest says is the same.
func TestManifestBitFlips(t *testing.T) {
	t.Parallel()
	s := store(t, longStory(16))
	key := "public.events/" + ManifestName
	whole, err := os.ReadFile(filepath.Join(s.dir, key))
	if err != nil {
		t.Fatal(err)
	}
	want, err := decodeManifest(whole, "here")
	if err != nil {
		t.Fatal(err)
	}
	harmless := 0
	for i := range 8 * len(whole) {
		data := bytes.Clone(whole)
		data[i/8] ^= 1 << (i % 8)
		m, err := decodeManifest(data, "here")
		if err != nil {
			continue
		}
		if harmless++; !reflect.DeepEqual(m, want) {
			t.Fatalf("bit %d of byte %d, in %q, makes another manifest", i%8, i/8, data[max(0, i/8-20):min(len(data), i/8+20)])
		}
	}
	if most := 8 * len(sumField); harmless > most {
		t.Errorf("%d bits can be flipped unseen", harmless)
	}
	// A digit of a position, for one.
	at := bytes.Index(whole, []byte(`"position":"0/`)) + len(`"position":"0/`)
	data := bytes.Clone(whole)
	data[at] ^= 1
	s.put(t, key, data)
	r := reader(t, s.d)
	if _, err := r.Manifest(t.Context()); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("a position that was changed: %v", err)
	}
	if _, err := OpenWriter(t.Context(), s.w.cfg); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a writer opens it with %v", err)
	}
	// One of an older version has none.
	s.put(t, key, append(bytes.Clone(whole[:len(whole)-sumLen]), "}\n"...))
	if m, err := reader(t, s.d).Manifest(t.Context()); err != nil || len(m.Artifacts) != 3 {
		t.Errorf("without a checksum: %v", err)
	}
	// What is added after it was computed is seen.
	s.put(t, key, append(bytes.Clone(whole[:len(whole)-2]), `,"added":1}`...))
	if _, err := reader(t, s.d).Manifest(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("with a field more: %v", err)
	}
}
