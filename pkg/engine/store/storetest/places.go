package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A key has one place in a log; places are read in order, go with the log, and a
// transaction sees its own, however large it is.
func testPlaces(t *testing.T, open Open) {
	h := start(t, open, Options{})
	type key struct {
		table engine.TableName
		key   string
	}
	want := map[engine.LogID]map[key]uint64{logX: {}, logY: {}}
	at := uint64(0)
	r := rand.New(rand.NewPCG(1, 2))
	check := func(v engine.View, when string) {
		h.Helper()
		for log, keys := range want {
			for _, after := range []uint64{0, at / 2, at, 1<<64 - 1} {
				var w, got []string
				for _, k := range slices.SortedFunc(maps.Keys(keys), func(a, b key) int { return int(keys[a]) - int(keys[b]) }) {
					if keys[k] > after {
						w = append(w, fmt.Sprint(keys[k], k.table, k.key))
					}
				}
				h.must(v.Places(log, after, func(place uint64, table engine.TableName, k []byte) bool {
					got = append(got, fmt.Sprint(place, table, string(k)))
					return true
				}))
				h.equal(got, w, "%s: places in %s after %d", when, log, after)
			}
		}
	}
	place := func(tx engine.Tx, n int) {
		h.Helper()
		for range n {
			log := []engine.LogID{logX, logY}[r.IntN(2)]
			k := key{[]engine.TableName{tableA, tableB}[r.IntN(2)], fmt.Sprint("k", r.IntN(40))}
			at++
			to := at
			if r.IntN(5) == 0 {
				to = 0
			}
			h.must(tx.Place(log, k.table, []byte(k.key), to, want[log][k] == 0 && r.IntN(2) == 0))
			if want[log][k] = to; to == 0 {
				delete(want[log], k)
			}
		}
	}
	tx := h.begin()
	h.fails(tx.Place(logX, tableA, []byte("k"), 1, false), engine.ErrUnknownLog, "a place in a log that is not held")
	h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
	h.must(tx.ResetLog(logY, engine.CompareLSN, "", 0))
	place(tx, 50)
	check(tx, "in the transaction")
	h.must(tx.Commit())
	h.view(func(v engine.View) { check(v, "after it") })
	before := h.s.View()
	defer before.Close()
	for i := range 5 {
		was := map[engine.LogID]map[key]uint64{logX: maps.Clone(want[logX]), logY: maps.Clone(want[logY])}
		tx := h.begin()
		place(tx, 30)
		check(tx, "in a later one")
		if i%2 == 0 {
			h.must(tx.Commit())
		} else {
			tx.Rollback()
			want = was
		}
		h.view(func(v engine.View) { check(v, "after a later one") })
	}
	h.commit(func(tx engine.Tx) { // large enough to go to disk before it is committed
		for i := range 2000 {
			h.must(tx.Put(put(fmt.Sprintf("r%04d", i), string(make([]byte, 2000)), engine.Time(i+1))))
			if i%20 == 0 {
				place(tx, 1)
			}
		}
		check(tx, "in a large one")
	})
	h.view(func(v engine.View) { check(v, "after a large one") })
	h.commit(func(tx engine.Tx) {
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
		want[logX] = map[key]uint64{}
		check(tx, "with a log that is reset")
	})
	h.view(func(v engine.View) { check(v, "after a reset") })
	h.commit(func(tx engine.Tx) { h.must(tx.DropLog(logY)) })
	h.view(func(v engine.View) {
		h.fails(v.Places(logY, 0, nil), engine.ErrUnknownLog, "places in a log that was dropped")
	})
	n := 0
	h.must(before.Places(logY, 0, func(uint64, engine.TableName, []byte) bool { n++; return false }))
	h.equal(n, 1, "places that an old view still has, until it is told to stop")
}
