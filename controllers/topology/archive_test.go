package topology_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

var (
	orders = v1alpha1.TableReference{Schema: "public", Name: "orders"}
	items  = v1alpha1.TableReference{Schema: "public", Name: "items"}
)

// bucket is where archives of a test are: prefix is that of the store.
func bucket(prefix, keyPrefix string, group bool) v1alpha1.ArchiveLocation {
	return v1alpha1.ArchiveLocation{Store: v1alpha1.ArchiveStore{S3: &v1alpha1.S3Store{Bucket: "shop", Prefix: prefix}}, KeyPrefix: keyPrefix, Group: group}
}

// writing is a root that writes an archive.
func writing(name string, at v1alpha1.ArchiveLocation, tables ...v1alpha1.TableReference) v1alpha1.ReplicationNode {
	n := root(name)
	n.Spec.Storage = &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: gibibyte()}
	n.Spec.Archives = []v1alpha1.NodeArchive{{Name: "cold", ArchiveLocation: at, Tables: tables, Write: &v1alpha1.ArchiveWrite{}}}
	return n
}

func source(name string, at v1alpha1.ArchiveLocation, tables ...v1alpha1.TableReference) v1alpha1.ArchiveSource {
	k := key(name)
	return v1alpha1.ArchiveSource{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Generation: 1}, Spec: v1alpha1.ArchiveSourceSpec{ArchiveLocation: at, Tables: tables}}
}

func replaying(name, from string) v1alpha1.ReplicationNode {
	n := node(name)
	n.Spec.Sources = []v1alpha1.NodeSource{{Name: "seed", ArchiveSourceRef: &v1alpha1.LocalReference{Name: from}}}
	return n
}

// A reader's key prefix must be its writer's; a store that nothing here writes to is
// somebody else's.
func TestKeyPrefixes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		writer, reader        v1alpha1.ArchiveLocation
		tables, read          []v1alpha1.TableReference
		order                 v1alpha1.Comparator
		status                metav1.ConditionStatus
		kind, reason, message string
	}{
		"the same":             {writer: bucket("", "prod/", true), reader: bucket("", "prod", true)},
		"divided otherwise":    {writer: bucket("prod", "eu/", true), reader: bucket("", "/prod/eu"[1:], true)},
		"one table of a group": {writer: bucket("", "prod/", true), reader: bucket("", "prod/public.orders/", false)},
		"one table":            {writer: bucket("", "prod/o", false), tables: []v1alpha1.TableReference{orders}, reader: bucket("", "prod/o/", false)},
		"another store": {writer: bucket("", "prod/", true), reader: v1alpha1.ArchiveLocation{
			Store: v1alpha1.ArchiveStore{S3: &v1alpha1.S3Store{Bucket: "shop", Endpoint: "https://s3.example"}}, KeyPrefix: "other/", Group: true,
		}},
		"another prefix": {
			writer: bucket("", "prod/", true), reader: bucket("", "produce/", true), kind: v1alpha1.ConditionResolvedRefs, status: metav1.ConditionTrue, reason: v1alpha1.ReasonKeyPrefixUnwritten,
			message: "nothing here writes produce/public.orders/manifest.json in s3://shop, which is read for public.orders; ReplicationNode shop/root writes prod/public.orders/manifest.json there.",
		},
		"a group that is none": {
			writer: bucket("", "prod/", true), reader: bucket("", "prod/", false), kind: v1alpha1.ConditionResolvedRefs, status: metav1.ConditionTrue, reason: v1alpha1.ReasonKeyPrefixUnwritten,
			message: "nothing here writes prod/manifest.json in s3://shop, which is read for public.orders; ReplicationNode shop/root writes prod/public.orders/manifest.json there.",
		},
		"a table that is not written": {
			writer: bucket("", "prod/", true), tables: []v1alpha1.TableReference{items}, reader: bucket("", "prod/", true),
			kind: v1alpha1.ConditionResolvedRefs, status: metav1.ConditionTrue, reason: v1alpha1.ReasonKeyPrefixUnwritten, message: "writes prod/public.items/manifest.json there",
		},
		"another table": {
			writer: bucket("", "prod/o/", false), tables: []v1alpha1.TableReference{items}, reader: bucket("", "prod/o/", false),
			kind: v1alpha1.ConditionAccepted, status: metav1.ConditionFalse, reason: v1alpha1.ReasonArchiveTableMismatch,
			message: "the archive at prod/o/manifest.json in s3://shop is of the table public.items, as ReplicationNode shop/root writes it, and it is read as public.orders",
		},
		"another order": {
			writer: bucket("", "prod/", true), reader: bucket("", "prod/", true), order: v1alpha1.ComparatorNumber,
			kind: v1alpha1.ConditionResolvedRefs, status: metav1.ConditionTrue, reason: v1alpha1.ReasonComparatorMismatch, message: "is compared by number, and the positions that ReplicationNode shop/root writes are ordered by lsn",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := source("seed", c.reader, orders)
			s.Spec.Comparator = c.order
			w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{writing("root", c.writer, c.tables...), replaying("edge", "seed")}, ArchiveSources: []v1alpha1.ArchiveSource{s}}}
			p := w.plan(t)
			got := p.ArchiveSources[key("seed")]
			for _, cond := range got.Conditions {
				want := topology.Condition{Type: cond.Type, Status: metav1.ConditionTrue}
				if cond.Type == c.kind {
					want.Status, want.Reason = c.status, c.reason
				}
				if cond.Status != want.Status || want.Reason != "" && cond.Reason != want.Reason || want.Reason == "" && (cond.Reason == v1alpha1.ReasonKeyPrefixUnwritten || cond.Reason == v1alpha1.ReasonComparatorMismatch) {
					t.Errorf("%+v", cond)
				}
				if cond.Type == c.kind && !strings.Contains(cond.Message, c.message) {
					t.Errorf("%q lacks %q", cond.Message, c.message)
				}
			}
			if edge := p.Nodes[key("edge")]; c.status != metav1.ConditionFalse && (edge.Action != topology.Apply || edge.Depth != 0 || edge.Single) {
				t.Errorf("a node with an archive alone: %+v", edge)
			}
		})
	}
}

// Of two writers of one archive the younger is refused, whatever they are.
func TestOneWriter(t *testing.T) {
	t.Parallel()
	old, young := writing("old", bucket("", "prod/", true)), writing("young", bucket("prod", "public.orders/", false), orders)
	old.CreationTimestamp, young.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0)
	export := v1alpha1.ArchiveExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "daily", Generation: 3, CreationTimestamp: metav1.Unix(3, 0)},
		Spec:       v1alpha1.ArchiveExportSpec{NodeRef: &v1alpha1.NodeReference{Name: "old"}, ArchiveLocation: bucket("", "prod", true)},
	}
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{young, old}, Exports: []v1alpha1.ArchiveExport{export}}}
	p := w.plan(t)
	wantCondition(t, p, "old", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	wantCondition(t, p, "young", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonArchiveConflict, "The archive at prod/public.orders/manifest.json in s3://shop is written by the older ReplicationNode shop/old")
	if p.Nodes[key("young")].Action != topology.Hold {
		t.Error("the younger is put in place")
	}
	e := p.Exports[key("daily")]
	if c := e.Condition(v1alpha1.ConditionAccepted); c.Reason != v1alpha1.ReasonArchiveConflict || e.Ready() {
		t.Errorf("%+v", c)
	}

	export.Spec.KeyPrefix = "daily/"
	w = world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{old}, Exports: []v1alpha1.ArchiveExport{export}}}
	p = w.plan(t)
	if e := p.Exports[key("daily")]; !e.Ready() || e.Node.Key != key("daily-export") || len(e.Node.Wiring.Sources[0].Candidates) != 1 {
		t.Errorf("%+v", e)
	}
	if n := p.Nodes[key("daily-export")]; n != nil || len(p.Nodes[key("old")].Children) != 0 {
		t.Errorf("an export that ends is a node of the topology: %+v, %v", n, p.Nodes[key("old")].Children)
	}

	export.Spec.NodeRef.Name = "gone"
	p = topology.Compute(topology.Inputs{Exports: []v1alpha1.ArchiveExport{export}})
	if e := p.Exports[key("daily")]; e.Ready() || !strings.Contains(e.Condition(v1alpha1.ConditionResolvedRefs).Message, "The upstream node gone does not exist.") {
		t.Errorf("%+v", e)
	}
}

// The node of an export that goes on is planned as any other, reads by a slot of its
// own, and is chosen by no selector.
func TestExportsNode(t *testing.T) {
	t.Parallel()
	pg := v1alpha1.PostgresSource{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "main"}, Spec: *database("db")}
	pg.Spec.Slot = &v1alpha1.PostgresSlot{Name: "theirs"}
	top := node("top")
	top.Spec.Sources = []v1alpha1.NodeSource{{Name: "db", PostgresSourceRef: &v1alpha1.LocalReference{Name: "main"}}}
	export := v1alpha1.ArchiveExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "all", UID: "e", CreationTimestamp: metav1.Time{Time: time.Unix(1, 0)}},
		Spec: v1alpha1.ArchiveExportSpec{
			Mode: v1alpha1.ExportFollow, PostgresSourceRef: &v1alpha1.LocalReference{Name: "main"}, ArchiveLocation: bucket("", "all/", true),
			Storage: &v1alpha1.NodeStorage{Type: v1alpha1.StoragePersistent, Size: gibibyte()},
		},
	}
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{top}, PostgresSources: []v1alpha1.PostgresSource{pg}, Exports: []v1alpha1.ArchiveExport{export}}}
	p := w.plan(t)
	e := p.Exports[key("all")]
	if !e.Ready() || e.Node != nil {
		t.Fatalf("%+v", e)
	}
	made := *e.Spec
	made.OwnerReferences = []metav1.OwnerReference{{Kind: "ArchiveExport", Name: "all", Controller: new(true)}}
	below := node("below")
	below.Spec.Sources = []v1alpha1.NodeSource{{Name: "up", Fanout: &v1alpha1.FanoutSourceSpec{Upstreams: []v1alpha1.Upstream{{Selector: &metav1.LabelSelector{}}}}}}
	w.set(made, below)
	p = w.plan(t)
	if n := p.Nodes[key("all-export")]; n.Action != topology.Apply || !n.Single || n.Sources[0].Postgres.Slot == "theirs" || !n.Sources[0].Postgres.Permanent {
		t.Errorf("%+v", n)
	}
	if e := p.Exports[key("all")]; !e.Ready() {
		t.Errorf("%+v", e.Conditions)
	}
	wantParents(t, p, "below", "top")
	if slots := p.PostgresSources[key("main")].Slots; len(slots) != 2 {
		t.Errorf("%+v", slots)
	}

	made.OwnerReferences = nil
	w.set(made)
	if c := topology.Compute(w.Inputs).Exports[key("all")].Condition(v1alpha1.ConditionAccepted); !strings.Contains(c.Message, "there is a ReplicationNode of that name already") {
		t.Errorf("%+v", c)
	}
}

// The planner repeats what the schemas say.
func TestArchivesAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*v1alpha1.ReplicationNode)
		want   string
	}{
		"in memory": {func(n *v1alpha1.ReplicationNode) { n.Spec.Storage = nil }, "spec.archives[0] is written, which needs persistent storage"},
		"a seed": {func(n *v1alpha1.ReplicationNode) {
			n.Spec.Archives[0].Store = v1alpha1.ArchiveStore{Local: &v1alpha1.LocalStore{ConfigMap: &v1alpha1.ArchiveConfigMap{Name: "x"}}}
		}, "spec.archives[0] is written, and a ConfigMap cannot be"},
		"no store": {func(n *v1alpha1.ReplicationNode) { n.Spec.Archives[0].Store = v1alpha1.ArchiveStore{} }, "store must have exactly one of s3 and local."},
		"a prefix": {func(n *v1alpha1.ReplicationNode) { n.Spec.Archives[0].KeyPrefix = "a//b" }, `keyPrefix must be names with a slash after each, such as shop/public.orders/; it is "a//b".`},
		"two profiles": {func(n *v1alpha1.ReplicationNode) {
			for i, secret := range []string{"one", "two"} {
				a := n.Spec.Archives[0]
				a.Name, a.KeyPrefix, a.Tables, a.Write = secret, secret, []v1alpha1.TableReference{{Schema: "s", Name: secret}}, nil
				a.Store.S3 = &v1alpha1.S3Store{Bucket: "b", Credentials: &v1alpha1.S3Credentials{Profile: &v1alpha1.S3Profile{Name: "p", SecretRef: v1alpha1.LocalReference{Name: secret}}}}
				n.Spec.Archives = append(n.Spec.Archives[:i], a)
			}
		}, "come from the Secrets one and two: put them in one file."},
		"a table twice": {func(n *v1alpha1.ReplicationNode) {
			a := n.Spec.Archives[0]
			n.Spec.Archives[0].Tables = []v1alpha1.TableReference{orders}
			a.Name, a.KeyPrefix, a.Tables = "second", "second", []v1alpha1.TableReference{orders}
			n.Spec.Archives = append(n.Spec.Archives, a)
		}, "spec.archives[1] names public.orders, and so does cold: a table has one archive at a node."},
		"one place twice": {func(n *v1alpha1.ReplicationNode) {
			a := n.Spec.Archives[0]
			n.Spec.Archives[0].Tables = []v1alpha1.TableReference{orders}
			a.Name = "second"
			n.Spec.Archives = append(n.Spec.Archives, a)
		}, "Two archives of this node are written at prod/public.orders/manifest.json in s3://shop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := writing("root", bucket("", "prod/", true))
			c.change(&n)
			p := topology.Compute(topology.Inputs{Nodes: []v1alpha1.ReplicationNode{n}})
			wantCondition(t, p, "root", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, c.want)
		})
	}
	missing := replaying("edge", "gone")
	wantCondition(t, topology.Compute(topology.Inputs{Nodes: []v1alpha1.ReplicationNode{missing}}), "edge", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound, "The ArchiveSource gone, which the source seed names, does not exist.")
	keyed := source("seed", bucket("", "x/", true), orders)
	keyed.Spec.Store.S3.Credentials = &v1alpha1.S3Credentials{SecretRef: &v1alpha1.LocalReference{Name: "key"}}
	p := topology.Compute(topology.Inputs{
		Nodes: []v1alpha1.ReplicationNode{replaying("edge", "seed")}, ArchiveSources: []v1alpha1.ArchiveSource{keyed},
		Secrets: map[topology.Key][]string{key("key"): {"accessKeyID"}},
	})
	wantCondition(t, p, "edge", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, "The Secret key has no key secretAccessKey.")
	if used := p.Nodes[key("edge")].Secrets; len(used) != 1 || len(used[0].Keys) != 2 {
		t.Errorf("%+v", used)
	}
}

func gibibyte() *resource.Quantity { return resource.NewQuantity(1<<30, resource.BinarySI) }
