package nodeconfig

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// hoconFile reports whether a file is HOCON by its name.
func hoconFile(file string) bool {
	switch filepath.Ext(file) {
	case ".conf", ".hocon":
		return true
	}
	return false
}

// decodeHOCON reads a configuration in HOCON. Its fields are those of the YAML file,
// with underscores or without. Beside them it may have
//
//	sources    as an object by name, each with its kind as type: postgresql, fanout,
//	           ingest, mesh, archive, or file for an archive in a folder, its path
//	tables     a list of source, schema and table, which each source takes, with
//	           targets: replication-fanout, its journal and its archive
//	format     one or a list, for formats of an archive; jsonl when it is left out
//	version    which may be left out
//
// A journal's max_entries count for hoconEntryBytes each, summed up over the tables,
// as the node has one journal, which is bounded by bytes. Of its max_age, the largest is
// how long the journal of a store on disk waits for a reader that says nothing; one in
// memory waits for nobody.
func decodeHOCON(file string, data []byte, c *Config) *problems {
	p := &problems{file: file, lines: map[string]int{}}
	if len(data) > maxFile {
		p.at("", fmt.Sprintf("is larger than %d bytes", maxFile), "this is not a configuration file of a node")
		return p
	}
	root, err := parseHOCON(string(data))
	if err != nil {
		p.list = append(p.list, &Problem{File: file, Line: err.line, What: err.what, Mend: err.mend})
		return p
	}
	t := &hoconConfig{p: p, root: root}
	t.translate()
	if len(p.list) == 0 {
		p.node(root, reflect.ValueOf(c).Elem(), "")
	}
	return p
}

// hoconEntryBytes is what an entry of a journal is taken to need.
const hoconEntryBytes = 256

type hoconConfig struct {
	p       *problems
	root    *yaml.Node
	journal int64         // bytes
	age     time.Duration // of the journal
}

func (t *hoconConfig) fail(n *yaml.Node, path, what, mend string) {
	t.p.list = append(t.p.list, &Problem{File: t.p.file, Line: n.Line, Path: path, What: what, Mend: mend})
}

func (t *hoconConfig) translate() {
	t.sources()
	t.tables()
	rename(t.root)
	if get(t.root, "version") == nil {
		set(t.root, "version", scalarNode(strconv.Itoa(Version), true, t.root.Line))
	}
	if t.journal > 0 {
		j := ensure(ensure(t.root, "storage"), "journal")
		if get(j, "maxBytes") == nil {
			set(j, "maxBytes", scalarNode(strconv.FormatInt(max(t.journal, 1<<20), 10), true, j.Line))
		}
	}
	if store := get(t.root, "storage"); t.age > 0 && store != nil && get(store, "type") != nil && get(store, "type").Value == StoragePebble {
		j := ensure(store, "journal")
		if get(j, "readerRetention") == nil {
			set(j, "readerRetention", scalarNode(t.age.String(), false, j.Line))
		}
	}
}

// sources makes a list of the object, and puts what each has under its kind.
func (t *hoconConfig) sources() {
	all := get(t.root, "sources")
	if all == nil {
		return
	}
	if all.Kind == yaml.MappingNode {
		list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: all.Line}
		for i := 0; i < len(all.Content); i += 2 {
			name, s := all.Content[i], all.Content[i+1]
			if s.Kind != yaml.MappingNode {
				t.fail(name, "sources."+name.Value, "must be an object", "write { type = ... } with what the source is")
				continue
			}
			if get(s, "name") == nil {
				set(s, "name", scalarNode(name.Value, false, name.Line))
			}
			list.Content = append(list.Content, s)
		}
		*all = *list
	}
	if all.Kind != yaml.SequenceNode {
		return // as the decoder says
	}
	for i, s := range all.Content {
		if s.Kind == yaml.MappingNode {
			t.source(s, fmt.Sprintf("sources[%d]", i))
		}
	}
}

var hoconKinds = map[string]string{
	"postgresql": "postgres", "postgres": "postgres", "fanout": "fanout", "ingest": "ingest", "mesh": "mesh", "archive": "archive", "file": "archive", "children": "children",
}

func (t *hoconConfig) source(s *yaml.Node, path string) {
	kindNode := take(s, "type")
	if kindNode == nil {
		return // its kind is a field, as in YAML
	}
	kind, ok := hoconKinds[kindNode.Value]
	if !ok {
		t.fail(kindNode, path+".type", fmt.Sprintf("must not be %q", kindNode.Value), "use postgresql, fanout, ingest, mesh, archive, children or file")
		return
	}
	name := take(s, "name")
	inner := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: s.Line, Content: s.Content}
	s.Content = nil
	if name != nil {
		set(s, "name", name)
	}
	set(s, kind, inner)
	if kind != "archive" {
		return
	}
	if kindNode.Value == "file" {
		if folder := take(inner, "path"); folder != nil {
			set(ensure(inner, "store_config"), "path", folder)
		}
		if store := get(inner, "store"); store == nil {
			set(inner, "store", scalarNode(StoreLocal, false, kindNode.Line))
		} else if store.Value != StoreLocal {
			t.fail(store, path+".store", fmt.Sprintf("must not be %q", store.Value), "a source of type file is in a folder; write type = archive for another store")
		}
	}
	t.formats(inner)
}

// formats makes the list of formats that the reader tries.
func (t *hoconConfig) formats(a *yaml.Node) {
	f := take(a, "format")
	switch {
	case get(a, "formats") != nil:
		if f != nil {
			t.fail(f, "format", "is set, and so is formats", "keep one of them")
		}
		return
	case f == nil:
		f = scalarNode("jsonl", false, a.Line)
	}
	if f.Kind == yaml.ScalarNode {
		f = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: f.Line, Content: []*yaml.Node{f}}
	}
	set(a, "formats", f)
}

// tables gives each table to its source, and its targets to the node.
func (t *hoconConfig) tables() {
	all := take(t.root, "tables")
	if all == nil {
		return
	}
	if all.Kind != yaml.SequenceNode {
		t.fail(all, "tables", "must be a list", "write [ { source = ..., schema = ..., table = ... } ]")
		return
	}
	for i, n := range all.Content {
		path := fmt.Sprintf("tables[%d]", i)
		if n.Kind != yaml.MappingNode {
			t.fail(n, path, "must be an object", "write { source = ..., schema = ..., table = ... }")
			continue
		}
		t.table(n, path)
	}
}

func (t *hoconConfig) table(n *yaml.Node, path string) {
	source, targets := take(n, "source"), take(n, "targets")
	if name := take(n, "table"); name != nil {
		set(n, "name", name)
	}
	name, schema := get(n, "name"), get(n, "schema")
	switch {
	case source == nil:
		t.fail(n, path+".source", "is missing", "name the source that the table comes from")
		return
	case schema == nil || name == nil:
		t.fail(n, path, "must have a schema and a table", "write schema = public and table = ...")
		return
	}
	s := t.named(source.Value)
	if s == nil {
		t.fail(source, path+".source", fmt.Sprintf("names %q, which is not among the sources", source.Value), "declare it under sources, or name one of those")
		return
	}
	for i := 1; i < len(s.Content); i += 2 {
		if kind := s.Content[i]; kind.Kind == yaml.MappingNode {
			list := get(kind, "tables")
			if list == nil {
				list = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: n.Line}
				set(kind, "tables", list)
			}
			list.Content = append(list.Content, n)
		}
	}
	if targets == nil {
		return
	}
	if targets.Kind != yaml.SequenceNode {
		t.fail(targets, path+".targets", "must be a list", "write [ { type = replication-fanout } ]")
		return
	}
	for i, target := range targets.Content {
		t.target(target, fmt.Sprintf("%s.targets[%d]", path, i), schema, name)
	}
}

// named finds a source.
func (t *hoconConfig) named(name string) *yaml.Node {
	all := get(t.root, "sources")
	if all == nil {
		return nil
	}
	for _, s := range all.Content {
		if s.Kind == yaml.MappingNode {
			if n := get(s, "name"); n != nil && n.Value == name {
				return s
			}
		}
	}
	return nil
}

// target is the fan-out of a table, which every node has.
func (t *hoconConfig) target(n *yaml.Node, path string, schema, name *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		t.fail(n, path, "must be an object", "write { type = replication-fanout }")
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		at := path + "." + key.Value
		switch key.Value {
		case "type":
			if v.Value != "replication-fanout" {
				t.fail(v, at, fmt.Sprintf("must not be %q", v.Value), "use replication-fanout; what else the node delivers to is declared under sinks")
			}
		case "journal":
			t.journalOf(v, at)
		case "archive":
			if v.Kind != yaml.MappingNode {
				t.fail(v, at, "must be an object", "write { store = local, store_config { path = ... }, key_prefix = ... }")
				continue
			}
			t.formats(v)
			table := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: n.Line}
			set(table, "schema", schema)
			set(table, "name", name)
			set(v, "tables", &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: v.Line, Content: []*yaml.Node{table}})
			list := get(t.root, "archives")
			if list == nil {
				list = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: v.Line}
				set(t.root, "archives", list)
			}
			list.Content = append(list.Content, v)
		default:
			t.fail(key, at, "is not a field that is known here", "the fields are type, journal, archive")
		}
	}
}

func (t *hoconConfig) journalOf(n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		t.fail(n, path, "must be an object", "write { max_entries = 100000 }")
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		at := path + "." + key.Value
		wrong := fmt.Sprintf("must not be %q", v.Value)
		switch key.Value {
		case "max_entries":
			if entries, err := strconv.ParseInt(v.Value, 10, 40); err != nil || entries < 1 {
				t.fail(v, at, wrong, "write how many entries are kept, such as 1000000")
			} else {
				t.journal += entries * hoconEntryBytes
			}
		case "max_bytes":
			if size, ok := parseSize(v.Value); !ok {
				t.fail(v, at, wrong, "write a number of bytes, such as 1048576 or 256Mi")
			} else {
				t.journal += int64(size)
			}
		case "max_age":
			if d, err := time.ParseDuration(v.Value); err != nil || d <= 0 {
				t.fail(v, at, wrong, "write a duration with its unit, such as 24h")
			} else {
				t.age = max(t.age, d)
			}
		default:
			t.fail(key, at, "is not a field that is known here", "the fields are max_entries, max_age, max_bytes")
		}
	}
}

func get(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func take(n *yaml.Node, key string) *yaml.Node {
	v := get(n, key)
	for i := 0; v != nil && i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			n.Content = append(n.Content[:i:i], n.Content[i+2:]...)
			break
		}
	}
	return v
}

func set(n *yaml.Node, key string, v *yaml.Node) {
	put(n, []string{key}, v, v.Line)
}

// ensure returns the object under a key, made if it is missing.
func ensure(n *yaml.Node, key string) *yaml.Node {
	v := get(n, key)
	if v == nil {
		v = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: n.Line}
		set(n, key, v)
	}
	return v
}

// rename gives keys the names that they have in YAML.
func rename(n *yaml.Node) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if name, ok := yamlNames[c.Value]; ok {
				c.Value = name
			}
			continue
		}
		rename(c)
	}
}

// underscored writes clientCAFile as client_ca_file.
func underscored(name string) string {
	var b strings.Builder
	upper := func(i int) bool { return i < len(name) && name[i] >= 'A' && name[i] <= 'Z' }
	for i := range len(name) {
		if upper(i) && (!upper(i-1) || i+1 < len(name) && !upper(i+1)) {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(name[i : i+1]))
	}
	return b.String()
}

// yamlNames are the names of all fields, by those with underscores.
var yamlNames = func() map[string]string {
	names, seen := map[string]string{}, map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || seen[t] {
			return
		}
		seen[t] = true
		for i := range t.NumField() {
			if name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); name != "" {
				names[underscored(name)] = name
			}
			walk(t.Field(i).Type)
		}
	}
	walk(reflect.TypeFor[Config]())
	return names
}()
