package rules_test

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// longestFunction is in lines.
const longestFunction = 60

// says nothing about what is in it.
var emptyNames = []string{"base", "common", "core", "helper", "helpers", "manager", "misc", "shared", "types", "util", "utils"}

var shapeRules = []rule{
	{
		name:  "each package has one comment",
		why:   "it is where a newcomer begins; two are none, since nobody knows which to read",
		check: packageComments,
		breaks: map[string]string{
			"pkg/drain/a.go": "package drain",
			"pkg/drain/b.go": "// Drain is\n// a package.\npackage drain",
			"cmd/nth/a.go":   "package main",
		},
		keeps: map[string]string{
			"pkg/drain/a.go":      "// Package drain drains.\npackage drain",
			"cmd/nth/a.go":        "// Nth drains.\npackage main",
			"pkg/drain/a_test.go": "package drain_test",
		},
	},
	{
		name:   "a package's name says what is in it",
		why:    "whatever fits nowhere ends up in a package whose name fits everything",
		check:  each(packageNames),
		breaks: map[string]string{"pkg/util/a.go": "package util", "test/helper/a.go": "package helpers"},
		keeps:  map[string]string{"pkg/record/a.go": "package record"},
	},
	{
		name:   fmt.Sprintf("a function has no more than %d lines", longestFunction),
		why:    "a function fits on a screen; talk before crossing the line",
		check:  each(functionLength),
		breaks: map[string]string{"pkg/drain/a.go": "package drain\nfunc f() {" + strings.Repeat("\n", longestFunction) + "}"},
		keeps: map[string]string{
			"pkg/drain/a.go":      "package drain\nfunc f() {" + strings.Repeat("\n", longestFunction-1) + "}",
			"pkg/drain/a_test.go": "package drain\nfunc TestTable() {" + strings.Repeat("\n", longestFunction) + "}",
		},
	},
	{
		name:   "nothing runs before main",
		why:    "an init function is an effect of an import, in an order that nobody reads",
		check:  each(inits),
		breaks: map[string]string{"pkg/drain/a.go": "package drain\nfunc init() {}"},
		keeps:  map[string]string{"pkg/drain/a.go": "package drain\nfunc (n Node) init() {}"},
	},
}

func packageComments(sources []source) []string {
	commented, first := map[string][]string{}, map[string]source{}
	for _, s := range sources {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		if _, met := first[s.dir()]; !met {
			first[s.dir()] = s
		}
		if s.file.Doc != nil && wellBegun(s) {
			commented[s.dir()] = append(commented[s.dir()], path.Base(s.path))
		} else if s.file.Doc != nil {
			commented[s.dir()] = append(commented[s.dir()], path.Base(s.path)+" (does not begin with \"Package "+s.file.Name.Name+"\")", "")
		}
	}
	var findings []string
	for dir, s := range first {
		if len(commented[dir]) != 1 {
			findings = append(findings, fmt.Sprintf("%s: the package has %d comments %q, want one", s.path, len(commented[dir]), commented[dir]))
		}
	}
	slices.Sort(findings)
	return findings
}

// wellBegun tells whether the package comment is one that go doc shows as such.
func wellBegun(s source) bool {
	return s.file.Name.Name == "main" || strings.HasPrefix(s.file.Doc.Text(), "Package "+s.file.Name.Name+" ")
}

func packageNames(s source) []string {
	if slices.Contains(emptyNames, s.file.Name.Name) || slices.Contains(emptyNames, path.Base(s.dir())) {
		return []string{fmt.Sprintf("%s: package %s in %s", s.path, s.file.Name.Name, s.dir())}
	}
	return nil
}

func functionLength(s source) []string {
	if strings.HasSuffix(s.path, "_test.go") {
		return nil
	}
	var findings []string
	for _, decl := range s.file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if lines > longestFunction {
				findings = append(findings, fmt.Sprintf("%s: %s has %d lines", s.at(f.Pos()), f.Name.Name, lines))
			}
		}
	}
	return findings
}

func inits(s source) []string {
	var findings []string
	for _, decl := range s.file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			findings = append(findings, s.at(f.Pos())+": init")
		}
	}
	return findings
}
