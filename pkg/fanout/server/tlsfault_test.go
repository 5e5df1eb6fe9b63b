package server_test

import (
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
)

// When TLS fails, the side that is at fault is named, and what mends it.
func TestTLSFaults(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	a.serverCert()
	other.serverCert()
	a.clientCert("edge")
	other.clientCert("edge")
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	serverAuth := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	a.sign("named", &x509.Certificate{DNSNames: []string{"elsewhere.test"}, ExtKeyUsage: serverAuth})
	a.sign("clients", &x509.Certificate{IPAddresses: loopback, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	a.signUntil("old", &x509.Certificate{IPAddresses: loopback, ExtKeyUsage: serverAuth}, time.Now().Add(-time.Minute))
	a.signUntil("oldedge", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, time.Now().Add(-time.Minute))
	serve := func(name string, clients bool) server.Config {
		if name == "" {
			return server.Config{}
		}
		f := auth.ServerFiles{Cert: a.path(name + ".crt"), Key: a.path(name + ".key")}
		if clients {
			f.ClientCA = a.path("authority.crt")
		}
		tls, err := f.Config()
		if err != nil {
			t.Fatal(err)
		}
		return server.Config{Credentials: credentials.NewTLS(tls)}
	}
	for name, tt := range map[string]struct {
		server  string // its certificate; empty: plain text
		clients bool   // it asks for a certificate
		dial    *auth.ClientFiles
		want    string // how the sentence begins; empty if it works
		mend    string
	}{
		"both plain":             {"", false, nil, "", ""},
		"both TLS":               {"server", false, &auth.ClientFiles{CA: a.path("authority.crt")}, "", ""},
		"certificates":           {"server", true, &auth.ClientFiles{CA: a.path("authority.crt"), Cert: a.path("edge.crt"), Key: a.path("edge.key")}, "", ""},
		"another name, given":    {"named", false, &auth.ClientFiles{CA: a.path("authority.crt"), ServerName: "elsewhere.test"}, "", ""},
		"plain to TLS":           {"server", false, nil, "upstream %s ends the connection before a word", "where it serves TLS, set tls of the source"},
		"plain to certificates":  {"server", true, nil, "upstream %s ends the connection before a word", "where it serves TLS, set tls of the source"},
		"TLS to plain":           {"", false, &auth.ClientFiles{CA: a.path("authority.crt")}, "upstream %s does not speak TLS, and this node does", "serve TLS there, or take tls out of the source"},
		"untrusted server":       {"server", false, &auth.ClientFiles{CA: other.path("authority.crt")}, "this node does not trust the certificate of upstream %s", "set the authority"},
		"both untrusted":         {"server", true, &auth.ClientFiles{CA: other.path("authority.crt"), Cert: other.path("edge.crt"), Key: other.path("edge.key")}, "this node does not trust the certificate of upstream %s", "set the authority"},
		"server of another name": {"named", false, &auth.ClientFiles{CA: a.path("authority.crt")}, "the certificate of upstream %s is for another name", "or set serverName"},
		"another name, wanted":   {"server", false, &auth.ClientFiles{CA: a.path("authority.crt"), ServerName: "elsewhere.test"}, "the certificate of upstream %s is for another name", "or set serverName"},
		"expired server":         {"old", false, &auth.ClientFiles{CA: a.path("authority.crt")}, "the certificate of upstream %s is not valid now", "renew it there"},
		"not for servers":        {"clients", false, &auth.ClientFiles{CA: a.path("authority.crt")}, "the certificate of upstream %s is not one for servers", "serverAuth"},
		"no client certificate":  {"server", true, &auth.ClientFiles{CA: a.path("authority.crt")}, "upstream %s asks who reads, and this node shows no certificate", "set one that the upstream's client authority has signed"},
		"client of another":      {"server", true, &auth.ClientFiles{CA: a.path("authority.crt"), Cert: other.path("edge.crt"), Key: other.path("edge.key")}, "upstream %s refuses the certificate of this node", "that the upstream's client authority has signed"},
		"expired client":         {"server", true, &auth.ClientFiles{CA: a.path("authority.crt"), Cert: a.path("oldedge.crt"), Key: a.path("oldedge.key")}, "upstream %s refuses the certificate of this node", "use one that is valid"},
		"server's as client's":   {"server", true, &auth.ClientFiles{CA: a.path("authority.crt"), Cert: a.path("server.crt"), Key: a.path("server.key")}, "upstream %s refuses the certificate of this node", "for clients"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := ft.Start(t, "n", ft.Options{Server: serve(tt.server, tt.clients)}, map[string]engine.SyncSource{"pg": ft.NewOrigin(1, "t")})
			s := ft.Source(t, "x", func(c *client.Config) {
				c.Patience = 2 * time.Second
				if tt.dial == nil {
					return
				}
				var err error
				if c.Credentials, err = tt.dial.Credentials(); err != nil {
					t.Fatal(err)
				}
			}, n)
			_, err := s.Init(t.Context(), engine.Env{})
			s.Close()
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var se *engine.SourceError
			if !errors.As(err, &se) || se.Reason != engine.ReasonAuthenticationFailed {
				t.Fatalf("%v is of reason %+v", err, se)
			}
			if want := strings.Replace(tt.want, "%s", n.Address, 1); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), tt.mend) {
				t.Errorf("%v\ndoes not say %q, %q", err, want, tt.mend)
			}
		})
	}
}
