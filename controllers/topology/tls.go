package topology

import (
	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// checkTLS adds what keeps a source from being let in by the nodes that it
// names: one side that speaks TLS and one that does not, or a parent that asks
// who reads and a source that does not say. Only what holds whatever the Secrets
// contain is found: that a certificate is the right one, the connection shows. An
// address outside is not judged.
func (p *planner) checkTLS(f *findings, namespace, source string, spec *v1alpha1.FanoutSourceSpec, candidates []Candidate) {
	for _, c := range candidates {
		parent := p.nodes[c.Node]
		if parent == nil {
			continue
		}
		at := label(c.Node, namespace)
		serve := parent.spec.Spec.Serve
		secured := serve != nil && serve.TLS != nil
		switch {
		case secured && spec.TLS == nil:
			f.accepted.add(v1alpha1.ReasonTLSMismatch, "%s reads in plain text, and its upstream node %s serves TLS: set tls of the source, with caSecretRef where the authority is not one of the system's, or take spec.serve.tls out of %s.", source, at, at)
		case !secured && spec.TLS != nil:
			f.accepted.add(v1alpha1.ReasonTLSMismatch, "%s reads by TLS, and its upstream node %s serves in plain text: set spec.serve.tls of %s, or take tls out of the source.", source, at, at)
		case !secured:
		default:
			checkIdentity(f, source, spec, at, serve)
		}
	}
}

// checkIdentity checks that a source shows what its parent asks for: a
// certificate, a token, or one of the two. Both sides speak TLS.
func checkIdentity(f *findings, source string, spec *v1alpha1.FanoutSourceSpec, at string, serve *v1alpha1.NodeServe) {
	certificate, token := spec.TLS.CertSecretRef != nil, spec.TokenSecretRef != nil
	certificates, tokens := serve.TLS.ClientCASecretRef != nil, serve.TokensSecretRef != nil
	switch {
	case certificates && certificate, tokens && token, !certificates && !tokens:
	case certificates && tokens:
		f.accepted.add(v1alpha1.ReasonTLSMismatch, "%s does not say who it is, and its upstream node %s asks for a certificate or a token: set tls.certSecretRef or tokenSecretRef of the source.", source, at)
	case certificates:
		f.accepted.add(v1alpha1.ReasonTLSMismatch, "%s shows no certificate, and its upstream node %s asks for one: set tls.certSecretRef of the source, signed by an authority of spec.serve.tls.clientCASecretRef of %s.", source, at, at)
	default:
		f.accepted.add(v1alpha1.ReasonTLSMismatch, "%s shows no token, and its upstream node %s asks for one: set tokenSecretRef of the source to one of the tokens in spec.serve.tokensSecretRef of %s.", source, at, at)
	}
}
