package store

import (
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// After a commit the store keeps within its limits, by commits of its own: each
// removes a bounded number of tombstones, or of old transactions. They need not
// be synced: what a crash undoes is done again.

// houseStep bounds the tombstones that one commit removes.
const houseStep = 4096

// ageEvery is how often tombstones are looked at for their age.
const ageEvery = time.Second

// keepHouse keeps the store within its limits after a transaction was
// published. The caller holds the turn; the transaction's batches are free.
func (p *Pebble) keepHouse(after *diskTx) {
	tables := make([]engine.TableName, 0, len(after.tables))
	if max := p.opts.Tombstones; max > 0 {
		for _, n := range after.tables {
			if n.tombs > max {
				tables = append(tables, n.name)
			}
		}
	}
	now := p.opts.now()
	var old engine.Time
	if r := p.opts.TombstoneRetention; r > 0 && now.Sub(p.aged) >= ageEvery {
		old = engine.TimeOf(now.Add(-r))
	}
	for {
		r := p.current()
		if r.journal <= p.opts.JournalBytes && len(tables) == 0 && old == 0 {
			return
		}
		after.w.reset()
		after.notes.Reset()
		t := p.newTx()
		t.inner = true
		more, err := t.trim(tables, old)
		if err == nil && !t.isEmpty() {
			if err = t.write(pebble.NoSync); err == nil {
				t.publish(false)
			}
		}
		t.end()
		if err != nil {
			if !errors.Is(err, engine.ErrClosed) {
				p.opts.Logger.Warn("store: limits are not kept", "error", p.commitError(err))
			}
			return
		}
		if !more {
			if old != 0 {
				p.aged = now
			}
			return
		}
	}
}

func (t *diskTx) isEmpty() bool {
	return t.w.batch.Empty() && len(t.cuts) == 0 && len(t.drops) == 0 && len(t.logs) == 0 && len(t.tables) == 0
}

// trim removes what is past the limits, some way; more is true if some is left.
func (t *diskTx) trim(tables []engine.TableName, old engine.Time) (more bool, err error) {
	forgotten := map[string]engine.Time{} // newest tombstone let go, by origin
	budget := houseStep
	for _, name := range tables {
		if n := t.root.table(name); n != nil && n.tombs > t.p.opts.Tombstones {
			if err := t.trimTombs(name, n.tombs-t.p.opts.Tombstones, 1<<64-1, &budget, forgotten); err != nil {
				return false, err
			}
		}
	}
	if old != 0 {
		var all []engine.TableName
		t.root.tables.Scan(func(i item[engine.TableName, *diskTable]) bool {
			if i.val.tombs > 0 {
				all = append(all, i.key)
			}
			return true
		})
		for _, name := range all {
			if err := t.trimTombs(name, 1<<62, old, &budget, forgotten); err != nil {
				return false, err
			}
		}
	}
	t.forgot(forgotten)
	for freed := 0; t.root.journal > t.p.opts.JournalBytes; {
		var largest *diskLog
		t.root.logs.Scan(func(i item[engine.LogID, *diskLog]) bool {
			if l := i.val; l.first < l.next && (largest == nil || l.bytes > largest.bytes) {
				largest = l
			}
			return true
		})
		if largest == nil {
			break
		}
		l := t.log(largest.id)
		freed += l.bytes
		if _, err := t.trimOldest(l, ""); err != nil {
			return false, err
		}
		if freed -= l.bytes; freed > 4<<20 {
			return true, nil
		}
	}
	return budget <= 0, nil
}

// trimTombs removes the oldest tombstones of a table: at most n, of those before
// a time.
func (t *diskTx) trimTombs(name engine.TableName, n int, before engine.Time, budget *int, forgotten map[string]engine.Time) (err error) {
	if n = min(n, *budget); n <= 0 {
		return nil
	}
	num := t.root.table(name).num
	kr := rangeOf(spaceTomb, num)
	it, err := t.p.db.NewIter(&pebble.IterOptions{LowerBound: kr.from, UpperBound: kr.to})
	if err != nil {
		return t.p.rowError(err, name, nil)
	}
	defer func() {
		if e := it.Close(); err == nil && e != nil {
			err = t.p.rowError(e, name, nil)
		}
	}()
	for ok := it.First(); ok && n > 0; ok = it.Next() {
		k, v := decoder{b: it.Key()[numberedLen:]}, decoder{b: it.Value()}
		at := engine.Time(uint64(k.be32())<<32 | uint64(k.be32()))
		sh := t.p.shapes.find(v.uvarint())
		if k.bad || !v.done() || sh == nil {
			return t.p.rowError(errDamaged, name, k.b)
		}
		if at >= before {
			break
		}
		table := t.table(name)
		table.tombs--
		t.w.delete(it.Key())
		t.w.key = rowKey(t.w.key[:0], num, k.b)
		t.w.delete(t.w.key)
		forgotten[sh.log.Origin] = max(forgotten[sh.log.Origin], at)
		n--
		*budget--
	}
	return t.p.rowError(it.Error(), name, nil)
}

// forgot raises CompleteFrom past the tombstones that were let go.
func (t *diskTx) forgot(origins map[string]engine.Time) {
	if len(origins) == 0 {
		return
	}
	var late []engine.LogID
	t.root.logs.Scan(func(i item[engine.LogID, *diskLog]) bool {
		if i.val.complete < origins[i.key.Origin] {
			late = append(late, i.key)
		}
		return true
	})
	for _, id := range late {
		t.log(id).complete = origins[id.Origin]
	}
}
