// Command apidocs writes docs/resources.md from the resource definitions, so
// that the page says what the API server enforces.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: apidocs CRD-DIR OUT.md")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "apidocs:", err)
		os.Exit(1)
	}
}

func run(dir, out string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no definitions in %s: %w", dir, err)
	}
	var b strings.Builder
	b.WriteString("<!-- Made by hack/apidocs from config/crd/bases. Change the types in api/, then run: make generate -->\n\n# Resources\n\n" +
		"API group `tributary.dev`, version `v1alpha1`. All kinds are namespaced; `kubectl get tributary` lists them all.\n" +
		"`kubectl explain KIND.spec` says the same in a terminal.\n")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		var crd apiext.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		kind(&b, &crd)
	}
	return os.WriteFile(out, []byte(b.String()), 0o644)
}

func kind(w io.Writer, crd *apiext.CustomResourceDefinition) {
	s := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	fmt.Fprintf(w, "\n## %s\n\n%s\n", crd.Spec.Names.Kind, strings.TrimSpace(s.Description))
	if len(crd.Spec.Names.ShortNames) > 0 {
		fmt.Fprintf(w, "\nShort name: `%s`.\n", strings.Join(crd.Spec.Names.ShortNames, "`, `"))
	}
	for _, part := range []string{"spec", "status"} {
		p := s.Properties[part]
		fmt.Fprintf(w, "\n### %s.%s\n\n| field | type | |\n|---|---|---|\n", crd.Spec.Names.Kind, part)
		fields(w, "", &p)
		if rules := sentences(&p); part == "spec" && len(rules) > 0 {
			fmt.Fprintf(w, "\nRules:\n\n")
			for _, r := range rules {
				fmt.Fprintf(w, "- %s\n", r)
			}
		}
	}
}

// fields writes a row for each field, those below it after it.
func fields(w io.Writer, prefix string, s *apiext.JSONSchemaProps) {
	names := make([]string, 0, len(s.Properties))
	for n := range s.Properties {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		p := s.Properties[n]
		must := ""
		if slices.Contains(s.Required, n) {
			must = " **required**"
		}
		fmt.Fprintf(w, "| `%s` | %s%s | %s |\n", prefix+n, typeOf(&p), must, cell(p.Description))
		switch {
		case isKubernetes(n):
		case p.Items != nil && p.Items.Schema != nil && len(p.Items.Schema.Properties) > 0:
			fields(w, prefix+n+"[].", p.Items.Schema)
		case len(p.Properties) > 0:
			fields(w, prefix+n+".", &p)
		}
	}
}

// isKubernetes: fields whose insides are Kubernetes' own, and documented there.
func isKubernetes(name string) bool {
	return slices.Contains([]string{"affinity", "tolerations", "resources", "conditions", "selector", "imagePullSecrets"}, name)
}

func typeOf(s *apiext.JSONSchemaProps) string {
	switch {
	case s.XIntOrString:
		return "quantity"
	case len(s.Enum) > 0:
		var v []string
		for _, e := range s.Enum {
			v = append(v, "`"+strings.Trim(string(e.Raw), `"`)+"`")
		}
		return strings.Join(v, " or ")
	case s.Type == "array" && s.Items != nil:
		return "list of " + typeOf(s.Items.Schema)
	case s.Type == "object" && s.AdditionalProperties != nil:
		return "map of " + typeOf(s.AdditionalProperties.Schema)
	case s.Format == "date-time":
		return "time"
	}
	return s.Type
}

func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// sentences collects the messages of the validation rules.
func sentences(s *apiext.JSONSchemaProps) (out []string) {
	for _, r := range s.XValidations {
		if r.Message != "" && !slices.Contains(out, r.Message) {
			out = append(out, r.Message)
		}
	}
	names := make([]string, 0, len(s.Properties))
	for n := range s.Properties {
		names = append(names, n)
	}
	slices.Sort(names)
	add := func(more []string) {
		for _, m := range more {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	for _, n := range names {
		p := s.Properties[n]
		add(sentences(&p))
		if p.Items != nil && p.Items.Schema != nil {
			add(sentences(p.Items.Schema))
		}
	}
	return out
}
