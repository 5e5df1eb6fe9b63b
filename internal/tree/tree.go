// Package tree draws a topology in a terminal.
//
// Each node stands once, below the parent that it reads from at present. Nodes
// that stand on a loop, or whose parent is not in the drawing, are roots of
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

// Node is one node of a topology.
type Node struct {
	ID     string // namespace/name
	Ready  bool
	State  string // Ready's reason, such as Streaming or LoopDetected
	Lag    string // as status has it; empty where it is unknown
	Detail string // a sentence; shown below the drawing for a node that is not ready

	// Sources that the node reads, in the order of its configuration.
	Sources []Source
}

// Source is what a node reads from.
type Source struct {
	Name string
	Kind string // postgres or fanout
	// Parent is the id of the node read from at present; for a database, what
	// names it. Empty while there is none.
	Parent string
	// Standby are the other candidates, in order.
	Standby []string
}

// parent returns the node that n is drawn below.
func (n *Node) parent() string {
	for _, s := range n.Sources {
		if s.Kind != "postgres" && s.Parent != "" {
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
	mark := "●"
	if !n.Ready {
		mark = "○"
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
