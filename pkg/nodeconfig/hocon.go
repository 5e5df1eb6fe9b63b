package nodeconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// hocon parses HOCON (github.com/lightbend/config/blob/main/HOCON.md) into the tree
// that YAML is parsed into, with its lines. It knows objects, lists, quoted and
// unquoted text, comments, paths as keys, and that an object given twice is merged.
// It does not know substitutions, includes, += and values put together of several
// objects or lists, and says so.
type hocon struct {
	text  string
	pos   int
	line  int
	depth int
}

const maxDepth = 64

// hoconError is a fault at a line.
type hoconError struct {
	line       int
	what, mend string
}

func (e *hoconError) Error() string { return e.what + ": " + e.mend }

func (h *hocon) fail(what, mend string) {
	panic(&hoconError{h.line, what, mend})
}

// parseHOCON returns the root object.
func parseHOCON(text string) (root *yaml.Node, err *hoconError) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*hoconError)
			if !ok {
				panic(r)
			}
			root, err = nil, e
		}
	}()
	h := &hocon{text: strings.TrimPrefix(text, "\ufeff"), line: 1}
	if i := strings.IndexFunc(h.text, func(r rune) bool { return r == utf8.RuneError || r == 0 }); i >= 0 {
		h.line += strings.Count(h.text[:i], "\n")
		h.fail("is not text in UTF-8", "save it as such")
	}
	h.space()
	if h.peek() == '{' {
		h.pos++
		root = h.object('}')
	} else {
		root = h.object(0)
	}
	h.space()
	if h.pos < len(h.text) {
		h.fail(fmt.Sprintf("must not go on with %q here", h.peek()), "the object at the root has ended")
	}
	return root, nil
}

func (h *hocon) peek() rune {
	if h.pos >= len(h.text) {
		return 0
	}
	r, _ := utf8.DecodeRuneInString(h.text[h.pos:])
	return r
}

func (h *hocon) at(s string) bool { return strings.HasPrefix(h.text[h.pos:], s) }

// space passes over space, ends of lines and comments, and reports whether a line
// has ended.
func (h *hocon) space() (newline bool) {
	for h.pos < len(h.text) {
		switch r := h.peek(); {
		case r == '\n':
			newline = true
			h.line++
			h.pos++
		case unicode.IsSpace(r) || r == '\ufeff':
			h.pos += utf8.RuneLen(r)
		case r == '#' || h.at("//"):
			if i := strings.IndexByte(h.text[h.pos:], '\n'); i >= 0 {
				h.pos += i
			} else {
				h.pos = len(h.text)
			}
		default:
			return newline
		}
	}
	return true
}

func (h *hocon) enter() {
	if h.depth++; h.depth > maxDepth {
		h.fail("is nested too deeply", fmt.Sprintf("%d levels are the limit", maxDepth))
	}
}

// object parses what is between braces, the first of which has been passed, or to
// the end of the text.
func (h *hocon) object(end rune) *yaml.Node {
	h.enter()
	defer func() { h.depth-- }()
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: h.line}
	for separated := true; ; {
		if h.space() {
			separated = true
		}
		switch {
		case h.peek() == end && (end != 0 || h.pos >= len(h.text)):
			if end != 0 {
				h.pos++
			}
			return n
		case h.pos >= len(h.text):
			h.fail("ends within an object", fmt.Sprintf("close the one that begins at line %d with }", n.Line))
		case !separated:
			h.fail(fmt.Sprintf("must not go on with %q here", h.peek()), "put a comma or the end of the line after each value")
		}
		line := h.line
		path := h.path()
		h.space()
		var v *yaml.Node
		switch {
		case h.peek() == '{':
			v = h.value()
		case h.at("+="):
			h.fail("+= is not supported", "write the list out")
		case h.peek() == '=' || h.peek() == ':':
			h.pos++
			h.space()
			v = h.value()
		default:
			h.fail(fmt.Sprintf("%q has no value", strings.Join(path, ".")), "write = and a value after it")
		}
		put(n, path, v, line)
		separated = h.space()
		if h.peek() == ',' {
			h.pos++
			separated = true
		}
	}
}

// put sets what is at a path; an object is merged into one that is there.
func put(n *yaml.Node, path []string, v *yaml.Node, line int) {
	if len(path) > 1 {
		inner := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: line}
		put(inner, path[1:], v, line)
		v = inner
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: path[0], Line: line}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value != path[0] {
			continue
		}
		if have := n.Content[i+1]; have.Kind == yaml.MappingNode && v.Kind == yaml.MappingNode {
			for j := 0; j < len(v.Content); j += 2 {
				put(have, []string{v.Content[j].Value}, v.Content[j+1], v.Content[j].Line)
			}
		} else {
			n.Content[i], n.Content[i+1] = key, v
		}
		return
	}
	n.Content = append(n.Content, key, v)
}

// path parses a key: names with dots between.
func (h *hocon) path() (path []string) {
	name, quoted := "", false
	end := func() {
		if name = strings.TrimSpace(name); name == "" && !quoted {
			h.fail("a key is empty", "write a name before the = or {")
		}
		path = append(path, name)
		name, quoted = "", false
	}
	for {
		switch r := h.peek(); {
		case r == '"':
			name, quoted = name+h.quoted(), true
		case r == '.':
			h.pos++
			end()
		case h.pos >= len(h.text) || r == '\n' || r == '=' || r == ':' || r == '{' || r == '+' || r == ',' || r == '}' || r == '#' || h.at("//"):
			end()
			return path
		case r == ' ' || r == '\t' || r == '\r':
			h.pos++
			if strings.TrimSpace(name) == "include" && h.peek() == '"' {
				h.fail("include is not supported", "write what it includes into this file")
			}
			name += string(r)
		case forbidden(r):
			h.fail(fmt.Sprintf("must not have %q in a key", r), "put the key in quotes")
		default:
			h.pos += utf8.RuneLen(r)
			name += string(r)
		}
	}
}

func forbidden(r rune) bool { return strings.ContainsRune("$\"{}[]:=,+#`^?!@*&\\", r) }

func (h *hocon) value() *yaml.Node {
	line := h.line
	switch {
	case h.peek() == '{':
		h.pos++
		return h.alone(h.object('}'))
	case h.peek() == '[':
		h.pos++
		return h.alone(h.list())
	}
	var text, space string
	parts, quoted := 0, false
	for {
		switch r := h.peek(); {
		case h.pos >= len(h.text) || r == '\n' || r == ',' || r == '}' || r == ']' || r == '#' || h.at("//"):
			if parts == 0 {
				h.fail("a value is missing", `write one, or "" for an empty one`)
			}
			return scalarNode(text, parts == 1 && !quoted, line)
		case r == '"':
			part := h.quoted()
			text, space = text+space+part, ""
			parts, quoted = parts+1, true
		case unicode.IsSpace(r):
			h.pos += utf8.RuneLen(r)
			if parts > 0 {
				space += string(r)
			}
		case h.at("${"):
			h.fail("substitutions such as ${name} are not supported", "write the value out")
		case forbidden(r):
			h.fail(fmt.Sprintf("must not have %q in a value without quotes", r), "put the value in quotes")
		default:
			start := h.pos
			for h.pos < len(h.text) && !unicode.IsSpace(h.peek()) && !forbidden(h.peek()) && !h.at("//") {
				h.pos += utf8.RuneLen(h.peek())
			}
			text, space = text+space+h.text[start:h.pos], ""
			parts++
		}
	}
}

// alone sees to it that nothing follows an object or a list on its line.
func (h *hocon) alone(n *yaml.Node) *yaml.Node {
	for h.peek() == ' ' || h.peek() == '\t' || h.peek() == '\r' {
		h.pos++
	}
	if r := h.peek(); h.pos < len(h.text) && !strings.ContainsRune("\n,}]#", r) && !h.at("//") {
		h.fail(fmt.Sprintf("must not go on with %q here", r), "put a comma or the end of the line after an object or a list")
	}
	return n
}

func (h *hocon) list() *yaml.Node {
	h.enter()
	defer func() { h.depth-- }()
	n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: h.line}
	for separated := true; ; {
		if h.space() {
			separated = true
		}
		switch {
		case h.pos >= len(h.text):
			h.fail("ends within a list", fmt.Sprintf("close the one that begins at line %d with ]", n.Line))
		case h.peek() == ']':
			h.pos++
			return n
		case !separated:
			h.fail(fmt.Sprintf("must not go on with %q here", h.peek()), "put a comma or the end of the line after each item")
		}
		n.Content = append(n.Content, h.value())
		separated = h.space()
		if h.peek() == ',' {
			h.pos++
			separated = true
		}
	}
}

// quoted parses text in quotes, or in three of them, where nothing is escaped.
func (h *hocon) quoted() string {
	if h.at(`"""`) {
		rest := h.text[h.pos+3:]
		end := strings.Index(rest, `"""`)
		if end < 0 {
			h.fail("text in three quotes does not end", `write """ after it`)
		}
		for end+3 < len(rest) && rest[end+3] == '"' {
			end++ // those before the last three are part of it
		}
		h.pos += 3 + end + 3
		h.line += strings.Count(rest[:end], "\n")
		return rest[:end]
	}
	for i := h.pos + 1; i < len(h.text) && h.text[i] != '\n'; i++ {
		switch h.text[i] {
		case '\\':
			i++
		case '"':
			raw := h.text[h.pos : i+1]
			// Go knows the escapes of JSON but \/.
			s, err := strconv.Unquote(strings.ReplaceAll(raw, `\/`, `/`))
			if err != nil {
				h.fail(fmt.Sprintf("%s is not text in quotes", raw), `write a backslash in it as \\`)
			}
			h.pos = i + 1
			return s
		}
	}
	h.fail("text in quotes does not end", "close the quotes on the same line")
	return ""
}

var (
	wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	number      = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
)

// scalarNode is a value with the tag that YAML would give it.
func scalarNode(text string, bare bool, line int) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Line: line}
	switch {
	case !bare:
	case slices.Contains([]string{"true", "false"}, text):
		n.Tag = "!!bool"
	case text == "null":
		n.Tag = "!!null"
	case wholeNumber.MatchString(text):
		n.Tag = "!!int"
	case number.MatchString(text):
		n.Tag = "!!float"
	}
	return n
}
