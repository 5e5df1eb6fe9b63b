package store

import (
	"bytes"
	"encoding/binary"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// ascents answer reads of rows whose keys come in ascending order, as those of a bulk
// insert do, of an update of a whole table, and of what a relay makes of either. Each
// read of a key by itself looks for it in every memtable and table; one iterator that
// goes along finds the next key that there is, and then knows of all keys up to it that
// they are not there.
//
// They read what the database held when they were made, within the transaction. Until the
// commit that is what it holds, but for the rows of a table number that no root knows:
// these are not read by one.
type ascents struct {
	mu   sync.Mutex // of close: the store may be closed while a transaction is open
	all  [maxAscents]ascent
	turn int // which of them is the next to be of another table
}

const (
	// maxAscents is how many tables can be written in turns.
	maxAscents = 4
	// ascentRun is how many keys have come in order before there is an iterator: it
	// costs about as much as ten reads.
	ascentRun = 32
	// ascentSteps is how many keys it passes one by one before it jumps.
	ascentSteps = 3
	// ascentLook is after how many keys it is asked whether it pays. A jump looks into
	// every level, where a read by itself mostly asks filters.
	ascentLook = 64
	// ascentWorth is how many keys each jump has to be good for.
	ascentWorth = 4
	// maxAscentPause is the most keys that are not tried after it did not pay.
	maxAscentPause = 1 << 16
)

// ascent is where an iterator is in the rows of one table.
type ascent struct {
	table uint32 // 0: none
	last  []byte // asked for last
	run   int    // of keys that have come in order
	it    *pebble.Iterator
	valid bool // it is at a key: the first that is not before one asked for
	lost  bool // it is not known to be before the next: keys have gone back

	asked, jumps int // since it was looked at
	pause, skip  int // keys that are not tried, in all and still
}

// get returns what is at the key of a row, nil where nothing is; ok is false if it
// does not know. The value is valid until the next call.
func (a *ascents) get(db *pebble.DB, key []byte) (v []byte, ok bool, err error) {
	s := a.of(binary.BigEndian.Uint32(key[1:]))
	switch c := bytes.Compare(key, s.last); {
	case c > 0:
		s.run++
		s.last = append(s.last[:0], key...)
	case c < 0:
		s.run, s.lost = 0, true
		s.last = append(s.last[:0], key...)
	}
	switch {
	case s.skip > 0:
		s.skip--
		return nil, false, nil
	case s.run < ascentRun:
		return nil, false, nil
	}
	s.pays()
	if s.skip > 0 {
		return nil, false, nil
	}
	if s.it == nil {
		kr := rangeOf(spaceRow, s.table)
		if s.it, err = db.NewIter(&pebble.IterOptions{LowerBound: kr.from, UpperBound: kr.to}); err != nil {
			return nil, false, err
		}
		s.asked, s.jumps, s.lost = 0, 0, true
	}
	if err := s.to(key); err != nil {
		return nil, false, err
	}
	if !s.valid || !bytes.Equal(s.it.Key(), key) {
		return nil, true, nil
	}
	v, err = s.it.ValueAndErr()
	return v, err == nil, err
}

// of returns the ascent of a table.
func (a *ascents) of(table uint32) *ascent {
	for i := range a.all {
		if a.all[i].table == table {
			return &a.all[i]
		}
	}
	s := &a.all[a.turn]
	a.turn = (a.turn + 1) % maxAscents
	s.close()
	*s = ascent{table: table, last: s.last[:0]}
	return s
}

// to moves to a key, or the first after it.
func (s *ascent) to(key []byte) error {
	s.asked++
	for n := 0; s.lost || s.valid && bytes.Compare(s.it.Key(), key) < 0; n++ {
		if s.lost || n == ascentSteps {
			s.jumps++
			s.valid, s.lost = s.it.SeekGE(key), false
			break
		}
		s.valid = s.it.Next()
	}
	if !s.valid {
		return s.it.Error()
	}
	return nil
}

// pays lets go of an iterator that jumps too often, for a while.
func (s *ascent) pays() {
	if s.asked < ascentLook {
		return
	}
	if s.jumps*ascentWorth <= s.asked {
		s.pause = 0
	} else {
		s.pause = min(max(2*s.pause, 4*ascentLook), maxAscentPause)
		s.skip = s.pause
		s.close()
	}
	s.asked, s.jumps = 0, 0
}

func (s *ascent) close() {
	if s.it != nil {
		_ = s.it.Close()
		s.it = nil
	}
}

// close lets go of what the database held.
func (a *ascents) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.all {
		a.all[i].close()
		a.all[i].run = 0
	}
}
