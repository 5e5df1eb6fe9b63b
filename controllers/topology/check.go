package topology

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// What the schemas of the resources refuse is checked here again as far as the
// plan depends on it: files may not have passed a schema, and a schema may be
// older than the manager.

// MaxNodeName is how long a node's name may be: the names of its pods and of
// their revisions are made from it.
const MaxNodeName = 52

var (
	nodeName   = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	sourceName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$`)
	slotName   = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// checkNode checks the spec of a node by itself. A node that ends needs no storage for
// what it archives.
func checkNode(n *v1alpha1.ReplicationNode, ends bool) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(n.Name) > MaxNodeName {
		say("The name of a ReplicationNode may have at most %d characters; this one has %d.", MaxNodeName, len(n.Name))
	}
	if !nodeName.MatchString(n.Name) {
		say("The name of a ReplicationNode must start with a lower case letter and hold lower case letters, digits and dashes only.")
	}
	seen := map[string]bool{}
	postgres, written := false, false
	for i := range n.Spec.Sources {
		s := &n.Spec.Sources[i]
		if !sourceName.MatchString(s.Name) {
			say("spec.sources[%d].name must start with a lower case letter and hold at most 40 lower case letters, digits and dashes.", i)
		}
		if seen[s.Name] {
			say("spec.sources[%d].name is %q, as is another's: give each source a name of its own.", i, s.Name)
		}
		seen[s.Name] = true
		if count(s.PostgresSourceRef != nil, s.FanoutSourceRef != nil, s.ArchiveSourceRef != nil, s.Postgres != nil, s.Fanout != nil, s.Ingest != nil, s.Archive != nil) != 1 {
			say("spec.sources[%d] must have exactly one of postgresSourceRef, fanoutSourceRef, archiveSourceRef, postgres, fanout, ingest and archive.", i)
		}
		var inner []string
		switch {
		case s.Postgres != nil:
			inner = checkPostgres(s.Postgres)
		case s.Fanout != nil:
			inner = checkFanout(s.Fanout)
		case s.Archive != nil:
			inner = checkArchiveSource(s.Archive)
		case s.Ingest != nil:
			if written {
				say("spec.sources[%d] is another ingest source: declare all tables in one.", i)
			}
			written = true
			inner = checkIngest(n, s.Ingest)
		}
		for _, m := range inner {
			say("spec.sources[%d]: %s", i, m)
		}
		postgres = postgres || s.Postgres != nil || s.PostgresSourceRef != nil
	}
	if postgres && n.Spec.Replicas != nil && *n.Spec.Replicas > 1 {
		say("spec.replicas must be at most 1 for a node with a PostgreSQL source: a replication slot has one reader.")
	}
	if written && n.Spec.Replicas != nil && *n.Spec.Replicas > 1 {
		say("spec.replicas must be at most 1 for a node with an ingest source: its log has one writer.")
	}
	if s := n.Spec.Serve; s != nil && !written && slices.ContainsFunc(s.Permissions, func(p v1alpha1.ReadPermission) bool { return len(p.Writes) > 0 }) {
		say("spec.serve.permissions give writes, and the node has no ingest source: take writes out, or add the source.")
	}
	if s := n.Spec.Serve; s != nil && s.Limits != nil {
		if most := cmp.Or(s.Limits.MaxReaders, nodeconfig.DefaultMaxReaders); s.Limits.MaxPeerReaders > most {
			say("spec.serve.limits.maxPeerReaders is %d, and maxReaders is %d: one of all readers can have at most as many as all.", s.Limits.MaxPeerReaders, most)
		}
	}
	return append(append(out, checkArchives(n, ends)...), checkSinks(n)...)
}

// checkIngest checks an ingest source of a node, and who may write to it. Whether
// the types of columns are known, the node says.
func checkIngest(n *v1alpha1.ReplicationNode, s *v1alpha1.IngestSource) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if !s.Volatile && !Persistent(n) {
		say("ingest needs persistent storage: what is written must outlive the pod. Set spec.storage.type to Persistent, or ingest.volatile to true if it need not.")
	}
	if len(s.Tables) == 0 {
		say("ingest.tables is empty: give at least one table.")
	}
	if s.Pending != nil && s.Pending.MaxBytes != nil { // a bound in each of many sources costs the schema too much
		if q := s.Pending.MaxBytes; q.Value() < 8<<20 || q.Value() > 1<<40 {
			say("ingest.pending.maxBytes must be a quantity from 8Mi to 1Ti, such as 64Mi; it is %s.", q)
		}
	}
	names := make([]v1alpha1.TableReference, len(s.Tables))
	for i, t := range s.Tables {
		names[i] = t.TableReference
		columns, key := map[string]bool{}, false
		for j, c := range t.Columns {
			if c.Name == "" || c.Type == "" || columns[c.Name] {
				say("ingest.tables[%d].columns[%d] must have a type, and a name of its own.", i, j)
			}
			columns[c.Name], key = true, key || c.Key
		}
		if !key {
			say("ingest.tables[%d] has no key: mark the columns that identify a row with key: true.", i)
		}
	}
	out = append(out, checkTables(names)...)
	serve := n.Spec.Serve
	if serve == nil {
		return out
	}
	some := false
	for i, p := range serve.Permissions {
		for _, t := range p.Writes {
			some = true
			if !slices.Contains(names, t) {
				say("spec.serve.permissions[%d].writes names %s, which the ingest source does not declare: declare it there, or take it out.", i, t)
			}
		}
	}
	asked := serve.TokensSecretRef != nil || serve.TLS != nil && serve.TLS.ClientCASecretRef != nil
	switch {
	case asked && serve.TokensSecretRef == nil:
		say("spec.serve.tokensSecretRef is missing: writers say who they are by a token, since the port of the write API takes no certificates.")
	case asked && !some:
		say("spec.serve.permissions let nobody write: give one of them writes, with tables of the ingest source.")
	}
	return out
}

// checkMesh checks what of a mesh can be checked without its members.
func checkMesh(s *v1alpha1.ReplicationMeshSpec) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(s.Members.Nodes) == 0 && s.Members.Selector == nil {
		say("members is empty: give nodes, a selector, or both.")
	}
	if s.Members.Selector != nil {
		if _, err := metav1.LabelSelectorAsSelector(s.Members.Selector); err != nil {
			say("members.selector is not a selector: %v.", err)
		}
	}
	if s.Topology != "" && s.Topology != v1alpha1.MeshFull {
		say("topology is %s: it can be %s.", s.Topology, v1alpha1.MeshFull)
	}
	if s.Topology != "" && len(s.Edges) > 0 {
		say("topology: %s joins every member with every other: take edges out, or topology.", s.Topology)
	}
	for i, e := range s.Edges {
		if len(e.Nodes) != 2 || e.Nodes[0] == e.Nodes[1] {
			say("edges[%d].nodes must be the names of two members.", i)
		}
	}
	if s.TokenSecretRef != nil && s.TLS == nil {
		say("tokenSecretRef needs tls: a token sent in plain text is no secret.")
	}
	names := make([]v1alpha1.TableReference, len(s.Tables))
	for i := range s.Tables {
		names[i] = s.Tables[i].TableReference
	}
	out = append(out, checkTables(names)...)
	return append(out, checkConflicts(s.Conflicts, names)...)
}

// checkConflicts checks the conflict policies of a mesh that takes some tables, or
// all.
func checkConflicts(all []v1alpha1.TableConflicts, taken []v1alpha1.TableReference) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	seen := map[v1alpha1.TableReference]bool{}
	for i, c := range all {
		owned := c.Policy == v1alpha1.ConflictOriginOwnsKey
		out = append(out, checkOneOf(fmt.Sprintf("conflicts[%d].policy", i), c.Policy, v1alpha1.ConflictLastWriteWins, v1alpha1.ConflictOriginOwnsKey, v1alpha1.ConflictNamespaceByOrigin)...)
		switch {
		case seen[c.TableReference]:
			say("conflicts[%d] names %s again: a table has one policy.", i, c.TableReference)
		case len(taken) > 0 && !slices.Contains(taken, c.TableReference):
			say("conflicts[%d] names %s, which is not among the tables of the mesh.", i, c.TableReference)
		case owned == (c.OwnerColumn == ""):
			say("conflicts[%d].ownerColumn is needed with the policy OriginOwnsKey, and with no other.", i)
		case !owned && len(c.Owners) > 0:
			say("conflicts[%d].owners are of the policy OriginOwnsKey.", i)
		case c.OriginColumn != "" && c.Policy != v1alpha1.ConflictNamespaceByOrigin:
			say("conflicts[%d].originColumn is of the policy NamespaceByOrigin.", i)
		}
		seen[c.TableReference] = true
		values := map[v1alpha1.RowOwner]bool{}
		for j, o := range c.Owners {
			v := v1alpha1.RowOwner{Value: o.Value, Prefix: o.Prefix}
			switch {
			case o.Value != "" && o.Prefix != "":
				say("conflicts[%d].owners[%d] has both value and prefix: give one of them.", i, j)
			case values[v]:
				say("conflicts[%d].owners[%d] is another owner of the same rows: keep one of them.", i, j)
			}
			values[v] = true
		}
	}
	return out
}

// keyless is the first policy of a mesh that goes by a column which is not of a
// table's key at a node that is written to; nil if there is none.
func keyless(n *v1alpha1.ReplicationNode, all []v1alpha1.TableConflicts) *v1alpha1.TableConflicts {
	for i, c := range all {
		for _, s := range n.Spec.Sources {
			if s.Ingest == nil || c.OwnerColumn == "" {
				continue
			}
			for _, t := range s.Ingest.Tables {
				if t.TableReference == c.TableReference && !slices.ContainsFunc(t.Columns, func(k v1alpha1.IngestColumn) bool { return k.Key && k.Name == c.OwnerColumn }) {
					return &all[i]
				}
			}
		}
	}
	return nil
}

func checkSinks(n *v1alpha1.ReplicationNode) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	for i := range n.Spec.Sinks {
		s := &n.Spec.Sinks[i]
		if !sourceName.MatchString(s.Name) {
			say("spec.sinks[%d].name must start with a lower case letter and hold at most 40 lower case letters, digits and dashes.", i)
		}
		if seen[s.Name] {
			say("spec.sinks[%d].name is %q, as is another's: give each sink a name of its own.", i, s.Name)
		}
		seen[s.Name] = true
		switch {
		case count(s.Postgres != nil, s.HTTP != nil) != 1:
			say("spec.sinks[%d] must have exactly one of postgres and http.", i)
		case s.Postgres != nil:
			for _, m := range checkServer(s.Postgres.Hosts, s.Postgres.Database, s.Postgres.CredentialsSecretRef, s.Postgres.TLS) {
				say("spec.sinks[%d]: %s", i, m)
			}
		default:
			for _, m := range checkHTTP(s.HTTP) {
				say("spec.sinks[%d].http: %s", i, m)
			}
		}
		if s.OnReject == v1alpha1.RejectDeadLetter && !Persistent(n) {
			say("spec.sinks[%d].onReject: DeadLetter needs persistent storage: what is put aside must outlive the pod.", i)
		}
		for _, m := range checkTables(s.Tables) {
			say("spec.sinks[%d]: %s", i, m)
		}
	}
	if (Persistent(n) || len(n.Spec.Sinks) > 0) && n.Spec.Replicas != nil && *n.Spec.Replicas > 1 {
		say("spec.replicas must be at most 1 for a node with persistent storage or sinks.")
	}
	if Persistent(n) && n.Spec.Storage.Size == nil {
		say("spec.storage.size is needed with the type Persistent: say how large the volume is to be, such as 10Gi.")
	}
	return out
}

// checkHTTP checks what the schema cannot: it does not compare names without
// their case, and a bound of a quantity in each of many sinks costs it too much.
func checkHTTP(s *v1alpha1.HTTPSink) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if q := s.MaxBatchBytes; q != nil && (q.Value() < 1<<10 || q.Value() > 64<<20) {
		say("maxBatchBytes must be a quantity from 1Ki to 64Mi, such as 1Mi; it is %s.", q)
	}
	seen := map[string]bool{}
	for i, h := range s.Headers {
		name := strings.ToLower(h.Name)
		if seen[name] {
			say("headers[%d].name is %q, as is another's: capitals make no difference. Give each header once.", i, h.Name)
		}
		seen[name] = true
		if count(h.Value != "", h.ValueSecretRef != nil) != 1 {
			say("headers[%d] must have exactly one of value and valueSecretRef.", i)
		}
	}
	return out
}

func checkPostgres(s *v1alpha1.PostgresSourceSpec) []string {
	out := checkServer(s.Hosts, s.Database, s.CredentialsSecretRef, s.TLS)
	if s.Slot != nil && s.Slot.Name != "" && !slotName.MatchString(s.Slot.Name) {
		out = append(out, "slot.name may hold lower case letters, digits and underscores only, at most 63 of them.")
	}
	if len(s.Tables) == 0 {
		out = append(out, "tables is empty: give at least one table.")
	}
	return append(out, checkTables(s.Tables)...)
}

// checkServer checks what it takes to connect to a PostgreSQL server.
func checkServer(hosts []v1alpha1.PostgresHost, database string, credentials v1alpha1.LocalReference, tls *v1alpha1.PostgresTLS) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(hosts) == 0 {
		say("hosts is empty: give at least one host.")
	}
	for i, h := range hosts {
		if h.Host == "" {
			say("hosts[%d].host is empty.", i)
		}
	}
	if database == "" {
		say("database is empty.")
	}
	if credentials.Name == "" {
		say("credentialsSecretRef.name is empty: name the Secret with the keys %s and %s.", SecretUsername, SecretPassword)
	}
	if tls != nil && strings.HasPrefix(string(tls.Mode), "Verify") && tls.CASecretRef == nil {
		say("tls.caSecretRef is needed with the mode %s.", tls.Mode)
	}
	return out
}

func checkFanout(s *v1alpha1.FanoutSourceSpec) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(s.Upstreams) == 0 {
		say("upstreams is empty: give at least one.")
	}
	for i, u := range s.Upstreams {
		if count(u.NodeRef != nil, u.Selector != nil, u.Address != "") != 1 {
			say("upstreams[%d] must have exactly one of nodeRef, selector and address.", i)
			continue
		}
		if u.Selector != nil {
			if _, err := metav1.LabelSelectorAsSelector(u.Selector); err != nil {
				say("upstreams[%d].selector is not a selector: %v.", i, err)
			}
		}
		if u.Address != "" && !isTarget(u.Address) {
			say("upstreams[%d].address must be host:port or dns:///host:port.", i)
		}
	}
	names := make([]v1alpha1.TableReference, len(s.Tables))
	for i := range s.Tables {
		names[i] = s.Tables[i].TableReference
	}
	return append(out, checkTables(names)...)
}

func checkTables(ts []v1alpha1.TableReference) (out []string) {
	seen := map[v1alpha1.TableReference]bool{}
	for i, t := range ts {
		switch {
		case t.Schema == "" || t.Name == "":
			out = append(out, fmt.Sprintf("tables[%d] must have a schema and a name.", i))
		case seen[t]:
			out = append(out, fmt.Sprintf("tables[%d] names %s again.", i, t))
		}
		seen[t] = true
	}
	return out
}

func isTarget(address string) bool {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, "dns:///"))
	n, perr := strconv.ParseUint(port, 10, 16)
	return err == nil && perr == nil && n > 0 && host != "" && !strings.ContainsAny(host, "/ \t\n")
}

func count(bs ...bool) (n int) {
	for _, b := range bs {
		if b {
			n++
		}
	}
	return n
}
