//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// TestSink: a node writes what it has to another database, where it makes the
// table, and goes on after its pod is deleted. A target that rejects holds the
// sink alone, and is named.
func TestSink(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	mustSQL(t, ns, "CREATE DATABASE copy")
	apply(t, ns, root("root")+below("deliver", 1, "root")+`  sinks:
  - name: copy
    postgres:
      hosts: [{host: postgres}]
      database: copy
      credentialsSecretRef: {name: orders-db}
      createTables: true
`)
	waitReady(t, ns, 4*time.Minute, "root", "deliver")
	const rows = `SELECT count(*), coalesce(sum(hashtext(o::text)::bigint), 0) FROM (SELECT id, customer, total, note FROM orders) o`
	converged := func(limit time.Duration) {
		t.Helper()
		want := mustSQL(t, ns, rows)
		eventually(t, limit, "the copy equal", func(ctx context.Context) error {
			got, err := psql(ctx, ns, "\\c copy\n"+rows)
			if err == nil && got != want {
				err = fmt.Errorf("the copy has %s, the source %s", got, want)
			}
			return err
		})
	}
	mustSQL(t, ns, mixedChanges(1000))
	converged(time.Minute)
	if err := cluster.kube.CoreV1().Pods(ns).Delete(t.Context(), "deliver-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	mustSQL(t, ns, mixedChanges(1000))
	converged(2 * time.Minute)

	mustSQL(t, ns, "\\c copy\nALTER TABLE orders ADD CONSTRAINT small CHECK (total < 1000000)")
	mustSQL(t, ns, "INSERT INTO orders VALUES (-1, 1, 2000000, 'no')")
	eventually(t, 2*time.Minute, "the sink held", func(ctx context.Context) error {
		c, err := wantCondition(ctx, ns, "deliver", v1alpha1.ConditionSinksHealthy, metav1.ConditionFalse, v1alpha1.ReasonSinkHeld)
		if err == nil && !strings.Contains(c.Message, "orders") {
			err = fmt.Errorf("the entry is not named: %s", c.Message)
		}
		return err
	})
	wantConverged(t, ns, time.Minute, "deliver") // the node itself goes on
	mustSQL(t, ns, "\\c copy\nALTER TABLE orders DROP CONSTRAINT small")
	converged(2 * time.Minute)
	waitReady(t, ns, 2*time.Minute, "deliver")
}

// TestFilters: a node takes some rows and columns, and what leaves the filter is
// deleted there.
func TestFilters(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	mustSQL(t, ns, schema)
	apply(t, ns, root("root")+below("some", 1, "root")+`      tables:
      - schema: public
        name: orders
        columns: [customer]
        where: [{column: customer, operator: In, values: ["7", "8"]}]
`)
	waitReady(t, ns, 4*time.Minute, "root", "some")
	same := func() {
		t.Helper()
		out := mustSQL(t, ns, "SELECT id || '|' || customer || '|null|null' FROM orders WHERE customer IN (7, 8)")
		want := digest(strings.Split(out, "\n"))
		eventually(t, time.Minute, "the rows of the filter", func(ctx context.Context) error {
			ps, err := pods(ctx, ns, "some")
			if err != nil || len(ps) != 1 {
				return fmt.Errorf("%d pods: %w", len(ps), err)
			}
			got, err := podDigest(ctx, ns, ps[0].Name)
			if err == nil && got != want {
				err = fmt.Errorf("%s; the source has %s", got, want)
			}
			return err
		})
	}
	same()
	mustSQL(t, ns, "UPDATE orders SET customer = 9 WHERE customer = 7 AND id < 1000; UPDATE orders SET customer = 8 WHERE customer = 9 AND id > 3000;")
	mustSQL(t, ns, mixedChanges(500))
	same()
}

// authority signs certificates for one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	last int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "e2e"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.pem, a.key = a.sign(t, a.cert)
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}

// secret is a Secret with a certificate for the names, its key, and the authority.
func (a *authority) secret(t *testing.T, name string, dns ...string) string {
	t.Helper()
	a.last++
	cert, key := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.last), Subject: pkix.Name{CommonName: name}, DNSNames: dns,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ndata: {tls.crt: %s, tls.key: %s, ca.crt: %s}\n", name,
		text(cert), text(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), text(a.pem))
}

// TestTLS: from the database to the edge every connection is by TLS with names
// checked; a reader without a certificate, and one that is not permitted, get
// nothing.
func TestTLS(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	ca := newAuthority(t)
	apply(t, ns, strings.TrimPrefix(ca.secret(t, "database", "postgres")+ca.secret(t, "root", "root."+ns+".svc")+ca.secret(t, "edge")+ca.secret(t, "other"), "\n---"))
	startPostgres(t, ns, "database")
	mustSQL(t, ns, schema)
	secure := func(name, cert string) string {
		doc := below(name, 1, "root") + "      tls: {caSecretRef: {name: root}"
		if cert != "" {
			doc += ", certSecretRef: {name: " + cert + "}"
		}
		return doc + "}\n"
	}
	apply(t, ns, root("root")+`      tls: {mode: VerifyFull, caSecretRef: {name: database}}
  serve:
    tls: {secretRef: {name: root}, clientCASecretRef: {name: root}}
    permissions: [{reader: edge}]
`+secure("edge", "edge")+secure("other", "other")+secure("nobody", ""))
	waitReady(t, ns, 4*time.Minute, "root", "edge")
	mustSQL(t, ns, mixedChanges(500))
	wantConverged(t, ns, time.Minute, "edge")
	if got := mustSQL(t, ns, "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)"); got != "t" {
		t.Errorf("replication is by TLS: %q", got)
	}
	for _, n := range []string{"other", "nobody"} {
		c, err := wantCondition(t.Context(), ns, n, v1alpha1.ConditionReady, metav1.ConditionFalse, "")
		if err != nil {
			t.Error(err)
		} else {
			t.Logf("%s: %s: %s", n, c.Reason, c.Message)
		}
	}
}
