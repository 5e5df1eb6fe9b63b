package workload

import (
	"fmt"
	"path"
	"strings"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Files within a node's container.
const (
	staticDir  = "/etc/tributary/static"
	wiringDir  = "/etc/tributary/wiring"
	secretsDir = "/etc/tributary/secrets"
	staticFile = "node.yaml"
	wiringFile = "wiring.yaml"
)

// Layout says where a node finds its files. The zero Layout is that of a
// container here.
type Layout struct {
	// WiringFile is the path of wiring.yaml.
	WiringFile string
	// SecretDir gives the directory that the keys of a Secret are files in.
	SecretDir func(source, secret string) string
	// Listen is where the node serves; zero is its ports at every address.
	Listen nodeconfig.Listen
}

// Config is the static configuration of a node. The plan's Action must be
// Apply.
func Config(n *v1alpha1.ReplicationNode, plan *topology.Node, l Layout) *nodeconfig.Config {
	if l.WiringFile == "" {
		l.WiringFile = path.Join(wiringDir, wiringFile)
	}
	if l.SecretDir == nil {
		l.SecretDir = mountedAt
	}
	c := &nodeconfig.Config{
		Version:    nodeconfig.Version,
		Node:       nodeconfig.Node{ID: plan.Key.String()},
		Listen:     l.Listen,
		WiringFile: l.WiringFile,
	}
	if c.Listen.Replication == "" {
		c.Listen.Replication = fmt.Sprintf(":%d", topology.Port(n))
	}
	if s := n.Spec.Storage; s != nil {
		c.Storage.Type = strings.ToLower(string(s.Type))
		if s.Journal != nil && s.Journal.MaxBytes != nil {
			c.Storage.Journal.MaxBytes = nodeconfig.Size(s.Journal.MaxBytes.Value())
		}
	}
	if n.Spec.DrainTimeout != nil {
		c.DrainTimeout = n.Spec.DrainTimeout.Duration
	}
	for _, s := range plan.Sources {
		out := nodeconfig.Source{Name: s.Name}
		if s.Postgres != nil {
			out.Postgres = postgres(s.Name, s.Postgres, l)
		} else {
			out.Fanout = &nodeconfig.Fanout{
				Comparator: string(s.Fanout.Comparator), Ordering: string(s.Fanout.Ordering),
				Tables: tables(s.Fanout.Tables),
			}
		}
		c.Sources = append(c.Sources, out)
	}
	c.SetDefaults()
	return c
}

func mountedAt(source, secret string) string { return path.Join(secretsDir, source, secret) }

var sslModes = map[v1alpha1.PostgresTLSMode]string{
	v1alpha1.PostgresTLSDisable:    nodeconfig.SSLDisable,
	v1alpha1.PostgresTLSPrefer:     nodeconfig.SSLPrefer,
	v1alpha1.PostgresTLSRequire:    nodeconfig.SSLRequire,
	v1alpha1.PostgresTLSVerifyCA:   nodeconfig.SSLVerifyCA,
	v1alpha1.PostgresTLSVerifyFull: nodeconfig.SSLVerifyFull,
}

func postgres(source string, p *topology.Postgres, l Layout) *nodeconfig.Postgres {
	credentials := l.SecretDir(source, p.Spec.CredentialsSecretRef.Name)
	out := &nodeconfig.Postgres{
		Database:     p.Spec.Database,
		UserFile:     path.Join(credentials, topology.SecretUsername),
		PasswordFile: path.Join(credentials, topology.SecretPassword),
		Publication:  nodeconfig.Publication{Name: p.Publication, Managed: p.Managed},
		Slot:         p.Slot,
		Tables:       tables(p.Spec.Tables),
	}
	for _, h := range p.Spec.Hosts {
		out.Hosts = append(out.Hosts, nodeconfig.Host{Host: h.Host, Port: int(h.Port)})
	}
	if tls := p.Spec.TLS; tls != nil {
		out.SSLMode = sslModes[tls.Mode]
		if tls.CASecretRef != nil {
			out.SSLRootCert = path.Join(l.SecretDir(source, tls.CASecretRef.Name), topology.SecretCA)
		}
	}
	return out
}

func tables(refs []v1alpha1.TableReference) (out []nodeconfig.Table) {
	for _, t := range refs {
		out = append(out, nodeconfig.Table{Schema: t.Schema, Name: t.Name})
	}
	return out
}
