package controllers_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// The tests of this package run the controllers against a real API server. No
// kubelet runs: where a test needs a node's pod, it plays the kubelet. The
// manager has the rights of config/rbac/role.yaml and no other.
var (
	cl      client.Client // past any cache
	skip    string
	restCfg *rest.Config
	writes  requestCounter // of the manager
	reads   requestCounter
	// failures are the reconciles that have ended with an error, as the manager logs them.
	failures failureLog
)

// slotTimeout is the bound on dropping slots in these tests.
const slotTimeout = 20 * time.Second

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := assets()
	if err != nil {
		skip = err.Error()
		return m.Run()
	}
	ctrl.SetLogger(funcr.New(failures.log, funcr.Options{}))
	env := &envtest.Environment{
		BinaryAssetsDirectory:    dir,
		CRDDirectoryPaths:        []string{filepath.Join("..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 3 * time.Minute, ControlPlaneStopTimeout: time.Minute,
	}
	defer func() { // also when it starts and then refuses the CRDs
		if err := env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "the API server does not stop:", err)
		}
	}()
	if restCfg, err = env.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "the API server does not start:", err)
		return 1
	}
	stop, err := start(env)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the manager does not start:", err)
		return 1
	}
	defer stop()
	return m.Run()
}

// assets finds etcd and kube-apiserver.
func assets() (string, error) {
	if testingShort() {
		return "", fmt.Errorf("-short: needs an API server")
	}
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	tool := filepath.Join("..", "hack", "tool")
	if _, err := os.Stat(tool); err != nil {
		return "", fmt.Errorf("KUBEBUILDER_ASSETS is not set and %s is not there: set it to a folder with etcd and kube-apiserver", tool)
	}
	cmd := exec.Command(tool, "envtest-assets")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// testingShort reads -short before the testing package has parsed it.
func testingShort() bool {
	for _, a := range os.Args {
		if a == "-test.short" || a == "-test.short=true" {
			return true
		}
	}
	return false
}

// managerUser makes a user with the manager's role and no other right.
func managerUser(env *envtest.Environment) (*rest.Config, error) {
	data, err := os.ReadFile(filepath.Join("..", "config", "rbac", "role.yaml"))
	if err != nil {
		return nil, err
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(data, role); err != nil {
		return nil, err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "manager"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "manager"}},
	}
	for _, o := range []client.Object{role, binding} {
		if err := cl.Create(context.Background(), o); err != nil {
			return nil, err
		}
	}
	user, err := env.AddUser(envtest.User{Name: "manager"}, nil)
	if err != nil {
		return nil, err
	}
	return user.Config(), nil
}

func start(env *envtest.Environment) (stop func(), err error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	restCfg.QPS, restCfg.Burst = 500, 1000
	if cl, err = client.New(restCfg, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	counted, err := managerUser(env)
	if err != nil {
		return nil, err
	}
	counted.QPS, counted.Burst = 500, 1000
	counted.Wrap(writes.wrap(func(r *http.Request) bool { return r.Method != http.MethodGet }))
	counted.Wrap(reads.wrap(func(r *http.Request) bool { return r.Method == http.MethodGet }))
	counted.Wrap(lagging)
	mgr, err := ctrl.NewManager(counted, ctrl.Options{
		Scheme: scheme, Cache: controllers.CacheOptions(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	err = controllers.Setup(mgr, controllers.Options{
		Options:        workload.Options{NodeImage: "example.test/node:1", ManagerNamespace: "tributary-system"},
		StatusInterval: 500 * time.Millisecond, SlotTimeout: slotTimeout,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- mgr.Start(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, "the manager ends:", err)
		}
	}, nil
}

// requestCounter counts requests of a kind, by path.
type requestCounter struct {
	mu    sync.Mutex
	paths []string
}

func (w *requestCounter) wrap(counts func(*http.Request) bool) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if counts(r) {
				w.mu.Lock()
				w.paths = append(w.paths, r.Method+" "+r.URL.Path)
				w.mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	}
}

func (w *requestCounter) in(namespace string) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.paths {
		if strings.Contains(p, "/namespaces/"+namespace+"/") {
			out = append(out, p)
		}
	}
	return out
}

// failureLog keeps the errors of reconciles.
type failureLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *failureLog) log(_, line string) {
	if strings.Contains(line, `"Reconciler error"`) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, line)
	}
}

// in returns the errors of what is in a namespace.
func (l *failureLog) in(namespace string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, namespace) {
			out = append(out, line)
		}
	}
	return out
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// namespace makes a namespace for one test.
func namespace(t *testing.T) string {
	t.Helper()
	if skip != "" {
		t.Skip(skip)
	}
	t.Parallel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := cl.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// apply applies documents by server-side apply, as kubectl would.
func apply(t *testing.T, ns, docs string) {
	t.Helper()
	for _, doc := range strings.Split(docs, "\n---") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		if err := tryApply(t.Context(), ns, doc); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
	}
}

func tryApply(ctx context.Context, ns, doc string) error {
	u := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(doc), &u.Object); err != nil {
		return err
	}
	u.SetNamespace(ns)
	if u.GetAPIVersion() == "" {
		u.SetAPIVersion("tributary.dev/v1alpha1")
	}
	return cl.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("kubectl"), client.ForceOwnership)
}

// eventually waits until f gives no error.
func eventually(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	limit := time.Now().Add(time.Minute)
	for {
		err := f(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func node(ctx context.Context, ns, name string) (*v1alpha1.ReplicationNode, error) {
	n := &v1alpha1.ReplicationNode{}
	return n, cl.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, n)
}

// wantCondition waits for a condition of a node.
func wantCondition(t *testing.T, ns, name, kind string, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: %s=%s, %s", name, kind, status, reason), func(ctx context.Context) error {
		n, err := node(ctx, ns, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(n.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) || c.ObservedGeneration != n.Generation {
			return fmt.Errorf("generation %d has %+v", n.Generation, n.Status.Conditions)
		}
		return nil
	})
}

const login = `
kind: Secret
apiVersion: v1
metadata: {name: login}
stringData: {username: u, password: p}
---`

func rootNode(name string) string {
	return fmt.Sprintf(`
kind: ReplicationNode
metadata: {name: %s}
spec:
  sources:
  - name: db
    postgres:
      hosts: [{host: db}]
      database: shop
      credentialsSecretRef: {name: login}
      tables: [{schema: public, name: orders}]
---`, name)
}

func below(name string, parents ...string) string {
	ups := ""
	for _, p := range parents {
		ups += fmt.Sprintf("{nodeRef: {name: %s}},", p)
	}
	return fmt.Sprintf(`
kind: ReplicationNode
metadata: {name: %s}
spec:
  sources: [{name: up, fanout: {upstreams: [%s]}}]
---`, name, strings.TrimSuffix(ups, ","))
}
