package topology

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// Labels of the nodes that a tree owns, and of their pods.
const (
	LabelTree   = "tributary.dev/tree"
	LabelBranch = "tributary.dev/branch" // of a root: its name
	LabelLevel  = "tributary.dev/level"  // 0 of a root, 1 of a branch that gathers leaves
)

// MaxTreeName is how long a tree's name may be: the names of its nodes are made from it.
const MaxTreeName = 30

const (
	defaultTreeParents = 2
	// defaultTreeStorage is the volume of a node whose tree says nothing of storage.
	defaultTreeStorage = "10Gi"
	rootLevel          = 0
)

// branch is a group of nodes of a tree that do the same: a root, which is alone, or the
// parents of a branch.
type branch struct {
	name  string
	level int32
}

// The shape of a tree, as its spec has it.

func treeDepth(s *v1alpha1.RelayTreeSpec) int32 { return max(s.Depth, 1) }

func treeParents(s *v1alpha1.RelayTreeSpec) int32 {
	if s.Redundancy != nil && s.Redundancy.Parents > 0 {
		return s.Redundancy.Parents
	}
	return defaultTreeParents
}

func treeRoots(s *v1alpha1.RelayTreeSpec) []string {
	if s.Roots == nil {
		return named("root-", nil, nil)
	}
	return named("root-", s.Roots.Count, s.Roots.Names)
}

// treeBranches are the branches of a level, which is at most the depth. Each level has
// about as many children for each branch as the others.
func treeBranches(s *v1alpha1.RelayTreeSpec, level int32) []string {
	first := named("b", s.Branches.Count, s.Branches.Names)
	if level == 1 {
		return first
	}
	depth := float64(treeDepth(s))
	n := math.Ceil(math.Pow(float64(len(first)), (depth-float64(level)+1)/depth) - 1e-9)
	return named(fmt.Sprintf("trunk%d-", level), new(max(int32(n), 1)), nil)
}

func named(prefix string, count *int32, names []string) []string {
	if len(names) > 0 {
		return names
	}
	n := int32(1)
	if count != nil {
		n = *count
	}
	out := make([]string, max(n, 0))
	for i := range out {
		out[i] = prefix + strconv.Itoa(i)
	}
	return out
}

// branches are all that the spec asks for: roots first, then down to the leaves.
func treeShape(s *v1alpha1.RelayTreeSpec) (out []branch) {
	for _, r := range treeRoots(s) {
		out = append(out, branch{r, rootLevel})
	}
	for level := treeDepth(s); level >= 1; level-- {
		for _, b := range treeBranches(s, level) {
			out = append(out, branch{b, level})
		}
	}
	return out
}

// nodesOf are the names of a branch's nodes.
func (b branch) nodesOf(t *v1alpha1.RelayTree) []Key {
	k := func(suffix string) Key { return Key{Namespace: t.Namespace, Name: t.Name + "-" + b.name + suffix} }
	if b.level == rootLevel {
		return []Key{k("")}
	}
	out := make([]Key, treeParents(&t.Spec))
	for i := range out {
		out[i] = k("-" + strconv.Itoa(i))
	}
	return out
}

// TreeNodes are the ReplicationNodes that a tree is to have.
func TreeNodes(t *v1alpha1.RelayTree) (out []v1alpha1.ReplicationNode) {
	for _, b := range treeShape(&t.Spec) {
		for i, k := range b.nodesOf(t) {
			out = append(out, *treeNode(t, b, k, i))
		}
	}
	return out
}

// zone is where the i-th node of a branch is put. It goes by names alone: a volume
// cannot move, whatever other branches come and go.
func zone(zones []string, b branch, i int) string {
	turn := score(b.name, "")
	if _, number, ok := strings.Cut(b.name, "-"); ok && b.level == rootLevel {
		if n, err := strconv.ParseUint(number, 10, 16); err == nil {
			turn = n // roots that are counted stand in for each other
		}
	}
	return zones[(turn+uint64(i))%uint64(len(zones))]
}

// treeNode is the i-th node of a branch.
func treeNode(t *v1alpha1.RelayTree, b branch, k Key, i int) *v1alpha1.ReplicationNode {
	nodes := &t.Spec.Branches.TreeNodes
	n := &v1alpha1.ReplicationNode{ObjectMeta: metav1.ObjectMeta{
		Namespace: k.Namespace, Name: k.Name,
		Labels:          map[string]string{LabelTree: t.Name, LabelBranch: b.name, LabelLevel: strconv.Itoa(int(b.level))},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(t, v1alpha1.GroupVersion.WithKind("RelayTree"))},
	}}
	if b.level == rootLevel {
		nodes = &v1alpha1.TreeNodes{}
		if r := t.Spec.Roots; r != nil {
			nodes, n.Spec.Sinks = &r.TreeNodes, r.Sinks
		}
	}
	n.Spec.Storage = &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: new(resource.MustParse(defaultTreeStorage))}
	if nodes.Storage != nil {
		n.Spec.Storage = nodes.Storage.DeepCopy()
	}
	if r := t.Spec.TombstoneRetention; r != nil {
		n.Spec.Storage.Tombstones = &v1alpha1.NodeTombstones{Retention: r}
	}
	n.Spec.Serve, n.Spec.Image, n.Spec.Resources = nodes.Serve, nodes.Image, nodes.Resources

	for _, a := range nodes.Archives { // one writer each
		own := *a.DeepCopy()
		own.KeyPrefix += n.Name + "/"
		n.Spec.Archives = append(n.Spec.Archives, own)
	}

	template := &v1alpha1.NodePodTemplate{}
	if nodes.PodTemplate != nil {
		template = nodes.PodTemplate.DeepCopy()
	}
	together := map[string]string{LabelTree: t.Name, LabelLevel: n.Labels[LabelLevel]}
	if b.level != rootLevel {
		together[LabelBranch] = b.name
	}
	labels := maps.Clone(n.Labels)
	maps.Copy(labels, template.Labels)
	maps.Copy(labels, together)
	template.Labels = labels
	if z := nodes.Zones; len(z) > 0 {
		if template.NodeSelector == nil {
			template.NodeSelector = map[string]string{}
		}
		template.NodeSelector[corev1.LabelTopologyZone] = zone(z, b, i)
	}
	template.Affinity = cmp.Or(template.Affinity, apart(together))
	n.Spec.PodTemplate = template
	return n
}

// apart keeps pods with the same labels in zones of their own, and at least on hosts of
// their own, where that is possible.
func apart(labels map[string]string) *corev1.Affinity {
	term := func(weight int32, domain string) corev1.WeightedPodAffinityTerm {
		return corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: corev1.PodAffinityTerm{
			TopologyKey: domain, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
		}}
	}
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{term(100, corev1.LabelTopologyZone), term(50, corev1.LabelHostname)},
	}}
}

// TreeOf is the tree that owns a node; empty if none does.
func TreeOf(n *v1alpha1.ReplicationNode) string {
	if o := metav1.GetControllerOf(n); o != nil && o.Kind == "RelayTree" {
		return o.Name
	}
	return ""
}

// branchOf is where a node stands in the tree that owns it.
func branchOf(n *v1alpha1.ReplicationNode) (branch, bool) {
	level, err := strconv.ParseInt(n.Labels[LabelLevel], 10, 32)
	name := n.Labels[LabelBranch]
	return branch{name, int32(level)}, err == nil && name != ""
}
