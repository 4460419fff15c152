package rules_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// proof is how docs/reliability.md names a test: the package's directory and the test's name.
var proof = regexp.MustCompile("`([a-z0-9/]+): ((?:Test|Fuzz)[A-Za-z0-9_]+)`")

// A table of faults is only worth what its tests are.
func TestEveryFaultIsShownByATestThatExists(t *testing.T) {
	text := page(t, "reliability.md")
	tests := testsOf(project(t).sources)
	named := 0
	for number, line := range strings.Split(text, "\n") {
		proofs := proof.FindAllStringSubmatch(line, -1)
		for _, p := range proofs {
			named++
			if !slices.Contains(tests[p[1]], p[2]) {
				t.Errorf("docs/reliability.md:%d: there is no test %s in %s", number+1, p[2], p[1])
			}
		}
		row := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| fault |")
		if row && (len(proofs) == 0 || strings.Count(line, "|") != 4) {
			t.Errorf("docs/reliability.md:%d: not a fault, what nth does and a test: %s", number+1, line)
		}
		if leftover := strings.Count(proof.ReplaceAllString(line, ""), "`Test"); leftover > 0 {
			t.Errorf("docs/reliability.md:%d: a test without its package: %s", number+1, line)
		}
	}
	if named < 50 {
		t.Errorf("docs/reliability.md names %d tests: it is read wrongly", named)
	}
}

// What test/faults and test/crash break is what the page is about.
func TestEveryTestOfAFaultIsOnThePage(t *testing.T) {
	text := page(t, "reliability.md")
	tests := testsOf(project(t).sources)
	for _, dir := range []string{"test/faults", "test/crash"} {
		if len(tests[dir]) == 0 {
			t.Errorf("there are no tests in %s", dir)
		}
		for _, name := range tests[dir] {
			if !strings.Contains(text, "`"+dir+": "+name+"`") {
				t.Errorf("docs/reliability.md does not name %s of %s", name, dir)
			}
		}
	}
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testsOf returns the names of all tests and fuzz targets, by the directory of their package.
func testsOf(sources []source) map[string][]string {
	tests := map[string][]string{}
	for _, s := range sources {
		if !strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.Name == "TestMain" {
				continue
			}
			if strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz") {
				tests[s.dir()] = append(tests[s.dir()], f.Name.Name)
			}
		}
	}
	return tests
}
