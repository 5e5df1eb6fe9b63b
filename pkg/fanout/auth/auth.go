// Package auth says who a peer is and what it may read and write: by client certificates
// and by bearer tokens, with permissions per table.
//
// Files are read again when they change, so that certificates and tokens are
// rotated without a restart. A file that has become unreadable or wrong changes
// nothing: what was read last goes on, and the fault is told to the log.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Rule lets an identity read and write tables.
type Rule struct {
	Identity string             // * for everyone who is known
	Tables   []engine.TableName // that it may read; all when empty
	Writes   []engine.TableName // that it may write; none when empty
	Nodes    []string           // as which it may be read from, beside the one of its own name
}

// Config configures a Guard.
type Config struct {
	// TokensDir is a folder with a file for each identity that may show a token: its
	// name is the identity, its content the token. Names that start with a dot are
	// passed over. Empty: there are no tokens.
	TokensDir string
	// Rules say who may read what, and who may write what; without any, whoever is
	// known may read all, and write nothing.
	Rules  []Rule
	Logger *slog.Logger // nil: slog.Default()
}

// Guard knows peers and what they may read. It is safe for concurrent use.
type Guard struct {
	rules  []Rule
	tokens *watched[[]token]
}

type token struct {
	identity string
	hash     [sha256.Size]byte
}

// NewGuard returns a Guard. It fails if the tokens cannot be read now.
func NewGuard(cfg Config) (*Guard, error) {
	g := &Guard{rules: cfg.Rules}
	if cfg.TokensDir != "" {
		g.tokens = watch(orDefault(cfg.Logger), parseTokens, cfg.TokensDir)
		if _, err := g.tokens.get(); err != nil {
			return nil, fmt.Errorf("auth: %w", err)
		}
	}
	return g, nil
}

// minToken is the least length of a token, in characters.
const minToken = 16

func parseTokens(files []file) ([]token, error) {
	all := make([]token, len(files))
	for i, f := range files {
		text := strings.TrimSpace(string(f.text))
		if len(text) < minToken || strings.ContainsAny(text, " \t\r\n") {
			return nil, fmt.Errorf("the file %s must hold one token of at least %d characters, chosen at random", f.name, minToken)
		}
		all[i] = token{f.name, sha256.Sum256([]byte(text))}
	}
	return all, nil
}

// byToken returns the identity of a token. It takes as long for a wrong one.
func (g *Guard) byToken(text string) (identity string, ok bool) {
	if g.tokens == nil {
		return "", false
	}
	all, err := g.tokens.get()
	if err != nil {
		return "", false
	}
	hash := sha256.Sum256([]byte(text))
	for _, t := range all {
		if subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1 {
			identity, ok = t.identity, true
		}
	}
	return identity, ok
}

// identify goes by the token if there is one, else by the verified certificate.
func (g *Guard) identify(authorization []string, state *tls.ConnectionState) (string, error) {
	if len(authorization) > 0 {
		scheme, text, _ := strings.Cut(authorization[0], " ")
		if !strings.EqualFold(scheme, "bearer") {
			return "", fmt.Errorf("the authorization is of scheme %q, and a bearer token is needed", scheme)
		}
		if id, ok := g.byToken(strings.TrimSpace(text)); ok {
			return id, nil
		}
		return "", fmt.Errorf("the token is not known here: use one of those that the node has been given, or have it added there")
	}
	if state != nil && len(state.VerifiedChains) > 0 {
		if id := CertificateIdentity(state.PeerCertificates[0]); id != "" {
			return id, nil
		}
		return "", fmt.Errorf("the client's certificate names nobody: give it a common name or a DNS name")
	}
	need := "a client certificate that this node's authority has signed"
	if g.tokens != nil {
		need = "a bearer token, or " + need
	}
	return "", fmt.Errorf("nothing says who the client is: it must send %s", need)
}

// CertificateIdentity returns whom a certificate names: its common name, else
// its first DNS name, else its first URI.
func CertificateIdentity(c *x509.Certificate) string {
	switch {
	case c.Subject.CommonName != "":
		return c.Subject.CommonName
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	}
	return ""
}

// Peer returns who calls an RPC, or an error with code Unauthenticated.
func (g *Guard) Peer(ctx context.Context) (identity string, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	var state *tls.ConnectionState
	if p, ok := peer.FromContext(ctx); ok {
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			state = &t.State
		}
	}
	if identity, err = g.identify(md.Get("authorization"), state); err != nil {
		return "", status.Error(codes.Unauthenticated, err.Error())
	}
	return identity, nil
}

// Request returns who makes an HTTP request.
func (g *Guard) Request(r *http.Request) (identity string, err error) {
	return g.identify(r.Header.Values("Authorization"), r.TLS)
}

// Permit says why an identity may not read a table; nil if it may.
func (g *Guard) Permit(identity string, table engine.TableName) error {
	if len(g.rules) == 0 {
		return nil
	}
	for _, r := range g.rules {
		if (r.Identity == "*" || r.Identity == identity) && (len(r.Tables) == 0 || slices.Contains(r.Tables, table)) {
			return nil
		}
	}
	return fmt.Errorf("%s may not read table %s: let it in the permissions of the node's configuration", identity, table)
}

// All reports whether an identity may read every table.
func (g *Guard) All(identity string) bool {
	return len(g.rules) == 0 || slices.ContainsFunc(g.rules, func(r Rule) bool {
		return (r.Identity == "*" || r.Identity == identity) && len(r.Tables) == 0
	})
}

// PermitNode says why an identity may not be read from as a node in a session that
// it has dialled; nil if it may.
func (g *Guard) PermitNode(identity, node string) error {
	if identity == node {
		return nil
	}
	for _, r := range g.rules {
		if (r.Identity == "*" || r.Identity == identity) && slices.Contains(r.Nodes, node) {
			return nil
		}
	}
	return fmt.Errorf("%s may not be read from as node %s: let it by the nodes of its permission in the node's configuration", identity, node)
}

// PermitWrite says why an identity may not write a table; nil if it may.
func (g *Guard) PermitWrite(identity string, table engine.TableName) error {
	for _, r := range g.rules {
		if (r.Identity == "*" || r.Identity == identity) && slices.Contains(r.Writes, table) {
			return nil
		}
	}
	return fmt.Errorf("%s may not write table %s: let it by the writes of its permission in the node's configuration", identity, table)
}
