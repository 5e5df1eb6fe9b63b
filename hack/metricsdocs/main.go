// metricsdocs writes the page of metrics from the Go code that makes them.
//
//	go run ./hack/metricsdocs FILE DIR...
//
// It knows prometheus.NewDesc, the Opts of prometheus, and functions within a file that
// make a metric from a name and a help text.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

type metric struct {
	name, help string
	labels     []string
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: metricsdocs FILE DIR...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdocs:", err)
		os.Exit(1)
	}
}

func run(file string, dirs []string) error {
	var node, manager []metric
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			all, err := metricsOf(path)
			if strings.HasPrefix(path, "controllers") {
				manager = append(manager, all...)
			} else {
				node = append(node, all...)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(node) == 0 || len(manager) == 0 {
		return errors.New("no metrics were found")
	}
	var b bytes.Buffer
	b.WriteString("<!-- Made by make generate. -->\n# Metrics\n\nNodes and the manager serve these at `/metrics`, beside those of Go and of the process. [Operating](operating.md) says which to watch,\nand what to alert on.\n")
	page(&b, "Of a node", node)
	page(&b, "Of the manager", manager)
	return os.WriteFile(file, b.Bytes(), 0o644)
}

func page(b *bytes.Buffer, title string, all []metric) {
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	all = slices.CompactFunc(all, func(a, b metric) bool { return a.name == b.name })
	fmt.Fprintf(b, "\n## %s\n\n| metric | labels | |\n|---|---|---|\n", title)
	for _, m := range all {
		labels := ""
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", m.name, labels, strings.ReplaceAll(m.help, "|", `\|`))
	}
}

func metricsOf(path string) (all []metric, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil, err
	}
	makers := map[string]string{} // functions that make a metric, and what they begin its name with
	ast.Inspect(file, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok || len(a.Lhs) != 1 || len(a.Rhs) != 1 {
			return true
		}
		name, isName := a.Lhs[0].(*ast.Ident)
		fn, isFunc := a.Rhs[0].(*ast.FuncLit)
		if isName && isFunc {
			ast.Inspect(fn, func(n ast.Node) bool {
				if lit, ok := n.(*ast.CompositeLit); ok {
					if f := fields(lit); f["Name"] != nil && f["Help"] != nil {
						makers[name.Name] = begins(f)
					}
				}
				return true
			})
		}
		return true
	})
	vecs := map[*ast.CompositeLit][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch called := n.Fun.(type) {
			case *ast.SelectorExpr:
				if lit, ok := at(n.Args, 0).(*ast.CompositeLit); ok {
					vecs[lit] = labels(at(n.Args, 1))
				}
				if name := text(at(n.Args, 0)); called.Sel.Name == "NewDesc" && name != "" {
					all = append(all, metric{name, text(at(n.Args, 1)), labels(at(n.Args, 2))})
				}
			case *ast.Ident:
				if begin, ok := makers[called.Name]; ok && text(at(n.Args, 0)) != "" {
					all = append(all, metric{begin + text(at(n.Args, 0)), text(at(n.Args, 1)), nil})
				}
			}
		case *ast.CompositeLit:
			if f := fields(n); text(f["Name"]) != "" && text(f["Help"]) != "" {
				all = append(all, metric{begins(f) + text(f["Name"]), text(f["Help"]), vecs[n]})
			}
		}
		return true
	})
	return slices.DeleteFunc(all, func(m metric) bool { return !strings.HasPrefix(m.name, "tributary_") }), nil
}

func at(args []ast.Expr, i int) ast.Expr {
	if i < len(args) {
		return args[i]
	}
	return nil
}

// fields are those of a composite literal, by name.
func fields(lit *ast.CompositeLit) map[string]ast.Expr {
	m := map[string]ast.Expr{}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if k, ok := kv.Key.(*ast.Ident); ok {
				m[k.Name] = kv.Value
			}
		}
	}
	return m
}

// begins is what the names that are made with some Opts begin with.
func begins(f map[string]ast.Expr) (s string) {
	for _, part := range []string{"Namespace", "Subsystem"} {
		if t := text(f[part]); t != "" {
			s += t + "_"
		}
	}
	if b, ok := f["Name"].(*ast.BinaryExpr); ok {
		s += text(b.X)
	}
	return s
}

// text is what a string literal says, or those that are added up.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		if x, y := text(e.X), text(e.Y); x != "" && y != "" {
			return x + y
		}
	}
	return ""
}

func labels(e ast.Expr) (all []string) {
	if lit, ok := e.(*ast.CompositeLit); ok {
		for _, l := range lit.Elts {
			all = append(all, text(l))
		}
	}
	return all
}
