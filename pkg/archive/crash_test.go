package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/desttest"
)

// driver writes a story as an exporter would: it asks where the archive is, and goes on from there.
type driver struct {
	s     *story
	stops []int // after which transactions there are artifacts; the first and the third are bases
}

func newDriver() *driver { return &driver{s: longStory(20), stops: []int{6, 9, 12, 15, 20}} }

// run opens the archive and writes until all is there.
func (d *driver) run(ctx context.Context, to dest.Destination, change ...func(*WriterConfig)) error {
	w, err := OpenWriter(ctx, writerConfig(to, append(change, func(c *WriterConfig) { c.block, c.seal = 600, 2 })...))
	if err != nil {
		return err
	}
	return d.drive(ctx, w)
}

func (d *driver) drive(ctx context.Context, w *Writer) error {
	for {
		done, err := d.step(ctx, w)
		if done || err != nil {
			return err
		}
	}
}

func (d *driver) step(ctx context.Context, w *Writer) (done bool, err error) {
	at, needs := w.Through()
	if needs != "" {
		_, err := w.Base(ctx, d.s.base(d.stops[0]))
		return false, err
	}
	n := d.s.after(at)
	i := slices.Index(d.stops, n)
	switch {
	case i < 0:
		return false, fmt.Errorf("the archive is at %s, which is no place to be", at)
	case i == 2 && w.Manifest().Generation == 1:
		b := d.s.base(n)
		b.Continues = true
		_, err = w.Base(ctx, b)
	case i+1 < len(d.stops):
		_, err = w.Diff(ctx, d.s.diff(n, d.stops[i+1]))
	default:
		_, err = w.Prune(ctx, Retention{Generations: 1})
		return true, err
	}
	return false, err
}

// check reads an archive that has been left somewhere in between: it is nothing, or the state at
// the vector that it says.
func (d *driver) check(to dest.Destination) error {
	ctx := context.Background()
	r, err := NewReader(ReaderConfig{Destination: to, Prefix: "public.events", Table: events})
	if err != nil {
		return err
	}
	f, err := r.Fold(ctx, AsOf{})
	if errors.Is(err, ErrNoArchive) || errors.Is(err, ErrNotCovered) {
		return nil
	}
	if err != nil {
		return err
	}
	got, err := folded(f)
	if err != nil {
		return err
	}
	n := d.s.after(f.At())
	if !slices.Contains(d.stops, n) {
		return fmt.Errorf("it is at %s", f.At())
	}
	if want := d.s.model(n).String(); got != want {
		return fmt.Errorf("at %s it is\n%s\nand should be\n%s", f.At(), got, want)
	}
	rep, err := r.Verify(ctx, nil)
	if err == nil {
		err = errors.Join(rep.Problems...)
	}
	return err
}

// complete checks an archive in which all has been written: nothing is in it twice, and what the
// attempts left behind goes with a Prune.
func (d *driver) complete(t interface {
	Helper()
	Fatalf(string, ...any)
}, to dest.Destination) {
	t.Helper()
	if err := d.check(to); err != nil {
		t.Fatalf("when all has been written: %v", err)
	}
	ctx := context.Background()
	r, _ := NewReader(ReaderConfig{Destination: to, Prefix: "public.events"})
	m, err := r.Manifest(ctx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if !m.Through.Equal(d.s.at(20)) || len(m.Artifacts) != 3 || m.Generation != 2 {
		t.Fatalf("it is at %s, in generation %d, with %d artifacts", m.Through, m.Generation, len(m.Artifacts))
	}
	w, err := OpenWriter(ctx, writerConfig(to, func(c *WriterConfig) { c.Now = func() time.Time { return time.Now().Add(48 * time.Hour) } }))
	if err != nil {
		t.Fatalf("%v", err)
	}
	if _, err := w.Prune(ctx, Retention{}); err != nil {
		t.Fatalf("%v", err)
	}
	rep, err := r.Verify(ctx, nil)
	if err != nil || len(rep.Orphans) > 0 || len(rep.Problems) > 0 {
		t.Fatalf("orphans %v, problems %v, %v", rep.Orphans, rep.Problems, err)
	}
	objects := 0
	for range to.List(ctx, "") {
		objects++
	}
	if want := 1 + len(m.sealed) + len(m.Artifacts); objects != want {
		t.Fatalf("%d objects are there, and %d are listed", objects, want)
	}
}

// ops counts the operations of a run in which all goes well.
func (d *driver) ops(t *testing.T) []desttest.Op {
	t.Helper()
	f := desttest.NewFaults(folder(t), nil)
	if err := d.run(context.Background(), f); err != nil {
		t.Fatal(err)
	}
	if len(f.Ops()) < 30 {
		t.Fatalf("only %d operations", len(f.Ops()))
	}
	return f.Ops()
}

// A writer that is killed at any operation leaves an archive that folds to a state the source had, at the
// position it claims; the next one goes on and repeats nothing.
func TestKilledAtEveryOperation(t *testing.T) {
	t.Parallel()
	d := newDriver()
	for _, op := range d.ops(t) {
		for _, fault := range []desttest.Fault{desttest.Crash, desttest.CrashIn} {
			to := folder(t)
			f := desttest.NewFaults(to, desttest.At(op.N, fault))
			if err := d.run(context.Background(), f); !errors.Is(err, desttest.ErrCrash) {
				t.Fatalf("%s, fault %d: %v", op, fault, err)
			}
			if err := d.check(to); err != nil {
				t.Fatalf("%s, fault %d: %v", op, fault, err)
			}
			if err := d.run(context.Background(), to); err != nil {
				t.Fatalf("%s, fault %d: going on: %v", op, fault, err)
			}
			d.complete(t, to)
		}
	}
}

// A writer whose destination fails goes on when it is told to: nothing is lost, and nothing is
// there twice. A05 (the answer was lost) and A19 (the disk is full) are among the faults.
func TestCaseA05A19EveryFaultAtEveryOperation(t *testing.T) {
	t.Parallel()
	d := newDriver()
	ops := d.ops(t)
	for name, fault := range map[string]desttest.Fault{
		"fails": desttest.Fail, "A05 answer lost": desttest.Lost, "late": desttest.Late, "stalls": desttest.Stall,
		"does half": desttest.Short, "A19 full": desttest.Full,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, op := range ops {
				to := folder(t)
				ctx, cancel := context.WithCancel(context.Background())
				f := desttest.NewFaults(to, func(o desttest.Op) desttest.Fault {
					if o.N != op.N {
						return desttest.None
					}
					if fault == desttest.Stall {
						time.AfterFunc(time.Millisecond, cancel)
					}
					return fault
				})
				var w *Writer
				failed := 0
				for {
					var err error
					done := false
					if w == nil {
						w, err = OpenWriter(ctx, writerConfig(f, func(c *WriterConfig) { c.block, c.seal = 600, 2 }))
					} else {
						done, err = d.step(ctx, w)
					}
					if done && err == nil {
						break
					}
					if err == nil {
						continue
					}
					cancel()
					ctx = context.Background()
					if failed++; failed > 3 {
						t.Fatalf("%s: %v", op, err)
					}
					if fault == desttest.Full && !errors.Is(err, dest.ErrFull) {
						t.Fatalf("%s: the disk is full, and the error is %v", op, err)
					}
					if cerr := d.check(to); cerr != nil {
						t.Fatalf("%s: after %v: %v", op, err, cerr)
					}
				}
				if failed == 0 && op.Name != "abort" && fault != desttest.Lost && fault != desttest.Late {
					t.Fatalf("%s: nothing failed", op)
				}
				cancel()
				d.complete(t, to)
			}
		})
	}
}

// The same against a real object store, where its answers matter.
func TestCaseA05FaultsOfAnObjectStore(t *testing.T) {
	t.Parallel()
	d := newDriver()
	for _, op := range d.ops(t) {
		if op.Name != "swap" && op.Name != "commit" {
			continue
		}
		for _, fault := range []desttest.Fault{desttest.Fail, desttest.Lost, desttest.Late, desttest.CrashIn} {
			t.Run(fmt.Sprintf("%s %d", op.Name, op.N), func(t *testing.T) {
				t.Parallel()
				to := bucket(t)
				f := desttest.NewFaults(to, desttest.At(op.N, fault))
				err := d.run(context.Background(), f)
				if cerr := d.check(to); cerr != nil {
					t.Fatalf("after %v: %v", err, cerr)
				}
				for range 3 { // on with what is there
					if f.Crashed() || err == nil {
						break
					}
					err = d.run(context.Background(), f)
				}
				if err := d.run(context.Background(), to); err != nil {
					t.Fatal(err)
				}
				d.complete(t, to)
			})
		}
	}
}

// Faults that come in any number and order, with crashes among them, end well once they end.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	d := newDriver()
	rapid.Check(t, func(rt *rapid.T) {
		to := folder(t)
		bad := rapid.SampledFrom([]desttest.Fault{desttest.Fail, desttest.Lost, desttest.Late, desttest.Short, desttest.Full, desttest.Crash, desttest.CrashIn})
		for range rapid.IntRange(1, 4).Draw(rt, "lives") {
			f := desttest.NewFaults(to, func(desttest.Op) desttest.Fault {
				if rapid.IntRange(0, 7).Draw(rt, "well") > 0 {
					return desttest.None
				}
				return bad.Draw(rt, "fault")
			})
			w, err := OpenWriter(context.Background(), writerConfig(f, func(c *WriterConfig) { c.block, c.seal = 600, 2 }))
			for range 12 {
				if err != nil && w == nil || errors.Is(err, ErrFenced) {
					break
				}
				var done bool
				if done, err = d.step(context.Background(), w); done && err == nil {
					break
				}
				if cerr := d.check(to); cerr != nil {
					rt.Fatalf("after %v: %v", err, cerr)
				}
			}
			if errors.Is(err, ErrFenced) {
				rt.Fatalf("the only writer is fenced: %v", err)
			}
		}
		if err := d.run(context.Background(), to); err != nil {
			rt.Fatalf("going on: %v", err)
		}
		d.complete(rt, to)
	})
}
