package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// treeModel checks a relay tree. The truth is what the leaves have committed.
type treeModel struct {
	w      *world
	lost   map[engine.LogID]bool     // the leaf has lost it
	gone   map[string]bool           // origins of leaves that have left
	events map[string]map[change]int // of table every, by root: how often a change came
	fresh  map[string]bool           // roots that have been wiped
	dirty  []*node                   // leaves that have heard of those above since they were checked
	num    int                       // of writes
}

// change is a write of a row.
type change struct {
	cell
	stamp engine.Stamp
}

// shown is what a node has shown of a row.
type shown struct {
	stamp   engine.Stamp
	deleted bool
}

func newTreeModel(w *world) *treeModel {
	return &treeModel{w: w, gone: map[string]bool{}, lost: map[engine.LogID]bool{}, events: map[string]map[change]int{}, fresh: map[string]bool{}}
}

// wiped notes that a node has lost all.
func (m *treeModel) wiped(n *node) {
	if n.leaf() {
		for log := range m.w.model.logs {
			if log.Origin == n.origin() {
				m.lost[log] = true
			}
		}
	}
	m.events[n.id], m.fresh[n.id] = nil, true
	for _, c := range n.kids { // they learn of the new holder
		c.register()
	}
}

// committed looks at what a commit has done.
func (m *treeModel) committed(n *node, t *diskTx, v engine.View) {
	w := m.w
	if n.leaf() {
		n.touch()
		for _, r := range t.resets {
			w.model.reset(n, r.log, r.head)
			m.rewritten(n, r.log, r.head, v)
		}
		for _, a := range t.blocks {
			w.model.appended(n, a.log, a.blocks, v.Schema)
		}
		return
	}
	for _, k := range t.placed {
		m.shown(n, v, k)
	}
	if n.spec.Role != aRoot {
		return
	}
	for _, a := range t.blocks {
		txs, err := decode(a.log, a.blocks, v.Schema)
		if err != nil {
			w.fail("log", "node %s: log %s: %v", n.id, a.log, err)
			return
		}
		if m.events[n.id] == nil {
			m.events[n.id] = map[change]int{}
		}
		for _, tx := range txs {
			for _, x := range tx.writes {
				if x.table != tableOf("every") || x.op == engine.OpTruncate {
					continue
				}
				e := change{cell{x.table, x.key}, x.stamp}
				if m.events[n.id][e]++; m.events[n.id][e] > 1 && x.op == engine.OpPut {
					w.fail("twice", "root %s: the change of %v by %s has come %d times", n.id, e.cell, e.stamp, m.events[n.id][e])
				}
			}
		}
	}
}

// rewritten takes what a leaf has written again as it took an epoch above one that its
// parents held: the newest of what it has written since it had lost all, and nothing else.
func (m *treeModel) rewritten(n *node, log engine.LogID, head engine.Position, v engine.View) {
	l := m.w.model.logs[log]
	tx := &modelTx{prev: l.start, pos: head}
	for _, name := range treeTables {
		table := tableOf(name)
		must(v.Scan(table, nil, func(r *engine.Record) bool {
			if r.Stamp.Log() != log {
				if k := (cell{table, string(r.Key)}); name == "hits" && r.Stamp.Origin == log.Origin && m.w.model.written(k, r.Stamp) == nil {
					// A share that is of a newer epoch now counts for nothing.
					if valueOf(r.Row) != 0 {
						m.w.fail("state", "leaf %s: the share %q by %s is still %d", n.id, k.key, r.Stamp, valueOf(r.Row))
					}
					x := &write{log: r.Stamp.Log(), pos: head, op: engine.OpPut, table: table, key: k.key, row: bytes.Clone(r.Row.Values()), stamp: r.Stamp}
					m.w.model.writes[k] = append(m.w.model.writes[k], x)
				}
				return true
			}
			x := &write{log: log, pos: head, op: engine.OpPut, table: table, key: string(r.Key), row: bytes.Clone(r.Row.Values()), stamp: r.Stamp}
			if r.Deleted {
				x.op, x.row = engine.OpDelete, nil
			}
			var was *write
			base, _ := shareOf(table, x.key)
			for k, ws := range m.w.model.writes {
				if b, _ := shareOf(k.table, k.key); k.table != table || b != base {
					continue
				}
				for _, o := range ws {
					if o.log.Origin == log.Origin && o.log != log && !m.lost[o.log] && (was == nil || o.stamp.Compare(was.stamp) > 0) {
						was = o
					}
				}
			}
			if was == nil || was.op != x.op && !(x.op == engine.OpDelete && m.truncated(table, was)) || name != "hits" && x.op == engine.OpPut && !bytes.Equal(was.row, x.row) {
				m.w.fail("state", "leaf %s: %s/%q is written again by %s, and is not what was written", n.id, name, x.key, x.stamp)
			}
			tx.writes = append(tx.writes, x)
			k := cell{table, x.key}
			m.w.model.writes[k] = append(m.w.model.writes[k], x)
			return true
		}))
	}
	if len(tx.writes) > 0 {
		l.txs = append(l.txs, tx)
		m.w.tracef("%s writes %d rows again in %s", n.id, len(tx.writes), log)
	}
}

// truncated reports whether a write was ended by a truncate of its leaf.
func (m *treeModel) truncated(table engine.TableName, x *write) bool {
	return slices.ContainsFunc(m.w.model.truncs[table], func(t *write) bool {
		return t.stamp.Origin == x.stamp.Origin && t.stamp.Compare(x.stamp) > 0 && !m.lost[t.log]
	})
}

// shareOf takes the epoch off the key of a share; of other tables the key is all.
func shareOf(table engine.TableName, key string) (base string, epoch engine.Epoch) {
	if table != tableOf("hits") {
		return key, 0
	}
	parts, err := engine.DecodeKey([]byte(key))
	must(err)
	last := parts[len(parts)-1]
	n, err := strconv.ParseUint(string(last), 10, 64)
	must(err)
	return strings.TrimSuffix(key, string(engine.AppendKeyValue(nil, last))), engine.Epoch(n)
}

// shown checks that no row goes back, and no deleted one comes back.
func (m *treeModel) shown(n *node, v engine.View, k cell) {
	rec, ok, err := v.Get(k.table, []byte(k.key))
	must(err)
	was, had := n.disk.seen[k]
	switch {
	case !ok:
		if had {
			was.deleted = true
			n.disk.seen[k] = was
		}
		return
	case had && rec.Stamp.Compare(was.stamp) < 0 && !(rec.Stamp.Origin == was.stamp.Origin && rec.Stamp.Epoch > was.stamp.Epoch):
		m.w.fail("back", "node %s: %v goes from %s back to %s, deleted %t", n.id, k, was.stamp, rec.Stamp, rec.Deleted)
	case had && rec.Stamp == was.stamp && was.deleted && !rec.Deleted:
		m.w.fail("back", "node %s: %v by %s was deleted, and is there again", n.id, k, rec.Stamp)
	}
	if x := m.w.model.written(k, rec.Stamp); !rec.Deleted && (x == nil || x.op != engine.OpPut || !bytes.Equal(x.row, rec.Row.Values())) {
		m.w.fail("state", "node %s: %v is there by %s, and nobody has written that", n.id, k, rec.Stamp)
	}
	n.disk.seen[k] = shown{rec.Stamp, rec.Deleted}
}

// check checks what holds at any time.
func (m *treeModel) check() {
	if l := m.w.plan.Tree.Large; l != nil {
		m.checkLarge(l)
		return
	}
	for _, n := range m.w.nodes {
		switch {
		case m.w.failed != nil:
			return
		case n.leaf() && n.up:
			m.checkHeld(n)
		case n.relays():
			m.checkDegree(n)
		}
	}
}

// checkDegree checks that a node has logs and cursors of its children only.
func (m *treeModel) checkDegree(n *node) {
	v := n.disk.Memory.View()
	defer v.Close()
	logs := 0
	for _, l := range v.Logs() {
		if l.ID.Origin != n.origin() {
			logs++
		}
	}
	if own := len(n.peers); logs > own || len(v.Cursors()) > own {
		m.w.fail("degree", "node %s has %d logs and %d cursors of %d children", n.id, logs, len(v.Cursors()), own)
	}
}

// checkHeld checks that those above have what a leaf says that they have.
func (m *treeModel) checkHeld(n *node) {
	l := m.w.model.newest(n.origin())
	if l == nil || m.lost[l.id] {
		return
	}
	holders, _ := n.member.leaf.Holders(l.id)
	for _, h := range m.w.nodes {
		at, ok := holders[h.disk.holder]
		if !ok || at == "" || h.spec.Role != aRoot && !slices.Contains(n.spec.Parents, h.index) {
			continue
		}
		if h.disk.forgotten[l.id] { // it is to read it anew
			continue
		}
		v := h.disk.Memory.View()
		top := map[cell]*write{}
		var ends []*write
		for _, t := range l.txs {
			for _, x := range t.writes {
				if x.op != engine.OpPut {
					ends = append(ends, x)
				}
				if x.op != engine.OpTruncate && engine.CompareNumber(x.pos, at) <= 0 {
					top[cell{x.table, x.key}] = x
				}
			}
		}
		for _, k := range slices.SortedFunc(maps.Keys(top), compareCells) {
			x := top[k]
			rec, ok, err := v.Get(k.table, []byte(k.key))
			must(err)
			gone, over := false, false              // it may have heard of a later delete by another way
			for _, o := range m.w.model.writes[k] { // or have had another leaf's write over it, and have forgotten that leaf
				other := o.log.Origin != x.log.Origin && o.stamp.Compare(x.stamp) > 0
				gone, over = gone || !ok && other, over || other && h.disk.forgot[o.log.Origin]
			}
			for _, e := range ends {
				gone = gone || e.table == k.table && (e.key == k.key || e.op == engine.OpTruncate) && e.stamp.Compare(x.stamp) >= 0
			}
			if over || gone && (!ok || rec.Deleted) || ok && rec.Stamp.Compare(x.stamp) >= 0 {
				continue
			}
			m.w.fail("held", "leaf %s says that %s has its log up to %s, and that has no %v by %s; it has %s", n.id, h.disk.holder, at, k, x.stamp, rec.Stamp)
			break
		}
		v.Close()
	}
}

// want is what every root has to hold: rows, without the shares of epochs that
// leaves have lost.
func (m *treeModel) want() string {
	var all []string
	for k, x := range m.wanted() {
		all = append(all, line(k, x.stamp, x.row))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// wanted is the write of every row that there is to be.
func (m *treeModel) wanted() map[cell]*write {
	ends := map[string]engine.Epoch{} // the epoch of each leaf
	for log := range m.w.model.logs {
		if !m.lost[log] {
			ends[log.Origin] = max(ends[log.Origin], log.Epoch)
		}
	}
	since := map[string]engine.Epoch{} // from which on the shares of a counter count
	for k, ws := range m.w.model.writes {
		if k.table != tableOf("hits") {
			continue
		}
		base, epoch := shareOf(k.table, k.key)
		for _, x := range ws {
			switch {
			case m.lost[x.log]:
			case x.op == engine.OpDelete:
				since[base] = max(since[base], epoch)
			default:
				since[base] = max(since[base], sinceOf(x))
			}
		}
	}
	all := map[cell]*write{}
	for k, ws := range m.w.model.writes {
		var top *write
		base, epoch := shareOf(k.table, k.key)
		for _, x := range ws {
			if (ends[x.log.Origin] == x.log.Epoch || epoch > 0 && !m.lost[x.log]) && (top == nil || x.stamp.Compare(top.stamp) > 0) {
				top = x
			}
		}
		if top == nil || top.op == engine.OpDelete || epoch > 0 && epoch < since[base] || m.empty(k.table, top.stamp, top.row) || epoch == 0 && m.gone[top.log.Origin] {
			continue
		}
		if !m.truncated(k.table, top) {
			all[k] = top
		}
	}
	return all
}

// empty reports whether a share counts for nothing, since it is of a newer epoch now: it
// may be ended as well.
func (m *treeModel) empty(table engine.TableName, s engine.Stamp, row []byte) bool {
	l := m.w.model.newest(s.Origin)
	return table == tableOf("hits") && l != nil && s.Epoch != l.id.Epoch && s.Version.Minor == 0 &&
		valueOf(rowOf(row)) == 0
}

// sinceOf is from which epoch on shares count, as a share says.
func sinceOf(x *write) (e engine.Epoch) {
	row := rowOf(x.row)
	for _, c := range row.Columns() {
		n, _ := strconv.ParseUint(string(c.Value), 10, 64)
		e = engine.Epoch(n)
	}
	return e
}

func line(k cell, s engine.Stamp, row []byte) string {
	return fmt.Sprintf("%s %q %s %q", k.table.Name, k.key, s, row)
}

// has is what a node holds: rows, and the shares of epochs that leaves have lost.
func (m *treeModel) has(n *node) (rows, shares string) {
	v := n.disk.Memory.View()
	defer v.Close()
	var all, old []string
	for _, t := range v.Tables() {
		must(v.Scan(t.Table, nil, func(r *engine.Record) bool {
			switch {
			case r.Deleted || m.empty(t.Table, r.Stamp, r.Row.Values()):
			case m.lost[r.Stamp.Log()] && t.Table == tableOf("hits"):
				old = append(old, line(cell{t.Table, string(r.Key)}, r.Stamp, r.Row.Values()))
			default:
				all = append(all, line(cell{t.Table, string(r.Key)}, r.Stamp, r.Row.Values()))
			}
			return true
		}))
	}
	slices.Sort(all)
	slices.Sort(old)
	return strings.Join(all, "\n"), strings.Join(old, "\n")
}

// differs says what is not as it has to be in the end; empty if nothing.
func (m *treeModel) differs() string {
	want, shares := m.want(), ""
	first := true
	for _, n := range m.w.nodes {
		if n.spec.Role != aRoot {
			continue
		}
		rows, old := m.has(n)
		if rows != want {
			return fmt.Sprintf("root %s differs from what the leaves hold:\n%s", n.id, diff(want, rows))
		}
		// A standby that has more of them than the one that is read is not asked here.
		if !first && old != shares && !m.anyFresh() && !m.w.plan.Tree.Standby {
			return fmt.Sprintf("root %s has other shares of lost epochs:\n%s", n.id, diff(shares, old))
		}
		first, shares = false, old
	}
	return ""
}

// anyFresh reports whether a relay or root has been wiped: shares of lost epochs
// may have gone with it.
func (m *treeModel) anyFresh() bool {
	for _, n := range m.w.nodes {
		if n.relays() && m.fresh[n.id] {
			return true
		}
	}
	return false
}

// done checks what holds in the end.
func (m *treeModel) done() {
	w := m.w
	if d := m.differs(); d != "" {
		w.fail("equal", "%s", d)
		return
	}
	for _, n := range w.nodes {
		if !n.relays() || w.failed != nil {
			continue
		}
		v := n.disk.Memory.View()
		logs := 0
		for _, l := range v.Logs() {
			if l.ID.Origin != n.origin() {
				logs++
			}
		}
		cursors := len(v.Cursors())
		v.Close()
		if !w.plan.Tree.Standby && (logs != len(n.peers) || cursors != len(n.peers)) {
			w.fail("degree", "node %s has %d logs and %d cursors of %d children", n.id, logs, cursors, len(n.peers))
		}
	}
	if w.plan.Tree.Whole {
		m.every()
	}
}

// every checks that every change of table every has come to every root.
func (m *treeModel) every() {
	for _, n := range m.w.nodes {
		if n.spec.Role != aRoot {
			continue
		}
		for _, l := range slices.SortedFunc(maps.Values(m.w.model.logs), func(a, b *modelLog) int { return strings.Compare(a.id.String(), b.id.String()) }) {
			for _, t := range l.txs {
				for _, x := range t.writes {
					e := change{cell{x.table, x.key}, x.stamp}
					if x.table == tableOf("every") && x.op != engine.OpTruncate && m.events[n.id][e] == 0 {
						m.w.fail("every", "root %s: the change of %v by %s has not come", n.id, e.cell, e.stamp)
						return
					}
				}
			}
		}
	}
}

// rowOf is the row with these values.
func rowOf(values []byte) engine.Row {
	return append(binary.AppendUvarint(nil, 1), values...)
}
