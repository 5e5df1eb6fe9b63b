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
	fanout := func(spec string) string { return "kind: FanoutSource\nmetadata: {name: f}\nspec: " + spec }
	for name, c := range map[string]struct{ doc, want string }{
		"two kinds of source": {
			node("{sources: [{name: a, fanoutSourceRef: {name: one}, postgresSourceRef: {name: two}}]}"),
			"A source must have exactly one of postgresSourceRef, fanoutSourceRef, postgres and fanout.",
		},
		"no kind of source": {node("{sources: [{name: a}]}"), "A source must have exactly one of"},
		"no source":         {node("{sources: []}"), "should have at least 1 items"},
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
