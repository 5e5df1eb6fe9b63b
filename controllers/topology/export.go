package topology

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// MaxExportName is how long an export's name may be: the names of its node and of its
// Jobs are made from it.
const MaxExportName = 40

// exportSource is the name of the source of an export's node.
const exportSource = "source"

// Export is the plan of an ArchiveExport.
type Export struct {
	Key        Key
	Generation int64
	// Conditions are Accepted and ResolvedRefs, in this order.
	Conditions []Condition
	// Spec of the node that writes the archive: of one that goes on it is to be there as
	// a ReplicationNode, of one that ends a Job runs it.
	Spec *v1alpha1.ReplicationNode
	// Node is the plan of it, of one that ends.
	Node *Node
}

// Condition returns the condition of a type; the zero Condition if there is
// none.
func (e *Export) Condition(kind string) Condition { return find(e.Conditions, kind) }

// Ready says whether what is planned may be put in place.
func (e *Export) Ready() bool {
	for _, c := range e.Conditions {
		if c.Status != metav1.ConditionTrue {
			return false
		}
	}
	return e.Node == nil || e.Node.Action == Apply
}

type exportDraft struct {
	spec *v1alpha1.ArchiveExport
	node *draft
	// planned: the node is planned with all others.
	planned bool
}

// ExportNodeName is the name of the node that writes the archive of an export.
func ExportNodeName(export string) string { return export + "-export" }

// ends says whether an export's node ends once it has written.
func ends(e *v1alpha1.ArchiveExport) bool { return e.Spec.Mode != v1alpha1.ExportFollow }

// ExportNode is the node that writes the archive of an export.
func ExportNode(e *v1alpha1.ArchiveExport) *v1alpha1.ReplicationNode {
	source := v1alpha1.NodeSource{Name: exportSource, PostgresSourceRef: e.Spec.PostgresSourceRef, FanoutSourceRef: e.Spec.FanoutSourceRef}
	if ref := e.Spec.NodeRef; ref != nil {
		source.Fanout = &v1alpha1.FanoutSourceSpec{Upstreams: []v1alpha1.Upstream{{NodeRef: ref}}}
		for _, t := range e.Spec.Tables {
			source.Fanout.Tables = append(source.Fanout.Tables, v1alpha1.FanoutTable{TableReference: t})
		}
	}
	write := e.Spec.Write
	if write == nil {
		write = &v1alpha1.ArchiveWrite{}
	}
	return &v1alpha1.ReplicationNode{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: ExportNodeName(e.Name), UID: e.UID, Generation: e.Generation, CreationTimestamp: e.CreationTimestamp,
		},
		Spec: v1alpha1.ReplicationNodeSpec{
			Sources:  []v1alpha1.NodeSource{source},
			Archives: []v1alpha1.NodeArchive{{Name: e.Name, ArchiveLocation: e.Spec.ArchiveLocation, Tables: e.Spec.Tables, Write: write}},
			Storage:  e.Spec.Storage, Image: e.Spec.Image, Resources: e.Spec.Resources, PodTemplate: e.Spec.PodTemplate, Suspend: e.Spec.Suspend,
		},
	}
}

// exportOf is the export that a node writes the archive of; empty if there is none.
func exportOf(n *v1alpha1.ReplicationNode) string {
	if o := metav1.GetControllerOf(n); o != nil && o.Kind == "ArchiveExport" {
		return o.Name
	}
	return ""
}

// ofExport says whether the node is there to write the archive of an export. It is no
// parent of other nodes, and no member of a mesh, unless it is named.
func (d *draft) ofExport() bool { return d.export != nil || exportOf(d.spec) != "" }

func (p *planner) addExport(e *v1alpha1.ArchiveExport) {
	spec := ExportNode(e)
	k := keyOf(spec)
	out := &exportDraft{spec: e, node: &draft{
		spec: spec, first: map[string]bool{}, export: e,
		Node: &Node{Key: k, UID: e.UID, Generation: e.Generation, Depth: -1},
	}}
	p.exports[keyOf(e)] = out
	for _, m := range checkExport(e) {
		out.node.accepted.add(v1alpha1.ReasonInvalid, "%s", m)
	}
	there := p.nodes[k]
	if there == nil {
		p.nodes[k], out.planned = out.node, true
		return
	}
	if exportOf(there.spec) != e.Name {
		out.node.accepted.add(v1alpha1.ReasonInvalid, "The name of this export's node is %s, and there is a ReplicationNode of that name already: rename the export, or the node.", k.Name)
	}
}

func checkExport(e *v1alpha1.ArchiveExport) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(e.Name) > MaxExportName {
		say("The name of an ArchiveExport may have at most %d characters; this one has %d.", MaxExportName, len(e.Name))
	}
	s := &e.Spec
	if count(s.PostgresSourceRef != nil, s.FanoutSourceRef != nil, s.NodeRef != nil) != 1 {
		say("An export must have exactly one of postgresSourceRef, fanoutSourceRef and nodeRef.")
	}
	if (s.Mode == v1alpha1.ExportScheduled) != (s.Schedule != "") {
		say("schedule is needed with the mode scheduled, and with no other: give a time such as '0 3 * * *'.")
	}
	if ends(e) != (s.Storage == nil) {
		say("storage is needed with the mode follow, and with no other: what is not archived yet must outlive the pod. Give type: Persistent and a size.")
	}
	return out
}

func (e *exportDraft) plan(k Key) *Export {
	out := &Export{Key: k, Generation: e.spec.Generation, Conditions: e.node.findings.conditions(), Spec: e.node.spec}
	if e.planned && ends(e.spec) {
		out.Node = e.node.Node
	}
	return out
}
