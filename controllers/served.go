package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// servedPatience is how long the API has to serve what was installed just now.
const servedPatience = 15 * time.Second

// mendServed says how CustomResourceDefinitions that are missing or too old are mended.
const mendServed = "Install this version's, then start the manager again: helm upgrade with crds.install=true, or kubectl apply --server-side -k config/crd. (Newer ones than the manager's do no harm.)"

// CheckServed gives an error that says what to do if the API serves a kind not at all, or
// without a field that this manager knows, as when the manager was upgraded and the
// CustomResourceDefinitions were not: the API drops such a field without a word. What is
// served beyond that does no harm. Every user may read what this asks for.
func CheckServed(ctx context.Context, cfg *rest.Config) error {
	c, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	for end := time.Now().Add(servedPatience); ; {
		doc, err := c.RESTClient().Get().AbsPath("/openapi/v3/apis/"+v1alpha1.GroupVersion.String()).SetHeader("Accept", "application/json").Do(ctx).Raw()
		if apierrors.IsNotFound(err) { // not one kind
			doc, err = []byte("{}"), nil
		}
		if err != nil {
			return fmt.Errorf("cannot ask the API which fields of %s it serves: %w", v1alpha1.GroupVersion, err)
		}
		err = missing(doc, scheme)
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// servedSchema is what is needed of an OpenAPI schema.
type servedSchema struct {
	Properties map[string]*servedSchema
	Items      *servedSchema
	Values     json.RawMessage                         `json:"additionalProperties"` // a schema, or a boolean
	Preserves  bool                                    `json:"x-kubernetes-preserve-unknown-fields"`
	Kinds      []struct{ Group, Version, Kind string } `json:"x-kubernetes-group-version-kind"`
}

// missing compares an OpenAPI document of the API with the types of a scheme.
func missing(doc []byte, scheme *runtime.Scheme) error {
	var served struct {
		Components struct{ Schemas map[string]*servedSchema }
	}
	if err := json.Unmarshal(doc, &served); err != nil {
		return fmt.Errorf("what the API says that it serves cannot be read: %w", err)
	}
	kinds := map[string]*servedSchema{}
	for _, s := range served.Components.Schemas {
		for _, k := range s.Kinds {
			if k.Group == v1alpha1.GroupVersion.Group && k.Version == v1alpha1.GroupVersion.Version {
				kinds[k.Kind] = s
			}
		}
	}
	var faults []string
	for kind, t := range scheme.KnownTypes(v1alpha1.GroupVersion) {
		if _, ok := t.FieldByName("Spec"); !ok {
			continue // a list, or the options of a request
		}
		s := kinds[kind]
		if s == nil {
			faults = append(faults, fmt.Sprintf("the CustomResourceDefinition of %s is missing", kind))
			continue
		}
		var lacks []string
		for _, part := range []string{"Spec", "Status"} {
			if f, ok := t.FieldByName(part); ok {
				name := strings.ToLower(part)
				lacks = append(lacks, s.Properties[name].lacks(f.Type, name)...)
			}
		}
		if len(lacks) > 0 {
			faults = append(faults, fmt.Sprintf("the CustomResourceDefinition of %s lacks %s", kind, listed(lacks)))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.Sort(faults)
	return fmt.Errorf("what the API serves of %s is older than this manager needs: %s. %s", v1alpha1.GroupVersion, strings.Join(faults, "; "), mendServed)
}

// lacks lists the fields of a type that a schema does not have; path is where it stands.
func (s *servedSchema) lacks(t reflect.Type, path string) (out []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case s == nil:
		return []string{path}
	case s.Preserves, reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()): // a value with a form of its own
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous && name == "":
				out = append(out, s.lacks(f.Type, path)...)
			case f.IsExported() && name != "-":
				out = append(out, s.Properties[name].lacks(f.Type, path+"."+name)...)
			}
		}
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			return s.Items.lacks(t.Elem(), path)
		}
	case reflect.Map:
		values := &servedSchema{}
		if json.Unmarshal(s.Values, values) == nil {
			return values.lacks(t.Elem(), path)
		}
	}
	return out
}
