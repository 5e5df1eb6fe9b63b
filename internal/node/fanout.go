package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/fanout"
)

// upstream is a fan-out source with its wiring.
type upstream struct {
	name   string
	source *fanout.Source

	mu     sync.Mutex
	wired  []nodeconfig.Candidate
	parent string // id of the parent read from most recently
	why    string // the node reads from it
}

// fanoutSource makes a source of its configuration. It has no upstreams until
// the wiring has been read.
func (n *node) fanoutSource(s *nodeconfig.Source) (engine.SyncSource, error) {
	f := s.Fanout
	sc, err := scopeOf(f.Tables)
	if err != nil {
		return nil, err
	}
	opts := []fanout.Option{
		fanout.WithScope(sc),
		fanout.WithBuffer(int64(f.PauseBuffer.MaxBytes)),
		fanout.WithPositionComparator(engine.Comparators[f.Comparator]),
		fanout.WithOrderingGuarantee(engine.Ordering(f.Ordering)),
		fanout.WithEdges(&n.edges),
		fanout.WithLogger(n.log),
		fanout.WithSoftware("tributary " + version.String()),
		fanout.WithSharedCursor(n.basic()),
	}
	if t := f.TLS; t != nil {
		creds, err := auth.ClientFiles{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile, ServerName: t.ServerName, Logger: n.log}.Credentials()
		if err != nil {
			return nil, err
		}
		opts = append(opts, fanout.WithCredentials(creds))
	}
	if f.TokenFile != "" {
		token, err := auth.NewToken(f.TokenFile, false)
		if err != nil {
			return nil, err
		}
		opts = append(opts, fanout.WithToken(token))
	}
	src, err := fanout.New(n.cfg.Node.ID, s.Name, nil, opts...)
	if err != nil {
		return nil, err
	}
	n.upstream = append(n.upstream, &upstream{name: s.Name, source: src})
	if n.scopes[s.Name] = sc; sc == nil {
		delete(n.scopes, s.Name)
	}
	return src, nil
}

// scopeOf returns what a fan-out source takes; nil for everything.
func scopeOf(tables []nodeconfig.FanoutTable) (*scope.Scope, error) {
	operators := map[string]scope.Operator{
		nodeconfig.OperatorEqual: scope.Equal, nodeconfig.OperatorIn: scope.In, nodeconfig.OperatorPrefix: scope.Prefix,
	}
	all := make([]scope.Table, len(tables))
	for i, t := range tables {
		all[i] = scope.Table{Name: engine.TableName{Schema: t.Schema, Name: t.Name}, Columns: t.Columns}
		for _, c := range t.Where {
			all[i].Where = append(all[i].Where, scope.Condition{Column: c.Column, Op: operators[c.Operator], Values: c.Values})
		}
	}
	return scope.New(all...)
}

// secure fills in how the server's connections are secured and who may read.
func (n *node) secure(cfg *server.Config) error {
	s := n.cfg.Serve
	known := s.TokensDir != ""
	if t := s.TLS; t != nil {
		tls, err := auth.ServerFiles{Cert: t.CertFile, Key: t.KeyFile, ClientCA: t.ClientCAFile, Optional: known, Logger: n.log}.Config()
		if err != nil {
			return fmt.Errorf("serve.tls: %w", err)
		}
		cfg.Credentials = credentials.NewTLS(tls)
		known = known || t.ClientCAFile != ""
	}
	if !known {
		return nil
	}
	var rules []auth.Rule
	for _, p := range s.Permissions {
		r := auth.Rule{Identity: p.Reader, Nodes: p.Nodes}
		for _, t := range p.Tables {
			r.Tables = append(r.Tables, engine.TableName{Schema: t.Schema, Name: t.Name})
		}
		for _, t := range p.Writes {
			r.Writes = append(r.Writes, engine.TableName{Schema: t.Schema, Name: t.Name})
		}
		rules = append(rules, r)
	}
	var err error
	if n.guard, err = auth.NewGuard(auth.Config{TokensDir: s.TokensDir, Rules: rules, Logger: n.log}); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	cfg.Guard = n.guard
	return nil
}

func (n *node) provider(origin string) string { return n.edges.Provider(origin) }

// rewire puts new candidates and policy in place. Those that would close a loop
// are listed in status and never moved to.
func (u *upstream) rewire(w *nodeconfig.WiredSource) {
	var addresses []string
	for _, c := range w.Candidates {
		if a := hostPort(c.Address); c.Eligible && !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	failback := client.FailbackPreferred
	if w.Policy.Failback == nodeconfig.FailbackManual {
		failback = client.FailbackNever
	}
	u.mu.Lock()
	u.wired = slices.Clone(w.Candidates)
	u.mu.Unlock()
	u.source.SetUpstreams(addresses, client.Policy{
		UnhealthyAfter: w.Policy.UnhealthyAfter, RecoverAfter: w.Policy.RecoverAfter,
		Failback: failback, MaxSwitchesPerHour: w.Policy.MaxSwitchesPerHour,
	})
}

// hostPort is a gRPC target as host:port; the reader itself looks up all that
// the host resolves to.
func hostPort(target string) string { return strings.TrimPrefix(target, "dns:///") }

// status fills in what a fan-out source adds to a source's status.
func (u *upstream) status(d *nodeconfig.SourceStatus) {
	st := u.source.Status()
	u.mu.Lock()
	defer u.mu.Unlock()
	d.Kind = nodeconfig.KindFanout
	failed := map[string]string{}
	for _, c := range st.Upstreams {
		failed[c.Address] = c.Error
	}
	for _, c := range u.wired {
		msg, known := failed[hostPort(c.Address)]
		d.Candidates = append(d.Candidates, nodeconfig.CandidateStatus{
			ID: c.ID, Address: c.Address, Eligible: c.Eligible, Healthy: known && msg == "", Message: msg,
		})
	}
	if st.Upstream == "" {
		return
	}
	i := slices.IndexFunc(u.wired, func(c nodeconfig.Candidate) bool { return hostPort(c.Address) == st.Upstream })
	id := st.Peer
	if i >= 0 {
		id = u.wired[i].ID
	}
	if id != u.parent {
		switch {
		case u.parent == "":
			u.why = "initial"
		case i == 0:
			u.why = "failback"
		default:
			u.why = "failover"
		}
		u.parent = id
	}
	d.Parent = &nodeconfig.ParentStatus{ID: id, Address: st.Instance, Since: st.Since, Why: u.why}
}

// describeSource fills in what the kind of a source adds to its status.
func (n *node) describeSource(name string, d *nodeconfig.SourceStatus) {
	for _, u := range n.upstream {
		if u.name == name {
			u.status(d)
			return
		}
	}
	if n.mesh != nil && n.mesh.name == name {
		n.mesh.status(d)
	}
	if n.children != nil && n.children.name == name {
		n.children.status(d)
	}
	if n.written != nil && n.written.name == name {
		n.written.status(d)
	}
	for i := range n.cfg.Sources {
		if s := &n.cfg.Sources[i]; s.Name == name && s.Archive != nil {
			d.Kind = nodeconfig.KindArchive
		}
	}
	for _, db := range n.databases {
		if db.name == name {
			db.status(d, n.store.Durable())
		}
	}
}

// readers lists who reads from the node, one entry per log.
func (n *node) readers() []nodeconfig.ReaderStatus {
	out := []nodeconfig.ReaderStatus{}
	for _, r := range n.server.Readers() {
		base := nodeconfig.ReaderStatus{ID: r.NodeId, Address: r.Address, Since: time.UnixMicro(int64(r.ConnectedSince)).UTC()}
		if len(r.Channels) == 0 {
			out = append(out, base)
		}
		for _, c := range r.Channels {
			d := base
			d.Origin, d.Epoch = c.Log.GetOrigin(), engine.Epoch(c.Log.GetEpoch()).String()
			d.Mode, d.Position, d.Durable = strings.TrimPrefix(c.Mode.String(), "MODE_"), c.Acked, c.Durable
			out = append(out, d)
		}
	}
	return out
}

// refused lists the logs that were offered and are not taken.
func (n *node) refused() (out []nodeconfig.RefusedAdvert) {
	for _, u := range n.upstream {
		st := u.source.Status()
		for _, r := range st.Refused {
			out = append(out, nodeconfig.RefusedAdvert{Log: r.Log.String(), From: st.Peer, Path: r.Path, Reason: refusedReason(r.Code)})
		}
	}
	return out
}

func refusedReason(c session.RefusalCode) string {
	switch c {
	case session.RefusedLoop:
		return engine.ReasonLoopDetected
	case session.RefusedPath:
		return "MaxDepthExceeded"
	}
	return string(c)
}
