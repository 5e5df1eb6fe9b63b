package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// Location is a place in a file.
type Location struct {
	File string
	Line int
}

func (l Location) String() string {
	if l.Line == 0 {
		return l.File
	}
	return fmt.Sprintf("%s:%d", l.File, l.Line)
}

// ManifestError is a fault of a file, at a place in it.
type ManifestError struct {
	Location
	Message string
}

func (e *ManifestError) Error() string { return e.Location.String() + ": " + e.Message }

// Object names a resource of a manifest.
type Object struct {
	Kind string
	Key
}

func (o Object) String() string { return o.Kind + " " + o.Key.String() }

// Manifests are the resources of this API found in files, and where.
type Manifests struct {
	Nodes           []v1alpha1.ReplicationNode
	PostgresSources []v1alpha1.PostgresSource
	FanoutSources   []v1alpha1.FanoutSource
	ArchiveSources  []v1alpha1.ArchiveSource
	Exports         []v1alpha1.ArchiveExport
	Meshes          []v1alpha1.ReplicationMesh
	Trees           []v1alpha1.RelayTree
	Where           map[Object]Location
}

// Inputs are the manifests as inputs of a plan; Secrets are not checked, since
// files seldom hold them.
func (m *Manifests) Inputs() Inputs {
	return Inputs{
		Nodes: m.AllNodes(), Trees: m.Trees, PostgresSources: m.PostgresSources, FanoutSources: m.FanoutSources,
		ArchiveSources: m.ArchiveSources, Exports: m.Exports, Meshes: m.Meshes,
	}
}

// AllNodes are the nodes of the manifests, and those that their trees are to have, which
// stand where the tree does.
func (m *Manifests) AllNodes() []v1alpha1.ReplicationNode {
	out := slices.Clone(m.Nodes)
	there := map[Key]bool{}
	for i := range m.Nodes {
		there[keyOf(&m.Nodes[i])] = true
	}
	for i := range m.Trees {
		t := &m.Trees[i]
		if len(checkTree(t)) > 0 {
			continue
		}
		for _, n := range TreeNodes(t) {
			if k := keyOf(&n); !there[k] {
				m.Where[Object{"ReplicationNode", k}] = m.Where[Object{"RelayTree", keyOf(t)}]
				out = append(out, n)
			}
		}
	}
	return out
}

// DefaultNamespace is that of resources that name none.
const DefaultNamespace = "default"

// LoadManifests reads the resources of this API from YAML or JSON files, and
// from the .yaml, .yml and .json files of directories and below. Resources of
// other kinds are left out. All faults are reported at once, as ManifestErrors;
// what could be read is returned with them.
func LoadManifests(paths []string) (*Manifests, error) {
	m := &Manifests{Where: map[Object]Location{}}
	var errs []error
	for _, path := range paths {
		files, err := manifestFiles(path)
		errs = append(errs, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, m.read(file, data)...)
		}
	}
	return m, errors.Join(errs...)
}

func manifestFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(p)) {
			files = append(files, p)
		}
		return err
	})
	sort.Strings(files)
	return files, err
}

func (m *Manifests) read(file string, data []byte) (errs []error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return errs
		}
		if err != nil {
			return append(errs, syntaxError(file, err))
		}
		if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
			errs = append(errs, m.object(file, doc.Content[0])...)
		}
	}
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): (.*)$`)

func syntaxError(file string, err error) error {
	e := &ManifestError{Location{File: file}, err.Error()}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		e.Message = "is not YAML: " + m[2]
	}
	return e
}

func (m *Manifests) object(file string, n *yaml.Node) (errs []error) {
	at := Location{file, n.Line}
	if n.Kind != yaml.MappingNode {
		return nil // nothing of ours, an empty document for instance
	}
	if items := child(n, "items"); items != nil && strings.HasSuffix(scalar(n, "kind"), "List") {
		for _, item := range items.Content {
			errs = append(errs, m.object(file, item)...)
		}
		return errs
	}
	group, version, ok := strings.Cut(scalar(n, "apiVersion"), "/")
	if !ok || group != v1alpha1.GroupVersion.Group {
		return nil
	}
	if version != v1alpha1.GroupVersion.Version {
		return []error{&ManifestError{at, fmt.Sprintf("apiVersion is %s/%s: this program knows %s", group, version, v1alpha1.GroupVersion)}}
	}
	switch kind := scalar(n, "kind"); kind {
	case "ReplicationNode":
		return decodeInto(m, at, n, &m.Nodes)
	case "PostgresSource":
		return decodeInto(m, at, n, &m.PostgresSources)
	case "FanoutSource":
		return decodeInto(m, at, n, &m.FanoutSources)
	case "ArchiveSource":
		return decodeInto(m, at, n, &m.ArchiveSources)
	case "ArchiveExport":
		return decodeInto(m, at, n, &m.Exports)
	case "ReplicationMesh":
		return decodeInto(m, at, n, &m.Meshes)
	case "RelayTree":
		return decodeInto(m, at, n, &m.Trees)
	default:
		return []error{&ManifestError{at, fmt.Sprintf("kind is %s: this program knows ReplicationNode, PostgresSource, FanoutSource, ArchiveSource, ArchiveExport, ReplicationMesh and RelayTree", kind)}}
	}
}

func decodeInto[T any, P interface {
	*T
	metav1.Object
}](m *Manifests, at Location, n *yaml.Node, into *[]T) (errs []error) {
	fail := func(line int, format string, args ...any) {
		errs = append(errs, &ManifestError{Location{at.File, line}, fmt.Sprintf(format, args...)})
	}
	var plain any
	if err := n.Decode(&plain); err != nil {
		fail(at.Line, "cannot be read: %v", err)
		return errs
	}
	data, err := json.Marshal(plain)
	if err != nil {
		fail(at.Line, "cannot be read: %v", err)
		return errs
	}
	var v T
	strict, err := kjson.UnmarshalStrict(data, &v)
	if err != nil {
		fail(lineOf(n, err.Error(), at.Line), "%v", err)
		return errs
	}
	for _, err := range strict {
		fail(lineOf(n, err.Error(), at.Line), "%v", err)
	}
	slices.SortStableFunc(errs, func(a, b error) int { return a.(*ManifestError).Line - b.(*ManifestError).Line }) //nolint:errorlint // all of them are made here
	o := P(&v)
	if o.GetNamespace() == "" {
		o.SetNamespace(DefaultNamespace)
	}
	if o.GetName() == "" {
		fail(at.Line, "metadata.name is missing")
		return errs
	}
	id := Object{scalar(n, "kind"), keyOf(o)}
	if first, ok := m.Where[id]; ok {
		fail(at.Line, "%s is also at %s: keep one of them", id, first)
		return errs
	}
	m.Where[id] = at
	*into = append(*into, v)
	return errs
}

var fieldPath = regexp.MustCompile(`"([A-Za-z]+(?:[.\[][^"]*)?)"|struct field [A-Za-z]+\.([A-Za-z.]+) of type`)

// lineOf finds the line of the field that a message names in quotes; otherwise
// the line of the object.
func lineOf(n *yaml.Node, message string, otherwise int) int {
	match := fieldPath.FindStringSubmatch(message)
	if match == nil {
		return otherwise
	}
	line := otherwise
	path := match[1] + match[2]
	for _, part := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		if i, err := strconv.Atoi(part); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			n = n.Content[i]
			line = n.Line
			continue
		}
		k, v := entry(n, part)
		if k == nil {
			break
		}
		n, line = v, k.Line
	}
	return line
}

func entry(n *yaml.Node, key string) (k, v *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return n.Content[i], n.Content[i+1]
			}
		}
	}
	return nil, nil
}

func child(n *yaml.Node, key string) *yaml.Node {
	_, v := entry(n, key)
	return v
}

func scalar(n *yaml.Node, key string) string {
	if v := child(n, key); v != nil && v.Kind == yaml.ScalarNode {
		return v.Value
	}
	return ""
}

// Finding is something that a plan says about a resource.
type Finding struct {
	Location
	Object
	Condition
	// Warning: worth knowing, and no reason to refuse.
	Warning bool
}

func (f Finding) String() string {
	level := "error"
	if f.Warning {
		level = "warning"
	}
	return fmt.Sprintf("%s: %s: %s: %s: %s", f.Location, level, f.Object, f.Reason, f.Message)
}

// warnings are the reasons of conditions that hold and are worth knowing all the same.
var warnings = []string{v1alpha1.ReasonConditionalLoop, v1alpha1.ReasonKeyPrefixUnwritten, v1alpha1.ReasonComparatorMismatch}

// Findings lists what is wrong with a plan, in the order of files and lines.
func (m *Manifests) Findings(p Plan) []Finding {
	var out []Finding
	add := func(kind string, k Key, conditions []Condition) {
		id := Object{kind, k}
		for _, c := range conditions {
			warning := slices.Contains(warnings, c.Reason)
			if c.Status == metav1.ConditionFalse || warning {
				out = append(out, Finding{m.Where[id], id, c, warning})
			}
		}
	}
	for _, k := range sortedKeys(p.Nodes) {
		add("ReplicationNode", k, p.Nodes[k].Conditions)
	}
	for _, k := range sortedKeys(p.PostgresSources) {
		add("PostgresSource", k, p.PostgresSources[k].Conditions)
	}
	for _, k := range sortedKeys(p.FanoutSources) {
		add("FanoutSource", k, p.FanoutSources[k].Conditions)
	}
	for _, k := range sortedKeys(p.ArchiveSources) {
		add("ArchiveSource", k, p.ArchiveSources[k].Conditions)
	}
	for _, k := range sortedKeys(p.Exports) {
		add("ArchiveExport", k, p.Exports[k].Conditions)
	}
	for _, k := range sortedKeys(p.Meshes) {
		add("ReplicationMesh", k, p.Meshes[k].Conditions)
	}
	for _, k := range sortedKeys(p.Trees) {
		add("RelayTree", k, p.Trees[k].Conditions)
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return strings.Compare(fmt.Sprintf("%s:%09d", a.File, a.Line), fmt.Sprintf("%s:%09d", b.File, b.Line))
	})
	return out
}
