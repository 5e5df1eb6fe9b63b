package relay

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Counters. A counter's table has the conflict policy NamespaceByOrigin at the
// leaves, by epoch: origin and epoch are the last parts of the key, and a row is what
// one leaf has added in one epoch. It is delivered as Counter. Whatever path a row
// takes, and however often, it counts once.

// Share is what one leaf has added to a counter in one epoch.
type Share struct {
	Origin string
	Epoch  engine.Epoch
	// Stamp is that of the last addition, in the epoch. Without the epoch in the key, the share is of
	// all epochs up to it.
	Stamp  engine.Stamp
	Values []string // of the columns asked for; null counts as 0
}

// Counter is a counter of a table: its shares, by origin and epoch, and their sums.
type Counter struct {
	Key    []byte // without origin and epoch
	Totals []string
	Shares []Share
}

// Past returns what is behind the keys of all shares of a counter, to go on from.
func (c *Counter) Past() []byte { return append(slices.Clone(c.Key), 0xff) }

// CounterOf returns the counter with a key, without origin and epoch, if there is one.
func CounterOf(v engine.View, table engine.TableName, key []byte, columns []string) (c Counter, ok bool, err error) {
	err = Counters(v, table, key, columns, func(found Counter) bool {
		c, ok = found, string(found.Key) == string(key)
		return false
	})
	return c, ok, err
}

// Counters calls fn for each counter of a table that has named columns of numbers,
// in the order of their keys, from a key on, until it returns false.
func Counters(v engine.View, table engine.TableName, from []byte, columns []string, fn func(Counter) bool) error {
	var c Counter
	var sums []decimal
	end := func() bool {
		if c.Key == nil {
			return true
		}
		c.Totals = make([]string, len(sums))
		for i := range sums {
			c.Totals[i] = sums[i].String()
		}
		return fn(c)
	}
	var inner error
	err := v.Scan(table, from, func(r *engine.Record) bool {
		if r.Deleted {
			return true
		}
		key, origin, err := splitOrigin(r)
		if err != nil {
			inner = fmt.Errorf("table %s: %w", table, err)
			return false
		}
		if c.Key == nil || string(key) != string(c.Key) {
			if !end() {
				c.Key = nil
				return false
			}
			c, sums = Counter{Key: slices.Clone(key)}, make([]decimal, len(columns))
		}
		s := Share{Origin: origin, Epoch: r.Stamp.Epoch, Stamp: r.Stamp, Values: make([]string, len(columns))}
		for i, name := range columns {
			if s.Values[i], err = number(r, name); err == nil {
				err = sums[i].add(s.Values[i])
			}
			if err != nil {
				inner = fmt.Errorf("table %s: column %s of the share of %s: %w", table, name, origin, err)
				return false
			}
		}
		c.Shares = append(c.Shares, s)
		return true
	})
	if err == nil {
		err = inner
	}
	if err == nil {
		end()
	}
	return err
}

// splitOrigin takes the origin off a row's key, and the epoch.
func splitOrigin(r *engine.Record) (rest []byte, origin string, err error) {
	key := r.Key
	parts, err := engine.DecodeKey(key)
	if err != nil {
		return nil, "", err
	}
	if n := len(parts); r.Schema.Shares() && n > 0 {
		key, parts = key[:len(key)-len(engine.AppendKeyValue(nil, parts[n-1]))], parts[:n-1]
	}
	if len(parts) < 2 {
		return nil, "", fmt.Errorf("its key has no origin: the leaves need the conflict policy %s for it", engine.NamespaceByOrigin)
	}
	last := parts[len(parts)-1]
	return key[:len(key)-len(engine.AppendKeyValue(nil, last))], string(last), nil
}

// number returns a column's value.
func number(r *engine.Record, name string) (string, error) {
	at := slices.IndexFunc(r.Schema.Columns, func(c engine.Column) bool { return c.Name == name })
	for i, c := range r.Row.Columns() {
		if i == at && c.State == engine.Present {
			return string(c.Value), nil
		}
	}
	if at < 0 {
		return "", fmt.Errorf("the table has no such column")
	}
	return "0", nil
}

// decimal is a sum of decimal numbers, exact.
type decimal struct {
	n     big.Int
	scale int
}

func (d *decimal) add(s string) error {
	whole, frac, _ := strings.Cut(s, ".")
	var n big.Int
	if _, ok := n.SetString(whole+frac, 10); !ok {
		return fmt.Errorf("%q is not a number that can be added up", s)
	}
	raise := func(n *big.Int, by int) {
		n.Mul(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(by)), nil))
	}
	switch {
	case len(frac) > d.scale:
		raise(&d.n, len(frac)-d.scale)
		d.scale = len(frac)
	case len(frac) < d.scale:
		raise(&n, d.scale-len(frac))
	}
	d.n.Add(&d.n, &n)
	return nil
}

func (d *decimal) String() string {
	s := new(big.Int).Abs(&d.n).String()
	if d.scale > 0 {
		if len(s) <= d.scale {
			s = strings.Repeat("0", d.scale-len(s)+1) + s
		}
		s = s[:len(s)-d.scale] + "." + s[len(s)-d.scale:]
	}
	if d.n.Sign() < 0 {
		return "-" + s
	}
	return s
}
