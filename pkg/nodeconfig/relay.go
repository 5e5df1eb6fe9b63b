package nodeconfig

import (
	"fmt"
	"slices"
	"time"
)

// Relay makes a node a relay of a tree: what comes in by its children source is
// served on in one log of the node's own.
type Relay struct {
	// Tables say how tables are delivered; others as Latest.
	Tables []RelayTable `yaml:"tables,omitempty"`
	// Window is how long changes are gathered: a row that changes often is sent on
	// once per window.
	Window time.Duration `yaml:"window,omitempty"`
	// MaxPending are the bytes that may wait for the end of a window. When they are
	// reached it ends, and what comes meanwhile waits at its sender.
	MaxPending Size `yaml:"maxPending,omitempty"`
	// MaxLog bounds what is kept of the log until every root has it, where a table is
	// delivered as All, and OnFull says what is done when it is reached: the relay takes no
	// more in, or the oldest goes, and the log says that changes are missing.
	MaxLog Size   `yaml:"maxLog,omitempty"`
	OnFull string `yaml:"onFull,omitempty"`
	// OnReset says what becomes of the rows that a leaf had written and does not have any
	// more, when it has lost its store and comes back: Remove or Keep.
	OnReset string `yaml:"onReset,omitempty"`
}

// KeepsLog reports whether the relay keeps its log for the roots.
func (r *Relay) KeepsLog() bool {
	return slices.ContainsFunc(r.Tables, func(t RelayTable) bool { return t.Delivery == DeliverAll })
}

// Root makes a node a root of a tree: all that is below comes to it, and whoever reads
// it reads one log of its own.
type Root struct {
	// Tables say how tables are delivered, as the relays below have it; others as
	// Latest.
	Tables []RelayTable `yaml:"tables,omitempty"`
	// OnReset, of leaves that the root reads itself, as of Relay.
	OnReset string `yaml:"onReset,omitempty"`
}

// RelayTable is how a table's changes reach the nodes above.
type RelayTable struct {
	Schema   string `yaml:"schema"`
	Name     string `yaml:"name"`
	Delivery string `yaml:"delivery"`
	// Columns, of Counter, are those that add up.
	Columns []string `yaml:"columns,omitempty"`
}

// Delivered is how a relay or root delivers tables.
func (c *Config) Delivered() []RelayTable {
	switch {
	case c.Relay != nil:
		return c.Relay.Tables
	case c.Root != nil:
		return c.Root.Tables
	}
	return nil
}

// The deliveries.
const (
	DeliverAll     = "All"     // every change, in order
	DeliverLatest  = "Latest"  // each row once, as it is now
	DeliverCounter = "Counter" // each leaf's share once; columns add up over leaves
)

// Deliveries are the values of RelayTable.Delivery.
var Deliveries = []string{DeliverAll, DeliverLatest, DeliverCounter}

// Children is a source that is the nodes below in a tree: leaves or relays. They are
// in the wiring; one without an address dials this node.
type Children struct {
	// TLS protects the connections to the children; nil: plain text.
	TLS *ClientTLS `yaml:"tls,omitempty"`
	// TokenFile is the path of the token that is shown to the children.
	TokenFile string `yaml:"tokenFile,omitempty"`
	// PauseBuffer bounds what has come and is not applied, in all.
	PauseBuffer PauseBuffer `yaml:"pauseBuffer"`
}

// What becomes of rows above a leaf.
const (
	RowsRemove = "Remove"
	RowsKeep   = "Keep"
)

// Parents makes a node a leaf of a tree: it keeps its log until every root has it.
// The roots, and the parents that the node dials, are in the wiring.
type Parents struct {
	// OnFull says what is done when MaxLog is reached.
	OnFull string `yaml:"onFull,omitempty"`
	// MaxLog bounds what the node keeps of its log for the roots.
	MaxLog Size `yaml:"maxLog,omitempty"`
	// TLS protects the connections to parents that are dialled; nil: plain text.
	TLS *ClientTLS `yaml:"tls,omitempty"`
	// TokenFile is the path of the token that is shown to them.
	TokenFile string `yaml:"tokenFile,omitempty"`
}

// What a leaf does when its log is full.
const (
	OnFullBlock      = "Block"      // writes wait
	OnFullRebaseline = "Rebaseline" // the oldest goes; a parent that lacks it takes a baseline
)

// WiredParents are a leaf's roots, and the parents that it dials.
type WiredParents struct {
	// Roots are the node ids of the roots of the tree. What all of them have need not
	// be kept.
	Roots []string `yaml:"roots,omitempty"`
	// Dial are the parents that the node dials, to be read by them.
	Dial []Dial `yaml:"dial,omitempty"`
}

// Dial is a parent that a leaf dials.
type Dial struct {
	// ID is the parent's node id.
	ID string `yaml:"id"`
	// Address is a gRPC target, as of a Candidate.
	Address string `yaml:"address"`
}

// Child is a node that a children source reads from.
type Child struct {
	// ID is the child's node id.
	ID string `yaml:"id"`
	// Address is a gRPC target, as of a Candidate; empty if the child dials.
	Address string `yaml:"address,omitempty"`
	// Group names the children that carry the same: the relays of one branch. One
	// without a group is alone.
	Group string `yaml:"group,omitempty"`
	// State says that the child is assigned elsewhere; empty for one that stays.
	State string `yaml:"state,omitempty"`
}

// States of a child that is assigned elsewhere, or gone.
const (
	// ChildMoving: it is read until it is read there.
	ChildMoving = "moving"
	// ChildLeaving: it is no longer read, and goes on being told what is stable. Once
	// those above have all that was read of it, it is taken out of the wiring, and then
	// it is forgotten.
	ChildLeaving = "leaving"
	// ChildRetired: it is gone for good. As leaving, and its rows are removed here and at
	// all that are above; shares of counters stay. Until they are, it is not said who has
	// what was read of it.
	ChildRetired = "retired"
)

var childStates = []string{ChildMoving, ChildLeaving, ChildRetired}

// Leaves reports whether the child is no longer read.
func (c *Child) Leaves() bool { return c.State == ChildLeaving || c.State == ChildRetired }

// How the children of a group are read.
const (
	ActiveActive  = "ActiveActive"  // all of them
	ActiveStandby = "ActiveStandby" // one, and another when it is gone
)

// Redundancies are the values of WiredSource.Redundancy.
var Redundancies = []string{ActiveActive, ActiveStandby}

// Defaults of relay trees.
const (
	DefaultRelayWindow     = 100 * time.Millisecond
	DefaultRelayMaxPending = 16 << 20
	DefaultMaxLog          = 1 << 30
)

const (
	maxChildren = 1 << 14
	maxRoots    = 16
	maxDial     = 64
)

func (c *Config) setTreeDefaults() {
	if r := c.Relay; r != nil {
		def(&r.Window, DefaultRelayWindow)
		def(&r.MaxPending, DefaultRelayMaxPending)
		def(&r.OnFull, OnFullBlock)
		def(&r.MaxLog, DefaultMaxLog)
		def(&r.OnReset, RowsRemove)
		for i := range r.Tables {
			def(&r.Tables[i].Delivery, DeliverLatest)
		}
	}
	if c.Root == nil && c.Relay == nil && c.children() != nil {
		c.Root = &Root{}
	}
	if r := c.Root; r != nil {
		def(&r.OnReset, RowsRemove)
		for i := range r.Tables {
			def(&r.Tables[i].Delivery, DeliverLatest)
		}
	}
	if q := c.Parents; q != nil {
		def(&q.OnFull, OnFullBlock)
		def(&q.MaxLog, DefaultMaxLog)
	}
	for i := range c.Sources {
		if ch := c.Sources[i].Children; ch != nil {
			def(&ch.PauseBuffer.MaxBytes, DefaultPauseBufferBytes)
		}
	}
}

// checkTree checks what makes the node part of a relay tree.
func (c *Config) checkTree(p *problems) {
	reads := c.children()
	shared := func(path string) {
		if c.Cursors == CursorsShared {
			p.at(path, "is of a relay tree, and cursors is "+CursorsShared, "set cursors to "+CursorsPerOrigin)
		}
	}
	kept := func(path, what string) {
		if c.Storage.Type == StorageMemory {
			p.at("storage.type", "is "+StorageMemory+", and "+path+" makes the node "+what+" of a relay tree", "set storage.type to "+StoragePebble+" and storage.path: others let go of what the node says that it has, or count on what it keeps")
		}
	}
	switch {
	case c.Relay != nil:
		kept("relay", "a relay")
	case reads != nil:
		kept("children", "a root")
	case c.Parents != nil:
		kept("parents", "a leaf")
	}
	if reads != nil {
		shared("sources")
	}
	if r := c.Relay; r != nil {
		if reads == nil {
			p.at("relay", "has nothing to serve on", "add a source with children, or take it out")
		}
		r.check(p)
	}
	if r := c.Root; r != nil {
		switch {
		case reads == nil:
			p.at("root", "has nothing to serve", "add a source with children, or take it out")
		case c.Relay != nil:
			p.at("root", "is there, and relay too", "keep the one that the node is")
		}
		checkDelivered(p, "root", r.Tables)
		oneOf(p, "root.onReset", r.OnReset, []string{RowsRemove, RowsKeep})
	}
	if q := c.Parents; q != nil {
		shared("parents")
		if c.WiringFile == "" {
			p.at("wiringFile", "is missing", "name the file that holds the roots of the tree")
		}
		oneOf(p, "parents.onFull", q.OnFull, []string{OnFullBlock, OnFullRebaseline})
		between(p, "parents.maxLog", q.MaxLog, 1<<20, 1<<42, "from 1Mi to 4Ti")
		checkDialling(p, "parents", q.TLS, q.TokenFile)
	}
}

// KeptLog returns how much of its own log the node keeps for the roots of a relay tree,
// and what is done when it is that much; 0 for a node that keeps none for them.
func (c *Config) KeptLog() (limit Size, onFull string) {
	switch {
	case c.Relay != nil && c.Relay.KeepsLog():
		return c.Relay.MaxLog, c.Relay.OnFull
	case c.Relay == nil && c.Parents != nil:
		return c.Parents.MaxLog, c.Parents.OnFull
	}
	return 0, ""
}

// children returns the children source; nil if there is none.
func (c *Config) children() *Source {
	if i := slices.IndexFunc(c.Sources, func(s Source) bool { return s.Children != nil }); i >= 0 {
		return &c.Sources[i]
	}
	return nil
}

func (r *Relay) check(p *problems) {
	between(p, "relay.window", r.Window, time.Millisecond, time.Minute, "from 1ms to 1m")
	oneOf(p, "relay.onFull", r.OnFull, []string{OnFullBlock, OnFullRebaseline})
	between(p, "relay.maxLog", r.MaxLog, 1<<20, 1<<42, "from 1Mi to 4Ti")
	between(p, "relay.maxPending", r.MaxPending, 1<<16, 1<<34, "from 64Ki to 16Gi")
	checkDelivered(p, "relay", r.Tables)
	oneOf(p, "relay.onReset", r.OnReset, []string{RowsRemove, RowsKeep})
}

// checkDelivered checks how tables are delivered.
func checkDelivered(p *problems, of string, all []RelayTable) {
	count(p, of+".tables", len(all), 0, maxTables)
	names := make([]Table, len(all))
	for i, t := range all {
		names[i] = Table{t.Schema, t.Name}
		path := fmt.Sprintf("%s.tables[%d]", of, i)
		oneOf(p, path+".delivery", t.Delivery, Deliveries)
		count(p, path+".columns", len(t.Columns), 0, maxColumns)
		unique := uniqueness(p)
		for j, col := range t.Columns {
			at := fmt.Sprintf("%s.columns[%d]", path, j)
			text(p, at, col, 1, 63)
			unique(at, col)
		}
		switch counts := t.Delivery == DeliverCounter; {
		case counts && len(t.Columns) == 0:
			p.at(path+".columns", "is empty", "name the columns that add up, or set delivery to "+DeliverLatest)
		case !counts && len(t.Columns) > 0:
			p.at(path+".columns", "is of "+DeliverCounter+" only", "take it out, or set delivery to "+DeliverCounter)
		}
	}
	tables(p, of+".tables", names)
}

func (s *WiredSource) checkChildren(p *problems, path string) {
	if s.Redundancy != "" || len(s.Children) > 0 {
		oneOf(p, path+".redundancy", s.Redundancy, Redundancies)
	}
	count(p, path+".children", len(s.Children), 0, maxChildren)
	ids := uniqueness(p)
	for j, c := range s.Children {
		at := fmt.Sprintf("%s.children[%d]", path, j)
		pattern(p, at+".id", c.ID, nodeID, "give the child's node id")
		ids(at+".id", c.ID)
		if slices.Contains(s.Readers, c.ID) || slices.Contains(s.Roots, c.ID) {
			p.at(at+".id", fmt.Sprintf("%q is also among readers or roots", c.ID), "take it out of one of them: what is above a node is not below it")
		}
		if c.Address != "" {
			target(p, at+".address", c.Address)
		}
		text(p, at+".group", c.Group, 0, 200)
		if c.State != "" {
			oneOf(p, at+".state", c.State, childStates)
		}
	}
	count(p, path+".readers", len(s.Readers), 0, maxRoots)
	count(p, path+".roots", len(s.Roots), 0, maxRoots)
	for _, l := range []struct {
		name string
		ids  []string
	}{{"readers", s.Readers}, {"roots", s.Roots}} {
		unique := uniqueness(p)
		for j, id := range l.ids {
			at := fmt.Sprintf("%s.%s[%d]", path, l.name, j)
			pattern(p, at, id, nodeID, "give the node's id")
			unique(at, id)
		}
	}
	if len(s.Children) > 0 && len(s.Candidates) > 0 {
		p.at(path, "has both candidates and children", "a source has the one or the other")
	}
}

func (w *WiredParents) check(p *problems) {
	count(p, "parents.roots", len(w.Roots), 0, maxRoots)
	unique := uniqueness(p)
	for i, r := range w.Roots {
		at := fmt.Sprintf("parents.roots[%d]", i)
		pattern(p, at, r, nodeID, "give the root's node id")
		unique(at, r)
	}
	count(p, "parents.dial", len(w.Dial), 0, maxDial)
	ids := uniqueness(p)
	for i, d := range w.Dial {
		at := fmt.Sprintf("parents.dial[%d]", i)
		pattern(p, at+".id", d.ID, nodeID, "give the parent's node id")
		ids(at+".id", d.ID)
		target(p, at+".address", d.Address)
	}
}

// checkWiredTree says whether the wiring has what the node needs in a tree, and no
// more.
func (c *Config) checkWiredTree(p *problems, w *Wiring) {
	if (w.Parents != nil) != (c.Parents != nil) {
		if c.Parents != nil {
			p.at("parents", "is missing", "name the roots of the tree; the list may be empty")
		} else {
			p.at("parents", "is there, and the node is no leaf", "take it out, or add parents to node.yaml")
		}
	}
	for i := range w.Sources {
		s := &w.Sources[i]
		j := slices.IndexFunc(c.Sources, func(have Source) bool { return have.Name == s.Name })
		if j < 0 {
			continue
		}
		tree := c.Sources[j].Children != nil
		if k := slices.IndexFunc(s.Children, func(ch Child) bool { return ch.ID == c.Node.ID }); k >= 0 {
			p.at(fmt.Sprintf("sources[%d].children[%d].id", i, k), fmt.Sprintf("%q is this node itself", c.Node.ID), "list the nodes below it")
		}
		switch path := fmt.Sprintf("sources[%d]", i); {
		case tree && len(s.Candidates) > 0:
			p.at(path+".candidates", "is not of a children source", "list the nodes as children")
		case !tree && len(s.Readers)+len(s.Roots) > 0, c.Relay == nil && len(s.Readers)+len(s.Roots) > 0:
			p.at(path, "has readers or roots, and the node is no relay", "take them out, or add relay to node.yaml")
		case !tree && len(s.Children) > 0:
			p.at(path+".children", "is of a children source only", "list the nodes as candidates")
		}
	}
}
