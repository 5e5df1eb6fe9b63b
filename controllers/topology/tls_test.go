package topology_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

// What a source shows and what its parent asks for are compared; the wiring is
// put in place whatever comes of it.
func TestTLSAgreement(t *testing.T) {
	t.Parallel()
	secret := &v1alpha1.LocalReference{Name: "s"}
	plain := (*v1alpha1.NodeServe)(nil)
	serve := func(ca, tokens *v1alpha1.LocalReference) *v1alpha1.NodeServe {
		return &v1alpha1.NodeServe{TLS: &v1alpha1.ServeTLS{SecretRef: *secret, ClientCASecretRef: ca}, TokensSecretRef: tokens}
	}
	for name, c := range map[string]struct {
		serve *v1alpha1.NodeServe
		tls   *v1alpha1.ClientTLS
		token *v1alpha1.LocalReference
		want  string // part of the sentence; empty where they agree
	}{
		"plain":                       {plain, nil, nil, ""},
		"secured":                     {serve(nil, nil), &v1alpha1.ClientTLS{}, nil, ""},
		"child in plain text":         {serve(nil, nil), nil, nil, "The source up reads in plain text, and its upstream node root serves TLS: set tls of the source"},
		"parent in plain text":        {plain, &v1alpha1.ClientTLS{}, nil, "The source up reads by TLS, and its upstream node root serves in plain text: set spec.serve.tls of root, or take tls out of the source."},
		"certificate":                 {serve(secret, nil), &v1alpha1.ClientTLS{CertSecretRef: secret}, nil, ""},
		"no certificate":              {serve(secret, nil), &v1alpha1.ClientTLS{}, nil, "The source up shows no certificate, and its upstream node root asks for one: set tls.certSecretRef of the source"},
		"token instead":               {serve(secret, nil), &v1alpha1.ClientTLS{}, secret, "The source up shows no certificate"},
		"token":                       {serve(nil, secret), &v1alpha1.ClientTLS{}, secret, ""},
		"no token":                    {serve(nil, secret), &v1alpha1.ClientTLS{}, nil, "The source up shows no token, and its upstream node root asks for one: set tokenSecretRef of the source"},
		"certificate instead":         {serve(nil, secret), &v1alpha1.ClientTLS{CertSecretRef: secret}, nil, "The source up shows no token"},
		"either, by token":            {serve(secret, secret), &v1alpha1.ClientTLS{}, secret, ""},
		"either, by certificate":      {serve(secret, secret), &v1alpha1.ClientTLS{CertSecretRef: secret}, nil, ""},
		"either, and neither is":      {serve(secret, secret), &v1alpha1.ClientTLS{}, nil, "asks for a certificate or a token: set tls.certSecretRef or tokenSecretRef of the source."},
		"more than the parent wanted": {serve(nil, nil), &v1alpha1.ClientTLS{CertSecretRef: secret}, secret, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent, child, shared := root("root"), node("child", "root"), node("shared")
			parent.Spec.Serve = c.serve
			child.Spec.Sources[0].Fanout.TLS, child.Spec.Sources[0].Fanout.TokenSecretRef = c.tls, c.token
			shared.Spec.Sources = []v1alpha1.NodeSource{{Name: "up", FanoutSourceRef: &v1alpha1.LocalReference{Name: "from-root"}}}
			source := v1alpha1.FanoutSource{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "from-root"}, Spec: *child.Spec.Sources[0].Fanout}
			w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{parent, child, shared}, FanoutSources: []v1alpha1.FanoutSource{source}}}
			p := w.plan(t)
			status, reason := metav1.ConditionTrue, v1alpha1.ReasonAccepted
			if c.want != "" {
				status, reason = metav1.ConditionFalse, v1alpha1.ReasonTLSMismatch
			}
			for _, n := range []string{"child", "shared"} {
				wantCondition(t, p, n, v1alpha1.ConditionAccepted, status, reason, c.want)
				wantParents(t, p, n, "root")
				if a := p.Nodes[key(n)].Action; a != topology.Apply {
					t.Errorf("the action of %s is %d", n, a)
				}
			}
			if got := p.FanoutSources[key("from-root")].Condition(v1alpha1.ConditionAccepted); got.Status != status || got.Reason != reason {
				t.Errorf("the source: %+v", got)
			}
		})
	}
}

// What a node's file would refuse, the plan refuses before.
func TestHeadersAndLimits(t *testing.T) {
	t.Parallel()
	n := root("root")
	n.Spec.Serve = &v1alpha1.NodeServe{Limits: &v1alpha1.ServeLimits{MaxReaders: 2, MaxPeerReaders: 3}}
	n.Spec.Sinks = []v1alpha1.NodeSink{{Name: "push", HTTP: &v1alpha1.HTTPSink{URL: "https://x.test", MaxBatchBytes: new(resource.MustParse("1Gi")), Headers: []v1alpha1.HTTPHeader{{Name: "A", Value: "1"}, {Name: "a", Value: "2"}, {Name: "b"}}}}}
	w := world{topology.Inputs{Nodes: []v1alpha1.ReplicationNode{n}}}
	p := w.plan(t)
	for _, want := range []string{
		"spec.sinks[0].http: maxBatchBytes must be a quantity from 1Ki to 64Mi, such as 1Mi; it is 1Gi.",
		"spec.serve.limits.maxPeerReaders is 3, and maxReaders is 2",
		`spec.sinks[0].http: headers[1].name is "a", as is another's`,
		"spec.sinks[0].http: headers[2] must have exactly one of value and valueSecretRef.",
	} {
		wantCondition(t, p, "root", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, want)
	}
}
