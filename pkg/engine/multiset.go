package engine

import (
	"fmt"
	"strconv"
)

// The rows of a table without a key are a multiset: equal rows are told apart by
// an ordinal, the last part of their keys. The ordinals of a row that is there n
// times are 0 to n-1: a put takes the next, a delete gives up the last.

// ordinals completes the keys of a run of changes to tables without a key, which
// nothing else comes between. The zero value is ready for use.
type ordinals struct {
	// copies is how often rows are there, by their keys, as far as it was looked up: a
	// change of many equal rows does not search for each.
	copies map[TableName]map[string]int
	known  int
}

// maxOrdinals bounds what is remembered.
const maxOrdinals = 1 << 15

// complete completes the key of a change.
func (o *ordinals) complete(from Rows, c *Change) error {
	of := o.copies[c.Schema.Table]
	n, known := of[string(c.Key)]
	if !known {
		var err error
		if n, err = copies(from, c.Schema.Table, c.Key); err != nil {
			return err
		}
	}
	next := n + 1
	if c.Op == OpDelete {
		if n == 0 {
			return fmt.Errorf("a row of %s is deleted, and the state does not hold it: %w", c.Schema.Table, ErrReBaselineRequired)
		}
		n--
		next = n
	}
	if !known {
		if o.known++; o.known > maxOrdinals || o.copies == nil {
			o.copies, o.known, of = map[TableName]map[string]int{}, 1, nil
		}
		if of == nil {
			of = map[string]int{}
			o.copies[c.Schema.Table] = of
		}
	}
	of[string(c.Key)] = next
	c.Key = WithOrdinal(c.Key, n)
	return nil
}

// forget is told when rows change otherwise.
func (o *ordinals) forget() { o.copies, o.known = nil, 0 }

// SplitOrdinal cuts the ordinal off the key of a row of a table without a key: rows
// that are equal have the rest in common. ok is false for a key that has none.
func SplitOrdinal(key []byte) (row []byte, n int, ok bool) {
	i := len(key) - 2 // where the last part ends
	if i < 2 || key[i] != 0 || key[i+1] != 1 {
		return nil, 0, false
	}
	end := i
	for i > 0 && key[i-1] >= '0' && key[i-1] <= '9' {
		i--
	}
	n, err := strconv.Atoi(string(key[i:end]))
	if err != nil || i == 0 || key[i-1] != 2 {
		return nil, 0, false
	}
	return key[:i-1], n, true
}

// WithOrdinal is the key of the nth of equal rows, from 0, of a table without a key.
// freeOrdinal returns the key of one more copy of a row.
func freeOrdinal(from Rows, table TableName, key []byte) ([]byte, error) {
	n, err := copies(from, table, key)
	return WithOrdinal(key, n), err
}

// WithOrdinal is the key of the nth of equal rows, from 0, of a table without a key.
func WithOrdinal(key []byte, n int) []byte {
	k := append(make([]byte, 0, len(key)+8), key...)
	return AppendKeyValue(k, strconv.Itoa(n))
}

// copies returns how often a row is there: the first ordinal that is free. They
// have no gap, so it is searched for.
func copies(from Rows, table TableName, key []byte) (int, error) {
	is := func(n int) (bool, error) {
		r, ok, err := from.Get(table, WithOrdinal(key, n))
		return ok && !r.Deleted, err
	}
	there, free := 0, 0 // ordinals below there are taken; free is not
	for step := 1; ; step *= 2 {
		free = there + step - 1
		ok, err := is(free)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		there = free + 1
	}
	for there < free {
		mid := (there + free) / 2
		ok, err := is(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			there = mid + 1
		} else {
			free = mid
		}
	}
	return there, nil
}
