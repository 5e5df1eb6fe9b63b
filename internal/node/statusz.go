package node

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/readapi"
)

// sourceState maps a reason to the coarser state of the status document.
func sourceState(reason string) string {
	switch reason {
	case engine.ReasonConnecting, engine.ReasonRejoining:
		return nodeconfig.StateStarting
	case engine.ReasonBaselining, engine.ReasonRebaselining:
		return nodeconfig.StateBaselining
	case engine.ReasonStreaming:
		return nodeconfig.StateStreaming
	case engine.ReasonPaused:
		return nodeconfig.StatePaused
	}
	return nodeconfig.StateFailed
}

// Status returns the node's status document.
func (n *node) Status() nodeconfig.Statusz {
	st := n.engineStatus()
	doc := nodeconfig.Statusz{
		Node: st.NodeID, Instance: n.instance, Version: version.String(),
		Ready: st.Ready, Draining: n.draining.Load(), WiringEpoch: n.wiringEpoch.Load(), ConflictDigest: n.engine.ConflictDigest(),
		Sources: []nodeconfig.SourceStatus{}, Logs: []nodeconfig.LogStatus{},
		Tables: []nodeconfig.TableStatus{}, Readers: []nodeconfig.ReaderStatus{},
	}
	for _, s := range st.Sources {
		d := nodeconfig.SourceStatus{
			Name: s.Name, Reason: s.Reason, Message: s.Message, Since: s.Since, State: sourceState(s.Reason), HistoryLost: s.HistoryLost, LastCause: s.LastCause,
		}
		n.describeSource(s.Name, &d)
		doc.Sources = append(doc.Sources, d)
		doc.Rebaselines += int64(s.Rebaselines)
	}
	doc.Logs = append(doc.Logs, n.logsOf(&st)...)
	for _, t := range st.Tables {
		d := nodeconfig.TableStatus{Name: readapi.FormatTable(t.Table), Rows: int64(t.Rows)}
		describeConflicts(&d, st.Conflicts, t.Table)
		doc.Tables = append(doc.Tables, d)
	}
	for _, c := range st.Conflicts { // also of a table of which nothing was admitted
		if len(c.Refused) > 0 && !slices.ContainsFunc(st.Tables, func(t engine.TableInfo) bool { return t.Table == c.Table }) {
			d := nodeconfig.TableStatus{Name: readapi.FormatTable(c.Table)}
			describeConflicts(&d, st.Conflicts, c.Table)
			doc.Tables = append(doc.Tables, d)
		}
	}
	doc.Readers = append(doc.Readers, n.readers()...)
	doc.Refused = n.refused()
	doc.Store = n.storeStatus()
	doc.Tree = n.describeTree()
	doc.Passed = n.passed()
	doc.Archives = n.archives.describe()
	for _, d := range n.sinks {
		doc.Sinks = append(doc.Sinks, d.describe())
	}
	return doc
}

// logs returns how far the node is with each log; of two epochs of an origin, with
// the newer.
func (n *node) logs() []nodeconfig.LogStatus {
	st := n.engine.Status()
	var all []nodeconfig.LogStatus
	for _, l := range n.logsOf(&st) {
		if i := len(all) - 1; i >= 0 && all[i].Origin == l.Origin {
			all[i] = l
			continue
		}
		all = append(all, l)
	}
	return all
}

func (n *node) logsOf(st *engine.Status) (all []nodeconfig.LogStatus) {
	delivered := n.delivered()
	for _, l := range st.Logs {
		d := nodeconfig.LogStatus{
			SourceHead: string(l.SourceHead), State: logState(&l),
			Origin: l.ID.Origin, Epoch: l.ID.Epoch.String(), Source: l.Source,
			Head: string(l.Head), Oldest: string(l.Oldest), Path: l.Path,
			LagKnown: l.Lag.Known, LagSeconds: l.Lag.Seconds, RepeatedChanges: l.Repeated,
		}
		if l.Lag.CountKnown {
			d.LagChanges = &l.Lag.Changes
		}
		if l.Time > 0 {
			d.AppliedTime = l.Time.Wall()
		}
		if n.store.Durable() {
			d.Durable = string(l.Head)
		}
		if r, ok := delivered[l.ID]; ok {
			d.Received, d.Peer = string(r.Received), r.Peer
			d.Delivery = &nodeconfig.DeliveryStatus{
				Bytes: r.Counts.Bytes, Floors: r.Counts.Floors, BufferedBytes: r.Buffered, Duplicates: r.Counts.Duplicates, DuplicateBytes: r.Counts.DuplicateBytes, Holes: r.Counts.Holes,
				Resets: r.Counts.Resets, Snapshots: r.Counts.Snapshots, StateDeltas: r.Counts.StateDeltas, Replays: r.Counts.Replays, CreditStalls: r.Counts.Starved,
				Moves: int64(r.Moves), Message: r.Held,
			}
			if r.Held != "" {
				d.State = nodeconfig.LogHeld
			}
		}
		all = append(all, d)
	}
	return all
}

// delivered returns how the logs that come from other nodes have come here.
func (n *node) delivered() map[engine.LogID]client.MeshLog {
	all := map[engine.LogID]client.MeshLog{}
	for _, u := range n.upstream {
		st := u.source.Status()
		for _, p := range st.Logs {
			all[p.Log] = client.MeshLog{LogPlace: p, Peer: st.Peer}
		}
	}
	if n.mesh != nil {
		for _, l := range n.mesh.source.Status().Logs {
			all[l.Log] = l
		}
	}
	if n.children != nil {
		for _, l := range n.children.source.Status().Logs {
			all[l.Log] = l
		}
	}
	return all
}

// stalledAfter is how long a log that is behind may stand still before it counts
// as stalled.
const stalledAfter = 10 * time.Second

func logState(l *engine.LogStatus) string {
	switch {
	case !l.Lag.Known:
		return nodeconfig.LogUnknown
	case l.Lag.Seconds == 0:
		return nodeconfig.LogCurrent
	case time.Since(l.Moved) > stalledAfter:
		return nodeconfig.LogStalled
	}
	return nodeconfig.LogBehind
}

func alive(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }

// describe answers with what a node says of itself.
func describe(status func() nodeconfig.Statusz) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(status())
	}
}

func (n *node) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		st := n.engine.Status()
		why := n.unready(&st)
		switch {
		case n.draining.Load():
			http.Error(w, "draining", http.StatusServiceUnavailable)
		case why != "":
			http.Error(w, why, http.StatusServiceUnavailable)
		default:
			_, _ = w.Write([]byte("ok\n"))
		}
	})
	mux.HandleFunc("GET /statusz", describe(n.Status))
	mux.Handle("GET /metrics", n.metricsHandler())
	n.sinkRoutes(mux)
	n.archives.routes(mux)
	var guard readapi.Guard
	if n.guard != nil {
		guard = n.guard
	}
	mux.Handle("/v1/", readapi.Handler(n.engine, guard, n.counters()))
	return mux
}

func instanceName() string {
	if h, err := os.Hostname(); err == nil {
		return h
	}
	return ""
}
