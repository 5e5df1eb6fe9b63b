package nodeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const maxFile = 1 << 20

// Size is a number of bytes. In YAML it is a whole number with or without one
// of the suffixes Ki, Mi, Gi and Ti.
type Size int64

// MarshalYAML writes the shortest form that loses nothing.
func (s Size) MarshalYAML() (any, error) {
	for _, u := range []struct {
		suffix string
		shift  uint
	}{{"Ti", 40}, {"Gi", 30}, {"Mi", 20}, {"Ki", 10}} {
		if s != 0 && s%(1<<u.shift) == 0 {
			return strconv.FormatInt(int64(s>>u.shift), 10) + u.suffix, nil
		}
	}
	return int64(s), nil
}

func parseSize(text string) (Size, bool) {
	shift := 0
	for i, suffix := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			text, shift = n, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, false
	}
	return Size(n << shift), true
}

var (
	typeDuration = reflect.TypeFor[time.Duration]()
	typeSize     = reflect.TypeFor[Size]()
	yamlLine     = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
)

// decode reads data strictly into v, a pointer to a struct, and collects what
// is wrong and at which lines the fields stand.
func decode(file string, data []byte, v any) *problems {
	p := &problems{file: file, lines: map[string]int{}}
	if len(data) > maxFile {
		p.at("", fmt.Sprintf("is larger than %d bytes", maxFile), "this is not a configuration file of a node")
		return p
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		p.syntax(err)
		return p
	}
	if doc.Kind == 0 {
		p.at("", "is empty", "write version: 1 and what the file is for")
		return p
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		p.list = append(p.list, &Problem{File: file, Line: more.Line, What: "a second document starts here", Mend: "keep one document in the file"})
	} else if !errors.Is(err, io.EOF) {
		p.syntax(err)
	}
	p.node(doc.Content[0], reflect.ValueOf(v).Elem(), "")
	return p
}

func (p *problems) syntax(err error) {
	q := &Problem{File: p.file, What: "is not YAML", Mend: err.Error()}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		q.Line, _ = strconv.Atoi(m[1])
		q.Mend = m[2]
	}
	p.list = append(p.list, q)
}

// node decodes n into v. It never panics, whatever n is.
func (p *problems) node(n *yaml.Node, v reflect.Value, path string) {
	p.lines[path] = n.Line
	if n.Kind == yaml.AliasNode {
		p.at(path, "is an alias", "write the value out: aliases are not supported")
		return
	}
	if n.Tag == "!!null" && v.Kind() != reflect.Pointer {
		return // as if it were not there; a check says so if it must be
	}
	switch v.Kind() {
	case reflect.Pointer:
		e := reflect.New(v.Type().Elem())
		p.node(n, e.Elem(), path)
		v.Set(e)
	case reflect.Struct:
		p.mapping(n, v, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			p.at(path, "must be a list", "put a dash before each item")
			return
		}
		for i, item := range n.Content {
			e := reflect.New(v.Type().Elem()).Elem()
			p.node(item, e, fmt.Sprintf("%s[%d]", path, i))
			v.Set(reflect.Append(v, e))
		}
	default:
		if n.Kind != yaml.ScalarNode {
			p.at(path, "must be a single value", "it is a list or a mapping here")
			return
		}
		p.scalar(n, v, path)
	}
}

func (p *problems) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		p.at(path, "must be a mapping", "write its fields as name: value, indented under it")
		return
	}
	fields := map[string][]int{} // those of an embedded struct are its own
	for _, f := range reflect.VisibleFields(v.Type()) {
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); !f.Anonymous {
			fields[name] = f.Index
		}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := key.Value
		if path != "" {
			at = path + "." + key.Value
		}
		f, ok := fields[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			p.lines[at] = key.Line
			p.at(at, "is not a field that is known here", "the fields are "+list(fields))
		case seen[key.Value]:
			p.list = append(p.list, &Problem{File: p.file, Line: key.Line, Path: at, What: "is given twice", Mend: "keep one of them"})
		default:
			seen[key.Value] = true
			p.node(value, v.FieldByIndex(f), at)
			p.lines[at] = key.Line
		}
	}
}

func list(fields map[string][]int) string {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return slices.Compare(fields[a], fields[b]) })
	return strings.Join(names, ", ")
}

func (p *problems) scalar(n *yaml.Node, v reflect.Value, path string) {
	got := fmt.Sprintf("must not be %q", n.Value)
	switch {
	case v.Type() == typeDuration:
		d, err := time.ParseDuration(n.Value)
		if err != nil {
			p.at(path, got, "write a duration with its unit, such as 500ms or 20s")
			return
		}
		v.SetInt(int64(d))
	case v.Type() == typeSize:
		s, ok := parseSize(n.Value)
		if !ok {
			p.at(path, got, "write a number of bytes, such as 1048576 or 256Mi")
			return
		}
		v.SetInt(int64(s))
	case v.Kind() == reflect.String:
		if n.Tag != "!!str" {
			p.at(path, got, "it is text: put it in quotes")
			return
		}
		v.SetString(n.Value)
	case v.Kind() == reflect.Bool:
		if n.Tag != "!!bool" || n.Decode(v.Addr().Interface()) != nil {
			p.at(path, got, "write true or false")
		}
	case v.Kind() == reflect.Float64:
		if n.Tag != "!!int" && n.Tag != "!!float" || n.Decode(v.Addr().Interface()) != nil {
			p.at(path, got, "write a number, such as 0.5")
		}
	default: // whole numbers
		if n.Tag != "!!int" || n.Decode(v.Addr().Interface()) != nil {
			p.at(path, got, "write a whole number")
		}
	}
}
