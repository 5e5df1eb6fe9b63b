package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/postgres"
)

// Options configure Run.
type Options struct {
	Config *nodeconfig.Config
	Logger *slog.Logger
	// Instance tells the replicas of a node apart; the host's name when empty.
	Instance string
}

// node is a running node.
type node struct {
	cfg      *nodeconfig.Config
	log      *slog.Logger
	instance string
	store    engine.Store
	engine   *engine.Engine
	server   *server.Server
	metrics  *prometheus.Registry
	edges    client.Edges
	upstream []*upstream // fan-out sources, in the order of the configuration
	sinks    []delivery  // in the order of the configuration
	// databases are the PostgreSQL sources.
	databases []*database
	scopes    map[string]*scope.Scope // of fan-out sources that take not everything
	guard     *auth.Guard             // nil: everyone may read all

	draining    atomic.Bool
	wiringEpoch atomic.Uint64
}

// Run runs a node until ctx ends, then drains it: readers are asked to move and
// given DrainTimeout for it. It returns nil after an orderly end.
func Run(ctx context.Context, o Options) (err error) {
	n, err := build(o)
	if n.store != nil {
		defer func() { err = errors.Join(err, n.store.Close()) }()
	}
	if err != nil {
		return err
	}
	replication, err := net.Listen("tcp", n.cfg.Listen.Replication)
	if err != nil {
		return fmt.Errorf("listen.replication: %w", err)
	}
	web, err := net.Listen("tcp", n.cfg.Listen.HTTP)
	if err != nil {
		_ = replication.Close()
		return fmt.Errorf("listen.http: %w", err)
	}
	n.log.Info("node started", "version", version.String(), "replication", replication.Addr().String(), "http", web.Addr().String())

	httpServer := &http.Server{Handler: n.routes(), ReadHeaderTimeout: 10 * time.Second}
	run, stop := context.WithCancel(context.Background())
	defer stop()
	g, run := errgroup.WithContext(run)
	g.Go(func() error { return n.server.Serve(replication) })
	g.Go(func() error {
		if err := httpServer.Serve(web); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving HTTP on %s: %w", web.Addr(), err)
		}
		return nil
	})
	g.Go(func() error {
		if err := n.engine.Run(run); err != nil && run.Err() == nil {
			return err
		}
		return nil
	})
	if len(n.upstream) > 0 {
		g.Go(func() error { return n.watchWiring(run) })
	}
	for _, d := range n.sinks {
		g.Go(func() error { return d.deliver(run) })
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
			n.drain()
		case <-run.Done(): // something else ended: end the rest
		}
		stop()
		n.server.Close()
		return httpServer.Close()
	})
	return g.Wait()
}

// drain asks readers to move and waits for them.
func (n *node) drain() {
	n.draining.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.DrainTimeout)
	defer cancel()
	n.log.Info("draining", "timeout", n.cfg.DrainTimeout)
	if err := n.server.Drain(ctx); err != nil {
		n.log.Warn("ending with readers attached", "error", err)
	}
}

// build puts a node together. Its store, if it has one, is to be closed even if
// something else went wrong.
func build(o Options) (*node, error) {
	n := &node{scopes: map[string]*scope.Scope{}, cfg: o.Config, log: o.Logger, instance: o.Instance, metrics: prometheus.NewRegistry()}
	if n.log == nil {
		n.log = slog.Default()
	}
	if n.instance == "" {
		n.instance = instanceName()
	}
	st, scratch, err := n.openStore()
	if err != nil {
		return n, err
	}
	n.store = st
	n.engine = engine.New(engine.Options{
		NodeID: n.cfg.Node.ID, Store: st, Logger: n.log, Scratch: scratch,
		Retention: engine.Retention{
			Bytes: int64(n.cfg.Storage.Journal.MaxBytes), MaxBytes: int64(n.cfg.Storage.Journal.LimitBytes),
			Readers: n.cfg.Storage.Journal.ReaderRetention,
		},
	})
	for i := range n.cfg.Sources {
		s := &n.cfg.Sources[i]
		src, err := n.source(s)
		if err != nil {
			return n, fmt.Errorf("source %q: %w", s.Name, err)
		}
		n.engine.AddSource(s.Name, src, engine.Keep{})
	}
	for i := range n.cfg.Sinks {
		s := &n.cfg.Sinks[i]
		if err := n.addSink(s); err != nil {
			return n, fmt.Errorf("sink %q: %w", s.Name, err)
		}
	}
	n.metrics.MustRegister(
		n.sinkMetrics(), slots{n.databases},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{n.engine.Status},
	)
	serve := server.Config{
		Host: n.engine, Logger: n.log, Registry: n.metrics, Software: "tributary " + version.String(),
		Limits:      session.Limits{MaxChannels: n.cfg.Limits.MaxChannels, HandshakeTimeout: n.cfg.Limits.HandshakeTimeout},
		MaxSessions: n.cfg.Limits.MaxReaders,
		Provider:    n.provider, Scopes: n.scopes,
	}
	if err := n.secure(&serve); err != nil {
		return n, err
	}
	n.server = server.New(serve)
	return n, nil
}

func (n *node) source(s *nodeconfig.Source) (engine.SyncSource, error) {
	if s.Postgres != nil {
		return n.postgresSource(s)
	}
	return n.fanoutSource(s)
}

// postgresSource makes a source of its configuration. A durable store goes on
// from where it was, so its slot is permanent.
func (n *node) postgresSource(s *nodeconfig.Source) (engine.SyncSource, error) {
	src, err := postgres.New(postgresConfig(s.Postgres, n.store.Durable()))
	if err != nil {
		return nil, err
	}
	n.databases = append(n.databases, &database{s.Name, src})
	return src, nil
}

// postgresConfig is the configuration of a source. A password never stands in
// the connection string: it is read for each connection, and so are the files
// that the string names.
func postgresConfig(p *nodeconfig.Postgres, durable bool) postgres.Config {
	tables := make([]engine.TableName, len(p.Tables))
	for i, t := range p.Tables {
		tables[i] = engine.TableName{Schema: t.Schema, Name: t.Name}
	}
	return postgres.Config{
		ConnString:  connString(p.Hosts, p.Database, p.TargetSessionAttrs, p.SSLMode, p.SSLRootCert, p.SSLCert, p.SSLKey),
		Credentials: func(context.Context) (string, string, error) { return p.Credentials() },
		Tables:      tables, Publication: p.Publication.Name, AdoptOnly: !p.Publication.Managed, Slot: p.Slot, Permanent: durable,
	}
}

// connString names a server, without a user or a password.
func connString(hosts []nodeconfig.Host, database, attrs, sslMode, rootCert, cert, key string) string {
	u := url.URL{Scheme: "postgres", Path: "/" + database}
	addresses := make([]string, len(hosts))
	for i, h := range hosts {
		addresses[i] = net.JoinHostPort(h.Host, fmt.Sprint(h.Port))
	}
	u.Host = strings.Join(addresses, ",")
	q := url.Values{"sslmode": {sslMode}, "target_session_attrs": {attrs}}
	for name, path := range map[string]string{"sslrootcert": rootCert, "sslcert": cert, "sslkey": key} {
		if path != "" {
			q.Set(name, path)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

func (n *node) metricsHandler() http.Handler {
	return promhttp.HandlerFor(n.metrics, promhttp.HandlerOpts{Registry: n.metrics})
}
