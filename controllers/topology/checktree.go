package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

var branchName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,14}[a-z0-9])?$`)

const (
	maxTreeDepth    = 3
	maxTreeParents  = 4
	maxTreeRoots    = 5
	maxTreeBranches = 256
)

// checkTree checks what of a tree can be checked without its leaves.
func checkTree(t *v1alpha1.RelayTree) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	s := &t.Spec
	if len(t.Name) > MaxTreeName || !nodeName.MatchString(t.Name) {
		say("The name of a RelayTree must start with a lower case letter and hold at most %d lower case letters, digits and dashes.", MaxTreeName)
	}
	if s.Depth < 0 || s.Depth > maxTreeDepth {
		say("depth must be from 1 to %d; it is %d.", maxTreeDepth, s.Depth)
		return out
	}
	if r := s.Redundancy; r != nil {
		if r.Parents < 0 || r.Parents > maxTreeParents {
			say("redundancy.parents must be from 1 to %d; it is %d.", maxTreeParents, r.Parents)
		}
		out = append(out, checkOneOf("redundancy.mode", r.Mode, v1alpha1.RedundancyActiveActive, v1alpha1.RedundancyActiveStandby)...)
	}
	out = append(out, checkTreeBounds(s)...)
	if r := s.Roots; r != nil {
		out = append(out, checkTreeNodes("roots", r.Count, r.Names, &r.TreeNodes, maxTreeRoots)...)
	}
	b := &s.Branches
	if b.Count == nil && len(b.Names) == 0 {
		say("branches has neither count nor names: give one of them.")
	}
	out = append(out, checkTreeNodes("branches", b.Count, b.Names, &b.TreeNodes, maxTreeBranches)...)
	if len(out) == 0 {
		seen := map[Key]string{}
		for _, b := range treeShape(s) {
			for _, k := range b.nodesOf(t) {
				if other, ok := seen[k]; ok {
					say("%s and %s would both have a node with the name %s: rename one of them.", other, b.name, k.Name)
				}
				seen[k] = b.name
			}
		}
	}
	if _, err := metav1.LabelSelectorAsSelector(&s.Leaves.Selector); err != nil {
		say("leaves.selector is not a selector: %v.", err)
	}
	if len(s.Leaves.Selector.MatchLabels)+len(s.Leaves.Selector.MatchExpressions) == 0 {
		say("leaves.selector is empty, and would select every node: give it labels.")
	}
	names := make([]v1alpha1.TableReference, len(s.Tables))
	for i, d := range s.Tables {
		names[i] = d.TableReference
		if d.Delivery == "" {
			say("tables[%d].delivery is not set: it can be %s, %s or %s.", i, v1alpha1.DeliveryAll, v1alpha1.DeliveryLatest, v1alpha1.DeliveryCounter)
		}
		out = append(out, checkOneOf(fmt.Sprintf("tables[%d].delivery", i), d.Delivery, v1alpha1.DeliveryAll, v1alpha1.DeliveryLatest, v1alpha1.DeliveryCounter)...)
		if (len(d.Columns) > 0) != (d.Delivery == v1alpha1.DeliveryCounter) {
			say("tables[%d].columns are needed with the delivery Counter, and with no other.", i)
		}
		for _, c := range s.Conflicts {
			if d.Delivery == v1alpha1.DeliveryCounter && c.TableReference == d.TableReference && c.Policy != v1alpha1.ConflictNamespaceByOrigin {
				say("tables[%d] is a counter, of which each leaf has a share, and its conflict policy is %s: set that to %s, or take it out.", i, c.Policy, v1alpha1.ConflictNamespaceByOrigin)
			}
		}
	}
	out = append(out, checkTables(names)...)
	if s.TokenSecretRef != nil && s.TLS == nil {
		say("tokenSecretRef needs tls: a token sent in plain text is no secret.")
	}
	return append(out, checkConflicts(s.Conflicts, nil)...)
}

// checkTreeBounds checks the quantities and durations of a tree, and what its leaves do.
func checkTreeBounds(s *v1alpha1.RelayTreeSpec) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	l := &s.Leaves
	out = append(out, checkOneOf("leaves.onFull", l.OnFull, v1alpha1.FullBlock, v1alpha1.FullRebaseline)...)
	out = append(out, checkOneOf("leaves.onReset", l.OnReset, v1alpha1.RowsKeep, v1alpha1.RowsRemove)...)
	out = append(out, checkOneOf("leaves.onRemoval", l.OnRemoval, v1alpha1.RowsKeep, v1alpha1.RowsRemove)...)
	if q := l.MaxLog; q != nil && (q.Value() < 1<<20 || q.Value() > 1<<40) {
		say("leaves.maxLog must be a quantity from 1Mi to 1Ti, such as 1Gi; it is %s.", q)
	}
	if q := s.MaxPending; q != nil && (q.Value() < 64<<10 || q.Value() > 1<<30) {
		say("maxPending must be a quantity from 64Ki to 1Gi, such as 16Mi; it is %s.", q)
	}
	if d := s.Window; d != nil && (d.Duration < time.Millisecond || d.Duration > time.Minute) {
		say("window must be a duration from 1ms to 1m, such as 100ms; it is %s.", d.Duration)
	}
	if d := s.TombstoneRetention; d != nil && (d.Duration < time.Minute || d.Duration > 8784*time.Hour) {
		say("tombstoneRetention must be a duration from 1m to 8784h, such as 24h; it is %s.", d.Duration)
	}
	return out
}

// checkOneOf checks a field that has some values, or is not set.
func checkOneOf[T ~string](path string, is T, values ...T) []string {
	if is == "" || slices.Contains(values, is) {
		return nil
	}
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	last := len(names) - 1
	return []string{fmt.Sprintf("%s is %s: it can be %s or %s.", path, is, strings.Join(names[:last], ", "), names[last])}
}

func checkTreeNodes(path string, count *int32, names []string, n *v1alpha1.TreeNodes, most int) (out []string) {
	say := func(format string, args ...any) { out = append(out, path+fmt.Sprintf(format, args...)) }
	switch {
	case count != nil && len(names) > 0:
		say(" has count and names: give one of them.")
	case count != nil && (*count < 1 || int(*count) > most):
		say(".count must be from 1 to %d; it is %d.", most, *count)
	case len(names) > most:
		say(".names has %d names, and may have %d.", len(names), most)
	}
	for i, name := range names {
		if !branchName.MatchString(name) {
			say(".names[%d] must start with a lower case letter and hold at most 16 lower case letters, digits and dashes.", i)
		}
	}
	if st := n.Storage; st != nil && (st.Type != v1alpha1.StoragePersistent || st.Size == nil) {
		say(".storage must have type: Persistent and a size: a relay keeps its log and its rows on a volume.")
	}
	return out
}
