package controllers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// heardRelay is what a relay, a root or a leaf of a tree says.
type heardRelay struct {
	relay    bool
	report   topology.RelayReport
	children map[string]heardChild // by id
	full     bool                  // of a leaf: its log
	pinnedBy string                // then: the root that has least
	// overlaps are the tables of which rows of several leaves came, and the leaves whose
	// writes were refused.
	overlaps map[string][]string
}

type heardChild struct {
	message string
	logs    int
	known   bool // its lag is
	lag     time.Duration
}

// hearRelay reduces the status document of a node's only pod to what the plan and the
// status of its tree are made from.
func hearRelay(d *nodeconfig.Statusz) *heardRelay {
	h := &heardRelay{}
	if h.report, h.relay = topology.Report(d); h.relay {
		h.children = map[string]heardChild{}
		for _, s := range d.Sources {
			for _, p := range s.Peers {
				h.children[p.ID] = heardChild{message: p.Message, logs: p.Logs, known: true}
			}
		}
		for _, l := range d.Logs {
			if len(l.Path) < 2 {
				continue
			}
			c, ok := h.children[l.Path[1]]
			if !ok {
				continue
			}
			c.known, c.lag = c.known && l.LagKnown, max(c.lag, lagOf(&l).Truncate(time.Second))
			h.children[l.Path[1]] = c
		}
	}
	switch {
	case h.relay:
		h.overlaps = overlaps(d)
	case d.Tree != nil: // what others have written is not of the tree
		h.overlaps = overlaps(d)
		maps.DeleteFunc(h.overlaps, func(_ string, refused []string) bool { return !slices.Contains(refused, d.Node) })
	}
	if t := d.Tree; t != nil && t.MaxLogBytes > 0 {
		h.full, h.pinnedBy = t.Full || t.LogBytes >= t.MaxLogBytes, t.PinnedBy
		if h.pinnedBy == "" && len(t.Roots) > 0 {
			h.pinnedBy = t.Roots[0].Node // the slowest
		}
		if !h.full {
			h.pinnedBy = ""
		}
	}
	if !h.relay && d.Tree == nil {
		return nil
	}
	return h
}

// overlaps are the tables of a node that rows of several origins came of, and the nodes
// whose writes were refused.
func overlaps(d *nodeconfig.Statusz) map[string][]string {
	out := map[string][]string{}
	for _, t := range d.Tables {
		c := t.Conflicts
		if c == nil || c.Lost+c.Overwrote == 0 && len(c.Refused) == 0 {
			continue
		}
		out[t.Name] = nil
		for _, r := range c.Refused {
			node, _, _ := strings.Cut(r.Origin, "#")
			out[t.Name] = append(out[t.Name], node)
		}
	}
	return out
}

// treeFacts is everything that the status of a tree is made from.
type treeFacts struct {
	tree  *v1alpha1.RelayTree
	plan  *topology.Tree
	nodes map[topology.Key]*v1alpha1.ReplicationNode // of roots and branches
	heard map[topology.Key]*heardRelay               // nil of those that say nothing
	// moving are the nodes of roots and branches that are not yet what they are to be.
	moving []string
	obstacle
}

const (
	maxTreeBranches = 64
	maxOverlaps     = 64
	maxRefused      = 16
)

func (f *treeFacts) status() v1alpha1.RelayTreeStatus {
	s := *f.tree.Status.DeepCopy()
	s.ObservedGeneration = f.tree.Generation
	c := conditions{&s.Conditions, f.tree.Generation}
	c.plan(f.plan.Conditions)
	if f.conflict != "" {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonObjectConflict, f.conflict)
	}
	if f.invalid != "" {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, f.invalid)
	}
	if f.plan.Want != nil { // else the last word stays
		f.branches(&s)
		f.leaves(&s, c)
		f.overlaps(&s)
		f.conditions(c)
	}
	c.summarize(onTheirWay(f.moving), v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionLogsBounded, v1alpha1.ConditionNodesReady, v1alpha1.ConditionLeavesAssigned, v1alpha1.ConditionLeavesAttached)
	return s
}

// branches is the state of each root and branch.
func (f *treeFacts) branches(s *v1alpha1.RelayTreeStatus) {
	s.Roots, s.Branches, s.Registered, s.BranchCount, s.Logs, s.RootLag = nil, nil, nil, 0, 0, ""
	rootsKnown, rootLag := true, time.Duration(0)
	for _, b := range f.plan.Branches {
		out := v1alpha1.TreeBranchStatus{Name: b.Name, Level: b.Level, State: v1alpha1.BranchActive, Children: int32(b.Children)}
		if b.Draining {
			out.State = v1alpha1.BranchDraining
		}
		least, known := time.Duration(0), false
		for _, n := range b.Nodes {
			node, lag, ok := f.node(n)
			out.Nodes = append(out.Nodes, node)
			if ok && (!known || lag < least) {
				least, known = lag, true
			}
			leaving := int32(0)
			for _, c := range n.Children {
				if c.State != "" {
					leaving++
				}
			}
			out.Leaving = max(out.Leaving, leaving)
		}
		if b.Level == 0 {
			s.Roots = append(s.Roots, out.Nodes...)
			s.Registered = append(s.Registered, out.Nodes[0].Node)
			s.Logs = max(s.Logs, out.Nodes[0].Logs)
			rootsKnown, rootLag = rootsKnown && known, max(rootLag, least)
			continue
		}
		if known {
			out.Lag = lagStep(least)
		}
		if b.Level == 1 && !b.Draining {
			s.BranchCount++
		}
		s.Branches = append(s.Branches, out)
	}
	if rootsKnown && len(s.Roots) > 0 {
		s.RootLag = lagStep(rootLag)
	}
	slices.SortStableFunc(s.Branches, func(a, b v1alpha1.TreeBranchStatus) int { return cmp.Compare(attention(b), attention(a)) })
	s.Branches = s.Branches[:min(len(s.Branches), maxTreeBranches)]
}

// overlaps are the tables of which several leaves write the same rows.
func (f *treeFacts) overlaps(s *v1alpha1.RelayTreeStatus) {
	all := map[string][]string{}
	for _, h := range f.heard {
		for table, refused := range h.overlaps {
			all[table] = append(all[table], refused...)
		}
	}
	s.Overlaps = nil
	for _, table := range slices.Sorted(maps.Keys(all)) {
		out := v1alpha1.TreeOverlap{Table: table}
		for _, node := range slices.Compact(slices.Sorted(slices.Values(all[table]))) {
			out.Refused = append(out.Refused, strings.TrimPrefix(node, f.tree.Namespace+"/"))
		}
		out.Refused = out.Refused[:min(len(out.Refused), maxRefused)]
		s.Overlaps = append(s.Overlaps, out)
	}
	s.Overlaps = s.Overlaps[:min(len(s.Overlaps), maxOverlaps)]
}

// attention orders branches: those that drain first, then those with trouble.
func attention(b v1alpha1.TreeBranchStatus) int {
	switch {
	case b.State == v1alpha1.BranchDraining:
		return 3
	case slices.ContainsFunc(b.Nodes, func(n v1alpha1.TreeNodeStatus) bool { return !n.Ready }):
		return 2
	case b.Leaving > 0:
		return 1
	}
	return 0
}

// node is the state of a root, or of a node of a branch, and its lag where it is known.
func (f *treeFacts) node(n topology.TreeNode) (out v1alpha1.TreeNodeStatus, lag time.Duration, known bool) {
	out.Node = n.Node.Name
	switch c := meta.FindStatusCondition(f.nodes[n.Node].Status.Conditions, v1alpha1.ConditionReady); {
	case f.nodes[n.Node].Name == "":
		out.Message = "The ReplicationNode does not exist yet."
	case c == nil:
		out.Message = "The ReplicationNode is being looked at."
	default:
		if out.Ready = c.Status == metav1.ConditionTrue; !out.Ready {
			out.Message = limited(c.Message)
		}
	}
	h := f.heard[n.Node]
	known = h != nil && h.relay
	for _, c := range n.Children {
		if c.Leaves() {
			continue
		}
		out.Children++
		if h == nil {
			continue
		}
		at, ok := h.children[c.Node.String()]
		if h.report.Children[c.Node.String()].Connected {
			out.Attached++
		} else if ok && out.Message == "" {
			out.Message = limited(strings.TrimSpace(fmt.Sprintf("No session with %s. %s", c.Node.Name, at.message)))
		}
		out.Logs += int32(at.logs)
		if at.logs > 0 {
			lag, known = max(lag, at.lag), known && at.known
		}
	}
	if known = known && (out.Logs > 0 || out.Children == 0); known {
		out.Lag = lagStep(lag)
	}
	return out, lag, known
}

// leaves is how many leaves are read, and what they keep.
func (f *treeFacts) leaves(s *v1alpha1.RelayTreeStatus, c conditions) {
	read := map[string]bool{}
	silent := 0
	for _, b := range f.plan.Branches {
		for _, n := range b.Nodes {
			h := f.heard[n.Node]
			if h == nil && b.Level == 1 {
				silent++
			}
			if h == nil {
				continue
			}
			for id, ch := range h.report.Children {
				read[id] = read[id] || ch.Connected
			}
		}
	}
	var detached, full []string
	isFull := func(n topology.Key) {
		if h := f.heard[n]; h != nil && h.full {
			full = append(full, fmt.Sprintf("%s, for %s", n.Name, cmp.Or(strings.TrimPrefix(h.pinnedBy, n.Namespace+"/"), "a root")))
		}
	}
	for _, b := range f.plan.Branches {
		for _, n := range b.Nodes {
			isFull(n.Node) // with what it has of tables with the delivery All
		}
	}
	s.Leaves, s.Attached, s.Unassigned = int32(len(f.plan.Leaves)), 0, int32(f.plan.Unassigned)
	for _, l := range f.plan.Leaves {
		if read[l.Node.String()] {
			s.Attached++
		} else {
			detached = append(detached, l.Node.Name)
		}
		isFull(l.Node)
	}
	s.Summary = fmt.Sprintf("%d/%d", s.Attached, s.Leaves)
	switch {
	case len(detached) > 0 && silent > 0:
		c.set(v1alpha1.ConditionLeavesAttached, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, fmt.Sprintf("Not all nodes of branches have told their status; as far as is known, nobody reads: %s.", listed(detached)))
	case len(detached) > 0:
		c.set(v1alpha1.ConditionLeavesAttached, metav1.ConditionFalse, v1alpha1.ReasonLeavesDetached, fmt.Sprintf("Nobody reads: %s. They keep what is written meanwhile.", listed(detached)))
	default:
		c.set(v1alpha1.ConditionLeavesAttached, metav1.ConditionTrue, v1alpha1.ReasonAttached, "Every leaf is read.")
	}
	if len(full) > 0 {
		what := "they take no more until it takes it"
		if f.tree.Spec.Leaves.OnFull == v1alpha1.FullRebaseline {
			what = "their oldest goes, and that root takes their state again"
		}
		c.set(v1alpha1.ConditionLogsBounded, metav1.ConditionFalse, v1alpha1.ReasonLogFull, fmt.Sprintf("These nodes keep as much of their logs as they may: %s; %s. Bring the root back; or, if it is gone for good, take it out of spec.roots.", listed(full), what))
	} else {
		c.set(v1alpha1.ConditionLogsBounded, metav1.ConditionTrue, v1alpha1.ReasonBounded, "No node keeps as much of its log as it may.")
	}
}

func (f *treeFacts) conditions(c conditions) {
	var notReady, moving, draining []string
	for _, b := range f.plan.Branches {
		for _, n := range b.Nodes {
			out, _, _ := f.node(n)
			if !out.Ready && !b.Draining {
				notReady = append(notReady, strings.TrimSpace(out.Node+" is not ready. "+out.Message))
			}
			leaving := 0
			for _, ch := range n.Children {
				if ch.State != "" {
					leaving++
				}
			}
			switch {
			case b.Draining:
				draining = append(draining, fmt.Sprintf("%s has %d children to be let go", n.Node.Name, leaving))
			case leaving > 0:
				moving = append(moving, fmt.Sprintf("%s has %d children to be let go", n.Node.Name, leaving))
			}
		}
	}
	if len(notReady) > 0 {
		c.set(v1alpha1.ConditionNodesReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotReady, sentences(notReady))
	} else {
		c.set(v1alpha1.ConditionNodesReady, metav1.ConditionTrue, v1alpha1.ReasonNodesReady, "Every root and every node of a branch is ready.")
	}
	switch {
	case len(draining) > 0:
		c.set(v1alpha1.ConditionSettled, metav1.ConditionFalse, v1alpha1.ReasonDraining, fmt.Sprintf("Branches that are no longer asked for go once those above have all that they have: %s. A node that cannot say so any more holds this up until its ReplicationNode is deleted.", listed(draining)))
	case len(moving) > 0:
		c.set(v1alpha1.ConditionSettled, metav1.ConditionFalse, v1alpha1.ReasonMoving, fmt.Sprintf("Children are being read by other branches, and are forgotten by the former once those above have all of them: %s.", listed(moving)))
	default:
		c.set(v1alpha1.ConditionSettled, metav1.ConditionTrue, v1alpha1.ReasonSettled, "Every leaf is read by its own branch alone.")
	}
}
