//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/internal/tests3"
)

// startS3 runs an S3 server in the namespace, reached as "s3:9000", with a bucket shop
// and the Secret s3-key for it.
func startS3(t *testing.T, ns string) {
	t.Helper()
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: s3-key}
stringData: {accessKeyID: %[1]s, secretAccessKey: %[2]s}
---
apiVersion: v1
kind: Service
metadata: {name: s3}
spec:
  selector: {app: s3}
  ports: [{port: 9000}]
---
apiVersion: v1
kind: Pod
metadata: {name: s3, labels: {app: s3}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: s3
    image: %[3]s
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'mkdir -p /data/buckets/shop; until [ -x /data/server ]; do sleep 0.2; done; exec /data/server --access %[1]s --secret %[2]s --region %[4]s --port 0.0.0.0:9000 --keep-alive --quiet posix /data/buckets']
    ports: [{containerPort: 9000}]
    readinessProbe: {tcpSocket: {port: 9000}, periodSeconds: 1}
    securityContext: {runAsUser: 0}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`, tests3.AccessKey, tests3.SecretKey, postgresImage(), tests3.Region))
	path, err := tool("", "versitygw-path")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "an S3 server", func(ctx context.Context) error {
		program, err := os.Open(strings.TrimSpace(path))
		if err != nil {
			return err
		}
		defer program.Close()
		cmd := exec.CommandContext(ctx, "kubectl", "-n", ns, "exec", "-i", "s3", "--", "sh", "-c", "[ -x /data/server ] || { cat > /data/new && chmod 755 /data/new && mv /data/new /data/server; }")
		cmd.Stdin = program
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		_, err = execute(ctx, ns, "s3", "", "sh", "-c", "[ -x /data/server ]")
		return err
	})
}

// inBucket is an archive in the bucket of startS3.
func inBucket(prefix string) string {
	return "store: {s3: {bucket: shop, endpoint: 'http://s3:9000', region: " + tests3.Region + ", credentials: {secretRef: {name: s3-key}}}}, keyPrefix: " + prefix + ", group: true"
}

var archiveReplays = regexp.MustCompile(`(?m)^tributary_archive_replays_total\{archive="cold",table="public\.orders"\} (\d+)`)

// TestArchiveReplay: a reader that has been away for longer than its upstream's journal
// and tombstones reach resumes by the archive in S3, as status and metrics say. Then an
// export writes the tables once, a node serves them from there, and deleting the export
// leaves them.
func TestArchiveReplay(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startPostgres(t, ns)
	startS3(t, ns)
	mustSQL(t, ns, schema)
	top := strings.Replace(root("root"), "spec:\n", "spec:\n  storage: {type: Persistent, size: 1Gi"+storageClass(t, ns, "root", "")+`, journal: {maxBytes: 1Mi, limitBytes: 3Mi, readerRetention: 1m}, tombstones: {retention: 1m}}
  archives: [{name: cold, `+inBucket("prod/")+`, write: {interval: 2s, rebase: {maxAge: 24h}}}]
`, 1)
	class := storageClass(t, ns, "edge", "")
	reader := func(suspend bool) string {
		return strings.Replace(below("edge", 1, "root"), "spec:\n", fmt.Sprintf("spec:\n  suspend: %t\n  storage: {type: Persistent, size: 1Gi%s}\n", suspend, class), 1)
	}
	apply(t, ns, top+reader(false))
	waitReady(t, ns, 4*time.Minute, "root", "edge")
	wantConverged(t, ns, time.Minute, "edge")
	healthy := func(ctx context.Context) error {
		_, err := wantCondition(ctx, ns, "root", v1alpha1.ConditionArchiveHealthy, metav1.ConditionTrue, v1alpha1.ReasonArchiveStreaming)
		return err
	}
	eventually(t, time.Minute, "a healthy archive", healthy)

	apply(t, ns, reader(true))
	eventually(t, 2*time.Minute, "the reader away", func(ctx context.Context) error {
		ps, err := pods(ctx, ns, "edge")
		if err == nil && len(ps) > 0 {
			err = fmt.Errorf("%d pods", len(ps))
		}
		return err
	})
	for i := range 30 { // more than the journal holds, with rows deleted; the archive keeps up
		mustSQL(t, ns, fmt.Sprintf("UPDATE orders SET note = repeat(md5(random()::text), 20) WHERE id %% 15 = %d", i%15))
		mustSQL(t, ns, mixedChanges(60))
		time.Sleep(time.Second)
	}
	time.Sleep(75 * time.Second) // the tombstones go
	mustSQL(t, ns, mixedChanges(100))
	time.Sleep(5 * time.Second)
	eventually(t, time.Minute, "a healthy archive", healthy)
	apply(t, ns, reader(false))
	waitReady(t, ns, 4*time.Minute, "edge")
	wantConverged(t, ns, time.Minute, "edge")

	edge := onlyPod(t, ns, "edge")
	st, err := statusz(t.Context(), ns, edge.Name)
	if err != nil || len(st.Logs) != 1 || st.Logs[0].Delivery == nil || st.Logs[0].Delivery.Replays != 1 || st.Logs[0].Delivery.Snapshots != 0 {
		t.Errorf("the reader was caught up otherwise: %+v, %v", st.Logs, err)
	}
	eventually(t, time.Minute, "the replay in the status and the metrics", func(ctx context.Context) error {
		var n v1alpha1.ReplicationNode
		if err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: "root"}, &n); err != nil {
			return err
		}
		if a := n.Status.Archives; len(a) != 1 || a[0].Replays != 1 || len(a[0].Heads) == 0 || a[0].Bytes == nil || a[0].Generation == 0 {
			return fmt.Errorf("%+v", a)
		}
		text, err := get(ctx, ns, onlyPod(t, ns, "root").Name, "metrics", nil)
		if err != nil {
			return err
		}
		if m := archiveReplays.FindSubmatch(text); m == nil || string(m[1]) != "1" {
			return fmt.Errorf("the metric says %s", m)
		}
		return nil
	})
	exportOnce(t, ns)
}

// exportOnce exports once, deletes the export, and serves what it has written.
func exportOnce(t *testing.T, ns string) {
	t.Helper()
	apply(t, ns, `
apiVersion: tributary.dev/v1alpha1
kind: ArchiveExport
metadata: {name: dump}
spec: {nodeRef: {name: root}, `+inBucket("dump/")+`, formats: [jsonl]}
`)
	var export v1alpha1.ArchiveExport
	eventually(t, 3*time.Minute, "the export", func(ctx context.Context) error {
		if err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: "dump"}, &export); err != nil {
			return err
		}
		for _, kind := range []string{v1alpha1.ConditionComplete, v1alpha1.ConditionReady, v1alpha1.ConditionArchiveHealthy} {
			if !meta.IsStatusConditionTrue(export.Status.Conditions, kind) {
				return fmt.Errorf("%+v", export.Status)
			}
		}
		return nil
	})
	if s := export.Status; s.Tables != 1 || s.Generation != 1 || s.Bytes == nil || len(s.Heads) == 0 || s.CompletionTime == nil || s.LastError != "" {
		t.Errorf("%+v", s)
	}
	if err := cluster.cl.Delete(t.Context(), &export, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the export gone", func(ctx context.Context) error {
		if err := cluster.cl.Get(ctx, client.ObjectKeyFromObject(&export), &export); client.IgnoreNotFound(err) != nil {
			return err
		} else if err == nil {
			return fmt.Errorf("%+v", export.ObjectMeta)
		}
		return nil
	})
	apply(t, ns, `
apiVersion: tributary.dev/v1alpha1
kind: ArchiveSource
metadata: {name: dump}
spec: {`+inBucket("dump/")+`, formats: [jsonl], tables: [{schema: public, name: orders}]}
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: seeded}
spec: {sources: [{name: archive, archiveSourceRef: {name: dump}}]}
`)
	waitReady(t, ns, 2*time.Minute, "seeded")
	wantConverged(t, ns, time.Minute, "seeded")
}
