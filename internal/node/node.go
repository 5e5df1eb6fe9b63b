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
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/postgres"
)

// Options configure Run.
type Options struct {
	Config *nodeconfig.Config
	// ConfigFile is where Config comes from, to be looked at for other tables; not
	// looked at when empty.
	ConfigFile string
	Logger     *slog.Logger
	// ArchiveOnce writes the archives of the configuration once, as soon as every source
	// has been baselined, and ends. ResultFile is where it leaves what has come of it;
	// nowhere when empty.
	ArchiveOnce bool
	ResultFile  string
	// Recall is what is known of the logs of sources, by their names, from an earlier life. Of
	// others a node that archives once finds it in its archives.
	Recall map[string]engine.Known
	// Instance tells the replicas of a node apart; the host's name when empty.
	Instance string
	// Listening is called once the node listens, with where; for one whose ports are 0.
	Listening func(replication, http net.Addr)
}

// node is a running node.
type node struct {
	cfg       *nodeconfig.Config
	log       *slog.Logger
	instance  string
	store     engine.Store
	engine    *engine.Engine
	conflicts *engine.Conflicts
	server    *server.Server
	metrics   *prometheus.Registry
	edges     client.Edges
	upstream  []*upstream        // fan-out sources, in the order of the configuration
	mesh      *meshed            // nil: none
	children  *children          // nil: none
	relay     *relay.Reoriginate // nil: the node is none
	leaf      leaf               // of a node with parents
	holder    string             // this life of the node, in a relay tree; empty elsewhere
	sinks     []delivery         // in the order of the configuration
	archives  *archives
	scratch   string // folder for what is spilled
	once      bool   // it ends once its archives are written
	// databases are the PostgreSQL sources.
	databases []*database
	written   *written                // the ingest source, if there is one
	scopes    map[string]*scope.Scope // of fan-out sources that take not everything
	guard     *auth.Guard             // nil: everyone may read all

	draining    atomic.Bool
	wired       atomic.Bool // whom to read from is known
	wiringEpoch atomic.Uint64
}

// Run runs a node until ctx ends, then drains it: readers are asked to move and
// given DrainTimeout for it. It returns nil after an orderly end.
func Run(ctx context.Context, o Options) (err error) {
	n, err := build(ctx, o)
	if o.ArchiveOnce { // after all else has ended
		defer func() { err = errors.Join(err, n.leaveResult(o.ResultFile, err)) }()
	}
	if n.store != nil {
		defer func() { err = errors.Join(err, n.store.Close()) }()
	}
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		n.log.Warn("ended before it had begun", "error", err)
		return nil
	case err != nil:
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
	if o.Listening != nil {
		o.Listening(replication.Addr(), web.Addr())
	}

	httpServer := &http.Server{Handler: n.handler(), ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	httpServer.Protocols.SetHTTP1(true)
	httpServer.Protocols.SetUnencryptedHTTP2(n.written != nil) // for gRPC
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
	if n.cfg.WiringFile != "" {
		g.Go(func() error { return n.watchWiring(run) })
	}
	if n.cfg.Parents != nil {
		g.Go(func() error { return n.leaf.dialer.Run(run) })
	}
	if n.children != nil && n.relay != nil {
		g.Go(func() error { return n.forgetChildren(run) })
	}
	if len(n.databases) > 0 && o.ConfigFile != "" {
		g.Go(func() error { return n.watchConfig(run, o.ConfigFile) })
	}
	g.Go(func() error { return n.pushMetrics(run) })
	for _, d := range n.sinks {
		g.Go(func() error { return d.deliver(run) })
	}
	archived, ended := make(chan struct{}), make(chan struct{})
	gaveUp := make(chan error, 1)
	g.Go(func() error {
		if !o.ArchiveOnce {
			return n.archives.run(run)
		}
		defer close(archived)
		return n.archiveOnce(run)
	})
	g.Go(func() error {
		select {
		case <-ctx.Done():
			n.drain()
		case <-archived: // all is done
		case <-run.Done(): // something else ended: end the rest
		}
		stop()
		go func() { gaveUp <- giveUp(n.store, ended) }()
		n.server.Close()
		err := httpServer.Close()
		if n.written != nil {
			n.written.api.Close()
		}
		return err
	})
	err = g.Wait()
	close(ended)
	if why := <-gaveUp; why != nil {
		n.log.Warn("ended while it waited", "error", why)
		if errors.Is(err, engine.ErrClosed) {
			err = nil
		}
	}
	return err
}

// drain asks readers to move and waits for them.
func (n *node) drain() {
	n.draining.Store(true)
	if n.written != nil {
		n.written.source.Drain()
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.DrainTimeout)
	defer cancel()
	n.log.Info("draining", "timeout", n.cfg.DrainTimeout)
	if err := n.server.Drain(ctx); err != nil {
		n.log.Warn("ending with readers attached", "error", err)
	}
}

// build puts a node together. Its store, if it has one, is to be closed even if
// something else went wrong.
func build(ctx context.Context, o Options) (*node, error) {
	n := &node{scopes: map[string]*scope.Scope{}, once: o.ArchiveOnce, cfg: o.Config, log: o.Logger, instance: o.Instance, metrics: prometheus.NewRegistry()}
	if n.log == nil {
		n.log = slog.Default()
	}
	if n.instance == "" {
		n.instance = instanceName()
	}
	w := &waiting{n: n}
	err := n.assemble(ctx, o, w)
	if gaveUp := w.end(ctx); gaveUp != nil {
		err = gaveUp
	}
	return n, err
}

// assemble is build with one that speaks for the node until it can itself.
func (n *node) assemble(ctx context.Context, o Options, w *waiting) error {
	st, scratch, err := n.openStore(ctx, w.waits)
	if err != nil {
		return err
	}
	n.store, n.scratch = st, scratch
	w.watch(ctx, st)
	conflicts, err := conflictsOf(n.cfg.Conflicts)
	if err != nil {
		return err
	}
	n.conflicts = conflicts
	n.engine = engine.New(engine.Options{
		NodeID: n.cfg.Node.ID, Store: st, Logger: n.log, Scratch: scratch, Conflicts: conflicts, Retention: n.retention(),
	})
	n.leaf.known = relay.NewLeaf(n.engine.Comparator)
	if err := n.joinTree(conflicts); err != nil {
		return err
	}
	for i := range n.cfg.Sources {
		s := &n.cfg.Sources[i]
		src, err := n.source(s)
		if err != nil {
			return fmt.Errorf("source %q: %w", s.Name, err)
		}
		var policy engine.Policy = engine.Keep{}
		if s.Children != nil && n.relay != nil {
			policy = n.relay
		}
		if err := n.recall(ctx, s, o.Recall); err != nil {
			return fmt.Errorf("source %q: %w", s.Name, err)
		}
		n.engine.AddSource(s.Name, src, policy)
	}
	switch {
	case n.mesh == nil:
	case n.basic():
		n.engine.CannotAwaitPeers("it keeps one cursor for all logs of a peer")
	case n.mesh.source.Scope() != nil:
		n.engine.CannotAwaitPeers("it reads a part of the mesh's tables only")
	default:
		n.engine.AwaitPeers()
	}
	for i := range n.cfg.Sinks {
		s := &n.cfg.Sinks[i]
		if err := n.addSink(s); err != nil {
			return fmt.Errorf("sink %q: %w", s.Name, err)
		}
	}
	n.openArchives(scratch)
	n.metrics.MustRegister(
		n.sinkMetrics(), n.archives, slots{n.databases},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{n.engineStatus}, deliveries{n}, treeCollector{n},
	)
	serve := server.Config{
		Host: n.engine, Logger: n.log, Registry: n.metrics, Software: "tributary " + version.String(),
		Limits:      session.Limits{MaxChannels: n.cfg.Limits.MaxChannels, HandshakeTimeout: n.cfg.Limits.HandshakeTimeout},
		MaxSessions: n.cfg.Limits.MaxReaders, MaxPeerSessions: n.cfg.Limits.MaxPeerReaders, AdmitRate: n.cfg.Limits.AdmitRate,
		Provider: n.provider, Scopes: n.scopes, Basic: n.basic(),
	}
	if n.archives.cold != nil {
		serve.Archives = n.archives.cold
	}
	if n.mesh != nil || n.children != nil {
		serve.Accept = n.accept
	}
	switch {
	case n.relay != nil:
		serve.Tree = n.relay.Tree()
	case n.cfg.Parents != nil:
		serve.Tree = n.leaf.known
	}
	if err := n.secure(&serve); err != nil {
		return err
	}
	n.server = server.New(serve)
	n.serveWrites()
	return nil
}

// basic reports whether the node reads with one cursor for all logs of a peer.
func (n *node) basic() bool { return n.cfg.Cursors == nodeconfig.CursorsShared }

func (n *node) source(s *nodeconfig.Source) (engine.SyncSource, error) {
	switch {
	case s.Postgres != nil:
		return n.postgresSource(s)
	case s.Ingest != nil:
		return n.ingestSource(s)
	case s.Mesh != nil:
		return n.meshSource(s)
	case s.Archive != nil:
		return n.archiveSource(s)
	case s.Children != nil:
		return n.childrenSource(s)
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
	n.databases = append(n.databases, &database{name: s.Name, source: src, log: n.log, tables: tablesOf(s.Postgres.Tables)})
	return src, nil
}

// postgresConfig is the configuration of a source. A password never stands in
// the connection string: it is read for each connection, and so are the files
// that the string names.
func postgresConfig(p *nodeconfig.Postgres, durable bool) postgres.Config {
	return postgres.Config{
		ConnString:  connString(&p.PostgresServer, p.TargetSessionAttrs),
		Credentials: func(context.Context) (string, string, error) { return p.Credentials() },
		Tables:      tablesOf(p.Tables), Publication: p.Publication.Name, AdoptOnly: !p.Publication.Managed, Slot: p.Slot, Permanent: durable,
	}
}

// connString names a server, without a user or a password.
func connString(s *nodeconfig.PostgresServer, attrs string) string {
	u := url.URL{Scheme: "postgres", Path: "/" + s.Database}
	addresses := make([]string, len(s.Hosts))
	for i, h := range s.Hosts {
		addresses[i] = net.JoinHostPort(h.Host, fmt.Sprint(h.Port))
	}
	u.Host = strings.Join(addresses, ",")
	q := url.Values{"sslmode": {s.SSLMode}, "target_session_attrs": {attrs}}
	for name, path := range map[string]string{"sslrootcert": s.SSLRootCert, "sslcert": s.SSLCert, "sslkey": s.SSLKey} {
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
