package sim

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"testing/synctest"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// Relay trees: what a node of one has beside what a member of a mesh has. Parents
// dial.

// The roles.
const (
	aLeaf  = "leaf"
	aRelay = "relay"
	aRoot  = "root"
)

// The tables of the leaves of a tree. All but shared have the origin in their keys.
var treeTables = []string{"latest", "every", "hits", "shared"}

var treeConflicts = func() *engine.Conflicts {
	c, err := engine.NewConflicts(
		engine.Conflict{Table: tableOf("latest"), Policy: engine.NamespaceByOrigin},
		engine.Conflict{Table: tableOf("every"), Policy: engine.NamespaceByOrigin},
		engine.Conflict{Table: tableOf("hits"), Policy: engine.NamespaceByOrigin, PerEpoch: true},
	)
	must(err)
	return c
}()

// roleIn is what has become of a node of a tree, whatever its lives.
type roleIn struct {
	leaving bool // it writes no more, and goes once the roots have all of it
	gone    bool
	touched bool           // something has come to it since it was tidied up
	dirty   bool           // it is to be checked
	proved  map[string]int // how many transactions of a leaf's log a holder was found to have
	of      engine.LogID   // the log
}

// member is what a node of a tree knows of it, in one life of its process.
type member struct {
	leaf     *relay.Leaf        // of a leaf
	relay    *relay.Reoriginate // of a relay or root
	active   map[string]*peer   // of each branch, where one is read at a time
	left     []*peer            // were read before, until they were gone
	turned   time.Duration      // when another was taken last
	source   *meshSource
	flushing bool
}

func (n *node) leaf() bool   { return n.spec.Role == aLeaf }
func (n *node) relays() bool { return n.spec.Role == aRelay || n.spec.Role == aRoot }

func (n *node) retention() engine.Retention {
	r := engine.Retention{Bytes: int64(n.w.plan.Retain), MaxBytes: 8 * int64(n.w.plan.Retain)}
	if n.leaf() {
		r.Stable = func(log engine.LogID) (engine.Position, bool) { return n.member.leaf.Kept(log) }
	}
	return r
}

// joinTree makes the node what it is in the tree. Its engine is there. It reports
// false if it could not be written.
func (n *node) joinTree(cfg *server.Config) bool {
	t := n.w.plan.Tree
	n.member = &member{active: map[string]*peer{}}
	cfg.AdmitRate = t.Admit
	if n.leaf() {
		n.member.leaf = relay.NewLeaf(n.eng.Comparator)
		n.member.leaf.SetRoots(n.w.rootIDs)
		cfg.Tree = n.member.leaf
		return true
	}
	r, err := relay.New(relay.Config{
		Tables: map[engine.TableName]relay.Delivery{tableOf("every"): relay.All, tableOf("hits"): relay.Counted},
		Window: -1, TombstoneRetention: t.Retention, Conflicts: treeConflicts, Now: n.w.clock,
	})
	must(err)
	n.member.relay = r
	if _, err = n.eng.Record(context.Background(), "relay", r); errors.Is(err, errFull) {
		return false
	}
	must(err)
	cfg.Tree = r.Tree()
	if n.w.plant == headFloor {
		cfg.Tree = plantedTree{r.Tree(), n}
	}
	n.member.source = &meshSource{n: n}
	n.eng.AddSource("mesh", n.member.source, r)
	n.register()
	return true
}

// register names those that read a relay's log.
func (n *node) register() {
	if !n.up || !n.relays() || !n.w.plan.Tree.Readers {
		return
	}
	var above []string
	for _, p := range n.parents() {
		above = append(above, p.disk.holder)
	}
	n.member.relay.SetReaders(above)
}

// parents are those that are to read a node.
func (n *node) parents() (all []*node) {
	for _, i := range n.spec.Parents {
		all = append(all, n.w.nodes[i])
	}
	return all
}

// connectTree makes the peers of every node its children.
func (w *world) connectTree() {
	w.roots, w.rootIDs = nil, nil
	for _, n := range w.nodes {
		n.kids = nil
		if n.spec.Role == aRoot {
			w.roots, w.rootIDs = append(w.roots, n), append(w.rootIDs, n.id)
		}
	}
	for _, n := range w.nodes {
		for _, p := range n.parents() {
			p.kids = append(p.kids, n)
		}
	}
	for _, n := range w.nodes {
		n.connect()
	}
}

// connect makes the peers of a node its children. A leaf that has been assigned
// elsewhere, or has left, stays one until it is forgotten.
func (n *node) connect() {
	all := slices.Clone(n.kids)
	for _, p := range n.peers {
		if p.idle && !slices.Contains(all, p.to) {
			all = append(all, p.to)
		}
	}
	n.setPeers(all)
	for _, p := range n.peers {
		p.idle = !slices.Contains(n.kids, p.to)
	}
	n.register()
}

// assign gives a leaf other parents.
func (n *node) assign(to []int) {
	was := n.parents()
	n.spec.Parents = to
	for _, p := range was {
		if slices.Contains(to, p.index) {
			continue
		}
		p.kids = slices.DeleteFunc(p.kids, func(o *node) bool { return o == n })
		for _, c := range p.peers {
			c.idle = c.idle || c.to == n
		}
		if p.up {
			p.pokeRoute()
		}
	}
	for _, p := range n.parents() {
		if !slices.Contains(was, p) {
			p.kids = append(p.kids, n)
			slices.SortFunc(p.kids, func(a, b *node) int { return a.index - b.index })
			p.connect()
		}
	}
	n.register()
}

// move assigns a leaf to the parents of another branch.
func (n *node) move(branch int) {
	if !n.role.leaving {
		n.assign(n.w.plan.Tree.Branches[branch])
	}
}

// leave makes a leaf write no more, and go for good once the roots have all of it.
func (n *node) leave() {
	if n.role.leaving {
		return
	}
	n.role.leaving = true
	n.goLater()
}

func (n *node) goLater() {
	n.w.after(2*time.Second, func() {
		if l := n.w.model.newest(n.origin()); n.up && !n.dying && l != nil && !n.w.tree.lost[l.id] {
			if at, _ := n.member.leaf.Stable(l.id); at == l.head() {
				n.left()
				return
			}
		}
		n.goLater()
	})
}

// left ends a leaf. Its parents remove its rows.
func (n *node) left() {
	n.w.tracef("%s has left", n.id)
	was := n.parents()
	n.stop(0)
	n.role.gone = true
	n.w.tree.gone[n.origin()] = true
	n.assign(nil)
	for _, p := range was {
		for _, c := range p.peers {
			c.retired = c.retired || c.to == n
		}
	}
}

// collect does what a relay does from time to time.
func (n *node) collect() {
	if !n.up || n.dying || !n.relays() {
		return
	}
	if err := n.eng.Collect(context.Background()); err != nil && !errors.Is(err, errFull) && !n.dying {
		n.w.fail("collect", "node %s: %v", n.id, err)
	}
	if n.w.plant == forgetful {
		n.forgetTombstones()
	}
	for _, p := range n.peers {
		if p.idle && !n.dying {
			n.retire(p)
			n.forget(p)
		}
	}
}

// retire removes the rows of a leaf that has left.
func (n *node) retire(p *peer) {
	for log := range n.logsOf(p) {
		v := n.disk.View()
		done := n.eng.Retired(v, log)
		v.Close()
		if !p.retired || done || n.dying {
			continue
		}
		if err := n.eng.Retire(context.Background(), log); err != nil && !errors.Is(err, errFull) && !n.dying {
			n.w.fail("retire", "node %s: %v", n.id, err)
		}
	}
}

// logsOf are the logs of a peer that the node has a cursor in, the oldest first.
func (n *node) logsOf(p *peer) iter.Seq[engine.LogID] {
	var logs []engine.LogID
	for k := range n.disk.cursors {
		if k.Log.Origin == p.to.origin() {
			logs = append(logs, k.Log)
		}
	}
	slices.SortFunc(logs, func(a, b engine.LogID) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return slices.Values(logs)
}

// forget forgets a leaf that is assigned elsewhere, if all above have what was read
// of it.
func (n *node) forget(p *peer) {
	if !n.intake.Idle(p.to.origin()) {
		return
	}
	var above []string
	for _, o := range slices.Concat(n.w.roots, n.parents()) {
		above = append(above, o.disk.holder)
	}
	for log := range n.logsOf(p) {
		done, err := n.eng.Forget(context.Background(), log, above)
		if err != nil || !done {
			return
		}
		n.w.tracef("%s forgets %s", n.id, log)
		n.intake.Forget(log)
	}
	if n.member.flushing {
		return // more of it may be on its way
	}
	delete(n.intake.Places(), p.to.origin())
	p.idle = false
	n.connect()
}

// reads reports whether what a peer has is read from it.
func (n *node) reads(p *peer) bool {
	if n.member == nil {
		return true
	}
	b := p.to.spec.Branch
	return !p.idle && (!n.w.plan.Tree.Standby || b == "" || n.member.active[b] == p)
}

// failBackAfter is how long a relay that was left, or is preferred, has to be well until it
// is read again, once everything is healed.
const failBackAfter = 10 * time.Second

// turn picks the relay of each branch that is read, as client.Mesh does: another at
// once when that one is gone, and then from the floor. In the end one that was left is read
// for a while, and then the one that is preferred.
func (n *node) turn() {
	if !n.w.plan.Tree.Standby {
		return
	}
	well := func(p *peer) bool {
		l := n.byID[p.to.id]
		return l != nil && l.err == nil && !l.goAway && !l.silent() && len(l.offers()) > 0
	}
	for _, p := range n.peers {
		b := p.to.spec.Branch
		was := n.member.active[b]
		if b == "" || !well(p) || p == was {
			continue
		}
		if was != nil && n.configured(was) && well(was) {
			back := slices.Contains(n.member.left, p) || !slices.ContainsFunc(n.member.left, well) && slices.Index(n.peers, p) < slices.Index(n.peers, was)
			if !back || n.w.now < max(n.w.plan.Length, n.member.turned)+failBackAfter {
				continue
			}
		} else if was != nil {
			n.member.left = append(n.member.left, was)
		}
		n.member.active[b], n.member.turned = p, n.w.now
		n.member.left = slices.DeleteFunc(n.member.left, func(o *peer) bool { return o == p })
		known := false
		for _, o := range n.peers {
			if o == p || o.to.spec.Branch != b || !n.knows(o) {
				continue
			}
			if known = true; was == nil {
				n.member.left = append(n.member.left, o)
			}
		}
		n.w.tracef("%s turns to %s, known %t", n.id, p.to.id, known)
		for _, log := range n.byID[p.to.id].offers() {
			if known {
				n.intake.TakeOver(log)
			}
		}
	}
}

// knows reports whether something was read of a peer's own log.
func (n *node) knows(p *peer) bool {
	for log, place := range n.intake.Places().All() {
		if place.Known && engine.MintedBy(log.Origin, p.to.id) {
			return true
		}
	}
	return false
}

// offers are the logs of its own that a peer offers.
func (l *link) offers() (all []engine.LogID) {
	if !l.machine.Complete() {
		return nil
	}
	for _, o := range l.machine.Offers() {
		if o.Wanted() && len(o.Path) == 1 {
			all = append(all, o.Log)
		}
	}
	return all
}

// flushSoon makes what has come one commit, at the end of the window.
func (n *node) flushSoon(d time.Duration) {
	m := n.member
	if m.flushing {
		return
	}
	m.flushing = true
	n.soon(d+n.w.some(time.Millisecond), func() {
		n.soon(n.w.some(n.slow), func() { m.flushing = false; n.flush() })
	})
}

// flush hands what waits of all children to the engine, together.
func (n *node) flush() {
	type job struct {
		origin string
		batch  []*session.Delivery
		err    error
	}
	var jobs []*job
	var wait time.Duration = -1
	for _, origin := range n.intake.Origins() {
		batch := n.intake.Next(n.w.clock(), origin)
		if batch == nil {
			if due := n.intake.Due(origin); !due.IsZero() && due.After(n.w.clock()) && (wait < 0 || due.Sub(n.w.clock()) < wait) {
				wait = due.Sub(n.w.clock())
			}
			continue
		}
		jobs = append(jobs, &job{origin: origin, batch: batch})
	}
	if len(jobs) == 0 {
		if wait >= 0 {
			n.flushSoon(wait)
		}
		return
	}
	apply := func(j *job) {
		j.err = n.intake.Applier(j.origin).Apply(context.Background(), n.meshFeed, engine.CompareNumber, j.batch)
	}
	var blocks []*job
	for _, j := range jobs {
		if j.batch[0].Kind == session.DeliverBlock {
			blocks = append(blocks, j)
		} else {
			apply(j)
		}
	}
	switch len(blocks) {
	case 0:
	case 1:
		apply(blocks[0])
	default:
		// The first leads, and waits at the store until all are there.
		n.disk.gate = make(chan struct{})
		n.member.source.hold()
		done := make(chan struct{}, len(blocks))
		for _, j := range blocks {
			go func() { apply(j); done <- struct{}{} }()
			synctest.Wait()
		}
		close(n.disk.gate)
		for range blocks {
			<-done
		}
		n.disk.gate = nil
		n.member.source.release()
	}
	if n.dying {
		return
	}
	n.wake()
	n.soon(n.w.some(time.Millisecond), func() {
		for _, j := range jobs {
			if j.err != nil {
				n.w.tracef("%s: log %s: %v", n.id, j.batch[0].Key.Log, j.err)
			}
			if err := n.intake.Done(n.w.clock(), j.origin, j.batch, j.err); err != nil {
				n.w.fail("fatal", "node %s: %v", n.id, err)
			}
		}
		n.flushSoon(0)
	})
}

// plantedTree is what a relay's server needs, with a planted bug.
type plantedTree struct {
	relay.Tree
	n *node
}

// Floor says that everybody has all that there is.
func (t plantedTree) Floor(log engine.LogID, _ string) engine.Position {
	v := t.n.disk.Memory.View()
	defer v.Close()
	info, _ := v.Log(log)
	return info.Head
}

// above returns how far those above have a child's log.
func (n *node) above(child engine.LogID) map[string]engine.Position {
	all := n.member.relay.Acks(child)
	if p := n.intake.Places().Of(child); n.w.plant == headAcks && p != nil {
		for h := range all {
			all[h] = p.Position
		}
	}
	return all
}

// forgetTombstones lets all tombstones go, and remembers nothing of them.
func (n *node) forgetTombstones() {
	tx, err := n.disk.Memory.Begin(context.Background())
	must(err)
	var gone []cell
	for _, t := range tx.Tables() {
		must(tx.Scan(t.Table, nil, func(r *engine.Record) bool {
			if r.Deleted {
				gone = append(gone, cell{t.Table, string(r.Key)})
			}
			return true
		}))
	}
	for _, k := range gone {
		must(tx.Remove(k.table, []byte(k.key)))
		must(tx.Place(n.member.relay.Log(), k.table, []byte(k.key), 0, false))
	}
	must(tx.Commit())
}
