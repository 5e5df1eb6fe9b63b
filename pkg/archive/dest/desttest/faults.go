package desttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Fault is what goes wrong with an operation.
type Fault int

// The faults.
const (
	None    Fault = iota
	Fail          // it is not done, and fails
	Lost          // it is done, and its answer is lost: it fails
	Late          // a swap, commit or delete fails, and is done before the operation after the next, as by a slow store; others fail
	Stall         // it is not done, and does not return before ctx ends
	Short         // a write or a read does half of it, and fails; other operations fail
	Full          // it is not done, and fails with dest.ErrFull
	Crash         // it is not done, and it and all that come after fail, as when the process is killed
	CrashIn       // it is done, or half of it for a write; and it and all that come after fail
)

// What a fault fails with.
var (
	ErrFault = errors.New("a fault that the test has asked for")
	ErrCrash = errors.New("a crash that the test has asked for")
)

// Op is an operation: the call of a method of a destination, or of a Writer or
// reader that it has given (write, commit, abort; stream).
type Op struct {
	N    int // from 1 on
	Name string
	Key  string
}

func (o Op) String() string { return fmt.Sprintf("%d: %s %s", o.N, o.Name, o.Key) }

// At is the plan by which one operation goes wrong.
func At(n int, f Fault) func(Op) Fault {
	return func(o Op) Fault {
		if o.N == n {
			return f
		}
		return None
	}
}

// Faults is a destination whose operations are counted and go wrong as planned. After
// a crash, what the process has begun in the destination below stays as a killed
// process would leave it; the test goes on with that one.
type Faults struct {
	d    dest.Destination
	plan func(Op) Fault

	mu      sync.Mutex
	ops     []Op
	crashed bool
	late    []lateOp
}

type lateOp struct {
	after int
	do    func()
}

var _ dest.Destination = (*Faults)(nil)

// NewFaults wraps a destination. The plan is asked at every operation but abort, one
// at a time; nil: all go well.
func NewFaults(d dest.Destination, plan func(Op) Fault) *Faults {
	if plan == nil {
		plan = At(0, None)
	}
	return &Faults{d: d, plan: plan}
}

// Ops returns the operations so far.
func (f *Faults) Ops() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Op(nil), f.ops...)
}

// Crashed reports whether a crash has come.
func (f *Faults) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// next counts an operation and says what is planned for it.
func (f *Faults) next(name, key string) (Op, Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op := Op{len(f.ops) + 1, name, key}
	if f.crashed {
		return op, Crash
	}
	f.ops = append(f.ops, op)
	for len(f.late) > 0 && f.late[0].after < op.N {
		f.late[0].do()
		f.late = f.late[1:]
	}
	fault := f.plan(op)
	if fault == Late && name != "swap" && name != "commit" && name != "delete" {
		fault = Fail
	}
	if fault == Crash || fault == CrashIn {
		f.crashed = true
	}
	return op, fault
}

// do does an operation as planned. The function is given a context that outlives the
// caller's where the operation is done late.
func (f *Faults) do(ctx context.Context, name, key string, do func(context.Context) error) error {
	op, fault := f.next(name, key)
	return f.fault(ctx, op, fault, do)
}

func (f *Faults) fault(ctx context.Context, op Op, fault Fault, do func(context.Context) error) error {
	cause := ErrFault
	switch fault {
	case None:
		return do(ctx)
	case Stall:
		<-ctx.Done()
		cause = ctx.Err()
	case Lost, CrashIn:
		if err := do(ctx); err != nil {
			return err
		}
	case Late:
		f.mu.Lock()
		f.late = append(f.late, lateOp{op.N + 1, func() { _ = do(context.WithoutCancel(ctx)) }})
		f.mu.Unlock()
	case Full:
		cause = dest.ErrFull
	}
	if fault == Crash || fault == CrashIn {
		cause = ErrCrash
	}
	return &dest.Error{Op: op.Name, Dest: f.d.Describe(), Key: op.Key, Err: cause}
}

// Describe is the wrapped destination's.
func (f *Faults) Describe() string { return f.d.Describe() }

// Check checks.
func (f *Faults) Check(ctx context.Context) error {
	return f.do(ctx, "check", "", f.d.Check)
}

// Create begins an object.
func (f *Faults) Create(ctx context.Context, key string) (dest.Writer, error) {
	var w dest.Writer
	err := f.do(ctx, "create", key, func(ctx context.Context) (err error) {
		w, err = f.d.Create(ctx, key)
		return err
	})
	if err != nil {
		if w != nil {
			w.Abort()
		}
		return nil, err
	}
	return &faultyWriter{f, ctx, key, w, false}, nil
}

type faultyWriter struct {
	f    *Faults
	ctx  context.Context
	key  string
	w    dest.Writer
	late bool
}

func (w *faultyWriter) Write(p []byte) (n int, err error) {
	op, fault := w.f.next("write", w.key)
	if fault == Short || fault == CrashIn {
		p = p[:len(p)/2]
	}
	if fault == Short {
		if n, err = w.w.Write(p); err != nil {
			return n, err
		}
	}
	err = w.f.fault(w.ctx, op, fault, func(context.Context) (err error) {
		n, err = w.w.Write(p)
		return err
	})
	return n, err
}

func (w *faultyWriter) Commit() error {
	op, fault := w.f.next("commit", w.key)
	w.late = fault == Late
	return w.f.fault(w.ctx, op, fault, func(context.Context) error { return w.w.Commit() })
}

// Abort gives up, unless the process has crashed or the commit is to come late.
func (w *faultyWriter) Abort() {
	if !w.late && !w.f.Crashed() {
		w.w.Abort()
	}
}

// Open opens an object.
func (f *Faults) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	var r io.ReadCloser
	err := f.do(ctx, "open", key, func(ctx context.Context) (err error) {
		r, err = f.d.Open(ctx, key, offset)
		return err
	})
	if err != nil {
		if r != nil {
			r.Close()
		}
		return nil, err
	}
	return &faultyReader{f, ctx, key, r}, nil
}

type faultyReader struct {
	f   *Faults
	ctx context.Context
	key string
	io.ReadCloser
}

func (r *faultyReader) Read(p []byte) (n int, err error) {
	op, fault := r.f.next("stream", r.key)
	switch fault {
	case Short:
		if n, err = r.ReadCloser.Read(p[:(len(p)+1)/2]); err != nil {
			return n, err
		}
	case Lost:
		fault = Fail
	case CrashIn:
		fault = Crash
	}
	err = r.f.fault(r.ctx, op, fault, func(context.Context) (err error) {
		n, err = r.ReadCloser.Read(p)
		return err
	})
	return n, err
}

// Read reads a small object.
func (f *Faults) Read(ctx context.Context, key string, have dest.Tag) (data []byte, tag dest.Tag, err error) {
	err = f.do(ctx, "read", key, func(ctx context.Context) (err error) {
		data, tag, err = f.d.Read(ctx, key, have)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return data, tag, nil
}

// Swap swaps. One that is done late is done by whoever does the operation that it
// comes before, so it shares nothing with its caller.
func (f *Faults) Swap(ctx context.Context, key string, old dest.Tag, data []byte) (dest.Tag, error) {
	data = bytes.Clone(data)
	tag := make(chan dest.Tag, 1)
	err := f.do(ctx, "swap", key, func(ctx context.Context) error {
		t, err := f.d.Swap(ctx, key, old, data)
		tag <- t
		return err
	})
	if err != nil {
		return "", err
	}
	return <-tag, nil
}

// Stat looks.
func (f *Faults) Stat(ctx context.Context, key string) (info dest.Info, err error) {
	err = f.do(ctx, "stat", key, func(ctx context.Context) (err error) {
		info, err = f.d.Stat(ctx, key)
		return err
	})
	return info, err
}

// List lists; a fault comes before the first.
func (f *Faults) List(ctx context.Context, prefix string) iter.Seq2[dest.Info, error] {
	return func(yield func(dest.Info, error) bool) {
		if err := f.do(ctx, "list", prefix, func(context.Context) error { return nil }); err != nil {
			yield(dest.Info{}, err)
			return
		}
		f.d.List(ctx, prefix)(yield)
	}
}

// Delete deletes.
func (f *Faults) Delete(ctx context.Context, key string) error {
	return f.do(ctx, "delete", key, func(ctx context.Context) error { return f.d.Delete(ctx, key) })
}
