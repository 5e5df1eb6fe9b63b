package node

import (
	"encoding/json"
	"net/http"
	"os"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/readapi"
)

// sourceState maps a reason to the coarser state of the status document.
func sourceState(reason string) string {
	switch reason {
	case engine.ReasonConnecting:
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
	st := n.engine.Status()
	doc := nodeconfig.Statusz{
		Node: st.NodeID, Instance: n.instance, Version: version.String(),
		Ready: st.Ready, Draining: n.draining.Load(), WiringEpoch: n.wiringEpoch.Load(),
		Sources: []nodeconfig.SourceStatus{}, Logs: []nodeconfig.LogStatus{},
		Tables: []nodeconfig.TableStatus{}, Readers: []nodeconfig.ReaderStatus{},
	}
	for _, s := range st.Sources {
		d := nodeconfig.SourceStatus{
			Name: s.Name, Reason: s.Reason, Message: s.Message, Since: s.Since, State: sourceState(s.Reason),
		}
		n.describeSource(s.Name, &d)
		doc.Sources = append(doc.Sources, d)
		doc.Rebaselines += int64(s.Rebaselines)
	}
	for _, l := range st.Logs {
		d := nodeconfig.LogStatus{
			Origin: l.ID.Origin, Epoch: l.ID.Epoch.String(), Source: l.Source,
			Head: string(l.Head), Oldest: string(l.Oldest), Path: l.Path,
			LagKnown: l.Lag.Known, LagSeconds: l.Lag.Seconds,
		}
		if l.Time > 0 {
			d.AppliedTime = l.Time.Wall()
		}
		doc.Logs = append(doc.Logs, d)
	}
	for _, t := range st.Tables {
		doc.Tables = append(doc.Tables, nodeconfig.TableStatus{Name: readapi.FormatTable(t.Table), Rows: int64(t.Rows)})
	}
	doc.Readers = append(doc.Readers, n.readers()...)
	doc.Refused = n.refused()
	doc.Store = n.storeStatus()
	for _, d := range n.sinks {
		doc.Sinks = append(doc.Sinks, d.describe())
	}
	return doc
}

func (n *node) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		st := n.engine.Status()
		switch {
		case n.draining.Load():
			http.Error(w, "draining", http.StatusServiceUnavailable)
		case !st.Ready:
			http.Error(w, "not every source has been baselined", http.StatusServiceUnavailable)
		default:
			_, _ = w.Write([]byte("ok\n"))
		}
	})
	mux.HandleFunc("GET /statusz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(n.Status())
	})
	mux.Handle("GET /metrics", n.metricsHandler())
	n.sinkRoutes(mux)
	var guard readapi.Guard
	if n.guard != nil {
		guard = n.guard
	}
	mux.Handle("/v1/", readapi.Handler(n.engine, guard))
	return mux
}

func instanceName() string {
	if h, err := os.Hostname(); err == nil {
		return h
	}
	return ""
}
