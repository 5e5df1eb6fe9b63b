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

// heardMember is what a member of a mesh says of its logs and its peers.
type heardMember struct {
	logs  []nodeconfig.LogStatus // that come in by a source, by origin and epoch
	peers []heardPeer
	// policies is the digest of its conflict policies.
	policies string
}

type heardPeer struct {
	id        string
	connected bool
	message   string
}

// hearMember reduces the status document of a member's only pod to what the
// status of its mesh shows.
func hearMember(d *nodeconfig.Statusz) *heardMember {
	h := &heardMember{policies: d.ConflictDigest}
	meshed := false
	for _, s := range d.Sources {
		if s.Kind != nodeconfig.KindMesh {
			continue
		}
		meshed = true
		for _, p := range s.Peers {
			h.peers = append(h.peers, heardPeer{p.ID, p.Connected, p.Message})
		}
	}
	if !meshed {
		return nil
	}
	for _, l := range d.Logs {
		if l.Source != "" {
			h.logs = append(h.logs, nodeconfig.LogStatus{
				Origin: l.Origin, Epoch: l.Epoch, Head: l.Head, State: l.State, Path: l.Path, LagKnown: l.LagKnown, LagSeconds: l.LagSeconds,
			})
		}
	}
	slices.SortFunc(h.logs, func(a, b nodeconfig.LogStatus) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
	})
	return h
}

// meshFacts is everything that the status of a mesh is made from.
type meshFacts struct {
	mesh  *v1alpha1.ReplicationMesh
	plan  *topology.Mesh
	nodes map[topology.Key]*v1alpha1.ReplicationNode // members
	heard map[topology.Key]*heardMember              // nil of those that say nothing
	// moving are the members that are not yet what they are to be.
	moving []string
}

const (
	maxMeshOrigins = 64
	// convergedWithin is the lag up to which a member has what the others have.
	convergedWithin = time.Second
	// stateMissing: other members have the log, and this one does not.
	stateMissing = "Missing"
)

func (f *meshFacts) status() v1alpha1.ReplicationMeshStatus {
	s := *f.mesh.Status.DeepCopy()
	s.ObservedGeneration = f.mesh.Generation
	origins := f.origins()
	s.OriginCount, s.Origins = int32(len(origins)), nil
	slices.SortStableFunc(origins, func(a, b originFacts) int { return cmp.Compare(b.badness(), a.badness()) })
	for _, o := range origins {
		if len(s.Origins) < maxMeshOrigins {
			s.Origins = append(s.Origins, o.MeshOriginStatus)
		}
	}
	f.members(&s)
	f.conditions(&s, origins)
	return s
}

// members is the state of each member, and the summaries of all.
func (f *meshFacts) members(s *v1alpha1.ReplicationMeshStatus) {
	s.Members = nil
	ready := 0
	worst, some, known := time.Duration(0), false, true
	for _, m := range f.plan.Members {
		out := v1alpha1.MeshMemberStatus{Name: m.Node.Name, Peers: int32(len(m.Peers))}
		if c := meta.FindStatusCondition(f.nodes[m.Node].Status.Conditions, v1alpha1.ConditionReady); c != nil {
			if out.Ready = c.Status == metav1.ConditionTrue; !out.Ready {
				out.Message = limited(c.Message)
			}
		}
		if out.Ready {
			ready++
		}
		if h := f.heard[m.Node]; h != nil {
			lag := time.Duration(0)
			clear := true // how far it is behind
			for _, l := range h.logs {
				lag, clear = max(lag, lagOf(&l)), clear && l.LagKnown
			}
			if len(h.logs) > 0 && clear {
				out.Lag = lagStep(lag)
			}
			some, known = some || len(h.logs) > 0, known && clear
			worst = max(worst, lag)
			for _, p := range m.Peers {
				i := slices.IndexFunc(h.peers, func(o heardPeer) bool { return o.id == p.String() })
				switch {
				case i < 0:
				case h.peers[i].connected:
					out.Connected++
				case out.Message == "":
					out.Message = limited(fmt.Sprintf("No session with %s. %s", p.Name, h.peers[i].message))
				}
			}
		}
		s.Members = append(s.Members, out)
	}
	s.Summary, s.Lag = fmt.Sprintf("%d/%d", ready, len(s.Members)), ""
	if some && known {
		s.Lag = lagStep(worst)
	}
}

func lagOf(l *nodeconfig.LogStatus) time.Duration {
	return time.Duration(l.LagSeconds * float64(time.Second))
}

// originFacts is how far the members are with one log.
type originFacts struct {
	v1alpha1.MeshOriginStatus
	behind map[string]bool // members that are not within convergedWithin
	lag    time.Duration   // of the worst
}

// badness orders logs: those that members lack or are stuck with first, then by
// lag.
func (o *originFacts) badness() float64 {
	if o.Worst == nil {
		return -1
	}
	return float64(worse[o.Worst.State])*1e9 + o.lag.Seconds()
}

// worse orders the states of a log at a member.
var worse = map[string]int{nodeconfig.LogBehind: 1, nodeconfig.LogUnknown: 2, nodeconfig.LogStalled: 3, nodeconfig.LogHeld: 4, stateMissing: 5}

// origins puts together what the members that were heard say of each log, by
// origin and epoch.
func (f *meshFacts) origins() []originFacts {
	type id struct{ origin, epoch string }
	all := map[id]*originFacts{}
	for _, m := range f.plan.Members {
		h := f.heard[m.Node]
		if h == nil {
			continue
		}
		for _, l := range h.logs {
			k := id{l.Origin, l.Epoch}
			if all[k] == nil {
				all[k] = &originFacts{MeshOriginStatus: v1alpha1.MeshOriginStatus{Origin: l.Origin, Epoch: l.Epoch}, behind: map[string]bool{}}
			}
			if len(l.Path) == 1 {
				all[k].Node, all[k].Head = m.Node.Name, l.Head
			}
		}
	}
	for k, o := range all {
		for _, m := range f.plan.Members {
			h := f.heard[m.Node]
			if h == nil {
				continue
			}
			i := slices.IndexFunc(h.logs, func(l nodeconfig.LogStatus) bool { return l.Origin == k.origin && l.Epoch == k.epoch })
			if i < 0 {
				o.behind[m.Node.Name] = true
				o.take(v1alpha1.MeshOriginMember{Name: m.Node.Name, State: stateMissing}, 0)
				continue
			}
			l := &h.logs[i]
			o.Members++
			if l.State == nodeconfig.LogCurrent {
				o.Current++
				continue
			}
			at := v1alpha1.MeshOriginMember{Name: m.Node.Name, Applied: l.Head, State: l.State}
			if l.LagKnown {
				at.Lag = lagStep(lagOf(l))
			}
			if !l.LagKnown || lagOf(l) >= convergedWithin || l.State == nodeconfig.LogHeld {
				o.behind[m.Node.Name] = true
			}
			o.take(at, lagOf(l))
		}
	}
	out := make([]originFacts, 0, len(all))
	for _, o := range all {
		out = append(out, *o)
	}
	slices.SortFunc(out, func(a, b originFacts) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
	})
	return out
}

// take keeps a member if it is worse off than the worst so far.
func (o *originFacts) take(m v1alpha1.MeshOriginMember, lag time.Duration) {
	if o.Worst == nil || worse[m.State] > worse[o.Worst.State] || m.State == o.Worst.State && lag > o.lag {
		o.Worst, o.lag = &m, lag
	}
}

func (f *meshFacts) conditions(s *v1alpha1.ReplicationMeshStatus, origins []originFacts) {
	c := conditions{&s.Conditions, f.mesh.Generation}
	c.plan(f.plan.Conditions)

	var notReady, apart, silent []string
	for i, m := range s.Members {
		switch {
		case f.heard[f.plan.Members[i].Node] == nil:
			silent = append(silent, m.Name)
		case m.Connected < m.Peers:
			apart = append(apart, strings.TrimSpace(fmt.Sprintf("%s has sessions with %d of %d peers. %s", m.Name, m.Connected, m.Peers, m.Message)))
		}
		if !m.Ready {
			notReady = append(notReady, strings.TrimSpace(m.Name+" is not ready. "+m.Message))
		}
	}
	switch {
	case len(s.Members) == 0:
		c.set(v1alpha1.ConditionMembersReady, metav1.ConditionFalse, v1alpha1.ReasonMembersNotReady, "The mesh has no member.")
	case len(notReady) > 0:
		c.set(v1alpha1.ConditionMembersReady, metav1.ConditionFalse, v1alpha1.ReasonMembersNotReady, sentences(notReady))
	default:
		c.set(v1alpha1.ConditionMembersReady, metav1.ConditionTrue, v1alpha1.ReasonMembersReady, "Every member is ready.")
	}
	switch {
	case len(apart) > 0:
		c.set(v1alpha1.ConditionPeersConnected, metav1.ConditionFalse, v1alpha1.ReasonPeersMissing, sentences(apart))
	case len(silent) > 0:
		c.set(v1alpha1.ConditionPeersConnected, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, fmt.Sprintf("No status yet of: %s.", listed(silent)))
	default:
		c.set(v1alpha1.ConditionPeersConnected, metav1.ConditionTrue, v1alpha1.ReasonConnected, "Every member has a session with each of its peers.")
	}
	switch differ := f.differ(); {
	case differ != "":
		c.set(v1alpha1.ConditionConflictPolicyAgreed, metav1.ConditionFalse, v1alpha1.ReasonPoliciesDiffer, differ)
	case len(silent) > 0:
		c.set(v1alpha1.ConditionConflictPolicyAgreed, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, fmt.Sprintf("No status yet of: %s.", listed(silent)))
	default:
		c.set(v1alpha1.ConditionConflictPolicyAgreed, metav1.ConditionTrue, v1alpha1.ReasonAgreed, "Every member has the same conflict policies.")
	}
	status, reason, message := converged(origins, silent)
	c.set(v1alpha1.ConditionConverged, status, reason, message)

	c.summarize(onTheirWay(f.moving), v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionMembersReady, v1alpha1.ConditionPeersConnected, v1alpha1.ConditionConflictPolicyAgreed)
}

// differ says which members that are heard run with other conflict policies than
// the first of them; empty if none does.
func (f *meshFacts) differ() string {
	var first *heardMember
	var others []string
	name := ""
	for _, m := range f.plan.Members {
		switch h := f.heard[m.Node]; {
		case h == nil:
		case first == nil:
			first, name = h, m.Node.Name
		case h.policies != first.policies:
			others = append(others, m.Node.Name)
		}
	}
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("Not with the conflict policies of %s: %s. What these take, others may refuse, until all have the same.", name, listed(others))
}

// converged is the condition Converged: whether every member that is heard has
// every log, and if not, how far.
func converged(origins []originFacts, silent []string) (status metav1.ConditionStatus, reason, message string) {
	behind := map[string]int{}
	var worst *originFacts
	for i := range origins {
		o := &origins[i]
		for name := range o.behind {
			behind[name]++
		}
		if len(o.behind) > 0 && (worst == nil || o.badness() > worst.badness()) {
			worst = o
		}
	}
	switch {
	case worst != nil:
		var at []string
		for _, name := range slices.Sorted(maps.Keys(behind)) {
			at = append(at, fmt.Sprintf("%s is behind with %d of %d logs.", name, behind[name], len(origins)))
		}
		w := worst.Worst
		text := fmt.Sprintf("%s Worst: %s is %s with %s", sentences(at), w.Name, w.State, worst.Origin)
		if w.Lag != "" {
			text += ", " + w.Lag
		}
		return metav1.ConditionFalse, v1alpha1.ReasonConverging, text + "."
	case len(silent) > 0:
		return metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, fmt.Sprintf("The others have all %d logs, within a second; no status yet of: %s.", len(origins), listed(silent))
	}
	return metav1.ConditionTrue, v1alpha1.ReasonConverged, fmt.Sprintf("Every member has all %d logs, within a second.", len(origins))
}

// maxListed bounds how many things a message of a mesh lists.
const maxListed = 5

func listed(names []string) string {
	if len(names) > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
	}
	return strings.Join(names, ", ")
}

// sentences joins the first of many.
func sentences(all []string) string {
	if len(all) > maxListed {
		return fmt.Sprintf("%s And %d more.", strings.Join(all[:maxListed], " "), len(all)-maxListed)
	}
	return strings.Join(all, " ")
}
