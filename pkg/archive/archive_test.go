package archive

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// wrote is what has been written of a story: after which transactions there are artifacts.
type wrote struct {
	ends []int // of artifacts, and what Advance told
	base []int
}

// writeStory writes a story with bases and diffs at random places.
func writeStory(t *rapid.T, w *Writer, s *story) (out wrote) {
	ctx := context.Background()
	at := rapid.IntRange(0, len(s.txs)).Draw(t, "first base")
	if _, err := w.Base(ctx, s.base(at)); err != nil {
		t.Fatal(err)
	}
	out.ends, out.base = []int{at}, []int{at}
	for at < len(s.txs) {
		next := rapid.IntRange(at, len(s.txs)).Draw(t, "next")
		if rapid.IntRange(0, 4).Draw(t, "rebase") == 0 {
			b := s.base(next)
			if b.Continues = rapid.Bool().Draw(t, "continues"); b.Continues {
				b = s.base(at)
				b.Continues, next = true, at
			}
			if _, err := w.Base(ctx, b); err != nil {
				t.Fatal(err)
			}
			out.base = append(out.base, next)
		} else if next == at {
			next++
			if _, err := w.Diff(ctx, s.diff(at, next)); err != nil {
				t.Fatal(err)
			}
		} else if _, err := w.Diff(ctx, s.diff(at, next)); err != nil {
			t.Fatal(err)
		}
		at = next
		out.ends = append(out.ends, at)
	}
	return out
}

// Whatever is written, a fold at each moment gives what the simplest rules give there.
func TestFoldsLikeTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt, 12)
		d := folder(t)
		history := rapid.SampledFrom([]History{Net, Full}).Draw(rt, "history")
		format := rapid.SampledFrom([][]Format{{Protobuf}, {JSONL}, {JSONLZstd}, {Protobuf, JSONL}}).Draw(rt, "formats")
		w := openWriter(t, d, func(c *WriterConfig) {
			c.Formats, c.History, c.Memory, c.Scratch = format, history, 4<<10, spill.NewDir(t.TempDir())
		})
		did := writeStory(rt, w, s)
		last := did.ends[len(did.ends)-1]
		r := reader(t, d, func(c *ReaderConfig) { c.Formats, c.Memory = format[len(format)-1:], 8<<10 })
		got, at := mustFold(rt, r, AsOf{})
		if want := s.model(last).String(); got != want {
			rt.Fatalf("the head is\n%s\nand should be\n%s", got, want)
		}
		if !at.Equal(s.at(last)) {
			rt.Fatalf("the head is at %s, and says %s", s.at(last), at)
		}
		for n := range len(s.txs) + 1 {
			ask := AsOf{At: s.at(n)}
			f, err := r.Fold(context.Background(), ask)
			if errors.Is(err, ErrNotCovered) {
				if n >= did.base[0] {
					rt.Fatalf("after %d transactions: %v", n, err)
				}
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			got, err := folded(f)
			if err != nil {
				rt.Fatal(err)
			}
			m := newModel() // what is at or before the vector that the fold says
			for _, x := range s.txs {
				if c, _ := f.At().Cursor(x.log); c.Compare(x.position) >= 0 {
					for i := range x.changes {
						m.apply(&x.changes[i])
					}
				}
			}
			if want := m.String(); got != want {
				rt.Fatalf("after %d transactions, at %s, it is\n%s\nand should be\n%s", n, f.At(), got, want)
			}
			if !ask.At.Reaches(f.At()) {
				rt.Fatalf("asked for %s, and got %s", ask.At, f.At())
			}
			if history == Full && n <= last && n >= did.base[0] && f.Plan().Base.To.Equal(s.at(did.base[0])) && len(did.base) == 1 {
				if got != s.model(n).String() { // a full history knows every moment
					rt.Fatalf("after %d transactions it is\n%s\nand should be\n%s", n, got, s.model(n))
				}
			}
		}
		rep, err := r.Verify(context.Background(), nil)
		if err != nil || len(rep.Problems) > 0 || len(rep.Orphans) > 0 {
			rt.Fatalf("verify: %v %+v", err, rep)
		}
	})
}

// Diffs lead from any vector in the chain to the head, whatever the reader has in between.
func TestReplaysLikeTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt, 12)
		d := folder(t)
		history := rapid.SampledFrom([]History{Net, Full}).Draw(rt, "history")
		format := rapid.SampledFrom([]Format{Protobuf, JSONL}).Draw(rt, "format")
		w := openWriter(t, d, func(c *WriterConfig) { c.Formats, c.History = []Format{format}, history })
		did := writeStory(rt, w, s)
		last := did.ends[len(did.ends)-1]
		r := reader(t, d)
		for n := range last + 1 {
			p, err := r.Replay(context.Background(), s.at(n))
			poll, perr := r.Poll(context.Background(), s.at(n))
			if perr != nil {
				rt.Fatal(perr)
			}
			if errors.Is(err, ErrNotCovered) {
				if n == last || poll.Kind != PollReplaced {
					rt.Fatalf("from %d of %d: %v, and poll says %+v", n, last, err, poll)
				}
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			if want := map[bool]PollKind{true: PollSame, false: PollAppended}[s.at(n).Equal(s.at(last))]; poll.Kind != want {
				rt.Fatalf("from %d of %d: poll says %+v", n, last, poll)
			}
			m := s.model(n)
			var at Vector
			var seen []Entry
			err = p.Each(context.Background(), func(st *Step) error {
				if at != nil && !st.From.Equal(at) {
					rt.Fatalf("a step from %s follows %s", st.From, at)
				}
				at = st.To
				return nil
			}, func(e *Entry) error {
				m.apply(e)
				c := *e
				seen = append(seen, c)
				return nil
			})
			if err != nil {
				rt.Fatal(err)
			}
			if got, want := m.String(), s.model(last).String(); got != want {
				rt.Fatalf("from %d it leads to\n%s\nand should lead to\n%s", n, got, want)
			}
			if history == Full {
				i := 0
				_ = s.changes(n, last)(func(e *Entry) error {
					if i >= len(seen) {
						rt.Fatalf("change %d of %s at %s is missing", i, e.Log, e.Position)
					}
					if g := seen[i]; g.Log != e.Log || g.Position != e.Position || g.Time != e.Time || g.Major != e.Major || g.Stamp != e.Stamp || g.Op != e.Op {
						rt.Fatalf("change %d is %+v and should be %+v", i, g, *e)
					}
					i++
					return nil
				})
				if i != len(seen) {
					rt.Fatalf("%d changes, and should be %d", len(seen), i)
				}
			}
			f, err := r.Delta(context.Background(), s.at(n), AsOf{})
			if err != nil {
				rt.Fatal(err)
			}
			m = s.model(n)
			for _, c := range f.Truncates() {
				m.apply(&Entry{Change: engine.Change{Op: engine.OpTruncate, Stamp: c}})
			}
			err = f.Rows(func(r *engine.Record) error {
				c := *r
				c.Key, c.Row = append([]byte(nil), r.Key...), append(engine.Row(nil), r.Row...)
				if r.Row == nil {
					c.Row = nil
				}
				m.merge(c)
				return nil
			})
			f.Close()
			if err != nil {
				rt.Fatal(err)
			}
			if got, want := m.String(), s.model(last).String(); got != want {
				rt.Fatalf("the delta from %d leads to\n%s\nand should lead to\n%s", n, got, want)
			}
		}
	})
}

// A state within a full diff has the columns that the table had at the moment, whatever the diff says that came later.
func TestColumnsOfTheMoment(t *testing.T) {
	t.Parallel()
	log := engine.LogID{Origin: "o", Epoch: 1}
	s := &story{logs: []engine.LogID{log}, schemas: Schemas{}}
	for i, n := range []int{1, 1, 2} { // the last transaction is the first of a wider table
		id := fmt.Sprint(i)
		s.add(log, engine.Time(10*i+10), engine.Change{Op: engine.OpPut, Schema: schemaOf(n, false), Row: row(schemaOf(n, false), text(id), text("x")), Key: engine.AppendKeyValue(nil, id)})
	}
	for _, format := range []Format{Protobuf, JSONL} {
		d := folder(t)
		w := openWriter(t, d, func(c *WriterConfig) { c.Formats, c.History = []Format{format}, Full })
		if _, err := w.Base(t.Context(), s.base(0)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Diff(t.Context(), s.diff(0, 3)); err != nil {
			t.Fatal(err)
		}
		for n, want := range []int{0, 1, 1, 2} {
			f, err := reader(t, d).Fold(t.Context(), AsOf{At: s.at(n)})
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Schemas()[log]; len(got) != want {
				t.Errorf("%s: after %d transactions there are %d schemas, want %d", format, n, len(got), want)
			}
			if got, err := folded(f); err != nil || got != s.model(n).String() {
				t.Errorf("%s: after %d transactions: %v\n%s", format, n, err, got)
			}
		}
	}
}
