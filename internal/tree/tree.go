// Package tree draws a topology in a terminal.
//
// Each node stands once, below the parent that it reads from at present, or below
// its mesh or the branch of its relay tree. Nodes that stand on a loop, or whose parent is not in the drawing, are roots of
// their own and say why.
package tree

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Node is one node of a topology, or a group of them: a mesh, a relay tree or a branch.
type Node struct {
	ID     string // namespace/name; of a group: see MeshID, RelayTreeID and BranchID
	Ready  bool
	State  string // Ready's reason, such as Streaming or LoopDetected
	Lag    string // as status has it; empty where it is unknown
	Detail string // a sentence; shown below the drawing for a node that is not ready

	// Sources that the node reads, in the order of its configuration.
	Sources []Source

	// Group is the id of the mesh that the node is a member of, or of the branch or the
	// relay tree that it belongs to; empty if there is none.
	Group string
}

// MeshID is the id of a mesh.
func MeshID(namespace, name string) string { return "mesh " + namespace + "/" + name }

// RelayTreeID is the id of a relay tree, below which its roots stand.
func RelayTreeID(namespace, name string) string { return treePrefix + namespace + "/" + name }

// BranchID is the id of a branch of a relay tree, below which its nodes and its leaves
// stand; without a branch it is the tree's.
func BranchID(namespace, name, branch string) string {
	if branch == "" {
		return RelayTreeID(namespace, name)
	}
	return branchPrefix + namespace + "/" + name + "/" + branch
}

const (
	treePrefix   = "tree "
	branchPrefix = "branch "
)

// isGroup tells groups from nodes, whose ids hold no space.
func isGroup(id string) bool { return strings.Contains(id, " ") }

// WithGroups adds the groups that nodes name and that are missing. One is ready when all
// that belong to it are.
func WithGroups(nodes []Node) []Node {
	place := map[string]int{}
	for i := range nodes {
		place[nodes[i].ID] = i
	}
	given := len(nodes)
	for i := 0; i < len(nodes); i++ {
		id := nodes[i].Group
		if _, ok := place[id]; ok || id == "" {
			continue
		}
		group := Node{ID: id, Ready: true, State: "Ready", Lag: "-"}
		if of, ok := strings.CutPrefix(id, branchPrefix); ok {
			group.Group = treePrefix + of[:strings.LastIndex(of, "/")]
		}
		place[id] = len(nodes)
		nodes = append(nodes, group)
	}
	for i := range nodes { // branches come after their nodes, and trees belong to nothing
		if g, ok := place[nodes[i].Group]; ok && g >= given && !nodes[i].Ready {
			nodes[g].Ready, nodes[g].State = false, "MembersNotReady"
		}
	}
	return nodes
}

// Source is what a node reads from.
type Source struct {
	Name string
	Kind string // postgres, fanout, ingest, mesh or children
	// Parent is the id of the node read from at present; for a database, what
	// names it; for a mesh, how many peers, and for a relay, how many children. Empty
	// while there is none.
	Parent string
	// Standby are the other candidates, in order.
	Standby []string
}

// parent returns the node that n is drawn below.
func (n *Node) parent() string {
	if n.Group != "" {
		return n.Group
	}
	for _, s := range n.Sources {
		if s.Kind == "fanout" && s.Parent != "" {
			return s.Parent
		}
	}
	return ""
}

// Draw writes the topology, roots first, each ordered by id.
func Draw(w io.Writer, nodes []Node) error {
	if len(nodes) == 0 {
		_, err := fmt.Fprintln(w, "No ReplicationNode was found.")
		return err
	}
	d := drawing{byID: map[string]*Node{}, children: map[string][]*Node{}, drawn: map[string]bool{}}
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for i := range sorted {
		d.byID[sorted[i].ID] = &sorted[i]
	}
	var roots []*Node
	for i := range sorted {
		n := &sorted[i]
		if p := n.parent(); p != "" && d.byID[p] != nil && !d.onLoop(n) {
			d.children[p] = append(d.children[p], n)
		} else {
			roots = append(roots, n)
		}
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tSTATE\tLAG\tREADS FROM\tSTANDBY")
	for _, r := range roots {
		d.draw(t, r, "", "")
	}
	if err := t.Flush(); err != nil || len(d.details) == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(d.details, "\n"))
	return err
}

type drawing struct {
	byID     map[string]*Node
	children map[string][]*Node
	drawn    map[string]bool
	details  []string // of nodes that are not ready
}

// onLoop reports whether following parents from n comes back to n.
func (d *drawing) onLoop(n *Node) bool {
	seen := map[string]bool{}
	for at := n; at != nil && !seen[at.ID]; {
		seen[at.ID] = true
		p := at.parent()
		if p == n.ID {
			return true
		}
		at = d.byID[p]
	}
	return false
}

func (d *drawing) draw(w io.Writer, n *Node, indent, below string) {
	if d.drawn[n.ID] {
		return
	}
	d.drawn[n.ID] = true
	full, empty := "●", "○"
	if isGroup(n.ID) {
		full, empty = "◆", "◇"
	}
	mark := full
	if !n.Ready {
		mark = empty
	}
	var from, standby []string
	for _, s := range n.Sources {
		p := s.Parent
		if p == "" {
			p = "-"
		}
		from = append(from, p)
		standby = append(standby, s.Standby...)
	}
	fmt.Fprintf(w, "%s%s %s\t%s\t%s\t%s\t%s\n", indent, mark, n.ID,
		cmp.Or(n.State, "Unknown"), cmp.Or(n.Lag, "unknown"), cmp.Or(strings.Join(from, ", "), "-"), strings.Join(standby, ", "))
	if !n.Ready && n.Detail != "" {
		d.details = append(d.details, n.ID+": "+n.Detail)
	}
	kids := d.children[n.ID]
	for i, k := range kids {
		if i == len(kids)-1 {
			d.draw(w, k, below+"└─ ", below+"   ")
		} else {
			d.draw(w, k, below+"├─ ", below+"│  ")
		}
	}
}
