package node

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// waiting speaks for a node that cannot open its store, since its disk is full: it is
// alive, not ready, and says why.
type waiting struct {
	n      *node
	why    atomic.Pointer[store.DiskFullError]
	server *http.Server // nil until it has to wait
	done   chan struct{}
}

func (w *waiting) waits(full *store.DiskFullError) {
	w.why.Store(full)
	if w.server != nil {
		return
	}
	w.n.log.Warn("the store cannot be opened yet: it waits, and nothing is lost", "error", full)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /statusz", describe(func() nodeconfig.Statusz {
		return nodeconfig.Statusz{
			Node: w.n.cfg.Node.ID, Instance: w.n.instance, Version: version.String(),
			Sources: []nodeconfig.SourceStatus{}, Logs: []nodeconfig.LogStatus{}, Tables: []nodeconfig.TableStatus{}, Readers: []nodeconfig.ReaderStatus{},
			Store: &nodeconfig.StoreStatus{Reason: nodeconfig.StoreDiskFull, Message: w.why.Load().Error()},
		}
	}))
	mux.HandleFunc("/", func(r http.ResponseWriter, _ *http.Request) { // /readyz too
		http.Error(r, w.why.Load().Error(), http.StatusServiceUnavailable)
	})
	w.server, w.done = &http.Server{Addr: w.n.cfg.Listen.HTTP, Handler: mux, ReadHeaderTimeout: 10 * time.Second}, make(chan struct{})
	go func() {
		defer close(w.done)
		if err := w.server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			w.n.log.Warn("nobody can be told what the node waits for", "http", w.server.Addr, "error", err)
		}
	}()
}

// end makes room for the node's own server.
func (w *waiting) end() {
	if w.server != nil {
		_ = w.server.Close()
		<-w.done
		w.n.log.Info("there is room for the store")
	}
}
