package controllers

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	corev1 "k8s.io/api/core/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

// conditions sets the conditions of one resource, at one generation. Times of
// conditions that do not change are kept.
type conditions struct {
	list       *[]metav1.Condition
	generation int64
}

func (c conditions) set(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(c.list, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: c.generation})
}

func (c conditions) plan(planned []topology.Condition) {
	for _, p := range planned {
		c.set(p.Type, p.Status, p.Reason, p.Message)
	}
}

func (c conditions) get(kind string) metav1.Condition {
	if found := meta.FindStatusCondition(*c.list, kind); found != nil {
		return *found
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
}

// needsPerson are the reasons that nothing but a person's change ends.
var needsPerson = []string{
	v1alpha1.ReasonInvalid, v1alpha1.ReasonNotPermitted, v1alpha1.ReasonTLSMismatch, v1alpha1.ReasonSlotConflict,
	v1alpha1.ReasonArchiveConflict, v1alpha1.ReasonArchiveTableMismatch, v1alpha1.ReasonExportFailed,
	v1alpha1.ReasonArchiveFull, v1alpha1.ReasonArchiveFenced, v1alpha1.ReasonArchiveFailed,
	v1alpha1.ReasonMeshConflict, v1alpha1.ReasonMeshDivided, v1alpha1.ReasonTreeConflict, v1alpha1.ReasonLeafUnfit, v1alpha1.ReasonLogFull,
	v1alpha1.ReasonLoopDetected, v1alpha1.ReasonMaxDepthExceeded, v1alpha1.ReasonObjectConflict,
	v1alpha1.ReasonAuthenticationFailed, v1alpha1.ReasonPreflightFailed, v1alpha1.ReasonTableNotFound, v1alpha1.ReasonPermissionDenied, v1alpha1.ReasonNoReplicaIdentity,
	v1alpha1.ReasonSinkHeld, v1alpha1.ReasonSinkSuperseded, v1alpha1.ReasonDiskFull, v1alpha1.ReasonStoreFailed,
}

// motion is why a resource that is ready is not yet what its spec says; without a reason
// it is at rest.
type motion struct{ reason, message string }

// onTheirWay is the motion of a resource some of whose nodes are not yet what they are to
// be.
func onTheirWay(nodes []string) motion {
	if len(nodes) == 0 {
		return motion{}
	}
	return motion{v1alpha1.ReasonProgressing, fmt.Sprintf("Not yet all that they are to be: %s.", listed(nodes))}
}

// settled says that a node's status is of its present spec, and that it is not on its way
// anywhere.
func settled(n *v1alpha1.ReplicationNode) bool {
	return n.Status.ObservedGeneration == n.Generation && meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReconciling) == nil
}

// summarize sets Ready to the first condition of kinds that does not hold, and
// Reconciling and Stalled to what follows from it. A condition that is False
// comes before one that is Unknown. moving, if it has a reason, says that the resource
// is still on its way though it is ready, as in a rolling update.
func (c conditions) summarize(moving motion, kinds ...string) {
	ready := metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "Everything holds."}
	for _, status := range []metav1.ConditionStatus{metav1.ConditionUnknown, metav1.ConditionFalse} {
		for _, kind := range slices.Backward(kinds) {
			if found := c.get(kind); found.Status == status {
				ready = found
			}
		}
	}
	c.set(v1alpha1.ConditionReady, ready.Status, ready.Reason, ready.Message)
	stalled := ready.Status == metav1.ConditionFalse && slices.Contains(needsPerson, ready.Reason)
	reconciling := ready.Status != metav1.ConditionTrue && !stalled && ready.Reason != v1alpha1.ReasonSuspended
	if ready.Status == metav1.ConditionTrue && moving.reason != "" {
		reconciling, ready.Reason, ready.Message = true, moving.reason, moving.message
	}
	c.onlyWhileTrue(v1alpha1.ConditionStalled, stalled, ready)
	c.onlyWhileTrue(v1alpha1.ConditionReconciling, reconciling, ready)
}

func (c conditions) onlyWhileTrue(kind string, holds bool, as metav1.Condition) {
	if holds {
		c.set(kind, metav1.ConditionTrue, as.Reason, as.Message)
	} else {
		meta.RemoveStatusCondition(c.list, kind)
	}
}

// tell makes an event if Ready has changed.
func tell(recorder events.EventRecorder, o runtime.Object, before, after []metav1.Condition) {
	tellOf(recorder, o, v1alpha1.ConditionReady, before, after)
}

// tellOf makes an event if a condition has changed, unless Ready has for the same
// reason.
func tellOf(recorder events.EventRecorder, o runtime.Object, of string, before, after []metav1.Condition) {
	now := meta.FindStatusCondition(after, of)
	was := meta.FindStatusCondition(before, of)
	if ready := meta.FindStatusCondition(after, v1alpha1.ConditionReady); of != v1alpha1.ConditionReady && now != nil && ready != nil && ready.Reason == now.Reason {
		return
	}
	if now == nil || was != nil && was.Status == now.Status && was.Reason == now.Reason {
		return
	}
	kind := corev1.EventTypeNormal
	if meta.FindStatusCondition(after, v1alpha1.ConditionStalled) != nil || of != v1alpha1.ConditionReady && now.Status == metav1.ConditionFalse && slices.Contains(needsPerson, now.Reason) {
		kind = corev1.EventTypeWarning
	}
	recorder.Eventf(o, nil, kind, now.Reason, "Reconcile", "%s", limited(now.Message))
}

// limited keeps a note within what an event may hold.
func limited(s string) string {
	const most = 1000
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%.*s…", most, s)
}

func sameStatus(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }
