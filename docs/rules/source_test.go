package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is the product's module path.
const module = "github.com/nth-project/nth"

// source is one Go file of the project.
type source struct {
	path string // from the project's top, with slashes
	fset *token.FileSet
	file *ast.File
}

// dir is the file's package, from the project's top.
func (s source) dir() string { return path.Dir(s.path) }

// test tells whether the file is part of no program: a test, or a package for tests, which like httptest has a name
// that ends so, or the lab.
func (s source) test() bool {
	return strings.HasSuffix(s.path, "_test.go") || strings.HasSuffix(s.dir(), "test") || s.lab()
}

// lab tells whether the file belongs to the module below test/.
func (s source) lab() bool { return strings.HasPrefix(s.path, "test/") }

// at tells where something of the file is.
func (s source) at(pos token.Pos) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(pos).Line)
}

// in tells whether the file's package is one of the directories, or lies below one that ends with a slash.
func (s source) in(dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		return s.dir() == dir || strings.HasSuffix(dir, "/") && strings.HasPrefix(s.path, dir)
	})
}

// imports returns the file's imports: the path by the name that the file uses.
func (s source) imports() map[string]string {
	names := map[string]string{}
	for _, spec := range s.file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value) // It was parsed.
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = imported
	}
	return names
}

func parse(name string, text []byte) (source, error) {
	s := source{path: name, fset: token.NewFileSet()}
	var err error
	s.file, err = parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	return s, err
}

// project returns all of the project's own Go files.
func project(t *testing.T) []source {
	t.Helper()
	sources, err := readProject()
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) < 20 {
		t.Fatalf("only %d Go files found: the rules are looking in the wrong place", len(sources))
	}
	return sources
}

// top is the project's top directory, from here.
const top = "../.."

var readProject = sync.OnceValues(func() ([]source, error) {
	var sources []source
	err := filepath.WalkDir(top, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." && file != top
		if entry.IsDir() && (hidden || slices.Contains([]string{"bin", "dist", "testdata"}, entry.Name())) {
			return filepath.SkipDir
		}
		if entry.IsDir() || hidden || filepath.Ext(file) != ".go" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(top, file)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(name), text)
		sources = append(sources, s)
		return err
	})
	return sources, err
})
