package topology

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
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

func checkNode(n *v1alpha1.ReplicationNode) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if len(n.Name) > MaxNodeName {
		say("The name of a ReplicationNode may have at most %d characters; this one has %d.", MaxNodeName, len(n.Name))
	}
	if !nodeName.MatchString(n.Name) {
		say("The name of a ReplicationNode must start with a lower case letter and hold lower case letters, digits and dashes only.")
	}
	if len(n.Spec.Sources) == 0 {
		say("spec.sources is empty: give at least one source.")
	}
	seen := map[string]bool{}
	postgres := false
	for i := range n.Spec.Sources {
		s := &n.Spec.Sources[i]
		if !sourceName.MatchString(s.Name) {
			say("spec.sources[%d].name must start with a lower case letter and hold at most 40 lower case letters, digits and dashes.", i)
		}
		if seen[s.Name] {
			say("spec.sources[%d].name is %q, as is another's: give each source a name of its own.", i, s.Name)
		}
		seen[s.Name] = true
		if count(s.PostgresSourceRef != nil, s.FanoutSourceRef != nil, s.Postgres != nil, s.Fanout != nil) != 1 {
			say("spec.sources[%d] must have exactly one of postgresSourceRef, fanoutSourceRef, postgres and fanout.", i)
		}
		var inner []string
		switch {
		case s.Postgres != nil:
			inner = checkPostgres(s.Postgres)
		case s.Fanout != nil:
			inner = checkFanout(s.Fanout)
		}
		for _, m := range inner {
			say("spec.sources[%d]: %s", i, m)
		}
		postgres = postgres || s.Postgres != nil || s.PostgresSourceRef != nil
	}
	if postgres && n.Spec.Replicas != nil && *n.Spec.Replicas > 1 {
		say("spec.replicas must be at most 1 for a node with a PostgreSQL source: a replication slot has one reader.")
	}
	return append(out, checkSinks(n)...)
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
