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
	// VolumeDir gives the directory that a volume of an archive is mounted at, by its
	// name: claim/NAME or configmap/NAME.
	VolumeDir func(volume string) string
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
	if l.VolumeDir == nil {
		l.VolumeDir = func(volume string) string { return path.Join(archivesDir, volume) }
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
	if n.Spec.Cursors == v1alpha1.CursorsShared {
		c.Cursors = nodeconfig.CursorsShared
	}
	c.Serve, c.Limits = serve(n.Spec.Serve, l), limits(n.Spec.Serve)
	for i := range n.Spec.Sinks {
		c.Sinks = append(c.Sinks, sink(&n.Spec.Sinks[i], l))
	}
	for i := range n.Spec.Archives {
		c.Archives = append(c.Archives, nodeArchive(&n.Spec.Archives[i], l))
	}
	if n.Spec.DrainTimeout != nil {
		c.DrainTimeout = n.Spec.DrainTimeout.Duration
	}
	for _, s := range plan.Sources {
		out := nodeconfig.Source{Name: s.Name}
		switch {
		case s.Postgres != nil:
			out.Postgres = postgres(s.Postgres, l)
		case s.Ingest != nil:
			out.Ingest = ingest(s.Ingest)
		case s.Archive != nil:
			out.Archive = archiveSource(s.Archive, l)
		case s.Mesh != nil:
			out.Mesh = mesh(n, s.Mesh, l)
			c.Conflicts = conflicts(s.Mesh.Conflicts, n.Namespace)
		case s.Children != nil:
			out.Children = joinTree(c, n, s.Children, plan.Branch, l)
		default:
			out.Fanout = fanout(s.Fanout, l)
		}
		c.Sources = append(c.Sources, out)
	}
	if plan.Leaf != nil {
		leaveTo(c, n, plan.Leaf)
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
	return &nodeconfig.Postgres{
		PostgresServer:     server(p.Spec.Hosts, p.Spec.Database, &p.Spec.CredentialsSecretRef, p.Spec.TLS, l),
		TargetSessionAttrs: targets[p.Spec.TargetSessionAttrs],
		Publication:        nodeconfig.Publication{Name: p.Publication, Managed: p.Managed},
		Slot:               p.Slot,
		Tables:             tables(p.Spec.Tables),
	}
}

func server(hosts []v1alpha1.PostgresHost, database string, login *v1alpha1.LocalReference, t *v1alpha1.PostgresTLS, l Layout) nodeconfig.PostgresServer {
	out := nodeconfig.PostgresServer{
		Database: database, UserFile: l.file(login, topology.SecretUsername), PasswordFile: l.file(login, topology.SecretPassword),
	}
	for _, h := range hosts {
		out.Hosts = append(out.Hosts, nodeconfig.Host{Host: h.Host, Port: int(h.Port)})
	}
	if t != nil {
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
	out.Tables = fanoutTables(s.Tables)
	return out
}

func fanoutTables(ts []v1alpha1.FanoutTable) (out []nodeconfig.FanoutTable) {
	for _, t := range ts {
		ft := nodeconfig.FanoutTable{Schema: t.Schema, Name: t.Name, Columns: t.Columns}
		for _, w := range t.Where {
			ft.Where = append(ft.Where, nodeconfig.Condition{Column: w.Column, Operator: string(w.Operator), Values: w.Values})
		}
		out = append(out, ft)
	}
	return out
}

// mesh is the source that a mesh gives a member.
func mesh(n *v1alpha1.ReplicationNode, s *v1alpha1.ReplicationMeshSpec, l Layout) *nodeconfig.Mesh {
	return &nodeconfig.Mesh{Tables: fanoutTables(s.Tables), TLS: peerTLS(n, s.TLS, l), TokenFile: l.file(s.TokenSecretRef, topology.SecretToken)}
}

// peerTLS is how a node connects to others as its mesh or tree says. Where that names no
// certificate, nodes show the one that they serve with.
func peerTLS(n *v1alpha1.ReplicationNode, t *v1alpha1.ClientTLS, l Layout) *nodeconfig.ClientTLS {
	out := clientTLS(t, l)
	if serve := n.Spec.Serve; out != nil && t.CertSecretRef == nil && serve != nil && serve.TLS != nil {
		out.CertFile, out.KeyFile = l.file(&serve.TLS.SecretRef, topology.SecretCert), l.file(&serve.TLS.SecretRef, topology.SecretKey)
	}
	return out
}

// conflicts are the policies of a mesh or a tree in namespace.
func conflicts(all []v1alpha1.TableConflicts, namespace string) (out []nodeconfig.Conflict) {
	for _, t := range all {
		q := nodeconfig.Conflict{
			Table: nodeconfig.Table{Schema: t.Schema, Name: t.Name}, Policy: string(t.Policy), OwnerColumn: t.OwnerColumn, OriginColumn: t.OriginColumn,
		}
		for _, o := range t.Owners {
			q.Owners = append(q.Owners, nodeconfig.Owner{Value: o.Value, Prefix: o.Prefix, Node: namespace + "/" + o.Node})
		}
		out = append(out, q)
	}
	return out
}

func ingest(s *v1alpha1.IngestSource) *nodeconfig.Ingest {
	out := &nodeconfig.Ingest{Volatile: s.Volatile}
	for _, t := range s.Tables {
		it := nodeconfig.IngestTable{Schema: t.Schema, Name: t.Name}
		for _, c := range t.Columns {
			it.Columns = append(it.Columns, nodeconfig.IngestColumn{Name: c.Name, Type: c.Type, Key: c.Key})
		}
		out.Tables = append(out.Tables, it)
	}
	if k := s.Idempotency; k != nil {
		out.Idempotency.MaxKeys = int(k.MaxKeys)
		if k.Retention != nil {
			out.Idempotency.Retention = k.Retention.Duration
		}
	}
	if p := s.Pending; p != nil {
		out.Pending = nodeconfig.Pending{MaxBatches: int(p.MaxBatches), MaxBytes: size(p.MaxBytes)}
	}
	if s.Timeout != nil {
		out.Timeout = s.Timeout.Duration
	}
	return out
}

func sink(s *v1alpha1.NodeSink, l Layout) nodeconfig.Sink {
	out := nodeconfig.Sink{Name: s.Name, Tables: tables(s.Tables), OnReject: string(s.OnReject)}
	if p := s.Postgres; p != nil {
		out.Postgres = &nodeconfig.PostgresSink{
			PostgresServer: server(p.Hosts, p.Database, &p.CredentialsSecretRef, p.TLS, l), Schema: p.Schema, CreateTables: p.CreateTables, Provenance: p.Provenance,
		}
	}
	if d := s.DeadLetters; d != nil {
		out.DeadLetters.MaxEntries = int(d.MaxEntries)
	}
	if h := s.HTTP; h != nil {
		out.HTTP = httpSink(h, l)
	}
	return out
}

func httpSink(h *v1alpha1.HTTPSink, l Layout) *nodeconfig.HTTPSink {
	out := &nodeconfig.HTTPSink{
		URL: h.URL, TokenFile: l.file(h.TokenSecretRef, topology.SecretToken), TLS: clientTLS(h.TLS, l),
		Gzip: h.Gzip, MaxBatchBytes: size(h.MaxBatchBytes),
	}
	if h.Timeout != nil {
		out.Timeout = h.Timeout.Duration
	}
	for _, d := range h.Headers {
		header := nodeconfig.HTTPHeader{Name: d.Name, Value: d.Value}
		if r := d.ValueSecretRef; r != nil {
			header.ValueFile = path.Join(l.SecretDir(r.Name), r.Key)
		}
		out.Headers = append(out.Headers, header)
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
		out.Permissions = append(out.Permissions, nodeconfig.Permission{Reader: p.Reader, Tables: tables(p.Tables), Writes: tables(p.Writes), Nodes: p.Nodes})
	}
	return out
}

func limits(s *v1alpha1.NodeServe) (out nodeconfig.Limits) {
	if s != nil && s.Limits != nil {
		out.MaxReaders, out.MaxPeerReaders, out.AdmitRate = int(s.Limits.MaxReaders), int(s.Limits.MaxPeerReaders), int(s.Limits.AdmitRate)
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
