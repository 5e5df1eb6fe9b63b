package controllers_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tributary-dev/tributary/controllers"
)

// K10: the manager does not run on a schema older than its own, and says what is missing
// and how to mend it; newer does no harm. (What the API says it serves is changed on its
// way, since all tests share the definitions.)
func TestCaseK10(t *testing.T) {
	if skip != "" {
		t.Skip(skip)
	}
	type object = map[string]any
	// at returns what stands at a path of the schema of a kind.
	at := func(schemas object, kind string, path ...string) object {
		for name, s := range schemas {
			if strings.HasSuffix(name, "."+kind) {
				here := s.(object)
				for _, p := range path {
					here = here[p].(object)
				}
				return here
			}
		}
		t.Fatalf("no %s among %d schemas", kind, len(schemas))
		return nil
	}
	var asked atomic.Int32
	for name, c := range map[string]struct {
		change func(schemas object)
		want   []string // of the error; none if there is to be none
	}{
		"as installed": {func(object) {}, nil},
		"newer": {func(s object) {
			at(s, "ReplicationNode", "properties", "spec", "properties")["tomorrow"] = object{"type": "string"}
		}, nil},
		"a field of a list's items": {func(s object) {
			delete(at(s, "FanoutSource", "properties", "spec", "properties", "upstreams", "items", "properties"), "nodeRef")
		}, []string{"the CustomResourceDefinition of FanoutSource lacks spec.upstreams.nodeRef. ", "kubectl apply --server-side -k config/crd"}},
		"a field of status": {func(s object) {
			delete(at(s, "RelayTree", "properties", "status", "properties"), "overlaps")
		}, []string{"the CustomResourceDefinition of RelayTree lacks status.overlaps. "}},
		"several": {func(s object) {
			clear(at(s, "ReplicationMesh", "properties", "status", "properties"))
			delete(at(s, "PostgresSource", "properties"), "status")
		}, []string{"of PostgresSource lacks status; the CustomResourceDefinition of ReplicationMesh lacks status.observedGeneration, ", " more. "}},
		"a kind": {func(s object) {
			for name := range s {
				if strings.HasSuffix(name, ".ArchiveExport") {
					delete(s, name)
				}
			}
		}, []string{"the CustomResourceDefinition of ArchiveExport is missing. "}},
		"everything": {nil, []string{"the CustomResourceDefinition of ReplicationNode is missing. "}},
		"in a moment": {func(s object) {
			if asked.Add(1) == 1 {
				delete(at(s, "RelayTree", "properties", "spec", "properties"), "leaves")
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := rest.CopyConfig(restCfg)
			cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					resp, err := next.RoundTrip(r)
					if err != nil || !strings.HasPrefix(r.URL.Path, "/openapi/v3/apis/tributary.dev/") {
						return resp, err
					}
					if c.change == nil {
						resp.StatusCode, resp.Status = http.StatusNotFound, "404 Not Found"
						return resp, nil
					}
					defer resp.Body.Close()
					var doc object
					if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
						return nil, err
					}
					c.change(doc["components"].(object)["schemas"].(object))
					text, err := json.Marshal(doc)
					resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
					return resp, err
				})
			})
			err := controllers.CheckServed(t.Context(), cfg)
			if len(c.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		})
	}
}
