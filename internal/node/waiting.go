package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// waiting speaks for a node that cannot start, since its disk is full: it is alive,
// not ready, and says why.
type waiting struct {
	n      *node
	why    atomic.Pointer[store.DiskFullError]
	server *http.Server // nil until it has to wait
	done   chan struct{}

	over    chan struct{} // nil: no store is open
	watched chan error
}

func (w *waiting) waits(full *store.DiskFullError) {
	w.why.Store(full)
	if w.server != nil {
		return
	}
	w.n.log.Warn("the node cannot start yet: it waits for room, and nothing is lost", "reason", nodeconfig.StoreDiskFull, "error", full)
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

// How often a store that is open is looked at: to say that it waits, and to close it.
const (
	watchEvery  = 500 * time.Millisecond
	giveUpEvery = 20 * time.Millisecond
)

// watch goes on with a store that is open, which a node writes to as it is put
// together, until end. When ctx ends, what waits for room gives up.
func (w *waiting) watch(ctx context.Context, st engine.Store) {
	w.over, w.watched = make(chan struct{}), make(chan error, 1)
	go func() {
		look := time.NewTicker(watchEvery)
		defer look.Stop()
		for {
			select {
			case <-w.over:
				w.watched <- nil
				return
			case <-ctx.Done():
				why := giveUp(st, w.over)
				if why != nil {
					why = fmt.Errorf("%w: %w", context.Cause(ctx), why)
				}
				w.watched <- why
				return
			case <-look.C:
				var full *store.DiskFullError
				if errors.As(st.Stalled(), &full) {
					w.waits(full)
				}
			}
		}
	}()
}

// end makes room for the node's own server. It returns why the store was closed, if
// it was.
func (w *waiting) end(ctx context.Context) (gaveUp error) {
	if w.over != nil {
		close(w.over)
		gaveUp = <-w.watched
	}
	if w.server != nil {
		_ = w.server.Close()
		<-w.done
		if ctx.Err() == nil {
			w.n.log.Info("there is room for the store")
		}
	}
	return gaveUp
}

// giveUp closes a store as soon as something waits for room in it, whatever context that
// waits with. It returns why, or nil when all else is over.
func giveUp(st engine.Store, over <-chan struct{}) (why error) {
	look := time.NewTicker(giveUpEvery)
	defer look.Stop()
	for {
		if why := st.Stalled(); why != nil {
			_ = st.Close() // told again by the next Close
			return why
		}
		select {
		case <-over:
			return nil
		case <-look.C:
		}
	}
}
