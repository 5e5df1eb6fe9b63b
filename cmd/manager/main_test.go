package main

import "testing"

func TestExitCodes(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, c := range map[string]struct {
		code int
		args []string
	}{
		"help":            {0, []string{"--help"}},
		"version":         {0, []string{"--version"}},
		"unknown flag":    {2, []string{"--nope"}},
		"no image":        {2, nil},
		"argument":        {2, []string{"--node-image", "i", "x"}},
		"log level":       {2, []string{"--node-image", "i", "--log-level", "loud"}},
		"there is no API": {1, []string{"--node-image", "i"}},
	} {
		if code := exitCode(run(c.args)); code != c.code {
			t.Errorf("%s: %d, want %d", name, code, c.code)
		}
	}
}
