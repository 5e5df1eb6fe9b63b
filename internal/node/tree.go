package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/ticks"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// relayLog is the name under which a relay mints its log.
const relayLog = "relay"

// metaLife is where a store has the life of its node: see relay.Holder.
const metaLife = "node/life"

// children is a children source with its wiring.
type children struct {
	name   string
	source *client.Mesh

	mu    sync.Mutex
	wired map[string]nodeconfig.Child // by id
	above bool                        // it is known who is above
}

// leaf is the node as a leaf of a tree.
type leaf struct {
	known  *relay.Leaf
	dialer *client.Dialer
}

// joinTree makes the node what the configuration says it is in a relay tree. The
// engine is there, and has no sources yet.
func (n *node) joinTree(conflicts *engine.Conflicts) (err error) {
	if n.cfg.Relay == nil && n.cfg.Parents == nil && !reads(n.cfg) {
		return nil
	}
	if n.holder, err = n.life(); err != nil {
		return err
	}
	if err = n.reoriginate(conflicts); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if p := n.cfg.Parents; p != nil {
		cfg := client.Config{
			NodeID: n.cfg.Node.ID, Name: "parents", Logger: n.log, Software: "tributary " + version.String(), Serve: n.join,
		}
		if err := n.secureDialling(&cfg, p.TLS, p.TokenFile); err != nil {
			return fmt.Errorf("parents: %w", err)
		}
		if n.leaf.dialer, err = client.NewDialer(cfg); err != nil {
			return fmt.Errorf("parents: %w", err)
		}
	}
	return nil
}

// reoriginate makes a relay or a root serve what it takes in in one log of its own.
func (n *node) reoriginate(conflicts *engine.Conflicts) (err error) {
	if n.cfg.Relay == nil && n.cfg.Root == nil {
		return nil
	}
	cfg := relay.Config{
		Tables: map[engine.TableName]relay.Delivery{}, TombstoneRetention: n.cfg.Storage.Tombstones.Retention, Conflicts: conflicts,
		Window: -1, MaxPending: nodeconfig.DefaultRelayMaxPending, // of a root: what comes has been gathered below
	}
	if r := n.cfg.Relay; r != nil {
		cfg.Window, cfg.MaxPending, cfg.KeepOlder = r.Window, int(r.MaxPending), r.OnReset == nodeconfig.RowsKeep
	} else {
		cfg.KeepOlder = n.cfg.Root.OnReset == nodeconfig.RowsKeep
	}
	for _, t := range n.cfg.Delivered() {
		cfg.Tables[tableOf(t)] = deliveryOf(t.Delivery)
	}
	if n.relay, err = relay.New(cfg); err != nil {
		return err
	}
	_, err = n.engine.Record(context.Background(), relayLog, n.relay)
	return err
}

func tableOf(t nodeconfig.RelayTable) engine.TableName {
	return engine.TableName{Schema: t.Schema, Name: t.Name}
}

// counters are the columns that add up, of the tables that are counters.
func (n *node) counters() map[engine.TableName][]string {
	all := map[engine.TableName][]string{}
	for _, t := range n.cfg.Delivered() {
		if len(t.Columns) > 0 {
			all[tableOf(t)] = t.Columns
		}
	}
	return all
}

func reads(c *nodeconfig.Config) bool {
	for i := range c.Sources {
		if c.Sources[i].Children != nil {
			return true
		}
	}
	return false
}

func deliveryOf(d string) relay.Delivery {
	switch d {
	case nodeconfig.DeliverAll:
		return relay.All
	case nodeconfig.DeliverCounter:
		return relay.Counted
	}
	return relay.Latest
}

// life names this life of the node: it goes on as long as its store does.
func (n *node) life() (string, error) {
	v := n.store.View()
	saved := string(v.Meta(metaLife))
	v.Close()
	if saved != "" {
		return saved, nil
	}
	saved = relay.Holder(n.cfg.Node.ID, engine.Epoch(engine.TimeOf(time.Now())))
	tx, err := n.store.Begin(context.Background())
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	if err := tx.SetMeta(metaLife, []byte(saved)); err != nil {
		return "", err
	}
	return saved, tx.Commit()
}

// retention is how long the node keeps its logs. A leaf keeps its own for the roots, and
// so does a relay with tables of which every change is delivered.
func (n *node) retention() engine.Retention {
	j := &n.cfg.Storage.Journal
	r := engine.Retention{Bytes: int64(j.MaxBytes), MaxBytes: int64(j.LimitBytes), Readers: j.ReaderRetention}
	limit, onFull := n.cfg.KeptLog()
	if limit == 0 {
		return r
	}
	r.Bytes, r.MaxBytes, r.OnFull = min(r.Bytes, int64(limit)/2), int64(limit), engine.OnFull(onFull)
	r.Stable = func(log engine.LogID) (engine.Position, bool) {
		switch {
		case !engine.MintedBy(log.Origin, n.cfg.Node.ID):
			return "", false
		case n.relay != nil:
			return n.relay.Kept(log)
		}
		return n.leaf.known.Kept(log)
	}
	return r
}

// blockRoom is how much larger than its limit the store lets a log grow that is written
// no more: what was on its way is taken.
const blockRoom = 4

// childrenSource makes a source of its configuration. It has no children until the
// wiring has been read.
func (n *node) childrenSource(s *nodeconfig.Source) (engine.SyncSource, error) {
	cfg := client.Config{
		NodeID: n.cfg.Node.ID, Name: s.Name, Buffer: int64(s.Children.PauseBuffer.MaxBytes), Edges: &n.edges, Logger: n.log,
		Software: "tributary " + version.String(), Minted: true, Serve: n.join, Holder: n.holder,
		Witness: func(peer string, e engine.Epoch, t engine.Time) { n.engine.Witness(peer, e, t) },
	}
	if r := n.relay; r != nil {
		cfg.Above, cfg.Upward = r.Acks, r.Above
		cfg.Told = func(s session.Stable) { r.Told(s.Log, s.Compare, s.Holders) }
	}
	if err := n.secureDialling(&cfg, s.Children.TLS, s.Children.TokenFile); err != nil {
		return nil, err
	}
	src, err := client.NewMesh(cfg)
	if err != nil {
		return nil, err
	}
	n.children = &children{name: s.Name, source: src}
	return src, nil
}

// rewireChildren puts new children, and those above, in place.
func (n *node) rewireChildren(w *nodeconfig.WiredSource) {
	n.children.rewire(w)
	if n.relay != nil {
		n.relay.SetReaders(w.Readers)
		n.relay.SetRoots(w.Roots)
	}
}

// forgetEvery is how often a relay looks whether a child that is no longer wired can be
// forgotten.
const forgetEvery = time.Second

// forgetChildren removes the rows of children that are gone for good, and forgets
// children that are read no longer, once those above have all that was read of them,
// until ctx ends. Without anybody registered above it is not known whether they have, and
// nothing is forgotten; but a root forgets relays, since their logs have no rows of their
// own.
func (n *node) forgetChildren(ctx context.Context) error {
	t := ticks.New(forgetEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		for _, log := range n.children.retired(n) {
			if err := n.engine.Retire(ctx, log); err == nil {
				n.log.Info("a child is gone for good: its rows are removed, here and above", "log", log.String())
			} else if ctx.Err() == nil {
				n.log.Warn("the rows of a child that is gone for good cannot be removed", "log", log.String(), "error", err)
			}
		}
		for _, log := range n.children.unread(n) {
			if !n.children.source.Idle(log.Origin) {
				continue
			}
			done, err := n.engine.Forget(ctx, log, nil)
			if err != nil && ctx.Err() == nil {
				n.log.Warn("a child that is read no longer cannot be forgotten", "log", log.String(), "error", err)
			} else if done {
				n.children.source.Forget(log)
				n.log.Info("a child that is read no longer is forgotten: those above have all of it", "log", log.String())
			}
		}
	}
}

// retired returns the logs of children that are gone for good, and whose rows are there.
func (c *children) retired(n *node) (logs []engine.LogID) {
	c.mu.Lock()
	var gone []string
	for id, ch := range c.wired {
		if ch.State == nodeconfig.ChildRetired {
			gone = append(gone, id)
		}
	}
	c.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	v := n.store.View()
	defer v.Close()
	for k := range v.Cursors() {
		if slices.ContainsFunc(gone, func(id string) bool { return engine.MintedBy(k.Log.Origin, id) }) && !n.engine.Retired(v, k.Log) {
			logs = append(logs, k.Log)
		}
	}
	return logs
}

// reads reports whether an origin is a child, whose log is not read by way of a mesh.
func (c *children) reads(origin string) bool {
	if c == nil {
		return false
	}
	node, _, _ := strings.Cut(origin, "#")
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.wired[node]
	return ok
}

// unread returns the logs of children that are wired no longer, or are leaving, if it is
// known who is above, and that come by no other source, such as a mesh. A child that leaves is forgotten while it is there to tell who has
// what: once it is wired no longer, a relay that nobody reads would not learn that again
// after a restart.
func (c *children) unread(n *node) (logs []engine.LogID) {
	c.mu.Lock()
	wired, above, listed := c.wired, c.above, c.wired != nil
	c.mu.Unlock()
	if !listed || !above && n.cfg.Root == nil {
		return nil
	}
	v := n.store.View()
	defer v.Close()
	for k := range v.Cursors() {
		node, source, _ := strings.Cut(k.Log.Origin, "#")
		ch, ok := wired[node]
		switch {
		case node == n.cfg.Node.ID || k.Scope != "", n.cfg.Root != nil && source != relayLog:
		case !ok, ch.State == nodeconfig.ChildLeaving, ch.State == nodeconfig.ChildRetired && n.engine.Retired(v, k.Log):
			logs = append(logs, k.Log)
		}
	}
	if len(logs) == 0 {
		return nil
	}
	for _, l := range n.engine.Status().Logs {
		if l.Source != c.name || n.mesh != nil && !n.mesh.source.Idle(l.ID.Origin) {
			logs = slices.DeleteFunc(logs, func(id engine.LogID) bool { return id == l.ID })
		}
	}
	return logs
}

// rewire puts new children and policy in place.
func (c *children) rewire(w *nodeconfig.WiredSource) {
	peers := make([]client.MeshPeer, len(w.Children))
	wired := make(map[string]nodeconfig.Child, len(w.Children))
	for i, ch := range w.Children {
		peers[i] = client.MeshPeer{ID: ch.ID, Address: hostPort(ch.Address), Group: ch.Group, Idle: ch.Leaves(), Alone: ch.Group == ""}
		wired[ch.ID] = ch
	}
	failback := client.FailbackPreferred
	if w.Policy.Failback == nodeconfig.FailbackManual {
		failback = client.FailbackNever
	}
	c.mu.Lock()
	c.wired, c.above = wired, len(w.Readers) > 0 && len(w.Roots) > 0
	c.mu.Unlock()
	c.source.SetPeers(peers, client.Policy{
		UnhealthyAfter: w.Policy.UnhealthyAfter, RecoverAfter: w.Policy.RecoverAfter, Failback: failback,
		Standby: w.Redundancy == nodeconfig.ActiveStandby,
	})
}

// rewire puts other roots, and parents that are dialled, in place.
func (l *leaf) rewire(w *nodeconfig.WiredParents) {
	l.known.SetRoots(w.Roots)
	peers := make([]client.MeshPeer, len(w.Dial))
	for i, d := range w.Dial {
		peers[i] = client.MeshPeer{ID: d.ID, Address: hostPort(d.Address)}
	}
	l.dialer.SetPeers(peers)
}

// ownLogs returns the logs that the node mints.
func (n *node) ownLogs() (all []engine.LogInfo) {
	v := n.store.View()
	defer v.Close()
	for _, l := range v.Logs() {
		if engine.MintedBy(l.ID.Origin, n.cfg.Node.ID) {
			all = append(all, l)
		}
	}
	return all
}

func (n *node) ownBytes() (size int64) {
	for _, l := range n.ownLogs() {
		size += int64(l.Bytes)
	}
	return size
}

// logFull says why what is written waits for the log that is kept for the roots; it is
// empty if it does not.
func (n *node) logFull() string {
	st := n.describeTree()
	if st == nil || !st.Full {
		return ""
	}
	who := "a root"
	if st.PinnedBy != "" {
		who = "the root " + st.PinnedBy
	}
	return fmt.Sprintf("the log that is kept for the roots is full, with %d bytes of at most %d (parents.maxLog): %s has yet to take it", st.LogBytes, st.MaxLogBytes, who)
}

// describeTree says what the node is in a relay tree; nil if nothing.
func (n *node) describeTree() *nodeconfig.TreeStatus {
	if n.holder == "" {
		return nil
	}
	st := &nodeconfig.TreeStatus{Holder: n.holder}
	if c := n.children; c != nil {
		st.Role = nodeconfig.RoleRoot
		st.Logs, st.Cursors = n.degree()
		c.mu.Lock()
		st.Children = len(c.wired)
		c.mu.Unlock()
		for _, p := range c.source.Status().Peers {
			if p.Connected {
				st.Connected++
			}
		}
	}
	if r := n.relay; r != nil {
		if n.cfg.Relay != nil {
			st.Role = nodeconfig.RoleRelay
		}
		s := r.Stats()
		st.Log, st.Flushes, st.Changes = r.Log().String(), s.Flushes, s.Changes
		if g := s.Gap; g.Why != "" {
			st.Gap = &nodeconfig.GapStatus{Position: string(relay.Position(g.Place)), Since: g.At.Wall(), Message: g.Why}
		}
	}
	if limit, _ := n.cfg.KeptLog(); limit > 0 {
		st.LogBytes, st.MaxLogBytes, st.Full = n.ownBytes(), int64(limit), n.engine.Status().Full != nil
		var roots []relay.RootHas
		if logs := n.ownLogs(); n.relay != nil {
			roots = n.relay.RootsHave()
			at, _ := n.relay.Kept(n.relay.Log())
			st.Stable = string(at)
		} else if len(logs) > 0 {
			l := logs[len(logs)-1]
			at, _ := n.leaf.known.Stable(l.ID)
			st.Log, st.Stable = l.ID.String(), string(at)
			roots = n.leaf.known.Roots(l.ID)
		}
		for _, r := range roots {
			st.Roots = append(st.Roots, nodeconfig.RootStatus{Node: r.Root, Position: string(r.At)})
		}
		if st.Full && len(roots) > 0 {
			st.PinnedBy = roots[0].Root
		}
	}
	if n.cfg.Parents != nil {
		if st.Role == "" {
			st.Role = nodeconfig.RoleLeaf
		}
		for _, p := range n.leaf.dialer.Peers() {
			st.Parents = append(st.Parents, peerStatus(p))
		}
	}
	return st
}

// degree is how many logs of children the node knows, and cursors it keeps in them.
func (n *node) degree() (logs, cursors int) {
	v := n.store.View()
	defer v.Close()
	for _, l := range v.Logs() {
		if !engine.MintedBy(l.ID.Origin, n.cfg.Node.ID) {
			logs++
		}
	}
	for k := range v.Cursors() {
		if !engine.MintedBy(k.Log.Origin, n.cfg.Node.ID) {
			cursors++
		}
	}
	return logs, cursors
}

// status fills in what a children source adds to a source's status.
func (c *children) status(d *nodeconfig.SourceStatus) {
	d.Kind = nodeconfig.KindChildren
	st := c.source.Status()
	logs := map[string]int{}
	for _, l := range st.Logs {
		logs[l.Peer]++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range st.Peers {
		ps := peerStatus(p)
		ps.Logs, ps.Group = logs[p.ID], c.wired[p.ID].Group
		d.Peers = append(d.Peers, ps)
	}
}

func peerStatus(p client.PeerState) nodeconfig.PeerStatus {
	return nodeconfig.PeerStatus{
		ID: p.ID, Address: strings.TrimPrefix(p.Address, "dns:///"), Connected: p.Connected, Dialled: p.Dialled, Since: p.Since, Message: messageOf(p),
	}
}
