package desttest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/desttest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
)

func folder(t *testing.T) dest.Destination {
	t.Helper()
	d, err := local.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Without a plan the wrapper is the destination.
func TestNoFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("the suite runs in package local too")
	}
	t.Parallel()
	desttest.Run(t, func(t *testing.T) desttest.Place {
		d := folder(t)
		return func() dest.Destination { return desttest.NewFaults(d, nil) }
	})
}

// work writes two objects and swaps a manifest that names them, as a writer does, and
// says what it believes to be committed.
func work(ctx context.Context, d dest.Destination) (done []string, err error) {
	for _, key := range []string{"a", "b"} {
		w, err := d.Create(ctx, key)
		if err != nil {
			return done, err
		}
		defer w.Abort()
		if _, err := io.WriteString(w, "content"); err != nil {
			return done, err
		}
		if err := w.Commit(); err != nil {
			return done, err
		}
		done = append(done, key)
	}
	if _, err := d.Swap(ctx, "m", "", []byte("a b")); err != nil {
		return done, err
	}
	return append(done, "m"), nil
}

// state is what is there, with what is read.
func state(t *testing.T, d dest.Destination) string {
	t.Helper()
	var out []string
	for info, err := range d.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		data, _, err := d.Read(t.Context(), info.Key, "")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Key+"="+string(data))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Every operation of a piece of work, with every fault.
func TestFaults(t *testing.T) {
	t.Parallel()
	d := folder(t)
	counted := desttest.NewFaults(d, nil)
	if _, err := work(t.Context(), counted); err != nil {
		t.Fatal(err)
	}
	ops := counted.Ops()
	var names []string
	for _, op := range ops {
		names = append(names, op.Name+" "+op.Key)
	}
	if got, want := strings.Join(names, ", "), "create a, write a, commit a, create b, write b, commit b, swap m"; got != want {
		t.Fatalf("counted are %s, want %s", got, want)
	}
	steps := []string{"", "", "", "a=content", "a=content", "a=content", "a=content b=content", "a=content b=content m=a b"}
	for _, op := range ops {
		for fault, want := range map[desttest.Fault]struct {
			err  error
			done bool
		}{
			desttest.Fail: {desttest.ErrFault, false}, desttest.Lost: {desttest.ErrFault, true}, desttest.Late: {desttest.ErrFault, false},
			desttest.Short: {desttest.ErrFault, false}, desttest.Full: {dest.ErrFull, false},
			desttest.Crash: {desttest.ErrCrash, false}, desttest.CrashIn: {desttest.ErrCrash, true},
		} {
			t.Run(fmt.Sprintf("%v/%d", op, fault), func(t *testing.T) {
				d := folder(t)
				f := desttest.NewFaults(d, desttest.At(op.N, fault))
				done, err := work(t.Context(), f)
				if !errors.Is(err, want.err) {
					t.Fatalf("the work ended with %v", err)
				}
				expect := steps[op.N-1]
				if want.done {
					expect = steps[op.N]
				}
				if got := state(t, d); got != expect {
					t.Errorf("there is %q, want %q; believed done are %q", got, expect, done)
				}
				if crashed := fault == desttest.Crash || fault == desttest.CrashIn; crashed != f.Crashed() {
					t.Errorf("Crashed: %v", f.Crashed())
				}
				if _, err := f.Stat(t.Context(), "a"); f.Crashed() != errors.Is(err, desttest.ErrCrash) {
					t.Errorf("afterwards: %v", err)
				}
				if len(done) > 0 && expect == "" {
					t.Errorf("believed done are %q", done)
				}
			})
		}
	}
}

// A late operation is done before the operation after the next.
func TestLate(t *testing.T) {
	t.Parallel()
	d := folder(t)
	f := desttest.NewFaults(d, desttest.At(1, desttest.Late))
	if _, err := f.Swap(t.Context(), "m", "", []byte("late")); !errors.Is(err, desttest.ErrFault) {
		t.Fatal(err)
	}
	if _, _, err := f.Read(t.Context(), "m", ""); !errors.Is(err, dest.ErrNotExist) {
		t.Fatalf("the next sees: %v", err)
	}
	if data, _, err := f.Read(t.Context(), "m", ""); err != nil || string(data) != "late" {
		t.Fatalf("the one after sees %q, %v", data, err)
	}
}

// A stalled operation returns when ctx ends.
func TestStall(t *testing.T) {
	t.Parallel()
	f := desttest.NewFaults(folder(t), desttest.At(1, desttest.Stall))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := f.Stat(ctx, "m")
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("it returned with %v", err)
	default:
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
