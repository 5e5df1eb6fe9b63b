package topology

import (
	"slices"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// Keys of Secrets.
const (
	SecretUsername = "username"
	SecretPassword = "password"
	SecretToken    = "token"
	SecretCA       = "ca.crt"
	SecretCert     = "tls.crt"
	SecretKey      = "tls.key"
)

// SecretUse is a Secret that a resource uses, and the keys of it; all when there
// are none.
type SecretUse struct {
	Name string
	Keys []string
}

// uses collects SecretUses.
type uses []SecretUse

func (u *uses) add(ref *v1alpha1.LocalReference, keys ...string) {
	if ref != nil && ref.Name != "" {
		*u = append(*u, SecretUse{ref.Name, keys})
	}
}

func (u *uses) postgresTLS(t *v1alpha1.PostgresTLS) {
	if t != nil {
		u.add(t.CASecretRef, SecretCA)
		u.add(t.CertSecretRef, SecretCert, SecretKey)
	}
}

func (u *uses) clientTLS(t *v1alpha1.ClientTLS) {
	if t != nil {
		u.add(t.CASecretRef, SecretCA)
		u.add(t.CertSecretRef, SecretCert, SecretKey)
	}
}

// PostgresSecrets lists the Secrets that a PostgreSQL source uses.
func PostgresSecrets(spec *v1alpha1.PostgresSourceSpec) []SecretUse {
	var u uses
	u.add(&spec.CredentialsSecretRef, SecretUsername, SecretPassword)
	u.postgresTLS(spec.TLS)
	return merge(u)
}

// FanoutSecrets lists the Secrets that a fan-out source uses.
func FanoutSecrets(spec *v1alpha1.FanoutSourceSpec) []SecretUse {
	var u uses
	u.clientTLS(spec.TLS)
	u.add(spec.TokenSecretRef, SecretToken)
	return merge(u)
}

// nodeSecrets lists the Secrets that a node uses beside those of its sources.
func nodeSecrets(n *v1alpha1.ReplicationNode) []SecretUse {
	var u uses
	for i := range n.Spec.Sinks {
		switch s := &n.Spec.Sinks[i]; {
		case s.Postgres != nil:
			u.add(&s.Postgres.CredentialsSecretRef, SecretUsername, SecretPassword)
			u.postgresTLS(s.Postgres.TLS)
		case s.HTTP != nil:
			u.add(s.HTTP.TokenSecretRef, SecretToken)
			u.clientTLS(s.HTTP.TLS)
			for _, h := range s.HTTP.Headers {
				if r := h.ValueSecretRef; r != nil {
					u.add(&v1alpha1.LocalReference{Name: r.Name}, r.Key)
				}
			}
		}
	}
	for i := range n.Spec.Archives {
		u.store(&n.Spec.Archives[i].Store)
	}
	if s := n.Spec.Serve; s != nil {
		if s.TLS != nil {
			u.add(&s.TLS.SecretRef, SecretCert, SecretKey)
			u.add(s.TLS.ClientCASecretRef, SecretCA)
		}
		u.add(s.TokensSecretRef)
	}
	return u
}

// SecretsNamed lists the Secrets that a node names itself: those of a source
// that it refers to are the source's.
func SecretsNamed(n *v1alpha1.ReplicationNode) []SecretUse {
	out := nodeSecrets(n)
	for i := range n.Spec.Sources {
		switch s := &n.Spec.Sources[i]; {
		case s.Postgres != nil:
			out = append(out, PostgresSecrets(s.Postgres)...)
		case s.Fanout != nil:
			out = append(out, FanoutSecrets(s.Fanout)...)
		case s.Archive != nil:
			out = append(out, ArchiveSecrets(s.Archive)...)
		}
	}
	return merge(out)
}

// merge puts the uses of each Secret together, in the order of their first.
func merge(all []SecretUse) (out []SecretUse) {
	for _, u := range all {
		i := slices.IndexFunc(out, func(o SecretUse) bool { return o.Name == u.Name })
		switch {
		case i < 0:
			out = append(out, SecretUse{u.Name, slices.Clone(u.Keys)})
		case len(u.Keys) == 0 || len(out[i].Keys) == 0:
			out[i].Keys = nil
		default:
			for _, k := range u.Keys {
				if !slices.Contains(out[i].Keys, k) {
					out[i].Keys = append(out[i].Keys, k)
				}
			}
		}
	}
	return out
}

func (p *planner) checkSecrets(f *fault, namespace string, used []SecretUse) {
	if p.in.Secrets == nil {
		return
	}
	for _, use := range used {
		keys, ok := p.in.Secrets[Key{Namespace: namespace, Name: use.Name}]
		if !ok {
			f.add(v1alpha1.ReasonSecretNotFound, "The Secret %s does not exist.", use.Name)
			continue
		}
		for _, k := range use.Keys {
			if !slices.Contains(keys, k) {
				f.add(v1alpha1.ReasonSecretNotFound, "The Secret %s has no key %s.", use.Name, k)
			}
		}
	}
}
