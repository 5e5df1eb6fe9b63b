package controllers

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// facts is everything that the status of a node is made from.
type facts struct {
	node     *v1alpha1.ReplicationNode
	plan     *topology.Node
	objects  *workload.Objects // nil unless the plan was applied
	running  *running
	observed *observed
	volume   *volume // nil unless the node has persistent storage
	waits    string  // whom the node's rollout waits for; empty if for nobody
	obstacle
}

const maxChildren = 64

// status makes the status of a node. It starts from the present one, for the
// times of its conditions and for what is not known anew.
func (f *facts) status() v1alpha1.ReplicationNodeStatus {
	s := *f.node.Status.DeepCopy()
	s.ObservedGeneration = f.node.Generation
	s.WiringEpoch = int64(f.plan.Wiring.Epoch)
	if f.plan.Action == topology.Hold {
		s.WiringEpoch = f.node.Status.WiringEpoch
	}
	s.Depth = nil
	if f.plan.Depth >= 0 {
		s.Depth = &f.plan.Depth
	}
	s.Children = nil
	for _, c := range f.plan.Children {
		if len(s.Children) < maxChildren {
			s.Children = append(s.Children, relative(c, f.node.Namespace))
		}
	}
	s.Endpoint = fmt.Sprintf("%s.%s.svc:%d", f.node.Name, f.node.Namespace, topology.Port(f.node))
	if f.objects != nil {
		s.ConfigHash, s.Image, s.Selector = f.objects.ConfigHash, f.objects.Image, f.objects.Selector
	}
	s.Replicas, s.Mesh, s.Tree = f.running.existing, f.plan.Mesh.Name, f.plan.Tree.Name
	s.Branch = f.plan.Branch
	f.sources(&s)
	f.sinks(&s)
	f.archives(&s)
	f.storage(&s)
	if o := f.observed; o != nil {
		s.Origins, s.Lag, s.Rebaselines = o.origins, o.lag, o.rebaselines
	} else {
		s.Origins, s.Lag = nil, ""
	}
	f.conditions(&s)
	return s
}

func relative(k topology.Key, namespace string) string {
	if k.Namespace == namespace {
		return k.Name
	}
	return k.String()
}

func (f *facts) sources(s *v1alpha1.ReplicationNodeStatus) {
	seen := map[string]observedSource{}
	if f.observed != nil {
		for _, o := range f.observed.sources {
			seen[o.name] = o
		}
	}
	candidates := map[string][]v1alpha1.CandidateStatus{}
	for _, w := range f.plan.Wiring.Sources {
		for _, c := range w.Candidates {
			candidates[w.Name] = append(candidates[w.Name], v1alpha1.CandidateStatus{ID: c.ID, Eligible: c.Eligible, Why: c.Why})
		}
	}
	before := f.node.Status.Sources
	s.Sources, s.Parent = nil, ""
	for _, is := range f.kinds() {
		name := is.name
		out := v1alpha1.NodeSourceStatus{Name: name, Kind: is.kind, Candidates: candidates[name]}
		for _, p := range f.plan.Sources {
			if p.Name == name && p.Postgres != nil {
				out.Slot = p.Postgres.Slot
			}
		}
		if o, ok := seen[name]; ok {
			out.State, out.Parent, out.RetainedWAL, out.HistoryLost = o.state, o.parent, o.retained, o.historyLost
		} else if i := slices.IndexFunc(before, func(b v1alpha1.NodeSourceStatus) bool { return b.Name == name }); i >= 0 && f.running.existing > 0 {
			out.State, out.Parent, out.HistoryLost = before[i].State, before[i].Parent, before[i].HistoryLost // the node's last word
		}
		if out.Parent != nil && s.Parent == "" {
			s.Parent = strings.TrimPrefix(out.Parent.ID, f.node.Namespace+"/")
		}
		s.Sources = append(s.Sources, out)
	}
}

type sourceKind struct{ name, kind string }

// kinds are the node's sources: those of its spec, its mesh, and its children in a tree.
func (f *facts) kinds() (out []sourceKind) {
	for _, s := range f.node.Spec.Sources {
		kind := nodeconfig.KindFanout
		switch {
		case s.Postgres != nil || s.PostgresSourceRef != nil:
			kind = nodeconfig.KindPostgres
		case s.Ingest != nil:
			kind = nodeconfig.KindIngest
		case s.Archive != nil || s.ArchiveSourceRef != nil:
			kind = nodeconfig.KindArchive
		}
		out = append(out, sourceKind{s.Name, kind})
	}
	if f.plan.Mesh != (topology.Key{}) {
		out = append(out, sourceKind{topology.MeshSource, nodeconfig.KindMesh})
	}
	if f.plan.Tree != (topology.Key{}) && f.plan.Leaf == nil {
		out = append(out, sourceKind{topology.ChildrenSource, nodeconfig.KindChildren})
	}
	return out
}

func (f *facts) sinks(s *v1alpha1.ReplicationNodeStatus) {
	s.Sinks = nil
	for i := range f.node.Spec.Sinks {
		out := v1alpha1.NodeSinkStatus{Name: f.node.Spec.Sinks[i].Name}
		if f.observed != nil {
			for _, o := range f.observed.sinks {
				if o.name == out.Name {
					out.State, out.DeadLetters = o.state, o.deadLetters
				}
			}
		}
		s.Sinks = append(s.Sinks, out)
	}
}

func (f *facts) storage(s *v1alpha1.ReplicationNodeStatus) {
	s.Storage = nil
	if f.volume == nil {
		return
	}
	s.Storage = &v1alpha1.NodeStorageStatus{Claim: f.volume.claim}
	if !f.volume.capacity.IsZero() {
		s.Storage.Capacity = new(f.volume.capacity.DeepCopy())
	}
	if f.observed != nil {
		s.Storage.Used = round(f.observed.store.Bytes)
	}
}

func (f *facts) conditions(s *v1alpha1.ReplicationNodeStatus) {
	c := conditions{&s.Conditions, f.node.Generation}
	c.plan(f.plan.Conditions)
	if f.invalid != "" {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, f.invalid)
	}

	available, reason, message := f.available()
	c.set(v1alpha1.ConditionWorkloadAvailable, available, reason, message)

	switch o := f.observed; {
	case f.node.Spec.Suspend:
		c.set(v1alpha1.ConditionStreaming, metav1.ConditionFalse, v1alpha1.ReasonSuspended, "The node is suspended.")
		c.set(v1alpha1.ConditionCaughtUp, metav1.ConditionUnknown, v1alpha1.ReasonSuspended, "The node is suspended.")
	case o == nil:
		c.set(v1alpha1.ConditionStreaming, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "No pod of the node has told its status yet.")
		c.set(v1alpha1.ConditionCaughtUp, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "No pod of the node has told its status yet.")
	default:
		status, reason, message := o.streaming()
		c.set(v1alpha1.ConditionStreaming, status, reason, message)
		if status == metav1.ConditionFalse && o.loop != "" {
			c.set(v1alpha1.ConditionAcyclic, metav1.ConditionFalse, v1alpha1.ReasonLoopDetected, fmt.Sprintf("Data came back to this node: %s. Take one of these nodes' upstreams out, or turn one around.", o.loop))
		}
		switch {
		case o.lagging:
			c.set(v1alpha1.ConditionCaughtUp, metav1.ConditionFalse, v1alpha1.ReasonLagging, "The node is more than a minute behind.")
		case o.unknown != "":
			c.set(v1alpha1.ConditionCaughtUp, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, fmt.Sprintf("It is not known how far the node is behind %s: nothing is heard of that origin.", o.unknown))
		case o.lag == "":
			c.set(v1alpha1.ConditionCaughtUp, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "The node carries no log yet.")
		default:
			c.set(v1alpha1.ConditionCaughtUp, metav1.ConditionTrue, v1alpha1.ReasonCaughtUp, "The node is less than a minute behind.")
		}
	}

	if f.volume == nil {
		meta.RemoveStatusCondition(c.list, v1alpha1.ConditionStorageHealthy)
	} else {
		status, reason, message := f.volume.storage(f.observed)
		c.set(v1alpha1.ConditionStorageHealthy, status, reason, message)
	}
	switch {
	case len(f.node.Spec.Sinks) == 0:
		meta.RemoveStatusCondition(c.list, v1alpha1.ConditionSinksHealthy)
	case f.node.Spec.Suspend:
		c.set(v1alpha1.ConditionSinksHealthy, metav1.ConditionUnknown, v1alpha1.ReasonSuspended, "The node is suspended.")
	case f.observed == nil:
		c.set(v1alpha1.ConditionSinksHealthy, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "No pod of the node has told its status yet.")
	default:
		status, reason, message := f.observed.sinksHealthy()
		c.set(v1alpha1.ConditionSinksHealthy, status, reason, message)
	}

	archives := false
	if len(f.node.Spec.Archives) == 0 {
		meta.RemoveStatusCondition(c.list, v1alpha1.ConditionArchiveHealthy)
	} else {
		archives = f.archivesCondition(c)
	}

	moving := motion{message: message}
	switch {
	case f.waits != "":
		moving.reason = v1alpha1.ReasonWaitingForTier
	case f.running.rolling():
		moving.reason = v1alpha1.ReasonRollingOut
	}
	kinds := []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionAcyclic, v1alpha1.ConditionStreaming, v1alpha1.ConditionWorkloadAvailable}
	if f.node.Spec.Suspend || f.conflict != "" { // says more than that nothing streams
		kinds[3], kinds[4] = kinds[4], kinds[3]
	}
	if f.volume != nil && !f.node.Spec.Suspend {
		kinds = slices.Insert(kinds, 3, v1alpha1.ConditionStorageHealthy)
	}
	if len(f.node.Spec.Sinks) > 0 {
		kinds = append(kinds, v1alpha1.ConditionSinksHealthy)
	}
	if archives {
		kinds = append(kinds, v1alpha1.ConditionArchiveHealthy)
	}
	c.summarize(moving, kinds...)
}

// available is the condition WorkloadAvailable.
func (f *facts) available() (status metav1.ConditionStatus, reason, message string) {
	r := f.running
	pods := fmt.Sprintf("%d of %d pods are available.", r.available, r.desired) + r.trouble
	switch {
	case f.node.Spec.Suspend:
		return metav1.ConditionFalse, v1alpha1.ReasonSuspended, "spec.suspend is true: no pod runs."
	case f.conflict != "":
		return metav1.ConditionFalse, v1alpha1.ReasonObjectConflict, f.conflict
	case r.object == nil && f.plan.Action != topology.Apply:
		return metav1.ConditionFalse, v1alpha1.ReasonWaiting, "The pods are not created before the other conditions allow it."
	case r.object == nil:
		return metav1.ConditionFalse, v1alpha1.ReasonProgressing, "The pods are being created."
	case r.desired == 0:
		return metav1.ConditionFalse, v1alpha1.ReasonSuspended, "spec.replicas is 0: no pod runs."
	case f.waits != "":
		return metav1.ConditionTrue, v1alpha1.ReasonWaitingForTier, fmt.Sprintf("The pods are replaced later: %s.", f.waits)
	case r.rolling() && r.available == 0:
		return metav1.ConditionFalse, v1alpha1.ReasonRollingOut, pods
	case r.rolling():
		return metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "The pods are being replaced." + r.trouble
	case r.available == 0:
		return metav1.ConditionFalse, v1alpha1.ReasonProgressing, pods
	case r.available < r.desired:
		return metav1.ConditionTrue, v1alpha1.ReasonProgressing, pods
	}
	return metav1.ConditionTrue, v1alpha1.ReasonAvailable, "All pods are available."
}
