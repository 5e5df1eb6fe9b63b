package topology_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tributary-dev/tributary/controllers/topology"
)

func load(t *testing.T, doc string) (*topology.Manifests, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "topology.yaml"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := topology.LoadManifests([]string{dir})
	text := ""
	if err != nil {
		text = strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "")
	}
	return m, text
}

const loop = `# three nodes, two of them in a circle
apiVersion: v1
kind: ConfigMap
metadata: {name: not-ours}
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata:
  name: a
  namespace: shop
spec:
  sources:
    - name: up
      fanout: {upstreams: [{nodeRef: {name: b}}]}
---
apiVersion: v1
kind: List
items:
  - apiVersion: tributary.dev/v1alpha1
    kind: ReplicationNode
    metadata: {name: b, namespace: shop}
    spec:
      sources: [{name: up, fanoutSourceRef: {name: from-a}}]
---
apiVersion: tributary.dev/v1alpha1
kind: FanoutSource
metadata: {name: from-a, namespace: shop}
spec: {upstreams: [{nodeRef: {name: a}}]}
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: c}
spec:
  sources:
    - name: up
      fanout: {upstreams: [{nodeRef: {name: gone}}]}
`

func TestFindings(t *testing.T) {
	t.Parallel()
	m, problems := load(t, loop)
	if problems != "" {
		t.Fatal(problems)
	}
	var got []string
	for _, f := range m.Findings(topology.Compute(m.Inputs())) {
		f.File = filepath.Base(f.File)
		got = append(got, f.String())
	}
	want := []string{
		"topology.yaml:6: error: ReplicationNode shop/a: LoopDetected: Data would travel in a circle: a → b → a. Take one of these nodes' upstreams out, or turn one around.",
		"topology.yaml:19: error: ReplicationNode shop/b: LoopDetected: Data would travel in a circle: a → b → a. Take one of these nodes' upstreams out, or turn one around.",
		"topology.yaml:30: error: ReplicationNode default/c: ParentNotFound: The upstream node gone does not exist.",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestManifestErrors(t *testing.T) {
	t.Parallel()
	m, problems := load(t, `apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: a}
spec:
  suspendd: true
  sources:
    - name: up
      fanout:
        upstream: []
---
apiVersion: tributary.dev/v1
kind: ReplicationNode
metadata: {name: b}
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationMode
metadata: {name: b}
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
metadata: {name: a}
---
apiVersion: tributary.dev/v1alpha1
kind: ReplicationNode
spec: {suspend: "yes"}
`)
	want := `topology.yaml:5: unknown field "spec.suspendd"
topology.yaml:9: unknown field "spec.sources[0].fanout.upstream"
topology.yaml:11: apiVersion is tributary.dev/v1: this program knows tributary.dev/v1alpha1
topology.yaml:15: kind is ReplicationMode: this program knows ReplicationNode, PostgresSource, FanoutSource, ArchiveSource, ArchiveExport, ReplicationMesh and RelayTree
topology.yaml:19: ReplicationNode default/a is also at topology.yaml:1: keep one of them
topology.yaml:25: json: cannot unmarshal string into Go struct field ReplicationNodeSpec.spec.suspend of type bool`
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(problems, "\n")); d != "" {
		t.Error(d)
	}
	if _, problems := load(t, "kind: x\n\ttab: x\n"); problems != "topology.yaml:2: is not YAML: found a tab character that violates indentation" {
		t.Error(problems)
	}
	if len(m.Nodes) != 1 {
		t.Errorf("%d nodes could be read", len(m.Nodes))
	}
	if _, err := topology.LoadManifests([]string{filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a missing path is no error")
	}
}
