package sim

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// model is what has been committed where it was written: the logs, and every write
// in them. It is as simple as can be.
type model struct {
	w      *world
	logs   map[engine.LogID]*modelLog
	newer  map[string]*modelLog // the newest of each origin
	writes map[cell][]*write
	truncs map[engine.TableName][]*write
	lossy  bool                  // an origin has lost writes that others may have
	stays  map[cell]engine.Stamp // what may not be lost all the same
}

type cell struct {
	table engine.TableName
	key   string
}

type modelLog struct {
	id    engine.LogID
	start engine.Position
	txs   []*modelTx
	at    map[engine.Position]int
}

type modelTx struct {
	prev, pos engine.Position
	time      engine.Time
	writes    []*write
}

// write is one change.
type write struct {
	log   engine.LogID
	pos   engine.Position
	op    engine.Op
	table engine.TableName
	key   string
	row   []byte
	stamp engine.Stamp
}

func newModel(w *world) *model {
	return &model{w: w, logs: map[engine.LogID]*modelLog{}, newer: map[string]*modelLog{}, writes: map[cell][]*write{}, truncs: map[engine.TableName][]*write{}}
}

func (m *model) reset(n *node, log engine.LogID, head engine.Position) {
	if log.Origin != n.origin() {
		if m.logs[log] == nil {
			m.w.fail("log", "node %s holds log %s, which was never minted", n.id, log)
		}
		return
	}
	if m.logs[log] == nil {
		m.w.tracef("%s mints log %s from %s", n.id, log, head)
		l := &modelLog{id: log, start: head, at: map[engine.Position]int{}}
		m.logs[log] = l
		if have := m.newer[log.Origin]; have == nil || have.id.Epoch < log.Epoch {
			m.newer[log.Origin] = l
		}
	}
}

// decode reads whole transactions from blocks.
func decode(log engine.LogID, blocks []*engine.Block, schema func(engine.LogID, uint32) *engine.Schema) (txs []*modelTx, err error) {
	var open *modelTx
	for _, b := range blocks {
		prev := b.Prev
		if len(b.Payload) == 0 { // nothing in the scope
			txs = append(txs, &modelTx{prev: b.Prev, pos: b.Position, time: b.Time})
			continue
		}
		fresh := map[uint32]*engine.Schema{}
		for _, s := range b.Schemas {
			fresh[s.ID] = s
		}
		r := b.Reader(log, func(l engine.LogID, id uint32) *engine.Schema {
			if s := fresh[id]; s != nil && l == log {
				return s
			}
			return schema(l, id)
		})
		for r.Next() {
			if r.IsBegin {
				if b.Part > 0 && open != nil && open.pos == r.Begin.Position {
					continue
				}
				open = &modelTx{prev: prev, pos: r.Begin.Position, time: r.Begin.Time}
				txs = append(txs, open)
				prev = open.pos
				continue
			}
			c := &r.Change
			open.writes = append(open.writes, &write{log: log, pos: open.pos, op: c.Op, table: c.Schema.Table, key: string(c.Key), row: bytes.Clone(c.Row.Values()), stamp: c.Stamp})
		}
		if r.Err() != nil {
			return nil, r.Err()
		}
	}
	return txs, nil
}

// appended takes what a node has appended to a log: where it was minted it is the
// truth, elsewhere it must be it.
func (m *model) appended(n *node, log engine.LogID, blocks []*engine.Block, schema func(engine.LogID, uint32) *engine.Schema) {
	w := m.w
	txs, err := decode(log, blocks, schema)
	if err != nil {
		w.fail("log", "node %s: log %s: %v", n.id, log, err)
		return
	}
	l := m.logs[log]
	if l == nil {
		w.fail("log", "node %s appends to log %s, which was never minted", n.id, log)
		return
	}
	if log.Origin == n.origin() {
		for _, t := range txs {
			if i, ok := l.at[t.pos]; ok { // after a restore, before it knows better
				if !m.lossy {
					w.fail("fork", "node %s mints %s of log %s again", n.id, t.pos, log)
				}
				l.txs, l.at = l.txs[:i], maps.Clone(l.at)
				maps.DeleteFunc(l.at, func(_ engine.Position, j int) bool { return j >= i })
			}
			l.at[t.pos] = len(l.txs)
			l.txs = append(l.txs, t)
			for _, x := range t.writes {
				if x.op == engine.OpTruncate {
					m.truncs[x.table] = append(m.truncs[x.table], x)
				} else {
					k := cell{x.table, x.key}
					m.writes[k] = append(m.writes[k], x)
				}
			}
			w.tracef("%s writes %s at %s: %d changes, time %d", n.id, log, t.pos, len(t.writes), t.time)
		}
		return
	}
	if m.lossy {
		return
	}
	for _, t := range txs {
		m.sameAs(n, l, t)
	}
}

// sameAs checks a transaction that a carrier has applied. One that catches up from
// a state, or is seen through a scope, may stand for several: then it has nothing
// but what was written.
func (m *model) sameAs(n *node, l *modelLog, t *modelTx) {
	i, ok := l.at[t.pos]
	if !ok {
		m.w.fail("log", "node %s: log %s has no transaction at %s", n.id, l.id, t.pos)
		return
	}
	first := i
	for l.txs[first].prev != t.prev {
		if first--; first < 0 {
			m.w.fail("gap", "node %s: log %s goes from %s to %s, and no transaction begins there", n.id, l.id, t.prev, t.pos)
			return
		}
	}
	if first == i && slices.EqualFunc(n.sees(l.txs[i].writes), t.writes, (*write).same) {
		return
	}
	for _, x := range t.writes {
		if x.op != engine.OpTruncate && m.written(cell{x.table, x.key}, x.stamp) == nil {
			m.w.fail("log", "node %s: log %s at %s has a write of %s/%q by %s, which there never was", n.id, l.id, t.pos, x.table, x.key, x.stamp)
			return
		}
	}
}

func (x *write) same(o *write) bool {
	return x.op == o.op && x.table == o.table && x.key == o.key && bytes.Equal(x.row, o.row) && x.stamp == o.stamp
}

// newest returns the newest log of an origin; nil if it has none.
func (m *model) newest(origin string) *modelLog { return m.newer[origin] }

// head is where the log ends.
func (l *modelLog) head() engine.Position {
	if n := len(l.txs); n > 0 {
		return l.txs[n-1].pos
	}
	return l.start
}

// has reports whether cursors cover a write.
func has(cursors map[string]engine.Cursor, x *write) bool {
	c, ok := cursors[x.log.Origin]
	return ok && (c.Log.Epoch > x.log.Epoch || c.Log == x.log && engine.CompareNumber(x.pos, c.Position) <= 0)
}

// check compares a node's state with what the logs say up to its cursors. all says
// that nothing may be missing any more.
func (m *model) check(n *node, all bool) {
	v := n.disk.Memory.View()
	defer v.Close()
	cursors := map[string]engine.Cursor{}
	for k, c := range v.Cursors() {
		if k.Log.Origin != n.origin() && k.Scope != n.scope().ID() && m.w.plant != anyScope {
			if n.wantsOf(k.Log.Origin) {
				return // it has yet to be baselined under its new scope
			}
			continue
		}
		if have, ok := cursors[k.Log.Origin]; !ok || have.Log.Epoch < k.Log.Epoch {
			cursors[k.Log.Origin] = c
		}
	}
	actual := map[cell]engine.Record{}
	for _, t := range v.Tables() {
		must(v.Scan(t.Table, nil, func(r *engine.Record) bool {
			c := *r
			c.Row = slices.Clone(r.Row)
			actual[cell{t.Table, string(r.Key)}] = c
			return true
		}))
	}
	m.checkPolicy(n, actual)
	if m.lossy || !n.up {
		return
	}
	covers := func(x *write) bool { // a peer may have had less of a log than the node wants
		return all || x.log.Origin == n.origin() || slices.Contains(n.meshFeed.Sink.(engine.Covering).Covered(x.log), x.table)
	}
	for _, k := range slices.SortedFunc(maps.Keys(m.writes), compareCells) {
		if !n.wants(k.table) {
			continue
		}
		have, ok := actual[k]
		delete(actual, k)
		if x := m.written(k, have.Stamp); ok && x != nil && has(cursors, x) && !covers(x) {
			continue // it is there, though the cursor no longer says so
		}
		var top *write // of those that the cursors cover
		var over *write
		for _, x := range m.writes[k] {
			if !has(cursors, x) || !covers(x) {
				if over == nil || x.stamp.Compare(over.stamp) > 0 {
					over = x
				}
			} else if top == nil || x.stamp.Compare(top.stamp) > 0 {
				top = x
			}
		}
		switch {
		case top == nil && !ok:
			continue
		case top == nil:
			m.w.fail("state", "node %s: %v is there by %s, and no cursor covers a write of it", n.id, k, have.Stamp)
			return
		case !ok || have.Stamp.Compare(top.stamp) < 0:
			// One that is above it may have been above it already where it came from.
			if over != nil && over.stamp.Compare(top.stamp) > 0 && !all {
				if !ok || m.written(k, have.Stamp) != nil {
					continue
				}
			}
			m.w.fail("state", "node %s: %v was written by %s, which its cursors cover, and it has %s", n.id, k, top.stamp, have.Stamp)
			return
		case have.Stamp != top.stamp:
			m.w.fail("state", "node %s: %v is there by %s, above what its cursors cover, %s", n.id, k, have.Stamp, top.stamp)
			return
		}
		dead := top.op == engine.OpDelete
		for _, t := range m.truncs[k.table] {
			// A truncate that had come stays known where the log is read anew from an earlier place.
			known := has(cursors, t) || have.Deleted && !all
			dead = dead || (covers(t) || have.Deleted) && t.stamp.Origin == top.stamp.Origin && t.stamp.Compare(top.stamp) > 0 && known
		}
		if have.Deleted && !dead && over != nil && over.stamp.Compare(top.stamp) > 0 && !all {
			continue // a baseline of its log lacked it, since where that came from one that is above it had taken its place
		}
		if dead != have.Deleted || !dead && !bytes.Equal(have.Row.Values(), top.row) {
			m.w.fail("state", "node %s: %v by %s is deleted: %t, and should be: %t, or has another row", n.id, k, top.stamp, have.Deleted, dead)
			return
		}
	}
	for k := range actual {
		if !n.wants(k.table) {
			continue // it was read once
		}
		m.w.fail("state", "node %s: %v was never written", n.id, k)
		return
	}
}

// checkPolicy checks that rows are there only by those who may have written them.
func (m *model) checkPolicy(n *node, actual map[cell]engine.Record) {
	if m.w.plan.Policy != engine.OriginOwnsKey {
		return
	}
	for i := range 12 {
		r, ok := actual[cell{tableOf("shared"), string(engine.AppendKeyValue(nil, fmt.Sprint("k", i)))}]
		if owner := m.w.plan.owner(i); ok && r.Stamp.Origin != engine.Origin(owner, "own") {
			m.w.fail("policy", "node %s: k%d is there by %s, and node %s owns it", n.id, i, r.Stamp, owner)
		}
	}
}

// keep notes the newest writes that there are anywhere: none of them may be lost.
func (m *model) keep() {
	m.stays = map[cell]engine.Stamp{}
	for _, n := range m.w.nodes {
		v := n.disk.Memory.View()
		for _, t := range v.Tables() {
			must(v.Scan(t.Table, nil, func(r *engine.Record) bool {
				k := cell{t.Table, string(r.Key)}
				if have, ok := m.stays[k]; !ok || r.Stamp.Compare(have) > 0 {
					m.stays[k] = r.Stamp
				}
				return true
			}))
		}
		v.Close()
	}
}

// kept checks that what was noted is still there, or something newer.
func (m *model) kept() {
	for _, n := range m.w.nodes {
		v := n.disk.Memory.View()
		for k, at := range m.stays {
			r, ok, err := v.Get(k.table, []byte(k.key))
			must(err)
			x := m.written(k, at)
			switch {
			case m.w.failed != nil:
			case !ok || r.Stamp.Compare(at) < 0:
				m.w.fail("kept", "node %s: the write of %v by %s is lost", n.id, k, at)
			case r.Stamp == at && x != nil && r.Deleted != (x.op == engine.OpDelete):
				m.w.fail("kept", "node %s: the row that %s has written of %v is deleted", n.id, at, k)
			}
		}
		v.Close()
	}
}

func (m *model) written(k cell, s engine.Stamp) *write {
	for _, x := range slices.Backward(m.writes[k]) { // mostly it is one of the last
		if x.stamp == s {
			return x
		}
	}
	return nil
}

func compareCells(a, b cell) int {
	return strings.Compare(a.table.Name+"/"+a.key, b.table.Name+"/"+b.key)
}

// behind says what a node lacks of the logs that there are; empty if nothing.
func (m *model) behind(n *node) string {
	for _, o := range m.w.nodes {
		if !o.spec.Writes || !o.up || o != n && !n.wantsOf(o.origin()) {
			continue
		}
		l := m.newest(o.origin())
		if l == nil {
			continue
		}
		head := l.head()
		key := engine.CursorKey{Log: l.id}
		if o != n {
			key.Scope = n.scope().ID()
		}
		if c, ok := n.disk.cursors[key]; !ok || c.Position != head {
			return fmt.Sprintf("node %s is at %q of log %s, whose head is %q", n.id, c.Position, l.id, head)
		}
		for _, t := range o.tables() {
			if t := tableOf(t); o != n && n.wants(t) && n.up && !slices.Contains(n.meshFeed.Sink.(engine.Covering).Covered(l.id), t) {
				return fmt.Sprintf("node %s lacks table %s of log %s", n.id, t, l.id)
			}
		}
	}
	return ""
}

// dump is a node's state in a form that can be compared.
func dump(n *node, only func(engine.TableName) bool) string {
	v := n.disk.Memory.View()
	defer v.Close()
	var b strings.Builder
	for _, t := range v.Tables() {
		if !only(t.Table) {
			continue
		}
		must(v.Scan(t.Table, nil, func(r *engine.Record) bool {
			if n.w.model.lossy && r.Deleted {
				return true
			}
			fmt.Fprintf(&b, "%s %x %s deleted=%t %x\n", t.Table, r.Key, r.Stamp, r.Deleted, r.Row.Values())
			return true
		}))
	}
	return b.String()
}

func (c cell) String() string { return fmt.Sprintf("%s/%q", c.table.Name, c.key) }
