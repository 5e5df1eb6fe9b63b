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
		"drain":        {node("{drainTimeout: soon, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "drainTimeout must be a duration from 1s to 1h, such as 20s."},
		"journal":      {node("{storage: {journal: {maxBytes: 1Ki}}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "journal.maxBytes must be a quantity from 1Mi to 1Ti, such as 256Mi."},
		"port":         {node("{serve: {port: 8080}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "serve.port cannot be 8080: the node serves HTTP there."},
		"consumer":     {node("{serve: {allowedConsumers: [{namespace: A*}]}, sources: [{name: a, fanoutSourceRef: {name: x}}]}"), "A consumer's namespace must be the name of a namespace, or * for every one."},
		"two upstream": {fanout("{upstreams: [{nodeRef: {name: a}, address: 'b:1'}]}"), "An upstream must have exactly one of nodeRef, selector and address."},
		"address":      {fanout("{upstreams: [{address: 'http://b'}]}"), "An address must be host:port or dns:///host:port."},
		"policy":       {fanout("{upstreams: [{address: 'b:1'}], failover: {unhealthyAfter: 1ms}}"), "unhealthyAfter must be a duration from 750ms to 1h"},
		"slot":         {node("{sources: [{name: a, postgres: " + pg + ", slot: {name: My-Slot}}}]}"), "A slot's name may hold lower case letters, digits and underscores only, at most 63 of them."},
		"no authority": {node("{sources: [{name: a, postgres: " + pg + ", tls: {mode: VerifyFull}}}]}"), "tls.caSecretRef is needed with the modes VerifyCA and VerifyFull"},
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
	if err := tryApply(t.Context(), ns, strings.Replace(doc, "one", "two", 1)); err == nil || !strings.Contains(err.Error(), "slot.name cannot be changed: another name is another slot") {
		t.Errorf("got %v", err)
	}
	if err := tryApply(t.Context(), ns, strings.Replace(doc, "slot: {name: one}", "", 1)); err == nil || !strings.Contains(err.Error(), "slot cannot be added or removed later") {
		t.Errorf("got %v", err)
	}
	apply(t, ns, strings.Replace(doc, "database: shop", "database: shop2", 1))
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
