package engine

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Many logs share one store, and a store has one write transaction at a time.
// Callers that come while a commit is under way wait, and are taken together
// into the next: one of them, the leader, applies what each has brought, commits
// once, and answers them all. So a commit costs the same however many logs it is
// of, and nobody waits to make a group larger.
//
// A caller that fails leaves the others alone. If it has written nothing yet, it
// is answered and the group goes on without it. Otherwise the group is rolled
// back, the others are taken again without it, and it is tried by itself: so its
// error is its own.

// Bounds of one group. The bytes are those of one apply of a fan-out client that
// catches up; a durable store takes more than twice as much for the rows and the
// log, and a batch of half its memtable and more costs it far more.
const (
	groupBytes  = 1 << 20
	groupWrites = 4096
)

// write is what one caller wants to be committed.
type write struct {
	ctx  context.Context
	size int // in bytes, about
	// once says that apply can be called only once. Such a write comes last in its
	// group, where only the commit can still fail.
	once bool
	// apply adds to the transaction, and reports whether it has written anything.
	apply func(tx Tx) (wrote bool, err error)
	// committed is called once it is committed, before anyone is told; undone, if
	// what apply wrote is rolled back: apply may be called again then.
	committed, undone func()

	since time.Time     // when it came; only with a window
	alone bool          // it has failed beside others
	turn  chan struct{} // told once: it is answered, or it leads
	leads bool
	over  bool // it is answered, with err
	err   error
}

// group commits writes. It has no goroutine of its own.
type group struct {
	store     Store
	notify    func()        // tells of a commit
	rec       Recorder      // nil, or told of each commit
	own       *source       // of its log
	recording sync.Mutex    // held from its Begin to its end
	window    time.Duration // see Recorder.Window
	bytes     int           // of one group
	why       string        // the recorder's log is to be begun anew; of Engine.mu
	doubted   chan struct{} // told when a peer knows another log than the recorder's
	full      chan struct{} // told when what waits is enough for a group; nil without a window

	mu      sync.Mutex
	led     bool
	waiting []*write // the leader's is among them until it is taken
}

// do commits a write, with whatever else waits. It returns the write's own error.
func (g *group) do(w *write) error {
	w.turn = make(chan struct{}, 1)
	if g.window > 0 {
		w.since = time.Now()
	}
	g.mu.Lock()
	g.waiting = append(g.waiting, w)
	if g.window > 0 && g.enough() {
		select {
		case g.full <- struct{}{}:
		default:
		}
	}
	if !g.led {
		g.led, w.leads = true, true
	}
	leads := w.leads
	g.mu.Unlock()
	if !leads {
		select {
		case <-w.turn:
		case <-w.ctx.Done():
			if g.leave(w) {
				return context.Cause(w.ctx)
			}
			<-w.turn // it is being applied, and its caller's memory is in use
		}
		if w.over {
			return w.err
		}
	}
	g.lead(w)
	return w.err
}

// leave takes a write back that waits, and reports whether it did.
func (g *group) leave(w *write) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, w)
	if i < 0 || w.leads {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// lead commits groups until w is answered, and then passes the lead on.
func (g *group) lead(w *write) {
	for !w.over {
		if g.window > 0 {
			g.gather(w)
		}
		tx, err := g.store.Begin(w.ctx)
		if err != nil {
			g.mu.Lock()
			g.waiting = slices.DeleteFunc(g.waiting, func(o *write) bool { return o == w })
			g.mu.Unlock()
			w.err = err
			break
		}
		runtime.Gosched() // those that the last group has answered may be back already
		g.putBack(g.commit(tx, g.take()))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.led = len(g.waiting) > 0; g.led {
		next := g.waiting[0]
		next.leads = true
		next.turn <- struct{}{}
	}
}

// enough reports whether what waits fills a group. Callers hold g.mu.
func (g *group) enough() bool {
	size := 0
	for _, w := range g.waiting {
		size += w.size
	}
	return size >= g.bytes || len(g.waiting) >= groupWrites
}

// gather waits until the writer that has waited longest has waited for as long as
// the window is, or a group is full.
func (g *group) gather(w *write) {
	g.mu.Lock()
	left := g.window
	for _, o := range g.waiting {
		left = min(left, g.window-time.Since(o.since))
	}
	if g.enough() {
		left = 0
	}
	g.mu.Unlock()
	if left <= 0 {
		return
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.full:
	case <-w.ctx.Done():
	}
}

// take returns the writes of the next group, the one that can be applied only
// once at the end.
func (g *group) take() []*write {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting[0].alone {
		w := g.waiting[0]
		g.waiting = slices.Delete(g.waiting, 0, 1)
		return []*write{w}
	}
	var batch, rest []*write
	var last *write
	size := 0
	for i, w := range g.waiting {
		switch {
		case len(batch) >= groupWrites || i > 0 && size+w.size > g.bytes:
			rest = append(rest, g.waiting[i:]...)
		case w.alone || w.once && last != nil:
			rest = append(rest, w)
			continue
		case w.once:
			last = w
			size += w.size
			continue
		default:
			batch = append(batch, w)
			size += w.size
			continue
		}
		break
	}
	if last != nil {
		batch = append(batch, last)
	}
	g.waiting = rest
	return batch
}

// putBack makes writes wait again, ahead of all others.
func (g *group) putBack(again []*write) {
	if len(again) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(again, g.waiting...)
}

// commit applies a group and commits it. It answers at least one write, and
// returns those that are to be taken again.
func (g *group) commit(tx Tx, batch []*write) (again []*write) {
	defer tx.Rollback()
	defer g.begin(tx)()
	var wrote, idle []*write
	for i, w := range batch {
		if w.ctx.Err() != nil {
			g.answer(w, context.Cause(w.ctx))
			continue
		}
		did, err := w.apply(tx)
		switch {
		case err == nil && did:
			wrote = append(wrote, w)
		case err == nil:
			idle = append(idle, w)
		case !did:
			g.answer(w, err)
		default:
			tx.Rollback()
			g.undo(append(wrote, w))
			again = slices.Concat(wrote, idle, batch[i+1:])
			if w.once || len(batch) == 1 {
				g.answer(w, err)
				return again
			}
			w.alone = true
			return append([]*write{w}, again...)
		}
	}
	if len(wrote) > 0 {
		if err := g.finish(tx); err != nil {
			g.undo(wrote)
			for _, w := range wrote {
				if w.once || len(wrote) == 1 {
					g.answer(w, err)
					continue
				}
				w.alone = true
				again = append(again, w)
			}
			return append(again, idle...)
		}
		for _, w := range wrote {
			w.committed()
		}
		g.notify()
	}
	for _, w := range wrote {
		g.answer(w, nil)
	}
	for _, w := range idle {
		w.committed()
		g.answer(w, nil)
	}
	return nil
}

// begin starts what is to be recorded of a commit; end is called when all is over:
// the store may let the next one begin before the recorder knows of this one's end.
func (g *group) begin(tx Tx) (end func()) {
	if g.rec == nil {
		return func() {}
	}
	g.recording.Lock()
	g.rec.Begin(tx)
	return g.recording.Unlock
}

// finish commits what has been applied, with what is recorded of it.
func (g *group) finish(tx Tx) error {
	if g.rec == nil {
		return tx.Commit()
	}
	if err := g.record(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	g.rec.Committed()
	return nil
}

func (g *group) undo(ws []*write) {
	for _, w := range ws {
		w.undone()
	}
}

// answer tells a write's caller what has become of it.
func (g *group) answer(w *write, err error) {
	w.err, w.over = err, true
	if !w.leads {
		w.turn <- struct{}{}
	}
}
