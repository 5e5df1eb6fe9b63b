package controllers_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/tributary-dev/tributary/controllers/topology"
)

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every sample is applied, read back, and its spec compared; and the planner
// finds nothing wrong with those of a folder together.
func TestCaseK09(t *testing.T) {
	ns := namespace(t)
	folders := []string{filepath.Join("..", "config", "samples"), filepath.Join("..", "examples", "local"), filepath.Join("..", "examples", "cluster")}
	seen := 0
	for _, folder := range folders {
		m, err := topology.LoadManifests([]string{folder})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range m.Findings(topology.Compute(m.Inputs())) {
			t.Error(f)
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, doc := range strings.Split(string(text), "\n---\n") {
				u := &unstructured.Unstructured{}
				if err := yaml.UnmarshalStrict([]byte(doc), &u.Object); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				if u.GetAPIVersion() != "tributary.dev/v1alpha1" {
					continue
				}
				seen++
				u.SetNamespace(ns)
				u.SetName(fmt.Sprintf("%s-%d", u.GetName(), seen)) // two folders may use one name
				want := jsonOf(t, u.Object["spec"])
				if err := cl.Create(t.Context(), u); err != nil {
					t.Errorf("%s: %v", file, err)
					continue
				}
				if err := cl.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want, jsonOf(t, u.Object["spec"])); d != "" {
					t.Errorf("%s: %s", file, d)
				}
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d resources in the samples", seen)
	}
}
