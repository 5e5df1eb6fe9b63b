package controllers

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// observed is what the pods of a node say, put together and reduced to what
// status shows, so that it is equal as long as status need not change.
type observed struct {
	pods        int
	sources     []observedSource
	origins     []v1alpha1.OriginStatus
	lag         string
	lagging     bool
	unknown     string // origin of a log of which it is not known how far the node is behind
	rebaselines int64
	cause       string // of a re-baseline
	loop        string // path of a log that came back, written out
	sinks       []observedSink
	archives    []observedArchive
	store       nodeconfig.StoreStatus // of the pod that keeps one; Bytes rounded
}

type observedSink struct {
	name, state, message string
	deadLetters          int64
}

type observedSource struct {
	name, kind, state string
	reason, message   string
	parent            *v1alpha1.ParentStatus
	retained          *resource.Quantity // WAL that the server keeps for the slot
	well              map[string]bool    // candidates by id
	historyLost       int64
	cause             string // of its last baseline but the first
}

// parents is which node each source reads from.
func (o *observed) parents() map[string]topology.Key {
	if o == nil {
		return nil
	}
	out := map[string]topology.Key{}
	for _, s := range o.sources {
		if s.parent != nil {
			if k, ok := topology.ParseID(s.parent.ID); ok {
				out[s.name] = k
			}
		}
	}
	return out
}

// causeOf is why a source was last baselined again, or took a new epoch.
func (o *observed) causeOf(source string) string {
	if i := slices.IndexFunc(o.sources, func(s observedSource) bool { return s.name == source }); i >= 0 {
		return o.sources[i].cause
	}
	return ""
}

const maxOrigins = 16

// observe puts together what the pods of one node say, in the order of their
// names: of each source the worst, of each origin the largest lag. Where a pod is ready,
// one that is not yet, or no longer, counts only with what a person must mend.
func observe(docs []*nodeconfig.Statusz) *observed {
	o := &observed{pods: len(docs)}
	var worst time.Duration
	origins := map[string]*v1alpha1.OriginStatus{}
	lags := map[string]time.Duration{}
	unknown := map[string]bool{} // of one pod at least
	docs = slices.Clone(docs)
	slices.SortStableFunc(docs, func(a, b *nodeconfig.Statusz) int { return unready(a) - unready(b) })
	for _, d := range docs {
		o.rebaselines += d.Rebaselines
		passing := docs[0].Ready && !d.Ready // it starts or ends, as in a rollout, and another serves
		for _, s := range d.Sources {
			o.addSource(s, passing)
		}
		if passing {
			continue
		}
		for _, l := range d.Logs {
			if l.Source == "" {
				continue
			}
			lag := time.Duration(l.LagSeconds * float64(time.Second))
			worst = max(worst, lag)
			id := l.Origin + "@" + l.Epoch
			if origins[id] == nil {
				origins[id] = &v1alpha1.OriginStatus{Origin: l.Origin, Epoch: l.Epoch, Hops: int32(max(len(l.Path)-1, 0)), LagChanges: new(int64)}
			}
			s := origins[id]
			if lags[id] = max(lags[id], lag); !l.LagKnown {
				unknown[id] = true
				o.unknown = cmp.Or(o.unknown, l.Origin)
			}
			if s.Lag = lagStep(lags[id]); unknown[id] {
				s.Lag = ""
			}
			switch {
			case l.LagChanges == nil:
				s.LagChanges = nil
			case s.LagChanges != nil:
				*s.LagChanges = max(*s.LagChanges, int64(*l.LagChanges))
			}
		}
		for _, s := range d.Sinks {
			o.sinks = append(o.sinks, observedSink{s.Name, s.State, s.Message, int64(s.DeadLetters)})
		}
		for i := range d.Archives {
			o.addArchive(&d.Archives[i])
		}
		if d.Store != nil {
			o.store = *d.Store
			if q := round(d.Store.Bytes); q != nil {
				o.store.Bytes = q.Value()
			}
		}
		for _, r := range d.Refused {
			if r.Reason == v1alpha1.ReasonLoopDetected && o.loop == "" {
				path := slices.Clone(r.Path)
				slices.Reverse(path) // a path is nearest first; data travels the other way
				o.loop = strings.Join(append(path, d.Node), " → ")
			}
		}
	}
	for _, s := range origins {
		o.origins = append(o.origins, *s)
	}
	slices.SortFunc(o.origins, func(a, b v1alpha1.OriginStatus) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
	})
	if len(o.origins) > maxOrigins {
		o.origins = o.origins[:maxOrigins]
	}
	if len(origins) > 0 {
		o.lag, o.lagging = lagStep(worst), worst >= laggingAfter
	}
	if o.unknown != "" {
		o.lag = ""
	}
	return o
}

func unready(d *nodeconfig.Statusz) int {
	if d.Ready {
		return 0
	}
	return 1
}

var badness = map[string]int{
	nodeconfig.StateStreaming: 0, nodeconfig.StatePaused: 1, nodeconfig.StateBaselining: 2, nodeconfig.StateStarting: 3, nodeconfig.StateFailed: 4,
}

func (o *observed) addSource(s nodeconfig.SourceStatus, passing bool) {
	next := observedSource{
		name: s.Name, kind: s.Kind, state: s.State, reason: s.Reason, message: s.Message, well: map[string]bool{},
		historyLost: int64(s.HistoryLost), cause: s.LastCause,
	}
	if next.cause != "" {
		o.cause = fmt.Sprintf("source %s: %s", s.Name, next.cause)
	}
	if s.Parent != nil {
		next.parent = &v1alpha1.ParentStatus{ID: s.Parent.ID, Address: s.Parent.Address, Why: s.Parent.Why}
		if !s.Parent.Since.IsZero() {
			next.parent.Since = &metav1.Time{Time: s.Parent.Since.Truncate(time.Second)}
		}
	}
	if s.Slot != nil {
		next.retained = round(s.Slot.RetainedBytes)
	}
	for _, c := range s.Candidates {
		next.well[c.ID] = c.Healthy
	}
	i := slices.IndexFunc(o.sources, func(p observedSource) bool { return p.name == s.Name })
	if i < 0 {
		if !passing || slices.Contains(needsPerson, s.Reason) {
			o.sources = append(o.sources, next)
		}
		return
	}
	next.historyLost += o.sources[i].historyLost
	next.cause = cmp.Or(next.cause, o.sources[i].cause)
	if badness[s.State] <= badness[o.sources[i].state] || passing && !slices.Contains(needsPerson, s.Reason) { // the former is the one to show
		was := o.sources[i]
		was.historyLost, was.cause = next.historyLost, next.cause
		next = was
	}
	o.sources[i] = next
}

// laggingAfter is the lag from which a node is not caught up.
const laggingAfter = time.Minute

// lagStep writes a lag in steps, so that status changes seldom.
func lagStep(lag time.Duration) string {
	for _, s := range []struct {
		below time.Duration
		text  string
	}{{time.Second, "<1s"}, {5 * time.Second, "<5s"}, {15 * time.Second, "<15s"}, {time.Minute, "<1m"}, {5 * time.Minute, "<5m"}, {15 * time.Minute, "<15m"}, {time.Hour, "<1h"}} {
		if lag < s.below {
			return s.text
		}
	}
	return ">=1h"
}

var camelCase = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,63}$`)

// streaming is the condition that the sources' states come to.
func (o *observed) streaming() (status metav1.ConditionStatus, reason, message string) {
	worst := observedSource{state: nodeconfig.StateStreaming}
	for _, s := range o.sources {
		if badness[s.state] > badness[worst.state] {
			worst = s
		}
	}
	switch worst.state {
	case nodeconfig.StateStreaming:
		return metav1.ConditionTrue, v1alpha1.ReasonStreaming, "Every source delivers."
	case nodeconfig.StatePaused:
		return metav1.ConditionTrue, v1alpha1.ReasonPaused, fmt.Sprintf("The source %s is paused; what arrives is buffered.", worst.name)
	case nodeconfig.StateBaselining:
		reason = v1alpha1.ReasonBaselining
	case nodeconfig.StateStarting:
		reason = v1alpha1.ReasonConnecting
	default:
		reason = v1alpha1.ReasonDisconnected
	}
	if camelCase.MatchString(worst.reason) {
		reason = worst.reason
	}
	message = worst.message
	if message == "" {
		message = map[string]string{
			v1alpha1.ReasonBaselining:   "The tables are being copied.",
			v1alpha1.ReasonRebaselining: "The tables are being copied again.",
			v1alpha1.ReasonConnecting:   "It is being connected to.",
		}[reason]
	}
	return metav1.ConditionFalse, reason, strings.TrimSpace(fmt.Sprintf("Source %s: %s", worst.name, message))
}

// sinkReasons are the states of a sink that does not deliver, from the worst.
var sinkReasons = []struct{ state, reason, otherwise string }{
	{nodeconfig.SinkHeld, v1alpha1.ReasonSinkHeld, "Its target rejects an entry."},
	{nodeconfig.SinkSuperseded, v1alpha1.ReasonSinkSuperseded, "Its target has a newer history than the node."},
	{nodeconfig.SinkRetrying, v1alpha1.ReasonSinkRetrying, "Its target cannot be reached."},
	{nodeconfig.SinkConnecting, v1alpha1.ReasonSinkConnecting, "Its target is being connected to."},
	{nodeconfig.SinkBaselining, v1alpha1.ReasonSinkBaselining, "The state is being copied to its target."},
}

// sinksHealthy is the condition that the sinks' states come to.
func (o *observed) sinksHealthy() (status metav1.ConditionStatus, reason, message string) {
	for _, r := range sinkReasons {
		for _, s := range o.sinks {
			if s.state == r.state {
				return metav1.ConditionFalse, r.reason, fmt.Sprintf("Sink %s: %s", s.name, cmp.Or(s.message, r.otherwise))
			}
		}
	}
	var waiting []string
	for _, s := range o.sinks {
		if s.deadLetters > 0 {
			waiting = append(waiting, s.name)
		}
	}
	if len(waiting) > 0 {
		return metav1.ConditionTrue, v1alpha1.ReasonDelivering, fmt.Sprintf("Every sink delivers; entries were put aside by %s: list and replay them at the node.", strings.Join(waiting, ", "))
	}
	return metav1.ConditionTrue, v1alpha1.ReasonDelivering, "Every sink delivers."
}
