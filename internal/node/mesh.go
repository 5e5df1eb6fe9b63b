package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// meshed is a mesh source with its wiring.
type meshed struct {
	name   string
	source *client.Mesh

	mu    sync.Mutex
	wired []nodeconfig.Candidate
}

// meshSource makes a source of its configuration. It has no peers until the
// wiring has been read.
func (n *node) meshSource(s *nodeconfig.Source) (engine.SyncSource, error) {
	c := s.Mesh
	sc, err := scopeOf(c.Tables)
	if err != nil {
		return nil, err
	}
	cfg := client.Config{
		NodeID: n.cfg.Node.ID, Name: s.Name, Scope: sc, Buffer: int64(c.PauseBuffer.MaxBytes), Edges: &n.edges, Logger: n.log,
		Software: "tributary " + version.String(), Basic: n.basic(), Serve: n.join,
		Witness:   func(peer string, e engine.Epoch, t engine.Time) { n.engine.Witness(peer, e, t) },
		Own:       func() []engine.OwnLog { return n.engine.Own() },
		Rejoined:  func() { n.engine.Rejoined() },
		Elsewhere: func(origin string) bool { return n.children.reads(origin) },
	}
	if err := n.secureDialling(&cfg, c.TLS, c.TokenFile); err != nil {
		return nil, err
	}
	src, err := client.NewMesh(cfg)
	if err != nil {
		return nil, err
	}
	if sc != nil {
		n.scopes[s.Name] = sc
	}
	n.mesh = &meshed{name: s.Name, source: src}
	return src, nil
}

// secureDialling fills in how the connections to other nodes are secured.
func (n *node) secureDialling(cfg *client.Config, t *nodeconfig.ClientTLS, tokenFile string) (err error) {
	if t != nil {
		if cfg.Credentials, err = (auth.ClientFiles{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile, ServerName: t.ServerName, Logger: n.log}).Credentials(); err != nil {
			return err
		}
	}
	if tokenFile != "" {
		cfg.Token, err = auth.NewToken(tokenFile, false)
	}
	return err
}

// join serves a peer over a session that this node has dialled. The engine and the
// server are there before anything dials.
func (n *node) join(ctx context.Context, from session.Caller, stream *session.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
	return n.server.Join(ctx, from, stream, end)
}

// accept lets a peer in that has dialled, if who it is may say what that node
// holds.
func (n *node) accept(ctx context.Context, from session.Caller, stream *session.Sender, end func(error)) (func(*wirepb.Frame) error, error) {
	if g := n.guard; g != nil {
		if err := g.PermitNode(from.Identity, from.NodeID); err != nil {
			return nil, &session.Error{Code: wirepb.ErrorCode_ERROR_CODE_PERMISSION, Message: err.Error()}
		}
	}
	if m := n.mesh; m != nil {
		if take, err := m.source.Accept(ctx, from, stream, end); take != nil || err != nil {
			return take, err
		}
	}
	if c := n.children; c != nil {
		return c.source.Accept(ctx, from, stream, end)
	}
	return nil, nil
}

// rewire puts new peers and policy in place.
func (m *meshed) rewire(w *nodeconfig.WiredSource) {
	var peers []client.MeshPeer
	for _, c := range w.Candidates {
		if c.Eligible {
			peers = append(peers, client.MeshPeer{ID: c.ID, Address: hostPort(c.Address)})
		}
	}
	m.mu.Lock()
	m.wired = w.Candidates
	m.mu.Unlock()
	m.source.SetPeers(peers, client.Policy{UnhealthyAfter: w.Policy.UnhealthyAfter, RecoverAfter: w.Policy.RecoverAfter})
}

// messageOf says why a peer is not read: the last attempt has failed, or it offers what is
// not taken.
func messageOf(p client.PeerState) string {
	switch n := len(p.Refused); {
	case p.Error != "" || n == 0:
		return p.Error
	case n > 1:
		return fmt.Sprintf("%s; and %d more logs", p.Refused[0].Reason, n-1)
	}
	return p.Refused[0].Reason
}

// status fills in what a mesh source adds to a source's status.
func (m *meshed) status(d *nodeconfig.SourceStatus) {
	st := m.source.Status()
	d.Kind = nodeconfig.KindMesh
	logs := map[string]int{}
	for _, l := range st.Logs {
		logs[l.Peer]++
	}
	for _, p := range st.Peers {
		ps := nodeconfig.PeerStatus{ID: p.ID, Address: p.Address, Connected: p.Connected, Dialled: p.Dialled, Since: p.Since, Message: messageOf(p), Logs: logs[p.ID]}
		d.Peers = append(d.Peers, ps)
	}
}
