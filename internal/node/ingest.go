package node

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// written is the ingest source, with the API that writes to it.
type written struct {
	name   string
	source *ingest.Source
	api    *ingestapi.API // once it is known who may write
}

func ingestTable(t *nodeconfig.IngestTable) ingest.Table {
	d := ingest.Table{Name: engine.TableName{Schema: t.Schema, Name: t.Name}}
	for _, c := range t.Columns {
		d.Columns = append(d.Columns, ingest.Column{Name: c.Name, Type: c.Type, Key: c.Key})
	}
	return d
}

// checkTables says what is wrong with the tables of an ingest source that the
// form of the configuration does not show: types above all.
func checkTables(cfg *nodeconfig.Config) error {
	var errs []error
	for i := range cfg.Sources {
		g := cfg.Sources[i].Ingest
		if g == nil {
			continue
		}
		for j := range g.Tables {
			for _, err := range ingest.CheckTable(ingestTable(&g.Tables[j])) {
				errs = append(errs, fmt.Errorf("sources[%d].ingest.tables[%d]: %w", i, j, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ingestSource makes a source of its configuration.
func (n *node) ingestSource(s *nodeconfig.Source) (engine.SyncSource, error) {
	g := s.Ingest
	c := ingest.Config{
		MaxKeys: g.Idempotency.MaxKeys, KeyRetention: g.Idempotency.Retention,
		MaxPending: g.Pending.MaxBatches, MaxPendingBytes: int64(g.Pending.MaxBytes), Timeout: g.Timeout, Stalled: n.store.Stalled, Full: n.logFull,
		Foreign: func(s *engine.Schema, key []byte) (string, bool) { return n.conflicts.Foreign(s, key, n.cfg.Node.ID) },
	}
	for _, t := range g.Tables {
		c.Tables = append(c.Tables, ingestTable(&t))
	}
	src, err := ingest.New(c)
	if err != nil {
		return nil, err
	}
	n.metrics.MustRegister(src)
	n.written = &written{name: s.Name, source: src}
	return src, nil
}

// serveWrites makes the API of the ingest source, if there is one.
func (n *node) serveWrites() {
	if n.written == nil {
		return
	}
	var guard ingestapi.Guard
	if n.guard != nil {
		guard = n.guard
	}
	n.written.api = ingestapi.New(n.written.source, guard)
}

// handler is what the node's web server answers with.
func (n *node) handler() http.Handler {
	mux := n.routes()
	if n.written == nil {
		return mux
	}
	mux.Handle("POST /v1/write", n.written.api)
	return n.written.api.Over(mux)
}

// status fills in what an ingest source adds to a source's status.
func (w *written) status(d *nodeconfig.SourceStatus) {
	st := w.source.Status()
	d.Kind = nodeconfig.KindIngest
	d.Ingest = &nodeconfig.IngestStatus{PendingBatches: st.Pending, PendingBytes: st.PendingBytes, IdempotencyKeys: st.Keys}
}
