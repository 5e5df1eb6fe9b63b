// Package arrows holds the direction of imports: cmd → controllers | pkg/* →
// pkg/engine. The package map is in docs/design/packages.md.
package arrows

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/tributary-dev/tributary/"

// forbidden lists, for packages by prefix, what they must not import, directly
// or by way of others. Prefixes of the module's own packages have no module
// path but "./"; allowed are exceptions.
var forbidden = []struct {
	from    string
	imports []string
	allowed []string
	why     string
}{
	{"./pkg/engine", []string{"./pkg/", "./internal/", "./controllers", "./api/", "./cmd/"}, []string{"./pkg/engine"},
		"the engine knows none of its siblings"},
	{"./pkg/", []string{"k8s.io/", "sigs.k8s.io/", "./controllers", "./api/", "./cmd/"}, nil,
		"the data path has nothing to do with Kubernetes"},
	{"./pkg/", []string{"./internal/"}, []string{"./internal/testpg", "./internal/tests3", "./internal/version"},
		"./pkg/ can be used by others alone"},
	{"./internal/node", []string{"k8s.io/", "sigs.k8s.io/", "./controllers", "./api/"}, nil,
		"a node runs without Kubernetes"},
	{"./cmd/node", []string{"k8s.io/", "sigs.k8s.io/", "./controllers", "./api/"}, nil,
		"a node runs without Kubernetes"},
	{"./controllers", []string{"./pkg/", "./internal/", "./cmd/"}, []string{"./pkg/nodeconfig"},
		"./controllers know nodes by their configuration and status alone"},
	{"./controllers/topology", []string{"sigs.k8s.io/controller-runtime/pkg/client", "sigs.k8s.io/controller-runtime/pkg/manager", "sigs.k8s.io/controller-runtime/pkg/cache", "k8s.io/client-go/kubernetes/typed", "k8s.io/client-go/informers"}, nil,
		"the planner is pure"},
	{"./controllers/workload", []string{"sigs.k8s.io/controller-runtime/pkg/client", "sigs.k8s.io/controller-runtime/pkg/manager", "sigs.k8s.io/controller-runtime/pkg/cache", "k8s.io/client-go/kubernetes/typed", "k8s.io/client-go/informers"}, nil,
		"building objects is pure"},
	{"./api/", []string{"./pkg/", "./internal/", "./controllers", "./cmd/"}, nil,
		"the API types stand alone"},
}

func TestArrows(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps=false", "-json=ImportPath,Deps", module+"...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	checked := map[string]bool{}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		from := own(p.ImportPath)
		for _, rule := range forbidden {
			if !within(from, rule.from) {
				continue
			}
			checked[rule.from] = true
			for _, d := range p.Deps {
				to := own(d)
				if withinAny(to, rule.imports) && !withinAny(to, rule.allowed) {
					t.Errorf("%s must not depend on %s: %s", from, to, rule.why)
				}
			}
		}
	}
	for _, rule := range forbidden {
		if !checked[rule.from] {
			t.Errorf("no package under %s was found: the rule checks nothing", rule.from)
		}
	}
}

// own marks the module's own packages, which stand under names that the
// standard library has too.
func own(path string) string {
	if rest, ok := strings.CutPrefix(path, module); ok {
		return "./" + rest
	}
	return path
}

func within(path, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func withinAny(path string, prefixes []string) bool {
	for _, p := range prefixes {
		if within(path, p) {
			return true
		}
	}
	return false
}
