package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
)

// A recorder's log, like one that is minted, is begun anew when a peer knows more of
// it than the store holds: the store has gone back. What is in the state stays, and
// gets places in the new log; what children have sent since comes from them again.

// doubt looks at what a peer holds of the recorder's log, and reports whether it is
// more than there is.
func (e *Engine) doubt(peer string, epoch Epoch, t Time) bool {
	g := &e.writes
	if g.rec == nil {
		return false
	}
	v := e.store.View()
	defer v.Close()
	own := e.ownLog()
	info, ok := v.Log(own)
	// A reader that has begun where nothing was says 1: a baseline is of some time.
	if !ok || epoch < own.Epoch || epoch == own.Epoch && t <= max(info.Time, 1) {
		return false
	}
	g.rec.Doubt()
	e.mu.Lock()
	g.why = fmt.Sprintf("peer %s holds epoch %d, time %d of it, and the store epoch %d, time %d", peer, epoch, t, own.Epoch, info.Time)
	e.mu.Unlock()
	select {
	case g.doubted <- struct{}{}:
	default:
	}
	return true
}

// ownLog returns the recorder's log.
func (e *Engine) ownLog() LogID {
	own := e.writes.own
	own.mu.Lock()
	defer own.mu.Unlock()
	return own.own
}

// renewOwn begins the recorder's log anew if it is in doubt.
func (e *Engine) renewOwn(ctx context.Context) error {
	g := &e.writes
	e.mu.Lock()
	why := g.why
	e.mu.Unlock()
	if why == "" {
		return nil
	}
	was := e.ownLog()
	log := LogID{was.Origin, Epoch(e.clock.Next())}
	set := func(id LogID) {
		g.own.mu.Lock()
		g.own.own = id
		g.own.mu.Unlock()
		e.mu.Lock()
		defer e.mu.Unlock()
		l := e.logs[was]
		if l == nil {
			l = e.logs[log]
		}
		delete(e.logs, was)
		delete(e.logs, log)
		e.logs[id], e.sorted = l, nil
	}
	err := g.do(&write{
		ctx: ctx, once: true,
		apply: func(tx Tx) (bool, error) {
			head, at, err := g.rec.Renew(tx, log)
			if err != nil {
				return true, err
			}
			err = cmp.Or(dropLog(tx, was), tx.ResetLog(log, CompareNumber, head, at), tx.SetCompleteFrom(log, never))
			if err == nil {
				err = g.rec.Placed(tx)
			}
			if err != nil {
				return true, err
			}
			set(log)
			e.mu.Lock()
			tables := slices.Clone(e.logs[log].tables)
			e.mu.Unlock()
			return true, g.own.saveLog(tx, log, tables)
		},
		committed: func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			g.why = ""
			maps.DeleteFunc(e.readers, func(k readerKey, _ ReaderAck) bool { return k.key.Log == was })
		},
		undone: func() { set(was) },
	})
	if err == nil {
		e.log.Warn("the node's log has been begun anew", "log", log.String(), "reason", why)
	}
	return err
}

// Forget makes a node that records forget a log that has been assigned elsewhere: its
// rows go without tombstones, and only once those above have all that was read of it.
// It reports whether that was so. Its source is to be taken away first.
func (e *Engine) Forget(ctx context.Context, log LogID, above []string) (done bool, err error) {
	g := &e.writes
	if g.rec == nil {
		return false, fmt.Errorf("log %s: the node has no log of its own, and forgets none", log)
	}
	err = g.do(&write{
		ctx: ctx, once: true,
		apply: func(tx Tx) (bool, error) {
			c, ok := tx.Cursor(CursorKey{Log: log})
			if !ok {
				return false, fmt.Errorf("log %s: %w", log, ErrUnknownLog)
			}
			var err error
			if done, err = g.rec.Forget(tx, log, c.Position, e.Retired(tx, log), above); err != nil || !done {
				return done, err
			}
			return true, dropLog(tx, log)
		},
		committed: func() {
			if !done {
				return
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.logs, log)
			e.sorted = nil
			maps.DeleteFunc(e.readers, func(k readerKey, _ ReaderAck) bool { return k.key.Log == log })
		},
		undone: func() { done = false },
	})
	return done && err == nil, err
}

// Retire removes the rows of a log that are here, wherever the node's own log is read: it
// says of what was read of the log, and of the older epochs of its origin, that nothing
// stands. It is for a node that is gone for good; what one that is not writes from then
// on counts. Shares of counters stay. Nothing may be read of the log meanwhile.
func (e *Engine) Retire(ctx context.Context, log LogID) error {
	g := &e.writes
	if g.rec == nil {
		return fmt.Errorf("log %s: the node has no log of its own, and says of no other what stands", log)
	}
	return g.do(&write{
		ctx: ctx,
		apply: func(tx Tx) (bool, error) {
			c, ok := tx.Cursor(CursorKey{Log: log})
			if !ok {
				return true, fmt.Errorf("log %s: %w", log, ErrUnknownLog)
			}
			if e.Retired(tx, log) {
				return false, nil
			}
			m := merger{gate: gate{conflicts: e.conflicts}, tx: tx, to: g.rec}
			// A moment after what was read, since that may have been said already.
			if err := m.note(&Note{Marks: []Mark{{Log: log, Time: c.Time + 1, Retires: true, Gone: true}}}); err != nil {
				return true, err
			}
			for _, t := range tx.Tables() {
				if g.rec.Shares(t.Table) || t.Schema.Shares() {
					continue
				}
				if err := m.note(&Note{Cover: &Cover{Table: t.Table, Shares: g.rec.Shares(t.Table)}}); err != nil {
					return true, err
				}
			}
			return true, tx.SetMeta(metaRetired+log.String(), []byte(c.Position))
		},
		committed: func() {}, undone: func() {},
	})
}

// Retired reports whether the rows of a log have been removed, up to where it was read:
// see Retire.
func (e *Engine) Retired(v View, log LogID) bool {
	c, ok := v.Cursor(CursorKey{Log: log})
	at := v.Meta(metaRetired + log.String())
	return ok && at != nil && string(at) == string(c.Position)
}
