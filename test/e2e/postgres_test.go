//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// postgresImage is made by hack/cluster.sh.
func postgresImage() string {
	return cmp.Or(os.Getenv("E2E_POSTGRES_IMAGE"), "localhost/tributary/postgres:15")
}

const password = "s3cret, with 'quotes'"

// startPostgres runs a PostgreSQL in the namespace, reached as "postgres", with
// the Secret orders-db for it. It serves TLS by a Secret, if one is named.
func startPostgres(t *testing.T, ns string, certificate ...string) {
	t.Helper()
	args, tls, mount := "", "", ""
	if len(certificate) > 0 {
		args = "\n    args: [-c, ssl=on, -c, ssl_cert_file=/tls/tls.crt, -c, ssl_key_file=/tls/tls.key, -c, wal_level=logical, -c, max_replication_slots=20, -c, max_wal_senders=20]"
		tls = ", {name: tls, secret: {secretName: " + certificate[0] + ", defaultMode: 0640}}"
		mount = ", {name: tls, mountPath: /tls}"
	}
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: orders-db}
stringData: {username: postgres, password: %[1]q}
---
apiVersion: v1
kind: Service
metadata: {name: postgres}
spec:
  selector: {app: postgres}
  ports: [{port: 5432}]
---
apiVersion: v1
kind: Pod
metadata: {name: postgres, labels: {app: postgres}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: postgres
    image: %[2]s
    imagePullPolicy: IfNotPresent
    env: [{name: POSTGRES_PASSWORD, value: %[1]q}]%[3]s
    ports: [{containerPort: 5432}]
    readinessProbe: {tcpSocket: {port: 5432}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /var/lib/postgresql}%[4]s]
  securityContext: {fsGroup: 999}
  volumes: [{name: data, emptyDir: {}}%[5]s] # the database outlives its container
`, password, postgresImage(), args, mount, tls))
	eventually(t, 2*time.Minute, "PostgreSQL answering", func(ctx context.Context) error {
		_, err := psql(ctx, ns, "SELECT 1")
		return err
	})
}

// psql runs SQL in the database of the namespace.
func psql(ctx context.Context, ns, sql string) (string, error) {
	out, err := execute(ctx, ns, "postgres", sql, "psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1",
		"-U", "postgres", "-d", "postgres")
	return strings.TrimSuffix(out, "\n"), err
}

func mustSQL(t *testing.T, ns, sql string) string {
	t.Helper()
	out, err := psql(t.Context(), ns, sql)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// digest is of rows, each as the text of its columns.
func digest(rows []string) string {
	slices.Sort(rows)
	h := sha256.New()
	for _, r := range rows {
		fmt.Fprintln(h, r)
	}
	return fmt.Sprintf("%d rows, sha256 %s", len(rows), hex.EncodeToString(h.Sum(nil)))
}

// sourceDigest is the digest of orders at the source.
func sourceDigest(ctx context.Context, ns string) (string, error) {
	out, err := psql(ctx, ns, `SELECT id || '|' || coalesce(customer::text, 'null') || '|' || coalesce(total::text, 'null') || '|' || coalesce(md5(note), 'null') FROM orders`)
	if err != nil {
		return "", err
	}
	if out == "" {
		return digest(nil), nil
	}
	return digest(strings.Split(out, "\n")), nil
}

// podDigest is the digest of orders at a node's pod, by the read API.
func podDigest(ctx context.Context, ns, pod string) (string, error) {
	var rows []string
	params := map[string]string{"limit": "10000"}
	for {
		b, err := get(ctx, ns, pod, "v1/tables/public.orders/rows", params)
		if err != nil {
			return "", err
		}
		var page struct {
			Rows []struct {
				ID       json.Number
				Customer *json.Number
				Total    *json.Number
				Note     *string
			}
			Next string
		}
		if err := json.Unmarshal(b, &page); err != nil {
			return "", err
		}
		for _, r := range page.Rows {
			c, total, note := "null", "null", "null"
			if r.Customer != nil {
				c = r.Customer.String()
			}
			if r.Total != nil {
				total = r.Total.String()
			}
			if r.Note != nil {
				note = md5Hex(*r.Note)
			}
			rows = append(rows, strings.Join([]string{r.ID.String(), c, total, note}, "|"))
		}
		if page.Next == "" {
			return digest(rows), nil
		}
		params["after"] = page.Next
	}
}

// wantConverged waits until every pod of the nodes has what the source has.
func wantConverged(t *testing.T, ns string, limit time.Duration, nodes ...string) {
	t.Helper()
	want, err := sourceDigest(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("source: %s", want)
	eventually(t, limit, "rows equal at "+strings.Join(nodes, ", "), func(ctx context.Context) error {
		for _, n := range nodes {
			ps, err := pods(ctx, ns, n)
			if err != nil {
				return err
			}
			if len(ps) == 0 {
				return fmt.Errorf("%s has no pod that runs", n)
			}
			for _, p := range ps {
				got, err := podDigest(ctx, ns, p.Name)
				if err != nil {
					return fmt.Errorf("%s: %w", p.Name, err)
				}
				if got != want {
					return fmt.Errorf("%s: %s; the source has %s", p.Name, got, want)
				}
			}
		}
		return nil
	})
}
