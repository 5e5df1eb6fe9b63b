package nodeconfig

import (
	"errors"
	"fmt"
	"sort"
	"strings"
)

// Problem is one thing that is wrong in a file.
type Problem struct {
	// File as it was named to the parser.
	File string
	// Line from 1; 0 where the fault is not at a line.
	Line int
	// Path of the field, such as sources[0].postgres.hosts; empty for the file
	// as a whole.
	Path string
	// What is wrong, and how to mend it.
	What, Mend string
}

// Error writes file:line: path what: mend.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	b.WriteString(": ")
	if p.Path != "" {
		b.WriteString(p.Path + " ")
	}
	b.WriteString(p.What)
	if p.Mend != "" {
		b.WriteString(": " + p.Mend)
	}
	return b.String()
}

// Problems returns the problems in an error of this package, in the order of
// their lines.
func Problems(err error) []*Problem {
	var out []*Problem
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // the tree of errors is walked by hand
		case *Problem:
			out = append(out, e)
		case interface{ Unwrap() []error }:
			for _, e := range e.Unwrap() {
				walk(e)
			}
		default:
			if u := errors.Unwrap(err); u != nil {
				walk(u)
			}
		}
	}
	if err != nil {
		walk(err)
	}
	return out
}

// problems collects what is wrong in one file.
type problems struct {
	file  string
	lines map[string]int
	list  []*Problem
}

// at adds a problem of the field at path; its line is that of the field, or of
// the nearest one around it that is in the file.
func (p *problems) at(path, what, mend string) {
	line, known := p.lines[path]
	for at := path; !known && at != ""; {
		at = parent(at)
		line, known = p.lines[at]
	}
	p.list = append(p.list, &Problem{File: p.file, Line: line, Path: path, What: what, Mend: mend})
}

func parent(path string) string {
	if i := strings.LastIndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return ""
}

// err joins the problems, by line; nil when there are none.
func (p *problems) err() error {
	sort.SliceStable(p.list, func(i, j int) bool { return p.list[i].Line < p.list[j].Line })
	errs := make([]error, len(p.list))
	for i, q := range p.list {
		errs[i] = q
	}
	return errors.Join(errs...)
}
