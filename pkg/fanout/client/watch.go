package client

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// watchedStore tells listeners what each commit changes, in the order of
// commits, before the next may begin.
type watchedStore struct {
	engine.Store
	turn chan struct{} // holds a token: the right to write and then to tell

	mu        sync.Mutex
	listeners []*listener // copied on write
}

type listener struct {
	fn func(old, fresh *engine.Record, at engine.Position)
}

func watch(s engine.Store) *watchedStore {
	w := &watchedStore{Store: s, turn: make(chan struct{}, 1)}
	w.turn <- struct{}{}
	return w
}

func (w *watchedStore) listen(fn func(old, fresh *engine.Record, at engine.Position)) (stop func()) {
	l := &listener{fn}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners = append(slices.Clip(w.listeners), l)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listeners = slices.DeleteFunc(slices.Clone(w.listeners), func(o *listener) bool { return o == l })
	}
}

func (w *watchedStore) all() []*listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listeners
}

// Begin waits for the turn, and for the listeners of the commit before.
func (w *watchedStore) Begin(ctx context.Context) (engine.Tx, error) {
	select {
	case <-w.turn:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	tx, err := w.Store.Begin(ctx)
	if err != nil {
		w.turn <- struct{}{}
		return nil, err
	}
	return &watchedTx{Tx: tx, store: w, quiet: len(w.all()) == 0}, nil
}

// watchedTx notes what is written.
type watchedTx struct {
	engine.Tx
	store   *watchedStore
	quiet   bool // nobody has listened as it began: its changes are not noted
	over    bool
	changes []change
	at      engine.Position
}

type change struct{ old, fresh *engine.Record }

// before returns the live row at a key, or nil.
func (t *watchedTx) before(table engine.TableName, key []byte) (*engine.Record, error) {
	if t.quiet {
		return nil, nil
	}
	old, ok, err := t.Get(table, key)
	if err != nil || !ok || old.Deleted {
		return nil, err
	}
	return keep(&old), nil
}

func (t *watchedTx) note(old, fresh *engine.Record) {
	if fresh != nil && fresh.Deleted {
		fresh = nil
	}
	if t.quiet || (old == nil && fresh == nil) || (old != nil && fresh != nil && sameRow(old, fresh)) {
		return
	}
	if fresh != nil {
		fresh = keep(fresh)
	}
	t.changes = append(t.changes, change{old, fresh})
}

func sameRow(a, b *engine.Record) bool {
	return (a.Schema == b.Schema || a.Schema.Fingerprint() == b.Schema.Fingerprint()) && bytes.Equal(a.Row.Values(), b.Row.Values())
}

func (t *watchedTx) Put(r *engine.Record) error {
	old, err := t.before(r.Schema.Table, r.Key)
	if err != nil {
		return err
	}
	if err := t.Tx.Put(r); err != nil {
		return err
	}
	t.note(old, r)
	return nil
}

func (t *watchedTx) Merge(r *engine.Record) (engine.Outcome, error) {
	old, err := t.before(r.Schema.Table, r.Key)
	if err != nil {
		return 0, err
	}
	o, err := t.Tx.Merge(r)
	if o.Applied() {
		t.note(old, r)
	}
	return o, err
}

func (t *watchedTx) Remove(table engine.TableName, key []byte) error {
	old, err := t.before(table, key)
	if err != nil {
		return err
	}
	if err := t.Tx.Remove(table, key); err != nil {
		return err
	}
	t.note(old, nil)
	return nil
}

// Adopt replaces a table: rows of the stage are new or changed, rows that it
// lacks are gone.
func (t *watchedTx) Adopt(s engine.Stage) error {
	if t.quiet {
		return t.Tx.Adopt(s)
	}
	var failed error
	err := s.Scan(nil, func(r *engine.Record) bool {
		var old *engine.Record
		if old, failed = t.before(s.Table(), r.Key); failed != nil {
			return false
		}
		t.note(old, r)
		return true
	})
	if err == nil && failed == nil {
		err = t.Scan(s.Table(), nil, func(r *engine.Record) bool {
			var ok bool
			if _, ok, failed = s.Get(r.Key); failed != nil {
				return false
			}
			if !ok && !r.Deleted {
				t.note(keep(r), nil)
			}
			return true
		})
	}
	if err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	return t.Tx.Adopt(s)
}

func (t *watchedTx) SetCursor(c engine.Cursor) error {
	t.at = c.Position
	return t.Tx.SetCursor(c)
}

// Commit commits, and then tells. A listener that has come since the transaction
// began is told too: what it reads may be from before.
func (t *watchedTx) Commit() error {
	var before engine.View
	if t.quiet && !t.over {
		before = t.store.View()
		defer before.Close()
	}
	err := t.Tx.Commit()
	if t.over {
		return err
	}
	t.over = true
	defer func() { t.store.turn <- struct{}{} }()
	if err != nil {
		return err
	}
	listeners := t.store.all()
	if t.quiet && len(listeners) > 0 {
		t.quiet = false
		after := t.store.View()
		err := t.compare(before, after)
		after.Close()
		if err != nil {
			return err
		}
	}
	for _, l := range listeners {
		for _, c := range t.changes {
			l.fn(c.old, c.fresh, t.at)
		}
	}
	return nil
}

// compare notes what differs between the views before and after the commit.
func (t *watchedTx) compare(before, after engine.View) error {
	live := func(v engine.View, r *engine.Record) (*engine.Record, error) {
		have, ok, err := v.Get(r.Schema.Table, r.Key)
		if err != nil || !ok || have.Deleted {
			return nil, err
		}
		return keep(&have), nil
	}
	var failed error
	scan := func(v engine.View, fn func(r *engine.Record) error) {
		for _, table := range v.Tables() {
			err := v.Scan(table.Table, nil, func(r *engine.Record) bool {
				if !r.Deleted && failed == nil {
					failed = fn(r)
				}
				return failed == nil
			})
			if failed == nil {
				failed = err
			}
		}
	}
	scan(before, func(r *engine.Record) error {
		fresh, err := live(after, r)
		if err == nil && fresh == nil {
			t.note(keep(r), nil)
		}
		return err
	})
	scan(after, func(r *engine.Record) error {
		old, err := live(before, r)
		if err == nil {
			t.note(old, r)
		}
		return err
	})
	return failed
}

func (t *watchedTx) Rollback() {
	t.Tx.Rollback()
	if !t.over {
		t.over = true
		t.store.turn <- struct{}{}
	}
}
