package topology

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Keys of the Secrets of stores.
const (
	SecretAccessKey = "accessKeyID"
	SecretSecretKey = "secretAccessKey"
	SecretConfig    = "config"
)

func (u *uses) store(s *v1alpha1.ArchiveStore) {
	if s.S3 == nil {
		return
	}
	u.add(s.S3.CASecretRef, SecretCA)
	if c := s.S3.Credentials; c != nil {
		u.add(c.SecretRef, SecretAccessKey, SecretSecretKey)
		if c.Profile != nil {
			u.add(&c.Profile.SecretRef, SecretConfig)
		}
	}
}

// ArchiveSecrets lists the Secrets that a source which is an archive uses.
func ArchiveSecrets(spec *v1alpha1.ArchiveSourceSpec) []SecretUse {
	var u uses
	u.store(&spec.Store)
	return merge(u)
}

// ExportSecrets lists the Secrets that an export names itself.
func ExportSecrets(spec *v1alpha1.ArchiveExportSpec) []SecretUse {
	var u uses
	u.store(&spec.Store)
	return merge(u)
}

// Stores lists the stores of a node's archives, and of the sources that are
// archives.
func (n *Node) Stores(spec *v1alpha1.ReplicationNode) (out []*v1alpha1.ArchiveStore) {
	for i := range spec.Spec.Archives {
		out = append(out, &spec.Spec.Archives[i].Store)
	}
	for _, s := range n.Sources {
		if s.Archive != nil {
			out = append(out, &s.Archive.Store)
		}
	}
	return out
}

// ProfileSecret is the Secret with the configuration file of a node's profiles; empty
// if it uses none. Profiles of two files are refused.
func ProfileSecret(stores []*v1alpha1.ArchiveStore) (string, error) {
	name := ""
	for _, s := range stores {
		if s.S3 == nil || s.S3.Credentials == nil || s.S3.Credentials.Profile == nil {
			continue
		}
		ref := s.S3.Credentials.Profile.SecretRef.Name
		if name != "" && ref != name {
			return "", fmt.Errorf("The profiles of this node's archives come from the Secrets %s and %s: put them in one file.", name, ref) //nolint:staticcheck,revive // a sentence of a condition
		}
		name = ref
	}
	return name, nil
}

func checkLocation(l *v1alpha1.ArchiveLocation, tables []v1alpha1.TableReference) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	out = append(out, checkTables(tables)...)
	if !l.Group && len(tables) != 1 {
		say("An archive without group is of one table: name it by tables, or set group to true, so that each table has a prefix of its own below keyPrefix.")
	}
	if strings.HasPrefix(l.KeyPrefix, "/") || slices.ContainsFunc(strings.Split(strings.TrimSuffix(l.KeyPrefix, "/"), "/"), func(name string) bool {
		return name == "" && l.KeyPrefix != "" || name == "." || name == ".." || strings.HasPrefix(name, ".tributary")
	}) {
		say("keyPrefix must be names with a slash after each, such as shop/public.orders/; it is %q.", l.KeyPrefix)
	}
	if count(l.Store.S3 != nil, l.Store.Local != nil) != 1 {
		say("store must have exactly one of s3 and local.")
		return out
	}
	if s := l.Store.Local; s != nil {
		if count(s.Claim != nil, s.ConfigMap != nil) != 1 {
			say("store.local must have exactly one of claim and configMap.")
		}
		if c := s.ConfigMap; c != nil {
			for i, item := range c.Items {
				if path.IsAbs(item.Path) || slices.Contains(strings.Split(item.Path, "/"), "..") {
					say("store.local.configMap.items[%d].path must be a path within the volume: without a slash before it, and without '..'.", i)
				}
			}
		}
	}
	if s := l.Store.S3; s != nil {
		if s.Bucket == "" || strings.ContainsAny(s.Bucket, "/ ") {
			say("store.s3.bucket must be the name of a bucket alone; it is %q.", s.Bucket)
		}
		if c := s.Credentials; c != nil && count(c.SecretRef != nil, c.Profile != nil, c.RoleARN != "") == 0 {
			say("store.s3.credentials say nothing: give secretRef, profile or roleARN, or take credentials out to use those of the environment.")
		}
	}
	return out
}

// checkWrite checks what the schema does not.
func checkWrite(w *v1alpha1.ArchiveWrite) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if w == nil {
		return nil
	}
	if q := w.MaxDiffBytes; q != nil && (q.Value() < 64<<10 || q.Value() > 1<<40) {
		say("write.maxDiffBytes must be a quantity from 64Ki to 1Ti, such as 64Mi; it is %s.", q)
	}
	if r := w.Rebase; r != nil && r.DiffBytes != nil && (r.DiffBytes.Value() < 1 || r.DiffBytes.Value() > 1<<50) {
		say("write.rebase.diffBytes must be a quantity from 1 to 1Pi, such as 10Gi; it is %s.", r.DiffBytes)
	}
	return out
}

func checkArchiveSource(s *v1alpha1.ArchiveSourceSpec) (out []string) {
	out = checkLocation(&s.ArchiveLocation, s.Tables)
	if s.Group && len(s.Tables) == 0 {
		out = append(out, "tables is empty: give at least one table.")
	}
	if s.Type == v1alpha1.ArchiveTypeFile && s.Store.Local == nil {
		out = append(out, "type: file is of an archive in files of a volume: set store.local, or type to archive.")
	}
	if s.PollInterval != nil && !s.Follow {
		out = append(out, "pollInterval is of a source that follows its archive: set follow to true, or take it out.")
	}
	return out
}

// checkArchives checks the archives of a node. A node of an export that ends needs no
// persistent storage.
func checkArchives(n *v1alpha1.ReplicationNode, ends bool) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	seen, tables, all := map[string]bool{}, map[v1alpha1.TableReference]string{}, ""
	for i := range n.Spec.Archives {
		a := &n.Spec.Archives[i]
		if !sourceName.MatchString(a.Name) {
			say("spec.archives[%d].name must start with a lower case letter and hold at most 40 lower case letters, digits and dashes.", i)
		}
		if seen[a.Name] {
			say("spec.archives[%d].name is %q, as is another's: give each archive a name of its own.", i, a.Name)
		}
		seen[a.Name] = true
		named := a.Tables
		if a.Group && len(named) == 0 {
			if all != "" {
				say("spec.archives[%d] is for all tables, and so is %s: keep one of them, or name the tables.", i, all)
			}
			all = a.Name
		}
		for _, t := range named {
			if first, ok := tables[t]; ok && first != a.Name {
				say("spec.archives[%d] names %s, and so does %s: a table has one archive at a node.", i, t, first)
			}
			tables[t] = a.Name
		}
		if !a.Group || len(named) > 0 {
			for _, m := range checkLocation(&a.ArchiveLocation, named) {
				say("spec.archives[%d]: %s", i, m)
			}
		} else {
			l := a.ArchiveLocation
			for _, m := range checkLocation(&l, nil) {
				say("spec.archives[%d]: %s", i, m)
			}
		}
		for _, m := range checkWrite(a.Write) {
			say("spec.archives[%d].%s", i, m)
		}
		switch {
		case a.Write == nil:
		case a.Store.Local != nil && a.Store.Local.ConfigMap != nil:
			say("spec.archives[%d] is written, and a ConfigMap cannot be: use s3, or local.claim.", i)
		case !ends && !Persistent(n):
			say("spec.archives[%d] is written, which needs persistent storage: what is not archived yet must outlive the pod. Set spec.storage.type to Persistent, or take write out.", i)
		}
	}
	return out
}

// archivePlace is where an archive is, so that two that are the same are equal.
type archivePlace struct {
	store  string // the bucket, or the volume
	prefix string // within it; empty or with a slash at its end
	group  bool
	tables []v1alpha1.TableReference // none: all of a group
}

func placeOf(namespace string, l *v1alpha1.ArchiveLocation, tables []v1alpha1.TableReference) archivePlace {
	out := archivePlace{group: l.Group, tables: tables}
	before := ""
	switch {
	case l.Store.S3 != nil:
		out.store = "s3://" + l.Store.S3.Bucket
		if e := strings.TrimSuffix(l.Store.S3.Endpoint, "/"); e != "" {
			out.store = e + "/" + l.Store.S3.Bucket
		}
		before = l.Store.S3.Prefix
	case l.Store.Local != nil && l.Store.Local.Claim != nil:
		out.store, before = "claim "+namespace+"/"+l.Store.Local.Claim.Name, l.Store.Local.Path
	case l.Store.Local != nil && l.Store.Local.ConfigMap != nil:
		out.store, before = "configmap "+namespace+"/"+l.Store.Local.ConfigMap.Name, l.Store.Local.Path
	}
	if out.prefix = strings.Trim(path.Join("/", before, l.KeyPrefix), "/"); out.prefix != "" {
		out.prefix += "/"
	}
	return out
}

// manifest is the key of the manifest of a table.
func (a *archivePlace) manifest(t v1alpha1.TableReference) string {
	if a.group {
		return a.prefix + nodeconfig.TableKey(nodeconfig.Table{Schema: t.Schema, Name: t.Name}) + "/manifest.json"
	}
	return a.prefix + "manifest.json"
}

// any is the key of the manifests of an archive, as a person would write it.
func (a *archivePlace) any(t v1alpha1.TableReference) string {
	if a.group && len(a.tables) > 0 && !slices.Contains(a.tables, t) {
		t = a.tables[0]
	} else if !a.group && len(a.tables) == 1 {
		t = a.tables[0]
	}
	return a.manifest(t)
}

// archiveWriter is a resource that writes an archive.
type archiveWriter struct {
	archivePlace
	owner    Key
	what     string // kind and name, for people
	since    metav1.Time
	findings *findings
	order    func() string // of its positions; empty: not known
}

// sameArchive returns a key at which both write; empty if there is none.
func (a *archiveWriter) sameArchive(b *archiveWriter) string {
	if a.store != b.store {
		return ""
	}
	switch {
	case len(a.tables) == 0 && len(b.tables) == 0:
		if a.prefix == b.prefix {
			return a.prefix
		}
		return ""
	case len(a.tables) == 0:
		a, b = b, a
	}
	for _, t := range a.tables {
		key := a.manifest(t)
		if len(b.tables) == 0 {
			// b writes one folder for each table below its prefix
			if rest, ok := strings.CutPrefix(key, b.prefix); ok && strings.Count(rest, "/") == 1 && rest == nodeconfig.TableKey(nodeconfig.Table{Schema: t.Schema, Name: t.Name})+"/manifest.json" {
				return key
			}
			continue
		}
		for _, u := range b.tables {
			if b.manifest(u) == key {
				return key
			}
		}
	}
	return ""
}

// archives refuses writers of one archive, and checks what is read against what is
// written.
func (p *planner) archives() {
	writers := p.archiveWriters()
	slices.SortStableFunc(writers, func(a, b *archiveWriter) int {
		switch {
		case a.since.Before(&b.since):
			return -1
		case b.since.Before(&a.since):
			return 1
		}
		return cmp.Or(compareKeys(a.owner, b.owner), cmp.Compare(a.what, b.what))
	})
	for i, w := range writers {
		for _, older := range writers[:i] {
			if key := w.sameArchive(older); key != "" {
				if older.what == w.what {
					w.findings.accepted.add(v1alpha1.ReasonInvalid, "Two archives of this node are written at %s in %s: give each a key prefix of its own.", key, w.store)
					continue
				}
				w.findings.accepted.add(v1alpha1.ReasonArchiveConflict, "The archive at %s in %s is written by the older %s: give each a key prefix of its own, or let one read what the other writes.", key, w.store, older.what)
			}
		}
	}
	for _, k := range sortedKeys(p.sources.archive) {
		s := p.sources.archive[k]
		p.checkReader(&s.findings, "", placeOf(k.Namespace, &s.spec.Spec.ArchiveLocation, s.spec.Spec.Tables), comparator(s.spec.Spec.Comparator), writers)
	}
	for _, d := range p.order {
		for i := range d.spec.Spec.Sources {
			if s := &d.spec.Spec.Sources[i]; s.Archive != nil {
				p.checkReader(&d.findings, "The source "+s.Name+": ", placeOf(d.Key.Namespace, &s.Archive.ArchiveLocation, s.Archive.Tables), comparator(s.Archive.Comparator), writers)
			}
		}
		for i := range d.spec.Spec.Archives {
			if a := &d.spec.Spec.Archives[i]; a.Write == nil {
				p.checkReader(&d.findings, "The archive "+a.Name+": ", placeOf(d.Key.Namespace, &a.ArchiveLocation, a.Tables), "", writers)
			}
		}
	}
}

func (p *planner) archiveWriters() (out []*archiveWriter) {
	for _, d := range p.order {
		if d.ofExport() {
			continue // its export stands for it
		}
		for i := range d.spec.Spec.Archives {
			if a := &d.spec.Spec.Archives[i]; a.Write != nil {
				out = append(out, &archiveWriter{
					archivePlace: placeOf(d.Key.Namespace, &a.ArchiveLocation, a.Tables), owner: d.Key, what: "ReplicationNode " + d.Key.String(),
					since: d.spec.CreationTimestamp, findings: &d.findings, order: func() string { return p.orderAt(d.Key) },
				})
			}
		}
	}
	for _, k := range sortedKeys(p.exports) {
		e := p.exports[k]
		out = append(out, &archiveWriter{
			archivePlace: placeOf(k.Namespace, &e.spec.Spec.ArchiveLocation, e.spec.Spec.Tables), owner: k, what: "ArchiveExport " + k.String(),
			since: e.spec.CreationTimestamp, findings: &e.node.findings, order: func() string { return p.orderOf(e.node.spec) },
		})
	}
	return out
}

// checkReader checks what is read in a store that something here writes to. A store
// that nothing here writes to is somebody else's.
func (p *planner) checkReader(f *findings, who string, r archivePlace, compare string, writers []*archiveWriter) {
	var near *archiveWriter
	for _, t := range r.tables {
		key, found := r.manifest(t), false
		near = nil
		for _, w := range writers {
			if w.store != r.store {
				continue
			}
			at, of := w.writes(key, t)
			switch {
			case at && of != (v1alpha1.TableReference{}) && of != t:
				f.accepted.add(v1alpha1.ReasonArchiveTableMismatch, "%sthe archive at %s in %s is of the table %s, as %s writes it, and it is read as %s: name that table, or its own key prefix.", who, key, r.store, of, w.what, t)
				found = true
			case at:
				found = true
				if order := w.order(); compare != "" && order != "" && order != compare {
					f.warn(v1alpha1.ReasonComparatorMismatch, "%sthe archive at %s is compared by %s, and the positions that %s writes are ordered by %s: set comparator to %s.", who, key, compare, w.what, order, order)
				}
			case near == nil || len(w.tables) == 0 || slices.Contains(w.tables, t):
				if near == nil || !slices.Contains(near.tables, t) {
					near = w
				}
			}
		}
		if !found && near != nil {
			f.warn(v1alpha1.ReasonKeyPrefixUnwritten, "%snothing here writes %s in %s, which is read for %s; %s writes %s there. If that is the archive meant, its key prefix must be the same.", who, key, r.store, t, near.what, near.any(t))
		}
	}
	if len(r.tables) > 0 || !r.group {
		return
	}
	found := false
	for _, w := range writers {
		if w.store == r.store {
			near, found = cmp.Or(near, w), found || w.group && w.prefix == r.prefix
		}
	}
	if !found && near != nil {
		f.warn(v1alpha1.ReasonKeyPrefixUnwritten, "%snothing here writes below %s in %s, which is read for all tables; %s writes below %s there. If that is the archive meant, its key prefix must be the same.", who, r.prefix, r.store, near.what, near.prefix)
	}
}

// writes says whether a manifest is one of the writer's, and of which table; zero if
// that is t by its name.
func (w *archiveWriter) writes(key string, t v1alpha1.TableReference) (bool, v1alpha1.TableReference) {
	for _, u := range w.tables {
		if w.manifest(u) == key {
			return true, u
		}
	}
	return w.group && len(w.tables) == 0 && w.manifest(t) == key, v1alpha1.TableReference{}
}

func comparator(c v1alpha1.Comparator) string {
	return cmp.Or(string(c), string(v1alpha1.ComparatorLSN))
}

// orderAt is the order of the positions of a node's logs where all are of one; else
// empty.
func (p *planner) orderAt(k Key) string {
	d := p.nodes[k]
	if d == nil {
		return ""
	}
	if order, ok := p.orders[k]; ok {
		return order
	}
	p.orders[k] = "" // ends the walk in a circle
	p.orders[k] = p.orderOf(d.spec)
	return p.orders[k]
}

func (p *planner) orderOf(n *v1alpha1.ReplicationNode) string {
	order := ""
	for i := range n.Spec.Sources {
		s, one := &n.Spec.Sources[i], ""
		switch {
		case s.Postgres != nil || s.PostgresSourceRef != nil:
			one = string(v1alpha1.ComparatorLSN)
		case s.Archive != nil:
			one = comparator(s.Archive.Comparator)
		case s.ArchiveSourceRef != nil:
			if src := p.sources.archive[Key{Namespace: n.Namespace, Name: s.ArchiveSourceRef.Name}]; src != nil {
				one = comparator(src.spec.Spec.Comparator)
			}
		case s.Fanout != nil:
			one = p.orderAbove(n.Namespace, s.Fanout)
		case s.FanoutSourceRef != nil:
			if src := p.sources.fanout[Key{Namespace: n.Namespace, Name: s.FanoutSourceRef.Name}]; src != nil {
				one = p.orderAbove(n.Namespace, &src.spec.Spec)
			}
		}
		if one == "" || order != "" && one != order {
			return ""
		}
		order = one
	}
	return order
}

// orderAbove is the order at the first upstream that is a node; of others it is what
// the source says.
func (p *planner) orderAbove(namespace string, s *v1alpha1.FanoutSourceSpec) string {
	for _, u := range s.Upstreams {
		if u.NodeRef != nil {
			return p.orderAt(Key{Namespace: cmp.Or(u.NodeRef.Namespace, namespace), Name: u.NodeRef.Name})
		}
	}
	return comparator(s.Comparator)
}

// checkComparators checks what fan-out sources compare by along their paths.
func (p *planner) checkComparators() {
	check := func(f *findings, who, namespace string, s *v1alpha1.FanoutSourceSpec) {
		for _, u := range s.Upstreams {
			if u.NodeRef == nil {
				continue
			}
			k := Key{Namespace: cmp.Or(u.NodeRef.Namespace, namespace), Name: u.NodeRef.Name}
			if order := p.orderAt(k); order != "" && order != comparator(s.Comparator) {
				f.warn(v1alpha1.ReasonComparatorMismatch, "%s compares positions by %s, and those of the node %s are ordered by %s: set comparator to %s.", who, comparator(s.Comparator), label(k, namespace), order, order)
			}
		}
	}
	for _, k := range sortedKeys(p.sources.fanout) {
		s := p.sources.fanout[k]
		check(&s.findings, "This source", k.Namespace, &s.spec.Spec)
	}
	for _, d := range p.order {
		for i := range d.spec.Spec.Sources {
			if s := &d.spec.Spec.Sources[i]; s.Fanout != nil {
				check(&d.findings, "The source "+s.Name, d.Key.Namespace, s.Fanout)
			}
		}
	}
}
