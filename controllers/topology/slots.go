package topology

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// claim is a resource's claim to a replication slot. A slot's name is unique
// within a server, whatever the database.
type claim struct {
	slot  string
	hosts map[string]bool
	since metav1.Time
	owner Key
	what  string // kind and name, for people
}

func newClaim(o metav1.Object, kind, slot string, spec *v1alpha1.PostgresSourceSpec) claim {
	c := claim{slot: slot, hosts: map[string]bool{}, since: o.GetCreationTimestamp(), owner: keyOf(o)}
	c.what = fmt.Sprintf("%s %s", kind, c.owner)
	for _, h := range spec.Hosts {
		c.hosts[fmt.Sprintf("%s:%d", h.Host, postgresPort(h))] = true
	}
	return c
}

func postgresPort(h v1alpha1.PostgresHost) int32 {
	if h.Port == 0 {
		return 5432
	}
	return h.Port
}

// conflicts calls lose for every claim whose slot an older one holds on a host
// that both name.
func conflicts(claims []claim, lose func(younger int, older claim)) {
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := claims[i], claims[j]
		switch {
		case a.since.Before(&b.since):
			return -1
		case b.since.Before(&a.since):
			return 1
		}
		return compareKeys(a.owner, b.owner)
	})
	held := map[string][]claim{}
next:
	for _, i := range order {
		c := claims[i]
		for _, older := range held[c.slot] {
			for host := range maps.Keys(c.hosts) {
				if older.hosts[host] {
					lose(i, older)
					continue next
				}
			}
		}
		held[c.slot] = append(held[c.slot], c)
	}
}

// claimSlots finds slots that two resources claim: first PostgresSources that
// name the same one, then nodes that would read by the same one.
func (p *planner) claimSlots() {
	const mend = "Give each a slot of its own, or put a node below the one that holds it."
	var claims []claim
	for _, k := range sortedKeys(p.sources.postgres) {
		if s := p.sources.postgres[k].spec; s.Spec.Slot != nil && s.Spec.Slot.Name != "" {
			claims = append(claims, newClaim(s, "PostgresSource", s.Spec.Slot.Name, &s.Spec))
		}
	}
	lost := map[Key]bool{}
	conflicts(claims, func(i int, older claim) {
		s := p.sources.postgres[claims[i].owner]
		s.accepted.add(v1alpha1.ReasonSlotConflict, "The slot %s is claimed by the older %s on the same server. %s", claims[i].slot, older.what, mend)
		lost[claims[i].owner] = true
	})

	claims = nil
	type use struct {
		d   *draft
		ref Key
		of  *Source
	}
	var uses []use
	for _, d := range p.order {
		for i := range d.Sources {
			pg := d.Sources[i].Postgres
			if pg == nil {
				continue
			}
			ref := Key{}
			if r := d.spec.Spec.Sources[slices.IndexFunc(d.spec.Spec.Sources, func(s v1alpha1.NodeSource) bool { return s.Name == d.Sources[i].Name })].PostgresSourceRef; r != nil {
				ref = Key{Namespace: d.Key.Namespace, Name: r.Name}
			}
			if lost[ref] {
				d.accepted.add(v1alpha1.ReasonSlotConflict, "The PostgresSource %s is not accepted: its slot %s is claimed by an older one on the same server.", ref.Name, pg.Slot)
				continue
			}
			claims = append(claims, newClaim(d.spec, "ReplicationNode", pg.Slot, pg.Spec))
			uses = append(uses, use{d, ref, &d.Sources[i]})
		}
	}
	taken := map[int]bool{}
	conflicts(claims, func(i int, older claim) {
		uses[i].d.accepted.add(v1alpha1.ReasonSlotConflict, "The slot %s is held by the older %s on the same server. %s", claims[i].slot, older.what, mend)
		taken[i] = true
	})
	for i, u := range uses {
		if s := p.sources.postgres[u.ref]; s != nil && !taken[i] {
			s.slots = append(s.slots, Slot{Name: claims[i].slot, Holder: u.d.Key, Source: u.of.Name, Permanent: u.of.Postgres.Permanent})
		}
	}
}
