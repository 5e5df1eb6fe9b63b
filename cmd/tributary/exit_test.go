package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const node = "apiVersion: tributary.dev/v1alpha1\nkind: ReplicationNode\nmetadata: {name: n}\nspec:\n  sources:\n  - name: s\n    ref: {kind: PostgresSource, name: gone}\n"
	faulty, nothing := write("faulty.yaml", node), write("nothing.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")
	for name, c := range map[string]struct {
		code int
		args []string
	}{
		"help":                  {0, []string{"--help"}},
		"version":               {0, []string{"--version"}},
		"unknown command":       {2, []string{"nope"}},
		"unknown command below": {2, []string{"archive", "ls"}},
		"unknown flag":          {2, []string{"validate", "--nope"}},
		"missing flag":          {2, []string{"validate"}},
		"an argument too many":  {2, []string{"validate", "-f", nothing, "x"}},
		"seen later":            {2, []string{"archive", "cat", dir, "--format", "xml"}},
		"faults":                {3, []string{"validate", "-f", faulty}},
		"the examples":          {0, []string{"validate", "-f", "../../examples/"}},
		"the samples":           {0, []string{"validate", "-f", "../../config/samples"}},
		"nothing to validate":   {1, []string{"validate", "-f", nothing}},
		"no file":               {1, []string{"validate", "-f", filepath.Join(dir, "none")}},
		"no archive":            {1, []string{"archive", "verify", dir}},
		"no run":                {1, []string{"tree", "--run", filepath.Join(dir, "none")}},
	} {
		out, errs, code := said(t, c.args...)
		if code != c.code {
			t.Errorf("%s: %d, want %d: %s%s", name, code, c.code, out, errs)
		}
	}
}
