package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("authority", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// sign writes name.crt and name.key.
func (a *authority) sign(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	return a.signUntil(name, c, time.Now().Add(time.Hour))
}

// signUntil is sign for a certificate that ends at that time.
func (a *authority) signUntil(name string, c *x509.Certificate, end time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	a.n++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(a.n), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), end
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	k, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for ext, b := range map[string]*pem.Block{"key": {Type: "EC PRIVATE KEY", Bytes: k}, "crt": {Type: "CERTIFICATE", Bytes: der}} {
		next := a.path(name + "." + ext + ".next")
		if err := os.WriteFile(next, pem.EncodeToMemory(b), 0o600); err != nil {
			a.t.Fatal(err)
		}
		if err := os.Rename(next, a.path(name+"."+ext)); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) serverCert() {
	a.sign("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a *authority) clientCert(name string) {
	a.sign(name, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

func (a *authority) dial(name string) credentials.TransportCredentials {
	a.t.Helper()
	f := auth.ClientFiles{CA: a.path("authority.crt")}
	if name != "" {
		f.Cert, f.Key = a.path(name+".crt"), a.path(name+".key")
	}
	c, err := f.Credentials()
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// Certificates and tokens say who reads; each sees and gets what it may.
func TestAuth(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.serverCert()
	a.clientCert("edge")
	a.clientCert("partner")
	tokens := t.TempDir()
	if err := os.WriteFile(filepath.Join(tokens, "app"), []byte("0123456789abcdef-app\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := auth.NewGuard(auth.Config{TokensDir: tokens, Rules: []auth.Rule{{Identity: "edge"}, {Identity: "*", Tables: []engine.TableName{table}}}})
	if err != nil {
		t.Fatal(err)
	}
	files := auth.ServerFiles{Cert: a.path("server.crt"), Key: a.path("server.key"), ClientCA: a.path("authority.crt"), Optional: true}
	tls, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	o := ft.NewOrigin(20, "t", "secret")
	n := ft.Start(t, "n", ft.Options{Server: server.Config{Guard: g, Credentials: credentials.NewTLS(tls), MaxPeerSessions: 2}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	token := func(text string) *auth.Token {
		t.Helper()
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		tok, err := auth.NewToken(path, false)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	as := func(name, tok string) func(*client.Config) {
		return func(c *client.Config) {
			c.Credentials, c.Patience = a.dial(name), 5*time.Second
			if tok != "" {
				c.Token = token(tok)
			}
		}
	}
	secret := ft.Table("secret")
	edge, _ := ft.Child(t, "e", as("edge", ""), n)
	partner, _ := ft.Child(t, "p", as("partner", ""), n)
	app, _ := ft.Child(t, "a", as("", "0123456789abcdef-app"), n)
	ft.Converged(t, o, table, edge, partner, app)
	ft.Converged(t, o, secret, edge)
	o.Write(ft.Change{Table: table, Key: "k", Value: "1"}, ft.Change{Table: secret, Key: "k", Value: "hidden"})
	ft.Converged(t, o, table, edge, partner, app)
	ft.Converged(t, o, secret, edge)
	for _, x := range []*ft.Node{partner, app} {
		if rows := x.Rows(secret); len(rows) > 0 {
			t.Errorf("%s has %d rows of a table it may not read", x.ID, len(rows))
		}
		for _, ad := range x.Engine.Adverts() {
			if len(ad.Tables) != 1 {
				t.Errorf("%s was shown %v", x.ID, ad.Tables)
			}
		}
	}
	refused := func(change func(*client.Config), want ...string) {
		t.Helper()
		s := ft.Source(t, "x", change, n)
		_, err := s.Init(t.Context(), engine.Env{})
		if err == nil {
			s.Close()
			t.Error("was let in")
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v does not say %q", err, w)
			}
		}
		var se *engine.SourceError
		if !errors.As(err, &se) || se.Reason != engine.ReasonAuthenticationFailed {
			t.Errorf("%v is of reason %v", err, se)
		}
	}
	refused(as("", ""), "nothing says who the client is", "a bearer token, or a client certificate")
	refused(as("", "0123456789abcdef-other"), "token is not known here")
	other := newAuthority(t)
	other.clientCert("edge")
	refused(func(c *client.Config) {
		f := auth.ClientFiles{CA: a.path("authority.crt"), Cert: other.path("edge.crt"), Key: other.path("edge.key")}
		c.Credentials, _ = f.Credentials()
		c.Patience = 5 * time.Second
	})

	// Who asks for a hidden table by name is told that it may not.
	s := ft.Source(t, "asks", func(c *client.Config) {
		as("partner", "")(c)
		c.Scope = scope.Tables(table, secret)
	}, n)
	if _, err := s.Init(t.Context(), engine.Env{}); err != nil {
		t.Fatal(err) // what it may read is there
	}
	s.Close()
	ft.Eventually(t, 30*time.Second, func() error { // else it counts against the next
		if readers := n.Server.Readers(); len(readers) != 3 {
			return fmt.Errorf("%d readers", len(readers))
		}
		return nil
	})
	r := openAs(t, n, a.dial("partner"))
	r.send(hello("rude"))
	log := r.until(func(f *wirepb.Frame) bool { return f.GetAdvert() != nil }).GetAdvert().GetLogs()[0]
	if len(log.GetTables()) != 1 || len(log.GetSchemas()) != 1 {
		t.Errorf("the advert shows %v", log)
	}
	r.send(&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{Channel: 1, Log: log.GetLog(), Credit: 100, Scope: &wirepb.Scope{Tables: []*wirepb.TableScope{{Table: &wirepb.TableName{Schema: "public", Name: "secret"}}}}}}})
	e := r.until(func(f *wirepb.Frame) bool { return f.GetError() != nil }).GetError()
	if e.GetCode() != wirepb.ErrorCode_ERROR_CODE_PERMISSION || !strings.Contains(e.GetMessage(), "partner may not read table public.secret") {
		t.Errorf("%v", e)
	}
	d, err := wirepb.NewReplicationClient(r.conn).Describe(t.Context(), &wirepb.DescribeRequest{})
	if err != nil || len(d.GetLogs()[0].GetTables()) != 1 {
		t.Errorf("Describe says %v, %v", d, err)
	}
	// One peer takes so many sessions and no more.
	over := openAs(t, n, a.dial("partner"))
	if _, err := over.stream.Recv(); err == nil || !strings.Contains(err.Error(), "2 readers of partner") {
		t.Errorf("%v", err)
	}

	// A new certificate is used without a restart.
	a.serverCert()
	time.Sleep(1100 * time.Millisecond)
	want := fmt.Sprint(a.n)
	conn := openAs(t, n, a.dial("edge"))
	conn.send(hello("late"))
	p := conn.peerOf()
	if got := p.State.PeerCertificates[0].SerialNumber.String(); got != want {
		t.Errorf("certificate %s, want %s", got, want)
	}
}

// A storm of readers is let in at a bounded rate: the others are told when to
// come back, do, and all are served; one that was there before notices nothing.
func TestCaseR20(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(10, "t")
	n := ft.Start(t, "n", ft.Options{Server: server.Config{AdmitRate: 20}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	before, _ := ft.Child(t, "before", nil, n)
	ft.Converged(t, o, table, before)
	const storm = 80 // twice what may come at once
	sinks := make([]*counting, storm)
	started := make(chan struct{}, storm)
	for i := range sinks {
		sinks[i] = &counting{}
		go func() {
			defer func() { started <- struct{}{} }()
			read(t, n, fmt.Sprint("r", i), sinks[i], nil)
		}()
	}
	at := o.Put("during", "1")
	ft.Converged(t, o, table, before)
	for range sinks {
		<-started
	}
	ft.Eventually(t, 30*time.Second, func() error {
		for i, s := range sinks {
			if s.position() != at {
				return fmt.Errorf("reader %d is at %q", i, s.position())
			}
		}
		return nil
	})
	// What one is told, by a node that takes one in a second: however slow the
	// machine, the sessions come faster than that.
	slow := ft.Start(t, "slow", ft.Options{Server: server.Config{AdmitRate: 1}}, map[string]engine.SyncSource{"pg": o})
	conn := dial(t, slow)
	for range 200 {
		stream, err := wirepb.NewReplicationClient(conn).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(hello("again")); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		f, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e := f.GetError(); e != nil {
			if e.GetRetryAfterMs() == 0 || e.GetCode() != wirepb.ErrorCode_ERROR_CODE_LIMIT || !strings.Contains(e.GetMessage(), "come back in") {
				t.Errorf("%v", e)
			}
			return
		}
		_ = stream.CloseSend()
	}
	t.Error("nobody was told to wait")
}
