package postgres

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
)

// authority is a certificate authority of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	path string // of its certificate
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{t: t, path: filepath.Join(dir, name+".pem")}
	a.key, a.cert = a.sign(&x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, a.path, "")
	return a
}

// sign makes a certificate, and writes it and its key.
func (a *authority) sign(c *x509.Certificate, certFile, keyFile string) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(certFile, "CERTIFICATE", der)
	if keyFile != "" {
		raw, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			a.t.Fatal(err)
		}
		a.write(keyFile, "PRIVATE KEY", raw)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

func (a *authority) write(path, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// secure turns TLS on at a server, with a certificate for the name localhost.
func secure(t *testing.T, s *testpg.Server, ca *authority) {
	t.Helper()
	data := filepath.Join(s.Dir, "data")
	ca.sign(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"}},
		filepath.Join(data, "server.crt"), filepath.Join(data, "server.key"))
	root, err := os.ReadFile(ca.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "root.crt"), root, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	for _, name := range []string{"server.crt", "server.key", "root.crt"} {
		if err := os.Chown(filepath.Join(data, name), int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	admin := &testpg.DB{Name: "postgres", Server: s}
	admin.Exec(t, `ALTER SYSTEM SET ssl_ca_file='root.crt'`, `ALTER SYSTEM SET ssl=on`, `SELECT pg_reload_conf()`)
	eventually(t, "TLS is on", func() bool { return admin.Value(t, `SHOW ssl`) == "on" })
}

// Certificates and passwords, and what is said when they do not fit.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{HBA: []string{"hostssl all certified all cert", "hostnossl all certified all reject", "host all all all scram-sha-256"},
		Settings: map[string]string{"listen_addresses": "localhost"}})
	dir := t.TempDir()
	ca, other := newAuthority(t, dir, "ca"), newAuthority(t, dir, "other")
	secure(t, s, ca)
	ca.sign(&x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "certified"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	db := s.NewDB(t)
	db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x')`, `CREATE ROLE certified LOGIN SUPERUSER`, `CREATE PUBLICATION p FOR TABLE t`)
	client := url.Values{"sslcert": {filepath.Join(dir, "client.crt")}, "sslkey": {filepath.Join(dir, "client.key")}}
	for i, tt := range []struct {
		name, host, user string
		query            url.Values
		want             string // in the error; empty if it works
	}{
		{"verify-full", "localhost", testpg.User, url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca.path}}, ""},
		{"verify-full, another name", "127.0.0.1", testpg.User, url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca.path}}, "certificate is not accepted"},
		{"verify-ca, another name", "127.0.0.1", testpg.User, url.Values{"sslmode": {"verify-ca"}, "sslrootcert": {ca.path}}, ""},
		{"verify-ca, another authority", "localhost", testpg.User, url.Values{"sslmode": {"verify-ca"}, "sslrootcert": {other.path}}, "certificate is not accepted"},
		{"verify-full, another authority", "localhost", testpg.User, url.Values{"sslmode": {"verify-full"}, "sslrootcert": {other.path}}, "authority of the source's TLS"},
		{"client certificate", "localhost", "certified", url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca.path}, "sslcert": client["sslcert"], "sslkey": client["sslkey"]}, ""},
		{"no client certificate", "localhost", "certified", url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca.path}}, `user "certified" was refused`},
		{"no TLS", "localhost", "certified", url.Values{"sslmode": {"disable"}}, `user "certified" was refused`},
		{"channel binding", "localhost", testpg.User, url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca.path}, "channel_binding": {"require"}}, ""},
		{"channel binding without TLS", "localhost", testpg.User, url.Values{"sslmode": {"disable"}, "channel_binding": {"require"}}, "channel binding"},
		{"no such file", "localhost", testpg.User, url.Values{"sslmode": {"verify-full"}, "sslrootcert": {filepath.Join(dir, "gone")}}, "gone"},
		{"first host is down", "127.0.0.1:1,localhost", testpg.User, url.Values{"sslmode": {"verify-ca"}, "sslrootcert": {ca.path}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := url.URL{Scheme: "postgres", User: url.UserPassword(tt.user, testpg.Password), Host: fmt.Sprintf("%s:%d", tt.host, s.Port), Path: "/" + db.Name, RawQuery: tt.query.Encode()}
			cfg := Config{ConnString: u.String(), Tables: names("t"), Publication: "p", Slot: fmt.Sprintf("tls_%d", i)}
			src, err := New(cfg)
			if err != nil {
				if tt.want == "" || !strings.Contains(err.Error(), tt.want) {
					t.Fatal(err)
				}
				return
			}
			if tt.want != "" {
				_, err := src.connect(t.Context(), true)
				if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), testpg.Password) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				var p *Problem
				if strings.Contains(tt.want, "certificate") && (!errors.As(err, &p) || p.Reason != AuthenticationFailed || p.Mend == "") {
					t.Errorf("%+v", p)
				}
				return
			}
			n := startSource(t, src, &model{})
			n.converges(db, "t")
			walsender(t, db)
			if tls := db.Value(t, `SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)`); tls != "t" {
				t.Error("the stream is not encrypted")
			}
			if app := db.Value(t, `SELECT max(application_name) FROM pg_stat_replication`); app != "tributary node" {
				t.Errorf("the server knows it as %q", app)
			}
			n.stop()
		})
	}
}
