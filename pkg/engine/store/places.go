package store

import (
	"bytes"
	"cmp"
	"errors"
	"math"

	"github.com/tidwall/btree"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// places are the keys of a memory store's logs that have a place, by place and by
// key.
type places struct {
	byPlace *btree.BTreeG[item[placeOf, placedAt]]
	byKey   *btree.BTreeG[item[placedAt, uint64]]
}

type placeOf struct {
	log   engine.LogID
	place uint64
}

type placedAt struct {
	log   engine.LogID
	table engine.TableName
	key   string
}

func newPlaces() *places {
	return &places{
		byPlace: byKey[placeOf, placedAt](func(a, b placeOf) int {
			return cmp.Or(compareLogs(a.log, b.log), cmp.Compare(a.place, b.place))
		}),
		byKey: byKey[placedAt, uint64](func(a, b placedAt) int {
			return cmp.Or(compareLogs(a.log, b.log), a.table.Compare(b.table), cmp.Compare(a.key, b.key))
		}),
	}
}

func (p *places) copy() *places {
	if p == nil {
		return nil
	}
	return &places{p.byPlace.Copy(), p.byKey.Copy()}
}

func (p *places) set(k placedAt, place uint64) {
	if was, ok := p.byKey.Delete(item[placedAt, uint64]{key: k}); ok {
		p.byPlace.Delete(item[placeOf, placedAt]{key: placeOf{k.log, was.val}})
	}
	if place > 0 {
		p.byKey.Set(item[placedAt, uint64]{k, place})
		p.byPlace.Set(item[placeOf, placedAt]{placeOf{k.log, place}, k})
	}
}

func (p *places) scan(log engine.LogID, after uint64, fn func(uint64, engine.TableName, []byte) bool) {
	if p == nil || after == math.MaxUint64 {
		return
	}
	p.byPlace.Ascend(item[placeOf, placedAt]{key: placeOf{log, after + 1}}, func(i item[placeOf, placedAt]) bool {
		return i.key.log == log && fn(i.key.place, i.val.table, []byte(i.val.key))
	})
}

// drop forgets the places of a log.
func (p *places) drop(log engine.LogID) {
	var all []placedAt
	p.scan(log, 0, func(_ uint64, t engine.TableName, key []byte) bool {
		all = append(all, placedAt{log, t, string(key)})
		return true
	})
	for _, k := range all {
		p.set(k, 0)
	}
}

// Place gives a key a place in a log.
func (t *tx) Place(log engine.LogID, table engine.TableName, key []byte, place uint64, _ bool) error {
	if err := t.failed(); err != nil {
		return err
	}
	if t.root.log(log) == nil {
		return unknownLog(log)
	}
	if t.root.places == nil {
		t.root.places = newPlaces()
	}
	t.root.places.set(placedAt{log, table, string(key)}, place)
	return nil
}

// In a durable store, a place is two entries: by place, and by key.

func placeKey(dst []byte, log uint32, place uint64) []byte {
	return blockKey(dst, spacePlace, log, place)
}

func placedKey(dst []byte, log uint32, table engine.TableName, key []byte) []byte {
	return append(appendTable(numbered(dst, spacePlaced, log), table), key...)
}

// Place gives a key a place in a log.
func (t *diskTx) Place(log engine.LogID, table engine.TableName, key []byte, place uint64, fresh bool) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	l := t.root.log(log)
	if l == nil {
		return unknownLog(log)
	}
	t.by = placedKey(t.by[:0], l.num, table, key)
	if !fresh {
		if err := t.unplace(l, place == 0); err != nil {
			return t.p.logError(err, log, "")
		}
	}
	if place > 0 {
		t.w.key = placeKey(t.w.key[:0], l.num, place)
		t.w.set(t.w.key, t.by[numberedLen:], nil)
		t.w.set(t.by, t.w.key[numberedLen:], nil)
	}
	return t.room()
}

// unplace removes the entry by place of the key whose entry by key is at t.by, and
// that one too if it is to go.
func (t *diskTx) unplace(l *diskLog, both bool) error {
	v, done, err := t.w.get(t.by)
	if err != nil || v == nil {
		return err
	}
	d := decoder{b: v}
	was := uint64(d.be32())<<32 | uint64(d.be32())
	if done != nil {
		_ = done.Close()
	}
	if !d.done() {
		return errDamaged
	}
	t.w.key = placeKey(t.w.key[:0], l.num, was)
	t.w.delete(t.w.key)
	if both {
		t.w.delete(t.by)
	}
	return nil
}

// Places calls fn for each key that has a place in a log after one.
func (v *diskView) Places(log engine.LogID, after uint64, fn func(place uint64, table engine.TableName, key []byte) bool) error {
	if err := v.enter(); err != nil {
		return err
	}
	defer v.leave()
	l := v.root.log(log)
	if l == nil {
		return unknownLog(log)
	}
	if after == math.MaxUint64 {
		return nil
	}
	kr := rangeOf(spacePlace, l.num)
	rows, err := newDBRows(v.edition.snap, kr, placeKey(nil, l.num, after+1), false)
	if err != nil {
		return v.p.logError(err, log, "")
	}
	return v.p.scanPlaces(log, []*placeRows{{rows: rows}}, v.gone, fn)
}

// Places calls fn for each key that has a place in a log after one, as of its
// start.
func (t *diskTx) Places(log engine.LogID, after uint64, fn func(place uint64, table engine.TableName, key []byte) bool) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	l := t.root.log(log)
	if l == nil {
		return unknownLog(log)
	}
	if after == math.MaxUint64 {
		return nil
	}
	kr, start := rangeOf(spacePlace, l.num), placeKey(nil, l.num, after+1)
	layers := []*placeRows{{rows: newOwnRows(t.w, kr, start)}}
	for _, overlay := range []bool{true, false} {
		if overlay && !t.w.overlay {
			continue
		}
		rows, err := newDBRows(t.p.db, kr, start, overlay)
		if err != nil {
			return t.p.logError(err, log, "")
		}
		layers = append(layers, &placeRows{rows: rows})
	}
	t.scanning++
	defer func() { t.scanning-- }()
	return t.p.scanPlaces(log, layers, t.gone, fn)
}

type placeRows struct {
	rows
	live bool
}

// scanPlaces goes through layers of which the first has the newest, and closes
// them.
func (p *Pebble) scanPlaces(log engine.LogID, layers []*placeRows, over func() error, fn func(uint64, engine.TableName, []byte) bool) (err error) {
	defer func() {
		for _, l := range layers {
			err = errors.Join(err, l.close())
		}
		err = p.logError(err, log, "")
	}()
	for _, l := range layers {
		l.live = l.next()
	}
	for {
		var top *placeRows
		for _, l := range layers {
			if l.live && (top == nil || bytes.Compare(l.key(), top.key()) < 0) {
				top = l
			}
		}
		if top == nil {
			return nil
		}
		key := bytes.Clone(top.key())
		v, deleted, err := top.value()
		if err != nil {
			return err
		}
		if !deleted {
			k, d := decoder{b: key[numberedLen:]}, decoder{b: v}
			place, table := uint64(k.be32())<<32|uint64(k.be32()), d.table()
			if !k.done() || d.bad {
				return errDamaged
			}
			if !fn(place, table, d.b) {
				return nil
			}
		}
		if err := over(); err != nil {
			return err
		}
		for _, l := range layers {
			if l.live && bytes.Equal(l.key(), key) {
				l.live = l.next()
			}
		}
	}
}
