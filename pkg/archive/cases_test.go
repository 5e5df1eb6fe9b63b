package archive

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// hooked is a destination that calls back before an object is opened.
type hooked struct {
	dest.Destination
	open  func(key string)
	check error
}

func (h *hooked) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if h.open != nil {
		h.open(key)
	}
	return h.Destination.Open(ctx, key, offset)
}

func (h *hooked) Check(ctx context.Context) error {
	return errors.Join(h.check, h.Destination.Check(ctx))
}

func mustBase(t testing.TB, w *Writer, b Base) *Artifact {
	t.Helper()
	a, err := w.Base(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustDiff(t testing.TB, w *Writer, d Diff) *Artifact {
	t.Helper()
	a, err := w.Diff(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCaseA01PrunedWhileReading(t *testing.T) { onEach(t, testA01) }

func testA01(t *testing.T, d dest.Destination) {
	ctx := context.Background()
	s := longStory(20)
	w := openWriter(t, d)
	mustBase(t, w, s.base(6))
	mustDiff(t, w, s.diff(6, 9))
	mustDiff(t, w, s.diff(9, 12))
	h := &hooked{Destination: d}
	var once sync.Once
	h.open = func(key string) {
		if strings.Contains(key, "/diff-") { // the base has been read, the diffs not yet
			once.Do(func() {
				mustBase(t, w, s.base(15))
				if p, err := w.Prune(ctx, Retention{Generations: 1}); err != nil || p.Artifacts != 3 || p.Objects != 3 {
					t.Errorf("%+v, %v", p, err)
				}
			})
		}
	}
	r := reader(t, h)
	p, err := r.Replay(ctx, s.at(6))
	if err != nil {
		t.Fatal(err)
	}
	got, at := mustFold(t, r, AsOf{})
	if want := s.model(15).String(); got != want || !at.Equal(s.at(15)) {
		t.Fatalf("at %s it is\n%s\nand should be\n%s", at, got, want)
	}
	err = p.Each(ctx, func(*Step) error { return nil }, func(*Entry) error { t.Error("a change of a diff that is gone"); return nil })
	if !errors.Is(err, ErrNotCovered) {
		t.Fatalf("a replay of diffs that are gone: %v", err)
	}
}

func TestCaseA03TwoWriters(t *testing.T) { onEach(t, testA03) }

func testA03(t *testing.T, d dest.Destination) {
	ctx := context.Background()
	s := longStory(20)
	a := openWriter(t, d)
	mustBase(t, a, s.base(6))
	var fenced *FencedError
	if _, err := OpenWriter(ctx, writerConfig(d, func(c *WriterConfig) { c.ID = "another" })); !errors.As(err, &fenced) || fenced.Writer.ID != "writer" {
		t.Fatalf("another writer: %v", err)
	}
	b := openWriter(t, d, func(c *WriterConfig) { c.ID, c.TakeOver = "another", true })
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, w := range []*Writer{a, b} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, errs[i] = w.Diff(ctx, s.diff(6, 9+i))
		}()
	}
	wg.Wait()
	if !errors.As(errs[0], &fenced) || fenced.Writer.ID != "another" || fenced.Writer.Fence != 2 || errs[1] != nil {
		t.Fatalf("the old writer: %v; the new one: %v", errs[0], errs[1])
	}
	if _, err := a.Base(ctx, s.base(12)); !errors.Is(err, ErrFenced) {
		t.Fatalf("the old writer goes on: %v", err)
	}
	c := openWriter(t, d, func(c *WriterConfig) { c.ID = "another" }) // its next life
	if _, err := b.Diff(ctx, s.diff(10, 12)); !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "later life") {
		t.Fatalf("the life before: %v", err)
	}
	mustDiff(t, c, s.diff(10, 20))
	got, _ := mustFold(t, reader(t, d), AsOf{})
	if want := s.model(20).String(); got != want {
		t.Fatalf("it is\n%s\nand should be\n%s", got, want)
	}
	rep, err := reader(t, d).Verify(ctx, nil)
	if err != nil || len(rep.Problems) > 0 || len(rep.Orphans) != 2 {
		t.Fatalf("%+v %v", rep, err)
	}
}

// Writers of one identity that begin at once: one of them is left, and nothing is lost.
func TestCaseA03ManyWritersAtOnce(t *testing.T) {
	t.Parallel()
	d := folder(t)
	drive := newDriver()
	var wg sync.WaitGroup
	for range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := drive.run(context.Background(), d); err != nil && !errors.Is(err, ErrFenced) && !errors.Is(err, dest.ErrConflict) {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if err := drive.check(d); err != nil {
		t.Fatal(err)
	}
	if err := drive.run(context.Background(), d); err != nil {
		t.Fatal(err)
	}
	drive.complete(t, d)
}

// together lets nobody go on from a Read until n have read.
type together struct {
	dest.Destination
	n    int
	mu   sync.Mutex
	full chan struct{}
}

func (b *together) Read(ctx context.Context, key string, have dest.Tag) ([]byte, dest.Tag, error) {
	data, tag, err := b.Destination.Read(ctx, key, have)
	b.mu.Lock()
	if b.n--; b.n == 0 {
		close(b.full)
	}
	b.mu.Unlock()
	<-b.full
	return data, tag, err
}

// Two writers of one identity that claim an archive at one instant of their clocks are told
// apart: the claim of one is the other's conflict, never its own.
func TestCaseA03ClaimsOfOneInstant(t *testing.T) { onEach(t, testClaims) }

func testClaims(t *testing.T, d dest.Destination) {
	ctx := context.Background()
	s := longStory(20)
	mustBase(t, openWriter(t, d), s.base(6))
	both := &together{Destination: d, n: 2, full: make(chan struct{})}
	now := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	ws, errs := make([]*Writer, 2), make([]error, 2)
	var wg sync.WaitGroup
	for i := range ws {
		wg.Go(func() {
			ws[i], errs[i] = OpenWriter(ctx, writerConfig(both, func(c *WriterConfig) { c.Now = func() time.Time { return now } }))
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if a, b := ws[0].Manifest().Writer, ws[1].Manifest().Writer; a.Fence == b.Fence {
		t.Fatalf("two writers have the archive: %+v and %+v", a, b)
	}
	for i, w := range ws {
		_, errs[i] = w.Diff(ctx, s.diff(6, 9))
	}
	if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), ErrFenced) {
		t.Fatalf("one goes on, and the other is fenced: %v", errs)
	}
}

func TestCaseA04StoreWithoutConditionalWrites(t *testing.T) {
	t.Parallel()
	d := folder(t)
	_, err := OpenWriter(context.Background(), writerConfig(&hooked{Destination: d, check: dest.ErrNoSwap}))
	if !errors.Is(err, dest.ErrNoSwap) {
		t.Fatal(err)
	}
	for o := range d.List(context.Background(), "") {
		t.Errorf("%s is there", o.Key)
	}
}

func TestCaseA06MissingBaseOrManifest(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"base", "manifest", "diff", "segment"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			s := longStory(20)
			st := store(t, s, func(c *WriterConfig) { c.seal = 1 })
			m := st.w.Manifest()
			gone := map[string]string{"base": st.keys[0], "diff": "public.events/" + m.Artifacts[0].Files[0].Key, "manifest": "public.events/manifest.json", "segment": "public.events/" + m.sealed[0].Key}[what]
			if what == "base" {
				r := reader(t, st.d)
				as, err := r.Manifest(ctx)
				if err != nil {
					t.Fatal(err)
				}
				gone = "public.events/" + as.Artifacts[0].Files[0].Key
			}
			if err := os.Remove(filepath.Join(st.dir, gone)); err != nil {
				t.Fatal(err)
			}
			r := reader(t, st.d)
			if _, err := r.Fold(ctx, AsOf{}); err == nil {
				t.Fatal("it folds all the same")
			}
			rep, err := r.Verify(ctx, nil)
			if err == nil && len(rep.Problems) > 0 {
				err = rep.Problems[0]
			}
			if err == nil || !strings.Contains(err.Error(), gone) {
				t.Fatalf("%s is missing, and verify says %v", gone, err)
			}
			w := openWriter(t, st.d)
			if _, needs := w.Through(); needs == "" {
				t.Fatal("the writer does not see that a base is needed")
			}
			if _, err := w.Diff(ctx, s.diff(20, 20)); !errors.Is(err, ErrNeedsBase) {
				t.Fatalf("a diff upon nothing: %v", err)
			}
			mustBase(t, w, s.base(20))
			if _, needs := w.Through(); needs != "" {
				t.Fatal(needs)
			}
			got, _ := mustFold(t, r, AsOf{})
			if want := s.model(20).String(); got != want {
				t.Fatalf("it is\n%s\nand should be\n%s", got, want)
			}
		})
	}
}

func TestCaseA08A09WrongPrefix(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d := folder(t)
	s := longStory(4)
	mustBase(t, openWriter(t, d), s.base(4))
	for _, prefix := range []string{"public.events/", "public.events", "/public.events/"} {
		r := reader(t, d, func(c *ReaderConfig) { c.Prefix = prefix })
		if _, err := r.Fold(ctx, AsOf{}); err != nil {
			t.Errorf("A09: %q: %v", prefix, err)
		}
	}
	r := reader(t, d, func(c *ReaderConfig) { c.Prefix = "public.event" })
	if _, err := r.Fold(ctx, AsOf{}); !errors.Is(err, ErrNoArchive) || !strings.Contains(err.Error(), `"public.event/manifest.json" in `+d.Describe()) {
		t.Errorf("A09: %v", err)
	}
	orders := engine.TableName{Schema: "public", Name: "orders"}
	r = reader(t, d, func(c *ReaderConfig) { c.Table = orders })
	if _, err := r.Fold(ctx, AsOf{}); !errors.Is(err, ErrOtherTable) || !strings.Contains(err.Error(), "public.events") || !strings.Contains(err.Error(), "public.orders") {
		t.Errorf("A08: %v", err)
	}
	if _, err := OpenWriter(ctx, writerConfig(d, func(c *WriterConfig) { c.Table, c.TakeOver = orders, true })); !errors.Is(err, ErrOtherTable) {
		t.Errorf("A08: a writer: %v", err)
	}
	if _, err := NewReader(ReaderConfig{Destination: d, Prefix: "a//b"}); !errors.Is(err, dest.ErrKey) {
		t.Errorf("A09: %v", err)
	}
}

func TestCaseA10A11Follow(t *testing.T) { onEach(t, testFollow) }

func testFollow(t *testing.T, d dest.Destination) {
	ctx := context.Background()
	s := longStory(30)
	w := openWriter(t, d)
	mustBase(t, w, s.base(6))
	h := &hooked{Destination: d}
	var once sync.Once
	h.open = func(string) { // A11: the archive grows while its base is being read
		once.Do(func() { mustDiff(t, w, s.diff(6, 9)) })
	}
	r := reader(t, h)
	f, err := r.Fold(ctx, AsOf{})
	if err != nil {
		t.Fatal(err)
	}
	at := f.At()
	m := s.model(6)
	if got, err := folded(f); err != nil || got != m.String() || !at.Equal(s.at(6)) {
		t.Fatalf("at %s it is\n%s\n%v", at, got, err)
	}
	poll := func(want PollKind) Poll {
		t.Helper()
		p, err := r.Poll(ctx, at)
		if err != nil || p.Kind != want {
			t.Fatalf("at %s: %+v, %v, and not %s", at, p, err, want)
		}
		return p
	}
	follow := func(to int) {
		t.Helper()
		poll(PollAppended)
		p, err := r.Replay(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Each(ctx, func(*Step) error { return nil }, func(e *Entry) error { m.apply(e); return nil }); err != nil {
			t.Fatal(err)
		}
		at = p.To()
		if got, want := m.String(), s.model(to).String(); got != want || !at.Equal(s.at(to)) {
			t.Fatalf("at %s it is\n%s\nand should be\n%s", at, got, want)
		}
		poll(PollSame)
	}
	follow(9)
	b := s.base(9)
	b.Continues = true
	mustBase(t, w, b) // a new base that continues the diffs is nothing new to a follower
	poll(PollSame)
	mustDiff(t, w, s.diff(9, 12))
	follow(12)
	idle := s.at(12) // nothing changes for a while
	idle[0].Position = "0/C80"
	if err := w.Advance(ctx, idle); err != nil {
		t.Fatal(err)
	}
	poll(PollAppended)
	p, err := r.Replay(ctx, at)
	if err != nil || len(p.Plan().Diffs) != 0 || !p.To().Equal(idle) {
		t.Fatalf("%+v %v", p, err)
	}
	at = p.To()
	poll(PollSame)
	mustDiff(t, w, Diff{From: idle, To: s.at(15), Changes: s.changes(12, 15)})
	follow(15)
	// A10: replaced by another export, at an older position.
	if err := d.Delete(ctx, "public.events/manifest.json"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Poll(ctx, at); !errors.Is(err, ErrNoArchive) {
		t.Fatal(err)
	}
	w = openWriter(t, d, func(c *WriterConfig) { c.ID, c.TakeOver = "re-export", true })
	poll(PollSame) // there is nothing yet
	mustBase(t, w, s.base(3))
	if p := poll(PollReplaced); p.Reason == "" || !p.Head.Equal(s.at(3)) {
		t.Fatalf("%+v", p)
	}
	got, now := mustFold(t, r, AsOf{})
	if got != s.model(3).String() {
		t.Fatal("it is not what was exported again")
	}
	at = now
	poll(PollSame) // once
	// Another epoch of the origin is another archive, too.
	e := s.base(3)
	e.At = NewVector(Cursor{Log: engine.LogID{Origin: "orders/root", Epoch: 1759000000000000}, Position: "0/1"})
	mustBase(t, w, e)
	poll(PollReplaced)
}

// rewrite changes the manifest, as another program would.
func rewrite(t *testing.T, dir string, change func(map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, "public.events", "manifest.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "sha256")
	change(m)
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCaseA12NoColumnsRecorded(t *testing.T) {
	t.Parallel()
	s := longStory(6)
	st := store(t, s, func(c *WriterConfig) { c.Formats = []Format{JSONL} })
	rewrite(t, st.dir, func(m map[string]any) {
		delete(m, "columns")
		m["something of a later time"] = 1
	})
	if got, _ := mustFold(t, reader(t, st.d), AsOf{}); got != s.model(6).String() {
		t.Fatal("without columns in the manifest it is not the same")
	}
	// An artifact without schemas: names from its first row.
	lines := strings.SplitAfter(string(st.data[st.keys[0]]), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, `{"schema":`) })
	data := reseal(lines)
	var names []string
	rows := 0
	_, err := decode(strings.NewReader(data), JSONL, nil, "k", "d", nil, visitor{
		schema: func(_ engine.LogID, s *engine.Schema) error {
			for _, c := range s.Columns {
				if c.TypeName != "" || c.TypeOID != 0 {
					t.Errorf("a type comes from nowhere: %+v", c)
				}
				names = append(names, c.Name)
			}
			return nil
		},
		entry: func(e *Entry) error {
			if e.Op == engine.OpPut {
				rows++
			}
			return nil
		},
	})
	if err != nil || !slices.Equal(names, []string{"id", "body"}) || rows == 0 {
		t.Fatalf("%v %v %d", err, names, rows)
	}
}

var checkLine = regexp.MustCompile(`^\{"check":`)

// reseal writes the checksums of an artifact of the JSON format anew.
func reseal(lines []string) string {
	e := &jsonEncoder{w: &strings.Builder{}, sum: sha256.New(), limit: 1 << 20, number: 1}
	e.header = sha256.Sum256([]byte(lines[0]))
	_ = e.write([]byte(lines[0]))
	var c counts
	for _, l := range lines[1:] {
		switch {
		case l == "" || checkLine.MatchString(l) || strings.HasPrefix(l, `{"end":`):
			continue
		case strings.HasPrefix(l, `{"op":"put"`):
			c.Puts++
		case strings.HasPrefix(l, `{"op":"delete"`):
			c.Deletes++
		case strings.HasPrefix(l, `{"op":"truncate"`):
			c.Truncates++
		}
		e.lines = append(e.lines, l...)
	}
	_ = e.end(c)
	return e.w.(*strings.Builder).String()
}

func TestCaseA13VersionOfTheFuture(t *testing.T) {
	t.Parallel()
	st := store(t, longStory(6))
	rewrite(t, st.dir, func(m map[string]any) { m["version"] = 7; m["artifacts"] = "of another kind altogether" })
	_, err := reader(t, st.d).Fold(context.Background(), AsOf{})
	var v *VersionError
	if !errors.As(err, &v) || v.Has != 7 || v.Known != 1 || !strings.Contains(err.Error(), "7") {
		t.Fatal(err)
	}
	if _, err := OpenWriter(context.Background(), writerConfig(st.d, func(c *WriterConfig) { c.TakeOver = true })); !errors.Is(err, ErrVersion) {
		t.Fatalf("a writer overwrites it: %v", err)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := longStory(20)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d := folder(t)
	w := openWriter(t, d, func(c *WriterConfig) { c.Now = func() time.Time { return now } })
	for n := range 5 {
		mustBase(t, w, s.base(3*n))
		mustDiff(t, w, s.diff(3*n, 3*n+2))
		now = now.Add(time.Hour)
	}
	bases := func() (n int) {
		m, err := reader(t, d).Manifest(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range m.Artifacts {
			if a.Kind == KindBase {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		r    Retention
		want int
	}{{Retention{}, 5}, {Retention{Generations: 4}, 4}, {Retention{Generations: 1, Age: 3*time.Hour + time.Minute}, 3}, {Retention{Age: 3*time.Hour + time.Minute}, 3}, {Retention{Generations: 2, Age: time.Minute}, 2}, {Retention{Age: time.Minute}, 1}} {
		if _, err := w.Prune(ctx, c.r); err != nil {
			t.Fatal(err)
		}
		if got := bases(); got != c.want {
			t.Errorf("%+v leaves %d generations, and not %d", c.r, got, c.want)
		}
	}
	if got, _ := mustFold(t, reader(t, d), AsOf{}); got != s.model(14).String() {
		t.Error("what is left is not the head")
	}
}

// What a writer prunes while the archive is verified is not missed.
func TestVerifyWhilePruned(t *testing.T) {
	t.Parallel()
	s, d := longStory(20), folder(t)
	w := openWriter(t, d)
	for n := range 3 {
		mustBase(t, w, s.base(3*n))
		mustDiff(t, w, s.diff(3*n, 3*n+2))
	}
	rep, err := reader(t, d).Verify(t.Context(), func(done, _ int) {
		if done == 1 {
			if _, err := w.Prune(t.Context(), Retention{Generations: 1}); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil || len(rep.Problems) > 0 || rep.Artifacts != 3 {
		t.Errorf("%v: %d artifacts, %v", err, rep.Artifacts, rep.Problems)
	}
}

// An export goes on with a log only if all of its archives say what was minted, in whatever order they are found.
func TestKnown(t *testing.T) {
	t.Parallel()
	log, older := engine.LogID{Origin: "x#from", Epoch: 2}, engine.LogID{Origin: "x#from", Epoch: 1}
	at := func(log engine.LogID, p engine.Position, minted Minted) *Manifest {
		return &Manifest{Through: NewVector(Cursor{Log: log, Position: p}), Minted: minted}
	}
	a := at(log, "0/10", Minted{log.String(): {History: "h", Schemas: 3}})
	b := at(log, "0/20", Minted{log.String(): {History: "h", Schemas: 2}})
	none, old := at(log, "0/10", nil), at(older, "0/90", nil)
	for _, c := range []struct {
		all  []*Manifest
		want string
	}{
		{[]*Manifest{a, b}, "h"}, {[]*Manifest{b, a}, "h"}, {[]*Manifest{old, a, b}, "h"}, {[]*Manifest{a, old, b}, "h"},
		{[]*Manifest{a, none}, ""}, {[]*Manifest{none, a}, ""}, {[]*Manifest{old, none, b}, ""},
	} {
		k := Known("x#from", nil, c.all...)
		if k.History != c.want || k.Log != log || c.want != "" && (k.Schemas != 3 || k.At != "0/20") {
			t.Errorf("%d archives: %+v", len(c.all), k)
		}
	}
}

func TestDue(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := Sum{BaseBytes: 1000, BaseRows: 100, Begun: now.Add(-2 * time.Hour), Diffs: 5, DiffBytes: 500, Records: 50}
	for _, c := range []struct {
		p    Policy
		want string
	}{
		{Policy{}, ""}, {Policy{DiffBytes: 500}, "500 bytes"}, {Policy{DiffBytes: 501}, ""},
		{Policy{Fraction: 0.5}, "and the base 1000"}, {Policy{Fraction: 0.6}, ""},
		{Policy{Churn: 0.5}, "50 records"}, {Policy{Churn: 0.51}, ""}, {Policy{MaxDiffs: 5}, "5 diffs"}, {Policy{MaxDiffs: 6}, ""},
		{Policy{MaxAge: 2 * time.Hour}, "2h0m0s old"}, {Policy{MaxAge: 3 * time.Hour}, ""},
		{Policy{MaxAge: time.Hour, MinInterval: 3 * time.Hour}, ""},
	} {
		if got := c.p.due(s, now); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, and not %q", c.p, got, c.want)
		}
	}
	// The clock was far ahead when the base was written: the floor does not last until then.
	s.Begun = now.Add(1000 * time.Hour)
	for p, want := range map[Policy]string{
		{Fraction: 0.01, MinInterval: time.Hour}:        "the diffs since the base take",
		{MaxAge: time.Hour, MinInterval: time.Hour}:     "the base is",
		{Fraction: 0.01, MinInterval: 2000 * time.Hour}: "",
	} {
		if got := p.due(s, now); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("a base of the time to come, %+v: %q", p, got)
		}
	}
}
