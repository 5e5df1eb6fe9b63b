package workload

import (
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Files within a node's container.
const (
	staticDir  = "/etc/tributary/static"
	wiringDir  = "/etc/tributary/wiring"
	secretsDir = "/etc/tributary/secrets"
	volumeDir  = "/var/lib/tributary"
	scratchDir = "/tmp"
	staticFile = "node.yaml"
	wiringFile = "wiring.yaml"
)

// Layout says where a node finds its files. The zero Layout is that of a
// container here.
type Layout struct {
	// WiringFile is the path of wiring.yaml.
	WiringFile string
	// SecretDir gives the directory that the keys of a Secret are files in.
	SecretDir func(secret string) string
	// StoreDir is the directory of a persistent store, and ScratchDir the one for
	// what it spills.
	StoreDir, ScratchDir string
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
	if l.StoreDir == "" {
		l.StoreDir, l.ScratchDir = path.Join(volumeDir, "store"), scratchDir
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
	c.Storage = storage(n, l)
	c.Serve = serve(n.Spec.Serve, l)
	for i := range n.Spec.Sinks {
		c.Sinks = append(c.Sinks, sink(&n.Spec.Sinks[i], l))
	}
	if n.Spec.DrainTimeout != nil {
		c.DrainTimeout = n.Spec.DrainTimeout.Duration
	}
	for _, s := range plan.Sources {
		out := nodeconfig.Source{Name: s.Name}
		if s.Postgres != nil {
			out.Postgres = postgres(s.Postgres, l)
		} else {
			out.Fanout = fanout(s.Fanout, l)
		}
		c.Sources = append(c.Sources, out)
	}
	c.SetDefaults()
	return c
}

func mountedAt(secret string) string { return path.Join(secretsDir, secret) }

var sslModes = map[v1alpha1.PostgresTLSMode]string{
	v1alpha1.PostgresTLSDisable:    nodeconfig.SSLDisable,
	v1alpha1.PostgresTLSPrefer:     nodeconfig.SSLPrefer,
	v1alpha1.PostgresTLSRequire:    nodeconfig.SSLRequire,
	v1alpha1.PostgresTLSVerifyCA:   nodeconfig.SSLVerifyCA,
	v1alpha1.PostgresTLSVerifyFull: nodeconfig.SSLVerifyFull,
}

var targets = map[v1alpha1.TargetSessionAttrs]string{
	v1alpha1.TargetAny:           nodeconfig.TargetAny,
	v1alpha1.TargetReadWrite:     nodeconfig.TargetReadWrite,
	v1alpha1.TargetReadOnly:      nodeconfig.TargetReadOnly,
	v1alpha1.TargetPrimary:       nodeconfig.TargetPrimary,
	v1alpha1.TargetStandby:       nodeconfig.TargetStandby,
	v1alpha1.TargetPreferStandby: nodeconfig.TargetPreferStandby,
}

func storage(n *v1alpha1.ReplicationNode, l Layout) (out nodeconfig.Storage) {
	s := n.Spec.Storage
	if s == nil {
		return out
	}
	if j := s.Journal; j != nil {
		out.Journal.MaxBytes = size(j.MaxBytes)
	}
	if !topology.Persistent(n) {
		return out
	}
	out.Type, out.Path, out.ScratchPath = nodeconfig.StoragePebble, l.StoreDir, l.ScratchDir
	if j := s.Journal; j != nil {
		out.Journal.LimitBytes = size(j.LimitBytes)
		if j.ReaderRetention != nil {
			out.Journal.ReaderRetention = j.ReaderRetention.Duration
		}
	}
	if s.Cache != nil {
		out.Cache.MaxBytes = size(s.Cache.MaxBytes)
	}
	if t := s.Tombstones; t != nil && t.Retention != nil {
		out.Tombstones.Retention = t.Retention.Duration
	}
	return out
}

func size(q *resource.Quantity) nodeconfig.Size {
	if q == nil {
		return 0
	}
	return nodeconfig.Size(q.Value())
}

func postgres(p *topology.Postgres, l Layout) *nodeconfig.Postgres {
	out := &nodeconfig.Postgres{
		Hosts:              hosts(p.Spec.Hosts),
		Database:           p.Spec.Database,
		UserFile:           l.file(&p.Spec.CredentialsSecretRef, topology.SecretUsername),
		PasswordFile:       l.file(&p.Spec.CredentialsSecretRef, topology.SecretPassword),
		TargetSessionAttrs: targets[p.Spec.TargetSessionAttrs],
		Publication:        nodeconfig.Publication{Name: p.Publication, Managed: p.Managed},
		Slot:               p.Slot,
		Tables:             tables(p.Spec.Tables),
	}
	if t := p.Spec.TLS; t != nil {
		out.SSLMode, out.SSLRootCert = sslModes[t.Mode], l.file(t.CASecretRef, topology.SecretCA)
		out.SSLCert, out.SSLKey = l.file(t.CertSecretRef, topology.SecretCert), l.file(t.CertSecretRef, topology.SecretKey)
	}
	return out
}

func fanout(s *v1alpha1.FanoutSourceSpec, l Layout) *nodeconfig.Fanout {
	out := &nodeconfig.Fanout{
		Comparator: string(s.Comparator), Ordering: string(s.Ordering),
		TLS: clientTLS(s.TLS, l), TokenFile: l.file(s.TokenSecretRef, topology.SecretToken),
	}
	for _, t := range s.Tables {
		ft := nodeconfig.FanoutTable{Schema: t.Schema, Name: t.Name, Columns: t.Columns}
		for _, w := range t.Where {
			ft.Where = append(ft.Where, nodeconfig.Condition{Column: w.Column, Operator: string(w.Operator), Values: w.Values})
		}
		out.Tables = append(out.Tables, ft)
	}
	return out
}

func sink(s *v1alpha1.NodeSink, l Layout) nodeconfig.Sink {
	out := nodeconfig.Sink{Name: s.Name, Tables: tables(s.Tables), OnReject: string(s.OnReject)}
	if p := s.Postgres; p != nil {
		out.Postgres = &nodeconfig.PostgresSink{
			Hosts: hosts(p.Hosts), Database: p.Database,
			UserFile:     l.file(&p.CredentialsSecretRef, topology.SecretUsername),
			PasswordFile: l.file(&p.CredentialsSecretRef, topology.SecretPassword),
			Schema:       p.Schema, CreateTables: p.CreateTables,
		}
		if t := p.TLS; t != nil {
			out.Postgres.SSLMode, out.Postgres.SSLRootCert = sslModes[t.Mode], l.file(t.CASecretRef, topology.SecretCA)
			out.Postgres.SSLCert, out.Postgres.SSLKey = l.file(t.CertSecretRef, topology.SecretCert), l.file(t.CertSecretRef, topology.SecretKey)
		}
	}
	if h := s.HTTP; h != nil {
		out.HTTP = &nodeconfig.HTTPSink{URL: h.URL, TokenFile: l.file(h.TokenSecretRef, topology.SecretToken), TLS: clientTLS(h.TLS, l)}
	}
	return out
}

func clientTLS(t *v1alpha1.ClientTLS, l Layout) *nodeconfig.ClientTLS {
	if t == nil {
		return nil
	}
	return &nodeconfig.ClientTLS{
		CAFile:   l.file(t.CASecretRef, topology.SecretCA),
		CertFile: l.file(t.CertSecretRef, topology.SecretCert), KeyFile: l.file(t.CertSecretRef, topology.SecretKey),
		ServerName: t.ServerName,
	}
}

func serve(s *v1alpha1.NodeServe, l Layout) (out nodeconfig.Serve) {
	if s == nil {
		return out
	}
	if t := s.TLS; t != nil {
		out.TLS = &nodeconfig.ServeTLS{
			CertFile: l.file(&t.SecretRef, topology.SecretCert), KeyFile: l.file(&t.SecretRef, topology.SecretKey),
			ClientCAFile: l.file(t.ClientCASecretRef, topology.SecretCA),
		}
	}
	if s.TokensSecretRef != nil {
		out.TokensDir = l.SecretDir(s.TokensSecretRef.Name)
	}
	for _, p := range s.Permissions {
		out.Permissions = append(out.Permissions, nodeconfig.Permission{Reader: p.Reader, Tables: tables(p.Tables)})
	}
	return out
}

func hosts(refs []v1alpha1.PostgresHost) (out []nodeconfig.Host) {
	for _, h := range refs {
		out = append(out, nodeconfig.Host{Host: h.Host, Port: int(h.Port)})
	}
	return out
}

func tables(refs []v1alpha1.TableReference) (out []nodeconfig.Table) {
	for _, t := range refs {
		out = append(out, nodeconfig.Table{Schema: t.Schema, Name: t.Name})
	}
	return out
}

// file is the path of a key of a Secret; empty where no Secret is named.
func (l Layout) file(ref *v1alpha1.LocalReference, key string) string {
	if ref == nil {
		return ""
	}
	return path.Join(l.SecretDir(ref.Name), key)
}
