package controllers_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// The schemas refuse what cannot be meant, each with a sentence.
func TestSchemaRefuses(t *testing.T) {
	ns := namespace(t)
	const pg = `{hosts: [{host: db}], database: shop, credentialsSecretRef: {name: login}, tables: [{schema: public, name: orders}]`
	node := func(spec string) string { return "kind: ReplicationNode\nmetadata: {name: me}\nspec: " + spec }
	mesh := func(spec string) string { return "kind: ReplicationMesh\nmetadata: {name: m}\nspec: " + spec }
	const tally = `{tables: [{schema: public, name: tally, columns: [{name: id, type: bigint, key: true}, {name: v, type: bigint}]}]}`
	fanout := func(spec string) string { return "kind: FanoutSource\nmetadata: {name: f}\nspec: " + spec }
	const s3 = `store: {s3: {bucket: b}}, keyPrefix: p/, group: true`
	archived := func(archive string) string {
		return node("{storage: {type: Persistent, size: 1Gi}, archives: [{name: cold, " + archive + "}], sources: [{name: a, fanoutSourceRef: {name: x}}]}")
	}
	asrc := func(spec string) string {
		return "kind: ArchiveSource\nmetadata: {name: s}\nspec: {" + spec + ", tables: [{schema: public, name: t}]}"
	}
	aexp := func(spec string) string {
		return "kind: ArchiveExport\nmetadata: {name: e}\nspec: {nodeRef: {name: root}, " + spec + "}"
	}
	for name, c := range map[string]struct{ doc, want string }{
		"archive in memory":        {node("{archives: [{name: cold, " + s3 + ", write: {}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "An archive that is written needs persistent storage: what is not archived yet must outlive the pod, and an archive has one writer."},
		"archive of no store":      {archived("store: {}, group: true"), "An archive's store must have exactly one of s3 and local."},
		"archive of two":           {archived("store: {s3: {bucket: b}}, tables: [{schema: public, name: a}, {schema: public, name: b}]"), "An archive without group is of one table"},
		"archive of a seed":        {archived("store: {local: {configMap: {name: c}}}, group: true, write: {}"), "An archive that is written needs a bucket or a volume: a ConfigMap cannot be written."},
		"archive without volume":   {archived("store: {local: {path: x}}, group: true"), "A local store must have exactly one of claim and configMap."},
		"archive above its volume": {archived("store: {local: {claim: {name: c}, path: a/../../b}}, group: true"), "path must be a path within the volume"},
		"archive's interval":       {archived(s3 + ", write: {interval: 1ms}"), "write.interval must be a duration from 1s to 24h, such as 1m."},
		"archive's prefix":         {archived("store: {s3: {bucket: b}}, group: true, keyPrefix: /p"), "keyPrefix must be names with a slash after each, such as shop/public.orders/."},
		"bucket and prefix":        {asrc("store: {s3: {bucket: b/p}}"), "bucket must be the name of a bucket alone: what follows a slash is the prefix."},
		"endpoint":                 {asrc("store: {s3: {bucket: b, endpoint: 'b:9000'}}"), "endpoint must start with https:// or http:// and name a host"},
		"key without encryption":   {asrc("store: {s3: {bucket: b, kmsKey: k}}"), "kmsKey is of the encryption aws:kms"},
		"credentials of nobody":    {asrc("store: {s3: {bucket: b, credentials: {}}}"), "credentials say nothing: give secretRef, profile or roleARN"},
		"token of no role":         {asrc("store: {s3: {bucket: b, credentials: {secretRef: {name: x}, webIdentity: {}}}}"), "are of a role: name it by roleARN, or take them out."},
		"file in a bucket":         {asrc("type: file, store: {s3: {bucket: b}}"), "type: file is of an archive in files of a volume"},
		"poll without following":   {asrc("store: {s3: {bucket: b}}, pollInterval: 1s"), "pollInterval is of a source that follows its archive"},
		"export of two":            {aexp("postgresSourceRef: {name: p}, " + s3), "An export must have exactly one of postgresSourceRef, fanoutSourceRef and nodeRef."},
		"export without schedule":  {aexp("mode: scheduled, " + s3), "schedule is needed with the mode scheduled, and with no other"},
		"export without storage":   {aexp("mode: follow, " + s3), "storage is needed with the mode follow, and with no other"},
		"export in memory":         {aexp("mode: follow, storage: {type: Memory}, " + s3), "storage.type must be Persistent"},
		"two kinds of source": {
			node("{sources: [{name: a, fanoutSourceRef: {name: one}, postgresSourceRef: {name: two}}]}"),
			"A source must have exactly one of postgresSourceRef, fanoutSourceRef, archiveSourceRef, postgres, fanout, ingest and archive.",
		},
		"no kind of source": {node("{sources: [{name: a}]}"), "A source must have exactly one of"},
		"source's name":     {node("{sources: [{name: A_b, fanoutSourceRef: {name: x}}]}"), "A source's name must start with a lower case letter"},
		"same names":        {node("{sources: [{name: a, fanoutSourceRef: {name: x}}, {name: a, fanoutSourceRef: {name: x}}]}"), "duplicate"},
		"itself":            {node("{sources: [{name: a, fanout: {upstreams: [{nodeRef: {name: me}}]}}]}"), "A node cannot be its own upstream: name another node, or leave this upstream out."},
		"long name":         {strings.Replace(node("{sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "name: me}", "name: "+strings.Repeat("n", 253)+"}", 1), "The name of a ReplicationNode may have at most 52 characters"},
		"dotted name":       {strings.Replace(node("{sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "name: me}", "name: me.you}", 1), "since it is also the name of a Service."},
		"replicas of a slot": {
			node("{replicas: 2, sources: [{name: a, postgresSourceRef: {name: x}}]}"),
			"replicas must be at most 1 for a node with a PostgreSQL source: a replication slot has one reader.",
		},
		"drain":                   {node("{drainTimeout: soon, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "drainTimeout must be a duration from 1s to 1h, such as 20s."},
		"journal":                 {node("{storage: {journal: {maxBytes: 1Ki}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "journal.maxBytes must be a quantity from 1Mi to 1Ti, such as 256Mi."},
		"port":                    {node("{serve: {port: 8080}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "serve.port cannot be 8080: the node serves HTTP there."},
		"consumer":                {node("{serve: {allowedConsumers: [{namespace: A*}]}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A consumer's namespace must be the name of a namespace, or * for every one."},
		"ingest in memory":        {node("{sources: [{name: a, ingest: " + tally + "}]}"), "An ingest source needs persistent storage: what is written must outlive the pod. Set storage.type to Persistent, or ingest.volatile to true if it need not."},
		"two ingest sources":      {node("{storage: {type: Persistent, size: 1Gi}, sources: [{name: a, ingest: " + tally + "}, {name: b, ingest: " + tally + "}]}"), "A node has at most one ingest source: declare all tables in it."},
		"replicas of a log":       {node("{replicas: 2, sources: [{name: a, ingest: " + strings.Replace(tally, "{", "{volatile: true, ", 1) + "}]}"), "replicas must be at most 1 for a node with an ingest source: its log has one writer."},
		"no key":                  {node("{storage: {type: Persistent, size: 1Gi}, sources: [{name: a, ingest: " + strings.Replace(tally, ", key: true", "", 1) + "}]}"), "A table of an ingest source must have a key: mark the columns that identify a row with key: true."},
		"nothing to write":        {node("{serve: {permissions: [{reader: a, writes: [{schema: public, name: t}]}]}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "serve.permissions give writes, and the node has no ingest source"},
		"mesh of nobody":          {mesh("{members: {}}"), "members must have nodes, a selector, or both."},
		"mesh of two shapes":      {mesh("{topology: FullMesh, members: {selector: {}}, edges: [{nodes: [a, b]}]}"), "topology: FullMesh joins every member with every other: take edges out, or topology."},
		"edge of one":             {mesh("{members: {selector: {}}, edges: [{nodes: [a, a]}]}"), "uplicate"},
		"mesh's token":            {mesh("{members: {selector: {}}, tokenSecretRef: {name: t}}"), "tokenSecretRef needs tls: a token sent in plain text is no secret."},
		"owner of no column":      {mesh("{members: {selector: {}}, conflicts: [{schema: public, name: t, policy: OriginOwnsKey}]}"), "ownerColumn is needed with the policy OriginOwnsKey, and with no other"},
		"owners of the last":      {mesh("{members: {selector: {}}, conflicts: [{schema: public, name: t, policy: LastWriteWins, owners: [{node: a}]}]}"), "owners are of the policy OriginOwnsKey"},
		"origin of an owner":      {mesh("{members: {selector: {}}, conflicts: [{schema: public, name: t, policy: OriginOwnsKey, ownerColumn: a, originColumn: b}]}"), "originColumn is of the policy NamespaceByOrigin"},
		"owner twice over":        {mesh("{members: {selector: {}}, conflicts: [{schema: public, name: t, policy: OriginOwnsKey, ownerColumn: a, owners: [{node: a, value: x, prefix: x}]}]}"), "An owner has value or prefix, or neither."},
		"two upstream":            {fanout("{upstreams: [{nodeRef: {name: a}, address: 'b:1'}]}"), "An upstream must have exactly one of nodeRef, selector and address."},
		"address":                 {fanout("{upstreams: [{address: 'http://b'}]}"), "An address must be host:port or dns:///host:port."},
		"policy":                  {fanout("{upstreams: [{address: 'b:1'}], failover: {unhealthyAfter: 1ms}}"), "unhealthyAfter must be a duration from 750ms to 1h"},
		"slot":                    {node("{sources: [{name: a, postgres: " + pg + ", slot: {name: My-Slot}}}]}"), "A slot's name may hold lower case letters, digits and underscores only, at most 63 of them."},
		"no authority":            {node("{sources: [{name: a, postgres: " + pg + ", tls: {mode: VerifyFull}}}]}"), "tls.caSecretRef is needed with the modes VerifyCA and VerifyFull"},
		"persistent without size": {node("{storage: {type: Persistent}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "storage.size is needed with the type Persistent: say how large the volume is to be, such as 10Gi."},
		"size in memory":          {node("{storage: {size: 1Gi}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "are of the type Persistent: take them out, or set storage.type to Persistent."},
		"tombstones in memory":    {node("{storage: {tombstones: {retention: 1h}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "are of the type Persistent"},
		"small volume":            {node("{storage: {type: Persistent, size: 1Mi}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "storage.size must be a quantity of at least 64Mi, such as 10Gi."},
		"journal bounds":          {node("{storage: {type: Persistent, size: 1Gi, journal: {maxBytes: 2Gi, limitBytes: 1Gi}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "journal.limitBytes must be at least journal.maxBytes"},
		"reader retention":        {node("{storage: {type: Persistent, size: 1Gi, journal: {readerRetention: 1s}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "journal.readerRetention must be a duration from 1m to 8784h, such as 24h."},
		"replicas of a store":     {node("{replicas: 2, storage: {type: Persistent, size: 1Gi}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "replicas must be at most 1 for a node with persistent storage or sinks: it has one store, and one place in each sink."},
		"replicas of a sink":      {node("{replicas: 2, sinks: [{name: s, http: {url: 'https://x.test'}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "replicas must be at most 1 for a node with persistent storage or sinks"},
		"two kinds of sink":       {node("{sinks: [{name: s}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A sink must have exactly one of postgres and http."},
		"sink's address":          {node("{sinks: [{name: s, http: {url: 'ftp://x'}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "url must start with https:// or http:// and name a host"},
		"dead letters in memory":  {node("{sinks: [{name: s, onReject: DeadLetter, http: {url: 'https://x.test'}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "onReject: DeadLetter needs persistent storage: what is put aside must outlive the pod."},
		"bound of no letters":     {node("{sinks: [{name: s, deadLetters: {maxEntries: 5}, http: {url: 'https://x.test'}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A sink's deadLetters are of onReject: DeadLetter: take them out, or set onReject to DeadLetter."},
		"no letter at all":        {node("{storage: {type: Persistent, size: 1Gi}, sinks: [{name: s, onReject: DeadLetter, deadLetters: {maxEntries: -1}, http: {url: 'https://x.test'}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "should be greater than or equal to 1"},
		"sink's timeout":          {node("{sinks: [{name: s, http: {url: 'https://x.test', timeout: 1ms}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "http.timeout must be a duration from 100ms to 10m, such as 30s."},
		"header of two values":    {node("{sinks: [{name: s, http: {url: 'https://x.test', headers: [{name: X, value: a, valueSecretRef: {name: b, key: c}}]}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A header must have exactly one of value and valueSecretRef."},
		"header of no value":      {node("{sinks: [{name: s, http: {url: 'https://x.test', headers: [{name: X}]}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A header must have exactly one of value and valueSecretRef."},
		"header of the sink":      {node("{sinks: [{name: s, http: {url: 'https://x.test', headers: [{name: Content-type, value: a}]}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "The sink sets this header itself: take it out; tokenSecretRef is for a bearer token."},
		"header's name":           {node("{sinks: [{name: s, http: {url: 'https://x.test', headers: [{name: 'a: b', value: a}]}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A header's name must hold letters, digits and dashes only."},
		"header's value":          {node("{sinks: [{name: s, http: {url: 'https://x.test', headers: [{name: a, value: \"x\\r\\ny\"}]}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A header's value must not hold control characters"},
		"header twice":            {node("{sinks: [{name: s, http: {url: 'https://x.test', headers: [{name: a, value: x}, {name: a, value: y}]}}], sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "uplicate"},
		"readers of one peer":     {node("{serve: {limits: {maxPeerReaders: 5000}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "serve.limits.maxPeerReaders must be at most serve.limits.maxReaders, which is 4096 when it is not set."},
		"rate of admission":       {node("{serve: {limits: {admitRate: -5}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "should be greater than or equal to 1"},
		"tokens in plain text":    {node("{serve: {tokensSecretRef: {name: t}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "serve.tokensSecretRef needs serve.tls: a token sent in plain text is no secret."},
		"nameless readers":        {node("{serve: {tls: {secretRef: {name: c}}, permissions: [{reader: a}]}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "serve.permissions need readers that say who they are: set serve.tokensSecretRef or serve.tls.clientCASecretRef."},
		"token in plain text":     {fanout("{upstreams: [{address: 'b:1'}], tokenSecretRef: {name: t}}"), "tokenSecretRef needs tls: a token sent in plain text is no secret."},
		"two equal values":        {fanout("{upstreams: [{address: 'b:1'}], tables: [{schema: public, name: t, where: [{column: a, operator: Equal, values: [a, b]}]}]}"), "The operators Equal and Prefix take exactly one value; use In for several."},
		"operator":                {fanout("{upstreams: [{address: 'b:1'}], tables: [{schema: public, name: t, where: [{column: a, operator: Like, values: [x]}]}]}"), `supported values: "Equal", "In", "Prefix"`},
		"same column twice":       {fanout("{upstreams: [{address: 'b:1'}], tables: [{schema: public, name: t, columns: [a, a]}]}"), "uplicate"},
		"same table twice":        {fanout("{upstreams: [{address: 'b:1'}], tables: [{schema: public, name: t}, {schema: public, name: t, columns: [a]}]}"), "uplicate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tryApply(t.Context(), ns, c.doc)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// The name of a slot is for ever.
func TestSlotIsImmutable(t *testing.T) {
	ns := namespace(t)
	doc := `
kind: PostgresSource
metadata: {name: main}
spec:
  hosts: [{host: db}]
  database: shop
  credentialsSecretRef: {name: login}
  tables: [{schema: public, name: orders}]
  slot: {name: one}`
	apply(t, ns, doc)
	if err := tryApply(t.Context(), ns, strings.Replace(doc, "one", "two", 1)); err == nil || !strings.Contains(err.Error(), "slot.name cannot be changed, added or removed: another name is another slot") {
		t.Errorf("got %v", err)
	}
	if err := tryApply(t.Context(), ns, strings.Replace(doc, "slot: {name: one}", "", 1)); err == nil || !strings.Contains(err.Error(), "slot.name cannot be changed, added or removed") {
		t.Errorf("got %v", err)
	}
	apply(t, ns, strings.Replace(doc, "database: shop", "database: shop2", 1))
}

// Storage goes one way: from memory to a volume, and a volume only grows.
func TestStorageGoesOneWay(t *testing.T) {
	ns := namespace(t)
	doc := func(storage string) string {
		return strings.Replace(strings.TrimSuffix(below("me", "missing"), "---"), "spec:", "spec:\n  storage: "+storage, 1)
	}
	apply(t, ns, doc("{type: Memory}"))
	apply(t, ns, doc("{type: Persistent, size: 1Gi, storageClassName: fast}"))
	for storage, want := range map[string]string{
		"{type: Memory}":     "storage.type cannot go from Persistent back to Memory: readers rely on what the node keeps.",
		"{scratchSize: 1Gi}": "storage.type cannot go from Persistent back to Memory",
		"{type: Persistent, size: 1000Mi, storageClassName: fast}": "storage.size can grow and never shrink, since no volume can: leave it as it is, or create another node.",
		"{type: Persistent, size: 1Gi, storageClassName: slow}":    "storage.storageClassName cannot be changed, since no volume can change its class",
		"{type: Persistent, size: 1Gi}":                            "storage.storageClassName cannot be changed",
	} {
		if err := tryApply(t.Context(), ns, doc(storage)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", storage, err)
		}
	}
	if err := tryApply(t.Context(), ns, strings.TrimSuffix(below("me", "missing"), "---")); err == nil || !strings.Contains(err.Error(), "storage.type cannot go from Persistent back to Memory") {
		t.Errorf("without storage: got %v", err)
	}
	apply(t, ns, doc("{type: Persistent, size: 2Gi, storageClassName: fast, persistentVolumeClaimRetentionPolicy: Delete}"))
}

// A name of 52 characters works; a Secret of another namespace cannot be named.
func TestCaseK21AndK15(t *testing.T) {
	ns := namespace(t)
	name := strings.Repeat("n", 52)
	apply(t, ns, login+rootNode(name)+below("edge", name))
	wantCondition(t, ns, name, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "0 of 1")
	wantWiring(t, ns, "edge", name)
	err := tryApply(t.Context(), ns, strings.Replace(strings.TrimSuffix(rootNode("other"), "---"), "{name: login}", "{name: login, namespace: kube-system}", 1))
	if err == nil || !strings.Contains(err.Error(), "credentialsSecretRef.namespace") {
		t.Errorf("got %v", err)
	}
}
