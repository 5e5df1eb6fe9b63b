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
	for _, step := range []struct {
		stdin string
		args  []string
	}{
		{manifests, []string{"apply", "--server-side", "--force-conflicts", "-f", "-"}},
		{"", []string{"-n", systemNamespace, "rollout", "status", "deployment/tributary-manager", "--timeout=120s"}},
		{"", []string{"wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"}},
		{"", nil},
		{manifests, []string{"delete", "--wait", "--timeout=120s", "-f", "-"}},
	} {
		do := func() error { _, err := run(step.stdin, "kubectl", step.args...); return err }
		if step.args == nil {
			do = category
		}
		if err := do(); err != nil {
			return fmt.Errorf("installing by kustomize: %w", err)
		}
	}
	fmt.Printf("installed and removed by kustomize in %s\n", time.Since(start).Round(time.Second))
	start = time.Now()
	for _, args := range [][]string{
		{"lint", "--strict", "charts/tributary"},
		{"upgrade", "--install", release, "charts/tributary", "--namespace", systemNamespace, "--create-namespace",
			"-f", "hack/demo/values.yaml", "--wait", "--timeout", "3m"},
	} {
		if _, err := tool("", "helm", args...); err != nil {
			return err
		}
	}
	if out, err := tool("", "helm", "template", "charts/tributary", "--set", "replicas=many"); err == nil {
		return fmt.Errorf("the values schema takes replicas=many: %.200s", out)
	}
	fmt.Printf("installed by the chart in %s\n", time.Since(start).Round(time.Second))
	return nil
}

// category gets all kinds by the one word for them. kubectl keeps what it has discovered, here from before there
// were the kinds, and the API server takes a moment to tell of new ones.
func category() error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		cache, err := os.MkdirTemp("", "kubectl-")
		if err != nil {
			return err
		}
		_, err = run("", "kubectl", "get", "tributary", "-A", "--cache-dir", cache)
		if err := os.RemoveAll(cache); err != nil {
			return err
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
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
