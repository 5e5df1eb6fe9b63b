package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/pgsession"
	"github.com/tributary-dev/tributary/pkg/readapi"
	"github.com/tributary-dev/tributary/pkg/sinks"
	httpsink "github.com/tributary-dev/tributary/pkg/sinks/http"
	pgsink "github.com/tributary-dev/tributary/pkg/sinks/postgres"
)

// delivery is a sink in the node.
type delivery struct {
	*sinks.Sink
	kind string
}

// addSink makes a sink of its configuration.
func (n *node) addSink(s *nodeconfig.Sink) error {
	c := sinks.Config{
		Name: s.Name, Host: n.engine, Store: n.store, OnReject: sinks.OnReject(s.OnReject), MaxDeadLetters: s.DeadLetters.MaxEntries, Logger: n.log,
		Tables: tablesOf(s.Tables),
	}
	as := n.cfg.Node.ID + "/" + s.Name // what the target knows the sink by
	var kind string
	var err error
	if p := s.Postgres; p != nil {
		kind = nodeconfig.SinkPostgres
		if p.Schema != "" {
			c.Variant = "schema=" + p.Schema
		}
		c.Target, err = pgsink.New(pgsink.Config{
			Session: pgsession.Config{
				ConnString:  connString(&p.PostgresServer, nodeconfig.TargetReadWrite),
				Credentials: func(context.Context) (string, string, error) { return p.Credentials() },
			},
			Sink: as, Schema: p.Schema, CreateTables: p.CreateTables, Provenance: p.Provenance, Counters: n.counters(),
		})
	} else {
		h := s.HTTP
		kind, c.BatchBytes = nodeconfig.SinkHTTP, int(h.MaxBatchBytes)
		hc := httpsink.Config{
			Name: s.Name, Sink: as, Store: n.store, URL: h.URL, TokenFile: h.TokenFile, Gzip: h.Gzip, Timeout: h.Timeout, MaxBytes: int(h.MaxBatchBytes),
		}
		if t := h.TLS; t != nil {
			hc.CAFile, hc.CertFile, hc.KeyFile, hc.ServerName = t.CAFile, t.CertFile, t.KeyFile, t.ServerName
		}
		for _, d := range h.Headers {
			hc.Headers = append(hc.Headers, httpsink.Header{Name: d.Name, Value: d.Value, ValueFile: d.ValueFile})
		}
		c.Target, err = httpsink.New(hc)
	}
	if err != nil {
		return err
	}
	sink, err := sinks.New(c)
	if err != nil {
		return err
	}
	n.sinks = append(n.sinks, delivery{sink, kind})
	return nil
}

// deliver runs the sink until ctx ends.
func (d delivery) deliver(ctx context.Context) error {
	if err := d.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

func (n *node) sinkMetrics() prometheus.Collector {
	all := make([]*sinks.Sink, len(n.sinks))
	for i, d := range n.sinks {
		all[i] = d.Sink
	}
	return sinks.Collector(all)
}

func (d delivery) describe() nodeconfig.SinkStatus {
	st := d.Status()
	out := nodeconfig.SinkStatus{
		Name: st.Name, Kind: d.kind, State: string(st.State), Message: st.Message, Since: st.Since, Logs: []nodeconfig.SinkLogStatus{},
		DeadLetters: int64(st.DeadLetters), LastError: st.LastError, Baselines: st.Baselines, Rebaselines: st.Rebaselines, LastCause: st.LastCause,
	}
	for _, l := range st.Logs {
		e := nodeconfig.SinkLogStatus{
			Origin: l.Log.Origin, Epoch: l.Log.Epoch.String(), Position: string(l.Position), Head: string(l.Head),
			LagKnown: l.Lag.Known, LagSeconds: l.Lag.Seconds,
		}
		if l.HeldError != "" {
			e.Held = &nodeconfig.HeldEntry{Error: l.HeldError, Since: l.HeldSince}
			if h := l.Held; h != nil {
				e.Held.Table, e.Held.Op, e.Held.Position = readapi.FormatTable(h.Table), h.Op.String(), string(h.Position)
				if len(h.Key) > 0 {
					e.Held.Key = sinks.FormatKey(h.Key)
				}
			}
		}
		out.Logs = append(out.Logs, e)
	}
	return out
}

// DeadLetter is a dead letter as the node's address shows it.
type DeadLetter struct {
	ID       string             `json:"id"`
	Table    string             `json:"table"`
	Op       string             `json:"op"`
	Key      string             `json:"key"`
	Row      map[string]*string `json:"row,omitempty"` // text by column
	Origin   string             `json:"origin"`
	Epoch    string             `json:"epoch"`
	Position string             `json:"position"`
	Error    string             `json:"error"`
	Since    time.Time          `json:"since"`
	Last     time.Time          `json:"last"`
	Attempts int                `json:"attempts"`
}

// Settled is what became of a dead letter.
type Settled struct {
	ID      string        `json:"id"`
	Outcome sinks.Outcome `json:"outcome,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// commandTimeout bounds how long a sink that is busy is waited for.
const commandTimeout = 30 * time.Second

func (n *node) sinkRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /sinks", func(w http.ResponseWriter, _ *http.Request) {
		all := []nodeconfig.SinkStatus{}
		for _, d := range n.sinks {
			all = append(all, d.describe())
		}
		answer(w, http.StatusOK, map[string]any{"sinks": all})
	})
	mux.HandleFunc("GET /sinks/{name}", n.withSink(func(w http.ResponseWriter, _ *http.Request, d delivery) {
		answer(w, http.StatusOK, d.describe())
	}))
	mux.HandleFunc("GET /sinks/{name}/deadletters", n.withSink(func(w http.ResponseWriter, _ *http.Request, d delivery) {
		out := []DeadLetter{}
		for _, l := range d.Letters() {
			out = append(out, DeadLetter{
				ID: l.ID, Table: readapi.FormatTable(engine.TableName{Schema: l.Schema, Name: l.Table}), Op: l.Op, Key: sinks.FormatKey(l.Key), Row: d.Values(&l),
				Origin: l.Origin, Epoch: l.Epoch.String(), Position: l.Position, Error: l.Error, Since: l.Since, Last: l.Last, Attempts: l.Attempts,
			})
		}
		answer(w, http.StatusOK, map[string]any{"deadLetters": out})
	}))
	for verb, do := range map[string]func(delivery, context.Context, string) (sinks.Outcome, error){
		"replay":  func(d delivery, ctx context.Context, id string) (sinks.Outcome, error) { return d.Replay(ctx, id) },
		"discard": func(d delivery, ctx context.Context, id string) (sinks.Outcome, error) { return d.Discard(ctx, id) },
	} {
		// All of them, oldest first, as far as that goes.
		mux.HandleFunc("POST /sinks/{name}/deadletters/"+verb, n.withSink(func(w http.ResponseWriter, r *http.Request, d delivery) {
			out := []Settled{}
			for _, l := range d.Letters() {
				s, code := settle(r.Context(), d, l.ID, do)
				out = append(out, s)
				if code == http.StatusServiceUnavailable {
					break
				}
			}
			answer(w, http.StatusOK, map[string]any{"deadLetters": out})
		}))
		mux.HandleFunc("POST /sinks/{name}/deadletters/{id}/"+verb, n.withSink(func(w http.ResponseWriter, r *http.Request, d delivery) {
			s, code := settle(r.Context(), d, r.PathValue("id"), do)
			answer(w, code, s)
		}))
	}
}

// settle replays or discards one dead letter.
func settle(ctx context.Context, d delivery, id string, do func(delivery, context.Context, string) (sinks.Outcome, error)) (Settled, int) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	outcome, err := do(d, ctx, id)
	s := Settled{ID: id, Outcome: outcome}
	var rej *sinks.Rejection
	switch {
	case err == nil:
		return s, http.StatusOK
	case errors.Is(err, sinks.ErrNoLetter):
		s.Error = fmt.Sprintf("sink %s has no dead letter %s: list them by GET /sinks/%s/deadletters", d.Name(), id, d.Name())
		return s, http.StatusNotFound
	case errors.As(err, &rej):
		s.Error = err.Error()
		return s, http.StatusConflict
	}
	s.Error = err.Error()
	return s, http.StatusServiceUnavailable
}

func (n *node) withSink(fn func(http.ResponseWriter, *http.Request, delivery)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		i := slices.IndexFunc(n.sinks, func(d delivery) bool { return d.Name() == name })
		if i < 0 {
			answer(w, http.StatusNotFound, map[string]string{"error": fmt.Sprintf("this node has no sink %q: list them by GET /sinks", name)})
			return
		}
		fn(w, r, n.sinks[i])
	}
}

func answer(w http.ResponseWriter, code int, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(cmp.Or(code, http.StatusOK))
	_, _ = w.Write(append(text, '\n'))
}
