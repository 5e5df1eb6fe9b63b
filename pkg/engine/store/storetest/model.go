package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// model is what a store must hold, kept in plain maps.
type model struct {
	tables  map[engine.TableName]map[string]engine.Record
	logs    map[engine.LogID]modelLog
	schemas map[engine.LogID]map[uint32]*engine.Schema
	cursors engine.Cursors
	truncs  map[modelTruncate]engine.Stamp
	meta    map[string]string
}

type modelLog struct {
	oldest, head   int // transactions, by number
	time, complete engine.Time
	txs            []*engine.Transaction // oldest+1 ... head
	ends           []engine.Position     // of blocks that end transactions
}

type modelTruncate struct {
	table  engine.TableName
	origin string
}

func newModel() *model {
	return &model{
		tables: map[engine.TableName]map[string]engine.Record{}, logs: map[engine.LogID]modelLog{},
		schemas: map[engine.LogID]map[uint32]*engine.Schema{}, cursors: engine.Cursors{},
		truncs: map[modelTruncate]engine.Stamp{}, meta: map[string]string{},
	}
}

func (m *model) clone() *model {
	c := newModel()
	for n, t := range m.tables {
		c.tables[n] = maps.Clone(t)
	}
	for l, s := range m.schemas {
		c.schemas[l] = maps.Clone(s)
	}
	c.logs, c.cursors, c.truncs, c.meta = maps.Clone(m.logs), maps.Clone(m.cursors), maps.Clone(m.truncs), maps.Clone(m.meta)
	return c
}

func (m *model) put(r engine.Record) {
	t := m.tables[r.Schema.Table]
	if t == nil {
		t = map[string]engine.Record{}
		m.tables[r.Schema.Table] = t
	}
	t[string(r.Key)] = r
}

// compare fails unless a view holds exactly what the model does.
func (m *model) compare(h *harness, v engine.View) {
	h.Helper()
	names := slices.SortedFunc(maps.Keys(m.tables), func(a, b engine.TableName) int {
		return strings.Compare(a.Schema+"\x00"+a.Name, b.Schema+"\x00"+b.Name)
	})
	var infos []string
	for _, i := range v.Tables() {
		infos = append(infos, fmt.Sprint(i.Table, i.Rows, i.Tombstones, i.Bytes))
	}
	var want []string
	for _, n := range names {
		live, dead, size := 0, 0, 0
		for _, r := range m.tables[n] {
			if r.Deleted {
				dead++
			} else {
				live++
				size += len(r.Key) + len(r.Row)
			}
		}
		want = append(want, fmt.Sprint(n, live, dead, size))
		m.compareTable(h, v, n)
	}
	h.equal(infos, want, "tables")
	m.compareLogs(h, v)
	h.equal(v.Cursors(), m.cursors, "cursors")
	for k, c := range m.cursors {
		got, ok := v.Cursor(k)
		h.equal(ok, true, "Cursor of %v", k)
		h.equal(got, c, "cursor of %v", k)
	}
	for l, ss := range m.schemas {
		ids := slices.Sorted(maps.Keys(ss))
		var got []uint32
		for _, s := range v.Schemas(l) {
			got = append(got, s.ID)
			h.equal(s.Fingerprint(), ss[s.ID].Fingerprint(), "schema %d of %s", s.ID, l)
		}
		h.equal(got, ids, "schemas of %s", l)
	}
	meta := map[string]string{}
	v.ScanMeta("", func(k string, val []byte) bool { meta[k] = string(val); return true })
	h.equal(meta, m.meta, "meta")
	for k, s := range m.truncs {
		h.equal(v.Truncated(k.table, k.origin), s, "truncate of %s by %s", k.table, k.origin)
	}
}

func (m *model) compareTable(h *harness, v engine.View, n engine.TableName) {
	h.Helper()
	keys := slices.Sorted(maps.Keys(m.tables[n]))
	from := 0
	for {
		i := from
		start := []byte(nil)
		if from > 0 {
			start = []byte(keys[from])
		}
		h.must(v.Scan(n, start, func(r *engine.Record) bool {
			if i >= len(keys) || !same(r, m.tables[n][keys[i]]) {
				h.Fatalf("table %s: record %d from %q is %q at %s, want %q of %q", n, i, start, r.Key, r.Stamp, keys[min(i, len(keys)-1)], keys)
			}
			i++
			return true
		}))
		if i != len(keys) {
			h.Fatalf("table %s: a Scan from %q ends after %d records of %d", n, start, i-from, len(keys)-from)
		}
		if from += 1 + len(keys)/3; from >= len(keys) {
			break
		}
	}
	for _, k := range keys {
		r, ok, err := v.Get(n, []byte(k))
		h.must(err)
		if !ok || !same(&r, m.tables[n][k]) {
			h.Fatalf("table %s: Get of %q gave %v, found %v", n, k, r, ok)
		}
	}
}

func same(a *engine.Record, b engine.Record) bool {
	return a.Deleted == b.Deleted && a.Stamp == b.Stamp && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Row, b.Row) &&
		a.Schema != nil && a.Schema.ID == b.Schema.ID && a.Schema.Fingerprint() == b.Schema.Fingerprint()
}

func (m *model) compareLogs(h *harness, v engine.View) {
	h.Helper()
	h.equal(len(v.Logs()), len(m.logs), "logs")
	for _, i := range v.Logs() {
		l, ok := m.logs[i.ID]
		h.equal(ok, true, "log %s", i.ID)
		h.equal(v.LogsOf(i.ID.Origin), slices.DeleteFunc(v.Logs(), func(o engine.LogInfo) bool { return o.ID.Origin != i.ID.Origin }), "logs of %s", i.ID.Origin)
		changes := 0
		for _, t := range l.txs {
			changes += len(t.Changes)
		}
		h.equal([]any{i.Oldest, i.Head, i.Time, i.Changes, i.CompleteFrom}, []any{position(l.oldest), position(l.head), l.time, changes, l.complete}, "log %s", i.ID)
		want := script(i.ID, l.txs)
		for n := l.oldest; n <= l.head; n++ {
			for _, maxBytes := range []int{1, 1 << 20} {
				if got := h.read(v, i.ID, position(n), maxBytes); !slices.Equal(got, flat(want[n-l.oldest:])) {
					h.Fatalf("log %s after transaction %d: got %d records, want %d", i.ID, n, len(got), len(flat(want[n-l.oldest:])))
				}
			}
		}
	}
}
