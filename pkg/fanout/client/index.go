package client

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Text returns a column's value in text form; ok is false for null, and for a
// column that the row does not have.
func Text(r *engine.Record, column string) (value string, ok bool) {
	for i, c := range r.Row.Columns() {
		if i < len(r.Schema.Columns) && r.Schema.Columns[i].Name == column {
			return string(c.Value), c.State == engine.Present
		}
	}
	return "", false
}

// Index finds rows of a table by columns beside its key. It is kept up to date
// until Close, and safe for concurrent use.
type Index struct {
	client  *Client
	table   engine.TableName
	columns []string
	stop    func()

	mu   sync.RWMutex
	keys map[string]map[string]bool // of rows, by their values
}

// Index makes an index of a table by columns. Rows with a null in one of them are
// not in it. Its memory is the columns' values and the keys.
func (c *Client) Index(table engine.TableName, columns ...string) (*Index, error) {
	if len(columns) == 0 {
		return nil, fmt.Errorf("an index of %s needs a column", table)
	}
	x := &Index{client: c, table: table, columns: columns, keys: map[string]map[string]bool{}}
	<-c.watched.turn // no commit between what is there now and what is told
	defer func() { c.watched.turn <- struct{}{} }()
	v := c.engine.View()
	defer v.Close()
	for _, t := range v.Tables() {
		if t.Table != table || t.Schema == nil {
			continue
		}
		for _, name := range columns {
			if !slices.ContainsFunc(t.Schema.Columns, func(col engine.Column) bool { return col.Name == name }) {
				return nil, fmt.Errorf("table %s has no column %q to make an index of", table, name)
			}
		}
	}
	if err := v.Scan(table, nil, func(r *engine.Record) bool {
		if !r.Deleted {
			x.put(r)
		}
		return true
	}); err != nil {
		return nil, err
	}
	x.stop = c.watched.listen(func(old, fresh *engine.Record, _ engine.Position) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if old != nil && old.Schema.Table == table {
			if v, ok := x.valueOf(old); ok {
				if delete(x.keys[v], string(old.Key)); len(x.keys[v]) == 0 {
					delete(x.keys, v)
				}
			}
		}
		if fresh != nil && fresh.Schema.Table == table {
			x.put(fresh)
		}
	})
	return x, nil
}

// Close ends the index.
func (x *Index) Close() { x.stop() }

func (x *Index) put(r *engine.Record) {
	v, ok := x.valueOf(r)
	if !ok {
		return
	}
	if x.keys[v] == nil {
		x.keys[v] = map[string]bool{}
	}
	x.keys[v][string(r.Key)] = true
}

func (x *Index) valueOf(r *engine.Record) (string, bool) {
	var all []byte
	for _, name := range x.columns {
		v, ok := Text(r, name)
		if !ok {
			return "", false
		}
		all = engine.AppendKeyValue(all, v)
	}
	return string(all), true
}

// Lookup returns the rows that have these values, in text form, in the order of
// their keys.
func (x *Index) Lookup(values ...string) ([]engine.Record, error) {
	if len(values) != len(x.columns) {
		return nil, fmt.Errorf("the index of %s has %d columns, and %d values were given", x.table, len(x.columns), len(values))
	}
	var want []byte
	for _, v := range values {
		want = engine.AppendKeyValue(want, v)
	}
	x.mu.RLock()
	keys := make([]string, 0, len(x.keys[string(want)]))
	for k := range x.keys[string(want)] {
		keys = append(keys, k)
	}
	x.mu.RUnlock()
	slices.Sort(keys)
	v, stale := x.client.view()
	defer v.Close()
	var rows []engine.Record
	if stale { // the index is of the client's own rows: there are none yet
		err := v.Scan(x.table, nil, func(r *engine.Record) bool {
			if have, ok := x.valueOf(r); ok && have == string(want) && !r.Deleted {
				rows = append(rows, *keep(r))
			}
			return true
		})
		return rows, err
	}
	for _, k := range keys {
		r, ok, err := v.Get(x.table, []byte(k))
		if err != nil {
			return nil, err
		}
		if ok && !r.Deleted { // and still so: the view can be newer than the index
			if have, ok := x.valueOf(&r); ok && have == string(want) {
				rows = append(rows, *keep(&r))
			}
		}
	}
	return rows, nil
}
