package storetest

import (
	"fmt"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"pgregory.net/rapid"
)

// machine drives a store and a model through the same random operations.
type machine struct {
	h         *harness
	committed *model
	tx        engine.Tx // nil: none is open
	working   *model    // of tx
	views     []seen
	time      engine.Time
}

// seen is an open view with what it must hold for as long as it is open.
type seen struct {
	view engine.View
	want *model
}

// testRandom compares a store with a model after random operations: every
// view, old ones included, and the open transaction.
func testRandom(t *testing.T, open Open) {
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t, Options{Tombstones: -1})
		m := &machine{h: &harness{t, s}, committed: newModel()}
		defer func() {
			if m.tx != nil {
				m.tx.Rollback()
			}
			for _, v := range m.views {
				v.view.Close()
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		m.h.TB = failing{t, rt}
		rt.Repeat(map[string]func(*rapid.T){
			"write":    m.write,
			"write2":   m.write,
			"write3":   m.write,
			"remove":   m.remove,
			"adopt":    m.adopt,
			"append":   m.append,
			"log":      m.log,
			"meta":     m.meta,
			"trim":     m.trim,
			"drop":     m.drop,
			"commit":   m.commit,
			"rollback": m.rollback,
			"view":     m.view,
		})
		m.commit(rt)
	})
}

// failing is a testing.TB whose failures rapid sees, so that it can shrink them.
type failing struct {
	testing.TB
	rt *rapid.T
}

func (f failing) Fatal(args ...any)                 { f.rt.Fatal(args...) }
func (f failing) Fatalf(format string, args ...any) { f.rt.Fatalf(format, args...) }
func (f failing) Helper()                           {}

var (
	drawKey   = rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "aaaaaaaa", "aaaaaaaa\x00", "aaaaaaaab", "\x00", "zz", "k1", "k2", "k3", "k4", "k5"})
	drawTable = rapid.SampledFrom([]*engine.Schema{schemaA, schemaA, schemaA, schemaB, schema(5, tableA, "id", "more"), schema(6, tableB, "x")})
	drawLog   = rapid.SampledFrom([]engine.LogID{logX, logX, logX8, logY})
	drawSize  = rapid.SampledFrom([]int{0, 3, 20, 100, 300, 900, 5000})
)

func (m *machine) open() engine.Tx {
	if m.tx == nil {
		m.tx, m.working = m.h.begin(), m.committed.clone()
	}
	return m.tx
}

func (m *machine) record(t *rapid.T) engine.Record {
	m.time++
	r := engine.Record{Schema: drawTable.Draw(t, "schema"), Key: []byte(drawKey.Draw(t, "key"))}
	log := drawLog.Draw(t, "log of the stamp")
	r.Stamp = engine.Stamp{
		Time: m.time - engine.Time(rapid.IntRange(0, min(5, int(m.time)-1)).Draw(t, "age")), Origin: log.Origin, Epoch: log.Epoch,
		Version: engine.Version{Major: uint64(m.time) << 20, Minor: uint32(m.time)},
	}
	if r.Deleted = rapid.IntRange(0, 3).Draw(t, "deleted") == 0; !r.Deleted {
		n := drawSize.Draw(t, "size")
		row := fmt.Sprintf("%0*d", max(n, 1), m.time)
		r.Row = engine.Row(row[:n])
	}
	return r
}

func (m *machine) write(t *rapid.T) {
	tx := m.open()
	for range rapid.IntRange(1, 6).Draw(t, "records") {
		r := m.record(t)
		if !rapid.Bool().Draw(t, "merge") {
			m.h.must(tx.Put(&r))
			m.working.put(r)
			continue
		}
		have, ok := m.working.tables[r.Schema.Table][string(r.Key)]
		want := engine.Inserted
		if ok {
			switch same, above := r.Stamp.Origin == have.Stamp.Origin, r.Stamp.Compare(have.Stamp) > 0; {
			case above && same:
				want = engine.Replaced
			case above:
				want = engine.Overwrote
			case same:
				want = engine.Repeated
			default:
				want = engine.Lost
			}
		}
		o, err := tx.Merge(&r)
		m.h.must(err)
		m.h.equal(o, want, "Merge at %s over %s", r.Stamp, have.Stamp)
		if want.Applied() {
			m.working.put(r)
		}
	}
}

func (m *machine) remove(t *rapid.T) {
	s, key := drawTable.Draw(t, "table"), drawKey.Draw(t, "key")
	m.h.must(m.open().Remove(s.Table, []byte(key)))
	delete(m.working.tables[s.Table], key)
}

func (m *machine) adopt(t *rapid.T) {
	tx := m.open()
	table := drawTable.Draw(t, "table").Table
	st := m.h.s.NewStage(table)
	rows := map[string]engine.Record{}
	for range rapid.IntRange(0, 3).Draw(t, "batches") {
		var rs []engine.Record
		for range rapid.IntRange(1, 8).Draw(t, "records") {
			r := m.record(t)
			if r.Schema.Table != table {
				continue
			}
			rs = append(rs, r)
			rows[string(r.Key)] = r
		}
		m.h.must(st.Put(rs))
	}
	if rapid.Bool().Draw(t, "give up") {
		st.Close()
		return
	}
	m.h.must(tx.Adopt(st))
	m.working.tables[table] = rows
}

func (m *machine) append(t *rapid.T) {
	tx, id := m.open(), drawLog.Draw(t, "log")
	l, ok := m.working.logs[id]
	if !ok {
		m.h.fails(tx.Append(id, engine.CompareLSN, blocks(id, "", transaction(id, 1, 1, "k"))...), engine.ErrUnknownLog, "Append to an unknown log")
		return
	}
	var txs []*engine.Transaction
	for range rapid.IntRange(1, 4).Draw(t, "transactions") {
		size, n := drawSize.Draw(t, "size"), rapid.IntRange(0, 4).Draw(t, "changes")
		if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
			size, n = 20<<10, 7
		}
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		txs = append(txs, transaction(id, l.head+1+len(txs), size, keys...))
	}
	bs := blocks(id, position(l.head), txs...)
	cut := rapid.IntRange(0, len(bs)).Draw(t, "blocks in the first call")
	m.h.must(tx.Append(id, engine.CompareLSN, bs[:cut]...))
	m.h.must(tx.Append(id, engine.CompareLSN, bs[cut:]...))
	l.ends = l.ends[:len(l.ends):len(l.ends)]
	for _, b := range bs {
		if b.Last {
			l.ends = append(l.ends, b.Position)
		}
	}
	l.head += len(txs)
	l.time = max(l.time, txs[len(txs)-1].Time)
	l.txs = append(l.txs[:len(l.txs):len(l.txs)], txs...)
	m.working.logs[id] = l
}

func (m *machine) log(t *rapid.T) {
	tx, id := m.open(), drawLog.Draw(t, "log")
	if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
		m.h.must(tx.DropLog(id))
		delete(m.working.logs, id)
		for k := range m.working.cursors {
			if k.Log == id {
				delete(m.working.cursors, k)
			}
		}
		return
	}
	n := rapid.IntRange(0, 20).Draw(t, "head")
	m.h.must(tx.ResetLog(id, engine.CompareLSN, position(n), engine.Time(n)))
	m.working.logs[id] = modelLog{oldest: n, head: n, time: engine.Time(n), complete: engine.Time(n)}
}

// trim lets go of the oldest of a log, and says from when on deletes are known.
func (m *machine) trim(t *rapid.T) {
	tx, id := m.open(), drawLog.Draw(t, "log")
	l, ok := m.working.logs[id]
	if !ok {
		return
	}
	n := rapid.IntRange(l.oldest, l.head).Draw(t, "up to")
	m.h.must(tx.TrimLog(id, 0, engine.LSN(n*0x100).Position())) // never ""
	for len(l.ends) > 0 && engine.CompareLSN(l.ends[0], position(n)) <= 0 {
		for position(l.oldest) != l.ends[0] {
			l.oldest++
			l.txs = l.txs[1:]
		}
		l.ends = l.ends[1:]
	}
	l.complete = engine.Time(rapid.IntRange(0, 50).Draw(t, "complete from"))
	m.h.must(tx.SetCompleteFrom(id, l.complete))
	m.working.logs[id] = l
}

// drop forgets a table.
func (m *machine) drop(t *rapid.T) {
	name := drawTable.Draw(t, "table").Table
	m.h.must(m.open().DropTable(name))
	delete(m.working.tables, name)
	for k := range m.working.truncs {
		if k.table == name {
			m.working.truncs[k] = engine.Stamp{}
		}
	}
}

func (m *machine) meta(t *rapid.T) {
	tx, id, s := m.open(), drawLog.Draw(t, "log"), drawTable.Draw(t, "schema")
	m.time++
	c := engine.Cursor{
		CursorKey: engine.CursorKey{Log: id, Scope: engine.Scope(rapid.SampledFrom([]string{"", "s"}).Draw(t, "scope"))},
		Position:  position(int(m.time)), Time: m.time,
	}
	m.h.must(tx.SetCursor(c))
	m.working.cursors[c.CursorKey] = c
	m.h.must(tx.PutSchema(id, s))
	if m.working.schemas[id] == nil {
		m.working.schemas[id] = map[uint32]*engine.Schema{}
	}
	m.working.schemas[id][s.ID] = s
	k := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "meta")
	if v := rapid.SampledFrom([]string{"", "1", "2", "none"}).Draw(t, "value"); v == "none" {
		m.h.must(tx.SetMeta(k, nil))
		delete(m.working.meta, k)
	} else {
		m.h.must(tx.SetMeta(k, []byte(v)))
		m.working.meta[k] = v
	}
	at := engine.Stamp{Time: m.time, Origin: id.Origin, Epoch: id.Epoch}
	m.h.must(tx.SetTruncated(s.Table, at))
	m.working.truncs[modelTruncate{s.Table, id.Origin}] = at
}

func (m *machine) commit(t *rapid.T) {
	m.open()
	m.working.compare(m.h, m.tx)
	m.h.must(m.tx.Commit())
	m.committed, m.tx = m.working, nil
	m.check(t)
}

func (m *machine) rollback(t *rapid.T) {
	m.open().Rollback()
	m.tx = nil
	m.check(t)
}

// check compares a new view, and every open one.
func (m *machine) check(*rapid.T) {
	v := m.h.s.View()
	m.committed.compare(m.h, v)
	v.Close()
	for _, o := range m.views {
		o.want.compare(m.h, o.view)
	}
}

// view opens a view, or closes one.
func (m *machine) view(t *rapid.T) {
	if len(m.views) < 3 {
		m.views = append(m.views, seen{m.h.s.View(), m.committed})
		return
	}
	i := rapid.IntRange(0, len(m.views)-1).Draw(t, "view")
	m.views[i].view.Close()
	m.views = append(m.views[:i], m.views[i+1:]...)
}
