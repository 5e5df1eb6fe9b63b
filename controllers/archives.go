package controllers

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// archiveStates are the states of an archive that is not as it should be, from the
// worst: the reason that each is, what it comes to, and what comes next.
var archiveStates = []struct{ state, reason, means, next string }{
	{
		nodeconfig.ArchiveFenced, v1alpha1.ReasonArchiveFenced, "Another writer has it.",
		"Stop one of the writers, or give this one a key prefix of its own; set write.takeOver if this one is to go on. What is not archived is kept meanwhile.",
	},
	{
		nodeconfig.ArchiveFailed, v1alpha1.ReasonArchiveFailed, "It cannot be used.",
		"Mend what the message says; readers that are far behind take a snapshot meanwhile.",
	},
	{
		nodeconfig.ArchiveFull, v1alpha1.ReasonArchiveFull, "Its store has no room.",
		"Make room in the store, or let retention keep less: writing goes on by itself. What is not archived is kept meanwhile.",
	},
	{
		nodeconfig.ArchiveRetrying, v1alpha1.ReasonArchiveRetrying, "Its store cannot be used now.",
		"It is tried again by itself. What is not archived is kept meanwhile.",
	},
	{
		nodeconfig.ArchiveWaiting, v1alpha1.ReasonArchiveWaiting, "The node has no table to archive yet.",
		"The first base is written once a table is there.",
	},
}

const (
	nextWritten = "The next diff is written when the interval is over."
	nextRead    = "Readers that are far behind are caught up from it."
)

// changing is what of an error is another each time that the same happens: the ids of
// requests, and the ports of connections.
var changing = regexp.MustCompile(`(?i)(,? *(request ?id|host ?id|retry quota)[:=]? *[^\s,]*)|(\b(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:]+\]):\d+->)`)

// steady leaves out of an error what is another each time, so that status does not
// change with each try.
func steady(message string) string {
	const most = 1024
	message = changing.ReplaceAllString(message, "")
	if len(message) > most {
		message = fmt.Sprintf("%.*s…", most, message)
	}
	return message
}

// addArchive puts what a pod says of an archive to what others have said: the worst
// counts.
func (o *observed) addArchive(a *nodeconfig.ArchiveStatus) {
	r := a.Result()
	next := observedArchive{message: steady(a.Message), NodeArchiveStatus: v1alpha1.NodeArchiveStatus{
		Name: a.Name, State: a.State, Writes: a.Writes, Replays: r.Replays, ArchiveProgress: progress(&r),
	}}
	next.LastError = steady(a.LastError)
	next.NextStep = nextRead
	if a.Writes {
		next.NextStep = nextWritten
	}
	if i := slices.IndexFunc(archiveStates, isState(a.State)); i >= 0 {
		next.NextStep = archiveStates[i].next
	}
	if r.Lag != nil && a.Writes {
		next.Lag = lagStep(*r.Lag)
	}
	i := slices.IndexFunc(o.archives, func(p observedArchive) bool { return p.Name == a.Name })
	if i < 0 {
		o.archives = append(o.archives, next)
		return
	}
	next.Replays += o.archives[i].Replays
	if worseArchive(a.State, o.archives[i].State) {
		o.archives[i] = next
	}
	o.archives[i].Replays = next.Replays
}

type observedArchive struct {
	v1alpha1.NodeArchiveStatus
	message string
}

type archiveState = struct{ state, reason, means, next string }

func isState(state string) func(archiveState) bool {
	return func(s archiveState) bool { return s.state == state }
}

func worseArchive(a, b string) bool {
	i, j := slices.IndexFunc(archiveStates, isState(a)), slices.IndexFunc(archiveStates, isState(b))
	return i >= 0 && (j < 0 || i < j)
}

func progress(r *nodeconfig.ArchiveResult) v1alpha1.ArchiveProgress {
	out := v1alpha1.ArchiveProgress{
		Destination: r.Destination, Tables: int32(min(r.Tables, 1<<20)), Generation: int64(r.Generation), Bytes: round(r.Bytes), //nolint:gosec // within bounds
		LastError: steady(r.Error),
	}
	for _, h := range r.Heads {
		out.Heads = append(out.Heads, v1alpha1.ArchiveHead{Table: h.Table, Origin: h.Origin, Epoch: h.Epoch, Position: h.Position})
	}
	return out
}

// archivesHealthy is the condition that the archives' states come to; written says
// whether the one that it is about is written.
func (o *observed) archivesHealthy() (status metav1.ConditionStatus, reason, message string, written bool) {
	for _, onlyWritten := range []bool{true, false} { // one that is written counts for more
		for _, s := range archiveStates {
			for _, a := range o.archives {
				if a.State == s.state && (a.Writes || !onlyWritten) {
					return metav1.ConditionFalse, s.reason, fmt.Sprintf("Archive %s: %s Next: %s", a.Name, cmp.Or(a.message, s.means), s.next), a.Writes
				}
			}
		}
	}
	return metav1.ConditionTrue, v1alpha1.ReasonArchiveStreaming, "Every archive is written, or can be read.", false
}

func (f *facts) archives(s *v1alpha1.ReplicationNodeStatus) {
	before := s.Archives
	s.Archives = nil
	for i := range f.node.Spec.Archives {
		a := &f.node.Spec.Archives[i]
		out := v1alpha1.NodeArchiveStatus{Name: a.Name, Writes: a.Write != nil}
		if f.observed != nil {
			for _, o := range f.observed.archives {
				if o.Name == a.Name {
					out = *o.NodeArchiveStatus.DeepCopy()
				}
			}
		} else if j := slices.IndexFunc(before, func(b v1alpha1.NodeArchiveStatus) bool { return b.Name == a.Name }); j >= 0 {
			out = before[j] // the node's last word
		}
		s.Archives = append(s.Archives, out)
	}
}

// archivesCondition sets ArchiveHealthy and says whether Ready is affected by it.
func (f *facts) archivesCondition(c conditions) (counts bool) {
	written := slices.ContainsFunc(f.node.Spec.Archives, func(a v1alpha1.NodeArchive) bool { return a.Write != nil })
	switch {
	case f.node.Spec.Suspend:
		c.set(v1alpha1.ConditionArchiveHealthy, metav1.ConditionUnknown, v1alpha1.ReasonSuspended, "The node is suspended.")
	case f.observed == nil:
		c.set(v1alpha1.ConditionArchiveHealthy, metav1.ConditionUnknown, v1alpha1.ReasonStatusUnknown, "No pod of the node has told its status yet.")
	default:
		status, reason, message, of := f.observed.archivesHealthy()
		c.set(v1alpha1.ConditionArchiveHealthy, status, reason, message)
		return status == metav1.ConditionTrue || of
	}
	return written
}

// archiveWithoutProgress leaves out of what is known of an archive what changes all the time.
func archiveWithoutProgress(p v1alpha1.ArchiveProgress) v1alpha1.ArchiveProgress {
	return v1alpha1.ArchiveProgress{Destination: p.Destination, NextStep: p.NextStep}
}
