//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The images of the working tree, under the names that make images gives them.
const (
	managerImage = "localhost/tributary/manager:dev"
	nodeImage    = "localhost/tributary/node:dev"
)

// install installs the operator both ways: first by kustomize, and when that
// has run and is gone again, by the chart, with which the tests go on.
func install() error {
	start := time.Now()
	manifests, err := tool("", "kustomize", "build", filepath.Join(cluster.root, "config/default"))
	if err != nil {
		return err
	}
	for old, now := range map[string]string{
		"ghcr.io/tributary-dev/manager:0.1.0": managerImage, "ghcr.io/tributary-dev/node:0.1.0": nodeImage,
	} {
		if !strings.Contains(manifests, old) {
			return fmt.Errorf("config/default does not name the image %s", old)
		}
		manifests = strings.ReplaceAll(manifests, old, now)
	}
	kubectl := func(stdin string, args ...string) func() error {
		return func() error { _, err := run(stdin, "kubectl", args...); return err }
	}
	for _, step := range []func() error{
		kubectl(manifests, "apply", "--server-side", "--force-conflicts", "-f", "-"),
		kubectl("", "-n", systemNamespace, "rollout", "status", "deployment/tributary-manager", "--timeout=120s"),
		kubectl("", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"),
		category,
		kubectl(manifests, "delete", "--wait", "--timeout=120s", "-f", "-"),
	} {
		if err := step(); err != nil {
			return fmt.Errorf("installing by kustomize: %w", err)
		}
	}
	fmt.Printf("installed and removed by kustomize in %s\n", time.Since(start).Round(time.Second))
	start = time.Now()
	if _, err := tool("", "helm", "lint", "--strict", "charts/tributary"); err != nil {
		return err
	}
	if err := upgrades(); err != nil {
		return fmt.Errorf("upgrading by the chart: %w", err)
	}
	fmt.Printf("upgraded and removed by the chart in %s\n", time.Since(start).Round(time.Second))
	start = time.Now()
	if err := helmUpgrade("charts/tributary", "--wait", "--timeout", "3m"); err != nil {
		return err
	}
	if _, err := run("", "kubectl", "-n", systemNamespace, "delete", "fanoutsource", "kept"); err != nil {
		return fmt.Errorf("what was there before the chart was installed again: %w", err)
	}
	if out, err := tool("", "helm", "template", "charts/tributary", "--set", "replicas=many"); err == nil {
		return fmt.Errorf("the values schema takes replicas=many: %.200s", out)
	}
	fmt.Printf("installed by the chart in %s\n", time.Since(start).Round(time.Second))
	return nil
}

// upgrades (K10): the chart of an earlier release, whose definitions lack a field, then this
// one. The manager refuses to run while they are the earlier ones, and says so; the chart
// upgrades them, and they stay when it is uninstalled, with what there is of them.
func upgrades() error {
	dir, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := earlierChart(dir); err != nil {
		return err
	}
	if err := helmUpgrade(dir, "--set", "replicas=0"); err != nil {
		return err
	}
	kept := "apiVersion: tributary.dev/v1alpha1\nkind: FanoutSource\nmetadata: {name: kept}\nspec: {upstreams: [{address: 'far.example:7400'}]}\n"
	apply := func() error {
		_, err := run(kept, "kubectl", "-n", systemNamespace, "apply", "--server-side", "-f", "-")
		return err
	}
	if err := within(time.Minute, apply); err != nil {
		return err
	}
	if err := helmUpgrade("charts/tributary", "--set", "crds.install=false"); err != nil {
		return err
	}
	const refusal = "the CustomResourceDefinition of FanoutSource lacks spec.failover"
	err = within(3*time.Minute, func() error {
		last, err := run("", "kubectl", "-n", systemNamespace, "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[*].state.terminated.message}{.items[*].status.containerStatuses[*].lastState.terminated.message}")
		if err == nil && !strings.Contains(last, refusal) {
			err = fmt.Errorf("the manager does not refuse definitions that are too old: %q", last)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := helmUpgrade("charts/tributary", "--wait", "--timeout", "3m"); err != nil {
		return err
	}
	failover := func() error {
		out, err := run("", "kubectl", "explain", "fanoutsource.spec.failover", "--api-version", "tributary.dev/v1alpha1")
		if err != nil {
			return fmt.Errorf("the definitions are not upgraded: %w%s", err, out)
		}
		return nil
	}
	if err := within(time.Minute, failover); err != nil {
		return err
	}
	if _, err := tool("", "helm", "uninstall", release, "--namespace", systemNamespace, "--wait"); err != nil {
		return err
	}
	if _, err := run("", "kubectl", "-n", systemNamespace, "get", "fanoutsource", "kept"); err != nil {
		return fmt.Errorf("after the chart is uninstalled: %w", err)
	}
	return nil
}

// earlierChart makes a chart whose definitions lack a field that this one's have.
func earlierChart(dir string) error {
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(cluster.root, "charts/tributary"))); err != nil {
		return err
	}
	file := filepath.Join(dir, "files/crds/tributary.dev_fanoutsources.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return err
	}
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err != nil || len(versions) != 1 {
		return fmt.Errorf("%d versions: %w", len(versions), err)
	}
	unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "failover")
	if err := unstructured.SetNestedSlice(crd, versions, "spec", "versions"); err != nil {
		return err
	}
	if text, err = yaml.Marshal(crd); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func helmUpgrade(chart string, more ...string) error {
	_, err := tool("", "helm", append([]string{"upgrade", "--install", release, chart, "--namespace", systemNamespace, "--create-namespace", "-f", "hack/demo/values.yaml"}, more...)...)
	return err
}

// within does something until it works.
func within(limit time.Duration, do func() error) error {
	for end := time.Now().Add(limit); ; time.Sleep(time.Second) {
		if err := do(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// category gets all kinds by the one word for them. kubectl keeps what it has discovered, here from before there
// were the kinds, and the API server takes a moment to tell of new ones.
func category() error {
	return within(time.Minute, func() error {
		cache, err := os.MkdirTemp("", "kubectl-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(cache)
		_, err = run("", "kubectl", "get", "tributary", "-A", "--cache-dir", cache)
		return err
	})
}

// tool runs a development tool at its pinned version.
func tool(stdin, name string, args ...string) (string, error) {
	return run(stdin, filepath.Join(cluster.root, "hack/tool"), append([]string{name}, args...)...)
}

func run(stdin, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = cluster.root
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, out.String(), stderr.String())
	}
	return out.String(), nil
}

// kubectlOnPath puts the kubectl that came with the cluster on PATH.
func kubectlOnPath() error {
	if _, err := exec.LookPath("kubectl"); err == nil {
		return nil
	}
	dir, err := tool("", "envtest-assets")
	if err != nil {
		return err
	}
	return os.Setenv("PATH", strings.TrimSpace(dir)+string(os.PathListSeparator)+os.Getenv("PATH"))
}
