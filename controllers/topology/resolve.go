package topology

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// resolve checks every spec by itself and finds what it refers to.
func (p *planner) resolve() {
	for _, s := range p.sources.postgres {
		for _, m := range checkPostgres(&s.spec.Spec) {
			s.accepted.add(v1alpha1.ReasonInvalid, "%s", m)
		}
		p.checkSecrets(&s.resolved, s.spec.Namespace, PostgresSecrets(&s.spec.Spec))
	}
	for _, k := range sortedKeys(p.sources.fanout) {
		s := p.sources.fanout[k]
		p.checkSecrets(&s.resolved, k.Namespace, FanoutSecrets(&s.spec.Spec))
		for _, m := range checkFanout(&s.spec.Spec) {
			s.accepted.add(v1alpha1.ReasonInvalid, "%s", m)
		}
		if s.accepted.reason == "" {
			found, _ := p.candidates(&s.findings, k.Namespace, Key{}, &s.spec.Spec)
			p.checkTLS(&s.findings, k.Namespace, "This source", &s.spec.Spec, found)
		}
	}
	for _, k := range sortedKeys(p.sources.archive) {
		s := p.sources.archive[k]
		for _, m := range checkArchiveSource(&s.spec.Spec) {
			s.accepted.add(v1alpha1.ReasonInvalid, "%s", m)
		}
		p.checkSecrets(&s.resolved, k.Namespace, ArchiveSecrets(&s.spec.Spec))
	}
	p.resolveMeshes()
	p.resolveTrees()
	for _, d := range p.order {
		p.resolveNode(d)
	}
	for _, e := range p.exports {
		if !e.planned { // its node is there, and planned for itself
			p.resolveNode(e.node)
		}
	}
}

func (p *planner) resolveNode(d *draft) {
	for _, m := range checkNode(d.spec, d.export != nil && ends(d.export)) {
		d.accepted.add(v1alpha1.ReasonInvalid, "%s", m)
	}
	if d.accepted.reason != "" {
		return
	}
	if len(d.spec.Spec.Sources) == 0 && d.mesh == nil && d.relay == nil {
		why := "give it a source, or let a mesh select it."
		if t := TreeOf(d.spec); t != "" {
			why = "see the RelayTree " + t + "."
		}
		d.resolved.add(v1alpha1.ReasonSourceNotFound, "The node has no source, and no ReplicationMesh has it for a member: %s", why)
	}
	d.Single = Persistent(d.spec) || len(d.spec.Spec.Sinks) > 0
	d.Secrets = nodeSecrets(d.spec)
	defer func() {
		d.Secrets = merge(d.Secrets)
		p.checkSecrets(&d.resolved, d.Key.Namespace, d.Secrets)
	}()
	for i := range d.spec.Spec.Sources {
		s := &d.spec.Spec.Sources[i]
		switch {
		case s.Postgres != nil:
			p.postgres(d, s.Name, Key{}, s.Postgres)
		case s.Fanout != nil:
			p.fanout(d, s.Name, s.Fanout)
		case s.Ingest != nil:
			d.Single = true
			d.Sources = append(d.Sources, Source{Name: s.Name, Ingest: s.Ingest})
		case s.Archive != nil:
			p.archive(d, s.Name, s.Archive)
		case s.ArchiveSourceRef != nil:
			ref := Key{Namespace: d.Key.Namespace, Name: s.ArchiveSourceRef.Name}
			src := p.sources.archive[ref]
			if src == nil {
				d.resolved.add(v1alpha1.ReasonSourceNotFound, "The ArchiveSource %s, which the source %s names, does not exist.", ref.Name, s.Name)
				continue
			}
			src.nodes[d.Key] = true
			if src.accepted.reason != "" {
				d.accepted.add(src.accepted.reason, "The ArchiveSource %s is not accepted: %s", ref.Name, strings.Join(src.accepted.messages, " "))
				continue
			}
			p.archive(d, s.Name, &src.spec.Spec)
		case s.PostgresSourceRef != nil:
			ref := Key{Namespace: d.Key.Namespace, Name: s.PostgresSourceRef.Name}
			d.Single = true
			src := p.sources.postgres[ref]
			if src == nil {
				d.resolved.add(v1alpha1.ReasonSourceNotFound, "The PostgresSource %s, which the source %s names, does not exist.", ref.Name, s.Name)
				continue
			}
			src.nodes[d.Key] = true
			if src.accepted.reason != "" {
				d.accepted.add(src.accepted.reason, "The PostgresSource %s is not accepted: %s", ref.Name, strings.Join(src.accepted.messages, " "))
				continue
			}
			p.postgres(d, s.Name, ref, &src.spec.Spec)
		case s.FanoutSourceRef != nil:
			ref := Key{Namespace: d.Key.Namespace, Name: s.FanoutSourceRef.Name}
			src := p.sources.fanout[ref]
			if src == nil {
				d.resolved.add(v1alpha1.ReasonSourceNotFound, "The FanoutSource %s, which the source %s names, does not exist.", ref.Name, s.Name)
				continue
			}
			src.nodes[d.Key] = true
			if src.accepted.reason == v1alpha1.ReasonInvalid {
				d.accepted.add(src.accepted.reason, "The FanoutSource %s is not accepted: %s", ref.Name, strings.Join(src.accepted.messages, " "))
				continue
			}
			p.fanout(d, s.Name, &src.spec.Spec)
		}
	}
	if d.mesh != nil {
		p.mesh(d)
	}
	if d.relay != nil {
		p.relayNode(d)
	}
	if d.tree != nil {
		d.Tree = d.tree.Key
	}
	if _, err := ProfileSecret(d.Stores(d.spec)); err != nil {
		d.accepted.add(v1alpha1.ReasonInvalid, "%s", err)
	}
}

func (p *planner) archive(d *draft, name string, spec *v1alpha1.ArchiveSourceSpec) {
	d.Sources = append(d.Sources, Source{Name: name, Archive: spec})
	d.Secrets = append(d.Secrets, ArchiveSecrets(spec)...)
}

func (p *planner) postgres(d *draft, name string, ref Key, spec *v1alpha1.PostgresSourceSpec) {
	d.Single = true
	d.Secrets = append(d.Secrets, PostgresSecrets(spec)...)
	owner := []string{d.Key.Namespace, d.Key.Name, name}
	out := &Postgres{Spec: spec, Slot: derivedName(owner...), Permanent: Persistent(d.spec), Managed: true}
	if slot := spec.Slot; slot != nil {
		if slot.Name != "" && !d.ofExport() { // which reads by a slot of its own
			out.Slot = slot.Name
		}
		out.DropSlot = out.Permanent && slot.DeletionPolicy == v1alpha1.DeletionDelete
	}
	if ref != (Key{}) {
		owner = []string{ref.Namespace, ref.Name}
	}
	out.Publication = derivedName(owner...)
	if pub := spec.Publication; pub != nil {
		if pub.Name != "" {
			out.Publication = pub.Name
		}
		if pub.Managed != nil {
			out.Managed = *pub.Managed
		}
	}
	d.Sources = append(d.Sources, Source{Name: name, Postgres: out})
}

func (p *planner) fanout(d *draft, name string, spec *v1alpha1.FanoutSourceSpec) {
	if d.spec.Spec.Cursors == v1alpha1.CursorsShared && len(spec.Tables) > 0 {
		d.accepted.add(v1alpha1.ReasonInvalid, wholeCursor, "The source "+name)
	}
	d.Sources = append(d.Sources, Source{Name: name, Fanout: spec})
	d.Secrets = append(d.Secrets, FanoutSecrets(spec)...)
	w := WiredSource{Name: name}
	w.Candidates, d.first[name] = p.candidates(&d.findings, d.Key.Namespace, d.Key, spec)
	w.Policy = policy(spec.Failover)
	p.checkTLS(&d.findings, d.Key.Namespace, "The source "+name, spec, w.Candidates)
	d.Wiring.Sources = append(d.Wiring.Sources, w)
}

// candidates finds the upstreams of a spec in namespace, in order, each once,
// for the node self. first says whether the first upstream gave the first of
// them.
func (p *planner) candidates(f *findings, namespace string, self Key, spec *v1alpha1.FanoutSourceSpec) (out []Candidate, first bool) {
	add := func(c Candidate) {
		if !slices.ContainsFunc(out, func(o Candidate) bool { return o.ID == c.ID }) && len(out) < maxCandidates {
			c.Eligible = true
			out = append(out, c)
		}
	}
	for i, u := range spec.Upstreams {
		switch {
		case u.Address != "":
			add(Candidate{ID: u.Address, Address: u.Address})
		case u.NodeRef != nil:
			k := Key{Namespace: u.NodeRef.Namespace, Name: u.NodeRef.Name}
			if k.Namespace == "" {
				k.Namespace = namespace
			}
			parent := p.nodes[k]
			switch {
			case parent == nil || parent.export != nil:
				f.resolved.add(v1alpha1.ReasonParentNotFound, "The upstream node %s does not exist.", label(k, namespace))
			case parent.spec.DeletionTimestamp != nil:
				f.resolved.add(v1alpha1.ReasonParentNotFound, "The upstream node %s is being deleted.", label(k, namespace))
			case !permitted(parent.spec, namespace):
				f.accepted.add(v1alpha1.ReasonNotPermitted, "The node %s does not allow the namespace %s to read from it: list it in the node's spec.serve.allowedConsumers.", k, namespace)
			default:
				add(p.nodeCandidate(parent.spec))
			}
		case u.Selector != nil:
			selector, err := metav1.LabelSelectorAsSelector(u.Selector)
			if err != nil {
				continue // checkFanout has said so
			}
			before := len(out)
			for _, d := range p.order {
				if d.Key.Namespace == namespace && d.Key != self && !d.ofExport() && d.spec.DeletionTimestamp == nil && selector.Matches(labels.Set(d.spec.Labels)) {
					add(p.nodeCandidate(d.spec))
				}
			}
			if len(out) == before {
				f.resolved.add(v1alpha1.ReasonParentNotFound, "No other node of the namespace has the labels %s that an upstream selects.", selector)
			}
		}
		if i == 0 {
			first = len(out) > 0
		}
	}
	return out, first
}

// policy is the effective policy of failover.
func policy(f *v1alpha1.FailoverPolicy) (out nodeconfig.Policy) {
	if f != nil {
		if f.UnhealthyAfter != nil {
			out.UnhealthyAfter = f.UnhealthyAfter.Duration
		}
		if f.RecoverAfter != nil {
			out.RecoverAfter = f.RecoverAfter.Duration
		}
		if f.MaxSwitchesPerHour != nil {
			out.MaxSwitchesPerHour = int(*f.MaxSwitchesPerHour)
		}
		out.Failback = strings.ToLower(string(f.Failback))
	}
	out.SetDefaults()
	return out
}

// maxCandidates bounds how many parents a source may have.
const maxCandidates = 64

func (p *planner) nodeCandidate(n *v1alpha1.ReplicationNode) Candidate {
	k := keyOf(n)
	return Candidate{ID: k.String(), Node: k, Address: p.in.Address(n)}
}

func permitted(parent *v1alpha1.ReplicationNode, namespace string) bool {
	if parent.Namespace == namespace {
		return true
	}
	return parent.Spec.Serve != nil && slices.ContainsFunc(parent.Spec.Serve.AllowedConsumers, func(g v1alpha1.ConsumerGrant) bool {
		return g.Namespace == namespace || g.Namespace == "*"
	})
}

// derivedName makes a name for something in PostgreSQL that belongs to a
// resource: readable, within 63 bytes, and another for every resource.
func derivedName(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "/")))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.Join(parts, "_"))
	if most := 63 - len("tributary_") - 9; len(readable) > most {
		readable = readable[:most]
	}
	return fmt.Sprintf("tributary_%s_%s", readable, hex.EncodeToString(sum[:4]))
}
