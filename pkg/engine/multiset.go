package engine

import (
	"fmt"
	"strconv"
)

// The rows of a table without a key are a multiset: equal rows are told apart by
// an ordinal, the last part of their keys. The ordinals of a row that is there n
// times are 0 to n-1: a put takes the next, a delete gives up the last.

// ordinal completes the key of a change to a table without a key.
func ordinal(from rows, c *Change) error {
	n, err := copies(from, c.Schema.Table, c.Key)
	if err != nil {
		return err
	}
	if c.Op == OpDelete {
		if n == 0 {
			return fmt.Errorf("a row of %s is deleted, and the state does not hold it: %w", c.Schema.Table, ErrReBaselineRequired)
		}
		n--
	}
	c.Key = withOrdinal(c.Key, n)
	return nil
}

// freeOrdinal returns the key of one more copy of a row.
func freeOrdinal(from rows, table TableName, key []byte) ([]byte, error) {
	n, err := copies(from, table, key)
	return withOrdinal(key, n), err
}

func withOrdinal(key []byte, n int) []byte {
	k := append(make([]byte, 0, len(key)+8), key...)
	return AppendKeyValue(k, strconv.Itoa(n))
}

// copies returns how often a row is there: the first ordinal that is free. They
// have no gap, so it is searched for.
func copies(from rows, table TableName, key []byte) (int, error) {
	is := func(n int) (bool, error) {
		r, ok, err := from.Get(table, withOrdinal(key, n))
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
