package engine

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine/ticks"
)

// Retention bounds what a durable store keeps of its logs. A memory store has a
// bound of its own.
type Retention struct {
	// Bytes that the logs may hold, all together. More is kept only while a durable
	// reader has yet to acknowledge it.
	Bytes int64
	// MaxBytes is the limit past which entries go whoever still needs them: the
	// reader is told, and takes a baseline. 0: four times Bytes.
	MaxBytes int64
	// OnFull says what is done at MaxBytes instead; "": the entries go. A store that
	// lives in memory has to hold more than MaxBytes.
	OnFull OnFull
	// Readers is how long a durable reader that says nothing is waited for.
	// 0: 24 hours.
	Readers time.Duration
	// Stable returns of a log up to where it need not be kept, whatever its readers
	// have acknowledged; what is above is kept as if one had yet to read it. ok is false
	// for a log of which its readers decide; nil: of every one.
	Stable func(log LogID) (at Position, ok bool)
}

// The defaults of Retention.
const (
	DefaultRetentionBytes  = 1 << 30
	DefaultReaderRetention = 24 * time.Hour
)

func (r Retention) withDefaults() Retention {
	r.Bytes = cmp.Or(r.Bytes, DefaultRetentionBytes)
	r.MaxBytes = max(cmp.Or(r.MaxBytes, 4*r.Bytes), r.Bytes)
	r.Readers = cmp.Or(r.Readers, DefaultReaderRetention)
	return r
}

// retainEvery is how often the logs of a durable store are trimmed, and its
// readers' acknowledgements are saved.
const retainEvery = time.Second

// retain keeps the logs within their bounds until ctx ends.
func (e *Engine) retain(ctx context.Context) error {
	t := ticks.New(retainEvery)
	defer t.Stop()
	stalled := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		why := ""
		if err := e.store.Stalled(); err != nil {
			why = err.Error()
		}
		switch {
		case (why == "") == (stalled == ""):
		case why != "":
			e.log.Warn("the store is stalled: commits wait, and nothing is lost", "error", why)
		default:
			e.log.Info("the store goes on")
		}
		if stalled = why; stalled != "" {
			continue // trimming would wait too
		}
		if err := e.Trim(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("trimming the logs", "error", err)
		}
	}
}

// Trim lets go of what no durable reader needs, or of what is past the limit,
// and saves what readers have acknowledged since. Run does it every second if the
// store is durable.
func (e *Engine) Trim(ctx context.Context) error {
	v := e.store.View()
	logs := v.Logs()
	v.Close()
	var held int64
	for _, l := range logs {
		held += int64(l.Bytes)
	}
	saves, drops := e.readersToSave()
	if held <= e.retention.MaxBytes {
		e.fill(held)
	}
	if held <= e.retention.Bytes && len(saves) == 0 && len(drops) == 0 {
		return nil
	}
	tx, err := e.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for k, a := range saves {
		r := savedReader{a.Reader, k.key.Log.Origin, k.key.Log.Epoch, k.key.Scope, a.At, TimeOf(a.When)}
		if err := setMeta(tx, k.meta(), r); err != nil {
			return err
		}
	}
	for _, k := range drops {
		if err := tx.SetMeta(k.meta(), nil); err != nil {
			return err
		}
	}
	for _, bound := range []struct {
		bytes int64
		heed  bool
	}{{e.retention.Bytes, true}, {e.retention.MaxBytes, false}} {
		if !bound.heed && e.retention.OnFull == OnFullBlock {
			break
		}
		if err := e.trimTo(ctx, tx, bound.bytes, bound.heed); err != nil {
			return err
		}
	}
	held = 0
	for _, l := range tx.Logs() {
		held += int64(l.Bytes)
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	e.fill(held)
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, a := range saves {
		e.savedAcks[k] = a
	}
	for _, k := range drops {
		delete(e.savedAcks, k)
		delete(e.readers, k)
	}
	e.notify() // what can be served from has changed
	return nil
}

// trimTo trims the largest logs first, so that a busy log does not push out a
// quiet one. With heed, nothing goes that a durable reader has not acknowledged.
func (e *Engine) trimTo(ctx context.Context, tx Tx, bound int64, heed bool) error {
	logs := tx.Logs()
	slices.SortFunc(logs, func(a, b LogInfo) int { return cmp.Compare(a.Bytes, b.Bytes) })
	left := bound
	for i, l := range logs { // each may have an equal part of what smaller logs leave
		share := left / int64(len(logs)-i)
		if int64(l.Bytes) > share {
			floor, needed := e.floor(l.ID)
			upTo := floor
			if !heed || !needed {
				upTo = ""
			} else if floor == "" {
				left = max(0, left-int64(l.Bytes))
				continue // all of it
			}
			if err := tx.TrimLog(l.ID, int(share), upTo); err != nil {
				return err
			}
			compare := e.Comparator(l.ID)
			if now, _ := tx.Log(l.ID); !heed && now.Bytes < l.Bytes && needed && compare(floor, now.Oldest) < 0 {
				level := slog.LevelWarn
				if compare(floor, Gone(tx, l.ID)) < 0 {
					level = slog.LevelDebug // it has been said of this reader
				}
				if err := tx.SetMeta(metaGone+l.ID.String(), []byte(now.Oldest)); err != nil {
					return err
				}
				e.log.Log(ctx, level, "log entries went that a durable reader has yet to read: it has to take a baseline",
					"log", l.ID.String(), "limit", e.retention.MaxBytes, "oldest", string(now.Oldest), "acknowledged", string(floor))
			}
			l, _ = tx.Log(l.ID)
		}
		left = max(0, left-int64(l.Bytes))
	}
	return nil
}

// metaGone is where a store has up to where entries of a log have gone that somebody
// needed.
const metaGone = "gone/"

// Gone returns up to where entries of a log have gone at its limit, before all who
// needed them had read them; empty if none have.
func Gone(v View, log LogID) Position { return Position(v.Meta(metaGone + log.String())) }

// floor returns the lowest position that a durable reader of a log has
// acknowledged; needed is false if there is none.
func (e *Engine) floor(log LogID) (at Position, needed bool) {
	if s := e.retention.Stable; s != nil {
		if at, ok := s(log); ok {
			return at, true
		}
	}
	compare := e.Comparator(log)
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, a := range e.readers {
		if k.key.Log == log && a.Durable && (!needed || compare(a.At, at) < 0) {
			at, needed = a.At, true
		}
	}
	return at, needed
}

// readersToSave returns the durable acknowledgements that have moved since they
// were saved, and the readers that have been silent for too long.
func (e *Engine) readersToSave() (saves map[readerKey]ReaderAck, drops []readerKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	for k, a := range e.readers {
		if !a.Durable {
			continue
		}
		saved, ok := e.savedAcks[k]
		switch {
		case now.Sub(a.When) > e.retention.Readers:
			drops = append(drops, k)
		case !ok || saved.At != a.At || a.When.Sub(saved.When) > e.retention.Readers/8:
			if saves == nil {
				saves = map[readerKey]ReaderAck{}
			}
			saves[k] = a
		}
	}
	return saves, drops
}

// ForgetReader unregisters a durable reader that is gone for good, in all logs:
// nothing is kept for it any more. It reports whether there was one.
func (e *Engine) ForgetReader(ctx context.Context, reader string) (bool, error) {
	e.mu.Lock()
	var keys []readerKey
	for k := range maps.Keys(e.readers) {
		if k.reader == reader {
			keys = append(keys, k)
		}
	}
	e.mu.Unlock()
	if len(keys) == 0 {
		return false, nil
	}
	tx, err := e.store.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	for _, k := range keys {
		if err := tx.SetMeta(k.meta(), nil); err != nil {
			return false, err
		}
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range keys {
		delete(e.readers, k)
		delete(e.savedAcks, k)
	}
	return true, nil
}
