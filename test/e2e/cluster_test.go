//go:build e2e

// Package e2e runs Tributary on a real cluster: real containers, PostgreSQL, an
// API server and kubelets. hack/cluster.sh says which cluster; the images and
// the chart are those of the working tree.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// cluster is the cluster under test; set by TestMain.
var cluster struct {
	rest *rest.Config
	kube kubernetes.Interface
	cl   client.WithWatch
	root string // of the repository
}

const (
	systemNamespace = "tributary-system"
	release         = "tributary"
)

func TestMain(m *testing.M) {
	for _, prepare := range []func() error{connect, kubectlOnPath, install} {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func kubeconfig() string { return os.Getenv("KUBECONFIG") }

func connect() error {
	path := kubeconfig()
	if path == "" {
		return fmt.Errorf("KUBECONFIG is not set: run the end-to-end tests by make test-e2e, which starts a cluster, loads the images and installs the chart")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = 100, 200
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	cluster.rest = cfg
	if cluster.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	if cluster.cl, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("where is the repository? %w", err)
	}
	cluster.root = strings.TrimSpace(string(out))
	return nil
}

// namespace makes a namespace for one test; it is deleted at the test's end.
// What is in it is printed if the test failed.
func namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	if err := cluster.cl.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if t.Failed() {
			dump(ctx, t, ns.Name)
		}
		if err := client.IgnoreNotFound(cluster.cl.Delete(ctx, ns)); err != nil {
			t.Error(err)
		}
	})
	return ns.Name
}

// dump prints what a person would ask for after a failure.
func dump(ctx context.Context, t *testing.T, ns string) {
	for _, args := range [][]string{
		{"get", "tributary,pods,deployments,statefulsets", "-o", "wide"},
		{"get", "replicationnodes,replicationmeshes,relaytrees,archivesources,archiveexports", "-o", "yaml"},
		{"get", "events", "--sort-by=.lastTimestamp"},
	} {
		out, _ := exec.CommandContext(ctx, "kubectl", append([]string{"-n", ns}, args...)...).CombinedOutput()
		t.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
	}
	pods, err := cluster.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, p := range pods.Items {
		out, _ := exec.CommandContext(ctx, "kubectl", "-n", ns, "logs", "--tail=40", p.Name).CombinedOutput()
		t.Logf("logs of %s\n%s", p.Name, out)
	}
	out, _ := exec.CommandContext(ctx, "kubectl", "-n", systemNamespace, "logs", "--tail=80", "-l", "app.kubernetes.io/name=tributary").CombinedOutput()
	t.Logf("logs of the manager\n%s", out)
}

// apply applies manifests, server-side.
func apply(t *testing.T, ns, manifests string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "kubectl", "-n", ns, "apply", "--server-side", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifests)
	}
}

// eventually polls until ok gives nil.
func eventually(t *testing.T, limit time.Duration, what string, ok func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	start := time.Now()
	for {
		err := ok(ctx)
		if err == nil {
			t.Logf("%s: after %s", what, time.Since(start).Round(100*time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %s for %s: %v", limit, what, err)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// execute runs a command in a pod's first container and returns its output.
func execute(ctx context.Context, ns, pod, stdin string, command ...string) (string, error) {
	opts := &corev1.PodExecOptions{Command: command, Stdin: stdin != "", Stdout: true, Stderr: true}
	req := cluster.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(pod).SubResource("exec").
		VersionedParams(opts, clientgoscheme.ParameterCodec)
	ex, err := remotecommand.NewWebSocketExecutor(cluster.rest, "GET", req.URL().String())
	if err != nil {
		return "", err
	}
	var out, stderr bytes.Buffer
	so := remotecommand.StreamOptions{Stdout: &out, Stderr: &stderr}
	if stdin != "" {
		so.Stdin = strings.NewReader(stdin)
	}
	if err := ex.StreamWithContext(ctx, so); err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", command[0], pod, err, stderr.String())
	}
	return out.String(), nil
}

// pods returns the names of a node's pods that run.
func pods(ctx context.Context, ns, node string) ([]corev1.Pod, error) {
	l, err := cluster.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + node})
	if err != nil {
		return nil, err
	}
	var running []corev1.Pod
	for _, p := range l.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			running = append(running, p)
		}
	}
	return running, nil
}

// get asks a pod's HTTP port by way of the API server.
func get(ctx context.Context, ns, pod, path string, params map[string]string) ([]byte, error) {
	r := cluster.kube.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").Name(pod + ":8080").SubResource("proxy").Suffix(path)
	for k, v := range params {
		r = r.Param(k, v)
	}
	return r.DoRaw(ctx)
}

func statusz(ctx context.Context, ns, pod string) (doc nodeconfig.Statusz, err error) {
	b, err := get(ctx, ns, pod, "statusz", nil)
	if err != nil {
		return doc, err
	}
	return doc, json.Unmarshal(b, &doc)
}

// condition returns a node's condition, or an error that says what is there.
func condition(ctx context.Context, ns, node, kind string) (*metav1.Condition, error) {
	var rn v1alpha1.ReplicationNode
	if err := cluster.cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: node}, &rn); err != nil {
		return nil, err
	}
	c := meta.FindStatusCondition(rn.Status.Conditions, kind)
	if c == nil || c.ObservedGeneration != rn.Generation {
		return nil, fmt.Errorf("%s has no current condition %s: %+v", node, kind, rn.Status.Conditions)
	}
	return c, nil
}

// wantCondition checks a condition's status and reason.
func wantCondition(ctx context.Context, ns, node, kind string, status metav1.ConditionStatus, reason string) (*metav1.Condition, error) {
	c, err := condition(ctx, ns, node, kind)
	if err != nil {
		return nil, err
	}
	if c.Status != status || (reason != "" && c.Reason != reason) {
		return nil, fmt.Errorf("%s: %s is %s, %s: %s; want %s, %s", node, kind, c.Status, c.Reason, c.Message, status, reason)
	}
	return c, nil
}

func waitReady(t *testing.T, ns string, limit time.Duration, nodes ...string) {
	t.Helper()
	eventually(t, limit, strings.Join(nodes, ", ")+" ready", func(ctx context.Context) error {
		for _, n := range nodes {
			if _, err := wantCondition(ctx, ns, n, v1alpha1.ConditionReady, metav1.ConditionTrue, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

func scaleManager(t *testing.T, replicas int32) {
	t.Helper()
	ctx := context.Background() // also at the end of a test, when its context is gone
	var list appsv1.DeploymentList
	if err := cluster.cl.List(ctx, &list, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/name": "tributary"}); err != nil || len(list.Items) != 1 {
		t.Fatalf("the manager's Deployment: %v, %d found", err, len(list.Items))
	}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := cluster.cl.Patch(ctx, &list.Items[0], patch); err != nil {
		t.Fatal(err)
	}
}
