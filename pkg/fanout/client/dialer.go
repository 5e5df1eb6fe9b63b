package client

import (
	"context"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Dialer keeps sessions with nodes that are to read from this one, which they cannot
// dial. It reads nothing itself. Config.Serve is what serves them.
type Dialer struct{ mesh *Mesh }

// NewDialer returns a Dialer of nobody: see SetPeers.
func NewDialer(cfg Config) (*Dialer, error) {
	m, err := NewMesh(cfg)
	if err != nil {
		return nil, err
	}
	return &Dialer{m}, nil
}

// Run keeps the sessions until ctx ends, and waits for them.
func (d *Dialer) Run(ctx context.Context) error {
	if _, err := d.mesh.Init(ctx, engine.Env{}); err != nil {
		return err
	}
	<-ctx.Done()
	d.mesh.Close()
	return nil
}

// SetPeers replaces the nodes that are dialled.
func (d *Dialer) SetPeers(peers []MeshPeer) { d.mesh.SetPeers(peers, Policy{}) }

// Peers returns what is known of each.
func (d *Dialer) Peers() []PeerState { return d.mesh.Status().Peers }
